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
    /// A processor without a row of its own, or a product that has one.
    #[error(
        "target {text:?}{} has no code of its own; code for {generic} runs on it: name that",
        if text == processor { String::new() } else { format!(" ({processor})") }
    )]
    Served {
        text: String,
        processor: &'static str,
        generic: &'static str,
    },
    #[error("target {target:?} has the unknown feature {feature:?}; known: sramecc+, sramecc-, xnack+, xnack-")]
    Feature { target: String, feature: String },
}

/// Returns the names of all targets, without those of products.
pub fn names() -> Vec<&'static str> {
    TARGETS.iter().map(|t| t.name).collect()
}

/// Makers and families, which a product's name may begin with.
const MAKERS: [&str; 6] = ["amd", "nvidia", "radeon", "instinct", "ai", "pro"];

/// Products of processors that have no row, which a generic processor serves. Source: LLVM's AMDGPU usage page.
const SERVED_PRODUCTS: &[(&str, &str)] = &[
    ("MI25", "gfx900"),
    ("RX Vega 56", "gfx900"),
    ("RX Vega 64", "gfx900"),
    ("Vega Frontier Edition", "gfx900"),
    ("Pro V520", "gfx1011"),
    ("RX 5300", "gfx1012"),
    ("RX 5500", "gfx1012"),
    ("RX 5500 XT", "gfx1012"),
    ("Pro W5500", "gfx1012"),
];

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

/// The error of a name that is no target's: with the generic one that serves it, or with the one that is most like it.
pub(super) fn unknown(text: &str, name: &str) -> TargetError {
    let wanted = plain(name);
    let product = SERVED_PRODUCTS.iter().find(|(product, _)| plain(product) == wanted);
    let processor = product.map_or(wanted.as_str(), |(_, processor)| processor);
    let served = TARGETS.iter().find_map(|t| {
        let processor = t.serves.iter().find(|served| **served == processor)?;
        Some((*processor, t.name))
    });
    match served {
        Some((processor, generic)) => TargetError::Served {
            text: text.to_owned(),
            processor,
            generic,
        },
        None => TargetError::Unknown {
            text: text.to_owned(),
            likely: likely(&wanted).map(str::to_owned),
        },
    }
}

/// The known name that a mistyped one most likely means: the one that it is the beginning of, or one that differs in a
/// few letters. Digits tell products and processors apart, so a name with others is not meant.
fn likely(wanted: &str) -> Option<&'static str> {
    let all = || {
        let names = TARGETS.iter().flat_map(|t| t.aliases.iter().chain([&t.name]));
        names.map(|known| (plain(known), *known))
    };
    let is_processor = wanted.starts_with("gfx") || wanted.starts_with("sm");
    let longer = |digit: bool| {
        let known = all().filter(|_| wanted.chars().any(|c| c.is_ascii_digit()));
        known.filter(move |(known, _)| {
            let rest = known.strip_prefix(wanted);
            rest.and_then(|rest| rest.chars().next())
                .is_some_and(|c| c.is_ascii_digit() == digit)
        })
    };
    // `gfx94` is no whole name, but `mi25` is one, and not the beginning of `mi250`.
    let mut with_digit = longer(true).filter(|_| is_processor);
    if let (Some((_, known)), None) = (with_digit.next(), with_digit.next()) {
        return Some(known);
    }
    if let Some((_, known)) = longer(false).min_by_key(|(known, _)| known.len()) {
        return Some(known);
    }
    // A third of the letters may be wrong. Of products, `1` may be an `i`.
    let like = all().filter(|(known, _)| has_same_digits(known, wanted, !is_processor));
    let near = like
        .map(|(plain, known)| (strsim::osa_distance(&plain, wanted), known))
        .min();
    near.filter(|(distance, _)| distance * 3 <= wanted.len())
        .map(|(_, known)| known)
}

fn has_same_digits(a: &str, b: &str, one_is_letter: bool) -> bool {
    let digits = |name: &str| -> String {
        let is_one = |c: char| c.is_ascii_digit() && !(one_is_letter && c == '1');
        name.chars().filter(|c| is_one(*c)).collect()
    };
    digits(a) == digits(b)
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
            ("w7900", "gfx1100"),
            ("w6800", "gfx1030"),
            ("v620", "gfx1030"),
            ("r9700", "gfx1201"),
            ("Radeon AI Pro R9700", "gfx1201"),
            ("rx7700s", "gfx1102"),
            ("Radeon Pro VII", "gfx906"),
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
        assert_eq!(likely("rx7800"), Some("RX 7800 XT".to_owned()));
        assert_eq!(likely("gfx11"), Some("gfx11-generic".to_owned()));
        // These are other processors and products than those with names like theirs.
        for other in ["banana", "gfx1105", "gfx803", "mi2", "rx580", "rx7850xt", "rx", "m"] {
            assert_eq!(likely(other), None, "{other}");
        }
    }

    #[test]
    fn what_a_generic_processor_serves_is_told_of_it() {
        for (text, processor, generic) in [
            ("gfx1011", "gfx1011", "gfx10-1-generic"),
            ("gfx1012", "gfx1012", "gfx10-1-generic"),
            ("GFX1013", "gfx1013", "gfx10-1-generic"),
            ("gfx90c", "gfx90c", "gfx9-generic"),
            ("mi25", "gfx900", "gfx9-generic"),
            ("Radeon RX 5500 XT", "gfx1012", "gfx10-1-generic"),
        ] {
            let error = text.parse::<Target>().expect_err(text);
            let text = text.to_owned();
            assert_eq!(
                error,
                TargetError::Served {
                    text,
                    processor,
                    generic
                }
            );
        }
        let message = "rx5500xt".parse::<Target>().expect_err("is served").to_string();
        assert_eq!(
            message,
            "target \"rx5500xt\" (gfx1012) has no code of its own; code for gfx10-1-generic runs on it: name that"
        );
    }
}
