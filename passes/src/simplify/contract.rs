//! Contractions: transposes become flags, flattened leading axes are given back, broadcasts of batches are implicit.

use ir::op::{Contract, View};
use ir::{Op, Shape, Value};

use crate::error::PassFault;
use crate::rewrite::{Builder, Rule};

/// The rules of this file.
pub const RULES: &[Rule] = &[
    Rule {
        name: "transpose_into_contract",
        apply: transpose_into_contract,
    },
    Rule {
        name: "unflatten_contract",
        apply: unflatten_contract,
    },
    Rule {
        name: "broadcast_into_contract",
        apply: broadcast_into_contract,
    },
];

/// A transpose of an operand's last two axes is a flag.
fn transpose_into_contract(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::Contract(contract) = op else { return Ok(None) };
    let swapped = |v: Value| match b.def(v) {
        (Op::View(View::Transpose(perm)), inner) => {
            let rank = perm.len();
            let leading = perm[..rank - 2].iter().enumerate().all(|(i, p)| i == *p);
            (leading && perm[rank - 2] == rank - 1).then_some(inner[0])
        }
        _ => None,
    };
    let (left, right) = (swapped(x[0]), swapped(x[1]));
    if left.is_none() && right.is_none() {
        return Ok(None);
    }
    let flags = Contract {
        transpose_lhs: contract.transpose_lhs ^ left.is_some(),
        transpose_rhs: contract.transpose_rhs ^ right.is_some(),
        out: contract.out,
    };
    b.emit(Op::Contract(flags), &[left.unwrap_or(x[0]), right.unwrap_or(x[1])])
        .map(Some)
}

/// `contract(reshape(x [b, s, k] to [b·s, k]), w)` → `reshape(contract(x, w))`, so that what follows sees `[b, s, n]`.
fn unflatten_contract(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::Contract(contract) = op else { return Ok(None) };
    if contract.transpose_lhs || b.ty(x[1]).rank() != 2 || b.ty(x[0]).rank() != 2 {
        return Ok(None);
    }
    let (Op::View(View::Reshape(flat)), inner) = b.def(x[0]) else {
        return Ok(None);
    };
    let (flat, inner) = (flat.clone(), inner[0]);
    let from = &b.ty(inner).shape;
    if from.rank() < 3 || from.last() != flat.last() {
        return Ok(None);
    }
    let value = b.emit(op.clone(), &[inner, x[1]])?;
    let n = b.ty(value).shape.last().cloned();
    let out: Shape = flat[..1].iter().cloned().chain(n).collect();
    b.emit(Op::View(View::Reshape(out)), &[value]).map(Some)
}

/// A batch broadcast that the contraction does itself.
fn broadcast_into_contract(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Result<Option<Value>, PassFault> {
    let Op::Contract(_) = op else { return Ok(None) };
    let batch = |s: &Shape| Shape(s[..s.rank() - 2].to_vec());
    let shapes = [b.ty(x[0]).shape.clone(), b.ty(x[1]).shape.clone()];
    let Some(out) = Shape::broadcast(&batch(&shapes[0]), &batch(&shapes[1])) else {
        return Ok(None);
    };
    for i in 0..2 {
        let (Op::View(View::Broadcast(_)), inner) = b.def(x[i]) else {
            continue;
        };
        let inner = inner[0];
        let small = &b.ty(inner).shape;
        if small.rank() < 2 || small[small.rank() - 2..] != shapes[i][shapes[i].rank() - 2..] {
            continue;
        }
        if Shape::broadcast(&batch(small), &batch(&shapes[1 - i])).as_ref() == Some(&out) {
            let mut operands = [x[0], x[1]];
            operands[i] = inner;
            return b.emit(op.clone(), &operands).map(Some);
        }
    }
    Ok(None)
}
