//! Elementary functions against f64, in ulps; special values; conversions.

use half::{bf16, f16};

use super::{Rng, assert_close};
use crate::cpu::kernels::gemm::Elem;
use crate::cpu::kernels::math::*;
use crate::cpu::kernels::{Isa, Level, convert};

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

fn check(op: Unary, ulps: f64, atol: f64, range: std::ops::Range<f32>, f: fn(f64) -> f64) {
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
    check(Unary::Exp {}, 2.0, 0.0, ALL, f64::exp);
    check(Unary::Exp2 {}, 2.0, 0.0, ALL, f64::exp2);
    check(Unary::Expm1 {}, 2.5, 0.0, ALL, f64::exp_m1);
    check(Unary::Tanh {}, 2.0, 0.0, ALL, f64::tanh);
    check(Unary::Sigmoid {}, 2.5, 0.0, ALL, sigmoid64);
    check(Unary::Sinh {}, 2.0, 0.0, ALL, f64::sinh);
    check(Unary::Cosh {}, 2.0, 0.0, ALL, f64::cosh);
}

#[test]
fn logarithms() {
    check(Unary::Log {}, 2.0, 0.0, ALL, f64::ln);
    check(Unary::Log2 {}, 2.0, 0.0, ALL, f64::log2);
    check(Unary::Log10 {}, 2.0, 0.0, ALL, f64::log10);
    check(Unary::Log1p {}, 2.0, 0.0, ALL, f64::ln_1p);
    check(Unary::Softplus {}, 2.5, 0.0, ALL, |x| {
        x.max(0.0) + (-x.abs()).exp().ln_1p()
    });
}

#[test]
fn trigonometry() {
    // Near its zeros the absolute error of the reduction shows.
    check(Unary::Sin {}, 2.0, 6e-8, ALL, f64::sin);
    check(Unary::Cos {}, 2.0, 6e-8, ALL, f64::cos);
    check(Unary::Sin {}, 2.0, 0.0, -3.0..3.0, f64::sin);
    check(Unary::Tan {}, 1.0, 0.0, ALL, f64::tan);
    check(Unary::Asin {}, 2.0, 0.0, ALL, f64::asin);
    check(Unary::Acos {}, 2.0, 0.0, ALL, f64::acos);
    check(Unary::Atan {}, 2.0, 0.0, ALL, f64::atan);
    check(Unary::Asinh {}, 1.0, 0.0, -1e6..1e6, f64::asinh);
    check(Unary::Acosh {}, 1.0, 0.0, 1.1..1e6, f64::acosh);
    check(Unary::Atanh {}, 1.0, 0.0, -2.0..2.0, f64::atanh);
}

