//! Loop kernels: pointwise trees, index maps, reductions, norms, gathers and scatters.
//!
//! Two ways through the points of `parallel`. *By columns* (the default): blocks of up to a thousand points, vectorised
//! along the innermost parallel dim; a fold steps through its points and accumulates a block at a time (pooling, column
//! sums). *By rows*, where the folded axis is the contiguous one: each fold and store is vectorised along its own axis,
//! one point at a time or, where rows are short, several (softmax, norms, row sums).

mod nest;
mod segments;
mod stages;
mod together;

use ir::dim::Bindings;
use ir::host::block::{MAX_LANES, VALUE_BYTES};
use ir::host::loops::{Action, Loops, Nest, Stage};
use ir::host::{Affine, LowerError, Piece};
use ir::kernel::{AxisId, Expr, ExprId, Kernel, Stmt};
use ir::op::{BinaryOp, ReduceOp};

use self::nest::{by_rows, shape};
use self::segments::{Stretch, segments};
use self::stages::Stages;
use crate::affine::{Roots, Space, collapse, reachable};
use crate::block::compile::Source;

/// Bytes of scratch that programs of the largest blocks may take: above it, blocks have fewer lanes.
const SCRATCH: usize = 48 << 10;
const FEW_LANES: usize = 256;

/// The statements' index and value expressions.
pub(crate) fn stmt_exprs(stmts: &[Stmt]) -> Vec<ExprId> {
    stmts
        .iter()
        .flat_map(|s| match *s {
            Stmt::Let { value, .. } | Stmt::Fold { value, .. } => vec![value],
            Stmt::Store { index, value, .. } | Stmt::Update { index, value, .. } => vec![index, value],
        })
        .collect()
}

fn stmt_axes(stmt: &Stmt) -> &[AxisId] {
    match stmt {
        Stmt::Let { .. } => &[],
        Stmt::Fold { axes, .. } | Stmt::Store { axes, .. } | Stmt::Update { axes, .. } => axes,
    }
}

/// What is decided about a kernel of loops before its programs are compiled.
pub(crate) struct Analysis<'k> {
    pub space: Space<'k>,
    pub roots: Roots,
    pub extents: Vec<i64>,
    pub parallel: Vec<usize>,
    /// Dims of each statement's own axes.
    pub own: Vec<Vec<usize>>,
}

/// Splits and merges the dims of parallel axes and statements.
pub(crate) fn analyse<'k>(
    kernel: &'k Kernel,
    parallel: &[AxisId],
    stmts: &[Stmt],
    bindings: &Bindings,
) -> Result<Analysis<'k>, LowerError> {
    analyse_within(kernel, parallel, stmts, bindings, &[])
}

/// The same of a part of the points.
fn analyse_within<'k>(
    kernel: &'k Kernel,
    parallel: &[AxisId],
    stmts: &[Stmt],
    bindings: &Bindings,
    within: &[Stretch],
) -> Result<Analysis<'k>, LowerError> {
    let mut space = Space::new(kernel, bindings)?;
    let exprs = stmt_exprs(stmts);
    let mut parallel = Space::dims(parallel);
    let mut own: Vec<Vec<usize>> = stmts.iter().map(|s| Space::dims(stmt_axes(s))).collect();
    {
        let mut groups: Vec<&mut Vec<usize>> = std::iter::once(&mut parallel).chain(own.iter_mut()).collect();
        space.split(&exprs, &mut groups, &[]);
    }
    within
        .iter()
        .for_each(|part| space.restrict(part.dim, part.from, part.to));
    let mut roots = space.roots(&exprs);
    for (stmt, dims) in stmts.iter().zip(&mut own) {
        in_order_of_memory(kernel, stmt, dims, &roots);
    }
    let mut extents = space.extents.clone();
    {
        let mut groups: Vec<&mut Vec<usize>> = std::iter::once(&mut parallel).chain(own.iter_mut()).collect();
        collapse(&mut extents, &mut groups, &mut roots);
    }
    Ok(Analysis {
        space,
        roots,
        extents,
        parallel,
        own,
    })
}

