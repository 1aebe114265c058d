//! Sparse products, a solve and a conversion by the real rocSPARSE on an emulated gfx90a, against references in f64.
//!
//! What is allowed: for a sum of k products, k + 4 roundings of the type on the sum of the products' magnitudes; for a
//! triangular solve ten times that. Conversions are exact.

mod library;
use library::{Element, Random, Rocm, Worst, inside};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

const LIBRARY: &str = "librocsparse.so.1";
const NONE: c_int = 111;
const TRANSPOSED: c_int = 112;
const NUMERIC: c_int = 1;
const ZERO_BASED: c_int = 0;

type Object = *mut c_void;
type Create = unsafe extern "C" fn(*mut Object) -> c_int;
type Place = *mut c_void;

/// rocSPARSE's names of a type's functions begin with its letter.
trait Typed: Element {
    const LETTER: char;
}
impl Typed for f32 {
    const LETTER: char = 's';
}
impl Typed for f64 {
    const LETTER: char = 'd';
}

/// A matrix by rows: where each begins, the columns of its entries, their values.
struct Rows<T> {
    columns: usize,
    starts: Vec<i32>,
    indices: Vec<i32>,
    values: Vec<T>,
}

impl<T: Element> Rows<T> {
    /// Rows of unlike lengths, some empty, at random columns in order.
    fn new(rows: usize, columns: usize, random: &mut Random) -> Rows<T> {
        let mut matrix = Rows {
            columns,
            starts: vec![0],
            indices: Vec::new(),
            values: Vec::new(),
        };
        for row in 0..rows {
            let share = [0, 3, 12, 40][row % 4];
            for column in 0..columns {
                if random.whole::<f64>(50).abs() < f64::from(share) {
                    matrix.indices.push(column as i32);
                    matrix.values.push(random.real());
                }
            }
            matrix.starts.push(matrix.indices.len() as i32);
        }
        matrix
    }

    /// A lower triangle with a strong diagonal.
    fn lower(rows: usize, random: &mut Random) -> Rows<T> {
        let mut matrix = Rows {
            columns: rows,
            starts: vec![0],
            indices: Vec::new(),
            values: Vec::new(),
        };
        for row in 0..rows {
            for column in 0..=row {
                let near = column == row || random.whole::<f64>(20).abs() < 3.0;
                if near {
                    let value = random.real::<f64>() * 0.25;
                    matrix.indices.push(column as i32);
                    matrix
                        .values
                        .push(T::of(if column == row { 4.0 + value } else { value }));
                }
            }
            matrix.starts.push(matrix.indices.len() as i32);
        }
        matrix
    }

    fn rows(&self) -> usize {
        self.starts.len() - 1
    }

    fn entries(&self) -> impl Iterator<Item = (usize, usize, f64)> + '_ {
        (0..self.rows()).flat_map(move |row| {
            let range = self.starts[row] as usize..self.starts[row + 1] as usize;
            range.map(move |at| (row, self.indices[at] as usize, self.values[at].value()))
        })
    }

    /// For each row of op(A) · x the sum, the sum of magnitudes and the number of products.
    fn apply(&self, transposed: bool, x: impl Fn(usize) -> f64) -> Vec<(f64, f64, usize)> {
        let mut sums = vec![(0.0, 0.0, 0); if transposed { self.columns } else { self.rows() }];
        for (row, column, value) in self.entries() {
            let (to, from) = if transposed { (column, row) } else { (row, column) };
            let product = value * x(from);
            sums[to] = (sums[to].0 + product, sums[to].1 + product.abs(), sums[to].2 + 1);
        }
        sums
    }
}

struct Sparse {
    rocm: Rocm,
    handle: Object,
    description: Object,
}

impl Sparse {
    fn open() -> Sparse {
        let rocm = Rocm::open(LIBRARY);
        let make = |name: &str| {
            let create: Create = rocm.symbol(name);
            let mut object = null_mut();
            // SAFETY: a place for the result.
            assert_eq!(unsafe { create(&mut object) }, 0, "{name}");
            object
        };
        let (handle, description) = (make("rocsparse_create_handle"), make("rocsparse_create_mat_descr"));
        Sparse {
            rocm,
            handle,
            description,
        }
    }

    fn named<T: Typed, F: Copy>(&self, name: &str) -> F {
        self.rocm.symbol(&format!("rocsparse_{}{name}", T::LETTER))
    }
}

