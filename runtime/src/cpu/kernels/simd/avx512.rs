//! 16 lanes: AVX-512 F, BW, DQ, VL.
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "each method is one intrinsic under the contract of the trait's header"
)]

use std::arch::x86_64::*;

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

#[inline(always)]
fn tail(n: usize) -> __mmask16 {
    debug_assert!(n <= 16);
    ((1u32 << n) - 1) as __mmask16
}

impl Simd for Avx512 {
    type V = __m512;
    type I = __m512i;
    type M = __mmask16;
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        _mm512_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        _mm512_storeu_ps(p, v)
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> __m512 {
        _mm512_maskz_loadu_ps(tail(n), p)
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: __m512, n: usize) {
        _mm512_mask_storeu_ps(p, tail(n), v)
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m512) {
        _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m512 {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
            p.cast(),
        ))))
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512i {
        _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m512i {
        _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, v: __m512i, n: usize) {
        match n {
            16 => _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(v)),
            // Converted first, then stored under the mask: one instruction for both may be a loop of microcode.
            _ => _mm_mask_storeu_epi8(p.cast(), tail(n), _mm512_cvtepi32_epi8(v)),
        }
    }
    const CUTS: bool = true;
    #[inline(always)]
    unsafe fn store_cut_bytes_of_two(p: *mut u8, [first, second]: [__m512i; 2], signed: bool) {
        let words = _mm512_packs_epi32(first, second);
        let bytes = match signed {
            true => _mm512_packs_epi16(words, words),
            false => _mm512_packus_epi16(words, words),
        };
        // Of each 128 bits four of the first vector, four of the second, and both again.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm256_storeu_si256(p.cast(), _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, bytes)));
    }
    #[inline(always)]
    unsafe fn store_bytes_of_two(p: *mut u8, [first, second]: [__m512i; 2]) {
        // Groups of four take turns between both vectors.
        let bytes = _mm512_cvtepi16_epi8(_mm512_packs_epi32(first, second));
        let order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
        _mm256_storeu_si256(p.cast(), _mm256_permutevar8x32_epi32(bytes, order));
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: __m512) {
        let bits = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
        let out = _mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, up, quiet));
        _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(out))
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        _mm512_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        _mm512_div_ps(a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        _mm512_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        _mm512_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sqrt(a: __m512) -> __m512 {
        _mm512_sqrt_ps(a)
    }
    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)
    }
    #[inline(always)]
    unsafe fn residue(a: __m512) -> __m512 {
        _mm512_reduce_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)
    }
    #[inline(always)]
    unsafe fn largest(a: __m512, b: __m512) -> __m512 {
        // The largest magnitude, with no sign.
        _mm512_range_ps::<0b1011>(a, b)
    }
    #[inline(always)]
    unsafe fn floor(a: __m512) -> __m512 {
        _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(a)
    }
    #[inline(always)]
    unsafe fn ceil(a: __m512) -> __m512 {
        _mm512_roundscale_ps::<{ _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC }>(a)
    }
    #[inline(always)]
    unsafe fn trunc(a: __m512) -> __m512 {
        _mm512_roundscale_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(a)
    }
    #[inline(always)]
    unsafe fn bits(a: __m512) -> __m512i {
        _mm512_castps_si512(a)
    }
    #[inline(always)]
    unsafe fn from_bits(a: __m512i) -> __m512 {
        _mm512_castsi512_ps(a)
    }
    #[inline(always)]
    unsafe fn isplat(x: i32) -> __m512i {
        _mm512_set1_epi32(x)
    }
    #[inline(always)]
    unsafe fn iadd(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn isub(a: __m512i, b: __m512i) -> __m512i {
        _mm512_sub_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn imul(a: __m512i, b: __m512i) -> __m512i {
        _mm512_mullo_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn iand(a: __m512i, b: __m512i) -> __m512i {
        _mm512_and_si512(a, b)
    }
    #[inline(always)]
    unsafe fn ior(a: __m512i, b: __m512i) -> __m512i {
        _mm512_or_si512(a, b)
    }
    #[inline(always)]
    unsafe fn ixor(a: __m512i, b: __m512i) -> __m512i {
        _mm512_xor_si512(a, b)
    }
    #[inline(always)]
    unsafe fn shl<const N: u32>(a: __m512i) -> __m512i {
        _mm512_slli_epi32::<N>(a)
    }
    #[inline(always)]
    unsafe fn sar<const N: u32>(a: __m512i) -> __m512i {
        _mm512_srai_epi32::<N>(a)
    }
    #[inline(always)]
    unsafe fn to_int(a: __m512) -> __m512i {
        _mm512_cvtps_epi32(a)
    }
    #[inline(always)]
    unsafe fn to_nearest(a: __m512) -> __m512i {
        _mm512_cvtps_epi32(a)
    }
    #[inline(always)]
    unsafe fn to_float(a: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(a)
    }
    #[inline(always)]
    unsafe fn lt(a: __m512, b: __m512) -> __mmask16 {
        _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b)
    }
    #[inline(always)]
    unsafe fn le(a: __m512, b: __m512) -> __mmask16 {
        _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b)
    }
    #[inline(always)]
    unsafe fn eq(a: __m512, b: __m512) -> __mmask16 {
        _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b)
    }
    #[inline(always)]
    unsafe fn ieq(a: __m512i, b: __m512i) -> __mmask16 {
        _mm512_cmpeq_epi32_mask(a, b)
    }
    #[inline(always)]
    unsafe fn select(m: __mmask16, a: __m512, b: __m512) -> __m512 {
        _mm512_mask_blend_ps(m, b, a)
    }
    #[inline(always)]
    unsafe fn any(m: __mmask16) -> bool {
        m != 0
    }
    #[inline(always)]
    unsafe fn all(m: __mmask16) -> bool {
        m == 0xffff
    }
    #[inline(always)]
    unsafe fn reduce_add(a: __m512) -> f32 {
        _mm512_reduce_add_ps(a)
    }
    #[inline(always)]
    unsafe fn is_nan(a: __m512) -> __mmask16 {
        _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a)
    }
    #[inline(always)]
    unsafe fn load_picks(p: *const i32) -> __m512i {
        _mm512_loadu_si512(p.cast())
    }
    #[inline(always)]
    unsafe fn pick(a: __m512, lanes: __m512i) -> __m512 {
        _mm512_permutexvar_ps(lanes, a)
    }
    #[inline(always)]
    unsafe fn exchange<const BY: usize>(a: __m512) -> __m512 {
        match BY {
            1 => _mm512_permute_ps::<0b10_11_00_01>(a),
            2 => _mm512_permute_ps::<0b01_00_11_10>(a),
            _ => _mm512_shuffle_f32x4::<0b10_11_00_01>(a, a),
        }
    }
    #[inline(always)]
    unsafe fn scale2(a: __m512, n: __m512i) -> __m512 {
        _mm512_scalef_ps(a, _mm512_cvtepi32_ps(n))
    }
    #[inline(always)]
    unsafe fn transpose(dst: *mut f32, dst_stride: usize, src: *const f32, src_stride: isize) {
        let mut u = [_mm512_setzero_ps(); 16];
        for g in 0..4 {
            let row = |i: isize| src.offset((4 * g as isize + i) * src_stride);
            let (r0, r1) = (_mm512_loadu_ps(row(0)), _mm512_loadu_ps(row(1)));
            let (r2, r3) = (_mm512_loadu_ps(row(2)), _mm512_loadu_ps(row(3)));
            let (a, b) = (
                _mm512_castps_pd(_mm512_unpacklo_ps(r0, r1)),
                _mm512_castps_pd(_mm512_unpackhi_ps(r0, r1)),
            );
            let (c, d) = (
                _mm512_castps_pd(_mm512_unpacklo_ps(r2, r3)),
                _mm512_castps_pd(_mm512_unpackhi_ps(r2, r3)),
            );
            // Column 4 l + c of these four rows in 128-bit lane l of u[4 g + c].
            u[4 * g] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
            u[4 * g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
            u[4 * g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
            u[4 * g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
        }
        for c in 0..4 {
            let even = _mm512_shuffle_f32x4::<0x88>(u[c], u[4 + c]);
            let odd = _mm512_shuffle_f32x4::<0xdd>(u[c], u[4 + c]);
            let even2 = _mm512_shuffle_f32x4::<0x88>(u[8 + c], u[12 + c]);
            let odd2 = _mm512_shuffle_f32x4::<0xdd>(u[8 + c], u[12 + c]);
            _mm512_storeu_ps(dst.add(c * dst_stride), _mm512_shuffle_f32x4::<0x88>(even, even2));
            _mm512_storeu_ps(dst.add((4 + c) * dst_stride), _mm512_shuffle_f32x4::<0x88>(odd, odd2));
            _mm512_storeu_ps(dst.add((8 + c) * dst_stride), _mm512_shuffle_f32x4::<0xdd>(even, even2));
            _mm512_storeu_ps(dst.add((12 + c) * dst_stride), _mm512_shuffle_f32x4::<0xdd>(odd, odd2));
        }
    }
}
