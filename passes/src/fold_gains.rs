//! Folds the gain of a norm into the weights of the products of few rows that read it: what is left of the norm is a
//! number a row.
//!
//! ```text
//! n = rms_norm x, g; y = contract n, w      becomes     n = rms_norm x; y = contract n, (g · w)
//! ```
//!
//! Casts between the two, and gains that are applied as products of their own, go too. Weights must be constant floats
//! that nothing else reads, and nothing but such products may read the norm. Before weights are stored in fewer bits
//! norms may still be spelled out: there any constant of the depth that rows are multiplied by is a gain. Weights are
//! multiplied in f32 and rounded once, as the normed rows were. Each column's largest weight must stay a normal number:
//! no weight then loses more than rounding takes of the largest.
//!
//! Before: Core, with the weights as kernels will read them. After: as many kernels as before; [`crate::row_scales`]
//! does without the norms where that pays. Layer norms stay: `x·W − μ·ΣW` loses in the difference what |μ| exceeds the
//! deviation by, and nothing bounds that.

use ir::entity::Entity;
use ir::op::{BinaryOp, Composite, Elementwise};
use ir::{DType, Graph, HostTensor, NodeId, Op, Scalar, Shape, Table, Target, Value};
use smallvec::SmallVec;

use crate::analysis::{cast_is_exact, use_counts};
use crate::error::PassFault;
use crate::fold::native;
use crate::quantize::recipe::LARGEST_GROUP;
use crate::quantize::recipe::weight_only::WeightType;
use crate::rewrite::Builder;
use crate::runner::{Context, Pass};

/// The pass's name, and that of what it does.
pub const NAME: &str = "fold_norm_gains";
/// Products with more rows are not row by row: their norms pay for themselves.
const MOST_ROWS: i64 = 16;
/// How many times the mean of the squares of a gain its largest square may be, among weights that will have a scale in
/// common: their rounding takes twice as much then, at most.
const MOST_UNEVEN: f64 = 4.0;
/// Elementwise nodes between a norm and a product that are followed.
const REACH: usize = 4;

/// The pass.
pub const PASS: Pass = Pass {
    name: NAME,
    run: |graph, context| match context.target.is_gpu() {
        true => fold(graph, context, NAME, None),
        false => Ok(graph.clone()),
    },
    required: false,
};

/// The name of the pass before weights are stored in fewer bits.
const WEIGHTS_NAME: &str = "fold_norm_gains_into_weights";

/// The same where weights are about to be stored in fewer bits: those take no gain later.
pub const WEIGHTS: Pass = Pass {
    name: WEIGHTS_NAME,
    run: |graph, context| match context.options.weights {
        // Types may be narrowed later: what f16 could not hold stays.
        Some(_) if context.target.is_gpu() => fold(graph, context, WEIGHTS_NAME, Some(DType::F16)),
        _ => Ok(graph.clone()),
    },
    required: false,
};

/// Folds the gains of norms into the weights that take them; `held_by` is the type that must hold those, if not their
/// own.
fn fold(
    graph: &Graph,
    context: &mut Context<'_>,
    pass: &'static str,
    held_by: Option<DType>,
) -> Result<Graph, PassFault> {
    let range = range(context.target);
    let range = |dtype| range(held_by.unwrap_or(dtype));
    let mut found = products(graph, &range, context.options.weights);
    if held_by.is_some() {
        found.extend(multiplied(graph, &range, context.options.weights));
    }
    if found.is_empty() {
        return Ok(graph.clone());
    }
    let mut b = Builder::new(graph, pass);
    for id in graph.nodes().keys() {
        b.origin = graph.node(id).origin.clone();
        match found.iter().find(|product| product.id == id) {
            Some(product) => rewrite(&mut b, product)?,
            None => b.copy(id)?,
        }
    }
    Ok(b.finish(&mut context.fired))
}

/// A product that reads a norm, or rows times a gain.
struct Normed {
    id: NodeId,
    /// The norm with its epsilon, or the gain's multiplication alone.
    by: (NodeId, Option<Scalar>),
    /// What those read, of a norm in the type that the product multiplies.
    x: Value,
    /// The right operand with the gain in it; `None` where there is no gain.
    weight: Option<HostTensor>,
}

/// The users of each node.
type Users = Table<NodeId, SmallVec<[(NodeId, u32); 2]>>;

/// The depth of few rows, whose number is known.
fn depth_of_few_rows(shape: &Shape) -> Option<usize> {
    let (depth, rows) = shape.split_last()?;
    let rows = rows.iter().cloned().product::<ir::Dim>().as_const()?;
    let depth = usize::try_from(depth.as_const()?).ok()?;
    (1..=MOST_ROWS).contains(&rows).then_some(depth)
}

