//! What MIOpen computes without a solution to be chosen: averages of windows (`miopenPoolingForward`) and softmax
//! (`miopenSoftmaxForward_V2`).
//!
//! MIOpen has windows over channels first. With channels last they are one axis more, along which windows are of one:
//! `[N, H, W, C]` is an image with one channel of `H × W × C`. One spatial axis is two, the first of one. A softmax
//! along an axis is one over the channels of `[before, axis, behind, 1]`.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use ir::dim::Bindings;
use ir::op::{Layout, Pool, PoolKind};
use ir::{DType, TensorType};
use miopen_sys::{
    miopenHandle_t, miopenPoolingDescriptor_t, miopenPoolingMode_t, miopenSoftmaxAlgorithm_t, miopenSoftmaxMode_t,
    miopenTensorDescriptor_t,
};

use super::miopen::{Handle, Miopen, datatype};
use crate::error::RuntimeError;
use crate::gpu::driver::RawStream;

/// A call at some sizes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Plain {
    dtype: DType,
    /// Four or five sizes of each, dense in memory.
    input: Vec<c_int>,
    result: Vec<c_int>,
    kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Kind {
    Average {
        count_padding: bool,
        size: Vec<c_int>,
        pads: Vec<c_int>,
        strides: Vec<c_int>,
    },
    Softmax,
}

/// Says what is not asked for here, with the way out.
fn refuse(call: &str, what: &str, at: &str) -> RuntimeError {
    RuntimeError::Unsupported {
        what: format!("{call} of {what}"),
        at: format!("{at}; compile with --no-libraries, and the kernel is generated instead"),
    }
}

fn small(size: i64, call: &str, at: &str) -> Result<c_int, RuntimeError> {
    c_int::try_from(size).map_err(|_| refuse(call, &format!("a size of {size}"), at))
}

/// Sizes as MIOpen has them; their strides must fit too.
fn all_small(sizes: &[i64], call: &str, at: &str) -> Result<Vec<c_int>, RuntimeError> {
    small(sizes.iter().fold(1i64, |all, size| all.saturating_mul(*size)), call, at)?;
    sizes.iter().map(|size| small(*size, call, at)).collect()
}

impl Plain {
    /// Restates a pooling at some sizes; None where the result has no elements.
    ///
    /// # Errors
    /// What MIOpen does not compute as the op means it: maxima (NaNs are dropped), other types, dilations, more than
    /// three axes, counted padding that is one-sided or that windows reach beyond.
    pub fn pool(
        pool: &Pool,
        input: &TensorType,
        result: &TensorType,
        bindings: &Bindings,
        at: &str,
    ) -> Result<Option<Plain>, RuntimeError> {
        let call = "miopen_pool";
        let PoolKind::Average { count_padding } = pool.kind else {
            return Err(refuse(call, "maxima, which drop NaNs", at));
        };
        if !matches!(input.dtype, DType::F32 | DType::F16) || result.dtype != input.dtype {
            return Err(refuse(call, &format!("{input} to {result}"), at));
        }
        let window = &pool.window;
        let uneven = window.pad_low != window.pad_high || pool.ceil;
        if window.dilations.iter().any(|d| *d != 1) || window.pad_low.iter().any(|p| *p < 0) || count_padding && uneven
        {
            return Err(refuse(call, &format!("windows with {window:?}"), at));
        }
        let (last, spatial) = (pool.layout == Layout::ChannelsLast, pool.size.len());
        if spatial + usize::from(last) > 3 || input.rank() != spatial + 2 {
            return Err(refuse(
                call,
                &format!("{input}, of more axes than MIOpen has windows over,"),
                at,
            ));
        }
        let sizes = |ty: &TensorType| -> Result<Vec<c_int>, RuntimeError> {
            let mut shape = ty.shape.eval(bindings)?;
            if last {
                shape.insert(1, 1);
            } else if spatial == 1 {
                shape.insert(2, 1);
            }
            all_small(&shape, call, at)
        };
        let axes = |list: &[i64], other: i64| -> Result<Vec<c_int>, RuntimeError> {
            let before = (spatial == 1 && !last).then_some(other);
            let behind = last.then_some(other);
            let all = before.into_iter().chain(list.iter().copied()).chain(behind);
            all.map(|size| small(size, call, at)).collect()
        };
        let made = Plain {
            dtype: input.dtype,
            input: sizes(input)?,
            result: sizes(result)?,
            kind: Kind::Average {
                count_padding,
                size: axes(&pool.size, 1)?,
                pads: axes(&window.pad_low, 0)?,
                strides: axes(&window.strides, 1)?,
            },
        };
        Ok((!made.result.contains(&0)).then_some(made))
    }

