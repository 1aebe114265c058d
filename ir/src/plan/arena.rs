//! Offsets for the buffers of an arena.
//!
//! Lifetimes are decided when the plan is made; sizes may be known only when a model is run with actual shapes, so
//! placing is arithmetic that the runtime repeats for each new set of sizes (microseconds to milliseconds, once per
//! set).
//!
//! Greedy by size (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020): the largest
//! buffer first, each into the lowest gap that its lifetime leaves free.

use super::{BufferId, Place, Plan, StepId};
use crate::dim::{Bindings, DimError};
use crate::entity::{Entity, Table};

/// Offsets are multiples of this many bytes: a cache line pair, and enough for every vector access.
pub const ALIGNMENT: usize = 256;

/// The most bytes of a buffer, and of all together: sums of them with their rounding fit every integer.
const LARGEST: usize = 1 << 56;

/// The room that so many bytes take: at least one unit of [`ALIGNMENT`].
pub const fn room(bytes: usize) -> usize {
    let rounded = bytes.next_multiple_of(ALIGNMENT);
    if rounded == 0 { ALIGNMENT } else { rounded }
}

/// Where every arena buffer is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Byte offset of each buffer; `None` for those outside the arena.
    pub offsets: Table<BufferId, Option<usize>>,
    /// Size in bytes of every buffer of the plan, unrounded.
    pub sizes: Table<BufferId, usize>,
    /// Bytes the arena needs: the planned peak.
    pub total: usize,
    /// The largest sum of rounded sizes alive at one step: a lower bound of `total`.
    pub live_peak: usize,
}

/// Places every arena buffer.
///
/// # Errors
/// A size that is not bound or does not fit.
pub fn place(plan: &Plan, bindings: &Bindings) -> Result<Placement, DimError> {
    place_except(plan, bindings, |_| false)
}

/// Places every arena buffer but those that are `outside`: in memory that a run is given. A buffer in place of another
/// is where that one is.
///
/// # Errors
/// As [`place`].
pub fn place_except(
    plan: &Plan,
    bindings: &Bindings,
    outside: impl Fn(BufferId) -> bool,
) -> Result<Placement, DimError> {
    let mut sizes: Table<BufferId, usize> = plan
        .buffers
        .values()
        .map(|b| {
            let bytes = b.ty.bytes();
            let size = usize::try_from(bytes.eval(bindings)?).unwrap_or(0);
            if size > LARGEST {
                return Err(DimError::Overflow(bytes.to_string()));
            }
            Ok(size)
        })
        .collect::<Result<_, DimError>>()?;
    for workspace in plan.idle_workspaces(bindings)? {
        sizes[workspace] = 0;
    }
    // Offsets are sums of sizes.
    if sizes
        .values()
        .try_fold(0usize, |sum, size| sum.checked_add(*size))
        .is_none_or(|sum| sum > LARGEST)
    {
        return Err(DimError::Overflow("the sum of all buffers".to_owned()));
    }
    // Buffers that share bytes through `in_place_of` form one block that lives as long as any of them.
    let mut root: Table<BufferId, BufferId> = plan.buffers.keys().collect();
    let mut blocks: Vec<Block> = Vec::new();
    let mut block_of: Table<BufferId, Option<usize>> = plan.buffers.keys().map(|_| None).collect();
    for (id, buffer) in plan.buffers.iter() {
        let Place::Arena {
            first,
            last,
            in_place_of,
        } = buffer.place
        else {
            continue;
        };
        if outside(id) {
            continue;
        }
        let size = room(sizes[id]);
        match in_place_of.and_then(|of| block_of[root[of]]) {
            Some(at) => {
                root[id] = blocks[at].id;
                blocks[at].first = blocks[at].first.min(first);
                blocks[at].last = blocks[at].last.max(last);
                blocks[at].size = blocks[at].size.max(size);
                block_of[id] = Some(at);
            }
            None => {
                block_of[id] = Some(blocks.len());
                blocks.push(Block {
                    id,
                    first,
                    last,
                    size,
                    offset: 0,
                });
            }
        }
    }
    let live_peak = live_peak(&blocks, plan.steps.len());
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(blocks[*i].size), blocks[*i].first, blocks[*i].id));
    let mut placed: Vec<usize> = Vec::new(); // sorted by offset
    let mut total = 0;
    for i in order {
        let mut offset = 0;
        for &other in &placed {
            let o = &blocks[other];
            if o.last < blocks[i].first || blocks[i].last < o.first {
                continue;
            }
            if offset + blocks[i].size <= o.offset {
                break;
            }
            offset = offset.max(o.offset + o.size);
        }
        blocks[i].offset = offset;
        total = total.max(offset + blocks[i].size);
        let at = placed.partition_point(|p| (blocks[*p].offset, *p) < (offset, i));
        placed.insert(at, i);
    }
    let offsets = block_of.values().map(|b| b.map(|b| blocks[b].offset)).collect();
    Ok(Placement {
        offsets,
        sizes,
        total,
        live_peak,
    })
}

struct Block {
    id: BufferId,
    first: StepId,
    last: StepId,
    size: usize,
    offset: usize,
}

fn live_peak(blocks: &[Block], steps: usize) -> usize {
    let mut change = vec![0i64; steps + 2];
    for b in blocks {
        change[b.first.index()] += b.size as i64;
        change[b.last.index() + 1] -= b.size as i64;
    }
    let mut live = 0;
    change.iter().fold(0, |peak, c| {
        live += c;
        peak.max(live)
    }) as usize
}
