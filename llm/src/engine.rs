//! A model in a session: tokens in, logits out, with what was seen kept on the device.

use std::ops::Range;
use std::sync::Arc;

use graphc::ir::{DType, HostTensor, mapped};
use graphc::passes::OptLevel;
use graphc::session::DeviceChoice;
use graphc::{Session, SessionOptions};
use graphc_gguf::GgufFile;

use crate::error::{Error, Result};
use crate::loader::Progress;
use crate::model::{self, Decoder, NAMES, Pooling};

/// How a model is loaded and run.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    pub device: DeviceChoice,
    /// Tokens that the cache has room for; None is the model's own context, or [`EngineOptions::DEFAULT_CONTEXT`] if
    /// that is less.
    pub context: Option<usize>,
    /// Tokens of a prompt that one run computes at most.
    pub batch: usize,
    /// Threads on the CPU; 0 is what graphc's settings say.
    pub threads: usize,
    /// How much the compiler does.
    pub level: OptLevel,
    /// Is told how far loading is.
    pub progress: Option<fn(Progress)>,
}

impl EngineOptions {
    /// A cache of a long context takes gigabytes.
    pub const DEFAULT_CONTEXT: usize = 4096;
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            device: DeviceChoice::Cpu,
            context: None,
            batch: 512,
            threads: 0,
            level: OptLevel::default(),
            progress: None,
        }
    }
}

/// A model that is compiled, and the tokens that its cache has.
pub struct Engine {
    session: Session,
    decoder: Arc<Decoder>,
    batch: usize,
    tokens: Vec<u32>,
    /// Tokens from the first on that were computed in whole batches, one after the other.
    whole: usize,
    /// With the device `auto`, why it is the CPU.
    pub fallback: Option<String>,
}

impl Engine {
    /// Loads and compiles the model of a file.
    ///
    /// # Errors
    /// As [`model::load`]; a device that is not there; what the compiler reports.
    pub fn load(file: &GgufFile, options: &EngineOptions) -> Result<Engine> {
        let mut session = SessionOptions::default()
            .threads(options.threads)
            .level(options.level)
            .device(options.device.clone())?;
        // Kernels of GPUs multiply by all experts.
        let stacks = !session.target.is_gpu();
        let most = EngineOptions::DEFAULT_CONTEXT;
        let decoder = model::load(file, options.context, most, stacks, options.progress)?;
        if let Some(progress) = options.progress {
            progress(Progress::Compiling);
        }
        let batch = options.batch.clamp(1, decoder.capacity);
        let graph = decoder.graph(batch).map_err(graphc::Error::from)?;
        let fallback = session.device.as_ref().and_then(|device| device.fallback.clone());
        for (input, output) in decoder.links() {
            session = session.state(&input, &output);
        }
        let session = Session::compile(graph, &session)?;
        let tensors = file.tensors.values();
        mapped::check(tensors.map(|tensor| &tensor.bytes[..])).map_err(graphc::Error::from)?;
        Ok(Engine {
            session,
            decoder: Arc::new(decoder),
            batch,
            tokens: Vec::new(),
            whole: 0,
            fallback,
        })
    }

    /// Another engine of the same program and weights, with a cache of its own, which has no tokens yet.
    #[must_use]
    pub fn another(&self) -> Engine {
        let session = self.session.fork();
        session.reset_state();
        Engine {
            session,
            decoder: self.decoder.clone(),
            batch: self.batch,
            tokens: Vec::new(),
            whole: 0,
            fallback: self.fallback.clone(),
        }
    }

    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The tokens that were seen.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens that there is room for.
    pub fn capacity(&self) -> usize {
        self.decoder.capacity
    }

    /// Tokens that one run computes at most.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// How many tokens of a sequence [`Engine::go_to`] does not compute again. The last one's logits are wanted, so it
    /// is computed in any case.
    pub fn known(&self, tokens: &[u32]) -> usize {
        let common = self
            .tokens
            .iter()
            .zip(tokens)
            .take_while(|(one, other)| one == other)
            .count();
        common.min(tokens.len().saturating_sub(1))
    }

    /// As [`Engine::known`], of tokens that were computed in whole batches alone. What follows is then computed in the
    /// runs in which an empty cache computes it, and has the same bits.
    pub fn known_in_batches(&self, tokens: &[u32]) -> usize {
        let known = self.known(tokens).min(self.whole);
        known - known % self.batch
    }

