//! The names that [`OptimizeOptions::disable`](crate::OptimizeOptions) takes: passes, and rules within them.

use std::collections::BTreeSet;

use crate::options::OptLevel;
use crate::{egraph, fold, layout, pipeline, simplify};

/// Rules that a pass asks for by name rather than keeping in a table.
const IN_PASSES: &[&str] = &[
    "uniform_index",
    crate::masks::RULE,
    "gather_by_position",
    "gather_by_flat_position",
    crate::positions::SCATTER_RULE,
    "batch_norm_into_conv",
    "channel_constant_into_conv",
    crate::fold_batch_norm::BRANCHES_RULE,
    crate::quantize::weights::RULE,
    crate::quantize::weights::SIGNED_RULE,
    crate::lower::winograd::RULE,
    crate::lower::unpacked::RULE,
];

/// A name that cannot be disabled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NameError {
    /// Nothing has this name.
    #[error(
        "no pass or rule is named {name:?}{}; passes: {}; rules: {}",
        nearest(name).map_or(String::new(), |n| format!(" (meant {n:?}?)")),
        sorted(name, passes()).join(", "),
        sorted(name, rules()).join(", ")
    )]
    Unknown { name: String },
    /// The Core stage needs the pass.
    #[error("pass {name:?} cannot be left out: what follows needs it")]
    Required { name: String },
}

/// Checks that each name is that of a pass or rule that can be left out.
///
/// # Errors
/// The first name that is not.
pub fn check(names: &BTreeSet<String>) -> Result<(), NameError> {
    for name in names {
        if required(name) {
            return Err(NameError::Required { name: name.clone() });
        }
        if !passes().contains(&name.as_str()) && !rules().contains(&name.as_str()) {
            return Err(NameError::Unknown { name: name.clone() });
        }
    }
    Ok(())
}

/// Returns the passes that can be left out, each once.
pub fn passes() -> Vec<&'static str> {
    let mut names = pipeline::names();
    names.retain(|n| !required(n));
    names
}

/// Returns the rules that can be left out, each once.
pub fn rules() -> Vec<&'static str> {
    let mut names: Vec<&'static str> = simplify::rules().map(|r| r.name).collect();
    names.push(fold::RULE.name);
    names.extend(egraph::rules::names());
    names.extend(layout::names());
    names.extend(IN_PASSES);
    names.sort_unstable();
    names.dedup();
    names
}

fn required(name: &str) -> bool {
    [OptLevel::O0, OptLevel::O2]
        .into_iter()
        .flat_map(pipeline::passes)
        .any(|p| p.required && p.name == name)
}

/// The name that is most like one, where it is near enough to be what was meant.
fn nearest(name: &str) -> Option<&'static str> {
    let all = passes().into_iter().chain(rules());
    let (distance, found) = all.map(|n| (strsim::osa_distance(name, n), n)).min()?;
    (distance <= name.len().max(found.len()) / 2).then_some(found)
}

/// Names with those most like `name` first.
fn sorted(name: &str, mut names: Vec<&'static str>) -> Vec<&'static str> {
    names.sort_by_key(|n| strsim::osa_distance(name, n));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str) -> Result<(), NameError> {
        check(&BTreeSet::from([name.to_owned()]))
    }

    #[test]
    fn names_of_passes_and_rules_are_known_and_others_are_told_apart() {
        for name in ["simplify", "egraph", "fold_constants", "attention", "miopen"] {
            assert_eq!(one(name), Ok(()), "{name}");
        }
        let error = one("fold_constant").expect_err("no such rule").to_string();
        assert!(error.contains("(meant \"fold_constants\"?)"), "{error}");
        assert!(
            error.contains("rules: fold_constants, "),
            "the nearest is first: {error}"
        );
        let error = one("zzzzzzzzzzzzzzzzzzzz").expect_err("no such rule").to_string();
        assert!(!error.contains("meant"), "{error}");
        assert!(matches!(one("decompose"), Err(NameError::Required { .. })));
    }
}
