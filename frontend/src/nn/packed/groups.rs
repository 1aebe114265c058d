//! Scales and zero points of groups along the inputs, and in which order the inputs are grouped.

use ir::{DType, HostTensor, Storage};

use super::words::build;
use crate::nn::{NnError, Params};
use crate::weights::TensorView;

/// A packed weight as products read it: `[outputs, inputs]`, each group of inputs with a scale and a zero point.
pub(super) struct Packed {
    /// The full name of what holds the numbers.
    pub name: String,
    /// `u4`, or `u8`.
    pub weight: HostTensor,
    /// `[outputs, groups]`, or `[1, 1]`.
    pub scales: HostTensor,
    /// `[outputs, groups]`, or `[1, 1]` where all are one number.
    pub zeros: HostTensor,
    /// How many inputs share a scale.
    pub group: usize,
    /// Which input each column of the weight is for, where they are not in their order.
    pub order: Option<Vec<i64>>,
}

/// Reads scales that lie `[groups, outputs]`, as `[outputs, groups]`.
///
/// # Errors
/// Another element type or shape, and scales that are not finite. 0 is the scale of a group of zeros.
pub(super) fn turned_scales(params: &Params, layout: &'static str, outputs: usize) -> Result<HostTensor, NnError> {
    let view = params.view("scales")?;
    let [groups, columns] = view.dims[..] else {
        return Err(wrong(layout, view, format!("a matrix [groups, {outputs}]")));
    };
    if columns != outputs || groups == 0 {
        return Err(wrong(layout, view, format!("a matrix [groups, {outputs}]")));
    }
    let host = finite(layout, view)?;
    let size = host.dtype.bits() as usize / 8;
    let mut bytes = Vec::with_capacity(host.bytes.len());
    for output in 0..outputs {
        for group in 0..groups {
            let at = (group * outputs + output) * size;
            bytes.extend_from_slice(&host.bytes[at..at + size]);
        }
    }
    Ok(HostTensor {
        dtype: host.dtype,
        shape: vec![outputs, groups],
        bytes: Storage::new(bytes),
    })
}

/// Returns scales of 16 bits or more, all of them finite.
pub(super) fn finite(layout: &'static str, view: &TensorView) -> Result<HostTensor, NnError> {
    let host = view.to_host()?;
    if !matches!(host.dtype, DType::F16 | DType::BF16 | DType::F32) {
        return Err(wrong(layout, view, "of f16, bf16 or f32".to_owned()));
    }
    match host.to_f64().into_iter().find(|s| !s.is_finite()) {
        Some(scale) => Err(NnError::packed(
            layout,
            &view.name,
            format!("not finite: it has a scale of {scale}"),
            "finite numbers; quantise the model again, from weights without NaN and infinity",
        )),
        None => Ok(host),
    }
}

fn wrong(layout: &'static str, view: &TensorView, expected: String) -> NnError {
    NnError::packed(layout, &view.name, format!("{}{:?}", view.element, view.dims), expected)
}

/// Makes zero points of a function of output and group; one number where all are the same.
pub(super) fn zeros(outputs: usize, groups: usize, bits: usize, zero: impl Fn(usize, usize) -> u8) -> HostTensor {
    let numbers: Vec<u8> = (0..outputs * groups).map(|i| zero(i / groups, i % groups)).collect();
    let first = numbers.first().copied().unwrap_or(0);
    if numbers.iter().all(|number| *number == first) {
        return build(1, 1, 8, |_, to| to.fill(first));
    }
    build(outputs, groups, bits, |row, to| {
        let from = &numbers[row * groups..];
        to.copy_from_slice(&from[..to.len()]);
    })
}

/// How inputs are grouped.
pub(super) struct Grouping {
    pub group: usize,
    /// As [`Packed::order`].
    pub order: Option<Vec<i64>>,
}

