//! Strided copies: concatenations, slices and transposes that are one load and one store, moved without registers
//! between.
//!
//! A copy's body says where its elements are; here its sizes are bound. Runs of neighbours go as memory moves; where
//! source and destination are dense along different dims, tiles of both keep cache lines whole.

use ir::dim::Dim;
use ir::entity::Entity;
use ir::host::shapes::{Copy, Inner, Step};
use ir::host::{LowerError, Setting};
use ir::kernel::{CopyBody, Kernel};

/// The most that sizes and strides of a copy may be: their products fit 64 bits.
const SMALL: u64 = 1 << 40;

/// Takes a copy's body whose elements lie in runs or tiles at these sizes; `None` where blocks of lanes are faster.
///
/// # Errors
/// A size that does not evaluate.
pub(crate) fn lower(kernel: &Kernel, body: &CopyBody, cx: &Setting<'_>) -> Result<Option<Copy>, LowerError> {
    let (source, target) = (&kernel.params[body.source], &kernel.params[body.target]);
    let bits = target.dtype.bits();
    if cx.aliased || body.source == body.target || bits < 8 || source.dtype.bits() != bits {
        return Ok(None);
    }
    let size = |size: &Dim| size.eval(cx.bindings);
    // Extent, source and destination strides; outermost first.
    let mut dims: Vec<[i64; 3]> = Vec::new();
    for (axis, step) in body.loops.parallel.iter().zip(&body.steps) {
        let inner = [
            size(&kernel.axes[*axis].extent)?,
            size(&step.source)?,
            size(&step.target)?,
        ];
        if inner[0] < 1 || inner.iter().any(|v| v.unsigned_abs() > SMALL) {
            return Ok(None);
        }
        match dims.last_mut() {
            _ if inner[0] == 1 => {}
            // Neighbours that step through both as one.
            Some(outer)
                if [1, 2]
                    .iter()
                    .all(|i| i128::from(outer[*i]) == i128::from(inner[*i]) * i128::from(inner[0])) =>
            {
                *outer = [outer[0].saturating_mul(inner[0]), inner[1], inner[2]];
            }
            _ => dims.push(inner),
        }
    }
    // Everything that is read and written must be in its buffer.
    let inside = |base: i64, of: usize, elements: i64| {
        let (mut low, mut high) = (i128::from(base), i128::from(base));
        for dim in &dims {
            let span = i128::from(dim[of]) * i128::from(dim[0] - 1);
            if span < 0 { low += span } else { high += span }
        }
        low >= 0 && high < i128::from(elements)
    };
    let (from, to) = (size(&body.from)?, size(&body.to)?);
    let fits = inside(from, 1, source.count(cx.bindings)?) && inside(to, 2, target.count(cx.bindings)?);
    // Every point has an element of its own, so that tasks may take any of them: strides cover all below them.
    dims.sort_by_key(|dim| dim[2]);
    let mut covered = 0i128;
    let apart = dims.iter().all(|dim| {
        let stride = i128::from(dim[2]);
        let is_apart = stride > covered;
        covered += stride * i128::from(dim[0] - 1);
        is_apart
    });
    if !fits || !apart || dims.first().is_none_or(|row| row[2] != 1) {
        return Ok(None);
    }
    // None is negative, or beyond its buffer, as was just seen.
    let step = |dim: [i64; 3]| Step {
        extent: dim[0] as usize,
        src: dim[1] as isize,
        dst: dim[2] as isize,
    };
    let row = dims.remove(0);
    let column = dims.iter().position(|dim| dim[1] == 1);
    let inner = match (row[1], column) {
        (1, _) => Inner::Run(row[0] as usize),
        // Blocks of lanes are faster over short rows (an image's three channels).
        (_, Some(column)) if row[0] >= 8 => Inner::Tile(step(row), step(dims.remove(column))),
        _ => return Ok(None),
    };
    // Short runs cost more a byte than blocks of lanes do.
    let unit = bits as usize / 8;
    if matches!(inner, Inner::Run(n) if n * unit < 32) {
        return Ok(None);
    }
    let outer: Vec<Step> = dims.into_iter().rev().map(step).collect();
    Ok(Some(Copy {
        src: (body.source.index(), from),
        dst: (body.target.index(), to),
        unit,
        outer,
        inner,
    }))
}
