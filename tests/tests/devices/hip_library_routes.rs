//! Calls of vendor libraries beside products and convolutions of floats, as [`hip_libraries`](../hip_libraries.rs) has
//! them: the real libraries on the emulated gfx90a, against the reference evaluator.

use std::sync::Arc;

use graphc::driver::{BuildOptions, build};
use graphc::ir::graph::{eval, parse};
use graphc::ir::{DType, Graph, HostTensor, Program, Storage, Target};
use graphc::passes::{OptLevel, Prefer};
use graphc::runtime::{Executable, LoadOptions, RunTimes};
use graphc_tests::emulated_hip::{EmulatedHip, compile_here};
use graphc_tests::libraries::{self, calls, tensor};
use graphc_tests::reference::Tensors;

/// As [`libraries::inside`].
fn inside(test: &str) -> Option<EmulatedHip> {
    libraries::inside(
        module_path!(),
        test,
        env!("CARGO_TARGET_TMPDIR"),
        &[("GRAPHC_EMU_ARCH", "gfx90a")],
    )
}

/// Bytes that reach both ends of their type.
fn bytes(shape: &[usize], seed: usize) -> HostTensor {
    let count = shape.iter().product();
    let values: Vec<u8> = (0..count)
        .map(|i: usize| match (i * 5 + seed) % 7 {
            0 => 0x80,
            1 => 0x7f,
            _ => (i * 37 + seed * 11 + i / 5) as u8,
        })
        .collect();
    HostTensor::new(DType::I8, shape.to_vec(), Storage::new(values)).expect("fits")
}

/// The program of a model whose calls are taken wherever a library has them, ready to run.
fn preferring_calls(graph: &Graph) -> Program {
    let target: Target = "gfx90a".parse().expect("a target");
    let mut options = BuildOptions::new(vec![target], OptLevel::O2);
    options.optimize.prefer_calls = true;
    options.plan.prefer = Prefer::Calls;
    let mut program = build(graph, &options).expect("builds").program;
    compile_here(&mut program);
    program
}

/// The names of a program's calls.
fn names(program: &Program) -> Vec<&'static str> {
    let steps = program.variants[0].plan.steps.values();
    steps.flat_map(|step| step.calls().map(|call| call.name())).collect()
}

/// Runs a program; returns its outputs and how many steps a library carried out.
fn run(hip: &EmulatedHip, program: Program, inputs: &Tensors, engine: &str) -> (Tensors, usize) {
    let device = hip.open(0).expect("a device");
    let executable = Executable::load_on(&device, Arc::new(program), 0, &LoadOptions::default()).expect("loads");
    let mut profile = RunTimes::default();
    let got = executable.run_profiled(inputs, Some(&mut profile)).expect("runs");
    assert_eq!(
        executable.run(inputs).expect("runs"),
        got,
        "the same inputs give the same bits"
    );
    (got, profile.steps.iter().filter(|s| s.engine == engine).count())
}

/// A graph of one call a case, whose operands are signed bytes and whose results have 32 bits, and its inputs: the
/// shapes of both operands, and further attributes.
fn calls_with_bytes(call: &str, cases: &[(&[usize], &[usize], &str)]) -> (Graph, Tensors) {
    let (mut body, mut returns, mut inputs) = (String::new(), Vec::new(), Tensors::new());
    for (index, (lhs, rhs, attributes)) in cases.iter().enumerate() {
        for (name, shape) in [("x", lhs), ("w", rhs)] {
            body += &format!("  {name}{index} = input \"{name}{index}\" : i8{shape:?}\n");
            inputs.insert(format!("{name}{index}"), bytes(shape, index + usize::from(name == "w")));
        }
        body += &format!("  y{index} = {call} x{index}, w{index} {{out=i32{attributes}}}\n");
        returns.push(format!("y{index} as \"y{index}\""));
    }
    let text = format!(
        "graph @bytes stage=core {{\n{body}  return {}\n}}\n",
        returns.join(", ")
    );
    (parse::parse(&text).expect("parses"), inputs)
}

