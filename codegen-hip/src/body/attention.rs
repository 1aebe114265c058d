//! Attention: lambdas for the operands, the score and the epilogue around the one-pass core.

use ir::kernel::{
    AttentionBody, AttentionOrder, AxisId, ExprId, Fetch, FlashLanes, FlashTiling, Mapping, OperandAccess, QueryPlace,
    Weights,
};
use ir::{DType, Entity};

use super::matrix::conversion;
use super::parenthesised;
use crate::emit::EmitError;
use crate::expr::Printer;
use crate::types::spelling;

/// What the two ways to have whole rows of scores in registers differ in.
struct Flash<'a> {
    /// The device library's function.
    function: &'static str,
    /// Its sizes, for widths of keys and of values.
    tiles: Box<dyn Fn(i64, i64) -> String + 'a>,
    query: Fetch,
    key: Fetch,
    value: Fetch,
    /// Whether the rows of the operand of values are the keys.
    keys_are_rows: bool,
    store: u32,
    together: AttentionOrder,
}

impl Flash<'_> {
    fn of_matrix(t: &FlashTiling, weights: Weights) -> Flash<'_> {
        let i = &t.instruction;
        let (family, input, sums) = (i.family.name(), spelling(i.input), spelling(i.acc));
        let instruction = format!("{family}<{}, {}, {}, {input}, {sums}>", i.m, i.n, i.k);
        Flash {
            function: "flash",
            tiles: Box::new(move |d, dv| {
                let (waves, keys, split) = (t.waves, t.keys, t.split);
                // What a kernel does not use is not printed.
                let place = t.queries_in.name();
                let fragments = match (t.fragments, t.queries_in, weights) {
                    (1, QueryPlace::Registers, Weights::Softmax) => String::new(),
                    (fragments, QueryPlace::Registers, Weights::Softmax) => format!(", {fragments}"),
                    (fragments, _, Weights::Softmax) => format!(", {fragments}, QueryPlace::{place}"),
                    (fragments, _, Weights::Scores) => format!(", {fragments}, QueryPlace::{place}, true"),
                };
                format!("FlashTile<{instruction}, {waves}, {keys}, {d}, {dv}, {split}{fragments}>")
            }),
            query: along_width(t.query),
            key: t.key,
            value: t.value,
            keys_are_rows: false,
            store: t.store,
            together: t.together,
        }
    }

    fn of_lanes(t: &FlashLanes) -> Flash<'_> {
        Flash {
            function: "flash_by_lanes",
            tiles: Box::new(|d, dv| {
                let (waves, lanes, group, rows, keys, split) = (t.waves, t.lanes, t.group, t.rows, t.keys, t.split);
                format!("LaneTile<{waves}, {lanes}, {group}, {rows}, {keys}, {d}, {dv}, {split}>")
            }),
            query: along_width(t.query),
            key: t.key,
            value: t.value,
            keys_are_rows: true,
            store: t.store,
            together: t.together,
        }
    }
}

fn along_width(width: u32) -> Fetch {
    Fetch { along_k: true, width }
}

