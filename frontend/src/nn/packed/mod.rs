//! Weights of linear layers in 4 or 8 bits as quantisers of language models write them: GPTQ, AWQ and
//! compressed-tensors.
//!
//! Which layout a layer has is told from the names and shapes of its tensors. Whatever it is, the graph is given one
//! `dequantize` of a constant `[outputs, inputs]` with a scale and a zero point for each group of inputs, which
//! products read as it is stored.

mod awq;
mod compressed;
mod gptq;
mod groups;
#[cfg(test)]
mod tests;
mod words;

use ir::HostTensor;
use ir::op::Groups;

use super::{NnError, Params};
use crate::tensor::Tensor;
use words::Words;

/// A packed weight, and the order in which it wants its inputs.
pub(super) struct PackedWeight {
    /// `[outputs, inputs]`.
    pub weight: Tensor,
    /// Which inputs to gather, where not all in their order.
    pub order: Option<Tensor>,
}

/// Reads the packed weight at a place; `None` where there is none.
///
/// # Errors
/// What is packed, and has another shape than the layer or than its layout allows; each error names the tensor.
#[track_caller]
pub(super) fn load(params: &Params, inputs: usize, outputs: usize) -> Result<Option<PackedWeight>, NnError> {
    if params.is_random() {
        return Ok(None);
    }
    let packed = if params.contains("weight_packed") {
        compressed::read(params, inputs, outputs)?
    } else if params.contains("qweight") {
        let words = Words::read(params, "GPTQ or AWQ", "qweight")?;
        if words.rows == inputs && words.columns < outputs {
            awq::read(params, &words, inputs, outputs)?
        } else if words.columns == outputs {
            gptq::read(params, &words, inputs, outputs)?
        } else {
            let expected = match words.rows == outputs && words.columns * 8 == inputs {
                true => {
                    "AWQ's layout `gemm`; this is `gemv`: quantise the model again with version=\"gemm\"".to_owned()
                }
                false => format!(
                    "GPTQ's [{}, {outputs}] or AWQ's [{inputs}, {}] for 4 bits of {inputs} inputs and {outputs} outputs",
                    inputs.div_ceil(8),
                    outputs.div_ceil(8)
                ),
            };
            return Err(NnError::packed("GPTQ or AWQ", &words.name, words.found(), expected));
        }
    } else {
        return Ok(None);
    };
    let groups = (packed.scales.shape[1] > 1).then_some(Groups {
        axis: 1,
        size: packed.group as i64,
    });
    let parameter = |name: &str, tensor: HostTensor| Tensor::parameter(&format!("{}{name}", packed.name), tensor);
    let weight = parameter("", packed.weight).dequantize_groups(
        &parameter(".scales", packed.scales),
        Some(&parameter(".zeros", packed.zeros)),
        groups,
        params.element_type(),
    );
    let order = packed.order.map(|order| Tensor::from_slice(&order, [order.len()]));
    Ok(Some(PackedWeight { weight, order }))
}
