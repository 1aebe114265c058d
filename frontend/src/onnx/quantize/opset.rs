//! Raises the operator set of a model, where quantised nodes ask for a later one.
//!
//! Most changes between versions add types or attributes whose default is the old meaning. `CHANGES` has the others, by
//! ONNX's schemas: what an attribute was and an input is now is moved, and nodes whose meaning would change are
//! refused.

use crate::onnx::proto::attribute_proto::AttributeType;
use crate::onnx::proto::tensor_proto::DataType;
use crate::onnx::proto::{AttributeProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto};
use crate::onnx::read::canonical_domain;

/// The version of a model's operator set cannot be raised.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{op} node {node:?} means something else from opset {changed} on, and the quantised nodes ask for {needed} where the model has \
     {found}; export the model for opset {needed} or later, or convert it with onnx.version_converter{}",
    if *needed == 13 { ", or quantise with --per-tensor, which asks for 10" } else { "" }
)]
pub struct OpsetError {
    pub node: String,
    pub op: String,
    pub changed: i64,
    pub needed: i64,
    pub found: i64,
}

/// What is done with a node when its op changes.
#[derive(Clone, Copy)]
enum Change {
    /// The attribute, a list of numbers, becomes input 1.
    Moved(&'static str),
    /// The attribute says nothing of a run any more and is dropped.
    Dropped(&'static str),
    /// The attribute's default was another one.
    Default(&'static str, &'static str),
    /// The axis, 1 by default, and all behind it were one: they are joined before and split behind.
    Joined,
    /// Parts are counted where no sizes are given.
    Parts,
    /// Statistics are given by nodes with more than one output.
    OneOutput,
    /// Words have other names.
    Words(&'static str, &'static [(&'static str, &'static str)]),
    /// There is no such node any more, or it means something else.
    Other,
}

use Change::{Default as Was, Dropped, Joined, Moved, OneOutput, Other, Parts, Words};

/// Op, the first version with its new meaning, and what is done.
const CHANGES: &[(&str, i64, Change)] = &[
    ("BatchNormalization", 9, Dropped("spatial")),
    ("Upsample", 9, Other),
    ("Upsample", 10, Other),
    ("Scan", 9, Other),
    ("Slice", 10, Other),
    ("TopK", 10, Other),
    ("Clip", 11, Other),
    ("Pad", 11, Other),
    ("Resize", 11, Other),
    ("Scatter", 11, Other),
    ("Dropout", 12, Dropped("ratio")),
    ("Hardmax", 13, Joined),
    ("LogSoftmax", 13, Joined),
    ("Softmax", 13, Joined),
    ("ReduceSum", 13, Moved("axes")),
    ("Split", 13, Moved("split")),
    ("Squeeze", 13, Moved("axes")),
    ("Unsqueeze", 13, Moved("axes")),
    ("BatchNormalization", 14, OneOutput),
    (
        "RoiAlign",
        16,
        Was("coordinate_transformation_mode", "output_half_pixel"),
    ),
    ("ReduceL1", 18, Moved("axes")),
    ("ReduceL2", 18, Moved("axes")),
    ("ReduceLogSum", 18, Moved("axes")),
    ("ReduceLogSumExp", 18, Moved("axes")),
    ("ReduceMax", 18, Moved("axes")),
    ("ReduceMean", 18, Moved("axes")),
    ("ReduceMin", 18, Moved("axes")),
    ("ReduceProd", 18, Moved("axes")),
    ("ReduceSumSquare", 18, Moved("axes")),
    ("Split", 18, Parts),
    ("DFT", 20, Other),
    (
        "GridSample",
        20,
        Words("mode", &[("bilinear", "linear"), ("bicubic", "cubic")]),
    ),
    ("GroupNormalization", 21, Other),
];

/// The versions of the file format that came with operator sets.
const IR_VERSIONS: [(i64, i64); 3] = [(13, 7), (19, 9), (21, 10)];

/// Raises the version of ONNX's own operator set to `needed`, where it is lower.
///
/// # Errors
/// The first node whose meaning would change.
pub(super) fn raise(model: &mut ModelProto, needed: i64) -> Result<(), OpsetError> {
    let own = |o: &&mut OperatorSetIdProto| canonical_domain(&o.domain).is_empty();
    let Some(set) = model.opset_import.iter_mut().find(own) else {
        return Ok(());
    };
    let found = set.version;
    if found >= needed {
        return Ok(());
    }
    set.version = needed;
    let format = IR_VERSIONS
        .iter()
        .filter(|(opset, _)| *opset <= needed)
        .map(|(_, ir)| *ir);
    model.ir_version = format.fold(model.ir_version, i64::max);
    match &mut model.graph {
        Some(graph) => nodes(&mut graph.node, found, needed),
        None => Ok(()),
    }
}

fn nodes(all: &mut Vec<NodeProto>, found: i64, needed: i64) -> Result<(), OpsetError> {
    let (mut raised, mut after) = (Vec::with_capacity(all.len()), Vec::new());
    for mut node in std::mem::take(all) {
        for attribute in &mut node.attribute {
            for graph in attribute.g.iter_mut().chain(&mut attribute.graphs) {
                nodes(&mut graph.node, found, needed)?;
            }
        }
        if canonical_domain(&node.domain).is_empty() {
            for (op, changed, change) in CHANGES {
                if *op != node.op_type || *changed <= found || *changed > needed {
                    continue;
                }
                let fits = apply(&mut node, *change, &mut raised, &mut after);
                if !fits {
                    return Err(OpsetError {
                        node: super::edit::name_of(&node).to_owned(),
                        op: node.op_type.clone(),
                        changed: *changed,
                        needed,
                        found,
                    });
                }
            }
        }
        raised.push(node);
        raised.append(&mut after);
    }
    *all = raised;
    Ok(())
}

/// Makes a node what it was, in the words of the later version; says no where it cannot. Nodes that it needs go before
/// and after it.
fn apply(node: &mut NodeProto, change: Change, before: &mut Vec<NodeProto>, after: &mut Vec<NodeProto>) -> bool {
    let position = |node: &NodeProto, name: &str| node.attribute.iter().position(|a| a.name == name);
    match change {
        Moved(name) => {
            let Some(at) = position(node, name) else { return true };
            let attribute = node.attribute.remove(at);
            let output = format!("{}_{name}", node.output.first().map_or("", String::as_str));
            before.push(constant(&output, attribute.ints));
            node.input.resize(1, String::new());
            node.input.push(output);
            true
        }
        Dropped(name) => {
            node.attribute.retain(|a| a.name != name);
            true
        }
        Was(name, word) => {
            if position(node, name).is_none() {
                node.attribute.push(AttributeProto {
                    name: name.to_owned(),
                    r#type: AttributeType::String as i32,
                    s: word.into(),
                    ..AttributeProto::default()
                });
            }
            true
        }
        Joined => {
            let axis = position(node, "axis").map_or(1, |at| node.attribute.remove(at).i);
            node.attribute.push(int("axis", -1));
            // Of the last axis both mean the same.
            if axis != -1 {
                join(node, axis, before, after);
            }
            true
        }
        Parts => {
            if node.input.get(1).is_none_or(String::is_empty) {
                node.attribute.push(int("num_outputs", node.output.len() as i64));
            }
            true
        }
        OneOutput => {
            let named = node.output.iter().filter(|o| !o.is_empty()).count();
            named <= 1
        }
        Words(name, words) => {
            if let Some(at) = position(node, name) {
                let attribute = &mut node.attribute[at];
                if let Some((_, new)) = words.iter().find(|(old, _)| attribute.s == old.as_bytes()) {
                    attribute.s = (*new).into();
                }
            }
            true
        }
        Other => false,
    }
}

/// `y = op(x)` as `y = Reshape(op(Flatten(x)), Shape(x))`.
fn join(node: &mut NodeProto, axis: i64, before: &mut Vec<NodeProto>, after: &mut Vec<NodeProto>) {
    let (Some(input), Some(output)) = (node.input.first().cloned(), node.output.first().cloned()) else {
        return;
    };
    let [shape, flat, result] = ["shape", "joined", "joined_result"].map(|what| format!("{output}_{what}"));
    let plain = |op: &str, inputs: &[&String], output: &String, attribute: Vec<AttributeProto>| NodeProto {
        op_type: op.to_owned(),
        name: output.clone(),
        input: inputs.iter().map(|i| (*i).clone()).collect(),
        output: vec![output.clone()],
        attribute,
        ..NodeProto::default()
    };
    before.push(plain("Shape", &[&input], &shape, Vec::new()));
    before.push(plain("Flatten", &[&input], &flat, vec![int("axis", axis)]));
    let mut back = plain("Reshape", &[&result, &shape], &output, Vec::new());
    back.name = format!("{output}_split");
    after.push(back);
    node.input[0] = flat;
    node.output[0] = result;
}

fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Int as i32,
        i: value,
        ..AttributeProto::default()
    }
}

fn constant(output: &str, values: Vec<i64>) -> NodeProto {
    let tensor = TensorProto {
        dims: vec![values.len() as i64],
        data_type: DataType::Int64 as i32,
        int64_data: values,
        ..TensorProto::default()
    };
    NodeProto {
        op_type: "Constant".to_owned(),
        name: output.to_owned(),
        output: vec![output.to_owned()],
        attribute: vec![AttributeProto {
            name: "value".to_owned(),
            r#type: AttributeType::Tensor as i32,
            t: Some(tensor),
            ..AttributeProto::default()
        }],
        ..NodeProto::default()
    }
}
