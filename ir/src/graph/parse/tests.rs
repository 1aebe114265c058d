//! print ∘ parse is the identity; every text gives a graph or an error with its place.

use proptest::prelude::*;

use super::*;
use crate::data::{HostTensor, Storage};
use crate::graph::op::*;
use crate::graph::print::{PrintOptions, print};
use crate::graph::verify::verify;

fn round_trip(text: &str) {
    let graph = parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(print(&graph, PrintOptions::default()), text);
}

#[test]
fn text_survives() {
    round_trip(
        r#"graph @mlp stage=import {
  symbol batch: 1..64 hint 8
  symbol s: 2.. hint 16
  n0 = input "x" : f32[batch, 784]
  n1 = constant "fc.w" splat(0.5) : f32[10, 784]
  n2 = contract n0, n1 {transpose_rhs} : f32[batch, 10] @ "fc"
  n3 = constant [0.1, -inf, 1e-8, NaN] : f32[4]
  n4 = constant hex"0000c0ff" : f32[1]
  n5 = input "ids" : i64[s, 2*s - 1] @ onnx "a b" "Shape"
  n6 = cast n2 : f16[batch, 10] @ "src/lib.rs":12
  n7 = top_k n6 {axis=1, k=3, smallest} : f16[batch, 3], i64[batch, 3]
  n8 = take n7.1, n5 {axis=0} : i64[s, 2*s - 1, 3]
  n9 = dim {size=mod(s, 3) + div(s + 1, 2)} : i64[]
  n10 = constant c1 : f32[4]
  n11 = slice n5 {starts=[0, s - 1], steps=[1, -1]} : i64[s, s]
  n12 = pad n11 {low=[0, 0], high=[1, 0], mode=constant(-1)} : i64[s + 1, s]
  n13 = random {kind=normal(0.0, 1.0), seed=18446744073709551615} : f32[s, 2]
  return n7 as "top", n7.1 as "which", n8 as "out \"q\""
}
"#,
    );
}

#[test]
fn windows_and_composites_survive() {
    round_trip(
        r#"graph @"a name" stage=core {
  n0 = input "x" : f32[2, 16, 9, 9]
  n1 = constant "w" [1.0] : f16[1]
  n2 = conv n0, n0 {strides=[2, 2], pad_low=[1, 1], groups=4} : f32[2, 4, 4, 4]
  n3 = conv n0, n0 {channels_last, transposed=[0, 1], out=f16} : f32[2, 4]
  n4 = pool n0 {kind=average_padded, size=[3, 3], strides=[2, 2], ceil} : f32[2, 16, 4, 4]
  n5 = layer_norm n0 {axis=1, epsilon=1e-5} : f32[2, 16, 9, 9]
  n6 = attention n0, n0, n0 {scale=0.125, causal} : f32[2, 16, 9, 9]
  n7 = hipblaslt_matmul n0, n0 {transpose_rhs, epilogue=relu} : f32[2, 16, 9, 9]
  n8 = miopen_conv n0, n0 {pad_low=[1, 1], pad_high=[1, 1]} : f32[2, 2, 9, 9]
  n9 = miopen_pool n0 {kind=max, size=[2, 2], strides=[2, 2]} : f32[2, 16, 4, 4]
  n10 = reduce n0 {op=mean, axes=[2, 3], keep_dims} : f32[2, 16, 1, 1]
  n11 = scan n0 {op=sum, axis=1, exclusive, reverse} : f32[2, 16, 9, 9]
  n12 = local_response_norm n0 {size=5, alpha=0.0001, beta=0.75, bias=1.0} : f32[2, 16, 9, 9]
  n13 = miopen_softmax n0 {axis=2} : f32[2, 16, 9, 9]
  n14 = constant "s" [0.5] : f32[1]
  n15 = hipblaslt_matmul n0, n0, n14, n14 {out=f16, scale=tensor, epilogue=bias_relu} : f32[2, 16, 9, 9]
  n16 = recurrent n0, n0, n0, n0, n0, n0 {cell=lstm, peepholes, states, f=hard_sigmoid, f_alpha=0.5, f_beta=0.25, g=tanh, h=softsign, clip=3.0, reverse, lengths} : f32[2, 16, 9, 9]
  n17 = recurrent n0, n0, n0, n0 {cell=gru_reset_after, f=sigmoid, g=tanh} : f32[2, 16, 9, 9]
  return n2 as "y"
}
"#,
    );
}

#[test]
fn by_hand_names_comments_and_missing_types() {
    let text = "// a comment\ngraph @g {\n  x = input \"x\" : f32[n, 4] ; here\n  w = constant random(seed=3, scale=0.1) : f32[3, 4]\n  \
                y = contract x, w {transpose_rhs}\n  two = constant 2.0 : f32[]\n  z = mul y, two\n  return z as \"z\"\n}";
    let graph = parse_file("hand.gir", text).unwrap();
    verify(&graph).unwrap();
    assert_eq!(graph.ty(graph.outputs()[0].value).to_string(), "f32[n, 3]");
    assert_eq!(
        graph.node(graph.outputs()[0].value.node).origin.to_string(),
        "hand.gir:7"
    );
    let w = graph.constants()[ConstId::new(0)].tensor.to_f64();
    assert!(w.iter().all(|v| v.abs() <= 0.1) && w.iter().any(|v| v.abs() > 0.05));
}

