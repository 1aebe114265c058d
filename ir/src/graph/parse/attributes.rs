//! `{name=value, flag}`: found first, read when the op asks for them.

use std::ops::Range;

use indexmap::IndexMap;

use super::lexer::Kind;
use super::{Parsed, Parser, Problem};
use crate::dim::Dim;
use crate::types::{DType, Scalar};

/// The attributes of one node: where each value's text is, if it has one.
pub(super) struct Attributes {
    op: String,
    op_at: usize,
    found: IndexMap<String, (usize, Option<Range<usize>>)>,
    known: Vec<&'static str>,
}

impl Parser {
    /// Finds the attributes; values are not read yet.
    pub(super) fn attributes(&mut self) -> Parsed<IndexMap<String, (usize, Option<Range<usize>>)>> {
        let mut found = IndexMap::new();
        if !self.eat('{') {
            return Ok(found);
        }
        while !self.eat('}') {
            if !found.is_empty() {
                self.need(',')?;
            }
            let at = self.at;
            let name = self.word("an attribute's name")?;
            let value = if self.eat('=') {
                let start = self.at;
                let mut open = 0usize;
                loop {
                    match self.kind() {
                        Kind::Sign('[' | '(') => open += 1,
                        Kind::Sign(']' | ')') if open > 0 => open -= 1,
                        Kind::Sign(',' | '}') if open == 0 => break,
                        Kind::End | Kind::Sign('{' | '}' | '@' | ':' | '=' | ']' | ')') => {
                            return self.expected("the attribute's value and `}`");
                        }
                        _ => {}
                    }
                    self.at += 1;
                }
                Some(start..self.at)
            } else {
                None
            };
            if found.insert(name.clone(), (at, value)).is_some() {
                return self.error_at(at, Problem::Twice(name));
            }
        }
        Ok(found)
    }

    pub(super) fn no_attributes(&self, op: &str, found: IndexMap<String, (usize, Option<Range<usize>>)>) -> Parsed<()> {
        Attributes::new(op, self.at, found).finish(self)
    }

    pub(super) fn input_index(
        &mut self,
        op: &str,
        found: IndexMap<String, (usize, Option<Range<usize>>)>,
    ) -> Parsed<u32> {
        let mut a = Attributes::new(op, self.at, found);
        let usual = self.inputs.len() as u32;
        let index = a.get(self, "index", Parser::integer)?.unwrap_or(usual);
        a.finish(self)?;
        Ok(index)
    }
}

impl Attributes {
    pub(super) fn new(op: &str, op_at: usize, found: IndexMap<String, (usize, Option<Range<usize>>)>) -> Attributes {
        Attributes {
            op: op.to_owned(),
            op_at,
            found,
            known: Vec::new(),
        }
    }

    /// Reads an attribute with `read`, if it is there.
    pub(super) fn get<T>(
        &mut self,
        p: &mut Parser,
        name: &'static str,
        read: impl FnOnce(&mut Parser) -> Parsed<T>,
    ) -> Parsed<Option<T>> {
        self.known.push(name);
        let Some((at, value)) = self.found.shift_remove(name) else {
            return Ok(None);
        };
        let Some(range) = value else {
            return p.error_at(
                at,
                Problem::Expected {
                    expected: format!("`{name}=` and a value"),
                    found: format!("`{name}`"),
                },
            );
        };
        let outside = (p.at, p.end);
        (p.at, p.end) = (range.start, range.end);
        let result = read(p).and_then(|v| {
            if p.at == p.end {
                Ok(v)
            } else {
                p.at = p.at.min(outside.1);
                let found = p.kind().show();
                p.error(Problem::Expected {
                    expected: "`,` or `}`".into(),
                    found,
                })
            }
        });
        (p.at, p.end) = outside;
        result.map(Some)
    }

    pub(super) fn need<T>(
        &mut self,
        p: &mut Parser,
        name: &'static str,
        read: impl FnOnce(&mut Parser) -> Parsed<T>,
    ) -> Parsed<T> {
        match self.get(p, name, read)? {
            Some(v) => Ok(v),
            None => p.error_at(
                self.op_at,
                Problem::MissingAttribute {
                    op: self.op.clone(),
                    attribute: name,
                },
            ),
        }
    }

    pub(super) fn flag(&mut self, p: &Parser, name: &'static str) -> Parsed<bool> {
        self.known.push(name);
        match self.found.shift_remove(name) {
            None => Ok(false),
            Some((_, None)) => Ok(true),
            Some((at, Some(_))) => p.error_at(
                at,
                Problem::Expected {
                    expected: format!("just `{name}`, which takes no value"),
                    found: format!("`{name}=`"),
                },
            ),
        }
    }

    pub(super) fn axis(&mut self, p: &mut Parser) -> Parsed<usize> {
        self.need(p, "axis", Parser::integer)
    }

    pub(super) fn number(&mut self, p: &mut Parser, name: &'static str) -> Parsed<Scalar> {
        self.need(p, name, Parser::scalar)
    }

    pub(super) fn ints(&mut self, p: &mut Parser, name: &'static str, usual: Vec<i64>) -> Parsed<Vec<i64>> {
        Ok(self.get(p, name, |p| p.list(Parser::integer))?.unwrap_or(usual))
    }

    pub(super) fn dims(&mut self, p: &mut Parser, name: &'static str) -> Parsed<Vec<Dim>> {
        self.need(p, name, |p| p.list(|p| p.dim(0)))
    }

    /// The attribute, else what the declared type says, else an error that asks for the type.
    pub(super) fn or_declared<T>(
        &mut self,
        p: &mut Parser,
        name: &'static str,
        declared: Option<T>,
        read: impl FnOnce(&mut Parser) -> Parsed<T>,
    ) -> Parsed<T> {
        match self.get(p, name, read)?.or(declared) {
            Some(v) => Ok(v),
            None => p.error_at(self.op_at, Problem::MissingType { op: self.op.clone() }),
        }
    }

    pub(super) fn dtype_or(&mut self, p: &mut Parser, name: &'static str, declared: Option<DType>) -> Parsed<DType> {
        self.or_declared(p, name, declared, Parser::dtype)
    }

    /// A word that must be one of a set.
    pub(super) fn member<T>(
        &mut self,
        p: &mut Parser,
        name: &'static str,
        what: &'static str,
        find: impl Fn(&str) -> Option<T>,
    ) -> Parsed<Option<T>> {
        self.get(p, name, |p| {
            let at = p.at;
            let word = p.word(what)?;
            match find(&word) {
                Some(v) => Ok(v),
                None => p.error_at(
                    at,
                    Problem::Expected {
                        expected: what.into(),
                        found: format!("`{word}`"),
                    },
                ),
            }
        })
    }

    /// Refuses attributes that nothing asked for.
    pub(super) fn finish(self, p: &Parser) -> Parsed<()> {
        match self.found.into_iter().next() {
            None => Ok(()),
            Some((attribute, (at, _))) => p.error_at(
                at,
                Problem::UnknownAttribute {
                    op: self.op,
                    attribute,
                    known: self.known.iter().map(|k| (*k).to_owned()).collect(),
                },
            ),
        }
    }

    pub(super) fn missing<T>(&self, p: &Parser, name: &'static str) -> Parsed<T> {
        p.error_at(
            self.op_at,
            Problem::MissingAttribute {
                op: self.op.clone(),
                attribute: name,
            },
        )
    }
}
