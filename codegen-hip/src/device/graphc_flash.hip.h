// Attention on matrix instructions in one pass over the keys: online softmax (Milakov and Gimelshein, 2018; Dao,
// FlashAttention-2, 2023). The weights never leave the registers.
//
// Each wave has whole rows of queries, as many as the instruction has. A row's maximum and sum are a lane's own but for an
// exchange between the lanes that share the row. The sums of `query · key` lie in the lanes as the left operand of
// `weight · value` wants them, because a tile's keys meet the columns of the instruction in that order.
#pragma once
#include "graphc_gemm.hip.h"
#include "graphc_keys.hip.h"
#include "graphc_reduce.hip.h"

namespace graphc {

/// The least power of two that is at least `n`.
constexpr GRAPHC_DEVICE int power_of_two_from(int n) {
    int power = 1;
    while (power < n) power *= 2;
    return power;
}

/// Floats of a lane that a wave hands over to the one that it shares queries with: outputs, a maximum and a sum of each row.
constexpr GRAPHC_DEVICE int floats_handed_over(int rows, int outputs) { return rows * (outputs + 2); }

/// Where a wave's queries are while keys pass by: in registers as the instruction takes them; of each half of a wave its own half, where
/// the instruction wants all of them in both; or in LDS, from which they are read for every tile (`mma.sync`).
enum class QueryPlace { REGISTERS, HALVED, LDS };

/// The sizes of an attention kernel: the instruction, waves of a workgroup, keys of a wave's tile, widths of keys and of
/// values. `SPLIT` neighbouring waves have the same queries and share out the keys: few queries then keep all waves busy. A wave has
/// `FRAGMENTS` times as many queries as the instruction has rows, which read a key and a value from LDS together.
///
/// With `mma.sync` tiles are copied past the registers, into two buffers: one is filled while the other is multiplied. Queries are read
/// from LDS for every tile where they would take too many registers.
///
/// `CHAINED`: scores are weights as they are. Two products then are one kernel, `f(X · A) · B`: a query is a row of `X`, a
/// key a column of `A`, a value a row of `B`.
template <typename Instruction_, int WAVES_, int KEYS_, int D_, int DV_, int SPLIT_ = 1, int FRAGMENTS_ = 1,
          QueryPlace QUERIES_IN_ = QueryPlace::REGISTERS, bool CHAINED_ = false>
struct FlashTile {
    using Instruction = Instruction_;
    using I = Instruction_;
    using Element = typename I::Element;
    static constexpr int WAVES = WAVES_, KEYS = KEYS_, D = D_, DV = DV_;
    static constexpr bool CHAINED = CHAINED_;
    static constexpr int SPLIT = SPLIT_, TILE = KEYS * SPLIT;
    static constexpr int FRAGMENTS = FRAGMENTS_, LANES = I::LANES, THREADS = WAVES * LANES;
    static constexpr int ROWS = I::ROWS * FRAGMENTS, QUERIES = WAVES / SPLIT * ROWS;
    /// Bytes of an element, and elements of a chunk of LDS.
    static constexpr int SIZE = (int)sizeof(Element), CHUNK = 16 / SIZE;
    /// Rows of LDS are powers of two: elements along the width of keys, steps of which are multiplied.
    static constexpr int DEPTH = power_of_two_from(D < I::STEP ? I::STEP : D), STEPS = (D + I::STEP - 1) / I::STEP;
    /// Columns of values, whole fragments of them, which `ldmatrix` reads in pairs.
    static constexpr int WHOLE = I::SYNC ? 2 * I::COLS : I::COLS, COLS = (DV + WHOLE - 1) / WHOLE * WHOLE;
    static constexpr int OUTS = COLS / I::COLS, SCORES = KEYS / I::COLS, KEY_STEPS = KEYS / I::STEP;
    /// Columns of values that are in LDS: rows that `ldmatrix` turns are powers of two, of 128 bytes at least.
    static constexpr int VALUE_COLS = I::SYNC ? power_of_two_from(COLS < 64 ? 64 : COLS) : COLS;
    static constexpr int KEY_BYTES = TILE * DEPTH * SIZE, VALUE_BYTES = VALUE_COLS * TILE * SIZE;
    static constexpr int STAGES = I::SYNC ? 2 : 1, STAGE_BYTES = KEY_BYTES + VALUE_BYTES;
    /// Queries go through LDS with `mma.sync`: first where the second tile will be, or for good behind both.
    static constexpr int QUERY_BYTES = I::SYNC ? QUERIES * DEPTH * SIZE : 0;
    static constexpr bool QUERIES_STAY = QUERIES_IN_ == QueryPlace::LDS, HALVED = QUERIES_IN_ == QueryPlace::HALVED;
    static constexpr int QUERIES_AT = QUERIES_STAY ? STAGES * STAGE_BYTES : STAGE_BYTES;
    static constexpr int MERGE_BYTES =
        (SPLIT > 1 ? WAVES / 2 : 0) * LANES * floats_handed_over(FRAGMENTS * I::SUM_ROWS, OUTS * I::SUM_COLS) * 4;
    static constexpr int TILE_BYTES = QUERIES_AT + QUERY_BYTES > STAGES * STAGE_BYTES ? QUERIES_AT + QUERY_BYTES : STAGES * STAGE_BYTES;
    static constexpr int LDS_BYTES = TILE_BYTES > MERGE_BYTES ? TILE_BYTES : MERGE_BYTES;
#if defined(GRAPHC_CUDA)
    static constexpr bool DYNAMIC_LDS = LDS_BYTES > 48 * 1024;
#else
    static constexpr bool DYNAMIC_LDS = false;
#endif
    static_assert(SIZE == 2 || SIZE == 4, "elements have two bytes or four");
    static_assert(KEYS % I::COLS == 0 && KEYS % I::STEP == 0, "a tile is whole fragments of keys");
    static_assert(!I::SYNC || (KEYS & (KEYS - 1)) == 0, "a tile's keys are a power of two for mma.sync");
    static_assert(WAVES % SPLIT == 0 && (SPLIT & (SPLIT - 1)) == 0, "the waves are whole groups that share queries");
    static_assert(CHUNK % (I::SUM_COLS < CHUNK ? I::SUM_COLS : CHUNK) == 0, "a lane has a chunk's keys of a row in a row");
};

/// The key, in a tile, of a lane's score number `at`: runs of neighbours that are one chunk of the left operand; for `mma.sync`, whose
/// operand has the keys as the scores have them, in order.
template <typename I>
GRAPHC_DEVICE constexpr int key_of_score(int group, int at) {
    if constexpr (I::SYNC) return at / I::SUM_COLS * I::COLS + group * I::SUM_COLS + at % I::SUM_COLS;
    constexpr int CHUNK = 16 / (int)sizeof(typename I::Element);
    return at / CHUNK * (CHUNK * I::COL_GROUPS) + group * CHUNK + at % CHUNK;
}

/// The column of the values that a lane's output number `at` of a run is; runs are `FUSED` fragments, and `WIDTH` neighbours a
/// lane's own.
template <typename I, int WIDTH>
struct OutColumns {
    static constexpr int FUSED = WIDTH <= I::SUM_COLS ? 1 : WIDTH / I::SUM_COLS, RUN = FUSED * I::COLS;
    static GRAPHC_DEVICE constexpr int column(int fused, int group, int place) {
        const int at = fused * I::SUM_COLS + place;
        return at / WIDTH * (I::COL_GROUPS * WIDTH) + group * WIDTH + at % WIDTH;
    }
};

/// Multiplies all parts of a step: the left operand is a fragment for each of the lane's rows.
template <typename I, int PART = 0, typename Sums>
GRAPHC_DEVICE void multiply_step(Sums& sums, const typename I::Operand* left, const typename I::Operand& right) {
    if constexpr (I::SUM_ROWS == 1) {
        I::template multiply<PART>(sums, left[0], right);
    } else {
        I::template multiply<PART>(sums, left, right);
    }
    if constexpr (PART + 1 < I::PARTS) multiply_step<I, PART + 1>(sums, left, right);
}

/// The largest of two scores; NaN is found by the sum that follows.
GRAPHC_DEVICE float larger(float a, float b) { return ::fmaxf(a, b); }

/// Folds over the lanes that share a row of scores.
template <typename Op, typename I>
GRAPHC_DEVICE float reduce_row(float value) {
    // Neighbours share a row, or lanes that are as far apart as there are rows.
    constexpr int STRIDE = I::col_group(1) == 1 ? 1 : I::LANES / I::COL_GROUPS;
#pragma unroll
    for (int mask = STRIDE; mask < STRIDE * I::COL_GROUPS; mask *= 2) {
#if defined(GRAPHC_AMD)
        const int lane = (int)threadIdx.x % I::LANES;
        const float other = bits_as<float>(__builtin_amdgcn_ds_bpermute((lane ^ mask) << 2, bits_as<int>(value)));
#else
        const float other = bits_as<float>(shuffle_xor_word<I::LANES>(bits_as<u32>(value), mask));
#endif
        value = Op::combine(value, other);
    }
    return value;
}

struct Larger { static GRAPHC_DEVICE float combine(float a, float b) { return larger(a, b); } };

// What follows is written once for both ways to hold rows of queries in a wave ([`FlashRows`], `LaneRows`): a lane has `ROWS` rows, of
// each `OUTPUTS` outputs and some scores.

/// Makes the scores of the products of one of this lane's rows, query `q`, and the keys from `k0`. `PART`: some may be past the last key.
template <bool PART, typename Rows, int EACH, typename Score>
GRAPHC_DEVICE void score_keys(int q, int k0, int keys, float (&scores)[EACH], const Score& score) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int k = k0 + Rows::key_of(i);
        const bool inside = !PART || k < keys;
        scores[i] = inside ? score(q, k, scores[i]) : -infinity<float>();
    }
}
template <bool PART, typename Rows, int EACH, typename Score, typename Inside>
GRAPHC_DEVICE void score_keys(int q, int k0, int keys, float (&scores)[EACH], const RangedScore<Score, Inside>& score) {
    // One branch for all keys; what is covered is before the last key.
    if (score.covered) {
        score_keys<false, Rows>(q, k0, keys, scores, score.inside);
        return;
    }
    score_keys<PART, Rows>(q, k0, keys, scores, score.any);
}

