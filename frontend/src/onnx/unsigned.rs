//! `u16`, `u32` and `u64`, which the `ir` does not have: they are computed as the wider `i32`, `i64` and `i64`.
//!
//! Before: a node some of whose tensors the model declares as one of these ([`Builder::declared`]). After: the same
//! numbers as in the declared type. Ops that move, choose or compare numbers mean the same in the wider type; sums,
//! products, inversions and shifts to the left are cut to the declared width after it (two's complement arithmetic
//! agrees in the low bits). Where there is no wider type (`u64`), a run checks that sums, differences, products and
//! shifts of two operands stay in `i64`. All other ops are refused.
//!
//! [`Builder::declared`]: super::builder::Builder::declared

use ir::DType;
use ir::op::BinaryOp;

use super::builder::Val;
use super::error::Step;
use super::node::Node;
use super::tensor::element_type;
use crate::weights::ElementType;

/// A type that is computed as a wider one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsigned {
    U16,
    U32,
    U64,
}

impl Unsigned {
    pub fn of(element: ElementType) -> Option<Unsigned> {
        match element {
            ElementType::U16 => Some(Unsigned::U16),
            ElementType::U32 => Some(Unsigned::U32),
            ElementType::U64 => Some(Unsigned::U64),
            _ => None,
        }
    }

    /// The type of an ONNX element type code.
    pub fn of_code(code: i64) -> Option<Unsigned> {
        Unsigned::of(element_type(i32::try_from(code).ok()?)?)
    }

    fn name(self) -> &'static str {
        match self {
            Unsigned::U16 => "u16",
            Unsigned::U32 => "u32",
            Unsigned::U64 => "u64",
        }
    }

    /// The width that the model declares.
    pub fn bits(self) -> u32 {
        match self {
            Unsigned::U16 => 16,
            Unsigned::U32 => 32,
            Unsigned::U64 => 64,
        }
    }

    fn dtype(self) -> DType {
        match self {
            Unsigned::U16 => DType::I32,
            Unsigned::U32 | Unsigned::U64 => DType::I64,
        }
    }

    /// The largest number, where the wider type holds it.
    fn mask(self) -> Option<i64> {
        match self {
            Unsigned::U16 => Some(0xffff),
            Unsigned::U32 => Some(0xffff_ffff),
            Unsigned::U64 => None,
        }
    }
}

/// What an op makes of numbers that are computed in a wider type.
enum Rule {
    /// Results are some of the numbers of these inputs, or no larger than they are.
    Keep(Vec<usize>),
    /// As `Keep`; the results after the first are positions or masks.
    KeepFirst(usize),
    /// Results are right modulo the width.
    Wrap(Vec<usize>),
    /// Results are of another type, and the numbers are all that counts.
    Value,
    Refuse,
}

fn rule(node: &Node<'_>) -> Step<Rule> {
    let name = node.proto.op_type.as_str();
    let own = node.proto.domain.is_empty() || node.proto.domain == "ai.onnx";
    // ONNX Runtime has these two for 16 bits, which ONNX's own had not before opset 21.
    if !own && !matches!(name, "DequantizeLinear" | "QuantizeLinear") {
        return Ok(Rule::Refuse);
    }
    let all = || (0..node.inputs.len()).collect();
    Ok(match name {
        "Abs" | "Compress" | "DepthToSpace" | "Expand" | "Flatten" | "Gather" | "GatherElements" | "GatherND"
        | "Identity" | "ReduceMax" | "ReduceMin" | "Reshape" | "ReverseSequence" | "Sign" | "Slice"
        | "SpaceToDepth" | "Split" | "Squeeze" | "Tile" | "Transpose" | "Trilu" | "Unsqueeze" => Rule::Keep(vec![0]),
        "Dropout" | "MaxPool" | "TopK" => Rule::KeepFirst(0),
        "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" | "Div" | "Mod" => Rule::Keep(vec![0, 1]),
        "Pad" => Rule::Keep(vec![0, 2]),
        "Where" => Rule::Keep(vec![1, 2]),
        "OneHot" => Rule::Keep(vec![2]),
        "Clip" | "Concat" | "Max" | "Min" => Rule::Keep(all()),
        "Scatter" | "ScatterElements" | "ScatterND" => match node.text("reduction", "none")?.as_str() {
            "none" | "max" | "min" => Rule::Keep(vec![0, 2]),
            _ => Rule::Wrap(vec![0, 2]),
        },
        "BitShift" => match node.text("direction", "")?.as_str() {
            "RIGHT" => Rule::Keep(vec![0, 1]),
            _ => Rule::Wrap(vec![0, 1]),
        },
        "BitwiseNot" | "CumSum" | "ReduceL1" | "ReduceProd" | "ReduceSum" | "ReduceSumSquare" => Rule::Wrap(vec![0]),
        "Add" | "Einsum" | "Gemm" | "MatMul" | "Mul" | "Sub" | "Sum" => Rule::Wrap(all()),
        // The base is never unsigned.
        "Pow" if node.optional(0).is_none_or(|base| node.build.declared(base).is_none()) => Rule::Value,
        "ArgMax" | "ArgMin" | "BitCast" | "Cast" | "CastLike" | "DequantizeLinear" | "Equal" | "EyeLike"
        | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "NonZero" | "QuantizeLinear" | "Shape" | "Size" => {
            Rule::Value
        }
        _ => Rule::Refuse,
    })
}

