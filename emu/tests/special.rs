//! Instructions that only builtins reach: 8-bit float conversions, buffers with their bounds, loads to LDS, row
//! permutes, and matrix instructions with broadcasts and block scales.

mod common;
use common::{Arg, Device, Random};

/// The value of an 8-bit float: mantissa bits, bias, and whether it is of the FNUZ kind.
fn small_value(bits: u8, mantissa_bits: i32, bias: i32, fnuz: bool) -> f64 {
    let top = (1 << (7 - mantissa_bits)) - 1;
    let exponent = i32::from(bits & 0x7f) >> mantissa_bits;
    let mantissa = i32::from(bits) & ((1 << mantissa_bits) - 1);
    let nan = if fnuz {
        bits == 0x80
    } else if mantissa_bits == 3 {
        bits & 0x7f == 0x7f
    } else {
        exponent == top
    };
    if nan {
        return f64::NAN;
    }
    let fraction = f64::from(mantissa) / f64::from(1 << mantissa_bits);
    let value = if exponent == 0 {
        fraction * 2f64.powi(1 - bias)
    } else {
        (1.0 + fraction) * 2f64.powi(exponent - bias)
    };
    if bits & 0x80 != 0 { -value } else { value }
}

/// The nearest of all values, the even one of two.
fn small_round(value: f64, decode: impl Fn(u8) -> f64) -> u8 {
    let distance = |bits: u8| (decode(bits) - value).abs();
    let finite = (0..=255u8).filter(|bits| decode(*bits).is_finite());
    finite
        .reduce(|best, bits| {
            let nearer = distance(bits) < distance(best) || distance(bits) == distance(best) && bits & 1 < best & 1;
            if nearer { bits } else { best }
        })
        .expect("a format has values")
}

