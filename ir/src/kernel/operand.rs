//! The operands of a contraction: what is multiplied, and how it lies in memory.

use serde::{Deserialize, Serialize};

use super::{Expr, ExprId, Exprs, Kernel, ParamId};
use crate::entity::Entity;
use crate::graph::op::BinaryOp;
use crate::types::{DType, Scalar};

/// One side of a contraction, over `batch`, its own rows (`m` or `n`) and `k`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Operand {
    /// The element in the type that goes into the product: this is its meaning.
    pub value: ExprId,
    /// Set where `value` is an element of one parameter, as it is stored, converted or unpacked: neighbours can then be
    /// read as one wide access, in the type in which they are stored.
    pub access: Option<OperandAccess>,
}

/// Where the elements of an operand are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct OperandAccess {
    pub param: ParamId,
    /// The element's offset.
    pub index: ExprId,
    /// Elements for which this is false are `fill` and are not read; `None` where all are read.
    pub guard: Option<ExprId>,
    /// What is not read: 0, or another integer of 8 bits.
    pub fill: i64,
    /// What makes the element of what is stored; `None` where that is the number itself, which one of 8 bits is in
    /// every wider float.
    pub unpacking: Option<Unpacking>,
}

/// Numbers from stored integers or floats of at most 8 bits: `(x − zero) · scale` in f32, then rounded to the operand's
/// element type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Unpacking {
    /// In f32. Neighbours share it where no load in it moves ([`limits::widest_fetch`](super::limits::widest_fetch)
    /// asks that).
    pub scale: ExprId,
    /// In f32, as the scale.
    pub zero: Option<ExprId>,
}

impl Unpacking {
    /// Says whether the zero points are integers of four bits, or none.
    pub fn has_nibble_zero(&self, exprs: &Exprs) -> bool {
        let Some(mut zero) = self.zero else { return true };
        while let Expr::Cast(_, inner) = exprs[zero] {
            zero = inner;
        }
        match &exprs[zero] {
            Expr::Load { .. } => exprs.dtype(zero).is_int() && exprs.dtype(zero).bits() == 4,
            Expr::Const(_, Scalar::Int(number)) => (-8..=15).contains(number),
            Expr::Const(_, Scalar::Float(number)) => number.fract() == 0.0 && (-8.0..=15.0).contains(number),
            _ => false,
        }
    }

    /// Says whether the scales are numbers of a type: converting them to it loses nothing.
    pub fn has_scale_of(&self, exprs: &Exprs, dtype: DType) -> bool {
        match exprs[self.scale] {
            Expr::Cast(_, inner) => exprs.dtype(inner) == dtype,
            _ => exprs.dtype(self.scale) == dtype,
        }
    }
}

impl Operand {
    /// Makes the operand whose element is `value`, a load or a computation.
    pub fn new(exprs: &Exprs, value: ExprId) -> Operand {
        Operand {
            value,
            access: OperandAccess::of(exprs, value),
        }
    }

    /// The type in which the elements go into the product.
    pub fn element(&self, exprs: &Exprs) -> DType {
        exprs.dtype(self.value)
    }

    /// Bits of memory that one element is read from: those of the stored type, where it is an element of one parameter.
    pub fn stored_bits(&self, kernel: &Kernel) -> u32 {
        let stored = self.access.map(|a| kernel.params[a.param].dtype);
        stored.unwrap_or(self.element(&kernel.exprs)).bits()
    }

    /// Says whether the elements go into the product as they lie in memory, with no conversion on the way.
    pub fn is_as_stored(&self, kernel: &Kernel) -> bool {
        self.access
            .is_some_and(|a| a.unpacking.is_none() && kernel.params[a.param].dtype == self.element(&kernel.exprs))
    }

    /// What unpacks the elements, if something does.
    pub fn unpacking(&self) -> Option<Unpacking> {
        self.access?.unpacking
    }

