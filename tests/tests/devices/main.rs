//! What runs on devices: behind HIP's interface on the emulated GPU, several at once, and on a real NVIDIA GPU.

#[path = "../../../codegen-hip/tests/judge/mod.rs"]
mod judge;
#[path = "../../../codegen-hip/tests/kernels/mod.rs"]
mod kernel_list;

mod cuda_chains;
mod cuda_device;
mod device_values;
mod faults;
mod generic_code;
mod hip_algorithms;
mod hip_device;
mod hip_libraries;
mod hip_library_routes;
mod hip_scales;
mod miopen_find;
mod miopen_tuned;
mod precomputed;
mod profile;
mod ranks;
mod report;
mod samples;
mod streaming;
mod visible_devices;
