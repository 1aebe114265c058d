//! Why a module could not be made from its weights.

use ir::data::SizeMismatch;

use crate::tensor::TensorError;
use crate::weights::{SchemeError, ViewError, WeightsError};

/// Weights that do not make the module asked for.
#[derive(Debug, thiserror::Error)]
pub enum NnError {
    /// A file cannot be read, or lacks a tensor; the error names the nearest name that exists.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A tensor has another shape than the module asks for.
    #[error("weight {name:?} has the shape {found:?}, but the module asks for {wanted:?}")]
    Shape {
        name: String,
        wanted: Vec<usize>,
        found: Vec<usize>,
    },
    /// A tensor's elements are no floats.
    #[error("weight {name:?} has the element type {found}; a float type is needed")]
    DType { name: String, found: ir::DType },
    /// A tensor of a quantised layer is not what its layout asks for.
    #[error("{layout} weight {name:?} is {found}; expected: {expected}")]
    Packed {
        /// Whose layout.
        layout: &'static str,
        name: String,
        found: String,
        /// What would fit, or how to come by it.
        expected: String,
    },
    /// How a layer was quantised is not known here, or not what is stored.
    #[error(transparent)]
    Scheme(#[from] Box<SchemeError>),
    /// A tensor's element type does not exist here.
    #[error(transparent)]
    View(#[from] ViewError),
    /// Random weights of an impossible size.
    #[error("weight {name:?}: {source}")]
    Size { name: String, source: SizeMismatch },
    /// The module's numbers contradict each other.
    #[error("module {module:?}: {message}")]
    Config { module: String, message: String },
    /// Recording failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl NnError {
    pub(super) fn packed(
        layout: &'static str,
        name: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> NnError {
        NnError::Packed {
            layout,
            name: name.to_owned(),
            found: found.into(),
            expected: expected.into(),
        }
    }
}
