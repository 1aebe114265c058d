use std::fs;

use proptest::prelude::*;
use safetensors::tensor::TensorView as Saved;
use tempfile::TempDir;

use super::*;

/// Two tensors: `encoder.weight` f32 [2, 2] and `encoder.bias` i64 [1].
fn two_tensors() -> Vec<u8> {
    let weight: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let bias = 7i64.to_le_bytes();
    let tensors = [
        ("encoder.weight", Saved::new(Dtype::F32, vec![2, 2], &weight).unwrap()),
        ("encoder.bias", Saved::new(Dtype::I64, vec![1], &bias).unwrap()),
    ];
    safetensors::serialize(tensors, None).unwrap()
}

fn written(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

#[test]
fn a_file_and_its_folder_open() {
    let (folder, path) = written("model.safetensors", &two_tensors());
    for weights in [Weights::open(&path).unwrap(), Weights::open(folder.path()).unwrap()] {
        assert_eq!(weights.len(), 2);
        let weight = weights.get("encoder.weight").unwrap();
        assert_eq!((weight.element, &weight.dims[..]), (ElementType::F32, &[2, 2][..]));
        assert_eq!(weight.to_host().unwrap().to_f32(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(weights.get("encoder.bias").unwrap().to_host().unwrap().to_i64(), [7]);
    }
}

#[test]
fn a_misspelt_name_gets_the_nearest() {
    let (_folder, path) = written("a.safetensors", &two_tensors());
    let error = Weights::open(path).unwrap().get("encoder.wieght").unwrap_err();
    assert!(
        matches!(&error, WeightsError::UnknownName { nearest: Some(n), .. } if n == "encoder.weight"),
        "{error}"
    );
}

#[test]
fn shards_are_joined() {
    let (folder, _) = written("one.safetensors", &two_tensors());
    fs::write(folder.path().join("two.safetensors"), two_tensors()).unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(
        &index,
        r#"{"metadata":{},"weight_map":{"encoder.weight":"two.safetensors","encoder.bias":"one.safetensors"}}"#,
    )
    .unwrap();
    for path in [index.as_path(), folder.path()] {
        let weights = Weights::open(path).unwrap();
        assert_eq!(weights.names().collect::<Vec<_>>(), ["encoder.weight", "encoder.bias"]);
    }
}

#[test]
fn bad_indices_are_refused() {
    let (folder, _) = written("one.safetensors", &two_tensors());
    let index = folder.path().join("x.index.json");
    let open = |text: &str| {
        fs::write(&index, text).unwrap();
        Weights::open(&index).unwrap_err()
    };
    assert!(matches!(open("{"), WeightsError::Index { .. }));
    assert!(matches!(open("{}"), WeightsError::Index { .. }));
    assert!(matches!(open(r#"{"weight_map":{"a":1}}"#), WeightsError::Index { .. }));
    for shard in ["../one.safetensors", "/one.safetensors", "a/one.safetensors", "..", ""] {
        let error = open(&format!(r#"{{"weight_map":{{"encoder.bias":"{shard}"}}}}"#));
        assert!(matches!(error, WeightsError::ShardPath { .. }), "{shard}: {error}");
    }
    assert!(matches!(
        open(r#"{"weight_map":{"other":"one.safetensors"}}"#),
        WeightsError::NotInShard { .. }
    ));
    assert!(matches!(
        open(r#"{"weight_map":{"other":"none.safetensors"}}"#),
        WeightsError::Open { .. }
    ));
}

#[test]
fn missing_empty_and_truncated_files_are_refused() {
    let (folder, path) = written("a.safetensors", &two_tensors()[..60]);
    assert!(matches!(
        Weights::open(&path),
        Err(WeightsError::Header { len: 60, .. })
    ));
    fs::write(&path, []).unwrap();
    assert!(matches!(Weights::open(&path), Err(WeightsError::Header { len: 0, .. })));
    assert!(matches!(
        Weights::open(folder.path()),
        Err(WeightsError::NoWeights { .. })
    ));
    assert!(matches!(
        Weights::open(folder.path().join("b.safetensors")),
        Err(WeightsError::Open { .. })
    ));
}

#[test]
fn the_real_minilm_opens() {
    let folder = std::env::var_os("GRAPHC_MINILM").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/minilm"),
        PathBuf::from,
    );
    if !folder.join("model.safetensors").is_file() {
        eprintln!(
            "skipped: no MiniLM weights in {}; scripts/fetch-minilm.sh gets them",
            folder.display()
        );
        return;
    }
    let weights = Weights::open(folder).unwrap();
    let embeddings = weights.get("embeddings.word_embeddings.weight").unwrap();
    assert_eq!(
        (embeddings.element, &embeddings.dims[..]),
        (ElementType::F32, &[30522, 384][..])
    );
    assert!(
        weights
            .get("embeddings.word_embedding.weight")
            .unwrap_err()
            .to_string()
            .contains("word_embeddings")
    );
}

proptest! {
    #[test]
    fn damaged_bytes_never_panic(at in 0usize..200, byte: u8, cut in 0usize..200) {
        let mut bytes = two_tensors();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(bytes.len() - cut.min(bytes.len()));
        if let Ok(weights) = Weights::from_bytes("x", bytes.into()) {
            for view in weights.tensors() {
                prop_assert_eq!(Some(view.bytes.len()), view.element.bytes_for(&view.dims));
            }
        }
    }
}
