//! Bounds of sizes that hold whatever the symbols are.

use super::{Atom, Dim, Symbols, gcd};

/// A range; `None` where there is no limit.
type Range = (Option<i64>, Option<i64>);

/// How many polynomials are looked at for one bound.
const BUDGET: usize = 48;

impl Dim {
    /// Returns bounds that hold for every allowed binding: `(at least, at most)`, `None` where there is no limit.
    pub fn bounds(&self, symbols: &Symbols) -> Range {
        let plain = self.plain_bounds(symbols);
        if plain.0 == plain.1 && plain.0.is_some() || !self.has_operations() {
            return plain;
        }
        let low = self.least(symbols, &mut BUDGET.clone());
        let high = (-self.clone()).least(symbols, &mut BUDGET.clone());
        (low, high.and_then(i64::checked_neg))
    }

    /// Bounds of each term alone, added.
    fn plain_bounds(&self, symbols: &Symbols) -> Range {
        let poly = match self {
            Dim::Const(v) => return (Some(*v), Some(*v)),
            Dim::Poly(p) => p,
        };
        let mut sum = (Some(0i64), Some(0i64));
        for (monomial, coefficient) in &poly.terms {
            let term = monomial
                .iter()
                .fold((Some(1), Some(1)), |term, atom| product(term, atom.bounds(symbols)));
            let (lo, hi) = if *coefficient >= 0 { term } else { (term.1, term.0) };
            let scale = |v: Option<i64>| v.and_then(|v| v.checked_mul(*coefficient));
            sum = (
                sum.0.zip(scale(lo)).and_then(|(a, b)| a.checked_add(b)),
                sum.1.zip(scale(hi)).and_then(|(a, b)| a.checked_add(b)),
            );
        }
        sum
    }

    /// Says whether the dim is a sum in which an operation stands alone in a term, so that its operands may cancel
    /// others.
    fn has_operations(&self) -> bool {
        let Dim::Poly(p) = self else { return false };
        p.terms.len() > 1
            && p.terms
                .iter()
                .any(|(m, _)| matches!(m.as_slice(), [atom] if splits(atom)))
    }

    /// Returns a lower bound. Operations that stand alone in a term are replaced by what bounds them: `k·max(a, b)` by
    /// both of its cases, `k·div(x, d)` by `k·x/d`.
    fn least(&self, symbols: &Symbols, budget: &mut usize) -> Option<i64> {
        let plain = self.plain_bounds(symbols).0;
        *budget = budget.saturating_sub(1);
        let Dim::Poly(p) = self else { return plain };
        if *budget == 0 || !self.has_operations() {
            return plain;
        }
        let Some((monomial, k)) = p
            .terms
            .iter()
            .find(|(m, _)| matches!(m.as_slice(), [atom] if splits(atom)))
        else {
            return plain;
        };
        let (k, atom) = (*k, &monomial[0]);
        let rest = Dim::from_terms(p.terms.iter().filter(|(m, _)| m != monomial).cloned());
        let refined = match atom {
            Atom::Max(a, b) | Atom::Min(a, b) => {
                let (x, y) = (rest.clone() + a.clone() * k, rest + b.clone() * k);
                let (x, y) = (x.least(symbols, budget), y.least(symbols, budget));
                // The larger of two with a positive coefficient is at least either; with a negative one it may be each.
                if matches!(atom, Atom::Max(..)) == (k > 0) {
                    x.max(y)
                } else {
                    x.zip(y).map(|(x, y)| x.min(y))
                }
            }
            Atom::FloorDiv(x, Dim::Const(d)) => {
                let x = if k > 0 { x.clone() - (d - 1) } else { x.clone() };
                let scaled = (rest * *d + x * k).least(symbols, budget);
                scaled.and_then(|v| Some(v.checked_div_euclid(*d)? + i64::from(v.checked_rem_euclid(*d)? != 0)))
            }
            Atom::Mod(x, d) => (rest + x.clone() * k - x.floor_div(d) * d.clone() * k).least(symbols, budget),
            _ => None,
        };
        plain.max(refined)
    }

