//! Recurrent layers of a known number of steps: the steps one after another.
//!
//! ```text
//! y = recurrent x[3, b, 4h], r, h0, c0   →   3 · (contract, gates), concat
//! ```
//!
//! Computed in f32 at least. Layers of f32 and narrower types are one kernel, but for those of a GPU that take less
//! time written out ([`is_one_kernel`]). What is written out has a known number of steps, [`MOST_STEPS`] at most.

use ir::graph::Node;
use ir::op::{
    Activation, ActivationKind, BinaryOp, Cell, Composite, Contract, Elementwise, Recurrent, ReduceOp, UnaryOp, View,
};
use ir::{DType, Dim, Graph, Op, Shape, Target, Value};

use super::{as_shape, binary, cast, reduce, unary, wide, with_scalar};
use crate::error::PassFault;
use crate::lower;
use crate::rewrite::Builder;

/// The most steps that are written out: each is some twenty nodes.
const MOST_STEPS: i64 = 1024;

/// How much longer one kernel may take than steps that are written out: these take compile time, and launches of their
/// own from the processor.
const ONE_KERNEL_LEEWAY: f64 = 1.5;

/// Launches of a step that is written out.
const LAUNCHES: f64 = 2.0;

/// Says whether a layer is one kernel: on the CPU always; on a GPU where a workgroup holds its states, unless a known
/// number of steps, each a few launches that have the whole device, is predicted to take less time.
pub(super) fn is_one_kernel(graph: &Graph, node: &Node, layer: &Recurrent, target: &Target) -> bool {
    let ty = |operand: usize| graph.ty(node.operands[operand]);
    if ty(0).dtype == DType::F64 {
        return false;
    }
    if !target.is_gpu() {
        return true;
    }
    let (steps, state) = (&ty(0).shape[0], &ty(2).shape);
    let batch = state[0].hint(graph.symbols());
    let Some((hidden, clocks)) = state[1].as_const().and_then(|hidden| {
        Some((
            hidden,
            lower::mapping::step_clocks(layer, [hidden, batch], ty(1).dtype, target)?,
        ))
    }) else {
        return false;
    };
    if steps.as_const().is_none_or(|steps| !(0..=MOST_STEPS).contains(&steps)) {
        return true;
    }
    let weights = layer.cell.gates().saturating_mul(hidden).saturating_mul(hidden);
    let bytes = weights.saturating_mul((ty(1).dtype.bits() / 8).into());
    let written_out = LAUNCHES * target.launch_us + target.memory_us(bytes as f64);
    clocks / (target.clock_ghz * 1e3) <= ONE_KERNEL_LEEWAY * written_out
}

type Answer = Result<Value, PassFault>;

/// What all steps read, and the state that they change.
struct Steps<'b, 'a> {
    b: &'b mut Builder<'a>,
    layer: Recurrent,
    hidden_size: Dim,
    weights: Value,
    bias: Option<Value>,
    peepholes: Option<Value>,
    hidden: Value,
    cell: Option<Value>,
}

impl Steps<'_, '_> {
    /// Columns `part·H .. (part + count)·H` of a matrix.
    fn part(&mut self, x: Value, part: i64, count: i64) -> Answer {
        let shape = self.b.ty(x).shape.clone();
        let last = shape.rank() - 1;
        let mut starts = vec![Dim::Const(0); shape.rank()];
        starts[last] = self.hidden_size.clone() * part;
        let mut sizes = shape.0;
        sizes[last] = self.hidden_size.clone() * count;
        let steps = vec![1; sizes.len()];
        self.b.emit(Op::View(View::Slice { starts, sizes, steps }), &[x])
    }

