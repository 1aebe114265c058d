//! Two products as one kernel, on emulated GPUs against the reference evaluator of the graph: every form, types, sizes
//! that divide no tile, numbers that are none; and which pairs become one.

use graphc::driver::{self, Build, BuildOptions};
use graphc::runtime::code_object;
use graphc_tests::emulator::{Tally, Toolchain, toolchain};
use graphc_tests::quantised::Random;
use graphc_tests::reference::{Tensors, assert_matches, random_inputs};
use ir::graph::eval::evaluate;
use ir::graph::parse::parse;
use ir::kernel::{Body, Kernel, Weights};
use ir::{Bindings, DType, Graph, HostTensor};
use passes::OptLevel;
use passes::fuse::Chains;

/// The GPUs that chain products.
const CHAINING: [&str; 4] = ["gfx90a", "gfx942", "gfx950", "gfx1201"];

/// What a chain is made of.
struct Case {
    what: &'static str,
    dtype: DType,
    /// The shape of the rows; the last dimension is the depth.
    x: &'static [usize],
    hidden: usize,
    width: usize,
    /// Whether the matrices lie by columns.
    transposed: [bool; 2],
    /// What lies between the products `p` and `h`, and behind the second, `s`, to `y`: lines of a graph.
    between: &'static str,
    after: &'static str,
}

const CASES: [Case; 10] = [
    Case {
        what: "bias, GELU, bias and residual",
        dtype: DType::F16,
        x: &[70, 64],
        hidden: 96,
        width: 64,
        transposed: [false, false],
        between: "q = add p, c\n h = gelu q",
        after: "t = add s, e\n y = add t, x",
    },
    Case {
        what: "no number divides a tile, matrices by columns",
        dtype: DType::F16,
        x: &[33, 24],
        hidden: 37,
        width: 19,
        transposed: [true, true],
        between: "q = add p, c\n h = relu q",
        after: "y = add s, e",
    },
    Case {
        what: "rows of two dimensions",
        dtype: DType::BF16,
        x: &[3, 11, 40],
        hidden: 72,
        width: 48,
        transposed: [true, false],
        between: "q = add p, c\n h = silu q",
        after: "y = add s, e",
    },
    Case {
        what: "one row, whose waves share out the columns between",
        dtype: DType::F16,
        x: &[1, 64],
        hidden: 300,
        width: 32,
        transposed: [false, true],
        between: "q = add p, c\n h = relu q",
        after: "y = add s, e",
    },
    Case {
        what: "a tile or less between",
        dtype: DType::F16,
        x: &[50, 32],
        hidden: 5,
        width: 16,
        transposed: [false, false],
        between: "h = relu p",
        after: "y = relu s",
    },
    Case {
        what: "nothing between",
        dtype: DType::BF16,
        x: &[40, 80],
        hidden: 64,
        width: 96,
        transposed: [false, false],
        between: "h = neg p",
        after: "y = neg s",
    },
    Case {
        what: "in f32",
        dtype: DType::F32,
        x: &[45, 48],
        hidden: 50,
        width: 33,
        transposed: [false, true],
        between: "q = add p, c\n h = tanh q",
        after: "y = add s, e",
    },
    Case {
        what: "wide",
        dtype: DType::F16,
        x: &[20, 192],
        hidden: 128,
        width: 192,
        transposed: [false, false],
        between: "q = add p, c\n h = gelu_tanh q",
        after: "y = add s, x",
    },
    Case {
        what: "a mask by position between, whose value past the end is not 0",
        dtype: DType::F16,
        x: &[35, 16],
        hidden: 41,
        width: 24,
        transposed: [false, false],
        between: "q = add p, c\n r = exp q\n h = add r, c",
        after: "y = add s, e",
    },
    Case {
        what: "one column, one of depth",
        dtype: DType::F16,
        x: &[18, 1],
        hidden: 20,
        width: 1,
        transposed: [false, false],
        between: "q = add p, c\n h = relu q",
        after: "y = add s, e",
    },
];

fn graph(case: &Case) -> Graph {
    let Case {
        dtype, hidden, width, ..
    } = case;
    let shape: Vec<String> = case.x.iter().map(ToString::to_string).collect();
    let depth = case.x[case.x.len() - 1];
    let matrix = |depth: usize, columns: usize, transposed: bool| match transposed {
        true => (format!("[{columns}, {depth}]"), " {transpose_rhs}"),
        false => (format!("[{depth}, {columns}]"), ""),
    };
    let ((a, ta), (b, tb)) = (
        matrix(depth, *hidden, case.transposed[0]),
        matrix(*hidden, *width, case.transposed[1]),
    );
    let (between, after, x) = (case.between, case.after, shape.join(", "));
    let text = format!(
        "graph @chain stage=import {{\n x = input \"x\" : {dtype}[{x}]\n a = input \"a\" : {dtype}{a}\n b = input \"b\" : {dtype}{b}\n \
         c = input \"c\" : {dtype}[{hidden}]\n e = input \"e\" : {dtype}[{width}]\n p = contract x, a{ta}\n {between}\n s = contract h, b{tb}\n \
         {after}\n return y as \"y\"\n}}\n"
    );
    parse(&text).unwrap_or_else(|e| panic!("{}: {e}", case.what))
}

fn is_chain(kernel: &Kernel) -> bool {
    matches!(&kernel.body, Body::Attention(a) if a.weights == Weights::Scores)
}

/// Builds a graph with or without all chains that there can be.
fn build(tools: &Toolchain, graph: &Graph, arch: &str, chains: Chains) -> Build {
    let mut options = BuildOptions::new(vec![arch.parse().expect("a target")], OptLevel::O2);
    options.optimize.libraries = false;
    options.schedule.chains = chains;
    let mut built = driver::build(graph, &options).unwrap_or_else(|e| panic!("{arch}: {e}"));
    driver::compile(&mut built.program, &tools.compiler, &|_| ()).unwrap_or_else(|e| panic!("{arch}: {e}"));
    built
}

