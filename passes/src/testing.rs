//! How rules are tested: a graph in text that must make the rule fire, a near miss that must not, and the same numbers
//! before and after by the reference evaluator.

use indexmap::IndexMap;
use ir::graph::eval::evaluate;
use ir::{DType, Graph, HostTensor, Target};

use crate::{OptLevel, OptimizeOptions, OptimizeReport, PlanOptions, Planned, ScheduleOptions, optimize};

/// Parses the lines of a graph's body.
pub fn graph(body: &str) -> Graph {
    let text = format!("graph @test stage=import {{\n{body}\n}}\n");
    let graph = ir::graph::parse::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    ir::graph::verify::verify(&graph).unwrap_or_else(|e| panic!("{e}\n{text}"));
    graph
}

/// Seeded numbers for every input; symbols get their hints.
pub fn inputs(graph: &Graph) -> IndexMap<String, HostTensor> {
    let bindings = ir::dim::hints(graph.symbols());
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f64 / f64::from(1u32 << 24)
    };
    let mut out = IndexMap::new();
    for input in graph.inputs() {
        let ty = graph.ty(input.node.into());
        let shape: Vec<usize> = ty.shape.eval(&bindings).unwrap().iter().map(|d| *d as usize).collect();
        let n: usize = shape.iter().product();
        let values: Vec<f64> = (0..n)
            .map(|_| match ty.dtype {
                DType::Bool => (next() * 2.0).floor(),
                d if d.is_int() => (next() * 4.0).floor(),
                _ => next() * 3.0 - 1.5,
            })
            .collect();
        out.insert(
            input.name.clone(),
            HostTensor::from_f64(ty.dtype, shape, &values).unwrap(),
        );
    }
    out
}

/// Plans a graph's body for a target, without libraries.
pub fn planned(target: &str, body: &str, options: &PlanOptions) -> (Graph, Planned) {
    let target: Target = target.parse().expect("known");
    let optimize = OptimizeOptions {
        libraries: false,
        ..OptimizeOptions::at(OptLevel::O2)
    };
    let (core, _) = crate::optimize(graph(body), &target, &optimize).expect("optimises");
    let (schedule, _) = crate::schedule(&core, &target, &ScheduleOptions::default()).expect("schedules");
    let planned = crate::plan_and_decided(&core, &schedule, &target, options).expect("plans");
    (core, planned)
}

/// Optimises for a target and compares all outputs before and after.
pub fn optimized(before: &Graph, target: &str, options: OptimizeOptions) -> (Graph, OptimizeReport) {
    let options = OptimizeOptions {
        verify: true,
        ..options
    };
    let (after, report) = optimize(before.clone(), &target.parse::<Target>().unwrap(), &options)
        .unwrap_or_else(|e| panic!("{e}\n{}", e.graph));
    let inputs = inputs(before);
    let want = evaluate(before, &inputs).unwrap();
    let got = evaluate(&after, &inputs).unwrap_or_else(|e| panic!("{e}\n{after}"));
    for (name, want) in &want {
        let got = &got[name];
        assert_eq!((&got.shape, got.dtype), (&want.shape, want.dtype), "{name}\n{after}");
        for (a, b) in got.to_f64().iter().zip(want.to_f64()) {
            let close = (a - b).abs() <= 1e-4 * (1.0 + b.abs()) || a == &b || (a.is_nan() && b.is_nan());
            assert!(close, "{name}: {a} after, {b} before\n{before}\n{after}");
        }
    }
    (after, report)
}

/// Checks rules: `(rule, body that makes it fire, body that must not)`.
pub fn check_rules(cases: &[(&str, &str, &str)]) {
    for (rule, fires, misses) in cases {
        let (after, report) = optimized(&graph(fires), "cpu", OptimizeOptions::default());
        let names: Vec<&str> = report.fired.iter().map(|f| f.rule).collect();
        assert!(
            report.count(rule) > 0,
            "{rule} did not fire on\n{fires}\nonly {names:?} did, leaving\n{after}"
        );
        let (after, report) = optimized(&graph(misses), "cpu", OptimizeOptions::default());
        assert_eq!(
            report.count(rule),
            0,
            "{rule} fired on the near miss\n{misses}\nleaving\n{after}"
        );
        // Every level must agree, and the rule must be one that can be switched off.
        for level in [OptLevel::O0, OptLevel::O1, OptLevel::O3] {
            optimized(&graph(fires), "cpu", OptimizeOptions::at(level));
        }
        let mut without = OptimizeOptions::default();
        without.disable.insert((*rule).to_owned());
        let (_, report) = optimized(&graph(fires), "cpu", without);
        assert_eq!(report.count(rule), 0, "{rule} fired though it is disabled");
    }
}

