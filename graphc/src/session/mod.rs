//! Compiled models inside an app: [`Session`] for one model, [`jit`] for a function of tensors, [`SessionCache`] for
//! many graphs.
//!
//! graphc compiles nothing inside a run: a session compiles when it is made, a JIT at the first call with a new
//! signature. (MIOpen, where a plan calls it, compiles its own kernels the first time that a run context meets new
//! sizes; `OptimizeOptions::libraries` switches such calls off.)
//!
//! A session takes tensors of the host and of its device, and gives them where they are wanted: [`Session::values`]
//! waits for a run, [`Session::submit`] does not. What a model keeps from run to run is the session's
//! [state](SessionOptions::state).

mod cache;
mod device;
mod jit;
mod key;
mod named;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use frontend::onnx::{GivenInput, ImportOptions};
use indexmap::IndexMap;
use ir::plan::Port;
use ir::{DType, Graph, HostTensor, Program, Target, TensorType};
use passes::shard::Split;
use passes::{OptLevel, ShardOptions, WeightType};
use runtime::gpu::GpuDevice;
use runtime::{DeviceTensor, Executable, Given, Link, LoadOptions, Pending, State, Values, Wanted};

use crate::driver::{self, BuildOptions, Model, Source};
use crate::error::{Error, Result};
use crate::options::Settings;

pub use cache::{CacheStats, SessionCache};
pub use device::with_least;
pub use device::{DeviceChoice, OpenDevice, cpu_device};
pub use jit::{Jit, JitOutput, JitStats, jit};
pub use key::GraphKey;
pub use named::NamedOptions;

/// Outputs by name, in the model's order.
pub type Outputs = IndexMap<String, HostTensor>;

/// What computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// The compiled program.
    #[default]
    Compiled,
    /// The reference evaluator, in `f64` and slow: to find out whether a difference is the compiler's fault.
    Reference,
}

/// How a session compiles and runs.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// What to compile for; [`SessionOptions::device`] sets it to what the device is.
    pub target: Target,
    /// Where to run. None finds a device for the target when a model is loaded, where the settings say.
    pub device: Option<OpenDevice>,
    /// Where the compiler of a GPU's kernels, the cache of their code and the GPU's runtime are, and what holds where
    /// `load` says nothing. None reads the environment.
    pub settings: Option<Arc<Settings>>,
    pub level: OptLevel,
    /// The type to compute in, where not the model's own.
    pub dtype: Option<DType>,
    /// How the weights of products are stored, where not as the model has them.
    pub weights: Option<WeightType>,
    /// Whether a run fails that is given an index outside its axis, which is clamped otherwise. None: on the CPU alone.
    pub check_indices: Option<bool>,
    /// Bytes of a GPU's memory that weights and runs may take ([`BuildOptions::max_vram`]).
    pub max_vram: Option<usize>,
    /// Gives a GPU up once the host waited that long for it: such a run ends with [`RuntimeError::TimedOut`], and the
    /// device is lost. It is the device's, for all that runs there. `None` leaves the device as it is, which waits for
    /// ever at first.
    pub timeout: Option<Duration>,
    /// How the model is shared, where the device is several; None weighs what that costs by the defaults. How many
    /// there are is the device's, what each has is [`split`](SessionOptions::split), and what stays on them is
    /// [`state`](SessionOptions::state).
    pub sharing: Option<ShardOptions>,
    /// What of the model each of several devices has: a part of each layer ([`Split::Tensors`], the default), some of
    /// the layers, or what is predicted to take one run less time. None is what [`sharing`](SessionOptions::sharing)
    /// says.
    pub split: Option<Split>,
    pub load: LoadOptions,
    pub engine: Engine,
    /// Inputs whose next value is an output.
    pub state: Vec<Link>,
}

impl Default for SessionOptions {
    /// On the CPU, optimised, with as many threads as the settings say: by default one a core.
    fn default() -> SessionOptions {
        SessionOptions {
            target: Target::cpu(),
            device: None,
            settings: None,
            level: OptLevel::O2,
            dtype: None,
            weights: None,
            check_indices: None,
            max_vram: None,
            timeout: None,
            sharing: None,
            split: None,
            load: LoadOptions::default(),
            engine: Engine::default(),
            state: Vec::new(),
        }
    }
}

