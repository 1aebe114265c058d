//! Where a model runs: `cpu`, a GPU by its number, or the first of these that is there.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ir::plan::Plan;
use ir::{Program, Target};
use runtime::cpu::CpuDevice;
use runtime::device::made_for;
use runtime::device::{Device, variant_for};
use runtime::gpu::{GpuDevice, Vendor};
use runtime::{Executable, LoadOptions, RankedDevice, RuntimeError};

use crate::error::{Error, Result};
use crate::options::Settings;

/// What was asked for: `cpu`, `hip` or `rocm` (the first GPU of AMD's), `hip:N` or `rocm:N`, `cuda` (the first of
/// NVIDIA's), `cuda:N`, `auto`; several for one model are `hip:0,1`, `cuda:0,1` and `cpu,cpu`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum DeviceChoice {
    #[default]
    Cpu,
    /// A GPU that the HIP runtime sees, by its number.
    Hip(usize),
    /// A GPU that the CUDA driver sees, by its number.
    Cuda(usize),
    /// Several GPUs that the HIP runtime sees, a rank each.
    HipRanks(Vec<usize>),
    /// Several GPUs that the CUDA driver sees, a rank each.
    CudaRanks(Vec<usize>),
    /// So many ranks on the CPU, to try out what is meant for GPUs.
    CpuRanks(u32),
    /// The first GPU, AMD's before NVIDIA's, or else the CPU, which is said.
    Auto,
}

impl FromStr for DeviceChoice {
    type Err = Error;
    fn from_str(text: &str) -> Result<DeviceChoice> {
        const KNOWN: &str = "known: cpu, hip or hip:N (an AMD GPU; rocm means the same), cuda or cuda:N (an NVIDIA GPU), auto (the first GPU, or \
                             else the CPU); several for one model: hip:0,1, cuda:0,1, cpu,cpu";
        let gpu = |numbers: &str, one: fn(usize) -> DeviceChoice, several: fn(Vec<usize>) -> DeviceChoice| {
            let numbers: std::result::Result<Vec<usize>, _> = numbers.split(',').map(str::parse).collect();
            match numbers.as_deref() {
                Ok([number]) => Ok(one(*number)),
                Ok(list) => Ok(several(list.to_vec())),
                Err(_) => Err(Error::Config(format!(
                    "device {text:?}: no number after the colon; {KNOWN}"
                ))),
            }
        };
        match text.split_once(':').unwrap_or((text, "0")) {
            ("hip" | "rocm", numbers) => gpu(numbers, DeviceChoice::Hip, DeviceChoice::HipRanks),
            ("cuda", numbers) => gpu(numbers, DeviceChoice::Cuda, DeviceChoice::CudaRanks),
            _ if text.contains(',') && text.split(',').all(|device| device == "cpu") => {
                Ok(DeviceChoice::CpuRanks(text.split(',').count() as u32))
            }
            _ if text == "cpu" => Ok(DeviceChoice::Cpu),
            _ if text == "auto" => Ok(DeviceChoice::Auto),
            _ if text.parse::<Target>().is_ok() => Err(Error::Config(format!(
                "device {text:?} is a target; a model is compiled for the device that it runs on: {KNOWN}; `--target {text} \
                 --emulate` runs on an emulated GPU"
            ))),
            _ => Err(Error::Config(format!("unknown device {text:?}; {KNOWN}"))),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Hip(number) => write!(f, "hip:{number}"),
            DeviceChoice::Cuda(number) => write!(f, "cuda:{number}"),
            DeviceChoice::HipRanks(numbers) => write!(f, "hip:{}", list(numbers)),
            DeviceChoice::CudaRanks(numbers) => write!(f, "cuda:{}", list(numbers)),
            DeviceChoice::CpuRanks(ranks) => f.write_str(&vec!["cpu"; *ranks as usize].join(",")),
            DeviceChoice::Auto => f.write_str("auto"),
        }
    }
}

