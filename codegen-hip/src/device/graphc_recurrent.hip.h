// Recurrent layers: a workgroup goes through the steps of a few rows of the batch.
//
// Each step has two halves, with a barrier after each. Teams of lanes sum the products of the state with the weights, a gate of a
// unit at a time; then each thread finishes its units, of which it keeps the states in registers. A GRU that resets its state before
// the last gate's product has these halves twice.
#pragma once
#include "graphc_reduce.hip.h"
#include "graphc_vector.hip.h"

namespace graphc {

enum class RecurrentCell { Rnn, Gru, GruResetAfter, Lstm };

/// What a layer does not have.
struct Nothing {};

/// The sizes of a layer of weights of type `Stored`, and how a workgroup goes through it: `ROWS` rows at a time, `LANES` lanes a sum, `WIDTH` weights an access;
/// with `HELD` the weights stay in registers.
template <RecurrentCell CELL_, typename Stored_, int HIDDEN_, int BLOCK_, int WAVE_, int ROWS_, int LANES_, int WIDTH_, bool HELD_>
struct RecurrentTile {
    static constexpr RecurrentCell CELL = CELL_;
    using Stored = Stored_;
    static constexpr int HIDDEN = HIDDEN_, BLOCK = BLOCK_, WAVE = WAVE_, ROWS = ROWS_, LANES = LANES_, WIDTH = WIDTH_;
    static constexpr bool HELD = HELD_;
    static constexpr bool RESETS_FIRST = CELL == RecurrentCell::Gru;
    static constexpr int GATES = CELL == RecurrentCell::Rnn ? 1 : CELL == RecurrentCell::Lstm ? 4 : 3;
    /// Gates whose products are of the state as it is.
    static constexpr int PLAIN = RESETS_FIRST ? 2 : GATES;
    /// Units of a thread.
    static constexpr int UNITS = (ROWS * HIDDEN + BLOCK - 1) / BLOCK;
    static constexpr int TEAMS = BLOCK / LANES;
    /// Accesses of a lane to the weights of a sum.
    static constexpr int READS = (HIDDEN + LANES * WIDTH - 1) / (LANES * WIDTH);
    /// No access reaches beyond a sum's weights.
    static constexpr bool FULL = READS * LANES * WIDTH == HIDDEN;
};

/// Which options of ONNX's layers a layer has.
template <bool REVERSE_, bool INPUT_FORGET_, bool PEEPHOLES_, bool ROUNDED_>
struct RecurrentOptions {
    static constexpr bool REVERSE = REVERSE_, INPUT_FORGET = INPUT_FORGET_, PEEPHOLES = PEEPHOLES_, ROUNDED = ROUNDED_;
};

/// A workgroup's sums of the gates from `BEGIN` up to `END`.
template <typename Tile, int BEGIN, int END>
struct GateSums {
    static constexpr int COUNT = (END - BEGIN) * Tile::HIDDEN;
    static constexpr int TURNS = (COUNT + Tile::TEAMS - 1) / Tile::TEAMS;
    using Weights = Vec<typename Tile::Stored, Tile::WIDTH>;
    Weights held[Tile::HELD ? TURNS * Tile::READS + 1 : 1];

    static GRAPHC_DEVICE int place(int turn) { return turn * Tile::TEAMS + (int)threadIdx.x / Tile::LANES; }
    static GRAPHC_DEVICE int depth(int read) { return (read * Tile::LANES + (int)threadIdx.x % Tile::LANES) * Tile::WIDTH; }

    /// Weights of a sum; zeros beyond the last one.
    template <typename Source>
    static GRAPHC_DEVICE Weights read(const Source& weights, int turn, int at) {
        // Without a condition where all are there, so that reads of several sums are under way at once.
        const bool there = COUNT % Tile::TEAMS == 0 || place(turn) < COUNT;
        if (there && (Tile::FULL || depth(at) < Tile::HIDDEN)) return weights(BEGIN * Tile::HIDDEN + place(turn), depth(at));
        return Weights{};
    }

    template <typename Source>
    GRAPHC_DEVICE void hold(const Source& weights) {
        if constexpr (Tile::HELD) {
#pragma unroll
            for (int i = 0; i < TURNS * Tile::READS; ++i) held[i] = read(weights, i / Tile::READS, i % Tile::READS);
        }
    }

