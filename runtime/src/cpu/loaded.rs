//! A program on the CPU: constants, the prepared forms of recent sets of sizes, and memory for concurrent runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ir::dim::{Bindings, hints};
use ir::entity::{Entity, Table};
use ir::graph::ConstId;
use ir::host::{Lowering, Setting};
use ir::kernel::Access;
use ir::library::{Collective, CollectiveKind, LibraryCall, LibraryOp};
use ir::plan::arena::{self, Placement};
use ir::plan::{BufferId, Place, Plan, StepId, Work};
use ir::{DType, Program};
use smallvec::SmallVec;

use super::env::RunMemory;
use super::exec::{Aligned, KernelExec, Packs, Prepare, aligned};
use super::kernels::workspace::AlignedBuf;
use super::kernels::{Isa, Pool};
use super::meeting::Seat;
use super::submit::Queue;
use crate::checks::{check, check_arguments, check_bounds, check_memory, check_ports, check_ranks};
use crate::device::{LoadOptions, Loaded, MOST_THREADS, MemoryReport, RunStatistics, RunTimes, Running, StepTime};
use crate::error::RuntimeError;
use crate::tensor::{DeviceTensor, Given, HostBlock, Memory, Where};

const PREPARED_SIZES: usize = 8;

/// See the module.
pub(crate) struct LoadedCpu {
    program: Arc<Program>,
    variant: usize,
    pool: Arc<Pool>,
    lowering: Box<dyn Lowering>,
    packs: Packs,
    /// Constants whose bytes in the program are at an address that does not suit their type.
    copies: Mutex<HashMap<ConstId, Arc<AlignedBuf>>>,
    /// Most recently used last.
    prepared: Mutex<Vec<(Bindings, Arc<Prepared>)>>,
    most_prepared: usize,
    memory_limit: Option<usize>,
    direct_convolutions: bool,
    contexts: Mutex<Vec<Context>>,
    queue: Queue,
    /// Of a program that is one rank's part of a model.
    seat: Option<Seat>,
    runs: AtomicU64,
    placed: AtomicU64,
}

/// The plan at one set of sizes.
pub(super) struct Prepared {
    placement: Placement,
    steps: Vec<StepExec>,
    /// The address of each constant, where it is read as it is.
    constants: Table<BufferId, Option<ConstPtr>>,
    scratch: usize,
    temporary: usize,
    /// Output ports whose buffer is not theirs to write: another port's, an input, a constant.
    copies_out: Vec<(usize, BufferId)>,
    /// The output port that a buffer is written through.
    port_of: Table<BufferId, Option<usize>>,
    input_of: Table<BufferId, Option<usize>>,
    /// Bytes that inputs take in the arena's tail, should their addresses not suit.
    input_at: Vec<usize>,
    total: usize,
}

struct ConstPtr {
    ptr: *const u8,
    /// Keeps an aligned copy alive.
    _copy: Option<Arc<AlignedBuf>>,
}

// SAFETY: constants are never written, and live as long as the program that the loaded one holds.
unsafe impl Send for ConstPtr {}
// SAFETY: as above.
unsafe impl Sync for ConstPtr {}

enum StepExec {
    Kernel {
        exec: KernelExec,
        args: Vec<BufferId>,
        name: String,
    },
    Copy {
        from: BufferId,
        to: BufferId,
        bytes: usize,
    },
    Collective {
        of: Collective,
        dtype: DType,
        part: (BufferId, usize),
        result: (BufferId, usize),
        at: String,
    },
}

/// Memory of one run at a time.
struct Context {
    arena: AlignedBuf,
    memory: RunMemory,
    buffers: Vec<*mut u8>,
    params: Vec<*mut u8>,
}

