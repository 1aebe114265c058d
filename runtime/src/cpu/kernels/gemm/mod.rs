//! Matrix product with the epilogue applied while the tile of C is hot: `C[M, N] = epilogue(A[M, K] · B[K, N])`.
//!
//! A is read in place where its rows are contiguous f32, else copied once; B is packed into panels, once for constants
//! ([`PackedB`]), else into scratch. Accumulation is f32 in one chain per element along k (few-row tiles: four chains).
//! Storage may be f16 or bf16: converted while packing and while storing. B of these whose columns are contiguous is
//! read in place ([`halves`]).

mod chosen;
mod driver;
mod halves;
mod micro;
mod pack;
mod quantised;

use std::marker::PhantomData;
use std::ops::Range;

pub(crate) use driver::{Dest, Place, Problem, RowMap, Work, run, store};
pub(crate) use micro::tile_fns;
pub use pack::PackedB;
pub(crate) use pack::{gather, pack_panel, packed_len, panel_offset, panel_width};
pub use quantised::{Float8, Integers, QuantisedB};

use driver::StoredB;
use halves::Halves;

use super::workspace::{SyncPtr, Workspace};
pub use ir::host::product::{Activation, Elem};

/// Where each batch entry of an operand starts, in elements from its pointer.
#[derive(Clone, Copy, Debug)]
pub enum Batch<'a> {
    /// Entry `i` starts at `i * stride`; 0 broadcasts.
    Stride(isize),
    /// Entry `i` starts at `table[i]`: any broadcast of several batch axes.
    Table(&'a [isize]),
}

impl Batch<'_> {
    #[inline]
    pub(crate) fn at(&self, i: usize) -> isize {
        match self {
            Batch::Stride(stride) => stride * i as isize,
            Batch::Table(table) => table[i],
        }
    }
}

/// A matrix operand that is read: strides in elements, any sign.
#[derive(Clone, Copy, Debug)]
pub struct MatRef<'a> {
    pub ptr: *const u8,
    pub elem: Elem,
    pub row_stride: isize,
    pub col_stride: isize,
    pub batch: Batch<'a>,
}

impl<'a> MatRef<'a> {
    /// Says whether a right operand is read where it is, as 16-bit floats.
    fn is_halves_in_place(&self) -> bool {
        self.elem != Elem::F32 && self.row_stride == 1
    }

    /// A dense row-major f32 matrix of `cols` columns, broadcast over the batch.
    pub fn dense(data: &'a [f32], cols: usize) -> MatRef<'a> {
        MatRef {
            ptr: data.as_ptr().cast(),
            elem: Elem::F32,
            row_stride: cols as isize,
            col_stride: 1,
            batch: Batch::Stride(0),
        }
    }

    /// The transposed view.
    pub fn t(self) -> MatRef<'a> {
        MatRef {
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }
}

/// The matrix that is written: strides in elements. Its elements must not overlap what is read, nor each other.
#[derive(Clone, Copy, Debug)]
pub struct MatMut<'a> {
    pub ptr: *mut u8,
    pub elem: Elem,
    pub row_stride: isize,
    pub col_stride: isize,
    pub batch: Batch<'a>,
}

/// The right operand.
#[derive(Clone, Copy, Debug)]
pub enum Rhs<'a> {
    /// Packed beforehand; entry `i % batches` of it serves batch entry `i`.
    Packed(&'a PackedB),
    /// Integers with their scales, packed beforehand; serves every batch entry.
    Quantised(&'a QuantisedB),
    /// Packed at every call, into scratch; 16-bit floats whose columns are contiguous are read in place.
    Strided(MatRef<'a>),
}

/// The epilogue that runs in registers: `activation(acc * scale + bias + residual)`. An [`Epilogue`] runs after it.
#[derive(Clone, Copy, Debug)]
pub struct Builtin<'a> {
    pub scale: f32,
    /// One value per column of C (per output channel), at least N of them.
    pub bias: Option<&'a [f32]>,
    /// Added element by element.
    pub residual: Option<Residual<'a>>,
    pub activation: Activation,
}

impl Builtin<'_> {
    /// Says whether what is added lies where C is. The residual of a single row may come as a bias.
    pub(crate) fn reads(&self, c: *const u8) -> bool {
        self.residual.is_some_and(|r| r.ptr == c) || self.bias.is_some_and(|b| b.as_ptr().cast() == c)
    }
}

