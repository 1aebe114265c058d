// Products on NVIDIA's GPUs: asynchronous copies fill several stages of LDS, `ldmatrix` reads fragments, `mma.sync` multiplies.
#pragma once
#include "graphc_operand.hip.h"
#include "graphc_tiling.hip.h"

#if defined(GRAPHC_CUDA)
namespace graphc {

/// The stages' memory: the launch's beyond 48 KiB, the kernel's own below.
template <typename Tiles>
GRAPHC_DEVICE u8* lds_of() {
    if constexpr (Tiles::DYNAMIC_LDS) {
        extern __shared__ __align__(1024) u8 dynamic_lds[];
        return dynamic_lds;
    } else {
        alignas(1024) __shared__ u8 lds[Tiles::LDS_BYTES];
        return lds;
    }
}

/// The address of shared memory as its instructions take it.
GRAPHC_DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

/// Starts to copy `BYTES` to shared memory; of them `present` come from memory and the rest are zero.
template <int BYTES>
GRAPHC_DEVICE void copy_async(u32 to, const void* from, int present) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(present) : "memory");
    }
}
/// Writes `BYTES` of a word's repetitions to shared memory.
template <int BYTES>
GRAPHC_DEVICE void fill_shared(u32 to, u32 word) {
#pragma unroll
    for (int i = 0; i < BYTES; i += 4) asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + i), "r"(word) : "memory");
}
/// Copies started since the last call are a group.
GRAPHC_DEVICE void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most `GROUPS` groups are under way.
template <int GROUPS>
GRAPHC_DEVICE void wait_copy_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

/// Four matrices of eight rows of 16 bytes; each lane names one row. `TURNED` gives them transposed, for elements of 2 bytes.
template <bool TURNED>
GRAPHC_DEVICE void load_matrices(u32 from, u32& a, u32& b, u32& c, u32& d) {
    if constexpr (TURNED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(from) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(from) : "memory");
    }
}

/// Where a tile's elements are in LDS for instructions that read them by descriptors: panels of `LINES` lines of 128 bytes, whose chunks of
/// 16 bytes are permuted by the line's number (PTX's 128-byte swizzling).
template <int LINES>
struct LdsPanels {
    static constexpr GRAPHC_DEVICE int address(int line, int chunk) {
        return (chunk >> 3) * (LINES * 128) + line * 128 + (((chunk ^ line) & 7) << 4);
    }
};

/// One operand's way to LDS: copied as it lies where that can be, else through registers. Elements of 2 bytes that lie along the
/// rows stay so in LDS (`TURNED`), and `ldmatrix` or the descriptors turn them, unless what reads them does not (`MAY_TURN`).
template <typename Operand, int BLOCK, int BLOCK_K, int THREADS, bool MAY_TURN = true, bool PANELS = false>
struct AsyncFetcher {
    using Element = typename Operand::Element;
    static constexpr int SIZE = (int)sizeof(Element), COPY = Operand::WIDTH * SIZE;
    static constexpr bool WHOLE = BLOCK * SIZE >= 128 && (PANELS ? BLOCK * SIZE % 128 == 0 : (BLOCK & (BLOCK - 1)) == 0);
    static constexpr bool COPIED = IsInMemory<Operand>::value && COPY >= 4 && (Operand::ALONG_K || (MAY_TURN && SIZE == 2 && WHOLE));
    static constexpr bool TURNED = COPIED && !Operand::ALONG_K;
    static constexpr int LINE = (TURNED ? BLOCK : BLOCK_K) * SIZE, BYTES = BLOCK * BLOCK_K * SIZE;
    static constexpr int COPIES = BYTES / COPY, EACH = (COPIES + THREADS - 1) / THREADS;
    struct Nothing {};
    template <bool YES, typename A, typename B> struct Choose { using type = A; };
    template <typename A, typename B> struct Choose<false, A, B> { using type = B; };
    using Rows = typename Choose<PANELS, LdsPanels<BYTES / LINE>, LdsRows<LINE>>::type;
    typename Choose<COPIED, Nothing, Fetcher<Operand, BLOCK, BLOCK_K, THREADS>>::type registers;

