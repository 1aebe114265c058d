//! Types of composites and library calls.

use super::window::{LARGEST, contract_of, conv, pool};
use super::{Class, Cx, Inferred, attribute, one};
use crate::dim::{Dim, Shape};
use crate::graph::op::{Composite, Groups, Layout, Recurrent};
use crate::library::{Collective, CollectiveKind, GemmScale, LibraryCall, LibraryOp};
use crate::types::DType;

pub(super) fn composite(c: &Composite, cx: &Cx<'_>) -> Inferred {
    let (min, max) = match c {
        Composite::Softmax { .. } | Composite::LogSoftmax { .. } | Composite::LocalResponseNorm { .. } => (1, 1),
        Composite::LayerNorm { .. } => (1, 3),
        Composite::RmsNorm { .. } => (1, 2),
        Composite::BatchNorm { .. } => (5, 5),
        Composite::GroupNorm { .. } => (3, 3),
        Composite::Attention { mask, scales, .. } => {
            let operands = 3 + usize::from(*mask) + usize::from(*scales);
            (operands, operands)
        }
        Composite::Dequantize { .. } | Composite::Quantize { .. } => (2, 3),
        Composite::Recurrent(layer) => (layer.places().count, layer.places().count),
    };
    cx.count(min, max)?;
    if let Composite::Dequantize { groups, out } = c {
        return dequantize(groups.as_ref(), *out, cx);
    }
    if let Composite::Quantize { out } = c {
        return quantize(*out, cx);
    }
    let dtype = cx.class(0, Class::Float)?;
    let shape = cx.operands[0].shape.clone();
    let rank = shape.rank();
    match c {
        Composite::Softmax { axis } | Composite::LogSoftmax { axis } => {
            cx.axis(*axis, rank)?;
        }
        Composite::LayerNorm { axis, .. } | Composite::RmsNorm { axis, .. } => {
            cx.axis(*axis, rank)?;
            for operand in 1..cx.operands.len() {
                cx.same_dtype(0, operand)?;
                cx.equal_shapes(
                    "shape of the scale or bias and of the normalised axes",
                    &cx.operands[operand].shape,
                    &shape[*axis..],
                )?;
            }
        }
        Composite::BatchNorm { layout, .. } => {
            cx.rank_at_least(0, 2)?;
            per_channel(cx, layout.channel_axis(rank))?;
        }
        Composite::GroupNorm { groups, .. } => {
            cx.rank_at_least(0, 2)?;
            let channels = &shape[Layout::ChannelsFirst.channel_axis(rank)];
            if *groups < 1 || channels.exact_div(&(*groups).into()).is_none() {
                return attribute("groups", format!("{groups} does not divide the {channels} channels"));
            }
            per_channel(cx, Layout::ChannelsFirst.channel_axis(rank))?;
        }
        Composite::Attention { mask, scales, .. } => return attention(*mask, *scales, dtype, cx),
        Composite::Recurrent(layer) => return recurrent(layer, dtype, cx),
        Composite::Dequantize { .. } | Composite::Quantize { .. } => {}
        Composite::LocalResponseNorm { size, .. } => {
            cx.rank_at_least(0, 2)?;
            if !(1..=LARGEST).contains(size) {
                return attribute("size", format!("{size} is not inside 1..=2^30"));
            }
        }
    }
    Ok(one(dtype, shape))
}

