//! Normalises few long rows, or rows of which little lies side by side, in three steps that all units share.
//!
//! ```text
//! y = layer_norm (x [n, h, w, c] in memory, as [n, g, h·w·c/g])      becomes, with s = a pixel of each part,
//! a, q   = sums over a part's pixels of (x − s) and (x − s)²         [n, parts, c, 2]
//! mean   = mean over parts and c/g of (s + a/pixels)                 [n, g]
//! scale  = rsqrt(Σ (q − a²/pixels + pixels · (s + a/pixels − mean)²) / (h·w·c/g) + ε)
//! y      = (x − mean) · scale
//! ```
//!
//! Sums of squares that are taken from an element of the part itself lose at most as many digits as the part's length
//! has, whatever the numbers; parts are merged as Chan, Golub and LeVeque (Updating formulae and a pairwise algorithm,
//! 1979) merge theirs.

use ir::op::{BinaryOp, ReduceOp, UnaryOp, View};
use ir::{DType, Dim, Graph, NodeId, Op, Shape, Table, Target, Value};
use smallvec::SmallVec;

use super::factors::{Factors, order};
use super::{PART_BYTES, PART_ELEMENTS, Split, THREADS, stored_bits};
use crate::alone::{MARGIN, alone_us};
use crate::decompose::norms::affine;
use crate::decompose::{as_shape, binary, cast, unary, wide, with_scalar};
use crate::error::PassFault;
use crate::rewrite::Builder;

/// The readers of each node, with which operand of theirs it is.
pub(super) type Users = Table<NodeId, SmallVec<[(NodeId, u32); 2]>>;

/// How often a row that no registers hold is read, about: for two statistics and the results, with what is computed
/// between.
const READS: f64 = 6.0;
/// Bytes of a row that a workgroup holds in registers.
const HELD_BYTES: i64 = 16384;
/// Elements of a contiguous part, at most: the digits that a sum of squares loses are those of this.
const LONGEST_PART: i64 = 4096;
/// Sums of parts that one workgroup merges, at most.
const MERGED: i64 = 2048;
/// Launches of the three steps: the sums, two that merge parts, and the results.
const LAUNCHES: f64 = 4.0;

/// A layer normalisation in steps; `None` where one kernel serves.
pub(super) fn layer_norm(
    b: &mut Builder<'_>,
    graph: &Graph,
    users: &Users,
    id: NodeId,
    (axis, epsilon): (usize, f64),
    target: &Target,
) -> Result<Option<Value>, PassFault> {
    let node = graph.node(id);
    let x = node.operands[0];
    let Some(rows) = Rows::of(graph, x, axis) else {
        return Ok(None);
    };
    let is_turned = is_turned(graph, users, id, &rows.factors);
    if rows.one_kernel_serves(target, is_turned) {
        return Ok(None);
    }
    let steps = rows.steps(target);
    let ty = graph.ty(x).clone();
    let value = rows.emit(b, &steps, epsilon)?;
    let view = b.emit(Op::View(View::Transpose(rows.factors.memory_positions())), &[value])?;
    let y = as_shape(b, view, &ty.shape)?;
    let operand = |at: usize| node.operands.get(at).map(|v| b.value(*v));
    let (scale, bias) = (operand(1), operand(2));
    let y = affine(b, y, scale, bias)?;
    cast(b, y, ty.dtype).map(Some)
}

/// Says whether what is made of a normalisation's results point by point is stored in an order in which others are
/// neighbours than those that it reads side by side.
fn is_turned(graph: &Graph, users: &Users, id: NodeId, factors: &Factors) -> bool {
    let mut at = id;
    let mut factors = factors.clone();
    loop {
        let shape = &graph.ty(at.into()).shape;
        let next = users[at]
            .iter()
            .map(|(user, _)| *user)
            .find(|user| match &graph.node(*user).op {
                Op::Elementwise(_) => graph.ty((*user).into()).shape == *shape,
                op => matches!(op, Op::View(View::Transpose(_) | View::Reshape(_))),
            });
        let Some(user) = next else { break };
        if let Op::View(view) = &graph.node(user).op {
            match factors.through(view, &graph.ty(user.into()).shape) {
                Some(seen) => factors = seen,
                None => return false,
            }
        }
        at = user;
    }
    !factors.ends_alike()
}

