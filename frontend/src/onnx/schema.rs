//! How many inputs and which attributes the versions of ONNX's operators have.
//!
//! An attribute of another version, one that is misspelt, or an input too many would change nothing in silence: they
//! are refused, as onnxruntime and ONNX's checker refuse them.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::error::NodeProblem;
use super::proto::{AttributeProto, NodeProto};

/// A line for each version that differs from the one before: the operator (with its domain, but ONNX's own), the
/// operator set that it came with, how many inputs it has at most (`*`: any number), its attributes.
/// `scripts/py/onnx_schemas.py` writes it.
const TEXT: &str = include_str!("schemas.txt");

/// An operator from an operator set on.
#[derive(Debug)]
struct Schema {
    since: i64,
    inputs: Option<usize>,
    attributes: Vec<&'static str>,
}

static SCHEMAS: LazyLock<HashMap<&'static str, Vec<Schema>>> = LazyLock::new(|| {
    let mut schemas: HashMap<&'static str, Vec<Schema>> = HashMap::new();
    for line in TEXT.lines() {
        let mut words = line.split(' ');
        if let (Some(name), Some(Ok(since)), Some(inputs)) = (words.next(), words.next().map(str::parse), words.next())
        {
            schemas.entry(name).or_default().push(Schema {
                since,
                inputs: inputs.parse().ok(),
                attributes: words.collect(),
            });
        }
    }
    schemas
});

/// What an operator is in an operator set of its domain; None where no schema says it.
fn find(domain: &str, op: &str, opset: i64) -> Option<&'static Schema> {
    let versions = match domain {
        "" => SCHEMAS.get(op),
        _ => SCHEMAS.get(format!("{domain}.{op}").as_str()),
    };
    versions?.iter().rfind(|schema| schema.since <= opset)
}

/// Refuses attributes and inputs that the operator does not have. Attributes whose names begin with two underscores are
/// anyone's.
pub(super) fn check(
    node: &NodeProto,
    domain: &str,
    opset: i64,
    attributes: &[(&str, &AttributeProto)],
) -> Result<(), NodeProblem> {
    let Some(schema) = find(domain, &node.op_type, opset) else {
        return Ok(());
    };
    let unknown = |name: &&str| !schema.attributes.contains(name) && !name.starts_with("__");
    if let Some(name) = attributes.iter().map(|(name, _)| *name).find(unknown) {
        return Err(NodeProblem::UnknownAttribute {
            name: name.to_owned(),
            known: match schema.attributes[..] {
                [] => "none".to_owned(),
                _ => schema.attributes.join(", "),
            },
        });
    }
    let given = node
        .input
        .iter()
        .rposition(|name| !name.is_empty())
        .map_or(0, |at| at + 1);
    match schema.inputs {
        Some(most) if given > most => Err(NodeProblem::InputCount { most, given }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_their_own_inputs_and_attributes() {
        let of = |domain, op, opset| find(domain, op, opset).map(|s| (s.inputs, s.attributes.join(" ")));
        assert_eq!(of("", "Clip", 6), Some((Some(1), "max min".to_owned())));
        assert_eq!(of("", "Clip", 11), Some((Some(3), String::new())));
        assert_eq!(of("", "Add", 6), Some((Some(2), "axis broadcast".to_owned())));
        assert_eq!(of("", "Concat", 13), Some((None, "axis".to_owned())));
        assert_eq!(
            of("ai.onnx.ml", "Scaler", 1),
            Some((Some(1), "offset scale".to_owned()))
        );
        assert_eq!(of("", "Swish", 13), None);
        assert_eq!(of("com.microsoft", "Gelu", 1), None);
    }
}
