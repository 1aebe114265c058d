//! Reads the text that [`print`](super::print) writes, and what a person would write by hand.
//!
//! By hand, more is allowed: names of nodes are any identifiers; the type may be left out where it is inferred;
//! comments begin with `//` or `;`; a constant may be `random(seed=3, scale=0.1)`, which the parser fills in: uniform
//! numbers in `[−scale, scale)` (rounded for integers, `> 0` for bool) by [`eval::random`](super::eval::random);
//! symbols that no line declares get the default bounds.
//!
//! Any text gives a graph or a [`ParseError`] with its place; types that are written are taken as they are and checked
//! by [`verify`](super::verify).

mod attributes;
mod constants;
mod filler;
mod lexer;
mod ops;

use std::sync::Arc;

use indexmap::IndexMap;
use smallvec::SmallVec;

use super::assume::Assumption;
use super::infer::InferError;
use super::op::Op;
use super::{Check, ConstId, Graph, Indexed, Input, Node, Origin, Output, Stage, Value};
use crate::dim::{Dim, Shape, Symbol, SymbolInfo};
#[cfg(test)]
use crate::entity::Entity;
use crate::types::{DType, Scalar, TensorType};
use constants::Data;
use lexer::{Kind, Token, tokens};

pub use filler::random;

/// A text that is not a graph, with the place.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("{file}:{line}:{column}: {problem}")]
pub struct ParseError {
    pub file: Arc<str>,
    /// From 1.
    pub line: u32,
    /// In bytes, from 1.
    pub column: u32,
    pub problem: Problem,
}

/// What is wrong with a text.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Problem {
    #[error("expected {expected}, found {found}")]
    Expected { expected: String, found: String },
    #[error("the character {0:?} has no meaning here")]
    Character(char),
    #[error("the string {0}")]
    String(&'static str),
    #[error("{0:?} is defined twice")]
    Twice(String),
    #[error("{0:?} is not defined above; operands come before their users")]
    Unknown(String),
    #[error("unknown op {0:?}")]
    UnknownOp(String),
    #[error("{op} has no attribute {attribute:?}{}", if known.is_empty() { String::new() } else { format!("; it has {}", known.join(", ")) })]
    UnknownAttribute {
        op: String,
        attribute: String,
        known: Vec<String>,
    },
    #[error("{op} needs the attribute {attribute:?}")]
    MissingAttribute { op: String, attribute: &'static str },
    #[error("{op} needs its type: write `: f32[…]` after it")]
    MissingType { op: String },
    #[error("{0}")]
    Infer(InferError),
    #[error("the number {0:?} does not fit")]
    Number(String),
    #[error("a constant {ty} has {expected} elements, but {got} are written")]
    Count { ty: String, expected: usize, got: usize },
    #[error("a constant {ty} is {expected} bytes, but the hex text is not that")]
    Hex { ty: String, expected: usize },
    #[error("a constant's type {0} must have constant dims and fewer than 2^26 elements")]
    ConstantType(String),
    #[error(
        "this constant was left out when the text was printed; print the graph whole (`--emit graph --weights`) to read it back"
    )]
    Elided,
    #[error("inputs must have the indices 0 to {last}, each once")]
    InputIndices { last: usize },
    #[error("an expression is nested more than {0} deep")]
    Depth(usize),
    #[error(transparent)]
    Memory(#[from] crate::memory::NoMemory),
    #[error(
        "a size has more than {} terms, {} factors in a term or {} nested operations, or a shape has that many elements",
        crate::dim::MOST_TERMS,
        crate::dim::MOST_FACTORS,
        crate::dim::MOST_DEPTH
    )]
    LargeSize,
}

/// The largest constant that a text may ask for.
const LARGEST_CONSTANT: usize = 1 << 26;

/// Parses a graph; nodes without `@` have an unknown origin, so that printing gives the text back.
///
/// # Errors
/// [`ParseError`] with line and column.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    Parser::new("<text>".into(), text, false)?.graph()
}

/// Parses a `.gir` file; nodes without `@` have the file and line as their origin.
///
/// # Errors
/// [`ParseError`] with file, line and column.
pub fn parse_file(file: &str, text: &str) -> Result<Graph, ParseError> {
    Parser::new(file.into(), text, true)?.graph()
}

