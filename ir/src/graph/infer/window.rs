//! Types of contractions, convolutions and pooling.

use super::{Class, Cx, Inferred, Reason, attribute, one};
use crate::dim::{Dim, Shape};
use crate::graph::op::{Contract, Conv, Layout, Pool, Window};
use crate::types::DType;

/// Window facts beyond this are refused, so that arithmetic on them never overflows.
pub(crate) const LARGEST: i64 = 1 << 30;

pub(super) fn contract(c: &Contract, cx: &Cx<'_>) -> Inferred {
    cx.count(2, 2)?;
    contract_of(c, cx)
}

/// The contraction of the first two operands.
pub(super) fn contract_of(c: &Contract, cx: &Cx<'_>) -> Inferred {
    let (lr, rr) = (cx.rank_at_least(0, 2)?, cx.rank_at_least(1, 2)?);
    products(cx, c.out)?;
    let (l, r) = (&cx.operands[0].shape, &cx.operands[1].shape);
    let (m, lk) = if c.transpose_lhs {
        (&l[lr - 1], &l[lr - 2])
    } else {
        (&l[lr - 2], &l[lr - 1])
    };
    let (rk, n) = if c.transpose_rhs {
        (&r[rr - 1], &r[rr - 2])
    } else {
        (&r[rr - 2], &r[rr - 1])
    };
    cx.equal("the contracted dims k of the two operands", lk, rk)?;
    let (lb, rb) = (Shape(l[..lr - 2].to_vec()), Shape(r[..rr - 2].to_vec()));
    let mut dims = cx.broadcast_two(1, &lb, &rb)?;
    dims.0.extend([m.clone(), n.clone()]);
    Ok(one(c.out, dims))
}

/// Checks the element types of two factors and of their summed products.
///
/// Factors are of one type, except that the 8-bit floats mix (as matrix cores have it) and so do the integers
/// (`u8 · i8`). Float products give floats, integer products give any number.
fn products(cx: &Cx<'_>, out: DType) -> Result<(), Reason> {
    let a = cx.class(0, Class::Number)?;
    let b = cx.class(1, Class::Number)?;
    let narrow = |d: DType| d.is_float() && d.bits() == 8;
    if a != b && !(a.is_int() && b.is_int()) && !(narrow(a) && narrow(b)) {
        return Err(Reason::DTypesDiffer {
            operand: 1,
            got: b,
            other: 0,
            other_dtype: a,
        });
    }
    let fits = if a.is_float() {
        out.is_float()
    } else {
        Class::Number.has(out)
    };
    if fits {
        Ok(())
    } else {
        attribute("out", format!("products of {a} and {b} cannot be {out}"))
    }
}

pub(super) fn conv(c: &Conv, cx: &Cx<'_>) -> Inferred {
    cx.count(2, 3)?;
    let rank = cx.rank_at_least(0, 3)?;
    cx.rank_is(1, rank)?;
    products(cx, c.out)?;
    let spatial = rank - 2;
    check_window(&c.window, spatial)?;
    if c.groups < 1 {
        return attribute("groups", format!("{} is not positive", c.groups));
    }
    if c.pad_value != 0 {
        let dtype = cx.operands[0].dtype;
        let fits = dtype
            .int_range()
            .is_some_and(|(low, high)| (low..=high).contains(&c.pad_value));
        if !fits || c.transposed.is_some() {
            return attribute(
                "pad_value",
                format!(
                    "{} is no number of {dtype}, or the convolution is transposed",
                    c.pad_value
                ),
            );
        }
    }
    let (input, filter) = (&cx.operands[0].shape, &cx.operands[1].shape);
    let channels = &input[c.layout.channel_axis(rank)];
    let inner = &filter[c.layout.channel_axis(rank)];
    let outer = &filter[0];
    let groups = Dim::Const(c.groups);
    let filters = match &c.transposed {
        None => {
            cx.equal(
                "the channels of the input and the filter's channels · groups",
                channels,
                &(inner.clone() * &groups),
            )?;
            outer.clone()
        }
        Some(extra) => {
            if extra.len() != spatial {
                return attribute(
                    "transposed",
                    format!("has {} entries for {spatial} spatial axes", extra.len()),
                );
            }
            if let Some(e) = extra.iter().find(|e| !(0..=LARGEST).contains(*e)) {
                return attribute("transposed", format!("the extra size {e} is not inside 0..=2^30"));
            }
            cx.equal("the channels of the input and of the filter", channels, outer)?;
            inner.clone() * &groups
        }
    };
    // Each group takes its own share of the filters (of a transposed convolution: of the channels).
    if outer.exact_div(&groups).is_none() {
        return attribute(
            "groups",
            format!("{} do not divide the filter's first dim {outer}", c.groups),
        );
    }
    let mut sizes = Vec::with_capacity(spatial);
    for i in 0..spatial {
        let kernel = &filter[c.layout.spatial_axis() + i];
        let Some(kernel) = kernel.as_const() else {
            return Err(Reason::NotConstant {
                what: "a kernel size",
                dim: kernel.clone(),
            });
        };
        if !(1..=LARGEST).contains(&kernel) {
            return attribute("filter", format!("the kernel size {kernel} is not inside 1..=2^30"));
        }
        let size = &input[c.layout.spatial_axis() + i];
        sizes.push(conv_output(
            size,
            kernel,
            &c.window,
            i,
            c.transposed.as_ref().map(|e| e[i]),
        ));
    }
    if cx.operands.len() == 3 {
        cx.vector(2, "the bias and the filters", &filters)?;
        let (bias, input) = (cx.operands[2].dtype, cx.operands[0].dtype);
        if bias != input && bias != c.out && bias != input.accumulator() {
            return Err(Reason::DTypesDiffer {
                operand: 2,
                got: bias,
                other: 0,
                other_dtype: input,
            });
        }
    }
    Ok(one(c.out, image(c.layout, &input[0], &filters, sizes)))
}

