//! What follows a product of integers: sums become floats, and a list of stages works on them in registers.
//!
//! A block of a few rows by two vectors is loaded once, goes through all stages and is stored; no stage reads or writes
//! memory but what it names.

use super::isa::Isa;
use super::math::unary_ptr;
use super::requantise::{Requantise, requantise};
use super::simd::{Simd, simd_dispatch};
pub use ir::host::product::{StageOp, Stored};
use ir::op::UnaryOp;

/// One step of what is done to sums that have become floats, each value by itself.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// With one number.
    Number(StageOp, f32),
    /// With one number a column, from the tile's first column on.
    Columns(StageOp, *const f32),
    /// With one number a row, from the tile's first row on, this many elements apart.
    Rows(StageOp, *const f32, isize),
    /// Adds `(x − zero) · scale` of numbers in the tile's shape, from its first on, `step` elements from row to row,
    /// or, if so, what is positive of it.
    Residual {
        from: *const u8,
        stored: Stored,
        step: isize,
        zero: f32,
        scale: f32,
        positive: bool,
    },
    /// A function of each, whose result is a number, at a level of the processor's.
    Function(Isa, UnaryOp),
    /// To whole numbers, ties to even.
    Round,
    /// The quotient by this number, to whole numbers: a product where that is as good as a division.
    RoundQuotient(f32),
    /// Of 256 numbers, the one that the low 8 bits of the value, a whole number, say.
    Table(*const f32),
    /// Stores the values as they are now; integers are whole already and inside their type.
    Store(StageOut),
}

/// Where a tile's values go: rows `row` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct StageOut {
    pub to: *mut u8,
    pub stored: Stored,
    pub row: isize,
    pub cols: Across,
}

/// Where columns are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Across {
    /// So many elements apart.
    Apart(isize),
    /// Each at a place of its own, in elements.
    Places(*const isize),
}

impl Across {
    pub(super) const NEIGHBOURS: Across = Across::Apart(1);

    /// # Safety
    /// Places are as many as there are columns.
    #[inline(always)]
    unsafe fn at(self, col: usize) -> isize {
        match self {
            Across::Apart(step) => col as isize * step,
            // SAFETY: the caller's contract.
            Across::Places(places) => unsafe { *places.add(col) },
        }
    }
}

/// A number a row, `step` elements apart, times others.
#[derive(Clone, Copy, Debug)]
pub struct Outer {
    pub rows: *const i32,
    pub step: isize,
    pub cols: Times,
}

/// What integers are multiplied by: one number, or one a column.
#[derive(Clone, Copy, Debug)]
pub enum Times {
    Number(i32),
    Columns(*const i32),
}

/// Sums and what is added to them, in 32 bits that wrap.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    pub from: *const i32,
    /// Elements from row to row.
    pub stride: usize,
    pub rows: usize,
    pub cols: usize,
    /// One number a column that is subtracted, or null.
    pub excess: *const i32,
    /// What the difference is multiplied by.
    pub factor: Option<Times>,
    /// One number a column that is added, or null.
    pub addend: *const i32,
    /// One number an element that is added, from row to row so many elements apart, or null.
    pub each: (*const i32, isize),
    /// Products that are added.
    pub outer: Option<Outer>,
}

impl Sums {
    /// Says whether nothing but numbers a column are added or subtracted.
    pub(super) fn is_plain(&self) -> bool {
        self.factor.is_none() && self.each.0.is_null() && self.outer.is_none()
    }

    /// What is added to the sums of two vectors' columns, if that is all.
    ///
    /// # Safety
    /// The columns are inside.
    #[inline(always)]
    pub(super) unsafe fn more_of<S: Simd, const WHOLE: bool>(&self, col: usize, lanes: [usize; 2]) -> [S::I; 2] {
        // SAFETY: the caller's contract. Past the last column nothing is read: the first one stands in.
        unsafe {
            let second = if lanes[1] > 0 { S::LANES } else { 0 };
            let mut more = [S::isplat(0); 2];
            for (v, more) in more.iter_mut().enumerate() {
                let col = col + v * second;
                if !self.excess.is_null() {
                    *more = S::isub(*more, integers_of::<S, WHOLE>(self.excess.add(col), lanes[v]));
                }
                if !self.addend.is_null() {
                    *more = S::iadd(*more, integers_of::<S, WHOLE>(self.addend.add(col), lanes[v]));
                }
            }
            more
        }
    }
}

