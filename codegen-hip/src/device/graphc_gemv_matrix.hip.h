// Products of few rows by weights of four bits, with matrix instructions: a lane of the other way (graphc_gemv.hip.h) takes five
// instructions and more for each weight, which is longer than memory takes to bring it. Here it is one or two, and the rows cost nothing.
#pragma once
#include "graphc_gemv.hip.h"

#if defined(GRAPHC_CUDA)

namespace graphc {

/// The sizes of such a product. The instruction's rows are columns of the product and its columns are rows: a workgroup takes the
/// instruction's `ROWS` rows and `COLS` columns, its waves share out k, and `UNROLL` steps of each are under way at once.
///
/// `SCALED_SUMS`: all weights of a column in a step share their scale and their zero point, so that the step's sum is multiplied by it;
/// otherwise each weight is, and rounded to its type, of which the scales are then.
///
/// `EARLY`: the weights are constants, of which each wave reads its first before it waits for the launch before.
template <typename Instruction_, int COLS_, int UNROLL_, int WAVES_, bool SCALED_SUMS_, bool EARLY_ = false>
struct GemvMatrix {
    using Instruction = Instruction_;
    using Element = typename Instruction::Element;
    using Sum = typename Instruction::Sum;
    static constexpr int ROWS = Instruction::COLS, COLS = COLS_, UNROLL = UNROLL_, WAVES = WAVES_;
    static constexpr bool SCALED_SUMS = SCALED_SUMS_, EARLY = EARLY_;
    static constexpr int LANES = Instruction::LANES, THREADS = WAVES * LANES;
    /// Columns of an instruction, and how often a wave's columns have them.
    static constexpr int BLOCK = Instruction::ROWS, BLOCKS = COLS / BLOCK;
    static_assert(BLOCKS * BLOCK == COLS, "a wave's columns are whole instructions");
};

/// Two numbers in a word, and what makes them of integers of four bits: with `BASE` above it such an integer is the number `OFFSET` more.
template <typename T>
struct Halves;

#define GRAPHC_HALVES(TYPE, NAME, BASE_, OFFSET_)                                                              \
    template <>                                                                                                \
    struct Halves<TYPE> {                                                                                      \
        static constexpr u32 BASE = BASE_;                                                                     \
        static constexpr int OFFSET = OFFSET_;                                                                 \
        static GRAPHC_DEVICE u32 twice(float number) {                                                         \
            u32 result;                                                                                        \
            asm("cvt.rn." NAME ".f32 %0, %1, %1;" : "=r"(result) : "f"(number));                               \
            return result;                                                                                     \
        }                                                                                                      \
        static GRAPHC_DEVICE u32 subtract(u32 a, u32 b) {                                                      \
            u32 result;                                                                                        \
            asm("sub.rn." NAME " %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));                                \
            return result;                                                                                     \
        }                                                                                                      \
        static GRAPHC_DEVICE u32 multiply(u32 a, u32 b) {                                                      \
            u32 result;                                                                                        \
            asm("mul.rn." NAME " %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));                                \
            return result;                                                                                     \
        }                                                                                                      \
    };
GRAPHC_HALVES(f16, "f16x2", 0x64006400u, 1024)
GRAPHC_HALVES(bf16, "bf16x2", 0x43004300u, 128)
#undef GRAPHC_HALVES

/// The numbers of a word of eight weights: elements `p` and `p + 4` are pair `p`. They are exact integers, or scaled ones.
template <typename Operand, bool SCALED>
GRAPHC_DEVICE void weight_pairs(u32 (&out)[4], u32 word, u32 offset, u32 scale) {
    using Pair = Halves<typename Operand::Element>;
    constexpr u32 MASK = 0x000f000fu, BASE = Pair::BASE ^ (Packing<typename Operand::Stored>::FLIP & MASK);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
        // `(integers & MASK) ^ BASE` makes signed integers unsigned and adds the base; the compiler takes two instructions for it.
        u32 integers;
        asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(integers) : "r"(word >> (4 * p)), "r"(MASK), "r"(BASE));
        out[p] = Pair::subtract(integers, offset);
        if constexpr (SCALED) out[p] = Pair::multiply(out[p], scale);
    }
}

