//! Events of jobs to answers: whole, or a stream of server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use super::problem::{Problem, json_of};
use super::request::usage;
use super::tools::{Calls, Found};
use crate::scheduler::{End, Event, Logprobs, News, Piece, Reason};
use crate::tokenizer::Tokenizer;

/// What all answers to a request have.
pub struct Format {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub is_chat: bool,
    /// Whether calls of tools are looked for.
    pub has_tools: bool,
    /// Answers to each prompt.
    pub answers: usize,
    pub tokenizer: Arc<Tokenizer>,
    /// What goes before each text: the prompt, where its echo is asked for.
    pub echo: Vec<String>,
}

/// One answer so far.
struct Answer {
    text: String,
    logprobs: Vec<Logprobs>,
    calls: Calls,
    end: Option<End>,
}

impl Answer {
    fn new(format: &Format, index: usize) -> Answer {
        Answer {
            text: format.echo.get(index).cloned().unwrap_or_default(),
            logprobs: Vec::new(),
            calls: Calls::new(format.has_tools),
            end: None,
        }
    }

    /// Why it ended, in OpenAI's words.
    fn reason(&self, has_calls: bool) -> &'static str {
        match self.end.map(|end| end.reason) {
            Some(Reason::Stop) if has_calls => "tool_calls",
            Some(Reason::Stop) => "stop",
            _ => "length",
        }
    }
}

impl Format {
    /// Counts of all answers; each prompt is counted once.
    fn total(&self, answers: &[Answer]) -> Value {
        let ends = || answers.iter().filter_map(|answer| answer.end);
        let prompts = || ends().step_by(self.answers.max(1));
        usage(
            prompts().map(|end| end.prompt).sum(),
            ends().map(|end| end.written).sum(),
            prompts().map(|end| end.reused).sum(),
        )
    }

    fn frame(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        })
    }

    /// A token's text and bytes.
    fn token(&self, token: u32, logprob: f32) -> Value {
        let bytes = self.tokenizer.bytes(token);
        let text = match bytes {
            Some(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            None => self.tokenizer.text(token).unwrap_or_default().to_owned(),
        };
        json!({"token": text, "logprob": logprob.max(-9999.0), "bytes": bytes})
    }

    /// Probabilities as chats have them, or as plain texts do.
    fn logprobs(&self, tokens: &[Logprobs]) -> Value {
        if tokens.is_empty() {
            return Value::Null;
        }
        if self.is_chat {
            let content = tokens.iter().map(|one| {
                let mut token = self.token(one.token, one.logprob);
                let most = one.most.iter().map(|(token, logprob)| self.token(*token, *logprob));
                token["top_logprobs"] = most.collect();
                token
            });
            return json!({"content": content.collect::<Value>(), "refusal": null});
        }
        let name = |token: u32, logprob: f32| self.token(token, logprob)["token"].clone();
        let most = tokens.iter().map(|one| {
            let pairs = one.most.iter().map(|(token, logprob)| {
                let key = name(*token, *logprob).as_str().unwrap_or_default().to_owned();
                (key, json!(logprob.max(-9999.0)))
            });
            Value::Object(pairs.collect())
        });
        json!({
            "tokens": tokens.iter().map(|one| name(one.token, one.logprob)).collect::<Value>(),
            "token_logprobs": tokens.iter().map(|one| json!(one.logprob.max(-9999.0))).collect::<Value>(),
            "top_logprobs": most.collect::<Value>(),
        })
    }

    /// Waits for all answers.
    pub async fn whole(&self, mut events: UnboundedReceiver<Event>, count: usize) -> Result<Response, Problem> {
        let mut answers: Vec<Answer> = (0..count).map(|index| Answer::new(self, index)).collect();
        while answers.iter().any(|answer| answer.end.is_none()) {
            let Some(event) = events.recv().await else {
                return Err(lost());
            };
            let answer = &mut answers[event.index];
            match event.news {
                News::Piece(Piece { text, logprobs }) => {
                    answer.text.push_str(&answer.calls.push(&text));
                    answer.logprobs.extend(logprobs);
                }
                News::Embedding(_) => {}
                News::End(end) => answer.end = Some(end),
                News::Failed(error) => return Err(error.into()),
            }
        }
        let choices = answers.iter_mut().enumerate().map(|(index, answer)| {
            let Found { text, calls } = answer.calls.finish(&self.id, index);
            answer.text.push_str(&text);
            let (logprobs, reason) = (self.logprobs(&answer.logprobs), answer.reason(!calls.is_empty()));
            let text = std::mem::take(&mut answer.text);
            if !self.is_chat {
                return json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason});
            }
            let mut message = json!({"role": "assistant", "content": text, "refusal": null});
            if !calls.is_empty() {
                if text.trim().is_empty() {
                    message["content"] = Value::Null;
                }
                message["tool_calls"] = calls.into();
            }
            json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
        });
        let choices = choices.collect();
        let object = if self.is_chat {
            "chat.completion"
        } else {
            "text_completion"
        };
        let mut value = self.frame(object, choices);
        value["usage"] = self.total(&answers);
        Ok(json_of(StatusCode::OK, &value))
    }

    /// Sends each part as soon as it is there.
    pub fn stream(self, events: UnboundedReceiver<Event>, count: usize, usage: bool) -> Response {
        let mut parts = Parts {
            answers: (0..count).map(|index| Answer::new(&self, index)).collect(),
            format: self,
            events,
            ready: VecDeque::new(),
            usage,
            is_over: false,
        };
        for index in 0..count {
            if parts.format.is_chat {
                parts.delta(index, json!({"role": "assistant", "content": ""}), &[], None);
            } else if let Some(echo) = parts.format.echo.get(index).cloned() {
                parts.delta(index, json!(echo), &[], None);
            }
        }
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-cache"),
        ];
        (headers, Body::from_stream(parts)).into_response()
    }
}

