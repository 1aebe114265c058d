//! Scaled dot-product attention from its decomposed form.
//!
//! ```text
//! w = softmax(contract(q · a, k · b, transposed) · c + mask); contract(w, v)
//!     equals      attention q, k, v, mask   scale = a · b · c
//! ```
//!
//! The scale may be on the queries, on the keys, on both or on the scores. A mask is added (any number of them) or selects
//! a very negative number; a mask that is "column ≤ row", by whatever index arithmetic, becomes `causal`. Keys and values
//! that are repeated for groups of queries (`reshape(broadcast(reshape k))`) are taken before the repetition. Queries, keys
//! and values stay the views that they are: scheduling takes those in as strided loads.

use egg::{Id, Language};
use ir::op::{BinaryOp, Composite, Elementwise, View};
use ir::types::Scalar;
use ir::{DType, Graph, Op, Shape, Value};

use super::Recognizer;
use crate::analysis::index::{Fact, Facts};
use crate::analysis::known_scalar;
use crate::egraph::language::{Made, Payload};
use crate::egraph::term::{Found, Reader, Term, Two};

/// Numbers below this hide a position whatever its score.
const HIDDEN: f64 = -1e30;
/// Scales and masks between the product and the softmax.
const MAX_STEPS: u32 = 6;

/// The recogniser.
pub const RULES: &[Recognizer] = &[Recognizer {
    name: "attention",
    find,
}];

/// What lies between the softmax and the product of queries and keys.
#[derive(Clone)]
struct Between {
    scale: f64,
    causal: bool,
    masks: Vec<Id>,
    /// Above a scale that was passed, a mask would be scaled too.
    scaled: bool,
}

/// A product of queries and keys below scales and masks.
struct Scores {
    product: Two,
    keys_transposed: bool,
    between: Between,
    /// What was passed, outermost last: each wraps the term below it.
    passed: Vec<(Payload, Vec<Id>, usize)>,
}

fn find(r: Reader<'_, '_>, class: Id) -> Vec<Found> {
    let mut found = Vec::new();
    for (transpose_lhs, transpose_rhs, outer) in r.products(class) {
        let Some(full) = r.shape(outer.left).filter(|s| s.rank() == 4) else {
            continue;
        };
        if transpose_lhs || transpose_rhs {
            continue;
        }
        for (softmax, op) in r.others(outer.left) {
            if !matches!(op, Op::Composite(Composite::Softmax { axis: 3 })) {
                continue;
            }
            let start = Between {
                scale: 1.0,
                causal: false,
                masks: Vec::new(),
                scaled: false,
            };
            let mut all = Vec::new();
            scores(r, softmax.children()[0], full, start, &mut Vec::new(), &mut all);
            for scores in all {
                let weights = |term| Term::Node(softmax.payload, vec![term]);
                found.extend(whole(r, outer, full, &scores, weights));
            }
        }
    }
    found
}

/// Walks from the softmax's operand to products, noting scale and masks on the way.
fn scores(
    r: Reader<'_, '_>,
    class: Id,
    full: &Shape,
    between: Between,
    passed: &mut Vec<(Payload, Vec<Id>, usize)>,
    out: &mut Vec<Scores>,
) {
    for (transpose_lhs, transpose_rhs, product) in r.products(class) {
        if !transpose_lhs {
            out.push(Scores {
                product,
                keys_transposed: !transpose_rhs,
                between: between.clone(),
                passed: passed.clone(),
            });
        }
    }
    if passed.len() as u32 == MAX_STEPS {
        return;
    }
    for node in r.nodes(class) {
        let Payload::Elementwise(kind) = node.payload else {
            continue;
        };
        let mut next = between.clone();
        let inner = match kind {
            Elementwise::Binary(op @ (BinaryOp::Mul | BinaryOp::Div)) => {
                let Some(c) = r.facts(node.children[1]).number else {
                    continue;
                };
                next.scaled = true;
                next.scale = if op == BinaryOp::Mul {
                    next.scale * c
                } else {
                    next.scale / c
                };
                0
            }
            Elementwise::Binary(BinaryOp::Add) if !between.scaled => {
                let mask = node.children[1];
                if !fits(r, mask, full) {
                    continue;
                }
                if is_causal_addend(r, mask, full) {
                    next.causal = true;
                } else {
                    next.masks.push(mask);
                }
                0
            }
            Elementwise::Select if !between.scaled => {
                let (keep, hidden) = (node.children[0], r.facts(node.children[2]).number);
                match hidden {
                    Some(h) if h < HIDDEN && is_causal_bool(r, keep, full) => next.causal = true,
                    Some(f64::NEG_INFINITY) if fits(r, keep, full) => next.masks.push(keep),
                    _ => continue,
                }
                1
            }
            _ => continue,
        };
        passed.push((node.payload, node.children.to_vec(), inner));
        scores(r, node.children[inner], full, next, passed, out);
        passed.pop();
    }
}