/// The rows of a normalisation as they lie in memory.
struct Rows {
    /// What is normalised, below views of it.
    base: Value,
    dtype: DType,
    /// The axes of `base` from the outermost in memory to the innermost.
    order: Vec<usize>,
    factors: Factors,
    /// The factors' sizes in the order of memory.
    shape: Shape,
    /// Which axes of the shape are normalised, and their sizes.
    folded: Vec<usize>,
    sizes: Vec<i64>,
    /// The last axis that is not normalised, if one is not.
    last_kept: Option<usize>,
    rows: i64,
    length: i64,
    bytes: i64,
}

impl Rows {
    fn of(graph: &Graph, x: Value, axis: usize) -> Option<Rows> {
        let mut views = Vec::new();
        let mut base = x;
        while let Op::View(view @ (View::Transpose(_) | View::Reshape(_))) = &graph.node(base.node).op {
            views.push((view, &graph.ty(base).shape));
            base = graph.node(base.node).operands[0];
        }
        let order = order(graph, base);
        let start = Factors::new(&graph.ty(base).shape, &order);
        let factors = views
            .into_iter()
            .rev()
            .try_fold(start, |factors, (view, shape)| factors.through(view, shape))?;
        let shape = factors.in_memory();
        let is_folded = factors.in_axes_from(axis);
        let folded: Vec<usize> = (0..shape.rank()).filter(|d| is_folded[*d]).collect();
        let sizes: Vec<i64> = folded.iter().map(|d| shape[*d].as_const()).collect::<Option<_>>()?;
        let length = sizes
            .iter()
            .try_fold(1i64, |n, s| n.checked_mul(*s))
            .filter(|n| *n > 1)?;
        let kept = (0..shape.rank()).filter(|d| !is_folded[*d]);
        let rows = kept
            .clone()
            .map(|d| shape[d].hint(graph.symbols()).max(1))
            .try_fold(1i64, i64::checked_mul)?;
        length.checked_mul(rows)?.checked_mul(16)?;
        Some(Rows {
            base,
            dtype: graph.ty(x).dtype,
            order,
            last_kept: kept.max(),
            factors,
            shape,
            folded,
            sizes,
            rows,
            length,
            bytes: i64::from(stored_bits(graph, base)) / 8,
        })
    }

    /// Elements of a row that lie side by side.
    fn run(&self) -> i64 {
        let sizes = self.folded.iter().zip(&self.sizes);
        sizes
            .filter(|(axis, _)| self.last_kept.is_none_or(|last| **axis > last))
            .map(|(_, size)| size)
            .product()
    }

    /// Says whether lanes read what is normalised side by side; else they read what is not.
    fn is_contiguous(&self) -> bool {
        self.run() * self.bytes >= 256 || self.run() == self.length
    }

    /// Says whether a kernel that gives a workgroup to each row is about as fast as the steps. One whose results are
    /// turned, so that neighbours of a row are stored apart, gives memory half a line for each.
    fn one_kernel_serves(&self, target: &Target, is_turned: bool) -> bool {
        let row = self.length * self.bytes;
        if row <= HELD_BYTES {
            return true;
        }
        // Of a run that is shorter than what memory gives at once, half a line, the rest is read in vain.
        let in_vain = (f64::from(target.line_bytes / 2) / (self.run() * self.bytes) as f64).max(1.0);
        // A few workgroups are at work in each unit.
        let rounds = (self.rows as f64 / (4.0 * f64::from(target.compute_units))).max(1.0);
        let stored = if is_turned {
            self.length * i64::from(target.line_bytes / 2)
        } else {
            0
        };
        let one = (READS * alone_us(target, row as f64 * in_vain) + alone_us(target, stored as f64)) * rounds;
        let bytes_per_us = target.memory_tbps * 1e6;
        let total = (self.rows * row) as f64;
        let steps = LAUNCHES * target.launch_us + 3.0 * total / bytes_per_us;
        one < MARGIN * steps + target.launch_us
    }

