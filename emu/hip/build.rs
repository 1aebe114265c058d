//! Gives the library the soname of ROCm 7's HIP runtime, so that what was linked against that takes this one.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libamdhip64.so.7");
}
