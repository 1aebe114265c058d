//! The vector form of each elementwise op of f32, and the loops that run them over blocks.
//!
//! A block interpreter resolves an op once a block (256-1024 values in L1): a `match` and one direct call.
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "loops under the contract of the functions that dispatch to them"
)]

use ir::op::{BinaryOp, Comparison, UnaryOp};

use super::funcs;
use crate::cpu::kernels::isa::Isa;
use crate::cpu::kernels::simd::{Simd, simd_dispatch};

trait Unary: Copy {
    unsafe fn eval<S: Simd>(self, x: S::V) -> S::V;
}

trait Binary: Copy {
    unsafe fn eval<S: Simd>(self, x: S::V, y: S::V) -> S::V;
}

macro_rules! unary_functions {
    (truths { $($truth:ident => |$t:ident| $holds:expr;)* } $($name:ident => <$s:ident> |$x:ident| $body:expr;)*) => {
        $(
            #[derive(Clone, Copy)]
            struct $name;

            impl Unary for $name {
                #[inline(always)]
                unsafe fn eval<$s: Simd>(self, $x: $s::V) -> $s::V {
                    $body
                }
            }
        )*

        /// `dst[i] = op(src[i])` for `n` values; `dst` may be `src`. Predicates give bytes of 0 or 1.
        ///
        /// # Safety
        /// `src` is valid for `n` floats, and `dst` for as many results of the op; they are the same, or do not
        /// overlap.
        pub unsafe fn unary_ptr(isa: Isa, op: UnaryOp, dst: *mut u8, src: *const f32, n: usize) {
            match op {
                $(UnaryOp::$name => run1(isa, $name, dst.cast(), src, n),)*
                $(UnaryOp::$truth => (0..n).for_each(|i| {
                    let $t = src.add(i).read();
                    dst.add(i).write(u8::from($holds));
                }),)*
            }
        }

        /// `x = op(x)` of `rows` rows of `cols` values, `stride` apart. Predicates change nothing.
        ///
        /// # Safety
        /// The rows are valid for reading and writing.
        pub unsafe fn unary_rows(isa: Isa, op: UnaryOp, x: *mut f32, [rows, cols, stride]: [usize; 3]) {
            match op {
                $(UnaryOp::$name => rows1(isa, $name, x, rows, cols, stride),)*
                $(UnaryOp::$truth => {})*
            }
        }
    };
}

macro_rules! binary_functions {
    (comparisons { $($order:ident)* } $($name:ident => <$s:ident> |$x:ident, $y:ident| $body:expr;)*) => {
        $(
            #[derive(Clone, Copy)]
            struct $name;

            impl Binary for $name {
                #[inline(always)]
                unsafe fn eval<$s: Simd>(self, $x: $s::V, $y: $s::V) -> $s::V {
                    $body
                }
            }
        )*

        /// `dst[i] = op(a[i], b[i])` for `n` values, where a scalar operand gives its one value each time. Comparisons
        /// give bytes of 0 or 1.
        ///
        /// # Safety
        /// `dst` is valid for `n` results of the op, and every array operand for `n` floats; an operand is `dst` itself
        /// or does not overlap it.
        pub unsafe fn binary_ptr(isa: Isa, op: BinaryOp, dst: *mut u8, a: Input, b: Input, n: usize) {
            match op {
                $(BinaryOp::$name => run2(isa, $name, dst.cast(), a, b, n),)*
                $(BinaryOp::$order => compare_ptr(Comparison::$order, dst, a, b, n),)*
            }
        }
    };
}

/// An operand of an elementwise operation.
#[derive(Clone, Copy, Debug)]
pub enum Input<T = f32> {
    /// One value per element.
    Array(*const T),
    /// One value for all.
    Scalar(T),
}

