// Products of one row by weights of four bits, at the rate at which memory brings them: its share of a launch must
// never wait for lanes.
//
// A workgroup stays on its compute unit and takes tile after tile of columns. Some of its waves do nothing but copy: a
// chunk of each column's weights is one asynchronous copy to LDS, past lanes and registers, and some chunks are under
// way at any time, over the ends of tiles too. They begin before the launch before is done, which lets them in as soon
// as it can, so that memory is busy between launches: behind workgroups of its kind, beside which a unit has room for one
// more, before they leave it. The lanes of a wave start their copies one after the other, which
// takes longer than fast memory does: of 14336 x 4096 weights one wave brings 2.7 TB/s and two 3.7 (measured on an H200).
// Scales and zero points are many small copies, which would hold the large ones back: they have a wave of their own.
//
// The other waves multiply integers. An instruction has room for eight rows, and there is one: it goes in as three
// digits of base 256, which are rows of their own. So a word of eight weights takes three instructions to become an
// operand, where halves take ten. Zero points are taken off the integer sums, so that they cost no digits.
#pragma once
#include "graphc_gemm_async.hip.h"
#include "graphc_gemv.hip.h"
#include "graphc_mma.hip.h"

#if defined(GRAPHC_CUDA)

namespace graphc {

/// The sizes of such a product: `WAVES` waves multiply, each a step of a chunk, `COPIERS` copy weights, each as many of
/// its columns, and one copies scales and zero points. LDS has room for `STAGES` chunks of `COLS` columns. Scales (and zero
/// points) of `PACK` steps of a column are neighbours in memory, and come in one access. `WORKGROUPS` share out the
/// columns.
///
/// `EARLY`: weights, scales and zero points are constants, which may be read before the launch before is done.
template <typename Instruction_, int COLS_, int WAVES_, int STAGES_, int PACK_, int WORKGROUPS_, int COPIERS_,
          bool EARLY_ = false>
struct GemvStream {
    using Instruction = Instruction_;
    static constexpr int COLS = COLS_, WAVES = WAVES_, STAGES = STAGES_, PACK = PACK_, WORKGROUPS = WORKGROUPS_;
    static constexpr int COPIERS = COPIERS_;
    static constexpr bool EARLY = EARLY_;
    static constexpr int LANES = Instruction::LANES;
    /// Threads that multiply; the copying waves are behind them.
    static constexpr int THREADS = WAVES * LANES;
    /// Elements along k of a step, of which each of four lanes has a word of 16 bytes; and its bytes in memory.
    static constexpr int STEP = 128, STEP_BYTES = STEP / 2;
    /// Bytes of a column's weights in a chunk; neighbours' begin in the other half of the banks.
    static constexpr int PITCH = WAVES * STEP_BYTES + 64;
    /// Columns of an instruction, and how often a tile has them.
    static constexpr int BLOCK = Instruction::ROWS, BLOCKS = COLS / BLOCK;
    static_assert(BLOCKS * BLOCK == COLS && COLS <= LANES,
                  "a tile's columns are whole instructions, and a lane copies each");
    static_assert(WAVES % PACK == 0, "a chunk is whole packs of scales");
    static_assert(COLS % COPIERS == 0, "copying waves have as many columns each");
};

/// Weights of four bits whose groups along k are steps: where they, their scales and their zero points lie.
template <typename Stored, bool ZERO_, typename Address, typename Scale, typename Zero>
struct StreamedWeights {
    static constexpr bool SIGNED = IsSame<Stored, i4>::value, ZERO = ZERO_;
    /// How many times as large the integers are that are multiplied: a sign is where a byte has its own.
    static constexpr int UNIT = SIGNED ? 16 : 1;
    Address address;
    Scale scale;
    Zero zero;

