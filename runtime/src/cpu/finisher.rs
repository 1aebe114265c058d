//! The end of a tile of integer sums: where its rows and columns are in what follows, and what follows done to them.
//!
//! Columns on several dims are taken in runs that are neighbours on the innermost one. Where only stores tell those
//! dims from one dim (channels that are shuffled), all columns are one run, and a table says where each is stored.
//!
//! Rows whose sums, results and whatever else is read for each element lie side by side are taken several at a time, as
//! one row of as many columns as fill vectors; what there is for each column is repeated.

use ir::host::product::{Factor, Finish, Integers, Place, SUM_LANES, Step};
use smallvec::SmallVec;

use super::block::{Frame, RunBlock, Val};
use super::kernels::Isa;
use super::kernels::integers::SumTile;
use super::kernels::stages::{Across, Outer, Stage, StageOut, Stored, Sums, Times, finish, store_sums};
use super::kernels::workspace::SyncPtr;

/// Where the columns of stores are, one table for each that has no step; empty where columns are taken in runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Scattered(Vec<Option<Vec<isize>>>);

impl Scattered {
    /// Looks whether a product's columns can be taken as one run.
    pub(super) fn new(form: &Integers) -> Scattered {
        let none = Scattered::default();
        if form.across.len() < 2 {
            return none;
        }
        let (mut read, mut stored): (Vec<&Place>, Vec<&Place>) = (Vec::new(), Vec::new());
        match &form.finish {
            Finish::Sums(place) => stored.push(place),
            Finish::Stages(steps) => {
                for step in steps {
                    match step {
                        Step::Store(place, _) => stored.push(place),
                        Step::Columns(_, place) | Step::Rows(_, place) | Step::Residual { from: place, .. } => {
                            read.push(place);
                        }
                        Step::Number(..)
                        | Step::Function(_)
                        | Step::Round
                        | Step::RoundQuotient(_)
                        | Step::Table(_) => {}
                    }
                }
            }
            Finish::Program(_) => return none,
        }
        let added = &form.added;
        let factors = [
            added.factor.as_ref(),
            added.outer.as_ref().and_then(|(_, by)| by.as_ref()),
        ];
        read.extend(factors.into_iter().flatten().filter_map(|by| match by {
            Factor::Columns(place) => Some(place),
            Factor::Number(_) => None,
        }));
        read.extend(added.each.iter().chain(&added.columns));
        read.extend(added.outer.iter().map(|(rows, _)| rows));
        let one_dim = |place: &Place| {
            let nested = |w: &[(usize, usize)]| place.form.get(w[0].0) == place.form.get(w[1].0) * w[1].1 as i64;
            form.across.windows(2).all(nested)
        };
        if !read.into_iter().all(one_dim) {
            return none;
        }
        let count: usize = form.across.iter().map(|(_, extent)| extent).product();
        let table = |place: &&Place| {
            if one_dim(place) {
                return None;
            }
            let at = |col: usize| {
                let (mut rest, mut at) = (col, 0);
                for (d, extent) in form.across.iter().rev() {
                    at += (rest % extent) as i64 * place.form.get(*d);
                    rest /= extent;
                }
                at as isize
            };
            Some((0..count).map(at).collect())
        };
        Scattered(stored.iter().map(table).collect())
    }
}

/// The most columns that rows have together, if they are taken as one.
const TOGETHER: usize = 1024;

/// Says whether a product's rows lie side by side, wherever its end reads or writes something for each element.
pub(super) fn lies_side_by_side(form: &Integers) -> bool {
    let step = |place: &Place| form.tiles.dims.row.map(|d| place.form.get(d));
    let col = |place: &Place| form.tiles.dims.col.is_none_or(|d| place.form.get(d) == 1);
    let dense = |place: &Place| step(place) == Some(form.columns as i64) && col(place);
    let side_by_side = |step: &Step| match step {
        Step::Store(place, _) | Step::Residual { from: place, .. } => dense(place),
        Step::Rows(..) => false,
        Step::Columns(..) | Step::Number(..) | Step::Function(_) => true,
        Step::Round | Step::RoundQuotient(_) | Step::Table(_) => true,
    };
    let finish = match &form.finish {
        Finish::Sums(place) => dense(place),
        Finish::Stages(steps) => steps.iter().all(side_by_side),
        Finish::Program(_) => false,
    };
    let added = &form.added;
    let plain = added.outer.is_none() && added.each.as_ref().is_none_or(dense);
    finish && plain && form.groups == 1 && form.across.len() <= 1
}

