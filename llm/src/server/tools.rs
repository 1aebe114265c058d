//! Calls of tools in an answer, as Hermes and Qwen write them: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use serde_json::{Value, json};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Keeps calls out of the text that is shown.
#[derive(Clone, Debug)]
pub struct Calls {
    looks: bool,
    /// What may be the beginning of a call, or all from the first call on.
    held: String,
}

/// The end of an answer: text that is no call, and the calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub text: String,
    pub calls: Vec<Value>,
}

impl Calls {
    /// Without `looks`, all text is shown.
    pub fn new(looks: bool) -> Calls {
        Calls {
            looks,
            held: String::new(),
        }
    }

    /// Adds text, and gives what can be shown: all before the first call.
    pub fn push(&mut self, text: &str) -> String {
        if !self.looks {
            return text.to_owned();
        }
        let was_open = self.held.starts_with(OPEN);
        self.held.push_str(text);
        if was_open {
            return String::new();
        }
        let kept = match self.held.find(OPEN) {
            Some(at) => at,
            None => {
                let ends = |count: &usize| self.held.ends_with(&OPEN[..*count]);
                self.held.len() - (1..OPEN.len()).rev().find(ends).unwrap_or(0)
            }
        };
        let rest = self.held.split_off(kept);
        std::mem::replace(&mut self.held, rest)
    }

    /// Reads the calls. What is none is given as text, as it is.
    pub fn finish(&mut self, id: &str, answer: usize) -> Found {
        let held = std::mem::take(&mut self.held);
        let (mut text, mut calls, mut rest) = (String::new(), Vec::new(), held.as_str());
        while let Some(start) = rest.find(OPEN) {
            text.push_str(&rest[..start]);
            let inner = &rest[start + OPEN.len()..];
            let (inner, after) = inner.split_once(CLOSE).unwrap_or((inner, ""));
            match call(inner) {
                Some(function) => calls.push(json!({
                    "id": format!("call-{id}-{answer}-{}", calls.len()), "type": "function", "function": function,
                })),
                None => text.push_str(&rest[start..rest.len() - after.len()]),
            }
            rest = after;
        }
        text.push_str(rest);
        // Line ends between calls are no answer.
        if !calls.is_empty() && text.trim().is_empty() {
            text.clear();
        }
        Found { text, calls }
    }
}

/// A call's name, and its arguments as a text of JSON.
fn call(text: &str) -> Option<Value> {
    let value: Value = serde_json::from_str(text.trim()).ok()?;
    let name = value.get("name")?.as_str()?;
    let arguments = match value.get("arguments") {
        None => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    Some(json!({"name": name, "arguments": arguments}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_taken_out_of_the_text() {
        let mut calls = Calls::new(true);
        let pieces = [
            "I <b>look",
            " <tool",
            "_call>\n{\"name\": \"add\", \"argum",
            "ents\": {\"a\": 1}}\n</tool_call>\n<tool_call>{\"name\": \"now\"}",
        ];
        let shown: Vec<String> = pieces.iter().map(|piece| calls.push(piece)).collect();
        assert_eq!(shown, ["I <b>look", " ", "", ""]);
        let found = calls.finish("x", 0);
        assert_eq!(found.text, "");
        assert_eq!(
            found.calls[0]["function"],
            json!({"name": "add", "arguments": "{\"a\":1}"})
        );
        assert_eq!(found.calls[1]["function"], json!({"name": "now", "arguments": "{}"}));
        assert_ne!(found.calls[0]["id"], found.calls[1]["id"]);
    }

    #[test]
    fn what_is_no_call_stays_text() {
        let mut calls = Calls::new(true);
        assert_eq!(calls.push("a <tool_call>nothing</tool_call> b"), "a ");
        let found = calls.finish("x", 0);
        assert_eq!(
            (found.text.as_str(), found.calls.len()),
            ("<tool_call>nothing</tool_call> b", 0)
        );
        assert_eq!(Calls::new(false).push("<tool_call>"), "<tool_call>");
        let mut calls = Calls::new(true);
        assert_eq!(calls.push("a <"), "a ");
        assert_eq!(calls.finish("x", 0).text, "<");
    }
}
