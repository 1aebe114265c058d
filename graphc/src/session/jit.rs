//! A function of tensors that compiles itself at its first call.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use frontend::tensor::{InputSpec, Tensor, build_graph_with};
use indexmap::IndexMap;
use ir::{DType, Dim, HostTensor, Origin, Shape};

use super::cache::recent;
use super::{Session, SessionOptions};
use crate::error::{Error, Result};

/// Makes a compiled function of a function of tensors.
///
/// The function is called with recorded tensors, once for each signature: the arguments' element types, ranks and
/// sizes. Sizes declared [`dynamic`](Jit::dynamic) are no part of the signature: all of them share one program.
///
/// ```
/// use graphc::prelude::*;
///
/// let softmax = jit(|[x]: [Tensor; 1]| x.softmax(-1)).dynamic(0, 0, "rows");
/// for rows in [2usize, 3] {
///     let x = HostTensor::from_f32([rows, 2], &vec![0.0; 2 * rows])?;
///     assert_eq!(softmax.call([&x])?.to_f32(), vec![0.5; 2 * rows]);
/// }
/// assert_eq!(softmax.stats().compiles, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn jit<const N: usize, O: JitOutput>(f: impl Fn([Tensor; N]) -> O + Send + Sync + 'static) -> Jit<N, O> {
    Jit {
        f: Box::new(f),
        options: SessionOptions::default(),
        dynamic: Vec::new(),
        capacity: PROGRAMS,
        programs: Mutex::default(),
        traces: AtomicU64::new(0),
        compiles: AtomicU64::new(0),
        runs: AtomicU64::new(0),
    }
}

/// Programs kept by each [`Jit`].
const PROGRAMS: usize = 128;

/// A function of `N` tensors, compiled once for each signature: see [`jit`]. Several threads may call it at once. The
/// 128 signatures used last keep their programs; [`Jit::capacity`] sets another number.
pub struct Jit<const N: usize, O> {
    f: Box<dyn Fn([Tensor; N]) -> O + Send + Sync>,
    options: SessionOptions,
    dynamic: Vec<Dynamic>,
    capacity: usize,
    /// In order of last use.
    pub(super) programs: Mutex<IndexMap<Signature, Slot>>,
    traces: AtomicU64,
    compiles: AtomicU64,
    runs: AtomicU64,
}

/// An axis whose size is not compiled in.
#[derive(Clone, Debug)]
struct Dynamic {
    argument: usize,
    axis: usize,
    symbol: String,
    bounds: Option<RangeInclusive<i64>>,
}

/// Of each argument the element type, and the sizes that are compiled in.
type Signature = Vec<(DType, Vec<Option<usize>>)>;

/// Held while one thread traces and compiles, so that others with the same signature wait for it.
type Slot = Arc<Mutex<Option<Session>>>;

/// What a [`Jit`] has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JitStats {
    /// Calls of the function with recorded tensors.
    pub traces: u64,
    /// Programs compiled.
    pub compiles: u64,
    /// Runs that gave results.
    pub runs: u64,
}

impl<const N: usize, O: JitOutput> Jit<N, O> {
    /// Declares an axis of an argument dynamic: one program serves every size of at least 1. Axes with one symbol have
    /// equal sizes.
    #[must_use]
    pub fn dynamic(mut self, argument: usize, axis: usize, symbol: &str) -> Jit<N, O> {
        self.dynamic.push(Dynamic {
            argument,
            axis,
            symbol: symbol.to_owned(),
            bounds: None,
        });
        self
    }

    /// Declares an axis dynamic within bounds; other sizes are refused.
    #[must_use]
    pub fn dynamic_within(
        mut self,
        argument: usize,
        axis: usize,
        symbol: &str,
        bounds: RangeInclusive<i64>,
    ) -> Jit<N, O> {
        self.dynamic.push(Dynamic {
            argument,
            axis,
            symbol: symbol.to_owned(),
            bounds: Some(bounds),
        });
        self
    }

    /// Sets how to compile.
    #[must_use]
    pub fn options(mut self, options: SessionOptions) -> Jit<N, O> {
        self.options = options;
        self
    }

    /// Sets how many signatures keep their programs, at least one; the one not used for longest goes when there are
    /// more.
    #[must_use]
    pub fn capacity(mut self, programs: usize) -> Jit<N, O> {
        self.capacity = programs.max(1);
        self
    }

    /// Runs the function; the first call with a new signature compiles.
    ///
    /// # Errors
    /// What recording, compiling or running reports; an axis declared dynamic that an argument does not have.
    #[track_caller]
    pub fn call(&self, arguments: [&HostTensor; N]) -> Result<O::Host> {
        let session = self.session(arguments, &Origin::caller())?;
        let inputs = arguments
            .iter()
            .enumerate()
            .map(|(i, t)| (name(i), (*t).clone()))
            .collect();
        let outputs = session.run_map(&inputs)?;
        self.runs.fetch_add(1, Ordering::Relaxed);
        O::host(outputs.into_values())
            .ok_or_else(|| Error::Config("the program has fewer outputs than the function".into()))
    }

