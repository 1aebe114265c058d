//! The register tile: up to `MR` rows of A (each by its own pointer) times one packed panel of B.
//!
//! A is read in place, broadcast by broadcast, through a table of row pointers; a tile's K axis may be split into
//! segments with other pointers each, which is what makes a convolution this same kernel (one segment per tap, the
//! indirect convolution of Dukhan, 2019). B is a panel of `NV` vectors per k. All of K is accumulated in registers.
#![expect(
    clippy::needless_range_loop,
    reason = "index loops of constant length unroll into registers"
)]
#![expect(unsafe_op_in_unsafe_fn, reason = "one kernel body under the contract of `TileFn`")]

use super::{Activation, TileArgs};
use crate::cpu::kernels::isa::{Isa, Level};
use crate::cpu::kernels::simd::Simd;

/// Computes one tile as [`TileArgs`] says.
///
/// Contract: every row pointer of the `segs * rows` table is valid for `seg_len` floats, `b` for the panel, `c` for
/// `rows` rows of `n` floats at stride `ldc`, bias and residual likewise; the processor has the level it was got for.
pub(crate) type TileFn = unsafe fn(&TileArgs);

#[inline(always)]
unsafe fn tile<S: Simd, const M: usize, const NV: usize>(t: &TileArgs) {
    let mut acc = [[S::zero(); NV]; M];
    let mut b = t.b;
    let step = t.b_stride;
    let mut ahead = t.ahead;
    let mut table = t.rows;
    for _ in 0..t.segs {
        let mut rows = [std::ptr::null::<f32>(); M];
        for i in 0..M {
            rows[i] = (*table.add(i)).add(t.a_offset);
        }
        table = table.add(t.table_stride);
        for k in 0..t.seg_len {
            S::prefetch(ahead);
            ahead = ahead.wrapping_add(t.ahead_step);
            let mut bv = [S::zero(); NV];
            for j in 0..NV {
                bv[j] = S::load(b.add(j * S::LANES));
            }
            for i in 0..M {
                let a = S::splat(*rows[i].add(k));
                for j in 0..NV {
                    acc[i][j] = S::fma(a, bv[j], acc[i][j]);
                }
            }
            b = b.add(step);
        }
    }
    finish::<S, M, NV>(t, &mut acc);
}

/// Few rows leave the FMA chains too short: four values of k go side by side.
#[inline(always)]
unsafe fn tile_short<S: Simd, const M: usize, const NV: usize>(t: &TileArgs) {
    let mut acc = [[[S::zero(); NV]; M]; 4];
    let mut b = t.b;
    let step = t.b_stride;
    let mut table = t.rows;
    for _ in 0..t.segs {
        let mut rows = [std::ptr::null::<f32>(); M];
        for i in 0..M {
            rows[i] = (*table.add(i)).add(t.a_offset);
        }
        table = table.add(t.table_stride);
        let mut k = 0;
        while k + 4 <= t.seg_len {
            for u in 0..4 {
                for j in 0..NV {
                    let bv = S::load(b.add(j * S::LANES));
                    for i in 0..M {
                        acc[u][i][j] = S::fma(S::splat(*rows[i].add(k + u)), bv, acc[u][i][j]);
                    }
                }
                b = b.add(step);
            }
            k += 4;
        }
        while k < t.seg_len {
            for j in 0..NV {
                let bv = S::load(b.add(j * S::LANES));
                for i in 0..M {
                    acc[0][i][j] = S::fma(S::splat(*rows[i].add(k)), bv, acc[0][i][j]);
                }
            }
            b = b.add(step);
            k += 1;
        }
    }
    let [mut sum, a1, a2, a3] = acc;
    for i in 0..M {
        for j in 0..NV {
            sum[i][j] = S::add(S::add(sum[i][j], a1[i][j]), S::add(a2[i][j], a3[i][j]));
        }
    }
    finish::<S, M, NV>(t, &mut sum);
}

#[inline(always)]
unsafe fn finish<S: Simd, const M: usize, const NV: usize>(t: &TileArgs, acc: &mut [[S::V; NV]; M]) {
    if t.n == NV * S::LANES {
        // Whole vectors: no masks.
        store_tile::<S, M, NV, true>(t, acc);
    } else {
        store_tile::<S, M, NV, false>(t, acc);
    }
}

