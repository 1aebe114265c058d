//! The real hipBLASLt on an emulated gfx90a, with bias and activations, against references in f64.
//!
//! What is allowed before the activation: k + 6 roundings of f32 on the sum of the products' magnitudes. The activation
//! adds 2^-18 of its argument (its exponential is one of f32), and the result one rounding of its type.

mod library;
use half::{bf16, f16};
use library::{Element, Matrix, Random, Rocm, Worst, inside};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

const LIBRARY: &str = "libhipblaslt.so.1";
const OK: c_int = 0;
const NONE: c_int = 111;
const TRANSPOSED: c_int = 112;
/// `HIPBLAS_COMPUTE_32F` and `HIP_R_32F`.
const COMPUTE_F32: c_int = 2;
const REAL_F32: c_int = 0;
/// Attributes of a product.
const TRANS_A: c_int = 0;
const TRANS_B: c_int = 1;
const EPILOGUE: c_int = 2;
const BIAS_POINTER: c_int = 3;
const BIAS_TYPE: c_int = 4;
/// Attributes of a layout, and of the preferences.
const BATCH_COUNT: c_int = 0;
const BATCH_STRIDE: c_int = 1;
const WORKSPACE: c_int = 1;

type Object = *mut c_void;

/// A number type with `hipDataType`'s number.
trait Typed: Element {
    const TYPE: c_int;
}

impl Typed for f32 {
    const TYPE: c_int = 0;
}
impl Typed for f16 {
    const TYPE: c_int = 2;
}
impl Typed for bf16 {
    const TYPE: c_int = 14;
}

/// What happens to a sum before it is stored; the numbers are `hipblasLtEpilogue_t`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Epilogue {
    Plain = 1,
    Bias = 4,
    ReluBias = 6,
    Gelu = 32,
    GeluBias = 36,
}

impl Epilogue {
    const ALL: [Epilogue; 5] = [
        Epilogue::Plain,
        Epilogue::Bias,
        Epilogue::ReluBias,
        Epilogue::Gelu,
        Epilogue::GeluBias,
    ];

    fn has_bias(self) -> bool {
        matches!(self, Epilogue::Bias | Epilogue::ReluBias | Epilogue::GeluBias)
    }

    fn apply(self, x: f64) -> f64 {
        match self {
            Epilogue::Plain | Epilogue::Bias => x,
            Epilogue::ReluBias => x.max(0.0),
            // The tanh form is the library's own.
            Epilogue::Gelu | Epilogue::GeluBias => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
        }
    }
}

/// `hipblasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Heuristic {
    algorithm: [u64; 3],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

type Create = unsafe extern "C" fn(*mut Object) -> c_int;
type Destroy = unsafe extern "C" fn(Object) -> c_int;
type CreateLayout = unsafe extern "C" fn(*mut Object, c_int, u64, u64, i64) -> c_int;
type CreateProduct = unsafe extern "C" fn(*mut Object, c_int, c_int) -> c_int;
type SetAttribute = unsafe extern "C" fn(Object, c_int, *const c_void, usize) -> c_int;
type GetHeuristic = unsafe extern "C" fn(
    Object,
    Object,
    Object,
    Object,
    Object,
    Object,
    Object,
    c_int,
    *mut Heuristic,
    *mut c_int,
) -> c_int;
type Matmul = unsafe extern "C" fn(
    Object,
    Object,
    *const f32,
    *const c_void,
    Object,
    *const c_void,
    Object,
    *const f32,
    *const c_void,
    Object,
    *mut c_void,
    Object,
    *const [u64; 3],
    *mut c_void,
    usize,
    *mut c_void,
) -> c_int;

/// hipBLASLt with one handle.
struct Lt {
    rocm: Rocm,
    handle: Object,
}

/// One product.
#[derive(Clone, Copy, Debug)]
struct Case {
    shape: [usize; 3],
    operations: [c_int; 2],
    scales: [f32; 2],
    epilogue: Epilogue,
    batch: usize,
    /// How many of the algorithms that the heuristic gives are run.
    algorithms: usize,
}

impl Lt {
    fn open() -> Lt {
        let rocm = Rocm::open(LIBRARY);
        let mut handle = null_mut();
        let create: Create = rocm.symbol("hipblasLtCreate");
        // SAFETY: a place for the result.
        assert_eq!(unsafe { create(&mut handle) }, OK);
        Lt { rocm, handle }
    }

    fn set<V>(&self, function: &str, object: Object, attribute: c_int, value: V) {
        let call: SetAttribute = self.rocm.symbol(function);
        // SAFETY: a value of the attribute's own type.
        let status = unsafe { call(object, attribute, (&raw const value).cast(), size_of::<V>()) };
        assert_eq!(status, OK, "{function}: {attribute}");
    }

