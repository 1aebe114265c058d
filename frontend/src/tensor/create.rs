//! Where tensors begin: inputs, data, fills, counters and random numbers.

use std::ops::{Bound, RangeBounds};

use half::{bf16, f16};
use ir::graph::op::RandomKind;
use ir::{DType, Dim, HostTensor, Op, Origin, Scalar, Shape, Storage, Symbol, SymbolInfo, Symbols, TensorType};

use super::node::Node;
use super::{Operand, Tensor, TensorError};
use crate::weights::TensorView;

/// A Rust type that is the element type of tensors.
pub trait Element: Copy + Send + Sync + 'static {
    const DTYPE: DType;
    /// Appends the little-endian bytes.
    fn put(self, bytes: &mut Vec<u8>);
    /// Reads the elements of a tensor of this type.
    fn read(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! element {
    ($($ty:ty => $dtype:ident),+ $(,)?) => {$(
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
            fn read(bytes: &[u8]) -> Vec<$ty> {
                bytes.as_chunks().0.iter().map(|b| <$ty>::from_le_bytes(*b)).collect()
            }
        }
    )+};
}
element!(f32 => F32, f64 => F64, f16 => F16, bf16 => BF16, i64 => I64, i32 => I32, i16 => I16, i8 => I8, u8 => U8);

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self));
    }
    fn read(bytes: &[u8]) -> Vec<bool> {
        bytes.iter().map(|b| *b != 0).collect()
    }
}

/// The declaration of an input: its name, element type, shape, and what is known of the shape's symbols.
///
/// ```
/// use graphc_frontend::tensor::{InputSpec, Tensor};
/// use graphc_frontend::{DType, shape};
///
/// let ids = InputSpec::new("ids", DType::I64, shape!["batch", "seq"]).bounds("seq", 1..=512).hint("seq", 128);
/// let ids = Tensor::from_spec(&ids);
/// assert_eq!(ids.shape().to_string(), "[batch, seq]");
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct InputSpec {
    pub name: String,
    pub ty: TensorType,
    pub symbols: Symbols,
    /// Where it was declared; the input's node names it.
    pub origin: Origin,
}

impl InputSpec {
    /// Declares an input.
    #[track_caller]
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl Into<Shape>) -> InputSpec {
        InputSpec {
            name: name.into(),
            ty: TensorType::new(dtype, shape),
            symbols: Symbols::new(),
            origin: Origin::caller(),
        }
    }

    /// Sets the sizes that a symbol of the shape may take: `1..=512`, `0..` (an empty batch), `..9`.
    ///
    /// A symbol without bounds takes sizes of at least 1. Bounds that several inputs give hold all at once; no input
    /// needs to repeat what another says.
    #[must_use]
    pub fn bounds(mut self, symbol: &str, range: impl RangeBounds<i64>) -> InputSpec {
        let info = self.symbols.entry(Symbol::new(symbol)).or_default();
        info.min = match range.start_bound() {
            Bound::Included(min) => *min,
            Bound::Excluded(below) => below.saturating_add(1),
            Bound::Unbounded => 1,
        };
        info.max = match range.end_bound() {
            Bound::Included(max) => Some(*max),
            Bound::Excluded(above) => Some(above.saturating_sub(1)),
            Bound::Unbounded => None,
        };
        info.hint = info.hint.min(info.max.unwrap_or(i64::MAX)).max(info.min);
        self
    }

    /// Sets the size of a symbol that costs are estimated for; it is moved into the bounds set before.
    #[must_use]
    pub fn hint(mut self, symbol: &str, size: i64) -> InputSpec {
        let info: &mut SymbolInfo = self.symbols.entry(Symbol::new(symbol)).or_default();
        info.hint = size.max(info.min).min(info.max.unwrap_or(i64::MAX));
        self
    }
}

impl Tensor {
    /// Declares an input of a graph. Symbols in the shape (`shape!["batch", 3]`) get their size when the graph runs.
    #[track_caller]
    pub fn input(name: &str, dtype: DType, shape: impl Into<Shape>) -> Tensor {
        Node::input(name, TensorType::new(dtype, shape), &Symbols::new(), Origin::caller())
    }

    /// Declares an input with bounds of its symbols; it comes from where the declaration was written.
    pub fn from_spec(spec: &InputSpec) -> Tensor {
        Node::input(&spec.name, spec.ty.clone(), &spec.symbols, spec.origin.clone())
    }

    /// Makes a tensor from data on the host, without copying it.
    #[track_caller]
    pub fn from_host(tensor: HostTensor) -> Tensor {
        Node::constant(None, tensor, Origin::caller())
    }