/// Products of signed bytes, their sums in 32 bits: every transpose, batches, odd sizes, one element, the largest
/// products there are.
#[test]
fn products_of_bytes_by_rocblas_are_exact() {
    let Some(hip) = inside("products_of_bytes_by_rocblas_are_exact") else {
        return;
    };
    let cases: [(&[usize], &[usize], &str); 9] = [
        (&[17, 40], &[40, 24], ""),
        (&[16, 32], &[48, 32], ", transpose_rhs"),
        (&[32, 16], &[32, 48], ", transpose_lhs"),
        (&[8, 5], &[12, 8], ", transpose_lhs, transpose_rhs"),
        (&[3, 7, 9], &[3, 9, 11], ""),
        (&[2, 3, 5, 8], &[8, 20], ""),
        (&[1, 1], &[1, 1], ""),
        (&[1, 129], &[129, 1], ""),
        (&[33, 1], &[1, 5], ""),
    ];
    let (graph, inputs) = calls_with_bytes("rocblas_gemm", &cases);
    let want = eval::evaluate(&graph, &inputs).expect("evaluates");
    let (got, called) = run(&hip, calls(&graph), &inputs, "rocblas");
    assert_eq!(called, cases.len());
    assert_eq!(got, want);
}

/// A quantised model whose product of bytes is rocBLAS's where calls are asked for: quantising, requantising and what
/// is beside them are kernels of graphc.
#[test]
fn a_quantised_model_calls_rocblas_where_calls_are_asked_for() {
    let Some(hip) = inside("a_quantised_model_calls_rocblas_where_calls_are_asked_for") else {
        return;
    };
    let text = "graph @quantised stage=import {
        symbol n: 1..64 hint 16
        x = input \"x\" : f32[n, 40]
        s = constant [0.25] : f32[1, 1]
        z = constant [7] : u8[1, 1]
        xq = quantize x, s, z {out=u8}
        xd = dequantize xq, s, z {out=f32}
        w = constant random(seed=1) : i8[40, 24]
        t = constant splat(0.0078125) : f32[1, 24]
        wd = dequantize w, t {out=f32}
        b = constant random(seed=3) : f32[24]
        c = contract xd, wd
        d = add c, b
        r = relu d
        yq = quantize r, s, z {out=u8}
        y = dequantize yq, s, z {out=f32}
        return y as \"y\"
    }";
    let graph = parse::parse(text).expect("parses");
    let program = preferring_calls(&graph);
    assert_eq!(names(&program), ["rocblas_gemm"], "{}", program.variants[0].plan);
    for n in [1usize, 5, 16] {
        let inputs = Tensors::from([("x".to_owned(), tensor(DType::F32, &[n, 40], n))]);
        let want = eval::evaluate(&graph, &inputs).expect("evaluates");
        let (got, called) = run(&hip, program.clone(), &inputs, "rocblas");
        assert_eq!(called, 1);
        // A sum that is exactly between two steps may be rounded either way by what is folded into its scale.
        let d = graphc::compare::compare(&got["y"], &want["y"], 0.0, 0.25).expect("same shape");
        assert!(d.is_within(), "{n} rows: {d:?}");
    }
}

