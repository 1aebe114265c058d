// Products with few rows on the left: the weights are read once, at the memory's speed, and nothing goes through LDS on the way.
// And the sum of the parts of a product whose depth was split over workgroups.
#pragma once
#include "graphc_operand.hip.h"
#include "graphc_quantised.hip.h"
#include "graphc_reduce.hip.h"
#include "graphc_tiling.hip.h"

namespace graphc {

/// The sizes of a product by few rows: a workgroup of `WAVES` waves takes `ROWS` rows. Where the weights lie along k, a wave takes
/// `COLS` columns, its lanes share out k, and `UNROLL` groups of each column are under way at once. Where they lie along the columns,
/// the workgroup takes `COLS` columns and all its threads share out k. `Left` is the rows' type, where that is another 8-bit float.
///
/// `EARLY`: such weights are constants, and those of so many steps are asked for before the launch before is done.
template <typename Element_, typename Sum_, int ROWS_, int COLS_, int UNROLL_, int WAVES_, typename Left_ = Element_, int EARLY_ = 0>
struct Gemv {
    using Element = Element_;
    using Left = Left_;
    using Sum = Sum_;
    static constexpr int ROWS = ROWS_, COLS = COLS_, UNROLL = UNROLL_, WAVES = WAVES_, EARLY = EARLY_;
    static constexpr int LANES = WAVE_LANES, THREADS = WAVES * LANES;
};

/// Folds over the lanes whose numbers differ in the bits from `BIT` on.
template <typename Op, int BIT, int LANES, typename T>
GRAPHC_DEVICE T over_slices(T value) {
    if constexpr (BIT < LANES) {
        return over_slices<Op, BIT * 2, LANES>(Op::combine(value, from_other_lane<BIT>(value)));
    } else {
        return value;
    }
}

/// Nothing is folded of the rows: an epilogue has the sums alone.
struct NoStatistic {
    static constexpr bool EXISTS = false;
};

/// A fold of each row over k, of what `value` makes of its elements in the sums' type, from `start` on by `Op`: an epilogue has it after the
/// sums.
template <typename Op_, typename Acc, typename Value>
struct RowStatistic {
    static constexpr bool EXISTS = true;
    using Op = Op_;
    Acc start;
    Value value;
};
template <typename Op, typename Acc, typename Value>
GRAPHC_DEVICE RowStatistic<Op, Acc, Value> row_statistic(Acc start, Value value) {
    return {start, value};
}

/// Takes a group of a row's elements into a fold, the first of which is element `k`; from `depth` on there are none. `PART`: the group may
/// reach past that.
template <typename T, bool PART, int WIDTH, typename Statistic, typename Acc, typename Group>
GRAPHC_DEVICE Acc fold_group(const Statistic& statistic, Acc fold, const Group& group, int k, int depth) {
    Pack<T, WIDTH> elements;
    copy_bytes<WIDTH * (int)sizeof(T)>(&elements, &group);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        if (PART && k + i >= depth) continue;
        fold = Statistic::Op::combine(fold, statistic.value((Acc)widen(elements[i])));
    }
    return fold;
}

/// What a thread has folded of its workgroup's rows.
template <typename Sizes, typename Statistic>
struct RowFolds {
    using Acc = typename Sizes::Sum;
    static constexpr int ROWS = Sizes::ROWS;
    static constexpr bool EXIST = Statistic::EXISTS;
    Acc folds[ROWS];
    const Statistic& statistic;

