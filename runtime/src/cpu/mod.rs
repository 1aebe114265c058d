//! The CPU device: the embedded default.
//!
//! ```text
//! Plan + sizes --prepare--> per step: pieces (gemm, conv, attention, loops, …) with strides, packed weights and programs
//!                           arena placement, scratch sizes
//! run: pointers into inputs, outputs, constants and one arena; steps in order; nothing is decided or allocated
//! ```
//!
//! [`loaded`] keeps what is prepared for each set of sizes and the memory of each concurrent run; [`exec`] picks the
//! pieces of a kernel; [`affine`] and [`block`] turn expressions into loops over blocks; [`kernels`] are the numeric
//! kernels, which know nothing of plans.
//!
//! Invariant: raw pointers into buffers are formed in this folder only, from placements that were checked against the
//! parameters' sizes when a step was prepared.

mod affine;
mod attention;
mod block;
mod contract;
mod conv;
mod copying;
mod env;
mod exec;
mod finisher;
mod hoist;
mod integers;
pub mod kernels;
mod loaded;
mod loops;
pub(crate) mod meeting;
mod ordered;
mod pooling;
mod quantised;
mod rewrite;
mod rows;
mod stages;
mod submit;
#[cfg(test)]
mod tests;
mod tile;

use std::sync::Arc;

use ir::target::Platform;
use ir::{Program, Target};

use crate::device::{Device, LoadOptions, Loaded};
use crate::error::RuntimeError;
use crate::tensor::{DeviceTensor, HostBlock, Memory};
pub(crate) use loaded::LoadedCpu;

/// The host's processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuDevice;

impl Device for CpuDevice {
    fn name(&self) -> &str {
        "cpu"
    }

    fn runs(&self, target: &Target) -> bool {
        target.platform == Platform::Cpu
    }

    fn load(
        &self,
        program: Arc<Program>,
        variant: usize,
        options: &LoadOptions,
    ) -> Result<Arc<dyn Loaded>, RuntimeError> {
        Ok(Arc::new(LoadedCpu::new(program, variant, options, None)?))
    }

    fn upload(&self, tensor: &ir::HostTensor) -> Result<DeviceTensor, RuntimeError> {
        let block = HostBlock::shared(tensor.bytes.clone());
        let memory = Memory::Host(Arc::new(block));
        Ok(DeviceTensor::new(tensor.dtype, tensor.shape.clone(), memory))
    }
}
