//! What completions of both kinds are asked for.

use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::fields::{Fields, wrong};
use super::problem::Problem;
use crate::grammar::Grammar;
use crate::sampler::Sampling;
use crate::scheduler::{Event, Job};

/// Fields that clients send and that change nothing here.
pub const IGNORED: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
];

/// The options that chats and plain texts share.
#[derive(Clone, Debug)]
pub struct Options {
    pub streams: bool,
    /// Whether a stream ends with the counts of tokens.
    pub usage: bool,
    /// Answers for each prompt.
    pub answers: usize,
    most: Option<usize>,
    stops: Vec<String>,
    ignores_ends: bool,
    sampling: Sampling,
    /// What answers are texts of.
    pub grammar: Option<Arc<Grammar>>,
}

/// Answers to a prompt at most.
const ANSWERS: u64 = 16;
/// Texts that end an answer at most: OpenAI has 4.
const STOPS: usize = 16;

impl Options {
    /// Takes the options; `most` are the names of the number of tokens, and its default.
    pub fn take(fields: &mut Fields, most: (&[&str], Option<usize>), vocabulary: usize) -> Result<Options, Problem> {
        let mut limit = most.1;
        for name in most.0 {
            if let Some(count) = fields.integer(name, 0..=1 << 31)? {
                limit = Some(count as usize);
            }
        }
        let stops = fields.texts("stop")?;
        if stops.len() > STOPS {
            return Err(Problem::field(
                "stop",
                format!("{} texts in 'stop'; at most {STOPS} are possible", stops.len()),
            ));
        }
        let streams = fields.flag("stream")?.unwrap_or(false);
        let usage = match fields.take("stream_options") {
            None => false,
            Some(Value::Object(options)) => match options.get("include_usage") {
                None | Some(Value::Null) => false,
                Some(Value::Bool(flag)) => *flag,
                Some(other) => return Err(wrong("stream_options.include_usage", other, "true or false")),
            },
            Some(other) => return Err(wrong("stream_options", &other, "an object")),
        };
        let number = |fields: &mut Fields, name, range, otherwise| -> Result<f32, Problem> {
            Ok(fields.number(name, range)?.unwrap_or(otherwise))
        };
        let sampling = Sampling {
            temperature: number(fields, "temperature", 0.0..=2.0, 1.0)?,
            top_k: fields.integer("top_k", 0..=1 << 31)?.unwrap_or(0) as usize,
            typical_p: number(fields, "typical_p", f64::from(f32::MIN_POSITIVE)..=1.0, 1.0)?,
            top_p: number(fields, "top_p", 0.0..=1.0, 1.0)?,
            min_p: number(fields, "min_p", 0.0..=1.0, 0.0)?,
            repeat_penalty: number(fields, "repeat_penalty", 0.01..=100.0, 1.0)?,
            presence_penalty: number(fields, "presence_penalty", -2.0..=2.0, 0.0)?,
            frequency_penalty: number(fields, "frequency_penalty", -2.0..=2.0, 0.0)?,
            biases: biases(fields, vocabulary)?,
            seed: fields.take("seed").map_or_else(
                || Ok(rand::random()),
                |seed| {
                    // Any integer will do, negative ones too.
                    let bits = seed.as_u64().or(seed.as_i64().map(|seed| seed as u64));
                    bits.ok_or_else(|| wrong("seed", &seed, "an integer"))
                },
            )?,
            ..Sampling::default()
        };
        Ok(Options {
            streams,
            usage,
            answers: fields.integer("n", 1..=ANSWERS)?.unwrap_or(1) as usize,
            most: limit,
            stops,
            ignores_ends: fields.flag("ignore_eos")?.unwrap_or(false),
            sampling,
            grammar: None,
        })
    }

    /// A job for each answer to each prompt.
    pub fn jobs(&self, prompts: Vec<Vec<u32>>, logprobs: Option<usize>, events: &UnboundedSender<Event>) -> Vec<Job> {
        let mut jobs = Vec::new();
        for prompt in prompts {
            for answer in 0..self.answers {
                jobs.push(Job {
                    index: jobs.len(),
                    prompt: prompt.clone(),
                    embeds: false,
                    most: self.most,
                    sampling: Sampling {
                        seed: self.sampling.seed.wrapping_add(answer as u64),
                        ..self.sampling.clone()
                    },
                    grammar: self.grammar.clone(),
                    stops: self.stops.clone(),
                    ignores_ends: self.ignores_ends,
                    logprobs,
                    events: events.clone(),
                    arrived: Instant::now(),
                });
            }
        }
        jobs
    }
}

/// `response_format`: a text, any object of JSON, or JSON of a schema.
pub fn response_format(fields: &mut Fields) -> Result<Option<Arc<Grammar>>, Problem> {
    let name = "response_format";
    let Some(format) = fields.take(name) else {
        return Ok(None);
    };
    let kind = format.get("type").and_then(Value::as_str);
    let grammar = match kind {
        Some("text") => return Ok(None),
        Some("json_object") => Ok(Grammar::object()),
        Some("json_schema") => {
            let Some(schema) = format.pointer("/json_schema/schema") else {
                let message = "'response_format.json_schema.schema' is missing; a schema is wanted";
                return Err(Problem::field(name, message));
            };
            Grammar::of_schema(schema)
        }
        _ => {
            let message = "'response_format.type' is \"text\", \"json_object\" or \"json_schema\"";
            return Err(Problem::field(name, message));
        }
    };
    match grammar {
        Ok(grammar) => Ok(Some(Arc::new(grammar))),
        Err(message) => Err(Problem::field(
            name,
            format!("'response_format.json_schema.schema': {message}"),
        )),
    }
}

/// `logit_bias`: tokens by their ids, as texts, and numbers from −100 to 100.
fn biases(fields: &mut Fields, vocabulary: usize) -> Result<Vec<(u32, f32)>, Problem> {
    let object = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(object)) => object,
        Some(other) => return Err(wrong("logit_bias", &other, "an object of tokens and numbers")),
    };
    let mut biases = Vec::new();
    for (token, bias) in object {
        let id = token.parse().ok().filter(|id: &u32| (*id as usize) < vocabulary);
        let Some(id) = id else {
            let message = format!("'logit_bias' has {token:?}, which is none of the {vocabulary} tokens");
            return Err(Problem::field("logit_bias", message));
        };
        match bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias)) {
            Some(bias) => biases.push((id, bias as f32)),
            None => {
                return Err(wrong(
                    &format!("logit_bias.{token}"),
                    &bias,
                    "a number from -100 to 100",
                ));
            }
        }
    }
    Ok(biases)
}

/// Runs what takes long on a thread of its own.
pub async fn blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    tokio::task::spawn_blocking(run).await.map_err(|_| {
        let message = "the request could not be prepared; a message is on the server's error stream";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, None, message)
    })
}

/// Counts of tokens, as answers have them.
pub fn usage(prompt: usize, written: usize, reused: usize) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": reused},
    })
}
