//! Steps of recurrent layers over a few rows of the batch: each row of the weights is multiplied with the state of
//! every row while it is in the first-level cache.
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "kernel bodies under the contract of the public function"
)]

use ir::op::{Activation, ActivationKind, Cell, Recurrent};

use super::isa::Isa;
use super::math::funcs;
use super::simd::{Simd, simd_dispatch};

/// Some rows of a layer: dense operands, of all rows, and scratch of [`scratch_floats`] numbers.
pub(crate) struct Rows<'a> {
    pub layer: &'a Recurrent,
    pub steps: usize,
    pub batch: usize,
    pub hidden: usize,
    /// The rows' places in the batch.
    pub first: usize,
    pub count: usize,
    pub input: *const f32,
    pub weights: *const f32,
    pub state: *const f32,
    pub cell: Option<*const f32>,
    pub bias: Option<*const f32>,
    pub peepholes: Option<*const f32>,
    pub lengths: Option<*const i64>,
    pub out: *mut f32,
    pub scratch: *mut f32,
}

/// Returns how many numbers of scratch so many rows need: the hidden state, the cell state, and the gates' sums of
/// each.
pub(crate) fn scratch_floats(layer: &Recurrent, hidden: usize, rows: usize) -> usize {
    (2 + layer.cell.gates() as usize) * hidden * rows
}

/// Runs all steps of some rows.
///
/// # Safety
/// The operands are dense tensors of the layer's shapes at these sizes; nobody else writes these rows of the result.
pub(crate) unsafe fn run_rows(isa: Isa, rows: &Rows<'_>) {
    dispatch(isa, rows);
}

