//! One kernel for all launches that differ only in their buffers.

use std::collections::{HashMap, HashSet};

use ir::kernel::{Body, Expr, ExprId, Exprs, Kernel, Mapping, ParamId, Stmt};
use ir::plan::KernelId;
use ir::{Entity, Table};

/// The kernels of a plan by what they compute.
#[derive(Default)]
pub struct Kernels {
    known: HashMap<Kernel, KernelId>,
}

impl Kernels {
    /// Adds a kernel, or finds the one that is the same but for name and origins; the first launch's origins stay, so
    /// that the text of a kernel does not grow with the layers that share it. Names may repeat until [`number`] has
    /// seen them.
    pub fn add(&mut self, table: &mut Table<KernelId, Kernel>, mut kernel: Kernel) -> KernelId {
        let (origins, name) = (std::mem::take(&mut kernel.origins), std::mem::take(&mut kernel.name));
        if let Some(id) = self.known.get(&kernel) {
            return *id;
        }
        let id = table.push(Kernel {
            name,
            origins,
            ..kernel.clone()
        });
        self.known.insert(kernel, id);
        id
    }
}

/// Gives kernels of one name numbers: `relu`, `relu_2`.
pub fn number(table: &mut Table<KernelId, Kernel>) {
    let mut taken: HashSet<String> = table.values().map(|k| k.name.clone()).collect();
    let mut seen: HashMap<String, u32> = HashMap::new();
    for kernel in table.values_mut() {
        let count = seen.entry(kernel.name.clone()).or_insert(0);
        *count += 1;
        // A kernel may be called `relu_2` for what it does.
        while *count > 1 && !taken.insert(format!("{}_{count}", kernel.name)) {
            *count += 1;
        }
        if *count > 1 {
            kernel.name = format!("{}_{count}", kernel.name);
        }
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
    let e = &|id: &mut ExprId| *id = moved[id.index()];
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
    if let Mapping::Transpose { tiled, .. } = &mut kernel.mapping {
        tiled.iter_mut().for_each(e);
        let mut seen = HashSet::new();
        tiled.retain(|load| seen.insert(*load));
    }
    match &mut kernel.body {
        Body::Loops(l) => stmts(&mut l.stmts),
        Body::Row(r) => {
            r.held.iter_mut().for_each(e);
            if let Some(c) = &mut r.composite {
                e(&mut c.x);
                c.scale.iter_mut().chain(&mut c.bias).for_each(e);
            }
            stmts(&mut r.loops.stmts);
        }
        Body::Copy(c) => {
            (c.source, c.target) = (to(c.source), to(c.target));
            stmts(&mut c.loops.stmts);
        }
        Body::Window(w) => {
            w.map_exprs(e);
            if let Some(images) = &mut w.images {
                images.source = to(images.source);
                if let Some(target) = &mut images.target {
                    target.param = to(target.param);
                }
            }
            stmts(&mut w.loops.stmts);
        }
        Body::Transform(t) => {
            e(&mut t.element);
            t.within.iter_mut().chain(&mut t.inside).for_each(e);
            stmts(&mut t.stmts);
        }
        Body::Contract(c) => {
            for operand in [&mut c.lhs, &mut c.rhs] {
                operand.map_exprs(e);
                if let Some(access) = &mut operand.access {
                    access.param = to(access.param);
                }
            }
            c.statistic.iter_mut().for_each(|statistic| e(&mut statistic.value));
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
            if let Some(range) = &mut a.range {
                let bounds = range.first.iter_mut().chain(&mut range.end).chain(&mut range.nothing);
                bounds.chain([&mut range.inside]).for_each(e);
            }
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
        Body::Recurrent(r) => {
            e(&mut r.input);
            e(&mut r.weights);
            e(&mut r.first);
            let others = [&mut r.first_cell, &mut r.bias, &mut r.peepholes, &mut r.lengths];
            others.into_iter().flatten().for_each(e);
            stmts(&mut r.stores);
        }
    }
}

#[cfg(test)]
mod tests {
    use ir::kernel::{Access, Axis, Loops, Param};
    use ir::{DType, Dim};

    use super::*;

    /// `out[i] = in[i]` over `n`.
    fn copy(name: &str, n: i64) -> Kernel {
        let mut exprs = Exprs::default();
        let param = |name: &str, access| Param {
            name: name.into(),
            dtype: DType::F32,
            elements: Dim::Const(n),
            access,
        };
        let params: Table<ParamId, Param> = [param("in", Access::Read), param("out", Access::Write)]
            .into_iter()
            .collect();
        let axes: Table<_, Axis> = [Axis {
            name: "i".into(),
            extent: Dim::Const(n),
        }]
        .into_iter()
        .collect();
        let axis = axes.keys().next().expect("one axis");
        let index = exprs.add(Expr::Axis(axis), DType::I64);
        let (from, to) = (ParamId::new(0), ParamId::new(1));
        let value = exprs.add(Expr::Load { param: from, index }, DType::F32);
        Kernel {
            name: name.into(),
            params,
            symbols: Vec::new(),
            axes,
            exprs,
            vars: Table::new(),
            body: Body::Loops(Loops {
                parallel: vec![axis],
                stmts: vec![Stmt::Store {
                    param: to,
                    index,
                    value,
                    axes: Vec::new(),
                }],
            }),
            mapping: Mapping::Host,
            origins: vec![name.into()],
        }
    }

    #[test]
    fn kernels_that_compute_the_same_are_one_whatever_they_are_called() {
        let (mut kernels, mut table) = (Kernels::default(), Table::new());
        let first = kernels.add(&mut table, copy("copy", 4));
        assert_eq!(kernels.add(&mut table, copy("other", 4)), first);
        assert_ne!(kernels.add(&mut table, copy("copy", 5)), first);
        assert_eq!(table[first].origins, ["copy"]);
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn names_that_end_in_digits_keep_them() {
        let mut table: Table<KernelId, Kernel> = ["copy", "copy", "copy_2", "copy", "gemm_16", "gemm_16"]
            .into_iter()
            .enumerate()
            .map(|(n, name)| copy(name, n as i64))
            .collect();
        number(&mut table);
        let names: Vec<&str> = table.values().map(|k| k.name.as_str()).collect();
        assert_eq!(names, ["copy", "copy_3", "copy_2", "copy_4", "gemm_16", "gemm_16_2"]);
    }
}