/// Makes floats of sums and does the stages to each.
///
/// # Safety
/// What the arguments name is there, and no stage reads what another one stores.
pub unsafe fn finish(isa: Isa, sums: &Sums, stages: &[Stage]) {
    // SAFETY: the caller's contract.
    unsafe {
        match Requantise::of(stages) {
            Some(form) => requantise(isa, sums, &form),
            None => finish_stages(isa, sums, stages),
        }
    }
}

simd_dispatch! {
    /// Does each stage as it stands.
    unsafe fn finish_stages(sums: &Sums, stages: &[Stage]) = finish_body
}
simd_dispatch! {
    /// Does stages to floats that lie one after another. A row of a store's place is two vectors.
    ///
    /// # Safety
    /// There are `n` floats, and places for as many; these are the same, or do not overlap. No other stage names a
    /// place.
    pub unsafe fn stages_of_floats(from: *const f32, n: usize, stages: &[Stage]) = stages_of_floats_body
}
simd_dispatch! {
    /// Stores sums in 32 bits.
    ///
    /// # Safety
    /// What the arguments name is there.
    pub unsafe fn store_sums(sums: &Sums, out: StageOut) = store_sums_body
}

/// Rows of a block.
pub(super) const ROWS: usize = 4;

/// A block of a tile: its first row and column, and the lanes of its two vectors that are columns of the tile.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub row: usize,
    pub col: usize,
    pub lanes: [usize; 2],
}

/// Does the body for each row and vector of a block, spelled out: what is indexed by them stays in registers.
macro_rules! for_each_vector {
    ($rows:expr, |$r:ident, $v:ident| $body:expr) => {
        for_each_vector!(@one $r, $v, 0, $body);
        if $rows > 1 {
            for_each_vector!(@one $r, $v, 1, $body);
            for_each_vector!(@one $r, $v, 2, $body);
            for_each_vector!(@one $r, $v, 3, $body);
        }
    };
    (@one $r:ident, $v:ident, $row:literal, $body:expr) => {
        let ($r, $v) = ($row, 0);
        $body;
        let ($r, $v) = ($row, 1);
        $body;
    };
}

pub(super) use for_each_vector;

/// Calls `$body::<S, rows, whether all lanes are columns>` for each block.
macro_rules! by_blocks {
    ($sums:expr, $body:ident, $args:tt) => {{
        let sums = $sums;
        for col in (0..sums.cols).step_by(2 * S::LANES) {
            let left = sums.cols - col;
            let lanes = [left.min(S::LANES), left.saturating_sub(S::LANES).min(S::LANES)];
            let whole = lanes[1] == S::LANES;
            let mut row = 0;
            while row < sums.rows {
                let at = Block { row, col, lanes };
                row += match (sums.rows - row >= ROWS, whole) {
                    (true, true) => by_blocks!(@call $body, ROWS, true, at, $args),
                    (true, false) => by_blocks!(@call $body, ROWS, false, at, $args),
                    (false, true) => by_blocks!(@call $body, 1, true, at, $args),
                    (false, false) => by_blocks!(@call $body, 1, false, at, $args),
                };
            }
        }
    }};
    (@call $body:ident, $rows:expr, $whole:literal, $at:ident, ($($arg:expr),*)) => {{
        $body::<S, { $rows }, $whole>($at, $($arg),*);
        $rows
    }};
}

#[inline(always)]
unsafe fn finish_body<S: Simd>(sums: &Sums, stages: &[Stage]) {
    // SAFETY: the caller's contract.
    unsafe { by_blocks!(sums, finish_sums, (sums, stages)) }
}

#[inline(always)]
unsafe fn store_sums_body<S: Simd>(sums: &Sums, out: StageOut) {
    // SAFETY: the caller's contract.
    unsafe { by_blocks!(sums, store_sums_block, (sums, out)) }
}

#[inline(always)]
pub(super) unsafe fn floats_of<S: Simd, const WHOLE: bool>(p: *const f32, n: usize) -> S::V {
    // SAFETY: the caller's contract: `n` floats, which are all lanes of a whole block.
    unsafe {
        match WHOLE {
            true => S::load(p),
            false => S::load_part(p, n),
        }
    }
}

#[inline(always)]
pub(super) unsafe fn integers_of<S: Simd, const WHOLE: bool>(p: *const i32, n: usize) -> S::I {
    // SAFETY: as above; the bits are not looked at as a float.
    unsafe { S::bits(floats_of::<S, WHOLE>(p.cast(), n)) }
}

