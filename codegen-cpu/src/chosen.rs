//! Right operands that a run chooses among constants which lie stacked: the experts of a mixture.
//!
//! ```text
//! out[s, u, j] = Σ_k x[s, k] · w[clamp(ids[s, u]), j, k]
//! =>  numbers[s, u] = clamp(ids[s, u]);  out[s, u, j] = Σ_k x[s, k] · w[matrix, j, k]
//! ```
//!
//! Before: an operand's place has one number in it that a run looks up for each batch entry, and that is inside an
//! axis. After: the number is a temporary, and an axis of the kernel stands for it, so that the place is affine.

use std::collections::HashMap;

use ir::entity::Entity;
use ir::host::{LowerError, Piece, Setting};
use ir::kernel::{Access, Axis, AxisId, ContractBody, Expr, ExprId, Kernel, Operand, ParamId};
use ir::op::BinaryOp;
use ir::types::DType;
use ir::{Dim, Scalar};

use crate::affine::{Space, reachable};
use crate::hoist::replaced;
use crate::loops;
use crate::places::decided_by;
use crate::rewrite::{Rewritten, store};

/// What stands for the matrices.
#[derive(Clone, Copy)]
pub(crate) struct Stack {
    pub axis: AxisId,
    pub count: usize,
    /// The temporary with the entries' numbers, and the index into it.
    pub numbers: ParamId,
    pub index: ExprId,
}

/// Rewrites the right operand of a product so, where it is one.
///
/// # Errors
/// As for kernels of loops.
pub(crate) fn stack(
    rewritten: &mut Rewritten,
    body: &mut ContractBody,
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<Option<Stack>, LowerError> {
    let constant =
        |access: ir::kernel::OperandAccess| access.guard.is_none() && cx.constant(access.param.index()).is_some();
    if !body.rhs.access.is_some_and(constant) {
        return Ok(None);
    }
    let kernel = &rewritten.kernel;
    let mut space = Space::new(kernel, cx.bindings)?;
    let below = reachable(kernel, &[body.rhs.value]).into_iter();
    let found: Vec<(ExprId, usize, Vec<AxisId>)> =
        below.filter_map(|e| looked_up(kernel, &mut space, body, e)).collect();
    let [(number, count, axes)] = &found[..] else {
        return Ok(None);
    };
    let (numbers, index) = rewritten.temporary("numbers", DType::I64, axes, cx.bindings)?;
    let stmts = [store(numbers, index, *number)];
    pieces.push(loops::piece(&rewritten.kernel, axes, &stmts, cx.bindings, false)?);
    rewritten.kernel.params[numbers].access = Access::Read;
    let axis = rewritten.kernel.axes.push(Axis {
        name: "matrix".to_owned(),
        extent: Dim::Const(*count as i64),
    });
    let at = rewritten.kernel.exprs.add(Expr::Axis(axis), DType::I64);
    let value = replaced(rewritten, body.rhs.value, &mut HashMap::from([(*number, at)]));
    body.rhs = Operand::new(&rewritten.kernel.exprs, value);
    Ok(Some(Stack {
        axis,
        count: *count,
        numbers,
        index,
    }))
}

/// A number from 0 on that a load gives for each batch entry: with how many there are, and the axes that decide it.
fn looked_up(
    kernel: &Kernel,
    space: &mut Space<'_>,
    body: &ContractBody,
    e: ExprId,
) -> Option<(ExprId, usize, Vec<AxisId>)> {
    let Expr::Binary(BinaryOp::Min, least, last) = kernel.exprs[e] else {
        return None;
    };
    let Expr::Binary(BinaryOp::Max, _, zero) = kernel.exprs[least] else {
        return None;
    };
    let loads = |e: &ExprId| matches!(kernel.exprs[*e], Expr::Load { .. });
    let is_zero = matches!(kernel.exprs[zero], Expr::Const(_, Scalar::Int(0)));
    let axes = decided_by(kernel, e)?;
    let by_entries = axes.iter().all(|axis| body.batch.contains(axis));
    if !is_zero || !by_entries || !reachable(kernel, &[e]).iter().any(loads) {
        return None;
    }
    let last = space.affine(last).filter(|last| last.is_constant())?.base;
    let count = usize::try_from(last.checked_add(1)?).ok().filter(|count| *count > 0)?;
    Some((e, count, axes))
}
