//! ONNX Runtime's attention ops with as many heads of keys as of queries: BERT's, GPT-2's and Whisper's exports consist
//! of them.
//!
//! Their masks hide by a large negative number, `mask_filter_value`, that is added to the scores.

use ir::op::BinaryOp;
use ir::{DType, Dim, Shape};

use super::attention::{
    Scoring, appended, attend, counter, given_cache, heads_first, join_heads, positions, scale_of, spelled, split_heads,
};
use super::matmul::{integer_product, product};
use super::quant_contrib::scaled;
use super::{Row, microsoft};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::known::Known;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    microsoft("Attention", attention),
    microsoft("MultiHeadAttention", multi_head),
    microsoft("QAttention", quantised_attention),
];

const ATTRIBUTES: [&str; 4] = ["mask_filter_value", "num_heads", "scale", "unidirectional"];

/// Reads `num_heads`, and refuses attributes that are not among the op's or ask for what is not there.
fn heads_of(node: &Node<'_>, op: &str, own: &[&str]) -> Step<i64> {
    let unused = ["do_rotary", "past_present_share_buffer"];
    for name in unused {
        if node.int_or(name, 0)? != 0 {
            return node.unsupported(format!(
                "{op} with {name} = 1; export it with RotaryEmbedding nodes and without shared buffers"
            ));
        }
    }
    let known = |name: &&str| ATTRIBUTES.contains(name) || unused.contains(name) || own.contains(name);
    if let Some((name, _)) = node.attributes.iter().find(|(name, _)| !known(name)) {
        return node.unsupported(format!("the attribute {name} of {op}"));
    }
    let heads = node.int("num_heads")?;
    let heads = node.required("num_heads", heads)?;
    match (1..1 << 20).contains(&heads) {
        true => Ok(heads),
        false => node.bad("num_heads", heads, "from 1 to 2^20"),
    }
}

/// Which keys queries see, by positions and by what the inputs `mask` and `bias` say; `past` keys were there before.
fn scoring(node: &mut Node<'_>, [q, k]: [Val; 2], past: &Dim, mask: usize, bias: usize) -> Step<Scoring> {
    let (queries, keys) = (node.shape(q), node.shape(k));
    let (rows, total) = (queries[2].clone(), keys[2].clone());
    let mut scoring = Scoring::new(scale_of(node, &queries[3], Some(0.0))?);
    if node.flag("unidirectional")? {
        match past.clone() + rows.clone() == total {
            true => scoring.causal = true,
            false => {
                let start = node.known(Known::scalar(past.clone()));
                let [key, position] = positions(node, &rows, &total, start)?;
                scoring.seen = Some(node.binary(BinaryOp::Le, key, position)?);
            }
        }
    }
    let dtype = node.dtype(q);
    let mask = match node.optional(mask) {
        Some(given) => Some(added_mask(node, (mask, given), &queries[0], [&rows, &total], dtype)?),
        None => None,
    };
    let bias = match node.optional(bias) {
        Some(given) => {
            if node.rank(given) != 4 {
                return node.rank_error(bias, "4");
            }
            let full = Shape(vec![
                queries[0].clone(),
                queries[1].clone(),
                rows.clone(),
                total.clone(),
            ]);
            let shape = node.shape(given);
            node.build.broadcast(&shape, &full)?;
            Some(node.cast(given, dtype)?)
        }
        None => None,
    };
    scoring.added = match (mask, bias) {
        (Some(mask), Some(bias)) => Some(node.binary(BinaryOp::Add, mask, bias)?),
        (mask, bias) => mask.or(bias),
    };
    Ok(scoring)
}

/// A mask as numbers to add to scores `[B, H, S, T]`.
///
/// It is one of lengths (`[B]`, or the first of `[3·B + 2]`), of ends and then starts `[2·B]`, of positions `[B, T]` or
/// of pairs `[B, S, T]`.
fn added_mask(
    node: &mut Node<'_>,
    (index, mask): (usize, Val),
    batch: &Dim,
    [rows, total]: [&Dim; 2],
    dtype: DType,
) -> Step<Val> {
    let hidden = node.float_or("mask_filter_value", -10000.0)?;
    let shape = node.shape(mask);
    let mask = node.cast(mask, DType::I64)?;
    let one = Dim::Const(1);
    let part = |node: &mut Node<'_>, from: &Dim| {
        let part = node.slice_axis(mask, 0, from.clone(), batch.clone())?;
        node.reshape(part, [batch.clone(), one.clone(), one.clone(), one.clone()])
    };
    // A count of its own name is that of lengths.
    if let [count] = &shape[..]
        && count.as_symbol().is_some()
    {
        node.build.require_equal(count, batch)?;
    }
    let seen = match &shape[..] {
        [count] if count == batch || *count == batch.clone() * 3 + 2 || *count == batch.clone() * 2 => {
            let end = part(node, &Dim::Const(0))?;
            let position = counter(node, [total.clone()], 0)?;
            let seen = node.binary(BinaryOp::Lt, position, end)?;
            match *count == batch.clone() * 2 {
                true => {
                    let start = part(node, batch)?;
                    let begun = node.binary(BinaryOp::Ge, position, start)?;
                    node.binary(BinaryOp::And, seen, begun)?
                }
                false => seen,
            }
        }
        [_, keys] | [_, _, keys] => {
            node.build.require_equal(keys, total)?;
            node.build.require_equal(&shape[0], batch)?;
            let queries = match &shape[..] {
                [_, queries, _] => {
                    node.build.require_equal(queries, rows)?;
                    rows.clone()
                }
                _ => one.clone(),
            };
            let seen = node.with_scalar(BinaryOp::Gt, mask, 0.0)?;
            node.reshape(seen, [batch.clone(), one.clone(), queries, total.clone()])?
        }
        _ => {
            return node.rank_error(
                index,
                format!(
                    "1 with n, 2·n or 3·n + 2 elements of n = {batch} sequences (fix the batch where it varies), or 2 or 3 \
                     with {total} last"
                ),
            );
        }
    };
    let (zero, hidden) = (node.scalar(dtype, 0.0), node.scalar(dtype, hidden));
    node.select(seen, zero, hidden)
}