/// Puts the dims of a fold whose order decides nothing in the order in which what it loads lies in memory: a fold of a
/// permuted tensor walks through neighbours. Loads that lie differently leave the dims as they are.
fn in_order_of_memory(kernel: &Kernel, stmt: &Stmt, dims: &mut [usize], roots: &Roots) {
    let Stmt::Fold { value, op, .. } = *stmt else { return };
    let orderless = match op {
        ReduceOp::Max | ReduceOp::Min | ReduceOp::All | ReduceOp::Any => true,
        // Integers wrap.
        ReduceOp::Sum | ReduceOp::Prod => !kernel.exprs.dtype(value).is_float(),
        ReduceOp::Mean | ReduceOp::ArgMax | ReduceOp::ArgMin => false,
    };
    if !orderless {
        return;
    }
    let mut strides: Option<Vec<u64>> = None;
    for id in reachable(kernel, &[value]) {
        let Expr::Load { index, .. } = kernel.exprs[id] else {
            continue;
        };
        let Some(form) = roots.get(&index) else { return };
        let own: Vec<u64> = dims.iter().map(|d| form.get(*d).unsigned_abs()).collect();
        // What is the same for all of the fold is read once.
        if own.iter().all(|stride| *stride == 0) {
            continue;
        }
        if strides.get_or_insert_with(|| own.clone()) != &own {
            return;
        }
    }
    let Some(strides) = strides else { return };
    let mut order: Vec<usize> = (0..dims.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(strides[*i]));
    let sorted: Vec<usize> = order.into_iter().map(|i| dims[i]).collect();
    dims.copy_from_slice(&sorted);
}

/// Affine indices of loads (`true`) and stores in the statements: what decides the shape of blocks.
struct Accesses {
    loads: Vec<Affine>,
    stores: Vec<Affine>,
}

fn accesses(kernel: &Kernel, stmts: &[Stmt], roots: &Roots) -> Accesses {
    let index = |id: ExprId| -> Affine {
        // Of a sum, the affine terms: what data adds does not change the stride.
        let mut form = Affine::constant(0);
        let (mut stack, mut left) = (vec![id], 256);
        while let Some(id) = stack.pop() {
            // Only the shape of blocks hangs on what is left out.
            left -= 1;
            if left == 0 {
                break;
            }
            match (roots.get(&id), &kernel.exprs[id]) {
                (Some(root), _) => form = form.plus(root, 1),
                (None, Expr::Binary(BinaryOp::Add, a, b)) => stack.extend([*a, *b]),
                _ => {}
            }
        }
        form
    };
    let loads = reachable(kernel, &stmt_exprs(stmts))
        .into_iter()
        .filter_map(|id| match kernel.exprs[id] {
            Expr::Load { index: i, .. } => Some(index(i)),
            _ => None,
        })
        .collect();
    let stores = stmts
        .iter()
        .filter_map(|s| match s {
            Stmt::Store { index: i, .. } => Some(index(*i)),
            _ => None,
        })
        .collect();
    Accesses { loads, stores }
}

/// Says whether blocks are points whose folds walk along rows: what the points alone decide is then computed once a
/// row.
pub(crate) fn along_rows(kernel: &Kernel, a: &Analysis<'_>, stmts: &[Stmt]) -> bool {
    by_rows(a, stmts, &accesses(kernel, stmts, &a.roots), kernel)
}

/// Lowers statements over the points of `parallel`, as a piece; `aliased` says that a buffer they write is one that
/// they read.
///
/// # Errors
/// A size that does not evaluate, or an access that is certain to leave its buffer.
pub(crate) fn piece(
    kernel: &Kernel,
    parallel: &[AxisId],
    stmts: &[Stmt],
    bindings: &Bindings,
    aliased: bool,
) -> Result<Piece, LowerError> {
    let loops = lower(kernel, parallel, stmts, bindings, (aliased, &[]))?;
    Ok(Piece::Loops(Box::new(loops)))
}

/// The same as pieces, one after the other: the loop is cut where positions decide what is stored.
///
/// # Errors
/// As for [`piece`].
pub(crate) fn pieces(
    kernel: &Kernel,
    parallel: &[AxisId],
    stmts: &[Stmt],
    bindings: &Bindings,
    aliased: bool,
) -> Result<Vec<Piece>, LowerError> {
    let parts = segments(kernel, parallel, stmts, bindings)?;
    let lowered = parts.iter().map(|within| {
        let loops = lower(kernel, parallel, stmts, bindings, (aliased, within))?;
        Ok(Piece::Loops(Box::new(loops)))
    });
    lowered.collect()
}

