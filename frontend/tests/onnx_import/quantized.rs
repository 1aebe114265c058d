//! Files whose products are given quantised operands: what changes, what stays, what is refused.

use std::collections::{HashMap, HashSet};

use graphc_frontend::onnx::proto::tensor_proto::DataType;
use graphc_frontend::onnx::proto::{
    AttributeProto, FunctionProto, ModelProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
};
use graphc_frontend::onnx::{EditError, ImportOptions, ModelFile, OpsetError};
use indexmap::IndexMap;
use ir::op::Groups;
use ir::recipe::{Activation, Layer, Stored, Weight};
use ir::{DType, HostTensor};
use prost::Message;

use crate::build::{Build, float, int, ints};

/// Numbers that are the same every time, in [−1, 1).
fn numbers(count: usize) -> Vec<f32> {
    let number = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    (1..=count).map(number).collect()
}

fn file(model: &Build) -> ModelFile {
    ModelFile::from_bytes("test.onnx", model.0.encode_to_vec().into(), None).expect("readable")
}

/// What ONNX asks of a graph: each value is made once, before it is read; names of nodes are unique; quantised operands
/// have the types and shapes that their operators take.
fn check(file: &ModelFile) {
    let proto = file.proto();
    let graph = proto.graph.as_ref().expect("a graph");
    let opset = proto
        .opset_import
        .iter()
        .find(|o| o.domain.is_empty())
        .expect("a set")
        .version;
    let mut made: HashSet<&str> = graph.input.iter().map(|i| i.name.as_str()).collect();
    let mut tensors: HashMap<&str, &TensorProto> = HashMap::new();
    for tensor in &graph.initializer {
        assert!(tensors.insert(&tensor.name, tensor).is_none(), "{} twice", tensor.name);
        // Old files have weights among their inputs too.
        made.insert(&tensor.name);
    }
    let mut names = HashSet::new();
    for node in &graph.node {
        assert!(node.name.is_empty() || names.insert(&node.name), "{} twice", node.name);
        for input in node.input.iter().filter(|i| !i.is_empty()) {
            assert!(made.contains(input.as_str()), "{input} is read before it is made");
        }
        for output in &node.output {
            assert!(made.insert(output), "{output} is made twice");
        }
        let attribute = |name: &str| node.attribute.iter().find(|a| a.name == name).map(|a| a.i);
        if !matches!(node.op_type.as_str(), "QuantizeLinear" | "DequantizeLinear") {
            continue;
        }
        let (scale, zero) = (
            tensors.get(node.input[1].as_str()),
            node.input.get(2).and_then(|z| tensors.get(z.as_str())),
        );
        let Some(scale) = scale else {
            assert!(opset >= 11, "scales of a run are those of DynamicQuantizeLinear");
            continue;
        };
        assert!(scale.data_type == DataType::Float as i32 || opset >= 19);
        assert!(zero.is_none_or(|z| z.dims == scale.dims));
        let Some(stored) = tensors.get(node.input[0].as_str()) else {
            assert!(scale.dims.is_empty(), "operands have one scale");
            continue;
        };
        assert!(zero.is_none_or(|z| z.data_type == stored.data_type));
        let four = [DataType::Int4 as i32, DataType::Uint4 as i32].contains(&stored.data_type);
        assert!(!four || opset >= 21);
        let elements = stored.dims.iter().product::<i64>() as usize;
        assert_eq!(
            stored.raw_data.len(),
            if four { elements.div_ceil(2) } else { elements }
        );
        let axis = attribute("axis").map(|axis| axis as usize);
        match attribute("block_size") {
            Some(size) => {
                assert!(opset >= 21);
                let mut dims = stored.dims.clone();
                let axis = axis.expect("of blocks");
                dims[axis] = (dims[axis] as u64).div_ceil(size as u64) as i64;
                assert_eq!(scale.dims, dims);
            }
            None => match axis {
                Some(axis) => {
                    assert!(opset >= 13);
                    assert_eq!(scale.dims, [stored.dims[axis]]);
                }
                None => assert!(scale.dims.is_empty()),
            },
        }
    }
    for output in &graph.output {
        assert!(
            made.contains(output.name.as_str()),
            "{} is made by nothing",
            output.name
        );
    }
}

