//! The text of a kernel: a loop nest that reads like code. For people and snapshots; nothing parses it.
//!
//! ```text
//! kernel softmax_3(x: f32[2*n] read, y: f32[2*n] write) sizes(n) lanes(64, block 256, vector 1) {
//!   for row in 0..2 {
//!     v0 = max over col in 0..n of x[row*n + col]
//!     store y[row*n + col] = exp(x[row*n + col] - v0)  for col in 0..n
//!   }
//! }
//! ```

use std::fmt::{self, Write as _};

use super::{
    AxisId, Body, Expr, ExprId, Fetch, GemvStream, Kernel, Mapping, QueryPlace, Stmt, Tiling, TransformSide, Travel,
    Weights, WindowFold,
};
use crate::graph::op::Level;

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self))
    }
}

impl fmt::Display for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by {} along {}", self.width, if self.along_k { "k" } else { "rows" })
    }
}

/// How many workgroups the compiler must leave registers for.
fn resident(workgroups: Option<u32>) -> String {
    workgroups.map_or_else(String::new, |n| format!(", {n} resident"))
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [block_m, block_n, block_k] = self.block;
        let [waves_m, waves_n] = self.waves;
        let dies = match self.dies {
            1 => String::new(),
            dies => format!(" on {dies} dies"),
        };
        let parts = match self.parts {
            1 => String::new(),
            parts => format!(", {parts} along k"),
        };
        let shares = match self.shares {
            None => String::new(),
            Some(shares) => format!(", {} groups share {} tiles", shares.groups, shares.tiles),
        };
        let resident = resident(self.resident);
        let travel = match self.travel {
            Travel::Registers => "",
            Travel::Direct => " direct",
        };
        write!(
            f,
            "{}, block {block_m}x{block_n}x{block_k}, waves {waves_m}x{waves_n}{parts}, stages {}{travel}{}, lhs {}, rhs {}, store {}, group {}{dies}{resident}{shares}",
            self.instruction,
            self.stages,
            if self.ahead { " ahead" } else { "" },
            self.lhs,
            self.rhs,
            self.store,
            self.group
        )
    }
}

