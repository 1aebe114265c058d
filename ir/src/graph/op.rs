//! The operations of a graph: families with members.
//!
//! Passes match the families. The members of the elementwise family are rows of [`super::elementwise`].
//!
//! | family | what it means | stage |
//! |---|---|---|
//! | `Input` `Constant` `Iota` `DimValue` | leaves | both |
//! | `Elementwise` | one element from one element of each operand, NumPy broadcasting between operands | both |
//! | `Reduce` | folds axes | both |
//! | `View` | moves elements, computes nothing | both |
//! | `Contract` | batched matrix product | both |
//! | `Conv` `Pool` | sliding windows | both |
//! | `Gather` `Scatter` `Scan` `Sort` `Random` | data-dependent or ordered | both |
//! | `Composite` | a known composition kept whole | Import; in Core only those that a kernel takes whole |
//! | `Call` | a library call chosen by a route | Core |

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ConstId;
use super::elementwise::names;
pub use super::elementwise::{
    BinaryKind, BinaryLaw, BinaryOp, Comparison, Level, Logical, Spelling, UnaryKind, UnaryLaw, UnaryOp,
};
pub use super::recurrent::{Activation, ActivationKind, Cell, Recurrent};
use crate::dim::{Dim, Shape};
use crate::library::LibraryCall;
use crate::types::{DType, Scalar};

/// An operation with its attributes; operands are the node's.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Op {
    /// The `index`-th input of the graph. No operands.
    Input { index: u32 },
    /// A constant of the graph's table. No operands.
    Constant(ConstId),
    /// The position along `axis`: element `[i0, i1, …]` is `i_axis`, in `dtype`. No operands.
    Iota { shape: Shape, axis: usize, dtype: DType },
    /// A size as an `i64` scalar. No operands.
    DimValue(Dim),
    /// Element by element with NumPy broadcasting.
    Elementwise(Elementwise),
    /// Folds `axes` (sorted, each once). With `keep_dims` they stay as size 1.
    Reduce {
        op: ReduceOp,
        axes: Vec<usize>,
        keep_dims: bool,
    },
    /// Moves elements.
    View(View),
    /// `[…, m, k] × […, k, n] → […, m, n]`, batch dims broadcast.
    Contract(Contract),
    /// Operands: input, filter, optional bias `[O]`.
    Conv(Conv),
    /// Operand: input.
    Pool(Pool),
    /// Picks by index.
    Gather(Gather),
    /// Operands: data, indices, updates; the result is data with updates applied.
    Scatter(Scatter),
    /// A running fold along `axis`.
    Scan {
        op: ReduceOp,
        axis: usize,
        exclusive: bool,
        reverse: bool,
    },
    /// Results: values and `i64` indices of the `k` first along `axis`, ties by lower index. NaN counts as the largest.
    TopK { axis: usize, k: Dim, largest: bool },
    /// Counter-based random numbers (Philox 4x32-10, element index as the counter): the same on every device. The
    /// formulas are in `eval::random`.
    Random {
        kind: RandomKind,
        shape: Shape,
        seed: u64,
        dtype: DType,
    },
    /// A composition kept whole.
    Composite(Composite),
    /// A call into a vendor library.
    Call(LibraryCall),
}

/// Members of the elementwise family.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Elementwise {
    Unary(UnaryOp),
    Binary(BinaryOp),
    /// Operands: bool condition, value if true, value if false.
    Select,
    /// Conversion: floats round to nearest even, float → int truncates and saturates (NaN gives 0), number → bool is
    /// `!= 0`.
    Cast(DType),
}

impl Elementwise {
    /// Returns the vector operations of one element, roughly.
    pub const fn cost(self) -> u32 {
        match self {
            Elementwise::Unary(op) => op.cost(),
            Elementwise::Binary(op) => op.cost(),
            Elementwise::Select | Elementwise::Cast(_) => 1,
        }
    }
}

names! {
    /// How a set of elements becomes one.
    pub enum ReduceOp {
        Sum = "sum", Mean = "mean", Prod = "prod",
        /// NaN if any is NaN; of no elements, minus infinity (integers: the smallest).
        Max = "max",
        /// NaN if any is NaN; of no elements, infinity (integers: the largest).
        Min = "min",
        /// `i64` result; the first of equals, over exactly one axis; NaN counts as largest.
        ArgMax = "arg_max",
        /// `i64` result; the first of equals, over exactly one axis; NaN counts as smallest.
        ArgMin = "arg_min",
        All = "all", Any = "any",
    }
}

