//! Sizes that may be unknown until a model is run.
//!
//! A [`Dim`] is an integer polynomial over *atoms*: named symbols (`batch`, `seq`) and the operations that are not
//! polynomial (floor division, remainder, max, min). It is kept in canonical form, so that equality of the text is
//! equality of the size wherever polynomial algebra can tell; two dims that differ may still turn out equal at run time.

mod decode;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Add, Mul, Neg, Sub};
use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// The name of a size that is bound when a model is run.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Symbol(Arc<str>);

impl Symbol {
    /// Makes a symbol; the name must be an identifier in text forms (`[A-Za-z_][A-Za-z0-9_]*`).
    pub fn new(name: &str) -> Symbol {
        Symbol(name.into())
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is known of a symbol before it is bound.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct SymbolInfo {
    /// The smallest size allowed; at least 1 by default.
    pub min: i64,
    /// The largest size allowed, if there is a limit.
    pub max: Option<i64>,
    /// The size that costs are estimated for.
    pub hint: i64,
}

impl Default for SymbolInfo {
    fn default() -> Self {
        SymbolInfo {
            min: 1,
            max: None,
            hint: 8,
        }
    }
}

/// The symbols of a graph or a plan, in the order they were declared.
pub type Symbols = IndexMap<Symbol, SymbolInfo>;

/// Sizes for symbols.
pub type Bindings = IndexMap<Symbol, i64>;

/// Binds every symbol to its hint.
pub fn hints(symbols: &Symbols) -> Bindings {
    symbols.iter().map(|(s, info)| (s.clone(), info.hint)).collect()
}

/// A size: a constant or a canonical expression over symbols.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Dim {
    Const(i64),
    /// Never a constant polynomial: that is `Const`.
    Poly(Arc<Poly>),
}

/// A sum of terms, sorted by monomial, no coefficient zero.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Poly {
    /// `(monomial, coefficient)`; the empty monomial is the constant term.
    pub terms: Vec<(Vec<Atom>, i64)>,
}

/// A factor that polynomial algebra does not look into.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Atom {
    Symbol(Symbol),
    /// Quotient rounded towards minus infinity.
    FloorDiv(Dim, Dim),
    /// Remainder with the sign of the divisor.
    Mod(Dim, Dim),
    Max(Dim, Dim),
    Min(Dim, Dim),
}

/// A symbol has no size in the bindings, or the arithmetic does not work out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DimError {
    #[error("size {0} is not bound")]
    Unbound(Symbol),
    #[error("{0} divides by zero")]
    DivideByZero(String),
    #[error("{0} does not fit 64 bits")]
    Overflow(String),
}

/// The most terms of a dim that is [small](Dim::is_small).
pub const MOST_TERMS: usize = 256;
/// The most factors of each of its terms.
pub const MOST_FACTORS: usize = 16;
/// How deep its divisions, remainders, maxima and minima are inside each other, at most.
pub const MOST_DEPTH: usize = 64;
/// The most symbols and operations that are written in it: what is nested doubles with each level.
const MOST_WEIGHT: usize = 4096;

impl Dim {
    /// Says whether the dim is of a size that arithmetic may go on with.
    ///
    /// Each product multiplies terms and each nested division repeats its operands, so that a short file could ask for a size of
    /// gigabytes. What reads files refuses sizes that are not small; those of real models have a few terms.
    pub fn is_small(&self) -> bool {
        let mut budget = MOST_WEIGHT;
        self.is_small_within(MOST_DEPTH, &mut budget)
    }

