//! Sizes that stay open: what a run decides, and what is computed of sizes.

use graphc_frontend::onnx::proto::AttributeProto;
use graphc_frontend::onnx::proto::GraphProto;
use graphc_frontend::onnx::proto::attribute_proto::AttributeType;
use graphc_frontend::onnx::{GivenInput, ImportOptions};
use indexmap::IndexMap;
use ir::{Graph, HostTensor};

use crate::build::{Build, evaluate, int, ints, node, ops, output_type};

/// `x` counted up from 0.
fn counted(shape: &[usize]) -> HostTensor {
    let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| i as f32).collect();
    HostTensor::from_f32(shape, &values).unwrap()
}

fn refused(graph: &Graph, shape: &[usize]) -> String {
    let inputs = IndexMap::from_iter([("x".to_owned(), counted(shape))]);
    ir::graph::eval::evaluate(graph, &inputs).unwrap_err().to_string()
}

/// `x[n]` and what becomes of its size by `nodes`, from `d` (`i64[1]`) to `v`, which `ConstantOfShape` makes a tensor
/// of.
fn sized(build: Build, nodes: &[(&str, Vec<AttributeProto>)]) -> Graph {
    let mut build = build.input("x", &["n"]).node("Shape x -> d", vec![]);
    for (text, attributes) in nodes {
        build = build.node(text, attributes.clone());
    }
    build
        .node("ConstantOfShape v -> y", vec![])
        .output("y")
        .import()
        .unwrap()
}

