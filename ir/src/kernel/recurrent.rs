//! One direction of a recurrent layer: steps that depend on each other.

use serde::{Deserialize, Serialize};

use super::{AxisId, Expr, ExprId, Exprs, Kernel, Stmt, VarId};
use crate::graph::recurrent::{Cell, Recurrent};

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

/// How a workgroup of a GPU goes through the steps of a layer: a few rows of the batch each, from the first step to
/// the last. Hidden states and the sums of gates are in LDS; teams of lanes share each sum, then a thread finishes each
/// unit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Steps {
    /// Threads of a workgroup.
    pub block: u32,
    /// Rows of the batch that a workgroup takes; 1 where states are rounded.
    pub rows: u32,
    /// Lanes that share the sum of a gate, a power of two within a wave.
    pub lanes: u32,
    /// Neighbouring weights of a gate that are read at once, at most 16 bytes. It divides the hidden size.
    pub width: u32,
    /// Whether a lane keeps its weights in registers from step to step.
    pub held: bool,
}

impl Steps {
    /// Units of one thread, at most.
    pub const MOST_UNITS: i64 = 8;

    /// Weights of a lane, of all gates of so many units. Each takes a register where it is held, whatever its type:
    /// compilers widen it before the steps.
    pub fn weights(&self, layer: &Recurrent, hidden: i64) -> i64 {
        let [block, lanes, width] = [self.block, self.lanes, self.width].map(|n| i64::from(n).max(1));
        let teams = (block / lanes).max(1);
        let along = positive_ceil(hidden, lanes * width) * width;
        phases(layer)
            .into_iter()
            .map(|gates| positive_ceil(gates.saturating_mul(hidden), teams).saturating_mul(along))
            .fold(0, i64::saturating_add)
    }

    /// Units that a thread finishes.
    pub fn units(&self, hidden: i64) -> i64 {
        positive_ceil(
            i64::from(self.rows).saturating_mul(hidden),
            i64::from(self.block).max(1),
        )
    }

    /// Bytes of LDS: the state that is multiplied, the gates' sums, and what waves find of the ends of a row that is
    /// rounded.
    pub fn lds_bytes(&self, layer: &Recurrent, hidden: i64) -> i64 {
        let each = (1 + layer.cell.gates()).saturating_mul(hidden).saturating_mul(4);
        let ends = i64::from(layer.rounded) * 16 * i64::from(self.block.div_ceil(32));
        each.saturating_mul(self.rows.into()).saturating_add(ends)
    }

    /// Why a layer of so many hidden units cannot be gone through like this; `None` where it can.
    pub(super) fn misfit(&self, body: &RecurrentBody, kernel: &Kernel) -> Option<&'static str> {
        let Some(hidden) = kernel.axes[body.hidden].extent.as_const().filter(|n| *n > 0) else {
            return Some("the hidden size must be a constant above 0");
        };
        if self.block == 0 || self.rows == 0 || !self.lanes.is_power_of_two() || self.lanes > 32 {
            return Some("lanes must be a power of two within a wave, and no size is 0");
        }
        if !self.block.is_multiple_of(self.lanes) || !self.block.is_multiple_of(32) {
            return Some("a workgroup must be whole waves of whole teams");
        }
        if ![1, 2, 4, 8].contains(&self.width) || hidden % i64::from(self.width) != 0 {
            return Some("the width must be 1, 2, 4 or 8 and divide the hidden size");
        }
        if self.units(hidden) > Steps::MOST_UNITS {
            return Some("a thread has too many units");
        }
        if body.layer.rounded && self.rows != 1 {
            return Some("rounded states are one row a workgroup");
        }
        None
    }
}

impl RecurrentBody {
    /// The weights as they are stored, before they are widened.
    pub fn stored_weights(&self, exprs: &Exprs) -> ExprId {
        match exprs[self.weights] {
            Expr::Cast(_, inner) if matches!(exprs[inner], Expr::Load { .. }) => inner,
            _ => self.weights,
        }
    }
}

/// The gates whose sums are made at once, of the first and of the second half of a step.
pub(super) fn phases(layer: &Recurrent) -> [i64; 2] {
    match layer.cell {
        Cell::Gru { reset_after: false } => [2, 1],
        cell => [cell.gates(), 0],
    }
}

fn positive_ceil(n: i64, by: i64) -> i64 {
    n.max(0) / by + i64::from(n.max(0) % by > 0)
}
