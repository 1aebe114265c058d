//! Matrix products, convolutions and attention.

use ir::DType;
use ir::kernel::{Access, AttentionBody, Body, ContractBody, ConvFacts, Expr, Operand, Stmt, Weights};
use ir::op::{BinaryOp, Layout, UnaryOp, Window};

use super::build::{Build, c, sym};
use super::{check, sizes};

/// What follows the product.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum After {
    Nothing,
    BiasGelu,
    BiasResidualRelu,
    /// Two results, the second in another type and transposed.
    Two,
    /// A bool result alone.
    Positive,
    /// ReLU times what the result replaces.
    Gated,
}

pub(super) fn matmul(dtype: DType, out_type: DType, transposed: bool, batched: bool, after: After) -> ir::Kernel {
    let mut b = Build::new(&format!("matmul_{dtype}_{transposed}_{batched}_{after:?}"));
    let (m, n, k) = (sym("m"), c(40), c(19));
    let batch = if batched { 3 } else { 1 };
    let lhs = b.read("lhs", dtype, m.clone() * k.clone() * batch);
    let rhs = b.read("rhs", dtype, n.clone() * k.clone() * batch);
    let bias = b.read("bias", DType::F32, n.clone());
    let residual_type = if dtype.is_float() { dtype } else { DType::F32 };
    let residual = b.read("residual", residual_type, m.clone() * n.clone() * batch);
    let out = b.write("out", out_type, m.clone() * n.clone() * batch);
    let other = b.write("other", DType::F16, m.clone() * n.clone() * batch);
    let (g, i, j, r) = (
        b.axis("g", batch),
        b.axis("i", m.clone()),
        b.axis("j", n.clone()),
        b.axis("r", k.clone()),
    );
    let l = b.index(0, &[(g, m.clone() * k.clone()), (i, k.clone()), (r, c(1))]);
    let rr = match transposed {
        true => b.index(0, &[(g, n.clone() * k.clone()), (j, k.clone()), (r, c(1))]),
        false => b.index(0, &[(g, n.clone() * k.clone()), (j, c(1)), (r, n.clone())]),
    };
    let (l, rr) = (b.load(lhs, l), b.load(rhs, rr));
    let acc_type = dtype.accumulator();
    let acc = b.var(acc_type);
    let mut e = b.value(acc);
    let to = b.index(0, &[(g, m.clone() * n.clone()), (i, n.clone()), (j, c(1))]);
    let mut epilogue = Vec::new();
    if acc_type == DType::F32 && after != After::Nothing {
        let column = b.at(j);
        let bias = b.load(bias, column);
        e = b.add(e, bias);
    }
    match after {
        After::BiasGelu => e = b.un(UnaryOp::Gelu, e),
        After::Gated => {
            b.kernel.params[out].access = Access::ReadWrite;
            e = b.un(UnaryOp::Relu, e);
            let before = b.load(out, to);
            let before = b.cast(acc_type, before);
            e = b.mul(e, before);
        }
        After::BiasResidualRelu => {
            let x = b.load(residual, to);
            let x = b.cast(acc_type, x);
            e = b.add(x, e);
            e = b.un(UnaryOp::Relu, e);
        }
        After::Two => {
            let tanh = b.un(UnaryOp::Tanh, e);
            let narrow = b.cast(DType::F16, tanh);
            let across = b.index(0, &[(g, m.clone() * n.clone()), (i, c(1)), (j, m.clone())]);
            epilogue.push(b.store(other, across, narrow, &[]));
        }
        _ => {}
    }
    let stored = if after == After::Positive {
        let zero = b.num(0.0);
        b.bin(BinaryOp::Gt, e, zero)
    } else {
        b.cast(out_type, e)
    };
    let store = b.store(out, to, stored, &[]);
    epilogue.push(store);
    if after != After::Two {
        b.kernel.params[other].access = Access::Read;
    }
    let (lhs_operand, rhs_operand) = (Operand::new(&b.kernel.exprs, l), Operand::new(&b.kernel.exprs, rr));
    b.kernel.body = Body::Contract(ContractBody {
        batch: vec![g],
        m: vec![i],
        n: vec![j],
        k: vec![r],
        lhs: lhs_operand,
        rhs: rhs_operand,
        acc,
        pair: None,
        statistic: None,
        epilogue,
        conv: None,
    });
    b.kernel
}

