//! What an operator does not have is refused; what ONNX permits at the edges is read.

use graphc_frontend::onnx::NodeProblem;
use graphc_frontend::onnx::proto::{AttributeProto, OperatorSetIdProto};
use ir::HostTensor;

use super::build::{Build, evaluate, float, int, ints, output_type, text};

fn image(opset: i64) -> Build {
    Build::new(opset).input("x", &["1", "1", "4", "4"])
}

#[test]
fn attributes_of_other_versions_and_misspelt_ones_are_refused() {
    let unknown: [(i64, &str, AttributeProto, &str); 5] = [
        (21, "Clip x -> y", float("min", -1.0), "none"),
        (21, "Add x x -> y", int("broadcast", 1), "none"),
        (13, "Softmax x -> y", int("axs", 1), "axis"),
        (
            21,
            "MaxPool x -> y",
            ints("stride", &[2, 2]),
            "auto_pad, ceil_mode, dilations",
        ),
        (6, "Clip x -> y", float("least", 1.0), "max, min"),
    ];
    for (opset, node, attribute, has) in unknown {
        let name = attribute.name.clone();
        match image(opset).node(node, vec![attribute]).output("y").problem() {
            NodeProblem::UnknownAttribute { name: found, known } => {
                assert_eq!(found, name);
                assert!(known.starts_with(has), "{node}: {known}");
            }
            other => panic!("{node}: {other:?}"),
        }
    }
    // The version that has it reads it, and names that begin with two underscores are anyone's.
    let clipped = image(6)
        .node("Clip x -> y", vec![float("min", 2.0), int("__id", 7)])
        .output("y");
    let x = HostTensor::from_f32([1, 1, 4, 4], &[1.0; 16]).unwrap();
    assert_eq!(evaluate(&clipped.import().unwrap(), x), [2.0; 16]);
}

#[test]
fn inputs_that_the_operator_does_not_take_are_refused() {
    let problem = |node: &str| image(17).node(node, vec![]).output("y").problem();
    assert_eq!(problem("Relu x x -> y"), NodeProblem::InputCount { most: 1, given: 2 });
    assert_eq!(problem("Add x x x -> y"), NodeProblem::InputCount { most: 2, given: 3 });
    // Names left empty at the end are no inputs.
    assert!(image(17).node("Relu x _ -> y", vec![]).output("y").import().is_ok());
    assert!(image(17).node("Sum x x x -> y", vec![]).output("y").import().is_ok());
}

#[test]
fn axes_are_wrapped_around_as_often_as_it_takes() {
    let model = Build::new(19)
        .input("x", &["3"])
        .ints("p", &[2], &[4, 8])
        .node("Pad x p -> y", vec![text("mode", "wrap")])
        .output("y");
    let x = HostTensor::from_f32([3], &[0.0, 1.0, 2.0]).unwrap();
    let wanted: Vec<f32> = (-4..11).map(|i: i32| i.rem_euclid(3) as f32).collect();
    assert_eq!(evaluate(&model.import().unwrap(), x), wanted);
}

#[test]
fn axes_of_no_elements_stay() {
    let pad = Build::new(19)
        .input("x", &["0", "3"])
        .ints("p", &[4], &[0, 1, 0, 1])
        .node("Pad x p -> y", vec![text("mode", "reflect")])
        .output("y");
    assert_eq!(output_type(&pad.import().unwrap()), "f32[0, 5]");
    let resize = Build::new(19)
        .input("x", &["1", "1", "0", "2"])
        .ints("s", &[4], &[1, 1, 0, 4])
        .node("Resize x _ _ s -> y", vec![text("mode", "linear")])
        .output("y");
    assert_eq!(output_type(&resize.import().unwrap()), "f32[1, 1, 0, 4]");
}

#[test]
fn zeros_alone_are_quantised_by_a_scale_of_1() {
    let model = Build::new(17)
        .input("x", &["3"])
        .node("DynamicQuantizeLinear x -> q s z", vec![])
        .node("Div x s -> y", vec![])
        .output("y");
    let x = HostTensor::from_f32([3], &[0.0; 3]).unwrap();
    assert_eq!(evaluate(&model.import().unwrap(), x), [0.0; 3]);
}

#[test]
fn a_map_of_scores_is_their_tensor() {
    let mut model = Build::new(17).input("x", &["n", "2"]);
    model.0.opset_import.push(OperatorSetIdProto {
        domain: "ai.onnx.ml".into(),
        version: 1,
    });
    let model = model
        .node("ai.onnx.ml/ZipMap x -> y", vec![ints("classlabels_int64s", &[4, 9])])
        .output("y");
    assert_eq!(output_type(&model.import().unwrap()), "f32[n, 2]");
}
