//! Which keys a query can see: bounds on the positions that an attention's score does not hide.
//!
//! Before: `score = select(k ≤ q ∧ q − k < 512 ∧ k < length, s, −∞)`. After: `first = q − 511`,
//! `end = min(q + 1, length)`, and `s` for the keys in between. A condition bounds the keys if it compares integers and
//! the key's position is in one term of them. Everything else stays a condition of the score. The score is the meaning;
//! bounds only say where it cannot be more than hidden.

use ir::DType;
use ir::kernel::{AxisId, Expr, ExprId, KeyRange};
use ir::op::{BinaryOp, UnaryOp};

use super::builder::Builder;
use crate::analysis::HIDDEN;

/// Constants beyond this might leave 32 bits together with a position.
const SMALL: u64 = 1 << 30;

/// What a score's conditions say of the keys.
struct Seen<'b, 'a> {
    b: &'b mut Builder<'a>,
    q: AxisId,
    k: AxisId,
    /// The position at which the key is read, and the key's own among all keys, which it is wherever there is such a
    /// key.
    read_at: Option<(ExprId, ExprId)>,
    first: Vec<ExprId>,
    end: Vec<ExprId>,
    /// How many conditions are bounds.
    bounds: usize,
    /// Whether some of them hides by a finite number.
    finite: bool,
}

/// A sum with the key's position in it: `coefficient · k + Σ sign · term + constant`.
#[derive(Default)]
struct Sum {
    coefficient: i64,
    terms: Vec<(i64, ExprId)>,
    constant: i64,
}

/// Finds the range of the keys that a score does not hide by their position. `read_at` is another name of a position,
/// and that; `all` are the positions, along the axis of keys, of the first of all keys and behind the last, of which
/// the axis may have a part.
pub fn range(
    b: &mut Builder<'_>,
    [q, k]: [AxisId; 2],
    read_at: Option<(ExprId, ExprId)>,
    all: [ExprId; 2],
    score: ExprId,
) -> Option<KeyRange> {
    let mut seen = Seen {
        b,
        q,
        k,
        read_at,
        first: Vec::new(),
        end: Vec::new(),
        bounds: 0,
        finite: false,
    };
    let inside = seen.score(score);
    let Seen {
        b, first, end, finite, ..
    } = seen;
    if first.is_empty() && end.is_empty() {
        return None;
    }
    // What is hidden by a finite number has weight where nothing else does, so every key of the range must be seen.
    let may_hide = |e: &Expr| matches!(e, Expr::Load { .. } | Expr::Select(..));
    if finite && b.exprs.occurs(inside, may_hide) {
        return None;
    }
    let mut fold = |op, all: Vec<ExprId>| all.into_iter().reduce(|a, e| b.binary(op, a, e));
    let (first, end) = (fold(BinaryOp::Max, first), fold(BinaryOp::Min, end));
    let nothing = finite.then(|| {
        let first = first.map_or(all[0], |e| b.binary(BinaryOp::Max, e, all[0]));
        let end = end.map_or(all[1], |e| b.binary(BinaryOp::Min, e, all[1]));
        b.binary(BinaryOp::Ge, first, end)
    });
    Some(KeyRange {
        first,
        end,
        inside,
        nothing,
    })
}

impl Seen<'_, '_> {
    fn expr(&self, e: ExprId) -> Expr {
        self.b.exprs[e].clone()
    }

    /// Returns the score, or what is added to it, of the keys that the bounds leave; notes the bounds.
    fn score(&mut self, e: ExprId) -> ExprId {
        match self.expr(e) {
            Expr::Select(c, seen, hidden) if self.hides(hidden) => {
                let (left, seen) = (self.unless_hidden(c, true, hidden), self.score(seen));
                left.map_or(seen, |left| self.b.select(left, seen, hidden))
            }
            Expr::Select(c, hidden, seen) if self.hides(hidden) => {
                let (left, seen) = (self.unless_hidden(c, false, hidden), self.score(seen));
                left.map_or(seen, |_| self.b.select(c, hidden, seen))
            }
            Expr::Binary(BinaryOp::Add, x, y) => {
                let (x, y) = (self.score(x), self.score(y));
                match (self.is_zero(x), self.is_zero(y)) {
                    (true, _) => y,
                    (_, true) => x,
                    _ => self.b.binary(BinaryOp::Add, x, y),
                }
            }
            // `(1 − seen) · hidden`, with the condition as a number.
            Expr::Binary(BinaryOp::Mul, x, hidden) if self.hides(hidden) && self.is_finite(hidden) => {
                let dtype = self.b.exprs.dtype(e);
                let (number, truth) = match self.expr(x) {
                    Expr::Binary(BinaryOp::Sub, one, number) if self.number(one) == Some(1.0) => (number, true),
                    _ => (x, false),
                };
                let Expr::Cast(_, c) = self.expr(number) else { return e };
                if self.b.exprs.dtype(c) != DType::Bool || self.unless_hidden(c, truth, hidden).is_some() {
                    return e;
                }
                self.b.number(dtype, 0.0)
            }
            Expr::Cast(to, x) if to.is_float() && self.b.exprs.dtype(x).is_float() => {
                let x = self.score(x);
                match self.is_zero(x) {
                    true => self.b.number(to, 0.0),
                    false => self.b.cast(to, x),
                }
            }
            _ => e,
        }
    }

