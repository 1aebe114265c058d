//! Says in what a copy's facts are not those of its loops.

use super::form::{Form, Forms};
use crate::dim::Dim;
use crate::kernel::{CopyBody, Expr, Kernel, Stmt};

/// Says what is wrong with a copy's facts; `None` where its loops are what they say. Ids must be the kernel's.
pub(super) fn problem(kernel: &Kernel, body: &CopyBody) -> Option<&'static str> {
    let [
        Stmt::Store {
            param,
            index: stored,
            value,
            axes,
        },
    ] = body.loops.stmts.as_slice()
    else {
        return Some("are of one store, and the loops are not");
    };
    let index = match kernel.exprs[*value] {
        Expr::Load { param, index } if param == body.source => index,
        _ => return Some("name a source that what is stored is not loaded from as it is"),
    };
    if *param != body.target || !axes.is_empty() {
        return Some("name a target that the loops do not store to, an element at each point");
    }
    if body.steps.len() != body.loops.parallel.len() {
        return Some("have other steps than the loops have axes");
    }
    let form = |first: &Dim, source: bool| {
        let mut sum = Form::constant(first.clone());
        for (axis, step) in body.loops.parallel.iter().zip(&body.steps) {
            let by = if source { &step.source } else { &step.target };
            sum = sum.plus(&Form::of(Some(*axis), by)?)?;
        }
        Some(sum)
    };
    let mut forms = Forms::new(kernel);
    let is = |claimed: Option<Form>, found: Option<Form>| claimed.is_some() && claimed == found;
    if !is(form(&body.from, true), forms.of(index)) {
        return Some("say that elements lie elsewhere than they are loaded from");
    }
    (!is(form(&body.to, false), forms.of(*stored))).then_some("say that elements lie elsewhere than they are stored to")
}