#[inline(always)]
unsafe fn store_tile<S: Simd, const M: usize, const NV: usize, const FULL: bool>(
    t: &TileArgs,
    acc: &mut [[S::V; NV]; M],
) {
    let mut width = [S::LANES; NV];
    if !FULL {
        for (j, w) in width.iter_mut().enumerate() {
            *w = t.n.saturating_sub(j * S::LANES).min(S::LANES);
        }
    }
    if t.accumulate {
        for i in 0..M {
            for j in 0..NV {
                let c = get::<S, FULL>(t.c.add(i * t.ldc + j * S::LANES), width[j]);
                acc[i][j] = S::add(acc[i][j], c);
            }
        }
    }
    if t.finish {
        if t.scale != 1.0 {
            for row in acc.iter_mut() {
                for x in row.iter_mut() {
                    *x = S::mul(*x, S::splat(t.scale));
                }
            }
        }
        if !t.bias.is_null() {
            for j in 0..NV {
                let bias = get::<S, FULL>(t.bias.add(j * S::LANES), width[j]);
                for row in acc.iter_mut() {
                    row[j] = S::add(row[j], bias);
                }
            }
        }
        if !t.residual.is_null() {
            for i in 0..M {
                for j in 0..NV {
                    let r = get::<S, FULL>(t.residual.add(i * t.ld_residual + j * S::LANES), width[j]);
                    acc[i][j] = S::add(acc[i][j], r);
                }
            }
        }
        match t.activation {
            Activation::None => {}
            Activation::Relu => {
                // Operand order: NaN goes through.
                for row in acc.iter_mut() {
                    for x in row.iter_mut() {
                        *x = S::max(S::zero(), *x);
                    }
                }
            }
            Activation::Clip(lo, hi) => {
                for row in acc.iter_mut() {
                    for x in row.iter_mut() {
                        *x = S::min(S::splat(hi), S::max(S::splat(lo), *x));
                    }
                }
            }
        }
    }
    for i in 0..M {
        for j in 0..NV {
            let p = t.c.add(i * t.ldc + j * S::LANES);
            if FULL {
                S::store(p, acc[i][j]);
            } else if width[j] > 0 {
                S::store_part(p, acc[i][j], width[j]);
            }
        }
    }
}

#[inline(always)]
unsafe fn get<S: Simd, const FULL: bool>(p: *const f32, n: usize) -> S::V {
    if FULL { S::load(p) } else { S::load_part(p, n) }
}

macro_rules! tiles {
    ($table:ident, $simd:ty, $features:literal, [$($m:literal $body:ident),*]) => {
        /// By `rows - 1`, then width in vectors minus one.
        static $table: [[TileFn; 2]; [$($m),*].len()] = [$([
            {
                #[target_feature(enable = $features)]
                unsafe fn run(t: &TileArgs) { $body::<$simd, $m, 1>(t) }
                run
            },
            {
                #[target_feature(enable = $features)]
                unsafe fn run(t: &TileArgs) { $body::<$simd, $m, 2>(t) }
                run
            },
        ]),*];
    };
}

#[cfg(target_arch = "x86_64")]
tiles!(AVX512, crate::cpu::kernels::simd::Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c",
    [1 tile_short, 2 tile_short, 3 tile_short, 4 tile, 5 tile, 6 tile, 7 tile, 8 tile, 9 tile, 10 tile, 11 tile, 12 tile,
     13 tile, 14 tile]);
#[cfg(target_arch = "x86_64")]
tiles!(AVX2, crate::cpu::kernels::simd::Avx2, "avx2,fma,f16c",
    [1 tile_short, 2 tile, 3 tile, 4 tile, 5 tile, 6 tile]);

macro_rules! portable {
    ($($m:literal),*) => {
        static PORTABLE: [[TileFn; 2]; [$($m),*].len()] = [$([
            tile::<crate::cpu::kernels::simd::Portable, $m, 1>,
            tile::<crate::cpu::kernels::simd::Portable, $m, 2>,
        ]),*];
    };
}
portable!(1, 2, 3, 4);

/// The tile functions of `isa`, by `rows - 1` and then `vectors - 1`. Its length is the tallest tile.
pub(crate) fn tile_fns(isa: Isa) -> &'static [[TileFn; 2]] {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => &AVX512,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => &AVX2,
        _ => &PORTABLE,
    }
}
