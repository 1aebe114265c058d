//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::Format;
use super::fields::{Fields, wrong};
use super::problem::Problem;
use super::request::{IGNORED, Options, blocking, response_format};
use super::state::State;

/// The most probable tokens that are told of each token at most.
const TOP: u64 = 20;

pub async fn answer(state: &Arc<State>, mut fields: Fields) -> Result<Response, Problem> {
    state.check_model(&mut fields)?;
    state.check_writes()?;
    let mut messages = messages(&mut fields)?;
    let tools = tools(&mut fields)?;
    let most = (&["max_tokens", "max_completion_tokens"][..], None);
    let mut options = Options::take(&mut fields, most, state.vocabulary)?;
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=TOP)?;
    if top.is_some() && !wanted {
        return Err(Problem::field(
            "top_logprobs",
            "'top_logprobs' wants 'logprobs' to be true",
        ));
    }
    let logprobs = wanted.then_some(top.unwrap_or(0) as usize);
    let kwargs = match fields.take("chat_template_kwargs") {
        None => Value::Null,
        Some(object @ Value::Object(_)) => object,
        Some(other) => return Err(wrong("chat_template_kwargs", &other, "an object")),
    };
    options.grammar = response_format(&mut fields)?;
    fields.without("modalities", &[json!(["text"])])?;
    fields.without("functions", &[json!([])])?;
    fields.without("function_call", &[json!("none"), json!("auto")])?;
    fields.ignore(IGNORED);
    fields.finish()?;
    let Some(template) = &state.template else {
        let message = "the model has no chat template; use /v1/completions";
        return Err(Problem::new(StatusCode::BAD_REQUEST, None, message));
    };
    if tools.is_some() && !template.has_tools() {
        let message = "the model's chat template has no tools; leave 'tools' out";
        return Err(Problem::field("tools", message));
    }
    if tools.is_some() && options.grammar.is_some() {
        let message =
            "'response_format' and 'tools' exclude each other here; leave one out, or set 'tool_choice' to \"none\"";
        return Err(Problem::field("response_format", message));
    }
    arguments(&mut messages);
    let has_tools = tools.is_some();
    let prompt = blocking({
        let state = state.clone();
        move || {
            let Some(template) = &state.template else {
                return Ok(Vec::new());
            };
            let ends = state.tokenizer.ends_of_text();
            let text = template.apply_with(&messages, ends, true, tools.as_ref(), &kwargs)?;
            state.tokenizer.encode(&text, true, true)
        }
    })
    .await??;
    let (sender, events) = tokio::sync::mpsc::unbounded_channel();
    let jobs = options.jobs(vec![prompt], logprobs, &sender);
    drop(sender);
    let count = jobs.len();
    state.submit(jobs, "messages")?;
    let format = Format {
        id: state.next_id("chatcmpl"),
        created: super::state::now(),
        model: state.name.clone(),
        is_chat: true,
        has_tools,
        answers: options.answers,
        tokenizer: state.tokenizer.clone(),
        echo: Vec::new(),
    };
    match options.streams {
        true => Ok(format.stream(events, count, options.usage)),
        false => format.whole(events, count).await,
    }
}

/// Messages as templates want them: the content of each is a text.
fn messages(fields: &mut Fields) -> Result<Vec<Value>, Problem> {
    let list = match fields.take("messages") {
        Some(Value::Array(list)) if !list.is_empty() => list,
        Some(Value::Array(_)) => {
            return Err(Problem::field(
                "messages",
                "'messages' is empty; one at least is wanted",
            ));
        }
        Some(other) => return Err(wrong("messages", &other, "a list of messages")),
        None => {
            return Err(Problem::field(
                "messages",
                "'messages' is missing; a list of messages is wanted",
            ));
        }
    };
    let mut messages = Vec::new();
    for (at, mut message) in list.into_iter().enumerate() {
        let name = |part: &str| format!("messages[{at}]{part}");
        let Some(object) = message.as_object_mut() else {
            return Err(wrong(&name(""), &message, "an object"));
        };
        let role = match object.get("role") {
            Some(Value::String(role)) => role.clone(),
            Some(other) => return Err(wrong(&name(".role"), other, "a string")),
            None => return Err(Problem::field(name(".role"), format!("'{}' is missing", name(".role")))),
        };
        match role.as_str() {
            "system" | "user" | "assistant" | "tool" => {}
            // The name that newer clients have for it.
            "developer" => drop(object.insert("role".to_owned(), json!("system"))),
            other => {
                let message = format!(
                    "'{}' is {other:?}; system, developer, user, assistant and tool are possible",
                    name(".role")
                );
                return Err(Problem::field(name(".role"), message));
            }
        }
        let content = match object.get("content") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(parts)) => {
                let mut text = String::new();
                for part in parts {
                    match (part.get("type").and_then(Value::as_str), part.get("text")) {
                        (Some("text"), Some(Value::String(more))) => text.push_str(more),
                        (kind, _) => {
                            let message = format!(
                                "'{}' has a part of the type {:?}; texts alone are supported",
                                name(".content"),
                                kind.unwrap_or("")
                            );
                            return Err(Problem::field(name(".content"), message));
                        }
                    }
                }
                text
            }
            None | Some(Value::Null) if role == "assistant" && object.contains_key("tool_calls") => String::new(),
            None | Some(Value::Null) => {
                return Err(Problem::field(
                    name(".content"),
                    format!("'{}' is missing", name(".content")),
                ));
            }
            Some(other) => return Err(wrong(&name(".content"), other, "a string, or a list of parts")),
        };
        object.insert("content".to_owned(), content.into());
        messages.push(message);
    }
    Ok(messages)
}

/// Arguments of earlier calls are texts of JSON; templates want what they say.
fn arguments(messages: &mut [Value]) {
    for message in messages {
        let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) else {
            continue;
        };
        for call in calls {
            let Some(arguments) = call.pointer_mut("/function/arguments") else {
                continue;
            };
            if let Some(value) = arguments.as_str().and_then(|text| serde_json::from_str(text).ok()) {
                *arguments = value;
            }
        }
    }
}

/// The tools that the model may call; None where it may call none.
fn tools(fields: &mut Fields) -> Result<Option<Value>, Problem> {
    let tools = match fields.take("tools") {
        None => None,
        Some(Value::Array(list)) => {
            let named = |tool: &Value| tool.pointer("/function/name").is_some_and(Value::is_string);
            if !list.iter().all(named) {
                let message = "each of 'tools' is to be {\"type\": \"function\", \"function\": {\"name\": …}}";
                return Err(Problem::field("tools", message));
            }
            (!list.is_empty()).then_some(Value::Array(list))
        }
        Some(other) => return Err(wrong("tools", &other, "a list of tools")),
    };
    match fields.take("tool_choice") {
        Some(choice) if choice == "none" => Ok(None),
        None => Ok(tools),
        Some(choice) if choice == "auto" => Ok(tools),
        Some(_) => Err(Problem::field(
            "tool_choice",
            "'tool_choice' is \"auto\" or \"none\"; a call cannot be forced",
        )),
    }
}
