// Strips: a thread takes the windows of neighbouring outputs, and reads each element that they share once.
//
// Every loop here is unrolled: positions, taps and outputs are numbers to the compiler, and sums and weights stay in registers.
#pragma once
#include "graphc_reduce.hip.h"
#include "graphc_vector.hip.h"

namespace graphc {

/// How windows of `TAPS_` taps move along an axis, `COUNT` neighbours of which a thread takes.
template <int COUNT, int TAPS_, int STRIDE_, int DILATION_>
struct StripWalk {
    static constexpr int OUTPUTS = COUNT, TAPS = TAPS_, STRIDE = STRIDE_, DILATION = DILATION_;
    /// Positions from the first window's first tap to the last one's last.
    static constexpr int REACH = (COUNT - 1) * STRIDE_ + (TAPS_ - 1) * DILATION_ + 1;
    /// Which tap of an output's window a position is; -1 where it is none.
    static GRAPHC_DEVICE constexpr int tap(int position, int output) {
        const int from_first = position - output * STRIDE_;
        const bool is_tap = from_first >= 0 && from_first % DILATION_ == 0 && from_first / DILATION_ < TAPS_;
        return is_tap ? from_first / DILATION_ : -1;
    }
    /// Says whether a position is a tap of any window: strides and dilations may leave some out.
    static GRAPHC_DEVICE constexpr bool is_read(int position) {
        for (int output = 0; output < COUNT; ++output) {
            if (tap(position, output) >= 0) return true;
        }
        return false;
    }
};

/// Where the elements of a strip are: the first one, which may be outside of the image, the elements from one to the next down and across,
/// its position, and the size of the image.
template <typename T, typename Index>
struct StripOf {
    const T* elements;
    Index first, down, across;
    Index y, x, height, width;
    /// What is read outside of the image.
    T outside;

    /// Says whether all of a strip is inside.
    template <typename Down, typename Across>
    GRAPHC_DEVICE bool is_inside() const {
        return y >= 0 && y + Down::REACH <= height && x >= 0 && x + Across::REACH <= width;
    }
};

/// One of two groups of neighbours, in whole words: compilers would choose each narrow element for itself.
template <typename T, int N>
GRAPHC_DEVICE Vec<T, N> one_of(bool first, const Vec<T, N>& a, const Vec<T, N>& b) {
    constexpr int BYTES = N * (int)sizeof(T);
    Vec<T, N> result;
    if constexpr (BYTES % 4 == 0) {
        u32 words[2][BYTES / 4];
        copy_bytes<BYTES>(words[0], &a);
        copy_bytes<BYTES>(words[1], &b);
#pragma unroll
        for (int i = 0; i < BYTES / 4; ++i) words[0][i] = first ? words[0][i] : words[1][i];
        copy_bytes<BYTES>(&result, words[0]);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) result[i] = first ? a[i] : b[i];
    }
    return result;
}

/// The same element `N` times.
template <int N, typename T>
GRAPHC_DEVICE Vec<T, N> repeated(T element) {
    Vec<T, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) result[i] = element;
    return result;
}

/// Reads the row of a strip that is `row` below the first, `LANES` neighbours at each position; where `GUARDED`, those outside are read at
/// the buffer's beginning and replaced.
template <typename Across, int LANES, bool GUARDED, typename T, typename Index>
GRAPHC_DEVICE void read_row(Vec<T, LANES> (&line)[Across::REACH], const StripOf<T, Index>& strip, int row) {
    const Index first = strip.first + row * strip.down;
#pragma unroll
    for (int j = 0; j < Across::REACH; ++j) {
        if (!Across::is_read(j)) continue;
        if constexpr (GUARDED) {
            const bool inside = strip.x + j >= 0 && strip.x + j < strip.width;
            const Index at = inside ? first + j * strip.across : 0;
            line[j] = one_of(inside, load_whole<LANES>(strip.elements + at), repeated<LANES>(strip.outside));
        } else {
            line[j] = load_vector<LANES>(strip.elements + (first + j * strip.across));
        }
    }
}

/// The same of a row whose positions lie side by side, in groups of `READ` that are inside or outside as a whole. The row's first element
/// is `SHIFT` behind the beginning of its group.
template <typename Across, int READ, int SHIFT, bool GUARDED, typename T, typename Index>
GRAPHC_DEVICE void read_groups(Vec<T, 1> (&line)[Across::REACH], const StripOf<T, Index>& strip, int row) {
    constexpr int GROUPS = (SHIFT + Across::REACH + READ - 1) / READ;
    const Index first = strip.first + row * strip.down - SHIFT, x = strip.x - SHIFT;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        const bool inside = !GUARDED || (x + g * READ >= 0 && x + g * READ < strip.width);
        const Index at = inside ? first + g * READ : 0;
        Vec<T, READ> group = load_whole<READ>(strip.elements + at);
        if constexpr (GUARDED) group = one_of(inside, group, repeated<READ>(strip.outside));
#pragma unroll
        for (int k = 0; k < READ; ++k) {
            const int j = g * READ + k - SHIFT;
            if (j >= 0 && j < Across::REACH) line[j][0] = group[k];
        }
    }
}

