//! Instructions that only builtins reach: gfx950's scaled conversions and transposing LDS reads, stochastic rounding,
//! sums of absolute differences, cube maps, and the reduction of huge angles.

mod common;
use common::{Arg, Device, F64, Random, close};

/// A type of element: its bits and the value of each pattern.
#[derive(Clone, Copy, PartialEq)]
enum Number {
    F32,
    F16,
    Bf16,
    /// Exponent and mantissa bits; bias; whether the top exponent has infinities and NaN (8 bits), or one NaN.
    Small(u32, u32),
}

const FP8: Number = Number::Small(4, 3);
const BF8: Number = Number::Small(5, 2);
const FP6: Number = Number::Small(2, 3);
const BF6: Number = Number::Small(3, 2);
const FP4: Number = Number::Small(2, 1);

impl Number {
    fn bits(self) -> usize {
        match self {
            Number::F32 => 32,
            Number::F16 | Number::Bf16 => 16,
            Number::Small(e, m) => (1 + e + m) as usize,
        }
    }

    fn value(self, bits: u32) -> f64 {
        match self {
            Number::F32 => f32::from_bits(bits).into(),
            Number::F16 => half::f16::from_bits(bits as u16).to_f64(),
            Number::Bf16 => half::bf16::from_bits(bits as u16).to_f64(),
            FP8 => float8::F8E4M3::from_bits(bits as u8).to_f64(),
            BF8 => float8::F8E5M2::from_bits(bits as u8).to_f64(),
            Number::Small(e, m) => {
                let exponent = (bits >> m & ((1 << e) - 1)) as i32;
                let fraction = f64::from(bits & ((1 << m) - 1)) / f64::from(1 << m);
                let bias = (1 << (e - 1)) - 1;
                let value = if exponent == 0 {
                    fraction * 2f64.powi(1 - bias)
                } else {
                    (1.0 + fraction) * 2f64.powi(exponent - bias)
                };
                if bits >> (e + m) & 1 == 1 { -value } else { value }
            }
        }
    }

    fn max(self) -> f64 {
        match self {
            Number::Small(..) => (0..1 << (self.bits() - 1))
                .map(|bits| self.value(bits))
                .filter(|value| value.is_finite())
                .fold(0.0, f64::max),
            _ => 100.0,
        }
    }

    /// The nearest value, of two the even one; or with `up` of the two around it the nearer to zero (false) or the
    /// farther (true).
    fn round(self, value: f64, up: Option<bool>) -> f64 {
        match self {
            Number::F32 => f64::from(value as f32),
            Number::F16 => half::f16::from_f64(value).to_f64(),
            Number::Bf16 => half::bf16::from_f64(value).to_f64(),
            Number::Small(..) => {
                let codes: Vec<f64> = (0..1 << (self.bits() - 1))
                    .map(|bits| self.value(bits))
                    .filter(|value| value.is_finite())
                    .collect();
                let size = value.abs();
                let below = codes.iter().rposition(|code| *code <= size).unwrap();
                let above = if codes[below] == size { below } else { below + 1 };
                let pick = match up {
                    Some(true) => above,
                    Some(false) => below,
                    None => {
                        let (low, high) = (size - codes[below], codes[above] - size);
                        if low < high || low == high && below % 2 == 0 {
                            below
                        } else {
                            above
                        }
                    }
                };
                codes[pick].copysign(value)
            }
        }
    }
}

fn field(bytes: &[u8], start: usize, bits: usize) -> u32 {
    (0..bits).fold(0, |value, bit| {
        let at = start + bit;
        value | u32::from(bytes[at / 8] >> (at % 8) & 1) << bit
    })
}

/// One conversion: an expression of `x` (the source), `s` (the scale), `q` (the random word) and `r` (what the result
/// held), and where its elements lie.
struct Scaled {
    expr: String,
    source: &'static str,
    result: &'static str,
    from: Number,
    from_start: usize,
    to: Number,
    to_start: usize,
    count: usize,
    random: bool,
}

