//! The elementary functions on one vector: polynomials after Moshier's Cephes and Juffa's erf, 1-2 ulp.
//!
//! Each passes NaN through, gives the limits at infinities, and keeps subnormals and the sign of zero.
#![expect(unsafe_op_in_unsafe_fn, reason = "vector code under the contract of `Simd`")]
#![expect(clippy::excessive_precision, reason = "coefficients as published")]

use crate::cpu::kernels::simd::Simd;

const LOG2E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the first has 10 bits, so that its product with an exponent is exact.
const LN2_HI: f32 = 0.693_359_375;
const LN2_LO: f32 = -2.121_944_40e-4;
/// Below this in magnitude an odd function with slope 1 is its argument.
const TINY: f32 = 1e-20;

#[inline(always)]
unsafe fn poly<S: Simd>(x: S::V, coefficients: &[f32]) -> S::V {
    let mut y = S::splat(coefficients[0]);
    for c in &coefficients[1..] {
        y = S::fma(y, x, S::splat(*c));
    }
    y
}

#[inline(always)]
unsafe fn tiny_or<S: Simd>(x: S::V, y: S::V) -> S::V {
    S::select(S::lt(S::abs(x), S::splat(TINY)), x, y)
}

/// `(exp(r) - 1, n)` with `x = r + n ln 2`.
#[inline(always)]
unsafe fn exp_parts<S: Simd>(x: S::V) -> (S::V, S::V) {
    let n = S::round(S::mul(x, S::splat(LOG2E)));
    let r = S::fma(n, S::splat(-LN2_HI), x);
    let r = S::fma(n, S::splat(-LN2_LO), r);
    (exp_poly::<S>(r), n)
}

#[inline(always)]
unsafe fn exp_poly<S: Simd>(r: S::V) -> S::V {
    let q = poly::<S>(
        r,
        &[
            1.987_569_15e-4,
            1.398_199_950_7e-3,
            8.333_451_907_3e-3,
            4.166_579_589_4e-2,
            1.666_666_545_9e-1,
            5.000_000_120_1e-1,
        ],
    );
    S::fma(q, S::mul(r, r), r)
}

#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    // Beyond these bounds the result is zero or infinite anyway. Operand order keeps NaN.
    let x = S::min(S::splat(89.0), S::max(S::splat(-105.0), x));
    let (p, n) = exp_parts::<S>(x);
    S::scale2(S::add(p, S::splat(1.0)), S::to_int(n))
}

#[inline(always)]
pub(crate) unsafe fn exp2<S: Simd>(x: S::V) -> S::V {
    let x = S::min(S::splat(129.0), S::max(S::splat(-151.0), x));
    let n = S::round(x);
    let p = exp_poly::<S>(S::mul(S::sub(x, n), S::splat(std::f32::consts::LN_2)));
    S::scale2(S::add(p, S::splat(1.0)), S::to_int(n))
}

#[inline(always)]
pub(crate) unsafe fn expm1<S: Simd>(x: S::V) -> S::V {
    let y = S::min(S::splat(89.0), S::max(S::splat(-30.0), x));
    let (p, n) = exp_parts::<S>(y);
    // 2^n (p + 1) - 1 as twice 2^(n-1) p + (2^(n-1) - 1/2): n may be 128.
    let half = S::from_bits(S::shl::<23>(S::iadd(S::to_int(n), S::isplat(126))));
    let r = S::fma(half, p, S::sub(half, S::splat(0.5)));
    // The shift makes nonsense of a NaN's exponent, but `p` is NaN then.
    tiny_or::<S>(x, S::add(r, r))
}

/// `log(1 + f)` for `1 + f` in [√½, √2].
#[inline(always)]
unsafe fn log_poly<S: Simd>(f: S::V, e: S::V) -> S::V {
    let z = S::mul(f, f);
    let p = poly::<S>(
        f,
        &[
            7.037_683_629_2e-2,
            -1.151_461_031_0e-1,
            1.167_699_874_0e-1,
            -1.242_014_084_6e-1,
            1.424_932_278_7e-1,
            -1.666_805_766_5e-1,
            2.000_071_476_5e-1,
            -2.499_999_399_3e-1,
            3.333_333_117_4e-1,
        ],
    );
    let y = S::mul(S::mul(p, f), z);
    let y = S::fma(e, S::splat(LN2_LO), y);
    let y = S::fma(z, S::splat(-0.5), y);
    S::fma(e, S::splat(LN2_HI), S::add(f, y))
}

