//! Device memory: allocations with bounds, a record of which bytes were written, and addresses that are never reused.
//!
//! Device addresses are 64-bit and lie in a range that no host process maps, so a host that follows a device pointer
//! crashes here as it does on a GPU. They are virtual, so gigabytes between two allocations cost nothing: an index
//! that is far out of bounds meets no neighbour. Host memory can be registered and then has its own address on the
//! device (pinned memory). A freed range is remembered, so a later access is a use after free, not a wild read.

use crate::error::MemoryError;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

/// Where device addresses begin.
pub const DEVICE_BASE: u64 = 0x1000_0000_0000;
/// Where device addresses end: before those of host processes, and below the bit that sign extension would copy.
pub const DEVICE_END: u64 = 0x5000_0000_0000;
/// Allocations start at multiples of this.
pub const ALIGNMENT: u64 = 256;
/// At least this many unmapped bytes lie between two allocations.
const LEAST_GUARD: u64 = 4096;
/// At most this many do.
const MOST_GUARD: u64 = 4 << 30;

/// Eight bytes of the record of an allocation that was written.
const ALL_WRITTEN: u64 = 0x0101_0101_0101_0101;

/// One allocation.
pub struct Region {
    base: u64,
    size: u64,
    data: NonNull<u8>,
    /// One byte for each byte of data, 1 where it was written. None where all of it counts as written.
    written: Option<NonNull<u8>>,
    all_written: AtomicBool,
    owned: bool,
}

// SAFETY: the bytes are only touched through relaxed atomics (`load_*`, `store_*`) or through `copy_*`,
// whose callers order them against launches as HIP's streams do.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        let layout = layout(self.size);
        if self.owned {
            // SAFETY: `data` came from `alloc_zeroed` with this layout.
            unsafe { dealloc(self.data.as_ptr(), layout) };
        }
        if let Some(written) = self.written {
            // SAFETY: `written` came from `alloc_zeroed` with this layout.
            unsafe { dealloc(written.as_ptr(), layout) };
        }
    }
}

fn layout(size: u64) -> Layout {
    // At an alignment that the allocator gives anyway its zeros are pages that are made when they are touched; at a
    // larger one it would write them all.
    Layout::from_size_align(size.max(16) as usize, 16).expect("a device allocation is below isize::MAX")
}

fn zeroed(size: u64) -> Option<NonNull<u8>> {
    // SAFETY: the layout's size is at least 1.
    NonNull::new(unsafe { alloc_zeroed(layout(size)) })
}

macro_rules! word_access {
    ($load:ident, $store:ident, $put:ident, $word:ty, $atomic:ty) => {
        /// Reads a little-endian word at `offset`, which the caller has checked against the size.
        #[inline]
        pub fn $load(&self, offset: u64) -> $word {
            debug_assert!(offset + size_of::<$word>() as u64 <= self.size);
            // SAFETY: in bounds by the caller's check (asserted above).
            let at = unsafe { self.data.as_ptr().add(offset as usize) };
            if (at as usize) % size_of::<$word>() == 0 {
                // SAFETY: aligned, in bounds, and every concurrent access is atomic.
                unsafe { <$atomic>::from_ptr(at.cast()) }.load(Relaxed)
            } else {
                let mut bytes = [0u8; size_of::<$word>()];
                for (index, byte) in bytes.iter_mut().enumerate() {
                    // SAFETY: in bounds; a byte is always aligned.
                    *byte = unsafe { AtomicU8::from_ptr(at.add(index)) }.load(Relaxed);
                }
                <$word>::from_le_bytes(bytes)
            }
        }

        /// Writes a little-endian word at `offset`, which the caller has checked, and marks it written.
        #[inline]
        pub fn $store(&self, offset: u64, value: $word) {
            self.$put(offset, value);
            self.mark(offset, size_of::<$word>() as u64);
        }

        /// Writes a little-endian word at `offset`, which the caller has checked and marks.
        #[inline]
        pub fn $put(&self, offset: u64, value: $word) {
            debug_assert!(offset + size_of::<$word>() as u64 <= self.size);
            // SAFETY: in bounds by the caller's check (asserted above).
            let at = unsafe { self.data.as_ptr().add(offset as usize) };
            if (at as usize) % size_of::<$word>() == 0 {
                // SAFETY: aligned, in bounds, and every concurrent access is atomic.
                unsafe { <$atomic>::from_ptr(at.cast()) }.store(value, Relaxed);
            } else {
                for (index, byte) in value.to_le_bytes().into_iter().enumerate() {
                    // SAFETY: in bounds; a byte is always aligned.
                    unsafe { AtomicU8::from_ptr(at.add(index)) }.store(byte, Relaxed);
                }
            }
        }
    };
}

