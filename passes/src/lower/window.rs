//! Pooling: a fold over a window, and what is known of the window.
//!
//! Before: a max pool of `[1, 112, 112, 64]`, channels last, by windows of 3 x 3 in steps of 2 with a pad of 1. After:
//!
//! ```text
//! for y in 0..56, x in 0..56, c in 0..64 {
//!   window y * 2 + dy + -1 in 0..
//!   window x * 2 + dx + -1 in 0..
//!   v0 = max over dy in 0..3, dx in 0..3 of select(y * 2 + dy + -1 >= 0 & .., x[..], -inf)
//!   store out[..] = v0
//! }
//! ```

use ir::graph::eval::scalar::identity;
use ir::kernel::{
    AxisId, Body, Expr, ExprId, ImageAccess, ImageTarget, Loops, ParamId, Stmt, WindowAxis, WindowBody, WindowFold,
    WindowImages,
};
use ir::op::{BinaryOp, Pool, PoolKind, ReduceOp, Window};
use ir::{Dim, Target, Value};

use super::LowerError;
use super::builder::{Builder, arithmetic};
use super::index::{Atom, Linear};
use super::loops::total_type;
use super::rows::fold;

/// `Pool`: folds over a window with guarded reads, and what is known of the window.
pub fn pool(b: &mut Builder<'_>, pool: &Pool, target: &Target) -> Result<Body, LowerError> {
    let anchor = Value::from(b.region.anchor);
    let operand = b.graph.node(b.region.anchor).operands[0];
    let (in_shape, out_shape) = (b.shape(operand).clone(), b.shape(anchor).clone());
    let first = pool.layout.spatial_axis();
    let spatial = pool.size.len();
    let (parallel, coords) = b.iterate(&["n", "y", "x", "c"], &out_shape);
    let sizes: Vec<Dim> = pool.size.iter().map(|s| Dim::Const(*s)).collect();
    let (window, taps) = b.iterate(&["dy", "dx"], &sizes);
    let w = &pool.window;
    let mut at = coords.clone();
    for s in 0..spatial {
        at[first + s] = coords[first + s]
            .scale(&Dim::Const(w.strides[s]))
            .plus(&taps[s].scale(&Dim::Const(w.dilations[s])))
            .offset(&Dim::Const(-w.pad_low[s]));
    }
    let guard = b.in_range(&at[first..first + spatial], &in_shape[first..first + spatial]);
    let element = b.pull(operand, &at)?;
    let dtype = b.exprs.dtype(element);
    let mut stmts = Vec::new();
    let (mut folded, mut counts) = (element, false);
    let e = match pool.kind {
        PoolKind::Max => {
            let lowest = identity(ReduceOp::Max, b.graph.ty(operand).dtype);
            let lowest = b.exprs.add(Expr::Const(dtype, lowest), dtype);
            let x = guard.map_or(element, |g| b.select(g, element, lowest));
            fold(b, &mut stmts, ReduceOp::Max, &window, x)
        }
        PoolKind::Average { count_padding } => {
            let taps = pool.size.iter().product::<i64>();
            let dtype = match dtype.is_int() {
                true => total_type(dtype, &Dim::Const(taps)),
                false => dtype,
            };
            let zero = b.number(dtype, 0.0);
            let element = b.cast(dtype, element);
            folded = element;
            let x = guard.map_or(element, |g| b.select(g, element, zero));
            let sum = fold(b, &mut stmts, ReduceOp::Sum, &window, x);
            // What the divisor counts: elements in range, or with padding, elements in the padded input.
            let counted = if count_padding {
                let padded: Vec<Linear> = (0..spatial)
                    .map(|s| at[first + s].clone().offset(&Dim::Const(w.pad_low[s])))
                    .collect();
                let sizes: Vec<Dim> = (0..spatial)
                    .map(|s| in_shape[first + s].clone() + w.pad_low[s] + w.pad_high[s])
                    .collect();
                b.in_range(&padded, &sizes)
            } else {
                guard
            };
            match counted {
                None if dtype.is_int() => {
                    let count = b.number(dtype, taps as f64);
                    b.binary(BinaryOp::Div, sum, count)
                }
                None => {
                    let scale = b.number(dtype, 1.0 / taps as f64);
                    b.binary(BinaryOp::Mul, sum, scale)
                }
                Some(inside) => {
                    counts = true;
                    let one = b.number(dtype, 1.0);
                    let hit = b.select(inside, one, zero);
                    let count = fold(b, &mut stmts, ReduceOp::Sum, &window, hit);
                    // A window that lies in padding alone has the average 0, not 0/0.
                    let reaches = (0..spatial).all(|i| {
                        w.dilations[i] == 1
                            && w.pad_low[i].max(w.pad_high[i]) < pool.size[i]
                            && in_shape[first + i].at_least(1, b.graph.symbols())
                    });
                    let count = if reaches {
                        count
                    } else {
                        b.binary(BinaryOp::Max, count, one)
                    };
                    b.binary(BinaryOp::Div, sum, count)
                }
            }
        }
    };
    let pooled = e;
    let e = b.cast(arithmetic(b.graph.ty(anchor).dtype), e);
    let stores = b.epilogue(anchor, e, coords.clone(), &[])?;
    // What follows the folds, where that is no more than their result's store.
    let plain = match stores.as_slice() {
        [
            Stmt::Store {
                param, index, value, ..
            },
        ] if *value == e => Some((*param, *index)),
        _ => None,
    };
    stmts.extend(stores);
    let mut loops = Loops { parallel, stmts };
    if target.is_gpu() {
        in_order_of_memory(b, &mut loops, folded);
    }
    let moves = Moves {
        moves: w,
        counts_padding: counts && pool.kind == PoolKind::Average { count_padding: true },
        sizes: &in_shape[first..first + spatial],
        outputs: &coords[first..first + spatial],
        positions: &at[first..first + spatial],
        taps: &taps,
        window: &window,
    };
    // A fill that is not the least of the type that is folded would have to be brought in.
    let fills = pool.kind != PoolKind::Max
        || identity(ReduceOp::Max, b.graph.ty(operand).dtype) == identity(ReduceOp::Max, b.exprs.dtype(folded));
    let along = along(b, &moves).filter(|_| fills);
    let Some(along) = along else {
        return Ok(Body::Loops(loops));
    };
    let images = images(b, pool.kind, &along, &loops, folded, pooled, plain);
    Ok(Body::Window(WindowBody {
        loops,
        fold: WindowFold::Pool(pool.kind),
        along,
        element: folded,
        counts,
        images,
    }))
}

