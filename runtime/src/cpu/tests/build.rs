//! A builder of kernels for tests.

use ir::dim::Dim;
use ir::entity::Table;
use ir::kernel::{
    Access, Axis, AxisId, Body, Expr, ExprId, Exprs, Kernel, Loops, Mapping, Param, ParamId, Stmt, VarId,
};
use ir::op::{BinaryOp, ReduceOp, UnaryOp};
use ir::{DType, Scalar};

/// SplitMix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In -1..1.
    pub(crate) fn float(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// Builds one kernel.
pub(crate) struct Build {
    pub kernel: Kernel,
}

impl Build {
    pub(crate) fn new(name: &str) -> Build {
        Build {
            kernel: Kernel {
                name: name.into(),
                params: Table::new(),
                symbols: Vec::new(),
                axes: Table::new(),
                exprs: Exprs::default(),
                vars: Table::new(),
                body: Body::Loops(Loops {
                    parallel: Vec::new(),
                    stmts: Vec::new(),
                }),
                mapping: Mapping::Host,
                origins: Vec::new(),
            },
        }
    }

    pub(crate) fn param(&mut self, name: &str, dtype: DType, elements: impl Into<Dim>, access: Access) -> ParamId {
        self.kernel.params.push(Param {
            name: name.into(),
            dtype,
            elements: elements.into(),
            access,
        })
    }

    pub(crate) fn read(&mut self, name: &str, dtype: DType, elements: impl Into<Dim>) -> ParamId {
        self.param(name, dtype, elements, Access::Read)
    }

    pub(crate) fn write(&mut self, name: &str, dtype: DType, elements: impl Into<Dim>) -> ParamId {
        self.param(name, dtype, elements, Access::Write)
    }

    pub(crate) fn axis(&mut self, name: &str, extent: impl Into<Dim>) -> AxisId {
        self.kernel.axes.push(Axis {
            name: name.into(),
            extent: extent.into(),
        })
    }

    pub(crate) fn var(&mut self, dtype: DType) -> VarId {
        self.kernel.vars.push(dtype)
    }

    pub(crate) fn expr(&mut self, expr: Expr, dtype: DType) -> ExprId {
        self.kernel.exprs.add(expr, dtype)
    }

    pub(crate) fn int(&mut self, v: i64) -> ExprId {
        self.expr(Expr::Const(DType::I64, Scalar::Int(v)), DType::I64)
    }

    pub(crate) fn num(&mut self, v: f64) -> ExprId {
        self.expr(Expr::Const(DType::F32, Scalar::Float(v)), DType::F32)
    }

    pub(crate) fn at(&mut self, axis: AxisId) -> ExprId {
        self.expr(Expr::Axis(axis), DType::I64)
    }

    pub(crate) fn size(&mut self, dim: impl Into<Dim>) -> ExprId {
        self.expr(Expr::Size(dim.into()), DType::I64)
    }

    pub(crate) fn bin(&mut self, op: BinaryOp, a: ExprId, b: ExprId) -> ExprId {
        let dtype = if op.is_comparison() {
            DType::Bool
        } else {
            self.kernel.exprs.dtype(a)
        };
        self.expr(Expr::Binary(op, a, b), dtype)
    }

    pub(crate) fn un(&mut self, op: UnaryOp, a: ExprId) -> ExprId {
        let dtype = if op.is_predicate() {
            DType::Bool
        } else {
            self.kernel.exprs.dtype(a)
        };
        self.expr(Expr::Unary(op, a), dtype)
    }

    pub(crate) fn add(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.bin(BinaryOp::Add, a, b)
    }

    pub(crate) fn mul(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.bin(BinaryOp::Mul, a, b)
    }

    pub(crate) fn cast(&mut self, to: DType, a: ExprId) -> ExprId {
        self.expr(Expr::Cast(to, a), to)
    }

    pub(crate) fn select(&mut self, c: ExprId, a: ExprId, b: ExprId) -> ExprId {
        let dtype = self.kernel.exprs.dtype(a);
        self.expr(Expr::Select(c, a, b), dtype)
    }

    pub(crate) fn value(&mut self, var: VarId) -> ExprId {
        let dtype = self.kernel.vars[var];
        self.expr(Expr::Var(var), dtype)
    }

    pub(crate) fn load(&mut self, param: ParamId, index: ExprId) -> ExprId {
        let dtype = self.kernel.params[param].dtype;
        self.expr(Expr::Load { param, index }, dtype)
    }

    /// `Σ axis · stride + base`.
    pub(crate) fn index(&mut self, base: i64, terms: &[(AxisId, Dim)]) -> ExprId {
        let mut sum = self.int(base);
        for (axis, stride) in terms {
            let (a, s) = (self.at(*axis), self.size(stride.clone()));
            let term = self.mul(a, s);
            sum = self.add(sum, term);
        }
        sum
    }

    pub(crate) fn store(&mut self, param: ParamId, index: ExprId, value: ExprId, axes: &[AxisId]) -> Stmt {
        Stmt::Store {
            param,
            index,
            value,
            axes: axes.to_vec(),
        }
    }

    pub(crate) fn fold(&mut self, op: ReduceOp, axes: &[AxisId], value: ExprId) -> (Stmt, ExprId) {
        let dtype = match op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => DType::I64,
            _ => self.kernel.exprs.dtype(value),
        };
        let var = self.var(dtype);
        let stmt = Stmt::Fold {
            var,
            op,
            axes: axes.to_vec(),
            value,
        };
        (stmt, self.value(var))
    }

    pub(crate) fn loops(mut self, parallel: &[AxisId], stmts: Vec<Stmt>) -> Kernel {
        self.kernel.body = Body::Loops(Loops {
            parallel: parallel.to_vec(),
            stmts,
        });
        self.kernel
    }
}

pub(crate) fn sym(name: &str) -> Dim {
    Dim::symbol(name)
}

pub(crate) fn c(v: i64) -> Dim {
    Dim::Const(v)
}
