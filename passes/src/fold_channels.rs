//! Folds factors of the last axis into the constants of what makes that axis: a norm's scale, a product's columns.
//!
//! ```text
//! mul (layer_norm x, s, b), f           becomes     layer_norm x, (s · f), (b · f)
//! mul (add (contract x, w), b), f       becomes     add (contract x, (w · f)), (b · f)
//! mul (relu x), f                       becomes     relu (x · f)      where f > 0 and x takes it in
//! ```
//!
//! Such factors are what quantising with regard to activations puts before products. They are folded only where nothing
//! else reads what is folded into: else there would be a second copy of it.
//!
//! Before: any graph. After: as many kernels fewer as there were such factors; the same numbers but for the rounding of
//! constants.

use ir::op::{BinaryOp, Composite, Elementwise, UnaryOp};
use ir::{DType, HostTensor, Op, Value};

use crate::analysis::use_counts;
use crate::error::PassFault;
use crate::fold::native;
use crate::rewrite::Builder;
use crate::runner::Pass;

const NAME: &str = "fold_channels";
/// The name of what the pass does.
pub const RULE: &str = "factors_into_constants";

/// Factors up to here and down to its inverse are folded: constants may be rounded to a half type later, whose numbers
/// end early.
const LARGEST: f64 = 16.0;

/// How many ops the factors go through at most.
const DEPTH: usize = 8;

/// The pass.
pub const PASS: Pass = Pass {
    name: NAME,
    run: |graph, context| {
        use ir::entity::Entity;
        let uses = use_counts(graph);
        let mut b = Builder::new(graph, NAME);
        for (id, node) in graph.nodes().iter() {
            b.origin = node.origin.clone();
            let mut folded = None;
            if matches!(node.op, Op::Elementwise(Elementwise::Binary(BinaryOp::Mul))) && context.options.enabled(RULE) {
                let (x, f) = (node.operands[0], node.operands[1]);
                for (x, f) in [(x, f), (f, x)] {
                    if let Some(factors) = factors(&b, x, f) {
                        let single = |v: Value| uses[v.node.index()] == 1;
                        folded = into(&mut b, x, &factors, &single, DEPTH)?;
                        break;
                    }
                }
            }
            match folded {
                Some(value) if *b.ty(value) == node.results[0] => {
                    b.note(RULE, vec![node.origin.clone()], None, None);
                    b.set(id, value);
                }
                _ => b.copy(id)?,
            }
        }
        Ok(b.finish(&mut context.fired))
    },
    required: false,
};

/// Returns the constant `f` as a vector, where it has one number above 0 and of moderate size for each element of the
/// last axis of `x`, and more than one.
fn factors(b: &Builder<'_>, x: Value, f: Value) -> Option<HostTensor> {
    let tensor = b.as_constant(b.value(f))?;
    let (columns, last) = (*tensor.shape.last()?, b.old.ty(x).shape.last()?.as_const()?);
    let is_row = tensor.elements() == columns && usize::try_from(last) == Ok(columns) && columns > 1;
    let fits = is_row && matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16);
    let moderate = |v: &f64| (1.0 / LARGEST..=LARGEST).contains(v);
    if !fits || !tensor.to_f64().iter().all(moderate) {
        return None;
    }
    Some(HostTensor {
        shape: vec![columns],
        ..tensor.clone()
    })
}

/// Emits the old value `x` times the factors, where that costs no op.
fn into(
    b: &mut Builder<'_>,
    x: Value,
    factors: &HostTensor,
    single: &dyn Fn(Value) -> bool,
    depth: usize,
) -> Result<Option<Value>, PassFault> {
    if !single(x) || depth == 0 {
        return Ok(None);
    }
    let node = b.old.node(x.node).clone();
    if node.results.len() != 1 {
        return Ok(None);
    }
    let columns = factors.elements();
    match &node.op {
        Op::Composite(Composite::LayerNorm { axis, .. } | Composite::RmsNorm { axis, .. })
            if *axis + 1 == b.old.ty(x).rank() && node.operands.len() > 1 =>
        {
            let mut operands = vec![b.value(node.operands[0])];
            for constant in &node.operands[1..] {
                let Some(scaled) = scaled(b, *constant, factors) else {
                    return Ok(None);
                };
                operands.push(b.constant(scaled));
            }
            b.emit(node.op.clone(), &operands).map(Some)
        }
        Op::Elementwise(Elementwise::Unary(UnaryOp::Relu)) => {
            let inner = into(b, node.operands[0], factors, single, depth - 1)?;
            inner.map(|value| b.emit(node.op.clone(), &[value])).transpose()
        }
        Op::Elementwise(Elementwise::Binary(BinaryOp::Mul)) => {
            for (at, other) in [(1, 0), (0, 1)] {
                let (x, y) = (node.operands[at], node.operands[other]);
                // A constant of the last axis takes the factors; else what is computed may.
                let value = match scaled(b, x, factors) {
                    Some(tensor) => Some(b.constant(tensor)),
                    None if is_row(b, x, columns) => into(b, x, factors, single, depth - 1)?,
                    None => None,
                };
                if let Some(value) = value {
                    let y = b.value(y);
                    let operands = if at == 0 { [value, y] } else { [y, value] };
                    return b.emit(node.op.clone(), &operands).map(Some);
                }
            }
            Ok(None)
        }
        Op::Elementwise(Elementwise::Binary(BinaryOp::Add | BinaryOp::Sub)) => {
            for (at, other) in [(1, 0), (0, 1)] {
                let (constant, x) = (node.operands[at], node.operands[other]);
                let Some(constant) = scaled(b, constant, factors) else {
                    continue;
                };
                if !is_row(b, x, columns) {
                    return Ok(None);
                }
                let Some(value) = into(b, x, factors, single, depth - 1)? else {
                    return Ok(None);
                };
                let constant = b.constant(constant);
                let operands = if at == 0 { [constant, value] } else { [value, constant] };
                return b.emit(node.op.clone(), &operands).map(Some);
            }
            Ok(None)
        }
        Op::Contract(c) => {
            let Some(weight) = columns_scaled(b, node.operands[1], factors, c.transpose_rhs, single(node.operands[1]))?
            else {
                return Ok(None);
            };
            let lhs = b.value(node.operands[0]);
            b.emit(node.op.clone(), &[lhs, weight]).map(Some)
        }
        _ => Ok(None),
    }
}

