//! Scaled dot-product attention: ONNX's own op, and the steps that all attention ops share.
//!
//! Keys are seen by position where an op says so: query `i` stands at `start + i`, where `start` counts the keys that
//! were there before. A causal mask, a window and the length of each sequence become comparisons of positions, which
//! kernels read as ranges of keys.

use ir::op::{BinaryOp, Composite, Contract, Op, PadMode, ReduceOp, UnaryOp, View};
use ir::{DType, Dim, Scalar, Shape};

use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::known::Known;
use crate::onnx::node::{Node, dtype_of};

pub(super) const ROWS: &[Row] = &[op("Attention", 23, attention)];

const ATTRIBUTES: [&str; 9] = [
    "is_causal",
    "kv_num_heads",
    "left_window_size",
    "q_num_heads",
    "qk_matmul_output_mode",
    "right_window_size",
    "scale",
    "softcap",
    "softmax_precision",
];

/// How queries are scored against keys, besides what the operands say.
#[derive(Clone)]
pub(super) struct Scoring {
    /// Factor of the products.
    pub scale: f64,
    /// Scores become `softcap · tanh(score / softcap)` before they are masked; 0 leaves them.
    pub softcap: f64,
    /// Whether query `i` of `S` sees keys `0..=i + T − S` of `T`.
    pub causal: bool,
    /// Keeps scores where true; broadcasts to `[B, H, S, T]`.
    pub seen: Option<Val>,
    /// Numbers that are added to the scores; broadcasts to `[B, H, S, T]`.
    pub added: Option<Val>,
    /// The score of a key without a value, `[1, H or 1, 1, 1]`: it takes weight and gives nothing.
    pub sink: Option<Val>,
    /// The type of the softmax, where it is wider than f32.
    pub softmax: Option<DType>,
}

impl Scoring {
    /// Scores that only have a factor.
    pub fn new(scale: f64) -> Scoring {
        Scoring {
            scale,
            softcap: 0.0,
            causal: false,
            seen: None,
            added: None,
            sink: None,
            softmax: None,
        }
    }

    /// The mask that the condition and the numbers are together.
    fn mask(&self, node: &mut Node<'_>, dtype: DType) -> Step<Option<Val>> {
        let added = match self.added {
            Some(added) => Some(node.cast(added, dtype)?),
            None => None,
        };
        match (self.seen, added) {
            (Some(seen), Some(added)) => {
                let never = node.scalar(dtype, f64::NEG_INFINITY);
                Ok(Some(node.select(seen, added, never)?))
            }
            (seen, added) => Ok(seen.or(added)),
        }
    }
}

/// Attention and what it is made of, each `[B, H, S, T]` in the type of the scores; see [`spelled`].
pub(super) struct Spelled {
    pub product: Val,
    pub capped: Val,
    pub masked: Val,
    pub weights: Val,
    pub result: Val,
}

/// `softmax(scores) · v`. q is `[B, H, S, D]`, k `[B, Hkv, T, D]`, v `[B, Hkv, T, Dv]`; the result is `[B, H, S, Dv]`.
///
/// A query that sees no key is NaN; see [`zero_unless_seen`].
pub(super) fn attend(node: &mut Node<'_>, operands: [Val; 3], scoring: &Scoring) -> Step<Val> {
    if scoring.softcap != 0.0 || scoring.sink.is_some() || scoring.softmax.is_some() {
        return Ok(spelled(node, operands, scoring)?.result);
    }
    let mask = scoring.mask(node, node.dtype(operands[0]))?;
    let composite = Composite::Attention {
        scale: Scalar::Float(scoring.scale),
        causal: scoring.causal,
        mask: mask.is_some(),
        scales: false,
    };
    let operands: Vec<Val> = operands.into_iter().chain(mask).collect();
    node.composite(composite, &operands)
}

