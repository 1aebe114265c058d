//! Every matrix instruction against the definition of its product: random tiles are laid out in registers by the
//! documented layout, written here a second time and independently of the emulator's, and compared with the
//! product computed on the host in f64.

mod common;
use common::{Arg, Device, F16, F32, NoCode, Random};

/// A matrix instruction: its builtin, the tile, the element types and which archs have it.
struct Shape {
    builtin: &'static str,
    m: usize,
    k: usize,
    blocks: usize,
    input: &'static str,
    output: &'static str,
    archs: &'static [&'static str],
}

const fn shape(
    builtin: &'static str,
    m: usize,
    k: usize,
    blocks: usize,
    input: &'static str,
    output: &'static str,
    archs: &'static [&'static str],
) -> Shape {
    Shape {
        builtin,
        m,
        k,
        blocks,
        input,
        output,
        archs,
    }
}

const CDNA: &[&str] = &["gfx908", "gfx90a", "gfx942", "gfx950"];
const CDNA2: &[&str] = &["gfx90a", "gfx942", "gfx950"];
const CDNA3: &[&str] = &["gfx942", "gfx950"];
const CDNA12: &[&str] = &["gfx908", "gfx90a"];
const CDNA4: &[&str] = &["gfx950"];

const MFMA: &[Shape] = &[
    shape("mfma_f32_32x32x1f32", 32, 1, 2, "f32", "f32", CDNA),
    shape("mfma_f32_16x16x1f32", 16, 1, 4, "f32", "f32", CDNA),
    shape("mfma_f32_4x4x1f32", 4, 1, 16, "f32", "f32", CDNA),
    shape("mfma_f32_32x32x2f32", 32, 2, 1, "f32", "f32", CDNA),
    shape("mfma_f32_16x16x4f32", 16, 4, 1, "f32", "f32", CDNA),
    shape("mfma_f32_32x32x4f16", 32, 4, 2, "f16", "f32", CDNA),
    shape("mfma_f32_16x16x4f16", 16, 4, 4, "f16", "f32", CDNA),
    shape("mfma_f32_4x4x4f16", 4, 4, 16, "f16", "f32", CDNA),
    shape("mfma_f32_32x32x8f16", 32, 8, 1, "f16", "f32", CDNA),
    shape("mfma_f32_16x16x16f16", 16, 16, 1, "f16", "f32", CDNA),
    shape("mfma_i32_32x32x4i8", 32, 4, 2, "i8", "i32", CDNA),
    shape("mfma_i32_16x16x4i8", 16, 4, 4, "i8", "i32", CDNA),
    shape("mfma_i32_4x4x4i8", 4, 4, 16, "i8", "i32", CDNA),
    shape("mfma_i32_32x32x8i8", 32, 8, 1, "i8", "i32", CDNA12),
    shape("mfma_i32_16x16x16i8", 16, 16, 1, "i8", "i32", CDNA12),
    shape("mfma_f32_32x32x2bf16", 32, 2, 2, "bf16s", "f32", CDNA12),
    shape("mfma_f32_16x16x2bf16", 16, 2, 4, "bf16s", "f32", CDNA12),
    shape("mfma_f32_4x4x2bf16", 4, 2, 16, "bf16s", "f32", CDNA12),
    shape("mfma_f32_32x32x4bf16", 32, 4, 1, "bf16s", "f32", CDNA12),
    shape("mfma_f32_16x16x8bf16", 16, 8, 1, "bf16s", "f32", CDNA12),
    shape("mfma_f32_32x32x4bf16_1k", 32, 4, 2, "bf16s", "f32", CDNA2),
    shape("mfma_f32_16x16x4bf16_1k", 16, 4, 4, "bf16s", "f32", CDNA2),
    shape("mfma_f32_4x4x4bf16_1k", 4, 4, 16, "bf16s", "f32", CDNA2),
    shape("mfma_f32_32x32x8bf16_1k", 32, 8, 1, "bf16s", "f32", CDNA2),
    shape("mfma_f32_16x16x16bf16_1k", 16, 16, 1, "bf16s", "f32", CDNA2),
    shape("mfma_f64_16x16x4f64", 16, 4, 1, "f64", "f64", CDNA2),
    shape("mfma_f64_4x4x4f64", 4, 4, 4, "f64", "f64", CDNA2),
    shape("mfma_i32_16x16x32_i8", 16, 32, 1, "i8l", "i32", CDNA3),
    shape("mfma_i32_32x32x16_i8", 32, 16, 1, "i8l", "i32", CDNA3),
    shape("mfma_f32_16x16x8_xf32", 16, 8, 1, "xf32", "f32", &["gfx942"]),
    shape("mfma_f32_32x32x4_xf32", 32, 4, 1, "xf32", "f32", &["gfx942"]),
    shape("mfma_f32_16x16x32_fp8_fp8", 16, 32, 1, "fp8", "f32", CDNA3),
    shape("mfma_f32_16x16x32_bf8_bf8", 16, 32, 1, "bf8", "f32", CDNA3),
    shape("mfma_f32_16x16x32_fp8_bf8", 16, 32, 1, "fp8/bf8", "f32", CDNA3),
    shape("mfma_f32_16x16x32_bf8_fp8", 16, 32, 1, "bf8/fp8", "f32", CDNA3),
    shape("mfma_f32_32x32x16_fp8_fp8", 32, 16, 1, "fp8", "f32", CDNA3),
    shape("mfma_f32_32x32x16_bf8_bf8", 32, 16, 1, "bf8", "f32", CDNA3),
    shape("mfma_f32_32x32x16_fp8_bf8", 32, 16, 1, "fp8/bf8", "f32", CDNA3),
    shape("mfma_f32_32x32x16_bf8_fp8", 32, 16, 1, "bf8/fp8", "f32", CDNA3),
    shape("mfma_f32_16x16x32_f16", 16, 32, 1, "f16", "f32", CDNA4),
    shape("mfma_f32_32x32x16_f16", 32, 16, 1, "f16", "f32", CDNA4),
    shape("mfma_f32_16x16x32_bf16", 16, 32, 1, "bf16", "f32", CDNA4),
    shape("mfma_f32_32x32x16_bf16", 32, 16, 1, "bf16", "f32", CDNA4),
    shape("mfma_i32_16x16x64_i8", 16, 64, 1, "i8v", "i32", CDNA4),
    shape("mfma_i32_32x32x32_i8", 32, 32, 1, "i8v", "i32", CDNA4),
];

