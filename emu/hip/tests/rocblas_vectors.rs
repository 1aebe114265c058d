//! Vector and matrix-vector calls of the real rocBLAS on an emulated gfx90a, against references in f64.
//!
//! What is allowed: for a result of n terms, n + 8 roundings at most on the sum of the terms' magnitudes.

mod library;
use library::blas::{Blas, Handle, LIBRARY, LOWER, NON_UNIT, NONE, OK, TRANSPOSED, UNIT, UPPER};
use library::{Element, Matrix, Random, Worst, inside};
use std::ffi::{c_int, c_void};

/// A vector with a stride; a negative one is walked from its end, as BLAS has it.
struct Strided<T> {
    values: Vec<T>,
    step: i64,
    count: usize,
}

impl<T: Element> Strided<T> {
    fn new(count: usize, step: i64, random: &mut Random) -> Strided<T> {
        let length = count.saturating_sub(1) * step.unsigned_abs() as usize + 1;
        Strided {
            values: random.reals(length),
            step,
            count,
        }
    }

    fn index(&self, at: usize) -> usize {
        let step = self.step.unsigned_abs() as usize;
        if self.step < 0 {
            (self.count - 1 - at) * step
        } else {
            at * step
        }
    }

    fn at(&self, at: usize) -> f64 {
        self.values[self.index(at)].value()
    }

    /// Checks every value of the memory: elements against `want`, what lies between them against what was there.
    fn check(&self, got: &[T], worst: &mut Worst, what: &str, want: impl Fn(usize) -> (f64, f64)) {
        let mut element = vec![false; got.len()];
        for at in 0..self.count {
            let index = self.index(at);
            element[index] = true;
            let (want, allowed) = want(at);
            worst.check(got[index].value(), want, allowed, || {
                format!("{what}, element {at} of {}", self.count)
            });
        }
        for index in (0..got.len()).filter(|index| !element[*index]) {
            assert_eq!(
                got[index].value(),
                self.values[index].value(),
                "{what}: between elements, at {index}"
            );
        }
    }
}

/// Lengths and strides of x and y.
const VECTORS: [(usize, i64, i64); 9] = [
    (0, 1, 1),
    (1, 1, 1),
    (2, 3, 1),
    (63, 1, 1),
    (64, 1, 2),
    (257, 2, 3),
    (1000, 1, 1),
    (1025, -1, 1),
    (3000, 1, -2),
];

type Axpy<T> = unsafe extern "C" fn(Handle, c_int, *const T, *const c_void, c_int, *mut c_void, c_int) -> c_int;
type Dot<T> = unsafe extern "C" fn(Handle, c_int, *const c_void, c_int, *const c_void, c_int, *mut T) -> c_int;
type Scal<T> = unsafe extern "C" fn(Handle, c_int, *const T, *mut c_void, c_int) -> c_int;
type Reduce<T> = unsafe extern "C" fn(Handle, c_int, *const c_void, c_int, *mut T) -> c_int;
type Move = unsafe extern "C" fn(Handle, c_int, *mut c_void, c_int, *mut c_void, c_int) -> c_int;
type Rot<T> = unsafe extern "C" fn(Handle, c_int, *mut c_void, c_int, *mut c_void, c_int, *const T, *const T) -> c_int;

