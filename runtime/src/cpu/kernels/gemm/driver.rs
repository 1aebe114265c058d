//! Splits a product into tasks and tiles, and applies epilogues: shared by GEMM and convolution.
//!
//! A task is a range of rows and a range of panels. Inside it panels are outermost, so each panel of B is read from
//! memory once and stays in L1/L2 while the task's rows, kept below [`A_BYTES`], come from L2.

use super::halves::Halves;
use super::quantised::{EXPANDED_ROWS, FEW_ROWS, Sums};
use super::{Activation, Elem, Epilogue, LINE, QuantisedB, Tile, TileArgs, TileAt, micro, panel_width};
use crate::cpu::kernels::convert;
use crate::cpu::kernels::isa::Isa;
use crate::cpu::kernels::workspace::Workspace;

/// Rows of A of one task: half of a 2 MiB L2 at most.
const A_BYTES: usize = 1 << 20;
/// A block of k of those rows, when there are several panels to use it on.
const K_BLOCK_BYTES: usize = 1 << 20;
/// Packed B of this size is read from the second-level cache again and again.
pub(super) const B_BYTES: usize = 1 << 19;
/// Row pointers of one task.
const TABLE_BYTES: usize = 96 << 10;
/// Multiply-adds that are worth a task of their own (about 3 µs).
const TASK_FMA: usize = 200_000;
/// Values an epilogue is given at once.
const EPILOGUE_VALUES: usize = 1024;

/// Where one row of C is, in elements from the start of the batch entry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowMap {
    Linear(isize),
    /// Row `y * w + x` is at `y * stride_y + x * stride_x`.
    Grid {
        w: usize,
        stride_y: isize,
        stride_x: isize,
    },
}

impl RowMap {
    pub(crate) fn at(self, row: usize) -> isize {
        match self {
            RowMap::Linear(stride) => row as isize * stride,
            RowMap::Grid { w, stride_y, stride_x } => (row / w) as isize * stride_y + (row % w) as isize * stride_x,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Dest {
    pub elem: Elem,
    pub rows: RowMap,
    pub col_stride: isize,
    /// What is made of finished tiles reads what they replace: they lie apart until then.
    pub apart: bool,
}

impl Dest {
    /// Row stride when tiles can be computed in place.
    pub(crate) fn direct(&self) -> Option<usize> {
        match self.rows {
            RowMap::Linear(stride) if self.elem == Elem::F32 && self.col_stride == 1 && stride >= 0 && !self.apart => {
                Some(stride as usize)
            }
            _ => None,
        }
    }
}

/// The operands of one batch entry.
pub(crate) struct Place {
    pub b: *const f32,
    /// Panels of quantised matrices before the entry's own.
    pub panel0: usize,
    pub c: *mut u8,
    pub bias: *const f32,
    /// Of the problem's type.
    pub residual: *const u8,
    /// `TileAt::batch`, and what is added to its columns.
    pub entry: usize,
    pub col0: usize,
}

/// A product of `batch` entries: rows by pointer tables, panels of B, a destination.
pub(crate) struct Problem<'a> {
    pub isa: Isa,
    pub batch: usize,
    /// A task has its rows of all entries, which read neighbours in memory: the groups of a convolution.
    pub all_entries: bool,
    pub m: usize,
    pub n: usize,
    pub segs: usize,
    pub seg_len: usize,
    /// Memory that one more row of A touches.
    pub a_row_bytes: usize,
    /// Rows of an unpacked B this far apart; `None` for packed panels.
    pub b_stride: Option<usize>,
    /// `fill(entry, row0, rows, table)` writes `segs` times `rows` pointers.
    pub fill: &'a (dyn Fn(usize, usize, usize, *mut *const f32) + Sync),
    pub place: &'a (dyn Fn(usize) -> Place + Sync),
    /// Rows of A are 16-bit floats: each task makes floats of its own, at this place of its thread's scratch.
    pub converted: Option<(Elem, usize)>,
    /// B in fewer bits than floats, and where a thread's scratch has room for floats of a panel.
    pub stored: Option<(StoredB<'a>, usize)>,
    pub dest: Dest,
    pub scale: f32,
    pub activation: Activation,
    pub residual: Elem,
    pub ld_residual: usize,
    /// The residual is where C is: C must hold it until the last product of a tile has been added up.
    pub in_place: bool,
    pub epilogue: Option<&'a dyn Epilogue>,
}

/// A right operand in fewer bits than floats.
#[derive(Clone, Copy)]
pub(crate) enum StoredB<'a> {
    /// One for all entries, or several side by side, of which an entry's begins at `Place::panel0`.
    Quantised(&'a QuantisedB),
    /// Each entry's begins at `Place::b`.
    Halves(Halves),
}

impl StoredB<'_> {
    /// Makes floats of the rows `k0..k0 + rows` of a panel.
    ///
    /// # Safety
    /// `at` is the entry's; `dst` is valid for as many floats; the rows and the panel are some of the matrix.
    unsafe fn expand(&self, at: &Place, dst: *mut f32, panel: usize, [k0, rows]: [usize; 2]) {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                StoredB::Quantised(q) => q.expand(dst, at.panel0 + panel, k0, rows),
                StoredB::Halves(h) => h.expand(at.b.cast(), dst, panel, [k0, rows]),
            }
        }
    }