#[test]
fn clean_up_rules_fire_and_miss() {
    const X: &str = "x = input \"x\" : f32[2, 3, 4]\n";
    let with = |body: &str| format!("{X}{body}");
    let cases: Vec<(&str, String, String)> = [
        (
            "constant_right",
            "c = constant [2.0] : f32[]\ny = mul c, x\nreturn y as \"y\"",
            "c = constant [2.0] : f32[]\ny = sub c, x\nreturn y as \"y\"",
        ),
        (
            "identity_element",
            "c = constant splat(1.0) : f32[3, 1]\ny = mul x, c\nreturn y as \"y\"",
            // Times zero is not zero for NaN and infinity.
            "c = constant [0.0] : f32[]\ny = mul x, c\nreturn y as \"y\"",
        ),
        (
            "power_of_small_integer",
            "c = constant [3.0] : f32[]\ny = pow x, c\nreturn y as \"y\"",
            "a = abs x\nc = constant [2.5] : f32[]\ny = pow a, c\nreturn y as \"y\"",
        ),
        (
            "divide_by_constant",
            "c = constant [3.0] : f32[]\ny = div x, c\nreturn y as \"y\"",
            "c = constant [0.0] : f32[]\ny = div x, c\nreturn y as \"y\"",
        ),
        (
            "reciprocal_of_sqrt",
            "a = abs x\ns = sqrt a\ny = recip s\nreturn y as \"y\"",
            "a = abs x\ns = exp a\ny = recip s\nreturn y as \"y\"",
        ),
        (
            "max_with_zero",
            "c = constant [0.0] : f32[]\ny = max x, c\nreturn y as \"y\"",
            "c = constant [0.5] : f32[]\ny = max x, c\nreturn y as \"y\"",
        ),
        (
            "inverse_pair",
            "a = neg x\ny = neg a\nreturn y as \"y\"",
            "a = recip x\ny = recip a\nreturn y as \"y\"",
        ),
        (
            "idempotent",
            "a = relu x\ny = relu a\nreturn y as \"y\"",
            "a = relu x\ny = abs a\nreturn y as \"y\"",
        ),
        (
            "add_of_negation",
            "a = exp x\nb = neg a\ny = add x, b\nreturn y as \"y\"",
            "a = exp x\nb = abs a\ny = add x, b\nreturn y as \"y\"",
        ),
        (
            "cast_of_exact_cast",
            "a = cast x : f64[2, 3, 4]\ny = cast a : f32[2, 3, 4]\nreturn y as \"y\"",
            "a = cast x : f16[2, 3, 4]\ny = cast a : f32[2, 3, 4]\nreturn y as \"y\"",
        ),
        (
            "select_by_constant",
            "c = constant [true] : bool[]\nz = exp x\ny = select c, x, z\nreturn y as \"y\"",
            "z = exp x\nc = gt x, z\ny = select c, x, z\nreturn y as \"y\"",
        ),
        (
            "select_of_equals",
            "z = exp x\nc = gt x, z\ny = select c, x, x\nreturn y as \"y\"",
            "z = exp x\nc = gt x, z\ny = select c, x, z\nreturn y as \"y\"",
        ),
        (
            "select_by_negation",
            "z = exp x\nc = gt x, z\nd = not c\ny = select d, x, z\nreturn y as \"y\"",
            "z = exp x\nc = gt x, z\ny = select c, x, z\nreturn y as \"y\"",
        ),
        (
            "reshape_of_reshape",
            "a = reshape x : f32[6, 4]\ny = reshape a : f32[24]\nreturn y as \"y\"",
            "a = transpose x {perm=[1, 0, 2]}\ny = reshape a : f32[24]\nreturn y as \"y\"",
        ),
        (
            "transpose_of_transpose",
            "a = transpose x {perm=[1, 0, 2]}\ny = transpose a {perm=[2, 0, 1]}\nreturn y as \"y\"",
            "a = exp x\ny = transpose a {perm=[2, 0, 1]}\nreturn y as \"y\"",
        ),
        (
            "transpose_of_unit_axes",
            "a = reshape x : f32[6, 1, 4]\ny = transpose a {perm=[0, 2, 1]}\nreturn y as \"y\"",
            "y = transpose x {perm=[0, 2, 1]}\nreturn y as \"y\"",
        ),
        (
            "broadcast_of_broadcast",
            "a = broadcast x : f32[5, 2, 3, 4]\ny = broadcast a : f32[6, 5, 2, 3, 4]\nreturn y as \"y\"",
            "y = broadcast x : f32[5, 2, 3, 4]\nreturn y as \"y\"",
        ),
        (
            "implicit_broadcast",
            "b = input \"b\" : f32[4]\na = broadcast b : f32[2, 3, 4]\ny = add x, a\nreturn y as \"y\"",
            "b = input \"b\" : f32[4]\ny = add x, b\nreturn y as \"y\"",
        ),
        (
            "reshape_after_unary",
            "a = reshape x : f32[6, 4]\ny = exp a\nreturn y as \"y\"",
            "a = transpose x {perm=[1, 0, 2]}\ny = exp a\nreturn y as \"y\"",
        ),
        (
            "reshape_after_binary",
            "b = input \"b\" : f32[4]\na = reshape x : f32[6, 4]\ny = add a, b\nreturn y as \"y\"",
            "b = input \"b\" : f32[6, 1]\na = reshape x : f32[6, 4]\ny = add a, b\nreturn y as \"y\"",
        ),
        (
            "slice_of_slice",
            "a = slice x {starts=[0, 1, 3], steps=[1, 1, -1]} : f32[2, 2, 4]\ny = slice a {starts=[1, 0, 1]} : f32[1, 2, 2]\nreturn y as \"y\"",
            "a = exp x\ny = slice a {starts=[1, 0, 1]} : f32[1, 2, 2]\nreturn y as \"y\"",
        ),
        (
            "slice_of_concat",
            "z = exp x\na = concat x, z {axis=1}\ny = slice a {starts=[0, 4, 0]} : f32[2, 2, 4]\nreturn y as \"y\"",
            "z = exp x\na = concat x, z {axis=1}\ny = slice a {starts=[0, 2, 0]} : f32[2, 2, 4]\nreturn y as \"y\"",
        ),
        (
            "pad_of_nothing",
            "y = pad x {low=[0, 0, 0], high=[0, 0, 0]}\nreturn y as \"y\"",
            "y = pad x {low=[0, 1, 0], high=[0, 0, 0]}\nreturn y as \"y\"",
        ),
        (
            "pad_of_pad",
            "a = pad x {low=[0, 1, 0], high=[0, 0, 2]}\ny = pad a {low=[0, 1, 0], high=[1, 0, 0]}\nreturn y as \"y\"",
            "a = pad x {low=[0, 1, 0], high=[0, 0, 2], mode=constant(1.0)}\ny = pad a {low=[0, 1, 0], high=[1, 0, 0]}\nreturn y as \"y\"",
        ),
        (
            "concat_of_one",
            "y = concat x {axis=1}\nreturn y as \"y\"",
            "y = concat x, x {axis=1}\nreturn y as \"y\"",
        ),
        (
            "concat_of_concat",
            "z = exp x\na = concat x, z {axis=1}\ny = concat a, x {axis=1}\nreturn y as \"y\"",
            "z = exp x\na = concat x, z {axis=1}\ny = concat a, a {axis=2}\nreturn y as \"y\"",
        ),
        (
            "concat_of_adjacent_slices",
            "a = slice x {starts=[0, 0, 0]} : f32[2, 3, 1]\nb = slice x {starts=[0, 0, 1]} : f32[2, 3, 3]\ny = concat a, b {axis=2}\nreturn y as \"y\"",
            "a = slice x {starts=[0, 0, 0]} : f32[2, 3, 1]\nb = slice x {starts=[0, 0, 1]} : f32[2, 3, 3]\ny = concat b, a {axis=2}\nreturn y as \"y\"",
        ),
        (
            "reduce_of_unit_axes",
            "a = reshape x : f32[2, 1, 12]\ny = reduce a {op=sum, axes=[1]}\nreturn y as \"y\"",
            "y = reduce x {op=sum, axes=[1]}\nreturn y as \"y\"",
        ),
        (
            "reduce_of_reduce",
            "a = reduce x {op=mean, axes=[1]}\ny = reduce a {op=mean, axes=[1]}\nreturn y as \"y\"",
            "a = reduce x {op=mean, axes=[1]}\ny = reduce a {op=sum, axes=[1]}\nreturn y as \"y\"",
        ),
        (
            "transpose_into_contract",
            "z = input \"z\" : f32[2, 5, 4]\nt = transpose z {perm=[0, 2, 1]}\ny = contract x, t\nreturn y as \"y\"",
            "z = input \"z\" : f32[4, 2, 5]\nt = transpose z {perm=[1, 0, 2]}\ny = contract x, t\nreturn y as \"y\"",
        ),
        (
            "unflatten_contract",
            "w = input \"w\" : f32[4, 5]\na = reshape x : f32[6, 4]\ny = contract a, w\nreturn y as \"y\"",
            "w = input \"w\" : f32[12, 5]\na = reshape x : f32[2, 12]\ny = contract a, w\nreturn y as \"y\"",
        ),
        (
            "broadcast_into_contract",
            "w = input \"w\" : f32[4, 5]\na = broadcast w : f32[2, 4, 5]\ny = contract x, a\nreturn y as \"y\"",
            "w = input \"w\" : f32[1, 5]\na = broadcast w : f32[2, 4, 5]\ny = contract x, a\nreturn y as \"y\"",
        ),
        (
            "fold_constants",
            "a = constant [1.0, 2.0] : f32[2]\nb = exp a\nc = reshape b : f32[2, 1, 1]\ny = add x, c\nreturn y as \"y\"",
            "a = constant [1.0] : f32[]\nb = broadcast a : f32[200, 2, 3, 4]\ny = add x, b\nreturn y as \"y\"",
        ),
    ]
    .into_iter()
    .map(|(rule, fires, misses)| (rule, with(fires), with(misses)))
    .collect();
    let cases: Vec<(&str, &str, &str)> = cases.iter().map(|(r, a, b)| (*r, a.as_str(), b.as_str())).collect();
    check_rules(&cases);
}

