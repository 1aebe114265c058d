//! What commutes with dequantisation is done to what is stored: views, which for a weight are done at compile time, the
//! largest of several, ReLU. What commutes with quantisation is done after it. Each rule is exact.

use ir::op::{BinaryOp, Composite, Elementwise, Groups, PadMode, PoolKind, UnaryOp, View};
use ir::{DType, Dim, Op, Scalar, Shape, Value};

use crate::error::PassFault;
use crate::rewrite::{Builder, Rule};

/// The rules of this file.
pub const RULES: &[Rule] = &[
    Rule {
        name: "reshape_of_dequantize",
        apply: reshape_of_dequantize,
    },
    Rule {
        name: "view_of_dequantize",
        apply: view_of_dequantize,
    },
    Rule {
        name: "concat_of_dequantize",
        apply: concat_of_dequantize,
    },
    Rule {
        name: "maximum_of_dequantize",
        apply: maximum_of_dequantize,
    },
    Rule {
        name: "quantize_of_dequantize",
        apply: quantize_of_dequantize,
    },
    Rule {
        name: "quantize_of_relu",
        apply: quantize_of_relu,
    },
    Rule {
        name: "quantize_of_concat",
        apply: quantize_of_concat,
    },
    Rule {
        name: "sum_of_integer_constants",
        apply: sum_of_integer_constants,
    },
];

/// A dequantisation of stored integers (or 8-bit floats) that all have one scale and one zero point.
struct Uniform {
    stored: Value,
    scale: Value,
    zero: Option<Value>,
    out: DType,
}

impl Uniform {
    fn of(b: &Builder<'_>, value: Value) -> Option<Uniform> {
        let (Op::Composite(Composite::Dequantize { groups: None, out }), operands) = b.def(value) else {
            return None;
        };
        let single = operands[1..].iter().all(|v| b.ty(*v).elements().is(1));
        single.then(|| Uniform {
            stored: operands[0],
            scale: operands[1],
            zero: operands.get(2).copied(),
            out: *out,
        })
    }

    /// The zero point, where it is a number of the stored type that is known.
    fn known_zero(&self, b: &Builder<'_>) -> Option<i64> {
        let zero = match self.zero {
            Some(zero) => b.as_scalar(zero)?.as_f64(),
            None => 0.0,
        };
        if b.ty(self.stored).dtype.is_f8() {
            return Some(0);
        }
        let (low, high) = b.ty(self.stored).dtype.int_range()?;
        let inside = zero.fract() == 0.0 && zero >= low as f64 && zero <= high as f64;
        inside.then_some(zero as i64)
    }

    /// Says whether a larger integer is a larger number.
    fn rises(&self, b: &Builder<'_>) -> bool {
        b.as_scalar(self.scale).is_some_and(|s| s.as_f64() > 0.0)
    }

    /// The same numbers of other integers.
    fn emit(&self, b: &mut Builder<'_>, stored: Value) -> Result<Value, PassFault> {
        let ones: Shape = vec![Dim::Const(1); b.ty(stored).rank()].into();
        let mut operands = vec![stored];
        for value in [Some(self.scale), self.zero].into_iter().flatten() {
            operands.push(match b.ty(value).shape == ones {
                true => value,
                false => b.emit(Op::View(View::Reshape(ones.clone())), &[value])?,
            });
        }
        let op = Composite::Dequantize {
            groups: None,
            out: self.out,
        };
        b.emit(Op::Composite(op), &operands)
    }
}

/// Says whether two values are one number or the same one.
fn same_number(b: &Builder<'_>, x: Option<Value>, y: Option<Value>) -> bool {
    let number = |v: Option<Value>| match v {
        Some(v) => b.as_scalar(v).map(|s| s.as_f64()),
        None => Some(0.0),
    };
    x == y || number(x).is_some_and(|x| number(y) == Some(x))
}

/// `view(dequantize(x, s, z))` → `dequantize(view(x), s, z)` of integers that all have one scale; what pads with 0 pads
/// with the zero point.
fn view_of_dequantize(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::View(view) = op else { return Ok(None) };
    let Some(uniform) = Uniform::of(b, x[0]) else {
        return Ok(None);
    };
    let moved = match view {
        View::Slice { .. } => view.clone(),
        // A matrix's transpose is a flag of the product that reads it.
        View::Transpose(perm) if !swaps_last(perm) => view.clone(),
        View::Pad {
            low,
            high,
            mode: PadMode::Constant(fill),
        } => match uniform.known_zero(b) {
            Some(zero) if fill.as_f64() == 0.0 => View::Pad {
                low: low.clone(),
                high: high.clone(),
                mode: PadMode::Constant(match b.ty(uniform.stored).dtype.is_int() {
                    true => Scalar::Int(zero),
                    false => Scalar::Float(0.0),
                }),
            },
            _ => return Ok(None),
        },
        View::Pad { .. } => view.clone(),
        View::Reshape(_) | View::Transpose(_) | View::Broadcast(_) | View::Concat { .. } => return Ok(None),
    };
    let stored = b.emit(Op::View(moved), &[uniform.stored])?;
    uniform.emit(b, stored).map(Some)
}

