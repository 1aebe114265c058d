//! What a workgroup does alone: how long it takes for a row, and where a row should be several workgroups' work.

use ir::{DType, Target};

/// The share of the bytes that a compute unit could read of the cache in a clock which one workgroup has: the rest is
/// latency.
const SHARE_OF_ONE: f64 = 0.25;
/// By how much more launches must be faster.
pub(crate) const MARGIN: f64 = 1.2;

/// The microseconds in which a workgroup of its own folds a row of so many bytes.
pub(crate) fn alone_us(target: &Target, bytes: f64) -> f64 {
    let bytes_per_us = f64::from(target.cache_bytes_per_clock) * target.clock_ghz * 1e3 * SHARE_OF_ONE;
    bytes / bytes_per_us
}

/// Says whether one kernel that gives a workgroup to each row serves rows of `n` elements of a type well, reading them
/// about six times as long as once: for two statistics and the results, with what is computed between. Few long rows
/// are better spelled out: their reductions are split, and all units make what is stored.
pub(crate) fn one_kernel_serves(target: &Target, rows: i64, n: Option<i64>, dtype: DType) -> bool {
    let Some(n) = n else { return true };
    if !target.is_gpu() || 4 * rows.max(1) > i64::from(target.compute_units) {
        return true;
    }
    let alone = 6.0 * alone_us(target, n as f64 * f64::from(dtype.bits().max(8)) / 8.0);
    // Both statistics in two launches each, and what is made of them.
    alone < MARGIN * 5.0 * target.launch_us
}
