//! Fused attention: one launch for each entry of the dims that the kernel does not take.

use ir::host::shapes::{Attention as Form, Heads};

use super::env::RunMemory;
use super::kernels::attention::{Attention, BoolMask, HeadView, HeadViewMut, Mask, attention};

fn start(heads: &Heads, params: &[*mut u8]) -> *mut u8 {
    params[heads.param].wrapping_offset(heads.base as isize * heads.elem.size() as isize)
}

fn read(heads: &Heads, params: &[*mut u8]) -> HeadView {
    HeadView {
        ptr: start(heads, params),
        elem: heads.elem,
        batch_stride: heads.batch,
        seq_stride: heads.seq,
        head_stride: heads.head,
        d_stride: heads.d,
    }
}

/// # Safety
/// `params` are the kernel's buffers at the sizes it was prepared for.
pub(crate) unsafe fn run(form: &Form, memory: &mut RunMemory, params: &[*mut u8]) {
    let o = &form.o;
    let call = Attention {
        batch: form.batch,
        heads: form.heads,
        kv_heads: form.kv_heads,
        q_len: form.q_len,
        kv_len: form.kv_len,
        d: form.d,
        d_v: form.d_v,
        q: read(&form.q, params),
        k: read(&form.k, params),
        v: read(&form.v, params),
        o: HeadViewMut {
            ptr: start(o, params),
            elem: o.elem,
            batch_stride: o.batch,
            seq_stride: o.seq,
            head_stride: o.head,
            d_stride: o.d,
        },
        scale: form.scale,
        mask: form.mask.filter(|m| !m.keeps).map(|m| Mask {
            ptr: params[m.param]
                .cast::<f32>()
                .wrapping_offset(m.base as isize)
                .cast_const(),
            strides: m.strides,
        }),
        bool_mask: form.mask.filter(|m| m.keeps).map(|m| BoolMask {
            ptr: params[m.param].wrapping_offset(m.base as isize).cast_const(),
            strides: m.strides,
        }),
        causal: form.causal,
    };
    // SAFETY: every index was proven to be inside its buffer; the plan keeps the result apart from the operands.
    unsafe { attention(&mut memory.workspace, &call) }
}
