//! What is known of a model's sizes: symbols with bounds, and what the graph itself implies about them.
//!
//! Exporters leave equalities unsaid: a table of 64 positions is sliced to `seq` rows, which ONNX clamps to
//! `min(seq, 64)`, and the rows are added to `seq` others; or two inputs name the same batch differently. Where an op
//! needs two sizes to be equal that algebra cannot tell equal, [`Sizes::require_equal`] takes it as a fact (`seq ≤ 64`,
//! `b2 = b1`), and the walk over the graph starts again with it, so that every node sees the same facts. An equality
//! that is no such fact (`2·⌊h/2⌋ = h`) is an assumption of the graph, which a run checks; see [`ir::graph::assume`].

use indexmap::IndexMap;
use ir::dim::{Atom, Dim, Symbol, SymbolInfo, Symbols};

/// Symbols with bounds, and those that turned out to be something else.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    /// Every symbol ever declared.
    pub symbols: Symbols,
    /// Symbols that equal other dims; the dims hold no replaced symbol.
    pub replaced: IndexMap<Symbol, Dim>,
    /// Symbols that may be 0 since an op said so; see [`Sizes::allow_empty`].
    pub empty: Vec<Symbol>,
}

/// The two sizes are never equal.
#[derive(Debug)]
pub(super) struct NotEqual;

/// How two sizes came to be equal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Equal {
    Already,
    /// From now on: something was learnt.
    Assumed,
    /// At some sizes only, which no symbol's value or bounds say: a run checks it.
    Open,
}

impl Sizes {
    /// Returns the dim with replaced symbols written out.
    pub fn resolve(&self, dim: &Dim) -> Dim {
        if self.replaced.is_empty() {
            dim.clone()
        } else {
            dim.substitute(&self.replaced)
        }
    }

    /// Returns the smaller dim, decided by bounds where they tell.
    pub fn min(&self, a: &Dim, b: &Dim) -> Dim {
        if (b - a).at_least(0, &self.symbols) {
            a.clone()
        } else if (a - b).at_least(0, &self.symbols) {
            b.clone()
        } else {
            a.smaller(b)
        }
    }

    /// Returns the larger dim, decided by bounds where they tell.
    pub fn max(&self, a: &Dim, b: &Dim) -> Dim {
        if (a - b).at_least(0, &self.symbols) {
            a.clone()
        } else if (b - a).at_least(0, &self.symbols) {
            b.clone()
        } else {
            a.larger(b)
        }
    }

    /// Says whether the dim is at least `value` for all sizes.
    pub fn at_least(&self, dim: &Dim, value: i64) -> bool {
        dim.at_least(value, &self.symbols)
    }

    /// Says whether the dim is at most `value` for all sizes.
    pub fn at_most(&self, dim: &Dim, value: i64) -> bool {
        dim.bounds(&self.symbols).1.is_some_and(|hi| hi <= value)
    }

    /// Makes the two dims equal, if that is possible.
    pub fn require_equal(&mut self, a: &Dim, b: &Dim) -> Result<Equal, NotEqual> {
        if a.same_size(b) {
            return Ok(Equal::Already);
        }
        let (a, b) = cancel(a, b);
        let difference = &a - &b;
        if difference.as_const().is_some() {
            return Err(NotEqual);
        }
        match (a.as_symbol(), b.as_symbol()) {
            (Some(x), Some(y)) => {
                // The symbol declared first stays.
                let (x, y) = (x.clone(), y.clone());
                return if self.symbols.get_index_of(&x) < self.symbols.get_index_of(&y) {
                    self.replace(&y, &Dim::from(x))
                } else {
                    self.replace(&x, &Dim::from(y))
                };
            }
            (Some(x), None) if !mentions(&b, x) => return self.replace(&x.clone(), &b),
            (None, Some(y)) if !mentions(&a, y) => return self.replace(&y.clone(), &a),
            _ => {}
        }
        if let Some((symbol, k, c)) = linear(&difference) {
            // k·s + c = 0
            return match c.checked_neg().and_then(|c| c.checked_rem(k).map(|r| (r, c / k))) {
                Some((0, value)) => self.replace(&symbol, &Dim::Const(value)),
                _ => Err(NotEqual),
            };
        }
        let (low, high) = difference.bounds(&self.symbols);
        if low.is_some_and(|v| v > 0) || high.is_some_and(|v| v < 0) {
            return Err(NotEqual);
        }
        Ok(self.decide(&difference).unwrap_or(Equal::Open))
    }

