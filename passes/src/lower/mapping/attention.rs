//! Attention: queries to waves, tiles of keys through LDS.

use ir::DType;
use ir::kernel::limits::{widest_fetch, widest_group};
use ir::kernel::{AttentionBody, AxisId, ExprId, Fetch, FlashTiling, Mapping, Operand};
use ir::target::{MatrixFamily, MatrixInstruction, Platform};

use super::{BLOCK, Mapper};

/// Registers of a lane that an attention's tiles may take: what is left of 256 is for addresses, scores and the compiler.
const FLASH_REGISTERS: i64 = 160;
/// The same where waves share queries, and bring what they have together.
const SPLIT_FLASH_REGISTERS: i64 = 128;
/// The same where a lane has 512, sums in the other half.
const WIDE_FLASH_REGISTERS: i64 = 280;

impl Mapper<'_> {
    pub(super) fn attention(&self, body: &AttentionBody) -> Mapping {
        let (d, dv) = (self.points(&[body.d]), self.points(&[body.dv]));
        let queries = self.points(&[body.q]);
        if let Some(tiling) = self.flash(body) {
            return Mapping::FlashMatrix(tiling);
        }
        // Two workgroups should fit a compute unit's LDS.
        let budget = i64::from(self.target.lds_bytes.min(64 << 10)) / 2;
        let bytes = |q: i64, k: i64| 4 * (q * (d + 1) + k * (d + 1) + k * dv + q * (k + 1) + 3 * q);
        let (mut block_q, mut block_k) = (32i64, 32i64);
        while block_q > 4 && block_q / 2 >= queries {
            block_q /= 2;
        }
        // Heads too wide for half of LDS may have all of it.
        let limit = if bytes(8, 8) <= budget {
            budget
        } else {
            i64::from(self.target.lds_bytes.min(64 << 10))
        };
        while bytes(block_q, block_k) > limit && (block_q > 1 || block_k > 1) {
            if block_k >= block_q {
                block_k = (block_k / 2).max(1);
            } else {
                block_q /= 2;
            }
        }
        Mapping::Flash {
            block_q: block_q as u32,
            block_k: block_k as u32,
            block: if block_q >= 16 { BLOCK } else { 128 },
        }
    }

    /// The tiling for matrix instructions, if the target has one for these types and the tiles fit.
    fn flash(&self, body: &AttentionBody) -> Option<FlashTiling> {
        let k = self.kernel;
        let width = |axis: AxisId| k.axes[axis].extent.as_const().filter(|n| *n > 0);
        let (d, dv) = (width(body.d)?, width(body.dv)?);
        let input = k.exprs.dtype(body.query);
        if [body.key, body.value].iter().any(|e| k.exprs.dtype(*e) != input) {
            return None;
        }
        let operand = |e: ExprId| Operand::new(&k.exprs, e);
        let fetch = |e: ExprId, along_k: AxisId, rows: AxisId| {
            let operand = operand(e);
            let (k_wide, rows_wide) = (
                widest_fetch(k, self.symbols, &operand, along_k),
                widest_fetch(k, self.symbols, &operand, rows),
            );
            Fetch {
                along_k: k_wide >= rows_wide,
                width: k_wide.max(rows_wide),
            }
        };
        let (key, value) = (fetch(body.key, body.d, body.k), fetch(body.value, body.k, body.dv));
        let query = widest_fetch(k, self.symbols, &operand(body.query), body.d);
        let store = widest_group(k, self.symbols, &body.epilogue, body.dv).min(8);
        let tiling = |instruction: &MatrixInstruction, split: u32, keys: u32| {
            let mut tiling = FlashTiling {
                instruction: *instruction,
                // 256 threads bring the tiles.
                waves: BLOCK / instruction.family.lanes(),
                split,
                keys,
                query,
                key,
                value,
                store,
            };
            while tiling.store > 1 && !tiling.stores_fit(dv) {
                tiling.store /= 2;
            }
            tiling
        };
        // What the model leaves open is rarely as short as a hint: sequences of queries, caches of keys.
        let usual = |axis: AxisId, usual: i64| match k.axes[axis].extent.as_const() {
            Some(length) => length,
            None => self.points(&[axis]).max(usual),
        };
        let (queries, length) = (usual(body.q, 128), usual(body.k, 1024));
        // What the kernel declares is static: NVIDIA's takes less than the hardware has.
        let lds = match self.target.platform {
            Platform::Cuda => 48 << 10,
            Platform::Hip | Platform::Cpu => 64 << 10,
        };
        let fits = |t: &FlashTiling| {
            let most = match t.instruction.family {
                MatrixFamily::Mfma => WIDE_FLASH_REGISTERS,
                MatrixFamily::Wmma | MatrixFamily::MmaSync if t.split > 1 => SPLIT_FLASH_REGISTERS,
                MatrixFamily::Wmma | MatrixFamily::MmaSync => FLASH_REGISTERS,
            };
            t.misfit().is_none()
                && t.stores_fit(dv)
                && t.lds_bytes(d, dv) <= i64::from(self.target.lds_bytes.min(lds))
                // Waves share queries where there are too few for all, and keys for each.
                && (t.split == 1
                    || (i64::from(t.queries()) >= queries && i64::from((t.split - 1) * t.keys) < length))
                && t.registers(d, dv) <= most
                // gfx11 holds wide queries twice, which leaves room for few scores (as compiled).
                && (t.instruction.family != MatrixFamily::Wmma || d <= 96 || t.keys <= 16)
        };
        // Few queries leave rows of a large instruction empty; long tiles of wide heads leave too few registers.
        let keys: &[u32] = if d.max(dv) <= 64 { &[64, 32, 16] } else { &[32, 16] };
        let rows = self.target.matrix.iter();
        let mut instructions: Vec<&MatrixInstruction> =
            rows.filter(|i| i.input == input && i.acc == DType::F32).collect();
        instructions.sort_by_key(|i| (i64::from(i.m) * 4 > queries.max(64), std::cmp::Reverse(i.m)));
        let candidates = instructions.iter().flat_map(|i| {
            let splits = [8, 4, 2, 1]
                .into_iter()
                .flat_map(move |s| keys.iter().map(move |k| (s, *k)));
            splits.map(move |(split, keys)| tiling(i, split, keys))
        });
        candidates.into_iter().find(fits)
    }
}
