//! Damaged models: whatever the reader accepts is imported or refused, and never panics.
//!
//! Flipped bytes mostly spoil names, so models are also changed where they are decoded: sizes, attributes, opsets, the
//! values of shapes and axes, which value goes where.

use std::path::Path;

use graphc_frontend::onnx::proto::tensor_shape_proto::dimension::Value;
use graphc_frontend::onnx::proto::{ModelProto, NodeProto, TensorProto, type_proto};
use graphc_frontend::onnx::{ImportOptions, ModelFile, import_model, read_bytes};
use ir::op::Groups;
use ir::recipe::{Activation, Layer, Weight};
use ir::{DType, HostTensor};
use proptest::prelude::*;
use prost::Message;

/// The models of the node tests, and the tensors that they are run with.
fn seeds() -> Vec<(ModelProto, Vec<TensorProto>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    let bytes = std::fs::read(folder.join("onnx_nodes.bin")).unwrap();
    let mut rest = bytes.as_slice();
    let mut seeds = Vec::new();
    fn number(rest: &mut &[u8]) -> usize {
        let (head, tail) = rest.split_at(4);
        *rest = tail;
        u32::from_le_bytes(head.try_into().unwrap()) as usize
    }
    fn blob<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
        let len = number(rest);
        let (head, tail) = rest.split_at(len);
        *rest = tail;
        head
    }
    while !rest.is_empty() {
        blob(&mut rest);
        let model = ModelProto::decode(blob(&mut rest)).unwrap();
        let lists: Vec<Vec<TensorProto>> = (0..2)
            .map(|_| {
                (0..number(&mut rest))
                    .map(|_| TensorProto::decode(blob(&mut rest)).unwrap())
                    .collect()
            })
            .collect();
        seeds.push((model, lists.into_iter().next().unwrap()));
    }
    for name in ["light/light_squeezenet.onnx", "exports/vit.ts.onnx"] {
        let bytes = std::fs::read(folder.join(name)).unwrap();
        seeds.push((ModelProto::decode(bytes.as_slice()).unwrap(), Vec::new()));
    }
    seeds
}

