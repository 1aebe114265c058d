//! Contractions and convolutions.

use ir::kernel::{Body, ContractBody, ConvFacts, ExprId, Loops, Operand, Pair, RowStatistic};
use ir::op::{BinaryOp, Composite, Contract, Conv, Layout, ReduceOp, UnaryOp};
use ir::{DType, Dim, NodeId, Op, Scalar, Target, Value};

use super::builder::{Builder, Share, arithmetic};
use super::index::Linear;
use super::views::broadcast;
use super::{LowerError, parts, rows};
use crate::analysis::cast_is_exact;
use crate::pairs;

/// A matrix product. Batch dims that only the left operand has are rows.
pub fn contract(b: &mut Builder<'_>, c: &Contract) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let operands = b.graph.node(b.region.anchor).operands.clone();
    let norm = norm_within(b, c, operands[0]);
    // A norm within the region is a factor of its rows' sums: what is multiplied is what it reads.
    let (lhs, rhs) = (norm.map_or(operands[0], |(x, _)| x), operands[1]);
    let (lhs_shape, rhs_shape, out) = (b.shape(lhs).clone(), b.shape(rhs).clone(), b.shape(anchor).clone());
    let batch_rank = out.rank() - 2;
    let rhs_is_batched = rhs_shape[..rhs_shape.rank() - 2].iter().any(|d| !d.is(1));
    let (m, n) = (out[batch_rank].clone(), out[batch_rank + 1].clone());
    let k = lhs_shape[if c.transpose_lhs {
        lhs_shape.rank() - 2
    } else {
        lhs_shape.rank() - 1
    }]
    .clone();
    let (batch_dims, mut row_dims) = if rhs_is_batched {
        (out[..batch_rank].to_vec(), vec![])
    } else {
        (vec![], out[..batch_rank].to_vec())
    };
    row_dims.push(m);
    let halves = match b.share {
        Share::Partials(_) => None,
        _ => interleaved_halves(b),
    };
    let (part, part_at) = parts::axis(b);
    let (batch, batch_at) = b.iterate(&["batch"], &batch_dims);
    let (rows, rows_at) = b.iterate(&["row"], &row_dims);
    // The columns that are stored: of two halves in turns, half of those of the product.
    let stored = match halves {
        Some([even, _]) => b.shape(even)[batch_rank + 1].clone(),
        None => n.clone(),
    };
    let (cells, cells_at) = b.iterate(&[if halves.is_some() { "pair" } else { "col" }], &[stored]);
    let dims = [&batch_dims[..], &row_dims, std::slice::from_ref(&n)].concat();
    let acc_type = b.graph.ty(lhs).dtype.product_accumulator(b.graph.ty(rhs).dtype);
    // What an epilogue has at hand, in the type of arithmetic on the result.
    let at_hand = |b: &mut Builder<'_>, sums: &[ExprId]| -> Vec<(Value, ExprId, Vec<Linear>)> {
        let at = [&batch_at[..], &rows_at, &cells_at].concat();
        let results: Vec<Value> = halves.map_or(vec![anchor], Vec::from);
        let values = results.into_iter().zip(sums);
        values
            .map(|(v, sum)| (v, b.cast(arithmetic(c.out), *sum), at.clone()))
            .collect()
    };
    if let Share::Total(parts) = b.share {
        let columns = match halves {
            Some(_) => (0..2)
                .map(|second| cells_at[0].scale(&Dim::Const(2)).offset(&Dim::Const(second)))
                .collect(),
            None => cells_at.clone(),
        };
        let sums: Vec<ExprId> = columns
            .into_iter()
            .map(|column| {
                let cell = [&batch_at[..], &rows_at, &[column]].concat();
                parts::total(b, acc_type, parts, &dims, &cell)
            })
            .collect();
        let values = at_hand(b, &sums);
        let stmts = b.epilogue_of(values, &[])?;
        return Ok(Body::Loops(Loops {
            parallel: [batch, rows, cells].concat(),
            stmts,
        }));
    }
    let (cols, cols_at, pair) = match (halves, cells.last()) {
        (Some(_), Some(axis)) => {
            let (cols, cols_at) = b.iterate(&["col"], std::slice::from_ref(&n));
            let second = b.var(acc_type);
            (cols, cols_at, Some(Pair { axis: *axis, second }))
        }
        _ => (cells.clone(), cells_at.clone(), None),
    };
    let (depth, depth_at) = parts::depth(b, &["k"], &[k], &part_at);
    let at = [&batch_at[..], &rows_at].concat();
    let (outer, row, col, k) = (
        at[..batch_rank].to_vec(),
        at[batch_rank].clone(),
        cols_at[0].clone(),
        depth_at[0].clone(),
    );
    let operand_at = |shape: &ir::Shape, transposed: bool, first: &Linear, second: &Linear| {
        let (first, second) = if transposed { (second, first) } else { (first, second) };
        // Batch dims broadcast; the matrix dims never do.
        let rank = shape.rank() - 2;
        let mut coords = broadcast(&outer, &ir::Shape(shape[..rank].to_vec()));
        coords.extend([first.clone(), second.clone()]);
        coords
    };
    let lhs_at = operand_at(&lhs_shape, c.transpose_lhs, &row, &k);
    let rhs_at = operand_at(&rhs_shape, c.transpose_rhs, &k, &col);
    let (l, r) = (b.pull(lhs, &lhs_at)?, b.pull(rhs, &rhs_at)?);
    let (l, r) = (element(b, l, lhs), element(b, r, rhs));
    let acc = b.var(acc_type);
    let e = b.read(acc);
    let scale = norm.map(|(_, epsilon)| row_scale(b, acc_type, &lhs_shape, epsilon));
    let epilogue = if let Share::Partials(parts) = b.share {
        let cell = [&batch_at[..], &rows_at, &cells_at].concat();
        vec![parts::store(b, e, parts, &dims, &part_at, &cell)]
    } else {
        let mut sums = vec![e];
        if let Some(pair) = pair {
            sums.push(b.read(pair.second));
        }
        if let Some((_, scale)) = &scale {
            sums.iter_mut()
                .for_each(|sum| *sum = b.binary(BinaryOp::Mul, *sum, *scale));
        }
        let values = at_hand(b, &sums);
        b.epilogue_of(values, &[])?
    };
    Ok(Body::Contract(ContractBody {
        batch: [part, batch].concat(),
        m: rows,
        n: cols,
        k: depth,
        lhs: Operand::new(&b.exprs, l),
        rhs: Operand::new(&b.exprs, r),
        acc,
        pair,
        statistic: scale.map(|(statistic, _)| statistic),
        epilogue,
        conv: None,
    }))
}

