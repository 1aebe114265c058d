//! NVIDIA's GPU end to end: the same plans and sources as for AMD's, compiled by NVRTC, run through the CUDA driver.
//!
//! There is no emulated GPU of this kind: where there is no CUDA device, or no NVRTC, the tests print `skipped: …` and
//! pass. `GRAPHC_REPOSITORY` names the repository to test programs that were built on another machine.

use std::process::{Command, Output};
use std::sync::Arc;

use crate::judge::{self, Random, differ, operands, symbols};
use graphc::driver::{self, BuildOptions, build};
use graphc::frontend::onnx::randomize::{RandomFill, fill_random, uniform};
use graphc::frontend::onnx::read::read_model;
use graphc::frontend::onnx::{ImportOptions, import, import_model};
use graphc::ir::graph::{eval, parse};
use graphc::ir::plan::{KernelId, Work};
use graphc::ir::{DType, Graph, HostTensor, Program, Target};
use graphc::options::Settings;
use graphc::passes::OptLevel;
use graphc::runtime::cache::CachedCompiler;
use graphc::runtime::compile::{Compiler, compile_all};
use graphc::runtime::device::{Device, variant_for};
use graphc::runtime::gpu::{GpuDevice, Vendor};
use graphc::runtime::{Executable, LoadOptions, RunTimes, RuntimeError};
use graphc_tests::emulator::Tally;
use graphc_tests::quantised;
use graphc_tests::random_graph::{Step, case};
use graphc_tests::reference::{self, Tensors};
use graphc_tests::{data, graphc_binary, nvrtc, repository, single};
use ir::Bindings;
use ir::kernel::{Access, Body, Mapping};

/// The first GPU and the compiler for it.
pub(crate) struct Cuda {
    device: GpuDevice,
    compiler: CachedCompiler,
}

/// What there is, or a word on what is skipped.
pub(crate) fn cuda() -> Option<Cuda> {
    let settings = Settings::from_env().expect("valid settings");
    match GpuDevice::open(&settings.gpu_search(), Vendor::Cuda, 0) {
        Ok(device) => Some(Cuda {
            device,
            compiler: nvrtc::compiler()?,
        }),
        Err(error) => {
            // scripts/test.sh knows these words: CI has no such GPU.
            println!("skipped: no NVIDIA GPU: {error}");
            None
        }
    }
}

impl Cuda {
    fn target(&self) -> Target {
        self.device.target()
    }

    /// A program with its code for the device.
    pub(crate) fn program(&self, graph: &Graph, dtype: Option<DType>) -> Program {
        let options = BuildOptions::new(vec![self.target()], OptLevel::O2).dtype(dtype);
        let mut program = build(graph, &options).expect("builds").program;
        driver::compile(&mut program, &self.compiler, &|_| {}).expect("the kernels compile");
        program
    }

    /// The same with another mapping of one kernel.
    fn mapped(&self, graph: &Graph, id: KernelId, mapping: Mapping, context: &str) -> Program {
        let options = BuildOptions::new(vec![self.target()], OptLevel::O2);
        let mut program = build(graph, &options).expect("builds").program;
        let variant = &mut program.variants[0];
        variant.plan.kernels[id].mapping = mapping;
        let kernel = &variant.plan.kernels[id];
        let source = codegen_hip::emit_kernel(kernel, &variant.plan.symbols, &self.target(), &[]);
        variant.sources[id] = source.unwrap_or_else(|e| panic!("{context}: {e}"));
        driver::compile(&mut program, &self.compiler, &|_| {}).unwrap_or_else(|e| panic!("{context}: {e}"));
        program
    }

    pub(crate) fn load(&self, program: Program) -> Result<Executable, RuntimeError> {
        let program = Arc::new(program);
        let variant = variant_for(&program, &self.device)?;
        Executable::load_on(&self.device, program, variant, &LoadOptions::default())
    }

    fn executable(&self, graph: &Graph, dtype: Option<DType>) -> Executable {
        self.load(self.program(graph, dtype)).expect("loads")
    }
}

