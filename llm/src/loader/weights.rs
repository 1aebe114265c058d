//! Tensors of a file to constants of a graph.
//!
//! F32, F16 and BF16 stay as they are. Blocks that [`Form`] knows stay integers with scales, which products read as
//! they are. All other types become `f16` when they are loaded, or `f32` where a number is too large for that.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use graphc::frontend::tensor::Tensor;
use graphc::ir::op::Groups;
use graphc::ir::{DType, HostTensor, Storage};
use graphc_gguf::{GgufFile, TensorType, dequantize};
use half::f16;

use super::blocks::Form;
use crate::error::{Error, Result};

/// Which rows of a stored matrix are taken, and in which order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rows {
    /// All, in their order.
    All,
    /// A part of a matrix of so many rows.
    Part { of: usize, range: Range<usize> },
    /// All, of a matrix whose heads have pairs of rotary embedding as neighbours: the first of each pair, then the
    /// second of each.
    Halved { heads: usize },
}

impl Rows {
    /// The number of rows that the file must have where `rows` are wanted.
    fn stored(&self, rows: usize) -> usize {
        match self {
            Rows::All | Rows::Halved { .. } => rows,
            Rows::Part { of, .. } => *of,
        }
    }

    /// Takes rows of `size` bytes each.
    fn take(&self, bytes: &Bytes, size: usize) -> Bytes {
        match self {
            Rows::All => bytes.clone(),
            Rows::Part { range, .. } => bytes.slice(range.start * size..range.end * size),
            Rows::Halved { heads } => {
                let each = bytes.len() / size / heads;
                let mut taken = Vec::with_capacity(bytes.len());
                for row in 0..heads * each {
                    let (head, place) = (row / each, row % each);
                    let from = match place < each / 2 {
                        true => 2 * place,
                        false => 2 * (place - each / 2) + 1,
                    };
                    let at = (head * each + from) * size;
                    taken.extend_from_slice(&bytes[at..at + size]);
                }
                taken.into()
            }
        }
    }
}

/// A matrix `[outputs, inputs]` as a graph has it, or a stack of them, `[count, outputs, inputs]`.
#[derive(Clone, Debug)]
pub enum Matrix {
    /// `f32`, `f16` or `bf16`.
    Numbers(Tensor),
    /// Integers, and a scale, perhaps a zero point, for each group of so many inputs.
    Groups {
        numbers: Tensor,
        scales: Tensor,
        zeros: Option<Tensor>,
        size: i64,
    },
}

impl Matrix {
    /// The matrix in `f32`; what reads it reads the stored bits.
    fn wide(&self) -> Tensor {
        self.rows(Tensor::clone)
    }

    /// `x · matrixᵀ + bias` in `f32`, from `[…, inputs]` to `[…, outputs]`; the product reads the stored bits.
    #[track_caller]
    pub fn product(&self, x: &Tensor, bias: Option<&Tensor>) -> Tensor {
        x.linear(&self.wide(), bias)
    }

    /// Looks up rows by integer ids `[n]`, as `f32` `[n, inputs]`; of a stack matrices, `[n, outputs, inputs]`.
    #[track_caller]
    pub fn look_up(&self, ids: &Tensor) -> Tensor {
        self.rows(|stored| stored.take(0, ids))
    }

    /// One row, `[inputs]`, in `f32`.
    #[track_caller]
    pub fn row(&self, at: usize) -> Tensor {
        self.rows(|stored| stored.narrow(0, at as i64, 1)).squeeze(0)
    }

    /// As [`Matrix::product`], of `[…, 1, inputs]` with the matrices of a stack that ids `[…]` choose. A product reads
    /// no other.
    #[track_caller]
    pub fn product_of_chosen(&self, x: &Tensor, ids: &Tensor) -> Tensor {
        x.matmul_t(&self.look_up(ids))
    }

    /// Some rows of each part, in `f32`.
    #[track_caller]
    fn rows(&self, of: impl Fn(&Tensor) -> Tensor) -> Tensor {
        match self {
            Matrix::Numbers(numbers) => of(numbers).cast(DType::F32),
            Matrix::Groups {
                numbers,
                scales,
                zeros,
                size,
            } => {
                let (numbers, zeros) = (of(numbers), zeros.as_ref().map(&of));
                let groups = Some(Groups {
                    axis: numbers.shape().rank() - 1,
                    size: *size,
                });
                numbers.dequantize_groups(&of(scales), zeros.as_ref(), groups, DType::F32)
            }
        }
    }
}

/// What became of the tensors of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    pub tensors: usize,
    /// Bytes in the file, and as the graph has them.
    pub bytes: (usize, usize),
    /// The type that they have now.
    pub kept_as: String,
}

