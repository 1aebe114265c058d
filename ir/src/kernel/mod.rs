//! Kernels: what one launch computes.
//!
//! A kernel is a body over axes. Expressions are pure and hash-consed in one table; statements have the effects. The
//! body says WHAT is computed per point of the axes; the [`Mapping`] says how the points are spread over threads.
//! Codegen prints both and decides nothing; the CPU device reads the body and spreads it its own way.
//!
//! Index arithmetic is `i64`. A [`Expr::Load`]'s index is an element offset into the parameter.
//!
//! Invariant: `Select` is lazy: a load in the branch that is not taken does not happen, so a guard
//! `select(in_range, load, fill)` never reads out of bounds.
//!
//! Invariant: arithmetic on `f16`, `bf16` and fp8 does not occur: values are cast to `f32` after the load and cast back
//! before the store. Only loads, stores, casts and selects carry the narrow types.

pub mod access;
mod attention;
pub mod bounds;
mod copy;
pub mod eval;
mod flash_lanes;
mod launch;
pub mod limits;
pub mod needs;
mod operand;
mod param;
pub mod print;
mod recurrent;
mod row;
mod statistic;
mod strips;
mod tiling;
pub mod traffic;
mod transform;
pub mod verify;
mod window;

pub use attention::{AttentionBody, KeyRange, RowWeights, Weights};
pub use copy::{CopyBody, CopyStep};
pub use flash_lanes::FlashLanes;
pub use launch::{LaunchError, LaunchSize};
pub use operand::{Operand, OperandAccess, Unpacking};
pub use param::{Access, Param};
pub use recurrent::{RecurrentBody, Steps};
pub use row::{RowBody, RowComposite, RowKind};
pub use statistic::RowStatistic;
pub use strips::{StripAccess, Strips, narrowed};
pub use tiling::{AttentionOrder, FlashTiling, GemvMatrix, GemvStream, GemvTiling, QueryPlace, Shares, Tiling, Travel};
pub use transform::{TransformBody, TransformMatrix, TransformSide, Winograd, both_sides};
pub use window::{ImageAccess, ImageTarget, WindowAxis, WindowBody, WindowFold, WindowImages};

use indexmap::IndexSet;
use serde::{Deserialize, Serialize};

use crate::dim::{Dim, Symbol};
use crate::entity::{Entity, Table, entity};
use crate::graph::op::{BinaryOp, Layout, ReduceOp, UnaryOp, Window};
use crate::types::{DType, Scalar};

entity! {
    /// A loop axis of a kernel.
    pub AxisId = "i",
    /// An expression of a kernel.
    pub ExprId = "e",
    /// A buffer parameter of a kernel.
    pub ParamId = "p",
    /// A variable of a kernel: a fold's result or an accumulator.
    pub VarId = "v",
}

/// One launch.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Kernel {
    /// An identifier, unique in its plan, that says what it does: `contract_add_gelu_17`.
    pub name: String,
    /// Buffers, in the order of the arguments.
    pub params: Table<ParamId, Param>,
    /// Sizes, as `i64` arguments after the buffers, in this order.
    pub symbols: Vec<Symbol>,
    pub axes: Table<AxisId, Axis>,
    pub exprs: Exprs,
    /// The element type of each variable.
    pub vars: Table<VarId, DType>,
    pub body: Body,
    pub mapping: Mapping,
    /// The graph nodes computed here, as text, for messages and comments (`n12 add "encoder.0"`); where launches share
    /// the kernel, those of the first.
    pub origins: Vec<String>,
}

/// A loop axis: `0..extent`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Axis {
    /// An identifier that reads well in source: `row`, `col`, `k`.
    pub name: String,
    pub extent: Dim,
}

/// A pure expression.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Expr {
    Const(DType, Scalar),
    /// A size, `i64`.
    Size(Dim),
    /// The position on an axis, `i64`.
    Axis(AxisId),
    /// Element `index` of a buffer.
    Load {
        param: ParamId,
        index: ExprId,
    },
    Unary(UnaryOp, ExprId),
    Binary(BinaryOp, ExprId, ExprId),
    /// Condition, then, else; lazy.
    Select(ExprId, ExprId, ExprId),
    Cast(DType, ExprId),
    Var(VarId),
    /// Uniform bits: word `lane` (0..4) of Philox 4x32-10 with the seed as key and the `i64` counter; `i32`.
    Philox {
        seed: u64,
        counter: ExprId,
        lane: u8,
    },
}

