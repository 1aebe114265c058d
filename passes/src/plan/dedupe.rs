//! One kernel for all launches that differ only in their buffers.

use std::collections::HashMap;

use ir::kernel::{Body, Expr, ExprId, Exprs, Kernel, ParamId, Stmt};
use ir::plan::KernelId;
use ir::{Entity, Table};

/// The kernels of a plan by what they compute.
#[derive(Default)]
pub struct Kernels {
    by_text: HashMap<Vec<u8>, KernelId>,
    names: HashMap<String, u32>,
}

impl Kernels {
    /// Adds a kernel, or finds the one that is the same but for name and origins; the first launch's origins stay, so that
    /// the text of a kernel does not grow with the layers that share it.
    pub fn add(&mut self, table: &mut Table<KernelId, Kernel>, mut kernel: Kernel) -> KernelId {
        let origins = std::mem::take(&mut kernel.origins);
        let name = std::mem::take(&mut kernel.name);
        // The debug text holds every field; ids in it are the kernel's own.
        let key = format!("{kernel:?}").into_bytes();
        if let Some(id) = self.by_text.get(&key) {
            return *id;
        }
        let count = self.names.entry(name.clone()).or_insert(0);
        *count += 1;
        kernel.name = if *count == 1 { name } else { format!("{name}_{count}") };
        kernel.origins = origins;
        let id = table.push(kernel);
        self.by_text.insert(key, id);
        id
    }
}

/// Removes the parameters that are not `used`, renumbering the rest.
pub fn keep_params(kernel: &mut Kernel, used: &[bool]) {
    let mut renumber: Vec<Option<ParamId>> = Vec::with_capacity(used.len());
    let mut params = Table::new();
    for (id, param) in kernel.params.iter() {
        renumber.push(used[id.index()].then(|| params.push(param.clone())));
    }
    kernel.params = params;
    rename(kernel, |p| renumber[p.index()].unwrap_or(p));
}

/// Replaces parameters throughout a kernel. Expressions keep their ids, unless two loads become one.
pub fn rename(kernel: &mut Kernel, to: impl Fn(ParamId) -> ParamId) {
    let mut exprs = Exprs::default();
    let mut moved: Vec<ExprId> = Vec::with_capacity(kernel.exprs.len());
    for (id, e) in kernel.exprs.iter() {
        let at = |o: ExprId| moved[o.index()];
        let new = match e.clone() {
            Expr::Load { param, index } => Expr::Load {
                param: to(param),
                index: at(index),
            },
            Expr::Unary(op, a) => Expr::Unary(op, at(a)),
            Expr::Binary(op, a, b) => Expr::Binary(op, at(a), at(b)),
            Expr::Select(a, b, c) => Expr::Select(at(a), at(b), at(c)),
            Expr::Cast(t, a) => Expr::Cast(t, at(a)),
            Expr::Philox { seed, counter, lane } => Expr::Philox {
                seed,
                counter: at(counter),
                lane,
            },
            leaf @ (Expr::Const(..) | Expr::Size(_) | Expr::Axis(_) | Expr::Var(_)) => leaf,
        };
        moved.push(exprs.add(new, kernel.exprs.dtype(id)));
    }
    kernel.exprs = exprs;
    let e = |id: &mut ExprId| *id = moved[id.index()];
    let stmts = |list: &mut Vec<Stmt>| {
        for s in list {
            match s {
                Stmt::Let { value, .. } | Stmt::Fold { value, .. } => e(value),
                Stmt::Store {
                    param, index, value, ..
                }
                | Stmt::Update {
                    param, index, value, ..
                } => {
                    *param = to(*param);
                    e(index);
                    e(value);
                }
            }
        }
    };
    match &mut kernel.body {
        Body::Loops(l) => stmts(&mut l.stmts),
        Body::Contract(c) => {
            e(&mut c.lhs);
            e(&mut c.rhs);
            stmts(&mut c.epilogue);
            if let Some(f) = &mut c.conv {
                f.input = to(f.input);
                f.filter = to(f.filter);
            }
        }
        Body::Attention(a) => {
            e(&mut a.query);
            e(&mut a.key);
            e(&mut a.value);
            e(&mut a.score);
            stmts(&mut a.epilogue);
        }
        Body::Scan(s) => {
            e(&mut s.value);
            stmts(&mut s.stores);
        }
        Body::Sort(s) => {
            e(&mut s.value);
            stmts(&mut s.stores);
        }
    }
}
