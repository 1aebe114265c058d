//! Slices, pads and concats that do nothing, and chains of them.

use ir::op::{PadMode, View};
use ir::{Dim, Op, Value};

use crate::error::PassFault;
use crate::rewrite::{Builder, Rule};

type Answer = Result<Option<Value>, PassFault>;

/// The rules of this file.
pub const RULES: &[Rule] = &[
    Rule {
        name: "slice_of_all",
        apply: slice_of_all,
    },
    Rule {
        name: "slice_of_slice",
        apply: slice_of_slice,
    },
    Rule {
        name: "slice_of_concat",
        apply: slice_of_concat,
    },
    Rule {
        name: "pad_of_nothing",
        apply: pad_of_nothing,
    },
    Rule {
        name: "concat_of_one",
        apply: concat_of_one,
    },
    Rule {
        name: "concat_of_concat",
        apply: concat_of_concat,
    },
    Rule {
        name: "concat_of_adjacent_slices",
        apply: concat_of_adjacent_slices,
    },
    Rule {
        name: "pad_of_pad",
        apply: pad_of_pad,
    },
];

/// A slice that takes everything, forwards.
fn slice_of_all(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Slice { starts, sizes, steps }) = op else {
        return Ok(None);
    };
    let all = starts.iter().all(|s| s.is(0)) && steps.iter().all(|s| *s == 1) && *sizes == b.ty(x[0]).shape.0;
    Ok(all.then_some(x[0]))
}

/// Two slices are one.
fn slice_of_slice(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Slice { starts, sizes, steps }) = op else {
        return Ok(None);
    };
    let (
        Op::View(View::Slice {
            starts: first,
            steps: by,
            ..
        }),
        inner,
    ) = b.def(x[0])
    else {
        return Ok(None);
    };
    let starts = first
        .iter()
        .zip(by)
        .zip(starts)
        .map(|((f, by), s)| f.clone() + s.clone() * *by)
        .collect();
    let steps = by.iter().zip(steps).map(|(a, b)| a * b).collect();
    let (inner, sizes) = (inner[0], sizes.clone());
    b.emit(Op::View(View::Slice { starts, sizes, steps }), &[inner])
        .map(Some)
}

/// A slice that lies inside one part of a concat.
fn slice_of_concat(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Slice { starts, sizes, steps }) = op else {
        return Ok(None);
    };
    let (Op::View(View::Concat { axis }), parts) = b.def(x[0]) else {
        return Ok(None);
    };
    let axis = *axis;
    if steps[axis] != 1 {
        return Ok(None);
    }
    let end = starts[axis].clone() + &sizes[axis];
    let mut offset = Dim::from(0);
    for part in parts {
        let next = offset.clone() + &b.ty(*part).shape[axis];
        let starts_inside = (starts[axis].clone() - &offset).at_least(0, b.symbols());
        if starts_inside && (next.clone() - &end).at_least(0, b.symbols()) {
            let mut starts = starts.clone();
            starts[axis] = starts[axis].clone() - offset;
            let view = View::Slice {
                starts,
                sizes: sizes.clone(),
                steps: steps.clone(),
            };
            let part = *part;
            return b.emit(Op::View(view), &[part]).map(Some);
        }
        offset = next;
    }
    Ok(None)
}

/// A pad that adds nothing.
fn pad_of_nothing(_: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    match op {
        Op::View(View::Pad { low, high, .. }) if low.iter().chain(high).all(|d| d.is(0)) => Ok(Some(x[0])),
        _ => Ok(None),
    }
}

/// Two pads with the same number are one, when both add.
fn pad_of_pad(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Pad {
        low,
        high,
        mode: mode @ PadMode::Constant(_),
    }) = op
    else {
        return Ok(None);
    };
    let (
        Op::View(View::Pad {
            low: l,
            high: h,
            mode: m,
        }),
        inner,
    ) = b.def(x[0])
    else {
        return Ok(None);
    };
    let adds = |d: &[Dim]| d.iter().all(|d| d.at_least(0, b.symbols()));
    if m != mode || !adds(low) || !adds(high) || !adds(l) || !adds(h) {
        return Ok(None);
    }
    let sum = |a: &[Dim], c: &[Dim]| a.iter().zip(c).map(|(a, c)| a.clone() + c).collect();
    let view = View::Pad {
        low: sum(low, l),
        high: sum(high, h),
        mode: *mode,
    };
    let inner = inner[0];
    b.emit(Op::View(view), &[inner]).map(Some)
}

/// A concat of one part, or of parts all but one of which are empty.
fn concat_of_one(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Concat { axis }) = op else {
        return Ok(None);
    };
    if x.len() == 1 {
        return Ok(Some(x[0]));
    }
    let full: Vec<Value> = x.iter().copied().filter(|v| !b.ty(*v).shape[*axis].is(0)).collect();
    if !full.is_empty() && full.len() < x.len() {
        return b.emit(op.clone(), &full).map(Some);
    }
    Ok(None)
}

/// A concat of a concat along the same axis is one.
fn concat_of_concat(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Concat { axis }) = op else {
        return Ok(None);
    };
    let mut flat = Vec::new();
    for v in x {
        match b.def(*v) {
            (Op::View(View::Concat { axis: inner }), parts) if inner == axis => flat.extend_from_slice(parts),
            _ => flat.push(*v),
        }
    }
    // Only when it does not grow without bound: dense blocks concat everything before them.
    if flat.len() > x.len() && flat.len() <= 16 {
        return b.emit(op.clone(), &flat).map(Some);
    }
    Ok(None)
}

/// A concat of slices that continue one another is one slice.
fn concat_of_adjacent_slices(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Concat { axis }) = op else {
        return Ok(None);
    };
    let axis = *axis;
    let slice = |v: Value| match b.def(v) {
        (Op::View(View::Slice { starts, sizes, steps }), inner) if steps[axis] == 1 => {
            Some((starts, sizes, steps, inner[0]))
        }
        _ => None,
    };
    let Some((starts, sizes, steps, source)) = slice(x[0]) else {
        return Ok(None);
    };
    let mut end = starts[axis].clone() + &sizes[axis];
    for v in &x[1..] {
        let Some((s, z, t, from)) = slice(*v) else {
            return Ok(None);
        };
        let others = (0..s.len()).all(|i| i == axis || (s[i] == starts[i] && z[i] == sizes[i]));
        if from != source || t != steps || s[axis] != end || !others {
            return Ok(None);
        }
        end = end + &z[axis];
    }
    let (starts, mut sizes, steps) = (starts.clone(), sizes.clone(), steps.clone());
    sizes[axis] = end - &starts[axis];
    b.emit(Op::View(View::Slice { starts, sizes, steps }), &[source])
        .map(Some)
}
