//! Composites: softmax, norms and attention, straight from their definitions.

use super::OpError;
use super::array::{Array, Data, broadcast_strides, walk};
use super::elementwise::floats;
use super::recurrent;
use crate::graph::op::{Composite, Groups, Layout};
use crate::types::DType;

pub(super) fn composite(c: &Composite, operands: &[&Array]) -> Result<Array, OpError> {
    let x = operands[0];
    let values = || floats(x).into_owned();
    let like = |values: Vec<f64>| Array::float(x.dtype, x.shape.clone(), values);
    Ok(match c {
        Composite::Softmax { axis } => along(x, *axis, softmax),
        Composite::LogSoftmax { axis } => along(x, *axis, |row| {
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|v| (v - top).exp()).sum();
            row.iter_mut().for_each(|v| *v = *v - top - sum.ln());
        }),
        Composite::LayerNorm { axis, epsilon } => {
            let scale = operands.get(1).map(|a| floats(a));
            let bias = operands.get(2).map(|a| floats(a));
            let mut out = values();
            let row: usize = x.shape[*axis..].iter().product();
            for row in out.chunks_mut(row.max(1)) {
                normalise(row, epsilon.as_f64());
                affine(row, scale.as_deref(), bias.as_deref());
            }
            like(out)
        }
        Composite::RmsNorm { axis, epsilon } => {
            let scale = operands.get(1).map(|a| floats(a));
            let mut out = values();
            let row: usize = x.shape[*axis..].iter().product();
            for row in out.chunks_mut(row.max(1)) {
                let mean = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
                let factor = 1.0 / (mean + epsilon.as_f64()).sqrt();
                row.iter_mut().for_each(|v| *v *= factor);
                affine(row, scale.as_deref(), None);
            }
            like(out)
        }
        Composite::BatchNorm { epsilon, layout } => {
            let (scale, bias) = (operands[1].to_f64(), operands[2].to_f64());
            let (mean, variance) = (operands[3].to_f64(), operands[4].to_f64());
            let axis = layout.channel_axis(x.shape.len());
            let (channels, inner) = (x.shape[axis], x.strides()[axis].max(1));
            let mut out = values();
            for (i, v) in out.iter_mut().enumerate() {
                let c = i / inner % channels;
                *v = (*v - mean[c]) / (variance[c] + epsilon.as_f64()).sqrt() * scale[c] + bias[c];
            }
            like(out)
        }
        Composite::GroupNorm { groups, epsilon } => {
            let (scale, bias) = (operands[1].to_f64(), operands[2].to_f64());
            let axis = Layout::ChannelsFirst.channel_axis(x.shape.len());
            let channels = x.shape[axis];
            let inner: usize = x.shape[axis + 1..].iter().product();
            let run = channels / (*groups as usize).max(1) * inner;
            let mut out = values();
            out.chunks_mut(run.max(1)).for_each(|g| normalise(g, epsilon.as_f64()));
            for (i, v) in out.iter_mut().enumerate() {
                let c = i / inner.max(1) % channels;
                *v = *v * scale[c] + bias[c];
            }
            like(out)
        }
        Composite::Attention {
            scale,
            causal,
            mask,
            scales,
        } => {
            let mask = mask.then(|| operands[3]);
            let scales = scales.then(|| operands[operands.len() - 1]);
            let [q, k, v] = [operands[0], operands[1], operands[2]];
            attention(q, k, v, mask, scales, scale.as_f64(), *causal)?
        }
        Composite::Dequantize { groups, out } => dequantize(groups.as_ref(), *out, operands),
        Composite::Quantize { out } => quantize(*out, operands),
        Composite::Recurrent(layer) => recurrent::recurrent(layer, operands),
        Composite::LocalResponseNorm {
            size,
            alpha,
            beta,
            bias,
        } => {
            let v = values();
            let channels = x.shape[1];
            let inner: usize = x.shape[2..].iter().product();
            let (before, after) = (((size - 1) / 2) as usize, (size / 2) as usize);
            let mut out = v.clone();
            for (i, y) in out.iter_mut().enumerate() {
                let c = i / inner.max(1) % channels;
                let origin = i - c * inner;
                let near = c.saturating_sub(before)..=(c + after).min(channels - 1);
                let sum: f64 = near.map(|c| v[origin + c * inner].powi(2)).sum();
                *y /= (bias.as_f64() + alpha.as_f64() / *size as f64 * sum).powf(beta.as_f64());
            }
            like(out)
        }
    })
}

/// The position in scales or zero points of the element at a position of x.
fn place(x: &Array, groups: Option<&Groups>, other: &Array, mut at: usize) -> usize {
    let (mut position, mut stride) = (0, 1);
    for (axis, size) in x.shape.iter().enumerate().rev() {
        let coordinate = match groups {
            Some(groups) if groups.axis == axis => at % size / groups.size.max(1) as usize,
            _ => at % size,
        };
        at /= size;
        if other.shape[axis] != 1 {
            position += coordinate * stride;
        }
        stride *= other.shape[axis];
    }
    position
}

fn quantize(out: DType, operands: &[&Array]) -> Array {
    let x = operands[0];
    if let Some(largest) = out.f8_largest() {
        return quantize_to_float(out, largest, operands);
    }
    let (numbers, scales) = (x.to_f64(), operands[1].to_f64());
    let zeros = operands.get(2).map(|zero| (*zero, zero.to_f64()));
    let (low, high) = out.int_range().unwrap_or((0, 0));
    let value = |(at, number): (usize, f64)| {
        let zero = zeros
            .as_ref()
            .map_or(0.0, |(array, zeros)| zeros[place(x, None, array, at)]);
        let quotient = crate::convert::round_to(x.dtype, number / scales[place(x, None, operands[1], at)]);
        (quotient.round_ties_even() + zero).max(low as f64).min(high as f64) as i64
    };
    Array::int(
        out,
        x.shape.clone(),
        numbers.into_iter().enumerate().map(value).collect(),
    )
}

