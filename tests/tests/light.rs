//! The nine CNNs of the `onnx` package: stored outputs, and random weights against onnxruntime's outputs.

use graphc::frontend::onnx::{ImportOptions, import};
use graphc::ir::{HostTensor, Target};
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
        let input = &graph.inputs()[0];
        let shape: Vec<usize> =
            graph.ty(input.node.into()).shape.as_consts().expect("fixed sizes").iter().map(|d| *d as usize).collect();
        let n: usize = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|i| (i as f64 / n as f64) as f32).collect();
        let inputs =
            IndexMap::from([(input.name.clone(), HostTensor::from_f32(shape, &values).expect("the shape's count"))]);
        let want = graphc::arrays::read(&data(&format!("light/{name}.npz"))).expect("readable");
        let got = reference::compile_cpu(&graph, OptLevel::O2, None).run(&inputs).expect("runs");
        for (output, want) in &want {
            let d = graphc::compare::compare(&got[output], want, 1e-3, 1e-7).expect("same shape");
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
        let (launches, calls) = built.program.variants[0].plan.launches();
        assert!(launches + calls <= 58, "{target}: {launches} launches and {calls} calls");
        let relu = graphc::ir::Op::unary(graphc::ir::op::UnaryOp::Relu);
        for region in built.reports[0].schedule.regions.values() {
            let core = &built.reports[0].core;
            let alone = region.nodes.iter().all(|n| core.node(*n).op == relu);
            assert!(!alone, "{target}: a region of its own for a ReLU at {}", core.node(region.anchor).origin);
        }
    }
}