fn lower(
    kernel: &Kernel,
    parallel: &[AxisId],
    stmts: &[Stmt],
    bindings: &Bindings,
    (aliased, within): (bool, &[Stretch]),
) -> Result<Loops, LowerError> {
    let a = analyse_within(kernel, parallel, stmts, bindings, within)?;
    let source = Source::new(&a.space, &a.roots, &a.extents, bindings)?;
    let accesses = accesses(kernel, stmts, &a.roots);
    let nibbles = stmts.iter().any(|s| match s {
        Stmt::Store { param, .. } | Stmt::Update { param, .. } => kernel.params[*param].dtype.bits() < 8,
        _ => false,
    });
    let updates = stmts.iter().any(|s| matches!(s, Stmt::Update { .. }));
    let ordered = updates || nibbles;
    let by_rows = by_rows(&a, stmts, &accesses, kernel);
    let points: i64 = a.parallel.iter().map(|d| a.extents[*d]).product();
    let inner: i64 = a
        .own
        .iter()
        .map(|dims| dims.iter().map(|d| a.extents[*d]).product::<i64>())
        .sum::<i64>()
        .max(1);
    let rough = (points.max(0) as usize)
        .saturating_mul(inner.max(0) as usize)
        .saturating_mul(4);
    let few_rows = |lanes: usize| match by_rows && !ordered {
        true => together::nest(kernel, &a, stmts, lanes),
        false => None,
    };
    let one_row = || Nest {
        outer: a.parallel.iter().map(|d| (*d, a.extents[*d])).collect(),
        row: None,
        col: None,
    };
    let mut together = few_rows(MAX_LANES);
    let mut nest = match by_rows {
        true => together.clone().unwrap_or_else(one_row),
        false => shape(&a.parallel, &a.extents, &accesses, MAX_LANES, ordered),
    };
    let exec = |lanes: usize, nest: &Nest, together: bool| {
        Stages {
            kernel,
            source: &source,
            a: &a,
            accesses: &accesses,
            by_rows,
            together,
            ordered,
            lanes,
            nest,
            known: Vec::new(),
            spread: Vec::new(),
            given: Vec::new(),
            vars: kernel.vars.len(),
            at: 0,
            stages: Vec::new(),
        }
        .build(stmts)
    };
    let (mut stages, mut end, mut vars) = exec(MAX_LANES, &nest, together.is_some())?;
    let slots = |stages: &[Stage]| stages.iter().map(|s| s.program.scratch).max().unwrap_or(0);
    if slots(&stages) > SCRATCH {
        together = few_rows(FEW_LANES);
        nest = match by_rows {
            true => together.clone().unwrap_or_else(one_row),
            false => shape(&a.parallel, &a.extents, &accesses, FEW_LANES, ordered),
        };
        (stages, end, vars) = exec(FEW_LANES, &nest, together.is_some())?;
    }
    let multiple: usize = stages.iter().map(|s| s.program.stores.len()).sum();
    for stage in &mut stages {
        stage.program.copy_loads = aliased && multiple > 1;
    }
    let externals = stages.iter().map(|s| s.externals.len()).max().unwrap_or(0);
    let dims = a.extents.len();
    let header = (dims * 8 + (vars + externals) * VALUE_BYTES).next_multiple_of(64);
    for stage in &mut stages {
        stage.at += header;
        match &mut stage.action {
            Action::Fold { acc, best, .. } => {
                *acc += header;
                *best += header;
            }
            Action::Spread { lanes, .. } => *lanes += header,
            Action::Lets(_) | Action::Update { .. } => {}
        }
    }
    let cost: usize = stages
        .iter()
        .map(|s| {
            let inner: i64 = s.inner.outer.iter().map(|(_, e)| *e).product();
            let own = if let Some((_, extent)) = s.along {
                extent as i64
            } else if s.own_blocks {
                s.inner.row.map_or(1, |r| r.extent) * s.inner.col.map_or(1, |c| c.extent)
            } else {
                1
            };
            s.program.cost.saturating_mul((inner * own).max(1) as usize)
        })
        .sum();
    let work = (points.max(0) as usize).saturating_mul(cost.max(1));
    Ok(Loops {
        dims,
        nest,
        stages,
        vars,
        externals,
        scratch: header + end,
        ordered,
        by_rows,
        points: rough,
        work,
    })
}
