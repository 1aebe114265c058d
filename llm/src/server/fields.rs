//! The fields of a request: each is read once, checked, and named in what is said about it.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::problem::Problem;

/// An object of JSON whose fields are taken one after the other. `null` is as good as nothing.
pub struct Fields {
    object: Map<String, Value>,
}

impl Fields {
    /// Parses a body.
    ///
    /// # Errors
    /// A text that is no JSON, with the place, or no object.
    pub fn parse(body: &[u8]) -> Result<Fields, Problem> {
        let status = axum::http::StatusCode::BAD_REQUEST;
        match serde_json::from_slice(body) {
            Ok(Value::Object(object)) => Ok(Fields { object }),
            Ok(other) => Err(Problem::new(
                status,
                None,
                format!("the body is {}; an object is wanted", kind(&other)),
            )),
            Err(error) => Err(Problem::new(status, None, format!("the body is no JSON: {error}"))),
        }
    }

    /// Takes a field as it is.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.object.swap_remove(name).filter(|value| !value.is_null())
    }

    pub fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(name, &other, "a string")),
        }
    }

    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(wrong(name, &other, "true or false")),
        }
    }

    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let wanted = format!("a number from {} to {}", range.start(), range.end());
        match value.as_f64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number as f32)),
            None => Err(wrong(name, &value, &wanted)),
        }
    }

    pub fn integer(&mut self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let wanted = format!("an integer from {} to {}", range.start(), range.end());
        match value.as_u64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(wrong(name, &value, &wanted)),
        }
    }

    /// A string, or a list of strings.
    pub fn texts(&mut self, name: &str) -> Result<Vec<String>, Problem> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(items)) => items
                .into_iter()
                .map(|item| match item {
                    Value::String(text) => Ok(text),
                    other => Err(wrong(name, &other, "a string, or a list of strings")),
                })
                .collect(),
            Some(other) => Err(wrong(name, &other, "a string, or a list of strings")),
        }
    }

    /// Takes fields that change nothing here.
    pub fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.object.swap_remove(*name);
        }
    }

    /// Refuses fields that ask for more than there is, unless they have the value that asks for nothing.
    pub fn without(&mut self, name: &str, nothing: &[Value]) -> Result<(), Problem> {
        match self.take(name) {
            Some(value) if !nothing.contains(&value) => {
                let message = format!("'{name}' is not supported; leave it out");
                Err(Problem::field(name, message))
            }
            _ => Ok(()),
        }
    }

    /// Refuses fields that nothing took.
    pub fn finish(self) -> Result<(), Problem> {
        match self.object.into_iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                let message = format!("there is no field '{name}' in such a request");
                Err(Problem::field(name, message))
            }
        }
    }
}

/// A field of another type, or outside its range.
pub fn wrong(name: &str, found: &Value, wanted: &str) -> Problem {
    let found = match found {
        Value::Number(number) => number.to_string(),
        other => kind(other).to_owned(),
    };
    Problem::field(name, format!("'{name}' is {found}; {wanted} is wanted"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mistake_names_its_field() {
        let take = |text: &str| Fields::parse(text.as_bytes()).expect("an object");
        let text = r#"{"t": 3, "f": null, "n": -1, "s": ["a", 1], "x": "y", "b": false}"#;
        let mut fields = take(text);
        assert_eq!(
            fields.text("t").expect_err("a number").message,
            "'t' is 3; a string is wanted"
        );
        assert_eq!(fields.flag("f").expect("null is nothing"), None);
        let message = fields.number("n", 0.0..=2.0).expect_err("outside").message;
        assert_eq!(message, "'n' is -1; a number from 0 to 2 is wanted");
        assert_eq!(
            fields.texts("s").expect_err("a number in it").param.as_deref(),
            Some("s")
        );
        fields
            .without("b", &[Value::Bool(false)])
            .expect("nothing is asked for");
        assert_eq!(fields.finish().expect_err("x is left").param.as_deref(), Some("x"));
        assert!(take(text).without("x", &[]).is_err());
        for bad in ["", "[1]", "{\"a\": }"] {
            assert_eq!(Fields::parse(bad.as_bytes()).err().expect("refused").status, 400);
        }
    }
}
