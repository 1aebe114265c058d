//! Arithmetic on registers: f32 through the vector kernels, the other classes with plain loops.
//!
//! Integers are held as i64 and wrapped to the width of their type after each operation that may leave it.
#![expect(unsafe_op_in_unsafe_fn, reason = "lane loops under the contract of `Program::run`")]

use ir::graph::eval::array::wrap;
use ir::graph::eval::scalar;
use ir::op::{BinaryOp, UnaryOp};
use ir::types::DType;

use super::memory::{get_lane, set_lane};
use super::{Class, Val};
use crate::cpu::kernels::Isa;
use crate::cpu::kernels::convert::{floats_to_integers, integers_to_floats, round_to_bf16, round_to_f16};
use crate::cpu::kernels::math::{Binary, Input, Unary, binary_ptr, unary_ptr};

/// The f32 kernel of an operation; `None` for those whose result is not f32.
pub(crate) fn unary_kernel(op: UnaryOp) -> Option<Unary> {
    Some(match op {
        UnaryOp::Neg => Unary::Neg {},
        UnaryOp::Abs => Unary::Abs {},
        UnaryOp::Sign => Unary::Sign {},
        UnaryOp::Floor => Unary::Floor {},
        UnaryOp::Ceil => Unary::Ceil {},
        UnaryOp::Round => Unary::Round {},
        UnaryOp::Trunc => Unary::Trunc {},
        UnaryOp::Sqrt => Unary::Sqrt {},
        UnaryOp::Rsqrt => Unary::Rsqrt {},
        UnaryOp::Recip => Unary::Recip {},
        UnaryOp::Exp => Unary::Exp {},
        UnaryOp::Expm1 => Unary::Expm1 {},
        UnaryOp::Log => Unary::Log {},
        UnaryOp::Log1p => Unary::Log1p {},
        UnaryOp::Exp2 => Unary::Exp2 {},
        UnaryOp::Log2 => Unary::Log2 {},
        UnaryOp::Sin => Unary::Sin {},
        UnaryOp::Cos => Unary::Cos {},
        UnaryOp::Tan => Unary::Tan {},
        UnaryOp::Asin => Unary::Asin {},
        UnaryOp::Acos => Unary::Acos {},
        UnaryOp::Atan => Unary::Atan {},
        UnaryOp::Sinh => Unary::Sinh {},
        UnaryOp::Cosh => Unary::Cosh {},
        UnaryOp::Tanh => Unary::Tanh {},
        UnaryOp::Asinh => Unary::Asinh {},
        UnaryOp::Acosh => Unary::Acosh {},
        UnaryOp::Atanh => Unary::Atanh {},
        UnaryOp::Erf => Unary::Erf {},
        UnaryOp::Sigmoid => Unary::Sigmoid {},
        UnaryOp::Softplus => Unary::Softplus {},
        UnaryOp::Relu => Unary::Relu {},
        UnaryOp::Gelu => Unary::Gelu {},
        UnaryOp::GeluTanh => Unary::GeluTanh {},
        UnaryOp::Silu => Unary::Silu {},
        UnaryOp::Mish => Unary::Mish {},
        UnaryOp::HardSwish => Unary::HardSwish {},
        UnaryOp::Not | UnaryOp::IsNan | UnaryOp::IsInf => return None,
    })
}

pub(crate) fn binary_kernel(op: BinaryOp) -> Option<Binary> {
    Some(match op {
        BinaryOp::Add => Binary::Add,
        BinaryOp::Sub => Binary::Sub,
        BinaryOp::Mul => Binary::Mul,
        BinaryOp::Div => Binary::Div,
        BinaryOp::Rem => Binary::Rem,
        BinaryOp::Mod => Binary::FloorMod,
        BinaryOp::Pow => Binary::Pow,
        BinaryOp::Max => Binary::Max,
        BinaryOp::Min => Binary::Min,
        BinaryOp::Atan2 => Binary::Atan2,
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr => return None,
        BinaryOp::Eq | BinaryOp::Ne | BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge => return None,
    })
}

