//! MIOpen: convolutions.

use ir::library::{Library, LibraryCall, LibraryOp};
use ir::{DType, Graph, NodeId, Op};

use super::Routed;
use super::rocblas::is_dense;

/// Returns the call for a two-dimensional convolution with equal padding on both sides.
pub fn call(g: &Graph, id: NodeId) -> Routed {
    let node = g.node(id);
    let Op::Conv(conv) = &node.op else { return None };
    let input = g.ty(node.operands[0]);
    let typed = matches!(input.dtype, DType::F32 | DType::F16 | DType::BF16) && conv.out == input.dtype;
    let even = conv.window.pad_low == conv.window.pad_high;
    if !typed || !even || input.rank() != 4 || conv.transposed.is_some() || !is_dense(g, node.operands[0]) {
        return None;
    }
    Some(LibraryCall {
        library: Library::MiOpen,
        op: LibraryOp::Conv(conv.clone()),
    })
}