    /// As [`Seen::condition`], of a condition that hides by a number.
    fn unless_hidden(&mut self, c: ExprId, truth: bool, hidden: ExprId) -> Option<ExprId> {
        let before = self.bounds;
        let left = self.condition(c, truth);
        self.finite |= self.bounds > before && self.is_finite(hidden);
        left
    }

    /// Notes the bounds that hold where a condition is `truth`. Returns what is left of it: `None` where the bounds say
    /// all of it.
    fn condition(&mut self, c: ExprId, truth: bool) -> Option<ExprId> {
        match self.expr(c) {
            Expr::Const(DType::Bool, v) if v.as_bool() == truth => None,
            Expr::Unary(UnaryOp::Not, x) => self.condition(x, !truth).map(|_| c),
            Expr::Binary(BinaryOp::And, x, y) if truth && self.b.exprs.dtype(c) == DType::Bool => {
                match (self.condition(x, true), self.condition(y, true)) {
                    (Some(x), Some(y)) => Some(self.b.binary(BinaryOp::And, x, y)),
                    (x, y) => x.or(y),
                }
            }
            Expr::Binary(BinaryOp::Or, x, y) if !truth && self.b.exprs.dtype(c) == DType::Bool => {
                let (x, y) = (self.condition(x, false), self.condition(y, false));
                x.or(y).map(|_| c)
            }
            // A bool that was a number for a while.
            Expr::Cast(DType::Bool, number) => match self.expr(number) {
                Expr::Cast(_, inner) if self.b.exprs.dtype(inner) == DType::Bool => {
                    self.condition(inner, truth).map(|_| c)
                }
                _ => Some(c),
            },
            Expr::Binary(op, x, y) if op.is_comparison() => match self.comparison(op, x, y, truth) {
                true => None,
                false => Some(c),
            },
            _ => Some(c),
        }
    }

    /// Notes the bound that a comparison is, if it is one.
    fn comparison(&mut self, op: BinaryOp, x: ExprId, y: ExprId, truth: bool) -> bool {
        // As `sign · (x − y) ≥ slack`.
        let (sign, slack) = match (op, truth) {
            (BinaryOp::Ge, true) | (BinaryOp::Lt, false) => (1, 0),
            (BinaryOp::Gt, true) | (BinaryOp::Le, false) => (1, 1),
            (BinaryOp::Le, true) | (BinaryOp::Gt, false) => (-1, 0),
            (BinaryOp::Lt, true) | (BinaryOp::Ge, false) => (-1, 1),
            _ => return false,
        };
        let mut sum = Sum::default();
        if !self.add(x, sign, &mut sum) || !self.add(y, -sign, &mut sum) {
            return false;
        }
        // `k + rest ≥ slack` is `k ≥ slack − rest`; `rest − k ≥ slack` is `k < rest − slack + 1`.
        let (turn, constant) = match sum.coefficient {
            1 => (-1, slack - sum.constant),
            -1 => (1, sum.constant - slack + 1),
            _ => return false,
        };
        let mut bound = None;
        for (sign, term) in sum.terms {
            if self.direction(term).is_none_or(|d| d * sign * turn < 0) {
                return false;
            }
            let term = self.b.cast(DType::I64, term);
            bound = Some(match (bound, sign * turn > 0) {
                (None, true) => term,
                (None, false) => {
                    let zero = self.b.integer(0);
                    self.b.binary(BinaryOp::Sub, zero, term)
                }
                (Some(bound), true) => self.b.binary(BinaryOp::Add, bound, term),
                (Some(bound), false) => self.b.binary(BinaryOp::Sub, bound, term),
            });
        }
        let constant_e = self.b.integer(constant);
        let bound = match bound {
            None => constant_e,
            Some(bound) if constant == 0 => bound,
            Some(bound) => self.b.binary(BinaryOp::Add, bound, constant_e),
        };
        self.bounds += 1;
        let list = if turn < 0 { &mut self.first } else { &mut self.end };
        if !list.contains(&bound) {
            list.push(bound);
        }
        true
    }

