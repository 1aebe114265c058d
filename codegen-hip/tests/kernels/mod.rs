//! Kernels written by hand, as lowering makes them, with odd sizes and every mapping: what the printer's tests print, compile
//! and run.

use ir::kernel::{
    Access, AttentionBody, Axis, AxisId, Body, ContractBody, Expr, ExprId, Exprs, Kernel, Loops, Mapping, Param,
    ParamId, ScanBody, SortBody, Stmt, VarId,
};
use ir::op::{BinaryOp, ReduceOp, UnaryOp};
use ir::{DType, Dim, Scalar, Symbol, Table};

/// A kernel under construction.
pub struct Build {
    pub kernel: Kernel,
}

pub const F32: DType = DType::F32;

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

/// `out = gelu(x · scale + bias[col]) ` over `[rows, cols]`.
pub fn pointwise(name: &str, dtype: DType, rows: i64, cols: i64, mapping: Mapping) -> Kernel {
    let mut b = Build::new(name, mapping);
    let (x, bias, out) = (
        b.read("x", dtype, rows * cols),
        b.read("bias", F32, cols),
        b.write("out", dtype, rows * cols),
    );
    let (row, col) = (b.axis("row", rows), b.axis("col", cols));
    let (r, c) = (b.at(row), b.at(col));
    let index = b.linear(&[(r, cols.into()), (c, 1.into())]);
    let x = b.load_wide(x, index);
    let x = b.cast(F32, x);
    let two = b.float(1.25);
    let bias = b.load(bias, c);
    let y = b.bin(BinaryOp::Mul, x, two);
    let y = b.bin(BinaryOp::Add, y, bias);
    let g = b.un(UnaryOp::Gelu, y);
    let store = b.store(out, index, g, &[]);
    b.done(Body::Loops(Loops {
        parallel: vec![row, col],
        stmts: vec![store],
    }))
}

/// One axis of a length that no width divides, from one type to another, two stores.
pub fn flat(name: &str, from: DType, to: DType, n: i64, mapping: Mapping) -> Kernel {
    let mut b = Build::new(name, mapping);
    let (x, out, twice) = (b.read("x", from, n), b.write("out", to, n), b.write("twice", from, n));
    let i = b.axis("i", n);
    let at = b.at(i);
    let raw = b.load(x, at);
    let wide = b.load_wide(x, at);
    let one = b.store(out, at, wide, &[]);
    let two = b.store(twice, at, raw, &[]);
    b.done(Body::Loops(Loops {
        parallel: vec![i],
        stmts: vec![one, two],
    }))
}

/// Every unary member over a vector of `dtype`, one store each.
pub fn unaries(name: &str, dtype: DType, ops: &[UnaryOp], n: i64) -> Kernel {
    let mut b = Build::new(name, Mapping::Threads { block: 64, vector: 1 });
    let x = b.read("x", dtype, n);
    let i = b.axis("i", n);
    let at = b.at(i);
    let e = b.load(x, at);
    let mut stmts = Vec::new();
    for op in ops {
        let y = b.un(*op, e);
        let out = b.write(&format!("out_{op}"), b.kernel.exprs.dtype(y), n);
        stmts.push(b.store(out, at, y, &[]));
    }
    b.done(Body::Loops(Loops {
        parallel: vec![i],
        stmts,
    }))
}

/// Every binary member of two vectors of `dtype`.
pub fn binaries(name: &str, dtype: DType, ops: &[BinaryOp], n: i64) -> Kernel {
    let mut b = Build::new(name, Mapping::Threads { block: 64, vector: 1 });
    let (x, y) = (b.read("x", dtype, n), b.read("y", dtype, n));
    let i = b.axis("i", n);
    let at = b.at(i);
    let (x, y) = (b.load(x, at), b.load(y, at));
    let mut stmts = Vec::new();
    for op in ops {
        let z = b.bin(*op, x, y);
        let out = b.write(&format!("out_{op}"), b.kernel.exprs.dtype(z), n);
        stmts.push(b.store(out, at, z, &[]));
    }
    b.done(Body::Loops(Loops {
        parallel: vec![i],
        stmts,
    }))
}

