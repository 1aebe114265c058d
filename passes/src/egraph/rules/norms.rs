//! Layer and RMS normalisation from their parts.
//!
//! ```text
//! c = x - mean(x); c · rsqrt(mean(c·c) + ε)      equals      layer_norm x
//! x · rsqrt(mean(x·x) + ε)                       equals      rms_norm x
//! layer_norm(x) · w + b                          equals      layer_norm x, w, b
//! ```
//!
//! Both exporters' spellings are covered: `/ sqrt`, `· (1/sqrt)`, `· rsqrt`; powers are products after simplify.

use egg::Id;
use ir::op::{BinaryOp, Composite, ReduceOp, UnaryOp, View};
use ir::types::Scalar;
use ir::{Op, Shape};

use super::Recognizer;
use crate::egraph::language::Made;
use crate::egraph::term::{Found, Reader, Term};

/// The recognisers.
pub const RULES: &[Recognizer] = &[
    Recognizer {
        name: "norm",
        sign: |op| matches!(op, Op::Reduce { op: ReduceOp::Mean, .. }),
        find: norm,
    },
    Recognizer {
        name: "norm_scale",
        sign: is_norm,
        find: scale,
    },
    Recognizer {
        name: "norm_bias",
        sign: is_norm,
        find: bias,
    },
];

fn is_norm(op: &Op) -> bool {
    matches!(
        op,
        Op::Composite(Composite::LayerNorm { .. } | Composite::RmsNorm { .. })
    )
}

/// `mean(c · c) + ε` over trailing axes, under whatever was around it.
struct Variance {
    of: Id,
    axes: Vec<usize>,
    epsilon: f64,
    term: Term,
}

impl Variance {
    fn under(mut self, wrap: impl FnOnce(Term) -> Term) -> Variance {
        self.term = wrap(self.term);
        self
    }
}

fn variance(r: Reader<'_, '_>, class: Id) -> Option<Variance> {
    r.with_number(class, BinaryOp::Add).find_map(|(add, epsilon)| {
        let (mean, axes, of, square) = r.reduce(add.left, ReduceOp::Mean).find_map(|(mean, axes)| {
            let (of, square) = square(r, mean.operand)?;
            Some((mean, axes, of, square))
        })?;
        let rank = r.shape(of)?.rank();
        let trailing = axes.iter().enumerate().all(|(i, a)| *a + axes.len() == rank + i);
        (trailing && !axes.is_empty()).then(|| Variance {
            of: r.find(of),
            axes: axes.to_vec(),
            epsilon,
            term: add.over(mean.over(square), Term::Class(add.right)),
        })
    })
}

/// `c · c` or `c ^ 2`.
fn square(r: Reader<'_, '_>, class: Id) -> Option<(Id, Term)> {
    let product = r.binary(class, BinaryOp::Mul).find(|m| r.same(m.left, m.right));
    let power = || {
        r.with_number(class, BinaryOp::Pow)
            .find_map(|(m, p)| (p == 2.0).then_some(m))
    };
    let found = product.or_else(power)?;
    Some((
        found.left,
        found.over(Term::Class(found.left), Term::Class(found.right)),
    ))
}

/// `(variance + ε) ^ power`.
fn power_of(r: Reader<'_, '_>, class: Id, power: f64) -> Option<Variance> {
    r.with_number(class, BinaryOp::Pow)
        .filter(|(_, p)| *p == power)
        .find_map(|(m, _)| Some(variance(r, m.left)?.under(|t| m.over(t, Term::Class(m.right)))))
}

fn deviation(r: Reader<'_, '_>, class: Id) -> Option<Variance> {
    r.unary(class, UnaryOp::Sqrt)
        .find_map(|sqrt| Some(variance(r, sqrt.operand)?.under(|t| sqrt.over(t))))
        .or_else(|| power_of(r, class, 0.5))
}

fn inverse_deviation(r: Reader<'_, '_>, class: Id) -> Option<Variance> {
    r.unary(class, UnaryOp::Rsqrt)
        .find_map(|rsqrt| Some(variance(r, rsqrt.operand)?.under(|t| rsqrt.over(t))))
        .or_else(|| {
            r.unary(class, UnaryOp::Recip)
                .find_map(|recip| Some(deviation(r, recip.operand)?.under(|t| recip.over(t))))
        })
        .or_else(|| power_of(r, class, -0.5))
}