    /// Restates a softmax at some sizes; None where there are no elements.
    ///
    /// # Errors
    /// Other types than f32 (f16 is rounded more than once), and sizes beyond 32 bits.
    pub fn softmax(
        axis: usize,
        input: &TensorType,
        bindings: &Bindings,
        at: &str,
    ) -> Result<Option<Plain>, RuntimeError> {
        let call = "miopen_softmax";
        let shape = input.shape.eval(bindings)?;
        let Some((before, rest)) = shape.split_at_checked(axis).filter(|(_, rest)| !rest.is_empty()) else {
            return Err(refuse(call, &format!("axis {axis} of {input}"), at));
        };
        if input.dtype != DType::F32 {
            return Err(refuse(call, &input.to_string(), at));
        }
        let sizes = [before.iter().product(), rest[0], rest[1..].iter().product(), 1];
        let sizes = all_small(&sizes, call, at)?;
        Ok((!sizes.contains(&0)).then(|| Plain {
            dtype: input.dtype,
            input: sizes.clone(),
            result: sizes,
            kind: Kind::Softmax,
        }))
    }
}

/// The calls that were described for one run context.
#[derive(Default)]
pub(crate) struct Described(HashMap<Plain, Descriptors>);

// SAFETY: descriptors are data, used by one thread at a time as the handle is.
unsafe impl Send for Described {}

impl Described {
    /// Describes a call, unless that was done.
    pub fn ready(&mut self, handle: &Handle, plain: &Plain, at: &str) -> Result<(), RuntimeError> {
        if !self.0.contains_key(plain) {
            let made = Descriptors::new(handle.raw().0, plain, at)?;
            self.0.insert(plain.clone(), made);
        }
        Ok(())
    }

    /// Enqueues a call that was made ready. MIOpen compiles its kernel when it first meets the sizes.
    pub fn enqueue(
        &self,
        handle: &Handle,
        plain: &Plain,
        [input, result]: [u64; 2],
        stream: RawStream,
        at: &str,
    ) -> Result<(), RuntimeError> {
        let Some(descriptors) = self.0.get(plain) else {
            return Err(RuntimeError::Program(format!("{at}: a call that was not made ready")));
        };
        handle.set_stream(stream, at)?;
        let (library, raw) = handle.raw();
        descriptors.enqueue(library, raw, plain, [input, result], at)
    }
}

/// MIOpen's descriptions of one call; null where not made.
struct Descriptors {
    library: Arc<Miopen>,
    /// Of the input and the result.
    tensors: [miopenTensorDescriptor_t; 2],
    pooling: miopenPoolingDescriptor_t,
}

