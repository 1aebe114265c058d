// Matrix products through LDS: workgroups take tiles, threads take register tiles, edges are guarded.
#pragma once
#include "graphc_math.hip.h"

namespace graphc {

/// The sizes of a tiled product.
template <int BLOCK_M_, int BLOCK_N_, int BLOCK_K_, int THREAD_M_, int THREAD_N_>
struct Tile {
    static constexpr int BLOCK_M = BLOCK_M_, BLOCK_N = BLOCK_N_, BLOCK_K = BLOCK_K_;
    static constexpr int THREAD_M = THREAD_M_, THREAD_N = THREAD_N_;
    static constexpr int THREADS_M = BLOCK_M / THREAD_M, THREADS_N = BLOCK_N / THREAD_N;
    static constexpr int THREADS = THREADS_M * THREADS_N;
    static_assert(BLOCK_M % THREAD_M == 0 && BLOCK_N % THREAD_N == 0, "threads tile the block");
};

/// How an operand lies in memory: along which axis neighbours are, and how many of them come whole.
template <bool ALONG_K_, int WIDTH_>
struct Walk {
    static constexpr bool ALONG_K = ALONG_K_;
    static constexpr int WIDTH = WIDTH_;
};

/// Where element `i` of a thread's `EACH` sits in the block: quads of neighbours, the quads of all threads interleaved.
template <int EACH, int THREADS>
GRAPHC_DEVICE int spread(int thread, int i) {
    if constexpr (EACH % 4 == 0) {
        return i / 4 * (THREADS * 4) + thread * 4 + i % 4;
    } else {
        return thread * EACH + i;
    }
}

/// One operand's part of a tile, on its way from memory to LDS.
template <typename Acc, typename W, int BLOCK, int DEPTH, int THREADS>
struct Fetch {
    static constexpr int WIDTH = (W::ALONG_K ? DEPTH : BLOCK) % W::WIDTH == 0 ? W::WIDTH : 1;
    static constexpr int GROUPS = BLOCK * DEPTH / WIDTH;
    static constexpr int EACH = (GROUPS + THREADS - 1) / THREADS;
    static constexpr int ALONG = (W::ALONG_K ? DEPTH : BLOCK) / WIDTH;
    Acc held[EACH * WIDTH];

    /// Reads `load(row, k)` for rows from `row0` and depths from `k0`, zero outside.
    template <typename I, typename Load>
    GRAPHC_DEVICE void read(I row0, I rows, I k0, I depth, const Load& load) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int group = i * THREADS + (int)threadIdx.x;
            const int along = group % ALONG * WIDTH, across = group / ALONG;
            const I row = row0 + (W::ALONG_K ? across : along), k = k0 + (W::ALONG_K ? along : across);
            const bool inside = row < rows && k < depth && (GROUPS % THREADS == 0 || group < GROUPS);
            if (inside) {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) {
                    held[i * WIDTH + j] = W::ALONG_K ? load(row, k + j) : load(row + j, k);
                }
            } else {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) held[i * WIDTH + j] = Acc(0);
            }
        }
    }

    template <int PITCH>
    GRAPHC_DEVICE void write(Acc (*lds)[PITCH]) const {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int group = i * THREADS + (int)threadIdx.x;
            const int along = group % ALONG * WIDTH, across = group / ALONG;
            if (GROUPS % THREADS == 0 || group < GROUPS) {
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) {
                    if constexpr (W::ALONG_K) {
                        lds[along + j][across] = held[i * WIDTH + j];
                    } else {
                        lds[across][along + j] = held[i * WIDTH + j];
                    }
                }
            }
        }
    }
};

