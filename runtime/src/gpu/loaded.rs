//! A program on a GPU: modules, constants, libraries, what was prepared, and contexts for runs in a row and at once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use dylib::Search;
use ir::Program;
use ir::dim::{Bindings, hints};
use ir::entity::Table;
use ir::library::Algorithm;
use ir::plan::arena::place;
use ir::plan::{KernelId, Plan, StepId};
use smallvec::SmallVec;

use super::block::Block;
use super::bound::Ports;
use super::constants::Constants;
use super::context::{Context, Held};
use super::driver::{Priority, RawFunction};
use super::facts::PlanFacts;
use super::flight::{Collect, Flight, Live};
use super::form::{Form, InputForm};
use super::handles::{Event, Gpu, Module};
use super::heap::Heap;
use super::modules::modules;
use super::prepare::{self, OutputFrom, Placed, Prepared};
use super::ranges::Ranges;
use super::run::Run;
use super::stats::Counters;
use super::watch::Watch;
use crate::checks::{check, check_ports};
use crate::device::{LoadOptions, Loaded, MemoryReport, RunStatistics, RunTimes, Running};
use crate::error::{InputError, RuntimeError};
use crate::library::{Libraries, rccl};
use crate::tensor::{DeviceTensor, Given, Memory, Value, Where};

const PREPARED_SIZES: usize = 8;
/// Runs at once: one on the way to the device, one computed, one on the way back, and one to spare.
const RUNS_AT_ONCE: usize = 4;
/// An arena for the largest sizes that are declared is made at once where it takes no more than this, or no more than
/// twice what the sizes at hand take.
const ROOM: usize = 64 << 20;
/// Kernels take buffers to begin at multiples of this many bytes.
const ALIGNMENT: u64 = ir::plan::arena::ALIGNMENT as u64;

/// See the module. Fields end in this order: contexts before what their work uses.
pub(super) struct LoadedGpu {
    slots: Mutex<Slots>,
    returned: Condvar,
    prepared: Mutex<Kept>,
    functions: Table<KernelId, RawFunction>,
    _modules: Vec<Module>,
    constants: Constants,
    libraries: Libraries,
    facts: PlanFacts,
    heap: Arc<Heap>,
    gpu: Arc<Gpu>,
    program: Arc<Program>,
    variant: usize,
    most_prepared: usize,
    most_runs: usize,
    memory_limit: Option<usize>,
    /// Bytes of the device that the program may hold, of a plan that was made to fit them.
    device_limit: Option<usize>,
    /// Bytes of the device that all contexts hold.
    held: Arc<AtomicUsize>,
    synchronous: bool,
    priority: Priority,
    no_capture: AtomicBool,
    counters: Counters,
    watch: Watch,
    ranges: Option<Ranges>,
}

/// Contexts.
#[derive(Default)]
struct Slots {
    /// Of no run; the one used last is last.
    idle: Vec<Context>,
    /// How many runs have one.
    out: usize,
    /// Runs under way that nobody may be waiting for, oldest first.
    flights: VecDeque<Weak<Flight>>,
}

