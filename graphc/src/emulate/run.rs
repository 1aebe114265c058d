//! One plan on one emulated GPU: buffers in its memory, steps in the plan's order.

use std::sync::Arc;

use emu::timing::gpu_of;
use emu::{Arch, CodeObject, Counters, Disassembler, Gpu, Kernel, LaunchOptions, TimingOptions};
use indexmap::IndexMap;
use ir::dim::Bindings;
use ir::graph::{Check, Constant, bind_shapes};
use ir::kernel::eval::evaluate_for;
use ir::plan::{BufferId, KernelId, Place, Plan, Port, Step, StepId, Work};
use ir::{ConstId, HostTensor, Program, Table, TensorType};

use super::EmulateError;
use super::calls::{CallTimer, CallTimes, SizedCall};
use super::check::{self, Unchecked, Verdict};
use super::counted::{self, Counted};
use super::timed::{TimedLaunch, TimedStep, TimedWork};
use crate::options::Settings;

type Result<T> = std::result::Result<T, EmulateError>;

/// How a plan is emulated.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of device memory.
    pub memory: u64,
    /// What each launch checks.
    pub launch: LaunchOptions,
    /// Compare the first launch of each kernel with the reference evaluator where it takes at most this many points;
    /// None compares nothing.
    pub check: Option<u64>,
    /// Predict the time of each launch from a sample of its workgroups; what buffers hold afterwards is of no use.
    pub time: Option<TimingOptions>,
    /// What times library calls, or why they are not timed.
    pub calls: std::result::Result<CallTimer, String>,
}

impl Options {
    /// Returns what the environment's settings say of emulation, the rest as by default.
    pub fn of(settings: &Settings) -> Options {
        let mut options = Options::default();
        options.launch.instruction_limit = settings.emulator_limit;
        options
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memory: 16 << 30,
            launch: LaunchOptions::default(),
            check: None,
            time: None,
            calls: Err("nothing was named that times library calls".to_owned()),
        }
    }
}

/// A program's variant, loaded on an emulated GPU.
pub struct Emulator<'a> {
    plan: &'a Plan,
    gpu: Gpu,
    kernels: Table<KernelId, Kernel>,
    constants: &'a Table<ConstId, Constant>,
    options: Options,
}

/// What one launch did.
#[derive(Clone, Debug)]
pub struct Launched {
    pub step: StepId,
    pub kernel: KernelId,
    pub grid: [u32; 3],
    pub block: u32,
    pub counters: Counters,
}

/// What a run gave.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub outputs: IndexMap<String, HostTensor>,
    /// In the order of the steps; launches with an empty grid are left out.
    pub launches: Vec<Launched>,
    /// Kernels compared with the evaluator, in the order of their first launch; with [`Options::check`].
    pub verdicts: Vec<Verdict>,
    /// Kernels that were not compared, and why.
    pub unchecked: Vec<Unchecked>,
    /// The predicted time of each step that takes one, in the order of the steps; with [`Options::time`].
    pub timed: Vec<TimedStep>,
}