/// An operand in C's shape with unit column stride: `ptr + batch + row * row_stride + col`. It may be C itself.
#[derive(Clone, Copy, Debug)]
pub struct Residual<'a> {
    pub ptr: *const u8,
    /// A convolution's is f32.
    pub elem: Elem,
    pub row_stride: usize,
    pub batch: Batch<'a>,
}

// SAFETY: descriptions of memory; reading and writing it is `unsafe` at each use.
unsafe impl Send for MatRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for MatRef<'_> {}
// SAFETY: as above.
unsafe impl Send for MatMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for MatMut<'_> {}
// SAFETY: as above.
unsafe impl Send for Residual<'_> {}
// SAFETY: as above.
unsafe impl Sync for Residual<'_> {}

impl Default for Builtin<'_> {
    fn default() -> Self {
        Builtin {
            scale: 1.0,
            bias: None,
            residual: None,
            activation: Activation::None,
        }
    }
}

/// Which part of C a finished tile is.
#[derive(Clone, Debug)]
pub struct TileAt {
    /// The batch entry; the image for a convolution.
    pub batch: usize,
    /// Rows of C; for a convolution `oy * out_w + ox` within the image.
    pub rows: Range<usize>,
    /// Columns of C; output channels (all groups counted) for a convolution.
    pub cols: Range<usize>,
    /// The thread this runs on, below `Workspace::threads`: index of the epilogue's own scratch.
    pub thread: usize,
}

/// A finished tile in f32, in C itself or in scratch: rows of `cols` values, `stride` apart.
pub struct Tile<'a> {
    ptr: *mut f32,
    rows: usize,
    cols: usize,
    stride: usize,
    lifetime: PhantomData<&'a mut f32>,
}

impl Tile<'_> {
    /// # Safety
    /// `rows` rows of `cols` floats, `stride` apart, are this tile's alone.
    pub(crate) unsafe fn new(ptr: *mut f32, rows: usize, cols: usize, stride: usize) -> Self {
        Tile {
            ptr,
            rows,
            cols,
            stride,
            lifetime: PhantomData,
        }
    }
    pub fn rows(&self) -> usize {
        self.rows
    }
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Floats from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }
    /// The address of the first element.
    pub fn as_mut_ptr(&mut self) -> *mut f32 {
        self.ptr
    }
    /// Row `i` of the tile; panics when `i` is not below `rows`.
    pub fn row(&mut self, i: usize) -> &mut [f32] {
        assert!(i < self.rows);
        // SAFETY: by the contract of `new`, and one row is lent at a time.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(i * self.stride), self.cols) }
    }
}

/// What is done to each finished tile of C before it is stored: called from many threads, once per element of C.
pub trait Epilogue: Sync {
    /// Changes `tile`, which is the part `at` of C after [`Builtin`], in place. Tiles hold about 1-2 thousand values.
    fn apply(&self, at: &TileAt, tile: &mut Tile<'_>);

    /// Says whether it reads the elements of C that a tile replaces: they are kept until it has.
    fn reads_replaced(&self) -> bool {
        false
    }
}

/// One matrix product.
#[derive(Clone, Copy)]
pub struct Gemm<'a> {
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: MatRef<'a>,
    pub b: Rhs<'a>,
    pub c: MatMut<'a>,
    pub builtin: Builtin<'a>,
    pub epilogue: Option<&'a dyn Epilogue>,
}

pub(crate) struct TileArgs {
    /// `segs` rows of `table_stride` row pointers.
    pub rows: *const *const f32,
    pub table_stride: usize,
    /// Floats added to every row pointer.
    pub a_offset: usize,
    pub segs: usize,
    pub seg_len: usize,
    pub b: *const f32,
    pub b_stride: usize,
    pub c: *mut f32,
    pub ldc: usize,
    /// Valid columns.
    pub n: usize,
    /// Start from what C holds.
    pub accumulate: bool,
    /// Apply what follows.
    pub finish: bool,
    pub scale: f32,
    pub bias: *const f32,
    pub residual: *const f32,
    pub ld_residual: usize,
    pub activation: Activation,
    /// What a later tile reads, asked for ahead: a cache line for each k, `ahead_step` floats on.
    pub ahead: *const f32,
    pub ahead_step: usize,
}

