// Operands of matrix products: where their elements come from, and their way through registers to LDS.
//
// An operand is an object made from lambdas on (row, k); of a product's right operand the rows are the product's columns:
//   along_k<W [, F]>(address [, guard])      W neighbours along k at an address aligned to all of them
//   along_rows<W [, F]>(address [, guard])   W neighbours along the operand's rows; W divides the number of rows
//   values<T, ALONG_K, 1>(value)       computed elements, converted to T
//   converted<T>(operand)              elements of another operand in memory, in the type T
// Where a guard is false the elements are F (a number of elements of one byte, else zero) and the address is not read; a guard is the
// same for all of a group of W.
#pragma once
#include "graphc_mma.hip.h"
#include "graphc_vector.hip.h"

namespace graphc {

// ---- operands

template <typename A, typename B> struct IsSame { static constexpr bool value = false; };
template <typename A> struct IsSame<A, A> { static constexpr bool value = true; };

/// Neighbouring elements as words, which is how they travel: elements of their own types would be taken apart and put together
/// again on the way. The rest of a narrower group is zero.
template <int BYTES>
struct Words {
    static constexpr int COUNT = BYTES < 4 ? 1 : BYTES / 4;
    u32 words[COUNT];
};

/// Reads neighbours; `from` is aligned to all of them.
template <int BYTES>
GRAPHC_DEVICE Words<BYTES> load_words(const void* from) {
    Words<BYTES> result;
    if constexpr (BYTES >= 8) {
        const auto loaded = *(const Vector<u32, BYTES / 4>*)from;
#pragma unroll
        for (int i = 0; i < BYTES / 4; ++i) result.words[i] = loaded[i];
    } else if constexpr (BYTES == 4) {
        result.words[0] = *(const u32*)from;
    } else if constexpr (BYTES == 2) {
        result.words[0] = *(const u16*)from;
    } else {
        result.words[0] = *(const u8*)from;
    }
    return result;
}

/// As `load_words`, of memory that this wave alone reads, once, and that nobody writes meanwhile: it leaves the first-level cache to
/// others, and the second level asks memory for twice a line. It is not moved before a wait for what is written there.
template <int BYTES>
GRAPHC_DEVICE Words<BYTES> load_words_once(const void* from) {
#if defined(GRAPHC_CUDA)
    if constexpr (BYTES == 16) {
        Words<BYTES> result;
        asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(result.words[0]), "=r"(result.words[1]), "=r"(result.words[2]), "=r"(result.words[3])
                     : "l"(from));
        return result;
    }
#endif
    return load_words<BYTES>(from);
}

/// Puts element number `i` into a group that is zero there.
template <int BYTES, int SIZE>
GRAPHC_DEVICE void put(Words<BYTES>& group, int i, const Words<SIZE>& element) {
    if constexpr (SIZE < 4) {
        group.words[i * SIZE / 4] |= element.words[0] << (i * SIZE % 4 * 8);
    } else {
#pragma unroll
        for (int w = 0; w < SIZE / 4; ++w) group.words[i * SIZE / 4 + w] = element.words[w];
    }
}

template <typename T, int N>
GRAPHC_DEVICE Words<N * (int)sizeof(T)> words_of(const Vec<T, N>& elements) {
    Words<N * (int)sizeof(T)> result{};
    copy_bytes<N * (int)sizeof(T)>(&result, &elements);
    return result;
}

struct Always {
    GRAPHC_DEVICE bool operator()(int, int) const { return true; }
};

template <int N, typename T>
constexpr int at_most_a_chunk = N * (int)sizeof(T) > 16 ? 16 / (int)sizeof(T) : N;

/// `WIDTH` neighbours at once from memory.
template <typename T, bool ALONG_K_, int WIDTH_, typename Address, typename Guard, int FILL_ = 0>
struct InMemory {
    using Element = T;
    static_assert(FILL_ == 0 || sizeof(T) == 1, "elements of one byte are filled");
    /// What is not read, four elements at once.
    static constexpr u32 FILL = (u32)(FILL_ & 0xff) * 0x01010101u;
    static constexpr bool ALONG_K = ALONG_K_;
    static constexpr int WIDTH = at_most_a_chunk<WIDTH_, T>;
    Address address;
    Guard guard;

    using Group = Words<WIDTH * (int)sizeof(T)>;

