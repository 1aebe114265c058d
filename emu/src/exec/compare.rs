//! The vector comparisons: every predicate of every type, and the class test.

use super::float::{class_of, f16_to_f32};
use super::lanes::{compare, compare64};
use super::operand::{Build, Ty};
use super::wave::Exec;
use crate::decode::text::Encoding;

macro_rules! ordered {
    ($b:expr, $x:expr, $compare:ident, $op:expr, $tys:expr, $read:expr) => {{
        let read = $read;
        match $op {
            "f" => $compare($b, $x, $tys, |_, _| false),
            "lt" => $compare($b, $x, $tys, move |a, b| read(a) < read(b)),
            "eq" => $compare($b, $x, $tys, move |a, b| read(a) == read(b)),
            "le" => $compare($b, $x, $tys, move |a, b| read(a) <= read(b)),
            "gt" => $compare($b, $x, $tys, move |a, b| read(a) > read(b)),
            "ge" => $compare($b, $x, $tys, move |a, b| read(a) >= read(b)),
            "ne" => $compare($b, $x, $tys, move |a, b| read(a) != read(b)),
            "lg" => $compare($b, $x, $tys, move |a, b| read(a) < read(b) || read(a) > read(b)),
            "o" => $compare($b, $x, $tys, move |a, b| read(a).partial_cmp(&read(b)).is_some()),
            "u" => $compare($b, $x, $tys, move |a, b| read(a).partial_cmp(&read(b)).is_none()),
            "nge" => $compare($b, $x, $tys, move |a, b| !(read(a) >= read(b))),
            "nlg" => $compare($b, $x, $tys, move |a, b| !(read(a) < read(b) || read(a) > read(b))),
            "ngt" => $compare($b, $x, $tys, move |a, b| !(read(a) > read(b))),
            "nle" => $compare($b, $x, $tys, move |a, b| !(read(a) <= read(b))),
            "neq" => $compare($b, $x, $tys, move |a, b| !(read(a) == read(b))),
            "nlt" => $compare($b, $x, $tys, move |a, b| !(read(a) < read(b))),
            "t" | "tru" => $compare($b, $x, $tys, |_, _| true),
            other => Err(format!("comparison {other}")),
        }
    }};
}

#[expect(
    clippy::neg_cmp_op_on_partial_ord,
    reason = "the negated comparisons are true for NaN by definition"
)]
pub(super) fn comparison(b: &mut Build<'_>, rest: &str, to_exec: bool) -> Result<Exec, String> {
    let (op, ty) = rest.rsplit_once('_').ok_or("a comparison without a type")?;
    if b.text.encoding == Encoding::Sdwa && b.text.operands.len() < 3 {
        return Err("an SDWA comparison without a mask".into());
    }
    if op == "class" {
        return class(b, ty, to_exec);
    }
    match ty {
        "f32" => ordered!(b, to_exec, compare, op, [Ty::F32; 2], f32::from_bits),
        "f16" => ordered!(b, to_exec, compare, op, [Ty::F16; 2], |x: u32| f16_to_f32(x & 0xffff)),
        "u32" => ordered!(b, to_exec, compare, op, [Ty::B32; 2], |x: u32| x),
        "i32" => ordered!(b, to_exec, compare, op, [Ty::B32; 2], |x: u32| x as i32),
        "u16" => ordered!(b, to_exec, compare, op, [Ty::B16; 2], |x: u32| x as u16),
        "i16" => ordered!(b, to_exec, compare, op, [Ty::B16; 2], |x: u32| x as i16),
        "u64" => ordered!(b, to_exec, compare64, op, [Ty::B64; 2], |x: u64| x),
        "i64" => ordered!(b, to_exec, compare64, op, [Ty::I64; 2], |x: u64| x as i64),
        "f64" => ordered!(b, to_exec, compare64, op, [Ty::F64; 2], f64::from_bits),
        other => Err(format!("comparison of {other}")),
    }
}

fn class(b: &mut Build<'_>, ty: &str, to_exec: bool) -> Result<Exec, String> {
    match ty {
        "f32" => compare(b, to_exec, [Ty::F32, Ty::B32], |x, classes| {
            let (exponent, mantissa) = (u64::from(x >> 23 & 0xff), u64::from(x & 0x7f_ffff));
            classes & class_of(x >> 31 == 1, exponent, 255, mantissa, 1 << 22) != 0
        }),
        "f16" => compare(b, to_exec, [Ty::F16, Ty::B16], |x, classes| {
            let (exponent, mantissa) = (u64::from(x >> 10 & 0x1f), u64::from(x & 0x3ff));
            classes & class_of(x >> 15 & 1 == 1, exponent, 31, mantissa, 1 << 9) != 0
        }),
        "f64" => compare64(b, to_exec, [Ty::F64, Ty::B32], |x, classes| {
            let (exponent, mantissa) = (x >> 52 & 0x7ff, x & ((1 << 52) - 1));
            classes as u32 & class_of(x >> 63 == 1, exponent, 2047, mantissa, 1 << 51) != 0
        }),
        other => Err(format!("v_cmp_class of {other}")),
    }
}
