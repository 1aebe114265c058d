//! Small tensors whose every element is known at import: the shape arithmetic.
//!
//! Exporters compute shapes inside the graph (`Shape → Gather → Mul → Concat → Reshape`). A [`Known`] carries such a
//! tensor as dims, which may be symbolic, or as floats where a size goes through floating point. Ops over known
//! operands give known results, and no node; [`FOLD_LIMIT`] keeps this to shapes, masks of shapes and the like.

mod arithmetic;
mod ratio;

use ir::convert::round_to;
use ir::dim::Dim;
use ir::op::{BinaryLaw, BinaryOp, Comparison, ReduceOp, UnaryLaw, UnaryOp};
use ir::{DType, HostTensor};

use super::sizes::Sizes;
#[cfg(test)]
use arithmetic::decide;
use arithmetic::{binary_dim, fit, truth, unary_dim};
use ratio::Ratio;

/// The most elements a known tensor has.
pub(super) const FOLD_LIMIT: usize = 256;

/// A tensor of known elements, row-major.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Known {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub elements: Vec<Element>,
}

/// One element: a dim for integers and bools (0 and 1), a float or a quotient of sizes for floats.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Element {
    Dim(Dim),
    Float(f64),
    /// The quotient of two sizes that are not both numbers.
    Ratio(Ratio),
}

impl Element {
    fn dim(&self) -> Option<&Dim> {
        match self {
            Element::Dim(d) => Some(d),
            Element::Float(_) | Element::Ratio(_) => None,
        }
    }

    /// A quotient, as a float where it is a number.
    fn of_ratio(ratio: Ratio, dtype: DType) -> Element {
        match ratio.as_number() {
            Some(v) => Element::Float(round_to(dtype, v)),
            None => Element::Ratio(ratio),
        }
    }
}

impl From<bool> for Element {
    fn from(v: bool) -> Element {
        Element::Dim(Dim::Const(i64::from(v)))
    }
}

impl Known {
    /// A vector of `i64` dims.
    pub fn vector(dims: Vec<Dim>) -> Known {
        Known {
            dtype: DType::I64,
            shape: vec![dims.len()],
            elements: dims.into_iter().map(Element::Dim).collect(),
        }
    }

    /// An `i64` scalar.
    pub fn scalar(dim: Dim) -> Known {
        Known {
            dtype: DType::I64,
            shape: Vec::new(),
            elements: vec![Element::Dim(dim)],
        }
    }

    /// Decodes a tensor that is small enough.
    pub fn from_tensor(tensor: &HostTensor) -> Option<Known> {
        Known::of_most(tensor, FOLD_LIMIT)
    }

