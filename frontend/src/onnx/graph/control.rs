//! Control flow at import: `If`, `Loop`, `Scan` and `SequenceMap` become the nodes that they run.
//!
//! | node | becomes |
//! |---|---|
//! | `If` whose condition is known | the branch that is taken |
//! | `If` whose condition depends on data | both branches, and a choice for each result of the same type and shape |
//! | `Loop`, `Scan` of a known number of steps | the body, once a step |
//! | `Loop` that data may end early | the body, once a step, each of which is kept or not; it has no outputs that grow |
//!
//! Where the import is for the inputs of one run, these decide what data decide and the table does not have: branches
//! of different types, the end of a loop whose outputs grow. The graph checks the decision.

use ir::op::{BinaryOp, UnaryOp};
use ir::{DType, Dim, Origin};

use super::{Env, Frame, Stop, Walk, node_error, node_name};
use crate::onnx::builder::{Like, Val};
use crate::onnx::error::{Fail, ImportError, NodeProblem, Step};
use crate::onnx::known::Known;
use crate::onnx::node::{Node, host_tensor};
use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto};
use crate::onnx::read::canonical_domain;

use super::DEPTH_LIMIT;

/// The most steps of a loop that are written out.
const STEP_LIMIT: i64 = 4096;
/// The most steps of a loop that data may end, all of which run.
const OPEN_STEP_LIMIT: i64 = 1024;

/// Says whether the node has bodies.
pub(super) fn is_control(node: &NodeProto) -> bool {
    match canonical_domain(&node.domain) {
        "" => matches!(node.op_type.as_str(), "If" | "Loop" | "Scan" | "SequenceMap"),
        "ai.onnx.preview" => node.op_type == "FlexAttention",
        _ => false,
    }
}

/// A node with bodies, and what stands around it.
pub(super) struct Site<'c, 'a> {
    pub node: &'a NodeProto,
    pub inputs: &'c [Option<Val>],
    pub attributes: &'c [(&'a str, &'a AttributeProto)],
    pub env: &'c Env<'a>,
    pub frame: &'c Frame<'a>,
    pub opset: i64,
}

impl<'a> Site<'_, 'a> {
    pub(super) fn error(&self, problem: NodeProblem) -> Stop {
        node_error(self.node, self.opset, problem)
    }

    fn unsupported<T>(&self, what: impl Into<String>) -> Result<T, Stop> {
        Err(self.error(NodeProblem::Unsupported { what: what.into() }))
    }

    fn stop(&self, fail: Fail) -> Stop {
        match fail {
            Fail::Restart => Stop::Restart,
            Fail::Problem(problem) => self.error(*problem),
        }
    }

    fn body(&self, name: &str) -> Result<&'a GraphProto, Stop> {
        let found = self.attributes.iter().find(|(n, _)| *n == name);
        let found = found.and_then(|(_, a)| a.g.as_ref());
        found.ok_or_else(|| self.error(NodeProblem::MissingAttribute { name: name.to_owned() }))
    }

    fn input(&self, index: usize) -> Result<Val, Stop> {
        let found = self.inputs.get(index).copied().flatten();
        found.ok_or_else(|| self.error(NodeProblem::MissingInput { index }))
    }

    fn origin(&self) -> Origin {
        Origin::Onnx {
            name: node_name(self.node).into(),
            op: self.node.op_type.as_str().into(),
        }
    }

    fn ints(&self, name: &str) -> Vec<i64> {
        let found = self.attributes.iter().find(|(n, _)| *n == name);
        found.map(|(_, a)| a.ints.clone()).unwrap_or_default()
    }
}

/// The parts of a loop's body.
struct Body<'a> {
    graph: &'a GraphProto,
    /// How many of its inputs are numbers of the loop itself, and how many values go from step to step.
    leading: usize,
    carried: usize,
}

