//! Constants of integers that are sums of multiples of their positions.

use ir::HostTensor;

/// Constants of up to this many elements are fitted.
const FIT_ELEMENTS: usize = 1 << 14;
/// Constants of index tuples of up to this many numbers are fitted, component by component.
const FIT_INDICES: usize = 1 << 24;
/// The components of an index tuple that are told apart: more axes than tensors have.
pub(super) const MOST_COMPONENTS: usize = 16;

/// What a step along each axis adds, and the first element.
type Line = (Vec<i64>, i64);

/// Says whether a constant is small enough to be looked at.
pub(super) fn is_small(tensor: &HostTensor) -> bool {
    (1..=FIT_ELEMENTS).contains(&tensor.elements())
}

/// Fits a constant of integers.
pub(super) fn whole(tensor: &HostTensor) -> Option<Line> {
    fit_values(&tensor.shape, &tensor.to_i64())
}

/// Fits each component of a constant of index tuples, its last axis, by itself.
pub(super) fn components(tensor: &HostTensor) -> Option<Vec<Line>> {
    let (width, outer) = tensor.shape.split_last()?;
    if !(1..=MOST_COMPONENTS).contains(width) || !(1..=FIT_INDICES).contains(&tensor.elements()) {
        return None;
    }
    let values = tensor.to_i64();
    let component = |i: usize| {
        let component: Vec<i64> = values.iter().skip(i).step_by(*width).copied().collect();
        let (mut steps, first) = fit_values(outer, &component)?;
        steps.push(0);
        Some((steps, first))
    };
    (0..*width).map(component).collect()
}

/// The function that has these values, one or more, in row-major order.
fn fit_values(shape: &[usize], values: &[i64]) -> Option<Line> {
    let mut strides = vec![1usize; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    let coefficients: Vec<i64> = shape
        .iter()
        .zip(&strides)
        .map(|(size, stride)| {
            if *size > 1 {
                values[*stride].checked_sub(values[0])
            } else {
                Some(0)
            }
        })
        .collect::<Option<_>>()?;
    let fits = values.iter().enumerate().all(|(flat, v)| {
        let mut expected = Some(values[0]);
        for ((size, stride), c) in shape.iter().zip(&strides).zip(&coefficients) {
            let step = c.checked_mul((flat / stride % size) as i64);
            expected = expected.zip(step).and_then(|(e, s)| e.checked_add(s));
        }
        expected == Some(*v)
    });
    fits.then(|| (coefficients, values[0]))
}