    /// Decodes a tensor of so many elements at most.
    pub fn of_most(tensor: &HostTensor, most: usize) -> Option<Known> {
        if tensor.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))? > most {
            return None;
        }
        let elements = if tensor.dtype.is_float() {
            tensor.to_f64().into_iter().map(Element::Float).collect()
        } else {
            tensor
                .to_i64()
                .into_iter()
                .map(|v| Element::Dim(Dim::Const(v)))
                .collect()
        };
        Some(Known {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            elements,
        })
    }

    /// Encodes the tensor, if no element is symbolic.
    pub fn to_tensor(&self) -> Option<HostTensor> {
        if self.dtype.is_float() {
            let values = self.floats()?;
            HostTensor::from_f64(self.dtype, self.shape.clone(), &values).ok()
        } else {
            HostTensor::from_i64(self.dtype, self.shape.clone(), &self.ints()?).ok()
        }
    }

    /// Says whether an element depends on an open size.
    pub fn is_open(&self) -> bool {
        self.elements.iter().any(|e| match e {
            Element::Dim(d) => d.as_const().is_none(),
            Element::Float(_) => false,
            Element::Ratio(_) => true,
        })
    }

    /// Returns the elements as dims; `None` for floats.
    pub fn dims(&self) -> Option<Vec<Dim>> {
        self.elements.iter().map(|e| e.dim().cloned()).collect()
    }

    /// Returns the elements as integers, if none is symbolic.
    pub fn ints(&self) -> Option<Vec<i64>> {
        self.elements.iter().map(|e| e.dim()?.as_const()).collect()
    }

    /// Returns the elements as numbers, if none is symbolic.
    pub fn floats(&self) -> Option<Vec<f64>> {
        self.elements
            .iter()
            .map(|e| match e {
                Element::Float(v) => Some(*v),
                Element::Dim(d) => d.as_const().map(|v| v as f64),
                Element::Ratio(_) => None,
            })
            .collect()
    }

    /// A size times an f32, rounded down; `None` where the float is no simple fraction.
    pub fn scaled(size: &Dim, by: f64, sizes: &Sizes) -> Option<Dim> {
        let by = Ratio::of_float(by, DType::F32)?;
        let scaled = Ratio::whole(size.clone()).binary(BinaryOp::Mul, &by, sizes)?;
        scaled.truncate(sizes)
    }

    /// A scalar float of a size.
    pub fn float(dtype: DType, size: Dim) -> Known {
        Known {
            dtype,
            shape: Vec::new(),
            elements: vec![Element::of_ratio(Ratio::whole(size), dtype)],
        }
    }

    /// Returns the elements as quotients of sizes; `None` where a float is no simple fraction.
    pub fn ratios(&self) -> Option<Vec<(Dim, Dim)>> {
        let one = |e: &Element| match e {
            Element::Dim(d) => Some((d.clone(), Dim::Const(1))),
            Element::Float(v) => Ratio::of_float(*v, self.dtype).map(Ratio::parts),
            Element::Ratio(r) => Some(r.clone().parts()),
        };
        self.elements.iter().map(one).collect()
    }

    /// Makes a tensor of the same type from elements of this one: `from[i]` is the source of element `i`.
    pub fn select(&self, shape: Vec<usize>, from: impl IntoIterator<Item = usize>) -> Option<Known> {
        let elements: Option<Vec<Element>> = from.into_iter().map(|i| self.elements.get(i).cloned()).collect();
        let elements = elements.filter(|e| e.len() == shape.iter().product::<usize>())?;
        Some(Known {
            dtype: self.dtype,
            shape,
            elements,
        })
    }

    /// Broadcasts to a shape as NumPy does.
    pub fn broadcast(&self, shape: &[usize]) -> Option<Known> {
        let count = count(shape)?;
        let lead = shape.len().checked_sub(self.shape.len())?;
        if (0..self.shape.len()).any(|i| self.shape[i] != 1 && self.shape[i] != shape[lead + i]) {
            return None;
        }
        let source = |flat: usize| {
            let index = unflatten(flat, shape);
            self.shape
                .iter()
                .zip(&index[lead..])
                .fold(0, |at, (&size, &i)| at * size + if size == 1 { 0 } else { i })
        };
        self.select(shape.to_vec(), (0..count).map(source))
    }

    /// Permutes axes.
    pub fn transpose(&self, perm: &[usize]) -> Option<Known> {
        let shape: Vec<usize> = perm.iter().map(|&p| self.shape[p]).collect();
        let source = |flat: usize| {
            let index = unflatten(flat, &shape);
            let mut from = vec![0; index.len()];
            for (axis, &p) in perm.iter().enumerate() {
                from[p] = index[axis];
            }
            flatten(&from, &self.shape)
        };
        self.select(shape.clone(), (0..self.elements.len()).map(source))
    }

    /// Takes `start + i·step`, `i < size`, along each axis.
    pub fn slice(&self, starts: &[i64], sizes: &[usize], steps: &[i64]) -> Option<Known> {
        let count = count(sizes)?;
        let mut from = Vec::with_capacity(count);
        for flat in 0..count {
            let mut at = 0usize;
            for (axis, &i) in unflatten(flat, sizes).iter().enumerate() {
                let position = steps[axis].checked_mul(i as i64)?.checked_add(starts[axis])?;
                let position = usize::try_from(position).ok().filter(|p| *p < self.shape[axis])?;
                at = at * self.shape[axis] + position;
            }
            from.push(at);
        }
        self.select(sizes.to_vec(), from)
    }

    /// NumPy's `take` with known indices.
    pub fn take(&self, axis: usize, indices: &Known) -> Option<Known> {
        let size = self.shape[axis];
        let wrap = |i: i64| {
            usize::try_from(if i < 0 { i + size as i64 } else { i })
                .ok()
                .filter(|i| *i < size)
        };
        let picks: Vec<usize> = indices.ints()?.into_iter().map(wrap).collect::<Option<_>>()?;
        let inner: usize = self.shape[axis + 1..].iter().product();
        let outer: usize = self.shape[..axis].iter().product();
        let shape = [&self.shape[..axis], &indices.shape, &self.shape[axis + 1..]].concat();
        count(&shape)?;
        let picks = &picks;
        let from = (0..outer).flat_map(|o| {
            picks
                .iter()
                .flat_map(move |&p| (0..inner).map(move |i| (o * size + p) * inner + i))
        });
        self.select(shape, from)
    }

    /// Joins along an axis.
    pub fn concat(parts: &[&Known], axis: usize) -> Option<Known> {
        let first = parts.first()?;
        let mut shape = first.shape.clone();
        shape[axis] = parts.iter().map(|p| p.shape[axis]).sum();
        count(&shape)?;
        let outer: usize = first.shape[..axis].iter().product();
        let mut elements = Vec::new();
        for o in 0..outer {
            for part in parts {
                let chunk: usize = part.shape[axis..].iter().product();
                elements.extend_from_slice(part.elements.get(o * chunk..(o + 1) * chunk)?);
            }
        }
        Some(Known {
            dtype: first.dtype,
            shape,
            elements,
        })
    }

    /// Converts to another type; `None` where a symbolic size would become a float or could be cut off.
    pub fn cast(&self, to: DType, sizes: &Sizes) -> Option<Known> {
        let convert = |e: &Element| -> Option<Element> {
            Some(match e {
                Element::Float(v) if to.is_float() => Element::Float(round_to(to, *v)),
                Element::Float(v) if to == DType::Bool => (*v != 0.0).into(),
                // Rust's `as` truncates and saturates, with 0 for NaN, as the evaluator does.
                Element::Float(v) => Element::Dim(Dim::Const(fit(to, *v as i64)?)),
                Element::Ratio(r) if matches!(to, DType::F32 | DType::F64) => Element::Ratio(r.clone()),
                Element::Ratio(r) if matches!(to, DType::I64 | DType::I32) => Element::Dim(r.truncate(sizes)?),
                Element::Ratio(_) => return None,
                Element::Dim(d) => match d.as_const() {
                    Some(v) if to.is_float() => Element::Float(round_to(to, v as f64)),
                    Some(v) if to == DType::Bool => (v != 0).into(),
                    Some(v) => Element::Dim(Dim::Const(fit(to, v)?)),
                    None if to == DType::Bool => Element::Dim(truth(Comparison::Ne, d, &Dim::Const(0), sizes)?),
                    None if matches!(to, DType::F32 | DType::F64) => Element::Ratio(Ratio::whole(d.clone())),
                    None if matches!(to, DType::I64 | DType::I32) => Element::Dim(d.clone()),
                    None => return None,
                },
            })
        };
        let elements = self.elements.iter().map(convert).collect::<Option<_>>()?;
        Some(Known {
            dtype: to,
            shape: self.shape.clone(),
            elements,
        })
    }

    /// Applies a unary op.
    pub fn unary(&self, op: UnaryOp, sizes: &Sizes) -> Option<Known> {
        let one = |e: &Element| match e {
            Element::Dim(d) => unary_dim(op, d, self.dtype, sizes).map(Element::Dim),
            // Functions that are rounded differently in each library are left to the evaluator.
            Element::Float(v) => op
                .is(UnaryLaw::Exact)
                .then(|| Element::Float(round_to(self.dtype, op.on_float(*v)))),
            Element::Ratio(r) => r.unary(op, sizes).map(|r| Element::of_ratio(r, self.dtype)),
        };
        let elements = self.elements.iter().map(one).collect::<Option<_>>()?;
        Some(Known {
            dtype: self.dtype,
            shape: self.shape.clone(),
            elements,
        })
    }

    /// Applies a binary op with broadcasting.
    pub fn binary(op: BinaryOp, a: &Known, b: &Known, sizes: &Sizes) -> Option<Known> {
        let shape = broadcast_shapes(&a.shape, &b.shape)?;
        let (a, b) = (a.broadcast(&shape)?, b.broadcast(&shape)?);
        let one = |(x, y): (&Element, &Element)| match (x, y, op.comparison()) {
            (Element::Dim(x), Element::Dim(y), Some(order)) => truth(order, x, y, sizes).map(Element::Dim),
            (Element::Dim(x), Element::Dim(y), None) => binary_dim(op, x, y, a.dtype, sizes).map(Element::Dim),
            (Element::Float(x), Element::Float(y), Some(order)) => Some(Element::from(order.holds(x, y))),
            (Element::Float(x), Element::Float(y), None) => op
                .is(BinaryLaw::Exact)
                .then(|| Element::Float(round_to(a.dtype, op.on_floats(*x, *y)))),
            (x @ (Element::Float(_) | Element::Ratio(_)), y @ (Element::Float(_) | Element::Ratio(_)), order) => {
                let of = |e: &Element| match e {
                    Element::Float(v) => Ratio::of_float(*v, a.dtype),
                    Element::Ratio(r) => Some(r.clone()),
                    Element::Dim(_) => None,
                };
                let (x, y) = (of(x)?, of(y)?);
                match order {
                    Some(order) => x.compare(order, &y, sizes).map(Element::Dim),
                    None => x.binary(op, &y, sizes).map(|r| Element::of_ratio(r, a.dtype)),
                }
            }
            _ => None,
        };
        let elements = a.elements.iter().zip(&b.elements).map(one).collect::<Option<_>>()?;
        let dtype = if op.is_comparison() { DType::Bool } else { a.dtype };
        Some(Known { dtype, shape, elements })
    }

    /// Picks from one of two with broadcasting: `no + condition · (yes − no)` where the condition depends on open
    /// sizes.
    pub fn choose(condition: &Known, yes: &Known, no: &Known) -> Option<Known> {
        let shape = broadcast_shapes(&broadcast_shapes(&condition.shape, &yes.shape)?, &no.shape)?;
        let (c, y, n) = (
            condition.broadcast(&shape)?.dims()?,
            yes.broadcast(&shape)?,
            no.broadcast(&shape)?,
        );
        let elements =
            c.iter()
                .zip(y.elements.into_iter().zip(n.elements))
                .map(|(c, (y, n))| match (c.as_const(), y, n) {
                    (Some(0), _, n) => Some(n),
                    (Some(_), y, _) => Some(y),
                    (None, y, n) if y == n => Some(y),
                    (None, Element::Dim(y), Element::Dim(n)) => {
                        let chosen = n.clone() + c.checked_mul(&(y - n))?;
                        Some(Element::Dim(chosen)).filter(|_| c.is_small())
                    }
                    _ => None,
                });
        Some(Known {
            dtype: yes.dtype,
            shape,
            elements: elements.collect::<Option<_>>()?,
        })
    }

    /// Running sums along an axis.
    pub fn running_sum(&self, axis: usize, exclusive: bool, reverse: bool) -> Option<Known> {
        let mut elements = self.elements.clone();
        let size = self.shape[axis];
        for (flat, element) in elements.iter_mut().enumerate() {
            let mut index = unflatten(flat, &self.shape);
            let at = index[axis];
            let taken = match (reverse, exclusive) {
                (false, exclusive) => 0..at + usize::from(!exclusive),
                (true, exclusive) => at + usize::from(exclusive)..size,
            };
            let mut sum = Dim::Const(0);
            for from in taken {
                index[axis] = from;
                sum = sum.checked_add(self.elements[flatten(&index, &self.shape)].dim()?)?;
            }
            *element = Element::Dim(sum);
        }
        // Sums that would wrap are left to the evaluator.
        let fits = |e: &Element| {
            e.dim()
                .is_some_and(|d| d.as_const().is_none_or(|v| fit(self.dtype, v).is_some()))
        };
        elements.iter().all(fits).then(|| Known {
            elements,
            ..self.clone()
        })
    }

    /// Puts elements around a tensor.
    pub fn pad(&self, low: &[usize], high: &[usize], value: &Element) -> Option<Known> {
        let shape: Vec<usize> = (0..self.shape.len())
            .map(|i| low[i] + self.shape[i] + high[i])
            .collect();
        let elements = (0..count(&shape)?).map(|flat| {
            let index = unflatten(flat, &shape);
            let inside: Option<Vec<usize>> = (0..shape.len())
                .map(|i| index[i].checked_sub(low[i]).filter(|at| *at < self.shape[i]))
                .collect();
            inside.map_or_else(|| value.clone(), |at| self.elements[flatten(&at, &self.shape)].clone())
        });
        Some(Known {
            dtype: self.dtype,
            elements: elements.collect(),
            shape,
        })
    }

    /// Folds axes (sorted).
    pub fn reduce(&self, op: ReduceOp, axes: &[usize], keep: bool, sizes: &Sizes) -> Option<Known> {
        let op = op.pairwise()?;
        let kept: Vec<usize> = (0..self.shape.len())
            .map(|a| if axes.contains(&a) { 1 } else { self.shape[a] })
            .collect();
        let mut results: Vec<Option<Element>> = vec![None; kept.iter().product()];
        for (flat, element) in self.elements.iter().enumerate() {
            let mut index = unflatten(flat, &self.shape);
            axes.iter().for_each(|&a| index[a] = 0);
            let slot = &mut results[flatten(&index, &kept)];
            *slot = Some(match slot.take() {
                None => element.clone(),
                Some(Element::Dim(x)) => Element::Dim(binary_dim(op, &x, element.dim()?, self.dtype, sizes)?),
                Some(Element::Float(_) | Element::Ratio(_)) => return None,
            });
        }
        // Of no elements, a sum is 0 and a product 1; the others stay with the evaluator.
        let empty = match op {
            BinaryOp::Add => Some(0),
            BinaryOp::Mul => Some(1),
            _ => None,
        };
        let fill = |e: Option<Element>| match (e, empty) {
            (None, Some(v)) if !self.dtype.is_float() => Some(Element::Dim(Dim::Const(v))),
            (e, _) => e,
        };
        let elements = results.into_iter().map(fill).collect::<Option<_>>()?;
        let shape = if keep {
            kept
        } else {
            (0..self.shape.len())
                .filter(|a| !axes.contains(a))
                .map(|a| self.shape[a])
                .collect()
        };
        Some(Known {
            dtype: self.dtype,
            shape,
            elements,
        })
    }
}

fn broadcast_shapes(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
    let shape: Option<Vec<usize>> = (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect();
    shape.filter(|s| count(s).is_some())
}

/// Returns the number of elements, if it is within the limit.
fn count(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul(*d))
        .filter(|n| *n <= FOLD_LIMIT)
}

fn unflatten(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (i, &size) in index.iter_mut().zip(shape).rev() {
        *i = flat % size;
        flat /= size;
    }
    index
}

fn flatten(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |at, (&i, &size)| at * size + i)
}

#[cfg(test)]
#[path = "known_tests.rs"]
mod tests;