/// `[a; b]` along the columns, each part loaded only where it is, the first squared when it is large.
pub fn concat(name: &str, rows: i64, left: i64, right: i64, mapping: Mapping) -> Kernel {
    let mut b = Build::new(name, mapping);
    let (x, y) = (b.read("x", F32, rows * left), b.read("y", F32, rows * right));
    let total = left + right;
    let out = b.write("out", F32, rows * total);
    let (row, col) = (b.axis("row", rows), b.axis("col", total));
    let (r, c) = (b.at(row), b.at(col));
    let split = b.int(left);
    let first = b.bin(BinaryOp::Lt, c, split);
    let index = b.linear(&[(r, left.into()), (c, 1.into())]);
    let x = b.load(x, index);
    let square = b.bin(BinaryOp::Mul, x, x);
    let shifted = b.bin(BinaryOp::Sub, c, split);
    let index = b.linear(&[(r, right.into()), (shifted, 1.into())]);
    let y = b.load(y, index);
    let e = b.select(first, square, y);
    let index = b.linear(&[(r, total.into()), (c, 1.into())]);
    let store = b.store(out, index, e, &[]);
    b.done(Body::Loops(Loops {
        parallel: vec![row, col],
        stmts: vec![store],
    }))
}

/// Softmax over the last axis.
pub fn softmax(name: &str, dtype: DType, rows: Dim, length: Dim, mapping: Mapping) -> Kernel {
    let mut b = Build::new(name, mapping);
    for d in [&rows, &length] {
        if let Some(s) = d.as_symbol() {
            b.symbol(s.name());
        }
    }
    let elements = rows.clone() * &length;
    let (x, out) = (b.read("x", dtype, elements.clone()), b.write("out", dtype, elements));
    let (row, r) = (b.axis("row", rows), b.axis("r", length.clone()));
    let (at_row, at_r) = (b.at(row), b.at(r));
    let index = b.linear(&[(at_row, length), (at_r, 1.into())]);
    let x = b.load_wide(x, index);
    let (max, sum) = (b.var(F32), b.var(F32));
    let m = b.value(max);
    let shifted = b.bin(BinaryOp::Sub, x, m);
    let exp = b.un(UnaryOp::Exp, shifted);
    let s = b.value(sum);
    let y = b.bin(BinaryOp::Div, exp, s);
    let stmts = vec![
        Stmt::Fold {
            var: max,
            op: ReduceOp::Max,
            axes: vec![r],
            value: x,
        },
        Stmt::Fold {
            var: sum,
            op: ReduceOp::Sum,
            axes: vec![r],
            value: exp,
        },
        b.store(out, index, y, &[r]),
    ];
    b.done(Body::Loops(Loops {
        parallel: vec![row],
        stmts,
    }))
}

/// Layer norm with scale and bias; two outer axes, two folded ones.
pub fn layer_norm(name: &str, dtype: DType, outer: [i64; 2], inner: [i64; 2], mapping: Mapping) -> Kernel {
    let mut b = Build::new(name, mapping);
    let n = inner[0] * inner[1];
    let elements = outer[0] * outer[1] * n;
    let (x, scale, bias) = (
        b.read("x", dtype, elements),
        b.read("scale", dtype, n),
        b.read("bias", dtype, n),
    );
    let out = b.write("out", dtype, elements);
    let parallel = vec![b.axis("i", outer[0]), b.axis("j", outer[1])];
    let folded = vec![b.axis("r", inner[0]), b.axis("c", inner[1])];
    let at: Vec<ExprId> = parallel.iter().chain(&folded).map(|a| b.at(*a)).collect();
    let index = b.linear(&[
        (at[0], (outer[1] * n).into()),
        (at[1], n.into()),
        (at[2], inner[1].into()),
        (at[3], 1.into()),
    ]);
    let within = b.linear(&[(at[2], inner[1].into()), (at[3], 1.into())]);
    let x = b.load_wide(x, index);
    let (sum, mean, squares, rstd) = (b.var(F32), b.var(F32), b.var(F32), b.var(F32));
    let per = b.float(1.0 / n as f64);
    let s = b.value(sum);
    let mean_value = b.bin(BinaryOp::Mul, s, per);
    let m = b.value(mean);
    let centred = b.bin(BinaryOp::Sub, x, m);
    let square = b.bin(BinaryOp::Mul, centred, centred);
    let q = b.value(squares);
    let variance = b.bin(BinaryOp::Mul, q, per);
    let epsilon = b.float(1e-5);
    let shifted = b.bin(BinaryOp::Add, variance, epsilon);
    let rsqrt = b.un(UnaryOp::Rsqrt, shifted);
    let r = b.value(rstd);
    let normal = b.bin(BinaryOp::Mul, centred, r);
    let (scale, bias) = (b.load_wide(scale, within), b.load_wide(bias, within));
    let y = b.bin(BinaryOp::Mul, normal, scale);
    let y = b.bin(BinaryOp::Add, y, bias);
    let stmts = vec![
        Stmt::Fold {
            var: sum,
            op: ReduceOp::Sum,
            axes: folded.clone(),
            value: x,
        },
        Stmt::Let {
            var: mean,
            value: mean_value,
        },
        Stmt::Fold {
            var: squares,
            op: ReduceOp::Sum,
            axes: folded.clone(),
            value: square,
        },
        Stmt::Let {
            var: rstd,
            value: rsqrt,
        },
        b.store(out, index, y, &folded),
    ];
    b.done(Body::Loops(Loops { parallel, stmts }))
}

