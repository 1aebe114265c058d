//! Matrix products by the real rocBLAS on an emulated gfx90a, against references in f64.
//!
//! What is allowed: for a sum of k products, k + 4 roundings of the compute type on the sum of the products'
//! magnitudes, and one rounding of the result's type. Integer products are exact.

mod library;
use half::{bf16, f16};
use library::blas::{Blas, GemmEx, Handle, LIBRARY, NONE, OK, TRANSPOSED};
use library::{Element, Matrix, Random, Worst, inside, inside_with};
use std::ffi::{c_int, c_void};

/// An element with rocBLAS's number for its type.
trait Typed: Element {
    const TYPE: c_int;
}

impl Typed for f16 {
    const TYPE: c_int = 150;
}
impl Typed for f32 {
    const TYPE: c_int = 151;
}
impl Typed for f64 {
    const TYPE: c_int = 152;
}
impl Typed for bf16 {
    const TYPE: c_int = 168;
}
impl Typed for i8 {
    const TYPE: c_int = 160;
}
impl Typed for i32 {
    const TYPE: c_int = 162;
}

/// m, n, k: nothing, single, odd, whole tiles, and past the tiles' edges.
const SHAPES: [[usize; 3]; 40] = [
    [0, 5, 3],
    [5, 0, 3],
    [5, 3, 0],
    [1, 1, 1],
    [1, 1, 64],
    [1, 17, 9],
    [17, 1, 9],
    [2, 3, 5],
    [3, 2, 7],
    [4, 4, 4],
    [5, 7, 11],
    [8, 8, 8],
    [13, 13, 13],
    [16, 16, 16],
    [15, 16, 17],
    [16, 15, 33],
    [17, 17, 16],
    [19, 31, 23],
    [31, 33, 29],
    [32, 32, 32],
    [33, 32, 31],
    [32, 33, 64],
    [47, 53, 59],
    [63, 64, 65],
    [64, 64, 64],
    [65, 63, 66],
    [64, 1, 64],
    [1, 64, 64],
    [64, 64, 1],
    [64, 64, 2],
    [96, 40, 72],
    [100, 3, 50],
    [3, 100, 50],
    [127, 129, 8],
    [128, 128, 32],
    [129, 127, 33],
    [130, 70, 90],
    [192, 48, 40],
    [255, 17, 19],
    [256, 16, 128],
];

/// alpha, beta: with beta 0, C holds NaN where its type has one and must not be read.
const SCALES: [[f64; 2]; 6] = [[1.0, 0.0], [2.0, 0.5], [1.0, 1.0], [-1.5, 0.0], [0.0, 1.5], [0.0, 0.0]];
/// Added to the least leading dimension.
const PADDING: [usize; 3] = [0, 3, 8];

/// One product: `batch` of them, each after the other.
struct Case {
    shape: [usize; 3],
    operations: [c_int; 2],
    scales: [f64; 2],
    padding: usize,
    batch: usize,
}

type GemmStridedBatchedEx = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    i64,
    *const c_void,
    c_int,
    c_int,
    i64,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    i64,
    *mut c_void,
    c_int,
    c_int,
    i64,
    c_int,
    c_int,
    c_int,
    i32,
    u32,
) -> c_int;

