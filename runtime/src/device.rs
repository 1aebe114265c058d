//! The seam between an executable and the devices that run it.
//!
//! A device turns one variant of a program into a [`Loaded`] program: everything slow happens there. Running then takes
//! sizes, input bytes and output memory, and knows no names: [`crate::executable::Executable`] has checked them.

use std::any::Any;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use ir::dim::Bindings;
use ir::library::Algorithm;
use ir::plan::{Plan, StepId};
use ir::{DType, HostTensor, Program, Target};

use crate::error::RuntimeError;
use crate::gpu::Priority;
use crate::miopen::MiopenOptions;
use crate::tensor::{DeviceTensor, Given, Value, Where};

/// Most threads that one run uses: the system ends a process that starts many more than it has memory maps for.
pub const MOST_THREADS: usize = 1024;

/// How a program is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Threads that one run uses, the caller's included, at most [`MOST_THREADS`]; 0 takes one a core. (CPU)
    pub threads: usize,
    /// Names runs and steps for a profiler that watches the process: ranges of roctx, or of NVTX, around what the host
    /// enqueues. (GPU)
    pub ranges: bool,
    /// Most bytes that one run may take: its arena, and on the CPU its scratch and temporaries. What a program has
    /// however often it runs (weights as they are and packed) is not in it. `None` is no limit.
    pub memory_limit: Option<usize>,
    /// How many sets of sizes stay prepared; `None` takes 8.
    pub prepared_sizes: Option<usize>,
    /// Sums every convolution's products directly. Otherwise 3x3 convolutions of stride 1 may run by Winograd's F(4x4,
    /// 3x3): about twice as fast, with an error in f32 below 2e-5 of the sum of the products' magnitudes (direct: about
    /// 2e-6), and a NaN or infinity of the input reaches the whole 4x4 block of outputs. (CPU)
    pub direct_convolutions: bool,
    /// Waits for each step before the next is enqueued, so that a device's error names the step it came from. Slow.
    /// (GPU)
    pub synchronous: bool,
    /// Most runs at once, each with an arena of its own; one more waits for the oldest. `None` takes 4. (GPU)
    pub concurrent_runs: Option<usize>,
    /// How urgent the runs are against those of other programs on the device. (GPU)
    pub priority: Priority,
    /// Enqueues every run step by step. Otherwise runs of many launches that come again with the same addresses are
    /// captured as one graph, where the driver and the libraries allow it. (GPU)
    pub no_capture: bool,
    /// Captures also runs with collectives, of several devices. Off by default: whether some ranks' runs may be graphs
    /// while others' are enqueued is up to RCCL or NCCL. (GPU)
    pub capture_collectives: bool,
    /// How MIOpen chooses algorithms, and where it keeps what it measured. (AMD GPUs)
    pub miopen: MiopenOptions,
}

/// A place where programs run.
pub trait Device: Send + Sync {
    /// The device's name, as messages and `--device` have it.
    fn name(&self) -> &str;

    /// Returns what the device is, whichever number it has here: the product's name.
    fn product(&self) -> &str {
        self.name()
    }

    /// Returns the processor with its feature flags (`gfx90a:sramecc+:xnack-`), by which, beside the product, measured
    /// times differ; empty on the CPU.
    fn arch(&self) -> &str {
        ""
    }

    /// Returns the driver's version, by which measured times differ too; empty on the CPU.
    fn driver(&self) -> &str {
        ""
    }

    /// Gives the device up once the host waited that long for it, instead of waiting for ever; None for ever. The CPU
    /// is always waited for. See [`crate::gpu::GpuDevice::set_timeout`].
    fn set_timeout(&self, _timeout: Option<Duration>) {}

    /// How many devices this stands for, which compute a model together; 1 but for [`crate::RankedDevice`].
    fn ranks(&self) -> u32 {
        1
    }

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
    ) -> Result<Arc<dyn Loaded>, RuntimeError>;

    /// Copies a tensor to the device. (The CPU device shares its bytes.)
    ///
    /// # Errors
    /// Memory that is not there, or what the device reports.
    fn upload(&self, tensor: &HostTensor) -> Result<DeviceTensor, RuntimeError>;
}

/// A program on a device. Several threads may run it at once.
pub trait Loaded: Send + Sync {
    /// The program with the ports that its callers see, where those are not the plan's own.
    fn face(&self) -> Option<Arc<Program>> {
        None
    }

    /// Runs once. Inputs and outputs are in the order of the plan's ports and have the ports' sizes at `bindings`.
    ///
    /// # Errors
    /// Memory that is not there; sizes that the plan does not allow.
    fn run(
        &self,
        bindings: &Bindings,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        times: Option<&mut RunTimes>,
    ) -> Result<(), RuntimeError>;

