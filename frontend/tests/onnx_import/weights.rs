//! Quantised weights stay quantised: one op from whatever the model spells, and what is refused.

use graphc_frontend::onnx::NodeProblem;
use graphc_frontend::onnx::proto::tensor_proto::DataType;
use graphc_frontend::onnx::proto::{OperatorSetIdProto, TensorProto};
use ir::HostTensor;

use super::build::{Build, evaluate, int, ops};

fn bytes(name: &str, ty: DataType, dims: &[i64], raw: &[u8]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.into(),
        data_type: ty as i32,
        raw_data: raw.to_vec().into(),
        ..TensorProto::default()
    }
}

fn with_microsoft(mut build: Build) -> Build {
    build.0.opset_import.push(OperatorSetIdProto {
        domain: "com.microsoft".into(),
        version: 1,
    });
    build
}

/// `x [1, 4] · w [4, 2]`, where `w` is `i8` in blocks of so many rows.
fn blocked(block: i64, scales: &[f32]) -> Build {
    let mut build = Build::new(21)
        .input("x", &["1", "4"])
        .floats("s", &[scales.len() as i64 / 2, 2], scales)
        .node(
            "DequantizeLinear w s -> d",
            vec![int("axis", 0), int("block_size", block)],
        )
        .node("MatMul x d -> y", vec![])
        .output("y");
    let weight: Vec<u8> = [1i8, -2, 3, -4, 5, -6, 7, -8].map(|v| v as u8).to_vec();
    build
        .graph()
        .initializer
        .push(bytes("w", DataType::Int8, &[4, 2], &weight));
    build
}

#[test]
fn a_dequantised_weight_is_one_op() {
    let graph = blocked(2, &[1.0, 2.0, 0.5, 4.0]).import().unwrap();
    assert_eq!(ops(&graph), ["dequantize", "contract"]);
    let x = || HostTensor::from_f32([1, 4], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    // (1 + 6) · 1 + (15 + 28) · 0.5; −((2 + 8) · 2 + (18 + 32) · 4).
    assert_eq!(evaluate(&graph, x()), [28.5, -220.0]);
    // The last block may be short: rows 0 to 2, and row 3.
    let graph = blocked(3, &[1.0, 2.0, 0.5, 4.0]).import().unwrap();
    assert_eq!(
        evaluate(&graph, x()),
        [1.0 + 6.0 + 15.0 + 14.0, -(28.0 * 2.0 + 32.0 * 4.0)]
    );
}

#[test]
fn blocks_that_do_not_fit_their_scales_are_refused() {
    let problem = blocked(3, &[1.0; 6]).problem();
    let told = matches!(problem, NodeProblem::Value { what: "block_size", .. });
    assert!(told && problem.to_string().contains("2 scales"), "{problem}");
    for scale in [0.0, f32::NAN, f32::INFINITY] {
        let problem = blocked(2, &[1.0, 1.0, 1.0, scale]).problem();
        assert!(
            matches!(problem, NodeProblem::Value { what: "scale", .. }),
            "{scale}: {problem}"
        );
    }
}

/// `x [1, 20]` by two columns of four bits in blocks of 16, of which the second is filled up.
fn packed(scales: [f32; 4]) -> Build {
    let attributes = vec![int("K", 20), int("N", 2), int("bits", 4), int("block_size", 16)];
    let mut build = with_microsoft(Build::new(21))
        .input("x", &["1", "20"])
        .floats("s", &[4], &scales)
        .node("com.microsoft/MatMulNBits x w s -> y", attributes)
        .output("y");
    // 9 and 7 in turn, around 8; what fills the block up counts for nothing.
    let weight: Vec<u8> = (0..32).map(|i| if i % 16 < 10 { 0x79 } else { 0xff }).collect();
    build
        .graph()
        .initializer
        .push(bytes("w", DataType::Uint8, &[2, 2, 8], &weight));
    build
}

#[test]
fn packed_weights_are_one_op_without_what_fills_them_up() {
    let graph = packed([1.0, 10.0, 2.0, 0.0]).import().unwrap();
    assert_eq!(ops(&graph), ["dequantize", "contract"]);
    let x: Vec<f32> = (0..20).map(|i| i as f32).collect();
    // Each pair gives −1: eight of them in the first block, two in the second.
    let x = HostTensor::from_f32([1, 20], &x).unwrap();
    assert_eq!(evaluate(&graph, x), [-8.0 - 20.0, -16.0]);
    for scale in [f32::NAN, f32::NEG_INFINITY] {
        let problem = packed([1.0, scale, 1.0, 1.0]).problem();
        assert!(
            matches!(problem, NodeProblem::Value { what: "scale", .. }),
            "{scale}: {problem}"
        );
    }
}