#[test]
fn eight_bit_floats() {
    let source = |bf8: &str| {
        format!(
            "typedef float f2 __attribute__((ext_vector_type(2)));\n\
             extern \"C\" __global__ void pack(unsigned* o, const float* x) {{\n  \
             int t = threadIdx.x; int r = 0x11223344;\n  \
             r = __builtin_amdgcn_cvt_pk_{bf8}_f32(x[4 * t], x[4 * t + 1], r, false);\n  \
             r = __builtin_amdgcn_cvt_pk_{bf8}_f32(x[4 * t + 2], x[4 * t + 3], r, true); o[t] = r;\n}}\n\
             extern \"C\" __global__ void half_pack(unsigned* o, const float* x) {{\n  \
             int t = threadIdx.x; o[t] = __builtin_amdgcn_cvt_pk_{bf8}_f32(x[4 * t], x[4 * t + 1], 0x11223344, true);\n}}\n\
             extern \"C\" __global__ void unpack(float* o, const unsigned* x) {{\n  \
             int t = threadIdx.x; unsigned v = x[t];\n  \
             o[4 * t] = __builtin_amdgcn_cvt_f32_{bf8}(v, 0); o[4 * t + 1] = __builtin_amdgcn_cvt_f32_{bf8}(v, 1);\n  \
             o[4 * t + 2] = __builtin_amdgcn_cvt_f32_{bf8}(v, 2); o[4 * t + 3] = __builtin_amdgcn_cvt_f32_{bf8}(v, 3);\n}}\n\
             extern \"C\" __global__ void pairs(float* o, const unsigned* x) {{\n  \
             int t = threadIdx.x; f2 a = __builtin_amdgcn_cvt_pk_f32_{bf8}(x[t], false), b = __builtin_amdgcn_cvt_pk_f32_{bf8}(x[t], true);\n  \
             o[4 * t] = a.x; o[4 * t + 1] = a.y; o[4 * t + 2] = b.x; o[4 * t + 3] = b.y;\n}}\n\
             extern \"C\" __global__ void random(unsigned* o, const float* x) {{\n  \
             int t = threadIdx.x; o[t] = __builtin_amdgcn_cvt_sr_{bf8}_f32(x[t], t * 0x1000193u * 2654435761u, 0, 2);\n}}\n"
        )
    };
    for arch in ["gfx942", "gfx950", "gfx1201"] {
        for (name, mantissa, bias) in [("fp8", 3, 7), ("bf8", 2, 15)] {
            let Some(device) = Device::new(&source(name), arch) else {
                return;
            };
            let fnuz = arch == "gfx942";
            let decode = |bits: u8| small_value(bits, mantissa, bias + i32::from(fnuz), fnuz);
            let mut random = Random::new(11);
            let x: Vec<f32> = (0..256)
                .map(|_| (random.range(-1.0, 1.0) * 2f64.powf(random.range(-12.0, 7.5))) as f32)
                .collect();
            let (input, out) = (device.upload(&x), device.alloc(256));
            device.run("pack", 1, 64, &[out, input].map(Arg::Ptr));
            let got: Vec<u8> = device.download(out, 256);
            for (value, bits) in x.iter().zip(&got) {
                let want = small_round(f64::from(*value), decode);
                let equal = decode(*bits) == decode(want);
                assert!(
                    equal,
                    "{arch} {name} {value}: {} against {}",
                    decode(*bits),
                    decode(want)
                );
            }
            device.run("half_pack", 1, 64, &[out, input].map(Arg::Ptr));
            let got: Vec<u32> = device.download(out, 64);
            assert!(
                got.iter().all(|word| word & 0xffff == 0x3344),
                "{arch} {name}: the other half is kept"
            );

            let bits: Vec<u8> = (0..=255).collect();
            let (input, out) = (device.upload(&bits), device.alloc(1024));
            for kernel in ["unpack", "pairs"] {
                device.run(kernel, 1, 64, &[out, input].map(Arg::Ptr));
                let got: Vec<f32> = device.download(out, 256);
                for (bits, value) in bits.iter().zip(&got) {
                    let want = decode(*bits);
                    let infinite = name == "bf8" && !fnuz && bits & 0x7f == 0x7c;
                    if infinite {
                        assert!(value.is_infinite(), "{arch} {name} {bits:#x}");
                    } else {
                        assert!(
                            f64::from(*value) == want || value.is_nan() && want.is_nan(),
                            "{arch} {name} {kernel} {bits:#x}: {value} against {want}"
                        );
                    }
                }
            }
            let (input, out) = (device.upload(&[1.03f32; 64]), device.alloc(256));
            device.run("random", 1, 64, &[out, input].map(Arg::Ptr));
            let got: Vec<u32> = device.download(out, 64);
            let values: Vec<f64> = got.iter().map(|word| decode((word >> 16 & 0xff) as u8)).collect();
            let step = 2f64.powi(-mantissa);
            assert!(
                values.iter().all(|v| *v == 1.0 || *v == 1.0 + step),
                "{arch} {name}: {values:?}"
            );
            let mean = values.iter().sum::<f64>() / 64.0;
            assert!(
                (mean - 1.03).abs() < step / 4.0,
                "{arch} {name}: the mean of stochastic rounding is {mean}"
            );
        }
    }
}

