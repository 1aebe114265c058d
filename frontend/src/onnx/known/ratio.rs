//! Sizes that go through floating point: `Cast → Mul → Floor → Cast`.
//!
//! A float that is computed from open sizes is the quotient of two sizes. A float constant takes part as the simplest
//! fraction that is rounded to it (`0.1` is 1/10), as long as flooring multiples of one gives what flooring multiples
//! of the other gives.

use ir::DType;
use ir::dim::Dim;
use ir::op::{BinaryOp, Comparison, UnaryOp};

use super::arithmetic::{truncated, truth};
use crate::onnx::sizes::Sizes;

/// A quotient of two sizes, or the square root of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratio {
    numerator: Dim,
    /// Positive, unless an open size is 0.
    denominator: Dim,
    /// Whether it is the root of the quotient, which is no quotient itself.
    root: bool,
}

/// The largest denominator of a constant.
const LARGEST: i64 = 4096;

impl Ratio {
    pub fn whole(size: Dim) -> Ratio {
        Ratio {
            numerator: size,
            denominator: Dim::Const(1),
            root: false,
        }
    }

    fn new(numerator: Dim, denominator: Dim) -> Option<Ratio> {
        let (mut numerator, mut denominator) = (numerator, denominator);
        if let Some(whole) = numerator.exact_div(&denominator) {
            (numerator, denominator) = (whole, Dim::Const(1));
        } else if let Some(inverse) = denominator.exact_div(&numerator).filter(|_| !numerator.is(0)) {
            (numerator, denominator) = (Dim::Const(1), inverse);
        }
        if denominator.as_const().is_some_and(|d| d < 0) {
            (numerator, denominator) = (-numerator, -denominator);
        }
        (numerator.is_small() && denominator.is_small() && !denominator.is(0)).then_some(Ratio {
            numerator,
            denominator,
            root: false,
        })
    }

    /// The numerator and the denominator; of a root, of its square.
    pub fn parts(self) -> (Dim, Dim) {
        (self.numerator, self.denominator)
    }

    pub fn is_root(&self) -> bool {
        self.root
    }

    /// The number, where both sizes are numbers.
    pub fn as_number(&self) -> Option<f64> {
        let value = self.numerator.as_const()? as f64 / self.denominator.as_const()? as f64;
        Some(if self.root { value.sqrt() } else { value })
    }

    /// The simplest fraction that is rounded to the float.
    pub fn of_float(value: f64, dtype: DType) -> Option<Ratio> {
        if !value.is_finite() || value.abs() > 1e9 {
            return None;
        }
        let rounds = |p: i64, q: i64| match dtype {
            DType::F32 => p as f32 / q as f32 == value as f32,
            DType::F64 => p as f64 / q as f64 == value,
            _ => false,
        };
        let (p, q) = simplest(value, rounds)?;
        // The float's multiples floor as the fraction's do.
        let agrees = |n: i64| match dtype {
            DType::F32 => (n as f32 * value as f32).floor() as i64 == (n * p).div_euclid(q),
            _ => (n as f64 * value).floor() as i64 == (n * p).div_euclid(q),
        };
        if q != 1 && value.abs() < 4096.0 && !(0..2048).all(agrees) {
            return None;
        }
        Some(Ratio {
            numerator: Dim::Const(p),
            denominator: Dim::Const(q),
            root: false,
        })
    }

    fn is_positive_below(&self, sizes: &Sizes) -> bool {
        !self.denominator.is(0) && sizes.at_least(&self.denominator, 0)
    }

    fn floor(&self, sizes: &Sizes) -> Option<Dim> {
        if !self.is_positive_below(sizes) {
            return None;
        }
        let floor = self.numerator.floor_div(&self.denominator);
        Some(if self.root { floor.floor_sqrt() } else { floor }).filter(Dim::is_small)
    }

    fn negated(&self) -> Option<Ratio> {
        (!self.root).then(|| Ratio {
            numerator: -self.numerator.clone(),
            ..self.clone()
        })
    }

    /// The whole part, as a cast to an integer has it.
    pub fn truncate(&self, sizes: &Sizes) -> Option<Dim> {
        if self.root {
            return self.floor(sizes);
        }
        truncated(&self.numerator, &self.denominator, sizes)
    }

