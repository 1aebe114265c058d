//! The float formats and the functions of the hardware's approximations, on bits.

/// Widens f16 bits to f32, denormals included.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u32) -> f32 {
    let magnitude = (bits & 0x7fff) << 13;
    let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | (bits & 0x8000) << 16)
}

/// Rounds f32 to f16 bits, to nearest even.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = bits >> 16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let normal = magnitude
        .wrapping_sub(112 << 23)
        .wrapping_add(0xfff + (magnitude >> 13 & 1))
        >> 13;
    let denormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let finite = if magnitude < 0x3880_0000 { denormal } else { normal };
    let result = if magnitude > 0x7f80_0000 {
        0x7e00 | magnitude >> 13 & 0x3ff
    } else if magnitude >= 0x477f_f000 {
        0x7c00
    } else {
        finite
    };
    sign | result
}

/// Rounds f32 to f16 bits towards zero.
#[inline(always)]
pub(crate) fn f32_to_f16_rtz(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = bits >> 16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let result = if magnitude > 0x7f80_0000 {
        0x7e00
    } else if magnitude == 0x7f80_0000 {
        0x7c00
    } else if magnitude >= 0x4780_0000 {
        0x7bff
    } else if magnitude >= 0x3880_0000 {
        (magnitude - (112 << 23)) >> 13
    } else {
        (f32::from_bits(magnitude) * 16_777_216.0) as u32
    };
    sign | result
}

/// Rounds f64 to f16 bits once, to nearest even.
#[inline]
pub(crate) fn f64_to_f16(value: f64) -> u32 {
    // Rounding to odd at f32's precision keeps what the second rounding needs to know.
    f32_to_f16(f64_to_f32_odd(value))
}

/// Rounds f64 to f32 so that a later rounding to fewer bits is exact: an inexact result gets an odd last bit.
#[inline]
pub(crate) fn f64_to_f32_odd(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    if back == value || value.is_nan() || near.is_infinite() {
        return near;
    }
    let bits = near.to_bits();
    // Step to the neighbour towards zero if `near` is larger in magnitude, then set the last bit.
    let toward_zero = if back.abs() > value.abs() { bits - 1 } else { bits };
    f32::from_bits(toward_zero | 1)
}

/// Rounds f32 to bf16 bits, to nearest even.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return bits >> 16 | 0x40;
    }
    (bits + 0x7fff + (bits >> 16 & 1)) >> 16
}

/// Widens bf16 bits to f32.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u32) -> f32 {
    f32::from_bits(bits << 16)
}

/// A float format of at most 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Small {
    pub exponent_bits: u32,
    pub mantissa_bits: u32,
    pub bias: i32,
    /// FNUZ: one NaN (0x80), no infinity, no negative zero.
    pub fnuz: bool,
    /// Whether an all-ones exponent holds infinities and NaNs as in IEEE 754.
    pub infinities: bool,
    /// Whether NaN exists at all.
    pub nan: bool,
}

impl Small {
    pub const E4M3_OCP: Small = Small {
        exponent_bits: 4,
        mantissa_bits: 3,
        bias: 7,
        fnuz: false,
        infinities: false,
        nan: true,
    };
    pub const E5M2_OCP: Small = Small {
        exponent_bits: 5,
        mantissa_bits: 2,
        bias: 15,
        fnuz: false,
        infinities: true,
        nan: true,
    };
    pub const E4M3_FNUZ: Small = Small {
        exponent_bits: 4,
        mantissa_bits: 3,
        bias: 8,
        fnuz: true,
        infinities: false,
        nan: true,
    };
    pub const E5M2_FNUZ: Small = Small {
        exponent_bits: 5,
        mantissa_bits: 2,
        bias: 16,
        fnuz: true,
        infinities: false,
        nan: true,
    };
    pub const F16: Small = Small {
        exponent_bits: 5,
        mantissa_bits: 10,
        bias: 15,
        fnuz: false,
        infinities: true,
        nan: true,
    };
    pub const BF16: Small = Small {
        exponent_bits: 8,
        mantissa_bits: 7,
        bias: 127,
        fnuz: false,
        infinities: true,
        nan: true,
    };
    pub const E2M3: Small = Small {
        exponent_bits: 2,
        mantissa_bits: 3,
        bias: 1,
        fnuz: false,
        infinities: false,
        nan: false,
    };
    pub const E3M2: Small = Small {
        exponent_bits: 3,
        mantissa_bits: 2,
        bias: 3,
        fnuz: false,
        infinities: false,
        nan: false,
    };
    pub const E2M1: Small = Small {
        exponent_bits: 2,
        mantissa_bits: 1,
        bias: 1,
        fnuz: false,
        infinities: false,
        nan: false,
    };

