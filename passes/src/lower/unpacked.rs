//! A product by quantised weights in two launches: the first stores the weights' numbers, the second multiplies by
//! them.
//!
//! A kernel that unpacks weights makes a number of each again in every tile of rows, and what it makes cannot be copied
//! to LDS directly. From some number of rows on it takes less time to make them once. What that costs is memory for the
//! numbers, while the product runs.
//!
//! ```text
//! contract(x, dequantize(w, s))  =  unpack:  n = dequantize(w, s)
//!                                   product: contract(x, n)
//! ```
//!
//! Before: a region whose anchor is a product or a convolution, with the weights' `dequantize` among its nodes. After:
//! two regions, and the number of rows from which on they are predicted to take less time than the one.

use ir::kernel::{Body, Kernel};
use ir::schedule::{Region, RegionKind};
use ir::{Dim, Graph, NodeId, Op, Target, Value};

use super::{LowerError, lower, mapping, moved_us, symbols};
use crate::fuse::classify::{is_free, is_unpacking};

/// The name by which it can be left out, as rules can: `--disable unpack_once`.
pub const RULE: &str = "unpack_once";

/// For which rows the weights of a product are unpacked by a launch of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UnpackOnce {
    Never,
    /// So many that this is predicted to be faster.
    #[default]
    Fastest,
    /// This power of two, and more.
    From(i64),
}

/// A product in two launches.
pub struct Unpacked {
    /// The weights' numbers.
    pub weights: Value,
    /// Stores them. Where the rows are open it has no work below [`Unpacked::from`].
    pub unpack: (Region, Kernel),
    /// Reads them.
    pub product: (Region, Kernel),
    pub from: ForRows,
    pub predicted: Predicted,
}

/// The rows for which there are two launches.
#[derive(Clone, PartialEq, Debug)]
pub enum ForRows {
    /// All that the model allows.
    All,
    /// As many as this of an open number of rows, or more.
    From { size: Dim, least: i64 },
}

/// Predicted microseconds, at the number of rows that the kernel is mapped for, or from which on there are two
/// launches.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Predicted {
    pub unpack: f64,
    pub product: f64,
    /// What one more launch takes.
    pub launch: f64,
    /// The kernel that unpacks.
    pub fused: f64,
}

impl Predicted {
    /// Returns what the two launches take.
    pub fn stored(&self) -> f64 {
        self.unpack + self.product + self.launch
    }

    fn pays(&self) -> bool {
        self.stored() < WORTH * self.fused
    }
}

/// The share of the one kernel's time that the two launches may be predicted to take: what wins by less may lose, and
/// takes memory.
const WORTH: f64 = 0.9;

/// Rows from which on two launches are looked at.
const LEAST_ROWS: i64 = 64;

/// Bytes of numbers that a product may take: more than that is no small part of a GPU's memory.
const MOST_SCRATCH: i64 = 1 << 30;

/// Lowers a product to two launches, where `fused`, its kernel, unpacks weights and this is predicted to take more time
/// at some number of rows that the model allows.
///
/// # Errors
/// As [`super::lower`].
pub fn unpacked(
    graph: &Graph,
    region: &Region,
    fused: &Kernel,
    once: UnpackOnce,
    target: &Target,
) -> Result<Option<Unpacked>, LowerError> {
    let least = match once {
        UnpackOnce::Never => return Ok(None),
        UnpackOnce::Fastest => LEAST_ROWS,
        UnpackOnce::From(rows) => rows,
    };
    let Body::Contract(body) = &fused.body else {
        return Ok(None);
    };
    if !target.is_gpu() || body.rhs.unpacking().is_none() {
        return Ok(None);
    }
    let open = mapping::open_rows(fused, graph.symbols(), target);
    let rows = |extent: &Dim| extent.hint(graph.symbols());
    let most = match &open {
        Some((_, firsts)) => firsts.last().copied().unwrap_or(0),
        None => body.m.iter().map(|axis| rows(&fused.axes[*axis].extent)).product(),
    };
    if most < least {
        return Ok(None);
    }
    let Some((weights, made, rest)) = split(graph, region) else {
        return Ok(None);
    };
    let Some(stored) = graph
        .ty(weights)
        .bytes()
        .as_const()
        .filter(|bytes| *bytes <= MOST_SCRATCH)
    else {
        return Ok(None);
    };
    let product = lower(graph, &rest, target)?;
    let read: i64 = (made.inputs.iter())
        .filter_map(|v| graph.ty(*v).bytes().as_const())
        .sum();
    let predicted = |rows: Option<i64>| {
        let us = |kernel: &Kernel| mapping::best_product_us(kernel, graph.symbols(), target, rows);
        Some(Predicted {
            unpack: moved_us(target, (read + stored) as f64),
            product: us(&product)?,
            launch: mapping::second_launch_us(target),
            fused: us(fused)?,
        })
    };
    let pays = |predicted: &Predicted| once != UnpackOnce::Fastest || predicted.pays();
    let (from, predicted) = match open {
        None => match predicted(None).filter(pays) {
            Some(predicted) => (ForRows::All, predicted),
            None => return Ok(None),
        },
        Some((size, firsts)) => {
            let many = firsts.iter().rev().copied().take_while(|rows| *rows >= least);
            let paying = many.map_while(|rows| Some((rows, predicted(Some(rows)).filter(pays)?)));
            let Some((least, predicted)) = paying.last() else {
                return Ok(None);
            };
            let from = match firsts.first() == Some(&least) {
                true => ForRows::All,
                false => ForRows::From { size, least },
            };
            (from, predicted)
        }
    };
    let unpack = lower(graph, &made, target)?;
    let unpack = match &from {
        ForRows::All => Some(unpack),
        ForRows::From { size, least } => only_from(unpack, size, *least, graph),
    };
    Ok(unpack.map(|unpack| Unpacked {
        weights,
        unpack: (made, unpack),
        product: (rest, product),
        from,
        predicted,
    }))
}

