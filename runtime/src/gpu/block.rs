//! Memory on a device that tensors are in, and who uses it.
//!
//! A run that is under way holds the blocks that it reads and writes, and is written down here by the event of its end:
//! a later run that reads waits for the one that writes, and a run that writes for all. A block is given back when the
//! last tensor and the last run let go of it, so nothing that is under way can use it then.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::handles::{DeviceMemory, Event};
use super::heap::Heap;
use crate::error::RuntimeError;

/// See the module.
pub(crate) struct Block {
    heap: Arc<Heap>,
    memory: Memory,
    uses: Mutex<Uses>,
}

enum Memory {
    /// None once it is given back.
    Own(Option<DeviceMemory>),
    Foreign {
        address: u64,
        bytes: usize,
        _kept: Box<dyn Any + Send + Sync>,
    },
}

/// The ends of runs under way.
#[derive(Default)]
struct Uses {
    /// Of the one that writes.
    written: Option<Arc<Event>>,
    /// Of those that read.
    read: SmallVec<[Arc<Event>; 2]>,
}

impl Block {
    /// New memory, for `what`.
    pub fn allocate(heap: &Arc<Heap>, bytes: usize, what: &str) -> Result<Arc<Block>, RuntimeError> {
        let memory = heap.allocate(bytes, what)?;
        Ok(Arc::new(Block {
            heap: heap.clone(),
            memory: Memory::Own(Some(memory)),
            uses: Mutex::default(),
        }))
    }

    /// Memory that is somebody else's; `kept` is let go of with it.
    pub fn foreign(heap: &Arc<Heap>, address: u64, bytes: usize, kept: Box<dyn Any + Send + Sync>) -> Arc<Block> {
        Arc::new(Block {
            heap: heap.clone(),
            memory: Memory::Foreign {
                address,
                bytes,
                _kept: kept,
            },
            uses: Mutex::default(),
        })
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn device(&self) -> &str {
        &self.heap.gpu.name
    }

    pub fn heap(&self) -> &Arc<Heap> {
        &self.heap
    }

    pub fn address(&self) -> u64 {
        match &self.memory {
            Memory::Own(memory) => memory.as_ref().map_or(0, |memory| memory.address),
            Memory::Foreign { address, .. } => *address,
        }
    }

    /// Bytes of the allocation.
    pub fn bytes(&self) -> usize {
        match &self.memory {
            Memory::Own(memory) => memory.as_ref().map_or(0, |memory| memory.bytes),
            Memory::Foreign { bytes, .. } => *bytes,
        }
    }

    /// Whether a run may write it: memory that is borrowed stays as it is.
    pub fn is_own(&self) -> bool {
        matches!(self.memory, Memory::Own(_))
    }

    /// Waits for the run that writes it.
    pub fn wait(&self) -> Result<(), RuntimeError> {
        const AT: &str = "waiting for a tensor";
        let written = self.uses().written.clone();
        self.heap.gpu.enter(AT)?;
        match written {
            Some(event) => self.heap.gpu.wait(&event, || AT.to_owned()),
            None => Ok(()),
        }
    }

    /// Copies bytes to the host once they are there.
    pub fn read(&self, start: usize, bytes: usize) -> Result<Vec<u8>, RuntimeError> {
        let written = self.uses().written.clone();
        let mut to = vec![0; bytes];
        if bytes > 0 && start + bytes <= self.bytes() {
            let from = self.address() + start as u64;
            // SAFETY: the range is inside the block, and who writes it is waited for. While this handle is there,
            // nobody begins to.
            unsafe {
                self.heap
                    .read(from, &mut to, written.as_deref(), "copying a tensor to the host")
            }?;
        }
        Ok(to)
    }

    /// Fills a new block.
    pub fn fill(&self, bytes: &[u8]) -> Result<(), RuntimeError> {
        if bytes.is_empty() || bytes.len() > self.bytes() {
            return Ok(());
        }
        // SAFETY: the bytes are inside, and nothing else knows of the block yet.
        unsafe { self.heap.write(self.address(), bytes, "copying a tensor to the device") }
    }

    /// Calls `wait` with the event of each run that a run must come after.
    pub fn before<E>(&self, writes: bool, mut wait: impl FnMut(&Event) -> Result<(), E>) -> Result<(), E> {
        let uses = self.uses();
        if let Some(event) = &uses.written {
            wait(event)?;
        }
        if writes {
            uses.read.iter().try_for_each(|event| wait(event))?;
        }
        Ok(())
    }

    /// Writes down a run that is under way now.
    pub fn used(&self, writes: bool, end: &Arc<Event>) {
        let mut uses = self.uses();
        if writes {
            uses.written = Some(end.clone());
            uses.read.clear();
        } else if !uses.read.iter().any(|event| Arc::ptr_eq(event, end)) {
            uses.read.push(end.clone());
        }
    }

    /// Strikes out a run that is done.
    pub fn unused(&self, end: &Arc<Event>) {
        let mut uses = self.uses();
        if uses.written.as_ref().is_some_and(|event| Arc::ptr_eq(event, end)) {
            uses.written = None;
        }
        uses.read.retain(|event| !Arc::ptr_eq(event, end));
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Memory::Own(memory) = &mut self.memory
            && let Some(memory) = memory.take()
        {
            self.heap.give_back(memory);
        }
    }
}
