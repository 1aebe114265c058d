//! The real MIOpen on an emulated gfx90a, against references in f64.
//!
//! MIOpen compiles its kernels with hiprtc (those in OpenCL C with comgr) when they are first asked for and takes
//! products from rocBLAS. What is allowed: for a convolution's sum of k products, k + 4 roundings of f32 on the sum of
//! their magnitudes and one of the result's type; elsewhere a few roundings, stated there.

mod library;
use half::f16;
use library::{Buffer, Element, Random, Rocm, Worst, inside};
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

const LIBRARY: &str = "libMIOpen.so.1";
const OK: c_int = 0;

type Object = *mut c_void;

/// An element with `miopenDataType_t`'s number.
trait Typed: Element {
    const TYPE: c_int;
}

impl Typed for f16 {
    const TYPE: c_int = 0;
}
impl Typed for f32 {
    const TYPE: c_int = 1;
}

/// `miopenConvSolution_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Solution {
    time: f32,
    workspace: usize,
    id: u64,
    algorithm: c_int,
}

/// `miopenConvAlgoPerf_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    algorithm: c_int,
    time: f32,
    memory: usize,
}

/// MIOpen with one handle.
struct Miopen {
    rocm: Rocm,
    handle: Object,
}

/// What kernels that MIOpen compiles include from the C++ library, which the sysroot does not have.
const TYPE_TRAITS: &str = "#pragma once
namespace std {
template <class T, T v> struct integral_constant {
  static constexpr T value = v; typedef T value_type; typedef integral_constant type; constexpr operator T() const { return v; }
};
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T&> { typedef T type; };
template <class T> struct remove_reference<T&&> { typedef T type; };
template <class T> struct remove_const { typedef T type; };
template <class T> struct remove_const<const T> { typedef T type; };
template <class T> struct remove_volatile { typedef T type; };
template <class T> struct remove_volatile<volatile T> { typedef T type; };
template <class T> struct remove_cv { typedef typename remove_const<typename remove_volatile<T>::type>::type type; };
template <class T, class U> struct is_same : false_type {};
template <class T> struct is_same<T, T> : true_type {};
template <bool b, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool b, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
}
";

/// Sets what MIOpen and the stand-in read when they are first called.
fn environment() {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("miopen");
    let headers = cache.join("include");
    std::fs::create_dir_all(&headers).expect("a folder");
    std::fs::write(headers.join("type_traits"), TYPE_TRAITS).expect("written");
    // Compiled kernels stay; what was found is found anew in each process.
    let found = std::env::var(library::INSIDE).expect("runs inside the sysroot");
    let variables = [
        ("MIOPEN_CUSTOM_CACHE_DIR", cache.join("kernels").display().to_string()),
        ("MIOPEN_USER_DB_PATH", found),
        ("CPLUS_INCLUDE_PATH", headers.display().to_string()),
        // Debian builds MIOpen without its kernels in assembly but with the solvers that use them.
        ("MIOPEN_DEBUG_GCN_ASM_KERNELS", "0".into()),
        // This solver wants rocRAND's headers, which the sysroot does not have.
        ("MIOPEN_DEBUG_ATTN_SOFTMAX", "0".into()),
        // Every solver is tried.
        ("MIOPEN_FIND_MODE", "1".into()),
        ("MIOPEN_LOG_LEVEL", "4".into()),
        // The tiled kernels read past the end of LDS what they then do not use.
        ("GRAPHC_EMU_CHECKS", "no-lds-bounds".into()),
    ];
    for (name, value) in variables {
        // SAFETY: this process runs one test, and nothing else reads the environment yet.
        unsafe { std::env::set_var(name, value) };
    }
}

impl Miopen {
    fn open() -> Miopen {
        environment();
        let rocm = Rocm::open(LIBRARY);
        let mut handle = null_mut();
        let create: unsafe extern "C" fn(*mut Object) -> c_int = rocm.symbol("miopenCreate");
        // SAFETY: a place for the result.
        assert_eq!(unsafe { create(&mut handle) }, OK);
        Miopen { rocm, handle }
    }

    /// A new descriptor.
    fn create(&self, what: &str) -> Object {
        let mut object = null_mut();
        let create: unsafe extern "C" fn(*mut Object) -> c_int = self.rocm.symbol(&format!("miopenCreate{what}"));
        // SAFETY: a place for the result.
        assert_eq!(unsafe { create(&mut object) }, OK, "miopenCreate{what}");
        object
    }