    /// Compiles for the signature of these arguments, if it is new, without running.
    ///
    /// # Errors
    /// As [`Jit::call`].
    #[track_caller]
    pub fn prepare(&self, arguments: [&HostTensor; N]) -> Result<()> {
        self.session(arguments, &Origin::caller()).map(|_| ())
    }

    /// Returns what was done so far.
    pub fn stats(&self) -> JitStats {
        JitStats {
            traces: self.traces.load(Ordering::Relaxed),
            compiles: self.compiles.load(Ordering::Relaxed),
            runs: self.runs.load(Ordering::Relaxed),
        }
    }

    /// `origin` is where the user gave the arguments.
    fn session(&self, arguments: [&HostTensor; N], origin: &Origin) -> Result<Session> {
        let signature = self.signature(arguments)?;
        let slot = self.slot(signature);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = &*slot {
            return Ok(session.clone());
        }
        let inputs: [Tensor; N] = std::array::from_fn(|i| Tensor::from_spec(&self.spec(i, arguments[i], origin)));
        self.traces.fetch_add(1, Ordering::Relaxed);
        let outputs = (self.f)(inputs.clone()).tensors();
        let names: Vec<String> = (0..outputs.len()).map(|i| format!("result{i}")).collect();
        let named: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&outputs).collect();
        let graph = build_graph_with("jit", &inputs.each_ref(), &named)?;
        self.compiles.fetch_add(1, Ordering::Relaxed);
        let session = Session::compile(graph, &self.options)?;
        *slot = Some(session.clone());
        Ok(session)
    }

    fn slot(&self, signature: Signature) -> Slot {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        recent(&mut programs, signature, self.capacity)
    }

    fn signature(&self, arguments: [&HostTensor; N]) -> Result<Signature> {
        let mut signature: Signature = arguments
            .iter()
            .map(|t| (t.dtype, t.shape.iter().map(|d| Some(*d)).collect()))
            .collect();
        for d in &self.dynamic {
            let dims = signature.get_mut(d.argument).map(|(_, dims)| dims);
            match dims.and_then(|dims| dims.get_mut(d.axis)) {
                Some(size) => *size = None,
                None => {
                    let shape = arguments.get(d.argument).map(|t| t.shape.clone());
                    let what = shape.map_or("which does not exist".to_owned(), |s| format!("whose shape is {s:?}"));
                    let message = format!(
                        "axis {} of argument {}, {what}, was declared dynamic as {:?}",
                        d.axis, d.argument, d.symbol
                    );
                    return Err(Error::Config(message));
                }
            }
        }
        Ok(signature)
    }

    fn spec(&self, argument: usize, tensor: &HostTensor, origin: &Origin) -> InputSpec {
        let mut dims: Vec<Dim> = tensor.shape.iter().map(|d| Dim::from(*d)).collect();
        let mine = || self.dynamic.iter().filter(|d| d.argument == argument);
        for d in mine() {
            dims[d.axis] = Dim::symbol(&d.symbol);
        }
        let mut spec = InputSpec {
            origin: origin.clone(),
            ..InputSpec::new(name(argument), tensor.dtype, Shape(dims))
        };
        for d in mine() {
            if let Some(bounds) = &d.bounds {
                spec = spec.bounds(&d.symbol, bounds.clone());
            }
            // The first size seen is the best guess of those to come.
            spec = spec.hint(&d.symbol, tensor.shape[d.axis] as i64);
        }
        spec
    }
}

fn name(argument: usize) -> String {
    format!("argument{argument}")
}

/// What a compiled function may return: a tensor, a tuple, an array or a vector of tensors.
pub trait JitOutput {
    /// The same with values.
    type Host;
    /// Returns the tensors in order.
    fn tensors(self) -> Vec<Tensor>;
    /// Puts values in their places; `None` when there are too few.
    fn host(values: impl Iterator<Item = HostTensor>) -> Option<Self::Host>;
}

impl JitOutput for Tensor {
    type Host = HostTensor;
    fn tensors(self) -> Vec<Tensor> {
        vec![self]
    }
    fn host(mut values: impl Iterator<Item = HostTensor>) -> Option<HostTensor> {
        values.next()
    }
}

impl JitOutput for Vec<Tensor> {
    type Host = Vec<HostTensor>;
    fn tensors(self) -> Vec<Tensor> {
        self
    }
    fn host(values: impl Iterator<Item = HostTensor>) -> Option<Vec<HostTensor>> {
        Some(values.collect())
    }
}

impl<const M: usize> JitOutput for [Tensor; M] {
    type Host = [HostTensor; M];
    fn tensors(self) -> Vec<Tensor> {
        self.into()
    }
    fn host(values: impl Iterator<Item = HostTensor>) -> Option<[HostTensor; M]> {
        values.collect::<Vec<_>>().try_into().ok()
    }
}

impl JitOutput for (Tensor, Tensor) {
    type Host = (HostTensor, HostTensor);
    fn tensors(self) -> Vec<Tensor> {
        vec![self.0, self.1]
    }
    fn host(mut values: impl Iterator<Item = HostTensor>) -> Option<(HostTensor, HostTensor)> {
        Some((values.next()?, values.next()?))
    }
}
