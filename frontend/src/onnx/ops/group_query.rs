//! `GroupQueryAttention` of ONNX Runtime's domain: what its exports of today's language models consist of.
//!
//! Of a sequence, `n = seqlens_k + 1` positions are there after the step; the step's `S` rows are its last ones, so
//! that `max(n − S, 0)` came before (a first prompt that is shorter than `S` is padded behind its end). The rows go
//! into the cache at these positions; what is behind position `n` is unspecified. The cache that is given back is as
//! long as the longer of the given one and `total_sequence_length`. So a cache with room (a given length that is known
//! to be at least the total) is updated where it lies, and one without grows.

use ir::op::{BinaryOp, Composite, Op, Scatter};
use ir::{DType, Dim, Scalar};

use super::attention::{
    Scoring, attend, both, four, given_cache, heads_first, join_heads, lengthened, positions, scale_of, split_heads,
};
use super::rotary::turn;
use super::{Row, microsoft};
use crate::onnx::builder::Val;
use crate::onnx::error::{NodeProblem, Step};
use crate::onnx::known::Known;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[microsoft("GroupQueryAttention", group_query)];

const ATTRIBUTES: [&str; 17] = [
    "causal",
    "do_rotary",
    "k_norm_epsilon",
    "k_quant_type",
    "kv_cache_bit_width",
    "kv_num_heads",
    "local_window_size",
    "num_heads",
    "q_norm_epsilon",
    "qk_norm_epsilon",
    "qk_output",
    "rotary_interleaved",
    "scale",
    "sliding_window_cache",
    "smooth_softmax",
    "softcap",
    "v_quant_type",
];

// Its inputs.
const PAST: [usize; 2] = [3, 4];
const SEQLENS_K: usize = 5;
const TOTAL: usize = 6;
const TABLES: [usize; 2] = [7, 8];
const POSITIONS: usize = 9;
const BIAS: usize = 10;
const SINK: usize = 11;
const NORMS: [usize; 2] = [14, 15];
const QUERY_SEQLENS: usize = 16;

/// Refuses what the op may ask for and is not there.
fn check(node: &Node<'_>) -> Step<()> {
    if let Some((name, _)) = node.attributes.iter().find(|(name, _)| !ATTRIBUTES.contains(name)) {
        return node.unsupported(format!("the attribute {name} of GroupQueryAttention"));
    }
    for name in ["k_quant_type", "v_quant_type"] {
        let kind = node.text(name, "NONE")?;
        if kind != "NONE" {
            return node.bad(name, kind, "\"NONE\"; export the cache in the model's own float type");
        }
    }
    for (index, name) in [(12, "k_scale"), (13, "v_scale")] {
        if node.optional(index).is_some() {
            return node.unsupported(format!(
                "GroupQueryAttention with {name}, a cache of integers; export the cache in the model's own float type"
            ));
        }
    }
    if node.int_or("sliding_window_cache", 0)? != 0 {
        return node.bad(
            "sliding_window_cache",
            1,
            "0: a cache of all positions; local_window_size alone hides the others",
        );
    }
    if node.int_or("qk_output", 0)? != 0 || node.wants(3) {
        return node.unsupported("GroupQueryAttention with qk_output; export it without the scores");
    }
    Ok(())
}

/// Queries, keys and values as `[B, S, H, D]`.
fn operands(node: &mut Node<'_>, heads: i64, kv_heads: i64) -> Step<[Val; 3]> {
    let query = node.input(0)?;
    match (node.optional(1), node.optional(2)) {
        (Some(key), Some(value)) => Ok([
            split_heads(node, 0, query, "num_heads", heads)?,
            split_heads(node, 1, key, "kv_num_heads", kv_heads)?,
            split_heads(node, 2, value, "kv_num_heads", kv_heads)?,
        ]),
        (None, None) => {
            let all = split_heads(node, 0, query, "num_heads", heads + 2 * kv_heads)?;
            Ok([
                node.slice_axis(all, 2, 0i64, heads)?,
                node.slice_axis(all, 2, heads, kv_heads)?,
                node.slice_axis(all, 2, heads + kv_heads, kv_heads)?,
            ])
        }
        (key, _) => Err(NodeProblem::MissingInput {
            index: if key.is_some() { 2 } else { 1 },
        }
        .into()),
    }
}

