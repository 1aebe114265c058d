//! Result types from operand types, and every reason why an op does not fit its operands.
//!
//! Dims are symbolic. Where two dims must be equal and polynomial algebra cannot show it, the op is refused with an
//! error that names both: nothing is left to be found out when the model runs, except positions that depend on sizes (a
//! slice's start, a `k` beyond the axis), which are refused here when they are wrong for every size and by the
//! evaluator and the runtime otherwise.

mod composite;
mod error;
mod index;
mod view;
mod window;

use smallvec::{SmallVec, smallvec};

use crate::dim::{Dim, Shape, Symbol, Symbols};
use crate::graph::op::{BinaryKind, Comparison, Elementwise, Op, RandomKind, ReduceOp, UnaryKind};
use crate::types::{DType, TensorType};

pub use error::{InferError, Reason};
pub use index::{check_indices, indexed_axes};
pub(crate) use window::LARGEST;
pub use window::{conv_output, pool_output};

/// The types of a node's results.
pub type Types = SmallVec<[TensorType; 1]>;

type Inferred = Result<Types, Reason>;

/// Returns the types of the results of `op` on operands of these types.
///
/// # Errors
/// [`InferError`] with the op, all operand types and the reason. Its origin is unknown; `Graph::add` fills it in.
/// [`Op::Input`] and [`Op::Constant`] have declared types and are refused: `Graph::add_input` and `add_constant` make
/// them.
pub fn infer(op: &Op, operands: &[&TensorType], symbols: &Symbols) -> Result<Types, InferError> {
    let cx = Cx { operands, symbols };
    check_symbols(op, symbols)
        .and_then(|()| dispatch(op, &cx))
        .and_then(|types| {
            for ty in &types {
                cx.sizes("result", &ty.shape)?;
            }
            Ok(types)
        })
        .map_err(|reason| InferError::new(op, operands.iter().map(|t| (*t).clone()).collect(), reason))
}

/// What an inference rule looks at.
struct Cx<'a> {
    operands: &'a [&'a TensorType],
    symbols: &'a Symbols,
}

fn one(dtype: DType, shape: impl Into<Shape>) -> Types {
    smallvec![TensorType::new(dtype, shape)]
}

/// Classes of element types that an operand may be asked to have.
#[derive(Clone, Copy)]
enum Class {
    Float,
    Int,
    Number,
    Bool,
    BoolOrInt,
    Any,
}

impl Class {
    const fn has(self, dtype: DType) -> bool {
        match self {
            Class::Float => dtype.is_float(),
            Class::Int => dtype.is_int(),
            Class::Number => dtype.is_int() || dtype.is_float(),
            Class::Bool => matches!(dtype, DType::Bool),
            Class::BoolOrInt => dtype.is_int() || matches!(dtype, DType::Bool),
            Class::Any => true,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Class::Float => "a floating-point type",
            Class::Int => "an integer type",
            Class::Number => "a number type",
            Class::Bool => "bool",
            Class::BoolOrInt => "bool or an integer type",
            Class::Any => "any type",
        }
    }
}

