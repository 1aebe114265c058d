//! Transposes to channels-first sink below what follows them: `f(T x)` → `T f'(x)`.
//!
//! Only layout transposes do (`[0, r-1, 1, …]`, and what a channel shuffle makes of them): others are index maps that
//! their readers take in.

use ir::op::{Composite, Gather, Layout, View};
use ir::{Dim, Op, Shape, Value};

use super::to_first;
use crate::error::PassFault;
use crate::rewrite::{Builder, Rule};

type Answer = Result<Option<Value>, PassFault>;

/// The rules of this file.
pub const RULES: &[Rule] = &[
    Rule {
        name: "transpose_after_elementwise",
        apply: after_elementwise,
    },
    Rule {
        name: "transpose_after_concat",
        apply: after_concat,
    },
    Rule {
        name: "transpose_after_pad_or_slice",
        apply: after_pad_or_slice,
    },
    Rule {
        name: "transpose_after_broadcast",
        apply: after_broadcast,
    },
    Rule {
        name: "transpose_after_reduce",
        apply: after_reduce,
    },
    Rule {
        name: "transpose_after_take",
        apply: after_take,
    },
    Rule {
        name: "transpose_after_scan",
        apply: after_scan,
    },
    Rule {
        name: "transpose_after_softmax",
        apply: after_softmax,
    },
    Rule {
        name: "transpose_after_reshape",
        apply: after_reshape,
    },
];

/// The source and permutation of a value that is a layout transpose.
fn source(b: &Builder<'_>, v: Value) -> Option<(Value, Vec<usize>)> {
    match b.def(v) {
        (Op::View(View::Transpose(perm)), x)
            if perm.len() >= 3 && (perm.len() > 4 || *perm == to_first(perm.len())) =>
        {
            Some((x[0], perm.clone()))
        }
        // The transpose of one channel is a reshape.
        (Op::View(View::Reshape(to)), x) if is_one_channel(b, x[0]) => {
            let perm = to_first(to.rank());
            let from = &b.ty(x[0]).shape;
            let moves = to.rank() == from.rank() && perm.iter().zip(to.iter()).all(|(p, dim)| from[*p] == *dim);
            moves.then(|| (x[0], perm))
        }
        _ => None,
    }
}

/// Says whether a value is what a channels-last convolution with one filter gives.
fn is_one_channel(b: &Builder<'_>, v: Value) -> bool {
    let one = b.ty(v).shape.iter().last().is_some_and(|channels| channels.is(1));
    one && matches!(b.def(v).0, Op::Conv(conv) if conv.layout == Layout::ChannelsLast)
}

fn inverse(perm: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; perm.len()];
    for (i, p) in perm.iter().enumerate() {
        inverse[*p] = i;
    }
    inverse
}

fn transposed(b: &mut Builder<'_>, x: Value, perm: Vec<usize>) -> Answer {
    b.emit(Op::View(View::Transpose(perm)), &[x]).map(Some)
}

/// Elementwise ops, where the other operands are transposed too, or small enough to be permuted themselves.
fn after_elementwise(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::Elementwise(_) = op else { return Ok(None) };
    let Some((_, perm)) = x.iter().find_map(|v| source(b, *v)) else {
        return Ok(None);
    };
    let rank = perm.len();
    let back = inverse(&perm);
    let fits = |b: &Builder<'_>, v: Value| {
        let ty = b.ty(v);
        match source(b, v) {
            Some((_, p)) => p == perm,
            None => {
                ty.rank() <= rank && (b.as_constant(v).is_some() || ty.shape.iter().filter(|d| !d.is(1)).count() <= 1)
            }
        }
    };
    if x.iter().any(|v| b.ty(*v).rank() > rank) || !x.iter().all(|v| fits(b, *v)) {
        return Ok(None);
    }
    // A node that only mixes constants and one transpose of a larger rank must keep that rank.
    let mut operands = Vec::new();
    for v in x {
        operands.push(match source(b, *v) {
            Some((inner, _)) => inner,
            None if b.ty(*v).rank() == 0 => *v,
            None => {
                let shape = b.ty(*v).shape.clone();
                let full: Shape = std::iter::repeat_n(Dim::from(1), rank - shape.rank())
                    .chain(shape.iter().cloned())
                    .collect();
                let wide = if full == shape {
                    *v
                } else {
                    b.emit(Op::View(View::Reshape(full)), &[*v])?
                };
                b.emit(Op::View(View::Transpose(back.clone())), &[wide])?
            }
        });
    }
    let y = b.emit(op.clone(), &operands)?;
    transposed(b, y, perm)
}

