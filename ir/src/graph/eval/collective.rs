//! What a collective makes of the ranks' parts. Sums are in the order of the ranks, and are not rounded in between.

use super::OpError;
use super::array::{Array, Data};
use crate::library::{Collective, CollectiveKind};

/// Returns what every rank is given; `parts` are in the order of the ranks.
///
/// # Errors
/// Parts of different types or shapes.
pub fn collective(of: Collective, parts: &[&Array]) -> Result<Array, OpError> {
    let Some((first, rest)) = parts.split_first() else {
        return Err(OpError::OperandCount { got: 0 });
    };
    for (rank, part) in rest.iter().enumerate() {
        if part.dtype != first.dtype || part.shape != first.shape {
            let text = |a: &Array| format!("{}{:?}", a.dtype, a.shape);
            return Err(OpError::Parts {
                rank: rank + 1,
                got: text(part),
                first: text(first),
            });
        }
    }
    Ok(match of.kind {
        CollectiveKind::AllReduce => {
            let mut sum = (*first).clone();
            for part in rest {
                add(&mut sum.data, &part.data);
            }
            match sum.data {
                // Wraps to the type's width.
                Data::Int(values) => Array::int(sum.dtype, sum.shape, values),
                data => Array::new(sum.dtype, sum.shape, data),
            }
        }
        CollectiveKind::AllGather => {
            let mut joined = (*first).clone();
            joined.shape.insert(0, parts.len());
            for part in rest {
                extend(&mut joined.data, &part.data);
            }
            joined
        }
    })
}

fn add(sum: &mut Data, part: &Data) {
    match (sum, part) {
        (Data::Float(sum), Data::Float(part)) => sum.iter_mut().zip(part).for_each(|(s, p)| *s += p),
        (Data::Int(sum), Data::Int(part)) => sum.iter_mut().zip(part).for_each(|(s, p)| *s = s.wrapping_add(*p)),
        // Types were compared, and truth values are not summed.
        _ => {}
    }
}

fn extend(joined: &mut Data, part: &Data) {
    match (joined, part) {
        (Data::Float(to), Data::Float(from)) => to.extend(from),
        (Data::Int(to), Data::Int(from)) => to.extend(from),
        (Data::Bool(to), Data::Bool(from)) => to.extend(from),
        _ => {}
    }
}
