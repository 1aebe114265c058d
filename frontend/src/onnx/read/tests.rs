use std::fs;

use proptest::prelude::*;

use super::*;
use crate::onnx::proto::tensor_proto::{DataLocation, DataType};
use crate::onnx::proto::{OperatorSetIdProto, StringStringEntryProto, TensorProto};

fn tensor(name: &str, raw: &[u8]) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type: DataType::Float as i32,
        dims: vec![raw.len() as i64 / 4],
        raw_data: Bytes::copy_from_slice(raw),
        ..TensorProto::default()
    }
}

fn external(name: &str, elements: i64, entries: &[(&str, &str)]) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type: DataType::Float as i32,
        dims: vec![elements],
        data_location: DataLocation::External as i32,
        external_data: entries
            .iter()
            .map(|(key, value)| StringStringEntryProto {
                key: (*key).into(),
                value: (*value).into(),
            })
            .collect(),
        ..TensorProto::default()
    }
}

fn model(initializer: Vec<TensorProto>) -> ModelProto {
    ModelProto {
        ir_version: 8,
        producer_name: "test".into(),
        opset_import: vec![OperatorSetIdProto {
            domain: "ai.onnx".into(),
            version: 17,
        }],
        graph: Some(GraphProto {
            name: "g".into(),
            initializer,
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

fn problem(bytes: impl Into<Bytes>) -> ReadProblem {
    *read_bytes("m.onnx", bytes.into(), None).unwrap_err().problem
}

#[test]
fn weights_stay_in_the_mapped_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    fs::write(&path, model(vec![tensor("w", &[7; 4096])]).encode_to_vec()).unwrap();
    let model = read_model(&path).unwrap();
    assert_eq!(
        (model.opset(""), model.opset("ai.onnx"), model.opset("other")),
        (Some(17), Some(17), None)
    );
    assert_eq!(tensor_view(&model.graph.initializer[0]).unwrap().bytes, [7u8; 4096][..]);

    // The decoder takes slices of what it is given.
    let bytes = Bytes::from(fs::read(&path).unwrap());
    let range = bytes.as_ptr_range();
    let model = read_bytes(&path, bytes, None).unwrap();
    assert!(range.contains(&model.graph.initializer[0].raw_data.as_ptr()));
}

#[test]
fn external_data_are_slices_of_one_mapping() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    fs::write(folder.path().join("sub/w.bin"), (0u8..32).collect::<Vec<_>>()).unwrap();
    let tensors = vec![
        external("a", 2, &[("location", "sub/w.bin"), ("offset", "8"), ("length", "8")]),
        external("b", 8, &[("location", "./sub/w.bin")]),
    ];
    let path = folder.path().join("m.onnx");
    fs::write(&path, model(tensors).encode_to_vec()).unwrap();
    let model = read_model(&path).unwrap();
    let view = |at: usize| tensor_view(&model.graph.initializer[at]).unwrap().bytes;
    assert_eq!(view(0), (8u8..16).collect::<Vec<_>>());
    assert_eq!(view(1).len(), 32);
    assert_eq!(view(0).as_ptr(), view(1).slice(8..).as_ptr());
}

#[test]
fn links_of_external_data_stay_with_the_model() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["blobs", "snapshots/1", "plain", "elsewhere"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    let bytes = model(vec![external("w", 4, &[("location", "w.bin")])]).encode_to_vec();
    fs::write(at("blobs/0a"), &bytes).unwrap();
    fs::write(at("blobs/0b"), [3; 16]).unwrap();
    fs::write(at("elsewhere/secret"), [4; 16]).unwrap();
    let first = |model: Model| tensor_view(&model.graph.initializer[0]).unwrap().bytes[0];
    // As a hub's cache has them: both are links into one folder.
    symlink("../../blobs/0a", at("snapshots/1/m.onnx")).unwrap();
    symlink("../../blobs/0b", at("snapshots/1/w.bin")).unwrap();
    assert_eq!(first(read_model(at("snapshots/1/m.onnx")).unwrap()), 3);
    // Inside the model's own folder.
    fs::write(at("plain/m.onnx"), &bytes).unwrap();
    fs::write(at("plain/real.bin"), [5; 16]).unwrap();
    symlink("real.bin", at("plain/w.bin")).unwrap();
    assert_eq!(first(read_model(at("plain/m.onnx")).unwrap()), 5);
    // Out of it, by the file or by a folder on the way.
    fs::remove_file(at("plain/w.bin")).unwrap();
    symlink("../elsewhere/secret", at("plain/w.bin")).unwrap();
    let error = read_model(at("plain/m.onnx")).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(*error.problem, ReadProblem::External(ExternalError::Link { .. })),
        "{text}"
    );
    for part in ["plain/w.bin", "elsewhere/secret", "--follow-links"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(first(read_model_with(at("plain/m.onnx"), Links::Anywhere).unwrap()), 4);
    symlink("../elsewhere", at("plain/sub")).unwrap();
    let bytes = model(vec![external("w", 4, &[("location", "sub/secret")])]).encode_to_vec();
    fs::write(at("plain/m.onnx"), &bytes).unwrap();
    assert!(read_model(at("plain/m.onnx")).is_err());
}

#[test]
fn bad_external_data_are_typed_errors() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("w.bin"), [0; 16]).unwrap();
    let open = |entries: &[(&str, &str)]| {
        let bytes = model(vec![external("w", 4, entries)]).encode_to_vec();
        match *read_bytes("m.onnx", bytes.into(), Some(folder.path()))
            .unwrap_err()
            .problem
        {
            ReadProblem::External(error) => error,
            other => panic!("{other}"),
        }
    };
    for location in ["../w.bin", "/etc/passwd", "a/../../w.bin", "..", ""] {
        assert!(
            matches!(open(&[("location", location)]), ExternalError::Outside { .. }),
            "{location}"
        );
    }
    assert!(matches!(open(&[("location", "none.bin")]), ExternalError::Open { .. }));
    assert!(matches!(open(&[("location", ".")]), ExternalError::Open { .. }));
    assert!(matches!(
        open(&[("location", "w.bin"), ("offset", "-1")]),
        ExternalError::Entry { key: "offset", .. }
    ));
    assert!(matches!(
        open(&[("location", "w.bin"), ("length", "12")]),
        ExternalError::Length { expected: 16, .. }
    ));
    for offset in ["4", "18446744073709551615"] {
        let error = open(&[("location", "w.bin"), ("offset", offset)]);
        assert!(matches!(error, ExternalError::Range { file_len: 16, .. }), "{error}");
    }
    let unresolved = model(vec![external("w", 4, &[("location", "w.bin")])]).encode_to_vec();
    assert!(matches!(
        problem(unresolved),
        ReadProblem::Tensor(TensorError::External { .. })
    ));
}