impl Cx<'_> {
    fn count(&self, min: usize, max: usize) -> Result<(), Reason> {
        let got = self.operands.len();
        if (min..=max).contains(&got) {
            Ok(())
        } else {
            Err(Reason::OperandCount { min, max, got })
        }
    }

    fn class(&self, operand: usize, class: Class) -> Result<DType, Reason> {
        let got = self.operands[operand].dtype;
        if class.has(got) {
            Ok(got)
        } else {
            Err(Reason::DType {
                operand,
                got,
                expected: class.name(),
            })
        }
    }

    /// Demands that operand `b` has the element type of operand `a`.
    fn same_dtype(&self, a: usize, b: usize) -> Result<(), Reason> {
        let (first, got) = (self.operands[a].dtype, self.operands[b].dtype);
        if first == got {
            Ok(())
        } else {
            Err(Reason::DTypesDiffer {
                operand: b,
                got,
                other: a,
                other_dtype: first,
            })
        }
    }

    fn rank_at_least(&self, operand: usize, min: usize) -> Result<usize, Reason> {
        let got = self.operands[operand].rank();
        if got >= min {
            Ok(got)
        } else {
            Err(Reason::Rank {
                operand,
                got,
                expected: format!("at least {min}"),
            })
        }
    }

    fn rank_is(&self, operand: usize, rank: usize) -> Result<(), Reason> {
        let got = self.operands[operand].rank();
        if got == rank {
            Ok(())
        } else {
            Err(Reason::Rank {
                operand,
                got,
                expected: rank.to_string(),
            })
        }
    }

    fn axis(&self, axis: usize, rank: usize) -> Result<usize, Reason> {
        if axis < rank {
            Ok(axis)
        } else {
            Err(Reason::Axis { axis, rank })
        }
    }

    /// Demands that two dims are equal for every size.
    fn equal(&self, what: &'static str, left: &Dim, right: &Dim) -> Result<(), Reason> {
        if left == right {
            Ok(())
        } else {
            Err(Reason::Dims {
                what,
                left: left.clone(),
                right: right.clone(),
                known: self.known_to_differ(left, right),
            })
        }
    }

    fn known_to_differ(&self, left: &Dim, right: &Dim) -> bool {
        let (lo, hi) = (left - right).bounds(self.symbols);
        lo.is_some_and(|v| v > 0) || hi.is_some_and(|v| v < 0)
    }

    fn equal_shapes(&self, what: &'static str, left: &[Dim], right: &[Dim]) -> Result<(), Reason> {
        if left.len() != right.len() {
            return Err(Reason::Shapes {
                what,
                left: Shape(left.to_vec()),
                right: Shape(right.to_vec()),
            });
        }
        left.iter().zip(right).try_for_each(|(l, r)| self.equal(what, l, r))
    }

    /// Demands a vector `[size]`.
    fn vector(&self, operand: usize, what: &'static str, size: &Dim) -> Result<(), Reason> {
        self.rank_is(operand, 1)?;
        self.equal(what, &self.operands[operand].shape[0], size)
    }

    /// Broadcasts the shapes of all operands.
    fn broadcast(&self) -> Result<Shape, Reason> {
        let mut shape = self.operands[0].shape.clone();
        for (operand, ty) in self.operands.iter().enumerate().skip(1) {
            shape = self.broadcast_two(operand, &shape, &ty.shape)?;
        }
        Ok(shape)
    }

    fn broadcast_two(&self, operand: usize, left: &Shape, right: &Shape) -> Result<Shape, Reason> {
        Shape::broadcast(left, right).ok_or_else(|| {
            let clash = left
                .iter()
                .rev()
                .zip(right.iter().rev())
                .find(|(l, r)| l != r && !l.is(1) && !r.is(1));
            let (l, r) = clash.map_or((Dim::Const(0), Dim::Const(0)), |(l, r)| (l.clone(), r.clone()));
            Reason::Broadcast {
                operand,
                left: left.clone(),
                right: right.clone(),
                known: self.known_to_differ(&l, &r),
                left_dim: l,
                right_dim: r,
            }
        })
    }

    /// Refuses sizes that are negative whatever the symbols are.
    fn sizes(&self, what: &'static str, shape: &[Dim]) -> Result<(), Reason> {
        match shape
            .iter()
            .position(|d| d.bounds(self.symbols).1.is_some_and(|hi| hi < 0))
        {
            None => Ok(()),
            Some(axis) => Err(Reason::NegativeSize {
                what,
                axis,
                size: shape[axis].clone(),
            }),
        }
    }
}

fn attribute<T>(attribute: &'static str, message: impl Into<String>) -> Result<T, Reason> {
    Err(Reason::Attribute {
        attribute,
        message: message.into(),
    })
}

fn dispatch(op: &Op, cx: &Cx<'_>) -> Inferred {
    match op {
        Op::Input { .. } | Op::Constant(_) => Err(Reason::Declared),
        Op::Iota { shape, axis, dtype } => {
            cx.count(0, 0)?;
            cx.axis(*axis, shape.rank())?;
            if !Class::Number.has(*dtype) {
                return attribute("dtype", format!("iota counts in a number type, not {dtype}"));
            }
            Ok(one(*dtype, shape.clone()))
        }
        Op::DimValue(_) => {
            cx.count(0, 0)?;
            Ok(one(DType::I64, Shape::SCALAR))
        }
        Op::Elementwise(e) => elementwise(*e, cx),
        Op::Reduce { op, axes, keep_dims } => reduce(*op, axes, *keep_dims, cx),
        Op::View(v) => view::view(v, cx),
        Op::Contract(c) => window::contract(c, cx),
        Op::Conv(c) => window::conv(c, cx),
        Op::Pool(p) => window::pool(p, cx),
        Op::Gather(g) => index::gather(*g, cx),
        Op::Scatter(s) => index::scatter(*s, cx),
        Op::Scan { op, axis, .. } => {
            cx.count(1, 1)?;
            cx.axis(*axis, cx.operands[0].rank())?;
            let dtype = cx.class(0, Class::Number)?;
            match op {
                ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min => {
                    Ok(one(dtype, cx.operands[0].shape.clone()))
                }
                other => attribute("op", format!("a scan folds with sum, prod, max or min, not {other}")),
            }
        }
        Op::TopK { axis, k, .. } => index::top_k(*axis, k, cx),
        Op::Random { kind, shape, dtype, .. } => {
            cx.count(0, 0)?;
            if !dtype.is_float() {
                return attribute("dtype", format!("random numbers are floats, not {dtype}"));
            }
            match kind {
                RandomKind::Uniform { low, high } if low.as_f64() > high.as_f64() => {
                    attribute("low", format!("{low} is above high, {high}"))
                }
                RandomKind::Normal { deviation, .. } if deviation.as_f64() < 0.0 => {
                    attribute("deviation", format!("{deviation} is negative"))
                }
                _ => Ok(one(*dtype, shape.clone())),
            }
        }
        Op::Composite(c) => composite::composite(c, cx),
        Op::Call(call) => composite::call(call, cx),
    }
}

