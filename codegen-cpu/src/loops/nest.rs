//! The shape of blocks: which dims they take pieces of, and the order in which points are walked.

use ir::host::loops::{Nest, Strip};
use ir::kernel::{Expr, Kernel, Stmt};

use super::{Accesses, Analysis};
use crate::affine::reachable;

/// Chooses the way through: by rows when the folded axis is the contiguous one and long enough.
pub(super) fn by_rows(a: &Analysis<'_>, stmts: &[Stmt], accesses: &Accesses, kernel: &Kernel) -> bool {
    if stmts.iter().any(|s| matches!(s, Stmt::Update { .. })) {
        return a.own.iter().any(|dims| !dims.is_empty());
    }
    let mut rows = 0usize;
    let mut cols = 0usize;
    let mut longest = 0;
    let inner = a.parallel.last().copied();
    for (stmt, own) in stmts.iter().zip(&a.own) {
        let Stmt::Fold { value, .. } = stmt else { continue };
        let Some(last) = own.last() else { continue };
        longest = longest.max(a.extents[*last]);
        for id in reachable(kernel, &[*value]) {
            let Expr::Load { index, .. } = kernel.exprs[id] else {
                continue;
            };
            let Some(form) = a.roots.get(&index) else { continue };
            rows += usize::from(form.get(*last).unsigned_abs() == 1);
            cols += usize::from(inner.is_some_and(|d| form.get(d) == 1));
        }
    }
    let folds = stmts.iter().any(|s| matches!(s, Stmt::Fold { .. }));
    let has_own = a.own.iter().any(|dims| !dims.is_empty());
    if !folds {
        // Stores with axes of their own alone.
        return has_own && a.parallel.is_empty();
    }
    let _ = accesses;
    match inner {
        None => true,
        Some(d) => rows > cols && (longest >= 16 || a.extents[d] < 16) || (rows == cols && longest > a.extents[d]),
    }
}

/// Fewer columns than this are worth less than storing columns of a load that has [`WIDE`] of them.
const NARROW: i64 = 8;
const WIDE: i64 = 16;

/// Pieces of an extent that are as good as equal, each at most so long.
pub(super) fn balanced(extent: i64, most: i64) -> i64 {
    let most = most.clamp(1, extent.max(1));
    let pieces = (extent.max(1) + most - 1) / most;
    (extent.max(1) + pieces - 1) / pieces
}

/// Chooses the block's dims and size.
pub(super) fn shape(parallel: &[usize], extents: &[i64], accesses: &Accesses, lanes: usize, ordered: bool) -> Nest {
    let Some(&last) = parallel.last() else {
        return Nest::default();
    };
    let unit_store = |d: usize| accesses.stores.iter().filter(|s| s.get(d) == 1).count();
    let unit_load = |d: usize| accesses.loads.iter().any(|l| l.get(d) == 1);
    let col = if ordered {
        last
    } else {
        let best = parallel
            .iter()
            .rev()
            .copied()
            .filter(|d| extents[*d] > 1)
            .max_by_key(|d| (unit_store(*d), usize::from(*d == last)))
            .unwrap_or(last);
        // Few columns are no vector: those of a load are one.
        let wide = |d: &usize| extents[*d] >= WIDE && unit_load(*d);
        match extents[best] < NARROW {
            true => parallel.iter().rev().copied().find(wide).unwrap_or(best),
            false => best,
        }
    };
    let others: Vec<usize> = parallel.iter().copied().filter(|d| *d != col).collect();
    // A load that is contiguous along another dim is read in tiles.
    let transposed = others.iter().copied().find(|d| {
        extents[*d] > 1
            && accesses
                .loads
                .iter()
                .any(|l| l.get(*d) == 1 && l.get(col).unsigned_abs() > 1)
    });
    let lanes = lanes as i64;
    let (row, cols, rows) = match transposed {
        Some(d) if !ordered => {
            let cols = balanced(extents[col], 32);
            (Some(d), cols, balanced(extents[d], lanes / cols))
        }
        _ => {
            let cols = balanced(extents[col], lanes);
            let row = if ordered { None } else { others.last().copied() };
            match row {
                Some(d) if cols == extents[col] && cols * 2 <= lanes => {
                    (Some(d), cols, balanced(extents[d], lanes / cols))
                }
                _ => (None, cols, 1),
            }
        }
    };
    Nest {
        outer: others
            .iter()
            .filter(|d| Some(**d) != row)
            .map(|d| (*d, extents[*d]))
            .collect(),
        row: row.map(|dim| Strip {
            dim,
            extent: extents[dim],
            block: rows,
        }),
        col: Some(Strip {
            dim: col,
            extent: extents[col],
            block: cols,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::host::Affine;

    #[test]
    fn a_stride_may_have_no_opposite() {
        let form = |row: i64, col: i64| Affine {
            base: 0,
            coef: [row, col].into_iter().collect(),
        };
        let accesses = Accesses {
            loads: vec![form(1, i64::MIN)],
            stores: vec![form(8, 1)],
        };
        let nest = shape(&[0, 1], &[8, 8], &accesses, 64, false);
        assert_eq!(
            nest.row.map(|row| row.dim),
            Some(0),
            "the load lies along the other dim"
        );
    }
}
