//! A convolution by Winograd's minimal filtering, in three launches.
//!
//! ```text
//! relu(conv(x, w) + b)  =  patches: V[ξ, tile, c] = Bᵀ d B of each patch d of x      (6x6 pixels, which overlap by 2)
//!                          product: M[ξ, tile, k] = V[ξ] · U[ξ]                      (36 products; U = G w Gᵀ, of constants)
//!                          pixels:  relu(Aᵀ m A + b) for each m of M                 (4x4 pixels)
//! ```
//!
//! Before: a region whose anchor is a 3x3 convolution of stride 1 by constant filters, in `f32`, channels last, of
//! known sizes. After: two kernels that transform, with `V` and `M` in scratch memory of the plan, and a batched
//! product between them, which is lowered as any other product is. F(4x4, 3x3) takes a quarter of the multiplications
//! (Lavin and Gray, 2015). What it costs is memory: each element of the image becomes 36/16 of `V`, and of the result
//! of `M`, which are written and read. In `f16` and `bf16` matrix units multiply so fast that this never pays, and the
//! transform would lose bits that those types do not have.
//!
//! Which is done is decided here, by the predicted time of the three launches and of the one.

use ir::graph::Stage;
use ir::kernel::{Body, Expr, ExprId, Kernel, ParamId, Stmt, TransformBody, TransformMatrix, TransformSide, Winograd};
use ir::op::{BinaryOp, Contract, Conv, Layout};
use ir::schedule::{Region, RegionKind};
use ir::{DType, Dim, Entity, Graph, HostTensor, Op, Shape, Target, TensorType, Value};
use rayon::prelude::*;

use super::builder::{Builder, Share};
use super::contract::biased;
use super::index::{Atom, Linear, linearize};
use super::{LowerError, mapping, moved_us, share_of};
use crate::fuse::ScheduleOptions;

/// The name by which it can be left out, as rules can: `--disable winograd`.
pub const RULE: &str = "winograd";

/// Which convolutions are computed by Winograd's filtering.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Filtering {
    Never,
    /// Those that are predicted to be faster so.
    #[default]
    Fastest,
    /// All that can be, by this algorithm.
    Always(Winograd),
}

/// The launches of a convolution by Winograd's filtering, and what is between them.
pub struct Filtered {
    pub winograd: Winograd,
    /// Reads the region's inputs, as its parameters are named; writes the patches.
    pub patches: Kernel,
    /// Reads the patches and the filters; writes the sums.
    pub product: Kernel,
    /// Reads the region's inputs and the sums; writes the region's outputs.
    pub pixels: Kernel,
    /// The transformed patches, `[ξ, tile, channel]`.
    pub taken: TensorType,
    /// The transformed filters, `[ξ, channel, filter]`.
    pub filters: TensorType,
    /// The products' sums, `[ξ, tile, filter]`.
    pub sums: TensorType,
    /// The convolution's filters, which are a constant.
    pub filter: Value,
    /// What the three launches and the direct kernel are predicted to take, in microseconds.
    pub predicted: Predicted,
}

/// Predicted microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Predicted {
    pub patches: f64,
    pub product: f64,
    pub pixels: f64,
    /// What two more launches take.
    pub launches: f64,
    /// The kernel, or its parts, that sums over the window.
    pub direct: f64,
}

impl Predicted {
    /// Returns what the three launches take.
    pub fn filtered(&self) -> f64 {
        self.patches + self.product + self.pixels + self.launches
    }

    fn pays(&self) -> bool {
        self.filtered() < WORTH * self.direct
    }
}

/// What a convolution becomes that can be computed by Winograd's filtering.
pub enum Choice {
    Filtered(Box<Filtered>),
    /// Its kernel stays, which is predicted to take about as long as the best of the algorithms, or less.
    Direct(Winograd, Predicted),
}

/// The share of the direct kernel's time that the three launches may be predicted to take: what wins by less may lose.
const WORTH: f64 = 0.9;

/// Lowers a convolution to three launches, where that is predicted to take less time than its kernel, `direct`. `None`
/// where the region is nothing that can be computed so, or has too few channels to be looked at.
///
/// # Errors
/// As [`super::lower`].
pub fn choose(
    graph: &Graph,
    region: &Region,
    direct: &Kernel,
    filtering: Filtering,
    target: &Target,
) -> Result<Option<Choice>, LowerError> {
    let candidates: &[Winograd] = match &filtering {
        Filtering::Never => return Ok(None),
        Filtering::Fastest => &Winograd::ALL,
        Filtering::Always(winograd) => std::slice::from_ref(winograd),
    };
    let Some(image) = Image::of(graph, region, direct, target) else {
        return Ok(None);
    };
    let fastest = filtering == Filtering::Fastest;
    if fastest && !image.may_pay() {
        return Ok(None);
    }
    let mut best: Option<Filtered> = None;
    for winograd in candidates {
        let Some(made) = image.by(graph, region, *winograd, direct, target)? else {
            continue;
        };
        let us = made.predicted.filtered();
        if best.as_ref().is_none_or(|best| us < best.predicted.filtered()) {
            best = Some(made);
        }
    }
    Ok(best.map(|best| match best.predicted.pays() || !fastest {
        true => Choice::Filtered(Box::new(best)),
        false => Choice::Direct(best.winograd, best.predicted),
    }))
}

