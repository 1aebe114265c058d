//! Convolutions with constant filters on the convolution kernel.
//!
//! The product's operands come from the facts; only the epilogue is looked at as expressions, over three merged dims:
//! image, pixel and filter.

use std::sync::Arc;

use ir::entity::Entity;
use ir::kernel::{ContractBody, ConvFacts, Stmt};
use ir::op::Layout;
use ir::types::DType;

use super::affine::{Space, collapse};
use super::block::Program;
use super::block::compile::Source;
use super::env::RunMemory;
use super::exec::{FilterKey, Piece, Prepare, count, pair, window_pads};
use super::kernels::conv::{Conv, ConvShape, ImageStrides, PackedConv, conv2d};
use super::kernels::gemm::{Activation, Batch, Builtin, Elem, Residual};
use super::rewrite::{Rewritten, store};
use super::tile::{self, TileDims, TileRun, elem, tile_scratch};
use crate::error::RuntimeError;

/// A convolution at one set of sizes.
#[derive(Debug)]
pub(crate) struct ConvExec {
    shape: ConvShape,
    input: usize,
    input_elem: Elem,
    input_strides: ImageStrides,
    filter: usize,
    weights: Arc<PackedConv>,
    output: usize,
    output_elem: Elem,
    output_base: i64,
    output_strides: ImageStrides,
    scale: f32,
    bias: Option<(usize, i64)>,
    /// Parameter, first element, and strides from pixel to pixel and image to image.
    residual: Option<(usize, i64, usize, isize)>,
    activation: Activation,
    program: Option<Program>,
    dims: TileDims,
    space: usize,
    positions: Vec<i64>,
}

