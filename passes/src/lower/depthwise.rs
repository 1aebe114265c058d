//! Convolutions of few channels a group: a fold over a window for each channel, and what is known of the window.
//!
//! Before: a convolution of `[1, 56, 56, 144]`, channels last, a filter of 3 x 3 for each channel. After:
//!
//! ```text
//! for y in 0..56, x in 0..56, c in 0..144 {
//!   window y + ky + -1 in 0..56
//!   window x + kx + -1 in 0..56
//!   v0 = sum over ky in 0..3, kx in 0..3 of select(y + ky + -1 >= 0 & .., x[..], 0) * filter[..]
//!   store out[..] = v0
//! }
//! ```

use ir::kernel::{Body, Loops, WindowBody, WindowFold};
use ir::op::{BinaryOp, Conv, Layout, ReduceOp};
use ir::{Dim, Op, Scalar, Target, Value};

use super::LowerError;
use super::builder::Builder;
use super::contract::biased;
use super::index::Linear;
use super::rows::fold;
use super::window::{Moves, along, in_order_of_memory};
use crate::filters;

/// Lowers a convolution whose groups have one channel each, or few.
pub fn convolution(b: &mut Builder<'_>, conv: &Conv, target: &Target) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let operands = b.graph.node(b.region.anchor).operands.clone();
    let (in_shape, out_shape) = (b.shape(operands[0]).clone(), b.shape(anchor).clone());
    let filter = b.shape(operands[1]).clone();
    let rank = out_shape.rank();
    let (first, channel, spatial) = (conv.layout.spatial_axis(), conv.layout.channel_axis(rank), rank - 2);
    let (kernel_at, depth_at) = match conv.layout {
        Layout::ChannelsFirst => (2, 1),
        Layout::ChannelsLast => (1, rank - 1),
    };
    let groups = Dim::Const(conv.groups);
    let filters = out_shape[channel].exact_div(&groups);
    let filters = filters.unwrap_or_else(|| out_shape[channel].floor_div(&groups));
    // A group's filters are neighbours.
    let of_channels = [groups, filters.clone()];
    let mut dims = out_shape.0.clone();
    dims.splice(channel..=channel, of_channels);
    let names: &[&str] = match conv.layout {
        Layout::ChannelsFirst => &["n", "c", "filter", "y", "x"],
        Layout::ChannelsLast if spatial == 1 => &["n", "x", "c", "filter"],
        Layout::ChannelsLast if spatial == 2 => &["n", "y", "x", "c", "filter"],
        Layout::ChannelsLast => &["n", "z", "y", "x", "c", "filter"],
    };
    let (parallel, at_dims) = b.iterate(names, &dims);
    let (group, filter_in_group) = (at_dims[channel].clone(), at_dims[channel + 1].clone());
    let mut coords = at_dims;
    coords.splice(channel..=channel + 1, [group.scale(&filters).plus(&filter_in_group)]);
    let sizes = filter[kernel_at..kernel_at + spatial].to_vec();
    let depth = filter[depth_at].clone();
    let (window, taps) = b.iterate(&["ky", "kx", "k"], &[&sizes[..], std::slice::from_ref(&depth)].concat());
    let w = &conv.window;
    let mut at = coords.clone();
    at[channel] = group.scale(&depth).plus(&taps[spatial]);
    let mut tap = vec![Linear::constant(0); rank];
    tap[0] = coords[channel].clone();
    tap[depth_at] = taps[spatial].clone();
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
    let (element, weight) = (b.cast(acc, x), b.cast(acc, f));
    let outside = match acc.is_int() {
        true => Scalar::Int(conv.pad_value),
        false => Scalar::Float(conv.pad_value as f64),
    };
    let padding = b.number(acc, conv.pad_value as f64);
    let x = guard.map_or(element, |g| b.select(g, element, padding));
    let product = b.binary(BinaryOp::Mul, x, weight);
    let mut stmts = Vec::new();
    let e = fold(b, &mut stmts, ReduceOp::Sum, &window, product);
    let bias = match operands.get(2) {
        Some(bias) => Some(b.pull(*bias, &[coords[channel].clone()])?),
        None => None,
    };
    let e = biased(b, e, bias, conv.out);
    stmts.extend(b.epilogue(anchor, e, coords.clone(), &[])?);
    let mut loops = Loops { parallel, stmts };
    if !target.is_gpu() {
        return Ok(Body::Loops(loops));
    }
    in_order_of_memory(b, &mut loops, element);
    let moves = Moves {
        moves: w,
        counts_padding: false,
        sizes: &in_shape[first..first + spatial],
        outputs: &coords[first..first + spatial],
        positions: &at[first..first + spatial],
        taps: &taps,
        window: &window,
    };
    let Some(along) = along(b, &moves) else {
        return Ok(Body::Loops(loops));
    };
    Ok(Body::Window(WindowBody {
        loops,
        fold: WindowFold::Weighted { weight, outside },
        along,
        element,
        counts: false,
        images: None,
    }))
}

