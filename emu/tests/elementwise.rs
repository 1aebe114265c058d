//! One-line kernels over arrays: arithmetic corner cases, conversions and transcendental functions, each against a
//! reference computed on the host in f64 (or in exact integers), on five archs.

mod common;
use common::{Arg, BF16, Device, F16, F32, F64, Format, Random, all_arches, close};

/// How the inputs of a case are drawn.
#[derive(Clone, Copy, PartialEq)]
enum Domain {
    /// Moderate values of both signs, never zero.
    Plain,
    /// Positive moderate values.
    Positive,
    /// Everything: denormals, the largest values, zeros, infinities, NaN.
    Edge,
    /// [-range, range].
    Within(f64),
}
use Domain::*;

struct Float {
    name: &'static str,
    expr: &'static str,
    want: fn(f64, f64, f64) -> f64,
    ulps: f64,
    domain: Domain,
}

fn case(name: &'static str, expr: &'static str, want: fn(f64, f64, f64) -> f64, ulps: f64, domain: Domain) -> Float {
    Float {
        name,
        expr,
        want,
        ulps,
        domain,
    }
}

const ROUND_ADD_RZ: &str = r#"({ float r; asm volatile("s_setreg_imm32_b32 hwreg(1, 0, 2), 3\n v_add_f32 %0, %1, %2\n s_setreg_imm32_b32 hwreg(1, 0, 2), 0" : "=v"(r) : "v"(a), "v"(b)); r; })"#;
const ROUND_MUL_UP: &str = r#"({ float r; asm volatile("s_setreg_imm32_b32 hwreg(1, 0, 2), 1\n v_mul_f32 %0, %1, %2\n s_setreg_imm32_b32 hwreg(1, 0, 2), 0" : "=v"(r) : "v"(a), "v"(b)); r; })"#;
const ROUND_MUL_DOWN: &str = r#"({ float r; asm volatile("s_setreg_imm32_b32 hwreg(1, 0, 2), 2\n v_mul_f32 %0, %1, %2\n s_setreg_imm32_b32 hwreg(1, 0, 2), 0" : "=v"(r) : "v"(a), "v"(b)); r; })"#;
const FLUSH_MUL: &str = r#"({ float r; asm volatile("s_setreg_imm32_b32 hwreg(1, 4, 2), 0\n v_mul_f32 %0, %1, %2\n s_setreg_imm32_b32 hwreg(1, 4, 2), 3" : "=v"(r) : "v"(a), "v"(b)); r; })"#;

fn flush(x: f64) -> f64 {
    if x.abs() < f64::from(f32::MIN_POSITIVE) {
        0.0f64.copysign(x)
    } else {
        x
    }
}

fn f32_of(x: f64) -> f32 {
    x as f32
}

