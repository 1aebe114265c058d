//! Strips: a thread has the windows of neighbouring outputs, down and across the image, and of neighbouring channels.
//!
//! ```text
//! const int y0 = .. * 2, x0 = .. % 14 * 4, c0 = .. % 18 * 8;
//! float sums[2][4][8];
//! begin_strip(sums, 0.0f);
//! const StripOf<f16, int> strip{in0, .., y0 - 1, x0 - 1, 56, 56, ..};
//! Weighted<f16, 3, 3, 8> taken;
//! for (int ky = 0; ky < 3; ++ky) for (int kx = 0; kx < 3; ++kx) taken.weights[ky][kx] = ..;
//! take_strip<StripWalk<2, 3, 1, 1>, StripWalk<4, 3, 1, 1>, StripReads<8, 1, 0, true, true>>(sums, strip, taken);
//! for (int r = 0; r < 2; ++r) for (int s = 0; s < 4; ++s) out[..] = sums[r][s];
//! ```

use ir::graph::eval::scalar::identity;
use ir::kernel::{AxisId, Stmt, StripAccess, Strips, VarId, WindowAxis, WindowBody, WindowFold, narrowed};
use ir::op::{PoolKind, ReduceOp};
use ir::{Dim, Entity, Scalar};

use super::window::{Inside, ONE_BY_ONE};
use crate::emit::EmitError;
use crate::expr::Printer;
use crate::index;
use crate::types::{literal, operation, spelling};

/// Names of a strip that the rest of a kernel refers to.
struct Strip<'b> {
    body: &'b WindowBody,
    strips: Strips,
    access: StripAccess,
    down: Option<&'b WindowAxis>,
    across: &'b WindowAxis,
    /// Where the thread's outputs begin along each axis of which it has several, and how many they are.
    starts: Vec<(AxisId, String, u32)>,
    sums: String,
}

impl Strip<'_> {
    fn start(&self, axis: Option<AxisId>) -> Option<&(AxisId, String, u32)> {
        self.starts.iter().find(|(a, ..)| Some(*a) == axis)
    }

    /// Whether some outputs of the last strip along an axis do not exist.
    fn is_cut(&self, p: &Printer<'_>, axis: &WindowAxis) -> bool {
        let cut =
            |(a, _, count): &(AxisId, String, u32)| p.kernel.axes[*a].extent.known_divisor() % i64::from(*count) != 0;
        self.start(axis.outputs).is_some_and(cut)
    }

    /// The axis of neighbours that are one vector, with the beginning of each and their number.
    fn neighbours(&self) -> Option<&(AxisId, String, u32)> {
        self.start(self.body.loops.parallel.last().copied())
            .filter(|(a, ..)| self.across.outputs != Some(*a) && self.down.and_then(|d| d.outputs) != Some(*a))
    }
}

