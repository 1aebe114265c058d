//! Dense arrays of numbers that the evaluator computes with.

use crate::data::{HostTensor, SizeMismatch};
use crate::types::{DType, Scalar};

/// The elements of an [`Array`]: floats of every type as `f64`, integers of every type as `i64`.
#[derive(Clone, PartialEq, Debug)]
pub enum Data {
    Float(Vec<f64>),
    Int(Vec<i64>),
    Bool(Vec<bool>),
}

/// A dense row-major array of an element type, not rounded to it when it is floating point.
#[derive(Clone, PartialEq, Debug)]
pub struct Array {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub data: Data,
}

/// Picks the same expression for each kind of elements and wraps the result in the same kind.
macro_rules! each {
    ($data:expr, $v:ident => $body:expr) => {
        match $data {
            Data::Float($v) => Data::Float($body),
            Data::Int($v) => Data::Int($body),
            Data::Bool($v) => Data::Bool($body),
        }
    };
}
pub(crate) use each;

impl Array {
    /// Makes an array; the data must have the kind and count that type and shape ask for.
    pub fn new(dtype: DType, shape: Vec<usize>, data: Data) -> Array {
        debug_assert_eq!(data.len(), shape.iter().product::<usize>());
        Array { dtype, shape, data }
    }

    /// Makes an array of floats.
    pub fn float(dtype: DType, shape: Vec<usize>, values: Vec<f64>) -> Array {
        Array::new(dtype, shape, Data::Float(values))
    }

    /// Makes an array of integers, wrapping each to the type's width.
    pub fn int(dtype: DType, shape: Vec<usize>, mut values: Vec<i64>) -> Array {
        if dtype != DType::I64 {
            values.iter_mut().for_each(|v| *v = wrap(dtype, *v));
        }
        Array::new(dtype, shape, Data::Int(values))
    }

    /// Makes an array of truth values.
    pub fn bool(shape: Vec<usize>, values: Vec<bool>) -> Array {
        Array::new(DType::Bool, shape, Data::Bool(values))
    }

    /// Decodes a tensor exactly.
    pub fn from_tensor(tensor: &HostTensor) -> Array {
        let data = match tensor.dtype {
            DType::Bool => Data::Bool(tensor.to_i64().into_iter().map(|v| v != 0).collect()),
            d if d.is_int() => Data::Int(tensor.to_i64()),
            _ => Data::Float(tensor.to_f64()),
        };
        Array::new(tensor.dtype, tensor.shape.clone(), data)
    }

    /// Encodes the array, rounding floats to its type.
    ///
    /// # Errors
    /// When the array was made with data that do not fill its shape.
    pub fn to_tensor(&self) -> Result<HostTensor, SizeMismatch> {
        match &self.data {
            Data::Float(v) => HostTensor::from_f64(self.dtype, self.shape.clone(), v),
            Data::Int(v) => HostTensor::from_i64(self.dtype, self.shape.clone(), v),
            Data::Bool(v) => {
                let ints: Vec<i64> = v.iter().map(|b| i64::from(*b)).collect();
                HostTensor::from_i64(self.dtype, self.shape.clone(), &ints)
            }
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Says whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the row-major strides in elements.
    pub fn strides(&self) -> Vec<usize> {
        strides(&self.shape)
    }

    /// The elements as `f64`, whatever the kind.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Data::Float(v) => v.clone(),
            Data::Int(v) => v.iter().map(|v| *v as f64).collect(),
            Data::Bool(v) => v.iter().map(|v| f64::from(u8::from(*v))).collect(),
        }
    }

    /// The elements as `i64`, whatever the kind; floats are truncated and saturate.
    pub fn to_i64(&self) -> Vec<i64> {
        match &self.data {
            Data::Float(v) => v.iter().map(|v| *v as i64).collect(),
            Data::Int(v) => v.clone(),
            Data::Bool(v) => v.iter().map(|v| i64::from(*v)).collect(),
        }
    }

