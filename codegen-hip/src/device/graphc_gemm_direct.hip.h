// Products on gfx950 whose tiles are loaded straight to LDS, past the registers: several stages, of which the later
// ones stay on their way while one is multiplied. Fragments and products are those of `Product`.
#pragma once
#include "graphc_gemm.hip.h"

#if defined(__gfx950__)
namespace graphc {

/// What lanes load whose elements are outside their operand.
template <u32 WORD>
__device__ const Vector<u32, 4> filling = {WORD, WORD, WORD, WORD};

/// Starts to load 16 bytes of each lane to LDS, the lanes' chunks side by side from the byte address `to`, which all
/// lanes have.
///
/// The compiler does not know of these loads. Before every read of LDS that may be of the same memory it would wait
/// for its own, and it does not tell stages apart. Between the write of `m0` and the load is a wait state (LLVM:
/// `hasReadM0LdsDmaHazard`).
GRAPHC_DEVICE void load_to_lds(u32 to, const void* from) {
    asm volatile("s_nop 0\n\tglobal_load_lds_dwordx4 %1, off" ::"{m0}"(to), "v"(from) : "memory");
}

/// Waits until at most `COUNT` of this wave's loads are under way. They end in the order of their starts.
template <int COUNT>
GRAPHC_DEVICE void wait_for_loads() {
    static_assert(COUNT < 64, "the counter has six bits");
    asm volatile("s_waitcnt vmcnt(%0)" ::"n"(COUNT) : "memory");
}

/// Reads eight bytes of each lane and turns them among 16 lanes: lane number i gets the i-th element of each line.
template <int SIZE>
GRAPHC_DEVICE Vector<u32, 2> turned(const u8* from) {
    if constexpr (SIZE == 2) {
        using Address = __attribute__((address_space(3))) Vector<i16, 4>*;
        return bits_as<Vector<u32, 2>>(__builtin_amdgcn_ds_read_tr16_b64_v4i16((Address)from));
    } else {
        using Address = __attribute__((address_space(3))) Vector<i32, 2>*;
        return bits_as<Vector<u32, 2>>(__builtin_amdgcn_ds_read_tr8_b64_v2i32((Address)from));
    }
}

/// Where a tile's elements are in LDS that lie along the operand's rows: lines of `LINE` bytes, one for each k. Reads
/// that turn them take eight bytes of a lane: `LANES` lanes have neighbours of a line, and 16 lanes have `16 / LANES`
/// lines. Chunks of 16 bytes are permuted by the line's number, so that two such groups of lanes meet in no bank.
/// Those of a fragment read neighbours, or, with `ALTERNATE`, the lower and the upper halves of chunks by turns.
template <int LINE, int LANES, bool ALTERNATE>
struct LdsLines {
    static_assert(LINE == 64 || LINE % 128 == 0, "lines are half of 128 bytes, or whole ones");
    static_assert(LANES == 4 || (LANES == 2 && !ALTERNATE), "elements of two bytes, or of one");
    /// Chunks that are permuted among each other.
    static constexpr int AMONG = LINE % 256 == 0 ? 16 : LINE % 128 == 0 ? 8 : 4;

    static constexpr GRAPHC_DEVICE int permutation(int k) {
        const int groups = LANES == 2 ? (k >> 1 & 2) ^ (k >> 4 & 1) : ALTERNATE ? k >> 3 & 1 : k >> 2 & 2;
        return ((k << 3 & 8) ^ (k << 1 & 4) ^ groups) & (AMONG - 1);
    }
    static constexpr GRAPHC_DEVICE int address(int k, int chunk) { return k * LINE + ((chunk ^ permutation(k)) << 4); }
    /// The address with `k` and `chunk` added, which have no bit in common with those of `address`.
    static constexpr GRAPHC_DEVICE int moved(int address, int k, int chunk) {
        return (address ^ (((chunk ^ permutation(k)) & (AMONG - 1)) << 4)) + k * LINE + (chunk / AMONG * AMONG << 4);
    }
    struct Place {
        int k, chunk;
    };
    /// What is in chunk number `at` of the tile's memory: the inverse of `address`.
    static constexpr GRAPHC_DEVICE Place place(int at) {
        const int k = at / (LINE / 16);
        return Place{k, at % (LINE / 16) ^ permutation(k)};
    }
};

/// One operand's way to LDS. Elements that lie along the rows stay so in LDS, and are turned when they are read.
template <typename Operand, int BLOCK, int BLOCK_K, int THREADS, bool ALTERNATE>
struct DirectFetcher {
    using Element = typename Operand::Element;
    static constexpr bool TURNED = !Operand::ALONG_K;
    static constexpr int SIZE = (int)sizeof(Element), CHUNK = 16 / SIZE, BYTES = BLOCK * BLOCK_K * SIZE;
    /// Loads of a thread for a tile.
    static constexpr int LOADS = BYTES / (16 * THREADS);
    static_assert(IsInMemory<Operand>::value && Operand::WIDTH * SIZE == 16, "elements are loaded as they lie");
    static_assert(!TURNED || SIZE <= 2, "elements of one byte or two are turned");
    static_assert(LOADS * 16 * THREADS == BYTES, "all waves load as much");
    /// Elements of a lane that a read turns at once, and the lanes that have a line's.
    static constexpr int EACH = 8 / SIZE, LANES = 16 / EACH;
    using Lines = LdsLines<TURNED ? BLOCK * SIZE : 128, TURNED ? LANES : 4, ALTERNATE>;
    using Rows = LdsRows<BLOCK_K * SIZE>;