    /// A state as it is multiplied: rounded where the layer says so ([`Recurrent::multiplied`]).
    fn multiplied(&mut self, state: Value) -> Answer {
        if !self.layer.rounded {
            return Ok(state);
        }
        let b = &mut *self.b;
        let [low, high] = [ReduceOp::Min, ReduceOp::Max].map(|op| reduce(b, op, state, vec![1]));
        let low = with_scalar(b, BinaryOp::Min, low?, 0.0)?;
        let high = with_scalar(b, BinaryOp::Max, high?, 0.0)?;
        let span = binary(b, BinaryOp::Sub, high, low)?;
        let scale = with_scalar(b, BinaryOp::Div, span, 255.0)?;
        let any = with_scalar(b, BinaryOp::Gt, span, 0.0)?;
        let one = b.scalar(b.ty(scale).dtype, 1.0);
        let scale = b.emit(Op::Elementwise(Elementwise::Select), &[any, scale, one])?;
        let level = |b: &mut Builder<'_>, x: Value, zero: Option<Value>| {
            let level = binary(b, BinaryOp::Div, x, scale)?;
            let mut level = unary(b, UnaryOp::Round, level)?;
            if let Some(zero) = zero {
                level = binary(b, BinaryOp::Add, level, zero)?;
            }
            let level = with_scalar(b, BinaryOp::Max, level, 0.0)?;
            with_scalar(b, BinaryOp::Min, level, 255.0)
        };
        let lowest = unary(b, UnaryOp::Neg, low)?;
        let zero = level(b, lowest, None)?;
        let level = level(b, state, Some(zero))?;
        let centred = binary(b, BinaryOp::Sub, level, zero)?;
        binary(b, BinaryOp::Mul, centred, scale)
    }

    /// The products of a state with the weights of some gates.
    fn product(&mut self, state: Value, part: i64, count: i64) -> Answer {
        let state = self.multiplied(state)?;
        let mut starts = vec![Dim::Const(0); 2];
        starts[0] = self.hidden_size.clone() * part;
        let sizes = vec![self.hidden_size.clone() * count, self.hidden_size.clone()];
        let weights = match count == self.layer.cell.gates() {
            true => self.weights,
            false => {
                let steps = vec![1; 2];
                self.b
                    .emit(Op::View(View::Slice { starts, sizes, steps }), &[self.weights])?
            }
        };
        let contract = Contract {
            transpose_lhs: false,
            transpose_rhs: true,
            out: self.b.ty(state).dtype,
        };
        self.b.emit(Op::Contract(contract), &[state, weights])
    }

    fn add(&mut self, x: Value, y: Value) -> Answer {
        binary(self.b, BinaryOp::Add, x, y)
    }

    fn multiply(&mut self, x: Value, y: Value) -> Answer {
        binary(self.b, BinaryOp::Mul, x, y)
    }

    /// `1 − x`
    fn rest(&mut self, x: Value) -> Answer {
        let one = self.b.scalar(self.b.ty(x).dtype, 1.0);
        binary(self.b, BinaryOp::Sub, one, x)
    }

    fn gate(&mut self, which: usize, mut x: Value) -> Answer {
        if let Some(clip) = self.layer.clip {
            x = with_scalar(self.b, BinaryOp::Max, x, -clip.as_f64())?;
            x = with_scalar(self.b, BinaryOp::Min, x, clip.as_f64())?;
        }
        activation(self.b, &self.layer.activations[which], x)
    }

    /// `x + P ∘ cell`
    fn with_peephole(&mut self, x: Value, part: i64, cell: Value) -> Answer {
        let Some(peepholes) = self.peepholes else { return Ok(x) };
        let weights = self.part(peepholes, part, 1)?;
        let seen = self.multiply(weights, cell)?;
        self.add(x, seen)
    }

    fn rnn(&mut self, x: Value) -> Result<(), PassFault> {
        let product = self.product(self.hidden, 0, 1)?;
        let sum = self.add(x, product)?;
        self.hidden = self.gate(0, sum)?;
        Ok(())
    }

    fn gru(&mut self, x: Value, reset_after: bool) -> Result<(), PassFault> {
        let old = self.hidden;
        let products = self.product(old, 0, if reset_after { 3 } else { 2 })?;
        let mut gates = [x; 2];
        for (part, gate) in [0, 1].into_iter().zip(&mut gates) {
            let (own, product) = (self.part(x, part, 1)?, self.part(products, part, 1)?);
            let sum = self.add(own, product)?;
            *gate = self.gate(0, sum)?;
        }
        let [update, reset] = gates;
        let own = match reset_after {
            true => {
                let mut product = self.part(products, 2, 1)?;
                if let Some(bias) = self.bias {
                    product = self.add(product, bias)?;
                }
                self.multiply(reset, product)?
            }
            false => {
                let kept = self.multiply(reset, old)?;
                self.product(kept, 2, 1)?
            }
        };
        let given = self.part(x, 2, 1)?;
        let sum = self.add(given, own)?;
        let new = self.gate(1, sum)?;
        let rest = self.rest(update)?;
        let (fresh, kept) = (self.multiply(rest, new)?, self.multiply(update, old)?);
        self.hidden = self.add(fresh, kept)?;
        Ok(())
    }

    fn lstm(&mut self, x: Value, old: Value, input_forget: bool) -> Result<(), PassFault> {
        let products = self.product(self.hidden, 0, 4)?;
        let sums = self.add(x, products)?;
        let input = self.part(sums, 0, 1)?;
        let input = self.with_peephole(input, 0, old)?;
        let input = self.gate(0, input)?;
        let forget = match input_forget {
            true => self.rest(input)?,
            false => {
                let forget = self.part(sums, 2, 1)?;
                let forget = self.with_peephole(forget, 2, old)?;
                self.gate(0, forget)?
            }
        };
        let new = self.part(sums, 3, 1)?;
        let new = self.gate(1, new)?;
        let (kept, fresh) = (self.multiply(forget, old)?, self.multiply(input, new)?);
        let cell = self.add(kept, fresh)?;
        let output = self.part(sums, 1, 1)?;
        let output = self.with_peephole(output, 1, cell)?;
        let output = self.gate(0, output)?;
        let last = self.layer.activations[2];
        let shown = activation(self.b, &last, cell)?;
        self.hidden = self.multiply(output, shown)?;
        self.cell = Some(cell);
        Ok(())
    }

    fn step(&mut self, x: Value) -> Result<(), PassFault> {
        match (self.layer.cell, self.cell) {
            (Cell::Gru { reset_after }, _) => self.gru(x, reset_after),
            (Cell::Lstm { input_forget, .. }, Some(cell)) => self.lstm(x, cell, input_forget),
            (Cell::Rnn | Cell::Lstm { .. }, _) => self.rnn(x),
        }
    }
}

