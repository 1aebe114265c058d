//! Where modules get their weights: a tree of names over a weight file, or reproducible random numbers.

use std::fmt::Display;
use std::sync::Arc;

use ir::{DType, HostTensor};

use super::NnError;
use crate::onnx::randomize;
use crate::tensor::Tensor;
use crate::weights::Weights;

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
}

#[derive(Clone, Debug)]
enum Source {
    Weights(Arc<Weights>),
    Random(u64),
}

/// What random weights look like; weights from a file are what they are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Init {
    /// Uniform in `±√(3 / fan)`, where `fan` is the number of inputs an output sums over (all axes but the first): keeps the
    /// variance of a linear layer's inputs.
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
        }
    }

    /// Makes random weights, which depend on the seed and the name alone.
    pub fn random(seed: u64) -> Params {
        Params {
            source: Source::Random(seed),
            prefix: String::new(),
            dtype: DType::F32,
        }
    }

    /// Sets the type that weights are converted to.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Params {
        self.dtype = dtype;
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

    /// Returns the weight of that name, and keeps it as it is stored where the file has 8-bit floats with a scale
    /// beside them, `{name}_scale` of one number or one for each row, as compressed-tensors writes them: products then
    /// read one byte an element.
    ///
    /// # Errors
    /// As [`Params::tensor`], and a scale that is no finite number above 0 or has another shape.
    #[track_caller]
    pub fn stored(&self, name: &str, shape: &[usize], init: Init) -> Result<Tensor, NnError> {
        let (full, scale_name) = (self.name(name), format!("{name}_scale"));
        let Source::Weights(weights) = &self.source else {
            return self.tensor(name, shape, init);
        };
        let host = weights.get(&full)?.to_host()?;
        if !host.dtype.is_f8() || !self.contains(&scale_name) || host.shape != shape {
            return self.tensor(name, shape, init);
        }
        let scale = self.scale(&scale_name, shape[0], shape.len())?;
        Ok(Tensor::parameter(&full, host).dequantize(&scale, self.dtype))
    }

    /// Returns the type of a weight of a file where that is an 8-bit float.
    pub(super) fn stored_type(&self, name: &str) -> Result<Option<DType>, NnError> {
        match &self.source {
            Source::Weights(weights) => {
                let dtype = weights.get(&self.name(name))?.to_host()?.dtype;
                Ok(dtype.is_f8().then_some(dtype))
            }
            Source::Random(_) => Ok(None),
        }
    }

    /// Returns scales of one number, or of one for each of so many rows, as a constant of a rank whose first axis has
    /// them.
    ///
    /// # Errors
    /// When there are none, or they have another shape or are no finite numbers above 0.
    #[track_caller]
    pub(super) fn scale(&self, name: &str, rows: usize, rank: usize) -> Result<Tensor, NnError> {
        let full = self.name(name);
        let Source::Weights(weights) = &self.source else {
            return Err(self.config_error(format!("{full:?} is a scale, which random weights have none of")));
        };
        let host = weights.get(&full)?.to_host()?;
        let count = host.elements();
        if (count != 1 && count != rows) || host.shape.iter().skip(1).any(|d| *d != 1) {
            return Err(NnError::Shape {
                name: full,
                wanted: vec![rows, 1],
                found: host.shape,
            });
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
        let mut dims = vec![1usize; rank];
        if let Some(first) = dims.first_mut() {
            *first = count;
        }
        let scale = HostTensor { shape: dims, ..host };
        Ok(Tensor::parameter(&full, scale))
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