constexpr float LOG2_E = 1.4426950408889634f;

/// The number that scores are compared with. While nothing is seen it is a finite one, which gives weights of zero.
GRAPHC_DEVICE float compared_with(float most) { return most == -infinity<float>() ? 0.0f : most; }

/// `e^(score - most)`. The difference is multiplied by the logarithm, not each of them: a score that a mask hides by a
/// very negative number has a product that is infinite, or rounded to more than the range of weights.
GRAPHC_DEVICE float weight_of(float score, float most) { return math::hardware_exp2((score - most) * LOG2_E); }

/// The weights of a row's keys: the largest score, about, and the sum of `e^(score - largest)`.
struct RowWeights { float largest, total; };

/// Turns the scores of one of this lane's rows, query `q`, into weights, and what is summed so far to the new maximum. The wave's keys
/// begin at `k0`.
template <bool PART, typename Rows, int EACH, typename Score>
GRAPHC_DEVICE void weigh(Rows& rows, int r, int q, int k0, int keys, float (&scores)[EACH], const Score& score) {
    score_keys<PART, Rows>(q, k0, keys, scores, score);
    float most = -infinity<float>();
#pragma unroll
    for (int i = 0; i < EACH; ++i) most = larger(most, scores[i]);
    most = Rows::template fold<Larger>(most);
    // The reference moves only when weights would grow beyond 2^8, which a narrow type holds as exactly as 1.
    most = most > rows.largest[r] + 5.5f ? most : rows.largest[r];
    const float reference = compared_with(most), scale = weight_of(rows.largest[r], reference);
    rows.largest[r] = most;
    // As `weight_of`, in loops of their own: some targets subtract and multiply two neighbours at once.
#pragma unroll
    for (int i = 0; i < EACH; ++i) scores[i] -= reference;
#pragma unroll
    for (int i = 0; i < EACH; ++i) scores[i] *= LOG2_E;
    float added = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        scores[i] = math::hardware_exp2(scores[i]);
        added += scores[i];
    }
    rows.sum[r] = math::multiply_add(rows.sum[r], scale, added);
    if (any_lane(scale != 1.0f)) {
#pragma unroll
        for (int i = 0; i < Rows::OUTPUTS; ++i) rows.set_output(r, i, rows.output(r, i) * scale);
    }
}

