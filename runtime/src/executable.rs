//! A loaded program that checks what it is given: names, element types, shapes and sizes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indexmap::IndexMap;
use ir::dim::{Bindings, hints};
use ir::graph::{BindError, bind_shapes};
use ir::library::Algorithm;
use ir::plan::{Plan, Port, StepId};
use ir::{HostTensor, Program, Storage, TensorType};
use smallvec::SmallVec;

use crate::checks::{check_files, check_memory};
use crate::cpu::kernels::workspace::AlignedBuf;
use crate::device::{Device, LoadOptions, Loaded, MemoryReport, RunStatistics, RunTimes};
use crate::error::{InputError, RuntimeError};
use crate::pending::Pending;
use crate::tensor::{DeviceTensor, Given, Wanted, Where};

/// Outputs of more bytes are only made where the machine has them.
const ASKED_FOR: usize = 256 << 20;
/// Sets of shapes whose sizes are remembered.
const BOUND_SHAPES: usize = 8;

/// An input that is bytes of the caller's: its type, its shape, and how many bytes there are.
#[derive(Clone, Copy, Debug)]
pub struct InputBytes<'a> {
    pub dtype: ir::DType,
    pub shape: &'a [usize],
    pub bytes: usize,
}

impl<'a> InputBytes<'a> {
    fn of(given: &'a Given) -> InputBytes<'a> {
        let (dtype, shape) = given.ty();
        let bytes = given.bytes();
        InputBytes { dtype, shape, bytes }
    }
}

/// A program ready to run. Several threads may run it at once.
pub struct Executable {
    program: Arc<Program>,
    variant: usize,
    loaded: Arc<dyn Loaded>,
    /// The shapes of the last runs' inputs, with the sizes that they imply; most recently used last.
    bound: Mutex<Vec<(Vec<Vec<usize>>, Arc<Bindings>)>>,
}

impl Executable {
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
        check_files(&program, &[])?;
        Ok(Executable {
            program: loaded.face().unwrap_or(program),
            variant,
            loaded,
            bound: Mutex::default(),
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
        times: Option<&mut RunTimes>,
    ) -> Result<IndexMap<String, HostTensor>, RuntimeError> {
        let bindings = self.bind(inputs)?;
        let mut outputs = self.allocate(&bindings)?;
        self.run_into(&bindings, inputs, &mut outputs, times)?;
        outputs.truncate(self.plan().results().len());
        outputs
            .into_iter()
            .map(|o| Ok((o.name.clone(), o.into_tensor())))
            .collect()
    }

    /// Begins a run and does not wait for it. Outputs are made where they are wanted.
    ///
    /// # Errors
    /// As [`Executable::run`]; a tensor that is on another device, one that is donated while others see it, or a place
    /// for an output that the model does not have.
    pub fn submit<'a>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, Given)>,
        wanted: &Wanted,
    ) -> Result<Pending, RuntimeError> {
        let places = self.places(wanted)?;
        self.submit_ports(self.by_port(inputs)?, places)
    }

    /// Inputs in the order of the ports; None for those that are not given.
    pub(crate) fn by_port<'a>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, Given)>,
    ) -> Result<SmallVec<[Option<Given>; 8]>, RuntimeError> {
        let ports = &self.plan().inputs;
        let mut given: SmallVec<[Option<Given>; 8]> = ports.iter().map(|_| None).collect();
        for (name, value) in inputs {
            match ports.iter().position(|port| port.name == name) {
                Some(port) => given[port] = Some(value),
                None => return Err(self.wrong(InputError::Unknown(name.to_owned()))),
            }
        }
        Ok(given)
    }

    /// Where each result is wanted, in the order of the ports.
    pub(crate) fn places(&self, wanted: &Wanted) -> Result<SmallVec<[Where; 8]>, RuntimeError> {
        let results = self.plan().results();
        if let Some(unknown) = wanted.named().find(|n| !results.iter().any(|p| p.name == *n)) {
            return Err(self.wrong(InputError::NoOutput(unknown.to_owned())));
        }
        Ok(results.iter().map(|port| wanted.of(&port.name)).collect())
    }