/// How far loading is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Bytes of the file's tensors that were taken, of all.
    Weights { taken: usize, all: usize },
    /// Weights are taken; the model is compiled, and its weights are packed.
    Compiling,
}

/// Takes tensors of a file, and knows which were not taken.
pub struct Loader<'a> {
    file: &'a GgufFile,
    /// Whether products of the device choose among stacked matrices.
    stacks: bool,
    progress: Option<fn(Progress)>,
    taken: usize,
    used: BTreeSet<String>,
    stored: BTreeMap<&'static str, Stored>,
}

impl<'a> Loader<'a> {
    /// `progress` is told of each tensor.
    pub fn new(file: &'a GgufFile, stacks: bool, progress: Option<fn(Progress)>) -> Loader<'a> {
        Loader {
            file,
            stacks,
            progress,
            taken: 0,
            used: BTreeSet::new(),
            stored: BTreeMap::new(),
        }
    }

    /// Says whether products choose among the matrices of a tensor, if these have so many `outputs`: stored in groups,
    /// they lie side by side in panels of 32 columns.
    pub fn chooses(&self, name: &str, outputs: usize) -> bool {
        let tensor = self.file.tensors.get(name);
        self.stacks && (outputs.is_multiple_of(32) || tensor.is_none_or(|tensor| Form::of(tensor.ty).is_none()))
    }

    /// Says whether the file has a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.file.tensors.contains_key(name)
    }

    /// A vector of `length` as `f32`: norms and biases.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape, or of blocks that are not read.
    pub fn vector(&mut self, name: &str, length: usize) -> Result<Tensor> {
        Ok(constant(
            name,
            DType::F32,
            [length],
            floats(&self.numbers(name, length)?),
        ))
    }

    /// As [`Loader::vector`], with the order of rows that goes with the matrix it is added behind.
    ///
    /// # Errors
    /// As [`Loader::vector`].
    pub fn bias(&mut self, name: &str, length: usize, rows: &Rows) -> Result<Tensor> {
        let numbers = floats(&self.numbers(name, rows.stored(length))?);
        Ok(constant(
            name,
            DType::F32,
            [length],
            rows.take(&numbers, size_of::<f32>()),
        ))
    }

    /// The numbers of a vector.
    ///
    /// # Errors
    /// As [`Loader::vector`].
    pub fn numbers(&mut self, name: &str, length: usize) -> Result<Vec<f32>> {
        let tensor = self.take(name, &[length])?;
        tensor.to_f32().map_err(|problem| self.blocks(name, tensor.ty, problem))
    }

    /// A matrix `[outputs, inputs]`.
    ///
    /// # Errors
    /// As [`Loader::vector`].
    pub fn matrix(&mut self, name: &str, outputs: usize, inputs: usize, rows: &Rows) -> Result<Matrix> {
        let tensor = self.take(name, &[rows.stored(outputs), inputs])?;
        let ty = tensor.ty;
        let size = inputs / ty.block() as usize * ty.block_bytes() as usize;
        self.keep(name, ty, rows.take(&tensor.bytes, size), &[outputs, inputs])
    }

    /// Matrices `[count, outputs, inputs]` that the file has as one tensor, each by itself.
    ///
    /// # Errors
    /// As [`Loader::vector`].
    pub fn matrices(&mut self, name: &str, [count, outputs, inputs]: [usize; 3]) -> Result<Vec<Matrix>> {
        let tensor = self.take(name, &[count, outputs, inputs])?;
        let (ty, size) = (tensor.ty, tensor.bytes.len() / count);
        let one = |at: usize| {
            let bytes = tensor.bytes.slice(at * size..(at + 1) * size);
            self.keep(&format!("{name}.{at}"), ty, bytes, &[outputs, inputs])
        };
        (0..count).map(one).collect()
    }

    /// A stack of matrices `[count, outputs, inputs]`.
    ///
    /// # Errors
    /// As [`Loader::vector`].
    pub fn stack(&mut self, name: &str, shape: [usize; 3]) -> Result<Matrix> {
        let tensor = self.take(name, &shape)?;
        self.keep(name, tensor.ty, tensor.bytes.clone(), &shape)
    }