    static GRAPHC_DEVICE Group filled() {
        Group group{};
        if constexpr (FILL != 0) {
#pragma unroll
            for (int i = 0; i < Group::COUNT; ++i) group.words[i] = WIDTH * (int)sizeof(T) < 4 ? FILL >> (32 - 8 * WIDTH * (int)sizeof(T)) : FILL;
        }
        return group;
    }
    GRAPHC_DEVICE Group read(int row, int k) const {
        if (!guard(row, k)) return filled();
        return load_words<WIDTH * (int)sizeof(T)>(address(row, k));
    }
    /// As `read`, but only elements before `depth`: the others are zero.
    GRAPHC_DEVICE Group read_before(int row, int k, int depth) const {
        if (k + (ALONG_K ? WIDTH : 1) <= depth) return read(row, k);
        Group group{};
        if constexpr (ALONG_K && WIDTH > 1) {
            // Beyond the depth the other operand is zero.
            if (k < depth && !guard(row, k)) return filled();
            if (k < depth) {
                const T* from = address(row, k);
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) {
                    if (k + i < depth) put(group, i, load_words<(int)sizeof(T)>(from + i));
                }
            }
        }
        return group;
    }
};

/// Whether an operand's elements are copied as they lie in memory.
template <typename Operand> struct IsInMemory { static constexpr bool value = false; };
template <typename T, bool ALONG_K, int WIDTH, typename Address, typename Guard, int FILL>
struct IsInMemory<InMemory<T, ALONG_K, WIDTH, Address, Guard, FILL>> { static constexpr bool value = true; };

/// `WIDTH` neighbours at once that a function computes.
template <typename T, bool ALONG_K_, int WIDTH_, typename Value>
struct Computed {
    using Element = T;
    static constexpr bool ALONG_K = ALONG_K_;
    static constexpr int WIDTH = WIDTH_;
    Value value;

    using Group = Words<WIDTH * (int)sizeof(T)>;

    GRAPHC_DEVICE Group read(int row, int k) const {
        Vec<T, WIDTH> elements;
        if constexpr (WIDTH == 1) {
            elements[0] = cast<T>(value(row, k));
        } else {
            const auto computed = value(row, k);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) elements[i] = cast<T>(computed[i]);
        }
        return words_of(elements);
    }
    GRAPHC_DEVICE Group read_before(int row, int k, int depth) const { return k < depth ? read(row, k) : Group{}; }
};

#if defined(GRAPHC_AMD)
/// Whether the elements of a word are converted two at once, by arithmetic of halves. Targets convert their own family
/// in hardware.
template <typename T, typename Stored> constexpr bool CONVERTED_IN_PAIRS = false;
#if !defined(GRAPHC_CONVERTS_OCP)
template <> constexpr bool CONVERTED_IN_PAIRS<f16, f8e4m3fn> = true;
#endif
#if !defined(GRAPHC_CONVERTS_FNUZ)
template <> constexpr bool CONVERTED_IN_PAIRS<f16, f8e4m3fnuz> = true;
#endif

/// Two elements of a word (0 and 1, or 2 and 3) as halves: the bits are put where a half has them, and a product makes
/// the exponent right.
template <typename Stored, bool UPPER>
GRAPHC_DEVICE u32 pair_of_halves(u32 word) {
    constexpr bool OCP = sizeof(Stored) == 1 && IsSame<Stored, f8e4m3fn>::value;
    const u32 bytes = __builtin_amdgcn_perm(0u, word, UPPER ? 0x0c030c02u : 0x0c010c00u);
    const u32 magnitude = (bytes & 0x007f007fu) << 7;
    // 0x4000 of each half where the byte is NaN: all ones (OCP), or a negative zero (FNUZ).
    const u32 nan = OCP ? (magnitude + 0x00800080u) & 0x40004000u
                        : (bytes & ~((bytes & 0x007f007fu) + 0x007f007fu) & 0x00800080u) << 7;
    const u32 bits = (bytes & 0x00800080u) << 8 | magnitude | ((nan << 1) - (nan >> 5));
    const _Float16 factor = (_Float16)(OCP ? 256.0f : 128.0f);
    return bits_as<u32>(bits_as<Vector<_Float16, 2>>(bits) * Vector<_Float16, 2>{factor, factor});
}
#endif