/// Runs one case with inputs of `A`, results of `C`, scales and sums in `S`, and checks all of D, its padding too.
fn gemm<A: Typed, C: Typed, S: Typed>(blas: &Blas, case: &Case, random: &mut Random, worst: &mut Worst) {
    let [m, n, k] = case.shape;
    let [alpha, beta] = case.scales;
    let exact = A::HALF_ULP == 0.0;
    let mut input = || if exact { random.whole(127) } else { random.real::<A>() };
    let shape = |operation: c_int, rows: usize, columns: usize| {
        if operation == NONE {
            (rows, columns)
        } else {
            (columns, rows)
        }
    };
    let (a_shape, b_shape) = (shape(case.operations[0], m, k), shape(case.operations[1], k, n));
    let all = case.batch;
    let a = Matrix::new(a_shape.0, a_shape.1 * all, case.padding, &mut input);
    let b = Matrix::new(b_shape.0, b_shape.1 * all, case.padding, &mut input);
    let unread = beta == 0.0 && C::of(f64::NAN).value().is_nan();
    let c = Matrix::new(m, n * all, case.padding, || {
        if unread {
            C::of(f64::NAN)
        } else if exact {
            random.whole(1000)
        } else {
            random.real()
        }
    });
    let d = Matrix::new(m, n * all, case.padding, || C::of(77.0));
    let up = |matrix: &Matrix<A>| blas.rocm.upload(&matrix.values);
    let (da, db, dc, dd) = (up(&a), up(&b), blas.rocm.upload(&c.values), blas.rocm.upload(&d.values));
    let (scale_a, scale_b) = (S::of(alpha).bytes(), S::of(beta).bytes());
    let size = |value: usize| value as c_int;
    let place = || format!("{case_text} of type {}", A::TYPE, case_text = describe(case));
    let status = if all == 1 {
        let call: GemmEx = blas.rocm.symbol("rocblas_gemm_ex");
        // SAFETY: the header's signature; matrices of the sizes said.
        unsafe {
            call(
                blas.handle,
                case.operations[0],
                case.operations[1],
                size(m),
                size(n),
                size(k),
                scale_a.as_ptr().cast(),
                da.0,
                A::TYPE,
                size(a.stride),
                db.0,
                A::TYPE,
                size(b.stride),
                scale_b.as_ptr().cast(),
                dc.0,
                C::TYPE,
                size(c.stride),
                dd.0,
                C::TYPE,
                size(d.stride),
                S::TYPE,
                0,
                0,
                0,
            )
        }
    } else {
        let call: GemmStridedBatchedEx = blas.rocm.symbol("rocblas_gemm_strided_batched_ex");
        let step = |matrix_stride: usize, columns: usize| (matrix_stride * columns) as i64;
        // SAFETY: the header's signature; matrices of the sizes said.
        unsafe {
            call(
                blas.handle,
                case.operations[0],
                case.operations[1],
                size(m),
                size(n),
                size(k),
                scale_a.as_ptr().cast(),
                da.0,
                A::TYPE,
                size(a.stride),
                step(a.stride, a_shape.1),
                db.0,
                A::TYPE,
                size(b.stride),
                step(b.stride, b_shape.1),
                scale_b.as_ptr().cast(),
                dc.0,
                C::TYPE,
                size(c.stride),
                step(c.stride, n),
                dd.0,
                C::TYPE,
                size(d.stride),
                step(d.stride, n),
                size(all),
                S::TYPE,
                0,
                0,
                0,
            )
        }
    };
    assert_eq!(status, OK, "{}", place());
    let got = Matrix {
        rows: m,
        stride: d.stride,
        values: dd.download::<C>(d.values.len()),
    };
    for column in 0..n * all {
        let (index, j) = (column / n, column % n);
        for row in 0..m {
            let (mut sum, mut size) = (0.0, 0.0);
            for p in 0..k {
                let x = if case.operations[0] == NONE {
                    a.at(row, index * k + p)
                } else {
                    a.at(p, index * m + row)
                };
                let y = if case.operations[1] == NONE {
                    b.at(p, index * n + j)
                } else {
                    b.at(j, index * k + p)
                };
                sum += x * y;
                size += (x * y).abs();
            }
            let old = if beta == 0.0 { 0.0 } else { beta * c.at(row, column) };
            let want = alpha * sum + old;
            let magnitude = alpha.abs() * size + old.abs();
            // The reference's own roundings count where it is no finer than the product.
            let roundings = if S::HALF_ULP == f64::HALF_ULP {
                2 * (k + 4)
            } else {
                k + 4
            };
            let allowed = roundings as f64 * S::HALF_ULP * magnitude + C::HALF_ULP * want.abs();
            worst.check(got.at(row, column), want, allowed, || {
                format!("({row}, {column}) of {}", place())
            });
        }
        for padding in &got.values[column * got.stride..][m..got.stride] {
            assert_eq!(padding.value(), 77.0, "padding of column {column} of {}", place());
        }
    }
}

fn describe(case: &Case) -> String {
    let letter = |operation| if operation == NONE { 'N' } else { 'T' };
    format!(
        "{:?} {}{} scales {:?} padding {} batch {}",
        case.shape,
        letter(case.operations[0]),
        letter(case.operations[1]),
        case.scales,
        case.padding,
        case.batch
    )
}

const OPERATIONS: [[c_int; 2]; 4] = [
    [NONE, NONE],
    [TRANSPOSED, NONE],
    [NONE, TRANSPOSED],
    [TRANSPOSED, TRANSPOSED],
];

/// All shapes and transposes; scales and paddings go round.
fn all_shapes<A: Typed, C: Typed, S: Typed>(name: &str) {
    shapes::<A, C, S>(name, |_| true);
}