impl Descriptors {
    fn new(library: &Arc<Miopen>, plain: &Plain, at: &str) -> Result<Descriptors, RuntimeError> {
        let mut made = Descriptors {
            library: library.clone(),
            tensors: [null_mut(); 2],
            pooling: null_mut(),
        };
        let api = library.api();
        for (descriptor, sizes) in made.tensors.iter_mut().zip([&plain.input, &plain.result]) {
            // SAFETY: a place for the result.
            let status = unsafe { api.miopenCreateTensorDescriptor(descriptor) };
            library.check("miopenCreateTensorDescriptor", status, at)?;
            let mut strides = vec![1; sizes.len()];
            for at in (1..sizes.len()).rev() {
                strides[at - 1] = strides[at] * sizes[at];
            }
            let (count, dtype) = (sizes.len() as c_int, datatype(plain.dtype));
            // SAFETY: a descriptor that was made, and as many sizes and strides as are said.
            let status =
                unsafe { api.miopenSetTensorDescriptor(*descriptor, dtype, count, sizes.as_ptr(), strides.as_ptr()) };
            library.check("miopenSetTensorDescriptor", status, at)?;
        }
        if let Kind::Average {
            count_padding,
            size,
            pads,
            strides,
        } = &plain.kind
        {
            // SAFETY: a place for the result.
            let status = unsafe { api.miopenCreatePoolingDescriptor(&mut made.pooling) };
            library.check("miopenCreatePoolingDescriptor", status, at)?;
            let mode = match count_padding {
                true => miopenPoolingMode_t::miopenPoolingAverageInclusive,
                false => miopenPoolingMode_t::miopenPoolingAverage,
            };
            // SAFETY: a descriptor that was made, and as many numbers of each kind as are said.
            let status = unsafe {
                api.miopenSetNdPoolingDescriptor(
                    made.pooling,
                    mode,
                    size.len() as c_int,
                    size.as_ptr().cast_mut(),
                    pads.as_ptr().cast_mut(),
                    strides.as_ptr().cast_mut(),
                )
            };
            library.check("miopenSetNdPoolingDescriptor", status, at)?;
        }
        Ok(made)
    }

    fn enqueue(
        &self,
        library: &Miopen,
        raw: miopenHandle_t,
        plain: &Plain,
        [input, result]: [u64; 2],
        at: &str,
    ) -> Result<(), RuntimeError> {
        let (one, zero) = (1.0f32, 0.0f32);
        let (one, zero) = ((&raw const one).cast::<c_void>(), (&raw const zero).cast::<c_void>());
        let (x, y) = (input as *const c_void, result as *mut c_void);
        let [input, result] = self.tensors;
        match plain.kind {
            Kind::Average { .. } => {
                // SAFETY: handle and descriptors are alive; the operands lie in memory that holds what the descriptors
                // say, until the run was waited for; scalars are read by the call. Averages keep no indices, so there
                // is no workspace.
                let status = unsafe {
                    library.api().miopenPoolingForward(
                        raw,
                        self.pooling,
                        one,
                        input,
                        x,
                        zero,
                        result,
                        y,
                        false,
                        null_mut(),
                        0,
                    )
                };
                library.check("miopenPoolingForward", status, at)
            }
            Kind::Softmax => {
                let algorithm = miopenSoftmaxAlgorithm_t::MIOPEN_SOFTMAX_ACCURATE;
                let mode = miopenSoftmaxMode_t::MIOPEN_SOFTMAX_MODE_CHANNEL;
                // SAFETY: as above.
                let status = unsafe {
                    library
                        .api()
                        .miopenSoftmaxForward_V2(raw, one, input, x, zero, result, y, algorithm, mode)
                };
                library.check("miopenSoftmaxForward_V2", status, at)
            }
        }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let api = self.library.api();
        for descriptor in self.tensors.into_iter().filter(|d| !d.is_null()) {
            // SAFETY: this value's own, and this is its end. A failure leaves nothing to do.
            let _ = unsafe { api.miopenDestroyTensorDescriptor(descriptor) };
        }
        if !self.pooling.is_null() {
            // SAFETY: as above.
            let _ = unsafe { api.miopenDestroyPoolingDescriptor(self.pooling) };
        }
    }
}

#[cfg(test)]
mod tests {
    use ir::op::Window;

    use super::*;

