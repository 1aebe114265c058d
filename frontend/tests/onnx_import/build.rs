//! Small ONNX models, built node by node.

use graphc_frontend::onnx::proto::attribute_proto::AttributeType;
use graphc_frontend::onnx::proto::tensor_proto::DataType;
use graphc_frontend::onnx::proto::tensor_shape_proto::{Dimension, dimension};
use graphc_frontend::onnx::proto::type_proto::{self, Tensor};
use graphc_frontend::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto,
};
use graphc_frontend::onnx::{ImportError, ImportOptions, NodeProblem, import_model, read_bytes};
use indexmap::IndexMap;
use ir::{Graph, HostTensor};
use prost::Message;

/// A model under construction.
pub struct Build(pub ModelProto);

impl Build {
    pub fn new(opset: i64) -> Build {
        let opset_import = vec![OperatorSetIdProto {
            domain: String::new(),
            version: opset,
        }];
        Build(ModelProto {
            ir_version: 8,
            opset_import,
            graph: Some(GraphProto::default()),
            ..ModelProto::default()
        })
    }

    pub fn graph(&mut self) -> &mut GraphProto {
        self.0.graph.as_mut().unwrap()
    }

    pub fn info(name: &str, ty: DataType, dims: &[&str]) -> ValueInfoProto {
        let dim = |d: &&str| Dimension {
            value: Some(match d.parse() {
                Ok(size) => dimension::Value::DimValue(size),
                Err(_) => dimension::Value::DimParam((*d).into()),
            }),
            ..Dimension::default()
        };
        let shape = Some(TensorShapeProto {
            dim: dims.iter().map(dim).collect(),
        });
        let value = Some(type_proto::Value::TensorType(Tensor {
            elem_type: ty as i32,
            shape,
        }));
        ValueInfoProto {
            name: name.into(),
            r#type: Some(TypeProto {
                value,
                ..TypeProto::default()
            }),
            ..Default::default()
        }
    }

    pub fn typed_input(mut self, name: &str, ty: DataType, dims: &[&str]) -> Build {
        self.graph().input.push(Build::info(name, ty, dims));
        self
    }

    pub fn input(self, name: &str, dims: &[&str]) -> Build {
        self.typed_input(name, DataType::Float, dims)
    }

    pub fn ints(mut self, name: &str, dims: &[i64], values: &[i64]) -> Build {
        self.graph().initializer.push(TensorProto {
            name: name.into(),
            dims: dims.into(),
            data_type: DataType::Int64 as i32,
            int64_data: values.into(),
            ..TensorProto::default()
        });
        self
    }

    pub fn floats(mut self, name: &str, dims: &[i64], values: &[f32]) -> Build {
        self.graph().initializer.push(TensorProto {
            name: name.into(),
            dims: dims.into(),
            data_type: DataType::Float as i32,
            float_data: values.into(),
            ..TensorProto::default()
        });
        self
    }

    /// `node("Add a b -> c", attributes)`; `_` is an input left out.
    pub fn node(mut self, text: &str, attributes: Vec<AttributeProto>) -> Build {
        self.graph().node.push(node(text, attributes));
        self
    }

    pub fn output(mut self, name: &str) -> Build {
        self.graph().output.push(ValueInfoProto {
            name: name.into(),
            ..ValueInfoProto::default()
        });
        self
    }

    pub fn import(&self) -> Result<Graph, ImportError> {
        self.import_with(&ImportOptions::default())
    }

    pub fn import_with(&self, options: &ImportOptions) -> Result<Graph, ImportError> {
        let model = read_bytes("test.onnx", self.0.encode_to_vec().into(), None).unwrap();
        let graph = import_model(&model, options)?;
        ir::graph::verify::verify(&graph).unwrap();
        Ok(graph)
    }

    pub fn problem(&self) -> NodeProblem {
        match self.import() {
            Err(ImportError::Node(error)) => error.problem,
            other => panic!("{other:?}"),
        }
    }
}

pub fn node(text: &str, attribute: Vec<AttributeProto>) -> NodeProto {
    let (left, right) = text.split_once("->").unwrap();
    let mut words = left.split_whitespace();
    let op = words.next().unwrap();
    let (domain, op) = op.rsplit_once('/').unwrap_or(("", op));
    NodeProto {
        op_type: op.into(),
        domain: domain.into(),
        input: words.map(|w| if w == "_" { String::new() } else { w.into() }).collect(),
        output: right.split_whitespace().map(str::to_owned).collect(),
        attribute,
        ..NodeProto::default()
    }
}

pub fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        i,
        r#type: AttributeType::Int as i32,
        ..AttributeProto::default()
    }
}

pub fn text(name: &str, s: &str) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        s: s.as_bytes().to_vec().into(),
        r#type: AttributeType::String as i32,
        ..AttributeProto::default()
    }
}

pub fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        ints: ints.into(),
        r#type: AttributeType::Ints as i32,
        ..Default::default()
    }
}

pub fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        f,
        r#type: AttributeType::Float as i32,
        ..AttributeProto::default()
    }
}

pub fn output_type(graph: &Graph) -> String {
    graph.ty(graph.outputs()[0].value).to_string()
}

pub fn ops(graph: &Graph) -> Vec<&'static str> {
    graph
        .nodes()
        .values()
        .map(|n| n.op.name())
        .filter(|n| !matches!(*n, "input" | "constant"))
        .collect()
}

pub fn evaluate(graph: &Graph, x: HostTensor) -> Vec<f32> {
    let inputs = IndexMap::from_iter([("x".to_owned(), x)]);
    ir::graph::eval::evaluate(graph, &inputs)
        .unwrap()
        .values()
        .next()
        .unwrap()
        .to_f32()
}