impl SessionOptions {
    /// Sets the threads of one run; 0 is what the settings say.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> SessionOptions {
        self.load.threads = threads;
        self
    }

    /// Sets where to run, and compiles for that: `SessionOptions::default().device("hip".parse()?)?`.
    ///
    /// # Errors
    /// `NotAvailable` with what was looked for and where; `auto` takes the CPU instead, and
    /// [`fallback`](OpenDevice::fallback) says why.
    pub fn device(mut self, choice: DeviceChoice) -> Result<SessionOptions> {
        let device = OpenDevice::open(choice, self.settings()?.as_ref())?;
        self.target = device.target;
        self.device = Some(device);
        Ok(self)
    }

    fn settings(&self) -> Result<Arc<Settings>> {
        match &self.settings {
            Some(settings) => Ok(settings.clone()),
            None => Ok(Arc::new(Settings::from_env()?)),
        }
    }

    /// How a graph is compiled for some targets.
    pub(crate) fn build(&self, targets: Vec<Target>) -> BuildOptions {
        let mut build = BuildOptions::new(targets, self.level).dtype(self.dtype);
        build.optimize.weights = self.weights;
        build.check_indices = self.check_indices;
        build.max_vram = self.max_vram;
        build.ranks = self.ranks();
        let states = self.state.iter().map(|link| (link.input.clone(), link.output.clone()));
        build.states = states.collect();
        build
    }

    /// How the model is shared, where the device is several.
    fn ranks(&self) -> Option<ShardOptions> {
        let ranks = self.device.as_ref().map_or(1, OpenDevice::ranks);
        let sharing = self.sharing.clone().unwrap_or(ShardOptions::new(ranks));
        (ranks > 1).then(|| ShardOptions {
            ranks,
            split: self.split.unwrap_or(sharing.split),
            ..sharing
        })
    }

    /// Sets what of the model each of several devices has.
    #[must_use]
    pub fn split(mut self, split: Split) -> SessionOptions {
        self.split = Some(split);
        self
    }

    /// Sets the optimisation level.
    #[must_use]
    pub fn level(mut self, level: OptLevel) -> SessionOptions {
        self.level = level;
        self
    }

    /// Keeps the value of an input in the session: it begins as zeros, each run is given it, and `output` is its next
    /// value. The plan updates it in place where it can: a scatter of rows into a cache writes those rows and nothing
    /// else. Neither is then given or returned by runs.
    #[must_use]
    pub fn state(mut self, input: &str, output: &str) -> SessionOptions {
        self.state.push(Link {
            input: input.to_owned(),
            output: output.to_owned(),
        });
        self
    }

    /// Sets what computes.
    #[must_use]
    pub fn engine(mut self, engine: Engine) -> SessionOptions {
        self.engine = engine;
        self
    }
}

/// A compiled model. Cheap to clone; several threads may run it at once.
///
/// Symbolic sizes are compiled in: a session runs every size within their bounds and never compiles again.
///
/// ```
/// use graphc::prelude::*;
///
/// let graph = trace("double", [InputSpec::new("x", DType::F32, shape!["n"])], |[x]| [("y", x * 2.0)])?;
/// let session = Session::compile(graph, &SessionOptions::default())?;
/// for n in [1usize, 3] {
///     let x = HostTensor::from_f32([n], &vec![1.5; n])?;
///     assert_eq!(session.run(&[("x", &x)])?["y"].to_f32(), vec![3.0; n]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Session {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// None for a model without state. It ends before the model, which gives back what tensors kept.
    state: Option<State>,
    model: Arc<Loaded>,
    device: String,
    runs: AtomicU64,
}

#[derive(Debug)]
enum Loaded {
    Compiled(Executable),
    Reference(Graph),
}

