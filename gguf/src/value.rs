//! The values of a file's metadata.

use std::fmt;

/// The type of a metadata value, by its number in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// The type that a file's number stands for.
    pub(crate) fn of(number: i32) -> Option<ValueType> {
        use ValueType::*;
        let all = [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64];
        usize::try_from(number).ok().and_then(|number| all.get(number).copied())
    }

    /// The least number of bytes that a value of this type takes in a file.
    pub(crate) fn least_bytes(self) -> u64 {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 | ValueType::String => 8,
            ValueType::Array => 12,
        }
    }
}

/// One metadata value.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of metadata values of one type.
#[derive(Clone, PartialEq, Debug)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The value of any integer type that is not negative. Converters write counts as `u32`, `i32` or `u64`.
    pub fn as_unsigned(&self) -> Option<u64> {
        match *self {
            Value::U8(value) => Some(value.into()),
            Value::U16(value) => Some(value.into()),
            Value::U32(value) => Some(value.into()),
            Value::U64(value) => Some(value),
            Value::I8(value) => value.try_into().ok(),
            Value::I16(value) => value.try_into().ok(),
            Value::I32(value) => value.try_into().ok(),
            Value::I64(value) => value.try_into().ok(),
            _ => None,
        }
    }

    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Value::F32(value) => Some(value.into()),
            Value::F64(value) => Some(value),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(value) = *self {
            Some(value)
        } else {
            None
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(value) = self {
            Some(value)
        } else {
            None
        }
    }

    pub fn as_array(&self) -> Option<&Array> {
        if let Value::Array(value) = self {
            Some(value)
        } else {
            None
        }
    }
}

impl Array {
    pub fn element_type(&self) -> ValueType {
        match self {
            Array::U8(_) => ValueType::U8,
            Array::I8(_) => ValueType::I8,
            Array::U16(_) => ValueType::U16,
            Array::I16(_) => ValueType::I16,
            Array::U32(_) => ValueType::U32,
            Array::I32(_) => ValueType::I32,
            Array::F32(_) => ValueType::F32,
            Array::Bool(_) => ValueType::Bool,
            Array::String(_) => ValueType::String,
            Array::U64(_) => ValueType::U64,
            Array::I64(_) => ValueType::I64,
            Array::F64(_) => ValueType::F64,
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Array::U8(values) => values.len(),
            Array::I8(values) => values.len(),
            Array::U16(values) => values.len(),
            Array::I16(values) => values.len(),
            Array::U32(values) => values.len(),
            Array::I32(values) => values.len(),
            Array::F32(values) => values.len(),
            Array::Bool(values) => values.len(),
            Array::String(values) => values.len(),
            Array::U64(values) => values.len(),
            Array::I64(values) => values.len(),
            Array::F64(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn as_strings(&self) -> Option<&[String]> {
        if let Array::String(values) = self {
            Some(values)
        } else {
            None
        }
    }

    pub fn as_floats(&self) -> Option<&[f32]> {
        if let Array::F32(values) = self {
            Some(values)
        } else {
            None
        }
    }

    /// The values of any integer type, where none is negative.
    pub fn to_unsigned(&self) -> Option<Vec<u64>> {
        fn all<T: Copy + TryInto<u64>>(values: &[T]) -> Option<Vec<u64>> {
            values.iter().map(|&value| value.try_into().ok()).collect()
        }
        match self {
            Array::U8(values) => all(values),
            Array::I8(values) => all(values),
            Array::U16(values) => all(values),
            Array::I16(values) => all(values),
            Array::U32(values) => all(values),
            Array::I32(values) => all(values),
            Array::U64(values) => all(values),
            Array::I64(values) => all(values),
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::String(_) => None,
        }
    }
}

impl fmt::Display for Value {
    /// Short text for people: long strings and arrays are cut.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(value) => write!(f, "{value}"),
            Value::I8(value) => write!(f, "{value}"),
            Value::U16(value) => write!(f, "{value}"),
            Value::I16(value) => write!(f, "{value}"),
            Value::U32(value) => write!(f, "{value}"),
            Value::I32(value) => write!(f, "{value}"),
            Value::F32(value) => write!(f, "{value}"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::String(value) => write!(f, "{}", cut(value)),
            Value::Array(array) => write!(f, "{array}"),
            Value::U64(value) => write!(f, "{value}"),
            Value::I64(value) => write!(f, "{value}"),
            Value::F64(value) => write!(f, "{value}"),
        }
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = match self {
            Array::U8(values) => first(values, u8::to_string),
            Array::I8(values) => first(values, i8::to_string),
            Array::U16(values) => first(values, u16::to_string),
            Array::I16(values) => first(values, i16::to_string),
            Array::U32(values) => first(values, u32::to_string),
            Array::I32(values) => first(values, i32::to_string),
            Array::F32(values) => first(values, f32::to_string),
            Array::Bool(values) => first(values, bool::to_string),
            Array::String(values) => first(values, |value| cut(value)),
            Array::U64(values) => first(values, u64::to_string),
            Array::I64(values) => first(values, i64::to_string),
            Array::F64(values) => first(values, f64::to_string),
        };
        let more = if self.len() > shown.len() { ", .." } else { "" };
        write!(f, "{} [{}{more}]", self.len(), shown.join(", "))
    }
}

fn first<T>(values: &[T], print: impl Fn(&T) -> String) -> Vec<String> {
    values.iter().take(4).map(print).collect()
}

/// A quoted text of at most 60 characters, with control characters escaped.
fn cut(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{:?}..", &text[..end]),
        None => format!("{text:?}"),
    }
}
