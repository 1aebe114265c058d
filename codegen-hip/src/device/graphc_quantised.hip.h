// Right operands of products that are stored in four or eight bits an element, integers or floats: read as they lie,
// made numbers in registers.
//
//   quantised<T, Stored, W>(address, scale [, zero])   W neighbours along k of the type `Stored`, which share a scale and a zero
//                                                      point; the product takes `(x - zero) * scale` in the type T
//
// `address(row, k)` is that of the byte the neighbours begin with, aligned to all of them; `scale` and `zero` give floats.
#pragma once
#include "graphc_operand.hip.h"

namespace graphc {

/// How elements lie in words. `FLIP` makes signed integers unsigned, `BIAS` is what they are larger by then; floats are
/// what they are.
template <int BITS_, int BIAS_, u32 FLIP_, bool FLOAT_ = false>
struct Packed { static constexpr int BITS = BITS_, BIAS = BIAS_; static constexpr u32 FLIP = FLIP_; static constexpr bool FLOAT = FLOAT_; };
template <typename Stored> struct Packing;
template <> struct Packing<i4> : Packed<4, 8, 0x88888888u> {};
template <> struct Packing<u4> : Packed<4, 0, 0> {};
template <> struct Packing<i8> : Packed<8, 128, 0x80808080u> {};
template <> struct Packing<u8> : Packed<8, 0, 0> {};
template <> struct Packing<f8e4m3fn> : Packed<8, 0, 0, true> {};
template <> struct Packing<f8e4m3fnuz> : Packed<8, 0, 0, true> {};
template <> struct Packing<f8e5m2> : Packed<8, 0, 0, true> {};
template <> struct Packing<f8e5m2fnuz> : Packed<8, 0, 0, true> {};

/// Integer number `i` of a word that is unsigned, as a float: one conversion, for the hardware converts bytes.
template <int BITS>
GRAPHC_DEVICE float unsigned_number(u32 word, int i) {
    if constexpr (BITS == 8) {
        return (float)(word >> (8 * i) & 0xffu);
    } else {
        const u32 halves = (i % 2 == 0 ? word : word >> 4) & 0x0f0f0f0fu;
        return (float)(halves >> (i / 2 * 8) & 0xffu);
    }
}

/// Element number `i` of a word whose integers are unsigned, as a float.
template <typename Stored>
GRAPHC_DEVICE float number_of(u32 word, int i) {
    if constexpr (Packing<Stored>::FLOAT) return widen(Stored{(u8)(word >> (8 * i))});
    else return unsigned_number<Packing<Stored>::BITS>(word, i);
}

/// The number at `at` of a word as part of a pair in the order in which `pairs` has them.
template <int BITS>
constexpr GRAPHC_DEVICE int pair_of(int at) { return BITS == 4 ? at % 4 : at / 2; }
template <int BITS>
constexpr GRAPHC_DEVICE int half_of(int at) { return BITS == 4 ? at / 4 : at % 2; }

#if defined(GRAPHC_AMD)
using HalfPair = Vector<_Float16, 2>;

/// Halves that integers are put into the mantissa of: the integer adds to this. For four bits it is as small as lets one of the pairs
/// stay where it is in the word. Floats are halves of their own.
template <typename Stored>
constexpr int HALF_BASE = Packing<Stored>::FLOAT ? 0 : Packing<Stored>::BITS == 4 ? 64 : 1024;

/// The integers of a word, each with `HALF_BASE` and its bias added, as exact halves: of four bits elements `p` and `p + 4` are pair
/// `p`, of eight bits elements `2 p` and `2 p + 1`.
template <typename Stored>
GRAPHC_DEVICE void pairs(u32 word, HalfPair (&out)[16 / Packing<Stored>::BITS]) {
    using P = Packing<Stored>;
    if constexpr (P::FLOAT) {
        out[0] = bits_as<HalfPair>(pair_of_halves<Stored, false>(word));
        out[1] = bits_as<HalfPair>(pair_of_halves<Stored, true>(word));
        return;
    }
    const u32 flipped = word ^ P::FLIP;
    // One instruction masks and adds, but it takes one literal at most.
    u32 mask = 0x00f000f0u, base = 0x54005400u;
    if constexpr (P::BITS == 4) asm("" : "+s"(mask), "+v"(base));
#pragma unroll
    for (int p = 0; p < 16 / P::BITS; ++p) {
        u32 bits;
        if constexpr (P::BITS == 4) bits = ((p == 0 ? flipped << 4 : flipped >> (4 * p - 4)) & mask) | base;
        else bits = __builtin_amdgcn_perm(0x64646464u, flipped, p == 0 ? 0x04010400u : 0x04030402u);
        out[p] = bits_as<HalfPair>(bits);
    }
}
#endif

/// A product's operand of quantised elements.
template <typename T, typename Stored_, int WIDTH_, bool ZERO_, typename Address, typename Scale, typename Zero>
struct Quantised {
    using Element = T;
    using Stored = Stored_;
    static constexpr bool ALONG_K = true, ZERO = ZERO_;
    static constexpr int WIDTH = WIDTH_, BITS = Packing<Stored>::BITS, BYTES = WIDTH * BITS / 8, EACH_WORD = 32 / BITS;
    static_assert(BYTES >= 1 && BYTES <= 16, "neighbours come in one access");
    /// Whether integers are multiplied as halves, and what each has too much then or otherwise.
#if defined(GRAPHC_AMD)
    static constexpr bool IN_PAIRS = IsSame<T, f16>::value && (!Packing<Stored>::FLOAT || CONVERTED_IN_PAIRS<T, Stored>);
    static constexpr bool HALVES = IN_PAIRS && WIDTH % EACH_WORD == 0;
    static constexpr int OFFSET = Packing<Stored>::BIAS + (HALVES ? HALF_BASE<Stored> : 0);
#else
    static constexpr bool HALVES = false;
    static constexpr int OFFSET = Packing<Stored>::BIAS;
#endif
    Address address;
    Scale scale;
    Zero zero;

