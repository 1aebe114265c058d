//! A wave's memory access as a whole: where all its lanes lie in one allocation, or inside LDS, nothing has to be
//! looked up, checked or counted lane by lane. Each function says whether it applies; where it does not, the lanes go
//! one by one.

use super::simd::{Lanes, Lanes64};
use super::wave::{Env, Wave};
use crate::memory::Region;
use std::ops::Range;

/// The places of a wave's lanes in one allocation of global memory.
pub(crate) struct Span<'a> {
    region: &'a Region,
    offsets: Lanes64,
    /// Bytes of each lane.
    size: u32,
    /// Whether all lanes are on and lie one behind the other.
    row: bool,
}

/// Whether all of a wave's lanes are on and their accesses of `size` bytes lie one behind the other.
#[inline]
fn is_row(addresses: &Lanes64, mask: u64, w: &Wave, size: u32) -> bool {
    let first = addresses[0];
    let differ = |lanes: usize| {
        (0..lanes).fold(0, |bits, lane| {
            bits | addresses[lane] ^ first.wrapping_add(lane as u64 * u64::from(size))
        })
    };
    mask == w.lane_mask && (if w.lanes == 64 { differ(64) } else { differ(32) }) == 0
}

impl<'a> Env<'a> {
    /// The allocation that all lanes of `mask` lie in; None where that is not so, or where each lane is to be looked
    /// at.
    #[inline]
    pub fn span(&self, w: &mut Wave, addresses: &Lanes64, mask: u64, size: u32) -> Option<Span<'a>> {
        if !self.whole_waves || mask == 0 || w.undefined.is_some() {
            return None;
        }
        let row = is_row(addresses, mask, w, size);
        let (low, high) = if row {
            (addresses[0], addresses[w.lanes - 1])
        } else {
            let mut extent = (u64::MAX, 0);
            for (lane, address) in addresses.iter().enumerate() {
                // A lane that is off counts as the other lanes' least.
                let on = 0u64.wrapping_sub(mask >> lane & 1);
                extent = (extent.0.min(address | !on), extent.1.max(address & on));
            }
            extent
        };
        let bytes = high.checked_sub(low)?.checked_add(size.into())?;
        let region = self.view.find(low, bytes, &mut w.hint)?;
        let base = region.base();
        Some(Span {
            region,
            offsets: addresses.map(|address| address.wrapping_sub(base)),
            size,
            row,
        })
    }
}

impl Span<'_> {
    /// Whether every byte was written.
    pub fn written(&self, mask: u64) -> bool {
        if self.row {
            let lanes = u64::from(mask.count_ones());
            return self.region.is_written(self.offsets[0], lanes * u64::from(self.size));
        }
        self.region.all_written()
            || lanes_of(mask).all(|lane| self.region.is_written(self.offsets[lane], self.size.into()))
    }

    /// Loads whole words into registers from `target` on.
    pub fn load(&self, w: &mut Wave, target: u16, mask: u64) {
        let words = self.size as usize / 4;
        for word in 0..words {
            let register = &mut w.v[target as usize + word];
            let place = |lane: usize| self.offsets[lane] + 4 * word as u64;
            if mask == w.lane_mask {
                for (lane, slot) in register.iter_mut().enumerate().take(w.lanes) {
                    *slot = self.region.load_u32(place(lane));
                }
            } else {
                lanes_of(mask).for_each(|lane| register[lane] = self.region.load_u32(place(lane)));
            }
        }
    }

    /// The byte or 16-bit word of a lane.
    pub fn load_small(&self, lane: usize) -> u32 {
        match self.size {
            1 => self.region.load_u8(self.offsets[lane]).into(),
            _ => self.region.load_u16(self.offsets[lane]).into(),
        }
    }

    /// Stores registers from `source` on, shifted right; where lanes meet the last one stays.
    pub fn store(&self, w: &Wave, source: u16, shift: u32, mask: u64) {
        for lane in lanes_of(mask) {
            let at = self.offsets[lane];
            let value = |word: usize| w.v[source as usize + word][lane] >> shift;
            match self.size {
                1 => self.region.put_u8(at, value(0) as u8),
                2 => self.region.put_u16(at, value(0) as u16),
                size => {
                    for word in 0..size as usize / 4 {
                        self.region.put_u32(at + 4 * word as u64, value(word));
                    }
                }
            }
        }
        if self.row {
            let lanes = u64::from(mask.count_ones());
            self.region.mark(self.offsets[0], lanes * u64::from(self.size));
        } else if !self.region.all_written() {
            lanes_of(mask).for_each(|lane| self.region.mark(self.offsets[lane], self.size.into()));
        }
    }
}

/// The lanes of a mask in their order.
pub(crate) fn lanes_of(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(lane)
    })
}