/// The weights of a region's product that are unpacked in it, a region that does so, and one of the rest.
fn split(graph: &Graph, region: &Region) -> Option<(Value, Region, Region)> {
    let within = |id: &NodeId| region.nodes.binary_search(id).is_ok();
    let anchor = graph.node(region.anchor);
    if !matches!(anchor.op, Op::Contract(_) | Op::Conv(_)) {
        return None;
    }
    let mut weights = *anchor.operands.get(1)?;
    while within(&weights.node) && is_free(&graph.node(weights.node).op) {
        weights = *graph.node(weights.node).operands.first()?;
    }
    if !within(&weights.node) || !is_unpacking(&graph.node(weights.node).op) {
        return None;
    }
    let mut unpacking: Vec<NodeId> = vec![weights.node];
    let mut at = 0;
    while let Some(id) = unpacking.get(at) {
        let operands = graph.node(*id).operands.iter().map(|v| v.node).filter(within);
        let new: Vec<NodeId> = operands.filter(|id| !unpacking.contains(id)).collect();
        unpacking.extend(new);
        at += 1;
    }
    unpacking.sort();
    let others: Vec<NodeId> = (region.nodes.iter().copied())
        .filter(|id| unpacking.binary_search(id).is_err())
        .collect();
    let read_by = |nodes: &[NodeId], value: &Value| nodes.iter().any(|id| graph.node(*id).operands.contains(value));
    // What is read on the way to the weights is read for them alone, and they are stored by nobody else.
    let apart = |id: &NodeId| *id == weights.node || !read_by(&others, &Value::from(*id));
    if !unpacking.iter().all(apart) || region.outputs.iter().any(|v| unpacking.binary_search(&v.node).is_ok()) {
        return None;
    }
    let read =
        |nodes: &[NodeId]| -> Vec<Value> { region.inputs.iter().filter(|v| read_by(nodes, v)).copied().collect() };
    let made = Region {
        kind: RegionKind::Pointwise,
        anchor: weights.node,
        inputs: read(&unpacking),
        nodes: unpacking,
        outputs: vec![weights],
        parts: Vec::new(),
        lane: region.lane,
    };
    let mut inputs = read(&others);
    inputs.push(weights);
    let rest = Region {
        inputs,
        nodes: others,
        ..region.clone()
    };
    Some((weights, made, rest))
}

/// A kernel that has no points below a number of rows of another; `None` where no axis says so.
fn only_from(mut kernel: Kernel, size: &Dim, least: i64, graph: &Graph) -> Option<Kernel> {
    let Body::Loops(loops) = &kernel.body else { return None };
    let first = *loops.parallel.first()?;
    let once = size.floor_div(&Dim::Const(least)).smaller(&Dim::Const(1));
    kernel.axes[first].extent = kernel.axes[first].extent.clone() * once;
    kernel.symbols = symbols(&kernel, graph);
    Some(kernel)
}