#[test]
fn buffers_check_their_bounds() {
    let source = r#"
typedef unsigned u4 __attribute__((ext_vector_type(4)));
extern "C" __global__ void loads(unsigned* o, unsigned* p, int bytes) {
  __amdgpu_buffer_rsrc_t r = __builtin_amdgcn_make_buffer_rsrc(p, 0, bytes, FLAGS);
  int t = threadIdx.x;
  u4 q = __builtin_amdgcn_raw_buffer_load_b128(r, t * 4, 16, 0);
  o[8 * t] = __builtin_amdgcn_raw_buffer_load_b32(r, t * 4, 0, 0);
  o[8 * t + 1] = q.x; o[8 * t + 2] = q.y; o[8 * t + 3] = q.z; o[8 * t + 4] = q.w;
  o[8 * t + 5] = __builtin_amdgcn_raw_buffer_load_b8(r, t, 0, 0);
  o[8 * t + 6] = __builtin_amdgcn_raw_buffer_load_b16(r, t * 2, 0, 0);
  o[8 * t + 7] = 7;
}
extern "C" __global__ void stores(unsigned* p, int bytes) {
  __amdgpu_buffer_rsrc_t r = __builtin_amdgcn_make_buffer_rsrc(p, 0, bytes, FLAGS);
  int t = threadIdx.x;
  __builtin_amdgcn_raw_buffer_store_b32(t + 1000, r, t * 4, 0, 0);
}
"#;
    for arch in common::all_arches() {
        let flags = match arch {
            _ if arch.starts_with("gfx9") => "0x27000",
            "gfx1030" => "0x31014000",
            _ => "0x31004000",
        };
        let Some(device) = Device::new(&source.replace("FLAGS", flags), arch) else {
            return;
        };
        let words: Vec<u32> = (0..64).map(|i| 0x0101_0101 * (i + 1)).collect();
        let (p, out) = (device.upload(&words), device.alloc(64 * 32));
        // The buffer ends after 40 words, the allocation after 64.
        device.run("loads", 1, 64, &[Arg::Ptr(out), Arg::Ptr(p), Arg::I32(160)]);
        let got: Vec<u32> = device.download(out, 512);
        for t in 0..64 {
            let word = |index: usize| if index < 40 { words[index] } else { 0 };
            let row = &got[8 * t..8 * t + 8];
            assert_eq!(row[0], word(t), "{arch} {t}");
            for part in 0..4 {
                assert_eq!(row[1 + part], word(t + 4 + part), "{arch} {t} {part}");
            }
            assert_eq!(row[5], words[t / 4] & 0xff, "{arch} {t}");
            assert_eq!(row[6], words[t / 2] & 0xffff, "{arch} {t}");
        }
        device.run("stores", 1, 64, &[Arg::Ptr(p), Arg::I32(160)]);
        let got: Vec<u32> = device.download(p, 64);
        for (t, value) in got.iter().enumerate() {
            assert_eq!(*value, if t < 40 { t as u32 + 1000 } else { words[t] }, "{arch} {t}");
        }
    }
}

#[test]
fn row_permutes() {
    let source = r#"
extern "C" __global__ void rows(int* o, const int* x) {
  int t = threadIdx.x, v = x[t];
#if defined(__gfx1030__) || defined(__gfx1100__) || defined(__gfx1201__)
  o[t] = __builtin_amdgcn_permlane16(v, v, 0x76543210u, 0xfedcba98u, true, false);
  o[t + 64] = __builtin_amdgcn_permlanex16(v, v, 0x01234567u, 0x89abcdefu, true, false);
  o[t + 128] = __builtin_amdgcn_mov_dpp8(v, 0xfac688);
#else
  auto a = __builtin_amdgcn_permlane32_swap(v, v * 3, false, false);
  auto b = __builtin_amdgcn_permlane16_swap(v, v * 3, false, false);
  o[t] = a[0]; o[t + 64] = a[1]; o[t + 128] = b[0]; o[t + 192] = b[1];
#endif
}
"#;
    let x: Vec<i32> = (0..64).map(|i| i * i + 7).collect();
    for arch in ["gfx1030", "gfx1100", "gfx1201", "gfx950"] {
        let Some(device) = Device::new(source, arch) else {
            return;
        };
        let (input, out) = (device.upload(&x), device.alloc(1024));
        device.run("rows", 1, 64, &[out, input].map(Arg::Ptr));
        if arch == "gfx950" {
            let got: Vec<i32> = device.download(out, 256);
            for t in 0..64 {
                // The upper half of the first and the lower half of the second change places.
                assert_eq!(got[t], if t < 32 { x[t] } else { 3 * x[t - 32] }, "{t}");
                assert_eq!(got[t + 64], if t < 32 { x[t + 32] } else { 3 * x[t] }, "{t}");
                assert_eq!(got[t + 128], if t & 16 == 0 { x[t] } else { 3 * x[t - 16] }, "{t}");
                assert_eq!(got[t + 192], if t & 16 == 0 { x[t + 16] } else { 3 * x[t] }, "{t}");
            }
            continue;
        }
        let got: Vec<i32> = device.download(out, 192);
        for t in 0..64 {
            assert_eq!(got[t], x[t], "{arch} {t}: the identity");
            let turned = if t & 15 < 8 { 7 - (t & 15) } else { 23 - (t & 15) };
            assert_eq!(got[t + 64], x[((t & !15) ^ 16) + turned], "{arch} {t}");
            let select = 0xfac688u32 >> (3 * (t & 7)) & 7;
            assert_eq!(got[t + 128], x[(t & !7) + select as usize], "{arch} {t}");
        }
    }
}

