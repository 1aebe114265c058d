//! Vendor libraries under the runtime: plans that call the real rocBLAS, hipBLASLt and MIOpen, whose own kernels run on
//! the emulated gfx90a.
//!
//! They are looked for in the sysroot that `LIBS=1 KEEP="gfx90a gfx1201" scripts/rocm-sysroot.sh /opt/graphc-rocm-libs`
//! makes (or the one that `GRAPHC_ROCM_LIBS` names); each test runs itself again inside of it. Without it they print
//! `skipped: …` and pass.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int};
use std::sync::Arc;

use graphc::driver::{BuildOptions, build};
use graphc::ir::graph::{eval, parse};
use graphc::ir::program::artifact::Check;
use graphc::ir::{DType, HostTensor, Program, Storage, Target};
use graphc::passes::OptLevel;
use graphc::runtime::{Executable, LoadOptions, MiopenFind, MiopenOptions, RunTimes, RuntimeError};
use graphc_tests::emulated_hip::{EmulatedHip, compile_here};
use graphc_tests::libraries::{self, Failing, calls, tensor};
use graphc_tests::reference::{Tensors, assert_matches};
use libloading::Library;

/// As [`libraries::inside`].
fn inside(test: &str, variables: &[(&str, &str)]) -> Option<EmulatedHip> {
    libraries::inside(module_path!(), test, env!("CARGO_TARGET_TMPDIR"), variables)
}

/// A product of two operands as a call; shapes as they are stored.
struct Case {
    name: &'static str,
    dtype: DType,
    lhs: &'static [usize],
    rhs: &'static [usize],
    flags: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "plain",
        dtype: DType::F32,
        lhs: &[17, 40],
        rhs: &[40, 24],
        flags: "",
    },
    Case {
        name: "right_transposed",
        dtype: DType::F32,
        lhs: &[16, 32],
        rhs: &[48, 32],
        flags: " {transpose_rhs}",
    },
    Case {
        name: "left_transposed",
        dtype: DType::F32,
        lhs: &[32, 16],
        rhs: &[32, 48],
        flags: " {transpose_lhs}",
    },
    Case {
        name: "both_transposed",
        dtype: DType::F32,
        lhs: &[8, 5],
        rhs: &[12, 8],
        flags: " {transpose_lhs, transpose_rhs}",
    },
    Case {
        name: "batched",
        dtype: DType::F32,
        lhs: &[3, 16, 8],
        rhs: &[3, 8, 20],
        flags: "",
    },
    Case {
        name: "shared_right",
        dtype: DType::F32,
        lhs: &[2, 3, 16, 8],
        rhs: &[8, 20],
        flags: "",
    },
    Case {
        name: "half",
        dtype: DType::F16,
        lhs: &[32, 64],
        rhs: &[64, 32],
        flags: "",
    },
    Case {
        name: "half_batched",
        dtype: DType::F16,
        lhs: &[2, 16, 32],
        rhs: &[2, 48, 32],
        flags: " {transpose_rhs}",
    },
    Case {
        name: "brain",
        dtype: DType::BF16,
        lhs: &[32, 64],
        rhs: &[64, 32],
        flags: "",
    },
];

fn text(dtype: DType, shape: &[usize]) -> String {
    format!("{dtype}{shape:?}")
}