/// The eight elements of a row that a word of weights is multiplied by, in the same pairs.
template <typename Group, int GROUPS>
GRAPHC_DEVICE void row_pairs(u32 (&out)[4], const Group (&groups)[GROUPS], int first) {
    constexpr int EACH = 16 / (int)sizeof(groups[0].words);
    u32 words[4];
#pragma unroll
    for (int g = 0; g < EACH; ++g) copy_bytes<16 / EACH>((u8*)words + g * (16 / EACH), groups[first * EACH + g].words);
#pragma unroll
    for (int p = 0; p < 4; ++p) out[p] = __byte_perm(words[p / 2], words[p / 2 + 2], p % 2 == 0 ? 0x5410 : 0x7632);
}

/// The weights of some steps along k of a wave, and what makes numbers of them, all read before any is multiplied. Lane `l` has a group of
/// columns `8 g + l / 4`; four lanes share out a step. Past the depth the weights are zero, and have a scale of the same step.
template <typename Sizes, typename Rhs>
struct GemvWeights {
    using Pair = Halves<typename Sizes::Element>;
    static constexpr int GROUPS = 2 * Sizes::BLOCKS, UNROLL = Sizes::UNROLL, STEP = 4 * Rhs::WIDTH;
    static constexpr float OFFSET = (float)(Pair::OFFSET + Packing<typename Rhs::Stored>::BIAS);
    /// Of four lanes that have a scale in common each reads another step's: a request for the scales of eight columns takes as long as
    /// one for their weights.
    static constexpr bool EXCHANGED = Sizes::SCALED_SUMS && UNROLL > 1;
    static constexpr int READ = EXCHANGED ? 1 : UNROLL;
    Words<Rhs::BYTES> words[UNROLL][GROUPS];
    float scales[READ][GROUPS], zeros[READ][GROUPS];

    template <bool PART>
    GRAPHC_DEVICE void read(const Rhs& rhs, int col0, int cols, int k0, int depth) {
        const int lane = (int)threadIdx.x % Sizes::LANES;
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const int place = col0 + g * 8 + lane / 4, col = place < cols ? place : cols - 1;
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const int k = k0 + u * STEP + lane % 4 * Rhs::WIDTH;
                if (!PART || k < depth) words[u][g] = load_words_once<Rhs::BYTES>(rhs.address(col, k));
                else words[u][g] = Words<Rhs::BYTES>{};
            }
#pragma unroll
            for (int r = 0; r < READ; ++r) {
                const int step = k0 + (EXCHANGED ? lane % UNROLL : r) * STEP;
                const int own = Sizes::SCALED_SUMS ? step : step + lane % 4 * Rhs::WIDTH, k = PART && own >= depth ? k0 : own;
                scales[r][g] = rhs.scale(col, k);
                zeros[r][g] = rhs.zero(col, k);
            }
        }
    }

    /// The factor of a step's sums.
    GRAPHC_DEVICE float scale(int step, int g) const {
        if constexpr (EXCHANGED) return __shfl_sync(~0u, scales[0][g], ((int)threadIdx.x & 28) | step);
        else return scales[step][g];
    }
    /// What integers of a step have too much, twice.
    GRAPHC_DEVICE u32 offset(int step, int g) const {
        const u32 own = Pair::twice(zeros[EXCHANGED ? 0 : step][g] + OFFSET);
        if constexpr (EXCHANGED) return __shfl_sync(~0u, own, ((int)threadIdx.x & 28) | step);
        else return own;
    }
};

