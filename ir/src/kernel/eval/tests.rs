//! Hand-made kernels of each body against what they should compute.

use super::super::*;
use super::{Wanted, evaluate, evaluate_some};
use crate::data::HostTensor;
use crate::dim::{Bindings, Dim, Symbol};
use crate::entity::Table;
use crate::graph::op::{BinaryOp, ReduceOp};
use crate::types::{DType, Scalar};

/// Builds kernels with few words.
pub(crate) struct Build(pub Kernel);

impl Build {
    pub(crate) fn new(axes: &[(&str, Dim)], params: &[(&str, DType, Dim, Access)]) -> Build {
        Build(Kernel {
            name: "k".into(),
            params: params
                .iter()
                .map(|(name, dtype, elements, access)| Param {
                    name: (*name).into(),
                    dtype: *dtype,
                    elements: elements.clone(),
                    access: *access,
                })
                .collect(),
            symbols: vec![Symbol::new("n")],
            axes: axes
                .iter()
                .map(|(name, extent)| Axis {
                    name: (*name).into(),
                    extent: extent.clone(),
                })
                .collect(),
            exprs: Exprs::default(),
            vars: Table::new(),
            body: Body::Loops(Loops {
                parallel: vec![],
                stmts: vec![],
            }),
            mapping: Mapping::Host,
            origins: vec![],
        })
    }
    pub(crate) fn axis(&mut self, i: usize) -> ExprId {
        self.0.exprs.add(Expr::Axis(AxisId::new(i)), DType::I64)
    }
    pub(crate) fn int(&mut self, v: i64) -> ExprId {
        self.0.exprs.add(Expr::Const(DType::I64, Scalar::Int(v)), DType::I64)
    }
    pub(crate) fn float(&mut self, v: f64) -> ExprId {
        self.0.exprs.add(Expr::Const(DType::F32, Scalar::Float(v)), DType::F32)
    }
    pub(crate) fn size(&mut self, d: Dim) -> ExprId {
        self.0.exprs.add(Expr::Size(d), DType::I64)
    }
    pub(crate) fn bin(&mut self, op: BinaryOp, a: ExprId, b: ExprId) -> ExprId {
        let dtype = if op.is_comparison() {
            DType::Bool
        } else {
            self.0.exprs.dtype(a)
        };
        self.0.exprs.add(Expr::Binary(op, a, b), dtype)
    }
    /// `a · stride + b`.
    pub(crate) fn at(&mut self, a: ExprId, stride: Dim, b: ExprId) -> ExprId {
        let stride = self.size(stride);
        let scaled = self.bin(BinaryOp::Mul, a, stride);
        self.bin(BinaryOp::Add, scaled, b)
    }
    pub(crate) fn load(&mut self, param: usize, index: ExprId) -> ExprId {
        let param = ParamId::new(param);
        let dtype = self.0.params[param].dtype;
        self.0.exprs.add(Expr::Load { param, index }, dtype)
    }
    pub(crate) fn var(&mut self, dtype: DType) -> (VarId, ExprId) {
        let v = self.0.vars.push(dtype);
        (v, self.0.exprs.add(Expr::Var(v), dtype))
    }
    pub(crate) fn store(param: usize, index: ExprId, value: ExprId, axes: &[usize]) -> Stmt {
        Stmt::Store {
            param: ParamId::new(param),
            index,
            value,
            axes: axes.iter().map(|a| AxisId::new(*a)).collect(),
        }
    }
}

fn n() -> Dim {
    Dim::symbol("n")
}
fn bindings(v: i64) -> Bindings {
    Bindings::from_iter([(Symbol::new("n"), v)])
}
fn floats(v: &[f32]) -> HostTensor {
    HostTensor::from_f32(vec![v.len()], v).unwrap()
}

/// `y[i, j] = x[i, j] − Σ_j x[i, j]`, rows of length `n`.
pub(crate) fn row_kernel() -> Kernel {
    let elements = n() * 2;
    let mut b = Build::new(
        &[("row", Dim::Const(2)), ("col", n())],
        &[
            ("x", DType::F32, elements.clone(), Access::Read),
            ("y", DType::F32, elements, Access::Write),
        ],
    );
    let (i, j) = (b.axis(0), b.axis(1));
    let at = b.at(i, n(), j);
    let x = b.load(0, at);
    let (sum, sum_value) = b.var(DType::F32);
    let y = b.bin(BinaryOp::Sub, x, sum_value);
    b.0.body = Body::Loops(Loops {
        parallel: vec![AxisId::new(0)],
        stmts: vec![
            Stmt::Fold {
                var: sum,
                op: ReduceOp::Sum,
                axes: vec![AxisId::new(1)],
                value: x,
            },
            Build::store(1, at, y, &[1]),
        ],
    });
    b.0
}

