//! Whole files: those of the `gguf` package, own ones, split ones, and damaged ones.

use graphc_gguf::{Array, GgufFile, GgufWriter, Problem, TensorType, Value, file_type_name};

#[test]
fn files_of_the_gguf_package_are_read() {
    let file = GgufFile::from_bytes("writer.gguf", &include_bytes!("data/writer.gguf")[..]).unwrap();
    assert_eq!((file.version, file.files), (3, 1));
    assert_eq!(file.architecture().unwrap(), "llama");
    assert_eq!(file.text("general.name").unwrap(), "näive ▁ 中文");
    for (key, wanted) in [
        ("test.u8", Value::U8(200)),
        ("test.i8", Value::I8(-3)),
        ("test.u16", Value::U16(60000)),
        ("test.i16", Value::I16(-300)),
        ("test.i32", Value::I32(-70000)),
        ("test.u64", Value::U64(1 << 40)),
        ("test.i64", Value::I64(-(1 << 40))),
        ("test.f64", Value::F64(0.1)),
        ("test.bool", Value::Bool(true)),
        (
            "tokenizer.ggml.tokens",
            Value::Array(Array::String(vec!["<s>".into(), "▁a".into(), "b".into()])),
        ),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0, -1.5, 2.25]))),
    ] {
        assert_eq!(file.value(key).unwrap(), &wanted, "{key}");
    }
    assert_eq!(file.unsigned_by_layer("llama.attention.head_count", 2).unwrap(), [4, 2]);
    assert_eq!(file.unsigned_by_layer("llama.block_count", 3).unwrap(), [2, 2, 2]);
    assert_eq!(
        file.float("llama.attention.layer_norm_rms_epsilon").unwrap(),
        f64::from(1e-5f32)
    );

    let matrix = file.tensor("token_embd.weight").unwrap();
    assert_eq!(
        (matrix.ty, &matrix.dims[..], &matrix.shape()[..]),
        (TensorType::F32, &[32, 3][..], &[3, 32][..])
    );
    let numbers: Vec<f32> = (0..96u8).map(f32::from).collect();
    assert_eq!(matrix.to_f32().unwrap(), numbers);
    assert_eq!(file.tensor("blk.0.half.weight").unwrap().to_f32().unwrap(), numbers);
    let quantised = file.tensor("blk.0.attn_q.weight").unwrap();
    assert_eq!((quantised.ty, quantised.bytes.len()), (TensorType::Q8_0, 3 * 34));
    for (quantised, exact) in quantised.to_f32().unwrap().iter().zip(&numbers) {
        assert!((quantised - (exact - 40.0)).abs() <= 0.23, "{quantised} for {exact}");
    }
}

#[test]
fn what_is_missing_or_of_another_type_is_named() {
    let file = GgufFile::from_bytes("writer.gguf", &include_bytes!("data/writer.gguf")[..]).unwrap();
    for (error, wanted) in [
        (
            file.unsigned("llama.block_cuont").unwrap_err(),
            "\"llama.block_cuont\" is missing; the file has 3: llama.block_count",
        ),
        (
            file.unsigned("general.name").unwrap_err(),
            "is \"näive ▁ 中文\", where an integer of 0 or more is wanted",
        ),
        (file.unsigned("test.i32").unwrap_err(), "is -70000, where an integer"),
        (
            file.tensor("blk.0.attn_q.bias").unwrap_err(),
            "is missing; the file has 1: blk.0.attn_q.weight",
        ),
        (
            file.unsigned_by_layer("llama.attention.head_count", 3).unwrap_err(),
            "where an integer, or an array of 3 is wanted",
        ),
    ] {
        let error = error.to_string();
        assert!(error.starts_with("writer.gguf: ") && error.contains(wanted), "{error}");
    }
}

/// A small model: two tensors, a key of text.
fn small(keys: &[(&str, Value)]) -> Vec<u8> {
    let mut writer = GgufWriter::new("tiny");
    writer
        .set("general.name", Value::String("a tiny model".into()))
        .unwrap();
    keys.iter()
        .for_each(|(key, value)| writer.set(key, value.clone()).unwrap());
    writer.tensor("a", TensorType::F32, &[2, 2], &[1; 16]).unwrap();
    writer.tensor("b", TensorType::Q4_0, &[64], &[2; 36]).unwrap();
    writer.to_bytes().unwrap()
}

