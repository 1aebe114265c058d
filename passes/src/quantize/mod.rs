//! Chooses the element types that a model is computed in, and how quantised weights lie.

pub mod cache;
pub mod float8;
pub mod integers;
mod operands;
mod padded;
pub mod precision;
pub mod recipe;
mod signed;
pub mod spelled;
pub mod weights;

pub use precision::PASS;
