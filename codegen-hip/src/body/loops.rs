//! Loops: pointwise kernels, rows with folds, windows.

use ir::kernel::access::along;
use ir::kernel::{AxisId, ExprId, Loops, Mapping, Stmt};
use ir::{Dim, Entity};

use crate::emit::EmitError;
use crate::expr::Printer;
use crate::stmt::Running;
use crate::types::{is_nibble, operation, spelling};

/// Iterations of a row loop that are unrolled, so that a row read twice is kept in registers.
const UNROLL: i64 = 16;

/// The threads that share a point.
struct Team {
    /// The number of the thread among them.
    lane: String,
    size: u32,
    vector: u32,
    /// The fold over the team, from `OP` and the value: `reduce_lanes<OP, 64>`.
    reduce: Box<dyn Fn(&str) -> String>,
}

impl Printer<'_> {
    pub(super) fn loops(&mut self, body: &Loops) -> Result<(), EmitError> {
        match self.kernel.mapping {
            Mapping::Threads { vector: 1, .. } => {
                self.open_thread_points(&body.parallel);
                self.serial(&body.stmts);
                self.out.close("");
                Ok(())
            }
            Mapping::Threads { vector, .. } => self.vectors(body, vector),
            Mapping::Lanes { lanes, vector, .. } => {
                let lane = self.fresh("lane");
                self.out.line(format!("const int {lane} = (int)threadIdx.x % {lanes};"));
                let points = self.points(&body.parallel).0;
                let kind = self.threads(&points, lanes);
                let (name, n) = (self.flat_name(&body.parallel, "point"), self.size(&points));
                self.out.open(format!(
                    "for ({kind} {name} = global_thread<{kind}>() / {lanes}; {name} < {n}; {name} += grid_threads<{kind}>() / {lanes})"
                ));
                self.split(&name, kind, &body.parallel);
                let reduce = Box::new(move |op: &str| format!("reduce_lanes<{op}, {lanes}>"));
                self.team(
                    &body.stmts,
                    &Team {
                        lane,
                        size: lanes,
                        vector,
                        reduce,
                    },
                )?;
                self.out.close("");
                Ok(())
            }
            Mapping::Block { block, vector } => {
                let lane = self.fresh("lane");
                self.out.line(format!("const int {lane} = (int)threadIdx.x;"));
                self.open_block_points(&body.parallel);
                let wave = self.target.wave_size;
                let reduce = Box::new(move |op: &str| format!("reduce_block<{op}, {block}, {wave}>"));
                self.team(
                    &body.stmts,
                    &Team {
                        lane,
                        size: block,
                        vector,
                        reduce,
                    },
                )?;
                self.out.close("");
                Ok(())
            }
            _ => Err(self.mismatch()),
        }
    }

    /// A thread's own point: folds and row stores are plain loops.
    fn serial(&mut self, stmts: &[Stmt]) {
        let mut rest = stmts;
        while let Some(first) = rest.first() {
            match first {
                Stmt::Fold { axes, .. } => {
                    let count = self.folds_together(rest);
                    let (together, after) = rest.split_at(count);
                    let running: Vec<Running> = together.iter().filter_map(|s| self.begin_fold(s)).collect();
                    if axes.is_empty() {
                        // One point opens no block, so its names stay in view.
                        self.take_in_all(together, &running, axes);
                    } else {
                        self.scope(|p| {
                            p.open_loops(axes);
                            p.take_in_all(together, &running, axes);
                            axes.iter().for_each(|_| p.out.close(""));
                        });
                    }
                    running.iter().for_each(|r| self.end_fold(r));
                    rest = after;
                    continue;
                }
                Stmt::Store { axes, .. } | Stmt::Update { axes, .. } if !axes.is_empty() => {
                    self.scope(|p| {
                        p.open_loops(axes);
                        p.straight(std::slice::from_ref(first));
                        axes.iter().for_each(|_| p.out.close(""));
                    });
                }
                other => self.straight(std::slice::from_ref(other)),
            }
            rest = &rest[1..];
        }
    }

    fn open_loops(&mut self, axes: &[AxisId]) {
        for a in axes {
            let (kind, name) = (self.axis_type(*a), self.axis(*a).to_owned());
            let extent = self.size(&self.kernel.axes[*a].extent);
            self.out
                .open(format!("for ({kind} {name} = 0; {name} < {extent}; ++{name})"));
        }
    }

    /// How many of the first statements are folds over the same axes that do not need each other.
    fn folds_together(&self, stmts: &[Stmt]) -> usize {
        let Some(Stmt::Fold { axes: first, .. }) = stmts.first() else {
            return 0;
        };
        let mut vars = Vec::new();
        let mut count = 0;
        for s in stmts {
            let Stmt::Fold { var, axes, value, .. } = s else { break };
            if axes != first || vars.iter().any(|v| self.mentions(*value, *v)) {
                break;
            }
            vars.push(*var);
            count += 1;
        }
        count
    }

    fn mentions(&self, e: ExprId, var: ir::kernel::VarId) -> bool {
        let mut seen = vec![false; self.kernel.exprs.len()];
        let mut stack = vec![e];
        while let Some(e) = stack.pop() {
            if std::mem::replace(&mut seen[e.index()], true) {
                continue;
            }
            if self.kernel.exprs[e] == ir::kernel::Expr::Var(var) {
                return true;
            }
            self.kernel.exprs[e].for_each_operand(|o| stack.push(o));
        }
        false
    }

    fn take_in_all(&mut self, folds: &[Stmt], running: &[Running], axes: &[AxisId]) {
        let values: Vec<ExprId> = folds
            .iter()
            .filter_map(|s| match s {
                Stmt::Fold { value, .. } => Some(*value),
                _ => None,
            })
            .collect();
        let spelled = self.values(&values);
        let position = self.flat_position(axes);
        for ((value, text), fold) in values.iter().zip(&spelled).zip(running) {
            self.take_in(fold, self.kernel.exprs.dtype(*value), text, &position);
        }
    }

    /// The row-major position over axes in view.
    fn flat_position(&self, axes: &[AxisId]) -> String {
        let Some((first, rest)) = axes.split_first() else {
            return "0".to_owned();
        };
        rest.iter().fold(self.axis(*first).to_owned(), |sum, a| {
            let outer = if sum.contains(' ') { format!("({sum})") } else { sum };
            format!(
                "i64({outer}) * {} + {}",
                self.size_factor(&self.kernel.axes[*a].extent),
                self.axis(*a)
            )
        })
    }

    /// Each thread takes `vector` neighbours along the last axis.
    fn vectors(&mut self, body: &Loops, vector: u32) -> Result<(), EmitError> {
        let only_straight = body.stmts.iter().all(|s| match s {
            Stmt::Let { .. } => true,
            Stmt::Store { axes, .. } => axes.is_empty(),
            _ => false,
        });
        let (Some((&last, outer)), true) = (body.parallel.split_last(), only_straight) else {
            return Err(self.mismatch());
        };
        let width = i64::from(vector);
        let extent = self.kernel.axes[last].extent.clone();
        let whole = extent.known_divisor() % width == 0;
        let per_row = extent.ceil_div(&Dim::Const(width));
        let groups: Dim = outer
            .iter()
            .map(|a| self.kernel.axes[*a].extent.clone())
            .product::<Dim>()
            * &per_row;
        let kind = self.points(&body.parallel).1;
        let (group, n) = (self.fresh("group"), self.size(&groups));
        self.out
            .line(format!("// {vector} neighbours a thread along {}", self.axis(last)));
        self.out.open(format!(
            "for ({kind} {group} = global_thread<{kind}>(); {group} < {n}; {group} += grid_threads<{kind}>())"
        ));
        let (axis, axis_kind) = (self.axis(last).to_owned(), self.axis_type(last));
        let start = self.fresh(&format!("{axis}0"));
        if outer.is_empty() {
            self.out
                .line(format!("const {axis_kind} {start} = {group} * {vector};"));
        } else {
            let per_row = self.size_factor(&per_row);
            self.out
                .line(format!("const {axis_kind} {start} = {group} % {per_row} * {vector};"));
            let row = self.flat_name(outer, "row");
            self.out.line(format!("const {kind} {row} = {group} / {per_row};"));
            self.split(&row, kind, outer);
        }
        if whole {
            self.scope(|p| p.one_group(&body.stmts, last, &axis, &start, vector));
        } else {
            let end = self.size(&extent);
            self.out.open(format!("if ({start} + {vector} <= {end})"));
            self.scope(|p| p.one_group(&body.stmts, last, &axis, &start, vector));
            self.out.close_open("else");
            self.scope(|p| {
                p.out
                    .open(format!("for ({axis_kind} {axis} = {start}; {axis} < {end}; ++{axis})"));
                p.straight(&body.stmts);
                p.out.close("");
            });
            self.out.close("");
        }
        self.out.close("");
        Ok(())
    }

    /// A whole group of neighbours: wide loads, a loop over the neighbours, wide stores.
    fn one_group(&mut self, stmts: &[Stmt], axis: AxisId, name: &str, start: &str, vector: u32) {
        let kind = self.axis_type(axis);
        let roots: Vec<ExprId> = stmts
            .iter()
            .flat_map(|s| match s {
                Stmt::Let { value, .. } => vec![*value],
                Stmt::Store { index, value, .. } => vec![*index, *value],
                _ => vec![],
            })
            .collect();
        let lane = self.fresh("lane");
        let wide = self.wide_loads(&roots, axis, name, start, vector, &lane);
        let mut stores: Vec<Option<String>> = Vec::new();
        for s in stmts {
            let Stmt::Store { param, index, .. } = s else {
                stores.push(None);
                continue;
            };
            let dtype = self.kernel.params[*param].dtype;
            stores.push(self.is_wide(dtype, *index, axis, vector).then(|| {
                let name = format!("{}_wide", self.params[param.index()]);
                let name = self.fresh(&name);
                self.out.line(format!("Vec<{}, {vector}> {name};", spelling(dtype)));
                name
            }));
        }
        self.out.line("#pragma unroll");
        self.out
            .open(format!("for (int {lane} = 0; {lane} < {vector}; ++{lane})"));
        self.scope(|p| {
            p.out.line(format!("const {kind} {name} = {start} + {lane};"));
            wide.iter().for_each(|(e, text)| p.bind_expr(*e, text));
            for (s, wide_store) in stmts.iter().zip(&stores) {
                match (s, wide_store) {
                    (Stmt::Store { value, .. }, Some(into)) => {
                        let value = p.value(*value);
                        p.out.line(format!("{into}[{lane}] = {value};"));
                    }
                    _ => p.straight(std::slice::from_ref(s)),
                }
            }
        });
        self.out.close("");
        self.scope(|p| {
            p.bind_axis(axis, start);
            for (s, wide_store) in stmts.iter().zip(&stores) {
                if let (Stmt::Store { param, index, .. }, Some(from)) = (s, wide_store) {
                    let index = p.value(*index);
                    let name = p.params[param.index()].clone();
                    p.out
                        .line(format!("store_vector({name} + {}, {from});", parenthesised(&index)));
                }
            }
        });
    }

    fn is_wide(&self, dtype: ir::DType, index: ExprId, axis: AxisId, vector: u32) -> bool {
        !is_nibble(dtype)
            && dtype.bits() / 8 * vector <= 16
            && along(self.kernel, self.symbols, index, axis, i64::from(vector))
                .is_some_and(|m| m.is_wide(i64::from(vector)))
    }

    /// Reads what is contiguous and always read as whole vectors; returns the spelling of each load for a `lane`.
    fn wide_loads(
        &mut self,
        roots: &[ExprId],
        axis: AxisId,
        name: &str,
        start: &str,
        vector: u32,
        lane: &str,
    ) -> Vec<(ExprId, String)> {
        let mut wide = Vec::new();
        if vector == 1 {
            return wide;
        }
        for e in self.unconditional_loads(roots) {
            let ir::kernel::Expr::Load { param, index } = self.kernel.exprs[e] else {
                continue;
            };
            let dtype = self.kernel.params[param].dtype;
            if !self.is_wide(dtype, index, axis, vector) {
                continue;
            }
            self.bind_axis(axis, start);
            let at = self.value(index);
            let from = self.params[param.index()].clone();
            let local = self.fresh(&format!("{from}_wide"));
            let t = spelling(dtype);
            self.out.line(format!(
                "const Vec<{t}, {vector}> {local} = load_vector<{vector}>({from} + {});",
                parenthesised(&at)
            ));
            self.bind_axis(axis, name);
            wide.push((e, format!("{local}[{lane}]")));
        }
        // What the indices named holds at the group's start only.
        self.forget_locals_along(axis);
        wide
    }

    /// Threads share each point: folds go over the team.
    fn team(&mut self, stmts: &[Stmt], team: &Team) -> Result<(), EmitError> {
        let mut rest = stmts;
        while let Some(first) = rest.first() {
            match first {
                Stmt::Fold { axes, .. } => {
                    let count = self.folds_together(rest);
                    let (together, after) = rest.split_at(count);
                    let running: Vec<Running> = together.iter().filter_map(|s| self.begin_fold(s)).collect();
                    let roots: Vec<ExprId> = together
                        .iter()
                        .filter_map(|s| match s {
                            Stmt::Fold { value, .. } => Some(*value),
                            _ => None,
                        })
                        .collect();
                    self.team_row(axes, &roots, &[], team, |p| p.take_in_all(together, &running, axes))?;
                    for r in &running {
                        let reduce = (team.reduce)(operation(r.op));
                        self.out.line(format!("{0} = {reduce}({0});", r.name));
                        self.end_fold(r);
                    }
                    rest = after;
                    continue;
                }
                Stmt::Store {
                    param,
                    index,
                    value,
                    axes,
                } if !axes.is_empty() => {
                    let store = [(*param, *index, *value)];
                    self.team_row(axes, &[*index, *value], &store, team, |p| {
                        p.store(*param, *index, *value)
                    })?;
                }
                Stmt::Update {
                    param,
                    index,
                    value,
                    op,
                    axes,
                } if !axes.is_empty() => {
                    self.team_row(axes, &[*index, *value], &[], team, |p| {
                        p.update(*param, *index, *value, *op)
                    })?;
                }
                Stmt::Let { var, value } => self.let_stmt(*var, *value),
                other => {
                    self.out.open(format!("if ({} == 0)", team.lane));
                    self.scope(|p| p.straight(std::slice::from_ref(other)));
                    self.out.close("");
                }
            }
            rest = &rest[1..];
        }
        Ok(())
    }

    /// Opens a team's loop over the flat positions of `axes` and prints each element; `stores` that are contiguous are wide.
    fn team_row(
        &mut self,
        axes: &[AxisId],
        roots: &[ExprId],
        stores: &[(ir::kernel::ParamId, ExprId, ExprId)],
        team: &Team,
        each: impl Fn(&mut Self),
    ) -> Result<(), EmitError> {
        let (lane, size, vector) = (&team.lane, team.size, team.vector);
        let Some(&inner) = axes.last() else {
            // A fold over axes that are all 1: one lane brings in the only element.
            self.out.open(format!("if ({lane} == 0)"));
            self.scope(|p| each(p));
            self.out.close("");
            return Ok(());
        };
        let width = i64::from(vector);
        if self.kernel.axes[inner].extent.known_divisor() % width != 0 {
            return Err(self.mismatch());
        }
        self.scope(|p| {
            let (n, kind) = p.points(axes);
            let step = i64::from(size) * width;
            let flat = if vector == 1 {
                p.flat_name(axes, "element")
            } else {
                p.fresh("element")
            };
            let first = if vector == 1 {
                lane.clone()
            } else {
                format!("{lane} * {vector}")
            };
            let trips = n.as_const().map(|n| (n + step - 1) / step);
            match (n.as_const(), trips) {
                // Every lane makes the same number of steps: say so.
                (Some(c), Some(t)) if c % step == 0 => {
                    if t <= UNROLL {
                        p.out.line("#pragma unroll");
                    }
                    let at = p.fresh("step");
                    p.out.open(format!("for (int {at} = 0; {at} < {t}; ++{at})"));
                    let (from, by) = if vector == 1 {
                        (format!("{at} * {size} + {lane}"), String::new())
                    } else {
                        (format!("({at} * {size} + {lane})"), format!(" * {vector}"))
                    };
                    p.out.line(format!("const {kind} {flat} = {from}{by};"));
                }
                _ => {
                    let n = p.size(&n);
                    p.out
                        .open(format!("for ({kind} {flat} = {first}; {flat} < {n}; {flat} += {step})"));
                }
            }
            if vector == 1 {
                p.split(&flat, kind, axes);
                each(p);
            } else {
                p.team_vector(axes, inner, &flat, kind, roots, stores, vector, &each);
            }
            p.out.close("");
        });
        Ok(())
    }

    /// A lane's `vector` neighbours along the innermost folded axis.
    fn team_vector(
        &mut self,
        axes: &[AxisId],
        inner: AxisId,
        flat: &str,
        kind: &'static str,
        roots: &[ExprId],
        stores: &[(ir::kernel::ParamId, ExprId, ExprId)],
        vector: u32,
        each: &impl Fn(&mut Self),
    ) {
        let name = self.axis(inner).to_owned();
        // The group's start goes by the axis's name with a 0.
        let start = if axes.len() == 1 {
            flat.to_owned()
        } else {
            let start = self.fresh(&format!("{name}0"));
            self.bind_axis(inner, &start);
            self.split(flat, kind, axes);
            self.bind_axis(inner, &name);
            start
        };
        let lane = self.fresh("j");
        let wide = self.wide_loads(roots, inner, &name, &start, vector, &lane);
        let wide_store = stores
            .first()
            .copied()
            .filter(|(param, index, _)| self.is_wide(self.kernel.params[*param].dtype, *index, inner, vector));
        let into = wide_store.map(|(param, ..)| {
            let name = self.fresh(&format!("{}_wide", self.params[param.index()]));
            self.out.line(format!(
                "Vec<{}, {vector}> {name};",
                spelling(self.kernel.params[param].dtype)
            ));
            name
        });
        self.out.line("#pragma unroll");
        self.out
            .open(format!("for (int {lane} = 0; {lane} < {vector}; ++{lane})"));
        self.scope(|p| {
            p.out
                .line(format!("const {} {name} = {start} + {lane};", p.axis_type(inner)));
            wide.iter().for_each(|(e, text)| p.bind_expr(*e, text));
            match (wide_store, &into) {
                (Some((_, _, value)), Some(into)) => {
                    let value = p.value(value);
                    p.out.line(format!("{into}[{lane}] = {value};"));
                }
                _ => each(p),
            }
        });
        self.out.close("");
        if let (Some((param, index, _)), Some(into)) = (wide_store, into) {
            self.scope(|p| {
                p.bind_axis(inner, &start);
                let index = p.value(index);
                let to = p.params[param.index()].clone();
                p.out
                    .line(format!("store_vector({to} + {}, {into});", parenthesised(&index)));
            });
        }
    }
}

fn parenthesised(text: &str) -> String {
    if text.contains(' ') {
        format!("({text})")
    } else {
        text.to_owned()
    }
}