/// `i8` by column, and the operand as it is.
fn plain(name: &str, axis: usize, columns: usize) -> Layer {
    Layer {
        name: name.to_owned(),
        weight: Weight {
            dtype: DType::I8,
            axis: Some(axis),
            groups: None,
            scales: vec![1.0 / 127.0; columns],
            zeros: None,
            integers: None,
        },
        activation: Activation::Float,
        inputs: None,
    }
}

fn grouped(name: &str, shape: [usize; 2], size: i64) -> Layer {
    let mut layer = plain(name, 1, 0);
    let count = shape[0].div_ceil(size as usize) * shape[1];
    layer.weight = Weight {
        dtype: DType::U4,
        groups: Some(Groups { axis: 0, size }),
        scales: vec![0.125; count],
        zeros: Some(vec![8; count]),
        ..layer.weight
    };
    layer
}

fn stored(layer: &Layer, shape: &[usize]) -> Stored {
    let count = shape.iter().product();
    let tensor = HostTensor::from_f32(shape, &numbers(count)).expect("as many");
    layer.weight.store(&tensor).expect("fits")
}

fn weight(model: Build, name: &str, shape: &[usize]) -> Build {
    let dims: Vec<i64> = shape.iter().map(|d| *d as i64).collect();
    model.floats(name, &dims, &numbers(shape.iter().product()))
}

/// Two products of one operand by one weight, one of another, and a convolution's worth of names that are taken.
fn model() -> Build {
    let model = Build::new(13).input("x", &["b", "8"]).output("y");
    let mut model = weight(weight(model, "w", &[8, 4]), "v", &[4, 4])
        .floats("w_scale", &[1], &[2.0])
        .node("MatMul x w -> a", vec![])
        .node("MatMul x w -> c", vec![])
        .node("Add a c -> s", vec![])
        .node("Mul s w_scale -> t", vec![])
        .node("Gemm t v -> y", vec![int("transB", 1)]);
    model.graph().doc_string = "kept".to_owned();
    model.0.producer_name = "a program".to_owned();
    model.0.metadata_props.push(StringStringEntryProto {
        key: "k".to_owned(),
        value: "v".to_owned(),
    });
    model
}

fn nodes(proto: &ModelProto) -> Vec<String> {
    let graph = proto.graph.as_ref().expect("a graph");
    let line = |n: &graphc_frontend::onnx::proto::NodeProto| {
        format!("{} {} -> {}", n.op_type, n.input.join(" "), n.output.join(" "))
    };
    graph.node.iter().map(line).collect()
}

fn initializers(proto: &ModelProto) -> Vec<String> {
    let graph = proto.graph.as_ref().expect("a graph");
    let line = |t: &TensorProto| format!("{} {} {:?}", t.name, t.data_type, t.dims);
    graph.initializer.iter().map(line).collect()
}

#[test]
fn nodes_and_names_of_a_quantised_file() {
    let mut file = file(&model());
    let quantised = Activation::Static {
        dtype: DType::I8,
        scale: 0.5,
        zero: -3,
    };
    let layers = ["a", "c"].map(|name| Layer {
        activation: quantised,
        ..plain(name, 1, 4)
    });
    let own = plain("y", 0, 4);
    let entries = [
        (&layers[0], stored(&layers[0], &[8, 4])),
        (&layers[1], stored(&layers[1], &[8, 4])),
        (&own, stored(&own, &[4, 4])),
    ];
    let before = file.proto().clone();
    file.quantize(&entries).expect("fits");
    check(&file);
    let after = file.proto();
    assert_eq!(
        nodes(after),
        [
            "QuantizeLinear x x_scale x_zero_point -> x_quantized",
            "DequantizeLinear x_quantized x_scale x_zero_point -> x_dequantized",
            "DequantizeLinear w_i8 w_scale_2 -> w_dequantized",
            "MatMul x_dequantized w_dequantized -> a",
            "MatMul x_dequantized w_dequantized -> c",
            "Add a c -> s",
            "Mul s w_scale -> t",
            "DequantizeLinear v_i8 v_scale -> v_dequantized",
            "Gemm t v_dequantized -> y",
        ]
    );
    assert_eq!(
        initializers(after),
        [
            "w_scale 1 [1]",
            "x_scale 1 []",
            "x_zero_point 3 []",
            "w_i8 3 [8, 4]",
            "w_scale_2 1 [4]",
            "v_i8 3 [4, 4]",
            "v_scale 1 [4]",
        ]
    );
    // Everything else is what it was.
    let rest = |proto: &ModelProto| {
        let mut proto = proto.clone();
        let graph = proto.graph.as_mut().expect("a graph");
        graph.initializer.clear();
        graph.node.clear();
        proto
    };
    assert_eq!(rest(after), rest(&before));
    let graph = file.import(&ImportOptions::default()).expect("imports");
    let x = HostTensor::from_f32([3, 8], &numbers(24)).expect("as many");
    assert_eq!(crate::build::evaluate(&graph, x).len(), 12);
}

