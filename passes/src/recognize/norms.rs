//! Layer and RMS normalisation from their parts.
//!
//! ```text
//! c = x - mean(x); c · rsqrt(mean(c·c) + ε)      becomes     layer_norm x
//! x · rsqrt(mean(x·x) + ε)                       becomes     rms_norm x
//! layer_norm(x) · w + b                          becomes     layer_norm x, w, b
//! ```
//!
//! Both exporters' spellings are covered: `/ sqrt`, `· (1/sqrt)`, `· rsqrt`; powers are products after simplify.

use ir::op::{BinaryOp, Composite, Elementwise, ReduceOp, UnaryOp};
use ir::types::Scalar;
use ir::{Graph, HostTensor, Op, Shape, Value};

use super::{binary, reduce, unary, with_number};
use crate::error::PassFault;
use crate::rewrite::{Builder, Rule};
use crate::runner::Pass;

/// The pass.
pub const PASS: Pass = Pass {
    name: "recognize_norms",
    run: |graph, context| {
        let rules = RULES.iter().copied().filter(|r| context.options.enabled(r.name));
        let mut builder = Builder::new(graph, "recognize_norms").with_rules(rules);
        builder.copy_rest()?;
        Ok(builder.finish(&mut context.fired))
    },
    required: false,
};

/// The rules, whole first.
pub const RULES: &[Rule] = &[
    Rule {
        name: "norm",
        apply: core,
    },
    Rule {
        name: "norm_scale",
        apply: scale,
    },
    Rule {
        name: "norm_bias",
        apply: bias,
    },
];

fn inverse_deviation(g: &Graph, v: Value) -> Option<(Value, Vec<usize>, f64)> {
    let shifted = unary(g, v, UnaryOp::Rsqrt)
        .or_else(|| unary(g, unary(g, v, UnaryOp::Recip)?, UnaryOp::Sqrt))
        .or_else(|| with_number(g, v, BinaryOp::Pow).and_then(|(x, c)| (c == -0.5).then_some(x)))?;
    variance(g, shifted)
}

fn deviation(g: &Graph, v: Value) -> Option<(Value, Vec<usize>, f64)> {
    let shifted = unary(g, v, UnaryOp::Sqrt)
        .or_else(|| with_number(g, v, BinaryOp::Pow).and_then(|(x, c)| (c == 0.5).then_some(x)))?;
    variance(g, shifted)
}

/// `mean(c · c) + ε` over trailing axes: `(c, axes, ε)`.
fn variance(g: &Graph, v: Value) -> Option<(Value, Vec<usize>, f64)> {
    let (mean, epsilon) = with_number(g, v, BinaryOp::Add)?;
    let (square, axes) = reduce(g, mean, ReduceOp::Mean)?;
    let c = match binary(g, square, BinaryOp::Mul) {
        Some((a, b)) if a == b => a,
        _ => with_number(g, square, BinaryOp::Pow).and_then(|(x, p)| (p == 2.0).then_some(x))?,
    };
    let rank = g.ty(c).rank();
    let trailing = axes.iter().enumerate().all(|(i, a)| *a == rank - axes.len() + i);
    (trailing && !axes.is_empty()).then(|| (c, axes.to_vec(), epsilon))
}

fn core(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let g = b.graph();
    let found = match op {
        Op::Elementwise(Elementwise::Binary(BinaryOp::Mul)) => inverse_deviation(g, x[1])
            .filter(|f| f.0 == x[0])
            .or_else(|| inverse_deviation(g, x[0]).filter(|f| f.0 == x[1])),
        Op::Elementwise(Elementwise::Binary(BinaryOp::Div)) => deviation(g, x[1]).filter(|f| f.0 == x[0]),
        _ => None,
    };
    let Some((c, axes, epsilon)) = found else {
        return Ok(None);
    };
    let epsilon = Scalar::Float(epsilon);
    let axis = axes[0];
    let centred = binary(g, c, BinaryOp::Sub).filter(|(source, mean)| {
        reduce(g, *mean, ReduceOp::Mean).is_some_and(|(of, over)| of == *source && over == axes.as_slice())
    });
    let (composite, source) = match centred {
        Some((source, _)) => (Composite::LayerNorm { axis, epsilon }, source),
        None => (Composite::RmsNorm { axis, epsilon }, c),
    };
    b.emit(Op::Composite(composite), &[source]).map(Some)
}

/// Returns `v` as a vector over `x.shape[axis..]`, if it is one.
fn along(b: &mut Builder<'_>, v: Value, x: Value, axis: usize) -> Result<Option<Value>, PassFault> {
    let want = Shape(b.ty(x).shape[axis..].to_vec());
    let have = &b.ty(v).shape;
    if *have == want {
        return Ok(Some(v));
    }
    let extra = have.rank().saturating_sub(want.rank());
    if have.rank() > want.rank()
        && have.rank() <= b.ty(x).rank()
        && have[..extra].iter().all(|d| d.is(1))
        && have[extra..] == want[..]
    {
        return b.emit(Op::View(ir::op::View::Reshape(want)), &[v]).map(Some);
    }
    Ok(None)
}

fn scale(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    if *op != Op::binary(BinaryOp::Mul) {
        return Ok(None);
    }
    for (norm, by) in [(x[0], x[1]), (x[1], x[0])] {
        let (
            Op::Composite(composite @ (Composite::LayerNorm { axis, .. } | Composite::RmsNorm { axis, .. })),
            operands,
        ) = b.def(norm)
        else {
            continue;
        };
        if operands.len() != 1 {
            continue;
        }
        let (composite, axis, source) = (composite.clone(), *axis, operands[0]);
        if let Some(by) = along(b, by, source, axis)? {
            return b.emit(Op::Composite(composite), &[source, by]).map(Some);
        }
    }
    Ok(None)
}

fn bias(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    if *op != Op::binary(BinaryOp::Add) {
        return Ok(None);
    }
    for (norm, by) in [(x[0], x[1]), (x[1], x[0])] {
        let (Op::Composite(composite @ Composite::LayerNorm { axis, .. }), operands) = b.def(norm) else {
            continue;
        };
        if operands.len() > 2 {
            continue;
        }
        let (composite, axis, source, have) = (composite.clone(), *axis, operands[0], operands.get(1).copied());
        let Some(by) = along(b, by, source, axis)? else {
            continue;
        };
        let scale = match have {
            Some(scale) => scale,
            None => match ones(b, by) {
                Some(ones) => ones,
                None => continue,
            },
        };
        return b.emit(Op::Composite(composite), &[source, scale, by]).map(Some);
    }
    Ok(None)
}

/// Ones of the type of `like`, if its sizes are known.
fn ones(b: &mut Builder<'_>, like: Value) -> Option<Value> {
    let ty = b.ty(like).clone();
    let shape: Vec<usize> = ty.shape.as_consts()?.into_iter().map(|d| d.max(0) as usize).collect();
    let n = shape.iter().product();
    let tensor = HostTensor::from_f64(ty.dtype, shape, &vec![1.0; n]).ok()?;
    Some(b.constant(tensor))
}
