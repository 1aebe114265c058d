//! A cursor over a file's bytes that never reads past their end and never allocates by what the file says alone.

use crate::error::Problem;
use crate::value::{Array, Value, ValueType};

/// The longest string that is read: 1 GiB, ggml's own limit.
const LONGEST_STRING: u64 = 1 << 30;
/// The longest array that is read: ggml's own limit.
const LONGEST_ARRAY: u64 = 1 << 30;
/// The longest key: the specification's limit.
const LONGEST_KEY: u64 = 65_535;

pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    pub(crate) fn at(&self) -> u64 {
        self.at as u64
    }

    pub(crate) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `count` bytes, of `what` in messages.
    pub(crate) fn take(&mut self, count: u64, what: &str) -> Result<&'a [u8], Problem> {
        if count > self.left() {
            return Err(Problem::Truncated {
                what: what.to_owned(),
                at: self.at(),
                wanted: count,
                left: self.left(),
            });
        }
        let start = self.at;
        // At most the bytes that are left, which are a `usize`.
        self.at += count as usize;
        Ok(&self.bytes[start..self.at])
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Problem> {
        let bytes = self.take(N as u64, what)?;
        let mut out = [0; N];
        out.copy_from_slice(bytes);
        Ok(out)
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, Problem> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn i32(&mut self, what: &str) -> Result<i32, Problem> {
        Ok(i32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, Problem> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn string(&mut self, what: &str) -> Result<String, Problem> {
        self.text(what, LONGEST_STRING)
    }

    pub(crate) fn key(&mut self) -> Result<String, Problem> {
        let at = self.at();
        let key = self.text("a key", LONGEST_KEY)?;
        if key.is_empty() {
            Err(Problem::EmptyKey { at })
        } else {
            Ok(key)
        }
    }

    fn text(&mut self, what: &str, limit: u64) -> Result<String, Problem> {
        let at = self.at();
        let found = self.u64(what)?;
        if found > limit {
            return Err(Problem::TooLong {
                what: what.to_owned(),
                at,
                found,
                limit,
            });
        }
        let bytes = self.take(found, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(Problem::NotText {
                what: what.to_owned(),
                at,
            }),
        }
    }

    pub(crate) fn value(&mut self, key: &str) -> Result<Value, Problem> {
        let ty = self.value_type(key)?;
        Ok(match ty {
            ValueType::U8 => Value::U8(self.array::<1>(key)?[0]),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.array(key)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.array(key)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.array(key)?)),
            ValueType::U32 => Value::U32(self.u32(key)?),
            ValueType::I32 => Value::I32(self.i32(key)?),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.array(key)?)),
            ValueType::Bool => Value::Bool(self.bool(key)?),
            ValueType::String => Value::String(self.string(key)?),
            ValueType::Array => Value::Array(self.values(key)?),
            ValueType::U64 => Value::U64(self.u64(key)?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.array(key)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.array(key)?)),
        })
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType, Problem> {
        let at = self.at();
        let found = self.i32(key)?;
        ValueType::of(found).ok_or_else(|| Problem::ValueType {
            key: key.to_owned(),
            at,
            found,
        })
    }

    fn bool(&mut self, key: &str) -> Result<bool, Problem> {
        let at = self.at();
        match self.array::<1>(key)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(Problem::Bool {
                key: key.to_owned(),
                at,
                found,
            }),
        }
    }

    fn values(&mut self, key: &str) -> Result<Array, Problem> {
        let at = self.at();
        let ty = self.value_type(key)?;
        if ty == ValueType::Array {
            return Err(Problem::NestedArray {
                key: key.to_owned(),
                at,
            });
        }
        let count = self.u64(key)?;
        if count > LONGEST_ARRAY {
            return Err(Problem::TooLong {
                what: key.to_owned(),
                at,
                found: count,
                limit: LONGEST_ARRAY,
            });
        }
        // Held against the bytes that are left before anything is allocated: the product is below 2^34.
        let wanted = count * ty.least_bytes();
        if wanted > self.left() {
            return Err(Problem::Truncated {
                what: key.to_owned(),
                at: self.at(),
                wanted,
                left: self.left(),
            });
        }
        let count = count as usize;
        Ok(match ty {
            ValueType::U8 => Array::U8(self.many(count, key, u8::from_le_bytes)?),
            ValueType::I8 => Array::I8(self.many(count, key, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(self.many(count, key, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(self.many(count, key, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(self.many(count, key, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(self.many(count, key, i32::from_le_bytes)?),
            ValueType::F32 => Array::F32(self.many(count, key, f32::from_le_bytes)?),
            ValueType::U64 => Array::U64(self.many(count, key, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(self.many(count, key, i64::from_le_bytes)?),
            ValueType::F64 => Array::F64(self.many(count, key, f64::from_le_bytes)?),
            ValueType::Bool => Array::Bool((0..count).map(|_| self.bool(key)).collect::<Result<_, _>>()?),
            ValueType::String => Array::String((0..count).map(|_| self.string(key)).collect::<Result<_, _>>()?),
            ValueType::Array => {
                return Err(Problem::NestedArray {
                    key: key.to_owned(),
                    at,
                });
            }
        })
    }

    /// `count` numbers, whose bytes are known to be there.
    fn many<T, const N: usize>(
        &mut self,
        count: usize,
        key: &str,
        number: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Problem> {
        let bytes = self.take((count * N) as u64, key)?;
        Ok(bytes
            .chunks_exact(N)
            .map(|chunk| {
                let mut one = [0; N];
                one.copy_from_slice(chunk);
                number(one)
            })
            .collect())
    }
}
