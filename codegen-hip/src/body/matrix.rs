//! Contractions by matrix instructions or row by row: operands as addresses, the epilogue by groups of neighbours.

use ir::graph::eval::scalar::identity;
use ir::kernel::limits::{Scales, scales};
use ir::kernel::{
    AxisId, ContractBody, ExprId, Fetch, GemvStream, GemvTiling, Mapping, Operand, OperandAccess, ParamId,
    RowStatistic, Shares, Tiling, Unpacking,
};
use ir::target::{MatrixFamily, MatrixInstruction};
use ir::{DType, Dim, Entity};

use crate::expr::Printer;
use crate::types::{is_nibble, literal, operation, spelling};

impl Printer<'_> {
    pub(super) fn matrix(&mut self, body: &ContractBody, tiling: &Tiling) {
        let [block_m, block_n, block_k] = tiling.block;
        let [waves_m, waves_n] = tiling.waves;
        let dies = match tiling.dies {
            1 => String::new(),
            dies => format!(", {dies}"),
        };
        let tiles = format!(
            "using Tiles = MatrixTile<{}, {block_m}, {block_n}, {block_k}, {waves_m}, {waves_n}, {}, {}, {}{dies}>;",
            instruction(&tiling.instruction),
            tiling.stages,
            tiling.ahead,
            tiling.group
        );
        let template = match (tiling.shares, tiling.parts) {
            (Some(Shares { groups, tiles }), _) => format!("gemm_shared<Tiles, {groups}, {tiles}"),
            (None, 1) if tiling.loads_to_lds() => "gemm_direct<Tiles".to_owned(),
            (None, 1) => "gemm_tile<Tiles".to_owned(),
            (None, parts) => format!("gemm_wave_k<Tiles, {parts}"),
        };
        self.product(body, [tiling.lhs, tiling.rhs], &tiles, &template, tiling.store);
    }

    pub(super) fn gemv(&mut self, body: &ContractBody, tiling: &GemvTiling) {
        let element = spelling(body.rhs.element(&self.kernel.exprs));
        let acc = spelling(self.kernel.vars[body.acc]);
        let GemvTiling {
            rows,
            cols,
            unroll,
            waves,
            ..
        } = tiling;
        if let Some(stream) = &tiling.stream {
            self.gemv_stream(body, tiling, stream);
            return;
        }
        if let Some(matrix) = &tiling.matrix {
            let sizes = format!(
                "{}, {cols}, {unroll}, {waves}, {}{}",
                instruction(&matrix.instruction),
                matrix.scaled_sums,
                if self.reads_early { ", true" } else { "" }
            );
            let tiles = format!("using Tiles = GemvMatrix<{sizes}>;");
            self.product(
                body,
                [tiling.lhs, tiling.rhs],
                &tiles,
                "gemv_matrix<Tiles",
                tiling.store,
            );
            return;
        }
        let left = match spelling(body.lhs.element(&self.kernel.exprs)) {
            left if left == element => String::new(),
            left => format!(", {left}"),
        };
        let left = match tiling.early {
            0 => left,
            _ if !self.reads_early => left,
            // The rows' type is in front.
            early => format!(", {}, {early}", spelling(body.lhs.element(&self.kernel.exprs))),
        };
        let tiles = format!("using Tiles = Gemv<{element}, {acc}, {rows}, {cols}, {unroll}, {waves}{left}>;");
        self.product(body, [tiling.lhs, tiling.rhs], &tiles, "gemv<Tiles", tiling.store);
    }

    fn gemv_stream(&mut self, body: &ContractBody, tiling: &GemvTiling, stream: &GemvStream) {
        let GemvStream {
            workgroups,
            stages,
            pack,
            copiers,
            ..
        } = stream;
        let sizes = format!(
            "{}, {}, {}, {stages}, {pack}, {workgroups}, {copiers}{}",
            instruction(&stream.instruction),
            tiling.cols,
            tiling.waves,
            if self.reads_early { ", true" } else { "" }
        );
        let tiles = format!("using Tiles = GemvStream<{sizes}>;");
        let fetches = [tiling.lhs, tiling.rhs];
        self.product(body, fetches, &tiles, "gemv_stream<Tiles", tiling.store);
    }

    /// Prints operands, epilogue and sizes of a product, and the call of the device library's template, whose arguments
    /// `template` begins.
    fn product(&mut self, body: &ContractBody, [lhs, rhs]: [Fetch; 2], tiles: &str, template: &str, store: u32) {
        let looped = self.open_batch(&body.batch);
        // The launch refuses sizes that an `int` does not count.
        let sizes = [&body.m, &body.n, &body.k].map(|axes| self.points(axes).0);
        self.fetched("lhs", "row", &body.m, &body.k, &body.lhs, lhs);
        match &self.kernel.mapping {
            Mapping::Gemv(tiling) if tiling.stream.is_some() => self.streamed(body),
            _ => self.fetched("rhs", "col", &body.n, &body.k, &body.rhs, rhs),
        }
        self.grouped_epilogue(body, store);
        let statistic = match &body.statistic {
            Some(statistic) => self.row_statistic(statistic),
            None => "",
        };
        let [m, n, k] = sizes.map(|n| self.count(&n));
        // The memory that the mapping has for itself.
        let params = self.kernel.params.values().zip(&self.params);
        let own: String = params
            .filter(|(param, _)| !param.access.is_of_body())
            .map(|(_, name)| format!(", {name}"))
            .collect();
        self.out.line(tiles);
        self.out.line(format!(
            "{template}, {store}>({m}, {n}, {k}, lhs, rhs, epilogue{statistic}{own});"
        ));
        if looped {
            self.out.close("");
        }
    }

    /// Declares what is folded of each row, and returns how it goes on in a call's arguments.
    fn row_statistic(&mut self, statistic: &RowStatistic) -> &'static str {
        let dtype = self.kernel.vars[statistic.var];
        let (kind, start) = (spelling(dtype), literal(dtype, identity(statistic.op, dtype)));
        self.scope(|p| {
            let element = p.fresh("element");
            p.bind_var(statistic.element, &element);
            let fold = operation(statistic.op);
            p.out.open(format!(
                "const auto statistic = row_statistic<{fold}>({start}, [&]({kind} {element})"
            ));
            let value = p.value(statistic.value);
            p.out.line(format!("return {value};"));
            p.out.close(");");
        });
        ", statistic"
    }

    /// A number of points as an `int`.
    fn count(&self, n: &Dim) -> String {
        let text = self.size(n);
        if n.as_const().is_some() || crate::index::fits(n, self.symbols) {
            text
        } else {
            format!("int({text})")
        }
    }

    /// Declares an operand: where its elements are or, of what is computed on the way in, what they are.
    fn fetched(&mut self, name: &str, row_name: &str, rows: &[AxisId], k: &[AxisId], operand: &Operand, fetch: Fetch) {
        let element = operand.element(&self.kernel.exprs);
        let plain = |a: &OperandAccess| {
            let stored = self.kernel.params[a.param].dtype;
            a.unpacking.is_none()
                && element.bits() >= 8
                && (stored == element || element.is_float() && stored.is_byte_number())
        };
        if let Some((access, unpacking)) = operand.access.and_then(|a| Some((a, a.unpacking?)))
            && fetch.along_k
            && fetch.width > 1
        {
            self.quantised(name, row_name, rows, k, element, (access, unpacking), fetch.width);
            return;
        }
        let direct = operand.access.filter(plain);
        let Some(access) = direct else {
            let opening = format!(
                "const auto {name} = values<{}, {}, 1>(",
                spelling(element),
                fetch.along_k
            );
            self.number(&opening, row_name, rows, k, ");", operand.value);
            return;
        };
        let walk = if fetch.along_k { "along_k" } else { "along_rows" };
        let base = self.params[access.param.index()].clone();
        let fill = match access.fill {
            0 => String::new(),
            fill => format!(", {fill}"),
        };
        let (wrapped, end) = conversion(element, self.kernel.params[access.param].dtype);
        let opening = format!("const auto {name} = {wrapped}{walk}<{}{fill}>(", fetch.width);
        let closing = if access.guard.is_some() { "," } else { end };
        self.point_lambda(&opening, row_name, rows, k, closing, |p| {
            let index = p.value(access.index);
            format!("return {base} + {};", super::parenthesised(&index))
        });
        if let Some(guard) = access.guard {
            self.point_lambda("    ", row_name, rows, k, end, |p| {
                let guard = p.value(guard);
                format!("return {guard};")
            });
        }
    }

    /// Declares an operand of quantised elements: where they are stored, their scale and their zero point.
    fn quantised(
        &mut self,
        name: &str,
        row_name: &str,
        rows: &[AxisId],
        k: &[AxisId],
        element: DType,
        (access, unpacking): (OperandAccess, Unpacking),
        width: u32,
    ) {
        let stored = self.kernel.params[access.param].dtype;
        let opening = format!(
            "const auto {name} = quantised<{}, {}, {width}>(",
            spelling(element),
            spelling(stored)
        );
        self.point_lambda(&opening, row_name, rows, k, ",", |p| {
            p.place(access.param, access.index)
        });
        let closing = if unpacking.zero.is_some() { "," } else { ");" };
        self.number("    ", row_name, rows, k, closing, unpacking.scale);
        if let Some(zero) = unpacking.zero {
            self.number("    ", row_name, rows, k, ");", zero);
        }
    }

    /// Declares streamed weights: where they, their scales and their zero points are.
    fn streamed(&mut self, body: &ContractBody) {
        // The verifier has seen them.
        let (Some(access), Some(Scales { scale, zero, .. })) = (body.rhs.access, scales(self.kernel, &body.rhs)) else {
            return;
        };
        let stored = self.kernel.params[access.param].dtype;
        let opening = format!("const auto rhs = streamed<{}>(", spelling(stored));
        let places: Vec<(ParamId, ExprId)> = [(access.param, access.index), scale].into_iter().chain(zero).collect();
        for (i, (param, index)) in places.iter().enumerate() {
            let opening = if i == 0 { opening.as_str() } else { "    " };
            let closing = if i + 1 == places.len() { ");" } else { "," };
            self.point_lambda(opening, "col", &body.n, &body.k, closing, |p| p.place(*param, *index));
        }
    }

    /// Prints the line that returns the address of an element, of those of four bits that of its byte.
    fn place(&mut self, param: ParamId, index: ExprId) -> String {
        let base = self.params[param.index()].clone();
        // Unsigned where it fits: no sign is extended on the way to the address.
        let (text, kind) = (self.value(index), self.type_of(index));
        let text = match kind {
            "int" => format!("u32({text})"),
            _ => super::parenthesised(&text),
        };
        match is_nibble(self.kernel.params[param].dtype) {
            true => format!("return {base} + {text} / 2;"),
            false => format!("return {base} + {text};"),
        }
    }

    /// Prints a lambda that gives an expression's value.
    fn number(&mut self, opening: &str, row: &str, rows: &[AxisId], k: &[AxisId], closing: &str, value: ExprId) {
        self.point_lambda(opening, row, rows, k, closing, |p| {
            let spelled = p.value(value);
            format!("return {spelled};")
        });
    }

    /// Prints a lambda of a row and a depth.
    fn point_lambda(
        &mut self,
        opening: &str,
        row_name: &str,
        rows: &[AxisId],
        k: &[AxisId],
        closing: &str,
        last_line: impl FnOnce(&mut Self) -> String,
    ) {
        self.scope(|p| {
            let (row, depth) = (p.lambda_position(rows, row_name), p.lambda_position(k, "depth"));
            p.out.open(format!("{opening}[&](int {row}, int {depth})"));
            p.split(&row, "int", rows);
            p.split(&depth, "int", k);
            let line = last_line(p);
            p.out.line(line);
            p.out.close(closing);
        });
    }

    /// The flat number of the column that an epilogue stores: of pairs, that of the pair.
    pub(super) fn cell_column(&mut self, body: &ContractBody, col: String) -> String {
        let Some(pair) = body.pair else { return col };
        let name = self.axis(pair.axis).to_owned();
        let name = self.fresh(&name);
        let kind = self.axis_type(pair.axis);
        self.out.line(format!("const {kind} {name} = {col} / 2;"));
        name
    }

    /// Declares the epilogue of `width` neighbours along the columns.
    fn grouped_epilogue(&mut self, body: &ContractBody, width: u32) {
        let acc_type = spelling(self.kernel.vars[body.acc]);
        self.scope(|p| {
            let (row, col) = (p.lambda_position(&body.m, "row"), p.lambda_position(&body.n, "col"));
            let acc = p.fresh("acc");
            let of_row = match &body.statistic {
                Some(statistic) => {
                    let name = p.fresh("of_row");
                    p.bind_var(statistic.var, &name);
                    format!(", {acc_type} {name}")
                }
                None => String::new(),
            };
            p.out.open(format!(
                "const auto epilogue = [&](int {row}, int {col}, const Pack<{acc_type}, {width}>& {acc}{of_row})"
            ));
            p.split(&row, "int", &body.m);
            let (columns, group) = (body.columns(), width / body.sums());
            let col = p.cell_column(body, col);
            match columns.split_last() {
                Some((&inner, _)) if group > 1 => {
                    // The group's first column; the axis itself moves inside the group.
                    let name = p.fresh(&format!("{}_at", p.axis(inner).to_owned()));
                    let start = if columns.len() == 1 {
                        col.clone()
                    } else {
                        p.split(&col, "int", &columns);
                        p.axis(inner).to_owned()
                    };
                    p.bind_axis(inner, &name);
                    let given = match body.pair {
                        None => vec![(body.acc, format!("{acc}[{{j}}]"))],
                        Some(pair) => vec![
                            (body.acc, format!("{acc}[2 * {{j}}]")),
                            (pair.second, format!("{acc}[2 * {{j}} + 1]")),
                        ],
                    };
                    p.one_group(&body.epilogue, inner, &name, &start, group, &given);
                }
                _ => {
                    p.split(&col, "int", &columns);
                    p.bind_var(body.acc, &format!("{acc}[0]"));
                    if let Some(pair) = body.pair {
                        p.bind_var(pair.second, &format!("{acc}[1]"));
                    }
                    p.straight(&body.epilogue);
                }
            }
            p.out.close(";");
        });
    }
}

/// What stands before and after an operand in memory whose elements go into the product in a type of their own.
pub(super) fn conversion(element: DType, stored: DType) -> (String, &'static str) {
    match stored == element {
        true => (String::new(), ");"),
        false => (format!("converted<{}>(", spelling(element)), "));"),
    }
}

/// The instruction as the device library spells it.
fn instruction(i: &MatrixInstruction) -> String {
    let (input, acc) = (spelling(i.input), spelling(i.acc));
    match (i.family, i.input) {
        (MatrixFamily::Lanes, DType::F32) => return format!("Fma<{input}, {acc}, {}>", i.lanes()),
        (MatrixFamily::Lanes, _) => return format!("Dot<{}, {input}, {acc}, {}>", i.k, i.lanes()),
        _ => {}
    }
    let rhs = match i.rhs == i.input {
        true => String::new(),
        false => format!(", {}", spelling(i.rhs)),
    };
    format!("{}<{}, {}, {}, {input}, {acc}{rhs}>", i.family.name(), i.m, i.n, i.k)
}