impl Region {
    fn new(base: u64, size: u64, written: bool) -> Option<Region> {
        let data = zeroed(size)?;
        let shadow = if written { None } else { zeroed(size) };
        Some(Region {
            base,
            size,
            data,
            written: shadow,
            all_written: AtomicBool::new(written),
            owned: true,
        })
    }

    /// The first device address.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether `size` bytes at device address `address` lie inside.
    #[inline]
    pub fn covers(&self, address: u64, size: u64) -> bool {
        address >= self.base && size <= self.size && address - self.base <= self.size - size
    }

    word_access!(load_u8, store_u8, put_u8, u8, AtomicU8);
    word_access!(load_u16, store_u16, put_u16, u16, AtomicU16);
    word_access!(load_u32, store_u32, put_u32, u32, AtomicU32);
    word_access!(load_u64, store_u64, put_u64, u64, AtomicU64);

    /// The word at `offset` as an atomic, where it is aligned; the caller has checked the bounds.
    pub fn atomic_u32(&self, offset: u64) -> Option<&AtomicU32> {
        debug_assert!(offset + 4 <= self.size);
        // SAFETY: in bounds by the caller's check; alignment is tested before the cast is used.
        let at = unsafe { self.data.as_ptr().add(offset as usize) };
        // SAFETY: aligned and in bounds, and every concurrent access is atomic.
        (at as usize)
            .is_multiple_of(4)
            .then(|| unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    /// The double word at `offset` as an atomic, where it is aligned; the caller has checked the bounds.
    pub fn atomic_u64(&self, offset: u64) -> Option<&AtomicU64> {
        debug_assert!(offset + 8 <= self.size);
        // SAFETY: in bounds by the caller's check; alignment is tested before the cast is used.
        let at = unsafe { self.data.as_ptr().add(offset as usize) };
        // SAFETY: aligned and in bounds, and every concurrent access is atomic.
        (at as usize)
            .is_multiple_of(8)
            .then(|| unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// Whether the whole allocation counts as written.
    #[inline]
    pub fn all_written(&self) -> bool {
        self.written.is_none() || self.all_written.load(Relaxed)
    }

    /// Marks bytes as written.
    #[inline]
    pub fn mark(&self, offset: u64, size: u64) {
        let Some(written) = self.written else { return };
        if self.all_written.load(Relaxed) {
            return;
        }
        if offset == 0 && size == self.size {
            self.all_written.store(true, Relaxed);
            return;
        }
        // SAFETY: `offset + size` is in bounds by the callers' checks; the shadow is as large as the data.
        let at = unsafe { written.as_ptr().add(offset as usize) };
        let size = size as usize;
        if size == 4 && (at as usize).is_multiple_of(4) {
            // SAFETY: aligned and in bounds; concurrent accesses are atomic.
            unsafe { AtomicU32::from_ptr(at.cast()) }.store(ALL_WRITTEN as u32, Relaxed);
            return;
        }
        let head = at.align_offset(8).min(size);
        let words = (size - head) / 8;
        for index in (0..head).chain(head + 8 * words..size) {
            // SAFETY: in bounds; concurrent accesses are atomic.
            unsafe { AtomicU8::from_ptr(at.add(index)) }.store(1, Relaxed);
        }
        for word in 0..words {
            // SAFETY: aligned behind the head and in bounds; concurrent accesses are atomic.
            unsafe { AtomicU64::from_ptr(at.add(head + 8 * word).cast()) }.store(ALL_WRITTEN, Relaxed);
        }
    }

    /// Whether all of `size` bytes at `offset` were written.
    #[inline]
    pub fn is_written(&self, offset: u64, size: u64) -> bool {
        let Some(written) = self.written else { return true };
        if self.all_written.load(Relaxed) {
            return true;
        }
        // SAFETY: `offset + size` is in bounds by the callers' checks.
        let at = unsafe { written.as_ptr().add(offset as usize) };
        let size = size as usize;
        if size == 4 && (at as usize).is_multiple_of(4) {
            // SAFETY: aligned and in bounds; concurrent accesses are atomic.
            return unsafe { AtomicU32::from_ptr(at.cast()) }.load(Relaxed) == ALL_WRITTEN as u32;
        }
        let head = at.align_offset(8).min(size);
        let words = (size - head) / 8;
        // SAFETY: in bounds; concurrent accesses are atomic.
        let byte = |index: usize| unsafe { AtomicU8::from_ptr(at.add(index)) }.load(Relaxed) == 1;
        (0..head).chain(head + 8 * words..size).all(byte)
            && (0..words).all(|word| {
                // SAFETY: aligned behind the head and in bounds; concurrent accesses are atomic.
                unsafe { AtomicU64::from_ptr(at.add(head + 8 * word).cast()) }.load(Relaxed) == ALL_WRITTEN
            })
    }

    /// The first of `size` bytes from `offset` on that was never written.
    fn first_unwritten(&self, offset: u64, size: u64) -> Option<u64> {
        const PIECE: u64 = 256;
        let mut pieces = (0..size).step_by(PIECE as usize);
        let piece = pieces.find(|start| !self.is_written(offset + start, PIECE.min(size - start)))?;
        (piece..size.min(piece + PIECE)).find(|at| !self.is_written(offset + at, 1))
    }

    /// The bits of the `size` (at most 4) bytes at `offset` that were never written.
    pub fn unwritten_bits(&self, offset: u64, size: u32) -> u32 {
        (0..size).fold(0, |bits, index| {
            let unwritten = !self.is_written(offset + u64::from(index), 1);
            bits | if unwritten { 0xff << (8 * index) } else { 0 }
        })
    }

    fn copy_out(&self, offset: u64, out: &mut [u8]) {
        debug_assert!(offset + out.len() as u64 <= self.size);
        // SAFETY: in bounds by the caller's check; `out` is host memory of the caller, or disjoint by the borrow.
        unsafe {
            std::ptr::copy(self.data.as_ptr().add(offset as usize), out.as_mut_ptr(), out.len());
        }
    }

    fn copy_in(&self, offset: u64, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() as u64 <= self.size);
        // SAFETY: in bounds by the caller's check.
        unsafe {
            std::ptr::copy(bytes.as_ptr(), self.data.as_ptr().add(offset as usize), bytes.len());
        }
        self.mark(offset, bytes.len() as u64);
    }
}

#[derive(Default)]
struct Tables {
    live: BTreeMap<u64, Arc<Region>>,
    freed: BTreeMap<u64, u64>,
    next: u64,
    used: u64,
}

/// Unmapped bytes behind an allocation when `left` of `all` addresses are left: gigabytes at first, less after tens of
/// thousands of allocations, so that the addresses never run out.
fn guard(left: u64, all: u64) -> u64 {
    (left.saturating_sub(all / 16) / 16_384).clamp(LEAST_GUARD, MOST_GUARD)
}

/// The memory of one device (or of several that see each other's memory).
pub struct Memory {
    tables: RwLock<Tables>,
    capacity: u64,
    addresses: Range<u64>,
}

impl Memory {
    /// A memory of `capacity` bytes, none of them allocated.
    pub fn new(capacity: u64) -> Memory {
        Memory::with_addresses(capacity, DEVICE_BASE..DEVICE_END)
    }

    /// A memory with these addresses, so that several devices have distinct ones.
    pub fn with_addresses(capacity: u64, addresses: Range<u64>) -> Memory {
        Memory {
            tables: RwLock::new(Tables {
                next: addresses.start,
                ..Tables::default()
            }),
            capacity,
            addresses,
        }
    }

    fn tables(&self) -> std::sync::RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn tables_mut(&self) -> std::sync::RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Bytes in all.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that live allocations take.
    pub fn used(&self) -> u64 {
        self.tables().used
    }

    /// The base and size of each live allocation, in order.
    pub(crate) fn regions(&self) -> Vec<(u64, u64)> {
        let tables = self.tables();
        tables.live.values().map(|region| (region.base, region.size)).collect()
    }

    /// Allocates `size` bytes, unwritten, at a multiple of [`ALIGNMENT`].
    pub fn alloc(&self, size: u64) -> Result<u64, MemoryError> {
        self.insert(size, false)
    }

    /// Allocates `size` bytes of zeros that count as written.
    pub fn alloc_zeroed(&self, size: u64) -> Result<u64, MemoryError> {
        self.insert(size, true)
    }

    fn insert(&self, size: u64, written: bool) -> Result<u64, MemoryError> {
        let mut tables = self.tables_mut();
        let free = self.capacity.saturating_sub(tables.used);
        let full = MemoryError::OutOfMemory {
            asked: size,
            free,
            capacity: self.capacity,
        };
        let base = tables.next;
        let left = self.addresses.end.saturating_sub(base);
        if size > free || size.saturating_add(LEAST_GUARD + ALIGNMENT) > left {
            return Err(full);
        }
        let region = Region::new(base, size, written);
        let region = region.ok_or(MemoryError::HostMemory { asked: size, free })?;
        let guard = guard(left - size, self.addresses.end - self.addresses.start);
        tables.next = (base + size.max(1) + guard).next_multiple_of(ALIGNMENT);
        tables.used += size;
        tables.live.insert(base, Arc::new(region));
        Ok(base)
    }

    /// Makes host memory visible to the device at its own address, counted as written.
    ///
    /// # Safety
    /// `host` must stay valid for reads and writes of `size` bytes until [`Memory::free`] is called for it, and
    /// the host must not touch it while a launch that uses it runs, other than through atomics.
    pub unsafe fn register_host(&self, host: NonNull<u8>, size: u64) -> u64 {
        let base = host.as_ptr() as u64;
        let region = Region {
            base,
            size,
            data: host,
            written: None,
            all_written: AtomicBool::new(true),
            owned: false,
        };
        let mut tables = self.tables_mut();
        tables.freed.remove(&base);
        tables.live.insert(base, Arc::new(region));
        base
    }

    /// Frees an allocation or forgets registered host memory; a second free is an error.
    pub fn free(&self, address: u64) -> Result<(), MemoryError> {
        let mut tables = self.tables_mut();
        match tables.live.remove(&address) {
            Some(region) => {
                if region.owned {
                    tables.used -= region.size;
                    tables.freed.insert(address, region.size);
                }
                Ok(())
            }
            None if tables.freed.contains_key(&address) => Err(MemoryError::Freed { address }),
            None => Err(MemoryError::NotAllocated { address }),
        }
    }

    /// The live allocation that `address` lies in: its first address and its size.
    pub fn allocation(&self, address: u64) -> Option<(u64, u64)> {
        let tables = self.tables();
        let (_, region) = tables.live.range(..=address).next_back()?;
        region.covers(address, 1).then_some((region.base, region.size))
    }

    fn find(&self, address: u64, size: u64) -> Result<Arc<Region>, MemoryError> {
        let tables = self.tables();
        if let Some((_, region)) = tables.live.range(..=address).next_back()
            && region.covers(address, size)
        {
            return Ok(region.clone());
        }
        drop(tables);
        if self.was_freed(address) {
            return Err(MemoryError::Freed { address });
        }
        Err(MemoryError::OutOfBounds {
            address,
            size,
            note: self.neighbour(address),
        })
    }

    /// Whether `address` lies in a range that was freed.
    pub fn was_freed(&self, address: u64) -> bool {
        let tables = self.tables();
        tables
            .freed
            .range(..=address)
            .next_back()
            .is_some_and(|(base, size)| address - base < (*size).max(1))
    }

    /// Words about the allocation nearest below `address`.
    pub fn neighbour(&self, address: u64) -> String {
        let tables = self.tables();
        match tables.live.range(..=address).next_back() {
            Some((base, region)) => format!(
                ": {} bytes past the end of the allocation of {} bytes at {base:#x}",
                address.saturating_sub(base + region.size),
                region.size
            ),
            None => String::new(),
        }
    }

    /// Copies device memory to the host.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let region = self.find(address, out.len() as u64)?;
        region.copy_out(address - region.base, out);
        Ok(())
    }

    /// The first address of a range that nothing wrote: what a host reads there is of no use.
    ///
    /// # Errors
    /// A range that is not inside one live allocation.
    pub fn unwritten(&self, address: u64, size: u64) -> Result<Option<u64>, MemoryError> {
        let region = self.find(address, size)?;
        let first = region.first_unwritten(address - region.base, size);
        Ok(first.map(|at| address + at))
    }

    /// Copies host memory to the device.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let region = self.find(address, bytes.len() as u64)?;
        region.copy_in(address - region.base, bytes);
        Ok(())
    }

    /// Copies between device addresses, the record of written bytes included.
    pub fn copy(&self, to: u64, from: u64, size: u64) -> Result<(), MemoryError> {
        self.copy_from(to, self, from, size)
    }

    /// Copies from another device's memory, the record of written bytes included.
    pub fn copy_from(&self, to: u64, other: &Memory, from: u64, size: u64) -> Result<(), MemoryError> {
        let source = other.find(from, size)?;
        let target = self.find(to, size)?;
        let (from, to) = (from - source.base, to - target.base);
        // Read before anything is marked: both may be one allocation.
        let whole = source.is_written(from, size);
        let flags: Vec<u8> = if whole {
            Vec::new()
        } else {
            (0..size)
                .map(|index| u8::from(source.is_written(from + index, 1)))
                .collect()
        };
        // SAFETY: both ranges were found to lie in their regions; `copy` allows overlap.
        unsafe {
            std::ptr::copy(
                source.data.as_ptr().add(from as usize),
                target.data.as_ptr().add(to as usize),
                size as usize,
            );
        }
        if whole {
            target.mark(to, size);
            return Ok(());
        }
        let Some(written) = target.written else { return Ok(()) };
        let set = |index: u64, flag: u8| {
            // SAFETY: the callers below stay within the region.
            unsafe { AtomicU8::from_ptr(written.as_ptr().add(index as usize)) }.store(flag, Relaxed);
        };
        if target.all_written.swap(false, Relaxed) {
            // The shortcut for a fully written allocation no longer holds: spell it out.
            (0..target.size).for_each(|index| set(index, 1));
        }
        for (index, flag) in flags.into_iter().enumerate() {
            set(to + index as u64, flag);
        }
        Ok(())
    }

    /// Fills `size` bytes with a repeated pattern.
    pub fn fill(&self, address: u64, pattern: &[u8], size: u64) -> Result<(), MemoryError> {
        let region = self.find(address, size)?;
        let bytes: Vec<u8> = pattern.iter().copied().cycle().take(size as usize).collect();
        region.copy_in(address - region.base, &bytes);
        Ok(())
    }

    /// What a launch sees: the allocations that live now, in order of their addresses.
    pub(crate) fn view(&self) -> View {
        View {
            regions: self.tables().live.values().cloned().collect(),
        }
    }
}

/// The allocations that were live when a launch began.
pub(crate) struct View {
    regions: Vec<Arc<Region>>,
}

impl View {
    /// Adds bytes that only this launch sees, and behind them as many that nothing wrote as make it `size`.
    pub(crate) fn add_constant(&mut self, base: u64, bytes: &[u8], size: usize) {
        if let Some(region) = Region::new(base, size as u64, size == bytes.len()) {
            region.copy_in(0, bytes);
            let at = self.regions.partition_point(|other| other.base < base);
            self.regions.insert(at, Arc::new(region));
        }
    }