    /// The format of `v_cvt_*_fp8` (or bf8) on an arch.
    pub fn of(fnuz: bool, bf8: bool) -> Small {
        match (fnuz, bf8) {
            (true, false) => Small::E4M3_FNUZ,
            (true, true) => Small::E5M2_FNUZ,
            (false, false) => Small::E4M3_OCP,
            (false, true) => Small::E5M2_OCP,
        }
    }

    /// The value of `bits`.
    pub fn decode(self, bits: u32) -> f32 {
        let m = self.mantissa_bits;
        let sign_bit = bits >> (self.exponent_bits + m) & 1;
        let exponent = bits >> m & ((1 << self.exponent_bits) - 1);
        let mantissa = bits & ((1 << m) - 1);
        let top = (1 << self.exponent_bits) - 1;
        if self.fnuz && sign_bit == 1 && exponent == 0 && mantissa == 0 {
            return f32::NAN;
        }
        if self.infinities && exponent == top {
            let value = if mantissa == 0 { f32::INFINITY } else { f32::NAN };
            return if sign_bit == 1 { -value } else { value };
        }
        if !self.fnuz && !self.infinities && self.nan && exponent == top && mantissa == (1 << m) - 1 {
            return f32::NAN;
        }
        let value = if exponent == 0 {
            mantissa as f32 * exp2i(1 - self.bias - m as i32)
        } else {
            ((1 << m) | mantissa) as f32 * exp2i(exponent as i32 - self.bias - m as i32)
        };
        if sign_bit == 1 { -value } else { value }
    }

    /// The largest finite value's bits, without the sign.
    fn max_bits(self) -> u32 {
        let all = (1 << (self.exponent_bits + self.mantissa_bits)) - 1;
        if self.fnuz || !self.nan {
            all
        } else if self.infinities {
            all - (1 << self.mantissa_bits)
        } else {
            all - 1
        }
    }

