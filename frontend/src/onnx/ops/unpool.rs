//! Positions of the largest elements of windows, and what puts elements back: `MaxUnpool`, `Col2Im`.

use ir::op::{BinaryOp, Conv, Layout, Op, PadMode, Pool, Scatter, View, Window};
use ir::{DType, Dim, HostTensor, Scalar, Shape};

use super::conv::spatial_list;
use super::resize::constant;
use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::known::Known;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[op("Col2Im", 18, col2im), op("MaxUnpool", 9, max_unpool)];

/// The most taps of a window whose positions are asked for: each is a few nodes.
const TAP_LIMIT: i64 = 1024;

/// The flat position in the whole tensor of the largest element of each window, the first of equals.
///
/// Each tap is a strided slice of the padded image; the largest so far is kept with its place. With `column_major`
/// positions within an image count along its first axis.
pub(super) fn positions(node: &mut Node<'_>, x: Val, pool: &Pool, result: &Shape, column_major: bool) -> Step<Val> {
    let shape = node.shape(x);
    let taps: i64 = pool.size.iter().product();
    if taps > TAP_LIMIT {
        return node.unsupported(format!(
            "the Indices of a MaxPool of {taps} elements a window, more than {TAP_LIMIT},"
        ));
    }
    let (rank, spatial) = (shape.rank(), shape.rank() - 2);
    let dtype = node.dtype(x);
    let least = match dtype.int_range() {
        Some((low, _)) => Scalar::Int(low),
        None => Scalar::Float(f64::NEG_INFINITY),
    };
    // Enough behind the image for the last window.
    let (mut low, mut high) = (vec![Dim::Const(0); rank], vec![Dim::Const(0); rank]);
    for axis in 0..spatial {
        let (stride, reach) = (
            pool.window.strides[axis],
            (pool.size[axis] - 1) * pool.window.dilations[axis] + 1,
        );
        let needed = (result[2 + axis].clone() - 1) * stride + reach;
        let before = Dim::Const(pool.window.pad_low[axis]);
        let behind = needed - shape[2 + axis].clone() - before.clone();
        low[2 + axis] = before;
        high[2 + axis] = node.build.sizes.max(&behind, &Dim::Const(0));
    }
    let mode = PadMode::Constant(least);
    let padded = match low.iter().chain(&high).all(|d| d.is(0)) {
        true => x,
        false => node.add(Op::View(View::Pad { low, high, mode }), &[x])?,
    };
    let mut strides = vec![1; rank];
    strides[2..].copy_from_slice(&pool.window.strides);
    let mut best: Option<(Val, Val)> = None;
    for tap in 0..taps {
        let (mut rest, mut at) = (tap, vec![0; spatial]);
        for axis in (0..spatial).rev() {
            at[axis] = rest % pool.size[axis] * pool.window.dilations[axis];
            rest /= pool.size[axis];
        }
        let mut starts = vec![Dim::Const(0); rank];
        for axis in 0..spatial {
            starts[2 + axis] = Dim::Const(at[axis]);
        }
        let value = node.slice(padded, starts, result.0.clone(), strides.clone())?;
        let place = place(node, &shape, pool, &at, result, column_major)?;
        best = Some(match best {
            None => (value, place),
            Some((most, before)) => {
                let larger = node.binary(BinaryOp::Gt, value, most)?;
                let most = node.select(larger, value, most)?;
                (most, node.select(larger, place, before)?)
            }
        });
    }
    let Some((_, within)) = best else {
        return node.rank_error(0, "at least 3");
    };
    // Images follow each other.
    let pixels: Dim = shape[2..].iter().cloned().product();
    let images = shape[0].clone() * shape[1].clone();
    let base = node.iota([images].into(), 0, DType::I64)?;
    let size = node.known(Known::scalar(pixels));
    let base = node.binary(BinaryOp::Mul, base, size)?;
    let mut dims = vec![Dim::Const(1); rank];
    dims[..2].clone_from_slice(&shape[..2]);
    let base = node.reshape(base, dims)?;
    node.binary(BinaryOp::Add, within, base)
}

/// The flat position within an image of a tap of each window, which may be outside.
fn place(node: &mut Node<'_>, shape: &Shape, pool: &Pool, at: &[i64], result: &Shape, column_major: bool) -> Step<Val> {
    let (rank, spatial) = (shape.rank(), shape.rank() - 2);
    let mut place: Option<Val> = None;
    let order: Vec<usize> = if column_major {
        (0..spatial).rev().collect()
    } else {
        (0..spatial).collect()
    };
    for axis in order {
        let windows = result[2 + axis].clone();
        let start = node.iota([windows.clone()].into(), 0, DType::I64)?;
        let start = node.with_scalar(BinaryOp::Mul, start, pool.window.strides[axis] as f64)?;
        let start = node.with_scalar(BinaryOp::Add, start, (at[axis] - pool.window.pad_low[axis]) as f64)?;
        let mut dims = vec![Dim::Const(1); rank];
        dims[2 + axis] = windows;
        let start = node.reshape(start, dims)?;
        place = Some(match place {
            Some(outer) => {
                let size = node.known(Known::scalar(shape[2 + axis].clone()));
                let row = node.binary(BinaryOp::Mul, outer, size)?;
                node.binary(BinaryOp::Add, row, start)?
            }
            None => start,
        });
    }
    match place {
        Some(place) => {
            let mut dims = result.0.clone();
            dims[0] = Dim::Const(1);
            dims[1] = Dim::Const(1);
            node.broadcast(place, Shape(dims))
        }
        None => node.rank_error(0, "at least 3"),
    }
}

