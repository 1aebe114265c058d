//! One direction of a recurrent layer: steps that depend on each other.

use serde::{Deserialize, Serialize};

use super::{AxisId, ExprId, Stmt, VarId};
use crate::graph::recurrent::Recurrent;

/// The steps of a recurrent layer for each point of `batch`, one after another along `time`.
///
/// Operands are those of [`Recurrent`], as expressions over the axes of each. The stores are over `time`, `batch` and
/// `hidden`, and get a step's state as `Var(hidden_var)` and `Var(cell_var)`; both are 0 beyond a row's length.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RecurrentBody {
    pub layer: Recurrent,
    pub batch: AxisId,
    pub time: AxisId,
    /// All gates of a row.
    pub gates: AxisId,
    pub hidden: AxisId,
    /// The hidden state that weights are multiplied with.
    pub inner: AxisId,
    /// Three gates, of the peepholes.
    pub seen: Option<AxisId>,
    /// Over `time`, `batch` and `gates`.
    pub input: ExprId,
    /// Over `gates` and `inner`.
    pub weights: ExprId,
    /// Over `batch` and `hidden`.
    pub first: ExprId,
    /// Over `batch` and `hidden`.
    pub first_cell: Option<ExprId>,
    /// Over `hidden`.
    pub bias: Option<ExprId>,
    /// Over `seen`.
    pub peepholes: Option<ExprId>,
    /// Over `batch`.
    pub lengths: Option<ExprId>,
    pub hidden_var: VarId,
    pub cell_var: VarId,
    pub stores: Vec<Stmt>,
}

impl RecurrentBody {
    /// Returns the operands in the layer's order, each with the axes that it is over.
    pub fn operands(&self) -> Vec<(ExprId, Vec<AxisId>)> {
        let row = || vec![self.batch, self.hidden];
        let mut operands = vec![
            (self.input, vec![self.time, self.batch, self.gates]),
            (self.weights, vec![self.gates, self.inner]),
            (self.first, row()),
        ];
        operands.extend(self.first_cell.map(|e| (e, row())));
        operands.extend(self.bias.map(|e| (e, vec![self.hidden])));
        operands.extend(self.peepholes.map(|e| (e, self.seen.into_iter().collect())));
        operands.extend(self.lengths.map(|e| (e, vec![self.batch])));
        operands
    }

    /// Returns the axes that stores are over.
    pub fn cells(&self) -> [AxisId; 3] {
        [self.time, self.batch, self.hidden]
    }

    /// Returns the axes of the body.
    pub fn axes(&self) -> Vec<AxisId> {
        let mut axes = vec![self.batch, self.time, self.gates, self.hidden, self.inner];
        axes.extend(self.seen);
        axes
    }

    /// Says whether the operands are those of the layer.
    pub fn has_its_operands(&self) -> bool {
        let places = self.layer.places();
        let has = [self.first_cell, self.bias, self.peepholes, self.lengths].map(|e| e.is_some());
        let asks = [places.cell, places.bias, places.peepholes, places.lengths].map(|place| place.is_some());
        has == asks && self.seen.is_some() == self.peepholes.is_some()
    }
}
