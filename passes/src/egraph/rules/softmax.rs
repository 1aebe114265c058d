//! Softmax and log-softmax from their parts, where the maximum is subtracted first.
//!
//! ```text
//! e = exp(x - max x); e / sum e                  equals      softmax x
//! s = x - max x; s - log(sum(exp s))             equals      log_softmax x
//! log(softmax x)                                 equals      log_softmax x
//! ```

use egg::Id;
use ir::Op;
use ir::op::{BinaryOp, Composite, ReduceOp, UnaryOp};

use super::Recognizer;
use crate::egraph::term::{Found, Reader, Term, Two};

/// The recognisers.
pub const RULES: &[Recognizer] = &[
    Recognizer {
        name: "softmax",
        sign: |op| *op == Op::unary(UnaryOp::Exp) || matches!(op, Op::Reduce { op: ReduceOp::Sum, .. }),
        find: softmax,
    },
    Recognizer {
        name: "log_softmax",
        sign: |op| *op == Op::unary(UnaryOp::Log),
        find: log_softmax,
    },
    Recognizer {
        name: "log_of_softmax",
        sign: |op| *op == Op::unary(UnaryOp::Log),
        find: log_of_softmax,
    },
];

/// `x - max(x)` along one axis.
struct Shifted {
    sub: Two,
    max: Term,
    axis: usize,
}

impl Shifted {
    fn source(&self) -> Id {
        self.sub.left
    }

    fn term(&self) -> Term {
        self.sub.over(Term::Class(self.source()), self.max.clone())
    }
}

fn shifted(r: Reader<'_, '_>, class: Id) -> Option<Shifted> {
    r.binary(class, BinaryOp::Sub).find_map(|sub| {
        let (max, axis) = r.reduce(sub.right, ReduceOp::Max).find_map(|(max, axes)| match axes {
            [axis] if r.same(max.operand, sub.left) => Some((max.over(Term::Class(sub.left)), *axis)),
            _ => None,
        })?;
        Some(Shifted { sub, max, axis })
    })
}

/// The sum of class `e` along one axis, as a term over `inner`.
fn sum_of(r: Reader<'_, '_>, class: Id, e: Id, axis: usize, inner: &Term) -> Option<Term> {
    r.reduce(class, ReduceOp::Sum)
        .find(|(sum, axes)| *axes == [axis] && r.same(sum.operand, e))
        .map(|(sum, _)| sum.over(inner.clone()))
}

fn composite(kind: Composite, source: Id) -> Term {
    Term::Op(Op::Composite(kind), vec![Term::Class(source)])
}

fn softmax(r: Reader<'_, '_>, class: Id) -> Vec<Found> {
    let quotient = |e: Id, sum: Id, whole: &dyn Fn(Term, Term) -> Term| {
        r.unary(e, UnaryOp::Exp).find_map(|exp| {
            let shifted = shifted(r, exp.operand)?;
            let e_term = exp.over(shifted.term());
            let sum = sum_of(r, sum, e, shifted.axis, &e_term)?;
            Some(Found {
                seen: whole(e_term, sum),
                equal: composite(Composite::Softmax { axis: shifted.axis }, shifted.source()),
            })
        })
    };
    let divided = r
        .binary(class, BinaryOp::Div)
        .filter_map(|div| quotient(div.left, div.right, &|e, sum| div.over(e, sum)));
    let multiplied = r.binary(class, BinaryOp::Mul).filter_map(|mul| {
        r.unary(mul.right, UnaryOp::Recip)
            .find_map(|recip| quotient(mul.left, recip.operand, &|e, sum| mul.over(e, recip.over(sum))))
    });
    divided.chain(multiplied).collect()
}

fn log_softmax(r: Reader<'_, '_>, class: Id) -> Vec<Found> {
    let found = r.binary(class, BinaryOp::Sub).filter_map(|sub| {
        let shifted = shifted(r, sub.left)?;
        let inner = shifted.term();
        let log = r.unary(sub.right, UnaryOp::Log).find_map(|log| {
            r.reduce(log.operand, ReduceOp::Sum).find_map(|(sum, axes)| {
                let exp = r.unary(sum.operand, UnaryOp::Exp).find(|e| r.same(e.operand, sub.left));
                let exp = exp.filter(|_| axes == [shifted.axis])?;
                Some(log.over(sum.over(exp.over(inner.clone()))))
            })
        })?;
        Some(Found {
            seen: sub.over(inner.clone(), log),
            equal: composite(Composite::LogSoftmax { axis: shifted.axis }, shifted.source()),
        })
    });
    found.collect()
}

fn log_of_softmax(r: Reader<'_, '_>, class: Id) -> Vec<Found> {
    let found = r.unary(class, UnaryOp::Log).flat_map(|log| {
        r.others(log.operand).filter_map(move |(node, op)| match op {
            Op::Composite(Composite::Softmax { axis }) => Some(Found {
                seen: log.over(Term::Node(node.payload, vec![Term::Class(node.children[0])])),
                equal: composite(Composite::LogSoftmax { axis: *axis }, node.children[0]),
            }),
            _ => None,
        })
    });
    found.collect()
}
