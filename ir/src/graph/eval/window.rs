//! Convolutions (as products of patches) and pooling.

use super::array::{Array, Data, strides, wrap};
use super::contract::{Number, multiply, store};
use super::elementwise::floats;
use super::{OpError, scalar};
use crate::dim::Dim;
use crate::graph::infer::{conv_output, pool_output};
use crate::graph::op::{Conv, Layout, Pool, PoolKind, Window};

/// The facts of one convolution with its actual sizes, channels first.
struct Sizes<'a> {
    window: &'a Window,
    images: usize,
    channels: usize,
    filters: usize,
    groups: usize,
    input: Vec<usize>,
    kernel: Vec<usize>,
    output: Vec<usize>,
}

pub(super) fn conv(c: &Conv, operands: &[&Array]) -> Result<Array, OpError> {
    let rank = operands[0].shape.len();
    let input = &*channels_first(operands[0], c.layout);
    let filter = &*channels_first(operands[1], c.layout);
    let groups = c.groups as usize;
    let kernel = filter.shape[2..].to_vec();
    let mut output = Vec::with_capacity(rank - 2);
    for i in 0..rank - 2 {
        let extra = c.transposed.as_ref().map(|e| e[i]);
        let size = Dim::from(input.shape[i + 2]);
        output.push(extent(&conv_output(&size, kernel[i] as i64, &c.window, i, extra))?);
    }
    let filters = match c.transposed {
        None => filter.shape[0],
        Some(_) => filter.shape[1] * groups,
    };
    let s = Sizes {
        window: &c.window,
        images: input.shape[0],
        channels: input.shape[1],
        filters,
        groups,
        input: input.shape[2..].to_vec(),
        kernel,
        output,
    };
    let transposed = c.transposed.is_some();
    let mut shape = vec![s.images, s.filters];
    shape.extend(&s.output);
    let mut out = match (&input.data, &filter.data) {
        (Data::Int(x), Data::Int(w)) => {
            let sums = convolve(&s, x, w, transposed, c.pad_value);
            store(c.out, shape, sums, input.dtype.product_accumulator(filter.dtype))
        }
        _ => Array::float(
            c.out,
            shape,
            convolve(&s, &floats(input), &floats(filter), transposed, 0.0),
        ),
    };
    if let Some(bias) = operands.get(2) {
        let pixels: usize = s.output.iter().product::<usize>().max(1);
        let filter_of = |i: usize| i / pixels % s.filters.max(1);
        let dtype = out.dtype;
        match &mut out.data {
            Data::Float(v) => {
                let b = bias.to_f64();
                v.iter_mut().enumerate().for_each(|(i, v)| *v += b[filter_of(i)]);
            }
            Data::Int(v) => {
                let b = bias.to_i64();
                v.iter_mut()
                    .enumerate()
                    .for_each(|(i, v)| *v = wrap(dtype, v.wrapping_add(b[filter_of(i)])));
            }
            Data::Bool(_) => {}
        }
    }
    Ok(restore(out, c.layout))
}

fn extent(dim: &Dim) -> Result<usize, OpError> {
    let value = dim.eval(&crate::dim::Bindings::new())?;
    usize::try_from(value).map_err(|_| OpError::Negative {
        what: "window count".into(),
        value,
    })
}

/// Channels-last tensors with their channels moved to axis 1.
fn channels_first(a: &Array, layout: Layout) -> std::borrow::Cow<'_, Array> {
    match layout {
        Layout::ChannelsFirst => std::borrow::Cow::Borrowed(a),
        Layout::ChannelsLast => {
            let rank = a.shape.len();
            let perm: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
            std::borrow::Cow::Owned(a.transpose(&perm))
        }
    }
}

fn restore(a: Array, layout: Layout) -> Array {
    match layout {
        Layout::ChannelsFirst => a,
        Layout::ChannelsLast => {
            let rank = a.shape.len();
            let perm: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
            a.transpose(&perm)
        }
    }
}

