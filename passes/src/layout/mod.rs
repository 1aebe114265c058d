//! Puts channels last where the target likes them there, and gets rid of the transposes that this takes.
//!
//! ```text
//! conv(x [N, C, H, W])     becomes     transpose(conv_last(transpose x))
//! ```
//!
//! and then transposes sink: through elementwise ops, concats, pads, slices, reductions, softmax and reshapes, until
//! they meet the transpose in front of the next convolution and cancel. On a plain CNN the one at the input stays, and
//! one where a spatial extent is flattened. Filters are permuted at compile time.
//!
//! Before: convolutions in either layout. After: all convolutions and poolings of the graph have channels last.

mod sink;

use ir::op::{Conv, Layout, Pool, View};
use ir::{Graph, Op, Value};

use crate::error::PassFault;
use crate::rewrite::Builder;
use crate::runner::Pass;

const CONV: &str = "conv_channels_last";
const POOL: &str = "pool_channels_last";

/// Returns the names of the rules of this pass.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    [CONV, POOL].into_iter().chain(sink::RULES.iter().map(|r| r.name))
}

/// The pass.
pub const PASS: Pass = Pass {
    name: "layout",
    run: |graph, context| {
        if !context.target.channels_last || !wants(graph) {
            return Ok(graph.clone());
        }
        let options = context.options;
        let sink = sink::RULES.iter().copied().filter(|r| options.enabled(r.name));
        let rules = crate::fold::with_simplify(options).into_iter().chain(sink);
        let mut b = Builder::new(graph, "layout").with_rules(rules, options);
        for (id, node) in graph.nodes().iter() {
            b.origin = node.origin.clone();
            let operands = |b: &Builder<'_>| node.operands.iter().map(|v| b.value(*v)).collect::<Vec<_>>();
            match &node.op {
                Op::Conv(conv) if conv.layout == Layout::ChannelsFirst && options.enabled(CONV) => {
                    let x = operands(&b);
                    let value = convolution(&mut b, conv, &x)?;
                    b.note(CONV, vec![node.origin.clone()], None, None);
                    b.set(id, value);
                }
                Op::Pool(pool) if pool.layout == Layout::ChannelsFirst && options.enabled(POOL) => {
                    let x = operands(&b);
                    let value = pooling(&mut b, pool, x[0])?;
                    b.note(POOL, vec![node.origin.clone()], None, None);
                    b.set(id, value);
                }
                _ => b.copy(id)?,
            }
        }
        Ok(b.finish(&mut context.fired))
    },
    required: false,
};

fn wants(graph: &Graph) -> bool {
    graph.nodes().values().any(|n| match &n.op {
        Op::Conv(c) => c.layout == Layout::ChannelsFirst,
        Op::Pool(p) => p.layout == Layout::ChannelsFirst,
        _ => false,
    })
}

/// The permutation that takes `[N, C, …]` to `[N, …, C]`.
pub(crate) fn to_last(rank: usize) -> Vec<usize> {
    std::iter::once(0).chain(2..rank).chain([1]).collect()
}

/// The permutation that takes `[N, …, C]` to `[N, C, …]`.
pub(crate) fn to_first(rank: usize) -> Vec<usize> {
    [0, rank - 1].into_iter().chain(1..rank - 1).collect()
}

fn transpose(b: &mut Builder<'_>, x: Value, perm: Vec<usize>) -> Result<Value, PassFault> {
    b.emit(Op::View(View::Transpose(perm)), &[x])
}

fn convolution(b: &mut Builder<'_>, conv: &Conv, x: &[Value]) -> Result<Value, PassFault> {
    let rank = b.ty(x[0]).rank();
    let input = transpose(b, x[0], to_last(rank))?;
    let filter = transpose(b, x[1], to_last(rank))?;
    let mut operands = vec![input, filter];
    operands.extend(x.get(2));
    let mut last = conv.clone();
    last.layout = Layout::ChannelsLast;
    let y = b.emit(Op::Conv(last), &operands)?;
    transpose(b, y, to_first(rank))
}

fn pooling(b: &mut Builder<'_>, pool: &Pool, x: Value) -> Result<Value, PassFault> {
    let rank = b.ty(x).rank();
    let input = transpose(b, x, to_last(rank))?;
    let mut last = pool.clone();
    last.layout = Layout::ChannelsLast;
    let y = b.emit(Op::Pool(last), &[input])?;
    transpose(b, y, to_first(rank))
}
