//! f16 and bf16 to f32 and back: round to nearest even, NaN stays NaN (quiet), infinities and subnormals exact.
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "kernel bodies under the contract of their dispatching functions"
)]

use half::{bf16, f16};
use ir::host::product::ImageStrides;

use super::gemm::Elem;
use super::isa::Isa;
use super::simd::{Simd, simd_dispatch};

/// Converts `src` to f32; panics when the lengths differ.
pub fn f16_to_f32(dst: &mut [f32], src: &[f16]) {
    assert_eq!(dst.len(), src.len());
    // SAFETY: equal lengths.
    unsafe {
        load_ptr(
            Isa::detect(),
            dst.as_mut_ptr(),
            src.as_ptr().cast(),
            Elem::F16,
            dst.len(),
        )
    }
}

/// Converts `src` to f16; panics when the lengths differ.
pub fn f32_to_f16(dst: &mut [f16], src: &[f32]) {
    assert_eq!(dst.len(), src.len());
    // SAFETY: equal lengths.
    unsafe {
        store_ptr(
            Isa::detect(),
            dst.as_mut_ptr().cast(),
            src.as_ptr(),
            Elem::F16,
            dst.len(),
        )
    }
}

/// Converts `src` to f32; panics when the lengths differ.
pub fn bf16_to_f32(dst: &mut [f32], src: &[bf16]) {
    assert_eq!(dst.len(), src.len());
    // SAFETY: equal lengths.
    unsafe {
        load_ptr(
            Isa::detect(),
            dst.as_mut_ptr(),
            src.as_ptr().cast(),
            Elem::BF16,
            dst.len(),
        )
    }
}

/// Converts `src` to bf16; panics when the lengths differ.
pub fn f32_to_bf16(dst: &mut [bf16], src: &[f32]) {
    assert_eq!(dst.len(), src.len());
    // SAFETY: equal lengths.
    unsafe {
        store_ptr(
            Isa::detect(),
            dst.as_mut_ptr().cast(),
            src.as_ptr(),
            Elem::BF16,
            dst.len(),
        )
    }
}

/// Converts `n` contiguous elements of type `elem` to f32.
///
/// # Safety
/// `src` is valid for `n` elements, `dst` for `n` floats, and they do not overlap.
pub unsafe fn load_ptr(isa: Isa, dst: *mut f32, src: *const u8, elem: Elem, n: usize) {
    match elem {
        Elem::F32 => std::ptr::copy_nonoverlapping(src.cast(), dst, n),
        Elem::F16 => load_half::<F16>(isa, dst, src.cast(), n),
        Elem::BF16 => load_half::<Bf16>(isa, dst, src.cast(), n),
    }
}

/// Converts `n` floats to contiguous elements of type `elem`.
///
/// # Safety
/// `src` is valid for `n` floats, `dst` for `n` elements, and they do not overlap.
pub unsafe fn store_ptr(isa: Isa, dst: *mut u8, src: *const f32, elem: Elem, n: usize) {
    match elem {
        Elem::F32 => std::ptr::copy_nonoverlapping(src, dst.cast(), n),
        Elem::F16 => store_half::<F16>(isa, dst.cast(), src, n),
        Elem::BF16 => store_half::<Bf16>(isa, dst.cast(), src, n),
    }
}

/// Converts rows of 16-bit floats to rows of floats; strides in elements.
///
/// # Safety
/// As for [`load_ptr`], for each row.
pub(crate) unsafe fn load_rows(
    isa: Isa,
    dst: *mut f32,
    dst_stride: usize,
    src: *const u8,
    src_stride: usize,
    elem: Elem,
    size: [usize; 2],
) {
    match elem {
        Elem::F16 => load_half_rows::<F16>(isa, dst, dst_stride, src.cast(), src_stride, size),
        _ => load_half_rows::<Bf16>(isa, dst, dst_stride, src.cast(), src_stride, size),
    }
}