    fn layout<T: Typed>(&self, matrix: &Matrix<T>, columns: usize, batch: usize) -> Object {
        let mut layout = null_mut();
        let create: CreateLayout = self.rocm.symbol("hipblasLtMatrixLayoutCreate");
        let (rows, stride) = (matrix.rows as u64, matrix.stride as i64);
        // SAFETY: a place for the result.
        let status = unsafe { create(&mut layout, T::TYPE, rows, columns as u64, stride) };
        assert_eq!(status, OK);
        if batch > 1 {
            let set = "hipblasLtMatrixLayoutSetAttribute";
            self.set(set, layout, BATCH_COUNT, batch as i32);
            self.set(set, layout, BATCH_STRIDE, (matrix.stride * columns) as i64);
        }
        layout
    }

    fn destroy(&self, function: &str, object: Object) {
        let call: Destroy = self.rocm.symbol(function);
        // SAFETY: made by the matching function, ended once.
        assert_eq!(unsafe { call(object) }, OK);
    }

    /// Runs one case with each algorithm and checks all of D.
    fn check<T: Typed>(&self, case: &Case, random: &mut Random, worst: &mut Worst) {
        let [m, n, k] = case.shape;
        let all = case.batch;
        let of = |operation, rows, columns| {
            if operation == NONE {
                (rows, columns)
            } else {
                (columns, rows)
            }
        };
        let (a_shape, b_shape) = (of(case.operations[0], m, k), of(case.operations[1], k, n));
        let a: Matrix<T> = Matrix::new(a_shape.0, a_shape.1 * all, 0, || random.real());
        let b: Matrix<T> = Matrix::new(b_shape.0, b_shape.1 * all, 0, || random.real());
        let unread = case.scales[1] == 0.0;
        let c: Matrix<T> = Matrix::new(m, n * all, 0, || if unread { T::of(f64::NAN) } else { random.real() });
        let bias: Vec<T> = random.reals(m);
        let (da, db, dc) = (
            self.rocm.upload(&a.values),
            self.rocm.upload(&b.values),
            self.rocm.upload(&c.values),
        );
        let dbias = self.rocm.upload(&bias);

        let mut product = null_mut();
        let create: CreateProduct = self.rocm.symbol("hipblasLtMatmulDescCreate");
        // SAFETY: a place for the result.
        assert_eq!(unsafe { create(&mut product, COMPUTE_F32, REAL_F32) }, OK);
        let set = "hipblasLtMatmulDescSetAttribute";
        self.set(set, product, TRANS_A, case.operations[0]);
        self.set(set, product, TRANS_B, case.operations[1]);
        self.set(set, product, EPILOGUE, case.epilogue as i32);
        if case.epilogue.has_bias() {
            self.set(set, product, BIAS_POINTER, dbias.0);
            self.set(set, product, BIAS_TYPE, T::TYPE);
        }
        let layouts = [
            self.layout(&a, a_shape.1, all),
            self.layout(&b, b_shape.1, all),
            self.layout(&c, n, all),
        ];
        let mut preference = null_mut();
        let create: Create = self.rocm.symbol("hipblasLtMatmulPreferenceCreate");
        // SAFETY: a place for the result.
        assert_eq!(unsafe { create(&mut preference) }, OK);
        let most = 1u64 << 20;
        self.set("hipblasLtMatmulPreferenceSetAttribute", preference, WORKSPACE, most);

        let empty = Heuristic {
            algorithm: [0; 3],
            workspace: 0,
            state: -1,
            waves: 0.0,
            reserved: [0; 4],
        };
        let (mut found, mut count) = (vec![empty; case.algorithms], 0);
        let heuristic: GetHeuristic = self.rocm.symbol("hipblasLtMatmulAlgoGetHeuristic");
        // SAFETY: the header's signature; `found` has room for as many as are asked for.
        let status = unsafe {
            let [la, lb, lc] = layouts;
            let asked = case.algorithms as c_int;
            heuristic(
                self.handle,
                product,
                la,
                lb,
                lc,
                lc,
                preference,
                asked,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        assert_eq!(status, OK, "heuristic for {case:?} of type {}", T::TYPE);
        assert!(count > 0, "no algorithm for {case:?} of type {}", T::TYPE);
        for (index, choice) in found.iter().take(count as usize).enumerate() {
            assert!(choice.state == OK && choice.workspace as u64 <= most);
            let workspace = self.rocm.empty(choice.workspace);
            let dd = self.rocm.upload(&vec![T::of(77.0); c.values.len()]);
            let call: Matmul = self.rocm.symbol("hipblasLtMatmul");
            let [alpha, beta] = case.scales;
            // SAFETY: the header's signature; matrices of the layouts' sizes.
            let status = unsafe {
                call(
                    self.handle,
                    product,
                    &alpha,
                    da.0,
                    layouts[0],
                    db.0,
                    layouts[1],
                    &beta,
                    dc.0,
                    layouts[2],
                    dd.0,
                    layouts[2],
                    &choice.algorithm,
                    workspace.0,
                    choice.workspace,
                    null_mut(),
                )
            };
            let what = || format!("algorithm {index} of {case:?} of type {}", T::TYPE);
            assert_eq!(status, OK, "{}", what());
            compare(case, [&a, &b, &c], &bias, &dd.download(c.values.len()), worst, &what);
        }
        for layout in layouts {
            self.destroy("hipblasLtMatrixLayoutDestroy", layout);
        }
        self.destroy("hipblasLtMatmulPreferenceDestroy", preference);
        self.destroy("hipblasLtMatmulDescDestroy", product);
    }
}

fn compare<T: Typed>(
    case: &Case,
    [a, b, c]: [&Matrix<T>; 3],
    bias: &[T],
    got: &[T],
    worst: &mut Worst,
    what: &dyn Fn() -> String,
) {
    let [m, n, k] = case.shape;
    let [alpha, beta] = case.scales.map(f64::from);
    for column in 0..n * case.batch {
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
            let added = if case.epilogue.has_bias() {
                bias[row].value()
            } else {
                0.0
            };
            let argument = alpha * sum + old + added;
            let want = case.epilogue.apply(argument);
            let before = (k + 6) as f64 * f32::HALF_ULP * (alpha.abs() * size + old.abs() + added.abs());
            // GELU is nowhere steeper than 1.13.
            let activation = if case.epilogue as i32 >= 32 {
                argument.abs() / f64::from(1 << 18)
            } else {
                0.0
            };
            let allowed = 1.13 * before + activation + T::HALF_ULP * want.abs();
            worst.check(got[column * m + row].value(), want, allowed, || {
                format!("({row}, {column}) of {}", what())
            });
        }
    }
}

const SHAPES: [[usize; 3]; 10] = [
    [16, 16, 16],
    [1, 24, 8],
    [24, 1, 40],
    [33, 17, 29],
    [64, 64, 64],
    [65, 63, 31],
    [128, 32, 96],
    [100, 130, 20],
    [127, 129, 33],
    [256, 24, 136],
];
const OPERATIONS: [[c_int; 2]; 4] = [
    [NONE, NONE],
    [TRANSPOSED, NONE],
    [NONE, TRANSPOSED],
    [TRANSPOSED, TRANSPOSED],
];
const SCALES: [[f32; 2]; 3] = [[1.0, 0.0], [0.5, 1.0], [-1.5, 0.5]];

/// All shapes and epilogues; transposes and scales go round.
fn all_epilogues<T: Typed>(name: &str) {
    let lt = Lt::open();
    let (mut random, mut worst, mut count) = (Random::new(7), Worst::default(), 0);
    for shape in SHAPES {
        for epilogue in Epilogue::ALL {
            let case = Case {
                shape,
                operations: OPERATIONS[count % 4],
                scales: SCALES[count % 3],
                epilogue,
                batch: 1,
                algorithms: 1,
            };
            lt.check::<T>(&case, &mut random, &mut worst);
            count += 1;
        }
    }
    // Several algorithms of one product, and a batch.
    for (epilogue, operations) in [(Epilogue::Bias, OPERATIONS[0]), (Epilogue::GeluBias, OPERATIONS[1])] {
        let (shape, scales) = ([70, 45, 51], SCALES[0]);
        let case = Case {
            shape,
            operations,
            scales,
            epilogue,
            batch: 1,
            algorithms: 6,
        };
        lt.check::<T>(&case, &mut random, &mut worst);
        lt.check::<T>(
            &Case {
                batch: 3,
                algorithms: 1,
                ..case
            },
            &mut random,
            &mut worst,
        );
    }
    worst.report(name);
}

#[test]
fn matmul_f32() {
    inside("matmul_f32", LIBRARY, || all_epilogues::<f32>("hipBLASLt f32"));
}

#[test]
fn matmul_f16() {
    inside("matmul_f16", LIBRARY, || {
        all_epilogues::<f16>("hipBLASLt f16, sums in f32")
    });
}

#[test]
fn matmul_bf16() {
    inside("matmul_bf16", LIBRARY, || {
        all_epilogues::<bf16>("hipBLASLt bf16, sums in f32")
    });
}
