//! Where modules get their weights: a tree of names over a weight file, or reproducible random numbers.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use ir::op::Groups;
use ir::{DType, HostTensor};

use super::NnError;
use crate::onnx::randomize;
use crate::tensor::Tensor;
use crate::weights::{QuantizationConfig, TensorView, Weights};

/// A place in a tree of weights; cheap to clone.
///
/// ```
/// use graphc_frontend::nn::{Init, Params};
/// let params = Params::random(1).sub("encoder").sub(0);
/// let weight = params.tensor("weight", &[4, 3], Init::Fan)?;
/// assert_eq!(params.name("weight"), "encoder.0.weight");
/// assert_eq!(weight.ty().to_string(), "f32[4, 3]");
/// # Ok::<(), graphc_frontend::nn::NnError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Params {
    source: Source,
    prefix: String,
    dtype: DType,
    quantization: Option<QuantizationConfig>,
}

#[derive(Clone, Debug)]
enum Source {
    Weights(Arc<Weights>),
    Random(u64),
}

/// What random weights look like; weights from a file are what they are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Init {
    /// Uniform in `±√(3 / fan)`, where `fan` is the number of inputs an output sums over (all axes but the first):
    /// keeps the variance of a linear layer's inputs.
    Fan,
    /// Uniform between two bounds.
    Uniform(f32, f32),
    Zeros,
    Ones,
}

impl Params {
    /// Takes weights from a file; see [`Weights::open`]. Floats of other types are converted to `f32`.
    pub fn new(weights: Weights) -> Params {
        Params {
            source: Source::Weights(Arc::new(weights)),
            prefix: String::new(),
            dtype: DType::F32,
            quantization: None,
        }
    }

    /// Makes random weights, which depend on the seed and the name alone.
    pub fn random(seed: u64) -> Params {
        Params {
            source: Source::Random(seed),
            prefix: String::new(),
            dtype: DType::F32,
            quantization: None,
        }
    }

