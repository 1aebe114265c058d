//! Which indices fit 32 bits, and other facts of expressions that the spelling follows.

use ir::graph::eval::scalar::int_range;
use ir::kernel::{AxisId, Expr, Kernel};
use ir::op::{BinaryOp, UnaryOp};
use ir::{DType, Dim, Entity, Symbols};

/// The largest number of points and size of an axis that an `int` counts, strides of a whole grid added.
const LARGEST: i64 = 1 << 30;

/// Facts of each expression of a kernel, by index.
pub struct ExprFacts {
    /// An `i64` expression whose C++ type is `int`: it and all below it fit.
    pub is_int: Vec<bool>,
    /// An `i64` sum, difference or product that is known not to overflow: index arithmetic, where a size that the model
    /// left open counts as at most 2^30. What the model itself computes of numbers it reads may overflow, and wraps.
    pub is_exact: Vec<bool>,
    /// Something is loaded below.
    pub loads: Vec<bool>,
    axis_is_int: Vec<bool>,
}

impl ExprFacts {
    /// Finds the facts.
    pub fn new(kernel: &Kernel, symbols: &Symbols) -> ExprFacts {
        let axis_is_int: Vec<bool> = kernel.axes.values().map(|a| fits(&a.extent, symbols)).collect();
        let n = kernel.exprs.len();
        let (mut is_int, mut loads) = (vec![false; n], vec![false; n]);
        let mut range: Vec<Range> = vec![None; n];
        let mut assumed: Vec<Range> = vec![None; n];
        for (id, e) in kernel.exprs.iter() {
            let i = id.index();
            loads[i] = matches!(e, Expr::Load { .. });
            e.for_each_operand(|o| loads[i] |= loads[o.index()]);
            if kernel.exprs.dtype(id) != DType::I64 {
                continue;
            }
            range[i] = range_of(kernel, symbols, e, &range, None);
            assumed[i] = range_of(kernel, symbols, e, &assumed, Some(LARGEST));
            let operands_int = match e {
                Expr::Const(..) | Expr::Size(_) => true,
                Expr::Axis(a) => axis_is_int[a.index()],
                Expr::Binary(_, a, b) | Expr::Select(_, a, b) => is_int[a.index()] && is_int[b.index()],
                Expr::Unary(_, a) => is_int[a.index()],
                _ => false,
            };
            let bound = i64::from(i32::MAX);
            is_int[i] = operands_int && range[i].is_some_and(|(l, h)| -bound <= l && h <= bound);
        }
        ExprFacts {
            is_int,
            is_exact: assumed.iter().map(Option::is_some).collect(),
            loads,
            axis_is_int,
        }
    }

    /// Says whether an axis is counted by an `int`.
    pub fn axis_is_int(&self, axis: AxisId) -> bool {
        self.axis_is_int[axis.index()]
    }
}

/// The least and the largest value, where both are known; of what may overflow neither is.
type Range = Option<(i64, i64)>;

/// The range of an `i64` expression from those of its operands. Sizes without an upper bound are at most `open`, if
/// that is given.
fn range_of(kernel: &Kernel, symbols: &Symbols, e: &Expr, range: &[Range], open: Option<i64>) -> Range {
    match e {
        Expr::Const(_, s) => Some((s.as_i64(), s.as_i64())),
        Expr::Size(d) => {
            let (lo, hi) = d.bounds(symbols);
            lo.or(open.map(|n| -n)).zip(hi.or(open))
        }
        Expr::Axis(a) => {
            let hi = kernel.axes[*a].extent.bounds(symbols).1.or(open);
            hi.map(|h| (0, (h - 1).max(0)))
        }
        Expr::Cast(_, a) if kernel.exprs.dtype(*a) != DType::I64 && kernel.exprs.dtype(*a).is_int() => {
            Some(int_range(kernel.exprs.dtype(*a)))
        }
        Expr::Binary(op, a, b) => binary(*op, range[a.index()], range[b.index()]),
        Expr::Unary(UnaryOp::Neg, a) => {
            let (l, h) = range[a.index()]?;
            Some((h.checked_neg()?, l.checked_neg()?))
        }
        Expr::Unary(UnaryOp::Abs, a) => {
            let (l, h) = range[a.index()]?;
            Some((0, l.saturating_abs().max(h.saturating_abs())))
        }
        Expr::Select(_, a, b) => {
            let ((al, ah), (bl, bh)) = range[a.index()].zip(range[b.index()])?;
            Some((al.min(bl), ah.max(bh)))
        }
        _ => None,
    }
}

/// Says whether an `int` counts up to a size.
pub fn fits(dim: &Dim, symbols: &Symbols) -> bool {
    dim.bounds(symbols).1.is_some_and(|hi| hi <= LARGEST)
}

fn binary(op: BinaryOp, a: Range, b: Range) -> Range {
    let corners = |f: fn(i64, i64) -> Option<i64>| {
        let ((al, ah), (bl, bh)) = a.zip(b)?;
        let all = [f(al, bl)?, f(al, bh)?, f(ah, bl)?, f(ah, bh)?];
        Some((*all.iter().min()?, *all.iter().max()?))
    };
    match op {
        BinaryOp::Add => corners(i64::checked_add),
        BinaryOp::Sub => corners(i64::checked_sub),
        BinaryOp::Mul => corners(i64::checked_mul),
        // A quotient is no larger than its dividend, a remainder smaller than its divisor.
        BinaryOp::Div => {
            let (l, h) = a?;
            let m = l.saturating_abs().max(h.saturating_abs());
            Some((if l < 0 { -m } else { 0 }, m))
        }
        BinaryOp::Rem | BinaryOp::Mod => {
            let (l, h) = b?;
            let m = l.saturating_abs().max(h.saturating_abs());
            let nonnegative = a.is_some_and(|(al, _)| al >= 0) && l >= 0;
            Some((if nonnegative { 0 } else { -m }, m))
        }
        BinaryOp::Max => match (a, b) {
            (Some((al, ah)), Some((bl, bh))) => Some((al.max(bl), ah.max(bh))),
            (Some((l, _)), None) | (None, Some((l, _))) => Some((l, i64::MAX)),
            (None, None) => None,
        },
        BinaryOp::Min => match (a, b) {
            (Some((al, ah)), Some((bl, bh))) => Some((al.min(bl), ah.min(bh))),
            (Some((_, h)), None) | (None, Some((_, h))) => Some((i64::MIN, h)),
            (None, None) => None,
        },
        _ => None,
    }
}
