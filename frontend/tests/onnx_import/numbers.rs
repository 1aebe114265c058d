//! What the standard says of numbers and of the order of nodes, where importers go wrong.

use graphc_frontend::onnx::proto::OperatorSetIdProto;
use graphc_frontend::onnx::proto::tensor_proto::DataType;
use graphc_frontend::onnx::{ImportError, ImportOptions, NodeProblem};
use indexmap::IndexMap;
use ir::graph::infer::Reason;
use ir::{DType, HostTensor};

use crate::build::{Build, evaluate, float, int, output_type, text};

/// "A fully-masked query row […] produces a zero output row […], not `NaN`" (Attention, opset 23).
#[test]
fn a_query_that_sees_no_key_gives_zero() {
    let model = |ty, causal: i64| {
        Build::new(23)
            .input("x", &["1", "1", "3", "2"])
            .typed_input("m", ty, &["3", "3"])
            .node(
                "Attention x x x m -> y",
                vec![float("scale", 1.0), int("is_causal", causal)],
            )
            .output("y")
            .import()
            .unwrap()
    };
    let x = HostTensor::from_f32([1, 1, 3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let never = f32::NEG_INFINITY;
    let floats = HostTensor::from_f32([3, 3], &[never, never, never, 0.0, never, never, never, never, 0.0]).unwrap();
    let bools = HostTensor::from_i64(DType::Bool, [3, 3], &[0, 0, 0, 1, 0, 0, 0, 0, 1]).unwrap();
    for (ty, mask) in [(DataType::Float, &floats), (DataType::Bool, &bools)] {
        for causal in [0, 1] {
            let inputs = IndexMap::from_iter([("x".to_owned(), x.clone()), ("m".to_owned(), mask.clone())]);
            let out = ir::graph::eval::evaluate(&model(ty, causal), &inputs).unwrap();
            assert_eq!(out["y"].to_f32(), [0.0, 0.0, 1.0, 2.0, 5.0, 6.0], "{ty:?} {causal}");
        }
        // Keys that the mask lets through may lie in the future.
        let future = match ty {
            DataType::Bool => HostTensor::from_i64(DType::Bool, [3, 3], &[0, 1, 1, 1, 1, 1, 1, 1, 1]),
            _ => HostTensor::from_f32([3, 3], &[never, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
        };
        let inputs = IndexMap::from_iter([("x".to_owned(), x.clone()), ("m".to_owned(), future.unwrap())]);
        let out = ir::graph::eval::evaluate(&model(ty, 1), &inputs).unwrap();
        assert_eq!(out["y"].to_f32()[..2], [0.0, 0.0], "{ty:?}");
    }
    // A NaN in the mask is no reason to hide anything.
    let nan = HostTensor::from_f32([3, 3], &[f32::NAN, never, never, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).unwrap();
    let inputs = IndexMap::from_iter([("x".to_owned(), x), ("m".to_owned(), nan)]);
    let out = ir::graph::eval::evaluate(&model(DataType::Float, 0), &inputs).unwrap();
    assert!(out["y"].to_f32()[0].is_nan());
}

#[test]
fn a_resized_axis_has_as_many_elements_as_the_product_in_f32() {
    for (size, scale, want) in [("10", 1.4, 14), ("10", 1.3999, 13), ("5", 0.6, 3), ("3", 2.3333333, 7)] {
        let graph = Build::new(13)
            .input("x", &["1", size])
            .floats("s", &[2], &[1.0, scale])
            .node("Resize x _ s -> y", vec![])
            .output("y")
            .import()
            .unwrap();
        assert_eq!(output_type(&graph), format!("f32[1, {want}]"), "{size} · {scale}");
    }
}

/// "It is an error if any of the index values are out of bounds."
#[test]
fn constant_indices_out_of_range_are_refused() {
    let x = || Build::new(18).input("x", &["3", "n"]).output("y");
    let reason = |model: Build| match model.problem() {
        NodeProblem::Infer(error) => *error.reason,
        other => panic!("{other:?}"),
    };
    let outside = |axis, index, size| Reason::IndexOutOfRange { axis, index, size };
    assert_eq!(
        reason(x().ints("i", &[2], &[0, 3]).node("Gather x i -> y", vec![])),
        outside(0, 3, 3)
    );
    assert_eq!(
        reason(x().ints("i", &[1], &[-4]).node("Gather x i -> y", vec![])),
        outside(0, -4, 3)
    );
    let elements = x().ints("i", &[1, 1], &[5]).node("GatherElements x i -> y", vec![]);
    assert_eq!(reason(elements), outside(0, 5, 3));
    let nd = x().ints("i", &[2, 2], &[0, 9, 4, 0]).node("GatherND x i -> y", vec![]);
    assert_eq!(reason(nd), outside(0, 4, 3));
    let scatter = x()
        .ints("i", &[1, 1], &[-5])
        .input("u", &["1", "1"])
        .node("ScatterElements x i u -> y", vec![]);
    assert_eq!(reason(scatter), outside(0, -5, 3));
    let scatter = x()
        .ints("i", &[1, 1], &[3])
        .input("u", &["1", "n"])
        .node("ScatterND x i u -> y", vec![]);
    assert_eq!(reason(scatter), outside(0, 3, 3));
    // What may be inside stays: the other axis has no known size.
    for fine in [
        x().ints("i", &[2], &[-3, 2]).node("Gather x i -> y", vec![]),
        x().ints("i", &[2], &[-9, 7])
            .node("Gather x i -> y", vec![int("axis", 1)]),
    ] {
        fine.import().unwrap();
    }
}

/// Some converters append the casts that earlier nodes read.
#[test]
fn nodes_out_of_order_are_sorted() {
    let model = |texts: [&str; 3]| {
        let build = Build::new(17).input("x", &["2"]);
        texts
            .iter()
            .fold(build, |build, text| build.node(text, vec![]))
            .output("y")
    };
    let inputs = HostTensor::from_f32([2], &[-1.0, 2.0]).unwrap();
    let sorted = model(["Abs x -> a", "Neg a -> b", "Add a b -> y"]).import().unwrap();
    for order in [
        ["Add a b -> y", "Neg a -> b", "Abs x -> a"],
        ["Neg a -> b", "Add a b -> y", "Abs x -> a"],
    ] {
        let graph = model(order).import().unwrap();
        assert_eq!(graph.to_string(), sorted.to_string());
        assert_eq!(evaluate(&graph, inputs.clone()), [0.0, 0.0]);
    }
    let circle = model(["Add x b -> a", "Neg a -> b", "Add a b -> y"]).import();
    let Err(ImportError::Node(error)) = circle else {
        panic!("{circle:?}")
    };
    assert_eq!((error.node.as_str(), error.op.as_str()), ("b", "Neg"));
    assert!(matches!(&error.problem, NodeProblem::Circle { index: 0, name } if name == "a"));
    assert!(matches!(
        model(["Add y x -> y", "Neg y -> b", "Abs b -> c"]).problem(),
        NodeProblem::Circle { index: 0, .. }
    ));
}

#[test]
fn scales_that_nothing_can_be_divided_by_are_refused() {
    for (op, inputs) in [("QuantizeLinear", "x s"), ("com.microsoft/QLinearSigmoid", "q s _ s z")] {
        for scale in [0.0, f32::NAN, f32::INFINITY] {
            let mut build = Build::new(21)
                .input("x", &["3"])
                .typed_input("q", DataType::Uint8, &["3"])
                .typed_input("z", DataType::Uint8, &[])
                .floats("s", &[], &[scale])
                .node(&format!("{op} {inputs} -> y"), vec![])
                .output("y");
            build.0.opset_import.push(OperatorSetIdProto {
                domain: "com.microsoft".into(),
                version: 1,
            });
            let problem = build.problem();
            assert!(
                matches!(problem, NodeProblem::Value { what: "scale", .. }),
                "{op} {scale}: {problem}"
            );
        }
    }
}

/// An empty batch, and a cache that is empty at the first step of a decoder.
#[test]
fn sizes_may_be_zero() {
    let model = Build::new(18)
        .input("x", &["n", "2"])
        .floats("w", &[1, 2], &[1.0, 2.0])
        .node("Concat x w -> a", vec![int("axis", 0)])
        .node("ReduceSum a -> y", vec![int("keepdims", 0)])
        .output("y");
    let x = |n: usize| HostTensor::from_f32([n, 2], &vec![1.0; 2 * n]).unwrap();
    for size in ["n=0..", "n=0..4", "n=0"] {
        let options = ImportOptions::default().size(size).unwrap();
        let graph = model.import_with(&options).unwrap();
        assert_eq!(evaluate(&graph, x(0)), [3.0], "{size}");
        if size != "n=0" {
            assert_eq!(evaluate(&graph, x(3)), [9.0], "{size}");
        }
    }
    assert!(ImportOptions::default().size("n=-1..").is_err());
}

fn computed<const N: usize>(graph: &ir::Graph, inputs: [(&str, HostTensor); N]) -> HostTensor {
    let inputs = inputs.map(|(name, tensor)| (name.to_owned(), tensor));
    ir::graph::eval::evaluate(graph, &inputs.into_iter().collect()).unwrap()["y"].clone()
}

/// Attributes are floats whatever the tensor's type: none is cut to an integer before it is used.
#[test]
fn float_attributes_keep_their_fractions_on_integers() {
    let values = [7, -7, 0, 2, -1];
    let cases: &[(&str, &[(&str, f32)], [i64; 5])] = &[
        ("Shrink", &[("bias", 0.1), ("lambd", 0.5)], [6, -6, 0, 1, 0]),
        ("Shrink", &[("bias", 1.0), ("lambd", 1.5)], [6, -6, 0, 1, 0]),
        ("LeakyRelu", &[("alpha", 0.5)], [7, -3, 0, 2, 0]),
        ("ThresholdedRelu", &[("alpha", 1.5)], [7, 0, 0, 2, 0]),
        ("Elu", &[("alpha", 2.5)], [7, -2, 0, 2, -1]),
        ("HardSigmoid", &[("alpha", 0.25), ("beta", 0.6)], [1, 0, 0, 1, 0]),
    ];
    for (op, attributes, want) in cases {
        for (ty, dtype) in [(DataType::Int32, DType::I32), (DataType::Int64, DType::I64)] {
            let graph = Build::new(16)
                .typed_input("x", ty, &["5"])
                .node(
                    &format!("{op} x -> y"),
                    attributes.iter().map(|(name, v)| float(name, *v)).collect(),
                )
                .output("y")
                .import()
                .unwrap();
            let x = HostTensor::from_i64(dtype, [5], &values).unwrap();
            assert_eq!(computed(&graph, [("x", x)]).to_i64(), want, "{op} of {dtype}");
        }
    }
    let large = HostTensor::from_i64(DType::I64, [1], &[(1 << 53) + 3]).unwrap();
    let graph = Build::new(16)
        .typed_input("x", DataType::Int64, &["1"])
        .node("Shrink x -> y", vec![float("bias", 1.0)])
        .output("y");
    let out = computed(&graph.import().unwrap(), [("x", large)]);
    assert_eq!(out.to_i64(), [(1 << 53) + 2], "whole numbers stay exact");
}

#[test]
fn a_product_of_integers_is_scaled_by_fractions() {
    let graph = Build::new(13)
        .typed_input("a", DataType::Int32, &["1", "2"])
        .typed_input("b", DataType::Int32, &["2", "1"])
        .typed_input("c", DataType::Int32, &["1"])
        .node("Gemm a b c -> y", vec![float("alpha", 0.5), float("beta", 0.5)])
        .output("y")
        .import()
        .unwrap();
    let of = |shape: &[usize], v: &[i64]| HostTensor::from_i64(DType::I32, shape, v).unwrap();
    let inputs = [
        ("a", of(&[1, 2], &[3, 4])),
        ("b", of(&[2, 1], &[1, 2])),
        ("c", of(&[1], &[3])),
    ];
    // 5.5 + 1.5; each cut for itself would give 6.
    assert_eq!(computed(&graph, inputs).to_i64(), [7]);
}

#[test]
fn ranges_and_diagonals_reach_the_ends_of_64_bits() {
    for (from, limit, step, want) in [
        (i64::MIN, i64::MAX, 1 << 62, vec![i64::MIN, -(1 << 62), 0, 1 << 62]),
        (
            i64::MAX,
            i64::MIN,
            -(1 << 62),
            vec![i64::MAX, (1 << 62) - 1, -1, -(1 << 62) - 1],
        ),
        (i64::MAX - 1, i64::MAX, 1, vec![i64::MAX - 1]),
        (i64::MIN, i64::MIN + 2, 1, vec![i64::MIN, i64::MIN + 1]),
        (i64::MIN, i64::MAX, -1, vec![]),
    ] {
        let graph = Build::new(18)
            .ints("a", &[], &[from])
            .ints("b", &[], &[limit])
            .ints("c", &[], &[step])
            .node("Range a b c -> y", vec![])
            .output("y")
            .import()
            .unwrap();
        assert_eq!(computed(&graph, []).to_i64(), want, "{from}..{limit} by {step}");
    }
    let x = || HostTensor::from_f32([2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    let (all, none) = ([1.0, 2.0, 3.0, 4.0], [0.0; 4]);
    for (k, upper, want) in [
        (i64::MAX, 1, none),
        (i64::MAX, 0, all),
        (i64::MIN, 1, all),
        (i64::MIN, 0, none),
    ] {
        let graph = Build::new(18)
            .input("x", &["2", "2"])
            .ints("k", &[], &[k])
            .node("Trilu x k -> y", vec![int("upper", upper)])
            .output("y")
            .import()
            .unwrap();
        assert_eq!(computed(&graph, [("x", x())]).to_f32(), want, "{k} {upper}");
        let eye = Build::new(18)
            .input("x", &["2", "2"])
            .node("EyeLike x -> y", vec![int("k", k)])
            .output("y")
            .import()
            .unwrap();
        assert_eq!(computed(&eye, [("x", x())]).to_f32(), none, "{k}");
    }
    for (start, end, step, want) in [
        (i64::MIN, i64::MAX, i64::MAX, vec![1.0]),
        (i64::MAX, i64::MIN, i64::MIN, vec![4.0]),
        (i64::MAX, i64::MIN, -2, vec![4.0, 2.0]),
        (i64::MIN, i64::MIN, 1, vec![]),
        (i64::MAX, i64::MAX, 1, vec![]),
    ] {
        let graph = Build::new(18)
            .input("x", &["4"])
            .ints("s", &[1], &[start])
            .ints("e", &[1], &[end])
            .ints("a", &[1], &[0])
            .ints("d", &[1], &[step])
            .node("Slice x s e a d -> y", vec![])
            .output("y")
            .import()
            .unwrap();
        let x = HostTensor::from_f32([4], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(computed(&graph, [("x", x)]).to_f32(), want, "{start}..{end} by {step}");
    }
}

/// A pad without end is a size that does not fit 64 bits, not a small one.
#[test]
fn endless_pads_are_refused() {
    for (low, high) in [
        (i64::MAX, 0),
        (i64::MAX, i64::MAX),
        (i64::MIN, 0),
        (i64::MIN, i64::MIN),
        (0, i64::MIN),
    ] {
        let model = Build::new(18)
            .input("x", &["2"])
            .ints("p", &[2], &[low, high])
            .node("Pad x p -> y", vec![])
            .output("y");
        assert!(
            model.import().is_err(),
            "{low} {high}: {}",
            output_type(&model.import().unwrap())
        );
    }
}

/// As onnxruntime 1.32 has it: computed in floats, and cut to integers.
#[test]
fn means_roots_and_logarithms_of_integers_are_cut() {
    let integers = HostTensor::from_i64(DType::I64, vec![4], &[1, 2, 5, 9]).unwrap();
    for (op, wanted) in [("ReduceL2", 10.0), ("ReduceLogSum", 2.0), ("ReduceLogSumExp", 9.0)] {
        let build = Build::new(18).typed_input("x", DataType::Int64, &["n"]);
        let graph = build
            .node(&format!("{op} x -> y"), vec![])
            .output("y")
            .import()
            .unwrap();
        assert_eq!(output_type(&graph), "i64[1]");
        assert_eq!(evaluate(&graph, integers.clone()), [wanted], "{op}");
    }
    let image = HostTensor::from_i64(DType::U8, vec![1, 1, 3], &[0, 7, 255]).unwrap();
    let graph = Build::new(13)
        .typed_input("x", DataType::Uint8, &["1", "1", "3"])
        .floats("scales", &[3], &[1.0, 1.0, 2.0])
        .node("Resize x _ scales -> y", vec![text("mode", "linear")])
        .output("y")
        .import()
        .unwrap();
    assert_eq!(output_type(&graph), "u8[1, 1, 6]");
    assert_eq!(evaluate(&graph, image), [0.0, 1.0, 5.0, 69.0, 193.0, 255.0]);
}
