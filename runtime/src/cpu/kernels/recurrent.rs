//! Steps of recurrent layers. The weights are packed so that a vector holds units of the hidden state and each element
//! of the state is multiplied with all gates of these units: nothing is summed across a vector, and the gates meet in
//! registers. A unit's sum runs over the state in order, whatever the number of rows, vectors and threads.
#![expect(
    unsafe_op_in_unsafe_fn,
    clippy::needless_range_loop,
    reason = "kernel bodies under the contract of the public function; loops whose bounds are known are unrolled"
)]

use std::ops::Range;

use ir::op::{Activation, ActivationKind, Cell, Recurrent};

use super::isa::Isa;
use super::math::funcs;
use super::simd::{Simd, simd_dispatch};

/// A layer's dense operands, of all rows, its packed weights, and memory of [`memory_floats`] numbers.
pub(crate) struct Operands<'a> {
    pub layer: &'a Recurrent,
    pub batch: usize,
    pub hidden: usize,
    pub input: *const f32,
    /// As [`pack`] lays them out.
    pub packed: *const f32,
    pub bias: Option<*const f32>,
    pub peepholes: Option<*const f32>,
    pub lengths: Option<*const i64>,
    pub out: *mut f32,
    pub memory: *mut f32,
}

/// A part of a step: some rows of the batch and some vectors of units.
pub(crate) struct Part {
    /// The number of steps that ran before: it decides which of the two hidden states is the old one.
    pub at: usize,
    /// The place in the sequence.
    pub t: usize,
    pub rows: Range<usize>,
    pub vectors: Range<usize>,
    /// The second half of a step whose last gate needs the others of all units ([`halves`]).
    pub second: bool,
}

/// How many parts of a step must follow one another: the last gate of a GRU may come after its reset gate.
pub(crate) fn halves(layer: &Recurrent) -> usize {
    match layer.cell {
        Cell::Gru { reset_after: false } => 2,
        _ => 1,
    }
}

/// Numbers of memory that a layer needs: two hidden states, the cell state, and a gate of each; and what is rounded.
pub(crate) fn memory_floats(layer: &Recurrent, hidden: usize, batch: usize) -> usize {
    (4 + usize::from(layer.rounded)) * hidden * batch
}

/// How many vectors of units there are.
pub(crate) fn vectors(isa: Isa, hidden: usize) -> usize {
    hidden.div_ceil(isa.lanes())
}

/// Numbers that packed weights take.
pub(crate) fn packed_floats(isa: Isa, layer: &Recurrent, hidden: usize) -> usize {
    vectors(isa, hidden) * hidden * layer.cell.gates() as usize * isa.lanes()
}

/// Packs some vectors of the weights `[gates * hidden, hidden]`: for each, for each element of the state, the gates'
/// vectors.
///
/// # Safety
/// The weights are dense and of these sizes; `to` has room for all that [`packed_floats`] says.
pub(crate) unsafe fn pack(
    isa: Isa,
    layer: &Recurrent,
    hidden: usize,
    weights: *const f32,
    to: *mut f32,
    range: Range<usize>,
) {
    let (gates, lanes) = (layer.cell.gates() as usize, isa.lanes());
    for vector in range {
        for gate in 0..gates {
            for lane in 0..lanes {
                let unit = vector * lanes + lane;
                let from = weights.wrapping_add((gate * hidden + unit) * hidden);
                for k in 0..hidden {
                    let value = if unit < hidden { *from.add(k) } else { 0.0 };
                    *to.add(((vector * hidden + k) * gates + gate) * lanes + lane) = value;
                }
            }
        }
    }
}

/// Runs a part of a step.
///
/// # Safety
/// The operands are dense tensors of the layer's shapes at these sizes. Parts of the steps before have run, and no
/// other runs at the same time with the same rows and vectors.
pub(crate) unsafe fn run_part(isa: Isa, operands: &Operands<'_>, part: &Part) {
    dispatch(isa, operands, part);
}

