//! Pools of images.

use ir::host::shapes::Pool;

use super::env::RunMemory;
use super::kernels::pool::{max_bytes, pool2d};

/// # Safety
/// `params` are the kernel's buffers at the sizes it was prepared for.
pub(crate) unsafe fn run(form: &Pool, memory: &RunMemory, params: &[*mut u8]) {
    if form.bytes {
        let src = params[form.src].cast::<i8>().wrapping_offset(form.src_base as isize);
        let dst = params[form.dst].cast::<i8>().wrapping_offset(form.dst_base as isize);
        // SAFETY: as below.
        unsafe {
            max_bytes(
                &memory.workspace,
                dst,
                form.dst_strides,
                src.cast_const(),
                form.src_strides,
                form.shape,
            );
        }
        return;
    }
    let src = params[form.src].cast::<f32>().wrapping_offset(form.src_base as isize);
    let dst = params[form.dst].cast::<f32>().wrapping_offset(form.dst_base as isize);
    // SAFETY: the sizes were derived from accesses that stay inside the buffers.
    unsafe {
        pool2d(
            &memory.workspace,
            form.kind,
            dst,
            form.dst_strides,
            src.cast_const(),
            form.src_strides,
            form.shape,
        );
    }
}
