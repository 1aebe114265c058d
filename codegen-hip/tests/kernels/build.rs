//! What builds a kernel with few words.

use ir::kernel::{
    Access, Axis, AxisId, Body, Expr, ExprId, Exprs, Kernel, Loops, Mapping, Param, ParamId, Stmt, VarId,
};
use ir::op::{BinaryOp, UnaryOp};
use ir::{DType, Dim, Scalar, Symbol, Table};

use super::F32;

/// A kernel under construction.
pub struct Build {
    pub kernel: Kernel,
}

impl Build {
    pub fn new(name: &str, mapping: Mapping) -> Build {
        Build {
            kernel: Kernel {
                name: name.to_owned(),
                params: Table::new(),
                symbols: vec![],
                axes: Table::new(),
                exprs: Exprs::default(),
                vars: Table::new(),
                body: Body::Loops(Loops {
                    parallel: vec![],
                    stmts: vec![],
                }),
                mapping,
                origins: vec![format!("n1 {name}")],
            },
        }
    }
    pub fn axis(&mut self, name: &str, extent: impl Into<Dim>) -> AxisId {
        self.kernel.axes.push(Axis {
            name: name.to_owned(),
            extent: extent.into(),
        })
    }
    pub fn param(&mut self, name: &str, dtype: DType, elements: impl Into<Dim>, access: Access) -> ParamId {
        self.kernel.params.push(Param {
            name: name.to_owned(),
            dtype,
            elements: elements.into(),
            access,
        })
    }
    pub fn read(&mut self, name: &str, dtype: DType, elements: impl Into<Dim>) -> ParamId {
        self.param(name, dtype, elements, Access::Read)
    }
    pub fn write(&mut self, name: &str, dtype: DType, elements: impl Into<Dim>) -> ParamId {
        self.param(name, dtype, elements, Access::Write)
    }
    pub fn symbol(&mut self, name: &str) -> Dim {
        self.kernel.symbols.push(Symbol::new(name));
        Dim::symbol(name)
    }
    pub fn var(&mut self, dtype: DType) -> VarId {
        self.kernel.vars.push(dtype)
    }
    pub fn at(&mut self, axis: AxisId) -> ExprId {
        self.kernel.exprs.add(Expr::Axis(axis), DType::I64)
    }
    pub fn int(&mut self, v: i64) -> ExprId {
        self.kernel
            .exprs
            .add(Expr::Const(DType::I64, Scalar::Int(v)), DType::I64)
    }
    pub fn size(&mut self, d: &Dim) -> ExprId {
        match d.as_const() {
            Some(v) => self.int(v),
            None => self.kernel.exprs.add(Expr::Size(d.clone()), DType::I64),
        }
    }
    pub fn float(&mut self, v: f64) -> ExprId {
        self.kernel.exprs.add(Expr::Const(F32, Scalar::Float(v)), F32)
    }
    pub fn bin(&mut self, op: BinaryOp, a: ExprId, b: ExprId) -> ExprId {
        let t = if op.is_comparison() {
            DType::Bool
        } else {
            self.kernel.exprs.dtype(a)
        };
        self.kernel.exprs.add(Expr::Binary(op, a, b), t)
    }
    pub fn un(&mut self, op: UnaryOp, a: ExprId) -> ExprId {
        let t = if op.is_predicate() {
            DType::Bool
        } else {
            self.kernel.exprs.dtype(a)
        };
        self.kernel.exprs.add(Expr::Unary(op, a), t)
    }
    pub fn cast(&mut self, t: DType, a: ExprId) -> ExprId {
        if self.kernel.exprs.dtype(a) == t {
            return a;
        }
        self.kernel.exprs.add(Expr::Cast(t, a), t)
    }
    pub fn select(&mut self, c: ExprId, a: ExprId, b: ExprId) -> ExprId {
        let t = self.kernel.exprs.dtype(a);
        self.kernel.exprs.add(Expr::Select(c, a, b), t)
    }
    pub fn load(&mut self, param: ParamId, index: ExprId) -> ExprId {
        let t = self.kernel.params[param].dtype;
        self.kernel.exprs.add(Expr::Load { param, index }, t)
    }
    /// Loads and widens to what arithmetic is done in.
    pub fn load_wide(&mut self, param: ParamId, index: ExprId) -> ExprId {
        let e = self.load(param, index);
        let t = match self.kernel.params[param].dtype {
            DType::I4 => DType::I8,
            DType::U4 => DType::U8,
            t if t.is_float() && t != DType::F64 => F32,
            t => t,
        };
        self.cast(t, e)
    }
    pub fn value(&mut self, v: VarId) -> ExprId {
        let t = self.kernel.vars[v];
        self.kernel.exprs.add(Expr::Var(v), t)
    }
    /// `Σ axis · stride`.
    pub fn linear(&mut self, terms: &[(ExprId, Dim)]) -> ExprId {
        let mut sum: Option<ExprId> = None;
        for (e, stride) in terms {
            let term = if stride.is(1) {
                *e
            } else {
                let s = self.size(stride);
                self.bin(BinaryOp::Mul, *e, s)
            };
            sum = Some(match sum {
                Some(s) => self.bin(BinaryOp::Add, s, term),
                None => term,
            });
        }
        sum.unwrap_or_else(|| self.int(0))
    }
    pub fn store(&mut self, param: ParamId, index: ExprId, value: ExprId, axes: &[AxisId]) -> Stmt {
        let value = self.cast(self.kernel.params[param].dtype, value);
        Stmt::Store {
            param,
            index,
            value,
            axes: axes.to_vec(),
        }
    }
    pub fn done(mut self, body: Body) -> Kernel {
        self.kernel.body = body;
        self.kernel
    }
}