const NUMBERS: [i64; 14] = [
    0,
    1,
    -1,
    2,
    3,
    -2,
    7,
    64,
    -100,
    1 << 31,
    1 << 40,
    i64::MAX,
    i64::MIN,
    i64::MIN + 1,
];
const FLOATS: [f32; 8] = [0.0, -1.0, 0.5, 2.0, 1e30, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

#[derive(Clone, Copy, Debug)]
struct Change {
    kind: u8,
    at: usize,
    sub: usize,
    value: usize,
}

fn apply(model: &mut ModelProto, constants: &[TensorProto], change: Change) {
    let number = NUMBERS[change.value % NUMBERS.len()];
    let Some(graph) = model.graph.as_mut() else { return };
    let pick = |len: usize| (len > 0).then(|| change.at % len);
    match change.kind {
        // A value that was an input becomes a constant, perhaps with other contents.
        0 | 1 => {
            let Some(i) = pick(constants.len()) else { return };
            let mut tensor = constants[i].clone();
            if change.kind == 1 && !tensor.raw_data.is_empty() {
                let mut raw = tensor.raw_data.to_vec();
                let at = change.sub % raw.len() / 8 * 8;
                for (byte, new) in raw[at..].iter_mut().zip(number.to_le_bytes()) {
                    *byte = new;
                }
                tensor.raw_data = raw.into();
            }
            if !graph.initializer.iter().any(|t| t.name == tensor.name) {
                graph.initializer.push(tensor);
            }
        }
        2 => {
            let Some(i) = pick(graph.input.len()) else { return };
            let ty = graph.input[i].r#type.as_mut().and_then(|t| t.value.as_mut());
            if let Some(type_proto::Value::TensorType(tensor)) = ty
                && let Some(shape) = tensor.shape.as_mut()
            {
                let len = shape.dim.len();
                if len > 0 {
                    let value = match change.value % 3 {
                        0 => Value::DimParam(format!("s{}", change.value % 2)),
                        _ => Value::DimValue(number),
                    };
                    shape.dim[change.sub % len].value = Some(value);
                } else {
                    shape.dim.push(Default::default());
                }
            }
        }
        3 => model
            .opset_import
            .iter_mut()
            .for_each(|o| o.version = 7 + (change.value % 17) as i64),
        4 => {
            let Some(i) = pick(graph.input.len()) else { return };
            if let Some(type_proto::Value::TensorType(t)) =
                graph.input[i].r#type.as_mut().and_then(|t| t.value.as_mut())
            {
                t.elem_type = change.value as i32 % 23;
            }
        }
        _ => {
            let Some(i) = pick(graph.node.len()) else { return };
            let node = &mut graph.node[i];
            match change.kind {
                5 if !node.input.is_empty() => {
                    let (from, to) = (change.sub % node.input.len(), change.value % node.input.len());
                    node.input[to] = node.input[from].clone();
                }
                6 if !node.input.is_empty() => {
                    let at = change.sub % node.input.len();
                    node.input[at].clear();
                }
                7 => drop(node.input.pop()),
                _ if !node.attribute.is_empty() => {
                    let at = change.sub % node.attribute.len();
                    let attribute = &mut node.attribute[at];
                    attribute.i = number;
                    attribute.f = FLOATS[change.value % FLOATS.len()];
                    if !attribute.ints.is_empty() {
                        let at = change.value % attribute.ints.len();
                        attribute.ints[at] = number;
                    }
                    if !attribute.floats.is_empty() {
                        attribute.floats[0] = FLOATS[change.value % FLOATS.len()];
                    }
                    if change.kind == 8 {
                        node.attribute.remove(at);
                    }
                }
                _ => {}
            }
        }
    }
}

/// Gives products of a file four-bit weights, which raises the operator set of all else: a file that is still a model,
/// or an error.
fn quantized(bytes: Vec<u8>) -> Result<(), TestCaseError> {
    let Ok(file) = ModelFile::from_bytes("mutated", bytes.into(), None) else {
        return Ok(());
    };
    let names = |n: &NodeProto| [Some(n.name.clone()), n.output.first().cloned()];
    let nodes = file.proto().graph.iter().flat_map(|g| &g.node);
    let names: Vec<String> = nodes.flat_map(names).flatten().take(4).collect();
    for name in names {
        let weight = Weight {
            dtype: DType::U4,
            axis: Some(1),
            groups: Some(Groups { axis: 0, size: 2 }),
            scales: vec![0.5, 1.0],
            zeros: Some(vec![3, 8]),
            integers: None,
        };
        let tensor = HostTensor::from_f32([2, 2], &[1.0, -2.0, 3.0, 0.5]).unwrap();
        let stored = weight.store(&tensor).unwrap();
        let activation = Activation::Dynamic;
        let layer = Layer {
            name,
            weight,
            activation,
            inputs: None,
        };
        let mut changed = file.clone();
        if changed.quantize(&[(&layer, stored)]).is_ok() {
            prop_assert!(
                changed.proto().opset_import.iter().any(|o| o.version >= 21) || file.proto().opset_import.is_empty()
            );
            if let Ok(graph) = changed.import(&ImportOptions::default()) {
                let verified = ir::graph::verify::verify(&graph);
                prop_assert!(verified.is_ok(), "{:?}\n{}", verified, graph);
            }
        }
    }
    Ok(())
}

fn check(bytes: Vec<u8>) -> Result<(), TestCaseError> {
    quantized(bytes.clone())?;
    if let Ok(model) = read_bytes("mutated", bytes.into(), None)
        && let Ok(graph) = import_model(&model, &ImportOptions::default())
    {
        let verified = ir::graph::verify::verify(&graph);
        prop_assert!(verified.is_ok(), "{:?}\n{}", verified, graph);
    }
    Ok(())
}

thread_local!(static SEEDS: Vec<(ModelProto, Vec<TensorProto>)> = seeds());

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, ..ProptestConfig::default() })]

    #[test]
    fn changed_models_never_panic(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((0u8..12, 0usize..64, 0usize..64, 0usize..1000), 1..6),
    ) {
        let (mut model, constants) = SEEDS.with(|seeds| which.get(seeds).clone());
        for (kind, at, sub, value) in changes {
            apply(&mut model, &constants, Change { kind, at, sub, value });
        }
        check(model.encode_to_vec())?;
    }

    #[test]
    fn flipped_bytes_never_panic(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = SEEDS.with(|seeds| which.get(seeds).0.encode_to_vec());
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        check(bytes)?;
    }
}