/// Prepares a convolution; says no where the kernel does not take it.
///
/// # Errors
/// As for kernels of loops.
pub(crate) fn prepare(
    rewritten: &mut Rewritten,
    body: &ContractBody,
    facts: &ConvFacts,
    cx: &Prepare<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<bool, RuntimeError> {
    if let Some(exec) = direct(rewritten, body, &body.epilogue, facts, cx)? {
        pieces.push(Piece::Conv(Box::new(exec)));
        return Ok(true);
    }
    // The result in a temporary of its own layout, then the epilogue over it.
    let axes: Vec<_> = body.m.iter().chain(&body.batch).chain(&body.n).copied().collect();
    let mark = rewritten.clone();
    let (param, index) = rewritten.temporary("product", DType::F32, &axes, cx.bindings)?;
    let sum = rewritten.kernel.exprs.add(ir::kernel::Expr::Var(body.acc), DType::F32);
    let stmts = [store(param, index, sum)];
    let Some(exec) = direct(rewritten, body, &stmts, facts, cx)? else {
        *rewritten = mark;
        return Ok(false);
    };
    pieces.push(Piece::Conv(Box::new(exec)));
    let value = rewritten.load(param, index);
    let mut stmts = vec![Stmt::Let { var: body.acc, value }];
    stmts.extend(body.epilogue.iter().cloned());
    let loops = super::loops::LoopsExec::from_parts(&rewritten.kernel, &axes, &stmts, cx.bindings, cx.threads, true)?;
    pieces.push(Piece::Loops(Box::new(loops)));
    Ok(true)
}

fn direct(
    rewritten: &Rewritten,
    body: &ContractBody,
    epilogue: &[Stmt],
    facts: &ConvFacts,
    cx: &Prepare<'_>,
) -> Result<Option<ConvExec>, RuntimeError> {
    let kernel = &rewritten.kernel;
    let Some(shape) = shape(facts, cx)? else {
        return Ok(None);
    };
    let Some((id, tensor)) = cx.constant(facts.filter.index()) else {
        return Ok(None);
    };
    let Some(input_elem) = elem(kernel.params[facts.input].dtype) else {
        return Ok(None);
    };
    let mut space = Space::new(kernel, cx.bindings)?;
    let exprs: Vec<_> = epilogue
        .iter()
        .flat_map(|s| match *s {
            Stmt::Let { value, .. } | Stmt::Fold { value, .. } => vec![value],
            Stmt::Store { index, value, .. } | Stmt::Update { index, value, .. } => vec![index, value],
        })
        .collect();
    let Some(Dims {
        mut image,
        mut pixel,
        mut filter,
    }) = Dims::new(&space, body, &shape)
    else {
        return Ok(None);
    };
    let elements = kernel.params[facts.input].count(cx.bindings)?;
    let given = product(&[shape.n, shape.h, shape.w, shape.c]);
    let weights = product(&[shape.o, shape.c / shape.groups, shape.kh, shape.kw]);
    if given.is_none_or(|needed| elements < needed as i64) || weights != Some(tensor.elements()) {
        return Ok(None);
    }
    // A convolution of nothing stores nothing.
    let empty = image
        .iter()
        .chain(&pixel)
        .chain(&filter)
        .any(|d| space.extents[*d] == 0);
    space.split(&exprs, &mut [&mut image, &mut pixel, &mut filter], &[]);
    let mut roots = space.roots(&exprs);
    let mut extents = space.extents.clone();
    collapse(&mut extents, &mut [&mut image, &mut pixel, &mut filter], &mut roots);
    if image.len() > 1 || pixel.len() > 1 || filter.len() > 1 {
        return Ok(None);
    }
    let (image, dims) = (
        image.first().copied(),
        TileDims {
            row: pixel.first().copied(),
            col: filter.first().copied(),
            entries: shape.n > 1,
        },
    );
    let source = Source::new(&space, &roots, &extents, cx.bindings)?;
    let Some(taken) = tile::take(&source, epilogue, body.acc, &roots, dims)? else {
        return Ok(None);
    };
    let form = &taken.result.form;
    let (lo, hi) = form.range(&extents);
    if !empty && (lo < 0 || hi >= source.elements[taken.result.param]) {
        return Ok(None);
    }
    let step = |form: &super::affine::Affine, d: Option<usize>| d.map_or(0, |d| form.get(d)) as isize;
    let pixel_step = step(form, dims.row);
    let output_strides = ImageStrides {
        n: step(form, image),
        h: pixel_step.wrapping_mul(shape.out_w as isize),
        w: pixel_step,
        c: dims.col.map_or(1, |d| form.get(d) as isize),
    };
    let residual = taken.residual.as_ref().map(|r| {
        (
            r.param,
            r.form.base,
            step(&r.form, dims.row) as usize,
            step(&r.form, image),
        )
    });
    let input_strides = match facts.layout {
        Layout::ChannelsLast => ImageStrides::nhwc(shape.h, shape.w, shape.c),
        Layout::ChannelsFirst => ImageStrides::nchw(shape.h, shape.w, shape.c),
    };
    let winograd = !cx.direct_convolutions && shape.winograd_pays();
    let key = FilterKey {
        id,
        layout: facts.layout,
        sizes: [shape.o, shape.c / shape.groups, shape.kh, shape.kw],
        groups: shape.groups,
        winograd,
    };
    let weights = cx.pack_filters(key, || pack(cx, tensor, facts.layout, &shape, winograd));
    let total = extents.len();
    let mut positions = vec![0i64; shape.n * total];
    if let Some(d) = image {
        for n in 0..shape.n {
            positions[n * total + d] = n as i64;
        }
    }
    Ok(Some(ConvExec {
        shape,
        input: facts.input.index(),
        input_elem,
        input_strides,
        filter: facts.filter.index(),
        weights,
        output: taken.result.param,
        output_elem: taken.result.elem,
        output_base: form.base,
        output_strides,
        scale: taken.scale,
        bias: taken.bias.map(|b| (b.param, b.form.base)),
        residual,
        activation: taken.activation,
        program: taken.program,
        dims,
        space: total,
        positions,
    }))
}

/// The dims of a convolution's body: images, pixels of one, filters of all groups.
pub(crate) struct Dims {
    pub image: Vec<usize>,
    pub pixel: Vec<usize>,
    pub filter: Vec<usize>,
}

impl Dims {
    /// Tells images from pixels; `None` where the body's are not those of the shape.
    pub(crate) fn new(space: &Space<'_>, body: &ContractBody, shape: &ConvShape) -> Option<Dims> {
        // Rows are images, then pixels: the longest suffix that is one image's pixels is the latter.
        let rows = Space::dims(&body.m);
        let count = |dims: &[usize]| dims.iter().map(|d| space.extents[*d]).product::<i64>();
        let pixels = (shape.out_h * shape.out_w) as i64;
        let cut = (0..=rows.len()).find(|cut| count(&rows[*cut..]) == pixels)?;
        let mut filter: Vec<usize> = Space::dims(&body.batch);
        filter.extend(Space::dims(&body.n));
        let dims = Dims {
            image: rows[..cut].to_vec(),
            pixel: rows[cut..].to_vec(),
            filter,
        };
        // The facts restate the body; kernels read and write by the facts, so they must not say more.
        (count(&dims.image) == shape.n as i64 && count(&dims.filter) == shape.o as i64).then_some(dims)
    }
}

/// The kernel's sizes; `None` where it does not take them.
pub(crate) fn shape(facts: &ConvFacts, cx: &Prepare<'_>) -> Result<Option<ConvShape>, RuntimeError> {
    let size = |d: &ir::Dim| d.eval(cx.bindings);
    let sizes = |dims: &[ir::Dim]| dims.iter().map(size).collect::<Result<Vec<i64>, _>>();
    let (input, output) = (sizes(&facts.input_size)?, sizes(&facts.output_size)?);
    let (n, c, o) = (size(&facts.batch)?, size(&facts.channels)?, size(&facts.filters)?);
    let build = || {
        let [h, w] = pair(&input, 1)?;
        let [out_h, out_w] = pair(&output, 1)?;
        let [kh, kw] = pair(&facts.kernel_size, 1)?;
        let shape = ConvShape {
            n: count(n)?,
            h,
            w,
            c: count(c)?,
            o: count(o)?,
            kh,
            kw,
            stride: pair(&facts.window.strides, 1)?,
            pad: window_pads(&facts.window)?,
            dilation: pair(&facts.window.dilations, 1)?,
            groups: count(facts.groups)?,
            out_h,
            out_w,
        };
        let whole = shape.groups > 0 && shape.c.is_multiple_of(shape.groups) && shape.o.is_multiple_of(shape.groups);
        // The output must be what the window gives: the kernel reads no more than that of the padded image.
        let fits = |out: usize, size: usize, k: usize, s: usize, d: usize, [low, high]: [usize; 2]| {
            let wide = |v: usize| v as u128;
            let padded = wide(size) + wide(low) + wide(high);
            k > 0 && s > 0 && d > 0 && (out == 0 || wide(out - 1) * wide(s) + wide(k - 1) * wide(d) < padded)
        };
        let [top, left, bottom, right] = shape.pad;
        let fits = fits(out_h, h, kh, shape.stride[0], shape.dilation[0], [top, bottom])
            && fits(out_w, w, kw, shape.stride[1], shape.dilation[1], [left, right]);
        (whole && fits && shape.n <= MOST_IMAGES && is_near(&shape)).then_some(shape)
    };
    Ok(build())
}

/// The most images of one launch: each has its positions in a table.
const MOST_IMAGES: usize = 1 << 20;

fn product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1usize, |n, s| n.checked_mul(*s))
}