/// Parses a size, such as `2*n + div(m, 4)`.
///
/// # Errors
/// [`ParseError`] with the column.
pub fn parse_dim(text: &str) -> Result<Dim, ParseError> {
    let mut parser = Parser::new("<size>".into(), text, false)?;
    let dim = parser.dim(0)?;
    match parser.kind() {
        Kind::End => Ok(dim),
        _ => parser.expected("the end of the size"),
    }
}

impl std::str::FromStr for Graph {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Graph, ParseError> {
        parse(text)
    }
}

type Parsed<T> = Result<T, ParseError>;

struct Parser {
    file: Arc<str>,
    tokens: Vec<Token>,
    at: usize,
    /// Tokens from here on are not looked at (the end of an attribute's text).
    end: usize,
    line_origins: bool,
    graph: Graph,
    names: IndexMap<String, super::NodeId>,
    constants: IndexMap<String, ConstId>,
    /// `(index, name, node)` of each input.
    inputs: Vec<(u32, Input)>,
}

impl Parser {
    fn new(file: Arc<str>, text: &str, line_origins: bool) -> Parsed<Parser> {
        let tokens = tokens(&file, text)?;
        Ok(Parser {
            end: tokens.len() - 1,
            file,
            tokens,
            at: 0,
            line_origins,
            graph: Graph::default(),
            names: IndexMap::new(),
            constants: IndexMap::new(),
            inputs: Vec::new(),
        })
    }

    fn kind(&self) -> &Kind {
        if self.at < self.end {
            &self.tokens[self.at].kind
        } else {
            &Kind::End
        }
    }

    fn ahead(&self, by: usize) -> &Kind {
        let at = self.at + by;
        if at < self.end {
            &self.tokens[at].kind
        } else {
            &Kind::End
        }
    }

    fn error_at<T>(&self, at: usize, problem: Problem) -> Parsed<T> {
        let token = &self.tokens[at.min(self.tokens.len() - 1)];
        Err(ParseError {
            file: self.file.clone(),
            line: token.line,
            column: token.column,
            problem,
        })
    }

    fn error<T>(&self, problem: Problem) -> Parsed<T> {
        self.error_at(self.at, problem)
    }

    fn expected<T>(&self, expected: impl Into<String>) -> Parsed<T> {
        self.error(Problem::Expected {
            expected: expected.into(),
            found: self.kind().show(),
        })
    }

    fn eat(&mut self, sign: char) -> bool {
        let hit = *self.kind() == Kind::Sign(sign);
        self.at += usize::from(hit);
        hit
    }

    fn need(&mut self, sign: char) -> Parsed<()> {
        if self.eat(sign) {
            Ok(())
        } else {
            self.expected(format!("`{sign}`"))
        }
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let hit = matches!(self.kind(), Kind::Word(w) if w == word);
        self.at += usize::from(hit);
        hit
    }

    fn need_word(&mut self, word: &str) -> Parsed<()> {
        if self.eat_word(word) {
            Ok(())
        } else {
            self.expected(format!("`{word}`"))
        }
    }

    fn word(&mut self, what: &str) -> Parsed<String> {
        match self.kind() {
            Kind::Word(w) => {
                let w = w.clone();
                self.at += 1;
                Ok(w)
            }
            _ => self.expected(what),
        }
    }

    fn text(&mut self, what: &str) -> Parsed<String> {
        match self.kind() {
            Kind::Text(t) => {
                let t = t.clone();
                self.at += 1;
                Ok(t)
            }
            _ => self.expected(what),
        }
    }

    /// A whole number, with an optional sign.
    fn integer<T: std::str::FromStr>(&mut self) -> Parsed<T> {
        let start = self.at;
        let minus = self.eat('-');
        let Kind::Number(digits) = self.kind() else {
            return self.expected("a whole number");
        };
        let text = if minus { format!("-{digits}") } else { digits.clone() };
        match text.parse() {
            Ok(v) => {
                self.at += 1;
                Ok(v)
            }
            Err(_) => self.error_at(start, Problem::Number(text)),
        }
    }

