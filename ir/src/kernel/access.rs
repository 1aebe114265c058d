//! How an index moves along an axis: strides, contiguity and alignment, as provable facts.
//!
//! An axis is walked in *groups* of `width` neighbours that start at multiples of `width`. [`Motions`] say how an
//! expression moves inside a group and what divides it at the group's start, so that whoever maps a kernel and whoever
//! prints it agree on which accesses are one wide one.

use std::collections::HashSet;

use super::{AxisId, Expr, ExprId, Kernel, Stmt};
use crate::dim::{Dim, Symbols};
use crate::entity::Entity;
use crate::graph::op::BinaryOp;

/// An expression inside a group: `e(start + j) = e(start) + stride · j` for `0 ≤ j < width`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Motion {
    pub stride: Dim,
    /// Divides `e(start)`; 0 when `e(start)` is 0.
    pub divisor: i64,
}

impl Motion {
    fn fixed(divisor: i64) -> Motion {
        Motion {
            stride: Dim::Const(0),
            divisor,
        }
    }

    /// Says whether the expression is the same for the whole group.
    pub fn is_fixed(&self) -> bool {
        self.stride.is(0)
    }

    /// Says whether a group of `width` is neighbours in memory whose first is at a multiple of `width`.
    pub fn is_wide(&self, width: i64) -> bool {
        self.stride.is(1) && self.divisor % width == 0
    }
}

/// How the expressions of a kernel move along one axis in groups of one width. Each is looked at once, however many
/// share it.
pub struct Motions<'a> {
    kernel: &'a Kernel,
    symbols: &'a Symbols,
    axis: AxisId,
    width: i64,
    /// How far apart the members of a group are.
    step: i64,
    known: Vec<Option<Known>>,
}

/// What is known of one expression.
struct Known {
    /// It mentions neither the axis nor a variable.
    fixed: bool,
    motion: Option<Motion>,
}