    /// Begins a run, and does not wait for it. Inputs and `wanted` are in the order of the plan's ports.
    ///
    /// # Errors
    /// As [`Loaded::run`]; a tensor that is on another device, or donated while others see it. What goes wrong later is
    /// said by [`Running::wait`].
    fn submit(
        self: Arc<Self>,
        bindings: &Bindings,
        inputs: Vec<Given>,
        wanted: &[Where],
    ) -> Result<Arc<dyn Running>, RuntimeError>;

    /// Copies a tensor to the device, into memory that a run may write when it is donated.
    ///
    /// # Errors
    /// Memory that is not there, or what the device reports.
    fn upload(&self, tensor: &HostTensor) -> Result<DeviceTensor, RuntimeError>;

    /// Makes a tensor of memory of the device that something else owns; see [`crate::gpu::GpuDevice::borrow`].
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// A device that takes no such memory: the CPU, whose memory a tensor of the host borrows, and several devices.
    unsafe fn borrow(
        &self,
        _address: u64,
        _dtype: DType,
        _shape: Vec<usize>,
        _owner: Box<dyn Any + Send + Sync>,
    ) -> Result<DeviceTensor, RuntimeError> {
        Err(RuntimeError::Unsupported {
            what: "memory of a device that something else owns".into(),
            at: "a device that is no single GPU".into(),
        })
    }

    /// The host's time of a run's launches alone, in a loop of nothing else: what is left when all that is not the
    /// driver's is taken away. The median of `turns`, each waited for. None where there are no launches: on the CPU, on
    /// several devices.
    ///
    /// # Errors
    /// As [`Loaded::run`].
    fn bare_launches(&self, _bindings: &Bindings, _turns: usize) -> Result<Option<Duration>, RuntimeError> {
        Ok(None)
    }

    /// Memory at the given sizes.
    ///
    /// # Errors
    /// A size that does not evaluate.
    fn memory(&self, bindings: &Bindings) -> Result<MemoryReport, RuntimeError>;

    /// What the runs so far took besides running.
    fn statistics(&self) -> RunStatistics;

    /// Lists the algorithms that libraries offer for the calls of a run, by step, the one that the library would choose
    /// first. Nothing where no library has several: on the CPU, on several devices.
    ///
    /// # Errors
    /// As [`Loaded::run`].
    fn algorithms(&self, _bindings: &Bindings) -> Result<Vec<(StepId, Vec<Algorithm>)>, RuntimeError> {
        Ok(Vec::new())
    }

    /// Gives memory back that no run and no tensor needs now, and says how many bytes of the device that was.
    fn trim(&self) -> usize;
}

/// A run that is under way. It comes to its end whether anybody waits or not.
pub trait Running: Send + Sync {
    /// Whether it is done, well or not.
    fn is_done(&self) -> bool;

    /// Waits for it and gives its outputs, once; None in the place of one that was taken.
    ///
    /// # Errors
    /// What the device reports.
    fn wait(&self) -> Result<Vec<Option<Value>>, RuntimeError>;

    /// Takes an output that is on the device, also before the run is done: what reads it waits.
    fn take(&self, output: usize) -> Option<DeviceTensor>;

    /// Wakes a task once the run is done.
    fn wake(self: Arc<Self>, waker: Waker);
}

/// What the runs of a loaded program took besides running: counts since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStatistics {
    pub runs: u64,
    /// How often buffers were given places: for sizes that outgrew those before, or ports that are elsewhere.
    pub placed: u64,
    /// How often steps were worked out for sizes that were not among those of the last runs.
    pub sized: u64,
    /// Graphs captured. (GPU)
    pub captured: u64,
    /// Runs that were one launch of a graph. (GPU)
    pub replayed: u64,
    /// 1 once a driver or a library refused to be captured: all later runs are enqueued step by step. (GPU)
    pub refused: u64,
    /// Run contexts made, each with an arena. (GPU)
    pub contexts: u64,
    /// Bytes of weights that runs copied to the device, of plans that stream them. (GPU)
    pub streamed_bytes: u64,
}

/// Bytes that a loaded program takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// The arena of one run: buffers between steps.
    pub arena: usize,
    /// What a run's kernels take beside it: temporaries within one, scratch of its threads, inputs that are moved.
    /// (CPU)
    pub temporary: usize,
    /// The largest sum of buffers alive at one step: a lower bound of `arena`.
    pub live_peak: usize,
    /// Weights in the kernels' own form (CPU), or on the device (GPU).
    pub packed_weights: usize,
    /// Weights in pinned memory, from which runs copy them. (GPU)
    pub streamed_weights: usize,
    /// Bytes of the device that the program holds now: weights, and the arenas and workspaces of its run contexts.
    /// (GPU)
    pub device: usize,
    /// Scratch of kernels (CPU) or pinned memory that inputs and outputs pass through (GPU), all run contexts together.
    pub scratch: usize,
}

