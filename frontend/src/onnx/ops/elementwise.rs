//! One element from one element: arithmetic, comparisons, logic, casts, selection.

use ir::DType;
use ir::op::{BinaryOp, UnaryOp};

use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::known::Known;
use crate::onnx::node::{Node, dtype_of};

pub(super) const ROWS: &[Row] = &[
    op("Abs", 1, |n| unary(n, UnaryOp::Abs)),
    op("Acos", 7, |n| unary(n, UnaryOp::Acos)),
    op("Acosh", 9, |n| unary(n, UnaryOp::Acosh)),
    op("Add", 1, |n| binary(n, BinaryOp::Add)),
    op("And", 1, |n| logical(n, BinaryOp::And)),
    op("Asin", 7, |n| unary(n, UnaryOp::Asin)),
    op("Asinh", 9, |n| unary(n, UnaryOp::Asinh)),
    op("Atan", 7, |n| unary(n, UnaryOp::Atan)),
    op("Atanh", 9, |n| unary(n, UnaryOp::Atanh)),
    op("BitCast", 26, bit_cast),
    op("BitShift", 11, bit_shift),
    op("BitwiseAnd", 18, |n| binary(n, BinaryOp::And)),
    op("BitwiseNot", 18, |n| unary(n, UnaryOp::Not)),
    op("BitwiseOr", 18, |n| binary(n, BinaryOp::Or)),
    op("BitwiseXor", 18, |n| binary(n, BinaryOp::Xor)),
    op("Cast", 6, cast),
    op("CastLike", 15, cast_like),
    op("Ceil", 1, |n| unary(n, UnaryOp::Ceil)),
    op("Clip", 1, clip),
    op("Cos", 7, |n| unary(n, UnaryOp::Cos)),
    op("Cosh", 9, |n| unary(n, UnaryOp::Cosh)),
    op("Div", 1, |n| binary(n, BinaryOp::Div)),
    op("Equal", 1, |n| binary(n, BinaryOp::Eq)),
    op("Erf", 9, |n| unary(n, UnaryOp::Erf)),
    op("Exp", 1, |n| unary(n, UnaryOp::Exp)),
    op("Floor", 1, |n| unary(n, UnaryOp::Floor)),
    op("Greater", 1, |n| binary(n, BinaryOp::Gt)),
    op("GreaterOrEqual", 12, |n| binary(n, BinaryOp::Ge)),
    op("IsInf", 10, is_inf),
    op("IsNaN", 9, |n| unary(n, UnaryOp::IsNan)),
    op("Less", 1, |n| binary(n, BinaryOp::Lt)),
    op("LessOrEqual", 12, |n| binary(n, BinaryOp::Le)),
    op("Log", 1, |n| unary(n, UnaryOp::Log)),
    op("Max", 1, |n| variadic(n, BinaryOp::Max)),
    op("Mean", 1, mean),
    op("Min", 1, |n| variadic(n, BinaryOp::Min)),
    op("Mod", 10, modulo),
    op("Mul", 1, |n| binary(n, BinaryOp::Mul)),
    op("Neg", 1, |n| unary(n, UnaryOp::Neg)),
    op("Not", 1, |n| unary(n, UnaryOp::Not)),
    op("Or", 1, |n| logical(n, BinaryOp::Or)),
    op("Pow", 1, pow),
    op("Reciprocal", 1, |n| unary(n, UnaryOp::Recip)),
    op("Round", 11, |n| unary(n, UnaryOp::Round)),
    op("Sign", 9, |n| unary(n, UnaryOp::Sign)),
    op("Sin", 7, |n| unary(n, UnaryOp::Sin)),
    op("Sinh", 9, |n| unary(n, UnaryOp::Sinh)),
    op("Sqrt", 1, |n| unary(n, UnaryOp::Sqrt)),
    op("Sub", 1, |n| binary(n, BinaryOp::Sub)),
    op("Sum", 1, |n| variadic(n, BinaryOp::Add)),
    op("Tan", 7, |n| unary(n, UnaryOp::Tan)),
    op("Tanh", 1, |n| unary(n, UnaryOp::Tanh)),
    op("Where", 9, choose),
    op("Xor", 1, |n| binary(n, BinaryOp::Xor)),
];

fn unary(node: &mut Node<'_>, op: UnaryOp) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    Ok(vec![node.unary(op, x)?])
}

/// The operands. Before opset 7 the second one broadcasts where `broadcast` says so, its axes beginning at `axis` of
/// the first's.
fn operands(node: &mut Node<'_>) -> Step<(Val, Val)> {
    let (a, mut b) = (node.input(0)?, node.input(1)?);
    if node.opset < 7
        && node.flag("broadcast")?
        && let Some(axis) = node.int("axis")?
    {
        let axis = node.axis(axis, node.rank(a))?;
        let mut dims = node.shape(b).0;
        let behind = node.rank(a).saturating_sub(axis + dims.len());
        dims.extend(std::iter::repeat_n(ir::Dim::Const(1), behind));
        b = node.reshape(b, dims)?;
    }
    Ok((a, b))
}