impl Session {
    /// Compiles a graph.
    ///
    /// # Errors
    /// What the passes report, or no device for the target.
    pub fn compile(graph: Graph, options: &SessionOptions) -> Result<Session> {
        if options.engine == Engine::Reference {
            if !options.state.is_empty() {
                return Err(by_reference("state"));
            }
            let device = "cpu".to_owned();
            return Ok(Session::new(Arc::new(Loaded::Reference(graph)), None, device));
        }
        let build = options.build(vec![options.target]);
        let program = match options.target.is_gpu() {
            true => {
                let settings = options.settings()?;
                let compiler = driver::compiler(
                    &settings,
                    settings.worker_command().as_deref(),
                    [options.target.platform],
                )?;
                driver::program(&graph, &build, &compiler, &settings, &|_| {})?.program
            }
            false => driver::build(&graph, &build)?.program,
        };
        Session::load(Arc::new(program), 0, options)
    }

    /// Imports and compiles an ONNX model.
    ///
    /// # Errors
    /// As the importer and [`Session::compile`].
    pub fn from_onnx(path: impl AsRef<Path>, import: &ImportOptions, options: &SessionOptions) -> Result<Session> {
        Session::compile(driver::model::import(path.as_ref(), import)?, options)
    }

    /// Imports and compiles an ONNX model that is to run on inputs like these: with its sizes left open where that
    /// works at these sizes, or else for these inputs alone (their sizes, the numbers of small integer inputs, and the
    /// sizes and branches that their data decide, which each run checks). The second value says why the model was
    /// compiled for them alone.
    ///
    /// # Errors
    /// As [`Session::from_onnx`], of the second try where there is one.
    pub fn from_onnx_for(
        path: impl AsRef<Path>,
        import: &ImportOptions,
        inputs: &IndexMap<String, HostTensor>,
        options: &SessionOptions,
    ) -> Result<(Session, Option<String>)> {
        let path = path.as_ref();
        Session::for_inputs(import, inputs, |import| Session::from_onnx(path, import, options))
    }

    /// Opens a model with its sizes left open where that works for these inputs, or else for these inputs alone.
    fn for_inputs(
        import: &ImportOptions,
        inputs: &IndexMap<String, HostTensor>,
        open: impl Fn(&ImportOptions) -> Result<Session>,
    ) -> Result<(Session, Option<String>)> {
        let mut import = import.clone();
        import.overridden.extend(inputs.keys().cloned());
        let opened = open(&import).and_then(|session| {
            if let (Loaded::Compiled(executable), None) = (&*session.inner.model, &session.inner.state) {
                executable.bind(inputs)?;
            }
            Ok(session)
        });
        let reason = match opened {
            Err(error) if error.is_of_sizes() => error.to_string(),
            session => return Ok((session?, None)),
        };
        let given = inputs
            .iter()
            .map(|(name, tensor)| (name.clone(), GivenInput::of(tensor)));
        import.given.extend(given);
        Ok((open(&import)?, Some(reason)))
    }

    /// Opens any model file: ONNX, `.gir`, or an artifact that holds code for the target.
    ///
    /// # Errors
    /// As the reader of the file's kind and [`Session::compile`]; an artifact without the target.
    pub fn open(path: impl AsRef<Path>, options: &SessionOptions) -> Result<Session> {
        Session::of_source(&Source::from(path.as_ref()), &ImportOptions::default(), options)
    }

