//! Products of quantised tensors stay products of integers.
//!
//! ```text
//! contract (dequantize x, s, z), (dequantize w, t)      becomes      mul (cast (add (contract x, w) {out=i32}, c)), s·t
//! conv (cast x - z), (cast w - v) {out=i32}             becomes      add (conv x, w {pad_value=z, out=i32}), c
//! ```
//!
//! `Σ (x − z)(w − v) = Σ x·w' + d·Σ x − z·Σ (w − v)`, where `w' = w − v − d` has 8 bits and `d`, one number a column,
//! is 0 wherever `w − v` has 8 bits itself, as it has in symmetric weights. The last term is a constant of each column
//! (or its product with a zero point that the run gives). All of it is exact: sums that could leave 32 bits are left
//! alone. Numbers are made of the sum by one scale a column; what quantised, multiplied and quantised again is then one
//! product with an epilogue.
//!
//! A right operand that is no constant is the case of [`super::operands`].
//!
//! Before: quantised weights are constants with a scale for all or for each column; activations have one scale, or one
//! a row (with a zero point each, where they have some). After: such products and convolutions multiply `i8` (unsigned
//! tensors are signed ones, see [`super::signed`]), products have their weights along the depth, and the padding of a
//! convolution is the number that stands for 0. Where the run gives that number, the image is padded by 0 before it is
//! quantised ([`super::padded`]).

use ir::op::{BinaryOp, Composite, Contract, Conv, Elementwise, Layout, View};
use ir::{DType, Dim, Graph, HostTensor, NodeId, Op, Shape, Storage, Value};

use super::signed::{SHIFT, Signed, ones};
use super::{operands, padded};
use crate::error::PassFault;
use crate::fold::with_simplify;
use crate::rewrite::Builder;
use crate::runner::Pass;

/// The name of the pass.
const NAME: &str = "integers";
/// The names of what it does.
pub const PRODUCT: &str = "integer_product";
pub const CONV: &str = "integer_conv";

/// The pass.
pub const PASS: Pass = Pass {
    name: NAME,
    run: |graph, context| {
        let quantised = |op: &Op| {
            matches!(
                op,
                Op::Composite(Composite::Dequantize { .. }) | Op::Elementwise(Elementwise::Cast(DType::I32))
            )
        };
        let multiplies = |op: &Op| matches!(op, Op::Contract(_) | Op::Conv(_));
        let any = |f: &dyn Fn(&Op) -> bool| graph.nodes().values().any(|n| f(&n.op));
        if !any(&quantised) || !any(&multiplies) {
            return Ok(graph.clone());
        }
        let options = context.options;
        let mut b = Builder::new(graph, NAME).with_rules(with_simplify(options), options);
        let mut signed = Signed::default();
        for (id, node) in graph.nodes().iter() {
            b.origin = node.origin.clone();
            if signed.read(&mut b, id)? {
                continue;
            }
            let (made, rule) = match &node.op {
                Op::Contract(c) if options.enabled(PRODUCT) => (product(&mut b, &mut signed, graph, id, c)?, PRODUCT),
                Op::Conv(c) if options.enabled(CONV) => (convolution(&mut b, &mut signed, graph, id, c)?, CONV),
                _ => (None, NAME),
            };
            match made {
                Some(value) => {
                    b.note(rule, vec![node.origin.clone()], None, None);
                    b.set(id, value);
                }
                None => b.copy(id)?,
            }
            signed.made(&mut b, id)?;
        }
        Ok(b.finish(&mut context.fired))
    },
    required: false,
};

/// The integer that stands for 0.
#[derive(Clone, Copy)]
pub(super) enum Zero {
    Known(i64),
    /// What the run gives, one number or one a row, of any integer type, less this many.
    Given(Value, i64),
}

impl Zero {
    fn less(self, by: i64) -> Zero {
        match self {
            Zero::Known(zero) => Zero::Known(zero - by),
            Zero::Given(zero, less) => Zero::Given(zero, less + by),
        }
    }