    /// Makes a tensor from values in row-major order.
    ///
    /// ```
    /// use graphc_frontend::tensor::Tensor;
    /// let t = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]);
    /// assert_eq!(t.ty().to_string(), "f32[2, 2]");
    /// assert!(Tensor::from_slice(&[1i64, 2, 3], [2, 2]).is_poisoned());
    /// ```
    #[track_caller]
    pub fn from_slice<T: Element>(values: &[T], shape: impl Into<Vec<usize>>) -> Tensor {
        let mut bytes = Vec::with_capacity(size_of_val(values));
        values.iter().for_each(|v| v.put(&mut bytes));
        let origin = Origin::caller();
        match HostTensor::new(T::DTYPE, shape, Storage::new(bytes)) {
            Ok(tensor) => Node::constant(None, tensor, origin),
            Err(source) => Tensor::poisoned(TensorError::Data { origin, source }),
        }
    }

    /// Makes a tensor of one axis from values.
    #[track_caller]
    pub fn from_vec<T: Element>(values: Vec<T>) -> Tensor {
        let n = values.len();
        Tensor::from_slice(&values, [n])
    }

    /// Makes a tensor of rank 0.
    #[track_caller]
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::from_slice(&[value], [0usize; 0])
    }

    /// Makes a named constant, such as a weight; it stays in the compiled program under its name.
    #[track_caller]
    pub fn parameter(name: &str, tensor: HostTensor) -> Tensor {
        Node::constant(Some(name), tensor, Origin::caller())
    }

    /// Makes a named constant from a tensor of a weight file; the bytes stay in the mapped file.
    #[track_caller]
    pub fn from_view(view: &TensorView) -> Tensor {
        match view.to_host() {
            Ok(tensor) => Tensor::parameter(&view.name, tensor),
            Err(error) => Tensor::poisoned(error.into()),
        }
    }

    /// Makes a tensor of zeros (`false` for bool).
    #[track_caller]
    pub fn zeros(dtype: DType, shape: impl Into<Shape>) -> Tensor {
        Tensor::literal(dtype, Scalar::zero(dtype)).expand(shape)
    }

    /// Makes a tensor of ones (`true` for bool).
    #[track_caller]
    pub fn ones(dtype: DType, shape: impl Into<Shape>) -> Tensor {
        Tensor::literal(dtype, Scalar::Int(1)).expand(shape)
    }

    /// Makes a tensor whose every element is `value`.
    #[track_caller]
    pub fn full(dtype: DType, shape: impl Into<Shape>, value: impl Into<Operand>) -> Tensor {
        let like = Tensor::literal(dtype, Scalar::zero(dtype));
        value.into().tensor("full", &like).expand(shape)
    }

    /// Makes `0, 1, …, n − 1`; `n` may be symbolic.
    #[track_caller]
    pub fn arange(dtype: DType, n: impl Into<Dim>) -> Tensor {
        Tensor::iota(dtype, Shape(vec![n.into()]), 0)
    }

    /// Makes a tensor whose elements are their position along an axis.
    #[track_caller]
    pub fn iota(dtype: DType, shape: impl Into<Shape>, axis: usize) -> Tensor {
        Tensor::op(
            Op::Iota {
                shape: shape.into(),
                axis,
                dtype,
            },
            &[],
        )
    }

    /// Makes a size an `i64` scalar, to compute with.
    #[track_caller]
    pub fn dim_value(dim: impl Into<Dim>) -> Tensor {
        Tensor::op(Op::DimValue(dim.into()), &[])
    }

    /// Makes an identity matrix `[n, n]`.
    #[track_caller]
    pub fn eye(dtype: DType, n: impl Into<Dim>) -> Tensor {
        let n = n.into();
        let rows = Tensor::iota(DType::I64, Shape(vec![n.clone(), Dim::Const(1)]), 0);
        rows.eq(Tensor::arange(DType::I64, n)).cast(dtype)
    }

    /// Makes `f32` random numbers in `[0, 1)`, the same for the same seed on every device.
    #[track_caller]
    pub fn rand(shape: impl Into<Shape>, seed: u64) -> Tensor {
        Tensor::uniform(shape, 0.0, 1.0, seed)
    }

    /// Makes `f32` random numbers in `[low, high)`.
    #[track_caller]
    pub fn uniform(shape: impl Into<Shape>, low: f64, high: f64, seed: u64) -> Tensor {
        let kind = RandomKind::Uniform {
            low: Scalar::Float(low),
            high: Scalar::Float(high),
        };
        Tensor::op(
            Op::Random {
                kind,
                shape: shape.into(),
                seed,
                dtype: DType::F32,
            },
            &[],
        )
    }

    /// Makes `f32` random numbers of the standard normal distribution.
    #[track_caller]
    pub fn randn(shape: impl Into<Shape>, seed: u64) -> Tensor {
        let kind = RandomKind::Normal {
            mean: Scalar::Float(0.0),
            deviation: Scalar::Float(1.0),
        };
        Tensor::op(
            Op::Random {
                kind,
                shape: shape.into(),
                seed,
                dtype: DType::F32,
            },
            &[],
        )
    }
}
