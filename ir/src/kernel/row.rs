//! Rows: loops whose folds and stores walk one row.

use serde::{Deserialize, Serialize};

use super::{AxisId, ExprId, Loops};
use crate::types::Scalar;

/// Loops that fold along rows: softmax, norms, reductions.
///
/// It computes what its loops compute. What it adds is that every fold and every store with axes of its own walks the
/// same row, so that a device may keep the row at hand instead of reading it for each of them.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RowBody {
    pub loops: Loops,
    /// The axes of the row: of each fold and of each store that has axes.
    pub row: Vec<AxisId>,
    /// Expressions over `parallel` and `row` that are worth keeping for each element once they have been computed,
    /// among them the loads that several statements share or that need not wait for a fold.
    pub held: Vec<ExprId>,
    /// Set when this is a composite and nothing else: the same as the statements, for engines with a direct form.
    pub composite: Option<RowComposite>,
}

/// A softmax or norm over a row, as plain facts.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RowComposite {
    pub kind: RowKind,
    /// The row's element in `f32`, over `parallel` and `row`.
    pub x: ExprId,
    /// The factor and the addend of a norm, over `row`.
    pub scale: Option<ExprId>,
    pub bias: Option<ExprId>,
}

/// Which composite a row is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum RowKind {
    Softmax,
    LogSoftmax,
    LayerNorm { epsilon: Scalar },
    RmsNorm { epsilon: Scalar },
}