    /// A number or truth value; a number is a float when it has a point, an exponent, or is `inf` or `NaN`.
    fn scalar(&mut self) -> Parsed<Scalar> {
        let start = self.at;
        let minus = self.eat('-');
        let sign = if minus { "-" } else { "" };
        let value = match self.kind() {
            Kind::Word(w) if w == "true" && !minus => Scalar::Bool(true),
            Kind::Word(w) if w == "false" && !minus => Scalar::Bool(false),
            Kind::Word(w) if w == "inf" && minus => Scalar::Float(f64::NEG_INFINITY),
            Kind::Word(w) if w == "inf" => Scalar::Float(f64::INFINITY),
            Kind::Word(w) if w == "NaN" => Scalar::Float(f64::NAN),
            Kind::Number(n) => {
                let text = format!("{sign}{n}");
                let float = n.contains(['.', 'e', 'E']);
                let value = if float {
                    text.parse().map(Scalar::Float).ok()
                } else {
                    text.parse().map(Scalar::Int).ok()
                };
                match value {
                    Some(v) => v,
                    None => return self.error_at(start, Problem::Number(text)),
                }
            }
            _ => return self.expected("a number"),
        };
        self.at += 1;
        Ok(value)
    }

    /// A sum of products of symbols, numbers and `div`, `mod`, `max`, `min`, `sqrt`.
    fn dim(&mut self, depth: usize) -> Parsed<Dim> {
        const DEEPEST: usize = 32;
        if depth > DEEPEST {
            return self.error(Problem::Depth(DEEPEST));
        }
        let mut sum = Dim::Const(0);
        let mut minus = self.eat('-');
        loop {
            let mut product = self.factor(depth)?;
            while self.eat('*') {
                let factor = self.factor(depth)?;
                product = match product.checked_mul(&factor) {
                    Some(product) => product,
                    None => return self.error(Problem::LargeSize),
                };
            }
            sum = match sum.checked_add(&if minus { -product } else { product }) {
                Some(sum) => sum,
                None => return self.error(Problem::LargeSize),
            };
            minus = match self.kind() {
                Kind::Sign('+') => false,
                Kind::Sign('-') => true,
                _ => return Ok(sum),
            };
            self.at += 1;
        }
    }

    fn factor(&mut self, depth: usize) -> Parsed<Dim> {
        if self.eat('(') {
            let inner = self.dim(depth + 1)?;
            self.need(')')?;
            return Ok(inner);
        }
        match self.kind().clone() {
            Kind::Number(_) => Ok(Dim::Const(self.integer()?)),
            Kind::Word(w) => {
                self.at += 1;
                let call = matches!(w.as_str(), "div" | "mod" | "max" | "min" | "sqrt") && self.eat('(');
                if !call {
                    return Ok(Dim::symbol(&w));
                }
                let a = self.dim(depth + 1)?;
                let b = if w == "sqrt" {
                    Dim::Const(0)
                } else {
                    self.need(',')?;
                    self.dim(depth + 1)?
                };
                self.need(')')?;
                let value = match w.as_str() {
                    "sqrt" => a.floor_sqrt(),
                    "div" => a.floor_div(&b),
                    "mod" => a.modulo(&b),
                    "max" => a.larger(&b),
                    _ => a.smaller(&b),
                };
                if value.is_small() {
                    Ok(value)
                } else {
                    self.error(Problem::LargeSize)
                }
            }
            _ => self.expected("a size"),
        }
    }

