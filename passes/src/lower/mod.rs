//! Lowering: a region becomes a kernel.
//!
//! The anchor's file makes the body; operands are *pulled* (an element at coordinates becomes an expression over what
//! the region reads, [`pull`]) and the epilogue is *pushed* (applied to the element at hand and stored, [`epilogue`]).
//! Views are maps of coordinates ([`views`]) in an index algebra in which reshapes cancel ([`index`]). Axes that every
//! access steps through alike are then joined ([`collapse`]), positions that nothing shows to be inside their buffers
//! are clamped for GPUs ([`prove`]), and the [`mapping`] onto threads is chosen last.

mod attention;
pub mod builder;
mod chain;
mod collapse;
mod contract;
mod copies;
mod depthwise;
mod epilogue;
mod error;
pub mod index;
mod loops;
pub mod mapping;
mod ordered;
mod parts;
mod prove;
mod pull;
mod ranges;
mod recurrent;
mod rows;
mod seen;
mod shares;
pub mod unpacked;
pub mod views;
mod window;
pub mod winograd;

use ir::kernel::{Access, AxisId, Body, CopyBody, Expr, Kernel, Loops, Mapping, Stmt};
use ir::op::Composite;
use ir::schedule::{Region, RegionKind};
use ir::{DType, Entity, Graph, Op, Symbol, Target};

use builder::{Builder, Joins, Range, Share, Splits};
pub use error::LowerError;
pub use parts::{Parts, Total, in_parts};
pub use ranges::in_ranges;
pub use shares::{Shared, shared, tickets, zero_tickets};

/// Lowers one region.
///
/// # Errors
/// An op with no kernel, or a schedule that does not hold together.
pub fn lower(graph: &Graph, region: &Region, target: &Target) -> Result<Kernel, LowerError> {
    share_of(graph, region, target, Share::Whole)
}

/// Lowers one region, or one launch's share of it.
fn share_of(graph: &Graph, region: &Region, target: &Target, share: Share) -> Result<Kernel, LowerError> {
    restricted(graph, region, target, share, None)
}

/// Lowers one region or a launch's share of it, or a range of its result.
fn restricted(
    graph: &Graph,
    region: &Region,
    target: &Target,
    share: Share,
    range: Option<&Range>,
) -> Result<Kernel, LowerError> {
    let none = Joins::new();
    let mut builder = Builder::new(graph, region, &none, share);
    builder.range = range;
    let mut body = body(&mut builder, region, target)?;
    let joins = collapse::joins(&builder).unwrap_or_default();
    if !joins.is_empty() {
        builder = Builder::new(graph, region, &joins, share);
        builder.range = range;
        body = self::body(&mut builder, region, target)?;
    }
    if !target.is_gpu() && region.kind == RegionKind::Pointwise {
        let mut splits = Splits::new();
        // Each split takes a divisor apart; a copy with more of them than this stays loops.
        for _ in 0..16 {
            let Body::Loops(loops) = &body else { break };
            if let Some(copy) = copies::copy(&builder, loops) {
                body = Body::Copy(copy);
                break;
            }
            let Some((axis, inner)) = copies::split(&builder, loops) else {
                break;
            };
            split_axis(&mut splits, &builder, axis, inner);
            builder = Builder::new(graph, region, &joins, share);
            (builder.range, builder.splits) = (range, splits.clone());
            body = self::body(&mut builder, region, target)?;
        }
        // What is no copy after all keeps its axes.
        if !splits.is_empty() && matches!(body, Body::Loops(_)) {
            builder = Builder::new(graph, region, &joins, share);
            builder.range = range;
            body = self::body(&mut builder, region, target)?;
        }
    }
    let mut kernel = finish(builder, body, graph, region);
    if target.is_gpu() {
        let open = prove::open_params(&kernel, graph);
        if !open.is_empty() {
            let mut builder = Builder::new(graph, region, &joins, share);
            (builder.clamped, builder.range) = (open, range);
            let body = self::body(&mut builder, region, target)?;
            kernel = finish(builder, body, graph, region);
        }
    }
    kernel.mapping = mapping::choose(&kernel, graph.symbols(), target);
    Ok(kernel)
}

