//! Between which nodes of the row one stage ends and the next begins.
//!
//! A stage costs its share of the model's time, by the roofline, and its share of the model's bytes (weights and
//! states), in equal parts. What crosses into it is copied while it computes other runs, and counts where that takes
//! longer than its own work. The cuts are those with the least cost of the most expensive stage, found exactly among
//! [`CANDIDATES`] places where least crosses; and of all that come within [`SLACK`] of it, those where the fewest bytes
//! cross. Both are one dynamic programme over the places. A stage with more bytes than a device has is taken only where
//! there is no other way.

use std::collections::BTreeMap;

use ir::{ConstId, Graph, NodeId, Op, Target};

use super::order::Order;
use crate::cost::CostModel;
use crate::shard::{ShardError, ShardOptions};

/// So many places are tried, those where least crosses: several for each layer of the deepest models.
const CANDIDATES: usize = 512;
/// Stages may cost this much more than the best where fewer bytes cross.
const SLACK: f64 = 1.1;
/// Of cuts where as many bytes cross, the more even are taken: what this makes of costs is less than a byte.
const EVEN: f64 = 1e-3;
/// What a stage costs more where it has more bytes than there are.
const BEYOND: f64 = 1e6;

/// The places before which stages begin, but for the first.
pub(super) struct Cuts {
    pub before: Vec<usize>,
    /// Microseconds of the nodes of each stage.
    pub us: Vec<f64>,
}

/// What is known of the row.
struct Row {
    /// Microseconds of all nodes before a place.
    time: Vec<f64>,
    /// Bytes that cross where a stage begins at a place.
    crossing: Vec<f64>,
    /// The constants that each node reads, with their bytes and the place of the next node that reads them too.
    weights: Vec<Vec<(f64, usize)>>,
    /// Bytes of states whose first reader is at a place.
    states: Vec<f64>,
    /// Whether a stage may begin at a place.
    may: Vec<bool>,
}

impl Row {
    fn new(graph: &Graph, model: &CostModel<'_>, order: &Order) -> Row {
        let count = order.row.len();
        let mut time = vec![0.0; count + 1];
        for (place, id) in order.row.iter().enumerate() {
            time[place + 1] = time[place] + model.node(graph, *id);
        }
        // Each value crosses all places from behind its own node to its last reader.
        let mut change = vec![0.0; count + 2];
        let mut last: BTreeMap<ir::Value, usize> = BTreeMap::new();
        for (place, id) in order.row.iter().enumerate() {
            for value in order.read(graph, *id) {
                last.insert(value, place);
            }
        }
        for (value, last) in last {
            let Some(made) = order.places[value.node] else { continue };
            let bytes = model.bytes(graph.ty(value));
            change[made + 1] += bytes;
            change[last + 1] -= bytes;
        }
        let mut crossing = vec![0.0; count + 1];
        let mut sum = 0.0;
        for (place, crossing) in crossing.iter_mut().enumerate() {
            sum += change[place];
            *crossing = sum;
        }
        let mut weights: Vec<Vec<(f64, usize)>> = vec![Vec::new(); count];
        let mut next: BTreeMap<ConstId, usize> = BTreeMap::new();
        for (place, id) in order.row.iter().enumerate().rev() {
            for constant in constants(graph, order, *id) {
                let bytes = graph.constants()[constant].tensor.bytes.len() as f64;
                let following = next.insert(constant, place).unwrap_or(count);
                weights[place].push((bytes, following));
            }
        }
        let mut states = vec![0.0; count.max(1)];
        let mut may = vec![true; count + 1];
        for state in &order.states {
            states[state.first] += model.bytes(graph.ty(state.input.into()));
            may[(state.first + 1).min(count)..(state.last + 1).min(count)].fill(false);
        }
        Row {
            time,
            crossing,
            weights,
            states,
            may,
        }
    }
}

/// The constants that a node reads, directly or by way of what is made where it is read.
fn constants(graph: &Graph, order: &Order, id: NodeId) -> Vec<ConstId> {
    let mut found = Vec::new();
    let mut seen = Vec::new();
    let mut stack: Vec<NodeId> = graph.node(id).operands.iter().map(|value| value.node).collect();
    while let Some(id) = stack.pop() {
        if !order.copied[id] || seen.contains(&id) {
            continue;
        }
        seen.push(id);
        match graph.node(id).op {
            Op::Constant(constant) if !found.contains(&constant) => found.push(constant),
            _ => stack.extend(graph.node(id).operands.iter().map(|value| value.node)),
        }
    }
    found
}

