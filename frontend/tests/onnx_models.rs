//! Real models: both exporters' transformers with varying sizes, and ONNX's light CNNs.

use std::fs::File;
use std::path::{Path, PathBuf};

use graphc_frontend::onnx::{ImportOptions, import};
use indexmap::IndexMap;
use ir::graph::eval::evaluate;
use ir::op::View;
use ir::{DType, Graph, HostTensor, Op};

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(path)
}

fn load(path: &str, options: &ImportOptions) -> Graph {
    let graph = import(&data(path), options).unwrap_or_else(|error| panic!("{path}: {error}"));
    if let Err(error) = ir::graph::verify::verify(&graph) {
        panic!("{path}: {error}");
    }
    graph
}

/// Reads an npz whose arrays are f32 or i64.
fn read_npz(path: &str) -> IndexMap<String, HostTensor> {
    let mut file = npyz::npz::NpzArchive::new(File::open(data(path)).unwrap()).unwrap();
    let names: Vec<String> = file.array_names().map(str::to_owned).collect();
    let mut tensors = IndexMap::new();
    for name in names {
        let array = file.by_name(&name).unwrap().unwrap();
        let shape: Vec<usize> = array.shape().iter().map(|d| *d as usize).collect();
        let integer = array.dtype().descr().contains("i8");
        let tensor = if integer {
            HostTensor::from_i64(DType::I64, shape, &array.into_vec::<i64>().unwrap()).unwrap()
        } else {
            HostTensor::from_f32(shape, &array.into_vec::<f32>().unwrap()).unwrap()
        };
        tensors.insert(name, tensor);
    }
    tensors
}

/// Evaluates the exports at both sizes and compares with PyTorch's outputs.
fn check_export(path: &str) {
    let graph = load(&format!("exports/{path}.onnx"), &ImportOptions::default());
    let stem = path.split('.').next().unwrap();
    for size in ["", "2"] {
        let inputs = read_npz(&format!("exports/{stem}.in{size}.npz"));
        let expected = read_npz(&format!("exports/{stem}.out{size}.npz"));
        let outputs = evaluate(&graph, &inputs).unwrap_or_else(|error| panic!("{path}: {error}"));
        for (name, expected) in expected {
            let output = &outputs[&name];
            assert_eq!(output.shape, expected.shape, "{path}: shape of {name}");
            let pairs = output.to_f32().into_iter().zip(expected.to_f32());
            let worst = pairs.map(|(a, b)| (a - b).abs() / (1.0 + b.abs())).fold(0.0, f32::max);
            assert!(worst < 1e-4, "{path}{size}: {name} is off by {worst}");
        }
    }
}

#[test]
fn bert_of_torchscript() {
    check_export("bert.ts");
}

#[test]
fn bert_of_dynamo() {
    check_export("bert.dy");
}

#[test]
fn gpt2_of_dynamo() {
    check_export("gpt2.dy");
}

#[test]
fn llama_of_dynamo() {
    check_export("llama.dy");
}

#[test]
fn vit_of_torchscript() {
    check_export("vit.ts");
}

#[test]
fn vit_of_dynamo() {
    check_export("vit.dy");
}

#[test]
fn mobilenet_of_torchscript() {
    check_export("mobilenet.ts");
}

#[test]
fn mobilenet_of_dynamo() {
    check_export("mobilenet.dy");
}