impl<'a> Walk<'_, 'a> {
    pub(super) fn control(&mut self, site: &Site<'_, 'a>) -> Result<Vec<Val>, Stop> {
        if site.frame.depth >= DEPTH_LIMIT {
            return Err(site.error(NodeProblem::TooDeep { limit: DEPTH_LIMIT }));
        }
        match site.node.op_type.as_str() {
            "If" => self.branch(site),
            "Loop" => self.loops(site),
            "Scan" => self.scan(site),
            "FlexAttention" => self.flex_attention(site),
            _ => self.map(site),
        }
    }

    /// Walks a body with values for its inputs.
    pub(super) fn inline(
        &mut self,
        site: &Site<'_, 'a>,
        graph: &'a GraphProto,
        given: &[Val],
    ) -> Result<Vec<Val>, Stop> {
        let mut inner = site.env.clone();
        for tensor in &graph.initializer {
            let host = host_tensor(tensor).map_err(|fail| site.stop(fail))?;
            let val = self.build.of_constant(Some(tensor.name.clone()), host);
            inner.insert(&tensor.name, val);
        }
        if given.len() != graph.input.len() {
            let (what, expected, found) = ("inputs of the body", graph.input.len(), given.len());
            return Err(site.error(NodeProblem::FunctionArity { what, expected, found }));
        }
        for (input, val) in graph.input.iter().zip(given) {
            inner.insert(&input.name, *val);
        }
        let frame = Frame {
            depth: site.frame.depth + 1,
            ..site.frame.clone()
        };
        let outputs: Vec<&'a str> = graph.output.iter().map(|o| o.name.as_str()).collect();
        self.nodes(&graph.node, &outputs, &mut inner, &frame)?;
        let mut results = Vec::with_capacity(outputs.len());
        for name in outputs {
            let val = self.lookup(name, &mut inner)?;
            let defined = inner.len();
            results.push(val.ok_or_else(|| ImportError::Output {
                name: name.to_owned(),
                defined,
            })?);
        }
        Ok(results)
    }

    /// Runs steps of ops at a node with bodies.
    pub(super) fn at<T>(
        &mut self,
        site: &Site<'_, 'a>,
        steps: impl FnOnce(&mut Node<'_>) -> Step<T>,
    ) -> Result<T, Stop> {
        let mut node = Node {
            build: &mut self.build,
            proto: site.node,
            attributes: site.attributes.to_vec(),
            opset: site.opset,
            inputs: site.inputs.to_vec(),
            origin: site.origin(),
        };
        steps(&mut node).map_err(|fail| site.stop(fail))
    }

    /// A condition, if constants and sizes decide it.
    fn decided(&mut self, condition: Val) -> Option<bool> {
        let known = self.build.folded(condition)?;
        Some(*known.ints()?.first()? != 0)
    }

    /// The way that a condition on open sizes goes at the hints; a run whose sizes ask for the other is refused.
    fn by_sizes(&mut self, site: &Site<'_, 'a>, condition: Val) -> Option<bool> {
        let condition = self.build.folded(condition)?.dims()?.into_iter().next()?;
        let taken = condition.hint(&self.build.sizes.symbols);
        let name = if taken == 0 { "else_branch" } else { "then_branch" };
        self.build.graph.assume_equal(&condition, &Dim::Const(taken), || {
            format!(
                "the condition of If node {:?}, of which the {name} is compiled,",
                node_name(site.node)
            )
        });
        Some(taken != 0)
    }

    /// A condition that the data of the inputs that the graph is for decide.
    fn by_data(&mut self, site: &Site<'_, 'a>, condition: Val) -> Option<bool> {
        let origin = site.origin();
        let known = self.build.numbers(condition, "condition", Like::Near, &origin)?;
        Some(*known.ints()?.first()? != 0)
    }

    fn branch(&mut self, site: &Site<'_, 'a>) -> Result<Vec<Val>, Stop> {
        let condition = site.input(0)?;
        let (yes, no) = (site.body("then_branch")?, site.body("else_branch")?);
        if let Some(taken) = self.decided(condition).or_else(|| self.by_sizes(site, condition)) {
            return self.inline(site, if taken { yes } else { no }, &[]);
        }
        let checks = self.build.checks();
        let error = match self.both_ways(site, condition, yes, no) {
            Err(Stop::Error(error)) => error,
            done => return done,
        };
        self.build.forget_required(checks);
        match self.by_data(site, condition) {
            Some(taken) => self.inline(site, if taken { yes } else { no }, &[]),
            None => Err(Stop::Error(error)),
        }
    }

    /// Both branches, and a choice for each result.
    fn both_ways(
        &mut self,
        site: &Site<'_, 'a>,
        condition: Val,
        yes: &'a GraphProto,
        no: &'a GraphProto,
    ) -> Result<Vec<Val>, Stop> {
        let mut inlined = Vec::with_capacity(2);
        for (body, taken) in [(yes, true), (no, false)] {
            let checks = self.build.checks();
            inlined.push(self.inline(site, body, &[])?);
            self.require_only(site, checks, condition, taken)?;
        }
        let (yes, no) = (&inlined[0], &inlined[1]);
        if yes.len() != no.len() {
            let (what, expected, found) = ("outputs of its else branch", yes.len(), no.len());
            return Err(site.error(NodeProblem::FunctionArity { what, expected, found }));
        }
        self.choose_all(site, condition, yes, no)
    }

    /// Has the conditions that ops added hold only where a condition goes one way.
    fn require_only(&mut self, site: &Site<'_, 'a>, from: usize, condition: Val, taken: bool) -> Result<(), Stop> {
        let range = from..self.build.checks();
        if range.is_empty() {
            return Ok(());
        }
        self.at(site, |node| {
            let mut holds = node.reshape(condition, ir::Shape::SCALAR)?;
            if !taken {
                holds = node.unary(UnaryOp::Not, holds)?;
            }
            let holds = node.build.value(holds, &node.origin)?;
            node.build.require_only(range, holds, &node.origin)
        })
    }

    /// Picks from the results of two ways to compute the same.
    fn choose_all(&mut self, site: &Site<'_, 'a>, condition: Val, yes: &[Val], no: &[Val]) -> Result<Vec<Val>, Stop> {
        let mut results = Vec::with_capacity(yes.len());
        for (index, (yes, no)) in yes.iter().zip(no).enumerate() {
            results.push(self.choose(site, index, condition, *yes, *no)?);
        }
        Ok(results)
    }

    fn choose(&mut self, site: &Site<'_, 'a>, index: usize, condition: Val, yes: Val, no: Val) -> Result<Val, Stop> {
        if yes == no {
            return Ok(yes);
        }
        match (self.build.sequence(yes), self.build.sequence(no)) {
            (None, None) => {}
            (Some(yes), Some(no)) if yes.len() == no.len() => {
                let chosen = self.choose_all(site, condition, &yes, &no)?;
                return Ok(self.build.of_sequence(chosen));
            }
            _ => {
                let op = &site.node.op_type;
                return site.unsupported(format!(
                    "the {op}'s result {index}, whose length as a sequence depends on data,"
                ));
            }
        }
        let (left, right) = (self.build.ty(yes).clone(), self.build.ty(no).clone());
        if left != right {
            let op = &site.node.op_type;
            return site.unsupported(format!(
                "the {op}'s result {index}, which is {left} or {right} as data decide (both ways are computed, so both must \
                 have one type and shape; make the condition a constant before export),"
            ));
        }
        let declared = self.build.declared(yes);
        let chosen = self.at(site, |node| {
            let condition = node.reshape(condition, ir::Shape::SCALAR)?;
            node.select(condition, yes, no)
        })?;
        Ok(self.build.declare(chosen, declared))
    }

    /// The first of the known numbers of an input.
    fn number(&mut self, site: &Site<'_, 'a>, index: usize, what: &'static str) -> Result<i64, Stop> {
        let val = site.input(index)?;
        let known = self.build.numbers(val, what, Like::Near, &site.origin());
        let dim = known.and_then(|k| k.dims()?.into_iter().next());
        match dim {
            Some(Dim::Const(number)) => Ok(number),
            Some(dim) => site.unsupported(format!(
                "a {} of {dim} steps, which are written out one by one; fix the sizes with --size or --shape: that",
                site.node.op_type
            )),
            None => Err(site.error(NodeProblem::NotKnown { what, index })),
        }
    }

    /// A `Loop`: the number of steps, the condition, then what is carried; a body's results are the next condition,
    /// what is carried, and what is stacked.
    fn loops(&mut self, site: &Site<'_, 'a>) -> Result<Vec<Val>, Stop> {
        let graph = site.body("body")?;
        let given = |index: usize| site.inputs.get(index).copied().flatten();
        let most = match given(0) {
            Some(_) => self.number(site, 0, "number of steps")?,
            None => i64::MAX,
        };
        let mut condition = given(1);
        let body = Body {
            graph,
            leading: 2,
            carried: site.inputs.len().saturating_sub(2),
        };
        let grown = graph.output.len().saturating_sub(1 + body.carried);
        let mut carried: Vec<Val> = (2..site.inputs.len())
            .map(|i| site.input(i))
            .collect::<Result<_, _>>()?;
        let mut stacks = vec![Vec::new(); grown];
        let mut step = 0;
        while step < most {
            let mut decided = condition.map(|c| self.decided(c));
            if let (Some(None), Some(condition)) = (decided, condition)
                && (grown > 0 || step >= OPEN_STEP_LIMIT)
            {
                decided = Some(self.by_data(site, condition));
            }
            let open = match decided {
                Some(Some(false)) => break,
                Some(None) => condition,
                Some(Some(true)) | None => None,
            };
            if open.is_some() && (grown > 0 || step >= OPEN_STEP_LIMIT) {
                return site.unsupported(format!(
                    "a Loop that data may end, but after at most {OPEN_STEP_LIMIT} steps and without results that grow with the steps \
                     (where sizes decide when it ends, fix them with --size or --shape),"
                ));
            }
            if step >= STEP_LIMIT {
                return site.unsupported(format!(
                    "a Loop of more than {STEP_LIMIT} steps, which are written out one by one,"
                ));
            }
            let checks = self.build.checks();
            let results = self.step(site, &body, step, condition, &carried)?;
            if let Some(open) = open {
                self.require_only(site, checks, open, true)?;
            }
            let mut results = results.into_iter();
            let mut next = results.next();
            let new: Vec<Val> = results.by_ref().take(body.carried).collect();
            stacks.iter_mut().zip(results).for_each(|(stack, row)| stack.push(row));
            carried = match open {
                None => new,
                Some(open) => match self.choose_all(site, open, &new, &carried) {
                    Ok(chosen) => {
                        next = next.map(|next| self.both(site, open, next)).transpose()?;
                        chosen
                    }
                    Err(Stop::Restart) => return Err(Stop::Restart),
                    Err(Stop::Error(error)) => match self.by_data(site, open) {
                        Some(true) => new,
                        Some(false) => {
                            self.build.forget_required(checks);
                            break;
                        }
                        None => return Err(Stop::Error(error)),
                    },
                },
            };
            condition = next;
            step += 1;
        }
        self.finish(site, &body, carried, stacks, &vec![0; grown], &vec![false; grown])
    }

    fn both(&mut self, site: &Site<'_, 'a>, a: Val, b: Val) -> Result<Val, Stop> {
        if self.decided(b) == Some(false) {
            return Ok(b);
        }
        self.at(site, |node| {
            let (a, b) = (node.reshape(a, ir::Shape::SCALAR)?, node.reshape(b, ir::Shape::SCALAR)?);
            node.binary(BinaryOp::And, a, b)
        })
    }

    /// One step of a loop's body.
    fn step(
        &mut self,
        site: &Site<'_, 'a>,
        body: &Body<'a>,
        step: i64,
        condition: Option<Val>,
        carried: &[Val],
    ) -> Result<Vec<Val>, Stop> {
        let at = self.build.of_known(Known::scalar(Dim::Const(step)));
        let go_on = match condition {
            Some(condition) => condition,
            None => self.at(site, |node| Ok(node.int_scalar(DType::Bool, 1)))?,
        };
        let given: Vec<Val> = [at, go_on].into_iter().chain(carried.iter().copied()).collect();
        self.inline(site, body.graph, &given)
    }

    /// What is carried, followed by what is stacked along axes.
    fn finish(
        &mut self,
        site: &Site<'_, 'a>,
        body: &Body<'a>,
        carried: Vec<Val>,
        stacks: Vec<Vec<Val>>,
        axes: &[i64],
        backwards: &[bool],
    ) -> Result<Vec<Val>, Stop> {
        let mut results = carried;
        let mut unrun: Option<Vec<Val>> = None;
        for (index, mut stack) in stacks.into_iter().enumerate() {
            if backwards.get(index).copied().unwrap_or(false) {
                stack.reverse();
            }
            let empty = stack.is_empty();
            if empty {
                // Of no steps, a body that is walked all the same says the shape.
                let rows = match &unrun {
                    Some(rows) => rows.clone(),
                    None => {
                        let carried = results[..body.carried.min(results.len())].to_vec();
                        if body.leading != 2 {
                            return site.unsupported("a Scan of no steps");
                        }
                        self.step(site, body, 0, None, &carried)?
                    }
                };
                stack.extend(rows.get(1 + body.carried + index));
                unrun = Some(rows);
            }
            let axis = axes.get(index).copied().unwrap_or(0);
            results.push(self.at(site, |node| {
                let rank = node.rank(stack[0]) + 1;
                let axis = node.axis(axis, rank)?;
                let mut rows = Vec::with_capacity(stack.len());
                for row in &stack {
                    let mut dims = node.shape(*row).0;
                    dims.insert(axis, Dim::Const(1));
                    rows.push(node.reshape(*row, dims)?);
                }
                let all = node.concat(&rows, axis)?;
                match empty {
                    true => node.slice_axis(all, axis, 0i64, 0i64),
                    false => Ok(all),
                }
            })?);
        }
        Ok(results)
    }

    /// A `Scan`: states, then tensors whose slices along an axis the steps get.
    fn scan(&mut self, site: &Site<'_, 'a>) -> Result<Vec<Val>, Stop> {
        if site.opset < 9 {
            return site.unsupported("Scan of opset 8, which goes over a batch");
        }
        let graph = site.body("body")?;
        let count = site
            .attributes
            .iter()
            .find(|(n, _)| *n == "num_scan_inputs")
            .map_or(0, |(_, a)| a.i);
        let scanned = usize::try_from(count).unwrap_or(0);
        let Some(carried) = site.inputs.len().checked_sub(scanned).filter(|_| scanned > 0) else {
            let (what, expected, found) = ("scanned inputs", site.inputs.len(), scanned);
            return Err(site.error(NodeProblem::FunctionArity { what, expected, found }));
        };
        let body = Body {
            graph,
            leading: 0,
            carried,
        };
        let (axes, directions) = (site.ints("scan_input_axes"), site.ints("scan_input_directions"));
        let mut lines = Vec::with_capacity(scanned);
        let mut steps = None;
        for index in 0..scanned {
            let x = site.input(carried + index)?;
            let axis = axes.get(index).copied().unwrap_or(0);
            let axis = self.at(site, |node| node.axis(axis, node.rank(x)))?;
            let size = self.build.ty(x).shape[axis].clone();
            match &steps {
                None => steps = Some(size),
                Some(steps) => {
                    let known = self.build.require_equal(steps, &size);
                    known.map_err(|fail| site.stop(fail))?;
                }
            }
            lines.push((x, axis, directions.get(index).copied().unwrap_or(0) != 0));
        }
        let steps = match steps.as_ref().and_then(Dim::as_const) {
            Some(steps) if steps <= STEP_LIMIT => steps,
            _ => {
                let steps = steps.map_or_else(String::new, |s| s.to_string());
                return site.unsupported(format!(
                    "a Scan of {steps} steps, which are written out one by one, up to {STEP_LIMIT} (fix the sizes with --size or \
                     --shape),"
                ));
            }
        };
        let mut state: Vec<Val> = (0..carried).map(|i| site.input(i)).collect::<Result<_, _>>()?;
        let grown = graph.output.len().saturating_sub(carried);
        let mut stacks = vec![Vec::new(); grown];
        for step in 0..steps {
            let mut given = state.clone();
            for (x, axis, backwards) in &lines {
                let at = if *backwards { steps - 1 - step } else { step };
                given.push(self.at(site, |node| {
                    let mut dims = node.shape(*x).0;
                    dims.remove(*axis);
                    let row = node.slice_axis(*x, *axis, at, 1i64)?;
                    node.reshape(row, dims)
                })?);
            }
            let mut results = self.inline(site, graph, &given)?.into_iter();
            state = results.by_ref().take(carried).collect();
            stacks.iter_mut().zip(results).for_each(|(stack, row)| stack.push(row));
        }
        let axes = site.ints("scan_output_axes");
        let backwards: Vec<bool> = site.ints("scan_output_directions").iter().map(|d| *d != 0).collect();
        self.finish(site, &body, state, stacks, &axes, &backwards)
    }

    /// A `SequenceMap`: the body for each element of sequences; tensors are given to each.
    fn map(&mut self, site: &Site<'_, 'a>) -> Result<Vec<Val>, Stop> {
        let graph = site.body("body")?;
        let Some(first) = self.build.sequence(site.input(0)?) else {
            return site.unsupported("SequenceMap over what is no sequence");
        };
        let mut results = vec![Vec::new(); graph.output.len()];
        for at in 0..first.len() {
            let mut given = Vec::with_capacity(site.inputs.len());
            for index in 0..site.inputs.len() {
                let input = site.input(index)?;
                given.push(match self.build.sequence(input) {
                    None => input,
                    Some(elements) => match elements.get(at) {
                        Some(element) => *element,
                        None => return site.unsupported("SequenceMap over sequences of different lengths"),
                    },
                });
            }
            let found = self.inline(site, graph, &given)?;
            results.iter_mut().zip(found).for_each(|(list, val)| list.push(val));
        }
        Ok(results.into_iter().map(|list| self.build.of_sequence(list)).collect())
    }
}