/// As [`all_shapes`], for the cases that are chosen.
fn shapes<A: Typed, C: Typed, S: Typed>(name: &str, chosen: impl Fn(&Case) -> bool) {
    let blas = Blas::open();
    let (mut random, mut worst, mut count) = (Random::new(1), Worst::default(), 0);
    // Integer scales are integers.
    let scales: Vec<[f64; 2]> = SCALES
        .iter()
        .map(|pair| pair.map(|scale| S::of(scale).value()))
        .collect();
    for shape in SHAPES {
        for operations in OPERATIONS {
            let case = Case {
                shape,
                operations,
                scales: scales[count % scales.len()],
                padding: PADDING[count % PADDING.len()],
                batch: 1,
            };
            if chosen(&case) {
                gemm::<A, C, S>(&blas, &case, &mut random, &mut worst);
            }
            // Not a multiple of either list's length, so that each shape meets other scales under each transpose.
            count += 1 + count / 24 % 2;
        }
    }
    worst.report(name);
}

#[test]
fn gemm_f32() {
    inside("gemm_f32", LIBRARY, || all_shapes::<f32, f32, f32>("gemm f32"));
}

#[test]
fn gemm_f16() {
    inside("gemm_f16", LIBRARY, || {
        all_shapes::<f16, f16, f32>("gemm f16, sums in f32")
    });
}

#[test]
fn gemm_bf16() {
    inside("gemm_bf16", LIBRARY, || {
        all_shapes::<bf16, bf16, f32>("gemm bf16, sums in f32")
    });
}

/// Whether no product is summed up: there are none, or alpha is 0.
fn without_products(case: &Case) -> bool {
    case.shape[2] == 0 || case.scales[0] == 0.0
}

#[test]
fn gemm_f64() {
    inside("gemm_f64", LIBRARY, || {
        shapes::<f64, f64, f64>("gemm f64", |case| !without_products(case));
    });
}

#[test]
fn gemm_f64_without_products() {
    // The kernels for f64 clear their accumulators by reading LDS that is nowhere. Where they skip the products they
    // also skip the wait for that, and count on 320 cycles of sleep; the emulator reports a missing wait.
    let variables = [("GRAPHC_EMU_CHECKS", "no-waits")];
    inside_with("gemm_f64_without_products", LIBRARY, &variables, || {
        shapes::<f64, f64, f64>("gemm f64, k = 0 or alpha = 0", without_products);
    });
}

#[test]
fn gemm_i8() {
    inside("gemm_i8", LIBRARY, || {
        all_shapes::<i8, i32, i32>("gemm i8, sums in i32")
    });
}

#[test]
fn gemm_f16_with_f32_results() {
    inside("gemm_f16_with_f32_results", LIBRARY, || {
        let blas = Blas::open();
        let (mut random, mut worst) = (Random::new(2), Worst::default());
        for (index, shape) in [[16, 16, 16], [33, 17, 29], [64, 64, 64], [1, 40, 7], [65, 3, 100]]
            .into_iter()
            .enumerate()
        {
            for operations in OPERATIONS {
                let case = Case {
                    shape,
                    operations,
                    scales: SCALES[index],
                    padding: PADDING[index % 3],
                    batch: 1,
                };
                gemm::<f16, f32, f32>(&blas, &case, &mut random, &mut worst);
            }
        }
        worst.report("gemm f16 to f32");
    });
}

#[test]
fn gemm_strided_batched() {
    inside("gemm_strided_batched", LIBRARY, || {
        let blas = Blas::open();
        let (mut random, mut worst) = (Random::new(3), Worst::default());
        for (index, shape) in [[1, 1, 1], [16, 16, 16], [17, 19, 23], [64, 32, 40], [70, 65, 33]]
            .into_iter()
            .enumerate()
        {
            for (operations, batch) in OPERATIONS.into_iter().zip([2, 3, 5, 7]) {
                let scales = SCALES[(index + batch) % 6];
                let case = Case {
                    shape,
                    operations,
                    scales,
                    padding: PADDING[index % 3],
                    batch,
                };
                gemm::<f32, f32, f32>(&blas, &case, &mut random, &mut worst);
                gemm::<f16, f16, f32>(&blas, &case, &mut random, &mut worst);
                gemm::<bf16, bf16, f32>(&blas, &case, &mut random, &mut worst);
                let scales = scales.map(f64::trunc);
                gemm::<i8, i32, i32>(&blas, &Case { scales, ..case }, &mut random, &mut worst);
            }
        }
        worst.report("gemm strided batched, f32 f16 bf16 i8");
    });
}
