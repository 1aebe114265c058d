//! Products and convolutions of 8-bit integers by constants, with what follows them.
//!
//! Before: a contraction of `i8` in `i32`, at one set of sizes. After: rows of the left operand copied as they are multiplied, packed
//! weights, and the epilogue taken apart ([`super::stages`]). One that floats do not serve runs as loops over a temporary of sums.

use std::sync::Arc;

use indexmap::IndexSet;
use ir::entity::Entity;
use ir::graph::ConstId;
use ir::kernel::{ContractBody, ConvFacts, Expr, ExprId, Kernel, Stmt};
use ir::op::Layout;
use ir::types::DType;
use smallvec::SmallVec;

use super::affine::{Affine, Space, collapse};
use super::block::compile::Source;
use super::conv;
use super::env::RunMemory;
use super::exec::{Piece, Prepare};
use super::finisher::Finisher;
use super::hoist::hoist;
use super::kernels::conv::{ConvShape, ImageStrides};
use super::kernels::integers::{
    DepthwiseIntegers, Dots, GivenIntegers, IntegerProduct, PackedIntegers, Panels, RowOut, SumTile, depthwise,
    multiply, pack_given,
};
use super::kernels::workspace::SyncPtr;
use super::loops::LoopsExec;
use super::rewrite::{Rewritten, store};
use super::stages::{Added, Finish, LANES, epilogue_exprs, take};
use super::tile::TileDims;
use crate::error::RuntimeError;

/// The most entries of one launch: each has its positions in a table.
const MOST_ENTRIES: usize = 1 << 20;

/// The most bytes that a run packs.
const MOST_PACKED: usize = 1 << 40;

/// What weights are packed by: a constant may be those of several shapes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct IntegersKey {
    pub id: ConstId,
    /// What says where the elements of a row and column are.
    pub order: [i64; 8],
}

/// Where rows of the left operand come from.
#[derive(Debug)]
enum Left {
    /// A matrix for each entry.
    Matrix {
        base: i64,
        row: i64,
        step: i64,
        table: Vec<i64>,
    },
    Image {
        shape: ConvShape,
        strides: ImageStrides,
        padding: i8,
    },
    /// As an image, of which each channel has a filter of its own: a number for each tap and channel.
    Depthwise {
        shape: ConvShape,
        strides: ImageStrides,
        padding: i8,
        taps: Vec<i8>,
    },
}

/// The right operand.
#[derive(Debug)]
enum Right {
    /// Constants, packed when the kernel was prepared: entry `i` has that of number `i % len`.
    Packed(Arc<Vec<PackedIntegers>>),
    /// What a run gives, packed in each.
    Given {
        dots: Dots,
        matrix: GivenIntegers,
        /// Where each matrix begins, in elements of the parameter.
        starts: Vec<i64>,
        /// The number of each entry's matrix.
        of: Vec<usize>,
        /// The temporary of what is packed.
        to: usize,
    },
}

/// A product of integers at one set of sizes.
#[derive(Debug)]
pub(crate) struct IntegerExec {
    entries: usize,
    m: usize,
    k: usize,
    left: Left,
    input: usize,
    filter: usize,
    right: Right,
    /// Columns of one right operand, and how many of them share the columns of the result: those of groups.
    pub(super) columns: usize,
    pub(super) groups: usize,
    pub(super) added: Added,
    pub(super) finish: Finish,
    pub(super) dims: TileDims,
    /// Dims of the columns with their extents, the innermost last.
    pub(super) across: Vec<(usize, usize)>,
    pub(super) space: usize,
    /// Positions on every dim, for each entry.
    pub(super) positions: Vec<i64>,
}