/// Bytes of an element.
fn width(ty: &str) -> usize {
    match ty.split('/').next().unwrap_or(ty) {
        "f64" => 8,
        "f32" | "i32" | "xf32" => 4,
        "f16" | "bf16" | "bf16s" => 2,
        _ => 1,
    }
}

/// The C++ type of a lane's operand with `count` elements.
fn vector(ty: &str, count: usize) -> String {
    match ty.split('/').next().unwrap_or(ty) {
        "f64" if count == 1 => "double".into(),
        "f64" => format!("__attribute__((ext_vector_type({count}))) double"),
        "f32" if count == 1 => "float".into(),
        "f32" | "xf32" => format!("__attribute__((ext_vector_type({count}))) float"),
        "i32" => format!("__attribute__((ext_vector_type({count}))) int"),
        "f16" => format!("__attribute__((ext_vector_type({count}))) _Float16"),
        "bf16" => format!("__attribute__((ext_vector_type({count}))) __bf16"),
        "bf16s" => format!("__attribute__((ext_vector_type({count}))) short"),
        "i8" => "int".into(),
        "i8l" | "fp8" | "bf8" => "long".into(),
        "i8v" => "__attribute__((ext_vector_type(4))) int".into(),
        other => panic!("{other}"),
    }
}

/// A random small value that the type holds exactly, with its bits.
fn element(ty: &str, arch: &str, random: &mut Random) -> (f64, u64) {
    match ty {
        "f64" => {
            let value = random.range(-2.0, 2.0);
            (value, value.to_bits())
        }
        "f32" => {
            let value = random.range(-2.0, 2.0) as f32;
            (value.into(), value.to_bits().into())
        }
        // The hardware keeps ten bits of mantissa; values with few bits need no rounding.
        "xf32" => {
            let value = ((random.range(-2.0, 2.0) * 256.0).round() / 256.0) as f32;
            (value.into(), value.to_bits().into())
        }
        "f16" => {
            let value = half::f16::from_f64(random.range(-2.0, 2.0));
            (value.to_f64(), value.to_bits().into())
        }
        "bf16" | "bf16s" => {
            let value = half::bf16::from_f64(random.range(-2.0, 2.0));
            (value.to_f64(), value.to_bits().into())
        }
        "i8" | "i8l" | "i8v" | "iu8" => {
            let value = random.bits() as i8;
            (value.into(), (value as u8).into())
        }
        "fp8" | "bf8" => loop {
            let bits = random.below(256) as u8;
            let fnuz = arch == "gfx942";
            let value = match (ty, fnuz) {
                ("fp8", false) => float8::F8E4M3::from_bits(bits).to_f64(),
                (_, false) => float8::F8E5M2::from_bits(bits).to_f64(),
                // FNUZ has a bias greater by one, and its all-ones exponent holds numbers.
                ("fp8", true) => fnuz_value(bits, 3, 8),
                (_, true) => fnuz_value(bits, 2, 16),
            };
            if value.is_finite() && value.abs() < 32.0 {
                return (value, bits.into());
            }
        },
        other => panic!("{other}"),
    }
}

