//! A loaded program that checks what it is given: names, element types, shapes and sizes.

use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use ir::dim::{Bindings, hints};
use ir::graph::{BindError, bind_shapes};
use ir::plan::Plan;
use ir::{HostTensor, Program, Storage, TensorType};

use crate::cpu::kernels::workspace::AlignedBuf;
use crate::device::{Device, LoadOptions, Loaded, MemoryReport, Profile, device_for};
use crate::error::{InputError, RuntimeError};

/// A program ready to run. Several threads may run it at once.
pub struct Executable {
    program: Arc<Program>,
    variant: usize,
    loaded: Box<dyn Loaded>,
    /// Sums over the runs so far, when profiling was asked for.
    times: Option<Mutex<(u32, Profile)>>,
}

/// The mean time of one step over the runs so far.
#[derive(Clone, Debug, PartialEq)]
pub struct StepProfile {
    /// The kernel, and what ran it.
    pub name: String,
    pub micros: f64,
}

impl Executable {
    /// Loads a variant of a program on the device of its target.
    ///
    /// # Errors
    /// No such variant, no device for its target, or what [`Device::load`] reports.
    pub fn load(program: Arc<Program>, variant: usize, options: &LoadOptions) -> Result<Executable, RuntimeError> {
        let device = device_for(&variant_of(&program, variant)?.plan)?;
        Executable::load_on(device.as_ref(), program, variant, options)
    }

    /// Loads a variant of a program on a device.
    ///
    /// # Errors
    /// No such variant, a device for another platform, or what [`Device::load`] reports.
    pub fn load_on(
        device: &dyn Device,
        program: Arc<Program>,
        variant: usize,
        options: &LoadOptions,
    ) -> Result<Executable, RuntimeError> {
        let plan = &variant_of(&program, variant)?.plan;
        if !device.runs(&plan.target) {
            return Err(RuntimeError::NotAvailable {
                what: format!("target {}", plan.target),
                reason: format!("device {} runs other plans", device.name()),
            });
        }
        let loaded = device.load(program.clone(), variant, options)?;
        Ok(Executable {
            program,
            variant,
            loaded,
            times: options.profile.then(Mutex::default),
        })
    }

    /// The plan that runs.
    pub fn plan(&self) -> &Plan {
        &self.program.variants[self.variant].plan
    }

    /// The program it was loaded from.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Runs once, into new tensors, in the order of the model's outputs.
    ///
    /// # Errors
    /// `Input` for what does not fit the model; else what the device reports.
    pub fn run(&self, inputs: &IndexMap<String, HostTensor>) -> Result<IndexMap<String, HostTensor>, RuntimeError> {
        self.run_profiled(inputs, None)
    }

