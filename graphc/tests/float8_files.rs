//! ONNX files with 8-bit floats: random chains of products between `QuantizeLinear` and `DequantizeLinear` on the CPU
//! against the evaluator, and what is said of files that cannot be right.

use graphc::frontend::onnx::proto::attribute_proto::AttributeType;
use graphc::frontend::onnx::proto::tensor_proto::DataType;
use graphc::frontend::onnx::proto::type_proto::{Tensor as TensorTypeProto, Value as TypeValue};
use graphc::frontend::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto, tensor_shape_proto,
};
use graphc::frontend::onnx::{ImportOptions, ModelFile};
use graphc::ir::convert::decode_f8;
use graphc::ir::graph::eval::evaluate;
use graphc::ir::{DType, Graph, HostTensor};
use graphc::{Session, SessionOptions};
use indexmap::IndexMap;
use prost::Message;

/// Numbers that are the same every run.
struct Random(u64);

impl Random {
    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    /// One of several.
    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A model in the making.
struct File {
    opset: i64,
    graph: GraphProto,
}

impl File {
    fn new(opset: i64, shape: &[i64]) -> File {
        let dim = |size: &i64| tensor_shape_proto::Dimension {
            value: Some(tensor_shape_proto::dimension::Value::DimValue(*size)),
            ..Default::default()
        };
        let tensor = TensorTypeProto {
            elem_type: DataType::Float as i32,
            shape: Some(TensorShapeProto {
                dim: shape.iter().map(dim).collect(),
            }),
        };
        let ty = TypeProto {
            value: Some(TypeValue::TensorType(tensor)),
            ..TypeProto::default()
        };
        let mut graph = GraphProto {
            name: "g".to_owned(),
            ..GraphProto::default()
        };
        graph.input.push(ValueInfoProto {
            name: "x".to_owned(),
            r#type: Some(ty),
            ..ValueInfoProto::default()
        });
        File { opset, graph }
    }

    fn tensor(&mut self, name: &str, ty: DataType, dims: &[i64], bytes: Vec<u8>) {
        self.graph.initializer.push(TensorProto {
            name: name.to_owned(),
            dims: dims.to_vec(),
            data_type: ty as i32,
            raw_data: bytes.into(),
            ..TensorProto::default()
        });
    }

    fn floats(&mut self, name: &str, dims: &[i64], values: &[f32]) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensor(name, DataType::Float, dims, bytes);
    }

    /// `Op a b -> c`.
    fn node(&mut self, text: &str, attributes: &[(&str, i64)]) {
        let (left, outputs) = text.split_once(" -> ").expect("outputs");
        let mut words = left.split(' ');
        let op = words.next().unwrap_or_default();
        let attribute = |(name, value): &(&str, i64)| AttributeProto {
            name: (*name).to_owned(),
            r#type: AttributeType::Int as i32,
            i: *value,
            ..AttributeProto::default()
        };
        self.graph.node.push(NodeProto {
            name: format!("{op}_{outputs}"),
            op_type: op.to_owned(),
            input: words.map(str::to_owned).collect(),
            output: vec![outputs.to_owned()],
            attribute: attributes.iter().map(attribute).collect(),
            ..NodeProto::default()
        });
    }

    fn import(mut self, output: &str) -> Result<Graph, String> {
        self.graph.output.push(ValueInfoProto {
            name: output.to_owned(),
            ..ValueInfoProto::default()
        });
        let model = ModelProto {
            ir_version: 9,
            graph: Some(self.graph),
            opset_import: vec![OperatorSetIdProto {
                version: self.opset,
                ..OperatorSetIdProto::default()
            }],
            ..ModelProto::default()
        };
        let file =
            ModelFile::from_bytes("float8.onnx", model.encode_to_vec().into(), None).map_err(|e| e.to_string())?;
        file.import(&ImportOptions::default()).map_err(|e| e.to_string())
    }
}