/// Prepares a product of integers; says no where the kernels do not take it.
///
/// # Errors
/// As for kernels of loops.
pub(crate) fn prepare(
    rewritten: &mut Rewritten,
    body: &ContractBody,
    cx: &Prepare<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<bool, RuntimeError> {
    let kernel = &rewritten.kernel;
    let narrow = |e: ExprId| kernel.exprs.dtype(e) == DType::I8;
    if kernel.vars[body.acc] != DType::I32 || !narrow(body.lhs.value) || !narrow(body.rhs.value) {
        return Ok(false);
    }
    let (mark, before) = (rewritten.clone(), pieces.len());
    let columns: Vec<_> = match body.conv {
        // Groups have filters of their own.
        Some(_) => body.batch.iter().chain(&body.n).copied().collect(),
        None => body.n.clone(),
    };
    let hoisted = hoist(rewritten, &body.epilogue, &columns, cx, pieces)?;
    let epilogue = hoisted.as_deref().unwrap_or(&body.epilogue);
    if let Some(exec) = product(rewritten, body, epilogue, cx)? {
        pieces.push(Piece::Integers(Box::new(exec)));
        return Ok(true);
    }
    rewritten.clone_from(&mark);
    pieces.truncate(before);
    let axes: Vec<_> = [&body.m, &body.batch, &body.n].into_iter().flatten().copied().collect();
    let (param, index) = rewritten.temporary("sums", DType::I32, &axes, cx.bindings)?;
    let sum = rewritten.kernel.exprs.add(Expr::Var(body.acc), DType::I32);
    let stmts = [store(param, index, sum)];
    let Some(exec) = product(rewritten, body, &stmts, cx)? else {
        *rewritten = mark;
        return Ok(false);
    };
    pieces.push(Piece::Integers(Box::new(exec)));
    let value = rewritten.load(param, index);
    let mut stmts = vec![Stmt::Let { var: body.acc, value }];
    stmts.extend(body.epilogue.iter().cloned());
    let loops = LoopsExec::from_parts(&rewritten.kernel, &axes, &stmts, cx.bindings, cx.threads, true)?;
    pieces.push(Piece::Loops(Box::new(loops)));
    Ok(true)
}

fn product(
    rewritten: &mut Rewritten,
    body: &ContractBody,
    epilogue: &[Stmt],
    cx: &Prepare<'_>,
) -> Result<Option<IntegerExec>, RuntimeError> {
    match &body.conv {
        Some(facts) => image(&rewritten.kernel, body, facts, epilogue, cx),
        None => {
            let Some((mut exec, bytes)) = matrix(&rewritten.kernel, body, epilogue, cx)? else {
                return Ok(None);
            };
            if let Right::Given { to, .. } = &mut exec.right {
                *to = rewritten.memory("packed", bytes).index();
            }
            Ok(Some(exec))
        }
    }
}

/// A convolution, by its facts.
fn image(
    kernel: &Kernel,
    body: &ContractBody,
    facts: &ConvFacts,
    epilogue: &[Stmt],
    cx: &Prepare<'_>,
) -> Result<Option<IntegerExec>, RuntimeError> {
    let Some(shape) = conv::shape(facts, cx)? else {
        return Ok(None);
    };
    let Some((id, tensor)) = cx.constant(facts.filter.index()) else {
        return Ok(None);
    };
    let padding = i8::try_from(facts.pad_value).ok();
    let (Some(padding), DType::I8, DType::I8) = (padding, kernel.params[facts.input].dtype, tensor.dtype) else {
        return Ok(None);
    };
    let exprs = epilogue_exprs(epilogue);
    let mut space = Space::new(kernel, cx.bindings)?;
    let Some(mut dims) = conv::Dims::new(&space, body, &shape) else {
        return Ok(None);
    };
    let (cg, og) = (shape.c / shape.groups, shape.o / shape.groups);
    let held = |sizes: [usize; 4]| sizes.iter().try_fold(1usize, |n, s| n.checked_mul(*s));
    let elements = kernel.params[facts.input].count(cx.bindings)?;
    let given = held([shape.n, shape.h, shape.w, shape.c]);
    if given.is_none_or(|needed| elements < needed as i64)
        || held([shape.o, cg, shape.kh, shape.kw]) != Some(tensor.elements())
        || tensor.bytes.len() < tensor.elements()
    {
        return Ok(None);
    }
    // Columns are all filters: those of a group are an entry's.
    space.split(&exprs, &mut [&mut dims.image, &mut dims.pixel, &mut dims.filter], &[]);
    let mut roots = space.roots(&exprs);
    let mut extents = space.extents.clone();
    collapse(
        &mut extents,
        &mut [&mut dims.image, &mut dims.pixel, &mut dims.filter],
        &mut roots,
    );
    if dims.image.len() > 1 || dims.pixel.len() > 1 {
        return Ok(None);
    }
    let (image, tile) = (
        dims.image.first().copied(),
        TileDims {
            row: dims.pixel.first().copied(),
            col: dims.filter.last().copied(),
            entries: shape.n > 1,
        },
    );
    let strides = match facts.layout {
        Layout::ChannelsLast => ImageStrides::nhwc(shape.h, shape.w, shape.c),
        Layout::ChannelsFirst => ImageStrides::nchw(shape.h, shape.w, shape.c),
    };
    let taps = shape.kh * shape.kw;
    let k = taps * cg;
    let order = |sizes: [usize; 8]| sizes.map(|s| s as i64);
    let key = IntegersKey {
        id,
        order: order([
            usize::from(facts.layout == Layout::ChannelsLast) + 1,
            shape.o,
            cg,
            shape.kh,
            shape.kw,
            shape.groups,
            0,
            0,
        ]),
    };
    let bytes: &[u8] = &tensor.bytes;
    let each = cg == 1 && og == 1 && strides.c == 1;
    let weights = cx.pack_integers(key, || {
        if each {
            return Vec::new();
        }
        let dots = Dots::of(cx.isa);
        let group = |g: usize| {
            PackedIntegers::new(dots, k, og, |row, col| {
                let (tap, channel, filter) = (row / cg, row % cg, g * og + col);
                let at = match facts.layout {
                    Layout::ChannelsLast => (filter * taps + tap) * cg + channel,
                    Layout::ChannelsFirst => (filter * cg + channel) * taps + tap,
                };
                bytes[at] as i8
            })
        };
        (0..shape.groups).map(group).collect()
    });
    let total = extents.len();
    let groups = if each { 1 } else { shape.groups };
    let entries = shape.n * groups;
    if entries > MOST_ENTRIES {
        return Ok(None);
    }
    let mut positions = vec![0i64; entries * total];
    if let Some(d) = image {
        for entry in 0..entries {
            positions[entry * total + d] = (entry / groups) as i64;
        }
    }
    let m = shape.out_h * shape.out_w;
    let left = match each {
        // Of filters with one channel both layouts are one.
        true => Left::Depthwise {
            shape,
            strides,
            padding,
            taps: (0..k * shape.o)
                .map(|i| bytes[i % shape.o * k + i / shape.o] as i8)
                .collect(),
        },
        false => Left::Image {
            shape,
            strides,
            padding,
        },
    };
    let across = |dims: &[usize]| dims.iter().map(|d| (*d, extents[*d].max(1) as usize)).collect();
    let source = Source::new(&space, &roots, &extents, cx.bindings)?;
    let Some((added, finish)) = take(&source, epilogue, body.acc, tile, &dims.filter)? else {
        return Ok(None);
    };
    Ok(Some(IntegerExec {
        entries,
        m,
        k,
        left,
        input: facts.input.index(),
        filter: facts.filter.index(),
        right: Right::Packed(weights),
        columns: og,
        groups,
        added,
        finish,
        dims: tile,
        across: across(&dims.filter),
        space: total,
        positions,
    }))
}

/// A product of matrices, and the bytes of what a run packs.
fn matrix(
    kernel: &Kernel,
    body: &ContractBody,
    epilogue: &[Stmt],
    cx: &Prepare<'_>,
) -> Result<Option<(IntegerExec, usize)>, RuntimeError> {
    let load = |e: ExprId| match kernel.exprs[e] {
        Expr::Load { param, index } => Some((param, index)),
        _ => None,
    };
    let (Some((left, left_index)), Some((right, right_index))) = (load(body.lhs.value), load(body.rhs.value)) else {
        return Ok(None);
    };
    let mut exprs = epilogue_exprs(epilogue);
    exprs.extend([left_index, right_index]);
    let mut space = Space::new(kernel, cx.bindings)?;
    let mut batch = Space::dims(&body.batch);
    let mut m = Space::dims(&body.m);
    let mut n = Space::dims(&body.n);
    let mut k = Space::dims(&body.k);
    space.split(&exprs, &mut [&mut batch, &mut m, &mut n, &mut k], &[]);
    let mut roots = space.roots(&exprs);
    let mut extents = space.extents.clone();
    collapse(&mut extents, &mut [&mut batch, &mut m, &mut n, &mut k], &mut roots);
    let (Some(a), Some(b)) = (roots.get(&left_index).cloned(), roots.get(&right_index).cloned()) else {
        return Ok(None);
    };
    let others: Vec<usize> = batch.iter().chain(m.iter().rev().skip(1).rev()).copied().collect();
    // Columns of the right operand are one stride apart; where results go they need not be.
    let nested = |w: &[usize]| b.get(w[0]) == b.get(w[1]).wrapping_mul(extents[w[1]]);
    if !n.windows(2).all(nested) || k.len() > 1 || m.iter().any(|d| b.get(*d) != 0) {
        return Ok(None);
    }
    let (row, col, depth) = (m.last().copied(), n.last().copied(), k.first().copied());
    let extent = |d: Option<usize>| d.map_or(1, |d| extents[d].max(0) as usize);
    let counted = others
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul(extents[*d].max(0) as usize));
    let Some(entries) = counted.filter(|n| *n <= MOST_ENTRIES) else {
        return Ok(None);
    };
    let wide = n.iter().try_fold(1usize, |all, d| all.checked_mul(extent(Some(*d))));
    let Some(nn) = wide else { return Ok(None) };
    let empty = entries == 0 || nn == 0 || [row, depth].iter().any(|d| extent(*d) == 0);
    let inside = |form: &Affine, count: i64| {
        let (lo, hi) = form.range(&extents);
        lo >= 0 && hi < count
    };
    let held = kernel.params[right].count(cx.bindings)?;
    if empty || !inside(&a, kernel.params[left].count(cx.bindings)?) || !inside(&b, held) {
        return Ok(None);
    }
    let kk = extent(depth);
    // A matrix whose rows lie on one another would take more than is there.
    if kk.checked_mul(nn).is_none_or(|all| all as i64 > held) {
        return Ok(None);
    }
    let step = |form: &Affine, d: Option<usize>| d.map_or(0, |d| form.get(d));
    let (down, across) = (step(&b, depth), step(&b, col));
    let total = extents.len();
    let mut positions = vec![0i64; entries * total];
    for entry in 0..entries {
        let mut rest = entry as i64;
        for d in others.iter().rev() {
            positions[entry * total + d] = rest % extents[*d];
            rest /= extents[*d];
        }
    }
    let dims = TileDims {
        row,
        col,
        entries: entries > 1,
    };
    let table = match total {
        0 => vec![0],
        _ => positions.chunks_exact(total).map(|idx| a.at(idx) - a.base).collect(),
    };
    let shared = batch.iter().all(|d| b.get(*d) == 0);
    let (right_operand, bytes) = match cx
        .constant(right.index())
        .filter(|(_, t)| shared && t.bytes.len() as i64 == held)
    {
        Some((id, tensor)) => {
            let key = IntegersKey {
                id,
                order: [0, b.base, down, across, kk as i64, nn as i64, 0, 0],
            };
            let bytes: &[u8] = &tensor.bytes;
            let weights = cx.pack_integers(key, || {
                let at =
                    |row: usize, col: usize| bytes[(b.base + row as i64 * down + col as i64 * across) as usize] as i8;
                vec![PackedIntegers::new(Dots::of(cx.isa), kk, nn, at)]
            });
            (Right::Packed(weights), 0)
        }
        None => {
            let starts: Vec<i64> = match total {
                0 => vec![b.base],
                _ => positions.chunks_exact(total).map(|idx| b.at(idx)).collect(),
            };
            given(cx, [kk, nn], [down, across], starts)
        }
    };
    if bytes > MOST_PACKED {
        return Ok(None);
    }
    let m = extent(row);
    let left_rows = Left::Matrix {
        base: a.base,
        row: step(&a, row),
        step: step(&a, depth),
        table,
    };
    let across = |dims: &[usize]| dims.iter().map(|d| (*d, extents[*d].max(1) as usize)).collect();
    let source = Source::new(&space, &roots, &extents, cx.bindings)?;
    let Some((added, finish)) = take(&source, epilogue, body.acc, dims, &n)? else {
        return Ok(None);
    };
    let exec = IntegerExec {
        entries,
        m,
        k: kk,
        left: left_rows,
        input: left.index(),
        filter: right.index(),
        right: right_operand,
        columns: nn,
        groups: 1,
        added,
        finish,
        dims,
        across: across(&n),
        space: total,
        positions,
    };
    Ok(Some((exec, bytes)))
}