fn convolve<T: Number>(s: &Sizes<'_>, input: &[T], filter: &[T], transposed: bool, padding: T) -> Vec<T> {
    let product = |v: &[usize]| v.iter().product::<usize>();
    let (in_pixels, out_pixels, taps) = (product(&s.input), product(&s.output), product(&s.kernel));
    let (in_group, out_group) = (s.channels / s.groups, s.filters / s.groups);
    let mut out = vec![T::default(); s.images * s.filters * out_pixels];
    // A convolution reads patches of the input at the output's pixels; a transposed one adds patches into the output at
    // the input's pixels. `pairs` lists for each tap which pixel of the far side meets which of the near side.
    let (near, far) = if transposed {
        (&s.input, &s.output)
    } else {
        (&s.output, &s.input)
    };
    let pairs = meetings(s, near, far);
    let near_pixels = product(near);
    if transposed {
        // Filters arrive as [I, O/g, taps]; the product wants [O/g · taps, I/g].
        let rows = out_group * taps;
        let mut patches = vec![T::default(); rows * near_pixels];
        for image in 0..s.images {
            for g in 0..s.groups {
                let w = &filter[g * in_group * rows..][..in_group * rows];
                let mut turned = vec![T::default(); rows * in_group];
                for i in 0..in_group {
                    for r in 0..rows {
                        turned[r * in_group + i] = w[i * rows + r];
                    }
                }
                let x = &input[(image * s.channels + g * in_group) * in_pixels..][..in_group * in_pixels];
                patches.fill(T::default());
                multiply(&mut patches, &turned, x, rows, in_group, near_pixels);
                let y = &mut out[(image * s.filters + g * out_group) * out_pixels..][..out_group * out_pixels];
                for o in 0..out_group {
                    for (tap, meets) in pairs.iter().enumerate() {
                        let row = &patches[(o * taps + tap) * near_pixels..][..near_pixels];
                        for &(at, to) in meets {
                            let cell = &mut y[o * out_pixels + to];
                            *cell = cell.add(row[at]);
                        }
                    }
                }
            }
        }
        return out;
    }
    let depth = in_group * taps;
    let mut patches = vec![T::default(); depth * near_pixels];
    for image in 0..s.images {
        for g in 0..s.groups {
            let x = &input[(image * s.channels + g * in_group) * in_pixels..][..in_group * in_pixels];
            patches.fill(padding);
            for i in 0..in_group {
                for (tap, meets) in pairs.iter().enumerate() {
                    let row = &mut patches[(i * taps + tap) * near_pixels..][..near_pixels];
                    for &(to, from) in meets {
                        row[to] = x[i * in_pixels + from];
                    }
                }
            }
            let w = &filter[g * out_group * depth..][..out_group * depth];
            let y = &mut out[(image * s.filters + g * out_group) * out_pixels..][..out_group * out_pixels];
            multiply(y, w, &patches, out_group, depth, near_pixels);
        }
    }
    out
}

/// For each tap of the kernel, the pairs of (near pixel, far pixel) that it joins: far = near · stride − pad + tap ·
/// dilation.
fn meetings(s: &Sizes<'_>, near: &[usize], far: &[usize]) -> Vec<Vec<(usize, usize)>> {
    let far_strides = strides(far);
    let taps: usize = s.kernel.iter().product();
    let kernel_strides = strides(&s.kernel);
    (0..taps)
        .map(|tap| {
            // Built axis by axis; each list is row-major in the near pixels.
            let mut list: Vec<(usize, usize)> = vec![(0, 0)];
            for i in 0..near.len() {
                let t = (tap / kernel_strides[i] % s.kernel[i]) as i64;
                let shift = t * s.window.dilations[i] - s.window.pad_low[i];
                let hits: Vec<(usize, usize)> = (0..near[i])
                    .filter_map(|n| {
                        let f = n as i64 * s.window.strides[i] + shift;
                        (0..far[i] as i64).contains(&f).then_some((n, f as usize))
                    })
                    .collect();
                list = list
                    .iter()
                    .flat_map(|(n, f)| {
                        let (n, f, far_stride, width) = (*n, *f, far_strides[i], near[i]);
                        hits.iter().map(move |(hn, hf)| (n * width + hn, f + hf * far_stride))
                    })
                    .collect();
            }
            list
        })
        .collect()
}