/// Folds of the rows, for which a workgroup reads them once more: as columns are multiplied, lanes of eight rows have an element each,
/// and most of those rows are not there.
template <typename Sizes, typename Statistic>
struct MatrixFolds {
    using Acc = typename Sizes::Sum;
    const Statistic& statistic;
    const Acc (*of_waves)[Sizes::ROWS] = nullptr;

    /// Leaves in LDS what each wave has of each row. Nobody is waited for.
    template <typename Lhs>
    GRAPHC_DEVICE MatrixFolds(const Statistic& statistic, const Lhs& lhs, int row0, int rows, int depth) : statistic(statistic) {
        if constexpr (Statistic::EXISTS) {
            constexpr int WIDTH = Lhs::WIDTH;
            __shared__ Acc partial[Sizes::WAVES][Sizes::ROWS];
            const int lane = (int)threadIdx.x % Sizes::LANES, wave = wave_number<Sizes::LANES>();
#pragma unroll 1
            for (int r = 0; r < Sizes::ROWS && row0 + r < rows; ++r) {
                Acc fold = statistic.start;
#pragma unroll 4
                for (int k = (int)threadIdx.x * WIDTH; k < depth; k += Sizes::THREADS * WIDTH) {
                    const typename Lhs::Group group = lhs.read(row0 + r, k);
                    fold = fold_group<typename Sizes::Element, false, WIDTH>(statistic, fold, group, k, depth);
                }
                fold = reduce_lanes<typename Statistic::Op, Sizes::LANES>(fold);
                if (lane == 0) partial[wave][r] = fold;
            }
            of_waves = partial;
        }
    }
    /// Hands sums of the workgroup's row number `r` to the epilogue, once all waves have left theirs.
    template <typename Epilogue, typename Sums>
    GRAPHC_DEVICE void finish(const Epilogue& epilogue, int row0, int r, int col, const Sums& sums) const {
        if constexpr (Statistic::EXISTS) {
            Acc fold = of_waves[0][r];
#pragma unroll
            for (int other = 1; other < Sizes::WAVES; ++other) fold = Statistic::Op::combine(fold, of_waves[other][r]);
            epilogue(row0 + r, col, sums, fold);
        } else {
            epilogue(row0 + r, col, sums);
        }
    }
};

/// Some steps along k of a wave. Lane `l` has elements of row `l / 4`. `PART`: the steps may reach past the depth. `WAITS`: for the launch
/// before, once the weights are on their way.
template <typename Sizes, bool PART, bool WAITS, typename Lhs, typename Rhs>
GRAPHC_DEVICE void gemv_matrix_steps(Vector<float, 4> (&sums)[Sizes::BLOCKS], const Lhs& lhs, const Rhs& rhs, int row, int col0, int cols,
                                     int k0, int depth) {
    using Weights = GemvWeights<Sizes, Rhs>;
    constexpr int UNROLL = Sizes::UNROLL, BLOCKS = Sizes::BLOCKS, SHARE = Rhs::WIDTH / Lhs::WIDTH;
    Weights weights;
    weights.template read<PART>(rhs, col0, cols, k0, depth);
    if constexpr (WAITS) wait_for_launch_before();
    typename Lhs::Group left[UNROLL][SHARE];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int at = k0 + u * Weights::STEP + (int)threadIdx.x % 4 * Rhs::WIDTH;
#pragma unroll
        for (int s = 0; s < SHARE; ++s) {
            if (!PART || at < depth) left[u][s] = lhs.read(row, at + s * Lhs::WIDTH);
            else left[u][s] = typename Lhs::Group{};
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        Vector<float, 4> step[BLOCKS] = {};
        u32 offsets[Weights::GROUPS];
#pragma unroll
        for (int g = 0; g < Weights::GROUPS; ++g) offsets[g] = weights.offset(u, g);
#pragma unroll
        for (int w = 0; w < Rhs::WIDTH / 8; ++w) {
            u32 factors[4];
            row_pairs(factors, left[u], w);
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b) {
                u32 numbers[2][4];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int g = 2 * b + h;
                    const u32 scale = Sizes::SCALED_SUMS ? 0u : Halves<typename Sizes::Element>::twice(weights.scale(u, g));
                    weight_pairs<Rhs, !Sizes::SCALED_SUMS>(numbers[h], weights.words[u][g].words[w], offsets[g], scale);
                }
#pragma unroll
                for (int p = 0; p < 4; p += 2) {
                    Sizes::Instruction::multiply(Sizes::SCALED_SUMS ? step[b] : sums[b],
                                                 {numbers[0][p], numbers[1][p], numbers[0][p + 1], numbers[1][p + 1]},
                                                 {factors[p], factors[p + 1]});
                }
            }
        }
        if constexpr (Sizes::SCALED_SUMS) {
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b) {
                const float scales[2] = {weights.scale(u, 2 * b), weights.scale(u, 2 * b + 1)};
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[b][i] = math::multiply_add(step[b][i], scales[i / 2], sums[b][i]);
            }
        }
    }
}

