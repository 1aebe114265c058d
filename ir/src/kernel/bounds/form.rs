//! Index expressions as sums of atoms, and what their values lie between.

use std::collections::HashMap;

use super::below;
use crate::dim::{Bindings, DimError};
use crate::entity::Table;
use crate::graph::op::{BinaryOp, ReduceOp, UnaryOp};
use crate::kernel::{AxisId, Body, CopyBody, Expr, ExprId, Kernel, RowBody, Stmt, VarId, WindowBody};
use crate::types::{DType, Scalar};

/// `base + Σ coefficient · atom`, in the atoms' order; an atom is an expression that is not itself such a sum.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Form {
    base: i128,
    terms: Vec<(ExprId, i128)>,
}

const LEAST: i128 = i64::MIN as i128;
const MOST: i128 = i64::MAX as i128;

impl Form {
    fn constant(base: i128) -> Form {
        Form {
            base,
            terms: Vec::new(),
        }
    }

    fn atom(id: ExprId) -> Form {
        Form {
            base: 0,
            terms: vec![(id, 1)],
        }
    }

    fn get(&self, atom: ExprId) -> i128 {
        self.terms
            .binary_search_by_key(&atom, |t| t.0)
            .map_or(0, |at| self.terms[at].1)
    }

    /// `self + factor · other`.
    fn plus(&self, other: &Form, factor: i128) -> Form {
        let mut sum = Form::constant(self.base.saturating_add(other.base.saturating_mul(factor)));
        let (mut a, mut b) = (self.terms.iter().peekable(), other.terms.iter().peekable());
        loop {
            let next = match (a.peek(), b.peek()) {
                (Some(x), Some(y)) if x.0 == y.0 => {
                    let c = x.1.saturating_add(y.1.saturating_mul(factor));
                    let id = x.0;
                    a.next();
                    b.next();
                    (id, c)
                }
                (Some(x), y) if y.is_none_or(|y| x.0 < y.0) => {
                    let term = **x;
                    a.next();
                    term
                }
                (_, Some(y)) => {
                    let term = (y.0, y.1.saturating_mul(factor));
                    b.next();
                    term
                }
                (_, None) => break,
            };
            if next.1 != 0 {
                sum.terms.push(next);
            }
        }
        sum
    }

    fn times(&self, factor: i128) -> Form {
        Form::default().plus(self, factor)
    }

    /// Says whether sums of it are far from what 128 bits hold.
    fn is_modest(&self) -> bool {
        let modest = |v: i128| v.unsigned_abs() < 1 << 90;
        self.terms.len() <= 64 && modest(self.base) && self.terms.iter().all(|t| modest(t.1))
    }
}

/// The forms of a kernel's `i64` expressions at one set of sizes.
pub(super) struct Forms<'k> {
    kernel: &'k Kernel,
    extents: Table<AxisId, i64>,
    sizes: HashMap<ExprId, i64>,
    /// What a variable of `i64` is: a value, or what it lies between.
    vars: HashMap<VarId, Variable>,
    forms: HashMap<ExprId, Form>,
    /// What atoms lie between.
    atoms: HashMap<ExprId, (i128, i128)>,
}

#[derive(Clone, Copy)]
enum Variable {
    Is(ExprId),
    Within(i128, i128),
}

