//! Attention as a body, which keys a query can see, and two chained products as a body of the same form.

use serde::{Deserialize, Serialize};

use super::{AxisId, Expr, ExprId, Exprs, Stmt, VarId};

/// For each point of `batch` and `q`: scores over `k`, what they weigh, and the weighted sum of `v`; then the epilogue.
///
/// `acc = Σ_d query · key`; `score` is an expression of `Var(acc)` over `batch`, `q`, `k` (scale, mask, causal select);
/// `weights` says what the scores weigh; `out = Σ_k weight · value`, over `batch`, `q`, `dv`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct AttentionBody {
    pub batch: Vec<AxisId>,
    pub q: AxisId,
    pub k: AxisId,
    pub d: AxisId,
    pub dv: AxisId,
    /// Over `batch`, `q`, `d`.
    pub query: ExprId,
    /// Over `batch`, `k`, `d`.
    pub key: ExprId,
    /// Over `batch`, `k`, `dv`.
    pub value: ExprId,
    pub acc: VarId,
    pub score: ExprId,
    pub weights: Weights,
    pub out: VarId,
    /// Set where the kernel has a part of the keys, whose outputs another kernel brings together with those of the
    /// other parts.
    pub row_weights: Option<RowWeights>,
    /// Lets and stores over `batch`, `q`, `dv`.
    pub epilogue: Vec<Stmt>,
    /// The keys that a query can see, where the score hides the others by their position: their tiles are skipped.
    pub range: Option<KeyRange>,
}

/// What the scores of a row weigh.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Weights {
    /// Their softmax over `k`: attention.
    Softmax,
    /// Themselves: two products, `f(X · A) · B`, with the first's results in registers. Rows of `X` are the queries,
    /// `k` is the axis between the products, and `f` the score. No range of it is left out, and its parts are sums
    /// alone.
    Scores,
}

/// The weights of a row's keys, in `f32`: `largest` is about the largest score, minus infinity where all keys are
/// masked, and `total` is `Σ_k exp(score - largest)`. A GPU kernel may leave `largest` behind by a little, so that
/// fewer sums are scaled again. They are two numbers because a large score leaves no digits to the logarithm of the
/// total.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RowWeights {
    pub largest: VarId,
    pub total: VarId,
}

impl RowWeights {
    /// Both variables.
    pub fn vars(self) -> [VarId; 2] {
        [self.largest, self.total]
    }
}

/// The keys that a query can see: `first ≤ k < end`. The score hides every other key; it may hide some of these too.
///
/// This says nothing that the score does not say. A causal mask, a sliding window and the length of a sequence each
/// bound the range. Bounds may lie outside of the keys, and a range may be empty.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct KeyRange {
    /// In `i64`, over `batch` and `q`; it never falls as `q` grows. `None` is 0.
    pub first: Option<ExprId>,
    /// As `first`; `None` is the number of keys.
    pub end: Option<ExprId>,
    /// The score of the keys in the range, over `batch`, `q`, `k`: without the conditions that hold for all of them.
    pub inside: ExprId,
    /// Set where other keys score a very negative finite number, not minus infinity: whether a query, over `batch` and
    /// `q`, sees nothing at all. It weighs the keys that are hidden, so none of them is skipped for it. Of a part of
    /// the keys, no key of any part is seen.
    pub nothing: Option<ExprId>,
}

impl AttentionBody {
    /// Says whether later queries see more keys, as with a causal mask and no window.
    pub fn sees_more(&self, exprs: &Exprs) -> bool {
        let moves = |bound: Option<ExprId>| bound.is_some_and(|e| exprs.names_axis(e, self.q));
        self.range.as_ref().is_some_and(|r| moves(r.end) && !moves(r.first))
    }
}

impl Exprs {
    /// Says whether an axis occurs in an expression.
    pub fn names_axis(&self, e: ExprId, axis: AxisId) -> bool {
        self.occurs(e, |e| *e == Expr::Axis(axis))
    }

    /// Says whether an expression, or one in it, is as asked.
    pub fn occurs(&self, e: ExprId, is: impl Fn(&Expr) -> bool) -> bool {
        let (mut open, mut seen) = (vec![e], vec![false; self.len()]);
        while let Some(e) = open.pop() {
            if std::mem::replace(&mut seen[crate::entity::Entity::index(e)], true) {
                continue;
            }
            if is(&self[e]) {
                return true;
            }
            self[e].for_each_operand(|o| open.push(o));
        }
        false
    }
}
