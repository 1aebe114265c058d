//! Attention: lambdas for the operands, the score and the epilogue around the one-pass core.

use ir::DType;
use ir::kernel::{AttentionBody, AxisId, ExprId, Mapping};

use crate::emit::EmitError;
use crate::expr::Printer;
use crate::types::spelling;

impl Printer<'_> {
    pub(super) fn attention(&mut self, body: &AttentionBody) -> Result<(), EmitError> {
        let Mapping::Flash {
            block_q,
            block_k,
            block,
        } = self.kernel.mapping
        else {
            return Err(self.mismatch());
        };
        let width = |axis: AxisId, what: &str| {
            self.kernel.axes[axis]
                .extent
                .as_const()
                .filter(|n| *n > 0)
                .ok_or_else(|| EmitError::Unsupported {
                    kernel: self.kernel.name.clone(),
                    what: format!(
                        "attention whose {what} is {}; it must be a constant",
                        self.kernel.axes[axis].extent
                    ),
                })
        };
        let (d, dv) = (width(body.d, "head size")?, width(body.dv, "value size")?);
        let wave = self.target.wave_size;
        let looped = self.open_batch(&body.batch);
        let sizes = [body.q, body.k].map(|a| self.points(&[a]));
        let counts = if sizes.iter().all(|(_, kind)| *kind == "int") {
            "int"
        } else {
            "i64"
        };
        self.attention_operand("query", body.q, body.d, body.query, counts);
        self.attention_operand("key", body.k, body.d, body.key, counts);
        self.attention_operand("value", body.k, body.dv, body.value, counts);
        self.scope(|p| {
            let acc = p.fresh("dot");
            p.bind_var(body.acc, &acc);
            let (q, k) = (p.axis(body.q).to_owned(), p.axis(body.k).to_owned());
            p.out.open(format!(
                "const auto score = [&]({counts} {q}, {counts} {k}, float {acc}) -> float"
            ));
            let spelled = p.value(body.score);
            p.out.line(format!("return {spelled};"));
            p.out.close(";");
        });
        self.scope(|p| {
            let (q, dv) = (p.axis(body.q).to_owned(), p.axis(body.dv).to_owned());
            let out = p.fresh("mixed");
            p.bind_var(body.out, &out);
            p.out.open(format!(
                "const auto epilogue = [&]({counts} {q}, {counts} {dv}, float {out})"
            ));
            p.straight(&body.epilogue);
            p.out.close(";");
        });
        let [queries, keys] = sizes.map(|(n, _)| self.size(&n));
        let causal = body.causal;
        self.out.line(format!(
            "using Tiles = Flash<{block_q}, {block_k}, {d}, {dv}, {block}, {wave}>;"
        ));
        self.out.line(format!(
            "attend<Tiles, {causal}, {counts}>({queries}, {keys}, query, key, value, score, epilogue);"
        ));
        if looped {
            self.out.close("");
        }
        Ok(())
    }

    fn attention_operand(&mut self, name: &str, row: AxisId, col: AxisId, value: ExprId, counts: &str) {
        self.scope(|p| {
            let (row, col) = (p.axis(row).to_owned(), p.axis(col).to_owned());
            p.out.open(format!(
                "const auto {name} = [&]({counts} {row}, {counts} {col}) -> float"
            ));
            let spelled = p.value(value);
            let float = spelling(DType::F32);
            let spelled = if p.type_of(value) == float {
                spelled
            } else {
                format!("cast<{float}>({spelled})")
            };
            p.out.line(format!("return {spelled};"));
            p.out.close(";");
        });
    }
}
