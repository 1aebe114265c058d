//! Index analysis of a kernel once every size is known: which integer expressions are affine in the loop dims.
//!
//! Before: a kernel and sizes for its symbols. After: *dims* with constant extents, and for every maximal affine
//! integer expression (a *root*) its form `base + Σ coefficient · dim`. Two rewrites make more of a kernel affine and
//! its loops longer: a dim is *split* where an expression divides by part of it (`(n / 64, n % 64)` of a head axis),
//! and neighbours are *merged* where every root steps through both as through one.

use std::collections::HashMap;

use indexmap::IndexMap;
use ir::dim::{Bindings, DimError};
use ir::entity::Entity;
use ir::host::Affine;
use ir::kernel::{AxisId, Expr, ExprId, Kernel};
use ir::op::{BinaryOp, UnaryOp};
use ir::types::{DType, Scalar};

/// Affine forms by the expression that has them, each maximal.
pub(crate) type Roots = IndexMap<ExprId, Affine>;

/// The loop dims of one kernel at one set of sizes.
pub(crate) struct Space<'k> {
    pub kernel: &'k Kernel,
    pub extents: Vec<i64>,
    sizes: HashMap<ExprId, i64>,
    axis: Vec<Affine>,
    memo: HashMap<ExprId, Option<Affine>>,
}