impl MemoryReport {
    /// The planned peak of one run beside weights, inputs and outputs.
    pub fn peak(&self) -> usize {
        self.arena + self.temporary
    }

    /// The larger of each.
    #[must_use]
    pub fn max_with(&self, other: &MemoryReport) -> MemoryReport {
        MemoryReport {
            arena: self.arena.max(other.arena),
            temporary: self.temporary.max(other.temporary),
            live_peak: self.live_peak.max(other.live_peak),
            packed_weights: self.packed_weights.max(other.packed_weights),
            streamed_weights: self.streamed_weights.max(other.streamed_weights),
            device: self.device.max(other.device),
            scratch: self.scratch.max(other.scratch),
        }
    }
}

/// Where the time of one run went.
#[derive(Clone, Debug, Default)]
pub struct RunTimes {
    /// In the order of the plan.
    pub steps: Vec<StepTime>,
    /// From the run's beginning on the device to its end there.
    pub device: Duration,
    /// What the host took until everything was enqueued. Nothing is enqueued on the CPU.
    pub enqueue: Duration,
}

/// One step of a run.
#[derive(Clone, Debug)]
pub struct StepTime {
    pub step: StepId,
    /// The kernel's or call's name.
    pub name: String,
    /// What ran it on this device (`gemm`, `loops`, …).
    pub engine: String,
    /// Since the run's beginning on the device.
    pub start: Duration,
    pub time: Duration,
}

/// Returns the variant of a program that suits a device best: of those that run on it, the one compiled for most of its
/// features. A program for several devices has a variant for each; that of the first is given.
///
/// # Errors
/// `NotAvailable` with the targets that the program was compiled for.
pub fn variant_for(program: &Program, device: &dyn Device) -> Result<usize, RuntimeError> {
    let fitting = program
        .variants
        .iter()
        .enumerate()
        .filter(|(_, v)| device.runs(&v.plan.target) && is_for(&v.plan, device.ranks()));
    // Of equals the first.
    let best = fitting.max_by_key(|(index, v)| (v.plan.target.specificity(), std::cmp::Reverse(*index)));
    best.map(|(index, _)| index).ok_or_else(|| {
        let have: Vec<String> = program.variants.iter().map(|v| made_for(&v.plan)).collect();
        RuntimeError::NotAvailable {
            what: format!("code for device {}", device.name()),
            reason: format!("the program was compiled for {}", have.join(", ")),
        }
    })
}

/// The plan of the whole model that a variant is, or is the first part of: with whole ports where they are cut, and
/// with the steps of all stages where it is one of several. For checking what a run is given, and for the works of its
/// steps.
///
/// # Errors
/// `Program` where the other stages are not there or do not fit.
pub fn whole_plan(program: &Program, variant: usize) -> Result<Plan, RuntimeError> {
    let Some(plan) = program.variants.get(variant).map(|variant| &variant.plan) else {
        return Err(RuntimeError::Program(format!("there is no variant {variant}")));
    };
    let Some(share) = plan.share.as_ref().filter(|share| share.stage.is_some()) else {
        return Ok(plan.with_whole_ports());
    };
    let stage = |rank: u32| {
        let mut all = program.variants.iter().map(|variant| &variant.plan);
        let is = |of: &ir::plan::Share| of.stage.is_some() && (of.rank, of.ranks) == (rank, share.ranks);
        let found = all.find(|other| other.target == plan.target && other.share.as_ref().is_some_and(is));
        found.ok_or_else(|| RuntimeError::Program(format!("stage {rank} of {} is not there", share.ranks)))
    };
    let plans: Vec<&Plan> = (0..share.ranks).map(stage).collect::<Result<_, _>>()?;
    let (whole, _) = ir::plan::stages::whole(&plans).map_err(|error| RuntimeError::Program(error.to_string()))?;
    Ok(whole)
}

/// Says whether a plan is the first of so many ranks; of one, where the plan is of no part.
pub fn is_for(plan: &Plan, ranks: u32) -> bool {
    match &plan.share {
        None => ranks == 1,
        Some(share) => share.rank == 0 && share.ranks == ranks,
    }
}

/// What a plan was made for, in words: `gfx90a`, or `gfx90a (rank 0 of 2)`.
pub fn made_for(plan: &Plan) -> String {
    match &plan.share {
        None => plan.target.to_string(),
        Some(share) => {
            let what = if share.stage.is_some() { "stage" } else { "rank" };
            format!("{} ({what} {} of {})", plan.target, share.rank, share.ranks)
        }
    }
}

/// Bytes of the constants that a plan reads.
pub fn weight_bytes(program: &Program, plan: &Plan) -> usize {
    let mut seen = Vec::new();
    for buffer in plan.buffers.values() {
        if let Some(id) = buffer.place.constant()
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