// SAFETY: the pointers are filled anew by each run, which has the context to itself.
unsafe impl Send for Context {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LoadedCpu {
    pub(crate) fn new(
        program: Arc<Program>,
        variant: usize,
        options: &LoadOptions,
        lowering: Box<dyn Lowering>,
        seat: Option<Seat>,
    ) -> Result<LoadedCpu, RuntimeError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if options.threads == 0 { cores } else { options.threads };
        let loaded = LoadedCpu {
            program,
            variant,
            pool: Arc::new(Pool::new(threads.min(MOST_THREADS))),
            lowering,
            packs: Packs::default(),
            copies: Mutex::default(),
            prepared: Mutex::default(),
            most_prepared: options.prepared_sizes.unwrap_or(PREPARED_SIZES).max(1),
            memory_limit: options.memory_limit,
            direct_convolutions: options.direct_convolutions,
            contexts: Mutex::default(),
            queue: Queue::default(),
            seat,
            runs: AtomicU64::new(0),
            placed: AtomicU64::new(0),
        };
        // Weights are packed and kernels analysed now, at the sizes that are expected.
        let plan = loaded.plan();
        check(plan, &loaded.program)?;
        let expected = hints(&plan.symbols);
        match loaded.prepared(&expected) {
            Ok(_) => {}
            // Hints are estimates: a size that does not work out there may where it is run.
            Err(RuntimeError::Size(_) | RuntimeError::Sizes(_) | RuntimeError::TooSmall { .. })
                if !plan.symbols.is_empty() => {}
            Err(error) => return Err(error),
        }
        Ok(loaded)
    }

    fn plan(&self) -> &Plan {
        &self.program.variants[self.variant].plan
    }

    /// The plan at these sizes, prepared now or kept.
    fn prepared(&self, bindings: &Bindings) -> Result<Arc<Prepared>, RuntimeError> {
        if let Some(found) = self.recent(bindings) {
            return Ok(found);
        }
        let made = Arc::new(self.prepare(bindings)?);
        self.placed.fetch_add(1, Ordering::Relaxed);
        let mut kept = lock(&self.prepared);
        if kept.len() >= self.most_prepared {
            kept.remove(0);
        }
        kept.push((bindings.clone(), made.clone()));
        Ok(made)
    }

    fn recent(&self, bindings: &Bindings) -> Option<Arc<Prepared>> {
        let mut kept = lock(&self.prepared);
        let at = kept.iter().position(|(b, _)| b == bindings)?;
        let last = kept.len() - 1;
        if at != last {
            kept[at..].rotate_left(1);
        }
        Some(kept[last].1.clone())
    }

