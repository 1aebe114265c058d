//! Elementary functions against f64, in ulps; special values; conversions.

use half::{bf16, f16};
use ir::op::{BinaryOp, UnaryOp};

use super::{Rng, assert_close};
use crate::cpu::kernels::gemm::Elem;
use crate::cpu::kernels::math::{Input, binary_ptr, unary, unary_ptr};
use crate::cpu::kernels::{Isa, Level, convert};

fn unary_inplace(isa: Isa, op: UnaryOp, x: &mut [f32]) {
    // SAFETY: one slice, in place.
    unsafe { unary_ptr(isa, op, x.as_mut_ptr().cast(), x.as_ptr(), x.len()) }
}

/// Operands are one number, or as many as results.
fn binary(isa: Isa, op: BinaryOp, dst: &mut [f32], a: &[f32], b: &[f32]) {
    let input = |x: &[f32]| match x {
        [x] if dst.len() != 1 => Input::Scalar(*x),
        x if x.len() == dst.len() => Input::Array(x.as_ptr()),
        x => panic!("{} numbers for {}", x.len(), dst.len()),
    };
    let (a, b) = (input(a), input(b));
    // SAFETY: lengths were checked.
    unsafe { binary_ptr(isa, op, dst.as_mut_ptr().cast(), a, b, dst.len()) }
}

fn binary_inplace(isa: Isa, op: BinaryOp, dst: &mut [f32], b: &[f32]) {
    let (a, n) = (dst.as_ptr(), dst.len());
    assert_eq!(n, b.len());
    // SAFETY: lengths were checked; the first operand is the destination itself.
    unsafe {
        binary_ptr(
            isa,
            op,
            dst.as_mut_ptr().cast(),
            Input::Array(a),
            Input::Array(b.as_ptr()),
            n,
        )
    }
}