/// `n` bytes, which are all lanes of a whole block, as integers.
#[inline(always)]
pub(super) unsafe fn bytes_of<S: Simd, const WHOLE: bool>(p: *const u8, signed: bool, n: usize) -> S::I {
    // SAFETY: the caller's contract.
    unsafe {
        let mut part = [0u8; 16];
        let mut p = p;
        if !WHOLE {
            std::ptr::copy_nonoverlapping(p, part.as_mut_ptr(), n);
            p = part.as_ptr();
        }
        match signed {
            true => S::load_i8(p.cast()),
            false => S::load_u8(p),
        }
    }
}

/// The sums of a block with what is added to them.
#[inline(always)]
pub(super) unsafe fn sums_of<S: Simd, const R: usize, const WHOLE: bool>(at: Block, sums: &Sums) -> [[S::I; 2]; R] {
    // SAFETY: the caller's contract: the block is inside the tile.
    unsafe {
        let mut values = [[S::isplat(0); 2]; R];
        for v in 0..2 {
            // Past the last column nothing is read: the first one stands in.
            let col = at.col + if at.lanes[v] > 0 { v * S::LANES } else { 0 };
            let n = at.lanes[v];
            let mut more = S::isplat(0);
            if !sums.excess.is_null() {
                more = S::isub(more, integers_of::<S, WHOLE>(sums.excess.add(col), n));
            }
            let times = |by: Times| match by {
                Times::Number(number) => S::isplat(number),
                Times::Columns(from) => integers_of::<S, WHOLE>(from.add(col), n),
            };
            let factor = sums.factor.map(times);
            if let Some(factor) = factor {
                more = S::imul(more, factor);
            }
            if !sums.addend.is_null() {
                more = S::iadd(more, integers_of::<S, WHOLE>(sums.addend.add(col), n));
            }
            for (r, row) in values.iter_mut().enumerate() {
                let from = sums.from.add((at.row + r) * sums.stride + col);
                let mut sum = integers_of::<S, WHOLE>(from, n);
                if let Some(factor) = factor {
                    sum = S::imul(sum, factor);
                }
                row[v] = S::iadd(sum, more);
            }
            if !sums.each.0.is_null() {
                for (r, row) in values.iter_mut().enumerate() {
                    let from = sums.each.0.offset((at.row + r) as isize * sums.each.1).add(col);
                    row[v] = S::iadd(row[v], integers_of::<S, WHOLE>(from, n));
                }
            }
            if let Some(outer) = sums.outer {
                let across = times(outer.cols);
                for (r, row) in values.iter_mut().enumerate() {
                    let down = S::isplat(*outer.rows.offset((at.row + r) as isize * outer.step));
                    row[v] = S::iadd(row[v], S::imul(down, across));
                }
            }
        }
        values
    }
}

#[inline(always)]
unsafe fn store_sums_block<S: Simd, const R: usize, const WHOLE: bool>(at: Block, sums: &Sums, out: StageOut) {
    // SAFETY: the caller's contract.
    unsafe { store_words::<S, R, WHOLE>(at, &out, &sums_of::<S, R, WHOLE>(at, sums)) }
}

/// Stores a block of words.
///
/// # Safety
/// The block's place is inside what `out` says.
#[inline(always)]
unsafe fn store_words<S: Simd, const R: usize, const WHOLE: bool>(at: Block, out: &StageOut, values: &[[S::I; 2]; R]) {
    // SAFETY: the caller's contract: the block's place is inside.
    unsafe {
        let to = out.to.cast::<i32>().wrapping_offset(at.row as isize * out.row);
        if out.cols != Across::NEIGHBOURS {
            let mut lanes = [[0i32; 2 * MOST_LANES]; R];
            for_each_vector!(R, |r, v| S::store(
                lanes[r].as_mut_ptr().add(v * S::LANES).cast(),
                S::from_bits(values[r][v])
            ));
            return scatter(&lanes, to, at, out);
        }
        let to = to.add(at.col);
        for_each_vector!(R, |r, v| {
            // Past the last column nothing is written.
            let second = if at.lanes[v] > 0 { v * S::LANES } else { 0 };
            let (to, value) = (
                to.offset(r as isize * out.row).add(second).cast(),
                S::from_bits(values[r][v]),
            );
            match WHOLE {
                true => S::store(to, value),
                false => S::store_part(to, value, at.lanes[v]),
            }
        });
    }
}

/// The most lanes of a vector.
const MOST_LANES: usize = 16;