/// The size of a convolution's spatial axis `i`; `extra` is the extra size when it is transposed.
pub fn conv_output(size: &Dim, kernel: i64, window: &Window, i: usize, extra: Option<i64>) -> Dim {
    let (stride, dilation) = (window.strides[i], window.dilations[i]);
    let padding = window.pad_low[i] + window.pad_high[i];
    let reach = dilation * (kernel - 1) + 1;
    match extra {
        None => (size.clone() + Dim::Const(padding - reach)).floor_div(&Dim::Const(stride)) + 1,
        Some(extra) => (size.clone() - Dim::Const(1)) * stride + Dim::Const(reach + extra - padding),
    }
}

/// The size of a pooling's spatial axis `i`.
///
/// With `ceil`, windows that would start behind the input and its low padding are left out, as PyTorch and ONNX have
/// it.
pub fn pool_output(size: &Dim, pool: &Pool, i: usize) -> Dim {
    let w = &pool.window;
    let (stride, reach) = (w.strides[i], w.dilations[i] * (pool.size[i] - 1) + 1);
    let span = size.clone() + Dim::Const(w.pad_low[i] + w.pad_high[i] - reach);
    if !pool.ceil {
        return span.floor_div(&Dim::Const(stride)) + 1;
    }
    let up = span.ceil_div(&Dim::Const(stride)) + 1;
    if reach >= w.pad_high[i] + stride {
        return up; // the last window always starts inside
    }
    let inside = (size.clone() + Dim::Const(w.pad_low[i] - 1)).floor_div(&Dim::Const(stride)) + 1;
    up.smaller(&inside)
}

pub(super) fn pool(p: &Pool, cx: &Cx<'_>) -> Inferred {
    cx.count(1, 1)?;
    let rank = cx.rank_at_least(0, 3)?;
    let dtype = cx.class(0, Class::Number)?;
    let spatial = rank - 2;
    check_window(&p.window, spatial)?;
    if p.size.len() != spatial || p.size.iter().any(|s| !(1..=LARGEST).contains(s)) {
        return attribute(
            "size",
            format!("{:?} must have {spatial} entries, each positive", p.size),
        );
    }
    let shape = &cx.operands[0].shape;
    let sizes = (0..spatial)
        .map(|i| pool_output(&shape[p.layout.spatial_axis() + i], p, i))
        .collect();
    let channels = &shape[p.layout.channel_axis(rank)];
    Ok(one(dtype, image(p.layout, &shape[0], channels, sizes)))
}

fn image(layout: Layout, batch: &Dim, channels: &Dim, spatial: Vec<Dim>) -> Shape {
    let mut dims = vec![batch.clone()];
    match layout {
        Layout::ChannelsFirst => {
            dims.push(channels.clone());
            dims.extend(spatial);
        }
        Layout::ChannelsLast => {
            dims.extend(spatial);
            dims.push(channels.clone());
        }
    }
    Shape(dims)
}

fn check_window(w: &Window, spatial: usize) -> Result<(), Reason> {
    for (name, values, least) in [
        ("strides", &w.strides, 1),
        ("pad_low", &w.pad_low, 0),
        ("pad_high", &w.pad_high, 0),
        ("dilations", &w.dilations, 1),
    ] {
        if values.len() != spatial {
            return attribute(
                name,
                format!("{values:?} must have {spatial} entries, one a spatial axis"),
            );
        }
        if let Some(v) = values.iter().find(|v| **v < least || **v > LARGEST) {
            return attribute(name, format!("{v} is not inside {least}..=2^30"));
        }
    }
    Ok(())
}