fn fnuz_value(bits: u8, mantissa_bits: i32, bias: i32) -> f64 {
    if bits == 0x80 {
        return f64::NAN;
    }
    let exponent = i32::from(bits & 0x7f) >> mantissa_bits;
    let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let value = if exponent == 0 {
        mantissa * 2f64.powi(1 - bias)
    } else {
        (1.0 + mantissa) * 2f64.powi(exponent - bias)
    };
    if bits & 0x80 != 0 { -value } else { value }
}

fn put(bytes: &mut [u8], index: usize, width: usize, bits: u64) {
    bytes[index * width..][..width].copy_from_slice(&bits.to_le_bytes()[..width]);
}

#[test]
fn mfma() {
    let mut failures = Vec::new();
    let mut lacking = Vec::new();
    for shape in MFMA {
        let (m, k, blocks) = (shape.m, shape.k, shape.blocks);
        let per_lane = m * k * blocks / 64;
        let results = m * m * blocks / 64;
        let (out_ty, in_ty) = (vector(shape.output, results), vector(shape.input, per_lane));
        let source = format!(
            "typedef {in_ty} A; typedef {out_ty} C;\n\
             extern \"C\" __global__ void tile(C* d, const A* a, const A* b, const C* c) {{\n  \
             int l = threadIdx.x; d[l] = __builtin_amdgcn_{}(a[l], b[l], c[l], 0, 0, 0);\n}}\n",
            shape.builtin
        );
        for arch in ["gfx908", "gfx90a", "gfx942", "gfx950"] {
            if !shape.archs.contains(&arch) {
                lacking.push(format!("{} on {arch}", shape.builtin));
                continue;
            }
            let device = match Device::try_new(&source, arch, &[]) {
                Ok(device) => device,
                Err(NoCode::Skipped(reason)) => {
                    println!("skipped: {reason}");
                    return;
                }
                Err(NoCode::Refused(log)) => {
                    failures.push(format!("{} {arch}: {log}", shape.builtin));
                    continue;
                }
            };
            let mut random = Random::new(k as u64 * 31 + m as u64);
            let (a_ty, b_ty) = shape.input.split_once('/').unwrap_or((shape.input, shape.input));
            let (iw, ow) = (width(shape.input), width(shape.output));
            let mut a = vec![0f64; blocks * m * k];
            let mut b = vec![0f64; blocks * m * k];
            let (mut a_bytes, mut b_bytes) = (vec![0u8; 64 * per_lane * iw], vec![0u8; 64 * per_lane * iw]);
            // Lane = row + m * (block + blocks * group of k).
            for block in 0..blocks {
                for row in 0..m {
                    for kk in 0..k {
                        let lane = row + m * (block + blocks * (kk / per_lane));
                        let (value, bits) = element(a_ty, arch, &mut random);
                        a[(block * m + row) * k + kk] = value;
                        put(&mut a_bytes, lane * per_lane + kk % per_lane, iw, bits);
                        let (value, bits) = element(b_ty, arch, &mut random);
                        b[(block * m + row) * k + kk] = value;
                        put(&mut b_bytes, lane * per_lane + kk % per_lane, iw, bits);
                    }
                }
            }
            // Where element (row, column) of a block is: for 4-byte results rows go in fours through the lane groups.
            let place = |block: usize, row: usize, column: usize| -> (usize, usize) {
                if ow == 8 {
                    let groups = 64 / (m * blocks);
                    (column + m * (block + blocks * (row % groups)), row / groups)
                } else {
                    let quad = block * (m / 4) + row / 4;
                    let groups = 64 / m;
                    (column + m * (quad % groups), quad / groups * 4 + row % 4)
                }
            };
            let mut c = vec![0f64; blocks * m * m];
            let mut c_bytes = vec![0u8; 64 * results * ow];
            for block in 0..blocks {
                for row in 0..m {
                    for column in 0..m {
                        let (lane, index) = place(block, row, column);
                        let (value, bits) = match shape.output {
                            "i32" => {
                                let value = random.bits() as i16;
                                (f64::from(value), u64::from(i32::from(value) as u32))
                            }
                            other => element(other, arch, &mut random),
                        };
                        c[(block * m + row) * m + column] = value;
                        put(&mut c_bytes, lane * results + index, ow, bits);
                    }
                }
            }
            let buffers = [
                device.upload(&a_bytes),
                device.upload(&b_bytes),
                device.upload(&c_bytes),
            ];
            let d = device.alloc(c_bytes.len());
            let args = [d, buffers[0], buffers[1], buffers[2]].map(Arg::Ptr);
            let counters = match device.try_run("tile", 1, 64, &args) {
                Ok(counters) => counters,
                Err(error) => {
                    failures.push(format!("{} {arch}: {error}", shape.builtin));
                    continue;
                }
            };
            assert_eq!(
                counters.matrix_macs,
                (m * m * k * blocks) as u64,
                "{} {arch}",
                shape.builtin
            );
            let got: Vec<u8> = device.download(d, c_bytes.len());
            'blocks: for block in 0..blocks {
                for row in 0..m {
                    for column in 0..m {
                        let mut want = c[(block * m + row) * m + column];
                        let mut size = want.abs();
                        for kk in 0..k {
                            let product = a[(block * m + row) * k + kk] * b[(block * m + column) * k + kk];
                            want += product;
                            size += product.abs();
                        }
                        let (lane, index) = place(block, row, column);
                        let bytes = &got[(lane * results + index) * ow..][..ow];
                        let value = match shape.output {
                            "f64" => f64::from_le_bytes(bytes.try_into().unwrap()),
                            "f32" => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
                            _ => i32::from_le_bytes(bytes.try_into().unwrap()).into(),
                        };
                        let tolerance = match shape.output {
                            "f64" => size * 1e-15,
                            "f32" => size * f64::from(f32::EPSILON) * 2.0,
                            _ => 0.0,
                        };
                        if (value - want).abs() > tolerance || value.is_nan() {
                            failures.push(format!(
                                "{} {arch} block {block} ({row}, {column}): {value}, not {want}",
                                shape.builtin
                            ));
                            break 'blocks;
                        }
                    }
                }
            }
        }
    }
    println!("lacking, as the archs are: {}", lacking.join(", "));
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// gfx90a flushes f16 and bf16 denormals in its matrix unit; the other parts keep them.
#[test]
fn denormals_in_mfma() {
    let source = "typedef _Float16 A __attribute__((ext_vector_type(4))); typedef float C __attribute__((ext_vector_type(4)));\n\
        extern \"C\" __global__ void tile(C* d, const A* a, const A* b) { int l = threadIdx.x; C c = {0, 0, 0, 0};\n\
        d[l] = __builtin_amdgcn_mfma_f32_16x16x16f16(a[l], b[l], c, 0, 0, 0); }";
    for arch in ["gfx908", "gfx90a", "gfx942", "gfx950"] {
        let Some(device) = Device::new(source, arch) else {
            return;
        };
        let denormal = half::f16::from_bits(0x0001);
        let one = half::f16::from_f32(1024.0);
        let (a, b) = (
            device.upload(&[denormal.to_bits(); 256]),
            device.upload(&[one.to_bits(); 256]),
        );
        let d = device.alloc(1024);
        device.run("tile", 1, 64, &[d, a, b].map(Arg::Ptr));
        let got: Vec<f32> = device.download(d, 256);
        let want = if arch == "gfx90a" {
            0.0
        } else {
            16.0 * 1024.0 * denormal.to_f32()
        };
        assert!(
            got.iter().all(|value| *value == want),
            "{arch}: {} against {want}",
            got[0]
        );
    }
}

