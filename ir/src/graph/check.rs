//! Conditions of runs: what is tested, and what a failed test says.
//!
//! A condition is one scalar that every run takes to the host, so that it costs a run as little as it can. That of
//! indices therefore carries the first index that is outside its axis, with its position, in one `i64`: a fold by
//! minimum over [`packed`](Indexed) values costs what a fold by `and` over bools does, and no launch more.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dim::{Bindings, Dim, Shape};
use crate::types::{DType, TensorType};

/// What a condition's value is.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Check {
    /// A bool scalar: whether the condition holds.
    Holds,
    /// An `i64` scalar: [`Indexed::NONE`] where all indices are inside their axes, else the first that is not.
    Indices(Indexed),
}

/// Indices whose place in the data a run tests.
///
/// An index `i` at the position `p` (in row-major order) is packed as `p · 2^32 + i`, both first limited to 31
/// bits and a sign. The least of those that are outside is the first of them.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Indexed {
    /// The shape of the indices.
    pub shape: Shape,
    /// The axes of the data that are indexed, with their sizes: one, or as many as an index tuple has elements.
    pub axes: Vec<(u32, Dim)>,
}

impl Check {
    /// The type that the condition's value has.
    pub fn ty(&self) -> TensorType {
        match self {
            Check::Holds => TensorType::new(DType::Bool, Shape::SCALAR),
            Check::Indices(_) => TensorType::new(DType::I64, Shape::SCALAR),
        }
    }

    /// Whether a condition of these bytes holds. Of several values of one condition, as ranks have them, any that does
    /// not hold says so.
    pub fn holds(&self, value: &[u8]) -> bool {
        match self {
            Check::Holds => value.first() != Some(&0),
            Check::Indices(_) => packed(value).is_none_or(|packed| packed == Indexed::NONE),
        }
    }

    /// What is said of a run whose condition has these bytes; None where it holds.
    pub fn failure(&self, message: &str, value: &[u8], sizes: &Bindings) -> Option<String> {
        if self.holds(value) {
            return None;
        }
        Some(match (self, packed(value)) {
            (Check::Indices(indexed), Some(packed)) => format!("{message}: {}", indexed.describe(packed, sizes)),
            _ => message.to_owned(),
        })
    }
}

fn packed(value: &[u8]) -> Option<i64> {
    Some(i64::from_le_bytes(*value.first_chunk()?))
}

impl Indexed {
    /// The value of a condition where all indices are inside.
    pub const NONE: i64 = i64::MAX;
    /// The least and the greatest index and position that are packed as they are.
    pub const LIMITS: (i64, i64) = (i32::MIN as i64, i32::MAX as i64);
    /// What a position is multiplied by.
    pub const POSITION: i64 = 1 << 32;

    fn describe(&self, packed: i64, sizes: &Bindings) -> String {
        let (least, most) = Indexed::LIMITS;
        let shifted = packed.saturating_sub(least);
        let position = shifted.div_euclid(Indexed::POSITION);
        let index = shifted.rem_euclid(Indexed::POSITION) + least;
        let index = match index {
            i if i <= least => format!("an index of {i} or less"),
            i if i >= most => format!("an index of {i} or more"),
            i => format!("index {i}"),
        };
        let mut text = index;
        let shape = self.shape.eval(sizes).ok();
        if let Some(shape) = shape.filter(|shape| !shape.is_empty()) {
            let mut at = vec![0; shape.len()];
            let mut rest = position;
            for (axis, size) in shape.iter().enumerate().rev() {
                at[axis] = rest % (*size).max(1);
                rest /= (*size).max(1);
            }
            match position >= most {
                true => text += &format!(" at element {position} or later of the indices, which are {shape:?}"),
                false => text += &format!(" at {at:?} of the indices, which are {shape:?}"),
            }
        }
        // An index tuple's elements lie beside each other.
        let element = usize::try_from(position).unwrap_or(0) % self.axes.len().max(1);
        if let Some((axis, size)) = self.axes.get(element) {
            text += &match size.eval(sizes) {
                Ok(0) => format!("; axis {axis} is empty, so no index is inside it"),
                Ok(n) => format!("; axis {axis} has {n} elements, so -{n} to {} are inside it", n - 1),
                Err(_) => format!("; axis {axis} has {size} elements"),
            };
        }
        text
    }
}

