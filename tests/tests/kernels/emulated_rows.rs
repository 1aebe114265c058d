//! Rows, pointwise kernels and transposes move the least that they can: really lowered kernels, compiled by hiprtc and
//! run on emulated GPUs, whose counters say what was read, what was written and in which pieces.

use graphc_tests::emulator::toolchain;
use ir::kernel::limits::{self, LimitError};
use ir::kernel::{Access, Mapping};
use ir::{Bindings, Symbols};

/// The only kernel of a graph: its mapping is as expected, it reads `reads` bytes and writes each result once, and both
/// in whole pieces of 64 bytes.
fn moves_least(arch: &str, text: &str, is_expected: fn(&Mapping) -> bool, reads: u64) {
    let Some(tools) = toolchain() else { return };
    let ran = tools.each_kernel(arch, text);
    let [(kernel, checked)] = ran.as_slice() else {
        panic!(
            "{arch}: one kernel of {:?}",
            ran.iter().map(|(k, _)| &k.name).collect::<Vec<_>>()
        )
    };
    let (name, counters) = (&kernel.name, &checked.counters);
    assert!(is_expected(&kernel.mapping), "{arch} {name}: {}", kernel.mapping);
    // A kernel that works in place writes what it reads.
    let written: u64 = kernel
        .params
        .values()
        .filter(|p| p.access != Access::Read)
        .map(|p| p.elements.eval(&Bindings::new()).expect("a size") as u64 * u64::from(p.dtype.bits() / 8))
        .sum();
    assert_eq!(counters.global_load_bytes, reads, "{arch} {name}: bytes read");
    assert_eq!(counters.global_store_bytes, written, "{arch} {name}: bytes written");
    let moved = counters.global_transactions * 64;
    let asked = counters.global_load_bytes + counters.global_store_bytes;
    assert_eq!(moved, asked, "{arch} {name}: pieces of 64 bytes are used whole");
    assert_eq!(
        counters.lds_bank_conflicts, 0,
        "{arch} {name}: lanes that met in a bank"
    );
}

const GPUS: [&str; 3] = ["gfx90a", "gfx942", "gfx1100"];

fn is_held(mapping: &Mapping) -> bool {
    matches!(mapping, Mapping::Rows { steps, .. } if *steps > 0)
}

#[test]
fn softmax_reads_a_row_once() {
    for arch in GPUS {
        for (rows, cols) in [(6, 4096), (5, 768), (40, 64), (3, 16384)] {
            let text = format!(
                "graph @softmax stage=import {{\n  x = input \"x\" : f16[{rows}, {cols}]\n  a = softmax x {{axis=1}}\n  \
                 return a as \"y\"\n}}\n"
            );
            moves_least(arch, &text, is_held, rows * cols * 2);
        }
    }
}

#[test]
fn norms_read_a_row_once() {
    for arch in GPUS {
        let (rows, cols) = (5, 1024);
        let text = format!(
            "graph @norm stage=import {{\n  x = input \"x\" : f16[{rows}, {cols}]\n  g = input \"g\" : f16[{cols}]\n  b = input \
             \"b\" : f16[{cols}]\n  a = layer_norm x, g, b {{axis=1, epsilon=1e-5}}\n  return a as \"y\"\n}}\n"
        );
        moves_least(arch, &text, is_held, 3 * rows * cols * 2);
    }
}

/// Eight elements of four bits are a word, and a thread's groups of them are read before any is widened.
#[test]
fn elements_of_four_bits_are_read_by_words() {
    let is_streamed = |m: &Mapping| matches!(m, Mapping::Stream { .. });
    for arch in ["gfx90a", "gfx1100"] {
        for (stored, rows, cols) in [("i4", 1024u64, 2048u64), ("u4", 2000, 1032)] {
            let text = format!(
                "graph @wide stage=import {{\n  x = input \"x\" : {stored}[{rows}, {cols}]\n  \
                 y = cast x : f16[{rows}, {cols}]\n  return y as \"y\"\n}}\n"
            );
            moves_least(arch, &text, is_streamed, rows * cols / 2);
        }
    }
}

/// Rows enough to fill every unit: what no fold needs is read when it is stored with, and still once.
#[test]
fn norms_of_many_rows_read_gains_as_needed() {
    for (arch, rows, cols) in [("gfx90a", 1400u64, 2056u64), ("gfx1100", 1500, 1032)] {
        let text = format!(
            "graph @norm stage=import {{\n  x = input \"x\" : f16[{rows}, {cols}]\n  g = input \"g\" : f16[{cols}]\n  b = input \
             \"b\" : f16[{cols}]\n  n = layer_norm x, g, b {{axis=1, epsilon=1e-5}}\n  a = gelu n\n  return a as \"y\"\n}}\n"
        );
        let Some(tools) = toolchain() else { return };
        let ran = tools.each_kernel(arch, &text);
        let [(kernel, checked)] = ran.as_slice() else {
            panic!("{arch}: {} kernels", ran.len())
        };
        let as_needed =
            |m: &Mapping| matches!(m, Mapping::Rows { as_needed: true, steps, resident: None, .. } if *steps > 0);
        assert!(as_needed(&kernel.mapping), "{arch}: {}", kernel.mapping);
        assert_eq!(checked.counters.global_load_bytes, 3 * rows * cols * 2, "{arch}");
        // AMD's compiler would take a number of workgroups for one of waves.
        let mut told = kernel.clone();
        if let Mapping::Rows { resident, .. } = &mut told.mapping {
            *resident = Some(2);
        }
        let target = arch.parse().expect("known");
        let errors = limits::check(&told, &Symbols::new(), &target);
        assert!(
            matches!(errors[..], [LimitError::Residents { workgroups: 2, .. }]),
            "{errors:?}"
        );
    }
}

