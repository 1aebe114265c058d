//! Spelling of element types and of numbers, exact to the bit.

use ir::op::ReduceOp;
use ir::{DType, Scalar};

/// The C++ name of a value's type.
pub fn spelling(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
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

/// The C++ type of an element in memory: 4-bit types are pairs in bytes.
pub fn in_memory(dtype: DType) -> &'static str {
    match dtype {
        DType::I4 | DType::U4 => "u8",
        other => spelling(other),
    }
}

/// Says whether two elements share a byte.
pub const fn is_nibble(dtype: DType) -> bool {
    matches!(dtype, DType::I4 | DType::U4)
}

/// A number in a type, as C++ that gives exactly it.
pub fn literal(dtype: DType, value: Scalar) -> String {
    match dtype {
        DType::F32 => float32(value.as_f64() as f32),
        DType::F64 => float64(value.as_f64()),
        DType::Bool => value.as_bool().to_string(),
        DType::I64 => int64(value.as_i64()),
        DType::I32 => int32(value.as_i64() as i32),
        DType::I16 | DType::I8 | DType::U8 => format!("{}({})", spelling(dtype), value.as_i64()),
        DType::I4 | DType::U4 => format!("{}{{{}}}", spelling(dtype), value.as_i64()),
        narrow => format!("cast<{}>({})", spelling(narrow), float32(value.as_f64() as f32)),
    }
}

fn float32(v: f32) -> String {
    if v.is_nan() {
        "not_a_number<float>()".to_owned()
    } else if v.is_infinite() {
        format!("{}infinity<float>()", if v < 0.0 { "-" } else { "" })
    } else {
        // `{:?}` is the shortest text that reads back to the same bits.
        format!("{v:?}f")
    }
}

fn float64(v: f64) -> String {
    if v.is_nan() {
        "not_a_number<double>()".to_owned()
    } else if v.is_infinite() {
        format!("{}infinity<double>()", if v < 0.0 { "-" } else { "" })
    } else {
        format!("{v:?}")
    }
}

fn int64(v: i64) -> String {
    match v {
        i64::MIN => format!("(-{}l - 1)", i64::MAX),
        v if i32::try_from(v).is_err() || v == i64::from(i32::MIN) => format!("{v}l"),
        v => v.to_string(),
    }
}

fn int32(v: i32) -> String {
    if v == i32::MIN {
        format!("(-{} - 1)", i32::MAX)
    } else {
        v.to_string()
    }
}

/// The device library's type of a fold's operation.
pub fn operation(op: ReduceOp) -> &'static str {
    match op {
        // A mean is lowered to a sum that is scaled after.
        ReduceOp::Sum | ReduceOp::Mean => "Sum",
        ReduceOp::Prod => "Prod",
        ReduceOp::Max => "Max",
        ReduceOp::Min => "Min",
        ReduceOp::ArgMax => "ArgMax",
        ReduceOp::ArgMin => "ArgMin",
        ReduceOp::All => "All",
        ReduceOp::Any => "Any",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_exact() {
        assert_eq!(literal(DType::F32, Scalar::Float(0.1)), "0.1f");
        assert_eq!(literal(DType::F32, Scalar::Float(1e-30)), "1e-30f");
        assert_eq!(literal(DType::F32, Scalar::Float(-0.0)), "-0.0f");
        assert_eq!(
            literal(DType::F32, Scalar::Float(f64::NEG_INFINITY)),
            "-infinity<float>()"
        );
        assert_eq!(literal(DType::F64, Scalar::Float(f64::NAN)), "not_a_number<double>()");
        assert_eq!(
            literal(DType::I64, Scalar::Int(i64::MIN)),
            "(-9223372036854775807l - 1)"
        );
        assert_eq!(literal(DType::I64, Scalar::Int(1 << 40)), "1099511627776l");
        assert_eq!(literal(DType::I32, Scalar::Int(-5)), "-5");
        assert_eq!(literal(DType::F16, Scalar::Float(1.5)), "cast<f16>(1.5f)");
    }
}
