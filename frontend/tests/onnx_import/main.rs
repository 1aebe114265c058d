//! What opsets changed, what is a typed error, and shape arithmetic, on models made here.

mod attention;
mod build;
mod control;
mod given;
mod numbers;
mod quantized;
mod schemas;
mod sizes;
mod weights;

use graphc_frontend::onnx::proto::attribute_proto::AttributeType;
use graphc_frontend::onnx::proto::tensor_proto::DataType;
use graphc_frontend::onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
};
use graphc_frontend::onnx::{ImportError, ImportOptions, NodeProblem};
use indexmap::IndexMap;
use ir::op::{Composite, View};
use ir::{HostTensor, Op};

use build::{Build, evaluate, float, int, ints, node, ops, output_type};

#[test]
fn softmax_flattens_before_opset_13() {
    let model = |opset| {
        Build::new(opset)
            .input("x", &["b", "3", "4"])
            .node("Softmax x -> y", vec![int("axis", 1)])
            .output("y")
    };
    let old = model(11).import().unwrap();
    assert_eq!(
        (ops(&old), output_type(&old)),
        (vec!["reshape", "softmax", "reshape"], "f32[b, 3, 4]".into())
    );
    let new = model(13).import().unwrap();
    assert_eq!(ops(&new), ["softmax"]);
    let axis = new.nodes().values().find_map(|n| match n.op {
        Op::Composite(Composite::Softmax { axis }) => Some(axis),
        _ => None,
    });
    assert_eq!(axis, Some(1));
    let last = Build::new(11)
        .input("x", &["b", "3"])
        .node("Softmax x -> y", vec![])
        .output("y")
        .import()
        .unwrap();
    assert_eq!(ops(&last), ["softmax"]);
}

#[test]
fn squeeze_and_reductions_take_axes_from_either_place() {
    let old = Build::new(11)
        .input("x", &["1", "b", "1"])
        .node("Squeeze x -> s", vec![ints("axes", &[0, -1])])
        .node("ReduceMean s -> y", vec![ints("axes", &[0]), int("keepdims", 0)])
        .output("y");
    let new = Build::new(18)
        .input("x", &["1", "b", "1"])
        .ints("a", &[2], &[0, -1])
        .ints("r", &[1], &[0])
        .node("Squeeze x a -> s", vec![])
        .node("ReduceMean s r -> y", vec![int("keepdims", 0)])
        .output("y");
    for model in [old, new] {
        let graph = model.import().unwrap();
        assert_eq!(
            (ops(&graph), output_type(&graph)),
            (vec!["reshape", "reduce"], "f32[]".into())
        );
    }
    let noop = Build::new(18)
        .input("x", &["3"])
        .node("ReduceSum x -> y", vec![int("noop_with_empty_axes", 1)])
        .output("y");
    assert!(ops(&noop.import().unwrap()).is_empty());
}

#[test]
fn slice_attributes_and_inputs_mean_the_same() {
    let x = || HostTensor::from_f32([5], &[0.0, 1.0, 2.0, 3.0, 4.0]).unwrap();
    let old = Build::new(9)
        .input("x", &["n"])
        .node(
            "Slice x -> y",
            vec![ints("starts", &[1]), ints("ends", &[i64::from(i32::MAX)])],
        )
        .output("y")
        .import()
        .unwrap();
    assert_eq!(
        (output_type(&old), evaluate(&old, x())),
        ("f32[n - 1]".into(), vec![1.0, 2.0, 3.0, 4.0])
    );
    let new = Build::new(13)
        .input("x", &["n"])
        .ints("s", &[1], &[-1])
        .ints("e", &[1], &[i64::MIN])
        .ints("a", &[1], &[0])
        .ints("t", &[1], &[-2])
        .node("Slice x s e a t -> y", vec![])
        .output("y")
        .import()
        .unwrap();
    assert_eq!(
        (output_type(&new), evaluate(&new, x())),
        ("f32[div(n + 1, 2)]".into(), vec![4.0, 2.0, 0.0])
    );
}

