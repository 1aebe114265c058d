// Matrix products by matrix instructions: workgroups take tiles, operands travel through registers to LDS in their own
// type, waves read fragments and multiply.
#pragma once
#include "graphc_gemm_async.hip.h"
#include "graphc_gemm_group.hip.h"
#include "graphc_operand.hip.h"
#include "graphc_tiling.hip.h"

namespace graphc {

// ---- the product

/// A workgroup's product, or with `PARTS_K` above one that of a wave, which takes every so many tiles along k for its own: fetch,
/// write, multiply, in the order that `run` says. It begins at tile number `first` along k and ends at `depth`.
template <typename Tiles, int WIDTH, typename Lhs, typename Rhs, int PARTS_K = 1>
struct Product {
    using I = typename Tiles::Instruction;
    using Element = typename Tiles::Element;
    using Operand = typename I::Operand;
    using Place = Columns<Tiles, WIDTH>;
    using Rows = LdsRows<Tiles::ROW_BYTES>;
    static constexpr int LHS = Tiles::LHS, RHS = Tiles::RHS, STEPS = Tiles::STEPS;
    /// Whether lanes multiply, each for a sum of its own.
    static constexpr bool BY_LANES = I::SUM_ROWS * I::SUM_COLS == 1;
    static constexpr int LHS_BYTES = Tiles::BLOCK_M * Tiles::ROW_BYTES;
    static constexpr int STAGE_BYTES = (Tiles::BLOCK_M + Tiles::BLOCK_N) * Tiles::ROW_BYTES;

    const Lhs& lhs;
    const Rhs& rhs;
    u8* lds;
    int rows, cols, depth, row0, col0, part, first;
    Fetcher<Lhs, Tiles::BLOCK_M, Tiles::BLOCK_K, Tiles::THREADS> lhs_fetch;
    Fetcher<Rhs, Tiles::BLOCK_N, Tiles::BLOCK_K, Tiles::THREADS> rhs_fetch;
    typename I::Sums sums[LHS][RHS];
    /// Fragments of the step at hand, and of the next if they are read ahead.
    static constexpr int BUFFERS = Tiles::AHEAD ? 2 : 1;
    Operand left[BUFFERS][LHS], right[BUFFERS][RHS];
    /// Where this lane's first fragments are.
    int left_at, right_at[Place::FUSED];

    GRAPHC_DEVICE Product(const Lhs& lhs, const Rhs& rhs, u8* lds, int rows, int cols, int depth, int row0, int col0, int part = 0,
                           int first = 0)
        : lhs(lhs), rhs(rhs), lds(lds), rows(rows), cols(cols), depth(depth), row0(row0), col0(col0), part(part), first(first) {
        const int lane = (int)threadIdx.x % I::LANES, group = I::k_group(lane);
        left_at = Rows::address(wave_m() * I::ROWS + I::lhs_row(lane), group);
        const int column = I::rhs_col(lane);
#pragma unroll
        for (int f = 0; f < Place::FUSED; ++f) {
            const int row = wave_n() * Place::RUN + Place::column(f, I::group_of(column), I::place_of(column));
            right_at[f] = LHS_BYTES + Rows::address(row, group);
        }
#pragma unroll
        for (int i = 0; i < LHS; ++i) {
#pragma unroll
            for (int j = 0; j < RHS; ++j) {
#pragma unroll
                for (int v = 0; v < I::SUM_ROWS * I::SUM_COLS; ++v) sums[i][j][v] = 0;
            }
        }
    }

    static GRAPHC_DEVICE int wave_m() { return PARTS_K > 1 ? 0 : wave_number<I::LANES>() / Tiles::WAVES_N; }
    static GRAPHC_DEVICE int wave_n() { return PARTS_K > 1 ? 0 : wave_number<I::LANES>() % Tiles::WAVES_N; }

    /// Orders LDS between the waves that share the tiles.
    static GRAPHC_DEVICE void barrier() {
        if constexpr (PARTS_K > 1) wave_barrier();
        else lds_barrier();
    }

