// Running folds along a row.
#pragma once
#include "graphc_reduce.hip.h"

namespace graphc {

/// One thread's row: `store(i, fold of value(0..i))`; with `EXCLUSIVE` element `i` itself is left out, with `REVERSE` the
/// row is walked from its end.
template <typename Op, bool EXCLUSIVE, bool REVERSE, typename T, typename I, typename Value, typename Store>
GRAPHC_DEVICE void scan_row(I length, T identity, const Value& value, const Store& store) {
    T running = identity;
    for (I step = 0; step < length; ++step) {
        const I i = REVERSE ? length - 1 - step : step;
        const T next = Op::combine(running, (T)value(i));
        store(i, EXCLUSIVE ? running : next);
        running = next;
    }
}

/// The same, the row shared by a workgroup of `BLOCK` threads. All threads call it.
template <typename Op, bool EXCLUSIVE, bool REVERSE, int BLOCK, typename T, typename I, typename Value, typename Store>
GRAPHC_DEVICE void scan_row_block(I length, T identity, const Value& value, const Store& store) {
    __shared__ T partial[2][BLOCK];
    const int thread = (int)threadIdx.x;
    T carry = identity;
    for (I start = 0; start < length; start += BLOCK) {
        const I step = start + thread;
        const I i = REVERSE ? length - 1 - step : step;
        __syncthreads();
        partial[0][thread] = step < length ? (T)value(i) : identity;
        __syncthreads();
        int now = 0;
        for (int reach = 1; reach < BLOCK; reach *= 2) {
            const T own = partial[now][thread];
            partial[1 - now][thread] = thread >= reach ? Op::combine(partial[now][thread - reach], own) : own;
            now = 1 - now;
            __syncthreads();
        }
        if (step < length) {
            if constexpr (EXCLUSIVE) {
                store(i, thread == 0 ? carry : Op::combine(carry, partial[now][thread - 1]));
            } else {
                store(i, Op::combine(carry, partial[now][thread]));
            }
        }
        carry = Op::combine(carry, partial[now][BLOCK - 1]);
    }
}

}  // namespace graphc