/// One of ONNX's functions.
fn activation(b: &mut Builder<'_>, of: &Activation, x: Value) -> Answer {
    let (alpha, beta) = (of.alpha.as_f64(), of.beta.as_f64());
    let dtype = b.ty(x).dtype;
    let choose = |b: &mut Builder<'_>, op: BinaryOp, bound: f64, yes: Value, no: Value| {
        let condition = with_scalar(b, op, x, bound)?;
        b.emit(Op::Elementwise(Elementwise::Select), &[condition, yes, no])
    };
    match of.kind {
        ActivationKind::Affine | ActivationKind::HardSigmoid => {
            let line = with_scalar(b, BinaryOp::Mul, x, alpha)?;
            let line = with_scalar(b, BinaryOp::Add, line, beta)?;
            if of.kind == ActivationKind::Affine {
                return Ok(line);
            }
            let line = with_scalar(b, BinaryOp::Max, line, 0.0)?;
            with_scalar(b, BinaryOp::Min, line, 1.0)
        }
        ActivationKind::Relu => unary(b, UnaryOp::Relu, x),
        ActivationKind::Sigmoid => unary(b, UnaryOp::Sigmoid, x),
        ActivationKind::Tanh => unary(b, UnaryOp::Tanh, x),
        ActivationKind::Softplus => unary(b, UnaryOp::Softplus, x),
        ActivationKind::LeakyRelu => {
            let scaled = with_scalar(b, BinaryOp::Mul, x, alpha)?;
            choose(b, BinaryOp::Lt, 0.0, scaled, x)
        }
        ActivationKind::ThresholdedRelu => {
            let zero = b.scalar(dtype, 0.0);
            choose(b, BinaryOp::Lt, alpha, zero, x)
        }
        ActivationKind::ScaledTanh => {
            let scaled = with_scalar(b, BinaryOp::Mul, x, beta)?;
            let curve = unary(b, UnaryOp::Tanh, scaled)?;
            with_scalar(b, BinaryOp::Mul, curve, alpha)
        }
        ActivationKind::Elu => {
            let power = unary(b, UnaryOp::Expm1, x)?;
            let scaled = with_scalar(b, BinaryOp::Mul, power, alpha)?;
            choose(b, BinaryOp::Lt, 0.0, scaled, x)
        }
        ActivationKind::Softsign => {
            let size = unary(b, UnaryOp::Abs, x)?;
            let size = with_scalar(b, BinaryOp::Add, size, 1.0)?;
            binary(b, BinaryOp::Div, x, size)
        }
    }
}

/// Says whether a layer's operands have the types that its kernel takes: f32, and of a GPU weights of 16 bits.
pub(super) fn is_in_f32(graph: &Graph, node: &Node, target: &Target) -> bool {
    let is_f32 = |operand: usize| graph.ty(node.operands[operand]).dtype == DType::F32;
    is_f32(0) && (target.is_gpu() || is_f32(1))
}

/// A layer of the kernel's type, of operands and with a result of a narrower one. GPUs read weights as they are.
pub(super) fn in_f32(b: &mut Builder<'_>, layer: &Recurrent, x: &[Value], target: &Target) -> Answer {
    let dtype = b.ty(x[0]).dtype;
    let mut operands = x.to_vec();
    for (at, value) in operands.iter_mut().enumerate() {
        let stays = at == 1 && target.is_gpu();
        if b.ty(*value).dtype.is_float() && !stays {
            *value = cast(b, *value, DType::F32)?;
        }
    }
    let result = b.emit(Op::Composite(Composite::Recurrent(*layer)), &operands)?;
    cast(b, result, dtype)
}

