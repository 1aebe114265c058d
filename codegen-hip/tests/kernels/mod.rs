//! Kernels written by hand, as lowering makes them, with odd sizes and every mapping: what the printer's tests print,
//! compile and run. One file for each kind of body.

mod attention;
mod build;
mod contract;
pub mod pointwise;
pub mod rows;
mod sequence;
mod transform;
mod windows;

use ir::DType;
use ir::kernel::{Kernel, Mapping};

pub use build::Build;

pub const F32: DType = DType::F32;

/// A row to some lanes of a wave.
fn lanes(lanes: u32, vector: u32) -> Mapping {
    Mapping::Lanes {
        lanes,
        block: 64,
        vector,
    }
}

/// A row to a block.
fn block(block: u32, vector: u32) -> Mapping {
    Mapping::Block { block, vector }
}

/// One kernel of each kind and mapping, small enough to run on the host.
pub fn all() -> Vec<Kernel> {
    [
        pointwise::all(),
        rows::all(),
        contract::all(),
        attention::all(),
        sequence::all(),
        transform::all(),
        windows::all(),
    ]
    .concat()
}
