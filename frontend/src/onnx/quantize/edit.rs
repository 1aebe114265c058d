//! Finds the nodes that layers are, and puts quantised operands before them.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use ir::recipe::{Activation, Layer, Stored, least_magnitude};
use ir::{DType, HostTensor, Storage};

use super::EditError;
use crate::onnx::proto::attribute_proto::AttributeType;
use crate::onnx::proto::tensor_proto::DataType;
use crate::onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};
use crate::onnx::read::canonical_domain;

/// The name by which a node's layer goes: its own, or its first output's.
pub(super) fn name_of(node: &NodeProto) -> &str {
    match node.name.is_empty() {
        true => node.output.first().map_or("", String::as_str),
        false => &node.name,
    }
}

/// The operator set that layers ask for.
pub(super) fn needed_opset(layers: &[(&Layer, Stored)]) -> i64 {
    let of = |(layer, stored): &(&Layer, Stored)| {
        let weight = match (layer.weight.groups, layer.weight.dtype.bits(), stored.scale.dtype) {
            (Some(_), ..) | (_, 4, _) => 21,
            (_, _, DType::F16 | DType::BF16) => 19,
            _ if layer.weight.dtype.is_f8() => 19,
            _ if layer.weight.axis.is_some() => 13,
            _ => 10,
        };
        match layer.activation {
            Activation::Dynamic => weight.max(11),
            Activation::DynamicFloat { .. } => weight.max(19),
            Activation::Static { dtype, .. } if dtype.is_f8() => weight.max(19),
            Activation::Float | Activation::Static { .. } => weight,
        }
    };
    layers.iter().map(of).max().unwrap_or(0)
}

/// Finds the node of a layer, whose weight has the shape; `Err` says why it is not to be changed.
pub(super) fn find(model: &ModelProto, layer: &str, shape: &[usize]) -> Result<usize, String> {
    let Some(graph) = &model.graph else {
        return Err("the file has no graph".to_owned());
    };
    let mut named = graph.node.iter().enumerate().filter(|(_, node)| name_of(node) == layer);
    let (Some((at, node)), more) = (named.next(), named.next()) else {
        return Err("its node is inside a function or a subgraph, or is one of several with its name".to_owned());
    };
    if more.is_some() {
        return Err("several nodes have its name".to_owned());
    }
    let known = [
        ("", "MatMul"),
        ("", "Gemm"),
        ("", "Conv"),
        ("com.microsoft", "FusedMatMul"),
    ];
    if !known.contains(&(canonical_domain(&node.domain), node.op_type.as_str())) {
        return Err(format!("{} nodes have no quantised form", node.op_type));
    }
    if model
        .functions
        .iter()
        .any(|f| f.name == node.op_type && canonical_domain(&f.domain) == canonical_domain(&node.domain))
    {
        return Err("its node calls a function".to_owned());
    }
    let Some(weight) = node.input.get(1) else {
        return Err("its node has no second input".to_owned());
    };
    // What is not an initializer has a shape that nothing here works out; only a vector is another one for the product.
    let initializer = graph.initializer.iter().find(|t| t.name == *weight);
    let same = match initializer {
        Some(tensor) => tensor.dims.len() == shape.len() && tensor.dims.iter().zip(shape).all(|(d, s)| *d == *s as i64),
        None => shape.iter().all(|size| *size > 1),
    };
    if !same {
        return Err("its weight has another shape in the file".to_owned());
    }
    Ok(at)
}

/// Puts quantised operands before the nodes of layers, and drops the weights that nothing reads any more.
pub(super) fn quantize(model: &mut ModelProto, layers: &[(&Layer, Stored)]) -> Result<(), EditError> {
    let mut places: HashMap<usize, &(&Layer, Stored)> = HashMap::new();
    for entry in layers {
        let found = find(model, &entry.0.name, &entry.1.integers.shape);
        let at = found.map_err(|reason| EditError::Layer {
            layer: entry.0.name.clone(),
            reason,
        })?;
        places.insert(at, entry);
    }
    let Some(graph) = &mut model.graph else { return Ok(()) };
    let mut edit = Edit {
        names: names(graph),
        initializers: Vec::new(),
        nodes: Vec::with_capacity(graph.node.len()),
        weights: HashMap::new(),
        scaled: HashMap::new(),
        activations: HashMap::new(),
    };
    let mut dropped = Vec::new();
    for (at, mut node) in std::mem::take(&mut graph.node).into_iter().enumerate() {
        if let Some((layer, stored)) = places.get(&at) {
            node.input[0] = edit.scaled(&node.input[0], layer, stored.scale.dtype);
            node.input[0] = edit.activation(&node.input[0], layer.activation, stored.scale.dtype);
            let weight = edit.weight(&node.input[1], layer, stored);
            dropped.push(std::mem::replace(&mut node.input[1], weight));
        }
        edit.nodes.push(node);
    }
    graph.node = edit.nodes;
    graph.initializer.append(&mut edit.initializers);
    drop_unread(graph, dropped);
    Ok(())
}

