//! Adding nodes whose types are inferred.

use super::infer::{InferError, Reason, infer};
use super::op::Op;
use super::{Graph, NodeId, Origin, Value};
use crate::entity::Entity;
use crate::types::{DType, TensorType};

impl Graph {
    /// Adds a node and infers the types of its results.
    ///
    /// # Errors
    /// [`InferError`], with `origin`, when the op does not fit its operands or an operand is not a value of this graph.
    pub fn add(&mut self, op: Op, operands: &[Value], origin: Origin) -> Result<NodeId, InferError> {
        let types = self.infer(&op, operands).map_err(|e| e.at(origin.clone()))?;
        Ok(self.push(op, operands, types, origin))
    }

    /// Returns the types that `op` would have on these operands, without adding it.
    ///
    /// # Errors
    /// As [`Graph::add`], with an unknown origin.
    pub fn infer(&self, op: &Op, operands: &[Value]) -> Result<super::infer::Types, InferError> {
        let types: Vec<&TensorType> = operands
            .iter()
            .map(|v| {
                let node = self.nodes.get(v.node);
                node.and_then(|n| n.results.get(v.index as usize)).ok_or(v)
            })
            .collect::<Result<_, _>>()
            .map_err(|v| {
                let reason = Reason::UnknownValue { value: v.to_string() };
                InferError {
                    op: op.name(),
                    operands: Vec::new(),
                    origin: Origin::Unknown,
                    reason: Box::new(reason),
                }
            })?;
        infer(op, &types, &self.symbols)
    }

    /// Adds a cast, or returns the value itself when it has the type already.
    ///
    /// # Errors
    /// As [`Graph::add`].
    pub fn cast(&mut self, value: Value, to: DType, origin: Origin) -> Result<Value, InferError> {
        if self
            .nodes
            .get(value.node)
            .is_some_and(|n| n.results.get(value.index as usize).is_some_and(|t| t.dtype == to))
        {
            return Ok(value);
        }
        self.add(Op::cast(to), &[value], origin).map(Value::from)
    }

