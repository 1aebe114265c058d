//! Gives a model reproducible random weights, so that tests need no large files.
//!
//! ONNX's `light_*` models carry weights of one constant each, which hide mistakes. Here every weight becomes a hash of
//! its name and index; `scripts/py/hashed_fill.py` computes the same bits, so that onnxruntime's outputs for the same
//! weights can be kept in a few kilobytes. Element `i` of the tensor called `name`, with seed `s`, is
//!
//! ```text
//! z     = splitmix64's finalizer of (fnv1a64(name) ^ s) + (i + 1) * 0x9E3779B97F4A7C15      (modulo 2^64)
//! u     = (z >> 40) / 2^24                                                                 in [0, 1)
//! value = f32(low + (high - low) * u)                                                      in f64, rounded once
//! ```
//!
//! where the range follows from what the tensor's first consumer uses it as.

use bytes::Bytes;

use super::proto::tensor_proto::DataType;
use super::proto::{GraphProto, NodeProto, TensorProto};
use super::tensor::{TensorError, tensor_view};
use crate::weights::ElementType;

/// How weights are filled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomFill {
    pub seed: u64,
    /// Scales batch norm's scale: residual stacks double their variance per block unless each branch is damped.
    pub gain: f64,
    /// Scales the weights of the last Conv, Gemm or MatMul, so that a softmax after it does not saturate.
    pub head: f64,
}

impl Default for RandomFill {
    fn default() -> Self {
        RandomFill {
            seed: 0,
            gain: 1.0,
            head: 1.0,
        }
    }
}