/// Finds products of rows that are multiplied by a constant gain, which goes into their weights: all that read such
/// rows, or none.
fn multiplied(graph: &Graph, range: Range<'_>, weights: Option<WeightType>) -> Vec<Normed> {
    let (users, uses) = (graph.users(), use_counts(graph));
    let mut found: Vec<Normed> = Vec::new();
    for (by, node) in graph.nodes().iter() {
        let (Op::Elementwise(Elementwise::Binary(BinaryOp::Mul)), &[a, b]) = (&node.op, &node.operands[..]) else {
            continue;
        };
        let Some(depth) = depth_of_few_rows(&node.results[0].shape) else {
            continue;
        };
        let mut gain = vec![1.0; depth];
        let Some(x) = [(a, b), (b, a)]
            .into_iter()
            .find_map(|(x, g)| take_gain(graph, g, &mut gain).then_some(x))
        else {
            continue;
        };
        let mut readers = Vec::new();
        if *graph.ty(x) != node.results[0] || reached(graph, &users, by, gain, 0, &mut readers).is_none() {
            continue;
        }
        let restated = |(id, gain): (NodeId, Vec<f64>)| {
            let first = found.iter().all(|other| other.id != id);
            let weight = Some(gained_weight(graph, &uses, id, &gain, range, weights)?);
            let by = (by, None);
            first.then_some(Normed { id, by, x, weight })
        };
        let restated: Option<Vec<Normed>> = readers.into_iter().map(restated).collect();
        found.extend(restated.unwrap_or_default());
    }
    found
}

/// Finds the products whose norms' gains go into their weights: all that read a norm, or none.
fn products(graph: &Graph, range: Range<'_>, weights: Option<WeightType>) -> Vec<Normed> {
    let (users, uses) = (graph.users(), use_counts(graph));
    let mut found = Vec::new();
    for (norm, node) in graph.nodes().iter() {
        let Op::Composite(Composite::RmsNorm { axis, epsilon }) = &node.op else {
            continue;
        };
        let shape = &node.results[0].shape;
        let (true, Some(depth)) = (*axis + 1 == shape.rank(), depth_of_few_rows(shape)) else {
            continue;
        };
        let mut gain = vec![1.0; depth];
        if node.operands.get(1).is_some_and(|g| !take_gain(graph, *g, &mut gain)) {
            continue;
        }
        let mut readers = Vec::new();
        if reached(graph, &users, norm, gain, 0, &mut readers).is_none() {
            continue;
        }
        let normed = readers
            .into_iter()
            .map(|(id, gain)| product(graph, &uses, (norm, *epsilon), id, &gain, range, weights));
        let normed: Option<Vec<Normed>> = normed.collect();
        // What is in that form already stays.
        let bare = |p: &Normed| {
            p.weight.is_none() && graph.node(p.id).operands[0] == Value::from(norm) && node.operands.len() == 1
        };
        found.extend(normed.unwrap_or_default().into_iter().filter(|p| !bare(p)));
    }
    found
}

/// Multiplies a gain by a constant of the last axis; says whether it is one.
fn take_gain(graph: &Graph, by: Value, gain: &mut [f64]) -> bool {
    let Some(tensor) = graph.as_constant(by) else {
        return false;
    };
    let along = tensor.shape.last() == Some(&gain.len()) && tensor.elements() == gain.len();
    if !along || !tensor.dtype.is_float() {
        return false;
    }
    gain.iter_mut().zip(tensor.to_f64()).for_each(|(g, by)| *g *= by);
    true
}

/// Lists the products that read a norm or what casts and gains make of it, each with its gain; `None` where anything
/// else reads it.
fn reached(
    graph: &Graph,
    users: &Users,
    from: NodeId,
    gain: Vec<f64>,
    steps: usize,
    readers: &mut Vec<(NodeId, Vec<f64>)>,
) -> Option<()> {
    if steps > REACH || graph.outputs().iter().any(|o| o.value.node == from) {
        return None;
    }
    let shape = &graph.ty(from.into()).shape;
    for (user, position) in &users[from] {
        let node = graph.node(*user);
        let mut gain = gain.clone();
        match &node.op {
            Op::Contract(c) if *position == 0 && !c.transpose_lhs => {
                readers.push((*user, gain));
                continue;
            }
            Op::Elementwise(Elementwise::Cast(to)) if to.is_float() => {}
            Op::Elementwise(Elementwise::Binary(BinaryOp::Mul)) if node.results[0].shape == *shape => {
                let other = *node.operands.get(1 - (*position as usize).min(1))?;
                if !take_gain(graph, other, &mut gain) {
                    return None;
                }
            }
            _ => return None,
        }
        reached(graph, users, *user, gain, steps + 1, readers)?;
    }
    Some(())
}

