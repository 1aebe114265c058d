//! Short rows, which blocks have several of: what they compute is what each row alone gives, to the last bit.

use ir::kernel::{Body, Kernel, Loops, RowBody, RowComposite, RowKind, Stmt};
use ir::op::{BinaryOp, ReduceOp, UnaryOp};
use ir::{DType, HostTensor, Scalar, Storage};

use super::build::{Build, Random, c, sym};
use super::{check, check_with, run, sizes};
use crate::cpu::kernels::isa::Isa;

/// Sums of gathered rows of bytes and of a row of bytes by place, normed; quantised by a scale that the run gives for
/// each row.
///
/// ```text
/// x(i, r) = (table[ids[i], r] - zero) · scale + (more[i, r] - 3) · 0.25,    y = (x - mean) · rstd · gamma[r]
/// ```
fn normed(dtype: DType, stored: DType) -> Kernel {
    let mut b = Build::new("normed");
    let (m, n) = (sym("m"), sym("n"));
    let ids = b.read("ids", DType::I64, m.clone());
    let table = b.read("table", dtype, n.clone() * 5);
    let more = b.read("more", dtype, m.clone() * n.clone());
    let gamma = b.read("gamma", DType::F32, n.clone());
    let heights = b.read("heights", DType::F32, m.clone());
    let out = b.write("out", stored, m.clone() * n.clone());
    let floats = b.write("floats", DType::F32, m.clone() * n.clone());
    let sums = b.write("sums", DType::F32, m.clone());
    let (i, r) = (b.axis("i", m), b.axis("r", n.clone()));
    let (row, column) = (b.at(i), b.at(r));
    let id = b.load(ids, row);
    // Positions from the end are those less the number of rows.
    let (zero, five) = (b.int(0), b.int(5));
    let negative = b.bin(BinaryOp::Lt, id, zero);
    let wrapped = b.add(id, five);
    let id = b.select(negative, wrapped, id);
    let width = b.size(n.clone());
    let start = b.mul(id, width);
    let from = b.add(start, column);
    let at = b.index(0, &[(i, n.clone()), (r, c(1))]);
    let (x, y) = (b.load(table, from), b.load(more, at));
    let (x, y) = (b.cast(DType::F32, x), b.cast(DType::F32, y));
    let (four, three, half, quarter) = (b.num(4.0), b.num(3.0), b.num(0.5), b.num(0.25));
    let x = b.bin(BinaryOp::Sub, x, four);
    let x = b.mul(x, half);
    let y = b.bin(BinaryOp::Sub, y, three);
    let y = b.mul(y, quarter);
    let x = b.add(x, y);
    let count = b.size(n);
    let count = b.cast(DType::F32, count);
    let inverse = b.un(UnaryOp::Recip, count);
    let (fold, sum) = b.fold(ReduceOp::Sum, &[r], x);
    let mean_var = b.var(DType::F32);
    let mean = b.mul(sum, inverse);
    let mean_let = Stmt::Let {
        var: mean_var,
        value: mean,
    };
    let mean = b.value(mean_var);
    let centred = b.bin(BinaryOp::Sub, x, mean);
    let square = b.mul(centred, centred);
    let (squares, variance) = b.fold(ReduceOp::Sum, &[r], square);
    let variance = b.mul(variance, inverse);
    let epsilon = b.num(1e-5);
    let moved = b.add(variance, epsilon);
    let rstd = b.un(UnaryOp::Rsqrt, moved);
    let normed = b.mul(centred, rstd);
    let gamma = b.load(gamma, column);
    let scaled = b.mul(normed, gamma);
    let kept = b.store(floats, at, scaled, &[r]);
    let height = b.load(heights, row);
    let quotient = b.bin(BinaryOp::Div, scaled, height);
    let whole = b.un(UnaryOp::Round, quotient);
    let (low, high) = stored.int_range().unwrap();
    let (low, high) = (b.num(low as f64), b.num(high as f64));
    let above = b.bin(BinaryOp::Max, whole, low);
    let cut = b.bin(BinaryOp::Min, above, high);
    let byte = b.cast(stored, cut);
    let store = b.store(out, at, byte, &[r]);
    let total = b.store(sums, row, sum, &[]);
    let loops = Loops {
        parallel: vec![i],
        stmts: vec![fold, mean_let, squares, kept, store, total],
    };
    b.kernel.body = Body::Row(RowBody {
        loops,
        row: vec![r],
        held: vec![x],
        composite: None,
    });
    b.kernel
}