impl<'a> Motions<'a> {
    /// Nothing is looked at before it is asked for.
    pub fn new(kernel: &'a Kernel, symbols: &'a Symbols, axis: AxisId, width: i64) -> Motions<'a> {
        Motions::in_steps(kernel, symbols, axis, width, 1)
    }

    /// The same of groups whose members are `step` apart: they start at multiples of `width` steps.
    pub fn in_steps(kernel: &'a Kernel, symbols: &'a Symbols, axis: AxisId, width: i64, step: i64) -> Motions<'a> {
        let known = (0..kernel.exprs.len()).map(|_| None).collect();
        Motions {
            kernel,
            symbols,
            axis,
            width,
            step,
            known,
        }
    }

    /// Returns how the `i64` expression `e` moves, or `None` when it is not affine.
    pub fn of(&mut self, e: ExprId) -> Option<&Motion> {
        self.look(e);
        self.known[e.index()].as_ref()?.motion.as_ref()
    }

    /// Says whether an expression of any type does not mention the axis (nor a variable, which may depend on it).
    pub fn is_fixed(&mut self, e: ExprId) -> bool {
        self.look(e);
        self.known[e.index()].as_ref().is_some_and(|k| k.fixed)
    }

    /// Says whether a condition is the same for the whole of each group: it is fixed, or compares positions with what
    /// no group straddles.
    pub fn is_uniform(&mut self, condition: ExprId) -> bool {
        if self.is_fixed(condition) {
            return true;
        }
        let width = self.width;
        match self.kernel.exprs[condition] {
            Expr::Binary(BinaryOp::And | BinaryOp::Or, a, b) => self.is_uniform(a) && self.is_uniform(b),
            // `x < bound` and `x ≥ bound`, in either spelling.
            Expr::Binary(BinaryOp::Lt | BinaryOp::Ge, x, bound)
            | Expr::Binary(BinaryOp::Gt | BinaryOp::Le, bound, x) => {
                self.of(x).is_some_and(|m| m.is_wide(width))
                    && self.of(bound).is_some_and(|m| m.is_fixed() && m.divisor % width == 0)
            }
            _ => false,
        }
    }

    /// Says whether an expression of any type is the same for the whole of each group: it reads nothing but elements at
    /// fixed positions.
    pub fn is_shared(&mut self, e: ExprId) -> bool {
        let (mut stack, mut seen) = (vec![e], HashSet::new());
        while let Some(e) = stack.pop() {
            if !seen.insert(e) || self.is_fixed(e) || self.of(e).is_some_and(Motion::is_fixed) {
                continue;
            }
            if matches!(self.kernel.exprs[e], Expr::Axis(_) | Expr::Var(_)) {
                return false;
            }
            self.kernel.exprs[e].for_each_operand(|o| stack.push(o));
        }
        true
    }

    fn look(&mut self, e: ExprId) {
        for id in cone(self.kernel, e, |id| self.known[id.index()].is_some()) {
            let fixed = match &self.kernel.exprs[id] {
                Expr::Axis(a) => *a != self.axis,
                Expr::Var(_) => false,
                other => {
                    let mut fixed = true;
                    other.for_each_operand(|o| fixed &= self.known[o.index()].as_ref().is_some_and(|k| k.fixed));
                    fixed
                }
            };
            let motion = self.motion(id, fixed);
            self.known[id.index()] = Some(Known { fixed, motion });
        }
    }

    fn constant(&self, e: ExprId) -> Option<i64> {
        match &self.kernel.exprs[e] {
            Expr::Const(_, scalar) => Some(scalar.as_i64()),
            Expr::Size(dim) => dim.as_const(),
            _ => None,
        }
    }

    /// The motion of an expression whose operands are known.
    fn motion(&self, id: ExprId, fixed: bool) -> Option<Motion> {
        let of = |e: &ExprId| self.known[e.index()].as_ref()?.motion.clone();
        match &self.kernel.exprs[id] {
            Expr::Axis(a) if *a == self.axis => Some(Motion {
                stride: Dim::Const(self.step),
                divisor: self.width.saturating_mul(self.step),
            }),
            Expr::Const(_, scalar) => Some(Motion::fixed(scalar.as_i64().saturating_abs())),
            Expr::Size(dim) => Some(Motion::fixed(dim.known_divisor())),
            Expr::Binary(BinaryOp::Add, a, b) => {
                let (a, b) = (of(a)?, of(b)?);
                Some(Motion {
                    stride: a.stride + b.stride,
                    divisor: gcd(a.divisor, b.divisor),
                })
            }
            Expr::Binary(BinaryOp::Sub, a, b) => {
                let (a, b) = (of(a)?, of(b)?);
                Some(Motion {
                    stride: a.stride - b.stride,
                    divisor: gcd(a.divisor, b.divisor),
                })
            }
            Expr::Binary(BinaryOp::Mul, a, b) => {
                let (x, y) = (of(a)?, of(b)?);
                let divisor = x.divisor.saturating_mul(y.divisor);
                let stride = match (x.is_fixed(), y.is_fixed()) {
                    (true, true) => Dim::Const(0),
                    (false, true) => x.stride * number(self.kernel, *b)?,
                    (true, false) => y.stride * number(self.kernel, *a)?,
                    (false, false) => return None,
                };
                Some(Motion { stride, divisor })
            }
            // A group that starts at a multiple of its width does not straddle a multiple of what its width divides.
            Expr::Binary(op @ (BinaryOp::Div | BinaryOp::Rem | BinaryOp::Mod), a, b) => {
                let (x, y) = (of(a)?, of(b)?);
                if !y.is_fixed() {
                    return None;
                }
                let is_quotient = *op == BinaryOp::Div;
                if x.is_fixed() {
                    return Some(Motion::fixed(if is_quotient { 1 } else { gcd(x.divisor, y.divisor) }));
                }
                // What is divided without a rest at each member moves by the quotient.
                if let (Some(by @ 1..), Some(stride)) = (self.constant(*b), x.stride.as_const())
                    && stride % by == 0
                    && x.divisor % by == 0
                {
                    return Some(match is_quotient {
                        true => Motion {
                            stride: Dim::Const(stride / by),
                            divisor: x.divisor / by,
                        },
                        false => Motion::fixed(0),
                    });
                }
                let whole = x.is_wide(self.width)
                    && y.divisor % self.width == 0
                    && y.divisor != 0
                    && is_nonnegative(self.kernel, self.symbols, *a)
                    && is_nonnegative(self.kernel, self.symbols, *b);
                match (whole, is_quotient) {
                    (false, _) => None,
                    (true, true) => Some(Motion::fixed(1)),
                    (true, false) => Some(Motion {
                        stride: Dim::Const(1),
                        divisor: gcd(x.divisor, y.divisor),
                    }),
                }
            }
            _ => fixed.then(|| Motion::fixed(1)),
        }
    }
}

