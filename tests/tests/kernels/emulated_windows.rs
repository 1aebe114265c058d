//! Windows on emulated GPUs: pools of every rank and padding, lowered, compiled by hiprtc, with NaN and infinities
//! among what they read; and how many bytes they read, which are those of the taps that are inside.

use graphc::driver::{self, BuildOptions};
use graphc::emu::LaunchOptions;
use graphc::emulate::{Subject, check_kernel};
use graphc::passes::OptLevel;
use graphc_tests::emulator::toolchain;
use ir::graph::parse::parse;
use ir::kernel::{Access, AxisId, Body, Kernel, Mapping, WindowBody};
use ir::{Bindings, DType, HostTensor, Target};
use runtime::compile::{CompileRequest, compile_all};

/// A pool: the type and shape of its operand, its attributes, how many neighbours a thread takes, and whether it is all
/// that its kernel does.
struct Case(&'static str, &'static str, u32, bool);

const CASES: &[Case] = &[
    Case(
        "f16[1, 7, 9, 8]",
        "y = pool x {kind=max, size=[3, 3], strides=[2, 2], pad_low=[1, 1], pad_high=[1, 1], channels_last}",
        8,
        true,
    ),
    Case(
        "f32[2, 5, 7, 4]",
        "y = pool x {kind=average, size=[2, 3], pad_low=[1, 0], pad_high=[0, 2], channels_last}",
        4,
        true,
    ),
    Case(
        "f32[1, 8, 11, 6]",
        "y = pool x {kind=average_padded, size=[3, 2], strides=[3, 2], pad_low=[1, 1], pad_high=[0, 1], dilations=[2, 1], ceil, \
         channels_last}",
        2,
        true,
    ),
    Case(
        "f32[2, 3, 6, 5]",
        "y = pool x {kind=max, size=[3, 3], strides=[1, 2], pad_low=[2, 1], pad_high=[1, 2], dilations=[2, 1]}",
        1,
        true,
    ),
    Case(
        "bf16[3, 1, 10, 4]",
        "y = pool x {kind=max, size=[1, 3], strides=[1, 2], pad_low=[0, 1], pad_high=[0, 0], channels_last}",
        4,
        true,
    ),
    Case(
        "i8[1, 6, 5, 16]",
        "y = pool x {kind=max, size=[2, 2], pad_low=[1, 1], pad_high=[1, 1], channels_last}",
        16,
        true,
    ),
    Case(
        "f16[2, 9, 8]",
        "y = pool x {kind=average, size=[4], strides=[3], pad_low=[2], pad_high=[1], ceil, channels_last}",
        8,
        true,
    ),
    Case(
        "f32[1, 4, 5, 3, 4]",
        "y = pool x {kind=max, size=[2, 3, 2], strides=[2, 1, 1], pad_low=[1, 1, 0], pad_high=[0, 1, 1], channels_last}",
        4,
        true,
    ),
    Case(
        "f16[2, 7, 7, 8]",
        "y = pool x {kind=average, size=[7, 7], channels_last}",
        8,
        true,
    ),
    // Some windows lie in padding alone.
    Case(
        "f32[1, 1, 1, 4]",
        "y = pool x {kind=average, size=[2, 1], strides=[2, 1], pad_low=[1, 0], pad_high=[2, 0], dilations=[2, 2], channels_last}",
        4,
        true,
    ),
    Case(
        "f32[1, 2, 1, 4]",
        "y = pool x {kind=max, size=[2, 1], strides=[2, 1], pad_low=[1, 0], pad_high=[2, 0], dilations=[3, 2], channels_last}",
        4,
        true,
    ),
    // What is read is computed, and what follows is too.
    Case(
        "f16[1, 6, 6, 8]",
        "a = exp x\n  p = pool a {kind=average, size=[3, 3], strides=[2, 2], pad_low=[1, 1], pad_high=[1, 1], channels_last}\n  y = \
         sqrt p",
        8,
        false,
    ),
];

/// Lowers a case for a GPU, its threads taking as many neighbours as it says, windows that are inside as a whole
/// unrolled or not.
fn lowered(arch: &str, Case(operand, pool, vector, _): &Case, unroll: bool) -> (Kernel, ir::dim::Symbols) {
    let text =
        format!("graph @window stage=import {{\n  x = input \"x\" : {operand}\n  {pool}\n  return y as \"y\"\n}}\n");
    let graph = parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let mut options = BuildOptions::new(vec![arch.parse().expect("a target")], OptLevel::O2);
    options.optimize.libraries = false;
    let built = driver::build(&graph, &options).unwrap_or_else(|e| panic!("{text}: {e}"));
    let plan = &built.program.variants[0].plan;
    let mut windows = plan.kernels.values().filter(|k| matches!(k.body, Body::Window(_)));
    let (Some(kernel), None) = (windows.next(), windows.next()) else {
        panic!("{text}: no kernel of a window, or several")
    };
    let mut kernel = kernel.clone();
    kernel.mapping = Mapping::Windows {
        block: 64,
        vector: *vector,
        unroll,
    };
    ir::kernel::verify::verify(&kernel).unwrap_or_else(|e| panic!("{text}: {e}"));
    (kernel, plan.symbols.clone())
}

