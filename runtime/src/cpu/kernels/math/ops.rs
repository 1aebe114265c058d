//! The elementwise operations as data, and the loops that run them over blocks.
//!
//! A block interpreter resolves an operation once per block (256-1024 values in L1): a `match` and one indirect-free
//! call.
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "loops under the contract of the functions that dispatch to them"
)]

use super::funcs;
use crate::cpu::kernels::isa::Isa;
use crate::cpu::kernels::simd::{Simd, simd_dispatch};

trait UnaryOp: Copy {
    unsafe fn eval<S: Simd>(self, x: S::V) -> S::V;
}

trait BinaryOp: Copy {
    unsafe fn eval<S: Simd>(self, x: S::V, y: S::V) -> S::V;
}

macro_rules! define_unary {
    ($($(#[$doc:meta])* $name:ident { $($field:ident),* } => <$s:ident> |$x:ident| $body:expr;)*) => {
        /// A function of one f32, applied to every element. NaN gives NaN.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Unary {
            $($(#[$doc])* $name { $($field: f32),* },)*
        }

        $(
            #[derive(Clone, Copy)]
            struct $name { $($field: f32),* }

            impl UnaryOp for $name {
                #[inline(always)]
                unsafe fn eval<$s: Simd>(self, $x: $s::V) -> $s::V {
                    $(let $field = $s::splat(self.$field);)*
                    $body
                }
            }
        )*

        /// `dst[i] = op(src[i])` for `n` values; `dst` may be `src`.
        ///
        /// # Safety
        /// Both are valid for `n` floats and are the same or do not overlap.
        pub unsafe fn unary_ptr(isa: Isa, op: Unary, dst: *mut f32, src: *const f32, n: usize) {
            match op {
                $(Unary::$name { $($field),* } => run1(isa, $name { $($field),* }, dst, src, n),)*
            }
        }
    };
}

macro_rules! define_binary {
    ($($(#[$doc:meta])* $name:ident => <$s:ident> |$x:ident, $y:ident| $body:expr;)*) => {
        /// A function of two f32, applied element by element.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Binary {
            $($(#[$doc])* $name,)*
        }

        $(
            #[derive(Clone, Copy)]
            struct $name;

            impl BinaryOp for $name {
                #[inline(always)]
                unsafe fn eval<$s: Simd>(self, $x: $s::V, $y: $s::V) -> $s::V {
                    $body
                }
            }
        )*

        /// `dst[i] = op(a[i], b[i])` for `n` values, where a scalar operand gives its one value each time.
        ///
        /// # Safety
        /// `dst` and every array operand are valid for `n` floats; an operand is `dst` itself or does not overlap it.
        pub unsafe fn binary_ptr(isa: Isa, op: Binary, dst: *mut f32, a: Input, b: Input, n: usize) {
            match op {
                $(Binary::$name => run2(isa, $name, dst, a, b, n),)*
            }
        }
    };
}

/// An operand of an elementwise operation.
#[derive(Clone, Copy, Debug)]
pub enum Input {
    /// One value per element.
    Array(*const f32),
    /// One value for all.
    Scalar(f32),
}

#[inline(always)]
unsafe fn lanewise<S: Simd>(x: S::V, f: impl Fn(f32) -> f32) -> S::V {
    let mut lanes = [0.0f32; 16];
    S::store(lanes.as_mut_ptr(), x);
    for lane in lanes.iter_mut().take(S::LANES) {
        *lane = f(*lane);
    }
    S::load(lanes.as_ptr())
}

#[inline(always)]
unsafe fn lanewise2<S: Simd>(x: S::V, y: S::V, f: impl Fn(f32, f32) -> f32) -> S::V {
    let (mut a, mut b) = ([0.0f32; 16], [0.0f32; 16]);
    S::store(a.as_mut_ptr(), x);
    S::store(b.as_mut_ptr(), y);
    for i in 0..S::LANES {
        a[i] = f(a[i], b[i]);
    }
    S::load(a.as_ptr())
}

#[inline(always)]
unsafe fn keep_nan<S: Simd>(x: S::V, y: S::V) -> S::V {
    S::select(S::is_nan(x), x, y)
}

define_unary! {
    Abs {} => <S> |x| S::abs(x);
    Neg {} => <S> |x| S::neg(x);
    /// -1, 0 or 1; NaN stays.
    Sign {} => <S> |x| {
        let one = S::select(S::eq(x, S::zero()), x, S::with_sign(S::splat(1.0), x));
        keep_nan::<S>(x, one)
    };
    Floor {} => <S> |x| S::floor(x);
    Ceil {} => <S> |x| S::ceil(x);
    Trunc {} => <S> |x| S::trunc(x);
    /// To the nearest integer, ties to even.
    Round {} => <S> |x| S::round(x);
    Square {} => <S> |x| S::mul(x, x);
    Sqrt {} => <S> |x| S::sqrt(x);
    Rsqrt {} => <S> |x| S::div(S::splat(1.0), S::sqrt(x));
    Recip {} => <S> |x| S::div(S::splat(1.0), x);
    Exp {} => <S> |x| funcs::exp::<S>(x);
    Exp2 {} => <S> |x| funcs::exp2::<S>(x);
    Expm1 {} => <S> |x| funcs::expm1::<S>(x);
    Log {} => <S> |x| funcs::log::<S>(x);
    Log2 {} => <S> |x| funcs::log2::<S>(x);
    Log10 {} => <S> |x| lanewise::<S>(x, f32::log10);
    Log1p {} => <S> |x| funcs::log1p::<S>(x);
    Sin {} => <S> |x| funcs::sin_cos::<S>(x, true);
    Cos {} => <S> |x| funcs::sin_cos::<S>(x, false);
    Tan {} => <S> |x| lanewise::<S>(x, |x| f64::from(x).tan() as f32);
    Asin {} => <S> |x| lanewise::<S>(x, f32::asin);
    Acos {} => <S> |x| lanewise::<S>(x, f32::acos);
    Atan {} => <S> |x| lanewise::<S>(x, f32::atan);
    Sinh {} => <S> |x| lanewise::<S>(x, f32::sinh);
    Cosh {} => <S> |x| lanewise::<S>(x, f32::cosh);
    Asinh {} => <S> |x| lanewise::<S>(x, |x| f64::from(x).asinh() as f32);
    Acosh {} => <S> |x| lanewise::<S>(x, |x| f64::from(x).acosh() as f32);
    Atanh {} => <S> |x| lanewise::<S>(x, |x| f64::from(x).atanh() as f32);
    Tanh {} => <S> |x| funcs::tanh::<S>(x);
    Sigmoid {} => <S> |x| funcs::sigmoid::<S>(x);
    Erf {} => <S> |x| funcs::erf::<S>(x);
    Relu {} => <S> |x| S::max(S::zero(), x);
    /// `x Φ(x)` by erf.
    Gelu {} => <S> |x| funcs::gelu::<S>(x);
    /// The tanh approximation of GELU.
    GeluTanh {} => <S> |x| funcs::gelu_tanh::<S>(x);
    /// `x sigmoid(x)`.
    Silu {} => <S> |x| S::mul(x, funcs::sigmoid::<S>(x));
    /// `x sigmoid(1.702 x)`.
    QuickGelu {} => <S> |x| S::mul(x, funcs::sigmoid::<S>(S::mul(x, S::splat(1.702))));
    Softplus {} => <S> |x| funcs::softplus::<S>(x);
    Softsign {} => <S> |x| S::div(x, S::add(S::splat(1.0), S::abs(x)));
    Mish {} => <S> |x| funcs::mish::<S>(x);
    /// `x clip(x / 6 + 1/2, 0, 1)`.
    HardSwish {} => <S> |x| {
        let gate = S::fma(x, S::splat(1.0 / 6.0), S::splat(0.5));
        S::mul(x, S::min(S::splat(1.0), S::max(S::zero(), gate)))
    };
    /// `clip(alpha x + beta, 0, 1)`.
    HardSigmoid { alpha, beta } => <S> |x| S::min(S::splat(1.0), S::max(S::zero(), S::fma(x, alpha, beta)));
    /// `x` above zero, else `alpha (exp(x) - 1)`.
    Elu { alpha } => <S> |x| S::select(S::lt(S::zero(), x), x, S::mul(alpha, funcs::expm1::<S>(x)));
    /// `gamma (x above zero, else alpha (exp(x) - 1))`.
    Selu { alpha, gamma } => <S> |x| {
        S::mul(gamma, S::select(S::lt(S::zero(), x), x, S::mul(alpha, funcs::expm1::<S>(x))))
    };
    /// `x` above zero, else `alpha (exp(x / alpha) - 1)`.
    Celu { alpha } => <S> |x| {
        S::select(S::lt(S::zero(), x), x, S::mul(alpha, funcs::expm1::<S>(S::div(x, alpha))))
    };
    /// `x` from zero on, else `alpha x`.
    LeakyRelu { alpha } => <S> |x| S::select(S::lt(x, S::zero()), S::mul(alpha, x), x);
    /// `x` above alpha, else 0.
    ThresholdedRelu { alpha } => <S> |x| keep_nan::<S>(x, S::select(S::lt(alpha, x), x, S::zero()));
    /// `min(max(x, lo), hi)`.
    Clip { lo, hi } => <S> |x| S::min(hi, S::max(lo, x));
    /// `scale x + shift`.
    Affine { scale, shift } => <S> |x| S::fma(x, scale, shift);
}

define_binary! {
    Add => <S> |x, y| S::add(x, y);
    Sub => <S> |x, y| S::sub(x, y);
    Mul => <S> |x, y| S::mul(x, y);
    Div => <S> |x, y| S::div(x, y);
    /// NaN when either is.
    Min => <S> |x, y| keep_nan::<S>(x, S::min(x, y));
    /// NaN when either is.
    Max => <S> |x, y| keep_nan::<S>(x, S::max(x, y));
    /// C's `pow`.
    Pow => <S> |x, y| lanewise2::<S>(x, y, funcs::pow1);
    /// The remainder with the sign of x: C's `fmod`.
    Rem => <S> |x, y| lanewise2::<S>(x, y, |x, y| x % y);
    /// The remainder with the sign of y: Python's `%`.
    FloorMod => <S> |x, y| lanewise2::<S>(x, y, |x, y| {
        let r = x % y;
        if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
    });
    /// `x` from zero on, else `y x`.
    PRelu => <S> |x, y| S::select(S::lt(x, S::zero()), S::mul(x, y), x);
    /// `(x - y)²`.
    SquaredDifference => <S> |x, y| S::mul(S::sub(x, y), S::sub(x, y));
    Atan2 => <S> |x, y| lanewise2::<S>(x, y, f32::atan2);
}

simd_dispatch! { unsafe fn run1<F: UnaryOp>(f: F, dst: *mut f32, src: *const f32, n: usize) = run1_body }
simd_dispatch! { unsafe fn run2<F: BinaryOp>(f: F, dst: *mut f32, a: Input, b: Input, n: usize) = run2_body }

#[inline(always)]
unsafe fn run1_body<S: Simd, F: UnaryOp>(f: F, dst: *mut f32, src: *const f32, n: usize) {
    let mut i = 0;
    while i + S::LANES <= n {
        S::store(dst.add(i), f.eval::<S>(S::load(src.add(i))));
        i += S::LANES;
    }
    if i < n {
        S::store_part(dst.add(i), f.eval::<S>(S::load_part(src.add(i), n - i)), n - i);
    }
}

/// The destination loop of two operands, whole vectors and the rest. A macro, not a closure: a closure would be
/// compiled without the level's features.
macro_rules! loop2 {
    ($s:ident, $dst:ident, $n:ident, $f:ident, |$i:ident| $a:expr, $b:expr; |$j:ident, $m:ident| $pa:expr, $pb:expr) => {{
        let mut i = 0;
        while i + $s::LANES <= $n {
            let $i = i;
            $s::store($dst.add(i), $f.eval::<$s>($a, $b));
            i += $s::LANES;
        }
        if i < $n {
            let ($j, $m) = (i, $n - i);
            $s::store_part($dst.add(i), $f.eval::<$s>($pa, $pb), $m);
        }
    }};
}

#[inline(always)]
unsafe fn run2_body<S: Simd, F: BinaryOp>(f: F, dst: *mut f32, a: Input, b: Input, n: usize) {
    match (a, b) {
        (Input::Array(a), Input::Array(b)) => {
            loop2!(S, dst, n, f, |i| S::load(a.add(i)), S::load(b.add(i));
                |i, m| S::load_part(a.add(i), m), S::load_part(b.add(i), m))
        }
        (Input::Array(a), Input::Scalar(b)) => {
            let b = S::splat(b);
            loop2!(S, dst, n, f, |i| S::load(a.add(i)), b; |i, m| S::load_part(a.add(i), m), b)
        }
        (Input::Scalar(a), Input::Array(b)) => {
            let a = S::splat(a);
            loop2!(S, dst, n, f, |i| a, S::load(b.add(i)); |i, m| a, S::load_part(b.add(i), m))
        }
        (Input::Scalar(a), Input::Scalar(b)) => {
            let (a, b) = (S::splat(a), S::splat(b));
            loop2!(S, dst, n, f, |_i| a, b; |_i, m| a, b)
        }
    }
}
