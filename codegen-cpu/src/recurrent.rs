//! Recurrent layers: operands that are dense in memory are read where they are, others are computed into temporaries
//! first.

use ir::entity::Entity;
use ir::host::recurrent::Recurrent;
use ir::host::{LowerError, Piece, Setting};
use ir::kernel::{AxisId, Expr, ExprId, RecurrentBody, Stmt};
use ir::types::DType;

use crate::affine::Space;
use crate::loops;
use crate::rewrite::{Rewritten, store};

/// Lowers a layer.
///
/// # Errors
/// A size that does not evaluate, or a result that is not dense.
pub(crate) fn lower(
    rewritten: &mut Rewritten,
    body: &RecurrentBody,
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<(), LowerError> {
    let kernel = &rewritten.kernel;
    let name = kernel.name.clone();
    let unsupported = |what: &str| LowerError::Unsupported {
        what: format!("a recurrent layer with {what}"),
        at: format!("kernel {name}"),
    };
    let mut space = Space::new(kernel, cx.bindings)?;
    let extent = |space: &Space<'_>, axis: AxisId| space.extents[axis.index()];
    let [steps, batch, hidden] = body.cells().map(|axis| extent(&space, axis));
    let gates = hidden * body.layer.cell.gates();
    let sizes = [
        (body.gates, gates),
        (body.inner, hidden),
        (
            body.seen.unwrap_or(body.inner),
            if body.seen.is_some() { 3 * hidden } else { hidden },
        ),
    ];
    if sizes.iter().any(|(axis, size)| extent(&space, *axis) != *size) || !body.has_its_operands() {
        return Err(unsupported("axes that do not fit each other"));
    }
    // The parameter of each operand that is one as it is.
    let mut operands = Vec::new();
    for (expr, axes) in body.operands() {
        operands.push(match kernel.exprs[expr] {
            Expr::Load { param, index } if dense(&mut space, index, &axes, 0) => Some(param.index()),
            _ => None,
        });
    }
    let mut out = None;
    for (state, store) in body.stores.iter().enumerate() {
        let Stmt::Store {
            param,
            index,
            value,
            axes,
            ..
        } = store
        else {
            return Err(unsupported("a fold in its stores"));
        };
        let var = if state == 0 { body.hidden_var } else { body.cell_var };
        let plain = kernel.exprs[*value] == Expr::Var(var) && axes.is_empty();
        let same = out.is_none_or(|out| out == param.index());
        let states = body.layer.states();
        let mut strides = [batch * hidden * states, hidden * states, 1].into_iter();
        let want: Vec<(AxisId, i64)> = body.cells().iter().map(|a| (*a, strides.next().unwrap_or(1))).collect();
        let placed = strided(&mut space, *index, &want, state as i64 * hidden);
        if !plain || !same || !placed || kernel.params[*param].dtype != DType::F32 {
            return Err(unsupported("a result that is not dense"));
        }
        out = Some(param.index());
    }
    let out = out.filter(|_| body.stores.len() as i64 == body.layer.states());
    let out = out.ok_or_else(|| unsupported("no result"))?;
    let mut params = Vec::with_capacity(operands.len());
    for (place, (expr, axes)) in operands.into_iter().zip(body.operands()) {
        params.push(match place {
            Some(param) => param,
            None => computed(rewritten, expr, &axes, cx, pieces)?,
        });
    }
    pieces.push(Piece::Recurrent(Box::new(Recurrent {
        layer: body.layer,
        steps: steps.max(0) as usize,
        batch: batch.max(0) as usize,
        hidden: hidden.max(0) as usize,
        operands: params,
        out,
    })));
    Ok(())
}

/// Computes an operand, such as a state of zeros, into a temporary.
fn computed(
    rewritten: &mut Rewritten,
    expr: ExprId,
    axes: &[AxisId],
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<usize, LowerError> {
    let dtype = rewritten.kernel.exprs.dtype(expr);
    let (param, index) = rewritten.temporary("operand", dtype, axes, cx.bindings)?;
    let stmts = [store(param, index, expr)];
    pieces.push(loops::piece(&rewritten.kernel, axes, &stmts, cx.bindings, false)?);
    Ok(param.index())
}

/// Says whether an index is the row-major one over axes.
fn dense(space: &mut Space<'_>, index: ExprId, axes: &[AxisId], base: i64) -> bool {
    let mut stride = 1;
    let mut want = Vec::with_capacity(axes.len());
    for axis in axes.iter().rev() {
        want.push((*axis, stride));
        stride *= space.extents[axis.index()];
    }
    strided(space, index, &want, base)
}

/// Says whether an index steps through axes as it should; along an axis of one point any step will do.
fn strided(space: &mut Space<'_>, index: ExprId, want: &[(AxisId, i64)], base: i64) -> bool {
    let Some(form) = space.affine(index) else { return false };
    let steps = |dim: usize| {
        let own = want.iter().find(|(axis, _)| axis.index() == dim);
        let step = own.map_or(0, |(_, step)| *step);
        form.get(dim) == step || space.extents[dim] <= 1
    };
    form.base == base && (0..space.extents.len()).all(steps)
}
