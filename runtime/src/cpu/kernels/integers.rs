//! Products of integers of 8 bits: `C[M, N] = Σ A[M, K] · B[K, N]` in 32 bits, given to what follows tile by tile, or
//! stored as bytes from the registers in which they were summed ([`super::byte_ends`]).
//!
//! B is packed once, in the panels of [`super::dots`]. A panel leaves out rows before and behind those that are not 0
//! in all of its columns: what groups of a convolution share columns have, each with rows of its own, are the blocks of
//! one matrix. Rows of A are copied into scratch for each task, bytes made unsigned for VNNI (`a + 128`, whose share of
//! the sum is known beforehand) and words else.

use std::ops::Range;

use super::byte_ends::BytesOut;
use super::dots::{Dots, Left, dot_bytes, dot_tile};
use super::workspace::{AlignedBuf, NoRoom, SyncPtr, Workspace};
use ir::host::product::GivenMatrix;

/// A right operand of signed bytes, packed.
#[derive(Debug)]
pub struct PackedIntegers {
    dots: Dots,
    k: usize,
    n: usize,
    panels: Vec<Panel>,
    data: AlignedBuf,
    /// What each column's sums have too much because A was made unsigned.
    excess: Vec<i32>,
}

/// Where a panel is, in bytes, which rows it has, in what one instruction takes, and how many vectors its columns are.
#[derive(Clone, Copy, Debug)]
struct Panel {
    at: usize,
    first: usize,
    depth: usize,
    vectors: usize,
}

impl PackedIntegers {
    /// Packs `k` rows and `n` columns; `at(row, column)` gives the elements.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(dots: Dots, k: usize, n: usize, at: impl Fn(usize, usize) -> i8) -> Result<PackedIntegers, NoRoom> {
        PackedIntegers::blocks(dots, [k, n], 1, at)
    }

    /// Packs a matrix of `blocks` matrices of `k` rows and `n` columns along its diagonal, and zeros; `at(row, column)`
    /// of the whole matrix gives the elements of blocks.
    ///
    /// # Errors
    /// As [`PackedIntegers::new`].
    pub fn blocks(
        dots: Dots,
        [k, n]: [usize; 2],
        blocks: usize,
        at: impl Fn(usize, usize) -> i8,
    ) -> Result<PackedIntegers, NoRoom> {
        let (each, columns, wide) = (dots.each(), dots.columns(), n * blocks);
        let count = wide.div_ceil(columns);
        let mut panels = Vec::with_capacity(count);
        let mut bytes = 0;
        for panel in 0..count {
            let (left, right) = (panel * columns, ((panel + 1) * columns).min(wide) - 1);
            let first = left / n * k / each;
            let depth = ((right / n + 1) * k).div_ceil(each) - first;
            let vectors = if right - left < columns / 2 { 1 } else { 2 };
            panels.push(Panel {
                at: bytes,
                first,
                depth,
                vectors,
            });
            bytes += depth * columns / 2 * vectors * 4;
        }
        let data = AlignedBuf::asked(bytes)?;
        let mut excess = vec![0i32; count * columns];
        for (number, panel) in panels.iter().enumerate() {
            for j in 0..columns.min(wide - number * columns) {
                let col = number * columns + j;
                let mut sum = 0i32;
                for row in col / n * k..(col / n + 1) * k {
                    let value = at(row, col);
                    sum = sum.wrapping_add(i32::from(value));
                    let place = ((row / each - panel.first) * columns / 2 * panel.vectors + j) * each + row % each;
                    // SAFETY: inside what was allocated: `each` elements of `4 / each` bytes for each of the panel's
                    // rows and columns.
                    unsafe {
                        let to = data.as_ptr().add(panel.at);
                        match dots.takes_bytes() {
                            true => to.cast::<i8>().add(place).write(value),
                            false => to.cast::<i16>().add(place).write(i16::from(value)),
                        }
                    }
                }
                if dots.takes_bytes() {
                    excess[col] = sum.wrapping_mul(128);
                }
            }
        }
        Ok(PackedIntegers {
            dots,
            k: k * blocks,
            n: wide,
            panels,
            data,
            excess,
        })
    }

    /// The operand as it is multiplied.
    pub fn panels(&self) -> Panels<'_> {
        Panels {
            dots: self.dots,
            k: self.k,
            n: self.n,
            places: &self.panels,
            data: SyncPtr(self.data.as_ptr()),
            excess: SyncPtr(self.excess.as_ptr().cast_mut()),
        }
    }

    /// What a column's sums have too much.
    pub fn excess(&self, col: usize) -> i32 {
        self.excess[col]
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len() + self.excess.len() * 4 + self.panels.len() * size_of::<Panel>()
    }
    pub fn k(&self) -> usize {
        self.k
    }
    pub fn n(&self) -> usize {
        self.n
    }
}