pub fn lost() -> Problem {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        None,
        "the thread that computes has ended; its message is on the server's error stream",
    )
}

/// A stream that ends its jobs when it is dropped, since nobody listens to their events then.
struct Parts {
    format: Format,
    events: UnboundedReceiver<Event>,
    answers: Vec<Answer>,
    ready: VecDeque<Bytes>,
    usage: bool,
    is_over: bool,
}

impl Parts {
    fn send(&mut self, value: &Value) {
        self.ready.push_back(format!("data: {value}\n\n").into());
    }

    /// A part of an answer: of a chat a delta, else text.
    fn delta(&mut self, index: usize, content: Value, logprobs: &[Logprobs], reason: Option<&str>) {
        let logprobs = self.format.logprobs(logprobs);
        let (object, name) = match self.format.is_chat {
            true => ("chat.completion.chunk", "delta"),
            false => ("text_completion", "text"),
        };
        let choice = json!({"index": index, name: content, "logprobs": logprobs, "finish_reason": reason});
        let mut value = self.format.frame(object, vec![choice]);
        if self.usage {
            value["usage"] = Value::Null;
        }
        self.send(&value);
    }

    fn text(&self, text: String) -> Value {
        if self.format.is_chat {
            json!({"content": text})
        } else {
            json!(text)
        }
    }

    fn take(&mut self, event: Event) {
        let index = event.index;
        match event.news {
            News::Piece(piece) => {
                let text = self.answers[index].calls.push(&piece.text);
                if !text.is_empty() || piece.logprobs.is_some() {
                    let content = self.text(text);
                    self.delta(index, content, piece.logprobs.as_slice(), None);
                }
            }
            News::Embedding(_) => {}
            News::End(end) => {
                self.answers[index].end = Some(end);
                let Found { text, calls } = self.answers[index].calls.finish(&self.format.id, index);
                if !text.is_empty() {
                    let content = self.text(text);
                    self.delta(index, content, &[], None);
                }
                let reason = self.answers[index].reason(!calls.is_empty());
                if !calls.is_empty() {
                    let numbered = calls.into_iter().enumerate().map(|(at, mut call)| {
                        call["index"] = at.into();
                        call
                    });
                    let calls: Value = numbered.collect();
                    self.delta(index, json!({"tool_calls": calls}), &[], None);
                }
                let content = if self.format.is_chat { json!({}) } else { json!("") };
                self.delta(index, content, &[], Some(reason));
                if self.answers.iter().all(|answer| answer.end.is_some()) {
                    self.finish();
                }
            }
            News::Failed(error) => {
                self.send(&Problem::from(error).body());
                self.is_over = true;
            }
        }
    }

    fn finish(&mut self) {
        if self.usage {
            let object = if self.format.is_chat {
                "chat.completion.chunk"
            } else {
                "text_completion"
            };
            let mut value = self.format.frame(object, Vec::new());
            value["usage"] = self.format.total(&self.answers);
            self.send(&value);
        }
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.is_over = true;
    }
}

impl Stream for Parts {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let parts = &mut *self;
        loop {
            if let Some(ready) = parts.ready.pop_front() {
                return Poll::Ready(Some(Ok(ready)));
            }
            if parts.is_over {
                return Poll::Ready(None);
            }
            match parts.events.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(event)) => parts.take(event),
                Poll::Ready(None) => {
                    parts.send(&lost().body());
                    parts.is_over = true;
                }
            }
        }
    }
}
