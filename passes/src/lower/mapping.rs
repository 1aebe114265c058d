//! How a kernel's points are spread over a GPU's threads.
//!
//! Before: a kernel whose body is complete. After: its [`Mapping`], from the kernel's sizes (symbols at their hints),
//! the strides of its accesses and the target's facts. The printer follows it and decides nothing.
//!
//! | body | mapping |
//! |---|---|
//! | loops without folds | `Stream` or `Threads`, 16 bytes a thread where they lie so; `Transpose` where another axis is read; see [`points`] |
//! | rows, contiguous | `Rows`, held in registers where they fit |
//! | windows | `Windows`, 16 bytes a thread where channels lie so; as rows where points are too few to fill the device |
//! | convolutions of few channels a group | `Strips`, as many outputs a thread as take the least time; see [`strips`] |
//! | transforms | `Threads`, a few neighbouring channels each |
//! | other folds (columns) | `Threads`; `Block` when points are too few to fill the device |
//! | contraction | `Gemv` for few rows; `Matrix` where the target multiplies its types in hardware, else `Tile`; see [`contract`] |
//! | attention | `FlashMatrix` where the target multiplies its type in hardware, else `FlashLanes`; `Flash` for very wide heads; see [`attention`] |
//! | recurrent layer | `Steps`, weights in registers where they fit; see [`steps`] |
//! | scan | `Threads` a row, or `Block` for few long rows |
//! | sort | `Threads` a row when short, `Block` otherwise; see [`Mapping`] |

mod attention;
mod chain;
mod contract;
mod direct;
mod gemv;
mod others;
mod parts;
mod points;
#[cfg(test)]
mod room;
mod shares;
mod steps;
mod strips;
mod text;

pub use others::{Other, others, predicted_us};
pub use parts::Second;
pub use shares::may_share;
pub use steps::step_clocks;

use ir::kernel::access::Motions;
use ir::kernel::{
    AttentionBody, AxisId, Body, ContractBody, Expr, ExprId, Kernel, Mapping, ScanBody, SortBody, Weights,
};
use ir::op::{Layout, Window};
use ir::target::Platform;
use ir::{DType, Dim, Entity, Symbols, Target};

/// Threads of an ordinary workgroup.
const BLOCK: u32 = 256;
/// Bytes of the widest memory access of a lane.
const ACCESS_BYTES: i64 = 16;
/// Candidates that a top-k keeps in LDS at most: 8 to 12 bytes each.
const SORT_CANDIDATES: i64 = 4096;

/// Chooses the mapping of a kernel.
pub fn choose(kernel: &Kernel, symbols: &Symbols, target: &Target) -> Mapping {
    if target.platform == Platform::Cpu {
        return Mapping::Host;
    }
    let mapper = Mapper::at_hints(kernel, symbols, target);
    match &kernel.body {
        Body::Loops(loops) => mapper.loops(loops),
        Body::Row(row) => mapper.row(row),
        Body::Window(window) if window.pool().is_none() => mapper.strips(window),
        Body::Window(window) => mapper.window(window),
        Body::Copy(copy) => mapper.loops(&copy.loops),
        Body::Transform(transform) => mapper.transform(transform),
        Body::Contract(body) => mapper.contract(body),
        Body::Attention(body) => mapper.attention(body),
        Body::Scan(body) => mapper.scan(body),
        Body::Sort(body) => mapper.sort(body),
        Body::Recurrent(body) => mapper.steps(body),
    }
}

/// Returns what the choice among the mappings of a contraction or an attention depends on, as a line of text: equal
/// lines are served by equal mappings. A convolution always has one, since a call may be chosen before its kernel.
/// `None` where there is nothing to choose: other bodies, products that neither matrix units nor rows at a time take,
/// attentions whose sums do not stay in registers, and parts of attentions.
pub fn product(kernel: &Kernel, symbols: &Symbols, target: &Target) -> Option<String> {
    let mapper = Mapper::at_hints(kernel, symbols, target);
    match Tunable::of(kernel, target)? {
        Tunable::Product(body) | Tunable::Alone(body) => Some(mapper.product(body)),
        Tunable::Attention(body) => Some(mapper.attention_line(body)),
    }
}

