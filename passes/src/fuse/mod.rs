//! Fusion: which nodes run together.
//!
//! 1. **Epilogues** ([`chain`]). Each anchor (contraction, convolution, reduction, …) grows forward over the
//!    elementwise ops and invertible views that follow it, as long as the region would not come to wait for itself.
//!    What folds rows takes in what quantises them ([`rows`]).
//! 2. **Prologues and index maps** ([`inline`]). Against the flow, each remaining map is taken into the region that
//!    reads it; views and values made from nothing are taken into every reader. What nobody can take becomes a
//!    pointwise region.
//! 3. **Readers of elements** ([`join`]). What goes on with the elements that a pointwise region stores anyway is
//!    stored beside them.
//! 4. **Parts in place** ([`place`]). A concat that would only copy needs no region when the makers of its parts can
//!    store them where it would put them.
//! 5. The regions are ordered ([`crate::order`]).
//!
//! Legality is in [`legality`]; every edge that stays unfused gets a [`Barrier`].

mod absorb;
mod chain;
pub mod classify;
mod inline;
mod join;
mod legality;
mod place;
pub mod report;
pub mod rows;

use indexmap::IndexMap;
use ir::op::{Pool, View};
use ir::schedule::{LaneKind, Part, Region, RegionKind};
use ir::{Entity, Graph, NodeId, Op, Schedule, Table, Target, Value};
use smallvec::SmallVec;

use crate::filters;

pub use absorb::{Absorbed, absorb};
use classify::{OperandNeed, Role, is_free, is_mask, is_unpacking, operand_need, role};
pub use report::{Barrier, FusedEdge, Fusion, FusionReport, UnfusedEdge};

/// Which pairs of products become one region: see [`crate::chains`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Chains {
    /// Those for which one kernel is predicted to take less time.
    #[default]
    Fastest,
    /// All that one kernel can compute.
    Always,
    Never,
}

/// How regions are made.
#[derive(Clone, Debug)]
pub struct ScheduleOptions {
    /// Off: one region a node.
    pub fuse: bool,
    /// The most nodes that compute something in one region.
    pub region_limit: usize,
    /// Which products are computed by those that read them.
    pub chains: Chains,
}

impl Default for ScheduleOptions {
    fn default() -> Self {
        ScheduleOptions {
            fuse: true,
            region_limit: 96,
            chains: Chains::default(),
        }
    }
}

/// Where a node is computed.
#[derive(Clone, Debug, PartialEq)]
enum Home {
    /// Not reached from an output, or a leaf.
    Nowhere,
    /// In the chain of a draft: the anchor itself, its epilogue, or the root of a pointwise region.
    Draft(usize),
    /// Wherever it is read.
    Readers,
    /// A concat: where its parts are made.
    Parts,
}

/// A region in the making.
struct Draft {
    kind: RegionKind,
    /// The anchor, then its epilogue in order.
    chain: Vec<NodeId>,
    /// How many computing nodes have been taken in.
    size: usize,
}

struct Fuser<'a> {
    graph: &'a Graph,
    target: &'a Target,
    options: &'a ScheduleOptions,
    users: Table<NodeId, SmallVec<[(NodeId, u32); 2]>>,
    live: Vec<bool>,
    is_output: Vec<bool>,
    generated: Vec<bool>,
    dequantised: Vec<bool>,
    positional: Vec<bool>,
    home: Vec<Home>,
    /// The drafts in which a node is computed or read in place.
    regions: Vec<SmallVec<[u32; 2]>>,
    drafts: Vec<Draft>,
    /// The first and last node of the drafts that overlap by their ids, one with the next, up to the draft that was
    /// made last. All drafts before it end before it begins, so nothing before it can read what is in it or after it.
    stretch: Option<(NodeId, NodeId)>,
    /// How often elements of a node that is computed where it is read are computed, symbols at their hints.
    evaluations: Vec<i64>,
    /// The concat that a node's value is stored as a part of, and which operand of that it is.
    placed: Vec<Option<(NodeId, usize)>>,
    /// Why a node's value is stored.
    barrier: Vec<Option<Barrier>>,
}

