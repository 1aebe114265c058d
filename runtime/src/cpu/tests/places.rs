//! Loads from places that few axes decide: gathers, reflected edges, resized images.

use ir::kernel::ExprId;
use ir::op::{BinaryOp, UnaryOp};
use ir::{DType, HostTensor};

use super::build::{Build, c, sym};
use super::{buffers, check, check_with, sizes};

const TYPES: [DType; 9] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I64,
    DType::I32,
    DType::I8,
    DType::U8,
    DType::Bool,
];

/// `|at - pad|`, reflected at the end of `size` elements too.
fn reflected(b: &mut Build, at: ExprId, pad: i64, size: ir::Dim) -> ExprId {
    let pad = b.int(-pad);
    let moved = b.add(at, pad);
    let low = b.un(UnaryOp::Abs, moved);
    let last = b.size(size - 1);
    let over = b.bin(BinaryOp::Sub, last, low);
    let over = b.un(UnaryOp::Abs, over);
    b.bin(BinaryOp::Sub, last, over)
}

#[test]
fn reflected_edges_are_copied() {
    for dtype in TYPES {
        let mut b = Build::new("reflect");
        let (p, h, w) = (sym("p"), sym("h"), sym("w"));
        let x = b.read("x", dtype, p.clone() * h.clone() * w.clone());
        let (oh, ow) = (h.clone() + 4, w.clone() + 6);
        let out = b.write("out", dtype, p.clone() * oh.clone() * ow.clone());
        let (j, k, l) = (b.axis("j", p), b.axis("k", oh.clone()), b.axis("l", ow.clone()));
        let (row, column) = (b.at(k), b.at(l));
        let row = reflected(&mut b, row, 2, h.clone());
        let column = reflected(&mut b, column, 3, w.clone());
        let width = b.size(w.clone());
        let row = b.mul(row, width);
        let plane = b.index(0, &[(j, h * w)]);
        let at = b.add(plane, row);
        let at = b.add(at, column);
        let value = b.load(x, at);
        let to = b.index(0, &[(j, oh * ow.clone()), (k, ow), (l, c(1))]);
        let store = b.store(out, to, value, &[]);
        let kernel = b.loops(&[j, k, l], vec![store]);
        for (p, h, w) in [(3, 9, 11), (1, 4, 2000), (5, 40, 7), (64, 5, 5), (0, 9, 9), (700, 3, 4)] {
            check(&kernel, &sizes(&[("p", p), ("h", h), ("w", w)]), &[], 0.0);
        }
    }
}

#[test]
fn tables_decide_rows_and_columns() {
    for dtype in TYPES {
        let mut b = Build::new("resize");
        let (p, h, w) = (sym("p"), sym("h"), sym("w"));
        let x = b.read("x", dtype, p.clone() * 63);
        let rows = b.read("rows", DType::I64, h.clone());
        let columns = b.read("columns", DType::I64, w.clone());
        let out = b.write("out", dtype, p.clone() * h.clone() * w.clone());
        let (j, k, l) = (b.axis("j", p), b.axis("k", h.clone()), b.axis("l", w.clone()));
        let mut of = |table, axis, size: i64| {
            let at = b.at(axis);
            let place = b.load(table, at);
            let (low, high) = (b.int(0), b.int(size - 1));
            let place = b.bin(BinaryOp::Max, place, low);
            b.bin(BinaryOp::Min, place, high)
        };
        let (row, column) = (of(rows, k, 7), of(columns, l, 9));
        let width = b.int(9);
        let row = b.mul(row, width);
        let plane = b.index(0, &[(j, c(63))]);
        let at = b.add(plane, row);
        let at = b.add(at, column);
        let value = b.load(x, at);
        let to = b.index(0, &[(j, h.clone() * w.clone()), (k, w), (l, c(1))]);
        let store = b.store(out, to, value, &[]);
        let kernel = b.loops(&[j, k, l], vec![store]);
        for (p, h, w) in [(8, 14, 18), (3, 30, 40), (2, 3, 1500), (300, 3, 3), (1, 1, 4000)] {
            let bindings = sizes(&[("p", p), ("h", h), ("w", w)]);
            // Each twice, each once with what lies outside, and none in order.
            for step in [2i64, 1, 0] {
                let mut given = buffers(&kernel, &bindings, 3);
                let table = |n: i64| -> Vec<i64> {
                    let place = |i: i64| if step == 0 { i * 5 % 13 - 2 } else { i / step };
                    (0..n).map(place).collect()
                };
                given[1] = HostTensor::from_i64(DType::I64, [h as usize], &table(h)).unwrap();
                given[2] = HostTensor::from_i64(DType::I64, [w as usize], &table(w)).unwrap();
                check_with(&kernel, &bindings, given, &[], 0.0);
            }
        }
    }
}

#[test]
fn rows_of_an_embedding() {
    let mut b = Build::new("embedding");
    let (n, d) = (sym("n"), sym("d"));
    let table = b.read("table", DType::F32, d.clone() * 5);
    let ids = b.read("ids", DType::I64, n.clone());
    let out = b.write("out", DType::F32, n.clone() * d.clone());
    let (i, k) = (b.axis("i", n), b.axis("k", d.clone()));
    let at = b.at(i);
    let id = b.load(ids, at);
    let (low, high) = (b.int(0), b.int(4));
    let id = b.bin(BinaryOp::Max, id, low);
    let id = b.bin(BinaryOp::Min, id, high);
    let width = b.size(d.clone());
    let row = b.mul(id, width);
    let column = b.at(k);
    let at = b.add(column, row);
    let value = b.load(table, at);
    let doubled = b.add(value, value);
    let to = b.index(0, &[(i, d), (k, c(1))]);
    let store = b.store(out, to, doubled, &[]);
    let kernel = b.loops(&[i, k], vec![store]);
    for (n, d) in [(64, 384), (300, 8), (700, 1), (3, 5000), (1, 1), (0, 8)] {
        check(&kernel, &sizes(&[("n", n), ("d", d)]), &[], 0.0);
    }
}
