//! Products of tensors quantised to 8-bit floats stay products of 8-bit floats.
//!
//! ```text
//! contract (dequantize x, s), (dequantize w, t)      becomes      mul (contract x, w {out=f32}), s·t
//! conv (dequantize x, s), (dequantize w, t), bias    becomes      add (mul (conv x, w {out=f32}), s·t), bias
//! ```
//!
//! A product of two such numbers is exact in f32, so nothing but the order of the sum differs. Scales stand for a
//! tensor, a row of the left operand or a column of the right one; where they change along the depth, the product is
//! left alone.
//!
//! | the target multiplies | what is multiplied |
//! |---|---|
//! | the types themselves, which may be one on the left and another on the right | the bytes as they are |
//! | the FNUZ types of OCP's | the same bytes, which there are half the number, by twice the scale; a negative zero becomes 0 |
//! | no 8-bit floats | f16 (bf16 where exponents have 5 bits), exact for all of them, converted as the kernel reads the bytes |
//!
//! Before: quantised tensors are `dequantize` of stored 8-bit floats. After: such products and convolutions multiply
//! what the target has an instruction for, and constants lie along the depth. Where there is none at all, `dequantize`
//! stays, and the kernel reads the bytes of a weight.

use ir::op::{BinaryOp, Composite, Contract, Conv, Elementwise, Layout, View};
use ir::{DType, Dim, Graph, HostTensor, NodeId, Op, Shape, Storage, Target, Value};

use crate::decompose::dequantize::saturated;
use crate::error::PassFault;
use crate::fold::with_simplify;
use crate::rewrite::Builder;
use crate::runner::Pass;

/// The name of the pass.
const NAME: &str = "float8";
/// The names of what it does.
pub const PRODUCT: &str = "float8_product";
pub const CONV: &str = "float8_conv";

/// The pass.
pub const PASS: Pass = Pass {
    name: NAME,
    run: |graph, context| {
        let quantised = |id: NodeId| match graph.node(id).op {
            Op::Composite(Composite::Dequantize { .. }) => graph.ty(graph.node(id).operands[0]).dtype.is_f8(),
            _ => false,
        };
        if !graph.nodes().keys().any(quantised) {
            return Ok(graph.clone());
        }
        let options = context.options;
        let mut b = Builder::new(graph, NAME).with_rules(with_simplify(options), options);
        for (id, node) in graph.nodes().iter() {
            b.origin = node.origin.clone();
            let (made, rule) = match &node.op {
                Op::Contract(c) if options.enabled(PRODUCT) => {
                    (product(&mut b, context.target, graph, id, c)?, PRODUCT)
                }
                Op::Conv(c) if options.enabled(CONV) => (convolution(&mut b, context.target, graph, id, c)?, CONV),
                _ => (None, NAME),
            };
            match made {
                Some((value, how)) => {
                    b.note(rule, vec![node.origin.clone()], None, Some(how));
                    b.set(id, value);
                }
                None => b.copy(id)?,
            }
        }
        Ok(b.finish(&mut context.fired))
    },
    required: false,
};

/// `stored · scale`.
#[derive(Clone, Copy)]
struct Operand {
    stored: Value,
    /// Of the stored tensor's rank.
    scale: Value,
}

impl Operand {
    /// Looks through a dequantisation without groups.
    fn of(b: &Builder<'_>, value: Value) -> Option<Operand> {
        let (Op::Composite(Composite::Dequantize { groups: None, .. }), operands) = b.def(value) else {
            return None;
        };
        let found = Operand {
            stored: operands[0],
            scale: operands[1],
        };
        b.ty(found.stored).dtype.is_f8().then_some(found)
    }

    /// Says whether all scales along an axis are one.
    fn is_shared_along(&self, b: &Builder<'_>, axis: usize) -> bool {
        b.ty(self.scale).shape[axis].is(1)
    }

    fn dtype(&self, b: &Builder<'_>) -> DType {
        b.ty(self.stored).dtype
    }
}

/// What both operands become on their way into the product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Factors {
    /// As they are stored.
    Stored,
    /// The FNUZ types whose bytes are half of the number.
    Halved,
    /// A type of 16 bits that holds all of their numbers.
    Widened(DType),
}