/// Turns the products of one of this lane's rows and the keys from `k0` into weights that are their scores; past the last key
/// they are 0.
template <bool PART, typename Rows, int EACH, typename Score>
GRAPHC_DEVICE void weigh_by_scores(int q, int k0, int keys, float (&scores)[EACH], const Score& score) {
    score_keys<PART, Rows>(q, k0, keys, scores, score);
    if constexpr (PART) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) scores[i] = k0 + Rows::key_of(i) < keys ? scores[i] : 0.0f;
    }
}

/// Brings the parts of waves that share queries together in the first of them, by halves: in each turn the second half hands its parts over
/// to the first. Who adds what is fixed, so that the sum is the same in every run.
template <typename Rows>
GRAPHC_DEVICE void merge_waves(Rows& rows) {
    using F = typename Rows::Tile;
    constexpr int ROWS = Rows::ROWS, OUTPUTS = Rows::OUTPUTS, FLOATS = floats_handed_over(ROWS, OUTPUTS);
    float* all = (float*)rows.lds;
    const int slice = Rows::slice(), group = wave_number<F::LANES>() / F::SPLIT;
    // Neighbouring lanes' numbers are neighbours.
    const auto at = [&](int place, int number) {
        return ((group * (F::SPLIT / 2) + place) * FLOATS + number) * F::LANES + Rows::lane();
    };
#pragma unroll
    for (int half = F::SPLIT / 2; half > 0; half /= 2) {
        __syncthreads();  // the last tile has been read, or what was handed over before
        if (slice >= half && slice < 2 * half) {
            const int place = slice - half;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if constexpr (!F::CHAINED) {
                    all[at(place, r)] = rows.largest[r];
                    all[at(place, ROWS + r)] = rows.sum[r];
                }
#pragma unroll
                for (int i = 0; i < OUTPUTS; ++i) all[at(place, 2 * ROWS + r * OUTPUTS + i)] = rows.output(r, i);
            }
        }
        __syncthreads();
        if (slice < half) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                float own = 1.0f, scale = 1.0f;
                if constexpr (!F::CHAINED) {
                    const float theirs = all[at(slice, r)], most = larger(rows.largest[r], theirs);
                    const float reference = compared_with(most);
                    own = weight_of(rows.largest[r], reference);
                    scale = weight_of(theirs, reference);
                    rows.largest[r] = most;
                    rows.sum[r] = math::multiply_add(rows.sum[r], own, all[at(slice, ROWS + r)] * scale);
                }
#pragma unroll
                for (int i = 0; i < OUTPUTS; ++i) {
                    const float from = all[at(slice, 2 * ROWS + r * OUTPUTS + i)];
                    rows.set_output(r, i, math::multiply_add(rows.output(r, i), own, from * scale));
                }
            }
        }
    }
}

/// Keys of which a tile's first is a multiple: what is read at once along the keys is aligned.
constexpr int KEY_ALIGNMENT = 16;

