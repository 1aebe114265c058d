//! Whole models: each file is one, to be copied.

pub mod decoder;
pub mod minilm;
pub mod resnet;