    /// Opens a model of any kind, in a file or in memory.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn of_source(source: &Source, import: &ImportOptions, options: &SessionOptions) -> Result<Session> {
        match source.load(import)? {
            Model::Graph(graph) => Session::compile(*graph, options),
            Model::Program(program) => Session::of_program(Arc::new(*program), options),
        }
    }

    /// As [`Session::from_onnx_for`], of a model of any kind, in a file or in memory. What is no ONNX has its sizes
    /// decided: it is opened as it is.
    ///
    /// # Errors
    /// As [`Session::from_onnx_for`].
    pub fn of_source_for(
        source: &Source,
        import: &ImportOptions,
        inputs: &IndexMap<String, HostTensor>,
        options: &SessionOptions,
    ) -> Result<(Session, Option<String>)> {
        Session::for_inputs(import, inputs, |import| Session::of_source(source, import, options))
    }

    /// Loads a program that was compiled, for the options' device or target.
    ///
    /// # Errors
    /// A program without code for it, or what loading reports.
    pub fn of_program(program: Arc<Program>, options: &SessionOptions) -> Result<Session> {
        let variant = match &options.device {
            Some(device) => device.variant(&program)?,
            None => {
                let compiled = || program.variants.iter().map(|v| v.plan.target);
                let found = Target::best_for(compiled(), &options.target);
                found.ok_or_else(|| Error::NoVariant {
                    wanted: options.target.to_string(),
                    have: compiled().map(|target| target.to_string()).collect(),
                })?
            }
        };
        Session::load(program, variant, options)
    }

    fn load(mut program: Arc<Program>, variant: usize, options: &SessionOptions) -> Result<Session> {
        let plan = &program.variants[variant].plan;
        // What was just compiled fits already.
        if let Some(limit) = options.max_vram
            && plan.target.is_gpu()
            && plan.streaming.is_none_or(|streaming| streaming.limit != limit)
        {
            let (target, ranks) = (plan.target, plan.share.as_ref().map(|share| share.ranks));
            // Of all ranks.
            for variant in &mut Arc::make_mut(&mut program).variants {
                if variant.plan.target == target && variant.plan.share.as_ref().map(|share| share.ranks) == ranks {
                    variant.plan = passes::stream::stream(&variant.plan, limit)?;
                }
            }
        }
        let settings = options.settings()?;
        let load = settings.loading(options.load.clone());
        let device = match &options.device {
            Some(device) => {
                if options.timeout.is_some() {
                    device.device.set_timeout(options.timeout);
                }
                device.clone()
            }
            None if options.target.is_gpu() => {
                let gpu = GpuDevice::for_target(&settings.gpu_search(), &options.target)?;
                gpu.set_timeout(options.timeout.or(settings.timeout));
                OpenDevice {
                    target: options.target,
                    device: Arc::new(gpu),
                    fallback: None,
                }
            }
            None => OpenDevice::cpu(),
        };
        let executable = device.load(program, variant, &load)?;
        // An artifact knows of its states what it was compiled with.
        let links = match options.state.is_empty() {
            true => Link::of_plan(executable.plan()),
            false => options.state.clone(),
        };
        let state = match links.is_empty() {
            true => None,
            false => Some(State::new(&executable, links)?),
        };
        let device = device.device.name().to_owned();
        Ok(Session::new(Arc::new(Loaded::Compiled(executable)), state, device))
    }

    fn new(model: Arc<Loaded>, state: Option<State>, device: String) -> Session {
        Session {
            inner: Arc::new(Inner {
                model,
                state,
                device,
                runs: AtomicU64::new(0),
            }),
        }
    }

    /// Runs on inputs given by name.
    ///
    /// # Errors
    /// An unknown or missing input, a type or shape that does not fit the model's, or what the device reports.
    pub fn run(&self, inputs: &[(&str, &HostTensor)]) -> Result<Outputs> {
        // A tensor's bytes are shared, not copied.
        let inputs = inputs
            .iter()
            .map(|(name, tensor)| ((*name).to_owned(), (*tensor).clone()))
            .collect();
        self.run_map(&inputs)
    }

    /// Runs on a map of inputs.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_map(&self, inputs: &IndexMap<String, HostTensor>) -> Result<Outputs> {
        let outputs = match (&*self.inner.model, &self.inner.state) {
            (Loaded::Compiled(executable), None) => {
                let ran = executable.run(inputs);
                ran.map_err(|error| with_least(error, executable.plan()))?
            }
            (Loaded::Reference(graph), _) => ir::graph::eval::evaluate(graph, inputs)?,
            (Loaded::Compiled(_), Some(_)) => {
                let given = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
                let values = self.submit(given, &Wanted::host())?.wait()?;
                let hosts = values.into_iter().map(|(name, value)| Ok((name, value.into_host()?)));
                hosts.collect::<Result<_>>()?
            }
        };
        self.inner.runs.fetch_add(1, Ordering::Relaxed);
        Ok(outputs)
    }

    /// Runs on tensors of the host and of the session's device, and gives outputs where they are wanted.
    ///
    /// ```
    /// use graphc::prelude::*;
    ///
    /// let graph = trace("next", [InputSpec::new("x", DType::F32, shape![2])], |[x]| [("y", x + 1.0)])?;
    /// let session = Session::compile(graph, &SessionOptions::default())?;
    /// let mut x = session.upload(&HostTensor::from_f32([2], &[0.0, 5.0])?)?;
    /// for _ in 0..3 {
    ///     let mut outputs = session.values([("x", Given::Donated(x))], &Wanted::device())?;
    ///     x = outputs.swap_remove("y").and_then(Value::into_device).expect("it is wanted there");
    /// }
    /// assert_eq!(x.download()?.to_f32(), [3.0, 8.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::run`]; a tensor of another device, or one that is donated while other handles see it.
    pub fn values<'a, G: Into<Given>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, G)>,
        wanted: &Wanted,
    ) -> Result<Values> {
        let values = self.submit(inputs, wanted)?.wait()?;
        self.inner.runs.fetch_add(1, Ordering::Relaxed);
        Ok(values)
    }

    /// Begins a run, and does not wait for it: inputs of several runs go to the device, are computed with, and come
    /// back at the same time. At most [`LoadOptions::concurrent_runs`] are under way; one more waits for the oldest.
    ///
    /// # Errors
    /// As [`Session::values`].
    pub fn submit<'a, G: Into<Given>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, G)>,
        wanted: &Wanted,
    ) -> Result<Pending> {
        let inputs = inputs.into_iter().map(|(name, given)| (name, given.into()));
        let Loaded::Compiled(executable) = &*self.inner.model else {
            return Err(by_reference("tensors on devices"));
        };
        let begun = match &self.inner.state {
            None => executable.submit(inputs, wanted),
            Some(state) => state.submit(executable, inputs, wanted),
        };
        Ok(begun.map_err(|error| with_least(error, executable.plan()))?)
    }

    /// The name of the session's device, as messages and `--device` have it: `cpu`, `hip:0`.
    pub fn device(&self) -> &str {
        &self.inner.device
    }

    /// Copies a tensor to the session's device.
    ///
    /// # Errors
    /// Memory that is not there, or what the device reports.
    pub fn upload(&self, tensor: &HostTensor) -> Result<DeviceTensor> {
        Ok(self.compiled("tensors on devices")?.upload(tensor)?)
    }

    /// Makes a tensor of memory of the session's GPU that something else owns: an app's own kernels, another framework.
    /// It is never written, and `owner` is dropped with the last use of it.
    ///
    /// # Safety
    /// `address` is of this device, the tensor's bytes lie there, row by row, what fills them is done, and nothing
    /// writes or frees them while `owner` lives.
    ///
    /// # Errors
    /// `Unsupported` where the device is no single GPU.
    pub unsafe fn borrow(
        &self,
        address: u64,
        dtype: DType,
        shape: impl Into<Vec<usize>>,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<DeviceTensor> {
        // SAFETY: as the caller says.
        Ok(unsafe {
            self.compiled("tensors on devices")?
                .borrow(address, dtype, shape, owner)?
        })
    }

    /// The inputs that runs are given, by name, in the model's order; state is not among them.
    pub fn inputs(&self) -> IndexMap<String, TensorType> {
        let mut inputs = self.all_inputs();
        inputs.retain(|name, _| !self.links().iter().any(|link| link.input == *name));
        inputs
    }

    /// The outputs that runs give, by name, in the model's order; the next values of state are not among them.
    pub fn outputs(&self) -> IndexMap<String, TensorType> {
        let mut outputs: IndexMap<String, TensorType> = match &*self.inner.model {
            Loaded::Compiled(executable) => named(executable.plan().results()),
            Loaded::Reference(graph) => {
                let results = graph.outputs().iter().filter(|output| output.check.is_none());
                let named = results.map(|output| (output.name.clone(), graph.ty(output.value).clone()));
                named.collect()
            }
        };
        outputs.retain(|name, _| !self.links().iter().any(|link| link.output == *name));
        outputs
    }

    /// What the session keeps from run to run, by the names of the inputs.
    pub fn states(&self) -> IndexMap<String, TensorType> {
        let mut states = self.all_inputs();
        states.retain(|name, _| self.links().iter().any(|link| link.input == *name));
        states
    }

    fn all_inputs(&self) -> IndexMap<String, TensorType> {
        match &*self.inner.model {
            Loaded::Compiled(executable) => named(&executable.plan().inputs),
            Loaded::Reference(graph) => {
                let inputs = graph.inputs().iter();
                let named = inputs.map(|input| (input.name.clone(), graph.ty(input.node.into()).clone()));
                named.collect()
            }
        }
    }

    fn links(&self) -> &[Link] {
        self.inner.state.as_ref().map_or(&[], State::links)
    }

    /// Sets all state to zeros.
    pub fn reset_state(&self) {
        if let Some(state) = &self.inner.state {
            state.reset();
        }
    }

    /// Sets the state of an input; a tensor of the device is shared until the next run writes.
    ///
    /// # Errors
    /// No such state, or a tensor that is not on the device.
    pub fn set_state(&self, input: &str, value: impl Into<Given>) -> Result<()> {
        let executable = self.compiled("state")?;
        match &self.inner.state {
            Some(state) => Ok(state.set(executable, input, value)?),
            None => Err(Error::Config(format!(
                "the session has no state {input:?}; declare it in its options"
            ))),
        }
    }

    /// The state of an input on the device; None before the first run, and for what is no state.
    pub fn state(&self, input: &str) -> Option<DeviceTensor> {
        self.inner.state.as_ref()?.get(input)
    }

    /// Copies the state to the host, by the names of the inputs.
    ///
    /// # Errors
    /// What the device reports.
    pub fn save_state(&self) -> Result<Outputs> {
        match &self.inner.state {
            Some(state) => Ok(state.save()?),
            None => Ok(Outputs::new()),
        }
    }

    /// Sets the state to what was saved.
    ///
    /// # Errors
    /// As [`Session::set_state`].
    pub fn load_state(&self, saved: &Outputs) -> Result<()> {
        match &self.inner.state {
            Some(state) => Ok(state.load(self.compiled("state")?, saved)?),
            None => match saved.keys().next() {
                Some(name) => Err(Error::Config(format!("the session has no state {name:?}"))),
                None => Ok(()),
            },
        }
    }

    /// Returns another session of the same program, whose state begins as this one's is now. Memory is shared until one
    /// of them writes.
    #[must_use]
    pub fn fork(&self) -> Session {
        let state = self.inner.state.as_ref().map(State::fork);
        Session::new(self.inner.model.clone(), state, self.inner.device.clone())
    }

    fn compiled(&self, what: &str) -> Result<&Executable> {
        self.executable().ok_or_else(|| by_reference(what))
    }

    /// Returns the executable, for its plan, program, profile and statistics; `None` with [`Engine::Reference`].
    pub fn executable(&self) -> Option<&Executable> {
        match &*self.inner.model {
            Loaded::Compiled(executable) => Some(executable),
            Loaded::Reference(_) => None,
        }
    }

    /// Returns how many runs have succeeded; those that were submitted and not waited for are not counted.
    pub fn runs(&self) -> u64 {
        self.inner.runs.load(Ordering::Relaxed)
    }
}

fn named(ports: &[Port]) -> IndexMap<String, TensorType> {
    ports.iter().map(|port| (port.name.clone(), port.ty.clone())).collect()
}

fn by_reference(what: &str) -> Error {
    Error::Config(format!("the reference evaluator has no {what}; use Engine::Compiled"))
}
