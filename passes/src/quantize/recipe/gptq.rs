//! Integers of a weight by what it is multiplied with: each row along the depth is rounded, and the rows behind it make
//! up for its error.
//!
//! With `H = Σ xᵀx` over calibration data, the error of a product is `tr(Eᵀ H E)` for the error `E` of the weight.
//! After row `i` is rounded, the best change of the rows `j > i` is `−(w_i − q_i) · U_ij / U_ii`, where `UᵀU = H⁻¹` and
//! `U` is upper triangular (Frantar, Ashkboos, Hoefler, Alistarh: "GPTQ: Accurate Post-Training Quantization for
//! Generative Pre-trained Transformers", 2022).
//!
//! Columns have nothing to do with each other, so blocks of them are worked on at once.

use ir::recipe::{Weight, WeightError, finite};
use ir::{DType, HostTensor};
use rayon::prelude::*;

use super::decide::scale_of;

/// What is added to the diagonal of `H`, in parts of its mean: directions that no sample shows would be free otherwise.
const DAMPING: f64 = 0.01;
/// What is added more for each entry of the depth over the rows that were seen: what few rows have in common is mostly
/// chance.
const DOUBT: f64 = 0.5;

/// What calibration saw of a product's left operand.
#[derive(Clone, Copy, Debug)]
pub struct Moments<'a> {
    /// `Σ xᵀx`, row-major, of the depth squared.
    pub sums: &'a [f64],
    /// `Σ |x|` of each entry along the depth.
    pub magnitudes: &'a [f64],
    /// How many rows `x` there were.
    pub rows: usize,
}

/// Columns that are worked on together.
const BLOCK: usize = 32;

/// Returns a weight of two axes with scales and integers for data of which `moments` tells.
///
/// The type, axis and groups are those of `weight`. Without groups a column's scale is that of its own range.
///
/// # Errors
/// A weight that is not finite.
pub fn column_feedback(
    weight: &Weight,
    tensor: &HostTensor,
    depth_axis: usize,
    moments: Moments<'_>,
) -> Result<Weight, WeightError> {
    let numbers = finite(tensor)?;
    let (depth, columns) = (tensor.shape[depth_axis], tensor.shape[1 - depth_axis]);
    let Some(factor) = inverse_factor(moments, depth) else {
        return Err(WeightError::Value {
            what: "moments of",
            found: format!("{} numbers, or such that are not finite", moments.sums.len()),
            expected: "the finite products of all pairs along the depth",
        });
    };
    let at = |k: usize, column: usize| match depth_axis {
        0 => k * columns + column,
        _ => column * depth + k,
    };
    let blocks: Vec<Vec<Column>> = (0..columns)
        .collect::<Vec<_>>()
        .par_chunks(BLOCK)
        .map(|block| {
            let own = |column: &usize| (0..depth).map(|k| numbers[at(k, *column)]).collect();
            let rows: Vec<Vec<f32>> = block.iter().map(own).collect();
            rows.into_iter()
                .map(|column| rounded(column, weight, tensor.dtype, &factor))
                .collect()
        })
        .collect();
    let positions = weight.scale_positions(&tensor.shape);
    let count = weight.scale_shape(&tensor.shape).iter().product();
    let mut made = weight.clone();
    made.scales = vec![1.0; count];
    let mut zeros = vec![0; count];
    let mut integers = vec![0i8; numbers.len()];
    for (column, done) in blocks.into_iter().flatten().enumerate() {
        for k in 0..depth {
            let place = at(k, column);
            integers[place] = done.integers[k];
            let (scale, zero) = done.scales[k / done.group];
            made.scales[positions[place]] = scale;
            zeros[positions[place]] = zero;
        }
    }
    made.zeros = (made.dtype == DType::U4).then_some(zeros);
    made.integers = Some(integers);
    Ok(made)
}

struct Column {
    integers: Vec<i8>,
    /// Of each group.
    scales: Vec<(f32, i32)>,
    group: usize,
}

/// Rounds one column, row by row.
fn rounded(mut column: Vec<f32>, weight: &Weight, of: DType, factor: &[f64]) -> Column {
    let depth = column.len();
    let group = weight.groups.map_or(depth, |g| g.size.max(1) as usize);
    let (low, high) = weight.dtype.int_range().unwrap_or((-128, 127));
    let mut done = Column {
        integers: Vec::with_capacity(depth),
        scales: Vec::with_capacity(depth.div_ceil(group)),
        group,
    };
    let mut current = (1.0f32, 0i32);
    for i in 0..depth {
        if i % group == 0 {
            let rows = &column[i..depth.min(i + group)];
            let range = rows.iter().fold((0f32, 0f32), |(l, h), v| (l.min(*v), h.max(*v)));
            current = scale_of(weight.dtype, range, of);
            done.scales.push(current);
        }
        let (scale, zero) = current;
        let whole = ((column[i] / scale).round_ties_even() as i64 + i64::from(zero)).clamp(low, high);
        done.integers.push(whole as i8);
        let row = &factor[i * depth..(i + 1) * depth];
        let error = f64::from(column[i] - (whole - i64::from(zero)) as f32 * scale) / row[i];
        for (value, u) in column[i + 1..].iter_mut().zip(&row[i + 1..]) {
            *value -= (error * u) as f32;
        }
    }
    done
}

