//! Runs of a program on all of its ranks.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

use ir::dim::Bindings;
use ir::plan::Plan;
use ir::{HostTensor, Program, Storage};
use smallvec::SmallVec;

use super::of_rank;
use crate::cpu::meeting::Meeting;
use crate::device::{Loaded, MemoryReport, RunStatistics, RunTimes, Running};
use crate::error::{InputError, RuntimeError};
use crate::library::rccl::Communicators;
use crate::tensor::{DeviceTensor, Given, Memory, Parts, Value, Where};

/// How long a run of the CPU sleeps between two looks at whether those before it are done.
const PAUSE: Duration = Duration::from_micros(200);

/// See the module.
pub(super) struct RankedLoaded {
    ranks: Vec<Arc<dyn Loaded>>,
    /// Of each rank.
    names: Vec<String>,
    /// Of all: `hip:0,1`.
    device: String,
    face: Arc<Program>,
    variant: usize,
    /// Along which axis ports are cut.
    inputs: Vec<Option<usize>>,
    outputs: Vec<Option<usize>>,
    meeting: Met,
    /// Why the ranks do not compute together any more.
    ended: Arc<OnceLock<String>>,
    order: Arc<Mutex<()>>,
    /// Runs on the CPU that were begun and may be under way.
    begun: Mutex<Vec<Weak<RankedRun>>>,
}

/// By what the ranks meet.
enum Met {
    Nowhere,
    Host(Arc<Meeting>),
    Gpus(Arc<Communicators>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One tensor of the parts of all ranks.
fn together(device: &str, cut: Option<usize>, tensors: &[DeviceTensor]) -> DeviceTensor {
    let mut shape = tensors[0].shape().to_vec();
    if let Some(axis) = cut {
        shape[axis] *= tensors.len();
    }
    let parts = Parts {
        device: device.to_owned(),
        cut,
        parts: tensors
            .iter()
            .map(|t| (t.shape().to_vec(), t.memory().clone()))
            .collect(),
    };
    DeviceTensor::new(tensors[0].dtype(), shape, Memory::Ranks(Arc::new(parts)))
}

/// What a thread gave; a panic is said.
pub(super) fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T, RuntimeError>>) -> Result<T, RuntimeError> {
    let panicked = |_| Err(RuntimeError::Program("the thread of a rank panicked".into()));
    thread.join().unwrap_or_else(panicked)
}

impl RankedLoaded {
    /// What is known before the ranks are loaded.
    pub fn parts(program: &Program, variants: &[usize], device: &str, face: Program) -> RankedLoaded {
        let share = program.variants[variants[0]].plan.share.as_ref();
        let cut = |axes: &[Option<u32>]| axes.iter().map(|axis| axis.map(|axis| axis as usize)).collect();
        RankedLoaded {
            ranks: Vec::new(),
            names: Vec::new(),
            device: device.to_owned(),
            face: Arc::new(face),
            variant: variants[0],
            inputs: share.map_or(Vec::new(), |share| cut(&share.inputs)),
            outputs: share.map_or(Vec::new(), |share| cut(&share.outputs)),
            meeting: Met::Nowhere,
            ended: Arc::default(),
            order: Arc::default(),
            begun: Mutex::default(),
        }
    }

    pub fn on_cpu(mut self, ranks: Vec<Arc<dyn Loaded>>, meeting: Arc<Meeting>) -> Arc<dyn Loaded> {
        self.names = vec!["cpu".to_owned(); ranks.len()];
        self.ranks = ranks;
        self.meeting = Met::Host(meeting);
        Arc::new(self)
    }

    pub fn on_gpus(
        mut self,
        ranks: Vec<Arc<dyn Loaded>>,
        names: Vec<String>,
        communicators: Arc<Communicators>,
        ended: Arc<OnceLock<String>>,
        order: Arc<Mutex<()>>,
    ) -> Arc<dyn Loaded> {
        (self.ranks, self.names) = (ranks, names);
        (self.meeting, self.ended, self.order) = (Met::Gpus(communicators), ended, order);
        Arc::new(self)
    }

    fn plan(&self) -> &Plan {
        &self.face.variants[self.variant].plan
    }