/// Stores a block's rows of values one by one, `to` being the place of its first row's column 0.
///
/// # Safety
/// As for [`store_words`].
#[inline(never)]
unsafe fn scatter<T: Copy>(rows: &[[T; 2 * MOST_LANES]], to: *mut T, at: Block, out: &StageOut) {
    // SAFETY: the caller's contract.
    unsafe {
        for i in 0..at.lanes[0] + at.lanes[1] {
            let to = to.wrapping_offset(out.cols.at(at.col + i));
            for (r, row) in rows.iter().enumerate() {
                to.wrapping_offset(r as isize * out.row).write(row[i]);
            }
        }
    }
}

/// Stores the lowest byte of a block of integers.
///
/// # Safety
/// As for [`store_words`].
#[inline(always)]
pub(super) unsafe fn store_bytes<S: Simd, const R: usize, const WHOLE: bool>(
    at: Block,
    out: &StageOut,
    values: &[[S::I; 2]; R],
) {
    // SAFETY: the caller's contract: the block's place is inside.
    unsafe {
        let to = out.to.wrapping_offset(at.row as isize * out.row);
        if out.cols != Across::NEIGHBOURS {
            let mut lanes = [[0u8; 2 * MOST_LANES]; R];
            for_each_vector!(R, |r, v| S::store_bytes(
                lanes[r].as_mut_ptr().add(v * S::LANES),
                values[r][v],
                S::LANES
            ));
            return scatter(&lanes, to, at, out);
        }
        let to = to.add(at.col);
        if WHOLE {
            for (r, row) in values.iter().enumerate() {
                S::store_bytes_of_two(to.offset(r as isize * out.row), *row);
            }
            return;
        }
        for_each_vector!(R, |r, v| {
            let second = if at.lanes[v] > 0 { v * S::LANES } else { 0 };
            S::store_bytes(to.offset(r as isize * out.row).add(second), values[r][v], at.lanes[v]);
        });
    }
}

/// One operation; of NaN the left one stays.
#[inline(always)]
unsafe fn apply<S: Simd>(op: StageOp, x: S::V, y: S::V) -> S::V {
    // SAFETY: the level's instructions are there.
    unsafe {
        match op {
            StageOp::Add => S::add(x, y),
            StageOp::Sub => S::sub(x, y),
            StageOp::Mul => S::mul(x, y),
            StageOp::Div => S::div(x, y),
            // The second operand is the result if either is NaN.
            StageOp::Max => S::max(y, x),
            StageOp::Min => S::min(y, x),
        }
    }
}

/// Less than 0.5 only where any number within 4 units in the last place of `quotient` rounds as it does, to `near`: as
/// far as the product by an inverse is from the rounded quotient (two roundings each).
#[inline(always)]
unsafe fn distance_from_tie<S: Simd>(quotient: S::V, near: S::V) -> S::V {
    // SAFETY: the level's instructions are there.
    unsafe {
        S::fma(
            S::abs(quotient),
            S::splat(4.0 * f32::EPSILON),
            S::abs(S::sub(quotient, near)),
        )
    }
}

/// What a residual adds to one vector.
#[inline(always)]
unsafe fn residual_of<S: Simd, const WHOLE: bool>(from: *const u8, stored: Stored, place: isize, n: usize) -> S::V {
    // SAFETY: the caller's contract.
    unsafe {
        match stored {
            Stored::F32 => floats_of::<S, WHOLE>(from.cast::<f32>().offset(place), n),
            Stored::I32 => S::to_float(integers_of::<S, WHOLE>(from.cast::<i32>().offset(place), n)),
            Stored::I8 => S::to_float(bytes_of::<S, WHOLE>(from.offset(place), true, n)),
            Stored::U8 => S::to_float(bytes_of::<S, WHOLE>(from.offset(place), false, n)),
        }
    }
}

#[inline(always)]
unsafe fn finish_sums<S: Simd, const R: usize, const WHOLE: bool>(at: Block, sums: &Sums, stages: &[Stage]) {
    // SAFETY: the caller's contract.
    unsafe { finish_block::<S, R, WHOLE, Sums>(at, sums, stages) }
}

/// Where the values of a block come from.
pub(super) trait Values {
    /// # Safety
    /// The block is inside.
    unsafe fn of<S: Simd, const R: usize, const WHOLE: bool>(&self, at: Block) -> [[S::V; 2]; R];
}

