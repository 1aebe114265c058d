//! Arguments that several verbs share.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PathBufValueParser, TypedValueParser};
use frontend::onnx::{GivenInput, ImportOptions, Links};
use indexmap::IndexMap;
use ir::Target;
use passes::shard::{Halves, Split};
use passes::{OptLevel, Prefer, ShardOptions};
use runtime::{MiopenFind, UnknownFind};

use graphc::driver::BuildOptions;
use graphc::error::{Error, Result};
use graphc::texts::types;
pub use graphc::texts::{bytes, split, state, threads, whole};
use graphc::tune::Database;

/// How long a GPU is waited for; None for ever.
#[derive(Clone, Copy)]
pub struct Timeout(pub Option<Duration>);

/// Reads `--timeout`.
pub fn timeout(text: &str) -> std::result::Result<Timeout, String> {
    graphc::options::seconds(text).map(Timeout)
}

/// Reads `--miopen-find`.
pub fn miopen_find(text: &str) -> std::result::Result<MiopenFind, UnknownFind> {
    text.parse()
}

/// The model and its sizes.
#[derive(clap::Args, Clone)]
pub struct ModelArgs {
    /// An .onnx file, a .gir text, or an artifact made by `graphc compile`.
    pub model: PathBuf,
    /// Fix or bound a named size: `batch=1`, `seq=1..512`, `seq=1..512 hint 128`. May be given several times.
    #[arg(long = "size", value_name = "NAME=SIZE")]
    pub sizes: Vec<String>,
    /// Replace the shape of an input: `x=[batch, 3, 224, 224]`, `x=[n, 3, 4*h, 4*w]`. May be given several times.
    #[arg(long = "shape", value_name = "INPUT=[DIMS]")]
    pub shapes: Vec<String>,
    /// Read external data of an ONNX model also through symbolic links that lead out of its folder.
    #[arg(long)]
    pub follow_links: bool,
    /// Inputs that are given although the model has values for them.
    #[arg(skip)]
    pub overridden: Vec<String>,
    /// The inputs that the model is compiled for.
    #[arg(skip)]
    pub given: IndexMap<String, GivenInput>,
}

impl ModelArgs {
    /// Where links of external data may lead.
    pub fn links(&self) -> Links {
        match self.follow_links {
            true => Links::Anywhere,
            false => Links::Inside,
        }
    }

    /// The importer's options.
    pub fn import(&self) -> Result<ImportOptions> {
        let mut options = ImportOptions {
            links: self.links(),
            ..ImportOptions::default()
        };
        for text in &self.sizes {
            options = options.size(text).map_err(|e| Error::Config(format!("--size: {e}")))?;
        }
        for text in &self.shapes {
            options = options
                .shape(text)
                .map_err(|e| Error::Config(format!("--shape: {e}")))?;
        }
        options.overridden.clone_from(&self.overridden);
        options.given.clone_from(&self.given);
        Ok(options)
    }

    /// Says whether the file is an artifact, by its name.
    pub fn is_artifact(&self) -> bool {
        self.model.extension().is_some_and(|extension| extension == "graphc")
    }

    /// Says whether the file is neither a text nor an artifact of graphc's own.
    pub fn is_onnx(&self) -> bool {
        !matches!(self.model.extension().and_then(|e| e.to_str()), Some("gir" | "graphc"))
    }
}

