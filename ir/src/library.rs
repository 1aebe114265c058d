//! What a vendor library is asked for.
//!
//! A route (`passes::route`) turns an op into a [`LibraryCall`]; the runtime's `library` rooms carry it out. Operands
//! and their types are the node's; the call adds only which library does what.

use std::fmt;
use std::str::FromStr;

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

    /// Returns the bytes of workspace that a plan has for the call: hipBLASLt chooses among the algorithms that take no
    /// more, and more is no faster for most products. `None` where the library has memory of its own, or says what it
    /// needs only on the device.
    pub const fn workspace(&self) -> Option<usize> {
        match (self.library, &self.op) {
            (Library::HipBlasLt, LibraryOp::Gemm { .. }) => Some(32 << 20),
            _ => None,
        }
    }

    /// Whether the library has several algorithms for the call, and can be asked for one of them.
    pub const fn has_algorithms(&self) -> bool {
        matches!(
            (self.library, &self.op),
            (Library::HipBlasLt, LibraryOp::Gemm { .. }) | (Library::MiOpen, LibraryOp::Conv(_))
        )
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

/// One of the algorithms of a library for a call, as the library names it.
///
/// The name means something to one version of the library on one driver: everywhere else the library's own heuristic
/// chooses.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Algorithm {
    /// The library and the driver, each with its version, as the runtime says them.
    pub of: String,
    /// What the library keeps of it, which only the library understands.
    pub words: Vec<u8>,
}

/// Prints `2a00… of hipBLASLt 100202 on HIP 7.2.0`: the words as hexadecimal digits.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.words {
            write!(f, "{byte:02x}")?;
        }
        write!(f, " of {}", self.of)
    }
}

/// A text that names no algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an algorithm is written as hexadecimal digits, ` of `, and the library with its driver")]
pub struct NoAlgorithm;

impl FromStr for Algorithm {
    type Err = NoAlgorithm;

    fn from_str(text: &str) -> Result<Algorithm, NoAlgorithm> {
        let (digits, of) = text.split_once(" of ").ok_or(NoAlgorithm)?;
        let is_name =
            !digits.is_empty() && digits.len().is_multiple_of(2) && digits.bytes().all(|d| d.is_ascii_hexdigit());
        if !is_name || of.is_empty() {
            return Err(NoAlgorithm);
        }
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| NoAlgorithm);
        Ok(Algorithm {
            of: of.to_owned(),
            words: (0..digits.len()).step_by(2).map(byte).collect::<Result<_, _>>()?,
        })
    }
}

/// What is asked for; operands are those of the op of the same name.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum LibraryOp {
    /// Operands: lhs, rhs, what the sums are scaled by (f32) unless that is nothing, and the bias `[n]` where the
    /// epilogue has one. The sums are scaled and have the epilogue in f32, and are rounded once, to the contraction's
    /// result type.
    Gemm {
        contract: Contract,
        scale: GemmScale,
        epilogue: GemmEpilogue,
    },
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
/// A collective is of a set of graphs (or plans), one for each rank, which have the same collectives in the same order.
/// Alone a graph with one has no meaning; `graph::eval::ranks` and `plan::eval::evaluate_ranks` give the set one.
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
    /// All of them, one after the other in the order of the ranks: a new first axis counts the ranks. (To join another
    /// axis is to transpose and reshape that, which costs the kernel that reads it nothing.)
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

/// By what a GEMM of hipBLASLt multiplies the sums, before its epilogue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum GemmScale {
    #[default]
    None,
    /// One number, `[]` or `[1]`: the library has that for operands in 8-bit floats alone.
    Tensor,
    /// A number for each column of the result, `[n]`.
    Columns,
}

impl GemmScale {
    /// Returns the name used in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            GemmScale::None => "none",
            GemmScale::Tensor => "tensor",
            GemmScale::Columns => "columns",
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

    /// Whether the epilogue adds a bias.
    pub const fn has_bias(self) -> bool {
        matches!(
            self,
            GemmEpilogue::Bias | GemmEpilogue::BiasRelu | GemmEpilogue::BiasGeluTanh
        )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithm_is_read_as_it_is_printed() {
        let algorithm = Algorithm {
            of: "hipBLASLt 100202 on HIP 7.2.0".to_owned(),
            words: vec![0x2a, 0, 0xff],
        };
        let text = algorithm.to_string();
        assert_eq!(text, "2a00ff of hipBLASLt 100202 on HIP 7.2.0");
        assert_eq!(text.parse(), Ok(algorithm));
        for wrong in [
            "", "2a00ff", " of x", "2a0 of x", "2a of ", "zz of x", "äa of x", "+a of x",
        ] {
            assert_eq!(wrong.parse::<Algorithm>(), Err(NoAlgorithm), "{wrong}");
        }
    }
}