    GRAPHC_DEVICE explicit RowFolds(const Statistic& statistic) : statistic(statistic) {
        if constexpr (Statistic::EXISTS) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) folds[r] = statistic.start;
        }
    }
    /// Takes in a group of a row's elements, the first of which is element `k`; from `depth` on there are none.
    template <bool PART, int WIDTH, typename Group>
    GRAPHC_DEVICE void take(int r, const Group& group, int k, int depth) {
        if constexpr (Statistic::EXISTS) folds[r] = fold_group<typename Sizes::Left, PART, WIDTH>(statistic, folds[r], group, k, depth);
    }
    /// Folds over the lanes of a wave, where each has elements of its own.
    GRAPHC_DEVICE void over_lanes() {
        if constexpr (Statistic::EXISTS) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) folds[r] = reduce_lanes<typename Statistic::Op, Sizes::LANES>(folds[r]);
        }
    }
    /// Folds over a workgroup, of whose waves each group of `ALONG` lanes has the same elements.
    template <int ALONG>
    GRAPHC_DEVICE void over_waves() {
        if constexpr (Statistic::EXISTS) {
            __shared__ Acc of_waves[Sizes::WAVES][ROWS];
            const int wave = wave_number<Sizes::LANES>();
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                folds[r] = over_slices<typename Statistic::Op, ALONG, Sizes::LANES>(folds[r]);
                if ((int)threadIdx.x % Sizes::LANES == 0) of_waves[wave][r] = folds[r];
            }
            __syncthreads();
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                folds[r] = of_waves[0][r];
#pragma unroll
                for (int other = 1; other < Sizes::WAVES; ++other) folds[r] = Statistic::Op::combine(folds[r], of_waves[other][r]);
            }
        }
    }
    /// Hands sums of the workgroup's row number `r` to the epilogue.
    template <typename Epilogue, typename Sums>
    GRAPHC_DEVICE void finish(const Epilogue& epilogue, int row0, int r, int col, const Sums& sums) const {
        if constexpr (Statistic::EXISTS) {
            // A register is not named by a number that is not known.
            Acc fold = folds[0];
#pragma unroll
            for (int other = 1; other < ROWS; ++other) fold = r == other ? folds[other] : fold;
            epilogue(row0 + r, col, sums, fold);
        } else {
            epilogue(row0 + r, col, sums);
        }
    }
};

#if defined(__gfx908__) || defined(__gfx90a__)
/// Whether dot products take subnormal numbers for 0.
constexpr bool DOTS_FLUSH = true;
#else
constexpr bool DOTS_FLUSH = false;
#endif

/// `sum + Σ a·b` over the elements of two groups of words. `SMALL`: subnormal numbers count.
template <typename T, typename Sum, int COUNT, typename Left = T, bool SMALL = false>
GRAPHC_DEVICE Sum dot(const u32* a, const u32* b, Sum sum) {
#if defined(GRAPHC_AMD)
    constexpr int WORD = sizeof(T) < 4 ? 4 / (int)sizeof(T) : 1;
    if constexpr (IsSame<T, f16>::value && COUNT % 2 == 0 && !(SMALL && DOTS_FLUSH)) {
#pragma unroll
        for (int w = 0; w < COUNT / WORD; ++w) {
            sum = __builtin_amdgcn_fdot2(bits_as<Vector<_Float16, 2>>(a[w]), bits_as<Vector<_Float16, 2>>(b[w]), sum, false);
        }
        return sum;
    } else if constexpr (IsSame<T, i8>::value && COUNT % 4 == 0) {
#pragma unroll
        for (int w = 0; w < COUNT / WORD; ++w) {
#if defined(__GFX11__) || defined(__GFX12__)
            sum = __builtin_amdgcn_sudot4(true, (int)a[w], true, (int)b[w], sum, false);
#else
            sum = __builtin_amdgcn_sdot4((int)a[w], (int)b[w], sum, false);
#endif
        }
        return sum;
    }
#endif
    Pack<Left, COUNT> left;
    Pack<T, COUNT> right;
    copy_bytes<COUNT * (int)sizeof(T)>(&left, a);
    copy_bytes<COUNT * (int)sizeof(T)>(&right, b);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sum = math::multiply_add((Sum)widen(left[i]), (Sum)widen(right[i]), sum);
    return sum;
}

