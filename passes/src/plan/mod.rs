//! Planning: regions become kernels and steps, values become buffers with lifetimes.
//!
//! Kernels that differ only in their buffers are one kernel. A pointwise result takes over the buffer of an operand
//! that dies there. The parts of a concat that their makers store go to one buffer. GPU targets get a copy in for each
//! input and a copy out for each output, in lanes of their own.

mod convolutions;
mod dedupe;
mod engines;
mod filtered;
mod in_place;
mod overlap;
mod reopen;
mod sizes;
mod unpacked;

use std::collections::HashMap;

use indexmap::IndexMap;
use ir::graph::Constant;
use ir::kernel::Winograd;
use ir::plan::{Buffer, BufferId, KernelId, Lane, LaneId, Overlap, Place, Port, Step, StepId, Work};
use ir::schedule::{LaneKind, Region, RegionKind};
use ir::{Entity, Graph, Kernel, NodeId, Op, Plan, Schedule, Table, Target, TensorType, Value};

use crate::lower::unpacked::{ForRows, UnpackOnce, unpacked};
use crate::lower::winograd::Filtering;
use crate::lower::{self, LowerError, Parts, Total, in_parts, in_ranges, lower};
use crate::route::{self, sized::Routes};
use crate::tuning::{self, Tuning};
pub use convolutions::Convolution;
pub use engines::{Decided, Prefer};
pub use filtered::FilteredConvolution;
pub use reopen::reopen;
use sizes::{Other, OtherWork};
use unpacked::Stored;
pub use unpacked::UnpackedProduct;

/// How a plan is made.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// Let results take over the buffers of operands that die.
    pub in_place: bool,
    /// Mappings of products that measuring has shown to be fastest.
    pub tuning: Tuning,
    /// Let several workgroups share the depth of a product that has few tiles, or of tiles that are left over by whole
    /// rounds, by way of scratch memory.
    pub parts: bool,
    /// Which convolutions are computed by Winograd's filtering on GPUs.
    pub filtering: Filtering,
    /// Which products by quantised weights have the weights' numbers stored first on GPUs.
    pub unpack_once: UnpackOnce,
    /// Libraries that steps may call where the e-graph chose a kernel, and the other way round: by size, as measured,
    /// as preferred.
    pub routes: Routes,
    pub prefer: Prefer,
    /// Convolutions of which the e-graph has made calls, where the graph has convolutions again: see [`reopen()`].
    pub called: Vec<NodeId>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        PlanOptions {
            in_place: true,
            tuning: Tuning::shipped(),
            parts: true,
            filtering: Filtering::default(),
            unpack_once: UnpackOnce::default(),
            routes: Routes::default(),
            prefer: Prefer::default(),
            called: Vec::new(),
        }
    }
}

/// A plan with what was decided on the way.
#[derive(Clone, Debug)]
pub struct Planned {
    pub plan: Plan,
    /// What computes the products of which measuring has decided that.
    pub decided: Vec<Decided>,
    /// The convolutions that a kernel or a call may compute, in the order of their steps. They are looked for only
    /// where rows of calls or the caller's preference decide between the two.
    pub convolutions: Vec<Convolution>,
    /// The convolutions that Winograd's filtering may compute, in the order of their steps.
    pub filtered: Vec<FilteredConvolution>,
    /// The products whose quantised weights are stored as numbers first, in the order of their steps.
    pub unpacked: Vec<UnpackedProduct>,
    /// Constants that the plan has besides the graph's: their ids go on where the graph's end.
    pub constants: Vec<Constant>,
}

/// Makes the plan of a scheduled graph, whose constants are the graph's: no convolution has its filters transformed.
///
/// # Errors
/// A region that no kernel can be made of; a plan that does not verify.
pub fn plan(graph: &Graph, schedule: &Schedule, target: &Target, options: &PlanOptions) -> Result<Plan, LowerError> {
    let options = PlanOptions {
        filtering: Filtering::Never,
        ..options.clone()
    };
    plan_and_decided(graph, schedule, target, &options).map(|planned| planned.plan)
}

