//! Prologues and index maps: a map is computed where it is read.
//!
//! Before: `n4 = exp n1; n5 = transpose n4; n6 = reduce n5`. After: one region `{n4, n5, n6}` that reads `n1` through
//! the transposed index.

use ir::op::{Composite, Elementwise, Gather, View};
use ir::schedule::RegionKind;
use ir::{DType, Entity, NodeId, Op, Value};
use smallvec::SmallVec;

use super::classify::{OperandNeed, Role, is_costly, is_free, is_mask, is_unpacking};
use super::{Barrier, Fuser, Home};
use crate::lower::views::is_strided;
use crate::quantize::cache::unpacked_values;

/// A consumer this much larger repeats a producer's costly work too often.
const REPEAT_LIMIT: i64 = 4;
/// Elements that several kernels compute again in less time than it takes to launch one that stores them.
const SLIGHT: i64 = 1 << 15;
/// Elements from which what is stored and read again goes to memory and back.
const MANY: i64 = 1 << 20;
/// How often readers may compute an element again that is made of narrower ones.
const READINGS: i64 = 6;
/// Elementwise nodes that may follow the cast from narrower numbers.
const WIDENED: usize = 3;
/// How many times fewer elements than the result has what such a node reads beside.
const SMALLER: i64 = 16;
/// Elementwise nodes, one after the other, behind which a collective is looked for.
const NEAR: usize = 6;

/// The most parts of a concat that is computed where it is read.
const WIDE: usize = 32;

