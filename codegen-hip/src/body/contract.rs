//! Contractions: loading and epilogue lambdas around the tiled core.

use ir::kernel::{AxisId, ContractBody, ExprId, Mapping};

use crate::emit::EmitError;
use crate::expr::Printer;
use crate::types::spelling;

impl Printer<'_> {
    pub(super) fn contract(&mut self, body: &ContractBody) -> Result<(), EmitError> {
        if let Mapping::Matrix(tiling) = &self.kernel.mapping {
            self.matrix(body, tiling);
            return Ok(());
        }
        if let Mapping::Gemv(tiling) = &self.kernel.mapping {
            self.gemv(body, tiling);
            return Ok(());
        }
        let Mapping::Tile {
            block_m,
            block_n,
            block_k,
            thread_m,
            thread_n,
            lhs,
            rhs,
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
        self.operand("lhs", &body.m, "row", &body.k, body.lhs.value, counts, acc_type);
        self.operand("rhs", &body.n, "col", &body.k, body.rhs.value, counts, acc_type);
        self.scope(|p| {
            let (row, col) = (p.lambda_position(&body.m, "row"), p.lambda_position(&body.n, "col"));
            let acc = p.fresh("acc");
            p.bind_var(body.acc, &acc);
            let mut sums = format!("{acc_type} {acc}");
            if let Some(pair) = body.pair {
                let second = p.fresh("second");
                p.bind_var(pair.second, &second);
                sums += &format!(", {acc_type} {second}");
            }
            p.out.open(format!(
                "const auto epilogue = [&]({counts} {row}, {counts} {col}, {sums})"
            ));
            p.split(&row, counts, &body.m);
            let col = p.cell_column(body, col);
            p.split(&col, counts, &body.columns());
            p.straight(&body.epilogue);
            p.out.close(";");
        });
        let [lhs_walk, rhs_walk] = [lhs, rhs].map(|f| format!("Walk<{}, {}>", f.along_k, f.width));
        let [m, n, k] = sizes.map(|(n, _)| self.size(&n));
        let pairs = if body.pair.is_some() { ", true" } else { "" };
        self.out.line(format!(
            "using Tiles = Tile<{block_m}, {block_n}, {block_k}, {thread_m}, {thread_n}>;"
        ));
        self.out.line(format!(
            "contract_tile<Tiles, {acc_type}, {lhs_walk}, {rhs_walk}, {counts}{pairs}>({m}, {n}, {k}, lhs, rhs, epilogue);"
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
}