/// Computes a block of queries, in tiles of keys that go through LDS. Tiles that none of its queries sees are left out.
template <typename Rows, typename Range, typename Query, typename Score, typename Epilogue>
GRAPHC_DEVICE void attend_rows(Rows& rows, int block, int queries, int keys, const Range& range, const Query& query, const Score& score,
                               const Epilogue& epilogue) {
    using F = typename Rows::Tile;
    const int first = block * F::QUERIES, row0 = first + wave_number<F::LANES>() / F::SPLIT * F::ROWS;
    const SeenKeys<int> seen = range.template of<F::QUERIES, F::LANES>(first, queries, keys);
    const int end = seen.end;
    int k0 = seen.begin / KEY_ALIGNMENT * KEY_ALIGNMENT;
    if constexpr (Rows::TURNS) {
        // What is copied past the registers is under way while the queries come.
        __syncthreads();  // a block before this one has been read
        if (end > seen.begin) rows.fetch(k0, keys);
    }
    rows.start(query, row0, queries);
    if (end > seen.begin) {
        if constexpr (!Rows::TURNS) {
            rows.fetch(k0, keys);
            __syncthreads();  // a block before this one has been read
        }
        // Each turn has the next tile on its way from memory. Turns whose number is known are not unrolled: that many tiles on
        // their way leave no registers.
#pragma unroll 1
        for (; k0 + F::TILE < end; k0 += F::TILE) {
            rows.write();
            lds_barrier();
            rows.fetch(k0 + F::TILE, keys);
            rows.template tile<false>(row0, queries, k0, keys, range.scored(score, seen.covers(k0, F::TILE)));
            if (!Rows::TURNS) lds_barrier();
        }
        rows.write();
        lds_barrier();
        // The last tile is where the range ends. Its scores are made in one way: two of them, of keys that may be past the
        // last, spill.
        rows.template tile<true>(row0, queries, k0, keys, range.scored(score, false));
    }
    if constexpr (F::SPLIT > 1) merge_waves(rows);
    if (Rows::slice() == 0) rows.finish(row0, queries, keys, epilogue);
}

/// Weights as a chunk of the element type.
template <typename Element, int N>
GRAPHC_DEVICE Chunk chunk_of(const float (&weights)[N]) {
    static_assert(N * (int)sizeof(Element) == 16, "a chunk has 16 bytes");
    Element elements[N];
#pragma unroll
    for (int i = 0; i < N; ++i) elements[i] = cast<Element>(weights[i]);
    Chunk chunk;
    copy_bytes<16>(&chunk, elements);
    return chunk;
}

/// The left operand of a step over the keys from this lane's chunks of weights.
template <typename I>
GRAPHC_DEVICE typename I::Operand weights_operand(Chunk own) {
    typename I::Operand operand;
    if constexpr (I::CHUNKS == 1) {
        operand.chunks[0] = own;
    } else {
        static_assert(I::CHUNKS == 2 && I::COL_GROUPS == 2, "both halves of the wave give all keys");
#if defined(GRAPHC_AMD) && !defined(__GFX9__)
        const bool upper = (threadIdx.x & 16) != 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const u32 mine = own[w];
            const u32 other = (u32)__builtin_amdgcn_permlanex16((int)mine, (int)mine, 0x76543210, 0xFEDCBA98, false, false);
            operand.chunks[0][w] = upper ? other : mine;
            operand.chunks[1][w] = upper ? mine : other;
        }
#endif
    }
    return operand;
}

/// What a wave has of its queries: weights and outputs. `WIDTH` neighbouring outputs leave at once.
template <typename F, int WIDTH>
struct MatrixRows {
    using I = typename F::Instruction;
    /// Neighbours that a lane has: pairs at least with `mma.sync`, whose fragments may have their columns in order.
    static constexpr int PLACED = I::SYNC && WIDTH < 2 ? 2 : WIDTH;
    using Out = OutColumns<I, PLACED>;
    using Tile = F;
    static constexpr int ROWS = F::FRAGMENTS * I::SUM_ROWS, SUMS = I::SUM_COLS, EACH = F::SCORES * SUMS, OUTPUTS = F::OUTS * SUMS;
    static_assert(F::OUTS % Out::FUSED == 0, "the width of the stores needs more columns");

    typename I::Sums out[F::FRAGMENTS][F::OUTS];
    /// Of each of this lane's rows, unless products are chained: what weights are relative to, about the largest score so
    /// far of all its lanes, and the sum of this lane's weights.
    float largest[ROWS], sum[ROWS];

    static GRAPHC_DEVICE int lane() { return (int)threadIdx.x % I::LANES; }
    /// This wave's part of a tile of keys.
    static GRAPHC_DEVICE int slice() { return F::SPLIT == 1 ? 0 : wave_number<I::LANES>() % F::SPLIT; }
    /// The query, from the wave's first, of one of this lane's rows.
    static GRAPHC_DEVICE int query_of(int r) { return r / I::SUM_ROWS * I::ROWS + I::sum_row(lane(), r % I::SUM_ROWS); }