#[test]
fn clip_bounds_are_attributes_then_inputs() {
    let x = || HostTensor::from_f32([3], &[-3.0, 0.5, 9.0]).unwrap();
    let old = Build::new(6 + 1)
        .input("x", &["3"])
        .node("Clip x -> y", vec![float("min", 0.0), float("max", 6.0)])
        .output("y");
    let new = Build::new(11)
        .input("x", &["3"])
        .floats("lo", &[], &[0.0])
        .floats("hi", &[], &[6.0])
        .node("Clip x lo hi -> y", vec![])
        .output("y");
    for model in [old, new] {
        assert_eq!(evaluate(&model.import().unwrap(), x()), [0.0, 0.5, 6.0]);
    }
    let upper = Build::new(13)
        .input("x", &["3"])
        .floats("hi", &[], &[6.0])
        .node("Clip x _ hi -> y", vec![])
        .output("y");
    assert_eq!(evaluate(&upper.import().unwrap(), x()), [-3.0, 0.5, 6.0]);
}

#[test]
fn dropout_passes_through_or_leaves_elements_out_in_training() {
    let model = Build::new(7)
        .input("x", &["2"])
        .node("Dropout x -> y mask", vec![])
        .output("y");
    assert!(ops(&model.import().unwrap()).is_empty());
    let mut training = Build::new(13).input("x", &["2"]).floats("r", &[], &[0.5]);
    training.graph().initializer.push(TensorProto {
        name: "t".into(),
        data_type: DataType::Bool as i32,
        int32_data: vec![1],
        ..TensorProto::default()
    });
    let training = training.node("Dropout x r t -> y", vec![]).output("y");
    let kept = evaluate(
        &training.import().unwrap(),
        HostTensor::from_f32([2], &[1.0, 3.0]).unwrap(),
    );
    for (kept, whole) in kept.into_iter().zip([2.0, 6.0]) {
        assert!(kept == 0.0 || kept == whole, "{kept}");
    }
}

#[test]
fn batch_norm_of_elements_is_refused_and_training_takes_the_batchs_statistics() {
    let model = |opset, attribute| {
        let mut build = Build::new(opset).input("x", &["n", "2", "3"]);
        for name in ["s", "b", "m", "v"] {
            build = build.floats(name, &[2], &[1.0, 2.0]);
        }
        build.node("BatchNormalization x s b m v -> y", attribute).output("y")
    };
    assert_eq!(ops(&model(9, vec![]).import().unwrap()), ["batch_norm"]);
    assert!(model(7, vec![int("spatial", 1)]).import().is_ok());
    assert!(matches!(
        model(7, vec![int("spatial", 0)]).problem(),
        NodeProblem::Unsupported { .. }
    ));
    let training = model(15, vec![int("training_mode", 1), float("epsilon", 0.0)])
        .import()
        .unwrap();
    let x = HostTensor::from_f32([1, 2, 3], &[1.0, 2.0, 3.0, 4.0, 4.0, 7.0]).unwrap();
    let half = 1.5f32.sqrt();
    let want = [
        1.0 - half,
        1.0,
        1.0 + half,
        2.0 - 2.0 / 2f32.sqrt(),
        2.0 - 2.0 / 2f32.sqrt(),
        2.0 + 4.0 / 2f32.sqrt(),
    ];
    for (got, want) in evaluate(&training, x).into_iter().zip(want) {
        assert!((got - want).abs() < 1e-5, "{got} for {want}");
    }
}

#[test]
fn upsample_and_resize_repeat_elements() {
    let x = || HostTensor::from_f32([1, 1, 2], &[1.0, 2.0]).unwrap();
    let old = Build::new(9)
        .input("x", &["n", "1", "w"])
        .floats("s", &[3], &[1.0, 1.0, 2.0])
        .node("Upsample x s -> y", vec![])
        .output("y");
    let new = Build::new(13)
        .input("x", &["n", "1", "2"])
        .floats("s", &[3], &[1.0, 1.0, 2.0])
        .node("Resize x _ s -> y", vec![])
        .output("y");
    let old = old.import().unwrap();
    assert_eq!(
        (output_type(&old), evaluate(&old, x())),
        ("f32[n, 1, 2*w]".into(), vec![1.0, 1.0, 2.0, 2.0])
    );
    assert_eq!(evaluate(&new.import().unwrap(), x()), [1.0, 1.0, 2.0, 2.0]);
    assert!(matches!(
        Build::new(10).input("x", &["2"]).node("Upsample x -> y", vec![]).output("y").import(),
        Err(ImportError::UnknownOps(list)) if list[0].near.iter().any(|n| n.contains("Upsample (opsets 7 to 9)"))
    ));
}