fn scaled_cases() -> Vec<Scaled> {
    let small = [("fp8", FP8), ("bf8", BF8), ("fp4", FP4)];
    let six = [("fp6", FP6), ("bf6", BF6)];
    let wide = [("f32", Number::F32), ("f16", Number::F16), ("bf16", Number::Bf16)];
    let pairs = ["f2", "h2", "b2"];
    let longs = ["f32v", "h32v", "b32v"];
    let mut cases = Vec::new();
    let mut add = |expr: String, source, result, from, from_start, to, to_start, count| {
        cases.push(Scaled {
            random: expr.contains(" q,"),
            expr: format!("__builtin_amdgcn_cvt_scalef32_{expr}"),
            source,
            result,
            from,
            from_start,
            to,
            to_start,
            count,
        });
    };
    for (name, number) in small {
        let four = number == FP4;
        let old = if four { "unsigned" } else { "s2" };
        let (unit, places) = if four { (8, 4) } else { (16, 2) };
        for place in 0..places {
            let select = if four {
                place.to_string()
            } else {
                (place == 1).to_string()
            };
            for ((wide_name, wide_number), pair) in wide.into_iter().zip(pairs) {
                add(
                    format!("pk_{wide_name}_{name}(x, s, {select})"),
                    "unsigned",
                    pair,
                    number,
                    unit * place,
                    wide_number,
                    0,
                    2,
                );
                let value = if wide_name == "f32" { "x[0], x[1]" } else { "x" };
                add(
                    format!("pk_{name}_{wide_name}(r, {value}, s, {select})"),
                    pair,
                    old,
                    wide_number,
                    0,
                    number,
                    unit * place,
                    2,
                );
                if four {
                    add(
                        format!("sr_pk_fp4_{wide_name}(r, x, q, s, {select})"),
                        pair,
                        old,
                        wide_number,
                        0,
                        number,
                        unit * place,
                        2,
                    );
                }
            }
        }
        if four {
            continue;
        }
        for byte in 0..4 {
            add(
                format!("f32_{name}(x, s, {byte})"),
                "unsigned",
                "float",
                number,
                8 * byte,
                Number::F32,
                0,
                1,
            );
            let high = byte % 2;
            add(
                format!("f16_{name}(r, x, s, {byte}, {})", high == 1),
                "unsigned",
                "h2",
                number,
                8 * byte,
                Number::F16,
                16 * high,
                1,
            );
            for ((wide_name, wide_number), one) in wide.into_iter().zip(["float", "_Float16", "__bf16"]) {
                add(
                    format!("sr_{name}_{wide_name}(r, x, q, s, {byte})"),
                    one,
                    "unsigned",
                    wide_number,
                    0,
                    number,
                    8 * byte,
                    1,
                );
            }
        }
    }
    for (name, number) in six {
        for ((wide_name, wide_number), long) in wide.into_iter().zip(longs) {
            add(
                format!("pk32_{wide_name}_{name}(x, s)"),
                "u6",
                long,
                number,
                0,
                wide_number,
                0,
                32,
            );
            add(
                format!("sr_pk32_{name}_{wide_name}(x, q, s)"),
                long,
                "u6",
                wide_number,
                0,
                number,
                0,
                32,
            );
            if wide_name == "f32" {
                add(
                    format!("2xpk16_{name}_f32(x.lo, x.hi, s)"),
                    long,
                    "u6",
                    wide_number,
                    0,
                    number,
                    0,
                    32,
                );
            } else {
                add(
                    format!("pk32_{name}_{wide_name}(x, s)"),
                    long,
                    "u6",
                    wide_number,
                    0,
                    number,
                    0,
                    32,
                );
            }
        }
    }
    cases
}

