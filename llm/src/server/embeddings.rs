//! `/v1/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use axum::response::Response;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::json;

use super::completions::{Prompt, prompts};
use super::fields::Fields;
use super::problem::{Problem, json_of};
use super::request::blocking;
use super::state::State;
use crate::sampler::Sampling;
use crate::scheduler::{Job, News};

pub async fn answer(state: &Arc<State>, mut fields: Fields) -> Result<Response, Problem> {
    state.check_model(&mut fields)?;
    let Some(width) = state.embedding else {
        let message = format!(
            "'{}' ({}) writes texts and has no embeddings; serve a model whose file has the key 'pooling_type'",
            state.name, state.architecture
        );
        return Err(Problem::new(StatusCode::BAD_REQUEST, Some("unsupported"), message));
    };
    let inputs = prompts(&mut fields, "input", state.vocabulary)?;
    let kept = fields
        .integer("dimensions", 1..=width as u64)?
        .map_or(width, |kept| kept as usize);
    let is_text = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            let message = "'encoding_format' is \"float\" or \"base64\"";
            return Err(Problem::field("encoding_format", message));
        }
    };
    fields.ignore(&["user"]);
    fields.finish()?;
    let encoded = blocking({
        let state = state.clone();
        move || {
            let tokens = inputs.into_iter().map(|input| match input {
                Prompt::Text(text) => state.tokenizer.encode_whole(&text, false),
                Prompt::Tokens(tokens) => Ok(tokens),
            });
            tokens.collect::<crate::error::Result<Vec<_>>>()
        }
    })
    .await??;
    let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    let tokens: usize = encoded.iter().map(Vec::len).sum();
    let jobs = encoded.into_iter().enumerate().map(|(index, prompt)| Job {
        index,
        prompt,
        embeds: true,
        most: Some(0),
        sampling: Sampling::default(),
        grammar: None,
        stops: Vec::new(),
        ignores_ends: false,
        logprobs: None,
        events: sender.clone(),
        arrived: Instant::now(),
    });
    let jobs: Vec<Job> = jobs.collect();
    drop(sender);
    let mut found: Vec<Option<Vec<f32>>> = vec![None; jobs.len()];
    state.submit(jobs, "input")?;
    while let Some(event) = events.recv().await {
        match event.news {
            News::Embedding(embedding) => found[event.index] = Some(embedding),
            News::Failed(error) => return Err(error.into()),
            News::Piece(_) | News::End(_) => {}
        }
    }
    let mut data = Vec::new();
    for (index, embedding) in found.into_iter().enumerate() {
        let mut embedding = embedding.ok_or_else(super::answer::lost)?;
        shorten(&mut embedding, kept);
        let embedding = if is_text {
            json!(base64(&embedding))
        } else {
            json!(embedding)
        };
        data.push(json!({"object": "embedding", "index": index, "embedding": embedding}));
    }
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    let value = json!({"object": "list", "data": data, "model": state.name, "usage": usage});
    Ok(json_of(StatusCode::OK, &value))
}

/// Keeps the first numbers, and makes the length 1 again.
fn shorten(embedding: &mut Vec<f32>, kept: usize) {
    if kept >= embedding.len() {
        return;
    }
    embedding.truncate(kept);
    let length = embedding.iter().map(|x| x * x).sum::<f32>().sqrt();
    if length > 0.0 {
        embedding.iter_mut().for_each(|x| *x /= length);
    }
}

/// The bytes of numbers, in base64 (RFC 4648): what OpenAI's own client asks for.
fn base64(numbers: &[f32]) -> String {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        assert_eq!(base64(&[]), "");
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, -2.5]), "AACAPwAAIMA=");
        assert_eq!(base64(&[0.0, 1.0, 0.1]), "AAAAAAAAgD/NzMw9");
    }

    #[test]
    fn a_shorter_embedding_has_length_1_too() {
        let mut embedding = vec![0.6, 0.0, 0.8];
        shorten(&mut embedding, 1);
        assert_eq!(embedding, [1.0]);
    }
}
