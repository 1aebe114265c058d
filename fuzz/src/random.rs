//! Numbers that are the same for the same seed.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of one case.
    pub fn new(seed: u64, number: u64) -> Random {
        let mut random = Random(seed.rotate_left(32) ^ number.wrapping_mul(0xD134_2543_DE82_EF95));
        random.bits();
        random
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 where there is none.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 {
            0
        } else {
            (self.bits() % end as u64) as usize
        }
    }

    /// Says yes once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of a list that is not empty.
    pub fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    /// A number that tends to break things.
    pub fn odd(&mut self) -> i64 {
        const ODD: [i64; 24] = [
            0,
            1,
            -1,
            2,
            3,
            4,
            5,
            7,
            8,
            16,
            31,
            64,
            -2,
            -8,
            255,
            4096,
            1 << 31,
            -(1 << 31),
            1 << 32,
            1 << 40,
            1 << 61,
            i64::MAX,
            i64::MIN,
            i64::MAX - 1,
        ];
        *self.of(&ODD)
    }
}