/// Converts rows of floats to rows of 16-bit floats; strides in elements.
///
/// # Safety
/// As for [`store_ptr`], for each row.
pub(crate) unsafe fn store_rows(
    isa: Isa,
    dst: *mut u8,
    dst_stride: isize,
    src: *const f32,
    src_stride: usize,
    elem: Elem,
    size: [usize; 2],
) {
    match elem {
        Elem::F16 => store_half_rows::<F16>(isa, dst.cast(), dst_stride, src, src_stride, size),
        _ => store_half_rows::<Bf16>(isa, dst.cast(), dst_stride, src, src_stride, size),
    }
}

simd_dispatch! {
    unsafe fn load_half_rows<H: Half>(
        dst: *mut f32, dst_stride: usize, src: *const u16, src_stride: usize, size: [usize; 2],
    ) = load_half_rows_body
}
simd_dispatch! {
    unsafe fn store_half_rows<H: Half>(
        dst: *mut u16, dst_stride: isize, src: *const f32, src_stride: usize, size: [usize; 2],
    ) = store_half_rows_body
}

#[inline(always)]
unsafe fn load_half_rows_body<S: Simd, H: Half>(
    dst: *mut f32,
    dst_stride: usize,
    src: *const u16,
    src_stride: usize,
    [rows, n]: [usize; 2],
) {
    for row in 0..rows {
        load_half_body::<S, H>(dst.add(row * dst_stride), src.add(row * src_stride), n);
    }
}

#[inline(always)]
unsafe fn store_half_rows_body<S: Simd, H: Half>(
    dst: *mut u16,
    dst_stride: isize,
    src: *const f32,
    src_stride: usize,
    [rows, n]: [usize; 2],
) {
    for row in 0..rows {
        store_half_body::<S, H>(dst.offset(row as isize * dst_stride), src.add(row * src_stride), n);
    }
}

/// One image row, `to[x * c + j] = from[x, j]`, in blocks that keep both sides in cache.
///
/// # Safety
/// `to` is valid for `w * c` floats, `from` for those of a row.
pub(crate) unsafe fn interleave(to: *mut f32, from: *const f32, strides: ImageStrides, w: usize, c: usize) {
    let mut c0 = 0;
    while c0 < c {
        let c1 = (c0 + 16).min(c);
        let mut x0 = 0;
        while x0 < w {
            let x1 = (x0 + 64).min(w);
            for j in c0..c1 {
                let plane = from.offset(j as isize * strides.c);
                for x in x0..x1 {
                    to.add(x * c + j).write(*plane.offset(x as isize * strides.w));
                }
            }
            x0 = x1;
        }
        c0 = c1;
    }
}

simd_dispatch! {
    /// Transposes a tile: `dst[r * dst_stride + c] = src[c * src_stride + r]`, floats or what has as many bytes.
    pub(crate) unsafe fn transpose_tile(
        dst: *mut f32, dst_stride: usize, src: *const f32, src_stride: isize, rows: usize, cols: usize,
    ) = transpose_tile_body
}

#[inline(always)]
unsafe fn transpose_tile_body<S: Simd>(
    dst: *mut f32,
    dst_stride: usize,
    src: *const f32,
    src_stride: isize,
    rows: usize,
    cols: usize,
) {
    let (whole_rows, whole_cols) = (rows - rows % S::LANES, cols - cols % S::LANES);
    let mut c = 0;
    while c < whole_cols {
        let mut r = 0;
        while r < whole_rows {
            let from = src.offset(c as isize * src_stride).add(r);
            S::transpose(dst.add(r * dst_stride + c), dst_stride, from, src_stride);
            r += S::LANES;
        }
        c += S::LANES;
    }
    for c in 0..cols {
        let first = if c < whole_cols { whole_rows } else { 0 };
        let from = src.cast::<u32>().offset(c as isize * src_stride);
        for r in first..rows {
            dst.cast::<u32>().add(r * dst_stride + c).write(from.add(r).read());
        }
    }
}

