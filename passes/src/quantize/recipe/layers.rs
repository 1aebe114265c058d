//! The layers of a graph: products and convolutions by a constant, with names that recipes and command lines use.
//!
//! A name is that of the model's node, or the place where it was recorded. Names are counted over all products, so that
//! those of a model do not depend on which of them are quantised.

use std::collections::HashMap;

use ir::op::{Composite, Gather, View};
use ir::recipe::Kept;
use ir::{Graph, HostTensor, NodeId, Op, Origin, Value};

use crate::fold::native;

/// A product or convolution by a constant.
#[derive(Clone, Debug)]
pub struct FoundLayer {
    pub name: String,
    pub node: NodeId,
    /// The constant, as the product reads it.
    pub weight: HostTensor,
    /// The axis of the weight with the columns of the result.
    pub columns: usize,
    /// Of products, the axis along which they are summed.
    pub depth: Option<usize>,
    /// Whether a convolution reads beyond its input's edge.
    pub padded: bool,
}

impl FoundLayer {
    /// Says whether it is a convolution.
    pub fn is_conv(&self) -> bool {
        self.depth.is_none()
    }

    /// Returns how many numbers a result is the sum of.
    pub fn summed(&self) -> usize {
        match self.depth {
            Some(axis) => self.weight.shape[axis],
            None => self.weight.shape[1..].iter().product(),
        }
    }
}

/// The products of a graph.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// Those that could be quantised, in the order of the graph.
    pub found: Vec<FoundLayer>,
    /// Those that could not, with the reason.
    pub others: Vec<Kept>,
    /// How many of the others are quantised already.
    pub already: usize,
}

/// Finds the products and convolutions of a graph whose right operand is a constant of numbers.
pub fn layers(graph: &Graph) -> Layers {
    let mut found = Layers::default();
    let mut names: HashMap<String, usize> = HashMap::new();
    for (id, node) in graph.nodes().iter() {
        let keep = |found: &mut Layers, name: String, reason: &str| {
            found.others.push(Kept {
                name,
                reason: reason.to_owned(),
            });
        };
        match &node.op {
            Op::Contract(_) | Op::Conv(_) => {}
            Op::Gather(Gather::Take { .. }) => {
                let table = graph.as_constant(node.operands[0]);
                if table.is_some_and(|t| t.dtype.is_float() && t.shape.len() == 2) {
                    keep(
                        &mut found,
                        base_name(&node.origin, id),
                        "rows of a table are looked up, not multiplied",
                    );
                }
                continue;
            }
            _ => continue,
        }
        let base = base_name(&node.origin, id);
        let count = names.entry(base.clone()).or_insert(0);
        *count += 1;
        let name = match *count {
            1 => base,
            n => format!("{base}#{n}"),
        };
        let (lhs, rhs) = (node.operands[0], node.operands[1]);
        if is_dequantized(graph, rhs) {
            found.already += 1;
            keep(&mut found, name, "it is quantised already");
            continue;
        }
        let Some(weight) = constant(graph, rhs) else {
            // A product of two activations has no weight.
            if constant(graph, lhs).is_some_and(|t| t.dtype.is_float()) {
                keep(&mut found, name, "its constant is on the left of the product");
            }
            continue;
        };
        if !weight.dtype.is_float() || weight.dtype.is_f8() {
            found.already += usize::from(weight.dtype.is_int() || weight.dtype.is_f8());
            keep(&mut found, name, "it multiplies integers or 8-bit floats");
            continue;
        }
        if weight.elements() == 0 {
            keep(&mut found, name, "its weight is empty");
            continue;
        }
        if weight.dtype.bits() != 32 && weight.dtype.bits() != 16 {
            keep(&mut found, name, &format!("its weight is {}", weight.dtype));
            continue;
        }
        match &node.op {
            Op::Contract(c) if weight.shape.len() == 2 => {
                let columns = usize::from(!c.transpose_rhs);
                found.found.push(FoundLayer {
                    name,
                    node: id,
                    weight,
                    columns,
                    depth: Some(1 - columns),
                    padded: false,
                });
            }
            Op::Conv(c) if c.transposed.is_none() => {
                let pads = c.window.pad_low.iter().chain(&c.window.pad_high);
                let padded = pads.into_iter().any(|p| *p != 0);
                found.found.push(FoundLayer {
                    name,
                    node: id,
                    weight,
                    columns: 0,
                    depth: None,
                    padded,
                });
            }
            Op::Conv(_) => keep(&mut found, name, "it is a transposed convolution"),
            _ => keep(&mut found, name, "its weight is a batch of matrices"),
        }
    }
    found
}

/// Returns the constant that a value is, through views that move its elements.
fn constant(graph: &Graph, value: Value) -> Option<HostTensor> {
    let node = graph.node(value.node);
    match &node.op {
        Op::Constant(_) => graph.as_constant(value).cloned(),
        Op::View(View::Transpose(perm)) => native::permute(&constant(graph, node.operands[0])?, perm),
        Op::View(View::Reshape(shape)) => {
            let dims: Option<Vec<usize>> = shape.iter().map(|d| d.as_const().map(|d| d.max(0) as usize)).collect();
            native::reshape(&constant(graph, node.operands[0])?, dims?)
        }
        _ => None,
    }
}

/// Says whether a value is a dequantised constant, or a view of one.
fn is_dequantized(graph: &Graph, value: Value) -> bool {
    let node = graph.node(value.node);
    match &node.op {
        Op::Composite(Composite::Dequantize { .. }) => constant(graph, node.operands[0]).is_some(),
        Op::View(_) => is_dequantized(graph, node.operands[0]),
        _ => false,
    }
}

fn base_name(origin: &Origin, id: NodeId) -> String {
    match origin {
        Origin::Onnx { name, .. } | Origin::Named(name) => name.to_string(),
        Origin::Source { file, line } => {
            let file = file.rsplit('/').next().unwrap_or(file);
            format!("{file}:{line}")
        }
        Origin::Unknown => id.to_string(),
    }
}

/// Says whether a name fits a pattern, in which `*` is any text and `?` any character.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // Where to go on if what follows the last star does not fit: one character further behind it.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, behind)) => {
                    star = Some((at, behind + 1));
                    p = at + 1;
                    n = behind + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, fits) in [
            ("/fc/MatMul", "/fc/MatMul", true),
            ("/fc/MatMul", "/fc/MatMul_1", false),
            ("/fc*", "/fc/MatMul_1", true),
            ("*MatMul", "/fc/MatMul_1", false),
            ("*/a*b", "/x/aab/aacb", true),
            ("layer?", "layer12", false),
            ("layer??", "layer12", true),
            ("*", "", true),
            ("", "", true),
            ("?", "", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