impl fmt::Display for super::AttentionOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} together", self.0)
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mapping::Host => f.write_str("host"),
            Mapping::Threads { block, vector } => write!(f, "threads(block {block}, vector {vector})"),
            Mapping::Windows { block, vector, unroll } => {
                let unrolled = if *unroll { ", unrolled" } else { "" };
                write!(f, "windows(block {block}, vector {vector}{unrolled})")
            }
            Mapping::Strips(s) => {
                let read = if s.read > 1 {
                    format!(", {} read at once", s.read)
                } else {
                    String::new()
                };
                write!(
                    f,
                    "strips(block {}, {}x{} outputs, vector {}{read}{})",
                    s.block,
                    s.rows,
                    s.columns,
                    s.vector,
                    resident(s.resident)
                )
            }
            Mapping::Steps(s) => {
                let held = if s.held { ", held" } else { "" };
                let (block, rows, lanes, width) = (s.block, s.rows, s.lanes, s.width);
                write!(
                    f,
                    "steps(block {block}, rows {rows}, {lanes} lanes, width {width}{held})"
                )
            }
            Mapping::Lanes { lanes, block, vector } => write!(f, "lanes({lanes}, block {block}, vector {vector})"),
            Mapping::Rows {
                lanes,
                block,
                vector,
                steps,
                as_needed,
                resident: workgroups,
            } => {
                let order = if *as_needed { ", read as needed" } else { "" };
                let resident = resident(*workgroups);
                write!(
                    f,
                    "rows({lanes} lanes, block {block}, vector {vector}, steps {steps}{order}{resident})"
                )
            }
            Mapping::Stream { block, vector, unroll } => {
                write!(f, "stream(block {block}, vector {vector}, unroll {unroll})")
            }
            Mapping::Transpose {
                axis,
                block,
                along,
                across,
                load,
                store,
                unroll,
                tiled,
            } => write!(
                f,
                "transpose({axis}, block {block}, {} of {along}x{across}, load {load}, store {store}, unroll {unroll})",
                tiled.len()
            ),
            Mapping::Block { block, vector } => write!(f, "block({block}, vector {vector})"),
            Mapping::Tile {
                block_m,
                block_n,
                block_k,
                thread_m,
                thread_n,
                lhs,
                rhs,
            } => write!(
                f,
                "tile({block_m}x{block_n}x{block_k}, thread {thread_m}x{thread_n}, lhs {lhs}, rhs {rhs})"
            ),
            Mapping::Matrix(t) => write!(f, "matrix({t})"),
            Mapping::Gemv(t) => write!(
                f,
                "gemv({} rows, {} columns, unroll {}, {} waves, lhs {}, rhs {}, store {}{})",
                t.rows,
                t.columns(),
                t.unroll,
                t.waves,
                t.lhs,
                t.rhs,
                t.store,
                match (&t.matrix, &t.stream) {
                    (
                        _,
                        Some(GemvStream {
                            instruction,
                            workgroups,
                            stages,
                            pack,
                            copiers,
                            residents,
                            ..
                        }),
                    ) => {
                        let beside = if *residents > 1 {
                            ", beside the launch before"
                        } else {
                            ""
                        };
                        format!(
                            ", {instruction}, {stages} chunks in {workgroups} workgroups that stay{beside}, scales by {pack}, {copiers} waves copy"
                        )
                    }
                    (Some(matrix), None) => {
                        let scaled = if matrix.scaled_sums { "sums" } else { "weights" };
                        format!(", {}, {scaled} scaled{}", matrix.instruction, resident(matrix.resident))
                    }
                    (None, None) if t.early > 0 => format!(", weights of {} steps early", t.early),
                    (None, None) => String::new(),
                }
            ),
            Mapping::FlashMatrix(t) => write!(
                f,
                "flash({}, {} waves by {}, {} queries{}, {} keys, query by {}, key {}, value {}, store {}, {})",
                t.instruction,
                t.waves,
                t.split,
                t.queries(),
                match t.queries_in {
                    QueryPlace::Registers => "",
                    QueryPlace::Halved => " in halves",
                    QueryPlace::Lds => " in lds",
                },
                t.keys,
                t.query,
                t.key,
                t.value,
                t.store,
                t.together
            ),
            Mapping::FlashLanes(t) => write!(
                f,
                "flash by lanes({} lanes a row, {} rows, {} waves by {}, {} queries, {} keys, query by {}, key {}, value {}, store {}, {})",
                t.group,
                t.rows,
                t.waves,
                t.split,
                t.queries(),
                t.keys,
                t.query,
                t.key,
                t.value,
                t.store,
                t.together
            ),
            Mapping::Flash {
                block_q,
                block_k,
                block,
                together,
            } => write!(f, "flash({block_q}x{block_k}, block {block}, {together})"),
        }
    }
}

/// Prints a kernel.
pub fn print(kernel: &Kernel) -> String {
    let mut p = Printer {
        kernel,
        out: String::new(),
        indent: 1,
    };
    let params: Vec<String> = kernel
        .params
        .values()
        .map(|p| format!("{}: {}[{}] {}", p.name, p.dtype, p.elements, p.access))
        .collect();
    let _ = write!(p.out, "kernel {}({})", kernel.name, params.join(", "));
    if !kernel.symbols.is_empty() {
        let symbols: Vec<&str> = kernel.symbols.iter().map(crate::dim::Symbol::name).collect();
        let _ = write!(p.out, " sizes({})", symbols.join(", "));
    }
    let _ = writeln!(p.out, " {} {{", kernel.mapping);
    for origin in &kernel.origins {
        p.line(&format!("// {origin}"));
    }
    p.body();
    p.out.push_str("}\n");
    p.out
}

/// Prints one expression.
pub fn expr(kernel: &Kernel, id: ExprId) -> String {
    let mut out = String::new();
    write_expr(kernel, id, Level::Conditional, &mut out, 0);
    out
}

struct Printer<'a> {
    kernel: &'a Kernel,
    out: String,
    indent: usize,
}