/// The upper triangular `U` with `UᵀU = (H + λ)⁻¹`; `None` where `H` is not of the size or not finite.
///
/// `H = R Rᵀ` with an upper triangular `R` is the usual factorisation begun at the end, and `U = R⁻¹`.
fn inverse_factor(moments: Moments<'_>, n: usize) -> Option<Vec<f64>> {
    let (moments, rows) = (moments.sums, moments.rows);
    if moments.len() != n.checked_mul(n)? || moments.iter().any(|v| !v.is_finite()) {
        return None;
    }
    let mean = (0..n).map(|i| moments[i * n + i]).sum::<f64>() / n.max(1) as f64;
    let part = DAMPING + DOUBT * n as f64 / rows.max(1) as f64;
    let damping = if mean > 0.0 { mean * part } else { 1.0 };
    // Rows of Rᵀ: r[j] holds column j of R, entries 0..=j.
    let mut r: Vec<Vec<f64>> = vec![Vec::new(); n];
    for j in (0..n).rev() {
        let mut column: Vec<f64> = moments[j * n..=j * n + j].to_vec();
        column[j] += damping;
        for later in &r[j + 1..] {
            let own = later[j];
            column.iter_mut().zip(later).for_each(|(c, l)| *c -= own * l);
        }
        // Rounding may leave a direction that no sample shows with less than nothing.
        let pivot = column[j].max(damping * 1e-6).sqrt();
        column.iter_mut().for_each(|c| *c /= pivot);
        column[j] = pivot;
        r[j] = column;
    }
    // Row i of U = R⁻¹ solves u R = e_i from left to right.
    let rows: Vec<Vec<f64>> = (0..n)
        .into_par_iter()
        .map(|i| {
            let mut row = vec![0.0; n];
            row[i] = 1.0 / r[i][i];
            for j in i + 1..n {
                let known: f64 = row[i..j].iter().zip(&r[j][i..j]).map(|(u, r)| u * r).sum();
                row[j] = -known / r[j][j];
            }
            row
        })
        .collect();
    Some(rows.concat())
}

#[cfg(test)]
mod tests {
    use ir::op::Groups;

    use super::*;

