//! Ensembles of trees.

use ir::op::{BinaryOp, Gather, Op, ReduceOp, UnaryOp};
use ir::{DType, Dim, Shape};

use super::{best_label, classes, integers, numbers, numbers_of, rows, transformed, transformed_by, two_classes};
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
        let mut next: Vec<i64> = inner.flat_map(|at| [yes[at], no[at]]).collect();
        next.sort_unstable();
        next.dedup();
        if next.is_empty() {
            return Some(depth);
        }
        level = next;
    }
    None
}

/// The leaf of each row in each tree, `[N, T]`.
fn leaves(node: &mut Node<'_>, trees: &Trees, x: Val) -> Step<Val> {
    let count = trees.modes.len();
    let features = integers(node, vec![count], &trees.features)?;
    let thresholds = numbers_of(node, node.dtype(x), vec![count], &trees.thresholds)?;
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
        return node.unsupported(format!(
            "a TreeEnsemble of {count} nodes by {results} results, more than {TABLE_LIMIT} in all (fewer or shallower trees \
             give less),"
        ));
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
    let sum = folded(node, &trees, x, (table, results), aggregate)?;
    match node.floats("base_values")?.filter(|values| !values.is_empty()) {
        Some(values) if values.len() == results || values.len() == 1 => {
            let values = numbers(node, vec![values.len()], &values)?;
            node.binary(BinaryOp::Add, sum, values)
        }
        Some(values) => node.bad("base_values", values.len(), format!("{results} numbers")),
        None => Ok(sum),
    }
}

/// What the leaves of each row have, folded over the trees: `[N, results]` of a table `[nodes, results]`.
fn folded(
    node: &mut Node<'_>,
    trees: &Trees,
    x: Val,
    (table, results): (Vec<f64>, usize),
    aggregate: ReduceOp,
) -> Step<Val> {
    let at = leaves(node, trees, x)?;
    let table = numbers_of(node, node.dtype(x), vec![trees.modes.len(), results], &table)?;
    let taken = node.take(table, 0, at)?;
    node.reduce(aggregate, taken, vec![1], false)
}

/// The op of operator set 5: inner nodes and leaves have tables of their own, and a leaf has one weight.
pub(super) fn ensemble(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let mut x = node.input(0)?;
    let dtype = node.require_float(0)?;
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    x = node.cast(x, wide)?;
    if node.rank(x) != 2 {
        return node.rank_error(0, "2");
    }
    let results = usize::try_from(node.int_or("n_targets", 1)?).unwrap_or(0);
    let targets = node.ints("leaf_targetids")?.unwrap_or_default();
    let weights = node.tensor("leaf_weights")?.map(|t| t.to_f64()).unwrap_or_default();
    let trees = split_tables(node, weights.len())?;
    let count = trees.modes.len();
    if results == 0
        || count.checked_mul(results).is_none_or(|size| size > TABLE_LIMIT)
        || targets.len() != weights.len()
    {
        let (targets, weights) = (targets.len(), weights.len());
        return node.unsupported(format!(
            "a TreeEnsemble of {count} nodes and {results} results, with {targets} targets of {weights} leaves,"
        ));
    }
    let mut table = vec![0.0; count * results];
    let inner = count - weights.len();
    for (leaf, (target, weight)) in targets.iter().zip(&weights).enumerate() {
        match usize::try_from(*target).ok().filter(|target| *target < results) {
            Some(target) => table[(inner + leaf) * results + target] = *weight,
            None => return node.bad("leaf_targetids", target, format!("below {results}")),
        }
    }
    let aggregate = match node.int_or("aggregate_function", 1)? {
        0 => ReduceOp::Mean,
        1 => ReduceOp::Sum,
        2 => ReduceOp::Min,
        3 => ReduceOp::Max,
        other => return node.bad("aggregate_function", other, "0, 1, 2 or 3"),
    };
    let post = match node.int_or("post_transform", 0)? {
        0 => "NONE",
        1 => "SOFTMAX",
        2 => "LOGISTIC",
        3 => "SOFTMAX_ZERO",
        other => return node.unsupported(format!("post_transform {other}")),
    };
    let sum = folded(node, &trees, x, (table, results), aggregate)?;
    let result = transformed_by(node, sum, post)?;
    Ok(vec![node.cast(result, dtype)?])
}