    /// As [`Executable::run`], and the time of each step.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn run_profiled(
        &self,
        inputs: &IndexMap<String, HostTensor>,
        profile: Option<&mut Profile>,
    ) -> Result<IndexMap<String, HostTensor>, RuntimeError> {
        let bindings = self.bind(inputs)?;
        let mut outputs = self.allocate(&bindings)?;
        self.run_into(&bindings, inputs, &mut outputs, profile)?;
        outputs
            .into_iter()
            .map(|o| Ok((o.name.clone(), o.into_tensor())))
            .collect()
    }

    /// Checks inputs and returns the sizes that they imply.
    ///
    /// # Errors
    /// `Input`, which lists the model's inputs.
    pub fn bind(&self, inputs: &IndexMap<String, HostTensor>) -> Result<Bindings, RuntimeError> {
        let plan = self.plan();
        let wrong = |error: InputError| RuntimeError::Input {
            error,
            inputs: plan.inputs.iter().map(|p| format!("{}: {}", p.name, p.ty)).collect(),
        };
        if let Some(unknown) = inputs.keys().find(|n| !plan.inputs.iter().any(|p| p.name == **n)) {
            return Err(wrong(InputError::Unknown(unknown.clone())));
        }
        for port in &plan.inputs {
            let Some(tensor) = inputs.get(&port.name) else {
                return Err(wrong(InputError::Missing(port.name.clone())));
            };
            if tensor.dtype != port.ty.dtype {
                return Err(wrong(InputError::DType {
                    name: port.name.clone(),
                    got: tensor.dtype,
                    declared: port.ty.dtype,
                }));
            }
            let expected = tensor.dtype.bytes_for(tensor.elements());
            if tensor.bytes.len() != expected {
                return Err(wrong(InputError::Bytes {
                    name: port.name.clone(),
                    got: tensor.bytes.len(),
                    expected,
                }));
            }
        }
        let declared: Vec<(&str, &TensorType)> = plan.inputs.iter().map(|p| (p.name.as_str(), &p.ty)).collect();
        let shapes: IndexMap<&str, &[usize]> = inputs.iter().map(|(n, t)| (n.as_str(), t.shape.as_slice())).collect();
        let bindings = bind_shapes(&plan.symbols, &declared, &shapes)
            .map_err(|error: BindError| wrong(InputError::Shape(error)))?;
        plan.check_sizes(&bindings)?;
        Ok(bindings)
    }

    /// Makes memory for the outputs at the given sizes, to be used for many runs.
    ///
    /// # Errors
    /// A size that does not evaluate, or is more than the system gives.
    pub fn allocate(&self, bindings: &Bindings) -> Result<Vec<OutputBuffer>, RuntimeError> {
        self.plan()
            .outputs
            .iter()
            .map(|port| {
                let shape = port
                    .ty
                    .shape
                    .eval(bindings)?
                    .into_iter()
                    .map(|d| usize::try_from(d).unwrap_or(0))
                    .collect::<Vec<_>>();
                let asked = usize::try_from(port.ty.bytes().eval(bindings)?).unwrap_or(0);
                let bytes = AlignedBuf::try_new(asked).ok_or(RuntimeError::NoMemory { asked })?;
                Ok(OutputBuffer {
                    name: port.name.clone(),
                    dtype: port.ty.dtype,
                    shape,
                    bytes,
                })
            })
            .collect()
    }

    /// Runs once into given memory. With sizes that ran before, this allocates nothing that grows with them.
    ///
    /// # Errors
    /// As [`Executable::run`]; `inputs` must be those that gave `bindings`.
    pub fn run_into(
        &self,
        bindings: &Bindings,
        inputs: &IndexMap<String, HostTensor>,
        outputs: &mut [OutputBuffer],
        profile: Option<&mut Profile>,
    ) -> Result<(), RuntimeError> {
        let plan = self.plan();
        let mut given: smallvec::SmallVec<[&[u8]; 8]> = smallvec::SmallVec::new();
        for port in &plan.inputs {
            let Some(tensor) = inputs.get(&port.name) else {
                return Err(RuntimeError::Input {
                    error: InputError::Missing(port.name.clone()),
                    inputs: plan.inputs.iter().map(|p| format!("{}: {}", p.name, p.ty)).collect(),
                });
            };
            given.push(&tensor.bytes);
        }
        let mut room: smallvec::SmallVec<[&mut [u8]; 8]> = smallvec::SmallVec::new();
        for output in outputs.iter_mut() {
            room.push(output.as_mut());
        }
        let Some(times) = self.times.as_ref().filter(|_| profile.is_none()) else {
            return self.loaded.run(bindings, &given, &mut room, profile);
        };
        let mut run = Profile::default();
        self.loaded.run(bindings, &given, &mut room, Some(&mut run))?;
        let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
        times.0 += 1;
        if times.1.steps.len() == run.steps.len() {
            for (sum, step) in times.1.steps.iter_mut().zip(run.steps) {
                sum.time += step.time;
            }
        } else {
            *times = (1, run);
        }
        Ok(())
    }

    /// The mean time of each step over the runs so far; empty unless [`LoadOptions::profile`] was set.
    pub fn profile(&self) -> Vec<StepProfile> {
        let Some(times) = &self.times else { return Vec::new() };
        let times = times.lock().unwrap_or_else(PoisonError::into_inner);
        times
            .1
            .steps
            .iter()
            .map(|s| StepProfile {
                name: format!("{} [{}]", s.name, s.engine),
                micros: s.time.as_secs_f64() * 1e6 / f64::from(times.0.max(1)),
            })
            .collect()
    }

    /// Memory at the given sizes.
    ///
    /// # Errors
    /// A size that does not evaluate.
    pub fn memory(&self, bindings: &Bindings) -> Result<MemoryReport, RuntimeError> {
        self.loaded.memory(bindings)
    }

    /// Memory at the symbols' hints.
    ///
    /// # Errors
    /// As [`Executable::memory`].
    pub fn memory_at_hints(&self) -> Result<MemoryReport, RuntimeError> {
        self.loaded.memory(&hints(&self.plan().symbols))
    }
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executable")
            .field("program", &self.program.name)
            .field("target", &self.plan().target)
            .finish_non_exhaustive()
    }
}

fn variant_of(program: &Program, variant: usize) -> Result<&ir::program::Variant, RuntimeError> {
    program.variants.get(variant).ok_or_else(|| {
        let known: Vec<String> = program.variants.iter().map(|v| v.plan.target.to_string()).collect();
        RuntimeError::Program(format!(
            "there is no variant {variant}; the program was compiled for {}",
            known.join(", ")
        ))
    })
}

/// Memory of one output, aligned to 64 bytes.
#[derive(Debug)]
pub struct OutputBuffer {
    pub name: String,
    pub dtype: ir::DType,
    pub shape: Vec<usize>,
    bytes: AlignedBuf,
}

impl OutputBuffer {
    /// Hands the bytes over as a tensor, without copying.
    pub fn into_tensor(self) -> HostTensor {
        HostTensor {
            dtype: self.dtype,
            shape: self.shape,
            bytes: Storage::new(Owned(self.bytes)),
        }
    }
}

impl AsRef<[u8]> for OutputBuffer {
    fn as_ref(&self) -> &[u8] {
        bytes_of(&self.bytes)
    }
}

impl AsMut<[u8]> for OutputBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the buffer owns its bytes, all initialised, and is borrowed for the slice's life.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.bytes.len()) }
    }
}

struct Owned(AlignedBuf);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        bytes_of(&self.0)
    }
}

fn bytes_of(buf: &AlignedBuf) -> &[u8] {
    // SAFETY: the buffer owns its bytes, all initialised; it is borrowed for the slice's life.
    unsafe { std::slice::from_raw_parts(buf.as_ptr(), buf.len()) }
}