/// The expressions below `e` and `e` itself that are not known, operands first.
fn cone(kernel: &Kernel, e: ExprId, known: impl Fn(ExprId) -> bool) -> Vec<ExprId> {
    let (mut found, mut stack, mut seen) = (Vec::new(), vec![e], HashSet::new());
    while let Some(e) = stack.pop() {
        if known(e) || !seen.insert(e) {
            continue;
        }
        found.push(e);
        kernel.exprs[e].for_each_operand(|o| stack.push(o));
    }
    // Operands precede their users in the table.
    found.sort_unstable();
    found
}

/// Returns how the `i64` expression `e` moves along `axis` in groups of `width`, or `None` when it is not affine there.
pub fn along(kernel: &Kernel, symbols: &Symbols, e: ExprId, axis: AxisId, width: i64) -> Option<Motion> {
    Motions::new(kernel, symbols, axis, width).of(e).cloned()
}

/// Returns the loads that happen at every point at which some statements are executed, whatever the data are: those in
/// a branch of a select are not among them.
pub fn unconditional_loads(kernel: &Kernel, stmts: &[Stmt]) -> Vec<ExprId> {
    let mut always = vec![false; kernel.exprs.len()];
    for s in stmts {
        match s {
            Stmt::Let { value, .. } | Stmt::Fold { value, .. } => always[value.index()] = true,
            Stmt::Store { index, value, .. } | Stmt::Update { index, value, .. } => {
                always[index.index()] = true;
                always[value.index()] = true;
            }
        }
    }
    let mut found = Vec::new();
    // Operands precede their users: one sweep from the end sees every user first.
    for (id, e) in kernel.exprs.iter().rev() {
        if !always[id.index()] {
            continue;
        }
        if matches!(e, Expr::Load { .. }) {
            found.push(id);
        }
        let (lazy, mut first) = (matches!(e, Expr::Select(..)), true);
        e.for_each_operand(|o| {
            always[o.index()] |= first || !lazy;
            first = false;
        });
    }
    found.reverse();
    found
}

/// Says whether an `i64` expression is provably not negative.
pub fn is_nonnegative(kernel: &Kernel, symbols: &Symbols, e: ExprId) -> bool {
    let mut proven: HashSet<ExprId> = HashSet::new();
    for id in cone(kernel, e, |_| false) {
        let of = |e: &ExprId| proven.contains(e);
        let holds = match &kernel.exprs[id] {
            Expr::Axis(_) => true,
            Expr::Const(_, scalar) => scalar.as_i64() >= 0,
            Expr::Size(dim) => dim.at_least(0, symbols),
            Expr::Binary(BinaryOp::Add | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Min, a, b) => of(a) && of(b),
            Expr::Binary(BinaryOp::Rem, a, _) => of(a),
            Expr::Binary(BinaryOp::Mod, _, b) => of(b),
            Expr::Binary(BinaryOp::Max, a, b) => of(a) || of(b),
            Expr::Select(_, a, b) => of(a) && of(b),
            _ => false,
        };
        if holds {
            proven.insert(id);
        }
    }
    proven.contains(&e)
}