simd_dispatch! {
    /// Rounds `n` floats to f16, and keeps them as floats.
    pub(crate) unsafe fn round_to_f16(dst: *mut f32, src: *const f32, n: usize) = round_to_f16_body
}

simd_dispatch! {
    /// Rounds `n` floats to bf16, and keeps them as floats.
    pub(crate) unsafe fn round_to_bf16(dst: *mut f32, src: *const f32, n: usize) = round_to_bf16_body
}

#[inline(always)]
unsafe fn round_to_f16_body<S: Simd>(dst: *mut f32, src: *const f32, n: usize) {
    let mut half = [0u16; 16];
    let mut i = 0;
    while i + S::LANES <= n {
        S::store_f16(half.as_mut_ptr(), S::load(src.add(i)));
        S::store(dst.add(i), S::load_f16(half.as_ptr()));
        i += S::LANES;
    }
    if i < n {
        S::store_f16(half.as_mut_ptr(), S::load_part(src.add(i), n - i));
        S::store_part(dst.add(i), S::load_f16(half.as_ptr()), n - i);
    }
}

#[inline(always)]
unsafe fn round_to_bf16_body<S: Simd>(dst: *mut f32, src: *const f32, n: usize) {
    let mut half = [0u16; 16];
    let mut i = 0;
    while i + S::LANES <= n {
        S::store_bf16(half.as_mut_ptr(), S::load(src.add(i)));
        S::store(dst.add(i), S::load_bf16(half.as_ptr()));
        i += S::LANES;
    }
    if i < n {
        S::store_bf16(half.as_mut_ptr(), S::load_part(src.add(i), n - i));
        S::store_part(dst.add(i), S::load_bf16(half.as_ptr()), n - i);
    }
}

/// Stores `n` floats as elements of type `elem`, `stride` elements apart.
///
/// # Safety
/// `src` is valid for `n` floats, `dst` for the strided elements.
pub(crate) unsafe fn scatter(isa: Isa, dst: *mut u8, src: *const f32, elem: Elem, stride: isize, n: usize) {
    if stride == 1 {
        return store_ptr(isa, dst, src, elem, n);
    }
    for i in 0..n {
        let at = i as isize * stride;
        let x = *src.add(i);
        match elem {
            Elem::F32 => dst.cast::<f32>().offset(at).write(x),
            Elem::F16 => dst.cast::<f16>().offset(at).write(f16::from_f32(x)),
            Elem::BF16 => dst.cast::<bf16>().offset(at).write(bf16::from_f32(x)),
        }
    }
}

/// The value of one stored 16-bit element.
pub(crate) fn half_to_f32(elem: Elem, bits: u16) -> f32 {
    match elem {
        Elem::F16 => f16::from_bits(bits).to_f32(),
        _ => bf16::from_bits(bits).to_f32(),
    }
}

/// A 16-bit float.
pub(crate) trait Half {
    unsafe fn load<S: Simd>(p: *const u16) -> S::V;
    unsafe fn store<S: Simd>(p: *mut u16, v: S::V);
}

pub(crate) struct F16;
pub(crate) struct Bf16;

impl Half for F16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u16) -> S::V {
        S::load_f16(p)
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u16, v: S::V) {
        S::store_f16(p, v)
    }
}

impl Half for Bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u16) -> S::V {
        S::load_bf16(p)
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u16, v: S::V) {
        S::store_bf16(p, v)
    }
}

simd_dispatch! { unsafe fn load_half<H: Half>(dst: *mut f32, src: *const u16, n: usize) = load_half_body }
simd_dispatch! { unsafe fn store_half<H: Half>(dst: *mut u16, src: *const f32, n: usize) = store_half_body }