    fn pool(kind: PoolKind, layout: Layout, input: &[i64], result: &[i64], size: &[i64]) -> Pool {
        assert_eq!(input.len(), result.len());
        Pool {
            kind,
            size: size.to_vec(),
            window: Window::unit(size.len()),
            ceil: false,
            layout,
        }
    }

    const AVERAGE: PoolKind = PoolKind::Average { count_padding: false };

    fn made(pool: &Pool, input: &[i64], result: &[i64]) -> Result<Option<Plain>, RuntimeError> {
        let ty = |shape: &[i64]| TensorType::new(DType::F32, shape.to_vec());
        Plain::pool(pool, &ty(input), &ty(result), &Bindings::default(), "s0")
    }

    #[test]
    fn axes_are_restated() {
        for (layout, input, result, size, axes, window) in [
            (
                Layout::ChannelsFirst,
                vec![2, 3, 8, 9],
                vec![2, 3, 7, 7],
                vec![2, 3],
                vec![2, 3, 8, 9],
                vec![2, 3],
            ),
            (
                Layout::ChannelsLast,
                vec![2, 8, 9, 3],
                vec![2, 7, 7, 3],
                vec![2, 3],
                vec![2, 1, 8, 9, 3],
                vec![2, 3, 1],
            ),
            (
                Layout::ChannelsFirst,
                vec![2, 3, 8],
                vec![2, 3, 7],
                vec![2],
                vec![2, 3, 1, 8],
                vec![1, 2],
            ),
            (
                Layout::ChannelsLast,
                vec![2, 8, 3],
                vec![2, 7, 3],
                vec![2],
                vec![2, 1, 8, 3],
                vec![2, 1],
            ),
        ] {
            let op = pool(AVERAGE, layout, &input, &result, &size);
            let plain = made(&op, &input, &result).unwrap().unwrap();
            let Kind::Average { size, .. } = &plain.kind else {
                panic!("{plain:?}")
            };
            assert_eq!((&plain.input, size), (&axes, &window));
        }
        let ty = TensorType::new(DType::F32, vec![2, 3, 5, 7]);
        let softmax = Plain::softmax(1, &ty, &Bindings::default(), "s0").unwrap().unwrap();
        assert_eq!(softmax.input, [2, 3, 35, 1]);
        let empty = TensorType::new(DType::F32, vec![0, 3]);
        assert_eq!(Plain::softmax(1, &empty, &Bindings::default(), "s0").unwrap(), None);
    }

    #[test]
    fn what_it_does_not_take_is_refused_with_the_way_out() {
        let (input, result) = ([1, 2, 4, 4], [1, 2, 3, 3]);
        let average = |count_padding| PoolKind::Average { count_padding };
        let plain = |kind| pool(kind, Layout::ChannelsFirst, &input, &result, &[2, 2]);
        let mut dilated = plain(average(false));
        dilated.window.dilations = vec![2, 2];
        let mut beyond = plain(average(true));
        beyond.ceil = true;
        let mut one_sided = plain(average(true));
        one_sided.window.pad_high = vec![1, 1];
        for op in [plain(PoolKind::Max), dilated, beyond, one_sided] {
            let error = made(&op, &input, &result).unwrap_err().to_string();
            assert!(
                error.contains("miopen_pool") && error.contains("--no-libraries"),
                "{error}"
            );
        }
        let cube = pool(AVERAGE, Layout::ChannelsLast, &[1; 5], &[1; 5], &[1; 3]);
        assert!(made(&cube, &[1; 5], &[1; 5]).unwrap_err().to_string().contains("axes"));
        let wide = TensorType::new(DType::F16, vec![2, 3]);
        for (axis, ty) in [(1, &wide), (2, &TensorType::new(DType::F32, vec![2, 3]))] {
            let error = Plain::softmax(axis, ty, &Bindings::default(), "s0").unwrap_err();
            assert!(error.to_string().contains("miopen_softmax"), "{error}");
        }
    }
}
