//! Splits reductions of few long rows, so that more than a few workgroups have something to do.
//!
//! ```text
//! reduce x[8, 200704] {mean, axes=[1]}     becomes     reduce (reduce (x as [8, 49, 4096]) {mean, axes=[2]}) {mean, axes=[1]}
//! reduce x[4096, 512] {max, axes=[0]}      becomes     reduce (reduce (x as [32, 128, 512]) {max, axes=[0]}) {max, axes=[0]}
//! ```
//!
//! A GPU's workgroup folds a row, and where there are fewer rows than compute units the others wait. Rows that are
//! contiguous are cut into neighbouring parts; of those that are apart, every so manieth element is a part, so that
//! what lies side by side is still read so.
//!
//! Normalisations of such rows, and of rows of which little lies side by side, are three steps: see [`norms`].
//!
//! Before: Core, laid out. After: the same numbers, summed in another order.

use ir::op::{Composite, Elementwise, ReduceOp, View};
use ir::{Dim, Graph, Op, Shape, Target, Value};

use crate::alone::{MARGIN, alone_us};
use crate::decompose::{as_shape, cast, wide};
use crate::error::PassFault;
use crate::options::OptimizeOptions;
use crate::rewrite::{Builder, Rule};
use crate::runner::Pass;

mod factors;
mod norms;
mod ordered;

/// The pass's name, and that of what it does.
pub const NAME: &str = "split_reductions";
/// Bytes of a part that are worth a workgroup.
const PART_BYTES: i64 = 8192;
/// Elements that a thread folds of a row which lies apart, at least.
const PART_ELEMENTS: i64 = 16;
/// Threads of a compute unit that keep memory busy.
const THREADS: i64 = 1024;

/// The pass.
pub const PASS: Pass = Pass {
    name: NAME,
    run: |graph, context| {
        let (target, folds) = (context.target, |op: &Op| {
            let norm = matches!(op, Op::Composite(Composite::LayerNorm { .. }));
            norm || matches!(op, Op::Reduce { .. } | Op::TopK { .. })
        });
        if !target.is_gpu() || !graph.nodes().values().any(|n| folds(&n.op)) {
            return Ok(graph.clone());
        }
        let mut b = Builder::new(graph, NAME).with_rules(one_reshape(context.options), context.options);
        let users = graph.users();
        for (id, node) in graph.nodes().iter() {
            b.origin = node.origin.clone();
            let values = match &node.op {
                Op::Reduce { op, axes, .. } => {
                    reduced(&mut b, graph, *op, axes, node.operands[0], target)?.map(|v| vec![v])
                }
                Op::TopK { axis, k, largest } => {
                    let x = b.value(node.operands[0]);
                    ordered::top_k(&mut b, x, *axis, k, *largest, target)?.map(|both| both.to_vec())
                }
                Op::Composite(Composite::LayerNorm { axis, epsilon }) => {
                    norms::layer_norm(&mut b, graph, &users, id, (*axis, epsilon.as_f64()), target)?.map(|v| vec![v])
                }
                _ => None,
            };
            let Some(mut values) = values else {
                b.copy(id)?;
                continue;
            };
            for (value, ty) in values.iter_mut().zip(&node.results) {
                *value = as_shape(&mut b, *value, &ty.shape)?;
            }
            b.note(NAME, vec![node.origin.clone()], None, None);
            b.set_all(id, &values);
        }
        Ok(b.finish(&mut context.fired))
    },
    required: false,
};

/// Returns the rules that make one reshape of several. Other rules would undo what the passes before decided, such as
/// the order of filters.
fn one_reshape(options: &OptimizeOptions) -> impl Iterator<Item = Rule> {
    let names = ["reshape_to_same", "reshape_of_reshape"];
    crate::simplify::enabled(options)
        .into_iter()
        .filter(move |rule| names.contains(&rule.name))
}

/// A reduction by parts, with the axes as they come; `None` where one launch serves.
fn reduced(
    b: &mut Builder<'_>,
    graph: &Graph,
    op: ReduceOp,
    axes: &[usize],
    x: Value,
    target: &Target,
) -> Result<Option<Value>, PassFault> {
    let (ReduceOp::ArgMax | ReduceOp::ArgMin, [axis]) = (op, axes) else {
        let Some(split) = Split::of(graph, op, axes, x, target) else {
            return Ok(None);
        };
        let x = b.value(x);
        return split.emit(b, op, x).map(Some);
    };
    let x = b.value(x);
    ordered::first(b, op, x, *axis, target)
}

/// How a reduction is two.
struct Split {
    /// The shape with an axis taken apart, and which of its axes the first and the second reduction fold.
    shape: Shape,
    first: Vec<usize>,
    second: Vec<usize>,
    /// How many results of the first one the second folds.
    parts: i64,
}

