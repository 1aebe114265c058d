//! Unsigned quantised tensors as signed ones: `u8` is `i8 + 128`, with a zero point that is 128 less.
//!
//! Matrix instructions multiply signed integers. A tensor that is quantised to `u8` is quantised to `i8` as well
//! ([`Signed::made`]), and so is what views and maxima make of it; where nothing asks for the unsigned form any more,
//! it is swept.

use std::collections::HashMap;

use ir::op::{BinaryOp, Composite, Elementwise, PadMode, PoolKind, View};
use ir::{DType, Dim, HostTensor, NodeId, Op, Scalar, Storage, Value};

use crate::error::PassFault;
use crate::rewrite::Builder;

/// What an unsigned integer has more than the signed one.
pub(super) const SHIFT: i64 = 128;

/// The signed forms of unsigned values, both of the new graph.
#[derive(Default)]
pub(super) struct Signed {
    forms: HashMap<Value, Value>,
}

impl Signed {
    /// The signed form of an unsigned value, made by arithmetic where nothing is known of it.
    pub fn of(&mut self, b: &mut Builder<'_>, value: Value) -> Result<Value, PassFault> {
        if let Some(form) = self.forms.get(&value) {
            return Ok(*form);
        }
        let form = if let Some(tensor) = b.as_constant(value) {
            let bytes: Vec<u8> = tensor.bytes.iter().map(|v| v ^ SHIFT as u8).collect();
            match HostTensor::new(DType::I8, tensor.shape.clone(), Storage::new(bytes)) {
                Ok(tensor) => Some(b.constant(tensor)),
                Err(_) => None,
            }
        } else {
            None
        };
        let form = match form {
            Some(form) => form,
            None => {
                let wide = b.emit(Op::cast(DType::I32), &[value])?;
                let shift = b.scalar(DType::I32, SHIFT as f64);
                let less = b.emit(Op::binary(BinaryOp::Sub), &[wide, shift])?;
                b.emit(Op::cast(DType::I8), &[less])?
            }
        };
        self.forms.insert(value, form);
        Ok(form)
    }

    /// Copies a node whose numbers, read from the signed form, are the same; says no where that is not so.
    pub fn read(&mut self, b: &mut Builder<'_>, id: NodeId) -> Result<bool, PassFault> {
        let node = b.old.node(id);
        let operands: Vec<Value> = node.operands.iter().map(|v| b.value(*v)).collect();
        let Some(form) = operands.first().and_then(|v| self.forms.get(v)).copied() else {
            return Ok(false);
        };
        let value = match &node.op {
            Op::Composite(Composite::Dequantize { groups: None, .. }) => {
                let zero = shifted_zero(b, form, operands.get(2).copied())?;
                b.emit(node.op.clone(), &[form, operands[1], zero])?
            }
            Op::Elementwise(Elementwise::Cast(
                to @ (DType::I16 | DType::I32 | DType::I64 | DType::F32 | DType::F64),
            )) => {
                let wide = b.emit(Op::cast(*to), &[form])?;
                let shift = b.scalar(*to, SHIFT as f64);
                b.emit(Op::binary(BinaryOp::Add), &[wide, shift])?
            }
            _ => return Ok(false),
        };
        b.set(id, value);
        Ok(true)
    }

    /// Gives a copied node's value a signed form, where it is unsigned and has one at no cost.
    pub fn made(&mut self, b: &mut Builder<'_>, id: NodeId) -> Result<(), PassFault> {
        let node = b.old.node(id);
        if node.results.len() != 1 || node.results[0].dtype != DType::U8 {
            return Ok(());
        }
        let operands: Vec<Value> = node.operands.iter().map(|v| b.value(*v)).collect();
        let form = match &node.op {
            Op::Composite(Composite::Quantize { .. }) => {
                let zero = shifted_zero(b, operands[0], operands.get(2).copied())?;
                b.emit(
                    Op::Composite(Composite::Quantize { out: DType::I8 }),
                    &[operands[0], operands[1], zero],
                )?
            }
            op => {
                let forms: Option<Vec<Value>> = operands.iter().map(|v| self.forms.get(v).copied()).collect();
                let op = match op {
                    Op::View(View::Pad { low, high, mode }) => Op::View(View::Pad {
                        low: low.clone(),
                        high: high.clone(),
                        mode: match mode {
                            PadMode::Constant(fill) => PadMode::Constant(Scalar::Int(fill.as_i64() - SHIFT)),
                            other => *other,
                        },
                    }),
                    Op::View(_) => op.clone(),
                    Op::Pool(pool) if pool.kind == PoolKind::Max => op.clone(),
                    _ => return Ok(()),
                };
                match forms {
                    Some(forms) if !forms.is_empty() => b.emit(op, &forms)?,
                    _ => return Ok(()),
                }
            }
        };
        let value = b.value(id.into());
        self.forms.insert(value, form);
        Ok(())
    }
}

/// A zero point, or its absence, less the shift, in the rank of `like`.
pub(super) fn shifted_zero(b: &mut Builder<'_>, like: Value, zero: Option<Value>) -> Result<Value, PassFault> {
    let Some(zero) = zero else {
        let ones = vec![1usize; b.ty(like).rank()];
        let bytes = vec![(-SHIFT) as i8 as u8];
        return match HostTensor::new(DType::I8, ones, Storage::new(bytes)) {
            Ok(tensor) => Ok(b.constant(tensor)),
            Err(_) => Ok(b.scalar(DType::I8, -SHIFT as f64)),
        };
    };
    if let Some(tensor) = b.as_constant(zero) {
        let less: Vec<f64> = tensor.to_f64().iter().map(|v| v - SHIFT as f64).collect();
        // A zero point of a float type may be any number.
        let dtype = if tensor.dtype.is_int() {
            DType::I32
        } else {
            tensor.dtype
        };
        if let Ok(tensor) = HostTensor::from_f64(dtype, tensor.shape.clone(), &less) {
            return Ok(b.constant(tensor));
        }
    }
    let dtype = if b.ty(zero).dtype.is_int() {
        DType::I32
    } else {
        DType::F32
    };
    let wide = match b.ty(zero).dtype == dtype {
        true => zero,
        false => b.emit(Op::cast(dtype), &[zero])?,
    };
    let shift = b.scalar(dtype, SHIFT as f64);
    b.emit(Op::binary(BinaryOp::Sub), &[wide, shift])
}

/// A shape of ones.
pub(super) fn ones(rank: usize) -> Vec<Dim> {
    vec![Dim::Const(1); rank]
}