fn binary(node: &mut Node<'_>, op: BinaryOp) -> Step<Vec<Val>> {
    let (a, b) = operands(node)?;
    Ok(vec![node.binary(op, a, b)?])
}

/// As [`binary`]; a known operand that decides the result alone is the result.
fn logical(node: &mut Node<'_>, op: BinaryOp) -> Step<Vec<Val>> {
    let (a, b) = operands(node)?;
    let decides = i64::from(op == BinaryOp::Or);
    let (left, right) = (node.shape(a), node.shape(b));
    for value in [a, b] {
        let known = node.build.known(value).and_then(|k| k.ints());
        if known.is_some_and(|v| v.iter().all(|v| *v == decides)) && node.dtype(value) == DType::Bool {
            let shape = node.build.broadcast(&left, &right)?;
            if node.shape(value) == shape {
                return Ok(vec![value]);
            }
        }
    }
    binary(node, op)
}

fn variadic(node: &mut Node<'_>, op: BinaryOp) -> Step<Vec<Val>> {
    let mut values = node.variadic()?;
    // Many are folded in groups: what is computed of one chain nests as deep as the chain is long.
    while values.len() > 1 {
        let mut folded = Vec::with_capacity(values.len().div_ceil(GROUP));
        for group in values.chunks(GROUP) {
            let mut result = group[0];
            for value in &group[1..] {
                result = node.binary(op, result, *value)?;
            }
            folded.push(result);
        }
        values = folded;
    }
    Ok(values)
}

/// How many operands of a variadic op are folded one after the other.
const GROUP: usize = 16;

fn mean(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let count = node.variadic()?.len();
    let sum = variadic(node, BinaryOp::Add)?[0];
    Ok(vec![node.with_scalar(BinaryOp::Div, sum, count as f64)?])
}

fn modulo(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let op = if node.flag("fmod")? {
        BinaryOp::Rem
    } else {
        BinaryOp::Mod
    };
    binary(node, op)
}

/// The exponent may have another type; the result has the base's.
fn pow(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, y) = operands(node)?;
    let (base, exponent) = (node.dtype(x), node.dtype(y));
    if base == exponent {
        return Ok(vec![node.binary(BinaryOp::Pow, x, y)?]);
    }
    if base.is_float() || !exponent.is_float() {
        let y = node.cast(y, base)?;
        return Ok(vec![node.binary(BinaryOp::Pow, x, y)?]);
    }
    // An integer to a float power is computed in the wider of f32 and the exponent's type.
    let wide = if exponent == DType::F64 || base.bits() > 16 {
        DType::F64
    } else {
        DType::F32
    };
    let (x, y) = (node.cast(x, wide)?, node.cast(y, wide)?);
    let power = node.binary(BinaryOp::Pow, x, y)?;
    Ok(vec![node.cast(power, base)?])
}

/// Shifts bits out by any amount: one below 0 or from the width on leaves zeros, or the copies of the sign that a right
/// shift of a negative number brings in. (Opset 28 has these words; the earlier ones only say that bits move.)
fn bit_shift(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, amount) = (node.input(0)?, node.input(1)?);
    let op = match node.text("direction", "")?.as_str() {
        "LEFT" => BinaryOp::Shl,
        "RIGHT" => BinaryOp::Shr,
        other => return node.bad("direction", other, "LEFT or RIGHT"),
    };
    let dtype = node.dtype(x);
    let width = i64::from(dtype.bits());
    let amounts = node.build.constant(amount).map(|amounts| amounts.to_i64());
    if amounts.is_some_and(|amounts| amounts.iter().all(|n| (0..width).contains(n))) {
        return binary(node, op);
    }
    let least = node.with_scalar(BinaryOp::Ge, amount, 0.0)?;
    let most = node.with_scalar(BinaryOp::Lt, amount, width as f64)?;
    let inside = node.binary(BinaryOp::And, least, most)?;
    let zero = node.int_scalar(dtype, 0);
    let shifted = node.binary(op, x, amount)?;
    let beyond = match (op, dtype) {
        (BinaryOp::Shr, DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::I4) => {
            let last = node.int_scalar(dtype, width - 1);
            node.binary(op, x, last)?
        }
        _ => zero,
    };
    Ok(vec![node.select(inside, shifted, beyond)?])
}

