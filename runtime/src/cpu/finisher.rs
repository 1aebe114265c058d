//! The end of a tile of integer sums: where its rows and columns are in what follows, and what follows done to them.

use ir::host::product::{Factor, Finish, Integers, Place, SUM_LANES, Step};
use smallvec::SmallVec;

use super::block::{Frame, RunBlock, Val};
use super::kernels::Isa;
use super::kernels::integers::SumTile;
use super::kernels::stages::{Outer, Stage, StageOut, Stored, Sums, Times, finish, store_sums};
use super::kernels::workspace::SyncPtr;

/// What a tile's end needs of a run.
pub(super) struct Finisher<'a> {
    pub form: &'a Integers,
    pub isa: Isa,
    pub params: Vec<SyncPtr<u8>>,
    pub scratch: Vec<SyncPtr<u8>>,
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
            let (mut done, inner) = (0, form.across.last().map_or(1, |(_, extent)| *extent));
            while done < tile.cols.len() {
                let mut rest = first + done;
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
                self.run(tile, &sums, tile.floats.add(done), idx, scratch.add(head));
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
    unsafe fn run(&self, tile: &SumTile, sums: &Sums, floats: *mut f32, idx: &mut [i64], scratch: *mut u8) {
        let form = self.form;
        let (rows, cols, stride) = (sums.rows, sums.cols, sums.stride);
        // SAFETY: the caller's contract.
        unsafe {
            let out = |place: &Place, stored: Stored| StageOut {
                to: self.at(place, idx),
                stored,
                row: self.row_step(place),
                col: form.tiles.dims.col.map_or(1, |d| place.form.get(d) as isize),
            };
            match &form.finish {
                Finish::Sums(place) => store_sums(self.isa, sums, out(place, Stored::I32)),
                Finish::Stages(steps) => {
                    let stage = |step: &Step| match step {
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
                    let stages: SmallVec<[Stage; 16]> = steps.iter().map(stage).collect();
                    finish(self.isa, sums, &stages);
                }
                Finish::Program(program) => {
                    let dense = StageOut {
                        to: floats.cast(),
                        stored: Stored::F32,
                        row: stride as isize,
                        col: 1,
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
