//! Pointwise kernels that read along one axis and store along another: tiles through LDS.
//!
//! ```text
//! __shared__ half_t x_tile[64 * 64];
//! for step { store_vector(x_tile + swizzled<64, 8>(i, j), load_vector<8>(x + ...)); }   // j neighbours
//! __syncthreads();
//! for step { for lane { out_wide[lane] = x_tile[swizzled<64, 8>(i + lane, j)]; } store_vector(...); }   // i neighbours
//! ```

use ir::kernel::{AxisId, Expr, ExprId, Loops, Mapping};
use ir::{Dim, Entity};

use super::parenthesised;
use crate::emit::EmitError;
use crate::expr::Printer;
use crate::types::spelling;

/// A load that goes through LDS.
struct Tiled {
    value: ExprId,
    param: usize,
    index: ExprId,
    tile: String,
}

/// How a loop of so many accesses a thread is unrolled.
fn unrolled(steps: u32, unroll: u32) -> String {
    match steps <= unroll {
        true => "#pragma unroll".to_owned(),
        false => format!("#pragma unroll {unroll}"),
    }
}

impl Printer<'_> {
    pub(super) fn transpose(&mut self, body: &Loops) -> Result<(), EmitError> {
        let Mapping::Transpose {
            axis,
            block,
            along,
            across,
            load,
            store,
            unroll,
            tiled: ref loads,
        } = self.kernel.mapping
        else {
            return Err(self.mismatch());
        };
        let Some((&last, outer)) = body.parallel.split_last() else {
            return Err(self.mismatch());
        };
        let others: Vec<AxisId> = outer.iter().copied().filter(|a| *a != axis).collect();
        let (steps_in, steps_out) = (along * across / load / block, along * across / store / block);
        if !outer.contains(&axis) || steps_in == 0 || steps_out == 0 {
            return Err(self.mismatch());
        }
        let kind = self.points(&body.parallel).1;
        let tiles = |extent: &Dim, tile: u32| extent.ceil_div(&Dim::Const(i64::from(tile)));
        let columns = tiles(&self.kernel.axes[last].extent, along);
        let rows = tiles(&self.kernel.axes[axis].extent, across);
        let rest: Dim = others.iter().map(|a| self.kernel.axes[*a].extent.clone()).product();
        let n = self.size(&(rest * &rows * &columns));
        let mut tiled = Vec::new();
        for &value in loads {
            let Expr::Load { param, index } = self.kernel.exprs[value] else {
                return Err(self.mismatch());
            };
            let (name, t) = (
                format!("{}_tile", self.params[param.index()]),
                spelling(self.kernel.params[param].dtype),
            );
            let tile = self.fresh(&name);
            self.out
                .line(format!("alignas(16) __shared__ {t} {tile}[{}];", along * across));
            tiled.push(Tiled {
                value,
                param: param.index(),
                index,
                tile,
            });
        }
        let tile = self.fresh("tile");
        self.out.line(format!(
            "// {} along {} through LDS, stored along {}",
            across,
            self.axis(axis),
            self.axis(last)
        ));
        self.out.open(format!(
            "for ({kind} {tile} = blockIdx.x; {tile} < {n}; {tile} += gridDim.x)"
        ));
        let (last_kind, axis_kind) = (self.axis_type(last), self.axis_type(axis));
        let (last_name, axis_name) = (self.axis(last).to_owned(), self.axis(axis).to_owned());
        let (last0, axis0) = (
            self.fresh(&format!("{last_name}0")),
            self.fresh(&format!("{axis_name}0")),
        );
        let (columns, rows_factor) = (self.size_factor(&columns), self.size_factor(&rows));
        self.out
            .line(format!("const {last_kind} {last0} = {tile} % {columns} * {along};"));
        self.out.line(format!(
            "const {axis_kind} {axis0} = {tile} / {columns} % {rows_factor} * {across};"
        ));
        if !others.is_empty() {
            let outside = self.flat_name(&others, "outside");
            self.out
                .line(format!("const {kind} {outside} = {tile} / {columns} / {rows_factor};"));
            self.split(&outside, kind, &others);
        }
        let (last_end, axis_end) = (
            self.size(&self.kernel.axes[last].extent),
            self.size(&self.kernel.axes[axis].extent),
        );
        let inside = format!("if ({last_name} < {last_end} && {axis_name} < {axis_end})");
        let swizzled = format!("swizzled<{across}, {}>", load.max(store));
        self.out.line("__syncthreads();  // the tile before has been read");
        self.scope(|p| {
            let (step, at) = (p.fresh("step"), p.fresh("at"));
            p.out.line(unrolled(steps_in, unroll));
            p.out
                .open(format!("for (int {step} = 0; {step} < {steps_in}; ++{step})"));
            p.out
                .line(format!("const int {at} = {step} * {block} + (int)threadIdx.x;"));
            let per_row = across / load;
            p.out
                .line(format!("const {last_kind} {last_name} = {last0} + {at} / {per_row};"));
            p.out.line(format!(
                "const {axis_kind} {axis_name} = {axis0} + {at} % {per_row} * {load};"
            ));
            p.out.open(inside.clone());
            let to = format!("{swizzled}({last_name} - {last0}, {axis_name} - {axis0})");
            for t in &tiled {
                let (index, from) = (p.value(t.index), p.params[t.param].clone());
                p.out.line(format!(
                    "store_vector({} + {to}, load_vector<{load}>({from} + {}));",
                    t.tile,
                    parenthesised(&index)
                ));
            }
            p.out.close("");
            p.out.close("");
        });
        self.out.line("__syncthreads();");
        self.scope(|p| {
            let (step, at) = (p.fresh("step"), p.fresh("at"));
            p.out.line(unrolled(steps_out, unroll));
            p.out
                .open(format!("for (int {step} = 0; {step} < {steps_out}; ++{step})"));
            p.out
                .line(format!("const int {at} = {step} * {block} + (int)threadIdx.x;"));
            // Eight threads side by side fill a line of memory; the next eight take the next row.
            let near = (along / store).min(8);
            let start = if store == 1 {
                last_name.clone()
            } else {
                p.fresh(&format!("{last_name}1"))
            };
            p.out.line(format!(
                "const {last_kind} {start} = {last0} + ({at} % {near} + {at} / {} * {near}) * {store};",
                near * across
            ));
            p.out.line(format!(
                "const {axis_kind} {axis_name} = {axis0} + {at} / {near} % {across};"
            ));
            p.out
                .open(format!("if ({start} < {last_end} && {axis_name} < {axis_end})"));
            let at = format!("({last_name} - {last0}, {axis_name} - {axis0})");
            let read: Vec<(ExprId, String)> = tiled
                .iter()
                .map(|t| (t.value, format!("{}[{swizzled}{at}]", t.tile)))
                .collect();
            if store == 1 {
                read.iter().for_each(|(e, from)| p.bind_expr(*e, from));
                p.straight(&body.stmts);
            } else {
                p.loaded_group(&body.stmts, last, &last_name, &start, store, &[], &read);
            }
            p.out.close("");
            p.out.close("");
        });
        self.out.close("");
        Ok(())
    }
}
