//! The sizes of symbols that the shapes of a run's inputs imply.

use indexmap::IndexMap;

use crate::dim::{Atom, Bindings, Dim, Symbol, Symbols};
use crate::types::TensorType;

/// How sizes are changed.
const HINT: &str = "; --size NAME=SIZE and --shape INPUT=[DIMS] compile the model for other sizes";

/// An input's shape is not what the model declares.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BindError {
    #[error("input {input:?} is missing; the model's inputs are {known:?}")]
    Missing { input: String, known: Vec<String> },
    #[error("input {input:?} has rank {got}, but the model declares {declared}")]
    Rank {
        input: String,
        got: usize,
        declared: String,
    },
    #[error("input {input:?}: axis {axis} is {got}, but the model declares {declared} there{}", if declared.parse::<i64>().is_ok() { "" } else { HINT })]
    Size {
        input: String,
        axis: usize,
        got: usize,
        declared: String,
    },
    #[error(
        "input {input:?}: axis {axis} gives {symbol} = {got}, but another axis gave {before} (two open sizes that the model adds, joins or multiplies are taken as equal, also where one of them is 1){HINT}"
    )]
    Conflict {
        input: String,
        axis: usize,
        symbol: Symbol,
        got: i64,
        before: i64,
    },
    #[error("input {input:?}: axis {axis} gives {symbol} = {got}, outside its bounds {min}..={}{HINT}", max.map_or("∞".to_string(), |m| m.to_string()))]
    Bounds {
        input: String,
        axis: usize,
        symbol: Symbol,
        got: i64,
        min: i64,
        max: Option<i64>,
    },
}

/// Solves declared shapes against actual ones; see [`Graph::bind`](super::Graph::bind).
///
/// # Errors
/// As [`Graph::bind`](super::Graph::bind).
pub fn bind_shapes(
    symbols: &Symbols,
    declared: &[(&str, &TensorType)],
    shapes: &IndexMap<&str, &[usize]>,
) -> Result<Bindings, BindError> {
    let mut bound = Bound {
        symbols,
        bindings: Bindings::new(),
    };
    let known = || declared.iter().map(|(n, _)| (*n).to_owned()).collect::<Vec<_>>();
    let mut later = Vec::new();
    for &(name, ty) in declared {
        let input = || name.to_owned();
        let shape = *shapes.get(name).ok_or_else(|| BindError::Missing {
            input: input(),
            known: known(),
        })?;
        if shape.len() != ty.rank() {
            return Err(BindError::Rank {
                input: input(),
                got: shape.len(),
                declared: ty.to_string(),
            });
        }
        for (axis, (&got, dim)) in shape.iter().zip(ty.shape.iter()).enumerate() {
            match dim.as_symbol() {
                Some(symbol) => bound.set(name, axis, symbol, got as i64)?,
                None => later.push((name, axis, got, dim)),
            }
        }
    }
    // Arithmetic (`4*a`) gives a size where all others of it are known.
    while let Some((at, symbol, value)) = later.iter().enumerate().find_map(|(at, (_, _, got, dim))| {
        let (symbol, value) = solve(dim, *got as i64, &bound.bindings)?;
        Some((at, symbol, value))
    }) {
        let (name, axis, ..) = later.remove(at);
        bound.set(name, axis, &symbol, value)?;
    }
    // All other dims are checked once every symbol has its size.
    for (name, axis, got, dim) in later {
        if dim.eval(&bound.bindings) != Ok(got as i64) {
            return Err(BindError::Size {
                input: name.to_owned(),
                axis,
                got,
                declared: dim.to_string(),
            });
        }
    }
    Ok(bound.bindings)
}

struct Bound<'a> {
    symbols: &'a Symbols,
    bindings: Bindings,
}

impl Bound<'_> {
    fn set(&mut self, name: &str, axis: usize, symbol: &Symbol, got: i64) -> Result<(), BindError> {
        let input = || name.to_owned();
        if let Some(info) = self.symbols.get(symbol)
            && (got < info.min || info.max.is_some_and(|m| got > m))
        {
            let (min, max) = (info.min, info.max);
            return Err(BindError::Bounds {
                input: input(),
                axis,
                symbol: symbol.clone(),
                got,
                min,
                max,
            });
        }
        match self.bindings.insert(symbol.clone(), got) {
            Some(before) if before != got => Err(BindError::Conflict {
                input: input(),
                axis,
                symbol: symbol.clone(),
                got,
                before,
            }),
            _ => Ok(()),
        }
    }
}