    /// Starts to read tile number `tile` from memory; `PART`: the tile may reach past the depth.
    template <bool PART>
    GRAPHC_DEVICE void fetch(int tile) {
        const int k0 = ((first + tile) * PARTS_K + part) * Tiles::BLOCK_K;
        lhs_fetch.template read<PART>(lhs, row0, rows, k0, depth);
        rhs_fetch.template read<PART>(rhs, col0, cols, k0, depth);
    }

    /// Writes the fetched tile to a stage.
    GRAPHC_DEVICE void write(int stage) {
        lhs_fetch.write(lds + stage * STAGE_BYTES);
        rhs_fetch.write(lds + stage * STAGE_BYTES + LHS_BYTES);
    }

    /// Reads the fragments of a step from a stage.
    GRAPHC_DEVICE void load(int stage, int step) {
        const u8* from = lds + stage * STAGE_BYTES;
        Operand(&l)[LHS] = left[step % BUFFERS];
        Operand(&r)[RHS] = right[step % BUFFERS];
#pragma unroll
        for (int c = 0; c < I::CHUNKS; ++c) {
            const int chunk = (step * I::CHUNKS + c) * I::K_GROUPS;
#pragma unroll
            for (int j = 0; j < RHS; ++j) {
                const int row = j / Place::FUSED * (Tiles::WAVES_N * Place::RUN);
                r[j].chunks[c] = *(const Chunk*)(from + Rows::moved(right_at[j % Place::FUSED], row, chunk));
            }
#pragma unroll
            for (int i = 0; i < LHS; ++i) {
                const int row = i * (Tiles::WAVES_M * I::ROWS);
                l[i].chunks[c] = *(const Chunk*)(from + Rows::moved(left_at, row, chunk));
            }
        }
    }

    template <int PART>
    GRAPHC_DEVICE void multiply_part(int step) {
        // gfx11 and gfx12 issue two multiply-adds at once whose operands are in different banks of registers: neighbours take different
        // parts of their chunks, and what they leave is the next part's.
        constexpr int OTHER = BY_LANES && I::PARTS % 2 == 0 ? PART ^ 1 : PART;
#pragma unroll
        for (int i = 0; i < LHS; ++i) {
#pragma unroll
            for (int j = 0; j < RHS; ++j) {
                const Operand &l = left[step % BUFFERS][i], &r = right[step % BUFFERS][j];
                if (j % 2 == 0) I::template multiply<PART>(sums[i][j], l, r);
                else I::template multiply<OTHER>(sums[i][j], l, r);
            }
        }
    }

    /// Multiplies the fragments of a step.
    template <int PART = 0>
    GRAPHC_DEVICE void multiply(int step) {
        multiply_part<PART>(step);
        if constexpr (PART + 1 < I::PARTS) multiply<PART + 1>(step);
    }

    /// One tile: it is in LDS (and the fragments of its first step in registers, if they are read ahead); the next tile is on
    /// its way from memory. `next` and `fetches` say whether there is a next tile and one after it. `stage` is
    /// where it is.
    template <bool PART>
    GRAPHC_DEVICE void tile(int t, int stage, bool next, bool fetches) {
        const int other = Tiles::STAGES == 2 ? stage ^ 1 : 0;
        if constexpr (Tiles::STAGES == 2) forward<PART>(t, other, next, fetches);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (!Tiles::AHEAD) load(stage, step);
            else if (step + 1 < STEPS) load(stage, step + 1);
            if (!Tiles::AHEAD || step + 1 < STEPS) multiply(step);
            // The compiler would move all of a tile's multiply-adds behind its reads, whose fragments then spill.
            if (BY_LANES) settle();
            if (!Tiles::AHEAD) keep_order();
        }
        if constexpr (Tiles::STAGES == 1) {
            barrier();
            forward<PART>(t, other, next, fetches);
        }
        barrier();
        if constexpr (Tiles::AHEAD) {
            // After an odd number of steps the next tile's first fragments take the registers of the last ones.
            if (STEPS % 2 == 1) multiply(STEPS - 1);
            if (next) load(other, 0);
            if (STEPS % 2 == 0) multiply(STEPS - 1);
        }
        if constexpr (!PART && Tiles::AHEAD && !BY_LANES) spread_accesses();
    }