fn list(numbers: &[usize]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the host's processor, as a device that lowers kernels for itself.
pub fn cpu_device() -> CpuDevice {
    crate::optimised::warn();
    CpuDevice::new(codegen_cpu::lowering)
}

/// A device that is there.
#[derive(Clone)]
pub struct OpenDevice {
    pub device: Arc<dyn Device>,
    /// What to compile for.
    pub target: Target,
    /// With `auto`, why it is the CPU.
    pub fallback: Option<String>,
}

impl fmt::Debug for OpenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenDevice")
            .field("device", &self.device.name())
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

impl OpenDevice {
    /// The host's processor.
    pub fn cpu() -> OpenDevice {
        OpenDevice {
            device: Arc::new(cpu_device()),
            target: Target::cpu(),
            fallback: None,
        }
    }

    /// Opens what was asked for. Only `auto` takes the CPU instead of a GPU.
    ///
    /// # Errors
    /// `NotAvailable` with what was looked for and where.
    pub fn open(choice: DeviceChoice, settings: &Settings) -> Result<OpenDevice> {
        let gpu = |vendor, number| -> Result<OpenDevice> {
            let gpu = GpuDevice::open(&settings.gpu_search(), vendor, number);
            let gpu = gpu.map_err(|error| with_note(error, settings.hidden_devices(vendor)))?;
            gpu.set_timeout(settings.timeout);
            Ok(OpenDevice {
                // Code that fixes no feature runs whatever the device's are, and is shared by all of them in the cache.
                target: gpu.target().processor(),
                device: Arc::new(gpu),
                fallback: None,
            })
        };
        match choice {
            DeviceChoice::Cpu => Ok(OpenDevice::cpu()),
            DeviceChoice::Hip(number) => gpu(Vendor::Hip, number),
            DeviceChoice::Cuda(number) => gpu(Vendor::Cuda, number),
            DeviceChoice::HipRanks(numbers) => OpenDevice::ranks_of(Vendor::Hip, &numbers, settings),
            DeviceChoice::CudaRanks(numbers) => OpenDevice::ranks_of(Vendor::Cuda, &numbers, settings),
            DeviceChoice::CpuRanks(ranks) => Ok(OpenDevice {
                device: Arc::new(RankedDevice::cpu(ranks, cpu_device())?),
                ..OpenDevice::cpu()
            }),
            DeviceChoice::Auto => {
                let mut reasons = Vec::new();
                for vendor in Vendor::ALL {
                    match gpu(vendor, 0) {
                        Ok(gpu) => return Ok(gpu),
                        Err(reason) => reasons.push(reason.to_string()),
                    }
                }
                Ok(OpenDevice {
                    fallback: Some(format!("running on the cpu: {}", reasons.join("\n"))),
                    ..OpenDevice::cpu()
                })
            }
        }
    }

    /// GPUs of one vendor that compute one model together, each given by its number.
    fn ranks_of(vendor: Vendor, numbers: &[usize], settings: &Settings) -> Result<OpenDevice> {
        // Before anything is opened twice.
        if let Some(at) = (1..numbers.len()).find(|at| numbers[..*at].contains(&numbers[*at])) {
            return Err(Error::Config(format!(
                "device {}:{}: {}:{} is there twice; each rank needs a device of its own",
                vendor.name(),
                list(numbers),
                vendor.name(),
                numbers[at]
            )));
        }
        let gpus = numbers.iter().map(|number| {
            let gpu = GpuDevice::open(&settings.gpu_search(), vendor, *number);
            let gpu = gpu.map_err(|error| with_note(error, settings.hidden_devices(vendor)))?;
            gpu.set_timeout(settings.timeout);
            Ok(Arc::new(gpu))
        });
        OpenDevice::of_gpus(gpus.collect::<Result<Vec<_>>>()?)
    }

    /// GPUs that compute one model together; the first is rank 0.
    ///
    /// # Errors
    /// As [`RankedDevice::gpus`].
    pub fn of_gpus(gpus: Vec<Arc<GpuDevice>>) -> Result<OpenDevice> {
        let ranked = RankedDevice::gpus(gpus)?;
        Ok(OpenDevice {
            target: ranked.devices()[0].target().processor(),
            device: Arc::new(ranked),
            fallback: None,
        })
    }

    /// How many devices it is.
    pub fn ranks(&self) -> u32 {
        self.device.ranks()
    }

    /// Loads a variant of a program.
    ///
    /// # Errors
    /// As [`Executable::load_on`]; where the device has too little memory, with the least that would do.
    pub fn load(&self, program: Arc<Program>, variant: usize, options: &LoadOptions) -> Result<Executable> {
        let loaded = Executable::load_on(self.device.as_ref(), program.clone(), variant, options);
        Ok(loaded.map_err(|error| with_least(error, &program.variants[variant].plan))?)
    }

    /// Returns the variant of a program that runs here.
    ///
    /// # Errors
    /// `NoVariant` with the targets that it was compiled for.
    pub fn variant(&self, program: &Program) -> Result<usize> {
        variant_for(program, self.device.as_ref()).map_err(|_| Error::NoVariant {
            wanted: match self.ranks() {
                1 => format!("{} ({})", self.device.name(), self.target),
                ranks => format!("{} ({}, {ranks} ranks)", self.device.name(), self.target),
            },
            have: program.variants.iter().map(|v| made_for(&v.plan)).collect(),
        })
    }
}

/// Adds to an error of memory that is not there what would do: weights that are streamed.
pub fn with_least(mut error: RuntimeError, plan: &Plan) -> RuntimeError {
    if let RuntimeError::OutOfDeviceMemory(short) = &mut error
        && let Some(planned) = short.planned
        && let Ok(least) = passes::stream::least(plan)
        && least < planned.peak + planned.weights
    {
        short.least = Some(least);
    }
    error
}

/// Adds to the reason why a device is not there.
fn with_note(error: RuntimeError, note: Option<String>) -> RuntimeError {
    match (error, note) {
        (RuntimeError::NotAvailable { what, reason }, Some(note)) => RuntimeError::NotAvailable {
            what,
            reason: format!("{reason}\n{note}"),
        },
        (error, _) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_and_mistakes_name_what_is_known() {
        for (text, choice) in [
            ("cpu", DeviceChoice::Cpu),
            ("hip", DeviceChoice::Hip(0)),
            ("hip:3", DeviceChoice::Hip(3)),
            ("rocm", DeviceChoice::Hip(0)),
            ("rocm:3", DeviceChoice::Hip(3)),
            ("cuda", DeviceChoice::Cuda(0)),
            ("cuda:1", DeviceChoice::Cuda(1)),
            ("auto", DeviceChoice::Auto),
            ("hip:0,1", DeviceChoice::HipRanks(vec![0, 1])),
            ("cuda:3,1,2", DeviceChoice::CudaRanks(vec![3, 1, 2])),
            ("cpu,cpu", DeviceChoice::CpuRanks(2)),
        ] {
            assert_eq!(text.replace("rocm", "hip").parse::<DeviceChoice>().unwrap(), choice);
            assert_eq!(text.parse::<DeviceChoice>().unwrap(), choice);
        }
        for text in [
            "abacus",
            "hip:",
            "hip:x",
            "hip:-1",
            "rocm:",
            "rocm:x",
            "rocm3",
            "cuda:",
            "cuda:x",
            "cpu:1",
            "gfx90a",
            "sm_90",
            "",
            "hip:0,",
            "cpu,hip",
            "hip:0,hip:1",
        ] {
            let error = text.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(error.contains("known: cpu, hip"), "{text}: {error}");
        }
    }

    #[test]
    fn without_a_gpu_only_auto_takes_the_cpu() {
        let mut settings = Settings::read(|_| None).unwrap();
        settings.hip = Some("/graphc/no/such/hip".into());
        settings.cuda = Some("/graphc/no/such/cuda".into());
        for (choice, place) in [
            (DeviceChoice::Hip(0), "/graphc/no/such/hip"),
            (DeviceChoice::Cuda(0), "/graphc/no/such/cuda"),
        ] {
            let error = OpenDevice::open(choice, &settings).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let text = error.to_string();
            assert!(text.contains(place) && text.contains("--device cpu"), "{text}");
        }
        let auto = OpenDevice::open(DeviceChoice::Auto, &settings).unwrap();
        assert_eq!(auto.device.name(), "cpu");
        let reason = auto.fallback.unwrap();
        for place in ["/graphc/no/such/hip", "/graphc/no/such/cuda"] {
            assert!(reason.contains(place), "{reason}");
        }
    }
}
