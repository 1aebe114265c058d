//! Padding of images whose zero point the run gives.
//!
//! ```text
//! conv {pad} (quantize x, s, z) - z      becomes      conv (quantize (pad x, 0), s, z) - z
//! ```
//!
//! A convolution's padding is a constant; 0 quantised is the zero point, whatever that is.

use ir::op::{BinaryOp, Composite, Elementwise, PadMode, View, Window};
use ir::{DType, Dim, Op, Scalar, Value};

use super::integers::{Activations, Zero};
use super::signed::shifted_zero;
use crate::error::PassFault;
use crate::rewrite::Builder;

/// Returns the image in `i8`, padded as the window says along the axes from `first` on; `None` where the image is not
/// quantised by the zero point that is taken from it.
pub(super) fn before_quantising(
    b: &mut Builder<'_>,
    x: &Activations,
    window: &Window,
    first: usize,
) -> Result<Option<Value>, PassFault> {
    let (Zero::Given(given, less), true) = (x.zero, x.views.is_empty()) else {
        return Ok(None);
    };
    let (op, operands) = b.def(x.stored);
    let Op::Composite(Composite::Quantize { out }) = op else {
        return Ok(None);
    };
    let (out, &[value, scale, zero]) = (*out, operands) else {
        return Ok(None);
    };
    let float = b.ty(value).dtype;
    if !float.is_float() || number(b, zero, 0) != number(b, given, less) {
        return Ok(None);
    }
    let rank = b.ty(value).rank();
    let side = |pads: &[i64]| -> Vec<Dim> {
        let mut all = vec![Dim::Const(0); rank];
        for (axis, pad) in pads.iter().enumerate() {
            all[first + axis] = Dim::Const(*pad);
        }
        all
    };
    let pad = View::Pad {
        low: side(&window.pad_low),
        high: side(&window.pad_high),
        mode: PadMode::Constant(Scalar::zero(float)),
    };
    let padded = b.emit(Op::View(pad), &[value])?;
    let zero = match out {
        DType::U8 => shifted_zero(b, padded, Some(zero))?,
        _ => zero,
    };
    let quantise = Op::Composite(Composite::Quantize { out: DType::I8 });
    b.emit(quantise, &[padded, scale, zero]).map(Some)
}

/// The value that a number, less `less`, comes from, and what it has less than that: neither its shape nor a wider type
/// changes it.
fn number(b: &Builder<'_>, mut value: Value, mut less: i64) -> (Value, i64) {
    loop {
        let (op, operands) = b.def(value);
        let of = |v: Value| b.ty(v).dtype;
        value = match op {
            Op::View(View::Reshape(_)) => operands[0],
            Op::Elementwise(Elementwise::Cast(to)) => match of(operands[0]).int_range().zip(to.int_range()) {
                Some(((low, high), (least, most))) if least <= low && high <= most => operands[0],
                _ => return (value, less),
            },
            Op::Elementwise(Elementwise::Binary(BinaryOp::Sub)) if of(value) == DType::I32 => {
                match b.as_scalar(operands[1]) {
                    Some(by) if of(operands[0]) == DType::I32 => {
                        less += by.as_i64();
                        operands[0]
                    }
                    _ => return (value, less),
                }
            }
            _ => return (value, less),
        };
    }
}