/// The type of the results that the node states itself.
fn stated(node: &Node<'_>) -> Step<Option<Unsigned>> {
    let code = match node.proto.op_type.as_str() {
        "Cast" => node.int("to")?,
        // The bits of integers, which a cast cuts or keeps.
        "BitCast" if node.optional(0).is_some_and(|x| node.dtype(x).is_int()) => node.int("to")?,
        "EyeLike" | "Bernoulli" => match node.int("dtype")? {
            Some(code) => Some(code),
            None => return Ok(node.optional(0).and_then(|x| node.build.declared(x))),
        },
        "QuantizeLinear" => match node.optional(2) {
            Some(zero) => return Ok(node.build.declared(zero)),
            None => node.int("output_dtype")?,
        },
        "CastLike" => return Ok(node.optional(1).and_then(|like| node.build.declared(like))),
        "Constant" | "ConstantOfShape" => node.tensor_type("value")?,
        _ => None,
    };
    Ok(code.and_then(Unsigned::of_code))
}

/// Imports a node by its row of the table, minding the declared types of its tensors.
pub(super) fn import(node: &mut Node<'_>, row: fn(&mut Node<'_>) -> Step<Vec<Val>>) -> Step<Vec<Val>> {
    let given: Vec<Option<Unsigned>> = (0..node.inputs.len())
        .map(|i| node.optional(i).and_then(|x| node.build.declared(x)))
        .collect();
    let stated = stated(node)?;
    if let Some(to) = stated.filter(|_| matches!(node.proto.op_type.as_str(), "Cast" | "CastLike" | "BitCast")) {
        let x = node.input(0)?;
        let result = cast(node, x, given[0], to)?;
        return Ok(vec![node.build.declare(result, Some(to))]);
    }
    let Some(first) = given.iter().flatten().next().copied() else {
        let results = row(node)?;
        return Ok(declare(node, results, stated, true));
    };
    let rule = rule(node)?;
    let (of, wraps) = match &rule {
        Rule::Keep(inputs) => (inputs.clone(), false),
        Rule::KeepFirst(input) => (vec![*input], false),
        Rule::Wrap(inputs) => (inputs.clone(), true),
        Rule::Value => {
            let results = row(node)?;
            return Ok(declare(node, results, stated, true));
        }
        Rule::Refuse => {
            let (ty, wide) = (first.name(), first.dtype());
            return node.unsupported(format!("{} of {ty} (which is computed as {wide})", node.proto.op_type));
        }
    };
    let mut types = of.iter().filter(|i| node.optional(**i).is_some()).map(|i| given[*i]);
    let ty = types.next().flatten();
    if types.any(|other| other != ty) {
        let name = |ty: &Option<Unsigned>| ty.map_or("another", Unsigned::name);
        let types: Vec<&str> = given.iter().map(name).collect();
        return node.unsupported(format!(
            "{} of operands of different types ({})",
            node.proto.op_type,
            types.join(", ")
        ));
    }
    let long = wraps && ty == Some(Unsigned::U64);
    if long && !is_checked(node) {
        return node.unsupported(format!(
            "{} of u64 (which is computed as i64: cast to a narrower type before it)",
            node.proto.op_type
        ));
    }
    let mut results = row(node)?;
    if long {
        check_long(node, results[0])?;
    }
    if let Some(mask) = ty.filter(|_| wraps).and_then(Unsigned::mask) {
        for result in &mut results {
            let mask = node.int_scalar(node.dtype(*result), mask);
            *result = node.binary(BinaryOp::And, *result, mask)?;
        }
    }
    Ok(declare(node, results, ty, !matches!(rule, Rule::KeepFirst(_))))
}

