//! The seam between an executable and the devices that run it.
//!
//! A device turns one variant of a program into a [`Loaded`] program: everything slow happens there. Running then takes
//! sizes, input bytes and output memory, and knows no names: [`crate::executable::Executable`] has checked them.

use std::sync::Arc;
use std::time::Duration;

use ir::dim::Bindings;
use ir::plan::{Place, Plan, StepId};
use ir::target::Platform;
use ir::{Program, Target};

use crate::cpu::CpuDevice;
use crate::error::RuntimeError;
use crate::gpu::{GpuDevice, GpuSearch};

/// How a program is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Threads that one run uses, the caller's included; 0 takes one a core. (CPU)
    pub threads: usize,
    /// Keeps the time of each step, for [`crate::Executable::profile`].
    pub profile: bool,
    /// Most bytes that one run may take: its arena, and on the CPU its scratch and temporaries. What a program has however often it
    /// runs (weights as they are and packed) is not in it. `None` is no limit.
    pub memory_limit: Option<usize>,
    /// How many sets of sizes stay prepared; `None` takes 8.
    pub prepared_sizes: Option<usize>,
    /// Sums every convolution's products directly. Otherwise 3x3 convolutions of stride 1 may run by Winograd's F(4x4, 3x3):
    /// about twice as fast, with an error in f32 below 2e-5 of the sum of the products' magnitudes (direct: about 2e-6),
    /// and a NaN or infinity of the input reaches the whole 4x4 block of outputs. (CPU)
    pub direct_convolutions: bool,
    /// Waits for each step before the next is enqueued, so that a device's error names the step it came from. Slow. (GPU)
    pub synchronous: bool,
}

/// A place where programs run.
pub trait Device: Send + Sync {
    /// The device's name, as messages and `--device` have it.
    fn name(&self) -> &str;

    /// Says whether the device runs plans for this target.
    fn runs(&self, target: &Target) -> bool;

    /// Prepares a variant of a program: weights, kernels, memory.
    ///
    /// # Errors
    /// A plan for another platform, a kernel that cannot be prepared, memory that is not there.
    fn load(
        &self,
        program: Arc<Program>,
        variant: usize,
        options: &LoadOptions,
    ) -> Result<Box<dyn Loaded>, RuntimeError>;
}

/// A program on a device. Several threads may run it at once.
pub trait Loaded: Send + Sync {
    /// Runs once. Inputs and outputs are in the order of the plan's ports and have the ports' sizes at `bindings`.
    ///
    /// # Errors
    /// Memory that is not there; sizes that the plan does not allow.
    fn run(
        &self,
        bindings: &Bindings,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        profile: Option<&mut Profile>,
    ) -> Result<(), RuntimeError>;

    /// Memory at the given sizes.
    ///
    /// # Errors
    /// A size that does not evaluate.
    fn memory(&self, bindings: &Bindings) -> Result<MemoryReport, RuntimeError>;
}

/// Bytes that a loaded program takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// The arena of one run: the planned peak.
    pub arena: usize,
    /// The largest sum of buffers alive at one step: a lower bound of `arena`.
    pub live_peak: usize,
    /// Weights in the kernels' own form (CPU), or on the device (GPU).
    pub packed_weights: usize,
    /// Scratch of kernels (CPU) or pinned memory that inputs and outputs pass through (GPU), all run contexts together.
    pub scratch: usize,
}

/// Where the time of one run went.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub steps: Vec<StepTime>,
}

/// One step of a profile.
#[derive(Clone, Debug)]
pub struct StepTime {
    pub step: StepId,
    /// The kernel's or call's name.
    pub name: String,
    /// What ran it on this device (`gemm`, `loops`, …).
    pub engine: String,
    pub time: Duration,
}

/// Returns a device that runs a plan: the CPU, or the first GPU of the plan's kind that its vendor's runtime on this machine sees.
///
/// # Errors
/// `NotAvailable` with what was looked for and where.
pub fn device_for(plan: &Plan) -> Result<Box<dyn Device>, RuntimeError> {
    match plan.target.platform {
        Platform::Cpu => Ok(Box::new(CpuDevice)),
        Platform::Hip | Platform::Cuda => Ok(Box::new(GpuDevice::for_target(&GpuSearch::default(), &plan.target)?)),
    }
}

/// Returns the variant of a program that suits a device best: of those that run on it, the one compiled for most of its
/// features.
///
/// # Errors
/// `NotAvailable` with the targets that the program was compiled for.
pub fn variant_for(program: &Program, device: &dyn Device) -> Result<usize, RuntimeError> {
    let fitting = program
        .variants
        .iter()
        .enumerate()
        .filter(|(_, v)| device.runs(&v.plan.target));
    // Of equals the first.
    let best = fitting.max_by_key(|(index, v)| (v.plan.target.specificity(), std::cmp::Reverse(*index)));
    best.map(|(index, _)| index).ok_or_else(|| {
        let have: Vec<String> = program.variants.iter().map(|v| v.plan.target.to_string()).collect();
        RuntimeError::NotAvailable {
            what: format!("code for device {}", device.name()),
            reason: format!("the program was compiled for {}", have.join(", ")),
        }
    })
}

/// Bytes of the constants that a plan reads.
pub fn weight_bytes(program: &Program, plan: &Plan) -> usize {
    let mut seen = Vec::new();
    for buffer in plan.buffers.values() {
        if let Place::Constant(id) = buffer.place
            && !seen.contains(&id)
        {
            seen.push(id);
        }
    }
    seen.iter()
        .filter_map(|id| program.constants.get(*id))
        .map(|c| c.tensor.bytes.len())
        .sum()
}
