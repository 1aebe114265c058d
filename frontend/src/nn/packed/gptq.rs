//! GPTQ's layout: words of neighbouring inputs.
//!
//! Of a layer `[outputs, inputs]` in so many bits, with `n = 32 / bits` numbers a word, lowest bits first:
//!
//! ```text
//! qweight i32[inputs / n, outputs]     input n·i + j of an output is number j of word i
//! qzeros  i32[groups, outputs / n]     output n·i + j of a group is number j of word i
//! scales  f16[groups, outputs]
//! g_idx   i32[inputs]                  the group of each input
//! ```
//!
//! A number stands for `(number − zero) · scale`. Checkpoints of format `gptq` store `zero − 1` in as many bits, so
//! that the largest number stands for 0; those of `gptq_v2` store the zero point. Some quantisers write the second and
//! call it the first: where no zero point of a layer is anything but the middle, which a symmetric quantiser has, it is
//! taken as it is.
//!
//! Source: `QuantLinear` of AutoGPTQ and GPTQModel.

use super::groups::{Packed, grouping, turned_scales, zeros};
use super::words::{Words, build, mask};
use crate::nn::{NnError, Params};

const LAYOUT: &str = "GPTQ";

/// Reads a layer whose `qweight` has as many columns as the layer has outputs.
pub(super) fn read(params: &Params, qweight: &Words, inputs: usize, outputs: usize) -> Result<Packed, NnError> {
    let bits = match (qweight.rows * 32).checked_div(inputs) {
        Some(bits @ (4 | 8)) if qweight.rows * 32 == inputs * bits => bits,
        Some(bits @ (1..=3 | 5..=7)) if qweight.rows * 32 == inputs * bits => {
            let found = format!("{}, which is {bits} bits an element", qweight.found());
            let expected = "4 or 8 bits; quantise the model again with bits=4";
            return Err(NnError::packed(LAYOUT, &qweight.name, found, expected));
        }
        _ => {
            let expected = format!(
                "[{}, {outputs}] for 4 bits or [{}, {outputs}] for 8 of {inputs} inputs and {outputs} outputs",
                inputs.div_ceil(8),
                inputs.div_ceil(4)
            );
            return Err(NnError::packed(LAYOUT, &qweight.name, qweight.found(), expected));
        }
    };
    let each = 32 / bits;
    let scales = turned_scales(params, LAYOUT, outputs)?;
    let groups = scales.shape[1];
    let grouping = grouping(params, LAYOUT, "g_idx", inputs, groups)?;
    let qzeros = Words::read(params, LAYOUT, "qzeros")?;
    if (qzeros.rows, qzeros.columns) != (groups, outputs.div_ceil(each)) {
        let expected = format!("[{groups}, {}], as its scales have it", outputs.div_ceil(each));
        return Err(NnError::packed(LAYOUT, &qzeros.name, qzeros.found(), expected));
    }
    let stored = |output: usize, group: usize| qzeros.field(group, output / each, output % each, bits);
    let middle = 1u8 << (bits - 1);
    let all_middle = (0..outputs).all(|output| (0..groups).all(|group| stored(output, group) == middle));
    let less = u8::from(!params.quantization()?.gptq_v2 && !all_middle);
    let zero = |output: usize, group: usize| stored(output, group).wrapping_add(less) & mask(bits);
    let zeros = zeros(outputs, groups, bits, zero);
    let mut sorted = vec![0u8; inputs];
    let weight = build(outputs, inputs, bits, |first, rows| {
        let count = rows.len() / inputs.max(1);
        for word in 0..qweight.rows {
            for row in 0..count {
                let number = qweight.at(word, first + row);
                let to = &mut rows[row * inputs + word * each..][..each];
                for (place, to) in to.iter_mut().enumerate() {
                    *to = (number >> (place * bits)) as u8 & mask(bits);
                }
            }
        }
        if let Some(order) = &grouping.order {
            for row in rows.chunks_exact_mut(inputs) {
                sorted
                    .iter_mut()
                    .zip(order)
                    .for_each(|(to, input)| *to = row[*input as usize]);
                row.copy_from_slice(&sorted);
            }
        }
    });
    Ok(Packed {
        name: qweight.name.clone(),
        weight,
        scales,
        zeros,
        group: grouping.group,
        order: grouping.order,
    })
}
