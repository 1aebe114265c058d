//! Functions of one integer of 8 bits, as tables of their 256 values.
//!
//! Before: expressions that data decide through one integer of 8 bits alone, such as an activation between two
//! quantisations. After: what they come to, looked up by the integer.

use ir::entity::Entity;
use ir::graph::eval::scalar;
use ir::kernel::{Expr, ExprId, Kernel};
use ir::types::{DType, Scalar};

/// Values of a function of an integer of 8 bits, by its bits.
pub(crate) type Values = [f32; 256];

/// What a few stages do for less than a lookup.
const LOOKUP_COST: usize = 16;

/// A function that a table takes the place of.
pub(crate) struct Function {
    /// The expression that it ends in: no other reads what is before it.
    pub end: ExprId,
    pub values: Box<Values>,
}

/// Returns the longest function of `at`, an integer of 8 bits, whose values alone are read of it; `None` where there is
/// none, and where one chain of cheap operations does it. `live` are the expressions in order, `named` those that
/// statements read.
pub(crate) fn function(kernel: &Kernel, live: &[ExprId], named: &[ExprId], at: ExprId) -> Option<Function> {
    let exprs = &kernel.exprs;
    let signed = match exprs.dtype(at) {
        DType::I8 => true,
        DType::U8 => false,
        _ => return None,
    };
    let (end, several) = end(kernel, live, named, at)?;
    let below = |e: &ExprId| e.index() <= end.index();
    // Only what the end is made of, without what `at` itself is made of.
    let mut needed = vec![false; exprs.len()];
    needed[end.index()] = true;
    for e in live.iter().rev().filter(|e| below(e) && **e != at) {
        if needed[e.index()] {
            exprs[*e].for_each_operand(|o| needed[o.index()] = true);
        }
    }
    let needed: Vec<ExprId> = live.iter().copied().filter(|e| *e != at && needed[e.index()]).collect();
    let costs = |e: &ExprId| match exprs[*e] {
        Expr::Const(..) => 0,
        Expr::Cast(..) | Expr::Binary(..) => 1,
        _ => 4,
    };
    if !several && needed.iter().map(costs).sum::<usize>() <= LOOKUP_COST {
        return None;
    }
    let mut values = Box::new([0f32; 256]);
    let mut known = vec![Scalar::Int(0); exprs.len()];
    for byte in 0..=u8::MAX {
        known[at.index()] = Scalar::Int(if signed { i64::from(byte as i8) } else { i64::from(byte) });
        for e in &needed {
            known[e.index()] = value(kernel, &known, *e)?;
        }
        values[usize::from(byte)] = known[end.index()].as_f64() as f32;
    }
    Some(Function { end, values })
}

/// The last expression that all ways from `at` to what is read go through and that `at` alone decides, and whether
/// there are several ways.
fn end(kernel: &Kernel, live: &[ExprId], named: &[ExprId], at: ExprId) -> Option<(ExprId, bool)> {
    #[derive(Clone, Copy, PartialEq)]
    enum Of {
        Constants,
        Byte,
        Others,
    }
    let exprs = &kernel.exprs;
    let mut of = vec![Of::Others; exprs.len()];
    let mut depends = vec![false; exprs.len()];
    let mut last_user = vec![0; exprs.len()];
    let mut users_of_at = 0;
    for e in live {
        let (mut all, mut any) = (Of::Constants, false);
        exprs[*e].for_each_operand(|o| {
            last_user[o.index()] = e.index();
            any |= depends[o.index()];
            users_of_at += usize::from(o == at);
            all = match (all, of[o.index()]) {
                (Of::Others, _) | (_, Of::Others) => Of::Others,
                (Of::Byte, _) | (_, Of::Byte) => Of::Byte,
                _ => Of::Constants,
            };
        });
        let arithmetic = matches!(
            exprs[*e],
            Expr::Const(..) | Expr::Unary(..) | Expr::Binary(..) | Expr::Select(..) | Expr::Cast(..)
        );
        (of[e.index()], depends[e.index()]) = match *e == at {
            true => (Of::Byte, true),
            false => (if arithmetic { all } else { Of::Others }, any),
        };
    }
    let (mut farthest, mut end) = (last_user[at.index()], None);
    for e in live.iter().filter(|e| e.index() > at.index() && depends[e.index()]) {
        if of[e.index()] != Of::Byte {
            break;
        }
        let float = exprs.dtype(*e) == DType::F32;
        if farthest == e.index() && (float || matches!(exprs.dtype(*e), DType::I8 | DType::U8)) {
            end = Some(*e);
        }
        // Others may read what is stored, but a table does not say what led to its values.
        if named.contains(e) {
            break;
        }
        farthest = farthest.max(last_user[e.index()]);
    }
    end.map(|end| (end, users_of_at > 1))
}

/// What an expression comes to, rounded to its type.
fn value(kernel: &Kernel, known: &[Scalar], e: ExprId) -> Option<Scalar> {
    let exprs = &kernel.exprs;
    let at = |e: ExprId| known[e.index()];
    let made = match exprs[e] {
        Expr::Const(_, v) => v,
        Expr::Unary(op, a) => scalar::unary(op, exprs.dtype(a), at(a)),
        Expr::Binary(op, a, b) => scalar::binary(op, exprs.dtype(a), at(a), at(b)),
        Expr::Select(c, a, b) => at(if at(c).as_bool() { a } else { b }),
        Expr::Cast(to, a) => scalar::cast(to, at(a)),
        _ => return None,
    };
    let dtype = exprs.dtype(e);
    Some(if dtype.is_float() {
        scalar::cast(dtype, made)
    } else {
        made
    })
}
