//! The numbers that blocks stand for, by the formulas of ggml's `ggml-quants.c`, in `f32` and in its order of
//! operations.
//!
//! Before: whole blocks of one type. After: one `f32` an element, in the order of the row.

mod four_bit;
mod k_quants;
mod plain;
mod small;
mod ternary;

use half::f16;

use crate::error::Problem;
use crate::kind::TensorType;

/// Writes the numbers of whole blocks to `numbers`.
///
/// # Errors
/// `Length` where the bytes are not those of as many elements; `NoNumbers` for types that stand for none here: `Q8_1`
/// and `Q8_K` hold activations and are never in files, IQ1 to IQ3 need tables of ggml that graphc does not ship.
pub fn dequantize(ty: TensorType, bytes: &[u8], numbers: &mut [f32]) -> Result<(), Problem> {
    let (block, block_bytes) = (ty.block() as usize, ty.block_bytes() as usize);
    let needed = numbers.len().div_ceil(block) * block_bytes;
    if !numbers.len().is_multiple_of(block) || bytes.len() != needed {
        return Err(Problem::Length {
            ty,
            given: bytes.len(),
            wanted: numbers.len(),
            needed,
        });
    }
    let one = block_of(ty).map_err(|reason| Problem::NoNumbers {
        ty,
        reason: reason.to_owned(),
    })?;
    for (bytes, numbers) in bytes.chunks_exact(block_bytes).zip(numbers.chunks_exact_mut(block)) {
        one(bytes, numbers);
    }
    Ok(())
}

/// Writes the numbers of one block.
type Block = fn(&[u8], &mut [f32]);

fn block_of(ty: TensorType) -> Result<Block, &'static str> {
    Ok(match ty {
        TensorType::F32 => plain::f32,
        TensorType::F16 => plain::f16,
        TensorType::BF16 => plain::bf16,
        TensorType::F64 => plain::f64,
        TensorType::I8 => plain::i8,
        TensorType::I16 => plain::i16,
        TensorType::I32 => plain::i32,
        TensorType::I64 => plain::i64,
        TensorType::Q4_0 => small::q4_0,
        TensorType::Q4_1 => small::q4_1,
        TensorType::Q5_0 => small::q5_0,
        TensorType::Q5_1 => small::q5_1,
        TensorType::Q8_0 => small::q8_0,
        TensorType::Q1_0 => small::q1_0,
        TensorType::Q2_0 => small::q2_0,
        TensorType::Q2_K => k_quants::q2_k,
        TensorType::Q3_K => k_quants::q3_k,
        TensorType::Q4_K => k_quants::q4_k,
        TensorType::Q5_K => k_quants::q5_k,
        TensorType::Q6_K => k_quants::q6_k,
        TensorType::IQ4_NL => four_bit::iq4_nl,
        TensorType::IQ4_XS => four_bit::iq4_xs,
        TensorType::MXFP4 => four_bit::mxfp4,
        TensorType::NVFP4 => four_bit::nvfp4,
        TensorType::TQ1_0 => ternary::tq1_0,
        TensorType::TQ2_0 => ternary::tq2_0,
        TensorType::Q8_1 | TensorType::Q8_K => return Err("ggml keeps activations in it, and writes it to no file"),
        TensorType::IQ1_S
        | TensorType::IQ1_M
        | TensorType::IQ2_XXS
        | TensorType::IQ2_XS
        | TensorType::IQ2_S
        | TensorType::IQ3_XXS
        | TensorType::IQ3_S => {
            return Err("its code books are not read; take a Q2_K, Q3_K or IQ4_XS file of the model");
        }
    })
}

/// The f16 at a byte of a block.
fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The low four bits.
fn low(byte: u8) -> u8 {
    byte & 15
}

/// The high four bits.
fn high(byte: u8) -> u8 {
    byte >> 4
}
