// Attention by multiply-adds of the lanes, in one pass over the keys: for types that a target has no matrix instruction for.
//
// A few neighbouring lanes share a row of queries: each has every so manieth chunk of its width and of its outputs. A dot product is
// made in parts that are then summed over the lanes so that each lane ends with the scores of its own keys; the weights go back to
// all of them one key at a time. A chunk that is read from LDS is multiplied for all rows of a lane. All arithmetic is in f32.
#pragma once
#include "graphc_flash.hip.h"

namespace graphc {

/// The sizes: waves of a workgroup and their lanes, lanes that share a row (`GROUP`) and rows of a lane (`ROWS_EACH`), keys of a wave's
/// tile, widths of keys and of values. `SPLIT` neighbouring waves have the same queries and share out the keys.
template <int WAVES_, int LANES_, int GROUP_, int ROWS_EACH_, int KEYS_, int D_, int DV_, int SPLIT_ = 1>
struct LaneTile {
    static constexpr int WAVES = WAVES_, LANES = LANES_, GROUP = GROUP_, ROWS_EACH = ROWS_EACH_, KEYS = KEYS_, D = D_, DV = DV_;
    static constexpr int SPLIT = SPLIT_, TILE = KEYS * SPLIT, THREADS = WAVES * LANES;
    static constexpr bool CHAINED = false;
    static constexpr int ROWS = LANES / GROUP * ROWS_EACH, QUERIES = WAVES / SPLIT * ROWS;
    static_assert((GROUP & (GROUP - 1)) == 0 && GROUP <= 16, "lanes of a row exchange what they have within 16");
    static_assert((KEYS & (KEYS - 1)) == 0 && KEYS % GROUP == 0, "each lane of a row has as many keys of a tile");
    static_assert(WAVES % SPLIT == 0 && (SPLIT & (SPLIT - 1)) == 0, "the waves are whole groups that share queries");
};

/// A width as rows of LDS, and a lane's share of it.
template <typename Element, int WIDTH, int GROUP>
struct LaneWidth {
    static constexpr int SIZE = (int)sizeof(Element), CHUNK = 16 / SIZE;
    static constexpr int CHUNKS = (WIDTH + CHUNK - 1) / CHUNK, STEPS = (CHUNKS + GROUP - 1) / GROUP, EACH = STEPS * CHUNK;
    /// A power of two of chunks, two at least.
    static constexpr int ROW_CHUNKS = power_of_two_from(STEPS * GROUP < 2 ? 2 : STEPS * GROUP), DEPTH = ROW_CHUNKS * CHUNK;
    using Rows = LdsRows<ROW_CHUNKS * 16>;
};

/// The value of the lane whose number differs in the bit `MASK`.
template <int MASK>
GRAPHC_DEVICE float across(float value) {
#if defined(GRAPHC_AMD)
    const int v = bits_as<int>(value);
    if constexpr (MASK == 1) {
        return bits_as<float>(__builtin_amdgcn_update_dpp(0, v, 0xB1, 0xF, 0xF, true));  // quad_perm [1, 0, 3, 2]
    } else if constexpr (MASK == 2) {
        return bits_as<float>(__builtin_amdgcn_update_dpp(0, v, 0x4E, 0xF, 0xF, true));  // quad_perm [2, 3, 0, 1]
    } else if constexpr (MASK == 4) {
        // row_half_mirror, then quad_perm [3, 2, 1, 0]
        const int mirrored = __builtin_amdgcn_update_dpp(0, v, 0x141, 0xF, 0xF, true);
        return bits_as<float>(__builtin_amdgcn_update_dpp(0, mirrored, 0x1B, 0xF, 0xF, true));
    } else {
        static_assert(MASK == 8, "lanes of a row are within 16");
        return bits_as<float>(__builtin_amdgcn_update_dpp(0, v, 0x128, 0xF, 0xF, true));  // row_ror:8
    }
#else
    return bits_as<float>(shuffle_xor_word<32>(bits_as<u32>(value), MASK));
#endif
}

/// The value of lane number `FROM` of this lane's aligned group of `GROUP`.
template <int GROUP, int FROM>
GRAPHC_DEVICE float of_group(float value) {
    if constexpr (GROUP == 1) return value;
#if defined(GRAPHC_AMD)
    const int v = bits_as<int>(value);
    if constexpr (GROUP <= 4) {
        constexpr int UPPER = GROUP == 4 ? FROM : FROM + 2;
        constexpr int QUAD = FROM | FROM << 2 | UPPER << 4 | UPPER << 6;
        return bits_as<float>(__builtin_amdgcn_update_dpp(0, v, QUAD, 0xF, 0xF, true));
    } else {
        // A lane's number has its upper bits kept and its lower ones set.
        return bits_as<float>(__builtin_amdgcn_ds_swizzle(v, (31 & ~(GROUP - 1)) | FROM << 5));
    }
#elif defined(GRAPHC_CUDA)
    return bits_as<float>(__shfl_sync(~0u, bits_as<u32>(value), FROM, GROUP));
#else
    return bits_as<float>(shuffle_xor_word<32>(bits_as<u32>(value), ((int)threadIdx.x % GROUP) ^ FROM));
#endif
}

/// Ends a run of reads of LDS after key number `key`, of which a lane has so many numbers: the compiler would read all of a tile before
/// it multiplies, which is more than a lane's registers.
template <int NUMBERS>
GRAPHC_DEVICE void end_of_reads(int key) {
    constexpr int KEYS = NUMBERS >= 32 ? 1 : 32 / NUMBERS;
#if defined(GRAPHC_AMD)
    if ((key + 1) % KEYS == 0) __builtin_amdgcn_sched_barrier(0);
#endif
}

/// Sums over the lanes of a group: each lane has a part of `GROUP` sums, and ends with the sum of its own number in the first place.
template <int GROUP>
GRAPHC_DEVICE void scattered_sums(float (&parts)[GROUP], int number) {
    if constexpr (GROUP > 1) {
        constexpr int HALF = GROUP / 2;
        const bool upper = (number & HALF) != 0;
        float half[HALF];
#pragma unroll
        for (int i = 0; i < HALF; ++i) {
            // Both are read: a choice of the place is an array in memory to NVRTC.
            const float low = parts[i], high = parts[i + HALF];
            half[i] = (upper ? high : low) + across<HALF>(upper ? low : high);
        }
        scattered_sums<HALF>(half, number);
        parts[0] = half[0];
    }
}

/// A workgroup's queries.
template <typename F, int WIDTH, typename Query, typename Key, typename Value>
struct LaneRows {
    using Tile = F;
    using Keys = LaneWidth<typename Key::Element, F::D, F::GROUP>;
    using Values = LaneWidth<typename Value::Element, F::DV, F::GROUP>;
    static constexpr int ROWS = F::ROWS_EACH, OUTPUTS = Values::EACH, SCORES = F::KEYS / F::GROUP;
    static constexpr int KEY_BYTES = F::TILE * Keys::DEPTH * Keys::SIZE, VALUE_BYTES = F::TILE * Values::DEPTH * Values::SIZE;
    static constexpr int MERGE_BYTES = (F::SPLIT > 1 ? F::WAVES / 2 : 0) * F::LANES * floats_handed_over(ROWS, OUTPUTS) * 4;
    static constexpr int LDS_BYTES = KEY_BYTES + VALUE_BYTES > MERGE_BYTES ? KEY_BYTES + VALUE_BYTES : MERGE_BYTES;
    /// Tiles are written over the last.
    static constexpr bool TURNS = false;
    static_assert(Values::CHUNK % WIDTH == 0 && F::DV % WIDTH == 0, "stores are whole within a lane's chunk");

