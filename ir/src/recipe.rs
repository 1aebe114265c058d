//! How the products of a model are quantised: plain data, which passes apply to graphs and front ends to files.
//!
//! A layer is a product or a convolution by a constant. Its weight becomes integers or 8-bit floats with scales; its
//! other operand may be quantised as well, with a scale that calibration found or with one of each run's own.

mod rows;

use serde::{Deserialize, Serialize};

use rows::Rows;

use crate::data::{HostTensor, Storage};
use crate::graph::op::Groups;
use crate::types::DType;

/// What becomes of each product of a model by a constant.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Recipe {
    /// The layers that are quantised, in the order of the graph.
    pub layers: Vec<Layer>,
    /// Those that stay as they are, with the reason.
    pub kept: Vec<Kept>,
}

/// A product or convolution whose weight is quantised.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Layer {
    /// The name of the model's node, or the place where it was recorded; `name#2` is the second of that name.
    pub name: String,
    pub weight: Weight,
    pub activation: Activation,
    /// Of a product, what each input along the depth is multiplied by before, and the weight's entries are divided by
    /// before they are rounded; numbers above 0 of the weight's type. `None` where all are 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Vec<f32>>,
}

/// A layer that is not quantised.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Kept {
    pub name: String,
    pub reason: String,
}

/// What is multiplied by the weight.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Activation {
    /// Numbers as they are.
    Float,
    /// Integers, or 8-bit floats whose zero is 0, of one scale that holds for all runs.
    Static { dtype: DType, scale: f32, zero: i32 },
    /// `u8`, with the scale and zero point of each run's own range, which holds 0.
    Dynamic,
    /// 8-bit floats, with the scale that makes the largest magnitude of each run the type's largest number.
    DynamicFloat { dtype: DType },
}

/// Returns the magnitude that the largest one of a run is taken for at least, by [`Activation::DynamicFloat`]: the
/// scale is then a normal number of the operand's type, and tensors of zeros have one.
pub fn least_magnitude(stored: DType, of: DType) -> f64 {
    let least_scale = if of == DType::F16 {
        2f64.powi(-14)
    } else {
        2f64.powi(-100)
    };
    stored.f8_largest().unwrap_or(1.0) * least_scale
}

/// A weight's integers: `(integer − zero) · scale`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Weight {
    /// `i8`, `u8`, `i4`, `u4` or an 8-bit float, which has no zero points.
    pub dtype: DType,
    /// The axis whose indices have scales of their own; `None` where all have one.
    pub axis: Option<usize>,
    /// Runs of neighbours along another axis that share a scale.
    pub groups: Option<Groups>,
    /// In the order of [`Weight::scale_shape`]; numbers of the weight's own type.
    pub scales: Vec<f32>,
    /// Of as many; `None` where all are 0.
    pub zeros: Option<Vec<i32>>,
    /// The integers, where they are not those that lie nearest.
    #[serde(with = "hex")]
    pub integers: Option<Vec<i8>>,
}

/// A weight does not fit what a recipe says of it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WeightError {
    #[error("its weight is {found}; weights of f32, f16 and bf16 are quantised")]
    Type { found: DType },
    #[error(
        "element {index} of its weight is {value}, for which there is no integer; give a model whose weights are finite"
    )]
    NotFinite { index: usize, value: String },
    #[error(
        "the recipe has {found} {what} for a weight of shape {shape:?}, which takes {expected}; make the recipe from this model"
    )]
    Count {
        what: &'static str,
        found: usize,
        expected: usize,
        shape: Vec<usize>,
    },
    #[error("the recipe has {what} {found}; expected {expected}")]
    Value {
        what: &'static str,
        found: String,
        expected: &'static str,
    },
}

/// A quantised weight as tensors, all of the weight's rank. Of 8-bit floats `integers` are those.
#[derive(Clone, PartialEq, Debug)]
pub struct Stored {
    pub integers: HostTensor,
    pub scale: HostTensor,
    pub zero: Option<HostTensor>,
}

impl Recipe {
    /// Returns the layer of a name.
    pub fn layer(&self, name: &str) -> Option<&Layer> {
        self.layers.iter().find(|layer| layer.name == name)
    }
}