type Csrmv<T> = unsafe extern "C" fn(
    Object,
    c_int,
    c_int,
    c_int,
    c_int,
    *const T,
    Object,
    Place,
    Place,
    Place,
    Object,
    Place,
    *const T,
    Place,
) -> c_int;
type Csrmm<T> = unsafe extern "C" fn(
    Object,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const T,
    Object,
    Place,
    Place,
    Place,
    Place,
    c_int,
    *const T,
    Place,
    c_int,
) -> c_int;
type TransposeSize = unsafe extern "C" fn(Object, c_int, c_int, c_int, Place, Place, c_int, *mut usize) -> c_int;
type Transpose = unsafe extern "C" fn(
    Object,
    c_int,
    c_int,
    c_int,
    Place,
    Place,
    Place,
    Place,
    Place,
    Place,
    c_int,
    c_int,
    Place,
) -> c_int;
type SolveSize =
    unsafe extern "C" fn(Object, c_int, c_int, c_int, Object, Place, Place, Place, Object, *mut usize) -> c_int;
type Analyse = unsafe extern "C" fn(
    Object,
    c_int,
    c_int,
    c_int,
    Object,
    Place,
    Place,
    Place,
    Object,
    c_int,
    c_int,
    Place,
) -> c_int;
type Solve<T> = unsafe extern "C" fn(
    Object,
    c_int,
    c_int,
    c_int,
    *const T,
    Object,
    Place,
    Place,
    Place,
    Object,
    Place,
    Place,
    c_int,
    Place,
) -> c_int;

fn allowed<T: Element>(size: f64, count: usize) -> f64 {
    2.0 * T::HALF_ULP * (count + 4) as f64 * size
}

fn products<T: Typed>(sparse: &Sparse, random: &mut Random) {
    let (alpha, beta) = (T::of(1.5), T::of(-0.5));
    let mut worst = Worst::default();
    let matrix_vector: Csrmv<T> = sparse.named::<T, _>("csrmv");
    let matrix_matrix: Csrmm<T> = sparse.named::<T, _>("csrmm");
    for (rows, columns) in [(1, 1), (7, 5), (64, 64), (130, 77), (33, 300)] {
        let a: Rows<T> = Rows::new(rows, columns, random);
        let count = a.values.len() as c_int;
        let (m, n) = (rows as c_int, columns as c_int);
        let rocm = &sparse.rocm;
        let (values, starts, indices) = (rocm.upload(&a.values), rocm.upload(&a.starts), rocm.upload(&a.indices));
        for (operation, transposed) in [(NONE, false), (TRANSPOSED, true)] {
            let (long, wide) = if transposed { (columns, rows) } else { (rows, columns) };
            let (x, y): (Vec<T>, Vec<T>) = (random.reals(wide), random.reals(long));
            let (dx, dy) = (rocm.upload(&x), rocm.upload(&y));
            // SAFETY: device buffers of the sizes that the function asks for.
            let status = unsafe {
                matrix_vector(
                    sparse.handle,
                    operation,
                    m,
                    n,
                    count,
                    &alpha,
                    sparse.description,
                    values.0,
                    starts.0,
                    indices.0,
                    null_mut(),
                    dx.0,
                    &beta,
                    dy.0,
                )
            };
            assert_eq!(status, 0, "csrmv {rows} {columns}");
            let sums = a.apply(transposed, |i| x[i].value());
            for (row, (got, (sum, size, k))) in dy.download::<T>(long).iter().zip(sums).enumerate() {
                let want = 1.5 * sum - 0.5 * y[row].value();
                let limit = allowed::<T>(1.5 * size + 0.5 * y[row].value().abs(), k);
                worst.check(got.value(), want, limit, || {
                    format!("csrmv {rows} x {columns} {transposed}, row {row}")
                });
            }
        }
        // A product with a dense matrix in column order.
        for side in [1, 8, 19] {
            let (b, c): (Vec<T>, Vec<T>) = (random.reals(columns * side), random.reals(rows * side));
            let (db, dc) = (rocm.upload(&b), rocm.upload(&c));
            // SAFETY: as above.
            let status = unsafe {
                matrix_matrix(
                    sparse.handle,
                    NONE,
                    NONE,
                    m,
                    side as c_int,
                    n,
                    count,
                    &alpha,
                    sparse.description,
                    values.0,
                    starts.0,
                    indices.0,
                    db.0,
                    n,
                    &beta,
                    dc.0,
                    m,
                )
            };
            assert_eq!(status, 0, "csrmm {rows} {columns} {side}");
            let got: Vec<T> = dc.download(rows * side);
            for column in 0..side {
                let sums = a.apply(false, |i| b[column * columns + i].value());
                for (row, (sum, size, k)) in sums.into_iter().enumerate() {
                    let old = c[column * rows + row].value();
                    let limit = allowed::<T>(1.5 * size + 0.5 * old.abs(), k);
                    let place = || format!("csrmm {rows} x {columns} x {side}, ({row}, {column})");
                    worst.check(got[column * rows + row].value(), 1.5 * sum - 0.5 * old, limit, place);
                }
            }
        }
    }
    worst.report("products");
}