/// One value of an operation.
pub(crate) fn unary_scalar(isa: Isa, op: UnaryOp, dtype: DType, a: u64) -> u64 {
    match Class::of(dtype) {
        Class::F32 => {
            let x = f32::from_bits(a as u32);
            match (op, unary_kernel(op)) {
                (UnaryOp::IsNan, _) => u64::from(x.is_nan()),
                (UnaryOp::IsInf, _) => u64::from(x.is_infinite()),
                (_, Some(kernel)) => {
                    let mut y = 0.0f32;
                    // SAFETY: one value each.
                    unsafe { unary_ptr(isa, kernel, &mut y, &x, 1) };
                    u64::from(y.to_bits())
                }
                (_, None) => u64::from((f32::from(u8::from(x == 0.0))).to_bits()),
            }
        }
        Class::F64 => {
            let x = f64::from_bits(a);
            let y = scalar::unary_float(op, x);
            if op.is_predicate() {
                u64::from(y != 0.0)
            } else {
                y.to_bits()
            }
        }
        Class::I64 => scalar::unary_int(op, dtype, a as i64) as u64,
        Class::Bool => match op {
            UnaryOp::Not => u64::from(a == 0),
            UnaryOp::IsNan | UnaryOp::IsInf => 0,
            _ => a,
        },
    }
}

/// One value of an operation.
pub(crate) fn binary_scalar(isa: Isa, op: BinaryOp, dtype: DType, a: u64, b: u64) -> u64 {
    match Class::of(dtype) {
        Class::F32 => {
            let (x, y) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
            match binary_kernel(op) {
                Some(kernel) => {
                    let mut z = 0.0f32;
                    // SAFETY: one value.
                    unsafe { binary_ptr(isa, kernel, &mut z, Input::Scalar(x), Input::Scalar(y), 1) };
                    u64::from(z.to_bits())
                }
                None if op.is_comparison() => u64::from(scalar::compare(op, &x, &y)),
                None => u64::from((scalar::binary_float(op, x.into(), y.into()) as f32).to_bits()),
            }
        }
        Class::F64 => {
            let (x, y) = (f64::from_bits(a), f64::from_bits(b));
            if op.is_comparison() {
                u64::from(scalar::compare(op, &x, &y))
            } else {
                scalar::binary_float(op, x, y).to_bits()
            }
        }
        Class::I64 => {
            if op.is_comparison() {
                u64::from(scalar::compare(op, &(a as i64), &(b as i64)))
            } else {
                scalar::binary_int(op, dtype, a as i64, b as i64) as u64
            }
        }
        Class::Bool => u64::from(scalar::binary_bool(op, a != 0, b != 0)),
    }
}

/// Converts one value, `from` and `to` as graphs mean it.
pub(crate) fn cast_scalar(from: DType, to: DType, bits: u64) -> u64 {
    enum Number {
        F(f64),
        I(i64),
    }
    let number = match Class::of(from) {
        Class::F32 => Number::F(f64::from(f32::from_bits(bits as u32))),
        Class::F64 => Number::F(f64::from_bits(bits)),
        Class::I64 => Number::I(bits as i64),
        Class::Bool => Number::I(i64::from(bits != 0)),
    };
    match (Class::of(to), number) {
        (Class::F32, number) => {
            let v = match (to, number) {
                (DType::F32, Number::F(v)) => v as f32,
                (DType::F32, Number::I(v)) => v as f32,
                (_, Number::F(v)) => ir::convert::round_to(to, v) as f32,
                (_, Number::I(v)) => ir::convert::round_to(to, v as f64) as f32,
            };
            u64::from(v.to_bits())
        }
        (Class::F64, Number::F(v)) => v.to_bits(),
        (Class::F64, Number::I(v)) => (v as f64).to_bits(),
        (Class::I64, Number::F(v)) => scalar::saturate(to, v) as u64,
        (Class::I64, Number::I(v)) => wrap(to, v) as u64,
        (Class::Bool, Number::F(v)) => u64::from(v != 0.0),
        (Class::Bool, Number::I(v)) => u64::from(v != 0),
    }
}

fn input(v: Val, uniform: bool, l0: usize) -> Input {
    if uniform {
        Input::Scalar(f32::from_bits(v.bits as u32))
    } else {
        Input::Array(v.ptr.cast::<f32>().wrapping_add(l0).cast_const())
    }
}