/// As [`attend`], by products and a softmax, which leaves the scores to be read.
pub(super) fn spelled(node: &mut Node<'_>, [q, k, v]: [Val; 3], scoring: &Scoring) -> Step<Spelled> {
    let dtype = node.dtype(q);
    let wide = scoring.softmax.unwrap_or(DType::F32);
    let wide = if dtype.bits() > wide.bits() { dtype } else { wide };
    let (queries, keys) = (node.shape(q), node.shape(k));
    let [batch, heads, rows, _] = four(node, 0, &queries)?;
    let [_, kv_heads, total, _] = four(node, 1, &keys)?;
    let Some(share) = heads.exact_div(&kv_heads) else {
        let (left, right) = (heads, kv_heads);
        return Err(NodeProblem::Sizes { left, right }.into());
    };
    // Queries that share keys are an axis of their own.
    let grouped = |node: &mut Node<'_>, value: Val, share: &Dim| {
        let mut dims = node.shape(value).0;
        dims.splice(1..2, [kv_heads.clone(), share.clone()]);
        node.reshape(value, dims)
    };
    let one = Dim::Const(1);
    let (q, k, v_grouped) = (
        grouped(node, q, &share)?,
        grouped(node, k, &one)?,
        grouped(node, v, &one)?,
    );
    let product = node.add(
        Op::Contract(Contract {
            transpose_lhs: false,
            transpose_rhs: true,
            out: wide,
        }),
        &[q, k],
    )?;
    let full = Shape(vec![batch.clone(), heads.clone(), rows.clone(), total.clone()]);
    let product = node.reshape(product, full.clone())?;
    let product = node.with_scalar(BinaryOp::Mul, product, scoring.scale)?;
    let mut capped = product;
    if scoring.softcap != 0.0 {
        let part = node.with_scalar(BinaryOp::Div, product, scoring.softcap)?;
        let part = node.unary(UnaryOp::Tanh, part)?;
        capped = node.with_scalar(BinaryOp::Mul, part, scoring.softcap)?;
    }
    let mut masked = capped;
    if let Some(added) = scoring.added {
        let added = node.cast(added, wide)?;
        masked = node.binary(BinaryOp::Add, masked, added)?;
    }
    let mut conditions: Vec<Val> = scoring.seen.into_iter().collect();
    if scoring.causal {
        let start = node.known(Known::scalar(total.clone() - rows.clone()));
        let [key, position] = positions(node, &rows, &total, start)?;
        conditions.push(node.binary(BinaryOp::Le, key, position)?);
    }
    for seen in conditions {
        let never = node.scalar(wide, f64::NEG_INFINITY);
        masked = node.select(seen, masked, never)?;
    }
    let softmax = Composite::Softmax { axis: 3 };
    let weights = match scoring.sink {
        None => node.composite(softmax, &[masked])?,
        Some(sink) => {
            let sink = node.cast(sink, wide)?;
            let column = node.broadcast(sink, [batch.clone(), heads.clone(), rows.clone(), one].into())?;
            let with = node.concat(&[masked, column], 3)?;
            let weights = node.composite(softmax, &[with])?;
            node.slice_axis(weights, 3, 0i64, total.clone())?
        }
    };
    let narrow = node.cast(weights, dtype)?;
    let shared = node.reshape(narrow, [batch.clone(), kv_heads, share, rows.clone(), total])?;
    let result = node.contract(shared, v_grouped, false, false, dtype)?;
    let [_, _, _, size] = four(node, 2, &node.shape(v))?;
    let result = node.reshape(result, [batch, heads, rows, size])?;
    Ok(Spelled {
        product,
        capped,
        masked,
        weights,
        result,
    })
}

/// The dims of an input of rank 4.
pub(super) fn four(node: &Node<'_>, index: usize, shape: &Shape) -> Step<[Dim; 4]> {
    match <[Dim; 4]>::try_from(shape.0.clone()) {
        Ok(dims) => Ok(dims),
        Err(_) => node.rank_error(index, "4"),
    }
}

/// Splits `[B, S, H·D]` of the input `index` into `[B, S, H, D]`.
pub(super) fn split_heads(node: &mut Node<'_>, index: usize, value: Val, name: &str, heads: i64) -> Step<Val> {
    let Ok([batch, rows, wide]) = <[Dim; 3]>::try_from(node.shape(value).0) else {
        return node.rank_error(index, "3");
    };
    let size = if heads < 1 {
        None
    } else {
        wide.exact_div(&Dim::Const(heads))
    };
    match size {
        Some(size) => node.reshape(value, [batch, rows, Dim::Const(heads), size]),
        None => node.bad(name, heads, format!("a divisor of {wide}")),
    }
}

