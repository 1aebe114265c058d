//! Recipes: which products are quantised and how (`decide`), and the graph that a recipe makes (`apply`).
//!
//! ```text
//! contract x, w     becomes     contract (dequantize (quantize x)), (dequantize w')
//! ```
//!
//! `layers` finds the products by constants and names them; `gptq` chooses integers by what calibration saw, `awq`
//! factors of inputs; `weight_only` is the pass
//! behind `--dtype int8` and `int4`.

mod apply;
mod awq;
mod decide;
mod error;
mod gptq;
mod layers;
pub mod weight_only;

pub use apply::{apply, measured, stored};
pub use awq::{Product, scaled_inputs};
pub(crate) use decide::LARGEST_GROUP;
pub use decide::{Decision, Range, Scheme, decide, static_activation};
pub use error::QuantizeError;
pub use gptq::{Moments, column_feedback};
pub use layers::{FoundLayer, Layers, layers, matches};
