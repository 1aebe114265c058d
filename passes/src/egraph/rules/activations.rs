//! Activations in the spellings of exporters.
//!
//! Products are matched in the three ways of bracketing; their order is a rule of its own (`commute`). Divisions by
//! numbers are products, and powers are products, after simplify.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use ir::Op;
use ir::op::{BinaryOp, UnaryOp};

use super::{Sign, Spec};

/// The rules.
pub fn rules() -> Vec<Spec> {
    [gelu_erf(), gelu_tanh(), silu(), hard_swish(), mish()].concat()
}

fn spec(name: &'static str, sign: Sign, from: String, to: &str, numbers: &[(&'static str, f64)]) -> Spec {
    Spec {
        name,
        sign,
        from,
        to: to.to_owned(),
        numbers: numbers.to_vec(),
    }
}

/// `?x · ?h · tail` in each bracketing.
fn halved(tail: &str) -> [String; 3] {
    [
        format!("(mul (mul ?x ?h) {tail})"),
        format!("(mul ?x (mul {tail} ?h))"),
        format!("(mul (mul ?x {tail}) ?h)"),
    ]
}

/// `x/2 · (1 + erf(x/√2))`, also as `x · (erf(x/√2)/2 + 1/2)`.
fn gelu_erf() -> Vec<Spec> {
    let erf: Sign = |op| *op == Op::unary(UnaryOp::Erf);
    let numbers = [("?h", 0.5), ("?r", FRAC_1_SQRT_2), ("?one", 1.0)];
    let mut rules: Vec<Spec> = halved("(add (erf (mul ?x ?r)) ?one)")
        .into_iter()
        .map(|from| spec("gelu_erf", erf, from, "(gelu ?x)", &numbers))
        .collect();
    rules.push(spec(
        "gelu_erf",
        erf,
        "(mul ?x (add (mul (erf (mul ?x ?r)) ?h) ?h))".to_owned(),
        "(gelu ?x)",
        &numbers[..2],
    ));
    rules
}

/// `x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³)))`, the cube bracketed either way or with `x` pulled out.
fn gelu_tanh() -> Vec<Spec> {
    let numbers = [
        ("?h", 0.5),
        ("?one", 1.0),
        ("?k", FRAC_2_SQRT_PI * FRAC_1_SQRT_2),
        ("?c", 0.044715),
    ];
    let inner = [
        "(mul (add ?x (mul (mul (mul ?x ?x) ?x) ?c)) ?k)",
        "(mul (add ?x (mul (mul (mul ?x ?x) ?c) ?x)) ?k)",
        "(mul (add ?x (mul (mul (mul ?x ?c) ?x) ?x)) ?k)",
        "(mul (mul ?x ?k) (add (mul (mul ?x ?x) ?c) ?one))",
        "(mul (mul ?x ?k) (add (mul (mul ?x ?c) ?x) ?one))",
        "(mul ?x (mul (add (mul (mul ?x ?x) ?c) ?one) ?k))",
    ];
    let tails = inner.iter().map(|inner| format!("(add (tanh {inner}) ?one)"));
    tails
        .flat_map(|tail| halved(&tail))
        .map(|from| {
            spec(
                "gelu_tanh",
                |op| *op == Op::unary(UnaryOp::Tanh),
                from,
                "(gelu_tanh ?x)",
                &numbers,
            )
        })
        .collect()
}

/// `x · sigmoid(x)`, and the sigmoid itself.
fn silu() -> Vec<Spec> {
    let exp: Sign = |op| *op == Op::unary(UnaryOp::Exp);
    vec![
        spec(
            "sigmoid",
            exp,
            "(recip (add (exp (neg ?x)) ?one))".to_owned(),
            "(sigmoid ?x)",
            &[("?one", 1.0)],
        ),
        spec(
            "silu",
            |op| *op == Op::unary(UnaryOp::Sigmoid),
            "(mul ?x (sigmoid ?x))".to_owned(),
            "(silu ?x)",
            &[],
        ),
        spec(
            "silu",
            exp,
            "(div ?x (add (exp (neg ?x)) ?one))".to_owned(),
            "(silu ?x)",
            &[("?one", 1.0)],
        ),
    ]
}

/// `x · clamp(x + 3, 0, 6) / 6`, also as `x · clamp(x/6 + 1/2, 0, 1)`.
fn hard_swish() -> Vec<Spec> {
    // A ReLU alone is no sign of its clamp.
    let min: Sign = |op| *op == Op::binary(BinaryOp::Min);
    let numbers = [("?three", 3.0), ("?six", 6.0), ("?r", 1.0 / 6.0)];
    let clamp = "(min (relu (add ?x ?three)) ?six)";
    let mut rules: Vec<Spec> = [
        format!("(mul ?x (mul {clamp} ?r))"),
        format!("(mul (mul ?x {clamp}) ?r)"),
        format!("(mul (mul ?x ?r) {clamp})"),
    ]
    .into_iter()
    .map(|from| spec("hard_swish", min, from, "(hard_swish ?x)", &numbers))
    .collect();
    rules.push(spec(
        "hard_swish",
        min,
        "(mul ?x (min (relu (add (mul ?x ?r) ?h)) ?one))".to_owned(),
        "(hard_swish ?x)",
        &[("?r", 1.0 / 6.0), ("?h", 0.5), ("?one", 1.0)],
    ));
    rules
}

/// `x · tanh(softplus(x))`.
fn mish() -> Vec<Spec> {
    vec![spec(
        "mish",
        |op| *op == Op::unary(UnaryOp::Softplus),
        "(mul ?x (tanh (softplus ?x)))".to_owned(),
        "(mish ?x)",
        &[],
    )]
}
