//! Tensors with values: `realize()`, `to_vec()`, `item()`, which compile and run behind the scenes.
//!
//! Programs are cached by what they compute: a second expression of the same operations and shapes does not compile, also
//! when its data differs, since data is passed as arguments. Named parameters count as part of the program.
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

use std::sync::LazyLock;

use frontend::tensor::{Element, Tensor, lift};
use ir::HostTensor;

use crate::error::{Error, Result};
use crate::session::{CacheStats, SessionCache, SessionOptions};

/// Computes tensors, with its own options and cache of programs. [`Realize`] uses one that the process shares.
#[derive(Debug)]
pub struct Eager {
    cache: SessionCache,
}

/// Programs kept by each [`Eager`].
const PROGRAMS: usize = 128;

static SHARED: LazyLock<Eager> = LazyLock::new(|| Eager::new(SessionOptions::default()));

impl Eager {
    /// Makes a place to compute with its own options.
    pub fn new(options: SessionOptions) -> Eager {
        Eager {
            cache: SessionCache::new(options, PROGRAMS),
        }
    }

    /// Returns the one that [`Realize`] uses.
    pub fn shared() -> &'static Eager {
        &SHARED
    }

    /// Computes several tensors in one program; what they share is computed once.
    ///
    /// # Errors
    /// The first error of a poisoned tensor; a tensor that depends on inputs; what compiling or running reports.
    pub fn compute(&self, tensors: &[&Tensor]) -> Result<Vec<HostTensor>> {
        if tensors.is_empty() {
            return Ok(Vec::new());
        }
        let lifted = lift("eager", tensors)?;
        let session = self.cache.session(lifted.graph)?;
        Ok(session.run_map(&lifted.arguments)?.into_values().collect())
    }

    /// Returns how many programs were compiled and found again.
    pub fn stats(&self) -> CacheStats {
        self.cache.stats()
    }

    /// Forgets all programs.
    pub fn clear(&self) {
        self.cache.clear();
    }
}

/// Values of tensors that depend on no inputs.
pub trait Realize {
    /// Computes the tensor and returns one that holds the values.
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
        Ok(Tensor::from_host(self.to_host()?))
    }

    fn to_host(&self) -> Result<HostTensor> {
        let missing = || Error::Config("the program gave no value".to_owned());
        Eager::shared().compute(&[self])?.pop().ok_or_else(missing)
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
