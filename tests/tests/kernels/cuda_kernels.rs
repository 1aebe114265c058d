//! Every generated kernel through the real NVRTC for sm_90: the same sources as for AMD's GPUs compile without a word
//! from the compiler (it warns of spills too), fit a workgroup's shared memory, and give the same bytes twice. No GPU
//! is needed.

use std::collections::BTreeSet;
use std::process::Command;

use codegen_hip::{device, emit_kernel};
use graphc_tests::nvrtc::compiler;
use graphc_tests::quantised::{Case, Random, Shape, Zero};
use graphc_tests::random_graph::{Step, case};
use graphc_tests::{data, float8, graphc_binary, integers, repository};
use ir::graph::parse::parse;
use ir::kernel::{Body, ContractBody, Kernel, Mapping};
use ir::op::ReduceOp;
use ir::plan::Plan;
use ir::{DType, Symbol, SymbolInfo, Symbols, Target};
use runtime::code_object;
use runtime::compile::{CompileRequest, Compiler, compile_all};

use crate::row_scales;

pub(crate) const ARCH: &str = "sm_90";

pub(crate) fn target() -> Target {
    ARCH.parse().expect("a target of the table")
}

pub(crate) fn headers() -> Vec<(String, String)> {
    device::headers()
        .iter()
        .map(|(n, t)| ((*n).to_owned(), (*t).to_owned()))
        .collect()
}

/// Kernels of which ptxas keeps a few words in local memory.
const LOOPS: [&str; 3] = ["attention", "transpose", "recurrent"];