#[test]
fn products_by_rocblas_are_what_the_evaluator_says() {
    let Some(hip) = inside(
        "products_by_rocblas_are_what_the_evaluator_says",
        &[("GRAPHC_EMU_ARCH", "gfx90a")],
    ) else {
        return;
    };
    let mut body = String::new();
    let (mut returns, mut inputs) = (Vec::new(), Tensors::new());
    for (index, case) in CASES.iter().enumerate() {
        let (x, w) = (format!("x{index}"), format!("w{index}"));
        body += &format!("  {x} = input \"{x}\" : {}\n", text(case.dtype, case.lhs));
        body += &format!("  {w} = input \"{w}\" : {}\n", text(case.dtype, case.rhs));
        body += &format!("  y{index} = rocblas_gemm {x}, {w}{}\n", case.flags);
        returns.push(format!("y{index} as \"{}\"", case.name));
        inputs.insert(x, tensor(case.dtype, case.lhs, index));
        inputs.insert(w, tensor(case.dtype, case.rhs, index + 1));
    }
    let model = format!(
        "graph @products stage=core {{\n{body}  return {}\n}}\n",
        returns.join(", ")
    );
    let graph = parse::parse(&model).expect("parses");
    let want = eval::evaluate(&graph, &inputs).expect("evaluates");
    let device = hip.open(0).expect("a device");
    let program = Arc::new(calls(&graph));
    let executable = Executable::load_on(&device, program, 0, &LoadOptions::default()).expect("loads");
    let mut profile = RunTimes::default();
    let got = executable.run_profiled(&inputs, Some(&mut profile)).expect("runs");
    let by_rocblas = profile.steps.iter().filter(|s| s.engine == "rocblas").count();
    assert_eq!(by_rocblas, CASES.len());
    for case in CASES {
        // The sums are exact in f32; a narrow result is rounded once, and so is the evaluator's.
        let (one, other) = (&got[case.name], &want[case.name]);
        assert_eq!(one.to_f64(), other.to_f64(), "{}", case.name);
    }
}

