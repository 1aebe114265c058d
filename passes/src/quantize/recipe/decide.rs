//! Decides which layers are quantised, and with which scales.

use indexmap::IndexMap;
use ir::op::Groups;
use ir::recipe::{Activation, Kept, Layer, Recipe, Weight};
use ir::{DType, HostTensor};

use super::error::QuantizeError;
use super::layers::{FoundLayer, Layers, matches};

/// The group of int4 weights, where none is given: the largest divisor of the depth up to there.
pub(crate) const LARGEST_GROUP: usize = 128;
/// Smaller groups spend more on scales than they save.
const SMALLEST_GROUP: usize = 16;
/// Weights of fewer elements are left alone where nothing but their size would be won.
const FEW: usize = 4096;

/// What is quantised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    /// Weights to 8 bits.
    WeightsInt8,
    /// Weights of products to 4 bits in groups, those of convolutions to 8 bits.
    WeightsInt4,
    /// Weights and activations to 8 bits, by ranges that calibration found.
    StaticInt8,
    /// Weights to 8 bits, activations to 8 bits by the range that each run finds.
    DynamicInt8,
    /// Weights to 8-bit floats.
    WeightsFp8,
    /// Weights and activations to 8-bit floats, by ranges that calibration found.
    StaticFp8,
    /// Weights to 8-bit floats, activations to 8-bit floats by the largest magnitude that each run finds.
    DynamicFp8,
}

impl Scheme {
    /// Says whether operands are quantised by ranges that calibration finds.
    pub fn needs_ranges(self) -> bool {
        matches!(self, Scheme::StaticInt8 | Scheme::StaticFp8)
    }

    /// Says whether 8-bit floats are stored, not integers.
    pub fn is_float(self) -> bool {
        matches!(self, Scheme::WeightsFp8 | Scheme::StaticFp8 | Scheme::DynamicFp8)
    }

    /// Says whether weights alone are quantised.
    pub fn is_weight_only(self) -> bool {
        matches!(self, Scheme::WeightsInt8 | Scheme::WeightsInt4 | Scheme::WeightsFp8)
    }
}

/// How [`decide`] decides.
#[derive(Clone, Debug)]
pub struct Decision {
    pub scheme: Scheme,
    /// The 8-bit float of the schemes that have one: files have OCP's.
    pub float: DType,
    /// Neighbours along the depth that share a scale; of int4 weights by default the largest divisor of the depth up to
    /// 128.
    pub group: Option<i64>,
    /// No zero points. Weights of 8 bits have none anyway.
    pub symmetric: bool,
    /// One scale for a weight of 8 bits, not one a column.
    pub per_tensor: bool,
    /// Whether weights of few elements are left alone.
    pub skip_small: bool,
    /// Names of layers that stay, or patterns of `*` and `?`.
    pub exclude: Vec<String>,
}

impl Decision {
    /// The scheme with nothing else said.
    pub fn new(scheme: Scheme) -> Decision {
        Decision {
            scheme,
            float: DType::F8E4M3FN,
            group: None,
            symmetric: false,
            per_tensor: false,
            skip_small: scheme.is_weight_only(),
            exclude: Vec::new(),
        }
    }
}

/// What a layer's operand ranges over.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Range {
    pub low: f64,
    pub high: f64,
}

