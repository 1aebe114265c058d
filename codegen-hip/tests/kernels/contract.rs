//! Contractions and convolutions.

use ir::kernel::{Body, ContractBody, Expr, ExprId, Fetch, Kernel, Mapping, Operand};
use ir::op::{BinaryOp, UnaryOp};
use ir::{DType, Scalar};

use super::{Build, F32};

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

/// An element at a time: what [`wide`] makes wider where the sizes allow it.
const ONE: Fetch = Fetch {
    along_k: true,
    width: 1,
};

/// The widest fetch of elements of a type whose neighbours lie along an axis of `extent`, as lowering chooses it.
fn fetch(along_k: bool, extent: i64, dtype: DType, held: u32) -> Fetch {
    let most = (16 / dtype.bits().div_ceil(8)).min(held).min(8);
    let widths = [8, 4, 2].into_iter().filter(|w| *w <= most);
    let width = widths.into_iter().find(|w| extent % i64::from(*w) == 0).unwrap_or(1);
    Fetch { along_k, width }
}

/// The mapping with its operands fetched along axes given as whether it is `k`, and the extent.
fn wide(mapping: Mapping, dtype: DType, lhs: (bool, i64), rhs: (bool, i64)) -> Mapping {
    let Mapping::Tile {
        block_m,
        block_n,
        block_k,
        thread_m,
        thread_n,
        ..
    } = mapping
    else {
        return mapping;
    };
    let threads = (block_m / thread_m) * (block_n / thread_n);
    let held = |block: u32| block * block_k / threads;
    Mapping::Tile {
        block_m,
        block_n,
        block_k,
        thread_m,
        thread_n,
        lhs: fetch(lhs.0, lhs.1, dtype, held(block_m)),
        rhs: fetch(rhs.0, rhs.1, dtype, held(block_n)),
    }
}

/// `relu(lhs · rhs + bias)` in the accumulator's type, stored as `out`.
pub fn contract(name: &str, dtype: DType, out: DType, p: Product, mapping: Mapping) -> Kernel {
    let lhs_along = if p.transpose_lhs { (false, p.m) } else { (true, p.k) };
    let rhs_along = if p.transpose_rhs { (true, p.k) } else { (false, p.n) };
    let mut b = Build::new(name, wide(mapping, dtype, lhs_along, rhs_along));
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
    let (lhs, rhs) = (Operand::new(&b.kernel.exprs, l), Operand::new(&b.kernel.exprs, r));
    b.done(Body::Contract(ContractBody {
        batch,
        m: vec![m],
        n: vec![n],
        k: vec![k],
        lhs,
        rhs,
        acc,
        pair: None,
        statistic: None,
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
    let mut b = Build::new(name, wide(mapping, dtype, (true, channels), (true, channels)));
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
    let (lhs, rhs) = (Operand::new(&b.kernel.exprs, l), Operand::new(&b.kernel.exprs, r));
    b.done(Body::Contract(ContractBody {
        batch,
        m,
        n,
        k,
        lhs,
        rhs,
        acc,
        pair: None,
        statistic: None,
        epilogue: vec![store],
        conv: None,
    }))
}

/// Tiles larger and smaller than the product, all transposes, every type.
pub fn all() -> Vec<Kernel> {
    let mut kernels = Vec::new();
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
        let mapping = Mapping::Tile {
            block_m,
            block_n,
            block_k,
            thread_m,
            thread_n,
            lhs: ONE,
            rhs: ONE,
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
    let tile = Mapping::Tile {
        block_m: 32,
        block_n: 32,
        block_k: 32,
        thread_m: 2,
        thread_n: 2,
        lhs: ONE,
        rhs: ONE,
    };
    kernels.push(conv("conv", F32, 2, 9, 1, 4, 10, tile.clone()));
    kernels.push(conv("conv_groups", DType::F16, 1, 8, 3, 5, 7, tile.clone()));
    kernels.push(conv("conv_bf16", DType::BF16, 1, 7, 1, 6, 5, tile));
    kernels
}
