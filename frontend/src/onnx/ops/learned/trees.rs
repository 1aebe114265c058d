//! Ensembles of trees.

use ir::op::{BinaryOp, Gather, Op, ReduceOp, UnaryOp};
use ir::{Dim, Shape};

use super::{best_label, classes, integers, numbers, rows, transformed, two_classes};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::Node;

/// The most nodes of all trees, times the results of each.
const TABLE_LIMIT: usize = 1 << 24;
/// The most levels of a tree.
const LEVEL_LIMIT: usize = 256;

/// The nodes of all trees, as columns of one table.
struct Trees {
    features: Vec<i64>,
    thresholds: Vec<f64>,
    modes: Vec<Mode>,
    yes: Vec<i64>,
    no: Vec<i64>,
    missing: Vec<bool>,
    roots: Vec<i64>,
    levels: usize,
    /// Which node of the table has a tree's and a node's number.
    places: std::collections::HashMap<(i64, i64), usize>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    Leaf,
    Compare(BinaryOp),
}

fn mode(name: &str) -> Option<Mode> {
    Some(match name {
        "LEAF" => Mode::Leaf,
        "BRANCH_LEQ" => Mode::Compare(BinaryOp::Le),
        "BRANCH_LT" => Mode::Compare(BinaryOp::Lt),
        "BRANCH_GTE" => Mode::Compare(BinaryOp::Ge),
        "BRANCH_GT" => Mode::Compare(BinaryOp::Gt),
        "BRANCH_EQ" => Mode::Compare(BinaryOp::Eq),
        "BRANCH_NEQ" => Mode::Compare(BinaryOp::Ne),
        _ => return None,
    })
}

fn read(node: &Node<'_>) -> Step<Trees> {
    if node.has("nodes_values_as_tensor") || node.has("base_values_as_tensor") {
        return node.unsupported("a TreeEnsemble whose numbers are f64 tensors");
    }
    let list = |name: &str| -> Step<Vec<i64>> { Ok(node.ints(name)?.unwrap_or_default()) };
    let (trees, ids) = (list("nodes_treeids")?, list("nodes_nodeids")?);
    let (features, yes, no) = (
        list("nodes_featureids")?,
        list("nodes_truenodeids")?,
        list("nodes_falsenodeids")?,
    );
    let names = node.texts("nodes_modes")?.unwrap_or_default();
    let thresholds = node.floats("nodes_values")?.unwrap_or_default();
    let count = trees.len();
    let same = [
        ids.len(),
        features.len(),
        yes.len(),
        no.len(),
        names.len(),
        thresholds.len(),
    ];
    if count == 0 || same.iter().any(|len| *len != count) {
        return node.unsupported(format!(
            "a TreeEnsemble whose lists of nodes have {count} and {same:?} entries"
        ));
    }
    let mut modes = Vec::with_capacity(count);
    for name in &names {
        match mode(name) {
            Some(mode) => modes.push(mode),
            None => return node.bad("nodes_modes", name, "LEAF or BRANCH_ and LEQ, LT, GTE, GT, EQ or NEQ"),
        }
    }
    let missing = list("nodes_missing_value_tracks_true")?;
    let places: std::collections::HashMap<(i64, i64), usize> =
        (0..count).map(|at| ((trees[at], ids[at]), at)).collect();
    let child = |at: usize, id: i64| match modes[at] {
        Mode::Leaf => Some(at as i64),
        Mode::Compare(_) => places.get(&(trees[at], id)).map(|at| *at as i64),
    };
    let yes: Option<Vec<i64>> = (0..count).map(|at| child(at, yes[at])).collect();
    let no: Option<Vec<i64>> = (0..count).map(|at| child(at, no[at])).collect();
    let (Some(yes), Some(no)) = (yes, no) else {
        return node.unsupported("a TreeEnsemble with a node whose child is not there");
    };
    let mut is_child = vec![false; count];
    for at in (0..count).filter(|at| modes[*at] != Mode::Leaf) {
        is_child[yes[at] as usize] = true;
        is_child[no[at] as usize] = true;
    }
    let roots: Vec<i64> = (0..count).filter(|at| !is_child[*at]).map(|at| at as i64).collect();
    let Some(levels) = levels(&roots, &yes, &no, &modes) else {
        return node.unsupported(format!(
            "a TreeEnsemble of more than {LEVEL_LIMIT} levels, or whose nodes go in a circle"
        ));
    };
    Ok(Trees {
        features,
        thresholds,
        missing: (0..count)
            .map(|at| missing.get(at).copied().unwrap_or(0) != 0)
            .collect(),
        modes,
        yes,
        no,
        roots,
        levels,
        places,
    })
}

