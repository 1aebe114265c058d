//! Transposed convolutions, and pools of volumes.

use ir::DType;
use ir::kernel::{
    AxisId, Body, ContractBody, ConvFacts, ExprId, ImageAccess, ImageTarget, Operand, WindowAxis, WindowBody,
    WindowFold, WindowImages,
};
use ir::op::{BinaryOp, Layout, PoolKind, ReduceOp, UnaryOp, Window};

use super::build::{Build, c, sym};
use super::{check, sizes};

/// Sizes of a transposed convolution along both axes.
#[derive(Clone, Copy, Debug)]
struct Shape {
    channels: i64,
    filters: i64,
    groups: i64,
    kernel: i64,
    stride: i64,
    pad: i64,
    dilation: i64,
    extra: i64,
}

/// The pixel that an output meets by a tap, and whether there is one.
fn pixel(b: &mut Build, s: &Shape, output: AxisId, tap: AxisId, size: &ir::Dim) -> (ExprId, ExprId) {
    let lift = (s.kernel * s.dilation + s.stride - 1) / s.stride;
    let lifted = b.index(s.pad + lift * s.stride, &[(output, c(1)), (tap, c(-s.dilation))]);
    let (stride, lift, zero, size) = (b.int(s.stride), b.int(lift), b.int(0), b.size(size.clone()));
    let quotient = b.bin(BinaryOp::Div, lifted, stride);
    let remainder = b.bin(BinaryOp::Mod, lifted, stride);
    let at = b.bin(BinaryOp::Sub, quotient, lift);
    let whole = b.bin(BinaryOp::Eq, remainder, zero);
    let (low, high) = (b.bin(BinaryOp::Ge, at, zero), b.bin(BinaryOp::Lt, at, size));
    let inside = b.bin(BinaryOp::And, low, high);
    (at, b.bin(BinaryOp::And, whole, inside))
}