/// `(m - 1, e)` with `x = m 2^e`, m in [√½, √2), for positive finite `x`.
#[inline(always)]
unsafe fn log_parts<S: Simd>(x: S::V) -> (S::V, S::V) {
    let small = S::lt(x, S::splat(f32::MIN_POSITIVE));
    let scaled = S::select(small, S::mul(x, S::splat(8_388_608.0)), x);
    let offset = S::isplat(0x3f35_04f3);
    let bits = S::isub(S::bits(scaled), offset);
    let e = S::to_float(S::sar::<23>(bits));
    let e = S::select(small, S::sub(e, S::splat(23.0)), e);
    let m = S::from_bits(S::iadd(S::iand(bits, S::isplat(0x7f_ffff)), offset));
    (S::sub(m, S::splat(1.0)), e)
}

/// NaN below zero, -inf at zero, `x` at infinity and NaN.
#[inline(always)]
unsafe fn log_limits<S: Simd>(x: S::V, y: S::V) -> S::V {
    let y = S::select(S::lt(x, S::zero()), S::splat(f32::NAN), y);
    let y = S::select(S::eq(x, S::zero()), S::splat(f32::NEG_INFINITY), y);
    S::select(S::lt(x, S::splat(f32::INFINITY)), y, S::add(x, x))
}

#[inline(always)]
pub(crate) unsafe fn log<S: Simd>(x: S::V) -> S::V {
    let (f, e) = log_parts::<S>(x);
    log_limits::<S>(x, log_poly::<S>(f, e))
}

#[inline(always)]
pub(crate) unsafe fn log2<S: Simd>(x: S::V) -> S::V {
    let (f, e) = log_parts::<S>(x);
    let y = S::fma(log_poly::<S>(f, S::zero()), S::splat(LOG2E), e);
    log_limits::<S>(x, y)
}

#[inline(always)]
pub(crate) unsafe fn log1p<S: Simd>(x: S::V) -> S::V {
    let one = S::splat(1.0);
    let u = S::add(one, x);
    // What rounding 1 + x lost.
    let big = S::lt(one, x);
    let lost = S::select(big, S::sub(one, S::sub(u, x)), S::sub(x, S::sub(u, one)));
    let (f, e) = log_parts::<S>(u);
    let y = S::add(log_poly::<S>(f, e), S::div(lost, u));
    let near = log_poly::<S>(x, S::zero());
    let inside = S::select(
        S::lt(x, S::splat(0.414)),
        S::select(S::lt(S::splat(-0.292), x), near, y),
        y,
    );
    let y = log_limits::<S>(u, inside);
    tiny_or::<S>(x, y)
}

#[inline(always)]
pub(crate) unsafe fn tanh<S: Simd>(x: S::V) -> S::V {
    let t = S::abs(x);
    let z = S::mul(x, x);
    let p = poly::<S>(
        z,
        &[
            -5.704_988_727_45e-3,
            2.063_908_879_54e-2,
            -5.373_971_555_31e-2,
            1.333_144_220_36e-1,
            -3.333_328_194_22e-1,
        ],
    );
    let small = S::fma(S::mul(p, z), x, x);
    let e = exp::<S>(S::add(t, t));
    let one = S::splat(1.0);
    let large = S::sub(one, S::div(S::splat(2.0), S::add(e, one)));
    tiny_or::<S>(x, S::select(S::lt(t, S::splat(0.625)), small, S::with_sign(large, x)))
}

#[inline(always)]
pub(crate) unsafe fn sigmoid<S: Simd>(x: S::V) -> S::V {
    // exp of a negative number only: no overflow, and small results keep their relative precision.
    let e = exp::<S>(S::neg(S::abs(x)));
    let one = S::splat(1.0);
    S::div(S::select(S::lt(x, S::zero()), e, one), S::add(one, e))
}

/// `erf` of |x| < 0.93.
#[inline(always)]
unsafe fn erf_small<S: Simd>(x: S::V) -> S::V {
    let s = S::mul(x, x);
    let r = poly::<S>(
        s,
        &[
            -5.967_617_03e-4,
            4.991_194_23e-3,
            -2.676_813_49e-2,
            1.128_199_25e-1,
            -3.761_253_36e-1,
            1.283_791_66e-1,
        ],
    );
    S::fma(r, x, x)
}