/// Filters and channels that are transformed together: a line of the memory that is written, and lines that stay in a
/// core's cache.
const TOGETHER: [usize; 2] = [16, 64];

/// Transforms filters `[filter, 3, 3, channel]` to `[ξ, channel, filter]`, in `f64`; they are rounded once.
pub fn transform_filters(winograd: Winograd, filters: &HostTensor) -> Option<HostTensor> {
    let &[count, 3, 3, channels] = &filters.shape[..] else {
        return None;
    };
    let (weights, rows) = (filters.to_f32(), winograd.filter());
    let products = winograd.products() as usize;
    let mut out = vec![0.0f32; products * channels * count];
    let [some_filters, some_channels] = TOGETHER;
    out.par_chunks_mut((channels * count).max(1))
        .enumerate()
        .for_each(|(xi, out)| {
            // An element of G w Gᵀ is a sum over the taps.
            let [down, across] = [xi / winograd.inputs() as usize, xi % winograd.inputs() as usize];
            let factors: [f64; 9] = std::array::from_fn(|tap| rows[3 * down + tap / 3] * rows[3 * across + tap % 3]);
            for channel0 in (0..channels).step_by(some_channels) {
                for filter0 in (0..count).step_by(some_filters) {
                    for filter in filter0..count.min(filter0 + some_filters) {
                        for channel in channel0..channels.min(channel0 + some_channels) {
                            let taps = weights[filter * 9 * channels + channel..].iter().step_by(channels);
                            let products = factors.iter().zip(taps).map(|(factor, tap)| factor * f64::from(*tap));
                            out[channel * count + filter] = products.sum::<f64>() as f32;
                        }
                    }
                }
            }
        });
    HostTensor::from_f32([products, channels, count], &out).ok()
}

/// The sizes of a convolution that can be computed so.
struct Image {
    images: i64,
    /// Of the result.
    height: i64,
    width: i64,
    channels: i64,
    filters: i64,
    filter: Value,
}

impl Image {
    /// Reads a region as such a convolution.
    fn of(graph: &Graph, region: &Region, direct: &Kernel, target: &Target) -> Option<Image> {
        let node = graph.node(region.anchor);
        let Op::Conv(conv) = &node.op else { return None };
        let [input, filter] = [*node.operands.first()?, *node.operands.get(1)?];
        let sizes = |value: Value| -> Option<Vec<i64>> { graph.ty(value).shape.iter().map(Dim::as_const).collect() };
        let ones = |of: &[i64]| of == [1, 1];
        let is_plain = target.is_gpu()
            && region.kind == RegionKind::Conv
            && direct.symbols.is_empty()
            && conv.layout == Layout::ChannelsLast
            && conv.transposed.is_none()
            && conv.groups == 1
            && conv.pad_value == 0
            && ones(&conv.window.strides)
            && ones(&conv.window.dilations);
        // Each a sum in `f32`: a narrower type has its own instructions and too few bits, a wider one too many.
        let is_f32 = [input, filter].iter().all(|v| graph.ty(*v).dtype == DType::F32);
        let is_constant = matches!(graph.node(filter.node).op, Op::Constant(_)) && region.inputs.contains(&filter);
        if !is_plain || !is_f32 || !is_constant {
            return None;
        }
        let (&[images, height, width, filters], &[_, 3, 3, channels]) =
            (&sizes(region.anchor.into())?[..], &sizes(filter)?[..])
        else {
            return None;
        };
        let all = [images, height, width, channels, filters];
        all.iter().all(|size| *size > 0).then_some(Image {
            images,
            height,
            width,
            channels,
            filters,
            filter,
        })
    }

    /// Says whether there are channels enough on both sides: a patch is transformed once for each of them, and its
    /// products are what is saved.
    fn may_pay(&self) -> bool {
        self.channels.min(self.filters) >= LEAST_CHANNELS
    }

    /// Patches along both axes.
    fn tiles(&self, winograd: Winograd) -> [i64; 2] {
        [self.height, self.width].map(|size| (size + winograd.outputs() - 1) / winograd.outputs())
    }

