//! Programs on GPUs: streams, memory, modules and events over one table of functions, which HIP or CUDA's driver fills.
//!
//! Before: a program whose variant has a code object for each kernel. [`Device::load`] does everything slow: it loads
//! the modules, copies the constants through pinned memory, opens the vendor libraries that the plan calls, and makes
//! what one run needs at the expected sizes. A run then copies its inputs into pinned memory, enqueues the plan's steps
//! on one stream a lane with an event where a step waits for another lane, and waits once, or leaves that to who wants
//! its outputs.
//!
//! | file | what it has |
//! |---|---|
//! | `driver` `hip` `cuda` | the table of functions, and who fills it |
//! | `handles` | what a device gives, owned |
//! | `heap` `block` | memory of tensors: allocated, kept, copied; who uses it |
//! | `facts` | what holds of a plan at all sizes |
//! | `form` `prepare` | where everything is when some ports are on the device; what each step enqueues |
//! | `order` | which events a run records and waits for |
//! | `context` `bound` | what one run has to itself; its arguments laid out |
//! | `run` | enqueues, step by step or as a captured graph |
//! | `ranges` | names of runs and steps for a profiler that watches |
//! | `loaded` `flight` `watch` | runs in a row and at once, their ends, and who waits for them |
//!
//! Invariant: nothing in flight outlives what it uses: a run holds the memory of its tensors and its context until its
//! end was waited for, also after an error, and also where nobody asks for its outputs.

pub(crate) mod block;
mod bound;
mod constants;
mod context;
mod cuda;
pub(crate) mod driver;
mod facts;
mod flight;
mod form;
pub(crate) mod handles;
pub(crate) mod heap;
mod hip;
mod loaded;
mod modules;
mod order;
pub(crate) mod peer;
mod prepare;
mod ranges;
mod run;
mod stats;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use dylib::{NotFound, Search};
use ir::target::Platform;
use ir::{Program, Target};

use crate::device::{Device, LoadOptions, Loaded};
use crate::error::RuntimeError;
use crate::library::rccl;
use crate::tensor::{DeviceTensor, Memory};
use block::Block;
use driver::Driver;
pub use driver::{Description, Priority};
use handles::Gpu;
use heap::Heap;
pub use heap::MemoryStatistics;

/// Whose GPU, and through which runtime it is driven.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vendor {
    /// AMD's, through HIP.
    Hip,
    /// NVIDIA's, through CUDA's driver API.
    Cuda,
}

impl Vendor {
    /// In the order in which a GPU is looked for where any will do.
    pub const ALL: [Vendor; 2] = [Vendor::Hip, Vendor::Cuda];

    /// The vendor whose GPUs run a platform's code; none for the CPU.
    pub fn of(platform: Platform) -> Option<Vendor> {
        match platform {
            Platform::Cpu => None,
            Platform::Hip => Some(Vendor::Hip),
            Platform::Cuda => Some(Vendor::Cuda),
        }
    }

    /// As `--device` has it: `hip`.
    pub fn name(self) -> &'static str {
        match self {
            Vendor::Hip => "hip",
            Vendor::Cuda => "cuda",
        }
    }

    /// What the runtime is called in messages.
    fn runtime(self) -> &'static str {
        match self {
            Vendor::Hip => "the HIP runtime",
            Vendor::Cuda => "the CUDA driver",
        }
    }
}

/// Where libraries are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSearch {
    /// The HIP runtime.
    pub hip: Search,
    /// The CUDA driver.
    pub cuda: Search,
    /// rocBLAS and its like; opened only where a plan calls them, after the HIP runtime has found a GPU.
    pub libraries: Search,
    /// RCCL or NCCL, by which several GPUs compute a model together.
    pub collectives: Search,
}

impl Default for GpuSearch {
    fn default() -> GpuSearch {
        GpuSearch {
            hip: Search::default(),
            cuda: cuda_sys::default_search(),
            libraries: Search::default(),
            collectives: Search::default(),
        }
    }
}

/// A GPU that was found.
#[derive(Clone, Debug)]
pub struct FoundDevice {
    /// As `--device` takes it: `hip:0`.
    pub name: String,
    pub description: Description,
    /// What it runs; None for a processor that graphc does not compile for.
    pub target: Option<Target>,
}

/// A GPU.
pub struct GpuDevice {
    gpu: Arc<Gpu>,
    heap: Arc<Heap>,
    description: Description,
    target: Target,
    libraries: Search,
    collectives: Search,
    vendor: Vendor,
}

impl std::fmt::Debug for GpuDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuDevice")
            .field("name", &self.gpu.name)
            .field("arch", &self.description.arch)
            .finish_non_exhaustive()
    }
}

