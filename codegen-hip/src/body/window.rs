//! Windows: a thread has one, or those of neighbouring channels; it walks the taps that are inside, whose bounds are
//! worked out once.
//!
//! ```text
//! const int y_at = y * 2 - 1;
//! const int dy_first = max(0, -y_at), dy_end = min(3, 112 - y_at);
//! for (int dy = dy_first; dy < dy_end; ++dy) ...
//! ```
//!
//! Where the mapping says so, a window that is inside as a whole, as most are, is unrolled: its loads are all on their
//! way at once.

use ir::Dim;
use ir::graph::eval::scalar::identity;
use ir::kernel::{AxisId, Mapping, Stmt, WindowAxis, WindowBody};
use ir::op::PoolKind;

use crate::emit::EmitError;
use crate::expr::Printer;
use crate::index;
use crate::stmt::Running;
use crate::types::{literal, spelling};

/// What is said of loops over the taps of a window that is inside as a whole, and of one at an edge beside it, which is
/// rare: the compilers would unroll that too, for registers that the others then lack.
const ALL_AT_ONCE: &str = "#pragma unroll";
pub(super) const ONE_BY_ONE: &str = "#pragma unroll 1";

/// The taps along an axis that are inside: names, or numbers where nothing guards them.
pub(super) struct Inside {
    pub taps: Option<AxisId>,
    pub kind: &'static str,
    pub first: String,
    pub end: String,
    /// How many taps there are.
    all: String,
    /// How many of them count.
    pub counted: String,
    guarded: bool,
}

/// The neighbours that a thread has the windows of.
struct Neighbours<'a> {
    axis: AxisId,
    name: &'a str,
    start: &'a str,
    vector: u32,
}