/// Changes `[B, S, H, D]` to `[B, H, S, D]`, and back.
pub(super) fn heads_first(node: &mut Node<'_>, value: Val) -> Step<Val> {
    node.transpose(value, vec![0, 2, 1, 3])
}

/// Joins the heads of `[B, H, S, D]` to `[B, S, H·D]`.
pub(super) fn join_heads(node: &mut Node<'_>, value: Val) -> Step<Val> {
    let value = heads_first(node, value)?;
    let [batch, rows, heads, size] = four(node, 0, &node.shape(value))?;
    node.reshape(value, [batch, rows, heads * size])
}

/// The factor of the scores: the attribute, or `1/√D`. Where `unset` is a number, the attribute means by it that it is
/// left out.
pub(super) fn scale_of(node: &Node<'_>, size: &Dim, unset: Option<f64>) -> Step<f64> {
    let given = node.float("scale")?.filter(|scale| Some(*scale) != unset);
    match (given, size.as_const()) {
        (Some(scale), _) => Ok(scale),
        (None, Some(size)) => Ok(1.0 / (size as f64).sqrt()),
        (None, None) => node.unsupported(format!("attention over the varying head size {size}")),
    }
}

/// The positions along an axis, as a counter and not as a table of numbers, however few they are: so a
/// kernel knows which keys a mask leaves.
pub(super) fn counter(node: &mut Node<'_>, shape: impl Into<Shape>, axis: usize) -> Step<Val> {
    let (shape, dtype) = (shape.into(), DType::I64);
    node.add(Op::Iota { shape, axis, dtype }, &[])
}

/// The positions of keys, `[1, T]`, and those of queries, `[S, 1]` after what `start` (a scalar or `[B, 1, 1, 1]`) says
/// is before them.
pub(super) fn positions(node: &mut Node<'_>, queries: &Dim, keys: &Dim, start: Val) -> Step<[Val; 2]> {
    let row = counter(node, [queries.clone(), 1.into()], 0)?;
    let key = counter(node, [1.into(), keys.clone()], 1)?;
    Ok([key, node.binary(BinaryOp::Add, row, start)?])
}

/// Both conditions, where there are two.
pub(super) fn both(node: &mut Node<'_>, a: Option<Val>, b: Val) -> Step<Val> {
    match a {
        Some(a) => node.binary(BinaryOp::And, a, b),
        None => Ok(b),
    }
}

/// The past keys and values among the inputs, `[B, H, P, D]`, and `P`, which may be 0; both or neither are given.
pub(super) fn given_cache(node: &mut Node<'_>, inputs: [usize; 2]) -> Step<(Option<[Val; 2]>, Dim)> {
    match inputs.map(|index| node.optional(index)) {
        [None, None] => Ok((None, Dim::Const(0))),
        [Some(k), Some(v)] => {
            let before = four(node, inputs[0], &node.shape(k))?[2].clone();
            node.build.allow_empty(&before)?;
            let values = four(node, inputs[1], &node.shape(v))?[2].clone();
            node.build.require_equal(&before, &values)?;
            Ok((Some([k, v]), before))
        }
        [k, _] => Err(NodeProblem::MissingInput {
            index: inputs[usize::from(k.is_some())],
        }
        .into()),
    }
}

/// Those of a cache, its keys (0) or values (1), followed by new ones, along the axis of positions.
pub(super) fn appended(node: &mut Node<'_>, past: Option<[Val; 2]>, new: Val, which: usize) -> Step<Val> {
    match past {
        Some(past) => node.concat(&[past[which], new], 2),
        None => Ok(new),
    }
}

