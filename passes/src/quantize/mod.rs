//! Chooses the element types that a model is computed in.

pub mod precision;

pub use precision::PASS;
