//! A contraction or attention in two launches: partial sums over parts of its depth or keys, then their total with what
//! follows. Where a norm or another fold of rows is what follows, the second launch is that one's.
//!
//! Before: a product or convolution with few tiles and much depth, or few queries that see many keys, which would leave
//! most of the GPU idle. After: a kernel with a tile for each part, whose sums go to scratch memory of the plan, and a
//! kernel that adds them. The parts are added in their order, so results do not depend on which is done first. Parts of
//! attention come with their largest score and the sum of their weights (FlashDecoding; Dao et al., 2023).

use indexmap::IndexSet;
use ir::kernel::{AxisId, Body, Expr, ExprId, Kernel, Mapping, ParamId, Stmt};
use ir::op::BinaryOp;
use ir::schedule::{Region, RegionKind};
use ir::{DType, Dim, Entity, Graph, NodeId, Op, Shape, Target, TensorType, Value};

use super::builder::{Builder, Share, arithmetic};
use super::index::{Linear, linearize};
use super::{LowerError, mapping, share_of};

/// The two launches and what is between them.
pub struct Parts {
    /// Reads the region's inputs; writes the scratch.
    pub partials: Kernel,
    pub total: Total,
    /// What the parts have of each cell, in the accumulator's type.
    pub scratch: TensorType,
}

/// The second launch.
pub enum Total {
    /// Reads the region's inputs and the scratch; writes the region's outputs.
    Own(Kernel),
    /// Reads `inputs` and the scratch; writes the outputs of the region at `anchor`, which folds rows of the result.
    OfRows {
        anchor: NodeId,
        kernel: Kernel,
        inputs: Vec<Value>,
    },
}

/// Lowers a region to two launches, where its kernel is predicted to take less time in parts. `reader` is the one
/// region that reads its first output, where there is such.
///
/// # Errors
/// As [`super::lower`].
pub fn in_parts(
    graph: &Graph,
    region: &Region,
    reader: Option<&Region>,
    target: &Target,
    whole: &Kernel,
) -> Result<Option<Parts>, LowerError> {
    if let Some(reader) = reader
        && let Some(parts) = into_rows(graph, region, reader, target, whole)?
    {
        return Ok(Some(parts));
    }
    let Some(parts) = mapping::parts(whole, graph.symbols(), target, mapping::Second::Own) else {
        return Ok(None);
    };
    let partials = share_of(graph, region, target, Share::Partials(parts))?;
    // Only what keeps the weights in registers gives their sums.
    let sums = matches!(partials.mapping, Mapping::FlashMatrix(_) | Mapping::FlashLanes(_));
    if matches!(partials.body, Body::Attention(_)) && !sums {
        return Ok(None);
    }
    let total = Total::Own(share_of(graph, region, target, Share::Total(parts))?);
    Ok(between(&partials).map(|scratch| Parts {
        partials,
        total,
        scratch,
    }))
}

/// The scratch that a kernel writes its parts to.
fn between(partials: &Kernel) -> Option<TensorType> {
    let scratch = partials.params.values().last()?;
    Some(TensorType::new(scratch.dtype, Shape(vec![scratch.elements.clone()])))
}

/// Lowers a product and the norm or other fold of rows behind it: the parts of the product, and rows that add them up
/// as they are read.
fn into_rows(
    graph: &Graph,
    region: &Region,
    reader: &Region,
    target: &Target,
    whole: &Kernel,
) -> Result<Option<Parts>, LowerError> {
    let [result] = region.outputs[..] else {
        return Ok(None);
    };
    let is_product = matches!(graph.node(region.anchor).op, Op::Contract(_)) && region.kind == RegionKind::Contract;
    if !is_product || reader.kind != RegionKind::Reduction {
        return Ok(None);
    }
    let Some(parts) = mapping::parts(whole, graph.symbols(), target, mapping::Second::Known) else {
        return Ok(None);
    };
    let alone = super::lower(graph, reader, target)?;
    let read_as = reader.inputs.iter().position(|v| *v == result).map(ParamId::new);
    if !read_as.is_some_and(|param| is_read_once(&alone, param)) {
        return Ok(None);
    }
    let mut both = reader.clone();
    both.nodes = region.nodes.iter().chain(&reader.nodes).copied().collect();
    both.nodes.sort_unstable();
    both.nodes.dedup();
    both.inputs = region.inputs.clone();
    let others = reader.inputs.iter().filter(|v| **v != result);
    both.inputs.extend(others);
    let mut seen = IndexSet::new();
    both.inputs.retain(|v| seen.insert(*v));
    let of = region.anchor;
    let kernel = share_of(graph, &both, target, Share::Rows { parts, of })?;
    let partials = share_of(graph, region, target, Share::Partials(parts))?;
    let Some(scratch) = between(&partials) else {
        return Ok(None);
    };
    if !mapping::rows_pay(&kernel, parts, graph.symbols(), target) {
        return Ok(None);
    }
    let total = Total::OfRows {
        anchor: reader.anchor,
        kernel,
        inputs: both.inputs,
    };
    Ok(Some(Parts {
        partials,
        total,
        scratch,
    }))
}

/// Says whether a kernel folds rows and reads each element of a parameter once: to hold it, or for the one fold that
/// there is.
fn is_read_once(kernel: &Kernel, param: ParamId) -> bool {
    let Body::Row(row) = &kernel.body else {
        return false;
    };
    let mut loads = kernel
        .exprs
        .iter()
        .filter(|(_, e)| matches!(e, Expr::Load { param: p, .. } if *p == param));
    let (first, second) = (loads.next(), loads.next());
    let stmts = &row.loops.stmts;
    let folds = stmts.iter().filter(|s| matches!(s, Stmt::Fold { .. })).count();
    let stores_along = stmts
        .iter()
        .any(|s| matches!(s, Stmt::Store { axes, .. } if !axes.is_empty()));
    let once = |id| match row.held.is_empty() {
        true => folds == 1 && !stores_along,
        false => is_within(kernel, &row.held, id),
    };
    first.is_some_and(|(id, _)| once(id)) && second.is_none()
}

/// Says whether an expression is one of some, or in one of them.
fn is_within(kernel: &Kernel, held: &[ExprId], wanted: ExprId) -> bool {
    let mut open = held.to_vec();
    while let Some(e) = open.pop() {
        if e == wanted {
            return true;
        }
        kernel.exprs[e].for_each_operand(|o| open.push(o));
    }
    false
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

/// Adds the parts' sums of one element of a product, and gives it the type that arithmetic on it is done in.
pub(super) fn sum(b: &mut Builder<'_>, of: NodeId, parts: i64, at: &[Linear]) -> ExprId {
    let graph = b.graph;
    let [lhs, rhs] = [0, 1].map(|i| graph.ty(graph.node(of).operands[i]).dtype);
    let dims = b.shape(Value::from(of)).to_vec();
    let sum = total(b, lhs.product_accumulator(rhs), parts, &dims, at);
    b.cast(arithmetic(graph.ty(Value::from(of)).dtype), sum)
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