#[test]
fn wholes_are_recognised() {
    let layer_norm = |variance: &str, axes: &str| {
        format!(
            "x = input \"x\" : f32[2, 3, 8]\nw = constant random(seed=1, scale=1.0) : f32[8]\nb = constant random(seed=2, scale=1.0) : f32[8]\ne = constant [0.00001] : f32[]\nm = reduce x {{op=mean, axes=[2], keep_dims}}\nd = sub x, m\ns = mul d, d\nv = reduce s {{op={variance}, axes={axes}, keep_dims}}\nt = add v, e\nr = sqrt t\nn = div d, r\ny0 = mul n, w\ny = add y0, b\nreturn y as \"y\""
        )
    };
    let softmax = |axis: usize| {
        format!(
            "x = input \"x\" : f32[2, 3, 8]\nm = reduce x {{op=max, axes=[2], keep_dims}}\nd = sub x, m\ne = exp d\ns = reduce e {{op=sum, axes=[{axis}], keep_dims}}\ny = div e, s\nreturn y as \"y\""
        )
    };
    let attention = |hidden: &str, heads: usize| {
        format!(
            "symbol s: 1.. hint 5\nq = input \"q\" : f32[2, 4, s, 8]\nk = input \"k\" : f32[2, {heads}, s, 8]\nv = input \"v\" : f32[2, 4, s, 8]\nc = constant [0.35] : f32[]\np0 = contract q, k {{transpose_rhs}}\np = mul p0, c\ni = iota {{axis=0}} : i64[s, s]\nj = iota {{axis=1}} : i64[s, s]\nle = le j, i\nz = constant [0.0] : f32[]\nh = constant [{hidden}] : f32[]\nm = select le, z, h\nt = add p, m\nw = softmax t {{axis=3}}\ny = contract w, v\nreturn y as \"y\""
        )
    };
    let cases = [
        ("norm", layer_norm("mean", "[2]"), layer_norm("max", "[2]")),
        ("norm_bias", layer_norm("mean", "[2]"), layer_norm("mean", "[1]")),
        ("softmax", softmax(2), softmax(1)),
        ("attention", attention("-1e38", 4), attention("-1e38", 1)),
    ];
    for (rule, fires, misses) in &cases {
        check_rules(&[(rule, fires, misses)]);
    }
    // A mask that hides only a little is an operand, not `causal`.
    for (hidden, causal) in [("-1e38", true), ("-2.0", false)] {
        let (after, _) = optimized(&graph(&attention(hidden, 4)), "cpu", OptimizeOptions::default());
        let found = after.to_string();
        assert_eq!(found.contains("causal"), causal, "{found}");
        assert_eq!(found.contains("mask}"), !causal, "{found}");
    }
}