    /// Starts to copy piece number `piece` of `PIECES` of a tile to LDS. `PART`: the tile may reach past the depth.
    template <bool PART, int PIECES>
    GRAPHC_DEVICE void copy(int piece, const Operand& operand, int row0, int rows, int k0, int depth, u32 lds) const {
        // Hidden from the compiler: it would keep an address a copy in registers from tile to tile, which are scarce here.
        asm volatile("" : "+r"(row0));
#pragma unroll
        for (int i = EACH * piece / PIECES; i < EACH * (piece + 1) / PIECES; ++i) {
            const int unit = i * THREADS + (int)threadIdx.x;
            if (COPIES % THREADS != 0 && unit >= COPIES) break;
            const int line = unit / (LINE / COPY), byte = unit % (LINE / COPY) * COPY, along = byte / SIZE;
            const int last = rows - (TURNED ? Operand::WIDTH : 1), at = row0 + (TURNED ? along : line);
            const int row = at < last ? at : last, k = k0 + (TURNED ? line : along);
            int present = COPY;
            if constexpr (PART) {
                const int left = (depth - k) * (TURNED ? COPY : SIZE);
                present = left < 0 ? 0 : left < COPY ? left : COPY;
            }
            const u32 to = lds + Rows::address(line, byte / 16) + byte % 16;
            if (!operand.guard(row, k)) {
                present = 0;
                if constexpr (Operand::FILL != 0) {
                    fill_shared<COPY>(to, Operand::FILL);
                    continue;
                }
            }
            copy_async<COPY>(to, operand.address(row, k), present);
        }
    }
};

/// Swaps the lane number's bit `BIT` with the number of the value.
template <int BIT, typename T>
GRAPHC_DEVICE void exchange(T& zero, T& one) {
    const bool upper = (threadIdx.x & BIT) != 0;
    const T other = from_other_lane<BIT>(upper ? zero : one);
    zero = upper ? other : zero;
    one = upper ? one : other;
}

/// Four lanes have pairs of columns of every fragment of a run of `FUSED`: afterwards each has neighbouring pairs.
template <int FUSED, typename Sums>
GRAPHC_DEVICE void gather_columns(Sums* run) {
    constexpr int LAST = FUSED - 1;
#pragma unroll
    for (int v = 0; v < 4; ++v) {
        if constexpr (FUSED == 4) {
            exchange<2>(run[0][v], run[2][v]);
            exchange<2>(run[1][v], run[LAST][v]);
            exchange<1>(run[0][v], run[1][v]);
            exchange<1>(run[2][v], run[LAST][v]);
        } else {
            static_assert(FUSED == 2 || FUSED == 4, "at most eight columns at once");
            exchange<2>(run[0][v], run[1][v]);
            exchange<1>(run[0][v], run[1][v]);
        }
    }
}

/// A workgroup's product by `mma.sync`.
template <typename Tiles, int WIDTH, typename Lhs, typename Rhs>
struct AsyncProduct {
    using I = typename Tiles::Instruction;
    static constexpr int LHS = Tiles::LHS, RHS = Tiles::RHS, STEPS = Tiles::STEPS, STAGES = Tiles::STAGES;
    /// Neighbours that a lane has: pairs at least.
    static constexpr int PLACED = WIDTH < 2 ? 2 : WIDTH;
    using Place = Columns<Tiles, PLACED>;
    using LhsFetch = AsyncFetcher<Lhs, Tiles::BLOCK_M, Tiles::BLOCK_K, Tiles::THREADS>;
    using RhsFetch = AsyncFetcher<Rhs, Tiles::BLOCK_N, Tiles::BLOCK_K, Tiles::THREADS>;
    static constexpr int STAGE_BYTES = LhsFetch::BYTES + RhsFetch::BYTES;
    static_assert(STEPS % 2 == 0 && RHS % 2 == 0, "steps and columns come in pairs");

