//! Element types, scalars and tensor types.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::dim::{Dim, Shape};

/// The element type of a tensor.
///
/// The two FP8 families are different types: `fn` and `e5m2` are OCP's (gfx950, gfx12), `fnuz` are the ones that gfx942
/// has (no negative zero, no infinity, bias one higher). 4-bit types are packed two to a byte, low nibble first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum DType {
    F32,
    F16,
    BF16,
    F64,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    I64,
    I32,
    I16,
    I8,
    U8,
    I4,
    U4,
    Bool,
}

impl DType {
    /// All types, in declaration order.
    pub const ALL: [DType; 16] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F64,
        DType::F8E4M3FN,
        DType::F8E4M3FNUZ,
        DType::F8E5M2,
        DType::F8E5M2FNUZ,
        DType::I64,
        DType::I32,
        DType::I16,
        DType::I8,
        DType::U8,
        DType::I4,
        DType::U4,
        DType::Bool,
    ];

    /// Returns the name used in text forms and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F64 => "f64",
            DType::F8E4M3FN => "f8e4m3fn",
            DType::F8E4M3FNUZ => "f8e4m3fnuz",
            DType::F8E5M2 => "f8e5m2",
            DType::F8E5M2FNUZ => "f8e5m2fnuz",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::I16 => "i16",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I4 => "i4",
            DType::U4 => "u4",
            DType::Bool => "bool",
        }
    }

    /// Returns the width of one element in bits.
    pub const fn bits(self) -> u32 {
        match self {
            DType::F64 | DType::I64 => 64,
            DType::F32 | DType::I32 => 32,
            DType::F16 | DType::BF16 | DType::I16 => 16,
            DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => 8,
            DType::I8 | DType::U8 | DType::Bool => 8,
            DType::I4 | DType::U4 => 4,
        }
    }

    /// Returns how many bytes `elements` elements take, 4-bit types rounded up to whole bytes.
    pub const fn bytes_for(self, elements: usize) -> usize {
        (elements * self.bits() as usize).div_ceil(8)
    }

    /// Returns the size in bytes of so many elements, if an object in memory may have it.
    pub fn checked_bytes_for(self, elements: usize) -> Option<usize> {
        let bits = elements.checked_mul(self.bits() as usize)?;
        Some(bits.div_ceil(8)).filter(|bytes| isize::try_from(*bytes).is_ok())
    }

    /// Says whether the type is floating point.
    pub const fn is_float(self) -> bool {
        !self.is_int() && !matches!(self, DType::Bool)
    }

    /// Says whether the type is an integer (`bool` is not).
    pub const fn is_int(self) -> bool {
        matches!(
            self,
            DType::I64 | DType::I32 | DType::I16 | DType::I8 | DType::U8 | DType::I4 | DType::U4
        )
    }

    /// Returns the type that sums and contractions of this type accumulate in: `f64` for itself, `f32` for the other
    /// floats, `i64` for itself, `i32` for the other integers.
    pub const fn accumulator(self) -> DType {
        match self {
            DType::F64 => DType::F64,
            DType::I64 => DType::I64,
            DType::Bool | DType::I32 | DType::I16 | DType::I8 | DType::U8 | DType::I4 | DType::U4 => DType::I32,
            _ => DType::F32,
        }
    }

    /// Says whether the type is a float of 8 bits.
    pub const fn is_f8(self) -> bool {
        matches!(
            self,
            DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ
        )
    }

    /// Says whether the type is a number of 8 bits, integer or float: f16, bf16 and f32 have all of them.
    pub const fn is_byte_number(self) -> bool {
        self.is_f8() || matches!(self, DType::I8 | DType::U8)
    }

    /// Returns the largest finite number of an 8-bit float; `None` for other types.
    pub const fn f8_largest(self) -> Option<f64> {
        match self {
            DType::F8E4M3FN => Some(448.0),
            DType::F8E4M3FNUZ => Some(240.0),
            DType::F8E5M2 | DType::F8E5M2FNUZ => Some(57344.0),
            _ => None,
        }
    }

    /// Returns the smallest and the largest number of an integer type; `None` for other types.
    pub const fn int_range(self) -> Option<(i64, i64)> {
        match self {
            DType::U8 | DType::U4 => Some((0, (1 << self.bits()) - 1)),
            DType::I64 => Some((i64::MIN, i64::MAX)),
            DType::I32 | DType::I16 | DType::I8 | DType::I4 => {
                Some((-(1 << (self.bits() - 1)), (1 << (self.bits() - 1)) - 1))
            }
            _ => None,
        }
    }

    /// Returns the type that products of this type and another are summed in: the wider of both
    /// [accumulators](Self::accumulator), whichever side it is on.
    pub const fn product_accumulator(self, other: DType) -> DType {
        match (self.accumulator(), other.accumulator()) {
            (DType::F64, _) | (_, DType::F64) => DType::F64,
            (DType::F32, _) | (_, DType::F32) => DType::F32,
            (DType::I64, _) | (_, DType::I64) => DType::I64,
            (own, _) => own,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of an element type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown element type {0:?}; known: f32 f16 bf16 f64 f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz i64 i32 i16 i8 u8 i4 u4 bool"
)]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;
    fn from_str(text: &str) -> Result<Self, UnknownDType> {
        DType::ALL
            .into_iter()
            .find(|d| d.name() == text)
            .ok_or_else(|| UnknownDType(text.to_owned()))
    }
}

