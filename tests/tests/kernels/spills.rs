//! Kernels whose registers spill get other mappings, as the real compiler says: convolutions of networks' first layers on RDNA 3.

use graphc::driver::{self, BuildOptions, build};
use graphc::passes::OptLevel;
use graphc_tests::emulator::toolchain;
use ir::graph::parse::parse;
use ir::kernel::verify::verify;
use ir::{Program, Target};
use runtime::code_object;

/// Registers in memory, of all kernels.
fn spilled(program: &Program) -> u32 {
    let code = program.variants[0].code.values().flatten();
    code.map(|code| code_object::read(code).expect("a code object").kernels[0].vgpr_spills)
        .sum()
}

#[test]
fn convolutions_that_spill_are_tiled_again() {
    let Some(tools) = toolchain() else { return };
    let target: Target = "gfx1100".parse().expect("a target of the table");
    let mut before = 0;
    for (image, filter, window) in [
        (
            "8, 3, 224, 224",
            "64, 3, 7, 7",
            "strides=[2, 2], pad_low=[3, 3], pad_high=[3, 3]",
        ),
        (
            "8, 128, 28, 28",
            "128, 4, 3, 3",
            "pad_low=[1, 1], pad_high=[1, 1], groups=32",
        ),
        ("1, 512, 7, 7", "512, 512, 3, 3", "pad_low=[1, 1], pad_high=[1, 1]"),
    ] {
        let text = format!(
            "graph @conv stage=import {{\n  x = input \"x\" : f16[{image}]\n  w = constant random(seed=1) : f16[{filter}]\n  \
             c = conv x, w {{{window}}}\n  y = relu c\n  return y as \"y\"\n}}\n"
        );
        let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let mut options = BuildOptions::new(vec![target], OptLevel::O2);
        options.optimize.libraries = false;
        let mut program = build(&graph, &options).unwrap_or_else(|e| panic!("{e}")).program;
        driver::compile(&mut program, &tools.compiler, &|_| ()).unwrap_or_else(|e| panic!("{e}"));
        let at_first = spilled(&program);
        let mended = driver::mend_spills(&mut program, &tools.compiler, &|_| ()).unwrap_or_else(|e| panic!("{e}"));
        let now = spilled(&program);
        println!("{image}: {at_first} registers, {mended} kernels mapped again, {now} registers");
        before += at_first;
        assert_eq!(mended > 0, now < at_first, "{text}");
        // Few tilings of three channels spill nothing.
        assert!(3 * now <= at_first, "{text}");
        for kernel in program.variants[0].plan.kernels.values() {
            verify(kernel).unwrap_or_else(|e| panic!("{e}"));
        }
        // Nothing is left to try.
        assert_eq!(
            driver::mend_spills(&mut program, &tools.compiler, &|_| ()).ok(),
            Some(0)
        );
    }
    assert!(before > 0, "nothing of this spills at first: find what does");
}