    /// The largest distance of a signed integer of 8 bits from it.
    pub fn reach(self) -> i64 {
        match self {
            Zero::Known(zero) => (zero + 128).abs().max((127 - zero).abs()),
            Zero::Given(..) => 255,
        }
    }
}

/// The left operand: `(stored − zero) · scale`.
pub(super) struct Activations {
    /// In `i8` or `u8`.
    pub stored: Value,
    /// What is done to the stored integers, the last first: reshapes that have moved behind arithmetic.
    pub views: Vec<Op>,
    pub zero: Zero,
    /// One number, or one a row; `None` where the product is one of integers.
    pub scale: Option<Value>,
}

/// The right operand as rows of one column's integers each, `numbers · scale`.
struct Weights {
    columns: usize,
    depth: usize,
    /// `w − v`.
    numbers: Vec<i32>,
    /// One for all or one a column; `None` where the product is one of integers.
    scales: Option<Vec<f64>>,
}

/// Weights as they are multiplied.
struct Packed {
    /// `w'`, in the order of [`Weights::numbers`].
    bytes: Vec<u8>,
    /// `d` of each column, if one is not 0.
    offsets: Option<Vec<i64>>,
    /// `Σ (w − v)` of each column.
    sums: Vec<i64>,
}

impl Weights {
    /// Splits the integers in those of 8 bits and what a column has more; `None` where a sum could leave 32 bits.
    fn pack(&self, reach: i64) -> Option<Packed> {
        let mut packed = Packed {
            bytes: Vec::with_capacity(self.numbers.len()),
            offsets: None,
            sums: Vec::with_capacity(self.columns),
        };
        let mut offsets = Vec::with_capacity(self.columns);
        for column in self.numbers.chunks_exact(self.depth.max(1)).take(self.columns) {
            let (low, high) = column
                .iter()
                .fold((0i64, 0i64), |(l, h), v| (l.min(i64::from(*v)), h.max(i64::from(*v))));
            let least = column.iter().map(|v| i64::from(*v)).min().unwrap_or(0);
            let offset = if low >= -128 && high <= 127 { 0 } else { least + 128 };
            if high.max(least) - offset > 127 {
                return None;
            }
            let most: i64 = column
                .iter()
                .map(|v| i64::from(*v).abs())
                .sum::<i64>()
                .checked_mul(reach)?;
            if most > i64::from(i32::MAX) {
                return None;
            }
            packed
                .bytes
                .extend(column.iter().map(|v| (i64::from(*v) - offset) as i8 as u8));
            packed.sums.push(column.iter().map(|v| i64::from(*v)).sum());
            offsets.push(offset);
        }
        packed.offsets = offsets.iter().any(|o| *o != 0).then_some(offsets);
        Some(packed)
    }
}

