//! One rank's graph of what was chosen: its parts of constants, ops of its sizes, and collectives where a layout
//! changes.
//!
//! The graphs of all ranks have the same nodes; only the bytes of constants differ: of weights, and of what says where
//! a rank's part of a value begins that is whole.

use std::collections::HashMap;

use ir::library::{Collective, CollectiveKind, LibraryCall};
use ir::op::{Gather, View};
use ir::{DType, Dim, Graph, HostTensor, NodeId, Op, Origin, Shape, TensorType, Value};
use smallvec::SmallVec;

use super::choose::{Choice, is_given};
use super::layout::{Layout, Way};
use super::{ShardError, State};

pub(super) struct Emitter<'a> {
    pub old: &'a Graph,
    pub choice: &'a Choice,
    pub ranks: u32,
    pub rank: u32,
    graph: Graph,
    /// Each value as it was made or changed.
    values: HashMap<(Value, Layout), Value>,
    origin: Origin,
}

impl<'a> Emitter<'a> {
    pub fn new(old: &'a Graph, choice: &'a Choice, ranks: u32, rank: u32) -> Emitter<'a> {
        let mut graph = Graph::new(old.name.clone());
        graph.stage = old.stage;
        graph.set_sizes_of(old);
        Emitter {
            old,
            choice,
            ranks,
            rank,
            graph,
            values: HashMap::new(),
            origin: Origin::Unknown,
        }
    }

    /// Makes the graph.
    pub fn graph(mut self, states: &[State]) -> Result<Graph, ShardError> {
        let (old, ranks) = (self.old, i64::from(self.ranks));
        for input in old.inputs() {
            let node = old.node(input.node);
            let layout = self.choice.way(input.node).result;
            let ty = layout.part(&node.results[0], ranks);
            let value = self.graph.add_input(input.name.clone(), ty, node.origin.clone());
            self.values.insert((input.node.into(), layout), value);
        }
        for (id, node) in old.nodes().iter() {
            // Constants are made where they are read, as they are read.
            if matches!(node.op, Op::Input { .. } | Op::Constant(_)) {
                continue;
            }
            self.origin = node.origin.clone();
            let way = self.choice.way(id);
            let operands: SmallVec<[Value; 4]> = (node.operands.iter().zip(&way.operands))
                .map(|(value, layout)| self.get(*value, *layout))
                .collect::<Result<_, _>>()?;
            let made = self.add(local(&node.op, way, ranks), &operands)?;
            for index in 0..node.results.len() {
                let index = index as u32;
                self.values
                    .insert((Value::new(id, index), way.result), Value::new(made, index));
            }
        }
        for output in old.outputs() {
            let state = states.iter().find(|state| state.output == output.name);
            let layout = state.map_or(Layout::Whole, |state| self.choice.way(state.input).result);
            let value = self.get(output.value, layout)?;
            self.graph.add_output_like(output, value);
        }
        Ok(crate::dce::sweep(self.graph))
    }

    fn add(&mut self, op: Op, operands: &[Value]) -> Result<NodeId, ShardError> {
        let added = self.graph.add(op, operands, self.origin.clone());
        added.map_err(|error| ShardError::Infer(Box::new(error)))
    }

    fn emit(&mut self, op: Op, operand: Value) -> Result<Value, ShardError> {
        self.add(op, &[operand]).map(Value::from)
    }

    /// A value in a layout, changed now where it is not there yet.
    fn get(&mut self, value: Value, layout: Layout) -> Result<Value, ShardError> {
        if let Some(known) = self.values.get(&(value, layout)) {
            return Ok(*known);
        }
        let made = if is_given(self.old, value) {
            self.constant(value, layout)?
        } else {
            let from = self.choice.layout(value);
            match layout {
                Layout::Whole => self.whole(value, from)?,
                Layout::Split(_) | Layout::Cover { .. } => {
                    let whole = self.get(value, Layout::Whole)?;
                    self.part(whole, value, layout)?
                }
                Layout::Partial => {
                    return Err(ShardError::Layout {
                        origin: self.origin.clone(),
                        from: format!("{from:?}"),
                        to: format!("{layout:?}"),
                    });
                }
            }
        };
        self.values.insert((value, layout), made);
        Ok(made)
    }

    /// This rank's part of a constant.
    fn constant(&mut self, value: Value, layout: Layout) -> Result<Value, ShardError> {
        let Op::Constant(id) = self.old.node(value.node).op else {
            return Err(ShardError::Constant {
                what: value.to_string(),
            });
        };
        let constant = &self.old.constants()[id];
        let tensor = match self.range(&constant.tensor.shape, layout) {
            None => constant.tensor.clone(),
            Some((axis, start, count)) => {
                constant
                    .tensor
                    .part(axis, start, count)
                    .ok_or_else(|| ShardError::Constant {
                        what: constant.name.clone().unwrap_or_else(|| id.to_string()),
                    })?
            }
        };
        let origin = self.old.node(value.node).origin.clone();
        Ok(self.graph.add_constant(constant.name.clone(), tensor, origin))
    }

    /// Which entries of which axis this rank has in a layout: axis, first, how many.
    fn range(&self, shape: &[usize], layout: Layout) -> Option<(usize, usize, usize)> {
        let (rank, ranks) = (self.rank as usize, self.ranks as usize);
        match layout {
            Layout::Whole | Layout::Partial => None,
            Layout::Split(axis) => {
                let count = shape.get(axis)? / ranks;
                Some((axis, rank * count, count))
            }
            Layout::Cover { axis, count } => {
                let first = rank * shape.get(axis)? / ranks;
                Some((axis, first, usize::try_from(count).ok()?))
            }
        }
    }

    /// Makes a value whole: by a sum, or by joining the parts.
    fn whole(&mut self, value: Value, from: Layout) -> Result<Value, ShardError> {
        let part = self.get(value, from)?;
        let call = |kind| {
            Op::Call(LibraryCall::collective(Collective {
                kind,
                ranks: self.ranks,
            }))
        };
        let axis = match from {
            Layout::Partial => return self.emit(call(CollectiveKind::AllReduce), part),
            Layout::Split(axis) => axis,
            Layout::Whole | Layout::Cover { .. } => return Ok(part),
        };
        let stacked = self.emit(call(CollectiveKind::AllGather), part)?;
        let whole = self.old.ty(value).shape.clone();
        let rank = whole.rank();
        // The ranks' axis goes before the one that they share, and both become one.
        let perm: Vec<usize> = (1..=axis).chain([0]).chain(axis + 1..=rank).collect();
        let ordered = match axis {
            0 => stacked,
            _ => self.emit(Op::View(View::Transpose(perm)), stacked)?,
        };
        self.emit(Op::View(View::Reshape(whole)), ordered)
    }

    /// Takes this rank's part of a value that is whole. Where it begins is a constant.
    fn part(&mut self, whole: Value, value: Value, layout: Layout) -> Result<Value, ShardError> {
        let shape: Vec<usize> = (self.old.ty(value).shape.iter())
            .map(|d| match d {
                Dim::Const(n) => usize::try_from(*n).unwrap_or(0),
                _ => 0,
            })
            .collect();
        let Some((axis, first, count)) = self.range(&shape, layout) else {
            return Ok(whole);
        };
        let entries: Vec<i64> = (first..first + count).map(|i| i as i64).collect();
        let entries = HostTensor::from_i64(DType::I64, [count], &entries).map_err(|_| ShardError::Constant {
            what: value.to_string(),
        })?;
        let entries = self.graph.add_constant(None, entries, self.origin.clone());
        self.add(Op::Gather(Gather::Take { axis }), &[whole, entries])
            .map(Value::from)
    }
}