/// Computes this workgroup's tile of `acc[m, n] = Σ_k lhs(m, k) · rhs(n, k)` and hands each element to
/// `epilogue(m, n, acc)`; with `PAIRS`, each two neighbours along `n` to `epilogue(m, n, acc, second)`, of which there are whole pairs.
/// Workgroups are numbered along `n` first. `lhs` and `rhs` are called in range only.
template <typename T, typename Acc, typename LhsWalk, typename RhsWalk, typename I, bool PAIRS = false, typename Lhs, typename Rhs, typename Epilogue>
GRAPHC_DEVICE void contract_tile(I rows, I cols, I depth, const Lhs& lhs, const Rhs& rhs, const Epilogue& epilogue) {
    // One element of padding spreads the transposing writes over the banks; quads stay aligned where they are read whole.
    constexpr int PAD = sizeof(Acc) == 4 ? 4 : 2;
    alignas(16) __shared__ Acc lhs_tile[T::BLOCK_K][T::BLOCK_M + PAD];
    alignas(16) __shared__ Acc rhs_tile[T::BLOCK_K][T::BLOCK_N + PAD];
    const I tiles_n = (cols + T::BLOCK_N - 1) / T::BLOCK_N;
    const I row0 = (I)blockIdx.x / tiles_n * T::BLOCK_M, col0 = (I)blockIdx.x % tiles_n * T::BLOCK_N;
    const int thread_n = (int)threadIdx.x % T::THREADS_N, thread_m = (int)threadIdx.x / T::THREADS_N;

    Acc acc[T::THREAD_M][T::THREAD_N];
#pragma unroll
    for (int i = 0; i < T::THREAD_M; ++i) {
#pragma unroll
        for (int j = 0; j < T::THREAD_N; ++j) acc[i][j] = Acc(0);
    }

    Fetch<Acc, LhsWalk, T::BLOCK_M, T::BLOCK_K, T::THREADS> lhs_fetch;
    Fetch<Acc, RhsWalk, T::BLOCK_N, T::BLOCK_K, T::THREADS> rhs_fetch;
    lhs_fetch.read(row0, rows, I(0), depth, lhs);
    rhs_fetch.read(col0, cols, I(0), depth, rhs);
    for (I k0 = 0; k0 < depth; k0 += T::BLOCK_K) {
        __syncthreads();
        lhs_fetch.write(lhs_tile);
        rhs_fetch.write(rhs_tile);
        __syncthreads();
        // The next tile's elements are under way while this one is multiplied.
        lhs_fetch.read(row0, rows, k0 + T::BLOCK_K, depth, lhs);
        rhs_fetch.read(col0, cols, k0 + T::BLOCK_K, depth, rhs);
#pragma unroll 4
        for (int k = 0; k < T::BLOCK_K; ++k) {
            Acc a[T::THREAD_M], b[T::THREAD_N];
#pragma unroll
            for (int i = 0; i < T::THREAD_M; ++i) a[i] = lhs_tile[k][spread<T::THREAD_M, T::THREADS_M>(thread_m, i)];
#pragma unroll
            for (int j = 0; j < T::THREAD_N; ++j) b[j] = rhs_tile[k][spread<T::THREAD_N, T::THREADS_N>(thread_n, j)];
#pragma unroll
            for (int i = 0; i < T::THREAD_M; ++i) {
#pragma unroll
                for (int j = 0; j < T::THREAD_N; ++j) acc[i][j] = math::multiply_add(a[i], b[j], acc[i][j]);
            }
        }
    }

#pragma unroll
    for (int i = 0; i < T::THREAD_M; ++i) {
        const I row = row0 + spread<T::THREAD_M, T::THREADS_M>(thread_m, i);
        if (row < rows) {
#pragma unroll
            for (int j = 0; j < T::THREAD_N; j += PAIRS ? 2 : 1) {
                const I col = col0 + spread<T::THREAD_N, T::THREADS_N>(thread_n, j);
                if constexpr (PAIRS) {
                    static_assert(T::THREAD_N % 2 == 0, "a thread's columns are whole pairs");
                    if (col < cols) epilogue(row, col, acc[i][j], acc[i][j + 1]);
                } else {
                    if (col < cols) epilogue(row, col, acc[i][j]);
                }
            }
        }
    }
}

}  // namespace graphc