/// Returns what the left operand is the norm of, and its epsilon, where the region has the norm too
/// ([`crate::row_scales`]).
fn norm_within(b: &Builder<'_>, contract: &Contract, lhs: Value) -> Option<(Value, f64)> {
    let node = b.graph.node(lhs.node);
    let Op::Composite(Composite::RmsNorm { axis, epsilon }) = &node.op else {
        return None;
    };
    let [x] = node.operands[..] else { return None };
    let is_depth = *axis + 1 == b.shape(lhs).rank() && !contract.transpose_lhs;
    let is_within = b.region.nodes.contains(&lhs.node);
    (is_depth && is_within && b.share == Share::Whole).then(|| (x, epsilon.as_f64()))
}

/// The sum of the squares of a row, and `1 / √(mean + ε)` as an expression of it.
fn row_scale(b: &mut Builder<'_>, dtype: DType, shape: &ir::Shape, epsilon: f64) -> (RowStatistic, ExprId) {
    let [element, var] = [b.var(dtype), b.var(dtype)];
    let (x, sum) = (b.read(element), b.read(var));
    let statistic = RowStatistic {
        element,
        value: b.binary(BinaryOp::Mul, x, x),
        op: ReduceOp::Sum,
        var,
    };
    let per = rows::reciprocal(b, &shape[shape.rank() - 1..], dtype);
    let mean = b.binary(BinaryOp::Mul, sum, per);
    let epsilon = b.number(dtype, epsilon);
    let shifted = b.binary(BinaryOp::Add, mean, epsilon);
    (statistic, b.unary(UnaryOp::Rsqrt, shifted))
}

/// The halves of the anchor's columns, which are in turns, where the region has both.
fn interleaved_halves(b: &Builder<'_>) -> Option<[Value; 2]> {
    let anchor = b.region.anchor;
    let halves: Vec<(NodeId, u32)> = (b.region.nodes.iter())
        .filter(|id| pairs::interleaved_half(b.graph, **id).is_some_and(|(of, _)| of.node == anchor))
        .map(|id| (*id, 0))
        .collect();
    pairs::interleaved_halves(b.graph, &halves, anchor).map(|halves| halves.map(Value::from))
}

/// The element of an operand in the type that goes into the product: as it is stored, and of a value that is computed
/// on the way in the type that the graph gives it, where that is a float narrower than the arithmetic.
pub(super) fn element(b: &mut Builder<'_>, e: ExprId, of: Value) -> ExprId {
    let e = narrow(b, e);
    let dtype = b.graph.ty(of).dtype;
    // What was rounded to the type already is that.
    if let ir::kernel::Expr::Cast(DType::F32, inner) = b.exprs[e]
        && b.exprs.dtype(inner) == dtype
        && matches!(b.exprs[inner], ir::kernel::Expr::Cast(..))
    {
        return inner;
    }
    match dtype {
        DType::F16 | DType::BF16 if b.exprs.dtype(e) == DType::F32 => b.cast(dtype, e),
        _ => e,
    }
}

