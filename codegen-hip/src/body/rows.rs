//! Rows that threads share: what the body holds stays in registers between the folds.
//!
//! ```text
//! Vec<half_t, 8> x_held[2];                    // all loads first, so that they wait together
//! for step { x_held[step] = load_vector<8>(x + ...); }
//! for step { for j { max = Max::combine(max, x_held[step][j]); } }
//! max = reduce_block<Max, 256, 64>(max, turn);
//! float exp_held[16];                          // computed where it is needed first
//! ...
//! ```
//!
//! Where a mapping reads as needed, loads of later statements come with those, step by step.

use ir::Entity;
use ir::kernel::{AxisId, Expr, ExprId, Mapping, ParamId, RowBody, Stmt};

use super::parenthesised;
use super::stream::roots;
use super::team::Team;
use crate::emit::EmitError;
use crate::expr::Printer;
use crate::stmt::Running;
use crate::types::{operation, spelling};

/// What is held so far, and how a row is walked.
struct Row<'b> {
    axes: &'b [AxisId],
    steps: u32,
    /// Whether the last steps may lie beyond the row.
    guarded: bool,
    held: Vec<Held>,
    /// Loads to hold that are not made yet.
    unread: Vec<ExprId>,
    /// Expressions to hold that are not computed yet.
    pending: Vec<ExprId>,
}

/// An array of registers with an expression's value for each element of a thread.
struct Held {
    value: ExprId,
    array: String,
    /// The array is of vectors, one a step.
    wide: bool,
}

/// A load whose elements are held.
struct Loaded {
    held: Held,
    param: ParamId,
    index: ExprId,
}

/// The names of a thread's place in its row.
struct Place {
    step: String,
    /// The first element of the step, flat.
    element: String,
    kind: &'static str,
}

/// The spelling of an element's place among its thread's.
struct Element {
    step: String,
    neighbour: String,
    /// Among all of the thread's elements.
    number: String,
}

