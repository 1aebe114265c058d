//! Loop kernels: pointwise trees, index maps, reductions, norms, gathers and scatters.
//!
//! Two ways through the points of `parallel`. *By columns* (the default): blocks of up to a thousand points, vectorised
//! along the innermost parallel dim; a fold steps through its points and accumulates a block at a time (pooling, column
//! sums). *By rows*, where the folded axis is the contiguous one: one point at a time, each fold and store vectorised along
//! its own axis (softmax, norms, row sums). Chosen when prepared; nothing is decided while it runs.

use ir::dim::Bindings;
use ir::entity::Entity;
use ir::kernel::{Expr, ExprId, Kernel, Loops, Stmt, VarId};
use ir::op::{BinaryOp, ReduceOp};
use ir::types::{DType, Scalar};

use super::affine::{Affine, Roots, Space, collapse, reachable};
use super::block::compile::{Source, Spec, SpecStep, compile, scalar_bits};
use super::block::memory::{fill, get_lane, read, set_lane, write};
use super::block::{Class, Frame, MAX_LANES, Program, Val, ops};
use super::env::Env;
use super::kernels::rows::{Reduce, reduce_row};
use crate::error::RuntimeError;

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

/// Loops over some dims and blocks over two more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nest {
    /// `(dim, extent)`, outermost first.
    pub outer: Vec<(usize, i64)>,
    pub row: Option<Strip>,
    pub col: Option<Strip>,
}

/// A dim that blocks take a piece of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strip {
    pub dim: usize,
    pub extent: i64,
    pub block: i64,
}

impl Strip {
    fn blocks(&self) -> i64 {
        (self.extent + self.block - 1) / self.block.max(1)
    }
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

impl Nest {
    /// How many blocks there are; 0 when any extent is.
    pub(crate) fn blocks(&self) -> usize {
        let outer: i64 = self.outer.iter().map(|(_, e)| *e).product();
        (outer * self.row.map_or(1, |s| s.blocks()) * self.col.map_or(1, |s| s.blocks())).max(0) as usize
    }