    fn check_ended(&self) -> Result<(), RuntimeError> {
        match self.ended.get() {
            None => Ok(()),
            Some(reason) => Err(RuntimeError::RanksEnded {
                devices: self.device.clone(),
                reason: reason.clone(),
            }),
        }
    }

    /// Does something on every rank at once, and gives what each gave. The first error lets go of the others, unless
    /// nothing was begun by what it is of.
    fn on_all<T: Send>(&self, f: impl Fn(usize) -> Result<T, RuntimeError> + Sync) -> Result<Vec<T>, RuntimeError> {
        let first: OnceLock<usize> = OnceLock::new();
        let rank = |rank: usize| {
            let result = f(rank).map_err(|error| of_rank(rank, &self.names[rank], error));
            if let Err(error) = &result {
                let _ = first.set(rank);
                if !error.is_refusal() && self.ended.set(error.to_string()).is_ok() {
                    match &self.meeting {
                        Met::Nowhere => {}
                        Met::Host(meeting) => meeting.end(&error.to_string()),
                        Met::Gpus(communicators) => communicators.end(),
                    }
                }
            }
            result
        };
        let mut results: Vec<Result<T, RuntimeError>> = std::thread::scope(|scope| {
            let rank = &rank;
            let others: Vec<_> = (1..self.ranks.len())
                .map(|other| scope.spawn(move || rank(other)))
                .collect();
            let own = rank(0);
            std::iter::once(own).chain(others.into_iter().map(joined)).collect()
        });
        match first.get() {
            // That of the others follows from it.
            Some(rank) => match results.swap_remove(*rank) {
                Err(error) => Err(error),
                Ok(_) => Err(RuntimeError::Program("a rank's error was lost".into())),
            },
            None => results.into_iter().collect(),
        }
    }

    /// An input of every rank.
    fn cut(&self, port: usize, given: Given) -> Result<Vec<Given>, RuntimeError> {
        let axis = self.inputs[port];
        let (tensor, donated) = match given {
            Given::Host(tensor) => return self.cut_host(port, &tensor),
            Given::Device(tensor) => (tensor, false),
            Given::Donated(tensor) => (tensor, true),
        };
        let wrong = |error| RuntimeError::input(error, &self.plan().inputs);
        let name = || self.plan().inputs[port].name.clone();
        if donated && !tensor.is_only_handle() {
            return Err(wrong(InputError::Shared(name())));
        }
        match tensor.memory() {
            // Uploaded before it was known how it is cut: each rank has a part of its own.
            Memory::Host(_) => {
                let parts = self.cut_host(port, &tensor.download()?)?;
                let pairs = self.ranks.iter().zip(parts);
                let uploaded = pairs.map(|(rank, part)| match part {
                    Given::Host(part) => rank.upload(&part).map(Given::Donated),
                    other => Ok(other),
                });
                uploaded.collect()
            }
            Memory::Ranks(parts) if parts.device == self.device && parts.cut == axis => {
                let tensors = parts.tensors(tensor.dtype());
                Ok(tensors
                    .map(|part| {
                        if donated {
                            Given::Donated(part)
                        } else {
                            Given::Device(part)
                        }
                    })
                    .collect())
            }
            // Cut in another way, by another program.
            Memory::Ranks(parts) if parts.device == self.device => self.cut_host(port, &tensor.download()?),
            Memory::Ranks(_) | Memory::Gpu(_) => Err(wrong(InputError::Elsewhere {
                name: name(),
                on: tensor.device().to_owned(),
                device: self.device.clone(),
            })),
        }
    }

    fn cut_host(&self, port: usize, tensor: &HostTensor) -> Result<Vec<Given>, RuntimeError> {
        let ranks = self.ranks.len();
        let Some(axis) = self.inputs[port] else {
            return Ok(vec![Given::Host(tensor.clone()); ranks]);
        };
        let count = tensor.shape.get(axis).map_or(0, |size| size / ranks);
        let parts = (0..ranks).map(|rank| tensor.part(axis, rank * count, count).map(Given::Host));
        let parts: Option<Vec<Given>> = parts.collect();
        parts.ok_or_else(|| {
            let name = &self.plan().inputs[port].name;
            RuntimeError::Program(format!("input {name:?} cannot be cut along axis {axis}"))
        })
    }

