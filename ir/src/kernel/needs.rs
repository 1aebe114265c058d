//! The needs of a workgroup, whatever its mapping: LDS, threads, registers of a lane.
//!
//! [`limits`](super::limits) holds these numbers against a target's row, and lowering asks for them before it takes a
//! tile. LDS is counted as the device library's headers declare it.

use std::collections::HashSet;

use super::{AttentionBody, AxisId, Body, Expr, GemvTiling, Kernel, Mapping, Stmt, TransformBody};
use crate::graph::op::ReduceOp;
use crate::types::DType;

/// Elements of padding of each row of a plain tile in LDS, of sums of four bytes and of wider ones.
const TILE_PADDING: [u32; 2] = [4, 2];

/// Bytes of a tile of a transposing kernel begin at multiples of this.
const TILE_ALIGNMENT: u64 = 16;

/// Bytes of LDS of an attention whose tiles of queries, keys, values and weights are there in f32, with
/// `[queries, keys]` a workgroup.
pub fn flash_lds([q, k]: [i64; 2], [d, dv]: [i64; 2]) -> i64 {
    let wide = |rows: i64, columns: i64| rows.saturating_mul(columns.saturating_add(1));
    let tiles = wide(q, d)
        .saturating_add(wide(k, d))
        .saturating_add(k.saturating_mul(dv))
        .saturating_add(wide(q, k));
    tiles.saturating_add(q.saturating_mul(3)).saturating_mul(4)
}

/// Bytes of LDS of a transposing kernel: a tile of so many elements for each load of these types.
pub fn transpose_lds(elements: u32, loads: impl IntoIterator<Item = DType>) -> u64 {
    let tile = |dtype: DType| (u64::from(elements) * bytes_of(dtype)).next_multiple_of(TILE_ALIGNMENT);
    loads.into_iter().map(tile).fold(0, u64::saturating_add)
}

/// Bytes of an element in LDS.
fn bytes_of(dtype: DType) -> u64 {
    dtype.bits().div_ceil(8).into()
}

/// Elements of a square that a thread transforms.
fn square(t: &TransformBody) -> u64 {
    let inputs = u64::try_from(t.matrix.inputs()).unwrap_or(0);
    inputs * inputs
}

/// Sums of a lane of a product of few rows: of whole columns where it reads weights along k, else of neighbouring
/// columns; where matrix units multiply, of half a wave's columns.
fn gemv_sums(tiling: &GemvTiling) -> u64 {
    let sums = match (&tiling.matrix, &tiling.stream) {
        (_, Some(_)) => 0,
        (Some(_), None) => tiling.cols / 2,
        (None, None) if tiling.rhs.along_k => tiling.rows.saturating_mul(tiling.cols),
        (None, None) => tiling.rows.saturating_mul(tiling.rhs.width),
    };
    sums.into()
}

impl Kernel {
    /// Bytes of LDS of a workgroup: what the kernel declares, and what its launch gives. `wave` is the lanes of a wave.
    pub fn lds_bytes(&self, wave: u32) -> u64 {
        let positive = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        match (&self.mapping, &self.body) {
            (Mapping::Block { block, vector }, Body::Sort(s)) if *vector > 1 => {
                let candidate = bytes_of(self.vars[s.value_var]) + 4;
                u64::from(*block) * u64::from(*vector) * candidate
            }
            (Mapping::Block { .. }, Body::Sort(_)) => 0,
            (Mapping::Block { block, .. }, Body::Scan(s)) => 2 * u64::from(*block) * bytes_of(self.vars[s.var]),
            (Mapping::Block { block, .. }, _) => self.folds_lds(*block, wave),
            (Mapping::Rows { lanes, block, .. }, _) if *lanes > wave || !lanes.is_power_of_two() => {
                self.folds_lds(*block, wave)
            }
            (
                Mapping::Transpose {
                    along, across, tiled, ..
                },
                _,
            ) => {
                let dtypes = tiled.iter().map(|load| match self.exprs[*load] {
                    Expr::Load { param, .. } => self.params[param].dtype,
                    _ => self.exprs.dtype(*load),
                });
                transpose_lds(along.saturating_mul(*across), dtypes)
            }
            (
                Mapping::Tile {
                    block_m,
                    block_n,
                    block_k,
                    ..
                },
                Body::Contract(c),
            ) => {
                let bytes = self.vars[c.acc].bits().div_ceil(8);
                let padding = TILE_PADDING[usize::from(bytes != 4)];
                let row = u64::from(*block_m) + u64::from(*block_n) + 2 * u64::from(padding);
                u64::from(*block_k) * row * u64::from(bytes)
            }
            (Mapping::Steps(steps), Body::Recurrent(r)) => {
                positive(steps.lds_bytes(&r.layer, self.axes[r.hidden].extent.as_const().unwrap_or(0)))
            }
            (Mapping::Matrix(tiling), _) => tiling.lds_bytes().into(),
            (Mapping::Gemv(_), _) => self.gemv_lds().into(),
            (Mapping::Flash { block_q, block_k, .. }, Body::Attention(a)) => {
                positive(flash_lds([*block_q, *block_k].map(i64::from), self.widths(a)))
            }
            (Mapping::FlashMatrix(tiling), Body::Attention(a)) => {
                let [d, dv] = self.widths(a);
                positive(tiling.lds_bytes(d, dv))
            }
            (Mapping::FlashLanes(tiling), Body::Attention(a)) => {
                let bits = [a.key, a.value].map(|e| self.exprs.dtype(e).bits());
                positive(tiling.lds_bytes(self.widths(a), bits))
            }
            _ => 0,
        }
    }