fn after_concat(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Concat { axis }) = op else {
        return Ok(None);
    };
    let Some((_, perm)) = source(b, x[0]) else {
        return Ok(None);
    };
    let mut operands = Vec::new();
    for v in x {
        match source(b, *v) {
            Some((inner, p)) if p == perm => operands.push(inner),
            _ => return Ok(None),
        }
    }
    let y = b.emit(Op::View(View::Concat { axis: perm[*axis] }), &operands)?;
    transposed(b, y, perm)
}

fn after_pad_or_slice(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(view @ (View::Pad { .. } | View::Slice { .. })) = op else {
        return Ok(None);
    };
    let Some((inner, perm)) = source(b, x[0]) else {
        return Ok(None);
    };
    let back = inverse(&perm);
    let dims = |v: &[Dim]| back.iter().map(|i| v[*i].clone()).collect::<Vec<_>>();
    let moved = match view {
        View::Pad { low, high, mode } => View::Pad {
            low: dims(low),
            high: dims(high),
            mode: *mode,
        },
        View::Slice { starts, sizes, steps } => View::Slice {
            starts: dims(starts),
            sizes: dims(sizes),
            steps: back.iter().map(|i| steps[*i]).collect(),
        },
        View::Reshape(_) | View::Transpose(_) | View::Broadcast(_) | View::Concat { .. } => return Ok(None),
    };
    let y = b.emit(Op::View(moved), &[inner])?;
    transposed(b, y, perm)
}

/// Axes of size 1 that are repeated.
fn after_broadcast(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Broadcast(to)) = op else {
        return Ok(None);
    };
    let Some((inner, perm)) = source(b, x[0]) else {
        return Ok(None);
    };
    if to.rank() != perm.len() {
        return Ok(None);
    }
    let shape: Shape = inverse(&perm).iter().map(|i| to[*i].clone()).collect();
    let y = b.emit(Op::View(View::Broadcast(shape)), &[inner])?;
    transposed(b, y, perm)
}

fn after_reduce(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::Reduce {
        op: kind,
        axes,
        keep_dims,
    } = op
    else {
        return Ok(None);
    };
    let Some((inner, perm)) = source(b, x[0]) else {
        return Ok(None);
    };
    let mut mapped: Vec<usize> = axes.iter().map(|a| perm[*a]).collect();
    mapped.sort_unstable();
    let y = b.emit(
        Op::Reduce {
            op: *kind,
            axes: mapped.clone(),
            keep_dims: *keep_dims,
        },
        &[inner],
    )?;
    let rest = if *keep_dims {
        perm
    } else {
        // The axes that are left, renumbered.
        perm.iter()
            .filter(|p| !mapped.contains(p))
            .map(|p| p - mapped.iter().filter(|m| *m < p).count())
            .collect()
    };
    if rest.is_empty() {
        return Ok(Some(y));
    }
    transposed(b, y, rest)
}

/// Elements by their numbers, as images are resized: the axes of the numbers stand where the axis was.
fn after_take(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::Gather(Gather::Take { axis }) = op else {
        return Ok(None);
    };
    let Some((inner, perm)) = source(b, x[0]) else {
        return Ok(None);
    };
    let (at, numbers) = (perm[*axis], b.ty(x[1]).rank());
    let y = b.emit(Op::Gather(Gather::Take { axis: at }), &[inner, x[1]])?;
    let moved = |p: usize| match p.cmp(&at) {
        std::cmp::Ordering::Less => p..p + 1,
        std::cmp::Ordering::Equal => p..p + numbers,
        std::cmp::Ordering::Greater => p + numbers - 1..p + numbers,
    };
    let rest: Vec<usize> = perm.into_iter().flat_map(moved).collect();
    if rest.is_empty() {
        return Ok(Some(y));
    }
    transposed(b, y, rest)
}

