//! Says in what a window's facts are not those of its loops.

use std::collections::BTreeSet;

use super::form::{Form, Forms};
use crate::dim::Dim;
use crate::graph::eval::scalar::identity;
use crate::graph::op::{BinaryOp, PoolKind, ReduceOp};
use crate::kernel::{
    AxisId, Expr, ExprId, ImageAccess, Kernel, Stmt, VarId, WindowAxis, WindowBody, WindowFold, WindowImages,
};
use crate::types::Scalar;

/// The most that strides, dilations and pads may be, as graphs have it: products of two fit 64 bits.
const MOST: u64 = crate::graph::infer::LARGEST as u64;

impl Form {
    /// The position of a window's tap.
    fn position(axis: &WindowAxis) -> Option<Form> {
        let output = Form::of(axis.outputs, &Dim::Const(axis.stride))?;
        let tap = Form::of(axis.taps, &Dim::Const(axis.dilation))?;
        output
            .plus(&tap)?
            .plus(&Form::constant(Dim::Const(axis.pad_low)).times(&Dim::Const(-1))?)
    }
}

impl Forms<'_> {
    /// The comparisons that a guard is made of: `form ≥ 0` where true, `form < 0` where false.
    fn comparisons(&mut self, guard: ExprId, out: &mut Vec<(bool, Form)>) -> Option<()> {
        match self.kernel.exprs[guard] {
            Expr::Binary(BinaryOp::And, a, b) => {
                self.comparisons(a, out)?;
                self.comparisons(b, out)
            }
            Expr::Binary(op @ (BinaryOp::Ge | BinaryOp::Lt), a, b) => {
                let form = self.of(a)?.minus(&self.of(b)?)?;
                out.push((op == BinaryOp::Ge, form));
                Some(())
            }
            _ => None,
        }
    }

    /// Says whether `value` is `select(guard, inner, fill)` whose guard makes these comparisons and no others; without
    /// any, `inner` alone.
    fn is_guarded(&mut self, value: ExprId, inner: ExprId, fill: Scalar, wanted: &[(bool, Form)]) -> bool {
        if wanted.is_empty() {
            return value == inner;
        }
        let Expr::Select(guard, yes, no) = self.kernel.exprs[value] else {
            return false;
        };
        let mut made = Vec::new();
        yes == inner
            && matches!(self.kernel.exprs[no], Expr::Const(_, c) if c == fill)
            && self.comparisons(guard, &mut made).is_some()
            && made.len() == wanted.len()
            && wanted.iter().all(|w| made.contains(w))
            && made.iter().all(|m| wanted.contains(m))
    }
}

/// The comparisons that hold where taps are inside of the input.
fn inside(along: &[WindowAxis]) -> Option<Vec<(bool, Form)>> {
    let mut out = Vec::new();
    for axis in along {
        let position = Form::position(axis)?;
        if axis.guarded[1] {
            out.push((false, position.minus(&Form::constant(axis.size.clone()))?));
        }
        if axis.guarded[0] {
            out.push((true, position));
        }
    }
    Some(out)
}

/// The comparisons that hold where taps are inside of the padded input.
fn counted(along: &[WindowAxis]) -> Option<Vec<(bool, Form)>> {
    let mut out = Vec::new();
    for axis in along.iter().filter(|a| a.beyond) {
        let end = axis.size.checked_add(&Dim::Const(axis.pad_high))?;
        out.push((false, Form::position(axis)?.minus(&Form::constant(end))?));
    }
    Some(out)
}

/// Says what is wrong with a window's facts; `None` where its loops are what they say. Ids must be the kernel's.
pub(super) fn problem(kernel: &Kernel, body: &WindowBody) -> Option<String> {
    let mut forms = Forms::new(kernel);
    for (at, a) in body.along.iter().enumerate() {
        if a.stride < 1
            || a.dilation < 1
            || [a.stride, a.dilation, a.pad_low, a.pad_high]
                .iter()
                .any(|v| v.unsigned_abs() > MOST)
        {
            return Some(format!(
                "have a stride of {}, a dilation of {} and pads of {} and {} along axis {at}: the first two are at least 1, none beyond {MOST}",
                a.stride, a.dilation, a.pad_low, a.pad_high
            ));
        }
    }
    if body.along.iter().all(|a| a.taps.is_none()) {
        return Some("have no taps".to_owned());
    }
    let average = matches!(body.pool(), Some(PoolKind::Average { .. }));
    let padded = body.pool() == Some(PoolKind::Average { count_padding: true });
    if body.along.iter().any(|a| a.beyond && !(body.counts && padded)) {
        return Some("bound a count of padding that is not made".to_owned());
    }
    let op = match body.pool() {
        Some(PoolKind::Max) => ReduceOp::Max,
        Some(PoolKind::Average { .. }) | None => ReduceOp::Sum,
    };
    let taps = body.taps();
    let fold = |stmt: Option<&Stmt>, wanted: ReduceOp| match stmt {
        Some(Stmt::Fold { var, op, axes, value }) if *op == wanted && *axes == taps => Some((*var, *value)),
        _ => None,
    };
    let Some((var, value)) = fold(body.loops.stmts.first(), op) else {
        return Some(format!(
            "are of a {op} over their taps, which the first statement is not"
        ));
    };
    let Some(guards) = inside(&body.along) else {
        return Some("have positions of too many terms".to_owned());
    };
    let (guarded, fill) = match (body.fold, &kernel.exprs[value]) {
        (WindowFold::Pool(_), _) => (value, identity(op, kernel.exprs.dtype(value))),
        (WindowFold::Weighted { weight, outside }, Expr::Binary(BinaryOp::Mul, x, by)) if *by == weight => {
            (*x, outside)
        }
        _ => return Some("multiply by other weights than the fold".to_owned()),
    };
    if !forms.is_guarded(guarded, body.element, fill, &guards) {
        return Some("have other guards, another element or another fill than the fold".to_owned());
    }
    let mut rest = &body.loops.stmts[1..];
    let mut count = None;
    if body.counts {
        let made = fold(rest.first(), ReduceOp::Sum);
        let wanted = if padded { counted(&body.along) } else { Some(guards) };
        let holds = made.zip(wanted).is_some_and(|((_, value), wanted)| {
            let dtype = kernel.exprs.dtype(value);
            let one = match kernel.exprs[value] {
                Expr::Select(_, one, _) => one,
                _ => value,
            };
            let is_one = matches!(kernel.exprs[one], Expr::Const(_, v) if v.as_f64() == 1.0);
            let zero = identity(ReduceOp::Sum, dtype);
            average && is_one && !wanted.is_empty() && forms.is_guarded(value, one, zero, &wanted)
        });
        if !holds {
            return Some("count taps otherwise than the second statement".to_owned());
        }
        count = made.map(|(var, _)| var);
        rest = &rest[1..];
    }
    let plain = |s: &Stmt| match s {
        Stmt::Let { .. } => true,
        Stmt::Store { axes, .. } => axes.is_empty(),
        Stmt::Fold { .. } | Stmt::Update { .. } => false,
    };
    if !rest.iter().all(plain) {
        return Some("are of one window, and another statement folds or has axes of its own".to_owned());
    }
    let images = body.images.as_ref()?;
    images_problem(&mut forms, body, images, rest, var, count).map(str::to_owned)
}

