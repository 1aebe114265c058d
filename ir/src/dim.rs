//! Sizes that may be unknown until a model is run.
//!
//! A [`Dim`] is an integer polynomial over *atoms*: named symbols (`batch`, `seq`) and the operations that are not
//! polynomial (floor division, remainder, max, min, the rounded square root). It is kept in canonical form, so that
//! equality of the text is equality of the size wherever polynomial algebra can tell; two dims that differ may still
//! turn out equal at run time.

mod bounds;
mod decode;
mod quotient;
mod shape;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Add, Mul, Neg, Sub};
use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

pub use shape::Shape;

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
    /// Square root rounded down; of a negative number, 0.
    Sqrt(Dim),
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
    /// Each product multiplies terms and each nested division repeats its operands, so that a short file could ask for
    /// a size of gigabytes. What reads files refuses sizes that are not small; those of real models have a few terms.
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
            monomial.iter().all(|atom| {
                atom.operands()
                    .all(|operand| depth > 0 && operand.is_small_within(depth - 1, budget))
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
                    atom => atom.map(within)?,
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
            if let Atom::Symbol(s) = atom
                && !out.contains(s)
            {
                out.push(s.clone());
            }
            atom.operands().for_each(|operand| operand.collect_symbols(out));
        }
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
    /// Returns the dims that the operation is applied to; a symbol has none.
    pub fn operands(&self) -> impl Iterator<Item = &Dim> {
        let (first, second) = match self {
            Atom::Symbol(_) => (None, None),
            Atom::FloorDiv(a, b) | Atom::Mod(a, b) | Atom::Max(a, b) | Atom::Min(a, b) => (Some(a), Some(b)),
            Atom::Sqrt(a) => (Some(a), None),
        };
        first.into_iter().chain(second)
    }

    /// Applies the operation to changed operands; `None` where `change` gives none. A symbol stays.
    pub fn map(&self, change: impl Fn(&Dim) -> Option<Dim>) -> Option<Dim> {
        Some(match self {
            Atom::Symbol(s) => Dim::from(s.clone()),
            Atom::FloorDiv(a, b) => change(a)?.floor_div(&change(b)?),
            Atom::Mod(a, b) => change(a)?.modulo(&change(b)?),
            Atom::Max(a, b) => change(a)?.larger(&change(b)?),
            Atom::Min(a, b) => change(a)?.smaller(&change(b)?),
            Atom::Sqrt(a) => change(a)?.floor_sqrt(),
        })
    }

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
            Atom::Sqrt(a) => a.eval(bindings)?.max(0).isqrt(),
        })
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
impl From<&Atom> for Dim {
    /// The atom in canonical form.
    fn from(atom: &Atom) -> Dim {
        atom.map(|operand| Some(operand.clone())).unwrap_or(Dim::Const(0))
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
            Atom::Sqrt(a) => write!(f, "sqrt({a})"),
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

#[cfg(test)]
mod tests;
