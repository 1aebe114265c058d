//! Classical machine learning on dense numbers (`ai.onnx.ml`).
//!
//! Trees are walked by gathers, all of them at once: a step goes from each tree's node to one of its children, and a
//! leaf stays where it is, so there are as many steps as the deepest tree has levels.

mod trees;

use ir::op::{BinaryOp, Composite, ReduceOp, UnaryOp};
use ir::{DType, Dim, HostTensor};

use super::resize::constant;
use super::{Row, learned};
use crate::onnx::builder::Val;
use crate::onnx::error::Step;
use crate::onnx::node::Node;

pub(super) const ROWS: &[Row] = &[
    learned("ArrayFeatureExtractor", extract),
    learned("Binarizer", binarize),
    learned("FeatureVectorizer", join_features),
    learned("Imputer", impute),
    learned("LabelEncoder", encode_labels),
    learned("LinearClassifier", linear_classifier),
    learned("LinearRegressor", linear_regressor),
    learned("Normalizer", normalize),
    learned("SVMRegressor", support_vectors),
    learned("Scaler", scale),
    learned("TreeEnsemble", trees::ensemble),
    learned("TreeEnsembleClassifier", trees::classifier),
    learned("TreeEnsembleRegressor", trees::regressor),
    learned("ZipMap", scores_by_class),
];

/// A constant of numbers.
fn numbers(node: &mut Node<'_>, shape: Vec<usize>, values: &[f64]) -> Step<Val> {
    numbers_of(node, DType::F32, shape, values)
}

/// A constant of numbers of a type.
fn numbers_of(node: &mut Node<'_>, dtype: DType, shape: Vec<usize>, values: &[f64]) -> Step<Val> {
    let tensor = constant(HostTensor::from_f64(dtype, shape, values))?;
    Ok(node.build.of_constant(None, tensor))
}

/// A constant of integers.
fn integers(node: &mut Node<'_>, shape: Vec<usize>, values: &[i64]) -> Step<Val> {
    let tensor = constant(HostTensor::from_i64(DType::I64, shape, values))?;
    Ok(node.build.of_constant(None, tensor))
}

/// The input as numbers to compute with.
fn features(node: &mut Node<'_>) -> Step<Val> {
    let x = node.input(0)?;
    node.cast(x, DType::F32)
}

/// The input as rows of features: a vector is one row.
fn rows(node: &mut Node<'_>) -> Step<Val> {
    let x = features(node)?;
    match node.rank(x) {
        2 => Ok(x),
        1 => {
            let size = node.shape(x)[0].clone();
            node.reshape(x, [Dim::Const(1), size])
        }
        _ => node.rank_error(0, "1 or 2"),
    }
}

/// Columns by their numbers.
fn extract(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let (x, columns) = (node.input(0)?, node.input(1)?);
    let rank = node.rank(x);
    if rank == 0 {
        return node.rank_error(0, "at least 1");
    }
    let count = node.ty(columns).elements();
    let columns = node.reshape(columns, [count.clone()])?;
    let result = node.take(x, rank - 1, columns)?;
    if rank == 1 {
        return Ok(vec![node.reshape(result, [Dim::Const(1), count])?]);
    }
    Ok(vec![result])
}

fn binarize(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let threshold = node.float_or("threshold", 0.0)?;
    let above = node.with_scalar(BinaryOp::Gt, x, threshold)?;
    Ok(vec![node.cast(above, node.dtype(x))?])
}

fn join_features(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let mut parts = node.variadic()?;
    for part in &mut parts {
        if node.rank(*part) == 1 {
            let size = node.shape(*part)[0].clone();
            *part = node.reshape(*part, [Dim::Const(1), size])?;
        }
        *part = node.cast(*part, DType::F32)?;
    }
    Ok(vec![node.concat(&parts, 1)?])
}

/// Puts given numbers where one is missing: where it is NaN, or equal to a number that says so.
fn impute(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let float = node.dtype(x).is_float();
    let (values, missing) = match float {
        true => {
            let values = node.floats("imputed_value_floats")?.unwrap_or_default();
            (values, node.float_or("replaced_value_float", 0.0)?)
        }
        false => {
            let values = node.ints("imputed_value_int64s")?.unwrap_or_default();
            let values = values.into_iter().map(|v| v as f64).collect();
            (values, node.int_or("replaced_value_int64", 0)? as f64)
        }
    };
    if values.is_empty() {
        return node.unsupported("an Imputer without values");
    }
    let values = numbers(node, vec![values.len()], &values)?;
    let values = node.cast(values, node.dtype(x))?;
    let hit = match missing.is_nan() {
        true => node.unary(UnaryOp::IsNan, x)?,
        false => node.with_scalar(BinaryOp::Eq, x, missing)?,
    };
    Ok(vec![node.select(hit, values, x)?])
}