    /// The weights of a word as bytes: those of the lower halves of bytes, or those of the upper.
    static GRAPHC_DEVICE u32 lower(u32 word) { return SIGNED ? word << 4 & 0xf0f0f0f0u : word & 0x0f0f0f0fu; }
    static GRAPHC_DEVICE u32 upper(u32 word) { return SIGNED ? word & 0xf0f0f0f0u : word >> 4 & 0x0f0f0f0fu; }
};
template <typename Stored, typename Address, typename Scale>
GRAPHC_DEVICE StreamedWeights<Stored, false, Address, Scale, NoZero> streamed(const Address& address,
                                                                              const Scale& scale) {
    return {address, scale, NoZero()};
}
template <typename Stored, typename Address, typename Scale, typename Zero>
GRAPHC_DEVICE StreamedWeights<Stored, true, Address, Scale, Zero> streamed(const Address& address, const Scale& scale,
                                                                           const Zero& zero) {
    return {address, scale, zero};
}

/// Barriers in LDS, which asynchronous copies arrive at too. A phase ends when `count` have arrived and all bytes that
/// were announced.
GRAPHC_DEVICE void begin_barrier(u32 barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
GRAPHC_DEVICE void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
GRAPHC_DEVICE void arrive_and_announce(u32 barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Arrives when the copies that this lane has started with `copy_async` are done.
GRAPHC_DEVICE void arrive_after_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
/// Waits for the end of phase number `phase`, of which it need know only whether it is odd.
GRAPHC_DEVICE void wait_for_phase(u32 barrier, int phase) {
    u32 ended;
    do {
        asm volatile(
            "{\n"
            ".reg .pred ended;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
            "selp.u32 %0, 1, 0, ended;\n"
            "}"
            : "=r"(ended)
            : "r"(barrier), "r"(phase & 1)
            : "memory");
    } while (ended == 0);
}
/// Starts to copy `bytes`, a multiple of 16, between places that are aligned to 16; the barrier is told of them.
GRAPHC_DEVICE void copy_bulk(u32 to, const void* from, int bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/// Waits for the threads that multiply.
template <int THREADS>
GRAPHC_DEVICE void meet() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

GRAPHC_DEVICE Words<16> load_shared(u32 from) {
    Words<16> r;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.words[0]), "=r"(r.words[1]), "=r"(r.words[2]), "=r"(r.words[3])
                 : "r"(from)
                 : "memory");
    return r;
}

/// A row of floats as integers: 128 neighbours share a power of two, and each is three signed digits of base 256, the
/// highest first, so that it is off by at most 2^-22 of the largest of them. Floats of 11 bits that are no more than
/// 2^10 times smaller are exact.
///
/// Of neighbours with infinities, those alone count, as ones times infinity: results are infinite with their sum's
/// sign, or no number. With a number that is none, no result is a number.
///
/// `SUMMED`: sums of the digits are wanted, which zero points are taken off as often as.
template <typename Sizes, bool SUMMED>
struct RowDigits {
    static constexpr int WIDTH = 8, DIGITS = 3, LANES_OF_STEP = Sizes::STEP / WIDTH, STEP_BYTES = DIGITS * Sizes::STEP;
    /// The bits of 1.5 * 2^23: an integer from -2^22 to 2^22 that is added to it is in its lowest bits, and the other way
    /// round.
    static constexpr u32 MAGIC = 0x4b400000u;
    static constexpr float MAGIC_NUMBER = 12582912.0f;
    /// A digit with this added has no sign.
    static constexpr u32 UNSIGNED = 0x80808080u;
    u8* digits;
    /// Of each step the sums of its first, second and third digits.
    Vector<int, 4>* sums;
    /// Of each step the power of two.
    float* factors;

    GRAPHC_DEVICE RowDigits(u8* lds, int steps)
        : digits(lds), sums((Vector<int, 4>*)(lds + steps * STEP_BYTES)), factors((float*)(sums + steps)) {}

    /// Splits a group of neighbours, number `at` of its row. Lanes of a step have neighbouring groups; all lanes of a
    /// wave come here, and those with a group that `exists` write it.
    template <typename T, typename Group>
    GRAPHC_DEVICE void write(const Group& group, int at, bool exists) {
        u32 largest = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) largest = __vmaxu2(largest, group.words[i] & 0x7fff7fffu);
#pragma unroll
        for (int o = 1; o < LANES_OF_STEP; o *= 2) largest = __vmaxu2(largest, __shfl_xor_sync(~0u, largest, o));
        const u32 bits = max(largest >> 16, largest & 0xffffu);
        const float most = (float)widen(bits_as<T>((u16)bits));
        const bool infinite = bits_as<u32>(most) >= 0x7f800000u;
        // The exponent, and at least so much that the power of two is a normal float.
        const int exponent = max((int)(bits_as<u32>(most) >> 23), 22);
        const float scale = bits_as<float>((u32)(275 - exponent) << 23);
        Pack<T, WIDTH> elements;
        copy_bytes<WIDTH * (int)sizeof(T)>(&elements, &group);
        u32 integers[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            const float x = (float)widen(elements[i]);
            // Ones in every digit.
            const float one = math::abs(x) == most ? ::copysignf(65793.0f, x) : 0.0f;
            const float number = infinite ? one + MAGIC_NUMBER : math::multiply_add(x, scale, MAGIC_NUMBER);
            integers[i] = bits_as<u32>(number) - MAGIC + (UNSIGNED & 0xffffffu);
        }
        const int step = at / LANES_OF_STEP, quarter = at / 4 % 4, word = at % 4;
        u32 planes[DIGITS][2];
        // Even elements are in the lower halves of bytes of the weights, and odd ones in the upper.
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const u32 a = __byte_perm(integers[h], integers[h + 2], 0x5140);
            const u32 b = __byte_perm(integers[h + 4], integers[h + 6], 0x5140);
            const u32 c = __byte_perm(integers[h], integers[h + 2], 0x0062);
            const u32 d = __byte_perm(integers[h + 4], integers[h + 6], 0x0062);
            planes[0][h] = __byte_perm(c, d, 0x5410) ^ UNSIGNED;
            planes[1][h] = __byte_perm(a, b, 0x7632) ^ UNSIGNED;
            planes[2][h] = __byte_perm(a, b, 0x5410) ^ UNSIGNED;
        }
        int higher = 0, lowest = 0;
        if constexpr (SUMMED) {
            constexpr int ONES = 0x01010101;
            // Two sums share a word: none is above 2^14.
            const auto sum = [&](int d) { return __dp4a((int)planes[d][0], ONES, __dp4a((int)planes[d][1], ONES, 0)); };
            higher = sum(0) + (sum(1) << 16), lowest = sum(2);
#pragma unroll
            for (int o = 1; o < LANES_OF_STEP; o *= 2) {
                higher += __shfl_xor_sync(~0u, higher, o);
                lowest += __shfl_xor_sync(~0u, lowest, o);
            }
        }
        if (!exists) return;
#pragma unroll
        for (int d = 0; d < DIGITS; ++d) {
            u8* to = digits + step * STEP_BYTES + word / 2 * (STEP_BYTES / 2) + d * 64 + quarter * 16 + word % 2 * 8;
            *(Vector<u32, 2>*)to = Vector<u32, 2>{planes[d][0], planes[d][1]};
        }
        if (at % LANES_OF_STEP == 0) {
            factors[step] = infinite ? most : bits_as<float>((u32)(exponent - 21) << 23);
            if constexpr (SUMMED) {
                const int first = (int)(short)higher;
                sums[step] = Vector<int, 4>{first, (higher - first) >> 16, lowest, 0};
            }
        }
    }