#[test]
fn rows_fold_and_store() {
    let mut buffers = vec![floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), floats(&[0.0; 6])];
    evaluate(&row_kernel(), &mut buffers, &bindings(3)).unwrap();
    assert_eq!(buffers[1].to_f32(), [-5.0, -4.0, -3.0, -11.0, -10.0, -9.0]);
    assert!(evaluate(&row_kernel(), &mut buffers, &bindings(4)).is_err());
    // Only the row with the element that is wanted is computed.
    buffers[1] = floats(&[7.0; 6]);
    let wanted: Wanted<'_> = &|param, at| param == ParamId::new(1) && at == 4;
    evaluate_some(&row_kernel(), &mut buffers, &bindings(3), Some(wanted)).unwrap();
    assert_eq!(buffers[1].to_f32(), [7.0, 7.0, 7.0, -11.0, -10.0, -9.0]);
}

#[test]
fn select_is_lazy_and_bounds_are_checked() {
    let mut b = Build::new(
        &[("i", Dim::Const(4))],
        &[
            ("x", DType::F32, Dim::Const(2), Access::Read),
            ("y", DType::F32, Dim::Const(4), Access::Write),
        ],
    );
    let (i, two, fill) = (b.axis(0), b.int(2), b.float(9.0));
    let inside = b.bin(BinaryOp::Lt, i, two);
    let x = b.load(0, i);
    let guarded = b.0.exprs.add(Expr::Select(inside, x, fill), DType::F32);
    let body = |value| {
        Body::Loops(Loops {
            parallel: vec![AxisId::new(0)],
            stmts: vec![Build::store(1, i, value, &[])],
        })
    };
    b.0.body = body(guarded);
    let mut buffers = vec![floats(&[1.0, 2.0]), floats(&[0.0; 4])];
    evaluate(&b.0, &mut buffers, &Bindings::new()).unwrap();
    assert_eq!(buffers[1].to_f32(), [1.0, 2.0, 9.0, 9.0]);
    b.0.body = body(x);
    let error = evaluate(&b.0, &mut buffers, &Bindings::new()).unwrap_err();
    assert_eq!(error.to_string(), "kernel k: loads element 2 of x, which has 2");
}

#[test]
fn contractions_run_their_epilogue() {
    let mut b = Build::new(
        &[("m", Dim::Const(2)), ("n", Dim::Const(3)), ("k", Dim::Const(2))],
        &[
            ("a", DType::F32, Dim::Const(4), Access::Read),
            ("b", DType::F32, Dim::Const(6), Access::Read),
            ("y", DType::F32, Dim::Const(6), Access::Write),
        ],
    );
    let (m, n, k) = (b.axis(0), b.axis(1), b.axis(2));
    let (mk, nk, mn) = (b.at(m, 2.into(), k), b.at(n, 2.into(), k), b.at(m, 3.into(), n));
    let (lhs, rhs) = (b.load(0, mk), b.load(1, nk));
    let (acc, acc_value) = b.var(DType::F32);
    let one = b.float(1.0);
    let y = b.bin(BinaryOp::Add, acc_value, one);
    let axis = AxisId::new;
    b.0.body = Body::Contract(ContractBody {
        batch: vec![],
        m: vec![axis(0)],
        n: vec![axis(1)],
        k: vec![axis(2)],
        lhs: Operand::new(&b.0.exprs, lhs),
        rhs: Operand::new(&b.0.exprs, rhs),
        acc,
        pair: None,
        statistic: None,
        epilogue: vec![Build::store(2, mn, y, &[])],
        conv: None,
    });
    let mut buffers = vec![
        floats(&[1.0, 2.0, 3.0, 4.0]),
        floats(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]),
        floats(&[0.0; 6]),
    ];
    evaluate(&b.0, &mut buffers, &Bindings::new()).unwrap();
    assert_eq!(buffers[2].to_f32(), [2.0, 3.0, 4.0, 4.0, 5.0, 8.0]);
    buffers[2] = floats(&[-1.0; 6]);
    let wanted: Wanted<'_> = &|_, at| at == 1 || at == 5;
    evaluate_some(&b.0, &mut buffers, &Bindings::new(), Some(wanted)).unwrap();
    assert_eq!(buffers[2].to_f32(), [-1.0, 3.0, -1.0, -1.0, -1.0, 8.0]);
}