#[test]
fn what_the_nodes_say_is_what_was_stored() {
    // One layer in groups, one by a run's own range: the numbers are worked out here, in f64.
    let model =
        weight(Build::new(21).input("x", &["b", "8"]).output("y"), "w", &[8, 4]).node("MatMul x w -> y", vec![]);
    let tensor = HostTensor::from_f32([8, 4], &numbers(32)).expect("as many");
    let x = HostTensor::from_f32([2, 8], &numbers(80)[64..]).expect("as many");
    for (layer, dynamic) in [(grouped("y", [8, 4], 4), false), (plain("y", 1, 4), true)] {
        let layer = Layer {
            activation: if dynamic {
                Activation::Dynamic
            } else {
                Activation::Float
            },
            ..layer
        };
        let mut file = file(&model);
        file.quantize(&[(&layer, stored(&layer, &[8, 4]))]).expect("fits");
        check(&file);
        let graph = file.import(&ImportOptions::default()).expect("imports");
        let got = crate::build::evaluate(&graph, x.clone());
        let zero = if layer.weight.zeros.is_some() { 8.0 } else { 0.0 };
        let (low, high) = if zero > 0.0 { (0.0, 15.0) } else { (-128.0, 127.0) };
        let scale = f64::from(layer.weight.scales[0]);
        let w = |k: usize, n: usize| {
            let number = f64::from(numbers(32)[k * 4 + n]);
            (((number / scale).round_ties_even() + zero).clamp(low, high) - zero) * scale
        };
        let xs: Vec<f64> = x.to_f64();
        let (least, most) = xs.iter().fold((0f64, 0f64), |(l, h), v| (l.min(*v), h.max(*v)));
        let step = (most - least) / 255.0;
        let point = (-least / step).round_ties_even();
        let used = |v: f64| match dynamic {
            true => (((v / step).round_ties_even() + point).clamp(0.0, 255.0) - point) * step,
            false => v,
        };
        for row in 0..2 {
            for n in 0..4 {
                let sum: f64 = (0..8).map(|k| used(xs[row * 8 + k]) * w(k, n)).sum();
                let off = (f64::from(got[row * 4 + n]) - sum).abs();
                assert!(off < 1e-5, "{:?} {row} {n}: {off}", layer.weight.dtype);
            }
        }
        assert_eq!(tensor.elements(), 32);
    }
}

#[test]
fn layers_that_a_file_has_no_place_for_are_refused() {
    let mut model = model();
    model.graph().node.push(crate::build::node("Twice x -> z", vec![]));
    let mut twin = crate::build::node("MatMul x w -> u", vec![]);
    twin.name = "c".to_owned();
    model.graph().node.push(twin);
    model.0.functions.push(FunctionProto {
        name: "Twice".to_owned(),
        ..FunctionProto::default()
    });
    let file = file(&model);
    for (layer, shape, says) in [
        ("inside", [8, 4], "inside a function"),
        ("a#2", [8, 4], "one of several"),
        ("c", [8, 4], "several nodes have its name"),
        ("s", [8, 4], "Add nodes have no quantised form"),
        ("z", [8, 4], "Twice nodes have no quantised form"),
        ("a", [4, 8], "another shape in the file"),
    ] {
        let reason = file.refuses(layer, &shape).expect("refused");
        assert!(reason.contains(says), "{layer}: {reason}");
    }
    assert_eq!(file.refuses("a", &[8, 4]), None);
    let mut changed = file.clone();
    let absent = plain("inside", 1, 4);
    let error = changed
        .quantize(&[(&absent, stored(&absent, &[8, 4]))])
        .expect_err("no such layer");
    assert!(
        matches!(&error, EditError::Layer { layer, .. } if layer == "inside"),
        "{error}"
    );
    assert_eq!(changed.proto(), file.proto(), "nothing changes with an error");
}