    fn nan_bits(self) -> u32 {
        if self.fnuz {
            0x80
        } else {
            (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        }
    }

    /// Rounds `value`: to nearest even, or up with probability given by `random`'s upper bits (stochastic).
    /// Overflow saturates to the largest finite value where `saturate`, as the hardware does with FP16_OVFL.
    pub fn encode(self, value: f32, random: Option<u32>, saturate: bool) -> u32 {
        self.encode64(value.into(), random, saturate)
    }

    /// The same of a value that is an f32 but for its exponent.
    pub fn encode64(self, value: f64, random: Option<u32>, saturate: bool) -> u32 {
        let m = self.mantissa_bits;
        let sign = u32::from(value.is_sign_negative()) << (self.exponent_bits + m);
        if value.is_nan() {
            return if self.fnuz { 0x80 } else { sign | self.nan_bits() };
        }
        let magnitude = value.abs();
        let overflow = if saturate && magnitude.is_finite() {
            sign | self.max_bits()
        } else if self.infinities {
            sign | ((1 << self.exponent_bits) - 1) << m
        } else if !self.nan {
            sign | self.max_bits()
        } else {
            self.nan_bits() | if self.fnuz { 0 } else { sign }
        };
        if magnitude.is_infinite() {
            return overflow;
        }
        if magnitude == 0.0 {
            return if self.fnuz { 0 } else { sign };
        }
        // The unit of the last place: that of the value's binade, not below that of the denormals.
        let exponent = (magnitude.to_bits() >> 52) as i32 - 1023;
        let unit_exponent = exponent.max(1 - self.bias) - m as i32;
        let scaled = magnitude * exp2d(-unit_exponent);
        let floor = scaled.floor();
        let rest = scaled - floor;
        let up = match random {
            None => rest > 0.5 || (rest == 0.5 && floor % 2.0 == 1.0),
            Some(random) => (rest * 4_294_967_296.0) + f64::from(random) >= 4_294_967_296.0,
        };
        let units = floor as u32 + u32::from(up);
        // Units carry into the exponent field by themselves.
        let base = (unit_exponent + m as i32 - (1 - self.bias)) as u32;
        let bits = if units < 1 << m { units } else { (base << m) + units };
        if bits > self.max_bits() {
            return overflow;
        }
        if bits == 0 && self.fnuz {
            return 0;
        }
        sign | bits
    }
}

/// 2 to the power `n` as f32, for `n` in the normal and denormal range.
pub(crate) fn exp2i(n: i32) -> f32 {
    exp2d(n) as f32
}

/// 2 to the power `n` as f64, for `n` in the normal range.
pub(crate) fn exp2d(n: i32) -> f64 {
    f64::from_bits(((n.clamp(-1022, 1023) + 1023) as u64) << 52)
}

/// `value` times 2 to the power `n`, rounded once.
#[inline]
pub(crate) fn ldexp32(value: f32, n: i32) -> f32 {
    // f64 holds every product exactly as long as the exponent is in its range.
    (f64::from(value) * exp2d(n.clamp(-400, 400))) as f32
}

/// `value` times 2 to the power `n`, rounded once.
pub(crate) fn ldexp64(value: f64, n: i32) -> f64 {
    let n = n.clamp(-4200, 4200);
    let mut value = value;
    let mut left = n;
    if left > 0 {
        while left > 1000 {
            value *= exp2d(1000);
            left -= 1000;
        }
        return value * exp2d(left);
    }
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    // Scale down through the normal range exactly, then round once at the end.
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i32;
    if exponent == 0 {
        return value * exp2d(left.max(-1022)) * exp2d((left + 1022).clamp(-1022, 0));
    }
    let exact = left.max(-(exponent - 1));
    value *= exp2d((exact / 2).max(-1022));
    value *= exp2d((exact - exact / 2).max(-1022));
    left -= exact;
    if left < -60 {
        return if value.is_sign_negative() { -0.0 } else { 0.0 };
    }
    value * exp2d(left)
}

/// Clears a denormal to a zero of its sign.
#[inline(always)]
pub(crate) fn flush32(value: f32) -> f32 {
    let bits = value.to_bits();
    if bits & 0x7f80_0000 == 0 {
        f32::from_bits(bits & 0x8000_0000)
    } else {
        value
    }
}

/// The IEEE minimum of the hardware: a number beats a NaN, -0 is below +0.
#[inline(always)]
pub(crate) fn min32(a: f32, b: f32) -> f32 {
    let less = if a < b { a } else { b };
    let ordered = if a == b {
        f32::from_bits(a.to_bits() | b.to_bits())
    } else {
        less
    };
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        ordered
    }
}

/// The IEEE maximum of the hardware.
#[inline(always)]
pub(crate) fn max32(a: f32, b: f32) -> f32 {
    let more = if a > b { a } else { b };
    let ordered = if a == b {
        f32::from_bits(a.to_bits() & b.to_bits())
    } else {
        more
    };
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        ordered
    }
}

/// The IEEE minimum in f64.
pub(crate) fn min64(a: f64, b: f64) -> f64 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a < b {
        a
    } else if a == b {
        f64::from_bits(a.to_bits() | b.to_bits())
    } else {
        b
    }
}

/// The IEEE maximum in f64.
pub(crate) fn max64(a: f64, b: f64) -> f64 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a > b {
        a
    } else if a == b {
        f64::from_bits(a.to_bits() & b.to_bits())
    } else {
        b
    }
}