/// Adds the products of some rows' groups with some columns'. `SMALL`: as for `dot`.
template <typename Sizes, typename Rhs, bool SMALL, typename Left, typename Right, int SHARE>
GRAPHC_DEVICE void add_products(typename Sizes::Sum (&sums)[Sizes::ROWS][Sizes::COLS], const Left (&left)[Sizes::ROWS][SHARE],
                                const Right (&right)[Sizes::COLS]) {
#pragma unroll
    for (int r = 0; r < Sizes::ROWS; ++r) {
        if constexpr (IsQuantised<Rhs>::value) {
            const Factors<Rhs> factors(left[r]);
#pragma unroll
            for (int c = 0; c < Sizes::COLS; ++c) sums[r][c] = scaled_dot<Rhs>(factors, right[c], sums[r][c]);
        } else {
            static_assert(SHARE == 1, "both operands come in the same groups");
#pragma unroll
            for (int c = 0; c < Sizes::COLS; ++c) {
                sums[r][c] = dot<typename Sizes::Element, typename Sizes::Sum, Rhs::WIDTH, typename Sizes::Left, SMALL>(
                    left[r][0].words, right[c].words, sums[r][c]);
            }
        }
    }
}

/// Whether a wave reads a row's elements side by side and exchanges them in LDS: where a lane's group of the weights is multiplied by
/// four or eight groups of a row, of 16 bytes each, accesses at such strides would take the addresser as many times as long.
template <typename Lhs, typename Rhs>
constexpr bool EXCHANGED =
    (Rhs::WIDTH == 4 * Lhs::WIDTH || Rhs::WIDTH == 8 * Lhs::WIDTH) && sizeof(typename Lhs::Group) == sizeof(Chunk);

/// Reads the groups of a row that a lane's group of the weights is multiplied by; `exchange` is the wave's LDS, a lane's groups for
/// each lane.
template <typename Sizes, bool PART, typename Rhs, typename Lhs, int SHARE>
GRAPHC_DEVICE void read_row(typename Lhs::Group (&groups)[SHARE], const Lhs& lhs, int row, int at, int depth, Chunk* exchange) {
    if constexpr (EXCHANGED<Lhs, Rhs>) {
        const int lane = (int)threadIdx.x % Sizes::LANES, first = at - lane * Rhs::WIDTH;
        // Of eight lanes that LDS serves together no two have their group in the same banks.
        const auto place = [](int owner, int group) {
            return owner * SHARE + (group ^ (SHARE == 8 ? owner & 7 : owner >> 1 & 3));
        };
#pragma unroll
        for (int s = 0; s < SHARE; ++s) {
            const int number = s * Sizes::LANES + lane, k = first + number * Lhs::WIDTH;
            const typename Lhs::Group group = PART ? lhs.read_before(row, k, depth) : lhs.read(row, k);
            exchange[place(number / SHARE, number % SHARE)] = Chunk{group.words[0], group.words[1], group.words[2], group.words[3]};
        }
        wave_barrier();
#pragma unroll
        for (int s = 0; s < SHARE; ++s) {
            const Chunk chunk = exchange[place(lane, s)];
#pragma unroll
            for (int w = 0; w < 4; ++w) groups[s].words[w] = chunk[w];
        }
        wave_barrier();
    } else {
#pragma unroll
        for (int s = 0; s < SHARE; ++s) {
            const int k = at + s * Lhs::WIDTH;
            groups[s] = PART ? lhs.read_before(row, k, depth) : lhs.read(row, k);
        }
    }
}

/// A group of the weights, which no other wave reads. What is gained by saying so was measured where they are unpacked, and nothing where
/// they are floats.
template <typename Rhs>
GRAPHC_DEVICE typename Rhs::Group read_once(const Rhs& rhs, int col, int k) {
    if constexpr (IsQuantised<Rhs>::value) return rhs.read_once(col, k);
    else return rhs.read(col, k);
}