    /// Sets `idx` to the origin of a block and returns its rows and columns.
    pub(crate) fn seek(&self, block: usize, idx: &mut [i64]) -> (usize, usize) {
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
        space.split(&exprs, &mut groups, None);
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
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
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

impl Stage {
    unsafe fn run(
        &self,
        env: &Env<'_>,
        params: &[*mut u8],
        idx: &mut [i64],
        (rows, cols): (usize, usize),
        externals: &[Val],
        vars: *mut Val,
        scratch: *mut u8,
    ) {
        // SAFETY: the contract of `LoopsExec::run`; offsets were laid out when it was prepared.
        unsafe {
            let lanes = rows * cols;
            if let Action::Fold {
                op, dtype, acc, best, ..
            } = &self.action
            {
                let n = if self.own_blocks { 1 } else { lanes };
                let arg = matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin);
                fill(
                    Class::of(*dtype),
                    scratch.add(*acc),
                    0,
                    n,
                    if arg { 0 } else { neutral(*op, *dtype) },
                );
                if arg {
                    scratch.add(*best).cast::<u64>().write_bytes(0xff, n);
                }
            }
            let mut results = [Val {
                ptr: std::ptr::null_mut(),
                bits: 0,
            }; 2];
            let inner_blocks = self.inner.blocks();
            for block in 0..inner_blocks {
                let own = self.inner.seek(block, idx);
                let (rows, cols) = if self.own_blocks { own } else { (rows, cols) };
                let frame = Frame {
                    isa: env.isa,
                    idx,
                    rows,
                    cols,
                    params,
                    scratch: scratch.add(self.at),
                };
                match &self.action {
                    Action::Lets(lets) => {
                        // Results go straight to their variables, in order.
                        self.program.run(&frame, externals, &mut []);
                        let vals = frame.scratch.cast::<Val>();
                        for (reg, var) in self.program.results.iter().zip(lets) {
                            vars.add(var.index()).write(vals.add(usize::from(reg.0)).read());
                        }
                    }
                    Action::Fold { .. } => {
                        self.program.run(&frame, externals, &mut results);
                        self.accumulate(env, results[0], rows * cols, block, idx, scratch);
                    }
                    Action::Update {
                        param,
                        dtype,
                        elements,
                        op,
                    } => {
                        self.program.run(&frame, externals, &mut results);
                        let buffer = params[*param];
                        let (class, ui, uv) = (
                            Class::of(*dtype),
                            self.program.is_uniform(0),
                            self.program.is_uniform(1),
                        );
                        for l in 0..rows * cols {
                            let at = if ui {
                                results[0].bits
                            } else {
                                get_lane(Class::I64, results[0].ptr, l)
                            } as i64;
                            let new = if uv {
                                results[1].bits
                            } else {
                                get_lane(class, results[1].ptr, l)
                            };
                            if at < 0 || at >= *elements {
                                continue;
                            }
                            let value = match op {
                                None => new,
                                Some(op) => combine(env, *op, *dtype, read(*dtype, buffer, at), new),
                            };
                            write(*dtype, buffer, at, value);
                        }
                    }
                }
            }
            for (dim, _) in &self.inner.outer {
                idx[*dim] = 0;
            }
            for strip in [self.inner.row, self.inner.col].into_iter().flatten() {
                idx[strip.dim] = 0;
            }
            if let Action::Fold { var, dtype, acc, .. } = &self.action {
                let ptr = scratch.add(*acc);
                let bits = if self.own_blocks {
                    get_lane(Class::of(*dtype), ptr, 0)
                } else {
                    0
                };
                vars.add(var.index()).write(Val { ptr, bits });
            }
        }
    }

    /// Folds one block of values in.
    unsafe fn accumulate(&self, env: &Env<'_>, value: Val, lanes: usize, block: usize, idx: &[i64], scratch: *mut u8) {
        let Action::Fold {
            op,
            value: from,
            dtype,
            acc,
            best,
            steps,
            ..
        } = &self.action
        else {
            return;
        };
        let (class, uniform) = (self.program.class(0), self.program.is_uniform(0));
        // SAFETY: accumulators have as many lanes as the block, one where the fold has its own blocks.
        unsafe {
            let acc = scratch.add(*acc);
            let lane = |l: usize| {
                if uniform {
                    value.bits
                } else {
                    get_lane(class, value.ptr, l)
                }
            };
            if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
                let best = scratch.add(*best).cast::<u64>();
                let position = |l: usize| match (self.own_blocks, self.inner.col) {
                    (true, Some(col)) => idx[col.dim] + l as i64,
                    (true, None) => 0,
                    (false, _) => steps.iter().fold(0, |p, (d, e)| p * e + idx[*d]),
                };
                for l in 0..lanes {
                    let slot = if self.own_blocks { 0 } else { l };
                    let first = if self.own_blocks {
                        block == 0 && l == 0
                    } else {
                        block == 0
                    };
                    let new = lane(l);
                    if first || better(*op, class, new, best.add(slot).read()) {
                        best.add(slot).write(new);
                        acc.cast::<i64>().add(slot).write(position(l));
                    }
                }
                return;
            }
            let same = *from == *dtype || (Class::of(*from) == Class::F32 && Class::of(*dtype) == Class::F32);
            if self.own_blocks {
                let mut sum = get_lane(Class::of(*dtype), acc, 0);
                let kind = match op {
                    ReduceOp::Sum => Some(Reduce::Sum),
                    ReduceOp::Prod => Some(Reduce::Prod),
                    ReduceOp::Max => Some(Reduce::Max),
                    ReduceOp::Min => Some(Reduce::Min),
                    _ => None,
                };
                match kind {
                    Some(kind) if class == Class::F32 && same && !uniform => {
                        let part = reduce_row(env.isa, kind, value.ptr.cast(), lanes);
                        sum = combine(env, *op, *dtype, sum, u64::from(part.to_bits()));
                    }
                    _ => {
                        for l in 0..lanes {
                            let v = if same {
                                lane(l)
                            } else {
                                ops::cast_scalar(*from, *dtype, lane(l))
                            };
                            sum = combine(env, *op, *dtype, sum, v);
                        }
                    }
                }
                return set_lane(Class::of(*dtype), acc, 0, sum);
            }
            if same {
                let target = Val { ptr: acc, bits: 0 };
                return ops::binary(
                    env.isa,
                    binary_of(*op),
                    *dtype,
                    acc,
                    (target, false),
                    (value, uniform),
                    0,
                    lanes,
                );
            }
            for l in 0..lanes {
                let v = ops::cast_scalar(*from, *dtype, lane(l));
                let old = get_lane(Class::of(*dtype), acc, l);
                set_lane(Class::of(*dtype), acc, l, combine(env, *op, *dtype, old, v));
            }
        }
    }
}

pub(crate) fn binary_of(op: ReduceOp) -> BinaryOp {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => BinaryOp::Add,
        ReduceOp::Prod => BinaryOp::Mul,
        ReduceOp::Max | ReduceOp::ArgMax => BinaryOp::Max,
        ReduceOp::Min | ReduceOp::ArgMin => BinaryOp::Min,
        ReduceOp::All => BinaryOp::And,
        ReduceOp::Any => BinaryOp::Or,
    }
}