impl fmt::Display for Check {
    /// As in the text of a graph.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Check::Holds => Ok(()),
            Check::Indices(Indexed { shape, axes }) => {
                write!(f, "indices {shape} in [")?;
                for (number, (axis, size)) in axes.iter().enumerate() {
                    let comma = if number > 0 { ", " } else { "" };
                    write!(f, "{comma}{axis}: {size}")?;
                }
                write!(f, "]")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sizes: &[i64]) -> Shape {
        Shape(sizes.iter().map(|size| Dim::from(*size)).collect())
    }

    fn check(axes: &[(u32, i64)], shape: Shape) -> Check {
        let axes = axes.iter().map(|(axis, size)| (*axis, Dim::from(*size))).collect();
        Check::Indices(Indexed { shape, axes })
    }

    fn said(check: &Check, position: i64, index: i64) -> Option<String> {
        let (least, most) = Indexed::LIMITS;
        let packed = position.min(most) * Indexed::POSITION + index.clamp(least, most);
        check.failure("take", &packed.to_le_bytes(), &Bindings::default())
    }

    #[test]
    fn a_condition_reads_as_it_prints() {
        let text = "graph @g stage=core {
  symbol n: 1..8 hint 3
  n0 = input \"x\" : i64[]
  n1 = input \"ok\" : bool[]
  return n0 check \"take: an index\" indices [n, 2] in [1: n, 2: 7], n1 check \"fits\"
}
";
        let graph = crate::graph::parse::parse(text).unwrap();
        let axes = vec![(1, Dim::symbol("n")), (2, Dim::from(7))];
        let shape = Shape(vec![Dim::symbol("n"), Dim::from(2)]);
        let of = |at: usize| graph.outputs()[at].check.clone();
        assert_eq!(of(0), Some(Check::Indices(Indexed { shape, axes })));
        assert_eq!(of(1), Some(Check::Holds));
        assert_eq!(graph.to_string(), text);
        graph.verify().unwrap();
        let wrong = crate::graph::parse::parse(&text.replace("i64[]", "f32[]")).unwrap();
        let error = wrong.verify().unwrap_err().to_string();
        assert!(error.contains("must be i64[]"), "{error}");
    }

    #[test]
    fn a_failed_condition_names_the_index_its_position_and_the_axis() {
        let plain = check(&[(0, 10)], of(&[2, 4]));
        assert_eq!(
            plain.failure("take", &Indexed::NONE.to_le_bytes(), &Bindings::default()),
            None
        );
        assert_eq!(
            said(&plain, 3, 12).unwrap(),
            "take: index 12 at [0, 3] of the indices, which are [2, 4]; axis 0 has 10 elements, so -10 to 9 are inside it"
        );
        assert!(said(&plain, 7, -11).unwrap().contains("index -11 at [1, 3]"));
        let large = said(&plain, 0, 1 << 40).unwrap();
        assert!(large.contains("an index of 2147483647 or more at [0, 0]"), "{large}");
        let small = said(&plain, 0, -(1 << 40)).unwrap();
        assert!(small.contains("an index of -2147483648 or less"), "{small}");
        // Tuples: the second element runs over the second axis.
        let tuples = said(&check(&[(1, 5), (2, 7)], of(&[3, 2])), 5, 9).unwrap();
        assert!(tuples.contains("index 9 at [2, 1]"), "{tuples}");
        assert!(tuples.contains("axis 2 has 7 elements"), "{tuples}");
        let scalar = said(&check(&[(0, 0)], Shape::SCALAR), 0, 0).unwrap();
        assert_eq!(scalar, "take: index 0; axis 0 is empty, so no index is inside it");
    }
}