/// One value of an element type, without the type.
///
/// Floats are kept as `f64` and compare by their bits, so that scalars can be keys; `NaN` equals itself and `0.0`
/// differs from `-0.0`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Scalar {
    Float(f64),
    Int(i64),
    Bool(bool),
}

impl Scalar {
    /// Returns zero of the given type.
    pub const fn zero(dtype: DType) -> Scalar {
        match dtype {
            DType::Bool => Scalar::Bool(false),
            d if d.is_int() => Scalar::Int(0),
            _ => Scalar::Float(0.0),
        }
    }

    /// Returns the number as `f64` (`true` is 1).
    pub const fn as_f64(self) -> f64 {
        match self {
            Scalar::Float(v) => v,
            Scalar::Int(v) => v as f64,
            Scalar::Bool(v) => v as u8 as f64,
        }
    }

    /// Returns the number as `i64`; floats are truncated and saturate.
    pub const fn as_i64(self) -> i64 {
        match self {
            Scalar::Float(v) => v as i64,
            Scalar::Int(v) => v,
            Scalar::Bool(v) => v as i64,
        }
    }

    /// Says whether the value is not zero.
    pub fn as_bool(self) -> bool {
        match self {
            Scalar::Float(v) => v != 0.0,
            Scalar::Int(v) => v != 0,
            Scalar::Bool(v) => v,
        }
    }

    fn key(self) -> (u8, u64) {
        match self {
            Scalar::Float(v) => (0, v.to_bits()),
            Scalar::Int(v) => (1, v as u64),
            Scalar::Bool(v) => (2, v as u64),
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Scalar {}
impl std::hash::Hash for Scalar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}
impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scalar {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // `{:?}` prints the shortest text that reads back to the same bits, and keeps the `.0`.
            Scalar::Float(v) => write!(f, "{v:?}"),
            Scalar::Int(v) => write!(f, "{v}"),
            Scalar::Bool(v) => write!(f, "{v}"),
        }
    }
}

/// The element type and the shape of a value; tensors are dense and row-major.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TensorType {
    pub dtype: DType,
    pub shape: Shape,
}

impl TensorType {
    /// Makes a type from an element type and dims.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> TensorType {
        TensorType {
            dtype,
            shape: shape.into(),
        }
    }

    /// Returns the number of dims.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> Dim {
        self.shape.elements()
    }

    /// Returns the size in bytes (4-bit types rounded up).
    pub fn bytes(&self) -> Dim {
        let bits = i64::from(self.dtype.bits());
        if bits >= 8 {
            self.elements() * (bits / 8)
        } else {
            (self.elements() * bits).ceil_div(&Dim::from(8))
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