/// Looks through a dequantisation of one scale, or of one that is shared along the axis `depth`, or through differences
/// of widened integers.
pub(super) fn activations(b: &Builder<'_>, value: Value, depth: Option<usize>) -> Option<Activations> {
    let narrow = |v: Value| matches!(b.ty(v).dtype, DType::I8 | DType::U8);
    let single = |v: Value| b.ty(v).elements().is(1);
    let shared = |v: Value| single(v) || depth.is_some_and(|axis| b.ty(v).shape.get(axis).is_some_and(|d| d.is(1)));
    let zero_of = |v: Value| -> Option<Zero> {
        if let Some(known) = b.as_scalar(v) {
            let known = known.as_f64();
            return (known.fract() == 0.0 && known.abs() < 1e6).then_some(Zero::Known(known as i64));
        }
        b.ty(v).dtype.is_int().then_some(Zero::Given(v, 0))
    };
    let (op, operands) = b.def(value);
    if let Op::Composite(Composite::Dequantize { groups: None, .. }) = op {
        let zero = match operands.get(2) {
            Some(zero) if shared(*zero) => match zero_of(*zero)? {
                // Its distance from a byte is then known.
                Zero::Given(zero, _) if b.ty(zero).dtype.bits() > 8 => return None,
                zero => zero,
            },
            Some(_) => return None,
            None => Zero::Known(0),
        };
        let found = Activations {
            views: Vec::new(),
            stored: operands[0],
            zero,
            scale: Some(operands[1]),
        };
        return (narrow(operands[0]) && shared(operands[1])).then_some(found);
    }
    let (mut at, mut zero, mut views) = (value, Zero::Known(0), Vec::new());
    for _ in 0..6 {
        if narrow(at) {
            return Some(Activations {
                views,
                stored: at,
                zero,
                scale: None,
            });
        }
        let (op, operands) = b.def(at);
        if b.ty(at).dtype != DType::I32 {
            return None;
        }
        match op {
            Op::Elementwise(Elementwise::Cast(DType::I32)) => at = operands[0],
            Op::View(View::Reshape(_) | View::Transpose(_)) => {
                views.push(op.clone());
                at = operands[0];
            }
            Op::Elementwise(Elementwise::Binary(op @ (BinaryOp::Sub | BinaryOp::Add))) => {
                let (x, other) = (operands[0], operands[1]);
                if !single(other) || b.ty(x).shape != b.ty(at).shape {
                    return None;
                }
                zero = match (op, zero_of(other)?, zero) {
                    (BinaryOp::Add, Zero::Known(more), zero) => zero.less(more),
                    (BinaryOp::Sub, Zero::Known(more), zero) => zero.less(-more),
                    (BinaryOp::Sub, given, Zero::Known(more)) => given.less(-more),
                    _ => return None,
                };
                at = x;
            }
            _ => return None,
        }
    }
    None
}

/// The integers of a constant, of differences of constants that are too large to be folded, and of their casts.
fn integers(b: &Builder<'_>, value: Value, depth: u32) -> Option<(Vec<i32>, Vec<usize>)> {
    if let Some(tensor) = b.as_constant(value) {
        let numbers = match tensor.dtype {
            DType::I8 => tensor.bytes.iter().map(|v| i32::from(*v as i8)).collect(),
            DType::U8 => tensor.bytes.iter().map(|v| i32::from(*v)).collect(),
            dtype if dtype.is_int() => {
                let wide = tensor.to_f64();
                wide.iter()
                    .all(|v| v.abs() <= 1024.0)
                    .then(|| wide.iter().map(|v| *v as i32).collect())?
            }
            _ => return None,
        };
        return Some((numbers, tensor.shape.clone()));
    }
    let (op, operands) = b.def(value);
    if depth == 0 {
        return None;
    }
    match op {
        Op::Elementwise(Elementwise::Cast(DType::I32)) => integers(b, operands[0], depth - 1),
        Op::Elementwise(Elementwise::Binary(BinaryOp::Sub)) => {
            let (mut numbers, shape) = integers(b, operands[0], depth - 1)?;
            let (other, given) = integers(b, operands[1], depth - 1)?;
            subtract(&mut numbers, &shape, &other, &given)?;
            Some((numbers, shape))
        }
        _ => None,
    }
}

/// Subtracts numbers that are broadcast to the shape.
fn subtract(numbers: &mut [i32], shape: &[usize], other: &[i32], given: &[usize]) -> Option<()> {
    let lead = shape.len().checked_sub(given.len())?;
    let fits = given.iter().zip(&shape[lead..]).all(|(g, s)| *g == 1 || g == s);
    if !fits {
        return None;
    }
    if other.iter().all(|v| *v == 0) {
        return Some(());
    }
    for (i, number) in numbers.iter_mut().enumerate() {
        let (mut rest, mut at, mut stride) = (i, 0, 1);
        for axis in (0..shape.len()).rev() {
            let coordinate = rest % shape[axis];
            rest /= shape[axis];
            if axis >= lead {
                if given[axis - lead] != 1 {
                    at += coordinate * stride;
                }
                stride *= given[axis - lead];
            }
        }
        *number -= other[at];
    }
    Some(())
}