/// How many taps of all windows are inside.
fn taps_inside(kernel: &Kernel, window: &WindowBody) -> i64 {
    let extent = |a: AxisId| kernel.axes[a].extent.as_const().expect("a known size");
    let along = window.along.iter().map(|a| {
        let (outputs, taps) = (a.outputs.map_or(1, extent), a.taps.map_or(1, extent));
        let size = a.size.as_const().expect("a known size");
        let positions = (0..outputs).flat_map(|o| (0..taps).map(move |t| o * a.stride + t * a.dilation - a.pad_low));
        positions
            .filter(|p| (!a.guarded[0] || *p >= 0) && (!a.guarded[1] || *p < size))
            .count() as i64
    });
    let others = window
        .loops
        .parallel
        .iter()
        .filter(|p| window.along.iter().all(|a| a.outputs != Some(**p)));
    along.product::<i64>() * others.map(|a| extent(*a)).product::<i64>()
}

/// Numbers of both signs, and a few that are none or beyond all.
fn operand(dtype: DType, n: usize) -> HostTensor {
    let special = dtype.is_float();
    let values = (0..n).map(|i| match i % 23 {
        5 if special => f64::NAN,
        11 if special => f64::INFINITY,
        17 if special => f64::NEG_INFINITY,
        _ => (i * 7 % 61) as f64 / 4.0 - 7.5,
    });
    let values: Vec<f64> = values.map(|v| if special { v } else { v.trunc() }).collect();
    HostTensor::from_f64(dtype, [n], &values).expect("as many numbers as elements")
}

fn check(arch: &str) {
    let Some(tools) = toolchain() else { return };
    let target: Target = arch.parse().expect("a target");
    let headers: Vec<(String, String)> = codegen_hip::device::headers()
        .iter()
        .map(|(n, t)| ((*n).to_owned(), (*t).to_owned()))
        .collect();
    let forms: Vec<(&Case, bool)> = CASES.iter().flat_map(|case| [(case, false), (case, true)]).collect();
    let kernels: Vec<_> = forms
        .iter()
        .map(|(case, unroll)| lowered(arch, case, *unroll))
        .collect();
    let sources: Vec<_> = kernels
        .iter()
        .map(|(k, symbols)| codegen_hip::emit_kernel(k, symbols, &target, &[]).unwrap_or_else(|e| panic!("{e}")))
        .collect();
    let requests: Vec<CompileRequest> = kernels
        .iter()
        .zip(&sources)
        .map(|((kernel, _), source)| CompileRequest {
            name: kernel.name.clone(),
            source: source.text.clone(),
            headers: headers.clone(),
            arch: arch.to_owned(),
            options: source.options.clone(),
        })
        .collect();
    let objects = compile_all(&tools.compiler, &requests, &|_| ());
    for ((((case, _), (kernel, _)), source), object) in forms.iter().zip(&kernels).zip(&sources).zip(objects) {
        let what = format!("{arch}: {} of {}", case.1, case.0);
        let code = object.unwrap_or_else(|e| panic!("{what}: {e}\n{}", source.text)).bytes;
        let bindings = Bindings::new();
        let buffers: Vec<HostTensor> = kernel
            .params
            .values()
            .map(|p| operand(p.dtype, p.count(&bindings).expect("a known size") as usize))
            .collect();
        let subject = Subject {
            kernel,
            target: arch,
            source,
            code: &code,
            buffers: &buffers,
            bindings: &bindings,
        };
        let checked = check_kernel(&subject, &tools.disassembler, &LaunchOptions::default(), None)
            .unwrap_or_else(|e| panic!("{what}: {e}\n{}", source.text));
        for (got, want) in &checked.results {
            let pairs = got.to_f64().into_iter().zip(want.to_f64());
            for (i, (got, want)) in pairs.enumerate() {
                let near = (got - want).abs() <= 2e-3 * want.abs().max(1.0) || got == want;
                assert!(
                    near || (got.is_nan() && want.is_nan()),
                    "{what}: {i} is {got}, not {want}\n{}",
                    source.text
                );
            }
        }
        let Body::Window(window) = &kernel.body else {
            unreachable!("it was lowered as one")
        };
        if case.3 {
            let read = kernel
                .params
                .values()
                .find(|p| p.access == Access::Read)
                .expect("an operand");
            let bytes = taps_inside(kernel, window) as u64 * u64::from(read.dtype.bits() / 8);
            assert_eq!(
                checked.counters.global_load_bytes, bytes,
                "{what}: bytes read\n{}",
                source.text
            );
        }
    }
}

#[test]
fn windows_on_gfx90a() {
    check("gfx90a");
}

#[test]
fn windows_on_gfx1100() {
    check("gfx1100");
}
