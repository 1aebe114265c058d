//! Softmax, log-softmax, layer norm and RMS norm over contiguous f32 rows.

use ir::host::shapes::RowComposite;
use ir::kernel::RowKind;

use super::env::RunMemory;
use super::kernels::rows::{layer_norm, log_softmax, rms_norm, softmax};

/// # Safety
/// `params` are the kernel's buffers at the sizes it was prepared for.
pub(crate) unsafe fn run(form: &RowComposite, memory: &RunMemory, params: &[*mut u8]) {
    let ws = &memory.workspace;
    let at = |(param, base): (usize, i64)| params[param].cast::<f32>().wrapping_offset(base as isize);
    // SAFETY: all rows and columns were proven to be inside their buffers; in place, rows are the same.
    unsafe {
        let column = |c: Option<(usize, i64)>| c.map(|c| std::slice::from_raw_parts(at(c), form.shape.cols));
        let (dst, src) = (at(form.dst), at(form.src).cast_const());
        match form.kind {
            RowKind::Softmax => softmax(ws, dst, src, form.shape),
            RowKind::LogSoftmax => log_softmax(ws, dst, src, form.shape),
            RowKind::LayerNorm { epsilon } => {
                layer_norm(
                    ws,
                    dst,
                    src,
                    form.shape,
                    column(form.gamma),
                    column(form.beta),
                    epsilon.as_f64() as f32,
                );
            }
            RowKind::RmsNorm { epsilon } => {
                rms_norm(ws, dst, src, form.shape, column(form.gamma), epsilon.as_f64() as f32);
            }
        }
    }
}
