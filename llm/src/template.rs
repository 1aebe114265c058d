//! Chat templates: the Jinja text of `tokenizer.chat_template`, run by `minijinja` as Hugging Face's libraries run it
//! by Jinja2.

use graphc_gguf::GgufFile;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value, ValueKind};
use minijinja::{Environment, ErrorKind};
use serde::Serialize;

use crate::error::{Error, Result};

/// What one side said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    pub content: String,
}

impl Message {
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message {
            role: role.to_owned(),
            content: content.into(),
        }
    }
}

/// A template.
pub struct Template {
    environment: Environment<'static>,
    has_tools: bool,
}

const NAME: &str = "chat";

impl Template {
    /// Reads the template of a file.
    ///
    /// # Errors
    /// A file without one, or one that does not parse.
    pub fn read(file: &GgufFile) -> Result<Template> {
        if !file.metadata.contains_key("tokenizer.chat_template") {
            let message = format!(
                "{} has no tokenizer.chat_template; it may be no chat model: use generate",
                file.path().display()
            );
            return Err(Error::Template(message));
        }
        Template::new(file.text("tokenizer.chat_template")?)
    }

    /// Parses a template.
    ///
    /// # Errors
    /// A text that does not parse, with its line.
    pub fn new(text: &str) -> Result<Template> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| said(&error))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(as_python);
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<Value, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment.add_filter("tojson", to_json);
        let has_tools = text.contains("tools");
        // Marks what a model is trained on; the text is the same without.
        let text = ["generation", "endgeneration"]
            .iter()
            .fold(text.to_owned(), |text, tag| without_tag(&text, tag));
        environment
            .add_template_owned(NAME, text)
            .map_err(|error| said(&error))?;
        Ok(Template { environment, has_tools })
    }

    /// Writes a conversation as the model was trained to read it; `answers` adds the beginning of the model's next
    /// message.
    ///
    /// # Errors
    /// What the template itself refuses, as two messages of one side in a row, and what it asks for that is not there.
    pub fn apply(&self, messages: &[Message], ends: [&str; 2], answers: bool) -> Result<String> {
        self.apply_with(messages, ends, answers, None, &serde_json::Value::Null)
    }

    /// As [`Template::apply`], for messages with more than a role and a text, with tools, and with an object of
    /// variables of the template's own.
    ///
    /// # Errors
    /// As [`Template::apply`].
    pub fn apply_with<M: Serialize>(
        &self,
        messages: &[M],
        ends: [&str; 2],
        answers: bool,
        tools: Option<&serde_json::Value>,
        variables: &serde_json::Value,
    ) -> Result<String> {
        let template = self.environment.get_template(NAME).map_err(|error| said(&error))?;
        let context = minijinja::context! {
            messages => Serde(messages),
            add_generation_prompt => answers,
            bos_token => ends[0],
            eos_token => ends[1],
            tools => tools.map(|tools| Value::from(Serde(tools))),
            ..Value::from(Serde(variables))
        };
        template.render(context).map_err(|error| said(&error))
    }

    /// Whether it writes out tools.
    pub fn has_tools(&self) -> bool {
        self.has_tools
    }
}

fn said(error: &minijinja::Error) -> Error {
    let place = error.line().map_or(String::new(), |line| format!(" (line {line})"));
    Error::Template(match error.detail() {
        Some(detail) => format!("{detail}{place}"),
        None => format!("{error}{place}"),
    })
}

/// Takes `{% tag %}` out of a text, in any spelling of spaces and dashes.
fn without_tag(text: &str, tag: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let inner = rest[start + 2..start + length].trim_matches(['-', '+', ' ', '\n', '\t']);
        if inner == tag {
            out.push_str(&rest[..start]);
        } else {
            out.push_str(&rest[..start + length + 2]);
        }
        rest = &rest[start + length + 2..];
    }
    out + rest
}

/// Prints values as Python does: `None`, `True`, `False`.
fn as_python(
    out: &mut minijinja::Output<'_>,
    state: &mut minijinja::State<'_, '_>,
    value: &Value,
) -> std::result::Result<(), minijinja::Error> {
    match value.kind() {
        ValueKind::None => write_text(out, "None"),
        ValueKind::Bool => write_text(out, if value.is_true() { "True" } else { "False" }),
        _ => minijinja::escape_formatter(out, state, value),
    }
}

fn write_text(out: &mut minijinja::Output<'_>, text: &str) -> std::result::Result<(), minijinja::Error> {
    let failed = |_| minijinja::Error::new(ErrorKind::WriteFailure, "the text cannot be written");
    out.write_str(text).map_err(failed)
}

/// JSON as Python's `json.dumps` writes it: a space behind commas and colons; with `indent`, lines.
fn to_json(value: &Value, options: Kwargs) -> std::result::Result<Value, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Letters stay as they are, as in transformers' own filter.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let failed = |error: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut bytes = Vec::new();
    match indent {
        Some(indent) => {
            let spaces = " ".repeat(indent);
            let formatter = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
            value.serialize(&mut serializer).map_err(failed)?;
        }
        None => {
            let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Spaced);
            value.serialize(&mut serializer).map_err(failed)?;
        }
    }
    Ok(Value::from_safe_string(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Python's separators.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(text: &str) -> Result<String> {
        Template::new(text)?.apply(&[Message::new("user", "hi \"é\"")], ["<s>", "</s>"], true)
    }

    #[test]
    fn values_are_printed_as_python_prints_them() {
        assert_eq!(
            apply("{{ none }} {{ true }} {{ false }} {{ bos_token }}").expect("renders"),
            "None True False <s>"
        );
        let json = apply("{{ messages | tojson }}").expect("renders");
        assert_eq!(json, r#"[{"role": "user", "content": "hi \"é\""}]"#);
        let lines = apply("{{ {'a': [1]} | tojson(indent=2) }}").expect("renders");
        assert_eq!(lines, "{\n  \"a\": [\n    1\n  ]\n}");
    }

    #[test]
    fn a_template_refuses_in_its_own_words() {
        let error = apply("{{ raise_exception('roles must alternate') }}")
            .expect_err("refused")
            .to_string();
        assert!(error.contains("roles must alternate (line 1)"), "{error}");
        assert!(apply("{% if %}").is_err());
    }

    #[test]
    fn marks_of_training_leave_no_trace() {
        let text = "a{%- generation -%}b{% endgeneration %}c{% if true %}d{% endif %}";
        assert_eq!(apply(text).expect("renders"), "abcd");
    }
}