impl Activation {
    /// Checks that there are such integers and such a scale.
    ///
    /// # Errors
    /// What there is not.
    pub fn check(&self) -> Result<(), WeightError> {
        let wrong = |what, found, expected| Err(WeightError::Value { what, found, expected });
        let (dtype, scale, zero) = match self {
            Activation::Float | Activation::Dynamic => return Ok(()),
            Activation::DynamicFloat { dtype } => {
                return match dtype.is_f8() {
                    true => Ok(()),
                    false => wrong("operands of type", dtype.to_string(), "an 8-bit float"),
                };
            }
            Activation::Static { dtype, scale, zero } => (dtype, scale, zero),
        };
        let range = match dtype {
            DType::I8 | DType::U8 => dtype.int_range(),
            dtype => dtype.is_f8().then_some((0, 0)),
        };
        match range {
            None => wrong("operands of type", dtype.to_string(), "i8, u8 or an 8-bit float"),
            Some(_) if !scale.is_finite() || *scale <= 0.0 => {
                wrong("an operand's scale of", scale.to_string(), "a finite number above 0")
            }
            Some((low, high)) if !(low..=high).contains(&i64::from(*zero)) => wrong(
                "an operand's zero point of",
                zero.to_string(),
                "one of the integers' type; 8-bit floats have 0",
            ),
            Some(_) => Ok(()),
        }
    }
}

impl Layer {
    /// Returns the weight that is rounded: divided by the factors of the inputs, which lie along the axis `depth`.
    ///
    /// # Errors
    /// Factors of a weight without such an axis, of another count, or that are no finite numbers above 0.
    pub fn divided(&self, weight: &HostTensor, depth: Option<usize>) -> Result<HostTensor, WeightError> {
        let Some(factors) = &self.inputs else {
            return Ok(weight.clone());
        };
        let Some(axis) = depth.filter(|axis| *axis < weight.shape.len()) else {
            return Err(WeightError::Value {
                what: "factors of inputs for",
                found: "a convolution".to_owned(),
                expected: "a product of matrices",
            });
        };
        if factors.len() != weight.shape[axis] {
            return Err(WeightError::Count {
                what: "factors of inputs",
                found: factors.len(),
                expected: weight.shape[axis],
                shape: weight.shape.clone(),
            });
        }
        if let Some(wrong) = factors.iter().find(|f| !f.is_finite() || **f <= 0.0) {
            return Err(WeightError::Value {
                what: "a factor of an input of",
                found: wrong.to_string(),
                expected: "a finite number above 0",
            });
        }
        let behind: usize = weight.shape[axis + 1..].iter().product();
        let numbers = weight.to_f64().into_iter().enumerate();
        let divided = numbers.map(|(i, v)| v / f64::from(factors[i / behind.max(1) % factors.len()]));
        let divided: Vec<f64> = divided.collect();
        Ok(HostTensor {
            dtype: weight.dtype,
            shape: weight.shape.clone(),
            bytes: Storage::new(crate::convert::encode_f64(weight.dtype, &divided)),
        })
    }

    /// Returns the factors of the inputs as a tensor of one axis, where there are any.
    pub fn factors(&self, dtype: DType) -> Option<HostTensor> {
        let factors = self.inputs.as_ref()?;
        let wide: Vec<f64> = factors.iter().map(|f| f64::from(*f)).collect();
        Some(HostTensor {
            dtype,
            shape: vec![wide.len()],
            bytes: Storage::new(crate::convert::encode_f64(dtype, &wide)),
        })
    }

    /// Returns what is stored of the layer's weight; `depth` is the axis along which a product is summed.
    ///
    /// # Errors
    /// As [`Layer::divided`] and [`Weight::store`].
    pub fn store(&self, weight: &HostTensor, depth: Option<usize>) -> Result<Stored, WeightError> {
        match self.inputs {
            Some(_) => self.weight.store(&self.divided(weight, depth)?),
            None => self.weight.store(weight),
        }
    }
}

impl Weight {
    /// Returns the shape of the scales of a weight: its rank, and 1 along each axis that has one scale.
    pub fn scale_shape(&self, shape: &[usize]) -> Vec<usize> {
        let size = |(axis, size): (usize, &usize)| match self.groups {
            Some(groups) if groups.axis == axis => size.div_ceil(groups.size.max(1) as usize),
            _ if self.axis == Some(axis) => *size,
            _ => 1,
        };
        shape.iter().enumerate().map(size).collect()
    }