    /// Writes the products of a few rows by a panel.
    ///
    /// # Safety
    /// `at` is the entry's; `to` has its rows and places; the panel is one of the matrix.
    unsafe fn multiply(&self, at: &Place, panel: usize, to: Sums) {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                StoredB::Quantised(q) => q.multiply(at.panel0 + panel, to),
                StoredB::Halves(h) => h.multiply(at.b.cast(), panel, to),
            }
        }
    }
}

impl Problem<'_> {
    /// Row stride of C where unfinished sums may lie in it.
    fn sums_in_place(&self) -> Option<usize> {
        if self.in_place { None } else { self.dest.direct() }
    }
}

/// What decides how a product is split into tasks.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub isa: Isa,
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub segs: usize,
    pub seg_len: usize,
    /// Memory that one more row of A touches.
    pub a_row_bytes: usize,
    pub threads: usize,
    /// As [`Problem::all_entries`].
    pub all_entries: bool,
}

impl Work {
    /// How many ranges of rows and of panels one batch entry is split into.
    fn split(&self) -> (usize, usize) {
        let (m, n, threads) = (self.m, self.n, self.threads);
        let tiles = m.div_ceil(micro::tile_fns(self.isa).len());
        let panels = n.div_ceil(2 * self.isa.lanes());
        let fma = m.saturating_mul(n).saturating_mul(self.segs * self.seg_len);
        let batch = if self.all_entries { 1 } else { self.batch };
        let fma = fma.saturating_mul(self.batch / batch.max(1));
        let wanted = if threads == 1 {
            1
        } else {
            (threads * 4).div_ceil(batch).min(fma / TASK_FMA).max(1)
        };
        let memory = (m * self.a_row_bytes)
            .div_ceil(A_BYTES)
            .max((m * self.segs * 8).div_ceil(TABLE_BYTES))
            .min(tiles.div_ceil(4))
            .max(1);
        let (rows, cols) = if n > m && !self.all_entries {
            let cols = even(panels, wanted, threads);
            (wanted.div_ceil(cols), cols)
        } else {
            let rows = even(tiles, wanted.max(memory), threads);
            (rows, if self.all_entries { 1 } else { wanted.div_ceil(rows) })
        };
        (rows.max(memory).min(tiles), cols.min(panels))
    }

    /// The most rows that a task has.
    pub(crate) fn task_rows(&self) -> usize {
        let (chunks, _) = self.split();
        let mr = micro::tile_fns(self.isa).len();
        // A chunk's rows differ by at most one tile from the mean.
        (self.m.div_ceil(mr).div_ceil(chunks.max(1)) + 1) * mr
    }

    /// Scratch one thread needs: a group of tiles, a tile of the residual, then the table of row pointers.
    pub(crate) fn scratch_bytes(&self) -> usize {
        scratch_of_rows(self.isa, self.task_rows(), self.segs)
    }
}

/// About `wanted` parts of `units` that `threads` threads finish at the same time.
fn even(units: usize, wanted: usize, threads: usize) -> usize {
    let wanted = wanted.clamp(1, units.max(1));
    if wanted == 1 {
        return 1;
    }
    // The longest thread's share in units; of equal ones the count nearest to what was wanted.
    let longest = |parts: usize| parts.div_ceil(threads) * units.div_ceil(parts);
    (wanted..=units.min(wanted * 2))
        .chain((wanted / 2).max(1)..wanted)
        .min_by_key(|parts| (longest(*parts), parts.abs_diff(wanted)))
        .unwrap_or(wanted)
}

