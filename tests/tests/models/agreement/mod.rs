//! Small graphs whose every element is decided by a rule that is easy to get wrong: integers that wrap and round,
//! narrow types, empty axes.
//!
//! The reference evaluator = the optimised graph = the plan = the CPU device = the generated HIP, executed on the host.

mod harness;

use std::fmt::Write as _;

use graphc_tests::reference::{Tensors, compile_cpu};
use harness::{case, check_all, floats, ints, waves, wild};
use ir::{DType, HostTensor};
use passes::OptLevel;

use DType::{BF16, F16, F32, F64, I4, I8, I16, I32, I64, U4, U8};

#[test]
fn averages_of_integers_are_divided_as_integers() {
    let image = |dtype, values: &[i64]| ints(dtype, &[1, 1, 4, 4], values.iter().copied().cycle());
    let pool = |more: &str| format!("  y = pool x {{kind=average, size=[2, 2], strides=[2, 2]{more}}}");
    let mut cases = vec![
        case("fours", &[("x", image(I32, &[4]))], &pool("")),
        case("rounds_to_zero", &[("x", image(I32, &[-3, -3, -3, -2, 7]))], &pool("")),
        case(
            "i32_sums_do_not_wrap",
            &[("x", image(I32, &[i64::from(i32::MAX)]))],
            &pool(""),
        ),
        case("i8_sums_do_not_wrap", &[("x", image(I8, &[127, 126, -128]))], &pool("")),
        case(
            "u8_guarded",
            &[("x", image(U8, &[250, 255, 7]))],
            &pool(", pad_low=[1, 1], pad_high=[1, 1]"),
        ),
        case(
            "i16_padding_counted",
            &[("x", image(I16, &[32767, -32768, 5]))],
            "  y = pool x {kind=average_padded, size=[3, 3], pad_low=[1, 1], pad_high=[1, 1]}",
        ),
    ];
    let row = |dtype, n: usize, values: &[i64]| ints(dtype, &[2, n], values.iter().copied().cycle());
    let mean = "  y = reduce x {op=mean, axes=[1]}";
    cases.extend([
        case("mean_of_41_ones", &[("x", row(I32, 41, &[1]))], mean),
        case(
            "mean_rounds_to_zero",
            &[("x", row(I64, 5, &[-1, -2, -3, 1, 0, 7, 3]))],
            mean,
        ),
        case(
            "mean_of_large_i32",
            &[("x", row(I32, 3, &[i64::from(i32::MAX), i64::from(i32::MAX) - 1]))],
            mean,
        ),
        case("mean_of_i8", &[("x", row(I8, 300, &[127, 100]))], mean),
        case("mean_of_u8", &[("x", row(U8, 33, &[255, 254]))], mean),
        case("mean_of_i16", &[("x", row(I16, 64, &[-32768, -32767]))], mean),
        case("mean_of_nothing", &[("x", row(I32, 0, &[1]))], mean),
        case(
            "mean_in_a_longer_kernel",
            &[("x", row(I32, 7, &[-9, 4, 100]))],
            "  m = reduce x {op=mean, axes=[1], keep_dims}\n  y = sub x, m",
        ),
    ]);
    check_all(&cases);
}

