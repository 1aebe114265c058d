//! Sums and maxima over the positions of images whose channels lie last.

use ir::DType;
use ir::dim::Symbol;
use ir::kernel::{Body, Kernel, Loops};
use ir::op::{BinaryOp, ReduceOp, UnaryOp};

use super::build::{Build, sym};
use super::{check, sizes};

/// ```text
/// out[i, j] = relu(fold over y, x of image[i, y, x, j] * 0.25)     for i in n, j in c
/// ```
///
/// With `turned`, results lie with the images beside each other.
fn means(op: ReduceOp, turned: bool) -> Kernel {
    let mut b = Build::new("means");
    b.kernel.symbols = ["n", "h", "w", "c", "more"].map(Symbol::new).to_vec();
    let (n, h, w, channels) = (sym("n"), sym("h"), sym("w"), sym("c"));
    // Rows of an image have more pixels than are folded.
    let wide = w.clone() + sym("more");
    let line = wide.clone() * channels.clone();
    let image = b.read("image", DType::F32, n.clone() * h.clone() * line.clone());
    let out = b.write("out", DType::F32, n.clone() * channels.clone());
    let (i, j) = (b.axis("i", n.clone()), b.axis("j", channels.clone()));
    let (y, x) = (b.axis("y", h.clone()), b.axis("x", w));
    let at = b.index(
        0,
        &[(i, h * line.clone()), (y, line), (x, channels.clone()), (j, 1.into())],
    );
    let value = b.load(image, at);
    let (fold, folded) = b.fold(op, &[y, x], value);
    let quarter = b.num(0.25);
    let scaled = b.bin(BinaryOp::Mul, folded, quarter);
    let result = b.un(UnaryOp::Relu, scaled);
    let place = match turned {
        true => b.index(0, &[(j, n), (i, 1.into())]),
        false => b.index(0, &[(i, channels), (j, 1.into())]),
    };
    let stored = b.store(out, place, result, &[]);
    b.kernel.body = Body::Loops(Loops {
        parallel: vec![i, j],
        stmts: vec![fold, stored],
    });
    b.kernel
}

#[test]
fn positions_of_images_are_folded_as_a_pool() {
    for (op, turned) in [(ReduceOp::Sum, false), (ReduceOp::Max, false), (ReduceOp::Sum, true)] {
        let kernel = means(op, turned);
        ir::kernel::verify::verify(&kernel).unwrap();
        for (n, h, w, c, more, pools) in [
            (1, 7, 7, 40, 0, true),
            (3, 4, 5, 17, 2, true),
            (9, 2, 4, 8, 0, true),
            (1, 1, 13, 131, 1, true),
            // Few elements, few channels, more than one thread should read, and nothing.
            (2, 1, 3, 64, 0, false),
            (2, 5, 5, 3, 0, false),
            (1, 70, 70, 8, 0, false),
            (1, 0, 7, 16, 0, false),
        ] {
            let at = sizes(&[("n", n), ("h", h), ("w", w), ("c", c), ("more", more)]);
            let pieces = check(&kernel, &at, &[], 1e-5);
            let pooled = pieces.iter().any(|piece| piece.contains("pool"));
            assert_eq!(pooled, pools, "{n} {h} {w} {c} {more}: {pieces:?}");
        }
    }
}
