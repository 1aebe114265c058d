//! Copies: pointwise kernels of one load and one store, whose strides the CPU moves memory by.
//!
//! Before: `store out[i * 64 + k] = in0[i * 24 + k]`. After: the same, and that it is 24 and 1 elements from point to
//! point where it is loaded, 64 and 1 where it is stored. An axis that is taken apart by divisions is split until none
//! is left.

use ir::kernel::{AxisId, CopyBody, CopyStep, Expr, Loops, Stmt};
use ir::{Dim, Entity};

use super::builder::Builder;
use super::index::{Atom, Linear};

/// The positions that a kernel of one load and one store has: where it loads, where it stores.
fn positions<'b>(b: &'b Builder<'_>, loops: &Loops) -> Option<[&'b Linear; 2]> {
    let [Stmt::Store { index, value, axes, .. }] = loops.stmts.as_slice() else {
        return None;
    };
    let Expr::Load { index: from, .. } = b.exprs[*value] else {
        return None;
    };
    axes.is_empty().then_some([b.linear.get(&from)?, b.linear.get(index)?])
}

/// What the loops copy, where that is all they do and each step is a number of elements.
pub fn copy(b: &Builder<'_>, loops: &Loops) -> Option<CopyBody> {
    let [from, to] = positions(b, loops)?;
    let [
        Stmt::Store {
            param: target, value, ..
        },
    ] = *loops.stmts.as_slice()
    else {
        return None;
    };
    let Expr::Load { param: source, .. } = b.exprs[value] else {
        return None;
    };
    if !from.is_affine() || !to.is_affine() {
        return None;
    }
    let steps = loops.parallel.iter().map(|a| CopyStep {
        source: from.coefficient(*a),
        target: to.coefficient(*a),
    });
    Some(CopyBody {
        source,
        target,
        from: from.constant.clone(),
        to: to.constant.clone(),
        steps: steps.collect(),
        loops: loops.clone(),
    })
}

/// An axis of a copy that a division takes apart, and the number of points that its inner part would have.
pub fn split(b: &Builder<'_>, loops: &Loops) -> Option<(AxisId, i64)> {
    let divided = |linear: &Linear| linear.terms.keys().find_map(|atom| of_atom(b, atom));
    positions(b, loops)?.into_iter().find_map(divided)
}

fn of_atom(b: &Builder<'_>, atom: &Atom) -> Option<(AxisId, i64)> {
    let (Atom::Div(inner, by) | Atom::Mod(inner, by)) = atom else {
        return None;
    };
    let by = by.as_const()?;
    if let Some(found) = inner.terms.keys().find_map(|atom| of_atom(b, atom)) {
        return Some(found);
    }
    // The steepest term that the divisor does not take whole.
    let terms = inner.terms.iter().filter_map(|(atom, step)| match (atom, step) {
        (Atom::Axis(axis), Dim::Const(step)) if *step > 0 && step % by != 0 => Some((*axis, *step)),
        _ => None,
    });
    let (axis, step) = terms.max_by_key(|(axis, step)| (*step, std::cmp::Reverse(axis.index())))?;
    let (inner, extent) = (by / step, b.extents[axis].as_const()?);
    (by % step == 0 && inner > 1 && extent > inner && extent % inner == 0).then_some((axis, inner))
}

#[cfg(test)]
mod tests {
    use ir::kernel::verify::{KernelError, verify};
    use ir::kernel::{Body, Kernel};

    use super::*;
    use crate::schedule::{ScheduleOptions, schedule};
    use crate::testing;

    /// The only kernel of a graph on the CPU.
    fn kernel(text: &str) -> Kernel {
        let target = ir::Target::cpu();
        let (graph, _) = testing::optimized(&testing::graph(text), &target.to_string(), Default::default());
        let (schedule, _) = schedule(&graph, &target, &ScheduleOptions::default()).expect("schedules");
        let region = schedule.regions.values().next().expect("a region");
        let kernel = super::super::lower(&graph, region, &target).expect("lowers");
        assert_eq!(verify(&kernel), Ok(()));
        kernel
    }

    const TRANSPOSED: &str = r#"
        symbol n: 1.. hint 64
        x = input "x" : f32[2, n, 24]
        y = transpose x {perm=[0, 2, 1]}
        return y as "y""#;

    #[test]
    fn a_transpose_is_a_copy_by_strides() {
        let text = kernel(TRANSPOSED).to_string();
        assert!(
            text.contains("copy in0 from 0 by [24*n, 1, 24] to out from 0 by [24*n, n, 1]"),
            "{text}"
        );
    }

    #[test]
    fn what_divisions_take_apart_is_split() {
        // Pixels from channels.
        let text = r#"
            x = input "x" : f32[1, 8, 6, 10]
            a = reshape x : f32[1, 2, 2, 2, 6, 10]
            b = transpose a {perm=[0, 1, 4, 2, 5, 3]}
            y = reshape b : f32[1, 2, 12, 20]
            return y as "y""#;
        let kernel = kernel(text);
        let Body::Copy(copy) = &kernel.body else {
            panic!("{kernel}")
        };
        let extents: Vec<String> = copy
            .loops
            .parallel
            .iter()
            .map(|a| kernel.axes[*a].extent.to_string())
            .collect();
        assert_eq!(extents, ["2", "6", "2", "10", "2"], "{kernel}");
    }

    #[test]
    fn what_computes_is_no_copy() {
        let kernel = kernel(&TRANSPOSED.replace("return y", "z = neg y\n        return z"));
        assert!(matches!(kernel.body, Body::Loops(_)), "{kernel}");
    }

    #[test]
    fn forged_facts_are_errors() {
        let forge: &[fn(&mut CopyBody)] = &[
            |c| c.from = Dim::Const(1),
            |c| c.to = Dim::Const(-1),
            |c| c.steps[0].source = Dim::Const(0),
            |c| c.steps[2].target = Dim::Const(2),
            |c| c.steps.truncate(2),
            |c| std::mem::swap(&mut c.source, &mut c.target),
            |c| c.loops.parallel.swap(0, 1),
        ];
        for (i, forge) in forge.iter().enumerate() {
            let mut kernel = kernel(TRANSPOSED);
            let Body::Copy(copy) = &mut kernel.body else {
                panic!("{kernel}")
            };
            forge(copy);
            let errors = verify(&kernel).expect_err(&format!("forgery {i}")).errors;
            assert!(
                errors.iter().any(|e| matches!(e, KernelError::Copy { .. })),
                "forgery {i}: {errors:?}"
            );
        }
    }
}
