// Tiles in LDS that are written along one direction and read along the other.
#pragma once
#include "graphc_vector.hip.h"

namespace graphc {

/// The place of element `(row, column)` of a tile with rows of `COLUMNS` elements, of which `V` are written or read at once.
///
/// Groups of `V` neighbours of a row stay together, and each `V` rows have them in another order: of eight threads that read
/// a column at rows `V` apart, no two meet in a bank.
template <int COLUMNS, int V>
GRAPHC_DEVICE int swizzled(int row, int column) {
    constexpr int GROUPS = COLUMNS / V;
    static_assert((GROUPS & (GROUPS - 1)) == 0, "the order of a row's groups is an exclusive or");
    return row * COLUMNS + ((column / V ^ row / V % GROUPS) * V + column % V);
}

}  // namespace graphc
