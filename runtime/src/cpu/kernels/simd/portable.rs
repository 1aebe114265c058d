//! 4 lanes in plain Rust: the fallback of every processor, and what the other levels are tested beside.
//!
//! `fma` rounds twice here: a fused one would be a library call per lane.

use half::{bf16, f16};

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Portable;

const N: usize = 4;

#[derive(Clone, Copy)]
#[repr(align(16))]
pub(crate) struct V([f32; N]);

#[derive(Clone, Copy)]
#[repr(align(16))]
pub(crate) struct I([i32; N]);

#[derive(Clone, Copy)]
pub(crate) struct M([bool; N]);

impl Simd for Portable {
    type V = V;
    type I = I;
    type M = M;
    const LANES: usize = N;

    #[inline(always)]
    unsafe fn load(p: *const f32) -> V {
        // SAFETY: the contract of the trait: `p` is valid for N lanes.
        V(unsafe { p.cast::<[f32; N]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: V) {
        // SAFETY: the contract of the trait.
        unsafe { p.cast::<[f32; N]>().write_unaligned(v.0) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> V {
        V(std::array::from_fn(|i| {
            // SAFETY: only the first `n` lanes are read.
            let read = |i| unsafe { p.add(i).read_unaligned() };
            if i < n { read(i) } else { 0.0 }
        }))
    }
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: V, n: usize) {
        for (i, x) in v.0.iter().enumerate().take(n) {
            // SAFETY: only the first `n` lanes are written.
            unsafe { p.add(i).write_unaligned(*x) }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> V {
        // SAFETY: the contract of the trait.
        V(unsafe { p.cast::<[u16; N]>().read_unaligned() }.map(|x| f16::from_bits(x).to_f32()))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: V) {
        // SAFETY: the contract of the trait.
        unsafe {
            p.cast::<[u16; N]>()
                .write_unaligned(v.0.map(|x| f16::from_f32(x).to_bits()))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> V {
        // SAFETY: the contract of the trait.
        V(unsafe { p.cast::<[u16; N]>().read_unaligned() }.map(|x| bf16::from_bits(x).to_f32()))
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> I {
        // SAFETY: the contract of the trait.
        I(unsafe { p.cast::<[u8; N]>().read_unaligned() }.map(i32::from))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> I {
        // SAFETY: the contract of the trait.
        I(unsafe { p.cast::<[i8; N]>().read_unaligned() }.map(i32::from))
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, v: I, n: usize) {
        for (i, x) in v.0.iter().enumerate().take(n) {
            // SAFETY: the contract of the trait.
            unsafe { p.add(i).write(*x as u8) }
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: V) {
        // SAFETY: the contract of the trait.
        unsafe {
            p.cast::<[u16; N]>()
                .write_unaligned(v.0.map(|x| bf16::from_f32(x).to_bits()))
        }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> V {
        V([x; N])
    }
    #[inline(always)]
    unsafe fn fma(a: V, b: V, c: V) -> V {
        V(std::array::from_fn(|i| a.0[i] * b.0[i] + c.0[i]))
    }
    #[inline(always)]
    unsafe fn bits(a: V) -> I {
        I(a.0.map(|x| x.to_bits() as i32))
    }
    #[inline(always)]
    unsafe fn from_bits(a: I) -> V {
        V(a.0.map(|x| f32::from_bits(x as u32)))
    }
    #[inline(always)]
    unsafe fn isplat(x: i32) -> I {
        I([x; N])
    }
    #[inline(always)]
    unsafe fn shl<const S: u32>(a: I) -> I {
        I(a.0.map(|x| x << S))
    }
    #[inline(always)]
    unsafe fn sar<const S: u32>(a: I) -> I {
        I(a.0.map(|x| x >> S))
    }
    #[inline(always)]
    unsafe fn to_int(a: V) -> I {
        I(a.0.map(|x| x as i32))
    }
    #[inline(always)]
    unsafe fn to_float(a: I) -> V {
        V(a.0.map(|x| x as f32))
    }
    #[inline(always)]
    unsafe fn lt(a: V, b: V) -> M {
        M(std::array::from_fn(|i| a.0[i] < b.0[i]))
    }
    #[inline(always)]
    unsafe fn le(a: V, b: V) -> M {
        M(std::array::from_fn(|i| a.0[i] <= b.0[i]))
    }
    #[inline(always)]
    unsafe fn eq(a: V, b: V) -> M {
        M(std::array::from_fn(|i| a.0[i] == b.0[i]))
    }
    #[inline(always)]
    unsafe fn ieq(a: I, b: I) -> M {
        M(std::array::from_fn(|i| a.0[i] == b.0[i]))
    }
    #[inline(always)]
    unsafe fn select(m: M, a: V, b: V) -> V {
        V(std::array::from_fn(|i| if m.0[i] { a.0[i] } else { b.0[i] }))
    }
    #[inline(always)]
    unsafe fn any(m: M) -> bool {
        m.0.iter().any(|x| *x)
    }
    #[inline(always)]
    unsafe fn all(m: M) -> bool {
        m.0.iter().all(|x| *x)
    }
    #[inline(always)]
    unsafe fn reduce_add(a: V) -> f32 {
        (a.0[0] + a.0[2]) + (a.0[1] + a.0[3])
    }
    #[inline(always)]
    unsafe fn load_picks(p: *const i32) -> I {
        // SAFETY: the contract of the trait: `p` is valid for N lanes.
        I(unsafe { p.cast::<[i32; N]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn pick(a: V, lanes: I) -> V {
        V(std::array::from_fn(|i| a.0[lanes.0[i] as usize % N]))
    }
    #[inline(always)]
    unsafe fn exchange<const BY: usize>(a: V) -> V {
        V(std::array::from_fn(|i| a.0[(i ^ BY) % Self::LANES]))
    }
    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        V(std::array::from_fn(|i| a.0[i] + b.0[i]))
    }
    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        V(std::array::from_fn(|i| a.0[i] - b.0[i]))
    }
    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        V(std::array::from_fn(|i| a.0[i] * b.0[i]))
    }
    #[inline(always)]
    unsafe fn div(a: V, b: V) -> V {
        V(std::array::from_fn(|i| a.0[i] / b.0[i]))
    }
    #[inline(always)]
    unsafe fn min(a: V, b: V) -> V {
        V(std::array::from_fn(|i| if a.0[i] < b.0[i] { a.0[i] } else { b.0[i] }))
    }
    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        V(std::array::from_fn(|i| if a.0[i] > b.0[i] { a.0[i] } else { b.0[i] }))
    }
    #[inline(always)]
    unsafe fn sqrt(a: V) -> V {
        V(a.0.map(|x| x.sqrt()))
    }
    #[inline(always)]
    unsafe fn round(a: V) -> V {
        V(a.0.map(|x| x.round_ties_even()))
    }
    #[inline(always)]
    unsafe fn floor(a: V) -> V {
        V(a.0.map(|x| x.floor()))
    }
    #[inline(always)]
    unsafe fn ceil(a: V) -> V {
        V(a.0.map(|x| x.ceil()))
    }
    #[inline(always)]
    unsafe fn trunc(a: V) -> V {
        V(a.0.map(|x| x.trunc()))
    }
    #[inline(always)]
    unsafe fn iadd(a: I, b: I) -> I {
        I(std::array::from_fn(|i| a.0[i].wrapping_add(b.0[i])))
    }
    #[inline(always)]
    unsafe fn isub(a: I, b: I) -> I {
        I(std::array::from_fn(|i| a.0[i].wrapping_sub(b.0[i])))
    }
    #[inline(always)]
    unsafe fn imul(a: I, b: I) -> I {
        I(std::array::from_fn(|i| a.0[i].wrapping_mul(b.0[i])))
    }
    #[inline(always)]
    unsafe fn iand(a: I, b: I) -> I {
        I(std::array::from_fn(|i| a.0[i] & b.0[i]))
    }
    #[inline(always)]
    unsafe fn ior(a: I, b: I) -> I {
        I(std::array::from_fn(|i| a.0[i] | b.0[i]))
    }
    #[inline(always)]
    unsafe fn ixor(a: I, b: I) -> I {
        I(std::array::from_fn(|i| a.0[i] ^ b.0[i]))
    }
    #[inline(always)]
    unsafe fn transpose(dst: *mut f32, dst_stride: usize, src: *const f32, src_stride: isize) {
        for j in 0..N {
            for i in 0..N {
                // SAFETY: the contract of the trait.
                unsafe {
                    dst.add(i * dst_stride + j)
                        .write(*src.offset(j as isize * src_stride).add(i))
                }
            }
        }
    }
}