impl Factors {
    fn choose(b: &Builder<'_>, target: &Target, lhs: &Operand, rhs: &Operand) -> Option<Factors> {
        let (l, r) = (lhs.dtype(b), rhs.dtype(b));
        let multiplies = |l: DType, r: DType| target.matrix.iter().any(|i| i.takes(l, r));
        if multiplies(l, r) {
            return Some(Factors::Stored);
        }
        if let (Some(left), Some(right)) = (fnuz_of(l), fnuz_of(r))
            && multiplies(left, right)
            && [lhs, rhs].into_iter().all(|o| is_halvable(b, o.stored))
        {
            return Some(Factors::Halved);
        }
        let few_exponents = |dtype: DType| matches!(dtype, DType::F8E4M3FN | DType::F8E4M3FNUZ);
        // The smallest numbers of five exponent bits are subnormal in f16, which some matrix units take for 0.
        let wide = match few_exponents(l) && few_exponents(r) {
            true => DType::F16,
            false => DType::BF16,
        };
        (target.is_gpu() && multiplies(wide, wide)).then_some(Factors::Widened(wide))
    }

    /// What the sum must be multiplied by beside the scales.
    fn factor(self) -> f64 {
        match self {
            Factors::Halved => 4.0,
            Factors::Stored | Factors::Widened(_) => 1.0,
        }
    }

    fn apply(self, b: &mut Builder<'_>, stored: Value, keeps_bytes: bool) -> Result<Value, PassFault> {
        match self {
            Factors::Stored => Ok(stored),
            Factors::Halved => match fnuz_of(b.ty(stored).dtype) {
                Some(half) => halved(b, stored, half),
                None => Ok(stored),
            },
            Factors::Widened(wide) if keeps_bytes && b.as_constant(stored).is_some() => {
                let ones = vec![1usize; b.ty(stored).rank()];
                let Ok(one) = HostTensor::from_f64(DType::F32, ones, &[1.0]) else {
                    return b.emit(Op::cast(wide), &[stored]);
                };
                let one = b.constant(one);
                let converted = Composite::Dequantize {
                    groups: None,
                    out: wide,
                };
                b.emit(Op::Composite(converted), &[stored, one])
            }
            Factors::Widened(wide) => b.emit(Op::cast(wide), &[stored]),
        }
    }

    fn described(self, b: &Builder<'_>, target: &Target, lhs: &Operand, rhs: &Operand) -> String {
        let named = |l: DType, r: DType| match l == r {
            true => l.to_string(),
            false => format!("{l} by {r}"),
        };
        let (l, r) = (lhs.dtype(b), rhs.dtype(b));
        let stored = named(l, r);
        match self {
            Factors::Stored => format!("multiplied as {stored}"),
            Factors::Halved => {
                let half = named(fnuz_of(l).unwrap_or(l), fnuz_of(r).unwrap_or(r));
                format!("{stored} multiplied as {half}: the bytes are half the number there")
            }
            Factors::Widened(wide) => format!("{stored} multiplied in {wide}: {target} has no instruction for it"),
        }
    }
}

/// The FNUZ type of an OCP type: the exponent's bias is one higher, so the same bits are half the number.
fn fnuz_of(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F8E4M3FN => Some(DType::F8E4M3FNUZ),
        DType::F8E5M2 => Some(DType::F8E5M2FNUZ),
        _ => None,
    }
}

/// Says whether half of each number of an OCP tensor is surely a number of the FNUZ type: it has no infinities.
fn is_halvable(b: &Builder<'_>, stored: Value) -> bool {
    if b.ty(stored).dtype == DType::F8E4M3FN {
        return true;
    }
    match b.as_constant(stored) {
        Some(tensor) => tensor.bytes.iter().all(|byte| byte & 0x7f != 0x7c),
        None => quotient(b, stored).is_some(),
    }
}

/// What a tensor is the rounded and saturated quotient of, where that is computed in f32.
fn quotient(b: &Builder<'_>, stored: Value) -> Option<[Value; 2]> {
    let (Op::Composite(Composite::Quantize { .. }), operands) = b.def(stored) else {
        return None;
    };
    (b.ty(operands[0]).dtype == DType::F32).then(|| [operands[0], operands[1]])
}

