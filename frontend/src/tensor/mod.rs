//! The lazy tensor: a model written as Rust expressions, recorded and not yet computed.
//!
//! A [`Tensor`] is a handle on a recorded operation; cloning it is cheap, and it may be sent to and shared by threads.
//! Every method checks types and shapes when it is called and records one operation or a few; nothing is computed.
//! [`build_graph`] and [`trace`] turn what was recorded into an [`ir::Graph`]; `graphc::prelude` adds `realize()` and
//! `to_vec()`, which compile and run behind the scenes.
//!
//! Shapes broadcast as NumPy's do, and dims may be symbols whose size is known only when the model runs:
//!
//! ```
//! use graphc_frontend::tensor::{Tensor, build_graph};
//! use graphc_frontend::{DType, shape};
//!
//! let x = Tensor::input("x", DType::F32, shape!["batch", 4]);
//! let w = Tensor::randn(shape![4, 3], 7);
//! let y = (x.matmul(&w) + 1.0).relu();
//! assert_eq!(y.shape().to_string(), "[batch, 3]");
//! let graph = build_graph("mlp", &[("y", &y)])?;
//! assert_eq!(graph.inputs().len(), 1);
//! # Ok::<(), graphc_frontend::tensor::TensorError>(())
//! ```
//!
//! # Errors
//! Methods do not return `Result`, so that expressions stay readable. An operation that does not fit its operands gives
//! a *poisoned* tensor, and so does every operation on that one. The first error, with the file and line of the call
//! and the shapes, comes out of [`Tensor::check`], [`build_graph`], and whatever compiles:
//!
//! ```
//! use graphc_frontend::tensor::Tensor;
//! use graphc_frontend::{DType, shape};
//!
//! let a = Tensor::zeros(DType::F32, shape![2, 3]);
//! let b = Tensor::zeros(DType::F32, shape![4, 5]);
//! let y = (a.matmul(&b) + 1.0).relu();
//! let error = y.check().unwrap_err().to_string();
//! assert!(error.contains("3 is not 4"), "{error}");
//! ```
//!
//! # Element types
//! Operands must have equal element types; [`Tensor::cast`] converts. A plain number takes the type of the tensor it
//! meets.

mod attention;
mod contract;
mod create;
mod einsum;
mod elementwise;
mod error;
mod graph;
mod index;
mod join;
mod node;
mod norm;
mod operand;
mod operators;
mod quantize;
mod reduce;
mod remote;
mod slice;
#[cfg(test)]
mod tests;
mod view;
mod window;

use std::sync::Arc;

use ir::{DType, Dim, Origin, Scalar, Shape, TensorType};

pub use attention::{AttentionOptions, apply_rotary, paged_cache, rotary_tables, scaled_dot_product_attention};
pub use create::{Element, InputSpec};
pub use einsum::einsum;
pub use error::TensorError;
pub use graph::{Lifted, build_graph, build_graph_with, lift, trace};
pub use join::{cat, stack};
pub use operand::{IntoAxes, Operand};
pub use remote::{Argument, Remote};
pub use window::{ConvOptions, PoolOptions, Spatial};

use node::{Kind, Node};

/// A recorded value: see the [module](self).
#[derive(Clone)]
pub struct Tensor {
    node: Arc<Node>,
    index: u32,
}

/// Makes a [`Shape`] of sizes and symbol names: `shape!["batch", 3, 224, 224]`; in [`Tensor::reshape`] one entry may be
/// -1.
#[macro_export]
macro_rules! shape {
    ($($dim:expr),* $(,)?) => { $crate::Shape(vec![$($crate::Dim::from($dim)),*]) };
}

impl Tensor {
    /// Returns the element type; `f32` for a poisoned tensor.
    pub fn dtype(&self) -> DType {
        self.ty().dtype
    }

    /// Returns the shape; that of a scalar for a poisoned tensor.
    pub fn shape(&self) -> &Shape {
        &self.ty().shape
    }

    /// Returns the element type and the shape.
    pub fn ty(&self) -> &TensorType {
        &self.node.types[self.index as usize]
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }

    /// Returns the size of an axis; negative axes count from the end.
    ///
    /// # Errors
    /// The tensor is poisoned, or has no such axis.
    #[track_caller]
    pub fn dim(&self, axis: isize) -> Result<Dim, TensorError> {
        self.check()?;
        let axis = self.axis("dim", axis).map_err(|e| *e)?;
        Ok(self.shape()[axis].clone())
    }

    /// Returns all sizes of a tensor of rank `N`: `let [batch, seq, _] = x.dims()?;`.
    ///
    /// # Errors
    /// The tensor is poisoned, or has another rank.
    #[track_caller]
    pub fn dims<const N: usize>(&self) -> Result<[Dim; N], TensorError> {
        self.check()?;
        match <[Dim; N]>::try_from(self.shape().0.clone()) {
            Ok(dims) => Ok(dims),
            Err(_) => Err(*self.argument("dims", format!("the rank is {}, not {N}", self.rank()))),
        }
    }