impl Values for Sums {
    #[inline(always)]
    unsafe fn of<S: Simd, const R: usize, const WHOLE: bool>(&self, at: Block) -> [[S::V; 2]; R] {
        // SAFETY: the caller's contract.
        unsafe {
            let mut values = [[S::zero(); 2]; R];
            let sums = sums_of::<S, R, WHOLE>(at, self);
            for_each_vector!(R, |r, v| values[r][v] = S::to_float(sums[r][v]));
            values
        }
    }
}

/// Floats one after another: rows are two vectors.
struct Floats(*const f32);

impl Values for Floats {
    #[inline(always)]
    unsafe fn of<S: Simd, const R: usize, const WHOLE: bool>(&self, at: Block) -> [[S::V; 2]; R] {
        // SAFETY: the caller's contract.
        unsafe {
            let mut values = [[S::zero(); 2]; R];
            let from = self.0.add(at.row * 2 * S::LANES);
            for_each_vector!(R, |r, v| {
                let second = if at.lanes[v] > 0 { v * S::LANES } else { 0 };
                values[r][v] = floats_of::<S, WHOLE>(from.add(r * 2 * S::LANES + second), at.lanes[v]);
            });
            values
        }
    }
}

#[inline(always)]
unsafe fn stages_of_floats_body<S: Simd>(from: *const f32, n: usize, stages: &[Stage]) {
    let width = 2 * S::LANES;
    let (rows, left, from) = (n / width, n % width, Floats(from));
    let at = |row: usize, lanes: [usize; 2]| Block { row, col: 0, lanes };
    let mut row = 0;
    // SAFETY: the caller's contract: so many floats.
    unsafe {
        while row + ROWS <= rows {
            finish_block::<S, ROWS, true, _>(at(row, [S::LANES; 2]), &from, stages);
            row += ROWS;
        }
        while row < rows {
            finish_block::<S, 1, true, _>(at(row, [S::LANES; 2]), &from, stages);
            row += 1;
        }
        if left > 0 {
            let lanes = [left.min(S::LANES), left.saturating_sub(S::LANES)];
            finish_block::<S, 1, false, _>(at(row, lanes), &from, stages);
        }
    }
}

/// Has each number be what a table says for its lowest byte.
///
/// # Safety
/// `lanes` has so many numbers, the table 256.
#[inline(never)]
unsafe fn look_up(lanes: *mut f32, count: usize, table: *const f32) {
    for i in 0..count {
        // SAFETY: the caller's contract.
        unsafe {
            lanes
                .add(i)
                .write(*table.add(usize::from((*lanes.add(i)).to_bits() as u8)))
        };
    }
}

