//! Recurrent layers: the operands as tensors, then the layer itself.

use super::{Evaluated, Run};
use crate::graph::eval::Array;
use crate::graph::eval::recurrent::states;
use crate::kernel::RecurrentBody;
use crate::types::{DType, Scalar};

impl Run<'_> {
    pub(super) fn recurrent(&mut self, body: &RecurrentBody) -> Evaluated<()> {
        let mut arrays = Vec::new();
        for (expr, axes) in body.operands() {
            let values = self.values(&axes, expr)?;
            let shape = axes.iter().map(|axis| self.extents[*axis].max(0) as usize).collect();
            arrays.push(match self.kernel.exprs.dtype(expr) {
                DType::I64 => Array::int(DType::I64, shape, values.iter().map(|v| v.as_i64()).collect()),
                dtype => Array::float(dtype, shape, values.iter().map(|v| v.as_f64()).collect()),
            });
        }
        let operands: Vec<&Array> = arrays.iter().collect();
        // Each state of each row at each step, the hidden one first.
        let mut found = states(&body.layer, &operands).into_iter();
        self.each(&[body.time, body.batch], &mut |run| {
            let Some((hidden, cell)) = found.next() else {
                return Ok(());
            };
            let mut at = 0;
            run.each(&[body.hidden], &mut |run| {
                let of = |state: &[f64]| Scalar::Float(state.get(at).copied().unwrap_or(0.0));
                run.set_var(body.hidden_var, of(&hidden));
                run.set_var(body.cell_var, of(&cell));
                at += 1;
                run.stmts(&body.stores)
            })
        })
    }
}