struct Edit {
    /// All names of values and nodes.
    names: HashSet<String>,
    initializers: Vec<TensorProto>,
    nodes: Vec<NodeProto>,
    /// By the weight's name and what shares a scale: integers and scales, which may differ from layer to layer, with
    /// the name of the numbers that are made of them.
    weights: HashMap<(String, String), Vec<(Storage, Storage, String)>>,
    /// By the operand's name and the factors of its last axis.
    scaled: HashMap<(String, Vec<u8>), String>,
    /// By the operand's name and how it is quantised.
    activations: HashMap<(String, String), String>,
}

impl Edit {
    /// A name that nothing has yet.
    fn name(&mut self, wanted: String) -> String {
        let mut name = wanted.clone();
        let mut count = 1;
        while !self.names.insert(name.clone()) {
            count += 1;
            name = format!("{wanted}_{count}");
        }
        name
    }

    fn initializer(&mut self, wanted: String, tensor: &HostTensor, dims: Vec<i64>) -> String {
        let name = self.name(wanted);
        self.initializers.push(TensorProto {
            name: name.clone(),
            dims,
            data_type: code(tensor.dtype) as i32,
            raw_data: Bytes::from_owner(tensor.bytes.clone()),
            ..TensorProto::default()
        });
        name
    }

    fn node(&mut self, op: &str, inputs: Vec<String>, outputs: Vec<String>, attributes: &[(&str, i64)]) {
        let name = self.name(format!("{}_{op}", inputs[0]));
        let attribute = |(name, value): &(&str, i64)| AttributeProto {
            name: (*name).to_owned(),
            r#type: AttributeType::Int as i32,
            i: *value,
            ..AttributeProto::default()
        };
        self.nodes.push(NodeProto {
            name,
            op_type: op.to_owned(),
            input: inputs,
            output: outputs,
            attribute: attributes.iter().map(attribute).collect(),
            ..NodeProto::default()
        });
    }

    /// The name of a weight's numbers, made of its integers.
    fn weight(&mut self, name: &str, layer: &Layer, stored: &Stored) -> String {
        let how = format!("{:?} {:?}", layer.weight.axis, layer.weight.groups);
        let key = (name.to_owned(), how);
        let (integers, scales) = (&stored.integers.bytes, &stored.scale.bytes);
        let mut made = self.weights.get(&key).into_iter().flatten();
        if let Some((.., made)) = made.find(|made| made.0 == *integers && made.1 == *scales) {
            return made.clone();
        }
        let own = (integers.clone(), scales.clone());
        let (weight, dims) = (&layer.weight, |t: &HostTensor| {
            t.shape.iter().map(|d| *d as i64).collect()
        });
        let (scales, attributes): (Vec<i64>, Vec<(&str, i64)>) = match (weight.groups, weight.axis) {
            (Some(groups), _) => (
                dims(&stored.scale),
                vec![("axis", groups.axis as i64), ("block_size", groups.size)],
            ),
            (None, Some(axis)) => (vec![stored.scale.elements() as i64], vec![("axis", axis as i64)]),
            (None, None) => (Vec::new(), Vec::new()),
        };
        let integers = self.initializer(
            format!("{name}_{}", weight.dtype),
            &stored.integers,
            dims(&stored.integers),
        );
        let mut inputs = vec![integers];
        inputs.push(self.initializer(format!("{name}_scale"), &stored.scale, scales.clone()));
        if let Some(zero) = &stored.zero {
            inputs.push(self.initializer(format!("{name}_zero_point"), zero, scales));
        }
        let output = self.name(format!("{name}_dequantized"));
        self.node("DequantizeLinear", inputs, vec![output.clone()], &attributes);
        self.weights
            .entry(key)
            .or_default()
            .push((own.0, own.1, output.clone()));
        output
    }

    /// The name of an operand's numbers times the factors that its layer asks for.
    fn scaled(&mut self, name: &str, layer: &Layer, of: DType) -> String {
        let Some(factors) = layer.factors(of) else {
            return name.to_owned();
        };
        let key = (name.to_owned(), factors.bytes.to_vec());
        if let Some(made) = self.scaled.get(&key) {
            return made.clone();
        }
        let dims = vec![factors.elements() as i64];
        let factors = self.initializer(format!("{name}_factors"), &factors, dims);
        let output = self.name(format!("{name}_scaled"));
        self.node("Mul", vec![name.to_owned(), factors], vec![output.clone()], &[]);
        self.scaled.insert(key, output.clone());
        output
    }

