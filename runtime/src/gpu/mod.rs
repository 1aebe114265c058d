//! Programs on GPUs: streams, memory, modules and events over one table of functions, which HIP fills.
//!
//! Before: a program whose variant has a code object for each kernel. [`Device::load`] does everything slow: it loads the
//! modules, copies the constants through pinned memory, opens the vendor libraries that the plan calls, and makes what one run
//! needs at the expected sizes. A run then copies its inputs into pinned memory, enqueues the plan's steps on one stream a lane
//! with an event where a step waits for another lane, and waits once.
//!
//! Invariant: nothing in flight outlives what it uses: a run waits for its streams before it gives them back, also after an
//! error.

mod constants;
mod context;
pub(crate) mod driver;
mod handles;
mod hip;
mod loaded;
mod prepare;
mod run;

use std::sync::Arc;

use dylib::Search;
use ir::{Program, Target};

use crate::device::{Device, LoadOptions, Loaded};
use crate::error::RuntimeError;
pub use driver::Description;
use driver::Driver;
use handles::Gpu;

/// Where libraries are looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuSearch {
    /// The HIP runtime.
    pub hip: Search,
    /// rocBLAS and its like; opened only where a plan calls them, after the HIP runtime has found a GPU.
    pub libraries: Search,
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
    description: Description,
    target: Target,
    libraries: Search,
}

impl std::fmt::Debug for GpuDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuDevice")
            .field("name", &self.gpu.name)
            .field("arch", &self.description.arch)
            .finish_non_exhaustive()
    }
}

/// Lists the GPUs that HIP sees; an empty list where it sees none.
///
/// # Errors
/// `NotAvailable` without a HIP runtime, with every place looked at; else what the runtime reports.
pub fn discover(search: &GpuSearch) -> Result<Vec<FoundDevice>, RuntimeError> {
    Ok(found(open_hip(search)?)?.into_iter().map(|(_, found)| found).collect())
}

fn open_hip(search: &GpuSearch) -> Result<Arc<dyn Driver>, RuntimeError> {
    match hip::Hip::open(&search.hip) {
        Ok(hip) => Ok(Arc::new(hip)),
        Err(error) => Err(RuntimeError::NotAvailable {
            what: "a GPU".into(),
            reason: format!("{error}\ninstall ROCm's HIP runtime, or run on the CPU (--device cpu)"),
        }),
    }
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
                target: description.arch.parse().ok(),
                description,
            };
            Ok((gpu, device))
        })
        .collect()
}

impl GpuDevice {
    /// Opens the GPU with a number.
    ///
    /// # Errors
    /// `NotAvailable`: no HIP runtime (with every place looked at), no GPU, no such number, or a processor that graphc does not
    /// compile for.
    pub fn open(search: &GpuSearch, ordinal: usize) -> Result<GpuDevice, RuntimeError> {
        let driver = open_hip(search)?;
        let library = driver.library().display().to_string();
        let mut devices = found(driver)?;
        let names: Vec<String> = devices.iter().map(|(_, d)| d.name.clone()).collect();
        if ordinal >= devices.len() {
            let reason = match names.is_empty() {
                true => format!("the HIP runtime ({library}) sees no GPU; run on the CPU (--device cpu)"),
                false => format!("the HIP runtime ({library}) sees {}", names.join(", ")),
            };
            return Err(RuntimeError::NotAvailable {
                what: format!("device hip:{ordinal}"),
                reason,
            });
        }
        let (gpu, found) = devices.swap_remove(ordinal);
        GpuDevice::new(gpu, found, search)
    }

    /// Opens the first GPU that runs code for a target.
    ///
    /// # Errors
    /// As [`GpuDevice::open`]; no GPU of that kind, with those that there are.
    pub fn for_target(search: &GpuSearch, target: &Target) -> Result<GpuDevice, RuntimeError> {
        let driver = open_hip(search)?;
        let library = driver.library().display().to_string();
        let devices = found(driver)?;
        let seen: Vec<String> = devices
            .iter()
            .map(|(_, d)| format!("{} ({})", d.name, d.description.arch))
            .collect();
        let fits = |d: &FoundDevice| d.target.is_some_and(|has| target.runs_on(&has));
        match devices.into_iter().find(|(_, d)| fits(d)) {
            Some((gpu, found)) => GpuDevice::new(gpu, found, search),
            None => Err(RuntimeError::NotAvailable {
                what: format!("a device for {target}"),
                reason: match seen.is_empty() {
                    true => format!("the HIP runtime ({library}) sees no GPU"),
                    false => format!("the HIP runtime ({library}) sees {}", seen.join(", ")),
                },
            }),
        }
    }

    fn new(gpu: Gpu, found: FoundDevice, search: &GpuSearch) -> Result<GpuDevice, RuntimeError> {
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
        Ok(GpuDevice {
            gpu: Arc::new(gpu),
            description: found.description,
            target,
            libraries: search.libraries.clone(),
        })
    }

    /// What to compile for: the device's processor. Code compiled without its features runs on it too.
    pub fn target(&self) -> Target {
        self.target
    }

    /// The device as its driver describes it.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Free and all memory of the device in bytes.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn memory(&self) -> Result<(usize, usize), RuntimeError> {
        self.gpu.enter("memory")?;
        self.gpu.at("memory", self.gpu.driver.memory())
    }
}

impl Device for GpuDevice {
    fn name(&self) -> &str {
        &self.gpu.name
    }

    fn runs(&self, target: &Target) -> bool {
        target.runs_on(&self.target)
    }

    fn load(
        &self,
        program: Arc<Program>,
        variant: usize,
        options: &LoadOptions,
    ) -> Result<Box<dyn Loaded>, RuntimeError> {
        let loaded = loaded::LoadedGpu::new(self.gpu.clone(), &self.libraries, program, variant, options)?;
        Ok(Box::new(loaded))
    }
}