/// A packed right operand in memory of whoever made it.
#[derive(Clone, Copy, Debug)]
pub struct Panels<'a> {
    dots: Dots,
    k: usize,
    n: usize,
    /// Where panels are; empty where each has all rows.
    places: &'a [Panel],
    data: SyncPtr<u8>,
    /// One number a column.
    excess: SyncPtr<i32>,
}

impl Panels<'_> {
    fn panel(&self, number: usize) -> Panel {
        let depth = self.dots.row_bytes(self.k) / 4;
        self.places.get(number).copied().unwrap_or(Panel {
            at: number * self.dots.columns() * depth * 4,
            first: 0,
            depth,
            vectors: 2,
        })
    }
}

/// Returns the bytes of a packed right operand's panels, and those of all that is packed.
pub fn given_bytes(given: &GivenMatrix, dots: Dots) -> [usize; 2] {
    let panels = given.n.div_ceil(dots.columns());
    let data = panels * dots.columns() * dots.row_bytes(given.k);
    [data, (data + panels * dots.columns() * 4).next_multiple_of(64)]
}

/// Returns the operand that [`pack_given`] puts at `to`.
pub fn given_panels(given: &GivenMatrix, dots: Dots, to: *mut u8) -> Panels<'static> {
    Panels {
        dots,
        k: given.k,
        n: given.n,
        places: &[],
        data: SyncPtr(to),
        excess: SyncPtr(to.wrapping_add(given_bytes(given, dots)[0]).cast()),
    }
}

/// Packs right operands: that of number `i` from `from[i]` to `to + i · bytes`.
///
/// # Safety
/// The operands are readable, `to` has room for all of them, and the processor has the instructions.
pub(crate) unsafe fn pack_given(
    ws: &mut Workspace,
    dots: Dots,
    g: &GivenMatrix,
    from: &[SyncPtr<i8>],
    to: SyncPtr<u8>,
) {
    let (columns, row_bytes, each) = (dots.columns(), dots.row_bytes(g.k), dots.each());
    let (panels, [data, all]) = (g.n.div_ceil(columns), given_bytes(g, dots));
    if !ws.reserve(row_bytes.next_multiple_of(64) + columns * 4, 0) {
        return;
    }
    ws.parallel_for(from.len() * panels, &|task, _, scratch| {
        let (number, panel) = (task / panels, task % panels);
        let first = panel * columns;
        let wide = columns.min(g.n - first);
        // SAFETY: the caller's contract; a panel has `row_bytes` for each of its columns.
        unsafe {
            let from = from[number].get().offset(first as isize * g.across).cast_const();
            let base = to.get().add(number * all);
            let to = base.add(panel * columns * row_bytes);
            to.write_bytes(0, columns * row_bytes);
            let at = |row: usize, col: usize| from.offset(row as isize * g.down + col as isize * g.across);
            for group in 0..g.k.div_ceil(each) {
                let (row, to) = (group * each, to.add(group * columns * 4));
                let rows = each.min(g.k - row);
                match (dots.takes_bytes(), rows) {
                    (true, 4) if g.down == 1 => {
                        (0..wide).for_each(|j| {
                            to.cast::<u32>()
                                .add(j)
                                .write_unaligned(at(row, j).cast::<u32>().read_unaligned())
                        });
                    }
                    (true, 4) if g.across == 1 => {
                        let lines = [at(row, 0), at(row + 1, 0), at(row + 2, 0), at(row + 3, 0)];
                        for j in 0..wide {
                            let bytes = lines.map(|line| *line.add(j) as u8);
                            to.cast::<[u8; 4]>().add(j).write(bytes);
                        }
                    }
                    (true, _) => {
                        for j in 0..wide {
                            (0..rows).for_each(|i| to.add(j * 4 + i).cast::<i8>().write(*at(row + i, j)));
                        }
                    }
                    (false, _) => {
                        for j in 0..wide {
                            (0..rows).for_each(|i| to.cast::<i16>().add(j * 2 + i).write(i16::from(*at(row + i, j))));
                        }
                    }
                }
            }
            if dots.takes_bytes() {
                // Sums of columns: those of their products by a row of ones.
                scratch.write_bytes(1, row_bytes);
                let sums = scratch.add(row_bytes.next_multiple_of(64)).cast::<i32>();
                let one = Left {
                    from: scratch,
                    step: row_bytes,
                    depth: row_bytes / 4,
                };
                dot_tile(dots, [1, 2], one, to, sums, columns);
                let excess = base.add(data).cast::<i32>().add(first);
                (0..columns).for_each(|j| excess.add(j).write((*sums.add(j)).wrapping_mul(128)));
            }
        }
    });
}