    /// Starts with nothing seen.
    GRAPHC_DEVICE void clear() {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            largest[r] = -infinity<float>();
            sum[r] = 0.0f;
        }
#pragma unroll
        for (int f = 0; f < F::FRAGMENTS; ++f) {
#pragma unroll
            for (int i = 0; i < F::OUTS; ++i) set_zero(out[f][i]);
        }
    }
    static GRAPHC_DEVICE void set_zero(typename I::Sums& sums) {
#pragma unroll
        for (int v = 0; v < I::SUM_ROWS * SUMS; ++v) sums[v] = 0;
    }

    /// The scores of one of this lane's rows in fragments of sums.
    static GRAPHC_DEVICE void take(float (&scores)[ROWS][EACH], int f, int t, const typename I::Sums& dots) {
#pragma unroll
        for (int v = 0; v < I::SUM_ROWS * SUMS; ++v) scores[f * I::SUM_ROWS + v / SUMS][t * SUMS + v % SUMS] = dots[v];
    }

    /// Turns scores into weights. `PART`: the last keys of the tile are beyond the end.
    template <bool PART, typename Score>
    GRAPHC_DEVICE void weigh_all(float (&scores)[ROWS][EACH], int row0, int queries, int k0, int keys, const Score& score) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            // Rows past the last are computed as the last: what the score reads is there.
            const int q = row0 + query_of(r), row = q < queries ? q : queries - 1, first = k0 + slice() * F::KEYS;
            if constexpr (F::CHAINED) {
                weigh_by_scores<PART, MatrixRows>(row, first, keys, scores[r], score);
            } else {
                weigh<PART>(*this, r, row, first, keys, scores[r], score);
            }
        }
    }

    /// Output number `i` of one of this lane's rows.
    GRAPHC_DEVICE float output(int r, int i) const { return out[r / I::SUM_ROWS][i / SUMS][r % I::SUM_ROWS * SUMS + i % SUMS]; }
    GRAPHC_DEVICE void set_output(int r, int i, float value) {
        out[r / I::SUM_ROWS][i / SUMS][r % I::SUM_ROWS * SUMS + i % SUMS] = value;
    }
    /// The key, in this wave's part of a tile, of this lane's score number `i`.
    static GRAPHC_DEVICE int key_of(int i) { return key_of_score<I>(I::col_group(lane()), i); }
    template <typename Op>
    static GRAPHC_DEVICE float fold(float value) { return reduce_row<Op, I>(value); }

    /// Hands every `WIDTH` neighbouring outputs of this lane's rows to the epilogue, with the row's weights.
    template <typename Epilogue>
    GRAPHC_DEVICE void finish(int row0, int queries, int keys, const Epilogue& epilogue) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int q = row0 + query_of(r);
            float scale = 1.0f;
            RowWeights weights{};
            if constexpr (!F::CHAINED) {
                const float total = reduce_row<Sum, I>(sum[r]);
                scale = keys > 0 ? 1.0f / total : 0.0f;
                weights = {largest[r], total};
            }
            if (q < queries) {
#pragma unroll
                for (int run = 0; run < F::OUTS / Out::FUSED; ++run) {
#pragma unroll
                    for (int at = 0; at < Out::FUSED * SUMS; at += WIDTH) {
                        const int place = at / PLACED * (I::COL_GROUPS * PLACED) + I::col_group(lane()) * PLACED + at % PLACED;
                        const int col = run * Out::RUN + place;
                        Pack<float, WIDTH> pack;
#pragma unroll
                        for (int w = 0; w < WIDTH; ++w) pack[w] = output(r, run * Out::FUSED * SUMS + at + w) * scale;
                        if (col + WIDTH <= F::DV) epilogue(q, col, pack, weights);
                    }
                }
            }
        }
    }
};

/// A wave's queries, with tiles that go through registers to LDS.
template <typename F, int WIDTH, typename Query, typename Key, typename Value>
struct FlashRows : MatrixRows<F, WIDTH> {
    using Base = MatrixRows<F, WIDTH>;
    using I = typename F::Instruction;
    using Operand = typename I::Operand;
    using Out = typename Base::Out;
    using KeyRows = LdsRows<F::DEPTH * F::SIZE>;
    using ValueRows = LdsRows<F::TILE * F::SIZE>;
    /// Tiles are written over the last.
    static constexpr bool TURNS = false;

    const Key& key;
    const Value& value;
    u8* lds;
    Fetcher<Key, F::TILE, F::DEPTH, F::THREADS> keys_fetch;
    Fetcher<Value, F::COLS, F::TILE, F::THREADS> values_fetch;
    /// A lane keeps its own half of a query, and gets the other from its partner for each product.
    static constexpr bool HALVED = F::HALVED && I::CHUNKS == 2;
    static constexpr int HELD_CHUNKS = HALVED ? 1 : I::CHUNKS;
    Chunk query[F::STEPS][Base::ROWS][HELD_CHUNKS];
    int keys_at[F::SCORES], values_at[Out::FUSED];

    GRAPHC_DEVICE FlashRows(const Key& key, const Value& value, u8* lds) : key(key), value(value), lds(lds) {}

