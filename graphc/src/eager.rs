//! Tensors with values: `realize()`, `to_vec()`, `item()`, which compile and run behind the scenes.
//!
//! Programs are cached by what they compute: a second expression of the same operations and shapes does not compile,
//! also when its data differs, since data is passed as arguments. Named parameters count as part of the program.
//!
//! ```
//! use graphc::prelude::*;
//!
//! let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]);
//! let b = (a.matmul(&a) + 1.0).realize()?; // computed once, here
//! assert_eq!(b.to_vec::<f32>()?, [8.0, 11.0, 16.0, 23.0]);
//! assert_eq!(b.sum(..).item::<f32>()?, 58.0);
//! # Ok::<(), graphc::Error>(())
//! ```
//!
//! An [`Eager`] of a GPU leaves what it [realizes](Eager::realize) there, and expressions of that are computed there
//! too.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, LazyLock};

use frontend::tensor::{Argument, Element, Remote, Tensor, lift};
use indexmap::IndexMap;
use ir::{HostTensor, TensorType};
use runtime::{DeviceTensor, Given, Value, Wanted};

use crate::error::{Error, Result};
use crate::session::{CacheStats, Engine, SessionCache, SessionOptions};

/// Computes tensors, with its own options and cache of programs. [`Realize`] uses one that the process shares, or that
/// of the device where a tensor's data is. Cloning it makes another handle.
#[derive(Clone, Debug)]
pub struct Eager {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    cache: SessionCache,
    /// Whether values may stay on a device that is not the host.
    stays: bool,
}

/// Programs kept by each [`Eager`].
const PROGRAMS: usize = 128;

static SHARED: LazyLock<Eager> = LazyLock::new(|| Eager::new(SessionOptions::default()));

/// A tensor's data on a device, with who computed it.
struct OnDevice {
    tensor: DeviceTensor,
    eager: Eager,
}

impl fmt::Debug for OnDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tensor.fmt(f)
    }
}

impl Remote for OnDevice {
    fn ty(&self) -> TensorType {
        TensorType::new(self.tensor.dtype(), self.tensor.shape().to_vec())
    }

