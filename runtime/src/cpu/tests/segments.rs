//! Loops that are cut where positions decide what is stored.

use ir::kernel::{ExprId, Kernel};
use ir::op::{BinaryOp, UnaryOp};
use ir::{DType, Dim};

use super::build::{Build, c, sym};
use super::{check, sizes};

/// Pairs of neighbours that are turned: `x * cos + select(p < 1, -x[2 * i + 1], x[2 * i]) * sin`.
fn turned() -> Kernel {
    let mut b = Build::new("turned");
    let n = sym("n");
    let all: Dim = n.clone() * 64;
    let x = b.read("x", DType::F32, all.clone());
    let (cos, sin) = (b.read("cos", DType::F32, 64), b.read("sin", DType::F32, 64));
    let out = b.write("out", DType::F32, all);
    let (row, i, p) = (b.axis("row", n), b.axis("i", 32), b.axis("p", 2));
    let place = b.index(0, &[(row, c(64)), (i, c(2)), (p, c(1))]);
    let column = b.index(0, &[(i, c(2)), (p, c(1))]);
    let [even, odd] = [0, 1].map(|at| b.index(at, &[(row, c(64)), (i, c(2))]));
    let (own, even, odd) = (b.load(x, place), b.load(x, even), b.load(x, odd));
    let (at, one) = (b.at(p), b.int(1));
    let first = b.bin(BinaryOp::Lt, at, one);
    let minus = b.un(UnaryOp::Neg, odd);
    let other = b.select(first, minus, even);
    let (cos, sin) = (b.load(cos, column), b.load(sin, column));
    let (own, other) = (b.mul(own, cos), b.mul(other, sin));
    let value = b.add(own, other);
    let store = b.store(out, place, value, &[]);
    b.loops(&[row, i, p], vec![store])
}

#[test]
fn turned_pairs_are_two_loops() {
    let kernel = turned();
    assert_eq!(check(&kernel, &sizes(&[("n", 200)]), &[], 1e-6), ["loops", "loops"]);
    // Few points are not worth it.
    assert_eq!(check(&kernel, &sizes(&[("n", 3)]), &[], 1e-6), ["loops"]);
    check(&kernel, &sizes(&[("n", 0)]), &[], 1e-6);
}

/// An image with a border of `border` on each side, doubled: what `condition` makes of each comparison decides.
fn bordered(border: i64, negated: bool) -> Kernel {
    let mut b = Build::new("bordered");
    let (h, w) = (sym("h"), sym("w"));
    let (tall, wide) = (h.clone() + 2 * border, w.clone() + 2 * border);
    let x = b.read("x", DType::F32, h.clone() * w.clone() * 3);
    let out = b.write("out", DType::F32, tall.clone() * wide.clone() * 3);
    let (channel, y, xx) = (b.axis("c", 3), b.axis("y", tall.clone()), b.axis("x", wide.clone()));
    let inside = |b: &mut Build, axis, size: Dim| -> ExprId {
        let (at, low) = (b.at(axis), b.int(border));
        let end = b.size(size + border);
        let below = b.bin(BinaryOp::Lt, at, end);
        let above = b.bin(BinaryOp::Ge, at, low);
        b.bin(BinaryOp::And, below, above)
    };
    let (down, across) = (inside(&mut b, y, h.clone()), inside(&mut b, xx, w.clone()));
    let both = b.bin(BinaryOp::And, down, across);
    let from = b.index(0, &[(channel, h * w.clone()), (y, w.clone()), (xx, c(1))]);
    let back = b.size(w * border + border);
    let from = b.bin(BinaryOp::Sub, from, back);
    let (load, fill) = (b.load(x, from), b.num(-1.5));
    let value = match negated {
        true => {
            let not = b.un(UnaryOp::Not, both);
            b.select(not, fill, load)
        }
        false => b.select(both, load, fill),
    };
    let value = b.add(value, value);
    let to = b.index(0, &[(channel, tall * wide.clone()), (y, wide), (xx, c(1))]);
    let store = b.store(out, to, value, &[]);
    b.loops(&[channel, y, xx], vec![store])
}

#[test]
fn borders_are_loops_of_their_own() {
    for border in [1, 3] {
        for negated in [false, true] {
            let kernel = bordered(border, negated);
            let names = check(&kernel, &sizes(&[("h", 90), ("w", 80)]), &[], 0.0);
            assert_eq!(names, ["loops"; 9], "a border of {border}");
            // Fewer points have fewer pieces: columns before rows.
            let names = check(&kernel, &sizes(&[("h", 30), ("w", 80)]), &[], 0.0);
            assert_eq!(names, ["loops"; 3], "a border of {border}");
            for (h, w) in [(1, 1), (1, 3000), (3000, 1), (0, 9)] {
                check(&kernel, &sizes(&[("h", h), ("w", w)]), &[], 0.0);
            }
        }
    }
}
