//! The memory of tensors on one device: allocations that are kept for the next of their size, and copies from and to
//! the host.
//!
//! Allocating device memory takes longer than most launches and may wait for the device, and the outputs of a loop of
//! runs come and go in the same sizes. So memory that a tensor gives back is kept, and returned to the driver when an
//! allocation fails, when a program is dropped, and on request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::driver::{Direction, Priority};
use super::handles::{DeviceMemory, Event, Gpu, PinnedMemory, Stream, copy_by_all_cores};
use crate::error::RuntimeError;

/// Sizes are multiples of this many bytes.
const SMALL: usize = 512;
/// From this size on, of this many.
const LARGE: usize = 2 << 20;
/// Bytes of one pinned chunk: large enough that copies run at the bus's speed.
const CHUNK: usize = 8 << 20;

/// See the module.
pub(crate) struct Heap {
    pub gpu: Arc<Gpu>,
    kept: Mutex<Kept>,
    transfer: Mutex<Option<Transfer>>,
}

#[derive(Default)]
struct Kept {
    /// By size.
    idle: BTreeMap<usize, Vec<DeviceMemory>>,
    statistics: MemoryStatistics,
}

/// Memory of the tensors of one device, in bytes. Weights and arenas of programs are not in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryStatistics {
    /// That tensors have now.
    pub in_use: usize,
    /// That is kept for later tensors.
    pub idle: usize,
    /// The most that tensors had at one time.
    pub peak: usize,
    /// How often the driver was asked for memory.
    pub allocations: u64,
    /// How often memory was there already.
    pub reuses: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size that is asked for in place of `bytes`, so that sizes that are almost equal meet.
fn rounded(bytes: usize) -> usize {
    let unit = if bytes < LARGE { SMALL } else { LARGE };
    bytes.max(1).next_multiple_of(unit)
}

impl Heap {
    pub fn new(gpu: Arc<Gpu>) -> Heap {
        Heap {
            gpu,
            kept: Mutex::default(),
            transfer: Mutex::default(),
        }
    }

    /// Memory of at least that many bytes, for `what`.
    pub fn allocate(&self, bytes: usize, what: &str) -> Result<DeviceMemory, RuntimeError> {
        let size = rounded(bytes);
        let mut kept = lock(&self.kept);
        // What is much larger waits for what needs it.
        let fitting = kept
            .idle
            .range(size..=size.saturating_mul(2))
            .next()
            .map(|(size, _)| *size);
        let found = fitting.and_then(|size| {
            let list = kept.idle.get_mut(&size)?;
            let memory = list.pop();
            if list.is_empty() {
                kept.idle.remove(&size);
            }
            memory
        });
        let memory = match found {
            Some(memory) => {
                kept.statistics.idle -= memory.bytes;
                kept.statistics.reuses += 1;
                memory
            }
            None => {
                kept.statistics.allocations += 1;
                drop(kept);
                let memory = match self.gpu.allocate(size, what, None) {
                    Err(RuntimeError::OutOfDeviceMemory(_)) if self.trim() > 0 => {
                        self.gpu.allocate(size, what, None)?
                    }
                    other => other?,
                };
                kept = lock(&self.kept);
                memory
            }
        };
        kept.statistics.in_use += memory.bytes;
        kept.statistics.peak = kept.statistics.peak.max(kept.statistics.in_use);
        Ok(memory)
    }

    /// Keeps memory for later. Nothing under way may use it.
    pub fn give_back(&self, memory: DeviceMemory) {
        let mut kept = lock(&self.kept);
        kept.statistics.in_use -= memory.bytes;
        kept.statistics.idle += memory.bytes;
        kept.idle.entry(memory.bytes).or_default().push(memory);
    }

    /// Gives what is kept back to the driver, and says how many bytes that was.
    pub fn trim(&self) -> usize {
        let mut kept = lock(&self.kept);
        let idle = std::mem::take(&mut kept.idle);
        let bytes = std::mem::take(&mut kept.statistics.idle);
        drop(kept);
        drop(idle);
        bytes
    }

    pub fn statistics(&self) -> MemoryStatistics {
        lock(&self.kept).statistics
    }

    /// Copies bytes to the device and waits until they are there.
    ///
    /// # Safety
    /// The memory at `to` has room for them, and nothing under way uses it.
    pub unsafe fn write(&self, to: u64, bytes: &[u8], what: &str) -> Result<(), RuntimeError> {
        // SAFETY: the caller's.
        self.copy(what, |transfer| unsafe { transfer.write(&self.gpu, to, bytes, what) })
    }