/// Solves `dim = got` for the one symbol that has no size yet; `None` where there is no such symbol or no whole number.
fn solve(dim: &Dim, got: i64, bindings: &Bindings) -> Option<(Symbol, i64)> {
    let (symbol, factor, rest) = linear(dim, |symbol| bindings.contains_key(symbol))?;
    let (factor, rest) = (factor.eval(bindings).ok()?, rest.eval(bindings).ok()?);
    let left = got.checked_sub(rest)?;
    (left.checked_rem(factor)? == 0).then(|| (symbol, left / factor))
}

/// Reads `factor·s + rest`, where `s` is the one symbol that is not known.
fn linear(dim: &Dim, known: impl Fn(&Symbol) -> bool) -> Option<(Symbol, Dim, Dim)> {
    let Dim::Poly(poly) = dim else { return None };
    let mut used = Vec::new();
    dim.collect_symbols(&mut used);
    used.retain(|symbol| !known(symbol));
    let [symbol] = used.as_slice() else { return None };
    let s = Dim::from(symbol.clone());
    let (mut factor, mut rest) = (Dim::Const(0), Dim::Const(0));
    for (monomial, coefficient) in &poly.terms {
        let product: Dim = monomial.iter().map(Dim::from).product();
        let term = product * *coefficient;
        if monomial.contains(&Atom::Symbol(symbol.clone())) {
            factor = factor + term.exact_div(&s)?;
        } else {
            rest = rest + term;
        }
    }
    let mut left = Vec::new();
    factor.collect_symbols(&mut left);
    rest.collect_symbols(&mut left);
    (!left.contains(symbol)).then(|| (symbol.clone(), factor, rest))
}

/// Returns the symbols that shapes of inputs give sizes to.
pub fn bindable<'a>(shapes: impl Iterator<Item = &'a Dim>) -> Vec<Symbol> {
    let (mut found, mut later) = (Vec::new(), Vec::new());
    for dim in shapes {
        match dim.as_symbol() {
            Some(symbol) => found.push(symbol.clone()),
            None if dim.as_const().is_none() => later.push(dim),
            None => {}
        }
    }
    while let Some((at, symbol)) = later.iter().enumerate().find_map(|(at, dim)| {
        let (symbol, ..) = linear(dim, |symbol| found.contains(symbol))?;
        Some((at, symbol))
    }) {
        later.remove(at);
        found.push(symbol);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DType;

    fn bind(declared: &[&[Dim]], shapes: &[&[usize]]) -> Result<Vec<(String, i64)>, String> {
        let names = ["x", "y", "z"];
        let types: Vec<TensorType> = declared
            .iter()
            .map(|d| TensorType::new(DType::F32, d.to_vec()))
            .collect();
        let declared: Vec<(&str, &TensorType)> = names.into_iter().zip(&types).collect();
        let mut symbols = Symbols::new();
        let mut used = Vec::new();
        types
            .iter()
            .flat_map(|t| t.shape.iter())
            .for_each(|d| d.collect_symbols(&mut used));
        used.into_iter().for_each(|s| {
            symbols.entry(s).or_default();
        });
        let bindings = bind_shapes(
            &symbols,
            &declared,
            &names.into_iter().zip(shapes.iter().copied()).collect(),
        );
        let bindings = bindings.map_err(|e| e.to_string())?;
        Ok(bindings.into_iter().map(|(s, n)| (s.to_string(), n)).collect())
    }

    #[test]
    fn arithmetic_is_solved_for_the_size_that_is_open() {
        let (a, b) = (Dim::symbol("a"), Dim::symbol("b"));
        let x: &[Dim] = &[a.clone() * 4, a.clone() * &b + 1];
        assert_eq!(bind(&[x], &[&[12, 7]]).unwrap(), [("a".into(), 3), ("b".into(), 2)]);
        let error = bind(&[x], &[&[13, 7]]).unwrap_err();
        assert!(
            error.contains("axis 0 is 13, but the model declares 4*a") && error.contains("--shape"),
            "{error}"
        );
        // Later inputs count too, in whatever order.
        let y: &[Dim] = std::slice::from_ref(&b);
        assert_eq!(
            bind(&[&[a.clone() + &b], y], &[&[9], &[4]]).unwrap(),
            [("b".into(), 4), ("a".into(), 5)]
        );
        assert!(
            bind(&[&[a.clone() + &b], y], &[&[2], &[4]])
                .unwrap_err()
                .contains("outside its bounds")
        );
        assert_eq!(
            bindable([a.clone() + &b, b.clone()].iter()),
            [Symbol::new("b"), Symbol::new("a")]
        );
        assert!(bindable([a.floor_div(&Dim::Const(2))].iter()).is_empty());
    }
}
