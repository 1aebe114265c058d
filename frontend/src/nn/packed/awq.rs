//! AWQ's layout for matrix products (AutoAWQ's `gemm`): words of neighbouring outputs, in an order of their own.
//!
//! ```text
//! qweight i32[inputs, outputs / 8]     output 8·i + ORDER[j] of an input is number j of word i, lowest bits first
//! qzeros  i32[groups, outputs / 8]     so are the zero points
//! scales  f16[groups, outputs]
//! ```
//!
//! A number stands for `(number − zero) · scale`. Source: `WQLinear_GEMM` of AutoAWQ.

use super::groups::{Packed, grouping, turned_scales, zeros};
use super::words::{Words, build};
use crate::nn::{NnError, Params};

const LAYOUT: &str = "AWQ";

/// Which of eight neighbouring outputs the numbers of a word are.
const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Reads a layer whose `qweight` has as many rows as the layer has inputs.
pub(super) fn read(params: &Params, qweight: &Words, inputs: usize, outputs: usize) -> Result<Packed, NnError> {
    if qweight.columns * 8 != outputs {
        let expected = format!(
            "[{inputs}, {}]: 4 bits of {inputs} inputs and {outputs} outputs, eight outputs a word",
            outputs / 8
        );
        return Err(NnError::packed(LAYOUT, &qweight.name, qweight.found(), expected));
    }
    let scales = turned_scales(params, LAYOUT, outputs)?;
    let groups = scales.shape[1];
    let grouping = grouping(params, LAYOUT, "g_idx", inputs, groups)?;
    let qzeros = Words::read(params, LAYOUT, "qzeros")?;
    if (qzeros.rows, qzeros.columns) != (groups, outputs / 8) {
        let expected = format!("[{groups}, {}], as its scales have it", outputs / 8);
        return Err(NnError::packed(LAYOUT, &qzeros.name, qzeros.found(), expected));
    }
    let mut place = [0usize; 8];
    ORDER.iter().enumerate().for_each(|(at, output)| place[*output] = at);
    let zero = |output: usize, group: usize| qzeros.field(group, output / 8, place[output % 8], 4);
    let zeros = zeros(outputs, groups, 4, zero);
    let weight = build(outputs, inputs, 4, |first, rows| {
        let count = rows.len() / inputs.max(1);
        for input in 0..inputs {
            let from = grouping.order.as_ref().map_or(input, |order| order[input] as usize);
            for word in first / 8..(first + count).div_ceil(8) {
                let number = qweight.at(from, word);
                for (at, output) in ORDER.iter().enumerate() {
                    let row = word * 8 + output - first;
                    rows[row * inputs + input] = (number >> (4 * at)) as u8 & 15;
                }
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
