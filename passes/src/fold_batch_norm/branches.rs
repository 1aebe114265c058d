//! Sums of convolutions of one input, which are one convolution of the summed filters.
//!
//! ```text
//! add (conv x, w3x3, b), (conv x, w1x1, c)      →  conv x, (w3x3 + pad w1x1), (b + c)
//! add (conv x, w3x3, b), (batch_norm x, …)      →  conv x, (w3x3 + its scale at the centre), (b + its shift)
//! add (conv x, w3x3, b), x                      →  conv x, (w3x3 + 1 at the centre), b   (a group a channel)
//! ```
//!
//! Of an infinite element, branches of other signs make NaN, and the one convolution an infinity.
//!
//! Networks that are trained with parallel branches (RepVGG, MobileOne, RepGhost) are exported so.
//! Source: Ding et al., "RepVGG: Making VGG-style ConvNets Great Again", CVPR 2021, section 3.3.

use ir::op::{Composite, Conv, Window};
use ir::{DType, HostTensor, NodeId, Op, Value};

use super::{Found, find, normalised};
use crate::error::PassFault;
use crate::rewrite::Builder;

/// The name under which it is reported and disabled.
pub const RULE: &str = "parallel_convs";

/// Emits the convolution that a sum of two branches is.
pub fn merged(b: &mut Builder<'_>, id: NodeId, single: &dyn Fn(&Value) -> bool) -> Result<Option<Value>, PassFault> {
    let node = b.old.node(id);
    let [one, other] = node.operands[..] else {
        return Ok(None);
    };
    for (into, of) in [(one, other), (other, one)] {
        if !single(&into) || b.old.ty(into) != b.old.ty(of) {
            continue;
        }
        let Some(found) = find(b, b.value(into)).filter(takes_branches) else {
            continue;
        };
        let Some(branch) = branch(b, of, &found, single) else {
            continue;
        };
        if let Some(sum) = sum(&found, &branch) {
            return sum.emit(b).map(Some);
        }
    }
    Ok(None)
}

/// Says whether a convolution is one of numbers, with a filter that fixes what each output reads.
fn takes_branches(found: &Found) -> bool {
    let numbers = matches!(found.filter.dtype, DType::F32 | DType::F16 | DType::BF16);
    found.conv.transposed.is_none() && found.conv.pad_value == 0 && numbers
}

/// What a value makes of the input of a convolution, as a convolution itself.
fn branch(b: &Builder<'_>, value: Value, of: &Found, single: &dyn Fn(&Value) -> bool) -> Option<Found> {
    let new = b.value(value);
    if let Some(found) = find(b, new) {
        return (found.input == of.input && single(&value) && takes_branches(&found)).then_some(found);
    }
    let (op, operands) = b.def(new);
    if let Op::Composite(Composite::BatchNorm { epsilon, layout }) = op {
        let (scale, shift) = normalised(b, operands, epsilon.as_f64())?;
        let fits = operands[0] == of.input && *layout == of.conv.layout && single(&value);
        return fits.then(|| by_channel(of, &scale, Some(&shift)))?;
    }
    // A 1 beside the weights of other channels would be what those are rounded by.
    let alone = of.filter.shape[of.channel_axis()] == 1;
    let channels = of.channels();
    (new == of.input && alone && of.conv.groups as usize == channels)
        .then(|| by_channel(of, &vec![1.0; channels], None))?
}

/// Each channel times a number, and plus one: a filter of one tap of a group a channel.
fn by_channel(of: &Found, scale: &[f64], shift: Option<&[f32]>) -> Option<Found> {
    let mut shape = vec![1; of.filter.shape.len()];
    shape[0] = scale.len();
    Some(Found {
        conv: Conv {
            window: Window::unit(of.conv.window.strides.len()),
            groups: scale.len() as i64,
            ..of.conv.clone()
        },
        input: of.input,
        filter: HostTensor::from_f64(of.filter.dtype, shape, scale).ok()?,
        bias: match shift {
            Some(shift) => Some(HostTensor::from_f32(vec![shift.len()], shift).ok()?),
            None => None,
        },
    })
}

