//! Convolutions, and how windows read their attributes.

use ir::op::{BinaryOp, Conv, Layout, Op, PadMode, View, Window};
use ir::{DType, Dim, Scalar};

use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    op("Conv", 1, conv),
    op("ConvInteger", 10, conv_integer),
    op("ConvTranspose", 1, conv_transpose),
];

/// The largest stride, pad, kernel or dilation; keeps window arithmetic inside 64 bits.
const WINDOW_LIMIT: i64 = 1 << 24;

/// Reads a list with one entry a spatial axis.
pub(super) fn spatial_list(node: &Node<'_>, name: &str, spatial: usize, least: i64) -> Step<Option<Vec<i64>>> {
    let Some(list) = node.ints(name)? else { return Ok(None) };
    if list.len() != spatial || list.iter().any(|v| !(least..=WINDOW_LIMIT).contains(v)) {
        return node.bad(name, list, format!("{spatial} numbers of at least {least}"));
    }
    Ok(Some(list))
}

/// Reads strides, dilations and pads; `auto_pad` is worked out for the given output rule.
///
/// With `SAME_*` an axis of `n` gives `⌈n / stride⌉`.
pub(super) fn window(node: &Node<'_>, spatial: &[Dim], kernel: &[i64]) -> Step<Window> {
    let count = spatial.len();
    let strides = spatial_list(node, "strides", count, 1)?.unwrap_or_else(|| vec![1; count]);
    let dilations = spatial_list(node, "dilations", count, 1)?.unwrap_or_else(|| vec![1; count]);
    let (mut pad_low, mut pad_high) = (vec![0; count], vec![0; count]);
    match node.text("auto_pad", "NOTSET")?.as_str() {
        "NOTSET" | "" => {
            if let Some(pads) = spatial_list(node, "pads", count * 2, 0)? {
                pad_low.copy_from_slice(&pads[..count]);
                pad_high.copy_from_slice(&pads[count..]);
            }
        }
        "VALID" => {}
        mode @ ("SAME_UPPER" | "SAME_LOWER") => {
            for axis in 0..count {
                let reach = (kernel[axis] - 1) * dilations[axis] + 1;
                let total = same_padding(node, &spatial[axis], strides[axis], reach)?;
                let (small, large) = (total / 2, total - total / 2);
                (pad_low[axis], pad_high[axis]) = if mode == "SAME_UPPER" {
                    (small, large)
                } else {
                    (large, small)
                };
            }
        }
        other => return node.bad("auto_pad", other, "NOTSET, VALID, SAME_UPPER or SAME_LOWER"),
    }
    Ok(Window {
        strides,
        pad_low,
        pad_high,
        dilations,
    })
}

/// `max((⌈n / stride⌉ − 1)·stride + reach − n, 0)`.
fn same_total(node: &Node<'_>, size: &Dim, stride: i64, reach: i64) -> Dim {
    let needed = (size.ceil_div(&Dim::Const(stride)) - 1) * stride + reach - size.clone();
    node.build.sizes.max(&needed, &Dim::Const(0))
}

/// An image that is padded before its window moves, and the sizes of the result's axes.
pub(super) struct Padded {
    pub x: Val,
    pub window: Window,
    sizes: Option<Vec<Dim>>,
}

impl Padded {
    /// Gives the result the sizes that it has at every size of the image, `⌈n / stride⌉`.
    pub fn sized(&self, node: &mut Node<'_>, result: Val) -> Step<Val> {
        let Some(sizes) = &self.sizes else { return Ok(result) };
        let mut shape = node.shape(result).0;
        shape[2..].clone_from_slice(sizes);
        let (starts, steps) = (vec![Dim::Const(0); shape.len()], vec![1; shape.len()]);
        node.slice(result, starts, shape, steps)
    }
}