impl Split {
    fn of(graph: &Graph, op: ReduceOp, axes: &[usize], x: Value, target: &Target) -> Option<Split> {
        let ty = graph.ty(x);
        let is_float = ty.dtype.is_float();
        match op {
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min => {}
            ReduceOp::Mean if is_float => {}
            _ => return None,
        }
        let sizes: Vec<i64> = axes.iter().map(|a| ty.shape[*a].as_const()).collect::<Option<_>>()?;
        let n = sizes
            .iter()
            .try_fold(1i64, |n, s| n.checked_mul(*s))
            .filter(|n| *n > 0)?;
        let symbols = graph.symbols();
        let kept = (0..ty.rank()).filter(|a| !axes.contains(a));
        let rows = kept
            .map(|a| ty.shape[a].hint(symbols).max(1))
            .try_fold(1i64, i64::checked_mul)?;
        let units = i64::from(target.compute_units);
        if axes.contains(&innermost(graph, x)) {
            let bytes = n.checked_mul(i64::from(stored_bits(graph, x)) / 8)?;
            let one = alone_us(target, bytes as f64);
            let pays = |parts: i64| MARGIN * (target.launch_us + one / parts as f64) < one;
            let wanted = (4 * units / rows).min(bytes / PART_BYTES);
            return Split::into(&ty.shape, axes, &sizes, wanted, true).filter(|s| 2 * rows <= units && pays(s.parts));
        }
        // What a kernel that gives each thread a row leaves idle.
        let threads = units * THREADS;
        let wanted = (threads / rows).min(n / PART_ELEMENTS);
        let is_large = n.saturating_mul(rows) >= threads * PART_ELEMENTS;
        Split::into(&ty.shape, axes, &sizes, wanted, false).filter(|s| is_large && s.parts >= 4.min(wanted))
    }

    /// Takes whole axes, from the outermost on where rows are contiguous and from the innermost on elsewhere, and the
    /// largest divisor of the next one, as long as parts are no more than wanted; `None` where those are too few.
    fn into(shape: &Shape, axes: &[usize], sizes: &[i64], wanted: i64, contiguous: bool) -> Option<Split> {
        let mut parts = 1;
        let mut whole = Vec::new();
        let mut cut = None;
        let order: Vec<usize> = if contiguous {
            (0..axes.len()).collect()
        } else {
            (0..axes.len()).rev().collect()
        };
        for at in order {
            if parts * sizes[at] <= wanted {
                parts *= sizes[at];
                whole.push(axes[at]);
                continue;
            }
            let divisor = (2..=wanted / parts).rev().find(|d| sizes[at] % d == 0);
            cut = divisor.map(|d| (axes[at], d));
            parts *= divisor.unwrap_or(1);
            break;
        }
        if parts < 2 {
            return None;
        }
        let (mut dims, mut first, mut second) = (Vec::new(), Vec::new(), Vec::new());
        for (axis, dim) in shape.iter().enumerate() {
            let reduced = axes.iter().position(|a| *a == axis);
            match (reduced, cut) {
                (Some(at), Some((cut, d))) if cut == axis => {
                    let (outer, inner) = if contiguous {
                        (d, sizes[at] / d)
                    } else {
                        (sizes[at] / d, d)
                    };
                    let (kept, folded) = if contiguous { (0, 1) } else { (1, 0) };
                    second.push(dims.len() + kept);
                    first.push(dims.len() + folded);
                    dims.extend([Dim::Const(outer), Dim::Const(inner)]);
                }
                (Some(_), _) => {
                    let list = if whole.contains(&axis) { &mut second } else { &mut first };
                    list.push(dims.len());
                    dims.push(dim.clone());
                }
                (None, _) => dims.push(dim.clone()),
            }
        }
        (!first.is_empty()).then_some(Split {
            shape: Shape(dims),
            first,
            second,
            parts,
        })
    }

    fn emit(&self, b: &mut Builder<'_>, op: ReduceOp, x: Value) -> Result<Value, PassFault> {
        let dtype = b.ty(x).dtype;
        // Parts are as exact as sums within a kernel are.
        let adds = matches!(op, ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Prod);
        let x = if adds && dtype.is_float() {
            cast(b, x, wide(dtype))?
        } else {
            x
        };
        let mut value = as_shape(b, x, &self.shape)?;
        for axes in [&self.first, &self.second] {
            let op = Op::Reduce {
                op,
                axes: axes.clone(),
                keep_dims: true,
            };
            // Rules would make one of the two.
            value = b.plain(&op, &[value])?.into();
        }
        cast(b, value, dtype)
    }
}

/// The axis along which neighbouring elements lie side by side, as far as views of what is stored tell.
fn innermost(graph: &Graph, mut x: Value) -> usize {
    let last = graph.ty(x).rank().saturating_sub(1);
    loop {
        let node = graph.node(x.node);
        match &node.op {
            // Of what is broadcast there is little to read.
            Op::Elementwise(_) => {
                let shape = &node.results[0].shape;
                let Some(operand) = node.operands.iter().find(|v| graph.ty(**v).shape == *shape) else {
                    return last;
                };
                x = *operand;
            }
            Op::View(View::Transpose(order)) => return order.iter().position(|from| *from == last).unwrap_or(last),
            _ => return last,
        }
    }
}

/// Bits of an element as it is stored, where it is only converted before it is folded.
fn stored_bits(graph: &Graph, mut x: Value) -> u32 {
    let mut bits = graph.ty(x).dtype.bits();
    while let Op::Elementwise(Elementwise::Cast(_)) = graph.node(x.node).op {
        x = graph.node(x.node).operands[0];
        bits = bits.min(graph.ty(x).dtype.bits());
    }
    bits.max(8)
}