/// The middle of three; the smallest where one is a NaN.
#[inline(always)]
pub(crate) fn med32(a: f32, b: f32, c: f32) -> f32 {
    if a.is_nan() || b.is_nan() || c.is_nan() {
        return min32(min32(a, b), c);
    }
    max32(min32(a, b), min32(max32(a, b), c))
}

/// v_exp_f32: 2 to the power x, denormals flushed in and out.
#[inline(always)]
pub(crate) fn exp2_f32(x: f32) -> f32 {
    flush32(f64::from(flush32(x)).exp2() as f32)
}

/// v_log_f32: the binary logarithm, denormal inputs read as zero.
#[inline(always)]
pub(crate) fn log2_f32(x: f32) -> f32 {
    flush32(f64::from(flush32(x)).log2() as f32)
}

/// v_rcp_f32, denormals flushed.
#[inline(always)]
pub(crate) fn rcp_f32(x: f32) -> f32 {
    flush32(1.0 / flush32(x))
}

/// v_rsq_f32, denormals flushed.
#[inline(always)]
pub(crate) fn rsq_f32(x: f32) -> f32 {
    flush32((1.0 / f64::from(flush32(x)).sqrt()) as f32)
}

/// v_sqrt_f32, denormals flushed.
#[inline(always)]
pub(crate) fn sqrt_f32(x: f32) -> f32 {
    flush32(x).sqrt()
}

/// v_sin_f32: the sine of x turns; 0 for a finite x outside ±256, as the manual gives the domain.
#[inline(always)]
pub(crate) fn sin_turns(x: f64) -> f64 {
    if x.is_infinite() {
        return f64::NAN;
    }
    if x.abs() > 256.0 {
        return 0.0;
    }
    let turn = x - x.round();
    (turn * std::f64::consts::TAU).sin()
}

/// v_cos_f32: the cosine of x turns; 1 for a finite x outside ±256.
#[inline(always)]
pub(crate) fn cos_turns(x: f64) -> f64 {
    if x.is_infinite() {
        return f64::NAN;
    }
    if x.abs() > 256.0 {
        return 1.0;
    }
    let turn = x - x.round();
    (turn * std::f64::consts::TAU).cos()
}

/// The unbiased exponent as the division instructions see it; a denormal has that of the smallest normal.
fn exponent32(x: f32) -> i32 {
    (x.to_bits() >> 23 & 0xff) as i32
}

fn exponent64(x: f64) -> i32 {
    (x.to_bits() >> 52 & 0x7ff) as i32
}

/// v_div_scale_f32: scales `x` (the numerator or the denominator) so that the division's steps stay in range.
/// Returns the value and whether v_div_fmas has to scale back.
pub(crate) fn div_scale32(x: f32, denominator: f32, numerator: f32) -> (f32, bool) {
    let is_denormal = |v: f64| v != 0.0 && v.abs() < f64::from(f32::MIN_POSITIVE);
    let is_denominator = x.to_bits() == denominator.to_bits();
    let is_numerator = x.to_bits() == numerator.to_bits();
    let (d, n) = (f64::from(denominator), f64::from(numerator));
    if numerator == 0.0 || denominator == 0.0 {
        (f32::NAN, false)
    } else if exponent32(numerator) - exponent32(denominator) >= 96 {
        (if is_denominator { ldexp32(x, 64) } else { x }, true)
    } else if is_denormal(d) {
        (ldexp32(x, 64), false)
    } else if is_denormal(1.0 / d) && is_denormal(n / d) {
        (if is_denominator { ldexp32(x, -64) } else { x }, true)
    } else if is_denormal(1.0 / d) {
        (ldexp32(x, -64), false)
    } else if is_denormal(n / d) {
        (if is_numerator { ldexp32(x, 64) } else { x }, true)
    } else if exponent32(numerator) <= 23 {
        (ldexp32(x, 64), false)
    } else {
        (x, false)
    }
}