    /// Operands for the words of a step: lanes of the first columns have digits, the others nothing.
    GRAPHC_DEVICE void read(u32 (&out)[8], int step) const {
        const int lane = (int)threadIdx.x % Sizes::LANES;
#pragma unroll
        for (int i = 0; i < 8; ++i) out[i] = 0;
        if (lane < 4 * DIGITS) {
            const u32 from = shared_address(digits) + step * STEP_BYTES + lane * 16;
            const Words<16> first = load_shared(from), second = load_shared(from + STEP_BYTES / 2);
#pragma unroll
            for (int i = 0; i < 4; ++i) out[i] = first.words[i], out[4 + i] = second.words[i];
        }
    }
};

template <typename Pointer> struct PointedTo;
template <typename T> struct PointedTo<const T*> { using Type = T; };

/// Chunks of weights in LDS, with their scales and zero points: `STAGES` of them, filled in turn.
template <typename Sizes, typename Rhs>
struct WeightStream {
    using Scale = typename PointedTo<decltype(((const Rhs*)nullptr)->scale(0, 0))>::Type;
    static constexpr int COLS = Sizes::COLS, CHUNK = Sizes::WAVES, PACK = Sizes::PACK, SIZE = (int)sizeof(Scale);
    static constexpr int WEIGHTS = COLS * Sizes::PITCH, SCALES = COLS * CHUNK * SIZE;
    static constexpr int ZEROS = Rhs::ZERO ? COLS * CHUNK / 2 : 0;
    static constexpr int BYTES = WEIGHTS + SCALES + ZEROS;
    static_assert(BYTES % 16 == 0, "chunks are aligned");
    u8* chunks;
    u32 full, empty;

