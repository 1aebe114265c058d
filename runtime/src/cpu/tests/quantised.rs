//! What quantises and dequantises, by hand: chains of arithmetic, bytes read and stored as floats, functions of a byte.

use ir::DType;
use ir::HostTensor;
use ir::dim::Bindings;
use ir::entity::Entity;
use ir::graph::ConstId;
use ir::host::product::Finish;
use ir::host::{Piece, Setting};
use ir::kernel::{Body, ContractBody, Expr, ExprId, Kernel, Operand, ParamId, Stmt};
use ir::op::{BinaryOp, UnaryOp};

use super::build::{Build, c, sym};
use super::contractions::{After, matmul};
use super::{buffers, check_with, sizes};

/// To whole numbers of a scale that is a power of two, moved and cut to a byte: exact in any precision.
fn quantise(b: &mut Build, x: ExprId, scale: ExprId, zero: f64) -> ExprId {
    let quotient = b.bin(BinaryOp::Div, x, scale);
    let whole = b.un(UnaryOp::Round, quotient);
    let (zero, low, high) = (b.num(zero), b.num(-128.0), b.num(127.0));
    let moved = b.add(whole, zero);
    let above = b.bin(BinaryOp::Max, moved, low);
    let cut = b.bin(BinaryOp::Min, above, high);
    b.cast(DType::I8, cut)
}

/// An image with channels outermost, which is padded, quantised and stored with channels innermost. The scale is a
/// constant or what the run gives.
fn image([h, w, channels]: [i64; 3], given: bool) -> Kernel {
    let mut b = Build::new("image");
    let x = b.read("x", DType::F32, c(h * w * channels));
    let scales = b.read("scales", DType::F32, c(1));
    let (ph, pw) = (h + 2, w + 2);
    let first = b.write("first", DType::I8, c(ph * pw * channels));
    let (y, z, ch) = (b.axis("y", c(ph)), b.axis("z", c(pw)), b.axis("c", c(channels)));
    let (ya, za) = (b.at(y), b.at(z));
    let one = b.int(1);
    let inside = |b: &mut Build, at: ExprId, size: i64| {
        let end = b.int(size);
        let low = b.bin(BinaryOp::Ge, at, one);
        let high = b.bin(BinaryOp::Le, at, end);
        b.bin(BinaryOp::And, low, high)
    };
    let (rows, columns) = (inside(&mut b, ya, h), inside(&mut b, za, w));
    let both = b.bin(BinaryOp::And, rows, columns);
    let from = b.index(-w - 1, &[(ch, c(h * w)), (y, c(w)), (z, c(1))]);
    let (value, outside) = (b.load(x, from), b.num(0.0));
    let padded = b.select(both, value, outside);
    let scale = match given {
        true => {
            let at = b.int(0);
            b.load(scales, at)
        }
        false => b.num(0.015_625),
    };
    let byte = quantise(&mut b, padded, scale, -3.0);
    let to = b.index(0, &[(y, c(pw * channels)), (z, c(channels)), (ch, c(1))]);
    let store = b.store(first, to, byte, &[]);
    b.loops(&[y, z, ch], vec![store])
}

#[test]
fn padded_images_are_quantised() {
    for size in [[5, 70, 3], [3, 33, 1], [9, 9, 20], [1, 1, 3], [40, 40, 7]] {
        for given in [false, true] {
            let kernel = image(size, given);
            let mut tensors = buffers(&kernel, &sizes(&[]), 5);
            tensors[1] = HostTensor::from_f64(DType::F32, [1], &[0.03125]).unwrap();
            let names = check_with(&kernel, &sizes(&[]), tensors, &[], 0.0);
            assert!(names.iter().all(|name| *name == "loops"), "{names:?}");
        }
    }
}

/// Bytes of either sign become floats, and bytes again: at steps of one and of more.
#[test]
fn bytes_are_quantised_again() {
    for (dtype, step) in [(DType::I8, 1), (DType::U8, 1), (DType::I8, 3), (DType::U8, 3)] {
        let mut b = Build::new("again");
        let x = b.read("x", dtype, c(600 * step));
        let out = b.write("out", DType::I8, c(600 * step));
        let i = b.axis("i", c(600));
        let at = b.index(0, &[(i, c(step))]);
        let value = b.load(x, at);
        let float = b.cast(DType::F32, value);
        let (zero, scale, other) = (b.num(5.0), b.num(0.75), b.num(0.25));
        let moved = b.bin(BinaryOp::Sub, float, zero);
        let number = b.mul(moved, scale);
        let byte = quantise(&mut b, number, other, -9.0);
        let store = b.store(out, at, byte, &[]);
        let kernel = b.loops(&[i], vec![store]);
        let values: Vec<i64> = (0..600 * step)
            .map(|i| i * 37 % 256 - if dtype == DType::I8 { 128 } else { 0 })
            .collect();
        let mut tensors = buffers(&kernel, &sizes(&[]), 5);
        tensors[0] = HostTensor::from_i64(dtype, [600 * step as usize], &values).unwrap();
        check_with(&kernel, &sizes(&[]), tensors, &[], 0.0);
    }
}

