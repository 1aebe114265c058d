//! Checks a transform.

use super::{KernelError, Verifier};
use crate::kernel::print::expr as text;
use crate::kernel::{AxisId, ExprId, Mapping, Stmt, TransformBody};
use crate::types::DType;

impl Verifier<'_> {
    pub(super) fn transform(&mut self, body: &TransformBody) {
        let (from, to) = (body.from.to_vec(), body.to.to_vec());
        for axes in [&body.parallel, &from, &to] {
            self.bind("the transform", axes);
        }
        if let Some(problem) = self.misfit(body) {
            self.errors.push(KernelError::Transform { problem });
        }
        self.only("what is transformed", body.element, &[&body.parallel, &from]);
        self.is(body.element, DType::F32);
        let conditions = [
            ("where a patch is read", body.within, &from),
            ("where it is stored", body.inside, &to),
        ];
        for (place, condition, axes) in conditions {
            if let Some(condition) = condition {
                self.only(place, condition, &[&body.parallel, axes]);
                self.is(condition, DType::Bool);
            }
        }
        self.unbind(&from);
        self.vars.insert(body.var);
        self.stmts("what is stored", &body.stmts);
    }

    /// Says in what a transform's axes and statements are none.
    fn misfit(&self, body: &TransformBody) -> Option<&'static str> {
        let are = |axes: [AxisId; 2], extent: i64| axes.iter().all(|a| self.kernel.axes[*a].extent.is(extent));
        let stores_one = |s: &Stmt| match s {
            Stmt::Let { .. } => true,
            Stmt::Store { axes, .. } => axes.is_empty(),
            Stmt::Fold { .. } | Stmt::Update { .. } => false,
        };
        if !are(body.from, body.matrix.inputs()) || !are(body.to, body.matrix.outputs()) {
            Some("has axes that are not as long as its matrix")
        } else if self.kernel.vars[body.var] != DType::F32 {
            Some("makes numbers of f32")
        } else if !body.stmts.iter().all(stores_one) {
            Some("has statements that are neither names nor stores to one element")
        } else {
            None
        }
    }

    fn is(&mut self, expr: ExprId, expected: DType) {
        let got = self.kernel.exprs.dtype(expr);
        if got != expected {
            self.errors.push(KernelError::Type {
                expr: text(self.kernel, expr),
                got,
                expected: expected.name().to_owned(),
            });
        }
    }

    /// Says in what a mapping is not one of a transform.
    pub(super) fn spreads(&self, body: &TransformBody, mapping: &Mapping) -> Option<&'static str> {
        match mapping {
            Mapping::Host => None,
            Mapping::Threads { vector, .. } if !self.is_divided(body.parallel.last(), *vector) => {
                Some("the vector must divide the innermost axis")
            }
            Mapping::Threads { .. } => None,
            _ => Some("a transform has a thread for each square"),
        }
    }
}