#[test]
fn products_with_epilogues() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (transposed, batched) in [(false, false), (true, false), (false, true), (true, true)] {
            for after in [
                After::Nothing,
                After::BiasGelu,
                After::BiasResidualRelu,
                After::Two,
                After::Gated,
            ] {
                let kernel = matmul(dtype, dtype, transposed, batched, after);
                for m in [0, 1, 7, 65] {
                    let constants: &[usize] = if m == 7 { &[] } else { &[1] };
                    let names = check(&kernel, &sizes(&[("m", m)]), constants, 2e-4);
                    assert_eq!(names, ["gemm"], "{}", kernel.name);
                }
            }
        }
    }
}

#[test]
fn a_result_that_gemm_cannot_store_goes_through_a_temporary() {
    let kernel = matmul(DType::F32, DType::Bool, false, true, After::Positive);
    assert_eq!(check(&kernel, &sizes(&[("m", 9)]), &[1], 0.0), ["gemm", "loops"]);
}

#[test]
fn products_of_wide_types_are_folds_and_those_of_bytes_are_not() {
    for (dtype, out, names) in [
        (DType::I8, DType::I32, &["integers", "loops"][..]),
        (DType::I32, DType::I32, &["loops"]),
        (DType::F64, DType::F64, &["loops"]),
    ] {
        let kernel = matmul(dtype, out, true, true, After::Nothing);
        assert_eq!(check(&kernel, &sizes(&[("m", 9)]), &[1], 1e-12), names);
    }
}

#[test]
fn merged_projections_store_by_head() {
    // [s, 18] x [18, 3·2·8] stored to [3, 2, s, 8], through divisions of one column axis.
    let mut b = Build::new("qkv");
    let s = sym("s");
    let x = b.read("x", DType::F32, s.clone() * 18);
    let w = b.read("w", DType::F32, 18 * 48);
    let bias = b.read("bias", DType::F32, 48);
    let out = b.write("out", DType::F32, s.clone() * 48);
    let (i, j, r) = (b.axis("i", s.clone()), b.axis("j", 48), b.axis("r", 18));
    let l = b.index(0, &[(i, c(18)), (r, c(1))]);
    let rr = b.index(0, &[(r, c(48)), (j, c(1))]);
    let (l, rr) = (b.load(x, l), b.load(w, rr));
    let acc = b.var(DType::F32);
    let (column, eight) = (b.at(j), b.int(8));
    let e = b.value(acc);
    let bias = b.load(bias, column);
    let e = b.add(e, bias);
    let head = b.bin(BinaryOp::Div, column, eight);
    let depth = b.bin(BinaryOp::Mod, column, eight);
    let size = b.size(s * 8);
    let head = b.mul(head, size);
    let row = b.index(0, &[(i, c(8))]);
    let to = b.add(head, row);
    let to = b.add(to, depth);
    let store = b.store(out, to, e, &[]);
    let (lhs_operand, rhs_operand) = (Operand::new(&b.kernel.exprs, l), Operand::new(&b.kernel.exprs, rr));
    b.kernel.body = Body::Contract(ContractBody {
        batch: vec![],
        m: vec![i],
        n: vec![j],
        k: vec![r],
        lhs: lhs_operand,
        rhs: rhs_operand,
        acc,
        pair: None,
        statistic: None,
        epilogue: vec![store],
        conv: None,
    });
    for s in [1, 5, 70] {
        assert_eq!(check(&b.kernel, &sizes(&[("s", s)]), &[1], 1e-4), ["gemm"]);
    }
}

/// A convolution with bias, residual and ReLU, in channels-last.
pub(super) fn conv(channels: i64, filters: i64, kernel: i64, stride: i64, pad: i64, groups: i64) -> ir::Kernel {
    grouped_conv([channels, filters, kernel, stride, pad, groups], DType::F32, false)
}

