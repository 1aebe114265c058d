//! Scaled dot-product attention from its decomposed form.
//!
//! ```text
//! w = softmax(contract(q · a, k · b, transposed) · c + mask); contract(w, v)
//!     equals      attention q, k, v, mask   scale = a · b · c
//! ```
//!
//! The scale may be on the queries, on the keys, on both or on the scores. A mask is added (any number of them) or
//! selects a very negative number; a mask that is "column ≤ row + (columns − rows)", by whatever index arithmetic or as
//! a constant, becomes `causal`, which hides by -∞. Where the model hides by a finite number, that is the same only if
//! every row sees something: a causal row sees itself, unless another mask hides that too. Then the weights go to what
//! is hidden least, so such a mask stays numbers. Keys and values that are repeated for groups of queries
//! (`reshape(broadcast(reshape k))`) are taken before the repetition. Queries, keys and values stay the views that they
//! are: scheduling takes those in as strided loads.

use egg::{Id, Language};
use ir::op::{BinaryOp, Composite, Elementwise, View};
use ir::types::Scalar;
use ir::{DType, Graph, Op, Shape, Value};

use super::Recognizer;
use crate::analysis::band::Band;
use crate::analysis::index::{Fact, KnownElements};
use crate::analysis::{hides, known_scalar};
use crate::egraph::language::{Enode, Made, Payload};
use crate::egraph::term::{Found, Reader, Term, Two};

/// Scales and masks between the product and the softmax.
const MAX_STEPS: u32 = 6;

/// The recogniser.
pub const RULES: &[Recognizer] = &[Recognizer {
    name: "attention",
    sign: |op| matches!(op, Op::Contract(_) | Op::Composite(Composite::Softmax { .. })),
    find,
}];

/// What lies between the softmax and the product of queries and keys.
#[derive(Clone)]
struct Between {
    scale: f64,
    /// Outermost first.
    masks: Vec<Mask>,
    /// Above a scale that was passed, a mask would be scaled too.
    scaled: bool,
}

/// One mask on the way.
#[derive(Clone, Copy)]
struct Mask {
    kind: MaskKind,
    /// Whether it is "column ≤ row".
    causal: Option<Causal>,
}

#[derive(Clone, Copy)]
enum MaskKind {
    /// Numbers that are added.
    Added(Id),
    /// Keeps scores where true; -∞ elsewhere.
    Kept(Id),
    /// Keeps scores where true; elsewhere a very negative number is in their place, whatever other masks had made of
    /// them.
    Replaced { keep: Id, by: Id },
}

/// What a causal mask hides by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Causal {
    Infinite,
    Finite,
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
        for (softmax, weights) in softmaxes(r, outer.left) {
            let start = Between {
                scale: 1.0,
                masks: Vec::new(),
                scaled: false,
            };
            let mut all = Vec::new();
            scores(r, softmax.children()[0], full, start, &mut Vec::new(), &mut all);
            for scores in all {
                found.extend(whole(r, class, outer, full, &scores, &weights));
            }
        }
    }
    found
}

/// The softmaxes that a class is, some computed in a wider type and cast back; with each, how it is made of its
/// operand.
fn softmaxes<'a>(r: Reader<'a, '_>, class: Id) -> Vec<(&'a Enode, Weights)> {
    let softmax = |class: Id| {
        r.others(class)
            .filter(|(_, op)| matches!(op, Op::Composite(Composite::Softmax { axis: 3 })))
            .map(|(node, _)| node)
    };
    let mut all: Vec<(&Enode, Weights)> = softmax(class).map(|n| (n, vec![n.payload])).collect();
    for (cast, inner) in float_casts(r, class) {
        all.extend(softmax(inner).map(|n| (n, vec![n.payload, cast])));
    }
    all
}

/// What is applied to the scores one after another to make the weights.
type Weights = Vec<Payload>;