/// A table from numbers to numbers; what it does not have gets the default.
fn encode_labels(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = node.input(0)?;
    let text = ["keys_strings", "values_strings", "classes_strings"];
    if let Some(name) = text.into_iter().find(|name| node.has(name)) {
        return node.unsupported(format!("a LabelEncoder of text ({name})"));
    }
    let list = |node: &Node<'_>, floats: &str, ints: &str, tensor: &str| -> Step<Option<(DType, Vec<f64>)>> {
        if let Some(values) = node.floats(floats)? {
            return Ok(Some((DType::F32, values)));
        }
        if let Some(values) = node.ints(ints)? {
            return Ok(Some((DType::I64, values.into_iter().map(|v| v as f64).collect())));
        }
        Ok(node.tensor(tensor)?.map(|t| (t.dtype, t.to_f64())))
    };
    let keys = list(node, "keys_floats", "keys_int64s", "keys_tensor")?;
    let values = list(node, "values_floats", "values_int64s", "values_tensor")?;
    let (Some((_, keys)), Some((to, values))) = (keys, values) else {
        return node.unsupported("a LabelEncoder without lists of keys and values");
    };
    if keys.len() != values.len() || keys.len() > 4096 {
        return node.unsupported(format!(
            "a LabelEncoder of {} keys and {} values",
            keys.len(),
            values.len()
        ));
    }
    let default = match (node.tensor("default_tensor")?, to.is_float()) {
        (Some(tensor), _) => tensor.to_f64().first().copied().unwrap_or(0.0),
        (None, true) => node.float_or("default_float", -0.0)?,
        (None, false) => node.int_or("default_int64", -1)? as f64,
    };
    let shape = node.shape(x);
    let mut dims = shape.0.clone();
    dims.push(Dim::Const(1));
    let column = node.reshape(x, dims)?;
    let count = keys.len();
    let nan = keys.iter().position(|key| key.is_nan());
    let keys = numbers(node, vec![count], &keys)?;
    let keys = node.cast(keys, node.dtype(x))?;
    let hits = node.binary(BinaryOp::Eq, column, keys)?;
    let found = node.reduce(ReduceOp::Any, hits, vec![shape.rank()], false)?;
    let hits = node.cast(hits, DType::I32)?;
    let at = node.reduce(ReduceOp::ArgMax, hits, vec![shape.rank()], false)?;
    let table = numbers(node, vec![count], &values)?;
    let table = node.cast(table, to)?;
    let taken = node.take(table, 0, at)?;
    let default = node.scalar(to, default);
    let mut result = node.select(found, taken, default)?;
    if let Some(at) = nan {
        let is = node.unary(UnaryOp::IsNan, x)?;
        let value = node.scalar(to, values[at]);
        result = node.select(is, value, result)?;
    }
    Ok(vec![result])
}

/// `(x − offset) · scale`
fn scale(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let mut x = features(node)?;
    for (name, op) in [("offset", BinaryOp::Sub), ("scale", BinaryOp::Mul)] {
        if let Some(values) = node.floats(name)? {
            let values = numbers(node, vec![values.len()], &values)?;
            x = node.binary(op, x, values)?;
        }
    }
    Ok(vec![x])
}

fn normalize(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = features(node)?;
    let axis = node.rank(x).saturating_sub(1);
    let norm = match node.text("norm", "MAX")?.as_str() {
        "MAX" => node.reduce(ReduceOp::Max, x, vec![axis], true)?,
        "L1" => {
            let sizes = node.unary(UnaryOp::Abs, x)?;
            node.reduce(ReduceOp::Sum, sizes, vec![axis], true)?
        }
        "L2" => {
            let squares = node.binary(BinaryOp::Mul, x, x)?;
            let sum = node.reduce(ReduceOp::Sum, squares, vec![axis], true)?;
            node.unary(UnaryOp::Sqrt, sum)?
        }
        other => return node.bad("norm", other, "MAX, L1 or L2"),
    };
    let none = node.with_scalar(BinaryOp::Eq, norm, 0.0)?;
    let one = node.scalar(DType::F32, 1.0);
    let norm = node.select(none, one, norm)?;
    Ok(vec![node.binary(BinaryOp::Div, x, norm)?])
}