#[test]
fn integer_products_are_biased_after_they_are_converted() {
    let x = ints(I8, &[1, 2, 4, 4], wild(-128, 127));
    let w = ints(I8, &[3, 2, 3, 3], wild(-128, 127));
    let deep = ints(I8, &[2, 1, 3, 3], wild(-128, 127));
    let bias = |dtype| floats(dtype, &[3], [0.5, -0.25, 1.75]);
    let cases = [
        case(
            "float_bias",
            &[("x", x.clone()), ("w", w.clone()), ("b", bias(F32))],
            "  y = conv x, w, b {out=f32}",
        ),
        case(
            "f16_bias",
            &[("x", x.clone()), ("w", w.clone()), ("b", bias(F16))],
            "  y = conv x, w, b {out=f16}",
        ),
        case(
            "depthwise_float_bias",
            &[
                ("x", x.clone()),
                ("w", deep.clone()),
                ("b", floats(F32, &[2], [0.5, -0.75])),
            ],
            "  y = conv x, w, b {out=f32, groups=2, pad_low=[1, 1]}",
        ),
        case(
            "wide_bias",
            &[
                ("x", x.clone()),
                ("w", w.clone()),
                ("b", ints(I64, &[3], [1 << 40, -1, 3])),
            ],
            "  y = conv x, w, b {out=i64}",
        ),
        case(
            "depthwise_wide_bias",
            &[("x", x.clone()), ("w", deep), ("b", ints(I64, &[2], [1 << 40, -1]))],
            "  y = conv x, w, b {out=i64, groups=2}",
        ),
        case(
            "usual_bias",
            &[
                ("x", x),
                ("w", w),
                ("b", ints(I32, &[3], [1 << 30, -1, i64::from(i32::MAX)])),
            ],
            "  y = conv x, w, b {out=i32}",
        ),
    ];
    check_all(&cases);
}

#[test]
fn products_of_mixed_integers_are_summed_in_the_wider_type() {
    let big = || wild(-(1 << 40), 1 << 40);
    let cases = [
        case(
            "i8_by_i64",
            &[
                ("a", ints(I8, &[5, 7], wild(-128, 127))),
                ("b", ints(I64, &[7, 3], big())),
            ],
            "  y = contract a, b {out=i64}",
        ),
        case(
            "i64_by_i8",
            &[
                ("a", ints(I64, &[5, 7], big())),
                ("b", ints(I8, &[7, 3], wild(-128, 127))),
            ],
            "  y = contract a, b {out=i64}",
        ),
        case(
            "i32_wraps",
            &[
                ("a", ints(I32, &[5, 40], wild(-(1 << 31), (1 << 31) - 1))),
                ("b", ints(I32, &[40, 3], wild(-(1 << 31), (1 << 31) - 1))),
            ],
            "  y = contract a, b {out=i64}",
        ),
        case(
            "i64_wraps",
            &[
                ("a", ints(I64, &[5, 7], wild(i64::MIN, i64::MAX))),
                ("b", ints(I64, &[7, 3], wild(i64::MIN, i64::MAX))),
            ],
            "  y = contract a, b {out=i64}",
        ),
        case(
            "u8_by_i8",
            &[
                ("a", ints(U8, &[5, 7], wild(0, 255))),
                ("b", ints(I8, &[7, 3], wild(-128, 127))),
            ],
            "  y = contract a, b {out=i32}",
        ),
        case(
            "conv_i8_by_i64",
            &[
                ("x", ints(I8, &[1, 2, 5, 4], wild(-128, 127))),
                ("w", ints(I64, &[3, 2, 2, 2], big())),
            ],
            "  y = conv x, w {out=i64}",
        ),
        case(
            "depthwise_i8_by_i64",
            &[
                ("x", ints(I8, &[1, 2, 5, 4], wild(-128, 127))),
                ("w", ints(I64, &[2, 1, 2, 2], big())),
            ],
            "  y = conv x, w {out=i64, groups=2}",
        ),
    ];
    check_all(&cases);
}

/// Every pair of 4-bit numbers, and pairs of all kinds of the wider ones.
fn pairs(dtype: DType) -> [HostTensor; 2] {
    let all = match dtype {
        I4 => -8..=7,
        U4 => 0..=15,
        I8 => -128..=127,
        _ => 0..=255,
    };
    let (low, high) = match dtype {
        I16 => (-32768, 32767),
        I32 => (-(1 << 31), (1 << 31) - 1),
        I64 => (i64::MIN, i64::MAX),
        _ => (*all.start(), *all.end()),
    };
    if matches!(dtype, I4 | U4) {
        let a = all.clone().flat_map(|a| std::iter::repeat_n(a, 16));
        return [ints(dtype, &[256], a), ints(dtype, &[256], all.cycle())];
    }
    [
        ints(dtype, &[256], wild(low, high)),
        ints(
            dtype,
            &[256],
            wild(low, high)
                .skip(3)
                .zip(0..)
                .map(|(v, i)| if i % 3 == 0 { i % 11 - 5 } else { v }),
        ),
    ]
}

