// The first `count` of a row in order, ties by lower position: three ways, by how much there is to keep.
#pragma once
#include "graphc_reduce.hip.h"

namespace graphc {

/// The order of a sort, the largest first or the smallest first: NaN is the largest, ties by lower position, none last.
template <bool LARGEST, typename T>
GRAPHC_DEVICE bool sorts_before(Candidate<T> a, Candidate<T> b) {
    if (a.position < 0 || b.position < 0) return a.position >= 0;
    const T low = LARGEST ? b.value : a.value, high = LARGEST ? a.value : b.value;
    if (before<true>(high, low)) return true;
    if (before<true>(low, high)) return false;
    return a.position < b.position;
}

/// One thread's row, short or with few to find: each round finds the first that comes after the one found before.
template <bool LARGEST, typename T, typename I, typename Value, typename Store>
GRAPHC_DEVICE void select_row(I length, I count, const Value& value, const Store& store) {
    Candidate<T> last{};
    for (I rank = 0; rank < count; ++rank) {
        Candidate<T> best{T(), -1};
        for (I i = 0; i < length; ++i) {
            const Candidate<T> candidate{value(i), (i64)i};
            if ((rank == 0 || sorts_before<LARGEST>(last, candidate)) && sorts_before<LARGEST>(candidate, best)) best = candidate;
        }
        store(rank, best.value, best.position);
        last = best;
    }
}

/// A workgroup's row: `CAPACITY` candidates (a power of two) in LDS, sorted by a bitonic network; the better half stays, the
/// other half is refilled from the row until it ends. `count` is at most half of them, or the row fits whole.
template <bool LARGEST, int BLOCK, int CAPACITY, typename T, typename I, typename Value, typename Store>
GRAPHC_DEVICE void top_of_row(I length, I count, const Value& value, const Store& store) {
    __shared__ T values[CAPACITY];
    __shared__ i32 positions[CAPACITY];
    const int thread = (int)threadIdx.x;
    I next = 0;
    int keep = 0;
    do {
        __syncthreads();
        for (int slot = keep + thread; slot < CAPACITY; slot += BLOCK) {
            const I i = next + (slot - keep);
            values[slot] = i < length ? value(i) : T();
            positions[slot] = i < length ? (i32)i : -1;
        }
        next += CAPACITY - keep;
        for (int size = 2; size <= CAPACITY; size *= 2) {
            for (int reach = size / 2; reach > 0; reach /= 2) {
                __syncthreads();
                for (int pair = thread; pair < CAPACITY / 2; pair += BLOCK) {
                    const int low = pair / reach * (2 * reach) + pair % reach, high = low + reach;
                    const bool forward = (low & size) == 0;
                    const Candidate<T> a{values[low], positions[low]}, b{values[high], positions[high]};
                    if (forward ? sorts_before<LARGEST>(b, a) : sorts_before<LARGEST>(a, b)) {
                        values[low] = b.value, positions[low] = (i32)b.position;
                        values[high] = a.value, positions[high] = (i32)a.position;
                    }
                }
            }
        }
        keep = CAPACITY / 2;
    } while (next < length);
    __syncthreads();
    for (I rank = thread; rank < count; rank += BLOCK) store(rank, values[rank], (i64)positions[rank]);
}

/// A workgroup's row when any number may be asked for: each element's rank is how many come before it.
template <bool LARGEST, int BLOCK, typename T, typename I, typename Value, typename Store>
GRAPHC_DEVICE void rank_row(I length, I count, const Value& value, const Store& store) {
    for (I i = (int)threadIdx.x; i < length; i += BLOCK) {
        const Candidate<T> own{value(i), (i64)i};
        I rank = 0;
        for (I other = 0; other < length; ++other) rank += sorts_before<LARGEST>(Candidate<T>{value(other), (i64)other}, own) ? 1 : 0;
        if (rank < count) store(rank, own.value, own.position);
    }
}

}  // namespace graphc
