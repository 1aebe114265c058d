//! The table of ONNX ops: which op in which opsets is imported by which function.
//!
//! One file per family, each with its rows. A row's function gets the node and returns its results; it writes what the
//! op means with the steps of [`Node`], and looks at `node.opset` where the meaning changed. To add an op, add a row
//! and a function.

mod activation;
mod attention;
mod attention_contrib;
mod conv;
mod einsum;
mod elementwise;
mod fused_contrib;
mod generate;
mod grams;
mod group_query;
mod index;
mod learned;
mod linear_algebra;
mod loss;
mod matmul;
mod norm;
mod pool;
mod quant;
mod quant_contrib;
mod recurrent;
mod reduce;
mod resize;
mod rotary;
mod sampling;
mod selected;
mod sequence;
mod shape;
mod signal;
mod slice;
mod state;
mod suppression;
mod unpool;

use std::collections::HashMap;
use std::ops::RangeInclusive;

use super::builder::Val;
use super::error::Step;
use super::node::Node;

/// The opsets of ONNX's default domain that are imported.
pub(super) const OPSETS: RangeInclusive<i64> = 1..=28;

/// The domain of ONNX Runtime's own ops.
const MICROSOFT: &str = "com.microsoft";

/// How one op is imported.
pub(super) struct Row {
    pub domain: &'static str,
    pub name: &'static str,
    /// The opsets in which the op exists.
    pub opsets: RangeInclusive<i64>,
    pub import: fn(&mut Node<'_>) -> Step<Vec<Val>>,
}

type Import = fn(&mut Node<'_>) -> Step<Vec<Val>>;

/// An op that exists from an opset on.
const fn op(name: &'static str, since: i64, import: Import) -> Row {
    Row {
        domain: "",
        name,
        opsets: since..=i64::MAX,
        import,
    }
}

/// An op that was withdrawn after an opset.
const fn withdrawn(name: &'static str, since: i64, last: i64, import: Import) -> Row {
    Row {
        domain: "",
        name,
        opsets: since..=last,
        import,
    }
}

/// An op of ONNX's domain of classical machine learning.
const fn learned(name: &'static str, import: Import) -> Row {
    Row {
        domain: "ai.onnx.ml",
        name,
        opsets: 1..=i64::MAX,
        import,
    }
}

/// An op of ONNX Runtime's domain.
const fn microsoft(name: &'static str, import: Import) -> Row {
    Row {
        domain: MICROSOFT,
        name,
        opsets: 1..=i64::MAX,
        import,
    }
}

const FAMILIES: [&[Row]; 32] = [
    activation::ROWS,
    attention::ROWS,
    attention_contrib::ROWS,
    conv::ROWS,
    einsum::ROWS,
    elementwise::ROWS,
    fused_contrib::ROWS,
    generate::ROWS,
    grams::ROWS,
    group_query::ROWS,
    index::ROWS,
    learned::ROWS,
    linear_algebra::ROWS,
    loss::ROWS,
    matmul::ROWS,
    norm::ROWS,
    pool::ROWS,
    quant::ROWS,
    quant_contrib::ROWS,
    recurrent::ROWS,
    reduce::ROWS,
    resize::ROWS,
    rotary::ROWS,
    sampling::ROWS,
    selected::ROWS,
    suppression::ROWS,
    sequence::ROWS,
    shape::ROWS,
    signal::ROWS,
    slice::ROWS,
    state::ROWS,
    unpool::ROWS,
];

/// The rows by domain and name.
pub(super) struct Table {
    rows: HashMap<(&'static str, &'static str), &'static Row>,
}

impl Table {
    pub fn new() -> Table {
        let rows = FAMILIES
            .iter()
            .flat_map(|rows| rows.iter())
            .map(|row| ((row.domain, row.name), row))
            .collect();
        Table { rows }
    }

    pub fn find(&self, domain: &str, name: &str, opset: i64) -> Option<&'static Row> {
        self.rows
            .get(&(domain, name))
            .copied()
            .filter(|row| row.opsets.contains(&opset))
    }

    /// Returns what is supported that looks like an unknown op: the same op in other opsets or another domain, or ops
    /// with a similar name; at most five.
    pub fn near(&self, domain: &str, name: &str) -> Vec<String> {
        let describe = |row: &Row| {
            let domain = if row.domain.is_empty() {
                String::new()
            } else {
                format!("{}.", row.domain)
            };
            match (*row.opsets.start(), *row.opsets.end()) {
                (since, i64::MAX) if row.domain == domain_or_own(&domain) && since <= *OPSETS.start() => {
                    row.name.to_owned()
                }
                (since, i64::MAX) => format!("{domain}{} (from opset {since})", row.name),
                (since, last) => format!("{domain}{} (opsets {since} to {last})", row.name),
            }
        };
        let lower = name.to_ascii_lowercase();
        let mut scored: Vec<(usize, &Row)> = FAMILIES
            .iter()
            .flat_map(|rows| rows.iter())
            .filter_map(|row| {
                let other = row.name.to_ascii_lowercase();
                let distance = edit_distance(&lower, &other);
                let inside = lower.len() >= 3 && other.len() >= 3 && (lower.contains(&other) || other.contains(&lower));
                let close = distance * 3 <= lower.len().max(other.len()) || inside;
                close.then_some((distance + usize::from(row.domain != domain), row))
            })
            .collect();
        scored.sort_by_key(|(score, row)| (*score, row.name, row.domain));
        scored.into_iter().take(5).map(|(_, row)| describe(row)).collect()
    }
}

fn domain_or_own(prefix: &str) -> &str {
    prefix.trim_end_matches('.')
}

/// Levenshtein's distance, over bytes.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (diagonal + usize::from(x != y)).min(above + 1).min(row[j] + 1);
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_has_one_row() {
        let count: usize = FAMILIES.iter().map(|rows| rows.len()).sum();
        assert_eq!(Table::new().rows.len(), count);
    }

    #[test]
    fn near_names_are_found() {
        let table = Table::new();
        assert!(table.near("", "Sofmax").contains(&"Softmax".to_owned()));
        assert!(table.near("", "Upsample").iter().any(|n| n.contains("opsets 7 to 9")));
        assert!(table.near("", "Zzzzzz").is_empty());
    }
}
