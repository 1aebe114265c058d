// Memory access: groups of neighbours in one wide access, and 4-bit elements.
#pragma once
#include "graphc_types.hip.h"

namespace graphc {

#if defined(GRAPHC_AMD)
/// `N` values in neighbouring registers.
template <typename T, int N>
using Vector = T __attribute__((ext_vector_type(N)));
#else
template <typename T, int N>
struct alignas(sizeof(T) * N <= 16 ? sizeof(T) * N : 16) Vector {
    T lanes[N];
    GRAPHC_DEVICE T& operator[](int i) { return lanes[i]; }
    GRAPHC_DEVICE const T& operator[](int i) const { return lanes[i]; }
};
#endif

/// `N` neighbours that are read or written by one access, by several of 16 bytes where they are more.
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
    T lanes[N];
    GRAPHC_DEVICE T& operator[](int i) { return lanes[i]; }
    GRAPHC_DEVICE const T& operator[](int i) const { return lanes[i]; }
};

/// Reads `N` neighbours; `from` is aligned to all of them, or to 16 bytes.
template <int N, typename T>
GRAPHC_DEVICE Vec<T, N> load_vector(const T* from) {
    return *(const Vec<T, N>*)from;
}

/// As `load_vector`, in whole words that compilers do not take apart: of reads on a condition, one place or another, they would make
/// reads of single elements from either.
template <int N, typename T>
GRAPHC_DEVICE Vec<T, N> load_whole(const T* from) {
    constexpr int BYTES = N * (int)sizeof(T), PIECE = BYTES < 16 ? BYTES : 16;
    static_assert(BYTES % PIECE == 0, "whole accesses");
    if constexpr (PIECE < 8) {
        return load_vector<N>(from);
    } else {
        Vec<T, N> result;
#pragma unroll
        for (int at = 0; at < BYTES; at += PIECE) {
            const auto piece = *(const Vector<u32, PIECE / 4>*)((const u8*)from + at);
            copy_bytes<PIECE>((u8*)&result + at, &piece);
        }
        return result;
    }
}

/// Writes `N` neighbours; `to` is aligned to all of them, or to 16 bytes.
template <int N, typename T>
GRAPHC_DEVICE void store_vector(T* to, const Vec<T, N>& values) {
    *(Vec<T, N>*)to = values;
}

/// Reads a 4-bit element; the pointer is to whole bytes.
template <typename T>
GRAPHC_DEVICE T load_nibble(const u8* bytes, i64 index);
template <>
GRAPHC_DEVICE i4 load_nibble<i4>(const u8* bytes, i64 index) {
    return CastTo<i4>::wrap(bytes[index >> 1] >> ((index & 1) * 4));
}
template <>
GRAPHC_DEVICE u4 load_nibble<u4>(const u8* bytes, i64 index) {
    return u4{(u8)(bytes[index >> 1] >> ((index & 1) * 4) & 15)};
}

/// The 4-bit element in the highest bits of a word.
template <typename T>
GRAPHC_DEVICE T highest_nibble(u32 word);
template <>
GRAPHC_DEVICE i4 highest_nibble<i4>(u32 word) {
    return i4{(i8)((int)word >> 28)};
}
template <>
GRAPHC_DEVICE u4 highest_nibble<u4>(u32 word) {
    return u4{(u8)(word >> 28)};
}

/// `N` neighbouring 4-bit elements as they lie in memory.
template <typename T, int N>
struct Nibbles {
    static_assert(N % 8 == 0, "they are whole words");
    Vec<u32, N / 8> words;
    GRAPHC_DEVICE T operator[](int i) const { return highest_nibble<T>(words[i / 8] << (28 - i % 8 * 4)); }
};

/// Reads `N` neighbouring 4-bit elements; the first is aligned to all of them, or to 16 bytes.
template <typename T, int N>
GRAPHC_DEVICE Nibbles<T, N> load_nibbles(const u8* bytes, i64 index) {
    return {*(const Vec<u32, N / 8>*)(bytes + (index >> 1))};
}

/// Writes a 4-bit element without touching its neighbour, which another thread may be writing.
template <typename T>
GRAPHC_DEVICE void store_nibble(u8* bytes, i64 index, T element) {
    const u64 address = (u64)bytes + (u64)(index >> 1);
    u32* word = (u32*)(address & ~3ul);
    const u32 shift = (u32)(address & 3) * 8 + (u32)(index & 1) * 4;
    const u32 bits = ((u32)element.value & 15u) << shift;
    u32 before = *word;
    for (;;) {
        const u32 seen = compare_and_swap(word, before, (before & ~(15u << shift)) | bits);
        if (seen == before) return;
        before = seen;
    }
}

}  // namespace graphc