/// Undoes the widening of an operand that is a plain load: matrix engines take the narrow type. A cast that changes
/// numbers, or makes floats of integers, is the model's own and stays.
fn narrow(b: &Builder<'_>, e: ExprId) -> ExprId {
    let widens = |to: DType, inner: ExprId| {
        let from = b.exprs.dtype(inner);
        from != DType::Bool && from.is_float() == to.is_float() && cast_is_exact(from, to)
    };
    match b.exprs[e] {
        ir::kernel::Expr::Cast(to, inner)
            if matches!(b.exprs[inner], ir::kernel::Expr::Load { .. }) && widens(to, inner) =>
        {
            inner
        }
        _ => e,
    }
}

/// A convolution's sum with its bias, in the type that arithmetic on the result is done in. Floats are rounded after
/// the bias is added; integers are converted before, so that a bias wider than the sum, or with a fraction, is added as
/// it is.
pub fn biased(b: &mut Builder<'_>, sum: ExprId, bias: Option<ExprId>, out: DType) -> ExprId {
    let out = arithmetic(out);
    let Some(bias) = bias else { return b.cast(out, sum) };
    let acc = b.exprs.dtype(sum);
    let within = if acc.is_int() { out } else { acc };
    let (sum, bias) = (b.cast(within, sum), b.cast(within, bias));
    let e = b.binary(BinaryOp::Add, sum, bias);
    b.cast(out, e)
}

