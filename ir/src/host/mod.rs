//! What the CPU runs: kernels lowered for one set of sizes.
//!
//! Before: a [`Kernel`], sizes for its symbols, the constants behind its parameters. After: a [`HostKernel`], pieces
//! that run one after another: products, convolutions, attention, rows, pools, copies by their numeric kernels,
//! everything else as loops over block programs. Every place of a piece is a form over loop positions that the lowering
//! showed to be inside its buffer, or that is looked at when it runs. Plain data: the lowering knows no device, and who
//! runs it knows no expression.
//!
//! It is made where a program is loaded, and is not part of an artifact: a file is not relied on for places in memory.

pub mod affine;
pub mod block;
pub mod loops;
pub mod ordered;
pub mod product;
pub mod recurrent;
pub mod shapes;

use thiserror::Error;

use crate::data::HostTensor;
use crate::dim::{Bindings, DimError};
use crate::graph::ConstId;
use crate::kernel::Kernel;

pub use affine::Affine;

/// A kernel that the CPU runs.
#[derive(Clone, Debug)]
pub struct HostKernel {
    pub pieces: Vec<Piece>,
    /// Memory that pieces pass to one another: parameters after the kernel's own.
    pub temporaries: Vec<Temporary>,
    /// For each of the kernel's parameters whether its buffer is read as it lies; a constant that is only read packed
    /// is not.
    pub raw: Vec<bool>,
}

/// Memory of a kernel besides its buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Temporary {
    Bytes(usize),
    /// Room for so many matrices of 8-bit integers, packed as the processor takes them.
    Packed(product::GivenMatrix, usize),
}

/// A part of a kernel's work.
#[derive(Clone, Debug)]
pub enum Piece {
    Loops(Box<loops::Loops>),
    Rows(Box<shapes::RowComposite>),
    Pool(Box<shapes::Pool>),
    Copy(Box<shapes::Copy>),
    Gemm(Box<product::Gemm>),
    Conv(Box<product::Conv>),
    Integers(Box<product::Integers>),
    Attention(Box<shapes::Attention>),
    Scan(Box<ordered::Scan>),
    Sort(Box<ordered::Sort>),
    Recurrent(Box<recurrent::Recurrent>),
}

/// What a kernel is lowered for.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    pub bindings: &'a Bindings,
    /// The constant behind each parameter, where there is one.
    pub constants: &'a [Option<(ConstId, &'a HostTensor)>],
    /// A buffer that the kernel writes is one that it reads.
    pub aliased: bool,
}

impl<'a> Setting<'a> {
    /// Returns the constant behind a parameter; temporaries have none.
    pub fn constant(&self, param: usize) -> Option<(ConstId, &'a HostTensor)> {
        self.constants.get(param).copied().flatten()
    }
}

/// Lowers the kernels of one program, and keeps what it read of its constants.
pub trait Lowering: Send + Sync {
    /// Lowers a kernel.
    ///
    /// # Errors
    /// A size that does not evaluate, an access that is certain to leave its buffer, or a body that the CPU does not
    /// run.
    fn lower(&self, kernel: &Kernel, setting: &Setting<'_>) -> Result<HostKernel, LowerError>;
}

/// Makes the lowering of one program.
pub type NewLowering = fn() -> Box<dyn Lowering>;

/// Why a kernel cannot be lowered at a set of sizes.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LowerError {
    #[error(transparent)]
    Size(#[from] DimError),

    #[error("{at}: {what} is not supported on the CPU")]
    Unsupported { what: String, at: String },

    /// A size that is asked for is more than there is.
    #[error("{at}: {what} are asked for")]
    TooSmall { what: String, at: String },

    #[error("a temporary of {asked} bytes is too large")]
    NoMemory { asked: usize },
}