/// Says whether the image with its padding, which is copied or transformed in scratch, is about as large as the image and the
/// result are: padding may be any number.
fn is_near(s: &ConvShape) -> bool {
    let padded = |size: usize, low: usize, high: usize| size.checked_add(low)?.checked_add(high);
    let copied = || {
        let (h, w) = (padded(s.h, s.pad[0], s.pad[2])?, padded(s.w, s.pad[1], s.pad[3])?);
        product(&[s.n, h, w, s.c])
    };
    let held = || {
        let (image, result) = (
            product(&[s.n, s.h, s.w, s.c])?,
            product(&[s.n, s.out_h, s.out_w, s.c.max(s.o)])?,
        );
        image.checked_add(result)?.checked_mul(16)?.checked_add(1 << 22)
    };
    match (copied(), held()) {
        (Some(copied), Some(held)) => copied <= held,
        _ => false,
    }
}

/// Packs filters of either layout.
fn pack(cx: &Prepare<'_>, tensor: &ir::HostTensor, layout: Layout, s: &ConvShape, winograd: bool) -> PackedConv {
    let (cg, taps) = (s.c / s.groups, s.kh * s.kw);
    let values = tensor.to_f32();
    let mut dense = vec![0.0f32; s.o * cg * taps];
    match layout {
        Layout::ChannelsFirst => dense.iter_mut().zip(&values).for_each(|(d, v)| *d = *v),
        Layout::ChannelsLast => {
            for o in 0..s.o {
                for t in 0..taps {
                    for c in 0..cg {
                        if let Some(v) = values.get((o * taps + t) * cg + c) {
                            dense[(o * cg + c) * taps + t] = *v;
                        }
                    }
                }
            }
        }
    }
    if winograd {
        return PackedConv::winograd(cx.isa, &dense, s.o, cg);
    }
    PackedConv::new(cx.isa, &dense, s.o, cg, [s.kh, s.kw], s.groups)
}