#[test]
fn what_is_no_model_says_why() {
    assert!(matches!(
        problem(Vec::new()),
        ReadProblem::Container(ContainerError::Empty)
    ));
    assert!(matches!(
        problem(&b"hello, world"[..]),
        ReadProblem::Container(ContainerError::NotProtobuf { .. })
    ));
    let bytes = model(vec![tensor("w", &[0; 64])]).encode_to_vec();
    let cut = bytes[..bytes.len() - 20].to_vec();
    assert!(matches!(
        problem(cut),
        ReadProblem::Container(ContainerError::Truncated { field: "graph", .. })
    ));
    let no_graph = ModelProto {
        graph: None,
        ..model(Vec::new())
    };
    assert!(matches!(problem(no_graph.encode_to_vec()), ReadProblem::NoGraph));
    let no_opset = ModelProto {
        opset_import: Vec::new(),
        ..model(Vec::new())
    };
    assert!(matches!(problem(no_opset.encode_to_vec()), ReadProblem::NoOperatorSet));
    for found in [0, 2, 15, -1] {
        let other = ModelProto {
            ir_version: found,
            ..model(Vec::new())
        };
        assert!(matches!(problem(other.encode_to_vec()), ReadProblem::IrVersion { found: f } if f == found));
    }
    // Whole on the outside, nonsense in the graph.
    assert!(matches!(
        problem(vec![0x08, 8, 0x3a, 2, 0xff, 0xff]),
        ReadProblem::Malformed { .. }
    ));
    let wrong_size = TensorProto {
        dims: vec![3],
        ..tensor("w", &[0; 64])
    };
    let error = read_bytes("m.onnx", model(vec![wrong_size]).encode_to_vec().into(), None).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("m.onnx") && text.contains("\"w\"") && text.contains("12") && text.contains("64"),
        "{text}"
    );
    let missing = read_model("does/not/exist.onnx").unwrap_err();
    assert!(matches!(*missing.problem, ReadProblem::Open(_)));
    assert!(matches!(*read_model(".").unwrap_err().problem, ReadProblem::Open(_)));
}