/// Averages of windows in both layouts, with one to three axes: windows beyond the input, of one element, over all of
/// it, padding that counts and that does not, NaNs. A window that meets no element is 0.
#[test]
fn averages_by_miopen_are_what_the_evaluator_says() {
    let Some(hip) = inside("averages_by_miopen_are_what_the_evaluator_says") else {
        return;
    };
    let cases: [(&[usize], &str); 10] = [
        (&[2, 3, 7, 9], "kind=average, size=[2, 2], strides=[2, 2]"),
        (
            &[1, 5, 8, 8],
            "kind=average_padded, size=[3, 3], strides=[2, 2], pad_low=[1, 1], pad_high=[1, 1]",
        ),
        (
            &[1, 4, 6, 7],
            "kind=average, size=[3, 2], strides=[1, 2], pad_low=[1, 0], pad_high=[2, 1]",
        ),
        (
            &[1, 2, 5, 5],
            "kind=average, size=[3, 3], strides=[2, 2], pad_low=[1, 1], pad_high=[1, 1], ceil",
        ),
        (&[1, 1, 1, 1], "kind=average, size=[1, 1]"),
        (
            &[2, 7, 9, 3],
            "kind=average, size=[3, 3], strides=[2, 2], pad_low=[1, 1], pad_high=[1, 1], channels_last",
        ),
        (&[1, 14, 14, 33], "kind=average, size=[14, 14], channels_last"),
        (&[2, 3, 5, 5, 4], "kind=average, size=[2, 2, 3], strides=[2, 1, 1]"),
        (
            &[1, 4, 9],
            "kind=average, size=[3], strides=[2], pad_low=[1], pad_high=[1]",
        ),
        (
            &[1, 9, 4],
            "kind=average_padded, size=[3], pad_low=[2], pad_high=[2], channels_last",
        ),
    ];
    let (mut body, mut returns, mut inputs) = (String::new(), Vec::new(), Tensors::new());
    for (index, (shape, attributes)) in cases.iter().enumerate() {
        for dtype in [DType::F32, DType::F16] {
            let name = format!("{dtype}_{index}");
            body += &format!("  x{name} = input \"x{name}\" : {dtype}{shape:?}\n");
            body += &format!("  y{name} = miopen_pool x{name} {{{attributes}}}\n");
            returns.push(format!("y{name} as \"{name}\""));
            let mut values = tensor(dtype, shape, index).to_f64();
            if let Some(value) = values.get_mut(5) {
                *value = f64::NAN;
            }
            let x = HostTensor::from_f64(dtype, shape.to_vec(), &values).expect("fits");
            inputs.insert(format!("x{name}"), x);
        }
    }
    let text = format!(
        "graph @averages stage=core {{\n{body}  return {}\n}}\n",
        returns.join(", ")
    );
    let graph = parse::parse(&text).expect("parses");
    let want = eval::evaluate(&graph, &inputs).expect("evaluates");
    let (got, called) = run(&hip, calls(&graph), &inputs, "miopen");
    assert_eq!(called, 2 * cases.len());
    close(&got, &want);
}

/// Softmax along the first, a middle and the last axis: odd rows, long rows, one element, and rows with infinities and
/// NaNs.
#[test]
fn softmax_by_miopen_is_what_the_evaluator_says() {
    let Some(hip) = inside("softmax_by_miopen_is_what_the_evaluator_says") else {
        return;
    };
    let cases: [(&[usize], usize); 6] = [
        (&[3, 5], 1),
        (&[2, 33, 7], 1),
        (&[7, 3], 0),
        (&[1], 0),
        (&[2, 1037], 1),
        (&[2, 3, 2, 5], 3),
    ];
    let (mut body, mut returns, mut inputs) = (String::new(), Vec::new(), Tensors::new());
    let mut add = |name: String, shape: &[usize], axis: usize, values: &[f64]| {
        body += &format!(
            "  x{name} = input \"x{name}\" : f32{shape:?}\n  y{name} = miopen_softmax x{name} {{axis={axis}}}\n"
        );
        returns.push(format!("y{name} as \"{name}\""));
        let x = HostTensor::from_f64(DType::F32, shape.to_vec(), values).expect("fits");
        inputs.insert(format!("x{name}"), x);
    };
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let rows = [
        [-inf, -inf, -inf],
        [inf, 0.0, 1.0],
        [nan, 0.0, 1.0],
        [-inf, 0.0, 1.0],
        [-6e4, -6.5e4, -6.5e4],
    ]
    .concat();
    for (index, (shape, axis)) in cases.iter().enumerate() {
        let values = tensor(DType::F32, shape, index).to_f64();
        add(index.to_string(), shape, *axis, &values);
    }
    add("special".to_owned(), &[5, 3], 1, &rows);
    let text = format!(
        "graph @softmax stage=core {{\n{body}  return {}\n}}\n",
        returns.join(", ")
    );
    let graph = parse::parse(&text).expect("parses");
    let want = eval::evaluate(&graph, &inputs).expect("evaluates");
    let (got, called) = run(&hip, calls(&graph), &inputs, "miopen");
    assert_eq!(called, cases.len() + 1);
    close(&got, &want);
    let special = got["special"].to_f64();
    assert!(
        special[..9].iter().all(|v| v.is_nan()) && special[9] == 0.0,
        "{special:?}"
    );
}