    /// Starts with the queries from `row0`.
    GRAPHC_DEVICE void start(const Query& from, int row0, int rows) {
#pragma unroll
        for (int r = 0; r < Base::ROWS; ++r) {
            const int row = row0 + Base::query_of(r), last = row < rows ? row : rows - 1;
#pragma unroll
            for (int step = 0; step < F::STEPS; ++step) {
#pragma unroll
                for (int c = 0; c < HELD_CHUNKS; ++c) {
                    const int chunk = HALVED ? (Base::lane() / 16) % 2 : c;
                    const int k = ((step * I::CHUNKS + chunk) * I::K_GROUPS + I::k_group(Base::lane())) * F::CHUNK;
                    typename F::Element elements[F::CHUNK];
#pragma unroll
                    for (int j = 0; j < F::CHUNK; j += Query::WIDTH) {
                        const auto read = from.read_before(last, k + j, F::D);
                        copy_bytes<Query::WIDTH * F::SIZE>(elements + j, &read);
                    }
                    copy_bytes<16>(&query[step][r][c], elements);
                }
            }
        }
        this->clear();
        const int column = I::rhs_col(Base::lane()), group = I::k_group(Base::lane());
#pragma unroll
        for (int t = 0; t < F::SCORES; ++t) {
            const int at = key_of_score<I>(I::group_of(column), t * Base::SUMS + I::place_of(column));
            keys_at[t] = KeyRows::address(Base::slice() * F::KEYS + at, group);
        }
#pragma unroll
        for (int f = 0; f < Out::FUSED; ++f) {
            const int at = Out::column(f, I::group_of(column), I::place_of(column));
            values_at[f] = F::KEY_BYTES + ValueRows::address(at, Base::slice() * (F::KEYS / F::CHUNK) + group);
        }
    }

    /// The left operand of a step of a row.
    GRAPHC_DEVICE Operand query_operand(int step, int r) const {
        Operand operand;
        if constexpr (HALVED) {
            Chunk own = query[step][r][0];
#if defined(GRAPHC_AMD)
            // The compiler must not make it once for all tiles: it is not kept because there is no room for it.
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                u32 word = own[w];
                asm volatile("" : "+v"(word));
                own[w] = word;
            }
#endif
            operand = weights_operand<I>(own);
        } else {
#pragma unroll
            for (int c = 0; c < I::CHUNKS; ++c) operand.chunks[c] = query[step][r][c];
        }
        return operand;
    }

    GRAPHC_DEVICE void fetch(int k0, int keys) {
        keys_fetch.template read<(F::D != F::DEPTH)>(key, k0, keys, 0, F::D);
        values_fetch.template read<true>(value, 0, F::DV, k0, keys);
    }

    GRAPHC_DEVICE void write() {
        keys_fetch.write(lds);
        values_fetch.write(lds + F::KEY_BYTES);
    }

    /// One tile of keys, which is in LDS. `PART`: the last keys of the tile are beyond the end.
    template <bool PART, typename Score>
    GRAPHC_DEVICE void tile(int row0, int queries, int k0, int keys, const Score& score) {
        float scores[Base::ROWS][Base::EACH];
#pragma unroll
        for (int t = 0; t < F::SCORES; ++t) {
            typename I::Sums dots[F::FRAGMENTS];
#pragma unroll
            for (int f = 0; f < F::FRAGMENTS; ++f) Base::set_zero(dots[f]);
#pragma unroll
            for (int step = 0; step < F::STEPS; ++step) {
                Operand right;
#pragma unroll
                for (int c = 0; c < I::CHUNKS; ++c) {
                    right.chunks[c] = *(const Chunk*)(lds + KeyRows::moved(keys_at[t], 0, (step * I::CHUNKS + c) * I::K_GROUPS));
                }
#pragma unroll
                for (int f = 0; f < F::FRAGMENTS; ++f) {
                    Operand left[I::SUM_ROWS];
#pragma unroll
                    for (int r = 0; r < I::SUM_ROWS; ++r) left[r] = query_operand(step, f * I::SUM_ROWS + r);
                    multiply_step<I>(dots[f], left, right);
                }
            }
#pragma unroll
            for (int f = 0; f < F::FRAGMENTS; ++f) Base::take(scores, f, t, dots[f]);
        }
        this->template weigh_all<PART>(scores, row0, queries, k0, keys, score);
#pragma unroll
        for (int step = 0; step < F::KEY_STEPS; ++step) {
            // A lane's scores of a step are a chunk a row.
            Operand left[Base::ROWS];
#pragma unroll
            for (int r = 0; r < Base::ROWS; ++r) {
                float weights[F::CHUNK];
#pragma unroll
                for (int i = 0; i < F::CHUNK; ++i) weights[i] = scores[r][step * F::CHUNK + i];
                left[r] = weights_operand<I>(chunk_of<typename F::Element>(weights));
            }
#pragma unroll
            for (int o = 0; o < F::OUTS; ++o) {
                Operand right;
                const int row = o / Out::FUSED * Out::RUN;
#pragma unroll
                for (int c = 0; c < I::CHUNKS; ++c) {
                    const int chunk = (step * I::CHUNKS + c) * I::K_GROUPS;
                    right.chunks[c] = *(const Chunk*)(lds + ValueRows::moved(values_at[o % Out::FUSED], row, chunk));
                }
#pragma unroll
                for (int f = 0; f < F::FRAGMENTS; ++f) multiply_step<I>(this->out[f][o], &left[f * I::SUM_ROWS], right);
            }
        }
    }
};