#[test]
fn arithmetic_of_narrow_integers_wraps_at_every_step() {
    let mut cases = Vec::new();
    let names: Vec<(DType, &'static str)> = vec![
        (I4, "i4"),
        (U4, "u4"),
        (I8, "i8"),
        (U8, "u8"),
        (I16, "i16"),
        (I32, "i32"),
        (I64, "i64"),
    ];
    for (dtype, name) in names {
        let [a, b] = pairs(dtype);
        let inputs = [("a", a), ("b", b)];
        for op in ["add", "sub", "mul", "shl", "pow"] {
            // What wrapped wrongly in between shows in what is not a ring's operation.
            let body = format!("  s = {op} a, b\n  t = div s, b\n  u = max t, s\n  v = shr s, b\n  y = add u, v");
            cases.push(case(name, &inputs, &body));
        }
        for op in ["neg", "abs", "not"] {
            let body = format!("  s = {op} a\n  t = rem s, b\n  u = min t, s\n  v = mod s, b\n  y = sub u, v");
            cases.push(case(name, &inputs, &body));
        }
        cases.push(case(
            name,
            &inputs,
            "  s = xor a, b\n  t = div a, b\n  u = lt s, t\n  y = select u, s, t",
        ));
    }
    let fifteens = ints(U4, &[3], [15, 15, 15]);
    let (two, five) = (ints(U4, &[3], [2, 2, 2]), ints(U4, &[3], [5, 4, 3]));
    cases.push(case(
        "half_of_a_wrapped_sum",
        &[("x", fifteens.clone()), ("two", two)],
        "  s = add x, x\n  y = div s, two",
    ));
    cases.push(case(
        "shift_by_the_width",
        &[("x", fifteens), ("n", five)],
        "  y = shl x, n",
    ));
    check_all(&cases);
}

#[test]
fn overflow_is_seen_by_comparisons() {
    let mut cases = Vec::new();
    for (name, dtype, high) in [
        ("i64", I64, i64::MAX),
        ("i32", I32, i64::from(i32::MAX)),
        ("i8", I8, 127),
    ] {
        let x = ints(dtype, &[4], [high, high - 1, 0, -1]);
        let one = ints(dtype, &[4], [1; 4]);
        let inputs = [("x", x.clone()), ("one", one.clone())];
        cases.push(case(
            name,
            &inputs,
            "  s = add x, one\n  c = lt s, x\n  y = cast c {to=i32}",
        ));
        let body = "  one = constant 1 : DTYPE[]\n  s = add x, one\n  c = lt s, x\n  y = cast c {to=i32}";
        cases.push(case(name, &[("x", x)], &body.replace("DTYPE", name)));
        let body = "  s = neg x\n  d = sub s, one\n  e = sub d, one\n  c = lt e, d\n  y = cast c {to=i32}";
        cases.push(case(name, &inputs, body));
    }
    cases.push(case(
        "positions_times_a_number",
        &[("x", ints(I64, &[6], 0..6))],
        "  i = iota {axis=0} : i64[6]\n  n = constant 4611686018427387904 : i64[]\n  s = mul i, n\n  t = div s, n\n  y = add t, x",
    ));
    check_all(&cases);
}

