//! Special tokens in a text.

use std::collections::BTreeMap;

/// A part of a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part<'a> {
    Text(&'a str),
    Token(u32),
}

/// Tokens that are found in a text before all else: by their first byte, the longest first.
#[derive(Clone, Debug, Default)]
pub struct Specials {
    by_first: BTreeMap<u8, Vec<Special>>,
}

#[derive(Clone, Debug)]
struct Special {
    text: String,
    token: u32,
    is_control: bool,
}

impl Specials {
    /// Adds a token. Control tokens are looked for in trusted text alone.
    pub fn add(&mut self, text: &str, token: u32, is_control: bool) {
        let Some(first) = text.bytes().next() else { return };
        let list = self.by_first.entry(first).or_default();
        let at = list.partition_point(|other| other.text.len() >= text.len());
        let text = text.to_owned();
        list.insert(
            at,
            Special {
                text,
                token,
                is_control,
            },
        );
    }

    /// Cuts a text at its special tokens; no part of text is empty.
    pub fn split<'a>(&self, text: &'a str, trusted: bool) -> Vec<Part<'a>> {
        let (mut parts, mut start, mut at) = (Vec::new(), 0, 0);
        let bytes = text.as_bytes();
        while at < bytes.len() {
            let found = self.by_first.get(&bytes[at]).and_then(|list| {
                list.iter().find(|special| {
                    (trusted || !special.is_control) && bytes[at..].starts_with(special.text.as_bytes())
                })
            });
            let Some(special) = found else {
                at += 1;
                continue;
            };
            // A token's text is UTF-8, so it begins and ends between characters.
            if start < at {
                parts.push(Part::Text(&text[start..at]));
            }
            parts.push(Part::Token(special.token));
            at += special.text.len();
            start = at;
        }
        if start < text.len() {
            parts.push(Part::Text(&text[start..]));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_token_is_cut_out_and_control_tokens_only_of_trusted_text() {
        let mut specials = Specials::default();
        specials.add("<a>", 1, true);
        specials.add("<a>b", 2, false);
        specials.add("é", 3, true);
        let split = |text, trusted| specials.split(text, trusted);
        assert_eq!(
            split("x<a>b<a>", true),
            [Part::Text("x"), Part::Token(2), Part::Token(1)]
        );
        assert_eq!(
            split("x<a>b<a>", false),
            [Part::Text("x"), Part::Token(2), Part::Text("<a>")]
        );
        assert_eq!(
            split("caféé", true),
            [Part::Text("caf"), Part::Token(3), Part::Token(3)]
        );
        assert_eq!(split("", true), []);
    }
}
