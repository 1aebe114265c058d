//! Attention ops of ONNX files on emulated GPUs: whole, against what onnxruntime gives, and what kernels a decode step
//! has.

use frontend::onnx::{ImportOptions, import_model, read_bytes};
use graphc_tests::emulator::{Tally, toolchain};
use graphc_tests::everything;
use graphc_tests::reference::{Tensors, assert_matches};
use ir::kernel::Body;
use ir::{DType, Graph};

use crate::onnx_cases::{Case, cases, host};

/// The cases that run when not everything does: a cache with room and one that grows, padded prompts, windows, masks
/// and halves.
const SOME: [&str; 7] = [
    "attention_past_positions",
    "gqa_f16",
    "gqa_prompt_padded",
    "gqa_token_room",
    "gqa_window_token",
    "mha_causal_past",
    "onnx_past_causal",
];

fn graph(case: &Case) -> Graph {
    let model = read_bytes(&case.name, case.model.clone().into(), None).expect("a model");
    // A cache with room is one that is never too short.
    let mut options = ImportOptions::default();
    if case.name == "gqa_token_room" {
        options = options.size("total=1..11").expect("a size");
    }
    import_model(&model, &options).unwrap_or_else(|e| panic!("{}: {e}", case.name))
}

#[test]
fn attention_ops_on_emulated_gpus() {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    for case in cases("onnx_attention.bin") {
        if !everything() && !SOME.contains(&case.name.as_str()) {
            continue;
        }
        let read = |tensors| -> Tensors { host(tensors).expect("element types that graphc has") };
        let (inputs, want, graph) = (read(&case.inputs), read(&case.outputs), graph(&case));
        for arch in ["gfx90a", "gfx1100"] {
            let built = tools.build(&graph, arch, None);
            let context = format!("{} {arch}", case.name);
            let outcome = tools.run(&built, &inputs, 4_000_000);
            tally.add(&context, &outcome);
            let dtype = if case.name.ends_with("f16") {
                DType::F16
            } else {
                DType::F32
            };
            assert_matches(&outcome.outputs, &want, dtype, &context);
            if case.name == "gqa_token_room" {
                let plan = &built.program.variants[0].plan;
                let attentions = |body: &Body| matches!(body, Body::Attention(_));
                let attentions = plan.kernels.values().filter(|kernel| attentions(&kernel.body)).count();
                assert_eq!(attentions, 1, "{context}: the scores stay in the kernel");
            }
        }
    }
    tally.finish("attention ops", 80);
}
