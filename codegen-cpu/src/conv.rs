//! Convolutions with constant filters on the convolution kernel.
//!
//! The product's operands come from the facts; only the epilogue is looked at as expressions, over three merged dims:
//! image, pixel and filter.

use ir::entity::Entity;
use ir::host::product::{Conv, ConvShape, Elem, Epilogue, ImageStrides, PixelRows, TileDims, Tiles};
use ir::host::{Affine, LowerError, Piece, Setting};
use ir::kernel::{ContractBody, ConvFacts, Expr, ExprId, Kernel, Stmt};
use ir::op::{Layout, Window};
use ir::types::DType;

use crate::affine::{Roots, Space, collapse, reachable};
use crate::block::compile::Source;
use crate::loops;
use crate::rewrite::{Rewritten, store};
use crate::stages::epilogue_exprs;
use crate::tile;

/// Lowers a convolution; says no where the kernel does not take it.
///
/// # Errors
/// As for kernels of loops.
pub(crate) fn lower(
    rewritten: &mut Rewritten,
    body: &ContractBody,
    facts: &ConvFacts,
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<bool, LowerError> {
    if let Some(exec) = direct(rewritten, body, &body.epilogue, facts, cx)? {
        pieces.push(Piece::Conv(Box::new(exec)));
        return Ok(true);
    }
    // The result in a temporary of its own layout, then the epilogue over it.
    let axes: Vec<_> = body.m.iter().chain(&body.batch).chain(&body.n).copied().collect();
    let mark = rewritten.clone();
    let (param, index) = rewritten.temporary("product", DType::F32, &axes, cx.bindings)?;
    let sum = rewritten.kernel.exprs.add(Expr::Var(body.acc), DType::F32);
    let stmts = [store(param, index, sum)];
    let Some(exec) = direct(rewritten, body, &stmts, facts, cx)? else {
        *rewritten = mark;
        return Ok(false);
    };
    pieces.push(Piece::Conv(Box::new(exec)));
    let value = rewritten.load(param, index);
    let mut stmts = vec![Stmt::Let { var: body.acc, value }];
    stmts.extend(body.epilogue.iter().cloned());
    pieces.push(loops::piece(&rewritten.kernel, &axes, &stmts, cx.bindings, true)?);
    Ok(true)
}

fn direct(
    rewritten: &Rewritten,
    body: &ContractBody,
    epilogue: &[Stmt],
    facts: &ConvFacts,
    cx: &Setting<'_>,
) -> Result<Option<Conv>, LowerError> {
    let kernel = &rewritten.kernel;
    let Some(shape) = shape(facts, cx)? else {
        return Ok(None);
    };
    let Some((_, tensor)) = cx.constant(facts.filter.index()) else {
        return Ok(None);
    };
    let Some(input_elem) = Elem::of(kernel.params[facts.input].dtype) else {
        return Ok(None);
    };
    let mut space = Space::new(kernel, cx.bindings)?;
    let exprs = epilogue_exprs(epilogue);
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
    if image.len() > 1 || pixel.len() > 1 {
        return Ok(None);
    }
    let apart = store_apart(kernel, epilogue, &shape, &extents, &filter, &mut roots);
    if apart.is_some() {
        collapse(&mut extents, &mut [&mut image, &mut pixel, &mut filter], &mut roots);
    }
    if filter.len() > 1 {
        return Ok(None);
    }
    if let Some(apart) = &apart {
        // The places of the first group's filters stand for all.
        let mut first = apart.form.clone();
        first.set(apart.group, 0);
        if let Some(merged) = filter.first() {
            first.set(apart.filter, 0);
            first.set(*merged, apart.form.get(apart.filter));
        }
        roots.insert(apart.index, first);
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
    let Some(taken) = tile::take(&source, epilogue, body.acc, &roots, dims, &[Elem::F32])? else {
        return Ok(None);
    };
    // Pixels of a transposed convolution are computed phase by phase, and do not follow one another.
    if facts.transposed && (taken.residual.is_some() || taken.program.is_some()) {
        return Ok(None);
    }
    let form = &taken.result.form;
    let (lo, hi) = match &apart {
        Some(apart) => apart.range,
        None => form.range(&extents),
    };
    if !empty && (lo < 0 || hi >= source.elements[taken.result.param]) {
        return Ok(None);
    }
    let step = |form: &Affine, d: Option<usize>| d.map_or(0, |d| form.get(d)) as isize;
    let pixel_step = step(form, dims.row);
    let output_strides = ImageStrides {
        n: step(form, image),
        h: pixel_step.wrapping_mul(shape.out_w as isize),
        w: pixel_step,
        c: dims.col.map_or(1, |d| form.get(d) as isize),
    };
    let output_group = match &apart {
        Some(apart) => apart.form.get(apart.group) as isize,
        None => output_strides.c.wrapping_mul((shape.o / shape.groups) as isize),
    };
    let residual = taken.residual.as_ref().map(|r| PixelRows {
        param: r.param,
        base: r.form.base,
        pixel: step(&r.form, dims.row) as usize,
        image: step(&r.form, image),
    });
    let input_strides = match facts.layout {
        Layout::ChannelsLast => ImageStrides::nhwc(shape.h, shape.w, shape.c),
        Layout::ChannelsFirst => ImageStrides::nchw(shape.h, shape.w, shape.c),
    };
    let total = extents.len();
    let mut positions = vec![0i64; shape.n * total];
    if let Some(d) = image {
        for n in 0..shape.n {
            positions[n * total + d] = n as i64;
        }
    }
    Ok(Some(Conv {
        shape,
        input: facts.input.index(),
        input_elem,
        input_strides,
        filter: facts.filter.index(),
        layout: facts.layout,
        transposed: facts.transposed,
        output: taken.result.param,
        output_elem: taken.result.elem,
        output_base: form.base,
        output_strides,
        output_group,
        epilogue: Epilogue {
            scale: taken.scale,
            bias: taken.bias.map(|b| (b.param, b.form.base)),
            residual,
            activation: taken.activation,
            program: taken.program,
            reads_replaced: taken.reads_replaced,
        },
        tiles: Tiles {
            dims,
            space: total,
            positions,
        },
    }))
}

/// A store that alone tells groups from their filters: shuffled channels.
struct Apart {
    index: ExprId,
    form: Affine,
    /// The least and the largest place.
    range: (i64, i64),
    group: usize,
    filter: usize,
}

/// Takes the place of the only store out of `roots` where it is all that keeps the dims of groups and of their filters
/// from being one.
fn store_apart(
    kernel: &Kernel,
    epilogue: &[Stmt],
    shape: &ConvShape,
    extents: &[i64],
    filters: &[usize],
    roots: &mut Roots,
) -> Option<Apart> {
    let [group, filter] = *filters else { return None };
    let sizes = [shape.groups, shape.o / shape.groups];
    if sizes.map(|size| size as i64) != [extents[group], extents[filter]] {
        return None;
    }
    let [Stmt::Store { index, .. }] = *epilogue else {
        return None;
    };
    let mut is_read = false;
    for e in reachable(kernel, &epilogue_exprs(epilogue)) {
        kernel.exprs[e].for_each_operand(|o| is_read |= o == index);
    }
    if is_read {
        return None;
    }
    let form = roots.shift_remove(&index)?;
    Some(Apart {
        index,
        range: form.range(extents),
        form,
        group,
        filter,
    })
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
pub(crate) fn shape(facts: &ConvFacts, cx: &Setting<'_>) -> Result<Option<ConvShape>, LowerError> {
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
        if facts.transposed {
            return (whole && shape.n <= MOST_IMAGES && has_phases(&shape)).then_some(shape);
        }
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

/// Says whether a transposed convolution is one that its phases serve: few of them, of a window that is not beyond what
/// the output is made of.
fn has_phases(s: &ConvShape) -> bool {
    const MOST_PHASES: usize = 1 << 10;
    const LONGEST: usize = 1 << 20;
    let sizes = [s.kh, s.kw, s.stride[0], s.stride[1], s.dilation[0], s.dilation[1]];
    let small = sizes.iter().all(|v| (1..=LONGEST).contains(v)) && s.pad.iter().all(|v| *v <= LONGEST);
    let result = product(&[s.n, s.out_h, s.out_w, s.c.max(s.o)]);
    let image = product(&[s.n, s.h, s.w, s.c]);
    // A phase's image is padded to the size of its outputs and the window around them.
    let reach = |k: usize, d: usize, out: usize| k.checked_mul(d).is_some_and(|reach| reach <= out.saturating_add(64));
    small
        && s.stride[0] * s.stride[1] <= MOST_PHASES
        && result.is_some()
        && image.is_some()
        && reach(s.kh, s.dilation[0], s.out_h.saturating_add(s.pad[0]))
        && reach(s.kw, s.dilation[1], s.out_w.saturating_add(s.pad[1]))
}

/// The most images of one launch: each has its positions in a table.
const MOST_IMAGES: usize = 1 << 20;

fn product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1usize, |n, s| n.checked_mul(*s))
}

/// Says whether the image with its padding, which is copied or transformed in scratch, is about as large as the image
/// and the result are: padding may be any number.
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

/// A window's size that fits a kernel's sizes.
fn count(v: i64) -> Option<usize> {
    usize::try_from(v).ok()
}

/// Two entries of a window, the first of which is 1 (or 0) for one spatial dim.
fn pair(values: &[i64], fill: i64) -> Option<[usize; 2]> {
    match *values {
        [x] => Some([count(fill)?, count(x)?]),
        [y, x] => Some([count(y)?, count(x)?]),
        _ => None,
    }
}

/// Says whether a window is one that the image kernels take: one or two dims, nothing negative.
fn window_pads(window: &Window) -> Option<[usize; 4]> {
    let low = pair(&window.pad_low, 0)?;
    let high = pair(&window.pad_high, 0)?;
    Some([low[0], low[1], high[0], high[1]])
}
