//! Products and convolutions of 8-bit integers by constants, with what follows them.
//!
//! Before: a contraction of `i8` in `i32`, at one set of sizes. After: rows of the left operand copied as they are
//! multiplied, packed weights, and the epilogue taken apart ([`crate::stages`]). One that floats do not serve runs as
//! loops over a temporary of sums.

use indexmap::IndexSet;
use ir::entity::Entity;
use ir::host::product::{
    ConvShape, GivenMatrix, Image, ImageStrides, IntegerRows, IntegerWeights, Integers, TileDims, Tiles,
};
use ir::host::{Affine, LowerError, Piece, Setting};
use ir::kernel::{ContractBody, ConvFacts, Expr, ExprId, Kernel, Stmt};
use ir::op::Layout;
use ir::types::DType;

use crate::affine::{Roots, Space, collapse};
use crate::block::compile::Source;
use crate::hoist::hoist;
use crate::rewrite::{Rewritten, store};
use crate::stages::{epilogue_exprs, take};
use crate::{conv, loops};

/// The most entries of one launch: each has its positions in a table.
const MOST_ENTRIES: usize = 1 << 20;

/// The most bytes that a run packs.
const MOST_PACKED: usize = 1 << 40;

/// Lowers a product of integers; says no where the kernels do not take it.
///
/// # Errors
/// As for kernels of loops.
pub(crate) fn lower(
    rewritten: &mut Rewritten,
    body: &ContractBody,
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<bool, LowerError> {
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
    pieces.push(loops::piece(&rewritten.kernel, &axes, &stmts, cx.bindings, true)?);
    Ok(true)
}

fn product(
    rewritten: &mut Rewritten,
    body: &ContractBody,
    epilogue: &[Stmt],
    cx: &Setting<'_>,
) -> Result<Option<Integers>, LowerError> {
    match &body.conv {
        Some(facts) => image(&rewritten.kernel, body, facts, epilogue, cx),
        None => {
            let Some(mut product) = matrix(&rewritten.kernel, body, epilogue, cx)? else {
                return Ok(None);
            };
            if let IntegerWeights::Given { matrix, starts, to, .. } = &mut product.right {
                *to = rewritten.packed(*matrix, starts.len()).index();
            }
            Ok(Some(product))
        }
    }
}

/// A convolution, by its facts.
fn image(
    kernel: &Kernel,
    body: &ContractBody,
    facts: &ConvFacts,
    epilogue: &[Stmt],
    cx: &Setting<'_>,
) -> Result<Option<Integers>, LowerError> {
    let Some(mut shape) = conv::shape(facts, cx)?.filter(|_| !facts.transposed) else {
        return Ok(None);
    };
    let Some((_, tensor)) = cx.constant(facts.filter.index()) else {
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
    if facts.layout == Layout::ChannelsLast {
        images_as_one(&mut shape, &mut dims, &mut extents, &mut roots);
    }
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
    let each = cg == 1 && og == 1 && strides.c == 1;
    let total = extents.len();
    // Groups of pixels are one product, of which panels of the right operand leave out what other groups have.
    let together = each || taps == 1 && og > 1;
    let groups = if together { 1 } else { shape.groups };
    let k = taps * shape.c / groups;
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
    let images = Image {
        shape,
        strides,
        padding,
    };
    let left = match each {
        true => IntegerRows::Depthwise(images),
        false => IntegerRows::Image(images),
    };
    let across = |dims: &[usize]| dims.iter().map(|d| (*d, extents[*d].max(1) as usize)).collect();
    let source = Source::new(&space, &roots, &extents, cx.bindings)?;
    let Some((added, finish)) = take(&source, epilogue, body.acc, tile)? else {
        return Ok(None);
    };
    Ok(Some(Integers {
        entries,
        m,
        k,
        left,
        input: facts.input.index(),
        filter: facts.filter.index(),
        right: IntegerWeights::Filters(facts.layout),
        columns: shape.o / groups,
        groups,
        added,
        finish,
        tiles: Tiles {
            dims: tile,
            space: total,
            positions,
        },
        across: across(&dims.filter),
    }))
}

/// Takes images whose windows are single pixels as one high image, where everything else of the kernel steps through
/// them as one.
fn images_as_one(shape: &mut ConvShape, dims: &mut conv::Dims, extents: &mut Vec<i64>, roots: &mut Roots) {
    let pixels = shape.kh * shape.kw == 1 && shape.stride == [1, 1] && shape.pad == [0; 4];
    if !pixels || shape.n < 2 || [shape.out_h, shape.out_w] != [shape.h, shape.w] {
        return;
    }
    let Some(height) = shape.h.checked_mul(shape.n) else {
        return;
    };
    let mut rows = [&dims.image[..], &dims.pixel[..]].concat();
    let (mut sizes, mut forms, mut filter) = (extents.clone(), roots.clone(), dims.filter.clone());
    collapse(&mut sizes, &mut [&mut rows, &mut filter], &mut forms);
    if rows.len() > 1 {
        return;
    }
    (*extents, *roots) = (sizes, forms);
    (dims.image, dims.pixel, dims.filter) = (Vec::new(), rows, filter);
    (shape.n, shape.h, shape.out_h) = (1, height, height);
}

/// A product of matrices.
fn matrix(
    kernel: &Kernel,
    body: &ContractBody,
    epilogue: &[Stmt],
    cx: &Setting<'_>,
) -> Result<Option<Integers>, LowerError> {
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
    let constant = cx.constant(right.index()).filter(|(_, t)| t.bytes.len() as i64 == held);
    let weights = match constant {
        Some(_) if shared => IntegerWeights::Matrix {
            n: nn,
            base: b.base,
            down,
            across,
        },
        _ => {
            let starts: Vec<i64> = match total {
                0 => vec![b.base],
                _ => positions.chunks_exact(total).map(|idx| b.at(idx)).collect(),
            };
            match given([kk, nn], [down, across], starts) {
                Some(given) => given,
                None => return Ok(None),
            }
        }
    };
    let m = extent(row);
    let left_rows = IntegerRows::Matrix {
        base: a.base,
        row: step(&a, row),
        step: step(&a, depth),
        table,
    };
    let across = |dims: &[usize]| dims.iter().map(|d| (*d, extents[*d].max(1) as usize)).collect();
    let source = Source::new(&space, &roots, &extents, cx.bindings)?;
    let Some((added, finish)) = take(&source, epilogue, body.acc, dims)? else {
        return Ok(None);
    };
    Ok(Some(Integers {
        entries,
        m,
        k: kk,
        left: left_rows,
        input: left.index(),
        filter: right.index(),
        right: weights,
        columns: nn,
        groups: 1,
        added,
        finish,
        tiles: Tiles {
            dims,
            space: total,
            positions,
        },
        across: across(&n),
    }))
}

/// A right operand that the run gives; `starts` are those of the entries. `None` where packing it would take too much.
fn given([k, n]: [usize; 2], [down, across]: [i64; 2], starts: Vec<i64>) -> Option<IntegerWeights> {
    let mut known = IndexSet::new();
    let of: Vec<usize> = starts.into_iter().map(|start| known.insert_full(start).0).collect();
    // Whatever the processor's panels are: 64 columns, rows of 64 bytes in words, a number a column.
    let bytes = n
        .checked_next_multiple_of(64)?
        .checked_mul(k.checked_next_multiple_of(64)?.checked_mul(2)?.checked_add(4)?)?
        .checked_mul(known.len())?;
    (bytes <= MOST_PACKED).then(|| IntegerWeights::Given {
        matrix: GivenMatrix {
            k,
            n,
            down: down as isize,
            across: across as isize,
        },
        starts: known.into_iter().collect(),
        of,
        to: 0,
    })
}