/// Bytes of scratch for the numbers of columns of a product whose rows are taken together.
pub(super) fn side_by_side_scratch(form: &Integers) -> usize {
    let columns = |step: &&Step| matches!(step, Step::Columns(..));
    let stages = match &form.finish {
        Finish::Stages(steps) => steps.iter().filter(columns).count(),
        Finish::Sums(_) | Finish::Program(_) => 0,
    };
    // Those of the stages, the excess, the factor and the addend.
    match lies_side_by_side(form) {
        true => (stages + 3) * TOGETHER * 4,
        false => 0,
    }
}

/// Numbers of columns, repeated for several rows, in scratch.
struct Repeated {
    columns: usize,
    rows: usize,
    to: *mut u32,
}

impl Repeated {
    /// Returns where so many repetitions are: the numbers themselves where rows are taken one by one.
    ///
    /// # Safety
    /// There is a number for each column, and room for what is repeated.
    unsafe fn of<T>(&mut self, from: *const T) -> *const T {
        const { assert!(size_of::<T>() == 4) };
        if self.rows == 1 || from.is_null() {
            return from;
        }
        let to = self.to;
        // SAFETY: the caller's contract.
        unsafe {
            for row in 0..self.rows {
                std::ptr::copy_nonoverlapping(from.cast(), to.add(row * self.columns), self.columns);
            }
            self.to = to.add(self.rows * self.columns);
        }
        to.cast_const().cast()
    }

    /// # Safety
    /// As for [`Repeated::of`].
    unsafe fn times(&mut self, by: Times) -> Times {
        match by {
            Times::Number(number) => Times::Number(number),
            // SAFETY: the caller's contract.
            Times::Columns(from) => Times::Columns(unsafe { self.of(from) }),
        }
    }
}

/// What a tile's end needs of a run.
pub(super) struct Finisher<'a> {
    pub form: &'a Integers,
    /// Whether [`lies_side_by_side`].
    pub side_by_side: bool,
    pub scattered: &'a Scattered,
    pub isa: Isa,
    pub params: Vec<SyncPtr<u8>>,
    pub scratch: Vec<SyncPtr<u8>>,
}

/// A run of columns: the first of the product's, and memory of the thread.
struct Run {
    start: usize,
    floats: *mut f32,
    scratch: *mut u8,
}

