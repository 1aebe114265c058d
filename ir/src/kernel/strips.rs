//! Strips: a thread takes the windows of neighbouring outputs, which share most of what they read.
//!
//! ```text
//! x  x  x  x  x  x        a row of the image
//! [  .  ]                 the windows of four outputs, three taps each:
//!    [  .  ]              six elements are read once instead of twelve
//!       [  .  ]
//!          [  .  ]
//! ```

use serde::{Deserialize, Serialize};

use super::verify::form::{Form, Forms};
use super::{AxisId, Expr, ExprId, Kernel, ParamId, WindowAxis, WindowBody, WindowFold};
use crate::dim::Dim;
use crate::types::DType;

/// Elements that a strip reads along an axis, at most.
const MOST_READ: i64 = 64;
/// Sums that a thread has, at most.
const MOST_SUMS: u32 = 256;
/// Taps of a plane of a window, at most: their weights stay in registers.
const MOST_TAPS: i64 = 128;

/// How many windows a thread takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Strips {
    /// Threads of a workgroup.
    pub block: u32,
    /// Outputs of a thread down and across the image, as [`WindowBody::plane`] has the axes.
    pub rows: u32,
    pub columns: u32,
    /// Neighbours along the last parallel axis, whose extent this divides; 1 where windows move along it.
    pub vector: u32,
    /// Elements of a row that are read at once where windows move along the last parallel axis; else 1. A group is
    /// inside of the image or outside of it as a whole.
    pub read: u32,
    /// Workgroups that a unit is to have room for at least, where compilers are told.
    pub resident: Option<u32>,
}

/// Where a strip's elements are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripAccess {
    /// The buffer that the element is loaded from, and where.
    pub param: ParamId,
    pub index: ExprId,
    /// Elements from a position to the next one, down and across.
    pub steps: [Dim; 2],
    form: Form,
}

impl WindowBody {
    /// Returns where in [`WindowBody::along`] the axes are along which neighbouring windows share elements: down, where
    /// there is such an axis, and across, the innermost one.
    pub fn plane(&self) -> Option<(Option<usize>, usize)> {
        let moves = |a: &WindowAxis| a.taps.is_some() && a.outputs.is_some();
        let mut moving = (0..self.along.len()).rev().filter(|at| moves(&self.along[*at]));
        let across = moving.next()?;
        Some((moving.next(), across))
    }

    /// Returns where the elements of a strip are; `None` where they are not loaded as they are from one buffer, in
    /// equal steps from each position to the next.
    pub fn strip_access(&self, kernel: &Kernel) -> Option<StripAccess> {
        let (down, across) = self.plane()?;
        let load = match kernel.exprs[self.element] {
            Expr::Cast(_, inner) => inner,
            _ => self.element,
        };
        let Expr::Load { param, index } = kernel.exprs[load] else {
            return None;
        };
        let form = Forms::new(kernel).of(index)?;
        if kernel.params[param].dtype.bits() < 8 {
            return None;
        }
        let step = |axis: &WindowAxis| {
            let (stride, dilation) = (Dim::Const(axis.stride), Dim::Const(axis.dilation));
            let (output, tap) = (form.coefficient(axis.outputs?), form.coefficient(axis.taps?));
            let is_by_position = output.checked_mul(&dilation)? == tap.checked_mul(&stride)?;
            let is_valid = is_by_position && axis.stride > 0 && axis.dilation > 0;
            is_valid.then(|| tap.exact_div(&dilation)).flatten()
        };
        let down = match down {
            Some(at) => step(&self.along[at])?,
            None => Dim::Const(0),
        };
        let steps = [down, step(&self.along[across])?];
        Some(StripAccess {
            param,
            index,
            steps,
            form,
        })
    }

    /// Says whether neighbours along an axis that windows do not move along lie side by side, each group of `vector`
    /// aligned.
    pub fn strip_is_wide(&self, access: &StripAccess, axis: AxisId, vector: u32) -> bool {
        let others = access.form.terms().filter(|(a, _)| *a != axis).map(|(_, by)| by);
        access.form.coefficient(axis).is(1) && divides(vector, others.chain([access.form.base()]))
    }

    /// Says whether neighbours along an axis read one element, or elements that [lie side by
    /// side](Self::strip_is_wide).
    pub fn strip_serves(&self, access: &StripAccess, axis: AxisId, vector: u32) -> bool {
        access.form.coefficient(axis).is(0) || self.strip_is_wide(access, axis, vector)
    }