struct Wmma {
    builtin: &'static str,
    input: &'static str,
    output: &'static str,
    /// Arguments around a, b, c.
    call: &'static str,
}

/// WMMA of gfx11: A's and B's sixteen values of a row in one lane, the same in the lane above by sixteen.
#[test]
fn wmma_gfx11() {
    let cases = [
        Wmma {
            builtin: "wmma_f32_16x16x16_f16_w32",
            input: "f16",
            output: "f32",
            call: "a[l], b[l], c[l]",
        },
        Wmma {
            builtin: "wmma_f32_16x16x16_bf16_w32",
            input: "bf16s",
            output: "f32",
            call: "a[l], b[l], c[l]",
        },
        Wmma {
            builtin: "wmma_f16_16x16x16_f16_w32",
            input: "f16",
            output: "f16",
            call: "a[l], b[l], c[l], false",
        },
        Wmma {
            builtin: "wmma_i32_16x16x16_iu8_w32",
            input: "iu8",
            output: "i32",
            call: "true, a[l], true, b[l], c[l], false",
        },
    ];
    let (a_order, c_order): (
        fn(usize, usize) -> Vec<(usize, usize)>,
        fn(usize, usize) -> (usize, usize),
    ) = (
        |row, k| vec![(row, k), (row + 16, k)],
        |row, column| (column + 16 * (row % 2), row / 2),
    );
    wmma("gfx1100", &cases, 32, 16, 8, a_order, c_order);
    // Waves of 64 lanes: four copies of A and B, and a quarter of the rows in each sixteen lanes.
    let cases = [
        Wmma {
            builtin: "wmma_f32_16x16x16_f16_w64",
            input: "f16",
            output: "f32",
            call: "a[l], b[l], c[l]",
        },
        Wmma {
            builtin: "wmma_f32_16x16x16_bf16_w64",
            input: "bf16s",
            output: "f32",
            call: "a[l], b[l], c[l]",
        },
        Wmma {
            builtin: "wmma_i32_16x16x16_iu8_w64",
            input: "iu8",
            output: "i32",
            call: "true, a[l], true, b[l], c[l], false",
        },
    ];
    let a_order = |row: usize, k: usize| (0..4).map(|copy| (row + 16 * copy, k)).collect();
    wmma("gfx1100", &cases, 64, 16, 4, a_order, |row, column| {
        (column + 16 * (row % 4), row / 4)
    });
}

