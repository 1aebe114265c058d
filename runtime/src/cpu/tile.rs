//! Block programs behind products and convolutions of floats: they run on each finished tile, in cache.

use ir::DType;
use ir::host::block::{Inst, Program};
use ir::host::product::{self, TILE_LANES, Tiles};
use ir::op::UnaryOp;
use smallvec::SmallVec;

use super::block::{Frame, RunBlock, Val, copy_lanes};
use super::kernels::Isa;
use super::kernels::gemm::{Epilogue, Tile, TileAt};
use super::kernels::math::unary_rows;
use super::kernels::workspace::AlignedBuf;

/// A tile program with the memory of one launch.
pub(crate) struct TileRun<'a> {
    program: &'a Program,
    reads_replaced: bool,
    /// What the program is, if it is functions of what the product made, one after the other, and nothing else.
    functions: Option<SmallVec<[UnaryOp; 4]>>,
    tiles: &'a Tiles,
    params: &'a [*mut u8],
    scratch: &'a [AlignedBuf],
    isa: Isa,
}

impl<'a> TileRun<'a> {
    /// That of an epilogue which has a program; `scratch` has [`tile_scratch`] bytes for each thread.
    pub(crate) fn of<R>(
        epilogue: &'a product::Epilogue<R>,
        tiles: &'a Tiles,
        params: &'a [*mut u8],
        scratch: &'a [AlignedBuf],
        isa: Isa,
    ) -> Option<TileRun<'a>> {
        let program = epilogue.program.as_ref()?;
        Some(TileRun {
            program,
            reads_replaced: epilogue.reads_replaced,
            functions: functions(program),
            tiles,
            params,
            scratch,
            isa,
        })
    }
}

/// The functions that a program applies to each value, if it does nothing else.
fn functions(program: &Program) -> Option<SmallVec<[UnaryOp; 4]>> {
    let ([given], [result]) = (program.externals.as_slice(), program.results.as_slice()) else {
        return None;
    };
    let (mut found, mut at) = (SmallVec::new(), *given);
    for inst in &program.insts {
        match inst {
            Inst::Unary {
                dst,
                op,
                dtype: DType::F32,
                a,
            } if *a == at && !op.is_predicate() => {
                found.push(*op);
                at = *dst;
            }
            _ => return None,
        }
    }
    (at == *result && program.stores.is_empty()).then_some(found)
}

// SAFETY: addresses of buffers that outlive the launch; each tile is written by one task.
unsafe impl Sync for TileRun<'_> {}

/// Bytes of scratch that a tile program needs on each thread.
pub(crate) fn tile_scratch(program: &Program, tiles: &Tiles) -> usize {
    (tiles.space * 8).next_multiple_of(64) + program.scratch + TILE_LANES * 4
}

impl Epilogue for TileRun<'_> {
    fn reads_replaced(&self) -> bool {
        self.reads_replaced
    }

    fn apply(&self, at: &TileAt, tile: &mut Tile<'_>) {
        let space = self.tiles.space;
        let scratch = self.scratch[at.thread].as_ptr();
        let head = (space * 8).next_multiple_of(64);
        let (rows, cols, stride) = (tile.rows(), tile.cols(), tile.stride());
        if cols == 0 || rows == 0 {
            return;
        }
        if let Some(functions) = &self.functions {
            for op in functions {
                // SAFETY: the tile's own elements.
                unsafe { unary_rows(self.isa, *op, tile.as_mut_ptr(), [rows, cols, stride]) };
            }
            return;
        }
        // SAFETY: the scratch has `tile_scratch` bytes and is this thread's own while the tile is.
        let (idx, dense) = unsafe {
            let idx = std::slice::from_raw_parts_mut(scratch.cast::<i64>(), space);
            (idx, scratch.add(head + self.program.scratch).cast::<f32>())
        };
        idx.copy_from_slice(&self.tiles.positions[at.batch * space..(at.batch + 1) * space]);
        // A depthwise convolution's tile is as wide as the image has channels.
        let width = cols.min(TILE_LANES);
        for col in (0..cols).step_by(width) {
            let cols = width.min(cols - col);
            if let Some(d) = self.tiles.dims.col {
                idx[d] = (at.cols.start + col) as i64;
            }
            let step = TILE_LANES / cols;
            for row in (0..rows).step_by(step) {
                let n = step.min(rows - row);
                if let Some(d) = self.tiles.dims.row {
                    idx[d] = (at.rows.start + row) as i64;
                }
                // SAFETY: rows `row..row + n` and columns `col..col + cols` of the tile, no more than `TILE_LANES`
                // elements.
                unsafe {
                    let first = tile.as_mut_ptr().add(row * stride + col);
                    self.block(idx, dense, scratch.add(head), first, [n, cols, stride]);
                }
            }
        }
    }
}

impl TileRun<'_> {
    /// Runs the program on `rows` rows of `cols` elements from `first` on, `stride` apart.
    ///
    /// # Safety
    /// Those elements are this thread's own; `rows * cols` is at most [`TILE_LANES`], which `dense` has room for;
    /// `scratch` has what the program asks for.
    unsafe fn block(&self, idx: &[i64], dense: *mut f32, scratch: *mut u8, first: *mut f32, size: [usize; 3]) {
        let [rows, cols, stride] = size;
        // SAFETY: as the caller promises.
        unsafe {
            let lanes = if stride == cols {
                first
            } else {
                for r in 0..rows {
                    copy_lanes(first.add(r * stride), dense.add(r * cols), cols);
                }
                dense
            };
            let frame = Frame {
                isa: self.isa,
                idx,
                rows,
                cols,
                params: self.params,
                scratch,
            };
            let given = [Val {
                ptr: lanes.cast(),
                bits: 0,
            }];
            let mut out = [Val {
                ptr: std::ptr::null_mut(),
                bits: 0,
            }];
            self.program.run(&frame, &given, &mut out);
            for r in 0..rows {
                let to = first.add(r * stride);
                if self.program.is_uniform(0) {
                    (0..cols).for_each(|c| to.add(c).write(f32::from_bits(out[0].bits as u32)));
                } else {
                    copy_lanes(out[0].ptr.cast::<f32>().add(r * cols), to, cols);
                }
            }
        }
    }
}
