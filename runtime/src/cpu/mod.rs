//! The CPU device: the embedded default.
//!
//! ```text
//! Plan + sizes --lower, pack, place--> per step: pieces (gemm, conv, attention, loops, ...) with strides, packed weights and programs
//!                                      arena placement, scratch sizes
//! run: pointers into inputs, outputs, constants and one arena; steps in order; nothing is decided or allocated
//! ```
//!
//! What a kernel is on the CPU, its lowering says ([`ir::host`]), which the device is made with; nothing here reads
//! expressions. [`loaded`] keeps what is prepared for each set of sizes and the memory of each concurrent run; [`exec`]
//! packs the constants of a lowered kernel; [`block`] and [`loops`] run programs over blocks of points; [`kernels`] are
//! the numeric kernels, which know nothing of plans.
//!
//! Invariant: raw pointers into buffers are formed in this folder only, from placements that were checked against the
//! parameters' sizes when a step was prepared.

mod attention;
mod block;
mod column_ends;
mod conv;
mod copying;
mod env;
mod exec;
mod finisher;
mod gemm;
mod integers;
pub mod kernels;
mod loaded;
mod loops;
pub(crate) mod meeting;
mod ordered;
mod pooling;
mod recurrent;
mod rows;
mod submit;
#[cfg(test)]
mod tests;
mod tile;

use std::sync::Arc;

use ir::host::NewLowering;
use ir::target::Platform;
use ir::{Program, Target};

use crate::device::{Device, LoadOptions, Loaded};
use crate::error::RuntimeError;
use crate::tensor::{DeviceTensor, HostBlock, Memory};
use meeting::Seat;

pub(crate) use loaded::LoadedCpu;

/// The host's processor, with what lowers kernels for it.
#[derive(Clone, Copy, Debug)]
pub struct CpuDevice {
    lowering: NewLowering,
}

impl CpuDevice {
    /// Returns the host's processor; `lowering` makes the lowering of each program.
    pub fn new(lowering: NewLowering) -> CpuDevice {
        CpuDevice { lowering }
    }

    /// Loads a program, which may be one rank's part of a model.
    ///
    /// # Errors
    /// As [`Device::load`].
    pub(crate) fn load_seat(
        &self,
        program: Arc<Program>,
        variant: usize,
        options: &LoadOptions,
        seat: Option<Seat>,
    ) -> Result<LoadedCpu, RuntimeError> {
        LoadedCpu::new(program, variant, options, (self.lowering)(), seat)
    }
}

/// Returns a tensor of the host that shares the bytes of another.
pub(crate) fn share(tensor: &ir::HostTensor) -> DeviceTensor {
    let block = HostBlock::shared(tensor.bytes.clone());
    let memory = Memory::Host(Arc::new(block));
    DeviceTensor::new(tensor.dtype, tensor.shape.clone(), memory)
}

/// Says whether the CPU runs plans for a target.
pub(crate) fn runs(target: &Target) -> bool {
    target.platform == Platform::Cpu
}

impl Device for CpuDevice {
    fn name(&self) -> &str {
        "cpu"
    }

    fn runs(&self, target: &Target) -> bool {
        runs(target)
    }

    fn load(
        &self,
        program: Arc<Program>,
        variant: usize,
        options: &LoadOptions,
    ) -> Result<Arc<dyn Loaded>, RuntimeError> {
        Ok(Arc::new(self.load_seat(program, variant, options, None)?))
    }

    fn upload(&self, tensor: &ir::HostTensor) -> Result<DeviceTensor, RuntimeError> {
        Ok(share(tensor))
    }
}
