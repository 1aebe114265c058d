//! Scans: lambdas for the element and the stores around a thread's or a workgroup's row.

use ir::graph::eval::scalar::identity;
use ir::kernel::{Mapping, ScanBody};
use ir::op::ReduceOp;

use crate::emit::EmitError;
use crate::expr::Printer;
use crate::types::{literal, operation, spelling};

impl Printer<'_> {
    pub(super) fn scan(&mut self, body: &ScanBody) -> Result<(), EmitError> {
        if matches!(body.op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
            return Err(EmitError::Unsupported {
                kernel: self.kernel.name.clone(),
                what: format!("a scan by {}", body.op),
            });
        }
        let block = match self.kernel.mapping {
            Mapping::Threads { vector: 1, .. } => None,
            Mapping::Block { block, vector: 1 } => Some(block),
            _ => return Err(self.mismatch()),
        };
        match block {
            None => self.open_thread_points(&body.parallel),
            Some(_) => self.open_block_points(&body.parallel),
        }
        let dtype = self.kernel.vars[body.var];
        let kind = spelling(dtype);
        let (axis, counts) = (self.axis(body.axis).to_owned(), self.axis_type(body.axis));
        self.scope(|p| {
            p.out.open(format!("const auto value = [&]({counts} {axis}) -> {kind}"));
            let spelled = p.value(body.value);
            p.out.line(format!("return {spelled};"));
            p.out.close(";");
        });
        self.scope(|p| {
            let running = p.name_var(body.var, body.op.name());
            p.out
                .open(format!("const auto store = [&]({counts} {axis}, {kind} {running})"));
            p.straight(&body.stores);
            p.out.close(";");
        });
        let start = literal(dtype, identity(body.op, dtype));
        let length = self.size(&self.kernel.axes[body.axis].extent);
        let (op, exclusive, reverse) = (operation(body.op), body.exclusive, body.reverse);
        self.out.line(match block {
            None => format!("scan_row<{op}, {exclusive}, {reverse}, {kind}, {counts}>({length}, {start}, value, store);"),
            Some(block) => format!(
                "scan_row_block<{op}, {exclusive}, {reverse}, {block}, {kind}, {counts}>({length}, {start}, value, store);"
            ),
        });
        self.out.close("");
        Ok(())
    }
}
