//! What a caller may say about a model's sizes before it is imported.
//!
//! ONNX names the sizes that vary (`dim_param`: `batch`, `seq`). Each becomes a symbol of the graph with bounds and a
//! hint; here they can be fixed or bounded, and whole input shapes replaced.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use indexmap::IndexMap;
use ir::{Dim, Graph, HostTensor};

use super::external::Links;

/// Options of [`super::import`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportOptions {
    /// Sizes by the name that the model gives them (`dim_param`), or by the symbol's name for unnamed ones.
    pub sizes: IndexMap<String, Size>,
    /// Shapes that replace those declared by the model, by input name.
    pub shapes: IndexMap<String, Vec<InputDim>>,
    /// Where symbolic links of the model's external data may lead.
    pub links: Links,
    /// Inputs that are given although the model has a value for them (an initializer of an input's name). Names of
    /// other inputs, or of none, are nothing.
    pub overridden: Vec<String>,
    /// What the inputs of one run are: the graph is made for these sizes, for the numbers of small integer inputs, and
    /// for sizes and decisions that these inputs' data make. The graph checks the numbers.
    pub given: IndexMap<String, GivenInput>,
    /// Computes what sizes and decisions are made of, from the data of `given`.
    pub evaluator: GivenEvaluator,
}

/// Computes the outputs of a graph, in their order, from inputs by name.
#[derive(Clone)]
pub struct GivenEvaluator(Arc<Evaluate>);

type Evaluate = dyn Fn(Graph, &IndexMap<String, HostTensor>) -> Result<Vec<HostTensor>, String> + Send + Sync;

impl GivenEvaluator {
    /// An evaluator that is faster than the reference evaluator, which is the default.
    pub fn new(
        evaluate: impl Fn(Graph, &IndexMap<String, HostTensor>) -> Result<Vec<HostTensor>, String> + Send + Sync + 'static,
    ) -> GivenEvaluator {
        GivenEvaluator(Arc::new(evaluate))
    }

    /// The outputs of a graph.
    ///
    /// # Errors
    /// What the evaluator says.
    pub fn run(&self, graph: Graph, inputs: &IndexMap<String, HostTensor>) -> Result<Vec<HostTensor>, String> {
        (self.0)(graph, inputs)
    }
}

impl Default for GivenEvaluator {
    fn default() -> GivenEvaluator {
        GivenEvaluator::new(|graph, inputs| {
            let outputs = ir::graph::eval::evaluate(&graph, inputs).map_err(|error| error.to_string())?;
            Ok(outputs.into_values().collect())
        })
    }
}

/// Two evaluators compute the same.
impl PartialEq for GivenEvaluator {
    fn eq(&self, _: &GivenEvaluator) -> bool {
        true
    }
}

impl fmt::Debug for GivenEvaluator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GivenEvaluator")
    }
}

/// An input of a run that a graph is made for.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenInput {
    pub shape: Vec<usize>,
    /// Its elements, where they may be taken as known.
    pub integers: Option<Vec<i64>>,
    /// Its data, where sizes and decisions may be computed from them.
    pub data: Option<HostTensor>,
}

impl GivenInput {
    /// The most elements of an input whose numbers are taken as known.
    const MOST_ELEMENTS: usize = 64;

    /// Of a tensor, which it keeps; the numbers of one that is small and of integers are known.
    pub fn of(tensor: &HostTensor) -> GivenInput {
        let mut given = GivenInput {
            shape: tensor.shape.clone(),
            integers: None,
            data: Some(tensor.clone()),
        };
        if given.may_be_known(tensor.dtype) {
            given.integers = Some(tensor.to_i64());
        }
        given
    }

    /// Says whether the input is small and of integers.
    pub fn may_be_known(&self, dtype: ir::DType) -> bool {
        let elements = self.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        elements.is_some_and(|n| n <= GivenInput::MOST_ELEMENTS) && (dtype.is_int() || dtype == ir::DType::Bool)
    }
}