    fn tensor<T: Typed>(&self, size: [usize; 4]) -> Object {
        let object = self.create("TensorDescriptor");
        let set: unsafe extern "C" fn(Object, c_int, c_int, c_int, c_int, c_int) -> c_int =
            self.rocm.symbol("miopenSet4dTensorDescriptor");
        let [n, c, h, w] = size.map(|size| size as c_int);
        // SAFETY: a descriptor that was just made.
        assert_eq!(unsafe { set(object, T::TYPE, n, c, h, w) }, OK);
        object
    }
}

/// A convolution over two spatial axes.
#[derive(Clone, Copy, Debug)]
struct Shape {
    n: usize,
    /// Channels in and out.
    c: usize,
    k: usize,
    /// Of the input, and of the kernel.
    size: [usize; 2],
    kernel: [usize; 2],
    pad: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
}

const fn shape(n: usize, c: usize, k: usize, size: [usize; 2], kernel: [usize; 2]) -> Shape {
    Shape {
        n,
        c,
        k,
        size,
        kernel,
        pad: 0,
        stride: 1,
        dilation: 1,
        groups: 1,
    }
}

impl Shape {
    const fn with(self, pad: usize, stride: usize, dilation: usize, groups: usize) -> Shape {
        Shape {
            pad,
            stride,
            dilation,
            groups,
            ..self
        }
    }

    fn output(&self) -> [usize; 2] {
        std::array::from_fn(|axis| {
            let reach = self.dilation * (self.kernel[axis] - 1) + 1;
            (self.size[axis] + 2 * self.pad - reach) / self.stride + 1
        })
    }
}

/// Pointwise, square and oblong kernels; padded, strided, dilated; grouped and depthwise; odd sizes.
const SHAPES: [Shape; 15] = [
    shape(1, 8, 8, [8, 8], [1, 1]),
    shape(2, 16, 24, [7, 7], [1, 1]),
    shape(1, 8, 16, [9, 9], [1, 1]).with(0, 2, 1, 1),
    shape(1, 16, 8, [6, 6], [1, 1]).with(0, 1, 1, 2),
    shape(1, 4, 8, [8, 8], [3, 3]).with(1, 1, 1, 1),
    shape(2, 3, 5, [15, 13], [3, 3]).with(1, 1, 1, 1),
    shape(1, 8, 8, [12, 12], [3, 3]).with(1, 2, 1, 1),
    shape(1, 4, 6, [11, 9], [3, 3]).with(2, 1, 2, 1),
    shape(1, 4, 4, [10, 10], [5, 5]).with(2, 1, 1, 1),
    shape(1, 3, 7, [13, 17], [5, 5]).with(0, 2, 1, 1),
    shape(1, 3, 8, [16, 16], [7, 7]).with(3, 2, 1, 1),
    shape(1, 8, 8, [8, 8], [3, 3]).with(1, 1, 1, 8),
    shape(2, 6, 6, [9, 7], [3, 3]).with(1, 2, 1, 6),
    shape(1, 8, 12, [8, 8], [3, 3]).with(1, 1, 1, 4),
    shape(1, 5, 3, [7, 11], [3, 5]).with(1, 1, 1, 1),
];

