//! Copies: loops that store what they load, moved by strides.

use serde::{Deserialize, Serialize};

use super::{Loops, ParamId};
use crate::dim::Dim;

/// Loops that load an element and store it, and nothing else: slices, transposes, parts of a concat.
///
/// It computes what its loops compute. What it adds is where the elements are, so that a device may move them in runs
/// and tiles.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct CopyBody {
    /// One store, of one load.
    pub loops: Loops,
    pub source: ParamId,
    pub target: ParamId,
    /// The element of `source` that the first point reads.
    pub from: Dim,
    /// The element of `target` that it writes.
    pub to: Dim,
    /// How many elements it is from each point to the next along the axes of the loops.
    pub steps: Vec<CopyStep>,
}

/// Elements from one point of an axis to the next.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct CopyStep {
    pub source: Dim,
    pub target: Dim,
}

impl CopyBody {
    /// Returns the sizes that its facts name.
    pub fn sizes(&self) -> Vec<&Dim> {
        let steps = self.steps.iter().flat_map(|s| [&s.source, &s.target]);
        [&self.from, &self.to].into_iter().chain(steps).collect()
    }
}
