//! hipBLASLt: matrix products with scales, a bias and an activation.

use ir::library::{GemmEpilogue, GemmScale, Library, LibraryCall, LibraryOp};
use ir::op::{Contract, UnaryOp};
use ir::{DType, Dim, Graph, NodeId, Op, Target, TensorType, Value};

use super::rocblas;

/// Returns the contraction of a node that hipBLASLt takes: one that rocBLAS would, in a type that has epilogues, or one
/// of 8-bit floats that the target multiplies, with sums in f32; with a batch that no operand repeats.
pub fn product(g: &Graph, id: NodeId, target: &Target) -> Option<Contract> {
    let node = g.node(id);
    let Op::Contract(contract) = node.op else { return None };
    let (lhs, rhs) = (g.ty(node.operands[0]), g.ty(node.operands[1]));
    let folds = rhs.rank() == 2 && !contract.transpose_lhs;
    let fits = match is_float8(lhs) && is_float8(rhs) {
        true => contract.out == DType::F32 && multiplies(target, lhs, rhs) && rocblas::is_strided(g, id, &contract),
        false => matches!(lhs.dtype, DType::F32 | DType::F16 | DType::BF16) && rocblas::call(g, id).is_some(),
    };
    (fits && (folds || lhs.rank() == rhs.rank())).then_some(contract)
}

/// The library has kernels for the 8-bit floats that the GPU's instructions take.
fn multiplies(target: &Target, lhs: &TensorType, rhs: &TensorType) -> bool {
    target.hipblaslt && target.matrix.iter().any(|i| i.takes(lhs.dtype, rhs.dtype))
}

fn is_float8(ty: &TensorType) -> bool {
    ty.dtype.is_f8()
}

/// How a factor in f32 scales the sums of a product of `operand`s, if the library can: `result` is what is scaled.
pub fn scale(factor: &TensorType, operand: &TensorType, result: &TensorType) -> Option<GemmScale> {
    let columns: Option<&Dim> = result.shape.iter().last();
    if factor.dtype != DType::F32 || result.dtype != DType::F32 {
        return None;
    }
    match &factor.shape[..] {
        [size] if Some(size) == columns => Some(GemmScale::Columns),
        [] if is_float8(operand) => Some(GemmScale::Tensor),
        [size] if size.is(1) && is_float8(operand) => Some(GemmScale::Tensor),
        _ => None,
    }
}

/// Whether scaled sums are stored in a narrower type: of 8-bit floats alone.
pub fn narrows(operand: &TensorType, to: DType) -> bool {
    is_float8(operand) && matches!(to, DType::F16 | DType::BF16)
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
pub fn call(contract: Contract, scale: GemmScale, epilogue: GemmEpilogue) -> LibraryCall {
    LibraryCall {
        library: Library::HipBlasLt,
        op: LibraryOp::Gemm {
            contract,
            scale,
            epilogue,
        },
    }
}
