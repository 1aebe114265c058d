//! From expressions to a block program.
//!
//! Expressions are compiled once each (they are hash-consed) in the innermost scope that needs them; the branches of a
//! lazy select are scopes of their own. What both branches need and cannot read out of bounds is computed before them.

use std::collections::HashMap;

use ir::dim::Bindings;
use ir::entity::Entity;
use ir::kernel::{Access, Expr, ExprId, Kernel, ParamId, VarId};
use ir::op::{BinaryOp, UnaryOp};
use ir::types::DType;

use super::chains;
use super::slots::{Life, Slots};
use crate::affine::{Roots, Space, reachable};
use ir::host::Affine;
use ir::host::LowerError;
use ir::host::block::{
    Addr, Branch, Class, Guard, Inst, MAX_LANES, Program, Reg, RegInfo, Store, Table, VALUE_BYTES, scalar_bits,
};

/// More instructions than this are compiled again with eager selects, which never repeat an expression.
const MOST_INSTRUCTIONS: usize = 4096;

/// Terms of an index that data decides are told apart up to so many.
const MOST_SUMMANDS: usize = 64;

/// What programs of one kernel share.
pub(crate) struct Source<'a> {
    pub kernel: &'a Kernel,
    pub roots: &'a Roots,
    pub extents: &'a [i64],
    pub elements: Vec<i64>,
    sizes: HashMap<ExprId, i64>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(
        space: &Space<'a>,
        roots: &'a Roots,
        extents: &'a [i64],
        bindings: &Bindings,
    ) -> Result<Source<'a>, LowerError> {
        let kernel = space.kernel;
        let elements = kernel
            .params
            .values()
            .map(|p| p.count(bindings))
            .collect::<Result<_, _>>()?;
        let sizes = kernel
            .exprs
            .iter()
            .filter(|(_, e)| matches!(e, Expr::Size(_)))
            .map(|(id, _)| (id, space.size(id)))
            .collect();
        Ok(Source {
            kernel,
            roots,
            extents,
            elements,
            sizes,
        })
    }
}

#[derive(Default)]
struct Scope {
    memo: HashMap<ExprId, Reg>,
    insts: Vec<Inst>,
}

/// Builds one program.
pub(crate) struct Builder<'a> {
    source: &'a Source<'a>,
    /// The dims of rows and columns.
    row: Option<usize>,
    col: Option<usize>,
    eager: bool,
    scopes: Vec<Scope>,
    program: Program,
    vars: HashMap<VarId, Reg>,
    safe: HashMap<ExprId, bool>,
    /// What the caller gives.
    given: Vec<ExprId>,
    total: usize,
    error: Option<LowerError>,
}

/// What a program is to do, so that it can be compiled twice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spec {
    /// Variables that the caller gives, and whether they are uniform.
    pub vars: Vec<(VarId, bool)>,
    /// Expressions that the caller gives, after the variables, and whether they are uniform.
    pub exprs: Vec<(ExprId, bool)>,
    /// `Let`s and stores in order; a store's value may use the lets before it.
    pub steps: Vec<SpecStep>,
    /// Values that the caller reads.
    pub results: Vec<ExprId>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SpecStep {
    Let(VarId, ExprId),
    Store(ParamId, ExprId, ExprId),
}