/// `x.reshape(b, s, heads, -1)` as TorchScript spells it.
#[test]
fn reshape_by_computed_shape_leaves_one_view() {
    let graph = Build::new(17)
        .input("x", &["batch", "seq", "96"])
        .ints("zero", &[], &[0])
        .ints("one", &[], &[1])
        .ints("axis", &[1], &[0])
        .ints("heads", &[1], &[4])
        .ints("rest", &[1], &[-1])
        .node("Shape x -> shape", vec![])
        .node("Gather shape zero -> b", vec![])
        .node("Gather shape one -> s", vec![])
        .node("Mul b s -> rows", vec![])
        .node("Unsqueeze rows axis -> rows1", vec![])
        .node("Concat rows1 heads rest -> to", vec![int("axis", 0)])
        .node("Reshape x to -> y", vec![])
        .output("y")
        .import()
        .unwrap();
    assert_eq!(
        (ops(&graph), output_type(&graph)),
        (vec!["reshape"], "f32[batch*seq, 4, 24]".into())
    );
}

#[test]
fn a_size_that_is_needed_as_data_is_a_dim_value() {
    let graph = Build::new(17)
        .input("x", &["n", "2"])
        .node("Shape x -> y", vec![])
        .output("y")
        .import()
        .unwrap();
    assert_eq!(output_type(&graph), "i64[2]");
    let x = HostTensor::from_f32([3, 2], &[0.0; 6]).unwrap();
    assert_eq!(evaluate(&graph, x), [3.0, 2.0]);
}

#[test]
fn inputs_that_are_added_share_their_sizes() {
    let model = Build::new(17)
        .input("a", &["b1", "s"])
        .input("b", &["b2", "s"])
        .node("Add a b -> y", vec![])
        .output("y");
    let graph = model.import().unwrap();
    assert_eq!(output_type(&graph), "f32[b1, s]");
    assert_eq!(graph.symbols().len(), 2);
    let wrong = Build::new(17)
        .input("a", &["2"])
        .input("b", &["3"])
        .node("Add a b -> y", vec![])
        .output("y");
    assert!(matches!(wrong.problem(), NodeProblem::Shapes { .. }));
}

#[test]
fn a_branch_with_a_known_condition_is_inlined() {
    let branch = |op: &str, name: &str| AttributeProto {
        name: name.into(),
        r#type: AttributeType::Graph as i32,
        g: Some(GraphProto {
            node: vec![node(&format!("{op} x -> inner_{op}"), vec![])],
            output: vec![ValueInfoProto {
                name: format!("inner_{op}"),
                ..ValueInfoProto::default()
            }],
            ..GraphProto::default()
        }),
        ..AttributeProto::default()
    };
    let branches = || vec![branch("Relu", "then_branch"), branch("Sigmoid", "else_branch")];
    let model = Build::new(17)
        .input("x", &["n", "4"])
        .ints("four", &[], &[4])
        .ints("one", &[], &[1])
        .node("Shape x -> shape", vec![])
        .node("Gather shape one -> size", vec![])
        .node("Equal size four -> same", vec![])
        .node("If same -> y", branches())
        .output("y");
    assert_eq!(ops(&model.import().unwrap()), ["relu"]);
    let data = Build::new(17)
        .input("x", &["n"])
        .typed_input("c", DataType::Bool, &[])
        .node("If c -> y", branches())
        .output("y");
    assert_eq!(ops(&data.import().unwrap()), ["relu", "sigmoid", "select"]);
}