fn f32_cases() -> Vec<Float> {
    vec![
        case("add", "a + b", |a, b, _| a + b, 0.0, Edge),
        case("sub", "a - b", |a, b, _| a - b, 0.0, Edge),
        case("mul", "a * b", |a, b, _| a * b, 0.0, Edge),
        case("div", "a / b", |a, b, _| a / b, 0.0, Edge),
        case(
            "fma",
            "fmaf(a, b, c)",
            |a, b, c| f32_of(a).mul_add(f32_of(b), f32_of(c)).into(),
            0.0,
            Edge,
        ),
        case(
            "neg_fma",
            "fmaf(-a, b, -c)",
            |a, b, c| f32_of(-a).mul_add(f32_of(b), f32_of(-c)).into(),
            0.0,
            Plain,
        ),
        case("abs_sub", "fabsf(a) - fabsf(b)", |a, b, _| a.abs() - b.abs(), 0.0, Edge),
        case("sqrt", "sqrtf(a)", |a, _, _| a.sqrt(), 0.0, Edge),
        case("rsqrt", "rsqrtf(a)", |a, _, _| 1.0 / a.sqrt(), 1.0, Positive),
        case("rcp", "1.0f / a", |a, _, _| 1.0 / a, 0.0, Edge),
        case("fmin", "fminf(a, b)", |a, b, _| a.min(b), 0.0, Plain),
        case("fmax", "fmaxf(a, b)", |a, b, _| a.max(b), 0.0, Plain),
        case(
            "fmin_nan",
            "fminf(a, b)",
            |a, b, _| if a == 0.0 && b == 0.0 { f64::MAX } else { a.min(b) },
            0.0,
            Within(4.0),
        ),
        case("min3", "fminf(fminf(a, b), c)", |a, b, c| a.min(b).min(c), 0.0, Plain),
        case("max3", "fmaxf(fmaxf(a, b), c)", |a, b, c| a.max(b).max(c), 0.0, Plain),
        case(
            "clamp01",
            "fminf(fmaxf(a, 0.0f), 1.0f)",
            |a, _, _| a.clamp(0.0, 1.0),
            0.0,
            Within(2.0),
        ),
        case(
            "clamp_range",
            "fminf(fmaxf(a, -2.0f), 3.0f)",
            |a, _, _| a.clamp(-2.0, 3.0),
            0.0,
            Within(9.0),
        ),
        case(
            "scale2",
            "(a + b) * 2.0f",
            |a, b, _| (a + b) as f32 as f64 * 2.0,
            0.0,
            Plain,
        ),
        case(
            "scale_half",
            "(a * b) * 0.5f",
            |a, b, _| (a * b) as f32 as f64 * 0.5,
            0.0,
            Plain,
        ),
        case("exp", "expf(a)", |a, _, _| a.exp(), 2.0, Within(80.0)),
        case("exp_denormal", "expf(a)", |a, _, _| a.exp(), 2.0, Within(103.0)),
        case("exp2", "exp2f(a)", |a, _, _| a.exp2(), 2.0, Within(120.0)),
        case("exp10", "exp10f(a)", |a, _, _| 10f64.powf(a), 3.0, Within(30.0)),
        case("expm1", "expm1f(a)", |a, _, _| a.exp_m1(), 2.0, Within(5.0)),
        case("log", "logf(a)", |a, _, _| a.ln(), 3.0, Positive),
        case("log2", "log2f(a)", |a, _, _| a.log2(), 3.0, Positive),
        case("log10", "log10f(a)", |a, _, _| a.log10(), 3.0, Positive),
        case("log1p", "log1pf(a)", |a, _, _| a.ln_1p(), 3.0, Positive),
        case("sin", "sinf(a)", |a, _, _| a.sin(), 3.0, Within(100.0)),
        case("cos", "cosf(a)", |a, _, _| a.cos(), 3.0, Within(100.0)),
        case("sin_large", "sinf(a)", |a, _, _| a.sin(), 3.0, Within(1.0e6)),
        case("tan", "tanf(a)", |a, _, _| a.tan(), 5.0, Within(1.4)),
        case("tanh", "tanhf(a)", |a, _, _| a.tanh(), 4.0, Within(6.0)),
        case("sinh", "sinhf(a)", |a, _, _| a.sinh(), 4.0, Within(20.0)),
        case("atan2", "atan2f(a, b)", |a, b, _| a.atan2(b), 6.0, Plain),
        case("asin", "asinf(a)", |a, _, _| a.asin(), 5.0, Within(1.0)),
        case("erf", "erff(a)", |a, _, _| erf(a), 16.0, Within(3.0)),
        case("pow", "powf(a, b)", |a, b, _| a.powf(b), 16.0, Positive),
        case("cbrt", "cbrtf(a)", |a, _, _| a.cbrt(), 3.0, Plain),
        case("hypot", "hypotf(a, b)", |a, b, _| a.hypot(b), 4.0, Plain),
        case("floor", "floorf(a)", |a, _, _| a.floor(), 0.0, Edge),
        case("ceil", "ceilf(a)", |a, _, _| a.ceil(), 0.0, Edge),
        case("trunc", "truncf(a)", |a, _, _| a.trunc(), 0.0, Edge),
        case("rint", "rintf(a)", |a, _, _| a.round_ties_even(), 0.0, Edge),
        case("round", "roundf(a)", |a, _, _| a.round(), 0.0, Edge),
        case(
            "fract",
            "a - floorf(a)",
            |a, _, _| f64::from(f32_of(a) - f32_of(a).floor()),
            0.0,
            Plain,
        ),
        case("fmod", "fmodf(a, b)", |a, b, _| a % b, 0.0, Plain),
        case("copysign", "copysignf(a, b)", |a, b, _| a.copysign(b), 0.0, Edge),
        case(
            "ldexp",
            "ldexpf(a, (int)b)",
            |a, b, _| a * 2f64.powi(b as i32),
            0.0,
            Within(60.0),
        ),
        case(
            "frexp_mant",
            "({ int e; frexpf(a, &e); })",
            |a, _, _| frexp(a).0,
            0.0,
            Plain,
        ),
        case(
            "frexp_exp",
            "({ int e; frexpf(a, &e); (float)e; })",
            |a, _, _| frexp(a).1,
            0.0,
            Plain,
        ),
        case(
            "select",
            "a > b ? a * 3.0f : c",
            |a, b, c| if a > b { a * 3.0 } else { c },
            0.0,
            Plain,
        ),
        case(
            "select_nan",
            "a != a ? 1.0f : (a < b ? 2.0f : 3.0f)",
            |a, b, _| {
                if a.is_nan() {
                    1.0
                } else if a < b {
                    2.0
                } else {
                    3.0
                }
            },
            0.0,
            Edge,
        ),
        case(
            "is_class",
            "(float)(isinf(a) ? 1 : isnan(a) ? 2 : signbit(a) ? 3 : 4)",
            |a, _, _| {
                if a.is_infinite() {
                    1.0
                } else if a.is_nan() {
                    2.0
                } else if a.is_sign_negative() {
                    3.0
                } else {
                    4.0
                }
            },
            0.0,
            Edge,
        ),
        case("relu", "a > 0.0f ? a : 0.0f", |a, _, _| a.max(0.0), 0.0, Within(4.0)),
        case(
            "gelu",
            "0.5f * a * (1.0f + erff(a * 0.70710678f))",
            |a, _, _| 0.5 * a * (1.0 + erf(a * std::f64::consts::FRAC_1_SQRT_2)),
            64.0,
            Within(2.0),
        ),
        case(
            "sigmoid",
            "1.0f / (1.0f + expf(-a))",
            |a, _, _| 1.0 / (1.0 + (-a).exp()),
            4.0,
            Within(20.0),
        ),
        case(
            "silu",
            "a / (1.0f + __expf(-a))",
            |a, _, _| a / (1.0 + (-a).exp()),
            24.0,
            Within(8.0),
        ),
        case("fast_exp", "__expf(a)", |a, _, _| a.exp(), 64.0, Within(20.0)),
        case("fast_div", "__fdividef(a, b)", |a, b, _| a / b, 4.0, Plain),
        case("to_int", "(float)((int)a)", |a, _, _| a.trunc(), 0.0, Within(1.0e6)),
        case(
            "to_uint",
            "(float)((unsigned)fabsf(a))",
            |a, _, _| a.abs().trunc(),
            0.0,
            Within(1.0e6),
        ),
        case("via_half", "(float)((_Float16)a)", |a, _, _| F16.round(a), 0.0, Edge),
        case("via_bf16", "(float)((__bf16)a)", |a, _, _| BF16.round(a), 0.0, Plain),
        case(
            "via_double",
            "(float)((double)a * (double)b)",
            |a, b, _| a * b,
            0.0,
            Edge,
        ),
        case("rz_add", ROUND_ADD_RZ, |a, b, _| toward_zero(a + b), 0.0, Plain),
        case("ru_mul", ROUND_MUL_UP, |a, b, _| upward(a * b), 0.0, Plain),
        case("rd_mul", ROUND_MUL_DOWN, |a, b, _| -upward(-(a * b)), 0.0, Plain),
        case("flush_mul", FLUSH_MUL, |a, b, _| flush(flush(a) * flush(b)), 0.0, Edge),
    ]
}