#[test]
fn activations_are_recognised_in_their_spellings() {
    let gelu = |half: &str| {
        format!(
            "x = input \"x\" : f32[3, 8]\nr = constant [1.4142135] : f32[]\no = constant [1.0] : f32[]\nh = constant [{half}] : f32[]\nd = div x, r\ne = erf d\np = add o, e\nm = mul p, x\ny = mul h, m\nreturn y as \"y\""
        )
    };
    let tanh = |c: &str| {
        format!(
            "x = input \"x\" : f32[3, 8]\nthree = constant [3.0] : f32[]\nc = constant [{c}] : f32[]\nk = constant [0.7978845834732056] : f32[]\no = constant [1.0] : f32[]\nh = constant [0.5] : f32[]\nhx = mul x, h\np = pow x, three\nq = mul p, c\na = add x, q\nb = mul a, k\nt = tanh b\nu = add t, o\ny = mul hx, u\nreturn y as \"y\""
        )
    };
    let silu = |other: &str| {
        format!(
            "x = input \"x\" : f32[3, 8]\nz = input \"z\" : f32[3, 8]\ns = sigmoid {other}\ny = mul s, x\nreturn y as \"y\"\nreturn z as \"z\""
        )
    };
    let hard_swish = |six: &str| {
        format!(
            "x = input \"x\" : f32[3, 8]\nt = constant [3.0] : f32[]\nz = constant [0.0] : f32[]\ns = constant [{six}] : f32[]\na = add x, t\nb = max a, z\nc = min b, s\nd = mul x, c\ny = div d, s\nreturn y as \"y\""
        )
    };
    let cases = [
        ("gelu_erf", gelu("0.5"), gelu("0.25")),
        ("gelu_tanh", tanh("0.044715"), tanh("0.05")),
        ("silu", silu("x"), silu("z")),
        ("hard_swish", hard_swish("6.0"), hard_swish("5.0")),
    ];
    for (rule, fires, misses) in &cases {
        check_rules(&[(rule, fires, misses)]);
    }
}