    /// Where one rank leaves its outputs: what is whole comes to the host from the first alone.
    fn wanted(&self, rank: usize, wanted: &[Where]) -> SmallVec<[Where; 8]> {
        let results = self.plan().results().len();
        let of = |(port, at): (usize, &Where)| match self.outputs[port] {
            None if rank > 0 && port < results => Where::Device,
            _ => *at,
        };
        wanted.iter().enumerate().map(of).collect()
    }

    /// An output of all ranks.
    fn join(&self, port: usize, mut parts: Vec<Value>) -> Result<Option<Value>, RuntimeError> {
        let axis = self.outputs[port];
        let results = self.plan().results().len();
        let damaged = || RuntimeError::Program(format!("the ranks' parts of output {port} do not fit each other"));
        if port >= results {
            // A condition holds where it holds on every rank.
            let mut hosts = parts.into_iter().map(Value::into_host).collect::<Result<Vec<_>, _>>()?;
            let check = self.plan().checks.get(port - results);
            let failed = hosts
                .iter()
                .position(|value| check.is_some_and(|check| !check.holds(&value.bytes)));
            return Ok(Some(Value::Host(hosts.swap_remove(failed.unwrap_or(0)))));
        }
        if parts.len() < self.ranks.len() {
            return Ok(None);
        }
        if matches!(parts[0], Value::Host(_)) {
            let Some(axis) = axis else {
                return Ok(Some(parts.swap_remove(0)));
            };
            let hosts = parts.into_iter().map(Value::into_host).collect::<Result<Vec<_>, _>>()?;
            return HostTensor::join(&hosts, axis)
                .map(|whole| Some(Value::Host(whole)))
                .ok_or_else(damaged);
        }
        let tensors: Option<Vec<DeviceTensor>> = parts.into_iter().map(Value::into_device).collect();
        let tensors = tensors.ok_or_else(damaged)?;
        Ok(Some(Value::Device(self.together(port, &tensors))))
    }

    fn together(&self, port: usize, tensors: &[DeviceTensor]) -> DeviceTensor {
        together(&self.device, self.outputs[port], tensors)
    }

    /// On the CPU a run works at once, and must not meet those that are still in their queues.
    fn settle(&self) {
        if !matches!(self.meeting, Met::Host(_)) {
            return;
        }
        let begun = std::mem::take(&mut *lock(&self.begun));
        for run in begun.iter().filter_map(Weak::upgrade) {
            while !run.is_done() {
                std::thread::sleep(PAUSE);
            }
        }
    }
}

impl Loaded for RankedLoaded {
    fn face(&self) -> Option<Arc<Program>> {
        Some(self.face.clone())
    }

