//! The dims of a tensor.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Bindings, Dim, DimError};

/// The dims of a tensor, outermost first.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Shape(pub Vec<Dim>);

impl Shape {
    /// The shape of a scalar.
    pub const SCALAR: Shape = Shape(Vec::new());

    /// Returns the number of dims.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> Dim {
        self.0.iter().cloned().product()
    }

    /// Returns the number of elements, if the dims and all products of leading dims are [small](Dim::is_small).
    pub fn checked_elements(&self) -> Option<Dim> {
        self.0
            .iter()
            .try_fold(Dim::Const(1), |product, dim| product.checked_mul(dim))
    }

    /// Returns the row-major strides in elements.
    pub fn strides(&self) -> Vec<Dim> {
        let mut strides = vec![Dim::Const(1); self.rank()];
        for i in (1..self.rank()).rev() {
            strides[i - 1] = strides[i].clone() * &self.0[i];
        }
        strides
    }

    /// Returns the sizes if all are constants.
    pub fn as_consts(&self) -> Option<Vec<i64>> {
        self.0.iter().map(Dim::as_const).collect()
    }

    /// Evaluates every dim.
    ///
    /// # Errors
    /// As [`Dim::eval`].
    pub fn eval(&self, bindings: &Bindings) -> Result<Vec<i64>, DimError> {
        self.0.iter().map(|d| d.eval(bindings)).collect()
    }

    /// Broadcasts two shapes as NumPy does; `None` where two dims differ and neither is 1.
    pub fn broadcast(a: &Shape, b: &Shape) -> Option<Shape> {
        let rank = a.rank().max(b.rank());
        let at = |s: &Shape, i: usize| (i + s.rank()).checked_sub(rank).map(|i| s.0[i].clone());
        (0..rank)
            .map(|i| match (at(a, i), at(b, i)) {
                (Some(x), Some(y)) if x == y => Some(x),
                (Some(x), Some(y)) if x.is(1) => Some(y),
                (Some(x), Some(y)) if y.is(1) => Some(x),
                (Some(_), Some(_)) => None,
                (x, y) => x.or(y),
            })
            .collect::<Option<Vec<_>>>()
            .map(Shape)
    }
}

impl<D: Into<Dim>> From<Vec<D>> for Shape {
    fn from(dims: Vec<D>) -> Shape {
        Shape(dims.into_iter().map(Into::into).collect())
    }
}
impl<D: Into<Dim> + Clone> From<&[D]> for Shape {
    fn from(dims: &[D]) -> Shape {
        Shape(dims.iter().cloned().map(Into::into).collect())
    }
}
impl<D: Into<Dim>, const N: usize> From<[D; N]> for Shape {
    fn from(dims: [D; N]) -> Shape {
        Shape(dims.into_iter().map(Into::into).collect())
    }
}
impl FromIterator<Dim> for Shape {
    fn from_iter<I: IntoIterator<Item = Dim>>(dims: I) -> Shape {
        Shape(dims.into_iter().collect())
    }
}
impl std::ops::Deref for Shape {
    type Target = [Dim];
    fn deref(&self) -> &[Dim] {
        &self.0
    }
}
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}
impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