/// Restates one product of a norm, if it can do without the gain.
fn product(
    graph: &Graph,
    uses: &[u32],
    (norm, epsilon): (NodeId, Scalar),
    id: NodeId,
    gain: &[f64],
    range: Range<'_>,
    weights: Option<WeightType>,
) -> Option<Normed> {
    let lhs = *graph.node(id).operands.first()?;
    let dtype = graph.ty(lhs).dtype;
    // The norm converts what it reads, which is exact where that is widened.
    let mut x = *graph.node(norm).operands.first()?;
    while let Op::Elementwise(Elementwise::Cast(to)) = graph.node(x.node).op
        && graph.ty(x).dtype != dtype
        && cast_is_exact(graph.ty(graph.node(x.node).operands[0]).dtype, to)
    {
        x = graph.node(x.node).operands[0];
    }
    if graph.ty(x) != graph.ty(lhs) || !is_multiplied(dtype) {
        return None;
    }
    let weight = match gain.iter().all(|g| *g == 1.0) {
        true => None,
        false => Some(gained_weight(graph, uses, id, gain, range, weights)?),
    };
    let by = (norm, Some(epsilon));
    Some(Normed { id, by, x, weight })
}

/// Says whether products multiply such floats.
fn is_multiplied(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
}

/// A product's right operand with the gain of its left in it, if that takes it.
fn gained_weight(
    graph: &Graph,
    uses: &[u32],
    id: NodeId,
    gain: &[f64],
    range: Range<'_>,
    weights: Option<WeightType>,
) -> Option<HostTensor> {
    let (Op::Contract(contract), &[lhs, rhs]) = (&graph.node(id).op, &graph.node(id).operands[..]) else {
        return None;
    };
    let dtype = graph.ty(lhs).dtype;
    let weight = graph.as_constant(rhs).filter(|_| uses[rhs.node.index()] == 1)?;
    let axis = usize::from(contract.transpose_rhs);
    let fits = weight.dtype == dtype && weight.shape.len() == 2 && weight.shape[axis] == gain.len();
    (fits && is_multiplied(dtype) && is_even(gain, weights)).then_some(())?;
    gained(weight, axis, gain, range(dtype))
}

/// Says whether a gain is even enough for weights that are about to be stored in fewer bits. What has a scale in common
/// is rounded to parts of its largest number: the error grows as the largest gain there does over the others (in the
/// mean of squares).
fn is_even(gain: &[f64], weights: Option<WeightType>) -> bool {
    let common = match weights {
        Some(WeightType::Int4) => LARGEST_GROUP,
        Some(WeightType::Int8) => gain.len(),
        // Floats are rounded each by itself.
        Some(WeightType::Fp8) | None => return true,
    };
    gain.chunks(common.max(1)).all(|group| {
        let (largest, sum) = group
            .iter()
            .map(|g| g * g)
            .fold((0.0_f64, 0.0), |(most, sum), g| (most.max(g), sum + g));
        largest * group.len() as f64 <= MOST_UNEVEN * sum
    })
}

/// Of a type, the least that the largest weight of a column may be, and what rounds to infinity.
type Range<'a> = &'a dyn Fn(DType) -> (f32, f32);

/// Returns what holds weights on a target: the least is a normal number, so that a weight loses no more than rounding
/// takes of the largest. Where subnormal numbers are taken for 0, what is lost is less than a 256th of that.
fn range(target: &Target) -> impl Fn(DType) -> (f32, f32) {
    let shift = if target.flushes_subnormals { 256.0 } else { 1.0 };
    move |dtype| match dtype {
        DType::F16 => (f32::exp2(-14.0) * shift, 65520.0),
        DType::BF16 => (f32::MIN_POSITIVE * shift, 3.396e38),
        _ => (f32::MIN_POSITIVE, f32::INFINITY),
    }
}

/// Weights times the gain along an axis of two; `None` where a column would leave the range.
fn gained(weight: &HostTensor, axis: usize, gain: &[f64], (least, end): (f32, f32)) -> Option<HostTensor> {
    let factors: Vec<f32> = gain.iter().map(|g| *g as f32).collect();
    let largest = native::largest_scaled(weight, axis, &factors)?;
    let holds = |v: &f32| *v == 0.0 || (least..end).contains(v);
    largest
        .iter()
        .all(holds)
        .then(|| native::scaled(weight, axis, &factors))?
}

