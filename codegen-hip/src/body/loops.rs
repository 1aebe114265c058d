//! Loops: a thread a point, or threads that share one.

use ir::Entity;
use ir::kernel::{AxisId, ExprId, Loops, Mapping, Stmt, VarId};

use super::team::Team;
use crate::emit::EmitError;
use crate::expr::Printer;
use crate::stmt::Running;

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
                self.open_lane_points(&body.parallel, lanes);
                self.team(&body.stmts, &Team::lanes(lane, lanes, vector))?;
                self.out.close("");
                Ok(())
            }
            Mapping::Block { block, vector } => {
                let lane = self.fresh("lane");
                self.out.line(format!("const int {lane} = (int)threadIdx.x;"));
                let team = self.block_team(lane, block, vector);
                self.open_block_points(&body.parallel);
                self.team(&body.stmts, &team)?;
                self.out.close("");
                Ok(())
            }
            Mapping::Stream { vector, unroll, .. } => self.stream(body, vector, unroll),
            Mapping::Transpose { .. } => self.transpose(body),
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
    pub(super) fn folds_together(&self, stmts: &[Stmt]) -> usize {
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

    fn mentions(&self, e: ExprId, var: VarId) -> bool {
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

    pub(super) fn take_in_all(&mut self, folds: &[Stmt], running: &[Running], axes: &[AxisId]) {
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
}
