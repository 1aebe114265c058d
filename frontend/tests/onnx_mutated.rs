//! Damaged models: whatever the reader accepts is imported or refused, and never panics.

use std::path::Path;

use graphc_frontend::onnx::{ImportOptions, import_model, read_bytes};
use proptest::prelude::*;

fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    let mut seeds: Vec<Vec<u8>> = ["light/light_squeezenet.onnx", "light/light_shufflenet.onnx"]
        .iter()
        .map(|name| std::fs::read(folder.join(name)).unwrap())
        .collect();
    // The models of the node tests: name, model, then two lists of tensors.
    let bytes = std::fs::read(folder.join("onnx_nodes.bin")).unwrap();
    let mut at = 0;
    let number = |at: &mut usize| {
        let value = u32::from_le_bytes(bytes[*at..*at + 4].try_into().unwrap()) as usize;
        *at += 4;
        value
    };
    while at < bytes.len() {
        at += number(&mut at);
        let len = number(&mut at);
        seeds.push(bytes[at..at + len].to_vec());
        at += len;
        for _ in 0..2 {
            for _ in 0..number(&mut at) {
                let len = number(&mut at);
                at += len;
            }
        }
    }
    seeds
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn mutated_models_never_panic(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        thread_local!(static SEEDS: Vec<Vec<u8>> = seeds());
        let mut bytes = SEEDS.with(|seeds| which.get(seeds).clone());
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(model) = read_bytes("mutated", bytes.into(), None)
            && let Ok(graph) = import_model(&model, &ImportOptions::default())
        {
            prop_assert!(ir::graph::verify::verify(&graph).is_ok());
        }
    }
}
