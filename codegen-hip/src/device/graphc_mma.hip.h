// Matrix instructions of all targets behind one interface: which elements a lane holds, and the product itself.
//
// An instruction computes a piece of `out[row, col] += Σ_k lhs[row, k] · rhs[col, k]` with the lanes of one wave:
//   Element, Sum            the operands' type and the sums' type
//   LANES, ROWS, COLS       the wave's lanes and the size of the piece
//   K_GROUPS, K_EACH        groups of lanes share out k; each lane gives K_EACH neighbours of it
//   lhs_row(lane), rhs_col(lane), k_group(lane)      what a lane gives
//   SUM_ROWS, SUM_COLS      a lane has so many sums; sum (r, c) is element r * SUM_COLS + c of Sums
//   sum_row(lane, r), col_group(lane)                where they are: the lane's columns are those of its group
//   group_of(col), place_of(col)                     which group has a column, and the column's number c there
//   multiply<PART>(sums, lhs, rhs)                   the product of part PART of two fragments
//
// A fragment is what a lane reads from LDS at once, 16 bytes along k or more; several instructions use its parts. The order
// of k is the fragments' own: both operands have the same, so any order gives the same sum.
//
// AMD's instructions are called with the operands swapped: their first operand is `rhs`. So a lane's sums are neighbours
// along the columns of one row, and leave in wide stores.
#pragma once
#include "graphc_math.hip.h"
#include "graphc_vector.hip.h"

namespace graphc {

using f32 = float;
using f64 = double;

/// `N` values that belong together; no alignment is implied.
template <typename T, int N>
struct Pack {
    T lanes[N];
    GRAPHC_DEVICE T& operator[](int i) { return lanes[i]; }
    GRAPHC_DEVICE const T& operator[](int i) const { return lanes[i]; }
};

/// 16 bytes: what a lane moves at once.
using Chunk = Vector<u32, 4>;

/// What a lane reads of one operand for a step along k.
template <int CHUNKS>
struct Fragment {
    Chunk chunks[CHUNKS];

