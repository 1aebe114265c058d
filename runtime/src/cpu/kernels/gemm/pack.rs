//! B in panels: `[panel][k][width]`, width two vectors (the last one may be one vector), zero-padded columns. Large
//! matrices of 16-bit floats keep their bits.

use super::driver::B_BYTES;
use super::{Elem, MatRef};
use crate::cpu::kernels::convert;
use crate::cpu::kernels::isa::Isa;
use crate::cpu::kernels::simd::{Simd, simd_dispatch};
use crate::cpu::kernels::threads::Pool;
use crate::cpu::kernels::workspace::{AlignedBuf, NoRoom, SyncPtr};

/// Floats that are worth packing on several threads (about 20 µs).
const PARALLEL_FLOATS: usize = 1 << 16;

/// A right operand packed for one instruction level; constants are packed once.
#[derive(Debug)]
pub struct PackedB {
    isa: Isa,
    k: usize,
    n: usize,
    batches: usize,
    elem: Elem,
    data: AlignedBuf,
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len())
    }
}

impl PackedB {
    /// Packs `batches` matrices of `k` rows and `n` columns.
    ///
    /// # Errors
    /// There is no memory for it.
    ///
    /// # Safety
    /// Every element that the shape and strides of `src` reach must be readable.
    pub unsafe fn new(isa: Isa, batches: usize, k: usize, n: usize, src: &MatRef<'_>) -> Result<PackedB, NoRoom> {
        // SAFETY: the caller's contract.
        unsafe { PackedB::as_elem(None, isa, [batches, k, n], Elem::F32, src) }
    }

    /// [`PackedB::new`] on the threads of a pool. What is read from memory each time stays in 16 bits, if it has these.
    ///
    /// # Errors
    /// As for [`PackedB::new`].
    ///
    /// # Safety
    /// As for [`PackedB::new`].
    pub unsafe fn on(
        pool: Option<&Pool>,
        isa: Isa,
        batches: usize,
        k: usize,
        n: usize,
        src: &MatRef<'_>,
    ) -> Result<PackedB, NoRoom> {
        let elem = if packed_len(isa, k, n) * 4 > B_BYTES {
            src.elem
        } else {
            Elem::F32
        };
        // SAFETY: the caller's contract.
        unsafe { PackedB::as_elem(pool, isa, [batches, k, n], elem, src) }
    }

    /// Packs as `f32`, or as the type that the elements have.
    unsafe fn as_elem(
        pool: Option<&Pool>,
        isa: Isa,
        [batches, k, n]: [usize; 3],
        elem: Elem,
        src: &MatRef<'_>,
    ) -> Result<PackedB, NoRoom> {
        let one = packed_len(isa, k, n);
        let size = elem.size();
        let data = AlignedBuf::asked((batches * one).saturating_mul(size))?;
        let panels = n.div_ceil(2 * isa.lanes());
        let to = SyncPtr(data.as_ptr());
        let pack = |part: usize| {
            let (entry, panel) = (part / panels, part % panels);
            // SAFETY: inside `src` by the caller's contract; each part has its own panel of `data`.
            unsafe {
                let from = src.ptr.offset(src.batch.at(entry) * src.elem.size() as isize);
                let panel_at = to.get().add((entry * one + panel_offset(isa, k, panel)) * size);
                match elem {
                    Elem::F32 => pack_panel(isa, panel_at.cast(), from, src, k, n, panel),
                    _ => pack_halves(isa, panel_at.cast(), from.cast(), src, [k, n], panel),
                }
            }
        };
        match pool {
            Some(pool) if batches * one >= PARALLEL_FLOATS => {
                pool.parallel_for(batches * panels, &|part, _| pack(part))
            }
            _ => (0..batches * panels).for_each(pack),
        }
        Ok(PackedB {
            isa,
            k,
            n,
            batches,
            elem,
            data,
        })
    }

    /// Packs one dense row-major `[k, n]` matrix.
    ///
    /// # Errors
    /// As for [`PackedB::new`].
    ///
    /// # Panics
    /// When `data` has other than `k * n` values.
    pub fn dense(isa: Isa, k: usize, n: usize, data: &[f32]) -> Result<PackedB, NoRoom> {
        assert_eq!(data.len(), k * n, "a {k}x{n} matrix");
        // SAFETY: the slice has all elements of the dense matrix.
        unsafe { PackedB::new(isa, 1, k, n, &MatRef::dense(data, n)) }
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }
    pub fn k(&self) -> usize {
        self.k
    }
    pub fn n(&self) -> usize {
        self.n
    }
    pub fn batches(&self) -> usize {
        self.batches
    }
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }
    /// The type that its elements are stored in.
    pub(crate) fn elem(&self) -> Elem {
        self.elem
    }
    pub(crate) fn as_ptr(&self) -> *const f32 {
        self.data.as_ptr().cast()
    }
}

/// Floats of one packed `k` x `n` matrix.
pub(crate) fn packed_len(isa: Isa, k: usize, n: usize) -> usize {
    let full = n / (2 * isa.lanes());
    let last = panel_width(isa, n, full);
    (full * 2 * isa.lanes() + last) * k
}

/// Where panel `p` starts, in floats.
pub(crate) fn panel_offset(isa: Isa, k: usize, p: usize) -> usize {
    p * 2 * isa.lanes() * k
}

/// Width of panel `p` in floats: two vectors, one for a short last one, 0 past the end.
pub(crate) fn panel_width(isa: Isa, n: usize, p: usize) -> usize {
    let lanes = isa.lanes();
    match n.saturating_sub(p * 2 * lanes) {
        0 => 0,
        rest if rest <= lanes => lanes,
        _ => 2 * lanes,
    }
}