/// A product of integers that is quantised, put through a function of several steps and quantised again: the byte
/// between is read twice.
fn product_with_a_function(keep: bool) -> Kernel {
    let mut kernel = matmul(DType::I8, DType::I8, true, false, After::Nothing);
    let mut b = Build::new("product_with_a_function");
    std::mem::swap(&mut b.kernel, &mut kernel);
    let Body::Contract(mut body) = b.kernel.body.clone() else {
        unreachable!("made as a contraction")
    };
    let [Stmt::Store { value, index, .. }] = body.epilogue.as_mut_slice() else {
        unreachable!("made with one store")
    };
    let sum = b.expr(Expr::Var(body.acc), DType::I32);
    let float = b.cast(DType::F32, sum);
    let (scale, small) = (b.num(0.5), b.num(0.0625));
    let byte = quantise(&mut b, float, scale, 2.0);
    let number = b.cast(DType::F32, byte);
    let number = b.mul(number, small);
    let (one, half) = (b.num(1.0), b.num(0.5));
    let curve = b.un(UnaryOp::Abs, number);
    let curve = b.un(UnaryOp::Sqrt, curve);
    let curve = b.un(UnaryOp::Floor, curve);
    let curve = b.add(curve, one);
    let curve = b.mul(curve, number);
    let curve = b.mul(curve, half);
    *value = quantise(&mut b, curve, small, -1.0);
    let at = *index;
    if keep {
        // What is between is a result too.
        let elements = b.kernel.params[ParamId::new(4)].elements.clone();
        let between = b.write("between", DType::I8, elements);
        let store = b.store(between, at, byte, &[]);
        body.epilogue.push(store);
    }
    b.kernel.body = Body::Contract(body);
    b.kernel
}

#[test]
fn functions_of_a_byte_follow_products() {
    for keep in [false, true] {
        let kernel = product_with_a_function(keep);
        for m in [1, 9, 70] {
            let bindings = sizes(&[("m", m)]);
            let mut tensors = buffers(&kernel, &bindings, 3);
            for (seed, tensor) in tensors.iter_mut().take(2).enumerate() {
                let values: Vec<i64> = (0..tensor.elements() as i64)
                    .map(|i| (i * 31 + seed as i64 * 7) % 23 - 11)
                    .collect();
                *tensor = HostTensor::from_i64(DType::I8, tensor.shape.clone(), &values).unwrap();
            }
            let names = check_with(&kernel, &bindings, tensors, &[1], 0.0);
            assert_eq!(names, ["integers"], "keep {keep}, m {m}");
        }
    }
}

/// A product of `k` deep rows by `n` columns: scaled and moved by column, quantised, and quantised again by another
/// scale.
fn requantised(k: i64, n: i64, twice: bool) -> Kernel {
    with_end(k, n, DType::I8, |b, moved| {
        let by = b.num(0.25);
        let byte = quantise(b, moved, by, -3.0);
        if !twice {
            return byte;
        }
        let number = b.cast(DType::F32, byte);
        let (zero, scale, other) = (b.num(-3.0), b.num(0.25), b.num(0.375));
        let number = b.bin(BinaryOp::Sub, number, zero);
        let number = b.mul(number, scale);
        quantise(b, number, other, 5.0)
    })
}

