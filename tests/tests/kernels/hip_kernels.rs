//! Every kind of generated kernel through the real hiprtc, for every GPU target: it compiles without a warning, spills
//! nothing, uses no scratch, and gives the same bytes twice.

use std::path::PathBuf;

use codegen_hip::{device, emit_kernel};
use ir::kernel::bounds::unproven;
use ir::{Kernel, Symbol, SymbolInfo, Symbols, Target};
use runtime::code_object;
use runtime::compile::{CompileRequest, RocmSearch, WorkerPool, compile_all, discover};

const TARGETS: [&str; 9] = [
    "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1151", "gfx1201",
];

/// Targets whose instructions are those of another one, and generic code objects: a part of the kernels is compiled for
/// each.
const ALIKE: [&str; 20] = [
    "gfx1010",
    "gfx1031",
    "gfx1032",
    "gfx1033",
    "gfx1034",
    "gfx1035",
    "gfx1036",
    "gfx1101",
    "gfx1102",
    "gfx1103",
    "gfx1150",
    "gfx1152",
    "gfx1200",
    "gfx9-generic",
    "gfx9-4-generic",
    "gfx10-1-generic",
    "gfx10-3-generic",
    "gfx11-generic",
    "gfx12-generic",
    "gfx1030",
];

/// One of each kind, the largest tiles among them.
const KERNELS: &[&str] = &[
    "pointwise_0",
    "pointwise_2",
    "pointwise_4",
    "flat_0",
    "concat_4",
    "softmax_symbolic",
    "softmax_5",
    "softmax_6",
    "layer_norm_1",
    "layer_norm_2",
    "folds_lanes_0",
    "folds_block_3",
    "pool",
    "contract_0_f32",
    "contract_0_f16",
    "contract_1_bf16",
    "contract_1_i8",
    "contract_3_f64",
    "contract_4_f32",
    "conv",
    "conv_groups",
    "attention_0",
    "attention_1",
    "attention_2",
    "attention_3",
    "scan_0",
    "scan_block_4",
    "top_k_0",
    "top_k_2",
    "top_k_3",
    "update_1",
    "update_3",
    "philox",
    "unary_part_0_float_0",
    "unary_part_2_float_0",
    "unary_part_4_float_0",
    "binary_float_0",
    "unary_part_1_int_1",
    "binary_int_3",
    "cast_f32_f8e4m3fnuz",
    "cast_f32_f8e5m2",
    "cast_f32_i4",
    "cast_u4_f32",
];