fn toward_zero(x: f64) -> f64 {
    let near = x as f32;
    f64::from(if f64::from(near).abs() > x.abs() {
        f32::from_bits(near.to_bits() - 1)
    } else {
        near
    })
}

fn upward(x: f64) -> f64 {
    let near = x as f32;
    f64::from(if f64::from(near) < x { near.next_up() } else { near })
}

fn frexp(x: f64) -> (f64, f64) {
    let exponent = x.abs().log2().floor() + 1.0;
    (x / 2f64.powf(exponent), exponent)
}

/// The error function by its series and continued fraction, to f64's precision for |x| ≤ 6.
fn erf(x: f64) -> f64 {
    if x.abs() < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let mut fraction = 0.0;
    for n in (1..120).rev() {
        fraction = f64::from(n) / 2.0 / (x.abs() + fraction);
    }
    let tail = (-x * x).exp() / (std::f64::consts::PI.sqrt() * (x.abs() + fraction));
    (1.0 - tail).copysign(x)
}

fn f16_cases() -> Vec<Float> {
    vec![
        case("add", "a + b", |a, b, _| a + b, 0.0, Edge),
        case("sub", "a - b", |a, b, _| a - b, 0.0, Edge),
        case("mul", "a * b", |a, b, _| a * b, 0.0, Edge),
        case("div", "a / b", |a, b, _| a / b, 1.0, Plain),
        case("fma", "__builtin_fmaf16(a, b, c)", |a, b, c| a.mul_add(b, c), 0.0, Edge),
        case("min", "__builtin_fminf16(a, b)", |a, b, _| a.min(b), 0.0, Plain),
        case("max", "__builtin_fmaxf16(a, b)", |a, b, _| a.max(b), 0.0, Plain),
        case(
            "maximum3",
            "__builtin_elementwise_maximum(__builtin_elementwise_maximum(a, b), c)",
            |a, b, c| a.max(b).max(c),
            0.0,
            Plain,
        ),
        case(
            "maximumminimum",
            "__builtin_elementwise_minimum(__builtin_elementwise_maximum(a, b), c)",
            |a, b, c| a.max(b).min(c),
            0.0,
            Plain,
        ),
        case("floor", "__builtin_floorf16(a)", |a, _, _| a.floor(), 0.0, Edge),
        case("rint", "__builtin_rintf16(a)", |a, _, _| a.round_ties_even(), 0.0, Edge),
        case(
            "abs_neg",
            "-__builtin_fabsf16(a) + b",
            |a, b, _| b - a.abs(),
            0.0,
            Plain,
        ),
        case("sqrt", "(_Float16)sqrtf((float)a)", |a, _, _| a.sqrt(), 0.0, Positive),
        case(
            "clamp",
            "__builtin_fminf16(__builtin_fmaxf16(a, (_Float16)0.0f), (_Float16)1.0f)",
            |a, _, _| a.clamp(0.0, 1.0),
            0.0,
            Within(2.0),
        ),
        case("exp", "(_Float16)expf((float)a)", |a, _, _| a.exp(), 1.0, Within(8.0)),
        case(
            "mix",
            "(_Float16)fmaf((float)a, (float)b, (float)c)",
            |a, b, c| a.mul_add(b, c),
            0.6,
            Plain,
        ),
        case(
            "const",
            "a * (_Float16)0.15915494f + (_Float16)4.0f",
            |a, _, _| a * 0.15915494 + 4.0,
            2.0,
            Plain,
        ),
        case(
            "compare",
            "a < b ? a : (a > c ? b : c)",
            |a, b, c| {
                if a < b {
                    a
                } else if a > c {
                    b
                } else {
                    c
                }
            },
            0.0,
            Plain,
        ),
        case(
            "to_short",
            "(_Float16)(short)a",
            |a, _, _| a.trunc(),
            0.0,
            Within(1000.0),
        ),
    ]
}

