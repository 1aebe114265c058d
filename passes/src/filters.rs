//! Lays constant filters of depthwise convolutions out tap by tap, so that neighbouring channels' weights are neighbours.
//!
//! ```text
//! conv x, f[C, 3, 3, 1]     becomes     conv x, transpose (f as [3, 3, 1, C])
//! ```
//!
//! A GPU's thread has a few neighbouring channels, whose weights it then reads in one access, beside those of its neighbours. The
//! transposition is a map of indices and costs nothing.
//!
//! Before: Core, after constants were folded. After: the same numbers.

use ir::op::{Conv, Layout, View};
use ir::{Graph, Op, Value};

use crate::error::PassFault;
use crate::fold::native;
use crate::rewrite::Builder;
use crate::runner::Pass;

/// The pass's name, and that of what it does.
pub const NAME: &str = "filters_by_tap";

/// The pass.
pub const PASS: Pass = Pass {
    name: NAME,
    run: |graph, context| {
        let wanted = |op: &Op| matches!(op, Op::Conv(c) if c.groups > 1);
        if !context.target.is_gpu() || !graph.nodes().values().any(|n| wanted(&n.op)) {
            return Ok(graph.clone());
        }
        let mut b = Builder::new(graph, NAME);
        for (id, node) in graph.nodes().iter() {
            b.origin = node.origin.clone();
            let is_wanted = match &node.op {
                Op::Conv(conv) => conv.layout == Layout::ChannelsLast && is_depthwise(graph, conv, &node.operands),
                _ => false,
            };
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

/// Says whether each group of a convolution has one channel: a GPU's kernel then reads image and filter wherever they lie.
pub(crate) fn is_depthwise(graph: &Graph, conv: &Conv, operands: &[Value]) -> bool {
    let channels = operands.first().and_then(|input| {
        let shape = &graph.ty(*input).shape;
        shape[conv.layout.channel_axis(shape.rank())].as_const()
    });
    conv.transposed.is_none() && conv.groups > 1 && channels == Some(conv.groups)
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
