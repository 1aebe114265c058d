//! Loop kernels: pointwise trees, index maps, reductions, norms, gathers and scatters.
//!
//! Two ways through the points of `parallel`. *By columns* (the default): blocks of up to a thousand points, vectorised
//! along the innermost parallel dim; a fold steps through its points and accumulates a block at a time (pooling, column
//! sums). *By rows*, where the folded axis is the contiguous one: one point at a time, each fold and store vectorised along
//! its own axis (softmax, norms, row sums). Chosen when prepared; nothing is decided while it runs.

mod fold;
mod nest;
mod run;
mod stages;

use ir::dim::Bindings;
use ir::entity::Entity;
use ir::kernel::{Expr, ExprId, Kernel, Loops, Stmt, VarId};
use ir::op::{BinaryOp, ReduceOp};
use ir::types::DType;

use self::nest::{by_rows, shape};
use self::stages::Stages;
use super::affine::{Affine, Roots, Space, collapse, reachable};
use super::block::compile::Source;
use super::block::{MAX_LANES, Program, Val};
use super::env::Env;
use crate::error::RuntimeError;

pub(crate) use self::fold::{combine, neutral, sorts_before};
pub(crate) use self::nest::{Nest, Strip};

/// Lane operations that are worth a task of their own (a few microseconds).
const TASK_WORK: usize = 40_000;

/// A kernel of loops, ready to run at one set of sizes.
#[derive(Debug)]
pub(crate) struct LoopsExec {
    dims: usize,
    nest: Nest,
    stages: Vec<Stage>,
    vars: usize,
    externals: usize,
    scratch: usize,
    tasks: usize,
}

#[derive(Debug)]
struct Stage {
    program: Program,
    /// Offset of the program's scratch.
    at: usize,
    externals: Vec<VarId>,
    /// Loops of the stage itself, inside those of the kernel.
    inner: Nest,
    /// Blocks are the stage's own, not the kernel's.
    own_blocks: bool,
    action: Action,
}

#[derive(Debug)]
enum Action {
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
        /// The number of points, for positions.
        steps: Vec<(usize, i64)>,
    },
    /// Results are index and value.
    Update {
        param: usize,
        dtype: DType,
        elements: i64,
        op: Option<ReduceOp>,
    },
}

/// The statements' index and value expressions.
fn stmt_exprs(stmts: &[Stmt]) -> Vec<ExprId> {
    stmts
        .iter()
        .flat_map(|s| match *s {
            Stmt::Let { value, .. } | Stmt::Fold { value, .. } => vec![value],
            Stmt::Store { index, value, .. } | Stmt::Update { index, value, .. } => vec![index, value],
        })
        .collect()
}

fn stmt_axes(stmt: &Stmt) -> &[ir::kernel::AxisId] {
    match stmt {
        Stmt::Let { .. } => &[],
        Stmt::Fold { axes, .. } | Stmt::Store { axes, .. } | Stmt::Update { axes, .. } => axes,
    }
}

/// What is decided about a kernel of loops before its programs are compiled.
pub(crate) struct Analysis<'k> {
    pub space: Space<'k>,
    pub roots: Roots,
    pub extents: Vec<i64>,
    pub parallel: Vec<usize>,
    /// Dims of each statement's own axes.
    pub own: Vec<Vec<usize>>,
}

/// Splits and merges the dims of parallel axes and statements.
pub(crate) fn analyse<'k>(
    kernel: &'k Kernel,
    parallel: &[ir::kernel::AxisId],
    stmts: &[Stmt],
    bindings: &Bindings,
) -> Result<Analysis<'k>, RuntimeError> {
    let mut space = Space::new(kernel, bindings)?;
    let exprs = stmt_exprs(stmts);
    let mut parallel = Space::dims(parallel);
    let mut own: Vec<Vec<usize>> = stmts.iter().map(|s| Space::dims(stmt_axes(s))).collect();
    {
        let mut groups: Vec<&mut Vec<usize>> = std::iter::once(&mut parallel).chain(own.iter_mut()).collect();
        space.split(&exprs, &mut groups, &[]);
    }
    let mut roots = space.roots(&exprs);
    let mut extents = space.extents.clone();
    {
        let mut groups: Vec<&mut Vec<usize>> = std::iter::once(&mut parallel).chain(own.iter_mut()).collect();
        collapse(&mut extents, &mut groups, &mut roots);
    }
    Ok(Analysis {
        space,
        roots,
        extents,
        parallel,
        own,
    })
}