/// With bias and ReLU, and a residual between them if asked for; channels last or first.
fn transposed(s: Shape, layout: Layout, residual: bool) -> ir::Kernel {
    let mut b = Build::new(&format!("transposed_{s:?}_{layout:?}_{residual}"));
    let (n, h, w) = (sym("n"), sym("h"), sym("w"));
    let (cg, og, k) = (s.channels / s.groups, s.filters / s.groups, s.kernel);
    let out_of = |d: &ir::Dim| (d.clone() - 1) * s.stride + ((k - 1) * s.dilation + 1 - 2 * s.pad + s.extra);
    let (oh, ow) = (out_of(&h), out_of(&w));
    let x = b.read("x", DType::F32, n.clone() * h.clone() * w.clone() * s.channels);
    let f = b.read("f", DType::F32, s.channels * k * k * og);
    let bias = b.read("bias", DType::F32, s.filters);
    let total = n.clone() * oh.clone() * ow.clone() * s.filters;
    let other = b.read("residual", DType::F32, total.clone());
    let out = b.write("out", DType::F32, total);
    let (g, i, y, xx) = (
        b.axis("g", s.groups),
        b.axis("image", n.clone()),
        b.axis("y", oh.clone()),
        b.axis("x", ow.clone()),
    );
    let (o, ky, kx, ch) = (b.axis("o", og), b.axis("ky", k), b.axis("kx", k), b.axis("c", cg));
    let (row, row_there) = pixel(&mut b, &s, y, ky, &h);
    let (col, col_there) = pixel(&mut b, &s, xx, kx, &w);
    let there = b.bin(BinaryOp::And, row_there, col_there);
    let last = layout == Layout::ChannelsLast;
    let (row_step, col_step, channel_step) = match last {
        true => (w.clone() * s.channels, c(s.channels), c(1)),
        false => (w.clone(), c(1), h.clone() * w.clone()),
    };
    let image = h.clone() * w.clone() * s.channels;
    let base = b.index(0, &[(i, image), (g, channel_step.clone() * cg), (ch, channel_step)]);
    let (row_size, col_size) = (b.size(row_step), b.size(col_step));
    let (row, col) = (b.mul(row, row_size), b.mul(col, col_size));
    let at = b.add(base, row);
    let at = b.add(at, col);
    let (value, zero) = (b.load(x, at), b.num(0.0));
    let lhs = b.select(there, value, zero);
    let tap = match last {
        true => b.index(
            0,
            &[
                (g, c(cg * k * k * og)),
                (ch, c(k * k * og)),
                (ky, c(k * og)),
                (kx, c(og)),
                (o, c(1)),
            ],
        ),
        false => b.index(
            0,
            &[
                (g, c(cg * og * k * k)),
                (ch, c(og * k * k)),
                (o, c(k * k)),
                (ky, c(k)),
                (kx, c(1)),
            ],
        ),
    };
    let rhs = b.load(f, tap);
    let filter = b.index(0, &[(g, c(og)), (o, c(1))]);
    let bias = b.load(bias, filter);
    let acc = b.var(DType::F32);
    let sum = b.value(acc);
    let mut e = b.add(sum, bias);
    let result = oh.clone() * ow.clone() * s.filters;
    let to = match last {
        true => b.index(
            0,
            &[
                (i, result),
                (y, ow.clone() * s.filters),
                (xx, c(s.filters)),
                (g, c(og)),
                (o, c(1)),
            ],
        ),
        false => b.index(
            0,
            &[
                (i, result),
                (g, oh.clone() * ow.clone() * og),
                (o, oh.clone() * ow.clone()),
                (y, ow.clone()),
                (xx, c(1)),
            ],
        ),
    };
    if residual {
        let other = b.load(other, to);
        e = b.add(e, other);
    }
    let e = b.un(UnaryOp::Relu, e);
    let store = b.store(out, to, e, &[]);
    let (lhs, rhs) = (Operand::new(&b.kernel.exprs, lhs), Operand::new(&b.kernel.exprs, rhs));
    b.kernel.body = Body::Contract(ContractBody {
        batch: vec![g],
        m: vec![i, y, xx],
        n: vec![o],
        k: vec![ky, kx, ch],
        lhs,
        rhs,
        acc,
        pair: None,
        statistic: None,
        epilogue: vec![store],
        conv: Some(ConvFacts {
            input: x,
            filter: f,
            layout,
            window: Window {
                strides: vec![s.stride; 2],
                pad_low: vec![s.pad; 2],
                pad_high: vec![s.pad; 2],
                dilations: vec![s.dilation; 2],
            },
            groups: s.groups,
            batch: n,
            channels: c(s.channels),
            filters: c(s.filters),
            input_size: vec![h, w],
            kernel_size: vec![k; 2],
            output_size: vec![oh, ow],
            pad_value: 0,
            transposed: true,
        }),
    });
    b.kernel
}

#[test]
fn transposed_convolutions_are_computed_by_phases() {
    let shape = |channels, filters, groups, [kernel, stride, pad, dilation, extra]: [i64; 5]| Shape {
        channels,
        filters,
        groups,
        kernel,
        stride,
        pad,
        dilation,
        extra,
    };
    for s in [
        shape(16, 24, 1, [2, 2, 0, 1, 0]),
        shape(3, 5, 1, [4, 2, 1, 1, 0]),
        shape(4, 6, 2, [3, 2, 1, 1, 1]),
        shape(5, 5, 5, [4, 2, 1, 1, 0]),
        shape(6, 4, 1, [3, 3, 0, 2, 2]),
        // Outputs between the taps' are nothing but the bias.
        shape(4, 3, 1, [1, 3, 0, 1, 1]),
        shape(2, 2, 1, [5, 1, 2, 1, 0]),
    ] {
        for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
            for residual in [false, true] {
                let kernel = transposed(s, layout, residual);
                for (n, h, w) in [(1, 4, 5), (2, 3, 2), (1, 2, 17)] {
                    let names = check(&kernel, &sizes(&[("n", n), ("h", h), ("w", w)]), &[1], 1e-4);
                    let want: &[&str] = if residual { &["conv", "loops"] } else { &["conv"] };
                    assert_eq!(names, want, "{s:?} {layout:?}");
                }
            }
        }
    }
}

