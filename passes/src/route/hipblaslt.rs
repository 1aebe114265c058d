//! hipBLASLt: matrix products with a bias and an activation.

use ir::library::{GemmEpilogue, Library, LibraryCall, LibraryOp};
use ir::op::{Contract, UnaryOp};
use ir::{DType, Dim, Graph, NodeId, Op, TensorType, Value};

use super::rocblas;

/// Returns the contraction of a node that hipBLASLt takes: one that rocBLAS would, in a type that has epilogues, and with a batch
/// that no operand repeats.
pub fn product(g: &Graph, id: NodeId) -> Option<Contract> {
    let node = g.node(id);
    let Op::Contract(contract) = node.op else { return None };
    let (lhs, rhs) = (g.ty(node.operands[0]), g.ty(node.operands[1]));
    let typed = matches!(lhs.dtype, DType::F32 | DType::F16 | DType::BF16);
    let folds = rhs.rank() == 2 && !contract.transpose_lhs;
    (typed && (folds || lhs.rank() == rhs.rank()) && rocblas::call(g, id).is_some()).then_some(contract)
}

/// Whether a tensor can be the bias of a result: a number of the same type for each column.
pub fn is_bias(bias: &TensorType, result: &TensorType) -> bool {
    let columns: Option<&Dim> = result.shape.iter().last();
    bias.dtype == result.dtype && bias.rank() == 1 && bias.shape.iter().last() == columns
}

/// Whether a value lies in memory as it is.
pub fn is_stored(g: &Graph, value: Value) -> bool {
    rocblas::is_dense(g, value)
}

/// The epilogue that an activation makes of another one.
pub fn activated(epilogue: GemmEpilogue, activation: UnaryOp) -> Option<GemmEpilogue> {
    match (epilogue, activation) {
        (GemmEpilogue::None, UnaryOp::Relu) => Some(GemmEpilogue::Relu),
        (GemmEpilogue::None, UnaryOp::GeluTanh) => Some(GemmEpilogue::GeluTanh),
        (GemmEpilogue::Bias, UnaryOp::Relu) => Some(GemmEpilogue::BiasRelu),
        (GemmEpilogue::Bias, UnaryOp::GeluTanh) => Some(GemmEpilogue::BiasGeluTanh),
        _ => None,
    }
}

/// The call.
pub fn call(contract: Contract, epilogue: GemmEpilogue) -> LibraryCall {
    LibraryCall {
        library: Library::HipBlasLt,
        op: LibraryOp::Gemm { contract, epilogue },
    }
}
