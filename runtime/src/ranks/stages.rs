//! Runs of a program whose ranks are stages: each has some of the layers, and they follow each other.
//!
//! Before: a program with a variant for each stage (`ir::plan::Stage`), each loaded on its device. After: one loaded
//! program with the model's ports. A run is begun on all stages before anybody waits: what crosses is taken from a
//! stage as soon as it is begun, and goes to the next by a copy that waits on the device for what makes it. So the next
//! run is in the first stage while this one is in the second. Each stage orders its own runs by the memory that they
//! share, as on one device, and takes as many at once as it has room for.
//!
//! Invariant: nobody waits for a stage that failed: later stages of that run are not begun, and earlier ones come to
//! their end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use ir::dim::Bindings;
use ir::entity::Entity;
use ir::plan::{Plan, Source, Stage, StepId, Work, stages};
use ir::{HostTensor, Program, Storage};
use smallvec::SmallVec;

use super::run::Countdown;
use crate::cpu;
use crate::device::{Loaded, MemoryReport, RunStatistics, RunTimes, Running, StepTime};
use crate::error::{InputError, RuntimeError};
use crate::gpu::peer::{Entrance, Sent};
use crate::tensor::{DeviceTensor, Given, Memory, Value, Where};

/// See the module.
pub(super) struct StagedLoaded {
    stages: Vec<OneStage>,
    /// Of all: `hip:0,1`.
    device: String,
    face: Arc<Program>,
    variant: usize,
    /// How many stages read each input of the model.
    readers: Vec<usize>,
    /// The first step of each stage in the plan that they are together.
    starts: Vec<StepId>,
}

/// One stage on its device.
pub(super) struct OneStage {
    pub loaded: Arc<dyn Loaded>,
    pub name: String,
    /// None on the CPU, whose memory all stages share.
    pub entrance: Option<Entrance>,
    pub ports: Stage,
    /// How many conditions it has.
    pub checks: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The plan that the stages of a program are together, and the first step of each.
pub(super) fn face(program: &Program, variants: &[usize]) -> Result<(Plan, Vec<StepId>), RuntimeError> {
    let plans: Vec<&Plan> = variants.iter().map(|at| &program.variants[*at].plan).collect();
    stages::whole(&plans).map_err(|error| RuntimeError::Program(error.to_string()))
}

/// A value that crosses, while its run is begun.
struct Crossing {
    tensor: DeviceTensor,
    /// How many stages are still to be given it.
    left: usize,
}

impl StagedLoaded {
    pub fn new(
        program: &Program,
        variants: &[usize],
        device: &str,
        stages: Vec<OneStage>,
    ) -> Result<StagedLoaded, RuntimeError> {
        let (plan, starts) = face(program, variants)?;
        let sources = stages.iter().flat_map(|stage| &stage.ports.inputs);
        let mut readers = vec![0; plan.inputs.len()];
        for source in sources {
            if let Source::Model(number) = source
                && let Some(readers) = readers.get_mut(*number as usize)
            {
                *readers += 1;
            }
        }
        let mut face = program.clone();
        face.variants[variants[0]].plan = plan;
        Ok(StagedLoaded {
            stages,
            device: device.to_owned(),
            face: Arc::new(face),
            variant: variants[0],
            readers,
            starts,
        })
    }

    fn plan(&self) -> &Plan {
        &self.face.variants[self.variant].plan
    }

    /// The error of one stage; what was refused before anything was begun is said as it is.
    fn of_stage(&self, stage: usize, begun: bool, error: RuntimeError) -> RuntimeError {
        if !begun && error.is_refusal() {
            return error;
        }
        RuntimeError::Stage {
            stage,
            device: self.stages[stage].name.clone(),
            begun,
            error: Box::new(error),
        }
    }

    /// Refuses what no stage could take, before any is begun.
    fn check(&self, port: usize, given: &Given) -> Result<(), RuntimeError> {
        let (tensor, donated) = match given {
            Given::Host(_) => return Ok(()),
            Given::Device(tensor) => (tensor, false),
            Given::Donated(tensor) => (tensor, true),
        };
        let wrong = |error| Err(RuntimeError::input(error, &self.plan().inputs));
        let name = || self.plan().inputs[port].name.clone();
        if donated && !tensor.is_only_handle() {
            return wrong(InputError::Shared(name()));
        }
        let is_here = match tensor.memory() {
            Memory::Host(_) => true,
            Memory::Gpu(block) => {
                let mut entrances = self.stages.iter().filter_map(|stage| stage.entrance.as_ref());
                entrances.any(|entrance| entrance.has(block))
            }
            Memory::Ranks(parts) => parts.device == self.device,
        };
        if is_here {
            return Ok(());
        }
        wrong(InputError::Elsewhere {
            name: name(),
            on: tensor.device().to_owned(),
            device: self.device.clone(),
        })
    }

