//! Lays constant filters of depthwise convolutions out tap by tap, so that neighbouring channels' weights are
//! neighbours, and constant weights whose rows end within an access along the depth.
//!
//! ```text
//! conv x, f[C, 3, 3, 1]     becomes     conv x, transpose (f as [3, 3, 1, C])
//! contract x, w[768, 50257]     becomes     contract x, wᵀ[50257, 768] {transpose_rhs}
//! ```
//!
//! A GPU's thread has a few neighbouring channels, whose weights it then reads in one access, beside those of its
//! neighbours. The transposition is a map of indices and costs nothing. Rows of an odd number of columns begin
//! anywhere, so that they are read element by element; rows along a depth that is a multiple of an access are not.
//!
//! Before: Core, after constants were folded. After: the same numbers.

use ir::op::{Contract, Conv, Layout, View};
use ir::{Graph, HostTensor, Op, Target, Value};

use crate::error::PassFault;
use crate::fold::native;
use crate::rewrite::Builder;
use crate::runner::Pass;

/// The pass's name, and that of what it does to filters.
pub const NAME: &str = "filters_by_tap";
/// The name of what it does to weights.
pub const ALONG_DEPTH: &str = "odd_weight_along_depth";
/// Bytes of the widest access.
const ACCESS: usize = 16;

/// The pass.
pub const PASS: Pass = Pass {
    name: NAME,
    run: |graph, context| {
        let wanted =
            |op: &Op| matches!(op, Op::Conv(c) if c.groups > 1) || matches!(op, Op::Contract(c) if !c.transpose_rhs);
        if !context.target.is_gpu() || !graph.nodes().values().any(|n| wanted(&n.op)) {
            return Ok(graph.clone());
        }
        let mut b = Builder::new(graph, NAME);
        for (id, node) in graph.nodes().iter() {
            b.origin = node.origin.clone();
            let is_wanted = match &node.op {
                Op::Conv(conv) => {
                    conv.layout == Layout::ChannelsLast && is_depthwise(graph, conv, &node.operands, context.target)
                }
                _ => false,
            };
            if let Op::Contract(contract) = &node.op
                && context.options.enabled(ALONG_DEPTH)
                && let Some(weight) = along_depth(graph, contract, node.operands[1])
            {
                let (lhs, weight) = (b.value(node.operands[0]), b.constant(weight));
                let contract = Contract {
                    transpose_rhs: true,
                    ..*contract
                };
                let value = b.emit(Op::Contract(contract), &[lhs, weight])?;
                b.note(ALONG_DEPTH, vec![node.origin.clone()], None, None);
                b.set(id, value);
                continue;
            }
            let filter = is_wanted.then(|| b.value(node.operands[1]));
            let laid_out = match filter {
                Some(filter) => by_tap(&mut b, filter)?,
                None => None,
            };
            let Some(filter) = laid_out else {
                b.copy(id)?;
                continue;
            };
            let mut operands: Vec<Value> = node.operands.iter().map(|v| b.value(*v)).collect();
            operands[1] = filter;
            let value = b.emit(node.op.clone(), &operands)?;
            b.note(NAME, vec![node.origin.clone()], None, None);
            b.set(id, value);
        }
        Ok(b.finish(&mut context.fired))
    },
    required: false,
};

/// Channels of a group, at most, that a GPU's kernel folds one after another, where matrix instructions are many times
/// as fast as vector ones and where they are not: they would leave most of a tile empty. (Predicted for 3x3 of 8 x 128
/// x 56 x 56 in groups of 4 on gfx90a and gfx1100: 42 and 19 us by strips, 117 and 106 by tiles; of 8 x 256 x 28 x 28
/// in groups of 8, 50 and 22, 27 and 44.)
const FEW_CHANNELS: [i64; 2] = [4, 8];

/// Says whether each group of a convolution has one channel, or few: a GPU's kernel then reads image and filter
/// wherever they lie.
pub(crate) fn is_depthwise(graph: &Graph, conv: &Conv, operands: &[Value], target: &Target) -> bool {
    let channels = |v: Value, axis: fn(&Conv, usize) -> usize| {
        let shape = &graph.ty(v).shape;
        shape[axis(conv, shape.rank())].as_const()
    };
    if conv.transposed.is_some() || conv.groups < 2 {
        return false;
    }
    let (Some(image), Some(filter)) = (operands.first(), operands.get(1)) else {
        return false;
    };
    let own = channels(*image, |conv, rank| conv.layout.channel_axis(rank)).map(|n| n / conv.groups);
    let filters = channels(*filter, |_, _| 0).map(|n| n / conv.groups);
    let slow_tiles = target.matrix_f16_tflops <= 3.0 * target.vector_f32_tflops;
    let few = |n: Option<i64>| n.is_some_and(|n| n <= FEW_CHANNELS[usize::from(slow_tiles)]);
    // Bytes are what tiles multiply fastest.
    let dtype = graph.ty(*image).dtype;
    own == Some(1) || dtype.is_float() && dtype.bits() >= 16 && few(own) && few(filters)
}

/// A constant weight of floats `[k, n]` as `[n, k]`, where accesses fit its columns and not its rows.
fn along_depth(graph: &Graph, contract: &Contract, weight: Value) -> Option<HostTensor> {
    let tensor = graph.as_constant(weight).filter(|_| !contract.transpose_rhs)?;
    let [k, n] = tensor.shape[..] else { return None };
    let bits = tensor.dtype.bits() as usize;
    let fits = |elements: usize| (elements * bits).is_multiple_of(8 * ACCESS);
    let is_wanted = tensor.dtype.is_float() && bits >= 16 && fits(k) && !fits(n) && n >= ACCESS;
    is_wanted.then(|| native::permute(tensor, &[1, 0])).flatten()
}

/// A filter with its own axis last, seen as it was.
fn by_tap(b: &mut Builder<'_>, filter: Value) -> Result<Option<Value>, PassFault> {
    let rank = b.ty(filter).rank();
    let last: Vec<usize> = (1..rank).chain([0]).collect();
    let Some(turned) = b.as_constant(filter).and_then(|f| native::permute(f, &last)) else {
        return Ok(None);
    };
    let constant = b.constant(turned);
    let first: Vec<usize> = [rank - 1].into_iter().chain(0..rank - 1).collect();
    b.emit(Op::View(View::Transpose(first)), &[constant]).map(Some)
}
