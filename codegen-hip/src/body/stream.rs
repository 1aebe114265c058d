//! Pointwise kernels whose threads take neighbours: wide loads, a loop over the neighbours, wide stores.

use ir::kernel::access::{Motions, along};
use ir::kernel::{AxisId, Expr, ExprId, Loops, Mapping, ParamId, Stmt, VarId};
use ir::{Dim, Entity};

use super::parenthesised;
use crate::emit::EmitError;
use crate::expr::Printer;
use crate::types::{is_nibble, spelling};

/// Bytes that a thread reads or writes as neighbours: several accesses where they are more than one holds.
const WIDEST: u32 = 64;

/// The groups of neighbours of a pointwise body.
pub(super) struct Groups<'b> {
    last: AxisId,
    outer: &'b [AxisId],
    vector: u32,
    /// Groups along the last axis.
    per_row: Dim,
    count: Dim,
    /// The type that counts points, and so groups.
    kind: &'static str,
    /// No group is cut short.
    pub whole: bool,
}

/// A load whose group is one access.
struct Wide {
    load: ExprId,
    param: ParamId,
    index: ExprId,
    /// What holds, or does not, where it is read.
    conditions: Vec<(ExprId, bool)>,
}

impl Printer<'_> {
    fn groups<'b>(&self, body: &'b Loops, vector: u32) -> Result<Groups<'b>, EmitError> {
        let only_straight = body.stmts.iter().all(|s| match s {
            Stmt::Let { .. } => true,
            Stmt::Store { axes, .. } => axes.is_empty(),
            _ => false,
        });
        if !only_straight {
            return Err(self.mismatch());
        }
        self.groups_along(&body.parallel, vector)
    }

    /// The groups of neighbours of a body over some axes.
    pub(super) fn groups_along<'b>(&self, parallel: &'b [AxisId], vector: u32) -> Result<Groups<'b>, EmitError> {
        let Some((&last, outer)) = parallel.split_last() else {
            return Err(self.mismatch());
        };
        let width = i64::from(vector);
        let extent = &self.kernel.axes[last].extent;
        let per_row = extent.ceil_div(&Dim::Const(width));
        let rows: Dim = outer.iter().map(|a| self.kernel.axes[*a].extent.clone()).product();
        Ok(Groups {
            last,
            outer,
            vector,
            count: rows * &per_row,
            per_row,
            kind: self.points(parallel).1,
            whole: extent.known_divisor() % width == 0,
        })
    }

    /// Each thread takes `unroll` groups and reads all of them first.
    pub(super) fn stream(&mut self, body: &Loops, vector: u32, unroll: u32) -> Result<(), EmitError> {
        let Mapping::Stream { block, .. } = self.kernel.mapping else {
            return Err(self.mismatch());
        };
        let groups = self.groups(body, vector)?;
        let (kind, chunk) = (groups.kind, i64::from(block) * i64::from(unroll));
        let (first, n) = (self.fresh("first"), self.size(&groups.count));
        self.out.line(format!(
            "// {unroll} times {vector} neighbours a thread along {}",
            self.axis(groups.last)
        ));
        self.out.open(format!(
            "for ({kind} {first} = ({kind})blockIdx.x * {chunk}; {first} < {n}; {first} += ({kind})gridDim.x * {chunk})"
        ));
        let exact = groups.whole && groups.count.known_divisor() % chunk == 0;
        if !exact {
            // Whole groups alone; only without outer axes is there one that is cut short.
            let whole = match groups.whole {
                true => n.clone(),
                false => self.size(
                    &self.kernel.axes[groups.last]
                        .extent
                        .floor_div(&Dim::Const(i64::from(vector))),
                ),
            };
            self.out.open(format!("if ({first} + {chunk} <= {whole})"));
        }
        self.scope(|p| p.whole_chunk(body, &groups, &first, block, unroll));
        if !exact {
            self.out.close_open("else");
            self.scope(|p| {
                let group = p.fresh("group");
                p.out.open(format!(
                    "for ({kind} {group} = {first} + (int)threadIdx.x; {group} < {n} && {group} < {first} + {chunk}; {group} += {block})"
                ));
                let start = p.place_group(&groups, &group);
                p.any_group(body, &groups, &start);
                p.out.close("");
            });
            self.out.close("");
        }
        self.out.close("");
        Ok(())
    }

    /// The groups of a workgroup's threads, all there.
    fn whole_chunk(&mut self, body: &Loops, groups: &Groups<'_>, first: &str, block: u32, unroll: u32) {
        let vector = groups.vector;
        let roots: Vec<ExprId> = body.stmts.iter().flat_map(roots).collect();
        let mut loaded = Vec::new();
        for wide in self.wide_candidates(&roots, groups.last, vector) {
            let name = self.fresh(&format!("{}_wide", self.params[wide.param.index()]));
            let dtype = self.kernel.params[wide.param].dtype;
            self.out
                .line(format!("{} {name}[{unroll}];", group_type(dtype, vector)));
            loaded.push((wide, name));
        }
        let open = |p: &mut Self| {
            let (turn, group) = (p.fresh("turn"), p.fresh("group"));
            p.out.line("#pragma unroll");
            p.out.open(format!("for (int {turn} = 0; {turn} < {unroll}; ++{turn})"));
            p.out.line(format!(
                "const {} {group} = {first} + ({turn} * {block} + (int)threadIdx.x);",
                groups.kind
            ));
            let start = p.place_group(groups, &group);
            (turn, start)
        };
        if !loaded.is_empty() {
            self.scope(|p| {
                let (turn, start) = open(p);
                p.bind_axis(groups.last, &start);
                for (wide, name) in &loaded {
                    let condition = p.condition(&wide.conditions);
                    let read = p.group_read(wide, vector, &condition);
                    p.out.line(format!("{condition}{name}[{turn}] = {read};"));
                }
                p.out.close("");
            });
        }
        self.scope(|p| {
            let (turn, start) = open(p);
            let loaded: Vec<(ExprId, String)> = loaded
                .iter()
                .map(|(wide, name)| (wide.load, format!("{name}[{turn}][{{j}}]")))
                .collect();
            let name = p.axis(groups.last).to_owned();
            p.loaded_group(&body.stmts, groups.last, &name, &start, vector, &[], &loaded);
            p.out.close("");
        });
    }

    /// Each thread takes `vector` neighbours along the last axis.
    pub(super) fn vectors(&mut self, body: &Loops, vector: u32) -> Result<(), EmitError> {
        let groups = self.groups(body, vector)?;
        let start = self.open_groups(&groups);
        self.any_group(body, &groups, &start);
        self.out.close("");
        Ok(())
    }

    /// Opens the loop of a thread over its groups, and declares the outer axes; returns the name of a group's first
    /// position along the last one.
    pub(super) fn open_groups(&mut self, groups: &Groups<'_>) -> String {
        let (kind, vector) = (groups.kind, groups.vector);
        let (group, n) = (self.fresh("group"), self.size(&groups.count));
        self.out.line(format!(
            "// {vector} neighbours a thread along {}",
            self.axis(groups.last)
        ));
        self.out.open(format!(
            "for ({kind} {group} = global_thread<{kind}>(); {group} < {n}; {group} += grid_threads<{kind}>())"
        ));
        self.place_group(groups, &group)
    }

    /// Declares the outer axes of a group; returns the name of its first position along the last one.
    fn place_group(&mut self, groups: &Groups<'_>, group: &str) -> String {
        let (axis, axis_kind) = (self.axis(groups.last).to_owned(), self.axis_type(groups.last));
        let (start, vector) = (self.fresh(&format!("{axis}0")), groups.vector);
        if groups.outer.is_empty() {
            self.out
                .line(format!("const {axis_kind} {start} = {group} * {vector};"));
        } else {
            let per_row = self.size_factor(&groups.per_row);
            self.out
                .line(format!("const {axis_kind} {start} = {group} % {per_row} * {vector};"));
            let (row, kind) = (self.flat_name(groups.outer, "row"), groups.kind);
            self.out.line(format!("const {kind} {row} = {group} / {per_row};"));
            self.split(&row, kind, groups.outer);
        }
        start
    }

    /// A group that may be cut short.
    fn any_group(&mut self, body: &Loops, groups: &Groups<'_>, start: &str) {
        let (last, vector) = (groups.last, groups.vector);
        let (axis, axis_kind) = (self.axis(last).to_owned(), self.axis_type(last));
        if groups.whole {
            self.scope(|p| p.one_group(&body.stmts, last, &axis, start, vector, &[]));
            return;
        }
        let end = self.size(&self.kernel.axes[last].extent);
        self.out.open(format!("if ({start} + {vector} <= {end})"));
        self.scope(|p| p.one_group(&body.stmts, last, &axis, start, vector, &[]));
        self.out.close_open("else");
        self.scope(|p| {
            p.out
                .open(format!("for ({axis_kind} {axis} = {start}; {axis} < {end}; ++{axis})"));
            p.straight(&body.stmts);
            p.out.close("");
        });
        self.out.close("");
    }

    /// A whole group of neighbours: wide loads, a loop over the neighbours, wide stores. `given` are variables that
    /// come as arrays of the group's values: each with its spelling for the neighbour that `{j}` stands for.
    pub(super) fn one_group(
        &mut self,
        stmts: &[Stmt],
        axis: AxisId,
        name: &str,
        start: &str,
        vector: u32,
        given: &[(VarId, String)],
    ) {
        self.loaded_group(stmts, axis, name, start, vector, given, &[]);
    }

    /// As [`Self::one_group`]; what is in `loaded` has been read: the load, and its spelling for the neighbour that
    /// `{j}` stands for.
    pub(super) fn loaded_group(
        &mut self,
        stmts: &[Stmt],
        axis: AxisId,
        name: &str,
        start: &str,
        vector: u32,
        given: &[(VarId, String)],
        loaded: &[(ExprId, String)],
    ) {
        let kind = self.axis_type(axis);
        let roots: Vec<ExprId> = stmts
            .iter()
            .flat_map(|s| match s {
                Stmt::Let { value, .. } => vec![*value],
                Stmt::Store { index, value, .. } => vec![*index, *value],
                _ => vec![],
            })
            .collect();
        let lane = self.fresh("lane");
        // Named, they are not read again.
        loaded.iter().for_each(|(e, from)| self.bind_expr(*e, from));
        let mut wide = self.wide_loads(&roots, axis, name, start, vector, &lane);
        wide.extend(loaded.iter().map(|(e, from)| (*e, from.replace("{j}", &lane))));
        let mut stores: Vec<Option<String>> = Vec::new();
        for s in stmts {
            let Stmt::Store { param, index, .. } = s else {
                stores.push(None);
                continue;
            };
            let dtype = self.kernel.params[*param].dtype;
            stores.push(self.is_wide(dtype, *index, axis, vector).then(|| {
                let name = format!("{}_wide", self.params[param.index()]);
                let name = self.fresh(&name);
                self.out.line(format!("Vec<{}, {vector}> {name};", spelling(dtype)));
                name
            }));
        }
        self.out.line("#pragma unroll");
        self.out
            .open(format!("for (int {lane} = 0; {lane} < {vector}; ++{lane})"));
        self.scope(|p| {
            p.out.line(format!("const {kind} {name} = {start} + {lane};"));
            wide.iter().for_each(|(e, text)| p.bind_expr(*e, text));
            for (var, of_neighbour) in given {
                p.bind_var(*var, &of_neighbour.replace("{j}", &lane));
            }
            for (s, wide_store) in stmts.iter().zip(&stores) {
                match (s, wide_store) {
                    (Stmt::Store { value, .. }, Some(into)) => {
                        let value = p.value(*value);
                        p.out.line(format!("{into}[{lane}] = {value};"));
                    }
                    _ => p.straight(std::slice::from_ref(s)),
                }
            }
        });
        self.out.close("");
        self.scope(|p| {
            p.bind_axis(axis, start);
            for (s, wide_store) in stmts.iter().zip(&stores) {
                if let (Stmt::Store { param, index, .. }, Some(from)) = (s, wide_store) {
                    let index = p.value(*index);
                    let name = p.params[param.index()].clone();
                    p.out
                        .line(format!("store_vector({name} + {}, {from});", parenthesised(&index)));
                }
            }
        });
    }

    pub(super) fn is_wide(&self, dtype: ir::DType, index: ExprId, axis: AxisId, vector: u32) -> bool {
        !is_nibble(dtype) && dtype.bits() / 8 * vector <= WIDEST && self.is_whole(index, axis, vector)
    }

    /// Says whether positions of a group are neighbours, the first a multiple of their number.
    fn is_whole(&self, index: ExprId, axis: AxisId, vector: u32) -> bool {
        along(self.kernel, self.symbols, index, axis, i64::from(vector)).is_some_and(|m| m.is_wide(i64::from(vector)))
    }

    /// The loads whose groups are one access each: of neighbours in memory, and on conditions that hold for a whole
    /// group or not at all.
    fn wide_candidates(&self, roots: &[ExprId], axis: AxisId, vector: u32) -> Vec<Wide> {
        let width = i64::from(vector);
        let mut motions = Motions::new(self.kernel, self.symbols, axis, width);
        let mut found = Vec::new();
        for (load, conditions) in self.loads_by_conditions(roots) {
            let Expr::Load { param, index } = self.kernel.exprs[load] else {
                continue;
            };
            let uniform = conditions.iter().all(|(c, _)| motions.is_uniform(*c));
            let dtype = self.kernel.params[param].dtype;
            // A word has eight elements of four bits.
            let nibbles = is_nibble(dtype) && conditions.is_empty() && vector.is_multiple_of(8);
            let wide = match nibbles {
                true => vector / 2 <= WIDEST && self.is_whole(index, axis, vector),
                false => self.is_wide(dtype, index, axis, vector),
            };
            if uniform && wide {
                found.push(Wide {
                    load,
                    param,
                    index,
                    conditions,
                });
            }
        }
        found
    }

    /// The beginning of a statement that happens on some conditions.
    fn condition(&mut self, conditions: &[(ExprId, bool)]) -> String {
        let all: Vec<String> = conditions
            .iter()
            .map(|(c, holds)| {
                let spelled = self.value(*c);
                match holds {
                    true if conditions.len() == 1 => spelled,
                    true => parenthesised(&spelled),
                    false => format!("!({spelled})"),
                }
            })
            .collect();
        match all.is_empty() {
            true => String::new(),
            false => format!("if ({}) ", all.join(" && ")),
        }
    }

    /// What reads neighbours at once, on a condition or always.
    fn group_read(&mut self, wide: &Wide, vector: u32, condition: &str) -> String {
        let (at, from) = (self.value(wide.index), self.params[wide.param.index()].clone());
        let dtype = self.kernel.params[wide.param].dtype;
        match is_nibble(dtype) {
            true => format!("load_nibbles<{}, {vector}>({from}, {at})", spelling(dtype)),
            false => format!(
                "{}<{vector}>({from} + {})",
                load_function(condition),
                parenthesised(&at)
            ),
        }
    }

    /// Reads what is contiguous as whole vectors; returns the spelling of each load for a `lane`.
    pub(super) fn wide_loads(
        &mut self,
        roots: &[ExprId],
        axis: AxisId,
        name: &str,
        start: &str,
        vector: u32,
        lane: &str,
    ) -> Vec<(ExprId, String)> {
        let mut wide = Vec::new();
        if vector == 1 {
            return wide;
        }
        for candidate in self.wide_candidates(roots, axis, vector) {
            self.bind_axis(axis, start);
            let condition = self.condition(&candidate.conditions);
            let local = self.fresh(&format!("{}_wide", self.params[candidate.param.index()]));
            let kind = group_type(self.kernel.params[candidate.param].dtype, vector);
            let read = self.group_read(&candidate, vector, &condition);
            match condition.is_empty() {
                true => self.out.line(format!("const {kind} {local} = {read};")),
                false => {
                    self.out.line(format!("{kind} {local};"));
                    self.out.line(format!("{condition}{local} = {read};"));
                }
            }
            self.bind_axis(axis, name);
            wide.push((candidate.load, format!("{local}[{lane}]")));
        }
        // What the indices named holds at the group's start only.
        self.forget_locals_along(axis);
        wide
    }
}

/// The type of neighbours that are read at once.
fn group_type(dtype: ir::DType, vector: u32) -> String {
    let kind = if is_nibble(dtype) { "Nibbles" } else { "Vec" };
    format!("{kind}<{}, {vector}>", spelling(dtype))
}

/// The device library's function for a wide load that happens on a condition, or always.
fn load_function(condition: &str) -> &'static str {
    match condition.is_empty() {
        true => "load_vector",
        false => "load_whole",
    }
}

/// The expressions that a statement computes.
pub(super) fn roots(stmt: &Stmt) -> Vec<ExprId> {
    match stmt {
        Stmt::Let { value, .. } | Stmt::Fold { value, .. } => vec![*value],
        Stmt::Store { index, value, .. } | Stmt::Update { index, value, .. } => vec![*index, *value],
    }
}