fn level_1<T: Element + std::fmt::Debug>(blas: &Blas, letter: char, worst: &mut Worst) {
    let name = |rest: &str| format!("rocblas_{letter}{rest}");
    let (mut random, zero) = (Random::new(4), T::of(0.0));
    let ulp = 2.0 * T::HALF_ULP;
    for (n, incx, incy) in VECTORS {
        let (x, y): (Strided<T>, Strided<T>) = (Strided::new(n, incx, &mut random), Strided::new(n, incy, &mut random));
        let fresh = || (blas.rocm.upload(&x.values), blas.rocm.upload(&y.values));
        let (length, sx, sy) = (n as c_int, incx as c_int, incy as c_int);
        let (alpha, c, s) = (T::of(1.75), T::of(0.6), T::of(-0.8));
        let what = |call: &str| format!("{} n {n} incx {incx} incy {incy}", name(call));

        let (dx, dy) = fresh();
        let call: Axpy<T> = blas.rocm.symbol(&name("axpy"));
        // SAFETY: here and below the header's signature, and memory of the sizes said.
        assert_eq!(unsafe { call(blas.handle, length, &alpha, dx.0, sx, dy.0, sy) }, OK);
        y.check(&dy.download(y.values.len()), worst, &what("axpy"), |i| {
            let (product, old) = (1.75 * x.at(i), y.at(i));
            (product + old, ulp * (product.abs() + old.abs()))
        });

        let call: Scal<T> = blas.rocm.symbol(&name("scal"));
        if incx > 0 {
            // SAFETY: as above.
            assert_eq!(unsafe { call(blas.handle, length, &alpha, dx.0, sx) }, OK);
            x.check(&dx.download(x.values.len()), worst, &what("scal"), |i| {
                (1.75 * x.at(i), ulp * x.at(i).abs() * 1.75)
            });
        }

        let (dx, dy) = fresh();
        let call: Move = blas.rocm.symbol(&name("copy"));
        // SAFETY: as above.
        assert_eq!(unsafe { call(blas.handle, length, dx.0, sx, dy.0, sy) }, OK);
        y.check(&dy.download(y.values.len()), worst, &what("copy"), |i| (x.at(i), 0.0));

        let (dx, dy) = fresh();
        let call: Move = blas.rocm.symbol(&name("swap"));
        // SAFETY: as above.
        assert_eq!(unsafe { call(blas.handle, length, dx.0, sx, dy.0, sy) }, OK);
        x.check(&dx.download(x.values.len()), worst, &what("swap"), |i| (y.at(i), 0.0));
        y.check(&dy.download(y.values.len()), worst, &what("swap"), |i| (x.at(i), 0.0));

        let (dx, dy) = fresh();
        let call: Rot<T> = blas.rocm.symbol(&name("rot"));
        // SAFETY: as above.
        assert_eq!(unsafe { call(blas.handle, length, dx.0, sx, dy.0, sy, &c, &s) }, OK);
        let (cv, sv) = (c.value(), s.value());
        x.check(&dx.download(x.values.len()), worst, &what("rot x"), |i| {
            (cv * x.at(i) + sv * y.at(i), 4.0 * ulp)
        });
        y.check(&dy.download(y.values.len()), worst, &what("rot y"), |i| {
            (cv * y.at(i) - sv * x.at(i), 4.0 * ulp)
        });

        let (dx, dy) = fresh();
        let mut result = zero;
        let call: Dot<T> = blas.rocm.symbol(&name("dot"));
        // SAFETY: as above.
        let status = unsafe { call(blas.handle, length, dx.0, sx, dy.0, sy, &mut result) };
        assert_eq!(status, OK);
        let sum: f64 = (0..n).map(|i| x.at(i) * y.at(i)).sum();
        let size: f64 = (0..n).map(|i| (x.at(i) * y.at(i)).abs()).sum();
        worst.check(result.value(), sum, (n + 4) as f64 * T::HALF_ULP * size, || what("dot"));

        if incx < 0 {
            continue;
        }
        let magnitudes: Vec<f64> = (0..n).map(|i| x.at(i).abs()).collect();
        let call: Reduce<T> = blas.rocm.symbol(&name("nrm2"));
        // SAFETY: as above.
        assert_eq!(unsafe { call(blas.handle, length, dx.0, sx, &mut result) }, OK);
        let norm = magnitudes.iter().map(|v| v * v).sum::<f64>().sqrt();
        worst.check(result.value(), norm, (n + 8) as f64 * T::HALF_ULP * norm, || {
            what("nrm2")
        });
        let call: Reduce<T> = blas.rocm.symbol(&name("asum"));
        // SAFETY: as above.
        assert_eq!(unsafe { call(blas.handle, length, dx.0, sx, &mut result) }, OK);
        let sum = magnitudes.iter().sum::<f64>();
        worst.check(result.value(), sum, (n + 4) as f64 * T::HALF_ULP * sum, || what("asum"));

        for (call, better) in [("amax", f64::gt as fn(&f64, &f64) -> bool), ("amin", f64::lt)] {
            let mut index = -1;
            let function: Reduce<c_int> = blas.rocm.symbol(&format!("rocblas_i{letter}{call}"));
            // SAFETY: as above.
            assert_eq!(unsafe { function(blas.handle, length, dx.0, sx, &mut index) }, OK);
            // Counted from 1, the first of equals; 0 where there is nothing.
            let mut best = 0;
            for (at, value) in magnitudes.iter().enumerate() {
                if best == 0 || better(value, &magnitudes[best - 1]) {
                    best = at + 1;
                }
            }
            assert_eq!(index, best as c_int, "i{letter}{call} n {n}");
        }
    }
}

#[test]
fn level_1_calls() {
    inside("level_1_calls", LIBRARY, || {
        let (blas, mut worst) = (Blas::open(), Worst::default());
        level_1::<f32>(&blas, 's', &mut worst);
        level_1::<f64>(&blas, 'd', &mut worst);
        worst.report("axpy scal copy swap rot dot nrm2 asum iamax iamin in f32 and f64");
    });
}