    /// Asks the compiler to spread a tile's memory accesses over its matrix instructions: reads of the next step's fragments,
    /// writes of the next tile, loads of the one after it, reads of the next tile's first fragments.
    static GRAPHC_DEVICE void spread_accesses() {
#if defined(GRAPHC_AMD)
        constexpr int READS = (LHS + RHS) * I::CHUNKS, MATRIX = LHS * RHS * I::PARTS * STEPS;
        constexpr int WRITES = decltype(lhs_fetch)::WRITES + decltype(rhs_fetch)::WRITES;
        constexpr int LOADS = decltype(lhs_fetch)::LOADS + decltype(rhs_fetch)::LOADS;
        // MFMA takes long enough for several accesses, where there are more of them than of it. (Of WMMA's tiles some spill so.)
        constexpr int ALL = STEPS * READS + WRITES + LOADS, EACH = I::LANES == 64 ? (ALL + MATRIX - 1) / MATRIX : 1;
        // One buffer is written when all of it has been read.
        constexpr int FIRST = Tiles::STAGES == 1 ? STEPS - 1 : STEPS > 1 ? 1 : 0;
        alternate<DS_READ, FIRST * READS, EACH>();
        alternate<DS_WRITE, WRITES, EACH>();
        alternate<VMEM_READ, LOADS, EACH>();
        alternate<DS_READ, (STEPS - 1 - FIRST) * READS, EACH>();
        alternate<DS_READ, READS, EACH>();
        constexpr int LEFT = EACH == 1 ? MATRIX - ALL : 0;
        if constexpr (LEFT > 0) __builtin_amdgcn_sched_group_barrier(MATRIX_CORE, LEFT, 0);
#endif
    }

    /// Keeps the compiler from mixing what comes before with what comes after, so that fewer fragments are in registers.
    static GRAPHC_DEVICE void keep_order() {
#if defined(GRAPHC_AMD)
        __builtin_amdgcn_sched_barrier(0);
#endif
    }

    // Kinds of instructions, as the compiler's scheduler numbers them.
    static constexpr int MATRIX_CORE = 0x008, VMEM_READ = 0x020, DS_READ = 0x100, DS_WRITE = 0x200;

    template <int KIND, int COUNT, int EACH>
    static GRAPHC_DEVICE void alternate() {
#if defined(GRAPHC_AMD)
#pragma unroll
        for (int i = 0; i < COUNT / EACH; ++i) {
            __builtin_amdgcn_sched_group_barrier(KIND, EACH, 0);
            __builtin_amdgcn_sched_group_barrier(MATRIX_CORE, 1, 0);
        }
        if constexpr (COUNT % EACH != 0) alternate<KIND, COUNT % EACH, COUNT % EACH>();
#endif
    }

    /// Puts the tile that has come from memory into LDS and starts to read the one after it.
    template <bool PART>
    GRAPHC_DEVICE void forward(int t, int stage, bool next, bool fetches) {
        if (next) write(stage);
        if (fetches) fetch<PART>(t + 2);
    }

    GRAPHC_DEVICE void run() {
        constexpr int BLOCK_K = Tiles::BLOCK_K;
        // Of all tiles those whose number is this part's, modulo the number of parts.
        const int whole = (depth / BLOCK_K - first + PARTS_K - 1 - part) / PARTS_K;
        const int tiles = ((depth + BLOCK_K - 1) / BLOCK_K - first + PARTS_K - 1 - part) / PARTS_K;
        if (PARTS_K > 1 && tiles == 0) return;
        if (whole > 0) fetch<false>(0);
        else fetch<true>(0);
        write(0);
        if (tiles > 1) fetch<true>(1);
        barrier();
        if (Tiles::AHEAD) load(0, 0);
        int t = 0;
        // Stages take turns: as many tiles a turn make their addresses constants. (Lanes' own products fill the loop as it is.)
        constexpr int TURN = BY_LANES ? 1 : Tiles::STAGES;
        for (; t + TURN + 1 < whole; t += TURN) {
#pragma unroll
            for (int i = 0; i < TURN; ++i) tile<false>(t + i, TURN == Tiles::STAGES ? i : t & 1, true, true);
        }
        for (; t < tiles; ++t) tile<true>(t, Tiles::STAGES == 2 ? t & 1 : 0, t + 1 < tiles, t + 2 < tiles);
        settle();
    }