/// As exporters of half models write them, in what their types have of the numbers.
#[test]
fn activations_of_half_models_are_recognised() {
    let erf = |half: &str, divisor: &str| {
        format!(
            "x = input \"x\" : f16[3, 8]\nr = constant [{divisor}] : f16[]\no = constant [1.0] : f16[]\nh = constant [{half}] : f16[]\nd = div x, r\ne = erf d\np = add e, o\nm = mul x, p\ny = mul m, h\nreturn y as \"y\""
        )
    };
    let tanh = |k: &str| {
        format!(
            "x = input \"x\" : bf16[3, 8]\nthree = constant [3.0] : bf16[]\nc = constant [0.044677734375] : bf16[]\nk = constant [{k}] : bf16[]\no = constant [1.0] : bf16[]\nh = constant [0.5] : bf16[]\nhx = mul x, h\np = pow x, three\nq = mul p, c\na = add x, q\nb = mul a, k\nt = tanh b\nu = add t, o\ny = mul hx, u\nreturn y as \"y\""
        )
    };
    let cases = [
        ("gelu_erf", erf("0.5", "1.4140625"), true),
        ("gelu_erf", erf("0.5", "1.4169921875"), false),
        // A number that the type has is not another one.
        ("gelu_erf", erf("0.50048828125", "1.4140625"), false),
        ("gelu_tanh", tanh("0.796875"), true),
        ("gelu_tanh", tanh("0.8125"), false),
    ];
    for (rule, body, fires) in cases {
        let before = graph(&body);
        let target = "cpu".parse::<Target>().unwrap();
        let (after, report) = optimize(before.clone(), &target, &OptimizeOptions::default()).unwrap();
        assert_eq!(report.count(rule) > 0, fires, "{body}\n{after}");
        // The parts round after each op.
        let inputs = inputs(&before);
        let (want, got) = (evaluate(&before, &inputs).unwrap(), evaluate(&after, &inputs).unwrap());
        let unit = if rule == "gelu_erf" {
            2f64.powi(-10)
        } else {
            2f64.powi(-7)
        };
        for (a, b) in got["y"].to_f64().iter().zip(want["y"].to_f64()) {
            assert!((a - b).abs() <= unit, "{a} after, {b} before\n{after}");
        }
    }
}