/// As [`product`], of a contraction with at least `from` rows and less than twice as many. Other open sizes are at
/// their hints.
pub fn product_in(kernel: &Kernel, symbols: &Symbols, target: &Target, from: i64) -> Option<String> {
    match Tunable::of(kernel, target)? {
        Tunable::Product(body) | Tunable::Alone(body) => {
            Some(Mapper::at_rows(kernel, symbols, target, from).product(body))
        }
        Tunable::Attention(_) => None,
    }
}

/// Writes a window as lines of convolutions have it.
pub(crate) fn window_text(window: &Window, groups: i64, layout: Layout) -> String {
    format!(
        "strides {:?} pads {:?} {:?} dilations {:?} groups {groups} channels {}",
        window.strides,
        window.pad_low,
        window.pad_high,
        window.dilations,
        match layout {
            Layout::ChannelsFirst => "first",
            Layout::ChannelsLast => "last",
        }
    )
}

/// A workgroup's tile: rows, columns, bytes of depth, waves along rows and columns.
struct Block {
    rows: u32,
    cols: u32,
    depth_bytes: u32,
    waves: [u32; 2],
}

const fn block(rows: u32, cols: u32, depth_bytes: u32, waves: [u32; 2]) -> Block {
    Block {
        rows,
        cols,
        depth_bytes,
        waves,
    }
}

/// Returns the mappings of a contraction or an attention that its target can hold, the one that [`choose`] takes first,
/// the others by their predicted clocks. Symbols are at their hints.
pub fn candidates(kernel: &Kernel, symbols: &Symbols, target: &Target) -> Vec<Mapping> {
    let mapper = Mapper::at_hints(kernel, symbols, target);
    match Tunable::of(kernel, target) {
        None => Vec::new(),
        Some(Tunable::Product(body)) => mapper.by_clocks(body),
        Some(Tunable::Alone(_)) => vec![kernel.mapping.clone()],
        Some(Tunable::Attention(body)) => mapper.attention_candidates(body),
    }
}

/// As [`candidates`], of a contraction with at least `from` rows and less than twice as many.
pub fn candidates_in(kernel: &Kernel, symbols: &Symbols, target: &Target, from: i64) -> Vec<Mapping> {
    match Tunable::of(kernel, target) {
        Some(Tunable::Product(body)) => Mapper::at_rows(kernel, symbols, target, from).by_clocks(body),
        Some(Tunable::Alone(_)) => vec![kernel.mapping.clone()],
        _ => Vec::new(),
    }
}

/// Returns into how many parts the depth of a contraction or the keys of an attention are cut, each summed by
/// workgroups of its own, where that is predicted to take less time than the kernel takes with its mapping.
pub fn parts(kernel: &Kernel, symbols: &Symbols, target: &Target, second: Second) -> Option<i64> {
    // Nothing to share.
    if kernel.axes.values().any(|axis| axis.extent.is(0)) {
        return None;
    }
    let mapper = Mapper::at_hints(kernel, symbols, target);
    match (&kernel.body, &kernel.mapping) {
        (Body::Contract(body), Mapping::Matrix(_) | Mapping::Gemv(_) | Mapping::Tile { .. }) => {
            mapper.parts_of_depth(body, second).map(|(parts, _)| parts)
        }
        // Chained products are whole.
        (Body::Attention(body), whole) if body.weights == Weights::Softmax => {
            let (queries, keys) = mapper.part(body, whole)?;
            mapper.parts_of_keys(body, queries, keys)
        }
        _ => None,
    }
}

/// Predicts the microseconds of a contraction with its mapping, to be compared with those of others for the same
/// target; `None` for other bodies and for plain tiles, whose clocks are not compared with others'.
pub fn product_us(kernel: &Kernel, symbols: &Symbols, target: &Target) -> Option<f64> {
    let (Body::Contract(body), Mapping::Matrix(_) | Mapping::Gemv(_)) = (&kernel.body, &kernel.mapping) else {
        return None;
    };
    let mapper = Mapper::at_hints(kernel, symbols, target);
    Some(mapper.clocks(body, &kernel.mapping) / (target.clock_ghz * 1e3))
}