impl Printer<'_> {
    pub(super) fn window(&mut self, body: &WindowBody) -> Result<(), EmitError> {
        let parallel = &body.loops.parallel;
        match (&self.kernel.mapping, parallel.split_last()) {
            // Those are walked tap by tap, and weights with them.
            (Mapping::Windows { .. }, _) if body.pool().is_none() => return Err(self.mismatch()),
            (&Mapping::Windows { vector: 1, unroll, .. }, _) => {
                self.open_thread_points(parallel);
                self.one_window(body, unroll, None)?;
            }
            (&Mapping::Windows { vector, unroll, .. }, Some((&last, _))) => {
                let groups = self.groups_along(parallel, vector)?;
                if !groups.whole {
                    return Err(self.mismatch());
                }
                let start = self.open_groups(&groups);
                let name = self.axis(last).to_owned();
                let neighbours = Neighbours {
                    axis: last,
                    name: &name,
                    start: &start,
                    vector,
                };
                self.one_window(body, unroll, Some(&neighbours))?;
            }
            (Mapping::Strips(strips), _) => self.strips(body, strips)?,
            _ => return self.loops(&body.loops),
        }
        self.out.close("");
        Ok(())
    }

    /// A window, or one for each neighbour.
    fn one_window(
        &mut self,
        body: &WindowBody,
        unroll: bool,
        neighbours: Option<&Neighbours<'_>>,
    ) -> Result<(), EmitError> {
        let Some((fold @ &Stmt::Fold { var, op, value, .. }, mut rest)) = body.loops.stmts.split_first() else {
            return Err(self.mismatch());
        };
        let inside: Vec<Inside> = body.along.iter().map(|a| self.inside(a, body)).collect();
        let dtype = self.kernel.exprs.dtype(value);
        let mut array = String::new();
        let running = match neighbours {
            None => self.begin_fold(fold),
            Some(n) => {
                array = self.name_var(var, op.name());
                let (t, vector, lane) = (spelling(dtype), n.vector, self.fresh("lane"));
                let start = literal(dtype, identity(op, dtype));
                self.out.line(format!("{t} {array}[{vector}];"));
                self.out.line("#pragma unroll");
                self.out.line(format!(
                    "for (int {lane} = 0; {lane} < {vector}; ++{lane}) {array}[{lane}] = {start};"
                ));
                None
            }
        };
        let each = |p: &mut Self| match (neighbours, &running) {
            (Some(n), _) => {
                let lane = p.fresh("lane");
                let wide = p.wide_loads(&[body.element], n.axis, n.name, n.start, n.vector, &lane);
                p.out.line("#pragma unroll");
                p.out
                    .open(format!("for (int {lane} = 0; {lane} < {}; ++{lane})", n.vector));
                p.scope(|p| {
                    let kind = p.axis_type(n.axis);
                    p.out.line(format!("const {kind} {} = {} + {lane};", n.name, n.start));
                    wide.iter().for_each(|(e, text)| p.bind_expr(*e, text));
                    let element = p.value(body.element);
                    let into = Running {
                        op,
                        name: format!("{array}[{lane}]"),
                        result: array.clone(),
                        kind: spelling(dtype).to_owned(),
                    };
                    p.take_in(&into, dtype, &element, "0");
                });
                p.out.close("");
            }
            (None, Some(running)) => {
                let element = p.value(body.element);
                p.take_in(running, dtype, &element, "0");
            }
            (None, None) => {}
        };
        let guards: Vec<String> = inside
            .iter()
            .filter(|i| i.guarded)
            .map(|i| format!("{} == 0 && {} == {}", i.first, i.end, i.all))
            .collect();
        let whole = unroll.then_some(ALL_AT_ONCE);
        if guards.is_empty() {
            self.walk(&inside, false, whole, &each);
        } else if unroll {
            self.out.open(format!("if ({})", guards.join(" && ")));
            self.walk(&inside, false, whole, &each);
            self.out.close_open("else");
            self.walk(&inside, true, Some(ONE_BY_ONE), &each);
            self.out.close("");
        } else {
            self.walk(&inside, true, None, &each);
        }
        if let (true, Some((&Stmt::Fold { var, .. }, after))) = (body.counts, rest.split_first()) {
            let factors: Vec<String> = inside.iter().map(|i| i.counted.clone()).collect();
            let (kind, name) = (spelling(self.kernel.vars[var]), self.name_var(var, "count"));
            self.out
                .line(format!("const {kind} {name} = cast<{kind}>({});", factors.join(" * ")));
            rest = after;
        }
        match neighbours {
            None => self.straight(rest),
            Some(n) => {
                let given = [(var, format!("{array}[{{j}}]"))];
                self.one_group(rest, n.axis, n.name, n.start, n.vector, &given);
            }
        }
        Ok(())
    }

    /// Declares which taps along an axis are inside.
    pub(super) fn inside(&mut self, a: &WindowAxis, body: &WindowBody) -> Inside {
        let extent = |axis: Option<AxisId>| axis.map_or(Dim::Const(1), |a| self.kernel.axes[a].extent.clone());
        let (outputs, taps) = (extent(a.outputs), extent(a.taps));
        let furthest = outputs * a.stride + taps.clone() * a.dilation + &a.size;
        let pads = a.pad_low.saturating_abs().saturating_add(a.pad_high.saturating_abs());
        let kind = match index::fits(&(furthest + pads), self.symbols) {
            true => "int",
            false => "i64",
        };
        let all = self.size(&taps);
        let [low, high] = a.guarded;
        let mut inside = Inside {
            taps: a.taps,
            kind,
            first: "0".to_owned(),
            end: all.clone(),
            counted: all.clone(),
            all,
            guarded: low || high,
        };
        if !inside.guarded && !a.beyond {
            return inside;
        }
        let base = a.taps.or(a.outputs).map_or("tap", |axis| self.axis(axis)).to_owned();
        let at = self.fresh(&format!("{base}_at"));
        let output = a.outputs.map(|o| format!("{kind}({})", self.axis(o)));
        let first = match (output, a.pad_low) {
            (None, pad) => format!("-({kind}({pad}))"),
            (Some(o), pad) => format!("{o} * {} - ({pad})", a.stride),
        };
        self.out.line(format!("const {kind} {at} = {first};"));
        let d = a.dilation;
        // Taps below an end: none where it is below 0.
        let taps_below = |p: &Self, end: &Dim| {
            let left = format!("{} - {at}", p.size_factor(end));
            let quotient = match d {
                1 => left.clone(),
                d => format!("({left} + {}) / {d}", d - 1),
            };
            let all = &inside.all;
            format!("{left} <= 0 ? {kind}(0) : math::min<{kind}>({all}, {quotient})")
        };
        if low {
            let name = self.fresh(&format!("{base}_first"));
            let quotient = match d {
                1 => format!("-{at}"),
                d => format!("({} - {at}) / {d}", d - 1),
            };
            // No more than there are taps: a window may be in padding alone.
            self.out.line(format!(
                "const {kind} {name} = {at} < 0 ? math::min<{kind}>({}, {quotient}) : {kind}(0);",
                inside.all
            ));
            inside.first = name;
        }
        if high {
            let name = self.fresh(&format!("{base}_end"));
            let end = taps_below(self, &a.size);
            let after = match low {
                true => format!("math::max<{kind}>({}, {end})", inside.first),
                false => end,
            };
            self.out.line(format!("const {kind} {name} = {after};"));
            inside.end = name;
        }
        if body.pool() == Some(PoolKind::Average { count_padding: true }) {
            if a.beyond {
                let name = self.fresh(&format!("{base}_counted"));
                let end = taps_below(self, &(a.size.clone() + a.pad_high));
                self.out.line(format!("const {kind} {name} = {end};"));
                inside.counted = name;
            }
        } else if inside.guarded {
            inside.counted = format!("({} - {})", inside.end, inside.first);
        }
        inside
    }

    /// Loops over taps: those inside where `bounded`, else all.
    fn walk(&mut self, inside: &[Inside], bounded: bool, pragma: Option<&str>, each: &impl Fn(&mut Self)) {
        self.scope(|p| {
            for i in inside {
                let name = match i.taps {
                    Some(axis) => p.axis(axis).to_owned(),
                    None if !bounded => continue,
                    None => p.fresh("tap"),
                };
                let (first, end) = match bounded {
                    true => (i.first.as_str(), i.end.as_str()),
                    false => ("0", i.all.as_str()),
                };
                let kind = i.taps.map_or(i.kind, |a| p.axis_type(a));
                if let Some(pragma) = pragma {
                    p.out.line(pragma);
                }
                p.out
                    .open(format!("for ({kind} {name} = {first}; {name} < {end}; ++{name})"));
            }
            each(p);
            for i in inside {
                if bounded || i.taps.is_some() {
                    p.out.close("");
                }
            }
        });
    }
}
