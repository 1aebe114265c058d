//! Matrix products of floats: constants packed once, the rest read as it lies.

use std::sync::Arc;

use ir::host::product::{Chosen, Gemm as Form, Matrix, Right};

use super::env::RunMemory;
use super::exec::Prepare;
use super::kernels;
use super::kernels::gemm::{
    Batch, Builtin, Gemm, MatMut, MatRef, PackedB, QuantisedB, Residual, Rhs, gemm, gemm_chosen,
};
use super::tile::{TileRun, tile_scratch};
use crate::error::RuntimeError;

/// A matrix product with its weights.
#[derive(Debug)]
pub(crate) struct GemmExec {
    form: Form,
    right: Packed,
}

/// What is packed of the right operand.
#[derive(Debug)]
enum Packed {
    Not,
    Floats(Arc<PackedB>),
    Quantised(Arc<QuantisedB>),
}

fn batch(matrix: &Matrix) -> Batch<'_> {
    if matrix.table.is_empty() {
        Batch::Stride(0)
    } else {
        Batch::Table(&matrix.table)
    }
}

fn start(matrix: &Matrix, params: &[*mut u8]) -> *mut u8 {
    params[matrix.param].wrapping_offset(matrix.base as isize * matrix.elem.size() as isize)
}

fn read<'a>(matrix: &'a Matrix, params: &[*mut u8]) -> MatRef<'a> {
    MatRef {
        ptr: start(matrix, params),
        elem: matrix.elem,
        row_stride: matrix.row as isize,
        col_stride: matrix.col as isize,
        batch: batch(matrix),
    }
}

impl GemmExec {
    /// Packs a product's constants.
    ///
    /// # Errors
    /// A right operand that is said to be a constant and is none.
    pub(crate) fn new(form: Form, cx: &Prepare<'_>) -> Result<GemmExec, RuntimeError> {
        let right = match &form.right {
            Right::Plain => Packed::Not,
            Right::Packed(table) => Packed::Floats(cx.pack(&form.b, table, [form.k, form.n])?),
            Right::Quantised(matrix) => {
                let columns = form.n * form.chosen.as_ref().map_or(1, |chosen| chosen.count);
                Packed::Quantised(cx.pack_quantised(form.b.param, matrix, [form.k, columns])?)
            }
        };
        Ok(GemmExec { form, right })
    }

    pub(crate) fn scratch(&self) -> usize {
        let program = self.form.epilogue.program.as_ref();
        program.map_or(0, |p| tile_scratch(p, &self.form.tiles))
    }

    /// # Safety
    /// `params` are the kernel's buffers, temporaries included, at the sizes it was prepared for.
    pub(crate) unsafe fn run(&self, memory: &mut RunMemory, params: &[*mut u8]) {
        let isa = memory.workspace.isa();
        let RunMemory { workspace, threads, .. } = memory;
        let Form { epilogue, tiles, c, .. } = &self.form;
        let run = TileRun::of(epilogue, tiles, params, threads, isa);
        let bias = epilogue.bias.map(|(param, base)| {
            // SAFETY: the bias was proven to be inside its buffer for every column.
            unsafe { std::slice::from_raw_parts(params[param].cast::<f32>().offset(base as isize), self.form.n) }
        });
        let residual = epilogue.residual.as_ref().map(|r| Residual {
            ptr: start(r, params).cast_const(),
            elem: r.elem,
            row_stride: r.row as usize,
            batch: batch(r),
        });
        let c = MatMut {
            ptr: start(c, params),
            elem: c.elem,
            row_stride: c.row as isize,
            col_stride: c.col as isize,
            batch: batch(c),
        };
        let product = Gemm {
            batch: self.form.entries,
            m: self.form.m,
            n: self.form.n,
            k: self.form.k,
            a: read(&self.form.a, params),
            b: match &self.right {
                Packed::Quantised(quantised) => Rhs::Quantised(quantised),
                Packed::Floats(packed) => Rhs::Packed(packed),
                Packed::Not => Rhs::Strided(match &self.form.chosen {
                    Some(chosen) => MatRef {
                        batch: Batch::Stride(chosen.step as isize),
                        ..read(&self.form.b, params)
                    },
                    None => read(&self.form.b, params),
                }),
            },
            c,
            builtin: Builtin {
                scale: epilogue.scale,
                bias,
                residual,
                activation: epilogue.activation,
            },
            epilogue: run.as_ref().map(|r| r as &dyn kernels::gemm::Epilogue),
        };
        // SAFETY: operands were proven to be inside their buffers, whichever matrix is chosen; the plan keeps the
        // result apart from the operands. Numbers were written before, one for each entry.
        unsafe {
            match &self.form.chosen {
                Some(Chosen { param, at, count, .. }) => {
                    let numbers = params[*param].cast::<i64>();
                    let last = count.saturating_sub(1);
                    let number = |at: &usize| usize::try_from(*numbers.add(*at)).unwrap_or(0).min(last);
                    let matrices: Vec<usize> = at.iter().map(number).collect();
                    gemm_chosen(workspace, &product, &matrices);
                }
                None => gemm(workspace, &product),
            }
        }
    }
}
