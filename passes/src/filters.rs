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

use ir::op::{Layout, View};
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
            let filter = is_depthwise(graph, &node.op, &node.operands).then(|| b.value(node.operands[1]));
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

/// Says whether each group of a convolution, channels last, has one channel.
fn is_depthwise(graph: &Graph, op: &Op, operands: &[Value]) -> bool {
    let (Op::Conv(conv), [input, ..]) = (op, operands) else {
        return false;
    };
    let channels = graph.ty(*input).shape.last().and_then(ir::Dim::as_const);
    conv.layout == Layout::ChannelsLast && conv.transposed.is_none() && conv.groups > 1 && channels == Some(conv.groups)
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
