//! A number of each row of a product, folded from what the product multiplies anyway.

use serde::{Deserialize, Serialize};

use super::{Expr, ExprId, Exprs, VarId};
use crate::graph::op::ReduceOp;

/// A fold over the depth of a contraction, of its left operand alone: `var = op over k of value`, for each point of
/// `batch` and `m`.
///
/// The epilogue has it beside the sums. A norm's mean square is one: its inverse root scales the row's products as well
/// as its elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RowStatistic {
    /// The element of the left operand, in the type of the sums, which is a float.
    pub element: VarId,
    /// What is folded: an expression of numbers and `element`, in its type.
    pub value: ExprId,
    /// `Sum`, `Prod`, `Max` or `Min`.
    pub op: ReduceOp,
    /// The result, in the same type.
    pub var: VarId,
}

impl RowStatistic {
    /// Says whether the folded value is made of numbers and the element alone.
    pub fn is_of_element(&self, exprs: &Exprs) -> bool {
        let mut open = vec![self.value];
        while let Some(id) = open.pop() {
            match &exprs[id] {
                Expr::Const(..) => {}
                Expr::Var(var) if *var == self.element => {}
                Expr::Unary(..) | Expr::Binary(..) | Expr::Select(..) | Expr::Cast(..) => {
                    exprs[id].for_each_operand(|operand| open.push(operand));
                }
                Expr::Size(_) | Expr::Axis(_) | Expr::Load { .. } | Expr::Var(_) | Expr::Philox { .. } => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::HostTensor;
    use crate::dim::{Bindings, Dim};
    use crate::entity::Entity;
    use crate::graph::op::BinaryOp;
    use crate::kernel::eval::tests::Build;
    use crate::kernel::eval::{Wanted, evaluate, evaluate_some};
    use crate::kernel::print::print;
    use crate::kernel::verify::{KernelError, verify};
    use crate::kernel::{Access, AxisId, Body, ContractBody, Kernel, Operand};
    use crate::types::DType;

    /// `y[m, n] = Σ_k a·b + Σ_k a²`, of 2 x 2 x 3.
    fn kernel() -> Kernel {
        let size = |n| Dim::Const(n);
        let mut b = Build::new(
            &[("m", size(2)), ("n", size(2)), ("k", size(3))],
            &[
                ("a", DType::F32, size(6), Access::Read),
                ("b", DType::F32, size(6), Access::Read),
                ("y", DType::F32, size(4), Access::Write),
            ],
        );
        let (m, n, k) = (b.axis(0), b.axis(1), b.axis(2));
        let (mk, nk, mn) = (b.at(m, 3.into(), k), b.at(n, 3.into(), k), b.at(m, 2.into(), n));
        let (lhs, rhs) = (b.load(0, mk), b.load(1, nk));
        let ((acc, sum), (element, x), (var, squares)) = (b.var(DType::F32), b.var(DType::F32), b.var(DType::F32));
        let value = b.bin(BinaryOp::Mul, x, x);
        let y = b.bin(BinaryOp::Add, sum, squares);
        let axis = |i| vec![AxisId::new(i)];
        b.0.body = Body::Contract(ContractBody {
            batch: vec![],
            m: axis(0),
            n: axis(1),
            k: axis(2),
            lhs: Operand::new(&b.0.exprs, lhs),
            rhs: Operand::new(&b.0.exprs, rhs),
            acc,
            pair: None,
            statistic: Some(RowStatistic {
                element,
                value,
                op: ReduceOp::Sum,
                var,
            }),
            epilogue: vec![Build::store(2, mn, y, &[])],
            conv: None,
        });
        b.0.symbols.clear();
        b.0
    }

    #[test]
    fn a_row_is_folded_beside_its_sums() {
        let kernel = kernel();
        verify(&kernel).unwrap_or_else(|e| panic!("{e}"));
        assert!(
            print(&kernel).contains("v2 = sum over k in 0..3 of v1 * v1, v1 being lhs"),
            "{kernel}"
        );
        let tensor = |v: &[f32]| HostTensor::from_f32(vec![v.len()], v).expect("fits");
        let mut buffers = vec![
            tensor(&[1.0, 2.0, 3.0, 0.0, -1.0, 4.0]),
            tensor(&[1.0, 0.0, 0.0, 0.0, 1.0, 1.0]),
            tensor(&[0.0; 4]),
        ];
        evaluate(&kernel, &mut buffers, &Bindings::new()).expect("evaluates");
        assert_eq!(buffers[2].to_f32(), [15.0, 19.0, 17.0, 20.0]);
        buffers[2] = tensor(&[-7.0; 4]);
        let wanted: Wanted<'_> = &|_, at| at == 1 || at == 2;
        evaluate_some(&kernel, &mut buffers, &Bindings::new(), Some(wanted)).expect("evaluates");
        assert_eq!(buffers[2].to_f32(), [-7.0, 19.0, 17.0, -7.0]);
    }

    #[test]
    fn what_is_no_fold_of_the_row_alone_is_refused() {
        let changes: [(&str, fn(&mut Kernel)); 6] = [
            ("of floats of the sums' type", |k| {
                let body = statistic(k);
                k.vars[body.var] = DType::F64;
            }),
            ("a sum, a product", |k| change(k, |s| s.op = ReduceOp::ArgMax)),
            ("row's element alone", |k| {
                let Body::Contract(c) = &k.body else { return };
                let lhs = c.lhs.value;
                change(k, |s| s.value = lhs);
            }),
            ("variables of its own", |k| {
                let Body::Contract(c) = &k.body else { return };
                let acc = c.acc;
                change(k, |s| s.var = acc);
            }),
            ("variables of its own", |k| change(k, |s| s.var = s.element)),
            ("row's element alone", |k| {
                let other = k.vars.push(DType::F32);
                let other = k.exprs.add(Expr::Var(other), DType::F32);
                change(k, |s| s.value = other);
            }),
        ];
        for (problem, damage) in changes {
            let mut damaged = kernel();
            damage(&mut damaged);
            let errors = verify(&damaged).expect_err(problem).errors;
            let told = |e: &KernelError| e.to_string().contains(problem);
            assert!(errors.iter().any(told), "{problem}: {errors:?}");
        }
    }

    fn statistic(k: &Kernel) -> RowStatistic {
        match &k.body {
            Body::Contract(ContractBody {
                statistic: Some(statistic),
                ..
            }) => statistic.clone(),
            _ => unreachable!("it has one"),
        }
    }

    fn change(k: &mut Kernel, by: impl FnOnce(&mut RowStatistic)) {
        if let Body::Contract(c) = &mut k.body
            && let Some(statistic) = &mut c.statistic
        {
            by(statistic);
        }
    }
}