/// Elements of an operand in memory in a wider type. What is not read there is zero in both.
template <typename T, typename Inner>
struct Converted {
    using Element = T;
    using Stored = typename Inner::Element;
    static constexpr bool ALONG_K = Inner::ALONG_K;
    static constexpr int WIDTH = Inner::WIDTH;
    static_assert(WIDTH * (int)sizeof(T) <= 16, "a converted group is one access at most");
    Inner inner;

    using Group = Words<WIDTH * (int)sizeof(T)>;

    static GRAPHC_DEVICE Group of(const typename Inner::Group& group) {
#if defined(GRAPHC_AMD)
        if constexpr (CONVERTED_IN_PAIRS<T, Stored> && WIDTH % 4 == 0) {
            Group halves;
#pragma unroll
            for (int w = 0; w < WIDTH / 4; ++w) {
                halves.words[2 * w] = pair_of_halves<Stored, false>(group.words[w]);
                halves.words[2 * w + 1] = pair_of_halves<Stored, true>(group.words[w]);
            }
            return halves;
        }
#endif
        Pack<Stored, WIDTH> stored;
        copy_bytes<WIDTH * (int)sizeof(Stored)>(&stored, group.words);
        Vec<T, WIDTH> elements;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) elements[i] = exactly(stored[i]);
        return words_of(elements);
    }
    /// An element in the type, which has all of its numbers: of a bf16 the lower half of the float is zero.
    static GRAPHC_DEVICE T exactly(const Stored& element) {
        if constexpr (IsSame<T, bf16>::value) return bf16{(u16)(bits_as<u32>((float)widen(element)) >> 16)};
        else return cast<T>(element);
    }
    GRAPHC_DEVICE Group read(int row, int k) const { return of(inner.read(row, k)); }
    GRAPHC_DEVICE Group read_before(int row, int k, int depth) const { return of(inner.read_before(row, k, depth)); }
};

/// Elements of an operand in memory times a factor, in the type T. Neighbours that are read at once share the factor.
template <typename T, typename Inner, typename Factor>
struct Scaled {
    using Element = T;
    using Stored = typename Inner::Element;
    static constexpr bool ALONG_K = Inner::ALONG_K;
    static constexpr int WIDTH = Inner::WIDTH;
    static_assert(WIDTH * (int)sizeof(T) <= 16, "a scaled group is one access at most");
    Inner inner;
    Factor factor;

    using Group = Words<WIDTH * (int)sizeof(T)>;

    static GRAPHC_DEVICE Group of(const typename Inner::Group& group, float factor) {
        Pack<Stored, WIDTH> stored;
        copy_bytes<WIDTH * (int)sizeof(Stored)>(&stored, group.words);
        Vec<T, WIDTH> elements;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) elements[i] = cast<T>((float)widen(stored[i]) * factor);
        return words_of(elements);
    }
    GRAPHC_DEVICE Group read(int row, int k) const { return of(inner.read(row, k), factor(row, k)); }
    GRAPHC_DEVICE Group read_before(int row, int k, int depth) const {
        return k < depth ? of(inner.read_before(row, k, depth), factor(row, k)) : Group{};
    }
};

template <typename T> struct Pointee;
template <typename T> struct Pointee<const T*> { using type = T; };
template <typename T> struct Pointee<T*> { using type = T; };
template <typename Address>
using element_at = typename Pointee<decltype(((Address*)nullptr)->operator()(0, 0))>::type;

/// Elements that lie along k.
template <int WIDTH, int FILL = 0, typename Address, typename Guard = Always>
GRAPHC_DEVICE InMemory<element_at<const Address>, true, WIDTH, Address, Guard, FILL> along_k(const Address& address, const Guard& guard = Guard()) {
    return {address, guard};
}

/// Elements that lie along the operand's rows.
template <int WIDTH, int FILL = 0, typename Address, typename Guard = Always>
GRAPHC_DEVICE InMemory<element_at<const Address>, false, WIDTH, Address, Guard, FILL> along_rows(const Address& address, const Guard& guard = Guard()) {
    return {address, guard};
}

/// An operand's elements in the type T.
template <typename T, typename Inner>
GRAPHC_DEVICE Converted<T, Inner> converted(const Inner& inner) {
    return {inner};
}