    fn is_small_within(&self, depth: usize, budget: &mut usize) -> bool {
        let Dim::Poly(p) = self else { return true };
        if p.terms.len() > MOST_TERMS {
            return false;
        }
        p.terms.iter().all(|(monomial, _)| {
            let Some(rest) = budget
                .checked_sub(monomial.len() + 1)
                .filter(|_| monomial.len() <= MOST_FACTORS)
            else {
                return false;
            };
            *budget = rest;
            monomial.iter().all(|atom| match atom {
                Atom::Symbol(_) => true,
                Atom::FloorDiv(a, b) | Atom::Mod(a, b) | Atom::Max(a, b) | Atom::Min(a, b) => {
                    depth > 0 && a.is_small_within(depth - 1, budget) && b.is_small_within(depth - 1, budget)
                }
            })
        })
    }

    /// Returns the product, if it and both factors are [small](Dim::is_small).
    pub fn checked_mul(&self, other: &Dim) -> Option<Dim> {
        if !self.is_small() || !other.is_small() {
            return None;
        }
        Some(self.clone() * other).filter(Dim::is_small)
    }

    /// Returns the sum, if it is [small](Dim::is_small).
    pub fn checked_add(&self, other: &Dim) -> Option<Dim> {
        Some(self.clone() + other).filter(Dim::is_small)
    }

    /// The size of a named symbol.
    pub fn symbol(name: &str) -> Dim {
        Dim::from(Symbol::new(name))
    }

    /// Returns the constant, if the dim is one.
    pub const fn as_const(&self) -> Option<i64> {
        match self {
            Dim::Const(v) => Some(*v),
            Dim::Poly(_) => None,
        }
    }

    /// Says whether the dim is the given constant.
    pub fn is(&self, value: i64) -> bool {
        self.as_const() == Some(value)
    }

    /// Returns the symbol, if the dim is just one.
    pub fn as_symbol(&self) -> Option<&Symbol> {
        let Dim::Poly(p) = self else { return None };
        match p.terms.as_slice() {
            [(m, 1)] => match m.as_slice() {
                [Atom::Symbol(s)] => Some(s),
                _ => None,
            },
            _ => None,
        }
    }

    fn terms(&self) -> Vec<(Vec<Atom>, i64)> {
        match self {
            Dim::Const(0) => vec![],
            Dim::Const(v) => vec![(vec![], *v)],
            Dim::Poly(p) => p.terms.clone(),
        }
    }

    fn from_terms(terms: impl IntoIterator<Item = (Vec<Atom>, i64)>) -> Dim {
        let mut sum: BTreeMap<Vec<Atom>, i64> = BTreeMap::new();
        for (m, c) in terms {
            let entry = sum.entry(m).or_insert(0);
            *entry = entry.saturating_add(c);
        }
        sum.retain(|_, c| *c != 0);
        match sum.len() {
            0 => Dim::Const(0),
            1 if sum.contains_key(&vec![]) => Dim::Const(sum[&vec![]]),
            _ => Dim::Poly(Arc::new(Poly {
                terms: sum.into_iter().collect(),
            })),
        }
    }