/// Several folds of one row by different operations, stored once.
pub fn folds(name: &str, dtype: DType, ops: &[ReduceOp], rows: i64, length: i64, mapping: Mapping) -> Kernel {
    let mut b = Build::new(name, mapping);
    let x = b.read("x", dtype, rows * length);
    let (row, r) = (b.axis("row", rows), b.axis("r", length));
    let (at_row, at_r) = (b.at(row), b.at(r));
    let index = b.linear(&[(at_row, length.into()), (at_r, 1.into())]);
    let x = b.load(x, index);
    let (mut stmts, mut stores) = (Vec::new(), Vec::new());
    for op in ops {
        let t = if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
            DType::I64
        } else {
            dtype
        };
        let var = b.var(t);
        stmts.push(Stmt::Fold {
            var,
            op: *op,
            axes: vec![r],
            value: x,
        });
        let v = b.value(var);
        let out = b.write(&format!("out_{op}"), t, rows);
        stores.push(b.store(out, at_row, v, &[]));
    }
    stmts.extend(stores);
    b.done(Body::Loops(Loops {
        parallel: vec![row],
        stmts,
    }))
}

/// Average pooling, channels last, padded: two folds over a guarded window.
pub fn pool(name: &str, size: i64, channels: i64, window: i64, stride: i64) -> Kernel {
    let mut b = Build::new(name, Mapping::Threads { block: 64, vector: 1 });
    let pad = window / 2;
    let out_size = (size + 2 * pad - window) / stride + 1;
    let (x, out) = (
        b.read("x", F32, size * size * channels),
        b.write("out", F32, out_size * out_size * channels),
    );
    let parallel = vec![b.axis("y", out_size), b.axis("x", out_size), b.axis("c", channels)];
    let taps = vec![b.axis("dy", window), b.axis("dx", window)];
    let at: Vec<ExprId> = parallel.iter().chain(&taps).map(|a| b.at(*a)).collect();
    let minus = b.int(-pad);
    let mut guard = None;
    let mut where_ = Vec::new();
    for s in 0..2 {
        let p = b.linear(&[(at[s], stride.into()), (at[3 + s], 1.into())]);
        let p = b.bin(BinaryOp::Add, p, minus);
        let (zero, end) = (b.int(0), b.int(size));
        let low = b.bin(BinaryOp::Ge, p, zero);
        let high = b.bin(BinaryOp::Lt, p, end);
        let both = b.bin(BinaryOp::And, low, high);
        guard = Some(guard.map_or(both, |g| b.bin(BinaryOp::And, g, both)));
        where_.push(p);
    }
    let guard = guard.unwrap();
    let index = b.linear(&[
        (where_[0], (size * channels).into()),
        (where_[1], channels.into()),
        (at[2], 1.into()),
    ]);
    let x = b.load(x, index);
    let (zero, one) = (b.float(0.0), b.float(1.0));
    let x = b.select(guard, x, zero);
    let hit = b.select(guard, one, zero);
    let (sum, count) = (b.var(F32), b.var(F32));
    let (s, c) = (b.value(sum), b.value(count));
    let mean = b.bin(BinaryOp::Div, s, c);
    let index = b.linear(&[
        (at[0], (out_size * channels).into()),
        (at[1], channels.into()),
        (at[2], 1.into()),
    ]);
    let stmts = vec![
        Stmt::Fold {
            var: sum,
            op: ReduceOp::Sum,
            axes: taps.clone(),
            value: x,
        },
        Stmt::Fold {
            var: count,
            op: ReduceOp::Sum,
            axes: taps,
            value: hit,
        },
        b.store(out, index, mean, &[]),
    ];
    b.done(Body::Loops(Loops { parallel, stmts }))
}

/// Sizes of a matrix product.
#[derive(Clone, Copy)]
pub struct Product {
    pub batch: i64,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub transpose_lhs: bool,
    pub transpose_rhs: bool,
}