    /// Returns every value of the graph, in order.
    pub fn values(&self) -> impl Iterator<Item = (Value, &TensorType)> {
        self.nodes.iter().flat_map(|(id, node)| {
            let results = node.results.iter().enumerate();
            results.map(move |(i, ty)| (Value::new(NodeId::new(id.index()), i as u32), ty))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Dim;
    use crate::graph::op::*;

    fn shaped(g: &mut Graph, name: &str, dtype: DType, dims: Vec<Dim>) -> Value {
        g.add_input(name, TensorType::new(dtype, dims), Origin::Unknown)
    }

    fn dims(text: &[&str]) -> Vec<Dim> {
        text.iter()
            .map(|t| t.parse::<i64>().map_or_else(|_| Dim::symbol(t), Dim::from))
            .collect()
    }

    #[test]
    fn contracts_with_flags_and_broadcast_batches() {
        let mut g = Graph::new("t");
        let a = shaped(&mut g, "a", DType::F16, dims(&["b", "1", "64", "s"]));
        let b = shaped(&mut g, "b", DType::F16, dims(&["h", "10", "64"]));
        let op = Op::Contract(Contract {
            transpose_lhs: true,
            transpose_rhs: true,
            out: DType::F32,
        });
        let n = g.add(op, &[a, b], Origin::Unknown).unwrap();
        assert_eq!(g.ty(n.into()).to_string(), "f32[b, h, s, 10]");
        let op = Op::Contract(Contract {
            transpose_lhs: false,
            transpose_rhs: true,
            out: DType::F32,
        });
        let error = g.add(op, &[a, b], Origin::Named("here".into())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "contract(f16[b, 1, 64, s], f16[h, 10, 64]) from \"here\" does not fit: the contracted dims k of the two \
             operands: cannot show that s equals 64 for every size; give them the same symbol"
        );
    }

    #[test]
    fn convolution_sizes_in_both_layouts_and_transposed() {
        let mut g = Graph::new("t");
        let x = shaped(&mut g, "x", DType::F32, dims(&["n", "6", "h", "9"]));
        let w = shaped(&mut g, "w", DType::F32, dims(&["4", "3", "3", "2"]));
        let window = Window {
            strides: vec![2, 1],
            pad_low: vec![1, 0],
            pad_high: vec![1, 0],
            dilations: vec![1, 2],
        };
        let conv = |layout, transposed| {
            Op::Conv(Conv {
                window: window.clone(),
                groups: 2,
                layout,
                transposed,
                pad_value: 0,
                out: DType::F32,
            })
        };
        let n = g
            .add(conv(Layout::ChannelsFirst, None), &[x, w], Origin::Unknown)
            .unwrap();
        assert_eq!(g.ty(n.into()).to_string(), "f32[n, 4, div(h + 1, 2), 7]");
        let y = shaped(&mut g, "y", DType::F32, dims(&["n", "h", "9", "6"]));
        let v = shaped(&mut g, "v", DType::F32, dims(&["4", "3", "2", "3"]));
        let n = g
            .add(conv(Layout::ChannelsLast, None), &[y, v], Origin::Unknown)
            .unwrap();
        assert_eq!(g.ty(n.into()).to_string(), "f32[n, div(h + 1, 2), 7, 4]");
        let t = shaped(&mut g, "t", DType::F32, dims(&["6", "5", "3", "2"]));
        let op = conv(Layout::ChannelsFirst, Some(vec![1, 0]));
        let n = g.add(op, &[x, t], Origin::Unknown).unwrap();
        assert_eq!(g.ty(n.into()).to_string(), "f32[n, 10, 2*h, 11]");
        let error = g
            .add(conv(Layout::ChannelsFirst, None), &[y, v], Origin::Unknown)
            .unwrap_err();
        assert!(matches!(*error.reason, Reason::Dims { .. }), "{error}");
    }

    #[test]
    fn pooling_leaves_out_windows_that_start_in_the_high_padding() {
        let pool = |size, stride, pad, ceil| Pool {
            kind: PoolKind::Max,
            size: vec![size],
            window: Window {
                strides: vec![stride],
                pad_low: vec![pad],
                pad_high: vec![pad],
                dilations: vec![1],
            },
            ceil,
            layout: Layout::ChannelsFirst,
        };
        let out = |n: i64, p: Pool| super::super::infer::pool_output(&Dim::Const(n), &p, 0);
        assert_eq!(out(7, pool(2, 2, 0, false)), Dim::Const(3));
        assert_eq!(out(7, pool(2, 2, 0, true)), Dim::Const(4));
        // ceil((4 + 2 - 2) / 3) + 1 = 3, but the third would start at 6 - 1, behind the input.
        assert_eq!(out(4, pool(2, 3, 1, true)), Dim::Const(2));
    }

    #[test]
    fn reshape_compares_element_counts_as_polynomials() {
        let mut g = Graph::new("t");
        let x = shaped(&mut g, "x", DType::F32, dims(&["b", "s", "64"]));
        let reshape = |d: Vec<Dim>| Op::View(View::Reshape(d.into()));
        let rows = Dim::symbol("b") * Dim::symbol("s");
        let n = g
            .add(reshape(vec![rows * 8, Dim::Const(8)]), &[x], Origin::Unknown)
            .unwrap();
        assert_eq!(g.ty(n.into()).to_string(), "f32[8*b*s, 8]");
        let e = g.add(reshape(dims(&["b", "64"])), &[x], Origin::Unknown).unwrap_err();
        assert!(matches!(*e.reason, Reason::Elements { .. }), "{e}");
        let e = g.add(reshape(dims(&["z", "64"])), &[x], Origin::Unknown).unwrap_err();
        assert!(matches!(*e.reason, Reason::UndeclaredSymbol { .. }), "{e}");
    }

    #[test]
    fn slices_that_are_wrong_for_every_size_are_refused() {
        let mut g = Graph::new("t");
        let x = shaped(&mut g, "x", DType::F32, dims(&["s"]));
        let s = Dim::symbol("s");
        let slice = |start: Dim, size: Dim, step: i64| {
            Op::View(View::Slice {
                starts: vec![start],
                sizes: vec![size],
                steps: vec![step],
            })
        };
        let reversed = slice(s.clone() - Dim::Const(1), s.clone(), -1);
        assert!(g.add(reversed, &[x], Origin::Unknown).is_ok());
        let e = g
            .add(slice(s.clone(), Dim::Const(1), 1), &[x], Origin::Unknown)
            .unwrap_err();
        assert!(matches!(*e.reason, Reason::OutOfRange { .. }), "{e}");
    }

    #[test]
    fn top_k_has_two_results_and_foreign_values_are_refused() {
        let mut g = Graph::new("t");
        let x = shaped(&mut g, "x", DType::F16, dims(&["b", "100"]));
        let op = Op::TopK {
            axis: 1,
            k: Dim::Const(5),
            largest: true,
        };
        let n = g.add(op, &[x], Origin::Unknown).unwrap();
        assert_eq!(g.ty(Value::new(n, 1)).to_string(), "i64[b, 5]");
        let e = g
            .add(Op::unary(UnaryOp::Exp), &[Value::new(n, 2)], Origin::Unknown)
            .unwrap_err();
        assert!(matches!(*e.reason, Reason::UnknownValue { .. }), "{e}");
        let e = g
            .add(Op::binary(BinaryOp::Add), &[x, Value::new(n, 1)], Origin::Unknown)
            .unwrap_err();
        assert!(matches!(*e.reason, Reason::DTypesDiffer { .. }), "{e}");
    }

    #[test]
    fn attention_groups_heads() {
        let mut g = Graph::new("t");
        let q = shaped(&mut g, "q", DType::F32, dims(&["b", "8", "s", "64"]));
        let k = shaped(&mut g, "k", DType::F32, dims(&["b", "2", "t", "64"]));
        let v = shaped(&mut g, "v", DType::F32, dims(&["b", "2", "t", "32"]));
        let m = shaped(&mut g, "m", DType::Bool, dims(&["b", "1", "1", "t"]));
        let op = Op::Composite(Composite::Attention {
            scale: crate::types::Scalar::Float(0.125),
            causal: false,
            mask: true,
            scales: false,
        });
        let n = g.add(op.clone(), &[q, k, v, m], Origin::Unknown).unwrap();
        assert_eq!(g.ty(n.into()).to_string(), "f32[b, 8, s, 32]");
        assert!(g.add(op, &[q, k, v], Origin::Unknown).is_err());
    }
}