/// Brings parallel axes into the order in which elements lie in memory, whatever the layout of the op: neighbouring
/// threads take what lies side by side. Where elements and results lie otherwise, elements decide, which are read more
/// often; else results.
pub(super) fn in_order_of_memory(b: &Builder<'_>, loops: &mut Loops, element: ExprId) {
    let load = match b.exprs[element] {
        Expr::Cast(_, inner) => inner,
        _ => element,
    };
    let read = match b.exprs[load] {
        Expr::Load { index, .. } => Some(index),
        _ => None,
    };
    let stored = loops.stmts.iter().find_map(|s| match s {
        Stmt::Store { index, axes, .. } if axes.is_empty() => Some(*index),
        _ => None,
    });
    let symbols = b.graph.symbols();
    for index in [read, stored].into_iter().flatten() {
        let Some(linear) = b.linear.get(&index).filter(|linear| linear.is_affine()) else {
            continue;
        };
        let step = |axis: &AxisId| linear.coefficient(*axis).hint(symbols);
        if loops.parallel.iter().all(|axis| step(axis) > 0) {
            loops.parallel.sort_by_key(|axis| std::cmp::Reverse(step(axis)));
            return;
        }
    }
}

/// What the lowering of a window has of its spatial axes, outermost first.
pub(super) struct Moves<'a> {
    pub moves: &'a Window,
    /// Whether taps in padding are counted.
    pub counts_padding: bool,
    pub sizes: &'a [Dim],
    pub outputs: &'a [Linear],
    pub positions: &'a [Linear],
    /// Behind those of the axes, taps that the window does not move along.
    pub taps: &'a [Linear],
    /// The axes of the taps: fewer than there are taps of where some share one.
    pub window: &'a [AxisId],
}

/// The one axis of a coordinate; `None` where it is a number, or made of several.
fn axis_of(coordinate: &Linear) -> Option<AxisId> {
    match coordinate.terms.first_key_value() {
        Some((Atom::Axis(a), by)) if by.is(1) && coordinate.terms.len() == 1 && coordinate.constant.is(0) => Some(*a),
        _ => None,
    }
}

