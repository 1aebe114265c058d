//! Pointwise kernels: trees of members, every member by itself, every cast, and joined tensors.

use ir::DType;
use ir::kernel::{AxisId, Body, ExprId, Kernel, Loops, Mapping};
use ir::op::{BinaryOp, UnaryOp};

use super::{Build, F32};

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

/// `out[b, j, i] = scale[j] · x[b, i, j]`, through LDS.
fn transposed(
    name: &str,
    from: DType,
    to: DType,
    extents: [i64; 3],
    mapping: impl Fn(AxisId, ExprId) -> Mapping,
) -> Kernel {
    let [batch, down, right] = extents;
    let mut b = Build::new(name, Mapping::Host);
    let elements = batch * down * right;
    let (x, scale) = (b.read("x", from, elements), b.read("scale", F32, right));
    let out = b.write("out", to, elements);
    let axes = [b.axis("b", batch), b.axis("j", right), b.axis("i", down)];
    let [at, j, i] = axes.map(|a| b.at(a));
    let index = b.linear(&[(at, (down * right).into()), (i, right.into()), (j, 1.into())]);
    let (loaded, scale) = (b.load(x, index), b.load(scale, j));
    let x = b.load_wide(x, index);
    let x = b.cast(F32, x);
    let y = b.bin(BinaryOp::Mul, x, scale);
    let index = b.linear(&[(at, (down * right).into()), (j, down.into()), (i, 1.into())]);
    let store = b.store(out, index, y, &[]);
    b.kernel.mapping = mapping(axes[1], loaded);
    b.done(Body::Loops(Loops {
        parallel: axes.to_vec(),
        stmts: vec![store],
    }))
}

/// Streams of several groups a thread and tiles through LDS, whole and cut short.
fn at_memory_speed() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    let stream = |vector, unroll| Mapping::Stream {
        block: 64,
        vector,
        unroll,
    };
    kernels.push(pointwise("stream_rows", F32, 37, 24, stream(4, 2)));
    kernels.push(pointwise("stream_exact", DType::F16, 32, 64, stream(8, 2)));
    kernels.push(flat("stream_flat", F32, DType::F16, 1003, stream(4, 2)));
    kernels.push(flat("stream_wide", DType::I8, F32, 67, stream(4, 4)));
    for (i, (from, to, extents, [along, across, load, store])) in [
        (DType::F16, DType::F16, [2, 64, 72], [64, 64, 8, 8]),
        (F32, F32, [1, 100, 36], [64, 32, 4, 4]),
        (F32, F32, [2, 33, 35], [64, 32, 1, 1]),
        (F32, F32, [2, 33, 36], [64, 32, 4, 1]),
        (DType::F16, F32, [1, 68, 33], [64, 32, 1, 4]),
        (DType::F64, DType::F64, [1, 20, 18], [64, 16, 2, 2]),
        (DType::I8, DType::I8, [1, 144, 16], [64, 64, 16, 16]),
    ]
    .into_iter()
    .enumerate()
    {
        kernels.push(transposed(
            &format!("transpose_{i}"),
            from,
            to,
            extents,
            |axis, load_of_x| Mapping::Transpose {
                axis,
                block: 128,
                along,
                across,
                load,
                store,
                unroll: 16,
                tiled: vec![load_of_x],
            },
        ));
    }
    kernels
}

/// Widths that fit and that do not, each type, every member and every cast.
pub fn all() -> Vec<Kernel> {
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
            Mapping::Threads { block: 64, vector },
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
        kernels.push(flat(
            &format!("flat_{i}"),
            from,
            to,
            n,
            Mapping::Threads { block: 64, vector },
        ));
    }
    kernels.push(concat("concat_1", 5, 7, 4, Mapping::Threads { block: 64, vector: 1 }));
    kernels.push(concat("concat_4", 5, 8, 4, Mapping::Threads { block: 64, vector: 4 }));
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
                Mapping::Threads { block: 64, vector: 1 },
            ));
        }
    }
    kernels.extend(at_memory_speed());
    kernels
}