/// As [`conv`]; of bytes, sums are stored as they are. `shuffled` stores filter `o` of group `g` as channel
/// `o · groups + g`.
fn grouped_conv(
    [channels, filters, kernel, stride, pad, groups]: [i64; 6],
    dtype: DType,
    shuffled: bool,
) -> ir::Kernel {
    let (floats, sum) = (dtype == DType::F32, dtype.accumulator());
    let mut b = Build::new(&format!("conv_{channels}_{filters}_{kernel}_{stride}_{pad}_{groups}"));
    let (n, h, w) = (sym("n"), sym("h"), sym("w"));
    let out_of = |d: &ir::Dim| (d.clone() + 2 * pad - kernel).floor_div(&c(stride)) + 1;
    let (oh, ow) = (out_of(&h), out_of(&w));
    let (cg, og) = (channels / groups, filters / groups);
    let x = b.read("x", dtype, n.clone() * h.clone() * w.clone() * channels);
    let f = b.read("f", dtype, filters * kernel * kernel * cg);
    let bias = b.read("bias", DType::F32, filters);
    let total = n.clone() * oh.clone() * ow.clone() * filters;
    let residual = b.read("residual", DType::F32, total.clone());
    let out = b.write("out", sum, total);
    let (g, i, y, xx) = (
        b.axis("g", groups),
        b.axis("image", n.clone()),
        b.axis("y", oh.clone()),
        b.axis("x", ow.clone()),
    );
    let (o, ky, kx, ch) = (
        b.axis("o", og),
        b.axis("ky", kernel),
        b.axis("kx", kernel),
        b.axis("c", cg),
    );
    let row = b.index(-pad, &[(y, c(stride)), (ky, c(1))]);
    let col = b.index(-pad, &[(xx, c(stride)), (kx, c(1))]);
    let (hs, ws, zero) = (b.size(h.clone()), b.size(w.clone()), b.int(0));
    let tests = [
        b.bin(BinaryOp::Ge, row, zero),
        b.bin(BinaryOp::Lt, row, hs),
        b.bin(BinaryOp::Ge, col, zero),
        b.bin(BinaryOp::Lt, col, ws),
    ];
    let inside = tests[1..].iter().fold(tests[0], |a, t| b.bin(BinaryOp::And, a, *t));
    let image = b.index(0, &[(i, h.clone() * w.clone() * channels), (g, c(cg)), (ch, c(1))]);
    let (row_size, pixel) = (b.size(w.clone() * channels), b.int(channels));
    let r = b.mul(row, row_size);
    let p = b.mul(col, pixel);
    let at = b.add(image, r);
    let at = b.add(at, p);
    let v = b.load(x, at);
    let fill = match floats {
        true => b.num(0.0),
        false => {
            let zero = b.int(0);
            b.cast(dtype, zero)
        }
    };
    let lhs = if pad > 0 { b.select(inside, v, fill) } else { v };
    let tap = b.index(
        0,
        &[
            (g, c(og * kernel * kernel * cg)),
            (o, c(kernel * kernel * cg)),
            (ky, c(kernel * cg)),
            (kx, c(cg)),
            (ch, c(1)),
        ],
    );
    let rhs = b.load(f, tap);
    let acc = b.var(sum);
    let filter = b.index(0, &[(g, c(og)), (o, c(1))]);
    let bias = b.load(bias, filter);
    let mut e = b.value(acc);
    let to = b.index(
        0,
        &[
            (i, oh.clone() * ow.clone() * filters),
            (y, ow.clone() * filters),
            (xx, c(filters)),
            (g, c(og)),
            (o, c(1)),
        ],
    );
    if floats {
        e = b.add(e, bias);
        let x2 = b.load(residual, to);
        e = b.add(e, x2);
        e = b.un(UnaryOp::Relu, e);
    }
    let place = match shuffled {
        true => b.index(
            0,
            &[
                (i, oh.clone() * ow.clone() * filters),
                (y, ow.clone() * filters),
                (xx, c(filters)),
                (o, c(groups)),
                (g, c(1)),
            ],
        ),
        false => to,
    };
    let store = b.store(out, place, e, &[]);
    let (lhs_operand, rhs_operand) = (Operand::new(&b.kernel.exprs, lhs), Operand::new(&b.kernel.exprs, rhs));
    b.kernel.body = Body::Contract(ContractBody {
        batch: vec![g],
        m: vec![i, y, xx],
        n: vec![o],
        k: vec![ky, kx, ch],
        lhs: lhs_operand,
        rhs: rhs_operand,
        acc,
        pair: None,
        statistic: None,
        epilogue: vec![store],
        conv: Some(ConvFacts {
            input: x,
            filter: f,
            layout: Layout::ChannelsLast,
            window: Window {
                strides: vec![stride; 2],
                pad_low: vec![pad; 2],
                pad_high: vec![pad; 2],
                dilations: vec![1; 2],
            },
            groups,
            batch: n,
            channels: c(channels),
            filters: c(filters),
            input_size: vec![h, w],
            kernel_size: vec![kernel; 2],
            output_size: vec![oh, ow],
            pad_value: 0,
            transposed: false,
        }),
    });
    b.kernel
}