/// Compiles a program whose blocks have rows along dim `row` and columns along `col`, with room for `lanes` lanes.
///
/// Externals are in the order of `spec.vars`; results are in the order of `spec.results`, then the `Let`s of the spec.
///
/// # Errors
/// An access that is certain to leave its buffer, or a variable without a value.
pub(crate) fn compile(
    source: &Source<'_>,
    row: Option<usize>,
    col: Option<usize>,
    spec: &Spec,
    lanes: usize,
) -> Result<Program, LowerError> {
    let build = |eager: bool| -> Result<Builder<'_>, LowerError> {
        let mut b = Builder {
            source,
            row,
            col,
            eager,
            scopes: vec![Scope::default()],
            program: Program::default(),
            vars: HashMap::new(),
            safe: HashMap::new(),
            given: Vec::new(),
            total: 0,
            error: None,
        };
        for (var, uniform) in &spec.vars {
            let reg = b.reg(Class::of(source.kernel.vars[*var]), *uniform);
            b.program.externals.push(reg);
            b.vars.insert(*var, reg);
        }
        for (id, uniform) in &spec.exprs {
            let reg = b.reg(Class::of(source.kernel.exprs.dtype(*id)), *uniform);
            b.program.externals.push(reg);
            b.scopes[0].memo.insert(*id, reg);
            b.given.push(*id);
        }
        let mut lets = Vec::new();
        for step in &spec.steps {
            match *step {
                SpecStep::Let(var, value) => {
                    let reg = b.expr(value);
                    b.vars.insert(var, reg);
                    lets.push(reg);
                }
                SpecStep::Store(param, index, value) => b.store(param, index, value),
            }
        }
        let results: Vec<Reg> = spec.results.iter().map(|e| b.expr(*e)).collect();
        b.program.results = results.into_iter().chain(lets).collect();
        match b.error.take() {
            Some(error) => Err(error),
            None => Ok(b),
        }
    };
    let mut b = build(false)?;
    if b.total > MOST_INSTRUCTIONS || b.program.regs.len() > usize::from(u16::MAX) {
        b = build(true)?;
    }
    if b.program.regs.len() > usize::from(u16::MAX) {
        return Err(LowerError::Unsupported {
            what: "an expression of more than 65535 values".into(),
            at: format!("kernel {}", source.kernel.name),
        });
    }
    Ok(b.finish(lanes.clamp(1, MAX_LANES.max(lanes))))
}

