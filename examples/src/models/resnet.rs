//! ResNet-50 (He et al., "Deep Residual Learning for Image Recognition"), with torchvision's names of weights.

use graphc::frontend::nn::{BatchNorm2d, Conv2d, Conv2dConfig, Linear, Module, NnError, Params};
use graphc::frontend::tensor::{ConvOptions, InputSpec, PoolOptions, Tensor, TensorError, trace};
use graphc::frontend::{DType, shape};
use graphc::ir::Graph;

/// A ResNet of bottleneck blocks.
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    blocks: Vec<Bottleneck>,
    fc: Linear,
}

/// 1×1, 3×3 and 1×1 convolutions around a shortcut.
struct Bottleneck {
    convs: [(Conv2d, BatchNorm2d); 3],
    downsample: Option<(Conv2d, BatchNorm2d)>,
}

impl ResNet {
    /// Loads ResNet-50: `Params::new(Weights::open("resnet50.safetensors")?)`, or random weights.
    ///
    /// # Errors
    /// A missing or misshapen weight.
    pub fn resnet50(params: &Params) -> Result<ResNet, NnError> {
        ResNet::load(params, [3, 4, 6, 3], 1000)
    }

    /// Loads a ResNet with the given number of blocks in each of its four layers.
    ///
    /// # Errors
    /// A missing or misshapen weight.
    pub fn load(params: &Params, depths: [usize; 4], classes: usize) -> Result<ResNet, NnError> {
        let mut blocks = Vec::new();
        let mut channels = 64;
        for (layer, depth) in depths.into_iter().enumerate() {
            let width = 64 << layer;
            for block in 0..depth {
                let stride = if block == 0 && layer > 0 { 2 } else { 1 };
                let params = params.sub(format!("layer{}", layer + 1)).sub(block);
                blocks.push(Bottleneck::load(&params, channels, width, stride)?);
                channels = 4 * width;
            }
        }
        let (conv1, bn1) = conv_bn(params, "conv1", "bn1", [3, 64, 7], 2)?;
        let fc = Linear::load(&params.sub("fc"), channels, classes)?;
        Ok(ResNet { conv1, bn1, blocks, fc })
    }

    /// Makes the graph: `image` f32 `[batch, 3, 224, 224]` to `logits` `[batch, classes]`.
    ///
    /// # Errors
    /// An operation that does not fit, with its place.
    pub fn graph(&self) -> Result<Graph, TensorError> {
        let image = InputSpec::new("image", DType::F32, shape!["batch", 3, 224, 224]).hint("batch", 1);
        trace("resnet50", [image], |[image]| [("logits", self.forward(&image))])
    }
}

impl Module for ResNet {
    fn forward(&self, x: &Tensor) -> Tensor {
        let x = self.bn1.forward(&self.conv1.forward(x)).relu();
        let x = x.max_pool(&PoolOptions::new(3).stride(2).padding(1));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(&x));
        self.fc.forward(&x.mean([2, 3]))
    }
}

impl Bottleneck {
    fn load(params: &Params, inputs: usize, width: usize, stride: i64) -> Result<Bottleneck, NnError> {
        let outputs = 4 * width;
        let convs = [
            conv_bn(params, "conv1", "bn1", [inputs, width, 1], 1)?,
            conv_bn(params, "conv2", "bn2", [width, width, 3], stride)?,
            conv_bn(params, "conv3", "bn3", [width, outputs, 1], 1)?,
        ];
        let downsample = match stride != 1 || inputs != outputs {
            true => Some(conv_bn(
                params,
                "downsample.0",
                "downsample.1",
                [inputs, outputs, 1],
                stride,
            )?),
            false => None,
        };
        Ok(Bottleneck { convs, downsample })
    }
}

impl Module for Bottleneck {
    fn forward(&self, x: &Tensor) -> Tensor {
        let [first, second, third] = &self.convs;
        let apply = |(conv, bn): &(Conv2d, BatchNorm2d), x: &Tensor| bn.forward(&conv.forward(x));
        let y = apply(first, x).relu();
        let y = apply(second, &y).relu();
        let y = apply(third, &y);
        let shortcut = match &self.downsample {
            Some(pair) => apply(pair, x),
            None => x.clone(),
        };
        (y + shortcut).relu()
    }
}

/// A convolution without bias that keeps the image's size but for the stride, and the batch norm behind it.
fn conv_bn(
    params: &Params,
    conv: &str,
    bn: &str,
    [inputs, outputs, kernel]: [usize; 3],
    stride: i64,
) -> Result<(Conv2d, BatchNorm2d), NnError> {
    let options = ConvOptions::default().stride(stride).padding(kernel as i64 / 2);
    let config = Conv2dConfig::new(inputs, outputs, kernel).options(options).no_bias();
    Ok((
        Conv2d::load(&params.sub(conv), &config)?,
        BatchNorm2d::load(&params.sub(bn), outputs)?,
    ))
}
