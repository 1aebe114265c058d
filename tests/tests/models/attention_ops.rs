//! Attention ops of ONNX files on the CPU device, at sizes that the compiled program leaves open, against what
//! onnxruntime gives; and a language model as onnxruntime-genai writes it, which is given back the caches that it made.

use frontend::onnx::{ImportOptions, import_model, read_bytes};
use graphc::passes::OptLevel;
use graphc_tests::reference::{Tensors, assert_matches, compile_cpu};
use ir::op::{Gather, Scatter, View};
use ir::{DType, Graph, HostTensor, Op};

use crate::onnx_cases::{Case, cases, host};

fn graph(case: &Case, options: &ImportOptions) -> Graph {
    let model = read_bytes(&case.name, case.model.clone().into(), None).expect("a model");
    import_model(&model, options).unwrap_or_else(|e| panic!("{}: {e}", case.name))
}

fn tensors(case: &Case) -> (Tensors, Tensors) {
    let read = |tensors| host(tensors).expect("element types that graphc has");
    (read(&case.inputs), read(&case.outputs))
}

fn cases_of(prefix: &str) -> Vec<Case> {
    let mut all = cases("onnx_attention.bin");
    all.retain(|case| case.name.starts_with(prefix));
    all
}

#[test]
fn every_form_runs_on_the_cpu() {
    let mut count = 0;
    for case in cases_of("").iter().filter(|case| !case.name.starts_with("decoder_")) {
        let (inputs, want) = tensors(case);
        let exe = compile_cpu(&graph(case, &ImportOptions::default()), OptLevel::O2, None);
        let got = exe.run(&inputs).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let dtype = if case.name.ends_with("f16") {
            DType::F16
        } else {
            DType::F32
        };
        assert_matches(&got, &want, dtype, &case.name);
        count += 1;
    }
    assert_eq!(count, 70);
}

/// Caches that the model gave, as its next step takes them.
fn handed_over(got: &Tensors) -> impl Iterator<Item = (String, HostTensor)> {
    let caches = got.iter().filter(|(name, _)| name.starts_with("present."));
    caches.map(|(name, tensor)| (name.replace("present", "past_key_values"), tensor.clone()))
}

/// One program takes the prompt, without a past, and three tokens.
#[test]
fn a_language_model_grows_its_caches() {
    let steps = cases_of("decoder_");
    let exe = compile_cpu(&graph(&steps[0], &ImportOptions::default()), OptLevel::O2, None);
    let mut caches: Option<Tensors> = None;
    for step in &steps {
        let (mut inputs, want) = tensors(step);
        inputs.extend(caches.take().into_iter().flatten());
        let got = exe.run(&inputs).unwrap_or_else(|e| panic!("{}: {e}", step.name));
        assert_matches(&got, &want, DType::F32, &step.name);
        caches = Some(handed_over(&got).collect());
    }
    assert_eq!(steps.len(), 4);
}

/// Options by which the decoder's caches have room for so many positions.
fn with_room(room: i64) -> ImportOptions {
    let size = format!("total_sequence_length=1..{room}");
    let mut options = ImportOptions::default().size(&size).expect("a size");
    for layer in 0..2 {
        for part in ["key", "value"] {
            let shape = format!("past_key_values.{layer}.{part}=[batch_size, 2, {room}, 16]");
            options = options.shape(&shape).expect("a shape");
        }
    }
    options
}

/// Where a cache has room for all positions, rows are written into it and nothing else is copied; what the model
/// computes is the same.
#[test]
fn a_language_model_fills_caches_with_room() {
    let (room, steps) = (11, cases_of("decoder_"));
    let graph = graph(&steps[0], &with_room(room));
    let count = |f: fn(&Op) -> bool| graph.nodes().values().filter(|node| f(&node.op)).count();
    assert_eq!(count(|op| matches!(op, Op::Scatter(Scatter::Elements { .. }))), 4);
    assert_eq!(count(|op| matches!(op, Op::View(View::Pad { .. }))), 0);
    assert_eq!(count(|op| matches!(op, Op::Gather(Gather::Elements { .. }))), 0);
    let exe = compile_cpu(&graph, OptLevel::O2, None);
    let empty = HostTensor::from_f32([2, 2, room as usize, 16], &[0.25; 2 * 2 * 11 * 16]).expect("as many");
    let names = (0..2).flat_map(|layer| ["key", "value"].map(|part| format!("past_key_values.{layer}.{part}")));
    let mut caches: Tensors = names.map(|name| (name, empty.clone())).collect();
    for step in &steps {
        let (mut inputs, want) = tensors(step);
        inputs.extend(std::mem::take(&mut caches));
        let got = exe.run(&inputs).unwrap_or_else(|e| panic!("{}: {e}", step.name));
        let logits = |all: &Tensors| Tensors::from([("logits".to_owned(), all["logits"].clone())]);
        assert_matches(&logits(&got), &logits(&want), DType::F32, &step.name);
        caches = handed_over(&got).collect();
    }
}