#[test]
fn scans_and_folds_start_from_their_own_type() {
    let mut cases = Vec::new();
    for (name, dtype, low, high) in INTEGERS {
        let x = ints(dtype, &[3, 150], wild(low, high).skip(2));
        for op in ["max", "min", "sum", "prod"] {
            for more in [", exclusive", ", exclusive, reverse", ""] {
                cases.push(case(
                    name,
                    &[("x", x.clone())],
                    &format!("  y = scan x {{op={op}, axis=1{more}}}"),
                ));
            }
        }
        for op in ["max", "min", "arg_max", "arg_min", "sum", "prod"] {
            cases.push(case(
                name,
                &[("x", x.clone())],
                &format!("  y = reduce x {{op={op}, axes=[1]}}"),
            ));
            cases.push(case(
                name,
                &[("x", x.clone())],
                &format!("  y = reduce x {{op={op}, axes=[0]}}"),
            ));
            let none = ints(dtype, &[3, 0], []);
            cases.push(case(
                name,
                &[("x", none)],
                &format!("  y = reduce x {{op={op}, axes=[1]}}"),
            ));
        }
        let image = ints(dtype, &[1, 1, 3, 3], wild(low, high));
        let window = "  y = pool x {kind=max, size=[1, 1], strides=[2, 2], pad_low=[1, 1], pad_high=[1, 1]}";
        cases.push(case(name, &[("x", image)], window));
    }
    check_all(&cases);
}

#[test]
fn f64_stays_f64() {
    let q = floats(F64, &[1, 2, 3, 4], waves());
    let k = floats(F64, &[1, 2, 5, 4], waves().skip(50));
    let v = floats(F64, &[1, 2, 5, 2], waves().skip(90));
    let cases = [
        case(
            "attention",
            &[("q", q), ("k", k), ("v", v)],
            "  y = attention q, k, v {scale=0.37}",
        ),
        case(
            "uniform",
            &[("x", floats(F64, &[40], waves()))],
            "  r = random {kind=uniform(0.1, 0.7), seed=5} : f64[40]\n  y = add r, x",
        ),
        case(
            "normal",
            &[("x", floats(F64, &[40], waves()))],
            "  r = random {kind=normal(0.1, 0.7), seed=5} : f64[40]\n  y = add r, x",
        ),
    ];
    check_all(&cases);
}

#[test]
fn attention_over_no_keys_gives_zeros() {
    let mut cases = Vec::new();
    for dtype in [F32, F16, BF16, F64] {
        for more in ["", ", causal"] {
            let inputs = [
                ("q", floats(dtype, &[1, 2, 3, 4], waves())),
                ("k", floats(dtype, &[1, 2, 0, 4], [])),
                ("v", floats(dtype, &[1, 2, 0, 2], [])),
            ];
            cases.push(case(
                "no_keys",
                &inputs,
                &format!("  y = attention q, k, v {{scale=0.5{more}}}"),
            ));
        }
    }
    check_all(&cases);
}

/// An index that is computed by many steps, each from the one before twice, is looked at once a step.
#[test]
fn shared_index_arithmetic_compiles_in_time() {
    let mut body = String::from("  n0 = add i, i\n");
    for step in 1..40 {
        let _ = writeln!(body, "  n{step} = add n{}, n{}", step - 1, step - 1);
    }
    body += "  m = constant 100 : i64[]\n  at = rem n39, m\n  y = take data, at {axis=0}";
    let inputs = [
        ("data", floats(F32, &[100, 64], waves())),
        ("i", ints(I64, &[3], [0, 1, -(1 << 40)])),
    ];
    check_all(&[case("doubled_40_times", &inputs, &body)]);
}

/// The integer types with their ends.
const INTEGERS: [(&str, DType, i64, i64); 7] = [
    ("i4", I4, -8, 7),
    ("u4", U4, 0, 15),
    ("i8", I8, -128, 127),
    ("u8", U8, 0, 255),
    ("i16", I16, -32768, 32767),
    ("i32", I32, -(1 << 31), (1 << 31) - 1),
    ("i64", I64, i64::MIN, i64::MAX),
];

