//! Kernels of loops.

use ir::kernel::{
    Access, Body, Expr, ImageAccess, ImageTarget, RowBody, RowComposite, RowKind, ScanBody, SortBody, Stmt, WindowAxis,
    WindowBody, WindowFold, WindowImages,
};
use ir::op::{BinaryOp, PoolKind, ReduceOp, UnaryOp};
use ir::{DType, HostTensor, Symbol};

use super::build::{Build, c, sym};
use super::{buffers, check, check_with, sizes};

/// `out = relu(a + b[col])` over `[m, n]` in a type.
fn pointwise(dtype: DType) -> ir::Kernel {
    let mut b = Build::new("add_relu");
    let (m, n) = (sym("m"), sym("n"));
    let (x, y) = (b.read("x", dtype, m.clone() * n.clone()), b.read("y", dtype, n.clone()));
    let out = b.write("out", dtype, m.clone() * n.clone());
    let (i, j) = (b.axis("i", m), b.axis("j", n.clone()));
    let at = b.index(0, &[(i, n), (j, c(1))]);
    let row = b.at(j);
    let (x, y) = (b.load(x, at), b.load(y, row));
    let (x, y) = (b.cast(DType::F32, x), b.cast(DType::F32, y));
    let sum = b.add(x, y);
    let relu = b.un(UnaryOp::Relu, sum);
    let narrow = b.cast(dtype, relu);
    let store = b.store(out, at, narrow, &[]);
    b.loops(&[i, j], vec![store])
}

#[test]
fn pointwise_in_every_float_type_and_size() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F8E4M3FN] {
        let kernel = pointwise(dtype);
        for (m, n) in [(1, 1), (3, 5), (0, 4), (4, 0), (7, 1030), (33, 64), (2, 2048)] {
            check(&kernel, &sizes(&[("m", m), ("n", n)]), &[], 1e-6);
        }
    }
}

#[test]
fn transposes_in_tiles() {
    let mut b = Build::new("transpose");
    let (m, n) = (sym("m"), sym("n"));
    let x = b.read("x", DType::F32, m.clone() * n.clone() * 3);
    let out = b.write("out", DType::F32, m.clone() * n.clone() * 3);
    let (k, i, j) = (b.axis("k", 3), b.axis("i", n.clone()), b.axis("j", m.clone()));
    let from = b.index(0, &[(k, m.clone() * n.clone()), (j, n.clone()), (i, c(1))]);
    let to = b.index(0, &[(k, m.clone() * n), (i, m), (j, c(1))]);
    let v = b.load(x, from);
    let store = b.store(out, to, v, &[]);
    let kernel = b.loops(&[k, i, j], vec![store]);
    for (m, n) in [(1, 7), (40, 33), (128, 100), (5, 1)] {
        check(&kernel, &sizes(&[("m", m), ("n", n)]), &[], 0.0);
    }
}