/// Affine indices of loads (`true`) and stores in the statements: what decides the shape of blocks.
struct Accesses {
    loads: Vec<Affine>,
    stores: Vec<Affine>,
}

fn accesses(kernel: &Kernel, stmts: &[Stmt], roots: &Roots) -> Accesses {
    let index = |id: ExprId| -> Affine {
        // Of a sum, the affine terms: what data adds does not change the stride.
        let mut form = Affine::constant(0);
        let (mut stack, mut left) = (vec![id], 256);
        while let Some(id) = stack.pop() {
            // Only the shape of blocks hangs on what is left out.
            left -= 1;
            if left == 0 {
                break;
            }
            match (roots.get(&id), &kernel.exprs[id]) {
                (Some(root), _) => form = form.plus(root, 1),
                (None, Expr::Binary(BinaryOp::Add, a, b)) => stack.extend([*a, *b]),
                _ => {}
            }
        }
        form
    };
    let loads = reachable(kernel, &stmt_exprs(stmts))
        .into_iter()
        .filter_map(|id| match kernel.exprs[id] {
            Expr::Load { index: i, .. } => Some(index(i)),
            _ => None,
        })
        .collect();
    let stores = stmts
        .iter()
        .filter_map(|s| match s {
            Stmt::Store { index: i, .. } => Some(index(*i)),
            _ => None,
        })
        .collect();
    Accesses { loads, stores }
}

impl LoopsExec {
    /// Prepares a kernel; `aliased` says that a buffer it writes is one that it reads.
    ///
    /// # Errors
    /// A size that does not evaluate, or an access that is certain to leave its buffer.
    pub(crate) fn new(
        kernel: &Kernel,
        loops: &Loops,
        bindings: &Bindings,
        threads: usize,
        aliased: bool,
    ) -> Result<LoopsExec, RuntimeError> {
        LoopsExec::from_parts(kernel, &loops.parallel, &loops.stmts, bindings, threads, aliased)
    }

    pub(crate) fn from_parts(
        kernel: &Kernel,
        parallel: &[ir::kernel::AxisId],
        stmts: &[Stmt],
        bindings: &Bindings,
        threads: usize,
        aliased: bool,
    ) -> Result<LoopsExec, RuntimeError> {
        let a = analyse(kernel, parallel, stmts, bindings)?;
        let source = Source::new(&a.space, &a.roots, &a.extents, bindings)?;
        let accesses = accesses(kernel, stmts, &a.roots);
        let nibbles = stmts.iter().any(|s| match s {
            Stmt::Store { param, .. } | Stmt::Update { param, .. } => kernel.params[*param].dtype.bits() < 8,
            _ => false,
        });
        let updates = stmts.iter().any(|s| matches!(s, Stmt::Update { .. }));
        let ordered = updates || nibbles;
        let by_rows = by_rows(&a, stmts, &accesses, kernel);
        let points: i64 = a.parallel.iter().map(|d| a.extents[*d]).product();
        let inner: i64 = a
            .own
            .iter()
            .map(|dims| dims.iter().map(|d| a.extents[*d]).product::<i64>())
            .sum::<i64>()
            .max(1);
        let work = (points.max(0) as usize)
            .saturating_mul(inner.max(0) as usize)
            .saturating_mul(4);
        let mut lanes = MAX_LANES;
        let mut nest;
        loop {
            nest = if by_rows {
                Nest {
                    outer: a.parallel.iter().map(|d| (*d, a.extents[*d])).collect(),
                    row: None,
                    col: None,
                }
            } else {
                shape(&a.parallel, &a.extents, &accesses, lanes, ordered)
            };
            if by_rows || ordered || lanes <= 64 || work < 8 * TASK_WORK || nest.blocks() >= 2 * threads {
                break;
            }
            lanes /= 2;
        }
        let exec = |lanes: usize, nest: &Nest| {
            Stages {
                kernel,
                source: &source,
                a: &a,
                accesses: &accesses,
                by_rows,
                ordered,
                lanes,
                nest,
                known: Vec::new(),
                at: 0,
                stages: Vec::new(),
            }
            .build(stmts)
        };
        let (mut stages, mut end) = exec(lanes, &nest)?;
        let slots = |stages: &[Stage]| stages.iter().map(|s| s.program.scratch).max().unwrap_or(0);
        if slots(&stages) > 48 << 10 && lanes > 256 {
            lanes = 256;
            if !by_rows {
                nest = shape(&a.parallel, &a.extents, &accesses, lanes, ordered);
            }
            (stages, end) = exec(lanes, &nest)?;
        }
        let multiple: usize = stages.iter().map(|s| s.program.stores.len()).sum();
        for stage in &mut stages {
            stage.program.copy_loads = aliased && multiple > 1;
        }
        let externals = stages.iter().map(|s| s.externals.len()).max().unwrap_or(0);
        let dims = a.extents.len();
        let vars = kernel.vars.len();
        let header = (dims * 8 + (vars + externals) * size_of::<Val>()).next_multiple_of(64);
        for stage in &mut stages {
            stage.at += header;
            if let Action::Fold { acc, best, .. } = &mut stage.action {
                *acc += header;
                *best += header;
            }
        }
        let blocks = nest.blocks();
        let cost: usize = stages
            .iter()
            .map(|s| {
                let inner: i64 = s.inner.outer.iter().map(|(_, e)| *e).product();
                let own = if s.own_blocks {
                    s.inner.row.map_or(1, |r| r.extent) * s.inner.col.map_or(1, |c| c.extent)
                } else {
                    1
                };
                s.program.cost.saturating_mul((inner * own).max(1) as usize)
            })
            .sum();
        let work = (points.max(0) as usize).saturating_mul(cost.max(1));
        let tasks = if ordered {
            usize::from(blocks > 0)
        } else {
            (work / TASK_WORK).clamp(1, threads * 4).min(blocks)
        };
        Ok(LoopsExec {
            dims,
            nest,
            stages,
            vars,
            externals,
            scratch: header + end,
            tasks,
        })
    }

