//! One graph for several devices: to a graph for each rank, which computes a part and meets the others in collectives.
//!
//! Before: a graph whose products, attention and lookups are still whole, and not merged ([`prepare`]). After: as many
//! graphs of `Stage::Import`, with the same nodes and ports, which differ in the bytes of their constants alone;
//! evaluated together (`ir::graph::eval::ranks`) they mean what the one graph did.
//!
//! ```text
//! n3 = contract n0, W1[64, 256]                 n3 = contract n0, W1[64, 128]        columns
//! n4 = gelu n3                        rank r    n4 = gelu n3
//! n5 = contract n4, W2[256, 64]      ------->   n5 = contract n4, W2[128, 64]        rows
//! n6 = add n5, bias                             n6 = rccl_all_reduce n5 {ranks=2}
//!                                               n7 = add n6, bias
//! ```
//!
//! No model is recognised. Every value has a [`Layout`]; each op lists the layouts in which it can be shared
//! ([`layout`]), and the cheapest assignment is looked for ([`choose`]). That pairs products as Megatron-LM does
//! (Shoeybi et al., 2019): columns, then rows, and one sum. Inputs and outputs are whole on every rank, but for state,
//! which stays on the devices and may be cut. Sizes that the model leaves open are never cut.

mod choose;
mod emit;
mod halves;
pub mod layout;
mod report;
pub mod stages;
#[cfg(test)]
mod tests;

use ir::graph::infer::InferError;
use ir::library::Collective;
use ir::{Graph, NodeId, Op, Origin, Target};

use crate::error::PassError;
use crate::options::OptimizeOptions;
use crate::report::OptimizeReport;
use crate::{pipeline, runner};

pub use layout::Layout;
pub use report::{ShardReport, Shared};
pub use stages::{StageFacts, StageReport, Staged};

/// What of a model each of several devices has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Split {
    /// A part of each layer ([`shard`]): a run takes the least time, where the bus is fast enough for two sums a layer.
    #[default]
    Tensors,
    /// Some of the layers ([`stages`](stages::stages)): little crosses, and as many runs as there are devices are
    /// computed at once.
    Layers,
    /// Whichever takes one run less time, by the roofline; layers, where a part of each layer is more than a device's
    /// memory.
    Auto,
}

impl std::str::FromStr for Split {
    type Err = String;
    fn from_str(text: &str) -> Result<Split, String> {
        match text {
            "tensors" => Ok(Split::Tensors),
            "layers" => Ok(Split::Layers),
            "auto" => Ok(Split::Auto),
            _ => Err("a model is split by tensors, layers or auto".to_owned()),
        }
    }
}

/// Which sums over the ranks are made in halves, so that one half is on its way while the other is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Halves {
    /// Those that are on their way for longer than twice a collective's latency, where half of the rows cost no more
    /// than that hides.
    #[default]
    Auto,
    /// All that can be.
    Always,
    Never,
}

impl std::str::FromStr for Halves {
    type Err = String;
    fn from_str(text: &str) -> Result<Halves, String> {
        match text {
            "auto" => Ok(Halves::Auto),
            "always" => Ok(Halves::Always),
            "never" => Ok(Halves::Never),
            _ => Err("sums are made in halves auto, always or never".to_owned()),
        }
    }
}

/// How a graph is shared among devices.
#[derive(Clone, PartialEq, Debug)]
pub struct ShardOptions {
    /// How many devices: from 2 to [`Collective::MOST_RANKS`].
    pub ranks: u32,
    /// What each of them has.
    pub split: Split,
    /// Bytes of one device that weights and states may take, where that is known. Stages keep within it if they can.
    pub memory: Option<usize>,
    /// What one device sends to another in a second, in GB/s, by which collectives are weighed against work that is
    /// shared.
    pub bus_gbps: f64,
    /// Microseconds that a collective takes however little it moves.
    pub latency_us: f64,
    /// Which sums are made in halves.
    pub halves: Halves,
    /// Inputs that stay on the devices from run to run, each with the output that is its next value.
    pub states: Vec<(String, String)>,
}

impl ShardOptions {
    /// 100 GB/s: more than one link of AMD's Infinity Fabric (50 to 64 GB/s a direction), less than NVLink 4 (450
    /// GB/s).
    pub const BUS_GBPS: f64 = 100.0;

    /// 30 µs: what NCCL takes for a small message between two H200s, one rank's waiting for the other included, as
    /// measured (`benches/h200/gpus.py`). It decides only where a model is small.
    pub const LATENCY_US: f64 = 30.0;

    /// Options for so many devices, without state.
    pub fn new(ranks: u32) -> ShardOptions {
        ShardOptions {
            ranks,
            split: Split::default(),
            memory: None,
            bus_gbps: ShardOptions::BUS_GBPS,
            latency_us: ShardOptions::LATENCY_US,
            halves: Halves::default(),
            states: Vec::new(),
        }
    }
}

/// A graph was not shared among devices.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ShardError {
    #[error("a model is shared among 2 to {most} devices, not {ranks}", most = Collective::MOST_RANKS)]
    Ranks { ranks: u32 },
    #[error("{node} ({origin}) is a collective already: the graph is one rank's part of a model; share the whole one")]
    Shared { node: NodeId, origin: Origin },
    #[error("the state from output {output:?} to input {input:?}: {problem}")]
    State {
        input: String,
        output: String,
        problem: String,
    },
    #[error(
        "the model cannot be cut into {ranks} stages by layers: it has room for {layers}, since each takes a layer at least, and a state stays \
         on one device with all that reads it; take fewer devices, or share each layer (--split tensors)"
    )]
    Layers { ranks: u32, layers: usize },
    /// What follows is a bug of the pass.
    #[error("a rank's part of an op does not type: {0}")]
    Infer(Box<InferError>),
    #[error("{origin}: a value that is {from} was asked for as {to}")]
    Layout { origin: Origin, from: String, to: String },
    #[error("constant {what} cannot be cut")]
    Constant { what: String },
    #[error("stage {stage} reads {value}, which it was not given")]
    Stage { stage: usize, value: String },
}

