//! What a vendor library is asked for.
//!
//! A route (`passes::route`) turns an op into a [`LibraryCall`]; the runtime's `library` rooms carry it out. Operands and
//! their types are the node's; the call adds only which library does what.

use serde::{Deserialize, Serialize};

use crate::graph::op::{Contract, Conv, Op, Pool};

/// A vendor library.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Library {
    RocBlas,
    HipBlasLt,
    MiOpen,
}

impl Library {
    /// Returns the name used in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            Library::RocBlas => "rocblas",
            Library::HipBlasLt => "hipblaslt",
            Library::MiOpen => "miopen",
        }
    }
}

/// A call into a library, in place of the op it was made from.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LibraryCall {
    pub library: Library,
    pub op: LibraryOp,
}

impl LibraryCall {
    /// Returns the product or convolution that the call carries out, without its epilogue.
    pub fn product(&self) -> Option<Op> {
        match &self.op {
            LibraryOp::Gemm { contract, .. } => Some(Op::Contract(*contract)),
            LibraryOp::Conv(conv) => Some(Op::Conv(conv.clone())),
            LibraryOp::Pool(_) => None,
        }
    }
}

/// What is asked for; operands are those of the op of the same name.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum LibraryOp {
    /// Operands: lhs, rhs, and with an epilogue that has a bias, the bias `[n]`.
    Gemm { contract: Contract, epilogue: GemmEpilogue },
    /// Operands: input, filter.
    Conv(Conv),
    /// Operand: input.
    Pool(Pool),
}

/// What a GEMM of hipBLASLt does to the product before storing it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum GemmEpilogue {
    #[default]
    None,
    Bias,
    Relu,
    BiasRelu,
    /// The tanh spelling, as hipBLASLt has it.
    GeluTanh,
    BiasGeluTanh,
}

impl GemmEpilogue {
    /// Returns the name used in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            GemmEpilogue::None => "none",
            GemmEpilogue::Bias => "bias",
            GemmEpilogue::Relu => "relu",
            GemmEpilogue::BiasRelu => "bias_relu",
            GemmEpilogue::GeluTanh => "gelu_tanh",
            GemmEpilogue::BiasGeluTanh => "bias_gelu_tanh",
        }
    }
}

impl LibraryCall {
    /// Returns the name used in text forms.
    pub const fn name(&self) -> &'static str {
        match (self.library, &self.op) {
            (Library::RocBlas, LibraryOp::Gemm { .. }) => "rocblas_gemm",
            (Library::HipBlasLt, LibraryOp::Gemm { .. }) => "hipblaslt_matmul",
            (Library::MiOpen, LibraryOp::Gemm { .. }) => "miopen_gemm",
            (Library::RocBlas, LibraryOp::Conv(_)) => "rocblas_conv",
            (Library::HipBlasLt, LibraryOp::Conv(_)) => "hipblaslt_conv",
            (Library::MiOpen, LibraryOp::Conv(_)) => "miopen_conv",
            (Library::RocBlas, LibraryOp::Pool(_)) => "rocblas_pool",
            (Library::HipBlasLt, LibraryOp::Pool(_)) => "hipblaslt_pool",
            (Library::MiOpen, LibraryOp::Pool(_)) => "miopen_pool",
        }
    }
}
