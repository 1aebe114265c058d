// Element types that hold bits only, and conversions between all element types.
//
// Arithmetic happens in float, double and integers; narrow types are loaded, stored and converted. Floats round to
// nearest even; float to integer truncates and saturates, NaN gives 0; integers wrap; number to bool is "not zero".
#pragma once
#include "graphc_platform.hip.h"

namespace graphc {

struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct f8e4m3fn { u8 bits; };
struct f8e4m3fnuz { u8 bits; };
struct f8e5m2 { u8 bits; };
struct f8e5m2fnuz { u8 bits; };
/// 4-bit integers, two to a byte in memory, low nibble first; here one in its own byte.
struct i4 { i8 value; };
struct u4 { u8 value; };

template <typename T> GRAPHC_DEVICE T infinity();
template <> GRAPHC_DEVICE float infinity<float>() { return bits_as<float>(0x7f800000u); }
template <> GRAPHC_DEVICE double infinity<double>() { return bits_as<double>((u64)0x7ff0000000000000ul); }
template <typename T> GRAPHC_DEVICE T not_a_number();
template <> GRAPHC_DEVICE float not_a_number<float>() { return bits_as<float>(0x7fc00000u); }
template <> GRAPHC_DEVICE double not_a_number<double>() { return bits_as<double>((u64)0x7ff8000000000000ul); }

// ---- f16

GRAPHC_DEVICE float f16_to_float(u16 h) {
#if defined(GRAPHC_AMD)
    return (float)bits_as<_Float16>(h);
#elif defined(GRAPHC_CUDA)
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
#else
    const u32 sign = (u32)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31) return bits_as<float>(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0) return bits_as<float>(sign | (exponent + 112) << 23 | mantissa << 13);
    const float magnitude = (float)mantissa * 5.9604644775390625e-8f;  // 2^-24
    return sign ? -magnitude : magnitude;
#endif
}

GRAPHC_DEVICE u16 float_to_f16(float f) {
#if defined(GRAPHC_AMD)
    return bits_as<u16>((_Float16)f);
#elif defined(GRAPHC_CUDA)
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
#else
    const u32 bits = bits_as<u32>(f), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (u16)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000u) return (u16)(sign | 0x7c00);  // 65520 and above
    if (magnitude < 0x38800000u) {                              // below 2^-14: steps of 2^-24
        const float steps = bits_as<float>(magnitude) * 16777216.0f;
        return (u16)(sign | (u32)::rintf(steps));
    }
    const u32 rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
    return (u16)(sign | (rounded - 0x38000000u) >> 13);
#endif
}

// ---- bf16: the upper half of a float

GRAPHC_DEVICE float bf16_to_float(u16 h) { return bits_as<float>((u32)h << 16); }