/// Says whether a convolution has few channels in each group; on the CPU one, of which it makes one result.
pub fn is_depthwise(b: &Builder<'_>, conv: &Conv, target: &Target) -> bool {
    let node = b.graph.node(b.region.anchor);
    let channels = |v: Value| b.shape(v)[conv.layout.channel_axis(b.shape(v).rank())].as_const();
    let groups = Some(conv.groups);
    if !matches!(node.op, Op::Conv(_)) || conv.groups < 2 || conv.transposed.is_some() {
        return false;
    }
    match target.is_gpu() {
        true => filters::is_depthwise(b.graph, conv, &node.operands, target),
        false => channels(node.operands[0]) == groups && channels(b.region.anchor.into()) == groups,
    }
}

#[cfg(test)]
mod tests {
    use ir::kernel::verify::{KernelError, verify};
    use ir::kernel::{Kernel, Mapping};

    use super::*;
    use crate::PlanOptions;
    use crate::testing;

    /// The only kernel of a window that a graph has on a GPU.
    fn kernel(body: &str) -> Kernel {
        let (_, planned) = testing::planned("gfx90a", body, &PlanOptions::default());
        let all = planned.plan.kernels.values();
        let kernels: Vec<&Kernel> = all.filter(|k| matches!(k.body, Body::Window(_))).collect();
        let [kernel] = kernels.as_slice() else {
            panic!("{} kernels", kernels.len())
        };
        assert_eq!(verify(kernel), Ok(()));
        (*kernel).clone()
    }

    fn strips(kernel: &Kernel) -> ir::kernel::Strips {
        match kernel.mapping {
            Mapping::Strips(strips) => strips,
            ref other => panic!("{other}"),
        }
    }

    const LAST: &str = r#"
        x = input "x" : f16[8, 56, 56, 96]
        w = constant random(seed=1, scale=0.5) : f16[96, 3, 3, 1]
        c = conv x, w {groups=96, pad_low=[1, 1], pad_high=[1, 1], channels_last}
        return c as "y""#;

    #[test]
    fn neighbouring_channels_are_a_vector() {
        let kernel = kernel(LAST);
        let strips = strips(&kernel);
        assert!(
            strips.vector > 1 && strips.read == 1 && strips.rows * strips.columns > 1,
            "{}",
            kernel.mapping
        );
        let text = kernel.to_string();
        assert!(text.contains("window y + ky + -1 in 0..56"), "{text}");
    }

    #[test]
    fn neighbouring_columns_come_together_where_channels_are_first() {
        let kernel = kernel(
            r#"
            x = input "x" : f16[8, 96, 56, 56]
            w = constant random(seed=1, scale=0.5) : f16[96, 1, 3, 3]
            c = conv x, w {groups=96, pad_low=[1, 1], pad_high=[1, 1]}
            return c as "y""#,
        );
        let strips = strips(&kernel);
        assert!(
            strips.vector == 1 && strips.read > 1 && strips.columns > 1,
            "{}",
            kernel.mapping
        );
    }

    #[test]
    fn forged_strips_are_errors() {
        type Forge = fn(&mut ir::kernel::Strips);
        let good = kernel(LAST);
        let any: &[Forge] = &[
            |s| s.rows = 0,
            |s| s.columns = 4096,
            |s| s.vector = 64,
            |s| s.vector = 3,
            |s| s.read = 8,
            |s| s.resident = Some(0),
            |s| s.rows = 80,
        ];
        for (i, forge) in any.iter().enumerate() {
            let mut kernel = good.clone();
            let Mapping::Strips(strips) = &mut kernel.mapping else {
                unreachable!("it takes strips")
            };
            forge(strips);
            let errors = verify(&kernel).expect_err(&format!("forgery {i}")).errors;
            assert!(
                errors.iter().any(|e| matches!(e, KernelError::Mapping { .. })),
                "forgery {i}: {errors:?}"
            );
        }
        // Another weight, or another number outside, than the statements have.
        let forge: &[fn(&mut WindowFold)] = &[
            |fold| *fold = WindowFold::Pool(ir::op::PoolKind::Average { count_padding: false }),
            |fold| {
                if let WindowFold::Weighted { outside, .. } = fold {
                    *outside = Scalar::Float(1.0);
                }
            },
        ];
        for (i, forge) in forge.iter().enumerate() {
            let mut kernel = good.clone();
            let Body::Window(window) = &mut kernel.body else {
                unreachable!("it is a window")
            };
            forge(&mut window.fold);
            let errors = verify(&kernel).expect_err(&format!("fold {i}")).errors;
            assert!(
                errors.iter().any(|e| matches!(e, KernelError::Window { .. })),
                "fold {i}: {errors:?}"
            );
        }
    }
}
