//! Rows that are quantised: what folds a row takes in the folds and the bytes that follow it.
//!
//! ```text
//! n4 = rms_norm n1, n2; n6 = reduce (abs n4) {op=max, axes=[1], keep_dims}; n9 = cast (clip (round (div n4, n6))) : i8
//! ```
//!
//! becomes one region `{n4 .. n9}` anchored at `n4`. It reads the row once and stores bytes and their scale. What goes
//! on in bytes is all that is taken: other folds of a row have readers of their own, and lose nothing by being stored.
//! GPUs only: the CPU has direct forms of rows, which such a region would not be.

use std::collections::{BTreeSet, HashSet};

use ir::op::{Composite, ReduceOp};
use ir::schedule::{Region, RegionKind};
use ir::{DType, Entity, Graph, NodeId, Op, Shape, Value};

use super::classify::Role;
use super::{Fuser, Home};

/// The most nodes that follow in one region.
const TAIL_LIMIT: usize = 48;
/// Rows of more elements are quantised by all of the device, unless there is one for each compute unit.
const LONGEST: i64 = 1 << 15;

/// The row that an anchor folds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The last axes of the shape, in order.
    pub axes: Vec<usize>,
    /// Of the values that are folded.
    pub shape: Shape,
    /// Of one number a row: the axes have size 1.
    pub folded: Shape,
}

impl Row {
    /// Returns the row of an anchor whose folded axes are the last ones and stay with size 1.
    pub fn of(graph: &Graph, anchor: NodeId) -> Option<Row> {
        let node = graph.node(anchor);
        let shape = graph.ty(*node.operands.first()?).shape.clone();
        let axes: Vec<usize> = match &node.op {
            Op::Reduce {
                op: ReduceOp::Max | ReduceOp::Min | ReduceOp::Sum | ReduceOp::Mean,
                axes,
                keep_dims: true,
            } => axes.clone(),
            Op::Composite(Composite::LayerNorm { axis, .. } | Composite::RmsNorm { axis, .. }) => {
                (*axis..shape.rank()).collect()
            }
            Op::Composite(Composite::Softmax { axis }) => vec![*axis],
            _ => return None,
        };
        let first = shape.rank().checked_sub(axes.len())?;
        let is_last = axes.iter().copied().eq(first..shape.rank());
        let mut folded = shape.clone();
        for axis in &axes {
            folded.0[*axis] = ir::Dim::Const(1);
        }
        (is_last && folded != shape).then_some(Row { axes, shape, folded })
    }

    /// Returns the row of a region that goes on along it: its anchor's bytes are among what is stored.
    pub fn of_region(graph: &Graph, region: &Region) -> Option<Row> {
        if region.kind != RegionKind::Reduction {
            return None;
        }
        let row = Row::of(graph, region.anchor)?;
        let folds = |id: &NodeId| matches!(graph.node(*id).op, Op::Reduce { .. });
        let more = match &graph.node(region.anchor).op {
            Op::Reduce { .. } => region.outputs.iter().any(|v| graph.ty(*v).shape == row.shape),
            _ => region.nodes.iter().any(folds),
        };
        more.then_some(row)
    }

    /// Says whether a node is a fold along this row that a region may hold.
    fn is_fold(&self, graph: &Graph, id: NodeId) -> bool {
        matches!(graph.node(id).op, Op::Reduce { .. }) && Row::of(graph, id).as_ref() == Some(self)
    }
}

