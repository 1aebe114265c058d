//! Products through the device library's matrix kernels: the text of a kernel for a tiling, its operands, and what
//! comes out of an emulated GPU beside the product computed here.

pub mod cases;

use std::sync::Arc;

use graphc::emu::{Arch, CodeObject, Counters, Disassembler, Gpu, Kernel, LaunchOptions};

/// How an operand of a test lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// This many neighbours along k at once.
    AlongK(usize),
    /// This many neighbours along the operand's own rows.
    AlongRows(usize),
    /// Along k, and zero where a guard is false; memory there is never written, so that a read of it faults.
    Guarded(usize),
    /// Computed as the element plus one, along k or along the rows.
    Computed { along_k: bool },
}

use Layout::{AlongK, AlongRows, Computed, Guarded};

/// The device library's function for a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `gemm_tile`.
    Tile,
    /// `gemm_wave_k` with so many waves.
    WaveK(usize),
    /// `gemv`; the instruction is its sizes, the block its rows and the columns of a workgroup.
    Gemv,
}

/// A kernel of the device library for products.
#[derive(Clone, Debug)]
pub struct Tiling {
    pub form: Form,
    pub instruction: String,
    pub block: [usize; 3],
    pub waves: [usize; 2],
    /// What follows the waves in the tile's parameters.
    pub knobs: &'static str,
    pub lhs: Layout,
    pub rhs: Layout,
    /// Columns that the epilogue takes at once.
    pub width: usize,
}

/// The numbers that an element type holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    F16,
    Bf16,
    F32,
    F64,
    I8,
    I32,
    /// Mantissa bits and bias.
    F8(u32, i32),
}

impl Number {
    fn parse(name: &str) -> Number {
        match name {
            "f16" => Number::F16,
            "bf16" => Number::Bf16,
            "f32" => Number::F32,
            "f64" => Number::F64,
            "i8" => Number::I8,
            "i32" => Number::I32,
            "f8e4m3fn" => Number::F8(3, 7),
            "f8e4m3fnuz" => Number::F8(3, 8),
            "f8e5m2" => Number::F8(2, 15),
            "f8e5m2fnuz" => Number::F8(2, 16),
            other => panic!("no element type {other}"),
        }
    }

    fn size(self) -> usize {
        match self {
            Number::F64 => 8,
            Number::F32 | Number::I32 => 4,
            Number::F16 | Number::Bf16 => 2,
            Number::I8 | Number::F8(..) => 1,
        }
    }

