//! Quotients, remainders, maxima, minima and roots of sizes, in a form in which equal sizes look equal as often as
//! possible.
//!
//! By a number `d`, a quotient has a dividend whose coefficients are smaller than `d`, whose constant is in `0..d` and
//! whose last term is positive; a quotient of a quotient is one quotient. So the rows of a strided convolution,
//! `⌊(n − 1)/2⌋ + 1`, and `⌈n/2⌉` are both `div(n + 1, 2)`.

use super::{Atom, Dim, floor_div, gcd};

type Term = (Vec<Atom>, i64);

impl Dim {
    /// Returns the quotient when the division leaves no remainder whatever the symbols are.
    pub fn exact_div(&self, divisor: &Dim) -> Option<Dim> {
        if let (Dim::Const(a), Dim::Const(b)) = (self, divisor) {
            return (a.checked_rem(*b) == Some(0)).then(|| Dim::Const(a.wrapping_div(*b)));
        }
        if self.is(0) {
            return Some(Dim::Const(0));
        }
        if self == divisor {
            return Some(Dim::Const(1));
        }
        // Polynomial long division by leading terms (lexicographic on sorted monomials).
        let divisor_terms = divisor.terms();
        let (lead_m, lead_c) = divisor_terms.last()?.clone();
        let mut rest = self.clone();
        let mut quotient = Vec::new();
        for _ in 0..64 {
            if rest.is(0) {
                return Some(Dim::from_terms(quotient));
            }
            // Any term of the remainder that the lead divides serves; failing that there is no exact quotient.
            let step = rest.terms().into_iter().rev().find_map(|(m, c)| {
                if c.checked_rem(lead_c) != Some(0) {
                    return None;
                }
                remove_factors(&m, &lead_m).map(|q| (q, c.wrapping_div(lead_c)))
            })?;
            rest = rest - Dim::from_terms([step.clone()]) * divisor.clone();
            quotient.push(step);
        }
        None
    }

    /// Returns the quotient rounded towards minus infinity.
    pub fn floor_div(&self, divisor: &Dim) -> Dim {
        if let (Dim::Const(a), Dim::Const(b)) = (self, divisor)
            && *b != 0
        {
            return Dim::Const(floor_div(*a, *b));
        }
        if let Some(q) = self.exact_div(divisor) {
            return q;
        }
        match divisor.as_const() {
            Some(d) if d > 0 => self.floor_div_by(d),
            Some(d) if d < 0 && d != i64::MIN => (-self.clone()).floor_div_by(-d),
            Some(_) => Dim::atom(Atom::FloorDiv(self.clone(), divisor.clone())),
            None => self.floor_div_open(divisor),
        }
    }

    /// As [`Dim::floor_div`], by a positive number.
    fn floor_div_by(&self, d: i64) -> Dim {
        // (a·d + r) / d = a + r / d, term by term.
        let mut whole: Vec<Term> = Vec::new();
        let mut rest: Vec<Term> = Vec::new();
        for (monomial, c) in self.terms() {
            let quotient = if monomial.is_empty() { floor_div(c, d) } else { c / d };
            whole.push((monomial.clone(), quotient));
            rest.push((monomial, c.wrapping_sub(quotient.wrapping_mul(d))));
        }
        let (whole, rest) = (Dim::from_terms(whole), Dim::from_terms(rest));
        if rest.as_const().is_some() {
            return whole;
        }
        let terms = rest.terms();
        if terms.last().is_some_and(|(_, c)| *c < 0) {
            // ⌊−x/d⌋ = −⌊(x + d − 1)/d⌋
            return whole - (-rest + (d - 1)).floor_div_by(d);
        }
        let constant = constant_of(&terms);
        let common = terms
            .iter()
            .filter(|(m, _)| !m.is_empty())
            .fold(d, |g, (_, c)| gcd(g, c.saturating_abs()));
        if common > 1 {
            let divided = terms.into_iter().map(|(m, c)| (m, floor_div(c, common)));
            return whole + Dim::from_terms(divided).floor_div_by(d / common);
        }
        if let Some((x, e)) = lone_quotient(&terms)
            && let (Some(product), Some(moved)) = (e.checked_mul(d), constant.checked_mul(e))
        {
            return whole + (x.clone() + moved).floor_div_by(product);
        }
        whole + Dim::atom(Atom::FloorDiv(rest, Dim::Const(d)))
    }