impl Fuser<'_> {
    /// Takes into an anchor's draft what quantises its row: more folds along it, one number a row, and elements of the
    /// row. Says whether there is such.
    pub(super) fn grow_along_row(&mut self, draft: usize, anchor: NodeId) -> bool {
        if !self.target.is_gpu() {
            return false;
        }
        let Some(row) = Row::of(self.graph, anchor) else {
            return false;
        };
        let symbols = self.graph.symbols();
        let rows = row.folded.elements().hint(symbols);
        let length = row.shape.elements().hint(symbols) / rows.max(1);
        if length > LONGEST && rows < i64::from(self.target.compute_units) {
            return false;
        }
        let mut taken: Vec<NodeId> = Vec::new();
        // In the order of ids, so that what a node reads is taken before it.
        let mut seen: BTreeSet<NodeId> = BTreeSet::new();
        let mut open: BTreeSet<NodeId> = self.users[anchor].iter().map(|(user, _)| *user).collect();
        while let Some(id) = open.pop_first() {
            if !seen.insert(id) || taken.contains(&id) {
                continue;
            }
            let mut along = taken.clone();
            if self.row_takes(draft, &row, id, &mut along, 0).is_err() || along.len() > TAIL_LIMIT {
                continue;
            }
            for new in &along[taken.len()..] {
                open.extend(self.users[*new].iter().map(|(user, _)| *user));
            }
            taken = along;
        }
        let Some(needed) = self.quantising(&row, anchor, &taken) else {
            return false;
        };
        // A fold that was brought along may be what an operand of another node waits for.
        let is_free = |v: &Value| {
            let inside = needed.contains(&v.node) || self.draft_of(v.node) == Some(draft);
            inside || !self.row_depends(*v, draft, &needed)
        };
        if !needed
            .iter()
            .all(|id| self.graph.node(*id).operands.iter().all(is_free))
        {
            return false;
        }
        self.take(draft, &needed);
        true
    }

    /// Adds a node to what follows, and before it what it needs that folds the row too: `depth` nodes after it wait for
    /// it.
    fn row_takes(&self, draft: usize, row: &Row, id: NodeId, along: &mut Vec<NodeId>, depth: usize) -> Result<(), ()> {
        if along.contains(&id) {
            return Ok(());
        }
        let too_many = along.len().max(depth) > TAIL_LIMIT;
        if self.home[id.index()] != Home::Nowhere || !self.live[id.index()] || too_many {
            return Err(());
        }
        let node = self.graph.node(id);
        let shape = &node.results[0].shape;
        match &node.op {
            Op::Elementwise(_) if shape == &row.shape || shape == &row.folded => {}
            _ if row.is_fold(self.graph, id) => {}
            _ => return Err(()),
        }
        for operand in &node.operands {
            if self.draft_of(operand.node) == Some(draft) || along.contains(&operand.node) {
                continue;
            }
            let depends = self.row_depends(*operand, draft, along);
            let is_number = self.graph.ty(*operand).shape == row.folded && self.role(operand.node) != Role::Leaf;
            if !depends && !is_number {
                continue;
            }
            let before = along.len();
            let taken = self.row_takes(draft, row, operand.node, along, depth + 1);
            if taken.is_err() {
                along.truncate(before);
                if depends {
                    return Err(());
                }
            }
        }
        along.push(id);
        Ok(())
    }

    /// Says whether a value is computed from the draft or from what is about to be in it.
    fn row_depends(&self, value: Value, draft: usize, along: &[NodeId]) -> bool {
        self.depends_on(value, draft) || self.reaches(value, along)
    }

    /// Says whether a value is computed from one of some nodes, which come before it.
    pub(super) fn reaches(&self, value: Value, nodes: &[NodeId]) -> bool {
        let Some(first) = nodes.iter().min() else { return false };
        let mut seen = HashSet::new();
        let mut stack = vec![value.node];
        while let Some(id) = stack.pop() {
            if id < *first || !seen.insert(id) {
                continue;
            }
            if nodes.contains(&id) {
                return true;
            }
            stack.extend(self.graph.node(id).operands.iter().map(|v| v.node));
        }
        false
    }

    /// Returns of what could be taken the part that the bytes of the row are made of, in order; `None` where there are
    /// no bytes.
    fn quantising(&self, row: &Row, anchor: NodeId, taken: &[NodeId]) -> Option<Vec<NodeId>> {
        let is_bytes = |id: &NodeId| {
            let ty = &self.graph.node(*id).results[0];
            ty.shape == row.shape && ty.dtype.bits() == 8 && ty.dtype != DType::Bool
        };
        let with_operands = |roots: Vec<NodeId>| {
            let (mut needed, mut stack) = (BTreeSet::new(), roots);
            while let Some(id) = stack.pop() {
                if needed.insert(id) {
                    let operands = self.graph.node(id).operands.iter().map(|v| v.node);
                    stack.extend(operands.filter(|n| taken.contains(n)));
                }
            }
            needed
        };
        let mut needed = with_operands(taken.iter().copied().filter(is_bytes).collect());
        // What else is made of the row's numbers, one a row, costs nothing beside them.
        let mut before = 0;
        while needed.len() > std::mem::replace(&mut before, needed.len()) {
            let follows = |id: &&NodeId| {
                let node = self.graph.node(**id);
                let operands = node.operands.iter().map(|v| v.node);
                node.results[0].shape == row.folded
                    && matches!(node.op, Op::Elementwise(_))
                    && operands.filter(|n| taken.contains(n)).all(|n| needed.contains(&n))
            };
            let more: Vec<NodeId> = taken.iter().filter(follows).copied().collect();
            if !needed.is_empty() {
                needed.extend(more);
            }
        }
        let folds = row.is_fold(self.graph, anchor) || needed.iter().any(|id| row.is_fold(self.graph, *id));
        (folds && !needed.is_empty()).then(|| needed.into_iter().collect())
    }
}