/// A convolution as a contraction: rows are pixels, columns filters, depth the window and its channels.
pub fn conv(b: &mut Builder<'_>, conv: &Conv, target: &Target) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let operands = b.graph.node(b.region.anchor).operands.clone();
    let (input, filter) = (operands[0], operands[1]);
    let (in_shape, f_shape, out) = (b.shape(input).clone(), b.shape(filter).clone(), b.shape(anchor).clone());
    let rank = out.rank();
    let spatial = rank - 2;
    let (first, channel) = (conv.layout.spatial_axis(), conv.layout.channel_axis(rank));
    let (kernel_at, depth_at) = match conv.layout {
        Layout::ChannelsFirst => (2, 1),
        Layout::ChannelsLast => (1, rank - 1),
    };
    let kernel: Vec<Dim> = f_shape[kernel_at..kernel_at + spatial].to_vec();
    let groups = Dim::Const(conv.groups);
    let per_group = |d: &Dim| d.exact_div(&groups).unwrap_or_else(|| d.floor_div(&groups));
    let (in_channels, out_channels) = (per_group(&in_shape[channel]), per_group(&out[channel]));
    let (part, part_at) = parts::axis(b);
    let (batch, group) = b.iterate(&["group"], std::slice::from_ref(&groups));
    let mut row_dims = vec![out[0].clone()];
    row_dims.extend_from_slice(&out[first..first + spatial]);
    let (rows, rows_at) = b.iterate(&["image", "y", "x"], &row_dims);
    let (cols, filter_in_group) = b.iterate(&["filter"], std::slice::from_ref(&out_channels));
    let dims = [&[groups][..], &row_dims, std::slice::from_ref(&out_channels)].concat();
    let cell = [&group[..], &rows_at, &filter_in_group].concat();
    let filter_at = group[0].scale(&out_channels).plus(&filter_in_group[0]);
    let mut result = vec![Linear::constant(0); rank];
    result[0] = rows_at[0].clone();
    result[channel] = filter_at.clone();
    result[first..first + spatial].clone_from_slice(&rows_at[1..=spatial]);
    let acc_type = b.graph.ty(input).dtype.product_accumulator(b.graph.ty(filter).dtype);
    if let Share::Total(parts) = b.share {
        let sum = parts::total(b, acc_type, parts, &dims, &cell);
        let bias = match operands.get(2) {
            Some(bias) => Some(b.pull(*bias, std::slice::from_ref(&filter_at))?),
            None => None,
        };
        let e = biased(b, sum, bias, conv.out);
        let parallel = [batch, rows, cols].concat();
        let stmts = b.epilogue(anchor, e, result, &[])?;
        return Ok(Body::Loops(Loops { parallel, stmts }));
    }
    let mut depth_dims = kernel.clone();
    depth_dims.push(in_channels.clone());
    let (depth, taps) = parts::depth(b, &["ky", "kx", "c"], &depth_dims, &part_at);
    let w = &conv.window;
    let mut at = vec![Linear::constant(0); rank];
    at[0] = rows_at[0].clone();
    at[channel] = group[0].scale(&in_channels).plus(&taps[spatial]);
    let mut guards = None;
    for s in 0..spatial {
        let (y, tap) = (&rows_at[1 + s], &taps[s]);
        let (stride, dilation) = (Dim::Const(w.strides[s]), Dim::Const(w.dilations[s]));
        if conv.transposed.is_none() {
            at[first + s] = y
                .scale(&stride)
                .plus(&tap.scale(&dilation))
                .offset(&Dim::Const(-w.pad_low[s]));
            continue;
        }
        // Output y gathers input (y + pad − tap·dilation) / stride where that is whole and in range.
        let shifted = y
            .clone()
            .plus(&tap.scale(&dilation).scale(&Dim::Const(-1)))
            .offset(&Dim::Const(w.pad_low[s]));
        let reach = kernel[s].clone() * w.dilations[s];
        // Shifted up by a multiple of the stride, so that quotient and remainder are of a number that is not negative.
        let lift = reach.ceil_div(&stride);
        let lifted = shifted.offset(&(lift.clone() * stride.clone()));
        let quotient = lifted.div(&stride, b.space()).offset(&-lift);
        let remainder = lifted.modulo(&stride, b.space());
        if !remainder.is_zero() {
            let (r, zero) = (b.index(&remainder), b.integer(0));
            let whole = b.binary(BinaryOp::Eq, r, zero);
            guards = Some(guards.map_or(whole, |g| b.binary(BinaryOp::And, g, whole)));
        }
        at[first + s] = quotient;
    }
    if let Some(inside) = b.in_range(&at[first..first + spatial], &in_shape[first..first + spatial]) {
        guards = Some(guards.map_or(inside, |g| b.binary(BinaryOp::And, g, inside)));
    }
    let x = b.pull(input, &at)?;
    let x = element(b, x, input);
    let padding = {
        let dtype = b.exprs.dtype(x);
        let padding = match dtype.is_int() {
            true => Scalar::Int(conv.pad_value),
            false => Scalar::zero(dtype),
        };
        b.exprs.add(ir::kernel::Expr::Const(dtype, padding), dtype)
    };
    let x = guards.map_or(x, |g| b.select(g, x, padding));
    let mut tap = vec![Linear::constant(0); rank];
    tap[kernel_at..kernel_at + spatial].clone_from_slice(&taps[..spatial]);
    match (conv.transposed.is_some(), conv.layout) {
        (false, _) => {
            tap[0] = filter_at.clone();
            tap[depth_at] = taps[spatial].clone();
        }
        // Filters `[I, O/g, k…]`.
        (true, Layout::ChannelsFirst) => {
            tap[0] = group[0].scale(&in_channels).plus(&taps[spatial]);
            tap[1] = filter_in_group[0].clone();
        }
        // Filters `[I, k…, O/g]`.
        (true, Layout::ChannelsLast) => {
            tap[0] = group[0].scale(&in_channels).plus(&taps[spatial]);
            tap[depth_at] = filter_in_group[0].clone();
        }
    }
    let f = b.pull(filter, &tap)?;
    let f = element(b, f, filter);
    let acc = b.var(acc_type);
    let e = b.read(acc);
    let epilogue = if let Share::Partials(parts) = b.share {
        vec![parts::store(b, e, parts, &dims, &part_at, &cell)]
    } else {
        let bias = match operands.get(2) {
            Some(bias) => Some(b.pull(*bias, std::slice::from_ref(&filter_at))?),
            None => None,
        };
        let e = biased(b, e, bias, conv.out);
        b.epilogue(anchor, e, result, &[])?
    };
    let kernel_size: Option<Vec<i64>> = kernel.iter().map(Dim::as_const).collect();
    let facts = match (
        (conv.transposed.is_none() || !target.is_gpu()) && b.share == Share::Whole,
        kernel_size,
        b.param_of.get(&input),
        b.param_of.get(&filter),
    ) {
        (true, Some(kernel_size), Some(i), Some(f)) => Some(ConvFacts {
            input: *i,
            filter: *f,
            layout: conv.layout,
            window: conv.window.clone(),
            groups: conv.groups,
            batch: in_shape[0].clone(),
            channels: in_shape[channel].clone(),
            filters: out[channel].clone(),
            input_size: in_shape[first..first + spatial].to_vec(),
            kernel_size,
            output_size: out[first..first + spatial].to_vec(),
            pad_value: conv.pad_value,
            transposed: conv.transposed.is_some(),
        }),
        _ => None,
    };
    Ok(Body::Contract(ContractBody {
        batch: [part, batch].concat(),
        m: rows,
        n: cols,
        k: depth,
        lhs: Operand::new(&b.exprs, x),
        rhs: Operand::new(&b.exprs, f),
        acc,
        pair: None,
        statistic: None,
        epilogue,
        conv: facts,
    }))
}
