//! MIOpen: convolutions; on request also those of signed bytes, pooling by averages, and softmax.
//!
//! What is only taken on request ([`asked`]) no roofline would choose: its kernels read at least what a generated one
//! does, and nothing is fused with them. What MIOpen has and is no route, since it means something else: its largest of
//! a window drops NaNs and turns -∞ into the lowest number, its logarithm of a softmax lets rows with a NaN have
//! numbers, and its softmax of f16 rounds more than once.

use ir::library::{Library, LibraryCall, LibraryOp};
use ir::op::{Composite, Conv, Layout, Pool, PoolKind};
use ir::{DType, Graph, NodeId, Op};

use super::Routed;
use super::rocblas::is_dense;

/// Returns the call for a two-dimensional convolution with equal padding on both sides.
pub fn call(g: &Graph, id: NodeId) -> Routed {
    let Op::Conv(conv) = &g.node(id).op else { return None };
    let alone = g.node(id).operands.len() == 2;
    if alone && of_floats(g, id, conv) {
        convolution(g, id, conv)
    } else {
        None
    }
}

/// Returns the call for the sums of a convolution of stored operands, floats or signed bytes. A bias is added later.
pub fn sums(g: &Graph, id: NodeId) -> Routed {
    let Op::Conv(conv) = &g.node(id).op else { return None };
    if of_floats(g, id, conv) || of_bytes(g, id, conv) {
        convolution(g, id, conv)
    } else {
        None
    }
}

fn of_floats(g: &Graph, id: NodeId, conv: &Conv) -> bool {
    let input = g.ty(g.node(id).operands[0]);
    matches!(input.dtype, DType::F32 | DType::F16 | DType::BF16) && conv.out == input.dtype
}

fn of_bytes(g: &Graph, id: NodeId, conv: &Conv) -> bool {
    let are_bytes = |v: &ir::Value| g.ty(*v).dtype == DType::I8;
    let operands = g.node(id).operands.get(..2);
    operands.is_some_and(|both| both.iter().all(are_bytes)) && conv.out == DType::I32
}

/// Returns the call for what is only called on request: convolutions of signed bytes with sums of 32 bits, averages of
/// windows, softmax.
///
/// On gfx90a MIOpen has no more than a direct kernel for bytes with channels last, and one that lays out patches for a
/// product with channels first.
pub fn asked(g: &Graph, id: NodeId) -> Routed {
    let node = g.node(id);
    let operand = *node.operands.first()?;
    let input = g.ty(operand);
    let halves = matches!(input.dtype, DType::F32 | DType::F16);
    let op = match &node.op {
        Op::Conv(conv) if node.operands.len() == 2 && of_bytes(g, id, conv) && is_dense(g, operand) => {
            return convolution(g, id, conv);
        }
        Op::Pool(pool) if halves && averages(pool, input.rank()) => LibraryOp::Pool(pool.clone()),
        Op::Composite(Composite::Softmax { axis }) if input.dtype == DType::F32 => LibraryOp::Softmax { axis: *axis },
        _ => return None,
    };
    is_dense(g, operand).then_some(LibraryCall {
        library: Library::MiOpen,
        op,
    })
}

/// Says whether the op is one that [`asked`] looks at.
pub fn may_be_asked(op: &Op) -> bool {
    matches!(op, Op::Conv(_) | Op::Pool(_) | Op::Composite(Composite::Softmax { .. }))
}

fn convolution(g: &Graph, id: NodeId, conv: &Conv) -> Routed {
    let node = g.node(id);
    let even = conv.window.pad_low == conv.window.pad_high;
    let plain = conv.transposed.is_none() && conv.pad_value == 0;
    let typed = g.ty(node.operands[0]).dtype == g.ty(node.operands[1]).dtype;
    if !even || !plain || !typed || g.ty(node.operands[0]).rank() != 4 {
        return None;
    }
    Some(LibraryCall {
        library: Library::MiOpen,
        op: LibraryOp::Conv(conv.clone()),
    })
}

/// Says whether MIOpen's averages are a pooling's: it has no dilations, counts what lies beyond the padding where
/// padding counts, and has channels last of at most two axes (which are axes of windows of one to it).
fn averages(pool: &Pool, rank: usize) -> bool {
    let PoolKind::Average { count_padding } = pool.kind else {
        return false;
    };
    let window = &pool.window;
    let padded = !count_padding || !pool.ceil && window.pad_low == window.pad_high;
    let spatial = rank - 2;
    let axes = spatial + usize::from(pool.layout == Layout::ChannelsLast);
    axes <= 3 && padded && window.dilations.iter().all(|d| *d == 1) && window.pad_low.iter().all(|pad| *pad >= 0)
}