/// A convolution with its data on the device, and its reference.
struct Problem<'a, T> {
    miopen: &'a Miopen,
    shape: Shape,
    x: (Object, Buffer<'a>),
    w: (Object, Buffer<'a>),
    y: (Object, Buffer<'a>),
    descriptor: Object,
    /// Each sum with the sum of its products' magnitudes.
    want: Vec<(f64, f64)>,
    values: std::marker::PhantomData<T>,
}

impl<'a, T: Typed> Problem<'a, T> {
    fn new(miopen: &'a Miopen, shape: Shape) -> Problem<'a, T> {
        let Shape { n, c, k, groups, .. } = shape;
        let [height, width] = shape.size;
        let [rows, columns] = shape.kernel;
        let [out_height, out_width] = shape.output();
        let mut random = Random::new((n * 7 + c * 131 + k * 17 + height * 3 + rows) as u64);
        let x: Vec<T> = random.reals(n * c * height * width);
        let w: Vec<T> = random.reals(k * (c / groups) * rows * columns);
        let mut want = Vec::with_capacity(n * k * out_height * out_width);
        for image in 0..n {
            for filter in 0..k {
                for at in 0..out_height * out_width {
                    let (mut sum, mut size) = (0f64, 0f64);
                    for channel in 0..c / groups {
                        let from = filter / (k / groups) * (c / groups) + channel;
                        for tap in 0..rows * columns {
                            let row = at / out_width * shape.stride + tap / columns * shape.dilation;
                            let column = at % out_width * shape.stride + tap % columns * shape.dilation;
                            let (Some(row), Some(column)) = (row.checked_sub(shape.pad), column.checked_sub(shape.pad))
                            else {
                                continue;
                            };
                            if row < height && column < width {
                                let product = x[((image * c + from) * height + row) * width + column].value()
                                    * w[(filter * (c / groups) + channel) * rows * columns + tap].value();
                                sum += product;
                                size += product.abs();
                            }
                        }
                    }
                    want.push((sum, size));
                }
            }
        }
        let rocm = &miopen.rocm;
        let descriptor = miopen.create("ConvolutionDescriptor");
        let init: unsafe extern "C" fn(Object, c_int, c_int, c_int, c_int, c_int, c_int, c_int) -> c_int =
            rocm.symbol("miopenInitConvolutionDescriptor");
        let group: unsafe extern "C" fn(Object, c_int) -> c_int = rocm.symbol("miopenSetConvolutionGroupCount");
        let [pad, stride, dilation] = [shape.pad, shape.stride, shape.dilation].map(|value| value as c_int);
        // SAFETY: a descriptor that was just made; 0 is a convolution.
        unsafe {
            assert_eq!(init(descriptor, 0, pad, pad, stride, stride, dilation, dilation), OK);
            assert_eq!(group(descriptor, groups as c_int), OK);
        }
        Problem {
            miopen,
            shape,
            x: (miopen.tensor::<T>([n, c, height, width]), rocm.upload(&x)),
            w: (miopen.tensor::<T>([k, c / groups, rows, columns]), rocm.upload(&w)),
            y: (
                miopen.tensor::<T>([n, k, out_height, out_width]),
                rocm.empty(want.len() * size_of::<T>()),
            ),
            descriptor,
            want,
            values: std::marker::PhantomData,
        }
    }

    /// Compares the result and makes the next run begin from other values; `rounding` is that of the sums.
    fn check(&self, worst: &mut Worst, how: &str, rounding: f64) {
        let got: Vec<T> = self.y.1.download(self.want.len());
        let terms = self.shape.c / self.shape.groups * self.shape.kernel[0] * self.shape.kernel[1];
        for (index, (value, (want, size))) in got.iter().zip(&self.want).enumerate() {
            let allowed = (terms as f64 + 4.0) * rounding * size + T::HALF_ULP * want.abs();
            worst.check(value.value(), *want, allowed, || {
                format!("{:?} {how} [{index}]", self.shape)
            });
        }
        let other = self.miopen.rocm.upload(&vec![T::of(77.0); got.len()]);
        // SAFETY: both have the size.
        let status = unsafe {
            let kind = hip_sys::hipMemcpyKind::hipMemcpyDeviceToDevice;
            self.miopen
                .rocm
                .hip
                .hipMemcpy(self.y.1.0, other.0, got.len() * size_of::<T>(), kind)
        };
        assert_eq!(status, hip_sys::hipError_t::hipSuccess);
    }

    /// Runs every solution that MIOpen lists; returns their numbers.
    fn immediate(&self, worst: &mut Worst) -> Vec<u64> {
        let rocm = &self.miopen.rocm;
        let handle = self.miopen.handle;
        let count: unsafe extern "C" fn(Object, Object, Object, Object, Object, *mut usize) -> c_int =
            rocm.symbol("miopenConvolutionForwardGetSolutionCount");
        let list: unsafe extern "C" fn(
            Object,
            Object,
            Object,
            Object,
            Object,
            usize,
            *mut usize,
            *mut Solution,
        ) -> c_int = rocm.symbol("miopenConvolutionForwardGetSolution");
        type Run = unsafe extern "C" fn(
            Object,
            Object,
            Object,
            Object,
            Object,
            Object,
            Object,
            Object,
            Object,
            usize,
            u64,
        ) -> c_int;
        let run: Run = rocm.symbol("miopenConvolutionForwardImmediate");
        let (x, w, y) = (self.x.0, self.w.0, self.y.0);
        let mut number = 0;
        // SAFETY: descriptors of this problem, places for the results.
        let solutions = unsafe {
            assert_eq!(count(handle, w, x, self.descriptor, y, &mut number), OK);
            let mut solutions = vec![Solution::default(); number];
            let capacity = number;
            let status = list(
                handle,
                w,
                x,
                self.descriptor,
                y,
                capacity,
                &mut number,
                solutions.as_mut_ptr(),
            );
            assert_eq!(status, OK);
            solutions.truncate(number);
            solutions
        };
        assert!(!solutions.is_empty(), "{:?}: MIOpen knows no solution", self.shape);
        for solution in &solutions {
            let space = rocm.empty(solution.workspace);
            // SAFETY: buffers of the descriptors' sizes and of the workspace's.
            let status = unsafe {
                run(
                    handle,
                    w,
                    self.w.1.0,
                    x,
                    self.x.1.0,
                    self.descriptor,
                    y,
                    self.y.1.0,
                    space.0,
                    solution.workspace,
                    solution.id,
                )
            };
            assert_eq!(
                status, OK,
                "{:?} solution {} (algorithm {})",
                self.shape, solution.id, solution.algorithm
            );
            self.check(worst, &format!("solution {}", solution.id), f32::HALF_ULP);
        }
        solutions.iter().map(|solution| solution.id).collect()
    }

    /// Lets MIOpen try what it has and runs the algorithms that it found; returns them.
    fn find(&self, worst: &mut Worst) -> Vec<c_int> {
        let rocm = &self.miopen.rocm;
        let handle = self.miopen.handle;
        let size_of_space: unsafe extern "C" fn(Object, Object, Object, Object, Object, *mut usize) -> c_int =
            rocm.symbol("miopenConvolutionForwardGetWorkSpaceSize");
        type Find = unsafe extern "C" fn(
            Object,
            Object,
            Object,
            Object,
            Object,
            Object,
            Object,
            Object,
            c_int,
            *mut c_int,
            *mut Found,
            Object,
            usize,
            bool,
        ) -> c_int;
        let find: Find = rocm.symbol("miopenFindConvolutionForwardAlgorithm");
        type Forward = unsafe extern "C" fn(
            Object,
            *const f32,
            Object,
            Object,
            Object,
            Object,
            Object,
            c_int,
            *const f32,
            Object,
            Object,
            Object,
            usize,
        ) -> c_int;
        let forward: Forward = rocm.symbol("miopenConvolutionForward");
        let (x, w, y) = (self.x.0, self.w.0, self.y.0);
        let mut bytes = 0;
        // SAFETY: descriptors of this problem, a place for the result.
        let status = unsafe { size_of_space(handle, w, x, self.descriptor, y, &mut bytes) };
        assert_eq!(status, OK);
        let space = rocm.empty(bytes);
        let mut found = [Found::default(); 8];
        let mut number = 0;
        // SAFETY: buffers of the descriptors' sizes, places for eight results.
        let status = unsafe {
            find(
                handle,
                x,
                self.x.1.0,
                w,
                self.w.1.0,
                self.descriptor,
                y,
                self.y.1.0,
                8,
                &mut number,
                found.as_mut_ptr(),
                space.0,
                bytes,
                false,
            )
        };
        assert_eq!(status, OK, "{:?}", self.shape);
        let found = &found[..number as usize];
        assert!(!found.is_empty(), "{:?}: MIOpen found nothing", self.shape);
        for algorithm in found {
            let (one, zero) = (1.0f32, 0.0f32);
            // SAFETY: as above.
            let status = unsafe {
                forward(
                    handle,
                    &one,
                    x,
                    self.x.1.0,
                    w,
                    self.w.1.0,
                    self.descriptor,
                    algorithm.algorithm,
                    &zero,
                    y,
                    self.y.1.0,
                    space.0,
                    bytes,
                )
            };
            assert_eq!(status, OK, "{:?} {algorithm:?}", self.shape);
            // The direct kernel for 1x1 in OpenCL sums in the elements' type (`v_fma_mixlo_f16`).
            let rounding = if algorithm.algorithm == 1 {
                T::HALF_ULP
            } else {
                f32::HALF_ULP
            };
            self.check(worst, &format!("algorithm {}", algorithm.algorithm), rounding);
        }
        found.iter().map(|found| found.algorithm).collect()
    }
}

#[test]
fn convolutions_in_immediate_mode() {
    inside("convolutions_in_immediate_mode", LIBRARY, || {
        let miopen = Miopen::open();
        let mut worst = Worst::default();
        let mut solutions: Vec<u64> = Vec::new();
        for shape in SHAPES {
            solutions.extend(Problem::<f32>::new(&miopen, shape).immediate(&mut worst));
        }
        worst.report(&format!("f32, {} shapes, {} runs", SHAPES.len(), solutions.len()));
        let mut worst = Worst::default();
        let mut runs = 0;
        for shape in SHAPES.iter().step_by(2) {
            let more = Problem::<f16>::new(&miopen, *shape).immediate(&mut worst);
            runs += more.len();
            solutions.extend(more);
        }
        worst.report(&format!("f16, {} shapes, {runs} runs", SHAPES.len().div_ceil(2)));
        solutions.sort_unstable();
        solutions.dedup();
        println!("solutions that ran: {solutions:?}");
        assert!(solutions.len() >= 2, "{solutions:?}");
    });
}

#[test]
fn convolutions_in_find_mode() {
    inside("convolutions_in_find_mode", LIBRARY, || {
        let miopen = Miopen::open();
        let mut worst = Worst::default();
        let mut algorithms: Vec<c_int> = Vec::new();
        for shape in SHAPES {
            algorithms.extend(Problem::<f32>::new(&miopen, shape).find(&mut worst));
        }
        worst.report(&format!("f32, {} shapes, {} runs", SHAPES.len(), algorithms.len()));
        let (mut worst, mut runs) = (Worst::default(), 0);
        for shape in SHAPES.iter().step_by(4) {
            let more = Problem::<f16>::new(&miopen, *shape).find(&mut worst);
            runs += more.len();
            algorithms.extend(more);
        }
        worst.report(&format!("f16, {} shapes, {runs} runs", SHAPES.len().div_ceil(4)));
        algorithms.sort_unstable();
        algorithms.dedup();
        // GEMM, direct, and implicit GEMM.
        println!("algorithms that were found: {algorithms:?}");
        assert!(algorithms.len() >= 3, "{algorithms:?}");
    });
}

const SIZE: [usize; 4] = [2, 5, 9, 7];

/// Calls `run` with a tensor of [`SIZE`] and checks what comes out.
fn elementwise<T: Typed>(
    miopen: &Miopen,
    worst: &mut Worst,
    name: &str,
    run: impl Fn(Object, Object, Object, Object) -> c_int,
    want: impl Fn(&[f64]) -> Vec<(f64, f64)>,
) {
    let count = SIZE.iter().product();
    let x: Vec<T> = Random::new(9)
        .reals::<T>(count)
        .iter()
        .map(|value| T::of(4.0 * value.value()))
        .collect();
    let (px, py) = (miopen.rocm.upload(&x), miopen.rocm.empty(count * size_of::<T>()));
    let descriptor = miopen.tensor::<T>(SIZE);
    assert_eq!(run(descriptor, px.0, descriptor, py.0), OK, "{name}");
    let values: Vec<f64> = x.iter().map(|value| value.value()).collect();
    let got: Vec<T> = py.download(count);
    for (index, (value, (want, allowed))) in got.iter().zip(want(&values)).enumerate() {
        let allowed = allowed + T::HALF_ULP * want.abs();
        worst.check(value.value(), want, allowed, || format!("{name} [{index}]"));
    }
}

#[test]
fn softmax_and_activations() {
    inside("softmax_and_activations", LIBRARY, || {
        let miopen = Miopen::open();
        let handle = miopen.handle;
        let mut worst = Worst::default();
        type Softmax =
            unsafe extern "C" fn(Object, *const f32, Object, Object, *const f32, Object, Object, c_int, c_int) -> c_int;
        let softmax: Softmax = miopen.rocm.symbol("miopenSoftmaxForward_V2");
        let (one, zero) = (1.0f32, 0.0f32);
        let plane = SIZE[2] * SIZE[3];
        // Fast, accurate and logarithmic; over all of an image, or over its channels.
        for algorithm in 0..3 {
            for mode in 0..2 {
                let want = |x: &[f64]| -> Vec<(f64, f64)> {
                    let group = |index: usize| -> Vec<usize> {
                        let image = index / (SIZE[1] * plane) * SIZE[1] * plane;
                        match mode {
                            0 => (image..image + SIZE[1] * plane).collect(),
                            _ => (0..SIZE[1])
                                .map(|channel| image + channel * plane + index % plane)
                                .collect(),
                        }
                    };
                    (0..x.len())
                        .map(|index| {
                            let group = group(index);
                            let sum: f64 = group.iter().map(|other| (x[*other] - x[index]).exp()).sum();
                            // Exponentials and a sum of f32.
                            let roundings = (group.len() as f64 + 40.0) * f32::HALF_ULP;
                            match algorithm {
                                2 => (-sum.ln(), roundings * (1.0 + sum.ln().abs())),
                                _ => (1.0 / sum, roundings / sum),
                            }
                        })
                        .collect()
                };
                let name = format!("softmax {algorithm} {mode}");
                elementwise::<f32>(
                    &miopen,
                    &mut worst,
                    &name,
                    // SAFETY: a tensor and its buffers.
                    |xd, x, yd, y| unsafe { softmax(handle, &one, xd, x, &zero, yd, y, algorithm, mode) },
                    want,
                );
            }
        }
        let set: unsafe extern "C" fn(Object, c_int, f64, f64, f64) -> c_int =
            miopen.rocm.symbol("miopenSetActivationDescriptor");
        type Activate =
            unsafe extern "C" fn(Object, Object, *const f32, Object, Object, *const f32, Object, Object) -> c_int;
        let activate: Activate = miopen.rocm.symbol("miopenActivationForward");
        let (alpha, beta, gamma) = (0.5f64, 0.75f64, 2.0f64);
        type Function = fn(f64) -> f64;
        let functions: [(&str, c_int, Function); 8] = [
            ("logistic", 1, |x| 1.0 / (1.0 + (-x).exp())),
            ("tanh", 2, |x| 0.75 * (0.5 * x).tanh()),
            ("relu", 3, |x| x.max(0.0)),
            ("softrelu", 4, |x| x.exp().ln_1p()),
            ("abs", 5, f64::abs),
            ("power", 6, |x| (0.5 + 0.75 * x).max(0.0).powf(2.0)),
            ("clipped relu", 7, |x| x.clamp(0.0, 0.5)),
            ("leaky relu", 8, |x| if x > 0.0 { x } else { 0.5 * x }),
        ];
        for (name, mode, function) in functions {
            let descriptor = miopen.create("ActivationDescriptor");
            // SAFETY: a descriptor that was just made.
            assert_eq!(unsafe { set(descriptor, mode, alpha, beta, gamma) }, OK);
            // Forty roundings of f32 on a function that grows no faster than twice its argument, and of f16 on one
            // step.
            let want = |x: &[f64]| {
                x.iter()
                    .map(|x| (function(*x), 40.0 * f32::HALF_ULP * (1.0 + x.abs())))
                    .collect()
            };
            // SAFETY: a tensor and its buffers.
            let run = |xd, x, yd, y| unsafe { activate(handle, descriptor, &one, xd, x, &zero, yd, y) };
            elementwise::<f32>(&miopen, &mut worst, name, run, want);
        }
        worst.report("softmax and activations, f32");
    });
}

#[test]
fn pooling_and_batch_norm() {
    inside("pooling_and_batch_norm", LIBRARY, || {
        let miopen = Miopen::open();
        let rocm = &miopen.rocm;
        let (one, zero) = (1.0f32, 0.0f32);
        let mut worst = Worst::default();
        let set: unsafe extern "C" fn(Object, c_int, c_int, c_int, c_int, c_int, c_int, c_int) -> c_int =
            rocm.symbol("miopenSet2dPoolingDescriptor");
        type Pool = unsafe extern "C" fn(
            Object,
            Object,
            *const f32,
            Object,
            Object,
            *const f32,
            Object,
            Object,
            bool,
            Object,
            usize,
        ) -> c_int;
        let pool: Pool = rocm.symbol("miopenPoolingForward");
        let [n, c, height, width] = SIZE;
        let x: Vec<f32> = Random::new(4).reals(n * c * height * width);
        let px = rocm.upload(&x);
        // Maximum, average of what is there, average with the padding; window, padding, stride.
        for mode in 0..3 {
            for (window, pad, stride) in [(2usize, 0usize, 2usize), (3, 1, 2), (3, 1, 1), (5, 2, 3)] {
                let descriptor = miopen.create("PoolingDescriptor");
                let [size, edge, step] = [window, pad, stride].map(|value| value as c_int);
                // SAFETY: a descriptor that was just made.
                assert_eq!(unsafe { set(descriptor, mode, size, size, edge, edge, step, step) }, OK);
                let out = [height, width].map(|size| (size + 2 * pad - window) / stride + 1);
                let count = n * c * out[0] * out[1];
                let py = rocm.empty(count * 4);
                let (xd, yd) = (miopen.tensor::<f32>(SIZE), miopen.tensor::<f32>([n, c, out[0], out[1]]));
                // SAFETY: tensors and their buffers.
                let status = unsafe {
                    pool(
                        miopen.handle,
                        descriptor,
                        &one,
                        xd,
                        px.0,
                        &zero,
                        yd,
                        py.0,
                        false,
                        null_mut(),
                        0,
                    )
                };
                assert_eq!(status, OK, "mode {mode} window {window}");
                let got: Vec<f32> = py.download(count);
                for (index, value) in got.iter().enumerate() {
                    let (image, at) = (index / (out[0] * out[1]), index % (out[0] * out[1]));
                    let reach = |at: usize, size: usize| {
                        let start = (at * stride) as isize - pad as isize;
                        (start.max(0) as usize..((start + window as isize) as usize).min(size)).collect::<Vec<_>>()
                    };
                    let (rows, columns) = (reach(at / out[1], height), reach(at % out[1], width));
                    let values: Vec<f64> = rows
                        .iter()
                        .flat_map(|row| columns.iter().map(move |column| (row, column)))
                        .map(|(row, column)| f64::from(x[(image * height + row) * width + column]))
                        .collect();
                    let (want, allowed) = match mode {
                        0 => (values.iter().copied().fold(f64::MIN, f64::max), 0.0),
                        _ => {
                            let divisor = if mode == 1 { values.len() } else { window * window } as f64;
                            let size: f64 = values.iter().map(|value| value.abs()).sum();
                            (
                                values.iter().sum::<f64>() / divisor,
                                (values.len() as f64 + 4.0) * f32::HALF_ULP * size / divisor,
                            )
                        }
                    };
                    worst.check(f64::from(*value), want, allowed, || {
                        format!("pooling {mode}, window {window}, padding {pad}, stride {stride} [{index}]")
                    });
                }
            }
        }
        worst.report("pooling, f32");
        let mut worst = Worst::default();
        type Norm = unsafe extern "C" fn(
            Object,
            c_int,
            *const f32,
            *const f32,
            Object,
            Object,
            Object,
            Object,
            Object,
            Object,
            Object,
            Object,
            Object,
            f64,
        ) -> c_int;
        let norm: Norm = rocm.symbol("miopenBatchNormalizationForwardInference");
        let mut random = Random::new(8);
        let mut channel = || -> Vec<f32> { random.reals(c) };
        let (scale, bias, mean) = (channel(), channel(), channel());
        let variance: Vec<f32> = channel().iter().map(|value| value.abs()).collect();
        let epsilon = 1e-5;
        let buffers = [&scale, &bias, &mean, &variance].map(|values| rocm.upload(values));
        let (xd, pd) = (miopen.tensor::<f32>(SIZE), miopen.tensor::<f32>([1, c, 1, 1]));
        let py = rocm.empty(x.len() * 4);
        // SAFETY: tensors and their buffers; 1 is over the spatial axes.
        let status = unsafe {
            norm(
                miopen.handle,
                1,
                &one,
                &zero,
                xd,
                px.0,
                xd,
                py.0,
                pd,
                buffers[0].0,
                buffers[1].0,
                buffers[2].0,
                buffers[3].0,
                epsilon,
            )
        };
        assert_eq!(status, OK);
        let got: Vec<f32> = py.download(x.len());
        for (index, value) in got.iter().enumerate() {
            let at = index / (height * width) % c;
            let [scale, bias, mean, variance] = [&scale, &bias, &mean, &variance].map(|values| f64::from(values[at]));
            let factor = scale / (variance + epsilon).sqrt();
            let size = (f64::from(x[index]).abs() + mean.abs()) * factor.abs() + bias.abs();
            let want = (f64::from(x[index]) - mean) * factor + bias;
            worst.check(f64::from(*value), want, 8.0 * f32::HALF_ULP * size, || {
                format!("batch norm [{index}]")
            });
        }
        worst.report("batch norm, f32");
    });
}
