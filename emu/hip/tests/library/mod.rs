//! What the tests of ROCm's own libraries share: a process inside the libraries' sysroot, device memory, numbers.
//!
//! The libraries come from a newer Debian than the tests' host may be, so a test starts itself again inside the sysroot
//! that `scripts/rocm-sysroot.sh` makes, with the stand-in under the HIP runtime's name on the loader's path.
#![allow(dead_code, reason = "each test binary uses its part of the helpers")]

pub mod blas;

use hip_sys::{HipLibrary, Loaded, Search, hipError_t, hipMemcpyKind};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the folder with the stand-in for a test that runs inside the sysroot.
pub const INSIDE: &str = "GRAPHC_EMU_TEST_INSIDE";

/// Runs `body` in a process of its own inside the sysroot that has `library`; prints `skipped:` where there is none.
///
/// `test` is the test's name as the harness has it.
pub fn inside(test: &str, library: &str, body: impl FnOnce()) {
    inside_with(test, library, &[], body);
}

/// As [`inside`], with these variables of the environment set.
pub fn inside_with(test: &str, library: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let sysroot = std::env::var_os("GRAPHC_ROCM_LIBS").map_or_else(|| "/opt/graphc-rocm-libs".into(), PathBuf::from);
    let file = sysroot.join("usr/lib/x86_64-linux-gnu").join(library);
    let (run, complete) = (sysroot.join("rocm-run"), sysroot.join(".graphc-sysroot"));
    if !(file.exists() && run.exists() && complete.exists()) {
        println!(
            "skipped: no {library} in {}; set GRAPHC_ROCM_LIBS, or make it with scripts/rocm-sysroot.sh",
            sysroot.display()
        );
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // hiprtc asks the runtime for the current GPU and looks for it without a version.
    for name in ["libamdhip64.so.7", "libamdhip64.so"] {
        std::os::unix::fs::symlink(built(), folder.path().join(name)).expect("linked");
    }
    let output = Command::new(run)
        .arg("env")
        .arg(format!("LD_LIBRARY_PATH={}", folder.path().display()))
        .arg(format!("{INSIDE}={}", folder.path().display()))
        .args(variables.iter().map(|(name, value)| format!("{name}={value}")))
        .arg(std::env::current_exe().expect("a test knows its own path"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .output()
        .expect("rocm-run starts");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("{out}");
    assert!(
        output.status.success() && out.contains("1 passed"),
        "inside the sysroot: {}\n{out}\n{err}",
        output.status
    );
}

/// The stand-in that cargo built beside the tests.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let deps = test.parent().expect("a test is in a folder");
    let name = "libamdhip64_emu.so";
    let places = [deps.join(name), deps.parent().expect("target/PROFILE").join(name)];
    places
        .into_iter()
        .find(|path| path.is_file())
        .expect("cargo builds the cdylib with its tests")
}

/// The stand-in, and a library on top of it.
pub struct Rocm {
    pub hip: Loaded<HipLibrary>,
    library: Library,
}

impl Rocm {
    /// Opens `library` inside the sysroot.
    pub fn open(library: &str) -> Rocm {
        let folder = std::env::var_os(INSIDE).expect("runs inside the sysroot");
        let hip = hip_sys::load(&Search::only(Path::new(&folder).join("libamdhip64.so.7"))).expect("the stand-in");
        // SAFETY: the libraries' initialisers register their kernels and have no precondition.
        let library = unsafe { Library::open(Some(library), RTLD_NOW | RTLD_GLOBAL) }.expect("the library loads");
        Rocm { hip, library }
    }

    /// A function of the library; `T` must be its type.
    pub fn symbol<T: Copy>(&self, name: &str) -> T {
        // SAFETY: the caller gives the header's own signature; the library stays loaded.
        *unsafe { self.library.get::<T>(name.as_bytes()) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Device memory with these values; at least one byte, so that there is always a pointer.
    pub fn upload<T: Element>(&self, values: &[T]) -> Buffer<'_> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.bytes()).collect();
        let buffer = self.empty(bytes.len());
        // SAFETY: the buffer has the size.
        let status = unsafe {
            self.hip.hipMemcpy(
                buffer.0,
                bytes.as_ptr().cast(),
                bytes.len(),
                hipMemcpyKind::hipMemcpyHostToDevice,
            )
        };
        assert_eq!(status, hipError_t::hipSuccess);
        buffer
    }

    /// Device memory that nothing wrote.
    pub fn empty(&self, bytes: usize) -> Buffer<'_> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: a place for the result.
        let status = unsafe { self.hip.hipMalloc(&mut pointer, bytes.max(1)) };
        assert_eq!(status, hipError_t::hipSuccess);
        Buffer(pointer, self)
    }
}

/// Device memory that is freed with its owner.
pub struct Buffer<'a>(pub *mut c_void, &'a Rocm);

impl Buffer<'_> {
    /// Reads values back, after everything on the device is done.
    pub fn download<T: Element>(&self, count: usize) -> Vec<T> {
        let mut bytes = vec![0u8; count * size_of::<T>()];
        // SAFETY: both ends have the size.
        let status = unsafe {
            self.1.hip.hipMemcpy(
                bytes.as_mut_ptr().cast(),
                self.0,
                bytes.len(),
                hipMemcpyKind::hipMemcpyDeviceToHost,
            )
        };
        assert_eq!(status, hipError_t::hipSuccess);
        bytes.chunks_exact(size_of::<T>()).map(T::from_bytes).collect()
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by `empty`, freed once.
        unsafe { self.1.hip.hipFree(self.0) };
    }
}