/// One step along k of a lane: `UNROLL` groups of every row and column, read before any is multiplied. `PART`: the step may reach
/// past the depth.
template <typename Sizes, bool PART, typename Lhs, typename Rhs, typename Folds>
GRAPHC_DEVICE void gemv_step(typename Sizes::Sum (&sums)[Sizes::ROWS][Sizes::COLS], Folds& folds, const Lhs& lhs, const Rhs& rhs, int row0,
                             int rows, int col0, int cols, int k, int depth, Chunk* exchange) {
    constexpr int ROWS = Sizes::ROWS, COLS = Sizes::COLS, UNROLL = Sizes::UNROLL, STRIDE = Sizes::LANES * Rhs::WIDTH;
    constexpr int SHARE = Rhs::WIDTH / Lhs::WIDTH;
    typename Lhs::Group left[UNROLL][ROWS][SHARE];
    typename Rhs::Group right[UNROLL][COLS];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int at = k + u * STRIDE;
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            const int col = col0 + c < cols ? col0 + c : cols - 1;
            right[u][c] = PART ? rhs.read_before(col, at, depth) : read_once(rhs, col, at);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int row = row0 + r < rows ? row0 + r : rows - 1;
            read_row<Sizes, PART, Rhs>(left[u][r], lhs, row, at, depth, exchange);
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        // Rows that something is folded of may be scaled up by it.
        add_products<Sizes, Rhs, Folds::EXIST>(sums, left[u], right[u]);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#pragma unroll
            for (int s = 0; s < SHARE; ++s) folds.template take<PART, Lhs::WIDTH>(r, left[u][r][s], k + u * STRIDE + s * Lhs::WIDTH, depth);
        }
    }
}

/// Weights along k: a wave's lanes read neighbouring groups of the same columns.
template <typename Sizes, int WIDTH, typename Lhs, typename Rhs, typename Epilogue, typename Statistic>
GRAPHC_DEVICE void gemv_along_k(int row0, int block, int rows, int cols, int depth, const Lhs& lhs, const Rhs& rhs, const Epilogue& epilogue,
                                const Statistic& statistic) {
    using Acc = typename Sizes::Sum;
    constexpr int ROWS = Sizes::ROWS, COLS = Sizes::COLS, LANES = Sizes::LANES, GROUP = Rhs::WIDTH;
    static_assert(GROUP % Lhs::WIDTH == 0, "a group of the weights is whole groups of a row");
    static_assert(COLS % WIDTH == 0, "a wave's columns are whole packs");
    const int lane = (int)threadIdx.x % LANES, wave = wave_number<LANES>();
    const int col0 = (block * Sizes::WAVES + wave) * COLS;
    Chunk* exchange = nullptr;
    if constexpr (EXCHANGED<Lhs, Rhs>) {
        constexpr int SHARE = GROUP / Lhs::WIDTH;
        __shared__ Chunk of_waves[Sizes::THREADS * SHARE];
        exchange = of_waves + wave * LANES * SHARE;
    }
    if (col0 >= cols) return;
    Acc sums[ROWS][COLS] = {};
    RowFolds<Sizes, Statistic> folds(statistic);
    constexpr int STEP = Sizes::UNROLL * LANES * GROUP;
    int k = 0;
    for (; k + STEP <= depth; k += STEP) {
        gemv_step<Sizes, false>(sums, folds, lhs, rhs, row0, rows, col0, cols, k + lane * GROUP, depth, exchange);
    }
    if (k < depth) gemv_step<Sizes, true>(sums, folds, lhs, rhs, row0, rows, col0, cols, k + lane * GROUP, depth, exchange);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int c = 0; c < COLS; ++c) sums[r][c] = reduce_lanes<graphc::Sum, LANES>(sums[r][c]);
    }
    folds.over_lanes();
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (lane == r && row0 + r < rows) {
#pragma unroll
            for (int c = 0; c < COLS; c += WIDTH) {
                Pack<Acc, WIDTH> pack;
#pragma unroll
                for (int w = 0; w < WIDTH; ++w) pack[w] = sums[r][c + w];
                if (col0 + c + WIDTH <= cols) folds.finish(epilogue, row0, r, col0 + c, pack);
            }
        }
    }
}