/// How the model is compiled.
#[derive(clap::Args, Clone)]
pub struct BuildArgs {
    /// Optimisation level: 0 to 3; by default 2.
    #[arg(short = 'O', value_name = "LEVEL")]
    pub level: Option<String>,
    /// Compute in f32, f16 or bf16, store the weights of products as int8, fp8 or int4, or both: f16+int4. Inputs and
    /// outputs keep the types that the model declares.
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<String>,
    /// When vendor libraries are called: where the cost model puts a call before a generated kernel (fastest, the
    /// default), wherever a library has what is asked for (always), or never.
    #[arg(long, value_name = "WHEN", value_parser = ["fastest", "always", "never"])]
    pub libraries: Option<String>,
    /// Do not call vendor libraries: every kernel is generated. The same as `--libraries never`.
    #[arg(long, conflicts_with = "libraries")]
    pub no_libraries: bool,
    /// Fail on an index outside its axis on GPUs too, as on the CPU; without this it is clamped there.
    #[arg(long)]
    pub check_indices: bool,
    /// Take at most this much of a GPU's memory for weights and one run: `8GiB`, `512MiB` or bytes. Weights that have
    /// no room stay on the host, and are copied ahead of their use.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub max_vram: Option<usize>,
    /// Share the model among so many devices of a target, 2 to 16: the artifact has a part for each. Where --device
    /// names several, so many.
    #[arg(long, value_name = "N", value_parser = ranks)]
    pub ranks: Option<u32>,
    /// What each of several devices has: a part of each layer (tensors, the default), some of the layers (layers), or
    /// what is predicted to take one run less time (auto). By layers little crosses from device to device, and several
    /// runs at once are in several stages.
    #[arg(long, value_name = "HOW", value_parser = split)]
    pub split: Option<Split>,
    /// What one device sends to another in a second, in GB/s: what sharing costs is weighed by it.
    #[arg(long, value_name = "GB/S", value_parser = bus)]
    pub bus: Option<f64>,
    /// Microseconds that a collective takes however little it moves: what sharing costs is weighed by it too.
    #[arg(long, value_name = "US", value_parser = bus)]
    pub bus_latency: Option<f64>,
    /// Which sums over the devices are made in halves of their rows, so that one half is on its way while the other is
    /// computed: those that take long (auto, the default), all (always) or none (never).
    #[arg(long, value_name = "WHICH", value_parser = halves)]
    pub halves: Option<Halves>,
    /// An input that is kept from run to run on the device, as a cache of keys is, and the output that is its next
    /// value. May be given several times; artifacts remember it.
    #[arg(long, value_name = "INPUT=OUTPUT", value_parser = state)]
    pub state: Vec<(String, String)>,
    /// Leave out a pass or a rewrite rule by its name. May be given several times.
    #[arg(long, value_name = "NAME")]
    pub disable: Vec<String>,
    /// Take the mappings of products that `graphc tune` found to be fastest, before those that are predicted to be.
    #[arg(long, value_name = "FILE")]
    pub tuning: Option<PathBuf>,
}

impl BuildArgs {
    /// Refuses what was given, since `path` is an artifact, of which all that is decided.
    pub fn refuse_for_artifact(&self, path: &std::path::Path) -> Result<()> {
        let given = [
            ("-O", self.level.is_some()),
            ("--dtype", self.dtype.is_some()),
            ("--no-libraries", self.no_libraries),
            ("--libraries", self.libraries.is_some()),
            ("--check-indices", self.check_indices),
            ("--disable", !self.disable.is_empty()),
            ("--tuning", self.tuning.is_some()),
            ("--split", self.split.is_some()),
            ("--bus", self.bus.is_some()),
            ("--bus-latency", self.bus_latency.is_some()),
            ("--halves", self.halves.is_some()),
            ("--state", !self.state.is_empty()),
        ];
        let given: Vec<&str> = given.into_iter().filter(|(_, is)| *is).map(|(name, _)| name).collect();
        if given.is_empty() {
            return Ok(());
        }
        Err(Error::Config(format!(
            "{}: {} is compiled already; give them to `graphc compile` with the model it was made from",
            given.join(", "),
            path.display()
        )))
    }

    /// Refuses `--max-vram` where no target has memory of its own.
    pub fn refuse_vram(&self, targets: &[Target]) -> Result<()> {
        if self.max_vram.is_none() || targets.iter().any(|target| target.is_gpu()) {
            return Ok(());
        }
        Err(Error::Config(
            "--max-vram: the cpu has no memory of its own; name a GPU by --target or --device".to_owned(),
        ))
    }

    /// Refuses how devices share a model where there is one.
    fn refuse_sharing(&self) -> Result<()> {
        if self.ranks.is_some_and(|ranks| ranks > 1) {
            return Ok(());
        }
        let given = [
            ("--split", self.split.is_some()),
            ("--bus", self.bus.is_some()),
            ("--bus-latency", self.bus_latency.is_some()),
            ("--halves", self.halves.is_some()),
        ];
        let given: Vec<&str> = given.into_iter().filter(|(_, is)| *is).map(|(name, _)| name).collect();
        if given.is_empty() {
            return Ok(());
        }
        Err(Error::Config(format!(
            "{}: one device shares the model with no other; give --ranks N, or name several devices (--device hip:0,1) to the verbs \
             that run it",
            given.join(", ")
        )))
    }