/// erf in f64 by its Taylor series, and erfc by a continued fraction in the tail.
fn erf64(x: f64) -> f64 {
    if x.abs() < 3.0 {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > 1e-18 * sum.abs() && n < 200.0 {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        (1.0 - erfc64(x.abs())).copysign(x)
    }
}

fn erfc64(x: f64) -> f64 {
    if x < 3.0 {
        return 1.0 - erf64(x);
    }
    let mut f = 0.0;
    for k in (1..=80).rev() {
        f = f64::from(k) / 2.0 / (x + f);
    }
    (-x * x).exp() / (x + f) / std::f64::consts::PI.sqrt()
}

fn sigmoid64(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn values(rng: &mut Rng) -> Vec<f32> {
    let mut v = vec![
        0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 88.0, -88.0, 103.0, -103.0, 1e-8, -1e-8, 1e-30, 1e-40, -1e-40, 1e30,
    ];
    v.extend([
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::MIN,
        1.0 + f32::EPSILON,
        1.0 - f32::EPSILON / 2.0,
        2.0,
        8.0,
        1000.0,
    ]);
    for _ in 0..3000 {
        let scale = [1e-6f32, 0.01, 1.0, 5.0, 20.0, 90.0, 5000.0][rng.below(7)];
        v.push(rng.float() * scale);
    }
    // All bit patterns but NaN and infinities.
    while v.len() < 6000 {
        let x = f32::from_bits(rng.next() as u32);
        if x.is_finite() {
            v.push(x);
        }
    }
    v
}

fn check(op: UnaryOp, ulps: f64, atol: f64, range: std::ops::Range<f32>, f: fn(f64) -> f64) {
    let mut rng = Rng(20);
    let src: Vec<f32> = values(&mut rng).into_iter().filter(|x| range.contains(x)).collect();
    for isa in Isa::all() {
        let mut dst = vec![0.0; src.len()];
        unary(isa, op, &mut dst, &src);
        let slack = if isa.level() == Level::Portable { 2.0 } else { 1.0 };
        for (x, y) in src.iter().zip(&dst) {
            let want = f(f64::from(*x));
            let rounded = want as f32;
            if rounded.is_infinite() || rounded == f32::MAX {
                assert!(
                    *y == rounded || *y == f32::MAX.copysign(*y),
                    "{op:?}({x}) at {isa:?}: {y} for {want}"
                );
                continue;
            }
            // An ulp is at least the spacing of subnormals.
            let ulp = (want.abs() * f64::from(f32::EPSILON)).max(f64::from(f32::from_bits(1)));
            let error = (f64::from(*y) - want).abs();
            let nan = want.is_nan() && y.is_nan();
            assert!(
                nan || error <= ulps * slack * ulp + atol,
                "{op:?}({x}) at {isa:?}: {y} for {want}, {} ulp",
                error / ulp
            );
        }
        // In place, and every tail length.
        for n in 0..40.min(src.len()) {
            let mut part = src[..n].to_vec();
            unary_inplace(isa, op, &mut part);
            assert!(
                part.iter()
                    .zip(&dst)
                    .all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
            );
        }
    }
}

const ALL: std::ops::Range<f32> = f32::MIN..f32::MAX;

#[test]
fn exponentials() {
    check(UnaryOp::Exp, 2.0, 0.0, ALL, f64::exp);
    check(UnaryOp::Exp2, 2.0, 0.0, ALL, f64::exp2);
    check(UnaryOp::Expm1, 2.5, 0.0, ALL, f64::exp_m1);
    check(UnaryOp::Tanh, 2.0, 0.0, ALL, f64::tanh);
    check(UnaryOp::Sigmoid, 2.5, 0.0, ALL, sigmoid64);
    check(UnaryOp::Sinh, 2.0, 0.0, ALL, f64::sinh);
    check(UnaryOp::Cosh, 2.0, 0.0, ALL, f64::cosh);
}

#[test]
fn logarithms() {
    check(UnaryOp::Log, 2.0, 0.0, ALL, f64::ln);
    check(UnaryOp::Log2, 2.0, 0.0, ALL, f64::log2);
    check(UnaryOp::Log1p, 2.0, 0.0, ALL, f64::ln_1p);
    check(UnaryOp::Softplus, 2.5, 0.0, ALL, |x| {
        x.max(0.0) + (-x.abs()).exp().ln_1p()
    });
}

#[test]
fn trigonometry() {
    // Near its zeros the absolute error of the reduction shows.
    check(UnaryOp::Sin, 2.0, 6e-8, ALL, f64::sin);
    check(UnaryOp::Cos, 2.0, 6e-8, ALL, f64::cos);
    check(UnaryOp::Sin, 2.0, 0.0, -3.0..3.0, f64::sin);
    check(UnaryOp::Tan, 1.0, 0.0, ALL, f64::tan);
    check(UnaryOp::Asin, 2.0, 0.0, ALL, f64::asin);
    check(UnaryOp::Acos, 2.0, 0.0, ALL, f64::acos);
    check(UnaryOp::Atan, 2.0, 0.0, ALL, f64::atan);
    check(UnaryOp::Asinh, 1.0, 0.0, -1e6..1e6, f64::asinh);
    check(UnaryOp::Acosh, 1.0, 0.0, 1.1..1e6, f64::acosh);
    check(UnaryOp::Atanh, 1.0, 0.0, -2.0..2.0, f64::atanh);
}

#[test]
fn activations() {
    check(UnaryOp::Erf, 2.0, 0.0, ALL, erf64);
    // The lower tail keeps four digits or more: the exponent of erfc is rounded to f32.
    check(UnaryOp::Gelu, 4.0, 0.0, -2.0..1e30, |x| {
        x * 0.5 * erfc64_any(-x / std::f64::consts::SQRT_2)
    });
    check(UnaryOp::Gelu, 200.0, 2e-9, -1e30..-1.9, |x| {
        x * 0.5 * erfc64(-x / std::f64::consts::SQRT_2)
    });
    let gelu_tanh = |x: f64| x * sigmoid64(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x));
    check(UnaryOp::GeluTanh, 4.0, 0.0, -2.0..1e12, gelu_tanh);
    check(UnaryOp::GeluTanh, 60.0, 0.0, -9.0..-1.9, gelu_tanh);
    // Subnormal sigmoids have few bits.
    check(UnaryOp::Silu, 3.5, 2e-43, ALL, |x| x * sigmoid64(x));
    check(UnaryOp::Mish, 5.0, 0.0, -80.0..1e30, |x| {
        x * (x.max(0.0) + (-x.abs()).exp().ln_1p()).tanh()
    });
    check(UnaryOp::Relu, 0.0, 0.0, ALL, |x| x.max(0.0));
    let third = f64::from(1.0f32 / 6.0);
    check(UnaryOp::HardSwish, 2.0, 1e-7, -1e18..1e18, |x| {
        x * (x / 6.0 + 0.5).clamp(0.0, 1.0)
    });
    assert!((third - 1.0 / 6.0).abs() < 1e-8);
}

fn erfc64_any(x: f64) -> f64 {
    if x < 0.0 { 2.0 - erfc64(-x) } else { erfc64(x) }
}

#[test]
fn exact_ones() {
    check(UnaryOp::Abs, 0.0, 0.0, ALL, f64::abs);
    check(UnaryOp::Neg, 0.0, 0.0, ALL, |x| -x);
    check(
        UnaryOp::Sign,
        0.0,
        0.0,
        ALL,
        |x| if x == 0.0 { 0.0 } else { x.signum() },
    );
    check(UnaryOp::Floor, 0.0, 0.0, ALL, f64::floor);
    check(UnaryOp::Ceil, 0.0, 0.0, ALL, f64::ceil);
    check(UnaryOp::Trunc, 0.0, 0.0, ALL, f64::trunc);
    check(UnaryOp::Round, 0.0, 0.0, ALL, f64::round_ties_even);
    check(UnaryOp::Sqrt, 0.5, 0.0, ALL, f64::sqrt);
    check(UnaryOp::Rsqrt, 1.5, 0.0, f32::MIN_POSITIVE..f32::MAX, |x| {
        1.0 / x.sqrt()
    });
    check(UnaryOp::Recip, 0.5, 0.0, ALL, |x| 1.0 / x);
}

#[test]
fn special_values() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    // Function, then its value at -inf, -0, +0, +inf.
    let table: [(UnaryOp, [f32; 4]); 15] = [
        (UnaryOp::Exp, [0.0, 1.0, 1.0, inf]),
        (UnaryOp::Exp2, [0.0, 1.0, 1.0, inf]),
        (UnaryOp::Expm1, [-1.0, -0.0, 0.0, inf]),
        (UnaryOp::Log, [nan, -inf, -inf, inf]),
        (UnaryOp::Log2, [nan, -inf, -inf, inf]),
        (UnaryOp::Log1p, [nan, -0.0, 0.0, inf]),
        (UnaryOp::Tanh, [-1.0, -0.0, 0.0, 1.0]),
        (UnaryOp::Sigmoid, [0.0, 0.5, 0.5, 1.0]),
        (UnaryOp::Erf, [-1.0, -0.0, 0.0, 1.0]),
        (UnaryOp::Sin, [nan, -0.0, 0.0, nan]),
        (UnaryOp::Cos, [nan, 1.0, 1.0, nan]),
        (
            UnaryOp::Softplus,
            [0.0, std::f32::consts::LN_2, std::f32::consts::LN_2, inf],
        ),
        (UnaryOp::Sqrt, [nan, -0.0, 0.0, inf]),
        (UnaryOp::Rsqrt, [nan, -inf, inf, 0.0]),
        (UnaryOp::Recip, [-0.0, -inf, inf, 0.0]),
    ];
    for isa in Isa::all() {
        for (op, want) in table {
            let mut x = [-inf, -0.0, 0.0, inf, nan];
            unary_inplace(isa, op, &mut x);
            for (got, want) in x.iter().zip(want) {
                assert!(
                    got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                    "{op:?} at {isa:?}: {x:?}"
                );
            }
            assert!(x[4].is_nan(), "{op:?} at {isa:?}: NaN gave {}", x[4]);
        }
        let mut x = [-1.0, -2.0];
        unary_inplace(isa, UnaryOp::Log1p, &mut x);
        assert!(x[0] == -inf && x[1].is_nan());
        let nan_keeping = [
            UnaryOp::Relu,
            UnaryOp::Gelu,
            UnaryOp::GeluTanh,
            UnaryOp::Mish,
            UnaryOp::HardSwish,
            UnaryOp::Sign,
        ];
        for op in nan_keeping {
            let mut x = [nan];
            unary_inplace(isa, op, &mut x);
            assert!(x[0].is_nan(), "{op:?} at {isa:?}");
        }
    }
}