/// `erfc(t)` for t > 0.92, in good relative precision to about 4.
#[inline(always)]
unsafe fn erfc_large<S: Simd>(t: S::V) -> S::V {
    let s = S::mul(t, t);
    let r = S::fma(S::splat(-1.728_534_70e-5), t, S::splat(3.831_971_26e-4));
    let u = S::fma(S::splat(-3.883_964_38e-3), t, S::splat(2.425_462_19e-2));
    let r = S::fma(r, s, u);
    let r = S::fma(r, t, S::splat(-1.067_778_77e-1));
    let r = S::fma(r, t, S::splat(-6.348_466_87e-1));
    let r = S::fma(r, t, S::splat(-1.287_175_12e-1));
    let r = S::fma(r, t, S::neg(t));
    exp::<S>(r)
}

const ERF_SPLIT: f32 = 0.927_734_375;

#[inline(always)]
pub(crate) unsafe fn erf<S: Simd>(x: S::V) -> S::V {
    let t = S::abs(x);
    // erf is 1 in f32 from 3.92 on; the clamp keeps the polynomial in its range (and NaN).
    let large = S::sub(S::splat(1.0), erfc_large::<S>(S::min(S::splat(4.0), t)));
    S::select(S::le(t, S::splat(ERF_SPLIT)), erf_small::<S>(x), S::with_sign(large, x))
}

/// `x Φ(x)`; the lower tail comes from erfc, so it does not cancel.
#[inline(always)]
pub(crate) unsafe fn gelu<S: Simd>(x: S::V) -> S::V {
    let u = S::mul(x, S::splat(std::f32::consts::FRAC_1_SQRT_2));
    let t = S::abs(u);
    let tail = S::mul(S::splat(0.5), erfc_large::<S>(t));
    let far = S::select(S::lt(u, S::zero()), tail, S::sub(S::splat(1.0), tail));
    let near = S::fma(S::splat(0.5), erf_small::<S>(u), S::splat(0.5));
    S::mul(x, S::select(S::le(t, S::splat(ERF_SPLIT)), near, far))
}

/// `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`, as `x sigmoid(2 ..)`.
#[inline(always)]
pub(crate) unsafe fn gelu_tanh<S: Simd>(x: S::V) -> S::V {
    let c = 2.0 * 0.797_884_560_802_865_4_f32;
    let inner = S::mul(x, S::fma(S::mul(x, x), S::splat(c * 0.044_715), S::splat(c)));
    S::mul(x, sigmoid::<S>(inner))
}

#[inline(always)]
pub(crate) unsafe fn softplus<S: Simd>(x: S::V) -> S::V {
    S::add(S::max(S::zero(), x), log1p::<S>(exp::<S>(S::neg(S::abs(x)))))
}

/// `x tanh(softplus(x))`, by tanh(log(1 + e)) = (e² + 2e) / (e² + 2e + 2).
#[inline(always)]
pub(crate) unsafe fn mish<S: Simd>(x: S::V) -> S::V {
    let e = exp::<S>(S::min(S::splat(30.0), x));
    let a = S::mul(e, S::add(e, S::splat(2.0)));
    S::mul(x, S::div(a, S::add(a, S::splat(2.0))))
}