    /// As [`Executable::submit`], with inputs and the places of results in the order of the ports.
    pub(crate) fn submit_ports(
        &self,
        given: SmallVec<[Option<Given>; 8]>,
        mut places: SmallVec<[Where; 8]>,
    ) -> Result<Pending, RuntimeError> {
        let plan = self.plan();
        let mut inputs = Vec::with_capacity(given.len());
        for (port, value) in plan.inputs.iter().zip(given) {
            match value {
                Some(value) => inputs.push(value),
                None => return Err(self.wrong(InputError::Missing(port.name.clone()))),
            }
        }
        let bindings = self.bind_ports(&inputs)?;
        // Conditions are read when the run is done, so they come to the host.
        places.extend(plan.conditions().map(|_| Where::Host));
        let running = self.loaded.clone().submit(&bindings, inputs, &places)?;
        Ok(Pending::new(self.program.clone(), self.variant, bindings, running))
    }

    /// The sizes that inputs in the order of the ports imply.
    fn bind_ports(&self, inputs: &[Given]) -> Result<Arc<Bindings>, RuntimeError> {
        let described: SmallVec<[InputBytes<'_>; 8]> = inputs.iter().map(InputBytes::of).collect();
        self.bind_bytes(&described)
    }

    /// Checks inputs in the order of the plan's ports and returns the sizes that they imply. Those of the last sets of
    /// shapes are remembered.
    ///
    /// # Errors
    /// As [`Executable::bind`].
    pub fn bind_bytes(&self, inputs: &[InputBytes<'_>]) -> Result<Arc<Bindings>, RuntimeError> {
        let ports = &self.plan().inputs;
        if let Some(missing) = ports.get(inputs.len()) {
            return Err(self.wrong(InputError::Missing(missing.name.clone())));
        }
        for (port, input) in ports.iter().zip(inputs) {
            self.check_input(&port.name, &port.ty, (input.dtype, input.shape), input.bytes)?;
        }
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |shapes: &[Vec<usize>]| shapes.iter().zip(inputs).all(|(shape, input)| shape == input.shape);
        if let Some(at) = bound.iter().rposition(|(shapes, _)| same(shapes)) {
            bound[at..].rotate_left(1);
            if let Some((_, bindings)) = bound.last() {
                return Ok(bindings.clone());
            }
        }
        drop(bound);
        let shapes: IndexMap<&str, &[usize]> = ports
            .iter()
            .zip(inputs)
            .map(|(port, input)| (port.name.as_str(), input.shape))
            .collect();
        let bindings = Arc::new(self.bind_shapes(&shapes)?);
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        if bound.len() >= BOUND_SHAPES {
            bound.remove(0);
        }
        let shapes = inputs.iter().map(|input| input.shape.to_vec()).collect();
        bound.push((shapes, bindings.clone()));
        Ok(bindings)
    }

    /// Runs once on bytes, into the caller's memory: inputs and results in the order of the plan's ports, with the
    /// sizes that the ports have at `bindings` ([`Executable::bind_bytes`]). The CPU copies nothing that begins at a
    /// multiple of its elements' size.
    ///
    /// # Errors
    /// As [`Executable::run`]; after an error the results' bytes are undefined.
    pub fn run_bytes(
        &self,
        bindings: &Bindings,
        inputs: &[&[u8]],
        results: &mut [&mut [u8]],
    ) -> Result<(), RuntimeError> {
        let plan = self.plan();
        let mut conditions: SmallVec<[Vec<u8>; 4]> = SmallVec::new();
        for (_, port) in plan.conditions() {
            let asked = usize::try_from(port.ty.bytes().eval(bindings)?).unwrap_or(0);
            conditions.push(vec![0; asked]);
        }
        // Kernels write whole elements.
        let mut moved: SmallVec<[(usize, OutputBuffer); 1]> = SmallVec::new();
        for (index, (port, bytes)) in plan.results().iter().zip(results.iter()).enumerate() {
            let unit = (port.ty.dtype.bits() as usize / 8).max(1);
            if !(bytes.as_ptr() as usize).is_multiple_of(unit) {
                moved.push((index, OutputBuffer::of(port, Vec::new(), bytes.len())?));
            }
        }
        let mut apart = moved.iter_mut().peekable();
        let mut room: SmallVec<[&mut [u8]; 8]> = SmallVec::new();
        for (index, bytes) in results.iter_mut().enumerate() {
            match apart.next_if(|(moved, _)| *moved == index) {
                Some((_, buffer)) => room.push(buffer.as_mut()),
                None => room.push(bytes),
            }
        }
        room.extend(conditions.iter_mut().map(Vec::as_mut_slice));
        self.loaded.run(bindings, inputs, &mut room, None)?;
        check_files(&self.program, inputs)?;
        check_conditions(plan, &room, bindings)?;
        drop(room);
        for (index, buffer) in &moved {
            results[*index].copy_from_slice(buffer.as_ref());
        }
        Ok(())
    }

    /// Copies a tensor to the device that the program is on.
    ///
    /// # Errors
    /// Memory that is not there, or what the device reports.
    pub fn upload(&self, tensor: &HostTensor) -> Result<DeviceTensor, RuntimeError> {
        self.loaded.upload(tensor)
    }

    /// Makes a tensor of memory of the device that something else owns; see [`crate::gpu::GpuDevice::borrow`].
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// `Unsupported` where the device is no single GPU.
    pub unsafe fn borrow(
        &self,
        address: u64,
        dtype: ir::DType,
        shape: impl Into<Vec<usize>>,
        owner: Box<dyn std::any::Any + Send + Sync>,
    ) -> Result<DeviceTensor, RuntimeError> {
        // SAFETY: as the caller says.
        unsafe { self.loaded.borrow(address, dtype, shape.into(), owner) }
    }

    pub(crate) fn wrong(&self, error: InputError) -> RuntimeError {
        RuntimeError::input(error, &self.plan().inputs)
    }

    pub(crate) fn check_input(
        &self,
        name: &str,
        declared: &TensorType,
        (dtype, shape): (ir::DType, &[usize]),
        got: usize,
    ) -> Result<(), RuntimeError> {
        if dtype != declared.dtype {
            return Err(self.wrong(InputError::DType {
                name: name.to_owned(),
                got: dtype,
                declared: declared.dtype,
            }));
        }
        let expected = dtype.bytes_for(shape.iter().product());
        if got != expected {
            return Err(self.wrong(InputError::Bytes {
                name: name.to_owned(),
                got,
                expected,
            }));
        }
        Ok(())
    }

    fn bind_shapes(&self, shapes: &IndexMap<&str, &[usize]>) -> Result<Bindings, RuntimeError> {
        let plan = self.plan();
        let declared: Vec<(&str, &TensorType)> = plan.inputs.iter().map(|p| (p.name.as_str(), &p.ty)).collect();
        let bindings = bind_shapes(&plan.symbols, &declared, shapes)
            .map_err(|error: BindError| self.wrong(InputError::Shape(error)))?;
        plan.check_sizes(&bindings)?;
        Ok(bindings)
    }

    /// Checks inputs and returns the sizes that they imply.
    ///
    /// # Errors
    /// `Input`, which lists the model's inputs.
    pub fn bind(&self, inputs: &IndexMap<String, HostTensor>) -> Result<Bindings, RuntimeError> {
        let plan = self.plan();
        if let Some(unknown) = inputs.keys().find(|n| !plan.inputs.iter().any(|p| p.name == **n)) {
            return Err(self.wrong(InputError::Unknown(unknown.clone())));
        }
        for port in &plan.inputs {
            let Some(tensor) = inputs.get(&port.name) else {
                return Err(self.wrong(InputError::Missing(port.name.clone())));
            };
            self.check_input(&port.name, &port.ty, (tensor.dtype, &tensor.shape), tensor.bytes.len())?;
        }
        let shapes: IndexMap<&str, &[usize]> = inputs.iter().map(|(n, t)| (n.as_str(), t.shape.as_slice())).collect();
        self.bind_shapes(&shapes)
    }

    /// Makes memory for the outputs at the given sizes, to be used for many runs; that of the plan's conditions comes
    /// last.
    ///
    /// # Errors
    /// A size that does not evaluate, or is more than the system gives.
    pub fn allocate(&self, bindings: &Bindings) -> Result<Vec<OutputBuffer>, RuntimeError> {
        let mut all = 0usize;
        for port in &self.plan().outputs {
            let bytes = port.ty.bytes().eval(bindings)?;
            all = all.saturating_add(usize::try_from(bytes).unwrap_or(0));
        }
        // Asking takes longer than making a few outputs does.
        if all > ASKED_FOR {
            check_memory(all)?;
        }
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
                OutputBuffer::of(port, shape, asked)
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
        times: Option<&mut RunTimes>,
    ) -> Result<(), RuntimeError> {
        let plan = self.plan();
        let mut given: SmallVec<[&[u8]; 8]> = SmallVec::new();
        for port in &plan.inputs {
            let Some(tensor) = inputs.get(&port.name) else {
                return Err(self.wrong(InputError::Missing(port.name.clone())));
            };
            given.push(&tensor.bytes);
        }
        let mut room: SmallVec<[&mut [u8]; 8]> = SmallVec::new();
        for output in outputs.iter_mut() {
            room.push(output.as_mut());
        }
        self.loaded.run(bindings, &given, &mut room, times)?;
        check_files(&self.program, &given)?;
        check_conditions(plan, &room, bindings)
    }

    /// What the runs so far took besides running.
    pub fn statistics(&self) -> RunStatistics {
        self.loaded.statistics()
    }

    /// Gives memory back that no run and no tensor needs now, and says how many bytes of the device that was.
    pub fn trim(&self) -> usize {
        self.loaded.trim()
    }

    /// The host's time of a run's launches at the symbols' hints in a loop of nothing else: the driver's part of a run
    /// without a graph. The median of `turns`; None where there are no launches.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn bare_launches(&self, turns: usize) -> Result<Option<Duration>, RuntimeError> {
        self.loaded.bare_launches(&hints(&self.plan().symbols), turns)
    }

    /// Lists the algorithms that libraries offer for the plan's calls at some sizes, by step, the one that the library
    /// would choose first. A plan names one in its call ([`ir::plan::Work::Call`]).
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn algorithms(&self, bindings: &Bindings) -> Result<Vec<(StepId, Vec<Algorithm>)>, RuntimeError> {
        self.loaded.algorithms(bindings)
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

/// Looks at the conditions that a run has computed.
fn check_conditions(plan: &Plan, outputs: &[&mut [u8]], sizes: &Bindings) -> Result<(), RuntimeError> {
    let conditions = outputs.iter().skip(plan.results().len());
    match plan.failed_condition(conditions.map(|bytes| Some(&**bytes)), sizes) {
        Some(failed) => Err(RuntimeError::of_condition(failed)),
        None => Ok(()),
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
    fn of(port: &Port, shape: Vec<usize>, asked: usize) -> Result<OutputBuffer, RuntimeError> {
        Ok(OutputBuffer {
            name: port.name.clone(),
            dtype: port.ty.dtype,
            shape,
            bytes: AlignedBuf::try_new(asked).ok_or_else(|| RuntimeError::no_memory(asked))?,
        })
    }

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
