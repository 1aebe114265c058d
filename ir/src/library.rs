//! What a vendor library is asked for.
//!
//! A route (`passes::route`) turns an op into a [`LibraryCall`]; the runtime's `library` rooms carry it out. Operands and
//! their types are the node's; the call adds only which library does what.

use serde::{Deserialize, Serialize};

use crate::graph::op::{Contract, Conv, Op, Pool};
use crate::types::DType;

/// A vendor library.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Library {
    RocBlas,
    HipBlasLt,
    MiOpen,
    /// Collectives between devices: RCCL on AMD's GPUs, NCCL on NVIDIA's, which have one interface.
    Rccl,
}

impl Library {
    /// Returns the name used in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            Library::RocBlas => "rocblas",
            Library::HipBlasLt => "hipblaslt",
            Library::MiOpen => "miopen",
            Library::Rccl => "rccl",
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
            LibraryOp::Pool(_) | LibraryOp::Softmax { .. } | LibraryOp::Collective(_) => None,
        }
    }

    /// Returns the bytes of workspace that a plan has for the call: hipBLASLt chooses among the algorithms that take no more, and more
    /// is no faster for most products. `None` where the library has memory of its own, or says what it needs only on the device.
    pub const fn workspace(&self) -> Option<usize> {
        match (self.library, &self.op) {
            (Library::HipBlasLt, LibraryOp::Gemm { .. }) => Some(32 << 20),
            _ => None,
        }
    }

    /// Makes a collective.
    pub const fn collective(collective: Collective) -> LibraryCall {
        LibraryCall {
            library: Library::Rccl,
            op: LibraryOp::Collective(collective),
        }
    }

    /// Returns the collective that the call is.
    pub const fn as_collective(&self) -> Option<Collective> {
        match &self.op {
            LibraryOp::Collective(collective) => Some(*collective),
            LibraryOp::Gemm { .. } | LibraryOp::Conv(_) | LibraryOp::Pool(_) | LibraryOp::Softmax { .. } => None,
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
    /// Operand: this rank's part.
    Collective(Collective),
    /// Operand: input.
    Softmax { axis: usize },
}

/// What all ranks of a model compute together: each gives a tensor of one type, and each is given the same result.
///
/// A collective is of a set of graphs (or plans), one for each rank, which have the same collectives in the same order. Alone a graph
/// with one has no meaning; `graph::eval::ranks` and `plan::eval::evaluate_ranks` give the set one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Collective {
    pub kind: CollectiveKind,
    /// How many ranks there are: from 2 to [`Collective::MOST_RANKS`].
    pub ranks: u32,
}

/// What becomes of the ranks' tensors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum CollectiveKind {
    /// Their sum, element by element.
    AllReduce,
    /// All of them, one after the other in the order of the ranks: a new first axis counts the ranks. (To join another axis is to
    /// transpose and reshape that, which costs the kernel that reads it nothing.)
    AllGather,
}

impl CollectiveKind {
    /// Returns the name used in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllGather => "all_gather",
        }
    }
}

impl Collective {
    /// As many GPUs as the largest single hosts have.
    pub const MOST_RANKS: u32 = 16;

    /// Says whether the libraries take tensors of a type; whole bytes are gathered, whatever they mean.
    pub const fn takes(&self, dtype: DType) -> bool {
        match self.kind {
            CollectiveKind::AllGather => dtype.bits() >= 8,
            CollectiveKind::AllReduce => matches!(
                dtype,
                DType::F64 | DType::F32 | DType::F16 | DType::BF16 | DType::I64 | DType::I32 | DType::I8 | DType::U8
            ),
        }
    }
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
            (Library::RocBlas, LibraryOp::Softmax { .. }) => "rocblas_softmax",
            (Library::HipBlasLt, LibraryOp::Softmax { .. }) => "hipblaslt_softmax",
            (Library::MiOpen, LibraryOp::Softmax { .. }) => "miopen_softmax",
            (Library::Rccl, LibraryOp::Softmax { .. }) => "rccl_softmax",
            (Library::Rccl, LibraryOp::Gemm { .. }) => "rccl_gemm",
            (Library::Rccl, LibraryOp::Conv(_)) => "rccl_conv",
            (Library::Rccl, LibraryOp::Pool(_)) => "rccl_pool",
            (Library::Rccl, LibraryOp::Collective(c)) => match c.kind {
                CollectiveKind::AllReduce => "rccl_all_reduce",
                CollectiveKind::AllGather => "rccl_all_gather",
            },
            (Library::RocBlas, LibraryOp::Collective(_)) => "rocblas_collective",
            (Library::HipBlasLt, LibraryOp::Collective(_)) => "hipblaslt_collective",
            (Library::MiOpen, LibraryOp::Collective(_)) => "miopen_collective",
        }
    }
}