fn group_rows(isa: Isa) -> usize {
    let mr = micro::tile_fns(isa).len();
    EPILOGUE_VALUES.div_ceil(2 * isa.lanes()).next_multiple_of(mr)
}

/// As [`Work::scratch_bytes`], of up to so many rows however they are split.
pub(crate) fn scratch_of_rows(isa: Isa, rows: usize, segs: usize) -> usize {
    (group_rows(isa) + micro::tile_fns(isa).len()) * 2 * isa.lanes() * 4 + rows * segs * 8
}

/// Rows of a stored panel that are floats at once: all, where unfinished sums may not lie in C.
pub(crate) fn expanded_rows(k: usize, dest: &Dest, in_place: bool) -> usize {
    match dest.direct() {
        Some(_) if !in_place => k.min(EXPANDED_ROWS),
        _ => k,
    }
}

/// Runs the product. The workspace must have [`Work::scratch_bytes`] reserved.
///
/// # Safety
/// Pointers that `fill` and `place` give are valid for what the shape reaches.
pub(crate) unsafe fn run(ws: &Workspace, p: &Problem<'_>) {
    let work = Work {
        isa: p.isa,
        batch: p.batch,
        m: p.m,
        n: p.n,
        segs: p.segs,
        seg_len: p.seg_len,
        a_row_bytes: p.a_row_bytes,
        threads: ws.threads(),
        all_entries: p.all_entries,
    };
    let (row_chunks, col_chunks) = work.split();
    let panels = p.n.div_ceil(2 * p.isa.lanes());
    let tiles = p.m.div_ceil(micro::tile_fns(p.isa).len());
    if p.all_entries {
        return ws.parallel_for(row_chunks, &|r, thread, scratch| {
            for entry in 0..p.batch {
                let task = Task {
                    tiles: tiles * r / row_chunks..tiles * (r + 1) / row_chunks,
                    panels: 0..panels,
                    thread,
                    scratch,
                };
                // SAFETY: as below.
                unsafe { task.run(p, &(p.place)(entry), entry, tiles) }
            }
        });
    }
    let per_entry = row_chunks * col_chunks;
    ws.parallel_for(p.batch * per_entry, &|task, thread, scratch| {
        let (entry, rest) = (task / per_entry, task % per_entry);
        let (r, c) = (rest / col_chunks, rest % col_chunks);
        let task = Task {
            tiles: tiles * r / row_chunks..tiles * (r + 1) / row_chunks,
            panels: panels * c / col_chunks..panels * (c + 1) / col_chunks,
            thread,
            scratch,
        };
        // SAFETY: the caller's contract; tasks cover disjoint parts of C.
        unsafe { task.run(p, &(p.place)(entry), entry, tiles) }
    });
}

struct Task {
    tiles: std::ops::Range<usize>,
    panels: std::ops::Range<usize>,
    thread: usize,
    scratch: *mut u8,
}