impl ReduceOp {
    /// Returns the op that makes the fold of two elements; none where the fold is more than elements one after another.
    pub const fn pairwise(self) -> Option<BinaryOp> {
        Some(match self {
            ReduceOp::Sum => BinaryOp::Add,
            ReduceOp::Prod => BinaryOp::Mul,
            ReduceOp::Max => BinaryOp::Max,
            ReduceOp::Min => BinaryOp::Min,
            ReduceOp::All => BinaryOp::And,
            ReduceOp::Any => BinaryOp::Or,
            ReduceOp::Mean | ReduceOp::ArgMax | ReduceOp::ArgMin => return None,
        })
    }
}

/// Members of the view family: index maps.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum View {
    /// The same elements in row-major order under another shape.
    Reshape(Shape),
    /// Result axis `i` is operand axis `perm[i]`.
    Transpose(Vec<usize>),
    /// NumPy broadcasting to the shape.
    Broadcast(Shape),
    /// Along each axis, elements `start + i·step`, `i < size`; steps may be negative.
    Slice {
        starts: Vec<Dim>,
        sizes: Vec<Dim>,
        steps: Vec<i64>,
    },
    /// Adds `low` elements before and `high` after along each axis.
    Pad {
        low: Vec<Dim>,
        high: Vec<Dim>,
        mode: PadMode,
    },
    /// Joins the operands along `axis`.
    Concat { axis: usize },
}

/// What a pad fills with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum PadMode {
    Constant(Scalar),
    /// Mirror without repeating the edge.
    Reflect,
    Edge,
    Wrap,
}

/// A batched matrix product.
///
/// Operands are at least rank 2; batch dims (all but the last two) broadcast as NumPy's do. Products are summed in
/// [`DType::product_accumulator`] of both operands and rounded once to `out`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Contract {
    /// The left operand is `[…, k, m]`.
    pub transpose_lhs: bool,
    /// The right operand is `[…, n, k]`.
    pub transpose_rhs: bool,
    /// Element type of the result.
    pub out: DType,
}

/// Where the channel axis is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Layout {
    /// `[N, C, spatial…]`; filters `[O, I/g, kernel…]` (transposed convolution: `[I, O/g, kernel…]`).
    ChannelsFirst,
    /// `[N, spatial…, C]`; filters `[O, kernel…, I/g]` (transposed convolution: `[I, kernel…, O/g]`).
    ChannelsLast,
}

impl Layout {
    /// Returns the channel axis of a tensor of the given rank.
    pub const fn channel_axis(self, rank: usize) -> usize {
        match self {
            Layout::ChannelsFirst => 1,
            Layout::ChannelsLast => rank - 1,
        }
    }

    /// Returns the first spatial axis.
    pub const fn spatial_axis(self) -> usize {
        match self {
            Layout::ChannelsFirst => 2,
            Layout::ChannelsLast => 1,
        }
    }
}

/// A sliding window over the spatial axes; every vector has one entry an axis.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Window {
    pub strides: Vec<i64>,
    /// Elements added before.
    pub pad_low: Vec<i64>,
    /// Elements added after.
    pub pad_high: Vec<i64>,
    pub dilations: Vec<i64>,
}

impl Window {
    /// The window with stride 1, dilation 1 and no padding.
    pub fn unit(spatial: usize) -> Window {
        Window {
            strides: vec![1; spatial],
            pad_low: vec![0; spatial],
            pad_high: vec![0; spatial],
            dilations: vec![1; spatial],
        }
    }
}

/// A convolution (cross-correlation, as ONNX and PyTorch have it).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Conv {
    pub window: Window,
    pub groups: i64,
    pub layout: Layout,
    /// Set for a transposed convolution: the extra size of each spatial axis.
    pub transposed: Option<Vec<i64>>,
    /// What is read outside of the input: 0, or of quantised integers the number that stands for 0.
    pub pad_value: i64,
    /// Element type of the result.
    pub out: DType,
}

/// Pooling over windows.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Pool {
    pub kind: PoolKind,
    pub size: Vec<i64>,
    pub window: Window,
    /// Round the number of windows up; the last may reach beyond the padding (those elements never count).
    pub ceil: bool,
    pub layout: Layout,
}

/// What is done with the elements of a pooling window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum PoolKind {
    Max,
    /// With `count_padding` the divisor counts padding (but not what `ceil` adds).
    Average {
        count_padding: bool,
    },
}

