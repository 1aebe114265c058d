//! Refusals, as OpenAI's API writes them.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::error::Error;

/// A status, and the object `error` of the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub status: StatusCode,
    pub kind: &'static str,
    pub code: Option<&'static str>,
    /// The field that is wrong.
    pub param: Option<String>,
    pub message: String,
}

impl Problem {
    pub fn new(status: StatusCode, code: Option<&'static str>, message: impl Into<String>) -> Problem {
        let kind = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        Problem {
            status,
            kind,
            code,
            param: None,
            message: message.into(),
        }
    }

    /// A field that cannot be used.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem {
            param: Some(param.into()),
            ..Problem::new(StatusCode::BAD_REQUEST, None, message)
        }
    }

    /// The object, with `error` for its only key.
    pub fn body(&self) -> serde_json::Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let message = error.to_string();
        match error {
            Error::Context { needed, capacity } => Problem::new(
                StatusCode::BAD_REQUEST,
                Some("context_length_exceeded"),
                format!(
                    "the prompt has {} tokens, and the context of {capacity} must have room for one more at least; \
                     shorten the prompt, or start the server with a larger --context",
                    needed - 1
                ),
            ),
            Error::Busy { .. } => Problem::new(StatusCode::TOO_MANY_REQUESTS, Some("queue_full"), message),
            Error::Template(_) | Error::Tokenizer { .. } | Error::NoToken => {
                Problem::new(StatusCode::BAD_REQUEST, None, message)
            }
            Error::Usage(_) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, None, message),
            _ => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, None, message),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = json_of(self.status, &self.body());
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = header::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

/// An answer of JSON.
pub fn json_of(status: StatusCode, value: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}
