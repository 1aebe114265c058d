//! Pools of images: a window's body that says where its images lie.
//!
//! Here its sizes are bound. A window over three axes is folded over two of them into a temporary, then over the third.
//! What is fused behind a window reads its results from a temporary, in the order in which its elements lie. Windows of
//! other types, of elements that are computed, or over more axes stay with the loops.

use std::collections::HashMap;

use ir::dim::{Bindings, Dim, DimError};
use ir::entity::Entity;
use ir::host::product::ImageStrides;
use ir::host::shapes::{Pool, PoolKind, PoolShape};
use ir::host::{LowerError, Piece, Setting, Temporary};
use ir::kernel::{
    Access, AxisId, Expr, ImageAccess, ImageTarget, Kernel, Stmt, VarId, WindowAxis, WindowBody, WindowImages,
};
use ir::op;
use ir::types::DType;

use crate::affine::reachable;
use crate::hoist::replaced;
use crate::rewrite::Rewritten;
use crate::{loops, places};

/// The most that sizes and strides of a pool may be: their products fit 64 bits.
const SMALL: u64 = 1 << 30;

/// The sizes of a window along an axis.
#[derive(Clone, Copy)]
struct Along {
    outputs: i64,
    taps: i64,
    stride: i64,
    dilation: i64,
    pad: [i64; 2],
    size: i64,
}

impl Along {
    /// An axis of one output and one tap.
    const ONE: Along = Along {
        outputs: 1,
        taps: 1,
        stride: 1,
        dilation: 1,
        pad: [0, 0],
        size: 1,
    };

    /// Binds an axis's sizes; `None` where a window reaches what it is not guarded against, or where there is nothing
    /// to pool. `counts` says that what counts is bounded; else all that the windows reach does.
    fn bind(axis: &WindowAxis, bind: &Bind<'_>, kind: PoolKind, counts: bool) -> Result<Option<Along>, DimError> {
        let mut along = Along {
            outputs: bind.extent(axis.outputs)?,
            taps: bind.extent(axis.taps)?,
            stride: axis.stride,
            dilation: axis.dilation,
            pad: [axis.pad_low, axis.pad_high],
            size: bind.size(&axis.size)?,
        };
        let [low, high] = along.pad;
        let sizes = [along.outputs, along.taps, along.stride, along.dilation, along.size];
        let fits = sizes.iter().all(|v| (1..=SMALL as i64).contains(v))
            && along.pad.iter().all(|v| (0..=SMALL as i64).contains(v));
        if !fits {
            return Ok(None);
        }
        let reached = (along.outputs - 1) * along.stride + (along.taps - 1) * along.dilation + 1 - low - along.size;
        let guarded = (low == 0 || axis.guarded[0]) && (reached <= 0 || axis.guarded[1]);
        let padding_counts = kind == PoolKind::Average { include_pad: true };
        if padding_counts && !counts {
            along.pad[1] = reached.max(0);
        }
        let counted = !padding_counts || !counts || axis.beyond || reached <= high;
        Ok((guarded && counted).then_some(along))
    }
}

/// Sizes of a kernel.
struct Bind<'a> {
    kernel: &'a Kernel,
    bindings: &'a Bindings,
}

impl Bind<'_> {
    fn size(&self, size: &Dim) -> Result<i64, DimError> {
        size.eval(self.bindings)
    }

    fn extent(&self, axis: Option<AxisId>) -> Result<i64, DimError> {
        axis.map_or(Ok(1), |a| self.size(&self.kernel.axes[a].extent))
    }
}