/// Half of an OCP tensor in the FNUZ type.
fn halved(b: &mut Builder<'_>, stored: Value, half: DType) -> Result<Value, PassFault> {
    let dtype = b.ty(stored).dtype;
    if let Some(tensor) = b.as_constant(stored) {
        let infinity = if dtype == DType::F8E5M2 { 0x7c } else { 0x7e };
        let turned = |byte: &u8| match byte & 0x7f {
            // A negative zero's bits are NaN there, and 0 adds the same.
            0 => 0,
            magnitude if magnitude > infinity => 0x80,
            _ => *byte,
        };
        let bytes: Vec<u8> = tensor.bytes.iter().map(turned).collect();
        if let Ok(tensor) = HostTensor::new(half, tensor.shape.clone(), Storage::new(bytes)) {
            return Ok(b.constant(tensor));
        }
    }
    if let (Some([x, scale]), Some(largest)) = (quotient(b, stored), dtype.f8_largest()) {
        let mut scale = scale;
        if b.ty(scale).dtype != DType::F32 {
            scale = b.emit(Op::cast(DType::F32), &[scale])?;
        }
        let two = b.scalar(DType::F32, 2.0);
        let twice = b.emit(Op::binary(BinaryOp::Mul), &[scale, two])?;
        let quotient = b.emit(Op::binary(BinaryOp::Div), &[x, twice])?;
        return saturated(b, quotient, largest / 2.0, half);
    }
    let wide = b.emit(Op::Elementwise(Elementwise::Cast(DType::F32)), &[stored])?;
    let by = b.scalar(DType::F32, 0.5);
    let half_of = b.emit(Op::binary(BinaryOp::Mul), &[wide, by])?;
    b.emit(Op::cast(half), &[half_of])
}

/// Multiplies a sum by what is hoisted out of it.
fn scaled(b: &mut Builder<'_>, sum: Value, factors: Factors, scales: [(Value, Shape); 2]) -> Result<Value, PassFault> {
    let known = |b: &Builder<'_>, (value, shape): &(Value, Shape)| {
        let tensor = b.as_constant(*value)?;
        Some((tensor.to_f64(), shape.clone()))
    };
    // One multiplication where the product of the scales is a number that loses nothing by being f32.
    if let (Some(left), Some(right)) = (known(b, &scales[0]), known(b, &scales[1]))
        && (left.0.len() == 1 || right.0.len() == 1)
    {
        let (one, (many, shape)) = if left.0.len() == 1 {
            (left.0[0], right)
        } else {
            (right.0[0], left)
        };
        let all: Vec<f64> = many.iter().map(|s| s * one * factors.factor()).collect();
        let normal = |s: &f64| *s == 0.0 || (f64::from(f32::MIN_POSITIVE)..f64::from(f32::MAX)).contains(&s.abs());
        let dims: Option<Vec<usize>> = shape.iter().map(|d| d.as_const().map(|d| d.max(0) as usize)).collect();
        if let (true, Some(dims)) = (all.iter().all(normal), dims)
            && let Ok(tensor) = HostTensor::from_f64(DType::F32, dims, &all)
        {
            let factor = b.constant(tensor);
            return b.emit(Op::binary(BinaryOp::Mul), &[sum, factor]);
        }
    }
    let mut value = sum;
    if factors.factor() != 1.0 {
        let by = b.scalar(DType::F32, factors.factor());
        value = b.emit(Op::binary(BinaryOp::Mul), &[value, by])?;
    }
    for (scale, shape) in scales {
        let mut scale = b.emit(Op::View(View::Reshape(shape)), &[scale])?;
        if b.ty(scale).dtype != DType::F32 {
            scale = b.emit(Op::cast(DType::F32), &[scale])?;
        }
        value = b.emit(Op::binary(BinaryOp::Mul), &[value, scale])?;
    }
    Ok(value)
}

/// A shape without its leading sizes of 1, which broadcasts alike.
fn trimmed(shape: &[Dim]) -> Shape {
    let lead = shape.iter().take_while(|d| d.is(1)).count();
    Shape(shape[lead..].to_vec())
}