simd_dispatch! {
    unsafe fn dispatch(rows: &Rows<'_>) = steps
}

/// Memory of a task's rows, each `[count, hidden]` or `[count, gates]`.
struct Memory {
    hidden: *mut f32,
    cell: *mut f32,
    sums: *mut f32,
}

#[inline(always)]
unsafe fn steps<S: Simd>(rows: &Rows<'_>) {
    let (n, gates) = (rows.hidden, rows.layer.cell.gates() as usize * rows.hidden);
    let memory = Memory {
        hidden: rows.scratch,
        cell: rows.scratch.add(rows.count * n),
        sums: rows.scratch.add(2 * rows.count * n),
    };
    let from = rows.state.add(rows.first * n);
    std::ptr::copy_nonoverlapping(from, memory.hidden, rows.count * n);
    if let Some(cell) = rows.cell {
        std::ptr::copy_nonoverlapping(cell.add(rows.first * n), memory.cell, rows.count * n);
    }
    let width = n * rows.layer.states() as usize;
    for at in 0..rows.steps {
        let t = if rows.layer.reverse { rows.steps - 1 - at } else { at };
        let goes = |row: usize| match rows.lengths {
            // SAFETY: one length a row.
            Some(lengths) => (t as i64) < unsafe { *lengths.add(rows.first + row) },
            None => true,
        };
        step::<S>(rows, &memory, t, gates, &goes);
        for row in 0..rows.count {
            let place = rows.out.add((t * rows.batch + rows.first + row) * width);
            if !goes(row) {
                place.write_bytes(0, width);
                continue;
            }
            std::ptr::copy_nonoverlapping(memory.hidden.add(row * n).cast_const(), place, n);
            if width > n {
                std::ptr::copy_nonoverlapping(memory.cell.add(row * n).cast_const(), place.add(n), n);
            }
        }
    }
}

#[inline(always)]
unsafe fn step<S: Simd>(rows: &Rows<'_>, memory: &Memory, t: usize, gates: usize, goes: &impl Fn(usize) -> bool) {
    let n = rows.hidden;
    let input = |row: usize| rows.input.add((t * rows.batch + rows.first + row) * gates);
    let cell_of = rows.layer.cell;
    // The last gate of a GRU comes after its reset gate.
    let early = match cell_of {
        Cell::Gru { reset_after: false } => 2 * n,
        _ => gates,
    };
    products::<S>(rows, memory, gates, 0..early, goes);
    if early < gates {
        for row in (0..rows.count).filter(|row| goes(*row)) {
            reset::<S>(
                rows,
                memory.sums.add(row * gates),
                input(row),
                memory.hidden.add(row * n),
            );
        }
        products_of_sums::<S>(rows, memory, gates, goes);
    }
    for row in (0..rows.count).filter(|row| goes(*row)) {
        let (sums, hidden) = (memory.sums.add(row * gates), memory.hidden.add(row * n));
        let x = input(row);
        match cell_of {
            Cell::Rnn => rnn::<S>(rows, sums, x, hidden),
            Cell::Gru { reset_after } => gru::<S>(rows, sums, x, hidden, reset_after),
            Cell::Lstm { input_forget, .. } => {
                lstm::<S>(rows, sums, x, hidden, memory.cell.add(row * n), input_forget);
            }
        }
    }
}

/// The products of some rows of the weights with each row's hidden state.
#[inline(always)]
unsafe fn products<S: Simd>(
    rows: &Rows<'_>,
    memory: &Memory,
    gates: usize,
    range: std::ops::Range<usize>,
    goes: &impl Fn(usize) -> bool,
) {
    let n = rows.hidden;
    let mut gate = range.start;
    while gate < range.end {
        let four = range.end - gate >= 4;
        for row in (0..rows.count).filter(|row| goes(*row)) {
            let (weights, state) = (rows.weights.add(gate * n), memory.hidden.add(row * n).cast_const());
            let to = memory.sums.add(row * gates + gate);
            if four {
                dots4::<S>(to, weights, state, n);
            } else {
                *to = dot::<S>(weights, state, n);
            }
        }
        gate += if four { 4 } else { 1 };
    }
}

/// Replaces what a GRU's last gate has by the products with it: the reset state stands there before.
#[inline(always)]
unsafe fn products_of_sums<S: Simd>(rows: &Rows<'_>, memory: &Memory, gates: usize, goes: &impl Fn(usize) -> bool) {
    let n = rows.hidden;
    for row in (0..rows.count).filter(|row| goes(*row)) {
        let state = memory.sums.add(row * gates + 2 * n);
        // The cell state's place is free in a GRU.
        let to = memory.cell.add(row * n);
        for j in 0..n {
            *to.add(j) = dot::<S>(rows.weights.add((2 * n + j) * n), state.cast_const(), n);
        }
        std::ptr::copy_nonoverlapping(to.cast_const(), state, n);
    }
}

#[inline(always)]
unsafe fn dot<S: Simd>(weights: *const f32, state: *const f32, n: usize) -> f32 {
    let mut sum = S::zero();
    let mut k = 0;
    while k + S::LANES <= n {
        sum = S::fma(S::load(weights.add(k)), S::load(state.add(k)), sum);
        k += S::LANES;
    }
    if k < n {
        sum = S::fma(
            S::load_part(weights.add(k), n - k),
            S::load_part(state.add(k), n - k),
            sum,
        );
    }
    S::reduce_add(sum)
}

/// Four rows of the weights at once.
#[inline(always)]
unsafe fn dots4<S: Simd>(to: *mut f32, weights: *const f32, state: *const f32, n: usize) {
    let mut sums = [S::zero(); 4];
    let mut k = 0;
    while k + S::LANES <= n {
        let h = S::load(state.add(k));
        for (row, sum) in sums.iter_mut().enumerate() {
            *sum = S::fma(S::load(weights.add(row * n + k)), h, *sum);
        }
        k += S::LANES;
    }
    if k < n {
        let h = S::load_part(state.add(k), n - k);
        for (row, sum) in sums.iter_mut().enumerate() {
            *sum = S::fma(S::load_part(weights.add(row * n + k), n - k), h, *sum);
        }
    }
    for (row, sum) in sums.into_iter().enumerate() {
        *to.add(row) = S::reduce_add(sum);
    }
}

/// Calls `f` with each position and how many lanes are there.
#[inline(always)]
fn each<S: Simd>(n: usize, mut f: impl FnMut(usize, usize)) {
    let mut j = 0;
    while j < n {
        f(j, S::LANES.min(n - j));
        j += S::LANES;
    }
}

/// An activation of a gate, its operand limited.
#[inline(always)]
unsafe fn gate<S: Simd>(rows: &Rows<'_>, which: usize, x: S::V) -> S::V {
    let x = match rows.layer.clip {
        Some(clip) => {
            let clip = clip.as_f64() as f32;
            S::min(S::max(x, S::splat(-clip)), S::splat(clip))
        }
        None => x,
    };
    activation::<S>(&rows.layer.activations[which], x)
}

#[inline(always)]
unsafe fn activation<S: Simd>(of: &Activation, x: S::V) -> S::V {
    let (alpha, beta) = (S::splat(of.alpha.as_f64() as f32), S::splat(of.beta.as_f64() as f32));
    let (zero, one) = (S::zero(), S::splat(1.0));
    match of.kind {
        ActivationKind::Affine => S::fma(alpha, x, beta),
        ActivationKind::Relu => S::select(S::lt(x, zero), zero, x),
        ActivationKind::LeakyRelu => S::select(S::lt(x, zero), S::mul(alpha, x), x),
        ActivationKind::ThresholdedRelu => S::select(S::lt(x, alpha), zero, x),
        ActivationKind::ScaledTanh => S::mul(alpha, funcs::tanh::<S>(S::mul(beta, x))),
        ActivationKind::HardSigmoid => S::min(S::max(S::fma(alpha, x, beta), zero), one),
        ActivationKind::Sigmoid => funcs::sigmoid::<S>(x),
        ActivationKind::Tanh => funcs::tanh::<S>(x),
        ActivationKind::Elu => S::select(S::lt(x, zero), S::mul(alpha, funcs::expm1::<S>(x)), x),
        ActivationKind::Softsign => S::div(x, S::add(one, S::abs(x))),
        ActivationKind::Softplus => funcs::softplus::<S>(x),
    }
}

/// The sum of a gate's product and input.
#[inline(always)]
unsafe fn sum<S: Simd>(sums: *const f32, x: *const f32, at: usize, lanes: usize) -> S::V {
    S::add(S::load_part(sums.add(at), lanes), S::load_part(x.add(at), lanes))
}

#[inline(always)]
unsafe fn rnn<S: Simd>(rows: &Rows<'_>, sums: *mut f32, x: *const f32, hidden: *mut f32) {
    // SAFETY: the row's memory.
    each::<S>(rows.hidden, |j, lanes| unsafe {
        let new = gate::<S>(rows, 0, sum::<S>(sums, x, j, lanes));
        S::store_part(hidden.add(j), new, lanes);
    });
}

/// The reset gate times the hidden state, where the sums of the last gate will be.
#[inline(always)]
unsafe fn reset<S: Simd>(rows: &Rows<'_>, sums: *mut f32, x: *const f32, hidden: *mut f32) {
    let n = rows.hidden;
    // SAFETY: the row's memory.
    each::<S>(n, |j, lanes| unsafe {
        let reset = gate::<S>(rows, 0, sum::<S>(sums, x, n + j, lanes));
        let kept = S::mul(reset, S::load_part(hidden.add(j), lanes));
        S::store_part(sums.add(2 * n + j), kept, lanes);
    });
}

#[inline(always)]
unsafe fn gru<S: Simd>(rows: &Rows<'_>, sums: *mut f32, x: *const f32, hidden: *mut f32, reset_after: bool) {
    let n = rows.hidden;
    // SAFETY: the row's memory.
    each::<S>(n, |j, lanes| unsafe {
        let update = gate::<S>(rows, 0, sum::<S>(sums, x, j, lanes));
        let mut own = S::load_part(sums.add(2 * n + j), lanes);
        if reset_after {
            if let Some(bias) = rows.bias {
                own = S::add(own, S::load_part(bias.add(j), lanes));
            }
            own = S::mul(own, gate::<S>(rows, 0, sum::<S>(sums, x, n + j, lanes)));
        }
        let new = gate::<S>(rows, 1, S::add(own, S::load_part(x.add(2 * n + j), lanes)));
        let old = S::load_part(hidden.add(j), lanes);
        // (1 − z)·n + z·h
        let next = S::fma(update, S::sub(old, new), new);
        S::store_part(hidden.add(j), next, lanes);
    });
}

#[inline(always)]
unsafe fn lstm<S: Simd>(
    rows: &Rows<'_>,
    sums: *mut f32,
    x: *const f32,
    hidden: *mut f32,
    cell: *mut f32,
    input_forget: bool,
) {
    let n = rows.hidden;
    // SAFETY: the row's memory.
    each::<S>(n, |j, lanes| unsafe {
        let seen = |part: usize, state: S::V, to: S::V| match rows.peepholes {
            Some(weights) => S::fma(S::load_part(weights.add(part * n + j), lanes), state, to),
            None => to,
        };
        let old = S::load_part(cell.add(j), lanes);
        let input = gate::<S>(rows, 0, seen(0, old, sum::<S>(sums, x, j, lanes)));
        let forget = match input_forget {
            true => S::sub(S::splat(1.0), input),
            false => gate::<S>(rows, 0, seen(2, old, sum::<S>(sums, x, 2 * n + j, lanes))),
        };
        let fresh = gate::<S>(rows, 1, sum::<S>(sums, x, 3 * n + j, lanes));
        let new = S::fma(forget, old, S::mul(input, fresh));
        let output = gate::<S>(rows, 0, seen(1, new, sum::<S>(sums, x, n + j, lanes)));
        S::store_part(cell.add(j), new, lanes);
        let shown = S::mul(output, activation::<S>(&rows.layer.activations[2], new));
        S::store_part(hidden.add(j), shown, lanes);
    });
}