pub(crate) fn combine(env: &Env<'_>, op: ReduceOp, dtype: DType, a: u64, b: u64) -> u64 {
    ops::binary_scalar(env.isa, binary_of(op), dtype, a, b)
}

/// What a fold of nothing gives.
pub(crate) fn neutral(op: ReduceOp, dtype: DType) -> u64 {
    let float = matches!(Class::of(dtype), Class::F32 | Class::F64);
    let value = match op {
        ReduceOp::Sum | ReduceOp::Mean => Scalar::zero(dtype),
        ReduceOp::Prod | ReduceOp::All if float => Scalar::Float(1.0),
        ReduceOp::Prod | ReduceOp::All if dtype == DType::Bool => Scalar::Bool(true),
        ReduceOp::Prod => Scalar::Int(1),
        ReduceOp::All => Scalar::Int(-1),
        ReduceOp::Any => Scalar::zero(dtype),
        ReduceOp::Max | ReduceOp::ArgMax if float => Scalar::Float(f64::NEG_INFINITY),
        ReduceOp::Min | ReduceOp::ArgMin if float => Scalar::Float(f64::INFINITY),
        ReduceOp::Max | ReduceOp::ArgMax if dtype == DType::Bool => Scalar::Bool(false),
        ReduceOp::Min | ReduceOp::ArgMin if dtype == DType::Bool => Scalar::Bool(true),
        ReduceOp::Max | ReduceOp::ArgMax => Scalar::Int(match dtype {
            DType::I64 => i64::MIN,
            DType::U8 | DType::U4 => 0,
            d => -(1i64 << (d.bits() - 1)),
        }),
        ReduceOp::Min | ReduceOp::ArgMin => Scalar::Int(match dtype {
            DType::I64 => i64::MAX,
            DType::U8 => 255,
            DType::U4 => 15,
            d => (1i64 << (d.bits() - 1)) - 1,
        }),
    };
    scalar_bits(dtype, value)
}

/// Says whether `new` takes the place of `old`: strictly better, NaN better than any number.
pub(crate) fn better(op: ReduceOp, class: Class, new: u64, old: u64) -> bool {
    let most = op == ReduceOp::ArgMax;
    let float = |a: f64, b: f64| {
        if b.is_nan() {
            false
        } else if a.is_nan() {
            true
        } else if most {
            a > b
        } else {
            a < b
        }
    };
    match class {
        Class::F32 => float(
            f64::from(f32::from_bits(new as u32)),
            f64::from(f32::from_bits(old as u32)),
        ),
        Class::F64 => float(f64::from_bits(new), f64::from_bits(old)),
        _ if most => (new as i64) > old as i64,
        _ => (new as i64) < old as i64,
    }
}

/// Chooses the way through: by rows when the folded axis is the contiguous one and long enough.
fn by_rows(a: &Analysis<'_>, stmts: &[Stmt], accesses: &Accesses, kernel: &Kernel) -> bool {
    if stmts.iter().any(|s| matches!(s, Stmt::Update { .. })) {
        return a.own.iter().any(|dims| !dims.is_empty());
    }
    let mut rows = 0usize;
    let mut cols = 0usize;
    let mut longest = 0;
    let inner = a.parallel.last().copied();
    for (stmt, own) in stmts.iter().zip(&a.own) {
        let Stmt::Fold { value, .. } = stmt else { continue };
        let Some(last) = own.last() else { continue };
        longest = longest.max(a.extents[*last]);
        for id in reachable(kernel, &[*value]) {
            let Expr::Load { index, .. } = kernel.exprs[id] else {
                continue;
            };
            let Some(form) = a.roots.get(&index) else { continue };
            rows += usize::from(form.get(*last).abs() == 1);
            cols += usize::from(inner.is_some_and(|d| form.get(d) == 1));
        }
    }
    let folds = stmts.iter().any(|s| matches!(s, Stmt::Fold { .. }));
    let has_own = a.own.iter().any(|dims| !dims.is_empty());
    if !folds {
        // Stores with axes of their own alone.
        return has_own && a.parallel.is_empty();
    }
    let _ = accesses;
    match inner {
        None => true,
        Some(d) => rows > cols && (longest >= 16 || a.extents[d] < 16) || (rows == cols && longest > a.extents[d]),
    }
}

