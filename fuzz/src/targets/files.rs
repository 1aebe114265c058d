//! Files of other kinds: cache entries, `.gir`, `.npz`, `.npy`, safetensors and ONNX.

use std::path::PathBuf;
use std::sync::OnceLock;

use graphc::frontend::onnx::{ImportOptions, import_model, read_bytes};
use graphc::ir::HostTensor;
use graphc::runtime::cache::{Cache as ObjectCache, CacheKey};
use graphc::runtime::compile::{CompileRequest, CompiledObject};
use indexmap::IndexMap;
use tempfile::TempDir;

use crate::random::Random;
use crate::{Outcome, Target, mutate, seeds};

/// Entries of the cache of code objects, their checksum made right again.
#[derive(Default)]
pub(super) struct Cache {
    folder: OnceLock<TempDir>,
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder for files")
}

impl Target for Cache {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn case(&self, random: &mut Random) -> Outcome {
        let folder = self.folder.get_or_init(folder).path();
        let cache = ObjectCache::open(folder, 1 << 20);
        let request = CompileRequest {
            name: "k".into(),
            source: "kernel".into(),
            headers: Vec::new(),
            arch: "gfx90a".into(),
            options: Vec::new(),
        };
        let key = CacheKey::new(&request, "fuzz");
        let object = CompiledObject {
            bytes: vec![7; random.below(40)],
            log: "a warning".into(),
        };
        cache.put(key, &object);
        let Some(path) = entry(folder) else {
            return Outcome::Refused;
        };
        let mut bytes = std::fs::read(&path).expect("the entry was written");
        // Magic, key and checksum, each at its place; the checksum is of what follows.
        let mut body = bytes.split_off(72);
        mutate::bytes(&mut body, random);
        bytes[40..72].copy_from_slice(blake3::hash(&body).as_bytes());
        bytes.extend(&body);
        if random.once_in(4) {
            mutate::bytes(&mut bytes, random);
        }
        std::fs::write(&path, &bytes).expect("the entry can be written");
        match cache.get(key) {
            Some(_) => Outcome::Ran,
            None => Outcome::Refused,
        }
    }
}

/// The one entry of a folder of folders.
fn entry(folder: &std::path::Path) -> Option<PathBuf> {
    let folders = std::fs::read_dir(folder).ok()?.flatten();
    folders
        .flat_map(|f| std::fs::read_dir(f.path()).into_iter().flatten().flatten())
        .map(|f| f.path())
        .next()
}

/// The text form of graphs.
pub(super) struct Gir;

impl Target for Gir {
    fn name(&self) -> &'static str {
        "gir"
    }

    fn case(&self, random: &mut Random) -> Outcome {
        let mut text = random.of(seeds::texts()).clone().into_bytes();
        if random.once_in(3) {
            let other = random.of(seeds::texts()).as_bytes();
            let (at, from) = (random.below(text.len()), random.below(other.len()));
            let end = (from + random.below(80)).min(other.len());
            text.splice(at..at, other[from..end].iter().copied());
        }
        mutate::bytes(&mut text, random);
        let text = String::from_utf8_lossy(&text);
        let Ok(graph) = graphc::ir::graph::parse::parse(&text) else {
            return Outcome::Refused;
        };
        match graphc::ir::graph::verify::verify(&graph) {
            Ok(()) => Outcome::Ran,
            Err(_) => Outcome::Refused,
        }
    }
}

/// Files of arrays.
pub(super) struct Arrays {
    kind: &'static str,
    folder: OnceLock<TempDir>,
}

impl Arrays {
    pub(super) fn new(kind: &'static str) -> Arrays {
        Arrays {
            kind,
            folder: OnceLock::new(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.get_or_init(folder).path().join(format!("x.{}", self.kind))
    }

    /// A valid file.
    fn seed(&self) -> Vec<u8> {
        let tensors: IndexMap<String, HostTensor> = [
            ("a", HostTensor::from_f32(vec![2, 3], &[1.0; 6])),
            ("b", HostTensor::from_i64(graphc::ir::DType::I64, [4], &[1, 2, 3, 4])),
            ("c", HostTensor::from_i64(graphc::ir::DType::Bool, [3], &[1, 0, 1])),
        ]
        .into_iter()
        .map(|(name, tensor)| (name.to_owned(), tensor.expect("sizes fit")))
        .collect();
        match self.kind {
            "safetensors" => {
                let header = concat!(
                    r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"#,
                    r#""b":{"dtype":"I64","shape":[2],"data_offsets":[24,40]},"__metadata__":{"x":"y"}}"#
                );
                let mut file = (header.len() as u64).to_le_bytes().to_vec();
                file.extend(header.as_bytes());
                file.extend([1; 40]);
                file
            }
            "npy" => {
                let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }             \n";
                let mut file = b"\x93NUMPY\x01\x00".to_vec();
                file.extend((header.len() as u16).to_le_bytes());
                file.extend(header.as_bytes());
                file.extend([1; 24]);
                file
            }
            _ => {
                let path = self.path();
                graphc::arrays::write(&path, &tensors).expect("arrays can be written");
                std::fs::read(path).expect("they were written")
            }
        }
    }
}

impl Target for Arrays {
    fn name(&self) -> &'static str {
        self.kind
    }

    fn case(&self, random: &mut Random) -> Outcome {
        static SEEDS: OnceLock<std::sync::Mutex<IndexMap<&'static str, Vec<u8>>>> = OnceLock::new();
        let seeds = SEEDS.get_or_init(Default::default);
        let mut file = {
            let mut seeds = seeds.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            seeds.entry(self.kind).or_insert_with(|| self.seed()).clone()
        };
        mutate::bytes(&mut file, random);
        let path = self.path();
        std::fs::write(&path, &file).expect("the file can be written");
        match graphc::arrays::read(&path) {
            Ok(arrays) => {
                for tensor in arrays.values() {
                    assert_eq!(tensor.bytes.len(), tensor.dtype.bytes_for(tensor.elements()));
                }
                Outcome::Ran
            }
            Err(_) => Outcome::Refused,
        }
    }
}

/// ONNX models, as bytes.
pub(super) struct Onnx;

impl Target for Onnx {
    fn name(&self) -> &'static str {
        "onnx"
    }

    fn case(&self, random: &mut Random) -> Outcome {
        let mut file = random.of(models()).clone();
        mutate::bytes(&mut file, random);
        let Ok(model) = read_bytes("fuzz.onnx", file.into(), None) else {
            return Outcome::Refused;
        };
        match import_model(&model, &ImportOptions::default()) {
            Ok(_) => Outcome::Ran,
            Err(_) => Outcome::Refused,
        }
    }
}

/// The models of the operators' conformance tests.
fn models() -> &'static [Vec<u8>] {
    static MODELS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    MODELS.get_or_init(|| {
        let all: &[u8] = include_bytes!("../../../tests/data/onnx_nodes.bin");
        let mut at = 0;
        let number = |at: &mut usize| {
            let bytes: [u8; 4] = all[*at..*at + 4].try_into().expect("four bytes");
            *at += 4;
            u32::from_le_bytes(bytes) as usize
        };
        let mut models = Vec::new();
        while at < all.len() {
            let name = number(&mut at);
            at += name;
            let length = number(&mut at);
            models.push(all[at..at + length].to_vec());
            at += length;
            for _ in 0..2 {
                for _ in 0..number(&mut at) {
                    let length = number(&mut at);
                    at += length;
                }
            }
        }
        models
    })
}
