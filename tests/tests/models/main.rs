//! Models, graphs and files on the CPU, and the text of what is made of them; nothing here starts a GPU.

extern crate codegen_hip as graphc_codegen_hip;
extern crate frontend as graphc_frontend;

#[path = "../../../codegen-hip/tests/host_shim/mod.rs"]
mod host_shim;
#[path = "../../../frontend/tests/cases/mod.rs"]
mod onnx_cases;

mod agreement;
mod attention_mappings;
mod attention_ops;
mod dynamic_checkpoints;
mod exports;
mod filetests;
mod forged_mappings;
mod given_integers;
mod hip_text;
mod levels;
mod light;
mod minilm;
mod optimize_models;
mod optimize_speed;
mod quantised_checkpoints;
mod quantize;
mod quantize_inputs;
mod random_graphs;