#[test]
fn the_models_of_the_test_data_read() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    for (folder, opsets, models) in [("light", 9..=9, 9), ("exports", 17..=20, 8)] {
        let mut count = 0;
        for entry in fs::read_dir(data.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "onnx") {
                let model = read_model(&path).unwrap();
                assert!(
                    model.opset("").is_some_and(|opset| opsets.contains(&opset)),
                    "{:?}",
                    model.opsets
                );
                assert!(!model.graph.node.is_empty());
                for tensor in &model.graph.initializer {
                    tensor_view(tensor).unwrap().to_host().unwrap();
                }
                count += 1;
            }
        }
        assert_eq!(count, models, "{folder}");
    }
}

/// A small real file: ops, attributes, initializers, typed data.
fn squeezenet() -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/light/light_squeezenet.onnx")).unwrap()
}

/// Reads, and views every tensor; the property is that nothing panics and sizes hold.
fn survives(bytes: Vec<u8>) {
    if let Ok(model) = read_bytes("m.onnx", bytes.into(), None) {
        let attributes = model
            .graph
            .node
            .iter()
            .flat_map(|n| &n.attribute)
            .filter_map(|a| a.t.as_ref());
        for tensor in model.graph.initializer.iter().chain(attributes) {
            if let Ok(view) = tensor_view(tensor) {
                assert_eq!(Some(view.bytes.len()), view.element.bytes_for(&view.dims));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        survives(bytes.clone());
        // The same bytes as the inside of a graph.
        let mut wrapped = vec![0x08, 8, 0x3a];
        prost::encoding::encode_varint(bytes.len() as u64, &mut wrapped);
        wrapped.extend(bytes);
        survives(wrapped);
    }

    #[test]
    fn truncated_files_are_refused(keep in 0.0f64..1.0) {
        let whole = squeezenet();
        let keep = (keep * whole.len() as f64) as usize;
        prop_assert!(read_bytes("m.onnx", whole[..keep].to_vec().into(), None).is_err());
    }

    #[test]
    fn mutated_files_never_panic(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = squeezenet();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        survives(bytes);
    }
}

/// Whoever wants names alone maps nothing: neither links nor files that are not there matter.
#[test]
fn external_files_are_listed_without_being_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let tensors = ["w.bin", "./sub/v.bin", "w.bin"].map(|file| external("t", 2, &[("location", file)]));
    fs::write(&path, model(tensors.into()).encode_to_vec()).unwrap();
    let files = external_files(&path).unwrap();
    assert_eq!(files, ["w.bin", "sub/v.bin"].map(|file| folder.path().join(file)));
    fs::write(
        &path,
        model(vec![external("t", 2, &[("location", "../w.bin")])]).encode_to_vec(),
    )
    .unwrap();
    let error = external_files(&path).unwrap_err().to_string();
    assert!(error.contains("../w.bin") && error.contains("m.onnx"), "{error}");
    fs::write(&path, "no model").unwrap();
    external_files(&path).unwrap_err();
}