/// An operand's elements times a function's, in the type T.
template <typename T, typename Inner, typename Factor>
GRAPHC_DEVICE Scaled<T, Inner, Factor> scaled(const Inner& inner, const Factor& factor) {
    return {inner, factor};
}

/// Elements that a function computes; with a width above one it gives a `Pack`, and the width divides the depth or the rows.
template <typename T, bool ALONG_K, int WIDTH, typename Value>
GRAPHC_DEVICE Computed<T, ALONG_K, WIDTH, Value> values(const Value& value) {
    return {value};
}

// ---- LDS

/// Where a tile's elements are in LDS: rows of `ROW_BYTES` along k, in chunks of 16 bytes. Within a line of 128 bytes, chunks
/// are permuted by the row, so that neither the fragments' reads nor the writes of either kind of operand meet in a bank.
template <int ROW_BYTES>
struct LdsRows {
    static_assert(ROW_BYTES >= 32 && (ROW_BYTES & (ROW_BYTES - 1)) == 0, "a row is a power of two of chunks");

    /// The row's part in the number of a chunk within its line: a linear map of the row's bits (found by search over the lane
    /// groups that the hardware serves together).
    static constexpr GRAPHC_DEVICE int permutation(int row) {
#if defined(__gfx950__)
        constexpr int HALF_LINE = 0x4134214;
#else
        constexpr int HALF_LINE = 0x4216214;
#endif
        constexpr int MAP = ROW_BYTES >= 128 ? 0x4125421 : ROW_BYTES == 64 ? HALF_LINE : 0x2143142;
        int result = 0;
        for (int bit = 0; bit < 7; ++bit) result ^= (row >> bit & 1) * (MAP >> (4 * bit) & 7);
        return result;
    }
    static constexpr GRAPHC_DEVICE int lines(int row, int chunk) { return ((row * ROW_BYTES) & ~127) + ((chunk >> 3) << 7); }

    /// The byte address of a row's chunk.
    static constexpr GRAPHC_DEVICE int address(int row, int chunk) {
        return lines(row, chunk) + (((permutation(row) ^ chunk) & 7) << 4);
    }
    /// A row and a chunk of it.
    struct Place {
        int row, chunk;
    };
    /// What is in chunk number `at` of the tile's memory: the inverse of `address`.
    static constexpr GRAPHC_DEVICE Place place(int at) {
        constexpr int CHUNKS = ROW_BYTES / 16;
        if constexpr (CHUNKS >= 8) {
            const int row = at / CHUNKS;
            return Place{row, at % CHUNKS ^ (permutation(row) & 7)};
        } else {
            // The rows of a line differ in the bits of a chunk's number that a row's own chunks do not have.
            const int first = at / 8 * (8 / CHUNKS), mixed = at % 8 ^ (permutation(first) & 7);
            return Place{first + mixed / CHUNKS, mixed % CHUNKS};
        }
    }
    /// The address with `row` and `chunk` added, which have no bit in common with those of `address`.
    static constexpr GRAPHC_DEVICE int moved(int address, int row, int chunk) {
        return (address ^ (((permutation(row) ^ chunk) & 7) << 4)) + lines(row, chunk);
    }
};

/// Two halves (low or high, by `ODD`) of two words as one word.
template <bool ODD>
GRAPHC_DEVICE u32 pair_halves(u32 low, u32 high) {
#if defined(GRAPHC_AMD)
    return __builtin_amdgcn_perm(high, low, ODD ? 0x07060302u : 0x05040100u);
#elif defined(GRAPHC_CUDA)
    return __byte_perm(low, high, ODD ? 0x7632 : 0x5410);
#else
    return ODD ? low >> 16 | (high & 0xffff0000u) : (low & 0xffffu) | high << 16;
#endif
}

/// Two bytes (0 and 1, or 2 and 3, by `ODD`) of two words, interleaved.
template <bool ODD>
GRAPHC_DEVICE u32 pair_bytes(u32 low, u32 high) {
#if defined(GRAPHC_AMD)
    return __builtin_amdgcn_perm(high, low, ODD ? 0x07030602u : 0x05010400u);
#elif defined(GRAPHC_CUDA)
    return __byte_perm(low, high, ODD ? 0x7362 : 0x5140);
#else
    const u32 shift = ODD ? 16 : 0;
    const u32 l = low >> shift, h = high >> shift;
    return (l & 0xff) | (h & 0xff) << 8 | (l & 0xff00) << 8 | (h & 0xff00) << 16;
#endif
}

