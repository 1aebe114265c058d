//! Top-k and sorting: lambdas for the element and the stores around a row.

use ir::kernel::{Mapping, SortBody};

use crate::emit::EmitError;
use crate::expr::Printer;
use crate::types::spelling;

impl Printer<'_> {
    pub(super) fn sort(&mut self, body: &SortBody) -> Result<(), EmitError> {
        match self.kernel.mapping {
            Mapping::Threads { vector: 1, .. } => self.open_thread_points(&body.parallel),
            Mapping::Block { .. } => self.open_block_points(&body.parallel),
            _ => return Err(self.mismatch()),
        }
        let kind = spelling(self.kernel.vars[body.value_var]);
        let axes = [body.axis, body.rank];
        let counts = if axes.iter().all(|a| self.facts.axis_is_int(*a)) {
            "int"
        } else {
            "i64"
        };
        self.scope(|p| {
            let axis = p.axis(body.axis).to_owned();
            p.out.open(format!("const auto value = [&]({counts} {axis}) -> {kind}"));
            let spelled = p.value(body.value);
            p.out.line(format!("return {spelled};"));
            p.out.close(";");
        });
        self.scope(|p| {
            let rank = p.axis(body.rank).to_owned();
            let (found, position) = (
                p.name_var(body.value_var, "found"),
                p.name_var(body.index_var, "position"),
            );
            p.out.open(format!(
                "const auto store = [&]({counts} {rank}, {kind} {found}, i64 {position})"
            ));
            p.straight(&body.stores);
            p.out.close(";");
        });
        let [length, ranks] = axes.map(|a| self.size(&self.kernel.axes[a].extent));
        let largest = body.largest;
        self.out.line(match self.kernel.mapping {
            Mapping::Block { block, vector: 1 } => {
                format!("rank_row<{largest}, {block}, {kind}, {counts}>({length}, {ranks}, value, store);")
            }
            Mapping::Block { block, vector } => {
                let capacity = block * vector;
                format!(
                    "top_of_row<{largest}, {block}, {capacity}, {kind}, {counts}>({length}, {ranks}, value, store);"
                )
            }
            _ => format!("select_row<{largest}, {kind}, {counts}>({length}, {ranks}, value, store);"),
        });
        self.out.close("");
        Ok(())
    }
}
