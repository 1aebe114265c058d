//! Expressions to block programs ([`ir::host::block`]).

mod chains;
pub(crate) mod compile;
mod slots;
