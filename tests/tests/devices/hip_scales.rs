//! Scales of hipBLASLt: products whose sums it multiplies by a number, or by one for each column, with the real
//! library. Its kernels for f32 are gfx90a's; those for 8-bit floats are gfx1201's, which
//! `LIBS=1 KEEP="gfx90a gfx1201" scripts/rocm-sysroot.sh` keeps.

use std::sync::Arc;

use graphc::driver::{BuildOptions, build};
use graphc::ir::graph::{eval, parse};
use graphc::ir::library::{GemmEpilogue, LibraryOp};
use graphc::ir::{DType, Target};
use graphc::passes::{OptLevel, OptimizeOptions};
use graphc::runtime::{Executable, LoadOptions, RunTimes};
use graphc_tests::emulated_hip::{EmulatedHip, compile_here};
use graphc_tests::libraries::{self, calls_for, tensor};
use graphc_tests::reference::Tensors;

/// As [`libraries::inside`].
fn inside(test: &str, arch: &str) -> Option<EmulatedHip> {
    libraries::inside(
        module_path!(),
        test,
        env!("CARGO_TARGET_TMPDIR"),
        &[("GRAPHC_EMU_ARCH", arch)],
    )
}

/// A call: types of lhs, rhs and result, shapes as they are stored, the scale, the epilogue and its bias's type.
struct Case {
    types: [DType; 3],
    lhs: &'static [usize],
    rhs: &'static [usize],
    flags: &'static str,
    scale: &'static str,
    epilogue: &'static str,
    bias: DType,
}

impl Case {
    fn columns(&self) -> usize {
        self.rhs[self.rhs.len() - if self.flags.contains("transpose_rhs") { 2 } else { 1 }]
    }
}

/// Runs all cases as one plan of calls, and holds each against the evaluator.
fn check(hip: &EmulatedHip, target: Target, cases: &[Case]) {
    let text = |dtype: DType, shape: &[usize]| format!("{dtype}{shape:?}");
    let (mut body, mut returns, mut inputs) = (String::new(), Vec::new(), Tensors::new());
    for (index, case) in cases.iter().enumerate() {
        let n = case.columns();
        let scales = if case.scale == "columns" { vec![n] } else { vec![] };
        let mut operands = format!("x{index}, w{index}, s{index}");
        let mut given = vec![
            ("x", case.types[0], case.lhs.to_vec()),
            ("w", case.types[1], case.rhs.to_vec()),
            ("s", DType::F32, scales),
        ];
        if case.epilogue.contains("bias") {
            given.push(("b", case.bias, vec![n]));
            operands += &format!(", b{index}");
        }
        for (seed, (name, dtype, shape)) in given.iter().enumerate() {
            body += &format!("  {name}{index} = input \"{name}{index}\" : {}\n", text(*dtype, shape));
            inputs.insert(format!("{name}{index}"), tensor(*dtype, shape, index + seed + 1));
        }
        let (scale, epilogue, flags, out) = (case.scale, case.epilogue, case.flags, case.types[2]);
        body += &format!(
            "  y{index} = hipblaslt_matmul {operands} {{scale={scale}, epilogue={epilogue}{flags}, out={out}}}\n"
        );
        returns.push(format!("y{index} as \"y{index}\""));
    }
    let model = format!(
        "graph @scaled stage=core {{\n{body}  return {}\n}}\n",
        returns.join(", ")
    );
    let graph = parse::parse(&model).unwrap_or_else(|e| panic!("{e}\n{model}"));
    let want = eval::evaluate(&graph, &inputs).expect("evaluates");
    let device = hip.open(0).expect("a device");
    let program = Arc::new(calls_for(&graph, target));
    let executable = Executable::load_on(&device, program, 0, &LoadOptions::default()).expect("loads");
    let mut profile = RunTimes::default();
    let got = executable.run_profiled(&inputs, Some(&mut profile)).expect("runs");
    let by_hipblaslt = profile.steps.iter().filter(|s| s.engine == "hipblaslt").count();
    assert_eq!(by_hipblaslt, cases.len());
    for (index, case) in cases.iter().enumerate() {
        let name = format!("y{index}");
        let (one, other) = (got[&name].to_f64(), want[&name].to_f64());
        // Sums are exact in f32; a GELU's exponential is one of f32, and a result is rounded once.
        let ulp = match case.types[2] {
            DType::F16 => 2f64.powi(-10),
            DType::BF16 => 2f64.powi(-7),
            _ => 2f64.powi(-18),
        };
        let exact = !case.epilogue.contains("gelu");
        assert!(other.iter().any(|v| *v != 0.0), "{name}");
        for (one, other) in one.iter().zip(&other) {
            let fits = (one - other).abs() <= ulp * other.abs() + 1e-4;
            assert!(
                one == other || !exact && fits,
                "{name}: {one}, not {other}: {:?} {} {}",
                case.types,
                case.scale,
                case.epilogue
            );
        }
    }
}

