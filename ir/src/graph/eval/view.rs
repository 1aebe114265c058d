//! The view family: elements move, nothing is computed.

use super::array::{Array, broadcast_strides, each, strides};
use super::{Data, OpError, sizes};
use crate::dim::Bindings;
use crate::graph::op::{PadMode, View};

pub(super) fn view(view: &View, operands: &[&Array], bindings: &Bindings) -> Result<Array, OpError> {
    let a = operands[0];
    Ok(match view {
        View::Reshape(shape) => {
            let shape = sizes(shape, bindings)?;
            if shape.iter().product::<usize>() != a.len() {
                return Err(OpError::Shapes {
                    what: "a reshape keeps the number of elements",
                    left: a.shape.clone(),
                    right: shape,
                });
            }
            Array::new(a.dtype, shape, a.data.clone())
        }
        View::Transpose(perm) => a.transpose(perm),
        View::Broadcast(shape) => {
            let shape = sizes(shape, bindings)?;
            let lead = shape.len().checked_sub(a.shape.len());
            let fits = lead.is_some_and(|lead| a.shape.iter().zip(&shape[lead..]).all(|(d, s)| d == s || *d == 1));
            if !fits {
                return Err(OpError::Shapes {
                    what: "the operand does not broadcast to the shape",
                    left: a.shape.clone(),
                    right: shape,
                });
            }
            let steps = broadcast_strides(&a.shape, &shape);
            a.strided(shape, 0, &steps)
        }
        View::Slice {
            starts,
            sizes: counts,
            steps,
        } => {
            let shape = sizes(counts, bindings)?;
            let own = strides(&a.shape);
            let mut start = 0usize;
            let mut along = Vec::with_capacity(shape.len());
            for axis in 0..shape.len() {
                let first = starts[axis].eval(bindings)?;
                let last = first.saturating_add((shape[axis] as i64 - 1).saturating_mul(steps[axis]));
                let size = a.shape[axis];
                if shape[axis] > 0 {
                    for position in [first, last] {
                        if position < 0 || position >= size as i64 {
                            return Err(OpError::Range {
                                what: "slice",
                                axis,
                                value: position,
                                size,
                            });
                        }
                    }
                    start += first as usize * own[axis];
                }
                along.push(steps[axis] as isize * own[axis] as isize);
            }
            a.strided(shape, start, &along)
        }
        View::Pad { low, high, mode } => pad(a, &sizes(low, bindings)?, &sizes(high, bindings)?, *mode)?,
        View::Concat { axis } => concat(*axis, operands),
    })
}

fn pad(a: &Array, low: &[usize], high: &[usize], mode: PadMode) -> Result<Array, OpError> {
    let rank = a.shape.len();
    let shape: Vec<usize> = (0..rank).map(|i| a.shape[i] + low[i] + high[i]).collect();
    // For each axis, where each position of the result comes from; `None` is the fill.
    let mut maps: Vec<Vec<Option<usize>>> = Vec::with_capacity(rank);
    for i in 0..rank {
        let size = a.shape[i] as i64;
        let map: Vec<Option<usize>> = (0..shape[i] as i64)
            .map(|to| {
                let at = to - low[i] as i64;
                let at = match mode {
                    PadMode::Constant(_) => at,
                    PadMode::Edge => at.clamp(0, size - 1),
                    PadMode::Wrap => at.rem_euclid(size.max(1)),
                    PadMode::Reflect if at < 0 => -at,
                    PadMode::Reflect if at >= size => 2 * (size - 1) - at,
                    PadMode::Reflect => at,
                };
                (0..size).contains(&at).then_some(at as usize)
            })
            .collect();
        if !matches!(mode, PadMode::Constant(_))
            && let Some(to) = map.iter().position(Option::is_none)
        {
            return Err(OpError::Range {
                what: "padding",
                axis: i,
                value: to as i64 - low[i] as i64,
                size: a.shape[i],
            });
        }
        maps.push(map);
    }
    let own = strides(&a.shape);
    let total: usize = shape.iter().product();
    let mut from: Vec<Option<usize>> = vec![Some(0)];
    for i in 0..rank {
        // Offsets of the first `i + 1` axes; the last round has one entry an element.
        let mut next = Vec::with_capacity(from.len() * shape[i]);
        for base in &from {
            next.extend(maps[i].iter().map(|at| Some((*base)? + (*at)? * own[i])));
        }
        from = next;
    }
    debug_assert_eq!(from.len(), total);
    let fill = match mode {
        PadMode::Constant(v) => v,
        _ => crate::types::Scalar::zero(a.dtype),
    };
    let data = match &a.data {
        Data::Float(v) => Data::Float(from.iter().map(|i| i.map_or(fill.as_f64(), |i| v[i])).collect()),
        Data::Int(v) => Data::Int(from.iter().map(|i| i.map_or(fill.as_i64(), |i| v[i])).collect()),
        Data::Bool(v) => Data::Bool(from.iter().map(|i| i.map_or(fill.as_bool(), |i| v[i])).collect()),
    };
    Ok(Array::new(a.dtype, shape, data))
}

fn concat(axis: usize, operands: &[&Array]) -> Array {
    let first = operands[0];
    let mut shape = first.shape.clone();
    shape[axis] = operands.iter().map(|a| a.shape[axis]).sum();
    let outer: usize = shape[..axis].iter().product();
    let inner: usize = shape[axis + 1..].iter().product();
    fn join<'a, T: Copy + 'a>(outer: usize, parts: &[(&'a [T], usize)]) -> Vec<T> {
        let mut out = Vec::with_capacity(outer * parts.iter().map(|(_, n)| n).sum::<usize>());
        for row in 0..outer {
            for (part, run) in parts {
                out.extend_from_slice(&part[row * run..(row + 1) * run]);
            }
        }
        out
    }
    let data = match &first.data {
        Data::Float(_) => Data::Float(join(
            outer,
            &parts(axis, inner, operands, |d| match d {
                Data::Float(v) => v,
                _ => &[],
            }),
        )),
        Data::Int(_) => Data::Int(join(
            outer,
            &parts(axis, inner, operands, |d| match d {
                Data::Int(v) => v,
                _ => &[],
            }),
        )),
        Data::Bool(_) => Data::Bool(join(
            outer,
            &parts(axis, inner, operands, |d| match d {
                Data::Bool(v) => v,
                _ => &[],
            }),
        )),
    };
    Array::new(first.dtype, shape, data)
}

fn parts<'a, T>(
    axis: usize,
    inner: usize,
    operands: &[&'a Array],
    get: impl Fn(&'a Data) -> &'a [T],
) -> Vec<(&'a [T], usize)> {
    operands.iter().map(|a| (get(&a.data), a.shape[axis] * inner)).collect()
}

/// Takes the elements at these offsets.
pub(super) fn take(a: &Array, shape: Vec<usize>, from: &[usize]) -> Array {
    let data = each!(&a.data, v => from.iter().map(|i| v[*i]).collect());
    Array::new(a.dtype, shape, data)
}
