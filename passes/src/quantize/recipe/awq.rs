//! Factors of a product's inputs: inputs that carry much are divided before the product and their weights multiplied,
//! so that those weights are rounded more finely.
//!
//! With `x · W = (x / s) · (s · W)`, the rounding error of a weight's row is about the group's step over `s`. Rows that
//! meet large inputs gain more than the others lose (Lin et al.: "AWQ: Activation-aware Weight Quantization for LLM
//! Compression and Acceleration", 2023). `s` is the mean magnitude of an input to a power; the power is searched for on
//! a grid by the error of the products' results, `tr(Eᵀ H E)` for the error `E` of the weight and `H = Σ xᵀx` over
//! calibration data. Products that share an operand share `s`.

use ir::recipe::{Layer, Weight, WeightError, finite};
use ir::{DType, HostTensor};
use rayon::prelude::*;

use super::decide::nearest;
use super::gptq::Moments;

/// Powers that are tried: 0, which changes nothing, to 1.
const GRID: usize = 20;
/// Multiplications that a power is judged by at most; of larger weights so many columns are looked at, evenly spaced.
const WORK: usize = 1 << 31;

/// One of the products that share an operand.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// What was decided of it.
    pub layer: &'a Layer,
    /// Its weight, of two axes.
    pub tensor: &'a HostTensor,
    /// The weight's axis along which it is summed.
    pub depth: usize,
}