/// Normalises queries and keys, each row of a head by its root mean square, where the node has gains for that.
fn normalised(node: &mut Node<'_>, [q, k]: [Val; 2]) -> Step<[Val; 2]> {
    let default = node.float_or("qk_norm_epsilon", f64::from(1e-6f32))?;
    let mut results = [q, k];
    for (result, (gain, name)) in results
        .iter_mut()
        .zip(NORMS.into_iter().zip(["q_norm_epsilon", "k_norm_epsilon"]))
    {
        let (Some(_), Some(_)) = (node.optional(NORMS[0]), node.optional(NORMS[1])) else {
            return match node.optional(NORMS[0]).or(node.optional(NORMS[1])) {
                None => Ok([q, k]),
                Some(_) => Err(NodeProblem::MissingInput {
                    index: if node.optional(NORMS[0]).is_some() {
                        NORMS[1]
                    } else {
                        NORMS[0]
                    },
                }
                .into()),
            };
        };
        let epsilon = Scalar::Float(node.float_or(name, default)?);
        let gain = node.input(gain)?;
        *result = node.composite(Composite::RmsNorm { axis: 3, epsilon }, &[*result, gain])?;
    }
    Ok(results)
}

/// How many positions of each sequence were there before the step, `i64[B, 1, 1, 1]`, and how many are after it.
fn lengths(node: &mut Node<'_>, batch: &Dim, rows: &Dim) -> Step<[Val; 2]> {
    let each = |node: &mut Node<'_>, index: usize| {
        let value = node.input(index)?;
        let value = node.cast(value, DType::I64)?;
        node.reshape(value, [batch.clone(), 1.into(), 1.into(), 1.into()])
    };
    let last = each(node, SEQLENS_K)?;
    let one = node.int_scalar(DType::I64, 1);
    let after = node.binary(BinaryOp::Add, last, one)?;
    if node.optional(QUERY_SEQLENS).is_some() {
        let own = each(node, QUERY_SEQLENS)?;
        return Ok([node.binary(BinaryOp::Sub, after, own)?, after]);
    }
    let rows = node.known(Known::scalar(rows.clone()));
    let before = node.binary(BinaryOp::Sub, after, rows)?;
    let zero = node.int_scalar(DType::I64, 0);
    Ok([node.binary(BinaryOp::Max, before, zero)?, after])
}

/// How many positions the cache lacks after the step, of `past` that it has: its length is then the longer of `past`
/// and the total.
///
/// A total that depends on data says nothing of sizes. A given length that is a number is then taken for the room that
/// there is, and any other grows by the step's rows; a run whose total needs more fails.
fn lacking(node: &mut Node<'_>, past: &Dim, rows: &Dim) -> Step<Dim> {
    let given = node.input(TOTAL)?;
    let total = node.build.known(given).and_then(|known| known.dims());
    let more = match (total.as_deref(), past.as_const()) {
        (Some([total]), _) => return Ok(node.build.sizes.max(&(total - past), &Dim::Const(0))),
        (Some(_), _) => return node.rank_error(TOTAL, "0: one number"),
        (None, Some(_)) => Dim::Const(0),
        (None, None) => rows.clone(),
    };
    let room = past.clone() + more.clone();
    let message = format!("total_sequence_length is more than the {room} positions that the cache has room for");
    let room = node.known(Known::scalar(room));
    let total = node.cast(given, DType::I64)?;
    let fits = node.binary(BinaryOp::Le, total, room)?;
    node.require(fits, message)?;
    Ok(more)
}

/// Writes new rows of keys or values `[B, H, S, D]` into a cache, made longer by `more`, at positions `[B, 1, S, 1]`.
fn stored(node: &mut Node<'_>, past: Val, more: &Dim, at: Val, new: Val) -> Step<Val> {
    let (left, right) = (node.dtype(past), node.dtype(new));
    if left != right {
        return Err(NodeProblem::TypesDiffer { left, right }.into());
    }
    let (have, rows) = (node.shape(past), node.shape(new));
    for axis in [0, 1, 3] {
        node.build.require_equal(&have[axis], &rows[axis])?;
    }
    let room = lengthened(node, past, 2, more.clone(), Scalar::Float(0.0))?;
    let at = node.broadcast(at, rows)?;
    node.add(
        Op::Scatter(Scatter::Elements { axis: 2, reduce: None }),
        &[room, at, new],
    )
}

/// What is added to the scores, as wide as the cache: its last columns are of positions that nobody sees.
fn added(node: &mut Node<'_>, keys: &Dim) -> Step<Option<Val>> {
    let Some(bias) = node.optional(BIAS) else {
        return Ok(None);
    };
    let [_, _, _, columns] = four(node, BIAS, &node.shape(bias))?;
    let more = keys.clone() - columns;
    if node.build.sizes.at_least(&more, 0) {
        return Ok(Some(lengthened(node, bias, 3, more, Scalar::Float(0.0))?));
    }
    let long = lengthened(node, bias, 3, keys.clone(), Scalar::Float(0.0))?;
    Ok(Some(node.slice_axis(long, 3, 0i64, keys.clone())?))
}

