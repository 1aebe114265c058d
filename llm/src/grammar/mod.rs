//! Answers that are JSON of a schema: which bytes may come next, and so which tokens.
//!
//! ```text
//! {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}  --schema-->  nodes
//! nodes + `{"n": 1`  --machine-->  a digit, white space or `}` may follow
//! ```
//!
//! Before: a schema as a request has it; keywords that are not known are refused by name. After: a [`Matcher`] that
//! takes bytes as long as they can become a text of the schema. Names of an object's properties come in any order.

mod machine;
mod schema;
#[cfg(test)]
mod tests;

pub use machine::Matcher;
pub use schema::Grammar;