/// Compiles kernels, and holds what comes out against what they must be.
pub fn check(compiler: &dyn Compiler, requests: &[CompileRequest]) {
    let mut wrong = Vec::new();
    for (request, result) in requests.iter().zip(compile_all(compiler, requests, &|_| ())) {
        let name = &request.name;
        match result.map(|object| (code_object::read(&object.bytes), object.log)) {
            Err(error) => wrong.push(format!("{name}: {error}\n{}", request.source)),
            Ok((Err(error), _)) => wrong.push(format!("{name}: {error}")),
            Ok((Ok(object), log)) => {
                let k = &object.kernels[0];
                if (object.target.as_str(), object.kernels.len()) != (ARCH, 1) || !k.name.starts_with(name.as_str()) {
                    wrong.push(format!("{name}: the cubin is {object:?}"));
                }
                // Of attention's loops and of transposes ptxas keeps up to four words in local memory, with registers
                // to spare (it may take 255, and stops where another workgroup fits): its choice. Of 5 in 200 recurrent
                // layers it keeps one or two, at the 128 registers that 512 threads leave each lane.
                let loops = LOOPS.iter().any(|kind| name.starts_with(kind));
                let chosen = loops && k.scratch_bytes <= 16 && k.vgpr < 255;
                let told = |line: &str| line.trim().is_empty() || (chosen && line.contains("Registers are spilled"));
                if !log.lines().all(told) {
                    wrong.push(format!("{name}: {log}"));
                }
                // Trigonometry of huge arguments keeps its digits in local memory; that is CUDA's library.
                let library = ["sin", "cos", "tan"]
                    .iter()
                    .any(|f| request.source.contains(&format!("math::{f}(")));
                if k.scratch_bytes > 0 && !library && !chosen {
                    wrong.push(format!("{name}: {} bytes of local memory", k.scratch_bytes));
                }
                if k.lds_bytes > target().lds_bytes {
                    wrong.push(format!("{name}: {} bytes of shared memory", k.lds_bytes));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}\n{}",
        wrong.len(),
        requests.len(),
        wrong.join("\n")
    );
}

/// One request for each kernel that is written by hand.
pub(crate) fn hand_written() -> Vec<CompileRequest> {
    let symbols: Symbols = ["rows", "seq"]
        .map(|name| (Symbol::new(name), SymbolInfo::default()))
        .into_iter()
        .collect();
    let headers = headers();
    crate::kernel_list::all()
        .iter()
        .map(|kernel| {
            let source = emit_kernel(kernel, &symbols, &target(), &[]).unwrap_or_else(|e| panic!("{e}"));
            CompileRequest {
                name: kernel.name.clone(),
                source: source.text,
                headers: headers.clone(),
                arch: ARCH.to_owned(),
                options: source.options,
            }
        })
        .collect()
}

#[test]
fn every_hand_written_kernel_compiles() {
    let Some(compiler) = compiler() else { return };
    let requests = hand_written();
    check(&compiler, &requests);
    println!("{} hand-written kernels compiled", requests.len());
}

/// Some ops are called as functions of C's library and keywords of C++ are; kernels of these ops alone compile all the
/// same.
#[test]
fn kernels_of_one_op_have_names_of_their_own() {
    let Some(compiler) = compiler() else { return };
    let pointwise = crate::kernel_list::all()
        .into_iter()
        .find(|k| k.name == "pointwise_0")
        .expect("it is there");
    let unary = ir::op::UnaryOp::ALL.iter().map(ToString::to_string);
    let names: BTreeSet<String> = unary
        .chain(ir::op::BinaryOp::ALL.iter().map(ToString::to_string))
        .collect();
    let others = [
        "select", "cast", "reduce", "conv", "pool", "take", "scan", "copy", "iota", "random", "concat",
    ];
    let symbols = Symbols::default();
    let requests: Vec<CompileRequest> = names
        .into_iter()
        .chain(others.map(str::to_owned))
        .map(|name| {
            let kernel = Kernel {
                name: name.clone(),
                ..pointwise.clone()
            };
            let source = emit_kernel(&kernel, &symbols, &target(), &[]).unwrap_or_else(|e| panic!("{e}"));
            CompileRequest {
                name,
                source: source.text,
                headers: headers(),
                arch: ARCH.to_owned(),
                options: source.options,
            }
        })
        .collect();
    assert!(requests.len() > 50, "{}", requests.len());
    check(&compiler, &requests);
}

/// One request for each kernel of a model.
fn requests_of(model: &str) -> Vec<CompileRequest> {
    let graph = frontend::onnx::import(&data(model), &Default::default()).expect("imports");
    let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
    let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{model}: {e}"));
    let requests = graphc::driver::requests(&built.program);
    assert_eq!(requests.len(), built.program.variants[0].plan.kernels.len());
    requests
}

#[test]
fn every_kernel_of_the_models_compiles() {
    let Some(compiler) = compiler() else { return };
    let (mut models, mut total) = (0, 0);
    for folder in ["light", "exports"] {
        for entry in std::fs::read_dir(data(folder)).expect("the data is in the repository") {
            let name = entry.expect("readable").file_name().to_string_lossy().into_owned();
            if name.ends_with(".onnx") {
                let requests = requests_of(&format!("{folder}/{name}"));
                check(&compiler, &requests);
                (models, total) = (models + 1, total + requests.len());
            }
        }
    }
    println!("{total} kernels of {models} models compiled");
    assert!(models >= 17, "{models}");
}

/// Quantised weights row by row and in tiles, in every form that they are stored in.
#[test]
fn kernels_of_quantised_products_compile() {
    let Some(compiler) = compiler() else { return };
    let mut random = Random(9);
    let (mut requests, mut unpacking) = (Vec::new(), 0);
    for number in 0..if graphc_tests::everything() { 48 } else { 12 } {
        let mut shape = Shape::random(&mut random);
        // All the types with few rows and with many, at sizes that lie well.
        shape.stored = [DType::I4, DType::U4, DType::I8, DType::U8][number % 4];
        shape.dtype = [DType::F16, DType::BF16, DType::F32][number / 4 % 3];
        (shape.m, shape.k) = ([1, 64][(number + number / 12) % 2], 256);
        let graph = Case::new(shape, &mut random).graph;
        let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
        let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{shape:?}: {e}"));
        let sources = graphc::driver::requests(&built.program);
        unpacking += sources.iter().filter(|r| r.source.contains("= quantised<")).count();
        requests.extend(sources);
    }
    check(&compiler, &requests);
    println!(
        "{} kernels of quantised products compiled, {unpacking} unpack wide reads",
        requests.len()
    );
    assert!(unpacking * 2 > requests.len(), "{unpacking}");
}

/// Asks for all ways in which matrix instructions compute a product of few rows; `number` goes on with their names.
fn by_matrix_instructions(kernel: &Kernel, plan: &Plan, number: &mut usize) -> Vec<CompileRequest> {
    let mut requests = Vec::new();
    for mapping in passes::tuning::candidates(kernel, &plan.symbols, &plan.target) {
        if !matches!(&mapping, Mapping::Gemv(tiling) if tiling.matrix.is_some() || tiling.stream.is_some()) {
            continue;
        }
        let name = format!("{}_{number}", kernel.name);
        let kernel = Kernel {
            name: name.clone(),
            mapping,
            ..kernel.clone()
        };
        let source = emit_kernel(&kernel, &plan.symbols, &plan.target, &[]).unwrap_or_else(|e| panic!("{e}"));
        let template = ["gemv_matrix<Tiles, ", "gemv_stream<Tiles, "];
        assert!(template.iter().any(|t| source.text.contains(t)), "{}", source.text);
        *number += 1;
        requests.push(CompileRequest {
            name,
            source: source.text,
            headers: headers(),
            arch: ARCH.to_owned(),
            options: source.options,
        });
    }
    requests
}

/// Few rows by weights of four bits: `mma.sync` multiplies where the target has it for the types and nothing says that
/// lanes are faster.
#[test]
fn few_rows_by_weights_of_four_bits_use_matrix_instructions() {
    let Some(compiler) = compiler() else { return };
    let mut random = Random(17);
    let mut requests = Vec::new();
    let mut scaled = BTreeSet::new();
    for (stored, dtype, rows, group, zero) in [
        (DType::I4, DType::F16, 2, 128, Zero::None),
        (DType::U4, DType::F16, 1, 32, Zero::Stored),
        (DType::U4, DType::BF16, 5, 128, Zero::Stored),
        (DType::I4, DType::BF16, 8, 64, Zero::None),
    ] {
        let mut shape = Shape::plain(stored, dtype, [rows, 8192, 1024], group);
        (shape.zero, shape.bias) = (zero, true);
        let graph = Case::new(shape, &mut random).graph;
        let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
        let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{shape:?}: {e}"));
        let kernels = &built.program.variants[0].plan.kernels;
        let sums = kernels.values().find_map(|k| match &k.mapping {
            Mapping::Gemv(tiling) => tiling.matrix.as_ref().map(|m| m.scaled_sums),
            _ => None,
        });
        // A step is 128 elements along k.
        assert_eq!(sums, Some(group >= 128), "{shape:?}");
        scaled.extend(sums);
        requests.extend(graphc::driver::requests(&built.program));
    }
    assert_eq!(scaled.len(), 2, "by sums and by weights");
    // Every candidate of tuning compiles and spills nothing.
    let graph = Case::new(Shape::plain(DType::I4, DType::F16, [3, 8192, 1024], 128), &mut random).graph;
    let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
    let plan = graphc::driver::build(&graph, &options)
        .expect("builds")
        .program
        .variants[0]
        .plan
        .clone();
    let kernel = plan.kernels.values().next().expect("one kernel");
    let mut candidates = 0;
    requests.extend(by_matrix_instructions(kernel, &plan, &mut candidates));
    assert!(candidates >= 12, "{candidates}");
    check(&compiler, &requests);
    println!(
        "{} kernels compiled, {candidates} of them candidates of one product",
        requests.len()
    );
}

/// Products of one row whose workgroups have a unit each ask for constant weights early, and so do none whose weights a
/// run gives. What such a kernel reads of the launch before does not pass for a constant.
#[test]
fn constant_weights_of_one_row_are_asked_for_early() {
    let Some(compiler) = compiler() else { return };
    let mut random = Random(29);
    let mut requests = Vec::new();
    let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let graph = graphc_tests::chain::graph(dtype, None, &[2048, 2048, 4096, 2050], &mut random);
        let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{dtype}: {e}"));
        let sources = graphc::driver::requests(&built.program);
        let (mut early, mut let_in) = (0, 0);
        for (kernel, request) in built.program.variants[0].plan.kernels.values().zip(&sources) {
            let asks = matches!(&kernel.mapping, Mapping::Gemv(tiling) if tiling.early > 0);
            let row = format!(
                "const {}* in0,",
                if dtype == DType::F32 { "float" } else { dtype.name() }
            );
            assert_eq!(request.source.contains(&row), asks, "{}", request.source);
            assert_eq!(request.source.contains(", 2>;"), asks, "{}", request.source);
            early += usize::from(asks);
            let_in += usize::from(request.source.contains("let_next_launch_begin();"));
        }
        assert!(
            early >= 2 && let_in + 1 >= early,
            "{dtype}: {early} ask, {let_in} let in"
        );
        requests.extend(sources);
    }
    let given = "graph @given stage=import {\n  x = input \"x\" : f16[1, 4096]\n  w = input \"w\" : f16[4096, 4096]\n  \
                 y = contract x, w\n  return y as \"y\"\n}\n";
    let built = graphc::driver::build(&parse(given).expect("parses"), &options).expect("builds");
    let sources = graphc::driver::requests(&built.program);
    assert!(sources[0].source.contains("wait_for_launch_before();"));
    requests.extend(sources);
    check(&compiler, &requests);
}

/// Products of few rows that fold the squares of their rows and scale their sums, and such that fold something else.
#[test]
fn products_that_scale_their_rows_compile() {
    let Some(compiler) = compiler() else { return };
    let (mut requests, mut candidates) = (Vec::new(), 0);
    for (what, _, body, folded, _) in row_scales::MOVED {
        let graph = row_scales::graph(what, body);
        let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
        let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
        let plan = &built.program.variants[0].plan;
        let folds: Vec<&Kernel> = plan.kernels.values().filter(|k| row_scales::folds_rows(k)).collect();
        assert_eq!(folds.len(), folded, "{what}");
        requests.extend(graphc::driver::requests(&built.program));
        // All ways of matrix instructions, of the squares' sum and of the largest square.
        for op in [ReduceOp::Sum, ReduceOp::Max] {
            let mut kernel = folds[0].clone();
            let Body::Contract(ContractBody { statistic: Some(s), .. }) = &mut kernel.body else {
                unreachable!("it folds its rows");
            };
            s.op = op;
            let ways = by_matrix_instructions(&kernel, plan, &mut candidates);
            for way in &ways {
                assert!(way.source.contains("epilogue, statistic)"), "{}", way.source);
            }
            requests.extend(ways);
        }
    }
    check(&compiler, &requests);
    println!(
        "{} kernels compiled, {candidates} of them by matrix instructions",
        requests.len()
    );
    assert!(candidates >= 12, "{candidates} by matrix instructions");
}

/// Products and convolutions of bytes by `mma.sync`, those whose padding is no 0 among them.
#[test]
fn kernels_of_integer_products_compile() {
    let Some(compiler) = compiler() else { return };
    let mut random = Random(23);
    let (mut requests, mut by_matrix, mut filled) = (Vec::new(), 0, 0);
    for number in 0..if graphc_tests::everything() { 48 } else { 12 } {
        let mut shape = integers::Shape::random(&mut random, true);
        // Channels that lie well for wide copies, and rows enough for tiles.
        if let Some(windows) = &mut shape.conv
            && number % 2 == 0
        {
            (shape.k, windows.groups, windows.pads) = (32, 1, [1; 4]);
        }
        let graph = integers::Case::new(shape, &mut random).graph;
        let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
        let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{shape:?}: {e}"));
        let sources = graphc::driver::requests(&built.program);
        by_matrix += sources
            .iter()
            .filter(|r| r.source.contains("MmaSync<16, 8, 32, i8, i32>"))
            .count();
        let fills = |r: &&CompileRequest| r.source.contains("along_k<16, -") || r.source.contains("along_k<16, 1");
        filled += sources.iter().filter(fills).count();
        requests.extend(sources);
    }
    check(&compiler, &requests);
    println!(
        "{} kernels compiled, {by_matrix} by mma.sync, {filled} fill wide copies",
        requests.len()
    );
    assert!(
        by_matrix >= 10 && filled > 0,
        "{by_matrix} by mma.sync, {filled} fill wide copies"
    );
}

/// Products and convolutions of 8-bit floats by `mma.sync`, those that are converted on the way, and products by
/// weights of them.
#[test]
fn kernels_of_8_bit_floats_compile() {
    let Some(compiler) = compiler() else { return };
    let all = [DType::F8E4M3FN, DType::F8E5M2, DType::F8E4M3FNUZ, DType::F8E5M2FNUZ];
    let mut random = Random(29);
    let (mut requests, mut by_matrix, mut mixed, mut converted, mut unpacking) = (Vec::new(), 0, 0, 0, 0);
    for number in 0..if graphc_tests::everything() { 48 } else { 8 } {
        let mut shape = float8::Shape::random(&mut random, &all);
        shape.x = all[number % 4];
        // The other kind of the same family on the right, every second time.
        shape.w = if number % 8 < 4 { shape.x } else { all[(number % 4) ^ 1] };
        shape.k = if shape.conv.is_some() { shape.k } else { 128 };
        let mut weights = Shape::random_of(&mut random, &all);
        (weights.m, weights.k) = ([1, 64][number % 2], 256);
        let graphs = [
            float8::Case::new(shape, &mut random).graph,
            Case::new(weights, &mut random).graph,
        ];
        for graph in graphs {
            let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
            let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{shape:?}: {e}"));
            let sources = graphc::driver::requests(&built.program);
            let count = |part: &str| sources.iter().filter(|r| r.source.contains(part)).count();
            by_matrix += count("MmaSync<16, 8, 32, f8e4m3fn, float>") + count("MmaSync<16, 8, 32, f8e5m2, float>");
            mixed += count("MmaSync<16, 8, 32, f8e4m3fn, float, f8e5m2>");
            mixed += count("MmaSync<16, 8, 32, f8e5m2, float, f8e4m3fn>");
            converted += count("= converted<");
            unpacking += count("= quantised<");
            requests.extend(sources);
        }
    }
    // Caches with a scale a position.
    let (mut scaled, before) = (0, requests.len());
    for (stored, computed, queries) in [("i8", "f16", 64), ("f8e4m3fn", "bf16", 1), ("i8", "f32", 5)] {
        let text = format!(
            "graph @a stage=import {{\n  q = input \"q\" : {computed}[1, 4, {queries}, 64]\n  \
             k = input \"k\" : {stored}[1, 2, 300, 64]\n  v = input \"v\" : {stored}[1, 2, 300, 64]\n  \
             s = input \"s\" : f32[1, 2, 300, 1]\n  a = dequantize k, s {{out={computed}}}\n  \
             b = dequantize v, s {{out={computed}}}\n  y = attention q, a, b {{scale=0.125}}\n  return y as \"y\"\n}}\n"
        );
        let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
        let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{text}: {e}"));
        let sources = graphc::driver::requests(&built.program);
        scaled += sources.iter().filter(|r| r.source.contains("= scaled<")).count();
        requests.extend(sources);
    }
    assert!(scaled >= 3, "{scaled} of {} scale values", requests.len() - before);
    check(&compiler, &requests);
    println!(
        "{} kernels compiled, {by_matrix} by mma.sync and {mixed} of both kinds, {converted} convert, {unpacking} unpack",
        requests.len()
    );
    assert!(
        by_matrix >= 2 && mixed >= 2 && converted >= 2 && unpacking >= 4,
        "{by_matrix}, {mixed}, {converted}, {unpacking}"
    );
}

/// What lowering makes of random graphs; the same that `cuda_device.rs` runs where there is a GPU.
#[test]
fn kernels_of_random_graphs_compile() {
    let Some(compiler) = compiler() else { return };
    let mut state = 11u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u16
    };
    let mut requests = Vec::new();
    for number in 0..400 {
        let steps: Vec<Step> = (0..6).map(|_| std::array::from_fn(|_| random())).collect();
        let graph = case(number * 5, &steps).graph;
        let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
        let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{number}: {e}"));
        requests.extend(graphc::driver::requests(&built.program));
    }
    check(&compiler, &requests);
    println!("{} kernels of random graphs compiled", requests.len());
}