simd_dispatch! {
    unsafe fn dispatch(operands: &Operands<'_>, part: &Part) = part_of_step
}

/// Rounds what a part's products are made of to 8 bits, where the layer does so: the state of each of its rows, of all
/// units.
///
/// # Safety
/// As for [`run_part`]; the rows' parts that come before have run, and none runs at the same time.
pub(crate) unsafe fn round_states(isa: Isa, operands: &Operands<'_>, part: &Part) {
    if operands.layer.rounded {
        rounding(isa, operands, part);
    }
}

simd_dispatch! {
    unsafe fn rounding(operands: &Operands<'_>, part: &Part) = round_rows
}

#[inline(always)]
unsafe fn round_rows<S: Simd>(operands: &Operands<'_>, part: &Part) {
    for row in part.rows.clone() {
        let row = memory(operands, part, row);
        let n = operands.hidden;
        let state = std::slice::from_raw_parts(if part.second { row.cell.cast_const() } else { row.old }, n);
        let to = std::slice::from_raw_parts_mut(row.rounded, n);
        let (mut low, mut high) = (0f32, 0f32);
        for x in state {
            low = if *x < low { *x } else { low };
            high = if *x > high { *x } else { high };
        }
        let scale = if high > low { (high - low) / 255.0 } else { 1.0 };
        let zero = (-low / scale).round_ties_even().clamp(0.0, 255.0);
        for (to, x) in to.iter_mut().zip(state) {
            let level = ((*x / scale).round_ties_even() + zero).clamp(0.0, 255.0);
            *to = (level - zero) * scale;
        }
    }
}

/// The most rows whose sums are in registers at once.
const MOST_ROWS: usize = 4;

#[inline(always)]
unsafe fn part_of_step<S: Simd>(operands: &Operands<'_>, part: &Part) {
    let mut rows = [0; MOST_ROWS];
    let most = if S::LANES >= 16 { 4 } else { 2 };
    let mut count = 0;
    for row in part.rows.clone() {
        let ended = match operands.lengths {
            Some(lengths) => part.t as i64 >= *lengths.add(row),
            None => false,
        };
        if ended {
            stays::<S>(operands, part, row);
        } else {
            rows[count] = row;
            count += 1;
        }
        if count == most {
            some_rows::<S>(operands, part, &rows[..count]);
            count = 0;
        }
    }
    for rows in rows[..count].chunks(2) {
        some_rows::<S>(operands, part, rows);
    }
}

/// The memory of a row.
struct Row {
    old: *const f32,
    new: *mut f32,
    cell: *mut f32,
    gate: *mut f32,
    /// What products are made of, where that is rounded.
    rounded: *mut f32,
    x: *const f32,
    out: *mut f32,
}

#[inline(always)]
unsafe fn memory(operands: &Operands<'_>, part: &Part, row: usize) -> Row {
    let (n, states) = (operands.hidden, operands.layer.states() as usize);
    let each = operands.batch * n;
    let of = |which: usize| operands.memory.add(which * each + row * n);
    let place = part.t * operands.batch + row;
    Row {
        old: of(part.at % 2).cast_const(),
        new: of(1 - part.at % 2),
        cell: of(2),
        gate: of(3),
        rounded: if operands.layer.rounded {
            of(4)
        } else {
            std::ptr::null_mut()
        },
        x: operands.input.add(place * operands.layer.cell.gates() as usize * n),
        out: operands.out.add(place * n * states),
    }
}

/// A row whose sequence is over: its state stays, and zeros come out.
#[inline(always)]
unsafe fn stays<S: Simd>(operands: &Operands<'_>, part: &Part, row: usize) {
    if part.second {
        return;
    }
    let row = memory(operands, part, row);
    let n = operands.hidden;
    let units = part.vectors.start * S::LANES..(part.vectors.end * S::LANES).min(n);
    for unit in units {
        *row.new.add(unit) = *row.old.add(unit);
        for state in 0..operands.layer.states() as usize {
            *row.out.add(state * n + unit) = 0.0;
        }
    }
}

#[inline(always)]
unsafe fn some_rows<S: Simd>(operands: &Operands<'_>, part: &Part, rows: &[usize]) {
    match operands.layer.cell {
        Cell::Rnn => vectors_of::<S, Rnn, 1, 4>(operands, part, rows),
        Cell::Gru { reset_after: false } if part.second => vectors_of::<S, GruSecond, 1, 4>(operands, part, rows),
        Cell::Gru { reset_after: false } => vectors_of::<S, GruFirst, 2, 4>(operands, part, rows),
        Cell::Gru { reset_after: true } => vectors_of::<S, Gru, 3, 2>(operands, part, rows),
        Cell::Lstm { .. } => vectors_of::<S, Lstm, 4, 2>(operands, part, rows),
    }
}

/// What is done with the products of `C` gates.
trait Finish<const C: usize> {
    /// The first of these gates.
    const GATE: usize = 0;
    /// The products are those with the reset state.
    const OF_RESET: bool = false;

    /// Takes the sums of a vector of units of one row.
    unsafe fn finish<S: Simd>(operands: &Operands<'_>, row: &Row, units: Units, sums: [S::V; C]);
}

/// The first unit of a vector, and how many of its lanes are units.
#[derive(Clone, Copy)]
struct Units {
    first: usize,
    lanes: usize,
}

/// Goes through a part's vectors with one, two or four rows.
#[inline(always)]
unsafe fn vectors_of<S: Simd, F: Finish<C>, const C: usize, const P: usize>(
    operands: &Operands<'_>,
    part: &Part,
    rows: &[usize],
) {
    match *rows {
        [a, b] => {
            let rows = [memory(operands, part, a), memory(operands, part, b)];
            for vector in part.vectors.clone() {
                tile::<S, F, C, 2, 1>(operands, &rows, vector);
            }
        }
        [a, b, c, d] => {
            let [a, b] = [memory(operands, part, a), memory(operands, part, b)];
            let rows = [a, b, memory(operands, part, c), memory(operands, part, d)];
            for vector in part.vectors.clone() {
                tile::<S, F, C, 4, 1>(operands, &rows, vector);
            }
        }
        _ => {
            for row in rows {
                one_row::<S, F, C, P>(operands, part, *row);
            }
        }
    }
}

/// Goes through a part's vectors with one row, `P` of them at once.
#[inline(always)]
unsafe fn one_row<S: Simd, F: Finish<C>, const C: usize, const P: usize>(
    operands: &Operands<'_>,
    part: &Part,
    row: usize,
) {
    let row = [memory(operands, part, row)];
    let mut vector = part.vectors.start;
    while vector + P <= part.vectors.end {
        tile::<S, F, C, 1, P>(operands, &row, vector);
        vector += P;
    }
    while vector < part.vectors.end {
        tile::<S, F, C, 1, 1>(operands, &row, vector);
        vector += 1;
    }
}

/// The products of `C` gates, for `R` rows and `P` vectors of units.
#[inline(always)]
unsafe fn tile<S: Simd, F: Finish<C>, const C: usize, const R: usize, const P: usize>(
    operands: &Operands<'_>,
    rows: &[Row; R],
    vector: usize,
) {
    let (n, gates) = (operands.hidden, operands.layer.cell.gates() as usize);
    let step = gates * S::LANES;
    let weights = operands.packed.add(vector * n * step + F::GATE * S::LANES);
    let mut sums = [[[S::zero(); C]; P]; R];
    let mut states = [std::ptr::null(); R];
    for r in 0..R {
        // The reset state stands in the cell state's place, which a GRU does not need.
        states[r] = if operands.layer.rounded {
            rows[r].rounded.cast_const()
        } else if F::OF_RESET {
            rows[r].cell.cast_const()
        } else {
            rows[r].old
        };
    }
    // Plain loops: an iterator's functions may be compiled apart, without the vectors' instructions.
    for k in 0..n {
        for p in 0..P {
            let from = weights.add((p * n + k) * step);
            let mut columns = [S::zero(); C];
            for c in 0..C {
                columns[c] = S::load(from.add(c * S::LANES));
            }
            for r in 0..R {
                let h = S::splat(*states[r].add(k));
                for c in 0..C {
                    sums[r][p][c] = S::fma(columns[c], h, sums[r][p][c]);
                }
            }
        }
    }
    for r in 0..R {
        for p in 0..P {
            let first = (vector + p) * S::LANES;
            let lanes = S::LANES.min(n - first);
            F::finish::<S>(operands, &rows[r], Units { first, lanes }, sums[r][p]);
        }
    }
}

/// An activation of a gate, its operand limited.
#[inline(always)]
unsafe fn gate<S: Simd>(layer: &Recurrent, which: usize, x: S::V) -> S::V {
    let x = match layer.clip {
        Some(clip) => {
            let clip = clip.as_f64() as f32;
            // Operand order: NaN goes through.
            S::min(S::splat(clip), S::max(S::splat(-clip), x))
        }
        None => x,
    };
    activation::<S>(&layer.activations[which], x)
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

/// A gate's product and its part of the input.
#[inline(always)]
unsafe fn with_input<S: Simd>(operands: &Operands<'_>, row: &Row, units: Units, which: usize, product: S::V) -> S::V {
    let x = row.x.add(which * operands.hidden + units.first);
    S::add(product, S::load_part(x, units.lanes))
}

/// What a gate sees of a cell state is added: there are three rows of peepholes, or none.
#[inline(always)]
unsafe fn seen<S: Simd>(operands: &Operands<'_>, units: Units, part: usize, state: S::V, to: S::V) -> S::V {
    match operands.peepholes {
        Some(weights) => {
            let weights = weights.add(part * operands.hidden + units.first);
            S::fma(S::load_part(weights, units.lanes), state, to)
        }
        None => to,
    }
}

/// Stores a hidden state where the next step reads it and where it comes out.
#[inline(always)]
unsafe fn store_hidden<S: Simd>(row: &Row, units: Units, value: S::V) {
    S::store_part(row.new.add(units.first), value, units.lanes);
    S::store_part(row.out.add(units.first), value, units.lanes);
}

struct Rnn;

impl Finish<1> for Rnn {
    #[inline(always)]
    unsafe fn finish<S: Simd>(operands: &Operands<'_>, row: &Row, units: Units, [sum]: [S::V; 1]) {
        let new = gate::<S>(operands.layer, 0, with_input::<S>(operands, row, units, 0, sum));
        store_hidden::<S>(row, units, new);
    }
}

/// The update gate, and the reset gate times the hidden state.
struct GruFirst;

impl Finish<2> for GruFirst {
    #[inline(always)]
    unsafe fn finish<S: Simd>(operands: &Operands<'_>, row: &Row, units: Units, [update, reset]: [S::V; 2]) {
        let Units { first, lanes } = units;
        let update = gate::<S>(operands.layer, 0, with_input::<S>(operands, row, units, 0, update));
        let reset = gate::<S>(operands.layer, 0, with_input::<S>(operands, row, units, 1, reset));
        S::store_part(row.gate.add(first), update, lanes);
        let kept = S::mul(reset, S::load_part(row.old.add(first), lanes));
        S::store_part(row.cell.add(first), kept, lanes);
    }
}

struct GruSecond;

impl Finish<1> for GruSecond {
    const GATE: usize = 2;
    const OF_RESET: bool = true;

    #[inline(always)]
    unsafe fn finish<S: Simd>(operands: &Operands<'_>, row: &Row, units: Units, [own]: [S::V; 1]) {
        let update = S::load_part(row.gate.add(units.first), units.lanes);
        gru_end::<S>(operands, row, units, update, own);
    }
}

struct Gru;

impl Finish<3> for Gru {
    #[inline(always)]
    unsafe fn finish<S: Simd>(operands: &Operands<'_>, row: &Row, units: Units, [update, reset, own]: [S::V; 3]) {
        let update = gate::<S>(operands.layer, 0, with_input::<S>(operands, row, units, 0, update));
        let reset = gate::<S>(operands.layer, 0, with_input::<S>(operands, row, units, 1, reset));
        let own = match operands.bias {
            Some(bias) => S::add(own, S::load_part(bias.add(units.first), units.lanes)),
            None => own,
        };
        gru_end::<S>(operands, row, units, update, S::mul(own, reset));
    }
}

/// `(1 − z)·n + z·h`
#[inline(always)]
unsafe fn gru_end<S: Simd>(operands: &Operands<'_>, row: &Row, units: Units, update: S::V, own: S::V) {
    let new = gate::<S>(operands.layer, 1, with_input::<S>(operands, row, units, 2, own));
    let old = S::load_part(row.old.add(units.first), units.lanes);
    store_hidden::<S>(row, units, S::fma(update, S::sub(old, new), new));
}

struct Lstm;

impl Finish<4> for Lstm {
    #[inline(always)]
    unsafe fn finish<S: Simd>(operands: &Operands<'_>, row: &Row, units: Units, sums: [S::V; 4]) {
        let (n, Units { first, lanes }, layer) = (operands.hidden, units, operands.layer);
        let input_forget = matches!(layer.cell, Cell::Lstm { input_forget: true, .. });
        let old = S::load_part(row.cell.add(first).cast_const(), lanes);
        let input = gate::<S>(
            layer,
            0,
            seen::<S>(
                operands,
                units,
                0,
                old,
                with_input::<S>(operands, row, units, 0, sums[0]),
            ),
        );
        let forget = match input_forget {
            true => S::sub(S::splat(1.0), input),
            false => gate::<S>(
                layer,
                0,
                seen::<S>(
                    operands,
                    units,
                    2,
                    old,
                    with_input::<S>(operands, row, units, 2, sums[2]),
                ),
            ),
        };
        let fresh = gate::<S>(layer, 1, with_input::<S>(operands, row, units, 3, sums[3]));
        let new = S::fma(forget, old, S::mul(input, fresh));
        let output = gate::<S>(
            layer,
            0,
            seen::<S>(
                operands,
                units,
                1,
                new,
                with_input::<S>(operands, row, units, 1, sums[1]),
            ),
        );
        S::store_part(row.cell.add(first), new, lanes);
        if layer.states() > 1 {
            S::store_part(row.out.add(n + first), new, lanes);
        }
        store_hidden::<S>(row, units, S::mul(output, activation::<S>(&layer.activations[2], new)));
    }
}
