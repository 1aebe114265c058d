//! Elementwise functions over blocks of f32: the inner loops of the block interpreter.
//!
//! Errors are at most 2 ulp for exp, log, tanh, sigmoid, erf and the like at the levels with FMA (4 at the portable
//! level); the tests hold them to that. Slices of one call have one length, else the call panics.

pub(crate) mod funcs;
mod ops;

pub use ops::{Binary, Input, Unary, binary_ptr, unary_ptr};

use super::isa::Isa;

/// `dst[i] = op(src[i])`.
pub fn unary(isa: Isa, op: Unary, dst: &mut [f32], src: &[f32]) {
    assert_eq!(dst.len(), src.len());
    // SAFETY: slices of equal length.
    unsafe { unary_ptr(isa, op, dst.as_mut_ptr(), src.as_ptr(), dst.len()) }
}

/// `x[i] = op(x[i])`.
pub fn unary_inplace(isa: Isa, op: Unary, x: &mut [f32]) {
    // SAFETY: one slice, in place.
    unsafe { unary_ptr(isa, op, x.as_mut_ptr(), x.as_ptr(), x.len()) }
}

/// An operand of [`binary`] and [`select`].
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    Slice(&'a [f32]),
    Scalar(f32),
}

impl Operand<'_> {
    fn input(self, n: usize) -> Input {
        match self {
            Operand::Slice(s) => {
                assert_eq!(s.len(), n);
                Input::Array(s.as_ptr())
            }
            Operand::Scalar(x) => Input::Scalar(x),
        }
    }
}

/// `dst[i] = op(a[i], b[i])`.
pub fn binary(isa: Isa, op: Binary, dst: &mut [f32], a: Operand<'_>, b: Operand<'_>) {
    let n = dst.len();
    let (a, b) = (a.input(n), b.input(n));
    // SAFETY: lengths were checked.
    unsafe { binary_ptr(isa, op, dst.as_mut_ptr(), a, b, n) }
}

/// `dst[i] = op(dst[i], b[i])`.
pub fn binary_inplace(isa: Isa, op: Binary, dst: &mut [f32], b: Operand<'_>) {
    let n = dst.len();
    let b = b.input(n);
    let ptr = dst.as_mut_ptr();
    // SAFETY: lengths were checked; the first operand is the destination itself.
    unsafe { binary_ptr(isa, op, ptr, Input::Array(ptr), b, n) }
}

/// A comparison; false when either side is NaN, except `Ne`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// `dst[i] = a[i] op b[i]` as 0 or 1.
pub fn compare(op: Compare, dst: &mut [u8], a: Operand<'_>, b: Operand<'_>) {
    fn go(dst: &mut [u8], a: Operand<'_>, b: Operand<'_>, f: impl Fn(f32, f32) -> bool) {
        match (a, b) {
            (Operand::Slice(a), Operand::Slice(b)) => {
                assert!(a.len() == dst.len() && b.len() == dst.len());
                for ((d, a), b) in dst.iter_mut().zip(a).zip(b) {
                    *d = u8::from(f(*a, *b));
                }
            }
            (Operand::Slice(a), Operand::Scalar(b)) => {
                assert_eq!(a.len(), dst.len());
                for (d, a) in dst.iter_mut().zip(a) {
                    *d = u8::from(f(*a, b));
                }
            }
            (Operand::Scalar(a), Operand::Slice(b)) => {
                assert_eq!(b.len(), dst.len());
                for (d, b) in dst.iter_mut().zip(b) {
                    *d = u8::from(f(a, *b));
                }
            }
            (Operand::Scalar(a), Operand::Scalar(b)) => dst.fill(u8::from(f(a, b))),
        }
    }
    match op {
        Compare::Eq => go(dst, a, b, |a, b| a == b),
        Compare::Ne => go(dst, a, b, |a, b| a != b),
        Compare::Lt => go(dst, a, b, |a, b| a < b),
        Compare::Le => go(dst, a, b, |a, b| a <= b),
        Compare::Gt => go(dst, a, b, |a, b| a > b),
        Compare::Ge => go(dst, a, b, |a, b| a >= b),
    }
}

/// `dst[i] = if mask[i] != 0 { a[i] } else { b[i] }`.
pub fn select(dst: &mut [f32], mask: &[u8], a: Operand<'_>, b: Operand<'_>) {
    let n = dst.len();
    assert_eq!(mask.len(), n);
    if let Operand::Slice(a) = a {
        assert_eq!(a.len(), n);
    }
    if let Operand::Slice(b) = b {
        assert_eq!(b.len(), n);
    }
    let at = |operand: Operand<'_>, i: usize| match operand {
        Operand::Slice(s) => s[i],
        Operand::Scalar(x) => x,
    };
    for (i, (d, m)) in dst.iter_mut().zip(mask).enumerate() {
        *d = if *m != 0 { at(a, i) } else { at(b, i) };
    }
}

macro_rules! slice_functions {
    ($($name:ident $inplace:ident $op:ident;)*) => {
        $(
            #[doc = concat!("`dst[i] = ", stringify!($name), "(src[i])` at the processor's best level.")]
            pub fn $name(dst: &mut [f32], src: &[f32]) {
                unary(Isa::detect(), Unary::$op {}, dst, src)
            }

            #[doc = concat!("`x[i] = ", stringify!($name), "(x[i])` at the processor's best level.")]
            pub fn $inplace(x: &mut [f32]) {
                unary_inplace(Isa::detect(), Unary::$op {}, x)
            }
        )*
    };
}

slice_functions! {
    abs abs_inplace Abs;
    neg neg_inplace Neg;
    sign sign_inplace Sign;
    floor floor_inplace Floor;
    ceil ceil_inplace Ceil;
    trunc trunc_inplace Trunc;
    round round_inplace Round;
    sqrt sqrt_inplace Sqrt;
    rsqrt rsqrt_inplace Rsqrt;
    recip recip_inplace Recip;
    exp exp_inplace Exp;
    exp2 exp2_inplace Exp2;
    expm1 expm1_inplace Expm1;
    log log_inplace Log;
    log2 log2_inplace Log2;
    log10 log10_inplace Log10;
    log1p log1p_inplace Log1p;
    sin sin_inplace Sin;
    cos cos_inplace Cos;
    tan tan_inplace Tan;
    tanh tanh_inplace Tanh;
    sigmoid sigmoid_inplace Sigmoid;
    erf erf_inplace Erf;
    relu relu_inplace Relu;
    gelu gelu_inplace Gelu;
    gelu_tanh gelu_tanh_inplace GeluTanh;
    silu silu_inplace Silu;
    softplus softplus_inplace Softplus;
    softsign softsign_inplace Softsign;
    mish mish_inplace Mish;
    hard_swish hard_swish_inplace HardSwish;
}