    /// Returns for each element of a weight the position of its scale.
    pub fn scale_positions(&self, shape: &[usize]) -> Vec<usize> {
        let scales = self.scale_shape(shape);
        let mut positions = vec![0usize];
        for (axis, size) in shape.iter().enumerate() {
            let group = match self.groups {
                Some(groups) if groups.axis == axis => groups.size.max(1) as usize,
                _ => 1,
            };
            let mut next = Vec::with_capacity(positions.len() * size);
            for position in &positions {
                let at = |i: usize| if scales[axis] == 1 { 0 } else { i / group };
                next.extend((0..*size).map(|i| position * scales[axis] + at(i)));
            }
            positions = next;
        }
        positions
    }

    /// Returns the least and the largest of the numbers that share each scale, and of 0.
    ///
    /// # Errors
    /// A weight of another type, or one that is not finite.
    pub fn ranges(&self, weight: &HostTensor) -> Result<Vec<(f32, f32)>, WeightError> {
        if !matches!(weight.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(WeightError::Type { found: weight.dtype });
        }
        let scales = self.scale_shape(&weight.shape).iter().product();
        let ranges = Rows::new(self, &weight.shape).ranges(weight, scales);
        ranges.ok_or_else(|| not_finite(weight))
    }

    /// Returns the integers, scales and zero points of a weight: the recipe's own integers, or those that lie nearest
    /// (ties to even).
    ///
    /// # Errors
    /// A weight of another type or shape, or one that is not finite.
    pub fn store(&self, weight: &HostTensor) -> Result<Stored, WeightError> {
        if !matches!(weight.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(WeightError::Type { found: weight.dtype });
        }
        let range = match self.dtype.is_f8() {
            // Zero points are 0.
            true => Some((0, 0)),
            false => self.dtype.int_range().filter(|_| self.dtype.bits() <= 8),
        };
        let Some((low, high)) = range else {
            return Err(WeightError::Value {
                what: "a weight of type",
                found: self.dtype.to_string(),
                expected: "i8, u8, i4, u4 or an 8-bit float",
            });
        };
        let shape = &weight.shape;
        let axes = self.axis.into_iter().chain(self.groups.map(|groups| groups.axis));
        if let Some(axis) = axes.into_iter().find(|axis| *axis >= shape.len()) {
            return Err(WeightError::Value {
                what: "an axis of",
                found: format!("{axis} for a weight of {} axes", shape.len()),
                expected: "one of the weight's",
            });
        }
        if let Some(groups) = self.groups.filter(|groups| groups.size < 1) {
            return Err(WeightError::Value {
                what: "groups of",
                found: groups.size.to_string(),
                expected: "at least 1",
            });
        }
        let scale_shape = self.scale_shape(shape);
        let count = |what, found, expected| match found == expected {
            true => Ok(()),
            false => Err(WeightError::Count {
                what,
                found,
                expected,
                shape: shape.clone(),
            }),
        };
        let scales: usize = scale_shape.iter().product();
        count("scales", self.scales.len(), scales)?;
        if let Some(wrong) = self.scales.iter().find(|s| !s.is_finite() || **s <= 0.0) {
            return Err(WeightError::Value {
                what: "a scale of",
                found: wrong.to_string(),
                expected: "a finite number above 0",
            });
        }
        let zeros: Vec<i64> = match &self.zeros {
            Some(zeros) => zeros.iter().map(|z| i64::from(*z)).collect(),
            None => vec![0; scales],
        };
        count("zero points", zeros.len(), scales)?;
        if let Some(wrong) = zeros.iter().find(|z| !(low..=high).contains(*z)) {
            return Err(WeightError::Value {
                what: "a zero point of",
                found: wrong.to_string(),
                expected: "one of the integers' type",
            });
        }
        let wide: Vec<f64> = self.scales.iter().map(|s| f64::from(*s)).collect();
        if let Some(largest) = self.dtype.f8_largest() {
            if self.integers.is_some() || self.zeros.is_some() {
                return Err(WeightError::Value {
                    what: "integers or zero points for",
                    found: self.dtype.to_string(),
                    expected: "scales alone",
                });
            }
            let floats = Rows::new(self, shape).floats(weight, self.dtype, &self.scales, largest as f32);
            let tensor = |dtype, shape: &[usize], bytes: Vec<u8>| HostTensor {
                dtype,
                shape: shape.to_vec(),
                bytes: Storage::new(bytes),
            };
            return Ok(Stored {
                integers: tensor(self.dtype, shape, floats.ok_or_else(|| not_finite(weight))?),
                scale: tensor(
                    weight.dtype,
                    &scale_shape,
                    crate::convert::encode_f64(weight.dtype, &wide),
                ),
                zero: None,
            });
        }
        let integers = match &self.integers {
            Some(own) => {
                count("integers", own.len(), weight.elements())?;
                let unsigned = low == 0;
                let own = own.iter();
                let own = own.map(|v| if unsigned { i64::from(*v as u8) } else { i64::from(*v) });
                crate::convert::encode_i64(self.dtype, &own.collect::<Vec<i64>>())
            }
            None => {
                let rows = Rows::new(self, shape);
                let nearest = rows.integers(weight, self.dtype, &self.scales, self.zeros.as_deref(), (low, high));
                nearest.ok_or_else(|| not_finite(weight))?
            }
        };
        let wrong = |_| WeightError::Count {
            what: "elements",
            found: weight.elements(),
            expected: weight.elements(),
            shape: shape.clone(),
        };
        Ok(Stored {
            integers: HostTensor::new(self.dtype, shape.clone(), Storage::new(integers)).map_err(wrong)?,
            scale: HostTensor::from_f64(weight.dtype, scale_shape.clone(), &wide).map_err(wrong)?,
            zero: match self.zeros {
                Some(_) => Some(HostTensor::from_i64(self.dtype, scale_shape, &zeros).map_err(wrong)?),
                None => None,
            },
        })
    }
}

