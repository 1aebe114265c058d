//! LDS banks: which lanes an access serves together, and how many cycles their meetings cost.
//!
//! An access is a sequence of phases, each a group of lanes. A phase takes one cycle, or as many as the busiest bank
//! has distinct words. Which lanes form a phase was measured: `nod` (nod-ai/shark-ai's optimisation guide), `pyhip`
//! (MI308X), `hk` (HipKittens' phase solver on MI355X); groups of RDNA and of gfx950's narrow writes are assumed to be
//! consecutive lanes.

use crate::arch::{Arch, Generation};

/// The groups of an access and the banks that they meet in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phases {
    /// A mask of lanes a phase.
    pub groups: &'static [u64],
    pub banks: u32,
}

/// `COUNT` groups of consecutive lanes that fill 64.
const fn consecutive<const COUNT: usize>() -> [u64; COUNT] {
    let mut groups = [0; COUNT];
    let lanes = 64 / COUNT;
    let mut index = 0;
    while index < COUNT {
        groups[index] = (u64::MAX >> (64 - lanes)) << (index * lanes);
        index += 1;
    }
    groups
}

const WHOLE: [u64; 1] = consecutive();
const HALVES: [u64; 2] = consecutive();
const QUARTERS: [u64; 4] = consecutive();
const EIGHTHS: [u64; 8] = consecutive();

/// Lanes `first` to `last`.
const fn span(first: u32, last: u32) -> u64 {
    (u64::MAX >> (63 - (last - first))) << first
}

/// b128 reads of gfx9: eight lanes a phase (`nod`, `pyhip`).
const CDNA_128: [u64; 8] = {
    let low = [
        span(0, 3) | span(20, 23),
        span(4, 7) | span(16, 19),
        span(8, 11) | span(28, 31),
        span(12, 15) | span(24, 27),
    ];
    [
        low[0],
        low[1],
        low[2],
        low[3],
        low[0] << 32,
        low[1] << 32,
        low[2] << 32,
        low[3] << 32,
    ]
};

/// b128 reads of gfx950: sixteen lanes a phase (`hk`).
const GFX950_128: [u64; 4] = {
    let low = [
        span(0, 3) | span(12, 15) | span(20, 27),
        span(4, 11) | span(16, 19) | span(28, 31),
    ];
    [low[0], low[1], low[0] << 32, low[1] << 32]
};

/// The phases of an access of `bytes` a lane.
pub(crate) fn phases(arch: &Arch, bytes: u32, write: bool) -> Phases {
    let banks = arch.lds_banks;
    let of = |groups: &'static [u64], banks: u32| Phases { groups, banks };
    let words = bytes.div_ceil(4);
    if banks == 64 {
        return match (words, write) {
            (1, false) => of(&WHOLE, 64),
            (1, true) => of(&HALVES, 64),
            (2, false) => of(&HALVES, 64),
            (2, true) => of(&QUARTERS, 32),
            (3, false) => of(&CDNA_128, 32),
            (4, false) => of(&GFX950_128, 64),
            _ => of(&EIGHTHS, 64),
        };
    }
    match (words, write) {
        (1, _) => of(&HALVES, banks),
        (2, _) => of(&QUARTERS, banks),
        (_, false) if !arch.at_least(Generation::Gfx10) => of(&CDNA_128, banks),
        _ => of(&EIGHTHS, banks),
    }
}

/// What an access costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Cycles of the banks, at least one for each phase that has lanes on.
    pub cycles: u32,
    /// Those of them beyond the first of each phase.
    pub conflicts: u32,
}

/// The cycles of an access of `bytes` a lane at `addresses` by the lanes in `mask`.
pub(crate) fn cost(arch: &Arch, addresses: &[u32; 64], mask: u64, bytes: u32, write: bool) -> Cost {
    let Phases { groups, banks } = phases(arch, bytes, write);
    let mut cost = Cost::default();
    let mut wanted = Wanted {
        words: [0; 128],
        next: [0; 128],
    };
    let spread = side_by_side(addresses, mask, bytes);
    for group in groups {
        let lanes = mask & group;
        if lanes == 0 {
            continue;
        }
        let worst = if spread {
            1
        } else {
            wanted.busiest(addresses, lanes, bytes, banks)
        };
        cost.cycles += worst;
        cost.conflicts += worst - 1;
    }
    cost
}

/// Whether all lanes are on and lie one behind the other, or all in one place: no bank is met twice.
fn side_by_side(addresses: &[u32; 64], mask: u64, bytes: u32) -> bool {
    if !matches!(mask, u64::MAX | 0xffff_ffff) || !matches!(bytes, 4 | 8 | 16) || !addresses[0].is_multiple_of(bytes) {
        return false;
    }
    let lanes = mask.count_ones() as usize;
    let step = addresses[1].wrapping_sub(addresses[0]);
    (step == bytes || step == 0)
        && addresses[..lanes]
            .iter()
            .zip(0u32..)
            .all(|(address, lane)| *address == addresses[0].wrapping_add(lane * step))
}

/// The words that a phase's lanes want, in a list for each bank.
struct Wanted {
    /// At most 64 lanes of one word, 32 of two, 16 of four: a phase has 64 words at most, but for unknown shapes.
    words: [u32; 128],
    next: [u8; 128],
}