    /// Which axes the first step folds by parts, and how.
    fn steps(&self, target: &Target) -> Split {
        let units = i64::from(target.compute_units);
        let first = |axis: &usize| self.is_contiguous() || self.last_kept.is_some_and(|last| *axis < last);
        let (axes, sizes): (Vec<usize>, Vec<i64>) = self
            .folded
            .iter()
            .zip(&self.sizes)
            .filter(|(axis, _)| first(axis))
            .map(|(axis, size)| (*axis, *size))
            .unzip();
        let length: i64 = sizes.iter().product();
        let wanted = if self.is_contiguous() {
            (4 * units / self.rows)
                .min(self.length * self.bytes / PART_BYTES)
                .max(self.length / LONGEST_PART)
        } else {
            // A thread a column of a part, and parts that a workgroup merges at once.
            let columns = self.rows * self.length / length;
            let merged = (MERGED / self.run()).max(units.min(64));
            (2 * units * THREADS / columns).min(length / PART_ELEMENTS).min(merged)
        };
        let mut split = Split::into(&self.shape, &axes, &sizes, wanted.max(1), true).unwrap_or_else(|| Split {
            shape: self.shape.clone(),
            first: axes.clone(),
            second: Vec::new(),
            parts: 1,
        });
        // What the first step leaves of a row.
        let more = split.shape.rank() - self.shape.rank();
        let left = self.folded.iter().filter(|axis| !axes.contains(axis));
        split.second.extend(left.map(|axis| axis + more));
        split
    }

    fn emit(&self, b: &mut Builder<'_>, steps: &Split, epsilon: f64) -> Result<Value, PassFault> {
        let of_wide = wide(self.dtype);
        let whole = self.in_memory(b)?;
        let whole = cast(b, whole, of_wide)?;
        let x = as_shape(b, whole, &steps.shape)?;
        let of_first = |axis: usize| steps.first.contains(&axis);
        let pixels: f64 = steps
            .first
            .iter()
            .filter_map(|d| steps.shape[*d].as_const())
            .product::<i64>() as f64;
        // One element of each part.
        let sizes = |axis: usize| {
            if of_first(axis) {
                Dim::from(1)
            } else {
                steps.shape[axis].clone()
            }
        };
        let left: Shape = (0..steps.shape.rank()).map(sizes).collect();
        let view = View::Slice {
            starts: vec![Dim::from(0); left.rank()],
            sizes: left.0.clone(),
            steps: vec![1; left.rank()],
        };
        let start = b.emit(Op::View(view), &[x])?;
        let (sum, squares) = sums(b, x, start, steps, &left)?;
        let mean = with_scalar(b, BinaryOp::Mul, sum, 1.0 / pixels)?;
        let lost = binary(b, BinaryOp::Mul, sum, mean)?;
        let squares = binary(b, BinaryOp::Sub, squares, lost)?;
        let zero = b.scalar(of_wide, 0.0);
        let squares = binary(b, BinaryOp::Max, squares, zero)?;
        let of_part = binary(b, BinaryOp::Add, start, mean)?;
        let (mean, squares) = if steps.second.is_empty() {
            (of_part, squares)
        } else {
            // Of the parts' sums, and not of their means, which the other launch computes: one launch would have to
            // store those for both.
            let before = with_scalar(b, BinaryOp::Mul, start, pixels)?;
            let total = binary(b, BinaryOp::Add, before, sum)?;
            let total = reduce(b, ReduceOp::Sum, total, steps.second.clone())?;
            let mean = with_scalar(b, BinaryOp::Mul, total, 1.0 / self.length as f64)?;
            let apart = binary(b, BinaryOp::Sub, of_part, mean)?;
            let between = binary(b, BinaryOp::Mul, apart, apart)?;
            let between = with_scalar(b, BinaryOp::Mul, between, pixels)?;
            let squares = binary(b, BinaryOp::Add, squares, between)?;
            (mean, reduce(b, ReduceOp::Sum, squares, steps.second.clone())?)
        };
        let variance = with_scalar(b, BinaryOp::Mul, squares, 1.0 / self.length as f64)?;
        let shifted = with_scalar(b, BinaryOp::Add, variance, epsilon)?;
        let scale = unary(b, UnaryOp::Rsqrt, shifted)?;
        let kept = |axis: usize| {
            if self.folded.contains(&axis) {
                Dim::from(1)
            } else {
                self.shape[axis].clone()
            }
        };
        let kept: Shape = (0..self.shape.rank()).map(kept).collect();
        let (mean, scale) = (as_shape(b, mean, &kept)?, as_shape(b, scale, &kept)?);
        let centred = binary(b, BinaryOp::Sub, whole, mean)?;
        binary(b, BinaryOp::Mul, centred, scale)
    }

