//! Convolution and pooling over `[N, C, spatial…]`, in PyTorch's conventions.

use ir::graph::op::{Conv, Layout, Pool, PoolKind, Window};
use ir::{DType, Dim, HostTensor, Op, Origin};

use super::Tensor;
use super::contract::product_type;
use super::node::Node;

/// One number for all spatial axes, or one for each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spatial(Vec<i64>);

impl From<i64> for Spatial {
    fn from(v: i64) -> Spatial {
        Spatial(vec![v])
    }
}
impl<const N: usize> From<[i64; N]> for Spatial {
    fn from(v: [i64; N]) -> Spatial {
        Spatial(v.to_vec())
    }
}

impl Spatial {
    fn over(&self, axes: usize) -> Option<Vec<i64>> {
        match self.0.len() {
            1 => Some(vec![self.0[0]; axes]),
            n if n == axes => Some(self.0.clone()),
            _ => None,
        }
    }
}

/// How a convolution's window moves.
///
/// ```
/// use graphc_frontend::tensor::ConvOptions;
/// let options = ConvOptions::default().stride(2).padding([1, 0]);
/// # let _ = options;
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConvOptions {
    pub stride: Spatial,
    /// Added on both sides.
    pub padding: Spatial,
    pub dilation: Spatial,
    pub groups: i64,
    /// Extra size at the end; of transposed convolutions only.
    pub output_padding: Spatial,
}

impl Default for ConvOptions {
    fn default() -> ConvOptions {
        ConvOptions {
            stride: 1.into(),
            padding: 0.into(),
            dilation: 1.into(),
            groups: 1,
            output_padding: 0.into(),
        }
    }
}

impl ConvOptions {
    #[must_use]
    pub fn stride(mut self, v: impl Into<Spatial>) -> ConvOptions {
        self.stride = v.into();
        self
    }
    #[must_use]
    pub fn padding(mut self, v: impl Into<Spatial>) -> ConvOptions {
        self.padding = v.into();
        self
    }
    #[must_use]
    pub fn dilation(mut self, v: impl Into<Spatial>) -> ConvOptions {
        self.dilation = v.into();
        self
    }
    #[must_use]
    pub fn groups(mut self, groups: i64) -> ConvOptions {
        self.groups = groups;
        self
    }
    #[must_use]
    pub fn output_padding(mut self, v: impl Into<Spatial>) -> ConvOptions {
        self.output_padding = v.into();
        self
    }
}

/// The window of a pooling; its stride is its size unless set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolOptions {
    pub size: Spatial,
    pub stride: Option<Spatial>,
    pub padding: Spatial,
    pub dilation: Spatial,
    /// Round the number of windows up.
    pub ceil: bool,
    /// Averages divide by the whole window, padding included.
    pub count_padding: bool,
}

impl PoolOptions {
    /// A window of the given size.
    pub fn new(size: impl Into<Spatial>) -> PoolOptions {
        let (padding, dilation) = (0.into(), 1.into());
        PoolOptions {
            size: size.into(),
            stride: None,
            padding,
            dilation,
            ceil: false,
            count_padding: true,
        }
    }
    #[must_use]
    pub fn stride(mut self, v: impl Into<Spatial>) -> PoolOptions {
        self.stride = Some(v.into());
        self
    }
    #[must_use]
    pub fn padding(mut self, v: impl Into<Spatial>) -> PoolOptions {
        self.padding = v.into();
        self
    }
    #[must_use]
    pub fn dilation(mut self, v: impl Into<Spatial>) -> PoolOptions {
        self.dilation = v.into();
        self
    }
    #[must_use]
    pub fn ceil(mut self, ceil: bool) -> PoolOptions {
        self.ceil = ceil;
        self
    }
    #[must_use]
    pub fn count_padding(mut self, count: bool) -> PoolOptions {
        self.count_padding = count;
        self
    }
}

impl Tensor {
    /// Convolution over any number of spatial axes: input `[N, C, …]`, weight `[O, C/groups, kernel…]`, bias `[O]`.
    #[track_caller]
    #[must_use]
    pub fn conv(&self, weight: &Tensor, bias: Option<&Tensor>, options: &ConvOptions) -> Tensor {
        self.convolve("conv", weight, bias, options, false)
    }