    /// Sets the type that weights are converted to.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Params {
        self.dtype = dtype;
        self
    }

    /// Says how the weights were quantised, in place of what `config.json` beside them says
    /// ([`Weights::quantization`]).
    #[must_use]
    pub fn quantized_as(mut self, config: QuantizationConfig) -> Params {
        self.quantization = Some(config);
        self
    }

    /// Goes one level down: `params.sub("layer").sub(0)` is `layer.0`.
    #[must_use]
    pub fn sub(&self, name: impl Display) -> Params {
        Params {
            prefix: self.name(&name.to_string()),
            ..self.clone()
        }
    }

    /// Returns the path of this place, as names have it.
    pub fn path(&self) -> &str {
        &self.prefix
    }

    /// Returns the full name of a weight at this place.
    pub fn name(&self, name: &str) -> String {
        if self.prefix.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.prefix)
        }
    }

    /// Says whether there is a weight of that name; random weights have every name.
    pub fn contains(&self, name: &str) -> bool {
        match &self.source {
            Source::Weights(weights) => weights.contains(&self.name(name)),
            Source::Random(_) => true,
        }
    }

    /// Says whether the weights are made up.
    pub fn is_random(&self) -> bool {
        matches!(self.source, Source::Random(_))
    }

    /// Returns the weight of that name as a constant that carries its full name; bytes of a file are not copied.
    ///
    /// # Errors
    /// When there is none, or its shape or kind of elements is another.
    #[track_caller]
    pub fn tensor(&self, name: &str, shape: &[usize], init: Init) -> Result<Tensor, NnError> {
        let full = self.name(name);
        let host = match &self.source {
            Source::Weights(weights) => weights.get(&full)?.to_host()?,
            Source::Random(seed) => random(&full, *seed, shape, init)?,
        };
        if host.shape != shape {
            return Err(NnError::Shape {
                name: full,
                wanted: shape.to_vec(),
                found: host.shape,
            });
        }
        if !host.dtype.is_float() {
            return Err(NnError::DType {
                name: full,
                found: host.dtype,
            });
        }
        Ok(Tensor::parameter(&full, host).cast(self.dtype))
    }

    /// Returns the weight of that name, and keeps it as it is stored where the file has `i8` or 8-bit floats with a
    /// scale beside them, as compressed-tensors writes them: products then read one byte an element. `{name}_scale` has
    /// one number, one for each row, or of a matrix one for each group of a row; `{name}_zero_point` as many.
    ///
    /// # Errors
    /// As [`Params::tensor`], and a scale that is no finite number above 0 or has another shape.
    #[track_caller]
    pub fn stored(&self, name: &str, shape: &[usize], init: Init) -> Result<Tensor, NnError> {
        let full = self.name(name);
        let dtype = self.stored_type(name)?;
        let Source::Weights(weights) = &self.source else {
            return self.tensor(name, shape, init);
        };
        let scale_name = format!("{name}_scale");
        let blocks = format!("{name}_scale_inv");
        if dtype.is_some() && self.contains(&blocks) {
            let expected = "a scale for all or for each row; quantise the model again with one of these";
            return Err(NnError::packed(
                "FP8",
                &full,
                format!("scaled by blocks ({blocks})"),
                expected,
            ));
        }
        let Some(dtype) = dtype.filter(|_| self.contains(&scale_name)) else {
            return self.tensor(name, shape, init);
        };
        let host = weights.get(&full)?.to_host()?;
        if host.shape != shape {
            return Err(NnError::Shape {
                name: full,
                wanted: shape.to_vec(),
                found: host.shape,
            });
        }
        let (scale, groups) = self.scale(&scale_name, shape)?;
        let zero = match dtype.is_f8() {
            true => None,
            false => {
                let dims = scale.shape().iter().filter_map(|d| d.as_const()).map(|d| d as usize);
                let dims: Vec<usize> = dims.collect();
                self.zero_point(&format!("{name}_zero_point"), dtype, dims.iter().product(), dims)?
            }
        };
        Ok(Tensor::parameter(&full, host).dequantize_groups(&scale, zero.as_ref(), groups, self.dtype))
    }

    /// Returns the type of a weight of a file where that is `i8` or an 8-bit float.
    pub(super) fn stored_type(&self, name: &str) -> Result<Option<DType>, NnError> {
        match &self.source {
            Source::Weights(weights) => {
                let dtype = weights.get(&self.name(name))?.element.dtype();
                Ok(dtype.filter(|dtype| dtype.is_f8() || *dtype == DType::I8))
            }
            Source::Random(_) => Ok(None),
        }
    }

    /// Returns scales of a weight: one number, one for each row, or of a matrix one for each group of a row; as a
    /// constant of the weight's rank.
    ///
    /// # Errors
    /// When there are none, or they have another shape or are no finite numbers above 0.
    #[track_caller]
    pub(super) fn scale(&self, name: &str, shape: &[usize]) -> Result<(Tensor, Option<Groups>), NnError> {
        let full = self.name(name);
        let host = self.view(name)?.to_host()?;
        let (count, rows) = (host.elements(), shape.first().copied().unwrap_or(1));
        let is_column = host.shape.iter().skip(1).all(|d| *d == 1);
        let mut dims = vec![1usize; shape.len()];
        let mut groups = None;
        match (shape, &host.shape[..]) {
            _ if is_column && (count == 1 || count == rows) => {
                if let Some(first) = dims.first_mut() {
                    *first = count;
                }
            }
            ([_, depth], [r, g]) if *r == rows && *g > 0 && depth.is_multiple_of(*g) => {
                dims = vec![rows, *g];
                let size = (depth / g) as i64;
                groups = Some(Groups { axis: 1, size });
            }
            _ => {
                return Err(NnError::Shape {
                    name: full,
                    wanted: vec![rows, 1],
                    found: host.shape,
                });
            }
        }
        if !host.dtype.is_float() || host.dtype.is_f8() {
            let found = host.dtype;
            return Err(NnError::DType { name: full, found });
        }
        if let Some(wrong) = host.to_f64().into_iter().find(|s| !s.is_finite() || *s <= 0.0) {
            return Err(self.config_error(format!(
                "{full:?} has a scale of {wrong}, which is no finite number above 0; quantise the model again"
            )));
        }
        let scale = HostTensor { shape: dims, ..host };
        Ok((Tensor::parameter(&full, scale), groups))
    }

    /// Returns so many zero points as a constant of the given shape; `None` where the file has none, or 0 alone.
    ///
    /// # Errors
    /// When they are of another type or count.
    #[track_caller]
    pub(super) fn zero_point(
        &self,
        name: &str,
        dtype: DType,
        count: usize,
        shape: Vec<usize>,
    ) -> Result<Option<Tensor>, NnError> {
        if !self.contains(name) {
            return Ok(None);
        }
        let host = self.view(name)?.to_host()?;
        if host.dtype != dtype || host.elements() != count {
            let found = format!("{}{:?}", host.dtype, host.shape);
            let expected = format!("{dtype}{shape:?}, one zero point a scale");
            return Err(NnError::packed("compressed-tensors", &self.name(name), found, expected));
        }
        if host.bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        Ok(Some(Tensor::parameter(&self.name(name), HostTensor { shape, ..host })))
    }

    /// Returns the tensor of that name as the file has it.
    ///
    /// # Errors
    /// When there is none, as random weights have none.
    pub(super) fn view(&self, name: &str) -> Result<&TensorView, NnError> {
        match &self.source {
            Source::Weights(weights) => Ok(weights.get(&self.name(name))?),
            Source::Random(_) => Err(self.config_error(format!(
                "{:?} is a file's, which random weights are not of",
                self.name(name)
            ))),
        }
    }

    /// Returns what is known of how the weights were quantised.
    ///
    /// # Errors
    /// A configuration beside the weights that cannot be read.
    pub(super) fn quantization(&self) -> Result<QuantizationConfig, NnError> {
        match (&self.quantization, &self.source) {
            (Some(known), _) => Ok(known.clone()),
            (None, Source::Weights(weights)) => Ok(weights.quantization()?),
            (None, Source::Random(_)) => Ok(QuantizationConfig::default()),
        }
    }

    /// Returns the file that the weights are from.
    pub(super) fn file(&self) -> PathBuf {
        match &self.source {
            Source::Weights(weights) => weights.path().to_owned(),
            Source::Random(_) => PathBuf::new(),
        }
    }

    /// Returns the type that weights are converted to.
    pub(super) fn element_type(&self) -> DType {
        self.dtype
    }

    /// Returns the weight of that name, or `None` when the file has none (random weights always exist).
    ///
    /// # Errors
    /// As [`Params::tensor`], but for a missing one.
    #[track_caller]
    pub fn optional(&self, name: &str, shape: &[usize], init: Init) -> Result<Option<Tensor>, NnError> {
        if self.contains(name) {
            self.tensor(name, shape, init).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Makes an error about the module at this place.
    pub fn config_error(&self, message: impl Into<String>) -> NnError {
        NnError::Config {
            module: self.prefix.clone(),
            message: message.into(),
        }
    }
}

fn random(name: &str, seed: u64, shape: &[usize], init: Init) -> Result<HostTensor, NnError> {
    let count = shape.iter().product();
    let values: Vec<f32> = match init {
        Init::Zeros => vec![0.0; count],
        Init::Ones => vec![1.0; count],
        Init::Uniform(low, high) => randomize::uniform(name, seed, count, low.into(), high.into()).collect(),
        Init::Fan => {
            let fan: usize = shape.iter().skip(1).product();
            let bound = (3.0 / fan.max(1) as f64).sqrt();
            randomize::uniform(name, seed, count, -bound, bound).collect()
        }
    };
    HostTensor::from_f32(shape, &values).map_err(|source| NnError::Size {
        name: name.to_owned(),
        source,
    })
}
