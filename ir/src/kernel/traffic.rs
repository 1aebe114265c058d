//! How many bytes of each buffer a launch reads and writes, at least once: what must cross the memory's pins where
//! caches keep the rest.

use super::{Body, Expr, ExprId, Kernel, ParamId, Stmt};
use crate::dim::{Bindings, DimError};
use crate::entity::{Entity, Table};

/// The bytes of one parameter that a launch touches.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    pub read: u64,
    pub written: u64,
}

/// Which axes an index depends on, in the order of the table.
type Axes = Vec<bool>;

impl Kernel {
    /// Returns the different bytes that a launch reads and writes of each parameter, as an upper bound: the elements
    /// that its indices can name, and never more than the buffer has. Of a table from which a few rows are looked up,
    /// those rows count.
    ///
    /// # Errors
    /// A size that is not bound or does not fit.
    pub fn traffic(&self, bindings: &Bindings) -> Result<Table<ParamId, Traffic>, DimError> {
        let extents: Vec<u64> = self
            .axes
            .values()
            .map(|axis| Ok(u64::try_from(axis.extent.eval(bindings)?).unwrap_or(0)))
            .collect::<Result<_, DimError>>()?;
        let axes = self.index_axes();
        let points = |index: ExprId| -> u64 {
            let used = axes[index.index()].iter().zip(&extents).filter(|(uses, _)| **uses);
            used.fold(1, |product: u64, (_, extent)| product.saturating_mul(*extent))
        };
        let mut elements: Vec<(u64, u64)> = vec![(0, 0); self.params.len()];
        for (_, expr) in self.exprs.iter() {
            if let Expr::Load { param, index } = expr {
                let read = &mut elements[param.index()].0;
                *read = read.saturating_add(points(*index));
            }
        }
        self.for_each_stmt(|stmt| {
            let (param, index, combines) = match stmt {
                Stmt::Store { param, index, .. } => (param, index, false),
                Stmt::Update { param, index, op, .. } => (param, index, op.is_some()),
                Stmt::Let { .. } | Stmt::Fold { .. } => return,
            };
            let (read, written) = &mut elements[param.index()];
            *written = written.saturating_add(points(*index));
            if combines {
                *read = read.saturating_add(points(*index));
            }
        });
        let bytes = |(param, (read, written)): (&super::Param, (u64, u64))| {
            let has = u64::try_from(param.count(bindings)?).unwrap_or(0);
            let bytes = |elements: u64| {
                elements
                    .min(has)
                    .saturating_mul(u64::from(param.dtype.bits()))
                    .div_ceil(8)
            };
            Ok(Traffic {
                read: bytes(read),
                written: bytes(written),
            })
        };
        self.params.values().zip(elements).map(bytes).collect()
    }

    /// Of each expression, the axes that its value depends on. A variable may depend on any.
    fn index_axes(&self) -> Vec<Axes> {
        let mut all: Vec<Axes> = Vec::with_capacity(self.exprs.len());
        for (_, expr) in self.exprs.iter() {
            let mut uses: Axes = vec![matches!(expr, Expr::Var(_)); self.axes.len()];
            if let Expr::Axis(axis) = expr {
                uses[axis.index()] = true;
            }
            expr.for_each_operand(|operand| {
                for (uses, also) in uses.iter_mut().zip(&all[operand.index()]) {
                    *uses |= also;
                }
            });
            all.push(uses);
        }
        all
    }

    fn for_each_stmt(&self, f: impl FnMut(&Stmt)) {
        let stmts = match &self.body {
            Body::Loops(loops) => &loops.stmts,
            Body::Row(row) => &row.loops.stmts,
            Body::Window(window) => &window.loops.stmts,
            Body::Copy(copy) => &copy.loops.stmts,
            Body::Transform(transform) => &transform.stmts,
            Body::Contract(contract) => &contract.epilogue,
            Body::Attention(attention) => &attention.epilogue,
            Body::Scan(scan) => &scan.stores,
            Body::Sort(sort) => &sort.stores,
            Body::Recurrent(layer) => &layer.stores,
        };
        stmts.iter().for_each(f);
    }
}
