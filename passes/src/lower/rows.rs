//! Reductions and row composites: folds over a row, then stores.
//!
//! Before: `Softmax` over the last axis of `x: f16[4096, 1024]`. After:
//!
//! ```text
//! for i in 0..4096 {
//!   hold x[i * 1024 + r], exp(f32(x[i * 1024 + r]) - v0)  for r in 0..1024
//!   v0 = max over r of f32(x[i * 1024 + r])
//!   v1 = sum over r of exp(f32(x[i * 1024 + r]) - v0)
//!   v2 = recip(v1)
//!   store out[i * 1024 + r] = f16(exp(f32(x[i * 1024 + r]) - v0) * v2)  for r in 0..1024
//! }
//! ```

use ir::entity::Entity;
use ir::kernel::{AxisId, Body, Expr, ExprId, Exprs, Loops, RowBody, RowComposite, RowKind, Stmt};
use ir::op::{BinaryOp, Composite, ReduceOp, UnaryOp};
use ir::{DType, Dim, NodeId, Op, Scalar, Value};

use super::LowerError;
use super::builder::{Builder, arithmetic};
use super::index::Linear;
use super::loops::{AXES, total_type};
use super::views::broadcast;
use crate::fuse::rows::Row;

/// `Reduce`: loops over what stays, folds over `axes`.
pub fn reduce(b: &mut Builder<'_>, op: ReduceOp, axes: &[usize], keep_dims: bool) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let operand = b.graph.node(b.region.anchor).operands[0];
    let shape = b.shape(operand).clone();
    let kept: Vec<usize> = (0..shape.rank()).filter(|i| !axes.contains(i)).collect();
    let dims = |list: &[usize]| list.iter().map(|i| shape[*i].clone()).collect::<Vec<_>>();
    let (mut parallel, outer) = b.iterate(&AXES, &dims(&kept));
    let (mut folded, inner) = b.iterate(&["r"], &dims(axes));
    let mut coords = vec![Linear::constant(0); shape.rank()];
    kept.iter().zip(&outer).for_each(|(i, c)| coords[*i] = c.clone());
    axes.iter().zip(&inner).for_each(|(i, c)| coords[*i] = c.clone());
    let x = b.pull(operand, &coords)?;
    in_order_of_memory(b, &mut folded, x);
    in_order_of_memory(b, &mut parallel, x);
    let mut stmts = Vec::new();
    let e = folded_to(b, &mut stmts, op, anchor, &dims(axes), &folded, x)?;
    if let Some(row) = Row::of_region(b.graph, b.region) {
        let costly = if is_read(&b.exprs, x) { vec![] } else { vec![x] };
        let at = broadcast(&coords, &row.folded);
        b.computed.insert(anchor, (e, at.clone()));
        stmts.extend(b.store(anchor, e, &at, &[]));
        along_row(b, &mut stmts, &row, &coords, &folded)?;
        let held = held(&b.exprs, &stmts, &folded, costly);
        return Ok(self::row(Loops { parallel, stmts }, folded, held, None));
    }
    let result = if keep_dims {
        (0..shape.rank())
            .map(|i| {
                if axes.contains(&i) {
                    Linear::constant(0)
                } else {
                    coords[i].clone()
                }
            })
            .collect()
    } else {
        outer
    };
    stmts.extend(b.epilogue(anchor, e, result, &[])?);
    Ok(row(Loops { parallel, stmts }, folded, Vec::new(), None))
}

/// Brings axes into the order in which what is folded lies in memory, whatever the order of the op's: neighbouring
/// lanes read what lies side by side. The first read that moves along all of them decides.
fn in_order_of_memory(b: &Builder<'_>, axes: &mut [AxisId], x: ExprId) {
    if axes.len() < 2 {
        return;
    }
    let symbols = b.graph.symbols();
    let mut todo = vec![x];
    while let Some(e) = todo.pop() {
        if let Expr::Load { index, .. } = b.exprs[e]
            && let Some(linear) = b.linear.get(&index).filter(|linear| linear.is_affine())
        {
            let step = |axis: &AxisId| linear.coefficient(*axis).hint(symbols);
            if axes.iter().all(|axis| step(axis) > 0) {
                axes.sort_by_key(|axis| std::cmp::Reverse(step(axis)));
                return;
            }
            continue;
        }
        b.exprs[e].for_each_operand(|operand| todo.push(operand));
    }
}

