//! Matrix instructions with a sparse A, and gfx12's in waves of 64 lanes, against the definition of the product.
//!
//! Of every four elements along a row of A two are there; the test draws which, lays values and indices out by the
//! formulas of AMD's manuals and its matrix instruction calculator, and compares with the product in f64.

mod common;
use common::{Arg, Device, NoCode, Random};

/// Where the parts of a product lie. All are functions of k, groups counting the lanes of a row or column.
#[derive(Clone, Copy)]
struct Layout {
    a_group: fn(usize) -> usize,
    /// Which pair of a lane's elements of A belongs to the four that k is among.
    pair: fn(usize) -> usize,
    b_group: fn(usize) -> usize,
    b_element: fn(usize) -> usize,
    /// (lane, element) of a result's (row, column).
    result: fn(usize, usize) -> (usize, usize),
}

struct Case {
    builtin: &'static str,
    m: usize,
    k: usize,
    /// Types of A and B.
    input: [&'static str; 2],
    output: &'static str,
    lanes: usize,
    layout: Layout,
    /// The pieces of the index register to try.
    pieces: &'static [usize],
}

fn bits_of(ty: &str) -> usize {
    match ty {
        "f32" | "i32" => 32,
        "f16" | "bf16" | "__bf16" => 16,
        "i4" | "u4" => 4,
        _ => 8,
    }
}

/// The C++ type that holds `count` elements.
fn vector(ty: &str, count: usize) -> String {
    let (base, size) = match ty {
        "f32" => ("float", 1),
        "f16" => ("_Float16", 1),
        "bf16" => ("short", 1),
        "__bf16" => ("__bf16", 1),
        "i32" => ("int", 1),
        other => ("int", 32 / bits_of(other)),
    };
    let count = (count / size).max(1);
    if count == 1 {
        base.into()
    } else {
        format!("__attribute__((ext_vector_type({count}))) {base}")
    }
}

/// A random value that the type holds, with its bits.
fn element(ty: &str, arch: &str, random: &mut Random) -> (f64, u32) {
    match ty {
        "f32" => {
            let value = random.range(-2.0, 2.0) as f32;
            (value.into(), value.to_bits())
        }
        "f16" => {
            let value = half::f16::from_f64(random.range(-2.0, 2.0));
            (value.to_f64(), value.to_bits().into())
        }
        "bf16" | "__bf16" => {
            let value = half::bf16::from_f64(random.range(-2.0, 2.0));
            (value.to_f64(), value.to_bits().into())
        }
        "i32" => {
            let value = random.bits() as i16;
            (value.into(), i32::from(value) as u32)
        }
        "i8" => {
            let value = random.bits() as i8;
            (value.into(), (value as u8).into())
        }
        "u8" => {
            let value = random.bits() as u8;
            (value.into(), value.into())
        }
        "i4" => {
            let value = (random.bits() as i8) >> 4;
            (value.into(), (value as u8 & 15).into())
        }
        "u4" => {
            let value = random.bits() as u8 & 15;
            (value.into(), value.into())
        }
        "fp8" | "bf8" => loop {
            let bits = random.below(256) as u8;
            let value = match (ty, arch == "gfx942") {
                ("fp8", false) => float8::F8E4M3::from_bits(bits).to_f64(),
                (_, false) => float8::F8E5M2::from_bits(bits).to_f64(),
                // FNUZ: one NaN, and a bias greater by one.
                ("fp8", true) if bits != 0x80 => float8_fnuz(bits, 3, 8),
                (_, true) if bits != 0x80 => float8_fnuz(bits, 2, 16),
                _ => f64::NAN,
            };
            if value.abs() < 32.0 {
                return (value, bits.into());
            }
        },
        other => panic!("{other}"),
    }
}

fn float8_fnuz(bits: u8, mantissa_bits: i32, bias: i32) -> f64 {
    let exponent = i32::from(bits & 0x7f) >> mantissa_bits;
    let fraction = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let value = if exponent == 0 {
        fraction * 2f64.powi(1 - bias)
    } else {
        (1.0 + fraction) * 2f64.powi(exponent - bias)
    };
    if bits & 0x80 != 0 { -value } else { value }
}

/// Registers of all lanes as bytes, filled element by element.
struct Lanes {
    bytes: Vec<u8>,
    stride: usize,
}

impl Lanes {
    fn new(lanes: usize, count: usize, bits: usize) -> Lanes {
        let stride = (count * bits / 8).max(4);
        Lanes {
            bytes: vec![0; lanes * stride],
            stride,
        }
    }