impl<'a> Emulator<'a> {
    /// Loads the code objects of a variant, whose index must be one of the program's.
    ///
    /// # Errors
    /// A target that the emulator does not know, a library call, or a code object that is missing or does not load.
    pub fn load(
        program: &'a Program,
        variant: usize,
        disassembler: &Arc<dyn Disassembler>,
        options: Options,
    ) -> Result<Emulator<'a>> {
        let variant = &program.variants[variant];
        let plan = &variant.plan;
        let target = plan.target.name.to_string();
        let arch = Arch::by_name(&target).ok_or_else(|| EmulateError::UnknownTarget {
            target,
            known: emu::arch::ARCHES.iter().map(|arch| arch.name).collect(),
        })?;
        for (step, s) in plan.steps.iter() {
            // Where a kernel does the same at other sizes, it runs here at all.
            if let Work::Call { call, .. } = &s.work
                && options.time.is_none()
                && s.kernels().next().is_none()
            {
                return Err(EmulateError::LibraryCall {
                    step,
                    call: call.name().to_owned(),
                });
            }
        }
        // Times are those of a GPU.
        let arch = match &options.time {
            Some(_) => gpu_of(arch),
            None => arch,
        };
        let gpu = Gpu::new(arch, options.memory);
        let mut kernels = Table::new();
        for (id, kernel) in plan.kernels.iter() {
            let name = || kernel.name.clone();
            let failed = |error| EmulateError::Load {
                kernel: kernel.name.clone(),
                error,
            };
            let code = variant.code[id]
                .as_ref()
                .ok_or_else(|| EmulateError::NotCompiled { kernel: name() })?;
            let object = CodeObject::load_for(code, arch).map_err(failed)?;
            let module = gpu.load(object, disassembler.clone()).map_err(failed)?;
            kernels.push(module.kernel(&variant.sources[id].entry).map_err(failed)?);
        }
        Ok(Emulator {
            plan,
            gpu,
            kernels,
            constants: &program.constants,
            options,
        })
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Sums the launches of each kernel, in the order of the plan's kernels.
    pub fn counted(&self, launches: &[Launched]) -> Vec<Counted> {
        counted::by_kernel(self.plan, self.gpu.arch(), launches, |id| self.kernels[id].clone())
    }

    /// The kernel as the emulator holds it.
    pub fn kernel(&self, id: KernelId) -> &Kernel {
        &self.kernels[id]
    }

    /// Runs the plan once.
    ///
    /// # Errors
    /// Inputs that do not fit, memory that runs out, or the first fault of a launch.
    pub fn run(&self, inputs: &IndexMap<String, HostTensor>) -> Result<Outcome> {
        let plan = self.plan;
        for port in &plan.inputs {
            let problem = match inputs.get(&port.name) {
                None => "is not given".to_owned(),
                Some(t) if t.dtype != port.ty.dtype => format!("is {}, the model declares {}", t.dtype, port.ty.dtype),
                Some(_) => continue,
            };
            return Err(EmulateError::Input {
                input: port.name.clone(),
                reason: problem,
            });
        }
        let declared: Vec<(&str, &TensorType)> = plan.inputs.iter().map(|p| (p.name.as_str(), &p.ty)).collect();
        let shapes = inputs.iter().map(|(n, t)| (n.as_str(), t.shape.as_slice())).collect();
        let bindings = bind_shapes(&plan.symbols, &declared, &shapes)?;
        plan.check_sizes(&bindings)?;
        let mut run = Run {
            emulator: self,
            bindings,
            buffers: Buffers::default(),
            outcome: Outcome::default(),
        };
        let result = run.all(inputs);
        run.free();
        // What was computed of missing bytes is no result, nor the fault that it may have led to.
        let weights = self.constants.values().map(|constant| &constant.tensor.bytes[..]);
        ir::mapped::check(weights.chain(inputs.values().map(|tensor| &tensor.bytes[..])))?;
        result.map(|()| run.outcome)
    }
}

#[derive(Default)]
struct Buffers {
    /// The address of each buffer.
    addresses: IndexMap<BufferId, u64>,
    /// What was allocated.
    owned: Vec<u64>,
}

struct Run<'a> {
    emulator: &'a Emulator<'a>,
    bindings: Bindings,
    buffers: Buffers,
    outcome: Outcome,
}