/// Each op is near its row's meaning, at every level: a new op is tested by being there.
#[test]
fn vector_forms_are_those_of_the_rows() {
    let near = |got: f32, want: f64| {
        let want = want as f32;
        got == want || got.is_nan() && want.is_nan() || (got - want).abs() <= 2e-6 * want.abs().max(1.0)
    };
    let xs: Vec<f32> = (-37..38)
        .map(|i| i as f32 / 8.0)
        .chain([f32::NAN, f32::INFINITY])
        .collect();
    for isa in Isa::all() {
        for &op in UnaryOp::ALL {
            let (mut numbers, mut truths) = (vec![0f32; xs.len()], vec![9u8; xs.len()]);
            let to = match op.is_predicate() {
                true => truths.as_mut_ptr(),
                false => numbers.as_mut_ptr().cast(),
            };
            // SAFETY: as many results as numbers, of the op's type.
            unsafe { unary_ptr(isa, op, to, xs.as_ptr(), xs.len()) };
            for (i, x) in xs.iter().enumerate() {
                let want = op.on_float((*x).into());
                let got = if op.is_predicate() {
                    f32::from(truths[i])
                } else {
                    numbers[i]
                };
                assert!(near(got, want), "{op} of {x} at {isa:?}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn powers() {
    let mut rng = Rng(21);
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        3.0,
        -3.0,
        0.5,
        -0.5,
        1e-42,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let (mut xs, mut ys) = (Vec::new(), Vec::new());
    for x in special {
        for y in special {
            xs.push(x);
            ys.push(y);
        }
    }
    for _ in 0..4000 {
        xs.push(f32::from_bits((rng.next() as u32) & 0x7fff_ffff));
        ys.push(rng.float() * [1.0, 4.0, 30.0][rng.below(3)]);
        xs.push(-5.0 * rng.float());
        ys.push((rng.below(40) as f32) - 20.0);
    }
    for isa in Isa::all() {
        let mut dst = vec![0.0; xs.len()];
        binary(isa, BinaryOp::Pow, &mut dst, &xs, &ys);
        for ((x, y), got) in xs.iter().zip(&ys).zip(&dst) {
            let want = f64::from(*x).powf(f64::from(*y));
            let rounded = want as f32;
            let same = got.to_bits() == rounded.to_bits() || (got.is_nan() && rounded.is_nan());
            let ulp = f64::from(rounded.abs()) * f64::from(f32::EPSILON) + f64::from(f32::from_bits(1));
            assert!(
                same || (f64::from(*got) - want).abs() <= 0.6 * ulp,
                "{x}^{y} at {isa:?}: {got} for {want}"
            );
        }
    }
}

#[test]
fn binaries_with_scalars_and_in_place() {
    let mut rng = Rng(22);
    let ops: [(BinaryOp, fn(f64, f64) -> f64); 9] = [
        (BinaryOp::Add, |a, b| a + b),
        (BinaryOp::Sub, |a, b| a - b),
        (BinaryOp::Mul, |a, b| a * b),
        (BinaryOp::Div, |a, b| a / b),
        (BinaryOp::Min, f64::min),
        (BinaryOp::Max, f64::max),
        (BinaryOp::Rem, |a, b| a % b),
        (BinaryOp::Mod, |a, b| a - b * (a / b).floor()),
        (BinaryOp::Atan2, f64::atan2),
    ];
    for isa in Isa::all() {
        for n in [0, 1, 3, 4, 8, 15, 16, 17, 100] {
            let (a, b) = (rng.floats(n), rng.floats(n));
            for (op, f) in ops {
                let check = |got: &[f32], x: &dyn Fn(usize) -> f32, y: &dyn Fn(usize) -> f32| {
                    for (i, got) in got.iter().enumerate() {
                        assert_close(*got, f(x(i).into(), y(i).into()), 1e-6, 3e-7, &(op, isa, n, i));
                    }
                };
                let mut dst = vec![0.0; n];
                binary(isa, op, &mut dst, &a, &b);
                check(&dst, &|i| a[i], &|i| b[i]);
                binary(isa, op, &mut dst, &a, &[0.7]);
                check(&dst, &|i| a[i], &|_| 0.7);
                binary(isa, op, &mut dst, &[0.3], &b);
                check(&dst, &|_| 0.3, &|i| b[i]);
                binary(isa, op, &mut dst, &[0.3], &[-0.7]);
                check(&dst, &|_| 0.3, &|_| -0.7);
                let mut dst = a.clone();
                binary_inplace(isa, op, &mut dst, &b);
                check(&dst, &|i| a[i], &|i| b[i]);
            }
        }
        for op in [BinaryOp::Min, BinaryOp::Max] {
            let mut dst = [0.0; 2];
            binary(isa, op, &mut dst, &[f32::NAN, 1.0], &[1.0, f32::NAN]);
            assert!(dst.iter().all(|x| x.is_nan()), "{op:?} at {isa:?}");
        }
    }
}

#[test]
fn half_conversions_are_those_of_the_half_crate() {
    for isa in Isa::all() {
        // Every 16-bit pattern up, and a spread of f32 patterns down.
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let down: Vec<f32> = {
            let mut rng = Rng(23);
            let specials = [
                0.0,
                -0.0,
                f32::INFINITY,
                f32::NAN,
                65504.0,
                65520.0,
                65519.9,
                5.96e-8,
                2.98e-8,
                1e-40,
            ];
            specials
                .into_iter()
                .chain((0..50_001).map(|_| f32::from_bits(rng.next() as u32)))
                .collect()
        };
        for elem in [Elem::F16, Elem::BF16] {
            let mut up = vec![0.0f32; bits.len()];
            let mut back = vec![0u16; down.len()];
            // SAFETY: lengths agree.
            unsafe {
                convert::load_ptr(isa, up.as_mut_ptr(), bits.as_ptr().cast(), elem, bits.len());
                convert::store_ptr(isa, back.as_mut_ptr().cast(), down.as_ptr(), elem, down.len());
            }
            for (b, x) in bits.iter().zip(&up) {
                let want = if elem == Elem::F16 {
                    f16::from_bits(*b).to_f32()
                } else {
                    bf16::from_bits(*b).to_f32()
                };
                assert!(
                    x.to_bits() == want.to_bits() || (x.is_nan() && want.is_nan()),
                    "{elem:?} {b:#x} at {isa:?}"
                );
            }
            for (x, b) in down.iter().zip(&back) {
                let (want, nan) = if elem == Elem::F16 {
                    (f16::from_f32(*x).to_bits(), f16::from_bits(*b).is_nan())
                } else {
                    (bf16::from_f32(*x).to_bits(), bf16::from_bits(*b).is_nan())
                };
                assert!(
                    if x.is_nan() { nan } else { *b == want },
                    "{elem:?} {x} at {isa:?}: {b:#x} for {want:#x}"
                );
            }
        }
    }
}