#[test]
fn local_functions_are_inlined_with_their_attributes() {
    let mut model = Build::new(17)
        .input("x", &["n"])
        .node("my/Leak x -> y", vec![float("slope", 0.5)])
        .output("y");
    let alpha = AttributeProto {
        name: "alpha".into(),
        ref_attr_name: "slope".into(),
        r#type: AttributeType::Float as i32,
        ..AttributeProto::default()
    };
    model.0.functions.push(FunctionProto {
        name: "Leak".into(),
        domain: "my".into(),
        input: vec!["a".into()],
        output: vec!["b".into()],
        attribute: vec!["slope".into()],
        node: vec![node("LeakyRelu a -> b", vec![alpha])],
        opset_import: vec![OperatorSetIdProto {
            domain: String::new(),
            version: 16,
        }],
        ..FunctionProto::default()
    });
    let graph = model.import().unwrap();
    assert_eq!(
        evaluate(&graph, HostTensor::from_f32([2], &[-2.0, 2.0]).unwrap()),
        [-1.0, 2.0]
    );
    // A function that calls itself ends in an error, not in a loop.
    model.0.functions[0].node = vec![node("my/Leak a -> b", vec![])];
    assert!(matches!(model.problem(), NodeProblem::TooDeep { .. }));
}

#[test]
fn all_unknown_ops_are_named_at_once() {
    let model = Build::new(17)
        .input("x", &["n"])
        .node("Sofmax x -> a", vec![])
        .node("acme/Gadget a -> y", vec![])
        .node("Unused x -> z", vec![])
        .output("y");
    let Err(ImportError::UnknownOps(list)) = model.import() else {
        panic!()
    };
    let mut names: Vec<&str> = list.iter().map(|u| u.op.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["Gadget", "Sofmax"], "the unused node does not matter");
    let message = model.import().unwrap_err().to_string();
    assert!(
        message.contains("Sofmax (domain ai.onnx, opset 17) at node \"a\"; supported nearby: Softmax"),
        "{message}"
    );
}

#[test]
fn mistakes_are_typed() {
    let x = |opset| Build::new(opset).input("x", &["n", "4"]);
    let bad = |model: Build| model.output("y").problem();
    assert_eq!(
        bad(x(17).node("Relu _ -> y", vec![])),
        NodeProblem::MissingInput { index: 0 }
    );
    assert!(matches!(
        bad(x(17).node("Relu q -> y", vec![])),
        NodeProblem::UndefinedInput { index: 0, .. }
    ));
    assert!(matches!(
        bad(x(17).node("Concat x x -> y", vec![])),
        NodeProblem::MissingAttribute { .. }
    ));
    assert!(matches!(
        bad(x(17).node("Concat x x -> y", vec![float("axis", 1.0)])),
        NodeProblem::AttributeType { .. }
    ));
    assert!(matches!(
        bad(x(17).node("Concat x x -> y", vec![int("axis", 7)])),
        NodeProblem::Axis { axis: 7, rank: 2 }
    ));
    assert!(matches!(
        bad(x(17).ints("i", &[1], &[1]).node("Add x i -> y", vec![])),
        NodeProblem::TypesDiffer { .. }
    ));
    assert!(matches!(
        bad(x(17).node("Transpose x -> y", vec![ints("perm", &[0, 0])])),
        NodeProblem::AttributeValue { .. }
    ));
    assert!(matches!(
        bad(x(17)
            .typed_input("s", DataType::Int64, &["2"])
            .node("Reshape x s -> y", vec![])),
        NodeProblem::NotKnown { index: 1, .. }
    ));
    assert!(matches!(
        bad(x(17).node("Relu x -> y z", vec![])),
        NodeProblem::OutputCount { .. }
    ));
    assert!(matches!(
        bad(x(17).ints("s", &[2], &[-1, -1]).node("Reshape x s -> y", vec![])),
        NodeProblem::Shapes { .. }
    ));
    assert!(matches!(
        x(99).output("x").import(),
        Err(ImportError::Opset { found: 99, .. })
    ));
    assert!(matches!(x(17).import(), Err(ImportError::NoOutputs)));
    assert!(matches!(x(17).output("q").import(), Err(ImportError::Output { .. })));
    // As onnxruntime does, a name that is listed twice is one output.
    let twice = x(17).output("x").output("x").import().unwrap();
    assert_eq!(twice.outputs().len(), 1);
    let options = ImportOptions::default().size("m=3").unwrap();
    assert!(matches!(
        x(17).output("x").import_with(&options),
        Err(ImportError::UnknownSize { .. })
    ));
}

#[test]
fn initializers_that_are_listed_as_inputs_are_weights() {
    let model = Build::new(9)
        .input("x", &["2"])
        .input("w", &["2"])
        .floats("w", &[2], &[1.0, 2.0])
        .node("Add x w -> y", vec![])
        .output("y");
    let graph = model.import().unwrap();
    assert_eq!(graph.inputs().len(), 1);
    assert_eq!(graph.constants().len(), 1);
    let views = graph
        .nodes()
        .values()
        .filter(|n| matches!(n.op, Op::View(View::Reshape(_))))
        .count();
    assert_eq!(views, 0);
}