/// Folds `x` along `axes` to the result of a `Reduce` of those dims, in the type that arithmetic on it is done in.
fn folded_to(
    b: &mut Builder<'_>,
    stmts: &mut Vec<Stmt>,
    op: ReduceOp,
    result: Value,
    dims: &[Dim],
    axes: &[AxisId],
    mut x: ExprId,
) -> Result<ExprId, LowerError> {
    let operand = b.graph.node(result.node).operands[0];
    let out_type = arithmetic(b.graph.ty(result).dtype);
    let e = match op {
        ReduceOp::Mean if b.exprs.dtype(x).is_int() => {
            let count: Dim = dims.iter().cloned().product();
            let total = total_type(b.exprs.dtype(x), &count);
            x = b.cast(total, x);
            let sum = fold(b, stmts, ReduceOp::Sum, axes, x);
            let size = b.size(&count);
            let count = b.cast(total, size);
            // Rounds towards zero; of nothing it gives 0.
            b.binary(BinaryOp::Div, sum, count)
        }
        ReduceOp::Mean => {
            let float = if out_type.is_float() { out_type } else { DType::F32 };
            x = b.cast(float, x);
            let sum = fold(b, stmts, ReduceOp::Sum, axes, x);
            let scale = reciprocal(b, dims, float);
            b.binary(BinaryOp::Mul, sum, scale)
        }
        ReduceOp::Sum | ReduceOp::Prod => {
            // Integers narrower than the accumulator wrap only at the end.
            let acc = b.exprs.dtype(x).accumulator();
            x = b.cast(acc, x);
            fold(b, stmts, op, axes, x)
        }
        _ => {
            let e = fold(b, stmts, op, axes, x);
            b.within_range(op, b.graph.ty(operand).dtype, e)
        }
    };
    Ok(b.cast(out_type, e))
}

/// Computes what follows the anchor along its row: folds, one number a row (named once), and elements; stores what is
/// asked for.
fn along_row(
    b: &mut Builder<'_>,
    stmts: &mut Vec<Stmt>,
    row: &Row,
    coords: &[Linear],
    axes: &[AxisId],
) -> Result<(), LowerError> {
    let once = broadcast(coords, &row.folded);
    let after: Vec<NodeId> = b
        .region
        .nodes
        .iter()
        .copied()
        .filter(|n| *n > b.region.anchor)
        .collect();
    for id in after {
        let node = b.graph.node(id);
        let result = Value::from(id);
        let (e, at) = match &node.op {
            Op::Reduce { op, .. } => {
                let x = b.pull(node.operands[0], coords)?;
                let dims: Vec<Dim> = row.axes.iter().map(|axis| row.shape[*axis].clone()).collect();
                (folded_to(b, stmts, *op, result, &dims, axes, x)?, &once[..])
            }
            Op::Elementwise(op) if node.operands.iter().any(|v| b.computed.contains_key(v)) => {
                let is_number = node.results[0].shape == row.folded;
                let at = if is_number { &once[..] } else { coords };
                let mut operands = Vec::with_capacity(node.operands.len());
                for v in &node.operands {
                    let there = broadcast(at, b.shape(*v));
                    operands.push(b.pull(*v, &there)?);
                }
                let e = b.elementwise(*op, node.results[0].dtype, &operands);
                (if is_number { name(b, stmts, e) } else { e }, at)
            }
            // A map of what is read, pulled where it is wanted.
            _ => continue,
        };
        b.computed.insert(result, (e, at.to_vec()));
        let walked: &[AxisId] = if b.shape(result) == &row.shape { axes } else { &[] };
        stmts.extend(b.store(result, e, at, walked));
    }
    Ok(())
}

/// Says whether an expression is a load, or a load that is converted.
fn is_read(exprs: &Exprs, x: ExprId) -> bool {
    match exprs[x] {
        Expr::Load { .. } => true,
        Expr::Cast(_, from) => matches!(exprs[from], Expr::Load { .. }),
        _ => false,
    }
}

