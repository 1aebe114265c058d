// Products on NVIDIA's Hopper by the instructions of a warp group, `wgmma`: they read the tiles where asynchronous copies have put them in
// LDS, by descriptors, and run beside what the warps do.
#pragma once
#include "graphc_gemm_async.hip.h"

#if defined(GRAPHC_CUDA)
namespace graphc {

/// What `Wgmma` is for a tiling: four warps have 16 rows each, in fragments of `mma.sync`.
template <int N, int K, typename In, typename Acc>
struct WgmmaLayout : Instruction<In, Acc, 128, 64, N, 4, K / 4, 2, N / 4> {
    static constexpr int STEP = K;
    static constexpr bool SYNC = true, DESCRIBED = true;
    /// A warp's sums of eight columns.
    using Part = MmaSyncLayout<K, In, Acc>;
    using Sums = typename Part::Sums[N / 8];
};

/// `multiply<LHS_TURNED, RHS_TURNED>(sums, lhs, rhs)` adds a step's product of the tiles that two descriptors name.
template <int M, int N, int K, typename In, typename Acc, typename Rhs = In>
struct Wgmma;

#define GRAPHC_PLACES_0 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GRAPHC_PLACES_1 \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GRAPHC_PLACES_2 \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define GRAPHC_PLACES_3 \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define GRAPHC_PLACES_64 GRAPHC_PLACES_0
#define GRAPHC_PLACES_128 GRAPHC_PLACES_0 ", " GRAPHC_PLACES_1
#define GRAPHC_PLACES_192 GRAPHC_PLACES_128 ", " GRAPHC_PLACES_2
#define GRAPHC_PLACES_256 GRAPHC_PLACES_192 ", " GRAPHC_PLACES_3
#define GRAPHC_PART(AT, J) AT(sums[J][0]), AT(sums[J][1]), AT(sums[J][2]), AT(sums[J][3])
#define GRAPHC_PARTS(AT, J) GRAPHC_PART(AT, J), GRAPHC_PART(AT, J + 1), GRAPHC_PART(AT, J + 2), GRAPHC_PART(AT, J + 3), \
    GRAPHC_PART(AT, J + 4), GRAPHC_PART(AT, J + 5), GRAPHC_PART(AT, J + 6), GRAPHC_PART(AT, J + 7)
#define GRAPHC_SUMS_64(AT) GRAPHC_PARTS(AT, 0)
#define GRAPHC_SUMS_128(AT) GRAPHC_SUMS_64(AT), GRAPHC_PARTS(AT, 8)
#define GRAPHC_SUMS_192(AT) GRAPHC_SUMS_128(AT), GRAPHC_PARTS(AT, 16)
#define GRAPHC_SUMS_256(AT) GRAPHC_SUMS_192(AT), GRAPHC_PARTS(AT, 24)
#define GRAPHC_WGMMA(N, IN, NAME, OTHERS)                                                                                \
    template <>                                                                                                          \
    struct Wgmma<64, N, 16, IN, f32> : WgmmaLayout<N, 16, IN, f32> {                                                     \
        template <bool LHS_TURNED, bool RHS_TURNED, typename Sums>                                                       \
        static GRAPHC_DEVICE void multiply(Sums& sums, u64 lhs, u64 rhs) {                                               \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME   \
                         " {" GRAPHC_PLACES_##N "}, " OTHERS ";\n}"                                                      \
                         : GRAPHC_SUMS_##N("+f")                                                                         \
                         : "l"(lhs), "l"(rhs), "n"((int)LHS_TURNED), "n"((int)RHS_TURNED));                              \
        }                                                                                                                \
    };