#[test]
fn products_are_bracketed_by_cost() {
    // [512, 4] x [4, 512] x [512, 4]: the right product first is 64 times less work.
    let chain = |n: usize, m: usize| {
        format!(
            "a = input \"a\" : f32[{n}, {m}]\nb = input \"b\" : f32[{m}, {n}]\nc = input \"c\" : f32[{n}, {m}]\np = contract a, b\ny = contract p, c\nreturn y as \"y\""
        )
    };
    check_rules(&[("reassociate_right", &chain(512, 4), &chain(4, 512))]);
}

#[test]
fn projections_merge() {
    let two = |second: &str| {
        format!(
            "x = input \"x\" : f32[2, 3, 8]\nz = input \"z\" : f32[2, 3, 8]\nw = constant random(seed=1, scale=1.0) : f32[8, 4]\nv = constant random(seed=2, scale=1.0) : f32[8, 6]\nb = constant random(seed=3, scale=1.0) : f32[4]\nc = constant random(seed=4, scale=1.0) : f32[6]\np = contract x, w\nq = contract {second}, v\ny0 = add p, b\ny1 = add q, c\nreturn y0 as \"y0\"\nreturn y1 as \"y1\"\nreturn z as \"z\""
        )
    };
    check_rules(&[("merge_contractions", &two("x"), &two("z"))]);
}

#[test]
fn channel_constants_fold_into_convolutions() {
    let body = |tail: &str| {
        format!(
            "x = input \"x\" : f32[1, 3, 6, 6]\nw = constant random(seed=1, scale=1.0) : f32[4, 3, 3, 3]\nk = constant random(seed=2, scale=1.0) : f32[4]\nf = constant [0.5, 1.0, 2.0, 0.1] : f32[4]\nc = conv x, w\n{tail}"
        )
    };
    let norm = "y = batch_norm c, k, k, k, f {epsilon=0.00001}\nreturn y as \"y\"";
    // The convolution's own result is wanted too: folding would compute it twice.
    let shared = format!("{norm}\nreturn c as \"c\"");
    let channel = "r = reshape k : f32[4, 1, 1]\ny = mul c, r\nreturn y as \"y\"";
    let spatial = "r = constant random(seed=5, scale=1.0) : f32[4]\ny = mul c, r\nreturn y as \"y\"";
    check_rules(&[
        ("batch_norm_into_conv", &body(norm), &body(&shared)),
        ("channel_constant_into_conv", &body(channel), &body(spatial)),
    ]);
}

#[test]
fn layout_transposes_cancel() {
    let text = "x = input \"x\" : f32[1, 3, 8, 8]\nw = constant random(seed=1, scale=0.5) : f32[4, 3, 3, 3]\nv = constant random(seed=2, scale=0.5) : f32[4, 1, 3, 3]\nk = constant random(seed=3, scale=0.5) : f32[4, 1, 1]\na = conv x, w {pad_low=[1, 1], pad_high=[1, 1]}\nb = relu a\nc = conv b, v {pad_low=[1, 1], pad_high=[1, 1], groups=4}\nd = mul c, k\ne = add d, b\nf = concat e, b {axis=1}\ng = pool f {kind=max, size=[2, 2], strides=[2, 2]}\nh = reduce g {op=mean, axes=[2, 3], keep_dims}\ny = reshape h : f32[1, 8]\nreturn y as \"y\"";
    let (after, report) = optimized(&graph(text), "cpu", OptimizeOptions::default());
    let transposes = after.nodes().values().filter(|n| n.op.name() == "transpose").count();
    assert_eq!(transposes, 1, "only the input's\n{after}");
    assert_eq!(report.count("conv_channels_last"), 2);
}