    /// As [`Dim::floor_div`], by an open size: common factors are cancelled, and what the divisor divides is taken out.
    fn floor_div_open(&self, divisor: &Dim) -> Dim {
        let (a, b) = cancel_common(self, divisor);
        if b != *divisor {
            return a.floor_div(&b);
        }
        if let [(lead, by)] = divisor.terms().as_slice() {
            let divides = |(m, c): &Term| c.checked_rem(*by) == Some(0) && remove_factors(m, lead).is_some();
            let (whole, rest): (Vec<Term>, Vec<Term>) = self.terms().into_iter().partition(divides);
            if !whole.is_empty() && !rest.is_empty() {
                let quotient = |(m, c): Term| remove_factors(&m, lead).map(|m| (m, c.wrapping_div(*by)));
                let whole = Dim::from_terms(whole.into_iter().filter_map(quotient));
                return whole + Dim::from_terms(rest).floor_div(divisor);
            }
        }
        Dim::atom(Atom::FloorDiv(self.clone(), divisor.clone()))
    }

    /// Returns the quotient rounded up; the divisor is positive.
    pub fn ceil_div(&self, divisor: &Dim) -> Dim {
        if let Some(q) = self.exact_div(divisor) {
            return q;
        }
        (self.clone() + divisor.clone() - Dim::Const(1)).floor_div(divisor)
    }

    /// Returns the remainder, which has the sign of the divisor.
    pub fn modulo(&self, divisor: &Dim) -> Dim {
        if let (Dim::Const(a), Dim::Const(b)) = (self, divisor)
            && *b != 0
        {
            return Dim::Const(a.wrapping_sub(floor_div(*a, *b).wrapping_mul(*b)));
        }
        if self.exact_div(divisor).is_some() {
            return Dim::Const(0);
        }
        let Some(d) = divisor.as_const().filter(|d| *d > 0) else {
            return Dim::atom(Atom::Mod(self.clone(), divisor.clone()));
        };
        // Multiples of the divisor do not show.
        let rest = Dim::from_terms(self.terms().into_iter().map(|(m, c)| (m, c.rem_euclid(d))));
        if let Some(v) = rest.as_const() {
            return Dim::Const(v);
        }
        let terms = rest.terms();
        let common = terms.iter().fold(d, |g, (_, c)| gcd(g, *c));
        if common > 1 {
            let divided = Dim::from_terms(terms.into_iter().map(|(m, c)| (m, c / common)));
            return divided.modulo(&Dim::Const(d / common)) * common;
        }
        if let [(monomial, 1)] = terms.as_slice()
            && let [Atom::Mod(x, Dim::Const(e))] = monomial.as_slice()
        {
            if (1..=d).contains(e) {
                return rest;
            }
            if *e > 0 && e % d == 0 {
                return x.modulo(divisor);
            }
        }
        Dim::atom(Atom::Mod(rest, divisor.clone()))
    }

    /// Returns the larger of the two.
    pub fn larger(&self, other: &Dim) -> Dim {
        if let Some(d) = (self - other).as_const() {
            return if d >= 0 { self.clone() } else { other.clone() };
        }
        for (a, b) in [(self, other), (other, self)] {
            // max(−x, 0) = max(x, 0) − x
            if b.is(0) && a.terms().last().is_some_and(|(_, c)| *c < 0) {
                let x = -a.clone();
                return x.larger(b) - x;
            }
            if let Some(Atom::Max(x, y)) = a.as_atom() {
                for (x, y) in [(x, y), (y, x)] {
                    if let Some(d) = (x - b).as_const() {
                        return if d >= 0 { a.clone() } else { b.larger(y) };
                    }
                }
            }
        }
        let (a, b) = if self < other { (self, other) } else { (other, self) };
        Dim::atom(Atom::Max(a.clone(), b.clone()))
    }

    /// Returns the smaller of the two.
    pub fn smaller(&self, other: &Dim) -> Dim {
        if let Some(d) = (self - other).as_const() {
            return if d <= 0 { self.clone() } else { other.clone() };
        }
        for (a, b) in [(self, other), (other, self)] {
            if let Some(Atom::Min(x, y)) = a.as_atom() {
                for (x, y) in [(x, y), (y, x)] {
                    if let Some(d) = (x - b).as_const() {
                        return if d <= 0 { a.clone() } else { b.smaller(y) };
                    }
                }
            }
        }
        let (a, b) = if self < other { (self, other) } else { (other, self) };
        Dim::atom(Atom::Min(a.clone(), b.clone()))
    }

    /// Returns the square root rounded down; 0 of a negative size.
    pub fn floor_sqrt(&self) -> Dim {
        match self {
            Dim::Const(v) => Dim::Const((*v).max(0).isqrt()),
            Dim::Poly(_) => Dim::atom(Atom::Sqrt(self.clone())),
        }
    }