/// The axis that a coordinate is a quotient or remainder of, where that axis is shared with its neighbours.
fn shared_axis(coordinate: &Linear) -> Option<AxisId> {
    let (Atom::Div(inner, _) | Atom::Mod(inner, _), _) = coordinate.terms.first_key_value()? else {
        return None;
    };
    axis_of(inner).or_else(|| shared_axis(inner))
}

/// Taps along which no window moves.
fn fixed(taps: AxisId, extent: Dim) -> WindowAxis {
    WindowAxis {
        taps: Some(taps),
        outputs: None,
        stride: 1,
        dilation: 1,
        pad_low: 0,
        pad_high: 0,
        size: extent,
        guarded: [false; 2],
        beyond: false,
    }
}

/// How the window moves; `None` where it has one tap or where its guards are not about axes.
pub(super) fn along(b: &Builder<'_>, m: &Moves<'_>) -> Option<Vec<WindowAxis>> {
    let extent = |axis: Option<AxisId>| axis.map_or(Dim::Const(1), |a| b.extents[a].clone());
    if m.taps.iter().any(|t| axis_of(t).is_none() && !t.is_zero()) {
        // Taps that share an axis are walked as one: nothing guards them.
        let &[taps] = m.window else { return None };
        return Some(vec![fixed(taps, extent(Some(taps)))]);
    }
    let w = m.moves;
    let mut along = Vec::new();
    for (s, size) in m.sizes.iter().enumerate() {
        let position = &m.positions[s];
        let guarded = [!position.is_nonnegative(b.space()), !position.is_below(size, b.space())];
        let padded = size.clone() + w.pad_high[s] + w.pad_low[s];
        let beyond = m.counts_padding
            && !position
                .clone()
                .offset(&Dim::Const(w.pad_low[s]))
                .is_below(&padded, b.space());
        let taps = axis_of(&m.taps[s]);
        let is_guarded = guarded != [false; 2] || beyond;
        if taps.is_none() && !is_guarded {
            continue;
        }
        let mut axis = WindowAxis {
            taps,
            outputs: axis_of(&m.outputs[s]),
            stride: w.strides[s],
            dilation: w.dilations[s],
            pad_low: w.pad_low[s],
            pad_high: w.pad_high[s],
            size: size.clone(),
            guarded,
            beyond,
        };
        if axis.outputs.is_none() && !m.outputs[s].is_zero() {
            // Outputs that share an axis with images or channels: these lie as if they were one tall image.
            axis.outputs = Some(shared_axis(&m.outputs[s]).filter(|_| !is_guarded)?);
            axis.size = (extent(axis.outputs) - 1) * axis.stride + (extent(axis.taps) - 1) * axis.dilation + 1;
        }
        if is_guarded && axis.taps.is_none() && axis.outputs.is_none() {
            return None;
        }
        along.push(axis);
    }
    let behind = m.taps.iter().skip(m.sizes.len()).filter_map(axis_of);
    along.extend(behind.map(|taps| fixed(taps, extent(Some(taps)))));
    along.iter().any(|a| a.taps.is_some()).then_some(along)
}