/// How many steps lead to the deepest leaf.
fn levels(roots: &[i64], yes: &[i64], no: &[i64], modes: &[Mode]) -> Option<usize> {
    let mut level: Vec<i64> = roots.to_vec();
    for depth in 0..=LEVEL_LIMIT {
        let inner = level
            .iter()
            .map(|at| *at as usize)
            .filter(|at| modes[*at] != Mode::Leaf);
        let next: Vec<i64> = inner.flat_map(|at| [yes[at], no[at]]).collect();
        if next.is_empty() {
            return Some(depth);
        }
        if next.len() > modes.len() {
            return None;
        }
        level = next;
    }
    None
}

/// The leaf of each row in each tree, `[N, T]`.
fn leaves(node: &mut Node<'_>, trees: &Trees, x: Val) -> Step<Val> {
    let count = trees.modes.len();
    let features = integers(node, vec![count], &trees.features)?;
    let thresholds = numbers(node, vec![count], &trees.thresholds)?;
    let (yes, no) = (
        integers(node, vec![count], &trees.yes)?,
        integers(node, vec![count], &trees.no)?,
    );
    let flags: Vec<i64> = trees.missing.iter().map(|m| i64::from(*m)).collect();
    let missing = match trees.missing.contains(&true) {
        true => Some(integers(node, vec![count], &flags)?),
        false => None,
    };
    let mut kinds: Vec<BinaryOp> = Vec::new();
    for mode in &trees.modes {
        if let Mode::Compare(op) = mode
            && !kinds.contains(op)
        {
            kinds.push(*op);
        }
    }
    let of = |mode: &Mode| kinds.iter().position(|kind| *mode == Mode::Compare(*kind)).unwrap_or(0) as i64;
    let which: Vec<i64> = trees.modes.iter().map(of).collect();
    let which = integers(node, vec![count], &which)?;
    let roots = integers(node, vec![1, trees.roots.len()], &trees.roots)?;
    let full = Shape(vec![node.shape(x)[0].clone(), Dim::from(trees.roots.len())]);
    let mut at = node.broadcast(roots, full)?;
    for _ in 0..trees.levels {
        let feature = node.take(features, 0, at)?;
        let value = node.add(Op::Gather(Gather::Elements { axis: 1 }), &[x, feature])?;
        let threshold = node.take(thresholds, 0, at)?;
        let mut goes = None;
        for (number, op) in kinds.iter().enumerate() {
            let holds = node.binary(*op, value, threshold)?;
            goes = Some(match goes {
                None => holds,
                Some(before) => {
                    let kind = node.take(which, 0, at)?;
                    let own = node.with_scalar(BinaryOp::Eq, kind, number as f64)?;
                    node.select(own, holds, before)?
                }
            });
        }
        let Some(mut goes) = goes else { break };
        if let Some(missing) = missing {
            let tracks = node.take(missing, 0, at)?;
            let tracks = node.with_scalar(BinaryOp::Ne, tracks, 0.0)?;
            let is = node.unary(UnaryOp::IsNan, value)?;
            let both = node.binary(BinaryOp::And, tracks, is)?;
            goes = node.binary(BinaryOp::Or, goes, both)?;
        }
        let (yes, no) = (node.take(yes, 0, at)?, node.take(no, 0, at)?);
        at = node.select(goes, yes, no)?;
    }
    Ok(at)
}

