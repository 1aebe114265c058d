//! One graph to a graph for each of several stages, which follow each other on a device each.
//!
//! Before: a graph as for [`shard`](super::shard()). After: as many graphs, each with a run of the model's layers:
//! their weights and the states that they keep, inputs for the values that cross from earlier stages, and outputs for
//! those that later ones read. Evaluated one after the other (`ir::graph::eval::ranks::evaluate_stages`) they mean what
//! the one graph did, bit for bit where each stage is compiled as the whole was.
//!
//! ```text
//! n3 = contract n0, W1                   stage 0:  n1 = contract n0, W1      output "stage0.n4"
//! n4 = gelu n3               ------->              n2 = gelu n1
//! n5 = contract n4, W2                   stage 1:  input "stage0.n4"
//! n6 = add n5, bias                                n2 = contract n0, W2 ...
//! ```
//!
//! No model is recognised: [`order`] puts the nodes in a row in which layers are together, [`cut`] chooses between
//! which of them one device ends and the next begins, and [`emit`] makes the graphs. What is made of constants, or
//! point by point of inputs (masks, positions), is made wherever it is read and does not cross.

mod cut;
mod emit;
mod order;
#[cfg(test)]
mod tests;

use std::fmt;

use ir::plan::Stage;
use ir::{Graph, Origin, Target};

use super::{ShardError, ShardOptions};

/// The graphs of all stages.
#[derive(Clone, Debug)]
pub struct Staged {
    /// In the order of the stages.
    pub graphs: Vec<Graph>,
    /// Where the ports of each belong.
    pub stages: Vec<Stage>,
    pub report: StageReport,
}

/// Where a model was cut.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StageReport {
    pub stages: Vec<StageFacts>,
    /// Bytes of the constants of the whole model.
    pub whole_bytes: usize,
    /// Microseconds of one run by the roofline: all stages, and what crosses.
    pub us: f64,
}

/// One stage.
#[derive(Clone, PartialEq, Debug)]
pub struct StageFacts {
    /// The first and the last node that it computes.
    pub first: Origin,
    pub last: Origin,
    /// How many it computes.
    pub nodes: usize,
    /// Bytes of its constants.
    pub weight_bytes: usize,
    /// Bytes of the states that it keeps, at the sizes' hints.
    pub state_bytes: i64,
    /// Microseconds of its nodes by the roofline, at the sizes' hints.
    pub us: f64,
    /// Values that earlier stages send to it in one run, and their bytes at the sizes' hints.
    pub received: usize,
    pub received_bytes: i64,
}

impl fmt::Display for StageReport {
    /// A line for each stage, then the sums.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, stage) in self.stages.iter().enumerate() {
            writeln!(
                f,
                "stage {number}: {} nodes from {} to {}: constants {} bytes, states {} bytes, predicted {:.1} us; {} values of {} \
                 bytes cross into it",
                stage.nodes,
                stage.first,
                stage.last,
                stage.weight_bytes,
                stage.state_bytes,
                stage.us,
                stage.received,
                stage.received_bytes
            )?;
        }
        let crossing: i64 = self.stages.iter().map(|stage| stage.received_bytes).sum();
        writeln!(
            f,
            "{crossing} bytes cross in a run; constants: {} bytes, of one run {:.1} us are predicted",
            self.whole_bytes, self.us
        )
    }
}

/// Cuts a prepared graph into as many stages as the options say.
///
/// # Errors
/// As [`shard`](super::shard()); a graph that has no place to be cut in so many stages.
pub fn stages(graph: &Graph, target: &Target, options: &ShardOptions) -> Result<Staged, ShardError> {
    super::check(graph, options)?;
    let states = super::states(graph, options)?;
    let order = order::Order::new(graph, &states);
    let cuts = cut::cut(graph, target, &order, options)?;
    emit::emit(graph, &order, &cuts, options)
}