/// Lists the GPUs of a vendor; an empty list where its runtime sees none.
///
/// # Errors
/// `NotAvailable` without the vendor's runtime, with every place looked at; else what the runtime reports.
pub fn discover(search: &GpuSearch, vendor: Vendor) -> Result<Vec<FoundDevice>, RuntimeError> {
    let found = found(open_driver(search, vendor)?)?;
    Ok(found.into_iter().map(|(_, found)| found).collect())
}

fn open_driver(search: &GpuSearch, vendor: Vendor) -> Result<Arc<dyn Driver>, RuntimeError> {
    let opened: Result<Arc<dyn Driver>, NotFound> = match vendor {
        Vendor::Hip => hip::Hip::open(&search.hip).map(|hip| Arc::new(hip) as _),
        Vendor::Cuda => cuda::Cuda::open(&search.cuda).map(|cuda| Arc::new(cuda) as _),
    };
    opened.map_err(|error| {
        let install = match vendor {
            Vendor::Hip => "ROCm's HIP runtime",
            Vendor::Cuda => "NVIDIA's driver",
        };
        RuntimeError::NotAvailable {
            what: "a GPU".into(),
            reason: format!("{error}\ninstall {install}, or run on the CPU (--device cpu)"),
        }
    })
}

/// Every device, with its handle.
fn found(driver: Arc<dyn Driver>) -> Result<Vec<(Gpu, FoundDevice)>, RuntimeError> {
    let first = Gpu::new(driver.clone(), 0);
    let count = first.at("looking for devices", driver.devices())?;
    (0..count)
        .map(|ordinal| {
            let gpu = Gpu::new(driver.clone(), ordinal);
            let description = gpu.at("looking at the device", driver.describe(ordinal))?;
            let device = FoundDevice {
                name: gpu.name.clone(),
                target: Target::of_device(&description.arch),
                description,
            };
            Ok((gpu, device))
        })
        .collect()
}

impl GpuDevice {
    /// Opens a vendor's GPU with a number.
    ///
    /// # Errors
    /// `NotAvailable`: no runtime of the vendor (with every place looked at), no GPU, no such number, or a processor
    /// that graphc does not compile for.
    pub fn open(search: &GpuSearch, vendor: Vendor, ordinal: usize) -> Result<GpuDevice, RuntimeError> {
        let driver = open_driver(search, vendor)?;
        let (runtime, library) = (vendor.runtime(), driver.library().display().to_string());
        let mut devices = found(driver)?;
        let names: Vec<String> = devices.iter().map(|(_, d)| d.name.clone()).collect();
        if ordinal >= devices.len() {
            let reason = match names.is_empty() {
                true => format!("{runtime} ({library}) sees no GPU; run on the CPU (--device cpu)"),
                false => format!("{runtime} ({library}) sees {}", names.join(", ")),
            };
            return Err(RuntimeError::NotAvailable {
                what: format!("device {}:{ordinal}", vendor.name()),
                reason,
            });
        }
        let (gpu, found) = devices.swap_remove(ordinal);
        GpuDevice::new(gpu, found, search, vendor)
    }

    /// Opens the first GPU that runs code for a target.
    ///
    /// # Errors
    /// As [`GpuDevice::open`]; no GPU of that kind, with those that there are.
    pub fn for_target(search: &GpuSearch, target: &Target) -> Result<GpuDevice, RuntimeError> {
        let Some(vendor) = Vendor::of(target.platform) else {
            return Err(RuntimeError::NotAvailable {
                what: format!("a GPU for {target}"),
                reason: "it is no GPU".into(),
            });
        };
        let driver = open_driver(search, vendor)?;
        let (runtime, library) = (vendor.runtime(), driver.library().display().to_string());
        let devices = found(driver)?;
        let seen: Vec<String> = devices
            .iter()
            .map(|(_, d)| format!("{} ({})", d.name, d.description.arch))
            .collect();
        let fits = |d: &FoundDevice| d.target.is_some_and(|has| target.runs_on(&has));
        match devices.into_iter().find(|(_, d)| fits(d)) {
            Some((gpu, found)) => GpuDevice::new(gpu, found, search, vendor),
            None => Err(RuntimeError::NotAvailable {
                what: format!("a device for {target}"),
                reason: match seen.is_empty() {
                    true => format!("{runtime} ({library}) sees no GPU"),
                    false => format!("{runtime} ({library}) sees {}", seen.join(", ")),
                },
            }),
        }
    }

    fn new(gpu: Gpu, found: FoundDevice, search: &GpuSearch, vendor: Vendor) -> Result<GpuDevice, RuntimeError> {
        let Some(target) = found.target else {
            return Err(RuntimeError::NotAvailable {
                what: format!("device {}", found.name),
                reason: format!(
                    "it is a {} ({}), and programs are compiled for {}",
                    found.description.product,
                    found.description.arch,
                    ir::target::names().join(", ")
                ),
            });
        };
        let gpu = Arc::new(gpu);
        Ok(GpuDevice {
            heap: Arc::new(Heap::new(gpu.clone())),
            gpu,
            description: found.description,
            target,
            libraries: search.libraries.clone(),
            collectives: search.collectives.clone(),
            vendor,
        })
    }