impl<'k> Space<'k> {
    /// One dim for each axis, in the axes' order.
    pub(crate) fn new(kernel: &'k Kernel, bindings: &Bindings) -> Result<Space<'k>, DimError> {
        let extents = kernel
            .axes
            .values()
            .map(|a| Ok(a.extent.eval(bindings)?.max(0)))
            .collect::<Result<Vec<_>, DimError>>()?;
        let mut sizes = HashMap::new();
        for (id, expr) in kernel.exprs.iter() {
            if let Expr::Size(dim) = expr {
                sizes.insert(id, dim.eval(bindings)?);
            }
        }
        let axis = (0..extents.len()).map(Affine::dim).collect();
        Ok(Space {
            kernel,
            extents,
            sizes,
            axis,
            memo: HashMap::new(),
        })
    }

    /// The dims of axes, in order.
    pub(crate) fn dims(axes: &[AxisId]) -> Vec<usize> {
        axes.iter().map(|a| a.index()).collect()
    }

    pub(crate) fn size(&self, id: ExprId) -> i64 {
        self.sizes.get(&id).copied().unwrap_or(0)
    }

    /// The affine form of an `i64` expression, if it has one.
    pub(crate) fn affine(&mut self, id: ExprId) -> Option<Affine> {
        if let Some(known) = self.memo.get(&id) {
            return known.clone();
        }
        let form = self.form(id);
        self.memo.insert(id, form.clone());
        form
    }

    /// The form of one expression. What may leave 64 bits somewhere has none: it wraps there, and is not affine.
    fn form(&mut self, id: ExprId) -> Option<Affine> {
        let kernel = self.kernel;
        if kernel.exprs.dtype(id) != DType::I64 {
            return None;
        }
        match kernel.exprs[id] {
            Expr::Const(_, Scalar::Int(v)) => Some(Affine::constant(v)),
            Expr::Size(_) => Some(Affine::constant(self.size(id))),
            Expr::Axis(a) => Some(self.axis[a.index()].clone()),
            Expr::Unary(UnaryOp::Neg, a) => {
                let a = self.affine(a)?;
                self.is_exact(BinaryOp::Sub, &Affine::constant(0), &a)
                    .then(|| a.times(-1))
            }
            Expr::Cast(DType::I64, a) => self.affine(a),
            Expr::Binary(op, a, b) => {
                let (a, b) = (self.affine(a)?, self.affine(b)?);
                match op {
                    BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul if !self.is_exact(op, &a, &b) => None,
                    BinaryOp::Add => Some(a.plus(&b, 1)),
                    BinaryOp::Sub => Some(a.plus(&b, -1)),
                    BinaryOp::Mul if b.is_constant() => Some(a.times(b.base)),
                    BinaryOp::Mul if a.is_constant() => Some(b.times(a.base)),
                    BinaryOp::Div | BinaryOp::Mod | BinaryOp::Rem if b.is_constant() => self.divide(op, &a, b.base),
                    BinaryOp::Max | BinaryOp::Min => {
                        let (lo, hi) = a.plus(&b, -1).range(&self.extents);
                        match (op, lo >= 0, hi <= 0) {
                            (BinaryOp::Max, true, _) | (BinaryOp::Min, _, true) => Some(a),
                            (BinaryOp::Max, _, true) | (BinaryOp::Min, true, _) => Some(b),
                            _ => None,
                        }
                    }
                    _ => None,
                }
            }
            Expr::Select(c, a, b) => match self.truth(c) {
                Some(true) => self.affine(a),
                Some(false) => self.affine(b),
                None => None,
            },
            _ => None,
        }
    }

    /// Says whether a sum, difference or product of forms stays inside 64 bits at every point.
    fn is_exact(&self, op: BinaryOp, a: &Affine, b: &Affine) -> bool {
        let range = |form: &Affine| {
            let (mut lo, mut hi) = (i128::from(form.base), i128::from(form.base));
            for (c, e) in form.coef.iter().zip(&self.extents) {
                let span = i128::from(*c) * i128::from((e - 1).max(0));
                if span < 0 { lo += span } else { hi += span }
            }
            (lo, hi)
        };
        let ((al, ah), (bl, bh)) = (range(a), range(b));
        let ends = match op {
            BinaryOp::Add => [al + bl, ah + bh],
            BinaryOp::Sub => [al - bh, ah - bl],
            // One of the two is a number.
            _ => match (a.is_constant(), b.is_constant()) {
                (_, true) => [al.saturating_mul(bl), ah.saturating_mul(bl)],
                (true, _) => [bl.saturating_mul(al), bh.saturating_mul(al)],
                _ => return false,
            },
        };
        ends.iter().all(|v| i64::try_from(*v).is_ok())
    }

    /// Whether a comparison of affine forms holds at every point, or at none.
    pub(crate) fn truth(&mut self, id: ExprId) -> Option<bool> {
        let kernel = self.kernel;
        match kernel.exprs[id] {
            Expr::Const(_, v) => Some(v.as_bool()),
            Expr::Unary(UnaryOp::Not, a) => self.truth(a).map(|t| !t),
            Expr::Binary(BinaryOp::And, a, b) => match (self.truth(a), self.truth(b)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Expr::Binary(BinaryOp::Or, a, b) => match (self.truth(a), self.truth(b)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            },
            Expr::Binary(op, a, b) if op.is_comparison() => {
                let (lo, hi) = self.affine(a)?.plus(&self.affine(b)?, -1).range(&self.extents);
                let decide = |yes: bool, no: bool| match (yes, no) {
                    (true, _) => Some(true),
                    (_, true) => Some(false),
                    _ => None,
                };
                match op {
                    BinaryOp::Lt => decide(hi < 0, lo >= 0),
                    BinaryOp::Le => decide(hi <= 0, lo > 0),
                    BinaryOp::Gt => decide(lo > 0, hi <= 0),
                    BinaryOp::Ge => decide(lo >= 0, hi < 0),
                    BinaryOp::Eq => decide(lo == 0 && hi == 0, lo > 0 || hi < 0),
                    _ => decide(lo > 0 || hi < 0, lo == 0 && hi == 0),
                }
            }
            _ => None,
        }
    }

    /// Quotient or remainder by a constant where the part that does not divide stays below the divisor.
    fn divide(&self, op: BinaryOp, a: &Affine, by: i64) -> Option<Affine> {
        if by <= 0 || (op != BinaryOp::Mod && a.range(&self.extents).0 < 0) {
            return None;
        }
        let (quotient, rest) = parts(a, by);
        let (lo, hi) = rest.range(&self.extents);
        if lo < 0 || hi >= by {
            return None;
        }
        Some(if op == BinaryOp::Div { quotient } else { rest })
    }

    /// Splits dims until no division by a constant can be made affine that way; `groups` are the lists of dims, each
    /// kept in order, and `whole` the dims that must stay one each.
    pub(crate) fn split(&mut self, exprs: &[ExprId], groups: &mut [&mut Vec<usize>], whole: &[usize]) {
        for _ in 0..16 {
            let Some((dim, factor)) = self.find_split(exprs, whole) else {
                return;
            };
            let inner = self.extents.len();
            self.extents[dim] /= factor;
            self.extents.push(factor);
            for form in &mut self.axis {
                let c = form.get(dim);
                if c != 0 {
                    form.set(dim, c * factor);
                    form.set(inner, c);
                }
            }
            for group in groups.iter_mut() {
                if let Some(at) = group.iter().position(|d| *d == dim) {
                    group.insert(at + 1, inner);
                }
            }
            self.memo.clear();
        }
    }

    /// Has a dim go through a part of its positions alone.
    pub(crate) fn restrict(&mut self, dim: usize, from: i64, to: i64) {
        for form in &mut self.axis {
            form.base += form.get(dim) * from;
        }
        self.extents[dim] = to - from;
        self.memo.clear();
    }

    fn find_split(&mut self, exprs: &[ExprId], whole: &[usize]) -> Option<(usize, i64)> {
        for id in reachable(self.kernel, exprs) {
            let Expr::Binary(BinaryOp::Div | BinaryOp::Mod | BinaryOp::Rem, a, b) = self.kernel.exprs[id] else {
                continue;
            };
            let (Some(a), Some(b)) = (self.affine(a), self.affine(b)) else {
                continue;
            };
            if !b.is_constant() || b.base <= 1 || self.affine(id).is_some() {
                continue;
            }
            let (_, rest) = parts(&a, b.base);
            let steepest = (0..rest.coef.len())
                .filter(|d| rest.get(*d) > 0)
                .max_by_key(|d| rest.get(*d));
            let Some(dim) = steepest else { continue };
            let c = rest.get(dim);
            let factor = b.base / c;
            if !whole.contains(&dim)
                && b.base % c == 0
                && factor > 1
                && self.extents[dim] > factor
                && self.extents[dim] % factor == 0
            {
                return Some((dim, factor));
            }
        }
        None
    }

    /// The maximal affine expressions under `exprs`.
    pub(crate) fn roots(&mut self, exprs: &[ExprId]) -> Roots {
        let mut roots = Roots::new();
        let mut seen = vec![false; self.kernel.exprs.len()];
        let mut stack: Vec<ExprId> = exprs.iter().rev().copied().collect();
        while let Some(id) = stack.pop() {
            if std::mem::replace(&mut seen[id.index()], true) {
                continue;
            }
            if let Some(form) = self.affine(id) {
                roots.insert(id, form);
                continue;
            }
            self.kernel.exprs[id].for_each_operand(|o| stack.push(o));
        }
        roots
    }
}

/// `a = by · quotient + rest`, every coefficient of `rest` below `by` in magnitude and its base in `0..by`.
fn parts(a: &Affine, by: i64) -> (Affine, Affine) {
    let mut quotient = Affine::constant(a.base.div_euclid(by));
    let mut rest = Affine::constant(a.base.rem_euclid(by));
    for (d, &c) in a.coef.iter().enumerate() {
        if c % by == 0 {
            quotient.set(d, c / by);
        } else {
            rest.set(d, c);
        }
    }
    (quotient, rest)
}

/// Every expression under `exprs`, each once, in id order.
pub(crate) fn reachable(kernel: &Kernel, exprs: &[ExprId]) -> Vec<ExprId> {
    let mut seen = vec![false; kernel.exprs.len()];
    let mut stack = exprs.to_vec();
    while let Some(id) = stack.pop() {
        if !std::mem::replace(&mut seen[id.index()], true) {
            kernel.exprs[id].for_each_operand(|o| stack.push(o));
        }
    }
    (0..seen.len()).filter(|i| seen[*i]).map(ExprId::new).collect()
}

/// Drops dims of extent 1 from the lists and merges neighbours that all roots step through as one, where every list has
/// both or neither.
pub(crate) fn collapse(extents: &mut [i64], groups: &mut [&mut Vec<usize>], roots: &mut Roots) {
    for group in groups.iter_mut() {
        group.retain(|d| extents[*d] != 1);
    }
    for g in 0..groups.len() {
        let mut at = groups[g].len();
        while at >= 2 {
            let (outer, inner) = (groups[g][at - 2], groups[g][at - 1]);
            let together = groups.iter().all(|list| {
                match (
                    list.iter().position(|d| *d == outer),
                    list.iter().position(|d| *d == inner),
                ) {
                    (None, None) => true,
                    (Some(a), Some(b)) => a + 1 == b,
                    _ => false,
                }
            });
            let merges = |r: &Affine| r.get(outer) == r.get(inner).wrapping_mul(extents[inner]);
            if together && extents[inner] > 0 && extents[outer] > 0 && roots.values().all(merges) {
                extents[inner] *= extents[outer];
                extents[outer] = 1;
                for root in roots.values_mut() {
                    if root.get(outer) != 0 {
                        root.set(outer, 0);
                    }
                }
                for list in groups.iter_mut() {
                    list.retain(|d| *d != outer);
                }
            }
            at -= 1;
        }
    }
}