#[test]
fn columns_of_products_are_scaled() {
    let Some(hip) = inside("columns_of_products_are_scaled", "gfx90a") else {
        return;
    };
    let shapes: [(&[usize], &[usize], &str); 5] = [
        (&[17, 40], &[40, 24], ""),
        (&[16, 32], &[48, 32], ", transpose_rhs"),
        (&[32, 16], &[32, 48], ", transpose_lhs"),
        (&[3, 16, 8], &[3, 8, 20], ""),
        (&[2, 3, 16, 8], &[8, 20], ""),
    ];
    let epilogues = ["none", "bias", "relu", "bias_relu", "gelu_tanh", "bias_gelu_tanh"];
    let cases: Vec<Case> = (0..15)
        .map(|index| Case {
            types: [DType::F32; 3],
            lhs: shapes[index % 5].0,
            rhs: shapes[index % 5].1,
            flags: shapes[index % 5].2,
            scale: "columns",
            epilogue: epilogues[index % 6],
            bias: DType::F32,
        })
        .collect();
    check(&hip, "gfx90a".parse().expect("a target"), &cases);
}

/// Products of 8-bit floats by E4M3 and E5M2, with one scale or one a column, stored in three types.
#[test]
fn products_of_8_bit_floats_are_scaled() {
    let Some(hip) = inside("products_of_8_bit_floats_are_scaled", "gfx1201") else {
        return;
    };
    let (e4m3, e5m2) = (DType::F8E4M3FN, DType::F8E5M2);
    let pairs = [[e4m3, e4m3], [e4m3, e5m2], [e5m2, e4m3], [e5m2, e5m2]];
    let outs = [DType::F32, DType::F16, DType::BF16];
    let epilogues = ["none", "bias", "bias_relu", "gelu_tanh", "bias_gelu_tanh"];
    let mut cases = Vec::new();
    for (at, pair) in pairs.into_iter().enumerate() {
        for (to, out) in outs.into_iter().enumerate() {
            for scale in ["tensor", "columns"] {
                let index = cases.len();
                cases.push(Case {
                    types: [pair[0], pair[1], out],
                    lhs: if (at + to) % 2 == 0 { &[33, 64] } else { &[2, 16, 48] },
                    rhs: if (at + to) % 2 == 0 { &[40, 64] } else { &[32, 48] },
                    flags: ", transpose_rhs",
                    scale,
                    epilogue: epilogues[index % 5],
                    bias: if index % 3 == 0 { DType::F32 } else { out },
                });
            }
        }
    }
    check(&hip, "gfx1201".parse().expect("a target"), &cases);
}

/// A product of quantised tensors is one call with the scale, the bias and the activation, and gives what the model
/// means.
#[test]
fn a_product_of_quantised_tensors_is_one_call() {
    let Some(hip) = inside("a_product_of_quantised_tensors_is_one_call", "gfx1201") else {
        return;
    };
    for (scale, of) in [("tensor", "[1, 1]"), ("columns", "[1, 48]")] {
        let text = format!(
            "graph @quantised stage=import {{
            x = input \"x\" : f32[40, 64]
            s = constant [0.25] : f32[1, 1]
            q = quantize x, s {{out=f8e4m3fn}}
            d = dequantize q, s {{out=f32}}
            w = constant random(seed=3, scale=1.0) : f8e4m3fn[64, 48]
            t = constant random(seed=5, scale=0.5) : f32{of}
            v = dequantize w, t {{out=f32}}
            b = constant random(seed=4, scale=1.0) : f32[48]
            c = contract d, v
            e = add c, b
            y = relu e
            return y as \"y\"
        }}"
        );
        let graph = parse::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let target: Target = "gfx1201".parse().expect("a target");
        let mut options = BuildOptions::new(vec![target], OptLevel::O2);
        options.optimize = OptimizeOptions {
            prefer_calls: true,
            ..options.optimize
        };
        let mut program = build(&graph, &options).expect("builds").program;
        let plan = &program.variants[0].plan;
        let calls = plan.steps.values().flat_map(|step| step.calls());
        let found: Vec<_> = calls
            .filter_map(|call| match &call.op {
                LibraryOp::Gemm { scale, epilogue, .. } => Some((scale.name(), *epilogue)),
                _ => None,
            })
            .collect();
        assert_eq!(found, [(scale, GemmEpilogue::BiasRelu)], "{plan}");
        compile_here(&mut program);
        let device = hip.open(0).expect("a device");
        let executable = Executable::load_on(&device, Arc::new(program), 0, &LoadOptions::default()).expect("loads");
        let inputs = Tensors::from([("x".to_owned(), tensor(DType::F32, &[40, 64], 7))]);
        let want = eval::evaluate(&graph, &inputs).expect("evaluates");
        let got = executable.run(&inputs).expect("runs");
        graphc_tests::reference::assert_matches(&got, &want, DType::F32, scale);
    }
}