/// Adds `more` elements of a value behind the last along an axis; there may be none.
pub(super) fn lengthened(node: &mut Node<'_>, x: Val, axis: usize, more: Dim, value: Scalar) -> Step<Val> {
    if more.is(0) {
        return Ok(x);
    }
    if !node.build.sizes.at_least(&more, 0) {
        return Err(NodeProblem::Sign {
            what: "what a cache or mask lacks",
            dim: more,
        }
        .into());
    }
    let low = vec![Dim::Const(0); node.rank(x)];
    let mut high = low.clone();
    high[axis] = more;
    let mode = PadMode::Constant(value);
    node.add(Op::View(View::Pad { low, high, mode }), &[x])
}

/// Makes the rows of attention zero whose mask hides every key, which ONNX asks for; the softmax itself gives NaN
/// there.
///
/// A NaN in the mask hides nothing, so that it reaches the result.
fn zero_unless_seen(node: &mut Node<'_>, result: Val, mask: Val) -> Step<Val> {
    let Some(keys) = node.rank(mask).checked_sub(1) else {
        return node.rank_error(3, "1 to 4");
    };
    let seen = match node.dtype(mask) {
        DType::Bool => mask,
        dtype => {
            let never = node.scalar(dtype, f64::NEG_INFINITY);
            node.binary(BinaryOp::Ne, mask, never)?
        }
    };
    let seen = node.reduce(ReduceOp::Any, seen, vec![keys], true)?;
    let zero = node.scalar(node.dtype(result), 0.0);
    node.select(seen, result, zero)
}

/// The mask of ONNX's op for scores `full`, of which it may leave the last keys out.
fn given_mask(node: &mut Node<'_>, full: &Shape) -> Step<Option<Val>> {
    let Some(mask) = node.optional(3) else { return Ok(None) };
    let Some(last) = node.shape(mask).last().cloned() else {
        return node.rank_error(3, "1 to 4");
    };
    let more = full[3].clone() - last.clone();
    if last.is(1) || !node.build.sizes.at_least(&more, 1) {
        let shape = node.shape(mask);
        node.build.broadcast(&shape, full)?;
        return Ok(Some(mask));
    }
    let hidden = match node.dtype(mask) {
        DType::Bool => Scalar::Bool(false),
        _ => Scalar::Float(f64::NEG_INFINITY),
    };
    let axis = node.rank(mask) - 1;
    Ok(Some(lengthened(node, mask, axis, more, hidden)?))
}

/// A window's bound, `None` where there is none.
fn window(node: &Node<'_>, name: &str) -> Step<Option<i64>> {
    match node.int_or(name, -1)? {
        -1 => Ok(None),
        size if (0..1 << 30).contains(&size) => Ok(Some(size)),
        size => node.bad(name, size, "-1 for no window, or from 0 to 2^30"),
    }
}

/// Queries, keys and values as `[B, H, S, D]`, and whether they were given as `[B, S, H·D]`.
fn operands(node: &mut Node<'_>) -> Step<([Val; 3], bool)> {
    let given = [node.input(0)?, node.input(1)?, node.input(2)?];
    if node.rank(given[0]) != 3 {
        if let Some(index) = given.iter().position(|v| node.rank(*v) != 4) {
            return node.rank_error(index, "4, or 3 for all of query, key and value");
        }
        return Ok((given, false));
    }
    let mut split = given;
    for (index, value) in split.iter_mut().enumerate() {
        let name = if index == 0 { "q_num_heads" } else { "kv_num_heads" };
        let heads = node.int(name)?;
        let heads = node.required(name, heads)?;
        let four = split_heads(node, index, *value, name, heads)?;
        *value = heads_first(node, four)?;
    }
    Ok((split, true))
}

