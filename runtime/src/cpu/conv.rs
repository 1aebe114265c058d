//! Convolutions of floats with constant filters, packed once.

use std::sync::Arc;

use ir::host::product::Conv as Form;
use ir::op::Layout;

use super::env::RunMemory;
use super::exec::{FilterKey, Prepare};
use super::kernels;
use super::kernels::conv::{Conv, PackedConv, conv2d, winograd_pays};
use super::kernels::conv_transposed::{PackedTransposed, conv_transpose2d};
use super::kernels::gemm::{Batch, Builtin, Elem, Residual};
use super::kernels::workspace::{NoRoom, ask, zeros};
use super::tile::{TileRun, tile_scratch};
use crate::error::RuntimeError;

/// A convolution with its filters.
#[derive(Debug)]
pub(crate) struct ConvExec {
    form: Form,
    weights: Filters,
}

/// Filters as the kernels read them.
#[derive(Clone, Debug)]
pub(crate) enum Filters {
    Plain(Arc<PackedConv>),
    Transposed(Arc<PackedTransposed>),
}

impl Filters {
    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Filters::Plain(packed) => packed.bytes(),
            Filters::Transposed(packed) => packed.bytes(),
        }
    }
}

/// Packs filters of either layout.
fn pack(cx: &Prepare<'_>, tensor: &ir::HostTensor, form: &Form, winograd: bool) -> Result<Filters, NoRoom> {
    let s = &form.shape;
    let taps = s.kh * s.kw;
    let rows = [s.o, s.c];
    let rows = rows[usize::from(form.transposed)];
    ask(tensor.elements().saturating_mul(size_of::<f32>()))?;
    let values = tensor.to_f32();
    let across = values.len() / (rows * taps).max(1);
    let dense = match form.layout {
        Layout::ChannelsFirst => values,
        Layout::ChannelsLast => channels_first(&values, [rows, taps, across])?,
    };
    let cg = s.c / s.groups;
    if form.transposed {
        return Ok(Filters::Transposed(Arc::new(PackedTransposed::new(cx.isa, &dense, s)?)));
    }
    Ok(Filters::Plain(Arc::new(match winograd {
        true => PackedConv::winograd(cx.isa, &dense, s.o, cg)?,
        false => PackedConv::new(cx.isa, &dense, s.o, cg, [s.kh, s.kw], s.groups)?,
    })))
}

/// `[row][tap][channel]` as `[row][channel][tap]`.
fn channels_first(values: &[f32], [rows, taps, channels]: [usize; 3]) -> Result<Vec<f32>, NoRoom> {
    let mut dense = zeros(rows * channels * taps)?;
    for row in 0..rows {
        for tap in 0..taps {
            for channel in 0..channels {
                if let Some(v) = values.get((row * taps + tap) * channels + channel) {
                    dense[(row * channels + channel) * taps + tap] = *v;
                }
            }
        }
    }
    Ok(dense)
}

impl ConvExec {
    /// Packs a convolution's filters.
    ///
    /// # Errors
    /// Filters that are said to be constant and are not, or more of them than there is memory for.
    pub(crate) fn new(form: Form, cx: &Prepare<'_>) -> Result<ConvExec, RuntimeError> {
        let (id, tensor) = cx.given(form.filter)?;
        let shape = &form.shape;
        let winograd = !cx.direct_convolutions && !form.transposed && winograd_pays(shape);
        let key = FilterKey {
            id,
            layout: form.layout,
            sizes: [shape.o, shape.c / shape.groups, shape.kh, shape.kw],
            groups: shape.groups,
            winograd,
            transposed: form.transposed.then_some([shape.stride, shape.dilation]),
        };
        let weights = cx.pack_filters(key, || pack(cx, tensor, &form, winograd))?;
        Ok(ConvExec { form, weights })
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
        let Form { epilogue, tiles, .. } = &self.form;
        let run = TileRun::of(epilogue, tiles, params, threads, isa);
        let bias = epilogue.bias.map(|(param, base)| {
            // SAFETY: the bias was proven to be inside its buffer for every filter.
            unsafe { std::slice::from_raw_parts(params[param].cast::<f32>().offset(base as isize), self.form.shape.o) }
        });
        let residual = epilogue.residual.map(|r| Residual {
            ptr: params[r.param]
                .cast::<f32>()
                .wrapping_offset(r.base as isize)
                .cast_const()
                .cast(),
            elem: Elem::F32,
            row_stride: r.pixel,
            batch: Batch::Stride(r.image),
        });
        let size = self.form.output_elem.size() as isize;
        let conv = Conv {
            shape: self.form.shape,
            input: params[self.form.input],
            input_elem: self.form.input_elem,
            input_strides: self.form.input_strides,
            weights: match &self.weights {
                Filters::Plain(packed) => packed,
                Filters::Transposed(packed) => packed.any(),
            },
            output: params[self.form.output].wrapping_offset(self.form.output_base as isize * size),
            output_elem: self.form.output_elem,
            output_strides: self.form.output_strides,
            output_group: Some(self.form.output_group),
            builtin: Builtin {
                scale: epilogue.scale,
                bias,
                residual,
                activation: epilogue.activation,
            },
            epilogue: run.as_ref().map(|r| r as &dyn kernels::gemm::Epilogue),
        };
        // SAFETY: facts are those of dense parameters; the result was proven to be inside its buffer.
        unsafe {
            match &self.weights {
                Filters::Plain(_) => conv2d(workspace, &conv),
                Filters::Transposed(packed) => conv_transpose2d(workspace, &conv, packed),
            }
        }
    }
}