    /// Lets a size be 0 that nothing is known of, such as the positions of a cache before the first step. Bounds that
    /// were given stay.
    pub fn allow_empty(&mut self, dim: &Dim) -> Equal {
        let Some(symbol) = dim.as_symbol() else {
            return Equal::Already;
        };
        match self.symbols.get_mut(symbol) {
            Some(info) if *info == SymbolInfo::default() && !self.empty.contains(symbol) => info.min = 0,
            _ => return Equal::Already,
        }
        self.empty.push(symbol.clone());
        Equal::Assumed
    }

    /// Looks for a `min` or `max` in the difference whose decision makes it zero.
    fn decide(&mut self, difference: &Dim) -> Option<Equal> {
        let Dim::Poly(poly) = difference else {
            return None;
        };
        for (monomial, coefficient) in &poly.terms {
            for atom in monomial {
                let (x, y, is_min) = match atom {
                    Atom::Min(x, y) => (x, y, true),
                    Atom::Max(x, y) => (x, y, false),
                    _ => continue,
                };
                let without = monomial_without(monomial, atom) * *coefficient;
                let rest = difference.clone() - Dim::from(atom) * without.clone();
                for (taken, other) in [(x, y), (y, x)] {
                    if !(rest.clone() + without.clone() * taken.clone()).is(0) {
                        continue;
                    }
                    let fact = if is_min { other - taken } else { taken - other };
                    return self.assume_not_negative(&fact);
                }
            }
        }
        None
    }

    /// Narrows a symbol's bounds so that the dim is never negative, where that says it.
    fn assume_not_negative(&mut self, dim: &Dim) -> Option<Equal> {
        let (symbol, k, c) = linear(dim)?;
        let info = self.symbols.entry(symbol).or_default();
        let (min, max) = (info.min, info.max);
        if k > 0 {
            info.min = min.max(c.checked_neg()?.div_euclid(k) + i64::from(c.rem_euclid(k) != 0));
        } else {
            let limit = c.checked_div_euclid(k.checked_neg()?)?;
            info.max = Some(max.map_or(limit, |m| m.min(limit)));
        }
        let changed = (info.min, info.max) != (min, max);
        if info.max.is_some_and(|m| m < info.min) || !changed {
            (info.min, info.max) = (min, max);
            return None;
        }
        info.hint = info.hint.max(info.min).min(info.max.unwrap_or(i64::MAX));
        Some(Equal::Assumed)
    }

    fn replace(&mut self, symbol: &Symbol, by: &Dim) -> Result<Equal, NotEqual> {
        let info = self.symbols.get(symbol).copied().unwrap_or_default();
        if let Some(value) = by.as_const() {
            if value < info.min || info.max.is_some_and(|m| value > m) {
                return Err(NotEqual);
            }
        } else if let Some(other) = by.as_symbol() {
            let kept = self.symbols.entry(other.clone()).or_default();
            let min = kept.min.max(info.min);
            let max = kept.max.into_iter().chain(info.max).min();
            if max.is_some_and(|m| m < min) {
                return Err(NotEqual);
            }
            *kept = SymbolInfo {
                min,
                max,
                hint: kept.hint.max(min).min(max.unwrap_or(i64::MAX)),
            };
        }
        let one = IndexMap::from_iter([(symbol.clone(), by.clone())]);
        // A power of a sum is a long sum: what would be too long is left to the run.
        let replaced: Option<Vec<Dim>> = self.replaced.values().map(|dim| dim.checked_substitute(&one)).collect();
        let Some(replaced) = replaced else {
            return Ok(Equal::Open);
        };
        for (dim, with) in self.replaced.values_mut().zip(replaced) {
            *dim = with;
        }
        self.replaced.insert(symbol.clone(), by.clone());
        Ok(Equal::Assumed)
    }
}

fn mentions(dim: &Dim, symbol: &Symbol) -> bool {
    let mut found = Vec::new();
    dim.collect_symbols(&mut found);
    found.contains(symbol)
}

/// Reads `k·s + c`.
fn linear(dim: &Dim) -> Option<(Symbol, i64, i64)> {
    let Dim::Poly(poly) = dim else { return None };
    let (mut symbol, mut constant) = (None, 0);
    for (monomial, coefficient) in &poly.terms {
        match monomial.as_slice() {
            [] => constant = *coefficient,
            [Atom::Symbol(s)] if symbol.is_none() => symbol = Some((s.clone(), *coefficient)),
            _ => return None,
        }
    }
    symbol.map(|(s, k)| (s, k, constant))
}