    fn prepare(&self, bindings: &Bindings) -> Result<Prepared, RuntimeError> {
        let plan = self.plan();
        plan.check_sizes(bindings)?;
        check_bounds(plan, bindings)?;
        let placement = arena::place(plan, bindings)?;
        let threads = self.pool.threads();
        let isa = Isa::detect();
        let mut steps = Vec::with_capacity(plan.steps.len());
        let mut raw: Table<BufferId, bool> = plan.buffers.keys().map(|_| false).collect();
        let (mut scratch, mut temporary) = (0, 0);
        for step in plan.steps.values() {
            match step.at(bindings)? {
                Work::Launch { kernel, args } => {
                    let kernel = &plan.kernels[*kernel];
                    check_arguments(plan, kernel, args, &placement.sizes, bindings)?;
                    let constants: Vec<_> = args
                        .iter()
                        .map(|b| match plan.buffers[*b].place {
                            Place::Constant(id) | Place::Streamed(id) => Some((id, &self.program.constants[id].tensor)),
                            _ => None,
                        })
                        .collect();
                    let setting = Setting {
                        bindings,
                        constants: &constants,
                        aliased: aliased(&placement, kernel, args),
                    };
                    let cx = Prepare {
                        name: &kernel.name,
                        threads,
                        pool: Some(&self.pool),
                        isa,
                        constants: &constants,
                        packs: &self.packs,
                        direct_convolutions: self.direct_convolutions,
                    };
                    let exec = KernelExec::new(self.lowering.lower(kernel, &setting)?, &cx)?;
                    let (s, t) = exec.memory();
                    (scratch, temporary) = (scratch.max(s), temporary.max(t));
                    for (arg, used) in args.iter().zip(&exec.raw) {
                        raw[*arg] |= *used;
                    }
                    steps.push(StepExec::Kernel {
                        exec,
                        args: args.clone(),
                        name: kernel.name.clone(),
                    });
                }
                Work::Copy { from, to } => {
                    raw[*from] = true;
                    let bytes = placement.sizes[*from].min(placement.sizes[*to]);
                    steps.push(StepExec::Copy {
                        from: *from,
                        to: *to,
                        bytes,
                    });
                }
                Work::Call {
                    call:
                        LibraryCall {
                            op: LibraryOp::Collective(of),
                            ..
                        },
                    operands,
                    results,
                    ..
                } => {
                    let ([part], [result]) = (operands.as_slice(), results.as_slice()) else {
                        return Err(RuntimeError::Program("a collective of several operands".into()));
                    };
                    let at = format!("step {}", StepId::new(steps.len()));
                    check_ranks(*of, self.seat.as_ref().map_or(1, Seat::ranks), &at)?;
                    let (given, made) = (placement.sizes[*part], placement.sizes[*result]);
                    let parts = match of.kind {
                        CollectiveKind::AllReduce => 1,
                        CollectiveKind::AllGather => of.ranks as usize,
                    };
                    if given.checked_mul(parts) != Some(made) {
                        return Err(RuntimeError::Program(format!(
                            "{at}: a collective makes {made} bytes of parts of {given}"
                        )));
                    }
                    (raw[*part], raw[*result]) = (true, true);
                    steps.push(StepExec::Collective {
                        of: *of,
                        dtype: plan.buffers[*part].ty.dtype,
                        part: (*part, given),
                        result: (*result, made),
                        at,
                    });
                }
                Work::Call { call, .. } => {
                    return Err(RuntimeError::Unsupported {
                        what: format!("the library call {}", call.name()),
                        at: format!("a plan for {}; compile without library routes", plan.target),
                    });
                }
            }
        }
        let mut port_of: Table<BufferId, Option<usize>> = plan.buffers.keys().map(|_| None).collect();
        let mut input_of = port_of.clone();
        for (i, port) in plan.inputs.iter().enumerate() {
            input_of[port.buffer] = Some(i);
        }
        let mut copies_out = Vec::new();
        for (i, port) in plan.outputs.iter().enumerate() {
            if plan.buffers[port.buffer].place == Place::Output && port_of[port.buffer].is_none() {
                port_of[port.buffer] = Some(i);
            } else {
                copies_out.push((i, port.buffer));
                raw[port.buffer] = true;
            }
        }
        let mut constants = Vec::with_capacity(plan.buffers.len());
        for (id, buffer) in plan.buffers.iter() {
            constants.push(match buffer.place {
                Place::Constant(c) | Place::Streamed(c) if raw[id] => Some(self.constant(c)?),
                _ => None,
            });
        }
        let mut total = placement.total.next_multiple_of(256);
        let input_at = plan
            .inputs
            .iter()
            .map(|p| {
                let at = total;
                total += placement.sizes[p.buffer].next_multiple_of(256);
                at
            })
            .collect();
        Ok(Prepared {
            placement,
            steps,
            constants: constants.into_iter().collect(),
            scratch,
            temporary,
            copies_out,
            port_of,
            input_of,
            input_at,
            total,
        })
    }

    /// Where a constant is that kernels read as it is.
    ///
    /// # Errors
    /// There is no memory for a copy at an address that suits its type.
    fn constant(&self, id: ConstId) -> Result<ConstPtr, RuntimeError> {
        let tensor = &self.program.constants[id].tensor;
        let mut copies = lock(&self.copies);
        let copy = match copies.get(&id) {
            Some(copy) => copy.clone(),
            None => match aligned(tensor)? {
                Aligned::Borrowed(bytes) => {
                    return Ok(ConstPtr {
                        ptr: bytes.as_ptr(),
                        _copy: None,
                    });
                }
                Aligned::Copied(buf) => copies.entry(id).or_insert(Arc::new(buf)).clone(),
            },
        };
        Ok(ConstPtr {
            ptr: copy.as_ptr(),
            _copy: Some(copy),
        })
    }

    fn context(&self) -> Context {
        lock(&self.contexts).pop().unwrap_or_else(|| Context {
            arena: AlignedBuf::new(0),
            memory: RunMemory::new(self.pool.clone()),
            buffers: Vec::new(),
            params: Vec::new(),
        })
    }
}