/// Makes the plan of a scheduled graph, and says what computes the products of which measuring has decided that.
///
/// # Errors
/// As [`plan`].
pub fn plan_and_decided(
    graph: &Graph,
    schedule: &Schedule,
    target: &Target,
    options: &PlanOptions,
) -> Result<Planned, LowerError> {
    let mut p = Planner::new(graph, target);
    // Only where somebody asks for them: a kernel that is lowered for each call takes its time.
    let known = convolutions::are_decided(options);
    p.inputs(schedule);
    // Kernels of regions that add up the parts of the product before them, by the anchors of the regions.
    let mut rows: IndexMap<NodeId, Rows> = IndexMap::new();
    let readers = readers(graph, schedule);
    for region in schedule.regions.values() {
        if let Some((value, same)) = renamed(graph, region) {
            let buffer = p.buffer(same);
            p.buffer_of.insert(value, buffer);
            continue;
        }
        let flops = crate::flops::of_nodes(graph, region.nodes.iter().copied());
        if let Some(Rows {
            kernel,
            inputs,
            scratch,
        }) = rows.swap_remove(&region.anchor)
        {
            let reads: Vec<BufferId> = inputs.iter().map(|v| p.buffer(*v)).collect();
            let writes = p.results(region);
            p.launch(kernel, [&reads[..], &[scratch], &writes].concat(), flops);
            continue;
        }
        if region.kind == RegionKind::Library {
            let reads = p.reads(region);
            let writes = p.results(region);
            p.call(region, &reads, &writes, (options.routes, known))?;
            continue;
        }
        let ranges = in_ranges(graph, region, target)?;
        if !ranges.is_empty() {
            let reads = p.reads(region);
            let writes = p.results(region);
            let whole = graph.ty(Value::from(region.anchor)).shape.clone();
            for (kernel, range) in ranges {
                let share = flops.clone() * (range.to - range.from);
                let flops = share.floor_div(&whole[range.axis].larger(&ir::Dim::Const(1)));
                p.launch(kernel, [&reads[..], &writes].concat(), flops);
            }
            continue;
        }
        let kernel = lower(graph, region, target)?;
        if known && let Some(rival) = convolutions::rival(graph, region, &kernel, options, target)? {
            p.convolution(region, kernel, rival, flops, options)?;
            continue;
        }
        if p.filter(region, &kernel, options)? {
            continue;
        }
        let made = unpacked(graph, region, &kernel, options.unpack_once, target)?.filter(|made| p.unpack(made));
        // The product of what is stored takes the region's place, or is there besides.
        let (region, kernel) = match &made {
            Some(made) if made.from == ForRows::All => (&made.product.0, made.product.1.clone()),
            _ => (region, kernel),
        };
        let reads = p.reads(region);
        let parts = match options.parts {
            true => {
                let reader = region
                    .outputs
                    .first()
                    .and_then(|value| readers.get(value).copied().flatten());
                // One product's parts a kernel.
                let reader = reader.filter(|reader| !rows.contains_key(&reader.anchor));
                in_parts(graph, region, reader, target, &kernel)?
            }
            false => None,
        };
        match parts {
            Some(Parts {
                partials,
                total: Total::Own(total),
                scratch,
            }) => {
                let step = p.launch_parts(region, (partials, total), scratch, (&reads, flops));
                p.note_unpacked(step, made.as_ref());
                continue;
            }
            Some(Parts {
                partials,
                total: Total::OfRows { anchor, kernel, inputs },
                scratch,
            }) => {
                // The product's own result is stored nowhere.
                let scratch = p.scratch(region, scratch);
                let step = p.launch(partials, [&reads[..], &[scratch]].concat(), flops);
                p.note_unpacked(step, made.as_ref());
                let sums = Rows {
                    kernel,
                    inputs,
                    scratch,
                };
                rows.insert(anchor, sums);
                continue;
            }
            None => {}
        }
        let writes = p.results(region);
        if region.kind == RegionKind::Scatter {
            // The updates land on a copy of the data.
            let data = graph.node(region.anchor).operands[0];
            let from = p.buffer(data);
            for to in &writes {
                p.copy(LaneKind::Compute, from, *to);
            }
        }
        let step = p.launch_or_share(kernel, [&reads[..], &writes].concat(), flops, options);
        p.note_unpacked(step, made.as_ref());
        if let Some(made) = &made {
            p.multiply_stored(step, made, &writes);
        }
        if let Some((product, operands)) = route::sized::call_of(graph, region, options.routes, target)
            && (known || !engines::is_known(&product.rows()))
        {
            let operands = operands.into_iter().map(|v| p.buffer(v)).collect();
            let work = OtherWork::Call {
                operands,
                results: writes,
            };
            p.others.insert(step, Other { product, work });
        }
    }
    p.outputs();
    p.lifetimes();
    if options.in_place {
        in_place::reuse(&mut p.plan, |step| p.stored.contains_key(&step));
    }
    dedupe::number(&mut p.plan.kernels);
    tuning::apply(&mut p.plan, &options.tuning);
    let mut decided = std::mem::take(&mut p.decided);
    decided.extend(engines::choose(&mut p.plan, &p.others, options));
    decided.extend(sizes::choices(&mut p.plan, (&p.others, &p.stored), options));
    sizes::workspaces(&mut p.plan);
    dedupe::number(&mut p.plan.kernels);
    overlap::share_units(&mut p.plan);
    p.plan.overlap = overlap::overlap(&p.plan);
    p.plan.flops = crate::flops::count(graph);
    ir::plan::verify::verify(&p.plan)?;
    Ok(Planned {
        plan: p.plan,
        decided,
        convolutions: p.convolutions,
        filtered: p.filtered,
        unpacked: p.unpacked,
        constants: p.constants,
    })
}