    /// Part number `part` of the fragment, as another type.
    template <typename T, int PART>
    GRAPHC_DEVICE T part() const {
        T value;
        copy_bytes<(int)sizeof(T)>(&value, (const u8*)chunks + PART * sizeof(T));
        return value;
    }
};

/// What follows from an instruction's own figures.
template <typename Element_, typename Sum_, int LANES_, int ROWS_, int COLS_, int K_GROUPS_, int K_EACH_, int SUM_ROWS_, int SUM_COLS_>
struct Instruction {
    using Element = Element_;
    using Sum = Sum_;
    static constexpr int LANES = LANES_, ROWS = ROWS_, COLS = COLS_;
    static constexpr int K_GROUPS = K_GROUPS_, K_EACH = K_EACH_, SUM_ROWS = SUM_ROWS_, SUM_COLS = SUM_COLS_;
    static constexpr int COL_GROUPS = COLS / SUM_COLS;
    /// Whether tiles are copied to LDS past the registers, from which operands come by `ldmatrix` in words of its own order; or the
    /// instruction reads them there by descriptors.
    static constexpr bool SYNC = false, DESCRIBED = false;
    /// Bytes that a lane gives to one instruction, chunks of a fragment, instructions that a fragment feeds.
    static constexpr int BYTES = K_EACH * (int)sizeof(Element);
    static constexpr int CHUNKS = BYTES > 16 ? BYTES / 16 : 1;
    static constexpr int PARTS = BYTES > 16 ? 1 : 16 / BYTES;
    /// Elements along k of one step: a fragment of every lane.
    static constexpr int STEP = K_GROUPS * CHUNKS * 16 / (int)sizeof(Element);
    using Operand = Fragment<CHUNKS>;
    using Sums = Vector<Sum, SUM_ROWS * SUM_COLS>;
    static_assert(LANES * SUM_ROWS * SUM_COLS == ROWS * COLS, "the lanes hold all sums");
};

// ---- one multiply-accumulate or dot product a lane: the wave is a grid of 8 rows

#if defined(__GFX9__)
constexpr int WAVE_LANES = 64;
#else
constexpr int WAVE_LANES = 32;
#endif

template <typename In, typename Acc, int K_EACH, int LANES = WAVE_LANES>
struct LaneProduct : Instruction<In, Acc, LANES, 8, LANES / 8, 1, K_EACH, 1, 1> {
    static constexpr GRAPHC_DEVICE int lhs_row(int lane) { return lane % 8; }
    static constexpr GRAPHC_DEVICE int rhs_col(int lane) { return lane / 8; }
    static constexpr GRAPHC_DEVICE int k_group(int) { return 0; }
    static constexpr GRAPHC_DEVICE int sum_row(int lane, int) { return lane % 8; }
    static constexpr GRAPHC_DEVICE int col_group(int lane) { return lane / 8; }
    static constexpr GRAPHC_DEVICE int group_of(int col) { return col; }
    static constexpr GRAPHC_DEVICE int place_of(int) { return 0; }
};

/// Multiply-accumulates in the sums' type, for every element type that converts to it.
template <typename In, typename Acc = In, int LANES = WAVE_LANES>
struct Fma : LaneProduct<In, Acc, (sizeof(In) < 4 ? 4 / (int)sizeof(In) : 1), LANES> {
    template <int PART, typename Sums, typename Operand>
    static GRAPHC_DEVICE void multiply(Sums& sums, const Operand& lhs, const Operand& rhs) {
        constexpr int EACH = Fma::K_EACH;
        const auto a = lhs.template part<Pack<In, EACH>, PART>(), b = rhs.template part<Pack<In, EACH>, PART>();
#pragma unroll
        for (int i = 0; i < EACH; ++i) sums[0] = math::multiply_add((Acc)widen(a[i]), (Acc)widen(b[i]), sums[0]);
    }
};

#if !defined(GRAPHC_AMD)

/// Dot products of `K` elements that share a register, where no instruction has them.
template <int K, typename In, typename Acc, int LANES = WAVE_LANES>
struct Dot : Fma<In, Acc, LANES> {
    static_assert(Fma<In, Acc, LANES>::K_EACH == K, "the elements of a register");
};

#else

/// Dot products of `K` elements that share a register.
template <int K, typename In, typename Acc, int LANES = WAVE_LANES>
struct Dot;

template <>
struct Dot<2, f16, f32, WAVE_LANES> : LaneProduct<f16, f32, 2> {
    template <int PART, typename Sums, typename Operand>
    static GRAPHC_DEVICE void multiply(Sums& sums, const Operand& lhs, const Operand& rhs) {
        using Two = Vector<_Float16, 2>;
        sums[0] = __builtin_amdgcn_fdot2(lhs.template part<Two, PART>(), rhs.template part<Two, PART>(), sums[0], false);
    }
};

/// gfx950, gfx11 and gfx12 have it.
template <>
struct Dot<2, bf16, f32, WAVE_LANES> : LaneProduct<bf16, f32, 2> {
    template <int PART, typename Sums, typename Operand>
    static GRAPHC_DEVICE void multiply(Sums& sums, const Operand& lhs, const Operand& rhs) {
        using Two = Vector<__bf16, 2>;
        sums[0] =
            __builtin_amdgcn_fdot2_f32_bf16(lhs.template part<Two, PART>(), rhs.template part<Two, PART>(), sums[0], false);
    }
};

template <>
struct Dot<4, i8, i32, WAVE_LANES> : LaneProduct<i8, i32, 4> {
    template <int PART, typename Sums, typename Operand>
    static GRAPHC_DEVICE void multiply(Sums& sums, const Operand& lhs, const Operand& rhs) {
        const int a = lhs.template part<int, PART>(), b = rhs.template part<int, PART>();
#if defined(__GFX11__) || defined(__GFX12__)
        sums[0] = __builtin_amdgcn_sudot4(true, a, true, b, sums[0], false);
#else
        sums[0] = __builtin_amdgcn_sdot4(a, b, sums[0], false);
#endif
    }
};

// ---- MFMA: gfx908, gfx90a, gfx942, gfx950, waves of 64

/// The lanes' elements of the dense instructions. A lane has one row; its columns come in runs of four.
template <int M, int K, typename In, typename Acc>
struct MfmaLayout : Instruction<In, Acc, 64, M, M, 64 / M, K * M / 64, 1, M * M / 64> {
    static constexpr GRAPHC_DEVICE int lhs_row(int lane) { return lane % M; }
    static constexpr GRAPHC_DEVICE int rhs_col(int lane) { return lane % M; }
    static constexpr GRAPHC_DEVICE int k_group(int lane) { return lane / M; }
    static constexpr GRAPHC_DEVICE int sum_row(int lane, int) { return lane % M; }
    static constexpr GRAPHC_DEVICE int col_group(int lane) { return lane / M; }
    static constexpr GRAPHC_DEVICE int group_of(int col) { return sizeof(Acc) == 8 ? col % 4 : col / 4 % (64 / M); }
    static constexpr GRAPHC_DEVICE int place_of(int col) {
        return sizeof(Acc) == 8 ? col / 4 : col / (256 / M) * 4 + col % 4;
    }
};

/// `Rhs` is the right operand's type, where that is another 8-bit float.
template <int M, int N, int K, typename In, typename Acc, typename Rhs = In>
struct Mfma;

// One row an instruction: which archs have it is a fact of the target; naming it elsewhere is what must not happen.
#define GRAPHC_MFMA(M, K, IN, ACC, OPERAND, BUILTIN) GRAPHC_MFMA_BY(M, K, IN, IN, ACC, OPERAND, BUILTIN)
#define GRAPHC_MFMA_BY(M, K, IN, RHS, ACC, OPERAND, BUILTIN)                                                    \
    template <>                                                                                                 \
    struct Mfma<M, M, K, IN, ACC, RHS> : MfmaLayout<M, K, IN, ACC> {                                            \
        template <int PART, typename Sums, typename Operand>                                                    \
        static GRAPHC_DEVICE void multiply(Sums& sums, const Operand& lhs, const Operand& rhs) {                \
            using Lane = OPERAND;                                                                               \
            sums = BUILTIN(rhs.template part<Lane, PART>(), lhs.template part<Lane, PART>(), sums, 0, 0, 0);    \
        }                                                                                                       \
    };
using f16x4 = Vector<_Float16, 4>;
using f16x8 = Vector<_Float16, 8>;
using f16x16 = Vector<_Float16, 16>;
using bf16x8 = Vector<__bf16, 8>;
using i16x2 = Vector<i16, 2>;
using i16x4 = Vector<i16, 4>;
using i16x8 = Vector<i16, 8>;
using i16x16 = Vector<i16, 16>;
using i32x2 = Vector<i32, 2>;
using i32x4 = Vector<i32, 4>;
// gfx908 and later
GRAPHC_MFMA(32, 8, f16, f32, f16x4, __builtin_amdgcn_mfma_f32_32x32x8f16)
GRAPHC_MFMA(16, 16, f16, f32, f16x4, __builtin_amdgcn_mfma_f32_16x16x16f16)
GRAPHC_MFMA(32, 2, f32, f32, f32, __builtin_amdgcn_mfma_f32_32x32x2f32)
GRAPHC_MFMA(16, 4, f32, f32, f32, __builtin_amdgcn_mfma_f32_16x16x4f32)
// gfx908, gfx90a
GRAPHC_MFMA(32, 4, bf16, f32, i16x2, __builtin_amdgcn_mfma_f32_32x32x4bf16)
GRAPHC_MFMA(16, 8, bf16, f32, i16x2, __builtin_amdgcn_mfma_f32_16x16x8bf16)
GRAPHC_MFMA(32, 8, i8, i32, i32, __builtin_amdgcn_mfma_i32_32x32x8i8)
GRAPHC_MFMA(16, 16, i8, i32, i32, __builtin_amdgcn_mfma_i32_16x16x16i8)
// gfx90a and later
GRAPHC_MFMA(32, 8, bf16, f32, i16x4, __builtin_amdgcn_mfma_f32_32x32x8bf16_1k)
GRAPHC_MFMA(16, 16, bf16, f32, i16x4, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k)
GRAPHC_MFMA(16, 4, f64, f64, f64, __builtin_amdgcn_mfma_f64_16x16x4f64)
// gfx942 and later; one type of each pair is gfx942's, the other gfx950's
GRAPHC_MFMA(32, 16, i8, i32, long, __builtin_amdgcn_mfma_i32_32x32x16_i8)
GRAPHC_MFMA(16, 32, i8, i32, long, __builtin_amdgcn_mfma_i32_16x16x32_i8)
GRAPHC_MFMA(32, 16, f8e4m3fnuz, f32, long, __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8)
GRAPHC_MFMA(16, 32, f8e4m3fnuz, f32, long, __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8)
GRAPHC_MFMA(32, 16, f8e4m3fn, f32, long, __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8)
GRAPHC_MFMA(16, 32, f8e4m3fn, f32, long, __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8)
GRAPHC_MFMA(32, 16, f8e5m2fnuz, f32, long, __builtin_amdgcn_mfma_f32_32x32x16_bf8_bf8)
GRAPHC_MFMA(16, 32, f8e5m2fnuz, f32, long, __builtin_amdgcn_mfma_f32_16x16x32_bf8_bf8)
GRAPHC_MFMA(32, 16, f8e5m2, f32, long, __builtin_amdgcn_mfma_f32_32x32x16_bf8_bf8)
GRAPHC_MFMA(16, 32, f8e5m2, f32, long, __builtin_amdgcn_mfma_f32_16x16x32_bf8_bf8)
// The builtins have the right operand first.
GRAPHC_MFMA_BY(32, 16, f8e4m3fnuz, f8e5m2fnuz, f32, long, __builtin_amdgcn_mfma_f32_32x32x16_bf8_fp8)
GRAPHC_MFMA_BY(16, 32, f8e4m3fnuz, f8e5m2fnuz, f32, long, __builtin_amdgcn_mfma_f32_16x16x32_bf8_fp8)
GRAPHC_MFMA_BY(32, 16, f8e5m2fnuz, f8e4m3fnuz, f32, long, __builtin_amdgcn_mfma_f32_32x32x16_fp8_bf8)
GRAPHC_MFMA_BY(16, 32, f8e5m2fnuz, f8e4m3fnuz, f32, long, __builtin_amdgcn_mfma_f32_16x16x32_fp8_bf8)
GRAPHC_MFMA_BY(32, 16, f8e4m3fn, f8e5m2, f32, long, __builtin_amdgcn_mfma_f32_32x32x16_bf8_fp8)
GRAPHC_MFMA_BY(16, 32, f8e4m3fn, f8e5m2, f32, long, __builtin_amdgcn_mfma_f32_16x16x32_bf8_fp8)
GRAPHC_MFMA_BY(32, 16, f8e5m2, f8e4m3fn, f32, long, __builtin_amdgcn_mfma_f32_32x32x16_fp8_bf8)
GRAPHC_MFMA_BY(16, 32, f8e5m2, f8e4m3fn, f32, long, __builtin_amdgcn_mfma_f32_16x16x32_fp8_bf8)
// gfx950
GRAPHC_MFMA(32, 16, f16, f32, f16x8, __builtin_amdgcn_mfma_f32_32x32x16_f16)
GRAPHC_MFMA(16, 32, f16, f32, f16x8, __builtin_amdgcn_mfma_f32_16x16x32_f16)
GRAPHC_MFMA(32, 16, bf16, f32, bf16x8, __builtin_amdgcn_mfma_f32_32x32x16_bf16)
GRAPHC_MFMA(16, 32, bf16, f32, bf16x8, __builtin_amdgcn_mfma_f32_16x16x32_bf16)
GRAPHC_MFMA(32, 32, i8, i32, i32x4, __builtin_amdgcn_mfma_i32_32x32x32_i8)
GRAPHC_MFMA(16, 64, i8, i32, i32x4, __builtin_amdgcn_mfma_i32_16x16x64_i8)
#undef GRAPHC_MFMA
#undef GRAPHC_MFMA_BY

// gfx950's instructions for floats of at most 8 bits: `KIND` and `RHS_KIND` name the operands' types, and no blocks are scaled.
#define GRAPHC_MFMA_F8(M, K, IN, KIND, RHS, RHS_KIND, BUILTIN)                                                     \
    template <>                                                                                                    \
    struct Mfma<M, M, K, IN, f32, RHS> : MfmaLayout<M, K, IN, f32> {                                               \
        template <int PART, typename Sums, typename Operand>                                                       \
        static GRAPHC_DEVICE void multiply(Sums& sums, const Operand& lhs, const Operand& rhs) {                   \
            using Lane = Vector<i32, 8>;                                                                           \
            const Lane a = rhs.template part<Lane, PART>(), b = lhs.template part<Lane, PART>();                   \
            sums = BUILTIN(a, b, sums, RHS_KIND, KIND, 0, 0, 0, 0);                                                \
        }                                                                                                          \
    };
GRAPHC_MFMA_F8(32, 64, f8e4m3fn, 0, f8e4m3fn, 0, __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4)
GRAPHC_MFMA_F8(16, 128, f8e4m3fn, 0, f8e4m3fn, 0, __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4)
GRAPHC_MFMA_F8(32, 64, f8e4m3fn, 0, f8e5m2, 1, __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4)
GRAPHC_MFMA_F8(16, 128, f8e4m3fn, 0, f8e5m2, 1, __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4)
GRAPHC_MFMA_F8(32, 64, f8e5m2, 1, f8e4m3fn, 0, __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4)
GRAPHC_MFMA_F8(16, 128, f8e5m2, 1, f8e4m3fn, 0, __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4)
GRAPHC_MFMA_F8(32, 64, f8e5m2, 1, f8e5m2, 1, __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4)
GRAPHC_MFMA_F8(16, 128, f8e5m2, 1, f8e5m2, 1, __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4)
#undef GRAPHC_MFMA_F8

// ---- WMMA: gfx11 and gfx12, waves of 32

#if defined(__GFX12__)
/// gfx12: the halves of the wave share out k, and have eight columns each.
template <typename In, typename Acc>
struct WmmaLayout : Instruction<In, Acc, 32, 16, 16, 2, 8, 1, 8> {
    static constexpr GRAPHC_DEVICE int lhs_row(int lane) { return lane % 16; }
    static constexpr GRAPHC_DEVICE int rhs_col(int lane) { return lane % 16; }
    static constexpr GRAPHC_DEVICE int k_group(int lane) { return lane / 16; }
    static constexpr GRAPHC_DEVICE int sum_row(int lane, int) { return lane % 16; }
    static constexpr GRAPHC_DEVICE int col_group(int lane) { return lane / 16; }
    static constexpr GRAPHC_DEVICE int group_of(int col) { return col / 8; }
    static constexpr GRAPHC_DEVICE int place_of(int col) { return col % 8; }
};
#else
/// gfx11: both halves of the wave give all of k, and have the even and the odd columns.
template <typename In, typename Acc>
struct WmmaLayout : Instruction<In, Acc, 32, 16, 16, 1, 16, 1, 8> {
    static constexpr GRAPHC_DEVICE int lhs_row(int lane) { return lane % 16; }
    static constexpr GRAPHC_DEVICE int rhs_col(int lane) { return lane % 16; }
    static constexpr GRAPHC_DEVICE int k_group(int) { return 0; }
    static constexpr GRAPHC_DEVICE int sum_row(int lane, int) { return lane % 16; }
    static constexpr GRAPHC_DEVICE int col_group(int lane) { return lane / 16; }
    static constexpr GRAPHC_DEVICE int group_of(int col) { return col % 2; }
    static constexpr GRAPHC_DEVICE int place_of(int col) { return col / 2; }
};
#endif

template <int M, int N, int K, typename In, typename Acc, typename Rhs = In>
struct Wmma;

#define GRAPHC_WMMA(IN, OPERAND, BUILTIN) GRAPHC_WMMA_BY(IN, IN, OPERAND, BUILTIN)
#define GRAPHC_WMMA_BY(IN, RHS, OPERAND, BUILTIN)                                                           \
    template <>                                                                                             \
    struct Wmma<16, 16, 16, IN, f32, RHS> : WmmaLayout<IN, f32> {                                           \
        template <int PART, typename Sums, typename Operand>                                                \
        static GRAPHC_DEVICE void multiply(Sums& sums, const Operand& lhs, const Operand& rhs) {            \
            using Lane = OPERAND;                                                                           \
            sums = BUILTIN(rhs.template part<Lane, PART>(), lhs.template part<Lane, PART>(), sums);         \
        }                                                                                                   \
    };
#if defined(__GFX12__)
GRAPHC_WMMA(f16, f16x8, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12)
GRAPHC_WMMA(bf16, bf16x8, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12)
GRAPHC_WMMA(f8e4m3fn, i32x2, __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12)
GRAPHC_WMMA(f8e5m2, i32x2, __builtin_amdgcn_wmma_f32_16x16x16_bf8_bf8_w32_gfx12)
GRAPHC_WMMA_BY(f8e4m3fn, f8e5m2, i32x2, __builtin_amdgcn_wmma_f32_16x16x16_bf8_fp8_w32_gfx12)
GRAPHC_WMMA_BY(f8e5m2, f8e4m3fn, i32x2, __builtin_amdgcn_wmma_f32_16x16x16_fp8_bf8_w32_gfx12)
#else
GRAPHC_WMMA(f16, f16x16, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32)
GRAPHC_WMMA(bf16, i16x16, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32)
#endif
#undef GRAPHC_WMMA
#undef GRAPHC_WMMA_BY

template <>
struct Wmma<16, 16, 16, i8, i32> : WmmaLayout<i8, i32> {
    template <int PART, typename Sums, typename Operand>
    static GRAPHC_DEVICE void multiply(Sums& sums, const Operand& lhs, const Operand& rhs) {
#if defined(__GFX12__)
        sums = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(
            true, rhs.template part<i32x2, PART>(), true, lhs.template part<i32x2, PART>(), sums, false);
#else
        sums = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(
            true, rhs.template part<i32x4, PART>(), true, lhs.template part<i32x4, PART>(), sums, false);
#endif
    }
};

#endif  // GRAPHC_AMD

#if defined(GRAPHC_CUDA)

// ---- mma.sync: sm_80 and later (8-bit floats: sm_89), waves of 32. The operands are not swapped: a lane has pairs of
// neighbours along the columns, in two rows. Operands are words as `ldmatrix` gives them, 32 bytes along k an instruction.

template <int K, typename In, typename Acc>
struct MmaSyncLayout : Instruction<In, Acc, 32, 16, 8, 4, K / 4, 2, 2> {
    static constexpr int STEP = K;
    static constexpr bool SYNC = true;
    static constexpr GRAPHC_DEVICE int sum_row(int lane, int r) { return lane / 4 + 8 * r; }
    static constexpr GRAPHC_DEVICE int col_group(int lane) { return lane % 4; }
    static constexpr GRAPHC_DEVICE int group_of(int col) { return col / 2; }
    static constexpr GRAPHC_DEVICE int place_of(int col) { return col % 2; }
};

template <int M, int N, int K, typename In, typename Acc, typename Rhs = In>
struct MmaSync;

#define GRAPHC_MMA_SYNC(K, IN, ACC, CONSTRAINT, NAME) GRAPHC_MMA_SYNC_BY(K, IN, IN, ACC, CONSTRAINT, NAME)
#define GRAPHC_MMA_SYNC_BY(K, IN, RHS, ACC, CONSTRAINT, NAME)                                                          \
    template <>                                                                                                        \
    struct MmaSync<16, 8, K, IN, ACC, RHS> : MmaSyncLayout<K, IN, ACC> {                                               \
        static GRAPHC_DEVICE void multiply(Vector<ACC, 4>& sums, const u32 (&lhs)[4], const u32 (&rhs)[2]) {           \
            asm("mma.sync.aligned." NAME " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"            \
                         : CONSTRAINT(sums[0]), CONSTRAINT(sums[1]), CONSTRAINT(sums[2]), CONSTRAINT(sums[3])          \
                         : "r"(lhs[0]), "r"(lhs[1]), "r"(lhs[2]), "r"(lhs[3]), "r"(rhs[0]), "r"(rhs[1]));              \
        }                                                                                                              \
    };
GRAPHC_MMA_SYNC(16, f16, f32, "+f", "m16n8k16.row.col.f32.f16.f16.f32")
GRAPHC_MMA_SYNC(16, bf16, f32, "+f", "m16n8k16.row.col.f32.bf16.bf16.f32")
GRAPHC_MMA_SYNC(32, i8, i32, "+r", "m16n8k32.row.col.s32.s8.s8.s32")
GRAPHC_MMA_SYNC(32, f8e4m3fn, f32, "+f", "m16n8k32.row.col.f32.e4m3.e4m3.f32")
GRAPHC_MMA_SYNC(32, f8e5m2, f32, "+f", "m16n8k32.row.col.f32.e5m2.e5m2.f32")
GRAPHC_MMA_SYNC_BY(32, f8e4m3fn, f8e5m2, f32, "+f", "m16n8k32.row.col.f32.e4m3.e5m2.f32")
GRAPHC_MMA_SYNC_BY(32, f8e5m2, f8e4m3fn, f32, "+f", "m16n8k32.row.col.f32.e5m2.e4m3.f32")
#undef GRAPHC_MMA_SYNC
#undef GRAPHC_MMA_SYNC_BY

#endif  // GRAPHC_CUDA

}  // namespace graphc