impl Task {
    unsafe fn run(self, p: &Problem<'_>, place: &Place, entry: usize, tiles: usize) {
        let fns = micro::tile_fns(p.isa);
        let lanes = p.isa.lanes();
        let group = group_rows(p.isa);
        // Tiles of about equal height: no short last one that starves the FMA units.
        let row = |tile: usize| p.m * tile / tiles;
        let (first, end) = (row(self.tiles.start), row(self.tiles.end));
        let buffer = self.scratch.cast::<f32>();
        // SAFETY: `Work::scratch_bytes` has room for all parts.
        let (added, table) = unsafe {
            let added = buffer.add(group * 2 * lanes);
            (added, added.add(fns.len() * 2 * lanes).cast::<*const f32>())
        };
        for tile in self.tiles.clone() {
            let (r0, r1) = (row(tile), row(tile + 1));
            // SAFETY: as above.
            (p.fill)(entry, r0, r1 - r0, unsafe { table.add((r0 - first) * p.segs) });
        }
        if let Some((elem, at)) = p.converted {
            // SAFETY: the scratch has room for the floats of a task's rows, each of which has one segment.
            unsafe {
                let floats = self.scratch.add(at).cast::<f32>();
                for i in 0..end - first {
                    let row = floats.add(i * p.seg_len);
                    convert::load_ptr(p.isa, row, (*table.add(i)).cast(), elem, p.seg_len);
                    table.add(i).write(row);
                }
            }
        }
        // A few rows by stored panels are summed up outside the tile, which only finishes them.
        let few = p.stored.filter(|_| p.segs == 1 && p.m <= FEW_ROWS);
        let direct = match few {
            Some(_) => p.sums_in_place(),
            None => p.dest.direct(),
        };
        let k = p.segs * p.seg_len;
        // Long rows of a plain product go in blocks of k, so that A stays in L2 across panels.
        let blocks = if p.segs == 1 && p.sums_in_place().is_some() && k >= 1024 && self.panels.len() > 2 {
            ((end - first) * k * 4).div_ceil(K_BLOCK_BYTES).min(k / 512)
        } else {
            1
        };
        // Stored panels become floats block by block.
        let blocks = match p.stored {
            Some(_) if few.is_some() => 1,
            Some(_) if p.segs == 1 => blocks
                .max(k.div_ceil(expanded_rows(k, &p.dest, p.in_place).max(1)))
                .max(1),
            _ => blocks,
        };
        for block in 0..blocks {
            let k0 = if blocks == 1 { 0 } else { p.seg_len * block / blocks };
            let seg_len = if blocks == 1 {
                p.seg_len
            } else {
                p.seg_len * (block + 1) / blocks - k0
            };
            let last = block + 1 == blocks;
            for panel in self.panels.clone() {
                let width = panel_width(p.isa, p.n, panel);
                let col = panel * 2 * lanes;
                let cols = width.min(p.n - col);
                // SAFETY: offsets inside the operands of this entry.
                let (b, b_stride, bias, residual) = unsafe {
                    let (b, stride) = match (p.b_stride, p.stored) {
                        (_, Some((stored, at))) => {
                            let floats = self.scratch.add(at).cast::<f32>();
                            if few.is_none() {
                                stored.expand(place, floats, panel, [k0, seg_len]);
                            }
                            (floats.cast_const(), width)
                        }
                        (Some(stride), _) => (place.b.add(col + k0 * stride), stride),
                        (None, _) => (place.b.add(col * k + k0 * width), width),
                    };
                    let bias = if place.bias.is_null() {
                        place.bias
                    } else {
                        place.bias.add(col)
                    };
                    let residual = if place.residual.is_null() {
                        place.residual
                    } else {
                        place.residual.add(col * p.residual.size())
                    };
                    (b, stride, bias, residual)
                };
                // The next panel, where B does not stay in the second-level cache: the first tiles ask for a part each.
                let next = match p.b_stride {
                    None if p.stored.is_none() && panel + 1 < self.panels.end && p.n * k * 4 > B_BYTES => {
                        let (col, width) = ((panel + 1) * 2 * lanes, panel_width(p.isa, p.n, panel + 1));
                        Some((
                            place.b.wrapping_add(col * k + k0 * width),
                            p.segs * seg_len * LINE,
                            width,
                        ))
                    }
                    _ => None,
                };
                let ahead = |tile: usize| match next {
                    Some((next, part, width)) if (tile - self.tiles.start) * LINE < width => {
                        (next.wrapping_add((tile - self.tiles.start) * part), LINE)
                    }
                    _ => (b, 0),
                };
                let mut tile = self.tiles.start;
                while tile < self.tiles.end {
                    let g0 = row(tile);
                    let mut g1 = g0;
                    while tile < self.tiles.end && row(tile + 1) - g0 <= group {
                        let (r0, r1) = (row(tile), row(tile + 1));
                        // SAFETY: all pointers stay inside what the caller vouched for.
                        unsafe {
                            let (c, ldc) = match direct {
                                Some(ldc) => (place.c.cast::<f32>().add(r0 * ldc + col), ldc),
                                None => (buffer.add((r0 - g0) * width), width),
                            };
                            let (ahead, ahead_step) = ahead(tile);
                            let rows = table.add((r0 - first) * p.segs);
                            if let Some((stored, _)) = few {
                                // The tile is left to apply what follows to the sums.
                                let count = r1 - r0;
                                let mut few = [std::ptr::null(); FEW_ROWS];
                                few[..count].copy_from_slice(std::slice::from_raw_parts(rows, count));
                                let to = Sums {
                                    rows: few,
                                    count,
                                    c,
                                    ldc,
                                    cols,
                                };
                                stored.multiply(place, panel, to);
                            }
                            // 16-bit floats are floats beside the tile; C in place of them is not stored yet.
                            let (residual, ld_residual) = match p.residual {
                                _ if residual.is_null() || !last => (std::ptr::null(), 0),
                                Elem::F32 => (residual.cast::<f32>().add(r0 * p.ld_residual), p.ld_residual),
                                elem => {
                                    let from = residual.add(r0 * p.ld_residual * elem.size());
                                    let size = [r1 - r0, cols];
                                    convert::load_rows(p.isa, added, width, from, p.ld_residual, elem, size);
                                    (added.cast_const(), width)
                                }
                            };
                            let args = TileArgs {
                                rows,
                                table_stride: r1 - r0,
                                a_offset: k0,
                                segs: p.segs,
                                seg_len: if few.is_some() { 0 } else { seg_len },
                                b,
                                b_stride,
                                c,
                                ldc,
                                n: cols,
                                accumulate: block > 0 || few.is_some(),
                                finish: last,
                                scale: p.scale,
                                bias,
                                residual,
                                ld_residual,
                                activation: p.activation,
                                ahead,
                                ahead_step,
                            };
                            fns[r1 - r0 - 1][width / lanes - 1](&args);
                        }
                        g1 = r1;
                        tile += 1;
                    }
                    if !last || (direct.is_some() && p.epilogue.is_none()) {
                        continue;
                    }
                    // SAFETY: the group of tiles just computed.
                    let (ptr, stride) = unsafe {
                        match direct {
                            Some(ldc) => (place.c.cast::<f32>().add(g0 * ldc + col), ldc),
                            None => (buffer, width),
                        }
                    };
                    if let Some(epilogue) = p.epilogue {
                        let at = TileAt {
                            batch: place.entry,
                            rows: g0..g1,
                            cols: place.col0 + col..place.col0 + col + cols,
                            thread: self.thread,
                        };
                        // SAFETY: this task alone writes these rows and columns.
                        epilogue.apply(&at, &mut unsafe { Tile::new(ptr, g1 - g0, cols, stride) });
                    }
                    if direct.is_none() {
                        // SAFETY: rows and columns of C.
                        unsafe { store(p.isa, &p.dest, place.c, g0..g1, col, cols, ptr, stride) }
                    }
                }
            }
        }
    }
}