    GRAPHC_DEVICE WeightStream(u8* lds, u32 full, u32 empty) : chunks(lds), full(full), empty(empty) {}

    /// Copies a copying wave's part of the tiles `first`, `first + by`, ...: number 0 the scales and zero points, each of
    /// the others its columns' weights.
    GRAPHC_DEVICE void fill(const Rhs& rhs, int copier, int first, int by, int tiles, int cols, int steps) const {
        const int lane = (int)threadIdx.x % Sizes::LANES;
        constexpr int EACH = COLS / Sizes::COPIERS, PACKS = CHUNK / PACK;
        int turn = 0;
        for (int tile = first; tile < tiles; tile += by) {
            const auto column = [&](int c) { return min(tile * COLS + c, cols - 1); };
            for (int step0 = 0; step0 < steps; step0 += CHUNK, ++turn) {
                const int stage = turn % Sizes::STAGES, count = min(CHUNK, steps - step0);
                const u32 full_now = full + stage * 8;
                u8* to = chunks + stage * BYTES;
                if (turn >= Sizes::STAGES) wait_for_phase(empty + stage * 8, turn / Sizes::STAGES - 1);
                if (copier > 0) {
                    if (lane == 0) arrive_and_announce(full_now, EACH * count * Sizes::STEP_BYTES);
                    __syncwarp();
                    if (lane < EACH) {
                        const int c = (copier - 1) * EACH + lane;
                        copy_bulk(shared_address(to + c * Sizes::PITCH), rhs.address(column(c), step0 * Sizes::STEP),
                                  count * Sizes::STEP_BYTES, full_now);
                    }
                    continue;
                }
#pragma unroll
                for (int p = 0; p < COLS * PACKS; p += Sizes::LANES) {
                    const int c = (p + lane) / PACKS, s = (p + lane) % PACKS * PACK;
                    if (c >= COLS || s >= count) continue;
                    const u32 scales = shared_address(to + WEIGHTS + (c * CHUNK + s) * SIZE);
                    const auto* from = (const u8*)rhs.scale(column(c), (step0 + s) * Sizes::STEP);
                    constexpr int ACCESS = PACK * SIZE < 16 ? PACK * SIZE : 16;
#pragma unroll
                    for (int b = 0; b < PACK * SIZE; b += ACCESS) copy_async<ACCESS>(scales + b, from + b, ACCESS);
                    if constexpr (Rhs::ZERO) {
                        copy_async<PACK / 2>(shared_address(to + WEIGHTS + SCALES + (c * CHUNK + s) / 2),
                                             rhs.zero(column(c), (step0 + s) * Sizes::STEP), PACK / 2);
                    }
                }
                arrive_after_copies(full_now);
            }
        }
    }

    GRAPHC_DEVICE float scale(int stage, int c, int s) const {
        return (float)widen(((const Scale*)(chunks + stage * BYTES + WEIGHTS))[c * CHUNK + s]);
    }
    /// A zero point, as much larger as the weights are.
    GRAPHC_DEVICE int zero(int stage, int c, int s) const {
        const u32 two = (chunks + stage * BYTES + WEIGHTS + SCALES)[(c * CHUNK + s) / 2];
        return (int)(signed char)(s % 2 == 0 ? Rhs::lower(two) : Rhs::upper(two));
    }
    /// The weights of a lane in a step: 32 of column `c`.
    GRAPHC_DEVICE Words<16> weights(int stage, int c, int s) const {
        const int lane = (int)threadIdx.x % Sizes::LANES;
        const int at = c * Sizes::PITCH + s * Sizes::STEP_BYTES + lane % 4 * 16;
        return load_shared(shared_address(chunks + stage * BYTES) + at);
    }
};