fn f64_cases() -> Vec<Float> {
    vec![
        case("add", "a + b", |a, b, _| a + b, 0.0, Edge),
        case("mul", "a * b", |a, b, _| a * b, 0.0, Edge),
        case("fma", "fma(a, b, c)", f64::mul_add, 0.0, Edge),
        case("div", "a / b", |a, b, _| a / b, 0.0, Edge),
        case("sqrt", "sqrt(a)", |a, _, _| a.sqrt(), 0.0, Edge),
        case("min", "fmin(a, b)", |a, b, _| a.min(b), 0.0, Plain),
        case("floor", "floor(a)", |a, _, _| a.floor(), 0.0, Edge),
        case("rint", "rint(a)", |a, _, _| a.round_ties_even(), 0.0, Edge),
        case("trunc", "trunc(a)", |a, _, _| a.trunc(), 0.0, Edge),
        case("exp", "exp(a)", |a, _, _| a.exp(), 2.0, Within(300.0)),
        case("log", "log(a)", |a, _, _| a.ln(), 2.0, Positive),
        case("sin", "sin(a)", |a, _, _| a.sin(), 2.0, Within(50.0)),
        case(
            "ldexp",
            "ldexp(a, (int)b)",
            |a, b, _| a * 2f64.powi(b as i32),
            0.0,
            Within(60.0),
        ),
        case(
            "to_float",
            "(double)(float)a",
            |a, _, _| f64::from(a as f32),
            0.0,
            Plain,
        ),
        case("to_int", "(double)(int)a", |a, _, _| a.trunc(), 0.0, Within(1.0e9)),
        case(
            "to_long",
            "(double)(long long)a",
            |a, _, _| a.trunc(),
            0.0,
            Within(1.0e15),
        ),
        case(
            "select",
            "a > b ? a : c",
            |a, b, c| if a > b { a } else { c },
            0.0,
            Plain,
        ),
    ]
}

