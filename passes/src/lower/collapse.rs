//! Joining loop axes that every access steps through alike.
//!
//! Before: loops over `[batch, seq, 768]` that all read and write at `(batch·S + seq)·768 + c`. After: one loop over
//! `batch·S·768`.

use super::builder::{Builder, Joins};
use super::index::Linear;

/// Says which neighbouring dims of each [`Builder::iterate`] call can share an axis; `None` if none can.
pub fn joins(b: &Builder<'_>) -> Option<Joins> {
    let mut any = false;
    let joins = b
        .iterated
        .iter()
        .map(|call| {
            let mut join = vec![false; call.dims.len().saturating_sub(1)];
            for (i, joined) in join.iter_mut().enumerate() {
                *joined = match (call.axes[i], call.axes[i + 1]) {
                    (Some(outer), Some(inner)) => {
                        let fits = b.indices.iter().all(|l: &Linear| {
                            !l.hides(outer)
                                && !l.hides(inner)
                                && l.coefficient(outer) == l.coefficient(inner) * &call.dims[i + 1]
                        });
                        any |= fits;
                        fits
                    }
                    _ => false,
                };
            }
            join
        })
        .collect();
    any.then_some(joins)
}
