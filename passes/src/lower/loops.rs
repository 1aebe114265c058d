//! Pointwise regions, reductions, row composites, pooling, depthwise convolution and scatter: bodies that are loops.

use ir::graph::eval::scalar::identity;
use ir::kernel::{AxisId, Body, Expr, ExprId, Loops, Stmt};
use ir::op::{BinaryOp, Composite, Conv, Layout, Pool, PoolKind, ReduceOp, Scatter, UnaryOp};
use ir::{DType, Dim, Op, Value};

use super::LowerError;
use super::builder::{Builder, arithmetic};
use super::contract::biased;
use super::index::Linear;

/// Names of the axes of a tensor, outermost first.
const AXES: [&str; 8] = ["i", "j", "k", "l", "m", "n", "o", "p"];

/// For each point of the result: its expression, stored.
pub fn pointwise(b: &mut Builder<'_>) -> Result<Body, LowerError> {
    let root = Value::from(b.region.anchor);
    let shape = b.shape(root).clone();
    let (parallel, coords) = b.iterate(&AXES, &shape);
    // The root is not among the inputs, so this computes it.
    let e = b.pull(root, &coords)?;
    let stmts = b.store(root, e, &coords, &[]).into_iter().collect();
    Ok(Body::Loops(Loops { parallel, stmts }))
}

