//! Transforms: a small square of values is multiplied by a constant matrix from both sides.

use serde::{Deserialize, Serialize};

use super::{AxisId, ExprId, Stmt, VarId};

/// For each point of `parallel`: `Y = T · X · Tᵀ`, then the statements for each element of `Y`.
///
/// These are the first and the last launch of a convolution by Winograd's minimal filtering (Lavin and Gray, "Fast
/// Algorithms for Convolutional Neural Networks", 2015): patches of the image become one number for each of many
/// products, and their sums become pixels. A device keeps both squares in registers, so that each element is read and
/// stored once.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TransformBody {
    pub parallel: Vec<AxisId>,
    /// The row and the column of `X`.
    pub from: [AxisId; 2],
    /// The row and the column of `Y`.
    pub to: [AxisId; 2],
    pub matrix: TransformMatrix,
    /// An element of `X`, in `f32`, over `parallel` and `from`. It is read also where `within` does not hold.
    pub element: ExprId,
    /// Where it does not hold, the element of `X` is 0; over `parallel` and `from`.
    pub within: Option<ExprId>,
    /// The element of `Y`, in `f32`.
    pub var: VarId,
    /// Where it does not hold, the statements are passed over; over `parallel` and `to`.
    pub inside: Option<ExprId>,
    /// Lets and stores to one element each, over `parallel` and `to`.
    pub stmts: Vec<Stmt>,
}

/// The matrix of a transform.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TransformMatrix {
    pub winograd: Winograd,
    pub side: TransformSide,
}

/// Which of a convolution's matrices a transform multiplies by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum TransformSide {
    /// `Bᵀ`: a patch of the image to what is multiplied.
    Image,
    /// `Aᵀ`: sums of products to pixels of the result.
    Result,
}

/// A minimal filtering algorithm of Winograd for windows of 3 by 3, by the pixels that a patch gives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Winograd {
    /// F(2x2, 3x3): 16 multiplications for 4 pixels, where the sum takes 36. All factors are 1 or a half.
    F2,
    /// F(4x4, 3x3): 36 multiplications for 16 pixels, where the sum takes 144. The error in `f32` is about ten times
    /// that of the sum.
    F4,
}

impl Winograd {
    /// Every algorithm.
    pub const ALL: [Winograd; 2] = [Winograd::F2, Winograd::F4];

    /// Returns the pixels of a patch's result along each axis.
    pub const fn outputs(self) -> i64 {
        match self {
            Winograd::F2 => 2,
            Winograd::F4 => 4,
        }
    }

    /// Returns the pixels of a patch along each axis: as many as a patch has products.
    pub const fn inputs(self) -> i64 {
        self.outputs() + 2
    }

    /// Returns how many products there are: one for each element of a transformed patch.
    pub const fn products(self) -> i64 {
        self.inputs() * self.inputs()
    }

    /// Returns the name that text forms have.
    pub const fn name(self) -> &'static str {
        match self {
            Winograd::F2 => "F(2x2, 3x3)",
            Winograd::F4 => "F(4x4, 3x3)",
        }
    }

    /// Returns `G`, by which filters are multiplied from both sides: row by row, 3 columns each.
    pub const fn filter(self) -> &'static [f64] {
        const F2: [f64; 4 * 3] = [
            1.0, 0.0, 0.0, //
            0.5, 0.5, 0.5, //
            0.5, -0.5, 0.5, //
            0.0, 0.0, 1.0,
        ];
        const F4: [f64; 6 * 3] = [
            1.0 / 4.0,
            0.0,
            0.0, //
            -1.0 / 6.0,
            -1.0 / 6.0,
            -1.0 / 6.0, //
            -1.0 / 6.0,
            1.0 / 6.0,
            -1.0 / 6.0, //
            1.0 / 24.0,
            1.0 / 12.0,
            1.0 / 6.0, //
            1.0 / 24.0,
            -1.0 / 12.0,
            1.0 / 6.0, //
            0.0,
            0.0,
            1.0,
        ];
        match self {
            Winograd::F2 => &F2,
            Winograd::F4 => &F4,
        }
    }
}

impl TransformMatrix {
    /// Returns the rows and the columns of `X`.
    pub const fn inputs(self) -> i64 {
        self.winograd.inputs()
    }

    /// Returns the rows and the columns of `Y`.
    pub const fn outputs(self) -> i64 {
        match self.side {
            TransformSide::Image => self.winograd.inputs(),
            TransformSide::Result => self.winograd.outputs(),
        }
    }

    /// Returns `T`, row by row: `outputs` rows of `inputs` columns.
    pub const fn rows(self) -> &'static [f64] {
        const IMAGE_F2: [f64; 4 * 4] = [
            1.0, 0.0, -1.0, 0.0, //
            0.0, 1.0, 1.0, 0.0, //
            0.0, -1.0, 1.0, 0.0, //
            0.0, 1.0, 0.0, -1.0,
        ];
        const IMAGE_F4: [f64; 6 * 6] = [
            4.0, 0.0, -5.0, 0.0, 1.0, 0.0, //
            0.0, -4.0, -4.0, 1.0, 1.0, 0.0, //
            0.0, 4.0, -4.0, -1.0, 1.0, 0.0, //
            0.0, -2.0, -1.0, 2.0, 1.0, 0.0, //
            0.0, 2.0, -1.0, -2.0, 1.0, 0.0, //
            0.0, 4.0, 0.0, -5.0, 0.0, 1.0,
        ];
        const RESULT_F2: [f64; 2 * 4] = [
            1.0, 1.0, 1.0, 0.0, //
            0.0, 1.0, -1.0, -1.0,
        ];
        const RESULT_F4: [f64; 4 * 6] = [
            1.0, 1.0, 1.0, 1.0, 1.0, 0.0, //
            0.0, 1.0, -1.0, 2.0, -2.0, 0.0, //
            0.0, 1.0, 1.0, 4.0, 4.0, 0.0, //
            0.0, 1.0, -1.0, 8.0, -8.0, 1.0,
        ];
        match (self.side, self.winograd) {
            (TransformSide::Image, Winograd::F2) => &IMAGE_F2,
            (TransformSide::Image, Winograd::F4) => &IMAGE_F4,
            (TransformSide::Result, Winograd::F2) => &RESULT_F2,
            (TransformSide::Result, Winograd::F4) => &RESULT_F4,
        }
    }
}

/// Multiplies a matrix from both sides: `T · X · Tᵀ`, of `inputs` by `inputs` elements, by a `T` whose rows have
/// `inputs` columns.
pub fn both_sides(matrix: &[f64], inputs: usize, x: &[f64]) -> Vec<f64> {
    let inputs = inputs.max(1);
    let row_of = |row: &[f64], column: usize| -> f64 {
        let down = row.iter().zip(x.iter().skip(column).step_by(inputs));
        down.map(|(t, x)| t * x).sum()
    };
    let rows = matrix.chunks_exact(inputs);
    rows.flat_map(|row| {
        let half: Vec<f64> = (0..inputs).map(|column| row_of(row, column)).collect();
        let along = matrix.chunks_exact(inputs);
        along
            .map(|other| other.iter().zip(&half).map(|(t, h)| t * h).sum())
            .collect::<Vec<f64>>()
    })
    .collect()
}

#[cfg(test)]
mod tests;