/// Reads tables of inner nodes; leaves stand behind those in one table.
fn split_tables(node: &Node<'_>, leaves: usize) -> Step<Trees> {
    let list = |name: &str| -> Step<Vec<i64>> { Ok(node.ints(name)?.unwrap_or_default()) };
    let modes = node.tensor("nodes_modes")?.map(|t| t.to_i64()).unwrap_or_default();
    let splits = node.tensor("nodes_splits")?.map(|t| t.to_f64()).unwrap_or_default();
    let members = node
        .tensor("membership_values")?
        .map(|t| t.to_f64())
        .unwrap_or_default();
    let features = list("nodes_featureids")?;
    let children = [list("nodes_truenodeids")?, list("nodes_falsenodeids")?];
    let is_leaf = [list("nodes_trueleafs")?, list("nodes_falseleafs")?];
    let missing = list("nodes_missing_value_tracks_true")?;
    let count = modes.len();
    let lengths = [&children[0], &children[1], &is_leaf[0], &is_leaf[1], &features].map(Vec::len);
    if count == 0 || splits.len() != count || lengths.iter().any(|len| *len != count) {
        return node.unsupported(format!(
            "a TreeEnsemble whose lists of nodes have {count} and {lengths:?} entries"
        ));
    }
    let mut sets = members.split(|value| value.is_nan());
    // A test for membership is one of equality for each member, one after another.
    let mut inner: Vec<(i64, f64, BinaryOp, [Child; 2], bool)> = Vec::with_capacity(count);
    let mut added: Vec<(i64, f64, BinaryOp, [Child; 2], bool)> = Vec::new();
    for at in 0..count {
        let child = |side: usize| match is_leaf[side][at] {
            0 => Child::Node(children[side][at]),
            _ => Child::Leaf(children[side][at]),
        };
        let (yes, no) = (child(0), child(1));
        let tracks = missing.get(at).copied().unwrap_or(0) != 0;
        let ops = [
            BinaryOp::Le,
            BinaryOp::Lt,
            BinaryOp::Ge,
            BinaryOp::Gt,
            BinaryOp::Eq,
            BinaryOp::Ne,
        ];
        let op = usize::try_from(modes[at]).ok().and_then(|mode| ops.get(mode).copied());
        match (op, modes[at]) {
            (Some(op), _) => inner.push((features[at], splits[at], op, [yes, no], tracks)),
            (None, 6) => {
                let set = sets.next().unwrap_or_default();
                let Some((first, rest)) = set.split_first() else {
                    return node.unsupported("a TreeEnsemble with a test for membership in an empty set");
                };
                let mut after = no;
                for member in rest.iter().rev() {
                    added.push((features[at], *member, BinaryOp::Eq, [yes, after], tracks));
                    after = Child::Node((count + added.len() - 1) as i64);
                }
                inner.push((features[at], *first, BinaryOp::Eq, [yes, after], tracks));
            }
            (None, other) => return node.bad("nodes_modes", other, "0 to 6"),
        }
    }
    inner.extend(added);
    let total = inner.len();
    let place = |child: Child| match child {
        Child::Node(at) => usize::try_from(at).ok().filter(|at| *at < total),
        Child::Leaf(at) => usize::try_from(at).ok().filter(|at| *at < leaves).map(|at| total + at),
    };
    let side = |which: usize| -> Option<Vec<i64>> {
        let own = inner.iter().map(|node| place(node.3[which]).map(|at| at as i64));
        own.chain((total..total + leaves).map(|at| Some(at as i64))).collect()
    };
    let (Some(yes), Some(no)) = (side(0), side(1)) else {
        return node.unsupported("a TreeEnsemble with a node whose child is not there");
    };
    let leaf_modes = std::iter::repeat_n(Mode::Leaf, leaves);
    let modes: Vec<Mode> = inner
        .iter()
        .map(|node| Mode::Compare(node.2))
        .chain(leaf_modes)
        .collect();
    let roots = list("tree_roots")?;
    if roots.is_empty() || roots.iter().any(|root| !(0..total as i64).contains(root)) {
        return node.bad("tree_roots", roots, format!("numbers of nodes, below {total}"));
    }
    let Some(levels) = levels(&roots, &yes, &no, &modes) else {
        return node.unsupported(format!(
            "a TreeEnsemble of more than {LEVEL_LIMIT} levels, or whose nodes go in a circle"
        ));
    };
    let rest = leaves;
    Ok(Trees {
        features: inner
            .iter()
            .map(|node| node.0)
            .chain(std::iter::repeat_n(0, rest))
            .collect(),
        thresholds: inner
            .iter()
            .map(|node| node.1)
            .chain(std::iter::repeat_n(0.0, rest))
            .collect(),
        missing: inner
            .iter()
            .map(|node| node.4)
            .chain(std::iter::repeat_n(false, rest))
            .collect(),
        modes,
        yes,
        no,
        roots,
        levels,
        places: std::collections::HashMap::new(),
    })
}

/// Where a test leads.
#[derive(Clone, Copy)]
enum Child {
    Node(i64),
    Leaf(i64),
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