/// The same bits as another type of their width. Integers wrap; the bits of floats are taken of constants.
fn bit_cast(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let to = node.int("to")?;
    let to = dtype_of(node.required("to", to)?)?;
    let x = node.input(0)?;
    let from = node.dtype(x);
    // Unsigned numbers are computed in a wider type.
    if node.build.declared(x).is_some_and(|own| own.bits() == to.bits()) && to.is_int() {
        return Ok(vec![node.cast(x, to)?]);
    }
    if from.bits() != to.bits() {
        return node.bad("to", to, format!("a type of {} bits, as {from} has", from.bits()));
    }
    if from == to || from.is_int() && to.is_int() {
        return Ok(vec![node.cast(x, to)?]);
    }
    let Some(tensor) = node.build.constant(x) else {
        let what = "operand, whose bits are to be a float's or are one's,";
        return Err(NodeProblem::NotKnown { what, index: 0 }.into());
    };
    let tensor = ir::HostTensor { dtype: to, ..tensor };
    Ok(vec![node.build.of_constant(None, tensor)])
}

fn cast(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let to = node.int("to")?;
    let to = dtype_of(node.required("to", to)?)?;
    let x = node.input(0)?;
    Ok(vec![cast_to(node, x, to)?])
}

/// Casts to FP8 saturate unless the attribute says otherwise; the `ir`'s does so for `f8e4m3fn` alone.
pub(super) fn cast_to(node: &mut Node<'_>, mut x: Val, to: DType) -> Step<Val> {
    let largest = match to {
        DType::F8E4M3FN => 448.0,
        DType::F8E4M3FNUZ => 240.0,
        DType::F8E5M2 | DType::F8E5M2FNUZ => 57344.0,
        _ => return node.cast(x, to),
    };
    let saturate = node.int_or("saturate", 1)? != 0;
    if node.dtype(x).is_float() && node.dtype(x).bits() == 8 {
        x = node.cast(x, DType::F32)?;
    }
    if !saturate && to == DType::F8E4M3FN && node.dtype(x).is_float() {
        // What rounds to more than the largest number is none: 464 is half way to what would be the next.
        let size = node.unary(UnaryOp::Abs, x)?;
        let beyond = node.with_scalar(BinaryOp::Gt, size, 464.0)?;
        let none = node.scalar(node.dtype(x), f64::NAN);
        x = node.select(beyond, none, x)?;
    }
    if saturate && to != DType::F8E4M3FN && node.dtype(x).is_float() {
        x = node.with_scalar(BinaryOp::Max, x, -largest)?;
        x = node.with_scalar(BinaryOp::Min, x, largest)?;
    }
    node.cast(x, to)
}

fn cast_like(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, like) = (node.input(0)?, node.input(1)?);
    let to = node.dtype(like);
    Ok(vec![cast_to(node, x, to)?])
}

/// Bounds are attributes before opset 11 and inputs since. Where they cross, the upper one wins.
fn clip(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let mut x = node.input(0)?;
    let dtype = node.dtype(x);
    let (low, high) = if node.opset < 11 {
        let (low, high) = (node.float("min")?, node.float("max")?);
        (low.map(|v| node.scalar(dtype, v)), high.map(|v| node.scalar(dtype, v)))
    } else {
        (node.optional(1), node.optional(2))
    };
    for (index, bound) in [(1, low), (2, high)] {
        if let Some(bound) = bound
            && node.ty(bound).elements() != 1
        {
            let found = node.shape(bound);
            return Err(NodeProblem::Rank {
                index,
                found,
                expected: "0".to_owned(),
            }
            .into());
        }
    }
    if let Some(low) = low {
        let low = node.reshape(low, ir::Shape::SCALAR)?;
        x = node.binary(BinaryOp::Max, x, low)?;
    }
    if let Some(high) = high {
        let high = node.reshape(high, ir::Shape::SCALAR)?;
        x = node.binary(BinaryOp::Min, x, high)?;
    }
    Ok(vec![x])
}

fn is_inf(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let (negative, positive) = (
        node.int_or("detect_negative", 1)? != 0,
        node.int_or("detect_positive", 1)? != 0,
    );
    let result = match (negative, positive) {
        (true, true) => node.unary(UnaryOp::IsInf, x)?,
        (true, false) => node.with_scalar(BinaryOp::Eq, x, f64::NEG_INFINITY)?,
        (false, true) => node.with_scalar(BinaryOp::Eq, x, f64::INFINITY)?,
        (false, false) => {
            let none = node.known(Known {
                dtype: DType::Bool,
                shape: Vec::new(),
                elements: vec![false.into()],
            });
            let shape = node.shape(x);
            node.broadcast(none, shape)?
        }
    };
    Ok(vec![result])
}

fn choose(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (condition, yes, no) = (node.input(0)?, node.input(1)?, node.input(2)?);
    Ok(vec![node.select(condition, yes, no)?])
}