impl ConvExec {
    pub(crate) fn scratch(&self) -> usize {
        self.program.as_ref().map_or(0, |p| tile_scratch(p, self.space))
    }

    pub(crate) fn packed_param(&self) -> usize {
        self.filter
    }

    /// Says whether the parameter is read as it lies.
    pub(crate) fn reads(&self, param: usize) -> bool {
        self.input == param
    }

    /// # Safety
    /// `params` are the kernel's buffers, temporaries included, at the sizes it was prepared for.
    pub(crate) unsafe fn run(&self, memory: &mut RunMemory, params: &[*mut u8]) {
        let isa = memory.workspace.isa();
        let RunMemory { workspace, threads, .. } = memory;
        let run = self.program.as_ref().map(|program| TileRun {
            program,
            dims: self.dims,
            space: self.space,
            entries: &self.positions,
            params,
            scratch: threads,
            isa,
        });
        let bias = self.bias.map(|(param, base)| {
            // SAFETY: the bias was proven to be inside its buffer for every filter.
            unsafe { std::slice::from_raw_parts(params[param].cast::<f32>().offset(base as isize), self.shape.o) }
        });
        let residual = self.residual.map(|(param, base, row_stride, image)| Residual {
            ptr: params[param].cast::<f32>().wrapping_offset(base as isize).cast_const(),
            row_stride,
            batch: Batch::Stride(image),
        });
        let size = self.output_elem.size() as isize;
        let conv = Conv {
            shape: self.shape,
            input: params[self.input],
            input_elem: self.input_elem,
            input_strides: self.input_strides,
            weights: &self.weights,
            output: params[self.output].wrapping_offset(self.output_base as isize * size),
            output_elem: self.output_elem,
            output_strides: self.output_strides,
            builtin: Builtin {
                scale: self.scale,
                bias,
                residual,
                activation: self.activation,
            },
            epilogue: run.as_ref().map(|r| r as &dyn super::kernels::gemm::Epilogue),
        };
        // SAFETY: facts are those of dense parameters; the result was proven to be inside its buffer.
        unsafe { conv2d(workspace, &conv) }
    }
}