/// Decides for each layer of a graph. `ranges` has those of the layers' operands where [`Scheme::needs_ranges`].
///
/// # Errors
/// A weight that is not finite, a group that does not divide a depth, a name in `exclude` that no layer has, or no
/// range for a layer.
pub fn decide(layers: &Layers, options: &Decision, ranges: &IndexMap<String, Range>) -> Result<Recipe, QuantizeError> {
    check_names(layers, &options.exclude)?;
    let mut recipe = Recipe {
        layers: Vec::new(),
        kept: layers.others.clone(),
    };
    let mut undivided: Vec<(String, usize)> = Vec::new();
    for found in &layers.found {
        let reason = if options.exclude.iter().any(|pattern| matches(pattern, &found.name)) {
            Some("it is excluded".to_owned())
        } else if options.skip_small && found.weight.elements() < FEW {
            Some(format!(
                "it has {} weights; fewer than {FEW} are not worth their scales",
                found.weight.elements()
            ))
        } else {
            None
        };
        if let Some(reason) = reason {
            let name = found.name.clone();
            recipe.kept.push(Kept { name, reason });
            continue;
        }
        let error = |error| QuantizeError::Weight {
            layer: found.name.clone(),
            error,
        };
        let shape = match shape(found, options) {
            Ok(shape) => shape,
            Err(depth) => {
                undivided.push((found.name.clone(), depth));
                continue;
            }
        };
        let weight = nearest(shape, &found.weight).map_err(error)?;
        let activation = match options.scheme {
            Scheme::WeightsInt8 | Scheme::WeightsInt4 | Scheme::WeightsFp8 => Activation::Float,
            Scheme::DynamicFp8 => Activation::DynamicFloat { dtype: options.float },
            // What stands for 0 is then known only when it runs, and padding is a number of the kernel's.
            Scheme::DynamicInt8 if found.padded => Activation::Float,
            // ONNX's op for it takes f32 alone.
            Scheme::DynamicInt8 if found.weight.dtype != DType::F32 => Activation::Float,
            Scheme::DynamicInt8 => Activation::Dynamic,
            Scheme::StaticInt8 | Scheme::StaticFp8 => {
                let range = ranges.get(&found.name).ok_or_else(|| QuantizeError::NoRange {
                    layer: found.name.clone(),
                })?;
                let activation = match options.scheme.is_float() {
                    true => static_float(*range, options.float, found.weight.dtype),
                    false => static_activation(*range, options.symmetric, found.weight.dtype),
                };
                activation.ok_or_else(|| QuantizeError::Range {
                    layer: found.name.clone(),
                    low: range.low,
                    high: range.high,
                })?
            }
        };
        recipe.layers.push(Layer {
            name: found.name.clone(),
            weight,
            activation,
            inputs: None,
        });
    }
    match options.group {
        Some(group) if !undivided.is_empty() => {
            let products = layers.found.iter().filter(|l| l.depth.is_some());
            let common = products.map(FoundLayer::summed).reduce(common_divisor);
            let common = common.and_then(|depth| largest_divisor(depth, LARGEST_GROUP));
            Err(QuantizeError::Group {
                group,
                layers: undivided,
                common,
            })
        }
        _ => Ok(recipe),
    }
}

/// Checks that each name or pattern is that of a layer.
fn check_names(layers: &Layers, names: &[String]) -> Result<(), QuantizeError> {
    let known = || {
        let found = layers.found.iter().map(|l| &l.name);
        found.chain(layers.others.iter().map(|l| &l.name))
    };
    for name in names {
        if !known().any(|layer| matches(name, layer)) {
            let near = known().map(|n| (strsim::osa_distance(name, n), n)).min();
            let near = near.filter(|(distance, n)| *distance <= name.len().max(n.len()) / 2);
            let mut all: Vec<String> = known().cloned().collect();
            all.sort_by_key(|n| strsim::osa_distance(name, n));
            return Err(QuantizeError::UnknownLayer {
                name: name.clone(),
                near: near.map(|(_, n)| n.clone()),
                known: all,
            });
        }
    }
    Ok(())
}

/// The type, axis and groups of a layer's weight, without scales; `Err` has the depth that the group does not divide.
fn shape(layer: &FoundLayer, options: &Decision) -> Result<Weight, usize> {
    let depth = layer.summed();
    let mut weight = Weight {
        dtype: if options.scheme.is_float() {
            options.float
        } else {
            DType::I8
        },
        axis: (!options.per_tensor).then_some(layer.columns),
        groups: None,
        scales: Vec::new(),
        zeros: None,
        integers: None,
    };
    let Some(axis) = layer.depth else {
        return Ok(weight);
    };
    let group = match (options.group, options.scheme) {
        (Some(group), _) if group < 1 || !depth.is_multiple_of(group as usize) => return Err(depth),
        (Some(group), _) => Some(group as usize),
        (None, Scheme::WeightsInt4) => largest_divisor(depth, LARGEST_GROUP).filter(|g| *g >= SMALLEST_GROUP),
        (None, _) => None,
    };
    if options.scheme == Scheme::WeightsInt4 && group.is_some() {
        weight.dtype = if options.symmetric { DType::I4 } else { DType::U4 };
        weight.axis = Some(layer.columns);
    }
    weight.groups = group.map(|size| Groups {
        axis,
        size: size as i64,
    });
    Ok(weight)
}

fn largest_divisor(of: usize, most: usize) -> Option<usize> {
    (1..=most.min(of)).rev().find(|d| of.is_multiple_of(*d))
}

fn common_divisor(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => common_divisor(b, a % b),
    }
}

/// Gives a weight the scales that its own range asks for.
pub(super) fn nearest(mut weight: Weight, tensor: &HostTensor) -> Result<Weight, ir::recipe::WeightError> {
    let ranges = weight.ranges(tensor)?;
    let pairs = ranges.iter().map(|range| scale_of(weight.dtype, *range, tensor.dtype));
    let (scales, zeros): (Vec<f32>, Vec<i32>) = pairs.unzip();
    weight.scales = scales;
    // Unsigned integers have a zero point each; signed ones are around 0.
    weight.zeros = (weight.dtype == DType::U4).then_some(zeros);
    Ok(weight)
}