/// Says whether a permutation exchanges the last two axes and nothing else.
fn swaps_last(perm: &[usize]) -> bool {
    let rank = perm.len();
    rank >= 2 && perm[rank - 2..] == [rank - 1, rank - 2] && perm[..rank - 2].iter().enumerate().all(|(i, p)| i == *p)
}

/// `concat(dequantize(x, s, z), dequantize(y, s, z))` → `dequantize(concat(x, y), s, z)`.
fn concat_of_dequantize(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::View(View::Concat { .. }) = op else {
        return Ok(None);
    };
    let Some(first) = Uniform::of(b, x[0]) else {
        return Ok(None);
    };
    let mut stored = Vec::with_capacity(x.len());
    for value in x {
        match Uniform::of(b, *value) {
            Some(part)
                if part.out == first.out
                    && b.ty(part.stored).dtype == b.ty(first.stored).dtype
                    && same_number(b, Some(part.scale), Some(first.scale))
                    && same_number(b, part.zero, first.zero) =>
            {
                stored.push(part.stored);
            }
            _ => return Ok(None),
        }
    }
    let joined = b.emit(op.clone(), &stored)?;
    first.emit(b, joined).map(Some)
}

/// The largest of a window, or of a number and 0, is that of the integers where the scale is above 0.
fn maximum_of_dequantize(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let is_relu = matches!(op, Op::Elementwise(Elementwise::Unary(UnaryOp::Relu)));
    let pool = match op {
        Op::Pool(pool) if pool.kind == PoolKind::Max => Some(pool),
        _ => None,
    };
    if !is_relu && pool.is_none() {
        return Ok(None);
    }
    let Some(uniform) = Uniform::of(b, x[0]).filter(|u| u.rises(b)) else {
        return Ok(None);
    };
    if let Some(pool) = pool {
        // A window in padding alone has no largest integer.
        let first = pool.layout.spatial_axis();
        let ty = b.ty(uniform.stored);
        let reaches = (0..pool.size.len()).all(|i| {
            let w = &pool.window;
            // Where the number of windows is rounded up, the last may begin this much further on.
            let more = if pool.ceil { w.strides[i] - 1 } else { 0 };
            w.dilations[i] == 1
                && w.pad_low[i].max(w.pad_high[i] + more) < pool.size[i]
                && ty.shape[first + i].at_least(1, b.symbols())
        });
        if !reaches {
            return Ok(None);
        }
        let stored = b.emit(op.clone(), &[uniform.stored])?;
        return uniform.emit(b, stored).map(Some);
    }
    let Some(zero) = uniform.known_zero(b) else {
        return Ok(None);
    };
    let zero = b.scalar(b.ty(uniform.stored).dtype, zero as f64);
    let stored = b.emit(Op::binary(BinaryOp::Max), &[uniform.stored, zero])?;
    uniform.emit(b, stored).map(Some)
}

/// `quantize(dequantize(x, s, z), s, z)` → `x`: half a step is more than two roundings change.
fn quantize_of_dequantize(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::Composite(Composite::Quantize { out }) = op else {
        return Ok(None);
    };
    let Some(uniform) = Uniform::of(b, x[0]) else {
        return Ok(None);
    };
    let normal = b
        .as_scalar(uniform.scale)
        .is_some_and(|s| (1e-30..1e30).contains(&s.as_f64().abs()));
    // An infinity of the stored type would saturate.
    let finite = !matches!(out, DType::F8E5M2);
    let same = b.ty(uniform.stored).dtype == *out
        && finite
        && uniform.out == DType::F32
        && normal
        && uniform.known_zero(b).is_some()
        && same_number(b, Some(uniform.scale), Some(x[1]))
        && same_number(b, uniform.zero, x.get(2).copied());
    Ok(same.then_some(uniform.stored))
}

/// `quantize(relu(x), s, z)` → `quantize(x, s, z)` where the zero point is the smallest integer: saturating does the
/// same.
fn quantize_of_relu(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::Composite(Composite::Quantize { out }) = op else {
        return Ok(None);
    };
    let (Op::Elementwise(Elementwise::Unary(UnaryOp::Relu)), inner) = b.def(x[0]) else {
        return Ok(None);
    };
    let inner = inner[0];
    let number = |v: Value| b.as_scalar(v).map(|s| s.as_f64());
    let zero = x.get(2).map_or(Some(0.0), |zero| number(*zero));
    let lowest = out.int_range().map(|(low, _)| low as f64);
    if zero.is_none() || zero != lowest || number(x[1]).is_none_or(|s| s <= 0.0) {
        return Ok(None);
    }
    let mut operands = x.to_vec();
    operands[0] = inner;
    b.emit(op.clone(), &operands).map(Some)
}