    /// Says whether the dim is at least `value` for every allowed binding.
    pub fn at_least(&self, value: i64, symbols: &Symbols) -> bool {
        if self.plain_bounds(symbols).0.is_some_and(|lo| lo >= value) {
            return true;
        }
        self.has_operations() && self.least(symbols, &mut BUDGET.clone()).is_some_and(|lo| lo >= value)
    }

    /// Says whether a number is known to divide the dim whatever the symbols are.
    pub fn is_multiple_of(&self, number: i64) -> bool {
        number != 0 && gcd(self.known_divisor(), number.saturating_abs()) == number.saturating_abs()
    }
}

/// Operations that [`Dim::least`] replaces.
fn splits(atom: &Atom) -> bool {
    match atom {
        Atom::Max(..) | Atom::Min(..) => true,
        Atom::FloorDiv(_, d) | Atom::Mod(_, d) => d.as_const().is_some_and(|d| d > 0),
        Atom::Symbol(_) | Atom::Sqrt(_) => false,
    }
}

fn product(a: Range, b: Range) -> Range {
    if let ((Some(al), ah), (Some(bl), bh)) = (a, b)
        && al >= 0
        && bl >= 0
    {
        return (al.checked_mul(bl), ah.zip(bh).and_then(|(a, b)| a.checked_mul(b)));
    }
    let ((Some(al), Some(ah)), (Some(bl), Some(bh))) = (a, b) else {
        return (None, None);
    };
    let corners = [(al, bl), (al, bh), (ah, bl), (ah, bh)].map(|(a, b)| i128::from(a) * i128::from(b));
    let end = |v: Option<&i128>| v.and_then(|v| i64::try_from(*v).ok());
    (end(corners.iter().min()), end(corners.iter().max()))
}

impl Atom {
    fn bounds(&self, symbols: &Symbols) -> Range {
        match self {
            Atom::Symbol(s) => symbols.get(s).map_or((None, None), |info| (Some(info.min), info.max)),
            Atom::FloorDiv(a, b) => {
                let ((alo, ahi), (blo, bhi)) = (a.bounds(symbols), b.bounds(symbols));
                if let Some(d) = b.as_const().filter(|d| *d > 0) {
                    return (alo.map(|v| v.div_euclid(d)), ahi.map(|v| v.div_euclid(d)));
                }
                match (alo, blo) {
                    (Some(alo), Some(blo)) if alo >= 0 && blo >= 1 => {
                        (Some(bhi.map_or(0, |bhi| alo / bhi)), ahi.map(|ahi| ahi / blo))
                    }
                    _ => (None, None),
                }
            }
            Atom::Mod(a, b) => match b.bounds(symbols) {
                (Some(lo), hi) if lo >= 1 => {
                    // A remainder of what is not negative is no larger than it.
                    let whole = match a.bounds(symbols) {
                        (Some(lo), hi) if lo >= 0 => hi,
                        _ => None,
                    };
                    (Some(0), hi.map(|h| h - 1).into_iter().chain(whole).min())
                }
                _ => (None, None),
            },
            Atom::Sqrt(a) => {
                let (lo, hi) = a.bounds(symbols);
                (Some(lo.map_or(0, |v| v.max(0).isqrt())), hi.map(|v| v.max(0).isqrt()))
            }
            Atom::Max(a, b) => {
                let ((alo, ahi), (blo, bhi)) = (a.bounds(symbols), b.bounds(symbols));
                (alo.max(blo), ahi.zip(bhi).map(|(a, b)| a.max(b)))
            }
            Atom::Min(a, b) => {
                let ((alo, ahi), (blo, bhi)) = (a.bounds(symbols), b.bounds(symbols));
                (alo.zip(blo).map(|(a, b)| a.min(b)), ahi.into_iter().chain(bhi).min())
            }
        }
    }
}
