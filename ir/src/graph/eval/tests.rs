//! Ops against numbers worked out by hand, and identities between ops.

use super::*;
use crate::graph::op::*;
use crate::types::Scalar;

fn f(shape: &[usize], v: &[f64]) -> Array {
    Array::float(DType::F32, shape.to_vec(), v.to_vec())
}
fn i(shape: &[usize], v: &[i64]) -> Array {
    Array::int(DType::I64, shape.to_vec(), v.to_vec())
}
fn run(op: Op, operands: &[&Array]) -> Array {
    let types: Vec<crate::types::TensorType> = operands
        .iter()
        .map(|a| crate::types::TensorType::new(a.dtype, a.shape.clone()))
        .collect();
    let inferred = crate::graph::infer::infer(&op, &types.iter().collect::<Vec<_>>(), &Default::default()).unwrap();
    let out = eval_op(&op, operands, &Bindings::new()).unwrap();
    for (a, t) in out.iter().zip(&inferred) {
        assert_eq!(a.dtype, t.dtype, "{op:?}");
        assert_eq!(
            Some(a.shape.iter().map(|d| *d as i64).collect()),
            t.shape.as_consts(),
            "{op:?}"
        );
    }
    out.into_iter().next().unwrap()
}
fn filled(shape: &[usize], seed: u64) -> Array {
    let kind = RandomKind::Uniform {
        low: Scalar::Float(-1.0),
        high: Scalar::Float(1.0),
    };
    random::random(kind, shape.to_vec(), seed, DType::F32)
}
fn close(a: &Array, b: &Array) {
    assert_eq!(a.shape, b.shape);
    for (x, y) in a.to_f64().iter().zip(b.to_f64()) {
        assert!((x - y).abs() < 1e-12 * (1.0 + y.abs()), "{x} {y}");
    }
}
fn contract(tl: bool, tr: bool) -> Op {
    Op::Contract(Contract {
        transpose_lhs: tl,
        transpose_rhs: tr,
        out: DType::F32,
    })
}

#[test]
fn broadcasting_arithmetic() {
    let out = run(
        Op::binary(BinaryOp::Sub),
        &[&f(&[2, 1], &[1.0, 2.0]), &f(&[3], &[10.0, 20.0, 30.0])],
    );
    assert_eq!(out, f(&[2, 3], &[-9.0, -19.0, -29.0, -8.0, -18.0, -28.0]));
    let a = Array::int(DType::I8, vec![3], vec![127, -7, 7]);
    let b = Array::int(DType::I8, vec![3], vec![1, 3, -3]);
    assert_eq!(run(Op::binary(BinaryOp::Add), &[&a, &b]).to_i64(), [-128, -4, 4]);
    assert_eq!(run(Op::binary(BinaryOp::Rem), &[&a, &b]).to_i64(), [0, -1, 1]);
    assert_eq!(run(Op::binary(BinaryOp::Mod), &[&a, &b]).to_i64(), [0, 2, -2]);
    let x = f(&[3], &[f64::NAN, 1.0, -0.5]);
    assert!(run(Op::binary(BinaryOp::Max), &[&x, &f(&[], &[0.0])]).to_f64()[0].is_nan());
    assert_eq!(
        run(Op::cast(DType::U8), &[&f(&[3], &[f64::NAN, -3.0, 255.9])]).to_i64(),
        [0, 0, 255]
    );
    assert_eq!(run(Op::cast(DType::F16), &[&f(&[1], &[2049.0])]).to_f64(), [2048.0]);
}

#[test]
fn special_functions_keep_their_digits() {
    let at = |op: UnaryOp, x: f64| op.on_float(x);
    assert!((at(UnaryOp::Erf, 0.5) - 0.520_499_877_813_046_5).abs() < 1e-15);
    assert!((at(UnaryOp::Gelu, -8.0) / -4.976_770_288_426_67e-15 - 1.0).abs() < 1e-6);
    assert_eq!(at(UnaryOp::Softplus, 800.0), 800.0);
    assert!((at(UnaryOp::Softplus, -40.0) / (-40f64).exp() - 1.0).abs() < 1e-12);
    assert_eq!(at(UnaryOp::Sigmoid, -800.0), 0.0);
    assert_eq!(at(UnaryOp::Round, 2.5), 2.0);
    let x = 0.7f64;
    let tanh = 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    assert!((at(UnaryOp::GeluTanh, x) - tanh).abs() < 1e-15);
}