/// The scale and zero point for numbers of a range that holds 0, the scale a number of type `of`.
pub(super) fn scale_of(dtype: DType, (low, high): (f32, f32), of: DType) -> (f32, i32) {
    let (low, high) = (f64::from(low), f64::from(high));
    if let Some(largest) = dtype.f8_largest() {
        return (rounded(high.max(-low) / largest, of), 0);
    }
    match dtype {
        DType::U4 => {
            let scale = rounded((high - low) / 15.0, of);
            let zero = (-low / f64::from(scale)).round_ties_even().clamp(0.0, 15.0);
            (scale, zero as i32)
        }
        // −8 is used where the smallest number reaches further than the largest.
        DType::I4 => (rounded((high / 7.0).max(-low / 8.0), of), 0),
        _ => (rounded(high.max(-low) / 127.0, of), 0),
    }
}

/// A scale as a number of its type, above 0.
fn rounded(scale: f64, of: DType) -> f32 {
    if scale == 0.0 {
        return 1.0;
    }
    let rounded = ir::convert::round_to(of, scale);
    if rounded.is_finite() && rounded >= f64::from(f32::MIN_POSITIVE) {
        return rounded as f32;
    }
    let least = match of {
        DType::F16 => 2f64.powi(-14),
        _ => f64::from(f32::MIN_POSITIVE),
    };
    least as f32
}

/// The scale and zero point of an operand that ranges from `low` to `high`, in `i8`; `None` for a range that is none.
pub fn static_activation(range: Range, symmetric: bool, of: DType) -> Option<Activation> {
    if !range.low.is_finite() || !range.high.is_finite() || range.low > range.high {
        return None;
    }
    let (low, high) = (range.low.min(0.0), range.high.max(0.0));
    let (scale, zero) = if symmetric {
        (rounded(high.max(-low) / 127.0, of), 0)
    } else {
        let scale = rounded((high - low) / 255.0, of);
        let zero = (-128.0 - low / f64::from(scale)).round_ties_even();
        (scale, zero.clamp(-128.0, 127.0) as i32)
    };
    Some(Activation::Static {
        dtype: DType::I8,
        scale,
        zero,
    })
}

/// The scale of an operand that ranges from `low` to `high`, in an 8-bit float; `None` for a range that is none.
fn static_float(range: Range, dtype: DType, of: DType) -> Option<Activation> {
    let finite = range.low.is_finite() && range.high.is_finite() && range.low <= range.high;
    let largest = dtype.f8_largest().filter(|_| finite)?;
    Some(Activation::Static {
        dtype,
        scale: rounded(range.high.max(-range.low).max(0.0) / largest, of),
        zero: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_those_of_the_formulas() {
        assert_eq!(scale_of(DType::I8, (-2.54, 1.0), DType::F32), (0.02, 0));
        assert_eq!(scale_of(DType::F8E4M3FN, (-896.0, 3.0), DType::F32), (2.0, 0));
        assert_eq!(scale_of(DType::I4, (-8.0, 3.0), DType::F32), (1.0, 0));
        assert_eq!(scale_of(DType::I4, (-7.0, 7.0), DType::F32), (1.0, 0));
        assert_eq!(scale_of(DType::U4, (-1.0, 2.0), DType::F32), (0.2, 5));
        assert_eq!(scale_of(DType::U4, (0.0, 0.0), DType::F32), (1.0, 0));
        let range = |low, high| Range { low, high };
        let made = static_activation(range(-1.0, 4.1), false, DType::F32);
        let wanted = Activation::Static {
            dtype: DType::I8,
            scale: 0.02,
            zero: -78,
        };
        assert_eq!(made, Some(wanted));
        assert_eq!(static_activation(range(f64::NAN, 1.0), false, DType::F32), None);
        assert_eq!(static_activation(range(0.0, f64::INFINITY), true, DType::F32), None);
        // Scales that a half type would round to 0.
        let (scale, _) = scale_of(DType::I8, (0.0, 1e-9), DType::F16);
        assert!(scale > 0.0);
    }

    #[test]
    fn groups_divide_the_depth() {
        assert_eq!(largest_divisor(384, 128), Some(128));
        assert_eq!(largest_divisor(320, 128), Some(80));
        assert_eq!(largest_divisor(97, 128), Some(97));
        assert_eq!(common_divisor(384, 320), 64);
    }
}
