//! Kernels that fold: softmax, norms, every reduction, pooling.

use ir::kernel::{AxisId, Body, ExprId, Kernel, Loops, Mapping, RowBody, Stmt, WindowAxis, WindowBody, WindowFold};
use ir::op::{BinaryOp, PoolKind, ReduceOp, UnaryOp};
use ir::{DType, Dim};

use super::{Build, F32, block, lanes};

/// The loops, as a row where the mapping is for rows.
fn rows_or_loops(mapping: &Mapping, loops: Loops, row: &[AxisId], held: &[ExprId]) -> Body {
    match mapping {
        Mapping::Rows { .. } => Body::Row(RowBody {
            loops,
            row: row.to_vec(),
            held: held.to_vec(),
            composite: None,
        }),
        _ => Body::Loops(loops),
    }
}

/// The element that a load in a wider type comes from.
fn loaded(b: &Build, e: ExprId) -> ExprId {
    match b.kernel.exprs[e] {
        ir::kernel::Expr::Cast(_, from) => from,
        _ => e,
    }
}

/// Softmax over the last axis.
pub fn softmax(name: &str, dtype: DType, rows: Dim, length: Dim, mapping: Mapping) -> Kernel {
    let mut b = Build::new(name, mapping.clone());
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
    let held = [loaded(&b, x), exp];
    let parallel = vec![row];
    b.done(rows_or_loops(&mapping, Loops { parallel, stmts }, &[r], &held))
}

/// Layer norm with scale and bias; two outer axes, two folded ones.
pub fn layer_norm(name: &str, dtype: DType, outer: [i64; 2], inner: [i64; 2], mapping: Mapping) -> Kernel {
    let mut b = Build::new(name, mapping.clone());
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
    let held = [x, scale, bias].map(|e| loaded(&b, e));
    b.done(rows_or_loops(&mapping, Loops { parallel, stmts }, &folded, &held))
}

/// Several folds of one row by different operations, stored once.
pub fn folds(name: &str, dtype: DType, ops: &[ReduceOp], rows: i64, length: i64, mapping: Mapping) -> Kernel {
    let mut b = Build::new(name, mapping.clone());
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
    let parallel = vec![row];
    b.done(rows_or_loops(&mapping, Loops { parallel, stmts }, &[r], &[x]))
}

/// Average pooling, channels last, padded: two folds over a guarded window, whose facts bound its taps.
pub fn pool(name: &str, size: i64, channels: i64, window: i64, stride: i64, vector: u32) -> Kernel {
    let mapping = Mapping::Windows {
        block: 64,
        vector,
        unroll: stride > 1,
    };
    let mut b = Build::new(name, mapping);
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
    let element = b.load(x, index);
    let (zero, one) = (b.float(0.0), b.float(1.0));
    let x = b.select(guard, element, zero);
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
            axes: taps.clone(),
            value: hit,
        },
        b.store(out, index, mean, &[]),
    ];
    let along = (0..2)
        .map(|s| WindowAxis {
            taps: Some(taps[s]),
            outputs: Some(parallel[s]),
            stride,
            dilation: 1,
            pad_low: pad,
            pad_high: pad,
            size: size.into(),
            guarded: [true; 2],
            beyond: false,
        })
        .collect();
    b.done(Body::Window(WindowBody {
        loops: Loops { parallel, stmts },
        fold: WindowFold::Pool(PoolKind::Average { count_padding: false }),
        along,
        element,
        counts: true,
        images: None,
    }))
}

/// Rows that a thread, some lanes or a block fold.
pub fn all() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for (i, (dtype, rows, length, mapping)) in [
        (F32, 9, 37, Mapping::Threads { block: 64, vector: 1 }),
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
        (F32, [2, 3], [5, 7], Mapping::Threads { block: 64, vector: 1 }),
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
            Mapping::Threads { block: 64, vector: 1 },
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
    // Types of one and two bytes go between lanes in a word of their own.
    for dtype in [DType::I16, DType::I8, DType::U8] {
        for (name, length, mapping) in [("lanes", 11, lanes(8, 1)), ("block", 70, block(64, 1))] {
            let name = format!("folds_{name}_{dtype}");
            kernels.push(folds(&name, dtype, &number_ops, 5, length, mapping));
        }
    }
    let truth_ops = [ReduceOp::All, ReduceOp::Any];
    kernels.push(folds("folds_bool", DType::Bool, &truth_ops, 5, 11, lanes(8, 1)));
    kernels.push(pool("pool", 7, 5, 3, 2, 1));
    kernels.push(pool("pool_of_neighbours", 6, 8, 3, 1, 4));
    kernels.extend(held());
    kernels
}

/// Rows that stay in registers: exact and cut short, of lanes, of a wave, of waves in even and odd numbers, of any
/// length.
fn held() -> Vec<Kernel> {
    let rows = |lanes, block, vector, steps| Mapping::Rows {
        lanes,
        block,
        vector,
        steps,
        as_needed: steps == 2,
        resident: None,
    };
    let mut kernels = Vec::new();
    for (i, (dtype, count, length, mapping)) in [
        (F32, 9, 37, rows(8, 64, 1, 5)),
        (F32, 9, 64, rows(16, 64, 4, 1)),
        (DType::F16, 3, 136, rows(32, 64, 8, 1)),
        (DType::BF16, 2, 1024, rows(128, 128, 8, 1)),
        (F32, 3, 1000, rows(128, 128, 4, 2)),
        (F32, 3, 300, rows(192, 192, 1, 2)),
        (F32, 2, 1100, rows(512, 512, 1, 3)),
        (F32, 3, 300, rows(128, 128, 1, 2)),
    ]
    .into_iter()
    .enumerate()
    {
        kernels.push(softmax(
            &format!("softmax_rows_{i}"),
            dtype,
            count.into(),
            length.into(),
            mapping,
        ));
    }
    for (i, steps) in [1, 8].into_iter().enumerate() {
        let name = format!("softmax_rows_symbolic_{i}");
        kernels.push(softmax(&name, F32, "rows".into(), "seq".into(), rows(8, 64, 1, steps)));
    }
    for (i, (dtype, outer, inner, mapping)) in [
        (F32, [2, 3], [5, 8], rows(4, 64, 4, 3)),
        (DType::F16, [3, 2], [4, 24], rows(64, 64, 2, 1)),
        (F32, [3, 2], [3, 5], rows(32, 64, 1, 1)),
        (F32, [1, 2], [3, 320], rows(256, 256, 4, 1)),
    ]
    .into_iter()
    .enumerate()
    {
        kernels.push(layer_norm(
            &format!("layer_norm_rows_{i}"),
            dtype,
            outer,
            inner,
            mapping,
        ));
    }
    let ops = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::ArgMin];
    for (i, (dtype, length, mapping)) in [
        (F32, 11, rows(4, 64, 1, 3)),
        (DType::F64, 300, rows(256, 256, 1, 2)),
        (DType::I64, 70, rows(64, 64, 1, 0)),
        (DType::I8, 70, rows(64, 128, 2, 1)),
    ]
    .into_iter()
    .enumerate()
    {
        kernels.push(folds(&format!("folds_rows_{i}"), dtype, &ops, 5, length, mapping));
    }
    kernels
}
