//! Fourier transforms by the real rocFFT on an emulated gfx90a, against sums in f64.
//!
//! What is allowed: eps · (2 + log2(length)) · the root of the summed squares of a transform's input, eps the type's,
//! since the error of a fast transform grows with the logarithm of its length; and 4 · 2^-53 · the root of the length
//! times the same root for the reference, whose sums are plain ones.

mod library;
use library::{Element, Random, Rocm, Worst, inside};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

const LIBRARY: &str = "librocfft.so.0";
const FORWARD: c_int = 0;
const INVERSE: c_int = 1;
const REAL_FORWARD: c_int = 2;
const REAL_INVERSE: c_int = 3;
const OUT_OF_PLACE: c_int = 1;

type Object = *mut c_void;
type CreatePlan =
    unsafe extern "C" fn(*mut Object, c_int, c_int, c_int, usize, *const usize, usize, *const c_void) -> c_int;
type WorkSize = unsafe extern "C" fn(Object, *mut usize) -> c_int;
type CreateInfo = unsafe extern "C" fn(*mut Object) -> c_int;
type SetWork = unsafe extern "C" fn(Object, *mut c_void, usize) -> c_int;
type Execute = unsafe extern "C" fn(Object, *mut *mut c_void, *mut *mut c_void, Object) -> c_int;
type Destroy = unsafe extern "C" fn(Object) -> c_int;
type Plain = unsafe extern "C" fn() -> c_int;

/// A precision with rocFFT's number.
trait Typed: Element {
    const PRECISION: c_int;
}
impl Typed for f32 {
    const PRECISION: c_int = 0;
}
impl Typed for f64 {
    const PRECISION: c_int = 1;
}

/// Runs a transform of `lengths` (the first is the innermost) and gives `count` numbers of its result.
fn transform<T: Typed>(rocm: &Rocm, kind: c_int, lengths: &[usize], batch: usize, input: &[T], count: usize) -> Vec<T> {
    let create: CreatePlan = rocm.symbol("rocfft_plan_create");
    let work_size: WorkSize = rocm.symbol("rocfft_plan_get_work_buffer_size");
    let create_info: CreateInfo = rocm.symbol("rocfft_execution_info_create");
    let set_work: SetWork = rocm.symbol("rocfft_execution_info_set_work_buffer");
    let execute: Execute = rocm.symbol("rocfft_execute");
    let destroy_plan: Destroy = rocm.symbol("rocfft_plan_destroy");
    let destroy_info: Destroy = rocm.symbol("rocfft_execution_info_destroy");
    let (mut plan, mut info) = (null_mut(), null_mut());
    let (dimensions, lengths) = (lengths.len(), lengths.as_ptr());
    // SAFETY: places for the results and a list with a length for each dimension.
    unsafe {
        let status = create(
            &mut plan,
            OUT_OF_PLACE,
            kind,
            T::PRECISION,
            dimensions,
            lengths,
            batch,
            null(),
        );
        assert_eq!(status, 0);
        assert_eq!(create_info(&mut info), 0);
    }
    let mut bytes = 0;
    // SAFETY: a live plan and a place for the result.
    assert_eq!(unsafe { work_size(plan, &mut bytes) }, 0);
    let work = rocm.empty(bytes);
    let (from, to) = (rocm.upload(input), rocm.empty(count * size_of::<T>()));
    let (mut from, mut target) = (from.0, to.0);
    // SAFETY: live objects; buffers of the sizes that the plan asks for, one for each side.
    unsafe {
        if bytes > 0 {
            assert_eq!(set_work(info, work.0, bytes), 0);
        }
        assert_eq!(execute(plan, &mut from, &mut target, info), 0);
    }
    let result = to.download(count);
    // SAFETY: each is destroyed once, after its work is done.
    unsafe {
        assert_eq!(destroy_plan(plan), 0);
        assert_eq!(destroy_info(info), 0);
    }
    result
}

/// The transform of complex numbers along one axis, by its definition.
fn along(values: &mut [(f64, f64)], length: usize, stride: usize, sign: f64) {
    let turn: Vec<(f64, f64)> = (0..length)
        .map(|i| (sign * std::f64::consts::TAU * i as f64 / length as f64).sin_cos())
        .map(|(sin, cos)| (cos, sin))
        .collect();
    for first in (0..values.len()).filter(|first| (first / stride).is_multiple_of(length)) {
        let line: Vec<(f64, f64)> = (0..length).map(|i| values[first + i * stride]).collect();
        for k in 0..length {
            let sum = line.iter().enumerate().fold((0.0, 0.0), |sum, (i, x)| {
                let (cos, sin) = turn[i * k % length];
                (sum.0 + x.0 * cos - x.1 * sin, sum.1 + x.0 * sin + x.1 * cos)
            });
            values[first + k * stride] = sum;
        }
    }
}

