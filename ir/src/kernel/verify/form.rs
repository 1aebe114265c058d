//! Indices as sums of axes whose coefficients are sizes, whatever the sizes are.

use std::collections::{BTreeMap, HashMap};

use crate::dim::Dim;
use crate::graph::op::BinaryOp;
use crate::kernel::{AxisId, Expr, ExprId, Kernel};
use crate::types::Scalar;

/// `constant + Σ coefficient · axis`, without the terms that are 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::kernel) struct Form {
    terms: BTreeMap<AxisId, Dim>,
    constant: Dim,
}

impl Form {
    pub(in crate::kernel) fn constant(constant: Dim) -> Form {
        Form {
            terms: BTreeMap::new(),
            constant,
        }
    }

    pub(in crate::kernel) fn of(axis: Option<AxisId>, by: &Dim) -> Option<Form> {
        let mut form = Form::constant(Dim::Const(0));
        form.terms.extend(axis.map(|a| (a, Dim::Const(1))));
        form.times(by)
    }

    /// The terms that are not 0.
    pub(in crate::kernel) fn terms(&self) -> impl Iterator<Item = (AxisId, &Dim)> {
        self.terms.iter().map(|(axis, by)| (*axis, by))
    }

    pub(in crate::kernel) fn coefficient(&self, axis: AxisId) -> Dim {
        self.terms.get(&axis).cloned().unwrap_or(Dim::Const(0))
    }

    /// What the sum is where every axis is at 0.
    pub(in crate::kernel) fn base(&self) -> &Dim {
        &self.constant
    }

    pub(in crate::kernel) fn plus(&self, other: &Form) -> Option<Form> {
        let mut sum = self.clone();
        sum.constant = sum.constant.checked_add(&other.constant)?;
        for (axis, by) in &other.terms {
            let term = sum.terms.remove(axis).unwrap_or(Dim::Const(0)).checked_add(by)?;
            if !term.is(0) {
                sum.terms.insert(*axis, term);
            }
        }
        Some(sum)
    }

    pub(in crate::kernel) fn times(&self, by: &Dim) -> Option<Form> {
        let mut product = Form::constant(self.constant.checked_mul(by)?);
        for (axis, coefficient) in &self.terms {
            let term = coefficient.checked_mul(by)?;
            if !term.is(0) {
                product.terms.insert(*axis, term);
            }
        }
        Some(product)
    }

    pub(in crate::kernel) fn minus(&self, other: &Form) -> Option<Form> {
        self.plus(&other.times(&Dim::Const(-1))?)
    }
}

/// Forms of a kernel's expressions, each worked out once.
pub(in crate::kernel) struct Forms<'a> {
    pub(in crate::kernel) kernel: &'a Kernel,
    known: HashMap<ExprId, Option<Form>>,
}

impl<'a> Forms<'a> {
    pub(in crate::kernel) fn new(kernel: &'a Kernel) -> Forms<'a> {
        Forms {
            kernel,
            known: HashMap::new(),
        }
    }

    pub(in crate::kernel) fn of(&mut self, id: ExprId) -> Option<Form> {
        if let Some(form) = self.known.get(&id) {
            return form.clone();
        }
        let form = match &self.kernel.exprs[id] {
            Expr::Const(_, Scalar::Int(v)) => Some(Form::constant(Dim::Const(*v))),
            Expr::Size(size) => Some(Form::constant(size.clone())),
            Expr::Axis(axis) => Form::of(Some(*axis), &Dim::Const(1)),
            Expr::Binary(op @ (BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul), a, b) => {
                let (op, a, b) = (*op, *a, *b);
                let sides = self.of(a).zip(self.of(b));
                sides.and_then(|(a, b)| match op {
                    BinaryOp::Add => a.plus(&b),
                    BinaryOp::Sub => a.minus(&b),
                    _ if b.terms.is_empty() => a.times(&b.constant),
                    _ if a.terms.is_empty() => b.times(&a.constant),
                    _ => None,
                })
            }
            _ => None,
        };
        self.known.insert(id, form.clone());
        form
    }
}