/// `relu(lhs · rhs + bias)` in the accumulator's type, stored as `out`.
pub fn contract(name: &str, dtype: DType, out: DType, p: Product, mapping: Mapping) -> Kernel {
    let mut b = Build::new(name, mapping);
    let lhs = b.read("lhs_matrix", dtype, p.batch * p.m * p.k);
    let rhs = b.read("rhs_matrix", dtype, p.batch * p.n * p.k);
    let acc_type = dtype.accumulator();
    let bias = b.read("bias", acc_type, p.n);
    let result = b.write("out", out, p.batch * p.m * p.n);
    let batch = if p.batch > 1 {
        vec![b.axis("batch", p.batch)]
    } else {
        vec![]
    };
    let (m, n, k) = (b.axis("row", p.m), b.axis("col", p.n), b.axis("k", p.k));
    let z = match batch.first() {
        Some(a) => b.at(*a),
        None => b.int(0),
    };
    let (am, an, ak) = (b.at(m), b.at(n), b.at(k));
    let (sm, sk) = if p.transpose_lhs { (1, p.m) } else { (p.k, 1) };
    let (sn, sk2) = if p.transpose_rhs { (p.k, 1) } else { (1, p.n) };
    let li = b.linear(&[(z, (p.m * p.k).into()), (am, sm.into()), (ak, sk.into())]);
    let ri = b.linear(&[(z, (p.n * p.k).into()), (ak, sk2.into()), (an, sn.into())]);
    let (l, r) = (b.load(lhs, li), b.load(rhs, ri));
    let acc = b.var(acc_type);
    let e = b.value(acc);
    let bias = b.load(bias, an);
    let e = b.bin(BinaryOp::Add, e, bias);
    let e = b.un(UnaryOp::Relu, e);
    let oi = b.linear(&[(z, (p.m * p.n).into()), (am, p.n.into()), (an, 1.into())]);
    let store = b.store(result, oi, e, &[]);
    b.done(Body::Contract(ContractBody {
        batch,
        m: vec![m],
        n: vec![n],
        k: vec![k],
        lhs: l,
        rhs: r,
        acc,
        epilogue: vec![store],
        conv: None,
    }))
}

/// A strided, padded convolution in channels-last layout with groups, as a contraction over guarded loads.
pub fn conv(
    name: &str,
    dtype: DType,
    images: i64,
    size: i64,
    groups: i64,
    channels: i64,
    filters: i64,
    mapping: Mapping,
) -> Kernel {
    let (window, stride, pad) = (3i64, 2i64, 1i64);
    let out_size = (size + 2 * pad - window) / stride + 1;
    let mut b = Build::new(name, mapping);
    let all = groups * channels;
    let x = b.read("image_data", dtype, images * size * size * all);
    let f = b.read("filters", dtype, groups * filters * window * window * channels);
    let out = b.write("out", dtype, images * out_size * out_size * groups * filters);
    let batch = if groups > 1 {
        vec![b.axis("group", groups)]
    } else {
        vec![]
    };
    let m = vec![b.axis("image", images), b.axis("y", out_size), b.axis("x", out_size)];
    let n = vec![b.axis("filter", filters)];
    let k = vec![b.axis("ky", window), b.axis("kx", window), b.axis("c", channels)];
    let g = match batch.first() {
        Some(a) => b.at(*a),
        None => b.int(0),
    };
    let am: Vec<ExprId> = m.iter().map(|a| b.at(*a)).collect();
    let an = b.at(n[0]);
    let ak: Vec<ExprId> = k.iter().map(|a| b.at(*a)).collect();
    let minus = b.int(-pad);
    let (mut guard, mut where_) = (None, Vec::new());
    for s in 0..2 {
        let p = b.linear(&[(am[1 + s], stride.into()), (ak[s], 1.into())]);
        let p = b.bin(BinaryOp::Add, p, minus);
        let (zero, end) = (b.int(0), b.int(size));
        let low = b.bin(BinaryOp::Ge, p, zero);
        let high = b.bin(BinaryOp::Lt, p, end);
        let both = b.bin(BinaryOp::And, low, high);
        guard = Some(guard.map_or(both, |g| b.bin(BinaryOp::And, g, both)));
        where_.push(p);
    }
    let index = b.linear(&[
        (am[0], (size * size * all).into()),
        (where_[0], (size * all).into()),
        (where_[1], all.into()),
        (g, channels.into()),
        (ak[2], 1.into()),
    ]);
    let l = b.load(x, index);
    let zero = b.kernel.exprs.add(Expr::Const(dtype, Scalar::zero(dtype)), dtype);
    let l = b.select(guard.unwrap(), l, zero);
    let filter = b.linear(&[(g, filters.into()), (an, 1.into())]);
    let index = b.linear(&[
        (filter, (window * window * channels).into()),
        (ak[0], (window * channels).into()),
        (ak[1], channels.into()),
        (ak[2], 1.into()),
    ]);
    let r = b.load(f, index);
    let acc = b.var(dtype.accumulator());
    let e = b.value(acc);
    let e = b.un(UnaryOp::Relu, e);
    let index = b.linear(&[
        (am[0], (out_size * out_size * groups * filters).into()),
        (am[1], (out_size * groups * filters).into()),
        (am[2], (groups * filters).into()),
        (filter, 1.into()),
    ]);
    let store = b.store(out, index, e, &[]);
    b.done(Body::Contract(ContractBody {
        batch,
        m,
        n,
        k,
        lhs: l,
        rhs: r,
        acc,
        epilogue: vec![store],
        conv: None,
    }))
}

