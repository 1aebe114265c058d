//! Targets: one row of facts per architecture.
//!
//! Passes and codegen ask for a fact, never for a name. Peak figures are vendor data-sheet peaks of one die as the program
//! sees it, in 10^12 operations a second (a fused multiply-add is two); they rank alternatives, they promise nothing.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::types::DType;

pub mod matrix;

pub use matrix::{MatrixFamily, MatrixInstruction};

/// Which toolchain and runtime a target belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Platform {
    /// The host's processor; nothing is compiled.
    Cpu,
    /// AMD, through hiprtc and HIP.
    Hip,
    /// NVIDIA, through NVRTC and the CUDA driver, from the same HIP source.
    Cuda,
}

/// The facts of one architecture.
#[derive(PartialEq, Debug)]
pub struct Architecture {
    /// The name given to `--target`.
    pub name: &'static str,
    /// A product that has it.
    pub product: &'static str,
    pub platform: Platform,
    /// Lanes in a wave (warp) as graphc compiles for it.
    pub wave_size: u32,
    /// Compute units (streaming multiprocessors, cores).
    pub compute_units: u32,
    pub clock_ghz: f64,
    /// SIMDs of a compute unit, each with a matrix unit where there are matrix instructions.
    pub simds: u32,
    /// Bytes that a compute unit reads from LDS in a clock.
    pub lds_bytes_per_clock: u32,
    /// Bytes that a lane loads straight to LDS at once, past its registers; 0 where there are no such loads. Those of four bytes that gfx90a
    /// and gfx942 have are left out: a product takes half as long again by them (predicted for gfx942 at 4096^3, f16).
    pub direct_bytes: u32,
    /// Bits of the elements that reads of LDS turn, where they lie along an operand's rows (`ds_read_b64_tr_b16`, `ldmatrix.trans`).
    pub turned_bits: &'static [u32],
    /// Bytes that a compute unit reads from its share of the second-level cache in a clock.
    pub cache_bytes_per_clock: u32,
    /// Peak of vector f32.
    pub vector_f32_tflops: f64,
    /// Peak of matrix (or packed) fp16; 0 where the plain vector rate holds.
    pub matrix_f16_tflops: f64,
    /// Peak of matrix (or packed) bf16; 0 where there is none.
    pub matrix_bf16_tflops: f64,
    /// Peak of i8 dot or matrix products.
    pub matrix_i8_tops: f64,
    /// Peak of FP8; 0 where there is none.
    pub matrix_f8_tflops: f64,
    /// Memory bandwidth in 10^12 bytes a second.
    pub memory_tbps: f64,
    /// LDS (shared memory) that a kernel may declare for one workgroup, in bytes.
    pub lds_bytes: u32,
    /// LDS that a launch may give one workgroup instead, in bytes; 0 where kernels declare all of it.
    pub launch_lds_bytes: u32,
    /// Bytes that memory brings at least, wherever in them an access is.
    pub line_bytes: u32,
    /// Last-level cache in bytes.
    pub cache_bytes: u64,
    /// Vector registers that a SIMD has for each lane, which the waves on it share out.
    pub vector_registers: u32,
    /// Its matrix instructions; empty where it has none.
    pub matrix: &'static [MatrixInstruction],
    /// Dies with an L2 each, to which the hardware deals workgroups in turn.
    pub dies: u32,
    /// Which FP8 family the conversions and matrix instructions take, if any.
    pub f8: Option<F8Family>,
    /// The cost of one kernel launch in microseconds, in a stream that is kept full.
    pub launch_us: f64,
    /// Where convolutions like their channels.
    pub channels_last: bool,
    /// Whether vendor libraries (rocBLAS, MIOpen) ship kernels for it.
    pub libraries: bool,
    /// The share of peak that a product of the vendor's libraries is rated at. RDNA's are rated no higher than generated kernels: the emulator's
    /// timing model predicts them to take as long (`benches/rocblas.txt`), and epilogues then take launches of their own.
    pub library_efficiency: f64,
    /// Whether hipBLASLt is among them.
    pub hipblaslt: bool,
    /// Whether a contraction's operand may be computed on the way in (else only strided loads are taken in).
    pub operand_prologue: bool,
    /// Whether there is a kernel that takes depthwise convolutions with constant filters as convolutions (else they are loops).
    pub depthwise_kernel: bool,
    /// Whether its WMMA takes each operand in both halves of a wave, twice as many registers.
    pub repeats_operands: bool,
    /// Whether two products may be one kernel, whose waves hold rows of both: where registers have room for them and what lies between, and
    /// that was predicted to take less time.
    pub chains_products: bool,
    /// Whether matrix and dot instructions take subnormal numbers of f16 and bf16 for 0 (CDNA 1 and 2).
    pub flushes_subnormals: bool,
    /// Whether its compiler shares registers out as it is told how many workgroups a unit is to have room for (NVRTC). LLVM weighs that
    /// itself, and takes the same number as one of waves.
    pub told_residents: bool,
    /// Whether a launch may begin while the one before it on its stream ends: its kernels then wait themselves for what that one has
    /// written ("programmatic dependent launch" from CUDA 11.8 and `sm_90` on; AMD's queues have barriers only).
    pub overlaps_launches: bool,
}