    /// Has the sums computed here: the compiler would move the last matrix instructions to where the epilogue asks which lanes
    /// have a row, with those lanes alone switched on, and keep all fragments in registers until then.
    GRAPHC_DEVICE void settle() {
#if defined(GRAPHC_AMD)
#pragma unroll
        for (int i = 0; i < LHS; ++i) {
#pragma unroll
            for (int j = 0; j < RHS; ++j) {
                if constexpr (!BY_LANES) {
                    asm volatile("" : "+v"(sums[i][j]));
                } else {
                    typename I::Sum sum = sums[i][j][0];
                    asm volatile("" : "+v"(sum));
                    sums[i][j][0] = sum;
                }
            }
        }
#endif
    }
};

/// Computes this workgroup's tile of `acc[row, col] = Σ_k lhs(row, k) · rhs(col, k)` and hands each `WIDTH` neighbours along
/// the columns to `epilogue(row, col, Pack<Sum, WIDTH>)`. `WIDTH` divides `cols`. The grid is one workgroup of
/// `Tiles::THREADS` threads a tile, in x.
template <typename Tiles, int WIDTH, typename Lhs, typename Rhs, typename Epilogue>
GRAPHC_DEVICE void gemm_tile(int rows, int cols, int depth, const Lhs& lhs, const Rhs& rhs, const Epilogue& epilogue) {
    const int tiles_m = (rows + Tiles::BLOCK_M - 1) / Tiles::BLOCK_M, tiles_n = (cols + Tiles::BLOCK_N - 1) / Tiles::BLOCK_N;
    const TilePlace at = tile_of<Tiles::GROUP, Tiles::XCDS>((int)blockIdx.x, tiles_m, tiles_n);
    const int row0 = at.m * Tiles::BLOCK_M, col0 = at.n * Tiles::BLOCK_N;
#if defined(GRAPHC_CUDA)
    if constexpr (Tiles::Instruction::DESCRIBED) {
        GroupProduct<Tiles, WIDTH, Lhs, Rhs> product(lhs, rhs, lds_of<Tiles>(), rows, cols, depth, row0, col0);
        product.run();
        product.finish(epilogue);
        return;
    } else if constexpr (Tiles::Instruction::SYNC) {
        AsyncProduct<Tiles, WIDTH, Lhs, Rhs> product(lhs, rhs, lds_of<Tiles>(), rows, cols, depth, row0, col0);
        product.run();
        product.finish(epilogue);
        return;
    }
#endif
    if constexpr (!Tiles::Instruction::SYNC) {
        alignas(128) __shared__ u8 lds[Tiles::LDS_BYTES];
        Product<Tiles, WIDTH, Lhs, Rhs> product(lhs, rhs, lds, rows, cols, depth, row0, col0);
        product.run();
        hand_over<Tiles, WIDTH, WIDTH>(product.sums, rows, cols, row0, col0, epilogue);
    }
}