/// Writes the steps out.
pub(super) fn recurrent(b: &mut Builder<'_>, layer: &Recurrent, x: &[Value]) -> Answer {
    let ty = b.ty(x[0]).clone();
    let count = ty.shape[0].as_const().filter(|steps| (0..=MOST_STEPS).contains(steps));
    let Some(count) = count else {
        let what = format!(
            "a recurrent layer ({}) of {} steps in {}: a GPU has a kernel for f32 and narrower types, of hidden sizes that are \
             known and fit a workgroup; others are written out step by step, up to {MOST_STEPS} of them: fix the number of \
             steps with --size or --shape, or run it on the CPU in f32",
            layer.cell.name(),
            ty.shape[0],
            ty.dtype
        );
        let at = b.origin.clone();
        return Err(PassFault::Unsupported { what, at });
    };
    let dtype = wide(ty.dtype);
    let places = layer.places();
    let wide_operand = |b: &mut Builder<'_>, at: Option<usize>| at.map(|at| cast(b, x[at], dtype)).transpose();
    let (weights, hidden) = (cast(b, x[1], dtype)?, cast(b, x[2], dtype)?);
    let cell = wide_operand(b, places.cell)?;
    let bias = wide_operand(b, places.bias)?;
    let peepholes = wide_operand(b, places.peepholes)?;
    let inputs = cast(b, x[0], dtype)?;
    let hidden_size = b.ty(hidden).shape[1].clone();
    let batch = ty.shape[1].clone();
    let lengths = match places.lengths {
        Some(at) => Some(as_shape(b, x[at], &Shape(vec![batch.clone(), Dim::Const(1)]))?),
        None => None,
    };
    let result = Shape(vec![
        ty.shape[0].clone(),
        batch.clone(),
        hidden_size.clone() * layer.states(),
    ]);
    if count == 0 {
        let zero = b.scalar(ty.dtype, 0.0);
        return b.emit(Op::View(View::Broadcast(result)), &[zero]);
    }
    let mut rows = vec![None; count as usize];
    let mut steps = Steps {
        b,
        layer: *layer,
        hidden_size,
        weights,
        bias,
        peepholes,
        hidden,
        cell,
    };
    for at in 0..count {
        let t = if layer.reverse { count - 1 - at } else { at };
        let (old_hidden, old_cell) = (steps.hidden, steps.cell);
        let given = row(&mut steps, inputs, t)?;
        steps.step(given)?;
        let shown = match lengths {
            Some(lengths) => beyond(&mut steps, lengths, t, old_hidden, old_cell)?,
            None => state(&mut steps)?,
        };
        let mut shape = steps.b.ty(shown).shape.clone();
        shape.0.insert(0, Dim::Const(1));
        rows[t as usize] = Some(as_shape(steps.b, shown, &shape)?);
    }
    let rows: Vec<Value> = rows.into_iter().flatten().collect();
    let all = match rows.as_slice() {
        [one] => *one,
        rows => steps.b.emit(Op::View(View::Concat { axis: 0 }), rows)?,
    };
    cast(steps.b, all, ty.dtype)
}

/// The inputs' products at a step, `[B, G·H]`.
fn row(steps: &mut Steps<'_, '_>, inputs: Value, t: i64) -> Answer {
    let mut sizes = steps.b.ty(inputs).shape.0.clone();
    sizes[0] = Dim::Const(1);
    let shape = Shape(sizes[1..].to_vec());
    let view = View::Slice {
        starts: vec![Dim::Const(t), Dim::Const(0), Dim::Const(0)],
        sizes,
        steps: vec![1; 3],
    };
    let row = steps.b.emit(Op::View(view), &[inputs])?;
    as_shape(steps.b, row, &shape)
}

/// What a step shows of the state.
fn state(steps: &mut Steps<'_, '_>) -> Answer {
    match (steps.layer.states(), steps.cell) {
        (2, Some(cell)) => steps.b.emit(Op::View(View::Concat { axis: 1 }), &[steps.hidden, cell]),
        _ => Ok(steps.hidden),
    }
}

/// Takes a step back for rows that ended before it, and shows 0 for them.
fn beyond(steps: &mut Steps<'_, '_>, lengths: Value, t: i64, hidden: Value, cell: Option<Value>) -> Answer {
    let shown = state(steps)?;
    let step = steps.b.scalar(DType::I64, t as f64);
    let inside = binary(steps.b, BinaryOp::Lt, step, lengths)?;
    let choose =
        |b: &mut Builder<'_>, yes: Value, no: Value| b.emit(Op::Elementwise(Elementwise::Select), &[inside, yes, no]);
    steps.hidden = choose(steps.b, steps.hidden, hidden)?;
    if let (Some(new), Some(old)) = (steps.cell, cell) {
        steps.cell = Some(choose(steps.b, new, old)?);
    }
    let zero = steps.b.scalar(steps.b.ty(shown).dtype, 0.0);
    choose(steps.b, shown, zero)
}