/// Stores a tile that was computed in scratch.
pub(crate) unsafe fn store(
    isa: Isa,
    dest: &Dest,
    c: *mut u8,
    rows: std::ops::Range<usize>,
    col: usize,
    cols: usize,
    tile: *const f32,
    stride: usize,
) {
    let size = dest.elem.size() as isize;
    let col_stride = dest.col_stride;
    // SAFETY: the caller's contract: every element is inside C, every tile row inside the scratch.
    unsafe {
        if let (Elem::F32, RowMap::Linear(1), 1..) = (dest.elem, dest.rows, col_stride) {
            // Rows lie side by side: a transposed tile.
            let to = c.cast::<f32>().offset(rows.start as isize + col as isize * col_stride);
            return convert::transpose_tile(isa, to, col_stride as usize, tile, stride as isize, cols, rows.len());
        }
        if dest.elem == Elem::F32 && col_stride != 1 {
            // Columns outermost: along NCHW's unit stride.
            for j in 0..cols {
                for row in rows.clone() {
                    let at = dest.rows.at(row) + (col + j) as isize * col_stride;
                    c.cast::<f32>()
                        .offset(at)
                        .write(*tile.add((row - rows.start) * stride + j));
                }
            }
            return;
        }
        if let (RowMap::Linear(step), 1, Elem::F16 | Elem::BF16) = (dest.rows, col_stride, dest.elem) {
            let to = c.offset((dest.rows.at(rows.start) + col as isize) * size);
            return convert::store_rows(isa, to, step, tile, stride, dest.elem, [rows.len(), cols]);
        }
        for row in rows.clone() {
            let from = tile.add((row - rows.start) * stride);
            let to = c.offset((dest.rows.at(row) + col as isize * col_stride) * size);
            convert::scatter(isa, to, from, dest.elem, col_stride, cols);
        }
    }
}
