//! What attention ops may ask for and is not there: each a typed error that names the attribute or input, its value and
//! the way out.

use graphc_frontend::onnx::proto::tensor_proto::DataType;
use graphc_frontend::onnx::proto::{AttributeProto, OperatorSetIdProto};
use graphc_frontend::onnx::{ImportOptions, NodeProblem};
use indexmap::IndexMap;
use ir::HostTensor;
use ir::op::{Op, View};

use super::build::{Build, float, int, ops, output_type, text};

fn contrib() -> Build {
    let mut build = Build::new(21);
    build.0.opset_import.push(OperatorSetIdProto {
        domain: "com.microsoft".into(),
        version: 1,
    });
    build
}

/// A step of four heads of queries and two of keys, 8 wide, with the node's inputs from the eighth on.
fn group_query(more: &str, attributes: Vec<AttributeProto>) -> Build {
    let mut all = vec![int("num_heads", 4), int("kv_num_heads", 2)];
    all.retain(|own| !attributes.iter().any(|a| a.name == own.name));
    all.extend(attributes);
    contrib()
        .input("q", &["b", "s", "32"])
        .input("k", &["b", "s", "16"])
        .input("pk", &["b", "2", "p", "8"])
        .input("pv", &["b", "2", "p", "8"])
        .input("t", &["64", "4"])
        .typed_input("n", DataType::Int32, &["b"])
        .ints("total", &[], &[12])
        .node(
            &format!("com.microsoft/GroupQueryAttention q k k pk pv n total {more} -> y nk nv"),
            all,
        )
        .output("y")
        .output("nk")
}

/// A total that is an input says nothing of the cache's size, which then is the given one's: a run that needs more
/// fails, once for all layers.
#[test]
fn a_total_beyond_the_room_of_the_cache_fails_the_run() {
    let mut model = group_query("", vec![]);
    model.graph().initializer.clear();
    let model = model
        .typed_input("total", DataType::Int32, &[])
        .node(
            "com.microsoft/GroupQueryAttention q k k pk pv n total -> y2 nk2 nv2",
            vec![int("num_heads", 4), int("kv_num_heads", 2)],
        )
        .output("y2");
    let mut options = ImportOptions::default();
    for (name, dims) in [
        ("q", "1, 1, 32"),
        ("k", "1, 1, 16"),
        ("pk", "1, 2, 7, 8"),
        ("pv", "1, 2, 7, 8"),
        ("n", "1"),
    ] {
        options = options.shape(&format!("{name}=[{dims}]")).unwrap();
    }
    let graph = model.import_with(&options).unwrap();
    let checks: Vec<_> = graph.outputs().iter().filter(|output| output.check.is_some()).collect();
    let [check] = checks[..] else {
        panic!("{} conditions", checks.len())
    };
    assert!(
        check.name.contains("total_sequence_length") && check.name.contains("7 positions"),
        "{}",
        check.name
    );
    let holds = |total: f64| {
        let mut inputs: IndexMap<String, HostTensor> = IndexMap::new();
        for input in graph.inputs() {
            let ty = &graph.node(input.node).results[0];
            let shape: Vec<usize> = ty
                .shape
                .as_consts()
                .unwrap()
                .iter()
                .map(|size| *size as usize)
                .collect();
            let value = if input.name == "total" { total } else { 0.0 };
            let values = vec![value; shape.iter().product()];
            let tensor = HostTensor::from_f64(ty.dtype, shape, &values).unwrap();
            inputs.insert(input.name.clone(), tensor);
        }
        let values = ir::graph::eval::evaluate_values(&graph, &inputs).unwrap();
        values[check.value.node][check.value.index as usize]
            .to_tensor()
            .unwrap()
            .to_i64()
            == [1]
    };
    assert!(holds(7.0) && !holds(8.0));
}

#[test]
fn a_cache_is_as_long_as_the_longer_of_itself_and_the_total() {
    let cache = |options: &ImportOptions| {
        let graph = group_query("", vec![]).import_with(options).unwrap();
        let pads = graph
            .nodes()
            .values()
            .filter(|node| matches!(node.op, Op::View(View::Pad { .. })));
        (graph.ty(graph.outputs()[1].value).to_string(), pads.count())
    };
    let free = ImportOptions::default();
    assert_eq!(cache(&free), ("f32[b, 2, max(0, p - 12) + 12, 8]".to_owned(), 2));
    // A cache with room is not copied.
    let room = free
        .shape("pk=[b, 2, 20, 8]")
        .unwrap()
        .shape("pv=[b, 2, 20, 8]")
        .unwrap();
    assert_eq!(cache(&room), ("f32[b, 2, 20, 8]".to_owned(), 0));
    let short = ImportOptions::default().size("p=11").unwrap();
    assert_eq!(cache(&short), ("f32[b, 2, 12, 8]".to_owned(), 2));
}

