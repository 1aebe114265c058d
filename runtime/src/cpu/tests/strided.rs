//! Folds whose elements lie apart: norms of groups of channels that come last, and what is computed beside them.

use ir::DType;
use ir::dim::Symbol;
use ir::kernel::{Body, Kernel, Loops, RowBody, Stmt};
use ir::op::{BinaryOp, ReduceOp, UnaryOp};

use super::build::{Build, c, sym};
use super::{check, sizes};

/// Groups of `c` of the `g * c` channels of images of `p` positions, normed, and the mean and the greatest element of
/// each.
///
/// ```text
/// out[i, r % p, j * c + r / p] = (x[..] - mean) * rstd * gamma[j * c + r / p]     for i in n, j in g, r in c * p
/// ```
fn group_norm(as_rows: bool, dtype: DType) -> Kernel {
    let mut b = Build::new("group_norm");
    b.kernel.symbols = ["n", "p", "g", "c"].map(Symbol::new).to_vec();
    let (n, p, g, channels) = (sym("n"), sym("p"), sym("g"), sym("c"));
    let all = g.clone() * channels.clone();
    let image = p.clone() * all.clone();
    let x = b.read("x", dtype, n.clone() * image.clone());
    let gamma = b.read("gamma", DType::F32, all.clone());
    let out = b.write("out", DType::F32, n.clone() * image.clone());
    let means = b.write("means", DType::F32, n.clone() * g.clone());
    let greatest = b.write("greatest", DType::F32, n.clone() * g.clone());
    let (i, j) = (b.axis("i", n), b.axis("j", g.clone()));
    let r = b.axis("r", channels.clone() * p.clone());
    let (row, positions, wide) = (b.at(r), b.size(p), b.size(all));
    let channel = b.bin(BinaryOp::Div, row, positions);
    let position = b.bin(BinaryOp::Mod, row, positions);
    let first = b.index(0, &[(j, channels)]);
    let channel = b.add(first, channel);
    let far = b.mul(position, wide);
    let start = b.index(0, &[(i, image)]);
    let at = b.add(start, far);
    let at = b.add(at, channel);
    let value = b.load(x, at);
    let value = b.cast(DType::F32, value);
    let count = b.size(sym("p") * sym("c"));
    let count = b.cast(DType::F32, count);
    let inverse = b.un(UnaryOp::Recip, count);
    let (sum_fold, sum) = b.fold(ReduceOp::Sum, &[r], value);
    let mean = b.mul(sum, inverse);
    let mean_var = b.var(DType::F32);
    let named = Stmt::Let {
        var: mean_var,
        value: mean,
    };
    let mean = b.value(mean_var);
    let centred = b.bin(BinaryOp::Sub, value, mean);
    let square = b.mul(centred, centred);
    let (square_fold, squares) = b.fold(ReduceOp::Sum, &[r], square);
    let (max_fold, max) = b.fold(ReduceOp::Max, &[r], value);
    let variance = b.mul(squares, inverse);
    let epsilon = b.num(1e-5);
    let moved = b.add(variance, epsilon);
    let rstd = b.un(UnaryOp::Rsqrt, moved);
    let normed = b.mul(centred, rstd);
    let scale = b.load(gamma, channel);
    let scaled = b.mul(normed, scale);
    let stored = b.store(out, at, scaled, &[r]);
    let place = b.index(0, &[(i, g), (j, c(1))]);
    let (mean_stored, max_stored) = (b.store(means, place, mean, &[]), b.store(greatest, place, max, &[]));
    let loops = Loops {
        parallel: vec![i, j],
        stmts: vec![sum_fold, named, square_fold, max_fold, stored, mean_stored, max_stored],
    };
    b.kernel.body = match as_rows {
        true => Body::Row(RowBody {
            loops,
            row: vec![r],
            held: vec![value],
            composite: None,
        }),
        false => Body::Loops(loops),
    };
    b.kernel
}

#[test]
fn groups_of_channels_that_come_last_are_read_in_the_order_of_memory() {
    for as_rows in [true, false] {
        for dtype in [DType::F32, DType::F16] {
            let kernel = group_norm(as_rows, dtype);
            ir::kernel::verify::verify(&kernel).unwrap();
            // Images of positions with small divisors, primes and squares; groups of one channel and of several.
            for (n, p, g, c, passes) in [
                (2, 1024, 16, 2, true),
                (1, 2039, 32, 1, true),
                (3, 625, 8, 5, true),
                (1, 12_544, 3, 3, true),
                (1, 4096, 1, 16, false),
                (2, 9, 4, 4, false),
                (0, 1024, 16, 2, false),
            ] {
                let at = sizes(&[("n", n), ("p", p), ("g", g), ("c", c)]);
                let pieces = check(&kernel, &at, &[], 2e-4);
                assert_eq!(pieces.len() > 1, passes, "{n} {p} {g} {c}: {pieces:?}");
            }
        }
    }
}