/// Zeros, but for each element at its index in the tensor that was pooled.
fn max_unpool(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, indices) = (node.input(0)?, node.input(1)?);
    let shape = node.shape(x);
    let Some(spatial) = shape.rank().checked_sub(2).filter(|s| *s > 0) else {
        return node.rank_error(0, "at least 3");
    };
    let size = spatial_list(node, "kernel_shape", spatial, 1)?;
    let size = node.required("kernel_shape", size)?;
    let strides = spatial_list(node, "strides", spatial, 1)?.unwrap_or_else(|| vec![1; spatial]);
    let pads = spatial_list(node, "pads", 2 * spatial, 0)?.unwrap_or_else(|| vec![0; 2 * spatial]);
    let mut whole = shape.0[..2].to_vec();
    for axis in 0..spatial {
        let steps = (shape[2 + axis].clone() - 1) * strides[axis];
        whole.push(steps + (size[axis] - pads[axis] - pads[spatial + axis]));
    }
    let count: Dim = whole.iter().cloned().product();
    let elements = shape.elements();
    let zero = node.scalar(node.dtype(x), 0.0);
    let empty = node.broadcast(zero, [count].into())?;
    let values = node.reshape(x, [elements.clone()])?;
    let places = node.reshape(indices, [elements])?;
    let scatter = Op::Scatter(Scatter::Elements { axis: 0, reduce: None });
    let filled = node.add(scatter, &[empty, places, values])?;
    let mut result = node.reshape(filled, whole.clone())?;
    if node.optional(2).is_some() {
        let wanted = node.known_dims(2, "output shape")?;
        if wanted.len() != whole.len() {
            return node.rank_error(2, format!("1 with {} elements", whole.len()));
        }
        for (axis, wanted) in wanted.into_iter().enumerate().filter(|(axis, w)| *w != whole[*axis]) {
            let more = wanted - whole[axis].clone();
            result = super::attention::lengthened(node, result, axis, more, Scalar::Float(0.0))?;
        }
    }
    Ok(vec![result])
}

/// Adds blocks up at their places: a transposed convolution whose filters are one pixel each.
fn col2im(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let dtype = node.require_float(0)?;
    let (image, block) = (node.known_dims(1, "image shape")?, node.known_ints(2, "block shape")?);
    let spatial = image.len();
    let shape = node.shape(x);
    if spatial == 0 || block.len() != spatial || shape.rank() != 3 {
        return node.rank_error(0, "3, and the image's and the block's shapes of one length");
    }
    let taps: i64 = block.iter().product();
    let Some(channels) = shape[1].exact_div(&Dim::Const(taps.max(1))).and_then(|c| c.as_const()) else {
        return node.unsupported(format!("Col2Im of {} rows for blocks of {taps} elements", shape[1]));
    };
    if channels * taps * taps > 1 << 24 {
        return node.unsupported(format!("Col2Im of {channels} channels of {taps} elements a block"));
    }
    let strides = spatial_list(node, "strides", spatial, 1)?.unwrap_or_else(|| vec![1; spatial]);
    let dilations = spatial_list(node, "dilations", spatial, 1)?.unwrap_or_else(|| vec![1; spatial]);
    let pads = spatial_list(node, "pads", 2 * spatial, 0)?.unwrap_or_else(|| vec![0; 2 * spatial]);
    let mut split = shape.0[..2].to_vec();
    let mut extra = Vec::with_capacity(spatial);
    for axis in 0..spatial {
        let reach = (block[axis] - 1) * dilations[axis] + 1;
        let full = image[axis].clone() + (pads[axis] + pads[spatial + axis]);
        let count = (full.clone() - reach).floor_div(&Dim::Const(strides[axis])) + 1;
        let covered = (count.clone() - 1) * strides[axis] + reach;
        let Some(rest) = (full - covered).as_const() else {
            let size = image[axis].clone();
            return node.unsupported(format!("Col2Im to the varying size {size}"));
        };
        split.push(count);
        extra.push(rest);
    }
    let x = node.reshape(x, split)?;
    let mut filter = vec![0.0; (channels * taps * taps) as usize];
    for row in 0..channels * taps {
        filter[(row * taps + row % taps) as usize] = 1.0;
    }
    let mut dims = vec![(channels * taps) as usize, 1];
    dims.extend(block.iter().map(|b| *b as usize));
    let filter = constant(HostTensor::from_f64(dtype, dims, &filter))?;
    let filter = node.build.of_constant(None, filter);
    let conv = Conv {
        window: Window {
            strides,
            pad_low: pads[..spatial].to_vec(),
            pad_high: pads[spatial..].to_vec(),
            dilations,
        },
        groups: channels,
        layout: Layout::ChannelsFirst,
        transposed: Some(extra),
        pad_value: 0,
        out: dtype,
    };
    Ok(vec![node.add(Op::Conv(conv), &[x, filter])?])
}
