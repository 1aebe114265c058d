// Which keys an attention's queries see.
//
// A range is an object that a kernel makes for its scores:
//   AllKeys                                 every key may be seen
//   key_range(first, end, nothing, inside)  query q sees keys from first(q) to before end(q), which never fall as q grows, but every key
//                                           where nothing(q); inside(q, k, dot) is the score of those that are seen
#pragma once
#include "graphc_types.hip.h"

namespace graphc {

/// Says whether a condition holds in some lane of the wave.
GRAPHC_DEVICE bool any_lane(bool condition) {
#if defined(GRAPHC_AMD) && defined(__GFX9__)
    return __builtin_amdgcn_ballot_w64(condition) != 0;
#elif defined(GRAPHC_AMD)
    return __builtin_amdgcn_ballot_w32(condition) != 0;
#elif defined(GRAPHC_CUDA)
    return __any_sync(~0u, condition);
#else
    return true;
#endif
}

/// Keys that some query of a block sees, `begin` to `end`, and keys that each of them sees, `from` to `to`.
template <typename I>
struct SeenKeys {
    I begin, end, from, to;
    /// Says whether all of `count` keys are seen by each query.
    GRAPHC_DEVICE bool covers(I first, I count) const { return from <= first && first + count <= to; }
};

/// Every key.
struct AllKeys {
    template <int QUERIES, int LANES, typename I>
    GRAPHC_DEVICE SeenKeys<I> of(I, I, I keys) const { return {(I)0, keys, (I)0, keys}; }
    template <typename Score>
    GRAPHC_DEVICE const Score& scored(const Score& score, bool) const { return score; }
};

/// The score of any key, and that of a key which the query is known to see: `covered` says that all are such.
template <typename Score, typename Inside>
struct RangedScore {
    const Score& any;
    const Inside& inside;
    bool covered;
    template <typename I>
    GRAPHC_DEVICE float operator()(I q, I k, float dot) const { return covered ? inside(q, k, dot) : any(q, k, dot); }
};

/// No query has nothing to see but what is hidden by a finite number.
struct Never {
    template <typename I>
    GRAPHC_DEVICE bool operator()(I) const { return false; }
};
template <typename Nothing> struct IsNever { static constexpr bool value = false; };
template <> struct IsNever<Never> { static constexpr bool value = true; };

/// Keys between bounds.
template <typename First, typename End, typename Nothing, typename Inside>
struct KeyRange {
    First first;
    End end;
    Nothing nothing;
    Inside inside;

    template <typename I>
    static GRAPHC_DEVICE I clamped(i64 key, I keys) { return key < 0 ? (I)0 : key > (i64)keys ? keys : (I)key; }

    /// The keys of `QUERIES` queries from `q`, those behind the last query left out; each wave of `LANES` finds the same.
    template <int QUERIES, int LANES, typename I>
    GRAPHC_DEVICE SeenKeys<I> of(I q, I queries, I keys) const {
        const I last = q + QUERIES < queries ? q + QUERIES - 1 : queries - 1;
        SeenKeys<I> seen{clamped(first(q), keys), clamped(end(last), keys), clamped(first(last), keys), clamped(end(q), keys)};
        if constexpr (!IsNever<Nothing>::value) {
            // A query that sees nothing weighs what is hidden.
            bool blind = false;
            for (I at = q + (int)threadIdx.x % LANES; at <= last; at += LANES) blind |= nothing(at);
            if (any_lane(blind)) seen = SeenKeys<I>{(I)0, keys, keys, (I)0};
        }
        return seen;
    }
    template <typename Score>
    GRAPHC_DEVICE RangedScore<Score, Inside> scored(const Score& score, bool covered) const {
        return {score, inside, covered};
    }
};

/// Keys between bounds.
template <typename First, typename End, typename Nothing, typename Inside>
GRAPHC_DEVICE KeyRange<First, End, Nothing, Inside> key_range(const First& first, const End& end, const Nothing& nothing, const Inside& inside) {
    return {first, end, nothing, inside};
}

}  // namespace graphc
