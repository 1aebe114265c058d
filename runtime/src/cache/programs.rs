//! Finished programs on disk, so that a graph goes through the passes once per machine and not once per start.
//!
//! An entry is an artifact, named by the hash of the graph, its weights, and all else that decides the program. It appears whole or not
//! at all, is checked in full when it is read, and is mapped, so that its weights go from the file to the device. A damaged one is
//! removed. What goes wrong is nobody's error: the program is made again.

use std::fs;
use std::io::BufWriter;
use std::path::PathBuf;

use ir::graph::print::{PrintOptions, print};
use ir::program::artifact::{ArtifactError, Check};
use ir::{Graph, Program};

use super::{evict, write_whole_with};

/// Part of every key: a new way to make keys never meets an old entry.
const FORMAT: &str = "graphc program cache 1";
const EXTENSION: &str = "gcp";
/// Constants of this many bytes are hashed by all cores.
const HASHED_BY_ONE: usize = 128 << 10;

/// A folder of programs. Shared between threads and between processes.
#[derive(Debug)]
pub struct ProgramCache {
    dir: PathBuf,
    max_bytes: u64,
}

/// The name of a program: a hash of all that decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramKey(blake3::Hash);

impl ProgramCache {
    /// Uses a folder for at most `max_bytes`; the least recently used programs go first. The folder is made with the first program.
    pub fn open(dir: impl Into<PathBuf>, max_bytes: u64) -> ProgramCache {
        ProgramCache {
            dir: dir.into(),
            max_bytes,
        }
    }

    /// The key of what is made of a graph by `makers`: the compilers, their options, their versions. None for a graph with weights of
    /// more than half the cache's bytes, which is not kept.
    pub fn key(&self, graph: &Graph, makers: &[&str]) -> Option<ProgramKey> {
        let weights: usize = graph.constants().values().map(|c| c.tensor.bytes.len()).sum();
        if weights as u64 > self.max_bytes / 2 {
            return None;
        }
        let mut hasher = blake3::Hasher::new();
        // Each field with its length, so that no two programs spell the same bytes.
        let mut field = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            match bytes.len() < HASHED_BY_ONE {
                true => hasher.update(bytes),
                false => hasher.update_rayon(bytes),
            };
        };
        field(FORMAT.as_bytes());
        field(&(makers.len() as u64).to_le_bytes());
        makers.iter().for_each(|maker| field(maker.as_bytes()));
        let options = PrintOptions {
            elide_above: Some(0),
            hide_origins: false,
        };
        field(print(graph, options).as_bytes());
        // Types and shapes are in the text, and so are the names.
        graph.constants().values().for_each(|c| field(&c.tensor.bytes));
        Some(ProgramKey(hasher.finalize()))
    }

    /// Reads a program; None where there is none, or none that is whole.
    pub fn get(&self, key: ProgramKey) -> Option<Program> {
        let path = self.path(key);
        match Program::load_with(&path, Check::All) {
            Ok(program) => {
                evict::mark_used(&path);
                Some(program)
            }
            Err(ArtifactError::Io { .. }) => None,
            Err(error) => {
                tracing::warn!("{}: {error}; the program is made again", path.display());
                let _ = fs::remove_file(&path);
                None
            }
        }
    }

    /// Keeps a program, whole or not at all, and removes old ones if there are too many bytes.
    pub fn put(&self, key: ProgramKey, program: &Program) {
        let path = self.path(key);
        let written = write_whole_with(&path, |file| {
            let mut out = BufWriter::with_capacity(1 << 20, file);
            program.write(&mut out)?;
            out.into_inner().map(drop).map_err(std::io::IntoInnerError::into_error)
        });
        if let Err(error) = written {
            tracing::warn!("programs are not kept: {}: {error}", self.dir.display());
            return;
        }
        if evict::total_bytes(&self.dir, EXTENSION) > self.max_bytes {
            evict::shrink(&self.dir, EXTENSION, self.max_bytes - self.max_bytes / 10);
        }
    }

    fn path(&self, key: ProgramKey) -> PathBuf {
        let name = key.0.to_hex();
        self.dir.join(&name[..2]).join(format!("{name}.{EXTENSION}"))
    }
}