/// Predicts the microseconds of a contraction with the best mapping for some number of rows, or for the hints where
/// there is none; `None` where that is a plain tile, or for other bodies.
pub fn best_product_us(kernel: &Kernel, symbols: &Symbols, target: &Target, rows: Option<i64>) -> Option<f64> {
    let Body::Contract(body) = &kernel.body else {
        return None;
    };
    let mapper = Mapper {
        rows,
        ..Mapper::at_hints(kernel, symbols, target)
    };
    let mapping = mapper.contract(body);
    let is_compared = matches!(mapping, Mapping::Matrix(_) | Mapping::Gemv(_));
    is_compared.then(|| mapper.clocks(body, &mapping) / (target.clock_ghz * 1e3))
}

/// Predicts the microseconds of an attention with its mapping, without its launch and what waits for memory; `None` for
/// other bodies and for heads so wide that their sums are in LDS.
pub fn attention_us(kernel: &Kernel, symbols: &Symbols, target: &Target) -> Option<f64> {
    match &kernel.body {
        Body::Attention(body) if body.weights == Weights::Softmax => {
            Mapper::at_hints(kernel, symbols, target).attention_us(body, &kernel.mapping)
        }
        _ => None,
    }
}

/// As [`product_us`], of chained products by matrix instructions: the time of one kernel, and the part of it that lies
/// between the products, which [`product_us`] has not in that of the first.
pub fn chain_us(kernel: &Kernel, symbols: &Symbols, target: &Target) -> Option<[f64; 2]> {
    let (Body::Attention(body), Mapping::FlashMatrix(tiling)) = (&kernel.body, &kernel.mapping) else {
        return None;
    };
    let mapper = Mapper::at_hints(kernel, symbols, target);
    let clocks = [mapper.chain_clocks(body, tiling), mapper.between_clocks(body)];
    (body.weights == Weights::Scores).then(|| clocks.map(|clocks| clocks / (target.clock_ghz * 1e3)))
}

/// Predicts the microseconds that a contraction saves where its depth is cut into parts as [`parts`] says; 0 where it
/// is not.
pub fn saved_by_parts(kernel: &Kernel, symbols: &Symbols, target: &Target, second: Second) -> f64 {
    let Body::Contract(body) = &kernel.body else { return 0.0 };
    let cut = parts(kernel, symbols, target, second);
    let saved = cut.and_then(|_| Mapper::at_hints(kernel, symbols, target).parts_of_depth(body, second));
    saved.map_or(0.0, |(_, us)| us)
}

/// Microseconds that a short kernel adds right behind the one that it waits for.
pub fn second_launch_us(target: &Target) -> f64 {
    parts::SECOND_LAUNCH * target.launch_us
}

/// Returns the mappings of a contraction whose workgroups share out the depth of tiles, by their predicted clocks. None
/// where sizes are open or there are batches. They need scratch memory, which [`super::shared`] adds.
pub fn sharings(kernel: &Kernel, symbols: &Symbols, target: &Target) -> Vec<Mapping> {
    let Some(Tunable::Product(body)) = Tunable::of(kernel, target) else {
        return Vec::new();
    };
    let mut all = Mapper::at_hints(kernel, symbols, target).sharings(body);
    all.sort_by(|a, b| a.1.total_cmp(&b.1));
    all.into_iter().map(|(mapping, _)| mapping).collect()
}

/// Says whether rows that add up so many parts of a product as they are read take about as little time as rows of a
/// stored result and the launch that would store it.
pub fn rows_pay(kernel: &Kernel, parts: i64, symbols: &Symbols, target: &Target) -> bool {
    let mapper = Mapper::at_hints(kernel, symbols, target);
    matches!(&kernel.body, Body::Row(row) if mapper.rows_of_parts_pay(row, parts))
}