#[test]
fn loads_straight_to_lds() {
    let source = r#"
extern "C" __global__ void through(int* o, const int* x) {
  __shared__ int s[64];
  int t = threadIdx.x;
  __builtin_amdgcn_global_load_lds((__attribute__((address_space(1))) void*)(x + (t ^ 5)),
    (__attribute__((address_space(3))) void*)s, 4, 0, 0);
  __builtin_amdgcn_s_waitcnt(0);
  __syncthreads();
  o[t] = s[63 - t];
}
"#;
    for arch in ["gfx942", "gfx950"] {
        let Some(device) = Device::new(source, arch) else {
            return;
        };
        let x: Vec<i32> = (0..64).map(|i| i * 11 + 3).collect();
        let (input, out) = (device.upload(&x), device.alloc(256));
        device.run("through", 1, 64, &[out, input].map(Arg::Ptr));
        let want: Vec<i32> = (0..64usize).map(|t| x[(63 - t) ^ 5]).collect();
        assert_eq!(device.download::<i32>(out, 64), want, "{arch}");
    }
}

/// Broadcasts of A (cbsz, abid) and lane patterns of B (blgp), on four blocks of 16×16×1.
#[test]
fn matrix_broadcasts() {
    for (cbsz, abid, blgp) in [
        (1, 0, 0),
        (1, 1, 0),
        (2, 3, 0),
        (0, 0, 1),
        (0, 0, 2),
        (0, 0, 3),
        (0, 0, 5),
    ] {
        let source = format!(
            "typedef float C __attribute__((ext_vector_type(16)));\n\
             extern \"C\" __global__ void tile(C* d, const float* a, const float* b) {{ C c = {{}};\n\
             d[threadIdx.x] = __builtin_amdgcn_mfma_f32_16x16x1f32(a[threadIdx.x], b[threadIdx.x], c, {cbsz}, {abid}, {blgp}); }}"
        );
        let Some(device) = Device::new(&source, "gfx90a") else {
            return;
        };
        let a: Vec<f32> = (0..64).map(|i| i as f32 + 1.0).collect();
        let b: Vec<f32> = (0..64).map(|i| 100.0 - i as f32).collect();
        let (pa, pb, d) = (device.upload(&a), device.upload(&b), device.alloc(4096));
        device.run("tile", 1, 64, &[d, pa, pb].map(Arg::Ptr));
        let got: Vec<f32> = device.download(d, 1024);
        for block in 0..4usize {
            let a_block = block / (1 << cbsz) * (1 << cbsz) + abid;
            for row in 0..16 {
                for column in 0..16 {
                    let lane = block * 16 + column;
                    let b_lane = match blgp {
                        1 => lane % 32,
                        2 => lane % 32 + 32,
                        3 => (lane + 16) % 64,
                        5 => lane % 16 + 16,
                        _ => lane,
                    };
                    let want = a[a_block * 16 + row] * b[b_lane];
                    let value = got[(column + 16 * (row / 4)) * 16 + block * 4 + row % 4];
                    assert_eq!(
                        value, want,
                        "cbsz {cbsz} abid {abid} blgp {blgp} block {block} ({row}, {column})"
                    );
                }
            }
        }
    }
}

