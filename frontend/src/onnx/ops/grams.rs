//! Counts of runs of integers (`TfIdfVectorizer`), by comparison of every run with every one of the pool.

use ir::op::{BinaryOp, ReduceOp};
use ir::{DType, Dim, HostTensor};

use super::resize::constant;
use super::{Row, op};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[op("TfIdfVectorizer", 9, vectorize)];

/// The most runs of a pool.
const POOL_LIMIT: usize = 1 << 16;

/// Runs of one length, with the columns of the result that count them.
struct Grams {
    length: usize,
    runs: Vec<i64>,
    columns: Vec<usize>,
}

fn pool(node: &Node<'_>) -> Step<Vec<Grams>> {
    if node.has("pool_strings") {
        return node.unsupported("TfIdfVectorizer of text");
    }
    let (pool, starts) = (node.ints("pool_int64s")?, node.ints("ngram_counts")?);
    let (pool, starts) = (
        node.required("pool_int64s", pool)?,
        node.required("ngram_counts", starts)?,
    );
    let columns = node.ints("ngram_indexes")?;
    let columns = node.required("ngram_indexes", columns)?;
    let mut found = Vec::new();
    let mut next = 0;
    for (at, start) in starts.iter().enumerate() {
        let (length, end) = (at + 1, starts.get(at + 1).copied().unwrap_or(pool.len() as i64));
        let part = usize::try_from(*start)
            .ok()
            .zip(usize::try_from(end).ok())
            .and_then(|(a, b)| pool.get(a..b));
        let Some(part) = part.filter(|part| part.len() % length == 0) else {
            return node.bad("ngram_counts", starts, "starts of runs of 1, 2, … numbers in the pool");
        };
        let own = columns.get(next..next + part.len() / length).unwrap_or_default();
        let own: Option<Vec<usize>> = own
            .iter()
            .map(|c| usize::try_from(*c).ok().filter(|c| *c < POOL_LIMIT))
            .collect();
        let Some(own) = own.filter(|own| own.len() == part.len() / length) else {
            return node.bad("ngram_indexes", columns, "a column for each run of the pool");
        };
        next += own.len();
        found.push(Grams {
            length,
            runs: part.to_vec(),
            columns: own,
        });
    }
    Ok(found)
}

/// How often each run is in each row, `[B, runs]`, as numbers.
fn counts(node: &mut Node<'_>, x: Val, grams: &Grams, most_skip: i64) -> Step<Option<Val>> {
    let shape = node.shape(x);
    let Some(size) = shape[1].as_const() else {
        return node.unsupported(format!(
            "TfIdfVectorizer of rows of the varying size {} (fix it with --size)",
            shape[1]
        ));
    };
    let (length, count) = (grams.length as i64, grams.columns.len());
    let skips = if length == 1 { 0 } else { most_skip };
    let mut total: Option<Val> = None;
    for step in 1..=skips + 1 {
        let places = size - (length - 1) * step;
        if places < 1 {
            break;
        }
        let mut same: Option<Val> = None;
        for k in 0..length {
            let part = node.slice_axis(x, 1, k * step, places)?;
            let part = node.reshape(part, [shape[0].clone(), Dim::Const(places), Dim::Const(1)])?;
            let wanted: Vec<i64> = grams.runs.chunks(grams.length).map(|run| run[k as usize]).collect();
            let wanted = constant(HostTensor::from_i64(DType::I64, vec![count], &wanted))?;
            let wanted = node.build.of_constant(None, wanted);
            let hit = node.binary(BinaryOp::Eq, part, wanted)?;
            same = Some(match same {
                Some(same) => node.binary(BinaryOp::And, same, hit)?,
                None => hit,
            });
        }
        let Some(same) = same else { break };
        let same = node.cast(same, DType::F32)?;
        let sum = node.reduce(ReduceOp::Sum, same, vec![1], false)?;
        total = Some(match total {
            Some(total) => node.binary(BinaryOp::Add, total, sum)?,
            None => sum,
        });
    }
    Ok(total)
}

fn vectorize(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let shape = node.shape(x);
    let x = node.cast(x, DType::I64)?;
    let (vector, rows) = match &shape[..] {
        [size] => (true, node.reshape(x, [Dim::Const(1), size.clone()])?),
        [_, _] => (false, x),
        _ => return node.rank_error(0, "1 or 2"),
    };
    let (shortest, longest) = (node.int_or("min_gram_length", 1)?, node.int_or("max_gram_length", 1)?);
    let skip = node.int_or("max_skip_count", 0)?;
    if !(0..=64).contains(&skip) {
        return node.bad("max_skip_count", skip, "from 0 to 64");
    }
    let grams = pool(node)?;
    let width = grams.iter().flat_map(|g| &g.columns).max().map_or(0, |last| last + 1);
    let batch = node.shape(rows)[0].clone();
    let zero = node.scalar(DType::F32, 0.0);
    let mut result = node.broadcast(zero, [batch, Dim::from(width)].into())?;
    for grams in &grams {
        if !(shortest..=longest).contains(&(grams.length as i64)) {
            continue;
        }
        let Some(found) = counts(node, rows, grams, skip)? else {
            continue;
        };
        // A table puts the counts into their columns.
        let mut table = vec![0.0; grams.columns.len() * width];
        for (row, column) in grams.columns.iter().enumerate() {
            table[row * width + column] = 1.0;
        }
        let table = constant(HostTensor::from_f64(
            DType::F32,
            vec![grams.columns.len(), width],
            &table,
        ))?;
        let table = node.build.of_constant(None, table);
        let placed = node.contract(found, table, false, false, DType::F32)?;
        result = node.binary(BinaryOp::Add, result, placed)?;
    }
    let mode = node.text("mode", "")?;
    if mode == "IDF" {
        let there = node.with_scalar(BinaryOp::Gt, result, 0.0)?;
        result = node.cast(there, DType::F32)?;
    }
    match mode.as_str() {
        "TF" => {}
        "IDF" | "TFIDF" => {
            if let Some(weights) = node.floats("weights")? {
                // Weights belong to runs of the pool, in its order.
                let columns: Vec<usize> = grams.iter().flat_map(|g| g.columns.iter().copied()).collect();
                let mut row = vec![1.0; width];
                columns
                    .iter()
                    .zip(&weights)
                    .for_each(|(column, weight)| row[*column] = *weight);
                let row = constant(HostTensor::from_f64(DType::F32, vec![width], &row))?;
                let row = node.build.of_constant(None, row);
                result = node.binary(BinaryOp::Mul, result, row)?;
            }
        }
        other => return node.bad("mode", other, "TF, IDF or TFIDF"),
    }
    if vector {
        result = node.reshape(result, [width as i64])?;
    }
    Ok(vec![result])
}