/// Returns the products' layers with factors of their inputs, and the scales and zero points that follow; as they were
/// where no power of the grid has a smaller error.
///
/// # Errors
/// The number of the product whose weight is not finite, or for which the moments are not those of its depth.
pub fn scaled_inputs(products: &[Product<'_>], moments: Moments<'_>) -> Result<Vec<Layer>, (usize, WeightError)> {
    let same = || products.iter().map(|p| p.layer.clone()).collect();
    let Some(depth) = products.first().map(|p| p.tensor.shape[p.depth]) else {
        return Ok(Vec::new());
    };
    if moments.sums.len() != depth * depth || moments.magnitudes.len() != depth || moments.rows == 0 {
        return Err((
            0,
            WeightError::Value {
                what: "moments of",
                found: format!(
                    "{} numbers and {} magnitudes",
                    moments.sums.len(),
                    moments.magnitudes.len()
                ),
                expected: "those of the depth",
            },
        ));
    }
    let means: Vec<f64> = moments.magnitudes.iter().map(|m| m / moments.rows as f64).collect();
    if means.iter().chain(moments.sums).any(|v| !v.is_finite()) || means.iter().all(|m| *m == 0.0) {
        return Ok(same());
    }
    let mut best: Option<(f64, Vec<Layer>)> = None;
    for step in 0..GRID {
        let factors = factors(&means, step as f64 / GRID as f64, products[0].tensor.dtype);
        let (mut layers, mut error) = (Vec::with_capacity(products.len()), 0.0);
        for (at, product) in products.iter().enumerate() {
            let mut layer = product.layer.clone();
            layer.inputs = (step > 0).then(|| factors.clone());
            let divided = layer
                .divided(product.tensor, Some(product.depth))
                .map_err(|e| (at, e))?;
            layer.weight = nearest(blank(&layer.weight), &divided).map_err(|e| (at, e))?;
            error += result_error(&layer, product, moments.sums).map_err(|e| (at, e))?;
            layers.push(layer);
        }
        if best.as_ref().is_none_or(|(least, _)| error < *least) {
            best = Some((error, layers));
        }
    }
    Ok(best.map_or_else(same, |(_, layers)| layers))
}

/// A weight's type, axis and groups.
fn blank(weight: &Weight) -> Weight {
    Weight {
        scales: Vec::new(),
        zeros: None,
        integers: None,
        ..weight.clone()
    }
}

/// What inputs are multiplied by: their magnitude to the power, inverted, around 1; numbers of the type.
fn factors(means: &[f64], power: f64, of: DType) -> Vec<f32> {
    let raw: Vec<f64> = means.iter().map(|m| m.powf(power).max(1e-4)).collect();
    let (low, high) = raw.iter().fold((f64::MAX, 0f64), |(l, h), v| (l.min(*v), h.max(*v)));
    let middle = (low * high).sqrt();
    let factor = |s: &f64| {
        let rounded = ir::convert::round_to(of, middle / s);
        // A half type's numbers end earlier than magnitudes do.
        if rounded.is_finite() && rounded >= 2f64.powi(-14) {
            rounded as f32
        } else {
            1.0
        }
    };
    raw.iter().map(factor).collect()
}

/// `Σ (x · E)²` over the data that the sums are of, of some columns.
fn result_error(layer: &Layer, product: &Product<'_>, sums: &[f64]) -> Result<f64, WeightError> {
    let stored = layer.store(product.tensor, Some(product.depth))?;
    let numbers = finite(product.tensor)?;
    let (integers, scales) = (stored.integers.to_i64(), stored.scale.to_f64());
    let zeros = stored
        .zero
        .as_ref()
        .map_or_else(|| vec![0; scales.len()], |z| z.to_i64());
    let positions = layer.weight.scale_positions(&product.tensor.shape);
    let (depth, columns) = (
        product.tensor.shape[product.depth],
        product.tensor.shape[1 - product.depth],
    );
    let at = |k: usize, column: usize| match product.depth {
        0 => k * columns + column,
        _ => column * depth + k,
    };
    let seen = (WORK / (depth * depth).max(1)).clamp(1, columns.max(1));
    let one = |column: usize| -> f64 {
        let off = |k: usize| {
            let (place, factor) = (at(k, column), layer.inputs.as_ref().map_or(1.0, |f| f64::from(f[k])));
            let position = positions[place];
            let made = (integers[place] - zeros[position]) as f64 * scales[position];
            f64::from(numbers[place]) - made * factor
        };
        let off: Vec<f64> = (0..depth).map(off).collect();
        let rows = sums.chunks_exact(depth.max(1)).zip(&off);
        rows.map(|(row, o)| o * row.iter().zip(&off).map(|(h, e)| h * e).sum::<f64>())
            .sum()
    };
    let errors: Vec<f64> = (0..seen).into_par_iter().map(|i| one(i * columns / seen)).collect();
    // In order: the sum of floats depends on it.
    Ok(errors.iter().sum())
}

#[cfg(test)]
mod tests {
    use ir::op::Groups;
    use ir::recipe::Activation;

    use super::*;

    /// Numbers in [−1, 1), the same every time.
    fn numbers(mut state: u64, count: usize) -> Vec<f64> {
        let mut next = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as f64 / (1u64 << 30) as f64 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    struct Data {
        x: Vec<Vec<f64>>,
        sums: Vec<f64>,
        magnitudes: Vec<f64>,
    }

    /// Rows of inputs of which every sixteenth is so many times as large.
    fn data(seed: u64, rows: usize, depth: usize, outlier: f64) -> Data {
        let all = numbers(seed, rows * depth);
        let entry = |i: usize| all[i] * if i % depth % 16 == 3 { outlier } else { 1.0 };
        let x: Vec<Vec<f64>> = (0..rows)
            .map(|r| (0..depth).map(|k| entry(r * depth + k)).collect())
            .collect();
        let mut sums = vec![0.0; depth * depth];
        let mut magnitudes = vec![0.0; depth];
        for row in &x {
            for (i, a) in row.iter().enumerate() {
                magnitudes[i] += a.abs();
                row.iter().enumerate().for_each(|(j, b)| sums[i * depth + j] += a * b);
            }
        }
        Data { x, sums, magnitudes }
    }

    /// `Σ (x·w − (x·f)·w')²` over rows.
    fn error(data: &Data, product: &Product<'_>, layer: &Layer) -> f64 {
        let stored = layer.store(product.tensor, Some(product.depth)).expect("fits");
        let at = layer.weight.scale_positions(&product.tensor.shape);
        let zeros = stored.zero.map_or(vec![0.0; layer.weight.scales.len()], |z| z.to_f64());
        let (integers, wide) = (stored.integers.to_f64(), product.tensor.to_f64());
        let (depth, columns) = (
            product.tensor.shape[product.depth],
            product.tensor.shape[1 - product.depth],
        );
        let mut total = 0.0;
        for x in &data.x {
            for column in 0..columns {
                let term = |(k, x): (usize, &f64)| {
                    let i = if product.depth == 0 {
                        k * columns + column
                    } else {
                        column * depth + k
                    };
                    let factor = layer.inputs.as_ref().map_or(1.0, |f| f64::from(f[k]));
                    x * wide[i] - x * factor * (integers[i] - zeros[at[i]]) * f64::from(layer.weight.scales[at[i]])
                };
                total += x.iter().enumerate().map(term).sum::<f64>().powi(2);
            }
        }
        total
    }

    fn layer(dtype: DType, depth: usize, group: i64, tensor: &HostTensor) -> Layer {
        let weight = Weight {
            dtype,
            axis: Some(1 - depth),
            groups: Some(Groups {
                axis: depth,
                size: group,
            }),
            scales: Vec::new(),
            zeros: None,
            integers: None,
        };
        Layer {
            name: "l".into(),
            weight: nearest(weight, tensor).expect("finite"),
            activation: Activation::Float,
            inputs: None,
        }
    }

    #[test]
    fn inputs_that_carry_much_are_rounded_more_finely() {
        let (depth, columns) = (64, 24);
        let values: Vec<f32> = numbers(11, depth * columns).iter().map(|v| *v as f32).collect();
        let (seen, fresh) = (data(3, 100, depth, 40.0), data(5, 60, depth, 40.0));
        let moments = Moments {
            sums: &seen.sums,
            magnitudes: &seen.magnitudes,
            rows: 100,
        };
        for (dtype, axis) in [(DType::U4, 0), (DType::I4, 1)] {
            let shape = if axis == 0 { [depth, columns] } else { [columns, depth] };
            let tensor = HostTensor::from_f32(shape, &values).expect("as many");
            let plain = layer(dtype, axis, 32, &tensor);
            let product = Product {
                layer: &plain,
                tensor: &tensor,
                depth: axis,
            };
            let made = scaled_inputs(&[product, product], moments).expect("finite");
            assert!(made[0] == made[1], "they share an operand");
            let factors = made[0].inputs.as_ref().expect("outliers ask for factors");
            assert!(factors[3] < factors[4], "what carries much is divided: {factors:?}");
            for (what, data) in [("seen", &seen), ("fresh", &fresh)] {
                let (before, after) = (error(data, &product, &plain), error(data, &product, &made[0]));
                assert!(after < 0.5 * before, "{dtype} {what}: {after} of {before}");
            }
        }
    }

    #[test]
    fn nothing_is_changed_where_nothing_is_gained() {
        let values: Vec<f32> = numbers(7, 32 * 8).iter().map(|v| *v as f32).collect();
        let tensor = HostTensor::from_f32([32, 8], &values).expect("as many");
        let plain = layer(DType::U4, 0, 16, &tensor);
        let product = Product {
            layer: &plain,
            tensor: &tensor,
            depth: 0,
        };
        let (nothing, none) = (vec![0.0; 32 * 32], vec![0.0; 32]);
        let moments = |sums, magnitudes| Moments {
            sums,
            magnitudes,
            rows: 9,
        };
        assert_eq!(
            scaled_inputs(&[product], moments(&nothing, &none)).expect("fits"),
            std::slice::from_ref(&plain)
        );
        // All inputs are alike: whatever the power, the factors are 1.
        let one: Vec<f64> = (0..32 * 32).map(|i| f64::from(u8::from(i % 33 == 0))).collect();
        let made = scaled_inputs(&[product], moments(&one, &[1.0; 32])).expect("fits");
        assert_eq!(made, std::slice::from_ref(&plain));
        assert!(scaled_inputs(&[product], moments(&none, &none)).is_err());
    }
}