#[test]
fn views_and_orders_of_narrow_integers() {
    let mut cases = Vec::new();
    for (name, dtype, low, high) in INTEGERS {
        let x = ints(dtype, &[3, 70], wild(low, high));
        let inputs = [("x", x.clone())];
        for body in [
            "  v = top_k x {k=5, axis=1}\n  y = add v.0, v.0".to_owned(),
            "  v = top_k x {k=40, axis=1, smallest}\n  y = add v.0, v.0".to_owned(),
            format!("  i = iota {{axis=0}} : {name}[70]\n  y = add x, i"),
            "  p = pad x {low=[1, 2], high=[0, 3], mode=constant(3)}\n  y = sub p, p".to_owned(),
            "  p = pad x {low=[1, 2], high=[0, 3], mode=constant(-3)}\n  y = neg p".to_owned(),
            "  p = pad x {low=[1, 2], high=[0, 3], mode=reflect}\n  y = neg p".to_owned(),
            "  c = concat x, x {axis=1}\n  y = mul c, c".to_owned(),
            "  c = transpose x {perm=[1, 0]}\n  y = contract x, c {out=i64}".to_owned(),
            "  c = transpose x {perm=[1, 0]}\n  y = contract x, c {out=f32}".to_owned(),
            "  f = cast x {to=f32}\n  g = mul f, f\n  y = cast g : ".to_owned() + name + "[3, 70]",
            "  f = cast x {to=f64}\n  g = mul f, f\n  y = cast g : ".to_owned() + name + "[3, 70]",
            "  b = cast x {to=bool}\n  y = cast b {to=f16}".to_owned(),
            "  e = relu x\n  s = sign x\n  g = sub e, s\n  y = mul g, x".to_owned(),
            "  y = take x, x {axis=0}".to_owned(),
        ] {
            cases.push(case(name, &inputs, &body));
        }
        for to in [
            "i4", "u4", "i8", "u8", "i16", "i32", "i64", "bool", "f16", "bf16", "f64",
        ] {
            cases.push(case(name, &inputs, &format!("  y = cast x {{to={to}}}")));
        }
        let at = ints(I64, &[3, 70], (0..).map(|i| i * 7 % 3));
        for reduce in ["sum", "prod", "max", "min"] {
            let data = ints(dtype, &[3, 70], wild(low, high).skip(9));
            let inputs = [("d", data), ("i", at.clone()), ("x", x.clone())];
            let body = format!("  y = scatter_elements d, i, x {{axis=0, reduce={reduce}}}");
            if !matches!(dtype, I4 | U4) {
                cases.push(case(name, &inputs, &body));
            }
        }
    }
    check_all(&cases);
}

/// `round(x / s)` where the quotient is a tie in f32, or next to one: what f32 division gives, not a product with
/// `1 / s`.
#[test]
fn quantised_ties_are_those_of_the_quotient() {
    for scale in [0.1f32, 0.3, 0.7, 1.3, 0.0078] {
        let near = |i: i32| {
            let tie = (i as f32 + 0.5) * scale;
            [tie, tie.next_up(), tie.next_down()]
        };
        let x: Vec<f32> = (-120..120).flat_map(near).collect();
        let text = format!(
            "graph @quantise stage=import {{\n  x = input \"x\" : f32[{}]\n  s = constant [{scale:?}] : f32[]\n  d = div x, s\n  \
             r = round d\n  z = constant [3.0] : f32[]\n  a = add r, z\n  l = constant [-128.0] : f32[]\n  m = max a, l\n  \
             h = constant [127.0] : f32[]\n  n = min m, h\n  y = cast n {{to=i8}}\n  return y as \"y\"\n}}\n",
            x.len()
        );
        let graph = ir::graph::parse::parse(&text).expect("a graph");
        let inputs = Tensors::from_iter([("x".to_owned(), HostTensor::from_f32([x.len()], &x).expect("fits"))]);
        let want: Vec<i64> = (x.iter())
            .map(|x| ((x / scale).round_ties_even() + 3.0).clamp(-128.0, 127.0) as i64)
            .collect();
        let got = compile_cpu(&graph, OptLevel::O2, None).run(&inputs).expect("runs");
        assert_eq!(got["y"].to_i64(), want, "{scale}");
    }
}

