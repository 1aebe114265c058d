//! Loops whose choices positions decide, cut where the choices change.
//!
//! ```text
//! for i in 0..9, p in 0..2: out[2 * i + p] = select(p < 1, -x[2 * i + 1], x[2 * i])
//! =>  for i in 0..9: out[2 * i] = -x[2 * i + 1];  for i in 0..9: out[2 * i + 1] = x[2 * i]
//! ```
//!
//! Before: one loop that makes a concat, a pad, or a rotation of pairs, and looks at each block which lanes take which
//! part. After: loops over stretches of a dim, in each of which every such choice is made before it runs.

use ir::dim::Bindings;
use ir::host::LowerError;
use ir::kernel::{AxisId, Expr, ExprId, Kernel, Stmt};
use ir::op::BinaryOp;

use super::{stmt_axes, stmt_exprs};
use crate::affine::{Space, reachable};

/// The most pieces that a loop is cut into.
const MOST: usize = 32;

/// A piece has at least so many points on average.
const FEWEST_POINTS: i64 = 2048;

/// A stretch of a dim, as it is after dims are split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stretch {
    pub dim: usize,
    pub from: i64,
    pub to: i64,
}

/// The stretches of each piece, in the order of the points; one piece without any where nothing is cut.
pub(super) fn segments(
    kernel: &Kernel,
    parallel: &[AxisId],
    stmts: &[Stmt],
    bindings: &Bindings,
) -> Result<Vec<Vec<Stretch>>, LowerError> {
    let whole = || vec![Vec::new()];
    let plain = |stmt: &Stmt| matches!(stmt, Stmt::Let { .. } | Stmt::Store { .. }) && stmt_axes(stmt).is_empty();
    let nibbles = |stmt: &Stmt| matches!(stmt, Stmt::Store { param, .. } if kernel.params[*param].dtype.bits() < 8);
    let below = reachable(kernel, &stmt_exprs(stmts));
    let condition = |e: &ExprId| match kernel.exprs[*e] {
        Expr::Select(condition, ..) => Some(condition),
        _ => None,
    };
    let mut conditions = below.iter().filter_map(condition).peekable();
    if conditions.peek().is_none() || !stmts.iter().all(plain) || stmts.iter().any(nibbles) {
        return Ok(whole());
    }
    // As the analysis has them before neighbours are merged.
    let mut space = Space::new(kernel, bindings)?;
    let mut parallel = Space::dims(parallel);
    space.split(&stmt_exprs(stmts), &mut [&mut parallel], &[]);
    let points = parallel.iter().fold(1i64, |n, d| n.saturating_mul(space.extents[*d]));
    let most = usize::try_from(points / FEWEST_POINTS).unwrap_or(MOST).min(MOST);
    let conditions = conditions.collect::<Vec<_>>();
    let mut cuts: Vec<(usize, Vec<i64>)> = Vec::new();
    for e in reachable(kernel, &conditions) {
        let Some((dim, places)) = changes_at(&mut space, e).filter(|(dim, _)| parallel.contains(dim)) else {
            continue;
        };
        let extent = space.extents[dim];
        for place in places.into_iter().filter(|place| (1..extent).contains(place)) {
            match cuts.iter_mut().find(|(d, _)| *d == dim) {
                Some((_, at)) if at.contains(&place) => {}
                Some((_, at)) => at.push(place),
                None => cuts.push((dim, vec![place])),
            }
        }
    }
    // Choices along what lies side by side cost the most.
    cuts.sort_by_key(|(dim, _)| std::cmp::Reverse(parallel.iter().position(|d| d == dim)));
    let mut pieces = 1usize;
    cuts.retain(|(_, at)| {
        let more = pieces * (at.len() + 1);
        let fits = more <= most;
        if fits {
            pieces = more;
        }
        fits
    });
    let mut out = whole();
    for (dim, mut at) in cuts.into_iter().rev() {
        at.sort_unstable();
        at.insert(0, 0);
        at.push(space.extents[dim]);
        let stretches: Vec<Stretch> = at
            .windows(2)
            .map(|ends| Stretch {
                dim,
                from: ends[0],
                to: ends[1],
            })
            .collect();
        let with = |piece: &Vec<Stretch>| {
            let piece = piece.clone();
            stretches
                .iter()
                .map(move |s| piece.iter().copied().chain([*s]).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        };
        out = out.iter().flat_map(with).collect();
    }
    Ok(out)
}

/// The dim that alone decides a comparison, and the positions at which it changes.
fn changes_at(space: &mut Space<'_>, comparison: ExprId) -> Option<(usize, Vec<i64>)> {
    let Expr::Binary(op, a, b) = space.kernel.exprs[comparison] else {
        return None;
    };
    if !op.is_comparison() {
        return None;
    }
    let form = space.affine(a)?.plus(&space.affine(b)?, -1);
    let mut dims = (0..space.extents.len()).filter(|d| form.get(*d) != 0 && space.extents[*d] > 1);
    match (dims.next(), dims.next()) {
        (Some(dim), None) => Some((dim, changes(op, form.base, form.get(dim)))),
        _ => None,
    }
}

/// The first positions from which `base + step * position` is on another side of 0, for a comparison with it.
fn changes(op: BinaryOp, base: i64, step: i64) -> Vec<i64> {
    // The first position of those at or above a value, or above it where the line falls.
    let crosses = |value: i64| {
        let (far, by) = (i128::from(value) - i128::from(base), i128::from(step));
        let at = match by > 0 {
            true => -(-far).div_euclid(by),
            false => (-far).div_euclid(-by) + 1,
        };
        i64::try_from(at).ok()
    };
    // Below 0, and below 1, for a line that rises; for one that falls, not at or above them.
    let places = match op {
        BinaryOp::Lt | BinaryOp::Ge => [crosses(0), None],
        BinaryOp::Le | BinaryOp::Gt => [crosses(1), None],
        _ => [crosses(0), crosses(1)],
    };
    places.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_change_where_they_are_said_to() {
        let holds = |op: BinaryOp, v: i64| match op {
            BinaryOp::Lt => v < 0,
            BinaryOp::Le => v <= 0,
            BinaryOp::Gt => v > 0,
            BinaryOp::Ge => v >= 0,
            BinaryOp::Eq => v == 0,
            _ => v != 0,
        };
        let ops = [
            BinaryOp::Lt,
            BinaryOp::Le,
            BinaryOp::Gt,
            BinaryOp::Ge,
            BinaryOp::Eq,
            BinaryOp::Ne,
        ];
        for op in ops {
            for base in -7..8 {
                for step in [-3, -2, -1, 1, 2, 3] {
                    let found = changes(op, base, step);
                    for place in -9..10 {
                        let changed = holds(op, base + step * (place - 1)) != holds(op, base + step * place);
                        assert!(
                            !changed || found.contains(&place),
                            "{base} + {step} * x {op:?} 0 changes at {place}, found {found:?}"
                        );
                    }
                }
            }
        }
    }
}