/// Shape arithmetic leaves nothing: no op computes sizes from sizes, and integers occur only as indices and positions.
#[test]
fn no_shape_arithmetic_is_left() {
    for name in ["vit.ts", "vit.dy", "mobilenet.ts", "mobilenet.dy"] {
        let graph = load(&format!("exports/{name}.onnx"), &ImportOptions::default());
        for (id, node) in graph.nodes().iter() {
            let integer = node.results.iter().any(|t| t.dtype.is_int());
            let leaf = matches!(node.op, Op::Constant(_));
            assert!(
                !integer || leaf,
                "{name}: {id} is {} from {}",
                node.op.name(),
                node.origin
            );
        }
    }
    for name in ["bert.ts", "bert.dy", "gpt2.dy", "llama.dy"] {
        let graph = load(&format!("exports/{name}.onnx"), &ImportOptions::default());
        let dim_values = graph
            .nodes()
            .values()
            .filter(|n| matches!(n.op, Op::DimValue(_)))
            .count();
        // TorchScript's mask indices are computed from the batch's stride, which is data there.
        assert!(dim_values <= 1, "{name}: {dim_values} sizes are data");
        let joined_sizes = graph.nodes().values().any(|n| {
            matches!(n.op, Op::View(View::Concat { .. }))
                && n.operands
                    .iter()
                    .any(|v| matches!(graph.node(v.node).op, Op::DimValue(_)))
        });
        assert!(!joined_sizes, "{name}");
    }
}

/// The 64 positions of these models bound the sequence, and both inputs of BERT share a batch size or keep their own.
#[test]
fn symbols_carry_what_the_model_implies() {
    let graph = load("exports/bert.ts.onnx", &ImportOptions::default());
    let bounds: Vec<String> = graph
        .symbols()
        .iter()
        .map(|(s, i)| format!("{s}: {}..{:?}", i.min, i.max))
        .collect();
    assert_eq!(bounds, ["batch: 1..None", "seq: 1..Some(64)"]);
    let output = graph.ty(graph.outputs()[0].value);
    assert_eq!(output.to_string(), "f32[batch, seq, 64]");

    let options = ImportOptions::default()
        .size("batch=2")
        .unwrap()
        .size("seq=4..32 hint 16")
        .unwrap();
    let graph = load("exports/bert.ts.onnx", &options);
    assert_eq!(graph.ty(graph.outputs()[0].value).to_string(), "f32[2, seq, 64]");
    let info = graph.symbols().values().next().unwrap();
    assert_eq!((info.min, info.max, info.hint), (4, Some(32), 16));

    let options = ImportOptions::default().shape("x=[n, 3, 96, 96]").unwrap();
    let graph = load("exports/mobilenet.ts.onnx", &options);
    assert_eq!(graph.ty(graph.outputs()[0].value).to_string(), "f32[n, 10]");
    let error = import(
        &data("exports/mobilenet.ts.onnx"),
        &ImportOptions::default().size("sequence=3").unwrap(),
    );
    assert!(error.unwrap_err().to_string().contains("batch"));
}

#[test]
fn light_cnns_import() {
    let outputs = [
        ("bvlc_alexnet", "f32[1, 1000]"),
        ("densenet121", "f32[1, 1000, 1, 1]"),
        ("inception_v1", "f32[1, 1000]"),
        ("inception_v2", "f32[1, 1000]"),
        ("resnet50", "f32[1, 1000]"),
        ("shufflenet", "f32[1, 1000]"),
        ("squeezenet", "f32[1, 1000, 1, 1]"),
        ("vgg19", "f32[1, 1000]"),
        ("zfnet512", "f32[1, 1000]"),
    ];
    for (name, ty) in outputs {
        let graph = load(&format!("light/light_{name}.onnx"), &ImportOptions::default());
        assert_eq!(graph.inputs().len(), 1, "{name}");
        assert_eq!(graph.ty(graph.outputs()[0].value).to_string(), ty, "{name}");
    }
}

/// Weights point into the mapped file.
#[test]
fn weights_are_not_copied() {
    let model = graphc_frontend::onnx::read_model(data("exports/bert.ts.onnx")).unwrap();
    let graph = graphc_frontend::onnx::import_model(&model, &ImportOptions::default()).unwrap();
    let name = "m.embeddings.word_embeddings.weight";
    let constant = graph
        .constants()
        .values()
        .find(|c| c.name.as_deref() == Some(name))
        .unwrap();
    let source = model.graph.initializer.iter().find(|t| t.name == name).unwrap();
    assert_eq!(constant.tensor.bytes.as_ptr(), source.raw_data.as_ptr());
}