/// What is known of a named size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Always this, at least 0.
    Fixed(i64),
    /// Between the bounds, both included; the lower is at least 0.
    Bounded {
        min: i64,
        max: Option<i64>,
        hint: Option<i64>,
    },
}

/// One dim of an input shape given by the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputDim {
    Size(i64),
    /// A named size, the same wherever the name occurs.
    Named(String),
    /// Arithmetic over named sizes: `4*a`.
    Sum(Dim),
}

/// An option's text cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    #[error("{text:?} is not {expected}")]
    Form { text: String, expected: &'static str },
    /// A dim of a shape.
    #[error("dim {text:?}, column {column}: {problem}; {DIM_FORM}")]
    Dim {
        text: String,
        /// Where in the text, in characters, from 1.
        column: usize,
        problem: String,
    },
}

const DIM_FORM: &str = "a dim is a whole number (3), a name of letters, digits, `_` and `.` that begins with no digit (batch), or arithmetic over \
                        names by +, -, *, div, mod, max and min (4*h, w + 1)";

impl ImportOptions {
    /// Reads `batch=1`, `seq=1..512` or `seq=1..512 hint 128` and adds it.
    ///
    /// # Errors
    /// When the text has another form, a size is below 1, or the bounds are empty.
    pub fn size(mut self, text: &str) -> Result<ImportOptions, OptionError> {
        let error = || OptionError::Form {
            text: text.to_owned(),
            expected: SIZE_FORM,
        };
        let (name, size) = text.split_once('=').ok_or_else(error)?;
        let whole = |problem| match problem {
            OptionError::Form { expected, .. } => OptionError::Form {
                text: text.to_owned(),
                expected,
            },
            other => other,
        };
        let size: Size = size.parse().map_err(whole)?;
        match self.sizes.insert(name.trim().to_owned(), size) {
            Some(before) if before != size => Err(OptionError::Form {
                text: text.to_owned(),
                expected: "the only size of that name; give each name once",
            }),
            _ => Ok(self),
        }
    }

    /// Reads `x=[batch, 3, 4*h, 224]` (brackets may be left out) and adds it.
    ///
    /// # Errors
    /// When the text has another form or a size is negative.
    pub fn shape(mut self, text: &str) -> Result<ImportOptions, OptionError> {
        let error = || OptionError::Form {
            text: text.to_owned(),
            expected: SHAPE_FORM,
        };
        // Input names may hold `=` in principle; dims never do.
        let (name, dims) = text.rsplit_once('=').ok_or_else(error)?;
        let dims = dims.trim();
        // The brackets may be left out, but not one of them, and not around nothing.
        let dims = match (dims.strip_prefix('['), dims.ends_with(']')) {
            (Some(inside), true) => inside[..inside.len() - 1].trim(),
            (None, false) if !dims.is_empty() => dims,
            _ => return Err(error()),
        };
        let dims = if dims.is_empty() {
            Vec::new()
        } else {
            let dims = outside_brackets(dims);
            dims.into_iter().map(str::parse).collect::<Result<Vec<_>, _>>()?
        };
        self.shapes.insert(name.trim().to_owned(), dims);
        Ok(self)
    }
}