/// Sizes of an attention.
#[derive(Clone, Copy)]
pub struct Heads {
    pub heads: i64,
    pub queries: i64,
    pub keys: i64,
    pub d: i64,
    pub dv: i64,
    pub causal: bool,
    pub mask: bool,
}

/// Attention over `[head, position, d]` with a scale, optionally a mask to add and the causal one.
pub fn attention(name: &str, dtype: DType, h: Heads, mapping: Mapping) -> Kernel {
    let mut b = Build::new(name, mapping);
    let q_data = b.read("q_data", dtype, h.heads * h.queries * h.d);
    let k_data = b.read("k_data", dtype, h.heads * h.keys * h.d);
    let v_data = b.read("v_data", dtype, h.heads * h.keys * h.dv);
    let mask = b.read("mask", F32, h.queries * h.keys);
    let out_data = b.write("out", dtype, h.heads * h.queries * h.dv);
    let head = b.axis("head", h.heads);
    let (q, k, d, dv) = (
        b.axis("query", h.queries),
        b.axis("key", h.keys),
        b.axis("d", h.d),
        b.axis("dv", h.dv),
    );
    let (ah, aq, ak, ad, av) = (b.at(head), b.at(q), b.at(k), b.at(d), b.at(dv));
    let qi = b.linear(&[(ah, (h.queries * h.d).into()), (aq, h.d.into()), (ad, 1.into())]);
    let ki = b.linear(&[(ah, (h.keys * h.d).into()), (ak, h.d.into()), (ad, 1.into())]);
    let vi = b.linear(&[(ah, (h.keys * h.dv).into()), (ak, h.dv.into()), (av, 1.into())]);
    let (query, key, value) = (b.load(q_data, qi), b.load(k_data, ki), b.load(v_data, vi));
    let acc = b.var(F32);
    let dot = b.value(acc);
    let scale = b.float(1.0 / (h.d as f64).sqrt());
    let mut score = b.bin(BinaryOp::Mul, dot, scale);
    if h.mask {
        let at = b.linear(&[(aq, h.keys.into()), (ak, 1.into())]);
        let m = b.load(mask, at);
        score = b.bin(BinaryOp::Add, score, m);
    }
    if h.causal {
        let reach = b.int(h.keys - h.queries);
        let limit = b.bin(BinaryOp::Add, aq, reach);
        let seen = b.bin(BinaryOp::Le, ak, limit);
        let low = b.float(f64::NEG_INFINITY);
        score = b.select(seen, score, low);
    }
    let out = b.var(F32);
    let e = b.value(out);
    let oi = b.linear(&[(ah, (h.queries * h.dv).into()), (aq, h.dv.into()), (av, 1.into())]);
    let store = b.store(out_data, oi, e, &[]);
    b.done(Body::Attention(AttentionBody {
        batch: vec![head],
        q,
        k,
        d,
        dv,
        query,
        key,
        value,
        acc,
        score,
        out,
        epilogue: vec![store],
        causal: h.causal,
    }))
}

/// A scan along the last axis.
pub fn scan(
    name: &str,
    dtype: DType,
    op: ReduceOp,
    rows: i64,
    length: i64,
    exclusive: bool,
    reverse: bool,
    mapping: Mapping,
) -> Kernel {
    let mut b = Build::new(name, mapping);
    let (x, out) = (b.read("x", dtype, rows * length), b.write("out", dtype, rows * length));
    let (row, step) = (b.axis("row", rows), b.axis("step", length));
    let (ar, astep) = (b.at(row), b.at(step));
    let index = b.linear(&[(ar, length.into()), (astep, 1.into())]);
    let value = b.load(x, index);
    let value = b.cast(dtype.accumulator(), value);
    let var = b.var(dtype.accumulator());
    let v = b.value(var);
    let store = b.store(out, index, v, &[]);
    b.done(Body::Scan(ScanBody {
        parallel: vec![row],
        axis: step,
        op,
        value,
        exclusive,
        reverse,
        var,
        stores: vec![store],
    }))
}