/// v_div_scale_f64.
pub(crate) fn div_scale64(x: f64, denominator: f64, numerator: f64) -> (f64, bool) {
    let is_denormal = |v: f64| v != 0.0 && v.abs() < f64::MIN_POSITIVE;
    let is_denominator = x.to_bits() == denominator.to_bits();
    let is_numerator = x.to_bits() == numerator.to_bits();
    // A quotient below f64's range counts as denormal too: f64 cannot hold it as the f32 case above can.
    let quotient_tiny = exponent64(numerator) - exponent64(denominator) <= -1022;
    let (d, n) = (denominator, numerator);
    if n == 0.0 || d == 0.0 {
        (f64::NAN, false)
    } else if exponent64(n) - exponent64(d) >= 768 {
        (if is_denominator { ldexp64(x, 128) } else { x }, true)
    } else if is_denormal(d) {
        (ldexp64(x, 128), false)
    } else if is_denormal(1.0 / d) && (is_denormal(n / d) || quotient_tiny) {
        (if is_denominator { ldexp64(x, -128) } else { x }, true)
    } else if is_denormal(1.0 / d) {
        (ldexp64(x, -128), false)
    } else if is_denormal(n / d) || quotient_tiny {
        (if is_numerator { ldexp64(x, 128) } else { x }, true)
    } else if exponent64(n) <= 53 {
        (ldexp64(x, 128), false)
    } else {
        (x, false)
    }
}

/// v_div_fmas_f32: a fused multiply-add, scaled back where v_div_scale scaled one side only.
pub(crate) fn div_fmas32(a: f32, b: f32, c: f32, scaled: bool) -> f32 {
    if !scaled {
        return a.mul_add(b, c);
    }
    // Exact in f64 up to the last rounding: 24 by 24 bits, and the addend is near the sum's size.
    let sum = f64::from(a).mul_add(f64::from(b), f64::from(c));
    let scale = if exponent32(c) > 127 { 64 } else { -64 };
    let exact = sum * exp2d(scale);
    if exact.abs() < f64::from(f32::MIN_POSITIVE) || exact.abs() > f64::from(f32::MAX) {
        return exact as f32;
    }
    ldexp32(a.mul_add(b, c), scale)
}

/// v_div_fmas_f64: rounded once, after the scaling.
pub(crate) fn div_fmas64(a: f64, b: f64, c: f64, scaled: bool) -> f64 {
    let sum = a.mul_add(b, c);
    if !scaled || !sum.is_finite() {
        return sum;
    }
    let scale = if exponent64(c) > 1023 { 128 } else { -128 };
    let near = ldexp64(sum, scale);
    if near.is_normal() || scale > 0 {
        // In the normal range nothing is lost by the scaling.
        return near;
    }
    // A denormal: where the scaling met a tie, what the sum lost decides.
    let product = a * b;
    // The addend is the larger part, so this difference is exact.
    let lost = (product - (sum - c)) + a.mul_add(b, -product);
    let half = exp2d(-1075 - scale);
    let rest = sum - ldexp64(near, -scale);
    if rest == half && lost > 0.0 {
        near.next_up()
    } else if rest == -half && lost < 0.0 {
        near.next_down()
    } else {
        near
    }
}

/// v_div_fixup_f32: the special cases of the quotient of `numerator` and `denominator`.
pub(crate) fn div_fixup32(quotient: f32, denominator: f32, numerator: f32) -> f32 {
    let negative = denominator.is_sign_negative() != numerator.is_sign_negative();
    let signed = |value: f32| if negative { -value.abs() } else { value.abs() };
    if numerator.is_nan() {
        numerator
    } else if denominator.is_nan() {
        denominator
    } else if (denominator == 0.0 && numerator == 0.0) || (denominator.is_infinite() && numerator.is_infinite()) {
        f32::NAN
    } else if denominator == 0.0 || numerator.is_infinite() {
        signed(f32::INFINITY)
    } else if denominator.is_infinite() || numerator == 0.0 || exponent32(numerator) - exponent32(denominator) < -150 {
        signed(0.0)
    } else if quotient.is_nan() {
        signed(f32::INFINITY)
    } else {
        signed(quotient)
    }
}