fn digits() -> Graph {
    import(&repository("examples/digits/digits.onnx"), &ImportOptions::default()).expect("imports")
}

fn arrays(path: &str) -> Tensors {
    graphc::arrays::read(&repository(path)).expect("readable")
}

/// The test images and onnxruntime's answers.
fn digits_case() -> (Tensors, Tensors) {
    (
        arrays("examples/digits/test.npz"),
        arrays("examples/digits/expected.npz"),
    )
}

fn assert_close(got: &Tensors, want: &Tensors, (rtol, atol): (f64, f64), context: &str) {
    for (name, want) in want {
        let difference = graphc::compare::compare(&got[name], want, rtol, atol).expect("same shape");
        assert!(difference.is_within(), "{context}: {name}: {difference:?}");
    }
}

fn graphc(words: &[&str]) -> Output {
    Command::new(graphc_binary())
        .args(words)
        .output()
        .expect("graphc starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Each kind of body, mapping and type, with NaN, infinity and the ends of ranges among the operands: at the tolerances
/// of the emulated GPUs.
#[test]
fn every_hand_written_kernel_computes_what_the_evaluator_says() {
    let Some(cuda) = cuda() else { return };
    let symbols = symbols();
    let bindings: Bindings = ir::dim::hints(&symbols);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let all = crate::kernel_list::all();
    let (mut subjects, mut requests) = (Vec::new(), Vec::new());
    for kernel in &all {
        let buffers = operands(kernel, &bindings, &mut random);
        let source = codegen_hip::emit_kernel(kernel, &symbols, &cuda.target(), &[]).unwrap_or_else(|e| panic!("{e}"));
        let program = single::program(kernel, &symbols, cuda.target(), &source);
        requests.extend(driver::requests(&program));
        subjects.push((program, buffers));
    }
    let mut tally = Tally::default();
    let objects = compile_all(&cuda.compiler as &dyn Compiler, &requests, &|_| ());
    for ((kernel, (mut program, buffers)), object) in all.iter().zip(subjects).zip(objects) {
        let code = object.unwrap_or_else(|e| panic!("{}: {e}", kernel.name)).bytes;
        for slot in program.variants[0].code.values_mut() {
            *slot = Some(code.clone());
        }
        let results = match single::run(&cuda.device, program, &buffers, &bindings) {
            Ok(results) => results,
            Err(error) => {
                tally.wrong.push(format!("{}: {error}", kernel.name));
                continue;
            }
        };
        tally.kernels += 1;
        let mut wanted = buffers.clone();
        ir::kernel::eval::evaluate(kernel, &mut wanted, &bindings).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
        let written = kernel.params.values().zip(&wanted);
        let written = written.filter(|(p, _)| p.access != Access::Read);
        for ((param, want), got) in written.zip(&results) {
            tally.wrong.extend(differ(kernel, &param.name, got, want));
            let (got, want) = (got.to_f64(), want.to_f64());
            let scale = judge::scale(kernel, &want);
            let finite = got.iter().zip(&want).filter(|(_, w)| w.is_finite());
            let errors = finite.map(|(g, w)| (g - w).abs() / w.abs().max(scale));
            tally.error(&param.dtype.to_string(), want.len(), errors.fold(0.0, f64::max));
        }
    }
    tally.finish(&format!("hand-written kernels on {}", cuda.device.name()), all.len());
}

#[test]
fn the_shipped_model_from_the_command_line() {
    if cuda().is_none() {
        return;
    }
    let file = |name: &str| {
        repository(&format!("examples/digits/{name}"))
            .to_string_lossy()
            .into_owned()
    };
    let (model, inputs, expect, labels) = (
        file("digits.onnx"),
        file("test.npz"),
        file("expected.npz"),
        file("labels.npz"),
    );
    for device in ["cuda", "cuda:0"] {
        let words = ["run", "-q", "--device", device, &model, "--inputs", &inputs];
        let output = graphc(&[&words[..], &["--expect", &expect, "--labels", &labels]].concat());
        assert!(output.status.success(), "{}", said(&output));
        for part in ["logits: ok", "355 of 360"] {
            assert!(said(&output).contains(part), "{part}: {}", said(&output));
        }
    }
    let listed = said(&graphc(&["targets", "--devices"]));
    assert!(listed.contains("cuda:0  sm_"), "{listed}");
    let output = graphc(&["run", "-q", "--random", "--device", "cuda:99", &model]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    for part in ["device cuda:99 is not available", "sees cuda:0", "libcuda.so.1"] {
        assert!(said(&output).contains(part), "{part}: {}", said(&output));
    }
}

#[test]
fn an_artifact_made_elsewhere_runs_here() {
    let Some(cuda) = cuda() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("digits.graphc");
    cuda.program(&digits(), None).save(&path).expect("saved");
    let loaded = Program::load(&path).expect("an artifact");
    let (inputs, want) = digits_case();
    let got = cuda.load(loaded).expect("loads").run(&inputs).expect("runs");
    assert_close(&got, &want, (1e-4, 1e-4), "from an artifact");
}

/// PyTorch's exports at two sizes from one load.
#[test]
fn exports_give_pytorchs_outputs_at_both_sizes() {
    let Some(cuda) = cuda() else { return };
    for name in [
        "bert.ts",
        "bert.dy",
        "gpt2.dy",
        "llama.dy",
        "vit.ts",
        "vit.dy",
        "mobilenet.ts",
        "mobilenet.dy",
    ] {
        let path = data(&format!("exports/{name}.onnx"));
        let executable = cuda.executable(&import(&path, &ImportOptions::default()).expect("imports"), None);
        let model = name.split('.').next().expect("a name");
        for size in ["", "2"] {
            let inputs = arrays(&format!("tests/data/exports/{model}.in{size}.npz"));
            let want = arrays(&format!("tests/data/exports/{model}.out{size}.npz"));
            let got = executable.run(&inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_close(&got, &want, (1e-3, 2e-5), &format!("{name} size {size:?}"));
        }
    }
}

/// The CNNs of the `onnx` package with weights that differ from each other, against onnxruntime.
#[test]
fn cnns_with_random_weights_match_onnxruntime() {
    let Some(cuda) = cuda() else { return };
    const SEED: u64 = 0x6772_6170_6863;
    for name in [
        "light_bvlc_alexnet",
        "light_densenet121",
        "light_inception_v1",
        "light_inception_v2",
        "light_resnet50",
        "light_shufflenet",
        "light_squeezenet",
        "light_vgg19",
        "light_zfnet512",
    ] {
        let want = arrays(&format!("tests/data/light_random/{name}.npz"));
        let number = |key: &str| want[key].to_f64()[0];
        let mut model = read_model(data(&format!("light/{name}.onnx"))).expect("readable");
        let fill = RandomFill {
            seed: SEED,
            gain: number("gain"),
            head: number("head"),
        };
        fill_random(&mut model.graph, fill).expect("fills");
        let graph = import_model(&model, &ImportOptions::default()).expect("imports");
        let input = &graph.inputs()[0];
        let dims = graph.ty(input.node.into()).shape.as_consts().expect("fixed sizes");
        let shape: Vec<usize> = dims.iter().map(|d| *d as usize).collect();
        let values: Vec<f32> = uniform(&input.name, SEED, shape.iter().product(), -1.0, 1.0).collect();
        let x = HostTensor::from_f32(shape, &values).expect("the shape's count");
        let inputs = Tensors::from([(input.name.clone(), x)]);
        let got = cuda.executable(&graph, None).run(&inputs).expect("runs");
        let atol = if name == "light_densenet121" { 1e-4 } else { 1e-7 };
        for (output, want) in want.iter().filter(|(n, _)| !matches!(n.as_str(), "gain" | "head")) {
            let d = graphc::compare::compare(&got[output], want, 1e-3, atol).expect("same shape");
            assert!(d.is_within(), "{name}: {d:?}");
        }
    }
}

/// Models computed in f16 and bf16 against the reference evaluator.
#[test]
fn narrow_types_stay_near_the_reference() {
    let Some(cuda) = cuda() else { return };
    for name in ["bert", "gpt2", "llama", "vit", "mobilenet"] {
        let path = data(&format!("exports/{name}.dy.onnx"));
        let graph = import(&path, &ImportOptions::default()).expect("imports");
        let inputs = arrays(&format!("tests/data/exports/{name}.in.npz"));
        let want = eval::evaluate(&graph, &inputs).expect("the reference evaluates");
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let chosen = (dtype != DType::F32).then_some(dtype);
            let got = cuda.executable(&graph, chosen).run(&inputs).expect("runs");
            reference::assert_matches(&got, &want, dtype, &format!("{name} in {dtype}"));
        }
    }
}

/// Random graphs over every op family, in f32 and f16, each run twice.
#[test]
fn random_graphs_compute_what_their_plans_mean() {
    let Some(cuda) = cuda() else { return };
    let mut state = 11u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u16
    };
    let cases = if graphc_tests::everything() { 400 } else { 100 };
    for number in 0..cases {
        let steps: Vec<Step> = (0..6).map(|_| std::array::from_fn(|_| random())).collect();
        let case = case(number as u16 * 5, &steps);
        let program = cuda.program(&case.graph, None);
        let plan = program.variants[0].plan.clone();
        let want = ir::plan::eval::evaluate(&plan, &program.constants, &case.inputs);
        let context = || format!("case {number}:\n{}\n{plan}", case.graph);
        let want = want.unwrap_or_else(|e| panic!("{e}\n{}", context()));
        let run = cuda.load(program).and_then(|executable| {
            executable.run(&case.inputs)?;
            executable.run(&case.inputs)
        });
        let got = run.unwrap_or_else(|e| panic!("{e}\n{}", context()));
        for (name, want) in &want {
            let values = want.to_f64();
            let finite = values.iter().filter(|v| v.is_finite());
            let scale = finite.fold(1.0f64, |m, v| m.max(v.abs()));
            let (rtol, atol) = match (want.dtype.is_float(), case.precision) {
                (false, _) => (0.0, 0.0),
                (_, DType::F16) => (2e-2, 2e-2 * scale),
                _ => (1e-4, 2e-5 * scale),
            };
            let d = graphc::compare::compare(&got[name], want, rtol, atol).expect("same shape");
            assert!(d.is_within(), "{name}: {d:?}\n{}", context());
        }
    }
    println!("{cases} random graphs");
}

/// Random products by quantised weights, a part of them with few rows by weights of four bits: each by what is planned,
/// and these by every way to multiply them with matrix instructions, against the exact product by the dequantised
/// weight.
#[test]
fn quantised_products_are_exact_but_for_rounding() {
    let Some(cuda) = cuda() else { return };
    let mut random = quantised::Random(41);
    let tolerance = |dtype| match dtype {
        DType::F32 => 1e-5,
        DType::F16 => 1.5e-3,
        _ => 1.2e-2,
    };
    let (count, mut by_matrix, mut by_stream) = (if graphc_tests::everything() { 200 } else { 60 }, 0, 0);
    let mut wrong = Vec::new();
    for number in 0..count {
        let mut shape = quantised::Shape::random(&mut random);
        if number % 2 == 0 {
            shape.m = random.of(&[1, 2, 7, 8, 9, 16]);
            shape.n = random.of(&[1, 15, 16, 40, 258, 1000]);
            shape.k = random.of(&[32, 64, 96, 160, 416, 768, 1056, 3072, 4096]);
            shape.share = random.of(&[
                quantised::Share::Group(32),
                quantised::Share::Group(128),
                quantised::Share::Column,
            ]);
            shape.stored = random.of(&[DType::I4, DType::U4]);
            shape.zero = random.of(&[quantised::Zero::None, quantised::Zero::Stored]);
            shape.dtype = random.of(&[DType::F16, DType::BF16]);
            shape.scales = random.of(&[shape.dtype, DType::F32]);
            shape.along_k = true;
        }
        let case = quantised::Case::new(shape, &mut random);
        let mut check = |program: Program, context: &str| {
            let got = cuda.load(program).and_then(|e| e.run(&case.inputs));
            let got = got.unwrap_or_else(|e| panic!("{shape:?} {context}: {e}"));
            let error = case.error(&got["y"]);
            if error > tolerance(shape.dtype) {
                let values: Vec<f64> = got["y"].to_f64().into_iter().take(4).collect();
                let want = &case.exact[..values.len()];
                wrong.push(format!("{shape:?} {context}: {error}, {values:?} instead of {want:?}"));
            }
        };
        let program = cuda.program(&case.graph, None);
        check(program.clone(), "as planned");
        let plan = &program.variants[0].plan;
        let Some((id, kernel)) = plan.kernels.iter().find(|(_, k)| matches!(k.body, Body::Contract(_))) else {
            continue;
        };
        let ways = passes::tuning::candidates(kernel, &plan.symbols, &plan.target);
        for mapping in ways {
            let (of_matrix, streamed) = match &mapping {
                Mapping::Gemv(tiling) => (tiling.matrix.is_some(), tiling.stream.is_some()),
                _ => (false, false),
            };
            // Some of them for each case: all sizes come by over the cases.
            if !streamed && (!of_matrix || random.below(6) != 0) {
                continue;
            }
            let context = mapping.to_string();
            check(cuda.mapped(&case.graph, id, mapping, &context), &context);
            by_matrix += usize::from(of_matrix);
            by_stream += usize::from(streamed);
        }
    }
    println!("{count} products, {by_matrix} by matrix instructions and {by_stream} with streamed weights");
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(by_matrix >= 20, "{by_matrix}");
}

/// One row by streamed weights: every tiling, both types of rows and of scales, odd numbers of columns and of steps, a
/// norm folded on the way, and elements of very different sizes.
#[test]
fn streamed_rows_are_exact_but_for_rounding() {
    let Some(cuda) = cuda() else { return };
    let mut random = quantised::Random(57);
    let mut wrong = Vec::new();
    let (mut checked, mut folded, mut planned) = (0, 0, 0);
    for number in 0..24 {
        let dtype = [DType::F16, DType::BF16][number % 2];
        let scales = [dtype, DType::F32][number / 2 % 2];
        let stored = [DType::I4, DType::U4][number / 4 % 2];
        let zero = number / 8 % 3 > 0;
        // Without zero points packs of two and four steps do.
        let k = match zero {
            true => random.of(&[1024i64, 3072, 4096, 14336]),
            false => random.of(&[256i64, 1024, 1280, 1536, 3072, 4096, 14336]),
        };
        let n = random.of(&[1i64, 15, 40, 258, 2200]);
        let groups = k / 128;
        let mut tensor = |dtype, shape: [i64; 2], number: &mut dyn FnMut(&mut quantised::Random) -> f64| {
            let values: Vec<f64> = (0..shape[0] * shape[1]).map(|_| number(&mut random)).collect();
            HostTensor::from_f64(dtype, shape.map(|v| v as usize).to_vec(), &values).expect("fits")
        };
        let unit = |random: &mut quantised::Random| random.below(2001) as f64 / 1000.0 - 1.0;
        let least = if stored == DType::I4 { -8.0 } else { 0.0 };
        let mut integer = |r: &mut quantised::Random| r.below(16) as f64 + least;
        let mut inputs = Tensors::from([
            (
                "x".to_owned(),
                tensor(dtype, [1, k], &mut |r| unit(r) * 2f64.powi(r.below(12) as i32 - 8)),
            ),
            ("w".to_owned(), tensor(stored, [n, k], &mut integer)),
            ("s".to_owned(), tensor(scales, [n, groups], &mut |r| unit(r) * 0.02)),
        ]);
        let (mut declared, mut named) = (String::new(), "");
        if zero {
            inputs.insert("z".to_owned(), tensor(stored, [n, groups], &mut integer));
            declared = format!("z = input \"z\" : {stored}[{n}, {groups}]");
            named = ", z";
        }
        let normed = number % 3 == 0;
        let (norm, row) = match normed {
            true => ("r = rms_norm x {axis=1, epsilon=1e-5}", "r"),
            false => ("", "x"),
        };
        let text = format!(
            "graph @row stage=import {{
                x = input \"x\" : {dtype}[1, {k}]
                w = input \"w\" : {stored}[{n}, {k}]
                s = input \"s\" : {scales}[{n}, {groups}]
                {declared}
                q = dequantize w, s{named} {{axis=1, group=128, out={dtype}}}
                {norm}
                y = contract {row}, q {{transpose_rhs}}
                return y as \"y\"
            }}"
        );
        let graph = parse::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let want = eval::evaluate(&graph, &inputs).expect("the reference evaluates");
        let program = cuda.program(&graph, None);
        let plan = &program.variants[0].plan;
        let (id, kernel) = plan
            .kernels
            .iter()
            .find(|(_, kernel)| matches!(kernel.body, Body::Contract(_)))
            .expect("a product");
        planned += usize::from(kernel.streams());
        folded += usize::from(matches!(&kernel.body, Body::Contract(body) if body.statistic.is_some()));
        for mapping in passes::tuning::candidates(kernel, &plan.symbols, &plan.target) {
            if !matches!(&mapping, Mapping::Gemv(tiling) if tiling.stream.is_some()) {
                continue;
            }
            let context = format!("{stored} {dtype} {scales} zero {zero} norm {normed} {n} x {k}: {mapping}");
            let program = cuda.mapped(&graph, id, mapping, &context);
            let got = cuda.load(program).and_then(|e| e.run(&inputs));
            let got = got.unwrap_or_else(|e| panic!("{context}: {e}"));
            let (got, want) = (got["y"].to_f64(), want["y"].to_f64());
            let largest = want.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
            let differs = |(x, y): (&f64, &f64)| match (x - y).abs() {
                difference if difference.is_nan() => f64::INFINITY,
                difference => difference,
            };
            let error = got.iter().zip(&want).map(differs).fold(0.0, f64::max) / largest;
            let most = if dtype == DType::F16 { 1.5e-3 } else { 1.2e-2 };
            if error > most {
                wrong.push(format!("{context}: {error}"));
            }
            checked += 1;
        }
    }
    println!(
        "{checked} products of streamed rows, {folded} rows are folded on the way, {planned} of 24 are planned so"
    );
    assert!(
        folded >= 4 && planned >= 20 && checked >= 90,
        "{folded} {planned} {checked}"
    );
    assert!(
        wrong.is_empty(),
        "{} of {checked} are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Infinities and what is no number come through a row's digits, and leave the groups beside them as they are.
#[test]
fn streamed_rows_keep_what_is_not_finite() {
    let Some(cuda) = cuda() else { return };
    // As signed integers, and as unsigned ones with a zero point.
    for (stored, zero) in [(DType::I4, 0.0), (DType::U4, 8.0)] {
        streamed_row_keeps_what_is_not_finite(&cuda, stored, zero);
    }
}

fn streamed_row_keeps_what_is_not_finite(cuda: &Cuda, stored: DType, zero: f64) {
    let (declared, named) = match zero {
        0.0 => (String::new(), ""),
        _ => (format!("z = input \"z\" : {stored}[3, 8]\n"), ", z"),
    };
    let text = format!(
        "graph @row stage=import {{
        x = input \"x\" : f16[1, 1024]
        w = input \"w\" : {stored}[3, 1024]
        s = input \"s\" : f16[3, 8]
        {declared} q = dequantize w, s{named} {{axis=1, group=128, out=f16}}
        y = contract x, q {{transpose_rhs}}
        return y as \"y\"
    }}"
    );
    let program = cuda.program(&parse::parse(&text).expect("parses"), None);
    assert!(
        program.variants[0]
            .plan
            .kernels
            .values()
            .any(ir::kernel::Kernel::streams)
    );
    let executable = cuda.load(program).expect("loads");
    // The weights of the element that is not finite are -3, 0 and 5; all others are 1.
    let mut w = vec![1.0 + zero; 3 * 1024];
    for (row, weight) in [-3.0, 0.0, 5.0].into_iter().enumerate() {
        w[row * 1024 + 700] = weight + zero;
    }
    let w = HostTensor::from_f64(stored, vec![3, 1024], &w).expect("fits");
    let z = HostTensor::from_f64(stored, vec![3, 8], &[zero; 24]).expect("fits");
    let s = HostTensor::from_f64(DType::F16, vec![3, 8], &[0.5; 24]).expect("fits");
    let nan = f64::NAN;
    for (value, want) in [
        (
            2.0,
            [
                0.5 * (1023.0 / 64.0 - 6.0),
                0.5 * 1023.0 / 64.0,
                0.5 * (1023.0 / 64.0 + 10.0),
            ],
        ),
        (f64::INFINITY, [f64::NEG_INFINITY, nan, f64::INFINITY]),
        (f64::NEG_INFINITY, [f64::INFINITY, nan, f64::NEG_INFINITY]),
        (nan, [nan; 3]),
        // The rest is far below it, and still there.
        (
            1024.0,
            [
                0.5 * (1023.0 / 64.0 - 3072.0),
                0.5 * 1023.0 / 64.0,
                0.5 * (1023.0 / 64.0 + 5120.0),
            ],
        ),
    ] {
        let mut x = vec![1.0 / 64.0; 1024];
        x[700] = value;
        let x = HostTensor::from_f64(DType::F16, vec![1, 1024], &x).expect("fits");
        let mut inputs = Tensors::from([
            ("x".to_owned(), x),
            ("w".to_owned(), w.clone()),
            ("s".to_owned(), s.clone()),
        ]);
        if !named.is_empty() {
            inputs.insert("z".to_owned(), z.clone());
        }
        let got = executable.run(&inputs).expect("runs")["y"].to_f64();
        for (got, want) in got.iter().zip(want) {
            let close = (got - want).abs() <= 1e-3 * want.abs();
            assert!(
                got.is_nan() && want.is_nan() || *got == want || close,
                "{stored} {value}: {got} instead of {want}"
            );
        }
    }
}

