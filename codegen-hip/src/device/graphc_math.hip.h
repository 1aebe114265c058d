// The elementwise members, by name. Meaning: graphc's reference evaluator; this file says it in float, double and integers.
#pragma once
#include "graphc_types.hip.h"

namespace graphc {
namespace math {

// ---- floats: each function once, for float and for double

/// `a · b + c`, rounded once. Compilers are told to fuse nothing by themselves, because each op of a model rounds its
/// result: sums of products and polynomials ask for it by this name.
#if defined(GRAPHC_CUDA)
GRAPHC_DEVICE float multiply_add(float a, float b, float c) { return ::__fmaf_rn(a, b, c); }
GRAPHC_DEVICE double multiply_add(double a, double b, double c) { return ::__fma_rn(a, b, c); }
#else
GRAPHC_DEVICE float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GRAPHC_DEVICE double multiply_add(double a, double b, double c) { return __builtin_fma(a, b, c); }
#endif

#define GRAPHC_BOTH(name, f32_function, f64_function)                 \
    GRAPHC_DEVICE float name(float x) { return f32_function(x); }     \
    GRAPHC_DEVICE double name(double x) { return f64_function(x); }
GRAPHC_BOTH(floor, ::floorf, ::floor)
GRAPHC_BOTH(ceil, ::ceilf, ::ceil)
GRAPHC_BOTH(round, ::rintf, ::rint)
GRAPHC_BOTH(trunc, ::truncf, ::trunc)
GRAPHC_BOTH(sqrt, ::sqrtf, ::sqrt)
GRAPHC_BOTH(exp, ::expf, ::exp)
GRAPHC_BOTH(expm1, ::expm1f, ::expm1)
GRAPHC_BOTH(log, ::logf, ::log)
GRAPHC_BOTH(log1p, ::log1pf, ::log1p)
GRAPHC_BOTH(exp2, ::exp2f, ::exp2)
GRAPHC_BOTH(sin, ::sinf, ::sin)
GRAPHC_BOTH(cos, ::cosf, ::cos)
GRAPHC_BOTH(tan, ::tanf, ::tan)
GRAPHC_BOTH(asin, ::asinf, ::asin)
GRAPHC_BOTH(acos, ::acosf, ::acos)
GRAPHC_BOTH(atan, ::atanf, ::atan)
GRAPHC_BOTH(sinh, ::sinhf, ::sinh)
GRAPHC_BOTH(cosh, ::coshf, ::cosh)
GRAPHC_BOTH(tanh, ::tanhf, ::tanh)
GRAPHC_BOTH(asinh, ::asinhf, ::asinh)
GRAPHC_BOTH(acosh, ::acoshf, ::acosh)
GRAPHC_BOTH(atanh, ::atanhf, ::atanh)
GRAPHC_BOTH(erf, ::erff, ::erf)
GRAPHC_BOTH(erfc, ::erfcf, ::erfc)
#undef GRAPHC_BOTH

GRAPHC_DEVICE float log2(float x) { return ::log2f(x); }
GRAPHC_DEVICE double log2(double x) {
#if defined(GRAPHC_CUDA)
    // CUDA's is off by a unit in the last place even at powers of two, which a truncation to an integer would show.
    int exponent = 0;
    double mantissa = ::frexp(x, &exponent);
    if (!(x > 0.0 && x < infinity<double>())) return ::log2(x);
    // Near 1 the exponent is 0, so that nothing cancels.
    if (mantissa < 0.70710678118654752) mantissa *= 2.0, exponent -= 1;
    return (double)exponent + ::log2(mantissa);
#else
    return ::log2(x);
#endif
}

GRAPHC_DEVICE float abs(float x) { return ::fabsf(x); }
GRAPHC_DEVICE double abs(double x) { return ::fabs(x); }
GRAPHC_DEVICE float rem(float a, float b) { return ::fmodf(a, b); }
GRAPHC_DEVICE double rem(double a, double b) { return ::fmod(a, b); }
GRAPHC_DEVICE float shl(float a, float b) { return a * exp2(b); }
GRAPHC_DEVICE double shl(double a, double b) { return a * exp2(b); }
GRAPHC_DEVICE float shr(float a, float b) { return a / exp2(b); }
GRAPHC_DEVICE double shr(double a, double b) { return a / exp2(b); }
GRAPHC_DEVICE float pow(float a, float b) { return ::powf(a, b); }
GRAPHC_DEVICE double pow(double a, double b) { return ::pow(a, b); }
GRAPHC_DEVICE float atan2(float a, float b) { return ::atan2f(a, b); }
GRAPHC_DEVICE double atan2(double a, double b) { return ::atan2(a, b); }

template <typename F> GRAPHC_DEVICE bool is_nan(F x) { return !(x == x); }
template <typename F> GRAPHC_DEVICE bool is_inf(F x) { return abs(x) == infinity<F>(); }
template <typename F> GRAPHC_DEVICE F recip(F x) { return F(1) / x; }
template <typename F> GRAPHC_DEVICE F rsqrt(F x) { return F(1) / sqrt(x); }
template <typename F> GRAPHC_DEVICE F sigmoid(F x) { return F(1) / (F(1) + exp(-x)); }
template <typename F> GRAPHC_DEVICE F silu(F x) { return x / (F(1) + exp(-x)); }
template <typename F> GRAPHC_DEVICE F softplus(F x) { return (x < F(0) ? F(0) : x) + log1p(exp(-abs(x))); }
template <typename F> GRAPHC_DEVICE F mish(F x) { return x * tanh(softplus(x)); }
/// `erfc` keeps the digits that `1 + erf` would lose for negative x.
template <typename F> GRAPHC_DEVICE F gelu(F x) { return F(0.5) * x * erfc(x * F(-0.7071067811865475244)); }
/// `(1 + tanh(y)) / 2 = sigmoid(2y)`, without tanh's cancellation.
template <typename F> GRAPHC_DEVICE F gelu_tanh(F x) {
    return x * sigmoid(F(1.5957691216057307117) * multiply_add(F(0.044715) * x * x, x, x));
}
/// `2^x` and `1 / x` as the hardware has them, within a unit in the last place; results below the normal numbers are 0.
GRAPHC_DEVICE float hardware_exp2(float x) {
#if defined(GRAPHC_AMD)
    return __builtin_amdgcn_exp2f(x);
#elif defined(GRAPHC_CUDA)
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#else
    return ::exp2f(x);
#endif
}
GRAPHC_DEVICE float hardware_recip(float x) {
#if defined(GRAPHC_AMD)
    return __builtin_amdgcn_rcpf(x);
#elif defined(GRAPHC_CUDA)
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    return inverse;
#else
    return 1.0f / x;
#endif
}
/// In f32, activations cost what memory leaves time for: a library's division alone is ten instructions.
template <> GRAPHC_DEVICE float sigmoid<float>(float x) {
    return hardware_recip(1.0f + hardware_exp2(x * -1.4426950408889634f));
}
template <> GRAPHC_DEVICE float silu<float>(float x) { return x * sigmoid(x); }
/// `erfc` by Chebyshev's fit of Numerical Recipes (section 6.2), whose relative error is below 1.2e-7 everywhere.
template <> GRAPHC_DEVICE float gelu<float>(float x) {
    const float z = abs(x) * 0.70710678118654752f, t = hardware_recip(multiply_add(0.5f, z, 1.0f));
    float fit = 0.17087277f;
    fit = multiply_add(fit, t, -0.82215223f);
    fit = multiply_add(fit, t, 1.48851587f);
    fit = multiply_add(fit, t, -1.13520398f);
    fit = multiply_add(fit, t, 0.27886807f);
    fit = multiply_add(fit, t, -0.18628806f);
    fit = multiply_add(fit, t, 0.09678418f);
    fit = multiply_add(fit, t, 0.37409196f);
    fit = multiply_add(fit, t, 1.00002368f);
    fit = multiply_add(fit, t, -1.26551223f);
    const float tail = t * hardware_exp2(multiply_add(-z, z, fit) * 1.4426950408889634f);
    return 0.5f * x * (x > 0.0f ? 2.0f - tail : tail);
}
template <typename F> GRAPHC_DEVICE F hard_swish(F x) {
    const F y = x + F(3);
    return x * (y < F(0) ? F(0) : y > F(6) ? F(6) : y) / F(6);
}

// ---- floats and integers

template <typename T> GRAPHC_DEVICE T relu(T x) { return x < T(0) ? T(0) : x; }
/// Zero keeps its sign, NaN stays.
template <typename T> GRAPHC_DEVICE T sign(T x) { return x > T(0) ? T(1) : x < T(0) ? T(-1) : x; }
/// NaN if either is NaN.
template <typename T> GRAPHC_DEVICE T max(T a, T b) { return a > b || a != a ? a : b; }
/// NaN if either is NaN.
template <typename T> GRAPHC_DEVICE T min(T a, T b) { return a < b || a != a ? a : b; }
#if defined(GRAPHC_AMD)
template <> GRAPHC_DEVICE float max<float>(float a, float b) { return __builtin_elementwise_maximum(a, b); }
template <> GRAPHC_DEVICE float min<float>(float a, float b) { return __builtin_elementwise_minimum(a, b); }
#elif defined(GRAPHC_CUDA)
template <> GRAPHC_DEVICE float max<float>(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}
template <> GRAPHC_DEVICE float min<float>(float a, float b) {
    float smaller;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
}
#endif

/// `gelu`, rounded to a type of fewer digits, in half of the instructions: `max(x, 0) - |x| P(-|x|)`, where `log2` of the normal
/// distribution's `P(-z)` is a polynomial. The fit minimises the largest relative error of the result (by Lawson's iteration).
/// As of `gelu`, what it makes of -infinity is NaN: so the larger of x and 0 is what x has more than the smaller.
template <typename T> GRAPHC_DEVICE T gelu_as(float x);
/// The fit's relative error is 5e-6 of what is normal in f16; what is taken for z = 5.8 and beyond rounds to 0.
template <> GRAPHC_DEVICE f16 gelu_as<f16>(float x) {
    const float z = ::fminf(abs(x), 5.8f);
    float fit = 3.24443265e-5f;
    fit = multiply_add(fit, z, -7.48415026e-4f);
    fit = multiply_add(fit, z, 7.94223874e-3f);
    fit = multiply_add(fit, z, -5.30517317e-2f);
    fit = multiply_add(fit, z, -4.59170467e-1f);
    fit = multiply_add(fit, z, -1.15103654f);
    fit = multiply_add(fit, z, -1.00000759f);
    return cast<f16>(multiply_add(-z, hardware_exp2(fit), x - ::fminf(x, 0.0f)));
}
/// The fit's relative error is 1.5e-4 where the result is normal, a twelfth of bf16's.
template <> GRAPHC_DEVICE bf16 gelu_as<bf16>(float x) {
    const float z = ::fminf(abs(x), 13.2f);
    float fit = 2.71626783e-8f;
    fit = multiply_add(fit, z, -1.73123513e-6f);
    fit = multiply_add(fit, z, 4.75494407e-5f);
    fit = multiply_add(fit, z, -7.43482851e-4f);
    fit = multiply_add(fit, z, 7.41626129e-3f);
    fit = multiply_add(fit, z, -5.07947716e-2f);
    fit = multiply_add(fit, z, -4.62790419e-1f);
    fit = multiply_add(fit, z, -1.14903535f);
    fit = multiply_add(fit, z, -1.00018385f);
    return cast<bf16>(multiply_add(-z, hardware_exp2(fit), x - ::fminf(x, 0.0f)));
}

/// Remainder with the sign of the divisor.
template <typename F> GRAPHC_DEVICE F floor_rem(F a, F b) {
    const F r = rem(a, b);
    return r != F(0) && (r < F(0)) != (b < F(0)) ? r + b : r;
}

// ---- integers: wrap on overflow; a zero divisor gives 0

template <typename T> struct Unsigned { using type = u32; };
template <> struct Unsigned<i64> { using type = u64; };
template <typename T> using unsigned_of = typename Unsigned<T>::type;

template <typename T> GRAPHC_DEVICE T int_add(T a, T b) { return (T)((unsigned_of<T>)a + (unsigned_of<T>)b); }
template <typename T> GRAPHC_DEVICE T int_sub(T a, T b) { return (T)((unsigned_of<T>)a - (unsigned_of<T>)b); }
template <typename T> GRAPHC_DEVICE T int_mul(T a, T b) { return (T)((unsigned_of<T>)a * (unsigned_of<T>)b); }
/// `a · b + c`: integers wrap.
GRAPHC_DEVICE i32 multiply_add(i32 a, i32 b, i32 c) { return int_add(int_mul(a, b), c); }
GRAPHC_DEVICE i64 multiply_add(i64 a, i64 b, i64 c) { return int_add(int_mul(a, b), c); }
template <typename T> GRAPHC_DEVICE T int_neg(T a) { return (T)(0 - (unsigned_of<T>)a); }
template <typename T> GRAPHC_DEVICE T int_abs(T a) { return a < T(0) ? int_neg(a) : a; }
template <typename T> GRAPHC_DEVICE T int_div(T a, T b) { return b == T(0) ? T(0) : b == T(-1) ? int_neg(a) : (T)(a / b); }
template <typename T> GRAPHC_DEVICE T int_rem(T a, T b) { return b == T(0) || b == T(-1) ? T(0) : (T)(a % b); }
template <> GRAPHC_DEVICE u8 int_div<u8>(u8 a, u8 b) { return b == 0 ? 0 : a / b; }
template <> GRAPHC_DEVICE u8 int_rem<u8>(u8 a, u8 b) { return b == 0 ? 0 : a % b; }
template <typename T> GRAPHC_DEVICE T int_mod(T a, T b) {
    const T r = int_rem(a, b);
    return r != T(0) && (r < T(0)) != (b < T(0)) ? (T)(r + b) : r;
}
/// Quotient rounded towards minus infinity.
template <typename T> GRAPHC_DEVICE T floor_div(T a, T b) {
    const T q = int_div(a, b);
    return b != T(0) && a % b != T(0) && (a < T(0)) != (b < T(0)) ? (T)(q - 1) : q;
}
/// Square root rounded down; of a negative number, 0.
GRAPHC_DEVICE i64 int_sqrt(i64 a) {
    if (a <= 0) return 0;
    i64 root = (i64)sqrt((double)a);
    while (root > a / root) --root;
    while (root + 1 <= a / (root + 1)) ++root;
    return root;
}
/// The amount is taken modulo the width.
template <typename T> GRAPHC_DEVICE T int_shl(T a, T b) { return (T)((unsigned_of<T>)a << (b & (T)(sizeof(T) * 8 - 1))); }
template <typename T> GRAPHC_DEVICE T int_shr(T a, T b) { return (T)(a >> (b & (T)(sizeof(T) * 8 - 1))); }
/// A negative exponent gives the truncated reciprocal, and of zero 0.
template <typename T> GRAPHC_DEVICE T int_pow(T base, T exponent) {
    if (exponent < T(0)) return base == T(1) ? T(1) : base == T(-1) ? (exponent % 2 == 0 ? T(1) : T(-1)) : T(0);
    T result = 1;
    for (u64 left = (u64)exponent; left > 0; left >>= 1) {
        if (left & 1) result = int_mul(result, base);
        base = int_mul(base, base);
    }
    return result;
}

// ---- random bits

/// Word `LANE` of Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011).
template <int LANE>
GRAPHC_DEVICE i32 philox(u64 seed, i64 counter) {
    u32 key0 = (u32)seed, key1 = (u32)(seed >> 32);
    u32 c[4] = {(u32)counter, (u32)((u64)counter >> 32), 0, 0};
    for (int round = 0; round < 10; ++round) {
        const u64 a = (u64)c[0] * 0xD2511F53u, b = (u64)c[2] * 0xCD9E8D57u;
        const u32 next0 = (u32)(b >> 32) ^ c[1] ^ key0, next2 = (u32)(a >> 32) ^ c[3] ^ key1;
        c[0] = next0, c[1] = (u32)b, c[2] = next2, c[3] = (u32)a;
        key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
    }
    return (i32)c[LANE];
}

}  // namespace math
}  // namespace graphc