/// Adds up what the waves of a workgroup have of a product, in their order, and hands it to the epilogue. Every wave has written its part
/// when it comes here, and what is folded of the rows is folded over the workgroup.
template <typename Sizes, int WIDTH, typename Acc, int BLOCK, typename Epilogue, typename Folds>
GRAPHC_DEVICE void add_waves(const Acc (&partial)[Sizes::WAVES][Sizes::ROWS][BLOCK], int row0, int col0, int rows, int cols,
                             const Epilogue& epilogue, const Folds& folds) {
    __syncthreads();
    for (int at = (int)threadIdx.x * WIDTH; at < Sizes::ROWS * BLOCK; at += Sizes::THREADS * WIDTH) {
        const int r = at / BLOCK, c = at % BLOCK;
        if (row0 + r >= rows || col0 + c + WIDTH > cols) continue;
        Pack<Acc, WIDTH> pack;
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) {
            pack[w] = partial[0][r][c + w];
#pragma unroll
            for (int other = 1; other < Sizes::WAVES; ++other) pack[w] = graphc::Sum::combine(pack[w], partial[other][r][c + w]);
        }
        folds.finish(epilogue, row0, r, col0 + c, pack);
    }
    // A batch's next product writes here too.
    __syncthreads();
}

/// Multiplies a step's weights by the elements of the rows, and takes those into what is folded of them.
template <typename Sizes, bool PART, typename Acc, int GROUP, int DEEP, typename Folds, typename Left, typename Right>
GRAPHC_DEVICE void multiply_rows(Acc (&sums)[Sizes::ROWS][GROUP], Folds& folds, const Left (&left)[Sizes::ROWS],
                                 const Right (&right)[DEEP], int k, int depth) {
    using T = typename Sizes::Element;
    Pack<typename Sizes::Left, DEEP> factors[Sizes::ROWS];
#pragma unroll
    for (int r = 0; r < Sizes::ROWS; ++r) {
        copy_bytes<DEEP * (int)sizeof(T)>(&factors[r], &left[r]);
        folds.template take<PART, DEEP>(r, left[r], k, depth);
    }
#pragma unroll
    for (int j = 0; j < DEEP; ++j) {
        Pack<T, GROUP> weights;
        copy_bytes<GROUP * (int)sizeof(T)>(&weights, &right[j]);
#pragma unroll
        for (int r = 0; r < Sizes::ROWS; ++r) {
            const Acc factor = (Acc)widen(factors[r][j]);
#pragma unroll
            for (int c = 0; c < GROUP; ++c) sums[r][c] = math::multiply_add(factor, (Acc)widen(weights[c]), sums[r][c]);
        }
    }
}

/// Reads 16 bytes of a constant now: the compiler moves no other read in front of a wait for the launch before.
GRAPHC_DEVICE Words<16> read_early(const void* from) {
    Words<16> r = {};
#if defined(GRAPHC_CUDA)
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.words[0]), "=r"(r.words[1]), "=r"(r.words[2]), "=r"(r.words[3])
                 : "l"(from)
                 : "memory");
#endif
    return r;
}