#[test]
fn sizes_that_need_not_be_equal_are_checked_by_the_run() {
    // As a U-Net's: half the columns, doubled, beside all of them.
    let graph = Build::new(17)
        .input("x", &["1", "2", "w"])
        .floats("scales", &[3], &[1.0, 1.0, 2.0])
        .node(
            "MaxPool x -> half",
            vec![ints("kernel_shape", &[2]), ints("strides", &[2])],
        )
        .node("Resize half _ scales -> up", vec![])
        .node("Concat up x -> y", vec![int("axis", 1)])
        .output("y")
        .import()
        .unwrap();
    assert_eq!(output_type(&graph), "f32[1, 4, w]");
    // The pool has room for a window, and the halves are all.
    assert_eq!(graph.assumptions().len(), 2);
    let y = evaluate(&graph, counted(&[1, 2, 4]));
    assert_eq!(&y[..8], [1.0, 1.0, 3.0, 3.0, 5.0, 5.0, 7.0, 7.0]);
    let error = refused(&graph, &[1, 2, 5]);
    for part in ["Concat node \"y\"", "4 is not 5", "w=5", "--size", "--shape"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    // The plan asks for both before anything else.
    let first = ir::plan::requirement::of(&graph);
    for (requirement, node) in first.iter().zip(["MaxPool node", "Concat node"]) {
        assert!(
            requirement.equal && requirement.to_string().contains(node),
            "{requirement}"
        );
    }
}

#[test]
fn a_window_that_is_larger_than_its_image_by_less_than_a_stride_is_one() {
    // Numbers of onnxruntime 1.23. What is missing of a stride or more gives no window.
    let pool = |opset: i64, text: &str, shape: &[&str], more: &[(&str, &[i64])]| {
        let single = ["count_include_pad", "p"];
        let attributes = more.iter().map(|(name, values)| match single.contains(name) {
            true => int(name, values[0]),
            false => ints(name, values),
        });
        let build = Build::new(opset).input("x", shape).node(text, attributes.collect());
        build.output("y").import().unwrap()
    };
    let row: (&str, &[i64]) = ("kernel_shape", &[2, 2]);
    let (two, padded): ((&str, &[i64]), (&str, &[i64])) = (("strides", &[2, 2]), ("count_include_pad", &[1]));
    let at = |opset, text, more: &[(&str, &[i64])]| {
        let graph = pool(opset, text, &["1", "1", "1", "5"], more);
        evaluate(&graph, counted(&[1, 1, 1, 5]))
    };
    assert_eq!(at(17, "MaxPool x -> y", &[row, two]), [1.0, 3.0]);
    assert_eq!(at(17, "AveragePool x -> y", &[row, two]), [0.5, 2.5]);
    assert_eq!(at(17, "AveragePool x -> y", &[row, two, padded]), [0.25, 1.25]);
    assert_eq!(at(19, "AveragePool x -> y", &[row, two, padded]), [0.5, 2.5]);
    assert_eq!(at(17, "LpPool x -> y", &[row, two, ("p", &[1])]), [1.0, 5.0]);
    assert!(at(17, "MaxPool x -> y", &[row]).is_empty());
    assert!(
        at(
            17,
            "MaxPool x -> y",
            &[("kernel_shape", &[4, 2]), two, ("pads", &[1, 0, 0, 0])]
        )
        .is_empty()
    );
    // Padding is part of the image; the divisor of opset 19 counts as much of it as the image had.
    let line: &[(&str, &[i64])] = &[("kernel_shape", &[4]), ("strides", &[3]), ("pads", &[1, 0]), padded];
    for (opset, mean) in [(17, 0.25), (19, 1.0 / 3.0)] {
        let y = evaluate(
            &pool(opset, "AveragePool x -> y", &["1", "1", "2"], line),
            counted(&[1, 1, 2]),
        );
        assert!(y.len() == 1 && (y[0] - mean).abs() < 1e-6, "{y:?}");
    }
    // A window with gaps that is longer than its image still is one.
    let gaps: &[(&str, &[i64])] = &[
        ("kernel_shape", &[3]),
        ("strides", &[8]),
        ("dilations", &[3]),
        ("pads", &[1, 0]),
    ];
    let y = evaluate(&pool(19, "MaxPool x -> y", &["1", "1", "4"], gaps), counted(&[1, 1, 4]));
    assert_eq!(y, [2.0]);
    let cube: &[(&str, &[i64])] = &[("kernel_shape", &[4, 2, 2]), ("strides", &[3, 1, 1])];
    let y = evaluate(
        &pool(17, "MaxPool x -> y", &["1", "1", "3", "3", "3"], cube),
        counted(&[1, 1, 3, 3, 3]),
    );
    assert_eq!(y, [22.0, 23.0, 25.0, 26.0]);
}

#[test]
fn an_open_image_is_assumed_to_have_room_for_a_window() {
    let attributes = || vec![ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])];
    let build = |h: &str| {
        let build = Build::new(17).input("x", &["1", "1", h, "w"]);
        build.node("MaxPool x -> y", attributes()).output("y")
    };
    let open = build("h").import().unwrap();
    assert_eq!(output_type(&open), "f32[1, 1, div(h, 2), div(w, 2)]");
    assert_eq!(evaluate(&open, counted(&[1, 1, 2, 5])), [6.0, 8.0]);
    let error = refused(&open, &[1, 1, 1, 5]);
    for part in [
        "MaxPool node \"y\"",
        "axis 2 of the image",
        "1 is not 2",
        "h=1",
        "--size",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
    // Compiled for the inputs of such a run, it gives what the fixed model gives.
    let mut options = ImportOptions::default();
    options
        .given
        .insert("x".to_owned(), GivenInput::of(&counted(&[1, 1, 1, 5])));
    let given = build("h").import_with(&options).unwrap();
    assert_eq!(evaluate(&given, counted(&[1, 1, 1, 5])), [1.0, 3.0]);
    // An image with padding for a window of every size assumes nothing.
    let attributes = vec![ints("kernel_shape", &[3, 3]), ints("pads", &[1, 1, 1, 1])];
    let graph = Build::new(17)
        .input("x", &["1", "1", "h", "w"])
        .node("MaxPool x -> y", attributes)
        .output("y");
    assert!(graph.import().unwrap().assumptions().is_empty());
}