/// A product of `k` deep rows by `n` columns: scaled and moved by column, and what `end` makes of that.
fn with_end(k: i64, n: i64, dtype: DType, end: impl Fn(&mut Build, ExprId) -> ExprId) -> Kernel {
    let mut b = Build::new("requantised");
    let m = sym("m");
    let lhs = b.read("lhs", DType::I8, m.clone() * k);
    let rhs = b.read("rhs", DType::I8, c(n * k));
    let scales = b.read("scales", DType::F32, c(n));
    let bias = b.read("bias", DType::F32, c(n));
    let out = b.write("out", dtype, m.clone() * n);
    let (i, j, r) = (b.axis("i", m), b.axis("j", c(n)), b.axis("r", c(k)));
    let l = b.index(0, &[(i, c(k)), (r, c(1))]);
    let rr = b.index(0, &[(r, c(n)), (j, c(1))]);
    let (l, rr) = (b.load(lhs, l), b.load(rhs, rr));
    let acc = b.var(DType::I32);
    let sum = b.expr(Expr::Var(acc), DType::I32);
    let float = b.cast(DType::F32, sum);
    let column = b.at(j);
    let (scale, bias) = (b.load(scales, column), b.load(bias, column));
    let scaled = b.mul(float, scale);
    let moved = b.add(scaled, bias);
    let value = end(&mut b, moved);
    let to = b.index(0, &[(i, c(n)), (j, c(1))]);
    let store = b.store(out, to, value, &[]);
    let (lhs, rhs) = (Operand::new(&b.kernel.exprs, l), Operand::new(&b.kernel.exprs, rr));
    b.kernel.body = Body::Contract(ContractBody {
        batch: vec![],
        m: vec![i],
        n: vec![j],
        k: vec![r],
        lhs,
        rhs,
        acc,
        pair: None,
        statistic: None,
        epilogue: vec![store],
        conv: None,
    });
    b.kernel
}

/// Columns that do not fill vectors are taken from several rows at once; those that are left are no fewer.
#[test]
fn products_of_few_columns_are_quantised() {
    for (k, n) in [
        (1, 1),
        (9, 3),
        (27, 8),
        (5, 24),
        (70, 40),
        (16, 48),
        (33, 33),
        (4, 100),
        (12, 16),
        (8, 64),
        (6, 300),
    ] {
        for twice in [false, true] {
            let kernel = requantised(k, n, twice);
            for m in [1, 2, 5, 33, 500] {
                let bindings = sizes(&[("m", m)]);
                let mut tensors = buffers(&kernel, &bindings, 3);
                for (seed, tensor) in tensors.iter_mut().take(2).enumerate() {
                    let values: Vec<i64> = (0..tensor.elements() as i64)
                        .map(|i| (i * 31 + seed as i64 * 7) % 23 - 11)
                        .collect();
                    *tensor = HostTensor::from_i64(DType::I8, tensor.shape.clone(), &values).unwrap();
                }
                // Exact in any precision, with many ties.
                let scales: Vec<f64> = (0..n).map(|j| [0.125, 0.5, 0.0625][j as usize % 3]).collect();
                let bias: Vec<f64> = (0..n).map(|j| (j % 9) as f64 * 0.375 - 1.0).collect();
                tensors[2] = HostTensor::from_f64(DType::F32, [n as usize], &scales).unwrap();
                tensors[3] = HostTensor::from_f64(DType::F32, [n as usize], &bias).unwrap();
                let names = check_with(&kernel, &bindings, tensors, &[1, 2, 3], 0.0);
                assert_eq!(names, ["integers"], "{m}x{k}x{n}");
            }
        }
    }
}

/// A product that is quantised, becomes numbers again and is added to what is positive of others; the sum is a result,
/// and so are its bytes.
fn with_positive(stored: DType, k: i64, n: i64) -> Kernel {
    let mut kernel = requantised(k, n, false);
    let mut b = Build::new("with_positive");
    std::mem::swap(&mut b.kernel, &mut kernel);
    let Body::Contract(mut body) = b.kernel.body.clone() else {
        unreachable!("made as a contraction")
    };
    let [Stmt::Store { value, index, .. }] = body.epilogue.as_mut_slice() else {
        unreachable!("made with one store")
    };
    let elements = b.kernel.params[ParamId::new(4)].elements.clone();
    let residual = b.read("residual", stored, elements.clone());
    let sums = b.write("sums", DType::F32, elements);
    let number = b.cast(DType::F32, *value);
    let (zero, scale) = (b.num(-3.0), b.num(0.25));
    let number = b.bin(BinaryOp::Sub, number, zero);
    let number = b.mul(number, scale);
    let mut more = b.load(residual, *index);
    if stored != DType::F32 {
        let (zero, scale) = (b.num(5.0), b.num(0.125));
        more = b.cast(DType::F32, more);
        more = b.bin(BinaryOp::Sub, more, zero);
        more = b.mul(more, scale);
    }
    let positive = b.un(UnaryOp::Relu, more);
    let sum = b.add(number, positive);
    let by = b.num(0.5);
    let at = *index;
    *value = quantise(&mut b, sum, by, 1.0);
    let store = b.store(sums, at, sum, &[]);
    body.epilogue.push(store);
    b.kernel.body = Body::Contract(body);
    b.kernel
}