    fn to_host(&self) -> std::result::Result<HostTensor, String> {
        self.tensor.download().map_err(|error| error.to_string())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The data of a tensor that is on a device.
fn on_device(argument: &Argument) -> Option<&OnDevice> {
    match argument {
        Argument::Host(_) => None,
        Argument::Remote(remote) => remote.as_any().downcast_ref(),
    }
}

/// Arguments as a session takes them.
fn inputs(arguments: &IndexMap<String, Argument>) -> Result<Vec<(&str, Given)>> {
    let given = arguments.iter().map(|(name, argument)| {
        let given = match (argument, on_device(argument)) {
            (Argument::Host(tensor), _) => Given::from(tensor),
            (Argument::Remote(_), Some(data)) => Given::from(&data.tensor),
            (Argument::Remote(remote), None) => Given::Host(remote.to_host().map_err(Error::Config)?),
        };
        Ok((name.as_str(), given))
    });
    given.collect()
}

impl Eager {
    /// Makes a place to compute with its own options.
    pub fn new(options: SessionOptions) -> Eager {
        Eager {
            inner: Arc::new(Inner {
                stays: options.target.is_gpu() && options.engine == Engine::Compiled,
                cache: SessionCache::new(options, PROGRAMS),
            }),
        }
    }

    /// Returns the one that [`Realize`] uses.
    pub fn shared() -> &'static Eager {
        &SHARED
    }

    /// Computes several tensors in one program; what they share is computed once.
    ///
    /// # Errors
    /// The first error of a poisoned tensor; a tensor that depends on inputs; data on another device; what compiling or
    /// running reports.
    pub fn compute(&self, tensors: &[&Tensor]) -> Result<Vec<HostTensor>> {
        if tensors.is_empty() {
            return Ok(Vec::new());
        }
        let lifted = lift("eager", tensors)?;
        let session = self.inner.cache.session(lifted.graph)?;
        if self.inner.stays {
            let values = session.values(inputs(&lifted.arguments)?, &Wanted::host())?;
            return values.into_values().map(|value| Ok(value.into_host()?)).collect();
        }
        let hosts = lifted.arguments.iter().map(|(name, argument)| {
            let tensor = match argument {
                Argument::Host(tensor) => tensor.clone(),
                Argument::Remote(remote) => remote.to_host().map_err(Error::Config)?,
            };
            Ok((name.clone(), tensor))
        });
        let hosts: IndexMap<String, HostTensor> = hosts.collect::<Result<_>>()?;
        Ok(session.run_map(&hosts)?.into_values().collect())
    }

    /// Computes several tensors in one program and returns tensors that hold the values, on this one's device.
    ///
    /// # Errors
    /// As [`Eager::compute`].
    #[track_caller]
    pub fn realize(&self, tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
        let mut realized = Vec::with_capacity(tensors.len());
        if !self.inner.stays {
            for tensor in self.compute(tensors)? {
                realized.push(Tensor::from_host(tensor));
            }
            return Ok(realized);
        }
        if tensors.is_empty() {
            return Ok(realized);
        }
        let lifted = lift("eager", tensors)?;
        let session = self.inner.cache.session(lifted.graph)?;
        for value in session
            .values(inputs(&lifted.arguments)?, &Wanted::device())?
            .into_values()
        {
            realized.push(match value {
                Value::Host(tensor) => Tensor::from_host(tensor),
                Value::Device(tensor) => Tensor::from_remote(Arc::new(OnDevice {
                    tensor,
                    eager: self.clone(),
                })),
            });
        }
        Ok(realized)
    }

    /// The one that computed the data of a tensor, where that is on a device; else the shared one.
    fn of(tensor: &Tensor) -> Result<Eager> {
        let lifted = lift("eager", &[tensor])?;
        let found = lifted.arguments.values().find_map(on_device);
        Ok(found.map_or_else(|| Eager::shared().clone(), |data| data.eager.clone()))
    }

    /// Returns how many programs were compiled and found again.
    pub fn stats(&self) -> CacheStats {
        self.inner.cache.stats()
    }

    /// Forgets all programs.
    pub fn clear(&self) {
        self.inner.cache.clear();
    }
}

/// Values of tensors that depend on no inputs.
pub trait Realize {
    /// Computes the tensor and returns one that holds the values; on the device where its data is.
    ///
    /// # Errors
    /// As [`Eager::compute`].
    fn realize(&self) -> Result<Tensor>;

    /// Computes the tensor and returns the values.
    ///
    /// # Errors
    /// As [`Eager::compute`].
    fn to_host(&self) -> Result<HostTensor>;

    /// Computes the tensor and returns its elements in row-major order.
    ///
    /// # Errors
    /// As [`Eager::compute`], and elements of another type.
    fn to_vec<T: Element>(&self) -> Result<Vec<T>>;

    /// Computes a tensor of one element and returns that.
    ///
    /// # Errors
    /// As [`Realize::to_vec`], and a number of elements other than one.
    fn item<T: Element>(&self) -> Result<T>;
}

impl Realize for Tensor {
    #[track_caller]
    fn realize(&self) -> Result<Tensor> {
        let missing = || Error::Config("the program gave no value".to_owned());
        Eager::of(self)?.realize(&[self])?.pop().ok_or_else(missing)
    }

    fn to_host(&self) -> Result<HostTensor> {
        let missing = || Error::Config("the program gave no value".to_owned());
        Eager::of(self)?.compute(&[self])?.pop().ok_or_else(missing)
    }

    fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let host = self.to_host()?;
        if host.dtype != T::DTYPE {
            let message = format!(
                "the elements are {}, not {}; cast the tensor first",
                host.dtype,
                T::DTYPE
            );
            return Err(Error::Config(message));
        }
        Ok(T::read(&host.bytes))
    }

    fn item<T: Element>(&self) -> Result<T> {
        match self.to_vec::<T>()?[..] {
            [value] => Ok(value),
            ref values => Err(Error::Config(format!(
                "the tensor has {} elements, not one",
                values.len()
            ))),
        }
    }
}