    /// The name of an operand's numbers after it was quantised.
    fn activation(&mut self, name: &str, how: Activation, of: DType) -> String {
        let key = (name.to_owned(), format!("{how:?}"));
        if let Some(made) = self.activations.get(&key) {
            return made.clone();
        }
        let inputs = match how {
            Activation::Float => return name.to_owned(),
            Activation::DynamicFloat { dtype } => self.dynamic_float(name, dtype, of),
            Activation::Static { dtype, scale, zero } => {
                let scalar = |dtype, value: f64| Stored::single(dtype, 0, value);
                let scale = self.initializer(format!("{name}_scale"), &scalar(of, scale.into()), Vec::new());
                let zero = self.initializer(format!("{name}_zero_point"), &scalar(dtype, zero.into()), Vec::new());
                let quantized = self.name(format!("{name}_quantized"));
                let inputs = vec![name.to_owned(), scale.clone(), zero.clone()];
                self.node("QuantizeLinear", inputs, vec![quantized.clone()], &[]);
                vec![quantized, scale, zero]
            }
            Activation::Dynamic => {
                let parts = ["quantized", "scale", "zero_point"].map(|part| self.name(format!("{name}_{part}")));
                self.node("DynamicQuantizeLinear", vec![name.to_owned()], parts.to_vec(), &[]);
                parts.to_vec()
            }
        };
        let output = self.name(format!("{name}_dequantized"));
        self.node("DequantizeLinear", inputs, vec![output.clone()], &[]);
        self.activations.insert(key, output.clone());
        output
    }
}

impl Edit {
    /// The 8-bit floats of an operand, their scale (the largest magnitude over the type's largest number) and their
    /// zero point.
    fn dynamic_float(&mut self, name: &str, dtype: DType, of: DType) -> Vec<String> {
        let scalar = |dtype, value: f64| Stored::single(dtype, 0, value);
        let (least, largest) = (least_magnitude(dtype, of), dtype.f8_largest().unwrap_or(1.0));
        let least = self.initializer(format!("{name}_least"), &scalar(of, least), Vec::new());
        let largest = self.initializer(format!("{name}_largest"), &scalar(of, largest), Vec::new());
        let zero = self.initializer(format!("{name}_zero_point"), &scalar(dtype, 0.0), Vec::new());
        let [magnitudes, most, bounded, scale, quantized] =
            ["magnitudes", "most", "bounded", "scale", "quantized"].map(|part| self.name(format!("{name}_{part}")));
        self.node("Abs", vec![name.to_owned()], vec![magnitudes.clone()], &[]);
        self.node("ReduceMax", vec![magnitudes], vec![most.clone()], &[("keepdims", 0)]);
        self.node("Max", vec![most, least], vec![bounded.clone()], &[]);
        self.node("Div", vec![bounded, largest], vec![scale.clone()], &[]);
        let inputs = vec![name.to_owned(), scale.clone(), zero.clone()];
        self.node("QuantizeLinear", inputs, vec![quantized.clone()], &[]);
        vec![quantized, scale, zero]
    }
}

/// ONNX's code of the types that quantised layers have.
fn code(dtype: DType) -> DataType {
    match dtype {
        DType::I8 => DataType::Int8,
        DType::U8 => DataType::Uint8,
        DType::I4 => DataType::Int4,
        DType::U4 => DataType::Uint4,
        DType::F16 => DataType::Float16,
        DType::BF16 => DataType::Bfloat16,
        DType::F8E4M3FN => DataType::Float8e4m3fn,
        DType::F8E4M3FNUZ => DataType::Float8e4m3fnuz,
        DType::F8E5M2 => DataType::Float8e5m2,
        DType::F8E5M2FNUZ => DataType::Float8e5m2fnuz,
        _ => DataType::Float,
    }
}

/// All names of a graph and of those inside it.
fn names(graph: &GraphProto) -> HashSet<String> {
    let mut found: HashSet<String> = HashSet::new();
    let mut stack = vec![graph];
    while let Some(graph) = stack.pop() {
        found.extend(graph.initializer.iter().map(|t| t.name.clone()));
        found.extend(graph.input.iter().chain(&graph.output).map(|i| i.name.clone()));
        for node in &graph.node {
            found.insert(node.name.clone());
            found.extend(node.input.iter().chain(&node.output).cloned());
            let inner = node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs));
            stack.extend(inner);
        }
    }
    found
}

/// Drops what made the values that nothing reads any more.
fn drop_unread(graph: &mut GraphProto, mut candidates: Vec<String>) {
    while let Some(name) = candidates.pop() {
        if name.is_empty() || is_read(graph, &name) {
            continue;
        }
        let initializers = graph.initializer.len();
        graph.initializer.retain(|t| t.name != name);
        graph.value_info.retain(|i| i.name != name);
        if graph.initializer.len() < initializers {
            // Old files list initializers among the inputs.
            graph.input.retain(|i| i.name != name);
            continue;
        }
        let maker = graph.node.iter().position(|node| node.output.contains(&name));
        if let Some(at) = maker
            && graph.node[at].output.iter().all(|o| o.is_empty() || !is_read(graph, o))
        {
            candidates.extend(graph.node.remove(at).input);
        }
    }
}

fn is_read(graph: &GraphProto, name: &str) -> bool {
    let mut stack = vec![graph];
    while let Some(graph) = stack.pop() {
        if graph.output.iter().any(|o| o.name == name) {
            return true;
        }
        for node in &graph.node {
            if node.input.iter().any(|i| i == name) {
                return true;
            }
            stack.extend(node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs)));
        }
    }
    false
}