    /// Neighbours as they are stored, and what makes numbers of them.
    struct Group {
        Words<BYTES> stored;
        float scale, zero;
    };

    GRAPHC_DEVICE Group read(int row, int k) const {
        return Group{load_words<BYTES>(address(row, k)), scale(row, k), zero(row, k)};
    }
    GRAPHC_DEVICE Group read_once(int row, int k) const {
        return Group{load_words_once<BYTES>(address(row, k)), scale(row, k), zero(row, k)};
    }
    /// As `read`; past the depth the numbers are zero. The depth is a multiple of the width.
    GRAPHC_DEVICE Group read_before(int row, int k, int depth) const { return k < depth ? read(row, k) : Group{}; }

    /// Elements of a word, of a group that has fewer too.
    static constexpr int IN_WORD = WIDTH < EACH_WORD ? WIDTH : EACH_WORD;

    /// The numbers of a group.
    static GRAPHC_DEVICE void numbers(const Group& group, T (&out)[WIDTH]) {
        const float offset = -(group.zero * group.scale);
#pragma unroll
        for (int w = 0; w < Words<BYTES>::COUNT; ++w) {
#if defined(GRAPHC_AMD)
            if constexpr (IN_PAIRS) {
                HalfPair halves[16 / BITS];
                pairs<Stored>(group.stored.words[w], halves);
                constexpr int BASE = HALF_BASE<Stored> + Packing<Stored>::BIAS;
#pragma unroll
                for (int p = 0; p < 16 / BITS && BASE != 0; ++p) halves[p] = halves[p] - HalfPair{(_Float16)BASE, (_Float16)BASE};
#pragma unroll
                for (int i = 0; i < IN_WORD; ++i) {
                    const float integer = (float)halves[pair_of<BITS>(i)][half_of<BITS>(i)];
                    out[w * EACH_WORD + i] = f16{bits_as<u16>((_Float16)math::multiply_add(integer, group.scale, offset))};
                }
                continue;
            }
#endif
            const u32 word = group.stored.words[w] ^ Packing<Stored>::FLIP;
#pragma unroll
            for (int i = 0; i < IN_WORD; ++i) {
                const float integer = number_of<Stored>(word, i) - (float)Packing<Stored>::BIAS;
                out[w * EACH_WORD + i] = cast<T>(math::multiply_add(integer, group.scale, offset));
            }
        }
    }
};

template <typename Operand> struct IsQuantised { static constexpr bool value = false; };
template <typename T, typename Stored, int WIDTH, bool ZERO, typename Address, typename Scale, typename Zero>
struct IsQuantised<Quantised<T, Stored, WIDTH, ZERO, Address, Scale, Zero>> { static constexpr bool value = true; };

struct NoZero {
    GRAPHC_DEVICE float operator()(int, int) const { return 0.0f; }
};

/// Elements that share a scale, with zero points or without.
template <typename T, typename Stored, int WIDTH, typename Address, typename Scale, typename Zero>
GRAPHC_DEVICE Quantised<T, Stored, WIDTH, true, Address, Scale, Zero> quantised(const Address& address, const Scale& scale, const Zero& zero) {
    return {address, scale, zero};
}
template <typename T, typename Stored, int WIDTH, typename Address, typename Scale>
GRAPHC_DEVICE Quantised<T, Stored, WIDTH, false, Address, Scale, NoZero> quantised(const Address& address, const Scale& scale) {
    return {address, scale, NoZero()};
}

/// A quantised operand's part of a tile: it is fetched as it is stored and made numbers on its way to LDS.
template <typename T, typename Stored, int WIDTH, bool ZERO, typename Address, typename Scale, typename Zero, int BLOCK, int BLOCK_K, int THREADS>
struct Fetcher<Quantised<T, Stored, WIDTH, ZERO, Address, Scale, Zero>, BLOCK, BLOCK_K, THREADS> {
    using Operand = Quantised<T, Stored, WIDTH, ZERO, Address, Scale, Zero>;
    static constexpr int SIZE = (int)sizeof(T), CHUNK = 16 / SIZE;
    using Rows = LdsRows<BLOCK_K * SIZE>;
    /// A unit is one row's, as deep as a read or, of narrow ones, as a chunk of LDS.
    static constexpr int DEEP = WIDTH < CHUNK ? CHUNK : WIDTH, READS = DEEP / WIDTH, ACROSS = BLOCK_K / DEEP;
    static_assert(BLOCK_K % DEEP == 0, "units tile the depth");
    static constexpr int UNITS = BLOCK * ACROSS, EACH = (UNITS + THREADS - 1) / THREADS;
    static constexpr int LOADS = EACH * READS, WRITES = EACH * DEEP / CHUNK;
    typename Operand::Group held[EACH][READS];