/// Casts from one float type to another that a class is: the payload and the operand of each. Attention computes its
/// scores and weights in f32 whatever the type of its operands, so that what is rounded in between is as good or
/// better.
fn float_casts(r: Reader<'_, '_>, class: Id) -> Vec<(Payload, Id)> {
    r.nodes(class)
        .filter_map(|node| {
            let Payload::Elementwise(Elementwise::Cast(to)) = node.payload else {
                return None;
            };
            let inner = node.children[0];
            let from = r.ty(inner)?.dtype;
            let narrow = |t: DType| matches!(t, DType::F16 | DType::BF16);
            let pair = (narrow(from) && to == DType::F32) || (from == DType::F32 && narrow(to));
            pair.then_some((node.payload, inner))
        })
        .collect()
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
        for (inner, next) in steps(r, class, node, kind, full, &between) {
            passed.push((node.payload, node.children.to_vec(), inner));
            scores(r, node.children[inner], full, next, passed, out);
            passed.pop();
        }
    }
}

/// What one op between the softmax and the product may be: for each way to read it, which operand goes on towards the
/// product, and what lies between with it.
fn steps(
    r: Reader<'_, '_>,
    class: Id,
    node: &Enode,
    kind: Elementwise,
    full: &Shape,
    between: &Between,
) -> Vec<(usize, Between)> {
    let mut next = between.clone();
    match kind {
        Elementwise::Binary(op @ (BinaryOp::Mul | BinaryOp::Div)) => {
            let Some(c) = r.facts(node.children[1]).number else {
                return Vec::new();
            };
            next.scaled = true;
            next.scale = if op == BinaryOp::Mul {
                next.scale * c
            } else {
                next.scale / c
            };
            vec![(0, next)]
        }
        // The mask may come first.
        Elementwise::Binary(BinaryOp::Add) if !between.scaled => [(0, 1), (1, 0)]
            .into_iter()
            .filter(|(_, mask)| fits(r, node.children[*mask], full))
            .map(|(inner, mask)| {
                let mask = node.children[mask];
                let mut next = between.clone();
                next.masks.push(Mask {
                    kind: MaskKind::Added(mask),
                    causal: causal_addend(r, mask, full),
                });
                (inner, next)
            })
            .collect(),
        Elementwise::Select if !between.scaled => {
            let (keep, by) = (node.children[0], node.children[2]);
            if !fits(r, keep, full) {
                return Vec::new();
            }
            let causal = is_causal_bool(r, keep, full);
            next.masks.push(match r.facts(by).number {
                Some(f64::NEG_INFINITY) => Mask {
                    kind: MaskKind::Kept(keep),
                    causal: causal.then_some(Causal::Infinite),
                },
                Some(number) if causal && hides(number, scores_in(r, by)) && fits(r, by, full) => Mask {
                    kind: MaskKind::Replaced { keep, by },
                    causal: Some(Causal::Finite),
                },
                _ => return Vec::new(),
            });
            vec![(1, next)]
        }
        Elementwise::Cast(_) if float_casts(r, class).iter().any(|(p, _)| *p == node.payload) => vec![(0, next)],
        _ => Vec::new(),
    }
}

fn fits(r: Reader<'_, '_>, mask: Id, full: &Shape) -> bool {
    r.shape(mask)
        .is_some_and(|s| Shape::broadcast(s, full).as_ref() == Some(full))
}

