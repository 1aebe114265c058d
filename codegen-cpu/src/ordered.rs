//! Scans and sorts: for each point of `parallel`, one after another along an axis.

use ir::entity::Entity;
use ir::host::block::MAX_LANES;
use ir::host::loops::{Nest, Strip};
use ir::host::ordered::{Lines, Scan, Sort};
use ir::host::{LowerError, Setting};
use ir::kernel::{AxisId, Expr, ExprId, Kernel, ScanBody, SortBody, Stmt, VarId};

use crate::affine::{Roots, Space, reachable};
use crate::block::compile::{Source, Spec, SpecStep, compile};

fn lines(
    kernel: &Kernel,
    parallel: &[AxisId],
    (axis, along): (AxisId, AxisId),
    value: ExprId,
    stores: &[Stmt],
    vars: &[VarId],
    folds: bool,
    cx: &Setting<'_>,
) -> Result<Lines, LowerError> {
    let mut exprs = vec![value];
    let mut spec = Spec {
        vars: vars.iter().map(|v| (*v, false)).collect(),
        ..Spec::default()
    };
    for stmt in stmts_of(stores, kernel)? {
        match stmt {
            SpecStep::Store(_, index, value) => exprs.extend([index, value]),
            SpecStep::Let(_, value) => exprs.push(value),
        }
        spec.steps.push(stmt);
    }
    let mut space = Space::new(kernel, cx.bindings)?;
    let mut points = Space::dims(parallel);
    // The axis is walked as one, and so is that of the results.
    space.split(&exprs, &mut [&mut points], &[axis.index(), along.index()]);
    let roots: Roots = space.roots(&exprs);
    let extents = space.extents.clone();
    let source = Source::new(&space, &roots, &extents, cx.bindings)?;
    let ordered = kernel.params.values().any(|p| p.dtype.bits() < 8);
    let beside = match folds && !ordered {
        true => beside(kernel, value, &points, axis.index(), &roots, &extents),
        false => None,
    };
    let block = |extent: i64| extent.clamp(1, MAX_LANES as i64);
    let strip = Strip {
        dim: axis.index(),
        extent: extents[axis.index()],
        block: block(extents[axis.index()]),
    };
    let mut values = compile(
        &source,
        None,
        Some(beside.map_or(strip.dim, |b| b.dim)),
        &Spec {
            results: vec![value],
            ..Spec::default()
        },
        MAX_LANES,
    )?;
    values.copy_loads = cx.aliased;
    let class = values.class(0);
    let columns = beside.map_or(along.index(), |b| b.dim);
    let stores = compile(&source, None, Some(columns), &spec, MAX_LANES)?;
    let outer = points.into_iter().filter(|d| beside.is_none_or(|b| b.dim != *d));
    let points = Nest {
        outer: outer.map(|d| (d, extents[d])).collect(),
        row: None,
        col: beside,
    };
    Ok(Lines {
        space: extents.len(),
        points,
        axis: strip,
        value: values,
        class,
        stores,
        ordered,
    })
}

/// Fewer points than this beside each other are walked one by one.
const FEWEST_BESIDE: i64 = 8;

/// The dim of points that lie beside each other in memory where those of the axis do not, in blocks.
fn beside(
    kernel: &Kernel,
    value: ExprId,
    points: &[usize],
    axis: usize,
    roots: &Roots,
    extents: &[i64],
) -> Option<Strip> {
    let dim = *points.last()?;
    let (mut along, mut across) = (0, 0);
    for e in reachable(kernel, &[value]) {
        if let Expr::Load { index, .. } = kernel.exprs[e]
            && let Some(form) = roots.get(&index)
        {
            along += usize::from(form.get(axis) == 1);
            across += usize::from(form.get(dim) == 1);
        }
    }
    if across <= along || extents[dim] < FEWEST_BESIDE {
        return None;
    }
    let others: i64 = points.iter().filter(|d| **d != dim).map(|d| extents[*d]).product();
    // As many blocks as some threads take.
    let pieces = (16 / others.max(1)).clamp(1, (extents[dim] / 64).max(1));
    Some(Strip {
        dim,
        extent: extents[dim],
        block: ((extents[dim] + pieces - 1) / pieces).clamp(1, MAX_LANES as i64),
    })
}

fn stmts_of(stores: &[Stmt], kernel: &Kernel) -> Result<Vec<SpecStep>, LowerError> {
    stores
        .iter()
        .map(|s| match *s {
            Stmt::Let { var, value } => Ok(SpecStep::Let(var, value)),
            Stmt::Store {
                param, index, value, ..
            } => Ok(SpecStep::Store(param, index, value)),
            _ => Err(LowerError::Unsupported {
                what: "a fold or update in the stores of a scan or sort".into(),
                at: format!("kernel {}", kernel.name),
            }),
        })
        .collect()
}

/// Lowers a running fold.
///
/// # Errors
/// As for kernels of loops.
pub(crate) fn scan(kernel: &Kernel, body: &ScanBody, cx: &Setting<'_>) -> Result<Scan, LowerError> {
    let along = (body.axis, body.axis);
    let lines = lines(
        kernel,
        &body.parallel,
        along,
        body.value,
        &body.stores,
        &[body.var],
        true,
        cx,
    )?;
    Ok(Scan {
        across: lines.points.col.is_some(),
        lines,
        op: body.op,
        from: kernel.exprs.dtype(body.value),
        dtype: kernel.vars[body.var],
        exclusive: body.exclusive,
        reverse: body.reverse,
    })
}

/// Lowers the first of an order.
///
/// # Errors
/// As for kernels of loops; more values asked for than there are.
pub(crate) fn sort(kernel: &Kernel, body: &SortBody, cx: &Setting<'_>) -> Result<Sort, LowerError> {
    let vars = [body.value_var, body.index_var];
    let along = (body.axis, body.rank);
    let lines = lines(
        kernel,
        &body.parallel,
        along,
        body.value,
        &body.stores,
        &vars,
        false,
        cx,
    )?;
    let extent = kernel.axes[body.rank].extent.eval(cx.bindings)?;
    let uses_vars = kernel
        .exprs
        .iter()
        .any(|(_, e)| matches!(e, Expr::Var(v) if *v == body.value_var || *v == body.index_var));
    if extent > lines.axis.extent && uses_vars {
        return Err(LowerError::TooSmall {
            what: format!("the first {extent} of {} values", lines.axis.extent),
            at: format!("kernel {}", kernel.name),
        });
    }
    Ok(Sort {
        rank: Strip {
            dim: body.rank.index(),
            extent,
            block: extent.clamp(1, MAX_LANES as i64),
        },
        lines,
        largest: body.largest,
    })
}
