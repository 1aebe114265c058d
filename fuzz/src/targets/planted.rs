//! A mistake that only a sanitizer sees: whoever relies on one runs this first.

use crate::random::Random;
use crate::{Outcome, Target};

/// Reads the byte behind a vector.
pub(super) struct Planted;

impl Target for Planted {
    fn name(&self) -> &'static str {
        "planted"
    }

    fn case(&self, random: &mut Random) -> Outcome {
        let bytes = std::hint::black_box(vec![1u8; 8 + random.below(8)]);
        // SAFETY: there is none, on purpose. Without a sanitizer the byte is one of those that the allocator rounds up
        // to.
        let behind = unsafe { bytes.as_ptr().add(bytes.len()).read_volatile() };
        std::hint::black_box(behind);
        Outcome::Ran
    }
}