/// Adds a step's products to the sums of its columns. Lane `l` has columns `8 h + l / 4` of a block; of every four
/// lanes the first has what the two higher digits give, the second what the lowest gives.
template <typename Sizes, typename Rhs>
GRAPHC_DEVICE void gemv_stream_step(float (&sums)[Sizes::BLOCKS][2], const WeightStream<Sizes, Rhs>& stream,
                                    const RowDigits<Sizes, Rhs::ZERO>& row, int stage, int s, int step) {
    using Digits = RowDigits<Sizes, Rhs::ZERO>;
    const int lane = (int)threadIdx.x % Sizes::LANES;
    constexpr float LEAST = 1.0f / Rhs::UNIT;
    const float higher = lane % 4 == 0 ? 65536.0f * LEAST : lane % 4 == 1 ? LEAST : 0.0f;
    const float lower = lane % 4 == 0 ? 256.0f * LEAST : 0.0f;
    u32 factors[8];
    row.read(factors, step);
    const float power = row.factors[step];
    // The sums of the two digits that this lane has results of.
    Vector<int, 2> digits = {0, 0};
    if constexpr (Rhs::ZERO) digits = ((const Vector<int, 2>*)(row.sums + step))[lane % 2];
#pragma unroll
    for (int b = 0; b < Sizes::BLOCKS; ++b) {
        const int c = b * Sizes::BLOCK + lane / 4;
        const Words<16> first = stream.weights(stage, c, s), second = stream.weights(stage, c + 8, s);
        constexpr int MAGIC = (int)Digits::MAGIC;
        Vector<int, 4> integers = {MAGIC, MAGIC, MAGIC, MAGIC};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const u32 u = first.words[w], v = second.words[w];
            Sizes::Instruction::multiply(integers, {Rhs::lower(u), Rhs::lower(v), Rhs::upper(u), Rhs::upper(v)},
                                         {factors[2 * w], factors[2 * w + 1]});
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if constexpr (Rhs::ZERO) {
                const int zero = stream.zero(stage, c + 8 * h, s);
                integers[2 * h] -= zero * digits[0];
                integers[2 * h + 1] -= zero * digits[1];
            }
            const float of_even = bits_as<float>(integers[2 * h]) - Digits::MAGIC_NUMBER;
            const float of_odd = bits_as<float>(integers[2 * h + 1]) - Digits::MAGIC_NUMBER;
            const float sum = math::multiply_add(of_even, higher, of_odd * lower);
            sums[b][h] = math::multiply_add(sum, power * stream.scale(stage, c + 8 * h, s), sums[b][h]);
        }
    }
}