/// The first number of a weight that is NaN or infinite, one of which is.
fn not_finite(weight: &HostTensor) -> WeightError {
    finite(weight).err().unwrap_or(WeightError::NotFinite {
        index: 0,
        value: "not finite".to_owned(),
    })
}

/// Returns the numbers of a weight.
///
/// # Errors
/// The first that is NaN or infinite.
pub fn finite(weight: &HostTensor) -> Result<Vec<f32>, WeightError> {
    let numbers = weight.to_f32();
    match numbers.iter().position(|v| !v.is_finite()) {
        Some(index) => Err(WeightError::NotFinite {
            index,
            value: numbers[index].to_string(),
        }),
        None => Ok(numbers),
    }
}

impl Stored {
    /// Returns the bytes of all its tensors.
    pub fn bytes(&self) -> usize {
        self.integers.bytes.len() + self.scale.bytes.len() + self.zero.as_ref().map_or(0, |z| z.bytes.len())
    }

    /// Makes a tensor of one number, of the given rank.
    pub fn single(dtype: DType, rank: usize, value: f64) -> HostTensor {
        HostTensor {
            dtype,
            shape: vec![1; rank],
            bytes: Storage::new(match dtype.is_int() {
                true => crate::convert::encode_i64(dtype, &[value as i64]),
                false => crate::convert::encode_f64(dtype, &[value]),
            }),
        }
    }
}