    static GRAPHC_DEVICE int thread() { return (int)threadIdx.x % THREADS; }
    static GRAPHC_DEVICE bool takes(int i) { return UNITS % THREADS == 0 || i * THREADS + thread() < UNITS; }

    template <bool PART>
    GRAPHC_DEVICE void read(const Operand& operand, int row0, int rows, int k0, int depth) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (takes(i)) {
                const int unit = i * THREADS + thread(), row = row0 + unit / ACROSS, r = row < rows - 1 ? row : rows - 1;
#pragma unroll
                for (int j = 0; j < READS; ++j) {
                    const int k = k0 + unit % ACROSS * DEEP + j * WIDTH;
                    held[i][j] = PART ? operand.read_before(r, k, depth) : operand.read(r, k);
                }
            }
        }
    }

    GRAPHC_DEVICE void write(u8* lds) const {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (takes(i)) {
                const int unit = i * THREADS + thread(), row = unit / ACROSS, first = unit % ACROSS * DEEP / CHUNK;
                T numbers[READS][WIDTH];
#pragma unroll
                for (int j = 0; j < READS; ++j) Operand::numbers(held[i][j], numbers[j]);
#pragma unroll
                for (int c = 0; c < DEEP / CHUNK; ++c) {
                    Vec<T, CHUNK> chunk;
#pragma unroll
                    for (int e = 0; e < CHUNK; ++e) chunk[e] = numbers[(c * CHUNK + e) / WIDTH][(c * CHUNK + e) % WIDTH];
                    const auto words = words_of(chunk);
                    *(Chunk*)(lds + Rows::address(row, first + c)) = Chunk{words.words[0], words.words[1], words.words[2], words.words[3]};
                }
            }
        }
    }
};