    /// Returns the size of an axis when it is a known number.
    ///
    /// # Errors
    /// The tensor is poisoned, has no such axis, or the size is symbolic.
    #[track_caller]
    pub fn size(&self, axis: isize) -> Result<i64, TensorError> {
        let dim = self.dim(axis)?;
        match dim.as_const() {
            Some(size) => Ok(size),
            None => {
                let message = format!("axis {axis} has the symbolic size {dim}; a number is needed");
                Err(*self.argument("size", message))
            }
        }
    }

    /// Returns where the tensor was recorded.
    pub fn origin(&self) -> &Origin {
        &self.node.origin
    }

    /// Returns the first error of the operations that led here.
    ///
    /// # Errors
    /// The tensor is poisoned.
    pub fn check(&self) -> Result<(), TensorError> {
        match &self.node.kind {
            Kind::Poison(error) => Err((**error).clone()),
            _ => Ok(()),
        }
    }

    /// Says whether an operation that led here did not fit its operands.
    pub fn is_poisoned(&self) -> bool {
        matches!(self.node.kind, Kind::Poison(_))
    }

    /// Makes a poisoned tensor: for functions that return a tensor and found an error of their own.
    pub fn poisoned(error: TensorError) -> Tensor {
        Node::poison(error)
    }

    /// Unwraps a result, poisoning on error.
    pub fn or_poisoned<E: Into<TensorError>>(result: Result<Tensor, E>) -> Tensor {
        result.unwrap_or_else(|e| Tensor::poisoned(e.into()))
    }

    /// Says in an error that arose in `forward` and not before it, which module it arose in.
    #[must_use]
    pub fn in_module(self, module: &str, inputs: &[&Tensor]) -> Tensor {
        match &self.node.kind {
            Kind::Poison(error) if !inputs.iter().any(|t| t.is_poisoned()) && !error.is_in_module() => {
                Tensor::poisoned(TensorError::Module {
                    module: module.to_owned(),
                    source: Box::new((**error).clone()),
                })
            }
            _ => self,
        }
    }

    /// Resolves an axis that may count from the end.
    #[track_caller]
    fn axis(&self, op: &'static str, axis: isize) -> Result<usize, Box<TensorError>> {
        // No closures here and in callers: they would lose the user's line.
        match resolve(axis, self.rank()) {
            Some(axis) => Ok(axis),
            None => Err(self.argument(op, format!("axis {axis} is not inside rank {}", self.rank()))),
        }
    }

    /// Resolves an axis of a result with `extra` axes more than this tensor.
    #[track_caller]
    fn new_axis(&self, op: &'static str, axis: isize, extra: usize) -> Result<usize, Box<TensorError>> {
        let rank = self.rank() + extra;
        match resolve(axis, rank) {
            Some(axis) => Ok(axis),
            None => Err(self.argument(op, format!("axis {axis} is not inside the result's rank {rank}"))),
        }
    }

    /// Makes an error about an argument of a call on this tensor.
    #[track_caller]
    fn argument(&self, op: &'static str, message: impl Into<String>) -> Box<TensorError> {
        Box::new(TensorError::Argument {
            op,
            operand: self.ty().clone(),
            origin: Origin::caller(),
            message: message.into(),
        })
    }

    /// Makes a poisoned tensor for an argument of a call on this tensor; an earlier error stays.
    #[track_caller]
    fn refuse(&self, op: &'static str, message: impl Into<String>) -> Tensor {
        if self.is_poisoned() {
            return self.clone();
        }
        Tensor::poisoned(*self.argument(op, message))
    }

    /// Passes on an earlier error of this tensor in place of `error`.
    #[expect(
        clippy::boxed_local,
        reason = "errors are boxed where they arise, to keep results small"
    )]
    fn poison_with(&self, error: Box<TensorError>) -> Tensor {
        if self.is_poisoned() {
            self.clone()
        } else {
            Tensor::poisoned(*error)
        }
    }

    /// Makes a scalar constant that belongs to the program, not to its data.
    #[track_caller]
    fn literal(dtype: DType, value: Scalar) -> Tensor {
        Node::literal(ir::HostTensor::scalar(dtype, value), Origin::caller())
    }
}

fn resolve(axis: isize, rank: usize) -> Option<usize> {
    let resolved = if axis < 0 { axis + rank as isize } else { axis };
    usize::try_from(resolved).ok().filter(|a| *a < rank)
}

/// Resolves an axis or returns the poisoned tensor from the calling method.
macro_rules! axis {
    ($tensor:expr, $op:expr, $axis:expr) => {
        match $tensor.axis($op, $axis) {
            Ok(axis) => axis,
            Err(error) => return $tensor.poison_with(error),
        }
    };
}
use axis;

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.node.kind {
            Kind::Poison(error) => write!(f, "Tensor(poisoned: {error})"),
            kind => write!(f, "Tensor({} {} from {})", kind.name(), self.ty(), self.node.origin),
        }
    }
}
