//! Text to tokens, with their lines and columns.

use std::sync::Arc;

use super::{ParseError, Problem};

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Kind {
    Word(String),
    /// Digits as written; a leading minus is a token of its own.
    Number(String),
    Text(String),
    Sign(char),
    /// Two dots.
    Range,
    End,
}

impl Kind {
    pub(super) fn show(&self) -> String {
        match self {
            Kind::Word(w) => format!("`{w}`"),
            Kind::Number(n) => format!("`{n}`"),
            Kind::Text(t) if t.len() > 40 => "a long string".to_owned(),
            Kind::Text(t) => format!("{t:?}"),
            Kind::Sign(c) => format!("`{c}`"),
            Kind::Range => "`..`".to_owned(),
            Kind::End => "the end of the text".to_owned(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Token {
    pub kind: Kind,
    pub line: u32,
    pub column: u32,
}

/// Splits a text. The last token is [`Kind::End`].
pub(super) fn tokens(file: &Arc<str>, text: &str) -> Result<Vec<Token>, ParseError> {
    let mut out = Vec::new();
    let (mut line, mut line_start) = (1u32, 0usize);
    let mut chars = text.char_indices().peekable();
    while let Some(&(at, c)) = chars.peek() {
        let column = (at - line_start) as u32 + 1;
        let error = |problem| ParseError {
            file: file.clone(),
            line,
            column,
            problem,
        };
        let mut push = |kind| out.push(Token { kind, line, column });
        match c {
            '\n' => {
                line += 1;
                line_start = at + 1;
                chars.next();
            }
            c if c.is_whitespace() => {
                chars.next();
            }
            ';' => skip_line(&mut chars),
            '/' if text[at..].starts_with("//") => skip_line(&mut chars),
            c if c.is_ascii_alphabetic() || c == '_' => {
                let mut word = String::new();
                while let Some(&(_, c)) = chars.peek().filter(|(_, c)| c.is_ascii_alphanumeric() || *c == '_') {
                    word.push(c);
                    chars.next();
                }
                push(Kind::Word(word));
            }
            c if c.is_ascii_digit() => {
                let mut number = String::new();
                while let Some(&(at, c)) = chars.peek() {
                    let exponent_sign = matches!(c, '+' | '-') && number.ends_with(['e', 'E']);
                    let fraction = c == '.' && !number.contains('.') && !text[at..].starts_with("..");
                    if !(c.is_ascii_alphanumeric() || exponent_sign || fraction) {
                        break;
                    }
                    number.push(c);
                    chars.next();
                }
                push(Kind::Number(number));
            }
            '"' => {
                chars.next();
                let value = string(&mut chars).map_err(error)?;
                push(Kind::Text(value));
            }
            '.' if text[at..].starts_with("..") => {
                chars.next();
                chars.next();
                push(Kind::Range);
            }
            '{' | '}' | '[' | ']' | '(' | ')' | ',' | ':' | '=' | '@' | '.' | '-' | '+' | '*' => {
                chars.next();
                push(Kind::Sign(c));
            }
            other => return Err(error(Problem::Character(other))),
        }
    }
    let column = (text.len() - line_start.min(text.len())) as u32 + 1;
    out.push(Token {
        kind: Kind::End,
        line,
        column,
    });
    Ok(out)
}

type Chars<'a> = std::iter::Peekable<std::str::CharIndices<'a>>;

fn skip_line(chars: &mut Chars<'_>) {
    while chars.peek().is_some_and(|(_, c)| *c != '\n') {
        chars.next();
    }
}

/// Reads what `{:?}` wrote, after the opening quote.
fn string(chars: &mut Chars<'_>) -> Result<String, Problem> {
    let mut out = String::new();
    loop {
        let Some((_, c)) = chars.next() else {
            return Err(Problem::String("is not closed"));
        };
        match c {
            '"' => return Ok(out),
            '\n' => return Err(Problem::String("is not closed on its line")),
            '\\' => match chars.next().map(|(_, c)| c) {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('r') => out.push('\r'),
                Some('0') => out.push('\0'),
                Some(c @ ('\\' | '"' | '\'')) => out.push(c),
                Some('u') => {
                    let digits: String = match chars.next() {
                        Some((_, '{')) => chars
                            .by_ref()
                            .map(|(_, c)| c)
                            .take_while(|c| *c != '}')
                            .take(9)
                            .collect(),
                        _ => return Err(Problem::String("has a bad \\u escape")),
                    };
                    let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                    out.push(code.ok_or(Problem::String("has a bad \\u escape"))?);
                }
                _ => return Err(Problem::String("has an unknown escape")),
            },
            c => out.push(c),
        }
    }
}