    /// The value with its factors as axes, in the order of memory.
    fn in_memory(&self, b: &mut Builder<'_>) -> Result<Value, PassFault> {
        let base = b.value(self.base);
        let is_in_order = self.order.is_sorted();
        let base = match is_in_order {
            true => base,
            false => b.emit(Op::View(View::Transpose(self.order.clone())), &[base])?,
        };
        as_shape(b, base, &self.shape)
    }
}

/// A reduction that stays one: rules would make one of two that follow each other.
fn reduce(b: &mut Builder<'_>, op: ReduceOp, x: Value, axes: Vec<usize>) -> Result<Value, PassFault> {
    let keep_dims = true;
    b.plain(&Op::Reduce { op, axes, keep_dims }, &[x]).map(Value::from)
}

/// The sums of `x − start` and of its square over the axes of the first step, in one reduction of both.
fn sums(b: &mut Builder<'_>, x: Value, start: Value, steps: &Split, left: &Shape) -> Result<(Value, Value), PassFault> {
    let apart = binary(b, BinaryOp::Sub, x, start)?;
    let square = binary(b, BinaryOp::Mul, apart, apart)?;
    // Behind the axes that stay, so that lanes fold neighbours, or lanes are neighbours of what stays.
    let at = (0..steps.shape.rank())
        .rev()
        .find(|axis| !steps.first.contains(axis))
        .map_or(0, |axis| axis + 1);
    let with_one = |shape: &Shape| {
        let mut dims = shape.0.clone();
        dims.insert(at, Dim::from(1));
        Shape(dims)
    };
    let single = with_one(&steps.shape);
    let apart = as_shape(b, apart, &single)?;
    let square = as_shape(b, square, &single)?;
    let both = b.emit(Op::View(View::Concat { axis: at }), &[apart, square])?;
    let axes = steps
        .first
        .iter()
        .map(|axis| if *axis >= at { axis + 1 } else { *axis })
        .collect();
    let both = reduce(b, ReduceOp::Sum, both, axes)?;
    let mut part = |which: i64| {
        let mut starts = vec![Dim::from(0); left.rank() + 1];
        starts[at] = Dim::from(which);
        let view = View::Slice {
            starts,
            sizes: with_one(left).0,
            steps: vec![1; left.rank() + 1],
        };
        let one = b.emit(Op::View(view), &[both])?;
        as_shape(b, one, left)
    };
    Ok((part(0)?, part(1)?))
}

#[cfg(test)]
mod tests {
    use ir::HostTensor;
    use ir::graph::eval::evaluate;

    use super::super::NAME;
    use crate::testing::{graph, optimized};
    use crate::{OptLevel, OptimizeOptions};