#[test]
fn what_is_left_of_a_reshape_is_checked_by_the_run() {
    let graph = Build::new(17)
        .input("x", &["n", "3"])
        .ints("shape", &[2], &[-1, 4])
        .node("Reshape x shape -> y", vec![])
        .output("y")
        .import()
        .unwrap();
    assert_eq!(evaluate(&graph, counted(&[8, 3])).len(), 24);
    let error = refused(&graph, &[5, 3]);
    assert!(
        error.contains("12 is not 15") || error.contains("15 is not 12"),
        "{error}"
    );
    // Of numbers it is never right.
    let never = Build::new(17)
        .input("x", &["5", "3"])
        .ints("shape", &[2], &[-1, 4])
        .node("Reshape x shape -> y", vec![])
        .output("y");
    assert!(
        never.problem().to_string().contains("no multiple"),
        "{}",
        never.problem()
    );
}

#[test]
fn pads_and_slices_of_either_sign_clamp() {
    let open = |node_text: &str| {
        Build::new(17)
            .input("x", &["n"])
            .ints("six", &[1], &[6])
            .ints("zero", &[1], &[0])
            .node("Shape x -> d", vec![])
            .node("Sub six d -> k", vec![])
            .node("Sub d six -> end", vec![])
            .node("Concat zero k -> pads", vec![int("axis", 0)])
            .node(node_text, vec![])
            .output("y")
            .import()
            .unwrap()
    };
    let padded = open("Pad x pads -> y");
    assert_eq!(evaluate(&padded, counted(&[4])), [0.0, 1.0, 2.0, 3.0, 0.0, 0.0]);
    assert_eq!(evaluate(&padded, counted(&[8])), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let cut = open("Slice x zero end -> y");
    assert_eq!(evaluate(&cut, counted(&[8])), [0.0, 1.0]);
    // `x[0:-2]` of four.
    assert_eq!(evaluate(&cut, counted(&[4])), [0.0, 1.0]);
    assert_eq!(evaluate(&cut, counted(&[2])), [] as [f32; 0]);
}

#[test]
fn sizes_go_through_floats_and_back() {
    let build = || {
        Build::new(17)
            .floats("scale", &[], &[0.75])
            .ints("eight", &[1], &[8])
            .ints("three", &[1], &[3])
    };
    let cast = |text: &'static str, to: i64| (text, vec![int("to", to)]);
    let plain = |text: &'static str| (text, vec![]);
    type Nodes = Vec<(&'static str, Vec<AttributeProto>)>;
    let cases: [(Nodes, fn(i64) -> i64); 8] = [
        (
            vec![
                cast("Cast d -> f", 1),
                plain("Mul f scale -> m"),
                plain("Floor m -> r"),
                cast("Cast r -> v", 7),
            ],
            |n| n * 3 / 4,
        ),
        (
            vec![
                cast("Cast d -> f", 1),
                plain("Div f scale -> m"),
                plain("Ceil m -> r"),
                cast("Cast r -> v", 7),
            ],
            |n| (n * 4 + 2) / 3,
        ),
        (
            vec![cast("Cast d -> f", 1), plain("Sqrt f -> m"), cast("Cast m -> v", 7)],
            |n| n.isqrt(),
        ),
        (
            vec![
                plain("Mul d d -> s"),
                cast("Cast s -> f", 1),
                plain("Sqrt f -> m"),
                cast("Cast m -> v", 7),
            ],
            |n| n,
        ),
        (
            vec![
                plain("Sub eight d -> s"),
                plain("Div s three -> q"),
                plain("Abs q -> v"),
            ],
            |n| ((8 - n) / 3).abs(),
        ),
        (
            vec![
                plain("Less d eight -> c"),
                plain("Where c d three -> w"),
                plain("Mod w three -> v"),
            ],
            |n| if n < 8 { n % 3 } else { 0 },
        ),
        (vec![plain("Min d eight -> a"), plain("Max a three -> v")], |n| {
            n.clamp(3, 8)
        }),
        (
            vec![
                plain("Greater d eight -> a"),
                plain("Equal d three -> b"),
                plain("Or a b -> c"),
                cast("Cast c -> v", 7),
            ],
            |n| i64::from(n > 8 || n == 3),
        ),
    ];
    for (nodes, wanted) in cases {
        let graph = sized(build(), &nodes);
        for n in 1..20 {
            let got = evaluate(&graph, counted(&[n])).len() as i64;
            assert_eq!(
                got,
                wanted(n as i64),
                "{:?} at {n}",
                nodes.iter().map(|(t, _)| *t).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn constants_fold_through_any_op() {
    let shaped = |nodes: &[(&str, Vec<AttributeProto>)]| {
        let mut build = Build::new(17)
            .input("x", &["4", "6"])
            .floats("nil", &[1], &[0.0])
            .floats("mask", &[5], &[0.0, 1.0, 0.0, 2.0, 3.0])
            .ints("list", &[3], &[1, 3, 2])
            .ints("one", &[1], &[1])
            .ints("zero", &[], &[0])
            .ints("minus", &[1], &[-1]);
        for (text, attributes) in nodes {
            build = build.node(text, attributes.clone());
        }
        build = build
            .node("Concat v minus -> shape", vec![int("axis", 0)])
            .node("Reshape x shape -> y", vec![])
            .output("y");
        output_type(&build.import().unwrap())
    };
    let none = Vec::new;
    assert_eq!(
        shaped(&[
            ("Cos nil -> a", none()),
            ("Log a -> b", none()),
            ("Exp b -> c", none()),
            ("Cast c -> v", vec![int("to", 7)]),
        ]),
        "f32[1, 24]"
    );
    assert_eq!(shaped(&[("TopK list one -> v i", none())]), "f32[3, 8]");
    assert_eq!(
        shaped(&[("CumSum list zero -> p", none()), ("Gather p one -> v", none())]),
        "f32[4, 6]"
    );
    assert_eq!(
        shaped(&[("ArgMax list -> a", vec![int("axis", 0)]), ("Add a one -> v", none())]),
        "f32[2, 12]"
    );
    assert_eq!(
        shaped(&[
            ("NonZero mask -> z", none()),
            ("Shape z -> s", none()),
            ("Gather s one -> v", none()),
        ]),
        "f32[3, 8]"
    );
}

#[test]
fn a_branch_on_an_open_size_is_chosen_and_checked() {
    let branch = |op: &str, name: &str| AttributeProto {
        name: name.into(),
        r#type: AttributeType::Graph as i32,
        g: Some(GraphProto {
            node: vec![node(&format!("{op} x -> inner_{op}"), vec![])],
            output: vec![Build::info(&format!("inner_{op}"), Default::default(), &[])],
            ..GraphProto::default()
        }),
        ..AttributeProto::default()
    };
    let model = Build::new(17)
        .input("x", &["n", "4"])
        .ints("zero", &[], &[0])
        .ints("one", &[], &[1])
        .node("Shape x -> shape", vec![])
        .node("Gather shape zero -> size", vec![])
        .node("Equal size one -> same", vec![])
        .node(
            "If same -> y",
            vec![branch("Relu", "then_branch"), branch("Sigmoid", "else_branch")],
        )
        .output("y");
    let graph = model.import().unwrap();
    assert_eq!(ops(&graph), ["sigmoid"]);
    let error = refused(&graph, &[1, 4]);
    assert!(
        error.contains("If node \"y\"") && error.contains("else_branch"),
        "{error}"
    );
    let mut options = ImportOptions::default();
    options.given.insert("x".into(), GivenInput::of(&counted(&[1, 4])));
    assert_eq!(ops(&model.import_with(&options).unwrap()), ["relu"]);
}

#[test]
fn the_numbers_of_given_inputs_are_known_and_checked() {
    use graphc_frontend::onnx::proto::tensor_proto::DataType;
    let model = Build::new(17)
        .typed_input("from", DataType::Int64, &[])
        .typed_input("to", DataType::Int64, &[])
        .ints("two", &[], &[2])
        .node("Range from to two -> y", vec![])
        .output("y");
    let scalar = |v: i64| HostTensor::from_i64(ir::DType::I64, Vec::new(), &[v]).unwrap();
    let mut options = ImportOptions::default();
    for (name, value) in [("from", 3), ("to", 9)] {
        options.given.insert(name.into(), GivenInput::of(&scalar(value)));
    }
    let graph = model.import_with(&options).unwrap();
    assert_eq!(output_type(&graph), "i64[3]");
    // The conditions come after what the model gives.
    let checks: Vec<bool> = graph.outputs().iter().map(|o| o.check.is_some()).collect();
    assert_eq!(checks, [false, true, true]);
    assert!(model.import().is_err());
}

#[test]
fn unnamed_sizes_are_each_their_own_and_caches_may_be_empty() {
    let graph = Build::new(17)
        .input("x", &["?", "?", "None"])
        .input("past_keys", &["?", "past"])
        .node("Relu x -> y", vec![])
        .node("Relu past_keys -> z", vec![])
        .output("y")
        .output("z")
        .import()
        .unwrap();
    assert_eq!(output_type(&graph), "f32[x_0, x_1, x_2]");
    let least = |name: &str| graph.symbols()[&ir::Symbol::new(name)].min;
    assert_eq!((least("x_0"), least("past")), (1, 0));
}

#[test]
fn a_value_of_the_model_may_be_given_by_the_run() {
    let model = Build::new(17)
        .input("x", &["2"])
        .input("w", &["2"])
        .floats("w", &[2], &[1.0, 2.0])
        .node("Add x w -> y", vec![])
        .output("y");
    let options = ImportOptions {
        overridden: vec!["w".into()],
        ..ImportOptions::default()
    };
    assert_eq!(model.import_with(&options).unwrap().inputs().len(), 2);
    assert_eq!(model.import().unwrap().inputs().len(), 1);
}

#[test]
fn arithmetic_in_a_shape_means_what_it_says() {
    let model = Build::new(17)
        .input("x", &["h", "w"])
        .node("Relu x -> y", vec![])
        .output("y");
    let options = ImportOptions::default().shape("x=[4*a, a + b]").unwrap();
    let graph = model.import_with(&options).unwrap();
    assert_eq!(graph.symbols().keys().map(|s| s.name()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(evaluate(&graph, counted(&[8, 5])).len(), 40);
    assert!(refused(&graph, &[6, 5]).contains("4*a"));
}

#[test]
fn images_of_open_size_are_padded_as_far_as_their_size_asks() {
    let graph = Build::new(17)
        .input("x", &["1", "1", "t"])
        .floats("w", &[1, 1, 3], &[1.0, 1.0, 1.0])
        .node(
            "Conv x w -> y",
            vec![
                ints("strides", &[2]),
                AttributeProto {
                    name: "auto_pad".into(),
                    s: b"SAME_UPPER".to_vec().into(),
                    r#type: AttributeType::String as i32,
                    ..AttributeProto::default()
                },
            ],
        )
        .output("y")
        .import()
        .unwrap();
    assert_eq!(output_type(&graph), "f32[1, 1, div(t + 1, 2)]");
    // An even size is padded after alone, an odd one on both sides.
    assert_eq!(evaluate(&graph, counted(&[1, 1, 4])), [3.0, 5.0]);
    assert_eq!(evaluate(&graph, counted(&[1, 1, 5])), [1.0, 6.0, 7.0]);
}

#[test]
fn many_parts_are_joined_and_summed_in_groups() {
    let names = vec!["x"; 1200].join(" ");
    let graph = Build::new(17)
        .input("x", &["1", "2"])
        .node(&format!("Concat {names} -> c"), vec![int("axis", 0)])
        .node(&format!("Sum {names} -> s"), vec![])
        .node("Add c s -> y", vec![])
        .output("y")
        .import()
        .unwrap();
    assert_eq!(output_type(&graph), "f32[1200, 2]");
    let most = graph.nodes().values().map(|n| n.operands.len()).max();
    assert_eq!(most, Some(64));
    assert_eq!(evaluate(&graph, counted(&[1, 2]))[..4], [0.0, 1201.0, 0.0, 1201.0]);
}