/// As `gemm_tile` for few rows and columns and a great depth: a tile is one workgroup of `WAVES` waves, each of which takes every
/// so many tiles along k for itself; their sums are added in LDS, always in the same order. `Tiles` is one wave's.
template <typename Tiles, int WAVES, int WIDTH, typename Lhs, typename Rhs, typename Epilogue>
GRAPHC_DEVICE void gemm_wave_k(int rows, int cols, int depth, const Lhs& lhs, const Rhs& rhs, const Epilogue& epilogue) {
    using I = typename Tiles::Instruction;
    using Sum = typename I::Sum;
    static_assert(Tiles::WAVES_M == 1 && Tiles::WAVES_N == 1 && !I::SYNC, "a tile is one wave's");
    constexpr int SUMS = Tiles::LHS * Tiles::RHS * I::SUM_ROWS * I::SUM_COLS, SUM_BYTES = SUMS * (int)sizeof(Sum) * I::LANES;
    alignas(128) __shared__ u8 lds[WAVES * (SUM_BYTES > Tiles::LDS_BYTES ? SUM_BYTES : Tiles::LDS_BYTES)];
    const int tiles_m = (rows + Tiles::BLOCK_M - 1) / Tiles::BLOCK_M, tiles_n = (cols + Tiles::BLOCK_N - 1) / Tiles::BLOCK_N;
    const TilePlace at = tile_of<Tiles::GROUP, Tiles::XCDS>((int)blockIdx.x, tiles_m, tiles_n);
    const int row0 = at.m * Tiles::BLOCK_M, col0 = at.n * Tiles::BLOCK_N;
    const int wave = wave_number<I::LANES>(), lane = (int)threadIdx.x % I::LANES;
    Product<Tiles, WIDTH, Lhs, Rhs, WAVES> product(lhs, rhs, lds + wave * Tiles::LDS_BYTES, rows, cols, depth, row0, col0, wave);
    product.run();

    // Each run of fragments is added up and handed over by one wave.
    using Place = Columns<Tiles, WIDTH>;
    constexpr int EACH = I::SUM_ROWS * I::SUM_COLS, RUN = Place::FUSED * EACH;
    Sum* const sums = (Sum*)lds;
    lds_barrier();
#pragma unroll
    for (int i = 0; i < Tiles::LHS; ++i) {
#pragma unroll
        for (int j = 0; j < Tiles::RHS; ++j) {
#pragma unroll
            for (int v = 0; v < EACH; ++v) {
                sums[((wave * Tiles::LHS + i) * Tiles::RHS + j) * EACH * I::LANES + v * I::LANES + lane] = product.sums[i][j][v];
            }
        }
    }
    lds_barrier();
#pragma unroll
    for (int i = 0; i < Tiles::LHS; ++i) {
#pragma unroll
        for (int run = 0; run < Place::RUNS; ++run) {
            if ((i * Place::RUNS + run) % WAVES == wave) {
                typename I::Sums total[Place::FUSED];
#pragma unroll
                for (int v = 0; v < RUN; ++v) {
                    const int from = (i * Tiles::RHS + run * Place::FUSED) * EACH * I::LANES + v * I::LANES + lane;
                    Sum sum = sums[from];
#pragma unroll
                    for (int w = 1; w < WAVES; ++w) sum = Sum(sum + sums[w * SUMS * I::LANES + from]);
                    total[v / EACH][v % EACH] = sum;
                }
                hand_over_run<Tiles, WIDTH, WIDTH>(total, rows, cols, row0 + i * I::ROWS, col0 + run * Place::RUN, epilogue);
            }
        }
    }
}

// ---- tiles that workgroups share

/// The runs of steps along k into which those of `SHARED` tiles are cut, one tile behind the other: `GROUPS` of them, whose lengths
/// differ by one step at most.
template <int GROUPS, int SHARED>
struct Runs {
    i64 steps;  // of a tile

    GRAPHC_DEVICE int start(int group) const { return (int)(group * (SHARED * steps) / GROUPS); }
    /// The run that has a step.
    GRAPHC_DEVICE int of(i64 step) const { return (int)(((step + 1) * GROUPS - 1) / (SHARED * steps)); }
};