fn rewrite(b: &mut Builder<'_>, product: &Normed) -> Result<(), PassFault> {
    let graph = b.old;
    let (by, epsilon) = product.by;
    let (node, by) = (graph.node(product.id), graph.node(by));
    let x = b.value(product.x);
    let (axis, dtype) = (b.ty(x).rank() - 1, graph.ty(node.operands[0]).dtype);
    b.origin = by.origin.clone();
    let rows = match epsilon {
        Some(epsilon) => b.emit(Op::Composite(Composite::RmsNorm { axis, epsilon }), &[x])?,
        None if b.ty(x).dtype == dtype => x,
        None => b.emit(Op::Elementwise(Elementwise::Cast(dtype)), &[x])?,
    };
    b.origin = node.origin.clone();
    let weight = match &product.weight {
        Some(weight) => b.constant(weight.clone()),
        None => b.value(node.operands[1]),
    };
    let value = b.emit(node.op.clone(), &[rows, weight])?;
    b.note(NAME, vec![by.origin.clone(), node.origin.clone()], None, None);
    b.set(product.id, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use ir::graph::eval::evaluate;
    use ir::op::Composite;
    use ir::{Graph, Op, Target};

    use crate::testing::{graph, inputs, optimized};
    use crate::{OptimizeOptions, ScheduleOptions, WeightType, schedule};

    /// How many norms a graph has, and how many of them have a gain.
    fn norms(graph: &Graph) -> (usize, usize) {
        let of = |least: usize| {
            let nodes = graph.nodes().values();
            let is_norm = |op: &Op| matches!(op, Op::Composite(Composite::RmsNorm { .. }));
            nodes.filter(|n| is_norm(&n.op) && n.operands.len() >= least).count()
        };
        (of(1), of(2))
    }

    /// Regions of the schedule of a target.
    fn regions(graph: &Graph, target: &Target) -> usize {
        let (schedule, _) = schedule(graph, target, &ScheduleOptions::default()).expect("schedules");
        schedule.regions.len()
    }

    #[test]
    fn gains_go_into_weights_that_nothing_else_reads() {
        let before = "x = input \"x\" : f32[2, 64]\ng = constant random(seed=3) : f32[64]\nw = constant random(seed=4) : f32[32, 64]\n\
                      n = rms_norm x, g {axis=1, epsilon=0.001}\n";
        for (rest, gains, alone) in [
            ("y = contract n, w {transpose_rhs}", 0, 1),
            (
                "p = contract n, w {transpose_rhs}\nq = contract x, w {transpose_rhs}\ny = add p, q",
                1,
                2,
            ),
            (
                "p = contract n, w {transpose_rhs}\nm = reduce n {op=sum, axes=[1], keep_dims}\ny = add p, m",
                1,
                2,
            ),
        ] {
            let text = format!("{before}{rest}\nreturn y as \"y\"");
            let target: Target = "gfx942".parse().expect("known");
            let (after, _) = optimized(&graph(&text), "gfx942", OptimizeOptions::default());
            assert_eq!(norms(&after), (1, gains), "{after}");
            assert_eq!(regions(&after, &target) == 1, alone == 1, "{after}");
            let (kept, _) = optimized(&graph(&text), "cpu", OptimizeOptions::default());
            assert_eq!(norms(&kept), (1, 1), "{kept}");
        }
    }

    #[test]
    fn gains_go_into_weights_before_those_are_stored_in_four_bits() {
        let spelled = "s = mul x, x\nm = reduce s {op=mean, axes=[1], keep_dims}\ne = constant [0.001] : f32[]\nv = add m, e\n\
                       r = rsqrt v\nh = mul x, r\nn = mul h, g";
        let even = "g = constant random(seed=3) : f32[256]";
        // The largest square is 256 times the mean.
        let uneven =
            "a = constant random(seed=3, scale=0.01) : f32[255]\nb = constant [1.0] : f32[1]\ng = concat a, b {axis=0}";
        for (gain, norm, gains) in [
            (even, "n = rms_norm x, g {axis=1, epsilon=0.001}", 0),
            (even, spelled, 0),
            (uneven, "n = rms_norm x, g {axis=1, epsilon=0.001}", 1),
        ] {
            let text = format!(
                "x = input \"x\" : f32[1, 256]\n{gain}\nw = constant random(seed=4) : f32[64, 256]\n{norm}\n\
                 y = contract n, w {{transpose_rhs}}\nreturn y as \"y\""
            );
            let (before, target) = (graph(&text), "gfx942".parse::<Target>().expect("known"));
            let options = OptimizeOptions {
                weights: Some(WeightType::Int4),
                verify: true,
                ..OptimizeOptions::default()
            };
            let (after, _) = crate::optimize(before.clone(), &target, &options).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(norms(&after), (1, gains), "{after}");
            assert_eq!(regions(&after, &target), 1 + gains, "{after}");
            let inputs = inputs(&before);
            let [want, got] = [&before, &after].map(|g| evaluate(g, &inputs).expect("evaluates")["y"].to_f64());
            let square = |v: f64| v * v;
            let error: f64 = want.iter().zip(&got).map(|(a, b)| square(a - b)).sum();
            let size: f64 = want.iter().copied().map(square).sum();
            // Four bits in groups of 128 leave a tenth of a uniform weight's spread.
            assert!(error < 0.02 * size, "{error} of {size}");
        }
    }
}