/// Says whether a product of integers ends in stages, its buffers 1 to 3 being constants.
fn is_in_registers(kernel: &Kernel, bindings: &Bindings, tensors: &[HostTensor]) -> bool {
    let constants: Vec<_> = (tensors.iter().enumerate())
        .map(|(i, t)| (1..4).contains(&i).then(|| (ConstId::new(i), t)))
        .collect();
    let setting = Setting {
        bindings,
        constants: &constants,
        aliased: false,
    };
    let lowered = codegen_cpu::lowering().lower(kernel, &setting).unwrap();
    let staged = |piece: &Piece| matches!(piece, Piece::Integers(p) if matches!(p.finish, Finish::Stages(_)));
    lowered.pieces.iter().all(staged)
}

#[test]
fn what_is_positive_of_residuals_is_added_in_registers() {
    for stored in [DType::F32, DType::I8, DType::U8] {
        for (k, n) in [(1, 1), (9, 33), (64, 64), (5, 24)] {
            let kernel = with_positive(stored, k, n);
            for m in [1, 6, 70] {
                let bindings = sizes(&[("m", m)]);
                let mut tensors = buffers(&kernel, &bindings, 3);
                for i in [0, 1, 5] {
                    let count = tensors[i].elements();
                    let values: Vec<i64> = (0..count as i64).map(|v| (v * 31 + i as i64 * 7) % 23 - 11).collect();
                    tensors[i] = match tensors[i].dtype {
                        DType::F32 => {
                            let values: Vec<f64> = values.iter().map(|v| *v as f64 * 0.375).collect();
                            HostTensor::from_f64(DType::F32, [count], &values).unwrap()
                        }
                        DType::U8 => {
                            let values: Vec<i64> = values.iter().map(|v| v + 11).collect();
                            HostTensor::from_i64(DType::U8, [count], &values).unwrap()
                        }
                        dtype => HostTensor::from_i64(dtype, [count], &values).unwrap(),
                    };
                }
                let scales = vec![0.125; n as usize];
                tensors[2] = HostTensor::from_f64(DType::F32, [n as usize], &scales).unwrap();
                let bias: Vec<f64> = (0..n).map(|j| (j % 9) as f64 * 0.375 - 1.0).collect();
                tensors[3] = HostTensor::from_f64(DType::F32, [n as usize], &bias).unwrap();
                assert!(is_in_registers(&kernel, &bindings, &tensors), "{stored} {m}x{k}x{n}");
                let names = check_with(&kernel, &bindings, tensors.clone(), &[1, 2, 3], 0.0);
                assert_eq!(names, ["integers"], "{stored} {m}x{k}x{n}");
            }
        }
    }
}

/// Activations of a product of integers are stages; the tile is not stored before.
#[test]
fn functions_of_numbers_follow_products_in_registers() {
    let functions = [
        UnaryOp::Gelu,
        UnaryOp::GeluTanh,
        UnaryOp::Silu,
        UnaryOp::Sigmoid,
        UnaryOp::Tanh,
        UnaryOp::Erf,
        UnaryOp::Exp,
        UnaryOp::Softplus,
        UnaryOp::Mish,
        UnaryOp::HardSwish,
    ];
    for (number, op) in functions.into_iter().enumerate() {
        for (k, n) in [(1, 1), (9, 33), (64, 64), (5, 24), (7, 300)] {
            let kernel = with_end(k, n, DType::F32, |b, moved| {
                let value = b.un(op, moved);
                let half = b.num(0.5);
                b.add(value, half)
            });
            for m in [0, 1, 6, 70] {
                let bindings = sizes(&[("m", m)]);
                let mut tensors = buffers(&kernel, &bindings, number as u64 + 3);
                for (seed, tensor) in tensors.iter_mut().take(2).enumerate() {
                    let values: Vec<i64> = (0..tensor.elements() as i64)
                        .map(|i| (i * 31 + seed as i64 * 7) % 23 - 11)
                        .collect();
                    *tensor = HostTensor::from_i64(DType::I8, tensor.shape.clone(), &values).unwrap();
                }
                let scales: Vec<f64> = (0..n).map(|j| [0.0125, -0.05, 0.00625][j as usize % 3]).collect();
                tensors[2] = HostTensor::from_f64(DType::F32, [n as usize], &scales).unwrap();
                assert!(
                    m == 0 || is_in_registers(&kernel, &bindings, &tensors),
                    "{op:?} {m}x{k}x{n}"
                );
                check_with(&kernel, &bindings, tensors.clone(), &[1, 2, 3], 1e-5);
            }
        }
    }
}