fn norm(r: Reader<'_, '_>, class: Id) -> Vec<Found> {
    let multiplied = r
        .binary(class, BinaryOp::Mul)
        .filter_map(|mul| Some((mul, inverse_deviation(r, mul.right)?)));
    let divided = r
        .binary(class, BinaryOp::Div)
        .filter_map(|div| Some((div, deviation(r, div.right)?)));
    let found = multiplied
        .chain(divided)
        .filter(|(whole, variance)| r.same(whole.left, variance.of));
    found
        .map(|(whole, variance)| {
            let (axis, epsilon) = (variance.axes[0], Scalar::Float(variance.epsilon));
            let c = variance.of;
            let centred = r.binary(c, BinaryOp::Sub).find_map(|sub| {
                let (mean, _) = r
                    .reduce(sub.right, ReduceOp::Mean)
                    .find(|(mean, axes)| r.same(mean.operand, sub.left) && *axes == variance.axes.as_slice())?;
                let source = Term::Class(sub.left);
                Some((sub.left, sub.over(source.clone(), mean.over(source))))
            });
            let (composite, source, c_term) = match centred {
                Some((source, term)) => (Composite::LayerNorm { axis, epsilon }, source, term),
                None => (Composite::RmsNorm { axis, epsilon }, c, Term::Class(c)),
            };
            Found {
                seen: whole.over(c_term, variance.term),
                equal: Term::Op(Op::Composite(composite), vec![Term::Class(source)]),
            }
        })
        .collect()
}

/// Returns class `v` as a vector over `x.shape[axis..]`, if it is one.
fn along(r: Reader<'_, '_>, v: Id, x: Id, axis: usize) -> Option<(Term, Shape)> {
    let (have, whole) = (r.shape(v)?, r.shape(x)?);
    let want = Shape(whole.get(axis..)?.to_vec());
    if *have == want {
        return Some((Term::Class(v), want));
    }
    let extra = have.rank().checked_sub(want.rank())?;
    let fits =
        extra > 0 && have.rank() <= whole.rank() && have[..extra].iter().all(|d| d.is(1)) && have[extra..] == want[..];
    fits.then(|| {
        let reshape = Op::View(View::Reshape(want.clone()));
        (Term::Op(reshape, vec![Term::Class(v)]), want)
    })
}

fn scale(r: Reader<'_, '_>, class: Id) -> Vec<Found> {
    let found = r.binary(class, BinaryOp::Mul).flat_map(|mul| {
        r.others(mul.left).filter_map(move |(node, op)| {
            let Op::Composite(composite) = op else { return None };
            let axis = match composite {
                Composite::LayerNorm { axis, .. } | Composite::RmsNorm { axis, .. } if node.children.len() == 1 => {
                    *axis
                }
                _ => return None,
            };
            let source = node.children[0];
            let (by, _) = along(r, mul.right, source, axis)?;
            Some(Found {
                seen: mul.over(
                    Term::Node(node.payload, vec![Term::Class(source)]),
                    Term::Class(mul.right),
                ),
                equal: Term::Op(op.clone(), vec![Term::Class(source), by]),
            })
        })
    });
    found.collect()
}

fn bias(r: Reader<'_, '_>, class: Id) -> Vec<Found> {
    let found = r.binary(class, BinaryOp::Add).flat_map(|add| {
        r.others(add.left).filter_map(move |(node, op)| {
            let Op::Composite(Composite::LayerNorm { axis, .. }) = op else {
                return None;
            };
            let source = node.children[0];
            let (by, shape) = along(r, add.right, source, *axis)?;
            let scale = match node.children.as_slice() {
                [_] => ones(r, source, &shape)?,
                [_, scale] => Term::Class(*scale),
                _ => return None,
            };
            let operands = node.children.iter().map(|c| Term::Class(*c)).collect();
            Some(Found {
                seen: add.over(Term::Node(node.payload, operands), Term::Class(add.right)),
                equal: Term::Op(op.clone(), vec![Term::Class(source), scale, by]),
            })
        })
    });
    found.collect()
}

/// Ones over a shape, if its sizes are known.
fn ones(r: Reader<'_, '_>, source: Id, shape: &Shape) -> Option<Term> {
    let dtype = r.ty(source)?.dtype;
    let shape = shape.as_consts()?;
    let shape = shape.into_iter().map(|d| d.max(0) as usize).collect();
    Some(Term::Made(Made::Filled(dtype, shape, 1f64.to_bits())))
}