#[test]
fn activations() {
    check(Unary::Erf {}, 2.0, 0.0, ALL, erf64);
    // The lower tail keeps four digits or more: the exponent of erfc is rounded to f32.
    check(Unary::Gelu {}, 4.0, 0.0, -2.0..1e30, |x| {
        x * 0.5 * erfc64_any(-x / std::f64::consts::SQRT_2)
    });
    check(Unary::Gelu {}, 200.0, 2e-9, -1e30..-1.9, |x| {
        x * 0.5 * erfc64(-x / std::f64::consts::SQRT_2)
    });
    let gelu_tanh = |x: f64| x * sigmoid64(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x));
    check(Unary::GeluTanh {}, 4.0, 0.0, -2.0..1e12, gelu_tanh);
    check(Unary::GeluTanh {}, 60.0, 0.0, -9.0..-1.9, gelu_tanh);
    // Subnormal sigmoids have few bits.
    check(Unary::Silu {}, 3.5, 2e-43, ALL, |x| x * sigmoid64(x));
    check(Unary::QuickGelu {}, 20.0, 0.0, -10.0..1e30, |x| {
        x * sigmoid64(x * f64::from(1.702f32))
    });
    check(Unary::Mish {}, 5.0, 0.0, -80.0..1e30, |x| {
        x * (x.max(0.0) + (-x.abs()).exp().ln_1p()).tanh()
    });
    check(Unary::Softsign {}, 1.5, 0.0, ALL, |x| x / (1.0 + x.abs()));
    check(Unary::Relu {}, 0.0, 0.0, ALL, |x| x.max(0.0));
    let third = f64::from(1.0f32 / 6.0);
    check(Unary::HardSwish {}, 2.0, 1e-7, -1e18..1e18, |x| {
        x * (x / 6.0 + 0.5).clamp(0.0, 1.0)
    });
    assert!((third - 1.0 / 6.0).abs() < 1e-8);
    check(Unary::HardSigmoid { alpha: 0.25, beta: 0.5 }, 1.0, 0.0, ALL, |x| {
        (x * 0.25 + 0.5).clamp(0.0, 1.0)
    });
    check(Unary::Elu { alpha: 0.5 }, 3.0, 0.0, ALL, |x| {
        if x > 0.0 { x } else { 0.5 * x.exp_m1() }
    });
    check(Unary::Selu { alpha: 0.5, gamma: 2.0 }, 3.0, 0.0, -1e37..1e37, |x| {
        if x > 0.0 { 2.0 * x } else { x.exp_m1() }
    });
    check(Unary::Celu { alpha: 2.0 }, 3.0, 0.0, ALL, |x| {
        if x > 0.0 { x } else { 2.0 * (x / 2.0).exp_m1() }
    });
    check(Unary::LeakyRelu { alpha: 0.25 }, 0.5, 0.0, ALL, |x| {
        if x < 0.0 { 0.25 * x } else { x }
    });
    check(Unary::ThresholdedRelu { alpha: 0.5 }, 0.0, 0.0, ALL, |x| {
        if x > 0.5 { x } else { 0.0 }
    });
    check(Unary::Clip { lo: -0.5, hi: 2.0 }, 0.0, 0.0, ALL, |x| x.clamp(-0.5, 2.0));
    check(Unary::Affine { scale: 2.0, shift: 0.5 }, 1.0, 0.0, -1e30..1e30, |x| {
        2.0 * x + 0.5
    });
}

fn erfc64_any(x: f64) -> f64 {
    if x < 0.0 { 2.0 - erfc64(-x) } else { erfc64(x) }
}

#[test]
fn exact_ones() {
    check(Unary::Abs {}, 0.0, 0.0, ALL, f64::abs);
    check(Unary::Neg {}, 0.0, 0.0, ALL, |x| -x);
    check(
        Unary::Sign {},
        0.0,
        0.0,
        ALL,
        |x| if x == 0.0 { 0.0 } else { x.signum() },
    );
    check(Unary::Floor {}, 0.0, 0.0, ALL, f64::floor);
    check(Unary::Ceil {}, 0.0, 0.0, ALL, f64::ceil);
    check(Unary::Trunc {}, 0.0, 0.0, ALL, f64::trunc);
    check(Unary::Round {}, 0.0, 0.0, ALL, f64::round_ties_even);
    check(Unary::Square {}, 0.5, 0.0, ALL, |x| x * x);
    check(Unary::Sqrt {}, 0.5, 0.0, ALL, f64::sqrt);
    check(Unary::Rsqrt {}, 1.5, 0.0, f32::MIN_POSITIVE..f32::MAX, |x| {
        1.0 / x.sqrt()
    });
    check(Unary::Recip {}, 0.5, 0.0, ALL, |x| 1.0 / x);
}