/// Running folds along an axis.
fn after_scan(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::Scan {
        op: kind,
        axis,
        exclusive,
        reverse,
    } = op
    else {
        return Ok(None);
    };
    let Some((inner, perm)) = source(b, x[0]) else {
        return Ok(None);
    };
    let scan = Op::Scan {
        op: *kind,
        axis: perm[*axis],
        exclusive: *exclusive,
        reverse: *reverse,
    };
    let y = b.emit(scan, &[inner])?;
    transposed(b, y, perm)
}

fn after_softmax(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let (axis, log) = match op {
        Op::Composite(Composite::Softmax { axis }) => (*axis, false),
        Op::Composite(Composite::LogSoftmax { axis }) => (*axis, true),
        _ => return Ok(None),
    };
    let Some((inner, perm)) = source(b, x[0]) else {
        return Ok(None);
    };
    let axis = perm[axis];
    let composite = if log {
        Composite::LogSoftmax { axis }
    } else {
        Composite::Softmax { axis }
    };
    let y = b.emit(Op::Composite(composite), &[inner])?;
    transposed(b, y, perm)
}

/// A reshape that splits or merges axes within groups: the groups keep their places in memory, and the transpose moves
/// whole groups afterwards. Where the axes of a merged group are not neighbours in memory (a channel shuffle), they are
/// brought together by a transpose that the shuffle needs anyway.
fn after_reshape(b: &mut Builder<'_>, op: &Op, x: &[Value]) -> Answer {
    let Op::View(View::Reshape(to)) = op else {
        return Ok(None);
    };
    let Some((inner, perm)) = source(b, x[0]) else {
        return Ok(None);
    };
    let from = b.ty(x[0]).shape.clone();
    let Some(groups) = groups(&from, to) else {
        return Ok(None);
    };
    let mut order: Vec<usize> = (0..groups.len()).filter(|g| !groups[*g].0.is_empty()).collect();
    order.sort_by_key(|g| groups[*g].0.clone().map(|a| perm[a]).min());
    let gathered: Vec<usize> = order
        .iter()
        .flat_map(|g| groups[*g].0.clone().map(|a| perm[a]))
        .collect();
    if gathered.len() != perm.len() || order.len() != groups.len() {
        return Ok(None);
    }
    // Where each result axis lies once the groups are in memory order.
    let memory: Vec<usize> = order.iter().flat_map(|g| groups[*g].1.clone()).collect();
    let outer = inverse(&memory);
    let in_place = gathered.iter().enumerate().all(|(i, p)| i == *p);
    let shuffle = to.rank() >= 4 && outer == to_first(to.rank());
    if !in_place && !shuffle {
        return Ok(None);
    }
    let base = b.emit(Op::View(View::Transpose(gathered)), &[inner])?;
    let shape: Shape = memory.iter().map(|a| to[*a].clone()).collect();
    let y = b.emit(Op::View(View::Reshape(shape)), &[base])?;
    transposed(b, y, outer)
}

/// Pairs runs of axes with equal element counts, as short as they can be.
fn groups(from: &Shape, to: &Shape) -> Option<Vec<(std::ops::Range<usize>, std::ops::Range<usize>)>> {
    let mut out = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < from.rank() && j < to.rank() {
        let (start_i, start_j) = (i, j);
        let (mut a, mut c) = (from[i].clone(), to[j].clone());
        i += 1;
        j += 1;
        while a != c {
            // Which side is short: the one that divides the other.
            if c.exact_div(&a).is_some() && i < from.rank() {
                a = a * &from[i];
                i += 1;
            } else if a.exact_div(&c).is_some() && j < to.rank() {
                c = c * &to[j];
                j += 1;
            } else {
                return None;
            }
        }
        // A new axis of size 1 lies with the one before it.
        while j < to.rank() && to[j].is(1) && i < from.rank() && !from[i].is(1) {
            j += 1;
        }
        out.push((start_i..i, start_j..j));
    }
    // Trailing axes of size 1 join the last group.
    let tail = from[i..].iter().chain(&to[j..]).all(|d| d.is(1));
    let last = out.last_mut()?;
    if !tail {
        return None;
    }
    last.0.end = from.rank();
    last.1.end = to.rank();
    Some(out)
}
