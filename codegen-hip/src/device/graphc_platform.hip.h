// The few things that differ between AMD's hiprtc, NVIDIA's NVRTC and the host shim of the tests.
//
// Everything else in this folder is plain C++17 over what is named here.
#pragma once

#if defined(GRAPHC_HOST)
// The tests' shim has declared the built-ins and the functions below.
#elif defined(__HIP__) || defined(__HIPCC_RTC__) || defined(__AMDGCN__)
#define GRAPHC_AMD 1
#elif defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define GRAPHC_CUDA 1
#else
#error "neither HIP nor CUDA"
#endif

#if defined(GRAPHC_HOST)
#define GRAPHC_DEVICE inline
#elif defined(GRAPHC_AMD)
#define GRAPHC_DEVICE __device__ inline __attribute__((always_inline))
#else
#define GRAPHC_DEVICE __device__ __forceinline__
#endif

namespace graphc {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long;
using u64 = unsigned long;
static_assert(sizeof(i64) == 8 && sizeof(i32) == 4, "the LP64 model is assumed");

/// Copies an object's bytes to one of another type.
template <int BYTES>
GRAPHC_DEVICE void copy_bytes(void* to, const void* from) {
#if defined(GRAPHC_CUDA)
    memcpy(to, from, BYTES);  // NVRTC has no __builtin_ functions
#else
    __builtin_memcpy(to, from, BYTES);
#endif
}

/// The same bits as another type.
template <typename To, typename From>
GRAPHC_DEVICE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits_as keeps the size");
    To to;
    copy_bytes<(int)sizeof(To)>(&to, &from);
    return to;
}

#if !defined(GRAPHC_HOST)
/// The value of the lane whose number differs in the bits of `mask`, within aligned groups of `LANES` (all of them active).
template <int LANES>
GRAPHC_DEVICE u32 shuffle_xor_word(u32 value, int mask) {
#if defined(GRAPHC_AMD)
    const int lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
    return (u32)__builtin_amdgcn_ds_bpermute((lane ^ mask) << 2, (int)value);
#else
    const u32 lane = threadIdx.x % 32;
    const u32 group = LANES >= 32 ? ~0u : ((1u << (LANES % 32)) - 1u) << (lane / LANES * LANES);
    return __shfl_xor_sync(group, value, mask, LANES);
#endif
}
#endif

/// The value of another lane of the group, of a type of 1, 2, 4 or 8 bytes.
template <int LANES, typename T>
GRAPHC_DEVICE T shuffle_xor(T value, int mask) {
    if constexpr (sizeof(T) == 8) {
        const u64 bits = bits_as<u64>(value);
        const u64 low = shuffle_xor_word<LANES>((u32)bits, mask);
        const u64 high = shuffle_xor_word<LANES>((u32)(bits >> 32), mask);
        return bits_as<T>(high << 32 | low);
    } else if constexpr (sizeof(T) == 4) {
        return bits_as<T>(shuffle_xor_word<LANES>(bits_as<u32>(value), mask));
    } else if constexpr (sizeof(T) == 2) {
        return bits_as<T>((u16)shuffle_xor_word<LANES>(bits_as<u16>(value), mask));
    } else {
        return bits_as<T>((u8)shuffle_xor_word<LANES>(bits_as<u8>(value), mask));
    }
}

/// The number of this thread in the grid, and how many there are: for loops that stride over the grid.
template <typename I>
GRAPHC_DEVICE I global_thread() {
    return (I)blockIdx.x * (I)blockDim.x + (I)threadIdx.x;
}
template <typename I>
GRAPHC_DEVICE I grid_threads() {
    return (I)gridDim.x * (I)blockDim.x;
}

#if !defined(GRAPHC_HOST)
/// Replaces `*address` by `next` if it is `expected`; returns what it was.
GRAPHC_DEVICE u32 compare_and_swap(u32* address, u32 expected, u32 next) { return atomicCAS(address, expected, next); }
GRAPHC_DEVICE u64 compare_and_swap(u64* address, u64 expected, u64 next) {
    return (u64)atomicCAS((unsigned long long*)address, (unsigned long long)expected, (unsigned long long)next);
}
#endif

}  // namespace graphc
