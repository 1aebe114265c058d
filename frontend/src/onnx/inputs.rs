//! The model's inputs: their names, types, and the sizes that vary.

use indexmap::IndexMap;
use ir::dim::{Dim, Shape, Symbol, SymbolInfo};
use ir::{DType, TensorType};

use super::error::{ImportError, InputProblem};
use super::options::{ImportOptions, InputDim, Size};
use super::proto::tensor_shape_proto::dimension::Value;
use super::proto::{GraphProto, TypeProto, ValueInfoProto, type_proto};
use super::sizes::Sizes;
use super::tensor::element_type;

/// Names that mean an operation in the text form of dims.
const RESERVED: [&str; 4] = ["div", "mod", "max", "min"];

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
        .filter(|i| !given.contains(i.name.as_str()))
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
                    Some(Value::DimParam(name)) => Ok(InputDim::Named(name.trim().to_owned())),
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
            })
            .collect();
        if types.insert(info.name.clone(), TensorType::new(dtype, shape)).is_some() {
            return Err(error(InputProblem::Duplicate));
        }
    }
    let sizes = apply(names, options)?;
    Ok(Inputs { types, sizes })
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
}

impl Names {
    fn named(&mut self, name: &str) -> Dim {
        if let Some(symbol) = self.by_name.get(name) {
            return Dim::from(symbol.clone());
        }
        self.fresh(name)
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

fn apply(names: Names, options: &ImportOptions) -> Result<Sizes, ImportError> {
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
                sizes.replaced.insert(symbol, Dim::Const(value));
            }
            Size::Bounded { min, max, hint } => {
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
    }
}