/// Softmax, log-softmax, layer norm and RMS norm: folds over a row, then stores over it.
pub fn row_composite(b: &mut Builder<'_>, composite: &Composite) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let operands = b.graph.node(b.region.anchor).operands.clone();
    let shape = b.shape(operands[0]).clone();
    let axes: Vec<usize> = match composite {
        Composite::Softmax { axis } | Composite::LogSoftmax { axis } => vec![*axis],
        Composite::LayerNorm { axis, .. } | Composite::RmsNorm { axis, .. } => (*axis..shape.rank()).collect(),
        _ => return Err(b.not_in_region(anchor)),
    };
    let kept: Vec<usize> = (0..shape.rank()).filter(|i| !axes.contains(i)).collect();
    let dims = |list: &[usize]| list.iter().map(|i| shape[*i].clone()).collect::<Vec<_>>();
    let (parallel, outer) = b.iterate(&AXES, &dims(&kept));
    let (mut along, inner) = b.iterate(&["r"], &dims(&axes));
    let mut coords = vec![Linear::constant(0); shape.rank()];
    kept.iter().zip(&outer).for_each(|(i, c)| coords[*i] = c.clone());
    axes.iter().zip(&inner).for_each(|(i, c)| coords[*i] = c.clone());
    let x = b.pull(operands[0], &coords)?;
    in_order_of_memory(b, &mut along, x);
    let dtype = b.exprs.dtype(x);
    let mut stmts = Vec::new();
    // What is worth more than a load is computed once an element.
    let mut costly = if is_read(&b.exprs, x) { vec![] } else { vec![x] };
    let (mut scale, mut bias) = (None, None);
    let (kind, e) = match composite {
        Composite::Softmax { .. } => {
            let max = fold(b, &mut stmts, ReduceOp::Max, &along, x);
            let shifted = b.binary(BinaryOp::Sub, x, max);
            let exp = b.unary(UnaryOp::Exp, shifted);
            let sum = fold(b, &mut stmts, ReduceOp::Sum, &along, exp);
            costly.push(exp);
            // One division a row: exp is at most 1 and its sum at least, so that nothing overflows.
            let scale = b.unary(UnaryOp::Recip, sum);
            let scale = name(b, &mut stmts, scale);
            (RowKind::Softmax, b.binary(BinaryOp::Mul, exp, scale))
        }
        Composite::LogSoftmax { .. } => {
            let max = fold(b, &mut stmts, ReduceOp::Max, &along, x);
            let shifted = b.binary(BinaryOp::Sub, x, max);
            let exp = b.unary(UnaryOp::Exp, shifted);
            let sum = fold(b, &mut stmts, ReduceOp::Sum, &along, exp);
            let log = b.unary(UnaryOp::Log, sum);
            let log = name(b, &mut stmts, log);
            (RowKind::LogSoftmax, b.binary(BinaryOp::Sub, shifted, log))
        }
        Composite::LayerNorm { epsilon, .. } => {
            let epsilon = epsilon.as_f64();
            let per = reciprocal(b, &dims(&axes), dtype);
            let sum = fold(b, &mut stmts, ReduceOp::Sum, &along, x);
            let mean = b.binary(BinaryOp::Mul, sum, per);
            let mean = name(b, &mut stmts, mean);
            let centred = b.binary(BinaryOp::Sub, x, mean);
            let square = b.binary(BinaryOp::Mul, centred, centred);
            let sum = fold(b, &mut stmts, ReduceOp::Sum, &along, square);
            let rstd = inverse_deviation(b, &mut stmts, sum, per, epsilon);
            let normal = b.binary(BinaryOp::Mul, centred, rstd);
            (scale, bias) = columns(b, dtype, &operands[1..], &inner)?;
            (
                RowKind::LayerNorm {
                    epsilon: Scalar::Float(epsilon),
                },
                affine(b, normal, scale, bias),
            )
        }
        Composite::RmsNorm { epsilon, .. } => {
            let epsilon = epsilon.as_f64();
            let per = reciprocal(b, &dims(&axes), dtype);
            let square = b.binary(BinaryOp::Mul, x, x);
            let sum = fold(b, &mut stmts, ReduceOp::Sum, &along, square);
            let rstd = inverse_deviation(b, &mut stmts, sum, per, epsilon);
            let normal = b.binary(BinaryOp::Mul, x, rstd);
            (scale, bias) = columns(b, dtype, &operands[1..], &inner)?;
            (
                RowKind::RmsNorm {
                    epsilon: Scalar::Float(epsilon),
                },
                affine(b, normal, scale, bias),
            )
        }
        _ => return Err(b.not_in_region(anchor)),
    };
    // The rows themselves, where others read them.
    let made = b.region.outputs.contains(&operands[0]);
    if made {
        stmts.extend(b.store(operands[0], x, &coords, &along));
    }
    if let Some(row) = Row::of_region(b.graph, b.region) {
        stmts.extend(b.store(anchor, e, &coords, &along));
        b.computed.insert(anchor, (e, coords.clone()));
        along_row(b, &mut stmts, &row, &coords, &along)?;
        let held = held(&b.exprs, &stmts, &along, costly);
        return Ok(self::row(Loops { parallel, stmts }, along, held, None));
    }
    let stores = b.epilogue(anchor, e, coords, &along)?;
    let alone = !made && matches!(stores.as_slice(), [Stmt::Store { value, .. }] if *value == e) && dtype == DType::F32;
    stmts.extend(stores);
    let held = held(&b.exprs, &stmts, &along, costly);
    let composite = alone.then_some(RowComposite { kind, x, scale, bias });
    Ok(row(Loops { parallel, stmts }, along, held, composite))
}

/// A fold of `value` over `axes` into a new variable, and that variable's value.
pub(super) fn fold(b: &mut Builder<'_>, stmts: &mut Vec<Stmt>, op: ReduceOp, axes: &[AxisId], value: ExprId) -> ExprId {
    let dtype = match op {
        ReduceOp::ArgMax | ReduceOp::ArgMin => DType::I64,
        _ => b.exprs.dtype(value),
    };
    let var = b.var(dtype);
    stmts.push(Stmt::Fold {
        var,
        op,
        axes: axes.to_vec(),
        value,
    });
    b.read(var)
}

