// Winograd's minimal filtering of windows of 3 by 3 (Lavin and Gray, 2015): the transforms of patches and of sums of products.
#pragma once
#include "graphc_math.hip.h"
#include "graphc_vector.hip.h"

namespace graphc {

// ---- along one side: B^T of a row of a patch, A^T of a row of sums

/// F(2, 3).
GRAPHC_DEVICE void winograd_image(float (&x)[4]) {
    const float a = x[0], b = x[1], c = x[2], d = x[3];
    x[0] = a - c;
    x[1] = b + c;
    x[2] = c - b;
    x[3] = b - d;
}
GRAPHC_DEVICE void winograd_result(float (&x)[4]) {
    const float sum = x[1] + x[2], difference = x[1] - x[2];
    x[0] += sum;
    x[1] = difference - x[3];
}

/// F(4, 3), whose points are 0, 1, -1, 2 and -2.
GRAPHC_DEVICE void winograd_image(float (&x)[6]) {
    const float a = x[0], b = x[1], c = x[2], d = x[3], e = x[4], f = x[5];
    const float even1 = math::multiply_add(-4.0f, c, e), odd1 = math::multiply_add(-4.0f, b, d);
    const float even2 = e - c, odd2 = 2.0f * (d - b);
    x[0] = math::multiply_add(4.0f, a, math::multiply_add(-5.0f, c, e));
    x[1] = even1 + odd1;
    x[2] = even1 - odd1;
    x[3] = even2 + odd2;
    x[4] = even2 - odd2;
    x[5] = math::multiply_add(4.0f, b, math::multiply_add(-5.0f, d, f));
}
GRAPHC_DEVICE void winograd_result(float (&x)[6]) {
    const float even1 = x[1] + x[2], odd1 = x[1] - x[2];
    const float even2 = x[3] + x[4], odd2 = x[3] - x[4];
    x[0] += even1 + even2;
    x[1] = math::multiply_add(2.0f, odd2, odd1);
    x[2] = math::multiply_add(4.0f, even2, even1);
    x[3] = math::multiply_add(8.0f, odd2, odd1) + x[5];
}

// ---- from both sides, in place: squares of neighbouring channels, of which `[i][j]` are an element each

/// `OUT` rows and columns are left, the first ones.
template <int OUT, int N, int V, typename Side>
GRAPHC_DEVICE void winograd_both_sides(float (&squares)[N][N][V], const Side& side) {
#pragma unroll
    for (int lane = 0; lane < V; ++lane) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
            float column[N];
#pragma unroll
            for (int i = 0; i < N; ++i) column[i] = squares[i][j][lane];
            side(column);
#pragma unroll
            for (int i = 0; i < OUT; ++i) squares[i][j][lane] = column[i];
        }
#pragma unroll
        for (int i = 0; i < OUT; ++i) {
            float row[N];
#pragma unroll
            for (int j = 0; j < N; ++j) row[j] = squares[i][j][lane];
            side(row);
#pragma unroll
            for (int j = 0; j < OUT; ++j) squares[i][j][lane] = row[j];
        }
    }
}

template <int N, int V>
GRAPHC_DEVICE void winograd_image(float (&squares)[N][N][V]) {
    winograd_both_sides<N>(squares, [](float (&x)[N]) { winograd_image(x); });
}
template <int N, int V>
GRAPHC_DEVICE void winograd_result(float (&squares)[N][N][V]) {
    winograd_both_sides<N - 2>(squares, [](float (&x)[N]) { winograd_result(x); });
}

}  // namespace graphc