    /// Whether a graph's normalisation becomes steps; its numbers stay in any case.
    fn is_split(body: &str) -> bool {
        ["gfx90a", "gfx1100", "sm_90"].map(|target| {
            let (after, report) = optimized(&graph(body), target, OptimizeOptions::at(OptLevel::O2));
            let kept = after.nodes().values().any(|node| node.op.name() == "layer_norm");
            assert_eq!(kept, !report.fired.iter().any(|fired| fired.used(NAME)), "{after}");
            !kept
        }) == [true; 3]
    }

    #[test]
    fn groups_of_channels_that_lie_last() {
        // Three channels a group, an odd number of pixels, open batches.
        for (batch, height, channels, groups) in [("2", 61, 48, 16), ("b", 96, 40, 40), ("1", 90, 64, 1)] {
            let length = height * 80 * channels / groups;
            let head = if batch == "b" { "  symbol b: 1..8 hint 2\n" } else { "" };
            let body = format!(
                "{head}  x = input \"x\" : f32[{batch}, {height}, 80, {channels}]
  s = constant random(seed=3) : f32[{channels}, 1, 1]
  t = transpose x {{perm=[0, 3, 1, 2]}}
  r = reshape t : f32[{batch}, {groups}, {length}]
  n = layer_norm r {{axis=2, epsilon=1e-5}}
  u = reshape n : f32[{batch}, {channels}, {height}, 80]
  m = mul u, s
  y = transpose m {{perm=[0, 2, 3, 1]}}
  return y as \"y\""
            );
            assert!(is_split(&body), "{body}");
        }
    }

    #[test]
    fn rows_that_lie_side_by_side() {
        for shape in ["3, 150001", "2, 7, 60, 1024", "1, 99991"] {
            let rank = shape.split(',').count();
            let body = format!(
                "  x = input \"x\" : f32[{shape}]
  y = layer_norm x {{axis={}, epsilon=1e-5}}
  return y as \"y\"",
                rank - (rank / 2).max(1)
            );
            assert!(is_split(&body), "{body}");
        }
    }

    #[test]
    fn short_rows_and_many_are_one_kernel() {
        for shape in ["8192, 768", "64, 4096", "4, 16, 32"] {
            let axis = shape.split(',').count() - 1;
            let body = format!(
                "  x = input \"x\" : f16[{shape}]\n  y = layer_norm x {{axis={axis}, epsilon=1e-5}}\n  return y as \"y\""
            );
            assert!(!is_split(&body), "{body}");
        }
    }

    #[test]
    fn digits_stay_where_the_mean_is_far_from_zero() {
        let before = graph(
            "  x = input \"x\" : f32[1, 128, 128, 16]
  t = transpose x {perm=[0, 3, 1, 2]}
  r = reshape t : f32[1, 4, 65536]
  y = layer_norm r {axis=2, epsilon=1e-5}
  return y as \"y\"",
        );
        let (after, _) = optimized(&before, "gfx90a", OptimizeOptions::at(OptLevel::O2));
        // A mean of 4,096 deviations; a row of one number; one number that is far from all others, and is the first.
        let numbers: Vec<f64> = (0..128 * 128 * 16)
            .map(|i: i32| match i % 16 / 4 {
                0 => 4096.0 + f64::from(i / 16 * 37 % 64) / 16.0 - 2.0,
                1 => 7.0,
                2 if i < 16 => 3e4,
                _ => f64::from(i / 16 * 37 % 64) / 16.0,
            })
            .collect();
        let x = HostTensor::from_f64(ir::DType::F32, [1, 128, 128, 16], &numbers).unwrap();
        let inputs = [("x".to_owned(), x)].into_iter().collect();
        let (want, got) = (evaluate(&before, &inputs).unwrap(), evaluate(&after, &inputs).unwrap());
        for (got, want) in got["y"].to_f64().iter().zip(want["y"].to_f64()) {
            assert!((got - want).abs() <= 2e-4 * (1.0 + want.abs()), "{got}, {want}");
        }
    }
}
