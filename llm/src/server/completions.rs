//! `/v1/completions`.

use std::sync::Arc;

use axum::response::Response;
use serde_json::{Value, json};

use super::answer::Format;
use super::fields::{Fields, wrong};
use super::problem::Problem;
use super::request::{IGNORED, Options, blocking};
use super::state::{State, now};

/// Tokens that are written where a request does not say: what OpenAI has.
const TOKENS: usize = 16;
/// Prompts of a request, and the most probable tokens that are told of each token, at most.
const PROMPTS: usize = 64;
const TOP: u64 = 20;

/// A prompt: a text, or tokens.
pub enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

pub async fn answer(state: &Arc<State>, mut fields: Fields) -> Result<Response, Problem> {
    state.check_model(&mut fields)?;
    state.check_writes()?;
    let prompts = prompts(&mut fields, "prompt", state.vocabulary)?;
    let options = Options::take(&mut fields, (&["max_tokens"], Some(TOKENS)), state.vocabulary)?;
    let logprobs = fields.integer("logprobs", 0..=TOP)?.map(|most| most as usize);
    let echoes = fields.flag("echo")?.unwrap_or(false);
    fields.without("suffix", &[json!("")])?;
    fields.without("best_of", &[json!(1)])?;
    fields.ignore(IGNORED);
    fields.finish()?;
    let (prompts, echo) = blocking({
        let (state, answers) = (state.clone(), options.answers);
        move || {
            let (mut encoded, mut echo) = (Vec::new(), Vec::new());
            for prompt in prompts {
                let (tokens, text) = match prompt {
                    Prompt::Text(text) => (state.tokenizer.encode(&text, true, true)?, text),
                    Prompt::Tokens(tokens) => {
                        let text = state.tokenizer.decode(&tokens);
                        (tokens, text)
                    }
                };
                encoded.push(tokens);
                echo.extend(std::iter::repeat_n(text, if echoes { answers } else { 0 }));
            }
            crate::error::Result::Ok((encoded, echo))
        }
    })
    .await??;
    let (sender, events) = tokio::sync::mpsc::unbounded_channel();
    let jobs = options.jobs(prompts, logprobs, &sender);
    drop(sender);
    let count = jobs.len();
    state.submit(jobs, "prompt")?;
    let format = Format {
        id: state.next_id("cmpl"),
        created: now(),
        model: state.name.clone(),
        is_chat: false,
        has_tools: false,
        answers: options.answers,
        tokenizer: state.tokenizer.clone(),
        echo,
    };
    match options.streams {
        true => Ok(format.stream(events, count, options.usage)),
        false => format.whole(events, count).await,
    }
}

/// A text, tokens, or a list of either.
pub fn prompts(fields: &mut Fields, name: &str, vocabulary: usize) -> Result<Vec<Prompt>, Problem> {
    let wanted = "a text, a list of tokens, or a list of either";
    let value = match fields.take(name) {
        None => return Err(Problem::field(name, format!("'{name}' is missing; {wanted} is wanted"))),
        Some(value) => value,
    };
    let one = |value: &Value| -> Result<Prompt, Problem> {
        match value {
            Value::String(text) => Ok(Prompt::Text(text.clone())),
            Value::Array(items) => {
                let token = |item: &Value| {
                    let id = item.as_u64().filter(|id| *id < vocabulary as u64);
                    id.map(|id| id as u32)
                        .ok_or_else(|| wrong(name, item, &format!("a token below {vocabulary}")))
                };
                Ok(Prompt::Tokens(items.iter().map(token).collect::<Result<_, _>>()?))
            }
            other => Err(wrong(name, other, wanted)),
        }
    };
    let prompts = match &value {
        Value::Array(items) if items.first().is_some_and(|item| !item.is_number()) => {
            items.iter().map(one).collect::<Result<Vec<_>, _>>()?
        }
        other => vec![one(other)?],
    };
    if prompts.len() > PROMPTS {
        let message = format!("{} texts in one request; at most {PROMPTS} are possible", prompts.len());
        return Err(Problem::field(name, message));
    }
    Ok(prompts)
}