/// What was prepared, each most recently used last.
#[derive(Default)]
struct Kept {
    placed: Vec<Arc<Placed>>,
    prepared: Vec<Arc<Prepared>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An input of a run, in the order of the ports.
pub(super) enum InputRef<'a> {
    Host(&'a [u8]),
    Device(&'a DeviceTensor, InputForm),
}

impl LoadedGpu {
    pub fn new(
        heap: Arc<Heap>,
        libraries: &Search,
        program: Arc<Program>,
        variant: usize,
        options: &LoadOptions,
        seat: Option<rccl::Seat>,
    ) -> Result<LoadedGpu, RuntimeError> {
        let gpu = heap.gpu.clone();
        check(&program.variants[variant].plan, &program)?;
        gpu.enter("loading the program")?;
        let (opened, program) = Libraries::open(program, variant, (libraries, &options.miopen), &gpu, seat)?;
        let plan = &program.variants[variant].plan;
        let expected = hints(&plan.symbols);
        // Hints are estimates: a size that does not work out there may where it is run.
        let peak = place(plan, &expected).map_or(0, |placement| placement.total);
        let facts = PlanFacts::new(plan)?;
        let (functions, modules) = modules(&gpu, &program, variant)?;
        let constants = Constants::upload(&gpu, &program, plan, peak)?;
        let ranges = match options.ranges {
            true => Some(Ranges::open(program.variants[variant].plan.target.platform, libraries)?),
            false => None,
        };
        // A capture of some ranks' collectives and not of others' would be for their library to sort out.
        let meets = plan.collectives().next().is_some();
        let no_capture = options.no_capture || meets && !options.capture_collectives;
        let loaded = LoadedGpu {
            slots: Mutex::default(),
            returned: Condvar::new(),
            prepared: Mutex::default(),
            functions,
            _modules: modules,
            constants,
            libraries: opened,
            facts,
            heap,
            gpu,
            variant,
            most_prepared: options.prepared_sizes.unwrap_or(PREPARED_SIZES).max(1),
            most_runs: options.concurrent_runs.unwrap_or(RUNS_AT_ONCE).max(1),
            memory_limit: options.memory_limit,
            device_limit: plan.streaming.map(|streaming| streaming.limit),
            held: Arc::default(),
            synchronous: options.synchronous,
            priority: options.priority,
            no_capture: AtomicBool::new(no_capture),
            counters: Counters::default(),
            watch: Watch::default(),
            ranges,
            program,
        };
        match loaded.prepared(&expected, &Form::host(loaded.plan())) {
            Ok(prepared) => {
                let context = loaded.context(&prepared)?;
                loaded.give_back(Some(context));
            }
            Err(RuntimeError::Size(_) | RuntimeError::Sizes(_)) if !loaded.plan().symbols.is_empty() => {}
            Err(error) => return Err(error),
        }
        Ok(loaded)
    }

    pub fn plan(&self) -> &Plan {
        &self.program.variants[self.variant].plan
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    fn parts(&self) -> prepare::Loaded<'_> {
        prepare::Loaded {
            plan: self.plan(),
            facts: &self.facts,
            functions: &self.functions,
            constants: &self.constants,
            libraries: &self.libraries,
        }
    }

    /// The plan at these sizes, prepared now or kept.
    fn prepared(&self, bindings: &Bindings, form: &Form) -> Result<Arc<Prepared>, RuntimeError> {
        let mut kept = lock(&self.prepared);
        let known = |p: &Arc<Prepared>| p.placed.form == *form && *p.bindings == *bindings;
        if let Some(at) = kept.prepared.iter().rposition(known) {
            let last = kept.prepared.len() - 1;
            kept.prepared[at..].rotate_left(1);
            return Ok(kept.prepared[last].clone());
        }
        let known: Vec<Arc<Placed>> = kept.placed.iter().filter(|p| p.form == *form).cloned().collect();
        drop(kept);
        let sizes = self.facts.sizes(self.plan(), bindings)?;
        let placed = match known.iter().rev().find(|placed| placed.fits(&sizes)) {
            Some(placed) => placed.clone(),
            None => {
                Counters::add(&self.counters.placed);
                let placed = Arc::new(self.place(bindings, form, known.last(), &sizes)?);
                let mut kept = lock(&self.prepared);
                if kept.placed.len() >= self.most_prepared {
                    kept.placed.remove(0);
                }
                kept.placed.push(placed.clone());
                placed
            }
        };
        Counters::add(&self.counters.sized);
        let made = Prepared::new(&self.parts(), placed, Arc::new(bindings.clone()), &sizes)?;
        let made = Arc::new(made);
        let mut kept = lock(&self.prepared);
        if kept.prepared.len() >= self.most_prepared {
            kept.prepared.remove(0);
        }
        kept.prepared.push(made.clone());
        Ok(made)
    }

    /// Places buffers at these sizes or, where they outgrew an earlier place, with room for those that may follow.
    fn place(
        &self,
        bindings: &Bindings,
        form: &Form,
        before: Option<&Arc<Placed>>,
        sizes: &Table<ir::plan::BufferId, usize>,
    ) -> Result<Placed, RuntimeError> {
        let parts = self.parts();
        self.plan().check_sizes(bindings)?;
        let exact = Placed::new(&parts, form, bindings.clone())?;
        let Some(before) = before else { return Ok(exact) };
        let symbols = &self.plan().symbols;
        let grown = |to: &dyn Fn(i64, Option<i64>) -> i64| -> Bindings {
            let size = |(symbol, &now): (&ir::dim::Symbol, &i64)| {
                let room = before.capacity.get(symbol).copied().unwrap_or(0);
                let most = symbols.get(symbol).and_then(|info| info.max);
                let size = if now > room { to(now, most).max(now) } else { room };
                (symbol.clone(), size)
            };
            bindings.iter().map(size).collect()
        };
        let declared = grown(&|now, most| most.unwrap_or(now.saturating_mul(2)));
        let doubled = grown(&|now, most| now.saturating_mul(2).min(most.unwrap_or(i64::MAX)));
        let limit = self.memory_limit.unwrap_or(usize::MAX);
        for (capacity, most) in [(declared, ROOM.max(2 * exact.placement.total)), (doubled, usize::MAX)] {
            let Ok(placed) = Placed::new(&parts, form, capacity) else {
                continue;
            };
            let taken = placed.placement.total;
            if taken <= most && taken + self.constants.bytes() <= limit && placed.fits(sizes) {
                return Ok(placed);
            }
        }
        Ok(exact)
    }

    /// A context with enough memory: a free one, a new one, or where that would be too many, that of the oldest run
    /// once it is done.
    fn context(&self, prepared: &Prepared) -> Result<Context, RuntimeError> {
        let planned = prepared.placed.placement.total;
        let asked = planned + self.constants.bytes();
        let limits = self.memory_limit.into_iter().chain(self.device_limit);
        if let Some(limit) = limits.min()
            && asked > limit
        {
            return Err(RuntimeError::OutOfMemory {
                asked,
                limit,
                planned_peak: planned,
            });
        }
        let mut slots = lock(&self.slots);
        let free = loop {
            if !self.has_room(&slots, planned) {
                if slots.idle.len() > 1 || (slots.out > 0 && !slots.idle.is_empty()) {
                    slots.idle.remove(0);
                    continue;
                }
                if slots.out > 0 {
                    slots = match self.finish_oldest(slots) {
                        (slots, true) => slots,
                        (slots, false) => self.returned.wait(slots).unwrap_or_else(PoisonError::into_inner),
                    };
                    continue;
                }
            }
            if let Some(mut context) = slots.idle.pop() {
                slots.out += 1;
                context.reserve(planned);
                break Ok(context);
            }
            if slots.out < self.most_runs {
                slots.out += 1;
                break Err(Held::new(&self.held, planned));
            }
            slots = match self.finish_oldest(slots) {
                (slots, true) => slots,
                // Every run is waited for by a thread, which gives its context back.
                (slots, false) => self.returned.wait(slots).unwrap_or_else(PoisonError::into_inner),
            };
        };
        drop(slots);
        let made = match free {
            Ok(context) => Ok(context),
            Err(held) => {
                Counters::add(&self.counters.contexts);
                Context::new(&self.gpu, self.plan(), &self.libraries, self.priority, held)
            }
        };
        let fitted = made.and_then(|mut context| {
            loop {
                match context.fit(&self.gpu, &self.facts, prepared, self.constants.bytes()) {
                    Err(RuntimeError::OutOfDeviceMemory(_)) if self.make_room() => {}
                    other => break other.map(|()| context),
                }
            }
        });
        let fitted = fitted.and_then(|context| match self.device_limit {
            // Only now it is known what the workspaces of libraries take.
            Some(limit) if self.device_bytes() > limit => Err(RuntimeError::OutOfMemory {
                asked: self.device_bytes(),
                limit,
                planned_peak: planned,
            }),
            _ => Ok(context),
        });
        if fitted.is_err() {
            self.give_back(None);
        }
        fitted
    }

    /// Bytes of the device that the program holds.
    fn device_bytes(&self) -> usize {
        self.constants.bytes() + self.held.load(Ordering::Relaxed)
    }

    /// Whether the context used last, or a new one, may have an arena of so many bytes beside what all others hold.
    fn has_room(&self, slots: &Slots, arena: usize) -> bool {
        let own = slots.idle.last().map_or(0, Context::device_bytes);
        let others = self.device_bytes() - own;
        self.device_limit.is_none_or(|limit| others + arena.max(own) <= limit)
    }

    /// Finishes the oldest run that was begun and not waited for; false where there is none.
    fn finish_oldest<'a>(&'a self, mut slots: MutexGuard<'a, Slots>) -> (MutexGuard<'a, Slots>, bool) {
        while let Some(flight) = slots.flights.pop_front() {
            if let Some(flight) = flight.upgrade() {
                drop(slots);
                flight.finish();
                drop(flight);
                return (lock(&self.slots), true);
            }
        }
        (slots, false)
    }

    /// Frees memory that nothing needs now; false where there is none.
    fn make_room(&self) -> bool {
        if self.trim() > 0 {
            return true;
        }
        let (slots, finished) = self.finish_oldest(lock(&self.slots));
        drop(slots);
        finished
    }

    /// Ends idle contexts and gives kept memory of tensors back; returns how many bytes that was.
    fn trim(&self) -> usize {
        let idle = std::mem::take(&mut lock(&self.slots).idle);
        let bytes: usize = idle.iter().map(Context::device_bytes).sum();
        drop(idle);
        bytes + self.heap.trim()
    }

    /// Takes the context of a run that is done; None where it was lost.
    fn give_back(&self, context: Option<Context>) {
        let mut slots = lock(&self.slots);
        slots.out -= 1;
        slots.idle.extend(context);
        drop(slots);
        self.returned.notify_one();
    }

    /// Enqueues a run. Its outputs on the device are there from now on; whoever reads them waits for the run.
    fn begin(
        &self,
        bindings: &Bindings,
        inputs: &[InputRef<'_>],
        wanted: &[Where],
        room: Option<&[&mut [u8]]>,
        profile: bool,
    ) -> Result<Live, RuntimeError> {
        let form = Form {
            inputs: inputs
                .iter()
                .map(|input| match input {
                    InputRef::Host(_) => InputForm::Host,
                    InputRef::Device(_, form) => *form,
                })
                .collect(),
            outputs: wanted.into(),
        };
        let prepared = self.prepared(bindings, &form)?;
        let given = inputs.iter().map(|input| match input {
            InputRef::Host(bytes) => bytes.len(),
            InputRef::Device(tensor, _) => tensor.bytes(),
        });
        let plan = self.plan();
        let expected = (&prepared.input_bytes[..], &prepared.output_bytes[..]);
        match room {
            Some(room) => check_ports(plan, expected, given, room.iter().map(|to| to.len()))?,
            None => check_ports(plan, expected, given, prepared.output_bytes.iter().copied())?,
        }
        self.gpu.enter("beginning a run")?;
        let mut context = self.context(&prepared)?;
        // From here on the context has to be given back.
        let begun = self.enqueue(&mut context, &prepared, inputs, profile);
        match begun {
            Ok((blocks, outputs)) => Ok(Live {
                context,
                prepared,
                blocks,
                outputs,
                passed: Vec::new(),
                wanted: wanted.into(),
            }),
            Err(error) => {
                context.quiesce(&self.gpu);
                self.gpu.examine(&error);
                drop(context);
                self.give_back(None);
                Err(self.told(error))
            }
        }
    }

    fn enqueue(
        &self,
        context: &mut Context,
        prepared: &Arc<Prepared>,
        inputs: &[InputRef<'_>],
        profile: bool,
    ) -> Result<(SmallVec<[Arc<Block>; 8]>, Vec<Option<DeviceTensor>>), RuntimeError> {
        let plan = self.plan();
        let mut ports = Ports::default();
        // Each block with whether the run writes it.
        let mut used: SmallVec<[(Arc<Block>, bool); 8]> = SmallVec::new();
        for input in inputs {
            ports.inputs.push(match input {
                InputRef::Device(tensor, form) => {
                    if let Memory::Gpu(block) = tensor.memory() {
                        used.push((block.clone(), *form == InputForm::Donated));
                    }
                    tensor.address()
                }
                InputRef::Host(_) => 0,
            });
        }
        let mut outputs = Vec::with_capacity(plan.outputs.len());
        for (index, port) in plan.outputs.iter().enumerate() {
            let block = match prepared.placed.outputs[index] {
                OutputFrom::Device => {
                    let room = prepared.placed.placement.sizes[port.buffer];
                    let block = Block::allocate(&self.heap, room, &format!("output {:?}", port.name))?;
                    used.push((block.clone(), true));
                    Some(block)
                }
                OutputFrom::Donated(input) => match &inputs[input as usize] {
                    InputRef::Device(tensor, _) => match tensor.memory() {
                        Memory::Gpu(block) => Some(block.clone()),
                        Memory::Host(_) | Memory::Ranks(_) => None,
                    },
                    InputRef::Host(_) => None,
                },
                _ => None,
            };
            ports.outputs.push(block.as_ref().map_or(0, |block| block.address()));
            outputs.push(block.map(|block| {
                let shape = prepared.output_shapes[index].clone();
                DeviceTensor::new(port.ty.dtype, shape, Memory::Gpu(block))
            }));
        }
        let hosts: SmallVec<[Option<&[u8]>; 8]> = inputs
            .iter()
            .map(|input| match input {
                InputRef::Host(bytes) => Some(*bytes),
                InputRef::Device(..) => None,
            })
            .collect();
        let run = self.run_of(prepared, &hosts);
        let _range = self.ranges.as_ref().map(|ranges| ranges.enter(&self.program.name));
        let mut bound = context.bind(prepared);
        bound.at(ports);
        let ran = run.enqueue(
            context,
            &mut bound,
            |wait| {
                // All that a run made has one end.
                let mut ends: SmallVec<[*const Event; 4]> = SmallVec::new();
                let mut once = |end: &Event| {
                    if ends.contains(&std::ptr::from_ref(end)) {
                        return Ok(());
                    }
                    ends.push(end);
                    wait(end)
                };
                used.iter()
                    .try_for_each(|(block, writes)| block.before(*writes, &mut once))
            },
            profile,
        );
        if let Err(error) = ran {
            // What it would have written must not be given to anybody while it may be under way.
            context.quiesce(&self.gpu);
            return Err(error);
        }
        context.keep(bound);
        for (block, writes) in &used {
            block.used(*writes, &context.done);
        }
        self.gpu.begun(&context.done);
        Counters::add(&self.counters.runs);
        let streamed = prepared.streamed_bytes() as u64;
        self.counters.streamed_bytes.fetch_add(streamed, Ordering::Relaxed);
        Ok((used.into_iter().map(|(block, _)| block).collect(), outputs))
    }

    fn run_of<'a>(&'a self, prepared: &'a Arc<Prepared>, hosts: &'a [Option<&'a [u8]>]) -> Run<'a> {
        Run {
            gpu: &self.gpu,
            facts: &self.facts,
            prepared,
            hosts,
            synchronous: self.synchronous,
            no_capture: &self.no_capture,
            counters: &self.counters,
            ranges: self.ranges.as_ref(),
        }
    }

    /// Waits for a run. After an error its context is gone, and nothing of it is under way.
    fn end(&self, live: &mut Live) -> Result<(), RuntimeError> {
        let steps = live.prepared.steps.len();
        let waited = self.gpu.enter("the end of a run").and_then(|()| {
            self.gpu
                .wait(&live.context.done, || format!("the end of a run of {steps} steps"))
        });
        if waited.is_err() {
            live.context.quiesce(&self.gpu);
        }
        for block in &live.blocks {
            block.unused(&live.context.done);
        }
        waited.map_err(|error| self.told(error))
    }

    fn told(&self, error: RuntimeError) -> RuntimeError {
        if self.synchronous {
            error
        } else {
            self.gpu.or_earlier(error)
        }
    }

    /// Waits for a run, gives its context back, and returns the outputs.
    pub fn finish(&self, mut live: Live) -> Result<Vec<Option<Value>>, RuntimeError> {
        let ended = self.end(&mut live);
        let values = ended.and_then(|()| {
            let loaded = self;
            Collect {
                loaded,
                live: &mut live,
            }
            .values(&self.plan().outputs)
        });
        let context = values.is_ok().then_some(live.context);
        self.give_back(context);
        values
    }

    /// How an input is used: a tensor must be on this device, and a donated one must have no other handle.
    fn input_form(&self, port: usize, given: &Given) -> Result<InputForm, RuntimeError> {
        let (tensor, donated) = match given {
            Given::Host(_) => return Ok(InputForm::Host),
            Given::Device(tensor) => (tensor, false),
            Given::Donated(tensor) => (tensor, true),
        };
        let wrong = |error| RuntimeError::input(error, &self.plan().inputs);
        let name = || self.plan().inputs[port].name.clone();
        let block = match tensor.memory() {
            Memory::Gpu(block) if self.is_here(block) => block,
            _ => {
                return Err(wrong(InputError::Elsewhere {
                    name: name(),
                    on: tensor.device().to_owned(),
                    device: self.gpu.name.clone(),
                }));
            }
        };
        if donated && !tensor.is_only_handle() {
            return Err(wrong(InputError::Shared(name())));
        }
        let aligned = tensor.address().is_multiple_of(ALIGNMENT);
        Ok(match (aligned, donated && block.is_own() && tensor.start() == 0) {
            (false, _) => InputForm::Copied,
            (true, true) => InputForm::Donated,
            (true, false) => InputForm::Device,
        })
    }

    /// Whether memory is on this device: opened once or twice, a device is one.
    fn is_here(&self, block: &Block) -> bool {
        let theirs = &block.heap().gpu;
        let same = || theirs.name == self.gpu.name && theirs.driver.library() == self.gpu.driver.library();
        Arc::ptr_eq(theirs, &self.gpu) || same()
    }
}

/// Copies a tensor to a device.
pub(super) fn upload(heap: &Arc<Heap>, tensor: &ir::HostTensor) -> Result<DeviceTensor, RuntimeError> {
    heap.gpu.enter("copying a tensor to the device")?;
    let block = Block::allocate(heap, tensor.bytes.len(), "a tensor")?;
    block.fill(&tensor.bytes)?;
    Ok(DeviceTensor::new(
        tensor.dtype,
        tensor.shape.clone(),
        Memory::Gpu(block),
    ))
}

impl Loaded for LoadedGpu {
    fn run(
        &self,
        bindings: &Bindings,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        times: Option<&mut RunTimes>,
    ) -> Result<(), RuntimeError> {
        let given: SmallVec<[InputRef<'_>; 8]> = inputs.iter().map(|bytes| InputRef::Host(bytes)).collect();
        let wanted: SmallVec<[Where; 8]> = self.plan().outputs.iter().map(|_| Where::Host).collect();
        let start = times.is_some().then(Instant::now);
        let mut live = self.begin(bindings, &given, &wanted, Some(outputs), times.is_some())?;
        let enqueue = start.map(|start| start.elapsed());
        if let Err(error) = self.end(&mut live) {
            self.give_back(None);
            return Err(error);
        }
        let times = times.map_or(Ok(()), |times| {
            times.enqueue = enqueue.unwrap_or_default();
            self.run_of(&live.prepared, &[]).times(&live.context, times)
        });
        for index in 0..outputs.len() {
            let (before, rest) = outputs.split_at_mut(index);
            let to = &mut *rest[0];
            match live.prepared.placed.outputs[index] {
                OutputFrom::Staging(at) => live.context.read(at, to),
                // Sizes were compared with the plan's, and these are the plan's own.
                OutputFrom::Input(port) => to.copy_from_slice(inputs[port]),
                OutputFrom::Constant(id) => {
                    to.copy_from_slice(&self.program.constants[id].tensor.bytes[..to.len()]);
                }
                OutputFrom::Same(first) => to.copy_from_slice(before[first]),
                OutputFrom::Device | OutputFrom::Donated(_) => {}
            }
        }
        self.give_back(Some(live.context));
        times
    }

    fn submit(
        self: Arc<Self>,
        bindings: &Bindings,
        inputs: Vec<Given>,
        wanted: &[Where],
    ) -> Result<Arc<dyn Running>, RuntimeError> {
        let forms: SmallVec<[InputForm; 8]> = inputs
            .iter()
            .enumerate()
            .map(|(port, given)| self.input_form(port, given))
            .collect::<Result<_, _>>()?;
        let given: SmallVec<[InputRef<'_>; 8]> = inputs
            .iter()
            .zip(&forms)
            .map(|(given, form)| match given {
                Given::Host(tensor) => InputRef::Host(&tensor.bytes),
                Given::Device(tensor) | Given::Donated(tensor) => InputRef::Device(tensor, *form),
            })
            .collect();
        let mut live = self.begin(bindings, &given, wanted, None, false)?;
        for from in &live.prepared.placed.outputs {
            if let OutputFrom::Input(port) = from {
                live.passed.push((*port, inputs[*port].clone()));
            }
        }
        let flight = Arc::new(Flight::new(self.clone(), live));
        let mut slots = lock(&self.slots);
        slots.flights.retain(|flight| flight.strong_count() > 0);
        slots.flights.push_back(Arc::downgrade(&flight));
        Ok(flight)
    }

    fn bare_launches(&self, bindings: &Bindings, turns: usize) -> Result<Option<Duration>, RuntimeError> {
        let prepared = self.prepared(bindings, &Form::host(self.plan()))?;
        self.gpu.enter("launching")?;
        let mut context = self.context(&prepared)?;
        let mut bound = context.bind(&prepared);
        let times = self.run_of(&prepared, &[]).bare(&context, &mut bound, turns);
        if times.is_err() {
            context.quiesce(&self.gpu);
        }
        context.keep(bound);
        self.give_back(times.is_ok().then_some(context));
        times
    }

    fn algorithms(&self, bindings: &Bindings) -> Result<Vec<(StepId, Vec<Algorithm>)>, RuntimeError> {
        let prepared = self.prepared(bindings, &Form::host(self.plan()))?;
        self.gpu.enter("asking for algorithms")?;
        let mut context = self.context(&prepared)?;
        let found = context.algorithms(&self.facts, &prepared);
        self.give_back(Some(context));
        found
    }

    fn memory(&self, bindings: &Bindings) -> Result<MemoryReport, RuntimeError> {
        let placement = place(self.plan(), bindings)?;
        Ok(MemoryReport {
            arena: placement.total,
            live_peak: placement.live_peak,
            packed_weights: self.constants.bytes(),
            temporary: 0,
            streamed_weights: self.constants.pinned_bytes(),
            device: self.device_bytes(),
            scratch: lock(&self.slots).idle.iter().map(Context::staging_bytes).sum(),
        })
    }

    fn upload(&self, tensor: &ir::HostTensor) -> Result<DeviceTensor, RuntimeError> {
        upload(&self.heap, tensor)
    }

    unsafe fn borrow(
        &self,
        address: u64,
        dtype: ir::DType,
        shape: Vec<usize>,
        owner: Box<dyn std::any::Any + Send + Sync>,
    ) -> Result<DeviceTensor, RuntimeError> {
        let bytes = dtype.bytes_for(shape.iter().product());
        let block = Block::foreign(&self.heap, address, bytes, owner);
        Ok(DeviceTensor::new(dtype, shape, Memory::Gpu(block)))
    }

    fn statistics(&self) -> RunStatistics {
        self.counters.read()
    }

    fn trim(&self) -> usize {
        LoadedGpu::trim(self)
    }
}

impl Drop for LoadedGpu {
    fn drop(&mut self) {
        // Whatever thread this is, what follows ends on this device; where that is lost, nothing has to.
        let _ = self.gpu.enter("ending a program");
        self.heap.trim();
    }
}