/// A fold of `value` over `axes` into a new variable, and that variable's value.
fn fold(b: &mut Builder<'_>, stmts: &mut Vec<Stmt>, op: ReduceOp, axes: &[AxisId], value: ExprId) -> ExprId {
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
fn reciprocal(b: &mut Builder<'_>, dims: &[Dim], dtype: DType) -> ExprId {
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

/// The type that up to `count` integers are summed in before they are divided: one that the sum cannot leave.
fn total_type(dtype: DType, count: &Dim) -> DType {
    let terms = 1i64 << (31 - dtype.bits().min(31));
    match count.as_const() {
        Some(n) if n <= terms && dtype != DType::I64 => DType::I32,
        _ => DType::I64,
    }
}

/// `Reduce`: loops over what stays, folds over `axes`.
pub fn reduce(b: &mut Builder<'_>, op: ReduceOp, axes: &[usize], keep_dims: bool) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let operand = b.graph.node(b.region.anchor).operands[0];
    let shape = b.shape(operand).clone();
    let kept: Vec<usize> = (0..shape.rank()).filter(|i| !axes.contains(i)).collect();
    let dims = |list: &[usize]| list.iter().map(|i| shape[*i].clone()).collect::<Vec<_>>();
    let (parallel, outer) = b.iterate(&AXES, &dims(&kept));
    let (folded, inner) = b.iterate(&["r"], &dims(axes));
    let mut coords = vec![Linear::constant(0); shape.rank()];
    kept.iter().zip(&outer).for_each(|(i, c)| coords[*i] = c.clone());
    axes.iter().zip(&inner).for_each(|(i, c)| coords[*i] = c.clone());
    let mut x = b.pull(operand, &coords)?;
    let out_type = arithmetic(b.graph.ty(anchor).dtype);
    let mut stmts = Vec::new();
    let e = match op {
        ReduceOp::Mean if b.exprs.dtype(x).is_int() => {
            let count: Dim = dims(axes).into_iter().product();
            let total = total_type(b.exprs.dtype(x), &count);
            x = b.cast(total, x);
            let sum = fold(b, &mut stmts, ReduceOp::Sum, &folded, x);
            let size = b.size(&count);
            let count = b.cast(total, size);
            // Rounds towards zero; of nothing it gives 0.
            b.binary(BinaryOp::Div, sum, count)
        }
        ReduceOp::Mean => {
            let float = if out_type.is_float() { out_type } else { DType::F32 };
            x = b.cast(float, x);
            let sum = fold(b, &mut stmts, ReduceOp::Sum, &folded, x);
            let scale = reciprocal(b, &dims(axes), float);
            b.binary(BinaryOp::Mul, sum, scale)
        }
        ReduceOp::Sum | ReduceOp::Prod => {
            // Integers narrower than the accumulator wrap only at the end.
            let acc = b.exprs.dtype(x).accumulator();
            x = b.cast(acc, x);
            fold(b, &mut stmts, op, &folded, x)
        }
        _ => {
            let e = fold(b, &mut stmts, op, &folded, x);
            b.within_range(op, b.graph.ty(operand).dtype, e)
        }
    };
    let e = b.cast(out_type, e);
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
    Ok(Body::Loops(Loops { parallel, stmts }))
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
    let (row, inner) = b.iterate(&["r"], &dims(&axes));
    let mut coords = vec![Linear::constant(0); shape.rank()];
    kept.iter().zip(&outer).for_each(|(i, c)| coords[*i] = c.clone());
    axes.iter().zip(&inner).for_each(|(i, c)| coords[*i] = c.clone());
    let x = b.pull(operands[0], &coords)?;
    let dtype = b.exprs.dtype(x);
    let mut stmts = Vec::new();
    let e = match composite {
        Composite::Softmax { .. } => {
            let max = fold(b, &mut stmts, ReduceOp::Max, &row, x);
            let shifted = b.binary(BinaryOp::Sub, x, max);
            let exp = b.unary(UnaryOp::Exp, shifted);
            let sum = fold(b, &mut stmts, ReduceOp::Sum, &row, exp);
            b.binary(BinaryOp::Div, exp, sum)
        }
        Composite::LogSoftmax { .. } => {
            let max = fold(b, &mut stmts, ReduceOp::Max, &row, x);
            let shifted = b.binary(BinaryOp::Sub, x, max);
            let exp = b.unary(UnaryOp::Exp, shifted);
            let sum = fold(b, &mut stmts, ReduceOp::Sum, &row, exp);
            let log = b.unary(UnaryOp::Log, sum);
            let log = name(b, &mut stmts, log);
            b.binary(BinaryOp::Sub, shifted, log)
        }
        Composite::LayerNorm { epsilon, .. } => {
            let scale = reciprocal(b, &dims(&axes), dtype);
            let sum = fold(b, &mut stmts, ReduceOp::Sum, &row, x);
            let mean = b.binary(BinaryOp::Mul, sum, scale);
            let mean = name(b, &mut stmts, mean);
            let centred = b.binary(BinaryOp::Sub, x, mean);
            let square = b.binary(BinaryOp::Mul, centred, centred);
            let sum = fold(b, &mut stmts, ReduceOp::Sum, &row, square);
            let rstd = inverse_deviation(b, &mut stmts, sum, scale, epsilon.as_f64());
            let normal = b.binary(BinaryOp::Mul, centred, rstd);
            affine(b, normal, &operands[1..], &inner)?
        }
        Composite::RmsNorm { epsilon, .. } => {
            let scale = reciprocal(b, &dims(&axes), dtype);
            let square = b.binary(BinaryOp::Mul, x, x);
            let sum = fold(b, &mut stmts, ReduceOp::Sum, &row, square);
            let rstd = inverse_deviation(b, &mut stmts, sum, scale, epsilon.as_f64());
            let normal = b.binary(BinaryOp::Mul, x, rstd);
            affine(b, normal, &operands[1..], &inner)?
        }
        _ => return Err(b.not_in_region(anchor)),
    };
    stmts.extend(b.epilogue(anchor, e, coords, &row)?);
    Ok(Body::Loops(Loops { parallel, stmts }))
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

/// `x · scale + bias`, each optional, at the row's coordinates.
fn affine(b: &mut Builder<'_>, x: ExprId, operands: &[Value], inner: &[Linear]) -> Result<ExprId, LowerError> {
    let dtype = b.exprs.dtype(x);
    let mut e = x;
    for (v, op) in operands.iter().zip([BinaryOp::Mul, BinaryOp::Add]) {
        let factor = b.pull(*v, inner)?;
        let factor = b.cast(dtype, factor);
        e = b.binary(op, e, factor);
    }
    Ok(e)
}

/// `Pool`: folds over a window with guarded reads.
pub fn pool(b: &mut Builder<'_>, pool: &Pool) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let operand = b.graph.node(b.region.anchor).operands[0];
    let (in_shape, out_shape) = (b.shape(operand).clone(), b.shape(anchor).clone());
    let first = pool.layout.spatial_axis();
    let spatial = pool.size.len();
    let (parallel, coords) = b.iterate(&["n", "y", "x", "c"], &out_shape);
    let sizes: Vec<Dim> = pool.size.iter().map(|s| Dim::Const(*s)).collect();
    let (window, taps) = b.iterate(&["dy", "dx"], &sizes);
    let w = &pool.window;
    let mut at = coords.clone();
    for s in 0..spatial {
        at[first + s] = coords[first + s]
            .scale(&Dim::Const(w.strides[s]))
            .plus(&taps[s].scale(&Dim::Const(w.dilations[s])))
            .offset(&Dim::Const(-w.pad_low[s]));
    }
    let guard = b.in_range(&at[first..first + spatial], &in_shape[first..first + spatial]);
    let element = b.pull(operand, &at)?;
    let dtype = b.exprs.dtype(element);
    let mut stmts = Vec::new();
    let e = match pool.kind {
        PoolKind::Max => {
            let lowest = identity(ReduceOp::Max, b.graph.ty(operand).dtype);
            let lowest = b.exprs.add(Expr::Const(dtype, lowest), dtype);
            let x = guard.map_or(element, |g| b.select(g, element, lowest));
            fold(b, &mut stmts, ReduceOp::Max, &window, x)
        }
        PoolKind::Average { count_padding } => {
            let taps = pool.size.iter().product::<i64>();
            let dtype = match dtype.is_int() {
                true => total_type(dtype, &Dim::Const(taps)),
                false => dtype,
            };
            let zero = b.number(dtype, 0.0);
            let element = b.cast(dtype, element);
            let x = guard.map_or(element, |g| b.select(g, element, zero));
            let sum = fold(b, &mut stmts, ReduceOp::Sum, &window, x);
            // What the divisor counts: elements in range, or with padding, elements in the padded input.
            let counted = if count_padding {
                let padded: Vec<Linear> = (0..spatial)
                    .map(|s| at[first + s].clone().offset(&Dim::Const(w.pad_low[s])))
                    .collect();
                let sizes: Vec<Dim> = (0..spatial)
                    .map(|s| in_shape[first + s].clone() + w.pad_low[s] + w.pad_high[s])
                    .collect();
                b.in_range(&padded, &sizes)
            } else {
                guard
            };
            match counted {
                None if dtype.is_int() => {
                    let count = b.number(dtype, taps as f64);
                    b.binary(BinaryOp::Div, sum, count)
                }
                None => {
                    let scale = b.number(dtype, 1.0 / taps as f64);
                    b.binary(BinaryOp::Mul, sum, scale)
                }
                Some(inside) => {
                    let one = b.number(dtype, 1.0);
                    let hit = b.select(inside, one, zero);
                    let count = fold(b, &mut stmts, ReduceOp::Sum, &window, hit);
                    // A window that lies in padding alone has the average 0, not 0/0.
                    let reaches = (0..spatial).all(|i| {
                        w.dilations[i] == 1
                            && w.pad_low[i].max(w.pad_high[i]) < pool.size[i]
                            && in_shape[first + i].at_least(1, b.graph.symbols())
                    });
                    let count = if reaches {
                        count
                    } else {
                        b.binary(BinaryOp::Max, count, one)
                    };
                    b.binary(BinaryOp::Div, sum, count)
                }
            }
        }
    };
    let e = b.cast(arithmetic(b.graph.ty(anchor).dtype), e);
    stmts.extend(b.epilogue(anchor, e, coords, &[])?);
    Ok(Body::Loops(Loops { parallel, stmts }))
}

/// A convolution with one input and one output channel a group: a fold over the window for each channel.
pub fn depthwise(b: &mut Builder<'_>, conv: &Conv) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let operands = b.graph.node(b.region.anchor).operands.clone();
    let (in_shape, out_shape, filter) = (
        b.shape(operands[0]).clone(),
        b.shape(anchor).clone(),
        b.shape(operands[1]),
    );
    let first = conv.layout.spatial_axis();
    let channel = conv.layout.channel_axis(out_shape.rank());
    let spatial = out_shape.rank() - 2;
    let kernel_at = match conv.layout {
        Layout::ChannelsFirst => 2,
        Layout::ChannelsLast => 1,
    };
    let sizes = filter[kernel_at..kernel_at + spatial].to_vec();
    let (parallel, coords) = b.iterate(&["n", "y", "x", "c"], &out_shape);
    let (window, taps) = b.iterate(&["ky", "kx"], &sizes);
    let w = &conv.window;
    let mut at = coords.clone();
    let mut tap = vec![Linear::constant(0); out_shape.rank()];
    tap[0] = coords[channel].clone();
    for s in 0..spatial {
        at[first + s] = coords[first + s]
            .scale(&Dim::Const(w.strides[s]))
            .plus(&taps[s].scale(&Dim::Const(w.dilations[s])))
            .offset(&Dim::Const(-w.pad_low[s]));
        tap[kernel_at + s] = taps[s].clone();
    }
    let guard = b.in_range(&at[first..first + spatial], &in_shape[first..first + spatial]);
    let x = b.pull(operands[0], &at)?;
    let f = b.pull(operands[1], &tap)?;
    let acc = b.exprs.dtype(x).product_accumulator(b.exprs.dtype(f));
    let (x, f) = (b.cast(acc, x), b.cast(acc, f));
    let zero = b.number(acc, 0.0);
    let x = guard.map_or(x, |g| b.select(g, x, zero));
    let product = b.binary(BinaryOp::Mul, x, f);
    let mut stmts = Vec::new();
    let e = fold(b, &mut stmts, ReduceOp::Sum, &window, product);
    let bias = match operands.get(2) {
        Some(bias) => Some(b.pull(*bias, &[coords[channel].clone()])?),
        None => None,
    };
    let e = biased(b, e, bias, conv.out);
    stmts.extend(b.epilogue(anchor, e, coords, &[])?);
    Ok(Body::Loops(Loops { parallel, stmts }))
}

/// `Scatter`: for each update, combines it into the result, which the plan has filled with the data.
///
/// Updates that overwrite and may meet in an element (those along the axis; those of several index tuples) are one thread's,
/// in their order: of equal indices the last stays, on every device.
pub fn scatter(b: &mut Builder<'_>, scatter: Scatter) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let operands = b.graph.node(b.region.anchor).operands.clone();
    let (data_shape, index_shape, update_shape) = (
        b.shape(operands[0]).clone(),
        b.shape(operands[1]).clone(),
        b.shape(operands[2]).clone(),
    );
    let meet = match scatter {
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

/// Says whether a convolution has one channel in and one out a group.
pub fn is_depthwise(b: &Builder<'_>, conv: &Conv) -> bool {
    let node = b.graph.node(b.region.anchor);
    let channels = |v: Value| b.shape(v)[conv.layout.channel_axis(b.shape(v).rank())].as_const();
    conv.groups > 1
        && conv.transposed.is_none()
        && matches!(node.op, Op::Conv(_))
        && channels(node.operands[0]) == Some(conv.groups)
        && channels(b.region.anchor.into()) == Some(conv.groups)
}
