//! Loops over the lanes of a wave, compiled once for any x86-64 and once for AVX2 with FMA, chosen at run time.
//!
//! A kernel's arithmetic is a closure on one lane; here it is spread over all of them. Lanes that EXEC has off are
//! computed as well and dropped when the result is stored.

/// One 32-bit register of a wave: a word a lane.
pub(crate) type Lanes = [u32; 64];
/// One 64-bit operand of a wave.
pub(crate) type Lanes64 = [u64; 64];

macro_rules! spread {
    ($name:ident, $body:ident, $wide:ident, ($($arg:ident: $word:ty),+), $out:ty) => {
        #[inline(always)]
        fn $body<F: Fn($($word),+) -> $out>(f: &F, $($arg: &[$word; 64],)+ out: &mut [$out; 64], lanes: usize) {
            for chunk in 0..lanes / 32 {
                for index in chunk * 32..chunk * 32 + 32 {
                    out[index] = f($($arg[index]),+);
                }
            }
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c,bmi2,lzcnt,popcnt")]
        fn $wide<F: Fn($($word),+) -> $out>(f: &F, $($arg: &[$word; 64],)+ out: &mut [$out; 64], lanes: usize) {
            $body(f, $($arg,)+ out, lanes);
        }

        /// Applies `f` to each of the first `lanes` (32 or 64) lanes.
        #[inline]
        pub(crate) fn $name<F: Fn($($word),+) -> $out>(
            f: F, $($arg: &[$word; 64],)+ out: &mut [$out; 64], lanes: usize,
        ) {
            #[cfg(target_arch = "x86_64")]
            if wide() {
                // SAFETY: the features were found on this processor.
                unsafe { $wide(&f, $($arg,)+ out, lanes) };
                return;
            }
            $body(&f, $($arg,)+ out, lanes);
        }
    };
}

#[cfg(target_arch = "x86_64")]
/// Whether the processor has the wide instructions.
#[inline]
pub(crate) fn wide() -> bool {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
    static FOUND: AtomicU8 = AtomicU8::new(2);
    match FOUND.load(Relaxed) {
        2 => {
            let found = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt");
            FOUND.store(u8::from(found), Relaxed);
            found
        }
        found => found == 1,
    }
}

spread!(map1, map1_body, map1_wide, (a: u32), u32);
spread!(map2, map2_body, map2_wide, (a: u32, b: u32), u32);
spread!(map3, map3_body, map3_wide, (a: u32, b: u32, c: u32), u32);
spread!(map1_64, map1_64_body, map1_64_wide, (a: u64), u64);
spread!(map2_64, map2_64_body, map2_64_wide, (a: u64, b: u64), u64);
spread!(map3_64, map3_64_body, map3_64_wide, (a: u64, b: u64, c: u64), u64);
spread!(test2, test2_body, test2_wide, (a: u32, b: u32), bool);
spread!(test2_64, test2_64_body, test2_64_wide, (a: u64, b: u64), bool);

/// Packs one truth value a lane into a mask.
#[inline]
pub(crate) fn pack(bits: &[bool; 64]) -> u64 {
    let mut mask = 0u64;
    for (chunk, group) in bits.chunks_exact(8).enumerate() {
        let mut byte = 0u64;
        for (index, bit) in group.iter().enumerate() {
            byte |= u64::from(*bit) << index;
        }
        mask |= byte << (chunk * 8);
    }
    mask
}