/// A right operand that the run gives, and the bytes that it is packed in; `starts` are those of the entries.
fn given(cx: &Prepare<'_>, [k, n]: [usize; 2], [down, across]: [i64; 2], starts: Vec<i64>) -> (Right, usize) {
    let matrix = GivenIntegers {
        k,
        n,
        down: down as isize,
        across: across as isize,
    };
    let dots = Dots::of(cx.isa);
    let mut known = IndexSet::new();
    let of: Vec<usize> = starts.into_iter().map(|start| known.insert_full(start).0).collect();
    let bytes = known.len().saturating_mul(matrix.bytes(dots)[1]);
    let right = Right::Given {
        dots,
        matrix,
        starts: known.into_iter().collect(),
        of,
        to: 0,
    };
    (right, bytes)
}

impl IntegerExec {
    pub(crate) fn scratch(&self) -> usize {
        // Also where there are no dims, whose positions are at an address all the same.
        let positions = (self.space * 8).next_multiple_of(64).max(64);
        match &self.finish {
            Finish::Program(program) => positions + program.scratch + LANES * 4,
            Finish::Sums(_) | Finish::Stages(_) => positions,
        }
    }

    /// The parameter that is read only as packed panels.
    pub(crate) fn packed_param(&self) -> Option<usize> {
        matches!(self.right, Right::Packed(_)).then_some(self.filter)
    }

