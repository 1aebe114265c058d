//! Copies, and choices by position as kernels have them that the lowering left whole.

use ir::entity::Entity;
use ir::kernel::{AxisId, Body, CopyBody, CopyStep, ExprId, Kernel, ParamId};
use ir::op::{BinaryOp, ReduceOp};
use ir::{DType, Dim, Symbol};

use super::build::{Build, c, sym};
use super::{check, sizes};

/// `select(l < first, a[at, l], b[at, l - first])`, as any of the four comparisons would have it.
fn choose(b: &mut Build, op: BinaryOp, l: AxisId, first: i64, [x, y]: [ExprId; 2]) -> ExprId {
    let at = b.at(l);
    let (bound, last) = (b.int(first), b.int(first - 1));
    match op {
        BinaryOp::Lt => {
            let condition = b.bin(op, at, bound);
            b.select(condition, x, y)
        }
        BinaryOp::Le => {
            let condition = b.bin(op, at, last);
            b.select(condition, x, y)
        }
        BinaryOp::Gt => {
            let condition = b.bin(op, bound, at);
            b.select(condition, x, y)
        }
        _ => {
            let condition = b.bin(BinaryOp::Ge, at, bound);
            b.select(condition, y, x)
        }
    }
}

/// Two images side by side along the channels, optionally under a window of 3 in steps of 2.
fn concat(dtype: DType, op: BinaryOp, window: bool, first: i64, second: i64) -> Kernel {
    let mut b = Build::new("concat");
    let (rows, all) = (sym("h"), first + second);
    let height = if window { rows.clone() * 2 + 1 } else { rows.clone() };
    let cols = c(if window { 18 } else { 37 });
    let input =
        |b: &mut Build, name: &str, channels: i64| -> ParamId { b.read(name, dtype, height.clone() * 37 * channels) };
    let (p, q) = (input(&mut b, "a", first), input(&mut b, "b", second));
    let out = b.write("out", dtype, rows.clone() * cols.clone() * all);
    let (y, x, l) = (b.axis("y", rows), b.axis("x", cols.clone()), b.axis("l", all));
    let step = if window { 2 } else { 1 };
    let (dy, dx) = (b.axis("dy", 3), b.axis("dx", 3));
    let index = |b: &mut Build, channels: i64, base: i64| {
        let mut terms = vec![(y, c(37 * channels * step)), (x, c(channels * step)), (l, c(1))];
        if window {
            terms.extend([(dy, c(37 * channels)), (dx, c(channels))]);
        }
        b.index(base, &terms)
    };
    let (at_p, at_q) = (index(&mut b, first, 0), index(&mut b, second, -first));
    let loads = [b.load(p, at_p), b.load(q, at_q)];
    let value = choose(&mut b, op, l, first, loads);
    let to = b.index(0, &[(y, cols * all), (x, c(all)), (l, c(1))]);
    if window {
        let (fold, max) = b.fold(ReduceOp::Max, &[dy, dx], value);
        let store = b.store(out, to, max, &[]);
        b.loops(&[y, x, l], vec![fold, store])
    } else {
        let store = b.store(out, to, value, &[]);
        b.loops(&[y, x, l], vec![store])
    }
}

#[test]
fn concatenations_choose_in_place() {
    for dtype in [DType::F32, DType::F16, DType::I64] {
        for op in [BinaryOp::Lt, BinaryOp::Le, BinaryOp::Gt, BinaryOp::Ge] {
            let kernel = concat(dtype, op, false, 16, 48);
            assert_eq!(check(&kernel, &sizes(&[("h", 20)]), &[], 0.0), ["loops", "loops"]);
            check(&kernel, &sizes(&[("h", 0)]), &[], 0.0);
        }
    }
}

#[test]
fn windows_over_concatenations_choose_at_each_tap() {
    for op in [BinaryOp::Lt, BinaryOp::Ge] {
        let kernel = concat(DType::F32, op, true, 24, 40);
        assert_eq!(check(&kernel, &sizes(&[("h", 18)]), &[], 0.0), ["loops"]);
    }
}

/// A kernel of loops as a copy by these strides of its source and its target.
fn copy(mut kernel: Kernel, steps: &[[Dim; 2]]) -> Kernel {
    let Body::Loops(loops) = kernel.body.clone() else {
        unreachable!("it was built as loops")
    };
    kernel.symbols = vec![Symbol::new("n")];
    kernel.body = Body::Copy(CopyBody {
        loops,
        source: ParamId::new(0),
        target: ParamId::new(1),
        from: c(0),
        to: c(0),
        steps: steps
            .iter()
            .map(|[source, target]| CopyStep {
                source: source.clone(),
                target: target.clone(),
            })
            .collect(),
    });
    assert_eq!(ir::kernel::verify::verify(&kernel), Ok(()));
    kernel
}

#[test]
fn transposes_of_long_rows_are_copies_in_every_size() {
    for (dtype, inner) in [(DType::F32, 3), (DType::F32, 64), (DType::Bool, 33), (DType::F64, 17)] {
        let mut b = Build::new("channels_last");
        let n = sym("n");
        let x = b.read("x", dtype, n.clone() * inner * 2);
        let out = b.write("out", dtype, n.clone() * inner * 2);
        let (i, j, l) = (b.axis("i", 2), b.axis("j", n.clone()), b.axis("l", inner));
        let from = b.index(0, &[(i, n.clone() * inner), (j, c(1)), (l, n.clone())]);
        let to = b.index(0, &[(i, n.clone() * inner), (j, c(inner)), (l, c(1))]);
        let value = b.load(x, from);
        let store = b.store(out, to, value, &[]);
        let image = n.clone() * inner;
        let steps = [[image.clone(), image], [c(1), c(inner)], [n, c(1)]];
        let kernel = copy(b.loops(&[i, j, l], vec![store]), &steps);
        for size in [2, 15, 16, 100, 5000] {
            assert_eq!(
                check(&kernel, &sizes(&[("n", size)]), &[], 0.0),
                [if inner < 8 { "loops" } else { "copy" }],
                "{dtype} {inner} {size}"
            );
        }
        for size in [0, 1] {
            check(&kernel, &sizes(&[("n", size)]), &[], 0.0);
        }
    }
}

#[test]
fn overlapping_destinations_are_not_copies() {
    // Neighbouring rows share elements: the last point in order wins, which tasks would not keep.
    let mut b = Build::new("overlap");
    let x = b.read("x", DType::F32, 64 * 16);
    let out = b.write("out", DType::F32, 64 * 16);
    let (i, j) = (b.axis("i", 60), b.axis("j", 16));
    let from = b.index(0, &[(i, c(8)), (j, c(1))]);
    let to = b.index(0, &[(i, c(8)), (j, c(1))]);
    let value = b.load(x, from);
    let store = b.store(out, to, value, &[]);
    let kernel = copy(b.loops(&[i, j], vec![store]), &[[c(8), c(8)], [c(1), c(1)]]);
    assert!(!check(&kernel, &sizes(&[]), &[], 0.0).contains(&"copy"));
}