    /// Loads one rank's part of a model.
    pub(crate) fn load_rank(
        &self,
        program: Arc<Program>,
        variant: usize,
        options: &LoadOptions,
        seat: rccl::Seat,
    ) -> Result<Arc<dyn Loaded>, RuntimeError> {
        let heap = self.heap.clone();
        let loaded = loaded::LoadedGpu::new(heap, &self.libraries, program, variant, options, Some(seat))?;
        Ok(Arc::new(loaded))
    }

    /// What to compile for: the device's processor. Code compiled without its features runs on it too.
    pub fn target(&self) -> Target {
        self.target
    }

    /// The device as its driver describes it.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Whose it is.
    pub fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// Its number among those that the vendor's runtime sees.
    pub fn ordinal(&self) -> usize {
        self.gpu.ordinal
    }

    /// Says which devices compute models together with this one.
    pub(crate) fn is_beside(&self, all: &[Arc<GpuDevice>]) {
        let others = all.iter().filter(|other| other.ordinal() != self.ordinal());
        self.gpu
            .is_beside(others.map(|other| Arc::downgrade(&other.gpu)).collect());
    }

    /// Where RCCL or NCCL is looked for.
    pub(crate) fn collectives(&self) -> &Search {
        &self.collectives
    }

    /// Free and all memory of the device in bytes.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn memory(&self) -> Result<(usize, usize), RuntimeError> {
        self.gpu.enter("memory")?;
        self.gpu.at("memory", self.gpu.driver.memory())
    }

    /// Memory that tensors on the device have and had.
    pub fn statistics(&self) -> MemoryStatistics {
        self.heap.statistics()
    }

    /// Gives memory that is kept for later tensors back to the driver, and says how many bytes that was.
    pub fn trim(&self) -> usize {
        self.heap.trim()
    }

    /// Makes a tensor of memory that something else owns: an app's own kernels, another framework (what dlpack hands
    /// over). It is never written, and `owner` is dropped with the last use of it.
    ///
    /// What fills the memory must be done, or wait for it on the stream that it runs on.
    ///
    /// # Safety
    /// `address` is of this device, the tensor's bytes lie there, row by row, and nothing writes or frees them while
    /// `owner` lives.
    pub unsafe fn borrow(
        &self,
        address: u64,
        dtype: ir::DType,
        shape: impl Into<Vec<usize>>,
        owner: impl std::any::Any + Send + Sync,
    ) -> DeviceTensor {
        let shape = shape.into();
        let bytes = dtype.bytes_for(shape.iter().product());
        let block = Block::foreign(&self.heap, address, bytes, Box::new(owner));
        DeviceTensor::new(dtype, shape, Memory::Gpu(block))
    }

    /// Gives the device up, instead of waiting for ever, once the host waited that long for it: for the end of a run, a
    /// tensor, a copy. That is a [`RuntimeError::TimedOut`]; from then on the device is lost. None waits for ever, as
    /// at first.
    ///
    /// With a timeout the host asks for the end of what it waits for, at first without a pause, later every
    /// millisecond. It is for work that graphc queued: a call that waits for an app's own kernels on the same device
    /// does so without it.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.gpu.set_timeout(timeout);
    }

    /// Waits for everything on the device: also for what others queued there.
    ///
    /// # Errors
    /// What went wrong on it.
    pub fn synchronize(&self) -> Result<(), RuntimeError> {
        self.gpu.enter("waiting for the device")?;
        self.gpu.settle("waiting for the device")?;
        self.gpu.at("waiting for the device", self.gpu.driver.synchronize())
    }
}

impl Device for GpuDevice {
    fn name(&self) -> &str {
        &self.gpu.name
    }

    fn product(&self) -> &str {
        &self.description.product
    }

    fn arch(&self) -> &str {
        &self.description.arch
    }

    fn driver(&self) -> &str {
        &self.description.driver
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        GpuDevice::set_timeout(self, timeout);
    }

    fn runs(&self, target: &Target) -> bool {
        target.runs_on(&self.target)
    }

    fn load(
        &self,
        program: Arc<Program>,
        variant: usize,
        options: &LoadOptions,
    ) -> Result<Arc<dyn Loaded>, RuntimeError> {
        let loaded = loaded::LoadedGpu::new(self.heap.clone(), &self.libraries, program, variant, options, None)?;
        Ok(Arc::new(loaded))
    }

    fn upload(&self, tensor: &ir::HostTensor) -> Result<DeviceTensor, RuntimeError> {
        loaded::upload(&self.heap, tensor)
    }
}