/// Sizes that multiply: a file of a few hundred bytes once asked for gigabytes.
#[test]
fn sizes_that_multiply_are_computed_as_data_or_refused() {
    let squares = |count: usize| {
        let mut build = Build::new(17)
            .input("x", &["a", "b"])
            .node("Shape x -> s", vec![])
            .node("ReduceSum s -> t0", vec![int("keepdims", 1)]);
        for i in 0..count {
            build = build.node(&format!("Mul t{i} t{i} -> t{}", i + 1), vec![]);
        }
        build
    };
    let graph = squares(5).output("t5").import().unwrap();
    let x = HostTensor::from_f32([1, 2], &[0.0; 2]).unwrap();
    assert_eq!(evaluate(&graph, x), [3f32.powi(32)]);
    squares(30).output("t30").import().unwrap();
    // What was not folded is no shape; what was, is one as long as the number of elements is an expression to work
    // with.
    let shaped = |count, copies: &str| {
        squares(count)
            .node(&format!("Concat {copies} -> shape"), vec![int("axis", 0)])
            .node("ConstantOfShape shape -> y", vec![])
            .output("y")
            .problem()
    };
    assert!(matches!(shaped(30, "t30"), NodeProblem::NotKnown { .. }));
    assert!(matches!(
        shaped(4, "t4 t4 t4 t4 t4 t4"),
        NodeProblem::LargeSizes { rank: 6 }
    ));
}

fn tensor(name: &str, ty: DataType, values: &[i32]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: vec![],
        data_type: ty as i32,
        int32_data: values.into(),
        ..TensorProto::default()
    }
}

#[test]
fn quantising_to_small_floats_saturates_unless_told_otherwise() {
    let model = |ty: DataType, attributes| {
        let mut build = Build::new(23)
            .input("x", &["4"])
            .floats("scale", &[], &[1.0])
            .node("QuantizeLinear x scale zero -> q", attributes)
            .node("Cast q -> y", vec![int("to", 1)])
            .output("y");
        build.graph().initializer.push(tensor("zero", ty, &[0]));
        build
    };
    let x = || HostTensor::from_f32([4], &[1e6, -1e6, 3.0, 0.0]).unwrap();
    for (ty, largest) in [
        (DataType::Float8e5m2, 57344.0),
        (DataType::Float8e5m2fnuz, 57344.0),
        (DataType::Float8e4m3fn, 448.0),
        (DataType::Float8e4m3fnuz, 240.0),
    ] {
        let graph = model(ty, vec![]).import().unwrap();
        assert_eq!(evaluate(&graph, x()), [largest, -largest, 3.0, 0.0], "{ty:?}");
    }
    let graph = model(DataType::Float8e5m2, vec![int("saturate", 0)]).import().unwrap();
    assert_eq!(evaluate(&graph, x())[..2], [f32::INFINITY, f32::NEG_INFINITY]);
    let graph = model(DataType::Float8e4m3fn, vec![int("saturate", 0)])
        .import()
        .unwrap();
    let found = evaluate(&graph, x());
    assert!(found[0].is_nan() && found[1].is_nan(), "{found:?}");
    assert_eq!(found[2..], [3.0, 0.0]);
    // The zero point's type, and another stated one.
    let uint8 = DataType::Uint8 as i64;
    model(DataType::Uint8, vec![int("output_dtype", uint8)])
        .import()
        .unwrap();
    for code in [DataType::Int8 as i64, DataType::Int32 as i64, 99] {
        let problem = model(DataType::Uint8, vec![int("output_dtype", code)]).problem();
        assert!(
            matches!(
                problem,
                NodeProblem::AttributeValue { .. } | NodeProblem::UnknownElementType { .. }
            ),
            "{problem}"
        );
    }
    // 2049 / 1 rounds to 2048 in f16.
    let exact = |attributes| {
        let graph = model(DataType::Int16, attributes).import().unwrap();
        evaluate(&graph, HostTensor::from_f32([4], &[2049.0; 4]).unwrap())[0]
    };
    assert_eq!((exact(vec![]), exact(vec![int("precision", 10)])), (2049.0, 2048.0));
    assert!(matches!(
        model(DataType::Int16, vec![int("precision", 7)]).problem(),
        NodeProblem::AttributeValue { .. }
    ));
    // The way back, in the type that is asked for.
    let mut back = Build::new(23)
        .input("x", &["1"])
        .floats("scale", &[], &[0.1])
        .node("QuantizeLinear x scale zero -> q", vec![])
        .node("DequantizeLinear q scale zero -> y", vec![int("output_dtype", 10)])
        .output("y");
    back.graph().initializer.push(tensor("zero", DataType::Uint8, &[0]));
    assert_eq!(output_type(&back.import().unwrap()), "f16[1]");
}