/// An input that is kept, with the output that is its next value.
#[derive(Clone, Debug)]
struct State {
    input: NodeId,
    output: String,
}

/// The graphs of all ranks.
#[derive(Clone, Debug)]
pub struct Sharded {
    /// In the order of the ranks.
    pub graphs: Vec<Graph>,
    /// Along which axis each input is cut; the model's order.
    pub inputs: Vec<Option<u32>>,
    /// As of inputs.
    pub outputs: Vec<Option<u32>>,
    pub report: ShardReport,
}

/// Recognises what can be shared, and decides types: the passes before [`shard`].
///
/// # Errors
/// As [`crate::optimize`].
pub fn prepare(graph: Graph, target: &Target, options: &OptimizeOptions) -> Result<(Graph, OptimizeReport), PassError> {
    let mut options = options.clone();
    // Merged products could be cut only in the middle of one of them; each rank merges its own.
    options.disable.insert(crate::egraph::rules::merge::NAME.to_owned());
    runner::run(graph, target, &options, &pipeline::before_sharding(options.level))
}

/// The options for the graphs of the ranks: what [`prepare`] decided is not decided again.
pub fn after(options: &OptimizeOptions) -> OptimizeOptions {
    OptimizeOptions {
        dtype: None,
        weights: None,
        ..options.clone()
    }
}

/// Shares a prepared graph among devices of one target.
///
/// # Errors
/// A number of devices that none is, a graph that is shared already, a state whose ends are not there or differ.
pub fn shard(graph: &Graph, target: &Target, options: &ShardOptions) -> Result<Sharded, ShardError> {
    check(graph, options)?;
    let states = states(graph, options)?;
    let choice = choose::choose(graph, target, &states, options);
    let mut in_halves = 0;
    let graphs: Vec<Graph> = (0..options.ranks)
        .map(|rank| {
            let part = emit::Emitter::new(graph, &choice, options.ranks, rank).graph(&states)?;
            let halved = halves::halve(part, target, options)?;
            in_halves = halved.sums;
            Ok(halved.graph)
        })
        .collect::<Result<_, ShardError>>()?;
    let axis = |node: NodeId| match choice.way(node).result {
        Layout::Split(axis) => Some(axis as u32),
        Layout::Whole | Layout::Partial | Layout::Cover { .. } => None,
    };
    let mut report = report::report(graph, &graphs, &choice, &states, options);
    (report.us, report.in_halves) = (choice.us, in_halves);
    Ok(Sharded {
        inputs: graph.inputs().iter().map(|input| axis(input.node)).collect(),
        outputs: (graph.outputs().iter())
            .map(|output| {
                let state = states.iter().find(|state| state.output == output.name);
                state.and_then(|state| axis(state.input))
            })
            .collect(),
        graphs,
        report,
    })
}

/// Says whether a graph is one that can be shared among so many devices.
fn check(graph: &Graph, options: &ShardOptions) -> Result<(), ShardError> {
    if !(2..=Collective::MOST_RANKS).contains(&options.ranks) {
        return Err(ShardError::Ranks { ranks: options.ranks });
    }
    match graph.nodes().iter().find(|(_, node)| matches!(node.op, Op::Call(_))) {
        None => Ok(()),
        Some((node, shared)) => Err(ShardError::Shared {
            node,
            origin: shared.origin.clone(),
        }),
    }
}

/// Checks that states are inputs and outputs of a graph, of one type, and in one state each.
///
/// # Errors
/// The first that is not.
pub fn check_states(graph: &Graph, states: &[(String, String)]) -> Result<(), ShardError> {
    for (index, state) in states.iter().enumerate() {
        find_state(graph, state)?;
        if states[..index]
            .iter()
            .any(|other| other.0 == state.0 || other.1 == state.1)
        {
            return Err(ShardError::State {
                input: state.0.clone(),
                output: state.1.clone(),
                problem: "one of them is in another state too".into(),
            });
        }
    }
    Ok(())
}

fn states(graph: &Graph, options: &ShardOptions) -> Result<Vec<State>, ShardError> {
    options.states.iter().map(|state| find_state(graph, state)).collect()
}

fn find_state(graph: &Graph, (input, output): &(String, String)) -> Result<State, ShardError> {
    let wrong = |problem: String| ShardError::State {
        input: input.clone(),
        output: output.clone(),
        problem,
    };
    let from = graph.inputs().iter().find(|i| i.name == *input);
    let to = graph.outputs().iter().find(|o| o.name == *output && o.check.is_none());
    match (from, to) {
        (None, _) => Err(wrong("the model has no such input".into())),
        (_, None) => Err(wrong("the model has no such output".into())),
        (Some(from), Some(to)) if graph.ty(from.node.into()) != graph.ty(to.value) => Err(wrong(format!(
            "the input is {}, the output {}",
            graph.ty(from.node.into()),
            graph.ty(to.value)
        ))),
        (Some(from), Some(_)) => Ok(State {
            input: from.node,
            output: output.clone(),
        }),
    }
}
