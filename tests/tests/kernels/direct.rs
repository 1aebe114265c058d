//! Products and convolutions whose tiles are loaded straight to LDS, on the emulated gfx950: random sizes, types,
//! layouts and epilogues beside the evaluator, LDS without bank conflicts, and faults that must not pass.

use graphc::emu::LaunchOptions;
use graphc::passes::tuning;
use graphc_tests::emulator::toolchain;
use ir::kernel::limits::{self, LimitError};
use ir::kernel::{Kernel, Mapping, Tiling};
use ir::program::Source;
use ir::{Symbols, Target};
use runtime::code_object;

use crate::shares::{Random, compile, emit, product, run, text};

const ARCH: &str = "gfx950";

/// The tilings of a product whose tiles are loaded straight to LDS.
fn tilings(kernel: &Kernel, target: &Target) -> Vec<Tiling> {
    let all = tuning::candidates(kernel, &Symbols::new(), target).into_iter();
    all.filter_map(|mapping| match mapping {
        Mapping::Matrix(t) if t.loads_to_lds() => Some(t),
        _ => None,
    })
    .collect()
}

fn tiled(kernel: &Kernel, tiling: Tiling) -> Kernel {
    Kernel {
        mapping: Mapping::Matrix(tiling),
        ..kernel.clone()
    }
}

fn graph(body: &str) -> String {
    format!("graph @direct stage=import {{\n{body}\n return y as \"y\"\n}}\n")
}

/// The text of a random convolution of two dimensions, channels last.
fn convolution(dtype: &str, random: &mut Random) -> String {
    let (channels, filters) = (*random.one(&[8, 16, 24, 64]), *random.one(&[40, 64, 96, 136]));
    let (window, stride, pad) = (*random.one(&[1, 3]), *random.one(&[1, 2]), random.below(2));
    let side = 9 + random.below(12);
    graph(&format!(
        " x = input \"x\" : {dtype}[2, {side}, {side}, {channels}]\n w = input \"w\" : {dtype}[{filters}, {window}, {window}, {channels}]\n \
         b = input \"b\" : {dtype}[{filters}]\n c = conv x, w, b {{channels_last, strides=[{stride}, {stride}], pad_low=[{pad}, {pad}], \
         pad_high=[{pad}, {pad}]}}\n y = relu c"
    ))
}

/// Says whether a code object spills.
fn spills(code: &[u8]) -> bool {
    let object = code_object::read(code).expect("a code object");
    object
        .kernels
        .iter()
        .any(|k| (k.vgpr_spills, k.scratch_bytes) != (0, 0))
}

/// What watches for races of waves too.
fn watching() -> LaunchOptions {
    LaunchOptions {
        races: true,
        ..LaunchOptions::default()
    }
}

/// Random kernels, each with a random tiling of its own.
fn random_kernels(count: usize, random: &mut Random) -> Vec<(Kernel, Source)> {
    let mut kernels = Vec::new();
    let mut tries = 0;
    while kernels.len() < count {
        tries += 1;
        assert!(tries < 20 * count, "only {} products have such tilings", kernels.len());
        let turn = kernels.len();
        let text = match turn % 6 {
            5 => convolution(["f16", "bf16"][turn / 6 % 2], random),
            _ => text(["f16", "i8", "bf16", "f8e4m3fn", "f16"][turn % 6], random),
        };
        let (kernel, target) = product(&text, ARCH);
        let mut tilings = tilings(&kernel, &target);
        // Odd sizes have none: their chunks are cut.
        if tilings.is_empty() {
            continue;
        }
        let tiling = tilings.swap_remove(random.below(tilings.len()));
        let kernel = tiled(&kernel, tiling);
        let source = emit(&kernel, &target);
        kernels.push((kernel, source));
    }
    kernels
}

