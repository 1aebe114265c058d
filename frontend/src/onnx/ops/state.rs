//! Layers with a state that goes from call to call: causal convolutions and linear attention.

use ir::op::{BinaryOp, Conv, Layout, Op, UnaryOp, Window};
use ir::{DType, Dim, Shape};

use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("CausalConvWithState", 27, causal_conv),
    op("LinearAttention", 27, linear_attention),
];

/// The most steps of linear attention, which are written out.
const STEP_LIMIT: i64 = 1024;

/// A convolution of each channel over what came before; the state is the last inputs.
fn causal_conv(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, filter) = (node.input(0)?, node.input(1)?);
    let dtype = node.require_float(0)?;
    let (shape, weights) = (node.shape(x), node.shape(filter));
    if shape.rank() != 3 || weights.rank() != 3 {
        return node.rank_error(usize::from(shape.rank() == 3), "3");
    }
    let (Some(channels), Some(size)) = (weights[0].as_const(), weights[2].as_const()) else {
        return node.unsupported(format!(
            "a causal convolution with a filter of the varying shape {weights}"
        ));
    };
    node.build.require_equal(&shape[1], &weights[0])?;
    let past = Shape(vec![shape[0].clone(), shape[1].clone(), Dim::Const(size - 1)]);
    let before = match node.optional(3) {
        Some(before) => {
            let given = node.shape(before);
            if given.rank() != 3 {
                return node.rank_error(3, "3");
            }
            for (have, want) in given.iter().zip(past.iter()) {
                node.build.require_equal(have, want)?;
            }
            before
        }
        None => {
            let zero = node.scalar(dtype, 0.0);
            node.broadcast(zero, past)?
        }
    };
    let all = node.concat(&[before, x], 2)?;
    let conv = Conv {
        window: Window::unit(1),
        groups: channels,
        layout: Layout::ChannelsFirst,
        transposed: None,
        pad_value: 0,
        out: dtype,
    };
    let operands: Vec<Val> = [Some(all), Some(filter), node.optional(2)]
        .into_iter()
        .flatten()
        .collect();
    let mut result = node.add(Op::Conv(conv), &operands)?;
    match node.text("activation", "none")?.as_str() {
        "none" => {}
        "silu" | "swish" => result = node.unary(UnaryOp::Silu, result)?,
        other => return node.bad("activation", other, "none, silu or swish"),
    }
    let state = node.slice_axis(all, 2, shape[2].clone(), size - 1)?;
    Ok(vec![result, state])
}

/// What the steps of linear attention read and change: the state is `[B, H, K, V]`.
struct Attention {
    state: Val,
    decay: Option<Val>,
    beta: Option<Val>,
    delta: bool,
}

/// Splits `[B, T, H·D]` into `[B, T, H, D]`.
fn heads(node: &mut Node<'_>, index: usize, heads: i64) -> Step<Val> {
    let x = node.input(index)?;
    super::attention::split_heads(node, index, x, "q_num_heads", heads)
}

/// A step of `[B, T, H, D]` as `[B, H, D, 1]` or `[B, H, 1, D]`.
fn at_step(node: &mut Node<'_>, x: Val, step: i64, column: bool) -> Step<Val> {
    let one = node.slice_axis(x, 1, step, 1i64)?;
    let mut dims = node.shape(one).0;
    dims.remove(1);
    dims.insert(if column { 3 } else { 2 }, Dim::Const(1));
    node.reshape(one, dims)
}

impl Attention {
    fn step(&mut self, node: &mut Node<'_>, key: Val, value: Val, at: i64) -> Step<()> {
        let dtype = node.dtype(self.state);
        if let Some(decay) = self.decay {
            let decay = at_step(node, decay, at, true)?;
            let share = node.unary(UnaryOp::Exp, decay)?;
            self.state = node.binary(BinaryOp::Mul, self.state, share)?;
        }
        let mut value = value;
        if self.delta {
            let known = node.contract(key, self.state, true, false, dtype)?;
            value = node.binary(BinaryOp::Sub, value, known)?;
            if let Some(beta) = self.beta {
                let beta = at_step(node, beta, at, true)?;
                value = node.binary(BinaryOp::Mul, value, beta)?;
            }
        }
        let added = node.binary(BinaryOp::Mul, key, value)?;
        self.state = node.binary(BinaryOp::Add, self.state, added)?;
        Ok(())
    }
}