impl Finisher<'_> {
    /// # Safety
    /// The tile is one of the product's, and the buffers are those that it was prepared for.
    pub unsafe fn finish(&self, tile: &SumTile) {
        let (mut done, head) = (0, (self.form.tiles.space * 8).next_multiple_of(64));
        // SAFETY: the caller's contract: places were shown to be inside their parameters; the scratch has what
        // `scratch` says.
        unsafe {
            let idx = self.index(tile);
            while done < tile.cols.len() {
                let (start, sums) = self.sums(tile, done, idx);
                let at = Run {
                    start,
                    floats: tile.floats.wrapping_add(done),
                    scratch: self.scratch[tile.thread].get().add(head),
                };
                match self.rows_together(tile) {
                    1 => self.run(tile, &sums, &at, idx, 1),
                    together => self.run_together(tile, &sums, &at, idx, together),
                }
                done += sums.cols;
            }
        }
    }

    /// The position of a tile's first element, on its thread's memory.
    ///
    /// # Safety
    /// As for [`Finisher::finish`]; no other position of the thread is in use.
    #[expect(clippy::mut_from_ref, reason = "memory of the thread")]
    unsafe fn index(&self, tile: &SumTile) -> &mut [i64] {
        let space = self.form.tiles.space;
        // SAFETY: the caller's contract.
        let idx = unsafe { std::slice::from_raw_parts_mut(self.scratch[tile.thread].get().cast::<i64>(), space) };
        idx.copy_from_slice(&self.form.tiles.positions[tile.entry * space..(tile.entry + 1) * space]);
        idx
    }

    /// The tile's columns from number `done` on that are neighbours on every dim but the innermost: the first of them,
    /// of the product's, and their sums. `idx` becomes the position of the first element.
    ///
    /// # Safety
    /// As for [`Finisher::finish`].
    unsafe fn sums(&self, tile: &SumTile, done: usize, idx: &mut [i64]) -> (usize, Sums) {
        let form = self.form;
        let inner = match self.scattered.0.is_empty() {
            true => form.across.last().map_or(1, |(_, extent)| *extent),
            false => form.columns * form.groups,
        };
        let start = tile.cols.start + tile.entry % form.groups * form.columns + done;
        let mut rest = start;
        let cols = (tile.cols.len() - done).min(inner - rest % inner);
        for (d, extent) in form.across.iter().rev() {
            idx[*d] = (rest % extent) as i64;
            rest /= extent;
        }
        if let Some(d) = form.tiles.dims.row {
            idx[d] = tile.rows.start as i64;
        }
        // SAFETY: the caller's contract.
        let sums = unsafe {
            Sums {
                from: tile.sums.wrapping_add(done),
                stride: tile.stride,
                rows: tile.rows.len(),
                cols,
                excess: match tile.excess.is_null() {
                    true => tile.excess,
                    false => tile.excess.add(done),
                },
                factor: form.added.factor.as_ref().map(|by| self.times(by, idx)),
                each: match &form.added.each {
                    Some(place) => (self.at(place, idx).cast(), self.row_step(place)),
                    None => (std::ptr::null(), 0),
                },
                addend: match &form.added.columns {
                    Some(place) => self.at(place, idx).cast(),
                    None => std::ptr::null(),
                },
                outer: form.added.outer.as_ref().map(|(down, across)| Outer {
                    rows: self.at(down, idx).cast(),
                    step: self.row_step(down),
                    cols: across.as_ref().map_or(Times::Number(1), |by| self.times(by, idx)),
                }),
            }
        };
        (start, sums)
    }

    /// Where a place is for a tile whose first row and column are at `idx`.
    ///
    /// # Safety
    /// It is inside its parameter.
    unsafe fn at(&self, place: &Place, idx: &[i64]) -> *mut u8 {
        let offset = place.form.at(idx) as isize * place.bytes as isize;
        // SAFETY: the caller's contract.
        unsafe { self.params[place.param].get().offset(offset) }
    }

    /// What a factor is for a tile whose first row and column are at `idx`.
    ///
    /// # Safety
    /// As for [`Finisher::at`].
    unsafe fn times(&self, by: &Factor, idx: &[i64]) -> Times {
        match by {
            Factor::Number(number) => Times::Number(*number),
            // SAFETY: the caller's contract.
            Factor::Columns(place) => Times::Columns(unsafe { self.at(place, idx).cast() }),
        }
    }

    fn row_step(&self, place: &Place) -> isize {
        self.form.tiles.dims.row.map_or(0, |d| place.form.get(d) as isize)
    }

    /// How many rows of a tile are taken as one: as many as fill vectors.
    fn rows_together(&self, tile: &SumTile) -> usize {
        let (columns, vectors) = (self.form.columns, 2 * self.isa.lanes());
        let whole = tile.cols == (0..columns) && tile.stride == columns;
        if !(self.side_by_side && whole) || columns.is_multiple_of(vectors) {
            return 1;
        }
        // Both are a power of two times something odd; `vectors` is the power alone.
        let rows = vectors >> columns.trailing_zeros();
        match rows * columns <= TOGETHER && tile.rows.len() >= rows {
            true => rows,
            false => 1,
        }
    }

    /// Does what follows to rows that lie side by side, so many as one; those that are left are one too.
    ///
    /// # Safety
    /// As for [`Finisher::run`]; the tile is whole, and its rows lie side by side.
    unsafe fn run_together(&self, tile: &SumTile, sums: &Sums, at: &Run, idx: &mut [i64], rows: usize) {
        let columns = sums.cols;
        let mut repeated = Repeated {
            columns,
            rows,
            to: at.scratch.cast(),
        };
        // SAFETY: the caller's contract; the scratch has `side_by_side_scratch`.
        unsafe {
            let all = Sums {
                excess: repeated.of(sums.excess),
                factor: sums.factor.map(|by| repeated.times(by)),
                addend: repeated.of(sums.addend),
                ..*sums
            };
            let whole = sums.rows / rows;
            let left = sums.rows % rows;
            let scratch = Run {
                scratch: repeated.to.cast(),
                ..*at
            };
            let together = Sums {
                stride: rows * columns,
                rows: whole,
                cols: rows * columns,
                each: (all.each.0, all.each.1 * rows as isize),
                ..all
            };
            self.run(tile, &together, &scratch, idx, rows);
            if left == 0 {
                return;
            }
            let done = whole * rows;
            if let Some(d) = self.form.tiles.dims.row {
                idx[d] += done as i64;
            }
            let rest = Sums {
                from: all.from.add(done * columns),
                stride: left * columns,
                rows: 1,
                cols: left * columns,
                each: (all.each.0.wrapping_offset(done as isize * all.each.1), all.each.1),
                ..all
            };
            self.run(tile, &rest, &scratch, idx, left);
        }
    }

    /// What is done to sums of neighbouring columns, of so many rows that are taken as one; what is repeated is put
    /// into the scratch.
    ///
    /// # Safety
    /// As for [`Finisher::run`].
    unsafe fn stages(&self, steps: &[Step], at: &Run, idx: &[i64], together: usize) -> SmallVec<[Stage; 16]> {
        let mut tables = self.tables();
        let mut repeated = Repeated {
            columns: self.form.columns,
            rows: together,
            to: at.scratch.cast(),
        };
        // SAFETY: the caller's contract.
        let stage = |step: &Step| unsafe {
            match step {
                Step::Store(place, stored) => {
                    let table = tables.next().flatten();
                    Stage::Store(self.out(place, *stored, (at, table), idx, together))
                }
                Step::Number(op, v) => Stage::Number(*op, *v),
                Step::Columns(op, place) => {
                    Stage::Columns(*op, repeated.of(self.at(place, idx).cast::<f32>().cast_const()))
                }
                Step::Rows(op, place) => Stage::Rows(*op, self.at(place, idx).cast(), self.row_step(place)),
                Step::Function(function) => Stage::Function(self.isa, *function),
                Step::Round => Stage::Round,
                Step::RoundQuotient(by) => Stage::RoundQuotient(*by),
                Step::Table(values) => Stage::Table(values.as_ptr()),
                Step::Residual {
                    from,
                    stored,
                    zero,
                    scale,
                    positive,
                } => Stage::Residual {
                    from: self.at(from, idx),
                    stored: *stored,
                    step: self.row_step(from) * together as isize,
                    zero: *zero,
                    scale: *scale,
                    positive: *positive,
                },
            }
        };
        steps.iter().map(stage).collect()
    }

    /// Where columns of stores are, one after another, if they have no step.
    fn tables(&self) -> impl Iterator<Item = Option<&[isize]>> {
        self.scattered.0.iter().map(Option::as_deref)
    }

    /// Where a store puts what it is given.
    ///
    /// # Safety
    /// As for [`Finisher::run`].
    unsafe fn out(
        &self,
        place: &Place,
        stored: Stored,
        (at, table): (&Run, Option<&[isize]>),
        idx: &[i64],
        together: usize,
    ) -> StageOut {
        let mut out = StageOut {
            // SAFETY: the caller's contract.
            to: unsafe { self.at(place, idx) },
            stored,
            row: self.row_step(place) * together as isize,
            cols: Across::Apart(self.form.tiles.dims.col.map_or(1, |d| place.form.get(d) as isize)),
        };
        if let Some(table) = table {
            out.to = out.to.wrapping_offset(-table[at.start] * place.bytes as isize);
            out.cols = Across::Places(table[at.start..].as_ptr());
        }
        out
    }

    /// Does what follows to sums of neighbouring columns, of so many rows that are taken as one.
    ///
    /// # Safety
    /// As for [`Finisher::finish`]; `floats` and `scratch` have room for the tile and the program.
    unsafe fn run(&self, tile: &SumTile, sums: &Sums, at: &Run, idx: &mut [i64], together: usize) {
        let (form, floats, scratch) = (self.form, at.floats, at.scratch);
        let (rows, cols, stride) = (sums.rows, sums.cols, sums.stride);
        // SAFETY: the caller's contract.
        unsafe {
            match &form.finish {
                Finish::Sums(place) => store_sums(
                    self.isa,
                    sums,
                    self.out(place, Stored::I32, (at, self.tables().next().flatten()), idx, together),
                ),
                Finish::Stages(steps) => {
                    finish(self.isa, sums, &self.stages(steps, at, idx, together));
                }
                Finish::Program(program) => {
                    let dense = StageOut {
                        to: floats.cast(),
                        stored: Stored::F32,
                        row: stride as isize,
                        cols: Across::Apart(1),
                    };
                    finish(self.isa, sums, &[Stage::Store(dense)]);
                    let dense = scratch.add(program.scratch).cast::<f32>();
                    let height = (SUM_LANES / cols).max(1);
                    let params: Vec<*mut u8> = self.params.iter().map(|p| p.get()).collect();
                    for row in (0..rows).step_by(height) {
                        let n = height.min(rows - row);
                        for r in 0..n {
                            let from = floats.add((row + r) * stride);
                            std::ptr::copy_nonoverlapping(from, dense.add(r * cols), cols);
                        }
                        if let Some(d) = form.tiles.dims.row {
                            idx[d] = (tile.rows.start + row) as i64;
                        }
                        let frame = Frame {
                            isa: self.isa,
                            idx,
                            rows: n,
                            cols,
                            params: &params,
                            scratch,
                        };
                        let given = [Val {
                            ptr: dense.cast(),
                            bits: 0,
                        }];
                        program.run(&frame, &given, &mut []);
                    }
                }
            }
        }
    }
}
