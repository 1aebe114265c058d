//! A contraction as a line of text, by which rows of tuning find it.

use ir::kernel::limits::widest_store;
use ir::kernel::{ContractBody, Expr, ExprId, Stmt};

use super::contract::Sizes;
use super::{Mapper, window_text};

impl Mapper<'_> {
    /// What the choice among a contraction's mappings depends on, as a line of text: the target, the types, the sizes,
    /// how the operands can be fetched and the results stored, and what the epilogue computes.
    pub(super) fn product(&self, body: &ContractBody) -> String {
        let exprs = &self.kernel.exprs;
        let Sizes {
            batch,
            m,
            n,
            k,
            rhs_bits,
        } = self.sizes(body);
        let (lhs, rhs) = (
            self.wide_fetch(&body.lhs, &body.m, &body.k),
            self.wide_fetch(&body.rhs, &body.n, &body.k),
        );
        let store = widest_store(self.kernel, self.symbols, body).min(8);
        let kind = if body.conv.is_some() { "conv" } else { "product" };
        // A range of rows is a product of its own.
        let m = match self.rows {
            Some(from) => format!("{from}..{}", from.saturating_mul(2)),
            None => m.to_string(),
        };
        let mut text = format!(
            "{} {kind} {} x {}{} -> {} [{batch}, {m}, {n}, {k}] lhs {lhs} rhs {rhs} store {store}",
            self.target,
            body.lhs.element(exprs),
            body.rhs.element(exprs),
            match rhs_bits == f64::from(body.rhs.element(exprs).bits()) {
                true => String::new(),
                false => format!(" of {rhs_bits:.2} bits"),
            },
            self.kernel.vars[body.acc],
        );
        let values = body.epilogue.iter().filter_map(|stmt| match stmt {
            Stmt::Store { value, .. } | Stmt::Let { value, .. } => Some(*value),
            _ => None,
        });
        let ops = self.ops(values.collect());
        // Equal products of two convolutions may read other elements, and be other calls.
        if let Some(facts) = &body.conv {
            let sizes: Vec<i64> = facts.input_size.iter().map(|size| size.hint(self.symbols)).collect();
            let window = window_text(&facts.window, facts.groups, facts.layout);
            text += &format!(" over {sizes:?} by {:?} {window}", facts.kernel_size);
        }
        if body.pair.is_some() {
            text += " in pairs";
        }
        if let Some(statistic) = &body.statistic {
            text += &format!(" with the {} of rows", statistic.op);
        }
        if !ops.is_empty() {
            text += &format!(" then {}", ops.join(" "));
        }
        text
    }

    /// Names what some values are computed by, up to what is loaded.
    pub(super) fn ops(&self, values: Vec<ExprId>) -> Vec<String> {
        let exprs = &self.kernel.exprs;
        let mut ops = Vec::new();
        self.walk(values, |e| {
            match exprs[e] {
                Expr::Load { .. } => ops.push("load".to_owned()),
                Expr::Unary(op, _) => ops.push(op.name().to_owned()),
                Expr::Binary(op, ..) => ops.push(op.name().to_owned()),
                Expr::Select(..) => ops.push("select".to_owned()),
                Expr::Cast(to, _) => ops.push(to.to_string()),
                _ => {}
            }
            !matches!(exprs[e], Expr::Load { .. })
        });
        ops
    }
}