#[test]
fn softmax_and_layer_norm_rows() {
    for axis_last in [true, false] {
        let mut b = Build::new("softmax");
        let (m, n) = (sym("m"), sym("n"));
        let x = b.read("x", DType::F32, m.clone() * n.clone());
        let out = b.write("out", DType::F32, m.clone() * n.clone());
        let (i, r) = (b.axis("i", m.clone()), b.axis("r", n.clone()));
        let at = match axis_last {
            true => b.index(0, &[(i, n), (r, c(1))]),
            false => b.index(0, &[(i, c(1)), (r, m)]),
        };
        let v = b.load(x, at);
        let (max, max_v) = b.fold(ReduceOp::Max, &[r], v);
        let shifted = b.bin(BinaryOp::Sub, v, max_v);
        let exp = b.un(UnaryOp::Exp, shifted);
        let (sum, sum_v) = b.fold(ReduceOp::Sum, &[r], exp);
        let weight = b.bin(BinaryOp::Div, exp, sum_v);
        let store = b.store(out, at, weight, &[r]);
        let loops = b.loops(&[i], vec![max, sum, store]);
        // The same as a row that says what it is: the composite's own kernel where rows are contiguous.
        let mut row = loops.clone();
        if let Body::Loops(loops) = loops.body.clone() {
            row.body = Body::Row(RowBody {
                loops,
                row: vec![r],
                held: vec![v],
                composite: Some(RowComposite {
                    kind: RowKind::Softmax,
                    x: v,
                    scale: None,
                    bias: None,
                }),
            });
        }
        for (m, n) in [(1, 1), (3, 17), (5, 1500), (200, 4), (0, 3)] {
            check(&loops, &sizes(&[("m", m), ("n", n)]), &[], 1e-5);
            check(&row, &sizes(&[("m", m), ("n", n)]), &[], 1e-5);
        }
    }
    let mut b = Build::new("layer_norm");
    let (m, n) = (sym("m"), sym("n"));
    let x = b.read("x", DType::F16, m.clone() * n.clone());
    let gamma = b.read("gamma", DType::F32, n.clone());
    let out = b.write("out", DType::F16, m.clone() * n.clone());
    let (i, r) = (b.axis("i", m), b.axis("r", n.clone()));
    let at = b.index(0, &[(i, n.clone()), (r, c(1))]);
    let v = b.load(x, at);
    let v = b.cast(DType::F32, v);
    let count = b.size(n);
    let count = b.cast(DType::F32, count);
    let scale = b.un(UnaryOp::Recip, count);
    let (sum, sum_v) = b.fold(ReduceOp::Sum, &[r], v);
    let mean = b.mul(sum_v, scale);
    let mean_var = b.var(DType::F32);
    let mean_let = Stmt::Let {
        var: mean_var,
        value: mean,
    };
    let mean = b.value(mean_var);
    let centred = b.bin(BinaryOp::Sub, v, mean);
    let square = b.mul(centred, centred);
    let (squares, squares_v) = b.fold(ReduceOp::Sum, &[r], square);
    let variance = b.mul(squares_v, scale);
    let epsilon = b.num(1e-5);
    let shifted = b.add(variance, epsilon);
    let rstd = b.un(UnaryOp::Rsqrt, shifted);
    let rstd_var = b.var(DType::F32);
    let rstd_let = Stmt::Let {
        var: rstd_var,
        value: rstd,
    };
    let rstd = b.value(rstd_var);
    let normal = b.mul(centred, rstd);
    let column = b.at(r);
    let g = b.load(gamma, column);
    let y = b.mul(normal, g);
    let y = b.cast(DType::F16, y);
    let store = b.store(out, at, y, &[r]);
    let kernel = b.loops(&[i], vec![sum, mean_let, squares, rstd_let, store]);
    for (m, n) in [(1, 3), (9, 384), (2, 2500)] {
        check(&kernel, &sizes(&[("m", m), ("n", n)]), &[], 1e-5);
    }
}

#[test]
fn folds_of_every_kind_along_rows_and_columns() {
    for dtype in [DType::F32, DType::F64, DType::I64, DType::I32, DType::Bool] {
        for op in [
            ReduceOp::Sum,
            ReduceOp::Prod,
            ReduceOp::Max,
            ReduceOp::Min,
            ReduceOp::ArgMax,
            ReduceOp::ArgMin,
            ReduceOp::All,
            ReduceOp::Any,
        ] {
            let logical = matches!(op, ReduceOp::All | ReduceOp::Any);
            if logical != (dtype == DType::Bool) {
                continue;
            }
            for along in ["rows", "columns", "copies"] {
                let mut b = Build::new(&format!("{op}_{dtype}_{along}"));
                let (m, n) = (sym("m"), sym("n"));
                let x = b.read("x", dtype, m.clone() * n.clone());
                let result = if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
                    DType::I64
                } else {
                    dtype
                };
                let out = b.write("out", result, m.clone());
                let (i, r) = (b.axis("i", m.clone()), b.axis("r", n.clone()));
                let at = match along {
                    "rows" => b.index(0, &[(i, n), (r, c(1))]),
                    "columns" => b.index(0, &[(i, c(1)), (r, m)]),
                    _ => b.index(0, &[(i, c(1))]),
                };
                let v = b.load(x, at);
                let (fold, fold_v) = b.fold(op, &[r], v);
                let to = b.at(i);
                let store = b.store(out, to, fold_v, &[]);
                let kernel = b.loops(&[i], vec![fold, store]);
                for (m, n) in [(1, 1), (5, 3), (40, 9), (3, 1100), (1200, 2)] {
                    check(&kernel, &sizes(&[("m", m), ("n", n)]), &[], 1e-4);
                }
            }
        }
    }
}

