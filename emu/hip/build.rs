//! Gives the library what a program linked against ROCm 7's HIP runtime looks for: the soname, and a version for each
//! symbol.
//!
//! `symbols.txt` lists the runtime's C functions with their versions. Those marked with `-` are not emulated; each of
//! them becomes a stub that prints its name and gives `hipErrorNotSupported`.
//!
//! rustc hands the linker a version script of its own, without versions. That two scripts go together needs LLD, which
//! is rustc's linker on x86-64 Linux.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Functions that give a text, not a code: their stubs give null.
const TEXTS: [&str; 3] = ["hipApiName", "hipKernelNameRef", "hipKernelNameRefByPtr"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=symbols.txt");
    let table = std::fs::read_to_string("symbols.txt").expect("symbols.txt lies beside build.rs");
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut stubs = String::new();
    for line in table.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let mut words = line.split(' ');
        let (Some(version), Some(name), mark) = (words.next(), words.next(), words.next()) else {
            panic!("symbols.txt: {line:?} is not VERSION NAME [-]");
        };
        versions.entry(version).or_default().push(name);
        match mark {
            None => {}
            Some("-") => stub(&mut stubs, name),
            Some(other) => panic!("symbols.txt: {line:?}: {other:?} is not -"),
        }
    }
    let mut script = String::new();
    let mut before = "";
    for (version, names) in &versions {
        writeln!(script, "{version} {{ global: {}; }} {before};", names.join("; ")).expect("a string takes it");
        before = version;
    }
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let write = |name: &str, text: &str| {
        let path = Path::new(&out).join(name);
        std::fs::write(&path, text).expect("OUT_DIR can be written");
        path
    };
    write("stubs.s", &stubs);
    let script = write("versions.map", &script);
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libamdhip64.so.7");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
}

/// Assembly for a function that tells `missing` its name; the braces are the operands of `global_asm!`.
fn stub(out: &mut String, name: &str) {
    let target = if TEXTS.contains(&name) {
        "missing_text"
    } else {
        "missing"
    };
    writeln!(
        out,
        ".globl {name}\n.type {name}, @function\n{name}:\nlea rdi, [rip + .Lname_{name}]\njmp {{{target}}}\n.size {name}, . - {name}\n\
         .pushsection .rodata.graphc_names, \"a\", @progbits\n.Lname_{name}: .asciz \"{name}\"\n.popsection"
    )
    .expect("a string takes it");
}