/// Weights along the columns: some lanes of a wave go along them, its other lanes and the waves share out k.
template <typename Sizes, int WIDTH, typename Lhs, typename Rhs, typename Epilogue, typename Statistic>
GRAPHC_DEVICE void gemv_along_rows(int row0, int block, int rows, int cols, int depth, const Lhs& lhs, const Rhs& rhs,
                                   const Epilogue& epilogue, const Statistic& statistic) {
    using Acc = typename Sizes::Sum;
    constexpr int ROWS = Sizes::ROWS, LANES = Sizes::LANES, WAVES = Sizes::WAVES, EARLY = Sizes::EARLY;
    constexpr int GROUP = Rhs::WIDTH, DEEP = Lhs::WIDTH, BLOCK = Sizes::COLS, ALONG = BLOCK / GROUP, SLICES = Sizes::THREADS / ALONG;
    static_assert(BLOCK % WIDTH == 0, "a workgroup's columns are whole packs");
    static_assert(ALONG * GROUP == BLOCK && LANES % ALONG == 0, "a power of two of lanes goes along the columns");
    __shared__ Acc partial[WAVES][ROWS][BLOCK];
    const int lane = (int)threadIdx.x % LANES, wave = wave_number<LANES>();
    const int col0 = block * BLOCK, mine = col0 + lane % ALONG * GROUP, slice = (int)threadIdx.x / ALONG;
    const int col = mine < cols - GROUP ? mine : cols - GROUP;
    Acc sums[ROWS][GROUP] = {};
    RowFolds<Sizes, Statistic> folds(statistic);
    int k = slice * DEEP;
    if constexpr (EARLY > 0) {
        static_assert(ROWS == 1 && sizeof(typename Rhs::Group) == 16, "a row, and weights of 16 bytes");
        Words<16> early[EARLY][DEEP];
#pragma unroll
        for (int e = 0; e < EARLY; ++e) {
#pragma unroll
            for (int j = 0; j < DEEP; ++j) early[e][j] = read_early(rhs.address(col, k + e * SLICES * DEEP + j));
        }
        wait_for_launch_before();
#pragma unroll
        for (int e = 0; e < EARLY; ++e, k += SLICES * DEEP) {
            const typename Lhs::Group left[ROWS] = {lhs.read(row0, k)};
            multiply_rows<Sizes, false>(sums, folds, left, early[e], k, depth);
        }
    }
    for (; k < depth; k += SLICES * DEEP) {
        typename Lhs::Group left[ROWS];
        typename Rhs::Group right[DEEP];
        if (k + DEEP <= depth) {
#pragma unroll
            for (int j = 0; j < DEEP; ++j) right[j] = rhs.read(col, k + j);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) left[r] = lhs.read(row0 + r < rows ? row0 + r : rows - 1, k);
        } else {
#pragma unroll
            for (int j = 0; j < DEEP; ++j) right[j] = rhs.read_before(col, k + j, depth);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) left[r] = lhs.read_before(row0 + r < rows ? row0 + r : rows - 1, k, depth);
        }
        multiply_rows<Sizes, true>(sums, folds, left, right, k, depth);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int c = 0; c < GROUP; ++c) {
            sums[r][c] = over_slices<graphc::Sum, ALONG, LANES>(sums[r][c]);
            if (lane < ALONG) partial[wave][r][lane * GROUP + c] = sums[r][c];
        }
    }
    folds.template over_waves<ALONG>();
    add_waves<Sizes, WIDTH>(partial, row0, col0, rows, cols, epilogue, folds);
}

/// Computes `acc[row, col] = Σ_k lhs(row, k) · rhs(col, k)` and hands each `WIDTH` neighbours along the columns to
/// `epilogue(row, col, Pack<Sum, WIDTH>)`, with the row's statistic last where there is one; `WIDTH` divides `cols`. The left operand lies along k. The grid has, in x, a workgroup for
/// each `Sizes::ROWS` rows of each `Sizes::WAVES * Sizes::COLS` columns when the weights lie along k, of each `Sizes::COLS` otherwise;
/// those of the same columns are neighbours, so that the weights come from memory once.
template <typename Sizes, int WIDTH, typename Lhs, typename Rhs, typename Epilogue, typename Statistic = NoStatistic>
GRAPHC_DEVICE void gemv(int rows, int cols, int depth, const Lhs& lhs, const Rhs& rhs, const Epilogue& epilogue,
                        const Statistic& statistic = {}) {
    static_assert(Lhs::ALONG_K, "the left operand lies along k");
    const int groups = (rows + Sizes::ROWS - 1) / Sizes::ROWS;
    const int row0 = (int)blockIdx.x % groups * Sizes::ROWS, block = (int)blockIdx.x / groups;
    if constexpr (Rhs::ALONG_K) {
        gemv_along_k<Sizes, WIDTH>(row0, block, rows, cols, depth, lhs, rhs, epilogue, statistic);
    } else {
        gemv_along_rows<Sizes, WIDTH>(row0, block, rows, cols, depth, lhs, rhs, epilogue, statistic);
    }
}

}  // namespace graphc
