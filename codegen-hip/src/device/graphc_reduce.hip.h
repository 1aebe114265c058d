// Folds shared by the lanes of a wave or by a workgroup, and the operations that fold.
#pragma once
#include "graphc_math.hip.h"

namespace graphc {

// ---- operations: how two elements become one

struct Sum { template <typename T> static GRAPHC_DEVICE T combine(T a, T b) { return a + b; } };
struct Prod { template <typename T> static GRAPHC_DEVICE T combine(T a, T b) { return a * b; } };
struct Max { template <typename T> static GRAPHC_DEVICE T combine(T a, T b) { return math::max(a, b); } };
struct Min { template <typename T> static GRAPHC_DEVICE T combine(T a, T b) { return math::min(a, b); } };
struct All { static GRAPHC_DEVICE bool combine(bool a, bool b) { return a && b; } };
struct Any { static GRAPHC_DEVICE bool combine(bool a, bool b) { return a || b; } };
template <> GRAPHC_DEVICE i32 Sum::combine<i32>(i32 a, i32 b) { return math::int_add(a, b); }
template <> GRAPHC_DEVICE i64 Sum::combine<i64>(i64 a, i64 b) { return math::int_add(a, b); }
template <> GRAPHC_DEVICE i32 Prod::combine<i32>(i32 a, i32 b) { return math::int_mul(a, b); }
template <> GRAPHC_DEVICE i64 Prod::combine<i64>(i64 a, i64 b) { return math::int_mul(a, b); }
template <> GRAPHC_DEVICE bool Sum::combine<bool>(bool a, bool b) { return a || b; }
template <> GRAPHC_DEVICE bool Prod::combine<bool>(bool a, bool b) { return a && b; }

/// A value and its position; position -1 stands for none.
template <typename T>
struct Candidate {
    T value;
    i64 position;
};

/// Says whether a value comes strictly before another: NaN first, then the largest (smallest).
template <bool LARGEST, typename T>
GRAPHC_DEVICE bool before(T a, T b) {
    const bool a_nan = a != a, b_nan = b != b;
    if (a_nan || b_nan) return a_nan && !b_nan;
    return LARGEST ? a > b : a < b;
}

/// The same with positions: ties by lower position, none last.
template <bool LARGEST, typename T>
GRAPHC_DEVICE bool before(Candidate<T> a, Candidate<T> b) {
    if (a.position < 0 || b.position < 0) return a.position >= 0;
    if (before<LARGEST>(a.value, b.value)) return true;
    if (before<LARGEST>(b.value, a.value)) return false;
    return a.position < b.position;
}

template <bool LARGEST>
struct ArgBest {
    template <typename T>
    static GRAPHC_DEVICE Candidate<T> combine(Candidate<T> a, Candidate<T> b) {
        return before<LARGEST>(b, a) ? b : a;
    }
};
using ArgMax = ArgBest<true>;
using ArgMin = ArgBest<false>;

/// The position found, 0 when there was no element.
template <typename T>
GRAPHC_DEVICE i64 position_of(Candidate<T> found) { return found.position < 0 ? 0 : found.position; }

template <int LANES, typename T>
GRAPHC_DEVICE Candidate<T> shuffle_xor(Candidate<T> c, int mask) {
    return Candidate<T>{shuffle_xor<LANES>(c.value, mask), shuffle_xor<LANES>(c.position, mask)};
}

// ---- folds

/// Folds over aligned groups of `LANES` lanes of a wave; every lane gets the result.
template <typename Op, int LANES, typename T>
GRAPHC_DEVICE T reduce_lanes(T value) {
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) {
        value = Op::combine(value, shuffle_xor<LANES>(value, mask));
    }
    return value;
}

/// Folds over a workgroup of `BLOCK` threads in waves of `WAVE`; every thread gets the result. All threads call it.
template <typename Op, int BLOCK, int WAVE, typename T>
GRAPHC_DEVICE T reduce_block(T value) {
    constexpr int WAVES = (BLOCK + WAVE - 1) / WAVE;
    value = reduce_lanes<Op, (BLOCK < WAVE ? BLOCK : WAVE)>(value);
    if constexpr (WAVES > 1) {
        __shared__ T partial[WAVES];
        __syncthreads();  // the result of the fold before has been read
        if (threadIdx.x % WAVE == 0) partial[threadIdx.x / WAVE] = value;
        __syncthreads();
        value = partial[0];
#pragma unroll
        for (int wave = 1; wave < WAVES; ++wave) value = Op::combine(value, partial[wave]);
    }
    return value;
}

// ---- updates of memory that several threads may meet at

template <int BYTES> struct WordOf { using type = u32; };
template <> struct WordOf<8> { using type = u64; };

/// Combines into `*to`, atomically, by swapping the aligned word around it.
template <typename Op, typename T>
GRAPHC_DEVICE void update(T* to, T value) {
    using Word = typename WordOf<(int)sizeof(T)>::type;
    Word* word = (Word*)((u64)to & ~(u64)(sizeof(Word) - 1));
    const u32 shift = (u32)((u64)to & (sizeof(Word) - 1)) * 8;
    constexpr Word MASK = sizeof(T) == sizeof(Word) ? ~Word(0) : (Word(1) << (sizeof(T) % sizeof(Word) * 8)) - 1;
    Word seen = *(volatile Word*)word;
    for (;;) {
        T current;
        const Word field = seen >> shift & MASK;
        copy_bytes<(int)sizeof(T)>(&current, &field);
        const T next = cast<T>(Op::combine(widen(current), widen(value)));
        Word bits = 0;
        copy_bytes<(int)sizeof(T)>(&bits, &next);
        const Word before = compare_and_swap(word, seen, (seen & ~(MASK << shift)) | bits << shift);
        if (before == seen) return;
        seen = before;
    }
}

}  // namespace graphc