/// `a * b + sum`, rounded once.
GRAPHC_DEVICE float add_product(float a, float b, float sum) { return ::fmaf(a, b, sum); }
GRAPHC_DEVICE double add_product(double a, double b, double sum) { return ::fma(a, b, sum); }
template <typename T>
GRAPHC_DEVICE T add_product(T a, T b, T sum) {
    return math::multiply_add(a, b, sum);
}

/// Takes in elements of a convolution: each times its weight, of which there may be one for each of the neighbours.
template <typename W, int DOWN, int ACROSS, int LANES>
struct Weighted {
    W weights[DOWN][ACROSS][LANES];
    /// The weight of a tap, to be asked for once for all outputs of a row.
    template <typename A>
    GRAPHC_DEVICE A of(int down, int across, int lane) const { return cast<A>(weights[down][across][lane]); }
    template <typename A>
    static GRAPHC_DEVICE A take(A sum, A element, A weight) { return add_product(element, weight, sum); }
};

/// Takes in elements of a pool.
template <typename Operation>
struct Pooled {
    template <typename A>
    GRAPHC_DEVICE A of(int, int, int) const { return A(); }
    template <typename A>
    static GRAPHC_DEVICE A take(A sum, A element, A) { return Operation::template combine<A>(sum, element); }
};

/// How many taps of a window are at positions from `low` on and below `end`, its first tap being at `first`.
template <int TAPS, int DILATION, typename Index>
GRAPHC_DEVICE int taps_between(Index first, Index low, Index end) {
    int count = 0;
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) {
        const Index at = first + tap * DILATION;
        count += at >= low && at < end ? 1 : 0;
    }
    return count;
}

/// Sets every sum of a strip.
template <typename A, int ROWS, int COLUMNS, int LANES, typename First>
GRAPHC_DEVICE void begin_strip(A (&sums)[ROWS][COLUMNS][LANES], First first) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int s = 0; s < COLUMNS; ++s) {
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) sums[r][s][lane] = A(first);
        }
    }
}

/// What a strip reads: `LANES` neighbours at each position (1 where all of a thread's neighbours share it), or rows in groups of `READ`
/// that begin `SHIFT` before the first position; whether some of it may be outside of the image, and whether that changes no sum.
template <int LANES_, int READ_, int SHIFT_, bool EDGES_, bool NEUTRAL_>
struct StripReads {
    static constexpr int LANES = LANES_, READ = READ_, SHIFT = SHIFT_;
    static constexpr bool EDGES = EDGES_, NEUTRAL = NEUTRAL_;
};

template <typename Down, typename Across, typename Reads, bool GUARDED, typename A, int LANES, typename T, typename Index, typename Taken>
GRAPHC_DEVICE void walk_strip(A (&sums)[Down::OUTPUTS][Across::OUTPUTS][LANES], const StripOf<T, Index>& strip, const Taken& taken) {
#pragma unroll
    for (int i = 0; i < Down::REACH; ++i) {
        if (!Down::is_read(i)) continue;
        const bool inside = !GUARDED || (strip.y + i >= 0 && strip.y + i < strip.height);
        if (Reads::NEUTRAL && !inside) continue;
        Vec<T, Reads::LANES> line[Across::REACH];
        if (inside) {
            if constexpr (Reads::READ > 1) {
                read_groups<Across, Reads::READ, Reads::SHIFT, GUARDED>(line, strip, i);
            } else {
                read_row<Across, Reads::LANES, GUARDED>(line, strip, i);
            }
        } else {
#pragma unroll
            for (int j = 0; j < Across::REACH; ++j) line[j] = repeated<Reads::LANES>(strip.outside);
        }
        // Each is converted once.
        A elements[Across::REACH][Reads::LANES];
#pragma unroll
        for (int j = 0; j < Across::REACH; ++j) {
#pragma unroll
            for (int lane = 0; lane < Reads::LANES; ++lane) elements[j][lane] = cast<A>(line[j][lane]);
        }
#pragma unroll
        for (int r = 0; r < Down::OUTPUTS; ++r) {
            const int down = Down::tap(i, r);
            if (down < 0) continue;
#pragma unroll
            for (int across = 0; across < Across::TAPS; ++across) {
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) {
                    const A weight = taken.template of<A>(down, across, lane);
#pragma unroll
                    for (int s = 0; s < Across::OUTPUTS; ++s) {
                        const A element = elements[s * Across::STRIDE + across * Across::DILATION][Reads::LANES == 1 ? 0 : lane];
                        sums[r][s][lane] = taken.take(sums[r][s][lane], element, weight);
                    }
                }
            }
        }
    }
}

/// Takes a strip's windows into their sums. One that is inside as a whole, as most are, asks for no position.
template <typename Down, typename Across, typename Reads, typename A, int LANES, typename T, typename Index, typename Taken>
GRAPHC_DEVICE void take_strip(A (&sums)[Down::OUTPUTS][Across::OUTPUTS][LANES], const StripOf<T, Index>& strip, const Taken& taken) {
    if (!Reads::EDGES || strip.template is_inside<Down, Across>()) {
        walk_strip<Down, Across, Reads, false>(sums, strip, taken);
    } else {
        walk_strip<Down, Across, Reads, true>(sums, strip, taken);
    }
}

}  // namespace graphc
