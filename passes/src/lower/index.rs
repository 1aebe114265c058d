//! Index arithmetic: coordinates as sums of axes, kept in a form in which reshapes cancel.
//!
//! A [`Linear`] is `constant + Σ coefficient · atom`; an atom is a loop axis, a quotient or remainder that did not
//! simplify, or a number that is only known when the kernel runs. Splitting and joining axes (reshape) is division and
//! remainder; with the extents of the axes known, most of it cancels, and what is left is a plain strided access.

use std::collections::BTreeMap;

use ir::kernel::{AxisId, ExprId};
use ir::{Dim, Shape, Symbols, Table};

/// A factor of a term.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Atom {
    Axis(AxisId),
    /// Floor quotient by a positive size.
    Div(Box<Linear>, Dim),
    /// Remainder by a positive size.
    Mod(Box<Linear>, Dim),
    /// A value of the kernel (an index read from memory).
    Expr(ExprId),
}

/// `constant + Σ coefficient · atom`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Linear {
    pub terms: BTreeMap<Atom, Dim>,
    pub constant: Dim,
}

/// What is known while simplifying: the extents of the axes and the bounds of symbols.
#[derive(Clone, Copy)]
pub struct Space<'a> {
    pub extents: &'a Table<AxisId, Dim>,
    pub symbols: &'a Symbols,
}

impl Atom {
    /// Says whether the atom is never negative; what is read from memory may be.
    fn is_nonnegative(&self, space: Space<'_>) -> bool {
        match self {
            Atom::Axis(_) => true,
            Atom::Div(x, _) | Atom::Mod(x, _) => x.is_nonnegative(space),
            Atom::Expr(_) => false,
        }
    }
}

impl Linear {
    /// A number.
    pub fn constant(value: impl Into<Dim>) -> Linear {
        Linear {
            terms: BTreeMap::new(),
            constant: value.into(),
        }
    }

    /// The position on an axis.
    pub fn axis(axis: AxisId) -> Linear {
        Linear::atom(Atom::Axis(axis))
    }

    /// One atom.
    pub fn atom(atom: Atom) -> Linear {
        Linear {
            terms: BTreeMap::from([(atom, Dim::Const(1))]),
            constant: Dim::Const(0),
        }
    }

    /// Says whether this is the number zero.
    pub fn is_zero(&self) -> bool {
        self.terms.is_empty() && self.constant.is(0)
    }

    /// Says whether only axes occur, so that the access is strided.
    pub fn is_affine(&self) -> bool {
        self.terms.keys().all(|a| matches!(a, Atom::Axis(_)))
    }

    /// Adds another.
    pub fn plus(mut self, other: &Linear) -> Linear {
        for (atom, coefficient) in &other.terms {
            let sum = self.terms.remove(atom).unwrap_or(Dim::Const(0)) + coefficient;
            if !sum.is(0) {
                self.terms.insert(atom.clone(), sum);
            }
        }
        self.constant = self.constant + &other.constant;
        self.join()
    }

    /// Adds a number.
    pub fn offset(mut self, by: &Dim) -> Linear {
        self.constant = self.constant + by;
        self
    }

    /// Multiplies by a number.
    pub fn scale(&self, by: &Dim) -> Linear {
        if by.is(0) {
            return Linear::constant(0);
        }
        Linear {
            terms: self.terms.iter().map(|(a, c)| (a.clone(), c.clone() * by)).collect(),
            constant: self.constant.clone() * by,
        }
    }

    /// Replaces `(x / d)·(c·d) + (x mod d)·c` by `x·c`.
    fn join(mut self) -> Linear {
        loop {
            let found = self.terms.iter().find_map(|(atom, c)| {
                let Atom::Mod(x, d) = atom else { return None };
                let partner = Atom::Div(x.clone(), d.clone());
                let whole = c.clone() * d;
                (self.terms.get(&partner) == Some(&whole)).then(|| (atom.clone(), partner, x.clone(), c.clone()))
            });
            let Some((remainder, quotient, x, c)) = found else {
                return self;
            };
            self.terms.remove(&remainder);
            self.terms.remove(&quotient);
            self = self.plus(&x.scale(&c));
        }
    }

