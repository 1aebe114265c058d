//! The operands of a contraction: what is multiplied, and how it lies in memory.

use serde::{Deserialize, Serialize};

use super::{Expr, ExprId, Exprs, ParamId};
use crate::entity::Entity;
use crate::types::{DType, Scalar};

/// One side of a contraction, over `batch`, its own rows (`m` or `n`) and `k`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Operand {
    /// The element in the type that goes into the product: this is its meaning.
    pub value: ExprId,
    /// Set where `value` is an element of one parameter: neighbours can then be read as one wide access, in the type in which
    /// they are stored.
    pub access: Option<OperandAccess>,
}

/// Where the elements of an operand are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct OperandAccess {
    pub param: ParamId,
    /// The element's offset.
    pub index: ExprId,
    /// Elements for which this is false are 0 and are not read; `None` where all are read.
    pub guard: Option<ExprId>,
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

    /// Applies `f` to each expression that the operand names.
    pub fn map_exprs(&mut self, mut f: impl FnMut(&mut ExprId)) {
        f(&mut self.value);
        if let Some(access) = &mut self.access {
            f(&mut access.index);
            if let Some(guard) = &mut access.guard {
                f(guard);
            }
        }
    }
}

impl OperandAccess {
    /// Reads the access off a load, or off a load that a condition guards with 0; `None` for what is computed.
    pub fn of(exprs: &Exprs, value: ExprId) -> Option<OperandAccess> {
        match exprs[value] {
            Expr::Load { param, index } => Some(OperandAccess {
                param,
                index,
                guard: None,
            }),
            Expr::Select(guard, then, other) => {
                let Expr::Load { param, index } = exprs[then] else {
                    return None;
                };
                let Expr::Const(dtype, fill) = &exprs[other] else {
                    return None;
                };
                // The positive zero alone: it is what clearing registers gives.
                let is_zero = match fill {
                    Scalar::Float(v) => v.to_bits() == 0,
                    other => *other == Scalar::zero(*dtype),
                };
                is_zero.then_some(OperandAccess {
                    param,
                    index,
                    guard: Some(guard),
                })
            }
            _ => None,
        }
    }
}

impl Exprs {
    /// Says whether an id is of this table.
    pub fn has(&self, id: ExprId) -> bool {
        id.index() < self.len()
    }
}