impl Printer<'_> {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{}{text}", "  ".repeat(self.indent));
    }

    fn axes(&self, axes: &[AxisId]) -> String {
        let texts: Vec<String> = axes.iter().map(|a| axis(self.kernel, *a)).collect();
        texts.join(", ")
    }

    /// Prints a loop over some axes around `inside`; no loop over no axes.
    fn nest(&mut self, label: &str, axes: &[AxisId], inside: impl FnOnce(&mut Self)) {
        if axes.is_empty() {
            return inside(self);
        }
        let head = format!("{label} {} {{", self.axes(axes));
        self.line(&head);
        self.indent += 1;
        inside(self);
        self.indent -= 1;
        self.line("}");
    }

    fn body(&mut self) {
        let kernel = self.kernel;
        let e = |id| expr(kernel, id);
        match &kernel.body {
            Body::Loops(l) => self.nest("for", &l.parallel, |p| p.stmts(&l.stmts)),
            Body::Row(r) => self.nest("for", &r.loops.parallel, |p| {
                if !r.held.is_empty() {
                    let held: Vec<String> = r.held.iter().map(|id| e(*id)).collect();
                    let row = p.axes(&r.row);
                    p.line(&format!("hold {}  for {row}", held.join(", ")));
                }
                p.stmts(&r.loops.stmts);
            }),
            Body::Window(w) => self.nest("for", &w.loops.parallel, |p| {
                w.along.iter().for_each(|a| p.window_axis(a));
                if let WindowFold::Weighted { weight, outside } = w.fold {
                    let text = format!("window of {} by {}, outside {outside}", e(w.element), e(weight));
                    p.line(&text);
                }
                if let Some(images) = &w.images {
                    let name = |a: Option<AxisId>| a.map_or("1".to_owned(), |a| p.axis_name(a));
                    let text = format!(
                        "window of images {} of {} channels {}",
                        name(images.image),
                        param(kernel, images.source),
                        name(images.channel)
                    );
                    p.line(&text);
                }
                p.stmts(&w.loops.stmts);
            }),
            Body::Copy(c) => self.nest("for", &c.loops.parallel, |p| {
                let steps = |of: fn(&super::CopyStep) -> &crate::dim::Dim| {
                    let steps: Vec<String> = c.steps.iter().map(|s| of(s).to_string()).collect();
                    steps.join(", ")
                };
                p.line(&format!(
                    "copy {} from {} by [{}] to {} from {} by [{}]",
                    param(kernel, c.source),
                    c.from,
                    steps(|s| &s.source),
                    param(kernel, c.target),
                    c.to,
                    steps(|s| &s.target)
                ));
                p.stmts(&c.loops.stmts);
            }),
            Body::Transform(t) => self.nest("for", &t.parallel, |p| {
                let side = match t.matrix.side {
                    TransformSide::Image => "image",
                    TransformSide::Result => "result",
                };
                let (from, to) = (p.axes(&t.from), p.axes(&t.to));
                p.line(&format!(
                    "{} for {to} = {side} of {} of x for {from}",
                    t.var,
                    t.matrix.winograd.name()
                ));
                let within = t.within.map_or(String::new(), |w| format!("  where {}, else 0", e(w)));
                p.line(&format!("  x = {}{within}", e(t.element)));
                let label = t.inside.map_or("each".to_owned(), |i| format!("each where {}", e(i)));
                p.nest(&label, &t.to, |p| p.stmts(&t.stmts));
            }),
            Body::Contract(c) => self.nest("for batch", &c.batch, |p| {
                p.nest("for m", &c.m, |p| {
                    p.nest("for n", &c.n, |p| {
                        let k = p.axes(&c.k);
                        let sum = match c.pair {
                            None => c.acc.to_string(),
                            Some(pair) => {
                                let pair_axis = p.axes(&[pair.axis]);
                                format!("{}, {} for pairs {pair_axis}", c.acc, pair.second)
                            }
                        };
                        p.line(&format!("{sum} = sum over {k} of lhs * rhs"));
                        p.line(&format!("  lhs = {}", e(c.lhs.value)));
                        p.line(&format!("  rhs = {}", e(c.rhs.value)));
                        if let Some(s) = &c.statistic {
                            let value = e(s.value);
                            p.line(&format!(
                                "{} = {} over {k} of {value}, {} being lhs",
                                s.var, s.op, s.element
                            ));
                        }
                        if let Some(f) = &c.conv {
                            p.line(&format!(
                                "  conv{} {:?} input {} filter {} kernel {:?} strides {:?} groups {}",
                                if f.transposed { " transposed" } else { "" },
                                f.layout,
                                param(kernel, f.input),
                                param(kernel, f.filter),
                                f.kernel_size,
                                f.window.strides,
                                f.groups
                            ));
                        }
                        p.stmts(&c.epilogue);
                    });
                });
            }),
            Body::Attention(a) => self.nest("for batch", &a.batch, |p| {
                p.nest("for", &[a.q], |p| {
                    let (k, d, dv) = (p.axes(&[a.k]), p.axes(&[a.d]), p.axes(&[a.dv]));
                    p.line(&format!("{} = sum over {d} of query * key", a.acc));
                    p.line(&format!("  query = {}", e(a.query)));
                    p.line(&format!("  key = {}", e(a.key)));
                    match a.weights {
                        Weights::Softmax => p.line(&format!("weight = softmax over {k} of {}", e(a.score))),
                        Weights::Scores => p.line(&format!("weight = {}", e(a.score))),
                    }
                    if let Some(range) = &a.range {
                        let bound = |b: Option<ExprId>| b.map(e).unwrap_or_default();
                        p.line(&format!("  seen = {}..{}", bound(range.first), bound(range.end)));
                        if let Some(nothing) = range.nothing {
                            p.line(&format!("  seen = all if {}", e(nothing)));
                        }
                        p.line(&format!("  of those = {}", e(range.inside)));
                    }
                    if let Some(weights) = a.row_weights {
                        let (largest, total) = (weights.largest, weights.total);
                        p.line(&format!("{largest} = the largest of the same over {k}"));
                        p.line(&format!("{total} = sum over {k} of exp of the same less {largest}"));
                    }
                    p.line(&format!("{} = sum over {k} of weight * value  for {dv}", a.out));
                    p.line(&format!("  value = {}", e(a.value)));
                    p.stmts(&a.epilogue);
                });
            }),
            Body::Scan(s) => self.nest("for", &s.parallel, |p| {
                let along = p.axes(&[s.axis]);
                let (exclusive, reverse) = (
                    if s.exclusive { " exclusive" } else { "" },
                    if s.reverse { " reverse" } else { "" },
                );
                let value = e(s.value);
                p.line(&format!(
                    "{} = scan {}{exclusive}{reverse} along {along} of {value}",
                    s.var, s.op
                ));
                p.stmts(&s.stores);
            }),
            Body::Sort(s) => self.nest("for", &s.parallel, |p| {
                let (along, rank) = (p.axes(&[s.axis]), p.axes(&[s.rank]));
                let which = if s.largest { "largest" } else { "smallest" };
                let value = e(s.value);
                p.line(&format!(
                    "{}, {} = {which} {rank} along {along} of {value}",
                    s.value_var, s.index_var
                ));
                p.stmts(&s.stores);
            }),
            Body::Recurrent(r) => self.nest("for", &[r.batch], |p| {
                let (time, hidden) = (p.axes(&[r.time]), p.axes(&[r.hidden]));
                let order = if r.layer.reverse { " backwards" } else { "" };
                let cell = r.layer.cell.name();
                p.line(&format!(
                    "{}, {} = {cell} along {time}{order} over {hidden} of",
                    r.hidden_var, r.cell_var
                ));
                for (expr, axes) in r.operands() {
                    let over = p.axes(&axes);
                    p.line(&format!("  {}  for {over}", e(expr)));
                }
                p.stmts(&r.stores);
            }),
        }
    }

    /// Prints what is known of a window's positions, as `window y * 2 + dy - 1 in 0..112`; a bound that is not asked
    /// for is left out.
    fn window_axis(&mut self, a: &super::WindowAxis) {
        let term = |axis: Option<AxisId>, by: i64| match by {
            1 => axis.map(|axis| self.axis_name(axis)),
            _ => axis.map(|axis| format!("{} * {by}", self.axis_name(axis))),
        };
        let mut sum: Vec<String> = [term(a.outputs, a.stride), term(a.taps, a.dilation)]
            .into_iter()
            .flatten()
            .collect();
        if a.pad_low != 0 || sum.is_empty() {
            sum.push((-i128::from(a.pad_low)).to_string());
        }
        let [low, high] = a.guarded;
        let (low, high) = (
            if low { "0" } else { "" },
            if high { a.size.to_string() } else { String::new() },
        );
        let beyond = match a.beyond {
            true => format!(", counted below {} + {}", a.size, a.pad_high),
            false => String::new(),
        };
        let line = format!("window {} in {low}..{high}{beyond}", sum.join(" + "));
        self.line(&line);
    }

    fn axis_name(&self, id: AxisId) -> String {
        self.kernel
            .axes
            .get(id)
            .map_or_else(|| id.to_string(), |a| a.name.clone())
    }

    fn stmts(&mut self, stmts: &[Stmt]) {
        for stmt in stmts {
            let text = match stmt {
                Stmt::Let { var, value } => format!("{var} = {}", expr(self.kernel, *value)),
                Stmt::Fold { var, op, axes, value } => {
                    format!("{var} = {op} over {} of {}", self.axes(axes), expr(self.kernel, *value))
                }
                Stmt::Store {
                    param,
                    index,
                    value,
                    axes,
                } => self.store("store", "=", *param, *index, *value, axes),
                Stmt::Update {
                    param,
                    index,
                    value,
                    op,
                    axes,
                } => {
                    let op = op.map_or("overwrite".to_owned(), |op| op.to_string());
                    self.store("update", &format!("by {op}"), *param, *index, *value, axes)
                }
            };
            self.line(&text);
        }
    }

    fn store(
        &self,
        verb: &str,
        how: &str,
        to: super::ParamId,
        index: ExprId,
        value: ExprId,
        axes: &[AxisId],
    ) -> String {
        let kernel = self.kernel;
        let (name, at, value) = (param(kernel, to), expr(kernel, index), expr(kernel, value));
        let over = if axes.is_empty() {
            String::new()
        } else {
            format!("  for {}", self.axes(axes))
        };
        format!("{verb} {name}[{at}] {how} {value}{over}")
    }
}

