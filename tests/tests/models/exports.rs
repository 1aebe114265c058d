//! PyTorch's exports: both exporters, two sizes from one compile, no shape op left, composites found, few launches.

use std::path::Path;

use graphc::frontend::onnx::{ImportOptions, import};
use graphc::ir::kernel::Access;
use graphc::ir::op::{Composite, Op};
use graphc::ir::{DType, Graph, Target};
use graphc::passes::{OptLevel, OptimizeOptions, optimize};
use graphc_tests::{data, reference};

const EXPORTS: [&str; 8] = [
    "bert.ts",
    "bert.dy",
    "gpt2.dy",
    "llama.dy",
    "vit.ts",
    "vit.dy",
    "mobilenet.ts",
    "mobilenet.dy",
];

fn graph(name: &str) -> Graph {
    import(&data(&format!("exports/{name}.onnx")), &ImportOptions::default()).expect("imports")
}

fn arrays(path: &Path) -> reference::Tensors {
    graphc::arrays::read(path).expect("readable")
}

#[test]
fn outputs_match_pytorch_at_both_sizes_from_one_compile() {
    for name in EXPORTS {
        let model = name.split('.').next().expect("a name");
        let exe = reference::compile_cpu(&graph(name), OptLevel::O2, None);
        for size in ["", "2"] {
            let inputs = arrays(&data(&format!("exports/{model}.in{size}.npz")));
            let want = arrays(&data(&format!("exports/{model}.out{size}.npz")));
            let got = exe.run(&inputs).unwrap_or_else(|e| panic!("{name} size {size:?}: {e}"));
            let d = graphc::compare::compare(&got["y"], &want["y"], 1e-3, 1e-5).expect("same shape");
            assert!(d.is_within(), "{name} size {size:?}: {d:?}");
        }
    }
}

#[test]
fn composites_are_recognised() {
    // (model, attentions, norms, contractions)
    for (name, attentions, norms) in [
        ("bert.ts", 2, 5),
        ("bert.dy", 2, 5),
        ("gpt2.dy", 2, 5),
        ("llama.dy", 2, 5),
        ("vit.ts", 2, 5),
        ("vit.dy", 2, 5),
    ] {
        let options = OptimizeOptions::at(OptLevel::O2);
        let (core, _) = optimize(graph(name), &Target::cpu(), &options).expect("optimises");
        let count = |f: fn(&Op) -> bool| core.nodes().values().filter(|n| f(&n.op)).count();
        assert_eq!(
            count(|op| matches!(op, Op::Composite(Composite::Attention { .. }))),
            attentions,
            "{name}: attention"
        );
        let is_norm = |op: &Op| {
            matches!(
                op,
                Op::Composite(Composite::LayerNorm { .. } | Composite::RmsNorm { .. })
            )
        };
        assert_eq!(count(is_norm), norms, "{name}: norms");
        assert_eq!(
            count(|op| matches!(op, Op::Composite(Composite::Softmax { .. }))),
            0,
            "{name}: softmax outside attention"
        );
        // Merged Q/K/V, the output projection and the feed-forward's two (Llama: gate and up are one) a layer.
        let contractions = count(|op| matches!(op, Op::Contract(_)));
        assert!(contractions <= 2 * 4 + 2, "{name}: {contractions} contractions");
    }
}

#[test]
fn no_shape_arithmetic_is_left() {
    for name in EXPORTS {
        let built = graphc::driver::build(
            &graph(name),
            &graphc::driver::BuildOptions::new(vec![Target::cpu()], OptLevel::O2),
        )
        .expect("builds");
        for kernel in built.program.variants[0].plan.kernels.values() {
            for param in kernel.params.values() {
                // Sizes are arguments; the only integers in memory are the model's own inputs, masks made of them, and
                // what is written for the host: the first index outside its axis.
                let is_shape = param.access == Access::Read
                    && param.dtype == DType::I64
                    && param.elements.as_const().is_some_and(|n| n < 8);
                assert!(
                    !is_shape,
                    "{name}: kernel {} reads {} elements of i64",
                    kernel.name, param.elements
                );
            }
        }
    }
}

/// In-place results, epilogues and decomposed composites differ between the levels; the numbers must not.
#[test]
fn every_level_gives_the_same_outputs() {
    for name in EXPORTS {
        let model = name.split('.').next().expect("a name");
        let inputs = arrays(&data(&format!("exports/{model}.in2.npz")));
        let want = arrays(&data(&format!("exports/{model}.out2.npz")));
        for level in [OptLevel::O0, OptLevel::O1, OptLevel::O3] {
            let got = reference::compile_cpu(&graph(name), level, None)
                .run(&inputs)
                .expect("runs");
            let d = graphc::compare::compare(&got["y"], &want["y"], 1e-3, 1e-5).expect("same shape");
            assert!(d.is_within(), "{name} at {level:?}: {d:?}");
        }
    }
}
