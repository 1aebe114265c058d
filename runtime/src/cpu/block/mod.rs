//! Runs block programs: see [`ir::host::block`].

mod gather;
pub(crate) mod memory;
pub(crate) mod ops;
pub(crate) mod run;

pub(crate) use ir::host::block::{Addr, Branch, Class, Guard, Inst, Link, Program, Reg, Store, Table, VALUE_BYTES};

pub(crate) use memory::copy_lanes;
pub(crate) use run::RunBlock;

/// What a register holds while a program runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Val {
    /// Lane 0, for a register with lanes.
    pub ptr: *mut u8,
    /// The value, for a uniform register: f32 and f64 by their bits, integers, 0 and 1.
    pub bits: u64,
}

const _: () = assert!(size_of::<Val>() == VALUE_BYTES);

/// The point that a block starts at, and its memory.
pub(crate) struct Frame<'a> {
    pub isa: super::kernels::Isa,
    /// Position on each dim; those of rows and columns are the block's first.
    pub idx: &'a [i64],
    pub rows: usize,
    pub cols: usize,
    /// Buffers by parameter.
    pub params: &'a [*mut u8],
    /// The thread's scratch for this program.
    pub scratch: *mut u8,
}
