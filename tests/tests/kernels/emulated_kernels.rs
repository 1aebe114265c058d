//! Every hand-written kernel on emulated GPUs: each kind of body, mapping and type, compiled by the real hiprtc, with
//! NaN, infinity and the ends of ranges among the operands.
//!
//! A kernel runs on one wave64 and one wave32 GPU, those of members and a fifth of the casts on one GPU;
//! `GRAPHC_ALL_MODELS=1` runs all of them on all four.

use crate::judge::{self, Random, differ, operands, symbols};
use graphc::emu::LaunchOptions;
use graphc::emulate::{Subject, check_kernel};
use graphc_tests::emulator::{ARCHS, Tally, toolchain};
use ir::kernel::{Access, Kernel};
use ir::{Bindings, DType, Target};
use runtime::compile::{CompileRequest, compile_all};

/// Says whether kernel number `i` runs on an arch; `cast` is the number of the first cast.
fn runs_on(i: usize, cast: usize, kernel: &Kernel, arch: &str) -> bool {
    let turn = ARCHS.iter().position(|a| *a == arch).expect("one of them");
    if graphc_tests::everything() {
        true
    } else if ["cast_", "unary_", "binary_"]
        .iter()
        .any(|n| kernel.name.starts_with(n))
    {
        // One cast in five: from and to every type, all the same.
        let casts = DType::ALL.len();
        let first = kernel.name.starts_with("cast_").then(|| i - cast);
        first.is_none_or(|n| (n / casts + n % casts).is_multiple_of(5)) && i % ARCHS.len() == turn
    } else {
        i % 2 == turn % 2
    }
}

fn check(arch: &str) {
    let Some(tools) = toolchain() else { return };
    let target: Target = arch.parse().expect("a target of the table");
    let (symbols, headers) = (symbols(), headers());
    let bindings: Bindings = ir::dim::hints(&symbols);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut chosen, mut requests) = (Vec::new(), Vec::new());
    let all = crate::kernel_list::all();
    let cast = all
        .iter()
        .position(|k| k.name.starts_with("cast_"))
        .expect("there are casts");
    for (i, kernel) in all.into_iter().enumerate() {
        // Operands are drawn for every kernel, so that those of one do not depend on which others run.
        let buffers = operands(&kernel, &bindings, &mut random);
        if !runs_on(i, cast, &kernel, arch) {
            continue;
        }
        let source = codegen_hip::emit_kernel(&kernel, &symbols, &target, &[]).unwrap_or_else(|e| panic!("{e}"));
        requests.push(CompileRequest {
            name: kernel.name.clone(),
            source: source.text.clone(),
            headers: headers.clone(),
            arch: arch.to_owned(),
            options: source.options.clone(),
        });
        chosen.push((kernel, source, buffers));
    }
    let mut tally = Tally::default();
    let objects = compile_all(&tools.compiler, &requests, &|_| ());
    for ((kernel, source, buffers), object) in chosen.iter().zip(objects) {
        let code = object.unwrap_or_else(|e| panic!("{}: {e}", kernel.name)).bytes;
        let subject = Subject {
            kernel,
            target: arch,
            source,
            code: &code,
            buffers,
            bindings: &bindings,
        };
        let checked = match check_kernel(&subject, &tools.disassembler, &LaunchOptions::default(), None) {
            Ok(checked) => checked,
            Err(error) => {
                tally.wrong.push(format!("{}: {error}", kernel.name));
                continue;
            }
        };
        tally.kernels += 1;
        let written = kernel.params.values().filter(|p| p.access != Access::Read);
        for (param, (got, want)) in written.zip(&checked.results) {
            tally.wrong.extend(differ(kernel, &param.name, got, want));
            let (got, want) = (got.to_f64(), want.to_f64());
            let scale = judge::scale(kernel, &want);
            let finite = got.iter().zip(&want).filter(|(_, w)| w.is_finite());
            let errors = finite.map(|(g, w)| (g - w).abs() / w.abs().max(scale));
            tally.error(&param.dtype.to_string(), want.len(), errors.fold(0.0, f64::max));
        }
    }
    tally.finish(&format!("hand-written kernels on {arch}"), chosen.len());
}

fn headers() -> Vec<(String, String)> {
    let headers = codegen_hip::device::headers().iter();
    headers.map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect()
}

#[test]
fn hand_written_kernels_on_gfx90a() {
    check("gfx90a");
}

#[test]
fn hand_written_kernels_on_gfx942() {
    check("gfx942");
}

#[test]
fn hand_written_kernels_on_gfx1100() {
    check("gfx1100");
}

#[test]
fn hand_written_kernels_on_gfx1201() {
    check("gfx1201");
}