#[test]
fn scans_sorts_and_updates() {
    let ro = |name, dtype| (name, dtype, Dim::Const(4), Access::Read);
    let wo = |name, dtype| (name, dtype, Dim::Const(4), Access::Write);
    let mut b = Build::new(
        &[("i", Dim::Const(4)), ("r", Dim::Const(2))],
        &[ro("x", DType::F32), wo("y", DType::F32), wo("z", DType::I64)],
    );
    let (i, r) = (b.axis(0), b.axis(1));
    let x = b.load(0, i);
    let (v, value) = b.var(DType::F32);
    let (p, position) = b.var(DType::I64);
    let buffers = || {
        vec![
            floats(&[3.0, 1.0, 3.0, 2.0]),
            floats(&[0.0; 4]),
            HostTensor::from_i64(DType::I64, vec![4], &[0; 4]).unwrap(),
        ]
    };
    b.0.body = Body::Scan(ScanBody {
        parallel: vec![],
        axis: AxisId::new(0),
        op: ReduceOp::Sum,
        value: x,
        exclusive: true,
        reverse: true,
        var: v,
        stores: vec![Build::store(1, i, value, &[])],
    });
    let mut out = buffers();
    evaluate(&b.0, &mut out, &Bindings::new()).unwrap();
    assert_eq!(out[1].to_f32(), [6.0, 5.0, 2.0, 0.0]);
    b.0.body = Body::Sort(SortBody {
        parallel: vec![],
        axis: AxisId::new(0),
        rank: AxisId::new(1),
        largest: true,
        value: x,
        value_var: v,
        index_var: p,
        stores: vec![Build::store(1, r, value, &[]), Build::store(2, r, position, &[])],
    });
    let mut out = buffers();
    evaluate(&b.0, &mut out, &Bindings::new()).unwrap();
    assert_eq!(out[1].to_f32(), [3.0, 3.0, 0.0, 0.0]);
    assert_eq!(out[2].to_i64(), [0, 2, 0, 0]);
    let zero = b.int(0);
    b.0.params[ParamId::new(1)].access = Access::ReadWrite;
    b.0.body = Body::Loops(Loops {
        parallel: vec![AxisId::new(0)],
        stmts: vec![Stmt::Update {
            param: ParamId::new(1),
            index: zero,
            value: x,
            op: Some(ReduceOp::Sum),
            axes: vec![],
        }],
    });
    let mut out = buffers();
    evaluate(&b.0, &mut out, &Bindings::new()).unwrap();
    assert_eq!(out[1].to_f32(), [9.0, 0.0, 0.0, 0.0]);
}

#[test]
fn attention_weighs_values() {
    let c = Dim::Const;
    let mut b = Build::new(
        &[("q", c(2)), ("k", c(2)), ("d", c(1)), ("dv", c(1))],
        &[
            ("q", DType::F32, c(2), Access::Read),
            ("k", DType::F32, c(2), Access::Read),
            ("v", DType::F32, c(2), Access::Read),
            ("y", DType::F32, c(2), Access::Write),
        ],
    );
    let (q, k) = (b.axis(0), b.axis(1));
    let (query, key, value) = (b.load(0, q), b.load(1, k), b.load(2, k));
    let (acc, score) = b.var(DType::F32);
    let (out, result) = b.var(DType::F32);
    let one = b.int(1);
    let end = b.0.exprs.add(Expr::Binary(BinaryOp::Add, q, one), DType::I64);
    let axis = AxisId::new;
    b.0.body = Body::Attention(AttentionBody {
        batch: vec![],
        q: axis(0),
        k: axis(1),
        d: axis(2),
        dv: axis(3),
        query,
        key,
        value,
        acc,
        score,
        weights: Weights::Softmax,
        out,
        epilogue: vec![Build::store(3, q, result, &[])],
        row_weights: None,
        range: Some(KeyRange {
            first: None,
            end: Some(end),
            inside: score,
            nothing: None,
        }),
    });
    let mut buffers = vec![
        floats(&[1.0, 2.0]),
        floats(&[0.5, 1.0]),
        floats(&[10.0, 20.0]),
        floats(&[0.0; 2]),
    ];
    evaluate(&b.0, &mut buffers, &Bindings::new()).unwrap();
    // The first query sees the first key alone; the second weighs e^1 against e^2.
    let weight = 1.0 / (1.0 + 1f64.exp());
    let y = buffers[3].to_f64();
    assert_eq!(y[0], 10.0);
    assert!((y[1] - (10.0 * weight + 20.0 * (1.0 - weight))).abs() < 1e-5);
}