    /// Adds `sign · e` to a sum. False where that is no sum, or may wrap.
    fn add(&self, e: ExprId, sign: i64, sum: &mut Sum) -> bool {
        let exprs = &self.b.exprs;
        if exprs[e] == Expr::Axis(self.k) {
            sum.coefficient += sign;
            return true;
        }
        if let Some((read_at, own)) = self.read_at
            && read_at == e
        {
            return self.add(own, sign, sum);
        }
        if !is_position(exprs.dtype(e)) {
            // What has nothing to do with the key may be of any type of integers.
            if !exprs.dtype(e).is_int() || exprs.dtype(e).bits() > 32 || exprs.names_axis(e, self.k) {
                return false;
            }
            sum.terms.push((sign, e));
            return true;
        }
        match exprs[e] {
            Expr::Const(_, v) if v.as_i64().unsigned_abs() <= SMALL => {
                sum.constant += sign * v.as_i64();
                true
            }
            _ if !exprs.names_axis(e, self.k) => {
                sum.terms.push((sign, e));
                true
            }
            Expr::Binary(op @ (BinaryOp::Add | BinaryOp::Sub), x, y) => {
                let other = if op == BinaryOp::Add { sign } else { -sign };
                self.stays(e, exprs.dtype(e)) && self.add(x, sign, sum) && self.add(y, other, sum)
            }
            Expr::Cast(_, x) if is_position(exprs.dtype(x)) => self.stays(x, exprs.dtype(e)) && self.add(x, sign, sum),
            _ => false,
        }
    }

    /// Says whether arithmetic on positions stays inside a type. Positions and sizes of an attention have 31 bits
    /// (`Kernel::launch_size`); what the run gives may have as many as its type. In 64 bits it is taken for a position,
    /// too.
    fn stays(&self, e: ExprId, inside: DType) -> bool {
        let leaves = |e: &Expr| match e {
            Expr::Load { .. } => inside != DType::I64,
            Expr::Const(_, v) => v.as_i64().unsigned_abs() > SMALL,
            _ => false,
        };
        !self.b.exprs.occurs(e, leaves)
    }

    /// Whether an integer grows with the query's position (1), falls (−1), or neither (0); `None` where that is not
    /// known.
    fn direction(&self, e: ExprId) -> Option<i64> {
        let exprs = &self.b.exprs;
        if !exprs.names_axis(e, self.q) {
            return Some(0);
        }
        let both = |x: i64, y: i64| (x * y >= 0).then_some((x + y).signum());
        match exprs[e] {
            Expr::Axis(_) => Some(1),
            Expr::Binary(BinaryOp::Add, x, y) if self.stays(e, exprs.dtype(e)) => {
                both(self.direction(x)?, self.direction(y)?)
            }
            Expr::Binary(BinaryOp::Sub, x, y) if self.stays(e, exprs.dtype(e)) => {
                both(self.direction(x)?, -self.direction(y)?)
            }
            Expr::Binary(BinaryOp::Min | BinaryOp::Max, x, y) => both(self.direction(x)?, self.direction(y)?),
            Expr::Cast(to, x) if is_position(to) && is_position(exprs.dtype(x)) && self.stays(x, to) => {
                self.direction(x)
            }
            _ => None,
        }
    }

    fn number(&self, e: ExprId) -> Option<f64> {
        match self.b.exprs[e] {
            Expr::Const(dtype, v) if dtype.is_float() => Some(v.as_f64()),
            Expr::Cast(to, x) if to.is_float() => self.number(x),
            _ => None,
        }
    }

    fn hides(&self, e: ExprId) -> bool {
        self.number(e).is_some_and(|v| v < HIDDEN)
    }

