//! Byte-level BPE, as GPT-2 has it: text is split by rules, and the bytes of each piece are merged by rank.
//!
//! Merging is the `tokenizers` crate's; the rules are llama.cpp's, by the name that files have in `tokenizer.ggml.pre`.

use std::collections::HashMap;
use std::sync::LazyLock;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{SplitDelimiterBehavior, Tokenizer};

use crate::error::{Error, Result};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A way of splitting: its names, its expressions (each splits what the one before left), whether a text gets a token
/// at its beginning, and whether a piece that is a token is taken whole, whatever the merges say.
struct Rule {
    names: &'static [&'static str],
    splits: &'static [&'static str],
    adds_begin: bool,
    takes_whole: bool,
}

const RULES: &[Rule] = &[
    Rule {
        names: &["llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2"],
        splits: &[LLAMA3],
        adds_begin: true,
        takes_whole: true,
    },
    Rule {
        names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        splits: &[LLAMA3],
        adds_begin: false,
        takes_whole: false,
    },
    Rule {
        names: &["qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "grok-2"],
        splits: &[QWEN2],
        adds_begin: false,
        takes_whole: false,
    },
    Rule {
        names: &["gpt-2", "phi-2", "mpt", "olmo", "jais"],
        splits: &[GPT2],
        adds_begin: false,
        takes_whole: false,
    },
    Rule {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"],
        splits: &[r"\p{N}", GPT2],
        adds_begin: false,
        takes_whole: false,
    },
    Rule {
        names: &["gpt-4o", "llama4"],
        splits: &[GPT4O],
        adds_begin: false,
        takes_whole: false,
    },
    Rule {
        names: &["tekken"],
        splits: &[TEKKEN],
        adds_begin: true,
        takes_whole: true,
    },
    Rule {
        names: &["default"],
        splits: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        adds_begin: false,
        takes_whole: false,
    },
];

/// A vocabulary with its merges.
pub struct Bpe {
    tokenizer: Tokenizer,
    pub adds_begin: bool,
}

impl Bpe {
    /// Makes the model of `a b` merges, the first ones first, and a rule by its name.
    ///
    /// # Errors
    /// A name that is not known; a merge of no two tokens.
    pub fn new(texts: &[String], merges: &[String], pre: &str) -> std::result::Result<Bpe, String> {
        let Some(rule) = RULES.iter().find(|rule| rule.names.contains(&pre)) else {
            let known: Vec<&str> = RULES.iter().flat_map(|rule| rule.names).copied().collect();
            return Err(format!(
                "tokenizer.ggml.pre is {pre:?}, a way of splitting text that is not supported; supported are {}",
                known.join(", ")
            ));
        };
        // The first of two equal texts is the token.
        let mut vocabulary = Vocab::default();
        for (id, text) in texts.iter().enumerate() {
            vocabulary.entry(text.clone()).or_insert(id as u32);
        }
        let pairs = merges.iter().map(|merge| {
            // A token may begin with a space, so the first place is not looked at.
            let bytes = merge.as_bytes();
            let space = bytes.iter().skip(1).position(|byte| *byte == b' ').map(|at| at + 1);
            let pair = space.map(|at| (merge[..at].to_owned(), merge[at + 1..].to_owned()));
            pair.ok_or_else(|| format!("tokenizer.ggml.merges has {merge:?}, which is no pair"))
        });
        let pairs = pairs.collect::<std::result::Result<Vec<_>, _>>()?;
        let model = BPE::builder()
            .vocab_and_merges(vocabulary, pairs)
            .ignore_merges(rule.takes_whole)
            .build()
            .map_err(|error| format!("tokenizer.ggml.merges do not fit the tokens: {error}"))?;
        let mut steps = Vec::new();
        for split in rule.splits {
            let pattern = SplitPattern::Regex((*split).to_owned());
            let split =
                Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(|error| error.to_string())?;
            steps.push(PreTokenizerWrapper::Split(split));
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)));
        let mut tokenizer = Tokenizer::new(model);
        tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
        Ok(Bpe {
            tokenizer,
            adds_begin: rule.adds_begin,
        })
    }

    /// Adds the tokens of a text.
    pub fn encode(&self, text: &str, tokens: &mut Vec<u32>) -> Result<()> {
        let encoded = self.tokenizer.encode_fast(text, false);
        let encoded =
            encoded.map_err(|error| Error::Usage(format!("the text cannot be split into tokens: {error}")))?;
        tokens.extend_from_slice(encoded.get_ids());
        Ok(())
    }
}

/// GPT-2's letters for bytes: printable ones stand for themselves, the others for code points from 256 on, in order.
static BYTES: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let is_itself = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let themselves = (0..=255u8).filter(is_itself).map(|byte| (char::from(byte), byte));
    let others = (0..=255u8).filter(|byte| !is_itself(byte)).zip(256u32..);
    let others = others.filter_map(|(byte, point)| Some((char::from_u32(point)?, byte)));
    themselves.chain(others).collect()
});

/// The bytes that a token's text stands for; letters that stand for none are themselves.
pub fn bytes_of(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for letter in text.chars() {
        match BYTES.get(&letter) {
            Some(byte) => bytes.push(*byte),
            None => bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}