#[test]
fn errors_have_their_place() {
    for (text, expected) in [
        (
            "graph @g {\n  a = exp b\n}",
            "<text>:2:11: \"b\" is not defined above; operands come before their users",
        ),
        ("graph @g {\n  a = foo\n}", "<text>:2:7: unknown op \"foo\""),
        ("graph g", "<text>:1:7: expected `@`, found `g`"),
        (
            "graph @g { x = input \"x\" : f33[2] }",
            "<text>:1:28: expected an element type, found `f33`",
        ),
        (
            "graph @g { x = input \"x\" : f32[2] y = softmax x {axes=1} }",
            "<text>:1:39: softmax needs the attribute \"axis\"",
        ),
        (
            "graph @g { x = input \"x\" : f32[2] y = exp x {axis=1} }",
            "<text>:1:46: exp has no attribute \"axis\"",
        ),
        (
            "graph @g { x = constant [1, 2] : f32[3] }",
            "<text>:1:16: a constant f32[3] has 3 elements, but 2 are written",
        ),
        ("graph @g { \"open", "<text>:1:12: the string is not closed"),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), expected);
    }
}

#[test]
fn the_verifier_collects_all_errors() {
    let text = "graph @g stage=core {\n  x = input \"x\" : f32[2, 4]\n  x2 = input \"x\" : f32[2, 4]\n  y = exp x : f32[2, 5]\n  \
                z = batch_norm x, x, x, x, x {epsilon=0.1} : f32[2, 4]\n  d = dim {size=q} : i64[]\n  return y as \"o\", y as \"o\"\n}";
    let errors = verify(&parse(text).unwrap()).unwrap_err().errors;
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let all = texts.join("\n");
    for part in [
        "declared f32[2, 5], but is f32[2, 4]",
        "does not belong to stage Core",
        "input \"x\" occurs twice",
        "output \"o\" occurs twice",
        "symbol q is not declared",
        "must have rank 1",
    ] {
        assert!(all.contains(part), "{part} in\n{all}");
    }
}

/// Random graphs over a few shapes, built through inference so that they verify.
fn random_graph() -> impl Strategy<Value = Graph> {
    let step = (any::<u8>(), any::<u16>(), any::<u16>(), any::<i64>());
    (proptest::collection::vec(step, 1..24), "[a-z \"\\\\\n€]{0,6}").prop_map(|(steps, name)| {
        let mut g = Graph::new(name.clone());
        let dtypes = [
            DType::F32,
            DType::F16,
            DType::I64,
            DType::Bool,
            DType::F8E5M2,
            DType::I4,
        ];
        g.add_input(
            "x",
            TensorType::new(DType::F32, vec![Dim::symbol("n"), Dim::Const(4)]),
            Origin::Unknown,
        );
        for (what, a, b, c) in steps {
            let pick = |g: &Graph, i: u16| {
                let all: Vec<Value> = g.values().map(|(v, _)| v).collect();
                all[i as usize % all.len()]
            };
            let (x, y) = (pick(&g, a), pick(&g, b));
            let rank = g.ty(x).rank();
            let origin = match c % 4 {
                0 => Origin::Unknown,
                1 => Origin::Named(name.as_str().into()),
                2 => Origin::Onnx {
                    name: name.as_str().into(),
                    op: "Add".into(),
                },
                _ => Origin::Source {
                    file: "f.rs".into(),
                    line: a.into(),
                },
            };
            let dtype = dtypes[b as usize % dtypes.len()];
            // Ops that do not fit their operands are skipped: inference refuses them.
            let op = match what % 14 {
                0 => Op::binary(BinaryOp::ALL[a as usize % BinaryOp::ALL.len()]),
                1 => Op::unary(UnaryOp::ALL[b as usize % UnaryOp::ALL.len()]),
                2 => Op::cast(dtype),
                3 => Op::View(View::Transpose((0..rank).rev().collect())),
                4 => Op::Reduce {
                    op: ReduceOp::ALL[b as usize % ReduceOp::ALL.len()],
                    axes: vec![0],
                    keep_dims: a % 2 == 0,
                },
                5 => Op::View(View::Reshape(vec![g.ty(x).elements()].into())),
                6 => Op::TopK {
                    axis: 0,
                    k: Dim::Const(1),
                    largest: a % 2 == 0,
                },
                7 => Op::Contract(Contract {
                    transpose_lhs: a % 2 == 0,
                    transpose_rhs: b % 2 == 0,
                    out: dtype,
                }),
                8 => Op::View(View::Pad {
                    low: vec![Dim::from(i64::from(b % 3)); rank],
                    high: vec![Dim::symbol("n"); rank],
                    // All NaNs print alike.
                    mode: PadMode::Constant(Scalar::Float(
                        Some(f64::from_bits(c as u64))
                            .filter(|v| !v.is_nan())
                            .unwrap_or(f64::NAN),
                    )),
                }),
                9 => Op::Composite(Composite::Softmax { axis: 0 }),
                10 => Op::View(View::Concat { axis: 0 }),
                11 => Op::Iota {
                    shape: vec![Dim::symbol("n").floor_div(&Dim::from(i64::from(a % 5) + 2)) + 1].into(),
                    axis: 0,
                    dtype,
                },
                12 => Op::DimValue(Dim::symbol("n").larger(&Dim::Const(c >> 8)) * Dim::symbol("n")),
                _ => {
                    let bytes = random(dtype, 6, c as u64, Scalar::Float(f64::from(b)));
                    let mut bytes = bytes;
                    if a % 3 == 0 {
                        let n = bytes.len();
                        bytes[n - 1] = c as u8 & if dtype == DType::Bool { 1 } else { 0xff };
                    }
                    let tensor = HostTensor::new(dtype, vec![2, 3], Storage::new(bytes)).unwrap();
                    g.add_constant((c % 2 == 0).then(|| name.clone()), tensor, origin);
                    continue;
                }
            };
            let operands: &[Value] = match op {
                ref op if op.is_leaf() => &[],
                Op::Elementwise(Elementwise::Binary(_)) | Op::Contract(_) | Op::View(View::Concat { .. }) => &[x, y],
                _ => &[x],
            };
            let _ = g.add(op, operands, origin);
        }
        let last = g.values().last().map(|(v, _)| v);
        last.into_iter().for_each(|v| g.add_output("y", v));
        g
    })
}