/// Reads the window over the axes of an image from the third on. `SAME_*` padding that depends on an open size, which
/// no window has, is put around the image first.
pub(super) fn padded(node: &mut Node<'_>, x: Val, kernel: &[i64], value: Scalar) -> Step<Padded> {
    let spatial = node.shape(x)[2..].to_vec();
    let count = spatial.len();
    let mode = node.text("auto_pad", "NOTSET")?;
    let strides = spatial_list(node, "strides", count, 1)?.unwrap_or_else(|| vec![1; count]);
    let dilations = spatial_list(node, "dilations", count, 1)?.unwrap_or_else(|| vec![1; count]);
    let total = |axis: usize| {
        let reach = (kernel[axis] - 1) * dilations[axis] + 1;
        same_total(node, &spatial[axis], strides[axis], reach)
    };
    let totals: Vec<Dim> = (0..count).map(total).collect();
    if !mode.starts_with("SAME") || totals.iter().all(|t| t.as_const().is_some()) {
        let window = window(node, &spatial, kernel)?;
        return Ok(Padded { x, window, sizes: None });
    }
    let (mut low, mut high) = (vec![Dim::Const(0); count + 2], vec![Dim::Const(0); count + 2]);
    for (axis, total) in totals.iter().enumerate() {
        let small = total.floor_div(&Dim::Const(2));
        let large = total.clone() - &small;
        (low[axis + 2], high[axis + 2]) = match mode.as_str() {
            "SAME_UPPER" => (small, large),
            _ => (large, small),
        };
    }
    let mode = PadMode::Constant(value);
    let x = node.add(Op::View(View::Pad { low, high, mode }), &[x])?;
    let sizes: Vec<Dim> = (0..count)
        .map(|axis| spatial[axis].ceil_div(&Dim::Const(strides[axis])))
        .collect();
    Ok(Padded {
        x,
        window: Window {
            pad_low: vec![0; count],
            pad_high: vec![0; count],
            strides,
            dilations,
        },
        sizes: Some(sizes),
    })
}

/// The padding of `SAME_*`, which must be a number.
fn same_padding(node: &Node<'_>, size: &Dim, stride: i64, reach: i64) -> Step<i64> {
    match same_total(node, size, stride, reach).as_const() {
        Some(total) => Ok(total),
        None => {
            let size = size.clone();
            node.unsupported(format!(
                "SAME padding with stride {stride} over the varying size {size}; fix it with --size NAME=SIZE or --shape INPUT=[DIMS]"
            ))
        }
    }
}

fn constants(dims: &[Dim]) -> Option<Vec<i64>> {
    dims.iter()
        .map(|d| d.as_const().filter(|v| (1..=WINDOW_LIMIT).contains(v)))
        .collect()
}

/// The kernel from the filter's shape; the attribute must agree.
fn kernel(node: &Node<'_>, filter: Val, spatial: usize) -> Step<Vec<i64>> {
    let shape = node.shape(filter);
    let Some(kernel) = constants(&shape[2..]) else {
        return node.unsupported(format!("a kernel of shape {shape}, which is not constant"));
    };
    if let Some(stated) = spatial_list(node, "kernel_shape", spatial, 1)?
        && stated != kernel
    {
        return node.bad("kernel_shape", stated, format!("the filter's, {kernel:?}"));
    }
    Ok(kernel)
}

struct Parts {
    x: Val,
    filter: Val,
    operands: Vec<Val>,
    spatial: Vec<Dim>,
    groups: i64,
}

fn parts(node: &mut Node<'_>, transposed: bool) -> Step<Parts> {
    let (x, filter) = (node.input(0)?, node.input(1)?);
    let (input, weights) = (node.shape(x), node.shape(filter));
    if input.rank() < 3 {
        return node.rank_error(0, "at least 3");
    }
    if weights.rank() != input.rank() {
        return node.rank_error(1, input.rank().to_string());
    }
    let groups = node.int_or("group", 1)?;
    if !(1..=WINDOW_LIMIT).contains(&groups) {
        return node.bad("group", groups, "at least 1");
    }
    let channels = if transposed {
        weights[0].clone()
    } else {
        weights[1].clone() * groups
    };
    node.build.require_equal(&input[1], &channels)?;
    let operands = [Some(x), Some(filter), node.optional(2)]
        .into_iter()
        .flatten()
        .collect();
    Ok(Parts {
        x,
        filter,
        operands,
        spatial: input[2..].to_vec(),
        groups,
    })
}

pub(super) fn conv(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let p = parts(node, false)?;
    let kernel = kernel(node, p.filter, p.spatial.len())?;
    let dtype = node.dtype(p.x);
    let padded = padded(node, p.x, &kernel, Scalar::zero(dtype))?;
    let mut operands = p.operands;
    operands[0] = padded.x;
    let out = dtype;
    let conv = Conv {
        window: padded.window.clone(),
        groups: p.groups,
        layout: Layout::ChannelsFirst,
        transposed: None,
        pad_value: 0,
        out,
    };
    let result = node.add(Op::Conv(conv), &operands)?;
    Ok(vec![padded.sized(node, result)?])
}

/// `(x − x₀) ∗ (w − w₀)` in `i32`; `w₀` is one number or one a filter.
fn conv_integer(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, filter) = (node.input(0)?, node.input(1)?);
    let (x_zero, filter_zero) = (node.optional(2), node.optional(3));
    Ok(vec![integer_conv(node, (x, x_zero), (filter, filter_zero), None)?])
}