impl Printer<'_> {
    /// Opens the loop over a thread's strips and prints what is inside.
    pub(super) fn strips(&mut self, body: &WindowBody, strips: &Strips) -> Result<(), EmitError> {
        let (Some((down, across)), Some(access), None) = (
            body.plane(),
            body.strip_access(self.kernel),
            body.misfit(self.kernel, strips),
        ) else {
            return Err(self.mismatch());
        };
        let Some((&Stmt::Fold { var, op, value, .. }, rest)) = body.loops.stmts.split_first() else {
            return Err(self.mismatch());
        };
        let starts = self.open_strips(body, strips);
        let sums = self.name_var(var, if body.pool().is_some() { op.name() } else { "sums" });
        let strip = Strip {
            body,
            strips: *strips,
            access,
            down: down.map(|at| &body.along[at]),
            across: &body.along[across],
            starts,
            sums,
        };
        let dtype = self.kernel.exprs.dtype(value);
        let (
            kind,
            Strips {
                rows, columns, vector, ..
            },
        ) = (spelling(dtype), strip.strips);
        self.out
            .line(format!("{kind} {}[{rows}][{columns}][{vector}];", strip.sums));
        let first = literal(dtype, identity(op, dtype));
        self.out.line(format!("begin_strip({}, {first});", strip.sums));
        let taps: Vec<_> = body
            .along
            .iter()
            .enumerate()
            .filter(|(at, _)| Some(*at) != down && *at != across)
            .map(|(_, a)| self.inside(a, body))
            .collect();
        match taps.is_empty() {
            // No block is opened, so its names stay in view.
            true => self.take_plane(&strip, op),
            false => self.scope(|p| p.take_planes(&strip, op, &taps)),
        }
        let counted = taps.into_iter().map(|i| i.counted).collect();
        self.give_outputs(&strip, var, rest, counted);
        Ok(())
    }

    /// Takes in each plane of taps, where windows have several.
    fn take_planes(&mut self, strip: &Strip<'_>, op: ReduceOp, taps: &[Inside]) {
        for i in taps {
            let name = match i.taps {
                Some(axis) => self.axis(axis).to_owned(),
                None => self.fresh("tap"),
            };
            let kind = i.taps.map_or(i.kind, |a| self.axis_type(a));
            self.out.line(ONE_BY_ONE);
            self.out.open(format!(
                "for ({kind} {name} = {}; {name} < {}; ++{name})",
                i.first, i.end
            ));
        }
        self.take_plane(strip, op);
        taps.iter().for_each(|_| self.out.close(""));
    }

    /// Opens the loop, declares the axes of which a thread has one output, and returns where the others begin.
    fn open_strips(&mut self, body: &WindowBody, strips: &Strips) -> Vec<(AxisId, String, u32)> {
        let parallel = &body.loops.parallel;
        let counts: Vec<u32> = parallel.iter().map(|a| strips.along(body, *a)).collect();
        let each =
            |(axis, count): (&AxisId, &u32)| self.kernel.axes[*axis].extent.ceil_div(&Dim::Const(i64::from(*count)));
        let groups: Vec<Dim> = parallel.iter().zip(&counts).map(each).collect();
        let all: Dim = groups.iter().cloned().product();
        let kind = self.points(parallel).1;
        let (place, n) = (self.fresh("place"), self.size(&all));
        self.out.open(format!(
            "for ({kind} {place} = global_thread<{kind}>(); {place} < {n}; {place} += grid_threads<{kind}>())"
        ));
        let mut starts = Vec::new();
        for (i, (&axis, &count)) in parallel.iter().zip(&counts).enumerate() {
            let below: Dim = groups[i + 1..].iter().cloned().product();
            let mut position = place.clone();
            if !below.is(1) {
                position = format!("{position} / {}", self.size_factor(&below));
            }
            if i > 0 {
                position = format!("{position} % {}", self.size_factor(&groups[i]));
            }
            let (axis_kind, name) = (self.axis_type(axis), self.axis(axis).to_owned());
            if axis_kind != kind {
                position = format!("{axis_kind}({position})");
            }
            if count == 1 {
                self.out.line(format!("const {axis_kind} {name} = {position};"));
                continue;
            }
            let start = self.fresh(&format!("{name}0"));
            self.out
                .line(format!("const {axis_kind} {start} = {position} * {count};"));
            starts.push((axis, start, count));
        }
        starts
    }

    /// Takes the elements of a plane of taps into the sums.
    fn take_plane(&mut self, strip: &Strip<'_>, op: ReduceOp) {
        let from = self.first_element(strip, op);
        let taken = self.taken(strip, op);
        let walks = [
            (strip.down, strip.strips.rows),
            (Some(strip.across), strip.strips.columns),
        ]
        .map(|(axis, outputs)| {
            let taps = axis
                .and_then(|a| a.taps)
                .map_or(Dim::Const(1), |a| self.kernel.axes[a].extent.clone());
            let [stride, dilation] = axis.map_or([1, 1], |a| [a.stride, a.dilation]);
            format!("StripWalk<{outputs}, {}, {stride}, {dilation}>", self.size(&taps))
        });
        self.out.line(format!(
            "take_strip<{}, {}, {}>({}, {from}, {taken});",
            walks[0],
            walks[1],
            self.reads(strip),
            strip.sums
        ));
    }

    /// How a strip is read, as the device library has it.
    fn reads(&self, strip: &Strip<'_>) -> String {
        let read = i64::from(strip.strips.read);
        let wide = strip
            .neighbours()
            .is_some_and(|(axis, _, vector)| strip.body.strip_is_wide(&strip.access, *axis, *vector));
        let lanes = if wide { strip.strips.vector } else { 1 };
        let shift = strip.across.pad_low.saturating_neg().rem_euclid(read);
        let edges = [strip.down, Some(strip.across)]
            .into_iter()
            .flatten()
            .any(|a| a.guarded != [false; 2] || strip.is_cut(self, a));
        let neutral = match strip.body.fold {
            WindowFold::Pool(_) => true,
            WindowFold::Weighted { outside, .. } => outside.as_f64() == 0.0,
        };
        format!("StripReads<{lanes}, {read}, {shift}, {edges}, {neutral}>")
    }

    /// Declares where the strip's elements are; returns its name.
    fn first_element(&mut self, strip: &Strip<'_>, op: ReduceOp) -> String {
        let param = &self.kernel.params[strip.access.param];
        let (dtype, elements) = (param.dtype, param.elements.clone());
        let plane = [strip.down, Some(strip.across)];
        // At the first tap of the first output.
        let taps = plane.into_iter().flatten().filter_map(|a| a.taps);
        let mut moved: Vec<(AxisId, String)> = taps.map(|a| (a, "0".to_owned())).collect();
        moved.extend(strip.starts.iter().map(|(a, start, _)| (*a, start.clone())));
        let names: Vec<String> = moved.iter().map(|(a, _)| self.axis(*a).to_owned()).collect();
        moved.iter().for_each(|(a, at)| self.bind_axis(*a, at));
        let first = self.value(strip.access.index);
        moved
            .iter()
            .zip(&names)
            .for_each(|((a, _), name)| self.bind_axis(*a, name));
        moved.iter().for_each(|(a, _)| self.forget_locals_along(*a));
        let fits = |axis: &WindowAxis| index::fits(&self.furthest(axis), self.symbols);
        let small = index::fits(&elements, self.symbols) && plane.into_iter().flatten().all(fits);
        let kind = if small { "int" } else { "i64" };
        let sizes = plane.map(|axis| axis.map_or_else(|| "1".to_owned(), |a| self.size(&a.size)));
        let steps = strip.access.steps.clone().map(|step| self.size(&step));
        let positions = plane.map(|axis| self.first_position(strip, axis));
        let numbers = [vec![first], steps.to_vec(), positions.to_vec(), sizes.to_vec()].concat();
        // Sizes that are open are `i64`.
        let numbers = numbers.into_iter().map(|n| match n.parse::<i64>() {
            Err(_) if small => format!("int({n})"),
            _ => n,
        });
        let outside = match strip.body.fold {
            WindowFold::Pool(_) => identity(op, dtype),
            WindowFold::Weighted { outside, .. } if dtype.is_int() => Scalar::Int(outside.as_i64()),
            WindowFold::Weighted { outside, .. } => outside,
        };
        let name = self.fresh("strip");
        self.out.line(format!(
            "const StripOf<{}, {kind}> {name}{{{}, {}, {}}};",
            spelling(dtype),
            self.params[strip.access.param.index()],
            numbers.collect::<Vec<_>>().join(", "),
            literal(dtype, outside)
        ));
        name
    }

    /// The position of the first tap of a strip's first output along an axis.
    fn first_position(&self, strip: &Strip<'_>, axis: Option<&WindowAxis>) -> String {
        let Some((axis, output)) = axis.and_then(|a| Some((a, a.outputs?))) else {
            return "0".to_owned();
        };
        let start = strip
            .start(Some(output))
            .map_or_else(|| self.axis(output), |(_, start, _)| start.as_str());
        let moved = match axis.stride {
            1 => start.to_owned(),
            by => format!("{start} * {by}"),
        };
        match axis.pad_low {
            0 => moved,
            pad @ 1.. => format!("{moved} - {pad}"),
            pad => format!("{moved} + {}", pad.unsigned_abs()),
        }
    }

    /// A size that no position along an axis is beyond.
    fn furthest(&self, a: &WindowAxis) -> Dim {
        let extent = |axis: Option<AxisId>| axis.map_or(Dim::Const(1), |a| self.kernel.axes[a].extent.clone());
        let pads = a.pad_low.saturating_abs().saturating_add(a.pad_high.saturating_abs());
        // A strip that is cut short reaches beyond the outputs by less than a strip.
        (extent(a.outputs) + 64) * a.stride + extent(a.taps) * a.dilation + &a.size + pads
    }

    /// Declares what takes elements in; returns its name, or the thing itself.
    fn taken(&mut self, strip: &Strip<'_>, op: ReduceOp) -> String {
        let WindowFold::Weighted { weight, .. } = strip.body.fold else {
            return format!("Pooled<{}>()", operation(op));
        };
        let weight = narrowed(self.kernel, weight);
        let kind = spelling(self.kernel.exprs.dtype(weight));
        let axes = [strip.down, Some(strip.across)].map(|a| a.and_then(|a| a.taps));
        let counts = axes.map(|axis| axis.map_or_else(|| "1".to_owned(), |a| self.size(&self.kernel.axes[a].extent)));
        let neighbours = strip.neighbours().cloned();
        let name = self.fresh("taken");
        let vector = strip.strips.vector;
        self.out.line(format!(
            "Weighted<{kind}, {}, {}, {vector}> {name};",
            counts[0], counts[1]
        ));
        self.scope(|p| {
            let mut place = format!("{name}.weights");
            let mut opened = 0;
            for axis in axes {
                let Some(axis) = axis else {
                    place += "[0]";
                    continue;
                };
                let (kind, axis_name) = (p.axis_type(axis), p.axis(axis).to_owned());
                let extent = p.size(&p.kernel.axes[axis].extent);
                p.out.line("#pragma unroll");
                p.out.open(format!(
                    "for ({kind} {axis_name} = 0; {axis_name} < {extent}; ++{axis_name})"
                ));
                place += &format!("[{axis_name}]");
                opened += 1;
            }
            match neighbours {
                None => {
                    let value = p.value(weight);
                    p.out.line(format!("{place}[0] = {value};"));
                }
                Some((axis, start, vector)) => {
                    let (lane, axis_name) = (p.fresh("lane"), p.axis(axis).to_owned());
                    let wide = p.wide_loads(&[weight], axis, &axis_name, &start, vector, &lane);
                    p.out.line("#pragma unroll");
                    p.out.open(format!("for (int {lane} = 0; {lane} < {vector}; ++{lane})"));
                    p.scope(|p| {
                        let kind = p.axis_type(axis);
                        p.out.line(format!("const {kind} {axis_name} = {start} + {lane};"));
                        wide.iter().for_each(|(e, text)| p.bind_expr(*e, text));
                        let value = p.value(weight);
                        p.out.line(format!("{place}[{lane}] = {value};"));
                    });
                    p.out.close("");
                }
            }
            (0..opened).for_each(|_| p.out.close(""));
        });
        name
    }

    /// Does the statements that follow the fold, for each output of the strip.
    fn give_outputs(&mut self, strip: &Strip<'_>, var: VarId, rest: &[Stmt], counted: Vec<String>) {
        let (count, rest) = match rest.split_first() {
            Some((&Stmt::Fold { var, .. }, rest)) if strip.body.counts => (Some(var), rest),
            _ => (None, rest),
        };
        self.scope(|p| {
            let last = strip.body.loops.parallel.last().copied();
            let columns = strip.strips.columns;
            // A row of outputs that lie side by side is stored at once.
            let together = columns > 1
                && strip.across.outputs == last
                && columns.is_power_of_two()
                && !strip.is_cut(p, strip.across);
            let mut opened = 0;
            let mut place = strip.sums.clone();
            place += &p.open_outputs(strip, strip.down, &mut opened);
            if !together {
                place += &p.open_outputs(strip, Some(strip.across), &mut opened);
            }
            let counted = count.map(|count| (count, p.counted_taps(strip, count, counted)));
            match (strip.neighbours(), strip.start(strip.across.outputs)) {
                (Some((axis, start, vector)), _) => {
                    let (name, given) = (p.axis(*axis).to_owned(), (var, format!("{place}[{{j}}]")));
                    let given = [given].into_iter().chain(counted).collect::<Vec<_>>();
                    p.one_group(rest, *axis, &name, start, *vector, &given);
                }
                (None, Some((axis, start, columns))) if together => {
                    let (name, given) = (p.axis(*axis).to_owned(), (var, format!("{place}[{{j}}][0]")));
                    let given = [given].into_iter().chain(counted).collect::<Vec<_>>();
                    p.one_group(rest, *axis, &name, start, *columns, &given);
                }
                _ => {
                    p.bind_var(var, &format!("{place}[0]"));
                    if let Some((count, text)) = counted {
                        p.bind_var(count, &text);
                    }
                    p.straight(rest);
                }
            }
            (0..opened).for_each(|_| p.out.close(""));
        });
    }

    /// How many taps count at an output whose axes are in view where the text is printed; `factors` says so of the axes
    /// that strips do not go along.
    fn counted_taps(&mut self, strip: &Strip<'_>, count: VarId, mut factors: Vec<String>) -> String {
        let padding_counts = strip.body.pool() == Some(PoolKind::Average { count_padding: true });
        for axis in [strip.down, Some(strip.across)].into_iter().flatten() {
            let taps = axis.taps.map_or(Dim::Const(1), |a| self.kernel.axes[a].extent.clone());
            let all = self.size(&taps);
            if (padding_counts && !axis.beyond) || (!padding_counts && axis.guarded == [false; 2]) {
                factors.push(all);
                continue;
            }
            let output = axis.outputs.map_or_else(|| "0".to_owned(), |a| self.axis(a).to_owned());
            let first = format!("i64({output}) * {} - ({})", axis.stride, axis.pad_low);
            let (low, end) = match padding_counts {
                true => (-axis.pad_low, axis.size.clone() + axis.pad_high),
                false => (0, axis.size.clone()),
            };
            let end = self.size(&end);
            factors.push(format!(
                "taps_between<{all}, {}, i64>({first}, {low}, {end})",
                axis.dilation
            ));
        }
        let kind = spelling(self.kernel.vars[count]);
        format!("cast<{kind}>({})", factors.join(" * "))
    }

    /// Opens the loop over a strip's outputs along an axis, where there are several; returns the place of their sums.
    fn open_outputs(&mut self, strip: &Strip<'_>, axis: Option<&WindowAxis>, opened: &mut usize) -> String {
        let Some((axis, (id, start, count))) = axis.and_then(|a| Some((a, strip.start(a.outputs)?))) else {
            return "[0]".to_owned();
        };
        let at = self.fresh("output");
        self.out.line("#pragma unroll");
        self.out.open(format!("for (int {at} = 0; {at} < {count}; ++{at})"));
        let (kind, name) = (self.axis_type(*id), self.axis(*id).to_owned());
        self.out.line(format!("const {kind} {name} = {start} + {at};"));
        *opened += 1;
        if strip.is_cut(self, axis) {
            let end = self.size(&self.kernel.axes[*id].extent);
            self.out.open(format!("if ({name} < {end})"));
            *opened += 1;
        }
        format!("[{at}]")
    }
}