    /// Says whether the parameter is read as it lies.
    pub(crate) fn reads(&self, param: usize) -> bool {
        self.input == param || self.filter == param && matches!(self.right, Right::Given { .. })
    }

    /// # Safety
    /// `params` are the kernel's buffers, temporaries included, at the sizes it was prepared for.
    pub(crate) unsafe fn run(&self, memory: &mut RunMemory, params: &[*mut u8]) {
        let isa = memory.workspace.isa();
        let RunMemory { workspace, threads, .. } = memory;
        let input = SyncPtr(params[self.input]);
        let finisher = Finisher {
            exec: self,
            isa,
            params: params.iter().map(|p| SyncPtr(*p)).collect(),
            scratch: threads.iter().map(|t| SyncPtr(t.as_ptr())).collect(),
        };
        // SAFETY: the caller's contract.
        let finish = |tile: &SumTile| unsafe { finisher.finish(tile) };
        if let Left::Depthwise {
            shape: s,
            strides,
            padding,
            taps,
        } = &self.left
        {
            let tap = |entry: usize, row: usize, tap: usize| {
                let y = (row / s.out_w * s.stride[0] + tap / s.kw * s.dilation[0]).checked_sub(s.pad[0]);
                let x = (row % s.out_w * s.stride[1] + tap % s.kw * s.dilation[1]).checked_sub(s.pad[1]);
                match (y, x) {
                    (Some(y), Some(x)) if y < s.h && x < s.w => {
                        let at = entry as isize * strides.n + y as isize * strides.h + x as isize * strides.w;
                        input.get().cast::<i8>().wrapping_offset(at).cast_const()
                    }
                    _ => std::ptr::null(),
                }
            };
            let convolution = DepthwiseIntegers {
                entries: self.entries,
                m: self.m,
                channels: s.c,
                weights: taps,
                padding: *padding,
                tap: &tap,
                finish: &finish,
            };
            // SAFETY: taps are inside the image, which is as large as the shape says.
            unsafe { depthwise(workspace, &convolution) };
            return;
        }
        let row = |entry: usize, row: usize, to: &mut RowOut| {
            let from = input.get().cast::<i8>().cast_const();
            // SAFETY: rows were shown to be inside the operand.
            unsafe { self.row(from, entry, row, to) }
        };
        let weights: SmallVec<[Panels; 16]> = match &self.right {
            Right::Packed(packed) => packed.iter().map(PackedIntegers::panels).collect(),
            Right::Given {
                dots,
                matrix,
                starts,
                of,
                to,
            } => {
                let from = SyncPtr(params[self.filter].cast::<i8>());
                let from: Vec<_> = starts
                    .iter()
                    .map(|start| SyncPtr(from.get().wrapping_offset(*start as isize)))
                    .collect();
                let (to, bytes) = (SyncPtr(params[*to]), matrix.bytes(*dots)[1]);
                // SAFETY: every element was shown to be inside the parameter; the temporary has room for all matrices.
                unsafe { pack_given(workspace, *dots, matrix, &from, to) };
                let panels = |number: &usize| matrix.panels(*dots, to.get().wrapping_add(number * bytes));
                of.iter().map(panels).collect()
            }
        };
        let product = IntegerProduct {
            entries: self.entries,
            m: self.m,
            weights: &weights,
            row: &row,
            finish: &finish,
        };
        // SAFETY: `row` writes `k` elements; the weights were packed for this processor.
        unsafe { multiply(workspace, &product) }
    }