/// Chooses the block's dims and size.
fn shape(parallel: &[usize], extents: &[i64], accesses: &Accesses, lanes: usize, ordered: bool) -> Nest {
    let Some(&last) = parallel.last() else {
        return Nest::default();
    };
    let unit_store = |d: usize| accesses.stores.iter().filter(|s| s.get(d) == 1).count();
    let col = if ordered {
        last
    } else {
        parallel
            .iter()
            .rev()
            .copied()
            .filter(|d| extents[*d] > 1)
            .max_by_key(|d| (unit_store(*d), usize::from(*d == last)))
            .unwrap_or(last)
    };
    let others: Vec<usize> = parallel.iter().copied().filter(|d| *d != col).collect();
    // A load that is contiguous along another dim is read in tiles.
    let transposed = others
        .iter()
        .copied()
        .find(|d| extents[*d] > 1 && accesses.loads.iter().any(|l| l.get(*d) == 1 && l.get(col).abs() > 1));
    let lanes = lanes as i64;
    let balanced = |extent: i64, most: i64| -> i64 {
        let most = most.clamp(1, extent.max(1));
        let pieces = (extent.max(1) + most - 1) / most;
        (extent.max(1) + pieces - 1) / pieces
    };
    let (row, cols, rows) = match transposed {
        Some(d) if !ordered => {
            let cols = balanced(extents[col], 32);
            (Some(d), cols, balanced(extents[d], lanes / cols))
        }
        _ => {
            let cols = balanced(extents[col], lanes);
            let row = if ordered { None } else { others.last().copied() };
            match row {
                Some(d) if cols == extents[col] && cols * 2 <= lanes => {
                    (Some(d), cols, balanced(extents[d], lanes / cols))
                }
                _ => (None, cols, 1),
            }
        }
    };
    Nest {
        outer: others
            .iter()
            .filter(|d| Some(**d) != row)
            .map(|d| (*d, extents[*d]))
            .collect(),
        row: row.map(|dim| Strip {
            dim,
            extent: extents[dim],
            block: rows,
        }),
        col: Some(Strip {
            dim: col,
            extent: extents[col],
            block: cols,
        }),
    }
}

/// Builds the stages of a kernel.
struct Stages<'a, 'k> {
    kernel: &'k Kernel,
    source: &'a Source<'a>,
    a: &'a Analysis<'k>,
    accesses: &'a Accesses,
    by_rows: bool,
    ordered: bool,
    lanes: usize,
    nest: &'a Nest,
    /// Variables that have values, and whether they are uniform.
    known: Vec<(VarId, bool)>,
    at: usize,
    stages: Vec<Stage>,
}

impl Stages<'_, '_> {
    fn build(mut self, stmts: &[Stmt]) -> Result<(Vec<Stage>, usize), RuntimeError> {
        let mut group: Vec<&Stmt> = Vec::new();
        for (stmt, own) in stmts.iter().zip(&self.a.own) {
            match stmt {
                Stmt::Let { .. } => group.push(stmt),
                Stmt::Store { .. } if own.is_empty() => group.push(stmt),
                _ => {
                    self.flush(&mut group)?;
                    self.single(stmt, own)?;
                }
            }
        }
        self.flush(&mut group)?;
        Ok((self.stages, self.at))
    }

    fn used(&self, exprs: &[ExprId]) -> Vec<(VarId, bool)> {
        let mut used = Vec::new();
        for id in reachable(self.kernel, exprs) {
            if let Expr::Var(v) = self.kernel.exprs[id]
                && let Some(known) = self.known.iter().find(|(k, _)| *k == v)
                && !used.contains(known)
            {
                used.push(*known);
            }
        }
        used
    }

    fn block_dims(&self) -> (Option<usize>, Option<usize>) {
        (self.nest.row.map(|s| s.dim), self.nest.col.map(|s| s.dim))
    }

    fn block_lanes(&self) -> usize {
        let strip = |s: Option<Strip>| s.map_or(1, |s| s.block.max(1) as usize);
        strip(self.nest.row) * strip(self.nest.col)
    }