/// The op of one rank: sizes that it names are the rank's.
pub(super) fn local(op: &Op, way: &Way, ranks: i64) -> Op {
    let cut = |shape: &Shape| {
        let mut shape = shape.clone();
        if let Layout::Split(axis) = way.result
            && let Dim::Const(size) = &mut shape.0[axis]
        {
            *size /= ranks;
        }
        shape
    };
    match op {
        Op::View(View::Reshape(shape)) => Op::View(View::Reshape(cut(shape))),
        Op::View(View::Broadcast(shape)) => Op::View(View::Broadcast(cut(shape))),
        Op::View(View::Slice { starts, sizes, steps }) => Op::View(View::Slice {
            starts: starts.clone(),
            sizes: cut(&Shape(sizes.clone())).0,
            steps: steps.clone(),
        }),
        other => other.clone(),
    }
}

/// Says whether every rank's part of a constant begins and ends with a byte.
pub(super) fn can_cut(ty: &TensorType, layout: Layout, ranks: u32) -> bool {
    let (axis, count) = match layout {
        Layout::Whole => return true,
        Layout::Partial => return false,
        Layout::Split(axis) => match &ty.shape[axis] {
            Dim::Const(size) => (axis, size / i64::from(ranks)),
            _ => return false,
        },
        Layout::Cover { axis, count } => (axis, count),
    };
    let inner: Dim = ty.shape[axis + 1..].iter().cloned().product();
    matches!(inner, Dim::Const(inner) if inner * count * i64::from(ty.dtype.bits()) % 8 == 0)
}