impl Wanted {
    /// The most distinct words that one bank has to give to the lanes of a phase.
    fn busiest(&mut self, addresses: &[u32; 64], mut lanes: u64, bytes: u32, banks: u32) -> u32 {
        // Aligned accesses of one size share all their banks or none: each counts as one word of a wider bank.
        let aligned = bytes.is_power_of_two() && (4..=16).contains(&bytes) && {
            let low = (0..64).fold(0, |low, lane| {
                low | addresses[lane] & 0u32.wrapping_sub((lanes >> lane & 1) as u32)
            });
            low.is_multiple_of(bytes)
        };
        let unit = if aligned { bytes } else { 4 };
        let (shift, banks, pieces) = (unit.trailing_zeros(), banks * 4 / unit, bytes.div_ceil(unit));
        let (mut heads, mut counts) = ([u8::MAX; 64], [0u8; 64]);
        let (mut used, mut worst) = (0usize, 1);
        while lanes != 0 {
            let lane = lanes.trailing_zeros() as usize;
            lanes &= lanes - 1;
            for piece in 0..pieces {
                let word = (addresses[lane] >> shift).wrapping_add(piece);
                let bank = (word % banks) as usize % 64;
                let mut at = heads[bank];
                while at != u8::MAX && self.words[at as usize % 128] != word {
                    at = self.next[at as usize % 128];
                }
                if at == u8::MAX && used < self.words.len() {
                    self.words[used] = word;
                    self.next[used] = heads[bank];
                    heads[bank] = used as u8;
                    used += 1;
                    counts[bank] += 1;
                    worst = worst.max(counts[bank]);
                }
            }
        }
        worst.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arch: &str, bytes: u32, write: bool, address: impl Fn(u32) -> u32) -> Cost {
        let addresses = std::array::from_fn(|lane| address(lane as u32));
        cost(Arch::by_name(arch).expect("known"), &addresses, u64::MAX, bytes, write)
    }

    #[test]
    fn contiguous_accesses_take_their_phases() {
        for (arch, bytes, write, cycles) in [
            ("gfx90a", 4, false, 2),
            ("gfx942", 8, false, 4),
            ("gfx942", 16, false, 8),
            ("gfx942", 16, true, 8),
            ("gfx950", 4, false, 1),
            ("gfx950", 8, false, 2),
            ("gfx950", 8, true, 4),
            ("gfx950", 16, false, 4),
            ("gfx950", 16, true, 8),
        ] {
            let found = of(arch, bytes, write, |lane| lane * bytes);
            assert_eq!(found, Cost { cycles, conflicts: 0 }, "{arch} {bytes} {write}");
            // The same where lanes do not lie in order, so that the short way is not taken.
            let found = of(arch, bytes, write, |lane| (lane ^ 1) * bytes);
            assert_eq!(found, Cost { cycles, conflicts: 0 }, "{arch} {bytes} {write} in pairs");
        }
    }

    #[test]
    fn strides_meet_in_banks() {
        // 32 banks: stride 2^n words meets 2^n times, 32 lanes at the most; 64 lanes in one bank take 64 cycles.
        for (stride, cycles) in [
            (1, 2),
            (2, 4),
            (4, 8),
            (8, 16),
            (16, 32),
            (32, 64),
            (64, 64),
            (3, 2),
            (33, 2),
        ] {
            assert_eq!(
                of("gfx942", 4, false, |lane| lane * stride * 4).cycles,
                cycles,
                "stride {stride}"
            );
        }
        assert_eq!(of("gfx942", 4, false, |_| 128).cycles, 2, "one word for all");
        assert_eq!(of("gfx950", 4, false, |lane| lane * 128).cycles, 32);
    }

    #[test]
    fn wide_reads_use_permuted_groups() {
        // Rows of 64 bytes read by their first 16: lanes 0 and 2 meet in the banks, 0 and 20 lie in one phase.
        let rows = |lane: u32| {
            if matches!(lane, 0 | 20) {
                lane * 128
            } else {
                16 * (lane % 8)
            }
        };
        assert!(of("gfx942", 16, false, rows).conflicts > 0);
        let apart = |lane: u32| if matches!(lane, 0 | 4) { lane * 128 } else { 0 };
        assert_eq!(
            of("gfx942", 16, false, apart).conflicts,
            1,
            "lane 4 meets lane 5's word, lane 0 its neighbours'"
        );
        for lane in 0..64u64 {
            let together = |groups: &[u64]| groups.iter().filter(|group| **group >> lane & 1 == 1).count();
            assert_eq!((together(&CDNA_128), together(&GFX950_128)), (1, 1), "lane {lane}");
        }
    }

    #[test]
    fn writes_and_reads_differ_on_gfx950() {
        // Two words a lane, 32 words apart in pairs: free in 64 banks, a meeting in 32.
        let pairs = |lane: u32| lane % 2 * 128 + lane / 2 * 8;
        assert_eq!(of("gfx950", 8, false, pairs).conflicts, 0);
        assert!(of("gfx950", 8, true, pairs).conflicts > 0);
        assert!(of("gfx950", 12, false, |lane| lane % 2 * 128 + lane / 2 * 16).conflicts > 0);
    }
}