/// How many distinct 64-byte pieces of memory the lanes of `mask` touch (128 at most).
pub(crate) fn pieces(addresses: &Lanes64, mask: u64, size: u32) -> u64 {
    // Lanes mostly go upwards: then a piece is new where it lies behind the last one.
    let (mut count, mut end) = (0, 0);
    for lane in lanes_of(mask) {
        let (first, last) = (
            addresses[lane] / 64,
            addresses[lane].saturating_add(u64::from(size) - 1) / 64,
        );
        if first + 1 < end {
            return scattered_pieces(addresses, mask, size);
        }
        count += (last + 1).saturating_sub(first.max(end));
        end = end.max(last + 1);
    }
    count.min(MOST_PIECES)
}

const MOST_PIECES: u64 = 128;

#[cold]
fn scattered_pieces(addresses: &Lanes64, mask: u64, size: u32) -> u64 {
    piece_list(addresses, mask, size).len() as u64
}

/// The distinct 64-byte pieces of memory that the lanes of `mask` touch, in the order in which they come (128 at most).
pub(crate) fn piece_list(addresses: &Lanes64, mask: u64, size: u32) -> Vec<u64> {
    let mut table = [u64::MAX; 256];
    let mut list = Vec::with_capacity(64);
    for lane in lanes_of(mask) {
        for piece in addresses[lane] / 64..=addresses[lane].saturating_add(u64::from(size) - 1) / 64 {
            let mut slot = (piece.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize;
            while table[slot] != u64::MAX && table[slot] != piece {
                slot = (slot + 1) % table.len();
            }
            if table[slot] == u64::MAX && (list.len() as u64) < MOST_PIECES {
                table[slot] = piece;
                list.push(piece);
            }
        }
    }
    list
}

/// Whether all lanes of a wave are on and `step` bytes apart, one behind the other.
#[inline]
fn is_lds_row(addresses: &Lanes, mask: u64, w: &Wave, step: u32) -> bool {
    let first = addresses[0];
    let differ = |lanes: usize| {
        (0..lanes).fold(0, |bits, lane| {
            bits | addresses[lane] ^ first.wrapping_add(lane as u32 * step)
        })
    };
    mask == w.lane_mask && (if w.lanes == 64 { differ(64) } else { differ(32) }) == 0
}

/// Whether a wave's accesses of `bytes` bytes meet in no bank of LDS whatever the banks are: one behind the other, or
/// all at one place.
#[inline]
pub(crate) fn free_of_conflicts(addresses: &Lanes, mask: u64, w: &Wave, bytes: u32) -> bool {
    addresses[0].is_multiple_of(bytes.max(4))
        && (bytes >= 4 && is_lds_row(addresses, mask, w, bytes) || is_lds_row(addresses, mask, w, 0))
}

/// The record of LDS that was written.
static WRITTEN: [u8; 64 * 16] = [1; 64 * 16];

impl Env<'_> {
    /// Whether LDS accesses of a wave need no look at each lane: nothing under way, nothing asked for.
    #[inline]
    fn lds_plain(&self, w: &Wave) -> bool {
        self.whole_waves && w.undefined.is_none() && !self.order.live()
    }

    /// Whether the accesses of all lanes of `mask` are inside.
    #[inline]
    fn lds_inside(&self, addresses: &Lanes, mask: u64, bytes: usize) -> bool {
        let mut high = 0;
        for (lane, address) in addresses.iter().enumerate() {
            high = high.max(address & 0u32.wrapping_sub((mask >> lane & 1) as u32));
        }
        high as usize + bytes <= self.lds.len()
    }

    /// Where a wave's accesses lie, if one behind the other and inside.
    #[inline]
    fn lds_row(&self, w: &Wave, addresses: &Lanes, mask: u64, bytes: usize) -> Option<Range<usize>> {
        let row = is_lds_row(addresses, mask, w, bytes as u32);
        let range = addresses[0] as usize..addresses[0] as usize + bytes * w.lanes;
        (row && range.end <= self.lds.len()).then_some(range)
    }

    /// Reads whole words of LDS into registers from `target` on; false (and nothing done) where lanes need a look each.
    #[inline]
    pub fn lds_load(&self, w: &mut Wave, target: usize, words: usize, addresses: &Lanes, mask: u64) -> bool {
        match words {
            1 => self.lds_load_words::<1, 4>(w, target, addresses, mask),
            2 => self.lds_load_words::<2, 8>(w, target, addresses, mask),
            3 => self.lds_load_words::<3, 12>(w, target, addresses, mask),
            4 => self.lds_load_words::<4, 16>(w, target, addresses, mask),
            _ => false,
        }
    }

    /// Writes whole words of LDS from registers from `source` on; false (and nothing done) where lanes need a look
    /// each.
    #[inline]
    pub fn lds_store(&mut self, w: &Wave, source: usize, words: usize, addresses: &Lanes, mask: u64) -> bool {
        match words {
            1 => self.lds_store_words::<1, 4>(w, source, addresses, mask),
            2 => self.lds_store_words::<2, 8>(w, source, addresses, mask),
            3 => self.lds_store_words::<3, 12>(w, source, addresses, mask),
            4 => self.lds_store_words::<4, 16>(w, source, addresses, mask),
            _ => false,
        }
    }

    /// [`Env::lds_load`] of `WORDS` words, which are `BYTES` bytes.
    fn lds_load_words<const WORDS: usize, const BYTES: usize>(
        &self,
        w: &mut Wave,
        target: usize,
        addresses: &Lanes,
        mask: u64,
    ) -> bool {
        if !self.lds_plain(w) {
            return false;
        }
        let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if let Some(range) = self.lds_row(w, addresses, mask, BYTES) {
            let written = self.lds_written.get(range.clone());
            if written.is_some_and(|written| written != &WRITTEN[..range.len()]) {
                return false;
            }
            let (pieces, _) = self.lds[range].as_chunks::<BYTES>();
            for (index, register) in w.v[target..target + WORDS].iter_mut().enumerate() {
                for (slot, piece) in register.iter_mut().zip(pieces) {
                    *slot = word(&piece[4 * index..4 * index + 4]);
                }
            }
            return true;
        }
        if !self.lds_inside(addresses, mask, BYTES) {
            return false;
        }
        let piece = |bytes: &[u8], lane: usize| -> [u8; BYTES] {
            let at = addresses[lane] as usize;
            bytes[at..].first_chunk().copied().unwrap_or([0; BYTES])
        };
        if !self.lds_written.is_empty() && lanes_of(mask).any(|lane| piece(&self.lds_written, lane) != [1; BYTES]) {
            return false;
        }
        let Ok(registers) = <&mut [Lanes; WORDS]>::try_from(&mut w.v[target..target + WORDS]) else {
            return false;
        };
        for lane in lanes_of(mask) {
            let piece = piece(&self.lds, lane);
            for (index, register) in registers.iter_mut().enumerate() {
                register[lane] = word(&piece[4 * index..4 * index + 4]);
            }
        }
        true
    }

    /// [`Env::lds_store`] of `WORDS` words, which are `BYTES` bytes.
    fn lds_store_words<const WORDS: usize, const BYTES: usize>(
        &mut self,
        w: &Wave,
        source: usize,
        addresses: &Lanes,
        mask: u64,
    ) -> bool {
        if !self.lds_plain(w) {
            return false;
        }
        let Ok(registers) = <&[Lanes; WORDS]>::try_from(&w.v[source..source + WORDS]) else {
            return false;
        };
        if let Some(range) = self.lds_row(w, addresses, mask, BYTES) {
            let (pieces, _) = self.lds[range.clone()].as_chunks_mut::<BYTES>();
            for (index, register) in registers.iter().enumerate() {
                for (value, piece) in register.iter().zip(&mut *pieces) {
                    piece[4 * index..4 * index + 4].copy_from_slice(&value.to_le_bytes());
                }
            }
            if let Some(written) = self.lds_written.get_mut(range) {
                written.fill(1);
            }
            return true;
        }
        if !self.lds_inside(addresses, mask, BYTES) {
            return false;
        }
        for lane in lanes_of(mask) {
            let at = addresses[lane] as usize;
            if let Some(piece) = self.lds[at..].first_chunk_mut::<BYTES>() {
                for (index, register) in registers.iter().enumerate() {
                    piece[4 * index..4 * index + 4].copy_from_slice(&register[lane].to_le_bytes());
                }
            }
        }
        if !self.lds_written.is_empty() {
            for lane in lanes_of(mask) {
                let at = addresses[lane] as usize;
                if let Some(written) = self.lds_written[at..].first_chunk_mut() {
                    *written = [1; BYTES];
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_counted_alike_in_any_order() {
        let up: Lanes64 = std::array::from_fn(|lane| 1000 + 24 * lane as u64);
        let down: Lanes64 = std::array::from_fn(|lane| up[63 - lane]);
        for (mask, size) in [(u64::MAX, 4), (0x0f0f, 8), (u64::MAX, 16), (1 << 63, 1), (0, 4)] {
            let want = scattered_pieces(&up, mask, size);
            assert_eq!(pieces(&up, mask, size), want, "{mask:#x} {size}");
            assert_eq!(pieces(&down, mask.reverse_bits(), size), want, "{mask:#x} {size}");
        }
        assert_eq!(pieces(&up, u64::MAX, 4), (1000 + 24 * 63 + 3) / 64 - 1000 / 64 + 1);
        let far: Lanes64 = std::array::from_fn(|lane| lane as u64 * 4096 + 60);
        assert_eq!(pieces(&far, u64::MAX, 16), 128);
    }
}
