//! Recurrent layers whose operands and result are dense in memory, as lowering makes them.

use ir::entity::Entity;
use ir::host::recurrent::Recurrent;
use ir::host::{LowerError, Setting};
use ir::kernel::{AxisId, Expr, ExprId, Kernel, RecurrentBody, Stmt};
use ir::types::DType;

use crate::affine::Space;

/// Lowers a layer.
///
/// # Errors
/// A size that does not evaluate, or an operand or a result that is not dense.
pub(crate) fn lower(kernel: &Kernel, body: &RecurrentBody, cx: &Setting<'_>) -> Result<Recurrent, LowerError> {
    let unsupported = |what: &str| LowerError::Unsupported {
        what: format!("a recurrent layer with {what}"),
        at: format!("kernel {}", kernel.name),
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
    let mut operands = Vec::new();
    for (at, (expr, axes)) in body.operands().into_iter().enumerate() {
        let Expr::Load { param, index } = kernel.exprs[expr] else {
            return Err(unsupported("an operand that is computed"));
        };
        let wanted = match body.layer.places().lengths {
            Some(place) if place == at => DType::I64,
            _ => DType::F32,
        };
        if kernel.params[param].dtype != wanted || !dense(&mut space, index, &axes, 0) {
            return Err(unsupported("an operand that is not dense"));
        }
        operands.push(param.index());
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
    Ok(Recurrent {
        layer: body.layer,
        steps: steps.max(0) as usize,
        batch: batch.max(0) as usize,
        hidden: hidden.max(0) as usize,
        operands,
        out: out.ok_or_else(|| unsupported("no result"))?,
    })
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
