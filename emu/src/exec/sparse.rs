//! Products with a sparse A: SMFMAC of the CDNA parts and SWMMAC of gfx12.
//!
//! Of every four elements along a row of A at most two are there. A lane holds them in order, and an index register
//! has two bits for each, which say where among its four the element belongs. Elements 2p and 2p + 1 of a lane so
//! meet B's elements 4p to 4p + 3 of the lane group with the same part of k. What a lane has indices for may be less
//! than the register holds; then abid (where cbsz is zero) or index_key names the piece. The sum is added to D.
//! Sources: AMD's CDNA3, CDNA4 and RDNA4 manuals and its matrix instruction calculator.

use super::matrix::{
    cost_shape, mfma_sums, operand_elements, outside, parse_shape, plain_element, register, wmma_elements, wmma_negate,
    wmma_sums,
};
use super::operand::Build;
use super::tile::{Meet, Product, Rounding, Runs, Side, Tile};
use super::wave::{Exec, Flow};
use crate::arch::Generation;
use crate::timing::cost::matrix_cycles;

pub(super) fn build(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    if let Some(rest) = name.strip_prefix("v_smfmac_") {
        return Some(smfmac(b, rest));
    }
    name.strip_prefix("v_swmmac_").map(|rest| swmmac(b, rest))
}

/// Where the indices of a product are.
struct Indices {
    register: usize,
    /// The first bit of the lanes' piece.
    shift: u32,
}

/// How A's elements lie in the lanes.
#[derive(Clone, Copy)]
struct Shape {
    tile: Tile,
    /// Elements of A in a lane.
    per_lane: usize,
}

fn indices(b: &Build<'_>, shape: Shape, piece: u32) -> Result<Indices, String> {
    let (index, _) = register(b, 3)?;
    Ok(Indices {
        register: index.into(),
        shift: piece * 2 * shape.per_lane as u32 % 32,
    })
}

/// `base` gives the first k of the four that pair `p` of a lane group chooses from.
fn exec(
    product: Product,
    shape: Shape,
    indices: Indices,
    counts: (u64, u64),
    base: impl Fn(usize, usize) -> usize,
) -> Exec {
    let Shape { tile, per_lane } = shape;
    // For each of A's stored elements, row by row: the lane and bit of its index, and its first k.
    let mut sources = Vec::with_capacity(tile.m * tile.k / 2);
    for row in 0..tile.m {
        for stored in 0..tile.k / 2 {
            let (group, e) = (stored / per_lane, stored % per_lane);
            let bit = indices.shift as usize + 2 * e;
            sources.push(((row + tile.m * group) as u8, bit as u8, base(group, e / 2) as u32));
        }
    }
    Box::new(move |w, env| {
        let words = &w.v[indices.register];
        let chosen: Vec<u32> = sources
            .iter()
            .map(|(lane, bit, base)| base + (words[*lane as usize] >> bit & 3))
            .collect();
        product.run(w, &Meet::Chosen(&chosen)).ok_or_else(outside)?;
        env.counters.matrix_macs += counts.0;
        env.counters.matrix_cycles += counts.1;
        Ok(Flow::Next)
    })
}

/// Where the columns of a stored A begin.
fn a_runs(shape: Shape) -> Vec<u32> {
    let Shape { tile, per_lane } = shape;
    (0..tile.k / 2)
        .map(|stored| (64 * (stored % per_lane) + tile.m * (stored / per_lane)) as u32)
        .collect()
}