    /// Makes a matrix of its bytes in the file.
    fn keep(&mut self, name: &str, ty: TensorType, bytes: Bytes, shape: &[usize]) -> Result<Matrix> {
        let before = bytes.len();
        let plain = |dtype, bytes| Matrix::Numbers(constant(name, dtype, shape, bytes));
        let (matrix, after, kept_as) = match (ty, Form::of(ty)) {
            (TensorType::F32, _) => (plain(DType::F32, bytes), before, "f32".to_owned()),
            (TensorType::F16, _) => (plain(DType::F16, bytes), before, "f16".to_owned()),
            (TensorType::BF16, _) => (plain(DType::BF16, bytes), before, "bf16".to_owned()),
            (_, Some(form)) => {
                let parts = form.parts(ty, &bytes);
                let after = parts.numbers.len() + parts.scales.len() + parts.zeros.len();
                let of_groups = |part: &str, dtype, bytes: Vec<u8>| {
                    let mut shape = shape.to_vec();
                    shape
                        .iter_mut()
                        .last()
                        .into_iter()
                        .for_each(|inputs| *inputs /= form.group);
                    constant(&format!("{name}.{part}"), dtype, shape, bytes.into())
                };
                let matrix = Matrix::Groups {
                    numbers: constant(name, form.numbers, shape, parts.numbers.into()),
                    scales: of_groups("scales", form.scales, parts.scales),
                    zeros: form.zeros.then(|| of_groups("zeros", DType::F32, parts.zeros)),
                    size: form.group as i64,
                };
                (matrix, after, form.describe())
            }
            (_, None) => {
                let mut numbers = vec![0.0; shape.iter().product()];
                dequantize(ty, &bytes, &mut numbers).map_err(|problem| self.blocks(name, ty, problem))?;
                let largest = numbers.iter().fold(0f32, |largest, number| largest.max(number.abs()));
                let (dtype, numbers) = if largest <= f16::MAX.to_f32() {
                    let halves: Vec<u8> = numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
                    (DType::F16, halves.into())
                } else {
                    (DType::F32, floats(&numbers))
                };
                let after = numbers.len();
                (plain(dtype, numbers), after, dtype.to_string())
            }
        };
        let stored = self.stored.entry(ty.name()).or_default();
        stored.tensors += 1;
        stored.bytes = (stored.bytes.0 + before, stored.bytes.1 + after);
        stored.kept_as = kept_as;
        Ok(matrix)
    }

    /// Ends loading: what each stored type of matrices became.
    ///
    /// # Errors
    /// Tensors that nothing took.
    pub fn finish(self) -> Result<BTreeMap<&'static str, Stored>> {
        let names: Vec<String> = self
            .file
            .tensors
            .keys()
            .filter(|name| !self.used.contains(*name))
            .cloned()
            .collect();
        if names.is_empty() {
            return Ok(self.stored);
        }
        Err(Error::Unused {
            path: self.file.path().to_owned(),
            architecture: self.file.architecture()?.to_owned(),
            names,
        })
    }

    /// A tensor of the wanted shape.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<&'a graphc_gguf::Tensor> {
        let tensor = self.file.tensor(name)?;
        let wanted: Vec<u64> = shape.iter().map(|size| *size as u64).collect();
        if tensor.shape() != wanted {
            return Err(Error::Shape {
                path: self.file.path().to_owned(),
                name: name.to_owned(),
                found: tensor.shape(),
                wanted,
            });
        }
        if self.used.insert(name.to_owned())
            && let Some(progress) = self.progress
        {
            self.taken += tensor.bytes.len();
            let all = self.file.tensors.values().map(|tensor| tensor.bytes.len()).sum();
            progress(Progress::Weights { taken: self.taken, all });
        }
        Ok(tensor)
    }

    fn blocks(&self, name: &str, ty: TensorType, problem: graphc_gguf::Problem) -> Error {
        Error::Blocks {
            path: self.file.path().to_owned(),
            name: name.to_owned(),
            ty,
            reason: problem.to_string(),
        }
    }
}

fn floats(numbers: &[f32]) -> Bytes {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect::<Vec<u8>>()
        .into()
}

/// A constant of a graph. Bytes are as many as the shape asks for: the file's tensor has that shape.
fn constant(name: &str, dtype: DType, shape: impl Into<Vec<usize>>, bytes: Bytes) -> Tensor {
    let host = HostTensor {
        dtype,
        shape: shape.into(),
        bytes: Storage::new(bytes),
    };
    Tensor::parameter(name, host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_neighbours_become_halves() {
        let bytes = Bytes::from((0..16).collect::<Vec<u8>>());
        let rows = Rows::Halved { heads: 2 };
        // Two heads of four rows of two bytes.
        assert_eq!(
            rows.take(&bytes, 2)[..],
            [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
        );
        let part = Rows::Part { of: 8, range: 2..4 };
        assert_eq!(part.take(&bytes, 2)[..], [4, 5, 6, 7]);
    }
}