fn product(
    b: &mut Builder<'_>,
    target: &Target,
    graph: &Graph,
    id: NodeId,
    c: &Contract,
) -> Result<Option<(Value, String)>, PassFault> {
    let node = graph.node(id);
    let sides = [b.value(node.operands[0]), b.value(node.operands[1])];
    let (Some(lhs), Some(rhs)) = (Operand::of(b, sides[0]), Operand::of(b, sides[1])) else {
        return Ok(None);
    };
    let depth = |value: Value, last: bool| b.ty(value).rank() - if last { 1 } else { 2 };
    let (lhs_depth, rhs_depth) = (depth(lhs.stored, !c.transpose_lhs), depth(rhs.stored, c.transpose_rhs));
    if !lhs.is_shared_along(b, lhs_depth) || !rhs.is_shared_along(b, rhs_depth) {
        return Ok(None);
    }
    let Some(factors) = Factors::choose(b, target, &lhs, &rhs) else {
        return Ok(None);
    };
    let how = factors.described(b, target, &lhs, &rhs);
    // The scales of the result's rows and columns: one of the last two axes is 1, and turning them is a reshape.
    let along = |b: &Builder<'_>, scale: Value, turned: bool| {
        let mut dims = b.ty(scale).shape.0.clone();
        let rank = dims.len();
        if turned {
            dims.swap(rank - 2, rank - 1);
        }
        (scale, trimmed(&dims))
    };
    let scales = [
        along(b, lhs.scale, c.transpose_lhs),
        along(b, rhs.scale, c.transpose_rhs),
    ];
    let left = factors.apply(b, lhs.stored, false)?;
    let mut right = factors.apply(b, rhs.stored, true)?;
    let mut sums = Contract { out: DType::F32, ..*c };
    // A weight lies along the depth, where an access brings 16 neighbours; its bytes are permuted at compile time.
    if b.as_constant(right).is_some() && !c.transpose_rhs {
        let mut perm: Vec<usize> = (0..b.ty(right).rank()).collect();
        let rank = perm.len();
        perm.swap(rank - 2, rank - 1);
        right = b.emit(Op::View(View::Transpose(perm)), &[right])?;
        sums.transpose_rhs = true;
    }
    let sum = b.emit(Op::Contract(sums), &[left, right])?;
    let value = scaled(b, sum, factors, scales)?;
    Ok(Some((finished(b, value, c.out)?, how)))
}

fn convolution(
    b: &mut Builder<'_>,
    target: &Target,
    graph: &Graph,
    id: NodeId,
    c: &Conv,
) -> Result<Option<(Value, String)>, PassFault> {
    let node = graph.node(id);
    let operands: Vec<Value> = node.operands.iter().map(|v| b.value(*v)).collect();
    let (Some(x), Some(w)) = (Operand::of(b, operands[0]), Operand::of(b, operands[1])) else {
        return Ok(None);
    };
    let filters = &b.ty(w.scale).shape;
    let by_filter = filters.iter().skip(1).all(|d| d.is(1));
    if c.transposed.is_some() || c.pad_value != 0 || !by_filter || !b.ty(x.scale).elements().is(1) {
        return Ok(None);
    }
    let mut per_filter = vec![filters[0].clone()];
    if c.layout == Layout::ChannelsFirst {
        per_filter.extend(vec![Dim::Const(1); filters.rank() - 2]);
    }
    let Some(factors) = Factors::choose(b, target, &x, &w) else {
        return Ok(None);
    };
    let how = factors.described(b, target, &x, &w);
    let scales = [(x.scale, Shape::SCALAR), (w.scale, trimmed(&per_filter))];
    let left = factors.apply(b, x.stored, false)?;
    let right = factors.apply(b, w.stored, false)?;
    let sums = Conv {
        out: DType::F32,
        ..c.clone()
    };
    let sum = b.emit(Op::Conv(sums), &[left, right])?;
    let mut value = scaled(b, sum, factors, scales)?;
    if let Some(bias) = operands.get(2) {
        per_filter[0] = b.ty(*bias).shape[0].clone();
        let mut bias = b.emit(Op::View(View::Reshape(per_filter.into())), &[*bias])?;
        if b.ty(bias).dtype != DType::F32 {
            bias = b.emit(Op::cast(DType::F32), &[bias])?;
        }
        value = b.emit(Op::binary(BinaryOp::Add), &[value, bias])?;
    }
    Ok(Some((finished(b, value, c.out)?, how)))
}

/// The result in the type that the product has.
fn finished(b: &mut Builder<'_>, value: Value, out: DType) -> Result<Value, PassFault> {
    if b.ty(value).dtype == out {
        return Ok(value);
    }
    b.emit(Op::cast(out), &[value])
}