/// Floats of a cache line.
pub(crate) const LINE: usize = 16;

/// Multiplies. K = 0 gives the epilogue of zero.
///
/// # Safety
/// Every element that the shapes and strides of `a`, `b` and `residual` reach must be readable, every element of `c`
/// writable, exclusively and disjoint from `a` and `b`, for the call. The residual may be where `c` is, each element in
/// the place of the one that it is added to.
///
/// # Panics
/// When a [`PackedB`] or a [`QuantisedB`] has another K or N than the product or another instruction level than `ws`,
/// or when a bias is shorter than N.
pub unsafe fn gemm(ws: &mut Workspace, g: &Gemm<'_>) {
    // SAFETY: the caller's contract.
    unsafe { multiply(ws, g, None) }
}

/// Multiplies products of one row each, whose right operand is the one of several that `matrices` says: of a
/// [`PackedB`] the matrix of that number, of a [`QuantisedB`] as many columns from `matrix · n` on, else the one where
/// the batch has that entry. The epilogue is a scale and a bias.
///
/// # Safety
/// As for [`gemm`].
///
/// # Panics
/// As for [`gemm`], and where products have more rows, columns of a [`QuantisedB`] do not begin with a panel, or a
/// strided operand would be packed.
pub unsafe fn gemm_chosen(ws: &mut Workspace, g: &Gemm<'_>, matrices: &[usize]) {
    assert!(g.m == 1 && g.batch == matrices.len(), "one row and one matrix an entry");
    // SAFETY: the caller's contract.
    unsafe { multiply(ws, g, Some(matrices)) }
}

