//! Text that is safe to print: names come from files, and a terminal obeys some characters.

use std::borrow::Cow;

/// Whether a terminal may do something else with a character than show it: control characters but line ends and tabs,
/// and those that change the direction of text.
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

/// The most characters of a name that are shown.
const SHOWN: usize = 96;

/// A name on one line: of a long one the beginning and the end are shown, and how long it is.
pub fn name(name: &str) -> Cow<'_, str> {
    let length = name.chars().count();
    let shown = match length > SHOWN {
        false => Cow::Borrowed(name),
        true => {
            let part = |skip: usize, take: usize| name.chars().skip(skip).take(take).collect::<String>();
            let (begin, end) = (part(0, SHOWN * 2 / 3), part(length - SHOWN / 4, SHOWN / 4));
            Cow::Owned(format!("{begin}…{end} ({length} characters)"))
        }
    };
    match shown.contains(['\n', '\t']) {
        true => Cow::Owned(shown.replace('\n', "\\n").replace('\t', "\\t")),
        false => shown,
    }
}

/// The most characters of a word that are shown: paths are shorter, names can be of any length.
const WORD: usize = 400;

/// A text for people, whose lines hold names of other makers: of each long word the beginning and the end are shown.
pub fn words(text: &str) -> Cow<'_, str> {
    // Bytes are no fewer than characters.
    let is_long = |word: &str| word.len() > WORD && word.chars().count() > WORD;
    if !text.split_whitespace().any(is_long) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    for piece in text.split_inclusive(char::is_whitespace) {
        let word = piece.trim_end();
        match is_long(word) {
            true => {
                out += &name(word);
                out += &piece[word.len()..];
            }
            false => out += piece,
        }
    }
    Cow::Owned(out)
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
    fn names_are_one_line_and_not_long() {
        assert_eq!(name("a/b:0"), "a/b:0");
        assert_eq!(name("a\nb\tc"), "a\\nb\\tc");
        let long = "ü".repeat(70_000) + "end";
        let shown = name(&long);
        assert!(shown.chars().count() < 130, "{shown}");
        assert!(
            shown.ends_with("end (70003 characters)") && shown.contains('…'),
            "{shown}"
        );
    }

    #[test]
    fn long_words_are_shortened_where_they_stand() {
        assert_eq!(words("a short line\n"), "a short line\n");
        let text = format!("size {}: 1..\n  input x: f32[2]\n", "n".repeat(70_000));
        let shown = words(&text);
        assert!(shown.len() < 250, "{shown}");
        assert!(
            shown.starts_with("size nnn") && shown.ends_with(" 1..\n  input x: f32[2]\n"),
            "{shown}"
        );
        assert!(shown.contains("(70001 characters)"), "{shown}");
    }

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
