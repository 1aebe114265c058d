//! The schedule: which nodes run together, in what order, on which lane.
//!
//! Invariant: every node of the graph that is not a leaf and is needed by an output is in exactly one region, or in
//! none when it is a view that every reader takes in as an index map, or a concat whose parts are stored in their
//! places by the regions that make them. A node may be *recomputed*: then it is in several regions, and is an output of
//! none.
//!
//! Invariant: regions are in execution order: the inputs of a region are graph inputs, constants, outputs of earlier
//! ones, or concats all of whose parts are outputs of earlier ones.

pub mod print;
pub mod verify;

use serde::{Deserialize, Serialize};

use crate::entity::{Table, entity};
use crate::graph::{NodeId, Value};

entity! {
    /// A region of a schedule.
    pub RegionId = "r",
}

/// The order of work for a graph.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Schedule {
    pub regions: Table<RegionId, Region>,
}

/// Nodes that become one kernel or one library call.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Region {
    pub kind: RegionKind,
    /// The node that gives the region its shape: the contraction, convolution, attention, reduction, …; for pointwise
    /// regions the last node.
    pub anchor: NodeId,
    /// All nodes, in topological order, the anchor and views included.
    pub nodes: Vec<NodeId>,
    /// What is read: graph inputs, constants, outputs of earlier regions. In order of first use.
    pub inputs: Vec<Value>,
    /// What is stored for later regions or as graph outputs.
    pub outputs: Vec<Value>,
    /// Which of the outputs are stored as a part of a larger value, and exist only as that.
    pub parts: Vec<Part>,
    pub lane: LaneKind,
}

/// A result that is stored where a concat would put it, so that the concat needs no kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// An output of the region.
    pub value: Value,
    /// The concat.
    pub whole: Value,
    /// Which operand of the concat `value` is.
    pub operand: usize,
}

impl Region {
    /// Returns the part of a larger value that an output is stored as.
    pub fn part(&self, value: Value) -> Option<&Part> {
        self.parts.iter().find(|p| p.value == value)
    }

    /// Returns the outputs as text, parts with what they are parts of.
    pub fn stored(&self) -> String {
        let text = |v: &Value| match self.part(*v) {
            Some(part) => format!("{v} as part {} of {}", part.operand, part.whole),
            None => v.to_string(),
        };
        self.outputs.iter().map(text).collect::<Vec<_>>().join(", ")
    }
}

/// What kind of kernel a region becomes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum RegionKind {
    /// Loops over output elements: pointwise trees, index maps, gathers.
    Pointwise,
    /// Loops with folds: reductions, row composites, pooling.
    Reduction,
    /// A matrix product with prologue and epilogue.
    Contract,
    /// A convolution with epilogue.
    Conv,
    Attention,
    Scan,
    Sort,
    Scatter,
    Recurrent,
    /// A library call; one node.
    Library,
}

impl RegionKind {
    /// Returns the name used in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            RegionKind::Pointwise => "pointwise",
            RegionKind::Reduction => "reduction",
            RegionKind::Contract => "contract",
            RegionKind::Conv => "conv",
            RegionKind::Attention => "attention",
            RegionKind::Scan => "scan",
            RegionKind::Sort => "sort",
            RegionKind::Scatter => "scatter",
            RegionKind::Recurrent => "recurrent",
            RegionKind::Library => "library",
        }
    }
}

/// Which queue of the device a region or step runs in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum LaneKind {
    #[default]
    Compute,
    /// Host to device.
    Upload,
    /// Device to host.
    Download,
    /// From device to device, by collectives, while others are computed.
    Collective,
}

impl LaneKind {
    /// The word for people and files.
    pub const fn name(self) -> &'static str {
        match self {
            LaneKind::Compute => "compute",
            LaneKind::Upload => "upload",
            LaneKind::Download => "download",
            LaneKind::Collective => "collective",
        }
    }
}