/// One operand's part of a tile on its way from memory to LDS: each thread holds units of some rows and some depth.
template <typename Operand, int BLOCK, int BLOCK_K, int THREADS>
struct Fetcher {
    using Element = typename Operand::Element;
    static constexpr int SIZE = (int)sizeof(Element), CHUNK = 16 / SIZE, CHUNKS = BLOCK_K / CHUNK;
    static constexpr bool ALONG_K = Operand::ALONG_K;
    static constexpr int WIDTH = Operand::WIDTH;
    using Rows = LdsRows<BLOCK_K * SIZE>;

    /// A thread's units of a depth.
    static constexpr GRAPHC_DEVICE int each(int depth) { return (BLOCK * BLOCK_K / (WIDTH * depth) + THREADS - 1) / THREADS; }
    /// The depth of a unit, whole words: that with the fewest loads of a thread, and of several the deepest.
    static constexpr GRAPHC_DEVICE int unit_depth() {
        int best = CHUNK;
        for (int depth = CHUNK; depth >= 1 && depth * SIZE >= 4; depth /= 2) {
            if (each(depth) * depth < each(best) * best) best = depth;
        }
        return best;
    }
    static constexpr int UNIT_ROWS = ALONG_K ? 1 : WIDTH, UNIT_DEPTH = ALONG_K ? CHUNK : unit_depth();
    static constexpr int UNITS = BLOCK * BLOCK_K / (UNIT_ROWS * UNIT_DEPTH);
    static constexpr int EACH = (UNITS + THREADS - 1) / THREADS;
    /// Whether a thread with one unit less takes its last one twice: where few do, that costs less than a branch in the main loop.
    static constexpr bool AGAIN = UNITS % THREADS != 0 && EACH > 1 && UNITS * 4 >= EACH * THREADS * 3;
    static constexpr int READS = ALONG_K ? CHUNK / WIDTH : UNIT_DEPTH;
    /// Loads and writes of a thread for a tile.
    static constexpr int LOADS = EACH * READS, WRITES = EACH * UNIT_ROWS;
    static_assert(BLOCK % UNIT_ROWS == 0, "units tile the block");
    using Group = Words<WIDTH * SIZE>;
    Group held[EACH][READS];

    /// A unit's first row and depth in the tile.
    struct Place {
        int row, k;
    };
    static GRAPHC_DEVICE Place place(int i) {
        const int number = i * THREADS + thread(), unit = AGAIN && number >= UNITS ? number - THREADS : number;
        if constexpr (ALONG_K) {
            return Place{unit / CHUNKS, unit % CHUNKS * CHUNK};
        } else {
            // Neighbours share a chunk of LDS, then go along the rows.
            constexpr int PIECES = CHUNK / UNIT_DEPTH, ACROSS = BLOCK / UNIT_ROWS;
            const int rest = unit / PIECES;
            return Place{rest % ACROSS * UNIT_ROWS, rest / ACROSS * CHUNK + unit % PIECES * UNIT_DEPTH};
        }
    }
    static GRAPHC_DEVICE bool takes(int i) { return UNITS % THREADS == 0 || AGAIN || i * THREADS + thread() < UNITS; }
    /// The thread's number among those that share the tile.
    static GRAPHC_DEVICE int thread() { return (int)threadIdx.x % THREADS; }