/// Takes a window's body whose images the kernels take at these sizes, and adds the pieces; says no if they do not.
///
/// # Errors
/// A size that does not evaluate.
pub(crate) fn lower(
    rewritten: &mut Rewritten,
    body: &WindowBody,
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<bool, LowerError> {
    let Some(images) = &body.images else {
        return Ok(false);
    };
    let mut trial = rewritten.clone();
    let (target, behind) = match &images.target {
        // A pool reads elements after it wrote results.
        Some(_) if cx.aliased => return Ok(false),
        Some(target) => (target.clone(), None),
        None => match into_temporary(&mut trial, body, images, cx)? {
            Some((target, stmts)) => (target, Some(stmts)),
            None => return Ok(false),
        },
    };
    let found = match body.along.len() {
        3 => volume(&mut trial, body, &target, cx)?.map(Vec::from),
        _ => image(&trial.kernel, body, &target, cx)?.map(|pool| vec![pool]),
    };
    let Some(found) = found else { return Ok(false) };
    *rewritten = trial;
    pieces.extend(found.into_iter().map(|pool| Piece::Pool(Box::new(pool))));
    if let Some(stmts) = behind {
        let parallel = &body.loops.parallel;
        rewritten.kernel.params[target.param].access = Access::Read;
        places::lower(rewritten, parallel, &stmts, cx, pieces)?;
    }
    Ok(true)
}

/// A temporary for what is pooled, and the statements that make more of that; `None` where they read what a window
/// folds otherwise.
fn into_temporary(
    rewritten: &mut Rewritten,
    body: &WindowBody,
    images: &WindowImages,
    cx: &Setting<'_>,
) -> Result<Option<(ImageTarget, Vec<Stmt>)>, LowerError> {
    let outputs = body.along.iter().zip(&images.from.along);
    let outputs = outputs.filter_map(|(axis, step)| Some((axis.outputs?, step)));
    let image = images.image.map(|axis| (axis, &images.from.image));
    let channel = images.channel.map(|axis| (axis, &images.from.channel));
    let mut axes = Vec::new();
    for (axis, step) in image.into_iter().chain(outputs).chain(channel) {
        axes.push((step.eval(cx.bindings)?, axis));
    }
    // As the elements lie: a pool is made of lines of both.
    axes.sort_by_key(|(step, _)| std::cmp::Reverse(*step));
    let axes: Vec<AxisId> = axes.into_iter().map(|(_, axis)| axis).collect();
    let dtype = rewritten.kernel.exprs.dtype(images.pooled);
    let (param, index) = rewritten.temporary("pooled", dtype, &axes, cx.bindings)?;
    let extents = axes.iter().map(|axis| &rewritten.kernel.axes[*axis].extent);
    let extents = extents
        .map(|extent| extent.eval(cx.bindings))
        .collect::<Result<Vec<i64>, _>>()?;
    let step = |of: Option<AxisId>| {
        let at = axes.iter().position(|axis| Some(*axis) == of);
        Dim::Const(at.map_or(0, |at| {
            extents[at + 1..].iter().fold(1, |n: i64, e| n.saturating_mul(*e))
        }))
    };
    let at = ImageAccess {
        base: Dim::Const(0),
        image: step(images.image),
        channel: step(images.channel),
        along: body.along.iter().map(|a| step(a.outputs)).collect(),
    };
    let load = rewritten.load(param, index);
    let mut instead = HashMap::from([(images.pooled, load)]);
    let mut stmts = body.loops.stmts.clone();
    stmts.retain(|stmt| !matches!(stmt, Stmt::Fold { .. }));
    for stmt in &mut stmts {
        if let Stmt::Let { value, .. } | Stmt::Store { value, .. } = stmt {
            *value = replaced(rewritten, *value, &mut instead);
        }
    }
    let folded = |var: &VarId| {
        let mut folds = body.loops.stmts.iter();
        folds.any(|stmt| matches!(stmt, Stmt::Fold { var: v, .. } if v == var))
    };
    let kernel = &rewritten.kernel;
    let left = reachable(kernel, &loops::stmt_exprs(&stmts));
    let reads_folds = left
        .into_iter()
        .any(|e| matches!(&kernel.exprs[e], Expr::Var(var) if folded(var)));
    Ok((!reads_folds).then_some((ImageTarget { param, at }, stmts)))
}

/// Windows over one or two axes.
fn image(kernel: &Kernel, body: &WindowBody, to: &ImageTarget, cx: &Setting<'_>) -> Result<Option<Pool>, LowerError> {
    let (Some(images), Some(pool)) = (&body.images, body.pool()) else {
        return Ok(None);
    };
    let bind = Bind {
        kernel,
        bindings: cx.bindings,
    };
    let (source, target) = (&kernel.params[images.source], &kernel.params[to.param]);
    let takes = match pool {
        op::PoolKind::Max => matches!(source.dtype, DType::F32 | DType::I8),
        op::PoolKind::Average { .. } => source.dtype == DType::F32,
    };
    if !takes || source.dtype != target.dtype || images.source == to.param {
        return Ok(None);
    }
    let kind = kind_of(body, pool);
    let Some(along) = along(body, &bind, kind)? else {
        return Ok(None);
    };
    let [y, x] = match *along.as_slice() {
        [x] => [Along::ONE, x],
        [y, x] => [y, x],
        _ => return Ok(None),
    };
    let (n, c) = (bind.extent(images.image)?, bind.extent(images.channel)?);
    let strides = |access: &ImageAccess| -> Result<[i64; 5], DimError> {
        let steps = access
            .along
            .iter()
            .map(|d| bind.size(d))
            .collect::<Result<Vec<_>, _>>()?;
        let (h, w) = match *steps.as_slice() {
            [w] => (0, w),
            [h, w, ..] => (h, w),
            [] => (0, 0),
        };
        Ok([
            bind.size(&access.base)?,
            bind.size(&access.image)?,
            h,
            w,
            bind.size(&access.channel)?,
        ])
    };
    let (from, target_strides) = (strides(&images.from)?, strides(&to.at)?);
    // Everything that a window may touch must be in its buffer.
    let inside = |access: [i64; 5], extents: [i64; 4], elements: i64| {
        let small = access.iter().chain(&extents).all(|v| (0..=SMALL as i64).contains(v));
        let last = access[1..]
            .iter()
            .zip(extents)
            .fold(i128::from(access[0]), |last, (step, n)| {
                last + i128::from(*step) * i128::from(n - 1)
            });
        small && extents.iter().all(|n| *n > 0) && last < i128::from(elements)
    };
    if !inside(from, [n, y.size, x.size, c], source.count(cx.bindings)?)
        || !inside(target_strides, [n, y.outputs, x.outputs, c], target.count(cx.bindings)?)
    {
        return Ok(None);
    }
    // None is negative, as was just seen.
    let size = |v: i64| v as usize;
    let image_strides = |access: [i64; 5]| ImageStrides {
        n: access[1] as isize,
        h: access[2] as isize,
        w: access[3] as isize,
        c: access[4] as isize,
    };
    Ok(Some(Pool {
        bytes: source.dtype == DType::I8,
        kind,
        shape: PoolShape {
            n: size(n),
            h: size(y.size),
            w: size(x.size),
            c: size(c),
            kh: size(y.taps),
            kw: size(x.taps),
            stride: [size(y.stride), size(x.stride)],
            pad: [size(y.pad[0]), size(x.pad[0]), size(y.pad[1]), size(x.pad[1])],
            dilation: [size(y.dilation), size(x.dilation)],
            out_h: size(y.outputs),
            out_w: size(x.outputs),
        },
        src: images.source.index(),
        src_base: from[0],
        src_strides: image_strides(from),
        dst: to.param.index(),
        dst_base: target_strides[0],
        dst_strides: image_strides(target_strides),
    }))
}

fn kind_of(body: &WindowBody, pool: op::PoolKind) -> PoolKind {
    match pool {
        op::PoolKind::Max => PoolKind::Max,
        op::PoolKind::Average { count_padding } => PoolKind::Average {
            include_pad: count_padding || !body.counts,
        },
    }
}

fn along(body: &WindowBody, bind: &Bind<'_>, kind: PoolKind) -> Result<Option<Vec<Along>>, DimError> {
    let mut along = Vec::new();
    for axis in &body.along {
        let Some(bound) = Along::bind(axis, bind, kind, body.counts)? else {
            return Ok(None);
        };
        along.push(bound);
    }
    Ok(Some(along))
}

/// Where a volume lies: its first element, then the steps of images, the three axes and channels.
#[derive(Clone, Copy)]
struct Volume {
    base: i64,
    image: i64,
    along: [i64; 3],
    channel: i64,
}

impl Volume {
    fn bind(access: &ImageAccess, bind: &Bind<'_>) -> Result<Option<Volume>, DimError> {
        let steps = access.along.iter().map(|d| bind.size(d));
        let Ok(along) = <[i64; 3]>::try_from(steps.collect::<Result<Vec<_>, _>>()?) else {
            return Ok(None);
        };
        let volume = Volume {
            base: bind.size(&access.base)?,
            image: bind.size(&access.image)?,
            along,
            channel: bind.size(&access.channel)?,
        };
        let mut steps = along.iter().chain([&volume.base, &volume.image, &volume.channel]);
        Ok(steps.all(|v| (0..=SMALL as i64).contains(v)).then_some(volume))
    }

    /// Says whether all elements of the extents are among so many.
    fn inside(&self, n: i64, sizes: [i64; 3], c: i64, elements: i64) -> bool {
        let [z, y, x] = self.along;
        let steps = [
            (self.image, n),
            (z, sizes[0]),
            (y, sizes[1]),
            (x, sizes[2]),
            (self.channel, c),
        ];
        let last = (steps.iter()).fold(i128::from(self.base), |last, (step, size)| {
            last + i128::from(*step) * i128::from(size - 1)
        });
        steps.iter().all(|(_, size)| (1..=SMALL as i64).contains(size)) && last < i128::from(elements)
    }
}

fn strides([n, h, w, c]: [i64; 4]) -> ImageStrides {
    ImageStrides {
        n: n as isize,
        h: h as isize,
        w: w as isize,
        c: c as isize,
    }
}

/// A window over three axes: over the last two of each slice, then over the first of what that gives. The largest of
/// the largest is the largest, and the average of averages of equal counts is the average.
fn volume(
    rewritten: &mut Rewritten,
    body: &WindowBody,
    result: &ImageTarget,
    cx: &Setting<'_>,
) -> Result<Option<[Pool; 2]>, LowerError> {
    let kernel = &rewritten.kernel;
    let (Some(images), Some(pool)) = (&body.images, body.pool()) else {
        return Ok(None);
    };
    let bind = Bind {
        kernel,
        bindings: cx.bindings,
    };
    let (source, target) = (&kernel.params[images.source], &kernel.params[result.param]);
    if source.dtype != DType::F32 || target.dtype != DType::F32 || images.source == result.param {
        return Ok(None);
    }
    let kind = kind_of(body, pool);
    let Some(Ok([z, y, x])) = along(body, &bind, kind)?.map(<[Along; 3]>::try_from) else {
        return Ok(None);
    };
    let (n, c) = (bind.extent(images.image)?, bind.extent(images.channel)?);
    let (Some(from), Some(to)) = (Volume::bind(&images.from, &bind)?, Volume::bind(&result.at, &bind)?) else {
        return Ok(None);
    };
    let (sizes, outputs) = ([z.size, y.size, x.size], [z.outputs, y.outputs, x.outputs]);
    if !from.inside(n, sizes, c, source.count(cx.bindings)?) || !to.inside(n, outputs, c, target.count(cx.bindings)?) {
        return Ok(None);
    }
    let plane = y.outputs * x.outputs;
    let dense = to.along[1] == x.outputs * to.along[2];
    // Slices are channels of their own where channels come first, images where they come last.
    let planar = from.along[2] == 1 && to.along[2] == 1 && (c == 1 || from.channel == z.size * from.along[0]);
    let last = from.channel == 1 && to.channel == 1 && (n == 1 || from.image == z.size * from.along[0]);
    let [_, from_y, from_x] = from.along;
    let (slices, slice_strides, between, held) = match (dense, planar, last) {
        (true, true, _) => (
            [n, c * z.size],
            strides([from.image, from_y, from_x, from.along[0]]),
            strides([c * z.size * plane, x.outputs, 1, plane]),
            strides([c * z.size * plane, plane, 1, z.size * plane]),
        ),
        (true, _, true) => (
            [n * z.size, c],
            strides([from.along[0], from_y, from_x, 1]),
            strides([plane * c, x.outputs * c, c, 1]),
            strides([z.size * plane * c, plane * c, c, 1]),
        ),
        _ => return Ok(None),
    };
    let elements = [n, c, z.size, plane]
        .iter()
        .try_fold(1i64, |all, size| all.checked_mul(*size));
    let bytes = elements.and_then(|all| usize::try_from(all).ok()?.checked_mul(4));
    let Some(bytes) = bytes.filter(|bytes| *bytes <= MOST_BYTES) else {
        return Ok(None);
    };
    let (source, target) = (images.source.index(), result.param.index());
    let param = rewritten.bytes(Temporary::Bytes(bytes));
    let flat = Along {
        outputs: plane,
        size: plane,
        ..Along::ONE
    };
    let pool =
        |[n, c]: [i64; 2], [h, w]: [Along; 2], src: (usize, i64, ImageStrides), dst: (usize, i64, ImageStrides)| Pool {
            bytes: false,
            kind,
            shape: PoolShape {
                n: n as usize,
                h: h.size as usize,
                w: w.size as usize,
                c: c as usize,
                kh: h.taps as usize,
                kw: w.taps as usize,
                stride: [h.stride as usize, w.stride as usize],
                pad: [h.pad[0], w.pad[0], h.pad[1], w.pad[1]].map(|pad| pad as usize),
                dilation: [h.dilation as usize, w.dilation as usize],
                out_h: h.outputs as usize,
                out_w: w.outputs as usize,
            },
            src: src.0,
            src_base: src.1,
            src_strides: src.2,
            dst: dst.0,
            dst_base: dst.1,
            dst_strides: dst.2,
        };
    let results = strides([to.image, to.along[0], to.along[2], to.channel]);
    Ok(Some([
        pool(
            slices,
            [y, x],
            (source, from.base, slice_strides),
            (param.index(), 0, between),
        ),
        pool([n, c], [z, flat], (param.index(), 0, held), (target, to.base, results)),
    ]))
}

/// The most bytes of slices that are held between the two.
const MOST_BYTES: usize = 1 << 40;
