//! Recurrent layers: steps one after another, each shared by threads where its weights are many; rows of the batch side
//! by side elsewhere.

use std::sync::Arc;

use ir::host::recurrent::Recurrent;

use super::env::Env;
use super::exec::{Prepare, aligned};
use super::kernels::Isa;
use super::kernels::recurrent::{
    Operands, Part, halves, memory_floats, pack, packed_floats, round_states, run_part, vectors,
};
use super::kernels::workspace::{NoRoom, zeros};
use crate::error::RuntimeError;

/// Products of a step for which another thread is worth the wait at its end.
const PRODUCTS_A_THREAD: usize = 32 * 1024;

/// Bytes of weights that a core keeps beside it from step to step.
const KEPT_BYTES: usize = 256 * 1024;

/// A prepared layer.
#[derive(Debug)]
pub(crate) struct RecurrentExec {
    form: Recurrent,
    isa: Isa,
    /// Weights that are constants; others are packed by each run.
    packed: Option<Arc<Vec<f32>>>,
}

struct Params<'a>(&'a [*mut u8; 2]);
// SAFETY: addresses only; each task writes its own rows and units.
unsafe impl Sync for Params<'_> {}

impl RecurrentExec {
    /// Packs weights that are constants.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(crate) fn new(form: Recurrent, cx: &Prepare<'_>) -> Result<RecurrentExec, RuntimeError> {
        let (hidden, isa) = (form.hidden, cx.isa);
        let constant = cx.constants.get(form.operands[1]).copied().flatten();
        let packed = match constant {
            Some((id, tensor)) if hidden > 0 => Some(cx.pack_gates((id, hidden), || {
                let aligned = aligned(tensor)?;
                let mut packed = zeros(packed_floats(isa, &form.layer, hidden))?;
                let (from, all) = (aligned.ptr().cast(), 0..vectors(isa, hidden));
                // SAFETY: lowering found the operand to be dense, of the layer's shape and in f32.
                unsafe { pack(isa, &form.layer, hidden, from, packed.as_mut_ptr(), all) };
                Ok::<_, NoRoom>(packed)
            })?),
            _ => None,
        };
        Ok(RecurrentExec { form, isa, packed })
    }

    /// Bytes of scratch: that of one thread is shared.
    pub(crate) fn scratch(&self) -> usize {
        let form = &self.form;
        let packed = match self.packed {
            Some(_) => 0,
            None => packed_floats(self.isa, &form.layer, form.hidden),
        };
        (memory_floats(&form.layer, form.hidden, form.batch) + packed) * size_of::<f32>()
    }

    /// # Safety
    /// `params` are the kernel's buffers at the sizes it was prepared for.
    pub(crate) unsafe fn run(&self, env: &Env<'_>, params: &[*mut u8]) {
        let form = &self.form;
        if form.batch == 0 || form.hidden == 0 {
            return;
        }
        let (isa, n, batch) = (self.isa, form.hidden, form.batch);
        let memory: *mut f32 = env.shared().cast();
        let place = |at: usize| params[form.operands[at]].cast_const();
        let places = form.layer.places();
        // SAFETY: the states are dense parameters of these sizes, and the scratch is as large as `scratch` says.
        unsafe {
            std::ptr::copy_nonoverlapping(place(2).cast(), memory, batch * n);
            if let Some(cell) = places.cell {
                std::ptr::copy_nonoverlapping(place(cell).cast(), memory.add(2 * batch * n), batch * n);
            }
        }
        let packed = match &self.packed {
            Some(packed) => packed.as_ptr(),
            None => {
                let to: *mut u8 = memory.wrapping_add(memory_floats(&form.layer, n, batch)).cast();
                let ends = Params(&[params[form.operands[1]], to]);
                env.parallel_for(vectors(isa, n), &|vector, _| {
                    let Params([from, to]) = &ends;
                    let range = vector..vector + 1;
                    // SAFETY: as above; each task packs its own vector.
                    unsafe { pack(isa, &form.layer, n, from.cast_const().cast(), to.cast(), range) }
                });
                to.cast_const().cast()
            }
        };
        let operands = Operands {
            layer: &form.layer,
            batch,
            hidden: n,
            input: place(0).cast(),
            packed,
            bias: places.bias.map(|at| place(at).cast()),
            peepholes: places.peepholes.map(|at| place(at).cast()),
            lengths: places.lengths.map(|at| place(at).cast()),
            out: params[form.out].cast(),
            memory,
        };
        self.steps(env, &Shared(operands));
    }

    /// Runs all steps.
    fn steps(&self, env: &Env<'_>, operands: &Shared<'_>) {
        let (isa, form, threads) = (self.isa, &self.form, env.threads());
        let weights = form.hidden * form.hidden * form.layer.cell.gates() as usize;
        let count = vectors(isa, form.hidden);
        let shared_by = (weights * form.batch / PRODUCTS_A_THREAD).clamp(1, threads).min(count);
        let by_rows = form.batch >= threads && weights * size_of::<f32>() <= KEPT_BYTES;
        let part = |at: usize, rows: std::ops::Range<usize>, vectors: std::ops::Range<usize>, second: bool| Part {
            at,
            t: if form.layer.reverse { form.steps - 1 - at } else { at },
            rows,
            vectors,
            second,
        };
        // SAFETY: the operands are those that `run` was given; tasks have rows or units of their own, and a step, or a
        // half of one, begins when the one before has ended.
        let run = |part: &Part| unsafe { run_part(isa, &operands.0, part) };
        // SAFETY: as above, all units of the part's rows.
        let round = |part: &Part| unsafe { round_states(isa, &operands.0, part) };
        let halves = halves(&form.layer);
        if by_rows || shared_by == 1 {
            let each = form.batch.div_ceil(threads);
            env.parallel_for(form.batch.div_ceil(each), &|task, _| {
                let rows = task * each..((task + 1) * each).min(form.batch);
                for at in 0..form.steps {
                    for half in 0..halves {
                        let part = part(at, rows.clone(), 0..count, half == 1);
                        round(&part);
                        run(&part);
                    }
                }
            });
            return;
        }
        let each = count.div_ceil(shared_by);
        for at in 0..form.steps {
            for half in 0..halves {
                round(&part(at, 0..form.batch, 0..count, half == 1));
                env.parallel_for(count.div_ceil(each), &|task, _| {
                    let vectors = task * each..((task + 1) * each).min(count);
                    run(&part(at, 0..form.batch, vectors, half == 1));
                });
            }
        }
    }
}

struct Shared<'a>(Operands<'a>);
// SAFETY: addresses only; each task writes its own rows and units.
unsafe impl Sync for Shared<'_> {}