impl Builder<'_> {
    fn reg(&mut self, class: Class, uniform: bool) -> Reg {
        let reg = Reg(self.program.regs.len().min(usize::from(u16::MAX)) as u16);
        self.program.regs.push(RegInfo {
            class,
            uniform,
            slot: None,
        });
        reg
    }

    fn info(&self, reg: Reg) -> &RegInfo {
        &self.program.regs[usize::from(reg.0)]
    }

    fn emit(&mut self, inst: Inst) {
        self.total += 1;
        if let Some(scope) = self.scopes.last_mut() {
            scope.insts.push(inst);
        }
    }

    fn constant(&mut self, class: Class, bits: u64) -> Reg {
        if let Some((reg, _)) = self
            .program
            .consts
            .iter()
            .find(|(r, b)| *b == bits && self.program.regs[usize::from(r.0)].class == class)
        {
            return *reg;
        }
        let reg = self.reg(class, true);
        self.program.consts.push((reg, bits));
        reg
    }

    fn steps(&self, form: &Affine) -> (i64, i64) {
        (self.row.map_or(0, |d| form.get(d)), self.col.map_or(0, |d| form.get(d)))
    }

    fn expr(&mut self, id: ExprId) -> Reg {
        if let Some(reg) = self.scopes.iter().rev().find_map(|s| s.memo.get(&id)) {
            return *reg;
        }
        let reg = self.fresh(id);
        if let Some(scope) = self.scopes.last_mut() {
            scope.memo.insert(id, reg);
        }
        reg
    }

    fn fresh(&mut self, id: ExprId) -> Reg {
        let source = self.source;
        let exprs = &source.kernel.exprs;
        let dtype = exprs.dtype(id);
        // Branches that repeat each other may be as many as two to the depth: this program is not the one that is kept.
        if !self.eager && self.total > MOST_INSTRUCTIONS {
            return self.constant(Class::of(dtype), 0);
        }
        if let Some(form) = source.roots.get(&id) {
            if form.is_constant() {
                return self.constant(Class::I64, form.base as u64);
            }
            let (row, col) = self.steps(form);
            let dst = self.reg(Class::I64, row == 0 && col == 0);
            self.emit(Inst::Index {
                dst,
                form: form.clone(),
                row,
                col,
            });
            return dst;
        }
        match exprs[id] {
            Expr::Const(d, v) => self.constant(Class::of(d), scalar_bits(d, v)),
            Expr::Size(_) => self.constant(Class::I64, source.sizes.get(&id).copied().unwrap_or(0) as u64),
            // Axes are affine, hence roots whenever they are reached.
            Expr::Axis(a) => {
                self.fail(format!("axis {a} is not bound here"));
                self.constant(Class::I64, 0)
            }
            Expr::Var(v) => match self.vars.get(&v) {
                Some(reg) => *reg,
                None => {
                    self.fail(format!("variable {v} has no value here"));
                    self.constant(Class::of(dtype), 0)
                }
            },
            Expr::Load { param, index } => {
                let addr = self.addr(param, index, true);
                let uniform = addr.row == 0
                    && addr.col == 0
                    && addr.dynamic.is_none_or(|r| self.info(r).uniform)
                    && addr.tables.iter().all(|t| t.row == 0 && t.col == 0);
                let dst = self.reg(Class::of(dtype), uniform);
                self.emit(Inst::Load {
                    dst,
                    param: param.index(),
                    dtype: source.kernel.params[param].dtype,
                    addr,
                });
                dst
            }
            Expr::Unary(op, a) => {
                let from = exprs.dtype(a);
                let a = self.expr(a);
                let dst = self.reg(Class::of(dtype), self.info(a).uniform);
                self.emit(Inst::Unary {
                    dst,
                    op,
                    dtype: from,
                    a,
                });
                dst
            }
            Expr::Binary(op, a, b) => {
                let from = exprs.dtype(a);
                let (a, b) = (self.expr(a), self.expr(b));
                let uniform = self.info(a).uniform && self.info(b).uniform;
                let dst = self.reg(Class::of(dtype), uniform);
                self.emit(Inst::Binary {
                    dst,
                    op,
                    dtype: from,
                    a,
                    b,
                });
                dst
            }
            Expr::Cast(to, a) => {
                let from = exprs.dtype(a);
                let a = self.expr(a);
                // Narrow floats are held as f32: widening is nothing.
                if from == to || (to == DType::F32 && Class::of(from) == Class::F32) {
                    return a;
                }
                let dst = self.reg(Class::of(to), self.info(a).uniform);
                self.emit(Inst::Cast { dst, from, to, a });
                dst
            }
            Expr::Select(c, t, e) => self.select(c, t, e, Class::of(dtype)),
            Expr::Philox { seed, counter, lane } => {
                let counter = self.expr(counter);
                let dst = self.reg(Class::I64, self.info(counter).uniform);
                self.emit(Inst::Philox {
                    dst,
                    seed,
                    lane,
                    counter,
                });
                dst
            }
        }
    }

    fn fail(&mut self, what: String) {
        self.error.get_or_insert(LowerError::Unsupported {
            what,
            at: format!("kernel {}", self.source.kernel.name),
        });
    }

    fn select(&mut self, c: ExprId, t: ExprId, e: ExprId, class: Class) -> Reg {
        let mut conditions = Vec::new();
        let (then, other, ranged) = match self.ranges(c, false, &mut conditions) {
            true => (t, e, true),
            false => {
                conditions.clear();
                match self.ranges(c, true, &mut conditions) {
                    true => (e, t, true),
                    false => (t, e, false),
                }
            }
        };
        if ranged {
            let bounds: Vec<(i64, i64)> = conditions.iter().map(|f| f.range(self.source.extents)).collect();
            if bounds.iter().all(|(lo, _)| *lo >= 0) {
                return self.expr(then);
            }
            if bounds.iter().any(|(_, hi)| *hi < 0) {
                return self.expr(other);
            }
        }
        let both_safe = self.safe(t) && self.safe(e);
        if self.eager || (!ranged && both_safe) {
            let (cond, a, b) = (self.expr(c), self.expr(t), self.expr(e));
            let uniform = [cond, a, b].iter().all(|r| self.info(*r).uniform);
            let dst = self.reg(class, uniform);
            self.emit(Inst::Blend { dst, cond, a, b });
            return dst;
        }
        self.share(then, other);
        let cond = if ranged { None } else { Some(self.expr(c)) };
        let mut branch = |value: ExprId| {
            self.scopes.push(Scope::default());
            let reg = self.expr(value);
            let insts = self.scopes.pop().map(|s| s.insts).unwrap_or_default();
            (insts, reg)
        };
        let (then, a) = branch(then);
        let (other, b) = branch(other);
        let data = self.info(a).uniform && self.info(b).uniform;
        match cond {
            None => {
                let conditions: Vec<(Affine, i64, i64)> = conditions
                    .into_iter()
                    .map(|f| {
                        let (row, col) = self.steps(&f);
                        (f, row, col)
                    })
                    .collect();
                let uniform = data && conditions.iter().all(|c| c.1 == 0 && c.2 == 0);
                let dst = self.reg(class, uniform);
                self.emit(Inst::Guard(Box::new(Guard {
                    dst,
                    conditions,
                    then,
                    a,
                    other,
                    b,
                })));
                dst
            }
            Some(cond) => {
                let dst = self.reg(class, data && self.info(cond).uniform);
                self.emit(Inst::Branch(Box::new(Branch {
                    dst,
                    cond,
                    then,
                    a,
                    other,
                    b,
                })));
                dst
            }
        }
    }

    /// Says whether the condition (its negation) is a conjunction of affine comparisons, and lists forms that are then
    /// all at least 0.
    fn ranges(&self, id: ExprId, negated: bool, out: &mut Vec<Affine>) -> bool {
        let exprs = &self.source.kernel.exprs;
        match exprs[id] {
            Expr::Unary(UnaryOp::Not, a) if exprs.dtype(a) == DType::Bool => self.ranges(a, !negated, out),
            Expr::Binary(BinaryOp::And, a, b) if !negated && exprs.dtype(a) == DType::Bool => {
                self.ranges(a, negated, out) && self.ranges(b, negated, out)
            }
            Expr::Binary(BinaryOp::Or, a, b) if negated && exprs.dtype(a) == DType::Bool => {
                self.ranges(a, negated, out) && self.ranges(b, negated, out)
            }
            Expr::Const(DType::Bool, v) => {
                out.push(Affine::constant(if v.as_bool() != negated { 0 } else { -1 }));
                true
            }
            Expr::Binary(op, a, b) if op.is_comparison() => {
                let (Some(a), Some(b)) = (self.source.roots.get(&a), self.source.roots.get(&b)) else {
                    return false;
                };
                let less = b.plus(a, -1);
                let more = a.plus(b, -1);
                let shift = |mut f: Affine| {
                    f.base = f.base.wrapping_sub(1);
                    f
                };
                match (op, negated) {
                    (BinaryOp::Lt, false) | (BinaryOp::Ge, true) => out.push(shift(less)),
                    (BinaryOp::Le, false) | (BinaryOp::Gt, true) => out.push(less),
                    (BinaryOp::Gt, false) | (BinaryOp::Le, true) => out.push(shift(more)),
                    (BinaryOp::Ge, false) | (BinaryOp::Lt, true) => out.push(more),
                    (BinaryOp::Eq, false) | (BinaryOp::Ne, true) => {
                        out.push(less);
                        out.push(more);
                    }
                    _ => return false,
                }
                true
            }
            _ => false,
        }
    }

    /// Says whether the expression reads inside its buffers at every point, whoever asks.
    fn safe(&mut self, id: ExprId) -> bool {
        if let Some(known) = self.safe.get(&id) {
            return *known;
        }
        let source = self.source;
        let expr = &source.kernel.exprs[id];
        let mut safe = true;
        if !source.roots.contains_key(&id) {
            expr.for_each_operand(|o| safe &= self.safe(o));
        }
        if let Expr::Load { param, index } = expr {
            safe &= match source.roots.get(index) {
                Some(form) => {
                    let (lo, hi) = form.range(source.extents);
                    lo >= 0 && hi < source.elements[param.index()]
                }
                // Indices that data decides are clamped.
                None => true,
            };
        }
        self.safe.insert(id, safe);
        safe
    }

    /// Computes here what both branches would compute and may be computed anywhere.
    fn share(&mut self, a: ExprId, b: ExprId) {
        let kernel = self.source.kernel;
        let left = self.above_roots(a);
        let right = self.above_roots(b);
        let mut covered = vec![false; kernel.exprs.len()];
        // Users come after their operands: going backwards meets the maximal ones first.
        for i in (0..left.len()).rev() {
            let id = ExprId::new(i);
            let trivial = matches!(kernel.exprs[id], Expr::Const(..) | Expr::Size(_) | Expr::Var(_));
            if !left[i] || !right[i] || trivial || covered[i] || !self.safe(id) {
                continue;
            }
            for e in reachable(kernel, &[id]) {
                covered[e.index()] = true;
            }
            self.expr(id);
        }
    }

    /// Which expressions are under `id`, roots included, what is below them not.
    fn above_roots(&self, id: ExprId) -> Vec<bool> {
        let mut seen = vec![false; self.source.kernel.exprs.len()];
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            if !std::mem::replace(&mut seen[id.index()], true) && !self.source.roots.contains_key(&id) {
                self.source.kernel.exprs[id].for_each_operand(|o| stack.push(o));
            }
        }
        seen
    }

    /// A term that programs read from its buffer, lanes and all.
    fn table(&self, term: ExprId) -> Option<Table> {
        let kernel = self.source.kernel;
        let Expr::Load { param, index } = kernel.exprs[term] else {
            return None;
        };
        let form = self.source.roots.get(&index)?;
        let (lo, hi) = form.range(self.source.extents);
        let inside = lo >= 0 && hi < self.source.elements[param.index()];
        let (row, col) = self.steps(form);
        let kept = kernel.params[param].dtype == DType::I64 && kernel.params[param].access == Access::Read;
        (inside && kept && matches!(col, 0 | 1)).then(|| Table {
            param: param.index(),
            form: form.clone(),
            row,
            col,
        })
    }

    fn addr(&mut self, param: ParamId, index: ExprId, load: bool) -> Addr {
        let mut form = Affine::constant(0);
        let mut rest = Vec::new();
        self.terms(index, 1, &mut form, &mut rest);
        let mut tables: Vec<Table> = Vec::new();
        if load && rest.iter().all(|(id, sign)| *sign > 0 && !self.given.contains(id)) {
            let found: Option<Vec<Table>> = rest.iter().map(|(id, _)| self.table(*id)).collect();
            let columns = |tables: &[Table]| tables.iter().filter(|t| t.col != 0).count();
            if let Some(found) = found.filter(|tables| columns(tables) <= 1) {
                tables = found;
                rest.clear();
            }
        }
        let elements = self.source.elements[param.index()];
        let (row, col) = self.steps(&form);
        let mut dynamic: Option<Reg> = None;
        for (id, sign) in rest {
            let mut reg = self.expr(id);
            if sign < 0 {
                let dst = self.reg(Class::I64, self.info(reg).uniform);
                self.emit(Inst::Unary {
                    dst,
                    op: UnaryOp::Neg,
                    dtype: DType::I64,
                    a: reg,
                });
                reg = dst;
            }
            dynamic = Some(match dynamic {
                None => reg,
                Some(sum) => {
                    let uniform = self.info(sum).uniform && self.info(reg).uniform;
                    let dst = self.reg(Class::I64, uniform);
                    self.emit(Inst::Binary {
                        dst,
                        op: BinaryOp::Add,
                        dtype: DType::I64,
                        a: sum,
                        b: reg,
                    });
                    dst
                }
            });
        }
        let (lo, hi) = form.range(self.source.extents);
        let check = dynamic.is_some() || !tables.is_empty() || lo < 0 || hi >= elements;
        Addr {
            form,
            row,
            col,
            dynamic,
            tables,
            elements,
            check,
        }
    }

    /// Splits a sum into its affine part and the terms that data decides.
    fn terms(&self, id: ExprId, sign: i64, form: &mut Affine, rest: &mut Vec<(ExprId, i64)>) {
        if let Some(root) = self.source.roots.get(&id) {
            *form = form.plus(root, sign);
            return;
        }
        match self.source.kernel.exprs[id] {
            // A sum whose parts are sums of the same parts has as many as one likes.
            _ if rest.len() >= MOST_SUMMANDS || self.given.contains(&id) => rest.push((id, sign)),
            Expr::Binary(BinaryOp::Add, a, b) => {
                self.terms(a, sign, form, rest);
                self.terms(b, sign, form, rest);
            }
            Expr::Binary(BinaryOp::Sub, a, b) => {
                self.terms(a, sign, form, rest);
                self.terms(b, -sign, form, rest);
            }
            _ => rest.push((id, sign)),
        }
    }

    fn store(&mut self, param: ParamId, index: ExprId, value: ExprId) {
        let mut reg = self.expr(value);
        let addr = self.addr(param, index, false);
        let dtype = self.source.kernel.params[param].dtype;
        let class = Class::of(dtype);
        if self.info(reg).class != class {
            let dst = self.reg(class, self.info(reg).uniform);
            let from = self.source.kernel.exprs.dtype(value);
            self.emit(Inst::Cast {
                dst,
                from,
                to: dtype,
                a: reg,
            });
            reg = dst;
        }
        if addr.dynamic.is_none() && addr.check && self.source.extents.iter().all(|e| *e > 0) {
            self.fail(format!(
                "a store to {} outside its {} elements",
                self.source.kernel.params[param].name, addr.elements
            ));
        }
        self.program.stores.push(Store {
            param: param.index(),
            dtype,
            addr,
            value: reg,
        });
    }

    /// Assigns slots to registers by where they are last used.
    fn finish(mut self, lanes: usize) -> Program {
        let insts = self.scopes.pop().map(|s| s.insts).unwrap_or_default();
        let mut program = self.program;
        program.insts = insts;
        program.lanes = lanes;
        chains::join(&mut program);
        let mut life = Life {
            at: 0,
            last: vec![0; program.regs.len()],
            defined: vec![false; program.regs.len()],
        };
        life.list(&program.insts);
        let end = life.at + 1;
        for reg in program
            .results
            .iter()
            .chain(program.stores.iter().map(|s| &s.value))
            .chain(program.stores.iter().filter_map(|s| s.addr.dynamic.as_ref()))
        {
            life.last[usize::from(reg.0)] = end;
        }
        life.alias(&program.insts);
        let values = program.regs.len() * VALUE_BYTES;
        let mut slots = Slots {
            free: [Vec::new(), Vec::new(), Vec::new(), Vec::new()],
            top: values.next_multiple_of(64),
            lanes,
            expiry: Vec::new(),
            at: 0,
            last: &life.last,
        };
        slots.list(&program.insts, &mut program.regs);
        program.scratch = slots.top;
        program.direct = direct_store(&program);
        program.cost = life.at.max(1) + program.stores.len();
        program
    }
}

/// The register whose lanes may be computed right where the only store puts them.
fn direct_store(program: &Program) -> Option<Reg> {
    let [store] = program.stores.as_slice() else {
        return None;
    };
    let natural = matches!(store.dtype, DType::F32 | DType::F64 | DType::I64);
    let defined = program.insts.iter().any(|i| match i {
        Inst::Unary { dst, .. } | Inst::Binary { dst, .. } | Inst::Cast { dst, .. } | Inst::Blend { dst, .. } => {
            *dst == store.value
        }
        Inst::Chain(chain) => chain.dst == store.value,
        // What is gathered; other loads stay where they are.
        Inst::Load { dst, addr, .. } => *dst == store.value && addr.tables.iter().any(|t| t.row != 0 || t.col != 0),
        _ => false,
    });
    let plain = natural && store.addr.dynamic.is_none() && !store.addr.check && program.results.is_empty();
    (plain && defined && !program.regs[usize::from(store.value.0)].uniform).then_some(store.value)
}