/// The same source gives the same cubin, without a cache and in other processes too.
#[test]
fn cubins_are_identical_in_two_runs() {
    if compiler().is_none() {
        return;
    }
    let requests = requests_of("exports/bert.dy.onnx");
    let objects = || {
        let mut settings = graphc::options::Settings::from_env().expect("valid settings");
        settings.cache_dir = None;
        let worker = [graphc_binary().into(), "__compile-worker".into()];
        let platforms = [ir::target::Platform::Cuda];
        let compiler = graphc::driver::compiler(&settings, Some(&worker), platforms).expect("as before");
        compile_all(&compiler, &requests, &|_| ())
            .into_iter()
            .map(|object| object.expect("compiles").bytes)
            .collect::<Vec<_>>()
    };
    assert!(objects() == objects(), "two runs gave different bytes");
}

/// Runs the graphc binary; what it says, and whether it was content.
fn graphc(words: &[&str]) -> (bool, String) {
    let output = Command::new(graphc_binary())
        .args(words)
        .output()
        .expect("graphc starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said)
}

#[test]
fn the_command_line_makes_shows_and_prints_code_for_sm_90() {
    if compiler().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let artifact = folder.path().join("digits.graphc").to_string_lossy().into_owned();
    let model = repository("examples/digits/digits.onnx").to_string_lossy().into_owned();
    let (ok, said) = graphc(&["compile", "-q", &model, "--target", ARCH, "-o", &artifact]);
    assert!(ok, "{said}");
    let (ok, said) = graphc(&["inspect", "-q", &artifact, "--target", ARCH, "--format", "json"]);
    assert!(ok, "{said}");
    let facts: serde_json::Value = serde_json::from_str(&said).expect("json");
    let kernels = facts["kernels"].as_array().expect("a list");
    assert!(!kernels.is_empty(), "{said}");
    for kernel in kernels {
        let number = |key: &str| kernel[key].as_u64().unwrap_or_else(|| panic!("{key}: {kernel}"));
        assert!((16..=255).contains(&number("vgpr")), "{kernel}");
        assert_eq!(
            (number("vgpr_spills"), number("scratch_bytes"), number("wave_size")),
            (0, 0, 32),
            "{kernel}"
        );
        let name = kernel["name"].as_str().expect("a name");
        assert_eq!(number("lds_bytes") > 0, !name.starts_with("pool"), "{kernel}");
    }
    let (ok, ptx) = graphc(&["compile", "-q", &model, "--target", ARCH, "--emit", "asm"]);
    assert!(ok, "{ptx}");
    for part in [".target sm_90", ".visible .entry conv_relu(", "fma.rn.f32"] {
        assert!(ptx.contains(part), "{part}: {ptx}");
    }
    let (ok, hip) = graphc(&["compile", "-q", &model, "--target", ARCH, "--emit", "hip"]);
    assert!(ok && hip.contains("__global__ void __launch_bounds__("), "{hip}");
}

/// AMD's and NVIDIA's code in one artifact, each by its own compiler.
#[test]
fn an_artifact_holds_code_of_both_vendors() {
    if compiler().is_none() {
        return;
    }
    let settings = graphc::options::Settings::from_env().expect("valid settings");
    if let Err(error) = graphc::driver::compiler(&settings, Some(&["graphc".into()]), [ir::target::Platform::Hip]) {
        println!("skipped: {error}");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let artifact = folder.path().join("digits.graphc").to_string_lossy().into_owned();
    let model = repository("examples/digits/digits.onnx").to_string_lossy().into_owned();
    let (ok, said) = graphc(&["compile", "-q", &model, "--target", "gfx90a,sm_90", "-o", &artifact]);
    assert!(ok, "{said}");
    for (target, wave) in [("gfx90a", 64), ("sm_90", 32)] {
        let (ok, said) = graphc(&["inspect", "-q", &artifact, "--target", target, "--format", "json"]);
        assert!(ok, "{target}: {said}");
        let facts: serde_json::Value = serde_json::from_str(&said).expect("json");
        assert_eq!(facts["kernels"][0]["wave_size"], wave, "{target}");
    }
    let (ok, listing) = graphc(&["compile", "-q", &artifact, "--target", "gfx90a,sm_90", "--emit", "asm"]);
    assert!(ok, "{listing}");
    for part in ["(PTX)", "v_mfma_f32", "s_endpgm"] {
        assert!(listing.contains(part), "{part}: {listing}");
    }
}
