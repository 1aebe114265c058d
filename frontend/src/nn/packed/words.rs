//! Tensors of 32-bit words that hold several numbers each, and tensors of 4 or 8 bits made of them.

use ir::{DType, HostTensor, Storage};

use crate::nn::{NnError, Params};
use crate::weights::ElementType;

/// A matrix of 32-bit words, little-endian and row-major as the file has it.
pub(super) struct Words {
    /// The full name of the tensor.
    pub name: String,
    pub rows: usize,
    pub columns: usize,
    pub bytes: bytes::Bytes,
}

impl Words {
    /// Reads a matrix of `i32`.
    ///
    /// # Errors
    /// No such tensor, or one of another element type or rank.
    pub fn read(params: &Params, layout: &'static str, name: &str) -> Result<Words, NnError> {
        let view = params.view(name)?;
        let [rows, columns] = view.dims[..] else {
            let found = format!("{}{:?}", view.element, view.dims);
            return Err(NnError::packed(layout, &view.name, found, "a matrix of i32 words"));
        };
        if view.element != ElementType::I32 {
            let found = format!("{}{:?}", view.element, view.dims);
            return Err(NnError::packed(layout, &view.name, found, "a matrix of i32 words"));
        }
        Ok(Words {
            name: view.name.clone(),
            rows,
            columns,
            bytes: view.bytes.clone(),
        })
    }

    /// Returns the word at a place inside the matrix.
    pub fn at(&self, row: usize, column: usize) -> u32 {
        let at = (row * self.columns + column) * 4;
        let word = self.bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
        u32::from_le_bytes(word.unwrap_or_default())
    }

    /// Returns the number at a place of a word.
    pub fn field(&self, row: usize, column: usize, place: usize, bits: usize) -> u8 {
        (self.at(row, column) >> (place * bits)) as u8 & mask(bits)
    }

    /// Says what the tensor is, for errors.
    pub fn found(&self) -> String {
        format!("i32[{}, {}]", self.rows, self.columns)
    }
}

/// The largest number of so many bits, at most 8.
pub(super) fn mask(bits: usize) -> u8 {
    u8::MAX >> 8usize.saturating_sub(bits)
}

/// Rows that are worked on together: so many words of a row of the file share a cache line.
const BLOCK: usize = 16;

/// Makes a tensor of `rows` by `columns` numbers of 4 or 8 bits. `fill` is given the first row of a block and the
/// block's rows, one after the other, of one byte a number.
pub(super) fn build(rows: usize, columns: usize, bits: usize, mut fill: impl FnMut(usize, &mut [u8])) -> HostTensor {
    // Rows of an odd size would begin in the middle of a byte.
    let nibbles = bits == 4 && columns.is_multiple_of(2);
    let mut bytes = Vec::with_capacity(if nibbles { rows * columns / 2 } else { rows * columns });
    let mut block = vec![0u8; BLOCK * columns];
    for first in (0..rows).step_by(BLOCK) {
        let numbers = &mut block[..BLOCK.min(rows - first) * columns];
        fill(first, numbers);
        match nibbles {
            true => bytes.extend(numbers.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4)),
            false => bytes.extend_from_slice(numbers),
        }
    }
    HostTensor {
        dtype: if nibbles { DType::U4 } else { DType::U8 },
        shape: vec![rows, columns],
        bytes: Storage::new(bytes),
    }
}