/// Integers as text of two hexadecimal digits each: a list of numbers would take twice as much.
mod hex {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(integers: &Option<Vec<i8>>, to: S) -> Result<S::Ok, S::Error> {
        let text = integers.as_ref().map(|integers| {
            let digit = |v: u8| char::from_digit(u32::from(v), 16).unwrap_or('0');
            let digits = integers
                .iter()
                .flat_map(|v| [digit(*v as u8 >> 4), digit(*v as u8 & 15)]);
            digits.collect::<String>()
        });
        text.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<i8>>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else {
            return Ok(None);
        };
        let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
        let Some(digits) = digits.filter(|d| d.len() % 2 == 0) else {
            return Err(D::Error::custom("integers are pairs of hexadecimal digits"));
        };
        Ok(Some(
            digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as i8).collect(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(values: &[f32], shape: &[usize]) -> HostTensor {
        HostTensor::from_f32(shape, values).expect("as many")
    }

    #[test]
    fn groups_and_columns_find_their_scales() {
        let recipe = Weight {
            dtype: DType::I4,
            axis: Some(1),
            groups: Some(Groups { axis: 0, size: 2 }),
            scales: vec![1.0, 2.0, 0.5, 4.0],
            zeros: None,
            integers: None,
        };
        // Three rows: the last group is short.
        assert_eq!(recipe.scale_shape(&[3, 2]), [2, 2]);
        assert_eq!(recipe.scale_positions(&[3, 2]), [0, 1, 0, 1, 2, 3]);
        let stored = recipe
            .store(&weight(&[2.5, 3.0, -9.0, 5.0, 1.25, 100.0], &[3, 2]))
            .expect("fits");
        // 2.5 and 1.5 are ties; −9 and 25 saturate.
        assert_eq!(stored.integers.to_i64(), [2, 2, -8, 2, 2, 7]);
        assert_eq!(stored.bytes(), 3 + 16);
    }

    #[test]
    fn zero_points_shift_unsigned_integers() {
        let recipe = Weight {
            dtype: DType::U4,
            axis: None,
            groups: None,
            scales: vec![0.5],
            zeros: Some(vec![3]),
            integers: None,
        };
        let stored = recipe.store(&weight(&[-1.5, 0.0, 6.0, 9.0], &[4])).expect("fits");
        assert_eq!(stored.integers.to_i64(), [0, 3, 15, 15]);
        assert_eq!(stored.zero.map(|z| z.to_i64()), Some(vec![3]));
    }

    #[test]
    fn floats_round_to_even_and_saturate() {
        let recipe = Weight {
            dtype: DType::F8E4M3FN,
            axis: None,
            groups: None,
            scales: vec![0.5],
            zeros: None,
            integers: None,
        };
        // Quotients of 17 and 19 are ties between 16, 18 and 20.
        let stored = recipe.store(&weight(&[8.5, 9.5, -1e6, 0.25], &[4])).expect("fits");
        assert_eq!(stored.integers.to_f64(), [16.0, 20.0, -448.0, 0.5]);
        assert_eq!((stored.bytes(), stored.zero), (4 + 4, None));
        let zeros = Weight {
            zeros: Some(vec![0]),
            ..recipe
        };
        let text = zeros.store(&weight(&[1.0], &[1])).expect_err("wrong").to_string();
        assert!(text.contains("scales alone"), "{text}");
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let fine = Weight {
            dtype: DType::I8,
            axis: None,
            groups: None,
            scales: vec![1.0],
            zeros: None,
            integers: None,
        };
        let error = |weight: &Weight, values: &[f32]| {
            let tensor = HostTensor::from_f32([values.len()], values).expect("as many");
            weight.store(&tensor).expect_err("wrong").to_string()
        };
        assert!(error(&fine, &[1.0, f32::NAN]).contains("element 1 of its weight is NaN"));
        let far = Weight {
            axis: Some(3),
            ..fine.clone()
        };
        assert!(error(&far, &[1.0]).contains("an axis of 3"));
        let none = Weight {
            groups: Some(Groups { axis: 0, size: 0 }),
            ..fine.clone()
        };
        assert!(error(&none, &[1.0]).contains("groups of 0"));
        let operand = |dtype, scale, zero| Activation::Static { dtype, scale, zero }.check();
        assert_eq!(operand(DType::I8, 0.5, -128), Ok(()));
        for (wrong, says) in [
            (operand(DType::F32, 0.5, 0), "operands of type f32"),
            (operand(DType::F8E4M3FN, 0.5, 3), "zero point of 3"),
            (operand(DType::F8E4M3FN, 0.0, 0), "scale of 0"),
            (operand(DType::U8, f32::NAN, 0), "scale of NaN"),
            (operand(DType::U8, 0.5, -1), "zero point of -1"),
        ] {
            let text = wrong.expect_err("wrong").to_string();
            assert!(text.contains(says), "{text}");
        }
        let scale = |s: f32| Weight {
            scales: vec![s],
            ..fine.clone()
        };
        for wrong in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let text = error(&scale(wrong), &[1.0]);
            assert!(text.contains(&format!("a scale of {wrong}")), "{text}");
        }
        let two = Weight {
            scales: vec![1.0, 1.0],
            ..fine.clone()
        };
        assert!(error(&two, &[1.0]).contains("2 scales for a weight of shape [1], which takes 1"));
        let zero = Weight {
            zeros: Some(vec![200]),
            ..fine.clone()
        };
        assert!(error(&zero, &[1.0]).contains("a zero point of 200"));
        let integers = Weight {
            integers: Some(vec![1, 2]),
            ..fine
        };
        assert!(error(&integers, &[1.0]).contains("2 integers"));
    }
}