    /// One sum of each team, of all rows.
    template <typename Next>
    static GRAPHC_DEVICE void turn(int number, const float (&state)[Tile::ROWS][Tile::HIDDEN],
                                   float (&sums)[Tile::ROWS][Tile::GATES * Tile::HIDDEN], const Next& next) {
        float sum[Tile::ROWS] = {};
        const auto add_read = [&](int at) {
            const Weights weights = next(at);
            // Where teams end beyond the state, what they multiply there is zero on both sides.
            const bool inside = Tile::FULL || depth(at) < Tile::HIDDEN;
            const int k = inside ? depth(at) : 0;
#pragma unroll
            for (int r = 0; r < Tile::ROWS; ++r) {
                const auto part = load_vector<Tile::WIDTH>(&state[r][k]);
#pragma unroll
                for (int i = 0; i < Tile::WIDTH; ++i) {
                    sum[r] = math::multiply_add(widen(weights[i]), inside ? part[i] : 0.0f, sum[r]);
                }
            }
        };
        // Registers have names, not numbers: what is held is walked by loops that are written out.
        if constexpr (Tile::HELD) {
#pragma unroll
            for (int at = 0; at < Tile::READS; ++at) add_read(at);
        } else {
#pragma unroll 4
            for (int at = 0; at < Tile::READS; ++at) add_read(at);
        }
#pragma unroll
        for (int r = 0; r < Tile::ROWS; ++r) {
            const float total = reduce_lanes<Sum, Tile::LANES>(sum[r]);
            if (threadIdx.x % Tile::LANES == 0 && place(number) < COUNT) sums[r][BEGIN * Tile::HIDDEN + place(number)] = total;
        }
    }