    /// # Safety
    /// `from` is the operand.
    unsafe fn row(&self, from: *const i8, entry: usize, row: usize, to: &mut RowOut) {
        // SAFETY: the caller's contract: every place was shown to be inside, or is looked at here.
        unsafe {
            match &self.left {
                // It has no rows.
                Left::Depthwise { .. } => {}
                Left::Matrix {
                    base,
                    row: down,
                    step,
                    table,
                } => {
                    let at = base + table[entry] + row as i64 * down;
                    to.copy(0, from.offset(at as isize), self.k, *step as isize);
                }
                Left::Image {
                    shape: s,
                    strides,
                    padding,
                } => {
                    let (image, group) = (entry / s.groups, entry % s.groups);
                    let cg = s.c / s.groups;
                    let from = from.offset(image as isize * strides.n + (group * cg) as isize * strides.c);
                    let (oy, ox) = (row / s.out_w, row % s.out_w);
                    let (y0, x0) = (
                        (oy * s.stride[0]) as isize - s.pad[0] as isize,
                        (ox * s.stride[1]) as isize - s.pad[1] as isize,
                    );
                    let dense = strides.c == 1 && strides.w == cg as isize && s.dilation[1] == 1;
                    for ky in 0..s.kh {
                        let (y, first) = (y0 + (ky * s.dilation[0]) as isize, ky * s.kw * cg);
                        if y < 0 || y >= s.h as isize {
                            to.fill(first, *padding, s.kw * cg);
                            continue;
                        }
                        let line = from.offset(y * strides.h);
                        if dense {
                            // Taps are neighbours: those before the line, on it, after it.
                            let before = (-x0).clamp(0, s.kw as isize) as usize;
                            let end = (s.w as isize - x0).clamp(before as isize, s.kw as isize) as usize;
                            to.fill(first, *padding, before * cg);
                            to.copy(
                                first + before * cg,
                                line.wrapping_offset((x0 + before as isize) * strides.w),
                                (end - before) * cg,
                                1,
                            );
                            to.fill(first + end * cg, *padding, (s.kw - end) * cg);
                            continue;
                        }
                        for kx in 0..s.kw {
                            let x = x0 + (kx * s.dilation[1]) as isize;
                            if x < 0 || x >= s.w as isize {
                                to.fill(first + kx * cg, *padding, cg);
                            } else {
                                to.copy(first + kx * cg, line.offset(x * strides.w), cg, strides.c);
                            }
                        }
                    }
                }
            }
        }
    }
}