fn bytes(random: &mut Random, dtype: DType, count: usize) -> HostTensor {
    let bytes: Vec<u8> = (0..count).map(|_| random.next() as u8).collect();
    HostTensor::new(dtype, [count], Storage::new(bytes)).unwrap()
}

fn floats(count: usize, mut value: impl FnMut() -> f64) -> HostTensor {
    let values: Vec<f64> = (0..count).map(|_| value()).collect();
    HostTensor::from_f64(DType::F32, [count], &values).unwrap()
}

fn part(tensor: &HostTensor, from: usize, count: usize) -> HostTensor {
    copies(tensor, from, count, 1)
}

/// A part so many times.
fn copies(tensor: &HostTensor, from: usize, count: usize, times: usize) -> HostTensor {
    let size = tensor.dtype.bits() as usize / 8;
    let bytes = tensor.bytes[from * size..(from + count) * size].repeat(times);
    HostTensor::new(tensor.dtype, [count * times], Storage::new(bytes)).unwrap()
}

#[test]
fn rows_together_are_rows_alone() {
    let mut random = Random(17);
    for (dtype, stored) in [
        (DType::I8, DType::I8),
        (DType::U8, DType::U8),
        (DType::I8, DType::U8),
        (DType::U8, DType::I8),
    ] {
        let kernel = normed(dtype, stored);
        for (m, n) in [
            (1, 1),
            (2, 1),
            (5, 3),
            (24, 64),
            (37, 16),
            (7, 200),
            (130, 31),
            (3, 256),
            (3, 257),
            (2, 1025),
            (0, 8),
        ] {
            let given = vec![
                HostTensor::from_i64(
                    DType::I64,
                    [m],
                    &(0..m).map(|_| (random.next() % 10) as i64 - 5).collect::<Vec<_>>(),
                )
                .unwrap(),
                bytes(&mut random, dtype, 5 * n),
                bytes(&mut random, dtype, m * n),
                floats(n, || random.float()),
                floats(m, || 0.01),
                bytes(&mut random, stored, m * n),
                floats(m * n, || 7.0),
                floats(m, || 7.0),
            ];
            let bindings = |m: usize| sizes(&[("m", m as i64), ("n", n as i64)]);
            // Floats are near what the interpreter gives; bytes may be one off where its sum rounds otherwise.
            let (runs, names) = run(&kernel, &bindings(m), &given, &[], 2);
            // Where columns of many rows are taken, the rows' places in the table are a piece before.
            let before = m * n >= 2048 && n <= m;
            assert_eq!(names.len(), if before { 2 } else { 1 }, "{m}x{n}");
            assert!(names.iter().all(|name| *name == "loops"), "{names:?}");
            let mut want = given.clone();
            ir::kernel::eval::evaluate(&kernel, &mut want, &bindings(m)).unwrap();
            for got in &runs {
                super::compare("normed", "floats", &got[6], &want[6], 1e-4);
                super::compare("normed", "sums", &got[7], &want[7], 1e-4);
                let near = got[5].to_i64().into_iter().zip(want[5].to_i64());
                assert!(near.clone().all(|(g, w)| (g - w).abs() <= 1), "{m}x{n}");
                // Rows that are no longer than they are many are summed a row a lane, element by element. Alone, one
                // that is longer than a vector is summed in another order: it is taken among copies of its own.
                let in_order = n <= Isa::detect().lanes();
                let times = if n > m || in_order { 1 } else { m };
                for row in 0..m {
                    let cut = |i: usize| match i {
                        0 | 4 | 7 => copies(&given[i], row, 1, times),
                        2 | 5 | 6 => copies(&given[i], row * n, n, times),
                        _ => given[i].clone(),
                    };
                    let (alone, _) = run(&kernel, &bindings(times), &(0..8).map(cut).collect::<Vec<_>>(), &[], 1);
                    for (i, count) in [(5, n), (6, n), (7, 1)] {
                        let (here, there) = (part(&got[i], row * count, count), part(&alone[0][i], 0, count));
                        assert_eq!(*here.bytes, *there.bytes, "{dtype} {m}x{n}: row {row} of {i}");
                    }
                }
            }
        }
    }
}

