//! The checked-in bindings against the real libraries: every entry point resolves, and first calls answer as documented
//! where there is no GPU.
//!
//! Runs inside ROCm's sysroot where that is what this machine has; says `skipped:` where there is no ROCm. rocBLAS and MIOpen
//! are looked at where they are installed (`LIBS=1 scripts/rocm-sysroot.sh`).

use std::ffi::CStr;

use dylib::Search;
use graphc_runtime::compile::{RocmSearch, discover};
use hip_sys::hipError_t;

#[test]
fn every_entry_point_is_in_the_real_libraries() {
    let toolchain = match discover(&RocmSearch::default()) {
        Ok(toolchain) => toolchain,
        Err(error) => return println!("skipped: {error}\n(bindings)"),
    };
    if let Some(wrapper) = &toolchain.wrapper {
        let inside = std::process::Command::new(wrapper)
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "every_entry_point_is_in_the_real_libraries", "--nocapture"])
            .output()
            .unwrap();
        assert!(inside.status.success(), "{inside:?}");
        let said = String::from_utf8_lossy(&inside.stdout);
        assert!(said.contains("hip: ") && said.contains("comgr: "), "{said}");
        return;
    }

    let hip = hip_sys::load(&toolchain.search).unwrap();
    let mut devices = -1;
    // SAFETY: `devices` is a live integer.
    let result = unsafe { (hip.hipGetDeviceCount)(&mut devices) };
    match result {
        hipError_t::hipSuccess => assert!(devices > 0),
        other => assert_eq!((other, devices), (hipError_t::hipErrorNoDevice, 0)),
    }
    // SAFETY: hipGetErrorName returns a static string for every value.
    let name = unsafe { CStr::from_ptr((hip.hipGetErrorName)(hipError_t::hipErrorOutOfMemory)) };
    assert_eq!(
        name.to_str().unwrap(),
        "hipErrorOutOfMemory",
        "the enum's numbers are the library's"
    );
    println!("hip: {} devices by {}", devices, hip.path.display());

    let comgr = comgr_sys::shared(&Search::default()).unwrap();
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are live integers.
    unsafe { (comgr.amd_comgr_get_version)(&mut major, &mut minor) };
    assert!(major >= 2, "{major}.{minor}");
    println!("comgr: {major}.{minor}");

    match rocblas_sys::load(&Search::default()) {
        Err(error) => println!("rocBLAS is not installed: {}", error.tried.len()),
        Ok(rocblas) => {
            // SAFETY: rocblas_status_to_string returns a static string for every value.
            let text = unsafe {
                CStr::from_ptr((rocblas.rocblas_status_to_string)(
                    rocblas_sys::rocblas_status_::rocblas_status_memory_error,
                ))
            };
            assert_eq!(text.to_str().unwrap(), "rocblas_status_memory_error");
            println!("rocblas: {}", rocblas.path.display());
        }
    }
    match miopen_sys::load(&Search::default()) {
        Err(error) => println!("MIOpen is not installed: {}", error.tried.len()),
        Ok(miopen) => {
            // SAFETY: miopenGetErrorString returns a static string for every value.
            let text = unsafe {
                CStr::from_ptr((miopen.miopenGetErrorString)(
                    miopen_sys::miopenStatus_t::miopenStatusBadParm,
                ))
            };
            assert_eq!(text.to_str().unwrap(), "miopenStatusBadParm");
            println!("miopen: {}", miopen.path.display());
        }
    }
}
