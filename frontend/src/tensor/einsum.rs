//! Einstein summation of one or two operands.

use ir::{DType, Dim, Origin, Shape, TensorType};

use super::{Tensor, TensorError};

/// Sums products over the axes that the result does not name: `einsum("bhsd,bhtd->bhst", &[&q, &k])`.
///
/// Takes one or two operands; every axis is one letter, `->` and the result's axes are required. An axis named twice in
/// one operand is refused. Two operands become one matrix product with transposes that cost nothing.
#[track_caller]
pub fn einsum(equation: &str, operands: &[&Tensor]) -> Tensor {
    if let Some(poisoned) = operands.iter().find(|t| t.is_poisoned()) {
        return (*poisoned).clone();
    }
    let at = Origin::caller();
    let refuse = |message: String| {
        let operand = operands
            .first()
            .map_or(TensorType::new(DType::F32, Shape::SCALAR), |t| t.ty().clone());
        Tensor::poisoned(TensorError::Argument {
            op: "einsum",
            operand,
            origin: at.clone(),
            message,
        })
    };
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let Some((inputs, output)) = text.split_once("->") else {
        return refuse(format!("{equation:?} has no ->; name the result's axes"));
    };
    let inputs: Vec<Vec<char>> = inputs.split(',').map(|part| part.chars().collect()).collect();
    let output: Vec<char> = output.chars().collect();
    if inputs.len() != operands.len() || !(1..=2).contains(&inputs.len()) {
        return refuse(format!(
            "{equation:?} names {} operands and {} are given; it takes one or two",
            inputs.len(),
            operands.len()
        ));
    }
    for (names, tensor) in inputs.iter().zip(operands) {
        if names.len() != tensor.rank() {
            return refuse(format!("{names:?} names {} axes of {}", names.len(), tensor.ty()));
        }
    }
    for names in inputs.iter().chain([&output]) {
        if let Some(c) = names
            .iter()
            .enumerate()
            .find_map(|(i, c)| names[..i].contains(c).then_some(*c))
        {
            return refuse(format!("axis {c:?} occurs twice in {names:?}"));
        }
    }
    if let Some(c) = output.iter().find(|c| !inputs.iter().any(|names| names.contains(c))) {
        return refuse(format!("no operand has the axis {c:?} of the result"));
    }
    // Axes of one operand alone that the result lacks are summed first.
    let other = |i: usize| inputs.get(1 - i).cloned().unwrap_or_default();
    let mut reduced = Vec::new();
    for (i, (names, tensor)) in inputs.iter().zip(operands).enumerate() {
        let summed = |c: &char| !output.contains(c) && !other(i).contains(c);
        let axes: Vec<isize> = (0..names.len())
            .filter(|a| summed(&names[*a]))
            .map(|a| a as isize)
            .collect();
        let kept: Vec<char> = names.iter().copied().filter(|c| !summed(c)).collect();
        reduced.push((kept, tensor.sum(&axes[..])));
    }
    let [(a, x), rest @ ..] = &reduced[..] else {
        return refuse("no operands".to_owned());
    };
    let [(b, y)] = rest else {
        return arrange(x, a, &output);
    };
    let both = |c: &&char| a.contains(c) && b.contains(c);
    let batch: Vec<char> = output.iter().filter(both).copied().collect();
    let inner: Vec<char> = a
        .iter()
        .filter(|c| b.contains(c) && !output.contains(c))
        .copied()
        .collect();
    let rows: Vec<char> = a.iter().filter(|c| !b.contains(c)).copied().collect();
    let columns: Vec<char> = b.iter().filter(|c| !a.contains(c)).copied().collect();
    let size = |c: &char| -> Dim {
        let find = |names: &[char], t: &Tensor| names.iter().position(|n| n == c).map(|i| t.shape()[i].clone());
        find(a, x).or_else(|| find(b, y)).unwrap_or(Dim::Const(1))
    };
    let sizes = |names: &[char]| names.iter().map(size).collect::<Vec<Dim>>();
    let joined = |names: &[char]| names.iter().map(size).product::<Dim>();
    let shaped = |first: Dim, second: Dim| {
        let mut dims = sizes(&batch);
        dims.extend([first, second]);
        Shape(dims)
    };
    let left = arrange(x, a, &[&batch[..], &rows, &inner].concat());
    let left = left.reshape(shaped(joined(&rows), joined(&inner)));
    let right = arrange(y, b, &[&batch[..], &inner, &columns].concat());
    let right = right.reshape(shaped(joined(&inner), joined(&columns)));
    let product = left.matmul(&right);
    let order = [&batch[..], &rows, &columns].concat();
    arrange(&product.reshape(Shape(sizes(&order))), &order, &output)
}

/// Reorders the axes named `from` to the order `to`.
#[track_caller]
fn arrange(tensor: &Tensor, from: &[char], to: &[char]) -> Tensor {
    let perm: Vec<isize> = to
        .iter()
        .filter_map(|c| from.iter().position(|n| n == c))
        .map(|i| i as isize)
        .collect();
    if perm.iter().enumerate().all(|(i, p)| i as isize == *p) {
        return tensor.clone();
    }
    tensor.permute(&perm)
}