/// The `k` first of each row.
pub fn top_k(name: &str, dtype: DType, rows: i64, length: i64, k: i64, largest: bool, mapping: Mapping) -> Kernel {
    let mut b = Build::new(name, mapping);
    let x = b.read("x", dtype, rows * length);
    let (values, indices) = (
        b.write("values", dtype, rows * k),
        b.write("indices", DType::I64, rows * k),
    );
    let (row, axis, rank) = (b.axis("row", rows), b.axis("i", length), b.axis("rank", k));
    let (ar, ai, ak) = (b.at(row), b.at(axis), b.at(rank));
    let index = b.linear(&[(ar, length.into()), (ai, 1.into())]);
    let value = b.load(x, index);
    let (value_var, index_var) = (b.var(dtype), b.var(DType::I64));
    let (v, i) = (b.value(value_var), b.value(index_var));
    let at = b.linear(&[(ar, k.into()), (ak, 1.into())]);
    let stores = vec![b.store(values, at, v, &[]), b.store(indices, at, i, &[])];
    b.done(Body::Sort(SortBody {
        parallel: vec![row],
        axis,
        rank,
        largest,
        value,
        value_var,
        index_var,
        stores,
    }))
}

/// Updates met by several points: element `i mod buckets`.
pub fn update(name: &str, dtype: DType, op: ReduceOp, n: i64, buckets: i64) -> Kernel {
    let mut b = Build::new(name, Mapping::Threads { block: 64, vector: 1 });
    let x = b.read("x", dtype, n);
    let out = b.param("out", dtype, buckets, Access::ReadWrite);
    let i = b.axis("i", n);
    let at = b.at(i);
    let value = b.load(x, at);
    let count = b.int(buckets);
    let index = b.bin(BinaryOp::Rem, at, count);
    let stmts = vec![Stmt::Update {
        param: out,
        index,
        value,
        op: Some(op),
        axes: vec![],
    }];
    b.done(Body::Loops(Loops {
        parallel: vec![i],
        stmts,
    }))
}

/// Random words.
pub fn philox(name: &str, n: i64) -> Kernel {
    let mut b = Build::new(name, Mapping::Threads { block: 64, vector: 4 });
    let i = b.axis("i", n);
    let at = b.at(i);
    let mut stmts = Vec::new();
    for lane in 0..4 {
        let out = b.write(&format!("out{lane}"), DType::I32, n);
        let e = b.kernel.exprs.add(
            Expr::Philox {
                seed: 0x1234_5678_9abc_def0,
                counter: at,
                lane,
            },
            DType::I32,
        );
        stmts.push(b.store(out, at, e, &[]));
    }
    b.done(Body::Loops(Loops {
        parallel: vec![i],
        stmts,
    }))
}