    /// Returns a dim whose square this is, with a last term that is not negative.
    pub fn exact_sqrt(&self) -> Option<Dim> {
        if let Dim::Const(v) = self {
            let root = (*v >= 0).then(|| v.isqrt())?;
            return (root.checked_mul(root) == Some(*v)).then_some(Dim::Const(root));
        }
        // As on paper: the root of the last term, then what twice that divides of the rest.
        let terms = self.terms();
        let (monomial, c) = terms.last()?;
        let first = Dim::from_terms([(half_of(monomial)?, Dim::Const(*c).exact_sqrt()?.as_const()?)]);
        let mut root = first.clone();
        for _ in 0..8 {
            let rest = self - &root.checked_mul(&root)?;
            if rest.is(0) {
                return Some(root);
            }
            let next = Dim::from_terms([rest.terms().pop()?]);
            root = root + next.exact_div(&(first.clone() * 2i64))?;
        }
        None
    }

    /// Says whether the two are equal when remainders and minima are written as quotients and maxima.
    pub fn same_size(&self, other: &Dim) -> bool {
        self == other || (self.spelled(8) - other.spelled(8)).is(0)
    }

    /// Writes `mod(x, d)` as `x − d·div(x, d)` and `min(x, y)` as `x + y − max(x, y)`.
    pub(super) fn spelled(&self, depth: usize) -> Dim {
        let Dim::Poly(p) = self else { return self.clone() };
        if depth == 0 || p.terms.len() > 16 {
            return self.clone();
        }
        let within = |dim: &Dim| Some(dim.spelled(depth - 1));
        let mut sum = Dim::Const(0);
        for (monomial, coefficient) in &p.terms {
            let mut product = Dim::Const(*coefficient);
            for atom in monomial {
                let factor = match atom {
                    Atom::Mod(x, d) => {
                        let (x, d) = (x.spelled(depth - 1), d.spelled(depth - 1));
                        x.clone() - x.floor_div(&d) * &d
                    }
                    Atom::Min(x, y) => {
                        let (x, y) = (x.spelled(depth - 1), y.spelled(depth - 1));
                        x.clone() + &y - x.larger(&y)
                    }
                    atom => match atom.map(within) {
                        Some(factor) => factor,
                        None => return self.clone(),
                    },
                };
                product = match product.checked_mul(&factor) {
                    Some(product) => product,
                    None => return self.clone(),
                };
            }
            sum = sum + product;
        }
        sum
    }

    /// Returns the atom, if the dim is just one.
    fn as_atom(&self) -> Option<&Atom> {
        let Dim::Poly(p) = self else { return None };
        match p.terms.as_slice() {
            [(m, 1)] => match m.as_slice() {
                [atom] => Some(atom),
                _ => None,
            },
            _ => None,
        }
    }
}

fn constant_of(terms: &[Term]) -> i64 {
    terms.iter().find(|(m, _)| m.is_empty()).map_or(0, |(_, c)| *c)
}

/// Reads `div(x, e) + constant`.
fn lone_quotient(terms: &[Term]) -> Option<(&Dim, i64)> {
    let mut others = terms.iter().filter(|(m, _)| !m.is_empty());
    let (Some((monomial, 1)), None) = (others.next(), others.next()) else {
        return None;
    };
    match monomial.as_slice() {
        [Atom::FloorDiv(x, Dim::Const(e))] if *e > 0 => Some((x, *e)),
        _ => None,
    }
}

/// Divides both by the factors that all their terms share.
fn cancel_common(a: &Dim, b: &Dim) -> (Dim, Dim) {
    let (left, right) = (a.terms(), b.terms());
    let number = left
        .iter()
        .chain(&right)
        .fold(0, |g, (_, c)| gcd(g, c.saturating_abs()))
        .max(1);
    let mut factors: Vec<Atom> = Vec::new();
    let Some((first, _)) = left.first() else {
        return (a.clone(), b.clone());
    };
    for atom in first {
        factors.push(atom.clone());
        if left
            .iter()
            .chain(&right)
            .any(|(m, _)| remove_factors(m, &factors).is_none())
        {
            factors.pop();
        }
    }
    let divide = |terms: Vec<Term>| {
        let divided = terms
            .into_iter()
            .filter_map(|(m, c)| Some((remove_factors(&m, &factors)?, c / number)));
        Dim::from_terms(divided)
    };
    (divide(left), divide(right))
}

/// Returns every second of the factors, if each is there an even number of times (sorted).
fn half_of(monomial: &[Atom]) -> Option<Vec<Atom>> {
    let pairs = monomial.chunks(2);
    pairs
        .map(|pair| (pair.len() == 2 && pair[0] == pair[1]).then(|| pair[0].clone()))
        .collect()
}

/// Returns `from` without the factors in `factors`, if all are there (both sorted).
fn remove_factors(from: &[Atom], factors: &[Atom]) -> Option<Vec<Atom>> {
    let mut rest = from.to_vec();
    for f in factors {
        let at = rest.iter().position(|a| a == f)?;
        rest.remove(at);
    }
    Some(rest)
}