/// Names an expression that is to be computed once a point.
fn name(b: &mut Builder<'_>, stmts: &mut Vec<Stmt>, value: ExprId) -> ExprId {
    let dtype = b.exprs.dtype(value);
    let var = b.var(dtype);
    stmts.push(Stmt::Let { var, value });
    b.read(var)
}

/// `1 / Π dims` in `dtype`.
pub(super) fn reciprocal(b: &mut Builder<'_>, dims: &[Dim], dtype: DType) -> ExprId {
    let count: Dim = dims.iter().cloned().product();
    match count.as_const() {
        Some(n) => b.number(dtype, 1.0 / n as f64),
        None => {
            let size = b.size(&count);
            let n = b.cast(dtype, size);
            b.unary(UnaryOp::Recip, n)
        }
    }
}

/// `1 / √(sum · scale + ε)`, computed once a row.
fn inverse_deviation(b: &mut Builder<'_>, stmts: &mut Vec<Stmt>, sum: ExprId, scale: ExprId, epsilon: f64) -> ExprId {
    let dtype = b.exprs.dtype(sum);
    let mean = b.binary(BinaryOp::Mul, sum, scale);
    let epsilon = b.number(dtype, epsilon);
    let shifted = b.binary(BinaryOp::Add, mean, epsilon);
    let rstd = b.unary(UnaryOp::Rsqrt, shifted);
    name(b, stmts, rstd)
}

/// The factor and the addend of a norm at the row's coordinates, each optional.
fn columns(
    b: &mut Builder<'_>,
    dtype: DType,
    operands: &[Value],
    inner: &[Linear],
) -> Result<(Option<ExprId>, Option<ExprId>), LowerError> {
    let mut column = |v: Option<&Value>| -> Result<Option<ExprId>, LowerError> {
        let Some(v) = v else { return Ok(None) };
        let e = b.pull(*v, inner)?;
        Ok(Some(b.cast(dtype, e)))
    };
    Ok((column(operands.first())?, column(operands.get(1))?))
}

/// `x · scale + bias`, each optional.
fn affine(b: &mut Builder<'_>, x: ExprId, scale: Option<ExprId>, bias: Option<ExprId>) -> ExprId {
    let scaled = scale.map_or(x, |s| b.binary(BinaryOp::Mul, x, s));
    bias.map_or(scaled, |a| b.binary(BinaryOp::Add, scaled, a))
}

/// The body; a row that is one element is no row.
fn row(loops: Loops, row: Vec<AxisId>, held: Vec<ExprId>, composite: Option<RowComposite>) -> Body {
    if row.is_empty() {
        return Body::Loops(loops);
    }
    Body::Row(RowBody {
        loops,
        row,
        held,
        composite,
    })
}

/// What is held of an element: what is `costly`, and each load along the row that the statements make whatever the data
/// and the folds are (those below what is costly are made once anyway).
fn held(exprs: &Exprs, stmts: &[Stmt], row: &[AxisId], costly: Vec<ExprId>) -> Vec<ExprId> {
    let n = exprs.len();
    let (mut along, mut waits, mut always) = (vec![false; n], vec![false; n], vec![false; n]);
    for (id, e) in exprs.iter() {
        along[id.index()] = matches!(e, Expr::Axis(a) if row.contains(a));
        waits[id.index()] = matches!(e, Expr::Var(_));
        e.for_each_operand(|o| {
            along[id.index()] |= along[o.index()];
            waits[id.index()] |= waits[o.index()];
        });
    }
    for s in stmts {
        match s {
            Stmt::Let { value, .. } | Stmt::Fold { value, .. } => always[value.index()] = true,
            Stmt::Store { index, value, .. } | Stmt::Update { index, value, .. } => {
                always[index.index()] = true;
                always[value.index()] = true;
            }
        }
    }
    // Operands precede their users: one sweep from the end sees every user first.
    for (id, e) in exprs.iter().rev() {
        if !always[id.index()] || (costly.contains(&id) && !waits[id.index()]) {
            continue;
        }
        let (lazy, mut first) = (matches!(e, Expr::Select(..)), true);
        e.for_each_operand(|o| {
            always[o.index()] |= first || !lazy;
            first = false;
        });
    }
    let loads = exprs.iter().filter(|(id, e)| {
        let i = id.index();
        matches!(e, Expr::Load { .. }) && always[i] && along[i] && !waits[i]
    });
    let mut held: Vec<ExprId> = loads.map(|(id, _)| id).chain(costly).collect();
    held.sort_unstable();
    held.dedup();
    held
}
