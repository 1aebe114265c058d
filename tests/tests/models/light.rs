//! The nine CNNs of the `onnx` package: stored outputs, and random weights against onnxruntime's outputs.

use graphc::frontend::onnx::randomize::{RandomFill, fill_random, uniform};
use graphc::frontend::onnx::read::read_model;
use graphc::frontend::onnx::{ImportOptions, import, import_model};
use graphc::ir::op::UnaryOp;
use graphc::ir::plan::{Step, Work};
use graphc::ir::{Graph, HostTensor, Op, Target};
use graphc::passes::OptLevel;
use graphc_tests::{data, reference};
use indexmap::IndexMap;

const LIGHT: [&str; 9] = [
    "light_bvlc_alexnet",
    "light_densenet121",
    "light_inception_v1",
    "light_inception_v2",
    "light_resnet50",
    "light_shufflenet",
    "light_squeezenet",
    "light_vgg19",
    "light_zfnet512",
];

#[test]
fn stored_outputs_match() {
    for name in LIGHT {
        let graph = import(&data(&format!("light/{name}.onnx")), &ImportOptions::default()).expect("imports");
        let (x, shape) = input(&graph);
        let n: usize = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|i| (i as f64 / n as f64) as f32).collect();
        let inputs = IndexMap::from([(x, HostTensor::from_f32(shape, &values).expect("the shape's count"))]);
        let want = graphc::arrays::read(&data(&format!("light/{name}.npz"))).expect("readable");
        let got = reference::compile_cpu(&graph, OptLevel::O2, None)
            .run(&inputs)
            .expect("runs");
        for (output, want) in &want {
            let d = graphc::compare::compare(&got[output], want, 1e-3, 1e-7).expect("same shape");
            assert!(d.is_within(), "{name}: {d:?}");
        }
    }
}

/// The name and the fixed shape of the only input.
fn input(graph: &Graph) -> (String, Vec<usize>) {
    let input = &graph.inputs()[0];
    let dims = graph.ty(input.node.into()).shape.as_consts().expect("fixed sizes");
    (input.name.clone(), dims.iter().map(|d| *d as usize).collect())
}

/// The same models with weights that differ from each other, against onnxruntime.
#[test]
fn random_weights_match_onnxruntime() {
    const SEED: u64 = 0x6772_6170_6863;
    for name in LIGHT {
        let want = graphc::arrays::read(&data(&format!("light_random/{name}.npz"))).expect("readable");
        let number = |key: &str| want[key].to_f64()[0];
        let mut model = read_model(data(&format!("light/{name}.onnx"))).expect("readable");
        let fill = RandomFill {
            seed: SEED,
            gain: number("gain"),
            head: number("head"),
        };
        fill_random(&mut model.graph, fill).expect("fills");
        let graph = import_model(&model, &ImportOptions::default()).expect("imports");
        let (x, shape) = input(&graph);
        let values: Vec<f32> = uniform(&x, SEED, shape.iter().product(), -1.0, 1.0).collect();
        let inputs = IndexMap::from([(x, HostTensor::from_f32(shape, &values).expect("the shape's count"))]);
        let got = reference::compile_cpu(&graph, OptLevel::O2, None)
            .run(&inputs)
            .expect("runs");
        // Probabilities are near 1e-3; DenseNet's output is logits near 1.
        let atol = if name == "light_densenet121" { 1e-4 } else { 1e-7 };
        let outputs: Vec<_> = want
            .iter()
            .filter(|(n, _)| !matches!(n.as_str(), "gain" | "head"))
            .collect();
        assert_eq!(outputs.len(), 1, "{name}");
        for (output, want) in outputs {
            let d = graphc::compare::compare(&got[output], want, 1e-3, atol).expect("same shape");
            assert!(d.is_within(), "{name}: {d:?}");
        }
    }
}

/// ResNet-50: every batch norm folded, every ReLU and residual in an epilogue.
#[test]
fn resnet50_is_fused() {
    let graph = import(&data("light/light_resnet50.onnx"), &ImportOptions::default()).expect("imports");
    for target in ["cpu", "gfx90a", "gfx942", "gfx1100"] {
        let target: Target = target.parse().expect("known");
        let options = graphc::driver::BuildOptions::new(vec![target], OptLevel::O2);
        let built = graphc::driver::build(&graph, &options).expect("builds");
        let plan = &built.program.variants[0].plan;
        let (launches, calls) = plan.launches();
        // A convolution in parts is two launches.
        let is_total = |step: &&Step| matches!(step.work, Work::Launch { kernel, .. } if plan.kernels[kernel].name.contains("_sum"));
        // One by Winograd's filtering is three.
        let filtered = built.reports[0].filtered.iter().filter(|one| one.taken).count();
        let launches = launches - plan.steps.values().filter(is_total).count() - 2 * filtered;
        assert!(
            launches + calls <= 58,
            "{target}: {launches} launches and {calls} calls"
        );
        let relu = Op::unary(UnaryOp::Relu);
        for region in built.reports[0].schedule.regions.values() {
            let core = &built.reports[0].core;
            let alone = region.nodes.iter().all(|n| core.node(*n).op == relu);
            assert!(
                !alone,
                "{target}: a region of its own for a ReLU at {}",
                core.node(region.anchor).origin
            );
        }
    }
}

/// SqueezeNet's concats: both arms are convolutions that nothing else reads, so they store into one buffer.
#[test]
fn squeezenet_has_no_concat_kernel() {
    let graph = import(&data("light/light_squeezenet.onnx"), &ImportOptions::default()).expect("imports");
    for target in ["cpu", "gfx90a", "gfx1100"] {
        let target: Target = target.parse().expect("known");
        let mut options = graphc::driver::BuildOptions::new(vec![target], OptLevel::O2);
        options.optimize.libraries = false;
        let built = graphc::driver::build(&graph, &options).expect("builds");
        let plan = &built.program.variants[0].plan;
        assert!(plan.kernels.values().all(|k| !k.name.starts_with("concat")), "{plan}");
        let parts: usize = built.reports[0].schedule.regions.values().map(|r| r.parts.len()).sum();
        assert_eq!(parts, 16, "eight fire modules of two arms");
    }
}