    /// Lowers the three launches.
    fn by(
        &self,
        graph: &Graph,
        region: &Region,
        winograd: Winograd,
        direct: &Kernel,
        target: &Target,
    ) -> Result<Option<Filtered>, LowerError> {
        let [down, across] = self.tiles(winograd);
        let tiles = self.images * down * across;
        let products = winograd.products();
        let ty = |dims: [i64; 3]| TensorType::new(DType::F32, Shape(dims.map(Dim::Const).to_vec()));
        let taken = ty([products, tiles, self.channels]);
        let filters = ty([products, self.channels, self.filters]);
        let sums = ty([products, tiles, self.filters]);
        let Some(product) = product(&taken, &filters, region, graph, target)? else {
            return Ok(None);
        };
        let symbols = graph.symbols();
        let pixels_of = |channels: i64| (4 * self.images * self.height * self.width * channels) as f64;
        let squares_of = |channels: i64| (4 * products * tiles * channels) as f64;
        let (of_image, of_result) = (squares_of(self.channels), squares_of(self.filters));
        if of_image + of_result > MOST_SCRATCH {
            return Ok(None);
        }
        let of_filters = (4 * products * self.channels * self.filters) as f64;
        let Some(of_product) = mapping::product_us(&product, symbols, target) else {
            return Ok(None);
        };
        let Some(of_direct) = mapping::product_us(direct, symbols, target) else {
            return Ok(None);
        };
        let in_parts = mapping::saved_by_parts(direct, symbols, target, mapping::Second::Own);
        let predicted = Predicted {
            patches: moved_us(target, pixels_of(self.channels) + of_image),
            product: of_product.max(moved_us(target, of_image + of_filters + of_result)),
            pixels: moved_us(target, of_result + pixels_of(self.filters)),
            launches: 2.0 * mapping::second_launch_us(target),
            direct: of_direct - in_parts,
        };
        Ok(Some(Filtered {
            winograd,
            patches: share_of(graph, region, target, Share::Patches(winograd))?,
            product,
            pixels: share_of(graph, region, target, Share::Pixels(winograd))?,
            taken,
            filters,
            sums,
            filter: self.filter,
            predicted,
        }))
    }
}

/// Bytes of scratch memory that a convolution may take: more than that is no small part of a GPU's memory.
const MOST_SCRATCH: f64 = (1u64 << 30) as f64;

/// Channels on each side from which on the filtering is looked at.
const LEAST_CHANNELS: i64 = 64;

/// Lowers the batch of products, which is a graph of its own.
fn product(
    taken: &TensorType,
    filters: &TensorType,
    region: &Region,
    graph: &Graph,
    target: &Target,
) -> Result<Option<Kernel>, LowerError> {
    let origin = || graph.node(region.anchor).origin.clone();
    let mut alone = Graph::new("filtered");
    alone.stage = Stage::Core;
    let v = alone.add_input("patches", taken.clone(), origin());
    let u = alone.add_input("filters", filters.clone(), origin());
    let contract = Op::Contract(Contract {
        transpose_lhs: false,
        transpose_rhs: false,
        out: DType::F32,
    });
    let Ok(node) = alone.add(contract, &[v, u], origin()) else {
        return Ok(None);
    };
    alone.add_output("sums", node.into());
    let (schedule, _) = crate::fuse::fuse(&alone, target, &ScheduleOptions::default());
    let [one] = schedule.regions.values().collect::<Vec<_>>()[..] else {
        return Ok(None);
    };
    let mut kernel = super::lower(&alone, one, target)?;
    kernel.name = "conv_products".to_owned();
    kernel.origins = vec![crate::fuse::classify::label(graph, region.anchor)];
    Ok(Some(kernel))
}

/// Where a patch is: the axes of images, of patches down and across, and of channels, and their coordinates.
fn squares(
    b: &mut Builder<'_>,
    winograd: Winograd,
    channels: &Dim,
) -> (Vec<ir::kernel::AxisId>, Vec<Linear>, [Dim; 2]) {
    let out = b.shape(b.region.anchor.into()).clone();
    let size = Dim::Const(winograd.outputs());
    let tiles = [out[1].ceil_div(&size), out[2].ceil_div(&size)];
    let dims = [out[0].clone(), tiles[0].clone(), tiles[1].clone(), channels.clone()];
    let (axes, at) = b.iterate(&["image", "down", "across", "channel"], &dims);
    (axes, at, tiles)
}

/// The row and the column of a square: never joined, and there also where the square is one element.
fn square(b: &mut Builder<'_>, names: [&str; 2], extent: i64) -> Option<([ir::kernel::AxisId; 2], [Linear; 2])> {
    let [row, column] = names.map(|name| {
        let (axes, at) = b.iterate(&[name], &[Dim::Const(extent)]);
        Some((*axes.first()?, at.into_iter().next()?))
    });
    let ((row, row_at), (column, column_at)) = (row?, column?);
    Some(([row, column], [row_at, column_at]))
}