#[test]
fn reductions() {
    let a = f(&[2, 3], &[1.0, 5.0, 3.0, 4.0, f64::NAN, 6.0]);
    let reduce = |op, axes: &[usize], keep_dims| Op::Reduce {
        op,
        axes: axes.to_vec(),
        keep_dims,
    };
    assert_eq!(run(reduce(ReduceOp::ArgMax, &[1], false), &[&a]), i(&[2], &[1, 1]));
    assert_eq!(run(reduce(ReduceOp::ArgMin, &[0], true), &[&a]), i(&[1, 3], &[0, 1, 0]));
    let b = f(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(run(reduce(ReduceOp::Mean, &[0, 1], false), &[&b]), f(&[], &[2.5]));
    assert_eq!(run(reduce(ReduceOp::Prod, &[1], true), &[&b]), f(&[2, 1], &[2.0, 12.0]));
    let empty = f(&[2, 0], &[]);
    assert_eq!(
        run(reduce(ReduceOp::Max, &[1], false), &[&empty]).to_f64(),
        [f64::NEG_INFINITY; 2]
    );
}

#[test]
fn scans_and_top_k() {
    let a = i(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    let scan = |axis, exclusive, reverse| Op::Scan {
        op: ReduceOp::Sum,
        axis,
        exclusive,
        reverse,
    };
    assert_eq!(run(scan(1, false, false), &[&a]).to_i64(), [1, 3, 6, 4, 9, 15]);
    assert_eq!(run(scan(1, true, true), &[&a]).to_i64(), [5, 3, 0, 11, 6, 0]);
    assert_eq!(run(scan(0, true, false), &[&a]).to_i64(), [0, 0, 0, 1, 2, 3]);
    let op = Op::TopK {
        axis: 0,
        k: Dim::Const(2),
        largest: true,
    };
    let x = f(&[3, 2], &[1.0, 9.0, 7.0, 9.0, 7.0, 0.0]);
    let out = eval_op(&op, &[&x], &Bindings::new()).unwrap();
    assert_eq!(out[0].to_f64(), [7.0, 9.0, 7.0, 9.0]);
    assert_eq!(out[1].to_i64(), [1, 0, 2, 1]);
}

/// `numpy.sort`, `numpy.argsort(kind="stable")` and `torch.topk` have NaN as the largest.
#[test]
fn nan_is_the_largest_in_a_sort() {
    let x = f(&[5], &[f64::NAN, 1.0, f64::INFINITY, f64::NAN, -2.0]);
    for (largest, want) in [(true, [0, 3, 2, 1, 4]), (false, [4, 1, 2, 0, 3])] {
        for k in [2, 5] {
            let op = Op::TopK {
                axis: 0,
                k: Dim::from(k),
                largest,
            };
            let out = eval_op(&op, &[&x], &Bindings::new()).unwrap();
            assert_eq!(out[1].to_i64(), want[..k], "largest {largest}");
        }
    }
}

#[test]
fn views() {
    let a = i(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    let slice = Op::View(View::Slice {
        starts: vec![Dim::Const(1), Dim::Const(2)],
        sizes: vec![Dim::Const(1), Dim::Const(2)],
        steps: vec![1, -2],
    });
    assert_eq!(run(slice, &[&a]), i(&[1, 2], &[6, 4]));
    assert_eq!(
        run(Op::View(View::Transpose(vec![1, 0])), &[&a]),
        i(&[3, 2], &[1, 4, 2, 5, 3, 6])
    );
    let pad = |mode| {
        Op::View(View::Pad {
            low: vec![Dim::Const(0), Dim::Const(2)],
            high: vec![Dim::Const(0), Dim::Const(1)],
            mode,
        })
    };
    let row = i(&[1, 3], &[1, 2, 3]);
    assert_eq!(run(pad(PadMode::Reflect), &[&row]).to_i64(), [3, 2, 1, 2, 3, 2]);
    assert_eq!(run(pad(PadMode::Edge), &[&row]).to_i64(), [1, 1, 1, 2, 3, 3]);
    assert_eq!(run(pad(PadMode::Wrap), &[&row]).to_i64(), [2, 3, 1, 2, 3, 1]);
    assert_eq!(
        run(pad(PadMode::Constant(Scalar::Int(9))), &[&row]).to_i64(),
        [9, 9, 1, 2, 3, 9]
    );
    let joined = run(Op::View(View::Concat { axis: 1 }), &[&a, &i(&[2, 1], &[7, 8])]);
    assert_eq!(joined.to_i64(), [1, 2, 3, 7, 4, 5, 6, 8]);
}

#[test]
fn contraction_flags_are_transposes() {
    let (a, b) = (filled(&[2, 1, 5, 70], 1), filled(&[3, 70, 4], 2));
    let plain = run(contract(false, false), &[&a, &b]);
    assert_eq!(plain.shape, [2, 3, 5, 4]);
    let at = a.transpose(&[0, 1, 3, 2]);
    let bt = b.transpose(&[0, 2, 1]);
    close(&run(contract(true, true), &[&at, &bt]), &plain);
    let (x, y) = (a.to_f64(), b.to_f64());
    // Element [1, 2, 3, 1].
    let sum: f64 = (0..70).map(|k| x[70 * (5 + 3) + k] * y[280 * 2 + 4 * k + 1]).sum();
    assert!((plain.to_f64()[((3 + 2) * 5 + 3) * 4 + 1] - sum).abs() < 1e-12);
    let u = Array::int(DType::U8, vec![1, 2], vec![200, 255]);
    let v = Array::int(DType::I8, vec![2, 1], vec![-128, 2]);
    let op = Op::Contract(Contract {
        transpose_lhs: false,
        transpose_rhs: false,
        out: DType::I32,
    });
    assert_eq!(run(op, &[&u, &v]).to_i64(), [-25090]);
}

#[test]
fn convolution_by_its_definition() {
    let (x, w) = (filled(&[2, 4, 7, 6], 1), filled(&[6, 2, 3, 2], 2));
    let bias = filled(&[6], 3);
    let c = Conv {
        window: Window {
            strides: vec![2, 1],
            pad_low: vec![1, 0],
            pad_high: vec![2, 1],
            dilations: vec![1, 2],
        },
        groups: 2,
        layout: Layout::ChannelsFirst,
        transposed: None,
        pad_value: 0,
        out: DType::F32,
    };
    let out = run(Op::Conv(c.clone()), &[&x, &w, &bias]);
    assert_eq!(out.shape, [2, 6, 4, 5]);
    let (xv, wv, bv, got) = (x.to_f64(), w.to_f64(), bias.to_f64(), out.to_f64());
    for n in 0..2 {
        for o in 0..6 {
            for p in 0..4i64 {
                for q in 0..5i64 {
                    let mut sum = bv[o];
                    for ch in 0..2 {
                        for r in 0..3i64 {
                            for s in 0..2i64 {
                                let (y, z) = (p * 2 - 1 + r, q + 2 * s);
                                if (0..7).contains(&y) && (0..6).contains(&z) {
                                    let at = ((n * 4 + o / 3 * 2 + ch) * 7 + y as usize) * 6 + z as usize;
                                    sum += xv[at] * wv[((o * 2 + ch) * 3 + r as usize) * 2 + s as usize];
                                }
                            }
                        }
                    }
                    let have = got[((n * 6 + o) * 4 + p as usize) * 5 + q as usize];
                    assert!((have - sum).abs() < 1e-12, "{n} {o} {p} {q}");
                }
            }
        }
    }
    let last = Conv {
        layout: Layout::ChannelsLast,
        ..c
    };
    let moved = [0, 2, 3, 1];
    let same = run(Op::Conv(last), &[&x.transpose(&moved), &w.transpose(&moved), &bias]);
    close(&same, &out.transpose(&moved));
}

#[test]
fn transposed_convolution_is_the_adjoint() {
    // <conv(x), y> = <x, conv_transpose(y)> for the same filter, whatever the window.
    let window = Window {
        strides: vec![2],
        pad_low: vec![1],
        pad_high: vec![2],
        dilations: vec![2],
    };
    let (x, w) = (filled(&[2, 4, 12], 1), filled(&[6, 2, 3], 2));
    let mut c = Conv {
        window,
        groups: 2,
        layout: Layout::ChannelsFirst,
        transposed: None,
        pad_value: 0,
        out: DType::F32,
    };
    let forward = run(Op::Conv(c.clone()), &[&x, &w]);
    let y = filled(&forward.shape, 3);
    c.transposed = Some(vec![0]);
    let natural = (forward.shape[2] as i64 - 1) * 2 + 5 - 3;
    c.transposed = Some(vec![12 - natural]);
    let back = run(Op::Conv(c), &[&y, &w]);
    assert_eq!(back.shape, x.shape);
    let dot = |a: &Array, b: &Array| a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| a * b).sum::<f64>();
    assert!((dot(&forward, &y) - dot(&x, &back)).abs() < 1e-10);
}

#[test]
fn pooling_counts() {
    let x = f(&[1, 1, 4], &[1.0, 2.0, 3.0, 4.0]);
    let pool = |kind, ceil| {
        Op::Pool(Pool {
            kind,
            size: vec![3],
            window: Window {
                strides: vec![2],
                pad_low: vec![1],
                pad_high: vec![0],
                dilations: vec![1],
            },
            ceil,
            layout: Layout::ChannelsFirst,
        })
    };
    assert_eq!(run(pool(PoolKind::Max, false), &[&x]).to_f64(), [2.0, 4.0]);
    let average = |count_padding| PoolKind::Average { count_padding };
    assert_eq!(run(pool(average(false), false), &[&x]).to_f64(), [1.5, 3.0]);
    assert_eq!(run(pool(average(true), false), &[&x]).to_f64(), [1.0, 3.0]);
    let y = f(&[1, 1, 5], &[1.0, 2.0, 3.0, 4.0, 5.0]);
    // The third window of the ceil form holds the last two elements; what is beyond never counts.
    assert_eq!(run(pool(average(true), true), &[&y]).to_f64(), [1.0, 3.0, 4.5]);
}

#[test]
fn gathers_and_scatters() {
    let d = i(&[3, 2], &[1, 2, 3, 4, 5, 6]);
    let take = run(Op::Gather(Gather::Take { axis: 0 }), &[&d, &i(&[2, 1], &[-1, 0])]);
    assert_eq!(take, i(&[2, 1, 2], &[5, 6, 1, 2]));
    let along = run(Op::Gather(Gather::Elements { axis: 0 }), &[&d, &i(&[1, 2], &[2, 9])]);
    assert_eq!(along, i(&[1, 2], &[5, 6]));
    let nd = run(
        Op::Gather(Gather::Nd { batch_dims: 0 }),
        &[&d, &i(&[2, 2], &[0, 1, 2, 0])],
    );
    assert_eq!(nd, i(&[2], &[2, 5]));
    let sum = Op::Scatter(Scatter::Elements {
        axis: 0,
        reduce: Some(ReduceOp::Sum),
    });
    let out = run(sum, &[&d, &i(&[2, 1], &[1, 1]), &i(&[2, 1], &[10, 20])]);
    assert_eq!(out.to_i64(), [1, 2, 33, 4, 5, 6]);
    let over = Op::Scatter(Scatter::Nd { reduce: None });
    let out = run(over, &[&d, &i(&[2, 1], &[0, 0]), &i(&[2, 2], &[7, 7, 8, 9])]);
    assert_eq!(out.to_i64(), [8, 9, 3, 4, 5, 6]);
}

#[test]
fn attention_is_softmax_between_two_products() {
    let (q, k, v) = (
        filled(&[2, 4, 3, 8], 1),
        filled(&[2, 2, 5, 8], 2),
        filled(&[2, 2, 5, 6], 3),
    );
    let attention = |causal| {
        Op::Composite(Composite::Attention {
            scale: Scalar::Float(0.3),
            causal,
            mask: false,
            scales: false,
        })
    };
    let whole = run(attention(false), &[&q, &k, &v]);
    let heads = |a: &Array| {
        let s = &a.shape;
        let wide = Op::View(View::Broadcast(vec![s[0], 2, 2, s[2], s[3]].into()));
        let split = Op::View(View::Reshape(vec![s[0], 2, 1, s[2], s[3]].into()));
        let merged = Op::View(View::Reshape(vec![s[0], 4, s[2], s[3]].into()));
        run(merged, &[&run(wide, &[&run(split, &[a])])])
    };
    let (kk, vv) = (heads(&k), heads(&v));
    let scores = run(contract(false, true), &[&q, &kk]);
    let scores = run(Op::binary(BinaryOp::Mul), &[&scores, &f(&[], &[0.3])]);
    let weights = run(Op::Composite(Composite::Softmax { axis: 3 }), &[&scores]);
    close(&whole, &run(contract(false, false), &[&weights, &vv]));
    // Causally, the first of 3 queries sees the first 3 of 5 keys: the same as cutting the rest off.
    let cut = |a: &Array, axis: usize, n: i64| {
        let mut sizes: Vec<Dim> = a.shape.iter().map(|d| Dim::from(*d)).collect();
        sizes[axis] = Dim::Const(n);
        let slice = View::Slice {
            starts: vec![Dim::Const(0); 4],
            steps: vec![1; 4],
            sizes,
        };
        run(Op::View(slice), &[a])
    };
    let causal = run(attention(true), &[&q, &k, &v]);
    let first = run(attention(false), &[&cut(&q, 2, 1), &cut(&k, 2, 3), &cut(&v, 2, 3)]);
    close(&cut(&causal, 2, 1), &first);
    // Scales of scores, before a mask is added: those of positions are the keys' own.
    let scaled = |mask| {
        Op::Composite(Composite::Attention {
            scale: Scalar::Float(0.3),
            causal: false,
            mask,
            scales: true,
        })
    };
    let (of_keys, mask) = (filled(&[1, 1, 5, 1], 4), filled(&[3, 5], 5));
    let of_scores = run(Op::View(View::Reshape(vec![1, 1, 1, 5].into())), &[&of_keys]);
    let own = run(Op::binary(BinaryOp::Mul), &[&k, &of_keys]);
    close(
        &run(scaled(false), &[&q, &k, &v, &of_scores]),
        &run(attention(false), &[&q, &own, &v]),
    );
    let masked = Op::Composite(Composite::Attention {
        scale: Scalar::Float(0.3),
        causal: false,
        mask: true,
        scales: false,
    });
    close(
        &run(scaled(true), &[&q, &k, &v, &mask, &of_scores]),
        &run(masked, &[&q, &own, &v, &mask]),
    );
}

#[test]
fn norms_have_their_moments() {
    let x = filled(&[3, 4, 5], 1);
    let norm = Composite::LayerNorm {
        axis: 1,
        epsilon: Scalar::Float(0.0),
    };
    let out = run(Op::Composite(norm), &[&x]).to_f64();
    for row in out.chunks(20) {
        let mean = row.iter().sum::<f64>() / 20.0;
        let square = row.iter().map(|v| v * v).sum::<f64>() / 20.0;
        assert!(mean.abs() < 1e-12 && (square - 1.0).abs() < 1e-12);
    }
    let (scale, bias) = (filled(&[4], 2), filled(&[4], 3));
    let group = |groups| {
        Op::Composite(Composite::GroupNorm {
            groups,
            epsilon: Scalar::Float(1e-5),
        })
    };
    let instance = run(group(4), &[&x, &scale, &bias]);
    let (xv, got) = (x.to_f64(), instance.to_f64());
    let row = &xv[5..10];
    let mean = row.iter().sum::<f64>() / 5.0;
    let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 5.0;
    let expected = (row[2] - mean) / (variance + 1e-5).sqrt() * scale.to_f64()[1] + bias.to_f64()[1];
    assert!((got[7] - expected).abs() < 1e-12);
    let lrn = Composite::LocalResponseNorm {
        size: 3,
        alpha: Scalar::Float(0.3),
        beta: Scalar::Float(0.5),
        bias: Scalar::Float(2.0),
    };
    let out = run(Op::Composite(lrn), &[&f(&[1, 3, 1], &[1.0, 2.0, 3.0])]).to_f64();
    assert!((out[0] - 1.0 / (2.0f64 + 0.1 * 5.0).sqrt()).abs() < 1e-12);
    assert!((out[1] - 2.0 / (2.0f64 + 0.1 * 14.0).sqrt()).abs() < 1e-12);
}

#[test]
fn graphs_bind_symbols_and_round_outputs() {
    let mut g = Graph::new("t");
    let ty = crate::types::TensorType::new(DType::F16, vec![Dim::symbol("n"), Dim::Const(2)]);
    let x = g.add_input("x", ty, Origin::Unknown);
    let n = g.add(Op::DimValue(Dim::symbol("n") * 2), &[], Origin::Unknown).unwrap();
    let n = g.cast(n.into(), DType::F16, Origin::Unknown).unwrap();
    let y = g.add(Op::binary(BinaryOp::Div), &[x, n], Origin::Unknown).unwrap();
    g.add_output("y", y.into());
    let input = HostTensor::from_f64(DType::F16, vec![3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let inputs = IndexMap::from([("x".to_owned(), input)]);
    let out = evaluate(&g, &inputs).unwrap();
    assert_eq!(out["y"].shape, [3, 2]);
    assert_eq!(out["y"].to_f64()[0], crate::convert::round_to(DType::F16, 1.0 / 6.0));
    let values = evaluate_values(&g, &inputs).unwrap();
    assert_eq!(values[y][0].to_f64()[0], 1.0 / 6.0);
    let wrong = IndexMap::from([("x".to_owned(), HostTensor::from_f32(vec![1, 2], &[1.0, 2.0]).unwrap())]);
    assert!(matches!(evaluate(&g, &wrong), Err(EvalError::InputType { .. })));
    assert!(matches!(
        evaluate(&g, &IndexMap::new()),
        Err(EvalError::Bind(BindError::Missing { .. }))
    ));
}
