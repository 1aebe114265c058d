//! `+ - * / % -x` between tensors, references to them, and numbers. `%` has the sign of the dividend, as in Rust.

use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

use ir::Op;
use ir::graph::op::{BinaryOp, UnaryOp};

use super::{Operand, Tensor};

#[track_caller]
fn left(op: BinaryOp, a: &Tensor, b: impl Into<Operand>) -> Tensor {
    let b = b.into().tensor(op.name(), a);
    Tensor::op(Op::binary(op), &[a, &b])
}

#[track_caller]
fn right(op: BinaryOp, a: impl Into<Operand>, b: &Tensor) -> Tensor {
    let a = a.into().tensor(op.name(), b);
    Tensor::op(Op::binary(op), &[&a, b])
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident),+ $(,)?) => {$(
        impl<R: Into<Operand>> $trait<R> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, rhs: R) -> Tensor {
                left(BinaryOp::$op, self, rhs)
            }
        }
        impl<R: Into<Operand>> $trait<R> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, rhs: R) -> Tensor {
                left(BinaryOp::$op, &self, rhs)
            }
        }
        operators!(@number $trait $method $op f32 f64 i32 i64);
    )+};
    (@number $trait:ident $method:ident $op:ident $($number:ty)+) => {$(
        impl $trait<&Tensor> for $number {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, rhs: &Tensor) -> Tensor {
                right(BinaryOp::$op, self, rhs)
            }
        }
        impl $trait<Tensor> for $number {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, rhs: Tensor) -> Tensor {
                right(BinaryOp::$op, self, &rhs)
            }
        }
    )+};
}

operators! {
    Add add Add,
    Sub sub Sub,
    Mul mul Mul,
    Div div Div,
    Rem rem Rem,
}

impl Neg for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        Tensor::op(Op::unary(UnaryOp::Neg), &[self])
    }
}
impl Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        Tensor::op(Op::unary(UnaryOp::Neg), &[&self])
    }
}
