//! Optimisation of real models: what is recognised, what is left, and that the answers stay PyTorch's and ONNX's.

use std::path::{Path, PathBuf};

use frontend::onnx::randomize::{RandomFill, fill_random, uniform};
use frontend::onnx::{ImportOptions, import, import_model, read_model};
use indexmap::IndexMap;
use ir::graph::eval::evaluate;
use ir::op::{Composite, Elementwise, Layout, UnaryOp, View};
use ir::{DType, Graph, HostTensor, NodeId, Op, Target};
use passes::{Keep, OptLevel, OptimizeOptions, OptimizeReport, optimize};

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(path)
}

fn load(path: &str) -> Graph {
    import(&data(path), &ImportOptions::default()).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn read_npz(path: &str) -> IndexMap<String, HostTensor> {
    graphc::arrays::read(&data(path)).expect("readable")
}

fn target(name: &str) -> Target {
    name.parse().unwrap()
}

fn run(graph: Graph, target: &Target, options: OptimizeOptions) -> (Graph, OptimizeReport) {
    let options = OptimizeOptions {
        verify: true,
        ..options
    };
    optimize(graph, target, &options).unwrap_or_else(|e| panic!("{e}\n{}", e.graph))
}

/// Optimises at a level and compares with the stored outputs at both sizes.
fn check_export(path: &str, target_name: &str, options: OptimizeOptions, tolerance: f32) -> (Graph, OptimizeReport) {
    let (graph, report) = run(load(&format!("exports/{path}.onnx")), &target(target_name), options);
    let stem = path.split('.').next().unwrap();
    for size in ["", "2"] {
        let inputs = read_npz(&format!("exports/{stem}.in{size}.npz"));
        let expected = read_npz(&format!("exports/{stem}.out{size}.npz"));
        let outputs = evaluate(&graph, &inputs).unwrap_or_else(|error| panic!("{path}: {error}\n{graph}"));
        for (name, expected) in expected {
            let output = &outputs[&name];
            assert_eq!(output.shape, expected.shape, "{path}: shape of {name}");
            assert_eq!(output.dtype, expected.dtype, "{path}: type of {name}");
            let pairs = output.to_f32().into_iter().zip(expected.to_f32());
            let worst = pairs
                .map(|(a, b)| {
                    if a.is_nan() {
                        f32::INFINITY
                    } else {
                        (a - b).abs() / (1.0 + b.abs())
                    }
                })
                .fold(0.0, f32::max);
            assert!(
                worst < tolerance,
                "{path}{size} on {target_name}: {name} is off by {worst}\n{graph}"
            );
        }
    }
    (graph, report)
}

fn count(graph: &Graph, f: impl Fn(&Op) -> bool) -> usize {
    graph.nodes().values().filter(|n| f(&n.op)).count()
}

fn attentions(graph: &Graph) -> Vec<(NodeId, bool, bool)> {
    graph
        .nodes()
        .iter()
        .filter_map(|(id, n)| match n.op {
            Op::Composite(Composite::Attention { causal, mask, .. }) => Some((id, causal, mask)),
            _ => None,
        })
        .collect()
}

const EXPORTS: [&str; 8] = [
    "bert.ts",
    "bert.dy",
    "gpt2.dy",
    "llama.dy",
    "vit.ts",
    "vit.dy",
    "mobilenet.ts",
    "mobilenet.dy",
];

#[test]
fn every_level_keeps_the_answers() {
    for path in EXPORTS {
        for level in [OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3] {
            check_export(path, "cpu", OptimizeOptions::at(level), 1e-4);
        }
    }
}

#[test]
fn gpu_targets_with_library_calls_keep_the_answers() {
    for path in EXPORTS {
        check_export(path, "gfx90a", OptimizeOptions::default(), 1e-4);
    }
}

#[test]
fn without_any_composite_kernel_the_answers_stay() {
    for path in EXPORTS {
        let options = OptimizeOptions {
            keep: Keep::NONE,
            ..OptimizeOptions::default()
        };
        let (graph, _) = check_export(path, "cpu", options, 1e-4);
        assert_eq!(count(&graph, |op| matches!(op, Op::Composite(_))), 0, "{path}");
    }
}

#[test]
fn half_precision_is_close() {
    for path in EXPORTS {
        let options = OptimizeOptions {
            dtype: Some(DType::F16),
            ..OptimizeOptions::default()
        };
        let (graph, _) = check_export(path, "gfx90a", options, 5e-2);
        let wide = count(&graph, |op| matches!(op, Op::Contract(c) if c.out != DType::F16));
        assert_eq!(wide, 0, "{path}: contractions left in f32");
    }
}

/// What a transformer must come to: `(attentions, causal, masked, norms, contractions)`.
fn check_transformer(path: &str, causal: bool, mask: bool, norms: usize, contractions: usize) {
    let (graph, report) = run(
        load(&format!("exports/{path}.onnx")),
        &Target::cpu(),
        OptimizeOptions::default(),
    );
    let found = attentions(&graph);
    assert_eq!(found.len(), 2, "{path}: attentions\n{graph}");
    for (_, c, m) in &found {
        assert_eq!((*c, *m), (causal, mask), "{path}: causal, mask\n{graph}");
    }
    let is_norm = |op: &Op| {
        matches!(
            op,
            Op::Composite(Composite::LayerNorm { .. } | Composite::RmsNorm { .. })
        )
    };
    assert_eq!(count(&graph, is_norm), norms, "{path}: norms\n{graph}");
    // A scale of ones (the export of llama has no other) is no scale.
    let whole = graph.nodes().values().all(|n| match n.op {
        Op::Composite(Composite::LayerNorm { .. }) => n.operands.len() >= 2,
        _ => true,
    });
    assert!(whole, "{path}: every norm has its scale\n{graph}");
    assert_eq!(
        count(&graph, |op| matches!(op, Op::Contract(_))),
        contractions,
        "{path}: contractions\n{graph}"
    );
    assert_eq!(
        count(&graph, |op| matches!(op, Op::Composite(Composite::Softmax { .. }))),
        0,
        "{path}\n{graph}"
    );
    let leftovers = |op: &Op| {
        matches!(
            op,
            Op::Reduce { .. }
                | Op::Scan { .. }
                | Op::Elementwise(Elementwise::Unary(UnaryOp::Erf | UnaryOp::Tanh | UnaryOp::Sigmoid))
        )
    };
    assert_eq!(
        count(&graph, leftovers),
        0,
        "{path}: parts of what should be whole\n{graph}"
    );
    if !report
        .fired
        .iter()
        .any(|f| f.rule == "attention" && f.cost.is_some_and(|(before, after)| after < before))
    {
        panic!("{path}: attention is explained with a gain: {:?}", report.fired);
    }
}

#[test]
fn bert_is_recognised_whole() {
    // A layer: QKV in one, output, two of the feed-forward network.
    check_transformer("bert.ts", false, true, 5, 8);
    check_transformer("bert.dy", false, true, 5, 8);
}

#[test]
fn vit_is_recognised_whole() {
    check_transformer("vit.ts", false, false, 5, 8);
    check_transformer("vit.dy", false, false, 5, 8);
}

#[test]
fn gpt2_is_recognised_whole() {
    check_transformer("gpt2.dy", true, false, 5, 9);
}

#[test]
fn llama_is_recognised_whole() {
    // A layer: QKV in one, output, gate and up in one, down; and the head.
    check_transformer("llama.dy", true, false, 5, 9);
    let (graph, _) = run(
        load("exports/llama.dy.onnx"),
        &Target::cpu(),
        OptimizeOptions::default(),
    );
    for (id, _, _) in attentions(&graph) {
        let k = graph.ty(graph.node(id).operands[1]);
        assert!(k.shape[1].is(2), "keys before their repetition: {k}\n{graph}");
    }
    let silu = count(&graph, |op| *op == Op::unary(UnaryOp::Silu));
    assert_eq!(silu, 2, "{graph}");
}

#[test]
fn gelu_is_recognised_in_every_spelling() {
    for (path, gelu) in [
        ("bert.ts", UnaryOp::Gelu),
        ("bert.dy", UnaryOp::Gelu),
        ("vit.ts", UnaryOp::Gelu),
        ("gpt2.dy", UnaryOp::GeluTanh),
    ] {
        let (graph, _) = run(
            load(&format!("exports/{path}.onnx")),
            &Target::cpu(),
            OptimizeOptions::default(),
        );
        assert_eq!(count(&graph, |op| *op == Op::unary(gelu)), 2, "{path}\n{graph}");
    }
}

/// `(name, transposes allowed)`: one at the input, and one where a spatial extent is flattened.
const LIGHT: [(&str, usize); 9] = [
    ("bvlc_alexnet", 2),
    ("densenet121", 1),
    ("inception_v1", 1),
    ("inception_v2", 1),
    ("resnet50", 1),
    ("shufflenet", 17),
    ("squeezenet", 1),
    ("vgg19", 2),
    ("zfnet512", 2),
];

#[test]
fn cnns_have_channels_last_and_no_batch_norm() {
    let mobilenets = ["mobilenet.ts", "mobilenet.dy"].map(|n| (format!("exports/{n}.onnx"), 1));
    let light = LIGHT.map(|(n, t)| (format!("light/light_{n}.onnx"), t));
    let mut wrong = Vec::new();
    for (path, transposes) in mobilenets.into_iter().chain(light) {
        let (graph, _) = run(load(&path), &Target::cpu(), OptimizeOptions::default());
        let first = count(&graph, |op| match op {
            Op::Conv(c) => c.layout == Layout::ChannelsFirst,
            Op::Pool(p) => p.layout == Layout::ChannelsFirst,
            _ => false,
        });
        assert_eq!(first, 0, "{path}: ops left with channels first");
        let found = count(&graph, |op| matches!(op, Op::View(View::Transpose(_))));
        if found > transposes {
            wrong.push(format!("{path}: {found} transposes, {transposes} wanted"));
        }
        if path.contains("resnet50") {
            assert_eq!(count(&graph, |op| matches!(op, Op::Conv(_))), 53);
            // One addition a residual block; no scale or shift is left of a batch norm.
            let binary = count(&graph, |op| matches!(op, Op::Elementwise(Elementwise::Binary(_))));
            assert!(binary <= 17, "{path}: {binary} binary ops\n{graph}");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Seeded random weights against onnxruntime's outputs, on the smallest CNNs (the reference evaluator is slow).
#[test]
fn random_weights_keep_their_answers() {
    for name in ["light_squeezenet", "light_shufflenet"] {
        let arrays = read_npz(&format!("light_random/{name}.npz"));
        let number = |name: &str| arrays[name].to_f64()[0];
        let mut model = read_model(data(&format!("light/{name}.onnx"))).unwrap();
        let fill = RandomFill {
            seed: SEED,
            gain: number("gain"),
            head: number("head"),
        };
        fill_random(&mut model.graph, fill).unwrap();
        let graph = import_model(&model, &ImportOptions::default()).unwrap();
        let input = graph.inputs()[0].clone();
        let shape: Vec<usize> = graph
            .ty(input.node.into())
            .shape
            .iter()
            .map(|d| d.as_const().unwrap() as usize)
            .collect();
        let values: Vec<f32> = uniform(&input.name, SEED, shape.iter().product(), -1.0, 1.0).collect();
        let inputs = IndexMap::from([(input.name, HostTensor::from_f32(shape, &values).unwrap())]);
        let (graph, _) = run(graph, &Target::cpu(), OptimizeOptions::default());
        let outputs = evaluate(&graph, &inputs).unwrap();
        for output in graph.outputs() {
            let (got, want) = (outputs[&output.name].to_f32(), arrays[&output.name].to_f32());
            let worst = got
                .iter()
                .zip(&want)
                .map(|(a, b)| (a - b).abs() / (1e-4 + b.abs()))
                .fold(0.0, f32::max);
            assert!(worst < 1e-3, "{name}: {} is off by {worst}", output.name);
        }
    }
}

/// The seed that the stored outputs were made with.
const SEED: u64 = 0x6772_6170_6863;
