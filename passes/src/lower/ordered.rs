//! Scans and sorts: bodies whose points depend on each other along one axis.

use ir::kernel::{Body, ScanBody, SortBody};
use ir::op::ReduceOp;
use ir::{DType, Dim, Value};

use super::LowerError;
use super::builder::{Builder, arithmetic};
use super::index::Linear;

const AXES: [&str; 6] = ["i", "j", "k", "l", "m", "n"];

/// `Scan`: a running fold.
pub fn scan(
    b: &mut Builder<'_>,
    op: ReduceOp,
    axis: usize,
    exclusive: bool,
    reverse: bool,
) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let operand = b.graph.node(b.region.anchor).operands[0];
    let shape = b.shape(operand).clone();
    let mut outer = shape.0.clone();
    outer[axis] = Dim::Const(1);
    let (parallel, mut coords) = b.iterate(&AXES, &outer);
    let along = b.axes.push(ir::kernel::Axis {
        name: "step".to_owned(),
        extent: shape[axis].clone(),
    });
    b.extents.push(shape[axis].clone());
    coords[axis] = Linear::axis(along);
    let x = b.pull(operand, &coords)?;
    let narrow = b.graph.ty(operand).dtype;
    // Sums and products of narrow integers wrap at the end only; maxima start from the least number of their own type.
    let acc = match op {
        ReduceOp::Sum | ReduceOp::Prod => b.exprs.dtype(x).accumulator(),
        _ => b.exprs.dtype(x),
    };
    let value = b.cast(acc, x);
    let var = b.var(acc);
    let e = b.read(var);
    let e = b.within_range(op, narrow, e);
    let e = b.cast(arithmetic(b.graph.ty(anchor).dtype), e);
    let stores = b.epilogue(anchor, e, coords, &[])?;
    Ok(Body::Scan(ScanBody {
        parallel,
        axis: along,
        op,
        value,
        exclusive,
        reverse,
        var,
        stores,
    }))
}

/// `TopK`: the first `k` of an order.
pub fn top_k(b: &mut Builder<'_>, axis: usize, k: &Dim, largest: bool) -> Result<Body, LowerError> {
    let node = b.region.anchor;
    let operand = b.graph.node(node).operands[0];
    let shape = b.shape(operand).clone();
    let mut outer = shape.0.clone();
    outer[axis] = Dim::Const(1);
    let (parallel, coords) = b.iterate(&AXES, &outer);
    let axis_of = |b: &mut Builder<'_>, name: &str, extent: &Dim| {
        let a = b.axes.push(ir::kernel::Axis {
            name: name.to_owned(),
            extent: extent.clone(),
        });
        b.extents.push(extent.clone());
        a
    };
    let along = axis_of(b, "position", &shape[axis]);
    let rank = axis_of(b, "rank", k);
    let mut at = coords.clone();
    at[axis] = Linear::axis(along);
    let value = b.pull(operand, &at)?;
    let (value_var, index_var) = (b.var(b.exprs.dtype(value)), b.var(DType::I64));
    let mut result = coords;
    result[axis] = Linear::axis(rank);
    let (v, i) = (b.read(value_var), b.read(index_var));
    let mut stores = Vec::new();
    stores.extend(
        b.region
            .outputs
            .contains(&Value::new(node, 0))
            .then(|| b.store(Value::new(node, 0), v, &result, &[]))
            .flatten(),
    );
    stores.extend(
        b.region
            .outputs
            .contains(&Value::new(node, 1))
            .then(|| b.store(Value::new(node, 1), i, &result, &[]))
            .flatten(),
    );
    Ok(Body::Sort(SortBody {
        parallel,
        axis: along,
        rank,
        largest,
        value,
        value_var,
        index_var,
        stores,
    }))
}
