//! Pointwise regions and scatter: bodies that are loops.

use std::collections::HashSet;

use ir::kernel::{Body, Loops, Stmt};
use ir::op::Scatter;
use ir::schedule::Region;
use ir::{DType, Dim, Graph, NodeId, Target, Value};

use super::LowerError;
use super::builder::Builder;
use super::index::Linear;
use crate::analysis::steps::counts_up;

/// Names of the axes of a tensor, outermost first.
pub(super) const AXES: [&str; 8] = ["i", "j", "k", "l", "m", "n", "o", "p"];

/// For each point of the result: its expression, stored, and what goes on with it.
pub fn pointwise(b: &mut Builder<'_>) -> Result<Body, LowerError> {
    let root = Value::from(b.region.anchor);
    let mut shape = b.shape(root).0.clone();
    if let Some(range) = b.range {
        shape[range.axis] = range.to.clone() - &range.from;
    }
    let (parallel, mut coords) = b.iterate(&AXES, &shape);
    if let Some(range) = b.range {
        coords[range.axis] = coords[range.axis].clone().offset(&range.from);
    }
    // The roots are not among the inputs, so this computes them.
    let mut results = Vec::new();
    for root in roots(b.graph, b.region) {
        results.push((root, b.pull(root, &coords)?, coords.clone()));
    }
    let stmts = b.epilogue_of(results, &[])?;
    Ok(Body::Loops(Loops { parallel, stmts }))
}

/// Returns the anchor, and what else the region stores that is not computed from it.
fn roots(graph: &Graph, region: &Region) -> Vec<Value> {
    let anchor = Value::from(region.anchor);
    let mut after: HashSet<NodeId> = HashSet::from([region.anchor]);
    // In the order of the nodes.
    for &id in &region.nodes {
        if graph.node(id).operands.iter().any(|v| after.contains(&v.node)) {
            after.insert(id);
        }
    }
    let others = region.outputs.iter().filter(|v| !after.contains(&v.node));
    [anchor].into_iter().chain(others.copied()).collect()
}

/// The type that up to `count` integers are summed in before they are divided: one that the sum cannot leave.
pub(super) fn total_type(dtype: DType, count: &Dim) -> DType {
    let terms = 1i64 << (31 - dtype.bits().min(31));
    match count.as_const() {
        Some(n) if n <= terms && dtype != DType::I64 => DType::I32,
        _ => DType::I64,
    }
}

/// `Scatter`: for each update, combines it into the result, which the plan has filled with the data.
///
/// Updates that overwrite and may meet in an element (those along the axis; those of several index tuples) are one
/// thread's, in their order: of equal indices the last stays, on every device. Where indices count up along the axis,
/// as the rows do that are appended to a cache, none are equal, and on a GPU each update is a thread's; those outside
/// the axis, which are clamped, then come in any order.
pub fn scatter(b: &mut Builder<'_>, target: &Target, scatter: Scatter) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let operands = b.graph.node(b.region.anchor).operands.clone();
    let (data_shape, index_shape, update_shape) = (
        b.shape(operands[0]).clone(),
        b.shape(operands[1]).clone(),
        b.shape(operands[2]).clone(),
    );
    let meet = match scatter {
        Scatter::Elements { axis, reduce: None } if target.is_gpu() && counts_up(b.graph, operands[1], axis) => 0..0,
        Scatter::Elements { axis, reduce: None } => axis..axis + 1,
        Scatter::Nd { reduce: None } => 0..index_shape.rank() - 1,
        _ => 0..0,
    };
    let (apart, within): (Vec<usize>, Vec<usize>) = (0..update_shape.rank()).partition(|d| !meet.contains(d));
    let dims = |of: &[usize]| of.iter().map(|d| update_shape[*d].clone()).collect::<Vec<_>>();
    let (parallel, outside) = b.iterate(&AXES, &dims(&apart));
    let (ordered, inside) = b.iterate(&["u", "v", "w"], &dims(&within));
    let mut coords = vec![Linear::constant(0); update_shape.rank()];
    for (d, at) in apart.iter().zip(outside).chain(within.iter().zip(inside)) {
        coords[*d] = at;
    }
    let (at, op) = match scatter {
        Scatter::Elements { axis, reduce } => {
            let index = b.pull(operands[1], &coords)?;
            let mut at = coords.clone();
            at[axis] = b.checked_index(index, &data_shape[axis]);
            (at, reduce)
        }
        Scatter::Nd { reduce } => {
            let outer = index_shape.rank() - 1;
            let depth = index_shape[outer].as_const().unwrap_or(0) as usize;
            let mut at = Vec::new();
            for d in 0..depth {
                let mut where_ = coords[..outer].to_vec();
                where_.push(Linear::constant(d as i64));
                let index = b.pull(operands[1], &where_)?;
                at.push(b.checked_index(index, &data_shape[d]));
            }
            at.extend_from_slice(&coords[outer..]);
            (at, reduce)
        }
    };
    let value = b.pull(operands[2], &coords)?;
    let stmts = match b.store(anchor, value, &at, &ordered) {
        Some(Stmt::Store {
            param,
            index,
            value,
            axes,
        }) => {
            b.params[param].access = ir::kernel::Access::ReadWrite;
            vec![Stmt::Update {
                param,
                index,
                value,
                op,
                axes,
            }]
        }
        other => other.into_iter().collect(),
    };
    Ok(Body::Loops(Loops { parallel, stmts }))
}