    /// Registers of a lane that sums, results and held elements take for the whole of a kernel: no compiler can do with
    /// fewer. Addresses, fragments and what is on its way come on top.
    pub fn held_registers(&self) -> u64 {
        let words = |dtype: DType| u64::from(dtype.bits().div_ceil(32));
        match (&self.mapping, &self.body) {
            (Mapping::Rows { vector, steps, .. }, Body::Row(row)) => {
                let bits: u64 = row.held.iter().map(|e| u64::from(self.exprs.dtype(*e).bits())).sum();
                u64::from(*vector) * u64::from(*steps) * bits / 32
            }
            (Mapping::Threads { vector, .. }, Body::Transform(t)) => u64::from(*vector) * square(t),
            (Mapping::Tile { thread_m, thread_n, .. }, Body::Contract(c)) => {
                u64::from(*thread_m) * u64::from(*thread_n) * words(self.vars[c.acc])
            }
            (Mapping::Steps(steps), Body::Recurrent(r)) if steps.held => {
                let hidden = self.axes[r.hidden].extent.as_const().unwrap_or(0);
                u64::try_from(steps.weights(&r.layer, hidden)).unwrap_or(0)
            }
            (Mapping::Matrix(tiling), _) => tiling.accumulators().into(),
            (Mapping::Gemv(tiling), Body::Contract(c)) => gemv_sums(tiling) * words(self.vars[c.acc]),
            (
                Mapping::Flash {
                    block_q,
                    block_k,
                    block,
                    ..
                },
                Body::Attention(a),
            ) => {
                let [_, dv] = self.widths(a).map(|width| u64::try_from(width).unwrap_or(0));
                let each = |elements: u64| elements.div_ceil(u64::from(*block).max(1));
                each(u64::from(*block_q) * dv) + each(u64::from(*block_q) * u64::from(*block_k))
            }
            (Mapping::FlashMatrix(tiling), Body::Attention(a)) => {
                let [_, dv] = self.widths(a);
                let rows = i64::from(tiling.instruction.m) * i64::from(tiling.fragments);
                u64::try_from(rows * dv / i64::from(tiling.instruction.lanes().max(1))).unwrap_or(0)
            }
            (Mapping::FlashLanes(tiling), Body::Attention(a)) => {
                let [_, dv] = self.widths(a);
                let share = tiling.share(dv, self.exprs.dtype(a.value).bits());
                u64::try_from(i64::from(tiling.rows) * share).unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// Bytes of LDS of a workgroup that folds together: for each fold and type two rows with an element of each wave.
    fn folds_lds(&self, block: u32, wave: u32) -> u64 {
        let waves = u64::from(block.div_ceil(wave.max(1)));
        if waves < 2 {
            return 0;
        }
        let stmts: &[Stmt] = match &self.body {
            Body::Loops(l) => &l.stmts,
            Body::Row(r) => &r.loops.stmts,
            Body::Window(w) => &w.loops.stmts,
            Body::Copy(c) => &c.loops.stmts,
            _ => &[],
        };
        let mut folds = HashSet::new();
        for s in stmts {
            if let Stmt::Fold { op, value, .. } = s {
                folds.insert((*op, self.exprs.dtype(*value)));
            }
        }
        // A position is folded beside its value; sums may be wider than what is added.
        let element = |op: ReduceOp, dtype: DType| match op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => 16,
            _ => bytes_of(dtype).max(8),
        };
        folds.iter().map(|(op, dtype)| 2 * waves * element(*op, *dtype)).sum()
    }

    /// The widths of an attention's keys and values; 0 where they are open.
    fn widths(&self, a: &AttentionBody) -> [i64; 2] {
        [a.d, a.dv].map(|axis: AxisId| self.axes[axis].extent.as_const().unwrap_or(0))
    }
}