/// The FP8 encodings that hardware has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum F8Family {
    Fnuz,
    Ocp,
}

impl Architecture {
    /// Returns the peak rate of contractions in operands of `dtype`, in 10^12 operations a second.
    pub fn contract_tops(&self, dtype: DType) -> f64 {
        let at_least_vector = |rate: f64| if rate > 0.0 { rate } else { self.vector_f32_tflops };
        match dtype {
            DType::F16 => at_least_vector(self.matrix_f16_tflops),
            DType::BF16 => at_least_vector(self.matrix_bf16_tflops),
            DType::I8 | DType::U8 | DType::I4 | DType::U4 => at_least_vector(self.matrix_i8_tops),
            DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => {
                at_least_vector(self.matrix_f8_tflops)
            }
            DType::F64 | DType::I64 => self.vector_f32_tflops / 2.0,
            _ => self.vector_f32_tflops,
        }
    }

    /// Returns the least microseconds in which memory moves some bytes, at the data sheet's peak.
    pub fn memory_us(&self, bytes: f64) -> f64 {
        bytes / (self.memory_tbps * 1e6)
    }

    /// Returns the least microseconds in which some operations are done at the data sheet's peak: those of a product in operands
    /// of a type, or vector work.
    pub fn compute_us(&self, flops: f64, product: Option<DType>) -> f64 {
        let tops = product.map_or(self.vector_f32_tflops, |dtype| self.contract_tops(dtype));
        flops / (tops * 1e6)
    }

    /// Returns the most LDS that a workgroup may have, in bytes, however it comes by it.
    pub fn most_lds_bytes(&self) -> u32 {
        self.lds_bytes.max(self.launch_lds_bytes)
    }

    /// Says whether the target compiles HIP source.
    pub fn is_gpu(&self) -> bool {
        self.platform != Platform::Cpu
    }
}

const MIB: u64 = 1 << 20;

/// Fields shared by the AMD rows.
const HIP: Architecture = Architecture {
    name: "",
    product: "",
    platform: Platform::Hip,
    wave_size: 64,
    compute_units: 0,
    clock_ghz: 0.0,
    simds: 4,
    lds_bytes_per_clock: 128,
    direct_bytes: 0,
    turned_bits: &[],
    cache_bytes_per_clock: 64,
    vector_f32_tflops: 0.0,
    matrix_f16_tflops: 0.0,
    matrix_bf16_tflops: 0.0,
    matrix_i8_tops: 0.0,
    matrix_f8_tflops: 0.0,
    memory_tbps: 0.0,
    lds_bytes: 64 << 10,
    launch_lds_bytes: 0,
    line_bytes: 128,
    cache_bytes: 8 * MIB,
    vector_registers: 256,
    matrix: &[],
    dies: 1,
    f8: None,
    launch_us: 4.0,
    channels_last: true,
    libraries: true,
    library_efficiency: 0.7,
    hipblaslt: true,
    operand_prologue: true,
    depthwise_kernel: false,
    repeats_operands: false,
    chains_products: false,
    flushes_subnormals: false,
    told_residents: false,
    overlaps_launches: false,
};

