//! What opsets changed, what is a typed error, and shape arithmetic, on models made here.

use graphc_frontend::onnx::proto::attribute_proto::AttributeType;
use graphc_frontend::onnx::proto::tensor_proto::DataType;
use graphc_frontend::onnx::proto::tensor_shape_proto::{Dimension, dimension};
use graphc_frontend::onnx::proto::type_proto::{self, Tensor};
use graphc_frontend::onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto,
};
use graphc_frontend::onnx::{ImportError, ImportOptions, NodeProblem, import_model, read_bytes};
use indexmap::IndexMap;
use ir::op::{Composite, View};
use ir::{Graph, HostTensor, Op};
use prost::Message;

/// A model under construction.
struct Build(ModelProto);

impl Build {
    fn new(opset: i64) -> Build {
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

    fn graph(&mut self) -> &mut GraphProto {
        self.0.graph.as_mut().unwrap()
    }

    fn info(name: &str, ty: DataType, dims: &[&str]) -> ValueInfoProto {
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

    fn typed_input(mut self, name: &str, ty: DataType, dims: &[&str]) -> Build {
        self.graph().input.push(Build::info(name, ty, dims));
        self
    }

    fn input(self, name: &str, dims: &[&str]) -> Build {
        self.typed_input(name, DataType::Float, dims)
    }

    fn ints(mut self, name: &str, dims: &[i64], values: &[i64]) -> Build {
        self.graph().initializer.push(TensorProto {
            name: name.into(),
            dims: dims.into(),
            data_type: DataType::Int64 as i32,
            int64_data: values.into(),
            ..TensorProto::default()
        });
        self
    }

    fn floats(mut self, name: &str, dims: &[i64], values: &[f32]) -> Build {
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
    fn node(mut self, text: &str, attributes: Vec<AttributeProto>) -> Build {
        self.graph().node.push(node(text, attributes));
        self
    }

    fn output(mut self, name: &str) -> Build {
        self.graph().output.push(ValueInfoProto {
            name: name.into(),
            ..ValueInfoProto::default()
        });
        self
    }

    fn import(&self) -> Result<Graph, ImportError> {
        self.import_with(&ImportOptions::default())
    }

    fn import_with(&self, options: &ImportOptions) -> Result<Graph, ImportError> {
        let model = read_bytes("test.onnx", self.0.encode_to_vec().into(), None).unwrap();
        let graph = import_model(&model, options)?;
        ir::graph::verify::verify(&graph).unwrap();
        Ok(graph)
    }

    fn problem(&self) -> NodeProblem {
        match self.import() {
            Err(ImportError::Node(error)) => error.problem,
            other => panic!("{other:?}"),
        }
    }
}

fn node(text: &str, attribute: Vec<AttributeProto>) -> NodeProto {
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

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        i,
        r#type: AttributeType::Int as i32,
        ..AttributeProto::default()
    }
}

fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        ints: ints.into(),
        r#type: AttributeType::Ints as i32,
        ..Default::default()
    }
}

fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        f,
        r#type: AttributeType::Float as i32,
        ..AttributeProto::default()
    }
}

fn output_type(graph: &Graph) -> String {
    graph.ty(graph.outputs()[0].value).to_string()
}

fn ops(graph: &Graph) -> Vec<&'static str> {
    graph
        .nodes()
        .values()
        .map(|n| n.op.name())
        .filter(|n| !matches!(*n, "input" | "constant"))
        .collect()
}

fn evaluate(graph: &Graph, x: HostTensor) -> Vec<f32> {
    let inputs = IndexMap::from_iter([("x".to_owned(), x)]);
    ir::graph::eval::evaluate(graph, &inputs)
        .unwrap()
        .values()
        .next()
        .unwrap()
        .to_f32()
}

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
fn dropout_passes_through_and_training_is_refused() {
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
    assert!(matches!(training.problem(), NodeProblem::Unsupported { .. }));
}

#[test]
fn batch_norm_of_elements_or_in_training_is_refused() {
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
    assert!(matches!(
        model(15, vec![int("training_mode", 1)]).problem(),
        NodeProblem::Unsupported { .. }
    ));
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
    assert!(matches!(data.problem(), NodeProblem::Unsupported { .. }));
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
        bad(x(17).ints("s", &[2], &[7, -1]).node("Reshape x s -> y", vec![])),
        NodeProblem::Shapes { .. }
    ));
    assert!(matches!(
        x(6).output("x").import(),
        Err(ImportError::Opset { found: 6, .. })
    ));
    assert!(matches!(x(17).import(), Err(ImportError::NoOutputs)));
    assert!(matches!(x(17).output("q").import(), Err(ImportError::Output { .. })));
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