/// Works out the groups of `inputs` inputs, of which there are `groups`: from a tensor that has the group of each
/// input, else from the size that the checkpoint's configuration has, else by equal shares.
///
/// Where inputs of one group are not neighbours (GPTQ's act-order), the weight's columns are sorted by their groups and
/// the inputs are gathered in that order.
///
/// # Errors
/// Groups that do not divide the inputs and whose size nothing says; an index outside the groups; groups of unlike
/// sizes.
pub(super) fn grouping(
    params: &Params,
    layout: &'static str,
    index: &str,
    inputs: usize,
    groups: usize,
) -> Result<Grouping, NnError> {
    if let Some(of) = group_of_input(params, layout, index, inputs, groups)? {
        return sorted(params, layout, index, &of, groups);
    }
    let plain = |group| Ok(Grouping { group, order: None });
    match params.quantization()?.group {
        Some(size) if size > 0 && inputs.div_ceil(size) == groups => plain(size),
        _ if groups > 0 && inputs.is_multiple_of(groups) => plain(inputs / groups),
        _ => {
            let found = format!("of {groups} groups for {inputs} inputs, which they do not divide");
            let expected = format!("groups of one size; keep {index:?} or config.json beside the weights");
            Err(NnError::packed(layout, &params.name("scales"), found, expected))
        }
    }
}

/// Reads the group of each input; `None` where the file does not say, or has nothing but zeros for several groups.
fn group_of_input(
    params: &Params,
    layout: &'static str,
    index: &str,
    inputs: usize,
    groups: usize,
) -> Result<Option<Vec<usize>>, NnError> {
    if !params.contains(index) {
        return Ok(None);
    }
    let view = params.view(index)?;
    // An index that was never filled in: empty, all -1, or all 0.
    let of = view.to_host()?;
    let numbers = if of.dtype.is_int() { of.to_i64() } else { Vec::new() };
    if view.elements() == 0 || numbers.iter().all(|g| *g == -1) && of.dtype.is_int() {
        return Ok(None);
    }
    if view.dims != [inputs] || !of.dtype.is_int() {
        return Err(wrong(
            layout,
            view,
            format!("a vector of the groups of {inputs} inputs"),
        ));
    }
    if groups > 1 && numbers.iter().all(|g| *g == 0) {
        return Ok(None);
    }
    let group = |(input, number): (usize, &i64)| {
        let inside = usize::try_from(*number).ok().filter(|g| *g < groups);
        inside.ok_or_else(|| {
            let found = format!("wrong: it has group {number} for input {input}");
            NnError::packed(
                layout,
                &view.name,
                found,
                format!("numbers below the {groups} groups of the scales"),
            )
        })
    };
    numbers
        .iter()
        .enumerate()
        .map(group)
        .collect::<Result<_, _>>()
        .map(Some)
}

fn sorted(
    params: &Params,
    layout: &'static str,
    index: &str,
    of: &[usize],
    groups: usize,
) -> Result<Grouping, NnError> {
    let mut order: Vec<usize> = (0..of.len()).collect();
    // Stable: inputs of a group keep their order.
    order.sort_by_key(|input| of[*input]);
    let mut counts = vec![0usize; groups];
    of.iter().for_each(|group| counts[*group] += 1);
    let group = counts.iter().copied().max().unwrap_or(1).max(1);
    if let Some(place) = (0..of.len()).find(|place| of[order[*place]] != place / group) {
        let unlike = counts.iter().position(|count| *count != group).unwrap_or(place / group);
        let found = format!(
            "uneven: group {unlike} has {} inputs and another {group}",
            counts.get(unlike).copied().unwrap_or(0)
        );
        let expected = "groups of one size, of which the last may be short; quantise the model again, with desc_act=false or actorder=weight";
        return Err(NnError::packed(layout, &params.name(index), found, expected));
    }
    let is_sorted = order.iter().enumerate().all(|(place, input)| place == *input);
    let order = (!is_sorted).then(|| order.into_iter().map(|input| input as i64).collect());
    Ok(Grouping { group, order })
}