    template <typename Source>
    GRAPHC_DEVICE void add(const Source& weights, const float (&state)[Tile::ROWS][Tile::HIDDEN],
                           float (&sums)[Tile::ROWS][Tile::GATES * Tile::HIDDEN]) const {
        if constexpr (Tile::HELD) {
#pragma unroll
            for (int number = 0; number < TURNS; ++number) {
                turn(number, state, sums, [&](int at) { return held[number * Tile::READS + at]; });
            }
        } else {
#pragma unroll 1
            for (int number = 0; number < TURNS; ++number) {
                turn(number, state, sums, [&](int at) { return read(weights, number, at); });
            }
        }
    }
};

/// Stores what a row's products are made of: its values, with `ROUNDED` to 8 bits as ONNX's DynamicQuantizeLinear rounds them. All
/// threads call it.
template <typename Tile, typename Options>
GRAPHC_DEVICE void store_multiplied(const float (&values)[Tile::UNITS], float (&state)[Tile::ROWS][Tile::HIDDEN], int& turn) {
    float scale = 1.0f, zero = 0.0f;
    if constexpr (Options::ROUNDED) {
        static_assert(Tile::ROWS == 1, "a workgroup finds the ends of one row");
        float low = 0.0f, high = 0.0f;
#pragma unroll
        for (int u = 0; u < Tile::UNITS; ++u) {
            low = values[u] < low ? values[u] : low;
            high = values[u] > high ? values[u] : high;
        }
        int other = turn;
        low = reduce_block<Min, Tile::BLOCK, Tile::WAVE>(low, other);
        high = reduce_block<Max, Tile::BLOCK, Tile::WAVE>(high, turn);
        if (high > low) scale = (high - low) / 255.0f;
        zero = math::min(math::max(math::round(-low / scale), 0.0f), 255.0f);
    }
#pragma unroll
    for (int u = 0; u < Tile::UNITS; ++u) {
        const int i = u * Tile::BLOCK + (int)threadIdx.x;
        float value = values[u];
        if constexpr (Options::ROUNDED) {
            value = (math::min(math::max(math::round(value / scale) + zero, 0.0f), 255.0f) - zero) * scale;
        }
        if (i < Tile::ROWS * Tile::HIDDEN) state[i / Tile::HIDDEN][i % Tile::HIDDEN] = value;
    }
}

/// All steps of the rows from `first_row` on, of `rows` that there are. `input(t, row, gate)` has the products of the inputs,
/// `weights(gate, k)` are `WIDTH` neighbours, `first(row, unit)` and `first_cell(row, unit)` are the states at the start, `length(row)`
/// how many steps a row has; `gate`, `candidate` and `output` are the activations, and `store(t, row, unit, hidden, cell)` takes the
/// states of a step, zeros beyond a row's length.
template <typename Tile, typename Options, typename Row, typename Time, typename Input, typename Weights, typename First,
          typename FirstCell, typename Bias, typename Peephole, typename Length, typename Gate, typename Candidate, typename Output,
          typename Store>
GRAPHC_DEVICE void recurrent(Row first_row, Row rows, Time steps, const Input& input, const Weights& weights, const First& first,
                             const FirstCell& first_cell, const Bias& bias, const Peephole& peephole, const Length& length,
                             const Gate& gate, const Candidate& candidate, const Output& output, const Store& store) {
    constexpr int HIDDEN = Tile::HIDDEN, GATES = Tile::GATES, UNITS = Tile::UNITS, ROWS = Tile::ROWS;
    constexpr bool IS_LSTM = Tile::CELL == RecurrentCell::Lstm;
    __shared__ alignas(16) float state[ROWS][HIDDEN];
    __shared__ float sums[ROWS][GATES * HIDDEN];
    float hidden[UNITS] = {}, cell[UNITS] = {};
    i64 ends[UNITS] = {};
    int turn = 0;
    const auto unit_of = [](int u) { return (u * Tile::BLOCK + (int)threadIdx.x) % HIDDEN; };
    const auto place_of = [](int u) { return (u * Tile::BLOCK + (int)threadIdx.x) / HIDDEN; };
    const auto exists = [&](int u) { return place_of(u) < ROWS && first_row + place_of(u) < rows; };
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        if (!exists(u)) continue;
        const Row row = first_row + place_of(u);
        hidden[u] = first(row, unit_of(u));
        if constexpr (IS_LSTM) cell[u] = first_cell(row, unit_of(u));
        ends[u] = length(row);
    }
    store_multiplied<Tile, Options>(hidden, state, turn);
    GateSums<Tile, 0, Tile::PLAIN> plain;
    plain.hold(weights);
    GateSums<Tile, Tile::PLAIN, GATES> of_reset;
    of_reset.hold(weights);
    __syncthreads();
#pragma unroll 1
    for (Time at = 0; at < steps; ++at) {
        const Time t = Options::REVERSE ? steps - 1 - at : at;
        // Asked for before the products, which hide how long it takes.
        float given[UNITS][GATES] = {};
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            if (t >= ends[u]) continue;
#pragma unroll
            for (int g = 0; g < GATES; ++g) given[u][g] = input(t, (Row)(first_row + place_of(u)), g * HIDDEN + unit_of(u));
        }
        plain.add(weights, state, sums);
        __syncthreads();
        const auto sum = [&](int u, int g) { return given[u][g] + sums[place_of(u)][g * HIDDEN + unit_of(u)]; };
        if constexpr (Tile::RESETS_FIRST) {
            // Nobody reads the state before the end of the step: the reset one takes its place.
            float reset[UNITS] = {};
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                if (t < ends[u]) {
                    given[u][0] = gate(sum(u, 0));
                    reset[u] = gate(sum(u, 1)) * hidden[u];
                }
            }
            store_multiplied<Tile, Options>(reset, state, turn);
            __syncthreads();
            of_reset.add(weights, state, sums);
            __syncthreads();
        }
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            if (!exists(u)) continue;
            const Row row = first_row + place_of(u);
            const int unit = unit_of(u);
            if (t >= ends[u]) {
                store(t, row, unit, 0.0f, 0.0f);
                continue;
            }
            if constexpr (Tile::CELL == RecurrentCell::Rnn) {
                hidden[u] = gate(sum(u, 0));
            } else if constexpr (IS_LSTM) {
                const auto seen = [&](float x, int part, float c) {
                    if constexpr (Options::PEEPHOLES) return x + peephole(part * HIDDEN + unit) * c;
                    return x;
                };
                const float in = gate(seen(sum(u, 0), 0, cell[u]));
                float forget = 1.0f - in;
                if constexpr (!Options::INPUT_FORGET) forget = gate(seen(sum(u, 2), 2, cell[u]));
                cell[u] = forget * cell[u] + in * candidate(sum(u, 3));
                hidden[u] = gate(seen(sum(u, 1), 1, cell[u])) * output(cell[u]);
            } else {
                float update = given[u][0], own = sums[place_of(u)][2 * HIDDEN + unit];
                if constexpr (!Tile::RESETS_FIRST) {
                    update = gate(sum(u, 0));
                    own = gate(sum(u, 1)) * (own + bias(unit));
                }
                const float fresh = candidate(given[u][2] + own);
                hidden[u] = (1.0f - update) * fresh + update * hidden[u];
            }
            store(t, row, unit, hidden[u], cell[u]);
        }
        store_multiplied<Tile, Options>(hidden, state, turn);
        __syncthreads();
    }
}

}  // namespace graphc