/// `x · coefficientsᵀ + intercepts` for `count` results.
fn linear(node: &mut Node<'_>, count: usize) -> Step<Val> {
    let x = rows(node)?;
    let coefficients = node.floats("coefficients")?;
    let coefficients = node.required("coefficients", coefficients)?;
    if count == 0 || coefficients.len() % count != 0 {
        return node.bad(
            "coefficients",
            coefficients.len(),
            format!("a multiple of {count} numbers"),
        );
    }
    let weights = numbers(node, vec![count, coefficients.len() / count], &coefficients)?;
    let sum = node.contract(x, weights, false, true, DType::F32)?;
    match node.floats("intercepts")?.filter(|v| !v.is_empty()) {
        Some(values) if values.len() == count => {
            let values = numbers(node, vec![count], &values)?;
            node.binary(BinaryOp::Add, sum, values)
        }
        Some(values) => node.bad("intercepts", values.len(), format!("{count} numbers")),
        None => Ok(sum),
    }
}

/// What becomes of scores at the end, by the attribute of that name.
fn transformed(node: &mut Node<'_>, x: Val) -> Step<Val> {
    let name = node.text("post_transform", "NONE")?;
    transformed_by(node, x, &name)
}

fn transformed_by(node: &mut Node<'_>, x: Val, name: &str) -> Step<Val> {
    match name {
        "NONE" => Ok(x),
        "LOGISTIC" => node.unary(UnaryOp::Sigmoid, x),
        "SOFTMAX" => node.composite(Composite::Softmax { axis: 1 }, &[x]),
        "SOFTMAX_ZERO" => {
            // Scores of 0 stay 0.
            let zero = node.with_scalar(BinaryOp::Eq, x, 0.0)?;
            let shares = node.composite(Composite::Softmax { axis: 1 }, &[x])?;
            let none = node.scalar(node.dtype(x), 0.0);
            node.select(zero, none, shares)
        }
        other => node.unsupported(format!("post_transform {other}")),
    }
}

fn linear_regressor(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let count = usize::try_from(node.int_or("targets", 1)?).unwrap_or(0);
    let sum = linear(node, count)?;
    Ok(vec![transformed(node, sum)?])
}

/// The classes' integers; text is refused.
fn classes(node: &Node<'_>, names: [&str; 2]) -> Step<Vec<i64>> {
    let [integers, text] = names;
    if let Some(labels) = node.ints(integers)?.filter(|labels| !labels.is_empty()) {
        return Ok(labels);
    }
    match node.has(text) {
        true => node.unsupported(format!("classes that are text ({text})")),
        false => node.unsupported("a classifier without classes"),
    }
}

/// The label of the largest score of each row.
fn best_label(node: &mut Node<'_>, scores: Val, labels: &[i64]) -> Step<Val> {
    let at = node.reduce(ReduceOp::ArgMax, scores, vec![1], false)?;
    let table = integers(node, vec![labels.len()], labels)?;
    node.take(table, 0, at)
}

/// Of a class and its contrary: which is likelier, and both scores.
fn two_classes(node: &mut Node<'_>, score: Val, labels: &[i64], threshold: f64, complement: bool) -> Step<Vec<Val>> {
    let above = node.with_scalar(BinaryOp::Gt, score, threshold)?;
    let size = node.shape(score)[0].clone();
    let above = node.reshape(above, [size])?;
    let (yes, no) = (
        node.int_scalar(DType::I64, labels[1]),
        node.int_scalar(DType::I64, labels[0]),
    );
    let label = node.select(above, yes, no)?;
    let other = match complement {
        true => {
            let one = node.scalar(DType::F32, 1.0);
            node.binary(BinaryOp::Sub, one, score)?
        }
        false => node.unary(UnaryOp::Neg, score)?,
    };
    Ok(vec![label, node.concat(&[other, score], 1)?])
}