fn linear_attention(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let out = node.require_float(0)?;
    let (queries, kept) = (node.int("q_num_heads")?, node.int("kv_num_heads")?);
    let (queries, kept) = (
        node.required("q_num_heads", queries)?,
        node.required("kv_num_heads", kept)?,
    );
    if kept < 1 || queries % kept != 0 {
        return node.bad("q_num_heads", queries, format!("a multiple of {kept}"));
    }
    let wide = if out == DType::F64 { DType::F64 } else { DType::F32 };
    let [q, k, v] = [heads(node, 0, queries)?, heads(node, 1, kept)?, heads(node, 2, kept)?];
    let [q, k, v] = [node.cast(q, wide)?, node.cast(k, wide)?, node.cast(v, wide)?];
    let (keys, values) = (node.shape(k), node.shape(v));
    let (batch, size) = (keys[0].clone(), keys[3].clone());
    let Some(steps) = keys[1].as_const().filter(|steps| (1..=STEP_LIMIT).contains(steps)) else {
        return node.unsupported(format!(
            "LinearAttention of {} steps, which are written out, 1 to {STEP_LIMIT} of them (fix the size with --size),",
            keys[1]
        ));
    };
    let (gated, delta) = match node.text("update_rule", "gated_delta")?.as_str() {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return node.bad("update_rule", other, "linear, gated, delta or gated_delta"),
    };
    let mut gates = [None; 2];
    for (gate, (index, asked)) in gates.iter_mut().zip([(4, gated), (5, delta)]) {
        if !asked {
            continue;
        }
        let x = node.input(index)?;
        let x = node.cast(x, wide)?;
        let shape = node.shape(x);
        let count = if shape.last().is_some_and(|last| last.is(1)) {
            1
        } else {
            kept
        };
        *gate = Some(super::attention::split_heads(node, index, x, "kv_num_heads", count)?);
    }
    let full = Shape(vec![batch.clone(), Dim::Const(kept), size.clone(), values[3].clone()]);
    let state = match node.optional(3) {
        Some(state) => node.cast(state, wide)?,
        None => {
            let zero = node.scalar(wide, 0.0);
            node.broadcast(zero, full.clone())?
        }
    };
    let given = node.float_or("scale", 0.0)?;
    let scale = match (given, size.as_const()) {
        (0.0, Some(size)) => 1.0 / (size as f64).sqrt(),
        (0.0, None) => return node.unsupported(format!("linear attention over the varying head size {size}")),
        (scale, _) => scale,
    };
    let mut run = Attention {
        state,
        decay: gates[0],
        beta: gates[1],
        delta,
    };
    let share = queries / kept;
    let mut rows = Vec::with_capacity(steps as usize);
    for at in 0..steps {
        let (key, value) = (at_step(node, k, at, true)?, at_step(node, v, at, false)?);
        run.step(node, key, value, at)?;
        // Queries that share a state are its rows.
        let query = node.slice_axis(q, 1, at, 1i64)?;
        let query = node.reshape(
            query,
            [batch.clone(), Dim::Const(kept), Dim::Const(share), size.clone()],
        )?;
        let row = node.contract(query, run.state, false, false, wide)?;
        rows.push(node.reshape(row, [batch.clone(), Dim::Const(1), values[3].clone() * queries])?);
    }
    let all = node.concat(&rows, 1)?;
    let all = node.with_scalar(BinaryOp::Mul, all, scale)?;
    let state = node.cast(run.state, out)?;
    Ok(vec![node.cast(all, out)?, state])
}