/// A whole tensor is folded through a permutation of it, which may be walked in any order where that decides nothing;
/// beside it a tensor that lies otherwise.
#[test]
fn folds_of_permuted_tensors() {
    for (dtype, op) in [
        (DType::F32, ReduceOp::Max),
        (DType::F32, ReduceOp::Min),
        (DType::F32, ReduceOp::Sum),
        (DType::I32, ReduceOp::Sum),
        (DType::Bool, ReduceOp::Any),
    ] {
        for both in [false, true] {
            let mut b = Build::new(&format!("{op}_{dtype}_{both}"));
            let n = sym("n");
            let (x, z) = (b.read("x", dtype, n.clone() * 28), b.read("z", dtype, n.clone() * 28));
            let out = b.write("out", dtype, 1);
            let (r, s) = (b.axis("r", n.clone()), b.axis("s", 28));
            let (at, four) = (b.at(s), b.int(4));
            let (part, group) = (b.bin(BinaryOp::Div, at, four), b.bin(BinaryOp::Mod, at, four));
            let seven = b.int(7);
            let group = b.mul(group, seven);
            let row = b.index(0, &[(r, c(28))]);
            let from = b.add(row, part);
            let from = b.add(from, group);
            let mut v = b.load(x, from);
            if both {
                let other = b.index(0, &[(r, c(1)), (s, n)]);
                let other = b.load(z, other);
                let with = if dtype == DType::Bool {
                    BinaryOp::And
                } else {
                    BinaryOp::Add
                };
                v = b.bin(with, v, other);
            }
            let (fold, value) = b.fold(op, &[r, s], v);
            let to = b.int(0);
            let store = b.store(out, to, value, &[]);
            let kernel = b.loops(&[], vec![fold, store]);
            for n in [1, 3, 50, 700] {
                check(&kernel, &sizes(&[("n", n)]), &[], 1e-4);
            }
        }
    }
}

#[test]
fn folds_of_nothing_are_neutral() {
    let mut b = Build::new("empty");
    let n = sym("n");
    let x = b.read("x", DType::F32, n.clone() * 4);
    let (sum, max) = (b.write("sum", DType::F32, 4), b.write("max", DType::F32, 4));
    let (i, r) = (b.axis("i", 4), b.axis("r", n.clone()));
    let at = b.index(0, &[(i, n), (r, c(1))]);
    let v = b.load(x, at);
    let (s, s_v) = b.fold(ReduceOp::Sum, &[r], v);
    let (t, t_v) = b.fold(ReduceOp::Max, &[r], v);
    let to = b.at(i);
    let stores = [b.store(sum, to, s_v, &[]), b.store(max, to, t_v, &[])];
    let [a, z] = stores;
    let kernel = b.loops(&[i], vec![s, t, a, z]);
    for n in [0, 1, 2] {
        check(&kernel, &sizes(&[("n", n)]), &[], 1e-6);
    }
}

#[test]
fn concat_and_pad_read_nothing_outside() {
    let mut b = Build::new("concat_pad");
    let (m, p, q) = (sym("m"), sym("p"), sym("q"));
    let x = b.read("x", DType::F32, m.clone() * p.clone());
    let y = b.read("y", DType::F32, m.clone() * q.clone());
    let width = p.clone() + q.clone() + 4;
    let out = b.write("out", DType::F32, m.clone() * width.clone());
    let (i, j) = (b.axis("i", m), b.axis("j", width.clone()));
    // Columns: two of padding, x, y, two of padding.
    let column = b.at(j);
    let two = b.int(2);
    let shifted = b.bin(BinaryOp::Sub, column, two);
    let (ps, qs) = (b.size(p.clone()), b.size(q.clone()));
    let zero = b.int(0);
    let total = b.add(ps, qs);
    let left = b.bin(BinaryOp::Ge, shifted, zero);
    let right = b.bin(BinaryOp::Lt, shifted, total);
    let inside = b.bin(BinaryOp::And, left, right);
    let in_x = b.bin(BinaryOp::Lt, shifted, ps);
    let row_x = b.index(-2, &[(i, p), (j, c(1))]);
    let row_y = b.index(-2, &[(i, q), (j, c(1))]);
    let row_y = b.bin(BinaryOp::Sub, row_y, ps);
    let (lx, ly) = (b.load(x, row_x), b.load(y, row_y));
    let both = b.select(in_x, lx, ly);
    let fill = b.num(-3.5);
    let value = b.select(inside, both, fill);
    let doubled = b.add(value, value);
    let to = b.index(0, &[(i, width), (j, c(1))]);
    let store = b.store(out, to, doubled, &[]);
    let kernel = b.loops(&[i, j], vec![store]);
    for (m, p, q) in [(1, 1, 1), (3, 5, 2), (4, 600, 900), (50, 3, 3), (2, 0, 5)] {
        check(&kernel, &sizes(&[("m", m), ("p", p), ("q", q)]), &[], 0.0);
    }
}