/// As `gemv` with weights of four bits along k. The grid has, in x, a workgroup for each `Sizes::ROWS` rows of each `Sizes::COLS` columns.
template <typename Sizes, int WIDTH, typename Lhs, typename Rhs, typename Epilogue, typename Statistic = NoStatistic>
GRAPHC_DEVICE void gemv_matrix(int rows, int cols, int depth, const Lhs& lhs, const Rhs& rhs, const Epilogue& epilogue,
                               const Statistic& statistic = {}) {
    static_assert(Lhs::ALONG_K && Rhs::BITS == 4, "weights of four bits, and rows along k");
    static_assert(Rhs::WIDTH % 8 == 0, "a group of the weights is whole words");
    static_assert(Lhs::WIDTH == 4 || Lhs::WIDTH == 8, "a group of a row is a word's elements, or half of them");
    static_assert(Sizes::COLS % WIDTH == 0, "a workgroup's columns are whole packs");
    constexpr int STEPS = 4 * Rhs::WIDTH * Sizes::UNROLL;
    const int groups = (rows + Sizes::ROWS - 1) / Sizes::ROWS;
    const int row0 = (int)blockIdx.x % groups * Sizes::ROWS, col0 = (int)blockIdx.x / groups * Sizes::COLS;
    const int lane = (int)threadIdx.x % Sizes::LANES, wave = wave_number<Sizes::LANES>();
    const int place = row0 + lane / 4, row = place < rows ? place : rows - 1;
    Vector<float, 4> sums[Sizes::BLOCKS] = {};
    int k = wave * STEPS;
    if constexpr (Sizes::EARLY) {
        if (k + STEPS <= depth) gemv_matrix_steps<Sizes, false, true>(sums, lhs, rhs, row, col0, cols, k, depth);
        else if (k < depth) gemv_matrix_steps<Sizes, true, true>(sums, lhs, rhs, row, col0, cols, k, depth);
        else wait_for_launch_before();
        k += Sizes::WAVES * STEPS;
    }
    for (; k + STEPS <= depth; k += Sizes::WAVES * STEPS) gemv_matrix_steps<Sizes, false, false>(sums, lhs, rhs, row, col0, cols, k, depth);
    if (k < depth) gemv_matrix_steps<Sizes, true, false>(sums, lhs, rhs, row, col0, cols, k, depth);
    __shared__ float partial[Sizes::WAVES][Sizes::ROWS][Sizes::COLS];
#pragma unroll
    for (int b = 0; b < Sizes::BLOCKS; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) partial[wave][lane % 4 * 2 + i % 2][b * Sizes::BLOCK + i / 2 * 8 + lane / 4] = sums[b][i];
    }
    // The rows are in the first-level cache now.
    const MatrixFolds<Sizes, Statistic> folds(statistic, lhs, row0, rows, depth);
    add_waves<Sizes, WIDTH>(partial, row0, col0, rows, cols, epilogue, folds);
}

}  // namespace graphc

#endif  // GRAPHC_CUDA