#[test]
fn written_files_are_read_back() {
    let bytes = small(&[
        ("list", Value::Array(Array::Bool(vec![true, false]))),
        ("empty", Value::Array(Array::String(Vec::new()))),
    ]);
    let file = GgufFile::from_bytes("tiny", bytes).unwrap();
    assert_eq!(
        file.value("list").unwrap(),
        &Value::Array(Array::Bool(vec![true, false]))
    );
    assert_eq!(file.tensor("b").unwrap().bytes, vec![2u8; 36]);
    assert_eq!(file.tensors.keys().collect::<Vec<_>>(), ["a", "b"]);
    let mut writer = GgufWriter::new("tiny");
    writer.tensor("a", TensorType::Q4_0, &[32], &[0; 18]).unwrap();
    for (problem, wanted) in [
        (
            writer.tensor("a", TensorType::Q4_0, &[32], &[0; 18]),
            "tensor \"a\" is there twice",
        ),
        (
            writer.tensor("c", TensorType::Q4_0, &[33], &[0; 18]),
            "rows of 33 elements; Q4_0 has blocks of 32",
        ),
        (
            writer.tensor("c", TensorType::Q4_0, &[32], &[0; 17]),
            "17 bytes of Q4_0 for 32 numbers",
        ),
        (writer.tensor("c", TensorType::F32, &[], &[]), "has 0 dims"),
        (writer.set("general.architecture", Value::Bool(true)), "is given twice"),
    ] {
        let problem = problem.unwrap_err().to_string();
        assert!(problem.contains(wanted), "{problem}");
    }
}

#[test]
fn split_models_are_one() {
    let folder = tempfile::tempdir().unwrap();
    let part = |number: u16, count: u16, total: Option<i32>, tensor: &str| {
        let mut writer = GgufWriter::new("tiny");
        writer.set("split.no", Value::U16(number)).unwrap();
        writer.set("split.count", Value::U16(count)).unwrap();
        total
            .into_iter()
            .for_each(|total| writer.set("split.tensors.count", Value::I32(total)).unwrap());
        writer
            .tensor(tensor, TensorType::F32, &[1], &1f32.to_le_bytes())
            .unwrap();
        writer.to_bytes().unwrap()
    };
    let write = |name: &str, bytes: Vec<u8>| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let first = write("m-00001-of-00002.gguf", part(0, 2, Some(2), "a"));
    let missing = GgufFile::open(&first).unwrap_err().to_string();
    assert!(missing.contains("m-00002-of-00002.gguf: cannot be read"), "{missing}");
    write("m-00002-of-00002.gguf", part(1, 2, None, "b"));
    let model = GgufFile::open(&first).unwrap();
    assert_eq!(
        (model.files, model.tensors.keys().collect::<Vec<_>>()),
        (2, vec![&"a".to_owned(), &"b".to_owned()])
    );

    write("m-00002-of-00002.gguf", part(1, 2, None, "a"));
    assert!(
        GgufFile::open(&first)
            .unwrap_err()
            .to_string()
            .contains("tensor \"a\" is there twice")
    );
    write("m-00002-of-00002.gguf", part(0, 2, None, "b"));
    assert!(
        GgufFile::open(&first)
            .unwrap_err()
            .to_string()
            .contains("file 2 of a split model says that it is file 1 of 2")
    );
    write("m-00001-of-00002.gguf", part(0, 2, Some(3), "a"));
    write("m-00002-of-00002.gguf", part(1, 2, None, "b"));
    assert!(
        GgufFile::open(&first)
            .unwrap_err()
            .to_string()
            .contains("have 2 tensors; split.tensors.count says 3")
    );
    let named = write("other.gguf", part(0, 2, None, "a"));
    assert!(
        GgufFile::open(named)
            .unwrap_err()
            .to_string()
            .contains("name the first file of the split")
    );
}