    /// Forgets all tokens but the first `count`: what the cache has behind them is no longer seen, and is written over.
    pub fn forget(&mut self, count: usize) {
        self.tokens.truncate(count);
        self.whole = self.whole.min(count - count % self.batch);
    }

    /// Goes to a sequence of tokens, of which those that the cache begins with are not computed again, and gives the
    /// logits of the last one.
    ///
    /// # Errors
    /// As [`Engine::extend`].
    pub fn go_to(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let common = self.known(tokens);
        self.forget(common);
        self.extend(&tokens[common..])
    }

    /// Adds tokens, and gives the logits of the last one, `[vocabulary]`.
    ///
    /// # Errors
    /// No token, one that the vocabulary has not, more than there is room for, or what the device reports.
    pub fn extend(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        if tokens.is_empty() {
            return Err(Error::Usage("there is no token to go on from".to_owned()));
        }
        self.check(tokens)?;
        let mut logits = Vec::new();
        let mut done = 0;
        while done < tokens.len() {
            let count = self.batch.min(tokens.len() - done);
            // Where more follows, the one row that is computed is not looked at.
            logits = self.step(&tokens[done..done + count], count - 1..count)?;
            done += count;
        }
        Ok(logits)
    }

    /// Adds tokens, and gives the logits of each, `[tokens, vocabulary]`.
    ///
    /// # Errors
    /// As [`Engine::extend`].
    pub fn extend_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check(tokens)?;
        let mut logits = Vec::new();
        for part in tokens.chunks(self.batch) {
            logits.extend(self.step(part, 0..part.len())?);
        }
        Ok(logits)
    }

    /// The embedding of a text, of length 1, whatever the cache had before.
    ///
    /// # Errors
    /// A model that writes texts; else as [`Engine::extend`].
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let width = self.decoder.result_width();
        let Some(pooling) = self.decoder.pooling else {
            return Err(Error::Usage("the model writes texts and has no embeddings".to_owned()));
        };
        if tokens.is_empty() {
            return Err(Error::Usage("a text without tokens has no embedding".to_owned()));
        }
        self.forget(0);
        let mut embedding = match pooling {
            Pooling::Last => self.extend(tokens)?,
            Pooling::First => self.extend_all(tokens)?.drain(..width).collect(),
            Pooling::Mean => {
                let rows = self.extend_all(tokens)?;
                let column = |at: usize| rows.iter().skip(at).step_by(width).sum::<f32>();
                (0..width).map(column).collect()
            }
        };
        let length = embedding.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        if length > 0.0 {
            embedding.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        }
        Ok(embedding)
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        let (needed, capacity) = (self.tokens.len() + tokens.len(), self.capacity());
        if needed > capacity {
            return Err(Error::Context { needed, capacity });
        }
        let vocabulary = self.decoder.config.vocabulary;
        match tokens.iter().find(|token| **token as usize >= vocabulary) {
            Some(token) => Err(Error::Usage(format!(
                "token {token} is not one of the model's {vocabulary}"
            ))),
            None => Ok(()),
        }
    }

    /// One run: new tokens, at most as many as a batch, and the logits of some of them.
    fn step(&mut self, tokens: &[u32], rows: Range<usize>) -> Result<Vec<f32>> {
        let seen = self.tokens.len() + tokens.len();
        let ids: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        let positions: Vec<i64> = (0..seen as i64).collect();
        let rows: Vec<i64> = rows.map(|row| row as i64).collect();
        let inputs = [ids, positions, rows].map(|values| HostTensor::from_i64(DType::I64, [values.len()], &values));
        let mut named = Vec::new();
        for (name, tensor) in NAMES.iter().zip(inputs) {
            named.push((*name, tensor.map_err(|error| Error::Usage(error.to_string()))?));
        }
        let named: Vec<(&str, &HostTensor)> = named.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let outputs = match self.session.run(&named) {
            Ok(outputs) => outputs,
            Err(error) => {
                // A run that failed may have lost the caches: nothing is seen any more.
                self.session.reset_state();
                self.forget(0);
                return Err(error.into());
            }
        };
        if self.whole == self.tokens.len() && tokens.len() == self.batch {
            self.whole += self.batch;
        }
        self.tokens.extend_from_slice(tokens);
        Ok(outputs[self.decoder.result()].to_f32())
    }
}