    /// The region that holds `size` bytes at `address`; `hint` is the index of the last one found.
    #[inline]
    pub(crate) fn find(&self, address: u64, size: u64, hint: &mut usize) -> Option<&Region> {
        if let Some(region) = self.regions.get(*hint)
            && region.covers(address, size)
        {
            return Some(region);
        }
        let index = self
            .regions
            .partition_point(|region| region.base <= address)
            .checked_sub(1)?;
        let region = &self.regions[index];
        if !region.covers(address, size) {
            return None;
        }
        *hint = index;
        Some(region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_have_bounds_and_end() {
        let memory = Memory::new(4096);
        let a = memory.alloc(1000).unwrap();
        assert_eq!(a % ALIGNMENT, 0);
        memory.write(a + 996, &[1, 2, 3, 4]).unwrap();
        assert!(matches!(
            memory.write(a + 997, &[1, 2, 3, 4]),
            Err(MemoryError::OutOfBounds { .. })
        ));
        let mut bytes = [0; 4];
        memory.read(a + 996, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert!(matches!(
            memory.alloc(3097),
            Err(MemoryError::OutOfMemory {
                asked: 3097,
                free: 3096,
                ..
            })
        ));
        assert_eq!(memory.allocation(a + 10), Some((a, 1000)));
        memory.free(a).unwrap();
        assert_eq!(memory.used(), 0);
        assert_eq!(memory.free(a), Err(MemoryError::Freed { address: a }));
        assert_eq!(memory.read(a, &mut bytes), Err(MemoryError::Freed { address: a }));
        assert_ne!(memory.alloc(1000).unwrap(), a, "addresses are not reused");
    }

    #[test]
    fn guards_are_gigabytes_and_addresses_do_not_run_out() {
        let memory = Memory::new(1 << 30);
        let (a, b) = (memory.alloc(1 << 20).unwrap(), memory.alloc(1 << 20).unwrap());
        assert!(b - a > 3 << 30);
        // A sixteenth of the addresses is kept for least guards: 2^28 allocations and more.
        let all = DEVICE_END - DEVICE_BASE;
        let (mut left, mut count) = (all, 0);
        while guard(left, all) > LEAST_GUARD {
            left -= guard(left, all);
            count += 1;
        }
        assert!(count > 100_000 && left / (2 * LEAST_GUARD) >= 1 << 28, "{count} {left}");
    }

    #[test]
    fn copies_carry_what_was_written() {
        let memory = Memory::new(1 << 20);
        let (a, b) = (memory.alloc(64).unwrap(), memory.alloc(64).unwrap());
        memory.write(a, &[7; 16]).unwrap();
        memory.write(b, &[1; 64]).unwrap();
        memory.copy(b, a, 32).unwrap();
        let region = memory.find(b, 64).unwrap();
        assert!(region.is_written(0, 16) && !region.is_written(16, 1) && region.is_written(32, 32));
        memory.copy(a + 32, a, 16).unwrap();
        let region = memory.find(a, 64).unwrap();
        assert!(region.is_written(32, 16) && !region.is_written(48, 1));
        let other = Memory::with_addresses(1 << 20, DEVICE_BASE + (1 << 40)..DEVICE_END);
        let c = other.alloc(64).unwrap();
        other.copy_from(c, &memory, a, 64).unwrap();
        assert_eq!(other.unwritten(c, 64), Ok(Some(c + 16)));
        assert_eq!(other.unwritten(c + 32, 16), Ok(None));
        memory.fill(a, &[1, 2, 3, 4], 64).unwrap();
        assert!(region.is_written(0, 64));
    }

    #[test]
    fn the_first_byte_that_nothing_wrote_is_found() {
        let memory = Memory::new(1 << 20);
        let a = memory.alloc(1000).unwrap();
        for hole in [0, 1, 255, 256, 257, 700, 999] {
            memory.copy(a, memory.alloc(1000).unwrap(), 1000).unwrap();
            memory.write(a, &vec![1; hole as usize]).unwrap();
            memory.write(a + hole + 1, &vec![1; 999 - hole as usize]).unwrap();
            assert_eq!(memory.unwritten(a, 1000), Ok(Some(a + hole)));
            assert_eq!(memory.unwritten(a, hole), Ok(None));
            assert_eq!(memory.unwritten(a + hole + 1, 999 - hole), Ok(None));
        }
    }
}