/// A number as the libraries store it.
pub trait Element: Copy {
    /// Half a unit in the last place of 1, as f64; 0 for integers.
    const HALF_ULP: f64;
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
    fn bytes(self) -> Vec<u8>;
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($type:ty, $half_ulp:expr, $of:expr, $value:expr) => {
        impl Element for $type {
            const HALF_ULP: f64 = $half_ulp;
            fn of(value: f64) -> Self {
                $of(value)
            }
            fn value(self) -> f64 {
                $value(self)
            }
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn from_bytes(bytes: &[u8]) -> Self {
                <$type>::from_le_bytes(bytes.try_into().expect("the element's size"))
            }
        }
    };
}

const fn power(exponent: u32) -> f64 {
    1.0 / (1u64 << exponent) as f64
}

element!(f64, power(53), |v| v, |v| v);
element!(f32, power(24), |v| v as f32, f64::from);
element!(half::f16, power(11), half::f16::from_f64, half::f16::to_f64);
element!(half::bf16, power(8), half::bf16::from_f64, half::bf16::to_f64);
element!(i8, 0.0, |v| v as i8, f64::from);
element!(i32, 0.0, |v| v as i32, f64::from);

/// A matrix in column order.
pub struct Matrix<T> {
    pub rows: usize,
    /// From one column to the next.
    pub stride: usize,
    pub values: Vec<T>,
}

impl<T: Element> Matrix<T> {
    pub fn new(rows: usize, columns: usize, padding: usize, mut value: impl FnMut() -> T) -> Matrix<T> {
        let stride = rows.max(1) + padding;
        Matrix {
            rows,
            stride,
            values: (0..stride * columns).map(|_| value()).collect(),
        }
    }

    pub fn at(&self, row: usize, column: usize) -> f64 {
        debug_assert!(row < self.rows);
        self.values[column * self.stride + row].value()
    }
}

/// A small generator (xorshift64*), the same on each run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Of either sign, with a magnitude between 1/16 and 1: no denormals in any type.
    pub fn real<T: Element>(&mut self) -> T {
        let bits = self.bits();
        let magnitude = 0.0625 + 0.9375 * (bits >> 12) as f64 / (1u64 << 52) as f64;
        T::of(if bits & 1 == 1 { magnitude } else { -magnitude })
    }

    /// A whole number from -limit to limit.
    pub fn whole<T: Element>(&mut self, limit: i64) -> T {
        T::of((self.bits() >> 8) as i64 as f64 % (2 * limit + 1) as f64 - limit as f64)
    }

    pub fn reals<T: Element>(&mut self, count: usize) -> Vec<T> {
        (0..count).map(|_| self.real()).collect()
    }
}

/// The largest error seen, as a part of what is allowed.
#[derive(Default)]
pub struct Worst {
    part: f64,
    place: String,
    checked: u64,
}

impl Worst {
    /// Checks a value against its reference; `allowed` is the largest difference.
    pub fn check(&mut self, got: f64, want: f64, allowed: f64, place: impl Fn() -> String) {
        self.checked += 1;
        let error = (got - want).abs();
        assert!(
            error <= allowed,
            "{}: {got} for {want}, off by {error:e}; {allowed:e} is allowed",
            place()
        );
        if error > 0.0 && error / allowed > self.part {
            self.part = error / allowed;
            self.place = place();
        }
    }

    /// Prints what was seen.
    pub fn report(&self, what: &str) {
        println!(
            "{what}: {} values, worst {:.3} of the allowed error at {}",
            self.checked, self.part, self.place
        );
    }
}