/// Scaled dot-product attention, with a cache that grows or one of a fixed length. A row that sees no key is zero.
/// Operands of rank 3, `[B, S, H·D]`, are split into heads.
fn attention(node: &mut Node<'_>) -> Step<Vec<Val>> {
    if let Some((name, _)) = node.attributes.iter().find(|(n, _)| !ATTRIBUTES.contains(n)) {
        return node.unsupported(format!("the attribute {name} of Attention"));
    }
    let ([q, k, v], flat) = operands(node)?;
    let (queries, size) = (node.shape(q)[2].clone(), node.shape(q)[3].clone());
    let (past, before) = given_cache(node, [4, 5])?;
    let (k, v) = (appended(node, past, k, 0)?, appended(node, past, v, 1)?);
    let keys = node.shape(k)[2].clone();
    let mut scoring = Scoring::new(scale_of(node, &size, None)?);
    scoring.softcap = node.float_or("softcap", 0.0)?;
    scoring.softmax = match node.int("softmax_precision")? {
        Some(code) => Some(dtype_of(code)?).filter(|dtype| dtype.is_float() && dtype.bits() > 32),
        None => None,
    };
    let lengths = match node.optional(6) {
        Some(_) if past.is_some() => return node.unsupported("Attention with both past_key and nonpad_kv_seqlen"),
        Some(lengths) => {
            let lengths = node.cast(lengths, DType::I64)?;
            let batch = node.shape(q)[0].clone();
            Some(node.reshape(lengths, [batch, 1.into(), 1.into(), 1.into()])?)
        }
        None => None,
    };
    let causal = node.flag("is_causal")?;
    let (left, right) = (window(node, "left_window_size")?, window(node, "right_window_size")?);
    let (batch, heads) = (node.shape(q)[0].clone(), node.shape(q)[1].clone());
    let full = Shape(vec![batch, heads, queries.clone(), keys.clone()]);
    let mask = given_mask(node, &full)?;
    // The kernel's own mask ends at the last key.
    let at_end = before.clone() + queries.clone() == keys && lengths.is_none() && mask.is_none();
    scoring.causal = causal && at_end && left.is_none() && right.is_none();
    let start = match lengths {
        Some(lengths) => {
            let count = node.known(Known::scalar(queries.clone()));
            node.binary(BinaryOp::Sub, lengths, count)?
        }
        None => node.known(Known::scalar(before)),
    };
    let mut seen = None;
    if !scoring.causal && (causal || left.is_some() || right.is_some() || lengths.is_some()) {
        let [key, position] = positions(node, &queries, &keys, start)?;
        if causal {
            seen = Some(node.binary(BinaryOp::Le, key, position)?);
        }
        let distance = node.binary(BinaryOp::Sub, position, key)?;
        if let Some(left) = left {
            let left = node.int_scalar(DType::I64, left);
            let near = node.binary(BinaryOp::Le, distance, left)?;
            seen = Some(both(node, seen, near)?);
        }
        if let Some(right) = right {
            let right = node.int_scalar(DType::I64, -right);
            let near = node.binary(BinaryOp::Ge, distance, right)?;
            seen = Some(both(node, seen, near)?);
        }
        if let Some(lengths) = lengths {
            let inside = node.binary(BinaryOp::Lt, key, lengths)?;
            seen = Some(both(node, seen, inside)?);
        }
    }
    match mask {
        Some(mask) if node.dtype(mask) == DType::Bool => seen = Some(both(node, seen, mask)?),
        mask => scoring.added = mask,
    }
    scoring.seen = seen;
    let mask = scoring.mask(node, node.dtype(q))?;
    let scores = match node.wants(3) {
        true => Some(spelled(node, [q, k, v], &scoring)?),
        false => None,
    };
    let mut result = match &scores {
        Some(scores) => scores.result,
        None => attend(node, [q, k, v], &scoring)?,
    };
    // Without a mask every query sees the first key.
    if let Some(mask) = mask {
        result = zero_unless_seen(node, result, mask)?;
    }
    if flat {
        result = join_heads(node, result)?;
    }
    let mut results = vec![result, k, v];
    if let Some(scores) = scores {
        let shown = match node.int_or("qk_matmul_output_mode", 0)? {
            0 => scores.product,
            1 => scores.capped,
            2 => scores.masked,
            3 => match mask {
                Some(mask) => zero_unless_seen(node, scores.weights, mask)?,
                None => scores.weights,
            },
            mode => return node.bad("qk_matmul_output_mode", mode, "0, 1, 2 or 3"),
        };
        results.push(node.cast(shown, node.dtype(q))?);
    }
    Ok(results)
}
