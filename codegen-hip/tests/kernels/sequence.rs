//! Scans, sorts, updates and random numbers.

use ir::DType;
use ir::kernel::{Access, Body, Expr, Kernel, Loops, Mapping, ScanBody, SortBody, Stmt};
use ir::op::{BinaryOp, ReduceOp};

use super::{Build, F32, block};

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

/// Scans both ways, sorts by a thread and by a block, updates that meet, random words.
pub fn all() -> Vec<Kernel> {
    let mut kernels = Vec::new();
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
        let threads = Mapping::Threads { block: 64, vector: 1 };
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
        (F32, 9, 3, true, Mapping::Threads { block: 64, vector: 1 }),
        (DType::I32, 9, 9, false, Mapping::Threads { block: 64, vector: 1 }),
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
    kernels
}