/// What the leaves of each row add up to, `[N, results]`.
fn sums(node: &mut Node<'_>, prefix: &str, results: usize, aggregate: ReduceOp) -> Step<Val> {
    let x = rows(node)?;
    let trees = read(node)?;
    let list = |name: &str| -> Step<Vec<i64>> { Ok(node.ints(&format!("{prefix}_{name}"))?.unwrap_or_default()) };
    let (of_tree, of_node, of_result) = (list("treeids")?, list("nodeids")?, list("ids")?);
    let weights = node.floats(&format!("{prefix}_weights"))?.unwrap_or_default();
    let count = trees.modes.len();
    if results == 0 || count.checked_mul(results).is_none_or(|size| size > TABLE_LIMIT) {
        return node.unsupported(format!("a TreeEnsemble of {count} nodes and {results} results"));
    }
    let mut table = vec![0.0; count * results];
    for (at, weight) in weights.iter().enumerate() {
        let ids = (of_tree.get(at), of_node.get(at), of_result.get(at));
        let (Some(tree), Some(id), Some(result)) = ids else {
            return node.unsupported("a TreeEnsemble whose lists of weights differ in length");
        };
        let (place, result) = (trees.places.get(&(*tree, *id)), usize::try_from(*result).ok());
        match (place, result.filter(|result| *result < results)) {
            (Some(place), Some(result)) => table[place * results + result] += weight,
            _ => {
                return node.unsupported(format!(
                    "a TreeEnsemble with a weight of node {id} of tree {tree}, which is not there"
                ));
            }
        }
    }
    let at = leaves(node, &trees, x)?;
    let table = numbers(node, vec![count, results], &table)?;
    let taken = node.take(table, 0, at)?;
    let sum = node.reduce(aggregate, taken, vec![1], false)?;
    match node.floats("base_values")?.filter(|values| !values.is_empty()) {
        Some(values) if values.len() == results || values.len() == 1 => {
            let values = numbers(node, vec![values.len()], &values)?;
            node.binary(BinaryOp::Add, sum, values)
        }
        Some(values) => node.bad("base_values", values.len(), format!("{results} numbers")),
        None => Ok(sum),
    }
}

pub(super) fn regressor(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let results = usize::try_from(node.int_or("n_targets", 1)?).unwrap_or(0);
    let aggregate = match node.text("aggregate_function", "SUM")?.as_str() {
        "SUM" => ReduceOp::Sum,
        "AVERAGE" => ReduceOp::Mean,
        "MIN" => ReduceOp::Min,
        "MAX" => ReduceOp::Max,
        other => return node.bad("aggregate_function", other, "SUM, AVERAGE, MIN or MAX"),
    };
    let sum = sums(node, "target", results, aggregate)?;
    Ok(vec![transformed(node, sum)?])
}

/// Two classes may have the weights of one alone: its score is that of the second, and the first has what is left.
pub(super) fn classifier(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let labels = classes(node, ["classlabels_int64s", "classlabels_strings"])?;
    let mut weighted = node.ints("class_ids")?.unwrap_or_default();
    weighted.sort_unstable();
    weighted.dedup();
    if labels.len() == 2 && weighted.len() == 1 {
        let all = sums(node, "class", 2, ReduceOp::Sum)?;
        let score = node.slice_axis(all, 1, weighted[0], 1i64)?;
        let weights = node.floats("class_weights")?.unwrap_or_default();
        // Weights that are all positive are probabilities.
        let shares = weights.iter().all(|weight| *weight >= 0.0);
        let logistic = node.text("post_transform", "NONE")? == "LOGISTIC";
        let shown = transformed(node, score)?;
        let threshold = if shares || logistic { 0.5 } else { 0.0 };
        return two_classes(node, shown, &labels, threshold, shares || logistic);
    }
    let scores = sums(node, "class", labels.len(), ReduceOp::Sum)?;
    let label = best_label(node, scores, &labels)?;
    Ok(vec![label, transformed(node, scores)?])
}