/// Members of the gather family. Negative indices count from the end. Here an index out of range is clamped; front ends
/// refuse constant ones, and `passes::check_indices` has runs fail that are given one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Gather {
    /// NumPy's `take`: the axis is replaced by the dims of the indices (ONNX `Gather`).
    Take { axis: usize },
    /// NumPy's `take_along_axis` (ONNX `GatherElements`).
    Elements { axis: usize },
    /// ONNX `GatherND`.
    Nd { batch_dims: usize },
}

/// Members of the scatter family. Indices as for [`Gather`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Scatter {
    /// ONNX `ScatterElements`; `None` overwrites (of equal indices the last in row-major order stays).
    Elements { axis: usize, reduce: Option<ReduceOp> },
    /// ONNX `ScatterND`.
    Nd { reduce: Option<ReduceOp> },
}

/// Distributions of [`Op::Random`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum RandomKind {
    /// In `[low, high)`.
    Uniform { low: Scalar, high: Scalar },
    /// Box–Muller.
    Normal { mean: Scalar, deviation: Scalar },
}

/// Runs of neighbours along an axis that share a scale and a zero point.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Groups {
    pub axis: usize,
    /// Elements of a group; the last one may have fewer.
    pub size: i64,
}

impl Groups {
    /// Returns how many groups an axis of `elements` has.
    pub fn count(&self, elements: &Dim) -> Dim {
        elements.ceil_div(&Dim::Const(self.size))
    }
}

/// A number in an attribute that must be hashable: compares by its bits.
pub type Number = Scalar;

/// Compositions that a library or a hand-shaped kernel may want whole; each has a decomposition.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Composite {
    /// `exp(x − max) / Σ exp(x − max)` along `axis`.
    Softmax {
        axis: usize,
    },
    LogSoftmax {
        axis: usize,
    },
    /// Over axes `axis..`: `(x − mean) / √(var + ε)`, then `· scale + bias`. Operands: x, optional scale, optional
    /// bias, both of shape `x.shape[axis..]`. Statistics in f32 at least.
    LayerNorm {
        axis: usize,
        epsilon: Number,
    },
    /// Over axes `axis..`: `x / √(mean(x²) + ε)`, then `· scale`. Operands: x, optional scale of shape
    /// `x.shape[axis..]`.
    RmsNorm {
        axis: usize,
        epsilon: Number,
    },
    /// Inference form. Operands: x, scale, bias, mean, variance, each `[C]`.
    BatchNorm {
        epsilon: Number,
        layout: Layout,
    },
    /// Normalises each group of channels of each sample. Operands: `[N, C, …]`, scale `[C]`, bias `[C]`. With
    /// `groups == C` it is instance normalisation.
    GroupNorm {
        groups: i64,
        epsilon: Number,
    },
    /// Scaled dot-product attention. Operands: q `[B, H, S, D]`, k `[B, Hkv, T, D]`, v `[B, Hkv, T, Dv]` and, with
    /// `mask`, one broadcastable to `[B, H, S, T]`: float is added to the scores, bool keeps where true. With `scales`,
    /// the last is broadcastable to the same, of f32 or f64: scores are multiplied by it before a mask is added, as
    /// keys that are stored with scales of their own ask for. `Hkv` divides `H`. Result `[B, H, S, Dv]`.
    Attention {
        scale: Number,
        causal: bool,
        mask: bool,
        scales: bool,
    },
    /// Numbers from integers or floats of at most 8 bits: `(x − zero) · scale`, in the type `out`. Operands: x, scale
    /// and optionally zero, which floats have none of, both of x's rank. Along each axis they have x's size or 1; along
    /// the axis of the groups they have one entry for each group or 1. The arithmetic is exact to f32 at least, and is
    /// rounded to `out` once.
    Dequantize {
        groups: Option<Groups>,
        out: DType,
    },
    /// Integers or floats of 8 bits from numbers: `saturate(round(x / scale) + zero)`, ties to even, in the type `out`.
    /// Operands: x, scale and optionally zero, which floats have none of, both of x's rank, along each axis of x's size
    /// or of size 1. The quotient is rounded to x's type before it is rounded to `out`'s numbers, as ONNX has it.
    /// Floats saturate at their largest finite number; NaN stays NaN.
    Quantize {
        out: DType,
    },
    /// Across channels (axis 1): `x / (bias + α/size · Σ x²)^β` (ONNX `LRN`).
    LocalResponseNorm {
        size: i64,
        alpha: Number,
        beta: Number,
        bias: Number,
    },
    /// One direction of a recurrent layer.
    Recurrent(Recurrent),
}