#if defined(GRAPHC_CUDA)
/// A wave's queries, with tiles that are copied to LDS past the registers, and `ldmatrix` to read them. Values stay as they lie in memory
/// and are turned on the way out of LDS; what cannot be copied goes through registers.
template <typename F, int WIDTH, typename Query, typename Key, typename Value>
struct AsyncFlashRows : MatrixRows<F, WIDTH> {
    using Base = MatrixRows<F, WIDTH>;
    using I = typename F::Instruction;
    using Out = typename Base::Out;
    using QueryFetch = AsyncFetcher<Query, F::QUERIES, F::DEPTH, F::THREADS, false>;
    using KeyFetch = AsyncFetcher<Key, F::TILE, F::DEPTH, F::THREADS, false>;
    using ValueFetch = AsyncFetcher<Value, F::VALUE_COLS, F::TILE, F::THREADS>;
    using KeyRows = LdsRows<F::DEPTH * F::SIZE>;
    using ValueRows = typename ValueFetch::Rows;
    /// Tiles are written in turns to two buffers.
    static constexpr bool TURNS = true;
    /// Pairs of fragments of a run; a pair of runs of one fragment each is a run for this purpose.
    static constexpr int PAIRS = Out::FUSED > 2 ? Out::FUSED / 2 : 1;
    static_assert(F::OUTS % 2 == 0 && F::SCORES % 2 == 0, "fragments of the right operands come in pairs");

    const Key& key;
    const Value& value;
    u8* lds;
    u32 shared;
    KeyFetch keys_fetch;
    ValueFetch values_fetch;
    /// The queries' fragments, unless they stay in LDS.
    static constexpr int HELD = F::QUERIES_STAY ? 1 : F::STEPS;
    u32 query[HELD][F::FRAGMENTS][4];
    /// Where this lane's first matrices are, in the queries and in a tile.
    int query_at, keys_at, values_at[PAIRS];
    /// Where the tile is that is multiplied, and the one that is filled.
    int at_hand = 0, filled = 0;

    GRAPHC_DEVICE AsyncFlashRows(const Key& key, const Value& value, u8* lds) : key(key), value(value), lds(lds), shared(shared_address(lds)) {
        const int lane = Base::lane(), eight = lane % 8, second = lane / 8 % 2, third = lane / 16, first = Base::slice() * F::KEYS;
        query_at = KeyRows::address(wave_number<I::LANES>() / F::SPLIT * F::ROWS + second * 8 + eight, third);
        keys_at = KeyRows::address(first + third * 8 + eight, second);
#pragma unroll
        for (int p = 0; p < PAIRS; ++p) {
            const int fragment = p * 2 + third;
            if constexpr (ValueFetch::TURNED) {
                values_at[p] = F::KEY_BYTES + ValueRows::address(first + second * 8 + eight, fragment);
            } else {
                const int fused = fragment % Out::FUSED, run = fragment / Out::FUSED;
                const int column = run * Out::RUN + Out::column(fused, I::group_of(eight), I::place_of(eight));
                values_at[p] = F::KEY_BYTES + ValueRows::address(column, first / F::CHUNK + second);
            }
        }
    }

    /// Starts with the queries from `row0`, after the first tile was asked for.
    GRAPHC_DEVICE void start(const Query& from, int row0, int rows) {
        this->clear();
        QueryFetch fetch;
        const int first = row0 - wave_number<I::LANES>() / F::SPLIT * F::ROWS;
        if constexpr (QueryFetch::COPIED) {
            fetch.template copy<(F::D != F::DEPTH), 1>(0, from, first, rows, 0, F::D, shared + F::QUERIES_AT);
        } else {
            fetch.registers.template read<(F::D != F::DEPTH)>(from, first, rows, 0, F::D);
            fetch.registers.write(lds + F::QUERIES_AT);
        }
        end_copy_group();
        if constexpr (!F::QUERIES_STAY) {
            wait_copy_groups<0>();
            __syncthreads();
#pragma unroll
            for (int step = 0; step < F::STEPS; ++step) load_queries(step, query[step]);
        }
    }
    GRAPHC_DEVICE void load_queries(int step, u32 (&to)[F::FRAGMENTS][4]) {
#pragma unroll
        for (int f = 0; f < F::FRAGMENTS; ++f) {
            const int at = F::QUERIES_AT + KeyRows::moved(query_at, f * I::ROWS, step * 2);
            load_matrices<false>(shared + at, to[f][0], to[f][1], to[f][2], to[f][3]);
        }
    }

    /// Starts to bring the tile from `k0` to the buffer that is free.
    GRAPHC_DEVICE void fetch(int k0, int keys) {
        const u32 to = shared + filled;
        if constexpr (KeyFetch::COPIED) keys_fetch.template copy<(F::D != F::DEPTH), 1>(0, key, k0, keys, 0, F::D, to);
        else keys_fetch.registers.template read<(F::D != F::DEPTH)>(key, k0, keys, 0, F::D);
        if constexpr (ValueFetch::COPIED) values_fetch.template copy<true, 1>(0, value, 0, F::DV, k0, keys, to + F::KEY_BYTES);
        else values_fetch.registers.template read<true>(value, 0, F::DV, k0, keys);
        end_copy_group();
    }