/// WMMA of gfx12: eight of a row's sixteen values in each half of the wave.
#[test]
fn wmma_gfx12() {
    let cases = [
        Wmma {
            builtin: "wmma_f32_16x16x16_f16_w32_gfx12",
            input: "f16",
            output: "f32",
            call: "a[l], b[l], c[l]",
        },
        Wmma {
            builtin: "wmma_f32_16x16x16_bf16_w32_gfx12",
            input: "bf16s",
            output: "f32",
            call: "a[l], b[l], c[l]",
        },
        Wmma {
            builtin: "wmma_f16_16x16x16_f16_w32_gfx12",
            input: "f16",
            output: "f16",
            call: "a[l], b[l], c[l]",
        },
        Wmma {
            builtin: "wmma_i32_16x16x16_iu8_w32_gfx12",
            input: "iu8",
            output: "i32",
            call: "true, a[l], true, b[l], c[l], false",
        },
        Wmma {
            builtin: "wmma_f32_16x16x16_fp8_fp8_w32_gfx12",
            input: "fp8",
            output: "f32",
            call: "a[l], b[l], c[l]",
        },
        Wmma {
            builtin: "wmma_f32_16x16x16_bf8_bf8_w32_gfx12",
            input: "bf8",
            output: "f32",
            call: "a[l], b[l], c[l]",
        },
    ];
    wmma(
        "gfx1201",
        &cases,
        32,
        8,
        8,
        |row, k| vec![(row + 16 * (k / 8), k % 8)],
        |row, column| (column + 16 * (row / 8), row % 8),
    );
}