    /// Copies bytes to the host, after `after`.
    ///
    /// # Safety
    /// The memory at `from` has as many bytes, and nothing that is not before `after` writes it.
    pub unsafe fn read(
        &self,
        from: u64,
        bytes: &mut [u8],
        after: Option<&Event>,
        what: &str,
    ) -> Result<(), RuntimeError> {
        self.copy(what, |transfer| {
            if let Some(event) = after {
                self.gpu.at(what, transfer.stream.wait(event))?;
            }
            // SAFETY: the caller's.
            unsafe { transfer.read(&self.gpu, from, bytes, what) }
        })
    }

    fn copy(
        &self,
        what: &str,
        copy: impl FnOnce(&mut Transfer) -> Result<(), RuntimeError>,
    ) -> Result<(), RuntimeError> {
        self.gpu.enter(what)?;
        let mut transfer = lock(&self.transfer);
        let mut ready = match transfer.take() {
            Some(ready) => ready,
            None => Transfer::new(&self.gpu)?,
        };
        let copied = copy(&mut ready);
        // Also after an error: the chunks must not be used again while a copy is under way.
        let finished = self.gpu.wait_for_stream(&ready.stream, &ready.end, || what.to_owned());
        copied.and(finished)?;
        *transfer = Some(ready);
        Ok(())
    }
}

/// A stream and two pinned chunks: one is filled or emptied while the other is under way.
struct Transfer {
    stream: Stream,
    chunks: [(PinnedMemory, Event); 2],
    end: Event,
}

impl Transfer {
    fn new(gpu: &Arc<Gpu>) -> Result<Transfer, RuntimeError> {
        let chunk = || -> Result<_, RuntimeError> {
            let memory = gpu.allocate_pinned(CHUNK, "copying tensors")?;
            Ok((memory, gpu.event(false)?))
        };
        let stream = gpu.stream(Priority::Normal)?;
        Ok(Transfer {
            chunks: [chunk()?, chunk()?],
            end: gpu.event(false)?,
            stream,
        })
    }

    /// # Safety
    /// As [`Heap::write`]; the stream is waited for before anything else happens.
    unsafe fn write(&mut self, gpu: &Gpu, to: u64, bytes: &[u8], what: &str) -> Result<(), RuntimeError> {
        for (index, part) in bytes.chunks(CHUNK).enumerate() {
            let (chunk, done) = &mut self.chunks[index % 2];
            if index >= 2 {
                gpu.wait(done, || what.to_owned())?;
            }
            chunk.write(0, part);
            let at = to + (index * CHUNK) as u64;
            // SAFETY: the part is inside the chunk, its place inside the caller's memory.
            let copied = unsafe { self.stream.copy(at, chunk.address(0), part.len(), Direction::ToDevice) };
            gpu.at(what, copied)?;
            gpu.at(what, self.stream.record(done))?;
        }
        Ok(())
    }

    /// # Safety
    /// As [`Heap::read`]; the stream is waited for before anything else happens.
    unsafe fn read(&mut self, gpu: &Gpu, from: u64, bytes: &mut [u8], what: &str) -> Result<(), RuntimeError> {
        let parts = bytes.len().div_ceil(CHUNK);
        let length = |index: usize| CHUNK.min(bytes.len() - index * CHUNK);
        let lengths: smallvec::SmallVec<[usize; 8]> = (0..parts).map(length).collect();
        // Part `index` is enqueued while part `index - 1` is under way, and then that one is taken.
        for index in 0..=parts {
            if index < parts {
                let (chunk, done) = &self.chunks[index % 2];
                let at = from + (index * CHUNK) as u64;
                // SAFETY: the part is inside the caller's memory, and the chunk has room for it.
                let copied = unsafe {
                    self.stream
                        .copy(chunk.address(0), at, lengths[index], Direction::ToHost)
                };
                gpu.at(what, copied)?;
                gpu.at(what, self.stream.record(done))?;
            }
            if let Some(before) = index.checked_sub(1) {
                let (chunk, done) = &self.chunks[before % 2];
                gpu.wait(done, || what.to_owned())?;
                let at = before * CHUNK;
                copy_by_all_cores(&mut bytes[at..at + lengths[before]], chunk.bytes(0, lengths[before]));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_meet_in_classes() {
        assert_eq!(
            (rounded(0), rounded(1), rounded(512), rounded(513)),
            (512, 512, 512, 1024)
        );
        assert_eq!(rounded(LARGE - 1), LARGE);
        assert_eq!(rounded(LARGE + 1), 2 * LARGE);
    }
}