/// Attention of few heads of keys to many of queries, with its cache and the rotation of positions.
fn group_query(node: &mut Node<'_>) -> Step<Vec<Val>> {
    check(node)?;
    let (heads, kv_heads) = (node.int("num_heads")?, node.int("kv_num_heads")?);
    let (heads, kv_heads) = (
        node.required("num_heads", heads)?,
        node.required("kv_num_heads", kv_heads)?,
    );
    if !(1..1 << 20).contains(&heads) {
        return node.bad("num_heads", heads, "from 1 to 2^20");
    }
    if !(1..=heads).contains(&kv_heads) || heads % kv_heads != 0 {
        return node.bad("kv_num_heads", kv_heads, format!("a divisor of num_heads, {heads}"));
    }
    node.require_float(0)?;
    let [q, k, v] = operands(node, heads, kv_heads)?;
    let [mut q, mut k] = normalised(node, [q, k])?;
    let [batch, rows, _, size] = four(node, 0, &node.shape(q))?;
    let (past, room) = given_cache(node, PAST)?;
    let grows = past.is_some() && !room.is(0);
    let [start, end] = lengths(node, &batch, &rows)?;
    let start = match grows {
        true => start,
        false => node.int_scalar(DType::I64, 0),
    };
    if node.flag("do_rotary")? {
        [q, k] = rotated(node, [q, k], start)?;
    }
    let (q, k, v) = (heads_first(node, q)?, heads_first(node, k)?, heads_first(node, v)?);
    let (k, v) = match past.filter(|_| grows) {
        None => (k, v),
        Some([past_k, past_v]) => {
            let more = lacking(node, &room, &rows)?;
            let row = node.iota([rows.clone()].into(), 0, DType::I64)?;
            let row = node.reshape(row, [rows.clone(), 1.into()])?;
            let at = node.binary(BinaryOp::Add, row, start)?;
            (stored(node, past_k, &more, at, k)?, stored(node, past_v, &more, at, v)?)
        }
    };
    let keys = node.shape(k)[2].clone();
    let mut scoring = Scoring::new(scale_of(node, &size, Some(0.0))?);
    scoring.softcap = node.float_or("softcap", 0.0)?;
    scoring.added = added(node, &keys)?;
    scoring.sink = match node.optional(SINK) {
        Some(sink) => Some(node.reshape(sink, [1.into(), Dim::Const(heads), 1.into(), 1.into()])?),
        None if node.int_or("smooth_softmax", 0)? == 1 => {
            let zero = node.scalar(node.dtype(q), 0.0);
            Some(node.reshape(zero, vec![Dim::Const(1); 4])?)
        }
        None => None,
    };
    scoring.seen = Some(seen(node, [&rows, &keys], [start, end])?);
    let result = attend(node, [q, k, v], &scoring)?;
    Ok(vec![join_heads(node, result)?, k, v])
}

/// Queries and keys `[B, S, H, D]` turned by the tables' angles of their positions.
fn rotated(node: &mut Node<'_>, heads: [Val; 2], start: Val) -> Step<[Val; 2]> {
    let [batch, rows, _, _] = four(node, 0, &node.shape(heads[0]))?;
    let positions = match node.optional(POSITIONS) {
        Some(positions) => positions,
        None => {
            let row = node.iota([Dim::Const(1), rows].into(), 1, DType::I64)?;
            let first = match node.rank(start) {
                0 => start,
                _ => node.reshape(start, [batch, 1.into()])?,
            };
            node.binary(BinaryOp::Add, row, first)?
        }
    };
    let mut tables = [node.input(TABLES[0])?, node.input(TABLES[1])?];
    let half = match node.shape(tables[0]).0.as_slice() {
        [_, half] => half.clone(),
        _ => return node.rank_error(TABLES[0], "2"),
    };
    for table in &mut tables {
        *table = node.take(*table, 0, positions)?;
    }
    let interleaved = node.flag("rotary_interleaved")?;
    let turned = half * 2;
    let [q, k] = heads;
    Ok([
        turn(node, q, tables, &turned, interleaved)?,
        turn(node, k, tables, &turned, interleaved)?,
    ])
}

/// Which keys a query sees: those up to its own position, of a window only the last ones; without a causal mask all of
/// its sequence.
fn seen(node: &mut Node<'_>, [rows, keys]: [&Dim; 2], [start, end]: [Val; 2]) -> Step<Val> {
    let [key, position] = positions(node, rows, keys, start)?;
    let window = node.int_or("local_window_size", -1)?;
    if node.int_or("causal", 1)? == 0 {
        return match window {
            -1 => node.binary(BinaryOp::Lt, key, end),
            _ => node.bad("local_window_size", window, "-1 where causal is 0"),
        };
    }
    let seen = node.binary(BinaryOp::Le, key, position)?;
    match window {
        -1 => Ok(seen),
        1..=0x3FFF_FFFF => {
            let window = node.int_scalar(DType::I64, window);
            let distance = node.binary(BinaryOp::Sub, position, key)?;
            let near = node.binary(BinaryOp::Lt, distance, window)?;
            both(node, Some(seen), near)
        }
        _ => node.bad("local_window_size", window, "-1 for none, or from 1 to 2^30"),
    }
}
