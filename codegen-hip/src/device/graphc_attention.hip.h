// Attention in one pass over the keys: online softmax (Milakov and Gimelshein, 2018; Dao et al., FlashAttention, 2022).
#pragma once
#include "graphc_grid.hip.h"
#include "graphc_keys.hip.h"
#include "graphc_reduce.hip.h"

namespace graphc {

/// The sizes of an attention kernel: tiles of queries and keys, widths of keys and of values, the workgroup.
template <int BLOCK_Q_, int BLOCK_K_, int D_, int DV_, int BLOCK_, int WAVE_>
struct Flash {
    static constexpr int BLOCK_Q = BLOCK_Q_, BLOCK_K = BLOCK_K_, D = D_, DV = DV_, BLOCK = BLOCK_, WAVE = WAVE_;
    static constexpr int QUERIES = BLOCK_Q;
    static constexpr int SCORES = (BLOCK_Q * BLOCK_K + BLOCK - 1) / BLOCK;
    static constexpr int OUTPUTS = (BLOCK_Q * DV + BLOCK - 1) / BLOCK;
    /// Lanes that share a row of scores.
    static GRAPHC_DEVICE constexpr int lanes() {
        int n = 1;
        while (n * 2 <= BLOCK / BLOCK_Q && n * 2 <= BLOCK_K && n * 2 <= WAVE) n *= 2;
        return n;
    }
    static constexpr int LANES = lanes();
};

/// Computes a block of queries: `out(q, e) = Σ_k softmax_k(score(q, k, Σ_d query(q, d) · key(k, d))) · value(k, e)`, each
/// element handed to `epilogue(q, e, out)`. Keys that the range leaves out are known to be hidden.
/// A row whose scores are all minus infinity gives NaN, as softmax does; no keys at all give 0, as an empty sum does.
template <typename F, typename I, typename Range, typename Query, typename Key, typename Value, typename Score, typename Epilogue>
GRAPHC_DEVICE void attend(I block, I queries, I keys, const Range& range, const Query& query, const Key& key, const Value& value,
                          const Score& score, const Epilogue& epilogue) {
    __shared__ float query_tile[F::BLOCK_Q][F::D + 1];
    __shared__ float key_tile[F::BLOCK_K][F::D + 1];
    __shared__ float value_tile[F::BLOCK_K][F::DV];
    __shared__ float weights[F::BLOCK_Q][F::BLOCK_K + 1];
    __shared__ float row_max[F::BLOCK_Q], row_sum[F::BLOCK_Q], row_scale[F::BLOCK_Q];
    const int thread = (int)threadIdx.x;
    const I q0 = block * F::BLOCK_Q;

    __syncthreads();  // a block before this one has been read
    for (int e = thread; e < F::BLOCK_Q * F::D; e += F::BLOCK) {
        const int q = e / F::D, d = e % F::D;
        query_tile[q][d] = q0 + q < queries ? query(q0 + q, (I)d) : 0.0f;
    }
    for (int q = thread; q < F::BLOCK_Q; q += F::BLOCK) {
        row_max[q] = -infinity<float>();
        row_sum[q] = 0.0f;
    }
    float acc[F::OUTPUTS];
#pragma unroll
    for (int i = 0; i < F::OUTPUTS; ++i) acc[i] = 0.0f;

    const SeenKeys<I> seen = range.template of<F::BLOCK_Q, F::WAVE>(q0, queries, keys);
    for (I k0 = seen.begin; k0 < seen.end; k0 += F::BLOCK_K) {
        const auto& scored = range.scored(score, seen.covers(k0, F::BLOCK_K));
        __syncthreads();
        for (int e = thread; e < F::BLOCK_K * F::D; e += F::BLOCK) {
            const int k = e / F::D, d = e % F::D;
            key_tile[k][d] = k0 + k < keys ? key(k0 + k, (I)d) : 0.0f;
        }
        for (int e = thread; e < F::BLOCK_K * F::DV; e += F::BLOCK) {
            const int k = e / F::DV, d = e % F::DV;
            value_tile[k][d] = k0 + k < keys ? value(k0 + k, (I)d) : 0.0f;
        }
        __syncthreads();

        float dot[F::SCORES];
#pragma unroll
        for (int i = 0; i < F::SCORES; ++i) dot[i] = 0.0f;
#pragma unroll 4
        for (int d = 0; d < F::D; ++d) {
#pragma unroll
            for (int i = 0; i < F::SCORES; ++i) {
                const int e = (i * F::BLOCK + thread) % (F::BLOCK_Q * F::BLOCK_K);
                dot[i] = math::multiply_add(query_tile[e / F::BLOCK_K][d], key_tile[e % F::BLOCK_K][d], dot[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < F::SCORES; ++i) {
            const int e = i * F::BLOCK + thread, q = e / F::BLOCK_K, k = e % F::BLOCK_K;
            if (e < F::BLOCK_Q * F::BLOCK_K) {
                const bool inside = q0 + q < queries && k0 + k < keys;
                weights[q][k] = inside ? scored(q0 + q, k0 + k, dot[i]) : -infinity<float>();
            }
        }
        __syncthreads();

        constexpr int ROWS = F::BLOCK / F::LANES;
        const int lane = thread % F::LANES;
        for (int base = 0; base < F::BLOCK_Q; base += ROWS) {
            // Lanes beyond the tile repeat its last row and write nothing: shuffles want them all.
            const int row = base + thread / F::LANES, q = row < F::BLOCK_Q ? row : F::BLOCK_Q - 1;
            const float before = row_max[q];
            float largest = before;
            for (int k = lane; k < F::BLOCK_K; k += F::LANES) largest = math::max(largest, weights[q][k]);
            largest = reduce_lanes<Max, F::LANES>(largest);
            // Nothing seen yet: any finite reference gives weights of zero.
            const float reference = largest == -infinity<float>() ? 0.0f : largest;
            float exponentials[(F::BLOCK_K + F::LANES - 1) / F::LANES];
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < (F::BLOCK_K + F::LANES - 1) / F::LANES; ++i) {
                const int k = lane + i * F::LANES;
                exponentials[i] = k < F::BLOCK_K ? math::exp(weights[q][k] - reference) : 0.0f;
                sum += exponentials[i];
            }
            sum = reduce_lanes<Sum, F::LANES>(sum);
            const float scale = math::exp(before - reference);
            __syncthreads();
            if (row < F::BLOCK_Q) {
#pragma unroll
                for (int i = 0; i < (F::BLOCK_K + F::LANES - 1) / F::LANES; ++i) {
                    const int k = lane + i * F::LANES;
                    if (k < F::BLOCK_K) weights[q][k] = exponentials[i];
                }
                if (lane == 0) {
                    row_scale[q] = scale;
                    row_sum[q] = math::multiply_add(row_sum[q], scale, sum);
                    row_max[q] = largest;
                }
            }
            __syncthreads();
        }

#pragma unroll
        for (int i = 0; i < F::OUTPUTS; ++i) {
            const int e = (i * F::BLOCK + thread) % (F::BLOCK_Q * F::DV);
            acc[i] *= row_scale[e / F::DV];
        }
#pragma unroll 4
        for (int k = 0; k < F::BLOCK_K; ++k) {
#pragma unroll
            for (int i = 0; i < F::OUTPUTS; ++i) {
                const int e = (i * F::BLOCK + thread) % (F::BLOCK_Q * F::DV);
                acc[i] = math::multiply_add(weights[e / F::DV][k], value_tile[k][e % F::DV], acc[i]);
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < F::OUTPUTS; ++i) {
        const int e = i * F::BLOCK + thread, q = e / F::DV;
        if (e < F::BLOCK_Q * F::DV && q0 + q < queries) {
            epilogue(q0 + q, (I)(e % F::DV), keys > 0 ? acc[i] / row_sum[q] : 0.0f);
        }
    }
}

}  // namespace graphc