/// Notes that an axis is made as two, the inner one of `inner` points.
fn split_axis(splits: &mut Splits, b: &Builder<'_>, axis: AxisId, inner: i64) {
    let number = b.made_for[axis];
    let first = b
        .made_for
        .iter()
        .find(|(_, n)| **n == number)
        .map_or(axis, |(id, _)| id);
    let extent = b.extents[axis].as_const().unwrap_or(inner);
    let parts = splits.entry(number).or_insert_with(|| vec![extent]);
    let at = axis.index() - first.index();
    parts[at] = extent / inner;
    parts.insert(at + 1, inner);
}

fn body(b: &mut Builder<'_>, region: &Region, target: &Target) -> Result<Body, LowerError> {
    let op = &b.graph.node(region.anchor).op;
    match op {
        _ if region.kind == RegionKind::Pointwise => loops::pointwise(b),
        Op::Reduce { op, axes, keep_dims } => rows::reduce(b, *op, axes, *keep_dims),
        Op::Pool(p) => window::pool(b, p, target),
        Op::Contract(c) => match chain::first_within(b) {
            Some(first) => chain::chain(b, first, c),
            None => contract::contract(b, c),
        },
        Op::Conv(c) if let Share::Patches(winograd) = b.share => winograd::patches(b, c, winograd),
        Op::Conv(c) if let Share::Pixels(winograd) = b.share => winograd::pixels(b, c, winograd),
        Op::Conv(c) if depthwise::is_depthwise(b, c, target) && !takes_depthwise(b, target) => {
            depthwise::convolution(b, c, target)
        }
        Op::Conv(c) => contract::conv(b, c, target),
        Op::Composite(Composite::Attention {
            scale,
            causal,
            mask,
            scales,
        }) => attention::attention(b, target, scale.as_f64(), *causal, *mask, *scales),
        Op::Composite(
            c @ (Composite::Softmax { .. }
            | Composite::LogSoftmax { .. }
            | Composite::LayerNorm { .. }
            | Composite::RmsNorm { .. }),
        ) => rows::row_composite(b, c),
        Op::Composite(Composite::Recurrent(layer)) => recurrent::recurrent(b, layer),
        Op::Scan {
            op,
            axis,
            exclusive,
            reverse,
        } => ordered::scan(b, *op, *axis, *exclusive, *reverse),
        Op::TopK { axis, k, largest } => ordered::top_k(b, *axis, k, *largest),
        Op::Scatter(s) => loops::scatter(b, target, *s),
        op => Err(LowerError::Unsupported {
            op: op.name(),
            at: crate::fuse::classify::label(b.graph, region.anchor),
            target: target.to_string(),
            why: "it should have been decomposed before scheduling".to_owned(),
        }),
    }
}

/// Says whether the target's convolution kernel takes the depthwise convolution.
fn takes_depthwise(b: &Builder<'_>, target: &Target) -> bool {
    let node = b.graph.node(b.region.anchor);
    let constant = node
        .operands
        .get(1)
        .is_some_and(|filter| matches!(b.graph.node(filter.node).op, Op::Constant(_)));
    let taken = |v: &ir::Value| matches!(b.graph.ty(*v).dtype, DType::F32 | DType::F16 | DType::BF16 | DType::I8);
    let last = matches!(&node.op, Op::Conv(c) if c.layout == ir::op::Layout::ChannelsLast);
    let bytes = b.graph.ty(node.operands[0]).dtype == DType::I8;
    target.depthwise_kernel && constant && node.operands[..2].iter().all(taken) && (last || !bytes)
}

fn finish(b: Builder<'_>, body: Body, graph: &Graph, region: &Region) -> Kernel {
    let mut kernel = Kernel {
        name: name(graph, region, b.share),
        params: b.params,
        symbols: Vec::new(),
        axes: b.axes,
        exprs: b.exprs,
        vars: b.vars,
        body,
        mapping: Mapping::Host,
        origins: region
            .nodes
            .iter()
            .map(|n| crate::fuse::classify::label(graph, *n))
            .collect(),
    };
    kernel.symbols = symbols(&kernel, graph);
    kernel
}

/// Bytes that a compute unit moves between its registers and the caches in a clock, at most, where all units do and
/// much of it is written: by the timing model, transforms of ResNet-50's images at batch 32 move 5.6 (gfx942) to 10
/// (gfx1100).
const UNIT_BYTES: f64 = 7.0;