/// Where the images of a pool lie, and its results that are stored as they are; `None` where that is not a number of
/// elements from each to the next.
fn images(
    b: &Builder<'_>,
    kind: PoolKind,
    along: &[WindowAxis],
    loops: &Loops,
    element: ExprId,
    pooled: ExprId,
    stored: Option<(ParamId, ExprId)>,
) -> Option<WindowImages> {
    if kind != PoolKind::Max && !b.exprs.dtype(element).is_float() {
        return None;
    }
    let Expr::Load { param: source, index } = b.exprs[element] else {
        return None;
    };
    let from = b.linear.get(&index).filter(|from| from.is_affine())?;
    let others: Vec<AxisId> = loops
        .parallel
        .iter()
        .copied()
        .filter(|p| along.iter().all(|a| a.outputs != Some(*p)))
        .collect();
    // Channels are the ones that lie side by side, if any do.
    let (image, channel) = match *others.as_slice() {
        [] => (None, None),
        [channel] => (None, Some(channel)),
        [channel, image] if from.coefficient(channel).is(1) => (Some(image), Some(channel)),
        [image, channel] => (Some(image), Some(channel)),
        _ => return None,
    };
    let of = |linear: &Linear, axis: Option<AxisId>| axis.map_or(Dim::Const(0), |a| linear.coefficient(a));
    let mut base = from.constant.clone();
    let mut read = Vec::new();
    for a in along {
        let (at_taps, at_outputs) = (of(from, a.taps), of(from, a.outputs));
        let step = match a.taps {
            Some(_) => at_taps.exact_div(&Dim::Const(a.dilation))?,
            None => at_outputs.exact_div(&Dim::Const(a.stride))?,
        };
        if a.outputs.is_some() && at_outputs != step.clone() * a.stride {
            return None;
        }
        base = base + step.clone() * a.pad_low;
        read.push(step);
    }
    let target = |(param, index)| {
        let to = b.linear.get(&index).filter(|to| to.is_affine())?;
        let at = ImageAccess {
            base: to.constant.clone(),
            image: of(to, image),
            channel: of(to, channel),
            along: along.iter().map(|a| of(to, a.outputs)).collect(),
        };
        Some(ImageTarget { param, at })
    };
    let target = match stored {
        Some(stored) => Some(target(stored)?),
        None => None,
    };
    Some(WindowImages {
        source,
        image,
        channel,
        from: ImageAccess {
            base,
            image: of(from, image),
            channel: of(from, channel),
            along: read,
        },
        pooled,
        target,
    })
}

#[cfg(test)]
mod tests {
    use ir::kernel::Kernel;
    use ir::kernel::verify::{KernelError, verify};

    use super::*;
    use crate::schedule::{ScheduleOptions, schedule};
    use crate::testing;

    /// The kernels of a graph on the CPU.
    fn kernels(text: &str) -> Vec<Kernel> {
        let target = Target::cpu();
        let (graph, _) = testing::optimized(&testing::graph(text), &target.to_string(), Default::default());
        let (schedule, _) = schedule(&graph, &target, &ScheduleOptions::default()).expect("schedules");
        let kernels: Vec<Kernel> = schedule
            .regions
            .values()
            .map(|region| super::super::lower(&graph, region, &target).expect("lowers"))
            .collect();
        kernels.iter().for_each(|k| assert_eq!(verify(k), Ok(())));
        kernels
    }

    fn windows(text: &str) -> Vec<Kernel> {
        let mut kernels = kernels(text);
        kernels.retain(|k| matches!(k.body, Body::Window(_)));
        kernels
    }

    fn body(kernel: &Kernel) -> &WindowBody {
        match &kernel.body {
            Body::Window(window) => window,
            _ => unreachable!("only windows were kept"),
        }
    }

    const PADDED: &str = r#"
        symbol h: 1.. hint 20
        x = input "x" : f32[2, h, 9, 5]
        y = pool x {kind=KIND, size=[3, 2], strides=[2, 1], pad_low=[1, 0], pad_high=[1, 2], dilations=[1, 2], ceil, channels_last}
        return y as "y""#;