/// A pool of volumes, channels first or last.
fn volume(kind: PoolKind, last: bool, more: bool) -> ir::Kernel {
    let mut b = Build::new(&format!("volume_{kind:?}_{last}_{more}"));
    let (n, channels) = (2, 5);
    let names = ["d", "h", "w"];
    let size = names.map(sym);
    let outputs = size.clone().map(|d| (d - 2).floor_div(&c(2)) + 1);
    let count = |dims: &[ir::Dim; 3]| dims.iter().cloned().product::<ir::Dim>() * (n * channels);
    let (x, out) = (
        b.read("x", DType::F32, count(&size)),
        b.write("out", DType::F32, count(&outputs)),
    );
    let (image, channel) = (b.axis("image", n), b.axis("channel", channels));
    let at = [0, 1, 2].map(|i| b.axis(names[i], outputs[i].clone()));
    let taps = ["kd", "kh", "kw"].map(|name| b.axis(name, 2));
    let steps = |dims: &[ir::Dim; 3]| {
        let inner = if last { c(channels) } else { c(1) };
        let w = inner.clone();
        let h = dims[2].clone() * inner;
        let d = dims[1].clone() * h.clone();
        let whole = dims[0].clone() * d.clone();
        match last {
            true => (whole, [d, h, w], c(1)),
            false => (whole.clone() * channels, [d, h, w], whole),
        }
    };
    let (from, to) = (steps(&size), steps(&outputs));
    let mut terms = vec![(image, from.0.clone()), (channel, from.2.clone())];
    for i in 0..3 {
        terms.extend([(at[i], from.1[i].clone() * 2), (taps[i], from.1[i].clone())]);
    }
    let place = b.index(0, &terms);
    let element = b.load(x, place);
    let op = if kind == PoolKind::Max {
        ReduceOp::Max
    } else {
        ReduceOp::Sum
    };
    let (fold, mut value) = b.fold(op, &taps, element);
    if kind != PoolKind::Max {
        let eighth = b.num(0.125);
        value = b.mul(value, eighth);
    }
    let mut terms = vec![(image, to.0.clone()), (channel, to.2.clone())];
    terms.extend((0..3).map(|i| (at[i], to.1[i].clone())));
    let target = b.index(0, &terms);
    let pooled = value;
    if more {
        let before = b.load(x, target);
        value = b.bin(BinaryOp::Sub, pooled, before);
    }
    let store = b.store(out, target, value, &[]);
    let mut kernel = b.loops(&[image, channel, at[0], at[1], at[2]], vec![fold, store]);
    let Body::Loops(loops) = kernel.body.clone() else {
        unreachable!("it was built as loops")
    };
    let access = |(image, along, channel): (ir::Dim, [ir::Dim; 3], ir::Dim)| ImageAccess {
        base: c(0),
        image,
        channel,
        along: along.to_vec(),
    };
    kernel.body = Body::Window(WindowBody {
        along: (0..3)
            .map(|i| WindowAxis {
                taps: Some(taps[i]),
                outputs: Some(at[i]),
                stride: 2,
                dilation: 1,
                pad_low: 0,
                pad_high: 0,
                size: size[i].clone(),
                guarded: [false; 2],
                beyond: false,
            })
            .collect(),
        fold: WindowFold::Pool(kind),
        element,
        counts: false,
        images: Some(WindowImages {
            source: x,
            image: Some(image),
            channel: Some(channel),
            from: access(from),
            pooled,
            target: (!more).then(|| ImageTarget {
                param: out,
                at: access(to),
            }),
        }),
        loops,
    });
    kernel.symbols = names.map(ir::Symbol::new).to_vec();
    kernel
}

#[test]
fn pools_of_volumes_are_two() {
    for kind in [PoolKind::Max, PoolKind::Average { count_padding: true }] {
        for (last, more) in [(false, false), (false, true), (true, false), (true, true)] {
            let kernel = volume(kind, last, more);
            assert_eq!(ir::kernel::verify::verify(&kernel), Ok(()));
            for (d, h, w) in [(2, 2, 2), (5, 4, 9), (4, 6, 40)] {
                let names = check(&kernel, &sizes(&[("d", d), ("h", h), ("w", w)]), &[], 1e-5);
                let wanted: &[&str] = if more {
                    &["pool", "pool", "loops"]
                } else {
                    &["pool", "pool"]
                };
                assert_eq!(names, wanted, "{}", kernel.name);
            }
        }
    }
}