#[test]
fn sizes_of_zero_launch_nothing() {
    let Some(cuda) = cuda() else { return };
    let text = "graph @rows stage=import {
        symbol n: 0..9 hint 2
        x = input \"x\" : f32[n, 5]
        a = exp x
        b = reduce x {op=sum, axes=[0]}
        return a as \"a\", b as \"b\", x as \"same\"
    }";
    let executable = cuda.executable(&parse::parse(text).expect("parses"), None);
    for n in [0usize, 3, 0] {
        let x = HostTensor::from_f32(vec![n, 5], &vec![1.5; 5 * n]).expect("fits");
        let got = executable
            .run(&Tensors::from([("x".to_owned(), x.clone())]))
            .expect("runs");
        assert_eq!((&got["same"], got["a"].shape.as_slice()), (&x, &[n, 5][..]));
        assert_eq!(got["b"].to_f32(), [1.5 * n as f32; 5]);
    }
}

#[test]
fn threads_share_an_executable() {
    let Some(cuda) = cuda() else { return };
    let executable = cuda.executable(&digits(), None);
    let (inputs, want) = digits_case();
    let first = executable.run(&inputs).expect("runs");
    assert_close(&first, &want, (1e-4, 1e-4), "alone");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (executable, inputs, first) = (&executable, &inputs, &first);
            scope.spawn(move || {
                for round in 0..20 {
                    let got = executable.run(inputs).expect("runs");
                    assert_eq!(&got, first, "thread {thread}, round {round}");
                }
            });
        }
    });
}

