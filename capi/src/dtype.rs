//! Element types as numbers.

use graphc::ir::DType;

use crate::status::{Failure, Outcome};

/// An element type: one of the GRAPHC_DTYPE_ constants.
pub type graphc_dtype = i32;

/// 32-bit float.
pub const GRAPHC_DTYPE_F32: graphc_dtype = 0;
/// IEEE 16-bit float.
pub const GRAPHC_DTYPE_F16: graphc_dtype = 1;
/// bfloat16.
pub const GRAPHC_DTYPE_BF16: graphc_dtype = 2;
/// 64-bit float.
pub const GRAPHC_DTYPE_F64: graphc_dtype = 3;
/// 8-bit float e4m3 of OCP, without infinities.
pub const GRAPHC_DTYPE_F8E4M3FN: graphc_dtype = 4;
/// 8-bit float e4m3 without negative zero.
pub const GRAPHC_DTYPE_F8E4M3FNUZ: graphc_dtype = 5;
/// 8-bit float e5m2 of OCP.
pub const GRAPHC_DTYPE_F8E5M2: graphc_dtype = 6;
/// 8-bit float e5m2 without negative zero.
pub const GRAPHC_DTYPE_F8E5M2FNUZ: graphc_dtype = 7;
/// 64-bit signed integer.
pub const GRAPHC_DTYPE_I64: graphc_dtype = 8;
/// 32-bit signed integer.
pub const GRAPHC_DTYPE_I32: graphc_dtype = 9;
/// 16-bit signed integer.
pub const GRAPHC_DTYPE_I16: graphc_dtype = 10;
/// 8-bit signed integer.
pub const GRAPHC_DTYPE_I8: graphc_dtype = 11;
/// 8-bit unsigned integer.
pub const GRAPHC_DTYPE_U8: graphc_dtype = 12;
/// 4-bit signed integer, two in a byte, the first in the low half.
pub const GRAPHC_DTYPE_I4: graphc_dtype = 13;
/// 4-bit unsigned integer, two in a byte, the first in the low half.
pub const GRAPHC_DTYPE_U4: graphc_dtype = 14;
/// A byte that is 0 or 1.
pub const GRAPHC_DTYPE_BOOL: graphc_dtype = 15;

/// The types with their numbers.
const NUMBERS: [(graphc_dtype, DType); 16] = [
    (GRAPHC_DTYPE_F32, DType::F32),
    (GRAPHC_DTYPE_F16, DType::F16),
    (GRAPHC_DTYPE_BF16, DType::BF16),
    (GRAPHC_DTYPE_F64, DType::F64),
    (GRAPHC_DTYPE_F8E4M3FN, DType::F8E4M3FN),
    (GRAPHC_DTYPE_F8E4M3FNUZ, DType::F8E4M3FNUZ),
    (GRAPHC_DTYPE_F8E5M2, DType::F8E5M2),
    (GRAPHC_DTYPE_F8E5M2FNUZ, DType::F8E5M2FNUZ),
    (GRAPHC_DTYPE_I64, DType::I64),
    (GRAPHC_DTYPE_I32, DType::I32),
    (GRAPHC_DTYPE_I16, DType::I16),
    (GRAPHC_DTYPE_I8, DType::I8),
    (GRAPHC_DTYPE_U8, DType::U8),
    (GRAPHC_DTYPE_I4, DType::I4),
    (GRAPHC_DTYPE_U4, DType::U4),
    (GRAPHC_DTYPE_BOOL, DType::Bool),
];

/// The number of a type.
pub fn number(dtype: DType) -> graphc_dtype {
    let found = NUMBERS.iter().find(|(_, known)| *known == dtype);
    found.map_or(-1, |(number, _)| *number)
}

/// The type of a number.
pub fn of_number(number: graphc_dtype) -> Outcome<DType> {
    let found = NUMBERS.iter().find(|(known, _)| *known == number);
    let dtype = found.map(|(_, dtype)| *dtype);
    dtype.ok_or_else(|| Failure::argument(format!("dtype {number} is none of the GRAPHC_DTYPE_ constants")))
}