/// The first convolution with the taps of the second added; `None` where they are not some of the first one's, or a
/// sum is not finite.
fn sum(found: &Found, branch: &Found) -> Option<Found> {
    let (conv, other) = (&found.conv, &branch.conv);
    let same = conv.layout == other.layout && conv.window.strides == other.window.strides && conv.out == other.out;
    // Each group of the second lies inside one of the first.
    if !same || other.groups % conv.groups != 0 || found.channels() != branch.channels() {
        return None;
    }
    let channel_axis = found.channel_axis();
    let spatial: Vec<usize> = (1..found.filter.shape.len())
        .filter(|axis| *axis != channel_axis)
        .collect();
    let mut shift = vec![0; found.filter.shape.len()];
    for (i, axis) in spatial.into_iter().enumerate() {
        let (taps, others) = (found.filter.shape[axis], branch.filter.shape[axis]);
        let dilation = conv.window.dilations[i];
        if others > 1 && dilation != other.window.dilations[i] {
            return None;
        }
        let reach = conv.window.pad_low[i] - other.window.pad_low[i];
        let at = usize::try_from(reach / dilation)
            .ok()
            .filter(|_| reach % dilation == 0)?;
        if at + others > taps {
            return None;
        }
        shift[axis] = at;
    }
    let (inputs, others) = (found.filter.shape[channel_axis], branch.filter.shape[channel_axis]);
    let outputs = found.channels();
    let (per_group, per_other) = (outputs / conv.groups as usize, outputs / other.groups as usize);
    let mut filter = found.filter.to_f64();
    let mut strides = vec![1; shift.len()];
    for axis in (1..strides.len()).rev() {
        strides[axis - 1] = strides[axis] * found.filter.shape[axis];
    }
    let mut position = vec![0; shift.len()];
    for value in branch.filter.to_f64() {
        // The channel of the input that the tap reads, counted within the first one's group.
        let output = position[0];
        let channel =
            (output / per_other * others + position[channel_axis]).checked_sub(output / per_group * inputs)?;
        let place = |axis: usize| match axis == channel_axis {
            true => channel,
            false => position[axis] + shift[axis],
        };
        let flat: usize = (0..strides.len()).map(|axis| place(axis) * strides[axis]).sum();
        *filter.get_mut(flat)? += value;
        for axis in (0..position.len()).rev() {
            position[axis] += 1;
            if position[axis] < branch.filter.shape[axis] {
                break;
            }
            position[axis] = 0;
        }
    }
    let bias = match (&found.bias, &branch.bias) {
        (None, None) => None,
        (one, other) => {
            let values = |bias: &Option<HostTensor>| bias.as_ref().map_or(vec![0.0; outputs], HostTensor::to_f32);
            let sums: Vec<f32> = values(one).iter().zip(values(other)).map(|(a, b)| a + b).collect();
            Some(HostTensor::from_f32(vec![outputs], &sums).ok()?)
        }
    };
    let filter = HostTensor::from_f64(found.filter.dtype, found.filter.shape.clone(), &filter).ok()?;
    let finite = |tensor: &HostTensor| tensor.to_f64().iter().all(|v| v.is_finite());
    (finite(&filter) && bias.as_ref().is_none_or(finite)).then(|| Found {
        conv: conv.clone(),
        input: found.input,
        filter,
        bias,
    })
}

impl Found {
    fn emit(self, b: &mut Builder<'_>) -> Result<Value, PassFault> {
        let mut operands = vec![self.input, b.constant(self.filter)];
        operands.extend(self.bias.map(|bias| b.constant(bias)));
        b.emit(Op::Conv(self.conv), &operands)
    }
}
