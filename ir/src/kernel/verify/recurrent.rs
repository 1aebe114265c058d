//! Recurrent layers: operands and axes are those of the layer.

use super::Verifier;
use crate::entity::Entity;
use crate::kernel::verify::KernelError;
use crate::kernel::{AxisId, RecurrentBody};
use crate::types::DType;

impl Verifier<'_> {
    pub(super) fn recurrent(&mut self, r: &RecurrentBody) {
        let place = "the recurrent layer";
        for (expr, axes) in r.operands() {
            self.bind(place, &axes);
            self.expr(place, expr);
            self.unbind(&axes);
        }
        if let Some(problem) = self.recurrent_problem(r) {
            self.errors.push(KernelError::Recurrent { problem });
        }
        self.bind(place, &r.cells());
        self.vars.extend([r.hidden_var, r.cell_var]);
        self.stmts("the stores", &r.stores);
    }

    fn recurrent_problem(&self, r: &RecurrentBody) -> Option<String> {
        let k = self.kernel;
        if !r.has_its_operands() {
            return Some("has other operands than the layer".to_owned());
        }
        let extent = |axis: AxisId| &k.axes[axis].extent;
        let size = extent(r.hidden).clone();
        let wanted = [
            (Some(r.gates), size.clone() * r.layer.cell.gates()),
            (Some(r.inner), size.clone()),
            (r.seen, size * 3),
        ];
        for (axis, wanted) in wanted {
            if let Some(axis) = axis.filter(|axis| *extent(*axis) != wanted) {
                let (name, got) = (&k.axes[axis].name, extent(axis));
                return Some(format!("has {got} points along {name}, not {wanted}"));
            }
        }
        let lengths = r.layer.places().lengths;
        for (at, (expr, _)) in r.operands().into_iter().enumerate() {
            let wanted = if lengths == Some(at) { DType::I64 } else { DType::F32 };
            let got = k.exprs.dtype(expr);
            if got != wanted {
                return Some(format!("has operand {at} in {got}, not {wanted}"));
            }
        }
        let vars = [r.hidden_var, r.cell_var];
        if let Some(var) = vars.into_iter().find(|var| k.vars[*var] != DType::F32) {
            return Some(format!("has v{} in {}, not f32", var.index(), k.vars[var]));
        }
        None
    }
}