/// `projection(x)` of the widths of queries, keys and values, with a bias.
fn attention(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let heads = heads_of(node, "Attention", &["qkv_hidden_sizes", "rotary_embedding_dim"])?;
    let (x, weights) = (node.input(0)?, node.input(1)?);
    let dtype = node.require_float(0)?;
    let mut all = product(node, x, weights, (false, false), dtype)?;
    if let Some(bias) = node.optional(2) {
        all = node.binary(BinaryOp::Add, all, bias)?;
    }
    let widths = match node.ints("qkv_hidden_sizes")? {
        Some(widths) => match <[i64; 3]>::try_from(widths) {
            Ok(widths) if widths.iter().all(|w| (1..1 << 31).contains(w)) => Some(widths),
            Ok(widths) => return node.bad("qkv_hidden_sizes", widths, "three sizes of at least 1"),
            Err(widths) => return node.bad("qkv_hidden_sizes", widths, "three sizes of at least 1"),
        },
        None => None,
    };
    self_attention(node, all, heads, widths, [3, 4, 5])
}

/// Self-attention whose projection of `[B, S, W]` to queries, keys and values is quantised.
fn quantised_attention(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let heads = heads_of(node, "QAttention", &[])?;
    let (x, weight, bias) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let (x_scale, weight_scale) = (node.input(3)?, node.input(4)?);
    let sum = integer_product(node, (x, node.optional(6)), (weight, node.optional(7)))?;
    let all = scaled(node, sum, x_scale, weight_scale, Some(bias))?;
    self_attention(node, all, heads, None, [5, 8, usize::MAX])
}

/// Attention of the queries, keys and values that lie side by side in `[B, S, W]`, a third of it each where no widths
/// are given.
///
/// The inputs are those of the mask, of the past keys and values `[2, B, H, P, D]`, and of what is added to the scores.
fn self_attention(
    node: &mut Node<'_>,
    all: Val,
    heads: i64,
    widths: Option<[i64; 3]>,
    [mask, past, bias]: [usize; 3],
) -> Step<Vec<Val>> {
    let Ok([batch, _, wide]) = <[Dim; 3]>::try_from(node.shape(all).0) else {
        return node.rank_error(0, "3");
    };
    let third = wide.as_const().filter(|wide| wide % 3 == 0).map(|wide| [wide / 3; 3]);
    let Some(widths) = widths.or(third) else {
        return node.bad("num_heads", heads, format!("a divisor of a third of {wide}"));
    };
    node.build.require_equal(&wide, &Dim::Const(widths.iter().sum()))?;
    if let Some(width) = widths.iter().find(|width| **width % heads != 0) {
        return node.bad("num_heads", heads, format!("a divisor of {width}"));
    }
    let mut at = 0;
    let mut parts = Vec::with_capacity(3);
    for width in widths {
        let part = node.slice_axis(all, 2, at, width)?;
        let part = split_heads(node, 0, part, "num_heads", heads)?;
        parts.push(heads_first(node, part)?);
        at += width;
    }
    let [q, mut k, mut v] = parts[..] else {
        return node.rank_error(0, "3");
    };
    let mut before = Dim::Const(0);
    if let Some(given) = node.optional(past) {
        let mut dims = node.shape(given).0;
        if dims.len() != 5 || !dims[0].is(2) {
            return node.rank_error(past, "5, the first axis of 2 elements");
        }
        dims.remove(0);
        node.build.require_equal(&dims[0], &batch)?;
        before = dims[2].clone();
        node.build.allow_empty(&before)?;
        for (at, new) in [(0i64, &mut k), (1, &mut v)] {
            let old = node.slice_axis(given, 0, at, 1i64)?;
            let old = node.reshape(old, dims.clone())?;
            *new = node.concat(&[old, *new], 2)?;
        }
    }
    let scoring = scoring(node, [q, k], &before, mask, bias)?;
    let result = attend(node, [q, k, v], &scoring)?;
    let mut results = vec![join_heads(node, result)?];
    if node.wants(1) {
        let pair = |node: &mut Node<'_>, value: Val| {
            let mut pair = node.shape(value).0;
            pair.insert(0, Dim::Const(1));
            node.reshape(value, pair)
        };
        let (k, v) = (pair(node, k)?, pair(node, v)?);
        results.push(node.concat(&[k, v], 0)?);
    }
    Ok(results)
}