    const Lhs& lhs;
    const Rhs& rhs;
    u8* lds;
    u32 shared;
    int rows, cols, depth, row0, col0;
    LhsFetch lhs_fetch;
    RhsFetch rhs_fetch;
    typename I::Sums sums[LHS][RHS];
    /// Fragments of the step at hand, and of the next if they are read ahead.
    static constexpr int BUFFERS = Tiles::AHEAD ? 2 : 1;
    u32 left[BUFFERS][LHS][4], right[BUFFERS][RHS][2];
    /// Where this lane's first matrices are; of the right operand for each pair of fragments of a run.
    static constexpr int PAIRS = Place::FUSED > 2 ? Place::FUSED / 2 : 1;
    int left_at, right_at[PAIRS];

    GRAPHC_DEVICE AsyncProduct(const Lhs& lhs, const Rhs& rhs, u8* lds, int rows, int cols, int depth, int row0, int col0)
        : lhs(lhs), rhs(rhs), lds(lds), shared(shared_address(lds)), rows(rows), cols(cols), depth(depth), row0(row0), col0(col0) {
        const int lane = (int)threadIdx.x % 32, eight = lane % 8, second = lane / 8 % 2, third = lane / 16;
        if constexpr (LhsFetch::TURNED) {
            left_at = LhsFetch::Rows::address(third * 8 + eight, wave_m() * 2 + second);
        } else {
            left_at = LhsFetch::Rows::address(wave_m() * 16 + second * 8 + eight, third);
        }
#pragma unroll
        for (int p = 0; p < PAIRS; ++p) {
            const int fragment = p * 2 + third;
            if constexpr (RhsFetch::TURNED) {
                right_at[p] = RhsFetch::Rows::address(second * 8 + eight, column_of(fragment, 0) / 8);
            } else {
                right_at[p] = RhsFetch::Rows::address(column_of(fragment, eight), second);
            }
            right_at[p] += LhsFetch::BYTES;
        }
#pragma unroll
        for (int i = 0; i < LHS; ++i) {
#pragma unroll
            for (int j = 0; j < RHS; ++j) {
#pragma unroll
                for (int v = 0; v < 4; ++v) sums[i][j][v] = 0;
            }
        }
    }

    static GRAPHC_DEVICE int wave_m() { return (int)threadIdx.x / 32 / Tiles::WAVES_N; }
    static GRAPHC_DEVICE int wave_n() { return (int)threadIdx.x / 32 % Tiles::WAVES_N; }

    /// The block's column of a fragment's column number `col`. Fragments that `ldmatrix` turns have their columns in order.
    static GRAPHC_DEVICE int column_of(int fragment, int col) {
        const int run = fragment / Place::FUSED, fused = fragment % Place::FUSED;
        const int within = RhsFetch::TURNED ? fused * 8 + col : Place::column(fused, I::group_of(col), I::place_of(col));
        return (run * Tiles::WAVES_N + wave_n()) * Place::RUN + within;
    }

    /// Starts a piece of the copies of a tile to its stage; what goes through registers is written with the first piece.
    template <int PIECES>
    GRAPHC_DEVICE void start(int piece, int tile, int stage) {
        const int k0 = tile * Tiles::BLOCK_K;
        if (k0 + Tiles::BLOCK_K <= depth) start_part<false, PIECES>(piece, k0, stage);
        else if (k0 < depth) start_part<true, PIECES>(piece, k0, stage);
        if (piece == PIECES - 1) end_copy_group();
    }
    template <bool PART, int PIECES>
    GRAPHC_DEVICE void start_part(int piece, int k0, int stage) {
        const int at = stage * STAGE_BYTES;
        if constexpr (LhsFetch::COPIED) {
            lhs_fetch.template copy<PART, PIECES>(piece, lhs, row0, rows, k0, depth, shared + at);
        } else if (piece == 0) {
            lhs_fetch.registers.write(lds + at);
        }
        if constexpr (RhsFetch::COPIED) {
            rhs_fetch.template copy<PART, PIECES>(piece, rhs, col0, cols, k0, depth, shared + at + LhsFetch::BYTES);
        } else if (piece == 0) {
            rhs_fetch.registers.write(lds + at + LhsFetch::BYTES);
        }
    }
    /// Reads a tile of what goes through registers.
    GRAPHC_DEVICE void read(int tile) {
        if constexpr (LhsFetch::COPIED && RhsFetch::COPIED) return;
        const int k0 = tile * Tiles::BLOCK_K;
        if (k0 + Tiles::BLOCK_K <= depth) read_part<false>(k0);
        else if (k0 < depth) read_part<true>(k0);
    }
    template <bool PART>
    GRAPHC_DEVICE void read_part(int k0) {
        if constexpr (!LhsFetch::COPIED) lhs_fetch.registers.template read<PART>(lhs, row0, rows, k0, depth);
        if constexpr (!RhsFetch::COPIED) rhs_fetch.registers.template read<PART>(rhs, col0, cols, k0, depth);
    }