/// Splits at the commas that are in no brackets.
fn outside_brackets(text: &str) -> Vec<&str> {
    let mut depth = 0i32;
    text.split(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
    .collect()
}

const SHAPE_FORM: &str = "of the form input=[batch, 3, 224, 224] or input=[n, 3, 4*h, w + 1]";

const SIZE_FORM: &str = "of the form batch=1, seq=1..512 or seq=1..512 hint 128, with sizes of at least 0";

impl FromStr for Size {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Size, OptionError> {
        let not = |expected| OptionError::Form {
            text: text.to_owned(),
            expected,
        };
        let error = || not(SIZE_FORM);
        let number = |t: &str| {
            let t = t.trim();
            let is_long = !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
            match t.parse::<i64>() {
                Ok(v) if v >= 0 => Ok(v),
                Err(_) if is_long => Err(not("a size below 2^63")),
                _ => Err(error()),
            }
        };
        let (range, hint) = match text.split_once("hint") {
            Some((range, hint)) => (range, Some(number(hint)?)),
            None => (text, None),
        };
        let Some((min, max)) = range.split_once("..") else {
            return if hint.is_none() {
                Ok(Size::Fixed(number(range)?))
            } else {
                Err(error())
            };
        };
        let max = max.trim().trim_start_matches('=');
        let max = if max.is_empty() { None } else { Some(number(max)?) };
        let min = if min.trim().is_empty() { 1 } else { number(min)? };
        let inside = |v: i64| v >= min && max.is_none_or(|m| v <= m);
        if !inside(min) {
            return Err(not("a range whose last size is at least its first"));
        }
        if hint.is_some_and(|h| !inside(h)) {
            return Err(not("a range with a hint inside it"));
        }
        Ok(Size::Bounded { min, max, hint })
    }
}

impl FromStr for InputDim {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<InputDim, OptionError> {
        let text = text.trim();
        let error = |at: usize, problem: String| OptionError::Dim {
            text: text.to_owned(),
            column: text.get(..at).unwrap_or(text).chars().count() + 1,
            problem,
        };
        if text.is_empty() {
            return Err(error(0, "there is nothing between the commas".to_owned()));
        }
        let words = words(text).map_err(|(at, problem)| error(at, problem))?;
        if let [(_, word)] = words.as_slice() {
            return match word.parse() {
                Ok(size) => Ok(InputDim::Size(size)),
                Err(_) if is_name(word) => Ok(InputDim::Named((*word).to_owned())),
                Err(_) => Err(error(0, "an operator alone is no size".to_owned())),
            };
        }
        let dim = ir::graph::parse::parse_dim(text)
            .map_err(|e| error((e.column as usize).saturating_sub(1), e.problem.to_string()))?;
        match dim {
            Dim::Const(size) if size >= 0 => Ok(InputDim::Size(size)),
            Dim::Const(size) => Err(error(0, format!("it is {size}, and a size is at least 0"))),
            dim => Ok(match dim.as_symbol() {
                Some(symbol) => InputDim::Named(symbol.name().to_owned()),
                None => InputDim::Sum(dim),
            }),
        }
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// The numbers, names and operators of a dim, each with where it begins. An error has the place where no word begins,
/// or one that makes no sense after the one before.
fn words(text: &str) -> Result<Vec<(usize, &str)>, (usize, String)> {
    let mut words: Vec<(usize, &str)> = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let start = at;
        let length = |is_in: fn(char) -> bool| text[start..].find(|c| !is_in(c)).unwrap_or(text.len() - start);
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let is_operator = matches!(first, '+' | '-' | '*' | '(' | ')' | ',');
        at += match first {
            '0'..='9' => length(|c| c.is_ascii_digit()),
            'a'..='z' | 'A'..='Z' | '_' => length(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.')),
            _ if is_operator => 1,
            other => return Err((start, format!("{other:?} is part of no number, name or operator"))),
        };
        let word = &text[start..at];
        if first.is_ascii_digit() && word.parse::<i64>().is_err() {
            return Err((start, format!("{word} is above {}", i64::MAX)));
        }
        let is_operand = |word: &str| word.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if let Some((before, last)) = words.last().filter(|(_, last)| is_operand(last) && is_operand(word)) {
            return Err(match *before + last.len() == start {
                true => (
                    *before,
                    format!("a name does not begin with a digit, and {last:?} is followed by {word:?}"),
                ),
                false => (
                    start,
                    format!("{word:?} follows {last:?} without a comma or an operator"),
                ),
            });
        }
        words.push((start, word));
    }
    // `batch-size` was meant as a name, or as a difference.
    for three in words.windows(3) {
        let [(a, left), (b, minus), (c, right)] = three else {
            continue;
        };
        let is_close = a + left.len() == *b && b + 1 == *c;
        if *minus == "-" && is_name(left) && is_name(right) && is_close {
            return Err((
                *b,
                format!("`{left}-{right}` is no name; write {left}_{right}, or {left} - {right} for a difference"),
            ));
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read() {
        assert_eq!("7".parse(), Ok(Size::Fixed(7)));
        assert_eq!(
            "1..512".parse(),
            Ok(Size::Bounded {
                min: 1,
                max: Some(512),
                hint: None
            })
        );
        assert_eq!(
            " 2.. hint 128".parse(),
            Ok(Size::Bounded {
                min: 2,
                max: None,
                hint: Some(128)
            })
        );
        assert_eq!("0".parse(), Ok(Size::Fixed(0)));
        for (text, max) in [("0..", None), ("0..3", Some(3)), ("0..=0", Some(0))] {
            assert_eq!(
                text.parse(),
                Ok(Size::Bounded {
                    min: 0,
                    max,
                    hint: None
                })
            );
        }
        for bad in ["", "-1", "-1..3", "5..2", "1..4 hint 9", "4 hint 4", "x..3"] {
            assert!(bad.parse::<Size>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn options_read() {
        let options = ImportOptions::default()
            .size("seq=1..8")
            .unwrap()
            .shape("gpu_0/x=[batch, 3]")
            .unwrap();
        assert_eq!(
            options.sizes["seq"],
            Size::Bounded {
                min: 1,
                max: Some(8),
                hint: None
            }
        );
        assert_eq!(
            options.shapes["gpu_0/x"],
            [InputDim::Named("batch".into()), InputDim::Size(3)]
        );
        assert_eq!(ImportOptions::default().shape("x=[]").unwrap().shapes["x"], []);
        assert!(ImportOptions::default().shape("x=[-1]").is_err());
        let options = ImportOptions::default()
            .shape("x=[n, 4*a, max(a, 2) + 1, a - n, kv.len, (3)]")
            .unwrap();
        let a = || Dim::symbol("a");
        assert_eq!(
            options.shapes["x"],
            [
                InputDim::Named("n".into()),
                InputDim::Sum(a() * 4),
                InputDim::Sum(a().larger(&Dim::Const(2)) + 1),
                InputDim::Sum(a() - Dim::symbol("n")),
                InputDim::Named("kv.len".into()),
                InputDim::Size(3),
            ]
        );
        for bad in ["x=[4*]", "x=[a/2]", "x=[a b*2]"] {
            assert!(ImportOptions::default().shape(bad).is_err(), "{bad}");
        }
        // The form that the message shows is one that is read.
        let form = SHAPE_FORM.strip_prefix("of the form ").expect("two forms");
        for shape in form.split(" or ") {
            ImportOptions::default().shape(shape).unwrap();
        }
    }

    /// No text becomes a name that is another than the text's own.
    #[test]
    fn dims_that_are_none_are_refused_with_their_place() {
        for (text, column, says) in [
            ("4 a", 3, "\"a\" follows \"4\""),
            ("a b", 3, "\"b\" follows \"a\""),
            ("4a", 1, "does not begin with a digit"),
            ("1e3", 1, "does not begin with a digit"),
            ("a%2", 2, "'%'"),
            ("4·a", 2, "'·'"),
            ("ä", 1, "'ä'"),
            ("a.b/2", 4, "'/'"),
            ("a-a", 2, "a_a, or a - a"),
            ("batch-size", 6, "batch_size"),
            ("99999999999999999999", 1, "is above"),
            ("2*99999999999999999999", 3, "is above"),
            ("a+", 3, ""),
            ("div(a", 6, ""),
            ("f(a)", 1, ""),
            ("-1", 1, "at least 0"),
            ("+", 1, "operator"),
            ("", 1, "nothing"),
        ] {
            let error = text.parse::<InputDim>().expect_err(text);
            let OptionError::Dim {
                text: of,
                column: at,
                problem,
            } = &error
            else {
                panic!("{text}: {error}")
            };
            assert!(of == text && problem.contains(says), "{text}: {error}");
            assert!(*at == column || says.is_empty(), "{text}: {error}");
            assert!(error.to_string().contains("a dim is a whole number"), "{error}");
        }
    }
}