GRAPHC_DEVICE u16 float_to_bf16(float f) {
    const u32 bits = bits_as<u32>(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40);
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// ---- fp8

// Targets convert the family that they multiply.
#if defined(__gfx942__)
#define GRAPHC_CONVERTS_FNUZ
#elif defined(__gfx950__) || defined(__GFX12__)
#define GRAPHC_CONVERTS_OCP
#endif

/// Decodes `EXPONENT` exponent bits and `MANTISSA` mantissa bits; NaN and infinity are the callers' business. The bits
/// are put where a float has them, and a product makes the exponent right, of subnormal numbers too.
template <int EXPONENT, int MANTISSA, int BIAS>
GRAPHC_DEVICE float decode_f8(u8 bits) {
    const u32 sign = (u32)(bits & 0x80) << 24, magnitude = (u32)(bits & 0x7f) << (23 - MANTISSA);
    const float scale = bits_as<float>((u32)(127 + 127 - BIAS) << 23);
    return bits_as<float>(bits_as<u32>(bits_as<float>(magnitude) * scale) | sign);
}

/// Encodes a finite magnitude to nearest even, without its sign; too large gives a code above the format's largest.
template <int EXPONENT, int MANTISSA, int BIAS>
GRAPHC_DEVICE u32 encode_f8(float magnitude) {
    const u32 bits = bits_as<u32>(magnitude);
    if (bits < ((u32)(127 + 1 - BIAS) << 23)) {
        const float per_step = bits_as<float>((u32)(127 - 1 + BIAS + MANTISSA) << 23);
        return (u32)::rintf(magnitude * per_step);
    }
    const u32 rounded = bits + ((1u << (22 - MANTISSA)) - 1u) + (bits >> (23 - MANTISSA) & 1u);
    return (rounded - ((u32)(127 - BIAS) << 23)) >> (23 - MANTISSA);
}

GRAPHC_DEVICE bool is_nan_bits(float f) { return (bits_as<u32>(f) & 0x7fffffffu) > 0x7f800000u; }
GRAPHC_DEVICE float magnitude_of(float f) { return bits_as<float>(bits_as<u32>(f) & 0x7fffffffu); }
GRAPHC_DEVICE u8 sign_of(float f) { return (u8)(bits_as<u32>(f) >> 24 & 0x80); }

/// OCP e4m3: no infinity; out of range saturates at 448.
GRAPHC_DEVICE u8 float_to_e4m3fn(float f) {
#if defined(GRAPHC_CONVERTS_OCP)
    const float inside = f != f ? f : __builtin_amdgcn_fmed3f(f, -448.0f, 448.0f);
    return (u8)__builtin_amdgcn_cvt_pk_fp8_f32(inside, 0.0f, 0, false);
#endif
    if (is_nan_bits(f)) return 0x7f;
    const float magnitude = magnitude_of(f);
    const u32 code = magnitude >= 464.0f ? 0x7e : encode_f8<4, 3, 7>(magnitude);
    return (u8)(sign_of(f) | (code > 0x7e ? 0x7e : code));
}
GRAPHC_DEVICE float e4m3fn_to_float(u8 b) {
#if defined(GRAPHC_CONVERTS_OCP)
    return __builtin_amdgcn_cvt_f32_fp8((int)b, 0);
#endif
    return (b & 0x7f) == 0x7f ? not_a_number<float>() : decode_f8<4, 3, 7>(b);
}

/// OCP e5m2: as IEEE's formats; out of range gives infinity.
GRAPHC_DEVICE u8 float_to_e5m2(float f) {
#if defined(GRAPHC_CONVERTS_OCP)
    return (u8)__builtin_amdgcn_cvt_pk_bf8_f32(f, 0.0f, 0, false);
#endif
    if (is_nan_bits(f)) return (u8)(sign_of(f) | 0x7e);
    const float magnitude = magnitude_of(f);
    const u32 code = magnitude >= 61440.0f ? 0x7c : encode_f8<5, 2, 15>(magnitude);
    return (u8)(sign_of(f) | code);
}
GRAPHC_DEVICE float e5m2_to_float(u8 b) {
#if defined(GRAPHC_CONVERTS_OCP)
    return __builtin_amdgcn_cvt_f32_bf8((int)b, 0);
#endif
    if ((b & 0x7f) > 0x7c) return not_a_number<float>();
    if ((b & 0x7f) == 0x7c) return b & 0x80 ? -infinity<float>() : infinity<float>();
    return decode_f8<5, 2, 15>(b);
}

/// FNUZ: no infinity, no negative zero, one NaN (0x80), which is also what out of range gives.
template <int EXPONENT, int MANTISSA, int BIAS>
GRAPHC_DEVICE u8 float_to_fnuz(float f) {
#if defined(GRAPHC_CONVERTS_FNUZ)
    if constexpr (EXPONENT == 4) return (u8)__builtin_amdgcn_cvt_pk_fp8_f32(f, 0.0f, 0, false);
    else return (u8)__builtin_amdgcn_cvt_pk_bf8_f32(f, 0.0f, 0, false);
#endif
    const float magnitude = magnitude_of(f);
    if (!(magnitude < 65536.0f)) return 0x80;
    const u32 code = encode_f8<EXPONENT, MANTISSA, BIAS>(magnitude);
    if (code > 0x7f) return 0x80;
    return (u8)(code == 0 ? 0 : sign_of(f) | code);
}
template <int EXPONENT, int MANTISSA, int BIAS>
GRAPHC_DEVICE float fnuz_to_float(u8 b) {
#if defined(GRAPHC_CONVERTS_FNUZ)
    if constexpr (EXPONENT == 4) return __builtin_amdgcn_cvt_f32_fp8((int)b, 0);
    else return __builtin_amdgcn_cvt_f32_bf8((int)b, 0);
#endif
    return b == 0x80 ? not_a_number<float>() : decode_f8<EXPONENT, MANTISSA, BIAS>(b);
}

// ---- cast<To>(x)

GRAPHC_DEVICE float widen(f16 x) { return f16_to_float(x.bits); }
GRAPHC_DEVICE float widen(bf16 x) { return bf16_to_float(x.bits); }
GRAPHC_DEVICE float widen(f8e4m3fn x) { return e4m3fn_to_float(x.bits); }
GRAPHC_DEVICE float widen(f8e4m3fnuz x) { return fnuz_to_float<4, 3, 8>(x.bits); }
GRAPHC_DEVICE float widen(f8e5m2 x) { return e5m2_to_float(x.bits); }
GRAPHC_DEVICE float widen(f8e5m2fnuz x) { return fnuz_to_float<5, 2, 16>(x.bits); }
GRAPHC_DEVICE i8 widen(i4 x) { return x.value; }
GRAPHC_DEVICE u8 widen(u4 x) { return x.value; }
GRAPHC_DEVICE float widen(float x) { return x; }
GRAPHC_DEVICE double widen(double x) { return x; }
GRAPHC_DEVICE i64 widen(i64 x) { return x; }
GRAPHC_DEVICE i32 widen(i32 x) { return x; }
GRAPHC_DEVICE i16 widen(i16 x) { return x; }
GRAPHC_DEVICE i8 widen(i8 x) { return x; }
GRAPHC_DEVICE u8 widen(u8 x) { return x; }
GRAPHC_DEVICE bool widen(bool x) { return x; }

/// Truncates; out of range saturates, NaN gives 0.
template <typename F>
GRAPHC_DEVICE i64 truncate(F x, i64 low, i64 high) {
    if (!(x == x)) return 0;
    if (x <= (F)low) return low;
    if (x >= (F)high) return high;
    return (i64)x;
}

template <typename To> struct CastTo;
template <> struct CastTo<float> { template <typename T> static GRAPHC_DEVICE float from(T x) { return (float)x; } };
template <> struct CastTo<double> { template <typename T> static GRAPHC_DEVICE double from(T x) { return (double)x; } };
template <> struct CastTo<bool> { template <typename T> static GRAPHC_DEVICE bool from(T x) { return x != (T)0; } };
template <> struct CastTo<f16> { template <typename T> static GRAPHC_DEVICE f16 from(T x) { return f16{float_to_f16((float)x)}; } };
template <> struct CastTo<bf16> { template <typename T> static GRAPHC_DEVICE bf16 from(T x) { return bf16{float_to_bf16((float)x)}; } };
template <> struct CastTo<f8e4m3fn> {
    template <typename T> static GRAPHC_DEVICE f8e4m3fn from(T x) { return f8e4m3fn{float_to_e4m3fn((float)x)}; }
};
template <> struct CastTo<f8e4m3fnuz> {
    template <typename T> static GRAPHC_DEVICE f8e4m3fnuz from(T x) { return f8e4m3fnuz{float_to_fnuz<4, 3, 8>((float)x)}; }
};
template <> struct CastTo<f8e5m2> {
    template <typename T> static GRAPHC_DEVICE f8e5m2 from(T x) { return f8e5m2{float_to_e5m2((float)x)}; }
};
template <> struct CastTo<f8e5m2fnuz> {
    template <typename T> static GRAPHC_DEVICE f8e5m2fnuz from(T x) { return f8e5m2fnuz{float_to_fnuz<5, 2, 16>((float)x)}; }
};

template <typename T, i64 LOW, i64 HIGH>
struct CastToInt {
    static GRAPHC_DEVICE T from(float x) { return (T)truncate(x, LOW, HIGH); }
    static GRAPHC_DEVICE T from(double x) { return (T)truncate(x, LOW, HIGH); }
    template <typename I> static GRAPHC_DEVICE T from(I x) { return (T)x; }
};
template <> struct CastTo<i64> : CastToInt<i64, -9223372036854775807l - 1, 9223372036854775807l> {};
template <> struct CastTo<i32> : CastToInt<i32, -2147483648l, 2147483647l> {};
template <> struct CastTo<i16> : CastToInt<i16, -32768, 32767> {};
template <> struct CastTo<i8> : CastToInt<i8, -128, 127> {};
template <> struct CastTo<u8> : CastToInt<u8, 0, 255> {};
template <> struct CastTo<i4> {
    template <typename T> static GRAPHC_DEVICE i4 from(T x) { return wrap((i64)x); }
    static GRAPHC_DEVICE i4 from(float x) { return wrap(truncate(x, -8, 7)); }
    static GRAPHC_DEVICE i4 from(double x) { return wrap(truncate(x, -8, 7)); }
    static GRAPHC_DEVICE i4 wrap(i64 x) { return i4{(i8)((i64)((u64)x << 60) >> 60)}; }
};
template <> struct CastTo<u4> {
    template <typename T> static GRAPHC_DEVICE u4 from(T x) { return u4{(u8)((i64)x & 15)}; }
    static GRAPHC_DEVICE u4 from(float x) { return u4{(u8)truncate(x, 0, 15)}; }
    static GRAPHC_DEVICE u4 from(double x) { return u4{(u8)truncate(x, 0, 15)}; }
};

/// Converts between any two element types.
template <typename To, typename From>
GRAPHC_DEVICE To cast(From x) {
    return CastTo<To>::from(widen(x));
}

}  // namespace graphc