    /// Reads the fragments of a step from a stage.
    GRAPHC_DEVICE void load(int stage, int step) {
        const int at = stage * STAGE_BYTES;
#pragma unroll
        for (int i = 0; i < LHS; ++i) {
            const int row = i * Tiles::WAVES_M * 16;
            const int from = LhsFetch::TURNED ? LhsFetch::Rows::moved(left_at, step * 16, row / 8) : LhsFetch::Rows::moved(left_at, row, step * 2);
            u32(&to)[4] = left[step % BUFFERS][i];
            load_matrices<LhsFetch::TURNED>(shared + at + from, to[0], to[1], to[2], to[3]);
        }
#pragma unroll
        for (int j = 0; j < RHS; j += 2) {
            // A pair of runs of one fragment each is a run for this purpose.
            constexpr int TOGETHER = PAIRS * 2;
            const int col = j / TOGETHER * (TOGETHER * 8) * Tiles::WAVES_N;
            const int first = right_at[j % TOGETHER / 2];
            const int from = RhsFetch::TURNED ? RhsFetch::Rows::moved(first, step * 16, col / 8) : RhsFetch::Rows::moved(first, col, step * 2);
            u32(&to)[RHS][2] = right[step % BUFFERS];
            load_matrices<RhsFetch::TURNED>(shared + at + from, to[j][0], to[j][1], to[j + 1][0], to[j + 1][1]);
        }
    }

    GRAPHC_DEVICE void multiply(int step) {
#pragma unroll
        for (int i = 0; i < LHS; ++i) {
#pragma unroll
            for (int j = 0; j < RHS; ++j) {
                // There and back, so that neighbouring instructions share an operand.
                const int turn = i % 2 == 0 ? j : RHS - 1 - j;
                I::multiply(sums[i][turn], left[step % BUFFERS][i], right[step % BUFFERS][turn]);
            }
        }
    }

    GRAPHC_DEVICE void run() {
        const int tiles = (depth + Tiles::BLOCK_K - 1) / Tiles::BLOCK_K;
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; ++stage) {
            read(stage);
            start<1>(0, stage, stage);
        }
        read(STAGES - 1);
        wait_copy_groups<STAGES - 2>();
        __syncthreads();
        if (Tiles::AHEAD) load(0, 0);
        int stage = 0, free = STAGES - 1;
        for (int t = 0; t < tiles; ++t) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                if (!Tiles::AHEAD) load(stage, step);
                if (step == STEPS - 1) {
                    // Every wave has read this tile's last fragments; the next tile has come.
                    wait_copy_groups<STAGES - 2>();
                    __syncthreads();
                    stage = stage + 1 < STAGES ? stage + 1 : 0;
                    free = free + 1 < STAGES ? free + 1 : 0;
                }
                if (Tiles::AHEAD) load(stage, (step + 1) % STEPS);
                if (step < STEPS - 1) start<STEPS - 1>(step, t + STAGES - 1, free);
                if (step == 0) read(t + STAGES);
                multiply(step);
            }
        }
    }

    template <typename Epilogue>
    GRAPHC_DEVICE void finish(const Epilogue& epilogue) {
        if constexpr (RhsFetch::TURNED && PLACED > 2) {
#pragma unroll
            for (int i = 0; i < LHS; ++i) {
#pragma unroll
                for (int run = 0; run < RHS; run += Place::FUSED) gather_columns<Place::FUSED>(&sums[i][run]);
            }
        }
        hand_over<Tiles, PLACED, WIDTH>(sums, rows, cols, row0, col0, epilogue);
    }
};

}  // namespace graphc
#endif