    fn put(&mut self, lane: usize, element: usize, bits: usize, value: u32) {
        for bit in 0..bits {
            let at = element * bits + bit;
            self.bytes[lane * self.stride + at / 8] |= ((value >> bit & 1) as u8) << (at % 8);
        }
    }
}

fn check(arch: &str, case: &Case, piece: usize, failures: &mut Vec<String>) -> Option<()> {
    let Case {
        m, k, lanes, layout, ..
    } = *case;
    let [a_ty, b_ty] = case.input;
    let (a_bits, b_bits, out_bits) = (bits_of(a_ty), bits_of(b_ty), bits_of(case.output));
    // The smallest four-bit A leaves the upper lanes empty.
    let a_count = (m * k / 2 / lanes).max(32 / a_bits);
    let (b_count, results) = (m * k / lanes, m * m / lanes);
    let integer = case.output == "i32";
    let wmma = arch.starts_with("gfx12");
    let index_bits = 2 * a_count;
    let mut sign = [a_ty, b_ty].map(|ty| if ty.starts_with('i') { "true, " } else { "false, " });
    if !(integer && wmma) {
        sign = [""; 2];
    }
    let index = if wmma {
        format!("idx[l] >> {}", piece * index_bits)
    } else {
        "idx[l]".into()
    };
    let tail = match (wmma, integer) {
        (true, true) => ", false".to_string(),
        (true, false) => String::new(),
        (false, _) => format!(", 0, {piece}"),
    };
    // The builtins of gfx12 shift the index; only assembly names a piece of it. Pieces 2 and 3, of waves of 64 lanes,
    // are not something that comgr's disassembler reads.
    let call = if wmma && !integer && piece == 1 {
        let name = case.builtin.trim_end_matches("_w32").trim_end_matches("_w64");
        format!(
            "A x = a[l]; B y = b[l]; C z = c[l]; int i = idx[l];\n  \
             asm(\"v_{name} %0, %1, %2, %3 index_key:{piece}\" : \"+v\"(z) : \"v\"(x), \"v\"(y), \"v\"(i)); d[l] = z;"
        )
    } else {
        format!(
            "d[l] = __builtin_amdgcn_{}({}a[l], {}b[l], c[l], {index}{tail});",
            case.builtin, sign[0], sign[1]
        )
    };
    let source = format!(
        "typedef {} A; typedef {} B; typedef {} C;\n\
         extern \"C\" __global__ void tile(C* d, const A* a, const B* b, const C* c, const int* idx) {{\n  \
         int l = threadIdx.x; {call}\n}}\n",
        vector(a_ty, a_count),
        vector(b_ty, b_count),
        vector(case.output, results),
    );
    let options: &[&str] = if wmma && lanes == 64 {
        &["-mwavefrontsize64"]
    } else {
        &[]
    };
    let device = match Device::try_new(&source, arch, options) {
        Ok(device) => device,
        Err(NoCode::Skipped(reason)) => {
            println!("skipped: {reason}");
            return None;
        }
        Err(NoCode::Refused(log)) => {
            failures.push(format!("{} {arch}: {log}", case.builtin));
            return Some(());
        }
    };
    let mut random = Random::new(k as u64 * 7 + piece as u64);
    let mut a = vec![0f64; m * k];
    let mut a_lanes = Lanes::new(lanes, a_count, a_bits);
    // What is in the other pieces must not matter.
    let mut words: Vec<u32> = (0..lanes).map(|_| random.bits() as u32).collect();
    for row in 0..m {
        for four in (0..k).step_by(4) {
            let first = random.below(3) as usize;
            let second = first + 1 + random.below(3 - first as u64) as usize;
            let lane = row + m * (layout.a_group)(four);
            for (half, at) in [first, second].into_iter().enumerate() {
                let (value, bits) = element(a_ty, arch, &mut random);
                a[row * k + four + at] = value;
                let e = 2 * (layout.pair)(four) + half;
                a_lanes.put(lane, e, a_bits, bits);
                let shift = piece * index_bits + 2 * e;
                words[lane] = words[lane] & !(3 << shift) | (at as u32) << shift;
            }
        }
    }
    let mut b = vec![0f64; k * m];
    let mut b_lanes = Lanes::new(lanes, b_count, b_bits);
    for column in 0..m {
        for kk in 0..k {
            let (value, bits) = element(b_ty, arch, &mut random);
            b[kk * m + column] = value;
            b_lanes.put(column + m * (layout.b_group)(kk), (layout.b_element)(kk), b_bits, bits);
        }
    }
    let mut c = vec![0f64; m * m];
    let mut c_lanes = Lanes::new(lanes, results, out_bits);
    for row in 0..m {
        for column in 0..m {
            let (value, bits) = element(case.output, arch, &mut random);
            c[row * m + column] = value;
            let (lane, e) = (layout.result)(row, column);
            c_lanes.put(lane, e, out_bits, bits);
        }
    }
    let d = device.alloc(c_lanes.bytes.len());
    let args = [
        d,
        device.upload(&a_lanes.bytes),
        device.upload(&b_lanes.bytes),
        device.upload(&c_lanes.bytes),
        device.upload(&words),
    ]
    .map(Arg::Ptr);
    if let Err(error) = device.try_run("tile", 1, lanes as u32, &args) {
        failures.push(format!("{} {arch}: {error}", case.builtin));
        return Some(());
    }
    let got: Vec<u8> = device.download(d, c_lanes.bytes.len());
    for row in 0..m {
        for column in 0..m {
            let (mut want, mut size) = (c[row * m + column], c[row * m + column].abs());
            for kk in 0..k {
                want += a[row * k + kk] * b[kk * m + column];
                size += (a[row * k + kk] * b[kk * m + column]).abs();
            }
            let (lane, e) = (layout.result)(row, column);
            let bytes = &got[lane * c_lanes.stride + e * out_bits / 8..][..out_bits / 8];
            let (value, tolerance) = match case.output {
                "f32" => (f32::from_le_bytes(bytes.try_into().unwrap()).into(), size * 2.4e-7),
                "f16" => (
                    half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
                    size * 1e-3,
                ),
                "bf16" => (
                    half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
                    size * 8e-3,
                ),
                _ => (f64::from(i32::from_le_bytes(bytes.try_into().unwrap())), 0.0),
            };
            if (value - want).abs() > tolerance || value.is_nan() {
                failures.push(format!(
                    "{} {arch} piece {piece} ({row}, {column}): {value}, not {want}",
                    case.builtin
                ));
                return Some(());
            }
        }
    }
    Some(())
}

fn run(arch: &str, cases: &[Case]) {
    let mut failures = Vec::new();
    for case in cases {
        for piece in case.pieces {
            if check(arch, case, *piece, &mut failures).is_none() {
                return;
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

/// SMFMAC: each lane group has a run of k, `2^LOG` of B's elements in a lane.
fn smfmac_layout<const LOG: usize>(m: usize) -> Layout {
    Layout {
        a_group: |k| k >> LOG,
        pair: |k| (k & ((1 << LOG) - 1)) / 4,
        b_group: |k| k >> LOG,
        b_element: |k| k & ((1 << LOG) - 1),
        result: if m == 16 {
            |row, column| (column + 16 * (row / 4), row % 4)
        } else {
            |row, column| (column + 32 * (row / 4 % 2), row / 8 * 4 + row % 4)
        },
    }
}

#[test]
fn smfmac() {
    let case = |builtin, m: usize, k: usize, input, output, pieces| Case {
        builtin,
        m,
        k,
        input,
        output,
        lanes: 64,
        layout: match m * k / 64 {
            8 => smfmac_layout::<3>(m),
            16 => smfmac_layout::<4>(m),
            _ => smfmac_layout::<5>(m),
        },
        pieces,
    };
    let half = |builtin, m, k, ty| case(builtin, m, k, [ty; 2], "f32", &[0, 1, 3]);
    let eight = |builtin, m, k, input, output| case(builtin, m, k, input, output, &[0, 1]);
    let both = [
        half("smfmac_f32_16x16x32_f16", 16, 32, "f16"),
        half("smfmac_f32_32x32x16_f16", 32, 16, "f16"),
        half("smfmac_f32_16x16x32_bf16", 16, 32, "bf16"),
        half("smfmac_f32_32x32x16_bf16", 32, 16, "bf16"),
        eight("smfmac_i32_16x16x64_i8", 16, 64, ["i8", "i8"], "i32"),
        eight("smfmac_i32_32x32x32_i8", 32, 32, ["i8", "i8"], "i32"),
        eight("smfmac_f32_16x16x64_fp8_fp8", 16, 64, ["fp8", "fp8"], "f32"),
        eight("smfmac_f32_16x16x64_fp8_bf8", 16, 64, ["fp8", "bf8"], "f32"),
        eight("smfmac_f32_16x16x64_bf8_fp8", 16, 64, ["bf8", "fp8"], "f32"),
        eight("smfmac_f32_16x16x64_bf8_bf8", 16, 64, ["bf8", "bf8"], "f32"),
        eight("smfmac_f32_32x32x32_fp8_fp8", 32, 32, ["fp8", "fp8"], "f32"),
        eight("smfmac_f32_32x32x32_fp8_bf8", 32, 32, ["fp8", "bf8"], "f32"),
        eight("smfmac_f32_32x32x32_bf8_fp8", 32, 32, ["bf8", "fp8"], "f32"),
        eight("smfmac_f32_32x32x32_bf8_bf8", 32, 32, ["bf8", "bf8"], "f32"),
    ];
    run("gfx942", &both);
    run("gfx950", &both);
    // Twice the k: twice the indices, so half as many pieces.
    let half = |builtin, m, k, ty| case(builtin, m, k, [ty; 2], "f32", &[0, 1]);
    let eight = |builtin, m, k, input, output| case(builtin, m, k, input, output, &[0]);
    run(
        "gfx950",
        &[
            half("smfmac_f32_16x16x64_f16", 16, 64, "f16"),
            half("smfmac_f32_32x32x32_f16", 32, 32, "f16"),
            half("smfmac_f32_16x16x64_bf16", 16, 64, "__bf16"),
            half("smfmac_f32_32x32x32_bf16", 32, 32, "__bf16"),
            eight("smfmac_i32_16x16x128_i8", 16, 128, ["i8", "i8"], "i32"),
            eight("smfmac_i32_32x32x64_i8", 32, 64, ["i8", "i8"], "i32"),
            eight("smfmac_f32_16x16x128_fp8_fp8", 16, 128, ["fp8", "fp8"], "f32"),
            eight("smfmac_f32_16x16x128_fp8_bf8", 16, 128, ["fp8", "bf8"], "f32"),
            eight("smfmac_f32_16x16x128_bf8_fp8", 16, 128, ["bf8", "fp8"], "f32"),
            eight("smfmac_f32_16x16x128_bf8_bf8", 16, 128, ["bf8", "bf8"], "f32"),
            eight("smfmac_f32_32x32x64_fp8_fp8", 32, 64, ["fp8", "fp8"], "f32"),
            eight("smfmac_f32_32x32x64_fp8_bf8", 32, 64, ["fp8", "bf8"], "f32"),
            eight("smfmac_f32_32x32x64_bf8_fp8", 32, 64, ["bf8", "fp8"], "f32"),
            eight("smfmac_f32_32x32x64_bf8_bf8", 32, 64, ["bf8", "bf8"], "f32"),
        ],
    );
}

#[test]
fn swmmac_wave32() {
    let result: fn(usize, usize) -> (usize, usize) = |row, column| (column + 16 * (row / 8), row % 8);
    let sixteen = Layout {
        a_group: |k| k / 8 % 2,
        pair: |k| 2 * (k / 16) + k / 4 % 2,
        b_group: |k| k / 8 % 2,
        b_element: |k| 8 * (k / 16) + k % 8,
        result,
    };
    let narrow = Layout {
        a_group: |k| k / 16,
        pair: |k| k / 4 % 4,
        b_group: |k| k / 16,
        b_element: |k| k % 16,
        result,
    };
    let long = Layout {
        a_group: |k| k / 32,
        pair: |k| k / 4 % 8,
        b_group: |k| k / 32,
        b_element: |k| k % 32,
        result,
    };
    let case = |builtin, k, input, output, layout, pieces| Case {
        builtin,
        m: 16,
        k,
        input,
        output,
        lanes: 32,
        layout,
        pieces,
    };
    run(
        "gfx1201",
        &[
            case(
                "swmmac_f32_16x16x32_f16_w32",
                32,
                ["f16", "f16"],
                "f32",
                sixteen,
                &[0, 1],
            ),
            case(
                "swmmac_f32_16x16x32_bf16_w32",
                32,
                ["bf16", "bf16"],
                "f32",
                sixteen,
                &[0, 1],
            ),
            case("swmmac_f16_16x16x32_f16_w32", 32, ["f16", "f16"], "f16", sixteen, &[0]),
            case(
                "swmmac_bf16_16x16x32_bf16_w32",
                32,
                ["bf16", "bf16"],
                "bf16",
                sixteen,
                &[0],
            ),
            case("swmmac_i32_16x16x32_iu8_w32", 32, ["i8", "u8"], "i32", narrow, &[0, 1]),
            case("swmmac_i32_16x16x32_iu4_w32", 32, ["u4", "i4"], "i32", narrow, &[0, 1]),
            case("swmmac_i32_16x16x64_iu4_w32", 64, ["i4", "i4"], "i32", long, &[0]),
            case(
                "swmmac_f32_16x16x32_fp8_fp8_w32",
                32,
                ["fp8", "fp8"],
                "f32",
                narrow,
                &[0, 1],
            ),
            case(
                "swmmac_f32_16x16x32_fp8_bf8_w32",
                32,
                ["fp8", "bf8"],
                "f32",
                narrow,
                &[0],
            ),
            case(
                "swmmac_f32_16x16x32_bf8_fp8_w32",
                32,
                ["bf8", "fp8"],
                "f32",
                narrow,
                &[0],
            ),
            case(
                "swmmac_f32_16x16x32_bf8_bf8_w32",
                32,
                ["bf8", "bf8"],
                "f32",
                narrow,
                &[0],
            ),
        ],
    );
}

#[test]
fn swmmac_wave64() {
    let result: fn(usize, usize) -> (usize, usize) =
        |row, column| (column + 16 * (row / 8) + 32 * (row / 4 % 2), row % 4);
    let sixteen = Layout {
        a_group: |k| k / 8,
        pair: |k| k / 4 % 2,
        b_group: |k| k / 8,
        b_element: |k| k % 8,
        result,
    };
    let eight = Layout {
        a_group: |k| 2 * (k / 8 % 2) + k / 16,
        pair: |k| k / 4 % 2,
        b_group: |k| 2 * (k / 8 % 2) + k / 16,
        b_element: |k| k % 8,
        result,
    };
    let four = Layout {
        a_group: |k| k / 16,
        pair: |k| k / 4 % 4,
        ..eight
    };
    let long = Layout {
        a_group: |k| 2 * (k / 16 % 2) + k / 32,
        pair: |k| k / 4 % 4,
        b_group: |k| 2 * (k / 16 % 2) + k / 32,
        b_element: |k| k % 16,
        result,
    };
    let case = |builtin, k, input, output, layout, pieces| Case {
        builtin,
        m: 16,
        k,
        input,
        output,
        lanes: 64,
        layout,
        pieces,
    };
    run(
        "gfx1201",
        &[
            case(
                "swmmac_f32_16x16x32_f16_w64",
                32,
                ["f16", "f16"],
                "f32",
                sixteen,
                &[0, 1, 3],
            ),
            case(
                "swmmac_f32_16x16x32_bf16_w64",
                32,
                ["bf16", "bf16"],
                "f32",
                sixteen,
                &[0, 2],
            ),
            case("swmmac_f16_16x16x32_f16_w64", 32, ["f16", "f16"], "f16", sixteen, &[0]),
            case(
                "swmmac_bf16_16x16x32_bf16_w64",
                32,
                ["bf16", "bf16"],
                "bf16",
                sixteen,
                &[0],
            ),
            case("swmmac_i32_16x16x32_iu8_w64", 32, ["u8", "i8"], "i32", eight, &[0, 3]),
            case("swmmac_i32_16x16x32_iu4_w64", 32, ["i4", "u4"], "i32", four, &[0, 1]),
            case("swmmac_i32_16x16x64_iu4_w64", 64, ["i4", "u4"], "i32", long, &[0, 1]),
            case(
                "swmmac_f32_16x16x32_fp8_fp8_w64",
                32,
                ["fp8", "fp8"],
                "f32",
                eight,
                &[0, 2],
            ),
            case(
                "swmmac_f32_16x16x32_fp8_bf8_w64",
                32,
                ["fp8", "bf8"],
                "f32",
                eight,
                &[0],
            ),
            case(
                "swmmac_f32_16x16x32_bf8_fp8_w64",
                32,
                ["bf8", "fp8"],
                "f32",
                eight,
                &[0],
            ),
            case(
                "swmmac_f32_16x16x32_bf8_bf8_w64",
                32,
                ["bf8", "bf8"],
                "f32",
                eight,
                &[0],
            ),
        ],
    );
}

/// gfx12's dense products in waves of 64 lanes: A whole, so no indices; B's layout serves A as well.
#[test]
fn wmma_gfx12_wave64() {
    let row_of = |lane: usize, v: usize| 8 * (lane / 16 % 2) + 4 * (lane / 32) + v;
    for (builtin, k, ty, output, tail) in [
        ("wmma_f32_16x16x16_f16_w64_gfx12", 16, ["f16", "f16"], "f32", ""),
        ("wmma_f32_16x16x16_bf16_w64_gfx12", 16, ["bf16", "bf16"], "f32", ""),
        ("wmma_f16_16x16x16_f16_w64_gfx12", 16, ["f16", "f16"], "f16", ""),
        ("wmma_bf16_16x16x16_bf16_w64_gfx12", 16, ["bf16", "bf16"], "bf16", ""),
        ("wmma_i32_16x16x16_iu8_w64_gfx12", 16, ["i8", "u8"], "i32", ", false"),
        ("wmma_i32_16x16x16_iu4_w64_gfx12", 16, ["u4", "i4"], "i32", ", false"),
        ("wmma_i32_16x16x32_iu4_w64_gfx12", 32, ["i4", "i4"], "i32", ", false"),
        ("wmma_f32_16x16x16_fp8_fp8_w64_gfx12", 16, ["fp8", "fp8"], "f32", ""),
        ("wmma_f32_16x16x16_fp8_bf8_w64_gfx12", 16, ["fp8", "bf8"], "f32", ""),
        ("wmma_f32_16x16x16_bf8_fp8_w64_gfx12", 16, ["bf8", "fp8"], "f32", ""),
        ("wmma_f32_16x16x16_bf8_bf8_w64_gfx12", 16, ["bf8", "bf8"], "f32", ""),
    ] {
        let bits = bits_of(ty[0]);
        let count = (16 * k / 64).max(32 / bits);
        let sign = |ty: &str| match (output, ty.starts_with('i')) {
            ("i32", signed) => format!("{signed}, "),
            _ => String::new(),
        };
        let source = format!(
            "typedef {} A; typedef {} C;\n\
             extern \"C\" __global__ void tile(C* d, const A* a, const A* b, const C* c) {{\n  \
             int l = threadIdx.x; d[l] = __builtin_amdgcn_{builtin}({}a[l], {}b[l], c[l]{tail});\n}}\n",
            vector(ty[0], count),
            vector(output, 4),
            sign(ty[0]),
            sign(ty[1]),
        );
        let device = match Device::try_new(&source, "gfx1201", &["-mwavefrontsize64"]) {
            Ok(device) => device,
            Err(NoCode::Skipped(reason)) => {
                println!("skipped: {reason}");
                return;
            }
            Err(NoCode::Refused(log)) => panic!("{builtin}: {log}"),
        };
        let mut random = Random::new(3);
        let mut sides = Vec::new();
        for ty in ty {
            let mut values = vec![0f64; 16 * k];
            let mut lanes = Lanes::new(64, count, bits);
            for row in 0..16 {
                for kk in 0..k {
                    let (value, bits) = element(ty, "gfx1201", &mut random);
                    values[row * k + kk] = value;
                    lanes.put(row + 16 * (kk / count), kk % count, bits_of(ty), bits);
                }
            }
            sides.push((values, device.upload(&lanes.bytes)));
        }
        let out_bits = bits_of(output);
        let mut c = vec![0f64; 256];
        let mut c_lanes = Lanes::new(64, 4, out_bits);
        for lane in 0..64 {
            for v in 0..4 {
                let (value, bits) = element(output, "gfx1201", &mut random);
                c[row_of(lane, v) * 16 + lane % 16] = value;
                c_lanes.put(lane, v, out_bits, bits);
            }
        }
        let d = device.alloc(c_lanes.bytes.len());
        let args = [d, sides[0].1, sides[1].1, device.upload(&c_lanes.bytes)].map(Arg::Ptr);
        device.run("tile", 1, 64, &args);
        let got: Vec<u8> = device.download(d, c_lanes.bytes.len());
        for lane in 0..64 {
            for v in 0..4 {
                let (row, column) = (row_of(lane, v), lane % 16);
                let products = (0..k).map(|kk| sides[0].0[row * k + kk] * sides[1].0[column * k + kk]);
                let want = c[row * 16 + column] + products.clone().sum::<f64>();
                let size = products.map(f64::abs).sum::<f64>() + want.abs();
                let bytes = &got[lane * c_lanes.stride + v * out_bits / 8..][..out_bits / 8];
                let (value, tolerance) = match output {
                    "f32" => (f32::from_le_bytes(bytes.try_into().unwrap()).into(), size * 2.4e-7),
                    "f16" => (
                        half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
                        size * 1e-3,
                    ),
                    "bf16" => (
                        half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
                        size * 8e-3,
                    ),
                    _ => (f64::from(i32::from_le_bytes(bytes.try_into().unwrap())), 0.0),
                };
                assert!(
                    (value - want).abs() <= tolerance,
                    "{builtin} ({row}, {column}): {value}, not {want}"
                );
            }
        }
    }
}
