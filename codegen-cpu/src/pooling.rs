//! Pools of images: a window's body that says where its images lie.
//!
//! Here its sizes are bound. Windows with something fused in, of other types, or over more than two axes stay with the loops.

use ir::dim::{Bindings, Dim, DimError};
use ir::entity::Entity;
use ir::host::product::ImageStrides;
use ir::host::shapes::{Pool, PoolKind, PoolShape};
use ir::host::{LowerError, Setting};
use ir::kernel::{AxisId, ImageAccess, Kernel, WindowAxis, WindowBody};
use ir::op;
use ir::types::DType;

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

    /// Binds an axis's sizes; `None` where a window reaches what it is not guarded against, or where there is nothing to pool.
    /// `counts` says that what counts is bounded; else all that the windows reach does.
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

/// Takes a window's body whose images the kernels take at these sizes; `None` if they do not.
///
/// # Errors
/// A size that does not evaluate.
pub(crate) fn lower(kernel: &Kernel, body: &WindowBody, cx: &Setting<'_>) -> Result<Option<Pool>, LowerError> {
    let Some(images) = &body.images else { return Ok(None) };
    let bind = Bind {
        kernel,
        bindings: cx.bindings,
    };
    let (source, target) = (&kernel.params[images.source], &kernel.params[images.target]);
    let takes = match body.kind {
        op::PoolKind::Max => matches!(source.dtype, DType::F32 | DType::I8),
        op::PoolKind::Average { .. } => source.dtype == DType::F32,
    };
    if !takes || source.dtype != target.dtype || images.source == images.target || cx.aliased {
        return Ok(None);
    }
    let kind = match body.kind {
        op::PoolKind::Max => PoolKind::Max,
        op::PoolKind::Average { count_padding } => PoolKind::Average {
            include_pad: count_padding || !body.counts,
        },
    };
    let mut along = Vec::new();
    for axis in &body.along {
        let Some(bound) = Along::bind(axis, &bind, kind, body.counts)? else {
            return Ok(None);
        };
        along.push(bound);
    }
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
    let (from, to) = (strides(&images.from)?, strides(&images.to)?);
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
        || !inside(to, [n, y.outputs, x.outputs, c], target.count(cx.bindings)?)
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
        dst: images.target.index(),
        dst_base: to[0],
        dst_strides: image_strides(to),
    }))
}
