//! 8 lanes: AVX2, FMA, F16C.
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "each method is one intrinsic under the contract of the trait's header"
)]

use std::arch::x86_64::*;

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Sliding window: eight ones then eight zeros; lanes `8 - n ..` of it have `n` leading ones.
static WINDOW: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
unsafe fn tail(n: usize) -> __m256i {
    debug_assert!(n <= 8);
    _mm256_loadu_si256(WINDOW.as_ptr().add(8 - n).cast())
}

impl Simd for Avx2 {
    type V = __m256;
    type I = __m256i;
    type M = __m256;
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        _mm256_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        _mm256_storeu_ps(p, v)
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> __m256 {
        _mm256_maskload_ps(p, tail(n))
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: __m256, n: usize) {
        _mm256_maskstore_ps(p, tail(n), v)
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m256 {
        _mm256_cvtph_ps(_mm_loadu_si128(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m256) {
        _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m256 {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(
            p.cast(),
        ))))
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m256i {
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m256i {
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, v: __m256i, n: usize) {
        // The lowest byte of each lane in the lowest four of its half.
        let first = _mm256_setr_epi8(
            0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1,
            -1, -1, -1, -1,
        );
        let each = _mm256_shuffle_epi8(v, first);
        let low = _mm256_castsi256_si128(each);
        let all = _mm_unpacklo_epi32(low, _mm256_extracti128_si256::<1>(each));
        let mut bytes = [0u8; 8];
        match n {
            8 => _mm_storel_epi64(p.cast(), all),
            _ => {
                _mm_storel_epi64(bytes.as_mut_ptr().cast(), all);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), p, n);
            }
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: __m256) {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(v, v);
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
        let out = _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan);
        let out = _mm256_srli_epi32::<16>(_mm256_castps_si256(out));
        let packed = _mm_packus_epi32(_mm256_castsi256_si128(out), _mm256_extracti128_si256::<1>(out));
        _mm_storeu_si128(p.cast(), packed)
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        _mm256_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        _mm256_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        _mm256_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        _mm256_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        _mm256_div_ps(a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        _mm256_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        _mm256_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sqrt(a: __m256) -> __m256 {
        _mm256_sqrt_ps(a)
    }
    #[inline(always)]
    unsafe fn round(a: __m256) -> __m256 {
        _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)
    }
    #[inline(always)]
    unsafe fn floor(a: __m256) -> __m256 {
        _mm256_round_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(a)
    }
    #[inline(always)]
    unsafe fn ceil(a: __m256) -> __m256 {
        _mm256_round_ps::<{ _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC }>(a)
    }
    #[inline(always)]
    unsafe fn trunc(a: __m256) -> __m256 {
        _mm256_round_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(a)
    }
    #[inline(always)]
    unsafe fn bits(a: __m256) -> __m256i {
        _mm256_castps_si256(a)
    }
    #[inline(always)]
    unsafe fn from_bits(a: __m256i) -> __m256 {
        _mm256_castsi256_ps(a)
    }
    #[inline(always)]
    unsafe fn isplat(x: i32) -> __m256i {
        _mm256_set1_epi32(x)
    }
    #[inline(always)]
    unsafe fn iadd(a: __m256i, b: __m256i) -> __m256i {
        _mm256_add_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn isub(a: __m256i, b: __m256i) -> __m256i {
        _mm256_sub_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn imul(a: __m256i, b: __m256i) -> __m256i {
        _mm256_mullo_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn iand(a: __m256i, b: __m256i) -> __m256i {
        _mm256_and_si256(a, b)
    }
    #[inline(always)]
    unsafe fn ior(a: __m256i, b: __m256i) -> __m256i {
        _mm256_or_si256(a, b)
    }
    #[inline(always)]
    unsafe fn ixor(a: __m256i, b: __m256i) -> __m256i {
        _mm256_xor_si256(a, b)
    }
    #[inline(always)]
    unsafe fn shl<const N: u32>(a: __m256i) -> __m256i {
        _mm256_sll_epi32(a, _mm_cvtsi32_si128(N as i32))
    }
    #[inline(always)]
    unsafe fn sar<const N: u32>(a: __m256i) -> __m256i {
        _mm256_sra_epi32(a, _mm_cvtsi32_si128(N as i32))
    }
    #[inline(always)]
    unsafe fn to_int(a: __m256) -> __m256i {
        _mm256_cvtps_epi32(a)
    }
    #[inline(always)]
    unsafe fn to_nearest(a: __m256) -> __m256i {
        _mm256_cvtps_epi32(a)
    }
    #[inline(always)]
    unsafe fn to_float(a: __m256i) -> __m256 {
        _mm256_cvtepi32_ps(a)
    }
    #[inline(always)]
    unsafe fn lt(a: __m256, b: __m256) -> __m256 {
        _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)
    }
    #[inline(always)]
    unsafe fn le(a: __m256, b: __m256) -> __m256 {
        _mm256_cmp_ps::<_CMP_LE_OQ>(a, b)
    }
    #[inline(always)]
    unsafe fn eq(a: __m256, b: __m256) -> __m256 {
        _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b)
    }
    #[inline(always)]
    unsafe fn ieq(a: __m256i, b: __m256i) -> __m256 {
        _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b))
    }
    #[inline(always)]
    unsafe fn select(m: __m256, a: __m256, b: __m256) -> __m256 {
        _mm256_blendv_ps(b, a, m)
    }
    #[inline(always)]
    unsafe fn any(m: __m256) -> bool {
        _mm256_movemask_ps(m) != 0
    }
    #[inline(always)]
    unsafe fn all(m: __m256) -> bool {
        _mm256_movemask_ps(m) == 0xff
    }
    #[inline(always)]
    unsafe fn reduce_add(a: __m256) -> f32 {
        let s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps::<1>(s, s)))
    }
    #[inline(always)]
    unsafe fn load_picks(p: *const i32) -> __m256i {
        _mm256_loadu_si256(p.cast())
    }
    #[inline(always)]
    unsafe fn pick(a: __m256, lanes: __m256i) -> __m256 {
        _mm256_permutevar8x32_ps(a, lanes)
    }
    #[inline(always)]
    unsafe fn exchange<const BY: usize>(a: __m256) -> __m256 {
        match BY {
            1 => _mm256_permute_ps::<0b10_11_00_01>(a),
            2 => _mm256_permute_ps::<0b01_00_11_10>(a),
            _ => _mm256_permute2f128_ps::<1>(a, a),
        }
    }
    #[inline(always)]
    unsafe fn is_nan(a: __m256) -> __m256 {
        _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a)
    }
    #[inline(always)]
    unsafe fn transpose(dst: *mut f32, dst_stride: usize, src: *const f32, src_stride: isize) {
        let mut u = [_mm256_setzero_ps(); 8];
        for g in 0..2 {
            let row = |i: isize| src.offset((4 * g as isize + i) * src_stride);
            let (r0, r1) = (_mm256_loadu_ps(row(0)), _mm256_loadu_ps(row(1)));
            let (r2, r3) = (_mm256_loadu_ps(row(2)), _mm256_loadu_ps(row(3)));
            let (a, b) = (
                _mm256_castps_pd(_mm256_unpacklo_ps(r0, r1)),
                _mm256_castps_pd(_mm256_unpackhi_ps(r0, r1)),
            );
            let (c, d) = (
                _mm256_castps_pd(_mm256_unpacklo_ps(r2, r3)),
                _mm256_castps_pd(_mm256_unpackhi_ps(r2, r3)),
            );
            // Column 4 l + c of these four rows in 128-bit lane l of u[4 g + c].
            u[4 * g] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
            u[4 * g + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
            u[4 * g + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
            u[4 * g + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
        }
        for c in 0..4 {
            _mm256_storeu_ps(dst.add(c * dst_stride), _mm256_permute2f128_ps::<0x20>(u[c], u[4 + c]));
            _mm256_storeu_ps(
                dst.add((4 + c) * dst_stride),
                _mm256_permute2f128_ps::<0x31>(u[c], u[4 + c]),
            );
        }
    }
}