/// Says of memory that is not there how much a whole run takes.
fn planned(error: RuntimeError, asked: usize) -> RuntimeError {
    match error {
        RuntimeError::NoMemory { available, .. } => RuntimeError::NoMemory { asked, available },
        error => error,
    }
}

/// Says whether a buffer that the kernel writes shares memory with another of its arguments.
fn aliased(placement: &Placement, kernel: &ir::Kernel, args: &[BufferId]) -> bool {
    let span = |b: BufferId| placement.offsets[b].map(|at| (at, at + placement.sizes[b]));
    kernel.params.values().zip(args).any(|(param, arg)| {
        param.access == Access::ReadWrite
            || (param.access == Access::Write
                && args.iter().any(|other| {
                    other != arg
                        && match (span(*arg), span(*other)) {
                            (Some(a), Some(b)) => a.0 < b.1 && b.0 < a.1,
                            _ => false,
                        }
                }))
    })
}

/// The bytes of a port in a run.
#[derive(Clone, Copy)]
pub(super) struct RawPort {
    pub ptr: *mut u8,
    pub len: usize,
}

impl LoadedCpu {
    /// Runs once.
    ///
    /// # Safety
    /// The ports' bytes are there, those of the outputs to be written and used by nobody else. An output may be where
    /// an input is if [`LoadedCpu::in_place`] says so.
    pub(super) unsafe fn execute(
        &self,
        prepared: &Prepared,
        inputs: &[RawPort],
        outputs: &[RawPort],
        mut times: Option<&mut RunTimes>,
    ) -> Result<(), RuntimeError> {
        let plan = self.plan();
        let asked = self.asked(prepared);
        let mut context = self.context();
        // Kept from run to run: only a run that is larger than those before asks.
        let grows = |has: usize, needs: usize| if needs > has { needs } else { 0 };
        let more = grows(context.arena.len(), prepared.total)
            + grows(context.memory.temporary.len(), prepared.temporary)
            + grows(context.memory.scratch(), prepared.scratch * self.pool.threads());
        if more > 0 {
            // Outputs are new, and take their memory when they are written.
            let written: usize = outputs.iter().map(|output| output.len).sum();
            check_memory(more.saturating_add(written)).map_err(|error| planned(error, asked + written))?;
        }
        let grown = context
            .arena
            .grow(prepared.total)
            .and_then(|()| context.memory.reserve(prepared.scratch, prepared.temporary));
        if grown.is_none() {
            return Err(RuntimeError::no_memory(asked));
        }
        let Context {
            arena,
            memory,
            buffers,
            params,
        } = &mut context;
        buffers.clear();
        for (id, buffer) in plan.buffers.iter() {
            let null = std::ptr::null_mut();
            buffers.push(match buffer.place {
                Place::Input => match prepared.input_of[id] {
                    None => null,
                    Some(port) => {
                        let RawPort { ptr, len } = inputs[port];
                        let unit = (buffer.ty.dtype.bits() as usize / 8).max(1);
                        if (ptr as usize).is_multiple_of(unit) {
                            ptr
                        } else {
                            let to = arena.as_ptr().wrapping_add(prepared.input_at[port]);
                            // SAFETY: the arena's tail has room for every input.
                            unsafe { std::ptr::copy_nonoverlapping(ptr, to, len) };
                            to
                        }
                    }
                },
                Place::Output => prepared.port_of[id].map_or(null, |port| outputs[port].ptr),
                Place::Constant(_) | Place::Streamed(_) => {
                    prepared.constants[id].as_ref().map_or(null, |c| c.ptr.cast_mut())
                }
                Place::Arena { .. } => {
                    prepared.placement.offsets[id].map_or(null, |at| arena.as_ptr().wrapping_add(at))
                }
            });
        }
        let at = |b: BufferId| buffers[b.index()];
        let begin = times.is_some().then(Instant::now);
        for (i, step) in prepared.steps.iter().enumerate() {
            let start = begin.map(|begin| begin.elapsed());
            match step {
                StepExec::Kernel { exec, args, .. } => {
                    params.clear();
                    params.extend(args.iter().map(|b| at(*b)));
                    params.resize(args.len() + exec.temporaries(), std::ptr::null_mut());
                    // SAFETY: arguments were checked against the parameters' sizes when the step was prepared; the
                    // arena is this context's own, outputs are the run's alone, and steps run one after another.
                    unsafe { exec.run(memory, params) }
                    if let Some(asked) = memory.workspace.lacked() {
                        return Err(RuntimeError::no_memory(asked));
                    }
                }
                // What is in place already stays.
                StepExec::Copy { from, to, .. } if at(*from) == at(*to) => {}
                // SAFETY: both buffers have at least that many bytes.
                StepExec::Copy { from, to, bytes } => unsafe { std::ptr::copy(at(*from), at(*to), *bytes) },
                StepExec::Collective {
                    of,
                    dtype,
                    part,
                    result,
                    at: place,
                } => {
                    let Some(seat) = &self.seat else { continue };
                    // SAFETY: the buffers have so many bytes, and are apart: both are in use at this step.
                    let (part, result) = unsafe {
                        (
                            std::slice::from_raw_parts(at(part.0), part.1),
                            std::slice::from_raw_parts_mut(at(result.0), result.1),
                        )
                    };
                    seat.collective(*of, *dtype, part, result, place)?;
                }
            }
            if let (Some(times), Some(begin), Some(start)) = (times.as_deref_mut(), begin, start) {
                let (name, engine) = match step {
                    StepExec::Kernel { exec, name, .. } => (name.clone(), exec.names().join("+")),
                    StepExec::Copy { .. } => ("copy".to_owned(), "copy".to_owned()),
                    StepExec::Collective { of, .. } => (of.kind.name().to_owned(), "ranks".to_owned()),
                };
                times.steps.push(StepTime {
                    step: StepId::new(i),
                    name,
                    engine,
                    start,
                    time: begin.elapsed().saturating_sub(start),
                });
            }
        }
        for (port, buffer) in &prepared.copies_out {
            let from = at(*buffer);
            if from.is_null() {
                continue;
            }
            // SAFETY: sizes were compared before the run; `copy` allows any overlap.
            unsafe { std::ptr::copy(from, outputs[*port].ptr, outputs[*port].len) };
        }
        if let (Some(times), Some(begin)) = (times, begin) {
            times.device = begin.elapsed();
        }
        lock(&self.contexts).push(context);
        self.runs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The plan at these sizes, and whether ports of these sizes are its.
    pub(super) fn checked(
        &self,
        bindings: &Bindings,
        inputs: impl ExactSizeIterator<Item = usize>,
        outputs: Option<&[&mut [u8]]>,
    ) -> Result<Arc<Prepared>, RuntimeError> {
        let plan = self.plan();
        let prepared = self.prepared(bindings)?;
        let bytes = |ports: &[ir::plan::Port]| -> SmallVec<[usize; 8]> {
            ports.iter().map(|port| prepared.placement.sizes[port.buffer]).collect()
        };
        let sizes = (bytes(&plan.inputs), bytes(&plan.outputs));
        let expected = (&sizes.0[..], &sizes.1[..]);
        match outputs {
            Some(outputs) => check_ports(plan, expected, inputs, outputs.iter().map(|o| o.len()))?,
            None => check_ports(plan, expected, inputs, sizes.1.iter().copied())?,
        }
        let asked = self.asked(&prepared);
        if let Some(limit) = self.memory_limit
            && asked > limit
        {
            return Err(RuntimeError::OutOfMemory {
                asked,
                limit,
                planned_peak: prepared.placement.total,
            });
        }
        Ok(prepared)
    }

    /// Bytes that one run takes.
    fn asked(&self, prepared: &Prepared) -> usize {
        prepared.total + prepared.scratch * self.pool.threads() + prepared.temporary
    }

    /// The input in whose place an output may be: the output begins as a copy of it, and nothing reads it afterwards.
    pub(super) fn in_place(&self, output: usize) -> Option<usize> {
        let plan = self.plan();
        let to = plan.outputs[output].buffer;
        let used = |work: &Work, buffer: BufferId| match work {
            Work::Launch { args, .. } => args.contains(&buffer),
            Work::Copy { from, to } => *from == buffer || *to == buffer,
            Work::Call { operands, results, .. } => operands.contains(&buffer) || results.contains(&buffer),
        };
        let uses = |id: StepId, buffer: BufferId| plan.steps[id].works().any(|work| used(work, buffer));
        let first = plan.steps.keys().find(|id| uses(*id, to))?;
        let Work::Copy { from, .. } = plan.steps[first].work else {
            return None;
        };
        let input = plan.inputs.iter().position(|port| port.buffer == from)?;
        let read_later = plan.steps.keys().any(|id| id > first && uses(id, from));
        let is_output = plan.outputs.iter().any(|port| port.buffer == from);
        let same_size = plan.buffers[from].ty.bytes() == plan.buffers[to].ty.bytes();
        (!read_later && !is_output && same_size).then_some(input)
    }

    pub(super) fn outputs(&self) -> &[ir::plan::Port] {
        &self.plan().outputs
    }

    pub(super) fn inputs(&self) -> &[ir::plan::Port] {
        &self.plan().inputs
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }
}

impl Loaded for LoadedCpu {
    fn run(
        &self,
        bindings: &Bindings,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        times: Option<&mut RunTimes>,
    ) -> Result<(), RuntimeError> {
        let prepared = self.checked(bindings, inputs.iter().map(|i| i.len()), Some(outputs))?;
        let read = |bytes: &&[u8]| RawPort {
            ptr: bytes.as_ptr().cast_mut(),
            len: bytes.len(),
        };
        let given: SmallVec<[RawPort; 8]> = inputs.iter().map(read).collect();
        let write = |bytes: &mut &mut [u8]| RawPort {
            ptr: bytes.as_mut_ptr(),
            len: bytes.len(),
        };
        let room: SmallVec<[RawPort; 8]> = outputs.iter_mut().map(write).collect();
        // SAFETY: inputs are borrowed, and only read; outputs are borrowed mutably.
        unsafe { self.execute(&prepared, &given, &room, times) }
    }