    fn run(
        &self,
        bindings: &Bindings,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        times: Option<&mut RunTimes>,
    ) -> Result<(), RuntimeError> {
        let _order = lock(&self.order);
        self.check_ended()?;
        self.settle();
        // Ports that are cut pass through tensors of their own.
        let mut cut: Vec<Option<Vec<HostTensor>>> = Vec::with_capacity(inputs.len());
        for (port, axis) in self.inputs.iter().enumerate() {
            cut.push(match axis {
                None => None,
                Some(_) => {
                    let ty = &self.plan().inputs[port].ty;
                    let shape = ty
                        .shape
                        .eval(bindings)?
                        .into_iter()
                        .map(|d| usize::try_from(d).unwrap_or(0));
                    let whole = HostTensor {
                        dtype: ty.dtype,
                        shape: shape.collect(),
                        bytes: Storage::new(inputs[port].to_vec()),
                    };
                    let parts = self.cut_host(port, &whole)?.into_iter();
                    let hosts = parts.filter_map(|part| match part {
                        Given::Host(part) => Some(part),
                        Given::Device(_) | Given::Donated(_) => None,
                    });
                    Some(hosts.collect())
                }
            });
        }
        let ranks = self.ranks.len();
        let times = Mutex::new(times);
        let room = Mutex::new(Some(&mut *outputs));
        let sizes: Vec<usize> = lock(&room)
            .iter()
            .flat_map(|outputs| outputs.iter().map(|o| o.len()))
            .collect();
        let results = self.on_all(|rank| {
            let given: SmallVec<[&[u8]; 8]> = (inputs.iter().zip(&cut))
                .map(|(whole, cut)| cut.as_ref().map_or(*whole, |parts| &parts[rank].bytes[..]))
                .collect();
            let of = |(port, size): (usize, &usize)| match self.outputs[port] {
                Some(_) => size / ranks,
                None => *size,
            };
            // Only the first rank's whole outputs go where they are wanted.
            let mut own: Vec<Vec<u8>> = sizes.iter().enumerate().map(|port| vec![0; of(port)]).collect();
            let mut outputs: SmallVec<[&mut [u8]; 8]> = own.iter_mut().map(Vec::as_mut_slice).collect();
            match rank {
                0 => {
                    let mut room = lock(&room);
                    if let Some(room) = room.take() {
                        for (port, to) in room.iter_mut().enumerate() {
                            if self.outputs[port].is_none() {
                                outputs[port] = &mut **to;
                            }
                        }
                    }
                    let mut times = lock(&times);
                    let times = times.as_deref_mut();
                    self.ranks[rank].run(bindings, &given, &mut outputs, times)?;
                }
                _ => self.ranks[rank].run(bindings, &given, &mut outputs, None)?,
            }
            drop(outputs);
            Ok(own)
        })?;
        let checks = self.plan().results().len();
        for (port, to) in outputs.iter_mut().enumerate() {
            if let Some(number) = port.checked_sub(checks) {
                // A condition holds where it holds on every rank.
                let fails = |own: &&Vec<Vec<u8>>| self.plan().checks.get(number).is_some_and(|c| !c.holds(&own[port]));
                if let Some(failed) = results[1..].iter().find(fails) {
                    to.copy_from_slice(&failed[port]);
                }
                continue;
            }
            let Some(axis) = self.outputs[port] else { continue };
            let ty = &self.plan().outputs[port].ty;
            let shape = ty
                .shape
                .eval(bindings)?
                .into_iter()
                .map(|d| usize::try_from(d).unwrap_or(0));
            let mut shape: Vec<usize> = shape.collect();
            shape[axis] /= ranks;
            let parts = results.iter().map(|own| HostTensor {
                dtype: ty.dtype,
                shape: shape.clone(),
                bytes: Storage::new(own[port].clone()),
            });
            let whole = HostTensor::join(&parts.collect::<Vec<_>>(), axis);
            match whole.filter(|whole| whole.bytes.len() == to.len()) {
                Some(whole) => to.copy_from_slice(&whole.bytes),
                None => return Err(RuntimeError::Program("the ranks' parts do not fit each other".into())),
            }
        }
        Ok(())
    }

    fn submit(
        self: Arc<Self>,
        bindings: &Bindings,
        inputs: Vec<Given>,
        wanted: &[Where],
    ) -> Result<Arc<dyn Running>, RuntimeError> {
        let _order = lock(&self.order);
        self.check_ended()?;
        let mut given: Vec<Vec<Given>> = self.ranks.iter().map(|_| Vec::with_capacity(inputs.len())).collect();
        for (port, input) in inputs.into_iter().enumerate() {
            for (rank, part) in given.iter_mut().zip(self.cut(port, input)?) {
                rank.push(part);
            }
        }
        let given: Vec<Mutex<Vec<Given>>> = given.into_iter().map(Mutex::new).collect();
        let runs = self.on_all(|rank| {
            let inputs = std::mem::take(&mut *lock(&given[rank]));
            let wanted = self.wanted(rank, wanted);
            self.ranks[rank].clone().submit(bindings, inputs, &wanted)
        })?;
        let run = Arc::new(RankedRun {
            loaded: self.clone(),
            runs,
            wanted: wanted.into(),
            waited: AtomicBool::new(false),
        });
        if matches!(self.meeting, Met::Host(_)) {
            let mut begun = lock(&self.begun);
            begun.retain(|run| run.strong_count() > 0);
            begun.push(Arc::downgrade(&run));
        }
        Ok(run)
    }

