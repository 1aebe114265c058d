//! A contraction or attention in two launches: partial sums over parts of its depth or keys, then their total with what follows.
//!
//! Before: a product or convolution with few tiles and much depth, or few queries that see many keys, which would leave most of the GPU
//! idle. After: a kernel with a tile for each part, whose sums go to scratch memory of the plan, and a kernel that adds them. The parts
//! are added in their order, so results do not depend on which is done first. Parts of attention come with the logarithm of the sum of
//! their weights (FlashDecoding; Dao et al., 2023).

use ir::kernel::{AxisId, Body, Expr, ExprId, Kernel, Mapping, ParamId, Stmt};
use ir::op::BinaryOp;
use ir::schedule::Region;
use ir::{DType, Dim, Entity, Graph, Shape, Target, TensorType};

use super::builder::{Builder, Share};
use super::index::{Linear, linearize};
use super::{LowerError, mapping, share_of};

/// The two launches and what is between them.
pub struct Parts {
    /// Reads the region's inputs; writes the scratch.
    pub partials: Kernel,
    /// Reads the region's inputs and the scratch; writes the region's outputs.
    pub total: Kernel,
    /// What the parts have of each cell, in the accumulator's type.
    pub scratch: TensorType,
}

/// Lowers a region to two launches, where its kernel is predicted to take less time in parts.
///
/// # Errors
/// As [`super::lower`].
pub fn in_parts(graph: &Graph, region: &Region, target: &Target, whole: &Kernel) -> Result<Option<Parts>, LowerError> {
    let Some(parts) = mapping::parts(whole, graph.symbols(), target) else {
        return Ok(None);
    };
    let partials = share_of(graph, region, target, Share::Partials(parts))?;
    // Only what keeps the weights in registers gives their sums.
    let sums = matches!(partials.mapping, Mapping::FlashMatrix(_) | Mapping::FlashLanes(_));
    if matches!(partials.body, Body::Attention(_)) && !sums {
        return Ok(None);
    }
    let total = share_of(graph, region, target, Share::Total(parts))?;
    let Some(scratch) = partials.params.values().last() else {
        return Ok(None);
    };
    let scratch = TensorType::new(scratch.dtype, Shape(vec![scratch.elements.clone()]));
    Ok(Some(Parts {
        partials,
        total,
        scratch,
    }))
}

/// Makes the axis of the parts, where a kernel has one.
pub(super) fn axis(b: &mut Builder<'_>) -> (Vec<AxisId>, Vec<Linear>) {
    match b.share {
        Share::Partials(parts) => b.iterate(&["part"], &[Dim::Const(parts)]),
        _ => (Vec::new(), Vec::new()),
    }
}

/// Makes the axes of the depth: of the whole, or of one part of the last of them.
pub(super) fn depth(b: &mut Builder<'_>, names: &[&str], dims: &[Dim], part: &[Linear]) -> (Vec<AxisId>, Vec<Linear>) {
    let mut within = dims.to_vec();
    if let (Share::Partials(parts), Some(last)) = (b.share, within.last_mut()) {
        *last = last.floor_div(&Dim::Const(parts));
    }
    let (axes, mut at) = b.iterate(names, &within);
    if let (Some(last), Some(part), Some(length)) = (at.last_mut(), part.first(), within.last()) {
        *last = part.scale(length).plus(last);
    }
    (axes, at)
}

/// Stores what a part has of one cell in a plane of the scratch memory, which has `planes` of them.
pub(super) fn store(
    b: &mut Builder<'_>,
    value: ExprId,
    planes: i64,
    dims: &[Dim],
    plane: &[Linear],
    cell: &[Linear],
) -> Stmt {
    let (param, shape) = scratch(b, b.exprs.dtype(value), planes, dims);
    let position = linearize(&[plane, cell].concat(), &shape);
    Stmt::Store {
        param,
        index: b.index(&position),
        value,
        axes: Vec::new(),
    }
}

/// Reads what was stored of one cell in a plane of the scratch memory.
pub(super) fn load(
    b: &mut Builder<'_>,
    dtype: DType,
    plane: i64,
    planes: i64,
    dims: &[Dim],
    cell: &[Linear],
) -> ExprId {
    let (param, shape) = scratch(b, dtype, planes, dims);
    let position = linearize(&[&[Linear::constant(plane)], cell].concat(), &shape);
    let index = b.index(&position);
    b.exprs.add(Expr::Load { param, index }, dtype)
}

/// Adds the parts' sums of one cell.
pub(super) fn total(b: &mut Builder<'_>, dtype: DType, parts: i64, dims: &[Dim], cell: &[Linear]) -> ExprId {
    let first = load(b, dtype, 0, parts, dims, cell);
    (1..parts).fold(first, |sum, part| {
        let e = load(b, dtype, part, parts, dims, cell);
        b.binary(BinaryOp::Add, sum, e)
    })
}

/// The scratch memory, whose type and shape `[planes, cell…]` are known once the body has its axes.
fn scratch(b: &mut Builder<'_>, dtype: DType, planes: i64, dims: &[Dim]) -> (ParamId, Shape) {
    let shape = Shape([&[Dim::Const(planes)], dims].concat());
    let param = b.partials.unwrap_or(ParamId::new(0));
    b.params[param].dtype = dtype;
    b.params[param].elements = shape.iter().cloned().product();
    (param, shape)
}