    fn atom(atom: Atom) -> Dim {
        Dim::Poly(Arc::new(Poly {
            terms: vec![(vec![atom], 1)],
        }))
    }

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
        // Pull out the part that divides: (a·d + r) / d = a + r / d.
        if let Dim::Const(d) = divisor
            && *d > 0
        {
            let (whole, rest): (Vec<_>, Vec<_>) = self.terms().into_iter().partition(|(_, c)| c % d == 0);
            if !whole.is_empty() && !rest.is_empty() {
                let whole = Dim::from_terms(whole.into_iter().map(|(m, c)| (m, c / d)));
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
        Dim::atom(Atom::Mod(self.clone(), divisor.clone()))
    }

    /// Returns the larger of the two.
    pub fn larger(&self, other: &Dim) -> Dim {
        match (self - other).as_const() {
            Some(d) if d >= 0 => self.clone(),
            Some(_) => other.clone(),
            None if self < other => Dim::atom(Atom::Max(self.clone(), other.clone())),
            None => Dim::atom(Atom::Max(other.clone(), self.clone())),
        }
    }

    /// Returns the smaller of the two.
    pub fn smaller(&self, other: &Dim) -> Dim {
        match (self - other).as_const() {
            Some(d) if d <= 0 => self.clone(),
            Some(_) => other.clone(),
            None if self < other => Dim::atom(Atom::Min(self.clone(), other.clone())),
            None => Dim::atom(Atom::Min(other.clone(), self.clone())),
        }
    }

    /// Evaluates the dim.
    ///
    /// # Errors
    /// A symbol that is not bound, a division by zero, or a result beyond 64 bits.
    pub fn eval(&self, bindings: &Bindings) -> Result<i64, DimError> {
        let poly = match self {
            Dim::Const(v) => return Ok(*v),
            Dim::Poly(p) => p,
        };
        let overflow = || DimError::Overflow(self.to_string());
        let mut sum = 0i64;
        for (monomial, coefficient) in &poly.terms {
            let mut product = *coefficient;
            for atom in monomial {
                product = product.checked_mul(atom.eval(bindings)?).ok_or_else(overflow)?;
            }
            sum = sum.checked_add(product).ok_or_else(overflow)?;
        }
        Ok(sum)
    }

    /// Evaluates the dim at the symbols' hints; 1 where that fails. For cost estimates only.
    pub fn hint(&self, symbols: &Symbols) -> i64 {
        match self {
            Dim::Const(v) => *v,
            Dim::Poly(_) => self.eval(&hints(symbols)).unwrap_or(1),
        }
    }

    /// Replaces symbols by dims.
    pub fn substitute(&self, with: &IndexMap<Symbol, Dim>) -> Dim {
        let multiply = |a: &Dim, b: &Dim| Some(a.clone() * b);
        // The product is there, so the sum is.
        self.substitute_with(with, &multiply).unwrap_or_else(|| self.clone())
    }

    /// Replaces symbols by dims, if the result and all on the way to it is [small](Dim::is_small).
    pub fn checked_substitute(&self, with: &IndexMap<Symbol, Dim>) -> Option<Dim> {
        self.substitute_with(with, &Dim::checked_mul).filter(Dim::is_small)
    }

    fn substitute_with(
        &self,
        with: &IndexMap<Symbol, Dim>,
        multiply: &dyn Fn(&Dim, &Dim) -> Option<Dim>,
    ) -> Option<Dim> {
        let Dim::Poly(p) = self else { return Some(self.clone()) };
        let within = |dim: &Dim| dim.substitute_with(with, multiply);
        let mut sum = Dim::Const(0);
        for (monomial, coefficient) in &p.terms {
            let mut product = Dim::Const(*coefficient);
            for atom in monomial {
                let factor = match atom {
                    Atom::Symbol(s) => with.get(s).cloned().unwrap_or_else(|| Dim::from(s.clone())),
                    Atom::FloorDiv(a, b) => within(a)?.floor_div(&within(b)?),
                    Atom::Mod(a, b) => within(a)?.modulo(&within(b)?),
                    Atom::Max(a, b) => within(a)?.larger(&within(b)?),
                    Atom::Min(a, b) => within(a)?.smaller(&within(b)?),
                };
                product = multiply(&product, &factor)?;
            }
            sum = sum + product;
        }
        Some(sum)
    }

    /// Adds the symbols that occur to `out`, each once.
    pub fn collect_symbols(&self, out: &mut Vec<Symbol>) {
        let Dim::Poly(p) = self else { return };
        for atom in p.terms.iter().flat_map(|(m, _)| m) {
            match atom {
                Atom::Symbol(s) if !out.contains(s) => out.push(s.clone()),
                Atom::Symbol(_) => {}
                Atom::FloorDiv(a, b) | Atom::Mod(a, b) | Atom::Max(a, b) | Atom::Min(a, b) => {
                    a.collect_symbols(out);
                    b.collect_symbols(out);
                }
            }
        }
    }

    /// Returns bounds that hold for every allowed binding: `(at least, at most)`, `None` where there is no limit.
    pub fn bounds(&self, symbols: &Symbols) -> (Option<i64>, Option<i64>) {
        let poly = match self {
            Dim::Const(v) => return (Some(*v), Some(*v)),
            Dim::Poly(p) => p,
        };
        let mut sum = (Some(0i64), Some(0i64));
        for (monomial, coefficient) in &poly.terms {
            let mut term = (Some(1i64), Some(1i64));
            for atom in monomial {
                let (lo, hi) = atom.bounds(symbols);
                // Sizes are never negative in practice; a factor that may be negative loosens the term to no bounds.
                term = match (term, lo) {
                    ((Some(a), b), Some(l)) if a >= 0 && l >= 0 => {
                        (a.checked_mul(l), b.zip(hi).and_then(|(b, h)| b.checked_mul(h)))
                    }
                    _ => (None, None),
                };
            }
            let (lo, hi) = if *coefficient >= 0 { term } else { (term.1, term.0) };
            let scale = |v: Option<i64>| v.and_then(|v| v.checked_mul(*coefficient));
            sum = (
                sum.0.zip(scale(lo)).and_then(|(a, b)| a.checked_add(b)),
                sum.1.zip(scale(hi)).and_then(|(a, b)| a.checked_add(b)),
            );
        }
        sum
    }

    /// Says whether the dim is at least `value` for every allowed binding.
    pub fn at_least(&self, value: i64, symbols: &Symbols) -> bool {
        self.bounds(symbols).0.is_some_and(|lo| lo >= value)
    }

    /// Returns the largest integer that is known to divide the dim (its constant content); 0 for the constant 0.
    pub fn known_divisor(&self) -> i64 {
        match self {
            Dim::Const(v) => v.saturating_abs(),
            Dim::Poly(p) => p.terms.iter().fold(0, |g, (_, c)| gcd(g, c.saturating_abs())),
        }
    }
}

impl Atom {
    fn eval(&self, bindings: &Bindings) -> Result<i64, DimError> {
        Ok(match self {
            Atom::Symbol(s) => *bindings.get(s).ok_or_else(|| DimError::Unbound(s.clone()))?,
            Atom::FloorDiv(a, b) => floor_div(a.eval(bindings)?, nonzero(b.eval(bindings)?, self)?),
            Atom::Mod(a, b) => {
                let (a, b) = (a.eval(bindings)?, nonzero(b.eval(bindings)?, self)?);
                a.wrapping_sub(floor_div(a, b).wrapping_mul(b))
            }
            Atom::Max(a, b) => a.eval(bindings)?.max(b.eval(bindings)?),
            Atom::Min(a, b) => a.eval(bindings)?.min(b.eval(bindings)?),
        })
    }