/// A table of positions would be read from memory like any mask, and kernels would score keys that it hides.
#[test]
fn masks_of_positions_are_counters() {
    let counters = |build: Build, option: &str| {
        let graph = build
            .import_with(&ImportOptions::default().size(option).unwrap())
            .unwrap();
        let keys = |op: &Op| matches!(op, Op::Iota { shape, .. } if shape.last().is_some_and(|keys| keys.is(12)));
        graph.nodes().values().filter(|node| keys(&node.op)).count()
    };
    assert_eq!(counters(group_query("", vec![]), "p=11"), 1);
    let lengths = contrib()
        .input("x", &["b", "s", "16"])
        .typed_input("n", DataType::Int32, &["b"])
        .node(
            "com.microsoft/MultiHeadAttention x x x _ n -> y",
            vec![int("num_heads", 2)],
        )
        .output("y");
    assert_eq!(counters(lengths, "s=12"), 1);
}

#[test]
fn a_prompt_without_a_past_has_no_cache_to_write() {
    let graph = group_query("", vec![]).import_with(&ImportOptions::default().size("p=0").unwrap());
    let graph = graph.unwrap();
    assert!(!ops(&graph).contains(&"scatter_elements"), "{:?}", ops(&graph));
    assert_eq!(output_type(&graph), "f32[b, s, 32]");
}

#[test]
fn group_query_attention_names_what_it_does_not_take() {
    let problem = |more: &str, attributes: Vec<AttributeProto>| group_query(more, attributes).problem().to_string();
    for (attribute, told) in [
        (
            text("k_quant_type", "PER_TENSOR"),
            "\"k_quant_type\" is \"PER_TENSOR\", but it must be \"NONE\"",
        ),
        (
            int("sliding_window_cache", 1),
            "\"sliding_window_cache\" is 1, but it must be 0",
        ),
        (int("qk_output", 1), "qk_output; export it without the scores"),
        (
            int("kv_num_heads", 3),
            "\"kv_num_heads\" is 3, but it must be a divisor of num_heads, 4",
        ),
        (int("num_heads", 0), "\"num_heads\" is 0, but it must be from 1 to 2^20"),
        (
            int("local_window_size", 0),
            "\"local_window_size\" is 0, but it must be -1 for none",
        ),
        (int("other", 1), "the attribute other of GroupQueryAttention"),
    ] {
        let name = attribute.name.clone();
        let problem = problem("", vec![attribute]);
        assert!(problem.contains(told), "{name}: {problem}");
    }
    let both = problem("", vec![int("causal", 0), int("local_window_size", 4)]);
    assert!(
        both.contains("\"local_window_size\" is 4, but it must be -1 where causal is 0"),
        "{both}"
    );
    let scales = problem("_ _ _ _ _ t", vec![]);
    assert!(scales.contains("k_scale, a cache of integers"), "{scales}");
    let norms = group_query("_ _ _ _ _ _ _ t", vec![]).problem();
    assert!(matches!(norms, NodeProblem::MissingInput { index: 15 }), "{norms}");
    let tables = group_query("", vec![int("do_rotary", 1)]).problem();
    assert!(matches!(tables, NodeProblem::MissingInput { index: 7 }), "{tables}");
}

#[test]
fn the_other_attention_ops_name_what_they_do_not_take() {
    let rotary = |attributes| {
        contrib()
            .input("x", &["b", "s", "16"])
            .typed_input("p", DataType::Int64, &["1"])
            .input("c", &["64", "4"])
            .node("com.microsoft/RotaryEmbedding x p c c -> y", attributes)
            .output("y")
    };
    let multi_head = |inputs: &str, attributes: Vec<AttributeProto>| {
        let attributes = attributes.into_iter().chain([int("num_heads", 2)]).collect();
        contrib()
            .input("x", &["b", "s", "16"])
            .input("past", &["b", "2", "p", "8"])
            .typed_input("n", DataType::Int32, &["1"])
            .node(&format!("com.microsoft/MultiHeadAttention {inputs} -> y"), attributes)
            .output("y")
    };
    for (model, told) in [
        (
            rotary(vec![int("is_packed_batching", 1)]),
            "is_packed_batching = 1 (sequences without padding in one row)",
        ),
        (rotary(vec![float("scale", 0.5)]), "\"scale\" is 0.5, but it must be 1"),
        (
            rotary(vec![int("num_heads", 3)]),
            "\"num_heads\" is 3, but it must be a divisor of 16",
        ),
        (
            multi_head("x x x _ _ _ past past n", vec![]),
            "past_sequence_length; export it without shared buffers",
        ),
        (
            multi_head("x x x _ _ _ past past _ n", vec![]),
            "cache_indirection; export it without shared buffers",
        ),
        (
            multi_head("x x x _ _ _ past", vec![]),
            "input 7 is required, but it is missing",
        ),
        (multi_head("x", vec![]), "its rank must be 5, [B, S, 2, 3, D]"),
        (
            multi_head("x x x", vec![int("do_rotary", 1)]),
            "MultiHeadAttention with do_rotary = 1",
        ),
        (
            multi_head("x x x", vec![int("other", 1)]),
            "the attribute other of MultiHeadAttention",
        ),
    ] {
        let problem = model.problem().to_string();
        assert!(problem.contains(told), "{problem}");
    }
}
