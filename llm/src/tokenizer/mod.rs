//! Text to tokens and back, by the vocabulary in a file's metadata.
//!
//! Special tokens are cut out of the text first, where the caller says that the text may have them; what lies between
//! them goes through the vocabulary's own model. Tokens are bytes: [`Decoder`] joins them, and gives out whole
//! characters only.

mod bpe;
mod sentencepiece;
mod special;
mod stream;

pub use stream::Decoder;

use graphc_gguf::{Array, GgufFile, Value};

use crate::error::{Error, Result};
use bpe::Bpe;
use sentencepiece::SentencePiece;
use special::Specials;

/// `tokenizer.ggml.token_type` of control tokens, tokens that a user defined, and bytes.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const BYTE: u64 = 6;

/// Texts of tokens that end a turn or a text, whatever their ids.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "</s>",
    "<eos>",
    "<|return|>",
    "<|call|>",
];
/// Ends of a part of a turn, where the turn has an end of its own (gpt-oss).
const PART: &str = "<|end|>";
const TURN: &str = "<|return|>";

/// A vocabulary's own model, which splits text without special tokens.
enum Model {
    Bpe(Box<Bpe>),
    SentencePiece(SentencePiece),
}

/// A vocabulary.
pub struct Tokenizer {
    model: Model,
    specials: Specials,
    /// What each token stands for; None for control tokens.
    bytes: Vec<Option<Vec<u8>>>,
    texts: Vec<String>,
    /// The token that begins a text, if that is to be added.
    begin: Option<u32>,
    /// The token that ends a text for an embedding, if that is to be added.
    end: Option<u32>,
    begin_text: String,
    end_text: String,
    ends: Vec<u32>,
    /// Whether a space goes before a text, which is taken off again behind.
    space_prefix: bool,
    /// A line that a user should see.
    pub warning: Option<String>,
}

