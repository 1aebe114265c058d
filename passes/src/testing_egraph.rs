//! What the e-graph decides, and what it says of it.

use ir::Op;
use ir::op::Composite;

use crate::options::OptimizeOptions;
use crate::report::{Fired, OptimizeReport};
use crate::testing::{graph, optimized};

fn softmax(x: &str, tag: &str) -> String {
    format!(
        "m{tag} = reduce {x} {{op=max, axes=[1], keep_dims}}\nd{tag} = sub {x}, m{tag}\ne{tag} = exp d{tag}\n\
         s{tag} = reduce e{tag} {{op=sum, axes=[1], keep_dims}}\ny{tag} = div e{tag}, s{tag}\n"
    )
}

fn fired<'r>(report: &'r OptimizeReport, rule: &str) -> Vec<&'r Fired> {
    report.fired.iter().filter(|f| f.rule == rule).collect()
}

/// A softmax's parts with `gap` nodes in between and `lead` before: wherever regions are cut, it is whole.
#[test]
fn wholes_across_cuts_are_found() {
    let body = |lead: usize, gap: usize| {
        let mut text = "x = input \"x\" : f32[2, 8]\nb = input \"b\" : f32[2, 8]\n".to_owned();
        let chain = |text: &mut String, from: &str, name: &str, n: usize| {
            let mut last = from.to_owned();
            for i in 0..n {
                let op = ["sin", "cos", "abs", "neg"][i % 4];
                *text += &format!("{name}{i} = {op} {last}\n");
                last = format!("{name}{i}");
            }
            last
        };
        let source = chain(&mut text, "x", "l", lead);
        text += &format!(
            "m = reduce {source} {{op=max, axes=[1], keep_dims}}\nd = sub {source}, m\ne = exp d\n\
             s = reduce e {{op=sum, axes=[1], keep_dims}}\n"
        );
        let other = chain(&mut text, "b", "g", gap);
        text + &format!("y = div e, s\nreturn y as \"y\"\nreturn {other} as \"z\"")
    };
    for lead in [3, 120, 125, 127, 128, 129, 131, 200, 252, 253, 254, 255, 256, 257, 380] {
        for gap in [1, 60] {
            let (after, report) = optimized(&graph(&body(lead, gap)), "cpu", OptimizeOptions::default());
            let whole = |op: &Op| matches!(op, Op::Composite(Composite::Softmax { .. }));
            let wholes = after.nodes().values().filter(|n| whole(&n.op)).count();
            assert_eq!((wholes, report.count("softmax")), (1, 1), "lead {lead}, gap {gap}");
        }
    }
}

/// Parts that somebody else reads are no reason to compute both ways where that is dearer.
#[test]
fn the_cost_decides_against_a_whole() {
    let body = |tail: &str| {
        format!(
            "x = input \"x\" : f32[64, 4096]\n{}return y0 as \"y\"\n{tail}",
            softmax("x", "0")
        )
    };
    let (_, alone) = optimized(&graph(&body("")), "gfx90a", OptimizeOptions::default());
    assert_eq!(alone.count("softmax"), 1);
    let found = fired(&alone, "softmax");
    let (before, after) = found[0].cost.unwrap();
    assert!(after < before, "{before} -> {after}");
    // The parts the whole replaces, the root first.
    assert_eq!(found[0].origins.len(), 5);
    // The exponentials and their sum are wanted anyway: one division more is less than a second pass over the row.
    let shared = body("return e0 as \"e\"\nreturn s0 as \"s\"\n");
    let (after, shared) = optimized(&graph(&shared), "gfx90a", OptimizeOptions::default());
    assert_eq!(shared.count("softmax"), 0, "{after}");
}