impl Printer<'_> {
    pub(super) fn attention(&mut self, body: &AttentionBody) -> Result<(), EmitError> {
        match &self.kernel.mapping {
            Mapping::FlashMatrix(tiling) => return self.flash(body, &Flash::of_matrix(tiling, body.weights)),
            Mapping::FlashLanes(tiling) => return self.flash(body, &Flash::of_lanes(tiling)),
            _ => {}
        }
        let Mapping::Flash {
            block_q,
            block_k,
            block,
            together,
        } = self.kernel.mapping
        else {
            return Err(self.mismatch());
        };
        if body.row_weights.is_some() {
            return Err(self.mismatch());
        }
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
        let block = self.open_query_blocks(
            body,
            &format!("Flash<{block_q}, {block_k}, {d}, {dv}, {block}, {wave}>"),
            together,
        );
        let sizes = [body.q, body.k].map(|a| self.points(&[a]));
        let counts = if sizes.iter().all(|(_, kind)| *kind == "int") {
            "int"
        } else {
            "i64"
        };
        self.attention_operand("query", body.q, body.d, body.query, counts);
        self.attention_operand("key", body.k, body.d, body.key, counts);
        self.attention_operand("value", body.k, body.dv, body.value, counts);
        self.score("score", body, body.score, [counts; 2]);
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
        self.key_range(body, [counts; 2]);
        let [queries, keys] = sizes.map(|(n, _)| self.size(&n));
        self.out.line(format!(
            "attend<Tiles, {counts}>({block}, {queries}, {keys}, range, query, key, value, score, epilogue);"
        ));
        self.out.close("");
        Ok(())
    }

    /// Declares the tiles and opens the loop of a workgroup over its blocks of queries; returns the block's number
    /// among those of its head.
    fn open_query_blocks(&mut self, body: &AttentionBody, tiles: &str, together: AttentionOrder) -> String {
        self.out.line(format!("using Tiles = {tiles};"));
        let [batches, queries] = [&body.batch[..], &[body.q]].map(|axes| self.counted(axes));
        let (number, place) = (self.fresh("number"), self.fresh("block"));
        let causal = body.sees_more(&self.kernel.exprs);
        self.out.open(format!(
            "for (int {number} = blockIdx.x; {number} < query_blocks<Tiles>({batches}, {queries}); {number} += gridDim.x)"
        ));
        let order = together.0;
        self.out.line(format!(
            "const QueryBlock {place} = query_block<Tiles, {order}, {causal}>({number}, {batches}, {queries});"
        ));
        if !body.batch.is_empty() {
            let (_, kind) = self.points(&body.batch);
            let name = self.flat_name(&body.batch, "batch_point");
            self.out.line(format!("const {kind} {name} = {place}.batch;"));
            self.split(&name, kind, &body.batch);
        }
        format!("{place}.number")
    }

    /// The number of points of axes as an `int`, which a launch sees to that it is.
    fn counted(&mut self, axes: &[AxisId]) -> String {
        let (n, kind) = self.points(axes);
        let text = self.size(&n);
        if kind == "int" { text } else { format!("int({text})") }
    }

    /// In one pass with the weights in registers: operands as addresses, the epilogue by groups of neighbours.
    fn flash(&mut self, body: &AttentionBody, tiling: &Flash<'_>) -> Result<(), EmitError> {
        let width = |axis: AxisId| self.kernel.axes[axis].extent.as_const();
        let (Some(d), Some(dv)) = (width(body.d), width(body.dv)) else {
            return Err(self.mismatch());
        };
        let block = self.open_query_blocks(body, &(tiling.tiles)(d, dv), tiling.together);
        let value = match tiling.keys_are_rows {
            true => [body.k, body.dv],
            false => [body.dv, body.k],
        };
        self.flash_operand("query", [body.q, body.d], body.query, tiling.query);
        self.flash_operand("key", [body.k, body.d], body.key, tiling.key);
        self.flash_operand("value", value, body.value, tiling.value);
        self.score(
            "score",
            body,
            body.score,
            [body.q, body.k].map(|axis| self.axis_type(axis)),
        );
        let store = tiling.store;
        self.scope(|p| {
            let (q, dv, mixed) = (p.axis(body.q).to_owned(), p.axis(body.dv).to_owned(), p.fresh("mixed"));
            let q_type = p.axis_type(body.q);
            let weights = match body.row_weights {
                Some(weights) => {
                    let name = p.fresh("weights");
                    p.bind_var(weights.largest, &format!("{name}.largest"));
                    p.bind_var(weights.total, &format!("{name}.total"));
                    format!("const RowWeights& {name}")
                }
                None => "const RowWeights&".to_owned(),
            };
            if store == 1 {
                p.bind_var(body.out, &format!("{mixed}[0]"));
                p.out.open(format!(
                    "const auto epilogue = [&]({q_type} {q}, int {dv}, const Pack<float, 1>& {mixed}, {weights})"
                ));
                p.straight(&body.epilogue);
            } else {
                let start = p.fresh(&format!("{dv}0"));
                p.out.open(format!(
                    "const auto epilogue = [&]({q_type} {q}, int {start}, const Pack<float, {store}>& {mixed}, {weights})"
                ));
                let given = [(body.out, format!("{mixed}[{{j}}]"))];
                p.one_group(&body.epilogue, body.dv, &dv, &start, store, &given);
            }
            p.out.close(";");
        });
        self.key_range(body, [body.q, body.k].map(|axis| self.axis_type(axis)));
        let [queries, keys] = [body.q, body.k].map(|a| self.counted(&[a]));
        self.out.line(format!(
            "{}<Tiles, {store}>({block}, {queries}, {keys}, range, query, key, value, score, epilogue);",
            tiling.function
        ));
        self.out.close("");
        Ok(())
    }

    /// Declares where an operand's elements are, or what they are where they are computed.
    fn flash_operand(&mut self, name: &str, [rows, depth]: [AxisId; 2], value: ExprId, fetch: Fetch) {
        self.scope(|p| {
            let (row, k) = (p.axis(rows).to_owned(), p.axis(depth).to_owned());
            let element = p.kernel.exprs.dtype(value);
            // Wide where the axis is: the index is a sum of them.
            let parameters = format!("{} {row}, {} {k}", p.axis_type(rows), p.axis_type(depth));
            let access = OperandAccess::of(&p.kernel.exprs, value).filter(|a| a.guard.is_none());
            // The lambda of what is multiplied is in a scope of its own.
            if let Some((access, unpacking)) = access.and_then(|a| Some((a, a.unpacking?)))
                && unpacking.zero.is_none()
            {
                let walk = if fetch.along_k { "along_k" } else { "along_rows" };
                p.scope(|p| {
                    p.out.open(format!(
                        "const auto {name} = scaled<{}>({walk}<{}>([&]({parameters})",
                        spelling(element),
                        fetch.width
                    ));
                    let index = p.value(access.index);
                    let base = p.params[access.param.index()].clone();
                    p.out.line(format!("return {base} + {};", parenthesised(&index)));
                    p.out.close("),");
                });
                p.scope(|p| {
                    p.out.open(format!("    [&]({parameters})"));
                    let factor = p.value(unpacking.scale);
                    p.out.line(format!("return {factor};"));
                    p.out.close(");");
                });
                return;
            }
            let access = access.filter(|a| a.unpacking.is_none());
            let mut end = ");";
            match access {
                Some(access) => {
                    let (wrapped, closing) = conversion(element, p.kernel.params[access.param].dtype);
                    end = closing;
                    let walk = if fetch.along_k { "along_k" } else { "along_rows" };
                    p.out.open(format!(
                        "const auto {name} = {wrapped}{walk}<{}>([&]({parameters})",
                        fetch.width
                    ));
                    let index = p.value(access.index);
                    let base = p.params[access.param.index()].clone();
                    p.out.line(format!("return {base} + {};", parenthesised(&index)));
                }
                None => {
                    p.out.open(format!(
                        "const auto {name} = values<{}, {}, 1>([&]({parameters})",
                        spelling(element),
                        fetch.along_k
                    ));
                    let spelled = p.value(value);
                    p.out.line(format!("return {spelled};"));
                }
            }
            p.out.close(end);
        });
    }

    /// Declares a score of a product, for positions of such types.
    fn score(&mut self, name: &str, body: &AttentionBody, score: ExprId, [q_type, k_type]: [&str; 2]) {
        self.scope(|p| {
            let dot = p.fresh("dot");
            p.bind_var(body.acc, &dot);
            let (q, k) = (p.axis(body.q).to_owned(), p.axis(body.k).to_owned());
            p.out.open(format!(
                "const auto {name} = [&]({q_type} {q}, {k_type} {k}, float {dot}) -> float"
            ));
            p.fused = (body.weights == Weights::Softmax).then_some(body.acc);
            let spelled = p.value(score);
            p.fused = None;
            p.out.line(format!("return {spelled};"));
            p.out.close(";");
        });
    }

    /// Declares which keys queries see.
    fn key_range(&mut self, body: &AttentionBody, types: [&str; 2]) {
        let Some(range) = &body.range else {
            self.out.line("const AllKeys range;");
            return;
        };
        for (name, bound) in [("first", range.first), ("end", range.end)] {
            self.scope(|p| {
                let q = p.axis(body.q).to_owned();
                p.out.open(format!("const auto {name} = [&]({} {q}) -> i64", types[0]));
                let spelled = match bound {
                    Some(bound) => p.value(bound),
                    None if name == "first" => "0".to_owned(),
                    None => {
                        let (keys, _) = p.points(&[body.k]);
                        p.size(&keys)
                    }
                };
                p.out.line(format!("return {spelled};"));
                p.out.close(";");
            });
        }
        match range.nothing {
            Some(nothing) => self.scope(|p| {
                let q = p.axis(body.q).to_owned();
                p.out
                    .open(format!("const auto nothing = [&]({} {q}) -> bool", types[0]));
                let spelled = p.value(nothing);
                p.out.line(format!("return {spelled};"));
                p.out.close(";");
            }),
            None => self.out.line("const Never nothing;"),
        }
        self.score("inside", body, range.inside, types);
        self.out
            .line("const auto range = key_range(first, end, nothing, inside);");
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
