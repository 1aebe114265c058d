//! Kernels compiled for AMD and NVIDIA, and executed on the emulated AMD GPU.

extern crate codegen_hip as graphc_codegen_hip;
extern crate frontend as graphc_frontend;

#[path = "../../../codegen-hip/tests/host_shim/mod.rs"]
mod host_shim;
#[path = "../../../codegen-hip/tests/judge/mod.rs"]
mod judge;
#[path = "../../../codegen-hip/tests/kernels/mod.rs"]
mod kernel_list;
#[path = "../../../frontend/tests/cases/mod.rs"]
mod onnx_cases;
#[path = "../../../passes/src/testing_kernels.rs"]
mod random_kernels;

mod attention_ops;
mod attention_ranges;
mod chains;
mod chosen_products;
mod cuda_kernels;
mod cuda_overlap;
mod cuda_spills;
mod direct;
mod empty;
mod emulated;
mod emulated_attention;
mod emulated_calls;
mod emulated_kernels;
mod emulated_models;
mod emulated_products;
mod emulated_rows;
mod emulated_windows;
mod filtered;
mod float8_products;
mod hidden_scores;
mod hip_kernels;
mod hip_random;
mod integer_products;
mod launchable;
mod levels;
mod long_rows;
mod pairs;
mod parts;
mod products;
mod quantised_attention;
mod quantised_products;
mod random_products;
mod random_windows;
mod recurrent;
mod rounding;
mod row_scales;
mod shares;
mod spills;
mod unpacked;
