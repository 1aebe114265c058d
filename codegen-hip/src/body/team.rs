//! Threads that share a point: folds and row stores go over all of them.

use ir::Entity;
use ir::kernel::{AxisId, ExprId, Stmt};

use super::parenthesised;
use crate::emit::EmitError;
use crate::expr::Printer;
use crate::stmt::Running;
use crate::types::{operation, spelling};

/// Iterations of a row loop of a known length that are unrolled whole.
const UNROLL: i64 = 16;

/// The threads that share a point.
pub(super) struct Team {
    /// The number of the thread among them.
    pub lane: String,
    pub size: u32,
    pub vector: u32,
    /// Folds a value over the team, from `OP` and the value: `reduce_lanes<OP, 64>(value)`.
    pub reduce: Box<dyn Fn(&str, &str) -> String>,
}

impl Team {
    /// A team of some lanes of a wave.
    pub fn lanes(lane: String, size: u32, vector: u32) -> Team {
        Team {
            lane,
            size,
            vector,
            reduce: Box::new(move |op, value| format!("reduce_lanes<{op}, {size}>({value})")),
        }
    }
}

impl Printer<'_> {
    /// Makes a team of a whole workgroup; its folds take turns with two rows of LDS.
    pub(super) fn block_team(&mut self, lane: String, block: u32, vector: u32) -> Team {
        let (turn, wave) = (self.fresh("turn"), self.target.wave_size);
        self.out.line(format!("int {turn} = 0;"));
        Team {
            lane,
            size: block,
            vector,
            reduce: Box::new(move |op, value| format!("reduce_block<{op}, {block}, {wave}>({value}, {turn})")),
        }
    }

    /// Threads share each point: folds go over the team.
    pub(super) fn team(&mut self, stmts: &[Stmt], team: &Team) -> Result<(), EmitError> {
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
                        let reduced = (team.reduce)(operation(r.op), &r.name);
                        self.out.line(format!("{} = {reduced};", r.name));
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

    /// Opens a team's loop over the flat positions of `axes` and prints each element; `stores` that are contiguous are
    /// wide.
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
                    p.out.line("#pragma unroll 4");
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
