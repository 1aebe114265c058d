// The tilings of matrix products: sizes, the order of workgroups, who has which columns, and the way out of the registers.
#pragma once
#include "graphc_grid.hip.h"
#include "graphc_mma.hip.h"

namespace graphc {

// ---- tiles

/// The sizes of a product by matrix instructions, and the order of its tiles.
///
/// `STAGES` buffers in LDS hold the tiles of both operands (`LDS_BYTES` in all); with two, one barrier a tile is enough. For
/// `mma.sync` and `wgmma` there are more, filled by asynchronous copies; above 48 KiB (`DYNAMIC_LDS`) the launch provides them.
/// `AHEAD` reads fragments one step before they are multiplied, which takes their registers twice. Of `wgmma`, by whose warp groups
/// `WAVES_M` counts, it begins a tile's products before those of the last tile have ended.
/// Tiles are taken in groups of `GROUP` rows, so that those at work share what L2 holds; with `XCDS` dies, to which the
/// hardware deals workgroups in turn, each die takes runs of neighbours.
template <typename Instruction_, int BLOCK_M_, int BLOCK_N_, int BLOCK_K_, int WAVES_M_, int WAVES_N_, int STAGES_ = 2,
          bool AHEAD_ = true, int GROUP_ = 8, int XCDS_ = 1>
struct MatrixTile {
    using Instruction = Instruction_;
    using Element = typename Instruction::Element;
    static constexpr int BLOCK_M = BLOCK_M_, BLOCK_N = BLOCK_N_, BLOCK_K = BLOCK_K_;
    static constexpr int WAVES_M = WAVES_M_, WAVES_N = WAVES_N_, STAGES = STAGES_, GROUP = GROUP_, XCDS = XCDS_;
    static constexpr bool AHEAD = AHEAD_;
    static constexpr int LANES = Instruction::LANES, THREADS = WAVES_M * WAVES_N * LANES;
    /// Fragments of a wave: rows, columns, steps along k.
    static constexpr int LHS = BLOCK_M / (WAVES_M * Instruction::ROWS), RHS = BLOCK_N / (WAVES_N * Instruction::COLS);
    static constexpr int STEPS = BLOCK_K / Instruction::STEP;
    static constexpr int ROW_BYTES = BLOCK_K * (int)sizeof(Element);
    static constexpr int LDS_BYTES = STAGES * (BLOCK_M + BLOCK_N) * ROW_BYTES;
#if defined(GRAPHC_CUDA)
    static constexpr bool DYNAMIC_LDS = LDS_BYTES > 48 * 1024;
#else
    static constexpr bool DYNAMIC_LDS = false;
#endif
    static_assert(LHS * WAVES_M * Instruction::ROWS == BLOCK_M && RHS * WAVES_N * Instruction::COLS == BLOCK_N,
                  "waves take whole pieces of the block");
    static_assert(STEPS * Instruction::STEP == BLOCK_K, "a tile is whole steps along k");
    static_assert(STAGES >= 1, "a tile is somewhere");
};

/// Orders LDS between the waves of a workgroup and waits for all of them. Loads from memory stay under way.
GRAPHC_DEVICE void lds_barrier() {
#if defined(GRAPHC_AMD)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
#else
    __syncthreads();
#endif
}

/// Makes what this thread has stored visible to the workgroups of the device that learn of it afterwards.
GRAPHC_DEVICE void device_release() {
#if defined(GRAPHC_AMD)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
#else
    __threadfence();
#endif
}

/// Lets this thread see what workgroups released of which it has learned.
GRAPHC_DEVICE void device_acquire() {
#if defined(GRAPHC_AMD)
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
#else
    __threadfence();
#endif
}

/// Counts up; returns the count before.
GRAPHC_DEVICE i32 draw_ticket(i32* ticket) {
#if defined(GRAPHC_AMD)
    return __hip_atomic_fetch_add(ticket, 1, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
#else
    __threadfence();
    return atomicAdd(ticket, 1);
#endif
}

/// A value that is the same in all lanes, known to be.
GRAPHC_DEVICE i32 same_in_all(i32 value) {
#if defined(GRAPHC_AMD)
    return __builtin_amdgcn_readfirstlane(value);
#else
    return value;
#endif
}

/// Orders LDS within a wave, whose lanes run together.
GRAPHC_DEVICE void wave_barrier() {
#if defined(GRAPHC_AMD)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#else
    __syncwarp();
#endif
}

/// The value of the lane whose number differs in the bits of `MASK`.
template <int MASK, typename T>
GRAPHC_DEVICE T from_other_lane(T value) {
    return map_words(value, [](u32 word) {
#if defined(GRAPHC_AMD)
        const int lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
        return (u32)__builtin_amdgcn_ds_bpermute((lane ^ MASK) << 2, (int)word);
#else
        return shuffle_xor_word<32>(word, MASK);
#endif
    });
}

/// The number of this thread's wave, known to be the same in all its lanes.
template <int LANES>
GRAPHC_DEVICE int wave_number() {
#if defined(GRAPHC_AMD)
    return __builtin_amdgcn_readfirstlane((int)threadIdx.x / LANES);
#else
    return (int)threadIdx.x / LANES;
#endif
}

/// Which column of the block a row of the right operand in LDS meets, as fragments of a wave see it.
///
/// Fragments come in runs of `FUSED` such that a lane has `WIDTH` neighbouring columns among its sums of a run.
template <typename Tiles, int WIDTH>
struct Columns {
    using I = typename Tiles::Instruction;
    static constexpr int FUSED = WIDTH <= I::SUM_COLS ? 1 : WIDTH / I::SUM_COLS;
    static constexpr int RUN = FUSED * I::COLS, RUNS = Tiles::RHS / FUSED, PACKS = FUSED * I::SUM_COLS / WIDTH;
    static_assert(RUNS * FUSED == Tiles::RHS, "the width of the epilogue needs more columns a wave");
    static_assert(PACKS * WIDTH == FUSED * I::SUM_COLS, "the epilogue's width divides a lane's columns");

    /// The column, from the first of the run, of the lanes' group `group` and the sum `place` of fragment `fused`.
    static constexpr GRAPHC_DEVICE int column(int fused, int group, int place) {
        const int at = fused * I::SUM_COLS + place;
        return at / WIDTH * (I::COL_GROUPS * WIDTH) + group * WIDTH + at % WIDTH;
    }
};

/// Hands the sums of one run of fragments that are inside the product to the epilogue, `WIDTH` neighbours at once. `PLACED` is
/// the number of neighbours that a lane has by its columns' places, a multiple of `WIDTH`. Row and column are the wave's first.
template <typename Tiles, int PLACED, int WIDTH, typename Sums, typename Epilogue>
GRAPHC_DEVICE void hand_over_run(const Sums* run, int rows, int cols, int row0, int col0, const Epilogue& epilogue) {
    using I = typename Tiles::Instruction;
    using Place = Columns<Tiles, PLACED>;
    const int lane = (int)threadIdx.x % I::LANES;
#pragma unroll
    for (int slot = 0; slot < I::SUM_ROWS; ++slot) {
        const int row = row0 + I::sum_row(lane, slot);
        if (row < rows) {
#pragma unroll
            for (int at = 0; at < Place::FUSED * I::SUM_COLS; at += WIDTH) {
                const int col = col0 + at / PLACED * (I::COL_GROUPS * PLACED) + I::col_group(lane) * PLACED + at % PLACED;
                Pack<typename I::Sum, WIDTH> pack;
#pragma unroll
                for (int w = 0; w < WIDTH; ++w) {
                    pack[w] = run[(at + w) / I::SUM_COLS][slot * I::SUM_COLS + (at + w) % I::SUM_COLS];
                }
                if (col + WIDTH <= cols) epilogue(row, col, pack);
            }
        }
    }
}

/// Hands all sums of a wave to the epilogue.
template <typename Tiles, int PLACED, int WIDTH, typename Sums, typename Epilogue>
GRAPHC_DEVICE void hand_over(const Sums (&sums)[Tiles::LHS][Tiles::RHS], int rows, int cols, int row0, int col0, const Epilogue& epilogue) {
    using I = typename Tiles::Instruction;
    using Place = Columns<Tiles, PLACED>;
    const int wave = wave_number<I::LANES>(), wave_m = wave / Tiles::WAVES_N, wave_n = wave % Tiles::WAVES_N;
#pragma unroll
    for (int i = 0; i < Tiles::LHS; ++i) {
#pragma unroll
        for (int run = 0; run < Place::RUNS; ++run) {
            const int row = row0 + (i * Tiles::WAVES_M + wave_m) * I::ROWS;
            const int col = col0 + (run * Tiles::WAVES_N + wave_n) * Place::RUN;
            hand_over_run<Tiles, PLACED, WIDTH>(&sums[i][run * Place::FUSED], rows, cols, row, col, epilogue);
        }
    }
}

}  // namespace graphc