fn linear_classifier(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let labels = classes(node, ["classlabels_ints", "classlabels_strings"])?;
    let intercepts = node.floats("intercepts")?.map_or(0, |v| v.len());
    let coefficients = node.floats("coefficients")?.unwrap_or_default();
    let width = node.shape(node.input(0)?).last().and_then(Dim::as_const).unwrap_or(0);
    // Two classes may have one row of coefficients.
    let single = labels.len() == 2 && (intercepts == 1 || width > 0 && coefficients.len() as i64 == width);
    if single {
        let score = linear(node, 1)?;
        let logistic = node.text("post_transform", "NONE")? == "LOGISTIC";
        let shown = transformed(node, score)?;
        return two_classes(node, shown, &labels, if logistic { 0.5 } else { 0.0 }, logistic);
    }
    let scores = linear(node, labels.len())?;
    let label = best_label(node, scores, &labels)?;
    Ok(vec![label, transformed(node, scores)?])
}

/// The scores that a sequence of maps would hold, `[N, C]`: column `i` is that of the `i`-th class label. Converters of
/// classifiers end with this op, and tensors are all that a graph gives.
fn scores_by_class(node: &mut Node<'_>) -> Step<Vec<Val>> {
    Ok(vec![rows(node)?])
}

/// `Σ cₖ · K(x, vₖ) + ρ`
fn support_vectors(node: &mut Node<'_>) -> Step<Vec<Val>> {
    let x = rows(node)?;
    let coefficients = node.floats("coefficients")?;
    let coefficients = node.required("coefficients", coefficients)?;
    let offset = node.floats("rho")?.and_then(|v| v.first().copied()).unwrap_or(0.0);
    let count = usize::try_from(node.int_or("n_supports", 0)?).unwrap_or(0);
    let kernel = node.text("kernel_type", "LINEAR")?;
    let parameters = node.floats("kernel_params")?.unwrap_or_default();
    let parameter = |at: usize| parameters.get(at).copied().unwrap_or(0.0);
    let (gamma, shift, degree) = (parameter(0), parameter(1), parameter(2));
    let sum = match count {
        0 => {
            let weights = numbers(node, vec![1, coefficients.len()], &coefficients)?;
            node.contract(x, weights, false, true, DType::F32)?
        }
        _ => {
            let vectors = node.floats("support_vectors")?;
            let vectors = node.required("support_vectors", vectors)?;
            if vectors.len() % count != 0 || coefficients.len() != count {
                return node.bad(
                    "support_vectors",
                    vectors.len(),
                    format!("a multiple of {count} numbers"),
                );
            }
            let vectors = numbers(node, vec![count, vectors.len() / count], &vectors)?;
            let product = node.contract(x, vectors, false, true, DType::F32)?;
            let near = match kernel.as_str() {
                "LINEAR" => product,
                "POLY" | "SIGMOID" => {
                    let line = node.with_scalar(BinaryOp::Mul, product, gamma)?;
                    let line = node.with_scalar(BinaryOp::Add, line, shift)?;
                    match kernel.as_str() {
                        "POLY" => node.with_scalar(BinaryOp::Pow, line, degree)?,
                        _ => node.unary(UnaryOp::Tanh, line)?,
                    }
                }
                "RBF" => {
                    // |x − v|² = |x|² + |v|² − 2·x·v
                    let own = node.binary(BinaryOp::Mul, x, x)?;
                    let own = node.reduce(ReduceOp::Sum, own, vec![1], true)?;
                    let other = node.binary(BinaryOp::Mul, vectors, vectors)?;
                    let other = node.reduce(ReduceOp::Sum, other, vec![1], false)?;
                    let both = node.binary(BinaryOp::Add, own, other)?;
                    let twice = node.with_scalar(BinaryOp::Mul, product, 2.0)?;
                    let distance = node.binary(BinaryOp::Sub, both, twice)?;
                    let scaled = node.with_scalar(BinaryOp::Mul, distance, -gamma)?;
                    node.unary(UnaryOp::Exp, scaled)?
                }
                other => return node.bad("kernel_type", other, "LINEAR, POLY, RBF or SIGMOID"),
            };
            let weights = numbers(node, vec![1, count], &coefficients)?;
            node.contract(near, weights, false, true, DType::F32)?
        }
    };
    let result = node.with_scalar(BinaryOp::Add, sum, offset)?;
    if node.int_or("one_class", 0)? != 0 {
        let inside = node.with_scalar(BinaryOp::Gt, result, 0.0)?;
        let (yes, no) = (node.scalar(DType::F32, 1.0), node.scalar(DType::F32, -1.0));
        return Ok(vec![node.select(inside, yes, no)?]);
    }
    Ok(vec![transformed(node, result)?])
}