#[test]
fn proofs_name_rules_and_operands() {
    let body = format!(
        "x = input \"x\" : f32[4, 8]\nt = tanh x\n{}return y0 as \"y\"",
        softmax("t", "0")
    );
    let (_, report) = optimized(&graph(&body), "cpu", OptimizeOptions::default());
    let found = fired(&report, "softmax");
    let proof = &found[0].proof;
    assert_eq!(proof.len(), 1, "{proof:?}");
    assert!(proof[0].forward);
    assert_eq!(
        proof[0].from,
        "div(exp(sub(a, reduce(a))), reduce(exp(sub(a, reduce(a)))))"
    );
    assert_eq!(proof[0].to, "softmax(a)");

    // Several rules make one choice: each is a step, in the order in which the term changes.
    let norm = "x = input \"x\" : f32[2, 3, 8]\nw = constant random(seed=1, scale=1.0) : f32[8]\n\
                b = constant random(seed=2, scale=1.0) : f32[8]\ne = constant [0.00001] : f32[]\n\
                m = reduce x {op=mean, axes=[2], keep_dims}\nd = sub x, m\ns = mul d, d\n\
                v = reduce s {op=mean, axes=[2], keep_dims}\nt = add v, e\nr = sqrt t\nn = div d, r\n\
                y0 = mul n, w\ny = add y0, b\nreturn y as \"y\"";
    let (_, report) = optimized(&graph(norm), "cpu", OptimizeOptions::default());
    let found = fired(&report, "norm_bias");
    let rules: Vec<&str> = found[0].proof.iter().map(|s| s.rule).collect();
    for rule in ["norm", "norm_scale", "norm_bias"] {
        assert!(rules.contains(&rule), "{rule} in {:?}", found[0].proof);
    }
    assert_eq!(rules.last(), Some(&"norm_bias"), "{:?}", found[0].proof);
}

/// All of a group or none: each slice alone would cost the whole product.
#[test]
fn groups_are_taken_whole() {
    let body = |rows: usize| {
        format!(
            "x = input \"x\" : f32[{rows}, 64]\nw = constant random(seed=1, scale=1.0) : f32[64, 64]\n\
             v = constant random(seed=2, scale=1.0) : f32[64, 64]\nu = constant random(seed=3, scale=1.0) : f32[64, 64]\n\
             p = contract x, w\nq = contract x, v\nr = contract x, u\nreturn p as \"p\"\nreturn q as \"q\"\nreturn r as \"r\""
        )
    };
    for target in ["cpu", "gfx90a"] {
        let options = || OptimizeOptions {
            libraries: false,
            ..OptimizeOptions::default()
        };
        let (after, report) = optimized(&graph(&body(16)), target, options());
        let contracts = after
            .nodes()
            .values()
            .filter(|n| matches!(n.op, Op::Contract(_)))
            .count();
        assert_eq!((contracts, report.count("merge_contractions")), (1, 1), "{after}");
        let found = fired(&report, "merge_contractions");
        assert_eq!(found[0].origins.len(), 3, "each member is named");
        let mut disabled = options();
        disabled.disable.insert("merge_contractions".to_owned());
        let (after, _) = optimized(&graph(&body(16)), target, disabled);
        let contracts = after
            .nodes()
            .values()
            .filter(|n| matches!(n.op, Op::Contract(_)))
            .count();
        assert_eq!(contracts, 3, "{after}");
    }
}

/// Small: one kernel with its epilogue. Large: the library is worth a kernel of its own for what follows.
#[test]
fn epilogues_stand_against_libraries() {
    let body = |n: usize, reads_twice: bool| {
        let more = if reads_twice { "return c as \"c\"" } else { "" };
        format!(
            "a = input \"a\" : f32[{n}, {n}]\nw = input \"w\" : f32[{n}, {n}]\nb = input \"b\" : f32[{n}]\n\
             c = contract a, w\nd = add c, b\ne = relu d\nreturn e as \"y\"\n{more}"
        )
    };
    // Not evaluated: the large one would take minutes.
    let run = |n: usize, twice: bool| {
        let target = "gfx90a".parse().unwrap();
        let (_, report) = crate::optimize(graph(&body(n, twice)), &target, &OptimizeOptions::default()).unwrap();
        report
    };
    let small = run(128, false);
    assert_eq!(small.count("rocblas"), 0);
    let found = fired(&small, "epilogue");
    let text = &found[0].proof.last().unwrap().to;
    assert!(text.starts_with("one kernel: contract add relu("), "{text}");
    let (before, after) = found[0].cost.unwrap();
    assert!(after < before, "{before} -> {after}");
    // hipBLASLt takes bias and activation in; without it they are a kernel of their own behind rocBLAS's.
    let large = run(8192, false);
    assert_eq!(
        (large.count("rocblas"), large.count("hipblaslt") > 0),
        (0, true),
        "{:?}",
        large.fired
    );
    let without = OptimizeOptions {
        disable: ["hipblaslt".to_owned()].into(),
        ..OptimizeOptions::default()
    };
    for (target, options) in [("gfx90a", &without), ("gfx906", &OptimizeOptions::default())] {
        let (_, report) = crate::optimize(graph(&body(8192, false)), &target.parse().unwrap(), options).unwrap();
        assert_eq!((report.count("rocblas"), report.count("hipblaslt")), (1, 0), "{target}");
    }
    // A product that is read twice is not computed twice.
    let twice = run(128, true);
    assert_eq!(twice.count("epilogue"), 0, "{:?}", twice.fired);
    assert_eq!(run(8192, true).count("hipblaslt"), 0);
}