    const Key& key;
    const Value& value;
    u8* lds;
    Fetcher<Key, F::TILE, Keys::DEPTH, F::THREADS> keys_fetch;
    Fetcher<Value, F::TILE, Values::DEPTH, F::THREADS> values_fetch;
    float query[ROWS][Keys::EACH], out[ROWS][OUTPUTS];
    /// Of each of this lane's rows: what weights are relative to, about the largest score so far, and the sum of this lane's
    /// weights.
    float largest[ROWS], sum[ROWS];
    int keys_at, values_at;

    GRAPHC_DEVICE LaneRows(const Key& key, const Value& value, u8* lds) : key(key), value(value), lds(lds) {}

    static GRAPHC_DEVICE int lane() { return (int)threadIdx.x % F::LANES; }
    /// The lane's number among those that share its rows.
    static GRAPHC_DEVICE int number() { return (int)threadIdx.x % F::GROUP; }
    /// A row of the lane among those of the wave.
    static GRAPHC_DEVICE int row(int r) { return lane() / F::GROUP + r * (F::LANES / F::GROUP); }
    /// This wave's part of a tile of keys.
    static GRAPHC_DEVICE int slice() { return F::SPLIT == 1 ? 0 : wave_number<F::LANES>() % F::SPLIT; }

    /// Starts with the queries from `row0`.
    GRAPHC_DEVICE void start(const Query& from, int row0, int rows) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int at = row0 + row(r), last = at < rows ? at : rows - 1;
#pragma unroll
            for (int step = 0; step < Keys::STEPS; ++step) {
                const int k = (step * F::GROUP + number()) * Keys::CHUNK;
#pragma unroll
                for (int j = 0; j < Keys::CHUNK; j += Query::WIDTH) {
                    const auto read = from.read_before(last, k + j, F::D);
                    Pack<typename Query::Element, Query::WIDTH> elements;
                    copy_bytes<Query::WIDTH * (int)sizeof(typename Query::Element)>(&elements, &read);
#pragma unroll
                    for (int i = 0; i < Query::WIDTH; ++i) query[r][step * Keys::CHUNK + j + i] = cast<float>(elements[i]);
                }
            }
            largest[r] = -infinity<float>();
            sum[r] = 0.0f;
#pragma unroll
            for (int i = 0; i < OUTPUTS; ++i) out[r][i] = 0.0f;
        }
        keys_at = Keys::Rows::address(slice() * F::KEYS, number());
        values_at = KEY_BYTES + Values::Rows::address(slice() * F::KEYS, number());
    }

    GRAPHC_DEVICE void fetch(int k0, int keys) {
        keys_fetch.template read<(F::D != Keys::DEPTH)>(key, k0, keys, 0, F::D);
        values_fetch.template read<(F::DV != Values::DEPTH)>(value, k0, keys, 0, F::DV);
    }

    GRAPHC_DEVICE void write() {
        keys_fetch.write(lds);
        values_fetch.write(lds + KEY_BYTES);
    }

    /// This lane's chunk number `step` of a row of LDS.
    template <typename W, typename Element>
    GRAPHC_DEVICE Pack<Element, W::CHUNK> chunk(int at, int row, int step) const {
        const Chunk read = *(const Chunk*)(lds + W::Rows::moved(at, row, step * F::GROUP));
        Pack<Element, W::CHUNK> elements;
        copy_bytes<16>(&elements, &read);
        return elements;
    }

    /// One tile of keys, which is in LDS. `PART`: the last keys of the tile are beyond the end.
    template <bool PART, typename Score>
    GRAPHC_DEVICE void tile(int row0, int queries, int k0, int keys, const Score& score) {
        const int first = k0 + slice() * F::KEYS;
        float scores[ROWS][SCORES];
#pragma unroll
        for (int b = 0; b < SCORES; ++b) {
            float parts[ROWS][F::GROUP];
#pragma unroll
            for (int i = 0; i < F::GROUP; ++i) {
#pragma unroll
                for (int r = 0; r < ROWS; ++r) parts[r][i] = 0.0f;
#pragma unroll
                for (int step = 0; step < Keys::STEPS; ++step) {
                    const auto elements = chunk<Keys, typename Key::Element>(keys_at, b * F::GROUP + i, step);
#pragma unroll
                    for (int j = 0; j < Keys::CHUNK; ++j) {
                        const float k = cast<float>(elements[j]);
#pragma unroll
                        for (int r = 0; r < ROWS; ++r) {
                            parts[r][i] = math::multiply_add(query[r][step * Keys::CHUNK + j], k, parts[r][i]);
                        }
                    }
                }
                end_of_reads<Keys::EACH>(i);
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                scattered_sums<F::GROUP>(parts[r], number());
                scores[r][b] = parts[r][0];
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            // Rows past the last are computed as the last: what the score reads is there.
            const int q = row0 + row(r);
            weigh<PART>(*this, r, q < queries ? q : queries - 1, first, keys, scores[r], score);
        }
        mix<PART, 0>(first, keys, scores);
    }

    /// Adds the values of keys from number `I` of the tile on, times their weights.
    template <bool PART, int I>
    GRAPHC_DEVICE void mix(int first, int keys, const float (&weights)[ROWS][SCORES]) {
        // Past the last key a value is what was read in its place, and infinity times 0 is not 0.
        if (!PART || first + I < keys) {
            float weight[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) weight[r] = of_group<F::GROUP, I % F::GROUP>(weights[r][I / F::GROUP]);
#pragma unroll
            for (int step = 0; step < Values::STEPS; ++step) {
                const auto elements = chunk<Values, typename Value::Element>(values_at, I, step);
#pragma unroll
                for (int j = 0; j < Values::CHUNK; ++j) {
                    const float v = cast<float>(elements[j]);
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
                        out[r][step * Values::CHUNK + j] = math::multiply_add(weight[r], v, out[r][step * Values::CHUNK + j]);
                    }
                }
            }
        }
        end_of_reads<Values::EACH>(I);
        if constexpr (I + 1 < F::KEYS) mix<PART, I + 1>(first, keys, weights);
    }

    GRAPHC_DEVICE float output(int r, int i) const { return out[r][i]; }
    GRAPHC_DEVICE void set_output(int r, int i, float value) { out[r][i] = value; }
    /// The key, in this wave's part of a tile, of this lane's score number `i`.
    static GRAPHC_DEVICE int key_of(int i) { return i * F::GROUP + number(); }
    template <typename Op>
    static GRAPHC_DEVICE float fold(float value) { return reduce_lanes<Op, F::GROUP>(value); }

    /// Hands every `WIDTH` neighbouring outputs of this lane's rows to the epilogue, with the row's weights.
    template <typename Epilogue>
    GRAPHC_DEVICE void finish(int row0, int queries, int keys, const Epilogue& epilogue) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int q = row0 + row(r);
            const float total = fold<Sum>(sum[r]);
            const float scale = keys > 0 ? 1.0f / total : 0.0f;
            const RowWeights weights{largest[r], total};
            if (q < queries) {
#pragma unroll
                for (int i = 0; i < OUTPUTS; i += WIDTH) {
                    const int chunk = i / Values::CHUNK * F::GROUP + number(), col = chunk * Values::CHUNK + i % Values::CHUNK;
                    Pack<float, WIDTH> pack;
#pragma unroll
                    for (int w = 0; w < WIDTH; ++w) pack[w] = out[r][i + w] * scale;
                    if (col + WIDTH <= F::DV) epilogue(q, col, pack, weights);
                }
            }
        }
    }
};

/// Computes a block of queries as [`flash`] does; the operand of values has the keys as rows.
template <typename F, int WIDTH, typename Range, typename Query, typename Key, typename Value, typename Score, typename Epilogue>
GRAPHC_DEVICE void flash_by_lanes(int block, int queries, int keys, const Range& range, const Query& query, const Key& key, const Value& value,
                                  const Score& score, const Epilogue& epilogue) {
    using Rows = LaneRows<F, WIDTH, Query, Key, Value>;
    alignas(128) __shared__ u8 lds[Rows::LDS_BYTES];
    Rows rows(key, value, lds);
    attend_rows(rows, block, queries, keys, range, query, score, epilogue);
}

}  // namespace graphc