    /// Numbers in [−1, 1), the same every time.
    fn numbers(seed: u64, count: usize) -> Vec<f64> {
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as f64 / (1u64 << 30) as f64 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Samples whose entries go together: eight directions and a little noise.
    fn correlated(rows: usize, depth: usize) -> Vec<Vec<f64>> {
        let directions = numbers(3, 8 * depth);
        let (mix, noise) = (numbers(5, rows * 8), numbers(7, rows * depth));
        let entry = |row: usize, k: usize| {
            let along: f64 = (0..8).map(|d| mix[row * 8 + d] * directions[d * depth + k]).sum();
            along + 0.1 * noise[row * depth + k]
        };
        (0..rows)
            .map(|row| (0..depth).map(|k| entry(row, k)).collect())
            .collect()
    }

    fn moments(samples: &[Vec<f64>], depth: usize) -> Vec<f64> {
        let mut sums = vec![0.0; depth * depth];
        for sample in samples {
            for (i, a) in sample.iter().enumerate() {
                sums[i * depth..(i + 1) * depth]
                    .iter_mut()
                    .zip(sample)
                    .for_each(|(s, b)| *s += a * b);
            }
        }
        sums
    }

    /// `Σ (x·w − x·w')²` over samples.
    fn error(samples: &[Vec<f64>], tensor: &HostTensor, weight: &Weight, axis: usize) -> f64 {
        let stored = weight.store(tensor).expect("fits");
        let at = weight.scale_positions(&tensor.shape);
        let zeros = stored.zero.map_or(vec![0.0; weight.scales.len()], |z| z.to_f64());
        let integers = stored.integers.to_f64();
        let numbers = tensor.to_f64();
        let off = |i: usize| numbers[i] - (integers[i] - zeros[at[i]]) * f64::from(weight.scales[at[i]]);
        let (depth, columns) = (tensor.shape[axis], tensor.shape[1 - axis]);
        let mut total = 0.0;
        for sample in samples {
            for column in 0..columns {
                let place = |k: usize| {
                    if axis == 0 {
                        k * columns + column
                    } else {
                        column * depth + k
                    }
                };
                let sum: f64 = sample.iter().enumerate().map(|(k, x)| x * off(place(k))).sum();
                total += sum * sum;
            }
        }
        total
    }

    #[test]
    fn the_factor_is_that_of_the_inverse() {
        let n = 6;
        let h = moments(&correlated(40, n), n);
        let mean = (0..n).map(|i| h[i * n + i]).sum::<f64>() / n as f64;
        let moments = |sums| Moments {
            sums,
            magnitudes: &[],
            rows: 40,
        };
        let u = inverse_factor(moments(&h), n).expect("finite");
        // (H + λ) · UᵀU = 1.
        for i in 0..n {
            for j in 0..n {
                let inverse = |a: usize, b: usize| (0..n).map(|k| u[k * n + a] * u[k * n + b]).sum::<f64>();
                let row = |k: usize| {
                    h[i * n + k]
                        + if i == k {
                            mean * (DAMPING + DOUBT * n as f64 / 40.0)
                        } else {
                            0.0
                        }
                };
                let product: f64 = (0..n).map(|k| row(k) * inverse(k, j)).sum();
                assert!(
                    (product - f64::from(u8::from(i == j))).abs() < 1e-9,
                    "{i} {j}: {product}"
                );
                assert!(j >= i || u[i * n + j] == 0.0);
            }
        }
        assert!(inverse_factor(moments(&h[1..]), n).is_none());
        assert!(inverse_factor(moments(&[f64::NAN]), 1).is_none());
    }

    #[test]
    fn errors_are_below_those_of_the_nearest_integers() {
        let (depth, columns) = (64, 12);
        let samples = correlated(200, depth);
        let fresh = correlated(260, depth).split_off(200);
        let sums = moments(&samples, depth);
        let none = vec![0.0; depth * depth];
        let seen = |sums| Moments {
            sums,
            magnitudes: &[],
            rows: 200,
        };
        let values: Vec<f32> = numbers(11, depth * columns).iter().map(|v| *v as f32).collect();
        for (dtype, group, axis) in [
            (DType::U4, Some(32), 0),
            (DType::I4, Some(16), 1),
            (DType::I4, None, 0),
            (DType::U4, None, 1),
            (DType::I8, None, 0),
        ] {
            let shape = if axis == 0 { [depth, columns] } else { [columns, depth] };
            let tensor = HostTensor::from_f32(shape, &values).expect("as many");
            let blank = Weight {
                dtype,
                axis: Some(1 - axis),
                groups: group.map(|size| Groups { axis, size }),
                scales: Vec::new(),
                zeros: None,
                integers: None,
            };
            let mut nearest = column_feedback(&blank, &tensor, axis, seen(&none)).expect("finite");
            // Without data nothing goes together: these are the nearest.
            let own = nearest.integers.take();
            let stored = nearest.store(&tensor).expect("fits");
            let low = i64::from(dtype == DType::U4) * 256;
            let own: Vec<i64> = own
                .expect("chosen")
                .iter()
                .map(|v| (i64::from(*v) + low) % 256)
                .collect();
            let stored: Vec<i64> = stored.integers.to_i64().iter().map(|v| (v + low) % 256).collect();
            assert_eq!(own, stored, "{dtype}");
            let chosen = column_feedback(&blank, &tensor, axis, seen(&sums)).expect("finite");
            for (what, samples) in [("calibration", &samples), ("other", &fresh)] {
                let (plain, fed) = (
                    error(samples, &tensor, &nearest, axis),
                    error(samples, &tensor, &chosen, axis),
                );
                assert!(fed < 0.6 * plain, "{dtype} {group:?} {what}: {fed} and {plain}");
            }
        }
    }

    /// Fewer rows than the depth show some directions by chance: other data fare better all the same.
    #[test]
    fn few_rows_help_too() {
        let (depth, columns, rows) = (64, 24, 24);
        let mut samples = correlated(rows + 300, depth);
        let fresh = samples.split_off(rows);
        let sums = moments(&samples, depth);
        let values: Vec<f32> = numbers(23, depth * columns).iter().map(|v| *v as f32).collect();
        let tensor = HostTensor::from_f32([depth, columns], &values).expect("as many");
        let blank = Weight {
            dtype: DType::U4,
            axis: Some(1),
            groups: Some(Groups { axis: 0, size: 32 }),
            scales: Vec::new(),
            zeros: None,
            integers: None,
        };
        let chosen = |sums: &[f64]| {
            let weight = column_feedback(
                &blank,
                &tensor,
                0,
                Moments {
                    sums,
                    magnitudes: &[],
                    rows,
                },
            );
            error(&fresh, &tensor, &weight.expect("finite"), 0)
        };
        let (plain, fed) = (chosen(&vec![0.0; depth * depth]), chosen(&sums));
        assert!(fed < 0.9 * plain, "{fed} and {plain}");
    }
}