/// Says whether [`check_long`] knows when the op's result leaves `i64`.
fn is_checked(node: &Node<'_>) -> bool {
    let two = node.inputs.len() == 2;
    two && matches!(node.proto.op_type.as_str(), "Add" | "BitShift" | "Mul" | "Sub" | "Sum")
}

/// Has each run check that the result of two `u64`, each below 2^63, is there, too: a larger one has other numbers in
/// `i64`.
fn check_long(node: &mut Node<'_>, result: Val) -> Step<()> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    let zero = node.int_scalar(DType::I64, 0);
    let mut fits = node.binary(BinaryOp::Ge, result, zero)?;
    match node.proto.op_type.as_str() {
        "Mul" => {
            let back = node.binary(BinaryOp::Div, result, a)?;
            let same = node.binary(BinaryOp::Eq, back, b)?;
            let none = node.binary(BinaryOp::Eq, a, zero)?;
            let same = node.binary(BinaryOp::Or, same, none)?;
            fits = node.binary(BinaryOp::And, fits, same)?;
        }
        "BitShift" => {
            let back = node.binary(BinaryOp::Shr, result, b)?;
            let same = node.binary(BinaryOp::Eq, back, a)?;
            fits = node.binary(BinaryOp::And, fits, same)?;
        }
        _ => {}
    }
    let message = format!(
        "{}: a result of u64 leaves 0 to 2^63 - 1, in which it is computed",
        node.origin
    );
    node.require(fits, message)
}

fn declare(node: &mut Node<'_>, mut results: Vec<Val>, ty: Option<Unsigned>, all: bool) -> Vec<Val> {
    for (i, result) in results.iter_mut().enumerate() {
        let is = ty.filter(|ty| (all || i == 0) && node.dtype(*result) == ty.dtype());
        *result = node.build.declare(*result, is);
    }
    results
}

/// Has each run check that floats are numbers of `u64` below 2^63 once their fractions are cut off.
fn check_float(node: &mut Node<'_>, x: Val) -> Step<()> {
    let above = node.with_scalar(BinaryOp::Gt, x, -1.0)?;
    let below = node.with_scalar(BinaryOp::Lt, x, 2f64.powi(63))?;
    let fits = node.binary(BinaryOp::And, above, below)?;
    let message = format!(
        "{}: a float that is cast to u64 leaves 0 to 2^63 - 1, in which u64 is computed",
        node.origin
    );
    node.require(fits, message)
}

/// Casts as two's complement numbers are: what the width does not hold is cut off. A float is first made an `i64`, as
/// processors do it; ONNX leaves open what becomes of one that does not fit. A run checks that a `u64` that is made of
/// one is in `i64`.
fn cast(node: &mut Node<'_>, mut x: Val, from: Option<Unsigned>, to: Unsigned) -> Step<Val> {
    let dtype = node.dtype(x);
    if dtype.is_float() {
        if to == Unsigned::U64 {
            check_float(node, x)?;
        }
        x = node.cast(x, DType::I64)?;
    }
    let fits = match (from, to) {
        (Some(from), to) => from as u8 <= to as u8,
        (None, _) => matches!(dtype, DType::Bool | DType::U8 | DType::U4),
    };
    if fits {
        return node.cast(x, to.dtype());
    }
    let Some(mask) = to.mask() else {
        // Numbers from nowhere below 0 stay as they are.
        let known = node.build.known(x).and_then(|k| k.dims());
        if dtype.is_float() || known.is_some_and(|dims| dims.iter().all(|d| node.build.sizes.at_least(d, 0))) {
            return node.cast(x, to.dtype());
        }
        let zero = node.int_scalar(dtype, 0);
        let fits = node.binary(BinaryOp::Ge, x, zero)?;
        let message = format!(
            "{}: a number below 0 that is cast to u64 leaves 0 to 2^63 - 1, in which u64 is computed",
            node.origin
        );
        node.require(fits, message)?;
        return node.cast(x, to.dtype());
    };
    // The wider of the two holds the mask.
    if node.dtype(x).bits() < to.dtype().bits() {
        x = node.cast(x, to.dtype())?;
    }
    let mask = node.int_scalar(node.dtype(x), mask);
    x = node.binary(BinaryOp::And, x, mask)?;
    node.cast(x, to.dtype())
}