/// The expressions of a kernel, hash-consed: equal expressions have equal ids. Operands precede their users.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Exprs {
    exprs: IndexSet<Expr>,
    types: Vec<DType>,
}

/// The order counts: ids are places in the table.
impl PartialEq for Exprs {
    fn eq(&self, other: &Exprs) -> bool {
        self.types == other.types && self.exprs.iter().eq(&other.exprs)
    }
}
impl Eq for Exprs {}
impl std::hash::Hash for Exprs {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.types.hash(state);
        self.exprs.iter().for_each(|e| e.hash(state));
    }
}

impl Exprs {
    /// Adds an expression of the given type, or finds it.
    pub fn add(&mut self, expr: Expr, dtype: DType) -> ExprId {
        let (index, new) = self.exprs.insert_full(expr);
        if new {
            self.types.push(dtype);
        }
        ExprId::new(index)
    }

    /// Returns the type of an expression.
    pub fn dtype(&self, id: ExprId) -> DType {
        self.types[id.index()]
    }

    /// Returns how many expressions there are.
    pub fn len(&self) -> usize {
        self.exprs.len()
    }

    /// Says whether there are none.
    pub fn is_empty(&self) -> bool {
        self.exprs.is_empty()
    }

    /// Iterates ids and expressions; operands come before their users.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (ExprId, &Expr)> {
        self.exprs.iter().enumerate().map(|(i, e)| (ExprId::new(i), e))
    }
}

impl std::ops::Index<ExprId> for Exprs {
    type Output = Expr;
    fn index(&self, id: ExprId) -> &Expr {
        &self.exprs[id.index()]
    }
}

impl Expr {
    /// Calls `f` for each operand.
    pub fn for_each_operand(&self, mut f: impl FnMut(ExprId)) {
        match *self {
            Expr::Const(..) | Expr::Size(_) | Expr::Axis(_) | Expr::Var(_) => {}
            Expr::Load { index, .. } => f(index),
            Expr::Unary(_, a) | Expr::Cast(_, a) | Expr::Philox { counter: a, .. } => f(a),
            Expr::Binary(_, a, b) => {
                f(a);
                f(b);
            }
            Expr::Select(a, b, c) => {
                f(a);
                f(b);
                f(c);
            }
        }
    }
}

/// An effect.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Stmt {
    /// Names a value that is computed once per point.
    Let { var: VarId, value: ExprId },
    /// Folds `value` over `axes` (row-major order of the list) into `var`. `Mean` does not occur. `ArgMax`/`ArgMin`
    /// fold to the `i64` position over the axes.
    Fold {
        var: VarId,
        op: ReduceOp,
        axes: Vec<AxisId>,
        value: ExprId,
    },
    /// Stores to element `index`, for each point of `axes` (besides the axes that are already bound).
    Store {
        param: ParamId,
        index: ExprId,
        value: ExprId,
        axes: Vec<AxisId>,
    },
    /// Combines into element `index` with `op` (atomically where points may meet); `None` overwrites.
    Update {
        param: ParamId,
        index: ExprId,
        value: ExprId,
        op: Option<ReduceOp>,
        axes: Vec<AxisId>,
    },
}

/// What is computed.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "one body a kernel: a box would save nothing and cost every match"
)]
pub enum Body {
    Loops(Loops),
    Row(RowBody),
    Window(WindowBody),
    Copy(CopyBody),
    Transform(TransformBody),
    Contract(ContractBody),
    Attention(AttentionBody),
    Scan(ScanBody),
    Sort(SortBody),
    Recurrent(RecurrentBody),
}

/// For each point of `parallel` (independent of each other, row-major): the statements in order.
///
/// Pointwise kernels have stores only; a [`RowBody`] folds over a row and may then store over it, a [`WindowBody`]
/// folds over a window.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Loops {
    pub parallel: Vec<AxisId>,
    pub stmts: Vec<Stmt>,
}