#[test]
fn every_composite_decomposes() {
    let options = OptimizeOptions {
        keep: crate::Keep::NONE,
        ..OptimizeOptions::default()
    };
    for body in [
        "x = input \"x\" : f32[2, 4, 6]\ny = softmax x {axis=1}\nreturn y as \"y\"",
        "x = input \"x\" : f32[2, 4, 6]\ny = log_softmax x {axis=2}\nreturn y as \"y\"",
        "x = input \"x\" : f32[2, 4, 6]\nw = input \"w\" : f32[4, 6]\ny = layer_norm x, w, w {axis=1, epsilon=0.00001}\nreturn y as \"y\"",
        "x = input \"x\" : f16[2, 4, 6]\nw = input \"w\" : f16[6]\ny = rms_norm x, w {axis=2, epsilon=0.00001}\nreturn y as \"y\"",
        "x = input \"x\" : f32[2, 4, 6]\nw = input \"w\" : f32[4]\nv = abs w\ny = batch_norm x, w, w, w, v {epsilon=0.1}\nreturn y as \"y\"",
        "x = input \"x\" : f32[2, 4, 6]\nw = input \"w\" : f32[4]\ny = group_norm x, w, w {groups=2, epsilon=0.00001}\nreturn y as \"y\"",
        "x = input \"x\" : f32[2, 7, 3, 3]\ny = local_response_norm x {size=5, alpha=0.1, beta=0.75, bias=1.0}\nreturn y as \"y\"",
        "q = input \"q\" : f32[2, 4, 5, 8]\nk = input \"k\" : f32[2, 2, 5, 8]\nv = input \"v\" : f32[2, 2, 5, 6]\ny = attention q, k, v {scale=0.35, causal}\nreturn y as \"y\"",
        "q = input \"q\" : f32[2, 4, 5, 8]\nm = input \"m\" : f32[5, 5]\ny = attention q, q, q, m {scale=0.35, mask}\nreturn y as \"y\"",
        "x = input \"x\" : f32[5, 2, 3]\nr = input \"r\" : f32[3, 3]\nh = input \"h\" : f32[2, 3]\ny = recurrent x, r, h {cell=rnn, f=softsign, reverse}\nreturn y as \"y\"",
        "x = input \"x\" : f32[5, 2, 9]\nr = input \"r\" : f32[9, 3]\nh = input \"h\" : f32[2, 3]\nl = input \"l\" : i64[2]\ny = recurrent x, r, h, l {cell=gru, f=sigmoid, g=tanh, lengths, clip=0.7}\nreturn y as \"y\"",
        "x = input \"x\" : f32[5, 2, 9]\nr = input \"r\" : f32[9, 3]\nh = input \"h\" : f32[2, 3]\nb = input \"b\" : f32[3]\ny = recurrent x, r, h, b {cell=gru_reset_after, f=hard_sigmoid, g=elu, g_alpha=0.5, g_beta=0.0}\nreturn y as \"y\"",
        "x = input \"x\" : f32[5, 2, 12]\nr = input \"r\" : f32[12, 3]\nh = input \"h\" : f32[2, 3]\nc = input \"c\" : f32[2, 3]\np = input \"p\" : f32[9]\nl = input \"l\" : i64[2]\ny = recurrent x, r, h, c, p, l {cell=lstm, peepholes, states, f=sigmoid, g=tanh, h=scaled_tanh, reverse, lengths}\nreturn y as \"y\"",
        "x = input \"x\" : f32[5, 2, 12]\nr = input \"r\" : f32[12, 3]\nh = input \"h\" : f32[2, 3]\nc = input \"c\" : f32[2, 3]\ny = recurrent x, r, h, c {cell=lstm, input_forget, f=affine, g=leaky_relu, h=thresholded_relu}\nreturn y as \"y\"",
        "x = input \"x\" : f32[5, 2, 9]\nr = input \"r\" : f32[9, 3]\nh = input \"h\" : f32[2, 3]\ny = recurrent x, r, h {cell=gru, rounded, f=sigmoid, g=tanh}\nreturn y as \"y\"",
        "x = input \"x\" : f32[5, 2, 12]\nr = input \"r\" : f32[12, 3]\nh = input \"h\" : f32[2, 3]\nc = input \"c\" : f32[2, 3]\ny = recurrent x, r, h, c {cell=lstm, rounded, f=sigmoid, g=tanh, h=tanh}\nreturn y as \"y\"",
    ] {
        for target in ["cpu", "gfx90a"] {
            let (after, _) = optimized(&graph(body), target, options.clone());
            assert!(
                !after.nodes().values().any(|n| matches!(n.op, ir::Op::Composite(_))),
                "{after}"
            );
        }
    }
}