#[test]
fn code_that_does_not_load_names_its_kernel() {
    let Some(cuda) = cuda() else { return };
    let good = cuda.program(&digits(), None);
    let name = good.variants[0]
        .plan
        .kernels
        .values()
        .nth(1)
        .expect("a kernel")
        .name
        .clone();
    for (what, code) in [("not there", None), ("noise", Some(vec![7; 400]))] {
        let mut broken = good.clone();
        *broken.variants[0].code.values_mut().nth(1).expect("a kernel") = code;
        let error = cuda.load(broken).expect_err(what);
        assert!(error.to_string().contains(&name), "{what}: {error}");
    }
    // The device is none the worse for it.
    let (inputs, want) = digits_case();
    let got = cuda.load(good).expect("loads").run(&inputs).expect("runs");
    assert_close(&got, &want, (1e-4, 1e-4), "after that");
}

/// An arena that no GPU has room for.
#[test]
fn memory_that_is_not_there_is_said() {
    let Some(cuda) = cuda() else { return };
    // A running sum along the rows of a broadcast is no kernel's own: 16 TiB of it have to lie somewhere.
    let text = "graph @large stage=import {
        symbol n: 1..9 hint 1
        x = input \"x\" : f32[n, 1]
        a = broadcast x {shape=[n, 4398046511104]}
        b = scan a {op=sum, axis=1}
        c = reduce b {op=max, axes=[1]}
        return c as \"c\"
    }";
    let program = cuda.program(&parse::parse(text).expect("parses"), None);
    match cuda.load(program) {
        Err(RuntimeError::OutOfDeviceMemory(short)) => assert!(
            short.free.is_some_and(|free| short.asked > free && free > 0)
                && short.planned.is_some_and(|planned| planned.peak >= short.asked),
            "{short:?}"
        ),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("16 TiB were allocated"),
    }
    let (free, total) = cuda.device.memory().expect("the device is none the worse for it");
    assert!(free > 0 && total >= free, "{free} of {total}");
}