    /// Returns the largest value, if it is known; `None` also where the value may be negative.
    fn upper(&self, space: Space<'_>) -> Option<Dim> {
        if !self.constant.at_least(0, space.symbols) {
            return None;
        }
        let mut max = self.constant.clone();
        for (atom, coefficient) in &self.terms {
            if !coefficient.at_least(0, space.symbols) {
                return None;
            }
            let top = match atom {
                Atom::Axis(a) => space.extents[*a].clone() - 1,
                // Kernels compute remainders of negative numbers with the sign of the dividend.
                Atom::Mod(x, d) if x.is_nonnegative(space) => d.clone() - 1,
                Atom::Mod(..) => return None,
                // floor(x / d) ≤ max(x) / d; only the exact case is worth having.
                Atom::Div(x, d) => (x.upper(space)? + 1).exact_div(d)? - 1,
                Atom::Expr(_) => return None,
            };
            max = max + coefficient.clone() * top;
        }
        Some(max)
    }

    /// Says whether `0 ≤ self < size` always holds.
    pub fn is_within(&self, size: &Dim, space: Space<'_>) -> bool {
        self.upper(space)
            .is_some_and(|max| (size.clone() - 1 - max).at_least(0, space.symbols))
    }

    /// Says whether `self ≥ 0` always holds.
    pub fn is_nonnegative(&self, space: Space<'_>) -> bool {
        self.constant.at_least(0, space.symbols)
            && self
                .terms
                .iter()
                .all(|(a, c)| a.is_nonnegative(space) && c.at_least(0, space.symbols))
    }

    /// Says whether `self < size` always holds.
    pub fn is_below(&self, size: &Dim, space: Space<'_>) -> bool {
        // Drop negative constants only when the rest is bounded.
        let mut positive = self.clone();
        let constant = std::mem::replace(&mut positive.constant, Dim::Const(0));
        positive
            .upper(space)
            .is_some_and(|max| (size.clone() - 1 - max - constant).at_least(0, space.symbols))
    }

    /// Splits into the part that `d` divides (returned divided) and the rest.
    fn split(&self, d: &Dim) -> (Linear, Linear) {
        let (mut whole, mut rest) = (Linear::constant(0), Linear::constant(0));
        for (atom, c) in &self.terms {
            match c.exact_div(d) {
                Some(q) => whole.terms.insert(atom.clone(), q),
                None => rest.terms.insert(atom.clone(), c.clone()),
            };
        }
        match (self.constant.exact_div(d), self.constant.as_const(), d.as_const()) {
            (Some(q), ..) => whole.constant = q,
            (None, Some(c), Some(d)) if d > 0 => {
                whole.constant = Dim::Const(c.div_euclid(d));
                rest.constant = Dim::Const(c.rem_euclid(d));
            }
            _ => rest.constant = self.constant.clone(),
        }
        (whole, rest)
    }

    /// Floor division by a positive size.
    pub fn div(&self, d: &Dim, space: Space<'_>) -> Linear {
        if d.is(1) {
            return self.clone();
        }
        let (whole, rest) = self.split(d);
        if rest.is_within(d, space) {
            return whole;
        }
        // (x / a) / b = x / (a·b).
        if let Some((Atom::Div(x, a), c)) = rest.terms.first_key_value()
            && rest.terms.len() == 1
            && c.is(1)
            && rest.constant.is(0)
        {
            return whole.plus(&x.div(&(a.clone() * d), space));
        }
        whole.plus(&Linear::atom(Atom::Div(Box::new(rest), d.clone())))
    }

    /// Remainder by a positive size.
    pub fn modulo(&self, d: &Dim, space: Space<'_>) -> Linear {
        if d.is(1) {
            return Linear::constant(0);
        }
        let (_, rest) = self.split(d);
        if rest.is_within(d, space) {
            return rest;
        }
        // (x mod a) mod b = x mod b when b divides a.
        if let Some((Atom::Mod(x, a), c)) = rest.terms.first_key_value()
            && rest.terms.len() == 1
            && c.is(1)
            && rest.constant.is(0)
            && a.exact_div(d).is_some()
        {
            return x.modulo(d, space);
        }
        Linear::atom(Atom::Mod(Box::new(rest), d.clone()))
    }

