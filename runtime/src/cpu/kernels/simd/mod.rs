//! The vector operations that every kernel body is written in, once, and three spellings of them.
//!
//! A kernel is an `#[inline(always)]` function generic over [`Simd`]; [`simd_dispatch!`] compiles it once per level
//! under the level's `#[target_feature]`, where the intrinsics inline. Contract of every method here: the processor has
//! the features of the implementing level, and pointers are valid for the lanes that are touched (no alignment is
//! asked).
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "each method is one intrinsic under the contract of the trait's header"
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use portable::Portable;

/// One level's vectors of `LANES` f32 (`V`), the same number of i32 (`I`), and masks (`M`).
///
/// `min` and `max` follow x86: the *second* operand is returned when either is NaN.
pub(crate) trait Simd: Copy + 'static {
    type V: Copy;
    type I: Copy;
    type M: Copy;
    const LANES: usize;

    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// Loads the first `n` lanes (`n <= LANES`), zero in the others; touches no memory past them.
    unsafe fn load_part(p: *const f32, n: usize) -> Self::V;
    unsafe fn store_part(p: *mut f32, v: Self::V, n: usize);
    unsafe fn load_f16(p: *const u16) -> Self::V;
    unsafe fn store_f16(p: *mut u16, v: Self::V);
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    unsafe fn store_bf16(p: *mut u16, v: Self::V);
    /// Loads `LANES` bytes, each as a number of 0 to 255.
    unsafe fn load_u8(p: *const u8) -> Self::I;
    /// Loads `LANES` signed bytes.
    unsafe fn load_i8(p: *const i8) -> Self::I;
    /// Stores the lowest byte of the first `n` lanes (`n <= LANES`).
    unsafe fn store_bytes(p: *mut u8, v: Self::I, n: usize);
    /// Whether [`Simd::store_cut_bytes_of_two`] cuts numbers to the range of bytes.
    const CUTS: bool = false;
    /// Stores two vectors of numbers, one behind the other, as bytes that are `signed` or not. Others than those of the
    /// type may only be given where the level cuts them.
    #[inline(always)]
    unsafe fn store_cut_bytes_of_two(p: *mut u8, values: [Self::I; 2], signed: bool) {
        let _ = signed;
        // SAFETY: the caller's contract.
        unsafe { Self::store_bytes_of_two(p, values) }
    }
    /// Stores the lowest bytes of two vectors of numbers from -32768 to 32767, one behind the other.
    #[inline(always)]
    unsafe fn store_bytes_of_two(p: *mut u8, [first, second]: [Self::I; 2]) {
        // SAFETY: the caller's contract: places for two vectors' lanes.
        unsafe {
            Self::store_bytes(p, first, Self::LANES);
            Self::store_bytes(p.add(Self::LANES), second, Self::LANES);
        }
    }

    /// Asks for the cache line at `p` in the second-level cache; any address is allowed.
    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        let _ = p;
    }
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, fused where the level has it.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sqrt(a: Self::V) -> Self::V;
    /// To the nearest integer, ties to even.
    unsafe fn round(a: Self::V) -> Self::V;
    unsafe fn floor(a: Self::V) -> Self::V;
    unsafe fn ceil(a: Self::V) -> Self::V;
    unsafe fn trunc(a: Self::V) -> Self::V;

    unsafe fn bits(a: Self::V) -> Self::I;
    unsafe fn from_bits(a: Self::I) -> Self::V;
    unsafe fn isplat(x: i32) -> Self::I;
    unsafe fn iadd(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn isub(a: Self::I, b: Self::I) -> Self::I;
    /// The low 32 bits of the product.
    unsafe fn imul(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn iand(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn ior(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn ixor(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn shl<const N: u32>(a: Self::I) -> Self::I;
    /// Arithmetic shift right.
    unsafe fn sar<const N: u32>(a: Self::I) -> Self::I;
    /// Converts to i32; `a` must be integral and in range where the result is used.
    unsafe fn to_int(a: Self::V) -> Self::I;
    /// Converts to the nearest i32, ties to even; `a` must be in range where the result is used.
    #[inline(always)]
    unsafe fn to_nearest(a: Self::V) -> Self::I {
        // SAFETY: as for every method.
        unsafe { Self::to_int(Self::round(a)) }
    }
    unsafe fn to_float(a: Self::I) -> Self::V;

    unsafe fn lt(a: Self::V, b: Self::V) -> Self::M;
    unsafe fn le(a: Self::V, b: Self::V) -> Self::M;
    unsafe fn eq(a: Self::V, b: Self::V) -> Self::M;
    unsafe fn ieq(a: Self::I, b: Self::I) -> Self::M;
    /// `m ? a : b` per lane.
    unsafe fn select(m: Self::M, a: Self::V, b: Self::V) -> Self::V;
    unsafe fn any(m: Self::M) -> bool;
    unsafe fn all(m: Self::M) -> bool;

    unsafe fn reduce_add(a: Self::V) -> f32;

    /// Loads the numbers of `LANES` lanes, for [`Simd::pick`].
    unsafe fn load_picks(p: *const i32) -> Self::I;
    /// At lane `i` the lane whose number, from 0 on, is in lane `i` of `lanes`.
    unsafe fn pick(a: Self::V, lanes: Self::I) -> Self::V;
    /// Lane `i ^ BY` at lane `i`; `BY` is 1, 2 or 4 and below the number of lanes.
    unsafe fn exchange<const BY: usize>(a: Self::V) -> Self::V;

    /// Transposes a block of `LANES` by `LANES`: `dst[i * dst_stride + j] = src[j * src_stride + i]`.
    unsafe fn transpose(dst: *mut f32, dst_stride: usize, src: *const f32, src_stride: isize);

    // Below: compositions, the same at every level.

    #[inline(always)]
    unsafe fn zero() -> Self::V {
        Self::splat(0.0)
    }
    #[inline(always)]
    unsafe fn abs(a: Self::V) -> Self::V {
        Self::from_bits(Self::iand(Self::bits(a), Self::isplat(0x7fff_ffff)))
    }
    /// What a number is more than the whole number next to it.
    #[inline(always)]
    unsafe fn residue(a: Self::V) -> Self::V {
        // SAFETY: as for every method.
        unsafe { Self::sub(a, Self::round(a)) }
    }
    /// The larger of the magnitudes.
    #[inline(always)]
    unsafe fn largest(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: as for every method.
        unsafe { Self::max(Self::abs(a), Self::abs(b)) }
    }
    #[inline(always)]
    unsafe fn neg(a: Self::V) -> Self::V {
        Self::from_bits(Self::ixor(Self::bits(a), Self::isplat(i32::MIN)))
    }
    /// The magnitude of `a` with the sign of `s`; `a` must not be negative.
    #[inline(always)]
    unsafe fn with_sign(a: Self::V, s: Self::V) -> Self::V {
        Self::from_bits(Self::ior(
            Self::bits(a),
            Self::iand(Self::bits(s), Self::isplat(i32::MIN)),
        ))
    }
    #[inline(always)]
    unsafe fn is_nan(a: Self::V) -> Self::M {
        // Unordered compares say "not equal" to themselves; `eq` is ordered, so select through it.
        Self::ieq(
            Self::bits(Self::select(Self::eq(a, a), Self::zero(), Self::splat(1.0))),
            Self::isplat(0x3f80_0000),
        )
    }
    /// `a * 2^n` for integral `n` in [-252, 254], right for subnormal and infinite results.
    #[inline(always)]
    unsafe fn scale2(a: Self::V, n: Self::I) -> Self::V {
        let half = Self::sar::<1>(n);
        let rest = Self::isub(n, half);
        let bias = Self::isplat(127);
        let lo = Self::from_bits(Self::shl::<23>(Self::iadd(half, bias)));
        let hi = Self::from_bits(Self::shl::<23>(Self::iadd(rest, bias)));
        Self::mul(Self::mul(a, lo), hi)
    }
    /// Folds the lanes with `f`, in lane order.
    #[inline(always)]
    unsafe fn fold(a: Self::V, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = [0.0f32; 16];
        Self::store(lanes.as_mut_ptr(), a);
        lanes[1..Self::LANES].iter().fold(lanes[0], |x, y| f(x, *y))
    }
}

/// Compiles the generic body `$body::<S>` for every level and calls the one that `isa` proves to be there.
///
/// `simd_dispatch!(isa, fn(x: T, ..) -> R = body [<G: Bound>])(args)`: the arguments are named with their types since
/// the compiled functions are items of their own.
macro_rules! simd_dispatch {
    ($(#[$doc:meta])* $vis:vis unsafe fn $name:ident $(<$($g:ident : $bound:path),+>)? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$doc])*
        #[inline]
        $vis unsafe fn $name $(<$($g: $bound),+>)? (isa: $crate::cpu::kernels::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            unsafe fn v512 $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's contract is the body's; this function has the features of the level.
                unsafe { $body::<$crate::cpu::kernels::simd::Avx512 $($(, $g)+)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn v256 $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $body::<$crate::cpu::kernels::simd::Avx2 $($(, $g)+)?>($($arg),*) }
            }
            // SAFETY: an `Isa` is only made for a level that the processor has; the rest is the caller's contract.
            unsafe {
                match isa.level() {
                    #[cfg(target_arch = "x86_64")]
                    $crate::cpu::kernels::isa::Level::Avx512 => v512 $(::<$($g),+>)? ($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::cpu::kernels::isa::Level::Avx2 => v256 $(::<$($g),+>)? ($($arg),*),
                    _ => $body::<$crate::cpu::kernels::simd::Portable $($(, $g)+)?>($($arg),*),
                }
            }
        }
    };
}
pub(crate) use simd_dispatch;