    /// Lets and plain stores in one program.
    fn flush(&mut self, group: &mut Vec<&Stmt>) -> Result<(), RuntimeError> {
        if group.is_empty() {
            return Ok(());
        }
        let mut steps = Vec::new();
        let mut lets = Vec::new();
        let mut exprs = Vec::new();
        for stmt in group.drain(..) {
            match *stmt {
                Stmt::Let { var, value } => {
                    steps.push(SpecStep::Let(var, value));
                    lets.push(var);
                    exprs.push(value);
                }
                Stmt::Store {
                    param, index, value, ..
                } => {
                    steps.push(SpecStep::Store(param, index, value));
                    exprs.extend([index, value]);
                }
                _ => {}
            }
        }
        let vars = self.used(&exprs);
        let spec = Spec {
            vars: vars.clone(),
            steps,
            results: Vec::new(),
            exprs: Vec::new(),
        };
        let (row, col) = self.block_dims();
        let program = compile(self.source, row, col, &spec, self.block_lanes())?;
        for (i, var) in lets.iter().enumerate() {
            self.known.push((*var, program.is_uniform(i)));
        }
        self.push(program, vars, Nest::default(), false, Action::Lets(lets));
        Ok(())
    }

    fn push(&mut self, program: Program, vars: Vec<(VarId, bool)>, inner: Nest, own_blocks: bool, action: Action) {
        let at = self.at;
        self.at = (at + program.scratch).next_multiple_of(64);
        self.stages.push(Stage {
            program,
            at,
            externals: vars.into_iter().map(|(v, _)| v).collect(),
            inner,
            own_blocks,
            action,
        });
    }

    /// A fold, an update, or a store with axes of its own.
    fn single(&mut self, stmt: &Stmt, own: &[usize]) -> Result<(), RuntimeError> {
        let (exprs, spec): (Vec<ExprId>, Spec) = match *stmt {
            Stmt::Fold { value, .. } => (
                vec![value],
                Spec {
                    results: vec![value],
                    ..Spec::default()
                },
            ),
            Stmt::Update { index, value, .. } => (
                vec![index, value],
                Spec {
                    results: vec![index, value],
                    ..Spec::default()
                },
            ),
            Stmt::Store {
                param, index, value, ..
            } => (
                vec![index, value],
                Spec {
                    steps: vec![SpecStep::Store(param, index, value)],
                    ..Spec::default()
                },
            ),
            Stmt::Let { .. } => return Ok(()),
        };
        let vars = self.used(&exprs);
        let spec = Spec {
            vars: vars.clone(),
            ..spec
        };
        let extents = &self.a.extents;
        let arg = matches!(
            stmt,
            Stmt::Fold {
                op: ReduceOp::ArgMax | ReduceOp::ArgMin,
                ..
            }
        );
        // Positions count along one dim; the order of updates is that of the axes.
        let plain = arg || self.ordered;
        let own_blocks = self.by_rows;
        let inner = if !own_blocks {
            Nest {
                outer: own.iter().map(|d| (*d, extents[*d])).collect(),
                row: None,
                col: None,
            }
        } else if own.is_empty() {
            Nest::default()
        } else {
            let stores = Accesses {
                loads: self.accesses.loads.clone(),
                stores: match stmt {
                    Stmt::Store { .. } => self.accesses.stores.clone(),
                    _ => Vec::new(),
                },
            };
            shape(own, extents, &stores, self.lanes, plain)
        };
        let (row, col) = if own_blocks {
            (inner.row.map(|s| s.dim), inner.col.map(|s| s.dim))
        } else {
            self.block_dims()
        };
        let lanes = if own_blocks {
            let strip = |s: Option<Strip>| s.map_or(1, |s| s.block.max(1) as usize);
            strip(inner.row) * strip(inner.col)
        } else {
            self.block_lanes()
        };
        let program = compile(self.source, row, col, &spec, lanes)?;
        let action = match *stmt {
            Stmt::Fold { var, op, value, .. } => {
                let dtype = self.kernel.vars[var];
                let n = if own_blocks { 1 } else { lanes };
                let acc = self.at;
                let best = acc + (n * Class::of(dtype).bytes()).next_multiple_of(64);
                self.at = best + if arg { (n * 8).next_multiple_of(64) } else { 0 };
                self.known.push((var, own_blocks));
                Action::Fold {
                    var,
                    op,
                    value: self.kernel.exprs.dtype(value),
                    dtype,
                    acc,
                    best,
                    steps: own.iter().map(|d| (*d, extents[*d])).collect(),
                }
            }
            Stmt::Update { param, op, .. } => Action::Update {
                param: param.index(),
                dtype: self.kernel.params[param].dtype,
                elements: self.source.elements[param.index()],
                op,
            },
            _ => Action::Lets(Vec::new()),
        };
        self.push(program, vars, inner, own_blocks, action);
        Ok(())
    }
}