fn recurrent(layer: &Recurrent, dtype: DType, cx: &Cx<'_>) -> Inferred {
    let places = layer.places();
    for (operand, rank) in [(0, 3), (1, 2), (2, 2)] {
        cx.rank_is(operand, rank)?;
        // Weights may be stored in fewer bits than what is computed with them.
        let narrow = matches!(cx.operands[operand].dtype, DType::F16 | DType::BF16);
        if operand != 1 || dtype != DType::F32 || !narrow {
            cx.same_dtype(0, operand)?;
        }
    }
    let (x, hidden) = (&cx.operands[0].shape, cx.operands[2].shape[1].clone());
    let row = Shape(vec![x[1].clone(), hidden.clone()]);
    let gates = hidden.clone() * layer.cell.gates();
    cx.equal(
        "the gates of the inputs' products and of the hidden state",
        &x[2],
        &gates,
    )?;
    let weights = Shape(vec![gates, hidden.clone()]);
    cx.equal_shapes(
        "the recurrent weights and the hidden state",
        &cx.operands[1].shape,
        &weights,
    )?;
    cx.equal_shapes("the first hidden state and the batch", &cx.operands[2].shape, &row)?;
    if let Some(at) = places.cell {
        cx.same_dtype(0, at)?;
        cx.equal_shapes("the first cell state and hidden state", &cx.operands[at].shape, &row)?;
    }
    if let Some(at) = places.bias {
        cx.same_dtype(0, at)?;
        cx.vector(at, "the recurrent bias and the hidden state", &hidden)?;
    }
    if let Some(at) = places.peepholes {
        cx.same_dtype(0, at)?;
        cx.vector(at, "the peepholes and three gates", &(hidden.clone() * 3))?;
    }
    if let Some(at) = places.lengths {
        if cx.operands[at].dtype != DType::I64 {
            return attribute(
                "lengths",
                format!("they are {}, and must be i64", cx.operands[at].dtype),
            );
        }
        cx.vector(at, "the lengths and the batch", &x[1])?;
    }
    Ok(one(dtype, vec![x[0].clone(), x[1].clone(), hidden * layer.states()]))
}

fn per_channel(cx: &Cx<'_>, axis: usize) -> Result<(), super::Reason> {
    for operand in 1..cx.operands.len() {
        cx.same_dtype(0, operand)?;
        cx.vector(
            operand,
            "a statistic's size and the channels",
            &cx.operands[0].shape[axis],
        )?;
    }
    Ok(())
}

fn attention(mask: bool, scales: bool, dtype: DType, cx: &Cx<'_>) -> Inferred {
    for operand in 0..3 {
        cx.rank_is(operand, 4)?;
        cx.same_dtype(0, operand)?;
    }
    let (q, k, v) = (&cx.operands[0].shape, &cx.operands[1].shape, &cx.operands[2].shape);
    cx.equal("the batch of q and k", &q[0], &k[0])?;
    cx.equal("the batch of q and v", &q[0], &v[0])?;
    cx.equal("the heads of k and v", &k[1], &v[1])?;
    cx.equal("the keys of k and v", &k[2], &v[2])?;
    cx.equal("the head size of q and k", &q[3], &k[3])?;
    if q[1].exact_div(&k[1]).is_none() {
        return attribute("k", format!("its {} heads do not divide the {} heads of q", k[1], q[1]));
    }
    let scores = Shape(vec![q[0].clone(), q[1].clone(), q[2].clone(), k[2].clone()]);
    if scales {
        let (at, wanted) = (
            cx.operands.len() - 1,
            if dtype == DType::F64 { DType::F64 } else { DType::F32 },
        );
        let got = cx.operands[at].dtype;
        if got != wanted {
            return attribute("scales", format!("they are {got}, and multiply scores of {wanted}"));
        }
        let wide = cx.broadcast_two(at, &scores, &cx.operands[at].shape)?;
        cx.equal_shapes("the scales broadcast to the scores", &scores, &wide)?;
    }
    if mask {
        let got = cx.operands[3].dtype;
        if got != DType::Bool && got != dtype {
            cx.same_dtype(0, 3)?;
        }
        let wide = cx.broadcast_two(3, &scores, &cx.operands[3].shape)?;
        cx.equal_shapes("the mask broadcasts to the scores", &scores, &wide)?;
    }
    Ok(one(dtype, vec![q[0].clone(), q[1].clone(), q[2].clone(), v[3].clone()]))
}

fn dequantize(groups: Option<&Groups>, out: DType, cx: &Cx<'_>) -> Inferred {
    let stored = cx.class(0, Class::Number)?;
    if stored.bits() > 8 {
        return attribute(
            "x",
            format!("quantised numbers have at most 8 bits; {stored} has {}", stored.bits()),
        );
    }
    no_zero(stored, cx)?;
    if !matches!(out, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
        return attribute("out", format!("numbers are f16, bf16, f32 or f64, not {out}"));
    }
    let shape = &cx.operands[0].shape;
    if let Some(groups) = groups {
        cx.axis(groups.axis, shape.rank())?;
        if !(1..=LARGEST).contains(&groups.size) {
            return attribute("group", format!("{} is not inside 1..=2^30", groups.size));
        }
    }
    for operand in 1..cx.operands.len() {
        cx.class(operand, if operand == 1 { Class::Float } else { Class::Number })?;
        cx.rank_is(operand, shape.rank())?;
        for (axis, (given, size)) in cx.operands[operand].shape.iter().zip(shape.iter()).enumerate() {
            if given.is(1) {
                continue;
            }
            match groups {
                Some(groups) if groups.axis == axis => {
                    cx.equal("the groups and the scales or zero points", &groups.count(size), given)?;
                }
                _ => cx.equal("the axis and its scales or zero points", size, given)?,
            }
        }
    }
    Ok(one(out, shape.clone()))
}

