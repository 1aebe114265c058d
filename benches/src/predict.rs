//! Predicted times of what graphc makes of a graph, on made-up inputs.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use graphc::driver::{self, Build, BuildOptions};
use graphc::emu::{Disassembler, TimingOptions};
use graphc::emulate::{self, Emulator, TimedStep};
use graphc::ir::Graph;
use graphc::ir::target::Platform;
use graphc::options::Settings;
use graphc::runtime::cache::CachedCompiler;
use graphc::{Error, Result};

/// What compiles kernels and takes them apart again: workers of the command line's binary.
pub struct Predictor {
    compiler: CachedCompiler,
    disassembler: Arc<dyn Disassembler>,
}

impl Predictor {
    /// Starts the workers of a `graphc`.
    ///
    /// # Errors
    /// A path that cannot be made absolute, settings of the environment that are wrong, no ROCm.
    pub fn new(graphc: &Path) -> Result<Predictor> {
        let settings = Settings::from_env()?;
        let graphc = std::path::absolute(graphc).map_err(Error::io("find", graphc))?;
        let words = |verb: &str| [graphc.clone().into_os_string(), OsString::from(verb)];
        Ok(Predictor {
            compiler: driver::compiler(&settings, Some(&words("__compile-worker")), [Platform::Hip])?,
            disassembler: emulate::disassembler(&settings, Some(&words("__disassembler")))?,
        })
    }

    /// Builds a graph for the first target of the options, and predicts the time of each step at the hints of its
    /// sizes.
    ///
    /// # Errors
    /// A graph that cannot be built, kernels that do not compile, a run that fails.
    pub fn steps(&self, graph: &Graph, options: &BuildOptions) -> Result<(Build, Vec<TimedStep>)> {
        let mut built = driver::build(graph, options)?;
        driver::compile(&mut built.program, &self.compiler, &|_| ())?;
        let plan = &built.program.variants[0].plan;
        let bindings = graphc::random::bindings(&plan.symbols, &[])?;
        let inputs = plan
            .inputs
            .iter()
            .map(|port| {
                let tensor = graphc::random::tensor(&port.name, &port.ty, &bindings, 0)?;
                Ok((port.name.clone(), tensor))
            })
            .collect::<Result<_>>()?;
        let options = emulate::Options {
            time: Some(TimingOptions::default()),
            ..emulate::Options::default()
        };
        let steps = Emulator::load(&built.program, 0, &self.disassembler, options)?
            .run(&inputs)?
            .timed;
        Ok((built, steps))
    }
}
