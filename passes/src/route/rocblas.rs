//! rocBLAS: plain and batched matrix products; of signed bytes with sums of 32 bits.

use ir::library::{GemmEpilogue, GemmScale, Library, LibraryCall, LibraryOp};
use ir::op::Contract;
use ir::{DType, Graph, NodeId, Op, Value};

use super::Routed;
use crate::fuse::classify::is_unpacking;

/// Returns the call for a contraction of dense operands in a type that rocBLAS takes.
pub fn call(g: &Graph, id: NodeId) -> Routed {
    let node = g.node(id);
    let Op::Contract(contract) = node.op else { return None };
    let (lhs, rhs) = (g.ty(node.operands[0]), g.ty(node.operands[1]));
    let typed = lhs.dtype == rhs.dtype && sums(lhs.dtype) == Some(contract.out);
    if !typed || !is_strided(g, id, &contract) {
        return None;
    }
    Some(LibraryCall {
        library: Library::RocBlas,
        op: LibraryOp::Gemm {
            contract,
            scale: GemmScale::None,
            epilogue: GemmEpilogue::None,
        },
    })
}

/// Whether a contraction is one product of operands that lie in memory, or a batch with the same dims on both sides; a
/// shared right operand folds the batch into the rows.
pub(super) fn is_strided(g: &Graph, id: NodeId, contract: &Contract) -> bool {
    let operands = &g.node(id).operands;
    let (lhs, rhs) = (g.ty(operands[0]), g.ty(operands[1]));
    let batched =
        rhs.rank() == 2 && !contract.transpose_lhs || lhs.shape[..lhs.rank() - 2] == rhs.shape[..rhs.rank() - 2];
    batched && operands.iter().all(|v| is_dense(g, *v))
}

/// The type in which rocBLAS stores products of a type: sums of bytes keep their 32 bits, and what requantises them is
/// a kernel.
const fn sums(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::F64 => Some(dtype),
        DType::I8 => Some(DType::I32),
        _ => None,
    }
}

/// Says whether a value lies in memory as it is, so that a call needs no copy first. Another shape of a stored tensor
/// does not: a call has its sizes from the buffer's type.
pub(super) fn is_dense(g: &Graph, v: Value) -> bool {
    match &g.node(v.node).op {
        Op::View(_) => false,
        // It would be written out as numbers, for every run.
        op if is_unpacking(op) => false,
        _ => true,
    }
}