/// The weights whose columns are `axis` of a constant.
fn weights(b: &Builder<'_>, value: Value, axis: usize) -> Option<Weights> {
    let (op, operands) = b.def(value);
    let (numbers, shape, scales) = match op {
        Op::Composite(Composite::Dequantize { groups: None, .. }) => {
            let (mut numbers, shape) = integers(b, operands[0], 0)?;
            let scale = b.as_constant(operands[1])?;
            let along = |t: &HostTensor| t.shape.iter().enumerate().all(|(i, d)| *d == 1 || i == axis);
            if !along(scale) {
                return None;
            }
            if let Some(zero) = operands.get(2) {
                let zero = b.as_constant(*zero).filter(|z| along(z))?;
                let points: Vec<i32> = zero.to_f64().iter().map(|v| *v as i32).collect();
                if zero
                    .to_f64()
                    .iter()
                    .zip(&points)
                    .any(|(v, p)| *v != f64::from(*p) || v.abs() > 1024.0)
                {
                    return None;
                }
                subtract(&mut numbers, &shape, &points, &zero.shape)?;
            }
            (numbers, shape, Some(scale.to_f64()))
        }
        _ => {
            let (numbers, shape) = integers(b, value, 3)?;
            (numbers, shape, None)
        }
    };
    let columns = *shape.get(axis)?;
    let depth = numbers.len().checked_div(columns)?;
    let numbers = match axis {
        0 => numbers,
        _ => {
            let mut turned = Vec::with_capacity(numbers.len());
            for column in 0..columns {
                turned.extend((0..depth).map(|k| numbers[k * columns + column]));
            }
            turned
        }
    };
    Some(Weights {
        columns,
        depth,
        numbers,
        scales,
    })
}

/// What both kinds of product make of their integer sums.
struct Columns {
    count: usize,
    /// The shape of one number a column, which broadcasts to the sums.
    shape: Vec<usize>,
    /// Numbers of rows lie along the last axis of the left operand, and along the last but one of the sums.
    turned: bool,
}

impl Columns {
    /// One number, or one a row, in a shape that broadcasts to the sums.
    fn of_rows(&self, b: &mut Builder<'_>, value: Value) -> Result<Value, PassFault> {
        let mut shape = b.ty(value).shape.clone();
        if shape.elements().is(1) {
            shape = Shape::SCALAR;
        } else if self.turned {
            let rank = shape.rank();
            shape.0.swap(rank - 2, rank - 1);
        }
        b.emit(Op::View(View::Reshape(shape)), &[value])
    }

    fn constant(&self, b: &mut Builder<'_>, dtype: DType, values: &[f64]) -> Option<Value> {
        let shape = if values.len() == 1 {
            Vec::new()
        } else {
            self.shape.clone()
        };
        HostTensor::from_f64(dtype, shape, values).ok().map(|t| b.constant(t))
    }

