//! The names of targets: those of processors, and of the products that have them.

use super::{Architecture, TARGETS};

/// The text does not name a target.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TargetError {
    #[error(
        "unknown target {text:?}{}; known: {}, and the names of products (`graphc targets`)",
        likely.as_ref().map_or(String::new(), |name| format!(" (meant {name:?}?)")),
        names().join(", ")
    )]
    Unknown { text: String, likely: Option<String> },
    #[error("target {target:?} has the unknown feature {feature:?}; known: sramecc+, sramecc-, xnack+, xnack-")]
    Feature { target: String, feature: String },
}

/// Returns the names of all targets, without those of products.
pub fn names() -> Vec<&'static str> {
    TARGETS.iter().map(|t| t.name).collect()
}

/// Makers and families, which a product's name may begin with.
const MAKERS: [&str; 4] = ["amd", "nvidia", "radeon", "instinct"];

/// A name in small letters, without what people write differently: spaces, hyphens, who made it.
fn plain(name: &str) -> String {
    let letters = name.chars().filter(|c| !c.is_whitespace() && !matches!(c, '-' | '_'));
    let mut name: String = letters.flat_map(char::to_lowercase).collect();
    while let Some(rest) = MAKERS
        .iter()
        .find_map(|maker| name.strip_prefix(maker))
        .filter(|rest| !rest.is_empty())
    {
        name = rest.to_owned();
    }
    name
}

/// The target of a name.
pub(super) fn find(name: &str) -> Option<&'static Architecture> {
    let wanted = plain(name);
    let is = |known: &&str| plain(known) == wanted;
    TARGETS
        .iter()
        .find(|t| t.name == name || is(&t.name) || t.aliases.iter().any(is))
}

/// The error of a name that is no target's, with the one that is most like it.
pub(super) fn unknown(text: &str, name: &str) -> TargetError {
    let wanted = plain(name);
    let all = TARGETS.iter().flat_map(|t| t.aliases.iter().chain([&t.name]));
    let nearest = all
        .map(|known| (strsim::osa_distance(&plain(known), &wanted), *known))
        .min();
    TargetError::Unknown {
        text: text.to_owned(),
        // A third of the letters may be wrong.
        likely: nearest
            .filter(|(distance, _)| distance * 3 <= wanted.len())
            .map(|(_, known)| known.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;

    #[test]
    fn products_are_names_of_targets() {
        for (text, name) in [
            ("rx7800xt", "gfx1101"),
            ("RX 7800 XT", "gfx1101"),
            ("Radeon RX 9060 XT", "gfx1200"),
            ("AMD Radeon RX-6700-XT", "gfx1031"),
            ("radeonvii", "gfx906"),
            ("Instinct MI300X", "gfx942"),
            ("mi300x:xnack-", "gfx942:xnack-"),
            ("780m", "gfx1103"),
            ("GFX90A", "gfx90a"),
            ("gfx11_generic", "gfx11-generic"),
            ("H200", "sm_90"),
        ] {
            let found: Target = text.parse().unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(found.to_string(), name, "{text}");
        }
    }

    #[test]
    fn no_two_targets_have_one_name() {
        let all: Vec<String> = TARGETS
            .iter()
            .flat_map(|t| t.aliases.iter().chain([&t.name]))
            .map(|name| plain(name))
            .collect();
        for (i, name) in all.iter().enumerate() {
            assert!(!name.is_empty() && !all[..i].contains(name), "{name}");
        }
    }

    #[test]
    fn what_is_mistyped_is_named() {
        let likely = |text: &str| match text.parse::<Target>() {
            Err(TargetError::Unknown { likely, .. }) => likely,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(likely("gfx94"), Some("gfx942".to_owned()));
        assert_eq!(likely("rx7800tx"), Some("RX 7800 XT".to_owned()));
        assert_eq!(likely("m1300x"), Some("MI300X".to_owned()));
        assert_eq!(likely("banana"), None);
    }
}
