//! Comparing outputs with expected ones, NumPy's way: `|got − want| ≤ atol + rtol · |want|`.

use ir::HostTensor;
use serde::Serialize;

/// How two tensors differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The largest `|got − want|`; NaN where exactly one of the two is NaN, or the two are different infinities.
    pub max_abs: f64,
    /// The largest `|got − want| / |want|` over elements with `want ≠ 0`.
    pub max_rel: f64,
    /// The flat position of the worst element by the tolerance.
    pub worst: usize,
    pub got: f64,
    pub want: f64,
    /// Elements outside the tolerance.
    pub mismatches: usize,
    pub elements: usize,
}

impl Difference {
    /// Says whether every element is within the tolerance.
    pub fn is_within(&self) -> bool {
        self.mismatches == 0
    }
}

/// Says how two shapes differ.
pub fn shapes(got: &[usize], want: &[usize]) -> String {
    format!("shape {got:?} where {want:?} was expected")
}

/// Compares two tensors of one shape; `Err` says how the shapes differ.
pub fn compare(got: &HostTensor, want: &HostTensor, rtol: f64, atol: f64) -> Result<Difference, String> {
    if got.shape != want.shape {
        return Err(shapes(&got.shape, &want.shape));
    }
    let (g, w) = (got.to_f64(), want.to_f64());
    let mut d = Difference {
        max_abs: 0.0,
        max_rel: 0.0,
        worst: 0,
        got: 0.0,
        want: 0.0,
        mismatches: 0,
        elements: g.len(),
    };
    let mut worst_excess = f64::NEG_INFINITY;
    for (i, (g, w)) in g.iter().zip(&w).enumerate() {
        let same = g == w || (g.is_nan() && w.is_nan());
        let abs = if same { 0.0 } else { (g - w).abs() };
        // A NaN or infinite difference is outside any tolerance.
        let excess = if abs.is_finite() {
            abs - (atol + rtol * w.abs())
        } else {
            f64::INFINITY
        };
        if excess > 0.0 {
            d.mismatches += 1;
        }
        if excess > worst_excess {
            worst_excess = excess;
            (d.worst, d.got, d.want) = (i, *g, *w);
        }
        d.max_abs = if abs.is_nan() || d.max_abs.is_nan() {
            f64::NAN
        } else {
            d.max_abs.max(abs)
        };
        if *w != 0.0 && abs.is_finite() {
            d.max_rel = d.max_rel.max(abs / w.abs());
        }
    }
    Ok(d)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> HostTensor {
        HostTensor::from_f32([values.len()], values).expect("one dim")
    }

    #[test]
    fn differences_are_found() {
        let d = compare(&tensor(&[1.0, 2.0, 3.5]), &tensor(&[1.0, 2.0, 3.0]), 1e-3, 1e-3).expect("same shape");
        assert_eq!((d.mismatches, d.worst, d.max_abs), (1, 2, 0.5));
        assert!(
            compare(&tensor(&[f32::NAN]), &tensor(&[f32::NAN]), 0.0, 0.0)
                .expect("same shape")
                .is_within()
        );
        assert!(
            !compare(&tensor(&[f32::NAN]), &tensor(&[1.0]), 1.0, 1.0)
                .expect("same shape")
                .is_within()
        );
        assert!(
            !compare(&tensor(&[f32::INFINITY]), &tensor(&[f32::NEG_INFINITY]), 1.0, 1.0)
                .expect("same")
                .is_within()
        );
        assert!(compare(&tensor(&[1.0]), &tensor(&[1.0, 2.0]), 0.0, 0.0).is_err());
    }
}