/// A short text that would be a size of gigabytes, or a tree that takes longer than the world to walk.
#[test]
fn sizes_that_multiply_are_refused() {
    let power = |n: usize| vec!["(a + b + c + d)"; n].join("*");
    let input = |size: &str| {
        parse(&format!(
            "graph @g {{\n  x = input \"x\" : f32[{size}]\n  return x as \"y\"\n}}"
        ))
    };
    assert!(input(&power(3)).is_ok());
    let nested = (0..13).fold("a".to_owned(), |t, _| format!("max({t}, div({t}, 3) + b)"));
    for size in [&power(30), &nested, &format!("{0}, {0}, {0}, {0}", power(5))] {
        let error = input(size).unwrap_err();
        assert_eq!(error.problem, Problem::LargeSize, "{error}");
    }
    // What is inferred counts as what is written.
    let mut text = "graph @g {\n  n0 = input \"x\" : f32[1, n]\n".to_owned();
    for i in 0..200 {
        text += &format!(
            "  n{} = slice n{i} {{starts=[0, 0], sizes=[1, div(n, {})], steps=[1, 1]}}\n",
            i + 1,
            i + 2
        );
    }
    assert!(parse(&format!("{text}  return n200 as \"y\"\n}}")).is_ok());
    let mut text = "graph @g {\n  n0 = input \"x\" : f32[a + b, c]\n".to_owned();
    for i in 0..40 {
        text += &format!("  n{} = concat n{i}, n{i} {{axis=0}}\n", i + 1);
    }
    assert!(
        parse(&format!("{text}  return n40 as \"y\"\n}}")).is_ok(),
        "coefficients grow, terms do not"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn graphs_survive(g in random_graph()) {
        let text = print(&g, PrintOptions::default());
        let back = parse(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        prop_assert_eq!(print(&back, PrintOptions::default()), text.clone());
        prop_assert!(back == g, "{}", text);
        prop_assert!(verify(&g).is_ok(), "{}", verify(&g).unwrap_err());
    }

    #[test]
    fn damaged_text_never_panics(g in random_graph(), cuts in proptest::collection::vec((any::<u32>(), any::<u32>(), any::<char>()), 1..6)) {
        let mut text: Vec<char> = print(&g, PrintOptions::default()).chars().collect();
        for (at, how, with) in cuts {
            let at = at as usize % text.len();
            match how % 4 {
                0 => text[at] = with,
                1 => { text.remove(at); }
                2 => text.insert(at, ['{', '[', '9', '-', '.', '"', ',', '='][how as usize / 4 % 8]),
                _ => { let c = text[how as usize % text.len()]; text[at] = c; }
            }
        }
        let text: String = text.into_iter().collect();
        if let Ok(g) = parse(&text) {
            let _ = verify(&g);
            let again = print(&g, PrintOptions::default());
            prop_assert_eq!(parse(&again).map(|g| print(&g, PrintOptions::default())), Ok(again));
        }
    }

    #[test]
    fn any_text_never_panics(text in "(graph @g \\{)?[a-z0-9 =\\[\\](){}:.,@\"\n*+-]{0,80}") {
        let _ = parse(&text);
    }
}