/// The attention that equals the outer product, if its parts have the shapes for it.
fn whole(r: Reader<'_, '_>, class: Id, outer: Two, full: &Shape, scores: &Scores, weights: &Weights) -> Option<Found> {
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
    // Where scores are wider than the operands on the way, the whole is in the result's type: narrower operands are
    // widened.
    let dtype = r.ty(class)?.dtype;
    let in_type = |part: Id| {
        let from = r.ty(part)?.dtype;
        match (from, dtype) {
            _ if from == dtype => Some(Term::Class(part)),
            (DType::F16 | DType::BF16, DType::F32) => Some(Term::Op(Op::cast(dtype), vec![Term::Class(part)])),
            _ => None,
        }
    };
    let mut turned = scores.keys_transposed;
    if let (Some((few_k, k_seen, below_transpose)), Some((few_v, v_seen))) =
        (before_repeat_of_keys(r, k), before_repeat(r, v))
        && r.shape(few_k)?[1] == r.shape(few_v)?[1]
    {
        turned ^= below_transpose;
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
    let keys = match turned {
        true => Term::Op(Op::View(View::Transpose(vec![0, 1, 3, 2])), vec![in_type(k)?]),
        false => in_type(k)?,
    };
    let mut operands = vec![in_type(q)?, keys, in_type(v)?];
    let (causal, masks) = without_causal(&scores.between.masks);
    let mask = joined(r, &masks)?;
    // Numbers of a wider type would lose digits.
    if mask.as_ref().is_some_and(|(_, ty)| *ty != DType::Bool && *ty != dtype) {
        return None;
    }
    let composite = Composite::Attention {
        scale: Scalar::Float(scale),
        causal,
        mask: mask.is_some(),
        scales: false,
    };
    operands.extend(mask.map(|(term, _)| term));
    Some(Found {
        seen: outer.over(
            weights
                .iter()
                .fold(seen, |term, payload| Term::Node(*payload, vec![term])),
            v_term,
        ),
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

/// As [`before_repeat`], also where the repeated keys are transposed; says whether they are.
fn before_repeat_of_keys(r: Reader<'_, '_>, class: Id) -> Option<(Id, Term, bool)> {
    if let Some((few, seen)) = before_repeat(r, class) {
        return Some((few, seen, false));
    }
    r.views(class).find_map(|(transpose, view)| {
        if !matches!(view, View::Transpose(axes) if axes[..] == [0, 1, 3, 2]) {
            return None;
        }
        let (few, seen) = before_repeat(r, transpose.operand)?;
        Some((few, transpose.over(seen), true))
    })
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

/// Says whether the attention is causal by itself, and which masks are left.
fn without_causal(masks: &[Mask]) -> (bool, Vec<Mask>) {
    // Every row sees itself: what the others are hidden by does not matter.
    if masks.iter().all(|m| m.causal.is_some()) {
        return (!masks.is_empty(), Vec::new());
    }
    let mut left: Vec<Mask> = Vec::new();
    for mask in masks {
        // What replaces scores shows positions again that are hidden below it.
        let shown = left.iter().any(|m| matches!(m.kind, MaskKind::Replaced { .. }));
        if mask.causal != Some(Causal::Infinite) || shown {
            left.push(*mask);
        }
    }
    (left.len() < masks.len(), left)
}

/// All masks as one: bools by "and", others by addition, innermost first.
fn joined(r: Reader<'_, '_>, masks: &[Mask]) -> Option<Option<(Term, DType)>> {
    let mut all: Option<(Term, DType)> = None;
    for mask in masks.iter().rev() {
        let next = match mask.kind {
            MaskKind::Added(mask) | MaskKind::Kept(mask) => (Term::Class(mask), r.ty(mask)?.dtype),
            MaskKind::Replaced { keep, by } => {
                let dtype = r.ty(by)?.dtype;
                let below = match all {
                    None => filled(dtype, 0.0),
                    Some((term, ty)) => added(term, ty, dtype),
                };
                // A score is nothing beside such a number: it is rounded away.
                let terms = vec![Term::Class(keep), below, Term::Class(by)];
                all = Some((Term::Op(Op::Elementwise(Elementwise::Select), terms), dtype));
                continue;
            }
        };
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
    Some(all)
}

fn filled(dtype: DType, number: f64) -> Term {
    Term::Made(Made::Filled(dtype, Vec::new(), number.to_bits()))
}

/// A mask as numbers to add.
fn added(mask: Term, ty: DType, dtype: DType) -> Term {
    if ty != DType::Bool {
        return mask;
    }
    let select = Op::Elementwise(Elementwise::Select);
    Term::Op(select, vec![mask, filled(dtype, 0.0), filled(dtype, f64::NEG_INFINITY)])
}

/// The type that scores beside a number are computed in.
fn scores_in(r: Reader<'_, '_>, number: Id) -> DType {
    let region = &r.egraph.analysis;
    match (r.ty(number).map(|ty| ty.dtype), region.computed_in) {
        (Some(DType::F32), Some(narrow)) => narrow,
        (dtype, _) => dtype.unwrap_or(DType::F32),
    }
}

/// Says whether a bool class is `column ≤ row` over the last two axes of the scores, the last row and the last column
/// beside each other.
fn is_causal_bool(r: Reader<'_, '_>, keep: Id, full: &Shape) -> bool {
    let region = &r.egraph.analysis;
    let (Some(positions), Some(value)) = (region.positions, r.facts(keep).value) else {
        return false;
    };
    is_causal(positions, value, region.graph, full)
}

/// Says whether a float class adds 0 where causal and hides elsewhere, and by what.
fn causal_addend(r: Reader<'_, '_>, mask: Id, full: &Shape) -> Option<Causal> {
    let region = &r.egraph.analysis;
    causal_mask(
        region.graph,
        region.positions?,
        r.facts(mask).value?,
        full,
        scores_in(r, mask),
    )
}

fn is_causal(facts: &KnownElements, keep: Value, g: &Graph, full: &Shape) -> bool {
    // The first row sees a key at least, and with it each row.
    let past = full[3].clone() - &full[2];
    if !past.at_least(0, g.symbols()) {
        return false;
    }
    if let Some(band) = constant_band(g, keep, full) {
        return band.is_some_and(|band| band.hidden == 0.0);
    }
    let Some(Fact::AtLeastZero(a)) = facts.get(keep) else {
        return false;
    };
    let rank = a.coefficients.len();
    rank >= 2
        && a.constant == past
        && a.coefficients[rank - 1].is(-1)
        && a.coefficients[rank - 2].is(1)
        && a.coefficients[..rank - 2].iter().all(|c| c.is(0))
}

/// The causal band that a constant mask is for these scores; `None` where the mask is no constant, `Some(None)` where
/// it is another one.
fn constant_band(g: &Graph, mask: Value, full: &Shape) -> Option<Option<Band>> {
    let tensor = g.as_constant(mask)?;
    let [.., rows, columns] = tensor.shape[..] else {
        return Some(None);
    };
    let (rows, columns) = (rows as i64, columns as i64);
    if !full[2].is(rows) || !full[3].is(columns) {
        return Some(None);
    }
    Some(Band::of(tensor).filter(|band| band.is_causal(rows, columns)))
}

fn causal_mask(g: &Graph, facts: &KnownElements, mask: Value, full: &Shape, scores: DType) -> Option<Causal> {
    let by = |hidden: f64| match hidden == f64::NEG_INFINITY {
        true => Causal::Infinite,
        false => Causal::Finite,
    };
    let node = g.node(mask.node);
    match &node.op {
        Op::View(View::Broadcast(_) | View::Reshape(_)) => {
            // What is added or left out in front of the last two axes moves none of their elements.
            let (from, to) = (&g.ty(node.operands[0]).shape, &g.ty(mask).shape);
            let last = |s: &Shape| s.0[s.rank().saturating_sub(2)..].to_vec();
            let same = from.rank() >= 2 && last(from) == last(to);
            same.then(|| causal_mask(g, facts, node.operands[0], full, scores))?
        }
        Op::Elementwise(Elementwise::Select) => {
            let number = |i: usize| known_scalar(g, node.operands[i]).map(|s| s.as_f64());
            let hidden = number(2).filter(|v| hides(*v, scores))?;
            let causal = number(1) == Some(0.0) && is_causal(facts, node.operands[0], g, full);
            causal.then_some(by(hidden))
        }
        Op::Constant(_) => {
            let past = full[3].clone() - &full[2];
            let band = constant_band(g, mask, full)??;
            let known = past.at_least(0, g.symbols()) && hides(band.hidden, scores);
            known.then_some(by(band.hidden))
        }
        _ => None,
    }
}