fn is_row(b: &Builder<'_>, x: Value, columns: usize) -> bool {
    let last = b.old.ty(x).shape.last().and_then(|d| d.as_const());
    last.and_then(|d| usize::try_from(d).ok()) == Some(columns)
}

/// A constant whose last axis the factors fit, times them; `None` where the product is not finite.
fn scaled(b: &Builder<'_>, constant: Value, factors: &HostTensor) -> Option<HostTensor> {
    let tensor = b.as_constant(b.value(constant))?;
    let fits = tensor.dtype == factors.dtype && tensor.shape.last() == factors.shape.last();
    product(tensor, factors).filter(|_| fits)
}

fn product(tensor: &HostTensor, factors: &HostTensor) -> Option<HostTensor> {
    let made = native::binary(BinaryOp::Mul, tensor, factors)?;
    // Infinity would be NaN where a sum meets its negative.
    made.to_f64().iter().all(|v| v.is_finite()).then_some(made)
}

/// A product's right operand with its columns multiplied: numbers, if it `alone` reads them, or integers by their
/// scales.
fn columns_scaled(
    b: &mut Builder<'_>,
    weight: Value,
    factors: &HostTensor,
    transposed: bool,
    alone: bool,
) -> Result<Option<Value>, PassFault> {
    let columns = factors.elements();
    let (at, shape) = match transposed {
        true => (0, vec![columns, 1]),
        false => (1, vec![1, columns]),
    };
    let along = HostTensor {
        shape,
        ..factors.clone()
    };
    let times = |tensor: &HostTensor| {
        let fits = tensor.shape.len() == 2 && tensor.shape[at] == columns && tensor.dtype == along.dtype;
        product(tensor, &along).filter(|_| fits)
    };
    let weight = b.value(weight);
    if let Some(tensor) = b.as_constant(weight) {
        if !alone {
            return Ok(None);
        }
        let made = times(tensor);
        return Ok(made.map(|tensor| b.constant(tensor)));
    }
    let (op, operands) = b.def(weight);
    let (op, mut operands) = (op.clone(), operands.to_vec());
    if !matches!(op, Op::Composite(Composite::Dequantize { .. })) || b.as_constant(operands[0]).is_none() {
        return Ok(None);
    }
    let Some(scale) = b.as_constant(operands[1]).and_then(times) else {
        return Ok(None);
    };
    operands[1] = b.constant(scale);
    b.emit(op, &operands).map(Some)
}

#[cfg(test)]
mod tests {
    use crate::OptimizeOptions;
    use crate::testing::{graph, optimized};

    /// How often the rule fires, and how many ops of a name are left; the numbers are compared.
    #[track_caller]
    fn check(body: &str, fires: bool) {
        let text = format!(
            "x = input \"x\" : f32[2, 3]\nf = constant [0.5, 2.0, 3.0] : f32[3]\nw = constant random(seed=3) : f32[3, 3]\n\
             c = constant random(seed=4) : f32[3]\n{body}\nreturn y as \"y\""
        );
        let (_, report) = optimized(&graph(&text), "gfx90a", OptimizeOptions::default());
        let fired = report.fired.iter().any(|fired| fired.rule == super::RULE);
        assert_eq!(fired, fires, "{body}");
    }

    #[test]
    fn factors_go_into_what_makes_the_axis() {
        let norm = "n = layer_norm x, c, c {axis=1, epsilon=0.001}\n";
        check(&format!("{norm}y = mul n, f"), true);
        check(
            "n = rms_norm x, c {axis=1, epsilon=0.001}\nr = relu n\ny = mul r, f",
            true,
        );
        check("p = contract x, w\ny = mul f, p", true);
        check(
            "p = contract x, w {transpose_rhs}\na = add p, c\nr = relu a\ny = mul r, f",
            true,
        );
        check("p = contract x, w\ns = sigmoid x\na = mul p, s\ny = mul a, f", true);
        let integers = "q = constant [1, -2, 3, 4, -5, 6, 7, -8, 7] : i8[3, 3]\ns = constant [0.5, 0.25, 1.0] : f32[3, 1]\n\
                        d = dequantize q, s {out=f32}\np = contract x, d {transpose_rhs}\n";
        check(&format!("{integers}y = mul p, f"), true);
        // What is read elsewhere stays, so do sums of what is computed, and what nothing takes in.
        check(&format!("{norm}m = mul n, f\ny = add n, m"), false);
        check("p = contract x, w\na = add p, x\ny = mul a, f", false);
        check(
            "p = contract x, w\nq = contract p, w\na = mul p, f\ny = add a, q",
            false,
        );
        check("s = sigmoid x\ny = mul s, f", false);
        check(
            "p = contract x, w\ng = constant [0.5, 0.000001, 3.0] : f32[3]\ny = mul p, g",
            false,
        );
        check(
            "p = contract x, w\nr = relu p\ng = constant [0.5, -2.0, 3.0] : f32[3]\ny = mul r, g",
            false,
        );
    }
}