/// The same inputs with one element of the rows as given.
fn with(inputs: &Tensors, number: f64) -> Tensors {
    let mut inputs = inputs.clone();
    let x = &inputs["x"];
    let mut values = x.to_f64();
    values[0] = number;
    let x = HostTensor::from_f64(x.dtype, x.shape.clone(), &values).expect("as many numbers");
    inputs.insert("x".to_owned(), x);
    inputs
}

fn check(arch: &str) {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    for case in &CASES {
        let context = format!("{arch}: {}", case.what);
        let graph = graph(case);
        let built = build(&tools, &graph, arch, Chains::Always);
        let plan = &built.program.variants[0].plan;
        // Not every type has an instruction everywhere, and a lane of RDNA has half of the registers.
        let typed = plan
            .target
            .matrix
            .iter()
            .any(|i| i.has_unit() && i.takes(case.dtype, case.dtype));
        let has = typed && (arch != "gfx1201" || case.what != "wide");
        let kernels: Vec<&str> = plan.kernels.values().map(|k| k.name.as_str()).collect();
        assert_eq!(plan.launches().0 == 1, has, "{context}: {kernels:?}");
        assert_eq!(plan.kernels.values().any(is_chain), has, "{context}: {kernels:?}");
        let plain = random_inputs(&graph, &Bindings::new(), 9);
        for inputs in [plain.clone(), with(&plain, f64::NAN), with(&plain, f64::INFINITY)] {
            let outcome = tools.run(&built, &inputs, 1 << 28);
            tally.add(&context, &outcome);
            let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_matches(&outcome.outputs, &want, case.dtype, &context);
        }
    }
    tally.finish(arch, CASES.len());
}

#[test]
fn chains_on_gfx90a() {
    check("gfx90a");
}

#[test]
fn chains_on_gfx942() {
    check("gfx942");
}

#[test]
fn chains_on_gfx950() {
    check("gfx950");
}

#[test]
fn chains_on_gfx1201() {
    check("gfx1201");
}

#[test]
fn random_chains() {
    let Some(tools) = toolchain() else { return };
    let mut random = Random(77);
    let cases = if graphc_tests::everything() { 100 } else { 12 };
    for number in 0..cases {
        let mut of = |all: &[usize]| all[random.below(all.len())];
        let x = [of(&[1, 7, 16, 31, 64, 100]), of(&[8, 15, 32, 64, 72, 96, 128])];
        let case = Case {
            what: "random",
            dtype: [DType::F16, DType::BF16][of(&[0, 1])],
            x: &x[..].to_vec().leak()[..],
            hidden: of(&[1, 9, 16, 33, 64, 100, 144]),
            width: of(&[3, 8, 16, 40, 64, 96, 128]),
            transposed: [of(&[0, 1]) == 1, of(&[0, 1]) == 1],
            between: ["h = relu p", "q = add p, c\n h = silu q"][of(&[0, 1])],
            after: ["y = add s, e", "y = relu s"][of(&[0, 1])],
        };
        let arch = CHAINING[number % CHAINING.len()];
        let context = format!("{arch}: {:?} {} {} {:?}", x, case.hidden, case.width, case.transposed);
        let graph = graph(&case);
        let built = build(&tools, &graph, arch, Chains::Always);
        let plan = &built.program.variants[0].plan;
        assert!(plan.kernels.values().any(is_chain), "{context}");
        let inputs = random_inputs(&graph, &Bindings::new(), number as u64);
        let outcome = tools.run(&built, &inputs, 1 << 28);
        let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_matches(&outcome.outputs, &want, case.dtype, &context);
    }
}

/// Chains of the widths that vision transformers have are chosen by themselves, and none of them spills.
#[test]
fn chains_that_pay_compile_without_spills() {
    let Some(tools) = toolchain() else { return };
    for arch in CHAINING {
        let mut chosen = Vec::new();
        for (rows, depth, hidden) in [
            (65_536, 64, 256),
            (100_352, 96, 384),
            (200_704, 128, 512),
            (65_536, 32, 128),
        ] {
            for (dtype, function) in [("f16", "gelu"), ("f16", "relu"), ("bf16", "silu")] {
                let text = format!(
                    "graph @block stage=import {{\n x = input \"x\" : {dtype}[{rows}, {depth}]\n a = constant random(seed=1) : \
                     {dtype}[{depth}, {hidden}]\n b = constant random(seed=2) : {dtype}[{hidden}, {depth}]\n c = constant random(seed=3) : \
                     {dtype}[{hidden}]\n p = contract x, a\n q = add p, c\n h = {function} q\n s = contract h, b\n y = add s, x\n \
                     return y as \"y\"\n}}\n"
                );
                let graph = parse(&text).unwrap_or_else(|e| panic!("{e}"));
                let built = build(&tools, &graph, arch, Chains::Fastest);
                let variant = &built.program.variants[0];
                if !variant.plan.kernels.values().any(is_chain) {
                    continue;
                }
                chosen.push(format!("{depth} {dtype} {function}"));
                for code in variant.code.values().flatten() {
                    for kernel in &code_object::read(code).expect("a code object").kernels {
                        let spilled = (kernel.vgpr_spills, kernel.sgpr_spills, kernel.scratch_bytes);
                        assert_eq!(spilled, (0, 0, 0), "{arch} {rows} x {depth}: {}", kernel.name);
                    }
                }
            }
        }
        println!("{arch}: {}", chosen.join(", "));
        assert!(chosen.len() >= 4, "{arch}: {chosen:?}");
    }
}