    /// Puts an input where its stage is.
    fn bring(&self, stage: &OneStage, given: Given, what: &str, sent: &mut Vec<Sent>) -> Result<Given, RuntimeError> {
        let (tensor, donated) = match given {
            Given::Host(tensor) => return Ok(Given::Host(tensor)),
            Given::Device(tensor) => (tensor, false),
            Given::Donated(tensor) => (tensor, true),
        };
        let as_it_is = |tensor| match donated {
            true => Given::Donated(tensor),
            false => Given::Device(tensor),
        };
        match (tensor.memory(), &stage.entrance) {
            (Memory::Host(_), None) => Ok(as_it_is(tensor)),
            // Uploaded before it was known which stage reads it.
            (Memory::Host(_), Some(_)) => stage.loaded.upload(&tensor.download()?).map(Given::Donated),
            // Made by a program that shares each layer.
            (Memory::Ranks(_), _) => Ok(Given::Host(tensor.download()?)),
            (Memory::Gpu(block), Some(entrance)) if entrance.has(block) => Ok(as_it_is(tensor)),
            (Memory::Gpu(_), Some(entrance)) => {
                let (received, copy) = entrance.receive(&tensor, what)?;
                sent.extend(copy);
                Ok(Given::Donated(received))
            }
            (Memory::Gpu(_), None) => Ok(Given::Host(tensor.download()?)),
        }
    }

    /// Begins one stage of a run.
    fn begin(
        &self,
        number: usize,
        bindings: &Bindings,
        inputs: &mut [(Option<Given>, usize)],
        made: &mut [Vec<Option<Crossing>>],
        wanted: &[Where],
        sent: &mut Vec<Sent>,
    ) -> Result<OneRun, RuntimeError> {
        let stage = &self.stages[number];
        let damaged = || RuntimeError::Program(format!("stage {number} has no value for one of its inputs"));
        let mut given = Vec::with_capacity(stage.ports.inputs.len());
        for source in &stage.ports.inputs {
            let (value, what) = match *source {
                Source::Model(at) => {
                    let (slot, left) = inputs.get_mut(at as usize).ok_or_else(damaged)?;
                    *left -= 1;
                    let value = match (*left, self.readers[at as usize]) {
                        (0, 1) => slot.take(),
                        // What several stages read is nobody's to write.
                        (0, _) => slot.take().map(kept),
                        _ => slot.as_ref().map(shared),
                    };
                    let name = || format!("input {:?} for stage {number}", self.plan().inputs[at as usize].name);
                    (value, name())
                }
                Source::Stage { stage: from, result } => {
                    let of = made.get_mut(from as usize).and_then(|of| of.get_mut(result as usize));
                    let slot = of.ok_or_else(damaged)?;
                    let crossing = slot.as_mut().ok_or_else(damaged)?;
                    crossing.left -= 1;
                    let value = match crossing.left {
                        0 => slot.take().map(|crossing| Given::Donated(crossing.tensor)),
                        _ => Some(Given::Device(crossing.tensor.clone())),
                    };
                    (value, format!("result {result} of stage {from} for stage {number}"))
                }
            };
            let value = self.bring(stage, value.ok_or_else(damaged)?, &what, sent)?;
            given.push(value);
        }
        let places: SmallVec<[Where; 8]> = self.places(number, wanted);
        let run = stage.loaded.clone().submit(bindings, given, &places)?;
        let mut one = OneRun {
            run,
            early: Mutex::new(None),
        };
        let mut crossing = Vec::with_capacity(stage.ports.results.len());
        for (result, number_of_model) in stage.ports.results.iter().enumerate() {
            crossing.push(match number_of_model {
                Some(_) => None,
                None => Some(Crossing {
                    tensor: one.take(result)?,
                    left: self.readers_of(number, result),
                }),
            });
        }
        made[number] = crossing;
        Ok(one)
    }

    /// How many inputs of later stages a result is.
    fn readers_of(&self, stage: usize, result: usize) -> usize {
        let source = Source::Stage {
            stage: stage as u32,
            result: result as u32,
        };
        let all = self.stages.iter().flat_map(|stage| &stage.ports.inputs);
        all.filter(|other| **other == source).count()
    }