    /// Copies the tensor to all ranks; what may be for a port that is cut stays on the host until a run cuts it.
    fn upload(&self, tensor: &HostTensor) -> Result<DeviceTensor, RuntimeError> {
        let ports = self.plan().inputs.iter().zip(&self.inputs);
        let is_cut = |ty: &ir::TensorType| ty.dtype == tensor.dtype && ty.rank() == tensor.shape.len();
        if ports.into_iter().any(|(port, axis)| axis.is_some() && is_cut(&port.ty)) {
            return Ok(crate::cpu::share(tensor));
        }
        let parts = self.ranks.iter().map(|rank| rank.upload(tensor));
        let parts: Vec<DeviceTensor> = parts.collect::<Result<_, _>>()?;
        Ok(together(&self.device, None, &parts))
    }

    /// Of the rank that takes most.
    fn memory(&self, bindings: &Bindings) -> Result<MemoryReport, RuntimeError> {
        let mut most = MemoryReport::default();
        for rank in &self.ranks {
            most = most.max_with(&rank.memory(bindings)?);
        }
        Ok(most)
    }

    /// Of the first rank; the others have the same runs.
    fn statistics(&self) -> RunStatistics {
        self.ranks
            .first()
            .map_or(RunStatistics::default(), |rank| rank.statistics())
    }

    fn trim(&self) -> usize {
        self.ranks.iter().map(|rank| rank.trim()).sum()
    }
}

/// A run under way on all ranks.
struct RankedRun {
    loaded: Arc<RankedLoaded>,
    runs: Vec<Arc<dyn Running>>,
    wanted: SmallVec<[Where; 8]>,
    /// Whether somebody waits or waited for it.
    waited: AtomicBool,
}

impl Drop for RankedRun {
    fn drop(&mut self) {
        // Waited for on all ranks at once: if one failed, the others are let go.
        if !self.waited.swap(true, Ordering::AcqRel) {
            let _ = self.loaded.on_all(|rank| self.runs[rank].wait().map(drop));
        }
    }
}

impl Running for RankedRun {
    fn is_done(&self) -> bool {
        self.runs.iter().all(|run| run.is_done())
    }

    fn wait(&self) -> Result<Vec<Option<Value>>, RuntimeError> {
        if self.waited.swap(true, Ordering::AcqRel) {
            let twice = "the outputs of a run were asked for twice";
            return Err(RuntimeError::Program(twice.into()));
        }
        let mut ranks = self.loaded.on_all(|rank| self.runs[rank].wait())?;
        let mut joined = Vec::with_capacity(self.wanted.len());
        for port in 0..self.wanted.len() {
            let parts: Vec<Value> = ranks.iter_mut().filter_map(|values| values[port].take()).collect();
            joined.push(match parts.is_empty() {
                true => None,
                false => match (self.loaded.outputs[port], &parts[0]) {
                    // The others' are the same, and were not asked for.
                    (None, Value::Host(_)) if port < self.loaded.plan().results().len() => parts.into_iter().next(),
                    _ => self.loaded.join(port, parts)?,
                },
            });
        }
        Ok(joined)
    }

    fn take(&self, output: usize) -> Option<DeviceTensor> {
        if self.wanted.get(output) != Some(&Where::Device) {
            return None;
        }
        let parts: Option<Vec<DeviceTensor>> = self.runs.iter().map(|run| run.take(output)).collect();
        Some(self.loaded.together(output, &parts?))
    }

    fn wake(self: Arc<Self>, waker: Waker) {
        let all = Arc::new(Countdown {
            left: AtomicUsize::new(self.runs.len()),
            waker,
        });
        for run in &self.runs {
            run.clone().wake(Waker::from(all.clone()));
        }
    }
}

/// Wakes a task once every rank is done.
pub(super) struct Countdown {
    pub left: AtomicUsize,
    pub waker: Waker,
}

impl Wake for Countdown {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The watch wakes by reference once and drops; each rank counts once.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waker.wake_by_ref();
        }
    }
}