#[test]
fn damaged_files_say_what_is_wrong() {
    let whole = small(&[]);
    let problem = |bytes: Vec<u8>| GgufFile::from_bytes("x", bytes).unwrap_err().problem;
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    assert!(matches!(problem(Vec::new()), Problem::Magic { .. }));
    assert!(matches!(problem(b"PK\x03\x04....".to_vec()), Problem::Magic { .. }));
    assert!(matches!(
        problem(with(4, &1u32.to_le_bytes())),
        Problem::Version { found: 1 }
    ));
    assert!(matches!(problem(with(4, &3u32.to_be_bytes())), Problem::BigEndian));
    assert!(matches!(
        problem(with(8, &u64::MAX.to_le_bytes())),
        Problem::Truncated { .. }
    ));
    assert!(matches!(
        problem(with(16, &(u64::MAX / 2).to_le_bytes())),
        Problem::Truncated { .. }
    ));
    // The length of the first key.
    assert!(matches!(
        problem(with(24, &(1u64 << 40).to_le_bytes())),
        Problem::TooLong { .. }
    ));
    assert!(matches!(
        problem(with(24, &0u64.to_le_bytes())),
        Problem::EmptyKey { at: 24 }
    ));
    // The tensor's entry: its name is there once, followed by rank, dims, type and offset.
    let entry = whole
        .windows(9)
        .position(|window| window == b"\x01\0\0\0\0\0\0\0a")
        .unwrap()
        + 9;
    assert!(matches!(
        problem(with(entry, &5u32.to_le_bytes())),
        Problem::Rank { found: 5, .. }
    ));
    assert!(matches!(
        problem(with(entry + 4, &(1u64 << 62).to_le_bytes())),
        Problem::Elements { .. }
    ));
    assert!(matches!(
        problem(with(entry + 4, &(1u64 << 40).to_le_bytes())),
        Problem::Outside { .. }
    ));
    assert!(matches!(
        problem(with(entry + 20, &138i32.to_le_bytes())),
        Problem::TensorType { found: 138, .. }
    ));
    assert!(matches!(
        problem(with(entry + 20, &8i32.to_le_bytes())),
        Problem::Block { columns: 2, .. }
    ));
    assert!(matches!(
        problem(with(entry + 24, &8u64.to_le_bytes())),
        Problem::Unaligned { offset: 8, .. }
    ));
    assert!(matches!(
        problem(with(entry + 24, &32u64.to_le_bytes())),
        Problem::Overlap { .. }
    ));
    assert!(matches!(
        problem(with(entry + 24, &(u64::MAX - 31).to_le_bytes())),
        Problem::Outside { .. }
    ));
    assert!(matches!(
        problem(small(&[("k", Value::Bool(true)), ("l", Value::Bool(true))]).tap_duplicate()),
        Problem::DuplicateKey { .. }
    ));
}

trait Duplicate {
    fn tap_duplicate(self) -> Vec<u8>;
}

impl Duplicate for Vec<u8> {
    /// Gives the key `l` the name `k`.
    fn tap_duplicate(mut self) -> Vec<u8> {
        let at = self
            .windows(9)
            .position(|window| window == b"\x01\0\0\0\0\0\0\0l")
            .unwrap();
        self[at + 8] = b'k';
        self
    }
}

/// Every cut, and many changed bytes: an error or a file, never a panic.
#[test]
fn what_is_no_regular_file_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let error = GgufFile::open(folder.path()).expect_err("a folder").to_string();
    assert!(error.contains("it is a folder"), "{error}");
}

#[test]
fn no_damage_panics() {
    let whole = [include_bytes!("data/writer.gguf").to_vec(), small(&[])];
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let try_all = |bytes: Vec<u8>| {
        if let Ok(file) = GgufFile::from_bytes("x", bytes) {
            for tensor in file.tensors.values() {
                // A dim of 0 with huge others has no element.
                if tensor.elements() < 1 << 20 {
                    let _ = tensor.to_f32();
                }
            }
        }
    };
    for bytes in &whole {
        for end in 0..bytes.len() {
            try_all(bytes[..end].to_vec());
        }
        for _ in 0..20_000 {
            let mut changed = bytes.clone();
            for _ in 0..1 + next() % 4 {
                let at = next() as usize % changed.len();
                changed[at] = match next() % 4 {
                    0 => 0,
                    1 => 0xff,
                    2 => changed[at] ^ (1 << (next() % 8)),
                    _ => next() as u8,
                };
            }
            try_all(changed);
        }
    }
}

#[test]
fn types_are_those_of_ggml() {
    for (index, &ty) in TensorType::ALL.iter().enumerate() {
        assert_eq!(TensorType::from_id(ty.id()), Ok(ty));
        assert!(
            TensorType::ALL[..index].iter().all(|other| other.id() < ty.id()),
            "{ty}"
        );
    }
    assert!(TensorType::from_id(4).unwrap_err().contains("removed"));
    assert!(TensorType::from_id(200).unwrap_err().contains("ik_llama"));
    assert_eq!((file_type_name(15), file_type_name(4)), (Some("Q4_K_M"), None));
    assert_eq!(TensorType::Q4_K.bits(), 4.5);
}