/// Positions that data decides may leave the table in one row and not in the next: they are cut to it, element by
/// element.
#[test]
fn rows_that_leave_their_table_are_cut() {
    let mut b = Build::new("gathered");
    let (m, n) = (sym("m"), sym("n"));
    let ids = b.read("ids", DType::I64, m.clone());
    let table = b.read("table", DType::U8, n.clone() * 3);
    let more = b.read("more", DType::F32, m.clone() * n.clone());
    let out = b.write("out", DType::F32, m.clone() * n.clone());
    let (i, r) = (b.axis("i", m), b.axis("r", n.clone()));
    let (row, column) = (b.at(i), b.at(r));
    let id = b.load(ids, row);
    let from = b.add(id, column);
    let byte = b.load(table, from);
    let number = b.cast(DType::F32, byte);
    let at = b.index(0, &[(i, n), (r, c(1))]);
    let more = b.load(more, at);
    let number = b.add(number, more);
    let (fold, most) = b.fold(ReduceOp::Max, &[r], number);
    let share = b.bin(BinaryOp::Sub, number, most);
    let store = b.store(out, at, share, &[r]);
    let kernel = b.loops(&[i], vec![fold, store]);
    let mut random = Random(3);
    for (m, n) in [(4usize, 17usize), (19, 20), (6, 16), (9, 100)] {
        // Starts before, inside and so near the end that some of the row is past it.
        let ids: Vec<i64> = (0..m as i64).map(|i| i * 7 % (3 * n as i64 + 9) - 5).collect();
        let given = vec![
            HostTensor::from_i64(DType::I64, [m], &ids).unwrap(),
            bytes(&mut random, DType::U8, 3 * n),
            floats(m * n, || (random.next() % 64) as f64 * 0.5),
            floats(m * n, || 0.0),
        ];
        let (table, more) = (given[1].to_i64(), given[2].to_f64());
        let (runs, _) = run(&kernel, &sizes(&[("m", m as i64), ("n", n as i64)]), &given, &[], 2);
        let at = |i: usize, r: usize| {
            let place = (ids[i] + r as i64).clamp(0, 3 * n as i64 - 1) as usize;
            table[place] as f64 + more[i * n + r]
        };
        let mut want = Vec::new();
        for i in 0..m {
            let most = (0..n).map(|r| at(i, r)).fold(f64::MIN, f64::max);
            want.extend((0..n).map(|r| at(i, r) - most));
        }
        assert_eq!(runs[0][3].to_f64(), want, "{m}x{n}");
    }
}

/// Integers are summed exactly, and wrap to their type.
#[test]
fn integers_of_rows_wrap() {
    for (dtype, n) in [(DType::I8, 40), (DType::I32, 17), (DType::I64, 33), (DType::I32, 1)] {
        let mut b = Build::new("sums");
        let m = sym("m");
        let x = b.read("x", dtype, m.clone() * n);
        let out = b.write("out", dtype, m.clone());
        let (i, r) = (b.axis("i", m), b.axis("r", c(n)));
        let at = b.index(0, &[(i, c(n)), (r, c(1))]);
        let v = b.load(x, at);
        let (fold, sum) = b.fold(ReduceOp::Sum, &[r], v);
        let to = b.at(i);
        let store = b.store(out, to, sum, &[]);
        let kernel = b.loops(&[i], vec![fold, store]);
        let mut random = Random(9);
        for m in [1usize, 2, 9, 64] {
            let mut given = bytes(&mut random, DType::U8, m * n as usize * dtype.bits() as usize / 8);
            given = HostTensor::new(dtype, [m * n as usize], given.bytes).unwrap();
            let out = HostTensor::from_i64(dtype, [m], &vec![0; m]).unwrap();
            check_with(&kernel, &sizes(&[("m", m as i64)]), vec![given, out], &[], 0.0);
        }
    }
}