fn param(kernel: &Kernel, id: super::ParamId) -> String {
    kernel.params.get(id).map_or_else(|| id.to_string(), |p| p.name.clone())
}

fn axis(kernel: &Kernel, id: AxisId) -> String {
    match kernel.axes.get(id) {
        Some(a) => format!("{} in 0..{}", a.name, a.extent),
        None => id.to_string(),
    }
}

/// Expressions share parts, so that text may grow beyond bounds; deeper than this it is cut to the id.
const DEEPEST: usize = 24;
const LONGEST: usize = 4000;

fn write_expr(kernel: &Kernel, id: ExprId, outer: Level, out: &mut String, depth: usize) {
    if depth > DEEPEST || out.len() > LONGEST {
        let _ = write!(out, "{id}");
        return;
    }
    let sub = |id, outer, out: &mut String| write_expr(kernel, id, outer, out, depth + 1);
    let call = |name: &str, args: &[ExprId], out: &mut String| {
        out.push_str(name);
        out.push('(');
        for (i, a) in args.iter().enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            sub(*a, Level::Conditional, out);
        }
        out.push(')');
    };
    match &kernel.exprs[id] {
        Expr::Const(_, v) => {
            let _ = write!(out, "{v}");
        }
        Expr::Size(d) => {
            let text = d.to_string();
            let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let _ = if plain {
                write!(out, "{text}")
            } else {
                write!(out, "({text})")
            };
        }
        Expr::Axis(a) => out.push_str(kernel.axes.get(*a).map_or("?", |a| a.name.as_str())),
        Expr::Var(v) => {
            let _ = write!(out, "{v}");
        }
        Expr::Load { param: p, index } => {
            out.push_str(&param(kernel, *p));
            out.push('[');
            sub(*index, Level::Conditional, out);
            out.push(']');
        }
        Expr::Unary(op, a) => call(op.name(), &[*a], out),
        Expr::Cast(to, a) => call(to.name(), &[*a], out),
        Expr::Select(c, a, b) => call("select", &[*c, *a, *b], out),
        Expr::Philox { seed, counter, lane } => {
            let _ = write!(out, "philox({seed}, ");
            sub(*counter, Level::Conditional, out);
            let _ = write!(out, ", {lane})");
        }
        Expr::Binary(op, a, b) => match op.spelling().operator {
            None => call(op.name(), &[*a, *b], out),
            Some((sign, level)) => {
                let parentheses = level < outer;
                if parentheses {
                    out.push('(');
                }
                sub(*a, level, out);
                let _ = write!(out, " {sign} ");
                sub(*b, level.stronger(), out);
                if parentheses {
                    out.push(')');
                }
            }
        },
    }
}