    /// Waits for the tile that was fetched, which is then the one at hand.
    GRAPHC_DEVICE void write() {
        if constexpr (!KeyFetch::COPIED) keys_fetch.registers.write(lds + filled);
        if constexpr (!ValueFetch::COPIED) values_fetch.registers.write(lds + filled + F::KEY_BYTES);
        wait_copy_groups<0>();
        at_hand = filled;
        filled = F::STAGE_BYTES - filled;
    }

    /// One tile of keys, which is in LDS. `PART`: the last keys of the tile are beyond the end.
    template <bool PART, typename Score>
    GRAPHC_DEVICE void tile(int row0, int queries, int k0, int keys, const Score& score) {
        const u32 from = shared + at_hand;
        typename I::Sums dots[F::FRAGMENTS][F::SCORES];
#pragma unroll
        for (int f = 0; f < F::FRAGMENTS; ++f) {
#pragma unroll
            for (int t = 0; t < F::SCORES; ++t) Base::set_zero(dots[f][t]);
        }
#pragma unroll
        for (int step = 0; step < F::STEPS; ++step) {
            u32(&left)[F::FRAGMENTS][4] = query[step % HELD];
            if constexpr (F::QUERIES_STAY) load_queries(step, left);
#pragma unroll
            for (int t = 0; t < F::SCORES; t += 2) {
                u32 right[2][2];
                load_matrices<false>(from + KeyRows::moved(keys_at, t * I::COLS, step * 2), right[0][0], right[0][1], right[1][0], right[1][1]);
#pragma unroll
                for (int f = 0; f < F::FRAGMENTS; ++f) {
                    I::multiply(dots[f][t], left[f], right[0]);
                    I::multiply(dots[f][t + 1], left[f], right[1]);
                }
            }
        }
        float scores[Base::ROWS][Base::EACH];
#pragma unroll
        for (int f = 0; f < F::FRAGMENTS; ++f) {
#pragma unroll
            for (int t = 0; t < F::SCORES; ++t) Base::take(scores, f, t, dots[f][t]);
        }
        this->template weigh_all<PART>(scores, row0, queries, k0, keys, score);
#pragma unroll
        for (int step = 0; step < F::KEY_STEPS; ++step) {
            // Of each row the scores of two fragments of keys, in pairs.
            u32 left[F::FRAGMENTS][4];
#pragma unroll
            for (int f = 0; f < F::FRAGMENTS; ++f) {
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    const float* pair = &scores[f * 2 + w % 2][(step * 2 + w / 2) * 2];
                    const typename F::Element both[2] = {cast<typename F::Element>(pair[0]), cast<typename F::Element>(pair[1])};
                    copy_bytes<4>(&left[f][w], both);
                }
            }
#pragma unroll
            for (int o = 0; o < F::OUTS; o += 2) {
                constexpr int TOGETHER = PAIRS * 2;
                const int first = values_at[o % TOGETHER / 2], column = o / TOGETHER * TOGETHER * I::COLS;
                const int at = ValueFetch::TURNED ? ValueRows::moved(first, step * 16, column / 8) : ValueRows::moved(first, column, step * 2);
                u32 right[2][2];
                load_matrices<ValueFetch::TURNED>(from + at, right[0][0], right[0][1], right[1][0], right[1][1]);
#pragma unroll
                for (int f = 0; f < F::FRAGMENTS; ++f) {
                    I::multiply(this->out[f][o], left[f], right[0]);
                    I::multiply(this->out[f][o + 1], left[f], right[1]);
                }
            }
        }
    }

    template <typename Epilogue>
    GRAPHC_DEVICE void finish(int row0, int queries, int keys, const Epilogue& epilogue) {
        if constexpr (ValueFetch::TURNED && Out::FUSED > 1) {
#pragma unroll
            for (int f = 0; f < F::FRAGMENTS; ++f) {
#pragma unroll
                for (int run = 0; run < F::OUTS; run += Out::FUSED) gather_columns<Out::FUSED>(&this->out[f][run]);
            }
        }
        Base::finish(row0, queries, keys, epilogue);
    }
};
#endif

/// Computes a block of queries, as [`attend`] does: `out(q, e) = Σ_k softmax_k(score(q, k, Σ_d query(q, d) · key(k, d)))
/// · value(e, k)`, without the softmax where products are chained, each `WIDTH` neighbours handed to
/// `epilogue(q, e, Pack<float, WIDTH>, RowWeights)`; `WIDTH` divides the width of values.
/// Keys that the range leaves out are known to be hidden.
template <typename F, int WIDTH, typename Range, typename Query, typename Key, typename Value, typename Score, typename Epilogue>
GRAPHC_DEVICE void flash(int block, int queries, int keys, const Range& range, const Query& query, const Key& key, const Value& value,
                         const Score& score, const Epilogue& epilogue) {
#if defined(GRAPHC_CUDA)
    if constexpr (F::Instruction::SYNC) {
        AsyncFlashRows<F, WIDTH, Query, Key, Value> rows(key, value, lds_of<F>());
        attend_rows(rows, block, queries, keys, range, query, score, epilogue);
        return;
    }
#endif
    if constexpr (!F::Instruction::SYNC) {
        alignas(128) __shared__ u8 lds[F::LDS_BYTES];
        FlashRows<F, WIDTH, Query, Key, Value> rows(key, value, lds);
        attend_rows(rows, block, queries, keys, range, query, score, epilogue);
    }
}

}  // namespace graphc