const N: usize = 512;

fn inputs(domain: Domain, format: Format, seed: u64) -> Vec<f64> {
    let mut random = Random::new(seed);
    let largest = (2.0 - 2f64.powi(-format.mantissa)) * 2f64.powi(format.max_exponent);
    let smallest = if format.mantissa == 52 {
        f64::from_bits(1)
    } else {
        2f64.powi(format.min_exponent - format.mantissa)
    };
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        largest,
        -largest,
        smallest,
        -smallest,
        smallest * 3.0,
        2f64.powi(format.min_exponent),
        -(2f64.powi(format.min_exponent)),
        0.5,
        1.5,
        2.5,
        -0.5,
        -2.5,
        largest / 2.0,
        2f64.powi(format.max_exponent),
    ];
    (0..N)
        .map(|_| {
            let value = match domain {
                Plain => random.range(0.05, 4.0) * if random.below(2) == 0 { 1.0 } else { -1.0 },
                Positive => random.range(0.05, 20.0),
                Within(range) => random.range(-range, range),
                Edge if random.below(3) == 0 => special[random.below(special.len() as u64) as usize],
                Edge => {
                    let low = f64::from(format.min_exponent - format.mantissa);
                    let exponent = random.range(low, f64::from(format.max_exponent));
                    let sign = if random.below(2) == 0 { 1.0 } else { -1.0 };
                    sign * random.range(1.0, 2.0) * 2f64.powf(exponent.floor())
                }
            };
            format.round(value)
        })
        .collect()
}

fn kernel(ty: &str, name: &str, expr: &str) -> String {
    format!(
        "extern \"C\" __global__ void {name}({ty}* o, const {ty}* x, const {ty}* y, const {ty}* z, int n) {{\n  \
         int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i >= n) return;\n  \
         {ty} a = x[i], b = y[i], c = z[i];\n  o[i] = ({ty})({expr});\n}}\n"
    )
}