    /// Convolution of `[N, C, L]`.
    #[track_caller]
    #[must_use]
    pub fn conv1d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &ConvOptions) -> Tensor {
        match self.rank_checked("conv1d", 3) {
            Some(refused) => refused,
            None => self.convolve("conv1d", weight, bias, options, false),
        }
    }

    /// Convolution of `[N, C, H, W]`.
    #[track_caller]
    #[must_use]
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &ConvOptions) -> Tensor {
        match self.rank_checked("conv2d", 4) {
            Some(refused) => refused,
            None => self.convolve("conv2d", weight, bias, options, false),
        }
    }

    /// Transposed convolution of `[N, C, H, W]` with the weight `[C, O/groups, kh, kw]`.
    #[track_caller]
    #[must_use]
    pub fn conv_transpose2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &ConvOptions) -> Tensor {
        match self.rank_checked("conv_transpose2d", 4) {
            Some(refused) => refused,
            None => self.convolve("conv_transpose2d", weight, bias, options, true),
        }
    }

    /// The largest element of each window; padding never counts.
    #[track_caller]
    #[must_use]
    pub fn max_pool(&self, options: &PoolOptions) -> Tensor {
        self.pool("max_pool", PoolKind::Max, options)
    }

    /// The mean of each window.
    #[track_caller]
    #[must_use]
    pub fn avg_pool(&self, options: &PoolOptions) -> Tensor {
        self.pool(
            "avg_pool",
            PoolKind::Average {
                count_padding: options.count_padding,
            },
            options,
        )
    }

    /// Averages `[N, C, H, W]` over `height × width` windows that cover the image; `(1, 1)` is the mean of all, for any
    /// size.
    ///
    /// Other results need sizes that are known numbers.
    #[track_caller]
    #[must_use]
    pub fn adaptive_avg_pool2d(&self, height: i64, width: i64) -> Tensor {
        if let Some(refused) = self.rank_checked("adaptive_avg_pool2d", 4) {
            return refused;
        }
        if (height, width) == (1, 1) {
            return self.mean_keep([2, 3]);
        }
        let (Some(h), Some(w)) = (self.shape()[2].as_const(), self.shape()[3].as_const()) else {
            return self.refuse(
                "adaptive_avg_pool2d",
                "the image has a symbolic size; only (1, 1) can be pooled to",
            );
        };
        if height < 1 || width < 1 {
            return self.refuse("adaptive_avg_pool2d", format!("the result {height} × {width} is empty"));
        }
        if h % height == 0 && w % width == 0 {
            return self.avg_pool(&PoolOptions::new([h / height, w / width]));
        }
        // Windows of unequal size: two products with matrices that average.
        let rows = averages(height, h, self.dtype(), Origin::caller());
        let columns = averages(width, w, self.dtype(), Origin::caller());
        rows.matmul(self).matmul_t(&columns)
    }

    #[track_caller]
    fn rank_checked(&self, op: &'static str, rank: usize) -> Option<Tensor> {
        if self.is_poisoned() {
            return Some(self.clone());
        }
        if self.rank() == rank {
            return None;
        }
        Some(self.refuse(op, format!("the rank is {}, not {rank}", self.rank())))
    }

    #[track_caller]
    fn convolve(
        &self,
        op: &'static str,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: &ConvOptions,
        transposed: bool,
    ) -> Tensor {
        let axes = self.rank().saturating_sub(2);
        let (stride, padding) = (options.stride.over(axes), options.padding.over(axes));
        let (dilations, extra) = (options.dilation.over(axes), options.output_padding.over(axes));
        let (Some(strides), Some(padding), Some(dilations), Some(extra)) = (stride, padding, dilations, extra) else {
            return self.refuse(
                op,
                format!("an option has neither one number nor one for each of the {axes} spatial axes: {options:?}"),
            );
        };
        if !transposed && extra.iter().any(|e| *e != 0) {
            return self.refuse(op, "output_padding is of transposed convolutions only");
        }
        let window = Window {
            strides,
            pad_low: padding.clone(),
            pad_high: padding,
            dilations,
        };
        let conv = Conv {
            window,
            groups: options.groups,
            layout: Layout::ChannelsFirst,
            transposed: transposed.then_some(extra),
            pad_value: 0,
            out: product_type(self.dtype()),
        };
        match bias {
            Some(bias) => Tensor::op(Op::Conv(conv), &[self, weight, bias]),
            None => Tensor::op(Op::Conv(conv), &[self, weight]),
        }
    }

    #[track_caller]
    fn pool(&self, op: &'static str, kind: PoolKind, options: &PoolOptions) -> Tensor {
        let axes = self.rank().saturating_sub(2);
        let stride = options.stride.as_ref().unwrap_or(&options.size).over(axes);
        let (size, padding, dilations) = (
            options.size.over(axes),
            options.padding.over(axes),
            options.dilation.over(axes),
        );
        let (Some(size), Some(strides), Some(padding), Some(dilations)) = (size, stride, padding, dilations) else {
            return self.refuse(
                op,
                format!("an option has neither one number nor one for each of the {axes} spatial axes: {options:?}"),
            );
        };
        let window = Window {
            strides,
            pad_low: padding.clone(),
            pad_high: padding,
            dilations,
        };
        let pool = Pool {
            kind,
            size,
            window,
            ceil: options.ceil,
            layout: Layout::ChannelsFirst,
        };
        Tensor::op(Op::Pool(pool), &[self])
    }
}

/// The matrix `[out, size]` whose row `i` averages elements `⌊i·size/out⌋ .. ⌈(i + 1)·size/out⌉`.
fn averages(out: i64, size: i64, dtype: DType, origin: Origin) -> Tensor {
    let mut values = vec![0.0; (out * size) as usize];
    for i in 0..out {
        let (start, end) = (i * size / out, ((i + 1) * size + out - 1) / out);
        for j in start..end {
            values[(i * size + j) as usize] = 1.0 / (end - start) as f64;
        }
    }
    match HostTensor::from_f64(dtype, [out as usize, size as usize], &values) {
        Ok(tensor) => Node::literal(tensor, origin),
        Err(source) => Tensor::poisoned(super::TensorError::Data { origin, source }),
    }
}

impl Tensor {
    /// Upsamples `[N, C, H, W]` by whole factors, repeating each element.
    #[track_caller]
    #[must_use]
    pub fn upsample_nearest2d(&self, height: i64, width: i64) -> Tensor {
        if let Some(refused) = self.rank_checked("upsample_nearest2d", 4) {
            return refused;
        }
        if height < 1 || width < 1 {
            return self.refuse(
                "upsample_nearest2d",
                format!("the factors {height} × {width} are not positive"),
            );
        }
        let one = Dim::Const(1);
        let [n, c, h, w] = [0, 1, 2, 3].map(|i| self.shape()[i].clone());
        let split = vec![n.clone(), c.clone(), h.clone(), one.clone(), w.clone(), one];
        let wide = vec![n.clone(), c.clone(), h.clone(), height.into(), w.clone(), width.into()];
        self.reshape(split)
            .expand(wide)
            .reshape(vec![n, c, h * height, w * width])
    }
}