/// Rows of A that are being written in the form in which they are multiplied.
pub struct RowsOut {
    dots: Dots,
    to: *mut u8,
    bytes: usize,
}

impl RowsOut {
    /// The row of this number.
    ///
    /// # Safety
    /// It is one of the rows.
    #[inline(always)]
    pub unsafe fn row(&mut self, number: usize) -> RowOut {
        // SAFETY: the caller's contract; rows are multiples of four bytes.
        unsafe {
            let to = self.to.add(number * self.bytes);
            // What is past the last element meets zeros of B.
            if self.bytes > 0 {
                to.add(self.bytes - 4).write_bytes(0, 4);
            }
            RowOut { dots: self.dots, to }
        }
    }

    /// Writes the first `count` rows: `len` elements each, neighbours, which are `down` bytes apart from row to row.
    ///
    /// # Safety
    /// The elements are readable, and all of so many rows.
    pub unsafe fn copy_rows(&mut self, count: usize, from: *const i8, len: usize, down: isize) {
        // SAFETY: the caller's contract.
        unsafe {
            if self.dots.takes_bytes() && len == self.bytes && down == len as isize {
                flip(self.to, from.cast(), count * len);
                return;
            }
            for number in 0..count {
                self.row(number)
                    .copy(0, from.wrapping_offset(number as isize * down), len, 1);
            }
        }
    }
}

/// A row of A that is being written in the form in which it is multiplied.
pub struct RowOut {
    dots: Dots,
    to: *mut u8,
}

impl RowOut {
    /// Writes elements `at..at + len`, which are `step` bytes apart from `from` on.
    ///
    /// # Safety
    /// The elements are readable, and some of the row.
    #[inline(always)]
    pub unsafe fn copy(&mut self, at: usize, from: *const i8, len: usize, step: isize) {
        // SAFETY: the caller's contract.
        unsafe {
            if self.dots.takes_bytes() {
                let to = self.to.add(at);
                if step == 1 {
                    flip(to, from.cast(), len);
                } else {
                    (0..len).for_each(|i| to.add(i).write(*from.offset(i as isize * step) as u8 ^ 0x80));
                }
            } else {
                let to = self.to.cast::<i16>().add(at);
                (0..len).for_each(|i| to.add(i).write(i16::from(*from.offset(i as isize * step))));
            }
        }
    }