/// One of the values that a tensor `[B, S, H, n, D]` has side by side, as `[B, S, H, D]`.
fn packed_part(node: &mut Node<'_>, packed: Val, at: i64) -> Step<Val> {
    let mut dims = node.shape(packed).0;
    dims.remove(3);
    let part = node.slice_axis(packed, 3, at, 1i64)?;
    node.reshape(part, dims)
}

/// The inputs' queries, keys and values as `[B, H, S, D]`. Each part of the bias belongs to one of them; keys and
/// values that come as `[B, H, S, D]`, projected before, have theirs already.
fn multi_head_operands(node: &mut Node<'_>, heads: i64) -> Step<[Val; 3]> {
    let (query, key, value) = (node.input(0)?, node.optional(1), node.optional(2));
    let is_packed = |node: &Node<'_>, index: usize, value: Val, parts: i64| {
        let shape = node.shape(value);
        match shape.rank() == 5 && shape[2].is(heads) && shape[3].is(parts) {
            true => Ok(()),
            false => node.rank_error(
                index,
                format!("5, [B, S, {heads}, {parts}, D], where the next input is left out"),
            ),
        }
    };
    // Those that a bias is for are `[B, S, H, D]`.
    let mut parts: Vec<(Val, bool)> = Vec::with_capacity(3);
    match (key, value) {
        (None, None) => {
            is_packed(node, 0, query, 3)?;
            for at in 0..3 {
                parts.push((packed_part(node, query, at)?, false));
            }
        }
        (None, Some(_)) => return Err(NodeProblem::MissingInput { index: 1 }.into()),
        (Some(key), None) => {
            is_packed(node, 1, key, 2)?;
            parts.push((split_heads(node, 0, query, "num_heads", heads)?, false));
            for at in 0..2 {
                parts.push((packed_part(node, key, at)?, false));
            }
        }
        (Some(key), Some(value)) => {
            for (index, given) in [query, key, value].into_iter().enumerate() {
                parts.push(match index > 0 && node.rank(given) == 4 {
                    true => (given, true),
                    false => (split_heads(node, index, given, "num_heads", heads)?, false),
                });
            }
        }
    }
    let mut from = Dim::Const(0);
    let mut operands = Vec::with_capacity(3);
    for (mut part, first) in parts {
        let shape = node.shape(part);
        let size = shape[3].clone();
        let width = size.clone() * heads;
        if let Some(bias) = node.optional(3).filter(|_| !first) {
            let bias = node.slice_axis(bias, 0, from.clone(), width.clone())?;
            let bias = node.reshape(bias, Shape(vec![Dim::Const(heads), size]))?;
            part = node.binary(BinaryOp::Add, part, bias)?;
        }
        from = from + width;
        operands.push(match first {
            true => part,
            false => heads_first(node, part)?,
        });
    }
    match operands[..] {
        [q, k, v] => Ok([q, k, v]),
        _ => node.rank_error(0, "3 or 5"),
    }
}

/// Attention of projected queries, keys and values, each `[B, S, H·D]`, packed, or `[B, H, S, D]` for the keys of
/// another sequence.
fn multi_head(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let heads = heads_of(node, "MultiHeadAttention", &[])?;
    for (index, name) in [(8, "past_sequence_length"), (9, "cache_indirection")] {
        if node.optional(index).is_some() {
            return node.unsupported(format!(
                "MultiHeadAttention with {name}; export it without shared buffers and beam search"
            ));
        }
    }
    let [q, mut k, mut v] = multi_head_operands(node, heads)?;
    let (past, before) = given_cache(node, [6, 7])?;
    (k, v) = (appended(node, past, k, 0)?, appended(node, past, v, 1)?);
    let scoring = scoring(node, [q, k], &before, 4, 5)?;
    let mut results = Vec::with_capacity(4);
    // The scores as the softmax takes them.
    let scores = match node.wants(3) {
        true => {
            let all = spelled(node, [q, k, v], &scoring)?;
            results.push(join_heads(node, all.result)?);
            Some(node.cast(all.masked, node.dtype(q))?)
        }
        false => {
            let result = attend(node, [q, k, v], &scoring)?;
            results.push(join_heads(node, result)?);
            None
        }
    };
    results.extend([k, v]);
    results.extend(scores);
    Ok(results)
}