    /// Where a stage leaves its outputs.
    fn places(&self, number: usize, wanted: &[Where]) -> SmallVec<[Where; 8]> {
        let stage = &self.stages[number];
        let results = stage.ports.results.iter().map(|result| match result {
            Some(result) => wanted.get(*result as usize).copied().unwrap_or_default(),
            None => Where::Device,
        });
        results.chain((0..stage.checks).map(|_| Where::Host)).collect()
    }

    /// Which stage makes each output of the model, conditions among them, and as which of its own.
    fn makers(&self) -> Vec<(usize, usize)> {
        let results = self.plan().results().len();
        let mut makers = vec![(0, 0); self.plan().outputs.len()];
        let mut check = results;
        for (number, stage) in self.stages.iter().enumerate() {
            for (own, result) in stage.ports.results.iter().enumerate() {
                if let Some(maker) = result.and_then(|result| makers.get_mut(result as usize)) {
                    *maker = (number, own);
                }
            }
            for own in 0..stage.checks {
                makers[check] = (number, stage.ports.results.len() + own);
                check += 1;
            }
        }
        makers
    }

    /// Runs the stages one after the other, each by itself, for their times. What crosses goes by way of the host.
    fn run_apart(
        &self,
        bindings: &Bindings,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        times: &mut RunTimes,
    ) -> Result<(), RuntimeError> {
        let mut made: Vec<Vec<Vec<u8>>> = Vec::with_capacity(self.stages.len());
        for (number, stage) in self.stages.iter().enumerate() {
            let of = |error| self.of_stage(number, number > 0, error);
            let damaged = || RuntimeError::Program(format!("stage {number} has no value for one of its inputs"));
            let mut given: Vec<&[u8]> = Vec::with_capacity(stage.ports.inputs.len());
            for source in &stage.ports.inputs {
                let bytes = match *source {
                    Source::Model(at) => inputs.get(at as usize).copied(),
                    Source::Stage { stage, result } => {
                        let of = made.get(stage as usize).and_then(|of| of.get(result as usize));
                        of.map(Vec::as_slice)
                    }
                };
                given.push(bytes.ok_or_else(damaged)?);
            }
            let program = stage.loaded.clone();
            let mut own: Vec<Vec<u8>> = Vec::new();
            for bytes in self.output_bytes(number, bindings)? {
                own.push(vec![0; bytes]);
            }
            let mut room: Vec<&mut [u8]> = own.iter_mut().map(Vec::as_mut_slice).collect();
            let mut apart = RunTimes::default();
            program.run(bindings, &given, &mut room, Some(&mut apart)).map_err(of)?;
            let before = times.device;
            // The copies of what crosses into the stage: of no time of their own here.
            let copies = times.steps.len()..self.starts[number].index();
            times.steps.extend(copies.map(|step| StepTime {
                step: StepId::new(step),
                name: "copy".into(),
                engine: "by the host".into(),
                start: before,
                time: Duration::ZERO,
            }));
            times.steps.extend(apart.steps.into_iter().map(|step| StepTime {
                step: StepId::new(step.step.index() + self.starts[number].index()),
                start: step.start + before,
                ..step
            }));
            times.device += apart.device;
            times.enqueue += apart.enqueue;
            made.push(own);
        }
        for ((stage, own), to) in self.makers().into_iter().zip(outputs) {
            to.copy_from_slice(&made[stage][own]);
        }
        Ok(())
    }

    /// The bytes of each output of a stage.
    fn output_bytes(&self, number: usize, bindings: &Bindings) -> Result<Vec<usize>, RuntimeError> {
        let stage = &self.stages[number];
        let plan = self.plan();
        let first = plan.results().len() + self.stages[..number].iter().map(|stage| stage.checks).sum::<usize>();
        let mut bytes = Vec::with_capacity(stage.ports.results.len() + stage.checks);
        for (own, result) in stage.ports.results.iter().enumerate() {
            let ty = match result {
                Some(result) => plan.outputs.get(*result as usize).map(|port| &port.ty),
                None => self.crossing_type(number, own),
            };
            let ty = ty.ok_or_else(|| RuntimeError::Program(format!("stage {number} has a result of no type")))?;
            bytes.push(usize::try_from(ty.bytes().eval(bindings)?).unwrap_or(0));
        }
        for check in first..first + stage.checks {
            bytes.push(usize::try_from(plan.outputs[check].ty.bytes().eval(bindings)?).unwrap_or(0));
        }
        Ok(bytes)
    }