    /// Bytes of scratch each thread needs.
    pub(crate) fn scratch(&self) -> usize {
        self.scratch
    }

    /// Runs the kernel.
    ///
    /// # Safety
    /// `params` are the kernel's buffers at the sizes it was prepared for; scratch of `env` has [`Self::scratch`] bytes.
    pub(crate) unsafe fn run(&self, env: &Env<'_>, params: &[*mut u8]) {
        let blocks = self.nest.blocks();
        let params = Params(params);
        env.parallel_for(self.tasks, &|task, scratch| {
            let range = blocks * task / self.tasks..blocks * (task + 1) / self.tasks;
            // SAFETY: the caller's contract; tasks cover disjoint blocks, hence disjoint stores.
            unsafe { self.blocks(env, params.get(), range, scratch) }
        });
    }

    unsafe fn blocks(&self, env: &Env<'_>, params: &[*mut u8], range: std::ops::Range<usize>, scratch: *mut u8) {
        // SAFETY: the header of the scratch, which this task alone uses.
        let (idx, vars, externals) = unsafe {
            let idx = scratch.cast::<i64>();
            let vars = scratch.add(self.dims * 8).cast::<Val>();
            idx.write_bytes(0, self.dims);
            (
                std::slice::from_raw_parts_mut(idx, self.dims),
                vars,
                vars.add(self.vars),
            )
        };
        for block in range {
            let (rows, cols) = self.nest.seek(block, idx);
            for stage in &self.stages {
                // SAFETY: as above; `externals` has room for the most that a stage has.
                unsafe {
                    for (i, var) in stage.externals.iter().enumerate() {
                        externals.add(i).write(vars.add(var.index()).read());
                    }
                    let given = std::slice::from_raw_parts(externals, stage.externals.len());
                    debug_assert!(stage.externals.len() <= self.externals);
                    stage.run(env, params, idx, (rows, cols), given, vars, scratch);
                }
            }
        }
    }
}

struct Params<'a>(&'a [*mut u8]);
// SAFETY: addresses only; each task writes its own part of what they point to.
unsafe impl Sync for Params<'_> {}
impl Params<'_> {
    fn get(&self) -> &[*mut u8] {
        self.0
    }
}
