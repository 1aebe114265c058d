//! The model's inputs: their names, types, and the sizes that vary.

use std::path::Path;

use indexmap::IndexMap;
use ir::dim::{Dim, Shape, Symbol, SymbolInfo};
use ir::graph::bindable;
use ir::{DType, TensorType};

use super::error::{ImportError, InputProblem, UnboundDim};
use super::options::{GivenInput, ImportOptions, InputDim, Size};
use super::proto::tensor_shape_proto::dimension::Value;
use super::proto::{GraphProto, TypeProto, ValueInfoProto, type_proto};
use super::read::read_model_with;
use super::sizes::Sizes;
use super::tensor::element_type;

/// Names that mean an operation in the text form of dims.
const RESERVED: [&str; 5] = ["div", "mod", "max", "min", "sqrt"];

/// The inputs in the model's order, and what is known of their sizes.
pub(super) struct Inputs {
    pub types: IndexMap<String, TensorType>,
    pub sizes: Sizes,
}

/// Reads the inputs that no initializer gives.
pub(super) fn read_inputs(graph: &GraphProto, options: &ImportOptions) -> Result<Inputs, ImportError> {
    let given: std::collections::HashSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
    let declared: Vec<&ValueInfoProto> = graph
        .input
        .iter()
        .filter(|i| !given.contains(i.name.as_str()) || is_overridden(&i.name, options))
        .collect();
    if let Some(name) = options.shapes.keys().find(|n| !declared.iter().any(|d| d.name == **n)) {
        let known = declared.iter().map(|d| d.name.clone()).collect();
        return Err(ImportError::UnknownInput {
            name: name.clone(),
            known,
        });
    }
    let mut names = Names::default();
    let mut types = IndexMap::new();
    for info in declared {
        let error = |problem| ImportError::Input {
            name: info.name.clone(),
            problem,
        };
        let (dtype, shape) = tensor_type(info.r#type.as_ref()).map_err(error)?;
        let dims: Vec<InputDim> = match options.shapes.get(&info.name) {
            Some(dims) => dims.clone(),
            None if shape.is_none() && options.given.contains_key(&info.name) => {
                let sizes = &options.given[&info.name].shape;
                sizes.iter().map(|size| InputDim::Size(*size as i64)).collect()
            }
            None => shape
                .ok_or_else(|| {
                    error(InputProblem::NoShape {
                        name: info.name.clone(),
                    })
                })?
                .dim
                .iter()
                .enumerate()
                .map(|(axis, dim)| match &dim.value {
                    Some(Value::DimValue(size)) if *size >= 0 => Ok(InputDim::Size(*size)),
                    // Some writers mark a size that varies by -1.
                    Some(Value::DimValue(-1)) | None => Ok(InputDim::Named(String::new())),
                    Some(Value::DimValue(size)) => Err(error(InputProblem::Dim { axis, size: *size })),
                    Some(Value::DimParam(name)) => Ok(match name.trim().parse::<i64>() {
                        Ok(size) if size >= 0 => InputDim::Size(size),
                        _ if is_anonymous(name) => InputDim::Named(String::new()),
                        _ => InputDim::Named(name.trim().to_owned()),
                    }),
                })
                .collect::<Result<_, _>>()?,
        };
        let shape: Shape = dims
            .iter()
            .enumerate()
            .map(|(axis, dim)| match dim {
                InputDim::Size(size) => Dim::Const(*size),
                InputDim::Named(name) if name.is_empty() => names.fresh(&format!("{}_{axis}", info.name)),
                InputDim::Named(name) => names.named(name),
                InputDim::Sum(dim) => names.sum(dim),
            })
            .collect();
        names.occurs(&shape, &info.name);
        let shape = fixed(shape, options.given.get(&info.name), &mut names);
        if types.insert(info.name.clone(), TensorType::new(dtype, shape)).is_some() {
            return Err(error(InputProblem::Duplicate));
        }
    }
    let sizes = apply(names, options)?;
    check_bindable(&types, &sizes, options)?;
    Ok(Inputs { types, sizes })
}

/// Reads the shapes that a model declares for its inputs, with the options' shapes in their place; sizes that it leaves
/// open are symbols.
///
/// # Errors
/// As [`super::import`], for the inputs alone.
pub fn declared_shapes(path: &Path, options: &ImportOptions) -> Result<IndexMap<String, Shape>, ImportError> {
    let open = ImportOptions {
        given: IndexMap::new(),
        sizes: IndexMap::new(),
        ..options.clone()
    };
    let inputs = read_inputs(&read_model_with(path, options.links)?.graph, &open)?;
    Ok(inputs.types.into_iter().map(|(name, ty)| (name, ty.shape)).collect())
}

/// Checks that a run's inputs give a size to each name in the shapes that the caller gave.
fn check_bindable(
    types: &IndexMap<String, TensorType>,
    sizes: &Sizes,
    options: &ImportOptions,
) -> Result<(), ImportError> {
    if options.shapes.is_empty() {
        return Ok(());
    }
    let dims = || {
        types
            .iter()
            .flat_map(|(input, ty)| ty.shape.iter().map(move |dim| (input, dim)))
    };
    let fixed: Vec<(&String, &Dim, Dim)> = dims()
        .map(|(input, dim)| (input, dim, dim.substitute(&sizes.replaced)))
        .collect();
    let bound = bindable(fixed.iter().map(|(.., dim)| dim));
    for (input, written, dim) in &fixed {
        let mut symbols = Vec::new();
        dim.collect_symbols(&mut symbols);
        let unbound = symbols.into_iter().find(|symbol| !bound.contains(symbol));
        if let Some(symbol) = unbound.filter(|_| options.shapes.contains_key(*input)) {
            return Err(ImportError::Unbound(Box::new(UnboundDim {
                input: (*input).clone(),
                dim: written.to_string(),
                instead: format!("{symbol}_size"),
                symbol: symbol.to_string(),
            })));
        }
    }
    Ok(())
}

/// Says whether a run gives an input that the model has a value for.
fn is_overridden(name: &str, options: &ImportOptions) -> bool {
    options.overridden.iter().any(|n| n == name) || options.shapes.contains_key(name)
}

/// Says whether a text names no size, so that two axes that have it need not be equal.
fn is_anonymous(name: &str) -> bool {
    let name = name.trim();
    let lower = name.to_ascii_lowercase();
    !name.chars().any(char::is_alphanumeric)
        || name.parse::<i64>().is_ok()
        || matches!(lower.as_str(), "none" | "null" | "nan" | "unknown" | "undefined")
}

/// The shape of an input whose sizes are given: they are the sizes of its symbols, too.
fn fixed(shape: Shape, given: Option<&GivenInput>, names: &mut Names) -> Shape {
    let Some(given) = given.filter(|given| given.shape.len() == shape.rank()) else {
        return shape;
    };
    let pairs = shape.iter().zip(&given.shape);
    pairs
        .map(|(dim, size)| {
            if let Some(symbol) = dim.as_symbol() {
                names.given.entry(symbol.clone()).or_insert(*size as i64);
            }
            match dim.as_const() {
                // What does not fit is said when the model runs.
                Some(_) => dim.clone(),
                None => Dim::from(*size),
            }
        })
        .collect()
}

fn tensor_type(ty: Option<&TypeProto>) -> Result<(DType, Option<&super::proto::TensorShapeProto>), InputProblem> {
    match ty.and_then(|t| t.value.as_ref()) {
        Some(type_proto::Value::TensorType(tensor)) => {
            let code = tensor.elem_type;
            let dtype = element_type(code)
                .and_then(|e| e.dtype())
                .ok_or(InputProblem::ElementType { code })?;
            Ok((dtype, tensor.shape.as_ref()))
        }
        _ => Err(InputProblem::NotTensor),
    }
}

/// Symbols by the model's names for them.
#[derive(Default)]
struct Names {
    symbols: IndexMap<Symbol, SymbolInfo>,
    by_name: IndexMap<String, Symbol>,
    /// The symbols that a run's inputs give sizes to.
    given: IndexMap<Symbol, i64>,
    /// The symbols of inputs that are no cache.
    elsewhere: Vec<Symbol>,
}

impl Names {
    fn named(&mut self, name: &str) -> Dim {
        if let Some(symbol) = self.by_name.get(name) {
            return Dim::from(symbol.clone());
        }
        self.fresh(name)
    }

    /// Arithmetic over names.
    fn sum(&mut self, dim: &Dim) -> Dim {
        let mut symbols = Vec::new();
        dim.collect_symbols(&mut symbols);
        let with = symbols.into_iter().map(|s| {
            let named = self.named(s.name());
            (s, named)
        });
        let with: IndexMap<Symbol, Dim> = with.collect();
        dim.substitute(&with)
    }

    /// Notes which sizes an input has: those of caches alone may be 0, as before the first step.
    fn occurs(&mut self, shape: &Shape, input: &str) {
        let lower = input.to_ascii_lowercase();
        let cache = ["past", "cache", "key_value", "kv"]
            .iter()
            .any(|word| lower.contains(word));
        let mut found = Vec::new();
        shape.iter().for_each(|d| d.collect_symbols(&mut found));
        if !cache {
            self.elsewhere.extend(found);
        }
    }

    fn fresh(&mut self, name: &str) -> Dim {
        let base = identifier(name);
        let mut text = base.clone();
        let mut count = 1;
        while self.symbols.contains_key(&Symbol::new(&text)) {
            count += 1;
            text = format!("{base}_{count}");
        }
        let symbol = Symbol::new(&text);
        self.symbols.insert(symbol.clone(), SymbolInfo::default());
        self.by_name.insert(name.to_owned(), symbol.clone());
        Dim::from(symbol)
    }
}

/// Makes an identifier of the text forms from any name.
fn identifier(name: &str) -> String {
    let mut text: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    if !text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        text.insert(0, '_');
    }
    if RESERVED.contains(&text.as_str()) {
        text.push('_');
    }
    text
}