fn wmma(
    arch: &str,
    cases: &[Wmma],
    lanes: usize,
    per_lane: usize,
    results: usize,
    a_order: fn(usize, usize) -> Vec<(usize, usize)>,
    c_order: fn(usize, usize) -> (usize, usize),
) {
    let mut failures = Vec::new();
    for case in cases {
        let in_ty = match case.input {
            "iu8" | "fp8" | "bf8" => format!("__attribute__((ext_vector_type({}))) int", per_lane / 4),
            other => vector(other, per_lane),
        };
        // gfx11's f16 results take one half of a whole register each.
        let wide_half = case.output == "f16" && arch == "gfx1100";
        let stored = if wide_half { 2 * results } else { results };
        let out_ty = vector(case.output, stored);
        let source = format!(
            "typedef {in_ty} A; typedef {out_ty} C;\n\
             extern \"C\" __global__ void tile(C* d, const A* a, const A* b, const C* c) {{\n  \
             int l = threadIdx.x; d[l] = __builtin_amdgcn_{}({});\n}}\n",
            case.builtin, case.call
        );
        let options: &[&str] = if lanes == 64 { &["-mwavefrontsize64"] } else { &[] };
        let device = match Device::try_new(&source, arch, options) {
            Ok(device) => device,
            Err(NoCode::Skipped(reason)) => {
                println!("skipped: {reason}");
                return;
            }
            Err(NoCode::Refused(log)) => panic!("{arch} {}: {log}", case.builtin),
        };
        let mut random = Random::new(77);
        let (iw, ow) = (width(case.input), width(case.output));
        let (mut a, mut b, mut c) = ([0f64; 256], [0f64; 256], [0f64; 256]);
        let (mut a_bytes, mut b_bytes) = (vec![0u8; lanes * per_lane * iw], vec![0u8; lanes * per_lane * iw]);
        let mut c_bytes = vec![0u8; lanes * stored * ow];
        for row in 0..16 {
            for k in 0..16 {
                for (values, bytes) in [(&mut a, &mut a_bytes), (&mut b, &mut b_bytes)] {
                    let (value, bits) = element(case.input, arch, &mut random);
                    values[row * 16 + k] = value;
                    for (lane, index) in a_order(row, k) {
                        put(bytes, lane * per_lane + index, iw, bits);
                    }
                }
                let (lane, index) = c_order(row, k);
                let (value, bits) = match case.output {
                    "i32" => {
                        let value = random.bits() as i16;
                        (f64::from(value), u64::from(i32::from(value) as u32))
                    }
                    other => element(other, arch, &mut random),
                };
                c[row * 16 + k] = value;
                put(
                    &mut c_bytes,
                    lane * stored + if wide_half { 2 * index } else { index },
                    ow,
                    bits,
                );
            }
        }
        let buffers = [
            device.upload(&a_bytes),
            device.upload(&b_bytes),
            device.upload(&c_bytes),
        ];
        let d = device.alloc(c_bytes.len());
        let args = [d, buffers[0], buffers[1], buffers[2]].map(Arg::Ptr);
        if let Err(error) = device.try_run("tile", 1, lanes as u32, &args) {
            failures.push(format!("{} {arch}: {error}", case.builtin));
            continue;
        }
        let got: Vec<u8> = device.download(d, c_bytes.len());
        'rows: for row in 0..16 {
            for column in 0..16 {
                let mut want = c[row * 16 + column];
                let mut size = want.abs();
                for k in 0..16 {
                    let product = a[row * 16 + k] * b[column * 16 + k];
                    want += product;
                    size += product.abs();
                }
                let (lane, index) = c_order(row, column);
                let index = lane * stored + if wide_half { 2 * index } else { index };
                let bytes = &got[index * ow..][..ow];
                let (value, tolerance) = match case.output {
                    "f32" => (
                        f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
                        size * 2.0 * F32.ulp(1.0),
                    ),
                    "f16" => (
                        half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
                        size * 2.0 * F16.ulp(1.0),
                    ),
                    _ => (f64::from(i32::from_le_bytes(bytes.try_into().unwrap())), 0.0),
                };
                if (value - want).abs() > tolerance || value.is_nan() {
                    failures.push(format!("{} ({row}, {column}): {value}, not {want}", case.builtin));
                    break 'rows;
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