    /// To the nearest whole number, ties to the even one.
    fn round(&self, sizes: &Sizes) -> Option<Dim> {
        if self.root || !self.is_positive_below(sizes) {
            return None;
        }
        let twice = self.denominator.clone() * 2;
        let shifted = self.numerator.clone() * 2 + &self.denominator;
        let up = shifted.floor_div(&twice);
        let tie = truth(Comparison::Eq, &shifted.modulo(&twice), &Dim::Const(0), sizes)?;
        let odd = up.modulo(&Dim::Const(2));
        Some(up - tie.checked_mul(&odd)?).filter(Dim::is_small)
    }

    pub fn unary(&self, op: UnaryOp, sizes: &Sizes) -> Option<Ratio> {
        match op {
            UnaryOp::Neg => self.negated(),
            UnaryOp::Abs if self.root || (sizes.at_least(&self.numerator, 0) && self.is_positive_below(sizes)) => {
                Some(self.clone())
            }
            UnaryOp::Floor => self.floor(sizes).map(Ratio::whole),
            UnaryOp::Ceil => Some(Ratio::whole(-self.negated()?.floor(sizes)?)),
            UnaryOp::Trunc => self.truncate(sizes).map(Ratio::whole),
            UnaryOp::Round => self.round(sizes).map(Ratio::whole),
            UnaryOp::Recip if !self.root && !self.numerator.is(0) => {
                Ratio::new(self.denominator.clone(), self.numerator.clone())
            }
            UnaryOp::Sqrt if !self.root => {
                let exact = |d: &Dim| d.exact_sqrt().filter(|root| sizes.at_least(root, 0));
                match (exact(&self.numerator), exact(&self.denominator)) {
                    (Some(n), Some(d)) => Ratio::new(n, d),
                    _ => Some(Ratio {
                        root: true,
                        ..self.clone()
                    }),
                }
            }
            _ => None,
        }
    }

    pub fn binary(&self, op: BinaryOp, other: &Ratio, sizes: &Sizes) -> Option<Ratio> {
        let (a, b) = (&self.numerator, &self.denominator);
        let (c, d) = (&other.numerator, &other.denominator);
        match (op, self.root, other.root) {
            // √x · √x = x
            (BinaryOp::Mul, true, true) if self == other => Ratio::new(a.clone(), b.clone()),
            (BinaryOp::Pow, root, false) if other.denominator.is(1) => {
                let n = c.as_const()?;
                let times = if root { (n % 2 == 0).then_some(n / 2)? } else { n };
                let square = Ratio::new(a.clone(), b.clone())?;
                match times {
                    0..=4 => (0..times).try_fold(Ratio::whole(Dim::Const(1)), |p, _| {
                        p.binary(BinaryOp::Mul, &square, sizes)
                    }),
                    _ => None,
                }
            }
            (BinaryOp::Pow, false, false) if other.as_number() == Some(0.5) => self.unary(UnaryOp::Sqrt, sizes),
            (BinaryOp::Mul, false, false) => {
                // Crosswise first: what cancels need not be multiplied.
                let (left, right) = (Ratio::new(a.clone(), d.clone())?, Ratio::new(c.clone(), b.clone())?);
                Ratio::new(
                    left.numerator.checked_mul(&right.numerator)?,
                    left.denominator.checked_mul(&right.denominator)?,
                )
            }
            (BinaryOp::Div, false, false) => self.binary(BinaryOp::Mul, &other.unary(UnaryOp::Recip, sizes)?, sizes),
            (BinaryOp::Add | BinaryOp::Sub | BinaryOp::Max | BinaryOp::Min, false, false) => {
                let (left, right, below) = if b == d {
                    (a.clone(), c.clone(), b.clone())
                } else {
                    (a.checked_mul(d)?, c.checked_mul(b)?, b.checked_mul(d)?)
                };
                let above = match op {
                    BinaryOp::Add => left + right,
                    BinaryOp::Sub => left - right,
                    _ if !sizes.at_least(&below, 0) => return None,
                    BinaryOp::Max => sizes.max(&left, &right),
                    _ => sizes.min(&left, &right),
                };
                Ratio::new(above, below)
            }
            _ => None,
        }
    }

    /// Says when a comparison holds, as [`truth`].
    pub fn compare(&self, op: Comparison, other: &Ratio, sizes: &Sizes) -> Option<Dim> {
        if self.root || other.root || !self.is_positive_below(sizes) || !other.is_positive_below(sizes) {
            return None;
        }
        let left = self.numerator.checked_mul(&other.denominator)?;
        let right = other.numerator.checked_mul(&self.denominator)?;
        truth(op, &left, &right, sizes)
    }
}