/// ONNX Runtime's schemas; checked against what ONNX Runtime 1.x computes for these models.
#[test]
fn the_skip_norms_have_an_epsilon_of_their_own() {
    for op in [
        "com.microsoft/SkipLayerNormalization x s g",
        "com.microsoft/SkipSimplifiedLayerNormalization x s g",
    ] {
        let mut build = Build::new(17)
            .input("x", &["1", "1", "4"])
            .floats("s", &[1, 1, 4], &[0.0; 4])
            .floats("g", &[4], &[1.0; 4])
            .node(&format!("{op} -> y"), vec![])
            .output("y");
        build.0.opset_import.push(OperatorSetIdProto {
            domain: "com.microsoft".into(),
            version: 1,
        });
        let x = HostTensor::from_f32([1, 1, 4], &[1e-3, -1e-3, 2e-3, -2e-3]).unwrap();
        let y = evaluate(&build.import().unwrap(), x);
        for (y, want) in y.iter().zip([0.632_455_4, -0.632_455_4, 1.264_910_8, -1.264_910_8]) {
            assert!((y - want).abs() < 1e-5, "{op}: {y} for {want}");
        }
    }
}

/// `u16`, `u32` and `u64` are computed in wider types, and give the numbers of their own.
#[test]
fn unsigned_integers_keep_their_width() {
    let run = |ty: DataType, text: &str, attributes: Vec<AttributeProto>, values: &[i64]| {
        let build = Build::new(18)
            .typed_input("x", ty, &["2"])
            .node(text, attributes)
            .output("y");
        let wide = build.import().unwrap().inputs()[0].node;
        let graph = build.import().unwrap();
        let dtype = graph.node(wide).results[0].dtype;
        let inputs = IndexMap::from_iter([("x".to_owned(), HostTensor::from_i64(dtype, [2], values).unwrap())]);
        ir::graph::eval::evaluate(&graph, &inputs).unwrap()["y"].to_i64()
    };
    let to = |ty: DataType| vec![int("to", ty as i64)];
    assert_eq!(
        run(DataType::Uint16, "BitwiseNot x -> y", vec![], &[0, 5]),
        [65535, 65530]
    );
    assert_eq!(
        run(DataType::Uint32, "BitwiseNot x -> y", vec![], &[0, 5]),
        [4_294_967_295, 4_294_967_290]
    );
    assert_eq!(run(DataType::Uint16, "Add x x -> y", vec![], &[40_000, 1]), [14_464, 2]);
    assert_eq!(
        run(DataType::Uint16, "Mul x x -> y", vec![], &[65_535, 300]),
        [1, 24_464]
    );
    assert_eq!(
        run(DataType::Uint32, "Mul x x -> y", vec![], &[4_294_967_295, 3]),
        [1, 9]
    );
    assert_eq!(
        run(DataType::Uint16, "ReduceSum x -> y", vec![], &[40_000, 40_000]),
        [14_464]
    );
    let text = |name: &str, s: &str| AttributeProto {
        name: name.into(),
        s: s.as_bytes().to_vec().into(),
        r#type: AttributeType::String as i32,
        ..AttributeProto::default()
    };
    let left = vec![text("direction", "LEFT")];
    assert_eq!(run(DataType::Uint16, "BitShift x x -> y", left, &[15, 3]), [32768, 24]);
    for (from, to_type, x, want) in [
        (DataType::Int64, DataType::Uint32, -1, 4_294_967_295),
        (DataType::Int64, DataType::Uint16, 65_537, 1),
        (DataType::Int32, DataType::Uint16, -1, 65_535),
        (DataType::Int8, DataType::Uint32, -1, 4_294_967_295),
        (DataType::Uint32, DataType::Uint16, 65_538, 2),
        (DataType::Uint16, DataType::Uint64, 65_535, 65_535),
    ] {
        assert_eq!(
            run(from, "Cast x -> y", to(to_type), &[x, 7]),
            [want, 7],
            "{from:?} {to_type:?}"
        );
    }
    // The declared type goes with the numbers, through what moves them, and ends at a cast to a type of its width.
    let graph = Build::new(18)
        .typed_input("x", DataType::Uint16, &["2", "1"])
        .ints("flat", &[1], &[2])
        .node("Reshape x flat -> r", vec![])
        .node("Concat r r -> c", vec![int("axis", 0)])
        .node("BitwiseNot c -> n", vec![])
        .node("Cast x -> i", vec![int("to", DataType::Int32 as i64)])
        .node("BitwiseNot i -> m", vec![])
        .output("n")
        .output("m")
        .import()
        .unwrap();
    let x = HostTensor::from_i64(ir::DType::I32, [2, 1], &[1, 65_535]).unwrap();
    let outputs = ir::graph::eval::evaluate(&graph, &IndexMap::from_iter([("x".to_owned(), x)])).unwrap();
    assert_eq!(outputs["n"].to_i64(), [65_534, 0, 65_534, 0]);
    assert_eq!(outputs["m"].to_i64(), [-2, -65_536]);
    for (ty, op) in [
        (DataType::Uint64, "Sum x x x -> y"),
        (DataType::Uint16, "Mean x x -> y"),
        (DataType::Uint32, "CustomOfNone x -> y"),
    ] {
        let build = Build::new(18).typed_input("x", ty, &["2"]).node(op, vec![]).output("y");
        match build.import() {
            Err(ImportError::Node(error)) => {
                assert!(matches!(error.problem, NodeProblem::Unsupported { .. }), "{error}");
                assert!(
                    error
                        .to_string()
                        .contains(if ty == DataType::Uint64 { "u64" } else { "u16" }),
                    "{error}"
                );
            }
            Err(ImportError::UnknownOps(_)) => assert!(op.starts_with("Custom")),
            other => panic!("{op}: {other:?}"),
        }
    }
}

