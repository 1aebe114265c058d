//! What the caller decides about [`optimize`](crate::optimize): data only, read by the runner and the passes.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use indexmap::IndexMap;
use ir::{DType, Graph, HostTensor};

pub use crate::quantize::recipe::weight_only::WeightType;

/// How much work is put into a graph.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum OptLevel {
    /// Only what the Core stage needs.
    O0,
    /// And clean-up: simplify, fold, cse, dce.
    O1,
    /// And recognition, choice, layout and routes.
    #[default]
    O2,
    /// And longer saturation.
    O3,
}

/// The text does not name a level.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown optimisation level {0:?}; known: 0, 1, 2, 3")]
pub struct UnknownLevel(pub String);

impl FromStr for OptLevel {
    type Err = UnknownLevel;
    fn from_str(text: &str) -> Result<OptLevel, UnknownLevel> {
        match text.trim_start_matches(['O', 'o']) {
            "0" => Ok(OptLevel::O0),
            "1" => Ok(OptLevel::O1),
            "2" => Ok(OptLevel::O2),
            "3" => Ok(OptLevel::O3),
            _ => Err(UnknownLevel(text.to_owned())),
        }
    }
}

/// Which composites stay whole in the Core graph; the others are decomposed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Keep {
    pub softmax: bool,
    pub log_softmax: bool,
    pub layer_norm: bool,
    pub rms_norm: bool,
    pub attention: bool,
    /// Of weights that a product reads.
    pub dequantize: bool,
    /// On targets that have a kernel for it.
    pub recurrent: bool,
}

impl Keep {
    /// Every composite that a kernel can take whole.
    pub const ALL: Keep = Keep {
        softmax: true,
        log_softmax: true,
        layer_norm: true,
        rms_norm: true,
        attention: true,
        dequantize: true,
        recurrent: true,
    };
    /// None: only primitive families.
    pub const NONE: Keep = Keep {
        softmax: false,
        log_softmax: false,
        layer_norm: false,
        rms_norm: false,
        attention: false,
        dequantize: false,
        recurrent: false,
    };
}

/// Called after each pass with its name and the graph it left.
pub type Observer = Arc<dyn Fn(&str, &Graph) + Send + Sync>;

/// Computes the outputs of a graph from its inputs, by name; or says why not.
pub type Evaluator = Arc<dyn Fn(Graph, &IndexMap<String, HostTensor>) -> Result<Vec<HostTensor>, String> + Send + Sync>;

/// Options of [`optimize`](crate::optimize).
#[derive(Clone)]
pub struct OptimizeOptions {
    pub level: OptLevel,
    /// Compute in this floating type (`f16`, `bf16`); inputs and outputs keep their declared types.
    pub dtype: Option<DType>,
    /// How the weights of products are stored, where not as the model has them.
    pub weights: Option<WeightType>,
    /// Whether vendor libraries may be called, where the target has them.
    pub libraries: bool,
    /// Whether every call that a route finds is taken, also where the cost model puts a kernel before it.
    pub prefer_calls: bool,
    pub keep: Keep,
    /// Whether the graph checks the indices of its gathers and scatters when it runs.
    pub check_indices: bool,
    /// Outputs that are the next values of states: the scatters that make them are checked all the same, since one that
    /// is beyond its cache would go unnoticed in every later run.
    pub states: Vec<String>,
    /// Names of passes and of rules that must not run.
    pub disable: BTreeSet<String>,
    /// Verify the graph after each pass; on by default in debug builds.
    pub verify: bool,
    /// Stop after the first run of this pass; the graph may then not be at `Stage::Core` yet.
    pub stop_after: Option<String>,
    pub observer: Option<Observer>,
    /// Computes large values of constants alone, so that runs do not ([`precompute`](crate::precompute)).
    pub evaluator: Option<Evaluator>,
}

impl Default for OptimizeOptions {
    fn default() -> Self {
        OptimizeOptions {
            level: OptLevel::default(),
            dtype: None,
            weights: None,
            libraries: true,
            prefer_calls: false,
            keep: Keep::ALL,
            check_indices: false,
            states: Vec::new(),
            disable: BTreeSet::new(),
            verify: cfg!(debug_assertions),
            stop_after: None,
            observer: None,
            evaluator: None,
        }
    }
}

impl OptimizeOptions {
    /// The default options at a level.
    pub fn at(level: OptLevel) -> OptimizeOptions {
        OptimizeOptions {
            level,
            ..OptimizeOptions::default()
        }
    }

    /// Says whether a pass or rule may run.
    pub fn enabled(&self, name: &str) -> bool {
        !self.disable.contains(name)
    }
}

impl fmt::Debug for OptimizeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OptimizeOptions")
            .field("level", &self.level)
            .field("dtype", &self.dtype)
            .field("weights", &self.weights)
            .field("libraries", &self.libraries)
            .field("prefer_calls", &self.prefer_calls)
            .field("keep", &self.keep)
            .field("check_indices", &self.check_indices)
            .field("states", &self.states)
            .field("disable", &self.disable)
            .field("verify", &self.verify)
            .field("stop_after", &self.stop_after)
            .finish_non_exhaustive()
    }
}