/// Returns `count` hashed values in `[low, high)`.
pub fn uniform(name: &str, seed: u64, count: usize, low: f64, high: f64) -> impl ExactSizeIterator<Item = f32> {
    let start = fnv1a64(name) ^ seed;
    (0..count).map(move |index| {
        let mut z = start.wrapping_add((index as u64).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let u = (z >> 40) as f64 / f64::from(1u32 << 24);
        (low + (high - low) * u) as f32
    })
}

/// Replaces every f32 initializer, and every float `ConstantOfShape` of a constant shape, by hashed weights.
///
/// The filled and the other initializers leave the graph's inputs, so that none can be fed.
///
/// # Errors
/// When a shape that a `ConstantOfShape` reads is no valid tensor, or a filled tensor would be too large.
pub fn fill_random(graph: &mut GraphProto, fill: RandomFill) -> Result<(), TensorError> {
    let mut filled: Vec<(String, Vec<i64>)> = Vec::new();
    let initializers = graph
        .initializer
        .iter()
        .map(|t| t.name.clone())
        .collect::<std::collections::HashSet<_>>();
    for tensor in graph
        .initializer
        .iter()
        .filter(|t| t.data_type == DataType::Float as i32)
    {
        filled.push((tensor.name.clone(), tensor.dims.clone()));
    }
    let mut nodes = Vec::with_capacity(graph.node.len());
    for node in std::mem::take(&mut graph.node) {
        match constant_shape(&node, &graph.initializer)? {
            Some(dims) => filled.push((node.output[0].clone(), dims)),
            None => nodes.push(node),
        }
    }
    let last = nodes
        .iter()
        .rposition(|node| matches!(node.op_type.as_str(), "Conv" | "Gemm" | "MatMul"));
    let mut made = Vec::with_capacity(filled.len());
    for (name, dims) in filled {
        let (low, high) = match role(&nodes, &name) {
            Role::Weight(at) => {
                let bound = (6.0 / fan_in(&nodes[at], &dims)).sqrt() * if Some(at) == last { fill.head } else { 1.0 };
                (-bound, bound)
            }
            Role::Scale => (0.5 * fill.gain, 1.5 * fill.gain),
            Role::Factor => (0.5, 1.5),
            Role::Bias => (-0.2, 0.2),
        };
        made.push(filled_tensor(name, dims, fill.seed, low, high)?);
    }
    graph.initializer.retain(|t| t.data_type != DataType::Float as i32);
    graph.initializer.extend(made);
    graph.input.retain(|input| !initializers.contains(&input.name));
    graph.node = nodes;
    Ok(())
}

/// What the first consumer of a tensor uses it as.
enum Role {
    /// The weight of the node at this index.
    Weight(usize),
    /// Batch norm's scale.
    Scale,
    /// A variance, or an operand of a multiplication.
    Factor,
    /// A bias, a mean, or anything else.
    Bias,
}

fn role(nodes: &[NodeProto], name: &str) -> Role {
    let mut name = name;
    // Each step moves to a value made by a node, so a walk longer than the node list has met a cycle.
    for _ in 0..=nodes.len() {
        let consumer = nodes.iter().enumerate().find_map(|(at, node)| {
            let operand = node.input.iter().position(|input| input == name)?;
            Some((at, node, operand))
        });
        let Some((at, node, operand)) = consumer else {
            return Role::Bias;
        };
        match (node.op_type.as_str(), operand) {
            ("Unsqueeze" | "Squeeze" | "Reshape" | "Flatten" | "Identity" | "Transpose", 0) => {
                match node.output.first() {
                    Some(output) => name = output,
                    None => return Role::Bias,
                }
            }
            ("Conv" | "Gemm" | "MatMul", 1) => return Role::Weight(at),
            ("BatchNormalization", 1) => return Role::Scale,
            ("BatchNormalization", 4) | ("Mul", _) => return Role::Factor,
            _ => return Role::Bias,
        }
    }
    Role::Bias
}

/// Returns how many products one output element of the node sums.
fn fan_in(node: &NodeProto, dims: &[i64]) -> f64 {
    let fan = match node.op_type.as_str() {
        "Conv" => dims.iter().skip(1).map(|&d| d as f64).product(),
        "Gemm" => {
            let transposed = node.attribute.iter().any(|a| a.name == "transB" && a.i != 0);
            dims.get(usize::from(transposed)).map_or(1.0, |&d| d as f64)
        }
        _ => dims.iter().rev().nth(1).or(dims.first()).map_or(1.0, |&d| d as f64),
    };
    fan.max(1.0)
}

/// Returns the shape of a `ConstantOfShape` that makes floats of a constant shape.
fn constant_shape(node: &NodeProto, initializers: &[TensorProto]) -> Result<Option<Vec<i64>>, TensorError> {
    if node.op_type != "ConstantOfShape" || node.output.is_empty() {
        return Ok(None);
    }
    let value = node
        .attribute
        .iter()
        .find(|a| a.name == "value")
        .and_then(|a| a.t.as_ref());
    if value.is_some_and(|t| t.data_type != DataType::Float as i32) {
        return Ok(None);
    }
    let Some(shape) = node
        .input
        .first()
        .and_then(|name| initializers.iter().find(|t| t.name == *name))
    else {
        return Ok(None);
    };
    let view = tensor_view(shape)?;
    if view.element != ElementType::I64 {
        return Ok(None);
    }
    Ok(Some(
        view.bytes
            .as_chunks()
            .0
            .iter()
            .map(|chunk| i64::from_le_bytes(*chunk))
            .collect(),
    ))
}

fn filled_tensor(name: String, dims: Vec<i64>, seed: u64, low: f64, high: f64) -> Result<TensorProto, TensorError> {
    let mut sizes = Vec::with_capacity(dims.len());
    for (index, &value) in dims.iter().enumerate() {
        sizes.push(usize::try_from(value).map_err(|_| TensorError::Dim {
            name: name.clone(),
            index,
            value,
        })?);
    }
    let Some(bytes) = ElementType::F32.bytes_for(&sizes) else {
        return Err(TensorError::TooLarge {
            name,
            element: ElementType::F32,
            dims: sizes,
        });
    };
    let mut data = Vec::with_capacity(bytes);
    for value in uniform(&name, seed, bytes / 4, low, high) {
        data.extend_from_slice(&value.to_le_bytes());
    }
    Ok(TensorProto {
        name,
        dims,
        data_type: DataType::Float as i32,
        raw_data: Bytes::from(data),
        ..TensorProto::default()
    })
}

fn fnv1a64(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that `hashed_fill.uniform` prints.
    #[test]
    fn the_bits_are_those_of_the_python_twin() {
        let values: Vec<u32> = uniform("conv1_w_0", 0x6772_6170_6863, 4, -1.0, 1.0)
            .map(f32::to_bits)
            .collect();
        assert_eq!(values, [0x3ee2_c710, 0xbf2f_2294, 0xbe5d_5320, 0x3f0a_14b6]);
    }

    /// Digests of whole filled models, as the Python twin computes them: roles, ranges and order agree, bit for bit.
    #[test]
    fn whole_models_are_those_of_the_python_twin() {
        for (name, gain, head, expected) in [
            ("light_squeezenet", 1.0, 0.64, 0xa4eb_3b41_06e2_0552),
            ("light_densenet121", 1.0, 0.18, 0xd84b_70cf_001c_25b1),
            ("light_resnet50", 0.6, 1.0, 0xf0b4_37d4_648d_1602u64),
        ] {
            let path = format!("{}/../tests/data/light/{name}.onnx", env!("CARGO_MANIFEST_DIR"));
            let mut graph = crate::onnx::read_model(path).unwrap().graph;
            fill_random(
                &mut graph,
                RandomFill {
                    seed: 0x6772_6170_6863,
                    gain,
                    head,
                },
            )
            .unwrap();
            let filled = graph
                .initializer
                .iter()
                .filter(|t| t.data_type == DataType::Float as i32);
            let digest = filled.fold(0xCBF2_9CE4_8422_2325u64, |digest, tensor| {
                let words = tensor.raw_data.as_chunks().0.iter().zip(1u64..);
                let sum = words.fold(0u64, |sum, (word, index)| {
                    sum.wrapping_add(u64::from(u32::from_le_bytes(*word)).wrapping_mul(index))
                });
                digest.wrapping_mul(31).wrapping_add(sum)
            });
            assert_eq!(digest, expected, "{name}");
            assert_eq!(graph.input.len(), 1, "{name}");
        }
    }

    #[test]
    fn roles_follow_the_first_consumer() {
        let node = |op: &str, inputs: &[&str], output: &str| NodeProto {
            op_type: op.into(),
            input: inputs.iter().map(|&s| s.into()).collect(),
            output: vec![output.into()],
            ..NodeProto::default()
        };
        let tensor = |name: &str, dims: &[i64]| TensorProto {
            name: name.into(),
            dims: dims.into(),
            data_type: DataType::Float as i32,
            float_data: vec![1.0; dims.iter().product::<i64>() as usize],
            ..TensorProto::default()
        };
        let shape = TensorProto {
            name: "s".into(),
            dims: vec![4],
            data_type: DataType::Int64 as i32,
            int64_data: vec![2, 3, 5, 5],
            ..TensorProto::default()
        };
        let mut graph = GraphProto {
            node: vec![
                node("ConstantOfShape", &["s"], "w"),
                node("Conv", &["x", "w", "b"], "c"),
                node("Unsqueeze", &["f", "s"], "f4"),
                node("Mul", &["c", "f4"], "y"),
            ],
            initializer: vec![shape, tensor("b", &[2]), tensor("f", &[2])],
            ..GraphProto::default()
        };
        fill_random(
            &mut graph,
            RandomFill {
                head: 0.5,
                ..RandomFill::default()
            },
        )
        .unwrap();
        assert_eq!(graph.node.len(), 3);
        let values = |name: &str| {
            let tensor = graph.initializer.iter().find(|t| t.name == name).unwrap();
            tensor_view(tensor).unwrap().to_host().unwrap().to_f32()
        };
        let bound = 0.5 * (6f32 / 75.0).sqrt();
        assert_eq!(values("w").len(), 150);
        assert!(values("w").iter().all(|v| v.abs() <= bound) && values("w").iter().any(|v| v.abs() > 0.8 * bound));
        assert!(values("f").iter().all(|v| (0.5..1.5).contains(v)));
        assert!(values("b").iter().all(|v| (-0.2..0.2).contains(v)));
    }
}
