//! SentencePiece's BPE by scores (Kudo and Richardson, 2018), as llama.cpp runs it: characters are joined as long as
//! two neighbours are a token, the pair of the highest score first, the leftmost of equal ones.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::{BYTE, CONTROL};

/// What stands for a space in tokens, U+2581.
pub const SPACE: &str = "\u{2581}";

/// The vocabulary.
#[derive(Clone, Debug)]
pub struct SentencePiece {
    tokens: HashMap<String, u32>,
    scores: Vec<f32>,
    /// The tokens of single bytes.
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
}

/// The byte of a token like `<0x0A>`.
pub fn byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// Neighbours that are a token together. The greatest is joined first.
#[derive(Clone, Copy, Debug)]
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both when they were found, by which a pair is known whose parts have changed since.
    length: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}
impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Pair {}

/// A part of the text, in a list of neighbours. One that was joined to its left has no length.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: usize,
    length: usize,
    left: Option<usize>,
    right: Option<usize>,
}

impl SentencePiece {
    /// Makes the vocabulary; `types` are those of `tokenizer.ggml.token_type`. All three are of one length.
    pub fn new(texts: &[String], scores: Vec<f32>, types: &[u64], unknown: Option<u32>) -> SentencePiece {
        let mut tokens = HashMap::new();
        let mut bytes = vec![None; 256];
        for (id, (text, ty)) in texts.iter().zip(types).enumerate() {
            match *ty {
                BYTE => {
                    if let Some(byte) = byte(text) {
                        bytes[usize::from(byte)] = Some(id as u32);
                    }
                }
                CONTROL => {}
                _ => {
                    tokens.entry(text.clone()).or_insert(id as u32);
                }
            }
        }
        SentencePiece {
            tokens,
            scores,
            bytes,
            unknown,
        }
    }

    /// Adds the tokens of a text, before which a space may be put.
    pub fn encode(&self, text: &str, space_prefix: bool, tokens: &mut Vec<u32>) {
        let mut marked = String::with_capacity(text.len() + 3);
        if space_prefix {
            marked.push_str(SPACE);
        }
        marked.push_str(&text.replace(' ', SPACE));
        let text = marked.as_str();
        let mut symbols: Vec<Symbol> = Vec::new();
        for (start, letter) in text.char_indices() {
            let at = symbols.len();
            symbols.push(Symbol {
                start,
                length: letter.len_utf8(),
                left: at.checked_sub(1),
                right: Some(at + 1),
            });
        }
        if let Some(last) = symbols.last_mut() {
            last.right = None;
        }
        let mut pairs = BinaryHeap::new();
        for right in 1..symbols.len() {
            pairs.extend(self.pair(text, &symbols, right - 1, right));
        }
        while let Some(pair) = pairs.pop() {
            let (left, right) = (symbols[pair.left], symbols[pair.right]);
            if left.length == 0 || right.length == 0 || left.length + right.length != pair.length {
                continue;
            }
            symbols[pair.left].length = pair.length;
            symbols[pair.left].right = right.right;
            symbols[pair.right].length = 0;
            if let Some(next) = right.right {
                symbols[next].left = Some(pair.left);
                pairs.extend(self.pair(text, &symbols, pair.left, next));
            }
            if let Some(before) = left.left {
                pairs.extend(self.pair(text, &symbols, before, pair.left));
            }
        }
        for symbol in symbols.iter().filter(|symbol| symbol.length > 0) {
            let piece = &text[symbol.start..symbol.start + symbol.length];
            match self.tokens.get(piece) {
                Some(token) => tokens.push(*token),
                None => tokens.extend(
                    piece
                        .bytes()
                        .filter_map(|byte| self.bytes[usize::from(byte)].or(self.unknown)),
                ),
            }
        }
    }

    fn pair(&self, text: &str, symbols: &[Symbol], left: usize, right: usize) -> Option<Pair> {
        let (one, other) = (symbols[left], symbols[right]);
        let length = one.length + other.length;
        let token = *self.tokens.get(&text[one.start..one.start + length])?;
        Some(Pair {
            score: self.scores[token as usize],
            left,
            right,
            length,
        })
    }
}