/// One kernel of each kind and mapping, small enough to run on the host.
pub fn all() -> Vec<Kernel> {
    use Mapping::{Block, Flash, Lanes, Threads, Tile};
    let mut kernels = Vec::new();
    for (i, (dtype, rows, cols, vector)) in [
        (F32, 5, 12, 4),
        (F32, 3, 7, 1),
        (DType::F16, 7, 24, 8),
        (DType::BF16, 4, 6, 2),
        (DType::F8E4M3FN, 3, 16, 4),
        (DType::F64, 3, 4, 2),
    ]
    .into_iter()
    .enumerate()
    {
        kernels.push(pointwise(
            &format!("pointwise_{i}"),
            dtype,
            rows,
            cols,
            Threads { block: 64, vector },
        ));
    }
    for (i, (from, to, n, vector)) in [
        (F32, DType::F16, 1003, 4),
        (DType::I8, F32, 67, 4),
        (F32, DType::I64, 65, 2),
        (F32, DType::Bool, 33, 4),
    ]
    .into_iter()
    .enumerate()
    {
        kernels.push(flat(&format!("flat_{i}"), from, to, n, Threads { block: 64, vector }));
    }
    kernels.push(concat("concat_1", 5, 7, 4, Threads { block: 64, vector: 1 }));
    kernels.push(concat("concat_4", 5, 8, 4, Threads { block: 64, vector: 4 }));
    let lanes = |lanes, vector| Lanes {
        lanes,
        block: 64,
        vector,
    };
    let block = |block, vector| Block { block, vector };
    for (i, (dtype, rows, length, mapping)) in [
        (F32, 9, 37, Threads { block: 64, vector: 1 }),
        (F32, 9, 37, lanes(8, 1)),
        (F32, 9, 64, lanes(16, 4)),
        (DType::F16, 3, 136, lanes(32, 8)),
        (F32, 3, 300, block(128, 1)),
        (F32, 3, 1024, block(128, 4)),
        (DType::BF16, 2, 520, block(64, 8)),
        (F32, 2, 5, block(32, 1)),
    ]
    .into_iter()
    .enumerate()
    {
        kernels.push(softmax(
            &format!("softmax_{i}"),
            dtype,
            rows.into(),
            length.into(),
            mapping,
        ));
    }
    kernels.push(softmax(
        "softmax_symbolic",
        F32,
        "rows".into(),
        "seq".into(),
        lanes(32, 1),
    ));
    for (i, (dtype, outer, inner, mapping)) in [
        (F32, [2, 3], [5, 7], Threads { block: 64, vector: 1 }),
        (F32, [2, 3], [5, 8], lanes(4, 4)),
        (DType::F16, [3, 2], [4, 24], block(64, 2)),
        (F32, [3, 2], [3, 5], lanes(32, 1)),
    ]
    .into_iter()
    .enumerate()
    {
        kernels.push(layer_norm(&format!("layer_norm_{i}"), dtype, outer, inner, mapping));
    }
    let number_ops = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::ArgMax,
        ReduceOp::ArgMin,
    ];
    for (i, dtype) in [F32, DType::F64, DType::I32, DType::I64].into_iter().enumerate() {
        kernels.push(folds(
            &format!("folds_{i}"),
            dtype,
            &number_ops,
            5,
            11,
            Threads { block: 64, vector: 1 },
        ));
        kernels.push(folds(
            &format!("folds_lanes_{i}"),
            dtype,
            &number_ops,
            5,
            11,
            lanes(4, 1),
        ));
        kernels.push(folds(
            &format!("folds_block_{i}"),
            dtype,
            &number_ops,
            5,
            70,
            block(64, 1),
        ));
    }
    let truth_ops = [ReduceOp::All, ReduceOp::Any];
    kernels.push(folds("folds_bool", DType::Bool, &truth_ops, 5, 11, lanes(8, 1)));
    kernels.push(pool("pool", 7, 5, 3, 2));
    for (i, (tile, p)) in [
        (
            [128, 128, 8, 8, 8],
            Product {
                batch: 1,
                m: 70,
                n: 133,
                k: 19,
                transpose_lhs: false,
                transpose_rhs: false,
            },
        ),
        (
            [64, 64, 16, 4, 4],
            Product {
                batch: 2,
                m: 67,
                n: 65,
                k: 33,
                transpose_lhs: false,
                transpose_rhs: true,
            },
        ),
        (
            [64, 32, 32, 4, 2],
            Product {
                batch: 1,
                m: 5,
                n: 40,
                k: 64,
                transpose_lhs: true,
                transpose_rhs: false,
            },
        ),
        (
            [16, 64, 32, 1, 4],
            Product {
                batch: 3,
                m: 17,
                n: 64,
                k: 32,
                transpose_lhs: true,
                transpose_rhs: true,
            },
        ),
        (
            [4, 64, 64, 1, 1],
            Product {
                batch: 1,
                m: 1,
                n: 100,
                k: 130,
                transpose_lhs: false,
                transpose_rhs: false,
            },
        ),
        (
            [64, 64, 16, 4, 4],
            Product {
                batch: 1,
                m: 64,
                n: 64,
                k: 64,
                transpose_lhs: false,
                transpose_rhs: true,
            },
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let [block_m, block_n, block_k, thread_m, thread_n] = tile;
        let mapping = Tile {
            block_m,
            block_n,
            block_k,
            thread_m,
            thread_n,
        };
        for (dtype, out) in [
            (F32, F32),
            (DType::F16, DType::F16),
            (DType::BF16, F32),
            (DType::I8, DType::I32),
            (DType::F64, DType::F64),
        ] {
            if matches!(dtype, DType::F64) && thread_m * thread_n > 16 {
                continue;
            }
            kernels.push(contract(
                &format!("contract_{i}_{dtype}"),
                dtype,
                out,
                p,
                mapping.clone(),
            ));
        }
    }
    let tile = Tile {
        block_m: 32,
        block_n: 32,
        block_k: 32,
        thread_m: 2,
        thread_n: 2,
    };
    kernels.push(conv("conv", F32, 2, 9, 1, 4, 10, tile.clone()));
    kernels.push(conv("conv_groups", DType::F16, 1, 8, 3, 5, 7, tile));
    for (i, (h, block_q, block_k, block)) in [
        (
            Heads {
                heads: 2,
                queries: 37,
                keys: 45,
                d: 16,
                dv: 16,
                causal: false,
                mask: false,
            },
            32,
            32,
            256,
        ),
        (
            Heads {
                heads: 1,
                queries: 33,
                keys: 33,
                d: 20,
                dv: 12,
                causal: true,
                mask: false,
            },
            16,
            16,
            128,
        ),
        (
            Heads {
                heads: 3,
                queries: 9,
                keys: 21,
                d: 8,
                dv: 24,
                causal: true,
                mask: true,
            },
            8,
            32,
            128,
        ),
        (
            Heads {
                heads: 1,
                queries: 1,
                keys: 50,
                d: 64,
                dv: 64,
                causal: false,
                mask: true,
            },
            4,
            32,
            128,
        ),
        (
            Heads {
                heads: 1,
                queries: 5,
                keys: 7,
                d: 8,
                dv: 8,
                causal: false,
                mask: false,
            },
            2,
            1,
            64,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mapping = Flash {
            block_q,
            block_k,
            block,
        };
        kernels.push(attention(
            &format!("attention_{i}"),
            if i == 1 { DType::F16 } else { F32 },
            h,
            mapping,
        ));
    }
    for (i, (dtype, op, exclusive, reverse)) in [
        (F32, ReduceOp::Sum, false, false),
        (F32, ReduceOp::Max, true, false),
        (DType::I32, ReduceOp::Sum, false, true),
        (DType::F16, ReduceOp::Sum, true, true),
        (DType::I64, ReduceOp::Prod, false, false),
    ]
    .into_iter()
    .enumerate()
    {
        let threads = Threads { block: 64, vector: 1 };
        kernels.push(scan(
            &format!("scan_{i}"),
            dtype,
            op,
            5,
            23,
            exclusive,
            reverse,
            threads,
        ));
        kernels.push(scan(
            &format!("scan_block_{i}"),
            dtype,
            op,
            3,
            150,
            exclusive,
            reverse,
            block(64, 1),
        ));
    }
    for (i, (dtype, length, k, largest, mapping)) in [
        (F32, 9, 3, true, Threads { block: 64, vector: 1 }),
        (DType::I32, 9, 9, false, Threads { block: 64, vector: 1 }),
        (F32, 100, 7, true, block(64, 2)),
        (F32, 50, 50, false, block(64, 1)),
        (DType::F16, 40, 5, true, block(32, 2)),
        (F32, 60, 60, true, block(32, 2)),
    ]
    .into_iter()
    .enumerate()
    {
        // Sorting compares, so narrow floats come widened.
        let dtype = if dtype == DType::F16 { DType::F64 } else { dtype };
        kernels.push(top_k(&format!("top_k_{i}"), dtype, 3, length, k, largest, mapping));
    }
    for (i, (dtype, op)) in [
        (F32, ReduceOp::Sum),
        (DType::F16, ReduceOp::Max),
        (DType::I8, ReduceOp::Sum),
        (DType::F64, ReduceOp::Prod),
        (DType::I64, ReduceOp::Min),
        (DType::I32, ReduceOp::Max),
    ]
    .into_iter()
    .enumerate()
    {
        kernels.push(update(&format!("update_{i}"), dtype, op, 50, 7));
    }
    kernels.push(philox("philox", 37));
    for (i, dtype) in [F32, DType::F64].into_iter().enumerate() {
        for (part, ops) in UnaryOp::ALL.chunks(5).enumerate() {
            kernels.push(unaries(&format!("unary_part_{part}_float_{i}"), dtype, ops, 61));
        }
        kernels.push(binaries(&format!("binary_float_{i}"), dtype, BinaryOp::ALL, 61));
    }
    for (i, dtype) in [DType::I64, DType::I32, DType::I16, DType::I8, DType::U8]
        .into_iter()
        .enumerate()
    {
        for (part, ops) in UnaryOp::ALL.chunks(5).enumerate() {
            kernels.push(unaries(&format!("unary_part_{part}_int_{i}"), dtype, ops, 61));
        }
        kernels.push(binaries(&format!("binary_int_{i}"), dtype, BinaryOp::ALL, 61));
    }
    kernels.push(binaries("binary_bool", DType::Bool, BinaryOp::ALL, 16));
    for from in DType::ALL {
        for to in DType::ALL {
            kernels.push(flat(
                &format!("cast_{from}_{to}"),
                from,
                to,
                41,
                Threads { block: 64, vector: 1 },
            ));
        }
    }
    kernels
}