    /// The exact sum: that of the integers as they are multiplied, and what is missing.
    fn corrected(
        &self,
        b: &mut Builder<'_>,
        mut sum: Value,
        zero: Zero,
        packed: &Packed,
        row_sum: impl FnOnce(&mut Builder<'_>) -> Result<Option<Value>, PassFault>,
    ) -> Result<Option<Value>, PassFault> {
        if let Some(offsets) = &packed.offsets {
            let offsets: Vec<f64> = offsets.iter().map(|o| *o as f64).collect();
            let (Some(rows), Some(offsets)) = (row_sum(b)?, self.constant(b, DType::I32, &offsets)) else {
                return Ok(None);
            };
            let more = b.emit(Op::binary(BinaryOp::Mul), &[rows, offsets])?;
            sum = b.emit(Op::binary(BinaryOp::Add), &[sum, more])?;
        }
        // In two's complement, as the sums are.
        let wrapped = |v: i64| f64::from(v as i32);
        let less = match zero {
            Zero::Known(zero) => {
                let values: Vec<f64> = packed.sums.iter().map(|s| wrapped(-zero * s)).collect();
                if values.iter().all(|v| *v == 0.0) {
                    return Ok(Some(sum));
                }
                self.constant(b, DType::I32, &values)
            }
            Zero::Given(zero, less) => {
                let values: Vec<f64> = packed.sums.iter().map(|s| wrapped(-s)).collect();
                let mut zero = self.of_rows(b, zero)?;
                if b.ty(zero).dtype != DType::I32 {
                    zero = b.emit(Op::cast(DType::I32), &[zero])?;
                }
                if less != 0 {
                    let by = b.scalar(DType::I32, less as f64);
                    zero = b.emit(Op::binary(BinaryOp::Sub), &[zero, by])?;
                }
                match self.constant(b, DType::I32, &values) {
                    Some(sums) => Some(b.emit(Op::binary(BinaryOp::Mul), &[sums, zero])?),
                    None => None,
                }
            }
        };
        let Some(less) = less else { return Ok(None) };
        b.emit(Op::binary(BinaryOp::Add), &[sum, less]).map(Some)
    }

    /// Numbers of exact sums, in f32.
    fn scaled(
        &self,
        b: &mut Builder<'_>,
        sum: Value,
        scale: Value,
        scales: &[f64],
    ) -> Result<Option<Value>, PassFault> {
        let value = b.emit(Op::cast(DType::F32), &[sum])?;
        let factor = match b.as_scalar(scale) {
            Some(scale) => {
                let all: Vec<f64> = scales.iter().map(|s| s * scale.as_f64()).collect();
                self.constant(b, DType::F32, &all)
            }
            None => {
                let mut scale = self.of_rows(b, scale)?;
                if b.ty(scale).dtype != DType::F32 {
                    scale = b.emit(Op::cast(DType::F32), &[scale])?;
                }
                if b.ty(scale).rank() > 0 {
                    let value = b.emit(Op::binary(BinaryOp::Mul), &[value, scale])?;
                    let Some(scales) = self.constant(b, DType::F32, scales) else {
                        return Ok(None);
                    };
                    return b.emit(Op::binary(BinaryOp::Mul), &[value, scales]).map(Some);
                }
                match self.constant(b, DType::F32, scales) {
                    Some(scales) => Some(b.emit(Op::binary(BinaryOp::Mul), &[scales, scale])?),
                    None => None,
                }
            }
        };
        let Some(factor) = factor else { return Ok(None) };
        b.emit(Op::binary(BinaryOp::Mul), &[value, factor]).map(Some)
    }
}

/// The scale of the left operand and those of the weight's columns.
type Scales = (Value, Vec<f64>);

/// Returns both operands where they are quantised, with their scales where both have some; one scale without the other
/// is nothing that is known. `axis` is that of the weight's columns, `depth` the left operand's that is summed along,
/// where rows may have scales of their own.
fn quantised(
    b: &Builder<'_>,
    [lhs, rhs]: [Value; 2],
    axis: usize,
    depth: Option<usize>,
) -> Option<(Activations, Weights, Option<Scales>)> {
    let (x, w) = (activations(b, lhs, depth)?, weights(b, rhs, axis)?);
    let scales = match (x.scale, &w.scales) {
        (Some(x), Some(w)) => Some((x, w.clone())),
        (None, None) => None,
        _ => return None,
    };
    Some((x, w, scales))
}

/// The left operand in `i8`, with its zero point.
pub(super) fn signed_operand(
    b: &mut Builder<'_>,
    signed: &mut Signed,
    x: &Activations,
) -> Result<(Value, Zero), PassFault> {
    let mut stored = x.stored;
    let mut zero = x.zero;
    if b.ty(stored).dtype != DType::I8 {
        (stored, zero) = (signed.of(b, stored)?, zero.less(SHIFT));
    }
    for view in x.views.iter().rev() {
        stored = b.emit(view.clone(), &[stored])?;
    }
    Ok((stored, zero))
}

/// The zero point that the left operand will have once it is signed.
pub(super) fn signed_zero(b: &Builder<'_>, x: &Activations) -> Zero {
    match b.ty(x.stored).dtype {
        DType::I8 => x.zero,
        _ => x.zero.less(SHIFT),
    }
}

fn product(
    b: &mut Builder<'_>,
    signed: &mut Signed,
    graph: &Graph,
    id: NodeId,
    c: &Contract,
) -> Result<Option<Value>, PassFault> {
    let node = graph.node(id);
    let (lhs, rhs) = (b.value(node.operands[0]), b.value(node.operands[1]));
    if b.ty(rhs).rank() != 2 {
        return operands::product(b, signed, [lhs, rhs], c);
    }
    let axis = usize::from(!c.transpose_rhs);
    let depth = (b.ty(lhs).rank()).checked_sub(if c.transpose_lhs { 2 } else { 1 });
    let Some((x, w, scales)) = quantised(b, [lhs, rhs], axis, depth) else {
        return operands::product(b, signed, [lhs, rhs], c);
    };
    let zero = signed_zero(b, &x);
    let Some(packed) = w.pack(zero.reach()) else {
        return Ok(None);
    };
    let Ok(tensor) = HostTensor::new(DType::I8, [w.columns, w.depth], Storage::new(packed.bytes.clone())) else {
        return Ok(None);
    };
    let (stored, zero) = signed_operand(b, signed, &x)?;
    let weight = b.constant(tensor);
    let integers = Contract {
        transpose_lhs: c.transpose_lhs,
        transpose_rhs: true,
        out: DType::I32,
    };
    let sum = b.emit(Op::Contract(integers), &[stored, weight])?;
    let columns = Columns {
        count: w.columns,
        shape: vec![w.columns],
        turned: c.transpose_lhs,
    };
    let corrected = columns.corrected(b, sum, zero, &packed, |b| {
        let Ok(row) = HostTensor::new(DType::I8, [1, w.depth], Storage::new(vec![1u8; w.depth])) else {
            return Ok(None);
        };
        let row = b.constant(row);
        b.emit(Op::Contract(integers), &[stored, row]).map(Some)
    })?;
    let Some(mut value) = corrected else { return Ok(None) };
    if let Some((scale, scales)) = scales {
        match columns.scaled(b, value, scale, &scales)? {
            Some(scaled) => value = scaled,
            None => return Ok(None),
        }
    }
    finished(b, value, c.out).map(Some)
}

fn convolution(
    b: &mut Builder<'_>,
    signed: &mut Signed,
    graph: &Graph,
    id: NodeId,
    c: &Conv,
) -> Result<Option<Value>, PassFault> {
    let node = graph.node(id);
    let operands: Vec<Value> = node.operands.iter().map(|v| b.value(*v)).collect();
    if c.transposed.is_some() || c.pad_value != 0 {
        return Ok(None);
    }
    let Some((mut x, w, scales)) = quantised(b, [operands[0], operands[1]], 0, None) else {
        return Ok(None);
    };
    let mut window = c.window.clone();
    let padded = window.pad_low.iter().chain(&window.pad_high).any(|p| *p != 0);
    let pad_value = match signed_zero(b, &x) {
        Zero::Known(zero) if padded && !(-128..=127).contains(&zero) => return Ok(None),
        Zero::Known(zero) if padded => zero,
        Zero::Given(..) if padded => {
            let first = c.layout.spatial_axis();
            let Some(stored) = padded::before_quantising(b, &x, &window, first)? else {
                return Ok(None);
            };
            (x.stored, x.zero) = (stored, signed_zero(b, &x));
            window.pad_low.fill(0);
            window.pad_high.fill(0);
            0
        }
        _ => 0,
    };
    let Some(packed) = w.pack(signed_zero(b, &x).reach()) else {
        return Ok(None);
    };
    let Some(shape) = b
        .ty(operands[1])
        .shape
        .iter()
        .map(|d| d.as_const())
        .collect::<Option<Vec<i64>>>()
    else {
        return Ok(None);
    };
    let shape: Vec<usize> = shape.into_iter().map(|d| d.max(0) as usize).collect();
    let Ok(tensor) = HostTensor::new(DType::I8, shape.clone(), Storage::new(packed.bytes.clone())) else {
        return Ok(None);
    };
    let (stored, zero) = signed_operand(b, signed, &x)?;
    let weight = b.constant(tensor);
    let integers = Conv {
        out: DType::I32,
        pad_value,
        window,
        ..c.clone()
    };
    let sum = b.emit(Op::Conv(integers.clone()), &[stored, weight])?;
    let spatial = shape.len() - 2;
    let mut per_column = vec![w.columns];
    if c.layout == Layout::ChannelsFirst {
        per_column.extend(vec![1; spatial]);
    }
    let columns = Columns {
        count: w.columns,
        shape: per_column,
        turned: false,
    };
    let corrected = columns.corrected(b, sum, zero, &packed, |b| {
        // One filter of ones serves all columns of a group.
        let mut ones = shape.clone();
        ones[0] = c.groups as usize;
        let count = ones.iter().product();
        let Ok(filter) = HostTensor::new(DType::I8, ones, Storage::new(vec![1u8; count])) else {
            return Ok(None);
        };
        let filter = b.constant(filter);
        let sums = b.emit(Op::Conv(integers.clone()), &[stored, filter])?;
        match c.groups as usize {
            1 => Ok(Some(sums)),
            groups if groups == columns.count => Ok(Some(sums)),
            groups => each_of_group(
                b,
                sums,
                c.layout.channel_axis(shape.len()),
                columns.count / groups.max(1),
            )
            .map(Some),
        }
    })?;
    let Some(mut value) = corrected else { return Ok(None) };
    if let Some((scale, scales)) = scales {
        match columns.scaled(b, value, scale, &scales)? {
            Some(scaled) => value = scaled,
            None => return Ok(None),
        }
    }
    if let Some(bias) = operands.get(2) {
        let mut dims = ones(columns.shape.len());
        dims[0] = Dim::from(columns.count);
        let mut bias = b.emit(Op::View(View::Reshape(dims.into())), &[*bias])?;
        let within = b.ty(value).dtype;
        if b.ty(bias).dtype != within {
            bias = b.emit(Op::cast(within), &[bias])?;
        }
        value = b.emit(Op::binary(BinaryOp::Add), &[value, bias])?;
    }
    finished(b, value, c.out).map(Some)
}

/// Repeats each entry of an axis, one a group, for the columns of the group.
fn each_of_group(b: &mut Builder<'_>, sums: Value, axis: usize, columns: usize) -> Result<Value, PassFault> {
    let whole = b.ty(sums).shape.clone();
    let dims = |repeated: usize| {
        let mut dims: Vec<Dim> = whole.iter().cloned().collect();
        dims.insert(axis + 1, Dim::from(repeated));
        dims
    };
    let apart = b.emit(Op::View(View::Reshape(dims(1).into())), &[sums])?;
    let repeated = b.emit(Op::View(View::Broadcast(dims(columns).into())), &[apart])?;
    let mut joined: Vec<Dim> = whole.iter().cloned().collect();
    joined[axis] = joined[axis].clone() * Dim::from(columns);
    b.emit(Op::View(View::Reshape(joined.into())), &[repeated])
}

/// The result in the type that the product has.
pub(super) fn finished(b: &mut Builder<'_>, value: Value, out: DType) -> Result<Value, PassFault> {
    if b.ty(value).dtype == out {
        return Ok(value);
    }
    b.emit(Op::cast(out), &[value])
}