/// Holds outputs to a few roundings of f32 and one of their type; NaNs where they belong.
fn close(got: &Tensors, want: &Tensors) {
    for (name, want) in want {
        let relative = if want.dtype == DType::F16 {
            2f64.powi(-10)
        } else {
            2f64.powi(-19)
        };
        for (index, (one, other)) in got[name].to_f64().iter().zip(want.to_f64()).enumerate() {
            let same = one.is_nan() && other.is_nan() || (one - other).abs() <= relative * other.abs() + 1e-7;
            assert!(same, "{name} [{index}]: {one} is not {other}");
        }
    }
}

/// Convolutions of signed bytes in both layouts: sums of 32 bits are exact.
#[test]
fn convolutions_of_bytes_by_miopen_are_exact() {
    let Some(hip) = inside("convolutions_of_bytes_by_miopen_are_exact") else {
        return;
    };
    let cases: [(&[usize], &[usize], &str); 6] = [
        (&[1, 4, 10, 12], &[8, 4, 3, 3], ", pad_low=[1, 1], pad_high=[1, 1]"),
        (&[2, 3, 9, 9], &[5, 3, 3, 3], ", strides=[2, 2]"),
        (&[1, 16, 6, 6], &[8, 16, 1, 1], ""),
        (&[1, 8, 8, 8], &[8, 4, 3, 3], ", groups=2, dilations=[2, 2]"),
        (
            &[1, 6, 5, 3],
            &[7, 3, 3, 3],
            ", pad_low=[1, 1], pad_high=[1, 1], channels_last",
        ),
        (&[1, 1, 1, 1], &[1, 1, 1, 1], ""),
    ];
    let (graph, inputs) = calls_with_bytes("miopen_conv", &cases);
    let want = eval::evaluate(&graph, &inputs).expect("evaluates");
    let (got, called) = run(&hip, calls(&graph), &inputs, "miopen");
    assert_eq!(called, cases.len());
    assert_eq!(got, want);
}

/// A model whose pooling, softmax and convolution of bytes are MIOpen's where calls are asked for, and kernels of
/// graphc otherwise; maxima stay kernels, and so does a softmax of another shape of what is stored.
#[test]
fn a_model_calls_miopen_where_calls_are_asked_for() {
    let Some(hip) = inside("a_model_calls_miopen_where_calls_are_asked_for") else {
        return;
    };
    let text = "graph @asked stage=import {
        symbol n: 1..16 hint 4
        x = input \"x\" : f32[n, 12, 12, 3]
        q = input \"q\" : i8[n, 6, 6, 4]
        k = constant random(seed=1) : i8[5, 3, 3, 4]
        a = tanh x
        m = pool a {kind=max, size=[2, 2], strides=[2, 2], channels_last}
        p = pool m {kind=average, size=[2, 2], strides=[2, 2], channels_last}
        s = softmax p {axis=3}
        y = neg s
        r = reshape p {shape=[n, 27]}
        z = softmax r {axis=1}
        c = conv q, k {out=i32, pad_low=[1, 1], pad_high=[1, 1], channels_last}
        return y as \"y\", c as \"c\", z as \"z\"
    }";
    let graph = parse::parse(text).expect("parses");
    let program = preferring_calls(&graph);
    let mut called = names(&program);
    called.sort_unstable();
    assert_eq!(
        called,
        ["miopen_conv", "miopen_pool", "miopen_softmax"],
        "{}",
        program.variants[0].plan
    );
    let target: Target = "gfx90a".parse().expect("a target");
    let usual = build(&graph, &BuildOptions::new(vec![target], OptLevel::O2)).expect("builds");
    assert_eq!(names(&usual.program), Vec::<&str>::new());
    for n in [1usize, 3] {
        let inputs = Tensors::from([
            ("x".to_owned(), tensor(DType::F32, &[n, 12, 12, 3], n)),
            ("q".to_owned(), bytes(&[n, 6, 6, 4], n)),
        ]);
        let want = eval::evaluate(&graph, &inputs).expect("evaluates");
        let (got, called) = run(&hip, program.clone(), &inputs, "miopen");
        assert_eq!(called, 3);
        assert_eq!(got["c"], want["c"]);
        for name in ["y", "z"] {
            let d = graphc::compare::compare(&got[name], &want[name], 1e-5, 1e-6).expect("same shape");
            assert!(d.is_within(), "{name} of {n} images: {d:?}");
        }
    }
}
