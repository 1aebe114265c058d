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
use crate::cpu::kernels::math::{Input, binary_ptr, compare_ptr, unary_ptr};

/// One value of an operation.
pub(crate) fn unary_scalar(isa: Isa, op: UnaryOp, dtype: DType, a: u64) -> u64 {
    match Class::of(dtype) {
        Class::F32 => {
            let (x, mut y) = (f32::from_bits(a as u32), [0u8; 4]);
            // SAFETY: one value each.
            unsafe { unary_ptr(isa, op, y.as_mut_ptr(), &x, 1) };
            u64::from(u32::from_le_bytes(y))
        }
        Class::F64 => {
            let y = op.on_float(f64::from_bits(a));
            match op.is_predicate() {
                true => u64::from(y != 0.0),
                false => y.to_bits(),
            }
        }
        Class::I64 => scalar::unary_int(op, dtype, a as i64) as u64,
        Class::Bool => u64::from(scalar::unary_bool(op, a != 0)),
    }
}

/// One value of an operation.
pub(crate) fn binary_scalar(isa: Isa, op: BinaryOp, dtype: DType, a: u64, b: u64) -> u64 {
    match (Class::of(dtype), op.comparison()) {
        (Class::F32, _) => {
            let [x, y] = [a, b].map(|bits| Input::Scalar(f32::from_bits(bits as u32)));
            let mut z = [0u8; 4];
            // SAFETY: one value.
            unsafe { binary_ptr(isa, op, z.as_mut_ptr(), x, y, 1) };
            u64::from(u32::from_le_bytes(z))
        }
        (Class::F64, order) => {
            let (x, y) = (f64::from_bits(a), f64::from_bits(b));
            match order {
                Some(order) => u64::from(order.holds(&x, &y)),
                None => op.on_floats(x, y).to_bits(),
            }
        }
        (Class::I64, Some(order)) => u64::from(order.holds(&(a as i64), &(b as i64))),
        (Class::I64, None) => scalar::binary_int(op, dtype, a as i64, b as i64) as u64,
        (Class::Bool, _) => u64::from(op.on_bools(a != 0, b != 0)),
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

fn input<T>((v, uniform): (Val, bool), l0: usize, read: impl Fn(u64) -> T) -> Input<T> {
    if uniform {
        Input::Scalar(read(v.bits))
    } else {
        Input::Array(v.ptr.cast::<T>().wrapping_add(l0).cast_const())
    }
}

/// Lane `l` of a register of a class.
unsafe fn lane(class: Class, register: *mut u8, l: usize) -> *mut u8 {
    register.add(l * class.bytes())
}

/// Applies `op` to lanes `l0..l1`.
///
/// # Safety
/// The lanes are inside both registers, which are of the classes that `dtype` and `op` give.
pub(crate) unsafe fn unary(isa: Isa, op: UnaryOp, dtype: DType, dst: *mut u8, a: *const u8, l0: usize, l1: usize) {
    let class = Class::of(dtype);
    let to = if op.is_predicate() { Class::Bool } else { class };
    match (class, dtype) {
        (Class::F32, _) => unary_ptr(isa, op, lane(to, dst, l0), a.cast::<f32>().add(l0), l1 - l0),
        (Class::Bool, _) => {
            (l0..l1).for_each(|l| dst.add(l).write(scalar::unary_bool(op, a.add(l).read() != 0).into()))
        }
        (Class::I64, DType::I64) if op == UnaryOp::Abs => whole_numbers(dst, a, l0, l1, i64::wrapping_abs),
        (Class::I64, DType::I64) if op == UnaryOp::Neg => whole_numbers(dst, a, l0, l1, i64::wrapping_neg),
        (Class::F64 | Class::I64, _) => {
            for l in l0..l1 {
                set_lane(to, dst, l, unary_scalar(isa, op, dtype, get_lane(class, a, l)));
            }
        }
    }
}

unsafe fn whole_numbers(dst: *mut u8, a: *const u8, l0: usize, l1: usize, f: impl Fn(i64) -> i64) {
    let (to, from) = (dst.cast::<i64>(), a.cast::<i64>());
    (l0..l1).for_each(|l| to.add(l).write(f(from.add(l).read())));
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
    a: (Val, bool),
    b: (Val, bool),
    l0: usize,
    l1: usize,
) {
    let n = l1 - l0;
    let (f32_of, i64_of) = (|bits: u64| f32::from_bits(bits as u32), |bits: u64| bits as i64);
    macro_rules! lanes {
        ($t:ty, $read:expr, |$x:ident, $y:ident| $value:expr) => {{
            let read = $read;
            let (pa, pb, to) = (a.0.ptr.cast::<$t>(), b.0.ptr.cast::<$t>(), dst.cast::<$t>());
            match (a.1, b.1) {
                (false, false) => (l0..l1).for_each(|l| {
                    let ($x, $y) = (pa.add(l).read(), pb.add(l).read());
                    to.add(l).write($value)
                }),
                (false, true) => {
                    let $y: $t = read(b.0.bits);
                    (l0..l1).for_each(|l| {
                        let $x = pa.add(l).read();
                        to.add(l).write($value)
                    })
                }
                (true, _) => {
                    let $x: $t = read(a.0.bits);
                    (l0..l1).for_each(|l| {
                        let $y = pb.add(l).read();
                        to.add(l).write($value)
                    })
                }
            }
        }};
    }
    match (Class::of(dtype), op.comparison()) {
        (Class::F32, order) => {
            let to = if order.is_some() { Class::Bool } else { Class::F32 };
            binary_ptr(
                isa,
                op,
                lane(to, dst, l0),
                input(a, l0, f32_of),
                input(b, l0, f32_of),
                n,
            );
        }
        (Class::F64, Some(order)) => {
            let (a, b) = (input(a, l0, f64::from_bits), input(b, l0, f64::from_bits));
            compare_ptr(order, dst.add(l0), a, b, n);
        }
        (Class::I64, Some(order)) => compare_ptr(order, dst.add(l0), input(a, l0, i64_of), input(b, l0, i64_of), n),
        (Class::F64, None) => lanes!(f64, f64::from_bits, |x, y| op.on_floats(x, y)),
        (Class::I64, None) => match (op, dtype) {
            (BinaryOp::Add, DType::I64) => lanes!(i64, i64_of, |x, y| x.wrapping_add(y)),
            (BinaryOp::Sub, DType::I64) => lanes!(i64, i64_of, |x, y| x.wrapping_sub(y)),
            (BinaryOp::Mul, DType::I64) => lanes!(i64, i64_of, |x, y| x.wrapping_mul(y)),
            // The row's meaning of one op, without a `match` in the loop.
            (BinaryOp::Div, DType::I64) => lanes!(i64, i64_of, |x, y| BinaryOp::Div.on_ints(64, x, y)),
            (BinaryOp::Rem, DType::I64) => lanes!(i64, i64_of, |x, y| BinaryOp::Rem.on_ints(64, x, y)),
            (BinaryOp::Mod, DType::I64) => lanes!(i64, i64_of, |x, y| BinaryOp::Mod.on_ints(64, x, y)),
            (BinaryOp::Max, _) => lanes!(i64, i64_of, |x, y| x.max(y)),
            (BinaryOp::Min, _) => lanes!(i64, i64_of, |x, y| x.min(y)),
            _ => lanes!(i64, i64_of, |x, y| scalar::binary_int(op, dtype, x, y)),
        },
        (Class::Bool, _) => {
            lanes!(u8, |bits: u64| u8::from(bits != 0), |x, y| u8::from(
                op.on_bools(x != 0, y != 0)
            ))
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
                if let Some(order) = op.comparison() {
                    let want = order.holds(&value, &other);
                    assert_eq!(
                        (truths[lane], single),
                        (u8::from(want), u64::from(want)),
                        "{op:?} of {value}"
                    );
                    continue;
                }
                let want = op.on_floats(value.into(), other.into()) as f32;
                for got in [numbers[lane], f32::from_bits(single as u32)] {
                    let near = (got - want).abs() <= 1e-5 * want.abs() || got.is_nan() && want.is_nan();
                    assert!(near, "{op:?} of {value}: {got}, not {want}");
                }
            }
        }
    }
}
