//! Execution: what each instruction does to a wave, its workgroup's LDS, and memory.

#![expect(
    clippy::needless_range_loop,
    reason = "a lane's number indexes several registers and masks at once"
)]

pub(crate) mod access;
pub(crate) mod atomic;
mod compare;
mod control;
mod convert;
pub(crate) mod cross;
pub(crate) mod float;
mod lanes;
pub(crate) mod late;
pub(crate) mod lds;
pub(crate) mod ledger;
pub(crate) mod matrix;
pub(crate) mod mx;
pub(crate) mod operand;
pub(crate) mod order;
pub(crate) mod packed;
pub(crate) mod rare;
mod round;
pub(crate) mod salu;
pub(crate) mod scoreboard;
pub(crate) mod simd;
pub(crate) mod smem;
pub(crate) mod span;
mod sparse;
mod tile;
pub(crate) mod undefined;
pub(crate) mod valu;
pub(crate) mod vmem;
pub(crate) mod wave;
pub(crate) mod workgroup;
