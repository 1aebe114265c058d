//! Loops over block programs: pointwise trees, index maps, reductions, norms, gathers and scatters.
//!
//! Two ways through the points. *By columns*: blocks of up to a thousand points, vectorised along the innermost dim; a
//! fold steps through its points and accumulates a block at a time. *By rows*, where the folded axis is the contiguous
//! one: each fold and store is vectorised along its own axis, one point at a time, or several where rows are short: a
//! block then has the rows of some points, and what is one number a point is spread over its row where it is read
//! there.

use super::block::{Class, Program};
use crate::kernel::VarId;
use crate::op::ReduceOp;
use crate::types::DType;

/// A kernel of loops at one set of sizes.
#[derive(Clone, Debug)]
pub struct Loops {
    /// How many dims there are.
    pub dims: usize,
    /// With blocks as large as the programs have room for; whoever runs it may take smaller ones.
    pub nest: Nest,
    pub stages: Vec<Stage>,
    /// Variables, those of the kernel first, and the most that one stage reads of them.
    pub vars: usize,
    pub externals: usize,
    /// Bytes of scratch a thread.
    pub scratch: usize,
    /// Blocks run one after another.
    pub ordered: bool,
    /// Folds walk along rows: blocks are points, one or some.
    pub by_rows: bool,
    /// About how many lane operations the points take: by their number alone, and by what the programs do.
    pub points: usize,
    pub work: usize,
}

/// A part of what is done for each block.
#[derive(Clone, Debug)]
pub struct Stage {
    pub program: Program,
    /// Offset of the program's scratch.
    pub at: usize,
    pub externals: Vec<VarId>,
    /// Loops of the stage itself, inside those of the kernel.
    pub inner: Nest,
    /// Blocks are the stage's own, not the kernel's.
    pub own_blocks: bool,
    /// Blocks have the kernel's points as rows and all of this dim, with its extent, as columns.
    pub along: Option<(usize, usize)>,
    /// Variables for the results after those that the action is for.
    pub held: Vec<VarId>,
    pub action: Action,
}

/// What becomes of a stage's results.
#[derive(Clone, Debug)]
pub enum Action {
    /// Results become variables.
    Lets(Vec<VarId>),
    Fold {
        var: VarId,
        op: ReduceOp,
        value: DType,
        dtype: DType,
        /// Accumulators in scratch: the values, and for positions the best so far.
        acc: usize,
        best: usize,
        /// Dims with their extents, for positions.
        steps: Vec<(usize, i64)>,
    },
    /// Numbers of the points become lanes along their rows.
    Spread {
        from: VarId,
        to: VarId,
        class: Class,
        /// Offset of the lanes in scratch.
        lanes: usize,
    },
    /// Results are index and value.
    Update {
        param: usize,
        dtype: DType,
        elements: i64,
        op: Option<ReduceOp>,
    },
}

/// Loops over some dims and blocks over two more.
#[derive(Clone, Debug, Default)]
pub struct Nest {
    /// `(dim, extent)`, outermost first.
    pub outer: Vec<(usize, i64)>,
    pub row: Option<Strip>,
    pub col: Option<Strip>,
}

/// A dim that blocks take a piece of.
#[derive(Clone, Copy, Debug)]
pub struct Strip {
    pub dim: usize,
    pub extent: i64,
    pub block: i64,
}

impl Strip {
    fn blocks(&self) -> i64 {
        (self.extent + self.block - 1) / self.block.max(1)
    }
}

impl Nest {
    /// How many blocks there are; 0 when any extent is.
    pub fn blocks(&self) -> usize {
        let outer: i64 = self.outer.iter().map(|(_, e)| *e).product();
        (outer * self.row.map_or(1, |s| s.blocks()) * self.col.map_or(1, |s| s.blocks())).max(0) as usize
    }

    /// Sets `idx` to the origin of a block and returns its rows and columns.
    pub fn seek(&self, block: usize, idx: &mut [i64]) -> (usize, usize) {
        let mut rest = block as i64;
        let mut strip = |s: Option<Strip>| match s {
            None => 1,
            Some(s) => {
                let at = rest % s.blocks() * s.block;
                rest /= s.blocks();
                idx[s.dim] = at;
                s.block.min(s.extent - at) as usize
            }
        };
        let cols = strip(self.col);
        let rows = strip(self.row);
        for (dim, extent) in self.outer.iter().rev() {
            idx[*dim] = rest % extent;
            rest /= extent;
        }
        (rows, cols)
    }
}

/// The fewest lanes of a block.
const FEWEST_LANES: i64 = 64;

impl Nest {
    /// Halves blocks that have more than a few lanes, rows first; `None` where they are as small as they should be.
    #[must_use]
    pub fn halved(&self) -> Option<Nest> {
        let lanes = |s: Option<Strip>| s.map_or(1, |s| s.block.max(1));
        if lanes(self.row) * lanes(self.col) <= FEWEST_LANES {
            return None;
        }
        let mut nest = self.clone();
        let strip = match (&mut nest.row, &mut nest.col) {
            (Some(row), _) if row.block > 1 => row,
            (_, Some(col)) => col,
            _ => return None,
        };
        strip.block = (strip.block + 1) / 2;
        Some(nest)
    }
}