/// For each point of `batch`, `m` and `n`: `acc = Σ_k lhs · rhs`, then the epilogue.
///
/// `lhs` is over `batch`, `m`, `k`; `rhs` over `batch`, `n`, `k`. Each of `m`, `n`, `k` may be several axes
/// (row-major): a convolution is the contraction with `m` = image and pixel, `n` = filter, `k` = window and channel,
/// whose `lhs` is a guarded load.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ContractBody {
    pub batch: Vec<AxisId>,
    pub m: Vec<AxisId>,
    pub n: Vec<AxisId>,
    pub k: Vec<AxisId>,
    pub lhs: Operand,
    pub rhs: Operand,
    /// The sum, in its own type.
    pub acc: VarId,
    /// Set where the epilogue has the sums of two neighbouring columns at a time: a gate and what it is applied to.
    pub pair: Option<Pair>,
    /// Set where the epilogue has a number of each row that is folded from the left operand.
    pub statistic: Option<RowStatistic>,
    /// Lets and stores over `batch`, `m`, `n`; of a pair, over [`ContractBody::cells`].
    pub epilogue: Vec<Stmt>,
    /// Set when this is a convolution: the same facts as `lhs` and `rhs`, for engines with a direct form.
    pub conv: Option<ConvFacts>,
}

/// Columns that an epilogue takes two at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Pair {
    /// The number of the pair, half as many as the innermost axis of `n` has points: it stands for that axis in the
    /// epilogue.
    pub axis: AxisId,
    /// The sum of the pair's second column; [`ContractBody::acc`] is the first's.
    pub second: VarId,
}

impl ContractBody {
    /// Returns the axes that the epilogue is over, the innermost last.
    pub fn cells(&self) -> Vec<AxisId> {
        let mut axes = [&self.batch[..], &self.m, &self.n].concat();
        if let (Some(pair), Some(last)) = (self.pair, axes.last_mut()) {
            *last = pair.axis;
        }
        axes
    }

    /// Returns the axes of the epilogue's columns: those of `n`, or with the pairs in place of the innermost.
    pub fn columns(&self) -> Vec<AxisId> {
        let mut axes = self.n.clone();
        if let (Some(pair), Some(last)) = (self.pair, axes.last_mut()) {
            *last = pair.axis;
        }
        axes
    }

    /// Returns how many sums the epilogue has at a time: 1 or 2.
    pub fn sums(&self) -> u32 {
        if self.pair.is_some() { 2 } else { 1 }
    }
}

/// A convolution as plain facts.
///
/// `input` and `filter` are whole dense parameters in `layout`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ConvFacts {
    pub input: ParamId,
    pub filter: ParamId,
    pub layout: Layout,
    pub window: Window,
    pub groups: i64,
    /// Images.
    pub batch: Dim,
    /// Channels, all groups together.
    pub channels: Dim,
    /// Filters, all groups together.
    pub filters: Dim,
    pub input_size: Vec<Dim>,
    pub kernel_size: Vec<i64>,
    pub output_size: Vec<Dim>,
    /// What is read outside of the input.
    pub pad_value: i64,
    /// A transposed convolution, whose filters are `[channels, filters / groups, window]`. Only kernels for the CPU say
    /// so.
    pub transposed: bool,
}

/// A running fold of `value` along `axis` for each point of `parallel`; `store` gets each partial result as `Var(var)`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ScanBody {
    pub parallel: Vec<AxisId>,
    pub axis: AxisId,
    pub op: ReduceOp,
    pub value: ExprId,
    pub exclusive: bool,
    pub reverse: bool,
    pub var: VarId,
    /// Stores over `parallel` and `axis`.
    pub stores: Vec<Stmt>,
}

/// The `k` largest (smallest) of `value` along `axis` for each point of `parallel`, ties by lower position, NaN as the
/// largest; `stores` get
/// each as `Var(value_var)` and its position as `Var(index_var)`, over `parallel` and `rank`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct SortBody {
    pub parallel: Vec<AxisId>,
    pub axis: AxisId,
    /// The axis of the results: `0..k`.
    pub rank: AxisId,
    pub largest: bool,
    pub value: ExprId,
    pub value_var: VarId,
    pub index_var: VarId,
    pub stores: Vec<Stmt>,
}