    fn is_finite(&self, e: ExprId) -> bool {
        self.number(e).is_some_and(f64::is_finite)
    }

    fn is_zero(&self, e: ExprId) -> bool {
        self.number(e) == Some(0.0)
    }
}

fn is_position(dtype: DType) -> bool {
    matches!(dtype, DType::I32 | DType::I64)
}

#[cfg(test)]
mod tests {
    use ir::kernel::Body;

    use crate::schedule::{ScheduleOptions, schedule};
    use crate::testing;

    /// The range of an attention with a mask `m` over 64 queries and keys, as a kernel's text has it; nothing where it
    /// has none.
    fn range(mask: &str) -> String {
        let text = format!(
            r#"
            q = input "q" : f32[2, 2, 64, 32]
            k = input "k" : f32[2, 2, 64, 32]
            n = input "n" : i64[2]
            n32 = input "n32" : i32[2]
            at = input "at" : i64[64]
            other = input "other" : bool[2, 1, 64, 64]
            l = reshape n : i64[2, 1, 1, 1]
            l32 = reshape n32 : i32[2, 1, 1, 1]
            given = reshape at : i64[64, 1]
            i = iota {{axis=0}} : i64[64, 64]
            j = iota {{axis=1}} : i64[64, 64]
            i32 = iota {{axis=0}} : i32[64, 64]
            j32 = iota {{axis=1}} : i32[64, 64]
            ten = constant 10 : i64[]
            zero = constant 0.0 : f32[]
            infinite = constant -inf : f32[]
            lowest = constant -3e38 : f32[]
            {mask}
            a = attention q, k, k, m {{scale=0.5, mask}}
            return a as "y""#
        );
        let target: ir::Target = "gfx942".parse().expect("known");
        let (graph, _) = testing::optimized(&testing::graph(&text), "gfx942", Default::default());
        let (schedule, _) = schedule(&graph, &target, &ScheduleOptions::default()).expect("schedules");
        let kernels = schedule
            .regions
            .values()
            .map(|region| super::super::lower(&graph, region, &target));
        let mut kernels = kernels.map(|kernel| kernel.expect("lowers"));
        let attention = kernels.find(|k| matches!(k.body, Body::Attention(_)));
        let text = attention.expect("an attention").to_string();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("seen = "));
        line.unwrap_or_default().to_owned()
    }

    #[test]
    fn comparisons_of_positions_bound_the_keys() {
        for (mask, want) in [
            ("m = le j, i", "..query + 1"),
            ("m = gt i, j", "..query"),
            ("d = sub i, j\n m = lt d, ten", "query + -9.."),
            ("d = sub j, i\n m = gt d, ten", "query + 11.."),
            ("p = gt j, i\n m = not p", "..query + 1"),
            (
                "p = gt j, i\n d = sub i, j\n o = ge d, ten\n x = or p, o\n m = not x",
                "query + -9..query + 1",
            ),
            ("m = lt j, l", "..in2[batch]"),
            ("m = lt j32, l32", "..i64(in2[batch])"),
            ("e = add i, l\n m = le j, e", "..query + in2[batch] + 1"),
            (
                "p = le j, i\n s = lt j, l\n m = and p, s",
                "..min(query + 1, in2[batch])",
            ),
            ("p = le j, i\n m = select p, zero, infinite", "..query + 1"),
            (
                "d = sub i, j\n p = lt d, ten\n m = select p, zero, lowest",
                "query + -9..",
            ),
        ] {
            assert_eq!(range(mask), want, "{mask}");
        }
    }

    #[test]
    fn nothing_is_guessed() {
        for mask in [
            // A mask that also depends on what lies in memory along the keys is stored whole.
            "p = le j, i\n m = and p, other",
            // A query's own position, which the run gives: the next query's may be before it.
            "m = le j, given",
            // Keys beyond a bound that falls from query to query.
            "s = add i, j\n m = lt s, ten",
            "p = le j, i\n s = lt j, l\n m = or p, s",
            "d = mul j, j\n m = lt d, l",
            "m = eq j, i",
            // A finite number beside what else may hide: what is hidden least has all weight.
            "p = le j, i\n o = select other, zero, lowest\n s = select p, zero, lowest\n m = add o, s",
            // May leave 32 bits.
            "d = sub j32, l32\n c = constant 0 : i32[]\n m = lt d, c",
        ] {
            assert_eq!(range(mask), "", "{mask}");
        }
    }
}
