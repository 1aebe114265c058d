//! What a caller may say about a model's sizes before it is imported.
//!
//! ONNX names the sizes that vary (`dim_param`: `batch`, `seq`). Each becomes a symbol of the graph with bounds and a
//! hint; here they can be fixed or bounded, and whole input shapes replaced.

use std::str::FromStr;

use indexmap::IndexMap;

use super::external::Links;

/// Options of [`super::import`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Sizes by the name that the model gives them (`dim_param`), or by the symbol's name for unnamed ones.
    pub sizes: IndexMap<String, Size>,
    /// Shapes that replace those declared by the model, by input name.
    pub shapes: IndexMap<String, Vec<InputDim>>,
    /// Where symbolic links of the model's external data may lead.
    pub links: Links,
}

/// What is known of a named size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Always this, at least 1: a size that varies is never 0 (one that the model fixes may be).
    Fixed(i64),
    /// Between the bounds, both included; the lower is at least 1.
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
}

/// An option's text cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct OptionError {
    pub text: String,
    pub expected: &'static str,
}

impl ImportOptions {
    /// Reads `batch=1`, `seq=1..512` or `seq=1..512 hint 128` and adds it.
    ///
    /// # Errors
    /// When the text has another form, a size is below 1, or the bounds are empty.
    pub fn size(mut self, text: &str) -> Result<ImportOptions, OptionError> {
        let error = || OptionError {
            text: text.to_owned(),
            expected: SIZE_FORM,
        };
        let (name, size) = text.split_once('=').ok_or_else(error)?;
        self.sizes
            .insert(name.trim().to_owned(), size.parse().map_err(|_| error())?);
        Ok(self)
    }

    /// Reads `x=[batch, 3, 224, 224]` (brackets may be left out) and adds it.
    ///
    /// # Errors
    /// When the text has another form or a size is negative.
    pub fn shape(mut self, text: &str) -> Result<ImportOptions, OptionError> {
        let error = || OptionError {
            text: text.to_owned(),
            expected: "of the form input=[batch, 3, 224, 224]",
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
            dims.split(',')
                .map(|d| d.parse().map_err(|_| error()))
                .collect::<Result<Vec<_>, _>>()?
        };
        self.shapes.insert(name.trim().to_owned(), dims);
        Ok(self)
    }
}

const SIZE_FORM: &str = "of the form batch=1, seq=1..512 or seq=1..512 hint 128, with sizes of at least 0";

impl FromStr for Size {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Size, OptionError> {
        let error = || OptionError {
            text: text.to_owned(),
            expected: SIZE_FORM,
        };
        let number = |t: &str| t.trim().parse::<i64>().ok().filter(|v| *v >= 0).ok_or_else(error);
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
        if !inside(min) || hint.is_some_and(|h| !inside(h)) {
            return Err(error());
        }
        Ok(Size::Bounded { min, max, hint })
    }
}

impl FromStr for InputDim {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<InputDim, OptionError> {
        let text = text.trim();
        let error = || OptionError {
            text: text.to_owned(),
            expected: "a size or the name of one",
        };
        match text.parse::<i64>() {
            Ok(size) if size >= 0 => Ok(InputDim::Size(size)),
            Ok(_) => Err(error()),
            Err(_) if text.is_empty() => Err(error()),
            Err(_) => Ok(InputDim::Named(text.to_owned())),
        }
    }
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
    }
}
