//! THE order of the passes of [`optimize`](crate::optimize), one list an optimisation level.

use crate::options::OptLevel;
use crate::runner::Pass;
use crate::{
    check_indices, cse, dce, decompose, egraph, few_rows, filters, fold, fold_batch_norm, fold_channels, fold_gains,
    layout, masks, pairs, positions, precompute, quantize, simplify,
};

/// Returns the passes of a level, in order.
pub fn passes(level: OptLevel) -> Vec<Pass> {
    let list: &[Pass] = match level {
        OptLevel::O0 => &[
            check_indices::PASS,
            quantize::recipe::weight_only::PASS,
            quantize::PASS,
            decompose::PASS,
        ],
        OptLevel::O1 => &[
            simplify::PASS,
            fold::PASS,
            precompute::PASS,
            check_indices::PASS,
            quantize::recipe::weight_only::PASS,
            quantize::PASS,
            decompose::PASS,
            simplify::PASS,
            fold::PASS,
            cse::PASS,
            dce::PASS,
        ],
        OptLevel::O2 | OptLevel::O3 => &[
            &CLEAN_UP[..],
            // What is left gathers by data.
            &[check_indices::PASS],
            &recognise(level),
            &SPELL_OUT,
        ]
        .concat(),
    };
    list.to_vec()
}

/// Cleans up what the front end recorded, and sees which index arithmetic is just positions.
const CLEAN_UP: [Pass; 6] = [
    simplify::PASS,
    positions::PASS,
    simplify::PASS,
    fold::PASS,
    // What that leaves of constants alone.
    precompute::PASS,
    // Which constants are positions.
    masks::PASS,
];

/// What recognises wholes and decides types.
const fn recognise(level: OptLevel) -> [Pass; 10] {
    [
        quantize::spelled::PASS,
        // Products of quantised tensors, before anything spells them out.
        quantize::integers::PASS,
        quantize::float8::PASS,
        fold_batch_norm::WEIGHTS,
        fold_batch_norm::PASS,
        fold_channels::PASS,
        fold_gains::WEIGHTS,
        // Weights are what they will be: those that are asked for in fewer bits are stored so.
        quantize::recipe::weight_only::PASS,
        // Wholes, spellings and brackets: recognised and chosen by cost.
        if matches!(level, OptLevel::O3) {
            egraph::PASS_LONG
        } else {
            egraph::PASS
        },
        quantize::PASS,
    ]
}

/// What makes primitive ops of wholes that no kernel takes, and lays out what is left.
const SPELL_OUT: [Pass; 15] = [
    // Attention is recognised: its keys and values may stay in 8 bits.
    quantize::cache::PASS,
    decompose::PASS,
    simplify::PASS,
    fold::PASS,
    // Where channels go, then once more what that opened.
    layout::PASS,
    simplify::PASS,
    fold::PASS,
    cse::PASS,
    // What is still quantised is a product's.
    quantize::weights::PASS,
    // One kernel with its epilogue, or a library's.
    egraph::ROUTE,
    // What is a product of ours still: gates beside what they are applied to.
    pairs::PASS,
    // And rows that are multiplied before their norm's scale is known.
    fold_gains::PASS,
    // Filters that no library takes lie as our kernels read them.
    filters::PASS,
    // And reductions that would leave units idle.
    few_rows::PASS,
    dce::PASS,
];

/// Returns the passes before a graph is shared among devices, in order: they recognise wholes and decide types, and
/// spell nothing out. Each rank's graph then has all the passes of its level.
pub fn before_sharding(level: OptLevel) -> Vec<Pass> {
    let list: &[Pass] = match level {
        OptLevel::O0 | OptLevel::O1 => &[
            simplify::PASS,
            fold::PASS,
            precompute::PASS,
            quantize::recipe::weight_only::PASS,
            quantize::PASS,
        ],
        OptLevel::O2 | OptLevel::O3 => &[
            &CLEAN_UP[..],
            &recognise(level),
            &[simplify::PASS, fold::PASS, dce::PASS],
        ]
        .concat(),
    };
    list.to_vec()
}

/// Returns the names of all passes of all levels, each once, in the order of the longest list.
pub fn names() -> Vec<&'static str> {
    let mut names = Vec::new();
    for level in [OptLevel::O3, OptLevel::O1, OptLevel::O0] {
        for pass in passes(level) {
            if !names.contains(&pass.name) {
                names.push(pass.name);
            }
        }
    }
    names
}