/// gfx950's 8-bit matrix product with a scale for each 32 elements.
#[test]
fn block_scales() {
    for (m, k, name, opsel) in [
        (16usize, 128usize, "16x16x128", 0usize),
        (32, 64, "32x32x64", 2),
        (16, 128, "16x16x128", 3),
    ] {
        let results = m * m / 64;
        let source = format!(
            "typedef int A __attribute__((ext_vector_type(8))); typedef float C __attribute__((ext_vector_type({results})));\n\
             extern \"C\" __global__ void tile(C* d, const A* a, const A* b, const int* sa, const int* sb) {{\n\
             int l = threadIdx.x; C c = {{}};\n\
             d[l] = __builtin_amdgcn_mfma_scale_f32_{name}_f8f6f4(a[l], b[l], c, 0, 0, {opsel}, sa[l], {opsel}, sb[l]); }}"
        );
        let Some(device) = Device::new(&source, "gfx950") else {
            return;
        };
        let mut random = Random::new(4);
        let decode = |bits: u8| small_value(bits, 3, 7, false);
        let mut tile = || -> Vec<u8> {
            (0..64 * 32)
                .map(|_| {
                    let bits = random.below(256) as u8;
                    if bits & 0x7f > 0x50 { bits & 0xbf } else { bits }
                })
                .collect()
        };
        let (a, b) = (tile(), tile());
        let mut scales = || -> Vec<[u8; 4]> {
            (0..64)
                .map(|_| std::array::from_fn(|_| 120 + random.below(10) as u8))
                .collect()
        };
        let (sa, sb) = (scales(), scales());
        let d = device.alloc(64 * results * 4);
        let args = [
            d,
            device.upload(&a),
            device.upload(&b),
            device.upload(&sa),
            device.upload(&sb),
        ]
        .map(Arg::Ptr);
        device.run("tile", 1, 64, &args);
        let got: Vec<f32> = device.download(d, 64 * results);
        let groups = 64 / m;
        for row in 0..m {
            for column in 0..m {
                let (mut want, mut size) = (0f64, 0f64);
                for kk in 0..k {
                    let (la, lb) = (row + m * (kk / 32), column + m * (kk / 32));
                    let scale = 2f64.powi(i32::from(sa[la][opsel]) - 127 + i32::from(sb[lb][opsel]) - 127);
                    let product = decode(a[la * 32 + kk % 32]) * decode(b[lb * 32 + kk % 32]) * scale;
                    want += product;
                    size += product.abs();
                }
                let quad = row / 4;
                let value = got[(column + m * (quad % groups)) * results + quad / groups * 4 + row % 4];
                assert!(
                    (f64::from(value) - want).abs() <= size * 1e-6,
                    "{name} opsel {opsel} ({row}, {column}): {value}, not {want}"
                );
            }
        }
    }
}

/// Four-bit integers through WMMA: sixteen of a row in two registers on gfx11, eight in one on gfx12.
#[test]
fn four_bit_wmma() {
    for (arch, builtin, ty, per_lane) in [
        (
            "gfx1100",
            "wmma_i32_16x16x16_iu4_w32",
            "__attribute__((ext_vector_type(2))) int",
            16usize,
        ),
        ("gfx1201", "wmma_i32_16x16x16_iu4_w32_gfx12", "int", 8),
    ] {
        for (a_signed, b_signed) in [(true, true), (false, true), (false, false)] {
            let source = format!(
                "typedef {ty} A; typedef int C __attribute__((ext_vector_type(8)));\n\
                 extern \"C\" __global__ void tile(C* d, const A* a, const A* b) {{ int l = threadIdx.x; C c = {{}};\n\
                 d[l] = __builtin_amdgcn_{builtin}({a_signed}, a[l], {b_signed}, b[l], c, false); }}"
            );
            let Some(device) = Device::new(&source, arch) else {
                return;
            };
            let mut random = Random::new(8);
            let mut tile = || -> Vec<u8> { (0..256).map(|_| random.below(16) as u8).collect() };
            let (a, b) = (tile(), tile());
            // Nibble k of row r.
            let lay = |tile: &[u8]| -> Vec<u8> {
                let mut bytes = vec![0u8; 32 * per_lane / 2];
                for lane in 0..32 {
                    for e in 0..per_lane {
                        let k = if per_lane == 16 { e } else { 8 * (lane / 16) + e };
                        bytes[lane * per_lane / 2 + e / 2] |= tile[lane % 16 * 16 + k] << (4 * (e % 2));
                    }
                }
                bytes
            };
            let d = device.alloc(1024);
            let args = [d, device.upload(&lay(&a)), device.upload(&lay(&b))].map(Arg::Ptr);
            device.run("tile", 1, 32, &args);
            let got: Vec<i32> = device.download(d, 256);
            let value = |bits: u8, signed: bool| {
                if signed {
                    i32::from((bits << 4) as i8 >> 4)
                } else {
                    bits.into()
                }
            };
            for row in 0..16 {
                for column in 0..16 {
                    let want: i32 = (0..16)
                        .map(|k| value(a[row * 16 + k], a_signed) * value(b[column * 16 + k], b_signed))
                        .sum();
                    let (lane, index) = if arch == "gfx1100" {
                        (column + 16 * (row % 2), row / 2)
                    } else {
                        (column + 16 * (row / 8), row % 8)
                    };
                    assert_eq!(
                        got[lane * 8 + index],
                        want,
                        "{arch} {a_signed} {b_signed} ({row}, {column})"
                    );
                }
            }
        }
    }
}

