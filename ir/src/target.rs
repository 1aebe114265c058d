//! Targets: one row of facts per architecture.
//!
//! Passes and codegen ask for a fact, never for a name. Peak figures are vendor data-sheet peaks of one die as the
//! program sees it, in 10^12 operations a second (a fused multiply-add is two); they rank alternatives, they promise
//! nothing.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::types::DType;

pub mod matrix;
mod names;
mod rows;

pub use matrix::{MatrixFamily, MatrixInstruction};
pub use names::{TargetError, names};
pub use rows::TARGETS;

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
    /// Products that have it, in a few words.
    pub product: &'static str,
    /// The products' names, which are names of the target too.
    pub aliases: &'static [&'static str],
    /// The processors that run its code, where that is a generic code object; none where only the processor of this
    /// name does.
    pub serves: &'static [&'static str],
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
    /// Bytes that a lane loads straight to LDS at once, past its registers; 0 where there are no such loads. Those of
    /// four bytes that gfx90a and gfx942 have are left out: a product takes half as long again by them (predicted for
    /// gfx942 at 4096^3, f16).
    pub direct_bytes: u32,
    /// Bits of the elements that reads of LDS turn, where they lie along an operand's rows (`ds_read_b64_tr_b16`,
    /// `ldmatrix.trans`).
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
    /// Threads that a workgroup may have.
    pub workgroup_threads: u32,
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
    /// Vector registers that one lane may have: as many as instructions can name, accumulation registers among them.
    pub most_lane_registers: u32,
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
    /// The share of peak that a product of the vendor's libraries is rated at. RDNA's are rated no higher than
    /// generated kernels: the emulator's timing model predicts them to take as long (`benches/rocblas.txt`), and
    /// epilogues then take launches of their own.
    pub library_efficiency: f64,
    /// Whether hipBLASLt is among them.
    pub hipblaslt: bool,
    /// Whether a contraction's operand may be computed on the way in (else only strided loads are taken in).
    pub operand_prologue: bool,
    /// Whether there is a kernel that takes depthwise convolutions with constant filters as convolutions (else they are
    /// loops).
    pub depthwise_kernel: bool,
    /// Whether its WMMA takes each operand in both halves of a wave, twice as many registers.
    pub repeats_operands: bool,
    /// Whether two products may be one kernel, whose waves hold rows of both: where registers have room for them and
    /// what lies between, and that was predicted to take less time.
    pub chains_products: bool,
    /// Whether matrix and dot instructions take subnormal numbers of f16 and bf16 for 0 (CDNA 1 and 2).
    pub flushes_subnormals: bool,
    /// Whether its compiler shares registers out as it is told how many workgroups a unit is to have room for (NVRTC).
    /// LLVM weighs that itself, and takes the same number as one of waves.
    pub told_residents: bool,
    /// Whether a launch may begin while the one before it on its stream ends: its kernels then wait themselves for what
    /// that one has written ("programmatic dependent launch" from CUDA 11.8 and `sm_90` on; AMD's queues have barriers
    /// only).
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

    /// Returns the least microseconds in which some operations are done at the data sheet's peak: those of a product in
    /// operands of a type, or vector work.
    pub fn compute_us(&self, flops: f64, product: Option<DType>) -> f64 {
        let tops = product.map_or(self.vector_f32_tflops, |dtype| self.contract_tops(dtype));
        flops / (tops * 1e6)
    }

    /// Returns the most LDS that a workgroup may have, in bytes, however it comes by it.
    pub fn most_lds_bytes(&self) -> u32 {
        self.lds_bytes.max(self.launch_lds_bytes)
    }

    /// Returns the vector registers that a lane has at most in a workgroup of so many threads, whose waves share out
    /// those of the unit's SIMDs.
    pub fn lane_registers(&self, threads: u64) -> u32 {
        let waves = threads.div_ceil(u64::from(self.wave_size.max(1)));
        let on_a_simd = waves.div_ceil(u64::from(self.simds.max(1))).max(1);
        let share = u64::from(self.vector_registers) / on_a_simd;
        u32::try_from(share).unwrap_or(u32::MAX).min(self.most_lane_registers)
    }

    /// Says whether the target compiles HIP source.
    pub fn is_gpu(&self) -> bool {
        self.platform != Platform::Cpu
    }
}

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

    /// The target of a device, whose driver calls its processor so: that processor, or else the generic one whose code
    /// it runs. `None` where there is neither.
    pub fn of_device(arch: &str) -> Option<Target> {
        if let Ok(target) = arch.parse() {
            return Some(target);
        }
        let (name, features) = arch.split_at(arch.find(':').unwrap_or(arch.len()));
        let generic = TARGETS.iter().find(|t| t.serves.contains(&name))?;
        format!("{}{features}", generic.name).parse().ok()
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

    /// Says whether code compiled for this target runs on a device, whose target says what it has: the same processor
    /// or one of those that a generic code object serves, and each feature that the code was compiled for set on the
    /// device as the code wants it.
    ///
    /// Code compiled for neither setting of a feature runs with both.
    pub fn runs_on(&self, device: &Target) -> bool {
        let fits = |wanted: Option<bool>, has: Option<bool>| wanted.is_none() || has.is_none() || wanted == has;
        let processor = self.facts.name == device.facts.name || self.facts.serves.contains(&device.facts.name);
        processor && fits(self.sramecc, device.sramecc) && fits(self.xnack, device.xnack)
    }

    /// Returns the place, among the targets that something was compiled for, of the one whose code suits a wanted
    /// target best: the target itself, else of those whose code runs there the one that fixes most, and of equals the
    /// first. `None` where none runs.
    pub fn best_for(compiled: impl IntoIterator<Item = Target>, wanted: &Target) -> Option<usize> {
        let fitting = compiled
            .into_iter()
            .enumerate()
            .filter(|(_, target)| target.runs_on(wanted));
        let best =
            fitting.max_by_key(|(index, target)| (target == wanted, target.specificity(), std::cmp::Reverse(*index)));
        best.map(|(index, _)| index)
    }

    /// How much the target fixes: of several that run on a device, the one that fixes most suits best. A processor of
    /// its own is more than all features of a generic one.
    pub fn specificity(&self) -> usize {
        let processor = if self.facts.serves.is_empty() { 3 } else { 0 };
        processor + usize::from(self.sramecc.is_some()) + usize::from(self.xnack.is_some())
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

impl FromStr for Target {
    type Err = TargetError;
    fn from_str(text: &str) -> Result<Target, TargetError> {
        let mut parts = text.trim().split(':');
        let name = parts.next().unwrap_or_default();
        let facts = names::find(name).ok_or_else(|| names::unknown(text, name))?;
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
        assert!(target("gfx11-generic").runs_on(&target("gfx1102")));
        assert!(!target("gfx1102").runs_on(&target("gfx11-generic")));
        assert!(!target("gfx11-generic").runs_on(&target("gfx1201")));
        // A processor without a row of its own.
        let served = Target::of_device("gfx1012:xnack-").expect("a generic processor serves it");
        assert_eq!(served.to_string(), "gfx10-1-generic:xnack-");
        assert!(target("gfx10-1-generic").runs_on(&served) && !target("gfx1010").runs_on(&served));
        assert_eq!(Target::of_device("gfx803"), None);
        assert!(target("gfx1102").specificity() > target("gfx11-generic:xnack-").specificity());
        assert_eq!(device.processor(), target("gfx90a"));
        assert!(device.specificity() > target("gfx90a:xnack-").specificity());
    }
}