/// The compiler's workers, or a word on what is skipped.
fn workers() -> Option<WorkerPool> {
    let worker: Option<PathBuf> = std::env::current_exe().ok().and_then(|exe| {
        let worker = exe.parent()?.parent()?.join("graphc-compile-worker");
        worker.is_file().then_some(worker)
    });
    let Some(worker) = worker else {
        println!("skipped: graphc-compile-worker is not built (cargo build -p graphc-runtime)");
        return None;
    };
    match discover(&RocmSearch::default()) {
        Ok(toolchain) => Some(toolchain.pool(&[worker.into()], 2)),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn headers() -> Vec<(String, String)> {
    device::headers()
        .iter()
        .map(|(n, t)| ((*n).to_owned(), (*t).to_owned()))
        .collect()
}

#[test]
fn every_kind_of_kernel_compiles_for_every_target_without_spills() {
    let Some(compiler) = workers() else { return };
    let symbols: Symbols = ["rows", "seq"]
        .map(|name| (Symbol::new(name), SymbolInfo::default()))
        .into_iter()
        .collect();
    let headers = headers();
    let all = crate::kernel_list::all();
    let mut requests = Vec::new();
    for arch in TARGETS {
        let target: Target = arch.parse().expect("a target of the table");
        for name in KERNELS {
            let kernel = all
                .iter()
                .find(|k| k.name == *name)
                .unwrap_or_else(|| panic!("no kernel {name}"));
            let source = emit_kernel(kernel, &symbols, &target, &[]).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(source, emit_kernel(kernel, &symbols, &target, &[]).expect("as before"));
            requests.push(CompileRequest {
                name: kernel.name.clone(),
                source: source.text,
                headers: headers.clone(),
                arch: arch.to_owned(),
                options: source.options,
            });
        }
    }
    check(&compiler, &requests);
    println!("{} kernels compiled for {} targets", KERNELS.len(), TARGETS.len());
}

/// The models of every run; `GRAPHC_ALL_MODELS=1` takes all that `tests/data` has (some ten minutes).
const MODELS: [&str; 4] = [
    "light/light_resnet50.onnx",
    "light/light_shufflenet.onnx",
    "exports/bert.dy.onnx",
    "exports/llama.dy.onnx",
];

fn models() -> Vec<String> {
    if !graphc_tests::everything() {
        return MODELS.map(str::to_owned).to_vec();
    }
    let mut found = Vec::new();
    for folder in ["light", "exports"] {
        for entry in std::fs::read_dir(graphc_tests::data(folder)).expect("the data is in the repository") {
            let name = entry.expect("readable").file_name().to_string_lossy().into_owned();
            if name.ends_with(".onnx") {
                found.push(format!("{folder}/{name}"));
            }
        }
    }
    found.sort();
    found
}

/// One request for each kernel of a model on each target; or, of a part `1 / share` of them, each kernel on other
/// targets than the next.
fn requests_of(model: &str, share: usize) -> Vec<CompileRequest> {
    let headers = headers();
    let graph = frontend::onnx::import(&graphc_tests::data(model), &Default::default()).expect("imports");
    let mut requests = Vec::new();
    for (number, arch) in TARGETS.into_iter().enumerate() {
        let target: Target = arch.parse().expect("a target of the table");
        let options = graphc::driver::BuildOptions::new(vec![target], passes::OptLevel::O2);
        let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{model} {arch}: {e}"));
        let variant = &built.program.variants[0];
        assert_eq!(variant.sources.len(), variant.plan.kernels.len());
        let sizes = ir::dim::hints(&variant.plan.symbols);
        for kernel in variant.plan.kernels.values() {
            let open = unproven(kernel, &sizes).unwrap_or_else(|e| panic!("{model} {arch}: {e}"));
            assert_eq!(open, [], "{model} {arch}: a GPU refuses kernel {}", kernel.name);
        }
        let taken = variant.sources.values().skip(number % share).step_by(share);
        requests.extend(taken.map(|source| CompileRequest {
            name: source.entry.clone(),
            source: source.text.clone(),
            headers: headers.clone(),
            arch: arch.to_owned(),
            options: source.options.clone(),
        }));
    }
    requests
}

/// What lowering makes of real models, for every target; of the models of every run, a third of the kernels on each.
#[test]
fn kernels_of_models_compile_without_spills() {
    let Some(compiler) = workers() else { return };
    let share = if graphc_tests::everything() { 1 } else { 3 };
    let mut total = 0;
    for model in models() {
        let requests = requests_of(&model, share);
        check(&compiler, &requests);
        total += requests.len();
    }
    println!("{total} kernels of models compiled");
}

/// The tilings that products of models may get, with a bias and a residual: matrices by rows and by columns, narrow and
/// wide. The ones that are predicted to be the fastest are compiled, or all of them.
#[test]
fn tilings_of_products_compile_without_spills() {
    let Some(compiler) = workers() else { return };
    let (mut requests, mut names) = (Vec::new(), Vec::new());
    for arch in ["gfx90a", "gfx942", "gfx1100", "gfx1201"] {
        let target: Target = arch.parse().expect("a target of the table");
        for ([rows, columns, depth], dtype) in [
            ([6272, 96, 384], "f16"),
            ([4096, 4096, 1024], "f16"),
            ([1024, 768, 768], "bf16"),
            ([784, 128, 512], "f32"),
            ([3136, 64, 576], "f16"),
        ] {
            for (w, flags) in [
                (format!("{depth}, {columns}"), ""),
                (format!("{columns}, {depth}"), " {transpose_rhs}"),
            ] {
                let text = format!(
                    "graph @g stage=import {{\n x = input \"x\" : {dtype}[{rows}, {depth}]\n w = input \"w\" : {dtype}[{w}]\n \
                     b = input \"b\" : {dtype}[{columns}]\n r = input \"r\" : {dtype}[{rows}, {columns}]\n c = contract x, w{flags}\n \
                     a = add c, b\n y = add a, r\n return y as \"y\"\n}}\n"
                );
                let graph = ir::graph::parse::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
                let mut options = graphc::driver::BuildOptions::new(vec![target], passes::OptLevel::O2);
                options.optimize.libraries = false;
                let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{text}: {e}"));
                let plan = &built.program.variants[0].plan;
                let kernel = plan.kernels.values().next().expect("a product");
                let candidates = passes::tuning::candidates(kernel, &plan.symbols, &plan.target);
                let most = if graphc_tests::everything() {
                    candidates.len()
                } else {
                    3
                };
                for mapping in candidates.into_iter().take(most) {
                    let name = format!("{rows}x{columns}x{depth} {dtype}{flags} by {mapping}");
                    let kernel = Kernel {
                        mapping,
                        ..kernel.clone()
                    };
                    let source =
                        emit_kernel(&kernel, &plan.symbols, &plan.target, &[]).unwrap_or_else(|e| panic!("{e}"));
                    requests.push(CompileRequest {
                        name: kernel.name.clone(),
                        source: source.text,
                        headers: headers(),
                        arch: arch.to_owned(),
                        options: source.options,
                    });
                    names.push(name);
                }
            }
        }
    }
    check_as(&compiler, &requests, &names);
    println!("{} kernels of products compiled", requests.len());
}

/// Each target has kernels of models and hand-written ones that the next has not, and every kernel is compiled for
/// some; all of them where everything is.
#[test]
fn kernels_compile_for_every_target_of_the_table() {
    let Some(compiler) = workers() else { return };
    let gpus = ir::target::TARGETS
        .iter()
        .filter(|t| t.platform == ir::target::Platform::Hip);
    for target in gpus {
        let known = TARGETS.contains(&target.name) || ALIKE.contains(&target.name);
        assert!(known, "{} is compiled for by no test", target.name);
    }
    let share = if graphc_tests::everything() { 1 } else { 10 };
    let symbols: Symbols = ["rows", "seq"]
        .map(|name| (Symbol::new(name), SymbolInfo::default()))
        .into_iter()
        .collect();
    let all = crate::kernel_list::all();
    let graphs = ["light/light_resnet50.onnx", "exports/bert.dy.onnx"]
        .map(|model| frontend::onnx::import(&graphc_tests::data(model), &Default::default()).expect("imports"));
    let (mut requests, mut names) = (Vec::new(), Vec::new());
    for (number, arch) in ALIKE.into_iter().enumerate() {
        let target: Target = arch.parse().expect("a target of the table");
        let mut add = |source: ir::program::Source| {
            names.push(format!("{} for {arch}", source.entry));
            requests.push(CompileRequest {
                name: source.entry,
                source: source.text,
                headers: headers(),
                arch: arch.to_owned(),
                options: source.options,
            });
        };
        for name in KERNELS.iter().skip(number % share).step_by(share) {
            let kernel = all
                .iter()
                .find(|k| k.name == *name)
                .unwrap_or_else(|| panic!("no kernel {name}"));
            add(emit_kernel(kernel, &symbols, &target, &[]).unwrap_or_else(|e| panic!("{e}")));
        }
        // One model and one type each, in turn.
        let mut options = graphc::driver::BuildOptions::new(vec![target], passes::OptLevel::O2);
        options.optimize.libraries = false;
        let options = options.dtype((number % 4 < 2).then_some(ir::DType::F16));
        let built = graphc::driver::build(&graphs[number % 2], &options).unwrap_or_else(|e| panic!("{arch}: {e}"));
        let sources = built.program.variants.into_iter().next().expect("one target").sources;
        let some = sources.values().skip(number % share).step_by(share);
        some.cloned().for_each(&mut add);
    }
    check_as(&compiler, &requests, &names);
    println!("{} kernels compiled for {} targets", requests.len(), ALIKE.len());
}

/// The same source gives the same code object, from other processes too.
#[test]
fn code_objects_are_identical_in_two_runs() {
    let (Some(first), Some(second)) = (workers(), workers()) else {
        return;
    };
    let share = if graphc_tests::everything() { 1 } else { 5 };
    let requests = requests_of("exports/bert.dy.onnx", share);
    assert!(requests.len() >= 2 * TARGETS.len(), "{}", requests.len());
    let objects = |compiler: &WorkerPool| {
        compile_all(compiler, &requests, &|_| ())
            .into_iter()
            .map(|object| object.expect("compiles").bytes)
            .collect::<Vec<_>>()
    };
    assert!(objects(&first) == objects(&second), "two runs gave different bytes");
}

fn check(compiler: &WorkerPool, requests: &[CompileRequest]) {
    let names: Vec<String> = requests.iter().map(|request| request.name.clone()).collect();
    check_as(compiler, requests, &names);
}

/// Compiles requests, each of which a failure calls by such a name.
fn check_as(compiler: &WorkerPool, requests: &[CompileRequest], names: &[String]) {
    let mut wrong = Vec::new();
    let results = compile_all(compiler, requests, &|_| ());
    for ((request, name), result) in requests.iter().zip(names).zip(results) {
        let at = format!("{name} for {}", request.arch);
        match result.map(|object| (code_object::read(&object.bytes), object.log)) {
            // Builds of ROCm leave the device libraries of generic processors out.
            Err(error) if request.arch.ends_with("-generic") && error.to_string().contains("ROCm device library") => {
                println!("skipped: {at}: this hiprtc has no device library for it");
            }
            Err(error) => wrong.push(format!("{at}: {error}")),
            Ok((Err(error), _)) => wrong.push(format!("{at}: {error}")),
            Ok((Ok(object), log)) => {
                let k = &object.kernels[0];
                // Trigonometry of huge arguments keeps its table of 2/π in scratch; that is ROCm's device library.
                let library = ["unary", "binary"].iter().any(|n| request.name.starts_with(n));
                if k.vgpr_spills + k.sgpr_spills > 0 || (k.scratch_bytes > 0 && !library) {
                    wrong.push(format!(
                        "{at}: {} + {} spills, {} bytes of scratch",
                        k.vgpr_spills, k.sgpr_spills, k.scratch_bytes
                    ));
                }
                if log.contains("warning") {
                    wrong.push(format!("{at}: {log}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