pub(super) fn pool(p: &Pool, a: &Array) -> Result<Array, OpError> {
    let input = &*channels_first(a, p.layout);
    let spatial = input.shape.len() - 2;
    let mut output = Vec::with_capacity(spatial);
    for i in 0..spatial {
        output.push(extent(&pool_output(&Dim::from(input.shape[i + 2]), p, i))?);
    }
    let s = Sizes {
        window: &p.window,
        images: input.shape[0],
        channels: input.shape[1],
        filters: input.shape[1],
        groups: 1,
        input: input.shape[2..].to_vec(),
        kernel: p.size.iter().map(|k| *k as usize).collect(),
        output: output.clone(),
    };
    let pairs = meetings(&s, &s.output, &s.input);
    let (in_pixels, out_pixels): (usize, usize) = (s.input.iter().product(), output.iter().product());
    let planes = s.images * s.channels;
    let mut shape = vec![s.images, s.channels];
    shape.extend(&output);
    let out = match (p.kind, &input.data) {
        (PoolKind::Max, Data::Int(v)) => {
            let (low, _) = scalar::int_range(a.dtype);
            let mut out = vec![low; planes * out_pixels];
            slide(&pairs, planes, in_pixels, out_pixels, |to, from| {
                out[to] = out[to].max(v[from])
            });
            Array::int(a.dtype, shape, out)
        }
        (PoolKind::Max, _) => {
            let v = floats(input);
            let mut out = vec![f64::NEG_INFINITY; planes * out_pixels];
            slide(&pairs, planes, in_pixels, out_pixels, |to, from| {
                out[to] = scalar::max(out[to], v[from]);
            });
            Array::float(a.dtype, shape, out)
        }
        (PoolKind::Average { count_padding }, data) => {
            let counts = if count_padding {
                padded_counts(&s)
            } else {
                let mut counts = vec![0usize; out_pixels];
                pairs.iter().flatten().for_each(|(to, _)| counts[*to] += 1);
                counts
            };
            // A window that meets no element counts none and gives 0.
            let count = |i: usize| counts[i % out_pixels.max(1)].max(1);
            if let Data::Int(v) = data {
                let mut out = vec![0i64; planes * out_pixels];
                slide(&pairs, planes, in_pixels, out_pixels, |to, from| {
                    out[to] = out[to].wrapping_add(v[from]);
                });
                out.iter_mut().enumerate().for_each(|(i, v)| *v /= count(i) as i64);
                Array::int(a.dtype, shape, out)
            } else {
                let v = floats(input);
                let mut out = vec![0.0; planes * out_pixels];
                slide(&pairs, planes, in_pixels, out_pixels, |to, from| out[to] += v[from]);
                out.iter_mut().enumerate().for_each(|(i, v)| *v /= count(i) as f64);
                Array::float(a.dtype, shape, out)
            }
        }
    };
    Ok(restore(out, p.layout))
}

fn slide(
    pairs: &[Vec<(usize, usize)>],
    planes: usize,
    in_pixels: usize,
    out_pixels: usize,
    mut f: impl FnMut(usize, usize),
) {
    for plane in 0..planes {
        for &(to, from) in pairs.iter().flatten() {
            f(plane * out_pixels + to, plane * in_pixels + from);
        }
    }
}

/// For each output pixel, how many taps fall on the input or its padding (but not beyond, where `ceil` reaches).
fn padded_counts(s: &Sizes<'_>) -> Vec<usize> {
    let mut counts = vec![1usize];
    for i in 0..s.output.len() {
        let (low, high) = (s.window.pad_low[i], s.window.pad_high[i]);
        let along: Vec<usize> = (0..s.output[i] as i64)
            .map(|o| {
                let first = o * s.window.strides[i] - low;
                (0..s.kernel[i] as i64)
                    .filter(|t| {
                        let at = first + t * s.window.dilations[i];
                        at < s.input[i] as i64 + high
                    })
                    .count()
            })
            .collect();
        counts = counts.iter().flat_map(|c| along.iter().map(move |a| c * a)).collect();
    }
    counts
}
