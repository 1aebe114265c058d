//! Statements: stores, updates, and how a fold takes in an element.

use ir::graph::eval::scalar::identity;
use ir::kernel::{AxisId, ExprId, ParamId, Stmt};
use ir::op::ReduceOp;
use ir::{DType, Dim, Entity};

use crate::expr::Printer;
use crate::types::{is_nibble, literal, operation, spelling};

/// A fold on its way: what it is called while it runs.
pub struct Running {
    pub op: ReduceOp,
    pub name: String,
    /// The variable's name, which for positions differs.
    pub result: String,
    /// The C++ type that is folded.
    pub kind: String,
}

impl Printer<'_> {
    /// Declares what a fold folds into.
    pub fn begin_fold(&mut self, stmt: &Stmt) -> Option<Running> {
        let Stmt::Fold { var, op, value, .. } = stmt else {
            return None;
        };
        let dtype = self.kernel.exprs.dtype(*value);
        let result = self.name_var(*var, op.name());
        let running = match op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => {
                let t = spelling(dtype);
                let name = self.fresh(&format!("{result}_best"));
                self.out.line(format!("Candidate<{t}> {name}{{{t}(), -1}};"));
                Running {
                    op: *op,
                    name,
                    result,
                    kind: format!("Candidate<{t}>"),
                }
            }
            _ => {
                let t = spelling(dtype);
                let start = literal(dtype, identity(*op, dtype));
                self.out.line(format!("{t} {result} = {start};"));
                Running {
                    op: *op,
                    name: result.clone(),
                    result,
                    kind: t.to_owned(),
                }
            }
        };
        Some(running)
    }

    /// Takes in an element at a position (used by arg folds).
    pub fn take_in(&mut self, fold: &Running, dtype: DType, element: &str, position: &str) {
        let name = &fold.name;
        let line = match fold.op {
            ReduceOp::Sum | ReduceOp::Mean if dtype.is_float() => format!("{name} += {element};"),
            ReduceOp::Prod if dtype.is_float() => format!("{name} *= {element};"),
            ReduceOp::ArgMax | ReduceOp::ArgMin => {
                let kind = &fold.kind;
                format!(
                    "{name} = {}::combine({name}, {kind}{{{element}, {position}}});",
                    operation(fold.op)
                )
            }
            ReduceOp::All | ReduceOp::Any => format!("{name} = {}::combine({name}, {element});", operation(fold.op)),
            _ => format!(
                "{name} = {}::combine<{}>({name}, {element});",
                operation(fold.op),
                fold.kind
            ),
        };
        self.out.line(line);
    }

    /// Turns what was folded into the variable, where they differ.
    pub fn end_fold(&mut self, fold: &Running) {
        if fold.name != fold.result {
            self.out
                .line(format!("const i64 {} = position_of({});", fold.result, fold.name));
        }
    }

    /// Names a value for the rest of the scope.
    pub fn let_stmt(&mut self, var: ir::kernel::VarId, value: ExprId) {
        let spelled = self.value(value);
        let kind = spelling(self.kernel.vars[var]);
        let name = self.name_var(var, "v");
        self.out.line(format!("const {kind} {name} = {spelled};"));
    }

    /// Stores one element.
    pub fn store(&mut self, param: ParamId, index: ExprId, value: ExprId) {
        let spelled = self.values(&[index, value]);
        self.store_spelled(param, &spelled[0], &spelled[1]);
    }

    /// Stores what is spelled already.
    pub fn store_spelled(&mut self, param: ParamId, index: &str, value: &str) {
        let name = &self.params[param.index()];
        let dtype = self.kernel.params[param].dtype;
        let line = if is_nibble(dtype) {
            format!("store_nibble({name}, {index}, {value});")
        } else {
            format!("{name}[{index}] = {value};")
        };
        self.out.line(line);
    }

    /// Combines into an element that other threads may combine into too.
    pub fn update(&mut self, param: ParamId, index: ExprId, value: ExprId, op: Option<ReduceOp>) {
        let Some(op) = op else {
            return self.store(param, index, value);
        };
        let spelled = self.values(&[index, value]);
        let name = &self.params[param.index()];
        self.out.line(format!(
            "update<{}>(&{name}[{}], {});",
            operation(op),
            spelled[0],
            spelled[1]
        ));
    }

    /// Declares the axes that a flat position stands for, row-major. With one axis the position is bound to it.
    pub fn split(&mut self, flat: &str, flat_type: &str, axes: &[AxisId]) {
        if let [only] = axes {
            self.bind_axis(*only, flat);
            return;
        }
        let extents: Vec<Dim> = axes.iter().map(|a| self.kernel.axes[*a].extent.clone()).collect();
        for (i, axis) in axes.iter().enumerate() {
            let below: Dim = extents[i + 1..].iter().cloned().product();
            let mut position = flat.to_owned();
            if !below.is(1) {
                position = format!("{position} / {}", self.size_factor(&below));
            }
            if i > 0 {
                position = format!("{position} % {}", self.size_factor(&extents[i]));
            }
            let (kind, name) = (self.axis_type(*axis), self.axis(*axis).to_owned());
            if kind == "int" && (flat_type != "int" || below.as_const().is_none() || extents[i].as_const().is_none()) {
                position = format!("int({position})");
            }
            self.out.line(format!("const {kind} {name} = {position};"));
        }
    }

    /// Prints lets, stores and updates that need no folding, for the point at hand.
    pub fn straight(&mut self, stmts: &[Stmt]) {
        for s in stmts {
            match s {
                Stmt::Let { var, value } => self.let_stmt(*var, *value),
                Stmt::Store {
                    param, index, value, ..
                } => self.store(*param, *index, *value),
                Stmt::Update {
                    param,
                    index,
                    value,
                    op,
                    ..
                } => self.update(*param, *index, *value, *op),
                Stmt::Fold { .. } => {}
            }
        }
    }
}