#[inline(always)]
unsafe fn load_half_body<S: Simd, H: Half>(dst: *mut f32, src: *const u16, n: usize) {
    let mut i = 0;
    while i + S::LANES <= n {
        S::store(dst.add(i), H::load::<S>(src.add(i)));
        i += S::LANES;
    }
    if i < n {
        let mut part = [0u16; 16];
        std::ptr::copy_nonoverlapping(src.add(i), part.as_mut_ptr(), n - i);
        S::store_part(dst.add(i), H::load::<S>(part.as_ptr()), n - i);
    }
}

#[inline(always)]
unsafe fn store_half_body<S: Simd, H: Half>(dst: *mut u16, src: *const f32, n: usize) {
    let mut i = 0;
    while i + S::LANES <= n {
        H::store::<S>(dst.add(i), S::load(src.add(i)));
        i += S::LANES;
    }
    if i < n {
        let mut part = [0u16; 16];
        H::store::<S>(part.as_mut_ptr(), S::load_part(src.add(i), n - i));
        std::ptr::copy_nonoverlapping(part.as_ptr(), dst.add(i), n - i);
    }
}

simd_dispatch! {
    /// Cuts floats to integers of a range, ends included, and makes 0 of NaN.
    ///
    /// # Safety
    /// `from` and `to` have `n` elements, and do not overlap.
    pub unsafe fn floats_to_integers(from: *const f32, to: *mut i64, n: usize, range: [i32; 2]) = floats_to_integers_body
}
simd_dispatch! {
    /// Makes floats of integers.
    ///
    /// # Safety
    /// As for [`floats_to_integers`].
    pub unsafe fn integers_to_floats(from: *const i64, to: *mut f32, n: usize) = integers_to_floats_body
}

simd_dispatch! {
    /// Cuts floats to bytes of a range, ends included, `step` bytes apart, and makes 0 of NaN.
    ///
    /// # Safety
    /// As for [`floats_to_integers`].
    pub unsafe fn floats_to_bytes(
        from: *const f32, to: *mut u8, n: usize, range: [i32; 2], step: isize,
    ) = floats_to_bytes_body
}

#[inline(always)]
unsafe fn floats_to_bytes_body<S: Simd>(from: *const f32, to: *mut u8, n: usize, [low, high]: [i32; 2], step: isize) {
    // SAFETY: the caller's contract: a piece is no longer than what is left. `as` saturates.
    unsafe {
        let mut at = 0;
        while at + S::LANES <= n {
            let (value, to) = (S::load(from.add(at)), to.offset(at as isize * step));
            let value = S::select(S::eq(value, value), value, S::zero());
            let cut = S::trunc(S::min(S::max(value, S::splat(low as f32)), S::splat(high as f32)));
            if step == 1 {
                S::store_bytes(to, S::to_int(cut), S::LANES);
            } else {
                let mut piece = [0u64; 2];
                S::store_bytes(piece.as_mut_ptr().cast(), S::to_int(cut), S::LANES);
                // From registers: the pieces may not be forwarded to loads of bytes.
                for (half, word) in piece.into_iter().enumerate().take(S::LANES.div_ceil(8)) {
                    for i in 0..S::LANES.min(8) {
                        to.offset((half * 8 + i) as isize * step).write((word >> (8 * i)) as u8);
                    }
                }
            }
            at += S::LANES;
        }
        for i in at..n {
            let byte = (*from.add(i) as i32).clamp(low, high) as u8;
            to.offset(i as isize * step).write(byte);
        }
    }
}

#[inline(always)]
unsafe fn floats_to_integers_body<S: Simd>(from: *const f32, to: *mut i64, n: usize, [low, high]: [i32; 2]) {
    for i in 0..n {
        // SAFETY: the caller's contract. `as` saturates.
        unsafe { to.add(i).write(i64::from((*from.add(i) as i32).clamp(low, high))) }
    }
}

#[inline(always)]
unsafe fn integers_to_floats_body<S: Simd>(from: *const i64, to: *mut f32, n: usize) {
    for i in 0..n {
        // SAFETY: the caller's contract.
        unsafe { to.add(i).write(*from.add(i) as f32) }
    }
}