fn conversion<T: Typed>(sparse: &Sparse, random: &mut Random) {
    let rocm = &sparse.rocm;
    let size: TransposeSize = rocm.symbol("rocsparse_csr2csc_buffer_size");
    let convert: Transpose = sparse.named::<T, _>("csr2csc");
    let a: Rows<T> = Rows::new(90, 130, random);
    let (m, n, count) = (90, 130, a.values.len());
    let (values, starts, indices) = (rocm.upload(&a.values), rocm.upload(&a.starts), rocm.upload(&a.indices));
    let mut bytes = 0;
    let nnz = count as c_int;
    // SAFETY: device buffers of the sizes that the function asks for, and a place for the result.
    let status = unsafe { size(sparse.handle, m, n, nnz, starts.0, indices.0, NUMERIC, &mut bytes) };
    assert_eq!(status, 0);
    let work = rocm.empty(bytes);
    let (to_values, to_rows) = (rocm.empty(count * size_of::<T>()), rocm.empty(4 * count));
    let to_starts = rocm.empty(4 * (n as usize + 1));
    // SAFETY: as above.
    let status = unsafe {
        convert(
            sparse.handle,
            m,
            n,
            nnz,
            values.0,
            starts.0,
            indices.0,
            to_values.0,
            to_rows.0,
            to_starts.0,
            NUMERIC,
            ZERO_BASED,
            work.0,
        )
    };
    assert_eq!(status, 0);
    let mut want: Vec<(usize, usize, f64)> = a.entries().map(|(row, column, value)| (column, row, value)).collect();
    want.sort_by_key(|(column, row, _)| (*column, *row));
    let (rows, got) = (to_rows.download::<i32>(count), to_values.download::<T>(count));
    let starts: Vec<i32> = to_starts.download(n as usize + 1);
    for (at, (column, row, value)) in want.iter().enumerate() {
        assert_eq!((rows[at] as usize, got[at].value()), (*row, *value), "entry {at}");
        assert!(
            (starts[*column]..starts[column + 1]).contains(&(at as i32)),
            "entry {at} of column {column}"
        );
    }
}

fn solve<T: Typed>(sparse: &Sparse, random: &mut Random) {
    let rocm = &sparse.rocm;
    let set: unsafe extern "C" fn(Object, c_int) -> c_int = rocm.symbol("rocsparse_set_mat_fill_mode");
    let create: Create = rocm.symbol("rocsparse_create_mat_info");
    let (size, analyse): (SolveSize, Analyse) = (
        sparse.named::<T, _>("csrsv_buffer_size"),
        sparse.named::<T, _>("csrsv_analysis"),
    );
    let solve: Solve<T> = sparse.named::<T, _>("csrsv_solve");
    let rows = 100;
    let a: Rows<T> = Rows::lower(rows, random);
    let (m, count) = (rows as c_int, a.values.len() as c_int);
    let (values, starts, indices) = (rocm.upload(&a.values), rocm.upload(&a.starts), rocm.upload(&a.indices));
    let x: Vec<T> = random.reals(rows);
    let (dx, dy) = (rocm.upload(&x), rocm.empty(rows * size_of::<T>()));
    let (mut info, mut bytes, alpha) = (null_mut(), 0, T::of(2.0));
    let (handle, descr) = (sparse.handle, sparse.description);
    // SAFETY: live objects, and device buffers of the sizes that the functions ask for.
    let work = unsafe {
        assert_eq!(set(descr, 0), 0);
        assert_eq!(create(&mut info), 0);
        let status = size(
            handle, NONE, m, count, descr, values.0, starts.0, indices.0, info, &mut bytes,
        );
        assert_eq!(status, 0);
        let work = rocm.empty(bytes);
        let status = analyse(
            handle, NONE, m, count, descr, values.0, starts.0, indices.0, info, 0, 0, work.0,
        );
        assert_eq!(status, 0);
        let status = solve(
            handle, NONE, m, count, &alpha, descr, values.0, starts.0, indices.0, info, dx.0, dy.0, 0, work.0,
        );
        assert_eq!(status, 0);
        work
    };
    let got: Vec<T> = dy.download(rows);
    drop(work);
    let mut worst = Worst::default();
    // What came out, multiplied again.
    for (row, (sum, magnitude, k)) in a.apply(false, |i| got[i].value()).into_iter().enumerate() {
        let want = 2.0 * x[row].value();
        let limit = 10.0 * allowed::<T>(magnitude + want.abs(), k);
        worst.check(sum, want, limit, || format!("csrsv, row {row}"));
    }
    worst.report("csrsv");
}

#[test]
fn products_conversion_and_solve() {
    inside("products_conversion_and_solve", LIBRARY, || {
        let sparse = Sparse::open();
        let mut random = Random::new(5);
        products::<f32>(&sparse, &mut random);
        products::<f64>(&sparse, &mut random);
        conversion::<f32>(&sparse, &mut random);
        conversion::<f64>(&sparse, &mut random);
        solve::<f64>(&sparse, &mut random);
        solve::<f32>(&sparse, &mut random);
    });
}