/// As `gemv`, for weights of four bits in groups of `Sizes::STEP` along k. The grid has, in x, `Sizes::WORKGROUPS`
/// workgroups for each row, of `COPIERS + 1` waves more than multiply. The launch's LDS holds the chunks and the row.
template <typename Sizes, int WIDTH, typename Lhs, typename Rhs, typename Epilogue, typename Statistic = NoStatistic>
GRAPHC_DEVICE void gemv_stream(int rows, int cols, int depth, const Lhs& lhs, const Rhs& rhs, const Epilogue& epilogue,
                               const Statistic& statistic = {}) {
    using T = typename Lhs::Element;
    using Stream = WeightStream<Sizes, Rhs>;
    using Digits = RowDigits<Sizes, Rhs::ZERO>;
    constexpr int COLS = Sizes::COLS, WAVES = Sizes::WAVES, STAGES = Sizes::STAGES, THREADS = Sizes::THREADS;
    static_assert(Lhs::ALONG_K && Lhs::WIDTH == Digits::WIDTH && sizeof(T) == 2,
                  "a group of a row is a word's elements");
    static_assert(COLS % WIDTH == 0, "a tile's columns are whole packs");
    extern __shared__ __align__(128) u8 chunks[];
    __shared__ float partial[2][WAVES][COLS];
    __shared__ float of_waves[WAVES];
    alignas(8) __shared__ u64 full[STAGES], empty[STAGES];
    const int steps = depth / Sizes::STEP, tiles = (cols + COLS - 1) / COLS, together = Sizes::WORKGROUPS;
    const int row = (int)blockIdx.x / together, first = (int)blockIdx.x % together;
    if (first >= tiles) {
        // It keeps its place until the launch before has ended, so that no unit gets more workgroups of the next launch.
        wait_for_launch_before();
        return;
    }
    const int lane = (int)threadIdx.x % Sizes::LANES, wave = wave_number<Sizes::LANES>();
    const Stream stream(chunks, shared_address(full), shared_address(empty));
    if (threadIdx.x == THREADS) {
#pragma unroll
        for (int s = 0; s < STAGES; ++s) {
            begin_barrier(stream.full + s * 8, Sizes::LANES + Sizes::COPIERS);
            begin_barrier(stream.empty + s * 8, WAVES);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (wave >= WAVES) {
        if constexpr (!Sizes::EARLY) wait_for_launch_before();
        stream.fill(rhs, wave - WAVES, first, together, tiles, cols, steps);
        return;
    }
    wait_for_launch_before();
    Digits digits(chunks + STAGES * Stream::BYTES, steps);
    // Some groups are on their way at once.
    constexpr int AHEAD = 4;
    const int groups = depth / Digits::WIDTH;
    float fold = 0.0f;
    if constexpr (Statistic::EXISTS) fold = statistic.start;
    for (int from = wave * Sizes::LANES; from < groups; from += AHEAD * THREADS) {
        typename Lhs::Group held[AHEAD] = {};
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const int at = from + a * THREADS + lane;
            if (at < groups) held[a] = lhs.read(row, at * Digits::WIDTH);
        }
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const int at = from + a * THREADS + lane;
            if (at - lane >= groups) break;
            digits.template write<T>(held[a], at, at < groups);
            if constexpr (Statistic::EXISTS) {
                const int k = at * Digits::WIDTH;
                if (at < groups) fold = fold_group<T, false, Digits::WIDTH>(statistic, fold, held[a], k, depth);
            }
        }
    }
    if constexpr (Statistic::EXISTS) {
        fold = reduce_lanes<typename Statistic::Op, Sizes::LANES>(fold);
        if (lane == 0) of_waves[wave] = fold;
    }
    meet<THREADS>();
    if constexpr (Statistic::EXISTS) {
        fold = of_waves[0];
#pragma unroll
        for (int other = 1; other < WAVES; ++other) fold = Statistic::Op::combine(fold, of_waves[other]);
    }
    int turn = 0, parity = 0;
    for (int tile = first; tile < tiles; tile += together, parity ^= 1) {
        float sums[Sizes::BLOCKS][2] = {};
        for (int step0 = 0; step0 < steps; step0 += WAVES, ++turn) {
            const int stage = turn % STAGES;
            wait_for_phase(stream.full + stage * 8, turn / STAGES);
            if (step0 + wave < steps) gemv_stream_step(sums, stream, digits, stage, wave, step0 + wave);
            __syncwarp();
            if (lane == 0) arrive(stream.empty + stage * 8);
        }
#pragma unroll
        for (int b = 0; b < Sizes::BLOCKS; ++b) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float sum = sums[b][h] + __shfl_xor_sync(~0u, sums[b][h], 1);
                if (lane % 4 == 0) partial[parity][wave][b * Sizes::BLOCK + h * 8 + lane / 4] = sum;
            }
        }
        // Sums of two tiles take turns, so that one meeting a tile is enough.
        meet<THREADS>();
        const int c = lane * WIDTH, col = tile * COLS + c;
        if (wave != turn % WAVES || c >= COLS || col + WIDTH > cols) continue;
        Pack<float, WIDTH> pack;
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) {
            pack[w] = partial[parity][0][c + w];
#pragma unroll
            for (int other = 1; other < WAVES; ++other) pack[w] += partial[parity][other][c + w];
        }
        if constexpr (Statistic::EXISTS) epilogue(row, col, pack, fold);
        else epilogue(row, col, pack);
    }
}

}  // namespace graphc

#endif  // GRAPHC_CUDA