/// Refuses a zero point of 8-bit floats, which have their own 0.
fn no_zero(stored: DType, cx: &Cx<'_>) -> Result<(), super::Reason> {
    if stored.is_f8() && cx.operands.len() > 2 {
        return attribute("zero", format!("{stored} has no zero point; leave the operand out")).map(|_: ()| ());
    }
    Ok(())
}

fn quantize(out: DType, cx: &Cx<'_>) -> Inferred {
    cx.class(0, Class::Float)?;
    if !matches!(out, DType::I8 | DType::U8) && !out.is_f8() {
        return attribute(
            "out",
            format!("numbers are quantised to i8, u8 or an 8-bit float, not {out}"),
        );
    }
    no_zero(out, cx)?;
    let shape = &cx.operands[0].shape;
    for operand in 1..cx.operands.len() {
        cx.class(operand, if operand == 1 { Class::Float } else { Class::Number })?;
        cx.rank_is(operand, shape.rank())?;
        for (given, size) in cx.operands[operand].shape.iter().zip(shape.iter()) {
            if !given.is(1) {
                cx.equal("the axis and its scales or zero points", size, given)?;
            }
        }
    }
    Ok(one(out, shape.clone()))
}

pub(super) fn call(call: &LibraryCall, cx: &Cx<'_>) -> Inferred {
    match &call.op {
        LibraryOp::Gemm {
            contract,
            scale,
            epilogue,
        } => {
            let scaled = *scale != GemmScale::None;
            let count = 2 + usize::from(scaled) + usize::from(epilogue.has_bias());
            cx.count(count, count)?;
            let types = contract_of(contract, cx)?;
            let n = &types[0].shape[types[0].rank() - 1];
            if scaled {
                let factor = cx.operands[2];
                if factor.dtype != DType::F32 {
                    return attribute("scale", format!("sums are scaled by f32, not by {}", factor.dtype));
                }
                match scale {
                    GemmScale::Columns => cx.vector(2, "the scales and the columns", n)?,
                    _ if factor.shape.iter().all(|size| size.is(1)) => {}
                    _ => return attribute("scale", format!("a tensor's scale is one number, not {}", factor.shape)),
                }
            }
            if epilogue.has_bias() {
                cx.class(count - 1, Class::Number)?;
                cx.vector(count - 1, "the bias and the columns", n)?;
            }
            Ok(types)
        }
        LibraryOp::Conv(c) => {
            cx.count(2, 2)?;
            conv(c, cx)
        }
        LibraryOp::Pool(p) => pool(p, cx),
        LibraryOp::Softmax { axis } => composite(&Composite::Softmax { axis: *axis }, cx),
        LibraryOp::Collective(c) => collective(*c, cx),
    }
}

fn collective(c: Collective, cx: &Cx<'_>) -> Inferred {
    cx.count(1, 1)?;
    if !(2..=Collective::MOST_RANKS).contains(&c.ranks) {
        let most = Collective::MOST_RANKS;
        return attribute(
            "ranks",
            format!("a collective is of 2 to {most} ranks, not of {}", c.ranks),
        );
    }
    let part = cx.operands[0];
    if !c.takes(part.dtype) {
        return attribute("ranks", format!("no library has {} of {}", c.kind.name(), part.dtype));
    }
    Ok(match c.kind {
        CollectiveKind::AllReduce => one(part.dtype, part.shape.clone()),
        CollectiveKind::AllGather => {
            let ranks = std::iter::once(Dim::Const(i64::from(c.ranks)));
            one(part.dtype, ranks.chain(part.shape.iter().cloned()).collect::<Shape>())
        }
    })
}