    /// Writes `value` as elements `at..at + len`.
    ///
    /// # Safety
    /// They are some of the row.
    #[inline(always)]
    pub unsafe fn fill(&mut self, at: usize, value: i8, len: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            if self.dots.takes_bytes() {
                if len > 0 {
                    self.to.add(at).write_bytes(value as u8 ^ 0x80, len);
                }
            } else {
                let to = self.to.cast::<i16>().add(at);
                (0..len).for_each(|i| to.add(i).write(i16::from(value)));
            }
        }
    }
}

/// Copies bytes with their signs turned: in wide pieces, of which the last may overlap the one before.
///
/// # Safety
/// `len` bytes are readable and writable, and do not overlap.
#[inline(always)]
unsafe fn flip(to: *mut u8, from: *const u8, len: usize) {
    /// Copies pieces of one size.
    macro_rules! pieces {
        ($word:ty) => {{
            const SIGNS: $word = <$word>::from_ne_bytes([0x80; size_of::<$word>()]);
            let one = |at: usize| {
                let word = from.add(at).cast::<$word>().read_unaligned();
                to.add(at).cast::<$word>().write_unaligned(word ^ SIGNS);
            };
            let size = size_of::<$word>();
            let last = len - size;
            (0..last).step_by(size).for_each(one);
            one(last);
        }};
    }
    // SAFETY: the caller's contract: pieces are inside.
    unsafe {
        match len {
            16.. => pieces!(u128),
            8..16 => pieces!(u64),
            4..8 => pieces!(u32),
            _ => (0..len).for_each(|i| to.add(i).write(*from.add(i) ^ 0x80)),
        }
    }
}

/// A finished tile of sums, `stride` apart from row to row.
pub struct SumTile {
    pub entry: usize,
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    /// The thread that it is on.
    pub thread: usize,
    pub sums: *const i32,
    /// What each column's sums have too much, or null.
    pub excess: *const i32,
    pub stride: usize,
    /// Room for as many floats, `stride` apart.
    pub floats: *mut f32,
}

/// A product of `entries` matrices.
pub struct IntegerProduct<'a> {
    pub entries: usize,
    pub m: usize,
    /// Entry `i` has right operand `i % weights.len()`; all are of one size.
    pub weights: &'a [Panels<'a>],
    /// `rows(entry, rows, to)` writes rows of A, the first of them as row 0.
    pub rows: &'a (dyn Fn(usize, Range<usize>, &mut RowsOut) + Sync),
    pub finish: &'a (dyn Fn(&SumTile) + Sync),
    /// How sums become bytes in registers, if that is how they end: for the [wide](Dots::is_wide) instructions alone.
    pub bytes: Option<BytesOut<'a>>,
}

/// Bytes of A that a task has at hand.
const A_BYTES: usize = 128 << 10;
/// Most rows of a task.
const MOST_ROWS: usize = 192;
/// Most columns of a product whose sums lie side by side, and most sums of such a tile.
const SIDE_BY_SIDE: usize = 256;
const MOST_SUMS: usize = 8192;