/// Applies `op` to lanes `l0..l1`.
///
/// # Safety
/// The lanes are inside both registers, which are of the classes that `dtype` and `op` give.
pub(crate) unsafe fn unary(isa: Isa, op: UnaryOp, dtype: DType, dst: *mut u8, a: *const u8, l0: usize, l1: usize) {
    let class = Class::of(dtype);
    match (class, unary_kernel(op)) {
        (Class::F32, Some(kernel)) => {
            unary_ptr(isa, kernel, dst.cast::<f32>().add(l0), a.cast::<f32>().add(l0), l1 - l0)
        }
        (Class::Bool, _) if op == UnaryOp::Not => {
            (l0..l1).for_each(|l| dst.add(l).write(u8::from(a.add(l).read() == 0)))
        }
        (Class::I64, _) if dtype == DType::I64 && matches!(op, UnaryOp::Abs | UnaryOp::Neg) => {
            let (to, from) = (dst.cast::<i64>(), a.cast::<i64>());
            match op {
                UnaryOp::Abs => (l0..l1).for_each(|l| to.add(l).write(from.add(l).read().wrapping_abs())),
                _ => (l0..l1).for_each(|l| to.add(l).write(from.add(l).read().wrapping_neg())),
            }
        }
        _ => {
            let to = if op.is_predicate() { Class::Bool } else { class };
            for l in l0..l1 {
                set_lane(to, dst, l, unary_scalar(isa, op, dtype, get_lane(class, a, l)));
            }
        }
    }
}

/// Applies `op` to lanes `l0..l1`; not both operands are uniform.
///
/// # Safety
/// As for [`unary`].
pub(crate) unsafe fn binary(
    isa: Isa,
    op: BinaryOp,
    dtype: DType,
    dst: *mut u8,
    (a, ua): (Val, bool),
    (b, ub): (Val, bool),
    l0: usize,
    l1: usize,
) {
    let class = Class::of(dtype);
    if let (Class::F32, Some(kernel)) = (class, binary_kernel(op)) {
        return binary_ptr(
            isa,
            kernel,
            dst.cast::<f32>().add(l0),
            input(a, ua, l0),
            input(b, ub, l0),
            l1 - l0,
        );
    }
    macro_rules! lanes {
        ($t:ty, $read:expr, |$x:ident, $y:ident| $value:expr => $out:ty) => {{
            let read = $read;
            let (pa, pb, to) = (a.ptr.cast::<$t>(), b.ptr.cast::<$t>(), dst.cast::<$out>());
            match (ua, ub) {
                (false, false) => (l0..l1).for_each(|l| {
                    let ($x, $y) = (pa.add(l).read(), pb.add(l).read());
                    to.add(l).write($value)
                }),
                (false, true) => {
                    let $y: $t = read(b.bits);
                    (l0..l1).for_each(|l| {
                        let $x = pa.add(l).read();
                        to.add(l).write($value)
                    })
                }
                (true, _) => {
                    let $x: $t = read(a.bits);
                    (l0..l1).for_each(|l| {
                        let $y = pb.add(l).read();
                        to.add(l).write($value)
                    })
                }
            }
        }};
    }
    // Comparisons give truth values; `$otherwise` is what all other operations do.
    macro_rules! compares {
        ($t:ty, $read:expr, else $otherwise:expr) => {
            match op {
                BinaryOp::Eq => lanes!($t, $read, |x, y| u8::from(x == y) => u8),
                BinaryOp::Ne => lanes!($t, $read, |x, y| u8::from(x != y) => u8),
                BinaryOp::Lt => lanes!($t, $read, |x, y| u8::from(x < y) => u8),
                BinaryOp::Le => lanes!($t, $read, |x, y| u8::from(x <= y) => u8),
                BinaryOp::Gt => lanes!($t, $read, |x, y| u8::from(x > y) => u8),
                BinaryOp::Ge => lanes!($t, $read, |x, y| u8::from(x >= y) => u8),
                BinaryOp::Add
                | BinaryOp::Sub
                | BinaryOp::Mul
                | BinaryOp::Div
                | BinaryOp::Rem
                | BinaryOp::Mod
                | BinaryOp::Pow
                | BinaryOp::Max
                | BinaryOp::Min
                | BinaryOp::Atan2
                | BinaryOp::And
                | BinaryOp::Or
                | BinaryOp::Xor
                | BinaryOp::Shl
                | BinaryOp::Shr => $otherwise,
            }
        };
    }
    let (f32_of, i64_of) = (|bits: u64| f32::from_bits(bits as u32), |bits: u64| bits as i64);
    match class {
        Class::F32 => compares!(f32, f32_of, else {
            // Without a kernel of its own: by the definition.
            lanes!(f32, f32_of, |x, y| scalar::binary_float(op, x.into(), y.into()) as f32 => f32)
        }),
        Class::F64 => compares!(f64, f64::from_bits, else {
            lanes!(f64, f64::from_bits, |x, y| scalar::binary_float(op, x, y) => f64)
        }),
        Class::I64 => compares!(i64, i64_of, else match (op, dtype) {
            (BinaryOp::Add, DType::I64) => lanes!(i64, i64_of, |x, y| x.wrapping_add(y) => i64),
            (BinaryOp::Sub, DType::I64) => lanes!(i64, i64_of, |x, y| x.wrapping_sub(y) => i64),
            (BinaryOp::Mul, DType::I64) => lanes!(i64, i64_of, |x, y| x.wrapping_mul(y) => i64),
            (BinaryOp::Max, _) => lanes!(i64, i64_of, |x, y| x.max(y) => i64),
            (BinaryOp::Min, _) => lanes!(i64, i64_of, |x, y| x.min(y) => i64),
            _ => lanes!(i64, i64_of, |x, y| scalar::binary_int(op, dtype, x, y) => i64),
        }),
        Class::Bool => {
            lanes!(u8, |bits: u64| u8::from(bits != 0), |x, y| u8::from(scalar::binary_bool(op, x != 0, y != 0)) => u8)
        }
    }
}