/// Products of bytes: rocBLAS's where its share of peak pays for a requantising kernel of its own, or where calls are
/// asked for.
#[test]
fn products_of_bytes_go_to_rocblas_where_that_pays_or_is_asked_for() {
    let run = |n: usize, out: &str, prefer_calls: bool| {
        let text = format!(
            "x = input \"x\" : i8[{n}, {n}]\nw = input \"w\" : i8[{n}, {n}]\nc = contract x, w {{out={out}}}\n\
             f = cast c {{to=f32}}\ns = constant [0.5] : f32[]\ny = mul f, s\nreturn y as \"y\""
        );
        let options = OptimizeOptions {
            prefer_calls,
            ..OptimizeOptions::default()
        };
        let (graph, report) = crate::optimize(graph(&text), &"gfx90a".parse().unwrap(), &options).unwrap();
        let calls = graph.nodes().values().filter(|n| matches!(n.op, Op::Call(_))).count();
        let found = fired(&report, "rocblas")
            .first()
            .map(|fired| (fired.cost.unwrap(), fired.note.clone()));
        (calls, found)
    };
    let (calls, found) = run(8192, "i32", false);
    let ((before, after), note) = found.expect("a call");
    assert_eq!((calls, note), (1, None));
    assert!(after < before, "{before} -> {after}");
    assert_eq!(run(64, "i32", false).0, 0);
    let (calls, found) = run(64, "i32", true);
    let ((before, after), note) = found.expect("a call");
    assert_eq!(calls, 1);
    assert!(
        after > before && note.is_some_and(|note| note.contains("asked for")),
        "{before} -> {after}"
    );
    // Sums of other types are no product of rocBLAS's.
    assert_eq!(run(64, "i8", true).0, 0);
}

/// A call has its sizes from the buffer's type: another shape of an input is no operand of it.
#[test]
fn calls_take_no_other_shape_of_a_stored_tensor() {
    for (x, calls) in [("[4096, 4096]", 1), ("[4096, 32, 128]", 0), ("[8192, 2048]", 0)] {
        let text = format!(
            "x = input \"x\" : f16{x}\nw = input \"w\" : f16[4096, 4096]\nr = reshape x {{shape=[4096, 4096]}}\n\
             y = contract r, w\nreturn y as \"y\""
        );
        let (core, _) = crate::optimize(graph(&text), &"gfx90a".parse().unwrap(), &OptimizeOptions::default()).unwrap();
        let found = core.nodes().values().filter(|n| matches!(n.op, Op::Call(_))).count();
        assert_eq!(found, calls, "{x}");
    }
}

/// What MIOpen computes on request alone, and what it is never asked for: other meanings, types, axes and windows.
#[test]
fn what_no_roofline_would_choose_is_called_on_request() {
    let calls = |body: &str, prefer_calls: bool| {
        let options = OptimizeOptions {
            prefer_calls,
            disable: ["layout".to_owned()].into(),
            ..OptimizeOptions::default()
        };
        let (graph, _) = crate::optimize(graph(body), &"gfx90a".parse().unwrap(), &options).unwrap();
        let calls = graph.nodes().values().filter_map(|n| match &n.op {
            Op::Call(call) => Some(call.name()),
            _ => None,
        });
        calls.collect::<Vec<_>>()
    };
    let of =
        |dtype: &str, shape: &str, op: &str| format!("x = input \"x\" : {dtype}{shape}\ny = {op}\nreturn y as \"y\"");
    let image = "[2, 4, 9, 9]";
    let bytes = |attributes: &str| {
        format!(
            "w = input \"w\" : i8[8, 4, 3, 3]\n{}",
            of("i8", image, &format!("conv x, w {{{attributes}}}"))
        )
    };
    for (body, name) in [
        (of("f32", image, "pool x {kind=average, size=[2, 2]}"), "miopen_pool"),
        (
            of("f16", image, "pool x {kind=average, size=[2, 2], strides=[2, 2], ceil}"),
            "miopen_pool",
        ),
        (
            of(
                "f32",
                image,
                "pool x {kind=average_padded, size=[3, 3], pad_low=[1, 1], pad_high=[1, 1]}",
            ),
            "miopen_pool",
        ),
        (of("f32", image, "softmax x {axis=2}"), "miopen_softmax"),
        (bytes("out=i32"), "miopen_conv"),
    ] {
        assert_eq!(calls(&body, true), [name], "{body}");
        assert_eq!(calls(&body, false), Vec::<&str>::new(), "{body}");
    }
    for body in [
        of("f32", image, "pool x {kind=max, size=[2, 2]}"),
        of("f32", image, "pool x {kind=average, size=[2, 2], dilations=[2, 2]}"),
        of(
            "f32",
            image,
            "pool x {kind=average_padded, size=[2, 2], strides=[2, 2], ceil}",
        ),
        of(
            "f32",
            image,
            "pool x {kind=average_padded, size=[2, 2], pad_high=[1, 1]}",
        ),
        of("bf16", image, "pool x {kind=average, size=[2, 2]}"),
        of(
            "f32",
            "[1, 5, 5, 5, 2]",
            "pool x {kind=average, size=[2, 2, 2], channels_last}",
        ),
        of("f32", image, "log_softmax x {axis=2}"),
        of("f16", image, "softmax x {axis=2}"),
        bytes("out=i32, pad_value=3"),
        bytes("out=i32, pad_low=[1, 0]"),
        bytes("out=i8"),
    ] {
        assert_eq!(calls(&body, true), Vec::<&str>::new(), "{body}");
    }
}