    /// Returns the coefficient of an axis; 0 where it does not occur at the top.
    pub fn coefficient(&self, axis: AxisId) -> Dim {
        self.terms.get(&Atom::Axis(axis)).cloned().unwrap_or(Dim::Const(0))
    }

    /// Says whether the axis occurs inside a quotient or remainder.
    pub fn hides(&self, axis: AxisId) -> bool {
        self.terms.keys().any(|a| match a {
            Atom::Axis(_) | Atom::Expr(_) => false,
            Atom::Div(x, _) | Atom::Mod(x, _) => x.terms.contains_key(&Atom::Axis(axis)) || x.hides(axis),
        })
    }

    /// Calls `f` with each expression that occurs.
    pub fn for_each_expr(&self, f: &mut impl FnMut(ExprId)) {
        for atom in self.terms.keys() {
            match atom {
                Atom::Expr(e) => f(*e),
                Atom::Div(x, _) | Atom::Mod(x, _) => x.for_each_expr(f),
                Atom::Axis(_) => {}
            }
        }
    }
}

/// Returns the row-major position of coordinates in a shape.
pub fn linearize(coords: &[Linear], shape: &Shape) -> Linear {
    coords
        .iter()
        .zip(shape.strides())
        .fold(Linear::constant(0), |sum, (c, stride)| sum.plus(&c.scale(&stride)))
}

/// Returns the coordinates of a row-major position in a shape.
pub fn delinearize(position: &Linear, shape: &[Dim], space: Space<'_>) -> Vec<Linear> {
    let mut rest = position.clone();
    let mut coords = vec![Linear::constant(0); shape.len()];
    // The outermost dim that is not 1 takes what is left, with no remainder.
    let first = shape.iter().position(|d| !d.is(1)).unwrap_or(0);
    for axis in (first..shape.len()).rev() {
        if shape[axis].is(1) {
            continue;
        }
        if axis == first {
            coords[axis] = rest;
            break;
        }
        coords[axis] = rest.modulo(&shape[axis], space);
        rest = rest.div(&shape[axis], space);
    }
    coords
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::Symbol;

    #[test]
    fn splitting_and_joining_cancel() {
        let mut extents: Table<AxisId, Dim> = Table::new();
        let seq = Dim::symbol("s");
        let (b, s, h) = (
            extents.push(Dim::from(4)),
            extents.push(seq.clone()),
            extents.push(Dim::from(768)),
        );
        let symbols = Symbols::from_iter([(Symbol::new("s"), ir::SymbolInfo::default())]);
        let space = Space {
            extents: &extents,
            symbols: &symbols,
        };
        let coords = [Linear::axis(b), Linear::axis(s), Linear::axis(h)];
        let shape = Shape::from(vec![Dim::from(4), seq.clone(), Dim::from(768)]);
        let position = linearize(&coords, &shape);
        // [4, s, 768] → [4·s, 12, 64] → [4, s, 768]
        let split = Shape::from(vec![seq.clone() * 4, Dim::from(12), Dim::from(64)]);
        let parts = delinearize(&position, &split, space);
        assert_eq!(parts[0], Linear::axis(b).scale(&seq).plus(&Linear::axis(s)));
        assert!(!parts[1].is_affine(), "an axis of 768 split into 12 x 64 is a quotient");
        let joined = delinearize(&linearize(&parts, &split), &shape, space);
        assert_eq!(joined, coords);
    }

    #[test]
    fn a_joined_axis_splits_back() {
        let mut extents: Table<AxisId, Dim> = Table::new();
        let m = extents.push(Dim::from(35));
        let symbols = Symbols::new();
        let space = Space {
            extents: &extents,
            symbols: &symbols,
        };
        let shape = Shape::from([5i64, 7]);
        let coords = delinearize(&Linear::axis(m), &shape, space);
        assert_eq!(linearize(&coords, &shape), Linear::axis(m));
    }
}