impl Printer<'_> {
    pub(super) fn row(&mut self, body: &RowBody) -> Result<(), EmitError> {
        let Mapping::Rows {
            lanes,
            block,
            vector,
            steps,
            as_needed,
            ..
        } = self.kernel.mapping
        else {
            return self.loops(&body.loops);
        };
        let lane = self.fresh("lane");
        let within_wave = lanes <= self.target.wave_size && lanes.is_power_of_two();
        let team = if within_wave {
            let within = if lanes == block {
                String::new()
            } else {
                format!(" % {lanes}")
            };
            self.out.line(format!("const int {lane} = (int)threadIdx.x{within};"));
            self.open_lane_points(&body.loops.parallel, lanes);
            Team::lanes(lane, lanes, vector)
        } else {
            self.out.line(format!("const int {lane} = (int)threadIdx.x;"));
            let team = self.block_team(lane, block, vector);
            self.open_block_points(&body.loops.parallel);
            team
        };
        let n = self.points(&body.row).0;
        let capacity = i64::from(lanes) * i64::from(vector) * i64::from(steps);
        let longest = n.bounds(self.symbols).1;
        if steps == 0 {
            self.team(&body.loops.stmts, &team)?;
        } else if longest.is_some_and(|n| n <= capacity) {
            self.held_row(body, &team, steps, as_needed)?;
        } else {
            let n = self.size(&n);
            self.out.open(format!("if ({n} <= {capacity})"));
            self.scope(|p| p.held_row(body, &team, steps, as_needed))?;
            self.out.close_open("else");
            self.scope(|p| p.team(&body.loops.stmts, &team))?;
            self.out.close("");
        }
        self.out.close("");
        Ok(())
    }

    /// A row that fits the registers.
    fn held_row(&mut self, body: &RowBody, team: &Team, steps: u32, as_needed: bool) -> Result<(), EmitError> {
        let capacity = i64::from(team.size) * i64::from(team.vector) * i64::from(steps);
        let is_load = |e: &ExprId| matches!(self.kernel.exprs[*e], Expr::Load { .. });
        let (loads, pending): (Vec<ExprId>, Vec<ExprId>) = body.held.iter().partition(|e| is_load(e));
        let mut row = Row {
            axes: &body.row,
            steps,
            guarded: !self.points(&body.row).0.is(capacity),
            held: Vec::new(),
            unread: Vec::new(),
            pending,
        };
        if as_needed {
            row.unread = loads;
        } else {
            self.hold_loads(&mut row, &loads, team)?;
        }
        let mut rest = body.loops.stmts.as_slice();
        while let Some(first) = rest.first() {
            match first {
                Stmt::Fold { .. } => {
                    let count = self.folds_together(rest);
                    let (together, after) = rest.split_at(count);
                    let running: Vec<Running> = together.iter().filter_map(|s| self.begin_fold(s)).collect();
                    self.pass(&mut row, &all_roots(together), &[], team, |p| {
                        p.take_in_all(together, &running, &body.row);
                    })?;
                    for r in &running {
                        let reduced = (team.reduce)(operation(r.op), &r.name);
                        self.out.line(format!("{} = {reduced};", r.name));
                        self.end_fold(r);
                    }
                    rest = after;
                    continue;
                }
                Stmt::Store { axes, .. } if !axes.is_empty() => {
                    let walks = |s: &&Stmt| matches!(s, Stmt::Store { axes, .. } if !axes.is_empty());
                    let (together, after) = rest.split_at(rest.iter().take_while(walks).count());
                    self.pass(&mut row, &all_roots(together), together, team, |_| ())?;
                    rest = after;
                    continue;
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

    /// Reads what is held, all of it before anything is computed from it.
    fn hold_loads(&mut self, row: &mut Row<'_>, loads: &[ExprId], team: &Team) -> Result<(), EmitError> {
        let found = self.declare_loads(row, loads, team)?;
        if !found.is_empty() {
            self.scope(|p| {
                let place = p.open_steps(row, team);
                let start = p.start(row, &place);
                p.read_step(row, &found, &place, &start, team.vector);
                p.close_steps(row);
            });
        }
        row.held.extend(found.into_iter().map(|load| load.held));
        Ok(())
    }

    /// Declares the arrays that loads go into.
    fn declare_loads(&mut self, row: &Row<'_>, loads: &[ExprId], team: &Team) -> Result<Vec<Loaded>, EmitError> {
        let Some(&inner) = row.axes.last() else {
            return Err(self.mismatch());
        };
        let vector = team.vector;
        let mut found = Vec::new();
        for &value in loads {
            let Expr::Load { param, index } = self.kernel.exprs[value] else {
                continue;
            };
            let dtype = self.kernel.params[param].dtype;
            let wide = vector > 1 && self.is_wide(dtype, index, inner, vector);
            let base = format!("{}_held", self.params[param.index()]);
            let (array, t) = (self.fresh(&base), spelling(dtype));
            self.out.line(match wide {
                true => format!("Vec<{t}, {vector}> {array}[{}];", row.steps),
                false => format!("{t} {array}[{}];", row.steps * vector),
            });
            let held = Held { value, array, wide };
            found.push(Loaded { held, param, index });
        }
        Ok(found)
    }

    /// Reads the elements of a step.
    fn read_step(&mut self, row: &Row<'_>, loads: &[Loaded], place: &Place, start: &str, vector: u32) {
        let Some(&inner) = row.axes.last() else { return };
        let (wide, narrow): (Vec<_>, Vec<_>) = loads.iter().partition(|load| load.held.wide);
        self.scope(|p| {
            p.bind_axis(inner, start);
            for Loaded { held, param, index } in wide {
                let (at, from) = (p.value(*index), p.params[param.index()].clone());
                p.out.line(format!(
                    "{}[{}] = load_vector<{vector}>({from} + {});",
                    held.array,
                    place.step,
                    parenthesised(&at)
                ));
            }
        });
        if !narrow.is_empty() {
            self.open_elements(row, place, start, vector, |p, at| {
                for Loaded { held, .. } in &narrow {
                    let value = p.value(held.value);
                    p.out.line(format!("{}[{}] = {value};", held.array, at.number));
                }
            });
        }
    }

    /// One walk along the row: holds what is needed for the first time, then does `each` and the stores.
    fn pass(
        &mut self,
        row: &mut Row<'_>,
        roots: &[ExprId],
        stores: &[Stmt],
        team: &Team,
        each: impl Fn(&mut Self),
    ) -> Result<(), EmitError> {
        let Some(&inner) = row.axes.last() else {
            return Err(self.mismatch());
        };
        let vector = team.vector;
        let (now, later): (Vec<ExprId>, Vec<ExprId>) = row.unread.iter().partition(|e| self.is_always(roots, **e));
        row.unread = later;
        // The first reads are under way together; later ones are read step by step, since others have registers by
        // then.
        let mut loads = Vec::new();
        if row.held.is_empty() {
            self.hold_loads(row, &now, team)?;
        } else {
            loads = self.declare_loads(row, &now, team)?;
        }
        let (now, later): (Vec<ExprId>, Vec<ExprId>) = row.pending.iter().partition(|e| self.is_always(roots, **e));
        row.pending = later;
        let new: Vec<Held> = now
            .into_iter()
            .map(|value| {
                let (array, t) = (self.fresh("held"), self.type_of(value));
                self.out.line(format!("{t} {array}[{}];", row.steps * vector));
                Held {
                    value,
                    array,
                    wide: false,
                }
            })
            .collect();
        self.scope(|p| {
            let place = p.open_steps(row, team);
            let start = p.start(row, &place);
            let into: Vec<(ParamId, ExprId, ExprId, Option<String>)> = stores
                .iter()
                .filter_map(|s| match s {
                    Stmt::Store {
                        param, index, value, ..
                    } => Some((*param, *index, *value)),
                    _ => None,
                })
                .map(|(param, index, value)| {
                    let dtype = p.kernel.params[param].dtype;
                    let wide = vector > 1 && p.is_wide(dtype, index, inner, vector);
                    let name = wide.then(|| {
                        let name = p.fresh(&format!("{}_wide", p.params[param.index()]));
                        p.out.line(format!("Vec<{}, {vector}> {name};", spelling(dtype)));
                        name
                    });
                    (param, index, value, name)
                })
                .collect();
            p.read_step(row, &loads, &place, &start, vector);
            p.open_elements(row, &place, &start, vector, |p, at| {
                for h in row.held.iter().chain(loads.iter().map(|load| &load.held)) {
                    p.bind_held(h, at);
                }
                for h in &new {
                    let value = p.value(h.value);
                    p.out.line(format!("{}[{}] = {value};", h.array, at.number));
                    p.bind_held(h, at);
                }
                each(p);
                for (param, index, value, wide) in &into {
                    match wide {
                        Some(name) => {
                            let value = p.value(*value);
                            p.out.line(format!("{name}[{}] = {value};", at.neighbour));
                        }
                        None => p.store(*param, *index, *value),
                    }
                }
            });
            p.scope(|p| {
                p.bind_axis(inner, &start);
                for (param, index, _, wide) in &into {
                    if let Some(name) = wide {
                        let (at, to) = (p.value(*index), p.params[param.index()].clone());
                        p.out
                            .line(format!("store_vector({to} + {}, {name});", parenthesised(&at)));
                    }
                }
            });
            p.close_steps(row);
        });
        row.held.extend(loads.into_iter().map(|load| load.held));
        row.held.extend(new);
        Ok(())
    }

    /// Opens the loop over a thread's steps, and what lies beyond the row is left out.
    fn open_steps(&mut self, row: &Row<'_>, team: &Team) -> Place {
        let (n, kind) = self.points(row.axes);
        let (step, element) = (self.fresh("step"), self.fresh("element"));
        self.out.line("#pragma unroll");
        self.out
            .open(format!("for (int {step} = 0; {step} < {}; ++{step})", row.steps));
        let times = if team.vector == 1 {
            String::new()
        } else {
            format!(" * {}", team.vector)
        };
        self.out.line(format!(
            "const {kind} {element} = ({step} * {} + {}){times};",
            team.size, team.lane
        ));
        if row.guarded {
            let n = self.size(&n);
            self.out.open(format!("if ({element} < {n})"));
        }
        Place { step, element, kind }
    }

    fn close_steps(&mut self, row: &Row<'_>) {
        if row.guarded {
            self.out.close("");
        }
        self.out.close("");
    }

    /// Declares the outer axes of the row; returns the name of the first position of the step along the innermost one.
    fn start(&mut self, row: &Row<'_>, place: &Place) -> String {
        match row.axes {
            [_] => place.element.clone(),
            [.., inner] => {
                let name = self.axis(*inner).to_owned();
                let start = self.fresh(&format!("{name}0"));
                self.bind_axis(*inner, &start);
                self.split(&place.element, place.kind, row.axes);
                self.bind_axis(*inner, &name);
                start
            }
            [] => "0".to_owned(),
        }
    }

    /// Does something for each of a thread's neighbours in a step, given the spelling of its place.
    fn open_elements(
        &mut self,
        row: &Row<'_>,
        place: &Place,
        start: &str,
        vector: u32,
        each: impl FnOnce(&mut Self, &Element),
    ) {
        let Some(&inner) = row.axes.last() else { return };
        self.scope(|p| {
            if vector == 1 {
                p.bind_axis(inner, start);
                let (step, number) = (place.step.clone(), place.step.clone());
                let neighbour = "0".to_owned();
                each(
                    p,
                    &Element {
                        step,
                        neighbour,
                        number,
                    },
                );
                return;
            }
            let j = p.fresh("j");
            let (kind, name) = (p.axis_type(inner), p.axis(inner).to_owned());
            p.out.line("#pragma unroll");
            p.out.open(format!("for (int {j} = 0; {j} < {vector}; ++{j})"));
            p.out.line(format!("const {kind} {name} = {start} + {j};"));
            let number = format!("{} * {vector} + {j}", place.step);
            each(
                p,
                &Element {
                    step: place.step.clone(),
                    neighbour: j,
                    number,
                },
            );
            p.out.close("");
        });
    }

    fn bind_held(&mut self, held: &Held, at: &Element) {
        let spelled = match held.wide {
            true => format!("{}[{}][{}]", held.array, at.step, at.neighbour),
            false => format!("{}[{}]", held.array, at.number),
        };
        self.bind_expr(held.value, &spelled);
    }
}

/// The expressions that some statements compute.
fn all_roots(stmts: &[Stmt]) -> Vec<ExprId> {
    stmts.iter().flat_map(roots).collect()
}
