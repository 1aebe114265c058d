//! How an index moves along an axis: strides, contiguity and alignment, as provable facts.
//!
//! An axis is walked in *groups* of `width` neighbours that start at multiples of `width`. [`along`] says how an
//! expression moves inside a group and what divides it at the group's start, so that whoever maps a kernel and whoever prints it
//! agree on which accesses are one wide one.

use super::{AxisId, Expr, ExprId, Kernel};
use crate::dim::{Dim, Symbols};
use crate::graph::op::BinaryOp;

/// An expression inside a group: `e(start + j) = e(start) + stride · j` for `0 ≤ j < width`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Motion {
    pub stride: Dim,
    /// Divides `e(start)`; 0 when `e(start)` is 0.
    pub divisor: i64,
}

impl Motion {
    fn fixed(divisor: i64) -> Motion {
        Motion {
            stride: Dim::Const(0),
            divisor,
        }
    }

    /// Says whether the expression is the same for the whole group.
    pub fn is_fixed(&self) -> bool {
        self.stride.is(0)
    }

    /// Says whether a group of `width` is neighbours in memory whose first is at a multiple of `width`.
    pub fn is_wide(&self, width: i64) -> bool {
        self.stride.is(1) && self.divisor % width == 0
    }
}

/// Returns how the `i64` expression `e` moves along `axis` in groups of `width`, or `None` when it is not affine there.
pub fn along(kernel: &Kernel, symbols: &Symbols, e: ExprId, axis: AxisId, width: i64) -> Option<Motion> {
    let of = |e: ExprId| along(kernel, symbols, e, axis, width);
    match &kernel.exprs[e] {
        Expr::Axis(a) if *a == axis => Some(Motion {
            stride: Dim::Const(1),
            divisor: width,
        }),
        Expr::Axis(_) => Some(Motion::fixed(1)),
        Expr::Const(_, scalar) => Some(Motion::fixed(scalar.as_i64().saturating_abs())),
        Expr::Size(dim) => Some(Motion::fixed(dim.known_divisor())),
        Expr::Var(_) => None,
        Expr::Binary(BinaryOp::Add, a, b) => {
            let (a, b) = (of(*a)?, of(*b)?);
            Some(Motion {
                stride: a.stride + b.stride,
                divisor: gcd(a.divisor, b.divisor),
            })
        }
        Expr::Binary(BinaryOp::Sub, a, b) => {
            let (a, b) = (of(*a)?, of(*b)?);
            Some(Motion {
                stride: a.stride - b.stride,
                divisor: gcd(a.divisor, b.divisor),
            })
        }
        Expr::Binary(BinaryOp::Mul, a, b) => {
            let (x, y) = (of(*a)?, of(*b)?);
            let divisor = x.divisor.saturating_mul(y.divisor);
            let stride = match (x.is_fixed(), y.is_fixed()) {
                (true, true) => Dim::Const(0),
                (false, true) => x.stride * number(kernel, *b)?,
                (true, false) => y.stride * number(kernel, *a)?,
                (false, false) => return None,
            };
            Some(Motion { stride, divisor })
        }
        // A group that starts at a multiple of its width does not straddle a multiple of what its width divides.
        Expr::Binary(op @ (BinaryOp::Div | BinaryOp::Rem | BinaryOp::Mod), a, b) => {
            let (x, y) = (of(*a)?, of(*b)?);
            if !y.is_fixed() {
                return None;
            }
            let is_quotient = *op == BinaryOp::Div;
            if x.is_fixed() {
                return Some(Motion::fixed(if is_quotient { 1 } else { gcd(x.divisor, y.divisor) }));
            }
            let whole = x.is_wide(width)
                && y.divisor % width == 0
                && y.divisor != 0
                && is_nonnegative(kernel, symbols, *a)
                && is_nonnegative(kernel, symbols, *b);
            match (whole, is_quotient) {
                (false, _) => None,
                (true, true) => Some(Motion::fixed(1)),
                (true, false) => Some(Motion {
                    stride: Dim::Const(1),
                    divisor: gcd(x.divisor, y.divisor),
                }),
            }
        }
        other => {
            let mut fixed = true;
            other.for_each_operand(|o| fixed = fixed && is_fixed(kernel, o, axis));
            fixed.then(|| Motion::fixed(1))
        }
    }
}

/// Says whether an expression of any type does not mention `axis` (nor a variable, which may depend on it).
pub fn is_fixed(kernel: &Kernel, e: ExprId, axis: AxisId) -> bool {
    match &kernel.exprs[e] {
        Expr::Axis(a) => *a != axis,
        Expr::Var(_) => false,
        other => {
            let mut fixed = true;
            other.for_each_operand(|o| fixed = fixed && is_fixed(kernel, o, axis));
            fixed
        }
    }
}

/// Says whether an `i64` expression is provably not negative.
pub fn is_nonnegative(kernel: &Kernel, symbols: &Symbols, e: ExprId) -> bool {
    let of = |e: ExprId| is_nonnegative(kernel, symbols, e);
    match &kernel.exprs[e] {
        Expr::Axis(_) => true,
        Expr::Const(_, scalar) => scalar.as_i64() >= 0,
        Expr::Size(dim) => dim.at_least(0, symbols),
        Expr::Binary(BinaryOp::Add | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Min, a, b) => of(*a) && of(*b),
        Expr::Binary(BinaryOp::Rem, a, _) => of(*a),
        Expr::Binary(BinaryOp::Mod, _, b) => of(*b),
        Expr::Binary(BinaryOp::Max, a, b) => of(*a) || of(*b),
        Expr::Select(_, a, b) => of(*a) && of(*b),
        _ => false,
    }
}

/// Returns the size that an expression is, if it is one.
fn number(kernel: &Kernel, e: ExprId) -> Option<Dim> {
    match &kernel.exprs[e] {
        Expr::Const(_, scalar) => Some(Dim::Const(scalar.as_i64())),
        Expr::Size(dim) => Some(dim.clone()),
        Expr::Binary(BinaryOp::Mul, a, b) => Some(number(kernel, *a)? * number(kernel, *b)?),
        _ => None,
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