/// A residual stream is added to, stored and normalised by one kernel, which reads each of its operands once.
#[test]
fn rows_are_made_stored_and_folded_at_once() {
    for (norm, rows, cols) in [
        ("rms_norm s, g", 7u64, 4096u64),
        ("layer_norm s, g, b", 1501, 1032),
        ("softmax s", 5, 33),
    ] {
        let options = match norm {
            "softmax s" => "axis=1",
            _ => "axis=1, epsilon=1e-5",
        };
        let text = format!(
            "graph @stream stage=import {{\n  x = input \"x\" : f16[{rows}, {cols}]\n  y = input \"y\" : f16[{rows}, {cols}]\n  \
             g = input \"g\" : f16[{cols}]\n  b = input \"b\" : f16[{cols}]\n  s = add x, y\n  n = {norm} {{{options}}}\n  \
             return s as \"s\", n as \"n\"\n}}\n"
        );
        let Some(tools) = toolchain() else { return };
        for arch in GPUS {
            let ran = tools.each_kernel(arch, &text);
            let [(kernel, checked)] = ran.as_slice() else {
                panic!("{arch}: {} kernels", ran.len())
            };
            assert!(is_held(&kernel.mapping), "{arch}: {}", kernel.mapping);
            let counters = &checked.counters;
            let (read, written) = (counters.global_load_bytes, counters.global_store_bytes);
            assert_eq!(written, 2 * rows * cols * 2, "{arch}, {norm}");
            // Both operands once, and the gains once a row at most.
            let operands = 2 * rows * cols * 2;
            assert!((operands..=2 * operands).contains(&read), "{arch}, {norm}: {read}");
        }
    }
}

#[test]
fn a_reduction_reads_a_row_once() {
    for arch in GPUS {
        let text = "graph @sum stage=import {\n  x = input \"x\" : f32[4, 8192]\n  a = reduce x {op=max, axes=[1]}\n  return a \
                    as \"y\"\n}\n";
        let Some(tools) = toolchain() else { return };
        let ran = tools.each_kernel(arch, text);
        let [(kernel, checked)] = ran.as_slice() else {
            panic!("{arch}: {} kernels", ran.len())
        };
        assert!(matches!(kernel.mapping, Mapping::Rows { .. }), "{}", kernel.mapping);
        assert_eq!(checked.counters.global_load_bytes, 4 * 8192 * 4, "{arch}");
    }
}

#[test]
fn an_embedding_and_its_norm_gather_once() {
    let (rows, cols) = (6u64, 768u64);
    let text = format!(
        "graph @embedding stage=import {{\n  t = input \"t\" : f16[100, {cols}]\n  i = input \"i\" : i64[{rows}]\n  x = take t, i \
         {{axis=0}}\n  a = rms_norm x {{axis=1, epsilon=1e-5}}\n  return a as \"y\"\n}}\n"
    );
    let Some(tools) = toolchain() else { return };
    for arch in GPUS {
        let ran = tools.each_kernel(arch, &text);
        let [(kernel, checked)] = ran.as_slice() else {
            panic!("{arch}: {} kernels", ran.len())
        };
        assert!(is_held(&kernel.mapping), "{}", kernel.mapping);
        let table = rows * cols * 2;
        // Besides the table's rows, no more than the index for each wave.
        let read = checked.counters.global_load_bytes;
        assert!(
            (table..table + table / 4).contains(&read),
            "{arch}: {read} of {table} bytes"
        );
    }
}

#[test]
fn transposes_go_through_lds() {
    let is_expected: fn(&Mapping) -> bool =
        |m| matches!(m, Mapping::Transpose { load, store, .. } if *load > 1 && *store > 1);
    for arch in GPUS {
        for (dtype, bytes, shape) in [("f16", 2, [2, 128, 192]), ("f32", 4, [1, 96, 128])] {
            let [b, m, n] = shape;
            let text = format!(
                "graph @transpose stage=import {{\n  x = input \"x\" : {dtype}[{b}, {m}, {n}]\n  a = transpose x {{perm=[0, 2, \
                 1]}}\n  return a as \"y\"\n}}\n"
            );
            moves_least(arch, &text, is_expected, b * m * n * bytes);
        }
    }
}

#[test]
fn a_pointwise_kernel_streams() {
    let is_expected: fn(&Mapping) -> bool = |m| {
        matches!(
            m,
            Mapping::Stream {
                vector: 8,
                unroll: 2,
                ..
            }
        )
    };
    for arch in ["gfx90a", "gfx1100"] {
        let n = 2 << 20;
        let text = format!(
            "graph @add stage=import {{\n  x = input \"x\" : f16[{n}]\n  z = input \"z\" : f16[{n}]\n  a = add x, z\n  return a as \
             \"y\"\n}}\n"
        );
        moves_least(arch, &text, is_expected, 2 * n * 2);
    }
}