#[test]
fn scaled_conversions() {
    let size = |ty: &str| match ty {
        "u6" => 24,
        "h32v" | "b32v" => 64,
        "f32v" => 128,
        "f2" => 8,
        "_Float16" | "__bf16" => 2,
        _ => 4,
    };
    let types = "typedef short s2 __attribute__((ext_vector_type(2))); typedef float f2 __attribute__((ext_vector_type(2)));\n\
        typedef _Float16 h2 __attribute__((ext_vector_type(2))); typedef __bf16 b2 __attribute__((ext_vector_type(2)));\n\
        typedef unsigned u6 __attribute__((ext_vector_type(6))); typedef float f32v __attribute__((ext_vector_type(32)));\n\
        typedef _Float16 h32v __attribute__((ext_vector_type(32))); typedef __bf16 b32v __attribute__((ext_vector_type(32)));\n";
    let cases = scaled_cases();
    let mut source = types.to_string();
    for (index, case) in cases.iter().enumerate() {
        let (from, to) = (case.source, case.result);
        // Vectors of six words lie packed in memory.
        let load = |ty: &str, base: &str| match ty {
            "u6" => format!(
                "u6{{{}}}",
                (0..6)
                    .map(|i| format!("((unsigned*){base})[6 * l + {i}]"))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
            _ => format!("(({ty}*){base})[l]"),
        };
        let store = match to {
            "u6" => (0..6)
                .map(|i| format!("((unsigned*)o)[6 * l + {i}] = r[{i}]; "))
                .collect::<String>(),
            _ => format!("(({to}*)o)[l] = r;"),
        };
        source += &format!(
            "extern \"C\" __global__ void k{index}(char* o, char* p, float* t, unsigned* u) {{ int l = threadIdx.x;\n  \
             {from} x = {}; {to} r = {}; float s = t[l]; unsigned q = u[l];\n  r = {}; {store}\n}}\n",
            load(from, "p"),
            load(to, "o"),
            case.expr
        );
    }
    let Some(device) = Device::new(&source, "gfx950") else {
        return;
    };
    let mut random = Random::new(95);
    let mut checked = 0;
    for (index, case) in cases.iter().enumerate() {
        let (from_bytes, to_bytes) = (size(case.source), size(case.result));
        let scales: Vec<f32> = (0..64)
            .map(|_| 2f32.powi(random.below(9) as i32 - 4) * random.range(1.0, 1.99) as f32)
            .collect();
        let power = |lane: usize| 2f64.powi((scales[lane].to_bits() >> 23) as i32 - 127);
        // Up where the word is all ones, down where it is zero.
        let words: Vec<u32> = (0..64).map(|lane| if lane % 2 == 1 { u32::MAX } else { 0 }).collect();
        let shrinks = matches!(case.to, Number::Small(..));
        let mut bytes: Vec<u8> = (0..64 * from_bytes).map(|_| random.bits() as u8).collect();
        if shrinks {
            let unit = case.from.bits() / 8;
            for lane in 0..64 {
                for element in 0..case.count {
                    let value = random.range(-1.0, 1.0) * 0.95 * case.to.max() * power(lane);
                    let bits = match case.from {
                        Number::F32 => (value as f32).to_bits(),
                        Number::F16 => half::f16::from_f64(value).to_bits().into(),
                        _ => half::bf16::from_f64(value).to_bits().into(),
                    };
                    bytes[lane * from_bytes + element * unit..][..unit].copy_from_slice(&bits.to_le_bytes()[..unit]);
                }
            }
        }
        let old: Vec<u8> = (0..64 * to_bytes).map(|_| random.bits() as u8).collect();
        let out = device.upload(&old);
        let args = [
            out,
            device.upload(&bytes),
            device.upload(&scales),
            device.upload(&words),
        ]
        .map(Arg::Ptr);
        device.run(&format!("k{index}"), 1, 64, &args);
        let got: Vec<u8> = device.download(out, 64 * to_bytes);
        for lane in 0..64 {
            let (mine, before) = (&got[lane * to_bytes..][..to_bytes], &old[lane * to_bytes..][..to_bytes]);
            for element in 0..case.count {
                let bits = field(
                    &bytes[lane * from_bytes..],
                    case.from_start + element * case.from.bits(),
                    case.from.bits(),
                );
                let value = case.from.value(bits);
                let up = case.random.then_some(lane % 2 == 1);
                let exact = if shrinks {
                    value / power(lane)
                } else {
                    value * power(lane)
                };
                let result = case
                    .to
                    .value(field(mine, case.to_start + element * case.to.bits(), case.to.bits()));
                if !exact.is_finite() {
                    assert!(
                        result.is_nan() && exact.is_nan() || result == exact,
                        "{} of {value}",
                        case.expr
                    );
                    continue;
                }
                let want = case.to.round(exact, up);
                assert!(
                    result == want,
                    "{} lane {lane} element {element}: {exact} gives {result}, not {want}",
                    case.expr
                );
                checked += 1;
            }
            // What is beside the result stays. (The compiler does not hand the old value to these, and so need not.)
            if case.expr.contains("sr_pk_fp4") {
                continue;
            }
            for bit in 0..8 * to_bytes {
                let inside = (case.to_start..case.to_start + case.count * case.to.bits()).contains(&bit);
                assert!(
                    inside || field(mine, bit, 1) == field(before, bit, 1),
                    "{} touches bit {bit}",
                    case.expr
                );
            }
        }
    }
    assert!(checked > 40_000, "{checked}");
}

/// Sixteen lanes hold rows of sixteen elements; each gets a column.
#[test]
fn transposing_reads() {
    let source = r#"
#define LDS __attribute__((address_space(3)))
typedef short s4 __attribute__((ext_vector_type(4))); typedef int i2 __attribute__((ext_vector_type(2)));
typedef int i3 __attribute__((ext_vector_type(3)));
extern "C" __global__ void columns(unsigned* o, const unsigned* x) {
  __shared__ unsigned s[256];
  int l = threadIdx.x;
  for (int i = 0; i < 4; ++i) s[4 * l + i] = x[4 * l + i];
  __syncthreads();
  LDS char* at = (LDS char*)(s + 4 * l);
  i2 b8 = __builtin_amdgcn_ds_read_tr8_b64_v2i32((LDS i2*)at), b4 = __builtin_amdgcn_ds_read_tr4_b64_v2i32((LDS i2*)at);
  i2 b16 = __builtin_bit_cast(i2, __builtin_amdgcn_ds_read_tr16_b64_v4i16((LDS s4*)at));
  i3 b6 = __builtin_amdgcn_ds_read_tr6_b96_v3i32((LDS i3*)at);
  o[l] = b16[0]; o[64 + l] = b16[1]; o[128 + l] = b8[0]; o[192 + l] = b8[1]; o[256 + l] = b4[0]; o[320 + l] = b4[1];
  o[384 + l] = b6[0]; o[448 + l] = b6[1]; o[512 + l] = b6[2];
}
"#;
    let Some(device) = Device::new(source, "gfx950") else {
        return;
    };
    let mut random = Random::new(6);
    let x: Vec<u32> = (0..256).map(|_| random.bits() as u32).collect();
    let bytes: Vec<u8> = x.iter().flat_map(|word| word.to_le_bytes()).collect();
    let out = device.alloc(9 * 256);
    device.run("columns", 1, 64, &[out, device.upload(&x)].map(Arg::Ptr));
    let got: Vec<u32> = device.download(out, 9 * 64);
    for (width, first, words, source) in [
        (
            16usize,
            0usize,
            2usize,
            (|e, c| (4 * e + c / 4, c % 4)) as fn(usize, usize) -> (usize, usize),
        ),
        (8, 2, 2, |e, c| (2 * e + c / 8, c % 8)),
        (4, 4, 2, |e, c| (e, c)),
        (6, 6, 3, |e, c| (e, c)),
    ] {
        for lane in 0..64 {
            let mine: Vec<u8> = (0..words)
                .flat_map(|word| got[64 * (first + word) + lane].to_le_bytes())
                .collect();
            for e in 0..32 * words / width {
                let (from, place) = source(e, lane % 16);
                let want = field(&bytes[16 * (lane / 16 * 16 + from)..], place * width, width);
                assert_eq!(
                    field(&mine, e * width, width),
                    want,
                    "{width} bits, lane {lane}, element {e}"
                );
            }
        }
    }
}

#[test]
fn stochastic_rounding_to_16_bits() {
    let source = r#"
typedef _Float16 h2 __attribute__((ext_vector_type(2))); typedef __bf16 b2 __attribute__((ext_vector_type(2)));
extern "C" __global__ void both(h2* o, b2* p, const float* x, const unsigned* q) {
  int l = threadIdx.x;
  o[l] = __builtin_amdgcn_cvt_sr_f16_f32(o[l], x[l], q[l], l & 1); p[l] = __builtin_amdgcn_cvt_sr_bf16_f32(p[l], x[l], q[l], l & 1);
}
"#
    .replace("l & 1", "true");
    let Some(device) = Device::new(&source, "gfx950") else {
        return;
    };
    let mut random = Random::new(12);
    // Normal and denormal halves of both signs.
    let x: Vec<f32> = (0..64)
        .map(|i| (random.range(-1.0, 1.0) * 2f64.powi(8 - i / 2)) as f32)
        .collect();
    for word in [0u32, u32::MAX] {
        let (o, p) = (
            device.upload(&[0x1234_5678u32; 64]),
            device.upload(&[0x1234_5678u32; 64]),
        );
        device.run(
            "both",
            1,
            64,
            &[o, p, device.upload(&x), device.upload(&[word; 64])].map(Arg::Ptr),
        );
        let (halves, floats): (Vec<u32>, Vec<u32>) = (device.download(o, 64), device.download(p, 64));
        for (index, value) in x.iter().enumerate() {
            let exact = f64::from(*value).abs();
            let half = half::f16::from_bits((halves[index] >> 16) as u16).to_f64().abs();
            let float = half::bf16::from_bits((floats[index] >> 16) as u16).to_f64().abs();
            assert_eq!((halves[index] & 0xffff, floats[index] & 0xffff), (0x5678, 0x5678));
            let half_unit = 2f64.powi(exact.log2().floor().max(-14.0) as i32 - 10);
            let unit = 2f64.powi(exact.log2().floor() as i32 - 7);
            if word == 0 {
                assert!(half <= exact && exact - half < half_unit, "{value} down to {half}");
                assert!(float <= exact && exact - float < unit, "{value} down to {float}");
            } else {
                assert!(half >= exact && half - exact < half_unit, "{value} up to {half}");
                assert!(float >= exact && float - exact < unit, "{value} up to {float}");
            }
        }
    }
}

#[test]
fn sums_of_differences_and_cubes() {
    let source = r#"
typedef unsigned u4 __attribute__((ext_vector_type(4)));
extern "C" __global__ void run(unsigned* o, unsigned long* w, float* f, const unsigned* x, const float* y) {
  int l = threadIdx.x;
  unsigned a = x[l], b = x[l + 64] & 0xff00ffff, c = x[l + 128]; unsigned long d = x[l] | (unsigned long)x[l + 128] << 32;
  u4 e = {a, b, c, 7};
  o[l] = __builtin_amdgcn_msad_u8(a, b, c);
  w[l] = __builtin_amdgcn_qsad_pk_u16_u8(d, b, 0x0001000200030004ul); w[l + 64] = __builtin_amdgcn_mqsad_pk_u16_u8(d, b, 0x0001000200030004ul);
  u4 r = __builtin_amdgcn_mqsad_u32_u8(d, b, e);
  for (int i = 0; i < 4; ++i) o[64 + 4 * l + i] = r[i];
  float u = y[l], v = y[l + 64], t = y[l + 128];
  f[l] = __builtin_amdgcn_cubeid(u, v, t); f[l + 64] = __builtin_amdgcn_cubesc(u, v, t);
  f[l + 128] = __builtin_amdgcn_cubetc(u, v, t); f[l + 192] = __builtin_amdgcn_cubema(u, v, t);
}
"#;
    let mut random = Random::new(77);
    let x: Vec<u32> = (0..192).map(|_| random.bits() as u32).collect();
    let y: Vec<f32> = (0..192).map(|_| random.range(-1.0, 1.0) as f32).collect();
    for arch in common::all_arches() {
        let Some(device) = Device::new(source, arch) else {
            return;
        };
        let (o, w, f) = (device.alloc(1280), device.alloc(1024), device.alloc(1024));
        device.run(
            "run",
            1,
            64,
            &[o, w, f, device.upload(&x), device.upload(&y)].map(Arg::Ptr),
        );
        let (narrow, wide): (Vec<u32>, Vec<u64>) = (device.download(o, 320), device.download(w, 128));
        let faces: Vec<f32> = device.download(f, 256);
        for l in 0..64 {
            let (a, b, c) = (x[l], x[l + 64] & 0xff00_ffff, x[l + 128]);
            let d = u64::from(a) | u64::from(c) << 32;
            let byte = |word: u64, index: usize| (word >> (8 * index)) as u8;
            let sad = |at: usize, masked: bool| -> u32 {
                (0..4)
                    .filter(|i| !masked || byte(b.into(), *i) != 0)
                    .map(|i| u32::from(byte(d, at + i).abs_diff(byte(b.into(), i))))
                    .sum()
            };
            assert_eq!(narrow[l], c.wrapping_add(sad(0, true)), "{arch} msad {l}");
            for i in 0..4 {
                let base = 4 - i as u32;
                assert_eq!(
                    (wide[l] >> (16 * i)) as u16,
                    (base + sad(i, false)) as u16,
                    "{arch} qsad {l}"
                );
                assert_eq!(
                    (wide[l + 64] >> (16 * i)) as u16,
                    (base + sad(i, true)) as u16,
                    "{arch} mqsad {l}"
                );
                assert_eq!(
                    narrow[64 + 4 * l + i],
                    [a, b, c, 7][i].wrapping_add(sad(i, true)),
                    "{arch} {l}"
                );
            }
            // The face's axis has the largest magnitude; its sign chooses the face.
            let v = [y[l], y[l + 64], y[l + 128]];
            let axis = (0..3).max_by(|i, j| v[*i].abs().total_cmp(&v[*j].abs())).unwrap();
            let negative = v[axis] < 0.0;
            let flip = if negative { -1.0 } else { 1.0 };
            let (sc, tc) = match axis {
                0 => (-flip * v[2], -v[1]),
                1 => (v[0], flip * v[2]),
                _ => (flip * v[0], -v[1]),
            };
            let want = [(2 * axis + usize::from(negative)) as f32, sc, tc, 2.0 * v[axis]];
            let got = [faces[l], faces[l + 64], faces[l + 128], faces[l + 192]];
            assert_eq!(got, want, "{arch} {v:?}");
        }
    }
}

#[test]
fn packed_shifts_saturate() {
    let source = r#"
extern "C" __global__ void pack(unsigned short* o, const int* x) {
  int l = threadIdx.x;
  o[l] = __builtin_amdgcn_ashr_pk_i8_i32(x[l], x[l + 64], l); o[l + 64] = __builtin_amdgcn_ashr_pk_u8_i32(x[l], x[l + 64], l);
}
"#;
    let Some(device) = Device::new(source, "gfx950") else {
        return;
    };
    let mut random = Random::new(5);
    let x: Vec<i32> = (0..128).map(|_| random.bits() as i32).collect();
    let out = device.alloc(256);
    device.run("pack", 1, 64, &[out, device.upload(&x)].map(Arg::Ptr));
    let got: Vec<u16> = device.download(out, 128);
    for l in 0..64 {
        let (a, b) = (x[l] >> (l & 31), x[l + 64] >> (l & 31));
        let signed = [a, b].map(|v| v.clamp(-128, 127) as u8);
        let unsigned = [a, b].map(|v| v.clamp(0, 255) as u8);
        assert_eq!(
            [got[l], got[l + 64]],
            [u16::from_le_bytes(signed), u16::from_le_bytes(unsigned)],
            "{l}"
        );
    }
}

/// The device library reduces huge angles with pieces of 2/π.
#[test]
fn sines_of_huge_angles() {
    let source = r#"
extern "C" __global__ void angles(double* o, const double* x) {
  int l = threadIdx.x; o[l] = sin(x[l]); o[l + 32] = cos(x[l]); o[l + 64] = __builtin_amdgcn_trig_preop(x[l], 1);
}
"#;
    let mut random = Random::new(31);
    let mut x: Vec<f64> = (0..28).map(|i| random.range(1.0, 2.0) * 2f64.powi(i * 37)).collect();
    x.extend([1e22, -1e300, f64::MAX, 0.5]);
    for arch in common::all_arches() {
        let Some(device) = Device::new(source, arch) else {
            return;
        };
        let out = device.alloc(96 * 8);
        device.run("angles", 1, 32, &[out, device.upload(&x)].map(Arg::Ptr));
        let got: Vec<f64> = device.download(out, 96);
        for (index, angle) in x.iter().enumerate() {
            for (value, want) in [(got[index], angle.sin()), (got[index + 32], angle.cos())] {
                assert!(close(value, want, F64, 4.0), "{arch} {angle}: {value}, not {want}");
            }
        }
        // A piece as it is: of a small angle the second is digits 54 to 106 of 2/π, of which the first 64 are
        // a2f9836e4e441529 in base 16.
        let piece = got[64 + 31] * 2f64.powi(106);
        assert!(piece < 2f64.powi(53) && piece >= 0.0, "{arch}: {piece}");
        assert_eq!((piece as u64) >> (53 - 11), 0xa2f9_836e_4e44_1529u64 & 0x7ff, "{arch}");
    }
}

/// Reductions over a wave's divergent lanes clear one lane's bit after another.
#[test]
fn wave_reductions() {
    let source = r#"
extern "C" __global__ void reduce(unsigned* o, const unsigned* x) {
  int l = threadIdx.x;
  if (x[l] & 1) { o[l] = __builtin_amdgcn_wave_reduce_add_u32(x[l], 0); o[l + 64] = __builtin_amdgcn_wave_reduce_max_u32(x[l], 0); }
}
"#;
    let x: Vec<u32> = (0..64u32).map(|i| i.wrapping_mul(2_654_435_761) >> 5).collect();
    for arch in common::all_arches() {
        let Some(device) = Device::new(source, arch) else {
            return;
        };
        let out = device.upload(&[0u32; 128]);
        device.run("reduce", 1, 64, &[out, device.upload(&x)].map(Arg::Ptr));
        let got: Vec<u32> = device.download(out, 128);
        let lanes = if arch.starts_with("gfx9") { 64 } else { 32 };
        for wave in 0..64 / lanes {
            let on: Vec<usize> = (wave * lanes..(wave + 1) * lanes).filter(|l| x[*l] & 1 == 1).collect();
            let sum = on.iter().fold(0u32, |sum, l| sum.wrapping_add(x[*l]));
            let most = on.iter().map(|l| x[*l]).max().unwrap();
            assert!(
                on.iter().all(|l| (got[*l], got[l + 64]) == (sum, most)),
                "{arch} wave {wave}"
            );
        }
    }
}