/// A kernel that folds rows of a product's result, which it adds up from parts.
struct Rows {
    kernel: Kernel,
    /// What it reads besides the parts.
    inputs: Vec<Value>,
    scratch: BufferId,
}

/// Returns, for each value that regions read, the region that reads it; `None` where there are several, or where it is
/// stored besides: as an output of the model or a part of a larger value.
fn readers<'s>(graph: &Graph, schedule: &'s Schedule) -> HashMap<Value, Option<&'s Region>> {
    let mut readers: HashMap<Value, Option<&Region>> = HashMap::new();
    for region in schedule.regions.values() {
        for value in &region.inputs {
            readers
                .entry(*value)
                .and_modify(|one| *one = None)
                .or_insert(Some(region));
        }
    }
    let parts = schedule
        .regions
        .values()
        .flat_map(|region| &region.parts)
        .map(|part| part.value);
    for stored in graph.outputs().iter().map(|output| output.value).chain(parts) {
        readers.insert(stored, None);
    }
    readers
}

/// Returns the result and the input of a region that only gives a stored tensor another shape: they share a buffer, and
/// no kernel is launched. (A model's output is the caller's memory, so it is copied.)
fn renamed(graph: &Graph, region: &Region) -> Option<(Value, Value)> {
    let ([input], [output]) = (region.inputs.as_slice(), region.outputs.as_slice()) else {
        return None;
    };
    let reshapes = region
        .nodes
        .iter()
        .all(|n| matches!(graph.node(*n).op, Op::View(ir::op::View::Reshape(_))));
    let is_output = graph.outputs().iter().any(|o| o.value == *output);
    let is_part = region.part(*output).is_some();
    (region.kind == RegionKind::Pointwise && reshapes && !is_output && !is_part).then_some((*output, *input))
}

/// Removes parameters that no expression reads and no statement writes (a splat constant folded into the code, a size).
fn drop_unused_params(kernel: &mut Kernel, args: &mut Vec<BufferId>) {
    use ir::kernel::{Access, Expr};
    let mut used: Vec<bool> = kernel.params.values().map(|p| p.access != Access::Read).collect();
    for (_, e) in kernel.exprs.iter() {
        if let Expr::Load { param, .. } = e {
            used[param.index()] = true;
        }
    }
    if used.iter().all(|u| *u) {
        return;
    }
    dedupe::keep_params(kernel, &used);
    let mut keep = used.iter();
    args.retain(|_| *keep.next().unwrap_or(&true));
}

struct Planner<'a> {
    graph: &'a Graph,
    plan: Plan,
    buffer_of: IndexMap<Value, BufferId>,
    kernels: dedupe::Kernels,
    lanes: IndexMap<LaneKind, LaneId>,
    /// The step that last wrote each buffer.
    writer: IndexMap<BufferId, StepId>,
    /// What steps may be at other sizes.
    others: IndexMap<StepId, Other>,
    /// See [`Planned`].
    decided: Vec<Decided>,
    convolutions: Vec<Convolution>,
    filtered: Vec<FilteredConvolution>,
    constants: Vec<Constant>,
    /// Transformed filters that the plan has already.
    transformed_filters: IndexMap<(Value, Winograd), BufferId>,
    /// Weights that the plan stores as numbers already, and for which rows.
    unpacked_weights: IndexMap<Value, ForRows>,
    unpacked: Vec<UnpackedProduct>,
    /// What steps do where they multiply by such weights.
    stored: IndexMap<StepId, Stored>,
    /// The tickets of products whose tiles are shared, which are zeros once a step has put them there.
    tickets: Option<BufferId>,
}

