//! Convolution and pooling layers.

use super::input::QuantizedInput;
use super::scheme::Scheme;
use super::{Init, Module, NnError, Params};
use crate::tensor::{ConvOptions, PoolOptions, Tensor};

/// The sizes of a [`Conv2d`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conv2dConfig {
    pub inputs: usize,
    pub outputs: usize,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    pub options: ConvOptions,
    pub bias: bool,
}

impl Conv2dConfig {
    /// A square kernel with stride 1, no padding, and a bias.
    pub fn new(inputs: usize, outputs: usize, kernel: usize) -> Conv2dConfig {
        Conv2dConfig {
            inputs,
            outputs,
            kernel: [kernel; 2],
            options: ConvOptions::default(),
            bias: true,
        }
    }

    /// Sets stride, padding, dilation and groups.
    #[must_use]
    pub fn options(mut self, options: ConvOptions) -> Conv2dConfig {
        self.options = options;
        self
    }

    /// Leaves the bias out, as layers before a batch norm do.
    #[must_use]
    pub fn no_bias(mut self) -> Conv2dConfig {
        self.bias = false;
        self
    }
}

/// A convolution of `[N, C, H, W]`.
#[derive(Clone, Debug)]
pub struct Conv2d {
    /// `[outputs, inputs / groups, height, width]`.
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    pub options: ConvOptions,
    path: String,
    input: Option<QuantizedInput>,
}

impl Conv2d {
    /// Loads `weight` and, if asked for, `bias`. Filters in `i8` or 8-bit floats with `weight_scale` stay so, and with
    /// `input_scale` inputs are quantised, as [`super::Linear::load`] has it.
    ///
    /// # Errors
    /// A missing or misshapen weight, or one that is not as its scheme has it; groups that do not divide the inputs.
    #[track_caller]
    pub fn load(params: &Params, config: &Conv2dConfig) -> Result<Conv2d, NnError> {
        let groups = usize::try_from(config.options.groups)
            .ok()
            .filter(|g| *g > 0 && config.inputs.is_multiple_of(*g));
        let Some(groups) = groups else {
            let message = format!(
                "{} groups do not divide {} input channels",
                config.options.groups, config.inputs
            );
            return Err(params.config_error(message));
        };
        let [height, width] = config.kernel;
        let scheme = Scheme::of(params, "Conv2d")?;
        scheme.check_weight(params, config.inputs / groups * height * width)?;
        scheme.check_convolution()?;
        let weight = params.stored(
            "weight",
            &[config.outputs, config.inputs / groups, height, width],
            Init::Fan,
        )?;
        let bias = match config.bias {
            true => Some(params.tensor("bias", &[config.outputs], Init::Uniform(-0.1, 0.1))?),
            false => None,
        };
        Ok(Conv2d {
            weight,
            bias,
            options: config.options.clone(),
            path: params.path().to_owned(),
            input: QuantizedInput::load(params, &scheme)?,
        })
    }
}

impl Module for Conv2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let quantised = self.input.as_ref().map(|input| input.apply(x));
        let given = quantised.as_ref().unwrap_or(x);
        given
            .conv2d(&self.weight, self.bias.as_ref(), &self.options)
            .in_module(&self.path, &[x])
    }
}

/// The largest element of each window of `[N, C, H, W]`.
#[derive(Clone, Debug)]
pub struct MaxPool2d(pub PoolOptions);

impl Module for MaxPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.max_pool(&self.0)
    }
}
