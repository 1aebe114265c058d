//! Orders and bracketings that the cost decides between.

use ir::Op;

use super::{Sign, Spec};

/// The rules.
pub fn rules() -> Vec<Spec> {
    let spec = |name, sign, from: String, to: String| Spec {
        name,
        sign,
        from,
        to,
        numbers: Vec::new(),
    };
    let mut rules: Vec<Spec> = ["add", "mul"]
        .into_iter()
        .map(|op| {
            spec(
                super::COMMUTE,
                |_| false,
                format!("({op} ?a ?b)"),
                format!("({op} ?b ?a)"),
            )
        })
        .collect();
    // (A·B)·C = A·(B·C): the cheaper one depends on the sizes. Of finite numbers: where A has infinities, ∞ · c + ∞ · d
    // may be NaN in one bracketing and ∞ · (c + d) infinite in the other.
    let product: Sign = |op| matches!(op, Op::Contract(_));
    for t in ["f32", "f16", "bf16"] {
        let left = format!("(matmul.{t} (matmul.{t} ?a ?b) ?c)");
        let right = format!("(matmul.{t} ?a (matmul.{t} ?b ?c))");
        rules.push(spec("reassociate_left", product, right.clone(), left.clone()));
        rules.push(spec("reassociate_right", product, left, right));
    }
    rules
}
