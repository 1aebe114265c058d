//! Requests as the scheduler has them, and what they are told.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use crate::error::Error;
use crate::grammar::Grammar;
use crate::sampler::Sampling;

/// A text to go on from, and whom to tell.
pub struct Job {
    /// Which of a request's answers it is.
    pub index: usize,
    pub prompt: Vec<u32>,
    /// Whether the prompt's embedding is wanted, and no text.
    pub embeds: bool,
    /// Tokens that are written at most; None for as many as the cache has room for.
    pub most: Option<usize>,
    pub sampling: Sampling,
    /// What the answer is a text of.
    pub grammar: Option<Arc<Grammar>>,
    /// Texts that end the answer.
    pub stops: Vec<String>,
    /// Whether the model's own ends are tokens like others.
    pub ignores_ends: bool,
    /// Whether tokens come with the logarithms of their probabilities, and with those of so many others.
    pub logprobs: Option<usize>,
    /// Events go here. A receiver that is gone cancels the job before its next step.
    pub events: UnboundedSender<Event>,
    pub arrived: Instant,
}

/// News of the job with this index.
#[derive(Debug)]
pub struct Event {
    pub index: usize,
    pub news: News,
}

#[derive(Debug)]
pub enum News {
    Piece(Piece),
    /// Goes before the end.
    Embedding(Vec<f32>),
    End(End),
    Failed(Error),
}

/// A part of an answer: the text that can be shown since the last one.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    pub text: String,
    pub logprobs: Option<Logprobs>,
}

/// A token with the logarithm of its probability, and the most probable tokens with theirs.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    pub token: u32,
    pub logprob: f32,
    pub most: Vec<(u32, f32)>,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub reason: Reason,
    /// Tokens of the prompt, those of them that were in the cache, and tokens that were written.
    pub prompt: usize,
    pub reused: usize,
    pub written: usize,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model ended it, or a text did.
    Stop,
    /// It has as many tokens as were asked for, or the cache is full.
    Length,
}