    /// The type of a value that crosses: that of the copy which carries it.
    fn crossing_type(&self, stage: usize, result: usize) -> Option<&ir::TensorType> {
        let source = Source::Stage {
            stage: stage as u32,
            result: result as u32,
        };
        let plan = self.plan();
        let reader = self
            .stages
            .iter()
            .position(|stage| stage.ports.inputs.contains(&source))?;
        let into = self.stages[reader].ports.inputs.iter();
        let crossing = into.filter(|input| matches!(input, Source::Stage { .. }));
        let at = crossing.clone().position(|input| *input == source)?;
        let first = self.starts[reader].index().checked_sub(crossing.count())?;
        match plan.steps.get(StepId::new(first + at))?.work {
            Work::Copy { to, .. } => Some(&plan.buffers[to].ty),
            _ => None,
        }
    }
}

/// A value that others are given too.
fn shared(given: &Given) -> Given {
    match given {
        Given::Host(tensor) => Given::Host(tensor.clone()),
        Given::Device(tensor) | Given::Donated(tensor) => Given::Device(tensor.clone()),
    }
}

fn kept(given: Given) -> Given {
    match given {
        Given::Donated(tensor) => Given::Device(tensor),
        other => other,
    }
}

impl Loaded for StagedLoaded {
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
        if let Some(times) = times {
            return self.run_apart(bindings, inputs, outputs, times);
        }
        let mut given = Vec::with_capacity(inputs.len());
        for (port, bytes) in self.plan().inputs.iter().zip(inputs) {
            let shape = port.ty.shape.eval(bindings)?.into_iter();
            given.push(Given::Host(HostTensor {
                dtype: port.ty.dtype,
                shape: shape.map(|d| usize::try_from(d).unwrap_or(0)).collect(),
                bytes: Storage::new(bytes.to_vec()),
            }));
        }
        let wanted: SmallVec<[Where; 8]> = outputs.iter().map(|_| Where::Host).collect();
        let values = self.start(bindings, given, &wanted)?.collect(self)?;
        for (value, to) in values.into_iter().zip(outputs) {
            match value {
                Some(Value::Host(tensor)) if tensor.bytes.len() == to.len() => to.copy_from_slice(&tensor.bytes),
                _ => return Err(RuntimeError::Program("an output of a stage is not there".into())),
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
        let runs = self.start(bindings, inputs, wanted)?;
        Ok(Arc::new(StagedRun {
            loaded: self,
            runs,
            wanted: wanted.into(),
            waited: AtomicBool::new(false),
        }))
    }

    /// What can be one input alone goes to the stage that reads it. Other tensors stay on the host until a run gives
    /// them to their stages: the caches of all layers are alike.
    fn upload(&self, tensor: &HostTensor) -> Result<DeviceTensor, RuntimeError> {
        let inputs = self.plan().inputs.iter().enumerate();
        let fits = |ty: &ir::TensorType| ty.dtype == tensor.dtype && ty.rank() == tensor.shape.len();
        let mut fitting = inputs
            .filter(|(_, port)| fits(&port.ty))
            .map(|(number, _)| number as u32);
        if let (Some(number), None) = (fitting.next(), fitting.next()) {
            let reads = |stage: &&OneStage| stage.ports.inputs.contains(&Source::Model(number));
            if let Some(stage) = self.stages.iter().find(reads) {
                return stage.loaded.upload(tensor);
            }
        }
        Ok(cpu::share(tensor))
    }

    /// Of the stage that takes most.
    fn memory(&self, bindings: &Bindings) -> Result<MemoryReport, RuntimeError> {
        let mut most = MemoryReport::default();
        for stage in &self.stages {
            most = most.max_with(&stage.loaded.memory(bindings)?);
        }
        Ok(most)
    }

    /// Of all stages together; the runs are those of the first.
    fn statistics(&self) -> RunStatistics {
        let mut all = RunStatistics::default();
        for (number, stage) in self.stages.iter().enumerate() {
            let of = stage.loaded.statistics();
            if number == 0 {
                all.runs = of.runs;
            }
            all.placed += of.placed;
            all.sized += of.sized;
            all.captured += of.captured;
            all.replayed += of.replayed;
            all.refused = all.refused.max(of.refused);
            all.contexts += of.contexts;
            all.streamed_bytes += of.streamed_bytes;
        }
        all
    }

    fn trim(&self) -> usize {
        self.stages.iter().map(|stage| stage.loaded.trim()).sum()
    }
}

impl StagedLoaded {
    /// Begins a run on all stages.
    fn start(&self, bindings: &Bindings, inputs: Vec<Given>, wanted: &[Where]) -> Result<Runs, RuntimeError> {
        for (port, given) in inputs.iter().enumerate() {
            self.check(port, given)?;
        }
        let readers = self.readers.iter().copied();
        let mut inputs: Vec<(Option<Given>, usize)> = inputs.into_iter().map(Some).zip(readers).collect();
        let mut made: Vec<Vec<Option<Crossing>>> = self.stages.iter().map(|_| Vec::new()).collect();
        let mut runs = Runs::default();
        for number in 0..self.stages.len() {
            let mut sent = Vec::new();
            let begun = self.begin(number, bindings, &mut inputs, &mut made, wanted, &mut sent);
            runs.sent.extend(sent);
            match begun {
                Ok(run) => runs.stages.push(run),
                // Those before come to their end as what was begun is dropped.
                Err(error) => return Err(self.of_stage(number, number > 0, error)),
            }
        }
        Ok(runs)
    }
}

/// One stage of a run.
struct OneRun {
    run: Arc<dyn Running>,
    /// Its outputs, where it had to be waited for already.
    early: Mutex<Option<Vec<Option<Value>>>>,
}

impl OneRun {
    /// A result on the device, before the run is done where that can be.
    fn take(&mut self, result: usize) -> Result<DeviceTensor, RuntimeError> {
        if let Some(tensor) = self.run.take(result) {
            return Ok(tensor);
        }
        // It is an input or a constant under another name, which is known once the run is done.
        let early = self.early.get_mut().unwrap_or_else(PoisonError::into_inner);
        let values = match early {
            Some(values) => values,
            None => early.insert(self.run.wait()?),
        };
        let value = values
            .get_mut(result)
            .and_then(Option::take)
            .and_then(Value::into_device);
        value.ok_or_else(|| RuntimeError::Program(format!("result {result} of a stage is not on its device")))
    }