    /// Reads along `strides` from `start` over `shape`: every transpose, broadcast and reversal is this.
    pub(crate) fn strided(&self, shape: Vec<usize>, start: usize, strides: &[isize]) -> Array {
        let data = each!(&self.data, v => {
            let mut out = Vec::with_capacity(shape.iter().product());
            walk(&shape, start, strides, |at| out.push(v[at]));
            out
        });
        Array::new(self.dtype, shape, data)
    }

    /// Broadcasts to a shape that is known to fit.
    pub(crate) fn broadcast_to(&self, shape: &[usize]) -> std::borrow::Cow<'_, Array> {
        if self.shape == shape {
            return std::borrow::Cow::Borrowed(self);
        }
        let steps = broadcast_strides(&self.shape, shape);
        std::borrow::Cow::Owned(self.strided(shape.to_vec(), 0, &steps))
    }

    /// Result axis `i` is axis `perm[i]`.
    pub(crate) fn transpose(&self, perm: &[usize]) -> Array {
        let strides = self.strides();
        let steps: Vec<isize> = perm.iter().map(|a| strides[*a] as isize).collect();
        let shape = perm.iter().map(|a| self.shape[*a]).collect();
        self.strided(shape, 0, &steps)
    }

    /// Moves the axes so that `axis` is last; returns also the permutation that undoes it.
    pub(crate) fn axis_last(&self, axis: usize) -> (Array, Vec<usize>) {
        let rank = self.shape.len();
        let perm: Vec<usize> = (0..rank).filter(|a| *a != axis).chain([axis]).collect();
        let mut back = vec![0; rank];
        perm.iter().enumerate().for_each(|(i, a)| back[*a] = i);
        (self.transpose(&perm), back)
    }
}

impl Data {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            Data::Float(v) => v.len(),
            Data::Int(v) => v.len(),
            Data::Bool(v) => v.len(),
        }
    }

    /// Says whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns one element.
    pub fn get(&self, at: usize) -> Option<Scalar> {
        match self {
            Data::Float(v) => v.get(at).map(|v| Scalar::Float(*v)),
            Data::Int(v) => v.get(at).map(|v| Scalar::Int(*v)),
            Data::Bool(v) => v.get(at).map(|v| Scalar::Bool(*v)),
        }
    }
}

/// Wraps an integer to the width of its type (two's complement; unsigned types from zero).
#[inline]
pub fn wrap(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::I32 => i64::from(value as i32),
        DType::I16 => i64::from(value as i16),
        DType::I8 => i64::from(value as i8),
        DType::U8 => i64::from(value as u8),
        DType::I4 => i64::from(((value as i8) << 4) >> 4),
        DType::U4 => value & 15,
        _ => value,
    }
}

/// Row-major strides.
pub(crate) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

/// Strides that read `from` as if it had shape `to`; axes of size 1 stand still.
pub(crate) fn broadcast_strides(from: &[usize], to: &[usize]) -> Vec<isize> {
    let lead = to.len() - from.len();
    let own = strides(from);
    (0..to.len())
        .map(|i| {
            if i < lead || (from[i - lead] == 1 && to[i] != 1) {
                0
            } else {
                own[i - lead] as isize
            }
        })
        .collect()
}

/// Calls `f` with the offset of each point of `shape` in row-major order.
pub(crate) fn walk(shape: &[usize], start: usize, strides: &[isize], mut f: impl FnMut(usize)) {
    if shape.contains(&0) {
        return;
    }
    let Some((last, outer)) = shape.split_last() else {
        return f(start);
    };
    let step = strides[outer.len()];
    let mut index = vec![0usize; outer.len()];
    let mut base = start as isize;
    loop {
        let mut at = base;
        for _ in 0..*last {
            f(at as usize);
            at += step;
        }
        let mut axis = outer.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            base += strides[axis];
            if index[axis] < outer[axis] {
                break;
            }
            base -= strides[axis] * outer[axis] as isize;
            index[axis] = 0;
        }
    }
}