/// `(sin(x), cos(x))`, one of which the caller drops.
#[inline(always)]
pub(crate) unsafe fn sin_cos<S: Simd>(x: S::V, want_sin: bool) -> S::V {
    let n = S::round(S::mul(x, S::splat(std::f32::consts::FRAC_2_PI)));
    let r = S::fma(n, S::splat(-1.570_312_5), x);
    let r = S::fma(n, S::splat(-4.837_512_969_970_703_125e-4), r);
    let r = S::fma(n, S::splat(-7.549_789_954_891_88e-8), r);
    let z = S::mul(r, r);
    let sin = poly::<S>(z, &[-1.951_529_589_1e-4, 8.332_160_873_6e-3, -1.666_665_461_1e-1]);
    let sin = S::fma(S::mul(sin, z), r, r);
    let cos = poly::<S>(
        z,
        &[
            2.443_315_711_809_948e-5,
            -1.388_731_625_493_765e-3,
            4.166_664_568_298_827e-2,
        ],
    );
    let cos = S::add(S::fma(S::mul(cos, z), z, S::mul(z, S::splat(-0.5))), S::splat(1.0));
    let q = S::to_int(n);
    let q = if want_sin { q } else { S::iadd(q, S::isplat(1)) };
    let odd = S::ieq(S::iand(q, S::isplat(1)), S::isplat(1));
    let y = S::select(odd, cos, sin);
    let flip = S::shl::<30>(S::iand(q, S::isplat(2)));
    let y = S::from_bits(S::ixor(S::bits(y), flip));
    let y = if want_sin { tiny_or::<S>(x, y) } else { y };
    // Past this the three-part π/2 runs out of bits: lane by lane in f64 (also NaN and infinities).
    let fits = S::le(S::abs(x), S::splat(8192.0));
    if S::any(S::ieq(
        S::bits(S::select(fits, S::zero(), S::splat(1.0))),
        S::isplat(0x3f80_0000),
    )) {
        let (mut lanes, mut out) = ([0.0f32; 16], [0.0f32; 16]);
        S::store(lanes.as_mut_ptr(), x);
        S::store(out.as_mut_ptr(), y);
        for (lane, out) in lanes.iter().zip(&mut out).take(S::LANES) {
            // A lane's result must not depend on its neighbours.
            let fits = lane.abs() <= 8192.0;
            let wide = f64::from(*lane);
            if !fits {
                *out = if want_sin { wide.sin() } else { wide.cos() } as f32;
            }
        }
        return S::load(out.as_ptr());
    }
    y
}

/// `x^y` by f64 arithmetic, to half an ulp or so; C's `pow` at the special values. Branchless, for the vectoriser.
#[inline(always)]
pub(crate) fn pow1(x: f32, y: f32) -> f32 {
    let (xw, yw) = (f64::from(x), f64::from(y));
    let bits = xw.abs().to_bits() as i64;
    let offset = 0x3fe6_a09e_667f_3bcd_i64;
    let shifted = bits.wrapping_sub(offset);
    // 2^52 + 2^51 + e as bits: an integer to f64 without the missing instruction.
    let e = f64::from_bits((0x4338_0000_0000_0000_i64.wrapping_add(shifted >> 52)) as u64) - 6_755_399_441_055_744.0;
    let m = f64::from_bits(((shifted & 0xf_ffff_ffff_ffff) + offset) as u64);
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let p = ((((z * (1.0 / 13.0) + 1.0 / 11.0) * z + 1.0 / 9.0) * z + 1.0 / 7.0) * z + 1.0 / 5.0) * z + 1.0 / 3.0;
    let log2 = e + (s + s * z * p) * (2.0 * std::f64::consts::LOG2_E);
    let t = yw * log2;
    let t = if t > 200.0 { 200.0 } else { t };
    let t = if t < -200.0 { -200.0 } else { t };
    let magic = 6_755_399_441_055_744.0;
    let shifted = t + magic;
    let n = shifted - magic;
    let r = (t - n) * std::f64::consts::LN_2;
    let mut q = 1.0 / 40320.0;
    q = q * r + 1.0 / 5040.0;
    q = q * r + 1.0 / 720.0;
    q = q * r + 1.0 / 120.0;
    q = q * r + 1.0 / 24.0;
    q = q * r + 1.0 / 6.0;
    q = q * r + 0.5;
    q = q * r + 1.0;
    q = q * r + 1.0;
    let scale = f64::from_bits((((shifted.to_bits() as i64) + 1023) << 52) as u64);
    let magnitude = q * scale;
    let ax = xw.abs();
    let inf = f64::INFINITY;
    let magnitude = if ax == 0.0 || ax == inf {
        if (ax == 0.0) == (yw > 0.0) { 0.0 } else { inf }
    } else {
        magnitude
    };
    let magnitude = if yw.abs() == inf {
        if (ax > 1.0) == (yw > 0.0) { inf } else { 0.0 }
    } else {
        magnitude
    };
    let magnitude = if ax == 1.0 { 1.0 } else { magnitude };
    let integer = yw.trunc() == yw;
    let half = yw * 0.5;
    let odd = integer && half.trunc() != half;
    let negative = xw.to_bits() >> 63 != 0;
    let signed = if negative && odd { -magnitude } else { magnitude };
    let signed = if xw < 0.0 && !integer && ax != inf {
        f64::NAN
    } else {
        signed
    };
    let signed = if x.is_nan() || y.is_nan() { f64::NAN } else { signed };
    let one = y == 0.0 || x == 1.0;
    (if one { 1.0 } else { signed }) as f32
}