fn smfmac(b: &Build<'_>, rest: &str) -> Result<Exec, String> {
    let (out, m, n, k, types) = parse_shape(rest).ok_or("the shape is not understood")?;
    let (ea, eb) = operand_elements(types, b.arch, b.text).ok_or("the element types are not understood")?;
    let result = plain_element(out, b.arch).ok_or("the result type is not understood")?;
    let ((d, _), (first_a, a_count), (first_b, _)) = (register(b, 0)?, register(b, 1)?, register(b, 2)?);
    let tile = Tile { m, n, k, blocks: 1 };
    let per_lane = a_count as usize * 32 / ea.bits() as usize;
    if 2 * 64 * per_lane != m * k || m != n || !matches!(n, 16 | 32) {
        return Err(format!("{per_lane} elements a lane do not make a sparse {m}x{k}"));
    }
    let shape = Shape { tile, per_lane };
    let piece = if b.text.number("cbsz") == 0 {
        b.text.number("abid") as u32
    } else {
        0
    };
    let indices = indices(b, shape, piece)?;
    let flush = b.arch.mfma_flushes_denormals;
    let mut a = Side::new(first_a, ea, per_lane);
    let mut side_b = Side::new(first_b, eb, 2 * per_lane);
    (a.flush, side_b.flush) = (flush, flush);
    let (mut sums, c_runs) = mfma_sums(d, Ok(d), result, tile);
    sums.flush = flush && ea.bits() == 16;
    let b_runs = (0..k).map(|kk| (64 * (kk % (2 * per_lane)) + n * (kk / (2 * per_lane))) as u32);
    let runs = Runs {
        a: a_runs(shape),
        b: b_runs.collect(),
        c: c_runs,
    };
    let macs = (m * n * k) as u64;
    let product = Product {
        tile,
        a,
        b: side_b,
        sums,
        runs,
        rounding: Rounding::Exact,
    };
    // Half of the products are made.
    let cycles = matrix_cycles(b.arch, cost_shape(b.text, m, k, types, true));
    let counts = (macs / 2, cycles.into());
    Ok(exec(product, shape, indices, counts, move |group, pair| {
        group * 2 * per_lane + 4 * pair
    }))
}

fn swmmac(b: &Build<'_>, rest: &str) -> Result<Exec, String> {
    let (out, m, n, k, types) = parse_shape(rest).ok_or("the shape is not understood")?;
    let (ea, eb) = wmma_elements(b, types).ok_or("the element types are not understood")?;
    let result = plain_element(out, b.arch).ok_or("the result type is not understood")?;
    if m != 16 || n != 16 || !b.arch.at_least(Generation::Gfx12) {
        return Err(format!("{m}x{n}x{k} is not modelled"));
    }
    let ((d, _), (first_a, a_count), (first_b, _)) = (register(b, 0)?, register(b, 1)?, register(b, 2)?);
    let tile = Tile { m, n, k, blocks: 1 };
    let per_lane = a_count as usize * 32 / ea.bits() as usize;
    // In a wave of 64 lanes the smallest four-bit A fills only the lower half.
    let lanes = 8 * k / per_lane;
    let b_per_lane = 16 * k / b.lanes;
    if !matches!(lanes, 32 | 64) || lanes > b.lanes {
        return Err(format!("{per_lane} elements a lane do not make a sparse {m}x{k}"));
    }
    let shape = Shape { tile, per_lane };
    // index_key, from the bytes: the text has one bit of it where it shows the form of 32 lanes.
    let key = u32::from(b.raw[1] >> 3 & 3);
    let key = if per_lane == 4 { key } else { key & 1 };
    let indices = indices(b, shape, key)?;
    let half = lanes != b.lanes;
    let mut a = Side::new(first_a, ea, per_lane);
    let mut side_b = Side::new(first_b, eb, b_per_lane);
    a.negate = wmma_negate(b, ea, 0);
    side_b.negate = wmma_negate(b, eb, 1);
    let (sums, c_runs) = wmma_sums(b, d, Ok(d), result);
    let b_runs = (0..k).map(|kk| {
        let group = if half {
            kk / 16 + 2 * (kk / 8 % 2)
        } else {
            kk / b_per_lane
        };
        (64 * (kk % b_per_lane) + 16 * group) as u32
    });
    let runs = Runs {
        a: a_runs(shape),
        b: b_runs.collect(),
        c: c_runs,
    };
    let macs = (m * n * k) as u64;
    let product = Product {
        tile,
        a,
        b: side_b,
        sums,
        runs,
        rounding: Rounding::Exact,
    };
    let cycles = matrix_cycles(b.arch, cost_shape(b.text, m, k, types, true));
    let counts = (macs / 2, cycles.into());
    Ok(exec(product, shape, indices, counts, move |group, pair| {
        group * 2 * per_lane + 4 * pair
    }))
}
