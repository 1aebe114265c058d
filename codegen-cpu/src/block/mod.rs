//! Expressions to block programs ([`ir::host::block`]).

pub(crate) mod compile;
mod slots;