/// `saturate(x / scale)`, rounded to the type.
fn quantize_to_float(out: DType, largest: f64, operands: &[&Array]) -> Array {
    let (x, scales) = (operands[0], operands[1].to_f64());
    let value = |(at, number): (usize, f64)| {
        let quotient = crate::convert::round_to(x.dtype, number / scales[place(x, None, operands[1], at)]);
        crate::convert::round_to(out, quotient.clamp(-largest, largest))
    };
    let numbers = x.to_f64().into_iter().enumerate().map(value).collect();
    Array::float(out, x.shape.clone(), numbers)
}

fn dequantize(groups: Option<&Groups>, out: DType, operands: &[&Array]) -> Array {
    let x = operands[0];
    let place = |other: &Array, at: usize| place(x, groups, other, at);
    let (numbers, scales) = (x.to_f64(), operands[1].to_f64());
    let zeros = operands.get(2).map(|zero| (*zero, zero.to_f64()));
    let value = |(at, number): (usize, f64)| {
        let zero = zeros.as_ref().map_or(0.0, |(array, zeros)| zeros[place(array, at)]);
        (number - zero) * scales[place(operands[1], at)]
    };
    let values = numbers.into_iter().enumerate().map(value).collect();
    Array::float(out, x.shape.clone(), values)
}

fn along(x: &Array, axis: usize, f: impl Fn(&mut [f64])) -> Array {
    let (mut rows, back) = x.axis_last(axis);
    let n = x.shape[axis].max(1);
    if let Data::Float(v) = &mut rows.data {
        v.chunks_mut(n).for_each(f);
    }
    rows.transpose(&back)
}

fn softmax(row: &mut [f64]) {
    let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|v| *v = (*v - top).exp());
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|v| *v /= sum);
}

fn normalise(row: &mut [f64], epsilon: f64) {
    let n = row.len() as f64;
    let mean = row.iter().sum::<f64>() / n;
    let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
    let factor = 1.0 / (variance + epsilon).sqrt();
    row.iter_mut().for_each(|v| *v = (*v - mean) * factor);
}

fn affine(row: &mut [f64], scale: Option<&[f64]>, bias: Option<&[f64]>) {
    if let Some(scale) = scale {
        row.iter_mut().zip(scale).for_each(|(v, s)| *v *= s);
    }
    if let Some(bias) = bias {
        row.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
    }
}

fn attention(
    q: &Array,
    k: &Array,
    v: &Array,
    mask: Option<&Array>,
    scales: Option<&Array>,
    scale: f64,
    causal: bool,
) -> Result<Array, OpError> {
    let &[batch, heads, queries, depth] = q.shape.as_slice() else {
        return Err(rank(q));
    };
    let &[_, key_heads, keys, width] = v.shape.as_slice() else {
        return Err(rank(v));
    };
    let scores_shape = [batch, heads, queries, keys];
    let wide = |array: &Array, numbers: &[f64]| {
        let mut out = Vec::with_capacity(scores_shape.iter().product());
        walk(
            &scores_shape,
            0,
            &broadcast_strides(&array.shape, &scores_shape),
            |at| out.push(numbers[at]),
        );
        out
    };
    let factors: Option<Vec<f64>> = scales.map(|s| wide(s, &floats(s)));
    let masked: Option<Vec<f64>> = mask.map(|m| {
        let add: Vec<f64> = match &m.data {
            Data::Bool(keep) => keep.iter().map(|k| if *k { 0.0 } else { f64::NEG_INFINITY }).collect(),
            _ => floats(m).into_owned(),
        };
        wide(m, &add)
    });
    let (qs, ks, vs) = (floats(q), floats(k), floats(v));
    let mut out = vec![0.0; batch * heads * queries * width];
    let mut row = vec![0.0; keys];
    let per_key_head = heads / key_heads.max(1);
    for b in 0..batch {
        for h in 0..heads {
            let kv = b * key_heads + h / per_key_head.max(1);
            for i in 0..queries {
                let at = (b * heads + h) * queries + i;
                let query = &qs[at * depth..][..depth];
                for (j, score) in row.iter_mut().enumerate() {
                    let key = &ks[(kv * keys + j) * depth..][..depth];
                    let dot: f64 = query.iter().zip(key).map(|(a, b)| a * b).sum();
                    let factor = factors.as_ref().map_or(1.0, |f| f[at * keys + j]);
                    *score = dot * scale * factor + masked.as_ref().map_or(0.0, |m| m[at * keys + j]);
                    // The last query sees the last key.
                    if causal && j + queries > i + keys {
                        *score = f64::NEG_INFINITY;
                    }
                }
                softmax(&mut row);
                let result = &mut out[at * width..][..width];
                for (j, weight) in row.iter().enumerate() {
                    let value = &vs[(kv * keys + j) * width..][..width];
                    result.iter_mut().zip(value).for_each(|(r, v)| *r += weight * v);
                }
            }
        }
    }
    Ok(Array::float(q.dtype, vec![batch, heads, queries, width], out))
}

fn rank(a: &Array) -> OpError {
    OpError::Shapes {
        what: "attention takes operands of rank 4",
        left: a.shape.clone(),
        right: vec![],
    }
}
