//! The routes: who may ask, how bodies are read, and the short answers.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Request};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;

use super::fields::{Fields, wrong};
use super::problem::{Problem, json_of};
use super::request::blocking;
use super::state::State;
use super::{chat, completions, embeddings, metrics};

type Shared = axum::extract::State<Arc<State>>;

/// All routes, behind the key.
pub fn router(state: Arc<State>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chats))
        .route("/v1/completions", post(texts))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/embeddings", post(vectors))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/health", get(health))
        .route("/metrics", get(counts))
        .fallback(nothing)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(state.body))
        .layer(from_fn_with_state(state.clone(), guard))
        .with_state(state)
}

/// Lets requests through that have the key, and counts answers.
async fn guard(state: Shared, request: Request, next: Next) -> Response {
    let response = match &state.key {
        Some(key) if request.uri().path() != "/health" && !has_key(&request, key) => Problem::new(
            StatusCode::UNAUTHORIZED,
            Some("invalid_api_key"),
            "the header 'Authorization: Bearer KEY' is missing, or its key is not the server's",
        )
        .into_response(),
        _ => next.run(request).await,
    };
    state.count(response.status());
    response
}

/// Compares in a time that depends on the key's length alone.
fn has_key(request: &Request, key: &str) -> bool {
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .map(|value| value.as_bytes());
    let given = given.and_then(|value| value.split_at_checked(7));
    given.is_some_and(|(scheme, given)| {
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(given.ct_eq(key.as_bytes()))
    })
}

/// Reads a body of JSON, of a limited size and in a limited time.
async fn read(state: &State, request: Request) -> Result<Fields, Problem> {
    let too_large = || {
        let message = format!("the body has more than {} bytes", state.body);
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, None, message)
    };
    // One that says so itself is not waited for.
    let said = request.headers().get(header::CONTENT_LENGTH);
    let said: Option<u64> = said.and_then(|length| length.to_str().ok()?.parse().ok());
    if said.is_some_and(|length| length > state.body as u64) {
        return Err(too_large());
    }
    let bytes = match tokio::time::timeout(state.body_time, Bytes::from_request(request, &())).await {
        Err(_) => {
            let message = format!("the body was not there after {} seconds", state.body_time.as_secs());
            return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, None, message));
        }
        Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            return Err(too_large());
        }
        Ok(Err(rejection)) => return Err(Problem::new(StatusCode::BAD_REQUEST, None, rejection.body_text())),
        Ok(Ok(bytes)) => bytes,
    };
    Fields::parse(&bytes)
}

async fn chats(state: Shared, request: Request) -> Result<Response, Problem> {
    let fields = read(&state, request).await?;
    chat::answer(&state, fields).await
}

async fn texts(state: Shared, request: Request) -> Result<Response, Problem> {
    let fields = read(&state, request).await?;
    completions::answer(&state, fields).await
}

fn card(state: &State) -> Value {
    json!({
        "id": state.name, "object": "model", "created": state.started, "owned_by": "graphc",
        "meta": {
            "architecture": state.architecture,
            "context": state.scheduler.capacity(),
            "vocabulary": state.vocabulary,
        },
    })
}

async fn models(state: Shared) -> Response {
    json_of(StatusCode::OK, &json!({"object": "list", "data": [card(&state)]}))
}

async fn model(state: Shared, Path(name): Path<String>) -> Result<Response, Problem> {
    match name == state.name {
        true => Ok(json_of(StatusCode::OK, &card(&state))),
        false => Err(state.no_model(&name)),
    }
}

async fn vectors(state: Shared, request: Request) -> Result<Response, Problem> {
    let fields = read(&state, request).await?;
    embeddings::answer(&state, fields).await
}

async fn tokenize(state: Shared, request: Request) -> Result<Response, Problem> {
    let mut fields = read(&state, request).await?;
    state.check_model(&mut fields)?;
    let Some(text) = fields.text("content")? else {
        return Err(Problem::field("content", "'content' is missing; a string is wanted"));
    };
    let begin = fields.flag("add_special")?.unwrap_or(false);
    let trusted = fields.flag("parse_special")?.unwrap_or(true);
    let pieces = fields.flag("with_pieces")?.unwrap_or(false);
    fields.finish()?;
    let tokenizer = state.tokenizer.clone();
    let tokens = blocking(move || tokenizer.encode(&text, begin, trusted)).await??;
    let piece = |token: &u32| json!({"id": token, "piece": state.tokenizer.text(*token)});
    let tokens: Value = match pieces {
        true => tokens.iter().map(piece).collect(),
        false => tokens.into(),
    };
    Ok(json_of(StatusCode::OK, &json!({"tokens": tokens})))
}

async fn detokenize(state: Shared, request: Request) -> Result<Response, Problem> {
    let mut fields = read(&state, request).await?;
    state.check_model(&mut fields)?;
    let wanted = format!("a list of tokens below {}", state.vocabulary);
    let list = match fields.take("tokens") {
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong("tokens", &other, &wanted)),
        None => {
            return Err(Problem::field(
                "tokens",
                format!("'tokens' is missing; {wanted} is wanted"),
            ));
        }
    };
    fields.finish()?;
    let mut tokens = Vec::new();
    for item in list {
        match item.as_u64().filter(|id| *id < state.vocabulary as u64) {
            Some(id) => tokens.push(id as u32),
            None => return Err(wrong("tokens", &item, &wanted)),
        }
    }
    Ok(json_of(
        StatusCode::OK,
        &json!({"content": state.tokenizer.decode(&tokens)}),
    ))
}

async fn health() -> Response {
    json_of(StatusCode::OK, &json!({"status": "ok"}))
}

async fn counts(state: Shared) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], metrics::text(&state)).into_response()
}

async fn nothing(uri: Uri) -> Problem {
    let message = format!("there is nothing at {}; see /v1/models", uri.path());
    Problem::new(StatusCode::NOT_FOUND, Some("not_found"), message)
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let message = format!("{} does not take {method}", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, None, message)
}