/// Convolutions of bytes: depthwise with windows that leave the image on every side, pixels of several images, filters
/// of few columns.
#[test]
fn convolutions_of_bytes() {
    for size in [
        // Depthwise, of channels that do and do not fill vectors.
        [1, 1, 3, 1, 1, 1],
        [16, 16, 3, 1, 1, 16],
        [24, 24, 3, 2, 1, 24],
        [70, 70, 3, 1, 1, 70],
        [13, 13, 2, 1, 0, 13],
        [33, 33, 5, 2, 2, 33],
        [7, 7, 1, 1, 0, 7],
        // One pixel each.
        [8, 24, 1, 1, 0, 1],
        [5, 3, 1, 1, 0, 1],
        [12, 48, 1, 1, 0, 3],
        [9, 40, 1, 2, 0, 1],
        // Windows.
        [3, 8, 3, 2, 1, 1],
        [4, 33, 3, 1, 1, 1],
        [6, 10, 3, 1, 1, 2],
    ] {
        let kernel = grouped_conv(size, DType::I8, false);
        for (n, h, w) in [(1, 5, 5), (3, 9, 6), (2, 40, 17), (2, 5, 40)] {
            check(&kernel, &sizes(&[("n", n), ("h", h), ("w", w)]), &[1], 0.0);
        }
    }
}

#[test]
fn convolutions_and_their_fallbacks() {
    for (channels, filters, kernel, stride, pad, groups) in [
        (3, 8, 3, 2, 1, 1),
        (16, 24, 3, 1, 1, 1),
        (8, 8, 1, 1, 0, 1),
        (8, 12, 1, 2, 0, 1),
        (6, 4, 3, 1, 1, 2),
        (5, 5, 3, 1, 1, 5),
    ] {
        let k = conv(channels, filters, kernel, stride, pad, groups);
        for (n, h, w) in [(1, 5, 7), (2, 9, 4)] {
            let at = sizes(&[("n", n), ("h", h), ("w", w)]);
            let plain = kernel == 1 && stride == 1;
            assert_eq!(
                check(&k, &at, &[1], 1e-4),
                [if plain { "gemm" } else { "conv" }],
                "{}",
                k.name
            );
            // Filters that are computed: the window is gathered first.
            let names = check(&k, &at, &[], 1e-4);
            assert!(names.contains(&"gemm"), "{}: {names:?}", k.name);
        }
    }
}

/// Groups are stored among one another by the convolution itself; a residual is read where it is.
#[test]
fn shuffled_channels_of_groups_are_stored_in_place() {
    for sizes_of in [
        [6, 4, 3, 1, 1, 2],
        [8, 12, 1, 2, 0, 4],
        [16, 112, 1, 1, 0, 4],
        [6, 120, 3, 2, 1, 3],
    ] {
        let k = grouped_conv(sizes_of, DType::F32, true);
        for (n, h, w) in [(1, 5, 7), (2, 9, 4), (1, 20, 21)] {
            let at = sizes(&[("n", n), ("h", h), ("w", w)]);
            assert_eq!(check(&k, &at, &[1], 1e-4), ["conv"], "{}", k.name);
        }
    }
    // Channels of a depthwise convolution are one filter each: shuffled or not, they lie as they are.
    let k = grouped_conv([5, 5, 3, 1, 1, 5], DType::F32, true);
    let at = sizes(&[("n", 2), ("h", 6), ("w", 5)]);
    assert_eq!(check(&k, &at, &[1], 1e-4), ["conv"]);
}

