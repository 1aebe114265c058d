//! The intermediate representations of graphc: data, verification, text and meaning, and no policy.
//!
//! ```text
//! graph::Graph  --optimize-->  graph::Graph (Core)  --schedule-->  schedule::Schedule  --plan-->  plan::Plan  --emit-->  program::Program
//! ```

pub mod convert;
pub mod data;
pub mod dim;
pub mod entity;
pub mod file;
pub mod graph;
pub mod host;
pub mod kernel;
pub mod library;
pub mod mapped;
pub mod memory;
pub mod plan;
pub mod program;
pub mod recipe;
pub mod schedule;
pub mod target;
pub mod types;

pub use data::{HostTensor, Storage};
pub use dim::{Bindings, Dim, Shape, Symbol, SymbolInfo, Symbols};
pub use entity::{Entity, Table};
pub use graph::infer::InferError;
pub use graph::op::{self, Op};
pub use graph::{ConstId, Graph, NodeId, Origin, Stage, Value};
pub use kernel::Kernel;
pub use plan::Plan;
pub use program::Program;
pub use recipe::Recipe;
pub use schedule::Schedule;
pub use target::Target;
pub use types::{DType, Scalar, TensorType};