/// `quantize(concat(x, y), s, z)` → `concat(quantize(x, s, z), quantize(y, s, z))`: each part's maker does it.
fn quantize_of_concat(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::Composite(Composite::Quantize { .. }) = op else {
        return Ok(None);
    };
    let (Op::View(view @ View::Concat { .. }), parts) = b.def(x[0]) else {
        return Ok(None);
    };
    if !x[1..].iter().all(|v| b.ty(*v).elements().is(1)) {
        return Ok(None);
    }
    let (view, parts) = (view.clone(), parts.to_vec());
    let mut made = Vec::with_capacity(parts.len());
    for part in parts {
        let mut operands = x.to_vec();
        operands[0] = part;
        made.push(b.emit(op.clone(), &operands)?);
    }
    b.emit(Op::View(view), &made).map(Some)
}

/// `reshape(dequantize(x, s))` → `dequantize(reshape(x), reshape(s))` where what shares a scale is still a run of
/// neighbours: all share one, axes of size 1 come or go, or an axis and the next, which shares its scales, become one
/// (then in groups).
fn reshape_of_dequantize(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::View(View::Reshape(to)) = op else {
        return Ok(None);
    };
    let (Op::Composite(Composite::Dequantize { groups, out }), operands) = b.def(x[0]) else {
        return Ok(None);
    };
    let (groups, out, operands) = (*groups, *out, operands.to_vec());
    let from = b.ty(operands[0]).shape.clone();
    let others: Vec<Shape> = operands[1..].iter().map(|v| b.ty(*v).shape.clone()).collect();
    let Some(reshaped) = reshaped(&from, to, groups, &others) else {
        return Ok(None);
    };
    let mut values = Vec::with_capacity(operands.len());
    for (operand, shape) in operands.iter().zip(std::iter::once(to).chain(&reshaped.others)) {
        values.push(b.emit(Op::View(View::Reshape(shape.clone())), &[*operand])?);
    }
    let groups = reshaped.groups;
    b.emit(Op::Composite(Composite::Dequantize { groups, out }), &values)
        .map(Some)
}

/// What a dequantisation is after a reshape.
struct Reshaped {
    groups: Option<Groups>,
    /// The shapes of scales and zero points.
    others: Vec<Shape>,
}

fn reshaped(from: &Shape, to: &Shape, groups: Option<Groups>, others: &[Shape]) -> Option<Reshaped> {
    if others.iter().all(|s| s.iter().all(|d| d.is(1))) {
        let ones: Shape = vec![Dim::Const(1); to.rank()].into();
        return Some(Reshaped {
            groups: None,
            others: vec![ones; others.len()],
        });
    }
    // Axes that are not 1, in order: the same on both sides, or one pair joined.
    let wide = |shape: &Shape| -> Vec<usize> { (0..shape.rank()).filter(|i| !shape[*i].is(1)).collect() };
    let (before, after) = (wide(from), wide(to));
    let mut made = Reshaped {
        groups: None,
        others: vec![vec![Dim::Const(1); to.rank()].into(); others.len()],
    };
    let mut next = 0;
    for at in after {
        let first = *before.get(next)?;
        if from[first] == to[at] {
            if let Some(groups) = groups.filter(|g| g.axis == first) {
                made.groups = Some(Groups { axis: at, ..groups });
            }
            for (new, old) in made.others.iter_mut().zip(others) {
                new.0[at] = old[first].clone();
            }
            next += 1;
            continue;
        }
        let second = *before.get(next + 1)?;
        let size = from[second].as_const()?;
        let joins = from[first].clone() * &from[second] == to[at];
        if !joins || groups.is_some() || made.groups.is_some() || others.iter().any(|s| !s[second].is(1)) {
            return None;
        }
        made.groups = Some(Groups { axis: at, size });
        for (new, old) in made.others.iter_mut().zip(others) {
            new.0[at] = old[first].clone();
        }
        next += 2;
    }
    (next == before.len()).then_some(made)
}

/// `(x + c) + d` → `x + (c + d)` of integers, which wrap: a correction of zero points and a bias are one.
fn sum_of_integer_constants(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    /// Constants that are folded.
    const MOST: usize = 1 << 14;
    let small = |v: Value| b.as_constant(v).is_some_and(|t| t.elements() <= MOST);
    let add = Op::binary(BinaryOp::Add);
    if *op != add || !b.ty(x[0]).dtype.is_int() || !small(x[1]) {
        return Ok(None);
    }
    let (inner, operands) = b.def(x[0]);
    if *inner != add || !small(operands[1]) {
        return Ok(None);
    }
    let (first, constant) = (operands[0], operands[1]);
    let wide = b.ty(x[0]).shape.clone();
    let of = |v: Value| b.as_constant(v).map_or(0, |t| t.elements());
    // What either broadcasts x to must be the same.
    if b.ty(first).shape != wide || of(constant).max(of(x[1])) > MOST {
        return Ok(None);
    }
    let both = b.emit(add.clone(), &[constant, x[1]])?;
    if b.as_constant(both).is_none() {
        return Ok(None);
    }
    b.emit(add, &[first, both]).map(Some)
}
