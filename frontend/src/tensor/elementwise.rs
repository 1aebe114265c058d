//! One element from one element of each operand; operands broadcast as NumPy's do.

use ir::graph::op::{BinaryOp, Elementwise, UnaryOp};
use ir::{DType, Op, Scalar};

use super::{Operand, Tensor};

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident),+ $(,)?) => {
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            #[must_use]
            pub fn $name(&self) -> Tensor {
                Tensor::op(Op::unary(UnaryOp::$op), &[self])
            }
        )+}

        /// The compiler names an op that has neither a method nor an operator.
        const _: fn(UnaryOp) = |op| match op {
            $(UnaryOp::$op => {})+
            UnaryOp::Neg => {}
        };
    };
}

unary! {
    /// `|x|`.
    abs => Abs,
    /// −1, 0 or 1.
    sign => Sign,
    /// The largest whole number not above.
    floor => Floor,
    /// The smallest whole number not below.
    ceil => Ceil,
    /// To the nearest whole number, ties to even.
    round => Round,
    /// Towards zero.
    trunc => Trunc,
    /// `√x`.
    sqrt => Sqrt,
    /// `1/√x`.
    rsqrt => Rsqrt,
    /// `1/x`.
    recip => Recip,
    /// `eˣ`.
    exp => Exp,
    /// `eˣ − 1`.
    expm1 => Expm1,
    /// The natural logarithm.
    log => Log,
    /// `ln(1 + x)`.
    log1p => Log1p,
    /// `2ˣ`.
    exp2 => Exp2,
    /// The logarithm to base 2.
    log2 => Log2,
    sin => Sin,
    cos => Cos,
    tan => Tan,
    asin => Asin,
    acos => Acos,
    atan => Atan,
    sinh => Sinh,
    cosh => Cosh,
    tanh => Tanh,
    asinh => Asinh,
    acosh => Acosh,
    atanh => Atanh,
    /// The error function.
    erf => Erf,
    /// `1 / (1 + e⁻ˣ)`.
    sigmoid => Sigmoid,
    /// `ln(1 + eˣ)`.
    softplus => Softplus,
    /// `max(x, 0)`; NaN stays NaN.
    relu => Relu,
    /// `x/2 · (1 + erf(x/√2))`.
    gelu => Gelu,
    /// GELU by its tanh approximation.
    gelu_tanh => GeluTanh,
    /// `x · sigmoid(x)`, also called swish.
    silu => Silu,
    /// `x · tanh(softplus(x))`.
    mish => Mish,
    /// `x · clamp(x + 3, 0, 6) / 6`.
    hard_swish => HardSwish,
    /// Not: logical for bool, bitwise for integers.
    logical_not => Not,
    /// Whether NaN, as bool.
    is_nan => IsNan,
    /// Whether an infinity, as bool.
    is_inf => IsInf,
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $op:ident),+ $(,)?) => {
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            #[must_use]
            pub fn $name(&self, other: impl Into<Operand>) -> Tensor {
                let other = other.into().tensor(stringify!($name), self);
                Tensor::op(Op::binary(BinaryOp::$op), &[self, &other])
            }
        )+}

        /// The compiler names an op that has neither a method nor an operator; shifts are ONNX's alone.
        const _: fn(BinaryOp) = |op| match op {
            $(BinaryOp::$op => {})+
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem => {}
            BinaryOp::Shl | BinaryOp::Shr => {}
        };
    };
}

binary! {
    /// `self` to the power of `other`.
    pow => Pow,
    /// The larger; NaN if either is.
    maximum => Max,
    /// The smaller; NaN if either is.
    minimum => Min,
    /// The remainder with the sign of the divisor (Python's `%`).
    modulo => Mod,
    /// The angle of the point (`other`, `self`).
    atan2 => Atan2,
    /// And: logical for bool, bitwise for integers.
    and => And,
    /// Or: logical for bool, bitwise for integers.
    or => Or,
    /// Exclusive or: logical for bool, bitwise for integers.
    xor => Xor,
    /// Whether equal, as bool.
    eq => Eq,
    /// Whether different, as bool.
    ne => Ne,
    /// Whether less, as bool.
    lt => Lt,
    /// Whether less or equal, as bool.
    le => Le,
    /// Whether greater, as bool.
    gt => Gt,
    /// Whether greater or equal, as bool.
    ge => Ge,
}

