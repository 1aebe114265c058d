//! Products of integers whose sums become bytes by numbers of their columns: read once, when a program is loaded, for
//! the kernels that do it in registers.

use ir::host::affine::Affine;
use ir::host::product::{Finish, Integers, Place, Step};
use smallvec::SmallVec;

use super::exec::Prepare;
use super::kernels::byte_ends::{ByteEnds, BytePlaces};
use super::kernels::dots::Dots;
use super::kernels::stages::{Across, Stage, StageOut};
use super::kernels::workspace::SyncPtr;

/// How a product's sums become bytes, and where these go.
#[derive(Debug)]
pub(super) struct ColumnEnds {
    pub ends: ByteEnds,
    store: Affine,
    to: usize,
    /// What is added before, and its parameter.
    added: Option<(Affine, usize)>,
}

impl ColumnEnds {
    /// Reads a product's end. `None` where this processor does not do it in registers, or it is not such an end:
    /// numbers of columns are constants that all entries share, columns are neighbours where bytes are stored or added.
    /// `excess` is what the sums of a column have too much.
    pub(super) fn new(form: &Integers, cx: &Prepare<'_>, excess: impl Fn(usize) -> i32) -> Option<ColumnEnds> {
        let Finish::Stages(steps) = &form.finish else {
            return None;
        };
        let added = &form.added;
        if !Dots::of(cx.isa).is_wide() || added.factor.is_some() || added.each.is_some() || added.outer.is_some() {
            return None;
        }
        let positions = Positions::new(form)?;
        let addend: Option<Vec<i32>> = match &added.columns {
            Some(place) => Some(positions.numbers(place, cx, i32::from_ne_bytes)?),
            None => None,
        };
        let mut numbers: Vec<Vec<f32>> = Vec::new();
        for step in steps {
            if let Step::Columns(_, place) = step {
                numbers.push(positions.numbers(place, cx, f32::from_ne_bytes)?);
            }
        }
        let mut numbers = numbers.iter();
        let (mut store, mut residual) = (None, None);
        let stage = |step: &Step| {
            Some(match step {
                Step::Number(op, v) => Stage::Number(*op, *v),
                Step::Columns(op, _) => Stage::Columns(*op, numbers.next()?.as_ptr()),
                Step::Round => Stage::Round,
                Step::RoundQuotient(by) => Stage::RoundQuotient(*by),
                Step::Residual {
                    from,
                    stored,
                    zero,
                    scale,
                    positive,
                } => {
                    positions.are_neighbours(from).then_some(())?;
                    residual = Some((from.form.clone(), from.param));
                    Stage::Residual {
                        from: std::ptr::null(),
                        stored: *stored,
                        step: 0,
                        zero: *zero,
                        scale: *scale,
                        positive: *positive,
                    }
                }
                Step::Store(place, stored) => {
                    positions.are_neighbours(place).then_some(())?;
                    store = Some((place.form.clone(), place.param));
                    Stage::Store(StageOut {
                        to: std::ptr::null_mut(),
                        stored: *stored,
                        row: 0,
                        cols: Across::Apart(1),
                    })
                }
                Step::Rows(..) | Step::Function(_) | Step::Table(_) => return None,
            })
        };
        let stages: Option<SmallVec<[Stage; 16]>> = steps.iter().map(stage).collect();
        let start = |col: usize| {
            addend
                .as_ref()
                .map_or(0, |addend| addend[col])
                .wrapping_sub(excess(col))
        };
        // SAFETY: there is a number for each column; places are not looked at.
        let ends = unsafe { ByteEnds::of(positions.columns, &stages?, start)? };
        let (store, to) = store?;
        Some(ColumnEnds {
            ends,
            store,
            to,
            added: residual,
        })
    }

    /// Where an entry's bytes go in a run, and the number of its first column.
    ///
    /// # Safety
    /// The parameters are those that the product was prepared for.
    pub(super) unsafe fn places(&self, form: &Integers, params: &[SyncPtr<u8>], entry: usize) -> (BytePlaces, usize) {
        let idx = position(form, entry, 0);
        let first = |at: &Affine, param: usize| {
            let step = form.tiles.dims.row.map_or(0, |d| at.get(d) as isize);
            // SAFETY: the caller's contract: places were shown to be inside their parameters.
            (unsafe { params[param].get().offset(at.at(&idx) as isize) }, step)
        };
        let (to, row) = first(&self.store, self.to);
        let (added, added_row) = match &self.added {
            Some((at, param)) => first(at, *param),
            None => (std::ptr::null_mut(), 0),
        };
        let places = BytePlaces {
            to,
            row,
            added: added.cast_const(),
            added_row,
        };
        (places, entry % form.groups * form.columns)
    }
}

/// The position of an entry's first row and of a column of its group's.
fn position(form: &Integers, entry: usize, col: usize) -> SmallVec<[i64; 8]> {
    let space = form.tiles.space;
    let mut idx = SmallVec::from_slice(&form.tiles.positions[entry * space..(entry + 1) * space]);
    let mut rest = entry % form.groups * form.columns + col;
    for (d, extent) in form.across.iter().rev() {
        idx[*d] = (rest % extent) as i64;
        rest /= extent;
    }
    if let Some(d) = form.tiles.dims.row {
        idx[d] = 0;
    }
    idx
}

/// Positions of a product's columns.
struct Positions<'a> {
    form: &'a Integers,
    /// Those of all groups.
    columns: usize,
}

impl Positions<'_> {
    /// `None` where entries are not numbered by group.
    fn new(form: &Integers) -> Option<Positions<'_>> {
        (form.groups > 0 && form.entries >= form.groups).then_some(Positions {
            form,
            columns: form.columns * form.groups,
        })
    }

    fn of(&self, col: usize) -> SmallVec<[i64; 8]> {
        position(self.form, col / self.form.columns, col % self.form.columns)
    }

    /// A number of each column, if they are constant and the same in all rows and entries.
    fn numbers<T>(&self, place: &Place, cx: &Prepare<'_>, of: impl Fn([u8; 4]) -> T) -> Option<Vec<T>> {
        let form = self.form;
        let (_, tensor) = cx.given(place.param).ok()?;
        let across = |d: &usize| form.across.iter().any(|(other, _)| other == d);
        let first = position(form, 0, 0);
        let shared = |d: usize| {
            let alike = (0..form.entries).all(|entry| form.tiles.positions[entry * form.tiles.space + d] == first[d]);
            Some(d) != form.tiles.dims.row && alike
        };
        let read = |d: &usize| place.form.get(*d) != 0;
        if place.bytes != 4 || !(0..form.tiles.space).filter(read).all(|d| across(&d) || shared(d)) {
            return None;
        }
        let number = |col: usize| {
            let at = usize::try_from(place.form.at(&self.of(col))).ok()?;
            let bytes = tensor.bytes.get(at * 4..at * 4 + 4)?;
            Some(of(bytes.try_into().ok()?))
        };
        (0..self.columns).map(number).collect()
    }

    /// Says whether the columns of a group are neighbouring bytes.
    fn are_neighbours(&self, place: &Place) -> bool {
        let first = |col: usize| place.form.at(&self.of(col - col % self.form.columns));
        let alike = |col: usize| place.form.at(&self.of(col)) == first(col) + (col % self.form.columns) as i64;
        place.bytes == 1 && (0..self.columns).all(alike)
    }
}
