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

template <int HALF, int LANES, typename T>
GRAPHC_DEVICE Candidate<T> other_half(Candidate<T> c) {
    return Candidate<T>{other_half<HALF, LANES>(c.value), other_half<HALF, LANES>(c.position)};
}
template <int LANE, typename T>
GRAPHC_DEVICE Candidate<T> of_lane(Candidate<T> c) {
    return Candidate<T>{of_lane<LANE>(c.value), of_lane<LANE>(c.position)};
}

// ---- folds

/// Folds over aligned groups of `LANES` lanes of a wave; every lane gets the result, the same in every bit.
template <typename Op, int LANES, typename T>
GRAPHC_DEVICE T reduce_lanes(T value) {
    if constexpr (LANES >= 2) value = Op::combine(value, other_half<1, LANES>(value));
    if constexpr (LANES >= 4) value = Op::combine(value, other_half<2, LANES>(value));
    if constexpr (LANES >= 8) value = Op::combine(value, other_half<4, LANES>(value));
    if constexpr (LANES >= 16) value = Op::combine(value, other_half<8, LANES>(value));
    if constexpr (LANES == 64 && ROWS_MEET_IN_SCALARS) {
        return Op::combine(Op::combine(of_lane<0>(value), of_lane<16>(value)),
                           Op::combine(of_lane<32>(value), of_lane<48>(value)));
    } else {
        if constexpr (LANES >= 32) value = Op::combine(value, other_half<16, LANES>(value));
        if constexpr (LANES >= 64) value = Op::combine(value, other_half<32, LANES>(value));
        return value;
    }
}

/// Folds over a workgroup of `BLOCK` threads, whole waves of `WAVE` or a part of one; every thread gets the result, and all
/// threads call it.
///
/// Folds take turns with two rows of LDS: when a row is written again, all threads have passed the barrier of the fold
/// between, and so have read it.
template <typename Op, int BLOCK, int WAVE, typename T>
GRAPHC_DEVICE T reduce_block(T value, int& turn) {
    constexpr int WAVES = (BLOCK + WAVE - 1) / WAVE;
    value = reduce_lanes<Op, (BLOCK < WAVE ? BLOCK : WAVE)>(value);
    if constexpr (WAVES > 1) {
        __shared__ T partials[2][WAVES];
        T* partial = partials[turn];
        turn ^= 1;
        if (threadIdx.x % WAVE == 0) partial[threadIdx.x / WAVE] = value;
        __syncthreads();
        if constexpr (WAVES <= 4 || WAVES > WAVE || (WAVES & (WAVES - 1)) != 0) {
            value = partial[0];
#pragma unroll
            for (int wave = 1; wave < WAVES; ++wave) value = Op::combine(value, partial[wave]);
        } else {
            value = reduce_lanes<Op, WAVES>(partial[threadIdx.x % WAVES]);
        }
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