// ---- products row by row

/// What the elements of a row are multiplied by, `WIDTH` of them: prepared once for all columns.
template <typename Operand>
struct Factors {
    using T = typename Operand::Element;
    static constexpr int WIDTH = Operand::WIDTH, BITS = Operand::BITS, SIZE = (int)sizeof(T);
    static constexpr bool HALVES = Operand::HALVES;
    /// Words of halves in the order of `pairs`, or floats.
    u32 words[HALVES ? WIDTH / 2 : WIDTH];
    /// The sum of all: what each integer has too much is taken off times that.
    float sum;

    /// From groups of a row's neighbours.
    template <typename Group, int GROUPS>
    GRAPHC_DEVICE explicit Factors(const Group (&groups)[GROUPS]) {
        sum = 0.0f;
        Pack<T, WIDTH> elements;
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) copy_bytes<WIDTH / GROUPS * SIZE>(&elements[g * (WIDTH / GROUPS)], groups[g].words);
        if constexpr (HALVES) {
#pragma unroll
            for (int w = 0; w < WIDTH / 2; ++w) {
                constexpr int PAIRS = 16 / BITS;
                const int from = w / PAIRS * (2 * PAIRS), p = w % PAIRS;
                const int low = BITS == 4 ? from + p : from + 2 * p, high = BITS == 4 ? low + 4 : low + 1;
                words[w] = (u32)bits_of(elements[low]) | (u32)bits_of(elements[high]) << 16;
#if defined(GRAPHC_AMD)
                const HalfPair ones = {(_Float16)1, (_Float16)1};
                sum = __builtin_amdgcn_fdot2(bits_as<HalfPair>(words[w]), ones, sum, false);
#endif
            }
        } else {
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                const float element = (float)widen(elements[i]);
                words[i] = bits_as<u32>(element);
                if constexpr (Operand::OFFSET != 0 || Operand::ZERO) sum += element;
            }
        }
    }
    static GRAPHC_DEVICE u16 bits_of(const f16& element) { return element.bits; }
    template <typename Other>
    static GRAPHC_DEVICE u16 bits_of(const Other&) { return 0; }
};

/// `sum + Σ factor·(x − zero)·scale`: the integers are multiplied as they are, the sum of a group is scaled once.
template <typename Operand>
GRAPHC_DEVICE float scaled_dot(const Factors<Operand>& factors, const typename Operand::Group& group, float sum) {
    using Stored = typename Operand::Stored;
    float integers = 0.0f;
#pragma unroll
    for (int w = 0; w < Words<Operand::BYTES>::COUNT; ++w) {
#if defined(GRAPHC_AMD)
        if constexpr (Factors<Operand>::HALVES) {
            constexpr int PAIRS = 16 / Operand::BITS;
            HalfPair halves[PAIRS];
            pairs<Stored>(group.stored.words[w], halves);
#pragma unroll
            for (int p = 0; p < PAIRS; ++p) {
                integers = __builtin_amdgcn_fdot2(bits_as<HalfPair>(factors.words[w * PAIRS + p]), halves[p], integers, false);
            }
            continue;
        }
#endif
        const u32 word = group.stored.words[w] ^ Packing<Stored>::FLIP;
#pragma unroll
        for (int i = 0; i < Operand::IN_WORD; ++i) {
            const float factor = bits_as<float>(factors.words[w * Operand::EACH_WORD + i]);
            integers = math::multiply_add(factor, number_of<Stored>(word, i), integers);
        }
    }
    if constexpr (Operand::ZERO || Operand::OFFSET != 0) {
        const float offset = Operand::ZERO ? group.zero + (float)Operand::OFFSET : (float)Operand::OFFSET;
        integers = math::multiply_add(-offset, factors.sum, integers);
    }
    return math::multiply_add(integers, group.scale, sum);
}

}  // namespace graphc