/// `dst[i] = a[i] op b[i]` for `n` values, as bytes of 0 or 1.
///
/// # Safety
/// `dst` is valid for `n` bytes, and every array operand for `n` values; none overlaps it.
pub unsafe fn compare_ptr<T: Copy + PartialOrd>(op: Comparison, dst: *mut u8, a: Input<T>, b: Input<T>, n: usize) {
    match op {
        Comparison::Eq => truths(dst, a, b, n, |x, y| x == y),
        Comparison::Ne => truths(dst, a, b, n, |x, y| x != y),
        Comparison::Lt => truths(dst, a, b, n, |x, y| x < y),
        Comparison::Le => truths(dst, a, b, n, |x, y| x <= y),
        Comparison::Gt => truths(dst, a, b, n, |x, y| x > y),
        Comparison::Ge => truths(dst, a, b, n, |x, y| x >= y),
    }
}

#[inline(always)]
unsafe fn truths<T: Copy>(dst: *mut u8, a: Input<T>, b: Input<T>, n: usize, holds: impl Fn(T, T) -> bool) {
    let put = |i: usize, x: T, y: T| dst.add(i).write(u8::from(holds(x, y)));
    match (a, b) {
        (Input::Array(a), Input::Array(b)) => (0..n).for_each(|i| put(i, a.add(i).read(), b.add(i).read())),
        (Input::Array(a), Input::Scalar(y)) => (0..n).for_each(|i| put(i, a.add(i).read(), y)),
        (Input::Scalar(x), Input::Array(b)) => (0..n).for_each(|i| put(i, x, b.add(i).read())),
        (Input::Scalar(x), Input::Scalar(y)) => (0..n).for_each(|i| put(i, x, y)),
    }
}