/// Multiplies.
///
/// Sums of few columns that do not fill panels lie side by side, so that rows together fill the vectors of what
/// follows. Then the last panel comes first: what it writes past the last column is written over by sums of the next
/// row.
///
/// # Safety
/// `rows` writes all elements of its rows; the processor has the instructions that the weights were packed for.
pub unsafe fn multiply(ws: &mut Workspace, p: &IntegerProduct<'_>) {
    let Some(first) = p.weights.first() else { return };
    let (dots, k, n) = (first.dots, first.k, first.n);
    if p.m == 0 || n == 0 || p.entries == 0 {
        return;
    }
    let (columns, high, row_bytes) = (dots.columns(), dots.rows(), dots.row_bytes(k));
    let panels = n.div_ceil(columns);
    // Two panels' columns are as many bytes as a line of memory has.
    let beside = if n > columns { 2 } else { 1 };
    let bytes = p.bytes.as_ref().filter(|_| dots.is_wide());
    let few = n % columns != 0 && n <= SIDE_BY_SIDE && bytes.is_none();
    let most = match bytes {
        Some(_) => MOST_ROWS,
        None if few => (MOST_SUMS / n).max(high),
        None => MOST_ROWS / beside,
    };
    let fitting = (A_BYTES / row_bytes.max(1)).clamp(high, most) / high;
    // As many rows as leave tasks for every thread, and as many for one as for another.
    let heights = p.m.div_ceil(high);
    let wanted = (ws.threads() * 2).div_ceil(p.entries).max(heights.div_ceil(fitting));
    let blocks = wanted.next_multiple_of(ws.threads()).min(heights);
    let block = heights.div_ceil(blocks) * high;
    let pairs = panels.div_ceil(beside);
    let splits = (ws.threads() * 2).div_ceil(p.entries * blocks).min(pairs).max(1);
    let together = few && splits == 1;
    let stride = if together { n } else { columns * beside };
    let a_bytes = (block * row_bytes).next_multiple_of(64);
    // The last row may end a panel's width behind its last column.
    let tile = match bytes {
        Some(_) => 0,
        None => ((block * stride + columns) * 4).next_multiple_of(64),
    };
    if !ws.reserve(a_bytes + 2 * tile, 0) {
        return;
    }
    ws.parallel_for(p.entries * blocks * splits, &|task, thread, scratch| {
        let (entry, rest) = (task / (blocks * splits), task % (blocks * splits));
        let (number, split) = (rest / splits, rest % splits);
        let at = |block: usize| (heights * block / blocks * high).min(p.m);
        let rows = at(number)..at(number + 1);
        let weights = &p.weights[entry % p.weights.len()];
        let b = weights.data.get().cast_const();
        // SAFETY: the scratch has room for the rows and two tiles; the weights are as large as their sizes say.
        unsafe {
            let mut out = RowsOut {
                dots,
                to: scratch,
                bytes: row_bytes,
            };
            (p.rows)(entry, rows.clone(), &mut out);
            let sums = scratch.add(a_bytes).cast::<i32>();
            let floats = scratch.add(a_bytes + tile).cast::<f32>();
            let heights = (0..rows.len()).step_by(high).map(|at| (at, high.min(rows.len() - at)));
            let left = |at: usize, place: &Panel| Left {
                from: scratch.add(at * row_bytes + place.first * 4),
                step: row_bytes,
                depth: place.depth,
            };
            let multiply = |panel: usize, to: *mut i32| {
                let place = weights.panel(panel);
                let from = b.add(place.at);
                for (at, height) in heights.clone() {
                    let size = [height, place.vectors];
                    dot_tile(dots, size, left(at, &place), from, to.add(at * stride), stride);
                }
            };
            let tile = |cols: Range<usize>| SumTile {
                entry,
                rows: rows.clone(),
                thread,
                sums,
                excess: match dots.takes_bytes() {
                    true => weights.excess.get().add(cols.start).cast_const(),
                    false => std::ptr::null(),
                },
                cols,
                stride,
                floats,
            };
            if together {
                multiply(panels - 1, sums.add((panels - 1) * columns));
                (0..panels - 1).for_each(|panel| multiply(panel, sums.add(panel * columns)));
                return (p.finish)(&tile(0..n));
            }
            for pair in pairs * split / splits..pairs * (split + 1) / splits {
                let first = pair * beside;
                let end = (first + beside).min(panels);
                if let Some(bytes) = bytes {
                    let (places, number) = (bytes.entry)(entry);
                    for panel in first..end {
                        let (place, cols) = (weights.panel(panel), panel * columns..((panel + 1) * columns).min(n));
                        for (at, height) in heights.clone() {
                            let (size, a) = ([height, place.vectors], left(at, &place));
                            let places = places.at(rows.start + at, cols.start);
                            let cols = number + cols.start..number + cols.end;
                            dot_bytes(size, a, b.add(place.at), bytes.ends, places, cols);
                        }
                    }
                    continue;
                }
                (first..end).for_each(|panel| multiply(panel, sums.add((panel - first) * columns)));
                (p.finish)(&tile(first * columns..(end * columns).min(n)));
            }
        }
    });
}