    #[test]
    fn the_facts_of_a_pool_of_open_sizes() {
        let found = windows(&PADDED.replace("KIND", "max"));
        let [kernel] = found.as_slice() else {
            panic!("{} windows", found.len())
        };
        let window = body(kernel);
        let facts: Vec<String> = window
            .along
            .iter()
            .map(|a| format!("{} {} {} {} {:?}", a.stride, a.dilation, a.pad_low, a.size, a.guarded))
            .collect();
        assert_eq!(facts, ["2 1 1 h [true, true]", "1 2 0 9 [false, true]"]);
        let images = window.images.as_ref().expect("it is nothing but a pool");
        let steps = |access: &ImageAccess| access.along.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            (images.from.channel.clone(), steps(&images.from)),
            (Dim::Const(1), vec!["45".into(), "5".into()])
        );
        assert_eq!(images.from.image.to_string(), "45*h");
        let text = kernel.to_string();
        assert!(text.contains("window y * 2 + dy + -1 in 0..h"), "{text}");
        assert!(text.contains("window x + dx * 2 in ..9"), "{text}");
    }

    #[test]
    fn every_kind_says_what_counts() {
        let counts = ["max", "average", "average_padded"].map(|kind| {
            let found = windows(&PADDED.replace("KIND", kind));
            let window = body(&found[0]);
            (
                window.counts,
                window.along.iter().any(|a| a.beyond),
                window.images.is_some(),
            )
        });
        assert_eq!(counts, [(false, false, true), (true, false, true), (true, true, true)]);
    }

    #[test]
    fn what_is_made_of_a_window_is_no_target_and_what_a_pool_reads_is_stored_before() {
        let text = r#"
            x = input "x" : f32[1, 8, 8, 4]
            a = exp x
            p = pool a {kind=KIND, size=[2, 2], strides=[2, 2], channels_last}
            y = neg p
            return y as "y""#;
        for kind in ["max", "average"] {
            let found = kernels(&text.replace("KIND", kind));
            let [before, kernel] = found.as_slice() else {
                panic!("{} kernels", found.len())
            };
            assert!(matches!(before.body, Body::Loops(_)), "{before}");
            let images = body(kernel).images.as_ref().expect("its elements lie in a buffer");
            assert!(images.target.is_none(), "{kernel}");
        }
    }

    #[test]
    fn whole_images_are_one_run_of_taps() {
        let found = windows(
            r#"
            x = input "x" : f32[2, 8, 7, 7]
            y = pool x {kind=average, size=[7, 7]}
            return y as "y""#,
        );
        let window = body(&found[0]);
        let taps = window
            .taps()
            .iter()
            .map(|a| found[0].axes[*a].extent.clone())
            .collect::<Vec<_>>();
        assert_eq!((taps, window.images.is_some()), (vec![Dim::Const(49)], true));
    }

    fn target(window: &mut WindowBody) -> &mut ImageTarget {
        let images = window.images.as_mut().expect("images");
        images.target.as_mut().expect("results are stored as they are")
    }

    #[test]
    fn forged_facts_are_errors() {
        type Forge = fn(&mut WindowBody);
        let any: &[Forge] = &[
            |w| w.along[0].stride = 1,
            |w| w.along[0].stride = 0,
            |w| w.along[0].pad_low = i64::MIN,
            |w| w.along[1].dilation = 1,
            |w| w.along[0].pad_low = 0,
            |w| w.along[0].size = Dim::Const(7),
            |w| w.along[0].guarded[0] = false,
            |w| w.along[1].guarded[0] = true,
            |w| w.along[0].outputs = w.along[1].outputs,
            |w| w.along[0].taps = None,
            |w| w.along.truncate(1),
            |w| w.along.swap(0, 1),
            |w| w.counts ^= true,
            |w| {
                w.fold = WindowFold::Pool(if w.pool() == Some(PoolKind::Max) {
                    PoolKind::Average { count_padding: false }
                } else {
                    PoolKind::Max
                })
            },
            |w| {
                w.loops.stmts.remove(0);
            },
            |w| w.images.as_mut().expect("images").from.base = Dim::Const(1),
            |w| target(w).at.channel = Dim::Const(2),
            |w| w.images.as_mut().expect("images").pooled = w.element,
            |w| w.images.as_mut().expect("images").from.along[1] = Dim::Const(4),
            |w| w.images.as_mut().expect("images").from.along.clear(),
            |w| w.images.as_mut().expect("images").image = None,
            |w| {
                let source = w.images.as_ref().expect("images").source;
                let target = std::mem::replace(&mut target(w).param, source);
                w.images.as_mut().expect("images").source = target;
            },
        ];
        for kind in ["max", "average", "average_padded"] {
            let found = windows(&PADDED.replace("KIND", kind));
            for (i, forge) in any.iter().enumerate() {
                let mut kernel = found[0].clone();
                let Body::Window(window) = &mut kernel.body else {
                    unreachable!("it is a window")
                };
                forge(window);
                let errors = verify(&kernel).expect_err(&format!("{kind}: forgery {i}")).errors;
                let is_window = errors.iter().any(|e| matches!(e, KernelError::Window { .. }));
                assert!(is_window, "{kind}: forgery {i}: {errors:?}");
            }
        }
        // Which taps count.
        let mut kernel = windows(&PADDED.replace("KIND", "average_padded")).remove(0);
        let Body::Window(window) = &mut kernel.body else {
            unreachable!("it is a window")
        };
        window.along.iter_mut().for_each(|a| a.pad_high = 0);
        assert!(verify(&kernel).is_err());
    }
}
