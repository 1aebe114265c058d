//! Bytes of tokens to text, one token after the other.

/// Joins the bytes of tokens, and holds back those of a character that is not whole yet.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    held: Vec<u8>,
    /// Whether the next byte is dropped if it is a space.
    drops_space: bool,
}

impl Decoder {
    pub(super) fn new(drops_space: bool) -> Decoder {
        Decoder {
            held: Vec::new(),
            drops_space,
        }
    }

    /// Adds a token's bytes (none of a control token) and gives out the characters that are whole now. Bytes that can
    /// be no part of a character become U+FFFD.
    pub fn push(&mut self, bytes: Option<&[u8]>) -> String {
        let Some(mut bytes) = bytes else { return String::new() };
        if self.drops_space && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.drops_space = false;
        }
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.held) {
                Ok(whole) => {
                    text.push_str(whole);
                    self.held.clear();
                    return text;
                }
                Err(error) => {
                    let (valid, rest) = self.held.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    match error.error_len() {
                        // The rest may become a character.
                        None => {
                            self.held = rest.to_vec();
                            return text;
                        }
                        Some(length) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            self.held = rest[length..].to_vec();
                        }
                    }
                }
            }
        }
    }

    /// Ends the text: what is held back is no character.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_never_split() {
        let text = "aé中🦀b";
        let mut decoder = Decoder::default();
        let mut joined = String::new();
        for byte in text.bytes() {
            let piece = decoder.push(Some(&[byte]));
            assert!(piece.chars().count() <= 1 && !piece.contains('\u{fffd}'), "{piece:?}");
            joined.push_str(&piece);
        }
        assert_eq!(joined, text);
        assert_eq!(decoder.finish(), "");
    }

    #[test]
    fn bytes_that_are_no_character_do_not_stop_the_text() {
        let mut decoder = Decoder::new(true);
        assert_eq!(decoder.push(Some(b" a")), "a");
        assert_eq!(decoder.push(Some(b" b\xff")), " b\u{fffd}");
        assert_eq!(decoder.push(None), "");
        assert_eq!(decoder.push(Some(b"\xf0\x9f")), "");
        // Another character begins: the one before can never become whole.
        assert_eq!(decoder.push(Some(b"c\xe4")), "\u{fffd}c");
        assert_eq!(decoder.finish(), "\u{fffd}");
    }
}