impl<'a> Planner<'a> {
    fn new(graph: &'a Graph, target: &Target) -> Planner<'a> {
        let plan = Plan {
            target: *target,
            symbols: graph.symbols().clone(),
            kernels: Table::new(),
            buffers: Table::new(),
            steps: Table::new(),
            lanes: Table::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            checks: Vec::new(),
            streaming: None,
            share: None,
            states: Vec::new(),
            flops: ir::Dim::Const(0),
            requirements: ir::plan::requirement::of(graph),
            overlap: Overlap::default(),
        };
        let mut p = Planner {
            graph,
            plan,
            buffer_of: IndexMap::new(),
            kernels: dedupe::Kernels::default(),
            lanes: IndexMap::new(),
            writer: IndexMap::new(),
            others: IndexMap::new(),
            decided: Vec::new(),
            convolutions: Vec::new(),
            filtered: Vec::new(),
            constants: Vec::new(),
            transformed_filters: IndexMap::new(),
            unpacked_weights: IndexMap::new(),
            unpacked: Vec::new(),
            stored: IndexMap::new(),
            tickets: None,
        };
        p.lane(LaneKind::Compute);
        p
    }

    fn lane(&mut self, kind: LaneKind) -> LaneId {
        let plan = &mut self.plan;
        *self.lanes.entry(kind).or_insert_with(|| plan.lanes.push(Lane { kind }))
    }

    fn add_buffer(&mut self, name: String, ty: TensorType, place: Place) -> BufferId {
        self.plan.buffers.push(Buffer { name, ty, place })
    }

    /// An arena buffer whose lifetime is found at the end.
    fn arena(&mut self, name: String, ty: TensorType) -> BufferId {
        let nowhere = StepId::new(0);
        self.add_buffer(
            name,
            ty,
            Place::Arena {
                first: nowhere,
                last: nowhere,
                in_place_of: None,
            },
        )
    }

    fn inputs(&mut self, schedule: &Schedule) {
        let is_read = |value: Value| {
            schedule.regions.values().any(|r| r.inputs.contains(&value))
                || self.graph.outputs().iter().any(|o| o.value == value)
        };
        let read: Vec<bool> = self.graph.inputs().iter().map(|i| is_read(i.node.into())).collect();
        for (input, read) in self.graph.inputs().iter().zip(read) {
            let ty = self.graph.ty(input.node.into()).clone();
            let host = self.add_buffer(input.name.clone(), ty.clone(), Place::Input);
            self.plan.inputs.push(Port {
                name: input.name.clone(),
                ty: ty.clone(),
                buffer: host,
            });
            let device = if self.plan.target.is_gpu() && read {
                let device = self.arena(format!("{}_device", input.name), ty);
                self.copy(LaneKind::Upload, host, device);
                device
            } else {
                host
            };
            self.buffer_of.insert(input.node.into(), device);
        }
    }

    /// The buffer of a value that exists: an input, a constant, or a result of an earlier region.
    fn buffer(&mut self, value: Value) -> BufferId {
        if let Some(b) = self.buffer_of.get(&value) {
            return *b;
        }
        let ty = self.graph.ty(value).clone();
        let b = match self.graph.node(value.node).op {
            Op::Constant(id) => {
                let name = self.graph.constants()[id]
                    .name
                    .clone()
                    .unwrap_or_else(|| id.to_string());
                self.add_buffer(name, ty, Place::Constant(id))
            }
            _ => self.arena(value.to_string(), ty),
        };
        self.buffer_of.insert(value, b);
        b
    }

    /// A new buffer for a result: the caller's, when the value is an output of the model on a target without copies.
    fn result(&mut self, value: Value) -> BufferId {
        let ty = self.graph.ty(value).clone();
        let output = self.graph.outputs().iter().find(|o| o.value == value);
        let b = match output {
            Some(o) if !self.plan.target.is_gpu() => self.add_buffer(o.name.clone(), ty, Place::Output),
            _ => self.arena(value.to_string(), ty),
        };
        self.buffer_of.insert(value, b);
        b
    }

    /// The buffers of what a region reads.
    fn reads(&mut self, region: &Region) -> Vec<BufferId> {
        region.inputs.iter().map(|v| self.buffer(*v)).collect()
    }

    /// The buffers of what a region stores.
    fn results(&mut self, region: &Region) -> Vec<BufferId> {
        let result = |v: &Value| match region.part(*v) {
            Some(part) => self.whole(part.whole),
            None => self.result(*v),
        };
        region.outputs.iter().map(result).collect()
    }

    /// Memory for the parts of what a region's anchor computes.
    fn scratch(&mut self, region: &Region, ty: TensorType) -> BufferId {
        self.arena(format!("{}_partials", Value::from(region.anchor)), ty)
    }

    /// The buffer of a value that is stored part by part: a new one for the first.
    fn whole(&mut self, value: Value) -> BufferId {
        match self.buffer_of.get(&value) {
            Some(buffer) => *buffer,
            None => self.result(value),
        }
    }

    /// A step that computes nothing.
    fn copy(&mut self, lane: LaneKind, from: BufferId, to: BufferId) -> StepId {
        self.step(lane, Work::Copy { from, to }, ir::Dim::Const(0))
    }

    fn step(&mut self, lane: LaneKind, work: Work, flops: ir::Dim) -> StepId {
        let lane = self.lane(lane);
        let (reads, writes) = in_place::accesses(&self.plan, &work);
        let mut waits: Vec<StepId> = reads
            .iter()
            .chain(&writes)
            .filter_map(|b| self.writer.get(b).copied())
            .filter(|s| self.plan.steps[*s].lane != lane)
            .collect();
        waits.sort();
        waits.dedup();
        let id = self.plan.steps.push(Step::new(lane, waits, work, flops));
        for b in writes {
            self.writer.insert(b, id);
        }
        id
    }

    fn launch(&mut self, mut kernel: Kernel, mut args: Vec<BufferId>, flops: ir::Dim) -> StepId {
        drop_unused_params(&mut kernel, &mut args);
        let kernel: KernelId = self.kernels.add(&mut self.plan.kernels, kernel);
        self.step(LaneKind::Compute, Work::launch(kernel, args), flops)
    }

    /// Launches what sums the parts of a region's product, which is returned, and what adds them up.
    fn launch_parts(
        &mut self,
        region: &Region,
        (partials, total): (Kernel, Kernel),
        scratch: TensorType,
        (reads, flops): (&[BufferId], ir::Dim),
    ) -> StepId {
        let writes = self.results(region);
        let added = scratch.elements();
        let scratch = self.scratch(region, scratch);
        let step = self.launch(partials, [reads, &[scratch]].concat(), flops);
        self.launch(total, [reads, &[scratch], &writes].concat(), added);
        step
    }

    /// Launches a kernel, with memory of its own where its workgroups share tiles.
    fn launch_or_share(
        &mut self,
        mut kernel: Kernel,
        mut args: Vec<BufferId>,
        flops: ir::Dim,
        options: &PlanOptions,
    ) -> StepId {
        let (symbols, target) = (self.graph.symbols(), self.plan.target);
        let mapping = match options.parts {
            true => tuning::sharing(&kernel, symbols, &target, &options.tuning),
            false => None,
        };
        drop_unused_params(&mut kernel, &mut args);
        let shared = mapping.and_then(|mapping| lower::shared(kernel.clone(), mapping));
        let Some(shared) = shared else {
            return self.launch(kernel, args, flops);
        };
        let tickets = match self.tickets {
            Some(tickets) => tickets,
            None => {
                let tickets = self.arena("tickets".to_owned(), lower::tickets());
                self.launch(lower::zero_tickets(&target), vec![tickets], ir::Dim::Const(0));
                self.tickets = Some(tickets);
                tickets
            }
        };
        let sums = self.arena(format!("{}_sums", shared.kernel.name), shared.sums);
        args.extend([sums, tickets]);
        self.launch(shared.kernel, args, flops)
    }

    fn call(
        &mut self,
        region: &Region,
        reads: &[BufferId],
        writes: &[BufferId],
        (routes, known): (Routes, bool),
    ) -> Result<(), LowerError> {
        let node = region.anchor;
        let Op::Call(call) = &self.graph.node(node).op else {
            return Ok(());
        };
        let at = |v: &Value| region.inputs.iter().position(|i| i == v).map(|i| reads[i]);
        let operands: Vec<BufferId> = self.graph.node(node).operands.iter().filter_map(at).collect();
        let work = Work::Call {
            call: call.clone(),
            operands: operands.clone(),
            results: writes.to_vec(),
            workspace: None,
            algorithm: None,
        };
        let flops = crate::flops::of_nodes(self.graph, region.nodes.iter().copied());
        let step = self.step(region.lane, work, flops);
        let target = self.plan.target;
        if let Some((product, mut kernel, inputs)) =
            route::sized::kernel_of(self.graph, node, (routes, known), &target)?
        {
            let mut args: Vec<BufferId> = inputs.into_iter().filter_map(|i| operands.get(i).copied()).collect();
            args.extend(writes);
            drop_unused_params(&mut kernel, &mut args);
            let work = OtherWork::Kernel {
                kernel: Box::new(kernel),
                args,
            };
            self.others.insert(step, Other { product, work });
        }
        Ok(())
    }

    fn outputs(&mut self) {
        for output in self.graph.outputs() {
            let ty = self.graph.ty(output.value).clone();
            let from = self.buffer(output.value);
            let buffer = if self.plan.target.is_gpu() {
                let to = self.add_buffer(output.name.clone(), ty.clone(), Place::Output);
                self.copy(LaneKind::Download, from, to);
                to
            } else {
                from
            };
            self.plan.checks.extend(output.check.clone());
            self.plan.outputs.push(Port {
                name: output.name.clone(),
                ty,
                buffer,
            });
        }
    }

    /// The steps beside which each step of the collectives' lane may run: from the first that it does not wait for to
    /// the first computing one that waits for it, or for one after it.
    fn around_collectives(&self) -> IndexMap<StepId, (StepId, StepId)> {
        let kind = |id: &StepId| self.plan.lanes[self.plan.steps[*id].lane].kind;
        let last_step = StepId::new(self.plan.steps.len().saturating_sub(1));
        let mut around: IndexMap<StepId, (StepId, StepId)> = IndexMap::new();
        let mut begin = StepId::new(0);
        // Those that nothing has waited for so far.
        let mut under_way: Vec<StepId> = Vec::new();
        for (id, step) in self.plan.steps.iter() {
            let waited = |lane: LaneKind| step.waits.iter().filter(move |wait| kind(wait) == lane).max();
            match kind(&id) {
                LaneKind::Collective => {
                    if let Some(wait) = waited(LaneKind::Compute) {
                        begin = begin.max(StepId::new(wait.index() + 1));
                    }
                    around.insert(id, (begin, last_step));
                    under_way.push(id);
                }
                LaneKind::Compute => {
                    let Some(until) = waited(LaneKind::Collective) else {
                        continue;
                    };
                    for collective in under_way.extract_if(.., |collective| *collective <= *until) {
                        around.insert(collective, (around[&collective].0, id));
                    }
                }
                LaneKind::Upload | LaneKind::Download => {}
            }
        }
        around
    }

    /// Gives every arena buffer the span of steps from its first use to its last. A buffer touched by two lanes lives
    /// until the other lane is known to be done: to the end of the plan, unless a later step waits for its last user.
    fn lifetimes(&mut self) {
        let last_step = StepId::new(self.plan.steps.len().saturating_sub(1));
        let around = self.around_collectives();
        let mut span: IndexMap<BufferId, (StepId, StepId)> = IndexMap::new();
        for (id, step) in self.plan.steps.iter() {
            let (mut reads, writes) = in_place::accesses(&self.plan, &step.work);
            reads.extend(self.stored.get(&id).into_iter().flat_map(Stored::reads));
            let (first, last) = match self.plan.lanes[step.lane].kind {
                LaneKind::Compute | LaneKind::Upload => (id, id),
                LaneKind::Download => (id, last_step),
                LaneKind::Collective => around.get(&id).copied().unwrap_or((id, last_step)),
            };
            for b in reads.into_iter().chain(writes) {
                let s = span.entry(b).or_insert((first, last));
                *s = (s.0.min(first), s.1.max(last));
            }
        }
        // Nothing waits for an upload that no step reads (its kernel folded the value into an index): nothing may lie
        // there.
        for (b, s) in &mut span {
            if self.plan.lanes[self.plan.steps[s.1].lane].kind == LaneKind::Upload && self.writer.contains_key(b) {
                s.1 = last_step;
            }
        }
        for (b, (first, last)) in span {
            if let Place::Arena { first: f, last: l, .. } = &mut self.plan.buffers[b].place {
                // Uploads run ahead of everything: what they write must not lie where earlier steps still work.
                let uploaded = self
                    .writer
                    .get(&b)
                    .is_some_and(|s| self.plan.lanes[self.plan.steps[*s].lane].kind == LaneKind::Upload);
                (*f, *l) = (if uploaded { StepId::new(0) } else { first }, last);
            }
        }
    }
}