/// A position of the scratch memory `[ξ, image, down, across, channel]`.
fn scratch(
    b: &mut Builder<'_>,
    winograd: Winograd,
    element: &[Linear; 2],
    tile: &[Linear],
    [down, across]: &[Dim; 2],
    channels: &Dim,
) -> (ParamId, ExprId) {
    let images = b.shape(b.region.anchor.into())[0].clone();
    let dims = [
        Dim::Const(winograd.products()),
        images,
        down.clone(),
        across.clone(),
        channels.clone(),
    ];
    let shape = Shape(dims.to_vec());
    let number = element[0].scale(&Dim::Const(winograd.inputs())).plus(&element[1]);
    let position = linearize(&[&[number][..], tile].concat(), &shape);
    let param = b.partials.unwrap_or(ParamId::new(0));
    b.params[param].dtype = DType::F32;
    b.params[param].elements = shape.iter().cloned().product();
    (param, b.index(&position))
}

/// A position along an axis of the image, kept inside of it.
fn inside(b: &mut Builder<'_>, at: &Linear, size: &Dim) -> Linear {
    let (below, above) = (at.is_nonnegative(b.space()), at.is_below(size, b.space()));
    if below && above {
        return at.clone();
    }
    let mut index = b.index(at);
    if !below {
        let first = b.integer(0);
        index = b.binary(BinaryOp::Max, index, first);
    }
    if !above {
        let last = b.size(&(size.clone() - 1));
        index = b.binary(BinaryOp::Min, index, last);
    }
    Linear::atom(Atom::Expr(index))
}

/// The first launch: patches of the image.
pub(super) fn patches(b: &mut Builder<'_>, conv: &Conv, winograd: Winograd) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let input = b.graph.node(b.region.anchor).operands[0];
    let shape = b.shape(input).clone();
    let (parallel, at, tiles) = squares(b, winograd, &shape[3]);
    let matrix = TransformMatrix {
        winograd,
        side: TransformSide::Image,
    };
    let (Some((from, taken)), Some((to, made))) = (
        square(b, ["i", "j"], matrix.inputs()),
        square(b, ["r", "s"], matrix.outputs()),
    ) else {
        return Err(b.not_in_region(anchor));
    };
    let size = Dim::Const(winograd.outputs());
    let pixel: Vec<Linear> = (0..2)
        .map(|s| {
            let low = Dim::Const(-conv.window.pad_low[s]);
            at[1 + s].scale(&size).plus(&taken[s]).offset(&low)
        })
        .collect();
    let within = b.in_range(&pixel, &shape[1..3]);
    let clamped: Vec<Linear> = (0..2).map(|s| inside(b, &pixel[s], &shape[1 + s])).collect();
    let coords = [&at[..1], &clamped, &at[3..]].concat();
    let element = b.pull(input, &coords)?;
    let var = b.var(DType::F32);
    let value = b.read(var);
    let (param, index) = scratch(b, winograd, &made, &at, &tiles, &shape[3]);
    let store = Stmt::Store {
        param,
        index,
        value,
        axes: Vec::new(),
    };
    Ok(Body::Transform(TransformBody {
        parallel,
        from,
        to,
        matrix,
        element,
        within,
        var,
        inside: None,
        stmts: vec![store],
    }))
}

/// The last launch: pixels of the result, and what follows them.
pub(super) fn pixels(b: &mut Builder<'_>, conv: &Conv, winograd: Winograd) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let bias = b.graph.node(b.region.anchor).operands.get(2).copied();
    let out = b.shape(anchor).clone();
    let (parallel, at, tiles) = squares(b, winograd, &out[3]);
    let matrix = TransformMatrix {
        winograd,
        side: TransformSide::Result,
    };
    let (Some((from, taken)), Some((to, made))) = (
        square(b, ["r", "s"], matrix.inputs()),
        square(b, ["i", "j"], matrix.outputs()),
    ) else {
        return Err(b.not_in_region(anchor));
    };
    let (param, index) = scratch(b, winograd, &taken, &at, &tiles, &out[3]);
    let element = b.exprs.add(Expr::Load { param, index }, DType::F32);
    let size = Dim::Const(winograd.outputs());
    let pixel: Vec<Linear> = (0..2).map(|s| at[1 + s].scale(&size).plus(&made[s])).collect();
    let inside = b.in_range(&pixel, &out[1..3]);
    let var = b.var(DType::F32);
    let sum = b.read(var);
    let bias = match bias {
        Some(bias) => Some(b.pull(bias, &at[3..])?),
        None => None,
    };
    let e = biased(b, sum, bias, conv.out);
    let coords = [&at[..1], &pixel, &at[3..]].concat();
    let stmts = b.epilogue(anchor, e, coords, &[])?;
    Ok(Body::Transform(TransformBody {
        parallel,
        from,
        to,
        matrix,
        element,
        within: None,
        var,
        inside,
        stmts,
    }))
}
