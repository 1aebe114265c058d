//! Loops over block programs ([`ir::host::loops`]).

mod fold;
mod run;
mod update;

use ir::entity::Entity;
use ir::host::loops::{Loops, Nest};

use self::run::RunStage;
use super::block::Val;
use super::env::Env;

pub(crate) use self::fold::{binary_of, combine, neutral};

/// Lane operations that are worth a task of their own (a few microseconds).
const TASK_WORK: usize = 40_000;

/// Loops with their blocks shared out to so many threads.
#[derive(Debug)]
pub(crate) struct LoopsExec {
    form: Loops,
    nest: Nest,
    tasks: usize,
}

impl LoopsExec {
    /// Takes smaller blocks where those of the form are too few for the threads.
    pub(crate) fn new(form: Loops, threads: usize) -> LoopsExec {
        let mut nest = form.nest.clone();
        let few = |nest: &Nest| nest.blocks() < 2 * threads;
        while !form.by_rows && !form.ordered && form.points >= 8 * TASK_WORK && few(&nest) {
            match nest.halved() {
                Some(halved) => nest = halved,
                None => break,
            }
        }
        let blocks = nest.blocks();
        let tasks = match form.ordered {
            true => usize::from(blocks > 0),
            false => (form.work / TASK_WORK).clamp(1, threads * 4).min(blocks),
        };
        LoopsExec { form, nest, tasks }
    }

    /// Bytes of scratch each thread needs.
    pub(crate) fn scratch(&self) -> usize {
        self.form.scratch
    }

    /// Runs the kernel.
    ///
    /// # Safety
    /// `params` are the kernel's buffers at the sizes it was prepared for; scratch of `env` has [`Self::scratch`]
    /// bytes.
    pub(crate) unsafe fn run(&self, env: &Env<'_>, params: &[*mut u8]) {
        let blocks = self.nest.blocks();
        let params = Params(params);
        env.parallel_for(self.tasks, &|task, scratch| {
            let range = blocks * task / self.tasks..blocks * (task + 1) / self.tasks;
            // SAFETY: the caller's contract; tasks cover disjoint blocks, hence disjoint stores.
            unsafe { self.blocks(env, params.get(), range, scratch) }
        });
    }

    unsafe fn blocks(&self, env: &Env<'_>, params: &[*mut u8], range: std::ops::Range<usize>, scratch: *mut u8) {
        // SAFETY: the header of the scratch, which this task alone uses.
        let (idx, vars, externals) = unsafe {
            let idx = scratch.cast::<i64>();
            let vars = scratch.add(self.form.dims * 8).cast::<Val>();
            idx.write_bytes(0, self.form.dims);
            (
                std::slice::from_raw_parts_mut(idx, self.form.dims),
                vars,
                vars.add(self.form.vars),
            )
        };
        for block in range {
            let (rows, cols) = self.nest.seek(block, idx);
            for stage in &self.form.stages {
                // SAFETY: as above; `externals` has room for the most that a stage has.
                unsafe {
                    for (i, var) in stage.externals.iter().enumerate() {
                        externals.add(i).write(vars.add(var.index()).read());
                    }
                    let given = std::slice::from_raw_parts(externals, stage.externals.len());
                    debug_assert!(stage.externals.len() <= self.form.externals);
                    stage.run(env, params, idx, (rows, cols), given, vars, scratch);
                }
            }
        }
    }
}

struct Params<'a>(&'a [*mut u8]);
// SAFETY: addresses only; each task writes its own part of what they point to.
unsafe impl Sync for Params<'_> {}
impl Params<'_> {
    fn get(&self) -> &[*mut u8] {
        self.0
    }
}