    /// Where a lane reads what is turned: from `row` on, of the group's first lines from `k` on its own.
    static GRAPHC_DEVICE int turned_at(int row, int k, int lane) {
        return Lines::address(k + lane % 16 / LANES, row / CHUNK) + row % CHUNK * SIZE;
    }

    /// Starts the loads from `FIRST` to `LAST` of the tile at `row0`, `k0`; rows past the last are the last. `PART`:
    /// the tile may reach past the depth, and is zero there.
    template <bool PART, int FIRST = 0, int LAST = LOADS>
    static GRAPHC_DEVICE void start(const Operand& operand, int row0, int rows, int k0, int depth, u32 lds) {
#pragma unroll
        for (int i = FIRST; i < LAST; ++i) {
            const int unit = i * THREADS + (int)threadIdx.x;
            int row, k;
            if constexpr (TURNED) {
                const auto at = Lines::place(unit);
                row = row0 + at.chunk * CHUNK, k = k0 + at.k;
            } else {
                const auto at = Rows::place(unit);
                row = row0 + at.row, k = k0 + at.chunk * CHUNK;
            }
            const int last = rows - (TURNED ? CHUNK : 1);
            row = row < last ? row : last;
            const void* from;
            if (PART && k >= depth) {
                from = &filling<0>;
            } else if (!operand.guard(row, k)) {
                from = &filling<Operand::FILL>;
            } else {
                from = operand.address(row, k);
            }
            load_to_lds(lds + (i * THREADS + wave_number<WAVE_LANES>() * WAVE_LANES) * 16, from);
        }
    }
};

/// A workgroup's product whose tiles are loaded straight to LDS. `PLACED` is the number of neighbouring columns that
/// a lane has.
template <typename Tiles, int PLACED, typename Lhs, typename Rhs>
struct DirectProduct : Product<Tiles, PLACED, Lhs, Rhs> {
    using Base = Product<Tiles, PLACED, Lhs, Rhs>;
    using I = typename Tiles::Instruction;
    using Place = typename Base::Place;
    static constexpr int LHS = Tiles::LHS, RHS = Tiles::RHS, STEPS = Tiles::STEPS, STAGES = Tiles::STAGES;
    /// Lanes of odd groups have the columns of a pair of fragments the other way round.
    static constexpr bool ALTERNATE = !Rhs::ALONG_K && Place::FUSED == 2;
    using LhsFetch = DirectFetcher<Lhs, Tiles::BLOCK_M, Tiles::BLOCK_K, Tiles::THREADS, false>;
    using RhsFetch = DirectFetcher<Rhs, Tiles::BLOCK_N, Tiles::BLOCK_K, Tiles::THREADS, ALTERNATE>;
    static constexpr int LOADS = LhsFetch::LOADS + RhsFetch::LOADS;
    static_assert(Place::FUSED <= 2, "eight columns of a lane at most");
    static_assert(Rhs::ALONG_K || PLACED == 4 || (PLACED == 8 && RhsFetch::SIZE == 2), "turned columns come in fours, or of two bytes in eights");

    u32 shared;