/// Attention over heads that lie inside each position, with the given score.
pub(super) fn attend(mask: Option<DType>, causal: bool, odd: bool, share: i64) -> ir::Kernel {
    let mut b = Build::new(&format!("attention_{mask:?}_{causal}_{odd}_{share}"));
    let (s, t) = (sym("s"), sym("t"));
    let (heads, depth) = (4, 8);
    let kv = heads / share;
    let q = b.read("q", DType::F32, s.clone() * (heads * depth));
    let k = b.read("k", DType::F32, t.clone() * (kv * depth));
    let v = b.read("v", DType::F32, t.clone() * (kv * depth));
    let m = b.read("mask", mask.unwrap_or(DType::F32), s.clone() * t.clone());
    let out = b.write("out", DType::F32, s.clone() * (heads * depth));
    let (h, i, j, d, dv) = (
        b.axis("h", heads),
        b.axis("i", s.clone()),
        b.axis("j", t.clone()),
        b.axis("d", depth),
        b.axis("dv", depth),
    );
    let qi = b.index(0, &[(h, c(depth)), (i, c(heads * depth)), (d, c(1))]);
    let head = {
        let (at, by) = (b.at(h), b.int(share));
        let group = b.bin(BinaryOp::Div, at, by);
        let depth = b.int(depth);
        b.mul(group, depth)
    };
    let ki = b.index(0, &[(j, c(kv * depth)), (d, c(1))]);
    let ki = b.add(ki, head);
    let vi = b.index(0, &[(j, c(kv * depth)), (dv, c(1))]);
    let vi = b.add(vi, head);
    let (query, key, value) = (b.load(q, qi), b.load(k, ki), b.load(v, vi));
    let acc = b.var(DType::F32);
    let (dot, factor) = (b.value(acc), b.num(0.35));
    let mut score = b.mul(dot, factor);
    if odd {
        score = b.un(UnaryOp::Tanh, score);
    }
    let low = b.num(f64::NEG_INFINITY);
    let at = b.index(0, &[(i, t.clone()), (j, c(1))]);
    match mask {
        Some(DType::Bool) => {
            let keep = b.load(m, at);
            score = b.select(keep, score, low);
        }
        Some(_) => {
            let x = b.load(m, at);
            score = b.add(score, x);
        }
        None => {}
    }
    if causal {
        let (at_j, at_i, shift) = (b.at(j), b.at(i), b.size(t.clone() - s.clone()));
        let reach = b.add(at_i, shift);
        let seen = b.bin(BinaryOp::Le, at_j, reach);
        score = b.select(seen, score, low);
    }
    let result = b.var(DType::F32);
    let e = b.expr(Expr::Var(result), DType::F32);
    let to = b.index(0, &[(h, c(depth)), (i, c(heads * depth)), (dv, c(1))]);
    let store = b.store(out, to, e, &[]);
    b.kernel.body = Body::Attention(AttentionBody {
        batch: vec![h],
        q: i,
        k: j,
        d,
        dv,
        query,
        key,
        value,
        acc,
        score,
        weights: Weights::Softmax,
        out: result,
        epilogue: vec![store],
        row_weights: None,
        // The CPU reads the score.
        range: None,
    });
    b.kernel
}

#[test]
fn attention_fused_and_composed() {
    for mask in [None, Some(DType::F32), Some(DType::Bool)] {
        for causal in [false, true] {
            for share in [1, 2, 4] {
                let kernel = attend(mask, causal, false, share);
                for (s, t) in [(1, 1), (5, 5), (3, 9), (70, 70)] {
                    assert_eq!(
                        check(&kernel, &sizes(&[("s", s), ("t", t)]), &[], 2e-4),
                        ["attention"],
                        "{}",
                        kernel.name
                    );
                }
            }
        }
    }
    let kernel = attend(Some(DType::F32), true, true, 2);
    let names = check(&kernel, &sizes(&[("s", 6), ("t", 11)]), &[], 2e-4);
    assert_eq!(names.iter().filter(|n| **n == "gemm").count(), 2, "{names:?}");
}

/// A tile of a depthwise convolution has all channels: more than a tile program takes at once, and not a multiple of
/// that.
#[test]
fn wide_depthwise_convolutions_with_a_program_behind_them() {
    for (channels, dtype) in [(2100, DType::F32), (4999, DType::F32), (2100, DType::F16)] {
        let mut k = conv(channels, channels, 3, 1, 1, channels);
        let Body::Contract(body) = &mut k.body else {
            unreachable!("made as a contraction")
        };
        // Two functions that the product kernel does not know, so that a program with several slots runs on each tile.
        let [Stmt::Store { value, param, .. }] = body.epilogue.as_mut_slice() else {
            unreachable!("made with one store")
        };
        k.params[*param].dtype = dtype;
        let sigmoid = k.exprs.add(Expr::Unary(UnaryOp::Sigmoid, *value), DType::F32);
        let tanh = k.exprs.add(Expr::Unary(UnaryOp::Tanh, sigmoid), DType::F32);
        let product = k.exprs.add(Expr::Binary(BinaryOp::Mul, tanh, *value), DType::F32);
        *value = k.exprs.add(Expr::Binary(BinaryOp::Sub, product, sigmoid), DType::F32);
        if dtype != DType::F32 {
            *value = k.exprs.add(Expr::Cast(dtype, *value), dtype);
        }
        let at = sizes(&[("n", 1), ("h", 3), ("w", 5)]);
        let tolerance = if dtype == DType::F32 { 1e-4 } else { 5e-3 };
        assert_eq!(check(&k, &at, &[1], tolerance), ["conv"], "{channels} {dtype}");
    }
}