fn fits(r: Reader<'_, '_>, mask: Id, full: &Shape) -> bool {
    r.shape(mask)
        .is_some_and(|s| Shape::broadcast(s, full).as_ref() == Some(full))
}

/// The attention that equals the outer product, if its parts have the shapes for it.
fn whole(
    r: Reader<'_, '_>,
    outer: Two,
    full: &Shape,
    scores: &Scores,
    weights: impl Fn(Term) -> Term,
) -> Option<Found> {
    let mut scale = scores.between.scale;
    let (q, q_term) = unscaled(r, scores.product.left, &mut scale);
    let (mut k, mut k_term) = unscaled(r, scores.product.right, &mut scale);
    let (mut v, mut v_term) = (outer.right, Term::Class(outer.right));
    // Contractions broadcast their batches; attention does not.
    for part in [q, k, v] {
        let shape = r.shape(part)?;
        if shape.rank() != 4 || shape[..2] != full[..2] {
            return None;
        }
    }
    if !scale.is_finite() {
        return None;
    }
    if let (Some((few_k, k_seen)), Some((few_v, v_seen))) = (before_repeat(r, k), before_repeat(r, v))
        && r.shape(few_k)?[1] == r.shape(few_v)?[1]
    {
        k_term = match k_term {
            Term::Node(payload, operands) => Term::Node(payload, vec![k_seen, operands.into_iter().nth(1)?]),
            _ => k_seen,
        };
        (k, v, v_term) = (few_k, few_v, v_seen);
    }
    let mut seen = scores.product.over(q_term, k_term);
    for (payload, children, inner) in scores.passed.iter().rev() {
        let mut operands: Vec<Term> = children.iter().map(|c| Term::Class(*c)).collect();
        operands[*inner] = seen;
        seen = Term::Node(*payload, operands);
    }
    let keys = match scores.keys_transposed {
        true => Term::Op(Op::View(View::Transpose(vec![0, 1, 3, 2])), vec![Term::Class(k)]),
        false => Term::Class(k),
    };
    let mut operands = vec![Term::Class(q), keys, Term::Class(v)];
    let mask = joined(r, &scores.between.masks)?;
    let composite = Composite::Attention {
        scale: Scalar::Float(scale),
        causal: scores.between.causal,
        mask: mask.is_some(),
    };
    operands.extend(mask);
    Some(Found {
        seen: outer.over(weights(seen), v_term),
        equal: Term::Op(Op::Composite(composite), operands),
    })
}

/// Takes a scale off queries or keys.
fn unscaled(r: Reader<'_, '_>, class: Id, scale: &mut f64) -> (Id, Term) {
    let scaled = r
        .with_number(class, BinaryOp::Mul)
        .find(|(m, _)| r.shape(m.left) == r.shape(class));
    match scaled {
        Some((m, c)) => {
            *scale *= c;
            (m.left, m.over(Term::Class(m.left), Term::Class(m.right)))
        }
        None => (class, Term::Class(class)),
    }
}

/// `reshape(broadcast(reshape(x [B, h, T, D] to [B, h, 1, T, D]) to [B, h, g, T, D]) to [B, h·g, T, D])` → x.
fn before_repeat(r: Reader<'_, '_>, class: Id) -> Option<(Id, Term)> {
    let shape = r.shape(class)?;
    r.views(class).find_map(|(merge, view)| {
        let (View::Reshape(_), repeated) = (view, merge.operand) else {
            return None;
        };
        r.views(repeated).find_map(|(widen, view)| {
            let View::Broadcast(wide) = view else { return None };
            let one = r.shape(widen.operand)?;
            if wide.rank() != 5 || one.rank() != 5 {
                return None;
            }
            let others = [0, 1, 3, 4].iter().all(|i| one[*i] == wide[*i]);
            let merged = wide[1].clone() * &wide[2] == shape[1] && wide[3] == shape[2] && wide[4] == shape[3];
            if !one[2].is(1) || !others || !merged || wide[0] != shape[0] {
                return None;
            }
            r.views(widen.operand).find_map(|(split, view)| {
                let View::Reshape(_) = view else { return None };
                let have = r.shape(split.operand)?;
                let want = [&one[0], &one[1], &one[3], &one[4]];
                let same = have.rank() == 4 && have.iter().zip(want).all(|(a, b)| a == b);
                let seen = merge.over(widen.over(split.over(Term::Class(split.operand))));
                same.then_some((split.operand, seen))
            })
        })
    })
}