type Gemv<T> = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    *const T,
    *const c_void,
    c_int,
    *const c_void,
    c_int,
    *const T,
    *mut c_void,
    c_int,
) -> c_int;
type Symv<T> = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    *const T,
    *const c_void,
    c_int,
    *const c_void,
    c_int,
    *const T,
    *mut c_void,
    c_int,
) -> c_int;
type Ger<T> = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    *const T,
    *const c_void,
    c_int,
    *const c_void,
    c_int,
    *mut c_void,
    c_int,
) -> c_int;
type Triangular =
    unsafe extern "C" fn(Handle, c_int, c_int, c_int, c_int, *const c_void, c_int, *mut c_void, c_int) -> c_int;

/// Whether a place of a matrix is in the half that is said; the diagonal is in both.
fn stored(half: c_int, row: usize, column: usize) -> bool {
    if half == UPPER { row <= column } else { row >= column }
}

fn level_2<T: Element>(blas: &Blas, letter: char, worst: &mut Worst) {
    let name = |rest: &str| format!("rocblas_{letter}{rest}");
    let mut random = Random::new(5);
    let bound = |terms: usize, size: f64| (terms + 8) as f64 * T::HALF_ULP * size;
    for (index, (m, n)) in [(1, 1), (5, 3), (64, 64), (33, 70), (129, 17), (300, 40)]
        .into_iter()
        .enumerate()
    {
        let (incx, incy) = ([1, 2, -1][index % 3], [1, 3, 2][index % 3]);
        let [alpha, beta] = [[1.5, 0.0], [2.0, 0.5], [-1.0, 1.0]][index % 3];
        let (alpha_t, beta_t) = (T::of(alpha), T::of(beta));
        let a: Matrix<T> = Matrix::new(m, n, index % 4, || random.real());
        let da = blas.rocm.upload(&a.values);
        let (rows, columns, lda) = (m as c_int, n as c_int, a.stride as c_int);
        for operation in [NONE, TRANSPOSED] {
            let (outputs, inputs) = if operation == NONE { (m, n) } else { (n, m) };
            let x: Strided<T> = Strided::new(inputs, incx, &mut random);
            let mut y: Strided<T> = Strided::new(outputs, incy, &mut random);
            if beta == 0.0 {
                // Must not be read; the places between are left alone in any case.
                for at in 0..outputs {
                    let place = y.index(at);
                    y.values[place] = T::of(f64::NAN);
                }
                y.values.iter_mut().for_each(|value| {
                    if value.value().is_nan() {
                        *value = T::of(f64::INFINITY)
                    }
                });
            }
            let (dx, dy) = (blas.rocm.upload(&x.values), blas.rocm.upload(&y.values));
            let call: Gemv<T> = blas.rocm.symbol(&name("gemv"));
            let what = format!(
                "{} {operation} {m}x{n} incx {incx} incy {incy} beta {beta}",
                name("gemv")
            );
            // SAFETY: here and below the header's signature, and memory of the sizes said.
            let status = unsafe {
                let (sx, sy) = (incx as c_int, incy as c_int);
                call(
                    blas.handle,
                    operation,
                    rows,
                    columns,
                    &alpha_t,
                    da.0,
                    lda,
                    dx.0,
                    sx,
                    &beta_t,
                    dy.0,
                    sy,
                )
            };
            assert_eq!(status, OK, "{what}");
            y.check(&dy.download(y.values.len()), worst, &what, |i| {
                let terms = (0..inputs).map(|p| x.at(p) * if operation == NONE { a.at(i, p) } else { a.at(p, i) });
                let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                let old = if beta == 0.0 { 0.0 } else { beta * y.at(i) };
                (alpha * sum + old, bound(inputs, (alpha * size).abs() + old.abs()))
            });
        }

        let (x, y): (Strided<T>, Strided<T>) = (Strided::new(m, incx, &mut random), Strided::new(n, incy, &mut random));
        let (dx, dy, da) = (
            blas.rocm.upload(&x.values),
            blas.rocm.upload(&y.values),
            blas.rocm.upload(&a.values),
        );
        let call: Ger<T> = blas.rocm.symbol(&name("ger"));
        // SAFETY: as above.
        let status = unsafe {
            call(
                blas.handle,
                rows,
                columns,
                &alpha_t,
                dx.0,
                incx as c_int,
                dy.0,
                incy as c_int,
                da.0,
                lda,
            )
        };
        assert_eq!(status, OK);
        let got = Matrix {
            rows: m,
            stride: a.stride,
            values: da.download::<T>(a.values.len()),
        };
        for j in 0..n {
            for i in 0..m {
                let (product, old) = (alpha * x.at(i) * y.at(j), a.at(i, j));
                let allowed = bound(1, product.abs() + old.abs());
                worst.check(got.at(i, j), product + old, allowed, || {
                    format!("{} {m}x{n} ({i}, {j})", name("ger"))
                });
            }
        }
    }
}