#[test]
fn guards_that_data_decides_are_lazy() {
    // out[i] = flag[i] ? x[position[i]] : -1, where positions of false flags lie far outside.
    let mut b = Build::new("guarded_gather");
    let n = sym("n");
    let flag = b.read("flag", DType::Bool, n.clone());
    let position = b.read("position", DType::I32, n.clone());
    let x = b.read("x", DType::F32, 8);
    let out = b.write("out", DType::F32, n.clone());
    let i = b.axis("i", n);
    let at = b.at(i);
    let f = b.load(flag, at);
    let p = b.load(position, at);
    let p = b.cast(DType::I64, p);
    let v = b.load(x, p);
    let low = b.num(-1.0);
    let e = b.select(f, v, low);
    let store = b.store(out, at, e, &[]);
    let kernel = b.loops(&[i], vec![store]);
    let n = 100usize;
    let flags: Vec<i64> = (0..n as i64).map(|i| i % 3 % 2).collect();
    let positions: Vec<i64> = flags
        .iter()
        .enumerate()
        .map(|(i, f)| if *f != 0 { i as i64 % 8 } else { 1 << 30 })
        .collect();
    let given = vec![
        HostTensor::from_i64(DType::Bool, [n], &flags).unwrap(),
        HostTensor::from_i64(DType::I32, [n], &positions).unwrap(),
        HostTensor::from_f32([8], &[0., 1., 2., 3., 4., 5., 6., 7.]).unwrap(),
        HostTensor::from_f32([n], &vec![0.0; n]).unwrap(),
    ];
    check_with(&kernel, &sizes(&[("n", n as i64)]), given, &[], 0.0);
}

#[test]
fn gathers_rows() {
    let mut b = Build::new("embedding");
    let (s, d) = (sym("s"), sym("d"));
    let ids = b.read("ids", DType::I64, s.clone());
    let table = b.read("table", DType::F32, d.clone() * 6);
    let out = b.write("out", DType::F32, s.clone() * d.clone());
    let (i, j) = (b.axis("i", s), b.axis("j", d.clone()));
    let at = b.at(i);
    let id = b.load(ids, at);
    let zero = b.int(0);
    let id = b.bin(BinaryOp::Max, id, zero);
    let width = b.size(d.clone());
    let row = b.mul(id, width);
    let column = b.at(j);
    let from = b.add(row, column);
    let v = b.load(table, from);
    let to = b.index(0, &[(i, d), (j, c(1))]);
    let store = b.store(out, to, v, &[]);
    let kernel = b.loops(&[i, j], vec![store]);
    for (s, d) in [(1, 1), (9, 384), (40, 3)] {
        check(&kernel, &sizes(&[("s", s), ("d", d)]), &[], 0.0);
    }
}

#[test]
fn head_axes_are_split() {
    // out[b, h, s, d] = x[b, s, h·d] read through one axis of 24 divided by 6.
    let mut b = Build::new("split_heads");
    let s = sym("s");
    let x = b.read("x", DType::F32, s.clone() * 24);
    let out = b.write("out", DType::F32, s.clone() * 24);
    let (i, j) = (b.axis("i", s.clone()), b.axis("j", 24));
    let from = b.index(0, &[(i, c(24)), (j, c(1))]);
    let v = b.load(x, from);
    let (column, six) = (b.at(j), b.int(6));
    let head = b.bin(BinaryOp::Div, column, six);
    let depth = b.bin(BinaryOp::Mod, column, six);
    let size = b.size(s * 6);
    let head = b.mul(head, size);
    let row = b.index(0, &[(i, c(6))]);
    let to = b.add(head, row);
    let to = b.add(to, depth);
    let store = b.store(out, to, v, &[]);
    let kernel = b.loops(&[i, j], vec![store]);
    for s in [1, 5, 64] {
        check(&kernel, &sizes(&[("s", s)]), &[], 0.0);
    }
}