fn apply(mut names: Names, options: &ImportOptions) -> Result<Sizes, ImportError> {
    for (symbol, info) in &mut names.symbols {
        if symbol.name().to_ascii_lowercase().contains("past") || !names.elsewhere.contains(symbol) {
            info.min = 0;
        }
    }
    let mut sizes = Sizes {
        symbols: names.symbols,
        ..Sizes::default()
    };
    for (name, size) in &options.sizes {
        let symbol = names.by_name.get(name).cloned().or_else(|| {
            let symbol = Symbol::new(name);
            sizes.symbols.contains_key(&symbol).then_some(symbol)
        });
        let Some(symbol) = symbol else {
            let known = names.by_name.keys().cloned().collect();
            return Err(ImportError::UnknownSize {
                name: name.clone(),
                known,
            });
        };
        let (Size::Fixed(least) | Size::Bounded { min: least, .. }) = *size;
        if least < 0 {
            return Err(ImportError::SizeOption {
                name: name.clone(),
                size: least,
            });
        }
        match *size {
            Size::Fixed(value) => {
                if let Some(given) = names.given.get(&symbol).filter(|given| **given != value) {
                    return Err(ImportError::SizeGiven {
                        name: name.clone(),
                        option: value.to_string(),
                        given: *given,
                    });
                }
                sizes.replaced.insert(symbol, Dim::Const(value));
            }
            Size::Bounded { min, max, hint } => {
                if let Some(given) = names.given.get(&symbol) {
                    if *given >= min && max.is_none_or(|max| *given <= max) {
                        continue;
                    }
                    return Err(ImportError::SizeGiven {
                        name: name.clone(),
                        option: format!("{min}..{}", max.map_or(String::new(), |max| max.to_string())),
                        given: *given,
                    });
                }
                let default = SymbolInfo::default().hint.max(min).min(max.unwrap_or(i64::MAX));
                sizes.symbols.insert(
                    symbol,
                    SymbolInfo {
                        min,
                        max,
                        hint: hint.unwrap_or(default),
                    },
                );
            }
        }
    }
    for (symbol, size) in names.given {
        sizes.replaced.entry(symbol).or_insert(Dim::Const(size));
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_identifiers_and_stay_apart() {
        let mut names = Names::default();
        assert_eq!(names.named("batch size").to_string(), "batch_size");
        assert_eq!(names.named("batch-size").to_string(), "batch_size_2");
        assert_eq!(names.named("batch size").to_string(), "batch_size");
        assert_eq!(names.named("2*s0").to_string(), "_2_s0");
        assert_eq!(names.named("max").to_string(), "max_");
        let four = names.sum(&(Dim::symbol("a") * 4));
        assert_eq!(
            (four.to_string(), names.named("a").to_string()),
            ("4*a".into(), "a".into())
        );
    }

    #[test]
    fn texts_that_name_no_size_are_told_from_names() {
        for name in ["?", "", " ", "-1", "None", "none", "*", "unknown", "..."] {
            assert!(is_anonymous(name), "{name:?}");
        }
        for name in ["n", "batch", "unk__3", "dim_0", "seq-len", "N1"] {
            assert!(!is_anonymous(name), "{name:?}");
        }
    }
}