#[test]
fn recurrent_layers_are_one_kernel_where_that_takes_less_time_and_what_none_takes_is_refused_with_the_way_out() {
    let layer = |dtype: &str, steps: &str, hidden: i64| {
        format!(
            "symbol t: 1..2000 hint 4\nx = input \"x\" : {dtype}[{steps}, 2, {hidden}]\nr = input \"r\" : \
             {dtype}[{hidden}, {hidden}]\nh = input \"h\" : {dtype}[2, {hidden}]\ny = recurrent x, r, h {{cell=rnn, \
             f=tanh}}\nreturn y as \"y\""
        )
    };
    let is_whole = |target: &str, body: &str| {
        let (after, _) = optimize(graph(body), &target.parse().unwrap(), &OptimizeOptions::default()).unwrap();
        after.nodes().values().any(|n| n.op.name() == "recurrent")
    };
    for (dtype, steps, hidden) in [
        ("f32", "t", 3),
        ("f16", "t", 128),
        ("f32", "2000", 1024),
        ("f32", "9", 64),
    ] {
        for target in ["cpu", "gfx90a", "gfx1201", "sm_90"] {
            let body = layer(dtype, steps, hidden);
            assert!(is_whole(target, &body), "{target}: {body}");
        }
    }
    // A launch a step has the whole device for the 64 MB of weights.
    let large = layer("f32", "9", 2048);
    assert!(is_whole("cpu", &large) && !is_whole("gfx90a", &large));
    for (dtype, hidden) in [("f64", 3), ("f32", 40_000)] {
        let error = optimize(
            graph(&layer(dtype, "t", hidden)),
            &"gfx90a".parse().unwrap(),
            &OptimizeOptions::default(),
        );
        let text = error.unwrap_err().to_string();
        let says = [format!("of t steps in {dtype}"), "--size".to_owned()];
        assert!(says.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn routes_follow_the_cost() {
    // Big and plain: the library. With an activation after it, at this size: generated.
    let product = |n: usize, tail: &str| {
        format!("a = input \"a\" : f32[{n}, {n}]\nb = input \"b\" : f32[{n}, {n}]\nc = contract a, b\n{tail}")
    };
    let run = |body: &str, target: &str, libraries: bool| {
        let options = OptimizeOptions {
            libraries,
            verify: true,
            ..OptimizeOptions::default()
        };
        let (_, report) = optimize(graph(body), &target.parse().unwrap(), &options).unwrap();
        report.count("rocblas")
    };
    let plain = product(1024, "return c as \"y\"");
    let fused = product(128, "d = relu c\nreturn d as \"y\"");
    assert_eq!(run(&plain, "gfx90a", true), 1);
    assert_eq!(run(&fused, "gfx90a", true), 0);
    assert_eq!(run(&plain, "gfx90a", false), 0);
    assert_eq!(run(&plain, "cpu", true), 0);
}

#[test]
fn the_runner_stops_observes_and_explains_failures() {
    let body = "x = input \"x\" : f32[2]\nc = constant [1.0] : f32[]\ny = mul x, c\nreturn y as \"y\"";
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = seen.clone();
    let options = OptimizeOptions {
        stop_after: Some("positions".to_owned()),
        observer: Some(std::sync::Arc::new(move |pass: &str, _: &Graph| {
            sink.lock().unwrap().push(pass.to_owned())
        })),
        ..OptimizeOptions::default()
    };
    let (after, report) = optimize(graph(body), &Target::cpu(), &options).unwrap();
    assert_eq!(*seen.lock().unwrap(), ["simplify", "positions"]);
    assert_eq!(after.stage, ir::graph::Stage::Import);
    assert!(
        report.passes[0].changed && !report.passes[1].changed,
        "{:?}",
        report.passes
    );
    let options = OptimizeOptions {
        dtype: Some(DType::I8),
        ..OptimizeOptions::default()
    };
    let error = optimize(graph(body), &Target::cpu(), &options).unwrap_err();
    assert_eq!(error.pass, "precision");
    assert!(error.graph.contains("return"), "{}", error.graph);
}
