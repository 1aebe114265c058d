//! Which vector instructions the kernels may use, decided at run time.
//!
//! An [`Isa`] can only be made for a level that this processor has, so holding one is the proof that a kernel
//! compiled for its level may be called. Tests lower it with [`Isa::at_most`].

/// A family of vector instructions that the kernels are compiled for, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Plain Rust on 4-lane arrays: any processor.
    Portable,
    /// x86-64 with AVX2, FMA and F16C (8 lanes).
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL beside those of [`Level::Avx2`] (16 lanes).
    Avx512,
}

/// A level that this processor is known to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Isa(Level);

impl Isa {
    /// Returns the best level of this processor. The standard library caches the CPUID answers.
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 && avx512 {
                return Isa(Level::Avx512);
            }
            if avx2 {
                return Isa(Level::Avx2);
            }
        }
        Isa(Level::Portable)
    }

    /// Returns the weaker of `level` and what the processor has.
    pub fn at_most(level: Level) -> Isa {
        Isa(level.min(Isa::detect().0))
    }

    /// Returns every level of this processor, weakest first.
    pub fn all() -> impl Iterator<Item = Isa> {
        let best = Isa::detect();
        [Level::Portable, Level::Avx2, Level::Avx512]
            .into_iter()
            .map(Isa)
            .filter(move |isa| *isa <= best)
    }

    /// The level this stands for.
    pub fn level(self) -> Level {
        self.0
    }

    /// How many f32 values one vector register holds.
    pub fn lanes(self) -> usize {
        match self.0 {
            Level::Portable => 4,
            Level::Avx2 => 8,
            Level::Avx512 => 16,
        }
    }
}

impl Default for Isa {
    fn default() -> Self {
        Isa::detect()
    }
}