/// Divides both sides by the factors that all their terms share; those are positive sizes.
fn cancel(a: &Dim, b: &Dim) -> (Dim, Dim) {
    let (Dim::Poly(pa), Dim::Poly(pb)) = (a, b) else {
        return (a.clone(), b.clone());
    };
    let Some((first, _)) = pa.terms.first() else {
        return (a.clone(), b.clone());
    };
    let (mut a, mut b) = (a.clone(), b.clone());
    let _ = pb;
    for atom in first {
        if !matches!(atom, Atom::Symbol(_)) {
            continue;
        }
        let factor = Dim::from(atom);
        if let (Some(qa), Some(qb)) = (a.exact_div(&factor), b.exact_div(&factor)) {
            (a, b) = (qa, qb);
        }
    }
    let divisor = gcd(a.known_divisor(), b.known_divisor());
    if divisor > 1
        && let (Some(qa), Some(qb)) = (a.exact_div(&Dim::Const(divisor)), b.exact_div(&Dim::Const(divisor)))
    {
        (a, b) = (qa, qb);
    }
    (a, b)
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn monomial_without(monomial: &[Atom], atom: &Atom) -> Dim {
    let mut skipped = false;
    monomial
        .iter()
        .filter(|a| {
            let skip = !skipped && *a == atom;
            skipped |= skip;
            !skip
        })
        .map(Dim::from)
        .product()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(names: &[&str]) -> Sizes {
        let symbols = names.iter().map(|n| (Symbol::new(n), SymbolInfo::default())).collect();
        Sizes {
            symbols,
            ..Sizes::default()
        }
    }

    #[test]
    fn a_clamped_slice_bounds_its_symbol() {
        let mut sizes = sizes(&["seq"]);
        let seq = Dim::symbol("seq");
        let clamped = sizes.min(&seq, &Dim::Const(64));
        assert_eq!(clamped.to_string(), "min(64, seq)");
        assert_eq!(sizes.require_equal(&clamped, &seq).unwrap(), Equal::Assumed);
        assert_eq!(sizes.symbols[&Symbol::new("seq")].max, Some(64));
        assert_eq!(sizes.min(&seq, &Dim::Const(64)), seq);
    }

    #[test]
    fn symbols_become_one_and_the_first_stays() {
        let mut sizes = sizes(&["a", "b", "s"]);
        let (a, b, s) = (Dim::symbol("a"), Dim::symbol("b"), Dim::symbol("s"));
        let left = b.clone() * &s * 4;
        assert_eq!(
            sizes.require_equal(&left, &(a.clone() * &s * 4)).unwrap(),
            Equal::Assumed
        );
        assert_eq!(sizes.resolve(&b), a);
        assert_eq!(
            sizes.require_equal(&(a.clone() * 2 + 1), &Dim::Const(7)).unwrap(),
            Equal::Assumed
        );
        assert_eq!(sizes.resolve(&b), Dim::Const(3));
    }

    #[test]
    fn a_size_may_be_zero_once_and_unless_it_has_bounds() {
        let mut sizes = sizes(&["past", "seq"]);
        sizes.symbols[&Symbol::new("seq")].max = Some(64);
        let (past, seq) = (Dim::symbol("past"), Dim::symbol("seq"));
        assert_eq!(sizes.allow_empty(&past), Equal::Assumed);
        assert_eq!(sizes.symbols[&Symbol::new("past")].min, 0);
        for dim in [&past, &seq, &Dim::Const(3), &(past.clone() + &seq)] {
            assert_eq!(sizes.allow_empty(dim), Equal::Already, "{dim}");
        }
        assert_eq!(sizes.symbols[&Symbol::new("seq")].min, 1);
    }

    #[test]
    fn what_cannot_be_equal_is_not() {
        let mut sizes = sizes(&["a"]);
        let a = Dim::symbol("a");
        assert!(sizes.require_equal(&Dim::Const(2), &Dim::Const(3)).is_err());
        assert!(sizes.require_equal(&a, &(a.clone() + 1)).is_err());
        assert!(sizes.require_equal(&(a.clone() * 2), &Dim::Const(3)).is_err());
        assert!(sizes.require_equal(&a, &Dim::Const(0)).is_err());
        assert!(sizes.replaced.is_empty());
    }

    #[test]
    fn what_depends_on_the_size_is_left_to_the_run() {
        let mut sizes = sizes(&["a", "b"]);
        let (a, b) = (Dim::symbol("a"), Dim::symbol("b"));
        let even = a.floor_div(&Dim::Const(2)) * 2;
        assert_eq!(sizes.require_equal(&even, &a).unwrap(), Equal::Open);
        assert_eq!(
            sizes.require_equal(&(a.clone() * &b), &Dim::Const(12)).unwrap(),
            Equal::Open
        );
        let two = a.modulo(&Dim::Const(2)) + a.floor_div(&Dim::Const(2)) * 2;
        assert_eq!(sizes.require_equal(&two, &a).unwrap(), Equal::Already);
    }
}
