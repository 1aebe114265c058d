//! Products of integers of 8 bits: `C[M, N] = Σ A[M, K] · B[K, N]` in 32 bits, given to what follows tile by tile.
//!
//! B is packed once, in panels of `[K / each][columns][each]`, where `each` neighbours along K are what one instruction takes: four
//! bytes for VNNI's dot products, two words for `pmaddwd` and for plain Rust. Rows of A are copied into scratch for each task, bytes
//! made unsigned for VNNI (`a + 128`, whose share of the sum is known beforehand) and words else. `pmaddubsw` is not used: its sums of
//! two products saturate.

use std::ops::Range;

use super::isa::{Isa, Level};
use super::simd::{Simd, simd_dispatch};
use super::workspace::{AlignedBuf, SyncPtr, Workspace};
use ir::host::product::GivenMatrix;
use smallvec::{SmallVec, smallvec};

/// Which instructions multiply: one that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dots(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Portable,
    Avx2,
    AvxVnni,
    Avx512Vnni,
}

impl Dots {
    /// Returns the best for a level and this processor.
    pub fn of(isa: Isa) -> Dots {
        Dots::all(isa).last().unwrap_or(Dots(Kind::Portable))
    }

    /// Returns all for a level and this processor, slowest first.
    pub fn all(isa: Isa) -> impl Iterator<Item = Dots> {
        let mut kinds = vec![Kind::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if isa.level() >= Level::Avx2 {
                kinds.push(Kind::Avx2);
            }
            if isa.level() >= Level::Avx2 && is_x86_feature_detected!("avxvnni") {
                kinds.push(Kind::AvxVnni);
            }
            if isa.level() >= Level::Avx512 && is_x86_feature_detected!("avx512vnni") {
                kinds.push(Kind::Avx512Vnni);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (isa, Level::Portable);
        kinds.into_iter().map(Dots)
    }

    /// Whether A and B are bytes, four at a time; else words, two at a time.
    fn takes_bytes(self) -> bool {
        matches!(self.0, Kind::AvxVnni | Kind::Avx512Vnni)
    }

    /// Elements along K that one instruction takes of a row.
    fn each(self) -> usize {
        if self.takes_bytes() { 4 } else { 2 }
    }

    /// Columns of a panel.
    pub fn columns(self) -> usize {
        match self.0 {
            Kind::Portable => 8,
            Kind::Avx2 | Kind::AvxVnni => 16,
            Kind::Avx512Vnni => 32,
        }
    }

    /// Rows of a tile.
    fn rows(self) -> usize {
        match self.0 {
            Kind::Portable => 4,
            Kind::Avx2 | Kind::AvxVnni => 6,
            Kind::Avx512Vnni => 12,
        }
    }

    /// Bytes of a row of A of `k` elements as it is multiplied.
    fn row_bytes(self, k: usize) -> usize {
        k.div_ceil(self.each()) * 4
    }
}

/// A right operand of signed bytes, packed.
#[derive(Debug)]
pub struct PackedIntegers {
    dots: Dots,
    k: usize,
    n: usize,
    data: AlignedBuf,
    /// What each column's sums have too much because A was made unsigned.
    excess: Vec<i32>,
}

impl PackedIntegers {
    /// Packs `k` rows and `n` columns; `at(row, column)` gives the elements.
    pub fn new(dots: Dots, k: usize, n: usize, at: impl Fn(usize, usize) -> i8) -> PackedIntegers {
        let (each, columns) = (dots.each(), dots.columns());
        let (groups, panels) = (k.div_ceil(each), n.div_ceil(columns));
        let data = AlignedBuf::new(panels * groups * columns * 4);
        let mut excess = vec![0i32; panels * columns];
        for panel in 0..panels {
            for j in 0..columns.min(n - panel * columns) {
                let col = panel * columns + j;
                let mut sum = 0i32;
                for row in 0..k {
                    let value = at(row, col);
                    sum = sum.wrapping_add(i32::from(value));
                    let place = ((panel * groups + row / each) * columns + j) * each + row % each;
                    // SAFETY: inside what was allocated: `each` elements of `4 / each` bytes a group and column.
                    unsafe {
                        match dots.takes_bytes() {
                            true => data.as_ptr().cast::<i8>().add(place).write(value),
                            false => data.as_ptr().cast::<i16>().add(place).write(i16::from(value)),
                        }
                    }
                }
                if dots.takes_bytes() {
                    excess[col] = sum.wrapping_mul(128);
                }
            }
        }
        PackedIntegers {
            dots,
            k,
            n,
            data,
            excess,
        }
    }

    /// The operand as it is multiplied.
    pub fn panels(&self) -> Panels {
        Panels {
            dots: self.dots,
            k: self.k,
            n: self.n,
            data: SyncPtr(self.data.as_ptr()),
            excess: SyncPtr(self.excess.as_ptr().cast_mut()),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len() + self.excess.len() * 4
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
pub struct Panels {
    dots: Dots,
    k: usize,
    n: usize,
    data: SyncPtr<u8>,
    /// One number a column.
    excess: SyncPtr<i32>,
}

/// Returns the bytes of a packed right operand's panels, and those of all that is packed.
pub fn given_bytes(given: &GivenMatrix, dots: Dots) -> [usize; 2] {
    let panels = given.n.div_ceil(dots.columns());
    let data = panels * dots.columns() * dots.row_bytes(given.k);
    [data, (data + panels * dots.columns() * 4).next_multiple_of(64)]
}

/// Returns the operand that [`pack_given`] puts at `to`.
pub fn given_panels(given: &GivenMatrix, dots: Dots, to: *mut u8) -> Panels {
    Panels {
        dots,
        k: given.k,
        n: given.n,
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
    ws.reserve(row_bytes.next_multiple_of(64) + columns * 4, 0);
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
                dot_tile(dots, 1, scratch, row_bytes, to, sums, columns);
                let excess = base.add(data).cast::<i32>().add(first);
                (0..columns).for_each(|j| excess.add(j).write((*sums.add(j)).wrapping_mul(128)));
            }
        }
    });
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
    pub weights: &'a [Panels],
    /// `row(entry, row, to)` writes a row of A.
    pub row: &'a (dyn Fn(usize, usize, &mut RowOut) + Sync),
    pub finish: &'a (dyn Fn(&SumTile) + Sync),
}

/// Bytes of A that a task has at hand.
const A_BYTES: usize = 128 << 10;
/// Most rows of a task.
const MOST_ROWS: usize = 96;

/// Multiplies.
///
/// # Safety
/// `row` writes all elements of a row; the processor has the instructions that the weights were packed for.
pub unsafe fn multiply(ws: &mut Workspace, p: &IntegerProduct<'_>) {
    let Some(first) = p.weights.first() else { return };
    let (dots, k, n) = (first.dots, first.k, first.n);
    if p.m == 0 || n == 0 || p.entries == 0 {
        return;
    }
    let (columns, high, row_bytes) = (dots.columns(), dots.rows(), dots.row_bytes(k));
    let panels = n.div_ceil(columns);
    let fitting = (A_BYTES / row_bytes.max(1)).clamp(high, MOST_ROWS) / high * high;
    // As many rows as leave a task for every thread.
    let wanted = (ws.threads() * 2).div_ceil(p.entries);
    let fair = p.m.div_ceil(wanted).next_multiple_of(high);
    let block = fitting.min(fair).max(high);
    let blocks = p.m.div_ceil(block);
    let splits = (ws.threads() * 2).div_ceil(p.entries * blocks).min(panels).max(1);
    let a_bytes = (block * row_bytes).next_multiple_of(64);
    let tile = block * columns * 4;
    ws.reserve(a_bytes + 2 * tile, 0);
    ws.parallel_for(p.entries * blocks * splits, &|task, thread, scratch| {
        let (entry, rest) = (task / (blocks * splits), task % (blocks * splits));
        let (number, split) = (rest / splits, rest % splits);
        let rows = number * block..((number + 1) * block).min(p.m);
        let weights = &p.weights[entry % p.weights.len()];
        let b = weights.data.get().cast_const();
        // SAFETY: the scratch has room for the rows and two tiles; the weights are as large as their sizes say.
        unsafe {
            for (i, row) in rows.clone().enumerate() {
                let to = scratch.add(i * row_bytes);
                // What is past the last element meets zeros of B.
                if row_bytes > 0 {
                    to.add(row_bytes - 4).write_bytes(0, 4);
                }
                (p.row)(entry, row, &mut RowOut { dots, to });
            }
            let sums = scratch.add(a_bytes).cast::<i32>();
            let floats = scratch.add(a_bytes + tile).cast::<f32>();
            for panel in panels * split / splits..panels * (split + 1) / splits {
                let from = b.add(panel * (row_bytes / 4) * columns * 4);
                let mut at = 0;
                while at < rows.len() {
                    let height = high.min(rows.len() - at);
                    let a = scratch.add(at * row_bytes).cast_const();
                    dot_tile(dots, height, a, row_bytes, from, sums.add(at * columns), columns);
                    at += height;
                }
                let cols = panel * columns..((panel + 1) * columns).min(n);
                (p.finish)(&SumTile {
                    entry,
                    rows: rows.clone(),
                    cols,
                    thread,
                    sums,
                    excess: match dots.takes_bytes() {
                        true => weights.excess.get().add(panel * columns),
                        false => std::ptr::null(),
                    },
                    stride: columns,
                    floats,
                });
            }
        }
    });
}

/// A convolution of one filter a channel, channels innermost.
pub struct DepthwiseIntegers<'a> {
    pub entries: usize,
    pub m: usize,
    pub channels: usize,
    /// A number for each tap and channel.
    pub weights: &'a [i8],
    /// All of them are 1.
    pub ones: bool,
    /// What is read outside of the image.
    pub padding: i8,
    /// `taps(entry, row, places)` says where the channels of each of a row's taps are; null outside of the image.
    pub taps: &'a (dyn Fn(usize, usize, &mut [*const i8]) + Sync),
    pub finish: &'a (dyn Fn(&SumTile) + Sync),
}

/// Channels of a tile of a depthwise convolution.
const CHANNELS: usize = 64;
/// Its rows.
const PIXELS: usize = 32;

/// Convolves each channel by itself.
///
/// # Safety
/// What `taps` gives is readable for all channels.
pub unsafe fn depthwise(ws: &mut Workspace, p: &DepthwiseIntegers<'_>) {
    let Some(taps) = p.weights.len().checked_div(p.channels) else {
        return;
    };
    let (blocks, chunks) = (p.m.div_ceil(PIXELS), p.channels.div_ceil(CHANNELS));
    let tile = PIXELS * CHANNELS * 4;
    ws.reserve(2 * tile, 0);
    let (isa, outside) = (ws.isa(), [p.padding; CHANNELS]);
    ws.parallel_for(p.entries * blocks * chunks, &|task, thread, scratch| {
        let (entry, rest) = (task / (blocks * chunks), task % (blocks * chunks));
        let (block, first) = (rest / chunks, rest % chunks * CHANNELS);
        let rows = block * PIXELS..((block + 1) * PIXELS).min(p.m);
        let cols = first..(first + CHANNELS).min(p.channels);
        let sums = scratch.cast::<i32>();
        // SAFETY: the scratch has room for two tiles; taps and weights have the chunk's channels.
        unsafe {
            let mut places: SmallVec<[*const i8; 25]> = smallvec![std::ptr::null(); taps];
            for (i, row) in rows.clone().enumerate() {
                (p.taps)(entry, row, &mut places);
                for place in &mut places {
                    *place = match place.is_null() {
                        true => outside.as_ptr(),
                        false => place.add(first),
                    };
                }
                let (to, weights) = (sums.add(i * CHANNELS), p.weights.as_ptr().add(first));
                match p.ones && taps <= WORD_TAPS {
                    true => sum_of_bytes(isa, to, &places, cols.len()),
                    false => sum_of_taps(isa, to, &places, (weights, p.channels), cols.len()),
                }
            }
            (p.finish)(&SumTile {
                entry,
                rows,
                cols,
                thread,
                sums,
                excess: std::ptr::null(),
                stride: CHANNELS,
                floats: scratch.add(tile).cast(),
            });
        }
    });
}

simd_dispatch! {
    /// Sums the products of bytes of several taps, channel by channel; weights of a tap are so many bytes behind those of the one before.
    unsafe fn sum_of_taps(
        sums: *mut i32, taps: &[*const i8], weights: (*const i8, usize), channels: usize,
    ) = sum_of_taps_body
}

#[inline(always)]
unsafe fn sum_of_taps_body<S: Simd>(
    sums: *mut i32,
    taps: &[*const i8],
    (weights, stride): (*const i8, usize),
    channels: usize,
) {
    /// Channels that are summed at once, in registers.
    macro_rules! at_once {
        ($count:literal, $at:expr) => {{
            let mut all = [0i32; $count];
            for (tap, from) in taps.iter().enumerate() {
                let a = from.add($at).cast::<[i8; $count]>().read_unaligned();
                let b = weights.add(tap * stride + $at).cast::<[i8; $count]>().read_unaligned();
                for i in 0..$count {
                    all[i] = all[i].wrapping_add(i32::from(a[i]) * i32::from(b[i]));
                }
            }
            sums.add($at).cast::<[i32; $count]>().write_unaligned(all);
            $at += $count;
        }};
    }
    let mut at = 0;
    // SAFETY: the caller's contract: taps, weights and sums have so many channels.
    unsafe {
        while at + 16 <= channels {
            at_once!(16, at);
        }
        while at + 4 <= channels {
            at_once!(4, at);
        }
        while at < channels {
            at_once!(1, at);
        }
    }
}

/// So many bytes have a sum of 16 bits.
const WORD_TAPS: usize = 256;

simd_dispatch! {
    /// Sums bytes of at most [`WORD_TAPS`] taps, channel by channel.
    unsafe fn sum_of_bytes(sums: *mut i32, taps: &[*const i8], channels: usize) = sum_of_bytes_body
}

#[inline(always)]
unsafe fn sum_of_bytes_body<S: Simd>(sums: *mut i32, taps: &[*const i8], channels: usize) {
    /// Channels that are summed at once, in registers.
    macro_rules! at_once {
        ($count:literal, $at:expr) => {{
            let mut all = [0i16; $count];
            for from in taps {
                let bytes = from.add($at).cast::<[i8; $count]>().read_unaligned();
                for i in 0..$count {
                    all[i] = all[i].wrapping_add(i16::from(bytes[i]));
                }
            }
            sums.add($at)
                .cast::<[i32; $count]>()
                .write_unaligned(all.map(i32::from));
            $at += $count;
        }};
    }
    let mut at = 0;
    // SAFETY: the caller's contract: taps and sums have so many channels.
    unsafe {
        while at + 32 <= channels {
            at_once!(32, at);
        }
        while at + 8 <= channels {
            at_once!(8, at);
        }
        while at < channels {
            at_once!(1, at);
        }
    }
}

/// One kind of dot product: `LANES` sums at a time.
trait Dot {
    type V: Copy;
    const LANES: usize;
    unsafe fn zero() -> Self::V;
    unsafe fn load(p: *const u8) -> Self::V;
    /// Four bytes of A in every lane.
    unsafe fn splat(p: *const u8) -> Self::V;
    unsafe fn dot(sum: Self::V, a: Self::V, b: Self::V) -> Self::V;
    unsafe fn store(p: *mut i32, v: Self::V);
}

/// Sums of `R` rows by a panel of two vectors' columns.
#[inline(always)]
unsafe fn tile_body<D: Dot, const R: usize>(a: *const u8, row_bytes: usize, b: *const u8, c: *mut i32, ldc: usize) {
    // SAFETY: the caller's contract: `R` rows of A, a panel as deep, `R` rows of C.
    unsafe {
        let mut sums = [[D::zero(); 2]; R];
        let step = 8 * D::LANES;
        for group in 0..row_bytes / 4 {
            let from = b.add(group * step);
            let columns = [D::load(from), D::load(from.add(4 * D::LANES))];
            for (row, sums) in sums.iter_mut().enumerate() {
                let element = D::splat(a.add(row * row_bytes + group * 4));
                sums[0] = D::dot(sums[0], element, columns[0]);
                sums[1] = D::dot(sums[1], element, columns[1]);
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            D::store(c.add(row * ldc), sums[0]);
            D::store(c.add(row * ldc + D::LANES), sums[1]);
        }
    }
}

/// Calls `$body` with as many rows as there are.
macro_rules! by_rows {
    ($rows:expr, $dot:ty, $args:tt, $($count:literal)+) => {
        match $rows {
            $($count => tile_body::<$dot, $count> $args,)+
            _ => {}
        }
    };
}

/// # Safety
/// `rows` rows of A of `row_bytes`, a panel of B as deep, and `rows` rows of C, `ldc` apart; no more rows than the kind takes.
unsafe fn dot_tile(dots: Dots, rows: usize, a: *const u8, row_bytes: usize, b: *const u8, c: *mut i32, ldc: usize) {
    // SAFETY: the caller's contract; a kind is only made for a processor that has its instructions.
    unsafe {
        match dots.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => x86::tile_512(rows, a, row_bytes, b, c, ldc),
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => x86::tile_vnni(rows, a, row_bytes, b, c, ldc),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => x86::tile_256(rows, a, row_bytes, b, c, ldc),
            _ => by_rows!(rows, Plain, (a, row_bytes, b, c, ldc), 1 2 3 4),
        }
    }
}

/// Pairs of words in plain Rust.
struct Plain;

impl Dot for Plain {
    type V = [i32; 4];
    const LANES: usize = 4;
    #[inline(always)]
    unsafe fn zero() -> [i32; 4] {
        [0; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const u8) -> [i32; 4] {
        // SAFETY: the caller's contract: 16 bytes.
        unsafe { p.cast::<[i32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn splat(p: *const u8) -> [i32; 4] {
        // SAFETY: the caller's contract: 4 bytes.
        [unsafe { p.cast::<i32>().read_unaligned() }; 4]
    }
    #[inline(always)]
    unsafe fn dot(sum: [i32; 4], a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        let low = |v: i32| i32::from(v as i16);
        let high = |v: i32| v >> 16;
        std::array::from_fn(|i| {
            sum[i]
                .wrapping_add(low(a[i]).wrapping_mul(low(b[i])))
                .wrapping_add(high(a[i]).wrapping_mul(high(b[i])))
        })
    }
    #[inline(always)]
    unsafe fn store(p: *mut i32, v: [i32; 4]) {
        // SAFETY: the caller's contract: four sums.
        unsafe { p.cast::<[i32; 4]>().write_unaligned(v) }
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(
    unsafe_op_in_unsafe_fn,
    reason = "each method is one intrinsic under the contract of the trait"
)]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Dot, tile_body};

    /// Pairs of words, 8 sums.
    struct Words;
    /// Quadruples of bytes, 8 sums.
    struct Bytes;
    /// Quadruples of bytes, 16 sums.
    struct WideBytes;

    macro_rules! in_256 {
        ($name:ty, $sum:ident, $a:ident, $b:ident => $dot:expr) => {
            impl Dot for $name {
                type V = __m256i;
                const LANES: usize = 8;
                #[inline(always)]
                unsafe fn zero() -> __m256i {
                    _mm256_setzero_si256()
                }
                #[inline(always)]
                unsafe fn load(p: *const u8) -> __m256i {
                    _mm256_loadu_si256(p.cast())
                }
                #[inline(always)]
                unsafe fn splat(p: *const u8) -> __m256i {
                    _mm256_set1_epi32(p.cast::<i32>().read_unaligned())
                }
                #[inline(always)]
                unsafe fn dot($sum: __m256i, $a: __m256i, $b: __m256i) -> __m256i {
                    $dot
                }
                #[inline(always)]
                unsafe fn store(p: *mut i32, v: __m256i) {
                    _mm256_storeu_si256(p.cast(), v)
                }
            }
        };
    }
    in_256!(Words, sum, a, b => _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)));
    in_256!(Bytes, sum, a, b => _mm256_dpbusd_avx_epi32(sum, a, b));

    impl Dot for WideBytes {
        type V = __m512i;
        const LANES: usize = 16;
        #[inline(always)]
        unsafe fn zero() -> __m512i {
            _mm512_setzero_si512()
        }
        #[inline(always)]
        unsafe fn load(p: *const u8) -> __m512i {
            _mm512_loadu_si512(p.cast())
        }
        #[inline(always)]
        unsafe fn splat(p: *const u8) -> __m512i {
            _mm512_set1_epi32(p.cast::<i32>().read_unaligned())
        }
        #[inline(always)]
        unsafe fn dot(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
            _mm512_dpbusd_epi32(sum, a, b)
        }
        #[inline(always)]
        unsafe fn store(p: *mut i32, v: __m512i) {
            _mm512_storeu_si512(p.cast(), v)
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn tile_256(rows: usize, a: *const u8, row_bytes: usize, b: *const u8, c: *mut i32, ldc: usize) {
        by_rows!(rows, Words, (a, row_bytes, b, c, ldc), 1 2 3 4 5 6)
    }

    #[target_feature(enable = "avx2,avxvnni")]
    pub(super) unsafe fn tile_vnni(rows: usize, a: *const u8, row_bytes: usize, b: *const u8, c: *mut i32, ldc: usize) {
        by_rows!(rows, Bytes, (a, row_bytes, b, c, ldc), 1 2 3 4 5 6)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) unsafe fn tile_512(rows: usize, a: *const u8, row_bytes: usize, b: *const u8, c: *mut i32, ldc: usize) {
        by_rows!(rows, WideBytes, (a, row_bytes, b, c, ldc), 1 2 3 4 5 6 7 8 9 10 11 12)
    }
}