impl Composite {
    /// Returns the name used in text forms.
    pub const fn name(&self) -> &'static str {
        match self {
            Composite::Softmax { .. } => "softmax",
            Composite::LogSoftmax { .. } => "log_softmax",
            Composite::LayerNorm { .. } => "layer_norm",
            Composite::RmsNorm { .. } => "rms_norm",
            Composite::BatchNorm { .. } => "batch_norm",
            Composite::GroupNorm { .. } => "group_norm",
            Composite::Attention { .. } => "attention",
            Composite::Dequantize { .. } => "dequantize",
            Composite::Quantize { .. } => "quantize",
            Composite::LocalResponseNorm { .. } => "local_response_norm",
            Composite::Recurrent(_) => "recurrent",
        }
    }
}

impl Op {
    /// Returns the name of the op (of the member, where the family has members) as text forms have it.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input { .. } => "input",
            Op::Constant(_) => "constant",
            Op::Iota { .. } => "iota",
            Op::DimValue(_) => "dim",
            Op::Elementwise(Elementwise::Unary(op)) => op.name(),
            Op::Elementwise(Elementwise::Binary(op)) => op.name(),
            Op::Elementwise(Elementwise::Select) => "select",
            Op::Elementwise(Elementwise::Cast(_)) => "cast",
            Op::Reduce { .. } => "reduce",
            Op::View(View::Reshape(_)) => "reshape",
            Op::View(View::Transpose(_)) => "transpose",
            Op::View(View::Broadcast(_)) => "broadcast",
            Op::View(View::Slice { .. }) => "slice",
            Op::View(View::Pad { .. }) => "pad",
            Op::View(View::Concat { .. }) => "concat",
            Op::Contract(_) => "contract",
            Op::Conv(_) => "conv",
            Op::Pool(_) => "pool",
            Op::Gather(Gather::Take { .. }) => "take",
            Op::Gather(Gather::Elements { .. }) => "take_along_axis",
            Op::Gather(Gather::Nd { .. }) => "gather_nd",
            Op::Scatter(Scatter::Elements { .. }) => "scatter_elements",
            Op::Scatter(Scatter::Nd { .. }) => "scatter_nd",
            Op::Scan { .. } => "scan",
            Op::TopK { .. } => "top_k",
            Op::Random { .. } => "random",
            Op::Composite(c) => c.name(),
            Op::Call(call) => call.name(),
        }
    }

    /// Says whether the op has no operands.
    pub const fn is_leaf(&self) -> bool {
        matches!(
            self,
            Op::Input { .. } | Op::Constant(_) | Op::Iota { .. } | Op::DimValue(_) | Op::Random { .. }
        )
    }

    /// Calls `f` for each size in the attributes.
    pub fn for_each_dim<'a>(&'a self, mut f: impl FnMut(&'a Dim)) {
        match self {
            Op::Iota { shape, .. } | Op::Random { shape, .. } => shape.iter().for_each(f),
            Op::DimValue(d) | Op::TopK { k: d, .. } => f(d),
            Op::View(View::Reshape(shape) | View::Broadcast(shape)) => shape.iter().for_each(f),
            Op::View(View::Slice { starts, sizes, .. }) => starts.iter().chain(sizes).for_each(f),
            Op::View(View::Pad { low, high, .. }) => low.iter().chain(high).for_each(f),
            Op::View(View::Transpose(_) | View::Concat { .. }) => {}
            Op::Input { .. }
            | Op::Constant(_)
            | Op::Elementwise(_)
            | Op::Reduce { .. }
            | Op::Contract(_)
            | Op::Conv(_)
            | Op::Pool(_)
            | Op::Gather(_)
            | Op::Scatter(_)
            | Op::Scan { .. }
            | Op::Composite(_)
            | Op::Call(_) => {}
        }
    }

    /// Makes a unary elementwise op.
    pub const fn unary(op: UnaryOp) -> Op {
        Op::Elementwise(Elementwise::Unary(op))
    }

    /// Makes a binary elementwise op.
    pub const fn binary(op: BinaryOp) -> Op {
        Op::Elementwise(Elementwise::Binary(op))
    }

    /// Makes a cast.
    pub const fn cast(to: DType) -> Op {
        Op::Elementwise(Elementwise::Cast(to))
    }
}