    /// The driver's options for some targets.
    pub fn options(&self, targets: Vec<Target>) -> Result<BuildOptions> {
        let level: OptLevel = match &self.level {
            None => OptLevel::default(),
            Some(text) => text.parse().map_err(|e| Error::Config(format!("-O: {e}")))?,
        };
        let (dtype, weights) = match &self.dtype {
            None => (None, None),
            Some(text) => types(text).map_err(|e| Error::Config(format!("--dtype {text}: {e}")))?,
        };
        let mut options = BuildOptions::new(targets, level).dtype(dtype);
        options.optimize.weights = weights;
        let libraries = self.libraries.as_deref();
        options.optimize.libraries = !self.no_libraries && libraries != Some("never");
        if libraries == Some("always") {
            options.optimize.prefer_calls = true;
            options.plan.prefer = Prefer::Calls;
        }
        self.refuse_sharing()?;
        options.check_indices = self.check_indices.then_some(true);
        options.max_vram = self.max_vram;
        options.ranks = self.ranks.filter(|ranks| *ranks > 1).map(|ranks| ShardOptions {
            bus_gbps: self.bus.unwrap_or(ShardOptions::BUS_GBPS),
            latency_us: self.bus_latency.unwrap_or(ShardOptions::LATENCY_US),
            split: self.split.unwrap_or_default(),
            halves: self.halves.unwrap_or_default(),
            ..ShardOptions::new(ranks)
        });
        options.states.clone_from(&self.state);
        self.refuse_vram(&options.targets)?;
        options.optimize.disable = self.disable.iter().cloned().collect();
        passes::names::check(&options.optimize.disable).map_err(|e| Error::Config(format!("--disable: {e}")))?;
        if let Some(path) = &self.tuning {
            options.plan.tuning.extend(Database::read(path)?.tuning()?);
        }
        Ok(options)
    }
}

/// Reads `gfx90a,gfx942`.
pub fn targets(text: &str) -> Result<Vec<Target>> {
    let mut targets: Vec<Target> = Vec::new();
    for name in text.split(',').filter(|n| !n.trim().is_empty()) {
        let target: Target = name.parse()?;
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    if targets.is_empty() {
        return Err(Error::Config(
            "--target names no target; `graphc targets` lists them".to_owned(),
        ));
    }
    Ok(targets)
}

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
}

/// Reads a tolerance: NaN and infinity would let anything pass, and nothing is within one below zero.
pub fn tolerance(text: &str) -> std::result::Result<f64, String> {
    let value = text.trim().parse::<f64>().ok();
    value
        .filter(|v| v.is_finite() && *v >= 0.0)
        .ok_or_else(|| "a tolerance is a finite number of at least 0".to_owned())
}

/// Reads a number of devices for one model.
pub fn ranks(text: &str) -> std::result::Result<u32, String> {
    let most = ir::library::Collective::MOST_RANKS as usize;
    whole(text, 1..=most).map(|ranks| ranks as u32)
}

/// Reads which sums are made in halves.
pub fn halves(text: &str) -> std::result::Result<Halves, String> {
    text.trim().parse()
}

/// Reads a rate of the bus.
pub fn bus(text: &str) -> std::result::Result<f64, String> {
    let rate = text
        .trim()
        .parse::<f64>()
        .ok()
        .filter(|rate| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "it is a positive number: 450".to_owned())
}

/// Reads a clock in GHz.
pub fn clock(text: &str) -> std::result::Result<f64, String> {
    let clock = text.trim().parse::<f64>().ok().filter(|ghz| (0.1..=10.0).contains(ghz));
    clock.ok_or_else(|| "it is a number of GHz from 0.1 to 10: 1.7".to_owned())
}

/// Reads where `-o` goes; `-` is this process's standard output.
pub fn output() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| match path.as_os_str() == "-" {
        true => PathBuf::from("/dev/stdout"),
        false => path,
    })
}

/// Reads a number of timed runs.
pub fn runs(text: &str) -> std::result::Result<usize, String> {
    whole(text, 1..=1_000_000)
}