#[test]
fn profiles_and_memory_are_told() {
    let Some(cuda) = cuda() else { return };
    let executable = cuda.executable(&digits(), None);
    let (inputs, _) = digits_case();
    let mut profile = RunTimes::default();
    executable.run_profiled(&inputs, Some(&mut profile)).expect("runs");
    let plan = executable.plan();
    assert_eq!(profile.steps.len(), plan.steps.len());
    for (time, (id, step)) in profile.steps.iter().zip(plan.steps.iter()) {
        assert_eq!(time.step, id);
        assert_eq!(
            time.engine == "copy",
            matches!(step.work, Work::Copy { .. }),
            "{time:?}"
        );
        let launch = matches!(step.work, Work::Launch { .. });
        assert!(!launch || time.time.as_nanos() > 0, "{time:?}");
    }
    let memory = executable
        .memory(&executable.bind(&inputs).expect("binds"))
        .expect("sizes");
    assert!(
        memory.arena >= memory.live_peak && memory.live_peak > 0 && memory.packed_weights > 0,
        "{memory:?}"
    );
}

#[test]
fn sessions_and_functions_run_on_the_device() {
    use graphc::prelude::*;
    if cuda().is_none() {
        return;
    }
    let mut settings = Settings::from_env().expect("valid");
    settings.worker = Some(graphc_binary().into());
    let options = SessionOptions {
        settings: Some(Arc::new(settings)),
        ..SessionOptions::default()
    };
    let options = options.device("cuda".parse().expect("a device")).expect("it is there");
    assert!(options.target.name.starts_with("sm_"));
    let softmax = jit(|[x]: [Tensor; 1]| x.softmax(-1))
        .dynamic(0, 0, "rows")
        .options(options);
    for rows in [1usize, 5] {
        let x = HostTensor::from_f32([rows, 4], &vec![0.5; 4 * rows]).expect("fits");
        assert_eq!(softmax.call([&x]).expect("runs").to_f32(), vec![0.25; 4 * rows]);
    }
    assert_eq!(softmax.stats().compiles, 1);
}

#[test]
fn bench_times_steps_on_the_device() {
    if cuda().is_none() {
        return;
    }
    let model = repository("examples/digits/digits.onnx").to_string_lossy().into_owned();
    let words = [
        "bench",
        "-q",
        "--device",
        "cuda",
        "--runs",
        "5",
        "--profile",
        "--format",
        "json",
        &model,
    ];
    let output = graphc(&words);
    assert!(output.status.success(), "{}", said(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    assert_eq!(report["device"], "cuda:0");
    let steps = report["steps"].as_array().expect("a list");
    assert!(steps.iter().any(|s| s["step"] == "copy to device [copy]"), "{report}");
    assert!(steps.iter().all(|s| s["us"].as_f64() > Some(0.0)), "{report}");
}