impl Tokenizer {
    /// Reads the keys `tokenizer.ggml.*`.
    ///
    /// # Errors
    /// Keys that are missing or contradict each other; a model or a way of splitting that is not known, with those that
    /// are.
    pub fn read(file: &GgufFile) -> Result<Tokenizer> {
        let bad = |message: String| Error::Tokenizer {
            path: file.path().to_owned(),
            message,
        };
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let texts = match file.value(&key("tokens"))?.as_array() {
            Some(Array::String(texts)) => texts.clone(),
            _ => return Err(bad("tokenizer.ggml.tokens is no array of texts".to_owned())),
        };
        let types = match file.metadata.get(&key("token_type")) {
            None => vec![1; texts.len()],
            Some(value) => value
                .as_array()
                .and_then(Array::to_unsigned)
                .filter(|types| types.len() == texts.len())
                .ok_or_else(|| bad(format!("tokenizer.ggml.token_type is to be {} integers", texts.len())))?,
        };
        let id = |name: &str| -> Result<Option<u32>> {
            if !file.metadata.contains_key(&key(name)) {
                return Ok(None);
            }
            let id = file.unsigned(&key(name))?;
            let known = u32::try_from(id).ok().filter(|id| (*id as usize) < texts.len());
            known
                .map(Some)
                .ok_or_else(|| bad(format!("{} is {id}, but there are {} tokens", key(name), texts.len())))
        };
        let flag = |name: &str, otherwise: bool| {
            file.metadata
                .get(&key(name))
                .and_then(Value::as_bool)
                .unwrap_or(otherwise)
        };
        let name = file.text(&key("model"))?;
        let mut warning = None;
        let is_sentencepiece = match name {
            "llama" => true,
            "gpt2" => false,
            other => {
                return Err(bad(format!(
                    "the tokenizer model {other:?} is not supported; llama (SentencePiece) and gpt2 (byte-level BPE) are"
                )));
            }
        };
        let mut specials = Specials::default();
        for (id, (text, ty)) in texts.iter().zip(&types).enumerate() {
            if matches!(*ty, CONTROL | USER_DEFINED) && !text.is_empty() {
                specials.add(text, id as u32, *ty == CONTROL);
            }
        }
        let (model, bytes, adds_begin) = if is_sentencepiece {
            let scores = match file.value(&key("scores"))?.as_array() {
                Some(Array::F32(scores)) if scores.len() == texts.len() => scores.clone(),
                _ => {
                    return Err(bad(format!(
                        "tokenizer.ggml.scores is to be {} numbers of f32",
                        texts.len()
                    )));
                }
            };
            let bytes = texts.iter().zip(&types).map(|(text, ty)| match *ty {
                CONTROL => None,
                BYTE => Some(sentencepiece::byte(text).map_or_else(|| text.as_bytes().to_vec(), |byte| vec![byte])),
                _ => Some(text.replace(sentencepiece::SPACE, " ").into_bytes()),
            });
            let bytes: Vec<_> = bytes.collect();
            let model = SentencePiece::new(&texts, scores, &types, id("unknown_token_id")?);
            (Model::SentencePiece(model), bytes, true)
        } else {
            let pre = match file.metadata.get(&key("pre")) {
                Some(_) => file.text(&key("pre"))?,
                None => {
                    warning = Some(format!(
                        "{}: tokenizer.ggml.pre is missing; text is split as llama.cpp's default has it, which the model may not have \
                         been trained with",
                        file.path().display()
                    ));
                    "default"
                }
            };
            let merges = match file.value(&key("merges"))?.as_array() {
                Some(Array::String(merges)) => merges,
                _ => return Err(bad("tokenizer.ggml.merges is no array of texts".to_owned())),
            };
            let bpe = Bpe::new(&texts, merges, pre).map_err(bad)?;
            let bytes = texts.iter().zip(&types).map(|(text, ty)| match *ty {
                CONTROL => None,
                USER_DEFINED => Some(text.clone().into_bytes()),
                _ => Some(bpe::bytes_of(text)),
            });
            let bytes: Vec<_> = bytes.collect();
            let adds_begin = bpe.adds_begin;
            (Model::Bpe(Box::new(bpe)), bytes, adds_begin)
        };
        let (bos, eos) = match is_sentencepiece {
            true => (id("bos_token_id")?.or(Some(1)), id("eos_token_id")?.or(Some(2))),
            false => (id("bos_token_id")?, id("eos_token_id")?),
        };
        let mut ends: Vec<u32> = [eos, id("eot_token_id")?, id("eom_token_id")?]
            .into_iter()
            .flatten()
            .collect();
        let has_turns = texts.iter().any(|text| text == TURN);
        for (id, text) in texts.iter().enumerate() {
            let is_part = text == PART && has_turns;
            if types[id] == CONTROL && ENDS.contains(&text.as_str()) && !is_part {
                ends.push(id as u32);
            }
        }
        ends.sort_unstable();
        ends.dedup();
        let text_of = |id: Option<u32>| id.and_then(|id| texts.get(id as usize).cloned()).unwrap_or_default();
        Ok(Tokenizer {
            model,
            specials,
            bytes,
            begin: bos.filter(|_| flag("add_bos_token", adds_begin)),
            end: eos.filter(|_| flag("add_eos_token", false)),
            begin_text: text_of(bos),
            end_text: text_of(eos),
            ends,
            space_prefix: is_sentencepiece && flag("add_space_prefix", true),
            texts,
            warning,
        })
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// The tokens of a text; `begin` puts the token before it that the vocabulary wants. With `trusted`, control tokens
    /// that are written out in the text are these tokens; else they are letters like others.
    ///
    /// # Errors
    /// A text that the vocabulary has no tokens for.
    pub fn encode(&self, text: &str, begin: bool, trusted: bool) -> Result<Vec<u32>> {
        let mut tokens: Vec<u32> = self.begin.filter(|_| begin).into_iter().collect();
        for part in self.specials.split(text, trusted) {
            match part {
                // A text that has the beginning written out does not begin twice.
                special::Part::Token(token) if begin && tokens == [token] && self.begin == Some(token) => {}
                special::Part::Token(token) => tokens.push(token),
                special::Part::Text(text) => match &self.model {
                    Model::Bpe(bpe) => bpe.encode(text, &mut tokens)?,
                    // llama.cpp: a space goes before the text, and before what follows a special token.
                    Model::SentencePiece(model) => model.encode(text, self.space_prefix, &mut tokens),
                },
            }
        }
        Ok(tokens)
    }

    /// As [`Tokenizer::encode`], of a whole text: with the tokens that begin and end it.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_whole(&self, text: &str, trusted: bool) -> Result<Vec<u32>> {
        let mut tokens = self.encode(text, true, trusted)?;
        tokens.extend(self.end.filter(|end| tokens.last() != Some(end)));
        Ok(tokens)
    }

    /// What a token stands for; None for control tokens and ids that are none.
    pub fn bytes(&self, token: u32) -> Option<&[u8]> {
        self.bytes.get(token as usize)?.as_deref()
    }

    /// The text of a token as the file has it.
    pub fn text(&self, token: u32) -> Option<&str> {
        self.texts.get(token as usize).map(String::as_str)
    }

    /// The text of tokens; bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut decoder = self.decoder(true);
        let mut text: String = tokens.iter().map(|token| decoder.push(self.bytes(*token))).collect();
        text.push_str(&decoder.finish());
        text
    }

    /// Joins tokens one after the other. At the start of a text, the space that goes before it is taken off.
    pub fn decoder(&self, at_start: bool) -> Decoder {
        Decoder::new(at_start && self.space_prefix)
    }

    /// Whether a token ends a turn or a text.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.binary_search(&token).is_ok()
    }

    /// The texts of the tokens that begin and end a text, as chat templates want them; empty where there are none.
    pub fn ends_of_text(&self) -> [&str; 2] {
        [&self.begin_text, &self.end_text]
    }
}