    /// Reads the tile at `row0`, `k0`; rows past the last are read as the last. `PART`: only elements before `depth`.
    template <bool PART>
    GRAPHC_DEVICE void read(const Operand& operand, int row0, int rows, int k0, int depth) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (takes(i)) {
                const Place at = place(i);
                const int row = row0 + at.row, last = rows - UNIT_ROWS;
#pragma unroll
                for (int j = 0; j < READS; ++j) {
                    const int r = row < last ? row : last, k = k0 + at.k + (ALONG_K ? j * WIDTH : j);
                    held[i][j] = PART ? operand.read_before(r, k, depth) : operand.read(r, k);
                }
            }
        }
    }

    /// Writes what was read to LDS.
    GRAPHC_DEVICE void write(u8* lds) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (takes(i)) {
                if constexpr (!ALONG_K && Group::COUNT > 1) keep_together(held[i]);
                const Place at = place(i);
                const int address = Rows::address(at.row, at.k / CHUNK) + at.k % CHUNK * SIZE;
                if constexpr (ALONG_K) {
                    *(Chunk*)(lds + address) = joined(held[i]);
                } else {
#pragma unroll
                    for (int j = 0; j < UNIT_ROWS; ++j) {
                        const auto column = transposed(held[i], j);
                        u8* to = lds + Rows::moved(address, j, 0);
                        if constexpr (UNIT_DEPTH * SIZE == 16) {
                            *(Chunk*)to = Chunk{column.words[0], column.words[1], column.words[2], column.words[3]};
                        } else if constexpr (UNIT_DEPTH * SIZE == 8) {
                            *(Vector<u32, 2>*)to = Vector<u32, 2>{column.words[0], column.words[1]};
                        } else {
                            *(u32*)to = column.words[0];
                        }
                    }
                }
            }
        }
    }

private:
    /// Has groups in registers as they were loaded until here. Turning words is renaming or permuting registers; the compiler would do it
    /// as soon as they are loaded, and wait for the memory there.
    static GRAPHC_DEVICE void keep_together(Group (&groups)[READS]) {
#if defined(GRAPHC_AMD)
#pragma unroll
        for (int j = 0; j < READS; ++j) {
            using Whole = Vector<u32, Group::COUNT>;
            Whole whole = bits_as<Whole>(groups[j]);
            asm volatile("" : "+v"(whole));
            groups[j] = bits_as<Group>(whole);
        }
#endif
    }

    /// Groups along k as one chunk.
    static GRAPHC_DEVICE Chunk joined(const Group (&groups)[READS]) {
        Chunk chunk{0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < READS; ++j) {
            if constexpr (WIDTH * SIZE >= 4) {
#pragma unroll
                for (int w = 0; w < Group::COUNT; ++w) chunk[j * Group::COUNT + w] = groups[j].words[w];
            } else {
                constexpr int BITS = WIDTH * SIZE * 8;
                chunk[j * BITS / 32] |= groups[j].words[0] << (j * BITS % 32);
            }
        }
        return chunk;
    }

    /// Row number `row` of a unit that was read along the rows, as words along k.
    static GRAPHC_DEVICE Words<UNIT_DEPTH * SIZE> transposed(const Group (&groups)[READS], int row) {
        Words<UNIT_DEPTH * SIZE> out{};
        if constexpr (SIZE >= 4) {
            constexpr int EACH_WORDS = SIZE / 4;
#pragma unroll
            for (int w = 0; w < UNIT_DEPTH * EACH_WORDS; ++w) out.words[w] = groups[w / EACH_WORDS].words[row * EACH_WORDS + w % EACH_WORDS];
        } else if constexpr (SIZE == 2 && WIDTH >= 2) {
#pragma unroll
            for (int w = 0; w < UNIT_DEPTH / 2; ++w) {
                const u32 low = groups[2 * w].words[row / 2], high = groups[2 * w + 1].words[row / 2];
                out.words[w] = row % 2 == 0 ? pair_halves<false>(low, high) : pair_halves<true>(low, high);
            }
        } else if constexpr (SIZE == 1 && WIDTH >= 4) {
#pragma unroll
            for (int w = 0; w < UNIT_DEPTH / 4; ++w) {
                u32 of[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) of[j] = groups[4 * w + j].words[row / 4];
                const bool upper = row % 4 >= 2;
                const u32 low = upper ? pair_bytes<true>(of[0], of[1]) : pair_bytes<false>(of[0], of[1]);
                const u32 high = upper ? pair_bytes<true>(of[2], of[3]) : pair_bytes<false>(of[2], of[3]);
                out.words[w] = row % 2 == 0 ? pair_halves<false>(low, high) : pair_halves<true>(low, high);
            }
        } else {
            constexpr int BITS = SIZE * 8;
#pragma unroll
            for (int j = 0; j < UNIT_DEPTH; ++j) {
                const u32 element = groups[j].words[0] >> (row * BITS) & ((1u << BITS) - 1u);
                out.words[j * BITS / 32] |= element << (j * BITS % 32);
            }
        }
        return out;
    }
};

}  // namespace graphc