#[test]
fn special_values() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    // Function, then its value at -inf, -0, +0, +inf.
    let table: [(Unary, [f32; 4]); 16] = [
        (Unary::Exp {}, [0.0, 1.0, 1.0, inf]),
        (Unary::Exp2 {}, [0.0, 1.0, 1.0, inf]),
        (Unary::Expm1 {}, [-1.0, -0.0, 0.0, inf]),
        (Unary::Log {}, [nan, -inf, -inf, inf]),
        (Unary::Log2 {}, [nan, -inf, -inf, inf]),
        (Unary::Log1p {}, [nan, -0.0, 0.0, inf]),
        (Unary::Tanh {}, [-1.0, -0.0, 0.0, 1.0]),
        (Unary::Sigmoid {}, [0.0, 0.5, 0.5, 1.0]),
        (Unary::Erf {}, [-1.0, -0.0, 0.0, 1.0]),
        (Unary::Sin {}, [nan, -0.0, 0.0, nan]),
        (Unary::Cos {}, [nan, 1.0, 1.0, nan]),
        (
            Unary::Softplus {},
            [0.0, std::f32::consts::LN_2, std::f32::consts::LN_2, inf],
        ),
        (Unary::Sqrt {}, [nan, -0.0, 0.0, inf]),
        (Unary::Rsqrt {}, [nan, -inf, inf, 0.0]),
        (Unary::Recip {}, [-0.0, -inf, inf, 0.0]),
        (Unary::Elu { alpha: 1.0 }, [-1.0, -0.0, 0.0, inf]),
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
        unary_inplace(isa, Unary::Log1p {}, &mut x);
        assert!(x[0] == -inf && x[1].is_nan());
        let nan_keeping = [
            Unary::Relu {},
            Unary::Gelu {},
            Unary::GeluTanh {},
            Unary::Mish {},
            Unary::HardSwish {},
            Unary::Sign {},
        ];
        for op in nan_keeping
            .into_iter()
            .chain([Unary::Clip { lo: 0.0, hi: 1.0 }, Unary::ThresholdedRelu { alpha: 0.0 }])
        {
            let mut x = [nan];
            unary_inplace(isa, op, &mut x);
            assert!(x[0].is_nan(), "{op:?} at {isa:?}");
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
        binary(isa, Binary::Pow, &mut dst, Operand::Slice(&xs), Operand::Slice(&ys));
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
    let ops: [(Binary, fn(f64, f64) -> f64); 11] = [
        (Binary::Add, |a, b| a + b),
        (Binary::Sub, |a, b| a - b),
        (Binary::Mul, |a, b| a * b),
        (Binary::Div, |a, b| a / b),
        (Binary::Min, f64::min),
        (Binary::Max, f64::max),
        (Binary::Rem, |a, b| a % b),
        (Binary::FloorMod, |a, b| a - b * (a / b).floor()),
        (Binary::PRelu, |a, b| if a < 0.0 { a * b } else { a }),
        (Binary::SquaredDifference, |a, b| (a - b) * (a - b)),
        (Binary::Atan2, f64::atan2),
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
                binary(isa, op, &mut dst, Operand::Slice(&a), Operand::Slice(&b));
                check(&dst, &|i| a[i], &|i| b[i]);
                binary(isa, op, &mut dst, Operand::Slice(&a), Operand::Scalar(0.7));
                check(&dst, &|i| a[i], &|_| 0.7);
                binary(isa, op, &mut dst, Operand::Scalar(0.3), Operand::Slice(&b));
                check(&dst, &|_| 0.3, &|i| b[i]);
                binary(isa, op, &mut dst, Operand::Scalar(0.3), Operand::Scalar(-0.7));
                check(&dst, &|_| 0.3, &|_| -0.7);
                let mut dst = a.clone();
                binary_inplace(isa, op, &mut dst, Operand::Slice(&b));
                check(&dst, &|i| a[i], &|i| b[i]);
            }
        }
        for op in [Binary::Min, Binary::Max] {
            let mut dst = [0.0; 2];
            binary(
                isa,
                op,
                &mut dst,
                Operand::Slice(&[f32::NAN, 1.0]),
                Operand::Slice(&[1.0, f32::NAN]),
            );
            assert!(dst.iter().all(|x| x.is_nan()), "{op:?} at {isa:?}");
        }
    }
}

#[test]
fn compare_and_select() {
    let a = [1.0, 2.0, f32::NAN];
    let mut m = [9u8; 3];
    for (op, want) in [
        (Compare::Eq, [0, 1, 0]),
        (Compare::Ne, [1, 0, 1]),
        (Compare::Lt, [1, 0, 0]),
        (Compare::Le, [1, 1, 0]),
        (Compare::Gt, [0, 0, 0]),
        (Compare::Ge, [0, 1, 0]),
    ] {
        compare(op, &mut m, Operand::Slice(&a), Operand::Scalar(2.0));
        assert_eq!(m, want, "{op:?}");
    }
    let mut d = [0.0; 3];
    select(
        &mut d,
        &[1, 0, 2],
        Operand::Scalar(5.0),
        Operand::Slice(&[7.0, 8.0, 9.0]),
    );
    assert_eq!(d, [5.0, 8.0, 5.0]);
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