/// Groups of a quantised 1x1 convolution whose channels are then shuffled: groups as wide as tiles, and such that tiles
/// have parts of several. Scales are powers of two, so that nothing rounds but the quantisation.
#[test]
fn shuffled_channels_of_quantised_convolutions() {
    let mut cases = Vec::new();
    for (groups, each, filters) in [(3, 32, 32), (3, 8, 20), (4, 6, 5), (2, 12, 70)] {
        let (channels, all) = (groups * each, groups * filters);
        let x = ints(U8, &[2, channels, 3, 5], wild(0, 255));
        let body = format!(
            "  s = constant [0.03125] : f32[1, 1, 1, 1]\n  z = constant [7] : u8[1, 1, 1, 1]\n  \
             v = constant [0.015625] : f32[1, 1, 1, 1]\n  xd = dequantize x, s, z {{out=f32}}\n  \
             w = constant random(seed=1) : i8[{all}, {each}, 1, 1]\n  wd = dequantize w, v {{out=f32}}\n  \
             c = conv xd, wd {{groups={groups}}}\n  d = constant [4.0] : f32[1, 1, 1, 1]\n  q = quantize c, d, z {{out=u8}}\n  \
             r = reshape q : u8[2, {groups}, {filters}, 3, 5]\n  t = transpose r {{perm=[0, 2, 1, 3, 4]}}\n  \
             y = reshape t : u8[2, {all}, 3, 5]"
        );
        cases.push(case("shuffle", &[("x", x)], &body));
    }
    check_all(&cases);
}

/// A sort has NaN as the largest, wherever it runs: in short rows by one thread, in long ones by a workgroup.
#[test]
fn orders_of_floats_with_nan() {
    let mut cases = Vec::new();
    let odd = |(i, x): (usize, f64)| match i % 11 {
        3 => f64::NAN,
        5 => f64::INFINITY,
        8 => f64::NEG_INFINITY,
        9 => 0.5,
        _ => x,
    };
    for dtype in [F32, F64, F16] {
        for length in [12, 90, 2500] {
            let x = floats(dtype, &[2, length], waves().enumerate().map(odd));
            for k in [3, 7, length] {
                for smallest in ["", ", smallest"] {
                    let part = |part| format!("  v = top_k x {{k={k}, axis=1{smallest}}}\n  y = relu v.{part}");
                    cases.push(case("values", &[("x", x.clone())], &part(0)));
                    cases.push(case("places", &[("x", x.clone())], &part(1)));
                }
            }
        }
    }
    check_all(&cases);
}

#[test]
fn members_of_wide_floats_and_truth_values() {
    let mut cases = Vec::new();
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.5,
        -2.5,
        1e-7,
        30.0,
        -30.0,
    ];
    for dtype in [F64, F32] {
        let x = floats(dtype, &[24], special.into_iter().chain(waves()));
        let z = floats(dtype, &[24], waves().skip(100));
        for op in [
            "neg",
            "abs",
            "sign",
            "floor",
            "ceil",
            "round",
            "trunc",
            "sqrt",
            "rsqrt",
            "recip",
            "exp",
            "expm1",
            "log",
            "log1p",
            "exp2",
            "log2",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "acosh",
            "atanh",
            "erf",
            "sigmoid",
            "softplus",
            "relu",
            "gelu",
            "gelu_tanh",
            "silu",
            "mish",
            "hard_swish",
            "is_nan",
            "is_inf",
        ] {
            cases.push(case("unary", &[("x", x.clone())], &format!("  y = {op} x")));
        }
        for op in [
            "add", "sub", "mul", "div", "rem", "mod", "pow", "max", "min", "atan2", "eq", "ne", "lt", "le", "gt", "ge",
        ] {
            cases.push(case(
                "binary",
                &[("x", x.clone()), ("z", z.clone())],
                &format!("  y = {op} x, z"),
            ));
        }
        for to in ["i4", "u4", "i8", "u8", "i16", "i32", "i64", "bool"] {
            cases.push(case("cast", &[("x", x.clone())], &format!("  y = cast x {{to={to}}}")));
        }
    }
    let a = ints(DType::Bool, &[4], [0, 0, 1, 1]);
    let b = ints(DType::Bool, &[4], [0, 1, 0, 1]);
    for op in ["and", "or", "xor", "eq", "ne"] {
        cases.push(case(
            "truth",
            &[("a", a.clone()), ("b", b.clone())],
            &format!("  y = {op} a, b"),
        ));
    }
    check_all(&cases);
}