    /// Applies `f` to each expression that the operand names.
    pub fn map_exprs(&mut self, mut f: impl FnMut(&mut ExprId)) {
        f(&mut self.value);
        if let Some(access) = &mut self.access {
            f(&mut access.index);
            if let Some(guard) = &mut access.guard {
                f(guard);
            }
            if let Some(unpacking) = &mut access.unpacking {
                f(&mut unpacking.scale);
                unpacking.zero.iter_mut().for_each(f);
            }
        }
    }
}

impl OperandAccess {
    /// Reads the access off a load, off a load that a condition guards with 0, off the conversion of 8 bits, or off
    /// what [`Unpacking`] makes of a load; `None` for what is computed otherwise.
    pub fn of(exprs: &Exprs, value: ExprId) -> Option<OperandAccess> {
        if let Some(load) = converted(exprs, value) {
            return OperandAccess::of(exprs, load);
        }
        match exprs[value] {
            Expr::Load { param, index } => Some(OperandAccess {
                param,
                index,
                guard: None,
                fill: 0,
                unpacking: None,
            }),
            Expr::Select(guard, then, other) => {
                let then = converted(exprs, then).unwrap_or(then);
                let Expr::Load { param, index } = exprs[then] else {
                    return None;
                };
                let Expr::Const(dtype, fill) = &exprs[other] else {
                    return None;
                };
                let fill = match *fill {
                    // The positive zero alone: it is what clearing registers gives.
                    Scalar::Float(v) => (v.to_bits() == 0).then_some(0),
                    Scalar::Int(v) if v == 0 || *dtype == DType::I8 => Some(v),
                    other => (other == Scalar::zero(*dtype)).then_some(0),
                };
                fill.map(|fill| OperandAccess {
                    param,
                    index,
                    guard: Some(guard),
                    fill,
                    unpacking: None,
                })
            }
            _ => OperandAccess::unpacked(exprs, value),
        }
    }

    /// The access of `(x − zero) · scale`, rounded or not.
    fn unpacked(exprs: &Exprs, value: ExprId) -> Option<OperandAccess> {
        let product = match exprs[value] {
            Expr::Cast(DType::F16 | DType::BF16, product) => product,
            _ => value,
        };
        let Expr::Binary(BinaryOp::Mul, difference, scale) = exprs[product] else {
            return None;
        };
        if exprs.dtype(product) != DType::F32 {
            return None;
        }
        let (number, zero) = match exprs[difference] {
            Expr::Binary(BinaryOp::Sub, number, zero) => (number, Some(zero)),
            _ => (difference, None),
        };
        let Expr::Cast(DType::F32, mut stored) = exprs[number] else {
            return None;
        };
        // Elements of four bits are computed with in eight.
        if let Expr::Cast(DType::I8 | DType::U8, inner) = exprs[stored]
            && exprs.dtype(inner).bits() == 4
        {
            stored = inner;
        }
        let Expr::Load { param, index } = exprs[stored] else {
            return None;
        };
        let stored = exprs.dtype(stored);
        let packed = matches!(stored, DType::I4 | DType::U4 | DType::I8 | DType::U8) || stored.is_f8();
        packed.then_some(OperandAccess {
            param,
            index,
            guard: None,
            fill: 0,
            unpacking: Some(Unpacking { scale, zero }),
        })
    }
}

/// The load of 8 bits that a value is in another type: every wider float has all of their numbers.
fn converted(exprs: &Exprs, value: ExprId) -> Option<ExprId> {
    let Expr::Cast(DType::F16 | DType::BF16 | DType::F32, mut inner) = exprs[value] else {
        return None;
    };
    if let Expr::Cast(DType::F32, stored) = exprs[inner] {
        inner = stored;
    }
    let is_load = matches!(exprs[inner], Expr::Load { .. });
    (is_load && exprs.dtype(inner).is_byte_number()).then_some(inner)
}

impl Exprs {
    /// Says whether an id is of this table.
    pub fn has(&self, id: ExprId) -> bool {
        id.index() < self.len()
    }
}