impl<'k> Forms<'k> {
    pub(super) fn new(
        kernel: &'k Kernel,
        extents: &Table<AxisId, i64>,
        bindings: &Bindings,
    ) -> Result<Forms<'k>, DimError> {
        let mut sizes = HashMap::new();
        for (id, expr) in kernel.exprs.iter() {
            if let Expr::Size(dim) = expr {
                sizes.insert(id, dim.eval(bindings)?);
            }
        }
        let (vars, lets) = variables(kernel, extents);
        let mut forms = Forms {
            kernel,
            extents: extents.clone(),
            sizes,
            vars,
            forms: HashMap::new(),
            atoms: HashMap::new(),
        };
        // In their order: a value may name the variables before it.
        for value in lets {
            forms.of(value);
        }
        Ok(forms)
    }

    /// The form of an `i64` expression.
    pub(super) fn of(&mut self, id: ExprId) -> Form {
        if let Some(form) = self.forms.get(&id) {
            return form.clone();
        }
        for e in below(self.kernel, &[id]) {
            if !self.forms.contains_key(&e) {
                let form = self.form(e);
                self.forms.insert(e, form);
            }
        }
        self.forms[&id].clone()
    }

    /// The form of an expression whose operands have theirs.
    fn form(&mut self, id: ExprId) -> Form {
        let kernel = self.kernel;
        let known = |e: ExprId| self.forms.get(&e).cloned().unwrap_or_else(|| Form::atom(e));
        let form = match kernel.exprs[id] {
            Expr::Const(_, Scalar::Int(v)) => Some(Form::constant(i128::from(v))),
            Expr::Size(_) => Some(Form::constant(i128::from(self.sizes.get(&id).copied().unwrap_or(0)))),
            Expr::Axis(a) if self.extents[a] <= 1 => Some(Form::constant(0)),
            Expr::Cast(DType::I64, a) if kernel.exprs.dtype(a) == DType::I64 => Some(known(a)),
            Expr::Var(v) => match self.vars.get(&v) {
                Some(Variable::Is(value)) => self.forms.get(value).cloned(),
                _ => None,
            },
            Expr::Unary(UnaryOp::Neg, a) if kernel.exprs.dtype(id) == DType::I64 => Some(known(a).times(-1)),
            Expr::Binary(op, a, b) if kernel.exprs.dtype(id) == DType::I64 => {
                let (a, b) = (known(a), known(b));
                match op {
                    BinaryOp::Add => Some(a.plus(&b, 1)),
                    BinaryOp::Sub => Some(a.plus(&b, -1)),
                    BinaryOp::Mul if b.terms.is_empty() => Some(a.times(b.base)),
                    BinaryOp::Mul if a.terms.is_empty() => Some(b.times(a.base)),
                    BinaryOp::Div | BinaryOp::Rem | BinaryOp::Mod if b.terms.is_empty() && b.base > 0 => {
                        self.divide(op, &a, b.base)
                    }
                    _ => None,
                }
            }
            _ => None,
        };
        match form {
            Some(form) if form.is_modest() => form,
            Some(_) => {
                self.atoms.insert(id, (LEAST, MOST));
                Form::atom(id)
            }
            None => {
                let within = self.interval(id);
                self.atoms.insert(id, within);
                if within.0 == within.1 {
                    Form::constant(within.0)
                } else {
                    Form::atom(id)
                }
            }
        }
    }

    /// Quotient or remainder where the part that does not divide stays below the divisor.
    fn divide(&self, op: BinaryOp, a: &Form, by: i128) -> Option<Form> {
        if !self.is_exact(a) || (op != BinaryOp::Mod && self.lower(a, &[]) < 0) {
            return None;
        }
        let (mut quotient, mut rest) = (
            Form::constant(a.base.div_euclid(by)),
            Form::constant(a.base.rem_euclid(by)),
        );
        for (atom, c) in &a.terms {
            match c % by {
                0 => quotient.terms.push((*atom, c / by)),
                _ => rest.terms.push((*atom, *c)),
            }
        }
        let fits = self.lower(&rest, &[]) >= 0 && self.upper(&rest, &[]) < by;
        fits.then_some(if op == BinaryOp::Div { quotient } else { rest })
    }

    /// What an expression that is no sum lies between; of types other than integers, nothing is known.
    fn interval(&self, id: ExprId) -> (i128, i128) {
        let kernel = self.kernel;
        let whole = type_range(kernel.exprs.dtype(id));
        let of = |e: ExprId| match self.forms.get(&e) {
            Some(f) if self.is_exact(f) => (self.lower(f, &[]), self.upper(f, &[])),
            _ => type_range(kernel.exprs.dtype(e)),
        };
        let is_int = kernel.exprs.dtype(id).is_int();
        let (low, high) = match kernel.exprs[id] {
            Expr::Axis(a) => (0, i128::from(self.extents[a] - 1).max(0)),
            Expr::Var(v) => match self.vars.get(&v) {
                Some(Variable::Within(low, high)) => (*low, *high),
                _ => whole,
            },
            Expr::Cast(_, a) if is_int && !kernel.exprs.dtype(a).is_float() => of(a),
            Expr::Unary(UnaryOp::Abs, a) if is_int => {
                let (low, high) = of(a);
                let least = if low > 0 { low } else { high.saturating_neg().max(0) };
                (least, high.max(low.saturating_neg()))
            }
            Expr::Binary(op, a, b) if is_int => {
                let ((al, ah), (bl, bh)) = (of(a), of(b));
                match op {
                    BinaryOp::Max => (al.max(bl), ah.max(bh)),
                    BinaryOp::Min => (al.min(bl), ah.min(bh)),
                    BinaryOp::Mul => {
                        let ends = [(al, bl), (al, bh), (ah, bl), (ah, bh)].map(|(x, y)| x.saturating_mul(y));
                        (min(&ends), max(&ends))
                    }
                    BinaryOp::Add => (al.saturating_add(bl), ah.saturating_add(bh)),
                    BinaryOp::Sub => (al.saturating_sub(bh), ah.saturating_sub(bl)),
                    BinaryOp::Div
                        if bl > 0
                            && let Some(x) = self.floored(a, b) =>
                    {
                        let (low, high) = of(x);
                        let ends = [(low, bl), (low, bh), (high, bl), (high, bh)].map(|(x, d)| x.div_euclid(d));
                        // The dividend itself wraps where it would be below what its type holds.
                        if low - bh < whole.0 {
                            whole
                        } else {
                            (min(&ends), max(&ends))
                        }
                    }
                    BinaryOp::Div if bl > 0 => {
                        let ends = [al / bl, al / bh, ah / bl, ah / bh];
                        // Rounded either way.
                        (min(&ends) - i128::from(al < 0), max(&ends))
                    }
                    BinaryOp::Mod if bl > 0 => (0, bh - 1),
                    BinaryOp::Rem if bl > 0 => (al.max(1 - bh).min(0), ah.min(bh - 1).max(0)),
                    _ => whole,
                }
            }
            Expr::Select(c, a, b) if is_int => {
                let branch = |e: ExprId, answer: bool| {
                    let mut given = Vec::new();
                    self.known_conditions(c, !answer, &mut given);
                    let known = self
                        .forms
                        .get(&e)
                        .map(|f| (self.lower(f, &given), self.upper(f, &given)));
                    known
                        .filter(|(low, high)| *low >= LEAST && *high <= MOST)
                        .unwrap_or_else(|| type_range(kernel.exprs.dtype(e)))
                };
                let ((al, ah), (bl, bh)) = (branch(a, true), branch(b, false));
                (al.min(bl), ah.max(bh))
            }
            _ => whole,
        };
        // What leaves the type's width wraps.
        if low < whole.0 || high > whole.1 {
            whole
        } else {
            (low, high)
        }
    }

    /// Returns what is divided where a dividend is a multiple of its divisor by construction: `x - mod(x, d)`, which
    /// makes the quotient the floor of `x / d`.
    fn floored(&self, dividend: ExprId, divisor: ExprId) -> Option<ExprId> {
        let exprs = &self.kernel.exprs;
        let Expr::Binary(BinaryOp::Sub, x, rest) = exprs[dividend] else {
            return None;
        };
        (exprs[rest] == Expr::Binary(BinaryOp::Mod, x, divisor)).then_some(x)
    }

    /// Adds forms that are at least 0 where the condition (its negation) holds.
    pub(super) fn conditions(&mut self, id: ExprId, negated: bool, out: &mut Vec<Form>) {
        for e in below(self.kernel, &[id]) {
            self.of(e);
        }
        self.known_conditions(id, negated, out);
    }

    fn known_conditions(&self, id: ExprId, negated: bool, out: &mut Vec<Form>) {
        let exprs = &self.kernel.exprs;
        let mut stack = vec![(id, negated)];
        // A condition that shares its parts without end says nothing new.
        let mut left = 256;
        while let Some((id, negated)) = stack.pop() {
            left -= 1;
            if left == 0 {
                return;
            }
            match exprs[id] {
                Expr::Unary(UnaryOp::Not, a) if exprs.dtype(a) == DType::Bool => stack.push((a, !negated)),
                Expr::Binary(BinaryOp::And, a, b) if !negated => stack.extend([(a, false), (b, false)]),
                Expr::Binary(BinaryOp::Or, a, b) if negated => stack.extend([(a, true), (b, true)]),
                Expr::Const(DType::Bool, v) if v.as_bool() == negated => out.push(Form::constant(-1)),
                Expr::Binary(op, a, b) if op.is_comparison() && exprs.dtype(a) == DType::I64 => {
                    let (Some(a), Some(b)) = (self.forms.get(&a), self.forms.get(&b)) else {
                        continue;
                    };
                    // What is compared may have wrapped.
                    if !self.is_exact(a) || !self.is_exact(b) {
                        continue;
                    }
                    let (less, more) = (b.plus(a, -1), a.plus(b, -1));
                    let strictly = |mut f: Form| {
                        f.base = f.base.saturating_sub(1);
                        f
                    };
                    match (op, negated) {
                        (BinaryOp::Lt, false) | (BinaryOp::Ge, true) => out.push(strictly(less)),
                        (BinaryOp::Le, false) | (BinaryOp::Gt, true) => out.push(less),
                        (BinaryOp::Gt, false) | (BinaryOp::Le, true) => out.push(strictly(more)),
                        (BinaryOp::Ge, false) | (BinaryOp::Lt, true) => out.push(more),
                        (BinaryOp::Eq, false) | (BinaryOp::Ne, true) => out.extend([less, more]),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
    }

    /// Says whether the form is the expression's value at every point.
    ///
    /// Sums, differences and products by numbers wrap at 64 bits together: an expression is its form but for a multiple
    /// of 2^64, and no other where the form fits 64 bits.
    fn is_exact(&self, form: &Form) -> bool {
        self.lower(form, &[]) >= LEAST && self.upper(form, &[]) <= MOST
    }

    /// The most that a form can be where all of `given` are at least 0.
    pub(super) fn upper(&self, form: &Form, given: &[Form]) -> i128 {
        let mut form = form.clone();
        let mut best = self.plain_upper(&form);
        // Adding a multiple of what is at least 0 only raises a value: where that cancels atoms, the bound falls.
        for _ in 0..8 {
            let mut better: Option<(i128, Form)> = None;
            for condition in given {
                for (atom, b) in &condition.terms {
                    let a = form.get(*atom);
                    if a == 0 || (a < 0) == (*b < 0) || a % b != 0 {
                        continue;
                    }
                    let next = form.plus(condition, -(a / b));
                    if !next.is_modest() {
                        continue;
                    }
                    let bound = self.plain_upper(&next);
                    if bound < better.as_ref().map_or(best, |b| b.0) {
                        better = Some((bound, next));
                    }
                }
            }
            let Some((bound, next)) = better else { break };
            (best, form) = (bound, next);
        }
        best
    }

    /// The least that a form can be where all of `given` are at least 0.
    pub(super) fn lower(&self, form: &Form, given: &[Form]) -> i128 {
        self.upper(&form.times(-1), given).saturating_neg()
    }

    fn plain_upper(&self, form: &Form) -> i128 {
        let sum = form.terms.iter().try_fold(form.base, |sum, (atom, c)| {
            let (low, high) = self.atoms.get(atom).copied().unwrap_or((LEAST, MOST));
            sum.checked_add(c.checked_mul(if *c < 0 { low } else { high })?)
        });
        sum.unwrap_or(i128::MAX)
    }
}

fn min(ends: &[i128; 4]) -> i128 {
    ends.iter().copied().fold(i128::MAX, i128::min)
}

fn max(ends: &[i128; 4]) -> i128 {
    ends.iter().copied().fold(i128::MIN, i128::max)
}

/// What integers of a type lie between; of other types, what an `i64` does.
fn type_range(dtype: DType) -> (i128, i128) {
    match dtype {
        DType::I32 => (i128::from(i32::MIN), i128::from(i32::MAX)),
        DType::I16 => (i128::from(i16::MIN), i128::from(i16::MAX)),
        DType::I8 => (i128::from(i8::MIN), i128::from(i8::MAX)),
        DType::U8 => (0, 255),
        DType::I4 => (-8, 7),
        DType::U4 => (0, 15),
        DType::Bool => (0, 1),
        _ => (LEAST, MOST),
    }
}

/// What is known of the kernel's `i64` variables, and the values that such variables are given, in order.
fn variables(kernel: &Kernel, extents: &Table<AxisId, i64>) -> (HashMap<VarId, Variable>, Vec<ExprId>) {
    let (mut out, mut lets) = (HashMap::new(), Vec::new());
    let stmts: &[Stmt] = match &kernel.body {
        Body::Loops(l)
        | Body::Row(RowBody { loops: l, .. })
        | Body::Window(WindowBody { loops: l, .. })
        | Body::Copy(CopyBody { loops: l, .. }) => &l.stmts,
        Body::Transform(t) => &t.stmts,
        Body::Contract(c) => &c.epilogue,
        Body::Attention(a) => &a.epilogue,
        Body::Scan(s) => &s.stores,
        Body::Recurrent(r) => &r.stores,
        Body::Sort(s) => {
            let last = i128::from(extents[s.axis] - 1).max(0);
            out.insert(s.index_var, Variable::Within(0, last));
            &s.stores
        }
    };
    for stmt in stmts {
        match stmt {
            Stmt::Let { var, value } if kernel.exprs.dtype(*value) == DType::I64 => {
                out.insert(*var, Variable::Is(*value));
                lets.push(*value);
            }
            Stmt::Fold {
                var,
                op: ReduceOp::ArgMax | ReduceOp::ArgMin,
                axes,
                ..
            } => {
                let points = axes
                    .iter()
                    .fold(1i128, |n, a| n.saturating_mul(i128::from(extents[*a].max(1))));
                out.insert(*var, Variable::Within(0, points - 1));
            }
            _ => {}
        }
    }
    (out, lets)
}
