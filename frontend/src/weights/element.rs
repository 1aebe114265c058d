//! The element types that weight files know, and the one table that maps them to the `ir`'s.

use std::fmt;

use ir::types::DType;

/// An element type of a weight file: the union of ONNX's and safetensors'.
///
/// More than [`DType`] has, so that a reader can say what a file holds before anyone decides whether it is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    F32,
    F64,
    F16,
    BF16,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0,
    F6E2M3,
    F6E3M2,
    F4E2M1,
    I64,
    I32,
    I16,
    I8,
    I4,
    I2,
    U64,
    U32,
    U16,
    U8,
    U4,
    U2,
    Bool,
    Complex64,
    Complex128,
}

impl ElementType {
    /// Returns the width of one element in bits; types below 8 are packed, lowest bits first.
    pub const fn bits(self) -> u64 {
        use ElementType as E;
        match self {
            E::Complex128 => 128,
            E::F64 | E::I64 | E::U64 | E::Complex64 => 64,
            E::F32 | E::I32 | E::U32 => 32,
            E::F16 | E::BF16 | E::I16 | E::U16 => 16,
            E::F8E4M3FN | E::F8E4M3FNUZ | E::F8E5M2 | E::F8E5M2FNUZ | E::F8E8M0 | E::I8 | E::U8 | E::Bool => 8,
            E::F6E2M3 | E::F6E3M2 => 6,
            E::F4E2M1 | E::I4 | E::U4 => 4,
            E::I2 | E::U2 => 2,
        }
    }

    /// Returns the name, spelled as the `ir`'s text form would.
    pub const fn name(self) -> &'static str {
        use ElementType as E;
        match self {
            E::F32 => "f32",
            E::F64 => "f64",
            E::F16 => "f16",
            E::BF16 => "bf16",
            E::F8E4M3FN => "f8e4m3fn",
            E::F8E4M3FNUZ => "f8e4m3fnuz",
            E::F8E5M2 => "f8e5m2",
            E::F8E5M2FNUZ => "f8e5m2fnuz",
            E::F8E8M0 => "f8e8m0",
            E::F6E2M3 => "f6e2m3",
            E::F6E3M2 => "f6e3m2",
            E::F4E2M1 => "f4e2m1",
            E::I64 => "i64",
            E::I32 => "i32",
            E::I16 => "i16",
            E::I8 => "i8",
            E::I4 => "i4",
            E::I2 => "i2",
            E::U64 => "u64",
            E::U32 => "u32",
            E::U16 => "u16",
            E::U8 => "u8",
            E::U4 => "u4",
            E::U2 => "u2",
            E::Bool => "bool",
            E::Complex64 => "complex64",
            E::Complex128 => "complex128",
        }
    }

    /// Returns the `ir` type that holds every value of this one, or `None` when there is none.
    ///
    /// `u16`, `u32` and `u64` widen to `i32`, `i64` and `i64` (see [`ElementType::is_widened`]); a `u64` above
    /// `i64::MAX` is refused when the data is converted. The others that map keep their bytes.
    pub const fn dtype(self) -> Option<DType> {
        use ElementType as E;
        Some(match self {
            E::F32 => DType::F32,
            E::F64 => DType::F64,
            E::F16 => DType::F16,
            E::BF16 => DType::BF16,
            E::F8E4M3FN => DType::F8E4M3FN,
            E::F8E4M3FNUZ => DType::F8E4M3FNUZ,
            E::F8E5M2 => DType::F8E5M2,
            E::F8E5M2FNUZ => DType::F8E5M2FNUZ,
            E::I64 | E::U64 | E::U32 => DType::I64,
            E::I32 | E::U16 => DType::I32,
            E::I16 => DType::I16,
            E::I8 => DType::I8,
            E::U8 => DType::U8,
            E::I4 => DType::I4,
            E::U4 => DType::U4,
            E::Bool => DType::Bool,
            E::F8E8M0 | E::F6E2M3 | E::F6E3M2 | E::F4E2M1 | E::I2 | E::U2 | E::Complex64 | E::Complex128 => {
                return None;
            }
        })
    }

    /// Says whether [`ElementType::dtype`] is a wider type, so that the data must be converted.
    pub const fn is_widened(self) -> bool {
        matches!(self, ElementType::U64 | ElementType::U32 | ElementType::U16)
    }

    /// Returns how many bytes a tensor of these dims takes, or `None` when that overflows.
    pub fn bytes_for(self, dims: &[usize]) -> Option<usize> {
        let elements = dims
            .iter()
            .try_fold(1u64, |product, &dim| product.checked_mul(u64::try_from(dim).ok()?))?;
        usize::try_from(elements.checked_mul(self.bits())?.div_ceil(8)).ok()
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