    fn bounds(&self, symbols: &Symbols) -> (Option<i64>, Option<i64>) {
        match self {
            Atom::Symbol(s) => symbols.get(s).map_or((None, None), |info| (Some(info.min), info.max)),
            Atom::FloorDiv(a, b) => {
                let ((alo, ahi), (blo, bhi)) = (a.bounds(symbols), b.bounds(symbols));
                match (alo, blo) {
                    (Some(alo), Some(blo)) if alo >= 0 && blo >= 1 => {
                        (Some(bhi.map_or(0, |bhi| alo / bhi)), ahi.map(|ahi| ahi / blo))
                    }
                    _ => (None, None),
                }
            }
            Atom::Mod(_, b) => match b.bounds(symbols) {
                (Some(lo), hi) if lo >= 1 => (Some(0), hi.map(|h| h - 1)),
                _ => (None, None),
            },
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

fn nonzero(value: i64, atom: &Atom) -> Result<i64, DimError> {
    if value == 0 {
        Err(DimError::DivideByZero(atom.to_string()))
    } else {
        Ok(value)
    }
}

fn floor_div(a: i64, b: i64) -> i64 {
    let q = a.wrapping_div(b);
    if a.wrapping_rem(b) != 0 && (a < 0) != (b < 0) {
        q - 1
    } else {
        q
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
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

impl From<i64> for Dim {
    fn from(v: i64) -> Dim {
        Dim::Const(v)
    }
}
impl From<i32> for Dim {
    fn from(v: i32) -> Dim {
        Dim::Const(i64::from(v))
    }
}
impl From<usize> for Dim {
    fn from(v: usize) -> Dim {
        Dim::Const(v as i64)
    }
}
impl From<Symbol> for Dim {
    fn from(s: Symbol) -> Dim {
        Dim::atom(Atom::Symbol(s))
    }
}
impl From<&str> for Dim {
    fn from(name: &str) -> Dim {
        Dim::symbol(name)
    }
}
impl From<&Dim> for Dim {
    fn from(d: &Dim) -> Dim {
        d.clone()
    }
}

impl<R: Into<Dim>> Add<R> for Dim {
    type Output = Dim;
    fn add(self, rhs: R) -> Dim {
        let rhs = rhs.into();
        match (&self, &rhs) {
            (Dim::Const(a), Dim::Const(b)) => Dim::Const(a.saturating_add(*b)),
            (Dim::Const(0), _) => rhs,
            (_, Dim::Const(0)) => self,
            _ => Dim::from_terms(self.terms().into_iter().chain(rhs.terms())),
        }
    }
}

impl<R: Into<Dim>> Sub<R> for Dim {
    type Output = Dim;
    fn sub(self, rhs: R) -> Dim {
        self + -rhs.into()
    }
}

impl Sub<&Dim> for &Dim {
    type Output = Dim;
    fn sub(self, rhs: &Dim) -> Dim {
        self.clone() - rhs.clone()
    }
}

impl Neg for Dim {
    type Output = Dim;
    fn neg(self) -> Dim {
        self * -1i64
    }
}

impl<R: Into<Dim>> Mul<R> for Dim {
    type Output = Dim;
    fn mul(self, rhs: R) -> Dim {
        let rhs = rhs.into();
        match (&self, &rhs) {
            (Dim::Const(a), Dim::Const(b)) => return Dim::Const(a.saturating_mul(*b)),
            (Dim::Const(1), _) => return rhs,
            (_, Dim::Const(1)) => return self,
            _ => {}
        }
        let right = rhs.terms();
        Dim::from_terms(self.terms().iter().flat_map(|(ma, ca)| {
            right.iter().map(move |(mb, cb)| {
                let mut m: Vec<Atom> = ma.iter().chain(mb).cloned().collect();
                m.sort();
                (m, ca.saturating_mul(*cb))
            })
        }))
    }
}

impl std::iter::Product for Dim {
    fn product<I: Iterator<Item = Dim>>(dims: I) -> Dim {
        dims.fold(Dim::Const(1), |a, b| a * b)
    }
}

impl std::iter::Sum for Dim {
    fn sum<I: Iterator<Item = Dim>>(dims: I) -> Dim {
        dims.fold(Dim::Const(0), |a, b| a + b)
    }
}

impl PartialEq<i64> for Dim {
    fn eq(&self, other: &i64) -> bool {
        self.is(*other)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let poly = match self {
            Dim::Const(v) => return write!(f, "{v}"),
            Dim::Poly(p) => p,
        };
        // Highest monomials first reads best: `64*batch*seq + 3*batch - 1`.
        for (i, (monomial, coefficient)) in poly.terms.iter().rev().enumerate() {
            let sign = if *coefficient < 0 { "-" } else { "+" };
            match (i, *coefficient < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                _ => write!(f, " {sign} ")?,
            }
            let magnitude = coefficient.unsigned_abs();
            if monomial.is_empty() {
                write!(f, "{magnitude}")?;
                continue;
            }
            if magnitude != 1 {
                write!(f, "{magnitude}*")?;
            }
            for (j, atom) in monomial.iter().enumerate() {
                if j > 0 {
                    f.write_str("*")?;
                }
                write!(f, "{atom}")?;
            }
        }
        Ok(())
    }
}
impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Symbol(s) => write!(f, "{s}"),
            Atom::FloorDiv(a, b) => write!(f, "div({a}, {b})"),
            Atom::Mod(a, b) => write!(f, "mod({a}, {b})"),
            Atom::Max(a, b) => write!(f, "max({a}, {b})"),
            Atom::Min(a, b) => write!(f, "min({a}, {b})"),
        }
    }
}
impl fmt::Debug for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Debug for Poly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.terms).finish()
    }
}