fn images_problem(
    forms: &mut Forms<'_>,
    body: &WindowBody,
    images: &WindowImages,
    rest: &[Stmt],
    var: VarId,
    count: Option<VarId>,
) -> Option<&'static str> {
    let kernel = forms.kernel;
    let outputs = body.along.iter().filter_map(|a| a.outputs);
    let mut listed: Vec<AxisId> = outputs.chain(images.image).chain(images.channel).collect();
    let distinct: BTreeSet<AxisId> = listed.iter().copied().collect();
    listed.sort_unstable();
    let mut parallel = body.loops.parallel.clone();
    parallel.sort_unstable();
    if distinct.len() != listed.len() || listed != parallel {
        return Some("name other axes of images, channels and outputs than the loops are over");
    }
    let index = match kernel.exprs[body.element] {
        Expr::Load { param, index } if param == images.source => index,
        _ => return Some("name a source that the element is not loaded from as it is"),
    };
    let is_count = |e: ExprId| Some(&kernel.exprs[e]) == count.map(Expr::Var).as_ref();
    let is_one = |e: ExprId| matches!(kernel.exprs[e], Expr::Const(_, v) if v.as_f64() == 1.0);
    let whole = body.taps().iter().try_fold(1i64, |n, a| {
        kernel.axes[*a]
            .extent
            .as_const()
            .and_then(|extent| n.checked_mul(extent))
    });
    let result = match (&kernel.exprs[images.pooled], body.pool(), count) {
        (Expr::Var(v), Some(PoolKind::Max), None) => *v == var,
        (Expr::Binary(BinaryOp::Mul, sum, scale), Some(PoolKind::Average { .. }), None) => {
            let scale = match kernel.exprs[*scale] {
                Expr::Const(_, v) => v.as_f64(),
                _ => f64::NAN,
            };
            kernel.exprs[*sum] == Expr::Var(var) && whole.is_some_and(|n| scale == 1.0 / n as f64)
        }
        (Expr::Binary(BinaryOp::Div, sum, by), Some(PoolKind::Average { .. }), Some(_)) => {
            let at_least_one = match kernel.exprs[*by] {
                Expr::Binary(BinaryOp::Max, a, b) => is_count(a) && is_one(b),
                _ => is_count(*by),
            };
            kernel.exprs[*sum] == Expr::Var(var) && at_least_one
        }
        _ => false,
    };
    if !result {
        return Some("are of images, and what is said to be pooled is not what they fold");
    }
    let positions = body.along.iter().map(Form::position);
    let from = at(images, &images.from, &positions.collect::<Vec<_>>());
    if from.is_none() || from != forms.of(index) {
        return Some("say that elements lie elsewhere than they are loaded from");
    }
    let target = images.target.as_ref()?;
    let stored = match rest {
        [
            Stmt::Store {
                param, index, value, ..
            },
        ] if *param == target.param && *value == images.pooled => *index,
        _ => return Some("name a target that nothing but the result is stored to, once"),
    };
    let outputs = body.along.iter().map(|a| Form::of(a.outputs, &Dim::Const(1)));
    let to = at(images, &target.at, &outputs.collect::<Vec<_>>());
    (to.is_none() || to != forms.of(stored)).then_some("say that results lie elsewhere than they are stored to")
}

/// Where the facts say that positions are.
fn at(images: &WindowImages, access: &ImageAccess, positions: &[Option<Form>]) -> Option<Form> {
    if access.along.len() != positions.len() {
        return None;
    }
    let mut sum = Form::constant(access.base.clone())
        .plus(&Form::of(images.image, &access.image)?)?
        .plus(&Form::of(images.channel, &access.channel)?)?;
    for (position, step) in positions.iter().zip(&access.along) {
        sum = sum.plus(&position.as_ref()?.times(step)?)?;
    }
    Some(sum)
}