impl Run<'_> {
    fn all(&mut self, inputs: &IndexMap<String, HostTensor>) -> Result<()> {
        let plan = self.emulator.plan;
        self.allocate()?;
        for port in &plan.inputs {
            self.write(port.buffer, &inputs[&port.name])?;
        }
        for (id, buffer) in plan.buffers.iter() {
            if let Some(constant) = buffer.place.constant() {
                self.write(id, &self.emulator.constants[constant].tensor)?;
            }
        }
        let calls = match &self.emulator.options.time {
            Some(timing) => self.calls(timing)?,
            None => IndexMap::new(),
        };
        for (step, s) in plan.steps.iter() {
            match self.work(s)? {
                Work::Launch { kernel, args } => self.launch(step, *kernel, args)?,
                Work::Copy { from, to } => {
                    let bytes = self.bytes(*to)?.min(self.bytes(*from)?);
                    let copied = self
                        .memory()
                        .copy(self.buffers.addresses[to], self.buffers.addresses[from], bytes);
                    copied.map_err(|error| self.memory_error(*to, error))?;
                    if self.emulator.options.time.is_some() {
                        let micros = emu::timing::copy_micros(self.emulator.gpu.arch(), bytes).unwrap_or(0.0);
                        self.outcome.timed.push(TimedStep {
                            step,
                            micros,
                            work: TimedWork::Copy,
                        });
                    }
                }
                Work::Call { call, .. } => match calls.get(&step) {
                    Some(kernels) => self.outcome.timed.push(TimedStep {
                        step,
                        micros: kernels.iter().flat_map(|k| k.iter()).map(|report| report.micros).sum(),
                        work: TimedWork::Call {
                            call: call.name(),
                            kernels: kernels.clone(),
                        },
                    }),
                    None => {
                        return Err(EmulateError::LibraryCall {
                            step,
                            call: call.name().to_owned(),
                        });
                    }
                },
            }
        }
        for (check, port) in plan.conditions() {
            let value = self.result(port)?;
            if let Some(failed) = check.failure(&port.name, &value.bytes, &self.bindings) {
                return Err(match check {
                    Check::Holds => EmulateError::Condition(failed),
                    Check::Indices(_) => EmulateError::Index(failed),
                });
            }
        }
        for port in plan.results() {
            let tensor = self.result(port)?;
            self.outcome.outputs.insert(port.name.clone(), tensor);
        }
        Ok(())
    }

    /// What a step does at the run's sizes. Where that is a call and none is timed, it is the kernel that does the same
    /// at the sizes next to these: no library runs here.
    fn work<'s>(&self, step: &'s Step) -> Result<&'s Work> {
        let chosen = step.chosen(&self.bindings)?;
        let works: Vec<&Work> = step.works().collect();
        let work = works.get(chosen).copied().unwrap_or(&step.work);
        if work.library_call().is_none() || self.emulator.options.time.is_some() {
            return Ok(work);
        }
        let (before, after) = works.split_at(chosen.min(works.len()));
        let mut near = before.iter().rev().chain(after);
        Ok(near.find(|other| other.kernel().is_some()).copied().unwrap_or(work))
    }

    /// Times the plan's library calls, each set of sizes once.
    fn calls(&self, timing: &TimingOptions) -> Result<IndexMap<StepId, CallTimes>> {
        let (plan, options) = (self.emulator.plan, &self.emulator.options);
        let (distinct, of) = SizedCall::of_plan(plan, &self.bindings)?;
        let times = match &options.calls {
            Ok(timer) => timer.time(&plan.target, &distinct, options.memory, timing.ghz),
            Err(reason) => vec![Err(reason.clone()); distinct.len()],
        };
        Ok(of
            .into_iter()
            .map(|(step, index)| (step, times[index].clone()))
            .collect())
    }

    fn memory(&self) -> &emu::Memory {
        self.emulator.gpu.memory()
    }

    fn bytes(&self, buffer: BufferId) -> Result<u64> {
        let bytes = self.emulator.plan.buffers[buffer].ty.bytes().eval(&self.bindings)?;
        Ok(u64::try_from(bytes).unwrap_or(0))
    }

    fn memory_error(&self, buffer: BufferId, error: emu::MemoryError) -> EmulateError {
        EmulateError::Memory {
            buffer: self.emulator.plan.buffers[buffer].name.clone(),
            error,
        }
    }

    /// Gives every buffer memory: its own, or that of the buffer it is in place of. A chain shares the largest size.
    fn allocate(&mut self) -> Result<()> {
        let plan = self.emulator.plan;
        let mut roots: IndexMap<BufferId, BufferId> = IndexMap::new();
        let mut sizes: IndexMap<BufferId, u64> = IndexMap::new();
        for (id, buffer) in plan.buffers.iter() {
            let of = match buffer.place {
                Place::Arena { in_place_of, .. } => in_place_of,
                _ => None,
            };
            let root = of.and_then(|of| roots.get(&of).copied()).unwrap_or(id);
            roots.insert(id, root);
            let bytes = self.bytes(id)?;
            let size = sizes.entry(root).or_insert(0);
            *size = (*size).max(bytes);
        }
        // Buffers that are written by words are made of words.
        let mut words: Vec<BufferId> = Vec::new();
        for step in plan.steps.values() {
            if let Work::Launch { kernel, args } = self.work(step)? {
                let params = plan.kernels[*kernel].params.values();
                words.extend(
                    params
                        .zip(args)
                        .filter(|(p, _)| check::by_words(p))
                        .map(|(_, b)| roots[b]),
                );
            }
        }
        for (root, mut size) in sizes {
            if words.contains(&root) {
                size = size.next_multiple_of(4);
            }
            let address = self
                .memory()
                .alloc(size)
                .map_err(|error| self.memory_error(root, error))?;
            self.buffers.owned.push(address);
            self.buffers.addresses.insert(root, address);
            if words.contains(&root) {
                let zeros = vec![0u8; usize::try_from(size).unwrap_or(0)];
                let written = self.memory().write(address, &zeros);
                written.map_err(|error| self.memory_error(root, error))?;
            }
        }
        for (id, root) in roots {
            let address = self.buffers.addresses[&root];
            self.buffers.addresses.insert(id, address);
        }
        Ok(())
    }

    fn free(&mut self) {
        for address in self.buffers.owned.drain(..) {
            // Each was allocated above and is freed once.
            let _ = self.emulator.gpu.memory().free(address);
        }
    }

    fn write(&self, buffer: BufferId, tensor: &HostTensor) -> Result<()> {
        let written = self.memory().write(self.buffers.addresses[&buffer], &tensor.bytes);
        written.map_err(|error| self.memory_error(buffer, error))
    }

    /// Reads what a run gives, every byte of which something must have written.
    fn result(&self, port: &Port) -> Result<HostTensor> {
        let tensor = self.read(port.buffer, &port.ty)?;
        let options = &self.emulator.options;
        if options.launch.uninitialized && options.time.is_none() {
            let (address, bytes) = (self.buffers.addresses[&port.buffer], tensor.bytes.len() as u64);
            let unwritten = self.memory().unwritten(address, bytes);
            if let Some(at) = unwritten.map_err(|error| self.memory_error(port.buffer, error))? {
                return Err(EmulateError::NothingWrote {
                    output: port.name.clone(),
                    byte: at - address,
                    bytes,
                    ty: tensor.dtype.to_string(),
                });
            }
        }
        Ok(tensor)
    }

    fn read(&self, buffer: BufferId, ty: &TensorType) -> Result<HostTensor> {
        let name = || self.emulator.plan.buffers[buffer].name.clone();
        let bytes = ty.bytes().eval(&self.bindings)?;
        let mut out = vec![0u8; usize::try_from(bytes).unwrap_or(0)];
        let read = self.memory().read(self.buffers.addresses[&buffer], &mut out);
        read.map_err(|error| self.memory_error(buffer, error))?;
        let shape: Vec<usize> = ty
            .shape
            .eval(&self.bindings)?
            .into_iter()
            .map(|d| usize::try_from(d).unwrap_or(0))
            .collect();
        HostTensor::new(ty.dtype, shape, ir::data::Storage::new(out))
            .map_err(|error| EmulateError::Bytes { buffer: name(), error })
    }

    fn launch(&mut self, step: StepId, id: KernelId, args: &[BufferId]) -> Result<()> {
        let emulator = self.emulator;
        let kernel = &emulator.plan.kernels[id];
        let size = kernel.launch_size(&self.bindings)?;
        if size.grid.contains(&0) || size.block == 0 {
            return Ok(());
        }
        let mut bytes: Vec<u8> = Vec::new();
        for word in kernel.launch_arguments(args.iter().map(|b| self.buffers.addresses[b]), &self.bindings) {
            bytes.extend(word?.to_le_bytes());
        }
        let block = [size.block, 1, 1];
        if let Some(timing) = &emulator.options.time {
            return self.time(step, id, size.grid, block, &bytes, timing);
        }
        let expected = self.expected(step, id, args)?;
        let counters = emulator
            .gpu
            .launch(
                &emulator.kernels[id],
                size.grid,
                block,
                &bytes,
                0,
                &emulator.options.launch,
            )
            .map_err(|error| EmulateError::Launch { step, error })?;
        self.outcome.launches.push(Launched {
            step,
            kernel: id,
            grid: size.grid,
            block: size.block,
            counters,
        });
        if let Some(expected) = expected {
            let mut got = Vec::new();
            for (param, buffer) in kernel.params.values().zip(args) {
                if param.access.leaves() {
                    got.push(self.read(*buffer, &emulator.plan.buffers[*buffer].ty)?);
                }
            }
            self.outcome
                .verdicts
                .push(check::compare(step, kernel, &got, &expected));
        }
        Ok(())
    }

    /// Predicts the time of a launch. Launches of one kernel over one grid take the same.
    fn time(
        &mut self,
        step: StepId,
        id: KernelId,
        grid: [u32; 3],
        block: [u32; 3],
        kernargs: &[u8],
        timing: &TimingOptions,
    ) -> Result<()> {
        let emulator = self.emulator;
        let launches = self.outcome.timed.iter().filter_map(TimedStep::launch);
        let same = launches
            .filter(|launch| launch.kernel == id && launch.grid == grid)
            .map(|launch| launch.report.clone())
            .next();
        let report = match same {
            Some(report) => report,
            None => {
                let mut items = [0; 3];
                for axis in 0..3 {
                    items[axis] = grid[axis].saturating_mul(block[axis]);
                }
                let report = emulator
                    .gpu
                    .time(&emulator.kernels[id], items, block, kernargs, 0, timing)
                    .map_err(|error| EmulateError::Launch { step, error })?;
                Arc::new(report)
            }
        };
        self.outcome.timed.push(TimedStep {
            step,
            micros: report.micros,
            work: TimedWork::Launch(TimedLaunch {
                kernel: id,
                grid,
                report,
            }),
        });
        Ok(())
    }

    /// What the evaluator makes of the kernel's present operands; None where the kernel is not to be compared.
    fn expected(&mut self, step: StepId, id: KernelId, args: &[BufferId]) -> Result<Option<Vec<HostTensor>>> {
        let emulator = self.emulator;
        let kernel = &emulator.plan.kernels[id];
        let seen = |name: &str| {
            self.outcome.verdicts.iter().any(|v| v.kernel == name)
                || self.outcome.unchecked.iter().any(|u| u.kernel == name)
        };
        let Some(limit) = emulator.options.check.filter(|_| !seen(&kernel.name)) else {
            return Ok(None);
        };
        let points = check::points(kernel, &self.bindings)?;
        if points > limit {
            let reason = format!("{points} points are more than {limit}");
            self.outcome.unchecked.push(Unchecked {
                kernel: kernel.name.clone(),
                reason,
            });
            return Ok(None);
        }
        let mut tensors = Vec::new();
        for buffer in args {
            tensors.push(self.read(*buffer, &emulator.plan.buffers[*buffer].ty)?);
        }
        let products = check::products(emulator.gpu.arch());
        evaluate_for(kernel, &mut tensors, &self.bindings, None, products)
            .map_err(|error| EmulateError::Evaluate { step, error })?;
        let written = kernel.params.values().zip(tensors).filter(|(p, _)| p.access.leaves());
        Ok(Some(written.map(|(_, tensor)| tensor).collect()))
    }
}