/// Bytes of finite numbers, none much larger than 1 after the scale that goes with them.
fn weights(random: &mut Random, dtype: DType, count: usize) -> Vec<u8> {
    let finite = |random: &mut Random| loop {
        let byte = random.below(256) as u8;
        if decode_f8(dtype, byte).is_some_and(f64::is_finite) {
            return byte;
        }
    };
    (0..count).map(|_| finite(random)).collect()
}

/// A chain of one to three layers: `Q`, `DQ`, a product by a dequantised weight, sometimes a bias and ReLU.
fn chain(random: &mut Random) -> (Graph, IndexMap<String, HostTensor>, usize) {
    let (code, dtype, largest) = random.of(&[
        (DataType::Float8e4m3fn, DType::F8E4M3FN, 448.0f32),
        (DataType::Float8e4m3fn, DType::F8E4M3FN, 448.0),
        (DataType::Float8e5m2, DType::F8E5M2, 57344.0),
    ]);
    let (rows, mut width) = (1 + random.below(20), random.of(&[7usize, 16, 33, 64]));
    let first = width;
    let mut file = File::new(random.of(&[19, 21, 23]), &[rows as i64, width as i64]);
    file.tensor("zero", code, &[], vec![0]);
    let (layers, mut at) = (1 + random.below(3), "x".to_owned());
    for layer in 0..layers {
        let next = random.of(&[5usize, 16, 31, 64]);
        file.floats(&format!("s{layer}"), &[], &[1.5 / largest * (layer as f32 + 1.0)]);
        file.node(&format!("QuantizeLinear {at} s{layer} zero -> q{layer}"), &[]);
        // A zero point of 0 may be left out.
        let zero = random.of(&["", " zero"]);
        file.node(&format!("DequantizeLinear q{layer} s{layer}{zero} -> d{layer}"), &[]);
        let turned = random.below(2) == 0;
        let dims = if turned { [next, width] } else { [width, next] };
        let bytes = weights(random, dtype, width * next);
        file.tensor(&format!("w{layer}"), code, &dims.map(|d| d as i64), bytes);
        let by_column = random.below(2) == 0;
        let scale = |random: &mut Random| (1.0 + random.below(100) as f32 / 50.0) / largest / (width as f32).sqrt();
        let scales: Vec<f32> = (0..if by_column { next } else { 1 }).map(|_| scale(random)).collect();
        let axis = i64::from(!turned);
        match by_column {
            true => file.floats(&format!("t{layer}"), &[next as i64], &scales),
            false => file.floats(&format!("t{layer}"), &[], &scales),
        }
        let text = format!("DequantizeLinear w{layer} t{layer} -> e{layer}");
        file.node(&text, &[("axis", axis)][usize::from(!by_column)..]);
        match turned {
            true => file.node(&format!("Gemm d{layer} e{layer} -> m{layer}"), &[("transB", 1)]),
            false => file.node(&format!("MatMul d{layer} e{layer} -> m{layer}"), &[]),
        }
        at = format!("m{layer}");
        if random.below(2) == 0 {
            let bias: Vec<f32> = (0..next).map(|_| random.below(100) as f32 / 100.0 - 0.5).collect();
            file.floats(&format!("b{layer}"), &[next as i64], &bias);
            file.node(&format!("Add {at} b{layer} -> a{layer}"), &[]);
            at = format!("a{layer}");
        }
        if random.below(3) == 0 {
            file.node(&format!("Relu {at} -> r{layer}"), &[]);
            at = format!("r{layer}");
        }
        width = next;
    }
    let numbers: Vec<f32> = (0..rows * first)
        .map(|_| random.below(4001) as f32 / 1000.0 - 2.0)
        .collect();
    let x = HostTensor::from_f32([rows, first], &numbers).expect("as many");
    let graph = file.import(&at).unwrap_or_else(|e| panic!("{e}"));
    (graph, IndexMap::from([("x".to_owned(), x)]), layers)
}