impl Tensor {
    /// Converts elements: floats round to nearest even, float → int truncates and saturates, number → bool is `!= 0`.
    #[track_caller]
    #[must_use]
    pub fn cast(&self, to: DType) -> Tensor {
        if self.dtype() == to {
            return self.clone();
        }
        Tensor::op(Op::cast(to), &[self])
    }

    /// Takes `if_true` where this bool tensor is true, else `if_false`.
    ///
    /// ```
    /// # use graphc_frontend::{tensor::Tensor, shape, DType};
    /// let x = Tensor::input("x", DType::F32, shape!["n"]);
    /// let clipped = x.gt(1.0).select(1.0, &x);
    /// assert_eq!(clipped.ty().to_string(), "f32[n]");
    /// ```
    #[track_caller]
    #[must_use]
    pub fn select(&self, if_true: impl Into<Operand>, if_false: impl Into<Operand>) -> Tensor {
        let (a, b) = (if_true.into(), if_false.into());
        // A number takes the type of the other branch; two numbers are `f32`, or what they are when no float is among
        // them.
        let like = match (&a, &b) {
            (Operand::Tensor(t), _) | (_, Operand::Tensor(t)) => t.clone(),
            (Operand::Number(x), Operand::Number(y)) => {
                let dtype = match (x, y) {
                    (Scalar::Bool(_), Scalar::Bool(_)) => DType::Bool,
                    (Scalar::Int(_), Scalar::Int(_)) => DType::I64,
                    _ => DType::F32,
                };
                Tensor::literal(dtype, Scalar::zero(dtype))
            }
        };
        let (a, b) = (a.tensor("select", &like), b.tensor("select", &like));
        Tensor::op(Op::Elementwise(Elementwise::Select), &[self, &a, &b])
    }

    /// `x²`.
    #[track_caller]
    #[must_use]
    pub fn square(&self) -> Tensor {
        self * self
    }

    /// Limits elements to `low..=high`.
    #[track_caller]
    #[must_use]
    pub fn clamp(&self, low: impl Into<Operand>, high: impl Into<Operand>) -> Tensor {
        self.maximum(low).minimum(high)
    }

    /// `clamp(x, 0, 6)`.
    #[track_caller]
    #[must_use]
    pub fn relu6(&self) -> Tensor {
        self.clamp(0, 6)
    }

    /// `x` where positive, else `slope · x`.
    #[track_caller]
    #[must_use]
    pub fn leaky_relu(&self, slope: f64) -> Tensor {
        self.gt(0).select(self, self * slope)
    }

    /// `x` where positive, else `α · (eˣ − 1)`.
    #[track_caller]
    #[must_use]
    pub fn elu(&self, alpha: f64) -> Tensor {
        self.gt(0).select(self, self.expm1() * alpha)
    }

    /// `clamp(x / 6 + 1/2, 0, 1)`.
    #[track_caller]
    #[must_use]
    pub fn hard_sigmoid(&self) -> Tensor {
        (self / 6.0 + 0.5).clamp(0, 1)
    }

    /// `x / (1 + |x|)`.
    #[track_caller]
    #[must_use]
    pub fn softsign(&self) -> Tensor {
        self / &(self.abs() + 1)
    }

    /// Replaces elements by `value` where the bool `mask` is true.
    #[track_caller]
    #[must_use]
    pub fn masked_fill(&self, mask: &Tensor, value: impl Into<Operand>) -> Tensor {
        let value = value.into().tensor("masked_fill", self);
        mask.select(value, self)
    }
}