#[test]
fn loaded_straight_to_lds() {
    let Some(tools) = toolchain() else { return };
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let count = if graphc_tests::everything() { 60 } else { 18 };
    let kernels = random_kernels(count, &mut random);
    let sources: Vec<Source> = kernels.iter().map(|(_, source)| source.clone()).collect();
    let codes = compile(&tools, &sources, ARCH, str::to_owned);
    let mut wrong = Vec::new();
    for ((kernel, source), code) in kernels.iter().zip(&codes) {
        let what = format!("{}: {}", kernel.name, kernel.mapping);
        if spills(code) {
            wrong.push(format!("{what}: spills"));
        }
        match run(&tools, ARCH, (kernel, source, &code[..]), &watching()) {
            Err(error) => wrong.push(format!("{what}: {error}")),
            Ok(checked) => {
                if !checked.verdict.is_within() {
                    wrong.push(format!("{what}: {:?}", checked.verdict));
                }
                if checked.counters.lds_bank_conflicts > 0 {
                    wrong.push(format!(
                        "{what}: {} bank conflicts",
                        checked.counters.lds_bank_conflicts
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count}\n{}", wrong.len(), wrong.join("\n"));
}

/// A product by three stages; its last tile along k is a part of one.
fn planted() -> (Kernel, Target) {
    let body = " x = input \"x\" : f16[136, 616]\n w = input \"w\" : f16[616, 136]\n y = contract x, w";
    let (kernel, target) = product(&graph(body), ARCH);
    let three = tilings(&kernel, &target).into_iter().find(|t| t.stages == 3);
    (tiled(&kernel, three.expect("a tiling of three stages")), target)
}

/// What waits that are left out or too short, elements past the depth, and chunks in one bank do.
#[test]
fn planted_faults_are_found() {
    let Some(tools) = toolchain() else { return };
    let (kernel, target) = planted();
    let source = emit(&kernel, &target);
    let outcome = |from: &str, to: &str| {
        let change = |text: &str| {
            if text.contains("gemm_direct(") {
                assert!(text.contains(from), "{from}");
                return text.replace(from, to);
            }
            text.to_owned()
        };
        let code = compile(&tools, std::slice::from_ref(&source), ARCH, change).swap_remove(0);
        run(&tools, ARCH, (&kernel, &source, &code), &watching())
    };
    let right = outcome("", "").unwrap_or_else(|e| panic!("{e}"));
    assert!(right.verdict.is_within(), "{:?}", right.verdict);
    assert_eq!(right.counters.lds_bank_conflicts, 0);
    for (from, to) in [
        ("wait_for_loads<UNDER_WAY>();", ""),
        ("wait_for_loads<UNDER_WAY>();", "wait_for_loads<UNDER_WAY + 1>();"),
        (
            "wait_for_loads<(STAGES - 2) * LOADS>();",
            "wait_for_loads<(STAGES - 1) * LOADS>();",
        ),
    ] {
        let error = outcome(from, to).err().unwrap_or_else(|| panic!("{from}, {to} passes"));
        println!("{from}, {to}: {error}");
    }
    match outcome("if (PART && k >= depth)", "if (false)") {
        Ok(checked) => assert!(!checked.verdict.is_within(), "what is past the depth passes"),
        Err(error) => println!("past the depth: {error}"),
    }
    let banks = outcome("groups) & (AMONG - 1);", "groups) & 0;").unwrap_or_else(|e| panic!("{e}"));
    assert!(banks.verdict.is_within(), "{:?}", banks.verdict);
    assert!(banks.counters.lds_bank_conflicts > 0, "lines in one bank pass");
}

/// Accesses narrower than a chunk, and targets without such loads.
#[test]
fn what_cannot_go_straight_is_refused() {
    let (kernel, target) = planted();
    let Mapping::Matrix(tiling) = &kernel.mapping else {
        panic!("{}", kernel.mapping)
    };
    assert_eq!(limits::check(&kernel, &Symbols::new(), &target), []);
    let mut narrow = tiling.clone();
    narrow.lhs.width = 4;
    let errors = limits::check(&tiled(&kernel, narrow), &Symbols::new(), &target);
    assert!(
        matches!(errors[..], [LimitError::Direct { operand: "the lhs", .. }]),
        "{errors:?}"
    );
    let older: Target = "gfx942".parse().expect("a target of the table");
    let errors = limits::check(&kernel, &Symbols::new(), &older);
    assert_eq!(
        errors.iter().filter(|e| matches!(e, LimitError::Direct { .. })).count(),
        2,
        "{errors:?}"
    );
    let mut one = tiling.clone();
    one.stages = 1;
    assert!(ir::kernel::verify::verify(&tiled(&kernel, one)).is_err());
    // Rows of 612 elements do not begin at a multiple of 16 bytes.
    let body = " x = input \"x\" : f16[136, 612]\n w = input \"w\" : f16[612, 136]\n y = contract x, w";
    let (odd, target) = product(&graph(body), ARCH);
    assert!(tilings(&odd, &target).is_empty());
}

/// Every such tiling of products as models have them: none spills.
#[test]
fn no_tiling_spills() {
    let Some(tools) = toolchain() else { return };
    let large = |dtype: &str, flags: &str, follows: &str| {
        graph(&format!(
            " x = input \"x\" : {dtype}[4096, 4096]\n w = input \"w\" : {dtype}[4096, 4096]\n p = contract x, w{flags}\n{follows}"
        ))
    };
    let gelu = |dtype: &str| format!(" b = input \"b\" : {dtype}[4096]\n q = add p, b\n y = gelu q");
    let texts = [
        large("f16", "", &gelu("f16")),
        large("bf16", " {transpose_rhs}", &gelu("bf16")),
        large("i8", " {out=i32}", " y = relu p"),
        large("f8e4m3fn", " {out=f32, transpose_rhs}", " y = relu p"),
    ];
    let mut sources = Vec::new();
    for text in texts {
        let (kernel, target) = product(&text, ARCH);
        let tilings = tilings(&kernel, &target);
        assert!(tilings.len() >= 10, "{} of {text}", tilings.len());
        let take = if graphc_tests::everything() { 1 } else { 3 };
        sources.extend(
            tilings
                .into_iter()
                .step_by(take)
                .map(|t| emit(&tiled(&kernel, t), &target)),
        );
    }
    let codes = compile(&tools, &sources, ARCH, str::to_owned);
    let wrong: Vec<&str> = codes
        .iter()
        .zip(&sources)
        .filter_map(|(code, source)| spills(code).then_some(source.text.as_str()))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {} spill\n{}",
        wrong.len(),
        sources.len(),
        wrong.join("\n")
    );
}
