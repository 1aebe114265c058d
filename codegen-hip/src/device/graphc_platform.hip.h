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

/// A value of 1, 2, 4 or 8 bytes whose 32-bit words have gone through `f`.
template <typename T, typename F>
GRAPHC_DEVICE T map_words(T value, const F& f) {
    if constexpr (sizeof(T) == 8) {
        const u64 bits = bits_as<u64>(value);
        const u64 low = f((u32)bits), high = f((u32)(bits >> 32));
        return bits_as<T>(high << 32 | low);
    } else if constexpr (sizeof(T) == 4) {
        return bits_as<T>(f(bits_as<u32>(value)));
    } else if constexpr (sizeof(T) == 2) {
        return bits_as<T>((u16)f(bits_as<u16>(value)));
    } else {
        return bits_as<T>((u8)f(bits_as<u8>(value)));
    }
}

/// Waits until the launch before this one is done and what it has written can be read: where launches overlap, one may
/// begin earlier. Every kernel waits before it touches what others write, so that one that is done has all launches
/// before it behind it.
///
/// The next launch begins when the last workgroup ends. It could be let in earlier
/// (`griddepcontrol.launch_dependents`), but its workgroups then crowd where there happens to be room: on an H200
/// ResNet-50 took 5% to 48% longer, by where kernels did so. Only those are let in early of which a unit takes one at a time:
/// that stay there (graphc_gemv_stream.hip.h), or that have weights to ask for (`Gemv::EARLY`).
GRAPHC_DEVICE void wait_for_launch_before() {
#if defined(GRAPHC_CUDA)
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next launch begin once every workgroup has come here. All of them have their places then, and wait for none
/// of its.
GRAPHC_DEVICE void let_next_launch_begin() {
#if defined(GRAPHC_CUDA)
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#if defined(GRAPHC_AMD)
/// Says that rows of 16 lanes meet in the scalar registers, which every lane reads.
#if defined(__GFX9__)
constexpr bool ROWS_MEET_IN_SCALARS = true;
#else
constexpr bool ROWS_MEET_IN_SCALARS = false;
#endif

/// The value of one lane, for all.
template <int LANE>
GRAPHC_DEVICE u32 lane_word(u32 value) {
    return (u32)__builtin_amdgcn_readlane((int)value, LANE);
}

/// The value of a lane in the other half of the aligned group of `2 * HALF` lanes, when the lanes of a half agree in theirs.
///
/// On the way into the ALU, without LDS: DPP within 16 lanes, beyond them what the generation has. `LANES` share the fold.
template <int HALF, int LANES>
GRAPHC_DEVICE u32 other_half_word(u32 value) {
    const int v = (int)value;
    if constexpr (HALF == 1) {
        return (u32)__builtin_amdgcn_update_dpp(0, v, 0xB1, 0xF, 0xF, true);  // quad_perm [1, 0, 3, 2]
    } else if constexpr (HALF == 2) {
        return (u32)__builtin_amdgcn_update_dpp(0, v, 0x4E, 0xF, 0xF, true);  // quad_perm [2, 3, 0, 1]
    } else if constexpr (HALF == 4) {
        return (u32)__builtin_amdgcn_update_dpp(0, v, 0x141, 0xF, 0xF, true);  // row_half_mirror
    } else if constexpr (HALF == 8) {
        return (u32)__builtin_amdgcn_update_dpp(0, v, 0x140, 0xF, 0xF, true);  // row_mirror
    } else {
        static_assert(HALF == 16, "a wave of 64 lanes meets in scalars");
#if defined(__GFX9__)
        // What an inactive row holds goes to itself alone.
        const int lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
        const u32 low = lane & 16 ? lane_word<0>(value) : lane_word<16>(value);
        const u32 high = lane & 16 ? lane_word<32>(value) : lane_word<48>(value);
        return lane & 32 ? high : low;
#else
        return (u32)__builtin_amdgcn_permlanex16(v, v, 0x76543210, 0xFEDCBA98, false, false);
#endif
    }
}
#else
constexpr bool ROWS_MEET_IN_SCALARS = false;

#if defined(GRAPHC_CUDA)
/// The value of the lane whose number differs in the bits of `mask`, within aligned groups of `LANES` (all of them active).
template <int LANES>
GRAPHC_DEVICE u32 shuffle_xor_word(u32 value, int mask) {
    const u32 lane = threadIdx.x % 32;
    const u32 group = LANES >= 32 ? ~0u : ((1u << (LANES % 32)) - 1u) << (lane / LANES * LANES);
    return __shfl_xor_sync(group, value, mask, LANES);
}
#endif

template <int HALF, int LANES>
GRAPHC_DEVICE u32 other_half_word(u32 value) {
    return shuffle_xor_word<LANES>(value, HALF);
}

template <int LANE>
GRAPHC_DEVICE u32 lane_word(u32 value) {
    return value;
}
#endif

/// The value of the other half of the group of `2 * HALF` lanes; see [`other_half_word`].
template <int HALF, int LANES, typename T>
GRAPHC_DEVICE T other_half(T value) {
    return map_words(value, [](u32 word) { return other_half_word<HALF, LANES>(word); });
}

/// The value of one lane of the wave.
template <int LANE, typename T>
GRAPHC_DEVICE T of_lane(T value) {
    return map_words(value, [](u32 word) { return lane_word<LANE>(word); });
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
