//! `FlexAttention`: attention whose scores and weights go through bodies of the model's own.

use ir::op::{BinaryOp, Composite, Contract, Op};
use ir::{DType, Dim};

use super::control::Site;
use super::{Stop, Walk};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::node::{Node, dtype_of};

/// `[B, Hₖ·g, S, D]` as `[B, Hₖ, g, S, D]`.
fn grouped(node: &mut Node<'_>, x: Val, heads: &Dim) -> Step<Val> {
    let mut dims = node.shape(x).0;
    let Some(share) = dims.get(1).and_then(|all| all.exact_div(heads)) else {
        return node.unsupported("FlexAttention whose heads of queries are no multiple of those of keys");
    };
    dims.splice(1..2, [heads.clone(), share]);
    node.reshape(x, dims)
}

/// `[B, Hₖ, g, S, D]` as `[B, Hₖ·g, S, D]`.
fn joined(node: &mut Node<'_>, x: Val) -> Step<Val> {
    let mut dims = node.shape(x).0;
    let heads = dims[1].clone() * dims[2].clone();
    dims.splice(1..3, [heads]);
    node.reshape(x, dims)
}

/// The scaled scores in the softmax's type.
fn scores(node: &mut Node<'_>) -> Step<Val> {
    let (q, k) = (node.input(0)?, node.input(1)?);
    for (index, value) in [(0, q), (1, k), (2, node.input(2)?)] {
        if node.rank(value) != 4 {
            return node.rank_error(index, "4");
        }
    }
    let wide = match (node.int("softmax_precision")?, node.dtype(q)) {
        (Some(code), _) => dtype_of(code)?,
        (None, DType::F64) => DType::F64,
        (None, _) => DType::F32,
    };
    let size = node.shape(q)[3].clone();
    let scale = match (node.float("scale")?, size.as_const()) {
        (Some(scale), _) => scale,
        (None, Some(size)) => 1.0 / (size as f64).sqrt(),
        (None, None) => return node.unsupported(format!("attention over the varying head size {size}")),
    };
    let heads = node.shape(k)[1].clone();
    let (q, k) = (node.cast(q, wide)?, node.cast(k, wide)?);
    let (q, k) = (grouped(node, q, &heads)?, grouped(node, k, &heads)?);
    let contract = Contract {
        transpose_lhs: false,
        transpose_rhs: true,
        out: wide,
    };
    let product = node.add(Op::Contract(contract), &[q, k])?;
    let product = joined(node, product)?;
    node.with_scalar(BinaryOp::Mul, product, scale)
}

impl<'a> Walk<'_, 'a> {
    pub(super) fn flex_attention(&mut self, site: &Site<'_, 'a>) -> Result<Vec<Val>, Stop> {
        let mut value = self.at(site, scores)?;
        value = self.modified(site, "score_mod", value)?;
        value = self.at(site, |node| node.composite(Composite::Softmax { axis: 3 }, &[value]))?;
        value = self.modified(site, "prob_mod", value)?;
        let result = self.at(site, |node| {
            let (v, wide) = (node.input(2)?, node.dtype(value));
            let heads = node.shape(v)[1].clone();
            let out = node.dtype(node.input(0)?);
            let v = node.cast(v, wide)?;
            let (weights, v) = (grouped(node, value, &heads)?, grouped(node, v, &heads)?);
            let result = node.contract(weights, v, false, false, wide)?;
            let result = joined(node, result)?;
            node.cast(result, out)
        })?;
        Ok(vec![result])
    }

    /// What a body makes of a tensor, where there is such a body.
    fn modified(&mut self, site: &Site<'_, 'a>, name: &str, value: Val) -> Result<Val, Stop> {
        let found = site.attributes.iter().find(|(n, _)| *n == name);
        let Some(body) = found.and_then(|(_, a)| a.g.as_ref()) else {
            return Ok(value);
        };
        let results = self.inline(site, body, &[value])?;
        match results.as_slice() {
            [one] => Ok(*one),
            many => Err(site.error(NodeProblem::OutputCount {
                expected: 1,
                found: many.len(),
            })),
        }
    }
}