    /// The bytes of a small integer, which every type holds exactly.
    fn encode(self, value: f64) -> Vec<u8> {
        match self {
            Number::F64 => value.to_le_bytes().to_vec(),
            Number::F32 => (value as f32).to_le_bytes().to_vec(),
            Number::F16 => small_float(value, 10, 15, 15).to_le_bytes().to_vec(),
            Number::Bf16 => ((value as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec(),
            Number::I8 => vec![value as i8 as u8],
            Number::I32 => (value as i32).to_le_bytes().to_vec(),
            Number::F8(mantissa, bias) => vec![small_float(value, mantissa, bias, 7) as u8],
        }
    }

    /// The bytes of something that spoils every sum it gets into.
    fn poison(self) -> Vec<u8> {
        match self {
            Number::F64 => f64::NAN.to_le_bytes().to_vec(),
            Number::F32 => f32::NAN.to_le_bytes().to_vec(),
            Number::F16 | Number::Bf16 => vec![0xff, 0x7f],
            Number::I8 => vec![127],
            Number::I32 => vec![1, 2, 3, 4],
            Number::F8(_, 8 | 16) => vec![0x80],
            Number::F8(..) => vec![0x7f],
        }
    }
}

/// The bits of a float of few bits that holds the value exactly; the sign is bit `sign`.
fn small_float(value: f64, mantissa: u32, bias: i32, sign: u32) -> u16 {
    if value == 0.0 {
        return 0;
    }
    let power = value.abs().log2().floor() as i32;
    let fraction = value.abs() / 2f64.powi(power) - 1.0;
    let steps = (fraction * 2f64.powi(mantissa as i32)) as u16;
    (u16::from(value < 0.0) << sign) | (((power + bias) as u16) << mantissa) | steps
}

impl Tiling {
    fn element(&self) -> Number {
        Number::parse(self.types().0)
    }

    fn types(&self) -> (&str, &str) {
        let inside = self.instruction.split(['<', '>']).nth(1).expect("parameters");
        let words: Vec<_> = inside.split(", ").collect();
        match words[..] {
            [both] => (both, both),
            [element, sum, ..] if self.form == Form::Gemv => (element, sum),
            [.., element, sum] => (element, sum),
            [] => panic!("{}", self.instruction),
        }
    }

    fn operand(name: &str, buffer: &str, layout: Layout, element: &str) -> String {
        let at_k = format!("{buffer} + ((i64)row * {name}_pitch + k)");
        let at_row = format!("{buffer} + ((i64)k * {name}_pitch + row)");
        let made = match layout {
            AlongK(width) => format!("along_k<{width}>([&](int row, int k) {{ return {at_k}; }})"),
            AlongRows(width) => format!("along_rows<{width}>([&](int row, int k) {{ return {at_row}; }})"),
            Guarded(width) => format!(
                "along_k<{width}>([&](int row, int k) {{ return {at_k}; }}, [&](int row, int k) {{ return (row * 7 + k / {width}) % 3 != 0; }})"
            ),
            Computed { along_k } => {
                let at = if along_k { at_k } else { at_row };
                format!("values<{element}, {along_k}, 1>([&](int row, int k) {{ return widen(*({at})) + 1; }})")
            }
        };
        format!("    const auto {name} = {made};\n")
    }

    /// The kernel's text.
    pub fn source(&self) -> String {
        let (element, sum) = self.types();
        let [m, n, k] = self.block;
        let [waves_m, waves_n] = self.waves;
        let knobs = if self.knobs.is_empty() {
            String::new()
        } else {
            format!(", {}", self.knobs)
        };
        let tiles = format!(
            "MatrixTile<{}, {m}, {n}, {k}, {waves_m}, {waves_n}{knobs}>",
            self.instruction
        );
        let (tiles, threads, call) = match self.form {
            Form::Tile => (tiles, "Tiles::THREADS".to_owned(), "gemm_tile<Tiles, ".to_owned()),
            Form::WaveK(waves) => (
                tiles,
                format!("{waves} * Tiles::THREADS"),
                format!("gemm_wave_k<Tiles, {waves}, "),
            ),
            Form::Gemv => (
                self.instruction.clone(),
                "Tiles::THREADS".to_owned(),
                "gemv<Tiles, ".to_owned(),
            ),
        };
        format!(
            "#include \"graphc_gemm.hip.h\"\n#include \"graphc_gemv.hip.h\"\nusing namespace graphc;\nusing Tiles = {tiles};\n\
             extern \"C\" __global__ __launch_bounds__({threads}) void product(const {element}* in0, const {element}* in1, {sum}* out, \
             int m, int n, int depth, int lhs_pitch, int rhs_pitch) {{\n{}{}\
             \x20   {call}{width}>(m, n, depth, lhs, rhs, [&](int row, int col, const Pack<{sum}, {width}>& acc) {{\n\
             #pragma unroll\n\
             \x20       for (int i = 0; i < {width}; ++i) out[(i64)row * n + col + i] = acc[i];\n    }});\n}}\n",
            Self::operand("lhs", "in0", self.lhs, element),
            Self::operand("rhs", "in1", self.rhs, element),
            width = self.width,
        )
    }
}

/// A small generator of random numbers, the same on each run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// An operand in memory and its meaning.
struct Matrix {
    pitch: usize,
    bytes: Vec<u8>,
    /// Bytes that are written before the launch; the others are never to be read.
    present: Vec<bool>,
    values: Vec<f64>,
}

fn matrix(layout: Layout, number: Number, rows: usize, depth: usize, random: &mut Random) -> Matrix {
    let size = number.size();
    let (lines, along, width) = match layout {
        AlongK(width) | Guarded(width) => (rows, depth, width),
        AlongRows(width) => (depth, rows, width),
        Computed { along_k: true } => (rows, depth, 1),
        Computed { along_k: false } => (depth, rows, 1),
    };
    let pitch = along.div_ceil(width) * width + width;
    let mut bytes: Vec<u8> = (0..lines * pitch).flat_map(|_| number.poison()).collect();
    let mut present = vec![true; lines * pitch * size];
    let mut values = vec![0.0; rows * depth];
    for row in 0..rows {
        for k in 0..depth {
            let at = match layout {
                AlongRows(_) | Computed { along_k: false } => k * pitch + row,
                _ => row * pitch + k,
            };
            let value = random.below(17) as f64 - 8.0;
            bytes[at * size..][..size].copy_from_slice(&number.encode(value));
            values[row * depth + k] = match layout {
                Guarded(width) if (row * 7 + k / width).is_multiple_of(3) => {
                    present[at * size..][..size].fill(false);
                    0.0
                }
                Computed { .. } => value + 1.0,
                _ => value,
            };
        }
    }
    Matrix {
        pitch,
        bytes,
        present,
        values,
    }
}

/// A compiled tiling on an emulated GPU.
pub struct OnGpu {
    tiling: Tiling,
    gpu: Gpu,
    kernel: Kernel,
    lanes: usize,
}

impl OnGpu {
    pub fn load(
        tiling: &Tiling,
        arch: &str,
        code: &[u8],
        disassembler: &Arc<dyn Disassembler>,
    ) -> Result<OnGpu, String> {
        let gpu = Gpu::new(Arch::by_name(arch).ok_or("an arch")?, 1 << 30);
        let object = CodeObject::load_for(code, gpu.arch()).map_err(|e| e.to_string())?;
        let module = gpu.load(object, disassembler.clone()).map_err(|e| e.to_string())?;
        let kernel = module.kernel("product").map_err(|e| e.to_string())?;
        let lanes = if arch.starts_with("gfx9") { 64 } else { 32 };
        Ok(OnGpu {
            tiling: tiling.clone(),
            gpu,
            kernel,
            lanes,
        })
    }

    /// Computes a product of random small integers, which is exact in every type, and compares.
    pub fn check(&self, [rows, cols, depth]: [usize; 3], races: bool, random: &mut Random) -> Result<Counters, String> {
        let tiling = &self.tiling;
        let number = tiling.element();
        let lhs = matrix(tiling.lhs, number, rows, depth, random);
        let rhs = matrix(tiling.rhs, number, cols, depth, random);
        let sum_size = if tiling.types().1 == "f64" { 8 } else { 4 };
        let (a, b) = (self.upload(&lhs)?, self.upload(&rhs)?);
        let out = self
            .gpu
            .memory()
            .alloc((rows * cols * sum_size) as u64)
            .map_err(|e| e.to_string())?;
        let mut args = Vec::new();
        for address in [a, b, out] {
            args.extend_from_slice(&address.to_le_bytes());
        }
        for size in [rows, cols, depth, lhs.pitch, rhs.pitch] {
            args.extend_from_slice(&(size as i32).to_le_bytes());
        }
        let grid = rows.div_ceil(tiling.block[0]) * cols.div_ceil(tiling.block[1]);
        let waves = match tiling.form {
            Form::WaveK(waves) => waves,
            _ => tiling.waves[0] * tiling.waves[1],
        };
        let threads = waves * self.lanes;
        let options = LaunchOptions {
            races,
            ..LaunchOptions::default()
        };
        let counters = self
            .gpu
            .launch(
                &self.kernel,
                [grid as u32, 1, 1],
                [threads as u32, 1, 1],
                &args,
                0,
                &options,
            )
            .map_err(|e| e.to_string())?;
        let mut bytes = vec![0u8; rows * cols * sum_size];
        self.gpu.memory().read(out, &mut bytes).map_err(|e| e.to_string())?;
        for row in 0..rows {
            for col in 0..cols {
                let (l, r) = (&lhs.values[row * depth..][..depth], &rhs.values[col * depth..][..depth]);
                let want: f64 = l.iter().zip(r).map(|(l, r)| l * r).sum();
                let at = &bytes[(row * cols + col) * sum_size..][..sum_size];
                let got = match tiling.types().1 {
                    "f64" => f64::from_le_bytes(at.try_into().expect("eight bytes")),
                    "f32" => f32::from_le_bytes(at.try_into().expect("four bytes")).into(),
                    _ => i32::from_le_bytes(at.try_into().expect("four bytes")).into(),
                };
                if got != want {
                    return Err(format!("{rows}x{cols}x{depth}: [{row}, {col}] is {got}, not {want}"));
                }
            }
        }
        for address in [a, b, out] {
            self.gpu.memory().free(address).map_err(|e| e.to_string())?;
        }
        Ok(counters)
    }

    fn upload(&self, matrix: &Matrix) -> Result<u64, String> {
        let memory = self.gpu.memory();
        let address = memory.alloc(matrix.bytes.len() as u64).map_err(|e| e.to_string())?;
        let mut at = 0;
        while at < matrix.bytes.len() {
            let run = matrix.present[at..]
                .iter()
                .take_while(|p| **p == matrix.present[at])
                .count();
            if matrix.present[at] {
                memory
                    .write(address + at as u64, &matrix.bytes[at..at + run])
                    .map_err(|e| e.to_string())?;
            }
            at += run;
        }
        Ok(address)
    }
}