/// Chooses the cuts.
///
/// # Errors
/// A graph with fewer places to be cut at than are asked for.
pub(super) fn cut(graph: &Graph, target: &Target, order: &Order, options: &ShardOptions) -> Result<Cuts, ShardError> {
    let model = CostModel {
        target,
        symbols: graph.symbols(),
        computed_in: None,
    };
    let row = Row::new(graph, &model, order);
    let (count, stages) = (order.row.len(), options.ranks as usize);
    let mut places: Vec<usize> = (1..count).filter(|place| row.may[*place]).collect();
    if places.len() + 1 < stages {
        return Err(ShardError::Layers {
            ranks: options.ranks,
            layers: places.len() + usize::from(count > 0),
        });
    }
    places.sort_by(|a, b| row.crossing[*a].total_cmp(&row.crossing[*b]).then(a.cmp(b)));
    places.truncate(CANDIDATES.max(stages));
    places.extend([0, count]);
    places.sort_unstable();
    let costs = costs(&row, &places, options);
    // The least that the most expensive of so many stages can cost; then, within that, the fewest bytes.
    let worst = |before: f64, from: usize, to: usize| before.max(costs[from][to]);
    let (most, _) = best(places.len(), stages, worst);
    let bytes = |before: f64, from: usize, to: usize| match costs[from][to] <= most * SLACK {
        true => before + row.crossing[places[from]] + EVEN * costs[from][to].powi(2),
        false => f64::INFINITY,
    };
    let (_, chosen) = best(places.len(), stages, bytes);
    let before: Vec<usize> = chosen.into_iter().map(|at| places[at]).collect();
    let ends = before.iter().copied().chain([count]);
    let starts = std::iter::once(0).chain(before.iter().copied());
    let us = starts.zip(ends).map(|(start, end)| row.time[end] - row.time[start]);
    Ok(Cuts {
        us: us.collect(),
        before,
    })
}

/// What a stage costs from one candidate to a later one.
fn costs(row: &Row, places: &[usize], options: &ShardOptions) -> Vec<Vec<f64>> {
    let count = row.time.len() - 1;
    let held = |from: usize, to: usize| {
        let own = row.weights[from].iter().filter(|(_, next)| *next >= to);
        own.map(|(bytes, _)| bytes).sum::<f64>() + row.states[from]
    };
    let all: f64 = (0..count).map(|place| held(place, count)).sum();
    let (whole_time, whole_bytes) = (row.time[count].max(f64::MIN_POSITIVE), all.max(1.0));
    let limit = options.memory.map_or(f64::INFINITY, |bytes| bytes as f64);
    let mut costs = vec![vec![f64::INFINITY; places.len()]; places.len()];
    for (at, &to) in places.iter().enumerate().skip(1) {
        let (mut bytes, mut place) = (0.0, to);
        for from in (0..at).rev() {
            while place > places[from] {
                place -= 1;
                bytes += held(place, to);
            }
            // It is copied while other runs are computed.
            let crossing = match place {
                0 => 0.0,
                place => row.crossing[place] / (options.bus_gbps * 1e3),
            };
            let time = (row.time[to] - row.time[place]).max(crossing);
            let beyond = if bytes > limit { BEYOND * bytes / limit } else { 0.0 };
            costs[from][at] = time / whole_time + bytes / whole_bytes + beyond;
        }
    }
    costs
}

/// The least value of a way through the candidates in so many stages, and the candidates at which the later stages
/// begin. `value` goes on from what the stages before came to.
fn best(count: usize, stages: usize, value: impl Fn(f64, usize, usize) -> f64) -> (f64, Vec<usize>) {
    let mut least = vec![vec![(f64::INFINITY, 0); count]; stages + 1];
    least[0][0].0 = 0.0;
    for stage in 1..=stages {
        for to in 1..count {
            for from in 0..to {
                if least[stage - 1][from].0.is_finite() {
                    let value = value(least[stage - 1][from].0, from, to);
                    if value < least[stage][to].0 {
                        least[stage][to] = (value, from);
                    }
                }
            }
        }
    }
    let mut at = count - 1;
    let mut chosen = Vec::with_capacity(stages);
    for stage in (1..=stages).rev() {
        at = least[stage][at].1;
        chosen.push(at);
    }
    chosen.pop();
    chosen.reverse();
    (least[stages][count - 1].0, chosen)
}