/// How the points of a body are spread over a GPU's threads; `Host` leaves it to the CPU device.
///
/// Grids are given before they are cut to what a launch may have ([`Kernel::launch_size`]): kernels stride over the
/// grid, so a smaller one computes the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Mapping {
    Host,
    /// Each thread takes `vector` neighbours along the last parallel axis (`vector` is 1 where a body updates, scans,
    /// sorts or folds; of a transform it divides the axis's extent); `block` threads a workgroup. Without outer axes
    /// the last thread's group may be cut short; with them, groups end with their row. Grid: x = ceil(Π outer ·
    /// ceil(last / vector) / block).
    Threads {
        block: u32,
        vector: u32,
    },
    /// Each thread takes the windows of `vector` neighbours along the last parallel axis of a [`WindowBody`], along
    /// which windows do not move and whose extent `vector` divides; `block` threads a workgroup. The taps that are
    /// inside are bounded once; with `unroll`, a window that is inside as a whole has all its taps read at once, and
    /// the others' are walked one by one. Grid: as for `Threads`.
    Windows {
        block: u32,
        vector: u32,
        unroll: bool,
    },
    /// Each thread takes the windows of neighbouring outputs, and reads what they share once.
    /// Grid: x = ceil(Π ceil(extent / a thread's outputs along the axis) / block), over the parallel axes.
    Strips(Strips),
    /// Each group of `lanes` threads (a power of two, at most a wave) takes one point and shares its folds; `block`
    /// threads a workgroup, a multiple of `lanes`. The folded axes are walked `vector` at a time, which divides the
    /// innermost one's extent. Grid: x = ceil(points · lanes / block).
    Lanes {
        lanes: u32,
        block: u32,
        vector: u32,
    },
    /// Each group of `lanes` threads (a power of two within a wave, or else the whole workgroup) takes one row of a
    /// [`RowBody`]. In each step a thread has `vector` neighbours, which divides the innermost row axis's extent, and
    /// the threads' are next to each other. What the body holds stays in registers for `steps` steps; a row that is
    /// longer is read again by each fold, and every row is where `steps` is 0. Grid: x = ceil(points · lanes / block).
    ///
    /// A row's elements are all read before the first fold, so that their latencies pass together; with `as_needed`,
    /// what only later statements need is read when those come, so that more workgroups have room. `resident` is how
    /// many a unit is to have room for.
    Rows {
        lanes: u32,
        block: u32,
        vector: u32,
        steps: u32,
        as_needed: bool,
        resident: Option<u32>,
    },
    /// Each thread of a pointwise body takes `unroll` groups of `vector` neighbours along the last parallel axis, a
    /// workgroup's threads apart, and reads them all before it computes; groups as for `Threads`.
    /// Grid: x = ceil(Π outer · ceil(last / vector) / (block · unroll)).
    Stream {
        block: u32,
        vector: u32,
        unroll: u32,
    },
    /// Workgroups of `block` threads take tiles of a pointwise body that reads neighbours along `axis` and stores
    /// neighbours along the last parallel axis: the loads in `tiled` are contiguous along `axis`, happen at every
    /// point, and go through LDS, each by a tile of its own. A tile has `across` points along `axis` and `along` points
    /// along the last one. Threads read `load` neighbours and store `store` at once, each 1 or as many as fill 16 bytes
    /// of the elements that are transposed; it divides its axis's extent. `unroll` accesses of a thread are under way
    /// at most. Grid: x = ceil(last / along) · ceil(axis / across) · Π others.
    Transpose {
        axis: AxisId,
        block: u32,
        along: u32,
        across: u32,
        load: u32,
        store: u32,
        unroll: u32,
        tiled: Vec<ExprId>,
    },
    /// Each workgroup of `block` threads takes one point, `vector` as for `Lanes`. Grid: x = points.
    ///
    /// Of a sort, `vector > 1` says that `block · vector` candidates (a power of two, at least twice the largest k or
    /// the whole row) are kept in LDS, 1 that each element's rank is counted.
    Block {
        block: u32,
        vector: u32,
    },
    /// Workgroups take `block_m × block_n` tiles through LDS, `block_k` deep; threads take `thread_m × thread_n`. Each
    /// operand is fetched its own way. Grid: x = ceil(m / block_m) · ceil(n / block_n), z = batch.
    Tile {
        block_m: u32,
        block_n: u32,
        block_k: u32,
        thread_m: u32,
        thread_n: u32,
        lhs: Fetch,
        rhs: Fetch,
    },
    /// Waves multiply fragments of a workgroup's tile with matrix instructions.
    /// Grid: x = ceil(m / block\[0\]) · ceil(n / block\[1\]), z = batch; where workgroups share tiles, those come first
    /// and take the shared tiles' place, and the last two parameters are their scratch memory and their tickets.
    Matrix(Tiling),
    /// Waves read the weights of a contraction with few rows once.
    /// Grid: x = ceil(n / columns) · ceil(m / rows), z = batch.
    Gemv(GemvTiling),
    /// Waves compute attention with matrix instructions, each a few queries; the weights stay in registers.
    /// Grid: x = ceil(q / queries) · batch.
    FlashMatrix(FlashTiling),
    /// Waves compute attention by multiply-adds of their lanes. Grid: x = ceil(q / queries) · batch.
    FlashLanes(FlashLanes),
    /// Workgroups of `block` threads take `block_q` queries, keys in tiles of `block_k`, for heads of any width.
    /// Grid: x = ceil(q / block_q) · batch.
    Flash {
        block_q: u32,
        block_k: u32,
        block: u32,
        together: AttentionOrder,
    },
    /// Workgroups go through the steps of a recurrent layer. Grid: x = ceil(batch / rows).
    Steps(Steps),
}

