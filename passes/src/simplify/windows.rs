//! Pads of what a convolution or a pool reads, which those do themselves.

use ir::op::{PadMode, Pool, PoolKind, View, Window};
use ir::types::Scalar;
use ir::{Op, Value};

use crate::error::PassFault;
use crate::rewrite::{Builder, Rule};

type Answer = Result<Option<Value>, PassFault>;

/// The rules of this file.
pub const RULES: &[Rule] = &[Rule {
    name: "pad_into_window",
    apply: pad_into_window,
}];

/// A convolution or pool of a padded image, as TensorFlow's SAME is exported: the window begins further out.
///
/// A convolution's padding is what its filter takes for nothing; a maximum's is below all numbers. A mean's padding is
/// 0 and counts, where none of its own does not.
fn pad_into_window(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let (window, layout) = match op {
        Op::Conv(conv) if conv.transposed.is_none() => (&conv.window, conv.layout),
        Op::Pool(pool) if !pool.ceil => (&pool.window, pool.layout),
        _ => return Ok(None),
    };
    let (Op::View(View::Pad { low, high, mode }), of) = b.def(x[0]) else {
        return Ok(None);
    };
    let PadMode::Constant(filled) = mode else {
        return Ok(None);
    };
    let number = match filled {
        Scalar::Float(v) => *v,
        Scalar::Int(v) => *v as f64,
        Scalar::Bool(_) => return Ok(None),
    };
    let unpadded = window.pad_low.iter().chain(&window.pad_high).all(|pad| *pad == 0);
    let stands_for_nothing = match op {
        Op::Conv(conv) => number == conv.pad_value as f64,
        Op::Pool(Pool {
            kind: PoolKind::Max, ..
        }) => number == f64::NEG_INFINITY,
        Op::Pool(Pool {
            kind: PoolKind::Average { count_padding },
            ..
        }) => number == 0.0 && (*count_padding || unpadded),
        _ => false,
    };
    let sizes = |pads: &[ir::Dim]| -> Option<Vec<i64>> {
        let sizes = pads.iter().map(|pad| pad.as_const().filter(|pad| *pad >= 0));
        sizes.collect()
    };
    let (Some(low), Some(high)) = (sizes(low), sizes(high)) else {
        return Ok(None);
    };
    let rank = low.len();
    let channels = layout.channel_axis(rank);
    if !stands_for_nothing || [0, channels].iter().any(|axis| low[*axis] + high[*axis] != 0) {
        return Ok(None);
    }
    let spatial = || (1..rank).filter(|axis| *axis != channels);
    let taps: Vec<i64> = match op {
        Op::Pool(pool) => pool.size.clone(),
        _ => match spatial().map(|axis| b.ty(x[1]).shape[axis].as_const()).collect() {
            Some(taps) => taps,
            None => return Ok(None),
        },
    };
    let with = |pads: &[i64], own: &[i64]| -> Vec<i64> {
        let pads = spatial().map(|axis| pads[axis]);
        pads.zip(own).map(|(pad, own)| pad.saturating_add(*own)).collect()
    };
    let window = Window {
        pad_low: with(&low, &window.pad_low),
        pad_high: with(&high, &window.pad_high),
        ..window.clone()
    };
    // Windows of nothing but padding are what libraries and kernels were not made for.
    let reach = taps.iter().zip(&window.dilations).map(|(taps, d)| d * (taps - 1));
    let mut pads = window.pad_low.iter().zip(&window.pad_high).zip(reach);
    if !pads.all(|((low, high), reach)| *low <= reach && *high <= reach) {
        return Ok(None);
    }
    let op = match op {
        Op::Conv(conv) => Op::Conv(ir::op::Conv { window, ..conv.clone() }),
        Op::Pool(pool) => Op::Pool(Pool {
            window,
            kind: match pool.kind {
                PoolKind::Average { .. } => PoolKind::Average { count_padding: true },
                kind => kind,
            },
            ..pool.clone()
        }),
        _ => return Ok(None),
    };
    let mut operands = x.to_vec();
    operands[0] = of[0];
    b.emit(op, &operands).map(Some)
}