/// Packs panel `p` of the matrix at `src` (strides and type of `b`) to `dst`.
///
/// # Safety
/// `src` is valid for the matrix, `dst` for `k * panel_width` floats.
pub(crate) unsafe fn pack_panel(isa: Isa, dst: *mut f32, src: *const u8, b: &MatRef<'_>, k: usize, n: usize, p: usize) {
    let width = panel_width(isa, n, p);
    let col0 = p * 2 * isa.lanes();
    let cols = width.min(n - col0);
    let size = b.elem.size() as isize;
    // SAFETY: the caller's contract; all indices stay below `k` and `col0 + cols <= n`.
    unsafe {
        let src = src.offset(col0 as isize * b.col_stride * size);
        if b.elem == Elem::F32 && (b.row_stride == 1 || b.col_stride == 1) {
            return if b.col_stride == 1 {
                copy_panel(isa, dst, width, src.cast(), b.row_stride, k, cols)
            } else {
                transpose_panel(isa, dst, width, src.cast(), b.col_stride, k, cols)
            };
        }
        for row in 0..k {
            let to = dst.add(row * width);
            gather(
                isa,
                to,
                src.offset(row as isize * b.row_stride * size),
                b.elem,
                b.col_stride,
                cols,
            );
            for j in cols..width {
                to.add(j).write(0.0);
            }
        }
    }
}

/// As [`pack_panel`], of 16-bit floats that stay as they are.
///
/// # Safety
/// As for [`pack_panel`].
unsafe fn pack_halves(isa: Isa, dst: *mut u16, src: *const u16, b: &MatRef<'_>, [k, n]: [usize; 2], p: usize) {
    let width = panel_width(isa, n, p);
    let col0 = p * 2 * isa.lanes();
    let cols = width.min(n - col0);
    for row in 0..k {
        for j in 0..width {
            // SAFETY: the caller's contract.
            unsafe {
                let at = row as isize * b.row_stride + (col0 + j) as isize * b.col_stride;
                let x = if j < cols { src.offset(at).read() } else { 0 };
                dst.add(row * width + j).write(x);
            }
        }
    }
}

simd_dispatch! {
    /// `dst[row * width + j] = src[row * stride + j]`, zero in the columns from `cols` on.
    unsafe fn copy_panel(
        dst: *mut f32, width: usize, src: *const f32, stride: isize, k: usize, cols: usize,
    ) = copy_panel_body
}
simd_dispatch! {
    /// `dst[row * width + j] = src[j * stride + row]`, zero in the columns from `cols` on.
    unsafe fn transpose_panel(
        dst: *mut f32, width: usize, src: *const f32, stride: isize, k: usize, cols: usize,
    ) = transpose_panel_body
}

#[inline(always)]
unsafe fn copy_panel_body<S: Simd>(dst: *mut f32, width: usize, src: *const f32, stride: isize, k: usize, cols: usize) {
    let mut j = 0;
    while j < width {
        let count = cols.saturating_sub(j).min(S::LANES);
        // SAFETY: the caller's contract: `cols` values in each of `k` source rows, `k * width` in the destination.
        unsafe {
            if count == S::LANES {
                for row in 0..k {
                    S::store(
                        dst.add(row * width + j),
                        S::load(src.offset(row as isize * stride).add(j)),
                    );
                }
            } else {
                for row in 0..k {
                    let from = src.offset(row as isize * stride).add(j.min(cols));
                    S::store(dst.add(row * width + j), S::load_part(from, count));
                }
            }
        }
        j += S::LANES;
    }
}

#[inline(always)]
unsafe fn transpose_panel_body<S: Simd>(
    dst: *mut f32,
    width: usize,
    src: *const f32,
    stride: isize,
    k: usize,
    cols: usize,
) {
    let mut j = 0;
    while j < width {
        let count = cols.saturating_sub(j).min(S::LANES);
        let mut row = 0;
        // SAFETY: the caller's contract: `k` values in each of `cols` source rows, `k * width` in the destination.
        unsafe {
            while count == S::LANES && row + S::LANES <= k {
                let from = src.offset(j as isize * stride).add(row);
                S::transpose(dst.add(row * width + j), width, from, stride);
                row += S::LANES;
            }
            while row < k {
                for i in 0..S::LANES {
                    let x = if i < count {
                        *src.offset((j + i) as isize * stride).add(row)
                    } else {
                        0.0
                    };
                    dst.add(row * width + j + i).write(x);
                }
                row += 1;
            }
        }
        j += S::LANES;
    }
}

/// Copies `count` elements, `stride` apart, to f32.
///
/// # Safety
/// `src` is valid for the strided elements, `dst` for `count` floats.
pub(crate) unsafe fn gather(isa: Isa, dst: *mut f32, src: *const u8, elem: Elem, stride: isize, count: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match (elem, stride) {
            (Elem::F32, 1) => std::ptr::copy_nonoverlapping(src.cast(), dst, count),
            (Elem::F32, _) => {
                for i in 0..count {
                    dst.add(i).write(src.cast::<f32>().offset(i as isize * stride).read());
                }
            }
            (_, 1) => convert::load_ptr(isa, dst, src, elem, count),
            _ => {
                for i in 0..count {
                    let bits = src.cast::<u16>().offset(i as isize * stride).read();
                    dst.add(i).write(convert::half_to_f32(elem, bits));
                }
            }
        }
    }
}
