//! What a prepared kernel runs with.

use std::sync::Arc;

use super::kernels::workspace::AlignedBuf;
use super::kernels::{Isa, Pool, Workspace};

/// Memory of one run at a time: everything here is allocated on the first run at a size and kept.
#[derive(Debug)]
pub(crate) struct RunMemory {
    /// Scratch of the kernels proper.
    pub workspace: Workspace,
    /// Scratch of block programs, one a thread: also used while the kernels' own is.
    pub threads: Vec<AlignedBuf>,
    /// Operands and products that a kernel needs besides its buffers.
    pub temporary: AlignedBuf,
}

impl RunMemory {
    pub(crate) fn new(pool: Arc<Pool>) -> RunMemory {
        let threads = (0..pool.threads()).map(|_| AlignedBuf::new(0)).collect();
        RunMemory {
            workspace: Workspace::new(pool),
            threads,
            temporary: AlignedBuf::new(0),
        }
    }

    /// Grows to at least these sizes in bytes; `None` where the system gives no such memory.
    pub(crate) fn reserve(&mut self, scratch: usize, temporary: usize) -> Option<()> {
        for buf in &mut self.threads {
            buf.grow(scratch)?;
        }
        self.temporary.grow(temporary)
    }

    pub(crate) fn env(&self) -> Env<'_> {
        Env {
            isa: self.workspace.isa(),
            pool: self.workspace.pool(),
            scratch: &self.threads,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.workspace.scratch_bytes() + self.temporary.len() + self.scratch()
    }

    /// Bytes of the scratch of block programs, of all threads together.
    pub(crate) fn scratch(&self) -> usize {
        self.threads.iter().map(AlignedBuf::len).sum()
    }
}

/// The pool and the scratch of block programs.
pub(crate) struct Env<'a> {
    pub isa: Isa,
    pool: &'a Pool,
    scratch: &'a [AlignedBuf],
}

impl Env<'_> {
    pub(crate) fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Scratch that the threads share: that of the first, whose own it then is not.
    pub(crate) fn shared(&self) -> *mut u8 {
        self.scratch[0].as_ptr()
    }

    /// Runs `run(task, scratch)` for every task, `scratch` being the thread's own.
    pub(crate) fn parallel_for(&self, tasks: usize, run: &(dyn Fn(usize, *mut u8) + Sync)) {
        self.pool
            .parallel_for(tasks, &|task, thread| run(task, self.scratch[thread].as_ptr()));
    }
}
