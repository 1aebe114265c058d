//! Block programs behind products and convolutions of floats: they run on each finished tile, in cache.

use ir::DType;
use ir::host::block::{Addr, Inst, Program, Reg};
use ir::host::product::{self, TILE_LANES, Tiles};
use ir::op::{BinaryOp, UnaryOp};
use smallvec::SmallVec;

use super::block::{Frame, RunBlock, Val, copy_lanes};
use super::kernels::Isa;
use super::kernels::gemm::{Epilogue, Tile, TileAt};
use super::kernels::math::{Input, binary_ptr, unary_rows};
use super::kernels::workspace::AlignedBuf;

/// A tile program with the memory of one launch.
pub(crate) struct TileRun<'a> {
    program: &'a Program,
    reads_replaced: bool,
    /// What the program is, if it is such steps from what the product made, one after the other, and nothing else.
    steps: Option<SmallVec<[Step<'a>; 4]>>,
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
            steps: steps(program),
            tiles,
            params,
            scratch,
            isa,
        })
    }
}

/// A step that works on a tile's rows where they are.
enum Step<'a> {
    Function(UnaryOp),
    /// With rows of another operand, which is the left one where they are `swapped`.
    Rows {
        op: BinaryOp,
        param: usize,
        addr: &'a Addr,
        swapped: bool,
    },
}

/// The steps that a program is, if it is nothing else.
fn steps(program: &Program) -> Option<SmallVec<[Step<'_>; 4]>> {
    let ([given], [result]) = (program.externals.as_slice(), program.results.as_slice()) else {
        return None;
    };
    let (mut found, mut at) = (SmallVec::new(), *given);
    let mut loads: SmallVec<[(Reg, usize, &Addr); 4]> = SmallVec::new();
    for inst in &program.insts {
        match inst {
            Inst::Load {
                dst,
                param,
                dtype: DType::F32,
                addr,
            } if addr.col == 1 && addr.dynamic.is_none() && addr.tables.is_empty() && !addr.check => {
                loads.push((*dst, *param, addr));
            }
            Inst::Unary {
                dst,
                op,
                dtype: DType::F32,
                a,
            } if *a == at && !op.is_predicate() => {
                found.push(Step::Function(*op));
                at = *dst;
            }
            Inst::Binary {
                dst,
                op: op @ (BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul),
                dtype: DType::F32,
                a,
                b,
            } if (*a == at) != (*b == at) => {
                let swapped = *b == at;
                let other = if swapped { *a } else { *b };
                let (_, param, addr) = *loads.iter().find(|(reg, ..)| *reg == other)?;
                found.push(Step::Rows {
                    op: *op,
                    param,
                    addr,
                    swapped,
                });
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
        // SAFETY: the scratch has `tile_scratch` bytes and is this thread's own while the tile is.
        let (idx, dense) = unsafe {
            let idx = std::slice::from_raw_parts_mut(scratch.cast::<i64>(), space);
            (idx, scratch.add(head + self.program.scratch).cast::<f32>())
        };
        idx.copy_from_slice(&self.tiles.positions[at.batch * space..(at.batch + 1) * space]);
        if let Some(steps) = &self.steps {
            let dims = self.tiles.dims;
            for (dim, start) in [(dims.row, at.rows.start), (dims.col, at.cols.start)] {
                if let Some(dim) = dim {
                    idx[dim] = start as i64;
                }
            }
            for step in steps {
                // SAFETY: the tile's own elements.
                unsafe { self.step(step, idx, tile.as_mut_ptr(), [rows, cols, stride]) };
            }
            return;
        }
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
    /// Applies a step to `rows` rows of `cols` elements from `first` on, `stride` apart.
    ///
    /// # Safety
    /// Those elements are this thread's own, and `idx` is where the first is.
    unsafe fn step(&self, step: &Step<'_>, idx: &[i64], first: *mut f32, [rows, cols, stride]: [usize; 3]) {
        match step {
            // SAFETY: as the caller promises.
            Step::Function(op) => unsafe { unary_rows(self.isa, *op, first, [rows, cols, stride]) },
            Step::Rows {
                op,
                param,
                addr,
                swapped,
            } => {
                let other = self.params[*param].cast::<f32>().cast_const();
                for row in 0..rows {
                    // SAFETY: as the caller promises; the operand was shown to be inside at every point.
                    unsafe {
                        let to = first.add(row * stride);
                        let at = addr.form.at(idx) + addr.row * row as i64;
                        let other = Input::Array(other.offset(at as isize));
                        let own = Input::Array(to.cast_const());
                        let (a, b) = if *swapped { (other, own) } else { (own, other) };
                        binary_ptr(self.isa, *op, to.cast(), a, b, cols);
                    }
                }
            }
        }
    }

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