/// v_div_fixup_f64.
pub(crate) fn div_fixup64(quotient: f64, denominator: f64, numerator: f64) -> f64 {
    let negative = denominator.is_sign_negative() != numerator.is_sign_negative();
    let signed = |value: f64| if negative { -value.abs() } else { value.abs() };
    if numerator.is_nan() {
        numerator
    } else if denominator.is_nan() {
        denominator
    } else if (denominator == 0.0 && numerator == 0.0) || (denominator.is_infinite() && numerator.is_infinite()) {
        f64::NAN
    } else if denominator == 0.0 || numerator.is_infinite() {
        signed(f64::INFINITY)
    } else if denominator.is_infinite() || numerator == 0.0 || exponent64(numerator) - exponent64(denominator) < -1075 {
        signed(0.0)
    } else if quotient.is_nan() {
        signed(f64::INFINITY)
    } else {
        signed(quotient)
    }
}

/// v_cmp_class: whether the class of a float is in the mask.
pub(crate) fn class_of(sign: bool, exponent: u64, exponent_max: u64, mantissa: u64, quiet_bit: u64) -> u32 {
    let index = if exponent == exponent_max && mantissa != 0 {
        return if mantissa & quiet_bit != 0 { 1 << 1 } else { 1 << 0 };
    } else if exponent == exponent_max {
        if sign { 2 } else { 9 }
    } else if exponent == 0 && mantissa == 0 {
        if sign { 5 } else { 6 }
    } else if exponent == 0 {
        if sign { 4 } else { 7 }
    } else if sign {
        3
    } else {
        8
    };
    1 << index
}

/// f16 fused multiply-add on bits, rounded once.
pub(crate) fn fma16(x: u32, y: u32, z: u32) -> u32 {
    let wide = |bits: u32| f64::from(f16_to_f32(bits & 0xffff));
    f64_to_f16(wide(x).mul_add(wide(y), wide(z)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_both_ways() {
        for bits in 0..=0xffffu32 {
            let value = f16_to_f32(bits);
            let reference = half::f16::from_bits(bits as u16).to_f32();
            assert!(
                value.to_bits() == reference.to_bits() || value.is_nan() && reference.is_nan(),
                "{bits:#x}"
            );
            if !value.is_nan() {
                assert_eq!(f32_to_f16(value), bits);
                assert_eq!(f32_to_f16_rtz(value), bits);
            }
        }
        for step in 0..200_000u32 {
            let value = f32::from_bits(step.wrapping_mul(0x9e37_79b9));
            if !value.is_nan() {
                assert_eq!(
                    f32_to_f16(value),
                    u32::from(half::f16::from_f32(value).to_bits()),
                    "{value:e}"
                );
            }
        }
    }

    #[test]
    fn fp8_agrees_with_float8() {
        for bits in 0..=255u8 {
            let ours = Small::E4M3_OCP.decode(bits.into());
            let theirs = float8::F8E4M3::from_bits(bits).to_f32();
            assert!(
                ours == theirs || ours.is_nan() && theirs.is_nan(),
                "{bits:#x}: {ours} {theirs}"
            );
            let ours = Small::E5M2_OCP.decode(bits.into());
            let theirs = float8::F8E5M2::from_bits(bits).to_f32();
            assert!(
                ours == theirs || ours.is_nan() && theirs.is_nan(),
                "{bits:#x}: {ours} {theirs}"
            );
            for format in [Small::E4M3_OCP, Small::E5M2_OCP, Small::E4M3_FNUZ, Small::E5M2_FNUZ] {
                let value = format.decode(bits.into());
                if !value.is_nan() {
                    assert_eq!(
                        format.encode(value, None, false),
                        u32::from(bits),
                        "{format:?} {bits:#x} {value}"
                    );
                }
            }
        }
    }
}
