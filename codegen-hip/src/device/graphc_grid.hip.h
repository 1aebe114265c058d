// Which workgroup computes what: the order of tiles and of blocks of queries.
#pragma once
#include "graphc_platform.hip.h"

namespace graphc {

/// A tile's place.
struct TilePlace {
    int m, n;
};

/// The tile of workgroup number `group`, of `tiles_m * tiles_n`: each tile is some workgroup's, and of one only.
template <int GROUP, int XCDS>
GRAPHC_DEVICE TilePlace tile_of(int group, int tiles_m, int tiles_n) {
    if constexpr (XCDS > 1) {
        // Each die has runs of neighbours in the order, of GROUP x GROUP at most: as many rounds of them as it takes, all
        // of one length. What is left over keeps its number.
        constexpr int MOST = GROUP * GROUP;
        const int tiles = tiles_m * tiles_n, rounds = (tiles + XCDS * MOST - 1) / (XCDS * MOST);
        const int run = tiles / (XCDS * rounds);
        if (group < XCDS * rounds * run) {
            const int die = group % XCDS, turn = group / XCDS;
            group = turn / run * (XCDS * run) + die * run + turn % run;
        }
    }
    if constexpr (GROUP == 1) {
        return TilePlace{group / tiles_n, group % tiles_n};
    } else {
        const int band = group / (GROUP * tiles_n), left = tiles_m - band * GROUP;
        const int height = left < GROUP ? left : GROUP, within = group - band * GROUP * tiles_n;
        return TilePlace{band * GROUP + within % height, within / height};
    }
}

/// A block of queries of one of a batch's attentions.
struct QueryBlock {
    int batch, number;
};

/// The blocks of `Tiles::QUERIES` queries each, of all of a batch.
template <typename Tiles>
GRAPHC_DEVICE int query_blocks(int batches, int queries) {
    return batches * ((queries + Tiles::QUERIES - 1) / Tiles::QUERIES);
}

/// Block number `number` of [`query_blocks`], in the order in which they are computed. Of `TOGETHER` neighbours in the batch, as many blocks in a row
/// have the same number: their keys are what L2 holds. With `CAUSAL` the last blocks come first, since they have the most keys: what is
/// left for the end is short.
template <typename Tiles, int TOGETHER, bool CAUSAL>
GRAPHC_DEVICE QueryBlock query_block(int number, int batches, int queries) {
    const int blocks = (queries + Tiles::QUERIES - 1) / Tiles::QUERIES;
    const TilePlace at = tile_of<TOGETHER, 1>(number, batches, blocks);
    return QueryBlock{at.m, CAUSAL ? blocks - 1 - at.n : at.n};
}

}  // namespace graphc
