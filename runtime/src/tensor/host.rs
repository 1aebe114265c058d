//! Memory of the CPU device, and the latch that says when a run has filled it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use ir::Storage;

use crate::cpu::kernels::workspace::AlignedBuf;
use crate::error::RuntimeError;

/// Bytes that a tensor of the CPU device has.
pub(crate) struct HostBlock {
    bytes: Bytes,
    ready: Latch,
    /// Runs that were begun and read the bytes.
    readers: AtomicUsize,
}

enum Bytes {
    /// Of the host's tensors: never written.
    Shared(Storage),
    /// Of a tensor, and of the output that a run puts in its place.
    Own(Arc<AlignedBuf>),
}

/// A run's hold on the bytes that it reads.
pub(crate) struct Reading(Arc<HostBlock>);

impl Reading {
    pub fn block(&self) -> &HostBlock {
        &self.0
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::Release);
    }
}

impl HostBlock {
    /// Bytes that are there.
    pub fn shared(bytes: Storage) -> HostBlock {
        HostBlock {
            bytes: Bytes::Shared(bytes),
            ready: Latch::open(),
            readers: AtomicUsize::new(0),
        }
    }

    /// Memory that a run is going to fill.
    pub fn to_fill(bytes: AlignedBuf) -> HostBlock {
        HostBlock::of(Arc::new(bytes))
    }

    fn of(bytes: Arc<AlignedBuf>) -> HostBlock {
        HostBlock {
            bytes: Bytes::Own(bytes),
            ready: Latch::default(),
            readers: AtomicUsize::new(0),
        }
    }

    /// Another block in the same place, which a run is going to fill once this one is filled. The caller has the last
    /// handle on the tensor, and nobody looks at this block's bytes from then on.
    ///
    /// None for bytes that the host's tensors share, and while a run reads them.
    pub fn successor(&self) -> Option<HostBlock> {
        match &self.bytes {
            Bytes::Own(bytes) if self.readers.load(Ordering::Acquire) == 0 => Some(HostBlock::of(bytes.clone())),
            Bytes::Own(_) | Bytes::Shared(_) => None,
        }
    }

    /// Keeps the bytes as they are for a run.
    pub fn read(self: Arc<HostBlock>) -> Reading {
        self.readers.fetch_add(1, Ordering::Relaxed);
        Reading(self)
    }

    pub fn address(&self) -> u64 {
        match &self.bytes {
            Bytes::Shared(bytes) => bytes.as_ptr() as u64,
            Bytes::Own(bytes) => bytes.as_ptr() as u64,
        }
    }

    /// The bytes; [`HostBlock::wait`] comes first.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Shared(bytes) => bytes,
            // SAFETY: the buffer owns its bytes, all initialised, and whoever fills them has opened the latch since.
            Bytes::Own(bytes) => unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) },
        }
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Shared(bytes) => bytes.len(),
            Bytes::Own(bytes) => bytes.len(),
        }
    }

    pub fn ready(&self) -> &Latch {
        &self.ready
    }

    /// Waits for the run that fills the memory.
    pub fn wait(&self) -> Result<(), RuntimeError> {
        if self.ready.wait() {
            return Ok(());
        }
        Err(RuntimeError::NotAvailable {
            what: "a tensor on device cpu".into(),
            reason: "the run that was to make it failed".into(),
        })
    }
}

/// Closed until a run is done.
#[derive(Default)]
pub(crate) struct Latch {
    done: Mutex<Option<bool>>,
    changed: Condvar,
}

impl Latch {
    fn open() -> Latch {
        Latch {
            done: Mutex::new(Some(true)),
            changed: Condvar::new(),
        }
    }

    /// Opens it, after a run that succeeded or failed.
    pub fn set(&self, succeeded: bool) {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) = Some(succeeded);
        self.changed.notify_all();
    }

    /// Waits for it and says whether the run succeeded.
    pub fn wait(&self) -> bool {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *done {
                Some(succeeded) => return succeeded,
                None => done = self.changed.wait(done).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}
