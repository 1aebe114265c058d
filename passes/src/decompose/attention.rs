//! Scaled dot-product attention as two contractions and a softmax.

use ir::op::{BinaryOp, Composite, Contract, Elementwise};
use ir::{DType, Dim, Op, Shape, Value};

use super::{as_shape, binary, cast, softmax, wide, with_scalar};
use crate::error::PassFault;
use crate::options::Keep;
use crate::rewrite::Builder;

/// Expands attention; grouped queries become a batch axis of the contractions.
pub(super) fn attention(
    b: &mut Builder<'_>,
    x: &[Value],
    scales: Option<Value>,
    scale: f64,
    causal: bool,
    keep: Keep,
) -> Result<Value, PassFault> {
    let (q, k, v) = (x[0], x[1], x[2]);
    let (qt, kt, vt) = (b.ty(q).clone(), b.ty(k).clone(), b.ty(v).clone());
    let w = wide(qt.dtype);
    let [batch, heads, s, d] = [0, 1, 2, 3].map(|i| qt.shape[i].clone());
    let (kv_heads, t) = (kt.shape[1].clone(), kt.shape[2].clone());
    let group = heads.floor_div(&kv_heads);
    let grouped = !group.is(1);
    let split = |shape: &Shape, per: &Dim| {
        Shape(vec![
            batch.clone(),
            kv_heads.clone(),
            per.clone(),
            shape[2].clone(),
            shape[3].clone(),
        ])
    };
    let one = Dim::from(1);
    let (mut q, mut k, mut v) = (q, k, v);
    if grouped {
        q = as_shape(
            b,
            q,
            &split(&Shape(vec![batch.clone(), heads.clone(), s.clone(), d]), &group),
        )?;
        k = as_shape(b, k, &split(&kt.shape, &one))?;
        v = as_shape(b, v, &split(&vt.shape, &one))?;
    }
    let scores = b.emit(
        Op::Contract(Contract {
            transpose_lhs: false,
            transpose_rhs: true,
            out: w,
        }),
        &[q, k],
    )?;
    let full = Shape(vec![batch.clone(), heads.clone(), s.clone(), t.clone()]);
    let mut scores = as_shape(b, scores, &full)?;
    scores = with_scalar(b, BinaryOp::Mul, scores, scale)?;
    if let Some(scales) = scales {
        scores = binary(b, BinaryOp::Mul, scores, scales)?;
    }
    let lowest = b.scalar(w, f64::NEG_INFINITY);
    if let Some(mask) = x.get(3).copied() {
        scores = if b.ty(mask).dtype == DType::Bool {
            b.emit(Op::Elementwise(Elementwise::Select), &[mask, scores, lowest])?
        } else {
            let mask = cast(b, mask, w)?;
            binary(b, BinaryOp::Add, scores, mask)?
        };
    }
    if causal {
        let iota = |axis| Op::Iota {
            shape: Shape(vec![s.clone(), t.clone()]),
            axis,
            dtype: DType::I64,
        };
        let (row, column) = (b.emit(iota(0), &[])?, b.emit(iota(1), &[])?);
        // The last query sees every key: key j is seen by query i when j ≤ i + (keys − queries).
        let reach = t.clone() - &s;
        let row = if reach.is(0) {
            row
        } else {
            let reach = b.emit(Op::DimValue(reach), &[])?;
            binary(b, BinaryOp::Add, row, reach)?
        };
        let seen = binary(b, BinaryOp::Ge, row, column)?;
        scores = b.emit(Op::Elementwise(Elementwise::Select), &[seen, scores, lowest])?;
    }
    let weights = if keep.softmax {
        b.emit(Op::Composite(Composite::Softmax { axis: 3 }), &[scores])?
    } else {
        softmax::softmax(b, scores, 3)?
    };
    let mut weights = cast(b, weights, vt.dtype)?;
    if grouped {
        let shape = Shape(vec![batch.clone(), kv_heads.clone(), group, s.clone(), t]);
        weights = as_shape(b, weights, &shape)?;
    }
    let y = b.emit(
        Op::Contract(Contract {
            transpose_lhs: false,
            transpose_rhs: false,
            out: qt.dtype,
        }),
        &[weights, v],
    )?;
    let out = Shape(vec![batch, heads, s, vt.shape[3].clone()]);
    as_shape(b, y, &out)
}
