//! Batched matrix products.

use super::array::{Array, Data, broadcast_strides, walk, wrap};
use super::elementwise::floats;
use super::{OpError, scalar};
use crate::graph::op::Contract;
use crate::types::DType;

/// A number whose products can be summed; integers wrap.
pub(super) trait Number: Copy + Default {
    fn add_product(self, a: Self, b: Self) -> Self;
    fn add(self, other: Self) -> Self;
}

impl Number for f64 {
    fn add_product(self, a: f64, b: f64) -> f64 {
        self + a * b
    }
    fn add(self, other: f64) -> f64 {
        self + other
    }
}

impl Number for i64 {
    fn add_product(self, a: i64, b: i64) -> i64 {
        self.wrapping_add(a.wrapping_mul(b))
    }
    fn add(self, other: i64) -> i64 {
        self.wrapping_add(other)
    }
}

/// `c[m, n] += a[m, k] · b[k, n]`, all row-major; blocked so that rows of `b` stay in cache.
pub(super) fn multiply<T: Number>(c: &mut [T], a: &[T], b: &[T], m: usize, k: usize, n: usize) {
    const DEPTH: usize = 64;
    const WIDTH: usize = 256;
    for k0 in (0..k).step_by(DEPTH) {
        let k1 = (k0 + DEPTH).min(k);
        for n0 in (0..n).step_by(WIDTH) {
            let n1 = (n0 + WIDTH).min(n);
            for i in 0..m {
                let row = &mut c[i * n + n0..i * n + n1];
                for p in k0..k1 {
                    let x = a[i * k + p];
                    let line = &b[p * n + n0..p * n + n1];
                    for (c, b) in row.iter_mut().zip(line) {
                        *c = c.add_product(x, *b);
                    }
                }
            }
        }
    }
}

pub(super) fn contract(op: &Contract, lhs: &Array, rhs: &Array) -> Result<Array, OpError> {
    // Bring both to [batch…, m, k] and [batch…, k, n].
    let lhs = &*plain(lhs, op.transpose_lhs);
    let rhs = &*plain(rhs, op.transpose_rhs);
    let (lr, rr) = (lhs.shape.len() - 2, rhs.shape.len() - 2);
    let (m, k, n) = (lhs.shape[lr], lhs.shape[lr + 1], rhs.shape[rr + 1]);
    let clash = |what| OpError::Shapes {
        what,
        left: lhs.shape.clone(),
        right: rhs.shape.clone(),
    };
    if rhs.shape[rr] != k {
        return Err(clash("the contracted dims differ"));
    }
    let rank = lr.max(rr);
    let mut batch = vec![1; rank];
    for shape in [&lhs.shape[..lr], &rhs.shape[..rr]] {
        let lead = rank - shape.len();
        for (i, d) in shape.iter().enumerate() {
            match (&mut batch[lead + i], *d) {
                (have, d) if *have == 1 => *have = d,
                (have, d) if d != 1 && d != *have => return Err(clash("the batch dims do not broadcast")),
                _ => {}
            }
        }
    }
    let starts = |shape: &[usize]| -> Vec<usize> {
        let mut out = Vec::new();
        walk(&batch, 0, &broadcast_strides(shape, &batch), |at| out.push(at));
        out
    };
    let pairs: Vec<(usize, usize)> = starts(&lhs.shape[..lr])
        .into_iter()
        .zip(starts(&rhs.shape[..rr]))
        .collect();
    let mut shape = batch.clone();
    shape.extend([m, n]);
    if let (Data::Int(a), Data::Int(b)) = (&lhs.data, &rhs.data) {
        let c = products(a, b, &pairs, m, k, n);
        let accumulator = lhs.dtype.product_accumulator(rhs.dtype);
        return Ok(store(op.out, shape, c, accumulator));
    }
    let c = products(&floats(lhs), &floats(rhs), &pairs, m, k, n);
    Ok(Array::float(op.out, shape, c))
}

/// Integer sums in their accumulator, as the type asked for.
pub(super) fn store(out: DType, shape: Vec<usize>, mut sums: Vec<i64>, accumulator: DType) -> Array {
    sums.iter_mut().for_each(|v| *v = wrap(accumulator, *v));
    if out.is_int() {
        Array::int(out, shape, sums)
    } else {
        Array::float(out, shape, sums.into_iter().map(|v| v as f64).collect())
    }
}

fn products<T: Number>(a: &[T], b: &[T], pairs: &[(usize, usize)], m: usize, k: usize, n: usize) -> Vec<T> {
    let mut c = vec![T::default(); pairs.len() * m * n];
    for (i, (x, y)) in pairs.iter().enumerate() {
        let (x, y) = (&a[x * m * k..][..m * k], &b[y * k * n..][..k * n]);
        multiply(&mut c[i * m * n..][..m * n], x, y, m, k, n);
    }
    c
}

fn plain(a: &Array, transposed: bool) -> std::borrow::Cow<'_, Array> {
    if !transposed {
        return std::borrow::Cow::Borrowed(a);
    }
    let rank = a.shape.len();
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(rank - 1, rank - 2);
    std::borrow::Cow::Owned(a.transpose(&perm))
}

/// Multiplies by a number or by one for each column, adds a number for each column and applies an activation, as a
/// GEMM's epilogue does.
pub(super) fn epilogue(
    epilogue: crate::library::GemmEpilogue,
    product: Array,
    scale: Option<&Array>,
    bias: Option<&Array>,
) -> Result<Array, OpError> {
    use crate::graph::op::UnaryOp;
    use crate::library::GemmEpilogue as G;
    let activation = match epilogue {
        G::None | G::Bias => None,
        G::Relu | G::BiasRelu => Some(UnaryOp::Relu),
        G::GeluTanh | G::BiasGeluTanh => Some(UnaryOp::GeluTanh),
    };
    let mut out = product;
    if let (Some(scale), Data::Float(v)) = (scale, &mut out.data) {
        let (factors, width) = (scale.to_f64(), scale.len().max(1));
        v.iter_mut().enumerate().for_each(|(i, v)| *v *= factors[i % width]);
    }
    if let Some(bias) = bias {
        let width = bias.len().max(1);
        match &mut out.data {
            Data::Float(v) => {
                let b = bias.to_f64();
                v.iter_mut().enumerate().for_each(|(i, v)| *v += b[i % width]);
            }
            Data::Int(v) => {
                let b = bias.to_i64();
                let dtype = out.dtype;
                v.iter_mut()
                    .enumerate()
                    .for_each(|(i, v)| *v = wrap(dtype, v.wrapping_add(b[i % width])));
            }
            Data::Bool(_) => {}
        }
    }
    if let Some(op) = activation {
        let dtype = out.dtype;
        match &mut out.data {
            Data::Float(v) => v.iter_mut().for_each(|v| *v = op.on_float(*v)),
            Data::Int(v) => v.iter_mut().for_each(|v| *v = scalar::unary_int(op, dtype, *v)),
            Data::Bool(_) => {}
        }
    }
    Ok(out)
}
