//! Recognises weights whose dequantisation is spelled out.
//!
//! ```text
//! mul (cast w), s              becomes     dequantize w, s        w: i8[k, n], s: f32[1, n]
//! mul (sub (cast w), z), s     becomes     dequantize w, s, z
//! ```
//!
//! Exporters that have no `DequantizeLinear` write weights so. Kernels then read the integers, as those of
//! `DequantizeLinear`. Both forms round once: integers of 8 bits and their differences are exact in each float type.
//!
//! Before: any graph. After: the same numbers. Where no product reads them, `decompose` spells them out again.

use ir::op::{BinaryOp, Composite, Elementwise, View};
use ir::{DType, Dim, HostTensor, Op, Shape, Value};

use crate::error::PassFault;
use crate::rewrite::{Builder, Rule};
use crate::runner::Pass;

const NAME: &str = "spelled_weights";

const RULE: Rule = Rule {
    name: "dequantize_spelled_out",
    apply: dequantize,
};

/// The pass.
pub const PASS: Pass = Pass {
    name: NAME,
    run: |graph, context| {
        let rule = context.options.enabled(RULE.name).then_some(RULE);
        let mut builder = Builder::new(graph, NAME).with_rules(rule, context.options);
        builder.copy_rest()?;
        Ok(builder.finish(&mut context.fired))
    },
    required: false,
};

fn dequantize(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    if !matches!(op, Op::Elementwise(Elementwise::Binary(BinaryOp::Mul))) {
        return Ok(None);
    }
    for (weight, scale) in [(x[0], x[1]), (x[1], x[0])] {
        if let Some(spelled) = Spelled::of(b, weight, scale) {
            return spelled.emit(b).map(Some);
        }
    }
    Ok(None)
}

/// A constant of integers, whose numbers less the zero points are multiplied by the scales.
struct Spelled {
    stored: Value,
    /// In the type of the constant.
    zero: Option<HostTensor>,
    scale: Value,
    out: DType,
}

impl Spelled {
    fn of(b: &Builder<'_>, weight: Value, scale: Value) -> Option<Spelled> {
        let out = b.ty(weight).dtype;
        let (cast, zero) = match b.def(weight) {
            (Op::Elementwise(Elementwise::Binary(BinaryOp::Sub)), [cast, zero]) => (*cast, Some(*zero)),
            _ => (weight, None),
        };
        let (Op::Elementwise(Elementwise::Cast(to)), [stored]) = b.def(cast) else {
            return None;
        };
        let (stored, ty) = (*stored, b.ty(*stored));
        let is_weight = b.as_constant(stored).is_some() && ty.dtype.bits() <= 8 && ty.dtype.is_int();
        let is_float = *to == out && matches!(out, DType::F32 | DType::F16 | DType::BF16);
        let spreads = |v: Value| b.as_constant(v).is_some() && spreads_over(&b.ty(v).shape, &ty.shape);
        if !is_weight || !is_float || !spreads(scale) || !zero.is_none_or(spreads) {
            return None;
        }
        let zero = match zero {
            Some(zero) => Some(whole(b.as_constant(zero)?, ty.dtype)?),
            None => None,
        };
        Some(Spelled {
            stored,
            zero,
            scale,
            out,
        })
    }

    fn emit(self, b: &mut Builder<'_>) -> Result<Value, PassFault> {
        let rank = b.ty(self.stored).rank();
        let zero = self.zero.map(|zeros| b.constant(zeros));
        let mut operands = vec![self.stored];
        for value in [Some(self.scale), zero].into_iter().flatten() {
            let mut dims = b.ty(value).shape.0.clone();
            let missing = rank - dims.len();
            dims.splice(0..0, std::iter::repeat_n(Dim::Const(1), missing));
            operands.push(match missing {
                0 => value,
                _ => b.emit(Op::View(View::Reshape(Shape(dims))), &[value])?,
            });
        }
        let (groups, out) = (None, self.out);
        b.emit(Op::Composite(Composite::Dequantize { groups, out }), &operands)
    }
}

/// Numbers as integers of a type; None where one is none of its numbers.
fn whole(numbers: &HostTensor, dtype: DType) -> Option<HostTensor> {
    let (values, (low, high)) = (numbers.to_f64(), dtype.int_range()?);
    let is_one = |v: &f64| v.fract() == 0.0 && (low as f64..=high as f64).contains(v);
    values.iter().all(is_one).then_some(())?;
    HostTensor::from_f64(dtype, numbers.shape.clone(), &values).ok()
}

/// Says whether each size from the last one on is 1 or the other shape's, which has as many or more.
fn spreads_over(small: &Shape, large: &Shape) -> bool {
    let pairs = small.iter().rev().zip(large.iter().rev());
    small.rank() <= large.rank() && pairs.into_iter().all(|(a, b)| a.is(1) || a == b)
}