unsafe fn multiply(ws: &mut Workspace, g: &Gemm<'_>, matrices: Option<&[usize]>) {
    let (m, n, k) = (g.m, g.n, g.k);
    if m == 0 || n == 0 || g.batch == 0 {
        return;
    }
    let isa = ws.isa();
    assert!(
        g.builtin.bias.is_none_or(|bias| bias.len() >= n),
        "a bias has one value per column"
    );
    let direct_a = g.a.elem == Elem::F32 && (g.a.col_stride == 1 || k <= 1);
    let a_entries = if matches!(g.a.batch, Batch::Stride(0)) {
        1
    } else {
        g.batch
    };
    // Rows of 16-bit floats that are read for one entry become floats task by task.
    let converts = g.a.elem != Elem::F32 && g.a.col_stride == 1 && matrices.is_none() && a_entries == g.batch;
    let a_floats = if direct_a || converts { 0 } else { a_entries * m * k };
    let panel = isa.lanes() * 2;
    let (b_entries, b_floats, direct_b) = match &g.b {
        Rhs::Packed(packed) => {
            assert!(
                packed.k() == k && packed.n() == n && packed.isa() == isa,
                "the packed operand is {}x{} for {:?}, the product needs {k}x{n} for {isa:?}",
                packed.k(),
                packed.n(),
                packed.isa(),
            );
            (packed.batches(), 0, false)
        }
        Rhs::Quantised(quantised) => {
            let beside = matrices.is_some() && n % panel == 0 && quantised.n() % n == 0;
            assert!(
                quantised.k() == k && (quantised.n() == n || beside) && quantised.isa() == isa,
                "the quantised operand is {}x{} for {:?}, the product needs {k}x{n} for {isa:?}",
                quantised.k(),
                quantised.n(),
                quantised.isa(),
            );
            (1, 0, false)
        }
        Rhs::Strided(b) => {
            let entries = if matches!(b.batch, Batch::Stride(0)) {
                1
            } else {
                g.batch
            };
            // Packing costs as much as a few rows: skip it for those when the rows of B are already vectors.
            let direct = m <= 8 && b.elem == Elem::F32 && b.col_stride == 1 && b.row_stride >= 0 && n % panel == 0;
            let read = direct || b.is_halves_in_place();
            assert!(matrices.is_none() || read, "chosen matrices are read where they are");
            (entries, if read { 0 } else { entries * packed_len(isa, k, n) }, direct)
        }
    };
    let b_base = a_floats.next_multiple_of(16);
    let dest = Dest {
        elem: g.c.elem,
        rows: RowMap::Linear(g.c.row_stride),
        col_stride: g.c.col_stride,
        apart: g.epilogue.is_some_and(Epilogue::reads_replaced),
    };
    let in_place = g.builtin.reads(g.c.ptr);
    let work = Work {
        isa,
        batch: g.batch,
        m,
        n,
        segs: 1,
        seg_len: k,
        a_row_bytes: k * 4,
        threads: ws.threads(),
        all_entries: false,
    };
    let mut per_thread = match matrices {
        Some(matrices) => driver::scratch_of_rows(isa, matrices.len(), 1),
        None => work.scratch_bytes(),
    };
    let halves = |elem, columns| {
        StoredB::Halves(Halves {
            isa,
            elem,
            k,
            n,
            columns,
        })
    };
    let stored = match g.b {
        Rhs::Quantised(b) => Some(StoredB::Quantised(b)),
        Rhs::Packed(b) => (b.elem() != Elem::F32).then(|| halves(b.elem(), None)),
        Rhs::Strided(b) => b.is_halves_in_place().then(|| halves(b.elem, Some(b.col_stride))),
    };
    let stored = stored.map(|b| {
        // Behind the group of tiles and the table of rows.
        let at = per_thread.next_multiple_of(64);
        let rows = driver::expanded_rows(k, &dest, in_place);
        per_thread = at + rows * panel * 4;
        (b, at)
    });
    let converted = converts.then(|| {
        let at = per_thread.next_multiple_of(64);
        per_thread = at + work.task_rows() * k * 4;
        (g.a.elem, at)
    });
    let sums = b_base + b_floats.next_multiple_of(16);
    let floats = sums + matrices.map_or(0, |matrices| matrices.len() * n);
    if !ws.reserve(per_thread, floats * 4) {
        return;
    }
    let shared = SyncPtr(ws.shared().cast::<f32>());
    let a = g.a;
    let a_ptr = SyncPtr(a.ptr.cast_mut());
    let size = a.elem.size() as isize;
    if !direct_a && !converts {
        let rows = a_entries * m;
        ws.parallel_ranges(rows, 16, &|range, _, _| {
            for row in range {
                let (entry, i) = (row / m, row % m);
                // SAFETY: the row is inside A by the caller's contract; each task has its own rows of the scratch.
                unsafe {
                    let src = a_ptr
                        .get()
                        .offset((a.batch.at(entry) + i as isize * a.row_stride) * size);
                    gather(isa, shared.get().add(row * k), src, a.elem, a.col_stride, k);
                }
            }
        });
    }
    if let (Rhs::Strided(b), false) = (&g.b, direct_b || stored.is_some()) {
        let b = *b;
        let b_ptr = SyncPtr(b.ptr.cast_mut());
        let panels = n.div_ceil(panel);
        let one = packed_len(isa, k, n);
        ws.parallel_for(b_entries * panels, &|task, _, _| {
            let (entry, p) = (task / panels, task % panels);
            // SAFETY: inside B by the caller's contract; each task has its own panel of the scratch.
            unsafe {
                let src = b_ptr.get().offset(b.batch.at(entry) * b.elem.size() as isize);
                let dst = shared.get().add(b_base + entry * one + panel_offset(isa, k, p));
                pack_panel(isa, dst, src, &b, k, n, p);
            }
        });
    }
    let c_size = g.c.elem.size() as isize;
    let c_ptr = SyncPtr(g.c.ptr);
    let c_batch = g.c.batch;
    // Where B is, the bytes of its elements, and where each entry begins that is not packed.
    let (b_operand, b_size, b_in_place) = match &g.b {
        Rhs::Packed(packed) => (
            SyncPtr(packed.as_ptr().cast_mut().cast::<u8>()),
            packed.elem().size(),
            None,
        ),
        Rhs::Quantised(_) => (SyncPtr(std::ptr::null_mut()), 0, None),
        Rhs::Strided(b) if direct_b || stored.is_some() => (SyncPtr(b.ptr.cast_mut()), b.elem.size(), Some(b.batch)),
        // SAFETY: reserved above.
        Rhs::Strided(_) => (SyncPtr(unsafe { shared.get().add(b_base) }.cast()), 4, None),
    };
    let one_b = packed_len(isa, k, n) * b_size;
    let residual = g.builtin.residual.map(|r| (SyncPtr(r.ptr.cast_mut()), r.batch));
    let residual_elem = g.builtin.residual.map_or(Elem::F32, |r| r.elem);
    let bias = SyncPtr(g.builtin.bias.map_or(std::ptr::null_mut(), |b| b.as_ptr().cast_mut()));
    let place = |entry: usize| {
        let matrix = matrices.map_or(entry, |matrices| matrices[entry]);
        // SAFETY: entry is a batch entry: all offsets are inside the operands by the caller's contract.
        unsafe {
            Place {
                b: match b_in_place {
                    Some(batch) => b_operand.get().offset(batch.at(matrix) * b_size as isize),
                    None => b_operand.get().wrapping_add(matrix % b_entries * one_b),
                }
                .cast::<f32>(),
                panel0: if matrices.is_some() { matrix * n / panel } else { 0 },
                c: c_ptr.get().offset(c_batch.at(entry) * c_size),
                bias: bias.get(),
                residual: residual.map_or(std::ptr::null(), |(p, batch)| {
                    let bytes = batch.at(entry) * residual_elem.size() as isize;
                    p.get().offset(bytes).cast_const()
                }),
                entry,
                col0: 0,
            }
        }
    };
    let fill = |entry: usize, row0: usize, count: usize, table: *mut *const f32| {
        for i in 0..count {
            let row = row0 + i;
            // SAFETY: the row is in A (or in its copy); the table has room for `count` pointers.
            unsafe {
                let p = if direct_a || converts {
                    a_ptr
                        .get()
                        .offset((a.batch.at(entry) + row as isize * a.row_stride) * size)
                        .cast::<f32>()
                } else {
                    shared.get().add((if a_entries == 1 { 0 } else { entry } * m + row) * k)
                };
                table.add(i).write(p);
            }
        }
    };
    let problem = Problem {
        isa,
        batch: g.batch,
        all_entries: false,
        m,
        n,
        segs: 1,
        seg_len: k,
        a_row_bytes: k * 4,
        b_stride: match &g.b {
            Rhs::Strided(b) if direct_b => Some(b.row_stride as usize),
            _ => None,
        },
        fill: &fill,
        place: &place,
        converted,
        stored,
        dest,
        scale: g.builtin.scale,
        activation: g.builtin.activation,
        residual: residual_elem,
        ld_residual: g.builtin.residual.map_or(0, |r| r.row_stride),
        in_place,
        epilogue: g.epilogue,
    };
    // SAFETY: the closures hand out pointers inside the operands, per the caller's contract.
    unsafe {
        match matrices {
            Some(matrices) => chosen::run_chosen(ws, &problem, matrices, SyncPtr(shared.get().add(sums)), &g.c),
            None => run(ws, &problem),
        }
    }
}

/// Scratch that [`gemm`] will ask of a workspace with `threads` threads, as (bytes per thread, shared bytes): for plans
/// that reserve it beforehand. `a_copied` says that A is not contiguous f32 rows, `b_packed` that B is a constant.
pub fn gemm_scratch(
    isa: super::isa::Isa,
    threads: usize,
    batch: usize,
    (m, n, k): (usize, usize, usize),
    a_copied: bool,
    b_packed: bool,
) -> (usize, usize) {
    let a = if a_copied {
        (batch * m * k).next_multiple_of(16)
    } else {
        0
    };
    let b = if b_packed { 0 } else { batch * packed_len(isa, k, n) };
    let work = Work {
        isa,
        batch,
        m,
        n,
        segs: 1,
        seg_len: k,
        a_row_bytes: k * 4,
        threads,
        all_entries: false,
    };
    (work.scratch_bytes(), (a + b) * 4)
}
