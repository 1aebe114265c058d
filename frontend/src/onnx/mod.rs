//! ONNX at run time: reading model files, and importing them into a graph.
//!
//! [`read`] maps and decodes a file, [`tensor`] turns its tensors into views, [`proto`] has the generated messages, and
//! [`randomize`] gives a model reproducible random weights for tests and benches.
//!
//! [`import`] makes an `ir::Graph` of a model. `graph` walks the nodes; `ops` is the table of ops, one file per family;
//! `known` and `sizes` are the shape arithmetic, which leaves no node behind; `builder` makes graph values when an op
//! needs them as data; `order` sorts the nodes; `unsigned` minds integers that are computed in a wider type.
//!
//! [`quantize`] gives the products of a file quantised operands, and writes it.

mod builder;
pub mod container;
mod error;
pub mod external;
mod fold;
mod graph;
mod inputs;
mod known;
mod node;
mod ops;
mod options;
mod order;
pub mod proto;
pub mod quantize;
pub mod randomize;
pub mod read;
mod schema;
mod sizes;
pub mod tensor;
mod unsigned;

pub use error::{ImportError, InitializerProblem, InputProblem, NodeError, NodeProblem, UnboundDim, UnknownOp};
pub use external::Links;
pub use graph::{import, import_model};
pub use inputs::declared_shapes;
pub use options::{GivenEvaluator, GivenInput, ImportOptions, InputDim, OptionError, Size};
pub use quantize::{EditError, ModelFile, OpsetError};
pub use read::{Model, ReadError, ReadProblem, external_files, read_bytes, read_model, read_model_with};
pub use tensor::{TensorError, read_tensor, tensor_view};
