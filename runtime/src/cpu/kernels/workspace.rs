//! What a kernel runs with: the instruction level, the thread pool, and scratch memory that stays allocated.
//!
//! Kernels ask for scratch through [`Workspace::reserve`], which only ever grows: after the first run of a plan nothing
//! allocates. One workspace belongs to one run at a time (`&mut`); the pool may be shared by many.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use super::isa::Isa;
use super::threads::Pool;

const ALIGN: usize = 64;

/// Zero-initialised bytes, aligned to a cache line.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its memory, as a `Vec<u8>` does.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared references only give out the address; writes through it are the kernels' contract.
unsafe impl Sync for AlignedBuf {}

/// There is no memory for so many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom(pub usize);

/// Asks for memory that packed weights take, before it is taken.
///
/// # Errors
/// There are not so many bytes.
pub(crate) fn ask(bytes: usize) -> Result<(), NoRoom> {
    ir::memory::check(bytes as u64, String::new).map_err(|_| NoRoom(bytes))
}

/// Allocates `len` zero f32, after asking for them.
///
/// # Errors
/// As [`ask`]; memory that the allocator does not give.
pub(crate) fn zeros(len: usize) -> Result<Vec<f32>, NoRoom> {
    let bytes = len.saturating_mul(size_of::<f32>());
    ask(bytes)?;
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(len).map_err(|_| NoRoom(bytes))?;
    zeros.resize(len, 0.0);
    Ok(zeros)
}

impl AlignedBuf {
    /// Allocates `len` zero bytes; ends the process, as every allocation of Rust's does, where there is no memory.
    pub fn new(len: usize) -> AlignedBuf {
        AlignedBuf::try_new(len).unwrap_or_else(|| handle_alloc_error(Layout::new::<u8>()))
    }

    /// Allocates `len` zero bytes: for sizes that a run's inputs decide.
    ///
    /// # Errors
    /// `None` where the system gives no such memory.
    pub fn try_new(len: usize) -> Option<AlignedBuf> {
        if len == 0 {
            let ptr = NonNull::dangling();
            return Some(AlignedBuf { ptr, len });
        }
        // SAFETY: the layout's size is not zero.
        let raw = unsafe { alloc_zeroed(Self::layout(len)?) };
        NonNull::new(raw).map(|ptr| AlignedBuf { ptr, len })
    }

    /// Grows to at least `len` bytes, in pages; what it held is lost then. `None`, and nothing changed, where the
    /// system gives no such memory.
    pub fn grow(&mut self, len: usize) -> Option<()> {
        if self.len < len {
            *self = AlignedBuf::try_new(len.checked_next_multiple_of(4096)?)?;
        }
        Some(())
    }

    /// Allocates `len` zero bytes for packed weights, after asking for them.
    ///
    /// # Errors
    /// There are not so many.
    pub fn asked(len: usize) -> Result<AlignedBuf, NoRoom> {
        ask(len)?;
        AlignedBuf::try_new(len).ok_or(NoRoom(len))
    }

    /// As [`AlignedBuf::asked`], of `len` zero f32.
    ///
    /// # Errors
    /// As [`AlignedBuf::asked`].
    pub fn floats(len: usize) -> Result<AlignedBuf, NoRoom> {
        AlignedBuf::asked(len.saturating_mul(4))
    }

    /// The address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len, ALIGN).ok()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.len > 0
            && let Some(layout) = Self::layout(self.len)
        {
            // SAFETY: allocated in `try_new` with this layout.
            unsafe { dealloc(self.ptr.as_ptr(), layout) }
        }
    }
}

/// The pool, instruction level and scratch memory of one run.
pub struct Workspace {
    isa: Isa,
    pool: Arc<Pool>,
    per_thread: Vec<AlignedBuf>,
    shared: AlignedBuf,
    lacked: Option<usize>,
}

impl Workspace {
    /// Makes an empty workspace with the best instruction level of this processor.
    pub fn new(pool: Arc<Pool>) -> Workspace {
        Workspace::with_isa(pool, Isa::detect())
    }

    /// Makes an empty workspace that uses `isa`.
    pub fn with_isa(pool: Arc<Pool>, isa: Isa) -> Workspace {
        let per_thread = (0..pool.threads()).map(|_| AlignedBuf::new(0)).collect();
        Workspace {
            isa,
            pool,
            per_thread,
            shared: AlignedBuf::new(0),
            lacked: None,
        }
    }

    /// The instruction level of the kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// How many threads take tasks.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Grows scratch to at least these sizes in bytes; contents are lost when it grows. False where the system gives no
    /// such memory, which [`Workspace::lacked`] says once.
    pub fn reserve(&mut self, per_thread: usize, shared: usize) -> bool {
        let all = self.per_thread.iter_mut().map(|buf| (buf, per_thread));
        let grown = all
            .chain([(&mut self.shared, shared)])
            .try_for_each(|(buf, bytes)| buf.grow(bytes));
        if grown.is_none() {
            self.lacked = Some(per_thread.saturating_mul(self.per_thread.len()).saturating_add(shared));
        }
        grown.is_some()
    }

    /// The bytes that there were not, where a kernel did nothing for want of them.
    pub fn lacked(&mut self) -> Option<usize> {
        self.lacked.take()
    }

    /// Scratch bytes held, for memory reports.
    pub fn scratch_bytes(&self) -> usize {
        self.shared.len() + self.per_thread.iter().map(AlignedBuf::len).sum::<usize>()
    }

    /// The scratch that all threads share.
    pub fn shared(&self) -> *mut u8 {
        self.shared.as_ptr()
    }

    /// Runs `run(task, thread, scratch)` for every task; `scratch` is `thread`'s own memory.
    pub fn parallel_for(&self, tasks: usize, run: &(dyn Fn(usize, usize, *mut u8) + Sync)) {
        self.pool.parallel_for(tasks, &|task, thread| {
            run(task, thread, self.per_thread[thread].as_ptr())
        });
    }

    /// Splits `0..len` into about equal ranges of at least `grain` and runs them in parallel.
    pub fn parallel_ranges(
        &self,
        len: usize,
        grain: usize,
        run: &(dyn Fn(std::ops::Range<usize>, usize, *mut u8) + Sync),
    ) {
        let tasks = len.div_ceil(grain.max(1)).min(self.threads() * 4);
        self.parallel_for(tasks, &|task, thread, scratch| {
            run(len * task / tasks..len * (task + 1) / tasks, thread, scratch);
        });
    }
}

impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workspace")
            .field("isa", &self.isa)
            .field("threads", &self.threads())
            .field("scratch_bytes", &self.scratch_bytes())
            .finish()
    }
}

/// A raw pointer that tasks of one parallel loop may share; each task touches its own part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncPtr<T>(pub *mut T);

// SAFETY: only an address; the kernels give disjoint parts of what it points to, to each task.
unsafe impl<T> Send for SyncPtr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SyncPtr<T> {}

impl<T> SyncPtr<T> {
    #[inline(always)]
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}
