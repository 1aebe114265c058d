//! What all requests share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;

use super::fields::Fields;
use super::problem::Problem;
use crate::scheduler::{Job, Scheduler};
use crate::template::Template;
use crate::tokenizer::Tokenizer;

/// A model that is served.
pub struct State {
    pub scheduler: Scheduler,
    pub tokenizer: Arc<Tokenizer>,
    pub template: Option<Template>,
    /// What requests call the model.
    pub name: String,
    pub architecture: String,
    pub vocabulary: usize,
    /// Numbers of an embedding, of a model that makes these and writes no texts.
    pub embedding: Option<usize>,
    pub started: u64,
    /// What requests must have as their bearer token.
    pub key: Option<String>,
    /// Bytes of a body at most, and the time in which it is to be there.
    pub body: usize,
    pub body_time: Duration,
    pub ids: AtomicU64,
    /// Answers by their status.
    pub answers: Mutex<BTreeMap<u16, u64>>,
}

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs())
}

impl State {
    /// A name for an answer that no other has.
    pub fn next_id(&self, prefix: &str) -> String {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}-{:x}-{id}", self.started)
    }

    /// Takes the field `model`: nothing else than the one model is served; a request that names none means it.
    pub fn check_model(&self, fields: &mut Fields) -> Result<(), Problem> {
        match fields.text("model")? {
            Some(name) if name != self.name => Err(self.no_model(&name)),
            _ => Ok(()),
        }
    }

    /// Refuses what asks a model of embeddings for texts.
    pub fn check_writes(&self) -> Result<(), Problem> {
        match self.embedding {
            None => Ok(()),
            Some(_) => {
                let message = format!(
                    "'{}' ({}) makes embeddings and writes no texts; use /v1/embeddings",
                    self.name, self.architecture
                );
                Err(Problem::new(StatusCode::BAD_REQUEST, Some("unsupported"), message))
            }
        }
    }

    pub fn no_model(&self, name: &str) -> Problem {
        Problem {
            param: Some("model".to_owned()),
            ..Problem::new(
                StatusCode::NOT_FOUND,
                Some("model_not_found"),
                format!("there is no model '{name}' here; '{}' is served", self.name),
            )
        }
    }

    /// Puts the jobs of a request into the queue; `field` is where their prompts came from.
    pub fn submit(&self, jobs: Vec<Job>, field: &str) -> Result<(), Problem> {
        if jobs.iter().any(|job| job.prompt.is_empty()) {
            let message =
                format!("'{field}' has no tokens, and the model has none that begins a text; give a longer one");
            return Err(Problem::field(field, message));
        }
        Ok(self.scheduler.submit(jobs)?)
    }

    pub fn count(&self, status: StatusCode) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers.entry(status.as_u16()).or_default() += 1;
    }
}