GRAPHC_WGMMA(64, f16, "f16.f16", "%32, %33, p, 1, 1, %34, %35")
GRAPHC_WGMMA(64, bf16, "bf16.bf16", "%32, %33, p, 1, 1, %34, %35")
GRAPHC_WGMMA(128, f16, "f16.f16", "%64, %65, p, 1, 1, %66, %67")
GRAPHC_WGMMA(128, bf16, "bf16.bf16", "%64, %65, p, 1, 1, %66, %67")
GRAPHC_WGMMA(192, f16, "f16.f16", "%96, %97, p, 1, 1, %98, %99")
GRAPHC_WGMMA(192, bf16, "bf16.bf16", "%96, %97, p, 1, 1, %98, %99")
GRAPHC_WGMMA(256, f16, "f16.f16", "%128, %129, p, 1, 1, %130, %131")
GRAPHC_WGMMA(256, bf16, "bf16.bf16", "%128, %129, p, 1, 1, %130, %131")
#undef GRAPHC_WGMMA
#define GRAPHC_WGMMA_OF_BYTES(N, OTHERS)                                                                                 \
    template <>                                                                                                          \
    struct Wgmma<64, N, 32, i8, i32> : WgmmaLayout<N, 32, i8, i32> {                                                     \
        template <bool LHS_TURNED, bool RHS_TURNED, typename Sums>                                                       \
        static GRAPHC_DEVICE void multiply(Sums& sums, u64 lhs, u64 rhs) {                                               \
            static_assert(!LHS_TURNED && !RHS_TURNED, "bytes lie along k");                                              \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8"   \
                         " {" GRAPHC_PLACES_##N "}, " OTHERS ";\n}"                                                      \
                         : GRAPHC_SUMS_##N("+r")                                                                         \
                         : "l"(lhs), "l"(rhs));                                                                          \
        }                                                                                                                \
    };
GRAPHC_WGMMA_OF_BYTES(64, "%32, %33, p")
GRAPHC_WGMMA_OF_BYTES(128, "%64, %65, p")
GRAPHC_WGMMA_OF_BYTES(192, "%96, %97, p")
GRAPHC_WGMMA_OF_BYTES(256, "%128, %129, p")
#undef GRAPHC_WGMMA_OF_BYTES
#undef GRAPHC_SUMS_256
#undef GRAPHC_SUMS_192
#undef GRAPHC_SUMS_128
#undef GRAPHC_SUMS_64
#undef GRAPHC_PARTS
#undef GRAPHC_PART
#undef GRAPHC_PLACES_256
#undef GRAPHC_PLACES_192
#undef GRAPHC_PLACES_128
#undef GRAPHC_PLACES_64
#undef GRAPHC_PLACES_3
#undef GRAPHC_PLACES_2
#undef GRAPHC_PLACES_1
#undef GRAPHC_PLACES_0

/// Has a sum computed here, and read after it.
GRAPHC_DEVICE void settle_sum(f32& sum) { asm volatile("" : "+f"(sum)::"memory"); }
GRAPHC_DEVICE void settle_sum(i32& sum) { asm volatile("" : "+r"(sum)::"memory"); }

/// Has what this thread copied to LDS seen by instructions that read it by descriptors.
GRAPHC_DEVICE void publish_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// Orders the products that follow behind accesses of their registers.
GRAPHC_DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Products begun since the last call are a group.
GRAPHC_DEVICE void end_product_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most `GROUPS` groups of products are under way.
template <int GROUPS>
GRAPHC_DEVICE void wait_product_groups() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

/// The descriptor of an operand's tile in panels of lines of 128 bytes. Eight lines are a unit: `UNITS` bytes lie from one to the next, and
/// `PANELS` from one panel to the next (PTX ISA, "Matrix descriptor": the stride and the leading dimension's offset).
template <int UNITS, int PANELS>
GRAPHC_DEVICE u64 descriptor(u32 at) {
    constexpr u64 FIXED = (u64)1 << 62 | (u64)(UNITS >> 4) << 32 | (u64)(PANELS >> 4) << 16;
    return FIXED | (u64)((at & 0x3ffff) >> 4);
}

/// A workgroup's product by `wgmma`: each warp group has 64 rows of every `64 * WAVES_M`, and all columns. `AHEAD` begins a tile's products
/// before those of the last one have ended, for which one stage more is in use.
template <typename Tiles, int WIDTH, typename Lhs, typename Rhs>
struct GroupProduct {
    using I = typename Tiles::Instruction;
    using Element = typename Tiles::Element;
    static constexpr int LHS = Tiles::LHS, STAGES = Tiles::STAGES, BLOCK_K = Tiles::BLOCK_K, STEPS = Tiles::STEPS;
    /// The sums as fragments of warps.
    using Parts = MatrixTile<typename I::Part, Tiles::BLOCK_M, Tiles::BLOCK_N, BLOCK_K, 4 * Tiles::WAVES_M, 1, STAGES>;
    static constexpr int PLACED = WIDTH < 2 ? 2 : WIDTH;
    using Place = Columns<Parts, PLACED>;
    using LhsFetch = AsyncFetcher<Lhs, Tiles::BLOCK_M, BLOCK_K, Tiles::THREADS, true, true>;
    using RhsFetch = AsyncFetcher<Rhs, Tiles::BLOCK_N, BLOCK_K, Tiles::THREADS, true, true>;
    static constexpr int STAGE_BYTES = LhsFetch::BYTES + RhsFetch::BYTES;
    /// Groups of products that go on while the next begins, and tiles whose copies are under way.
    static constexpr int LAG = Tiles::AHEAD ? 1 : 0, DISTANCE = STAGES - 1 - LAG;
    static_assert(LhsFetch::COPIED && RhsFetch::COPIED, "tiles are copied to LDS as they lie");
    static_assert(Tiles::WAVES_N == 1 && Tiles::RHS == 1, "a warp group has all columns");
    static_assert(BLOCK_K * sizeof(Element) % 128 == 0 && DISTANCE >= 1, "whole lines, and a copy under way");

    const Lhs& lhs;
    const Rhs& rhs;
    u32 shared;
    int rows, cols, depth, row0, col0;
    LhsFetch lhs_fetch;
    RhsFetch rhs_fetch;
    typename I::Sums sums[LHS];

    GRAPHC_DEVICE GroupProduct(const Lhs& lhs, const Rhs& rhs, u8* lds, int rows, int cols, int depth, int row0, int col0)
        : lhs(lhs), rhs(rhs), shared(shared_address(lds)), rows(rows), cols(cols), depth(depth), row0(row0), col0(col0) {
#pragma unroll
        for (int i = 0; i < LHS; ++i) {
#pragma unroll
            for (int j = 0; j < Tiles::BLOCK_N / 8; ++j) {
#pragma unroll
                for (int v = 0; v < 4; ++v) sums[i][j][v] = 0;
            }
        }
    }

    /// Starts the copies of a tile to its stage.
    GRAPHC_DEVICE void start(int tile, int stage) {
        const int k0 = tile * BLOCK_K;
        if (k0 + BLOCK_K <= depth) start_part<false>(k0, stage);
        else if (k0 < depth) start_part<true>(k0, stage);
        end_copy_group();
    }
    template <bool PART>
    GRAPHC_DEVICE void start_part(int k0, int stage) {
        const u32 at = shared + stage * STAGE_BYTES;
        lhs_fetch.template copy<PART, 1>(0, lhs, row0, rows, k0, depth, at);
        rhs_fetch.template copy<PART, 1>(0, rhs, col0, cols, k0, depth, at + LhsFetch::BYTES);
    }

    /// The descriptor of an operand's rows from `row` on (a multiple of 64) at a step.
    template <typename Fetch, int BLOCK>
    static GRAPHC_DEVICE u64 described(u32 tile, int row, int step) {
        if constexpr (Fetch::TURNED) {
            return descriptor<1024, BLOCK_K * 128>(tile + row / 64 * (BLOCK_K * 128) + step * 2048);
        } else {
            return descriptor<1024, 16>(tile + row * 128 + step / 4 * (BLOCK * 128) + step % 4 * 32);
        }
    }

    /// Begins the products of a tile.
    GRAPHC_DEVICE void multiply(int stage) {
        const u32 at = shared + stage * STAGE_BYTES;
        // Known to be the same in all of a warp's lanes.
        const int group = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
        begin_products();
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const u64 right = described<RhsFetch, Tiles::BLOCK_N>(at + LhsFetch::BYTES, 0, step);
#pragma unroll
            for (int i = 0; i < LHS; ++i) {
                const u64 left = described<LhsFetch, Tiles::BLOCK_M>(at, (i * Tiles::WAVES_M + group) * 64, step);
                I::template multiply<LhsFetch::TURNED, RhsFetch::TURNED>(sums[i], left, right);
            }
        }
        end_product_group();
    }

    GRAPHC_DEVICE void run() {
        const int tiles = (depth + BLOCK_K - 1) / BLOCK_K;
#pragma unroll
        for (int stage = 0; stage < DISTANCE; ++stage) start(stage, stage);
        int stage = 0, free = DISTANCE;
        // Without this the compiler sets sums to zero among the products, which then wait for each other.
        settle();
#pragma unroll 1
        for (int t = 0; t < tiles; ++t) {
            wait_copy_groups<DISTANCE - 1>();
            publish_copies();
            // The tile has come, and every warp has ended the products of the stage that is filled next.
            __syncthreads();
            // While products go on, copies are started before the next ones are asked for; else behind them.
            if (LAG > 0) start(t + DISTANCE, free);
            multiply(stage);
            if (LAG == 0) start(t + DISTANCE, free);
            wait_product_groups<LAG>();
            stage = stage + 1 < STAGES ? stage + 1 : 0;
            free = free + 1 < STAGES ? free + 1 : 0;
        }
        wait_product_groups<0>();
        settle();
    }

    /// Has the sums computed here, and read after it.
    GRAPHC_DEVICE void settle() {
#pragma unroll
        for (int i = 0; i < LHS; ++i) {
#pragma unroll
            for (int j = 0; j < Tiles::BLOCK_N / 8; ++j) {
#pragma unroll
                for (int v = 0; v < 4; ++v) settle_sum(sums[i][j][v]);
            }
        }
    }

    template <typename Epilogue>
    GRAPHC_DEVICE void finish(const Epilogue& epilogue) {
        if constexpr (PLACED > 2) {
#pragma unroll
            for (int i = 0; i < LHS; ++i) {
#pragma unroll
                for (int run = 0; run < Parts::RHS; run += Place::FUSED) gather_columns<Place::FUSED>(&sums[i][run]);
            }
        }
        hand_over<Parts, PLACED, WIDTH>(sums, rows, cols, row0, col0, epilogue);
    }
};

}  // namespace graphc
#endif
