//! Sums and maxima over the positions of images whose channels lie last, as one pool of each image.
//!
//! ```text
//! v[n, c] = sum over p of x[n, p, c];   out[n, c] = f(v[n, c])
//! =>  pooled[n, c] = a pool of all of image n;   out[n, c] = f(pooled[n, c])
//! ```
//!
//! Before: the means of squeeze-and-excite blocks and of classifiers' heads. As loops they go through memory a row of
//! channels at a time, with the sums in memory too, and one block of channels is one thread's. The pool keeps sums in
//! registers, and threads share the channels. Sums have the same order.

use std::collections::HashMap;

use ir::entity::Entity;
use ir::host::product::ImageStrides;
use ir::host::shapes::{Pool, PoolKind, PoolShape};
use ir::host::{Affine, LowerError, Piece, Setting};
use ir::kernel::{Access, AxisId, Expr, Stmt};
use ir::op::ReduceOp;
use ir::types::DType;

use crate::affine::{Space, collapse};
use crate::hoist::replaced;
use crate::places;
use crate::rewrite::Rewritten;

/// So many channels are worth a kernel of vectors.
const CHANNELS: i64 = 8;
/// A fold of fewer elements goes as loops.
const SHORTEST: i64 = 8;
/// A longer one is cut into pieces, so that threads share it.
const LONGEST: i64 = 4096;
/// The most that a size or a stride may be: their products fit 64 bits.
const SMALL: i64 = 1 << 30;

/// Lowers one such fold and what is computed of it, and says whether these statements are one.
///
/// # Errors
/// As for kernels of loops.
pub(crate) fn lower(
    rewritten: &mut Rewritten,
    parallel: &[AxisId],
    stmts: &[Stmt],
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<bool, LowerError> {
    let [Stmt::Fold { var, op, value, axes }, rest @ ..] = stmts else {
        return Ok(false);
    };
    let kernel = &rewritten.kernel;
    let kind = match op {
        ReduceOp::Sum => PoolKind::Sum,
        ReduceOp::Max => PoolKind::Max,
        _ => return Ok(false),
    };
    let plain = rest.iter().all(|stmt| match stmt {
        Stmt::Let { .. } => true,
        Stmt::Store { axes, .. } => axes.is_empty(),
        Stmt::Fold { .. } | Stmt::Update { .. } => false,
    });
    let Expr::Load { param: source, index } = kernel.exprs[*value] else {
        return Ok(false);
    };
    let f32s = kernel.params[source].dtype == DType::F32 && kernel.vars[*var] == DType::F32;
    if !plain || !f32s {
        return Ok(false);
    }
    let mut space = Space::new(kernel, cx.bindings)?;
    let (mut points, mut own) = (Space::dims(parallel), Space::dims(axes));
    space.split(&[index], &mut [&mut points, &mut own], &[]);
    let mut roots = space.roots(&[index]);
    let mut extents = space.extents.clone();
    let count = kernel.params[source].count(cx.bindings)?;
    collapse(&mut extents, &mut [&mut points, &mut own], &mut roots);
    let Some(form) = roots.get(&index) else {
        return Ok(false);
    };
    let Some(shape) = Image::of(form, &extents, [&points, &own], count) else {
        return Ok(false);
    };
    let (result, dtype) = (Expr::Var(*var), kernel.vars[*var]);
    let (pooled, at) = rewritten.temporary("pooled", dtype, parallel, cx.bindings)?;
    pieces.push(Piece::Pool(Box::new(shape.pool(kind, source.index(), pooled.index()))));
    rewritten.kernel.params[pooled].access = Access::Read;
    let load = rewritten.load(pooled, at);
    let var = rewritten.kernel.exprs.add(result, dtype);
    let mut instead = HashMap::from([(var, load)]);
    let mut rest = rest.to_vec();
    for stmt in &mut rest {
        if let Stmt::Let { value, .. } | Stmt::Store { value, .. } = stmt {
            *value = replaced(rewritten, *value, &mut instead);
        }
    }
    places::lower(rewritten, parallel, &rest, cx, pieces)?;
    Ok(true)
}

/// Images of rows of pixels of channels side by side, and where the results are.
struct Image {
    base: i64,
    /// Images, rows, pixels of a row, channels; and the step of each.
    sizes: [i64; 4],
    steps: [i64; 4],
    /// The steps of images and of channels in the results.
    results: [i64; 2],
}

impl Image {
    fn of(form: &Affine, extents: &[i64], [points, own]: [&[usize]; 2], elements: i64) -> Option<Image> {
        let step = |dim: &usize| form.get(*dim);
        let channel = *points.iter().find(|dim| step(dim) == 1)?;
        let mut images = points.iter().filter(|dim| **dim != channel);
        let (image, more) = (images.next(), images.next());
        let [rows, columns] = match own {
            [columns] => [None, Some(columns)],
            [rows, columns] => [Some(rows), Some(columns)],
            _ => return None,
        };
        let size = |dim: Option<&usize>| dim.map_or(1, |dim| extents[*dim]);
        let from = |dim: Option<&usize>| dim.map_or(0, step);
        let sizes = [size(image), size(rows), size(columns), extents[channel]];
        let steps = [from(image), from(rows), from(columns), 1];
        // The results lie in the order of the points.
        let place = |dim: usize| {
            let at = points.iter().position(|d| *d == dim)?;
            points[at + 1..]
                .iter()
                .map(|d| extents[*d])
                .try_fold(1i64, i64::checked_mul)
        };
        let results = [image.map_or(Some(0), |dim| place(*dim))?, place(channel)?];
        let small = sizes.iter().all(|size| (1..=SMALL).contains(size))
            && steps
                .iter()
                .chain(&results)
                .chain([&form.base])
                .all(|v| (0..=SMALL).contains(v));
        if !small {
            return None;
        }
        let last = sizes
            .iter()
            .zip(&steps)
            .fold(i128::from(form.base), |last, (size, step)| {
                last + i128::from(*step) * i128::from(size - 1)
            });
        let worth = sizes[3] >= CHANNELS && results[1] == 1 && (SHORTEST..=LONGEST).contains(&(sizes[1] * sizes[2]));
        (more.is_none() && worth && last < i128::from(elements)).then_some(Image {
            base: form.base,
            sizes,
            steps,
            results,
        })
    }

    fn pool(&self, kind: PoolKind, src: usize, dst: usize) -> Pool {
        let strides = |[n, h, w, c]: [i64; 4]| ImageStrides {
            n: n as isize,
            h: h as isize,
            w: w as isize,
            c: c as isize,
        };
        let [image, channel] = self.results;
        Pool {
            bytes: false,
            kind,
            shape: PoolShape::whole(self.sizes.map(|size| size as usize)),
            src,
            src_base: self.base,
            src_strides: strides(self.steps),
            dst,
            dst_base: 0,
            dst_strides: strides([image, 0, 0, channel]),
        }
    }
}
