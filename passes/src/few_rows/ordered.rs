//! The first of few long rows: parts of a row have their own first elements, and those of the row are among them.
//!
//! ```text
//! top_k x[1, 128256] {k=50}       becomes     v, i = top_k (x as [1, 256, 501]) {k=50}
//!                                             w, p = top_k (v as [1, 12800]) {k=50};  take (i + 501 · part) as [1, 12800] at p
//! reduce x[1, 128256] {argmax}    becomes     the same of each part's largest element
//! ```
//!
//! Parts are in the order of the row, so that of equal elements the first is still first.

use ir::op::{BinaryOp, Gather, ReduceOp};
use ir::{DType, Dim, Graph, HostTensor, Op, Shape, Target, Value};

use crate::alone::alone_us;
use crate::decompose::{as_shape, binary};
use crate::error::PassFault;
use crate::rewrite::Builder;

/// Elements of a part that is sorted by one workgroup, about.
const SORTED: i64 = 512;
/// Rows up to this are sorted at once.
const AT_ONCE: i64 = 1024;
/// Elements of a part whose largest one workgroup finds, about.
const SEARCHED: i64 = 4096;

/// How many elements each part of a row of `n` has: the divisor that is nearest to `about` and has at least `least`.
/// `None` where a row is not worth parts, or nothing divides it well.
fn part(n: i64, about: i64, least: i64) -> Option<i64> {
    let mut nearest: Option<(f64, i64)> = None;
    for d in (1..).take_while(|d| d * d <= n).filter(|d| n % d == 0) {
        for size in [d, n / d].into_iter().filter(|s| *s >= least && *s <= 8 * about) {
            let off = (size as f64 / about as f64).ln().abs();
            if nearest.is_none_or(|(least, _)| off < least) {
                nearest = Some((off, size));
            }
        }
    }
    nearest.map(|(_, size)| size).filter(|size| 2 * size <= n)
}

/// Says whether units are left idle by a workgroup a row.
fn few(graph: &Graph, shape: &Shape, axis: usize, target: &Target) -> bool {
    let others = shape.iter().enumerate().filter(|(at, _)| *at != axis);
    let rows = others.fold(1i64, |n, (_, d)| n.saturating_mul(d.hint(graph.symbols()).max(1)));
    rows <= i64::from(target.compute_units)
}

/// A `TopK` by parts: its values and indices; `None` where the row is sorted at once.
pub(super) fn top_k(
    b: &mut Builder<'_>,
    x: Value,
    axis: usize,
    k: &Dim,
    largest: bool,
    target: &Target,
) -> Result<Option<[Value; 2]>, PassFault> {
    let shape = b.ty(x).shape.clone();
    let (Some(n), Some(count)) = (shape[axis].as_const(), k.as_const()) else {
        return Ok(None);
    };
    if n <= AT_ONCE || !few(b.graph(), &shape, axis, target) {
        return Ok(None);
    }
    let Some(size) = part(n, SORTED, (4 * count).max(64)) else {
        return Ok(None);
    };
    let parts = Parts::new(&shape, axis, n / size, size);
    let op = Op::TopK {
        axis: axis + 1,
        k: k.clone(),
        largest,
    };
    let apart = as_shape(b, x, &parts.apart)?;
    let node = b.plain(&op, &[apart])?;
    let together = parts.joined(count);
    let values = as_shape(b, Value::new(node, 0), &together)?;
    let indices = parts.of_the_row(b, Value::new(node, 1))?;
    let indices = as_shape(b, indices, &together)?;
    // The candidates may be many themselves.
    let [values, places] = match top_k(b, values, axis, k, largest, target)? {
        Some(found) => found,
        None => {
            let op = Op::TopK {
                axis,
                k: k.clone(),
                largest,
            };
            let node = b.plain(&op, &[values])?;
            [Value::new(node, 0), Value::new(node, 1)]
        }
    };
    let indices = b.emit(Op::Gather(Gather::Elements { axis }), &[indices, places])?;
    Ok(Some([values, indices]))
}

/// An `ArgMax` or `ArgMin` by parts, with the axis kept as 1; `None` where one workgroup serves the row.
pub(super) fn first(
    b: &mut Builder<'_>,
    op: ReduceOp,
    x: Value,
    axis: usize,
    target: &Target,
) -> Result<Option<Value>, PassFault> {
    let of_values = match op {
        ReduceOp::ArgMax => ReduceOp::Max,
        ReduceOp::ArgMin => ReduceOp::Min,
        _ => return Ok(None),
    };
    let shape = b.ty(x).shape.clone();
    let Some(n) = shape[axis].as_const() else {
        return Ok(None);
    };
    // Four launches more, and the row is read twice.
    let pays = alone_us(target, n as f64 * f64::from(b.ty(x).dtype.bits().max(8)) / 8.0) > 4.0 * target.launch_us;
    if !pays || !few(b.graph(), &shape, axis, target) {
        return Ok(None);
    }
    let Some(size) = part(n, SEARCHED, 256) else {
        return Ok(None);
    };
    let parts = Parts::new(&shape, axis, n / size, size);
    let apart = as_shape(b, x, &parts.apart)?;
    let fold = |b: &mut Builder<'_>, op, x, axis| {
        let keep_dims = true;
        b.emit(
            Op::Reduce {
                op,
                axes: vec![axis],
                keep_dims,
            },
            &[x],
        )
    };
    let together = parts.joined(1);
    let values = fold(b, of_values, apart, axis + 1)?;
    let values = as_shape(b, values, &together)?;
    let indices = fold(b, op, apart, axis + 1)?;
    let indices = parts.of_the_row(b, indices)?;
    let indices = as_shape(b, indices, &together)?;
    let place = fold(b, op, values, axis)?;
    b.emit(Op::Gather(Gather::Elements { axis }), &[indices, place])
        .map(Some)
}

/// A row's axis as parts and the elements of each.
struct Parts {
    axis: usize,
    count: i64,
    size: i64,
    apart: Shape,
}

impl Parts {
    fn new(shape: &Shape, axis: usize, count: i64, size: i64) -> Parts {
        let mut dims = shape.0.clone();
        dims.splice(axis..=axis, [Dim::Const(count), Dim::Const(size)]);
        Parts {
            axis,
            count,
            size,
            apart: Shape(dims),
        }
    }

    /// The shape of `each` elements of all parts as one row.
    fn joined(&self, each: i64) -> Shape {
        let mut dims = self.apart.0.clone();
        dims.splice(self.axis..=self.axis + 1, [Dim::Const(self.count * each)]);
        Shape(dims)
    }

    /// Indices within parts as indices of the row.
    fn of_the_row(&self, b: &mut Builder<'_>, indices: Value) -> Result<Value, PassFault> {
        let starts: Vec<i64> = (0..self.count).map(|part| part * self.size).collect();
        let mut dims = vec![1; b.ty(indices).rank()];
        dims[self.axis] = starts.len();
        let starts = HostTensor::from_i64(DType::I64, dims, &starts).map_err(|e| PassFault::Verify(e.to_string()))?;
        let starts = b.constant(starts);
        binary(b, BinaryOp::Add, indices, starts)
    }
}