/// RMS norms of rows that lie side by side or apart, and their results too; `computed` rows are a sum of two tensors,
/// and so are the factors of columns.
fn rms(apart: [bool; 2], computed: bool) -> Kernel {
    let mut b = Build::new(&format!("rms_{apart:?}_{computed}"));
    let (m, n) = (sym("m"), sym("n"));
    let x = b.read("x", DType::F32, m.clone() * n.clone());
    let gamma = b.read("gamma", DType::F32, n.clone());
    let out = b.write("out", DType::F32, m.clone() * n.clone());
    let (i, r) = (b.axis("i", m.clone()), b.axis("r", n.clone()));
    let [from, to] = apart.map(|apart| match apart {
        true => b.index(0, &[(i, c(1)), (r, m.clone())]),
        false => b.index(0, &[(i, n.clone()), (r, c(1))]),
    });
    let column = b.at(r);
    let (mut v, mut scale) = (b.load(x, from), b.load(gamma, column));
    if computed {
        (v, scale) = (b.add(v, scale), b.mul(scale, scale));
    }
    let square = b.mul(v, v);
    let (fold, sum) = b.fold(ReduceOp::Sum, &[r], square);
    let count = b.size(n);
    let count = b.cast(DType::F32, count);
    let (mean, epsilon) = (b.bin(BinaryOp::Div, sum, count), b.num(1e-3));
    let moved = b.add(mean, epsilon);
    let rstd = b.un(UnaryOp::Rsqrt, moved);
    let normed = b.mul(v, rstd);
    let scaled = b.mul(normed, scale);
    let store = b.store(out, to, scaled, &[r]);
    let mut kernel = b.loops(&[i], vec![fold, store]);
    let Body::Loops(loops) = kernel.body.clone() else {
        unreachable!("it was built as loops")
    };
    kernel.body = Body::Row(RowBody {
        loops,
        row: vec![r],
        held: Vec::new(),
        composite: Some(RowComposite {
            kind: RowKind::RmsNorm {
                epsilon: Scalar::Float(1e-3),
            },
            x: v,
            scale: Some(scale),
            bias: None,
        }),
    });
    kernel.symbols = ["m", "n"].map(ir::Symbol::new).to_vec();
    assert_eq!(ir::kernel::verify::verify(&kernel), Ok(()));
    kernel
}

#[test]
fn rows_that_lie_apart_or_are_computed_are_made_dense() {
    let cases: [([bool; 2], bool, &[&str]); 7] = [
        ([false, false], false, &["rows"]),
        ([true, false], false, &["loops", "rows"]),
        ([false, true], false, &["rows", "loops"]),
        ([true, true], false, &["loops", "rows", "loops"]),
        ([false, false], true, &["loops", "loops", "rows"]),
        ([true, false], true, &["loops", "loops", "rows"]),
        ([true, true], true, &["loops", "loops", "rows", "loops"]),
    ];
    for (apart, computed, wanted) in cases {
        let kernel = rms(apart, computed);
        let names = check(&kernel, &sizes(&[("m", 6), ("n", 901)]), &[], 1e-5);
        assert_eq!(names, wanted, "{}", kernel.name);
        // Few elements stay with the loops, unless nothing is to be made dense.
        for (m, n) in [(3, 17), (1, 1), (0, 40), (700, 7)] {
            let names = check(&kernel, &sizes(&[("m", m), ("n", n)]), &[], 1e-5);
            assert!(
                names == ["loops"] || names == ["rows"] || m * n >= 4096,
                "{}: {names:?}",
                kernel.name
            );
        }
    }
}
