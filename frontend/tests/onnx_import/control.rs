//! Control flow and sequences.

use graphc_frontend::onnx::NodeProblem;
use graphc_frontend::onnx::proto::attribute_proto::AttributeType;
use graphc_frontend::onnx::proto::tensor_proto::DataType;
use graphc_frontend::onnx::proto::{AttributeProto, GraphProto, NodeProto, ValueInfoProto};
use ir::HostTensor;

use super::build::{Build, evaluate, int, node, ops, output_type};

fn named(name: &str) -> ValueInfoProto {
    ValueInfoProto {
        name: name.into(),
        ..ValueInfoProto::default()
    }
}

/// A body as an attribute.
fn body(name: &str, inputs: &[&str], nodes: Vec<NodeProto>, outputs: &[&str]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        r#type: AttributeType::Graph as i32,
        g: Some(GraphProto {
            input: inputs.iter().map(|name| named(name)).collect(),
            node: nodes,
            output: outputs.iter().map(|name| named(name)).collect(),
            ..GraphProto::default()
        }),
        ..AttributeProto::default()
    }
}

/// `x ← x + x`, which is shown after each step.
fn doubling() -> AttributeProto {
    let nodes = vec![node("Add v v -> w", vec![]), node("Identity w -> seen", vec![])];
    body("body", &["i", "go", "v"], nodes, &["go", "w", "seen"])
}

#[test]
fn a_loop_of_known_steps_is_its_body_that_often() {
    let model = |steps: i64| {
        Build::new(17)
            .input("x", &["2"])
            .ints("m", &[], &[steps])
            .node("Loop m _ x -> last all", vec![doubling()])
    };
    let x = || HostTensor::from_f32([2], &[1.0, -3.0]).unwrap();
    let last = model(3).output("last").import().unwrap();
    assert_eq!(evaluate(&last, x()), [8.0, -24.0]);
    let all = model(3).output("all").import().unwrap();
    assert_eq!(output_type(&all), "f32[3, 2]");
    assert_eq!(evaluate(&all, x()), [2.0, -6.0, 4.0, -12.0, 8.0, -24.0]);
    assert_eq!(output_type(&model(0).output("all").import().unwrap()), "f32[0, 2]");
    match model(1 << 20).output("last").problem() {
        NodeProblem::Unsupported { what } => assert!(what.contains("4096 steps"), "{what}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_loop_of_open_steps_asks_for_the_size() {
    let model = Build::new(17)
        .input("x", &["n"])
        .ints("zero", &[], &[0])
        .node("Shape x -> shape", vec![])
        .node("Gather shape zero -> m", vec![])
        .node("Loop m _ x -> y all", vec![doubling()])
        .output("y");
    match model.problem() {
        NodeProblem::Unsupported { what } => assert!(what.contains("n steps") && what.contains("--size"), "{what}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn data_may_end_a_loop_that_only_carries() {
    let nodes = vec![
        node("Add v v -> w", vec![]),
        node("ReduceMax w -> top", vec![int("keepdims", 0)]),
        node("Less top limit -> go_on", vec![]),
    ];
    let model = Build::new(17)
        .input("x", &["2"])
        .floats("limit", &[], &[5.0])
        .ints("m", &[], &[10])
        .node(
            "Loop m _ x -> y",
            vec![body("body", &["i", "go", "v"], nodes, &["go_on", "w"])],
        )
        .output("y");
    let graph = model.import().unwrap();
    assert_eq!(
        evaluate(&graph, HostTensor::from_f32([2], &[1.0, 0.5]).unwrap()),
        [8.0, 4.0]
    );
    assert_eq!(
        evaluate(&graph, HostTensor::from_f32([2], &[7.0, 1.0]).unwrap()),
        [14.0, 2.0]
    );
}

#[test]
fn a_scan_takes_slices_forwards_and_backwards() {
    let nodes = vec![node("Add s e -> t", vec![]), node("Identity t -> seen", vec![])];
    let directions = AttributeProto {
        name: "scan_input_directions".into(),
        r#type: AttributeType::Ints as i32,
        ints: vec![1],
        ..AttributeProto::default()
    };
    let model = Build::new(17)
        .input("x", &["3", "1"])
        .floats("zero", &[1], &[0.0])
        .node(
            "Scan zero x -> last all",
            vec![
                int("num_scan_inputs", 1),
                directions,
                body("body", &["s", "e"], nodes, &["t", "seen"]),
            ],
        )
        .output("all");
    let x = HostTensor::from_f32([3, 1], &[1.0, 10.0, 100.0]).unwrap();
    assert_eq!(evaluate(&model.import().unwrap(), x), [100.0, 110.0, 111.0]);
}

#[test]
fn branches_of_different_shapes_are_refused_by_what_they_give() {
    let branches = vec![
        body("then_branch", &[], vec![node("Relu x -> a", vec![])], &["a"]),
        body(
            "else_branch",
            &[],
            vec![node("ReduceMax x -> b", vec![int("keepdims", 0)])],
            &["b"],
        ),
    ];
    let model = Build::new(17)
        .input("x", &["2"])
        .typed_input("c", DataType::Bool, &[])
        .node("If c -> y", branches)
        .output("y");
    match model.problem() {
        NodeProblem::Unsupported { what } => assert!(what.contains("f32[2] or f32[]"), "{what}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sequences_are_gone_after_import() {
    let model = Build::new(17)
        .input("x", &["2"])
        .ints("last", &[], &[-1])
        .node("Neg x -> minus", vec![])
        .node("SequenceConstruct x minus -> s", vec![])
        .node("SequenceInsert s x -> longer", vec![])
        .node("SequenceErase longer last -> two", vec![])
        .node("SequenceAt two last -> picked", vec![])
        .node(
            "ConcatFromSequence two -> joined",
            vec![int("axis", 0), int("new_axis", 1)],
        )
        .node("Add joined picked -> y", vec![])
        .output("y");
    let graph = model.import().unwrap();
    assert_eq!(
        evaluate(&graph, HostTensor::from_f32([2], &[1.0, 2.0]).unwrap()),
        [0.0, 0.0, -2.0, -4.0]
    );
    let odd = Build::new(17)
        .input("x", &["2"])
        .node("SequenceConstruct x -> s", vec![])
        .node("Relu s -> y", vec![])
        .output("y");
    assert!(odd.import().is_err());
    assert!(ops(&graph).contains(&"neg"));
}