#[test]
fn a_flat_index_that_no_split_helps_is_computed() {
    let mut b = Build::new("reshape_odd");
    let n = sym("n");
    let x = b.read("x", DType::I32, n.clone());
    let out = b.write("out", DType::I32, n.clone());
    let i = b.axis("i", n);
    let (at, seven) = (b.at(i), b.int(7));
    let q = b.bin(BinaryOp::Div, at, seven);
    let r = b.bin(BinaryOp::Mod, at, seven);
    let q = b.mul(q, seven);
    let from = b.add(q, r);
    let v = b.load(x, from);
    let three = b.expr(Expr::Const(DType::I32, ir::Scalar::Int(3)), DType::I32);
    let v = b.bin(BinaryOp::Shl, v, three);
    let store = b.store(out, at, v, &[]);
    let kernel = b.loops(&[i], vec![store]);
    for n in [1, 6, 50, 3000] {
        check(&kernel, &sizes(&[("n", n)]), &[], 0.0);
    }
}

#[test]
fn pools_with_padding_in_channels_last() {
    for op in [ReduceOp::Max, ReduceOp::Sum] {
        let mut b = Build::new("pool");
        let (h, w, ch) = (sym("h"), sym("w"), 5);
        let (oh, ow) = ((h.clone() + 1).floor_div(&c(2)), (w.clone() + 1).floor_div(&c(2)));
        let x = b.read("x", DType::F32, h.clone() * w.clone() * ch);
        let out = b.write("out", DType::F32, oh.clone() * ow.clone() * ch);
        let (y, xx, k) = (b.axis("y", oh), b.axis("column", ow.clone()), b.axis("c", ch));
        let (dy, dx) = (b.axis("dy", 3), b.axis("dx", 3));
        let row = b.index(-1, &[(y, c(2)), (dy, c(1))]);
        let col = b.index(-1, &[(xx, c(2)), (dx, c(1))]);
        let (hs, ws, zero) = (b.size(h), b.size(w.clone()), b.int(0));
        let conditions = [
            b.bin(BinaryOp::Ge, row, zero),
            b.bin(BinaryOp::Lt, row, hs),
            b.bin(BinaryOp::Ge, col, zero),
            b.bin(BinaryOp::Lt, col, ws),
        ];
        let inside = conditions[1..]
            .iter()
            .fold(conditions[0], |a, d| b.bin(BinaryOp::And, a, *d));
        let stride = b.size(w.clone() * ch);
        let r = b.mul(row, stride);
        let channels = b.int(ch);
        let cc = b.mul(col, channels);
        let at = b.add(r, cc);
        let channel = b.at(k);
        let at = b.add(at, channel);
        let element = b.load(x, at);
        let fill = b.num(if op == ReduceOp::Max { f64::NEG_INFINITY } else { 0.0 });
        let v = b.select(inside, element, fill);
        let (fold, fold_v) = b.fold(op, &[dy, dx], v);
        let to = b.index(0, &[(y, ow.clone() * ch), (xx, c(ch)), (k, c(1))]);
        let store = b.store(out, to, fold_v, &[]);
        let mut kernel = b.loops(&[y, xx, k], vec![fold, store]);
        let Body::Loops(loops) = kernel.body.clone() else {
            unreachable!("it was built as loops")
        };
        let along = |outputs, taps, size: &ir::Dim| WindowAxis {
            taps: Some(taps),
            outputs: Some(outputs),
            stride: 2,
            dilation: 1,
            pad_low: 1,
            pad_high: 1,
            size: size.clone(),
            guarded: [true; 2],
            beyond: false,
        };
        let access = |width: &ir::Dim| ImageAccess {
            base: c(0),
            image: c(0),
            channel: c(1),
            along: vec![width.clone() * ch, c(ch)],
        };
        kernel.body = Body::Window(WindowBody {
            along: vec![along(y, dy, &sym("h")), along(xx, dx, &sym("w"))],
            fold: WindowFold::Pool(match op {
                ReduceOp::Max => PoolKind::Max,
                _ => PoolKind::Average { count_padding: true },
            }),
            element,
            counts: false,
            // A sum over a window is no pool.
            images: (op == ReduceOp::Max).then(|| WindowImages {
                source: x,
                image: None,
                channel: Some(k),
                from: access(&sym("w")),
                pooled: fold_v,
                target: Some(ImageTarget {
                    param: out,
                    at: access(&ow),
                }),
            }),
            loops,
        });
        kernel.symbols = vec![Symbol::new("h"), Symbol::new("w")];
        assert_eq!(ir::kernel::verify::verify(&kernel), Ok(()));
        let pool = if op == ReduceOp::Max { "pool" } else { "loops" };
        for (h, w) in [(1, 1), (7, 9), (16, 16)] {
            assert_eq!(check(&kernel, &sizes(&[("h", h), ("w", w)]), &[], 1e-6), [pool]);
        }
    }
}