    fn wait(&self) -> Result<Vec<Option<Value>>, RuntimeError> {
        match lock(&self.early).take() {
            Some(values) => Ok(values),
            None => self.run.wait(),
        }
    }

    fn is_done(&self) -> bool {
        lock(&self.early).is_some() || self.run.is_done()
    }
}

/// What was begun of a run; runs end before what they read.
#[derive(Default)]
struct Runs {
    stages: Vec<OneRun>,
    sent: Vec<Sent>,
}

impl Runs {
    /// Waits for all stages and gives the model's outputs. The first stage that failed is the one that is said.
    fn collect(&self, loaded: &StagedLoaded) -> Result<Vec<Option<Value>>, RuntimeError> {
        let each: Vec<_> = self.stages.iter().map(OneRun::wait).collect();
        let mut values = Vec::with_capacity(each.len());
        for (number, result) in each.into_iter().enumerate() {
            values.push(result.map_err(|error| loaded.of_stage(number, true, error))?);
        }
        let outputs = loaded.makers().into_iter();
        let taken = outputs.map(|(stage, own)| values[stage].get_mut(own).and_then(Option::take));
        Ok(taken.collect())
    }
}

/// A run under way in all stages.
struct StagedRun {
    loaded: Arc<StagedLoaded>,
    runs: Runs,
    wanted: SmallVec<[Where; 8]>,
    waited: AtomicBool,
}

impl Running for StagedRun {
    fn is_done(&self) -> bool {
        self.runs.stages.iter().all(OneRun::is_done)
    }

    fn wait(&self) -> Result<Vec<Option<Value>>, RuntimeError> {
        if self.waited.swap(true, Ordering::AcqRel) {
            let twice = "the outputs of a run were asked for twice";
            return Err(RuntimeError::Program(twice.into()));
        }
        self.runs.collect(&self.loaded)
    }

    fn take(&self, output: usize) -> Option<DeviceTensor> {
        if self.wanted.get(output) != Some(&Where::Device) {
            return None;
        }
        let (stage, own) = self.loaded.makers().get(output).copied()?;
        let run = &self.runs.stages[stage];
        let mut early = lock(&run.early);
        match &mut *early {
            Some(values) => match values.get_mut(own)?.take()? {
                Value::Device(tensor) => Some(tensor),
                host @ Value::Host(_) => {
                    values[own] = Some(host);
                    None
                }
            },
            None => run.run.take(own),
        }
    }

    fn wake(self: Arc<Self>, waker: Waker) {
        let all = Arc::new(Countdown {
            left: AtomicUsize::new(self.runs.stages.len()),
            waker,
        });
        for stage in &self.runs.stages {
            match lock(&stage.early).is_some() {
                true => Waker::from(all.clone()).wake(),
                false => stage.run.clone().wake(Waker::from(all.clone())),
            }
        }
    }
}