#[test]
fn absurd_attributes_are_refused_by_the_nodes_name() {
    let lrn = |size: i64| {
        Build::new(17)
            .input("x", &["1", "4", "5", "5"])
            .node("LRN x -> y", vec![int("size", size)])
            .output("y")
    };
    lrn(3).import().unwrap();
    for size in [i64::MIN, -1, 0, 1 << 40, i64::MAX] {
        assert!(
            matches!(lrn(size).problem(), NodeProblem::AttributeValue { .. }),
            "{size}"
        );
    }
    let gather = |batch_dims: i64, dims: &[&str]| {
        Build::new(17)
            .input("x", &["2", "3", "4"])
            .typed_input("i", DataType::Int64, dims)
            .node("GatherND x i -> y", vec![int("batch_dims", batch_dims)])
            .output("y")
    };
    gather(1, &["2", "2"]).import().unwrap();
    for batch_dims in [i64::MIN, -1, 2, 3, i64::MAX] {
        let problem = gather(batch_dims, &["2", "2"]).problem();
        assert!(
            matches!(problem, NodeProblem::AttributeValue { .. }),
            "{batch_dims}: {problem}"
        );
    }
    for dims in [&["2", "4"][..], &["2", "n"]] {
        assert!(
            matches!(gather(0, dims).problem(), NodeProblem::Value { .. }),
            "{dims:?}"
        );
    }
    assert!(matches!(gather(0, &[]).problem(), NodeProblem::Rank { .. }));
    let sizes = Build::new(17).input("x", &["n"]).output("x");
    let mut options = ImportOptions::default();
    options
        .sizes
        .insert("n".to_owned(), graphc_frontend::onnx::Size::Fixed(-1));
    assert!(matches!(
        sizes.import_with(&options),
        Err(ImportError::SizeOption { size: -1, .. })
    ));
    assert!(ImportOptions::default().size("n=-1").is_err());
}