/// symv, trmv and trsv, which read one half of a square matrix: the other half holds NaN.
fn halves<T: Element>(blas: &Blas, letter: char, worst: &mut Worst) {
    let name = |rest: &str| format!("rocblas_{letter}{rest}");
    let mut random = Random::new(6);
    let bound = |terms: usize, size: f64| (terms + 8) as f64 * T::HALF_ULP * size;
    for (index, n) in [1usize, 7, 32, 65, 150].into_iter().enumerate() {
        for half in [UPPER, LOWER] {
            let (mut place, padding) = (0, index % 3);
            let stride = n + padding;
            let a: Matrix<T> = Matrix::new(n, n, padding, || {
                let (row, column) = (place % stride, place / stride);
                place += 1;
                match () {
                    () if row >= n || !stored(half, row, column) => T::of(f64::NAN),
                    // Heavy diagonals keep the solutions small.
                    () if row == column => T::of(2.0 + random.real::<T>().value().abs()),
                    () => T::of(random.real::<T>().value() / n as f64),
                }
            });
            let at = |row: usize, column: usize| {
                if stored(half, row, column) {
                    a.at(row, column)
                } else {
                    0.0
                }
            };
            let da = blas.rocm.upload(&a.values);
            let (size, lda, one) = (n as c_int, a.stride as c_int, T::of(1.0));

            let (x, y): (Strided<T>, Strided<T>) = (Strided::new(n, 2, &mut random), Strided::new(n, 1, &mut random));
            let (dx, dy) = (blas.rocm.upload(&x.values), blas.rocm.upload(&y.values));
            let call: Symv<T> = blas.rocm.symbol(&name("symv"));
            // SAFETY: here and below the header's signature, and memory of the sizes said.
            let status = unsafe { call(blas.handle, half, size, &one, da.0, lda, dx.0, 2, &one, dy.0, 1) };
            assert_eq!(status, OK);
            y.check(&dy.download(n), worst, &format!("{} {half} {n}", name("symv")), |i| {
                let terms = (0..n).map(|j| x.at(j) * if stored(half, i, j) { at(i, j) } else { at(j, i) });
                let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                (sum + y.at(i), bound(n, size + y.at(i).abs()))
            });

            for (operation, diagonal) in [
                (NONE, NON_UNIT),
                (TRANSPOSED, UNIT),
                (NONE, UNIT),
                (TRANSPOSED, NON_UNIT),
            ] {
                let entry = |i: usize, j: usize| {
                    let (row, column) = if operation == NONE { (i, j) } else { (j, i) };
                    if row == column && diagonal == UNIT {
                        1.0
                    } else {
                        at(row, column)
                    }
                };
                let product = |values: &dyn Fn(usize) -> f64, i: usize| {
                    let terms = (0..n).map(|j| entry(i, j) * values(j));
                    terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
                };
                let x: Strided<T> = Strided::new(n, 1, &mut random);
                let multiplied = blas.rocm.upload(&x.values);
                let call: Triangular = blas.rocm.symbol(&name("trmv"));
                // SAFETY: as above.
                let status = unsafe { call(blas.handle, half, operation, diagonal, size, da.0, lda, multiplied.0, 1) };
                assert_eq!(status, OK);
                let what = format!("{} {half} {operation} {diagonal} {n}", name("trmv"));
                x.check(&multiplied.download(n), worst, &what, |i| {
                    let (sum, size) = product(&|j| x.at(j), i);
                    (sum, bound(n, size))
                });

                let solved = blas.rocm.upload(&x.values);
                let call: Triangular = blas.rocm.symbol(&name("trsv"));
                // SAFETY: as above.
                let status = unsafe { call(blas.handle, half, operation, diagonal, size, da.0, lda, solved.0, 1) };
                assert_eq!(status, OK);
                // The solution is checked by its residual.
                let solution: Vec<T> = solved.download(n);
                let what = format!("{} {half} {operation} {diagonal} {n}", name("trsv"));
                for i in 0..n {
                    let (sum, size) = product(&|j| solution[j].value(), i);
                    worst.check(sum, x.at(i), bound(n, 2.0 * (size + x.at(i).abs())), || {
                        format!("{what}, row {i}")
                    });
                }
            }
        }
    }
}

#[test]
fn level_2_calls() {
    inside("level_2_calls", LIBRARY, || {
        let (blas, mut worst) = (Blas::open(), Worst::default());
        level_2::<f32>(&blas, 's', &mut worst);
        level_2::<f64>(&blas, 'd', &mut worst);
        halves::<f32>(&blas, 's', &mut worst);
        halves::<f64>(&blas, 'd', &mut worst);
        worst.report("gemv ger symv trmv trsv in f32 and f64");
    });
}