    /// Items between `[` and `]`.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        self.need('[')?;
        let mut out = Vec::new();
        while !self.eat(']') {
            if !out.is_empty() {
                self.need(',')?;
            }
            out.push(item(self)?);
        }
        Ok(out)
    }

    fn dims(&mut self) -> Parsed<Shape> {
        let start = self.at;
        let shape = self.list(|p| p.dim(0)).map(Shape)?;
        match shape.checked_elements() {
            Some(_) => Ok(shape),
            None => self.error_at(start, Problem::LargeSize),
        }
    }

    fn dtype(&mut self) -> Parsed<DType> {
        let start = self.at;
        let word = self.word("an element type")?;
        word.parse().or_else(|_| {
            self.error_at(
                start,
                Problem::Expected {
                    expected: "an element type".into(),
                    found: format!("`{word}`"),
                },
            )
        })
    }

    fn ty(&mut self) -> Parsed<TensorType> {
        let dtype = self.dtype()?;
        Ok(TensorType::new(dtype, self.dims()?))
    }

    fn graph(mut self) -> Parsed<Graph> {
        self.need_word("graph")?;
        self.need('@')?;
        self.graph.name = match self.kind() {
            Kind::Text(_) => self.text("a name")?,
            _ => self.word("a name")?,
        };
        if self.eat_word("stage") {
            self.need('=')?;
            self.graph.stage = if self.eat_word("core") {
                Stage::Core
            } else {
                self.need_word("import")?;
                Stage::Import
            };
        }
        self.need('{')?;
        while !self.eat('}') {
            match (self.kind(), self.ahead(1)) {
                (Kind::Word(_), Kind::Sign('=')) => self.node()?,
                (Kind::Word(w), Kind::Word(_)) if w == "symbol" => self.symbol()?,
                (Kind::Word(w), Kind::Word(_)) if w == "const" => self.table_constant()?,
                (Kind::Word(w), _) if w == "return" => self.outputs()?,
                (Kind::Word(w), _) if w == "assume" => self.assumption()?,
                _ => return self.expected("`symbol`, `assume`, `const`, `name = op …`, `return` or `}`"),
            }
        }
        if *self.kind() != Kind::End {
            return self.expected("the end of the text");
        }
        self.inputs.sort_by_key(|(index, _)| *index);
        if self.inputs.iter().enumerate().any(|(i, (index, _))| i as u32 != *index) {
            let last = self.inputs.len() - 1;
            return self.error(Problem::InputIndices { last });
        }
        self.graph.inputs = self.inputs.into_iter().map(|(_, i)| i).collect();
        Ok(self.graph)
    }

    fn symbol(&mut self) -> Parsed<()> {
        self.at += 1;
        let start = self.at;
        let name = self.word("a symbol's name")?;
        let mut info = SymbolInfo::default();
        if self.eat(':') {
            info.min = self.integer()?;
            if *self.kind() != Kind::Range {
                return self.expected("`..`");
            }
            self.at += 1;
            info.max = match self.kind() {
                Kind::Number(_) | Kind::Sign('-') => Some(self.integer()?),
                _ => None,
            };
            info.hint = info.hint.max(info.min).min(info.max.unwrap_or(i64::MAX));
        }
        if self.eat_word("hint") {
            info.hint = self.integer()?;
        }
        if self.graph.symbols.insert(Symbol::new(&name), info).is_some() {
            return self.error_at(start, Problem::Twice(name));
        }
        Ok(())
    }

    fn assumption(&mut self) -> Parsed<()> {
        self.at += 1;
        let left = self.dim(0)?;
        self.need('=')?;
        let right = self.dim(0)?;
        self.need_word("for")?;
        let what = self.text("what needs the two sizes to be equal")?;
        self.graph.assumptions.push(Assumption { left, right, what });
        Ok(())
    }

    fn table_constant(&mut self) -> Parsed<()> {
        self.at += 1;
        let start = self.at;
        let id = self.word("a constant's name")?;
        self.need('=')?;
        let (name, data) = self.constant_data()?;
        self.need(':')?;
        let ty = self.ty()?;
        let constant = self.constant(start, name, data, &ty)?;
        let entry = self.graph.constants.push(constant);
        if self.constants.insert(id.clone(), entry).is_some() {
            return self.error_at(start, Problem::Twice(id));
        }
        Ok(())
    }

    fn outputs(&mut self) -> Parsed<()> {
        self.at += 1;
        loop {
            let value = self.value()?;
            let is_check = self.eat_word("check");
            if !is_check {
                self.need_word("as")?;
            }
            let name = self.text("an output's name in quotes")?;
            let check = match is_check {
                true if self.eat_word("indices") => Some(Check::Indices(self.indexed()?)),
                true => Some(Check::Holds),
                false => None,
            };
            self.graph.outputs.push(Output { name, value, check });
            if !self.eat(',') {
                return Ok(());
            }
        }
    }

    /// What a condition of indices is about: their shape, and the axes that they run over with their sizes.
    fn indexed(&mut self) -> Parsed<Indexed> {
        let shape = self.dims()?;
        self.need_word("in")?;
        let axes = self.list(|p| {
            let axis = p.integer()?;
            p.need(':')?;
            Ok((axis, p.dim(0)?))
        })?;
        Ok(Indexed { shape, axes })
    }

    fn value(&mut self) -> Parsed<Value> {
        let start = self.at;
        let name = self.word("a value")?;
        let Some(&node) = self.names.get(&name) else {
            return self.error_at(start, Problem::Unknown(name));
        };
        let index: u32 = if self.eat('.') { self.integer()? } else { 0 };
        if index as usize >= self.graph.nodes[node].results.len() {
            return self.error_at(start, Problem::Unknown(format!("{name}.{index}")));
        }
        Ok(Value::new(node, index))
    }

    fn node(&mut self) -> Parsed<()> {
        let start = self.at;
        let name = self.word("a name")?;
        self.need('=')?;
        let op_at = self.at;
        let op_name = self.word("an op")?;
        let mut data = None;
        let mut input_name = None;
        let mut operands: SmallVec<[Value; 3]> = SmallVec::new();
        match op_name.as_str() {
            "input" => input_name = Some(self.text("the input's name in quotes")?),
            "constant" => data = Some(self.constant_data()?),
            _ => {
                // Operands begin on the op's line; the next line's name is not one.
                let same_line = self.tokens[self.at].line == self.tokens[op_at].line;
                if same_line && matches!(self.kind(), Kind::Word(_)) && *self.ahead(1) != Kind::Sign('=') {
                    operands.push(self.value()?);
                    while self.eat(',') {
                        operands.push(self.value()?);
                    }
                }
            }
        }
        let attributes = self.attributes()?;
        let mut types: SmallVec<[TensorType; 1]> = SmallVec::new();
        if self.eat(':') {
            types.push(self.ty()?);
            while self.eat(',') {
                types.push(self.ty()?);
            }
        }
        let origin = self.origin(start)?;
        for symbol in symbols_of(&types) {
            self.graph.symbols.entry(symbol).or_default();
        }
        let id = self.graph.nodes.next_key();
        let declared = types.first();
        let missing = Problem::MissingType { op: op_name.clone() };
        let op = match (input_name, data) {
            (Some(name), _) => {
                if declared.is_none() {
                    return self.error_at(op_at, missing);
                }
                let index = self.input_index(&op_name, attributes)?;
                self.inputs.push((index, Input { name, node: id }));
                Op::Input { index }
            }
            (_, Some((_, Data::Table(c)))) => {
                if declared.is_none() {
                    let t = &self.graph.constants[c].tensor;
                    types.push(TensorType::new(t.dtype, t.shape.clone()));
                }
                self.no_attributes(&op_name, attributes)?;
                Op::Constant(c)
            }
            (_, Some((label, data))) => {
                let Some(ty) = declared else {
                    return self.error_at(op_at, missing);
                };
                let constant = self.constant(op_at, label, data, ty)?;
                self.no_attributes(&op_name, attributes)?;
                let c = self.graph.constants.push(constant);
                self.constants.insert(c.to_string(), c);
                Op::Constant(c)
            }
            _ => self.op(op_at, &op_name, attributes, &operands, declared)?,
        };
        if types.is_empty() {
            types = match self.graph.infer(&op, &operands) {
                Ok(types) => types,
                Err(e) => return self.error_at(op_at, Problem::Infer(e)),
            };
            if types.iter().any(|ty| ty.shape.checked_elements().is_none()) {
                return self.error_at(op_at, Problem::LargeSize);
            }
        }
        if self.names.insert(name.clone(), id).is_some() {
            return self.error_at(start, Problem::Twice(name));
        }
        self.graph.nodes.push(Node {
            op,
            operands,
            results: types,
            origin,
        });
        Ok(())
    }

    fn origin(&mut self, start: usize) -> Parsed<Origin> {
        if !self.eat('@') {
            return Ok(if self.line_origins {
                Origin::Source {
                    file: self.file.clone(),
                    line: self.tokens[start].line,
                }
            } else {
                Origin::Unknown
            });
        }
        if self.eat_word("onnx") {
            let name = self.text("the node's name in quotes")?.into();
            let op = self.text("the ONNX op in quotes")?.into();
            return Ok(Origin::Onnx { name, op });
        }
        let name = self.text("a name in quotes")?;
        if self.eat(':') {
            let line = self.integer()?;
            return Ok(Origin::Source {
                file: name.into(),
                line,
            });
        }
        Ok(Origin::Named(name.into()))
    }
}

fn symbols_of(types: &[TensorType]) -> Vec<Symbol> {
    let mut found = Vec::new();
    types
        .iter()
        .flat_map(|t| t.shape.iter())
        .for_each(|d| d.collect_symbols(&mut found));
    found
}

#[cfg(test)]
mod tests;