/// Groups the nodes of a Core graph into regions.
pub fn fuse(graph: &Graph, target: &Target, options: &ScheduleOptions) -> (Schedule, FusionReport) {
    let n = graph.nodes().len();
    let generated = classify::generated(graph);
    let mut fuser = Fuser {
        graph,
        target,
        options,
        users: graph.users(),
        live: live(graph),
        is_output: vec![false; n],
        dequantised: classify::dequantised(graph, &generated),
        positional: classify::positional(graph, &generated),
        generated,
        home: vec![Home::Nowhere; n],
        regions: vec![SmallVec::new(); n],
        drafts: Vec::new(),
        stretch: None,
        evaluations: vec![0; n],
        placed: vec![None; n],
        barrier: vec![None; n],
    };
    for output in graph.outputs() {
        fuser.is_output[output.value.node.index()] = true;
    }
    let live = std::mem::take(&mut fuser.live);
    for list in fuser.users.values_mut() {
        list.retain(|(user, _)| live[user.index()]);
    }
    fuser.live = live;
    fuser.grow_chains();
    fuser.inline_maps();
    fuser.join_readers();
    fuser.join_rows();
    fuser.join_neighbours();
    fuser.place_parts();
    fuser.finish()
}

fn live(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.nodes().len()];
    for output in graph.outputs() {
        live[output.value.node.index()] = true;
    }
    for (id, node) in graph.nodes().iter().rev() {
        if live[id.index()] {
            node.operands.iter().for_each(|v| live[v.node.index()] = true);
        }
    }
    live
}