/// A convolution of quantised operands, each with its zero point, in `i32`.
pub(super) fn integer_conv(
    node: &mut Node<'_>,
    x: (Val, Option<Val>),
    filter: (Val, Option<Val>),
    bias: Option<Val>,
) -> Step<Val> {
    let x = centred(node, x.0, x.1, 1)?;
    let filter = centred(node, filter.0, filter.1, 0)?;
    let (input, weights) = (node.shape(x), node.shape(filter));
    if input.rank() < 3 || weights.rank() != input.rank() {
        return node.rank_error(0, "at least 3, and the filter's the same");
    }
    let kernel = kernel(node, filter, input.rank() - 2)?;
    let padded = padded(node, x, &kernel, Scalar::Int(0))?;
    let groups = node.int_or("group", 1)?;
    if !(1..=WINDOW_LIMIT).contains(&groups) {
        return node.bad("group", groups, "at least 1");
    }
    node.build.require_equal(&input[1], &(weights[1].clone() * groups))?;
    let operands: Vec<Val> = [Some(padded.x), Some(filter), bias].into_iter().flatten().collect();
    let conv = Conv {
        window: padded.window.clone(),
        groups,
        layout: Layout::ChannelsFirst,
        transposed: None,
        pad_value: 0,
        out: DType::I32,
    };
    let result = node.add(Op::Conv(conv), &operands)?;
    padded.sized(node, result)
}

/// `x − zero` in `i32`; a vector of zero points runs along `axis`.
pub(super) fn centred(node: &mut Node<'_>, x: Val, zero: Option<Val>, axis: usize) -> Step<Val> {
    let wide = node.cast(x, DType::I32)?;
    let Some(zero) = zero else { return Ok(wide) };
    let mut zero = node.cast(zero, DType::I32)?;
    if node.rank(zero) == 1 {
        let mut dims = vec![Dim::Const(1); node.rank(x)];
        if let Some(dim) = dims.get_mut(axis) {
            *dim = node.shape(zero)[0].clone();
        }
        zero = node.reshape(zero, dims)?;
    }
    node.binary(BinaryOp::Sub, wide, zero)
}

/// `output_shape`, where given, sets the padding: `total = stride·(n − 1) + extra + reach − output`.
fn conv_transpose(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let p = parts(node, true)?;
    let count = p.spatial.len();
    let kernel = kernel(node, p.filter, count)?;
    let mut extra = spatial_list(node, "output_padding", count, 0)?.unwrap_or_else(|| vec![0; count]);
    let auto = node.text("auto_pad", "NOTSET")?;
    let same = auto.starts_with("SAME");
    let output = spatial_list(node, "output_shape", count, 1)?;
    let strides = spatial_list(node, "strides", count, 1)?.unwrap_or_else(|| vec![1; count]);
    let dilations = spatial_list(node, "dilations", count, 1)?.unwrap_or_else(|| vec![1; count]);
    let window = if output.is_none() && !same {
        window(node, &p.spatial, &kernel)?
    } else {
        let (mut pad_low, mut pad_high) = (vec![0; count], vec![0; count]);
        for axis in 0..count {
            let reach = (kernel[axis] - 1) * dilations[axis] + 1;
            let full = (p.spatial[axis].clone() - 1) * strides[axis] + extra[axis] + reach;
            let wanted = match &output {
                Some(sizes) => Dim::Const(sizes[axis]),
                None => p.spatial[axis].clone() * strides[axis],
            };
            let Some(total) = (full - wanted.clone()).as_const() else {
                let size = p.spatial[axis].clone();
                return node.unsupported(format!("an output size of {wanted} for the varying size {size}"));
            };
            if total < 0 {
                // Larger than any padding gives: the rest is added after.
                extra[axis] -= total;
                continue;
            }
            let (small, large) = (total / 2, total - total / 2);
            (pad_low[axis], pad_high[axis]) = if auto == "SAME_UPPER" {
                (small, large)
            } else {
                (large, small)
            };
        }
        Window {
            strides,
            pad_low,
            pad_high,
            dilations,
        }
    };
    let out = node.dtype(p.x);
    let conv = Conv {
        window,
        groups: p.groups,
        layout: Layout::ChannelsFirst,
        transposed: Some(extra),
        pad_value: 0,
        out,
    };
    Ok(vec![node.add(Op::Conv(conv), &p.operands)?])
}