#[cfg(test)]
mod tests {
    use ir::op::BinaryOp;
    use ir::{DType, HostTensor, Op, Origin, Table, TensorType};

    use super::*;

    fn graph(weights: &[f32], op: BinaryOp) -> Graph {
        let mut g = Graph::new("g");
        let at = || Origin::Named("layer".into());
        let x = g.add_input("x", TensorType::new(DType::F32, [weights.len() as i64]), at());
        let tensor = HostTensor::from_f32([weights.len()], weights).unwrap();
        let w = g.add_constant(None, tensor, at());
        let y = g.add(Op::binary(op), &[x, w], at()).unwrap();
        g.add_output("y", y.into());
        g
    }

    fn program(bytes: usize) -> Program {
        let tensor = HostTensor::from_f32([bytes / 4], &vec![1.5; bytes / 4]).unwrap();
        Program {
            name: "p".into(),
            variants: Vec::new(),
            constants: [ir::graph::Constant { name: None, tensor }]
                .into_iter()
                .collect::<Table<_, _>>(),
        }
    }

    #[test]
    fn whatever_decides_a_program_is_in_its_key() {
        let cache = ProgramCache::open("unused", 1 << 20);
        let first = cache.key(&graph(&[1.0, 2.0], BinaryOp::Add), &["a", "b"]);
        assert!(first.is_some());
        assert_eq!(first, cache.key(&graph(&[1.0, 2.0], BinaryOp::Add), &["a", "b"]));
        let large: Vec<f32> = (0..100_000).map(|i| i as f32).collect();
        let mut other = large.clone();
        other[77_777] = -1.0;
        let others = [
            cache.key(&graph(&[1.0, 2.5], BinaryOp::Add), &["a", "b"]),
            cache.key(&graph(&[1.0, 2.0], BinaryOp::Mul), &["a", "b"]),
            cache.key(&graph(&[1.0, 2.0], BinaryOp::Add), &["a", "c"]),
            cache.key(&graph(&[1.0, 2.0], BinaryOp::Add), &["ab"]),
            cache.key(&graph(&large, BinaryOp::Add), &["a", "b"]),
            cache.key(&graph(&other, BinaryOp::Add), &["a", "b"]),
        ];
        for (at, key) in others.iter().enumerate() {
            assert!(key.is_some() && *key != first && !others[..at].contains(key), "{at}");
        }
        let small = ProgramCache::open("unused", 500_000);
        assert_eq!(
            small.key(&graph(&large, BinaryOp::Add), &[]),
            None,
            "too large to be kept"
        );
    }

    #[test]
    fn a_program_is_read_as_it_was_and_a_damaged_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ProgramCache::open(dir.path().join("programs"), 1 << 20);
        let key = cache.key(&graph(&[1.0], BinaryOp::Add), &[]).unwrap();
        assert_eq!(cache.get(key), None);
        cache.put(key, &program(400));
        assert_eq!(cache.get(key), Some(program(400)));
        let path = cache.path(key);
        let mut bytes = fs::read(&path).unwrap();
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
        }
        fs::write(&path, bytes).unwrap();
        assert_eq!(cache.get(key), None);
        assert!(!path.exists(), "it is removed");
        cache.put(key, &program(400));
        assert_eq!(cache.get(key), Some(program(400)));
    }

    #[test]
    fn the_program_that_was_not_used_for_longest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ProgramCache::open(dir.path(), 100_000);
        let keys: Vec<ProgramKey> = (0..4)
            .filter_map(|i| cache.key(&graph(&[i as f32], BinaryOp::Add), &[]))
            .collect();
        for (age, key) in keys[..3].iter().enumerate() {
            cache.put(*key, &program(30_000));
            let then = std::time::SystemTime::now() - std::time::Duration::from_secs(1000 - age as u64);
            let file = fs::File::options().append(true).open(cache.path(*key)).unwrap();
            file.set_modified(then).unwrap();
        }
        assert!(cache.get(keys[0]).is_some(), "now it is the one used last");
        cache.put(keys[3], &program(30_000));
        let left: Vec<bool> = keys.iter().map(|key| cache.get(*key).is_some()).collect();
        assert_eq!(left, [true, false, false, true]);
    }
}
