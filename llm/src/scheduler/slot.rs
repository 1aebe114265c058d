//! One sequence: a cache, and the job that it is for.

use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::grammar::Matcher;
use crate::sampler::{Sampler, log_probabilities};
use crate::tokenizer::{Decoder, Tokenizer};

use super::job::{End, Event, Job, Logprobs, News, Piece, Reason};
use super::stops::Stops;

/// A cache, which keeps what it has seen between jobs.
pub struct Slot {
    pub engine: Engine,
    pub work: Option<Work>,
    /// When it was last given a job, as a count of jobs.
    pub used: u64,
}

/// A job that is under way.
pub struct Work {
    pub job: Job,
    sampler: Sampler,
    decoder: Decoder,
    stops: Stops,
    matcher: Option<Matcher>,
    /// The token that was chosen last, and is not in the cache yet.
    last: Option<u32>,
    written: usize,
    reused: usize,
    /// When its first token was chosen.
    pub first: Option<Instant>,
}

/// What a step came to.
pub struct Step {
    /// Tokens of the prompt that were computed, and tokens that were written.
    pub prompt: usize,
    pub written: usize,
    pub time: Duration,
    /// How the job ended, if it did, and what it is still to be told.
    pub ended: Option<Outcome>,
    pub last: Option<News>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Completed,
    Cancelled,
    Failed,
}

impl Slot {
    pub fn new(engine: Engine) -> Slot {
        Slot {
            engine,
            work: None,
            used: 0,
        }
    }

    /// Begins a job. What the cache has of its prompt in whole batches is not computed again: an answer has the same
    /// bits whatever was there before.
    pub fn begin(&mut self, job: Job, tokenizer: &Tokenizer) {
        let reused = self.engine.known_in_batches(&job.prompt);
        self.engine.forget(reused);
        self.work = Some(Work {
            sampler: Sampler::new(job.sampling.clone()),
            decoder: tokenizer.decoder(false),
            stops: Stops::new(job.stops.clone()),
            matcher: job.grammar.clone().map(Matcher::new),
            last: None,
            written: 0,
            reused,
            first: None,
            job,
        });
    }

    /// Takes one step: a batch of the prompt, or one token.
    pub fn step(&mut self, tokenizer: &Tokenizer) -> Step {
        let started = Instant::now();
        let mut step = Step {
            prompt: 0,
            written: 0,
            time: Duration::ZERO,
            ended: None,
            last: None,
        };
        let Some(work) = &mut self.work else { return step };
        if work.job.events.is_closed() {
            step.ended = Some(Outcome::Cancelled);
        } else {
            match work.advance(&mut self.engine, tokenizer, &mut step) {
                Ok(None) => {}
                Ok(Some(reason)) => {
                    step.last = Some(News::End(End {
                        reason,
                        prompt: work.job.prompt.len(),
                        reused: work.reused,
                        written: work.written,
                    }));
                    step.ended = Some(Outcome::Completed);
                }
                Err(error) => {
                    step.last = Some(News::Failed(error));
                    step.ended = Some(Outcome::Failed);
                }
            }
        }
        step.time = started.elapsed();
        step
    }
}

impl Work {
    pub fn tell(&self, news: News) {
        // Nobody listens: the next step sees that.
        self.job
            .events
            .send(Event {
                index: self.job.index,
                news,
            })
            .ok();
    }

    fn advance(&mut self, engine: &mut Engine, tokenizer: &Tokenizer, step: &mut Step) -> Result<Option<Reason>> {
        if self.job.embeds {
            let embedding = engine.embed(&self.job.prompt)?;
            step.prompt = self.job.prompt.len();
            self.tell(News::Embedding(embedding));
            return Ok(Some(Reason::Stop));
        }
        let seen = engine.tokens().len();
        let logits = match self.last {
            Some(token) => engine.extend(&[token])?,
            None => {
                let end = self.job.prompt.len().min(seen + engine.batch());
                let logits = engine.extend(&self.job.prompt[seen..end])?;
                step.prompt = end - seen;
                if end < self.job.prompt.len() {
                    return Ok(None);
                }
                if self.job.most == Some(0) {
                    return Ok(Some(Reason::Length));
                }
                logits
            }
        };
        let token = self.choose(&logits, engine.tokens(), tokenizer)?;
        self.first.get_or_insert_with(Instant::now);
        if tokenizer.is_end(token) && (self.matcher.is_some() || !self.job.ignores_ends) {
            return Ok(Some(self.end(Reason::Stop)));
        }
        (self.last, step.written) = (Some(token), 1);
        self.written += 1;
        let (text, stopped) = self.stops.push(&self.decoder.push(tokenizer.bytes(token)));
        let logprobs = self.job.logprobs.map(|most| {
            let (logprob, most) = log_probabilities(&logits, token, most);
            Logprobs { token, logprob, most }
        });
        if !text.is_empty() || logprobs.is_some() {
            self.tell(News::Piece(Piece { text, logprobs }));
        }
        Ok(if stopped {
            Some(Reason::Stop)
        } else if self.matcher.as_ref().is_some_and(Matcher::is_over) {
            Some(self.end(Reason::Stop))
        } else if self.job.most == Some(self.written) || engine.tokens().len() == engine.capacity() {
            Some(self.end(Reason::Length))
        } else {
            None
        })
    }

    /// Chooses a token that goes on as the job's grammar has it.
    fn choose(&mut self, logits: &[f32], before: &[u32], tokenizer: &Tokenizer) -> Result<u32> {
        let Some(matcher) = &mut self.matcher else {
            return Ok(self.sampler.choose(logits, before));
        };
        let token = self.sampler.choose_allowed(logits, before, |token| {
            if tokenizer.is_end(token) {
                return matcher.is_whole();
            }
            let bytes = tokenizer.bytes(token).filter(|bytes| !bytes.is_empty());
            bytes.is_some_and(|bytes| matcher.clone().push(bytes))
        });
        let token = token.ok_or(Error::NoToken)?;
        if !tokenizer.is_end(token) {
            matcher.push(tokenizer.bytes(token).unwrap_or_default());
        }
        Ok(token)
    }

    /// Shows what was held back.
    fn end(&mut self, reason: Reason) -> Reason {
        let (mut text, stopped) = self.stops.push(&self.decoder.finish());
        text.push_str(&self.stops.finish());
        if !text.is_empty() {
            self.tell(News::Piece(Piece { text, logprobs: None }));
        }
        if stopped { Reason::Stop } else { reason }
    }
}
