//! Launches for sm_90 that begin while the one before them is at work, compiled by the real NVRTC: what they read and
//! write before they wait, and who lets the next one begin. No GPU is needed.

use graphc_tests::nvrtc::compiler;
use graphc_tests::quantised::{Case, Random, Shape};
use ir::DType;
use ir::graph::parse::parse;
use ir::kernel::GemvStream;
use runtime::code_object;
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

/// A product of a row of 256 elements `of` by constant weights of four bits, as statements of a graph's text.
fn product(name: &str, columns: usize, of: &str) -> String {
    let numbers = |count: usize| (0..count).map(|i| (i * 7 % 15) as i64 - 7);
    let list = |values: Vec<String>| values.join(", ");
    let weights = list(numbers(columns * 256).map(|v| v.to_string()).collect());
    let scales = list(numbers(columns * 2).map(|v| format!("{}.5", v.abs())).collect());
    format!(
        " w{name} = constant [{weights}] : i4[{columns}, 256]\n s{name} = constant [{scales}] : f16[{columns}, 2]\n \
         q{name} = dequantize w{name}, s{name} {{axis=1, group=128, out=f16}}\n \
         y{name} = contract {of}, q{name} {{transpose_rhs}}\n"
    )
}

/// Builds a graph of `statements` over a row `x` of 256 elements.
fn built(statements: &str) -> graphc::driver::Build {
    let text = format!("graph @chain stage=import {{\n x = input \"x\" : f16[1, 256]\n{statements}}}\n");
    let graph = parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
    graphc::driver::build(&graph, &options).expect("builds")
}

/// A kernel with one behind it that streams constant weights lets it begin; no other does.
#[test]
fn kernels_before_streamed_weights_let_them_begin() {
    let statements = format!(
        "{}{} z = softmax y2 {{axis=1}}\n return z as \"z\"\n",
        product("1", 256, "x"),
        product("2", 40, "y1"),
    );
    let built = built(&statements);
    let sources = graphc::driver::requests(&built.program);
    let says = |what: &str| sources.iter().map(|r| r.source.contains(what)).collect::<Vec<_>>();
    assert_eq!(says("gemv_stream<Tiles"), [true, true, false]);
    assert_eq!(says("let_next_launch_begin();"), [true, false, false]);
}

/// A product behind one whose row takes much LDS has no room beside it.
#[test]
fn workgroups_that_stay_share_units_where_both_have_room() {
    let options = graphc::driver::BuildOptions::new(vec![target()], passes::OptLevel::O2);
    let mut random = Random(31);
    for (depth, expected) in [(1024, 2), (14336, 1)] {
        let widths = [depth, 256, 132 * 16];
        let graph = graphc_tests::chain::graph(DType::F16, Some(DType::I4), &widths, &mut random);
        let built = graphc::driver::build(&graph, &options).expect("builds");
        let kernels = built.program.variants[0].plan.kernels.values();
        let residents: Vec<_> = kernels
            .filter(|k| k.streams())
            .map(|k| k.resident_workgroups())
            .collect();
        assert_eq!(residents, [Some(1), Some(expected)], "{depth} deep");
    }
}

/// Workgroups that stay share units with those of the launch before, where these are of such a product too and all have
/// columns; elsewhere each has its unit alone.
#[test]
fn workgroups_that_stay_share_units_in_chains_of_products() {
    let Some(compiler) = compiler() else { return };
    let (most, columns) = (target().most_lds_bytes(), 132 * 16);
    // What stands between two products, and the columns of the second.
    let chain = |between: &str, second: usize| {
        format!(
            "{} a = {between}\n b = slice a {{starts=[0, 8], sizes=[1, 256], steps=[1, 1]}}\n{} return y2 as \"y\"\n",
            product("1", columns, "x"),
            product("2", second, "b"),
        )
    };
    for (between, second, expected) in [
        ("relu y1", columns, 2),
        // The last workgroup has no columns.
        ("relu y1", columns - 16, 1),
        // Another launch is between them, whose workgroups end when they do.
        ("softmax y1 {axis=1}", columns, 1),
    ] {
        let built = built(&chain(between, second));
        let plan = &built.program.variants[0].plan;
        let launched = plan.steps.values().filter_map(|step| step.work.kernel());
        let streams: Vec<_> = launched
            .map(|id| &plan.kernels[id])
            .filter(|kernel| kernel.streams())
            .collect();
        let [_, behind] = streams[..] else {
            panic!("{} products are streamed", streams.len())
        };
        assert_eq!(
            behind.resident_workgroups(),
            Some(expected),
            "{between}, {second} columns"
        );
        for kernel in streams {
            let fit = |count: u32| GemvStream::fit_together(&vec![kernel.gemv_lds(); count as usize], most);
            let residents = kernel.resident_workgroups().unwrap_or(0);
            assert!(fit(residents) && !fit(residents + 1), "{}", kernel.mapping);
        }
        for request in graphc::driver::requests(&built.program) {
            let object = compiler
                .compile(&request)
                .unwrap_or_else(|e| panic!("{}: {e}", request.name));
            let read = code_object::read(&object.bytes).unwrap_or_else(|e| panic!("{}: {e}", request.name));
            let local: Vec<_> = read.kernels.iter().map(|k| k.scratch_bytes).collect();
            assert_eq!(local, [0], "{}: {}", request.name, object.log);
        }
    }
}
