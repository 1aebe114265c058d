//! Contractions: loading and epilogue lambdas around the tiled core.

use ir::kernel::access::along;
use ir::kernel::{AxisId, ContractBody, Expr, ExprId, Mapping};
use ir::{DType, Entity};

use crate::emit::EmitError;
use crate::expr::Printer;
use crate::types::spelling;

impl Printer<'_> {
    pub(super) fn contract(&mut self, body: &ContractBody) -> Result<(), EmitError> {
        let Mapping::Tile {
            block_m,
            block_n,
            block_k,
            thread_m,
            thread_n,
        } = self.kernel.mapping
        else {
            return Err(self.mismatch());
        };
        let acc_type = spelling(self.kernel.vars[body.acc]);
        let looped = self.open_batch(&body.batch);
        let sizes = [&body.m, &body.n, &body.k].map(|axes| self.points(axes));
        let counts = if sizes.iter().all(|(_, kind)| *kind == "int") {
            "int"
        } else {
            "i64"
        };
        self.operand("lhs", &body.m, "row", &body.k, body.lhs, counts, acc_type);
        self.operand("rhs", &body.n, "col", &body.k, body.rhs, counts, acc_type);
        self.scope(|p| {
            let (row, col) = (p.lambda_position(&body.m, "row"), p.lambda_position(&body.n, "col"));
            let acc = p.fresh("acc");
            p.bind_var(body.acc, &acc);
            p.out.open(format!(
                "const auto epilogue = [&]({counts} {row}, {counts} {col}, {acc_type} {acc})"
            ));
            p.split(&row, counts, &body.m);
            p.split(&col, counts, &body.n);
            p.straight(&body.epilogue);
            p.out.close(";");
        });
        let threads = i64::from((block_m / thread_m) * (block_n / thread_n));
        let held = |block: u32| i64::from(block) * i64::from(block_k) / threads;
        let lhs_walk = self.walk(body.lhs, &body.m, &body.k, held(block_m));
        let rhs_walk = self.walk(body.rhs, &body.n, &body.k, held(block_n));
        let [m, n, k] = sizes.map(|(n, _)| self.size(&n));
        self.out.line(format!(
            "using Tiles = Tile<{block_m}, {block_n}, {block_k}, {thread_m}, {thread_n}>;"
        ));
        self.out.line(format!(
            "contract_tile<Tiles, {acc_type}, {lhs_walk}, {rhs_walk}, {counts}>({m}, {n}, {k}, lhs, rhs, epilogue);"
        ));
        if looped {
            self.out.close("");
        }
        Ok(())
    }

    fn operand(
        &mut self,
        name: &str,
        rows: &[AxisId],
        row_name: &str,
        k: &[AxisId],
        value: ExprId,
        counts: &'static str,
        acc_type: &str,
    ) {
        self.scope(|p| {
            let (row, depth) = (p.lambda_position(rows, row_name), p.lambda_position(k, "depth"));
            p.out.open(format!(
                "const auto {name} = [&]({counts} {row}, {counts} {depth}) -> {acc_type}"
            ));
            p.split(&row, counts, rows);
            p.split(&depth, counts, k);
            let spelled = p.value(value);
            let spelled = if p.type_of(value) == acc_type {
                spelled
            } else {
                format!("cast<{acc_type}>({spelled})")
            };
            p.out.line(format!("return {spelled};"));
            p.out.close(";");
        });
    }

    /// How the elements of an operand are fetched: along the axis on which they are neighbours, as many at once as always come
    /// whole, fill an access and keep every thread busy.
    fn walk(&self, value: ExprId, rows: &[AxisId], k: &[AxisId], held: i64) -> String {
        let neighbours = |axes: &[AxisId]| {
            let inner = *axes.last()?;
            self.unconditional_or_guarded_loads(value)
                .into_iter()
                .filter(|(_, index)| along(self.kernel, self.symbols, *index, inner, 1).is_some_and(|m| m.stride.is(1)))
                .map(|(dtype, _)| 16 / i64::from(dtype.bits().div_ceil(8)))
                .min()
                .map(|widest| {
                    let divides = self.kernel.axes[inner].extent.known_divisor();
                    let mut width = 1;
                    while width * 2 <= widest.min(held).min(8) && divides % (width * 2) == 0 {
                        width *= 2;
                    }
                    width
                })
        };
        match (neighbours(k), neighbours(rows)) {
            (Some(width), _) => format!("Walk<true, {width}>"),
            (None, Some(width)) => format!("Walk<false, {width}>"),
            (None, None) => "Walk<true, 1>".to_owned(),
        }
    }

    fn unconditional_or_guarded_loads(&self, value: ExprId) -> Vec<(DType, ExprId)> {
        let mut seen = vec![false; self.kernel.exprs.len()];
        let (mut stack, mut loads) = (vec![value], Vec::new());
        while let Some(e) = stack.pop() {
            if std::mem::replace(&mut seen[e.index()], true) {
                continue;
            }
            let expr = &self.kernel.exprs[e];
            if let Expr::Load { param, index } = expr {
                loads.push((self.kernel.params[*param].dtype, *index));
            }
            expr.for_each_operand(|o| stack.push(o));
        }
        loads
    }
}