fn reference(values: &mut [(f64, f64)], lengths: &[usize], sign: f64) {
    let mut stride = 1;
    for length in lengths {
        along(values, *length, stride, sign);
        stride *= length;
    }
}

fn check<T: Typed>(worst: &mut Worst, got: &[T], want: &[(f64, f64)], points: usize, norm: f64, place: &str) {
    let own = 4.0 * f64::EPSILON / 2.0 * (points as f64).sqrt() * norm;
    let allowed = own + 2.0 * T::HALF_ULP * (2.0 + (points as f64).log2()) * norm;
    for (index, (pair, want)) in got.chunks_exact(2).zip(want).enumerate() {
        worst.check(pair[0].value(), want.0, allowed, || format!("{place} real {index}"));
        worst.check(pair[1].value(), want.1, allowed, || {
            format!("{place} imaginary {index}")
        });
    }
}

fn norm(values: &[(f64, f64)], batch: usize) -> f64 {
    let lines = values.chunks_exact(values.len() / batch);
    let square = |line: &[(f64, f64)]| line.iter().map(|x| x.0 * x.0 + x.1 * x.1).sum::<f64>();
    lines.map(square).fold(0.0, f64::max).sqrt()
}

fn complex<T: Typed>(rocm: &Rocm, random: &mut Random, lengths: &[usize], batch: usize, worst: &mut Worst) {
    let points: usize = lengths.iter().product();
    let input: Vec<T> = random.reals(2 * points * batch);
    let pairs: Vec<(f64, f64)> = input.chunks_exact(2).map(|x| (x[0].value(), x[1].value())).collect();
    for (kind, sign) in [(FORWARD, -1.0), (INVERSE, 1.0)] {
        let got = transform(rocm, kind, lengths, batch, &input, input.len());
        let mut want = pairs.clone();
        want.chunks_exact_mut(points)
            .for_each(|line| reference(line, lengths, sign));
        let place = format!("{lengths:?} x {batch}, sign {sign}");
        check(worst, &got, &want, points, norm(&pairs, batch), &place);
    }
}

fn real<T: Typed>(rocm: &Rocm, random: &mut Random, length: usize, batch: usize, worst: &mut Worst) {
    let input: Vec<T> = random.reals(length * batch);
    let half = length / 2 + 1;
    let got = transform(rocm, REAL_FORWARD, &[length], batch, &input, 2 * half * batch);
    let pairs: Vec<(f64, f64)> = input.iter().map(|x| (x.value(), 0.0)).collect();
    let mut spectra = Vec::new();
    for line in pairs.chunks_exact(length) {
        let mut line = line.to_vec();
        reference(&mut line, &[length], -1.0);
        spectra.extend_from_slice(&line[..half]);
    }
    let place = format!("real {length} x {batch}");
    check(worst, &got, &spectra, length, norm(&pairs, batch), &place);
    // Back again: the inverse is not scaled.
    let back = transform(rocm, REAL_INVERSE, &[length], batch, &got, length * batch);
    let allowed = 4.0 * T::HALF_ULP * (2.0 + (length as f64).log2()) * norm(&pairs, batch) * (length as f64).sqrt();
    for (index, (got, want)) in back.iter().zip(&input).enumerate() {
        let want = want.value() * length as f64;
        worst.check(got.value(), want, allowed, || format!("{place} back {index}"));
    }
}

fn all<T: Typed>(rocm: &Rocm, random: &mut Random, lengths: &[usize], name: &str) {
    let mut worst = Worst::default();
    for length in lengths.iter().copied() {
        complex::<T>(rocm, random, &[length], 3, &mut worst);
    }
    // Several kernels for one line, and several axes.
    complex::<T>(rocm, random, &[8192], 1, &mut worst);
    complex::<T>(rocm, random, &[16, 12], 2, &mut worst);
    complex::<T>(rocm, random, &[8, 6, 10], 1, &mut worst);
    for length in [30, 81, 128] {
        real::<T>(rocm, random, length, 2, &mut worst);
    }
    worst.report(name);
}

#[test]
fn transforms() {
    inside("transforms", LIBRARY, || {
        let rocm = Rocm::open(LIBRARY);
        let (setup, cleanup): (Plain, Plain) = (rocm.symbol("rocfft_setup"), rocm.symbol("rocfft_cleanup"));
        // SAFETY: no arguments; the library is loaded.
        assert_eq!(unsafe { setup() }, 0);
        let mut random = Random::new(11);
        // Powers of two, three, five and seven, products of them, and primes (Bluestein's way).
        all::<f32>(&rocm, &mut random, &[2, 3, 8, 25, 30, 49, 64, 121, 17, 97, 1000], "f32");
        all::<f64>(&rocm, &mut random, &[16, 30, 97, 121, 256], "f64");
        // SAFETY: nothing of the library is alive.
        assert_eq!(unsafe { cleanup() }, 0);
    });
}