impl Fuser<'_> {
    /// Decides, against the flow, where each map is computed.
    pub(super) fn inline_maps(&mut self) {
        // Paths from a strided operand down to each inlined view: the anchor's operand first.
        let mut paths: Vec<Vec<Vec<Value>>> = vec![Vec::new(); self.graph.nodes().len()];
        let ids: Vec<NodeId> = self.graph.nodes().keys().collect();
        for id in ids.into_iter().rev() {
            if !self.live[id.index()] || self.role(id) != Role::Map || self.home[id.index()] != Home::Nowhere {
                continue;
            }
            match self.may_inline(id, &mut paths) {
                Ok(regions) => {
                    self.home[id.index()] = Home::Readers;
                    self.evaluations[id.index()] = self.evaluations_of(id);
                    if self.computes(id) {
                        regions.iter().for_each(|r| self.drafts[*r as usize].size += 1);
                    }
                    self.regions[id.index()] = regions;
                }
                Err(barrier) => {
                    paths[id.index()].clear();
                    self.barrier[id.index()] = Some(barrier);
                    if !self.take_widened(id) {
                        self.new_draft(RegionKind::Pointwise, id);
                    }
                }
            }
        }
    }

    /// Returns the regions that would take the map in, or why it must be stored.
    fn may_inline(&self, id: NodeId, paths: &mut [Vec<Vec<Value>>]) -> Result<SmallVec<[u32; 2]>, Barrier> {
        if self.is_output[id.index()] {
            return Err(Barrier::ModelOutput);
        }
        let op = self.op(id);
        let mut regions: SmallVec<[u32; 2]> = SmallVec::new();
        let mut mine: Vec<Vec<Value>> = Vec::new();
        for (user, position) in &self.users[id] {
            for r in &self.regions[user.index()] {
                if !regions.contains(r) {
                    regions.push(*r);
                }
            }
            let value = Value::from(id);
            match self.need(*user, *position as usize) {
                OperandNeed::Dense => return Err(Barrier::DenseOperand),
                OperandNeed::Strided => mine.push(vec![value]),
                // Scales and zero points are read wherever a group begins.
                OperandNeed::Any if is_unpacking(self.op(*user)) && *position > 0 => {}
                // Indices are read wherever a lookup is made.
                OperandNeed::Any if matches!(self.op(*user), Op::Gather(_)) && *position > 0 => {}
                OperandNeed::Any if self.home[user.index()] == Home::Readers => {
                    for path in &paths[user.index()] {
                        let mut longer = path.clone();
                        longer.push(value);
                        mine.push(longer);
                    }
                }
                OperandNeed::Any => {}
            }
        }
        // A choice among many parts within another would nest too deep, and a kernel has so many arguments only.
        if matches!(op, Op::View(View::Concat { .. })) && self.graph.node(id).operands.len() > WIDE {
            return Err(Barrier::RegionFull);
        }
        if let [(joined, _)] = self.users[id][..]
            && self.draft_of(joined).is_some()
            && matches!(self.op(joined), Op::View(View::Concat { .. }))
            && self.follows_a_collective(id)
        {
            return Err(Barrier::Collective);
        }
        let unpacks = is_unpacking(op) && self.feeds_products(id);
        let looked_up = !mine.is_empty() && (self.is_paged(id) || self.is_chosen(id));
        let asks = !mine.is_empty() && self.makes_few_queries(id);
        if asks && !self.options.fuse {
            return Err(Barrier::Disabled);
        }
        // Values made from nothing have no strides to keep, but a contraction cannot be fed by arithmetic.
        if !mine.is_empty() && !asks {
            let converts = self.widens(id) && (self.target.operand_prologue || self.is_of_halves(id));
            if !is_free(op) && !converts && !unpacks && !looked_up {
                return Err(Barrier::OperandReuse);
            }
            if !self.options.fuse {
                return Err(Barrier::Disabled);
            }
            // Each page begins where the table says, so that rows of several pages have no common stride.
            let paged = looked_up || self.is_view_of_pages(id);
            if !paged && !mine.iter().all(|path| is_strided(self.graph, path)) {
                return Err(Barrier::NotStrided);
            }
            // What stands below a strided path must be a buffer.
            if self
                .graph
                .node(id)
                .operands
                .iter()
                .take(1)
                .any(|v| !self.can_be_buffer(*v))
            {
                return Err(Barrier::DenseOperand);
            }
        }
        if !self.options.fuse {
            return Err(Barrier::Disabled);
        }
        // Unpacking again in each product costs less than numbers that are read from memory, as does what is made of
        // bytes.
        let made = self.generated[id.index()] || self.dequantised[id.index()] || self.masks_by_position(id);
        let free = is_free(op) || made || unpacks || looked_up;
        if !free {
            if regions.len() > 1 && !self.is_slight(id) && !self.reads_less(id) {
                return Err(Barrier::SeveralConsumers);
            }
            for r in &regions {
                let draft = &self.drafts[*r as usize];
                if draft.size >= self.options.region_limit {
                    return Err(Barrier::RegionFull);
                }
                if self.repeats(id) {
                    return Err(Barrier::RepeatedWork);
                }
            }
        }
        paths[id.index()] = match (looked_up, asks) {
            // Behind a lookup the way to the buffer begins anew; behind arithmetic there is none.
            (true, _) => vec![Vec::new()],
            (_, true) => Vec::new(),
            _ => mine,
        };
        Ok(regions)
    }

    /// Says whether a node is computed point by point of what a collective brings.
    fn follows_a_collective(&self, id: NodeId) -> bool {
        let mut stack = vec![(id, 0)];
        while let Some((id, depth)) = stack.pop() {
            let node = self.graph.node(id);
            match &node.op {
                Op::Call(call) if call.as_collective().is_some() => return true,
                Op::Elementwise(_) if depth < NEAR => {
                    stack.extend(node.operands.iter().map(|v| (v.node, depth + 1)));
                }
                _ => {}
            }
        }
        false
    }

    /// Says whether the map is a cast to a type that is no narrower. What is narrowed is stored: whoever makes the
    /// value does so for nothing, and a product reads the fewer bytes in wide accesses.
    fn widens(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        match node.op {
            Op::Elementwise(Elementwise::Cast(to)) => to.bits() >= self.graph.ty(node.operands[0]).dtype.bits(),
            _ => false,
        }
    }

    /// Says whether the map makes `f32` of 16 bits for products that have it on their right: those read either.
    fn is_of_halves(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let of = |value: Value| self.graph.ty(value).dtype;
        of(Value::from(id)) == DType::F32
            && matches!(of(node.operands[0]), DType::F16 | DType::BF16)
            && self.feeds_products(id)
    }

    /// Says whether all readers are products that have the value on their right, views in between or not, or attentions
    /// that have these as their values.
    fn feeds_products(&self, id: NodeId) -> bool {
        self.users[id].iter().all(|(user, position)| match self.op(*user) {
            Op::Contract(_) => *position == 1,
            Op::Composite(Composite::Attention { .. }) => {
                *position == 2 && self.target.is_gpu() && unpacked_values(self.graph, *user) == Some(id)
            }
            op => is_free(op) && self.feeds_products(*user),
        })
    }

    /// Says whether the map is a few instructions for each element of so few queries that a launch costs more than
    /// computing them where attentions read them, as a decoder's are turned by their positions. Views in between are
    /// computed there, too.
    fn makes_few_queries(&self, id: NodeId) -> bool {
        self.target.is_gpu()
            && matches!(self.op(id), Op::Elementwise(_))
            && !is_costly(self.op(id))
            && self.evaluations_of(id) <= SLIGHT
            && self.feeds_queries(id)
    }

    /// Says whether all readers are attentions that have the value as their queries, views in between or not.
    fn feeds_queries(&self, id: NodeId) -> bool {
        self.users[id].iter().all(|(user, position)| match self.op(*user) {
            Op::Composite(Composite::Attention { .. }) => *position == 0,
            op => is_free(op) && self.home[user.index()] == Home::Readers && self.feeds_queries(*user),
        })
    }

    /// Says whether all readers mask attentions with the map, or fold it, and it is a few instructions on positions:
    /// kernels then see which keys it hides, and read none of its elements from memory.
    fn masks_by_position(&self, id: NodeId) -> bool {
        self.target.is_gpu()
            && self.positional[id.index()]
            && self.users[id].iter().all(|(user, position)| {
                let passed_on = self.home[user.index()] == Home::Readers && self.positional[user.index()];
                let folded = matches!(self.op(*user), Op::Reduce { .. });
                is_mask(self.op(*user), *position as usize) || folded || passed_on
            })
    }

    /// Says whether the map looks up rows (pages of a cache) that attentions alone read, as their keys or values. A
    /// kernel looks a page up where it reads it; what lies along the last axis stays together.
    fn is_paged(&self, id: NodeId) -> bool {
        let Op::Gather(Gather::Take { axis }) = self.op(id) else {
            return false;
        };
        let data = self.graph.ty(self.graph.node(id).operands[0]).rank();
        self.target.is_gpu() && axis + 1 < data && self.feeds_keys(id)
    }

    /// Says whether the map chooses among stacked constants that products alone have on their right: kernels then read
    /// no other.
    fn is_chosen(&self, id: NodeId) -> bool {
        let Op::Gather(Gather::Take { axis: 0 }) = self.op(id) else {
            return false;
        };
        let stack = self.graph.node(id).operands[0];
        let is_stack = matches!(self.op(stack.node), Op::Constant(_)) && self.graph.ty(stack).rank() == 3;
        is_stack && !self.target.is_gpu() && self.feeds_right_operands(id)
    }

    /// Says whether all readers are products that have the value on their right, conversions and unpackings in between
    /// or not.
    fn feeds_right_operands(&self, id: NodeId) -> bool {
        self.users[id].iter().all(|(user, position)| match self.op(*user) {
            Op::Contract(_) => *position == 1,
            op => {
                let stored = matches!(op, Op::Elementwise(Elementwise::Cast(_))) || is_unpacking(op) || is_free(op);
                stored && self.home[user.index()] == Home::Readers && self.feeds_right_operands(*user)
            }
        })
    }

    /// Says whether the node is one of the views that lead from an attention to pages of a cache alone.
    fn is_view_of_pages(&self, id: NodeId) -> bool {
        let mut at = id;
        while is_free(self.op(at)) {
            at = self.graph.node(at).operands[0].node;
            if self.users[at].len() != 1 {
                return false;
            }
        }
        let data = self.graph.node(at).operands.first().map(|v| self.graph.ty(*v).rank());
        let looks_up =
            matches!(self.op(at), Op::Gather(Gather::Take { axis }) if data.is_some_and(|rank| axis + 1 < rank));
        at != id && looks_up && self.target.is_gpu() && self.feeds_keys(id)
    }

    /// Says whether all readers are attentions that have the value as their keys or values, views in between or not.
    fn feeds_keys(&self, id: NodeId) -> bool {
        self.users[id].iter().all(|(user, position)| match self.op(*user) {
            Op::Composite(Composite::Attention { .. }) => matches!(position, 1 | 2),
            op => is_free(op) && self.home[user.index()] == Home::Readers && self.feeds_keys(*user),
        })
    }

    /// Says whether the map is a few instructions on what lies in memory anyway, for so few elements that a launch
    /// costs more than computing them in each reader.
    fn is_slight(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let there = |v: &Value| self.role(v.node) == Role::Leaf;
        self.target.is_gpu()
            && matches!(node.op, Op::Elementwise(_))
            && !is_costly(&node.op)
            && node.operands.iter().all(there)
            && self.evaluations_of(id) <= SLIGHT
    }

    /// Says whether the map is a few instructions on so many narrower numbers that what its readers take from memory is
    /// less than what the map would have stored: a normalisation's `f32` of an image in `f16`, less the mean.
    fn reads_less(&self, id: NodeId) -> bool {
        let elements = self.elements(id);
        self.target.is_gpu()
            && elements >= MANY
            && self.evaluations_of(id) <= READINGS * elements
            && self.is_of_narrower(Value::from(id), elements, WIDENED)
    }

    /// Says whether a node is a cast that makes so many numbers wider that they go to memory and back.
    pub(super) fn widens_many(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let Op::Elementwise(Elementwise::Cast(to)) = node.op else {
            return false;
        };
        let from = self.graph.ty(node.operands[0]).dtype;
        self.target.is_gpu() && from.is_float() && from.bits() < to.bits() && self.elements(id) >= MANY
    }

    /// Says whether a value is a few instructions on one tensor of as many but narrower numbers, and on tensors that
    /// are much smaller.
    fn is_of_narrower(&self, value: Value, elements: i64, depth: usize) -> bool {
        let node = self.graph.node(value.node);
        match &node.op {
            Op::Elementwise(Elementwise::Cast(to)) => self.graph.ty(node.operands[0]).dtype.bits() < to.bits(),
            Op::View(View::Reshape(_) | View::Transpose(_)) => self.is_of_narrower(node.operands[0], elements, depth),
            op @ Op::Elementwise(_) if depth > 0 && !is_costly(op) => {
                let mut large = node
                    .operands
                    .iter()
                    .map(|v| self.before_broadcast(*v))
                    .collect::<Vec<_>>();
                large.retain(|v| {
                    let size = self.graph.ty(*v).elements().hint(self.graph.symbols());
                    size.saturating_mul(SMALLER) > elements
                });
                matches!(large[..], [one] if self.is_of_narrower(one, elements, depth - 1))
            }
            _ => false,
        }
    }

    /// The value that broadcasts and reshapes are of.
    fn before_broadcast(&self, mut value: Value) -> Value {
        while let Op::View(View::Broadcast(_) | View::Reshape(_)) = self.op(value.node) {
            value = self.graph.node(value.node).operands[0];
        }
        value
    }

    /// Says whether work of the map would be done many times over by its readers. A GPU does a few instructions again
    /// while it waits for memory; a CPU finds what it stored in its caches.
    fn repeats(&self, id: NodeId) -> bool {
        let evaluations = self.evaluations_of(id);
        let minds = is_costly(self.op(id)) || !self.target.is_gpu() && evaluations > SLIGHT;
        minds && evaluations >= REPEAT_LIMIT * self.elements(id).max(1)
    }

    /// How often elements of a node are computed by its readers. One that has it twice, as a square has, computes it
    /// once.
    fn evaluations_of(&self, id: NodeId) -> i64 {
        let readers = &self.users[id];
        let is_again = |at: usize| readers[..at].iter().any(|(user, _)| *user == readers[at].0);
        readers
            .iter()
            .enumerate()
            .filter(|(at, _)| !is_again(*at))
            .map(|(_, reader)| reader)
            .map(|(user, position)| self.evaluations_by(*user, *position as usize))
            .fold(0, i64::saturating_add)
    }

    /// A node's number of elements, symbols at their hints.
    fn elements(&self, id: NodeId) -> i64 {
        self.graph.ty(Value::from(id)).elements().hint(self.graph.symbols())
    }

    /// How often a node computes an element of its operand at `position`.
    fn evaluations_by(&self, user: NodeId, position: usize) -> i64 {
        let own = match self.home[user.index()] {
            Home::Draft(d) if self.drafts[d].chain[0] == user => self.evaluations_by_anchor(d),
            Home::Draft(_) => self.elements(user),
            // It is asked for as often as its own readers ask for it.
            _ => self.evaluations[user.index()],
        };
        match self.op(user) {
            // Each element of a concat is computed from one part alone.
            Op::View(View::Concat { .. }) => {
                let part = self.elements(self.graph.node(user).operands[position].node);
                let share = i128::from(own) * i128::from(part) / i128::from(self.elements(user).max(1));
                i64::try_from(share).unwrap_or(i64::MAX)
            }
            _ => own,
        }
    }

    /// How often the anchor of a draft computes an element of its operands.
    fn evaluations_by_anchor(&self, draft: usize) -> i64 {
        let symbols = self.graph.symbols();
        let elements = |n: NodeId| self.elements(n);
        let draft = &self.drafts[draft];
        let anchor = draft.chain[0];
        match draft.kind {
            // A row kernel evaluates its operand once for each fold and once for the store.
            RegionKind::Reduction | RegionKind::Scan | RegionKind::Sort => {
                let operand = self.graph.node(anchor).operands[0];
                let passes = match self.op(anchor) {
                    Op::Composite(_) => 3,
                    _ => 1,
                };
                let window = match self.op(anchor) {
                    Op::Pool(p) => p.size.iter().product::<i64>(),
                    _ => 1,
                };
                let read = self.graph.ty(operand).elements().hint(symbols);
                // Being read by an epilogue operand costs one evaluation an element of the result.
                read.max(elements(anchor)) * passes * window
            }
            // What is not updated stays where it is.
            RegionKind::Scatter => elements(self.graph.node(anchor).operands[2].node),
            _ => elements(anchor),
        }
    }
}