/// Writes a workgroup's sums of a piece of a tile to scratch memory and draws a ticket. Of the workgroups that have pieces `first` to
/// `last` of the tile, the one that draws the last ticket gets the sums of all of them, added in their order, and `true`; it puts the
/// tickets back. `word` is a word of LDS that nobody needs.
template <typename Tiles, typename Sums, typename Sum>
GRAPHC_DEVICE bool add_pieces(Sums (&sums)[Tiles::LHS][Tiles::RHS], int first, int piece, int last, Sum* scratch, i32* ticket, i32* word) {
    using I = typename Tiles::Instruction;
    constexpr int EACH = I::SUM_ROWS * I::SUM_COLS, WIDE = 16 / (int)sizeof(Sum);
    constexpr int BLOCK = Tiles::BLOCK_M * Tiles::BLOCK_N;
    static_assert(EACH % WIDE == 0, "a lane's sums of a fragment are whole accesses");
    // A lane's sums lie so that a wave's accesses are whole lines.
    Sum* const mine = scratch + (int)threadIdx.x * WIDE;
#pragma unroll
    for (int i = 0; i < Tiles::LHS; ++i) {
#pragma unroll
        for (int j = 0; j < Tiles::RHS; ++j) {
#pragma unroll
            for (int v = 0; v < EACH; v += WIDE) {
                Vector<Sum, WIDE> wide;
#pragma unroll
                for (int w = 0; w < WIDE; ++w) wide[w] = sums[i][j][v + w];
                const int at = ((i * Tiles::RHS + j) * EACH + v) * Tiles::THREADS;
                *(Vector<Sum, WIDE>*)(mine + (i64)piece * BLOCK + at) = wide;
            }
        }
    }
    device_release();
    lds_barrier();
    if (threadIdx.x == 0) *word = draw_ticket(ticket);
    lds_barrier();
    if (same_in_all(*word) != last - first) return false;
    device_acquire();
    if (threadIdx.x == 0) *ticket = 0;
#pragma unroll
    for (int i = 0; i < Tiles::LHS; ++i) {
#pragma unroll
        for (int j = 0; j < Tiles::RHS; ++j) {
#pragma unroll
            for (int v = 0; v < EACH; ++v) sums[i][j][v] = 0;
        }
    }
    for (int p = first; p <= last; ++p) {
#pragma unroll
        for (int i = 0; i < Tiles::LHS; ++i) {
#pragma unroll
            for (int j = 0; j < Tiles::RHS; ++j) {
#pragma unroll
                for (int v = 0; v < EACH; v += WIDE) {
                    const int at = ((i * Tiles::RHS + j) * EACH + v) * Tiles::THREADS;
                    const auto wide = *(const Vector<Sum, WIDE>*)(mine + (i64)p * BLOCK + at);
#pragma unroll
                    for (int w = 0; w < WIDE; ++w) sums[i][j][v + w] += wide[w];
                }
            }
        }
    }
    return true;
}

/// As `gemm_tile`, where tiles do not go over the compute units in whole rounds: the first `GROUPS` workgroups share out the steps
/// along k of the first `SHARED` tiles, and every workgroup behind them has one of the others. `scratch` holds the sums of pieces of
/// tiles, `GROUPS + SHARED` blocks; `tickets` are zeros before and after, one for each shared tile.
template <typename Tiles, int GROUPS, int SHARED, int WIDTH, typename Lhs, typename Rhs, typename Epilogue, typename Sum>
GRAPHC_DEVICE void gemm_shared(int rows, int cols, int depth, const Lhs& lhs, const Rhs& rhs, const Epilogue& epilogue, Sum* scratch, i32* tickets) {
    static_assert(!Tiles::Instruction::SYNC, "tiles travel through registers");
    alignas(128) __shared__ u8 lds[Tiles::LDS_BYTES];
    const int tiles_m = (rows + Tiles::BLOCK_M - 1) / Tiles::BLOCK_M, tiles_n = (cols + Tiles::BLOCK_N - 1) / Tiles::BLOCK_N;
    const int steps = (depth + Tiles::BLOCK_K - 1) / Tiles::BLOCK_K, group = (int)blockIdx.x;
    const Runs<GROUPS, SHARED> runs{steps};
    int tile = SHARED + group - GROUPS, from = 0, left = steps;
    if (group < GROUPS) {
        const int start = runs.start(group);
        tile = start / steps, from = start % steps, left = runs.start(group + 1) - start;
    }
    while (left > 0) {
        const int to = from + left < steps ? from + left : steps;
        const TilePlace at = tile_of<Tiles::GROUP, Tiles::XCDS>(tile, tiles_m, tiles_n);
        const int row0 = at.m * Tiles::BLOCK_M, col0 = at.n * Tiles::BLOCK_N;
        const int end = to == steps ? depth : to * Tiles::BLOCK_K;
        Product<Tiles, WIDTH, Lhs, Rhs> product(lhs, rhs, lds, rows, cols, end, row0, col0, 0, from);
        product.run();
        bool complete = to - from == steps;
        if (!complete) {
            // Pieces are numbered by their workgroups and tiles together: where a workgroup has two, they are of two tiles.
            const i64 line = (i64)tile * steps;
            const int first = runs.of(line) + tile, last = runs.of(line + steps - 1) + tile;
            complete = add_pieces<Tiles>(product.sums, first, group + tile, last, scratch, tickets + tile, (i32*)lds);
        }
        if (complete) hand_over<Tiles, WIDTH, WIDTH>(product.sums, rows, cols, row0, col0, epilogue);
        left -= to - from;
        from = 0;
        ++tile;
        if (left > 0) lds_barrier();
    }
}

}  // namespace graphc