/// gfx950's products of four-bit and six-bit floats: e2m1, e2m3 and e3m2.
#[test]
fn four_and_six_bit_floats() {
    let decode = |bits: u32, exponent_bits: u32, mantissa_bits: u32| -> f64 {
        let bias = (1i32 << (exponent_bits - 1)) - 1;
        let exponent = (bits >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
        let fraction = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
        let value = if exponent == 0 {
            fraction * 2f64.powi(1 - bias)
        } else {
            (1.0 + fraction) * 2f64.powi(exponent - bias)
        };
        if bits >> (exponent_bits + mantissa_bits) & 1 == 1 {
            -value
        } else {
            value
        }
    };
    for (code, exponent_bits, mantissa_bits) in [(4, 2, 1), (2, 2, 3), (3, 3, 2)] {
        let width = 1 + exponent_bits + mantissa_bits;
        let source = format!(
            "typedef int A __attribute__((ext_vector_type(8))); typedef float C __attribute__((ext_vector_type(4)));\n\
             extern \"C\" __global__ void tile(C* d, const A* a, const A* b) {{ int l = threadIdx.x; C c = {{}};\n\
             d[l] = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(a[l], b[l], c, {code}, {code}, 0, 128, 0, 127); }}"
        );
        let Some(device) = Device::new(&source, "gfx950") else {
            return;
        };
        let mut random = Random::new(21);
        let mut tile = || -> Vec<u32> { (0..16 * 128).map(|_| random.below(1 << width) as u32).collect() };
        let (a, b) = (tile(), tile());
        let lay = |tile: &[u32]| -> Vec<u8> {
            let mut bytes = vec![0u8; 64 * 32];
            for lane in 0..64usize {
                for e in 0..32usize {
                    let bits = tile[lane % 16 * 128 + 32 * (lane / 16) + e];
                    for bit in 0..width as usize {
                        let at = e * width as usize + bit;
                        bytes[lane * 32 + at / 8] |= ((bits >> bit & 1) as u8) << (at % 8);
                    }
                }
            }
            bytes
        };
        let d = device.alloc(1024);
        let args = [d, device.upload(&lay(&a)), device.upload(&lay(&b))].map(Arg::Ptr);
        device.run("tile", 1, 64, &args);
        let got: Vec<f32> = device.download(d, 256);
        for row in 0..16 {
            for column in 0..16 {
                let value = |bits: u32| decode(bits, exponent_bits, mantissa_bits);
                // A's scale of 128 doubles.
                let want: f64 = (0..128)
                    .map(|k| 2.0 * value(a[row * 128 + k]) * value(b[column * 128 + k]))
                    .sum();
                let result = f64::from(got[(column + 16 * (row / 4)) * 4 + row % 4]);
                assert!(
                    (result - want).abs() < 1e-3,
                    "format {code} ({row}, {column}): {result}, not {want}"
                );
            }
        }
    }
}