impl Fuser<'_> {
    fn op(&self, id: NodeId) -> &Op {
        &self.graph.node(id).op
    }

    fn role(&self, id: NodeId) -> Role {
        role(self.op(id))
    }

    /// What a node asks of its operand at `position`. A GPU's attention computes a mask of positions where it reads it,
    /// and its depthwise convolutions see images and filters through transpositions.
    fn need(&self, id: NodeId, position: usize) -> OperandNeed {
        let node = self.graph.node(id);
        let positional = |v: Value| self.positional[v.node.index()];
        let is_read_as_it_is = match &node.op {
            Op::Conv(conv) => {
                position < 2
                    && filters::is_depthwise(self.graph, conv, &node.operands, self.target)
                    && matches!(self.op(node.operands[position].node), Op::View(View::Transpose(_)))
            }
            // The CPU pools what lies in memory; loops that pool what they compute take several times as long.
            Op::Pool(pool) if !self.target.is_gpu() && self.slides(id, pool) => return OperandNeed::Strided,
            op => is_mask(op, position) && positional(node.operands[position]),
        };
        match is_read_as_it_is && self.target.is_gpu() {
            true => OperandNeed::Any,
            false => operand_need(&node.op, position),
        }
    }

    /// Says whether a pool has more windows than one an image.
    fn slides(&self, id: NodeId, pool: &Pool) -> bool {
        let shape = &self.graph.ty(Value::from(id)).shape;
        let first = pool.layout.spatial_axis();
        shape[first..first + pool.size.len()].iter().any(|size| !size.is(1))
    }

    fn draft_of(&self, id: NodeId) -> Option<usize> {
        match self.home[id.index()] {
            Home::Draft(d) => Some(d),
            _ => None,
        }
    }

    fn new_draft(&mut self, kind: RegionKind, anchor: NodeId) -> usize {
        let draft = self.drafts.len();
        self.drafts.push(Draft {
            kind,
            chain: vec![anchor],
            size: 1,
        });
        self.home[anchor.index()] = Home::Draft(draft);
        self.regions[anchor.index()] = SmallVec::from_slice(&[draft as u32]);
        draft
    }

    /// Says whether the value has, or can be given, a buffer; a value made from nothing where it is read has none.
    fn can_be_buffer(&self, value: Value) -> bool {
        !self.generated[value.node.index()] || self.role(value.node) == Role::Leaf
    }

    fn finish(self) -> (Schedule, FusionReport) {
        let mut contents: Vec<Contents> = (0..self.drafts.len()).map(|d| self.contents(d)).collect();
        let mut stored: Vec<Vec<Value>> = vec![Vec::new(); self.drafts.len()];
        let mut store = |value: Value| {
            for value in self.stored_for(value) {
                if let Some(d) = self.draft_of(value.node)
                    && !stored[d].contains(&value)
                {
                    stored[d].push(value);
                }
            }
        };
        contents.iter().flat_map(|c| &c.inputs).for_each(|v| store(*v));
        self.graph.outputs().iter().for_each(|o| store(o.value));
        let anchors: Vec<NodeId> = self.drafts.iter().map(|d| d.chain[0]).collect();
        let reads = |d: usize| {
            contents[d]
                .inputs
                .iter()
                .flat_map(|v| self.stored_for(*v))
                .filter_map(|v| self.draft_of(v.node))
                .collect()
        };
        let is_collective = |d: usize| match &self.graph.node(anchors[d]).op {
            Op::Call(call) => call.as_collective().is_some(),
            _ => false,
        };
        let order = crate::order::order(&anchors, reads, is_collective);
        // A lane of their own costs an event each way: for nothing, where all that follows one reads it.
        let overlaps = self.target.is_gpu()
            && order
                .windows(2)
                .any(|pair| is_collective(pair[0]) && !is_collective(pair[1]) && !reads(pair[1]).contains(&pair[0]));
        let mut schedule = Schedule::default();
        let mut region_of: Vec<Option<ir::schedule::RegionId>> = vec![None; self.drafts.len()];
        for d in order {
            let draft = &self.drafts[d];
            let mut outputs = std::mem::take(&mut stored[d]);
            outputs.sort();
            let Contents { nodes, inputs, .. } = std::mem::take(&mut contents[d]);
            let anchor = draft.chain[0];
            let lane = match overlaps && is_collective(d) {
                true => LaneKind::Collective,
                false => LaneKind::Compute,
            };
            let parts = outputs
                .iter()
                .filter_map(|value| {
                    let (concat, operand) = self.placed[value.node.index()]?;
                    Some(Part {
                        value: *value,
                        whole: concat.into(),
                        operand,
                    })
                })
                .collect();
            let region = Region {
                kind: draft.kind,
                anchor,
                nodes,
                inputs,
                outputs,
                parts,
                lane,
            };
            region_of[d] = Some(schedule.regions.push(region));
        }
        let report = self.report(&schedule, &region_of);
        (schedule, report)
    }

    /// Collects what a draft computes and reads.
    fn contents(&self, draft: usize) -> Contents {
        let mut c = Contents::default();
        let mut seen: std::collections::HashSet<NodeId> = self.drafts[draft].chain.iter().copied().collect();
        c.nodes = self.drafts[draft].chain.clone();
        // With each value: whether its reader wants a buffer, be it one number repeated.
        let mut stack: Vec<(Value, bool)> = Vec::new();
        let operands = |id: NodeId, strict: bool| {
            let node = self.graph.node(id);
            let need = move |i| {
                // A zero point is a number in what unpacks, however the result is read.
                let is_zero_point = i == 2 && is_unpacking(&node.op);
                strict && !is_zero_point || self.need(id, i) != OperandNeed::Any
            };
            node.operands.iter().enumerate().rev().map(move |(i, v)| (*v, need(i)))
        };
        for id in &self.drafts[draft].chain {
            stack.extend(operands(*id, false));
            while let Some((value, strict)) = stack.pop() {
                if self.home[value.node.index()] == Home::Readers {
                    if seen.insert(value.node) {
                        c.nodes.push(value.node);
                        stack.extend(operands(value.node, strict));
                    }
                    continue;
                }
                let in_place = self.role(value.node) == Role::Leaf && self.generated[value.node.index()] && !strict;
                if !in_place && self.draft_of(value.node) != Some(draft) && !c.inputs.contains(&value) {
                    c.inputs.push(value);
                }
            }
        }
        c.nodes.sort();
        c
    }

    fn report(&self, schedule: &Schedule, region_of: &[Option<ir::schedule::RegionId>]) -> FusionReport {
        let mut report = FusionReport::default();
        let mut readers: IndexMap<Value, usize> = IndexMap::new();
        for value in schedule.regions.values().flat_map(|region| &region.inputs) {
            *readers.entry(*value).or_default() += 1;
        }
        for (id, region) in schedule.regions.iter() {
            let first = report.unfused.len();
            for part in &region.parts {
                report.fused.push(FusedEdge {
                    producer: part.value.node,
                    consumer: part.whole.node,
                    region: id,
                    how: Fusion::InPlace,
                });
            }
            for consumer in &region.nodes {
                for value in &self.graph.node(*consumer).operands {
                    if self.role(value.node) == Role::Leaf {
                        continue;
                    }
                    if region.nodes.binary_search(&value.node).is_ok() {
                        let how = match (&self.home[value.node.index()], self.op(value.node)) {
                            (Home::Readers, Op::View(_)) => Fusion::IndexMap,
                            (Home::Readers, op) if is_unpacking(op) => Fusion::Unpacking,
                            (Home::Readers, _) => Fusion::Prologue,
                            _ => Fusion::Epilogue,
                        };
                        report.fused.push(FusedEdge {
                            producer: value.node,
                            consumer: *consumer,
                            region: id,
                            how,
                        });
                        continue;
                    }
                    let mut reason = self.why_stored(*value, *consumer, region.anchor);
                    let shape = |value: Value| &self.graph.ty(value).shape;
                    let has_one_reader = readers.get(value) == Some(&1);
                    if reason == Barrier::SeveralConsumers
                        && has_one_reader
                        && shape(*value) != shape(region.anchor.into())
                    {
                        // They have become one.
                        reason = Barrier::ShapeDiffers;
                    }
                    // One edge stands for all parts of a concat.
                    let made = self.stored_for(*value).next().unwrap_or(*value);
                    if let Some(producer) = self.draft_of(made.node).and_then(|d| region_of[d]) {
                        let edge = UnfusedEdge {
                            value: *value,
                            producer,
                            consumer: id,
                            reason,
                        };
                        if !report.unfused[first..].contains(&edge) {
                            report.unfused.push(edge);
                        }
                    }
                }
            }
        }
        report
    }

    /// Names what kept `value` from being fused with `consumer`, a node of the region anchored at `anchor`.
    fn why_stored(&self, value: Value, consumer: NodeId, anchor: NodeId) -> Barrier {
        if !self.options.fuse {
            return Barrier::Disabled;
        }
        if let Role::Anchor(kind) = self.role(value.node)
            && !classify::takes_epilogue(kind)
        {
            return Barrier::NoEpilogue;
        }
        // What forbade to take a map in says more than what kind of reader it has.
        if let Some(reason @ (Barrier::NotStrided | Barrier::RepeatedWork | Barrier::RegionFull)) =
            self.barrier[value.node.index()]
        {
            return reason;
        }
        // A view in between only says how the anchor reads.
        let reader = if is_free(self.op(consumer)) { anchor } else { consumer };
        match self.role(reader) {
            Role::Anchor(RegionKind::Contract | RegionKind::Attention) => Barrier::OperandReuse,
            Role::Anchor(RegionKind::Conv | RegionKind::Library | RegionKind::Scatter) => Barrier::DenseOperand,
            Role::Anchor(_) if self.barrier[value.node.index()].is_none() => Barrier::NeedsWholeRow,
            Role::Anchor(_)
                if self
                    .draft_of(value.node)
                    .is_some_and(|d| self.drafts[d].kind != RegionKind::Pointwise) =>
            {
                Barrier::NeedsWholeRow
            }
            // The consumer is in the epilogue of another contraction, convolution or reduction.
            _ if matches!(self.role(anchor), Role::Anchor(_)) && anchor != consumer => Barrier::OtherAnchor,
            _ => self.barrier[value.node.index()].unwrap_or(if self.users[value.node].len() > 1 {
                Barrier::SeveralConsumers
            } else {
                Barrier::ShapeDiffers
            }),
        }
    }
}

#[derive(Default)]
struct Contents {
    nodes: Vec<NodeId>,
    inputs: Vec<Value>,
}