#[test]
fn weights_that_others_read_stay() {
    let model = weight(
        Build::new(13).input("x", &["b", "4"]).output("y").output("w"),
        "w",
        &[4, 4],
    )
    .node("Transpose w -> u", vec![ints("perm", &[1, 0])])
    .node("MatMul x u -> p", vec![])
    .node("MatMul p u -> y", vec![]);
    let layer = |name| plain(name, 1, 4);
    let (p, y) = (layer("p"), layer("y"));
    let mut file = file(&model);
    file.quantize(&[(&p, stored(&p, &[4, 4]))]).expect("fits");
    let names = |file: &ModelFile| nodes(file.proto()).join("; ") + &initializers(file.proto()).join("; ");
    assert!(names(&file).contains("Transpose"), "the second product reads it");
    file.quantize(&[(&y, stored(&y, &[4, 4]))]).expect("fits");
    let left = names(&file);
    check(&file);
    assert!(!left.contains("Transpose"), "{left}");
    assert!(left.contains("w 1 [4, 4]"), "an output of the model reads it: {left}");
}

/// The output `z` of a model before and after a product beside it asks for an operator set.
fn raised(opset: i64, to: i64, dims: &[&str], op: &str, attributes: Vec<AttributeProto>) {
    let model = |file: &ModelFile| {
        let graph = file.import(&ImportOptions::default()).expect("imports");
        let sizes: Vec<usize> = dims.iter().map(|d| d.parse().expect("a size")).collect();
        let inputs = IndexMap::from([
            (
                "x".to_owned(),
                HostTensor::from_f32(sizes.clone(), &numbers(sizes.iter().product())).expect("as many"),
            ),
            (
                "p".to_owned(),
                HostTensor::from_f32([1, 8], &numbers(8)).expect("as many"),
            ),
        ]);
        let outputs = ir::graph::eval::evaluate(&graph, &inputs).expect("evaluates");
        outputs.into_iter().filter(|(name, _)| name != "q").collect::<Vec<_>>()
    };
    let mut build = weight(Build::new(opset).input("x", dims).input("p", &["1", "8"]), "w", &[8, 4])
        .node(op, attributes)
        .node("MatMul p w -> q", vec![]);
    let outputs: Vec<String> = op
        .split("-> ")
        .nth(1)
        .expect("outputs")
        .split(' ')
        .map(str::to_owned)
        .collect();
    for name in outputs.into_iter().chain(["q".to_owned()]) {
        build = build.output(&name);
    }
    let mut file = file(&build);
    let before = model(&file);
    let layer = match to {
        21 => grouped("q", [8, 4], 4),
        _ => plain("q", 1, 4),
    };
    file.quantize(&[(&layer, stored(&layer, &[8, 4]))]).expect(op);
    check(&file);
    assert_eq!(file.proto().opset_import[0].version, to, "{op}");
    assert!(file.proto().ir_version >= if to == 21 { 10 } else { 7 });
    assert_eq!(model(&file), before, "{op}");
}

#[test]
fn nodes_mean_the_same_under_a_later_operator_set() {
    let axes = |v: &[i64]| vec![ints("axes", v)];
    raised(11, 13, &["2", "3", "4"], "Softmax x -> z", vec![]);
    raised(11, 13, &["2", "3", "4"], "LogSoftmax x -> z", vec![int("axis", 2)]);
    raised(12, 21, &["2", "3", "4"], "Hardmax x -> z", vec![int("axis", 0)]);
    raised(12, 13, &["2", "3", "4"], "Softmax x -> z", vec![int("axis", -1)]);
    raised(11, 13, &["2", "1", "4"], "Squeeze x -> z", axes(&[1]));
    raised(11, 13, &["2", "1", "4"], "Squeeze x -> z", vec![]);
    raised(11, 21, &["2", "4"], "Unsqueeze x -> z", axes(&[0, 2]));
    raised(11, 13, &["2", "4"], "ReduceSum x -> z", axes(&[1]));
    raised(13, 21, &["2", "4"], "ReduceMean x -> z", axes(&[-1]));
    raised(13, 21, &["2", "4"], "ReduceMax x -> z", vec![int("keepdims", 0)]);
    raised(
        11,
        21,
        &["2", "5"],
        "Split x -> z u",
        vec![int("axis", 1), ints("split", &[2, 3])],
    );
    raised(11, 21, &["2", "6"], "Split x -> z u", vec![int("axis", 1)]);
    raised(10, 13, &["2", "6"], "Dropout x -> z", vec![float("ratio", 0.5)]);
    // A set that is late enough stays.
    raised(17, 17, &["2", "6"], "Softmax x -> z", vec![]);
}

