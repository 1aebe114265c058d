//! Kernels in terms of simpler ones: what no fast form takes is computed into a temporary and read back.
//!
//! A temporary is one more parameter of the (cloned) kernel, dense over the axes it is indexed by, so that the pieces
//! are ordinary kernels again and need no code of their own.

use ir::dim::{Bindings, Dim};
use ir::host::product::GivenMatrix;
use ir::host::{LowerError, Temporary};
use ir::kernel::{Access, AxisId, Expr, ExprId, Kernel, Param, ParamId, Stmt};
use ir::op::BinaryOp;
use ir::types::DType;

/// The most bytes of a temporary: sums of several fit.
const MOST_BYTES: usize = 1 << 58;

/// A kernel with temporaries after its own parameters.
#[derive(Clone, Debug)]
pub(crate) struct Rewritten {
    pub kernel: Kernel,
    pub temps: Vec<Temporary>,
}

impl Rewritten {
    pub(crate) fn new(kernel: &Kernel) -> Rewritten {
        Rewritten {
            kernel: kernel.clone(),
            temps: Vec::new(),
        }
    }

    /// Adds a temporary over `axes`, and the expression of its row-major index.
    pub(crate) fn temporary(
        &mut self,
        name: &str,
        dtype: DType,
        axes: &[AxisId],
        bindings: &Bindings,
    ) -> Result<(ParamId, ExprId), LowerError> {
        let elements: Dim = axes.iter().map(|a| self.kernel.axes[*a].extent.clone()).product();
        let count = usize::try_from(elements.eval(bindings)?).unwrap_or(0);
        let bytes = dtype.checked_bytes_for(count).filter(|bytes| *bytes <= MOST_BYTES);
        let bytes = bytes.ok_or(LowerError::NoMemory { asked: usize::MAX })?;
        self.temps.push(Temporary::Bytes(bytes));
        let param = self.kernel.params.push(Param {
            name: name.to_owned(),
            dtype,
            elements,
            access: Access::ReadWrite,
        });
        let index = self.index(axes);
        Ok((param, index))
    }

    /// Adds a temporary for packed matrices, which no expression reads.
    pub(crate) fn packed(&mut self, matrix: GivenMatrix, matrices: usize) -> ParamId {
        self.bytes(Temporary::Packed(matrix, matrices))
    }

    /// Adds a temporary that no expression reads.
    pub(crate) fn bytes(&mut self, temporary: Temporary) -> ParamId {
        self.temps.push(temporary);
        self.kernel.params.push(Param {
            name: "between".to_owned(),
            dtype: DType::U8,
            elements: Dim::Const(0),
            access: Access::ReadWrite,
        })
    }

    fn index(&mut self, axes: &[AxisId]) -> ExprId {
        let exprs = &mut self.kernel.exprs;
        let mut index = exprs.add(Expr::Size(Dim::Const(0)), DType::I64);
        for axis in axes {
            let extent = self.kernel.axes[*axis].extent.clone();
            let size = exprs.add(Expr::Size(extent), DType::I64);
            let scaled = exprs.add(Expr::Binary(BinaryOp::Mul, index, size), DType::I64);
            let at = exprs.add(Expr::Axis(*axis), DType::I64);
            index = exprs.add(Expr::Binary(BinaryOp::Add, scaled, at), DType::I64);
        }
        index
    }

    pub(crate) fn load(&mut self, param: ParamId, index: ExprId) -> ExprId {
        let dtype = self.kernel.params[param].dtype;
        self.kernel.exprs.add(Expr::Load { param, index }, dtype)
    }

    pub(crate) fn cast(&mut self, to: DType, value: ExprId) -> ExprId {
        if self.kernel.exprs.dtype(value) == to {
            return value;
        }
        self.kernel.exprs.add(Expr::Cast(to, value), to)
    }

    pub(crate) fn binary(&mut self, op: BinaryOp, a: ExprId, b: ExprId) -> ExprId {
        let dtype = self.kernel.exprs.dtype(a);
        self.kernel.exprs.add(Expr::Binary(op, a, b), dtype)
    }
}

/// A store over axes that are bound already.
pub(crate) fn store(param: ParamId, index: ExprId, value: ExprId) -> Stmt {
    Stmt::Store {
        param,
        index,
        value,
        axes: Vec::new(),
    }
}