/// A kernel whose mapping may be chosen by measuring.
enum Tunable<'k> {
    Product(&'k ContractBody),
    /// A convolution with one mapping.
    Alone(&'k ContractBody),
    Attention(&'k AttentionBody),
}

impl<'k> Tunable<'k> {
    fn of(kernel: &'k Kernel, target: &Target) -> Option<Tunable<'k>> {
        match (&kernel.body, &kernel.mapping) {
            _ if !target.is_gpu() => None,
            (Body::Contract(body), Mapping::Matrix(_) | Mapping::Gemv(_)) => Some(Tunable::Product(body)),
            // It has no other mapping, but there may be a call.
            (Body::Contract(body), _) if body.conv.is_some() => Some(Tunable::Alone(body)),
            // How many parts there are was found with the mapping that they have.
            (Body::Attention(body), Mapping::FlashMatrix(_) | Mapping::FlashLanes(_)) if body.row_weights.is_none() => {
                Some(Tunable::Attention(body))
            }
            _ => None,
        }
    }
}

/// The least number of rows from which on a mapping is the best; `None` for a library's call.
pub type Range = (i64, Option<Mapping>);

/// Rows for which a kernel is mapped where the model leaves them open and unbounded.
const MOST_ROWS: i64 = 1 << 16;

/// How much slower than the best a mapping may be that serves more rows.
const NEARLY: f64 = 1.2;

/// Returns the number of rows of a contraction that the model leaves open, as a size, and the least number of each
/// range of them that may have a mapping of its own: powers of two, each standing for the rows from it to the next, the
/// last for all above it too. `None` where the rows are known, and on the CPU.
pub fn open_rows(kernel: &Kernel, symbols: &Symbols, target: &Target) -> Option<(Dim, Vec<i64>)> {
    let Body::Contract(body) = &kernel.body else {
        return None;
    };
    if !target.is_gpu() {
        return None;
    }
    let size: Dim = body.m.iter().map(|a| kernel.axes[*a].extent.clone()).product();
    if size.as_const().is_some() {
        return None;
    }
    let (low, high) = size.bounds(symbols);
    let (low, high) = (low.unwrap_or(1).max(1), high.unwrap_or(MOST_ROWS).min(MOST_ROWS));
    let powers = std::iter::successors(Some(1i64), |rows| rows.checked_mul(2));
    let firsts = powers
        .take_while(|rows| *rows <= high)
        .filter(|rows| rows * 2 > low)
        .collect();
    Some((size, firsts))
}

/// What does a contraction's work at some numbers of rows, where that is not left to the prediction.
pub struct Chosen<'a> {
    /// Whether a library's call takes the kernel's place at a number of rows.
    pub calls: &'a dyn Fn(&Dim, i64) -> bool,
    /// The mapping that measuring has found for the range that begins with a number of rows.
    pub tuned: &'a dyn Fn(i64) -> Option<Mapping>,
}

/// Maps a contraction for each range of rows that its open sizes allow: the number of rows as a size, and the mappings
/// in ascending order, the first from 0. `None` where the rows are known.
pub fn by_rows(kernel: &Kernel, symbols: &Symbols, target: &Target, chosen: &Chosen<'_>) -> Option<(Dim, Vec<Range>)> {
    let (size, firsts) = open_rows(kernel, symbols, target)?;
    let Body::Contract(body) = &kernel.body else {
        return None;
    };
    // Tiles of multiply-adds are mapped for the hints: a kernel a range pays where matrix units would idle.
    let at_hints = Mapper::at_hints(kernel, symbols, target).contract(body);
    let (left, right) = (body.lhs.element(&kernel.exprs), body.rhs.element(&kernel.exprs));
    let varies =
        target.matrix.iter().any(|i| i.takes(left, right)) && matches!(at_hints, Mapping::Matrix(_) | Mapping::Gemv(_));
    let mut ranges: Vec<Range> = Vec::new();
    for rows in firsts {
        let last = ranges.last().map(|(_, work)| work.as_ref());
        let work = if (chosen.calls)(&size, rows) {
            None
        } else if let Some(mapping) = (chosen.tuned)(rows) {
            Some(mapping)
        } else if varies {
            // Every kernel is compiled: one that is nearly as good serves on.
            let mapper = Mapper::at_rows(kernel, symbols, target, rows);
            let mapping = mapper.contract(body);
            let enough = |last: &&Mapping| mapper.clocks(body, last) <= NEARLY * mapper.clocks(body, &mapping);
            Some(last.flatten().filter(enough).cloned().unwrap_or(mapping))
        } else {
            Some(at_hints.clone())
        };
        if last != Some(work.as_ref()) {
            ranges.push((if ranges.is_empty() { 0 } else { rows }, work));
        }
    }
    Some((size, ranges))
}

struct Mapper<'a> {
    kernel: &'a Kernel,
    symbols: &'a Symbols,
    target: &'a Target,
    /// The rows of a contraction, where it is mapped for other than the hints.
    rows: Option<i64>,
}

impl<'a> Mapper<'a> {
    /// Maps for the symbols' hints.
    fn at_hints(kernel: &'a Kernel, symbols: &'a Symbols, target: &'a Target) -> Mapper<'a> {
        Mapper {
            kernel,
            symbols,
            target,
            rows: None,
        }
    }

    /// Maps a contraction for a number of rows.
    fn at_rows(kernel: &'a Kernel, symbols: &'a Symbols, target: &'a Target, rows: i64) -> Mapper<'a> {
        Mapper {
            rows: Some(rows),
            ..Mapper::at_hints(kernel, symbols, target)
        }
    }
}

impl Mapper<'_> {
    /// The number of points of some axes, symbols at their hints; at least 1.
    fn points(&self, axes: &[AxisId]) -> i64 {
        axes.iter().fold(1i64, |n, a| {
            n.saturating_mul(self.kernel.axes[*a].extent.hint(self.symbols).max(1))
        })
    }

    fn motions(&self, axis: AxisId, width: i64) -> Motions<'_> {
        Motions::new(self.kernel, self.symbols, axis, width)
    }

    /// Calls `f(type, index)` for each load below some expressions.
    fn for_each_load(&self, roots: Vec<ExprId>, mut f: impl FnMut(DType, ExprId)) {
        self.walk(roots, |e| {
            if let Expr::Load { param, index } = self.kernel.exprs[e] {
                f(self.kernel.params[param].dtype, index);
            }
            true
        });
    }

    /// Visits expressions and those below them once each; `visit` says whether to go on below one.
    fn walk(&self, roots: Vec<ExprId>, mut visit: impl FnMut(ExprId) -> bool) {
        let mut seen = vec![false; self.kernel.exprs.len()];
        let mut stack = roots;
        while let Some(e) = stack.pop() {
            if !std::mem::replace(&mut seen[e.index()], true) && visit(e) {
                self.kernel.exprs[e].for_each_operand(|o| stack.push(o));
            }
        }
    }

    fn scan(&self, body: &ScanBody) -> Mapping {
        let (points, length) = (self.points(&body.parallel), self.points(&[body.axis]));
        let few = points < i64::from(self.target.compute_units) * i64::from(self.target.wave_size);
        if few && length > 2 * i64::from(self.target.wave_size) {
            Mapping::Block {
                block: BLOCK,
                vector: 1,
            }
        } else {
            Mapping::Threads { block: 64, vector: 1 }
        }
    }

    fn sort(&self, body: &SortBody) -> Mapping {
        let length = self.points(&[body.axis]);
        let ranks = self.kernel.axes[body.rank].extent.bounds(self.symbols).1;
        if length <= 32 || (length <= 256 && self.points(&[body.rank]) <= 2) {
            return Mapping::Threads { block: 64, vector: 1 };
        }
        // Candidates in LDS: twice the largest k, or the whole row where it is shorter; none where k has no such bound.
        let vector = match ranks {
            Some(k) if k <= SORT_CANDIDATES / 2 => {
                let row = self.kernel.axes[body.axis]
                    .extent
                    .bounds(self.symbols)
                    .1
                    .unwrap_or(i64::MAX);
                let wanted = (4 * k.max(1))
                    .min(row)
                    .max(2 * k.max(1))
                    .clamp(2 * i64::from(BLOCK), SORT_CANDIDATES);
                ((wanted as u64).next_power_of_two() / u64::from(BLOCK)) as u32
            }
            _ => 1,
        };
        Mapping::Block { block: BLOCK, vector }
    }
}