/// All targets. Sources: AMD's data sheets and the ISA manuals of each generation.
pub static TARGETS: &[Architecture] = &[
    Architecture {
        name: "cpu",
        product: "host processor",
        platform: Platform::Cpu,
        wave_size: 1,
        compute_units: 2,
        clock_ghz: 3.0,
        vector_f32_tflops: 0.2,
        memory_tbps: 0.03,
        lds_bytes: 0,
        cache_bytes: 32 * MIB,
        vector_registers: 32,
        launch_us: 2.0,
        libraries: false,
        hipblaslt: false,
        operand_prologue: false,
        depthwise_kernel: true,
        ..HIP
    },
    Architecture {
        name: "gfx906",
        product: "Instinct MI50/MI60",
        compute_units: 60,
        clock_ghz: 1.73,
        vector_f32_tflops: 13.3,
        matrix_f16_tflops: 26.5,
        matrix_i8_tops: 53.0,
        memory_tbps: 1.02,
        cache_bytes: 4 * MIB,
        hipblaslt: false,
        matrix: matrix::DOT64,
        ..HIP
    },
    Architecture {
        name: "gfx908",
        product: "Instinct MI100",
        compute_units: 120,
        clock_ghz: 1.50,
        vector_f32_tflops: 46.1,
        matrix_f16_tflops: 184.6,
        matrix_bf16_tflops: 92.3,
        matrix_i8_tops: 184.6,
        memory_tbps: 1.23,
        matrix: matrix::MFMA1,
        flushes_subnormals: true,
        ..HIP
    },
    Architecture {
        name: "gfx90a",
        product: "Instinct MI210/MI250",
        // One die of an MI250X has 110; work that is cut for those would take a second round here.
        compute_units: 104,
        clock_ghz: 1.70,
        vector_f32_tflops: 45.3,
        matrix_f16_tflops: 181.0,
        matrix_bf16_tflops: 181.0,
        matrix_i8_tops: 181.0,
        memory_tbps: 1.6,
        cache_bytes_per_clock: 36,
        vector_registers: 512,
        matrix: matrix::MFMA2,
        flushes_subnormals: true,
        chains_products: true,
        ..HIP
    },
    Architecture {
        name: "gfx942",
        product: "Instinct MI300A/MI300X/MI325X",
        compute_units: 304,
        dies: 8,
        clock_ghz: 2.10,
        vector_f32_tflops: 163.4,
        matrix_f16_tflops: 1307.0,
        matrix_bf16_tflops: 1307.0,
        matrix_i8_tops: 2615.0,
        matrix_f8_tflops: 2615.0,
        memory_tbps: 5.3,
        // A die's 16 channels bring a line of 128 bytes each, to 38 units.
        cache_bytes_per_clock: 54,
        cache_bytes: 256 * MIB,
        vector_registers: 512,
        matrix: matrix::MFMA3,
        f8: Some(F8Family::Fnuz),
        chains_products: true,
        ..HIP
    },
    Architecture {
        name: "gfx950",
        product: "Instinct MI350X/MI355X",
        compute_units: 256,
        dies: 8,
        clock_ghz: 2.4,
        lds_bytes_per_clock: 256,
        direct_bytes: 16,
        turned_bits: &[8, 16],
        vector_f32_tflops: 157.3,
        matrix_f16_tflops: 2500.0,
        matrix_bf16_tflops: 2500.0,
        matrix_i8_tops: 5000.0,
        matrix_f8_tflops: 5000.0,
        memory_tbps: 8.0,
        lds_bytes: 160 << 10,
        cache_bytes: 256 * MIB,
        vector_registers: 512,
        matrix: matrix::MFMA4,
        f8: Some(F8Family::Ocp),
        chains_products: true,
        ..HIP
    },
    Architecture {
        name: "gfx1030",
        product: "Radeon RX 6800/6900",
        wave_size: 32,
        compute_units: 80,
        clock_ghz: 2.25,
        simds: 2,
        vector_f32_tflops: 23.0,
        matrix_f16_tflops: 46.0,
        matrix_i8_tops: 92.0,
        memory_tbps: 0.51,
        cache_bytes: 128 * MIB,
        libraries: false,
        hipblaslt: false,
        vector_registers: 1024,
        matrix: matrix::DOT32,
        ..HIP
    },
    Architecture {
        name: "gfx1100",
        product: "Radeon RX 7900",
        wave_size: 32,
        compute_units: 96,
        clock_ghz: 2.5,
        simds: 2,
        vector_f32_tflops: 61.4,
        matrix_f16_tflops: 123.0,
        matrix_bf16_tflops: 123.0,
        matrix_i8_tops: 123.0,
        memory_tbps: 0.96,
        // 7.1 TB/s of the second-level cache, as `emu/TIMING.md` has it.
        cache_bytes_per_clock: 30,
        cache_bytes: 96 * MIB,
        vector_registers: 1536,
        library_efficiency: 0.5,
        matrix: matrix::WMMA1,
        repeats_operands: true,
        ..HIP
    },
    Architecture {
        name: "gfx1151",
        product: "Radeon 8060S (Strix Halo)",
        wave_size: 32,
        compute_units: 40,
        clock_ghz: 2.9,
        simds: 2,
        vector_f32_tflops: 29.7,
        matrix_f16_tflops: 59.4,
        matrix_bf16_tflops: 59.4,
        matrix_i8_tops: 59.4,
        memory_tbps: 0.256,
        cache_bytes: 32 * MIB,
        vector_registers: 1536,
        library_efficiency: 0.5,
        matrix: matrix::WMMA1,
        repeats_operands: true,
        ..HIP
    },
    Architecture {
        name: "gfx1201",
        product: "Radeon RX 9070",
        wave_size: 32,
        compute_units: 64,
        clock_ghz: 2.97,
        simds: 2,
        vector_f32_tflops: 48.7,
        matrix_f16_tflops: 195.0,
        matrix_bf16_tflops: 195.0,
        matrix_i8_tops: 389.0,
        matrix_f8_tflops: 389.0,
        memory_tbps: 0.64,
        cache_bytes: 64 * MIB,
        vector_registers: 1536,
        library_efficiency: 0.5,
        matrix: matrix::WMMA2,
        f8: Some(F8Family::Ocp),
        chains_products: true,
        ..HIP
    },
    Architecture {
        name: "sm_90",
        product: "NVIDIA H100/H200",
        platform: Platform::Cuda,
        wave_size: 32,
        compute_units: 132,
        clock_ghz: 1.98,
        direct_bytes: 16,
        turned_bits: &[16],
        vector_f32_tflops: 67.0,
        matrix_f16_tflops: 989.0,
        matrix_bf16_tflops: 989.0,
        matrix_i8_tops: 1979.0,
        matrix_f8_tflops: 1979.0,
        memory_tbps: 4.8,
        cache_bytes: 50 * MIB,
        lds_bytes: 48 << 10,
        launch_lds_bytes: 227 << 10,
        vector_registers: 512,
        matrix: matrix::HOPPER,
        line_bytes: 64,
        launch_us: 3.0,
        libraries: false,
        hipblaslt: false,
        told_residents: true,
        overlaps_launches: true,
        ..HIP
    },
];