/// Converts lanes `l0..l1`.
///
/// # Safety
/// As for [`unary`].
pub(crate) unsafe fn cast(isa: Isa, from: DType, to: DType, dst: *mut u8, a: *const u8, l0: usize, l1: usize) {
    macro_rules! lanes {
        ($t:ty => $out:ty, |$x:ident| $value:expr) => {
            (l0..l1).for_each(|l| {
                let $x = a.cast::<$t>().add(l).read();
                dst.cast::<$out>().add(l).write($value)
            })
        };
    }
    match (Class::of(from), to) {
        (Class::F32, DType::F32) => super::memory::copy(Class::F32, dst, a, l0, l1),
        (Class::F32, DType::F16) => round_to_f16(isa, dst.cast::<f32>().add(l0), a.cast::<f32>().add(l0), l1 - l0),
        (Class::F32, DType::BF16) => round_to_bf16(isa, dst.cast::<f32>().add(l0), a.cast::<f32>().add(l0), l1 - l0),
        (Class::F32, DType::I64) => lanes!(f32 => i64, |x| x as i64),
        (Class::F32, DType::I32) => whole(isa, dst, a, l0, l1, [i32::MIN, i32::MAX]),
        (Class::F32, DType::I8) => whole(isa, dst, a, l0, l1, [i8::MIN.into(), i8::MAX.into()]),
        (Class::F32, DType::U8) => whole(isa, dst, a, l0, l1, [0, u8::MAX.into()]),
        (Class::F32, DType::Bool) => lanes!(f32 => u8, |x| u8::from(x != 0.0)),
        (Class::I64, DType::F32) => {
            integers_to_floats(isa, a.cast::<i64>().add(l0), dst.cast::<f32>().add(l0), l1 - l0)
        }
        (Class::I64, DType::I64) => super::memory::copy(Class::I64, dst, a, l0, l1),
        (Class::I64, to) if to.is_int() => lanes!(i64 => i64, |x| wrap(to, x)),
        (Class::I64, DType::Bool) => lanes!(i64 => u8, |x| u8::from(x != 0)),
        (Class::Bool, DType::F32) => lanes!(u8 => f32, |x| f32::from(u8::from(x != 0))),
        (Class::Bool, to) if to.is_int() => lanes!(u8 => i64, |x| i64::from(x != 0)),
        (class, _) => {
            for l in l0..l1 {
                set_lane(Class::of(to), dst, l, cast_scalar(from, to, get_lane(class, a, l)));
            }
        }
    }
}

