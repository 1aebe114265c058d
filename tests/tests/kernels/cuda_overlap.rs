//! Launches for sm_90 that begin while the one before them is at work, compiled by the real NVRTC: what they read and
//! write before they wait, and who lets the next one begin. No GPU is needed.

use graphc_tests::nvrtc::compiler;
use graphc_tests::quantised::{Case, Random, Shape};
use ir::DType;
use ir::graph::parse::parse;
use runtime::compile::Compiler;

use crate::cuda_kernels::{hand_written, target};

/// A launch may begin before the one before it is done, so no kernel touches what others write before it has waited.
/// Constant weights may be read earlier, by the kernels that say so.
#[test]
fn kernels_wait_for_the_launch_before() {
    let Some(compiler) = compiler() else { return };
    let mut requests = hand_written();
    // Weights of four bits by matrix instructions, and others by lanes.
    let mut random = Random(18);
    let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
    for (stored, rows) in [(DType::I4, 1), (DType::U4, 5), (DType::I8, 2)] {
        let graph = Case::new(Shape::plain(stored, DType::F16, [rows, 8192, 1024], 128), &mut random).graph;
        let built = graphc::driver::build(&graph, &options).unwrap_or_else(|e| panic!("{stored}: {e}"));
        requests.extend(graphc::driver::requests(&built.program));
    }
    let mut early = 0;
    for request in &requests {
        let name = &request.name;
        let ptx = compiler.assembly(request).unwrap_or_else(|e| panic!("{name}: {e}"));
        // Waves without a share of the weights wait in a branch of their own, wherever that lies.
        let says = !request.source.contains("    wait_for_launch_before();");
        let at = "griddepcontrol.wait";
        let split = if says { ptx.rsplit_once(at) } else { ptx.split_once(at) };
        let (before, _) = split.unwrap_or_else(|| panic!("{name} does not wait:\n{}", request.source));
        // The instruction stands behind a label or a condition.
        let touches = |what: &str| {
            let mut words = before.lines().flat_map(str::split_whitespace);
            words.any(|word| word.starts_with(what))
        };
        // Streamed weights are copied, by a wave that waits for nobody.
        let streams = request.source.contains("gemv_stream<");
        for what in [
            "st.global",
            "atom.",
            "red.",
            "cp.async",
            "ld.global.f",
            "ld.global.u",
            "ld.global.v",
        ] {
            let copies = streams && what == "cp.async";
            assert_eq!(touches(what), copies, "{name}: {what} before it waits\n{before}");
        }
        assert_eq!(touches("ld.global.nc"), says && !streams, "{name}\n{before}");
        early += usize::from(says);
    }
    assert!(early >= 2, "{early} kernels read weights early");
    println!(
        "{} kernels wait, {early} of them once their weights are on their way",
        requests.len()
    );
}

/// A kernel with one behind it that streams constant weights lets it begin; no other does.
#[test]
fn kernels_before_streamed_weights_let_them_begin() {
    let numbers = |count: usize| (0..count).map(|i| (i * 7 % 15) as i64 - 7);
    let list = |values: Vec<String>| values.join(", ");
    let product = |name: &str, columns: usize, of: &str| {
        let weights = list(numbers(columns * 256).map(|v| v.to_string()).collect());
        let scales = list(numbers(columns * 2).map(|v| format!("{}.5", v.abs())).collect());
        format!(
            " w{name} = constant [{weights}] : i4[{columns}, 256]\n s{name} = constant [{scales}] : f16[{columns}, 2]\n \
             q{name} = dequantize w{name}, s{name} {{axis=1, group=128, out=f16}}\n \
             y{name} = contract {of}, q{name} {{transpose_rhs}}\n"
        )
    };
    let text = format!(
        "graph @chain stage=import {{\n x = input \"x\" : f16[1, 256]\n{}{} z = softmax y2 {{axis=1}}\n return z as \"z\"\n}}\n",
        product("1", 256, "x"),
        product("2", 40, "y1"),
    );
    let graph = parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
    let built = graphc::driver::build(&graph, &options).expect("builds");
    let sources = graphc::driver::requests(&built.program);
    let says = |what: &str| sources.iter().map(|r| r.source.contains(what)).collect::<Vec<_>>();
    assert_eq!(says("gemv_stream<Tiles"), [true, true, false]);
    assert_eq!(says("let_next_launch_begin();"), [true, false, false]);
}
