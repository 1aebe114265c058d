//! Text that is safe to print: names come from files, and a terminal obeys some characters.

use std::borrow::Cow;

/// Whether a terminal may do something else with a character than show it: control characters but line ends and tabs, and those that
/// change the direction of text.
fn is_obeyed(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t')) || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Spells such characters out, as `\u{1b}`.
pub fn text(text: &str) -> Cow<'_, str> {
    spelled(text, |c| c.escape_default().to_string())
}

/// Spells them as JSON does, `\u009b`, in the text of a document, where they are within strings.
pub fn json(text: &str) -> Cow<'_, str> {
    spelled(text, |c| format!("\\u{:04x}", u32::from(c)))
}

fn spelled(text: &str, spell: impl Fn(char) -> String) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_obeyed(c) {
            true => out += &spell(c),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_spelled_out() {
        for (raw, shown) in [
            ("plain ünïcode\n\tline", "plain ünïcode\n\tline"),
            ("\u{1b}[2Jgone", "\\u{1b}[2Jgone"),
            ("a\rb\u{9b}31m\u{7f}", "a\\rb\\u{9b}31m\\u{7f}"),
            ("\u{202e}txt", "\\u{202e}txt"),
        ] {
            assert_eq!(text(raw), shown);
        }
        let document = serde_json::to_string(&"\u{1b}\u{9b}\u{202e}").expect("a string");
        let safe = json(&document);
        assert_eq!(safe, "\"\\u001b\\u009b\\u202e\"");
        let back: String = serde_json::from_str(&safe).expect("still JSON");
        assert_eq!(back, "\u{1b}\u{9b}\u{202e}");
    }
}