/// Predicts the microseconds in which a launch reads and writes so many bytes, all of which other launches write or
/// read.
fn moved_us(target: &Target, bytes: f64) -> f64 {
    let by_units = bytes / (f64::from(target.compute_units) * target.clock_ghz * 1e3 * UNIT_BYTES);
    match bytes <= target.cache_bytes as f64 {
        true => by_units,
        false => by_units.max(target.memory_us(bytes)),
    }
}

/// The symbols that the kernel's extents and expressions mention, in the graph's order.
fn symbols(kernel: &Kernel, graph: &Graph) -> Vec<Symbol> {
    let mut found = Vec::new();
    kernel.axes.values().for_each(|a| a.extent.collect_symbols(&mut found));
    for (_, e) in kernel.exprs.iter() {
        if let Expr::Size(dim) = e {
            dim.collect_symbols(&mut found);
        }
    }
    let sizes = match &kernel.body {
        Body::Window(window) => window.sizes(),
        Body::Copy(copy) => copy.sizes(),
        _ => Vec::new(),
    };
    sizes.iter().for_each(|size| size.collect_symbols(&mut found));
    graph.symbols().keys().filter(|s| found.contains(s)).cloned().collect()
}

/// A name that says what the kernel does: its computing ops in order, each once in a row.
fn name(graph: &Graph, region: &Region, share: Share) -> String {
    let mut words: Vec<&str> = Vec::new();
    let anchored = region.kind != RegionKind::Pointwise;
    if anchored {
        words.push(graph.node(region.anchor).op.name());
    }
    match share {
        Share::Whole => {}
        Share::Partials(_) => words.push("parts"),
        Share::Patches(_) => words.push("patches"),
        Share::Pixels(_) => words.push("pixels"),
        Share::Total(_) | Share::Rows { .. } => words.push("sum"),
    }
    if matches!(share, Share::Partials(_) | Share::Patches(_)) {
        return words.join("_");
    }
    for id in &region.nodes {
        let op = &graph.node(*id).op;
        let summed = matches!(share, Share::Rows { of, .. } if of == *id);
        if anchored && (*id == region.anchor || summed) {
            continue;
        }
        let is_view = matches!(op, Op::View(_)) && (anchored || region.nodes.len() > 1);
        if is_view || matches!(op, Op::Iota { .. } | Op::DimValue(_)) || words.last() == Some(&op.name()) {
            continue;
        }
        words.push(op.name());
        if words.len() == 6 {
            words.push("etc");
            break;
        }
    }
    if words.is_empty() {
        words.push("copy");
    }
    words.join("_")
}

/// Says whether a kernel reads `param` only at the element it stores, so that the store may go to the same buffer.
pub fn reads_only_where_it_stores(kernel: &Kernel, param: ir::kernel::ParamId) -> bool {
    let (stores, contract) = match &kernel.body {
        Body::Loops(Loops { stmts, .. })
        | Body::Copy(CopyBody {
            loops: Loops { stmts, .. },
            ..
        }) if stmts
            .iter()
            .all(|s| matches!(s, Stmt::Store { axes, .. } if axes.is_empty())) =>
        {
            (stmts, None)
        }
        Body::Contract(c) => (&c.epilogue, Some(c)),
        _ => return false,
    };
    let [Stmt::Store { param: out, index, .. }] = stores.as_slice() else {
        return false;
    };
    if kernel.params[*out].dtype != kernel.params[param].dtype || kernel.params[param].access != Access::Read {
        return false;
    }
    let everywhere = kernel.exprs.iter().all(|(_, e)| match e {
        Expr::Load { param: p, index: at } => *p != param || at == index,
        _ => true,
    });
    // An operand of the product is read for other elements too.
    let reaches = |from| {
        let mut stack = vec![from];
        while let Some(e) = stack.pop() {
            if matches!(kernel.exprs[e], Expr::Load { param: p, .. } if p == param) {
                return true;
            }
            kernel.exprs[e].for_each_operand(|o| stack.push(o));
        }
        false
    };
    everywhere && contract.is_none_or(|c| !reaches(c.lhs.value) && !reaches(c.rhs.value))
}
