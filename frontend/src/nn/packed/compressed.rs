//! compressed-tensors' format `pack-quantized`: words of neighbouring inputs of an output.
//!
//! Of a layer `[outputs, inputs]` in so many bits, with `n = 32 / bits` numbers a word, lowest bits first:
//!
//! ```text
//! weight_packed     i32[outputs, ⌈inputs / n⌉]     number + 2^(bits − 1); what fills the last word up counts for nothing
//! weight_scale      f16[outputs, groups]           or [outputs, 1], or one number
//! weight_zero_point i32[⌈outputs / n⌉, groups]     zero point + 2^(bits − 1), along the outputs; none is 0
//! weight_shape      i64[2]
//! weight_g_idx      i32[inputs]                    the group of each input, where they are not neighbours
//! ```
//!
//! A number stands for `(number − zero) · scale`, so the shift of both cancels. Source: `pack_quantized.py` of
//! compressed-tensors.

use ir::{DType, HostTensor, Storage};

use super::groups::{Grouping, Packed, finite, grouping, zeros};
use super::words::{Words, build, mask};
use crate::nn::{NnError, Params};
use crate::weights::ElementType;

const LAYOUT: &str = "compressed-tensors";

/// Reads a layer that has `weight_packed`.
pub(super) fn read(params: &Params, inputs: usize, outputs: usize) -> Result<Packed, NnError> {
    let words = Words::read(params, LAYOUT, "weight_packed")?;
    check_shape(params, inputs, outputs)?;
    let bits = bits(&words, inputs, outputs)?;
    let each = 32 / bits;
    let scales = scales(params, outputs)?;
    let groups = scales.shape[1];
    let grouping = match groups {
        1 => Grouping {
            group: inputs.max(1),
            order: None,
        },
        _ => grouping(params, LAYOUT, "weight_g_idx", inputs, groups)?,
    };
    let zeros = match params.contains("weight_zero_point") {
        true => zero_points(params, bits, scales.shape[0], groups)?,
        false => zeros(1, 1, bits, |_, _| 1 << (bits - 1)),
    };
    let weight = match &grouping.order {
        // The words' bytes are those of a tensor of four or eight bits.
        None if inputs.is_multiple_of(each) => HostTensor {
            dtype: if bits == 4 { DType::U4 } else { DType::U8 },
            shape: vec![outputs, inputs],
            bytes: Storage::new(words.bytes.clone()),
        },
        order => build(outputs, inputs, bits, |first, rows| {
            for (place, to) in rows.iter_mut().enumerate() {
                let (row, column) = (first + place / inputs, place % inputs);
                let input = order.as_ref().map_or(column, |order| order[column] as usize);
                *to = words.field(row, input / each, input % each, bits);
            }
        }),
    };
    Ok(Packed {
        name: words.name,
        weight,
        scales,
        zeros,
        group: grouping.group,
        order: grouping.order,
    })
}

/// Checks `weight_shape`, which says what the words were before they were filled up.
fn check_shape(params: &Params, inputs: usize, outputs: usize) -> Result<(), NnError> {
    if !params.contains("weight_shape") {
        return Ok(());
    }
    let view = params.view("weight_shape")?;
    let shape = view.to_host()?.to_i64();
    if shape == [outputs as i64, inputs as i64] {
        return Ok(());
    }
    let expected = format!("[{outputs}, {inputs}] in this module");
    Err(NnError::packed(LAYOUT, &view.name, format!("{shape:?}"), expected))
}

/// Works out the bits of an element from the words of a row.
fn bits(words: &Words, inputs: usize, outputs: usize) -> Result<usize, NnError> {
    let fits = |bits: &usize| words.rows == outputs && words.columns == inputs.div_ceil(32 / bits);
    match [4usize, 8].iter().filter(|bits| fits(bits)).collect::<Vec<_>>()[..] {
        [bits] => Ok(*bits),
        [] => {
            let other = [2usize, 3, 5, 6, 7].into_iter().find(fits);
            let found = match other {
                Some(bits) => format!("{}, which is {bits} bits an element", words.found()),
                None => words.found(),
            };
            let expected = format!(
                "[{outputs}, {}] for 4 bits or [{outputs}, {}] for 8; quantise the model again with num_bits=4",
                inputs.div_ceil(8),
                inputs.div_ceil(4)
            );
            Err(NnError::packed(LAYOUT, &words.name, found, expected))
        }
        _ => {
            let found = format!("{}, which is as good for 4 bits as for 8", words.found());
            Err(NnError::packed(LAYOUT, &words.name, found, "of more than 4 inputs"))
        }
    }
}

/// Reads scales as `[outputs, groups]`, or `[1, 1]`.
fn scales(params: &Params, outputs: usize) -> Result<HostTensor, NnError> {
    let view = params.view("weight_scale")?;
    let shape = match view.dims[..] {
        [] | [1] | [1, 1] => vec![1, 1],
        [rows] if rows == outputs => vec![rows, 1],
        [rows, groups] if rows == outputs && groups > 0 => vec![rows, groups],
        _ => {
            let found = format!("{}{:?}", view.element, view.dims);
            let expected = format!("[{outputs}, groups], [{outputs}, 1] or one number");
            return Err(NnError::packed(LAYOUT, &view.name, found, expected));
        }
    };
    Ok(HostTensor {
        shape,
        ..finite(LAYOUT, view)?
    })
}

/// Reads zero points, packed along the outputs or, as older files have them, one a byte.
fn zero_points(params: &Params, bits: usize, outputs: usize, groups: usize) -> Result<HostTensor, NnError> {
    let view = params.view("weight_zero_point")?;
    let middle = 1u8 << (bits - 1);
    if view.element == ElementType::I8 && view.elements() == outputs * groups {
        let bytes = &view.bytes;
        let inside = |z: &u8| (*z as i8).wrapping_add(middle as i8) as u8 & !mask(bits) == 0;
        if bits == 8 || bytes.iter().all(inside) {
            let zero = |output: usize, group: usize| bytes[output * groups + group].wrapping_add(middle);
            return Ok(zeros(outputs, groups, bits, zero));
        }
        let expected = format!("zero points of {bits} bits");
        return Err(NnError::packed(LAYOUT, &view.name, "out of range".to_owned(), expected));
    }
    let each = 32 / bits;
    let words = Words::read(params, LAYOUT, "weight_zero_point")?;
    if (words.rows, words.columns) != (outputs.div_ceil(each), groups) {
        let expected = format!("[{}, {groups}], as its scales have it", outputs.div_ceil(each));
        return Err(NnError::packed(LAYOUT, &words.name, words.found(), expected));
    }
    let zero = |output: usize, group: usize| words.field(output / each, group, output % each, bits);
    Ok(zeros(outputs, groups, bits, zero))
}
