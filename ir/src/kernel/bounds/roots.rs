//! What a body evaluates, and over which axes.

use crate::kernel::{AxisId, Body, ExprId, Kernel, ParamId, Stmt};

/// An expression that is evaluated at every point of some axes.
pub(super) struct Root {
    pub expr: ExprId,
    pub axes: Vec<AxisId>,
    /// What holds where it is evaluated.
    pub given: Option<ExprId>,
    /// The parameter that the expression is a position in, which is stored to.
    pub store: Option<ParamId>,
}

/// Lists the expressions that a kernel evaluates.
pub(super) fn roots(kernel: &Kernel) -> Vec<Root> {
    let mut out = Vec::new();
    let value = |out: &mut Vec<Root>, expr: ExprId, axes: &[&[AxisId]]| {
        out.push(Root {
            expr,
            axes: axes.concat(),
            given: None,
            store: None,
        });
    };
    match &kernel.body {
        Body::Loops(l) => stmts(&mut out, &l.stmts, &[&l.parallel]),
        Body::Row(r) => {
            // What is held is read for every element, whatever the statements ask for.
            let composite = r.composite.iter().flat_map(|c| [Some(c.x), c.scale, c.bias]).flatten();
            for e in r.held.iter().copied().chain(composite) {
                value(&mut out, e, &[&r.loops.parallel, &r.row]);
            }
            stmts(&mut out, &r.loops.stmts, &[&r.loops.parallel]);
        }
        Body::Copy(c) => stmts(&mut out, &c.loops.stmts, &[&c.loops.parallel]),
        // The fold's value has the element, on the conditions on which it is read.
        Body::Window(w) => stmts(&mut out, &w.loops.stmts, &[&w.loops.parallel]),
        Body::Transform(t) => {
            // The element is read wherever it stands.
            value(&mut out, t.element, &[&t.parallel, &t.from]);
            for (condition, axes) in [(t.within, &t.from), (t.inside, &t.to)] {
                condition.iter().for_each(|e| value(&mut out, *e, &[&t.parallel, axes]));
            }
            let first = out.len();
            stmts(&mut out, &t.stmts, &[&t.parallel, &t.to]);
            out[first..].iter_mut().for_each(|root| root.given = t.inside);
        }
        Body::Contract(c) => {
            value(&mut out, c.lhs.value, &[&c.batch, &c.m, &c.n, &c.k]);
            value(&mut out, c.rhs.value, &[&c.batch, &c.m, &c.n, &c.k]);
            stmts(&mut out, &c.epilogue, &[&c.cells()]);
        }
        Body::Attention(a) => {
            let (q, k) = ([a.q], [a.k]);
            value(&mut out, a.query, &[&a.batch, &q, &k, &[a.d]]);
            value(&mut out, a.key, &[&a.batch, &q, &k, &[a.d]]);
            value(&mut out, a.score, &[&a.batch, &q, &k]);
            if let Some(range) = &a.range {
                value(&mut out, range.inside, &[&a.batch, &q, &k]);
                for bound in [range.first, range.end, range.nothing].into_iter().flatten() {
                    value(&mut out, bound, &[&a.batch, &q]);
                }
            }
            value(&mut out, a.value, &[&a.batch, &q, &k, &[a.dv]]);
            stmts(&mut out, &a.epilogue, &[&a.batch, &q, &[a.dv]]);
        }
        Body::Scan(s) => {
            value(&mut out, s.value, &[&s.parallel, &[s.axis]]);
            stmts(&mut out, &s.stores, &[&s.parallel, &[s.axis]]);
        }
        Body::Sort(s) => {
            value(&mut out, s.value, &[&s.parallel, &[s.axis]]);
            stmts(&mut out, &s.stores, &[&s.parallel, &[s.rank]]);
        }
        Body::Recurrent(r) => {
            for (expr, axes) in r.operands() {
                value(&mut out, expr, &[&axes]);
            }
            stmts(&mut out, &r.stores, &[&r.cells()]);
        }
    }
    out
}

fn stmts(out: &mut Vec<Root>, stmts: &[Stmt], around: &[&[AxisId]]) {
    for stmt in stmts {
        let mut push = |expr: ExprId, own: &[AxisId], store: Option<ParamId>| {
            out.push(Root {
                expr,
                axes: [around.concat().as_slice(), own].concat(),
                given: None,
                store,
            });
        };
        match stmt {
            Stmt::Let { value, .. } => push(*value, &[], None),
            Stmt::Fold { axes, value, .. } => push(*value, axes, None),
            Stmt::Store {
                param,
                index,
                value,
                axes,
            }
            | Stmt::Update {
                param,
                index,
                value,
                axes,
                ..
            } => {
                push(*index, axes, Some(*param));
                push(*value, axes, None);
            }
        }
    }
}