/// The first of the continued fraction's convergents that is good enough.
fn simplest(value: f64, good: impl Fn(i64, i64) -> bool) -> Option<(i64, i64)> {
    let (mut before, mut last) = ((0i64, 1i64), (1i64, 0i64));
    let mut rest = value;
    for _ in 0..24 {
        let whole = rest.floor();
        let next = (
            (whole as i64).checked_mul(last.0)?.checked_add(before.0)?,
            (whole as i64).checked_mul(last.1)?.checked_add(before.1)?,
        );
        if next.1 > LARGEST {
            return None;
        }
        if good(next.0, next.1) {
            return Some(next);
        }
        let fraction = rest - whole;
        if fraction == 0.0 {
            return None;
        }
        (before, last, rest) = (last, next, fraction.recip());
    }
    None
}

#[cfg(test)]
mod tests {
    use ir::dim::{Bindings, Symbol, SymbolInfo};

    use super::*;

    fn sizes() -> Sizes {
        Sizes {
            symbols: [(Symbol::new("n"), SymbolInfo::default())].into_iter().collect(),
            ..Sizes::default()
        }
    }

    fn at(dim: &Dim, n: i64) -> i64 {
        dim.eval(&Bindings::from_iter([(Symbol::new("n"), n)])).unwrap()
    }

    #[test]
    fn floats_are_the_fractions_they_come_from() {
        for (value, wanted) in [
            (0.1f32, (1, 10)),
            (1.5, (3, 2)),
            (1.0 / 3.0, (1, 3)),
            (-0.25, (-1, 4)),
            (8.0, (8, 1)),
        ] {
            let (p, q) = Ratio::of_float(f64::from(value), DType::F32).unwrap().parts();
            assert_eq!((p, q), (Dim::Const(wanted.0), Dim::Const(wanted.1)), "{value}");
        }
        assert!(Ratio::of_float(std::f64::consts::PI, DType::F64).is_none());
    }

    #[test]
    fn sizes_through_floats_are_rounded_as_floats_are() {
        let sizes = sizes();
        let n = Ratio::whole(Dim::symbol("n"));
        for scale in [0.5f32, 0.75, 1.25, 0.1, 2.0, 1.0 / 3.0] {
            let by = Ratio::of_float(f64::from(scale), DType::F32).unwrap();
            let scaled = n.binary(BinaryOp::Mul, &by, &sizes).unwrap();
            for (op, round) in [
                (UnaryOp::Floor, f32::floor as fn(f32) -> f32),
                (UnaryOp::Ceil, f32::ceil),
                (UnaryOp::Round, f32::round_ties_even),
            ] {
                let rounded = scaled.unary(op, &sizes).unwrap().parts().0;
                for size in 1..200 {
                    assert_eq!(
                        at(&rounded, size),
                        round(size as f32 * scale) as i64,
                        "{op:?} of {size} * {scale}"
                    );
                }
            }
        }
    }

    #[test]
    fn quotients_cancel_and_roots_of_squares_are_sizes() {
        let sizes = sizes();
        let n = Ratio::whole(Dim::symbol("n"));
        let twice = n.binary(BinaryOp::Add, &n, &sizes).unwrap();
        let scale = twice.binary(BinaryOp::Div, &n, &sizes).unwrap();
        assert_eq!(scale.as_number(), Some(2.0));
        let square = n.binary(BinaryOp::Mul, &n, &sizes).unwrap();
        assert_eq!(square.unary(UnaryOp::Sqrt, &sizes).unwrap(), n);
        let root = n
            .unary(UnaryOp::Sqrt, &sizes)
            .unwrap()
            .unary(UnaryOp::Floor, &sizes)
            .unwrap();
        let (root, one) = root.parts();
        assert!(one.is(1));
        for size in 1..50 {
            assert_eq!(at(&root, size), size.isqrt());
        }
    }

    #[test]
    fn whole_numbers_truncate_on_both_sides_of_zero() {
        let sizes = sizes();
        for (shift, by) in [(5, 3), (20, 7), (9, -2)] {
            let quotient = truncated(&(Dim::symbol("n") - shift), &Dim::Const(by), &sizes).unwrap();
            for n in 1..40 {
                assert_eq!(at(&quotient, n), (n - shift) / by, "({n} - {shift}) / {by}");
            }
        }
    }
}