    /// Says why strips of these sizes do not suit the windows; `None` where they do.
    pub fn misfit(&self, kernel: &Kernel, strips: &Strips) -> Option<&'static str> {
        let Some((down, across)) = self.plane() else {
            return Some("strips are of windows that move along an axis of several taps");
        };
        let Some(access) = self.strip_access(kernel) else {
            return Some("strips read elements as they lie in memory, in equal steps");
        };
        let Strips {
            block,
            rows,
            columns,
            vector,
            read,
            resident,
        } = *strips;
        if [block, rows, columns, vector, read].contains(&0) || resident.is_some_and(|n| !(1..=32).contains(&n)) {
            return Some("a size is 0, or more than 32 workgroups are resident");
        }
        if [vector, read].iter().any(|n| !n.is_power_of_two() || *n > 16) {
            return Some("vectors of strips are powers of two up to 16");
        }
        let sums = rows.checked_mul(columns).and_then(|n| n.checked_mul(vector));
        if sums.is_none_or(|sums| sums > MOST_SUMS) || (down.is_none() && rows > 1) {
            return Some("a thread has 256 sums at most, and several rows only where windows move down");
        }
        let extent = |axis: Option<AxisId>| axis.map_or(Some(1), |a| kernel.axes[a].extent.as_const());
        let mut taps = 1;
        for (axis, outputs) in [(down, rows), (Some(across), columns)] {
            let Some(axis) = axis.map(|at| &self.along[at]) else {
                continue;
            };
            let Some(count) = extent(axis.taps).filter(|n| (1..=MOST_READ).contains(n)) else {
                return Some("strips are of windows of a known number of taps, 64 along an axis at most");
            };
            let reach = (count - 1)
                .checked_mul(axis.dilation)
                .and_then(|n| n.checked_add(i64::from(outputs - 1).checked_mul(axis.stride)?));
            if reach.is_none_or(|reach| reach >= MOST_READ) {
                return Some("a strip reads 64 elements along an axis at most");
            }
            taps *= count;
        }
        if taps > MOST_TAPS {
            return Some("strips are of windows of 128 taps at most");
        }
        let moves = |axis: &AxisId| self.along.iter().any(|a| a.outputs.as_ref() == Some(axis));
        let last = self.loops.parallel.last();
        if vector > 1
            && last.is_none_or(|a| moves(a) || kernel.axes[*a].extent.known_divisor() % i64::from(vector) != 0)
        {
            return Some("the vector must divide the innermost axis, along which windows do not move");
        }
        if vector > 1 && last.is_some_and(|a| !self.strip_serves(&access, *a, vector)) {
            return Some("neighbours of a vector read the same element, or elements side by side");
        }
        if read > 1 && !self.reads_whole(&access, &self.along[across], strips) {
            return Some(
                "groups that are read at once lie side by side, aligned, inside of the image or outside of it",
            );
        }
        let outputs = [down, Some(across)]
            .into_iter()
            .flatten()
            .filter_map(|at| self.along[at].outputs);
        let moving: Vec<AxisId> = outputs.collect();
        let WindowFold::Weighted { weight, outside } = self.fold else {
            return None;
        };
        if mentions(kernel, weight, &moving) {
            return Some("weights of strips are the same for all outputs of an image");
        }
        // Along other axes the taps that are outside are left out.
        let others = self.along.iter().enumerate();
        let left_out = others
            .filter(|(at, _)| Some(*at) != down && *at != across)
            .any(|(_, a)| a.guarded != [false; 2]);
        (left_out && outside.as_f64() != 0.0).then_some("taps that a strip leaves out have nothing to add")
    }

    /// Says whether groups along a row come whole.
    fn reads_whole(&self, access: &StripAccess, across: &WindowAxis, strips: &Strips) -> bool {
        let own = |axis: AxisId| [across.outputs, across.taps].contains(&Some(axis));
        let others = access.form.terms().filter(|(a, _)| !own(*a)).map(|(_, by)| by);
        // The first element of a row: that of position 0.
        let Some(first) = access.form.base().checked_add(&Dim::Const(across.pad_low)) else {
            return false;
        };
        let is_last = self.loops.parallel.last().copied() == across.outputs;
        let moved = i64::from(strips.columns).saturating_mul(across.stride);
        is_last
            && access.steps[1].is(1)
            && moved % i64::from(strips.read) == 0
            && divides(strips.read, others.chain([&first, &across.size]))
    }
}

impl Strips {
    /// Returns how many outputs a thread has along a parallel axis of a body.
    pub fn along(&self, body: &WindowBody, axis: AxisId) -> u32 {
        let plane = body.plane();
        let of = |at: Option<usize>| at.and_then(|at| body.along[at].outputs) == Some(axis);
        match plane {
            Some((_, across)) if of(Some(across)) => self.columns,
            Some((down, _)) if of(down) => self.rows,
            _ if body.loops.parallel.last() == Some(&axis) => self.vector,
            _ => 1,
        }
    }
}

/// Says whether a number divides sizes whatever they are.
fn divides<'d>(number: u32, sizes: impl IntoIterator<Item = &'d Dim>) -> bool {
    sizes
        .into_iter()
        .all(|size| size.known_divisor() % i64::from(number) == 0)
}

/// Says whether an expression depends on one of some axes.
fn mentions(kernel: &Kernel, root: ExprId, axes: &[AxisId]) -> bool {
    let mut stack = vec![root];
    let mut seen = std::collections::HashSet::new();
    while let Some(e) = stack.pop() {
        if !seen.insert(e) {
            continue;
        }
        if matches!(&kernel.exprs[e], Expr::Axis(axis) if axes.contains(axis)) {
            return true;
        }
        kernel.exprs[e].for_each_operand(|o| stack.push(o));
    }
    false
}

/// Returns the expression that a value was widened from, where that loses nothing: what is kept of it takes fewer
/// registers.
pub fn narrowed(kernel: &Kernel, e: ExprId) -> ExprId {
    match kernel.exprs[e] {
        Expr::Cast(to, inner) if widens(kernel.exprs.dtype(inner), to) => inner,
        _ => e,
    }
}

fn widens(from: DType, to: DType) -> bool {
    from != DType::Bool && from.bits() >= 8 && from.bits() < to.bits() && from.is_float() == to.is_float()
}