#[test]
fn scatters_in_order() {
    let ops = [None, Some(ReduceOp::Sum), Some(ReduceOp::Prod), Some(ReduceOp::Max)];
    // Rows of few columns are updated one element at a time, others as a whole.
    for (dtype, columns) in [(DType::F32, 3), (DType::F32, 19), (DType::I64, 19), (DType::F16, 19)] {
        for op in ops {
            let mut b = Build::new("scatter");
            let n = sym("n");
            let ids = b.read("ids", DType::I64, n.clone());
            let x = b.read("x", dtype, n.clone() * columns);
            let out = b.param("out", dtype, 8 * columns, Access::ReadWrite);
            let (i, j) = (b.axis("i", n), b.axis("j", columns));
            let at = b.at(i);
            let id = b.load(ids, at);
            // Rows that are not there are left out.
            let (zero, width) = (b.int(0), b.int(columns));
            let id = b.bin(BinaryOp::Max, id, zero);
            let row = b.mul(id, width);
            let column = b.at(j);
            let to = b.add(row, column);
            let from = b.index(0, &[(i, c(columns)), (j, c(1))]);
            let value = b.load(x, from);
            let update = Stmt::Update {
                param: out,
                index: to,
                value,
                op,
                axes: vec![],
            };
            let kernel = b.loops(&[i, j], vec![update]);
            for n in [1, 50] {
                check(
                    &kernel,
                    &sizes(&[("n", n)]),
                    &[],
                    if dtype == DType::F16 { 1e-2 } else { 1e-5 },
                );
            }
        }
    }
}

/// Places that are neighbours for a while, begin anew within a block, and come twice.
#[test]
fn scatters_to_stretches_of_neighbours() {
    let places: Vec<i64> = [40, 3]
        .into_iter()
        .chain(10..30)
        .chain([7, 8, 9, 63])
        .chain(20..64)
        .chain(0..9)
        .collect();
    let count = places.len() as i64;
    for dtype in [DType::F32, DType::I64, DType::F64] {
        for op in [None, Some(ReduceOp::Sum), Some(ReduceOp::Min)] {
            let mut b = Build::new("stretches");
            let ids = b.read("ids", DType::I64, count);
            let x = b.read("x", dtype, count);
            let out = b.param("out", dtype, 64, Access::ReadWrite);
            let i = b.axis("i", count);
            let at = b.at(i);
            let (index, value) = (b.load(ids, at), b.load(x, at));
            let update = Stmt::Update {
                param: out,
                index,
                value,
                op,
                axes: vec![],
            };
            let kernel = b.loops(&[i], vec![update]);
            let mut given = buffers(&kernel, &sizes(&[]), 3);
            given[0] = HostTensor::from_i64(DType::I64, [places.len()], &places).unwrap();
            check_with(&kernel, &sizes(&[]), given, &[], 1e-6);
        }
    }
}

#[test]
fn scans_both_ways() {
    for (reverse, exclusive) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut b = Build::new("cumsum");
        let n = sym("n");
        let x = b.read("x", DType::F32, n.clone() * 3);
        let out = b.write("out", DType::F32, n.clone() * 3);
        let (i, s) = (b.axis("i", 3), b.axis("s", n));
        let at = b.index(0, &[(i, c(1)), (s, c(3))]);
        let value = b.load(x, at);
        let var = b.var(DType::F32);
        let v = b.value(var);
        let store = b.store(out, at, v, &[]);
        b.kernel.body = Body::Scan(ScanBody {
            parallel: vec![i],
            axis: s,
            op: ReduceOp::Sum,
            value,
            exclusive,
            reverse,
            var,
            stores: vec![store],
        });
        for n in [0, 1, 9, 2500] {
            check(&b.kernel, &sizes(&[("n", n)]), &[], 1e-4);
        }
    }
}