#[inline(always)]
fn by_definition(op: BinaryOp) -> impl Fn(f32, f32) -> f32 {
    move |x, y| op.on_floats(x.into(), y.into()) as f32
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

unary_functions! {
    truths {
        IsNan => |x| x.is_nan();
        IsInf => |x| x.is_infinite();
    }
    Abs => <S> |x| S::abs(x);
    Neg => <S> |x| S::neg(x);
    Sign => <S> |x| {
        let one = S::select(S::eq(x, S::zero()), x, S::with_sign(S::splat(1.0), x));
        keep_nan::<S>(x, one)
    };
    Floor => <S> |x| S::floor(x);
    Ceil => <S> |x| S::ceil(x);
    Trunc => <S> |x| S::trunc(x);
    Round => <S> |x| S::round(x);
    Sqrt => <S> |x| S::sqrt(x);
    Rsqrt => <S> |x| S::div(S::splat(1.0), S::sqrt(x));
    Recip => <S> |x| S::div(S::splat(1.0), x);
    Exp => <S> |x| funcs::exp::<S>(x);
    Exp2 => <S> |x| funcs::exp2::<S>(x);
    Expm1 => <S> |x| funcs::expm1::<S>(x);
    Log => <S> |x| funcs::log::<S>(x);
    Log2 => <S> |x| funcs::log2::<S>(x);
    Log1p => <S> |x| funcs::log1p::<S>(x);
    Sin => <S> |x| funcs::sin_cos::<S>(x, true);
    Cos => <S> |x| funcs::sin_cos::<S>(x, false);
    Tan => <S> |x| lanewise::<S>(x, |x| f64::from(x).tan() as f32);
    Asin => <S> |x| lanewise::<S>(x, f32::asin);
    Acos => <S> |x| lanewise::<S>(x, f32::acos);
    Atan => <S> |x| lanewise::<S>(x, f32::atan);
    Sinh => <S> |x| lanewise::<S>(x, f32::sinh);
    Cosh => <S> |x| lanewise::<S>(x, f32::cosh);
    Asinh => <S> |x| lanewise::<S>(x, |x| f64::from(x).asinh() as f32);
    Acosh => <S> |x| lanewise::<S>(x, |x| f64::from(x).acosh() as f32);
    Atanh => <S> |x| lanewise::<S>(x, |x| f64::from(x).atanh() as f32);
    Tanh => <S> |x| funcs::tanh::<S>(x);
    Sigmoid => <S> |x| funcs::sigmoid::<S>(x);
    Erf => <S> |x| funcs::erf::<S>(x);
    Relu => <S> |x| S::max(S::zero(), x);
    Gelu => <S> |x| funcs::gelu::<S>(x);
    GeluTanh => <S> |x| funcs::gelu_tanh::<S>(x);
    Silu => <S> |x| S::mul(x, funcs::sigmoid::<S>(x));
    Softplus => <S> |x| funcs::softplus::<S>(x);
    Mish => <S> |x| funcs::mish::<S>(x);
    // `x clip(x / 6 + 1/2, 0, 1)`.
    HardSwish => <S> |x| {
        let gate = S::fma(x, S::splat(1.0 / 6.0), S::splat(0.5));
        S::mul(x, S::min(S::splat(1.0), S::max(S::zero(), gate)))
    };
    Not => <S> |x| S::select(S::eq(x, S::zero()), S::splat(1.0), S::zero());
}

binary_functions! {
    comparisons { Eq Ne Lt Le Gt Ge }
    Add => <S> |x, y| S::add(x, y);
    Sub => <S> |x, y| S::sub(x, y);
    Mul => <S> |x, y| S::mul(x, y);
    Div => <S> |x, y| S::div(x, y);
    Min => <S> |x, y| keep_nan::<S>(x, S::min(x, y));
    Max => <S> |x, y| keep_nan::<S>(x, S::max(x, y));
    Pow => <S> |x, y| lanewise2::<S>(x, y, funcs::pow1);
    Rem => <S> |x, y| lanewise2::<S>(x, y, |x, y| x % y);
    Mod => <S> |x, y| lanewise2::<S>(x, y, |x, y| {
        let r = x % y;
        if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
    });
    Atan2 => <S> |x, y| lanewise2::<S>(x, y, f32::atan2);
    // No graph has these of floats.
    And => <S> |x, y| lanewise2::<S>(x, y, by_definition(BinaryOp::And));
    Or => <S> |x, y| lanewise2::<S>(x, y, by_definition(BinaryOp::Or));
    Xor => <S> |x, y| lanewise2::<S>(x, y, by_definition(BinaryOp::Xor));
    Shl => <S> |x, y| lanewise2::<S>(x, y, by_definition(BinaryOp::Shl));
    Shr => <S> |x, y| lanewise2::<S>(x, y, by_definition(BinaryOp::Shr));
}

simd_dispatch! { unsafe fn run1<F: Unary>(f: F, dst: *mut f32, src: *const f32, n: usize) = run1_body }
simd_dispatch! {
    unsafe fn rows1<F: Unary>(f: F, x: *mut f32, rows: usize, cols: usize, stride: usize) = rows1_body
}
simd_dispatch! { unsafe fn run2<F: Binary>(f: F, dst: *mut f32, a: Input, b: Input, n: usize) = run2_body }

#[inline(always)]
unsafe fn run1_body<S: Simd, F: Unary>(f: F, dst: *mut f32, src: *const f32, n: usize) {
    let mut i = 0;
    while i + S::LANES <= n {
        S::store(dst.add(i), f.eval::<S>(S::load(src.add(i))));
        i += S::LANES;
    }
    if i < n {
        S::store_part(dst.add(i), f.eval::<S>(S::load_part(src.add(i), n - i)), n - i);
    }
}

#[inline(always)]
unsafe fn rows1_body<S: Simd, F: Unary>(f: F, x: *mut f32, rows: usize, cols: usize, stride: usize) {
    for row in 0..rows {
        let x = x.add(row * stride);
        run1_body::<S, F>(f, x, x, cols);
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
unsafe fn run2_body<S: Simd, F: Binary>(f: F, dst: *mut f32, a: Input, b: Input, n: usize) {
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
