//! Compiled models inside an app: [`Session`] for one model, [`jit`] for a function of tensors, [`SessionCache`] for many graphs.
//!
//! graphc compiles nothing inside a run: a session compiles when it is made, a JIT at the first call with a new signature. (MIOpen,
//! where a plan calls it, compiles its own kernels the first time that a run context meets new sizes; `OptimizeOptions::libraries`
//! switches such calls off.)

mod cache;
mod device;
mod jit;
mod key;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use frontend::onnx::ImportOptions;
use indexmap::IndexMap;
use ir::{DType, Graph, HostTensor, Program, Target};
use passes::OptLevel;
use runtime::gpu::GpuDevice;
use runtime::{Executable, LoadOptions};

use crate::driver::{self, BuildOptions, Model};
use crate::error::{Error, Result};
use crate::options::Settings;

pub use cache::{CacheStats, SessionCache};
pub use device::{DeviceChoice, OpenDevice};
pub use jit::{Jit, JitOutput, JitStats, jit};
pub use key::GraphKey;

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
    /// Where the compiler of a GPU's kernels, the cache of their code and the GPU's runtime are, and what holds where `load`
    /// says nothing. None reads the environment.
    pub settings: Option<Arc<Settings>>,
    pub level: OptLevel,
    /// The type to compute in, where not the model's own.
    pub dtype: Option<DType>,
    pub load: LoadOptions,
    pub engine: Engine,
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
            load: LoadOptions::default(),
            engine: Engine::default(),
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

    /// How a program is loaded: as the options say and, where they are silent, the settings.
    fn loading(&self, settings: &Settings) -> LoadOptions {
        let mut load = self.load.clone();
        if load.threads == 0 {
            load.threads = settings.threads;
        }
        load.synchronous |= settings.synchronous;
        load
    }

    /// Sets the optimisation level.
    #[must_use]
    pub fn level(mut self, level: OptLevel) -> SessionOptions {
        self.level = level;
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
    model: Loaded,
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
            return Ok(Session::new(Loaded::Reference(graph)));
        }
        let build = BuildOptions::new(vec![options.target], options.level).dtype(options.dtype);
        let mut program = driver::build(&graph, &build)?.program;
        if options.target.is_gpu() {
            let settings = options.settings()?;
            let compiler = driver::compiler(
                &settings,
                settings.worker_command().as_deref(),
                [options.target.platform],
            )?;
            driver::compile(&mut program, &compiler, &|_| {})?;
        }
        Session::load(Arc::new(program), 0, options)
    }

    /// Imports and compiles an ONNX model.
    ///
    /// # Errors
    /// As the importer and [`Session::compile`].
    pub fn from_onnx(path: impl AsRef<Path>, import: &ImportOptions, options: &SessionOptions) -> Result<Session> {
        Session::compile(frontend::onnx::import(path.as_ref(), import)?, options)
    }

    /// Opens any model file: ONNX, `.gir`, or an artifact that holds code for the target.
    ///
    /// # Errors
    /// As the reader of the file's kind and [`Session::compile`]; an artifact without the target.
    pub fn open(path: impl AsRef<Path>, options: &SessionOptions) -> Result<Session> {
        match driver::load(path.as_ref(), &ImportOptions::default())? {
            Model::Graph(graph) => Session::compile(*graph, options),
            Model::Program(program) => {
                if let Some(device) = &options.device {
                    let variant = device.variant(&program)?;
                    return Session::load(Arc::new(*program), variant, options);
                }
                let have: Vec<String> = program.variants.iter().map(|v| v.plan.target.to_string()).collect();
                let wanted = options.target.to_string();
                match have.iter().position(|t| *t == wanted) {
                    Some(variant) => Session::load(Arc::new(*program), variant, options),
                    None => Err(Error::NoVariant { wanted, have }),
                }
            }
        }
    }

    fn load(program: Arc<Program>, variant: usize, options: &SessionOptions) -> Result<Session> {
        let settings = options.settings()?;
        let load = options.loading(&settings);
        let executable = match &options.device {
            Some(device) => Executable::load_on(device.device.as_ref(), program, variant, &load)?,
            None if options.target.is_gpu() => {
                let gpu = GpuDevice::for_target(&settings.gpu_search(), &options.target)?;
                Executable::load_on(&gpu, program, variant, &load)?
            }
            None => Executable::load(program, variant, &load)?,
        };
        Ok(Session::new(Loaded::Compiled(executable)))
    }

    fn new(model: Loaded) -> Session {
        Session {
            inner: Arc::new(Inner {
                model,
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
        let outputs = match &self.inner.model {
            Loaded::Compiled(executable) => executable.run(inputs)?,
            Loaded::Reference(graph) => ir::graph::eval::evaluate(graph, inputs)?,
        };
        self.inner.runs.fetch_add(1, Ordering::Relaxed);
        Ok(outputs)
    }

    /// Returns the executable, for its plan, program and profile; `None` with [`Engine::Reference`].
    pub fn executable(&self) -> Option<&Executable> {
        match &self.inner.model {
            Loaded::Compiled(executable) => Some(executable),
            Loaded::Reference(_) => None,
        }
    }

    /// Returns how many runs have succeeded.
    pub fn runs(&self) -> u64 {
        self.inner.runs.load(Ordering::Relaxed)
    }
}