/// Which products hipBLASLt is asked for, and with which epilogue: as the text of the graph has it.
#[test]
fn what_follows_a_product_is_a_library_s_epilogue() {
    let after = |body: &str| {
        let target = "gfx90a".parse().unwrap();
        let text = format!(
            "a = input \"a\" : f16[8192, 8192]\nw = input \"w\" : f16[8192, 8192]\nb = input \"b\" : f16[8192]\n\
             l = input \"l\" : f16[8192, 1]\nc = contract a, w\n{body}\nreturn y as \"y\""
        );
        let (graph, _) = crate::optimize(graph(&text), &target, &OptimizeOptions::default()).unwrap();
        let calls = graph.nodes().values().filter_map(|n| match &n.op {
            Op::Call(call) => Some((call.name(), call.op.clone(), n.operands.len())),
            _ => None,
        });
        calls.collect::<Vec<_>>()
    };
    use ir::library::{GemmEpilogue, LibraryOp};
    let gelu = "gelu_tanh";
    for (body, epilogue, operands) in [
        ("y = add c, b".to_owned(), GemmEpilogue::Bias, 3),
        ("y = add b, c".to_owned(), GemmEpilogue::Bias, 3),
        ("y = relu c".to_owned(), GemmEpilogue::Relu, 2),
        ("d = add c, b\ny = relu d".to_owned(), GemmEpilogue::BiasRelu, 3),
        (format!("y = {gelu} c"), GemmEpilogue::GeluTanh, 2),
        (format!("d = add c, b\ny = {gelu} d"), GemmEpilogue::BiasGeluTanh, 3),
    ] {
        let calls = after(&body);
        let [("hipblaslt_matmul", LibraryOp::Gemm { epilogue: got, .. }, count)] = &calls[..] else {
            panic!("{body}: {calls:?}")
        };
        assert_eq!((*got, *count), (epilogue, operands), "{body}");
    }
    // Sums in f32 may be scaled column by column; by one number for all only those of 8-bit floats.
    let scaled = |of: &str, scale: &str, rest: &str, arch: &str| {
        let text = format!(
            "a = input \"a\" : {of}[8192, 8192]\nw = input \"w\" : {of}[8192, 8192]\ns = input \"s\" : f32{scale}\n\
             b = input \"b\" : f32[8192]\nh = input \"h\" : f16[8192]\n\
             c = contract a, w {{out=f32}}\nm = mul c, s\n{rest}\nreturn y as \"y\""
        );
        let options = OptimizeOptions {
            prefer_calls: true,
            ..OptimizeOptions::default()
        };
        let (graph, _) = crate::optimize(graph(&text), &arch.parse().unwrap(), &options).unwrap();
        let calls = graph.nodes().values().filter_map(|n| match &n.op {
            Op::Call(LibraryCall {
                op:
                    LibraryOp::Gemm {
                        contract,
                        scale,
                        epilogue,
                    },
                ..
            }) => Some((*scale, *epilogue, contract.out, n.operands.len())),
            _ => None,
        });
        calls.collect::<Vec<_>>()
    };
    use ir::DType;
    use ir::library::{GemmScale, LibraryCall};
    let (columns, tensor) = (GemmScale::Columns, GemmScale::Tensor);
    for (of, scale, rest, want) in [
        (
            "f32",
            "[8192]",
            "y = add m, b",
            (columns, GemmEpilogue::Bias, DType::F32, 4),
        ),
        (
            "f8e4m3fn",
            "[8192]",
            "y = relu m",
            (columns, GemmEpilogue::Relu, DType::F32, 3),
        ),
        (
            "f8e4m3fn",
            "[]",
            "d = add m, b\ny = relu d",
            (tensor, GemmEpilogue::BiasRelu, DType::F32, 4),
        ),
        (
            "f8e5m2",
            "[]",
            "y = cast m {to=f16}",
            (tensor, GemmEpilogue::None, DType::F16, 3),
        ),
        (
            "f8e4m3fn",
            "[]",
            "d = cast m {to=f16}\ne = add d, h\ny = relu e",
            (tensor, GemmEpilogue::BiasRelu, DType::F16, 4),
        ),
        (
            "f8e4m3fn",
            "[]",
            "e = add m, b\ny = cast e {to=bf16}",
            (tensor, GemmEpilogue::Bias, DType::BF16, 4),
        ),
    ] {
        assert_eq!(scaled(of, scale, rest, "gfx1201"), [want], "{of} {scale} {rest}");
    }
    // A number for each row, one for all of f32, types that the GPU does not multiply.
    let none = |of: &str, scale: &str, arch: &str| {
        let calls = scaled(of, scale, "y = relu m", arch);
        assert!(
            calls.iter().all(|call| call.0 == GemmScale::None),
            "{of} {scale}: {calls:?}"
        );
        calls.len()
    };
    assert_eq!(none("f32", "[8192, 1]", "gfx1201"), 1);
    assert_eq!(none("f32", "[]", "gfx1201"), 1);
    assert_eq!(none("f8e4m3fnuz", "[]", "gfx1201"), 0);
    assert_eq!(none("f8e4m3fn", "[]", "gfx90a"), 0);
    // A number for each row is no bias of hipBLASLt's, and it has no tanh.
    for body in ["y = add c, l", "y = tanh c"] {
        assert!(
            after(body).iter().all(|(name, ..)| *name == "rocblas_gemm"),
            "{body}: {:?}",
            after(body)
        );
    }
}