/// How threads fetch an operand's tile: neighbouring threads along `k` or else along the operand's rows (of the rhs:
/// columns), each `width` elements at a time. `width` divides the extent of the innermost axis that is walked, so that
/// groups come whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Fetch {
    pub along_k: bool,
    pub width: u32,
}

impl Kernel {
    /// Returns the parameters that an expression loads from, each once.
    pub fn loaded_by(&self, root: ExprId) -> Vec<ParamId> {
        let mut wanted = vec![false; self.exprs.len()];
        wanted[root.index()] = true;
        let mut params = Vec::new();
        // Operands precede their users in the table.
        for (id, expr) in self.exprs.iter().rev().filter(|(id, _)| id.index() <= root.index()) {
            if !wanted[id.index()] {
                continue;
            }
            if let Expr::Load { param, .. } = expr
                && !params.contains(param)
            {
                params.push(*param);
            }
            expr.for_each_operand(|operand| wanted[operand.index()] = true);
        }
        params
    }

    /// Returns the axes whose points are independent, in order.
    pub fn parallel_axes(&self) -> &[AxisId] {
        match &self.body {
            Body::Loops(l) => &l.parallel,
            Body::Row(r) => &r.loops.parallel,
            Body::Window(w) => &w.loops.parallel,
            Body::Copy(c) => &c.loops.parallel,
            Body::Transform(t) => &t.parallel,
            Body::Scan(s) => &s.parallel,
            Body::Sort(s) => &s.parallel,
            Body::Recurrent(r) => std::slice::from_ref(&r.batch),
            Body::Contract(c) => &c.m,
            Body::Attention(a) => &a.batch,
        }
    }
}

impl Body {
    /// Returns the loops of a body that is loops, also of one that knows more about them.
    pub fn loops(&self) -> Option<&Loops> {
        match self {
            Body::Loops(loops) => Some(loops),
            Body::Row(row) => Some(&row.loops),
            Body::Window(window) => Some(&window.loops),
            Body::Copy(copy) => Some(&copy.loops),
            Body::Transform(_)
            | Body::Contract(_)
            | Body::Attention(_)
            | Body::Scan(_)
            | Body::Sort(_)
            | Body::Recurrent(_) => None,
        }
    }
}