/// Points beside each other are walked together, in every type.
#[test]
fn scans_across_neighbours() {
    for dtype in [DType::F32, DType::F64, DType::I64, DType::I32, DType::I8] {
        for (reverse, exclusive) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut b = Build::new(&format!("cumsum_{dtype}"));
            let (n, m) = (sym("n"), sym("m"));
            let x = b.read("x", dtype, n.clone() * m.clone() * 2);
            let out = b.write("out", dtype, n.clone() * m.clone() * 2);
            let (i, s, j) = (b.axis("i", 2), b.axis("s", n.clone()), b.axis("j", m.clone()));
            let at = b.index(0, &[(i, n * m.clone()), (s, m), (j, c(1))]);
            let value = b.load(x, at);
            let var = b.var(dtype);
            let v = b.value(var);
            let store = b.store(out, at, v, &[]);
            b.kernel.body = Body::Scan(ScanBody {
                parallel: vec![i, j],
                axis: s,
                op: ReduceOp::Sum,
                value,
                exclusive,
                reverse,
                var,
                stores: vec![store],
            });
            for (n, m) in [(1, 8), (9, 33), (40, 1500), (5, 3), (0, 16)] {
                check(&b.kernel, &sizes(&[("n", n), ("m", m)]), &[], 1e-3);
            }
        }
    }
}

#[test]
fn sorts_the_first_k() {
    for largest in [true, false] {
        let mut b = Build::new("top_k");
        let n = sym("n");
        let x = b.read("x", DType::F16, n.clone() * 4);
        let (values, positions) = (b.write("values", DType::F16, 12), b.write("positions", DType::I64, 12));
        let (i, s, k) = (b.axis("i", 4), b.axis("s", n.clone()), b.axis("k", 3));
        let at = b.index(0, &[(i, n), (s, c(1))]);
        let value = b.load(x, at);
        let (value_var, index_var) = (b.var(DType::F16), b.var(DType::I64));
        let to = b.index(0, &[(i, c(3)), (k, c(1))]);
        let (v, p) = (b.value(value_var), b.value(index_var));
        let stores = vec![b.store(values, to, v, &[]), b.store(positions, to, p, &[])];
        b.kernel.body = Body::Sort(SortBody {
            parallel: vec![i],
            axis: s,
            rank: k,
            largest,
            value,
            value_var,
            index_var,
            stores,
        });
        for n in [3, 10, 1500] {
            check(&b.kernel, &sizes(&[("n", n)]), &[], 0.0);
        }
    }
}

/// Equal numbers keep their order, both zeros are equal, NaN is the largest.
#[test]
fn sorts_ties_zeros_and_nan() {
    for (largest, k) in [(true, 5), (false, 5), (true, 200), (false, 200)] {
        for dtype in [DType::F32, DType::F64, DType::I64, DType::I8] {
            let mut b = Build::new(&format!("ties_{dtype}_{largest}_{k}"));
            let n = 300;
            let x = b.read("x", dtype, n);
            let (values, positions) = (b.write("values", dtype, k), b.write("positions", DType::I64, k));
            let (s, r) = (b.axis("s", n), b.axis("k", k));
            let at = b.index(0, &[(s, c(1))]);
            let value = b.load(x, at);
            let (value_var, index_var) = (b.var(dtype), b.var(DType::I64));
            let to = b.index(0, &[(r, c(1))]);
            let (v, p) = (b.value(value_var), b.value(index_var));
            let stores = vec![b.store(values, to, v, &[]), b.store(positions, to, p, &[])];
            b.kernel.body = Body::Sort(SortBody {
                parallel: vec![],
                axis: s,
                rank: r,
                largest,
                value,
                value_var,
                index_var,
                stores,
            });
            let number = |i: i64| match (i * 7 % 11, dtype.is_float()) {
                (3, true) => f64::NAN,
                (4, true) => -0.0,
                (5, true) => f64::NEG_INFINITY,
                (v, _) => (v - 6) as f64,
            };
            let given: Vec<f64> = (0..n).map(number).collect();
            let mut buffers = buffers(&b.kernel, &sizes(&[]), 1);
            buffers[0] = HostTensor::from_f64(dtype, [n as usize], &given).unwrap();
            check_with(&b.kernel, &sizes(&[]), buffers, &[], 0.0);
        }
    }
}