    GRAPHC_DEVICE DirectProduct(const Lhs& lhs, const Rhs& rhs, u8* lds, int rows, int cols, int depth, int row0, int col0)
        : Base(lhs, rhs, lds, rows, cols, depth, row0, col0), shared((u32)(unsigned long)(__attribute__((address_space(3))) u8*)lds) {
        // Groups of 16 lanes turn 16 elements of each of their lines.
        const int lane = (int)threadIdx.x % I::LANES, k = I::k_group(lane) * LhsFetch::CHUNK;
        if constexpr (LhsFetch::TURNED) {
            const int row = I::lhs_row(lane) / 16 * 16 + lane % LhsFetch::LANES * LhsFetch::EACH;
            this->left_at = LhsFetch::turned_at(Base::wave_m() * I::ROWS + row, k, lane);
        }
        if constexpr (RhsFetch::TURNED) {
            // The columns of a lane's neighbours are neighbours too: its first one says where they are.
            const int column = I::rhs_col(lane) / 16 * 16 + lane % RhsFetch::LANES * RhsFetch::EACH, group = I::group_of(column);
#pragma unroll
            for (int f = 0; f < Place::FUSED; ++f) {
                const int fused = ALTERNATE ? f ^ (group & 1) : f;
                const int row = Base::wave_n() * Place::RUN + Place::column(fused, group, I::place_of(column));
                this->right_at[f] = Base::LHS_BYTES + RhsFetch::turned_at(row, k, lane);
            }
        }
    }

    /// Starts to load a piece of tile number `tile` to a stage.
    template <bool PART, int PIECE = 0, int PIECES = 1>
    GRAPHC_DEVICE void start(int tile, int stage) {
        const int k0 = tile * Tiles::BLOCK_K;
        const u32 to = shared + stage * Base::STAGE_BYTES;
        constexpr int FROM = LOADS * PIECE / PIECES, TO = LOADS * (PIECE + 1) / PIECES, LEFT = LhsFetch::LOADS;
        LhsFetch::template start<PART, (FROM < LEFT ? FROM : LEFT), (TO < LEFT ? TO : LEFT)>(this->lhs, this->row0, this->rows, k0, this->depth, to);
        RhsFetch::template start<PART, (FROM < LEFT ? 0 : FROM - LEFT), (TO < LEFT ? 0 : TO - LEFT)>(this->rhs, this->col0, this->cols, k0, this->depth,
                                                                                                   to + Base::LHS_BYTES);
    }

    /// Reads the fragments of a step from a stage.
    GRAPHC_DEVICE void load(int stage, int step) {
        const u8* from = this->lds + stage * Base::STAGE_BYTES;
        auto& l = this->left[step % Base::BUFFERS];
        auto& r = this->right[step % Base::BUFFERS];
#pragma unroll
        for (int c = 0; c < I::CHUNKS; ++c) {
            const int chunk = (step * I::CHUNKS + c) * I::K_GROUPS;
#pragma unroll
            for (int j = 0; j < RHS; ++j) {
                const int row = j / Place::FUSED * (Tiles::WAVES_N * Place::RUN);
                read<RhsFetch>(r[j].chunks[c], from, this->right_at[j % Place::FUSED], row, chunk);
            }
#pragma unroll
            for (int i = 0; i < LHS; ++i) read<LhsFetch>(l[i].chunks[c], from, this->left_at, i * (Tiles::WAVES_M * I::ROWS), chunk);
        }
    }

    /// Reads a chunk along k of rows that are `row` and chunks that are `chunk` beyond those of `at`.
    template <typename Fetch>
    static GRAPHC_DEVICE void read(Chunk& to, const u8* from, int at, int row, int chunk) {
        if constexpr (!Fetch::TURNED) {
            to = *(const Chunk*)(from + Fetch::Rows::moved(at, row, chunk));
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u8* lines = from + Fetch::Lines::moved(at, chunk * Fetch::CHUNK + half * Fetch::EACH, row / Fetch::CHUNK);
                const auto words = turned<Fetch::SIZE>(lines);
                to[2 * half] = words[0], to[2 * half + 1] = words[1];
            }
        }
    }