/// Returns the size that an expression is, if it is one or the product of two.
fn number(kernel: &Kernel, e: ExprId) -> Option<Dim> {
    let size = |e: ExprId| match &kernel.exprs[e] {
        Expr::Const(_, scalar) => Some(Dim::Const(scalar.as_i64())),
        Expr::Size(dim) => Some(dim.clone()),
        _ => None,
    };
    match &kernel.exprs[e] {
        Expr::Binary(BinaryOp::Mul, a, b) => Some(size(*a)? * size(*b)?),
        _ => size(e),
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entity::Table;
    use crate::kernel::{Axis, Body, Exprs, Kernel, Loops, Mapping};
    use crate::types::{DType, Scalar};

    /// A kernel that does nothing, of which the expressions are looked at.
    fn kernel(axes: Table<AxisId, Axis>, exprs: Exprs) -> Kernel {
        Kernel {
            name: "expressions".to_owned(),
            params: Table::new(),
            symbols: Vec::new(),
            body: Body::Loops(Loops {
                parallel: axes.keys().collect(),
                stmts: Vec::new(),
            }),
            axes,
            exprs,
            vars: Table::new(),
            mapping: Mapping::Host,
            origins: Vec::new(),
        }
    }

    /// Which groups a comparison splits, and which it does not.
    #[test]
    fn comparisons_of_whole_groups() {
        let mut exprs = Exprs::default();
        let mut axes = Table::new();
        let axis = axes.push(Axis {
            name: "i".to_owned(),
            extent: Dim::Const(64),
        });
        let i = exprs.add(Expr::Axis(axis), DType::I64);
        let mut number = |v| exprs.add(Expr::Const(DType::I64, Scalar::Int(v)), DType::I64);
        let (eight, twelve, two) = (number(8), number(12), number(2));
        let mut binary = |op, a, b, dtype| exprs.add(Expr::Binary(op, a, b), dtype);
        let doubled = binary(BinaryOp::Mul, i, two, DType::I64);
        let mut compare = |op, a, b| binary(op, a, b, DType::Bool);
        let alike = [
            compare(BinaryOp::Lt, i, eight),
            compare(BinaryOp::Ge, i, eight),
            compare(BinaryOp::Gt, eight, i),
            compare(BinaryOp::Le, eight, i),
            compare(BinaryOp::Lt, two, eight),
        ];
        let split = [
            // 8 is in the second group, whose others are above it.
            compare(BinaryOp::Le, i, eight),
            compare(BinaryOp::Gt, i, eight),
            compare(BinaryOp::Eq, i, eight),
            // No group begins at 12.
            compare(BinaryOp::Lt, i, twelve),
            compare(BinaryOp::Lt, doubled, eight),
        ];
        let both = compare(BinaryOp::And, alike[0], alike[1]);
        let mixed = compare(BinaryOp::And, alike[0], split[0]);
        let kernel = kernel(axes, exprs);
        let symbols = Symbols::default();
        let mut motions = Motions::new(&kernel, &symbols, axis, 8);
        for (e, expected) in (alike.iter().map(|e| (*e, true)))
            .chain(split.iter().map(|e| (*e, false)))
            .chain([(both, true), (mixed, false)])
        {
            assert_eq!(motions.is_uniform(e), expected, "{:?}", kernel.exprs[e]);
        }
    }

    /// Scales of groups are neighbours in steps of a group, and in no other steps.
    #[test]
    fn steps_that_divide_move_by_the_quotient() {
        let mut exprs = Exprs::default();
        let mut axes = Table::new();
        let mut axis = |name: &str, extent| {
            axes.push(Axis {
                name: name.to_owned(),
                extent: Dim::Const(extent),
            })
        };
        let (n, k) = (axis("n", 40), axis("k", 4096));
        let [row, depth] = [n, k].map(|axis| exprs.add(Expr::Axis(axis), DType::I64));
        let mut number = |v| exprs.add(Expr::Const(DType::I64, Scalar::Int(v)), DType::I64);
        let (group, groups, odd) = (number(128), number(32), number(33));
        let mut binary = |op, a, b| exprs.add(Expr::Binary(op, a, b), DType::I64);
        let of_group = binary(BinaryOp::Div, depth, group);
        let within = binary(BinaryOp::Rem, depth, group);
        let mut scale_of = |groups| {
            let first = binary(BinaryOp::Mul, row, groups);
            binary(BinaryOp::Add, first, of_group)
        };
        let (scale, unaligned) = (scale_of(groups), scale_of(odd));
        let kernel = kernel(axes, exprs);
        let symbols = Symbols::default();
        let wide = |e, step| {
            let mut motions = Motions::in_steps(&kernel, &symbols, k, 8, step);
            motions.of(e).is_some_and(|m| m.is_wide(8))
        };
        assert!(wide(scale, 128));
        assert!(!wide(scale, 64) && !wide(scale, 256) && !wide(scale, 1));
        assert!(!wide(unaligned, 128));
        let mut motions = Motions::in_steps(&kernel, &symbols, k, 8, 128);
        assert!(motions.of(within).is_some_and(|m| m.is_fixed()));
    }
}