/// Does stages to a block.
///
/// # Safety
/// The block is inside the tile that its values are of, and what stages name is there.
#[inline(always)]
pub(super) unsafe fn finish_block<S: Simd, const R: usize, const WHOLE: bool, F: Values>(
    at: Block,
    from: &F,
    stages: &[Stage],
) {
    const { assert!(R == 1 || R == ROWS && ROWS == 4) };
    // One loop an operation, so that none is chosen inside.
    macro_rules! by_op {
        ($op:expr, $values:ident, |$r:ident, $v:ident| $y:expr) => {
            match $op {
                StageOp::Add => by_op!(@all StageOp::Add, $values, |$r, $v| $y),
                StageOp::Sub => by_op!(@all StageOp::Sub, $values, |$r, $v| $y),
                StageOp::Mul => by_op!(@all StageOp::Mul, $values, |$r, $v| $y),
                StageOp::Div => by_op!(@all StageOp::Div, $values, |$r, $v| $y),
                StageOp::Max => by_op!(@all StageOp::Max, $values, |$r, $v| $y),
                StageOp::Min => by_op!(@all StageOp::Min, $values, |$r, $v| $y),
            }
        };
        (@all $op:expr, $values:ident, |$r:ident, $v:ident| $y:expr) => {{
            for_each_vector!(R, |$r, $v| $values[$r][$v] = apply::<S>($op, $values[$r][$v], $y));
        }};
    }
    // SAFETY: the caller's contract: the block is inside the tile.
    unsafe {
        let [left, right] = at.lanes;
        // Past the last column nothing is read: the first one stands in.
        let second = if right > 0 { S::LANES } else { 0 };
        let mut values = from.of::<S, R, WHOLE>(at);
        for stage in stages {
            match *stage {
                Stage::Number(op, y) => {
                    let y = S::splat(y);
                    by_op!(op, values, |_r, _v| y);
                }
                Stage::Columns(op, from) => {
                    let from = from.add(at.col);
                    let y = [
                        floats_of::<S, WHOLE>(from, left),
                        floats_of::<S, WHOLE>(from.add(second), right),
                    ];
                    by_op!(op, values, |_r, v| y[v]);
                }
                Stage::Rows(op, from, step) => {
                    let from = from.offset(at.row as isize * step);
                    by_op!(op, values, |r, _v| S::splat(*from.offset(r as isize * step)));
                }
                Stage::Residual {
                    from,
                    stored,
                    step,
                    zero,
                    scale,
                    positive,
                } => {
                    let (zero, scale) = (S::splat(zero), S::splat(scale));
                    let first = at.row as isize * step + at.col as isize;
                    let mut more = [[S::zero(); 2]; R];
                    for (r, row) in more.iter_mut().enumerate() {
                        for (v, more) in row.iter_mut().enumerate() {
                            let place = first + r as isize * step + (v * second) as isize;
                            *more = residual_of::<S, WHOLE>(from, stored, place, at.lanes[v]);
                        }
                    }
                    for_each_vector!(R, |r, v| {
                        more[r][v] = S::mul(S::sub(more[r][v], zero), scale);
                    });
                    if positive {
                        for_each_vector!(R, |r, v| {
                            more[r][v] = apply::<S>(StageOp::Max, more[r][v], S::zero());
                        });
                    }
                    for_each_vector!(R, |r, v| {
                        values[r][v] = S::add(values[r][v], more[r][v]);
                    });
                }
                Stage::Round => {
                    for_each_vector!(R, |r, v| values[r][v] = S::round(values[r][v]));
                }
                Stage::RoundQuotient(by) => {
                    let inverse = 1.0 / by;
                    let (by, turned) = (S::splat(by), S::splat(inverse));
                    let whole = |x: S::V| S::round(S::div(x, by));
                    if inverse.is_normal() {
                        let mut near = [[S::zero(); 2]; R];
                        let (half, one) = (S::splat(0.5), S::splat(1.0));
                        let mut close = S::zero();
                        for_each_vector!(R, |r, v| {
                            let quotient = S::mul(values[r][v], turned);
                            near[r][v] = S::round(quotient);
                            let far = S::lt(distance_from_tie::<S>(quotient, near[r][v]), half);
                            close = S::select(far, close, one);
                        });
                        if S::all(S::lt(close, half)) {
                            values = near;
                        } else {
                            for_each_vector!(R, |r, v| values[r][v] = whole(values[r][v]));
                        }
                    } else {
                        for_each_vector!(R, |r, v| values[r][v] = whole(values[r][v]));
                    }
                }
                Stage::Table(table) => {
                    let mut lanes = [[[0f32; 16]; 2]; R];
                    for_each_vector!(R, |r, v| {
                        S::store(lanes[r][v].as_mut_ptr(), S::from_bits(S::to_int(values[r][v])));
                    });
                    look_up(lanes.as_mut_ptr().cast(), R * 32, table);
                    for_each_vector!(R, |r, v| values[r][v] = S::load(lanes[r][v].as_ptr()));
                }
                Stage::Function(isa, function) => {
                    let mut lanes = [[[0f32; 16]; 2]; R];
                    let floats = lanes.as_mut_ptr().cast::<f32>();
                    let place = |r: usize, v: usize| (r * 2 + v) * S::LANES;
                    for_each_vector!(R, |r, v| S::store(floats.add(place(r, v)), values[r][v]));
                    unary_ptr(isa, function, floats.cast(), floats, R * 2 * S::LANES);
                    for_each_vector!(R, |r, v| values[r][v] = S::load(floats.add(place(r, v))));
                }
                Stage::Store(out) => match out.stored {
                    Stored::I8 | Stored::U8 => {
                        let mut bytes = [[S::isplat(0); 2]; R];
                        for_each_vector!(R, |r, v| bytes[r][v] = S::to_int(values[r][v]));
                        store_bytes::<S, R, WHOLE>(at, &out, &bytes);
                    }
                    Stored::I32 => {
                        let mut words = [[S::isplat(0); 2]; R];
                        for_each_vector!(R, |r, v| words[r][v] = S::to_int(values[r][v]));
                        store_words::<S, R, WHOLE>(at, &out, &words);
                    }
                    Stored::F32 => {
                        let mut words = [[S::isplat(0); 2]; R];
                        for_each_vector!(R, |r, v| words[r][v] = S::bits(values[r][v]));
                        store_words::<S, R, WHOLE>(at, &out, &words);
                    }
                },
            }
        }
    }
}