/// The dims of a tensor, outermost first.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Shape(pub Vec<Dim>);

impl Shape {
    /// The shape of a scalar.
    pub const SCALAR: Shape = Shape(Vec::new());

    /// Returns the number of dims.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> Dim {
        self.0.iter().cloned().product()
    }

    /// Returns the number of elements, if the dims and all products of leading dims are [small](Dim::is_small).
    pub fn checked_elements(&self) -> Option<Dim> {
        self.0
            .iter()
            .try_fold(Dim::Const(1), |product, dim| product.checked_mul(dim))
    }

    /// Returns the row-major strides in elements.
    pub fn strides(&self) -> Vec<Dim> {
        let mut strides = vec![Dim::Const(1); self.rank()];
        for i in (1..self.rank()).rev() {
            strides[i - 1] = strides[i].clone() * &self.0[i];
        }
        strides
    }

    /// Returns the sizes if all are constants.
    pub fn as_consts(&self) -> Option<Vec<i64>> {
        self.0.iter().map(Dim::as_const).collect()
    }

    /// Evaluates every dim.
    ///
    /// # Errors
    /// As [`Dim::eval`].
    pub fn eval(&self, bindings: &Bindings) -> Result<Vec<i64>, DimError> {
        self.0.iter().map(|d| d.eval(bindings)).collect()
    }

    /// Broadcasts two shapes as NumPy does; `None` where two dims differ and neither is 1.
    pub fn broadcast(a: &Shape, b: &Shape) -> Option<Shape> {
        let rank = a.rank().max(b.rank());
        let at = |s: &Shape, i: usize| (i + s.rank()).checked_sub(rank).map(|i| s.0[i].clone());
        (0..rank)
            .map(|i| match (at(a, i), at(b, i)) {
                (Some(x), Some(y)) if x == y => Some(x),
                (Some(x), Some(y)) if x.is(1) => Some(y),
                (Some(x), Some(y)) if y.is(1) => Some(x),
                (Some(_), Some(_)) => None,
                (x, y) => x.or(y),
            })
            .collect::<Option<Vec<_>>>()
            .map(Shape)
    }
}

impl<D: Into<Dim>> From<Vec<D>> for Shape {
    fn from(dims: Vec<D>) -> Shape {
        Shape(dims.into_iter().map(Into::into).collect())
    }
}
impl<D: Into<Dim> + Clone> From<&[D]> for Shape {
    fn from(dims: &[D]) -> Shape {
        Shape(dims.iter().cloned().map(Into::into).collect())
    }
}
impl<D: Into<Dim>, const N: usize> From<[D; N]> for Shape {
    fn from(dims: [D; N]) -> Shape {
        Shape(dims.into_iter().map(Into::into).collect())
    }
}
impl FromIterator<Dim> for Shape {
    fn from_iter<I: IntoIterator<Item = Dim>>(dims: I) -> Shape {
        Shape(dims.into_iter().collect())
    }
}
impl std::ops::Deref for Shape {
    type Target = [Dim];
    fn deref(&self) -> &[Dim] {
        &self.0
    }
}
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}
impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