/// Every epilogue of hipBLASLt in every type, over shapes, transposes and batches; the GELU's exponential is one of
/// f32.
#[test]
fn products_by_hipblaslt_are_what_the_evaluator_says() {
    let test = "products_by_hipblaslt_are_what_the_evaluator_says";
    let Some(hip) = inside(test, &[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    let shapes: [(&[usize], &[usize], &str); 6] = [
        (&[17, 40], &[40, 24], ""),
        (&[16, 32], &[48, 32], ", transpose_rhs"),
        (&[32, 16], &[32, 48], ", transpose_lhs"),
        (&[8, 5], &[12, 8], ", transpose_lhs, transpose_rhs"),
        (&[3, 16, 8], &[3, 8, 20], ""),
        (&[2, 3, 16, 8], &[8, 20], ""),
    ];
    let epilogues = ["none", "bias", "relu", "bias_relu", "gelu_tanh", "bias_gelu_tanh"];
    let mut body = String::new();
    let (mut returns, mut inputs) = (Vec::new(), Tensors::new());
    for (index, (dtype, (lhs, rhs, flags))) in [DType::F32, DType::F16, DType::BF16]
        .into_iter()
        .flat_map(|dtype| shapes.iter().map(move |shape| (dtype, shape)))
        .enumerate()
    {
        let transposed = flags.contains("transpose_rhs");
        let columns = rhs[rhs.len() - if transposed { 2 } else { 1 }];
        for (name, shape) in [("x", *lhs), ("w", *rhs), ("b", &[columns])] {
            body += &format!("  {name}{index} = input \"{name}{index}\" : {}\n", text(dtype, shape));
            inputs.insert(format!("{name}{index}"), tensor(dtype, shape, index));
        }
        // Each shape meets two epilogues of each type, and all of them meet all.
        for epilogue in [epilogues[index % 6], epilogues[(index + 3 + index / 6) % 6]] {
            let bias = if epilogue.contains("bias") {
                format!(", b{index}")
            } else {
                String::new()
            };
            let output = format!("y{index}_{epilogue}");
            body += &format!("  {output} = hipblaslt_matmul x{index}, w{index}{bias} {{epilogue={epilogue}{flags}}}\n");
            returns.push(format!("{output} as \"{output}\""));
        }
    }
    let model = format!(
        "graph @products stage=core {{\n{body}  return {}\n}}\n",
        returns.join(", ")
    );
    let graph = parse::parse(&model).expect("parses");
    let want = eval::evaluate(&graph, &inputs).expect("evaluates");
    let device = hip.open(0).expect("a device");
    let program = Arc::new(calls(&graph));
    let executable = Executable::load_on(&device, program, 0, &LoadOptions::default()).expect("loads");
    let mut profile = RunTimes::default();
    let got = executable.run_profiled(&inputs, Some(&mut profile)).expect("runs");
    let again = executable.run(&inputs).expect("runs");
    let by_hipblaslt = profile.steps.iter().filter(|s| s.engine == "hipblaslt").count();
    assert_eq!((by_hipblaslt, want.len()), (36, 36));
    for (name, want) in &want {
        assert_eq!(got[name], again[name], "{name}: the same inputs give the same bits");
        let (one, other) = (got[name].to_f64(), want.to_f64());
        if !name.contains("gelu") {
            assert_eq!(one, other, "{name}: sums are exact in f32, and rounded once");
            continue;
        }
        // One rounding of the result, beside the activation's own error.
        let ulp = match want.dtype {
            DType::F16 => 2f64.powi(-10),
            DType::BF16 => 2f64.powi(-7),
            _ => 2f64.powi(-18),
        };
        for (one, other) in one.iter().zip(&other) {
            assert!(
                (one - other).abs() <= ulp * other.abs() + 1e-4,
                "{name}: {one} is not {other}"
            );
        }
    }
}

/// Convolutions as calls: input, filter, flags.
const CONVOLUTIONS: &[(&str, DType, &[usize], &[usize], &str)] = &[
    (
        "plain",
        DType::F32,
        &[1, 4, 10, 12],
        &[8, 4, 3, 3],
        "{pad_low=[1, 1], pad_high=[1, 1]}",
    ),
    ("strided", DType::F32, &[2, 4, 9, 9], &[8, 4, 3, 3], "{strides=[2, 2]}"),
    ("pointwise", DType::F32, &[1, 16, 6, 6], &[8, 16, 1, 1], ""),
    ("grouped", DType::F32, &[1, 8, 8, 8], &[8, 4, 3, 3], "{groups=2}"),
    (
        "channels_last",
        DType::F32,
        &[1, 8, 8, 8],
        &[16, 3, 3, 8],
        "{pad_low=[1, 1], pad_high=[1, 1], channels_last}",
    ),
    (
        "half",
        DType::F16,
        &[1, 8, 8, 8],
        &[16, 8, 3, 3],
        "{pad_low=[1, 1], pad_high=[1, 1]}",
    ),
];

#[test]
fn convolutions_by_miopen_are_what_the_evaluator_says() {
    let Some(hip) = inside(
        "convolutions_by_miopen_are_what_the_evaluator_says",
        &[("GRAPHC_EMU_ARCH", "gfx90a")],
    ) else {
        return;
    };
    let device = hip.open(0).expect("a device");
    let mut wrong = Vec::new();
    for (index, (name, dtype, input, filter, flags)) in CONVOLUTIONS.iter().enumerate() {
        let model = format!(
            "graph @convolution stage=core {{\n  x = input \"x\" : {}\n  w = input \"w\" : {}\n  y = miopen_conv x, w {flags}\n  \
             return y as \"y\"\n}}\n",
            text(*dtype, input),
            text(*dtype, filter)
        );
        let graph = parse::parse(&model).expect("parses");
        let inputs = Tensors::from([
            ("x".to_owned(), tensor(*dtype, input, index)),
            ("w".to_owned(), tensor(*dtype, filter, index + 1)),
        ]);
        let want = eval::evaluate(&graph, &inputs).expect("evaluates");
        let run = Executable::load_on(&device, Arc::new(calls(&graph)), 0, &LoadOptions::default())
            .and_then(|executable| executable.run(&inputs));
        match run {
            // Winograd's sums are not exact.
            Ok(got) => {
                let d = graphc::compare::compare(&got["y"], &want["y"], 1e-3, 1e-3).expect("same shape");
                println!("{name}: worst error {:.1e}", d.max_abs);
                if !d.is_within() {
                    wrong.push(format!("{name}: {d:?}"));
                }
            }
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A model whose product is routed: rocBLAS and a generated kernel in one plan, two sizes from one load, several
/// threads.
#[test]
fn a_routed_model_runs_end_to_end() {
    let variables = [("GRAPHC_EMU_ARCH", "gfx90a"), ("GRAPHC_EMU_SEED", "3")];
    let Some(hip) = inside("a_routed_model_runs_end_to_end", &variables) else {
        return;
    };
    let text = "graph @routed stage=import {
        symbol n: 1..2048 hint 1024
        x = input \"x\" : f32[n, 64]
        w = input \"w\" : f32[64, 512]
        v = constant random(seed=3, scale=0.1) : f32[512, 512]
        a = contract x, w
        b = tanh a
        c = contract b, v
        return c as \"y\"
    }";
    let graph = parse::parse(text).expect("parses");
    let target: Target = "gfx90a".parse().expect("a target");
    let mut program = build(&graph, &BuildOptions::new(vec![target], OptLevel::O2))
        .expect("builds")
        .program;
    let (launches, calls) = program.variants[0].plan.launches();
    assert!(launches >= 1 && calls == 1, "{}", program.variants[0].plan);
    compile_here(&mut program);
    let device = hip.open(0).expect("a device");
    let executable = Executable::load_on(&device, Arc::new(program), 0, &LoadOptions::default()).expect("loads");
    std::thread::scope(|scope| {
        for n in [5usize, 8] {
            let (executable, graph) = (&executable, &graph);
            scope.spawn(move || {
                let inputs = Tensors::from([
                    ("x".to_owned(), tensor(DType::F32, &[n, 64], n)),
                    ("w".to_owned(), tensor(DType::F32, &[64, 512], 1)),
                ]);
                let want = eval::evaluate(graph, &inputs).expect("evaluates");
                for _ in 0..2 {
                    let got = executable.run(&inputs).expect("runs");
                    assert_matches(&got, &want, DType::F32, &format!("{n} rows"));
                }
            });
        }
    });
}

/// One artifact whose product is a generated kernel at few rows and rocBLAS's at many, as the cost model has it: both
/// give the same bits, also as captured graphs.
#[test]
fn a_product_is_a_kernel_at_few_rows_and_a_call_at_many() {
    let test = "a_product_is_a_kernel_at_few_rows_and_a_call_at_many";
    let Some(hip) = inside(test, &[("GRAPHC_EMU_ARCH", "gfx90a"), ("GRAPHC_EMU_SEED", "5")]) else {
        return;
    };
    let reductions = ["sum", "mean", "max", "min"];
    let each = |axis: usize| {
        let line = move |op: &str| format!("        {op}{axis} = reduce y {{op={op}, axes=[{axis}]}}\n");
        reductions.map(line).concat()
    };
    let returned = |axis: usize| reductions.map(|op| format!(", {op}{axis} as \"{op}{axis}\"")).concat();
    let text = format!(
        "graph @sized stage=import {{
        symbol n: 1..8192 hint 1024
        x = input \"x\" : f16[n, 1024]
        w = input \"w\" : f16[1024, 512]
        y = contract x, w\n{}{}        return y as \"y\"{}{}
    }}",
        each(0),
        each(1),
        returned(0),
        returned(1)
    );
    let graph = parse::parse(&text).expect("parses");
    let target: Target = "gfx90a".parse().expect("a target");
    let mut program = build(&graph, &BuildOptions::new(vec![target], OptLevel::O2))
        .expect("builds")
        .program;
    compile_here(&mut program);
    // What a file holds is all that runs: code objects, and no compiler beside them.
    let mut file = Vec::new();
    program.write(&mut file).expect("is written");
    let program = Program::read(&Storage::new(file), Check::All).expect("is read");
    let plan = &program.variants[0].plan;
    let step = plan.steps.values().find(|step| step.calls().count() > 0);
    let step = step.expect("a step that may be a call");
    assert_eq!(step.calls().count(), 1, "{plan}");
    assert!(step.kernels().count() >= 2, "{plan}");
    let device = hip.open(0).expect("a device");
    let program = Arc::new(program);
    let executable = Executable::load_on(&device, program.clone(), 0, &LoadOptions::default()).expect("loads");
    let w = tensor(DType::F16, &[1024, 512], 1);
    let few = tensor(DType::F16, &[4, 1024], 2);
    let mut rows: Option<Vec<f64>> = None;
    let mut engines = Vec::new();
    let mut last = Tensors::new();
    for n in [4usize, 130] {
        let repeated: Vec<u8> = few.bytes.iter().copied().cycle().take(n * 1024 * 2).collect();
        let x = HostTensor::new(DType::F16, vec![n, 1024], Storage::new(repeated)).expect("fits");
        let inputs = Tensors::from([("x".to_owned(), x), ("w".to_owned(), w.clone())]);
        let mut profile = RunTimes::default();
        let got = executable.run_profiled(&inputs, Some(&mut profile)).expect("runs");
        let y = got["y"].to_f64();
        let first = rows.get_or_insert_with(|| {
            let want = eval::evaluate(&graph, &inputs).expect("evaluates");
            assert_eq!(y, want["y"].to_f64(), "the sums are exact in f32, and rounded once");
            y.clone()
        });
        for (index, row) in y.chunks(512).enumerate() {
            assert_eq!(row, &first[index % 4 * 512..][..512], "row {index} of {n}");
        }
        let product = profile
            .steps
            .iter()
            .find(|s| s.engine == "rocblas" || s.name.starts_with("contract"));
        let product = product.expect("the product's step");
        engines.push((product.engine.clone(), product.name.starts_with("contract")));
        // Step by step once more, then captured, then again by what was captured.
        for _ in 0..3 {
            assert_eq!(executable.run(&inputs).expect("runs"), got, "{n} rows");
        }
        last = inputs;
    }
    // Without rocBLAS the kernels serve at all sizes.
    let mut search = hip.search();
    search.libraries.explicit = Some("/graphc/no/such/folder".into());
    let device = hip.open_with(&search, 0).expect("a device");
    let alone = Executable::load_on(&device, program, 0, &LoadOptions::default()).expect("loads without rocBLAS");
    let mut profile = RunTimes::default();
    let got = alone.run_profiled(&last, Some(&mut profile)).expect("runs");
    assert_eq!(got, executable.run(&last).expect("runs"));
    assert!(profile.steps.iter().all(|s| s.engine != "rocblas"), "{profile:?}");
    let (kernel, call) = (("kernel".to_owned(), true), ("rocblas".to_owned(), false));
    assert_eq!(engines, [kernel, call]);
    let statistics = executable.statistics();
    assert_eq!((statistics.captured, statistics.refused), (2, 0), "{statistics:?}");
    assert!(statistics.replayed >= 2, "{statistics:?}");
}

/// A model whose product, bias and activation are one call, between generated kernels.
#[test]
fn a_routed_product_with_its_epilogue_runs_end_to_end() {
    let test = "a_routed_product_with_its_epilogue_runs_end_to_end";
    let Some(hip) = inside(test, &[("GRAPHC_EMU_ARCH", "gfx90a"), ("GRAPHC_EMU_SEED", "3")]) else {
        return;
    };
    let text = "graph @routed stage=import {
        symbol n: 1..2048 hint 1024
        x = input \"x\" : f32[n, 512]
        v = constant random(seed=3, scale=0.1) : f32[512, 512]
        b = constant random(seed=4, scale=1.0) : f32[512]
        a = tanh x
        c = contract a, v
        d = add c, b
        e = relu d
        f = reduce e {op=mean, axes=[1]}
        return f as \"y\"
    }";
    let graph = parse::parse(text).expect("parses");
    let target: Target = "gfx90a".parse().expect("a target");
    let mut program = build(&graph, &BuildOptions::new(vec![target], OptLevel::O2))
        .expect("builds")
        .program;
    let plan = program.variants[0].plan.to_string();
    assert!(plan.contains("hipblaslt_matmul"), "{plan}");
    compile_here(&mut program);
    let device = hip.open(0).expect("a device");
    let executable = Executable::load_on(&device, Arc::new(program), 0, &LoadOptions::default()).expect("loads");
    for n in [5usize, 8, 5] {
        let inputs = Tensors::from([("x".to_owned(), tensor(DType::F32, &[n, 512], n))]);
        let want = eval::evaluate(&graph, &inputs).expect("evaluates");
        let got = executable.run(&inputs).expect("runs");
        assert_matches(&got, &want, DType::F32, &format!("{n} rows"));
    }
}

/// A model whose convolution is routed, between generated kernels.
#[test]
fn a_routed_convolution_runs_end_to_end() {
    let Some(hip) = inside("a_routed_convolution_runs_end_to_end", &[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    let text = "graph @routed stage=import {
        symbol n: 1..4096 hint 1024
        x = input \"x\" : f32[n, 12, 12, 32]
        v = constant random(seed=3, scale=0.1) : f32[64, 3, 3, 32]
        a = tanh x
        b = conv a, v {pad_low=[1, 1], pad_high=[1, 1], channels_last}
        c = reduce b {op=mean, axes=[1, 2]}
        return c as \"y\"
    }";
    let graph = parse::parse(text).expect("parses");
    let target: Target = "gfx90a".parse().expect("a target");
    let mut program = build(&graph, &BuildOptions::new(vec![target], OptLevel::O2))
        .expect("builds")
        .program;
    let (launches, calls) = program.variants[0].plan.launches();
    assert!(launches >= 2 && calls == 1, "{}", program.variants[0].plan);
    compile_here(&mut program);
    let device = hip.open(0).expect("a device");
    let executable = Executable::load_on(&device, Arc::new(program), 0, &LoadOptions::default()).expect("loads");
    for n in [1usize, 3] {
        let inputs = Tensors::from([("x".to_owned(), tensor(DType::F32, &[n, 12, 12, 32], n))]);
        let want = eval::evaluate(&graph, &inputs).expect("evaluates");
        let got = executable.run(&inputs).expect("runs");
        assert_matches(&got, &want, DType::F32, &format!("{n} images"));
    }
}

/// One artifact whose convolution is a generated kernel for few images and MIOpen's for more, as the cost model has it;
/// without MIOpen it is a kernel for any number.
#[test]
fn a_convolution_is_a_kernel_for_few_images_and_a_call_for_many() {
    let test = "a_convolution_is_a_kernel_for_few_images_and_a_call_for_many";
    let Some(hip) = inside(test, &[("GRAPHC_EMU_ARCH", "gfx90a"), ("GRAPHC_EMU_SEED", "7")]) else {
        return;
    };
    let text = "graph @sized stage=import {
        symbol n: 1..4096 hint 1024
        x = input \"x\" : f16[n, 7, 7, 64]
        v = constant random(seed=3, scale=0.1) : f16[64, 3, 3, 64]
        y = conv x, v {pad_low=[1, 1], pad_high=[1, 1], channels_last}
        z = reduce y {op=mean, axes=[1, 2]}
        return y as \"y\", z as \"z\"
    }";
    let graph = parse::parse(text).expect("parses");
    let target: Target = "gfx90a".parse().expect("a target");
    let mut program = build(&graph, &BuildOptions::new(vec![target], OptLevel::O2))
        .expect("builds")
        .program;
    compile_here(&mut program);
    let plan = &program.variants[0].plan;
    let step = plan.steps.values().find(|step| step.calls().count() > 0);
    let step = step.expect("a step that may be a call");
    assert!(
        step.kernels().count() >= 1 && step.in_range(49).library_call().is_none(),
        "{plan}"
    );
    let program = Arc::new(program);
    let mut without = hip.search();
    without.libraries.explicit = Some("/graphc/no/such/folder".into());
    let devices = [hip.open(0), hip.open_with(&without, 0)].map(|device| device.expect("a device"));
    let mut engines = Vec::new();
    for device in &devices {
        let executable = Executable::load_on(device, program.clone(), 0, &LoadOptions::default()).expect("loads");
        for n in [1usize, 3, 2] {
            let inputs = Tensors::from([("x".to_owned(), tensor(DType::F16, &[n, 7, 7, 64], n))]);
            let want = eval::evaluate(&graph, &inputs).expect("evaluates");
            let mut profile = RunTimes::default();
            let got = executable.run_profiled(&inputs, Some(&mut profile)).expect("runs");
            assert_matches(&got, &want, DType::F16, &format!("{n} images"));
            let is_conv = |engine: &str, name: &str| engine == "miopen" || name.starts_with("conv");
            let conv = profile.steps.iter().find(|s| is_conv(&s.engine, &s.name));
            engines.push(conv.expect("the convolution's step").engine.clone());
            // As enqueued, and as captured.
            for _ in 0..3 {
                assert_eq!(executable.run(&inputs).expect("runs"), got, "{n} images");
            }
        }
    }
    let (kernel, call) = ("kernel", "miopen");
    assert_eq!(engines, [kernel, call, kernel, kernel, kernel, kernel]);
}

/// Outside of the sysroot there is no rocBLAS: loading says so, with every place and the way out.
#[test]
fn a_library_that_is_not_there_is_said() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    let mut search = hip.search();
    search.libraries.explicit = Some("/graphc/no/such/folder".into());
    let device = hip.open_with(&search, 0).expect("a device");
    let text =
        "graph @products stage=core { x = input \"x\" : f32[4, 4] \n y = rocblas_gemm x, x \n return y as \"y\" }";
    let graph = parse::parse(text).expect("parses");
    let error =
        Executable::load_on(&device, Arc::new(calls(&graph)), 0, &LoadOptions::default()).expect_err("no rocBLAS");
    assert!(matches!(error, RuntimeError::NotAvailable { .. }), "{error}");
    for part in ["rocBLAS", "step s", "/graphc/no/such/folder", "--no-libraries"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

/// Each call of rocBLAS, of hipBLASLt and of MIOpen (its find stage too) failed once while a program is loaded, run
/// twice and dropped: a typed error that names the call and what the library says of the status, every handle and
/// descriptor ended, the next run right. The first and the last call of each function fail, with `GRAPHC_ALL_FAULTS=1`
/// all of them.
#[test]
fn each_call_of_a_library_that_fails_is_said_and_leaves_nothing_behind() {
    let test = "each_call_of_a_library_that_fails_is_said_and_leaves_nothing_behind";
    let Some(hip) = inside(test, &[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    let failing = Failing::new();
    let mut search = hip.search();
    search.libraries.explicit = Some(failing.folder().into());
    let device = hip.open_with(&search, 0).expect("a device");
    let text = "graph @calls stage=core {
        x = input \"x\" : f32[16, 32]
        w = input \"w\" : f32[32, 16]
        i = input \"i\" : f32[1, 4, 6, 6]
        f = input \"f\" : f32[8, 4, 3, 3]
        p = rocblas_gemm x, w
        b = input \"b\" : f32[32]
        q = hipblaslt_matmul p, x, b {epilogue=bias_relu}
        c = miopen_conv i, f {pad_low=[1, 1], pad_high=[1, 1]}
        a = miopen_pool i {kind=average, size=[2, 2]}
        s = miopen_softmax x {axis=1}
        return q as \"q\", c as \"c\", a as \"a\", s as \"s\"
    }";
    let graph = parse::parse(text).expect("parses");
    let shapes: [(&str, &[usize]); 5] = [
        ("b", &[32]),
        ("x", &[16, 32]),
        ("w", &[32, 16]),
        ("i", &[1, 4, 6, 6]),
        ("f", &[8, 4, 3, 3]),
    ];
    let input =
        |(seed, (name, shape)): (usize, &(&str, &[usize]))| ((*name).to_owned(), tensor(DType::F32, shape, seed));
    let inputs: Tensors = shapes.iter().enumerate().map(input).collect();
    let want = eval::evaluate(&graph, &inputs).expect("evaluates");
    let program = Arc::new(calls(&graph));
    let databases = tempfile::tempdir().expect("a folder");
    let options = LoadOptions {
        miopen: MiopenOptions {
            find: MiopenFind::DynamicHybrid,
            user_database: Some(databases.path().into()),
        },
        ..LoadOptions::default()
    };
    // Each thing is done again where it fails; what failed is returned.
    let attempt = || -> Vec<RuntimeError> {
        let mut errors = Vec::new();
        let load = || Executable::load_on(&device, program.clone(), 0, &options);
        let executable = load().unwrap_or_else(|error| {
            errors.push(error);
            load().expect("loads the next time")
        });
        for _ in 0..2 {
            let got = executable.run(&inputs).unwrap_or_else(|error| {
                errors.push(error);
                executable.run(&inputs).expect("runs the next time")
            });
            for (name, want) in &want {
                let d = graphc::compare::compare(&got[name], want, 1e-3, 1e-3).expect("same shape");
                assert!(d.is_within(), "{name}: {d:?}");
            }
        }
        errors
    };
    // Twice: what the libraries keep for themselves is there after the first.
    assert!(attempt().is_empty());
    failing.fail("", 0, 0);
    assert!(attempt().is_empty());
    let mut made = failing.calls();
    // It gives a text, no status.
    made.remove("miopenGetErrorString");
    let mut free = device.memory().expect("there").0;
    let called = |prefix: &str| made.keys().filter(|name| name.starts_with(prefix)).count();
    assert!(
        called("rocblas") >= 5 && called("hipblasLt") >= 12 && called("miopen") >= 21,
        "{made:?}"
    );
    let ends = [
        ("rocblas_create_handle", "rocblas_destroy_handle"),
        ("hipblasLtCreate", "hipblasLtDestroy"),
        ("hipblasLtMatmulDescCreate", "hipblasLtMatmulDescDestroy"),
        ("hipblasLtMatrixLayoutCreate", "hipblasLtMatrixLayoutDestroy"),
        ("hipblasLtMatmulPreferenceCreate", "hipblasLtMatmulPreferenceDestroy"),
        ("miopenCreate", "miopenDestroy"),
        ("miopenCreateTensorDescriptor", "miopenDestroyTensorDescriptor"),
        ("miopenCreatePoolingDescriptor", "miopenDestroyPoolingDescriptor"),
        (
            "miopenCreateConvolutionDescriptor",
            "miopenDestroyConvolutionDescriptor",
        ),
    ];
    let (mut faults, mut told) = (0, 0);
    let all = std::env::var_os("GRAPHC_ALL_FAULTS").is_some();
    for (name, count) in &made {
        let statuses = match name {
            name if name.starts_with("rocblas") => {
                [(5, "rocblas_status_memory_error"), (6, "rocblas_status_internal_error")]
            }
            name if name.starts_with("hipblas") => {
                [(2, "HIPBLAS_STATUS_ALLOC_FAILED"), (6, "HIPBLAS_STATUS_INTERNAL_ERROR")]
            }
            _ => [(4, "miopenStatusAllocFailed"), (5, "miopenStatusInternalError")],
        };
        // The first and the last of its calls, with a status each; or all of them.
        let numbers: BTreeSet<u64> = match all {
            true => (1..=*count).collect(),
            false => [1, *count].into(),
        };
        for (at, number) in numbers.into_iter().enumerate() {
            let chosen = (at + name.len()) % 2;
            for (status, code) in statuses
                .into_iter()
                .skip(if all { 0 } else { chosen })
                .take(1 + usize::from(all))
            {
                let fault = format!("{name}@{number}={code}");
                failing.fail(name, number, status);
                let errors = attempt();
                faults += 1;
                told += errors.len();
                // What does not end is written to nobody, and a solution that does not compile makes room for the next.
                let silent = name.contains("estroy") || name == "miopenConvolutionForwardCompileSolution";
                match &errors[..] {
                    [RuntimeError::Device { call, code: said, .. }] => {
                        assert!(call == name && said == code, "{fault}: {}", errors[0]);
                    }
                    [] => assert!(silent, "{fault} was told nobody"),
                    other => panic!("{fault}: {other:?}"),
                }
                let calls = failing.calls();
                let of = |wanted: &str| calls.get(wanted).copied().unwrap_or(0) - u64::from(wanted == name);
                for (create, destroy) in ends {
                    let kept = of(create) - of(destroy);
                    assert_eq!(kept, u64::from(destroy == name), "{fault}: {create}");
                }
                let now = device.memory().expect("there").0;
                if name.contains("estroy") {
                    // The handle that is there still has memory of its own.
                    free = now;
                }
                assert_eq!(now, free, "{fault}: memory was kept");
            }
        }
    }
    println!("{faults} faults in {} functions, {told} told", made.len());
    // A device that breaks under a library is said to be lost from then on, though the library says only that something
    // failed.
    let executable = Executable::load_on(&device, program.clone(), 0, &LoadOptions::default()).expect("loads");
    executable.run(&inputs).expect("runs");
    let launches = ["hipExtModuleLaunchKernel", "hipModuleLaunchKernel", "hipLaunchKernel"];
    let list = launches.map(|name| format!("{name}@1!hipErrorLaunchFailure")).join(",");
    // SAFETY: the stand-in is loaded already.
    let stand_in = unsafe { Library::new(hip.folder().join("libamdhip64.so.7")) }.expect("is loaded");
    let list = CString::new(list).expect("no zero");
    type SetFaults = unsafe extern "C" fn(*const c_char) -> c_int;
    // SAFETY: the function's own signature, and a C string.
    let code = unsafe { stand_in.get::<SetFaults>(b"graphcEmuSetFaults\0").expect("is there")(list.as_ptr()) };
    assert_eq!(code, 0);
    let error = executable.run(&inputs).expect_err("the device broke");
    assert!(matches!(error, RuntimeError::Device { .. }), "{error}");
    let later = executable.run(&inputs).expect_err("the device is lost");
    assert!(matches!(later, RuntimeError::DeviceLost { .. }), "{later}");
    assert!(told * 2 > faults, "{told} of {faults}");
}