fn elementwise(op: Elementwise, cx: &Cx<'_>) -> Inferred {
    match op {
        Elementwise::Unary(u) => {
            cx.count(1, 1)?;
            let class = match u.kind() {
                UnaryKind::Number => Class::Number,
                UnaryKind::Bits => Class::BoolOrInt,
                UnaryKind::Rounding | UnaryKind::Predicate | UnaryKind::Function => Class::Float,
            };
            let dtype = cx.class(0, class)?;
            let dtype = if u.is_predicate() { DType::Bool } else { dtype };
            Ok(one(dtype, cx.operands[0].shape.clone()))
        }
        Elementwise::Binary(b) => {
            cx.count(2, 2)?;
            let class = match b.kind() {
                BinaryKind::Number => Class::Number,
                BinaryKind::Function => Class::Float,
                BinaryKind::Bits => Class::BoolOrInt,
                BinaryKind::Shift => Class::Int,
                BinaryKind::Comparison(Comparison::Eq | Comparison::Ne) => Class::Any,
                BinaryKind::Comparison(Comparison::Lt | Comparison::Le | Comparison::Gt | Comparison::Ge) => {
                    Class::Number
                }
            };
            let dtype = cx.class(0, class)?;
            cx.same_dtype(0, 1)?;
            let dtype = if b.is_comparison() { DType::Bool } else { dtype };
            Ok(one(dtype, cx.broadcast()?))
        }
        Elementwise::Select => {
            cx.count(3, 3)?;
            cx.class(0, Class::Bool)?;
            cx.same_dtype(1, 2)?;
            Ok(one(cx.operands[1].dtype, cx.broadcast()?))
        }
        Elementwise::Cast(to) => {
            cx.count(1, 1)?;
            Ok(one(to, cx.operands[0].shape.clone()))
        }
    }
}

fn reduce(op: ReduceOp, axes: &[usize], keep_dims: bool, cx: &Cx<'_>) -> Inferred {
    cx.count(1, 1)?;
    let shape = &cx.operands[0].shape;
    if !axes.is_sorted_by(|a, b| a < b) {
        return attribute("axes", format!("{axes:?} must be sorted and each once"));
    }
    for axis in axes {
        cx.axis(*axis, shape.rank())?;
    }
    let dtype = match op {
        ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min => {
            cx.class(0, Class::Number)?
        }
        ReduceOp::All | ReduceOp::Any => cx.class(0, Class::Bool)?,
        ReduceOp::ArgMax | ReduceOp::ArgMin => {
            cx.class(0, Class::Number)?;
            if axes.len() != 1 {
                return attribute("axes", format!("{op} takes exactly one axis, not {axes:?}"));
            }
            DType::I64
        }
    };
    let dims = shape.iter().enumerate().filter_map(|(i, d)| {
        if !axes.contains(&i) {
            Some(d.clone())
        } else {
            keep_dims.then_some(Dim::Const(1))
        }
    });
    Ok(one(dtype, dims.collect::<Shape>()))
}

/// Refuses symbols in attributes that the graph does not declare: no input could ever bind them.
fn check_symbols(op: &Op, symbols: &Symbols) -> Result<(), Reason> {
    let mut found: Vec<Symbol> = Vec::new();
    op.for_each_dim(|d| d.collect_symbols(&mut found));
    match found.into_iter().find(|s| !symbols.contains_key(s)) {
        None => Ok(()),
        Some(symbol) => Err(Reason::UndeclaredSymbol { symbol }),
    }
}