/// Integers inside a range of at most 32 bits.
unsafe fn whole(isa: Isa, dst: *mut u8, a: *const u8, l0: usize, l1: usize, range: [i32; 2]) {
    floats_to_integers(isa, a.cast::<f32>().add(l0), dst.cast::<i64>().add(l0), l1 - l0, range);
}

/// Takes `a` where `cond` holds, else `b`, on lanes `l0..l1`.
///
/// # Safety
/// As for [`unary`].
pub(crate) unsafe fn blend(
    class: Class,
    dst: *mut u8,
    (cond, uc): (Val, bool),
    (a, ua): (Val, bool),
    (b, ub): (Val, bool),
    l0: usize,
    l1: usize,
) {
    let mask = cond.ptr.cast_const();
    let constant = u8::from(uc && cond.bits != 0);
    macro_rules! lanes {
        ($t:ty, $read:expr) => {{
            let read = $read;
            let (av, bv): ($t, $t) = (read(a.bits), read(b.bits));
            let (pa, pb, to) = (a.ptr.cast::<$t>(), b.ptr.cast::<$t>(), dst.cast::<$t>());
            for l in l0..l1 {
                let yes = if uc { constant != 0 } else { mask.add(l).read() != 0 };
                let x = if ua { av } else { pa.add(l).read() };
                let y = if ub { bv } else { pb.add(l).read() };
                to.add(l).write(if yes { x } else { y });
            }
        }};
    }
    match class {
        Class::F32 => lanes!(u32, |bits: u64| bits as u32),
        Class::F64 | Class::I64 => lanes!(u64, |bits: u64| bits),
        Class::Bool => lanes!(u8, |bits: u64| bits as u8),
    }
}

/// Word `lane` of Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011).
pub(crate) fn philox(seed: u64, counter: u64, lane: u8) -> i32 {
    let mut c = [counter as u32, (counter >> 32) as u32, 0, 0];
    let mut key = [seed as u32, (seed >> 32) as u32];
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let p0 = u64::from(c[0]) * 0xD251_1F53;
        let p1 = u64::from(c[2]) * 0xCD9E_8D57;
        c = [
            (p1 >> 32) as u32 ^ c[1] ^ key[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ c[3] ^ key[1],
            p0 as u32,
        ];
    }
    c[usize::from(lane & 3)] as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation on lanes gives what it gives for one value, and what the evaluator's definition gives: none
    /// without a kernel of its own is taken for another.
    #[test]
    fn lanes_are_single_values_of_the_definition() {
        let values = [0.0f32, 1.0, -2.5, 3.0, 0.5, -7.0, 3.0, 2.0];
        let other = 3.0f32;
        let scalar_of = |value: f32| Val {
            bits: u64::from(value.to_bits()),
            ptr: std::ptr::null_mut(),
        };
        let isa = Isa::detect();
        for &op in BinaryOp::ALL {
            let (mut numbers, mut truths) = ([9.0f32; 8], [9u8; 8]);
            let dst: *mut u8 = match op.is_comparison() {
                true => truths.as_mut_ptr(),
                false => numbers.as_mut_ptr().cast(),
            };
            let lanes = Val {
                bits: 0,
                ptr: values.as_ptr().cast::<u8>().cast_mut(),
            };
            // SAFETY: eight lanes of both, of the class that the operation gives.
            unsafe { binary(isa, op, DType::F32, dst, (lanes, false), (scalar_of(other), true), 0, 8) };
            for (lane, value) in values.into_iter().enumerate() {
                let single = binary_scalar(
                    isa,
                    op,
                    DType::F32,
                    u64::from(value.to_bits()),
                    u64::from(other.to_bits()),
                );
                if op.is_comparison() {
                    let want = scalar::compare(op, &value, &other);
                    assert_eq!(
                        (truths[lane], single),
                        (u8::from(want), u64::from(want)),
                        "{op:?} of {value}"
                    );
                    continue;
                }
                let want = scalar::binary_float(op, value.into(), other.into()) as f32;
                for got in [numbers[lane], f32::from_bits(single as u32)] {
                    let near = (got - want).abs() <= 1e-5 * want.abs() || got.is_nan() && want.is_nan();
                    assert!(near, "{op:?} of {value}: {got}, not {want}");
                }
            }
        }
    }
}