    fn submit(
        self: Arc<Self>,
        bindings: &Bindings,
        inputs: Vec<Given>,
        wanted: &[Where],
    ) -> Result<Arc<dyn Running>, RuntimeError> {
        super::submit::submit(self, bindings, inputs, wanted)
    }

    fn upload(&self, tensor: &ir::HostTensor) -> Result<DeviceTensor, RuntimeError> {
        let asked = tensor.bytes.len();
        let buffer = AlignedBuf::try_new(asked).ok_or_else(|| RuntimeError::no_memory(asked))?;
        // SAFETY: the buffer was made with this length, and nobody else knows of it.
        unsafe { std::ptr::copy_nonoverlapping(tensor.bytes.as_ptr(), buffer.as_ptr(), asked) };
        let block = HostBlock::to_fill(buffer);
        block.ready().set(true);
        let memory = Memory::Host(Arc::new(block));
        Ok(DeviceTensor::new(tensor.dtype, tensor.shape.clone(), memory))
    }

    fn memory(&self, bindings: &Bindings) -> Result<MemoryReport, RuntimeError> {
        let prepared = self.prepared(bindings)?;
        Ok(MemoryReport {
            arena: prepared.placement.total,
            live_peak: prepared.placement.live_peak,
            temporary: self.asked(&prepared) - prepared.placement.total,
            packed_weights: self.packs.bytes(),
            scratch: lock(&self.contexts).iter().map(|c| c.memory.bytes()).sum(),
            ..MemoryReport::default()
        })
    }

    fn statistics(&self) -> RunStatistics {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RunStatistics {
            runs: of(&self.runs),
            placed: of(&self.placed),
            sized: of(&self.placed),
            ..RunStatistics::default()
        }
    }

    fn trim(&self) -> usize {
        let idle = std::mem::take(&mut *lock(&self.contexts));
        idle.iter()
            .map(|context| context.arena.len() + context.memory.bytes())
            .sum()
    }
}