/// All masks as one: bools by "and", others by addition.
fn joined(r: Reader<'_, '_>, masks: &[Id]) -> Option<Option<Term>> {
    let mut all: Option<(Term, DType)> = None;
    for mask in masks {
        let next = (Term::Class(*mask), r.ty(*mask)?.dtype);
        all = Some(match all {
            None => next,
            Some(have) if have.1 == DType::Bool && next.1 == DType::Bool => {
                (Term::Op(Op::binary(BinaryOp::And), vec![have.0, next.0]), DType::Bool)
            }
            Some(have) => {
                let dtype = if have.1 == DType::Bool { next.1 } else { have.1 };
                let parts = [have, next].map(|(term, ty)| added(term, ty, dtype)).to_vec();
                (Term::Op(Op::binary(BinaryOp::Add), parts), dtype)
            }
        });
    }
    Some(all.map(|(term, _)| term))
}

/// A mask as numbers to add.
fn added(mask: Term, ty: DType, dtype: DType) -> Term {
    if ty != DType::Bool {
        return mask;
    }
    let number = |n: f64| Term::Made(Made::Filled(dtype, Vec::new(), n.to_bits()));
    let select = Op::Elementwise(Elementwise::Select);
    Term::Op(select, vec![mask, number(0.0), number(f64::NEG_INFINITY)])
}

/// Says whether a bool class is `column ≤ row` over the last two axes of the scores.
fn is_causal_bool(r: Reader<'_, '_>, keep: Id, full: &Shape) -> bool {
    let region = &r.egraph.analysis;
    let (Some(positions), Some(value)) = (region.positions, r.facts(keep).value) else {
        return false;
    };
    is_causal(positions, value, region.graph, full)
}

/// Says whether a float class adds 0 where causal and hides elsewhere.
fn is_causal_addend(r: Reader<'_, '_>, mask: Id, full: &Shape) -> bool {
    let region = &r.egraph.analysis;
    let (Some(positions), Some(value)) = (region.positions, r.facts(mask).value) else {
        return false;
    };
    is_causal_mask(region.graph, positions, value, full)
}

fn is_causal(facts: &Facts, keep: Value, g: &Graph, full: &Shape) -> bool {
    if full[2] != full[3] {
        return false;
    }
    if let Some(t) = g.as_constant(keep)
        && let Some(n) = square(&t.shape, full)
    {
        return t
            .bytes
            .iter()
            .enumerate()
            .all(|(i, b)| (*b != 0) == (i % n <= i / n % n));
    }
    let Some(Fact::AtLeastZero(a)) = facts.get(keep) else {
        return false;
    };
    let rank = a.coefficients.len();
    rank >= 2
        && a.constant.is(0)
        && a.coefficients[rank - 1].is(-1)
        && a.coefficients[rank - 2].is(1)
        && a.coefficients[..rank - 2].iter().all(|c| c.is(0))
}

/// The size of a constant mask over `[1, …, S, S]`, if it is one for these scores.
fn square(shape: &[usize], full: &Shape) -> Option<usize> {
    let rank = shape.len();
    let n = *shape.last()?;
    let leading = rank >= 2 && shape[..rank - 2].iter().all(|d| *d == 1);
    (leading && shape[rank - 2] == n && n > 1 && full[3].is(n as i64)).then_some(n)
}

fn is_causal_mask(g: &Graph, facts: &Facts, mask: Value, full: &Shape) -> bool {
    let node = g.node(mask.node);
    match &node.op {
        Op::View(View::Broadcast(_)) => is_causal_mask(g, facts, node.operands[0], full),
        Op::Elementwise(Elementwise::Select) => {
            let number = |i: usize| known_scalar(g, node.operands[i]).map(|s| s.as_f64());
            number(1) == Some(0.0)
                && number(2).is_some_and(|v| v < HIDDEN)
                && is_causal(facts, node.operands[0], g, full)
        }
        Op::Constant(_) if full[2] == full[3] => {
            let Some(t) = g.as_constant(mask) else { return false };
            if t.elements() > 1 << 20 || !t.dtype.is_float() {
                return false;
            }
            let Some(n) = square(&t.shape, full) else { return false };
            t.to_f64()
                .iter()
                .enumerate()
                .all(|(i, v)| if i % n <= i / n % n { *v == 0.0 } else { *v < HIDDEN })
        }
        _ => false,
    }
}
