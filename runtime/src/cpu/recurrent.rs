//! Recurrent layers: rows of the batch side by side, steps one after another.

use ir::host::recurrent::Recurrent;

use super::env::Env;
use super::kernels::recurrent::{Rows, run_rows, scratch_floats};

/// The most rows that share a walk over the weights.
const MOST_ROWS: usize = 8;

/// Bytes of scratch a thread.
pub(crate) fn scratch(form: &Recurrent) -> usize {
    scratch_floats(&form.layer, form.hidden, form.batch.min(MOST_ROWS)) * size_of::<f32>()
}

struct Params<'a>(&'a [*mut u8]);
// SAFETY: addresses only; each task writes its own rows of the result.
unsafe impl Sync for Params<'_> {}

/// # Safety
/// `params` are the kernel's buffers at the sizes it was prepared for.
pub(crate) unsafe fn run(form: &Recurrent, env: &Env<'_>, params: &[*mut u8]) {
    if form.batch == 0 || form.hidden == 0 {
        return;
    }
    let each = form.batch.div_ceil(env.threads().max(1)).min(MOST_ROWS);
    let params = Params(params);
    env.parallel_for(form.batch.div_ceil(each), &|task, scratch| {
        let params = &params;
        let place = |at: Option<usize>| at.map(|at| params.0[form.operands[at]]);
        let places = form.layer.places();
        let first = task * each;
        let rows = Rows {
            layer: &form.layer,
            steps: form.steps,
            batch: form.batch,
            hidden: form.hidden,
            first,
            count: each.min(form.batch - first),
            input: params.0[form.operands[0]].cast_const().cast(),
            weights: params.0[form.operands[1]].cast_const().cast(),
            state: params.0[form.operands[2]].cast_const().cast(),
            cell: place(places.cell).map(|p| p.cast_const().cast()),
            bias: place(places.bias).map(|p| p.cast_const().cast()),
            peepholes: place(places.peepholes).map(|p| p.cast_const().cast()),
            lengths: place(places.lengths).map(|p| p.cast_const().cast()),
            out: params.0[form.out].cast(),
            scratch: scratch.cast(),
        };
        // SAFETY: the operands and the result are dense parameters of these sizes, as lowering found them; the scratch
        // is the thread's own and as large as `scratch` says.
        unsafe { run_rows(env.isa, &rows) }
    });
}