/// Runs the float cases; `pack` and `unpack` move between f64 and the bits of the type.
fn floats(ty: &str, cases: &[Float], format: Format, width: usize, pack: fn(f64) -> u64, unpack: fn(u64) -> f64) {
    let source: String = cases
        .iter()
        .map(|case| kernel(ty, &format!("k_{}", case.name), case.expr))
        .collect();
    let source = format!("#pragma clang fp contract(off)\n{source}");
    let mut failures = Vec::new();
    for arch in all_arches() {
        let Some(device) = Device::new(&source, arch) else {
            return;
        };
        for (index, case) in cases.iter().enumerate() {
            let columns: Vec<Vec<f64>> = (0..3)
                .map(|column| inputs(case.domain, format, 7 + 3 * index as u64 + column))
                .collect();
            let buffers: Vec<u64> = columns
                .iter()
                .map(|values| {
                    let bytes: Vec<u8> = values
                        .iter()
                        .flat_map(|v| pack(*v).to_le_bytes()[..width].to_vec())
                        .collect();
                    device.upload(&bytes)
                })
                .collect();
            let out = device.alloc(N * width);
            let args = [out, buffers[0], buffers[1], buffers[2]].map(Arg::Ptr);
            let name = format!("k_{}", case.name);
            let result = device.try_run(&name, 2, 256, &[&args[..], &[Arg::I32(N as i32)]].concat());
            if let Err(error) = result {
                failures.push(format!("{arch} {ty} {}: {error}", case.name));
                continue;
            }
            let bytes: Vec<u8> = device.download(out, N * width);
            for (lane, chunk) in bytes.chunks(width).enumerate() {
                let mut word = [0u8; 8];
                word[..width].copy_from_slice(chunk);
                let got = unpack(u64::from_le_bytes(word));
                let (a, b, c) = (columns[0][lane], columns[1][lane], columns[2][lane]);
                let want = (case.want)(a, b, c);
                if !close(got, want, format, case.ulps) {
                    failures.push(format!(
                        "{arch} {ty} {}({a:e}, {b:e}, {c:e}) = {got:e}, not {want:e}",
                        case.name
                    ));
                    break;
                }
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn single_precision() {
    floats(
        "float",
        &f32_cases(),
        F32,
        4,
        |v| (v as f32).to_bits().into(),
        |b| f32::from_bits(b as u32).into(),
    );
}

#[test]
fn half_precision() {
    floats(
        "_Float16",
        &f16_cases(),
        F16,
        2,
        |v| half::f16::from_f64(v).to_bits().into(),
        |b| half::f16::from_bits(b as u16).to_f64(),
    );
}

#[test]
fn double_precision() {
    floats("double", &f64_cases(), F64, 8, f64::to_bits, f64::from_bits);
}

struct Integer {
    name: &'static str,
    expr: &'static str,
    /// On values sign- or zero-extended from the type; the result is cut to the type.
    want: fn(i128, i128, i128) -> i128,
}

fn int(name: &'static str, expr: &'static str, want: fn(i128, i128, i128) -> i128) -> Integer {
    Integer { name, expr, want }
}

fn shared_integer_cases() -> Vec<Integer> {
    vec![
        int("add", "a + b", |a, b, _| a + b),
        int("sub", "a - b", |a, b, _| a - b),
        int("mul", "a * b", |a, b, _| a.wrapping_mul(b)),
        int("mad", "a * b + c", |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        int("and_or", "(a & b) | c", |a, b, c| (a & b) | c),
        int("xor_not", "~(a ^ b) ^ c", |a, b, c| !(a ^ b) ^ c),
        int("shl", "a << (b & 7)", |a, b, _| a << (b & 7)),
        int("shr", "a >> (b & 7)", |a, b, _| a >> (b & 7)),
        int("shl_add", "(a << 3) + b", |a, b, _| (a << 3) + b),
        int("min", "a < b ? a : b", |a, b, _| a.min(b)),
        int("max3", "(a > b ? a : b) > c ? (a > b ? a : b) : c", |a, b, c| {
            a.max(b).max(c)
        }),
        int("div", "a / (T)((b & (T)~64) | 1)", |a, b, _| a / ((b & !64) | 1)),
        int("rem", "a % (T)((b & (T)~64) | 1)", |a, b, _| a % ((b & !64) | 1)),
        int("add3", "a + b + c", |a, b, c| a + b + c),
        int("select", "a == b ? c : a - c", |a, b, c| if a == b { c } else { a - c }),
    ]
}

fn int32_cases() -> Vec<Integer> {
    let mut cases = shared_integer_cases();
    cases.extend([
        int("mulhi", "__mulhi(a, b)", |a, b, _| (a * b) >> 32),
        int("popc", "__popc(a)", |a, _, _| (a as u32).count_ones().into()),
        int("clz", "__clz(a)", |a, _, _| (a as u32).leading_zeros().into()),
        int("ffs", "__ffs(a)", |a, _, _| if a == 0 { 0 } else { i128::from((a as u32).trailing_zeros()) + 1 }),
        int("brev", "(int)__brev((unsigned)a)", |a, _, _| (a as u32).reverse_bits().into()),
        int("bfe", "(int)(((unsigned)a >> 5) & 0x3ff)", |a, _, _| ((a as u32 >> 5) & 0x3ff).into()),
        int("bfe_signed", "(a << 9) >> 20", |a, _, _| (((a as i32) << 9) >> 20).into()),
        int("perm", "(int)__builtin_amdgcn_perm((unsigned)a, (unsigned)b, 0x07020501u)", |a, b, _| {
            let bytes = (a as u32 as u64) << 32 | b as u32 as u64;
            let byte = |i: u32| (bytes >> (8 * i)) as u32 & 0xff;
            (byte(1) | byte(5) << 8 | byte(2) << 16 | byte(7) << 24).into()
        }),
        int("alignbit", "(int)__builtin_amdgcn_alignbit((unsigned)a, (unsigned)b, (unsigned)c & 31)", |a, b, c| {
            let wide = (a as u32 as u64) << 32 | b as u32 as u64;
            ((wide >> (c & 31)) as u32).into()
        }),
        int("mul24", "__mul24(a, b)", |a, b, _| {
            let cut = |x: i128| i128::from(((x as i32) << 8) >> 8);
            cut(a) * cut(b)
        }),
        int("sad", "(int)__builtin_amdgcn_sad_u8((unsigned)a, (unsigned)b, (unsigned)c)", |a, b, c| {
            let byte = |x: i128, i: u32| (x as u32 >> (8 * i) & 0xff) as i128;
            (0..4).map(|i| (byte(a, i) - byte(b, i)).abs()).sum::<i128>() + (c as u32) as i128
        }),
        int("byte_swap", "(int)__builtin_bswap32((unsigned)a)", |a, _, _| (a as u32).swap_bytes().into()),
        int("abs", "a < 0 ? -a : a", |a, _, _| a.abs()),
        int("sext8", "(int)(signed char)a + (int)(signed char)(b >> 8)", |a, b, _| {
            i128::from(a as i8) + i128::from((b >> 8) as i8)
        }),
        int("zext16", "(int)((unsigned short)a) * 3 + (int)(unsigned short)((unsigned)b >> 16)", |a, b, _| {
            i128::from(a as u16) * 3 + i128::from((b as u32 >> 16) as u16)
        }),
        int("float_bits", "__float_as_int(__int_as_float(a & 0x7effffff) * 1.0f)", |a, _, _| a & 0x7eff_ffff),
        int("divergent", "({ int s = 0; for (int k = 0; k < (a & 15); ++k) { if (k & 1) s += b; else s ^= c; } s; })",
            |a, b, c| {
                let (mut s, b, c) = (0i32, b as i32, c as i32);
                for k in 0..(a & 15) {
                    if k & 1 == 1 { s = s.wrapping_add(b) } else { s ^= c }
                }
                s.into()
            }),
        int("switch", "({ int s; switch (a & 7) { case 0: s = b; break; case 1: s = c; break; case 2: s = b + c; break; case 3: s = b - c; break; case 4: s = b * c; break; case 5: s = ~b; break; case 6: s = -c; break; default: s = 42; } s; })",
            |a, b, c| match a & 7 {
                0 => b, 1 => c, 2 => b + c, 3 => b - c, 4 => b * c, 5 => !b, 6 => -c, _ => 42,
            }),
        int("collatz", "({ unsigned x = (a & 0xff) + 1; int n = 0; while (x != 1) { x = x & 1 ? 3 * x + 1 : x / 2; ++n; } n; })",
            |a, _, _| {
                let (mut x, mut n) = ((a & 0xff) + 1, 0);
                while x != 1 {
                    x = if x & 1 == 1 { 3 * x + 1 } else { x / 2 };
                    n += 1;
                }
                n
            }),
    ]);
    cases
}

/// Runs integer cases for a type of `bits` bits.
fn integers(ty: &str, cases: &[Integer], bits: u32, signed: bool) {
    let kernels: String = cases
        .iter()
        .map(|case| kernel(ty, &format!("k_{}", case.name), case.expr))
        .collect();
    let source = format!("typedef {ty} T;\n{kernels}");
    let width = bits as usize / 8;
    let extend = |value: u64| -> i128 {
        let shift = 64 - bits;
        if signed {
            i128::from((value << shift) as i64 >> shift)
        } else {
            i128::from(value << shift >> shift)
        }
    };
    let mut failures = Vec::new();
    for arch in all_arches() {
        let Some(device) = Device::new(&source, arch) else {
            return;
        };
        for (index, case) in cases.iter().enumerate() {
            let mut random = Random::new(100 + index as u64);
            let mut column = || -> Vec<u64> {
                (0..N)
                    .map(|_| match random.below(4) {
                        0 => [1, 2, u64::MAX, 1 << (bits - 1), (1 << (bits - 1)) - 1, 3][random.below(6) as usize],
                        1 => random.below(100),
                        _ => random.bits(),
                    })
                    .collect()
            };
            let columns = [column(), column(), column()];
            let buffers: Vec<u64> = columns
                .iter()
                .map(|values| {
                    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()[..width].to_vec()).collect();
                    device.upload(&bytes)
                })
                .collect();
            let out = device.alloc(N * width);
            let args = [out, buffers[0], buffers[1], buffers[2]].map(Arg::Ptr);
            let name = format!("k_{}", case.name);
            if let Err(error) = device.try_run(&name, 2, 256, &[&args[..], &[Arg::I32(N as i32)]].concat()) {
                failures.push(format!("{arch} {ty} {}: {error}", case.name));
                continue;
            }
            let bytes: Vec<u8> = device.download(out, N * width);
            for (lane, chunk) in bytes.chunks(width).enumerate() {
                let mut word = [0u8; 8];
                word[..width].copy_from_slice(chunk);
                let got = extend(u64::from_le_bytes(word));
                let [a, b, c] = [0, 1, 2].map(|column: usize| extend(columns[column][lane]));
                let want = extend((case.want)(a, b, c) as u64);
                if got != want {
                    failures.push(format!(
                        "{arch} {ty} {}({a:#x}, {b:#x}, {c:#x}) = {got:#x}, not {want:#x}",
                        case.name
                    ));
                    break;
                }
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn int_32() {
    integers("int", &int32_cases(), 32, true);
}

#[test]
fn unsigned_32() {
    integers("unsigned", &shared_integer_cases(), 32, false);
}

#[test]
fn int_16() {
    integers("short", &shared_integer_cases(), 16, true);
}

#[test]
fn unsigned_16() {
    integers("unsigned short", &shared_integer_cases(), 16, false);
}

#[test]
fn int_8() {
    integers("signed char", &shared_integer_cases(), 8, true);
}

#[test]
fn unsigned_8() {
    integers("unsigned char", &shared_integer_cases(), 8, false);
}

#[test]
fn int_64() {
    integers("long long", &shared_integer_cases(), 64, true);
}

#[test]
fn unsigned_64() {
    integers("unsigned long long", &shared_integer_cases(), 64, false);
}
