//! The end of a tile of integer sums: where its rows and columns are in what follows, and what follows done to them.
//!
//! Columns on several dims are taken in runs that are neighbours on the innermost one. Where only stores tell those dims from one dim
//! (channels that are shuffled), all columns are one run, and a table says where each is stored.

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
                        Step::Number(..) | Step::Round | Step::RoundQuotient(_) | Step::Table(_) => {}
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

/// What a tile's end needs of a run.
pub(super) struct Finisher<'a> {
    pub form: &'a Integers,
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
        let form = self.form;
        let scratch = self.scratch[tile.thread].get();
        let head = (form.tiles.space * 8).next_multiple_of(64);
        let first = tile.cols.start + tile.entry % form.groups * form.columns;
        let (rows, stride) = (tile.rows.len(), tile.stride);
        // SAFETY: the caller's contract: places were shown to be inside their parameters; the scratch has what `scratch` says.
        unsafe {
            let idx = std::slice::from_raw_parts_mut(scratch.cast::<i64>(), form.tiles.space);
            idx.copy_from_slice(
                &form.tiles.positions[tile.entry * form.tiles.space..(tile.entry + 1) * form.tiles.space],
            );
            // Columns that are neighbours on every dim but the innermost, one run after another.
            let inner = match self.scattered.0.is_empty() {
                true => form.across.last().map_or(1, |(_, extent)| *extent),
                false => form.columns * form.groups,
            };
            let mut done = 0;
            while done < tile.cols.len() {
                let start = first + done;
                let mut rest = start;
                let cols = (tile.cols.len() - done).min(inner - rest % inner);
                for (d, extent) in form.across.iter().rev() {
                    idx[*d] = (rest % extent) as i64;
                    rest /= extent;
                }
                if let Some(d) = form.tiles.dims.row {
                    idx[d] = tile.rows.start as i64;
                }
                let sums = Sums {
                    from: tile.sums.add(done),
                    stride,
                    rows,
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
                };
                let at = Run {
                    start,
                    floats: tile.floats.add(done),
                    scratch: scratch.add(head),
                };
                self.run(tile, &sums, &at, idx);
                done += cols;
            }
        }
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

    /// Does what follows to sums of neighbouring columns.
    ///
    /// # Safety
    /// As for [`Finisher::finish`]; `floats` and `scratch` have room for the tile and the program.
    unsafe fn run(&self, tile: &SumTile, sums: &Sums, at: &Run, idx: &mut [i64]) {
        let (form, floats, scratch) = (self.form, at.floats, at.scratch);
        let (rows, cols, stride) = (sums.rows, sums.cols, sums.stride);
        // SAFETY: the caller's contract.
        unsafe {
            let mut tables = self.scattered.0.iter();
            let mut out = |place: &Place, stored: Stored| {
                let mut out = StageOut {
                    to: self.at(place, idx),
                    stored,
                    row: self.row_step(place),
                    cols: Across::Apart(form.tiles.dims.col.map_or(1, |d| place.form.get(d) as isize)),
                };
                if let Some(Some(table)) = tables.next() {
                    out.to = out.to.wrapping_offset(-table[at.start] * place.bytes as isize);
                    out.cols = Across::Places(table.as_ptr().add(at.start));
                }
                out
            };
            match &form.finish {
                Finish::Sums(place) => store_sums(self.isa, sums, out(place, Stored::I32)),
                Finish::Stages(steps) => {
                    let mut stage = |step: &Step| match step {
                        Step::Store(place, stored) => Stage::Store(out(place, *stored)),
                        Step::Number(op, v) => Stage::Number(*op, *v),
                        Step::Columns(op, place) => Stage::Columns(*op, self.at(place, idx).cast()),
                        Step::Rows(op, place) => Stage::Rows(*op, self.at(place, idx).cast(), self.row_step(place)),
                        Step::Round => Stage::Round,
                        Step::RoundQuotient(by) => Stage::RoundQuotient(*by),
                        Step::Table(values) => Stage::Table(values.as_ptr()),
                        Step::Residual {
                            from,
                            stored,
                            zero,
                            scale,
                        } => Stage::Residual {
                            from: self.at(from, idx),
                            stored: *stored,
                            step: self.row_step(from),
                            zero: *zero,
                            scale: *scale,
                        },
                    };
                    let stages: SmallVec<[Stage; 16]> = steps.iter().map(&mut stage).collect();
                    finish(self.isa, sums, &stages);
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