/// A row that sees nothing spreads its weights over what is hidden least: a finite number is not -∞ then.
#[test]
fn causal_is_not_taken_where_another_mask_may_hide_the_rest() {
    let body = |pad: &str, scores: &str| {
        format!(
            "q = input \"q\" : f32[2, 2, 5, 4]\nk = input \"k\" : f32[2, 2, 5, 4]\nv = input \"v\" : f32[2, 2, 5, 4]\n\
             c = constant [0.35] : f32[]\np0 = contract q, k {{transpose_rhs}}\np = mul p0, c\n\
             i = iota {{axis=0}} : i64[5, 5]\nj = iota {{axis=1}} : i64[5, 5]\nle = le j, i\n\
             h = constant [-1e38] : f32[]\nz = constant [0.0] : f32[]\nn = constant [-inf] : f32[]\n\
             finite = select le, z, h\ninfinite = select le, z, n\npad = constant {pad} : f32[5]\n\
             {scores}\nw = softmax t {{axis=3}}\ny = contract w, v\nreturn y as \"y\""
        )
    };
    let first = "[-inf, 0.0, 0.0, 0.0, 0.0]";
    let two = "[-inf, 0.0, -inf, 0.0, 0.0]";
    let weak = "[-3e38, 0.0, -2e38, 0.0, 0.0]";
    // (scores, causal, mask)
    let cases = [
        ("t = select le, p, h", true, false),
        ("t = add p, finite", true, false),
        ("a = add p, finite\nt = select le, a, h", true, false),
        ("a = add p, pad\nt = select le, a, h", false, true),
        ("a = select le, p, h\nt = add a, pad", false, true),
        ("a = add p, pad\nt = add a, finite", false, true),
        ("a = add p, finite\nt = add a, pad", false, true),
        ("a = add p, pad\nt = select le, a, n", true, true),
        ("a = add p, pad\nt = add a, infinite", true, true),
        ("a = add p, pad\nb = add a, infinite\nt = select le, b, h", false, true),
        ("a = add p, pad\nb = select le, a, h\nt = add b, infinite", true, true),
    ];
    for (scores, causal, mask) in cases {
        for pad in [first, two, weak] {
            let body = body(pad, scores);
            let (after, _) = optimized(&graph(&body), "cpu", OptimizeOptions::default());
            let found: Vec<(bool, bool)> = (after.nodes().values())
                .filter_map(|n| match n.op {
                    Op::Composite(Composite::Attention { causal, mask, .. }) => Some((causal, mask)),
                    _ => None,
                })
                .collect();
            assert_eq!(found, [(causal, mask)], "{scores}\n{after}");
        }
    }
}