    /// Multiplies a tile but for what waits for the next one. With each step a piece is started of the tile that
    /// takes the predecessor's place: of two stages all of it at once, because the next step along k waits for it.
    template <bool PART, int STEP = 0>
    GRAPHC_DEVICE void steps(int t, int stage, bool starts) {
        constexpr int PIECES = STAGES == 2 ? 1 : STEPS;
        if constexpr (STEP < STEPS) {
            if (!Tiles::AHEAD) this->load(stage, STEP);
            if constexpr (STEP < PIECES) {
                if (starts) start<PART, STEP, PIECES>(t + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
            }
            if (Tiles::AHEAD && STEP + 1 < STEPS) this->load(stage, STEP + 1);
            if (!Tiles::AHEAD || STEP + 1 < STEPS) this->multiply(STEP);
            if (!Tiles::AHEAD) this->keep_order();
            steps<PART, STEP + 1>(t, stage, starts);
        }
    }

    /// One tile, which is in LDS (and the fragments of its first step in registers, if they are read ahead);
    /// `UNDER_WAY` loads of the tiles behind the next one may stay on their way. `starts` says whether there is a
    /// tile to start, number `t + STAGES - 1`, and `PART` whether it may reach past the depth; `next` says whether
    /// there is a next tile.
    template <bool PART, int UNDER_WAY>
    GRAPHC_DEVICE void tile(int t, int stage, bool starts, bool next) {
        const int other = stage + 1 == STAGES ? 0 : stage + 1;
        steps<PART>(t, stage, starts);
        wait_for_loads<UNDER_WAY>();
        this->barrier();
        if constexpr (Tiles::AHEAD) {
            // After an odd number of steps the next tile's first fragments take the registers of the last ones.
            if (STEPS % 2 == 1) this->multiply(STEPS - 1);
            if (next) this->load(other, 0);
            if (STEPS % 2 == 0) this->multiply(STEPS - 1);
        }
    }

    GRAPHC_DEVICE void run() {
        const int whole = this->depth / Tiles::BLOCK_K, tiles = (this->depth + Tiles::BLOCK_K - 1) / Tiles::BLOCK_K;
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; ++stage) {
            if (stage < tiles) start<true>(stage, stage);
        }
        // With fewer tiles than stages there are fewer loads to leave.
        if (tiles >= STAGES - 1) wait_for_loads<(STAGES - 2) * LOADS>();
        else wait_for_loads<0>();
        this->barrier();
        if (Tiles::AHEAD) this->load(0, 0);
        int t = 0;
        // Stages take turns: as many tiles a turn make their addresses constants.
        for (; t + 2 * STAGES - 1 <= whole; t += STAGES) {
#pragma unroll
            for (int i = 0; i < STAGES; ++i) tile<false, (STAGES - 2) * LOADS>(t + i, i, true, true);
        }
        int stage = 0;
        for (; t < tiles; ++t) {
            tile<true, 0>(t, stage, t + STAGES - 1 < tiles, t + 1 < tiles);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        this->settle();
    }

    template <int WIDTH, typename Epilogue>
    GRAPHC_DEVICE void finish(const Epilogue& epilogue) {
        if constexpr (ALTERNATE) {
            const bool odd = (I::col_group((int)threadIdx.x % I::LANES) & 1) != 0;
#pragma unroll
            for (int i = 0; i < LHS; ++i) {
#pragma unroll
                for (int j = 0; j < RHS; j += 2) {
#pragma unroll
                    for (int v = 0; v < I::SUM_ROWS * I::SUM_COLS; ++v) {
                        const auto one = this->sums[i][j][v], two = this->sums[i][j + 1][v];
                        this->sums[i][j][v] = odd ? two : one;
                        this->sums[i][j + 1][v] = odd ? one : two;
                    }
                }
            }
        }
        hand_over<Tiles, PLACED, WIDTH>(this->sums, this->rows, this->cols, this->row0, this->col0, epilogue);
    }
};

/// As `gemm_tile`, with operands that lie in memory as they are multiplied and go straight to LDS.
template <typename Tiles, int WIDTH, typename Lhs, typename Rhs, typename Epilogue>
GRAPHC_DEVICE void gemm_direct(int rows, int cols, int depth, const Lhs& lhs, const Rhs& rhs, const Epilogue& epilogue) {
    const int tiles_m = (rows + Tiles::BLOCK_M - 1) / Tiles::BLOCK_M, tiles_n = (cols + Tiles::BLOCK_N - 1) / Tiles::BLOCK_N;
    const TilePlace at = tile_of<Tiles::GROUP, Tiles::XCDS>((int)blockIdx.x, tiles_m, tiles_n);
    alignas(256) __shared__ u8 lds[Tiles::LDS_BYTES];
    // What is turned on its way out of LDS has four neighbouring columns in a lane at least.
    constexpr int PLACED = !Rhs::ALONG_K && WIDTH < 4 ? 4 : WIDTH;
    DirectProduct<Tiles, PLACED, Lhs, Rhs> product(lhs, rhs, lds, rows, cols, depth, at.m * Tiles::BLOCK_M, at.n * Tiles::BLOCK_N);
    product.run();
    product.template finish<WIDTH>(epilogue);
}

}  // namespace graphc
#endif