#[test]
fn nodes_without_a_later_form_are_refused() {
    let build = weight(Build::new(10).input("x", &["b", "8"]).output("y"), "w", &[8, 4])
        .node("Clip x -> c", vec![float("min", 0.0), float("max", 6.0)])
        .node("MatMul c w -> y", vec![]);
    let mut file = file(&build);
    let by_column = plain("y", 1, 4);
    let error = file
        .quantize(&[(&by_column, stored(&by_column, &[8, 4]))])
        .expect_err("no form");
    let wanted = OpsetError {
        node: "c".to_owned(),
        op: "Clip".to_owned(),
        changed: 11,
        needed: 13,
        found: 10,
    };
    assert_eq!(error, EditError::Opset(wanted));
    assert!(error.to_string().contains("--per-tensor"), "{error}");
    // One scale for all asks for no more than the model has.
    let mut whole = by_column.clone();
    (whole.weight.axis, whole.weight.scales) = (None, vec![0.01]);
    file.quantize(&[(&whole, stored(&whole, &[8, 4]))]).expect("fits");
    assert_eq!(file.proto().opset_import[0].version, 10);
    check(&file);
}

#[test]
fn external_data_stay_beside_the_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut model = weight(
        weight(Build::new(13).input("x", &["b", "64"]).output("y"), "w", &[64, 64]),
        "v",
        &[64, 64],
    )
    .node("MatMul x w -> a", vec![])
    .node("MatMul a v -> y", vec![]);
    let mut bytes = Vec::new();
    for tensor in &mut model.graph().initializer {
        let entry = |key: &str, value: String| StringStringEntryProto {
            key: key.to_owned(),
            value,
        };
        tensor.external_data = vec![
            entry("location", "weights.bin".to_owned()),
            entry("offset", bytes.len().to_string()),
        ];
        tensor.data_location = 1;
        bytes.extend(
            std::mem::take(&mut tensor.float_data)
                .iter()
                .flat_map(|v| v.to_le_bytes()),
        );
    }
    std::fs::write(folder.path().join("weights.bin"), bytes).expect("written");
    std::fs::write(folder.path().join("m.onnx"), model.0.encode_to_vec()).expect("written");
    let mut file = ModelFile::read(folder.path().join("m.onnx")).expect("readable");
    let layer = plain("a", 1, 64);
    file.quantize(&[(&layer, stored(&layer, &[64, 64]))]).expect("fits");
    let out = folder.path().join("q.onnx");
    let written = file.write(&out).expect("written");
    let length = |name: &str| std::fs::metadata(folder.path().join(name)).expect("there").len();
    assert_eq!(written, length("q.onnx") + length("q.onnx.data"));
    assert!(length("q.onnx") < 2048, "{}", length("q.onnx"));
    assert_eq!(
        length("q.onnx.data"),
        64 * 64 * 5,
        "v in f32 and w in i8; 64 scales are small"
    );
    let again = ModelFile::read(&out).expect("readable");
    check(&again);
    let options = ImportOptions::default();
    assert_eq!(
        again.import(&options).expect("imports"),
        file.import(&options).expect("imports")
    );
    assert_eq!(initializers(again.proto()), initializers(file.proto()));
}

#[test]
fn old_files_list_no_weight_among_their_inputs_that_is_gone() {
    let mut model =
        weight(Build::new(13).input("x", &["b", "8"]).output("y"), "w", &[8, 4]).node("MatMul x w -> y", vec![]);
    model.0.ir_version = 3;
    let info = Build::info("w", DataType::Float, &["8", "4"]);
    model.graph().input.push(info);
    model.0.opset_import.push(OperatorSetIdProto {
        domain: "com.example".to_owned(),
        version: 2,
    });
    let mut file = file(&model);
    let layer = plain("y", 1, 4);
    file.quantize(&[(&layer, stored(&layer, &[8, 4]))]).expect("fits");
    let inputs: Vec<&str> = file
        .proto()
        .graph
        .iter()
        .flat_map(|g| &g.input)
        .map(|i| i.name.as_str())
        .collect();
    assert_eq!(inputs, ["x"]);
    check(&file);
    assert_eq!(file.proto().opset_import.len(), 2);
}