/// A target as the user names it: a row of facts and, for AMD, feature settings (`gfx90a:sramecc+:xnack-`).
#[derive(Clone, Copy, PartialEq)]
pub struct Target {
    facts: &'static Architecture,
    sramecc: Option<bool>,
    xnack: Option<bool>,
}

impl Target {
    /// The host's processor.
    pub fn cpu() -> Target {
        Target {
            facts: &TARGETS[0],
            sramecc: None,
            xnack: None,
        }
    }

    /// The same processor with no feature fixed: code for it runs with every setting.
    #[must_use]
    pub fn processor(&self) -> Target {
        Target {
            sramecc: None,
            xnack: None,
            ..*self
        }
    }

    /// Says whether code compiled for this target runs on a device, whose target says what it has: the same processor, and
    /// each feature that the code was compiled for set on the device as the code wants it.
    ///
    /// Code compiled for neither setting of a feature runs with both.
    pub fn runs_on(&self, device: &Target) -> bool {
        let fits = |wanted: Option<bool>, has: Option<bool>| wanted.is_none() || has.is_none() || wanted == has;
        self.facts.name == device.facts.name && fits(self.sramecc, device.sramecc) && fits(self.xnack, device.xnack)
    }

    /// How many features the target fixes: of several that run on a device, the one that fixes most suits best.
    pub fn specificity(&self) -> usize {
        usize::from(self.sramecc.is_some()) + usize::from(self.xnack.is_some())
    }
}