#[test]
fn files_are_what_the_evaluator_says() {
    let mut random = Random(31);
    let mut exact = 0;
    for round in 0..40 {
        let (graph, inputs, layers) = chain(&mut random);
        let want = evaluate(&graph, &inputs).expect("it evaluates");
        let session = Session::compile(graph.clone(), &SessionOptions::default()).expect("it compiles");
        let got = session.run(&[("x", &inputs["x"])]).expect("it runs");
        let (name, want) = want.iter().next().expect("one output");
        let (got, want) = (got[name].to_f64(), want.to_f64());
        let sum = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        let size = sum(&mut want.iter().copied()).max(1e-6);
        let error = sum(&mut got.iter().zip(&want).map(|(g, w)| g - w)) / size;
        // Of one layer nothing is rounded but the sums. Behind it, a number next to a tie may be rounded the other way,
        // which is a step of an eighth or a quarter for an element.
        let allowed = if layers == 1 { 1e-6 } else { 0.02 };
        assert!(error <= allowed, "{round}: {error} of {layers} layers\n{graph}");
        exact += usize::from(error <= 1e-6);
    }
    println!("{exact} equal to the rounding of f32");
    assert!(exact >= 30, "{exact}");
}

/// A file of one product that is right but for one thing, and what is said of it.
#[test]
fn wrong_files_are_refused_by_name() {
    struct Wrong {
        opset: i64,
        scale: Vec<f32>,
        zero: u8,
        weight_zero: Option<u8>,
        stored: DataType,
    }
    let right = || Wrong {
        opset: 19,
        scale: vec![0.5; 3],
        zero: 0,
        weight_zero: None,
        stored: DataType::Float8e4m3fn,
    };
    let import = |wrong: Wrong| {
        let mut file = File::new(wrong.opset, &[2, 4]);
        file.floats("s", &[], &wrong.scale[..1]);
        file.tensor("z", wrong.stored, &[], vec![wrong.zero]);
        file.node("QuantizeLinear x s z -> q", &[]);
        file.node("DequantizeLinear q s z -> d", &[]);
        file.tensor("w", wrong.stored, &[4, 3], vec![0x38; 12]);
        file.floats("t", &[wrong.scale.len() as i64], &wrong.scale);
        let zero = wrong.weight_zero.map_or("", |_| " v");
        if let Some(byte) = wrong.weight_zero {
            file.tensor("v", wrong.stored, &[3], vec![byte; 3]);
        }
        file.node(&format!("DequantizeLinear w t{zero} -> e"), &[("axis", 1)]);
        file.node("MatMul d e -> y", &[]);
        file.import("y")
    };
    import(right()).unwrap_or_else(|e| panic!("{e}"));
    for stored in [DataType::Float8e5m2, DataType::Float8e4m3fnuz, DataType::Float8e5m2fnuz] {
        import(Wrong { stored, ..right() }).unwrap_or_else(|e| panic!("{stored:?}: {e}"));
    }
    let one = || right();
    for (wrong, says) in [
        (
            Wrong { zero: 0x38, ..one() },
            &["QuantizeLinear", "zero point 1 of f8e4m3fn", "symmetrically"][..],
        ),
        (
            Wrong {
                weight_zero: Some(0x40),
                ..one()
            },
            &["DequantizeLinear_e", "zero point 2", "symmetrically"],
        ),
        (
            Wrong {
                scale: vec![0.0; 3],
                ..one()
            },
            &["QuantizeLinear", "scale 0", "quantise the model again"],
        ),
        (
            Wrong {
                scale: vec![f32::NAN; 3],
                ..one()
            },
            &["QuantizeLinear", "scale NaN", "other than 0"],
        ),
        (
            Wrong {
                scale: vec![1.0, f32::INFINITY, 1.0],
                ..one()
            },
            &["DequantizeLinear_e", "scale inf", "other than 0"],
        ),
        (
            Wrong {
                scale: vec![1.0; 2],
                ..one()
            },
            &["DequantizeLinear_e", "2", "3"],
        ),
        (
            Wrong { opset: 18, ..one() },
            &["QuantizeLinear", "f8e4m3fn in opset 18", "opset 19 or later"],
        ),
    ] {
        let said = import(wrong).expect_err("refused");
        for part in says {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