impl std::ops::Deref for Target {
    type Target = Architecture;
    fn deref(&self) -> &Architecture {
        self.facts
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts.name)?;
        let feature = |f: &mut fmt::Formatter<'_>, name: &str, on: Option<bool>| match on {
            Some(on) => write!(f, ":{name}{}", if on { '+' } else { '-' }),
            None => Ok(()),
        };
        feature(f, "sramecc", self.sramecc)?;
        feature(f, "xnack", self.xnack)
    }
}
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text does not name a target.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TargetError {
    #[error("unknown target {0:?}; known: {known}", known = names().join(", "))]
    Unknown(String),
    #[error("target {target:?} has the unknown feature {feature:?}; known: sramecc+, sramecc-, xnack+, xnack-")]
    Feature { target: String, feature: String },
}

/// Returns the names of all targets.
pub fn names() -> Vec<&'static str> {
    TARGETS.iter().map(|t| t.name).collect()
}

impl FromStr for Target {
    type Err = TargetError;
    fn from_str(text: &str) -> Result<Target, TargetError> {
        let mut parts = text.trim().split(':');
        let name = parts.next().unwrap_or_default();
        let facts = TARGETS
            .iter()
            .find(|t| t.name == name)
            .ok_or_else(|| TargetError::Unknown(text.to_owned()))?;
        let mut target = Target {
            facts,
            sramecc: None,
            xnack: None,
        };
        for feature in parts {
            let unknown = || TargetError::Feature {
                target: text.to_owned(),
                feature: feature.to_owned(),
            };
            let (setting, on) = match feature.as_bytes().last() {
                Some(b'+') => (&feature[..feature.len() - 1], true),
                Some(b'-') => (&feature[..feature.len() - 1], false),
                _ => return Err(unknown()),
            };
            match setting {
                "sramecc" if facts.platform == Platform::Hip => target.sramecc = Some(on),
                "xnack" if facts.platform == Platform::Hip => target.xnack = Some(on),
                _ => return Err(unknown()),
            }
        }
        Ok(target)
    }
}

impl Serialize for Target {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Target, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_runs_where_its_features_are_set_as_it_wants() {
        let target = |text: &str| text.parse::<Target>().unwrap();
        let device = target("gfx90a:sramecc+:xnack-");
        for (code, runs) in [
            ("gfx90a", true),
            ("gfx90a:xnack-", true),
            ("gfx90a:sramecc+:xnack-", true),
            ("gfx90a:xnack+", false),
            ("gfx90a:sramecc-", false),
            ("gfx942", false),
            ("cpu", false),
        ] {
            assert_eq!(target(code).runs_on(&device), runs, "{code}");
        }
        assert_eq!(device.processor(), target("gfx90a"));
        assert!(device.specificity() > target("gfx90a:xnack-").specificity());
    }
}
