//! Finished programs on disk, so that a graph goes through the passes once per machine and not once per start.
//!
//! An entry is an artifact behind its key, the hash of the graph, its weights, and all else that decides the program.
//! It is named by the key, and is the program of the key that is in it, whatever its name says. It appears whole or not
//! at all, is checked in full when it is read, and is mapped, so that its weights go from the file to the device. A
//! damaged one, and one under another's name, is removed. What goes wrong is nobody's error: the program is made again.
//!
//! Hashing the weights and checking a file of them take about as long, so both are done at once: the name begins with a
//! sketch, a hash of all but the weights' bytes and of the ends of each, and the entry of that sketch that was used
//! last is read while the whole hash is made. It is the program if its name is that of the whole hash.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use ir::graph::print::{PrintOptions, print};
use ir::program::artifact::{self, ALIGNMENT, ArtifactError, Check};
use ir::{Graph, Program};
use rayon::prelude::*;

use super::{evict, trust, write_whole_with};

/// Part of every key: a new way to make keys never meets an old entry.
const FORMAT: &str = "graphc program cache 3";
const EXTENSION: &str = "gcp";
/// Constants of this many bytes are hashed by all cores.
const HASHED_BY_ONE: usize = 128 << 10;
/// Bytes of each end of a constant that a sketch looks at.
const ENDS: usize = 64;
/// The first bytes of an entry, before its key.
const MAGIC: &[u8; 8] = b"GRAPHCP1";
/// The artifact begins here: its sections stay aligned.
const PREFIX: usize = ALIGNMENT;
/// Digits of a sketch in a name.
const SKETCH: usize = 32;

/// A folder of programs. Shared between threads and between processes.
#[derive(Debug)]
pub struct ProgramCache {
    dir: PathBuf,
    max_bytes: u64,
}

/// The name of a program: hashes of all that decides it, without the middles of weights and with all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramKey {
    sketch: blake3::Hash,
    whole: blake3::Hash,
}

impl ProgramCache {
    /// Uses a folder for at most `max_bytes`; the least recently used programs go first. The folder is made with the
    /// first program.
    pub fn open(dir: impl Into<PathBuf>, max_bytes: u64) -> ProgramCache {
        ProgramCache {
            dir: dir.into(),
            max_bytes,
        }
    }

    /// The key of what is made of a graph by `makers`: the compilers, their options, their versions. None for a graph
    /// with weights of more than half the cache's bytes, which is not kept.
    pub fn key(&self, graph: &Graph, makers: &[&str]) -> Option<ProgramKey> {
        let weights = self.weights(graph)?;
        let sketch = sketch(graph, &weights, makers);
        Some(ProgramKey {
            sketch,
            whole: whole(sketch, &weights),
        })
    }

    /// The key of what is made of a graph by `makers`, as [`ProgramCache::key`], and the program where there is one.
    pub fn find(&self, graph: &Graph, makers: &[&str]) -> Option<(ProgramKey, Option<Program>)> {
        let weights = self.weights(graph)?;
        let sketch = sketch(graph, &weights, makers);
        let (whole, guess) = rayon::join(|| whole(sketch, &weights), || self.guess(sketch));
        let key = ProgramKey { sketch, whole };
        let program = match guess {
            Some((path, kept, program)) if kept == whole && path == self.path(key) => {
                evict::mark_used(&path);
                Some(program)
            }
            _ => self.get(key),
        };
        Some((key, program))
    }

    /// The bytes of a graph's constants; None where they are more than half the cache's.
    fn weights<'g>(&self, graph: &'g Graph) -> Option<Vec<&'g [u8]>> {
        let weights: Vec<&[u8]> = graph.constants().values().map(|c| &c.tensor.bytes[..]).collect();
        let bytes: usize = weights.iter().map(|bytes| bytes.len()).sum();
        (bytes as u64 <= self.max_bytes / 2).then_some(weights)
    }

    /// Reads the program of a sketch that was used last, with its key; None where it is not whole.
    fn guess(&self, sketch: blake3::Hash) -> Option<(PathBuf, blake3::Hash, Program)> {
        let prefix = sketch.to_hex();
        let of_sketch = |path: &Path| {
            let name = path.file_name().map(std::ffi::OsStr::to_string_lossy);
            name.is_some_and(|name| name.starts_with(&prefix[..SKETCH]) && name.ends_with(EXTENSION))
        };
        let files = fs::read_dir(self.dir.join(&prefix[..2])).ok()?.flatten();
        let last = files
            .filter(|file| of_sketch(&file.path()))
            .max_by_key(|file| file.metadata().and_then(|meta| meta.modified()).ok())?;
        let (whole, program) = read(&last.path()).ok()?;
        Some((last.path(), whole, program))
    }

    /// Reads a program; None where there is none, or none that is whole.
    pub fn get(&self, key: ProgramKey) -> Option<Program> {
        let path = self.path(key);
        let reason = match read(&path) {
            Ok((whole, program)) if whole == key.whole => {
                evict::mark_used(&path);
                return Some(program);
            }
            Ok(_) => "it is the program of another key".to_owned(),
            Err(ArtifactError::Io { .. }) => return None,
            Err(error) => error.to_string(),
        };
        tracing::warn!("{}: {reason}; the program is made again", path.display());
        let _ = fs::remove_file(&path);
        None
    }

    /// Keeps a program, whole or not at all, and removes old ones if there are too many bytes.
    pub fn put(&self, key: ProgramKey, program: &Program) {
        let path = self.path(key);
        let written = write_whole_with(&path, |file| {
            let mut out = BufWriter::with_capacity(1 << 20, file);
            let mut prefix = [0; PREFIX];
            prefix[..MAGIC.len()].copy_from_slice(MAGIC);
            prefix[MAGIC.len()..][..blake3::OUT_LEN].copy_from_slice(key.whole.as_bytes());
            out.write_all(&prefix)?;
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
        let (sketch, whole) = (key.sketch.to_hex(), key.whole.to_hex());
        let name = format!("{}-{whole}.{EXTENSION}", &sketch[..SKETCH]);
        self.dir.join(&sketch[..2]).join(name)
    }
}

/// Reads an entry: its key and its program.
fn read(path: &Path) -> Result<(blake3::Hash, Program), ArtifactError> {
    let io = |error| ArtifactError::Io {
        path: path.to_owned(),
        error,
    };
    trust::check(path).map_err(io)?;
    let bytes = artifact::map(path)?;
    let key = bytes.get(MAGIC.len()..MAGIC.len() + blake3::OUT_LEN);
    let (Some(key), true) = (key, bytes.starts_with(MAGIC)) else {
        return Err(ArtifactError::NotAnArtifact);
    };
    let key = blake3::Hash::from_slice(key).map_err(|_| ArtifactError::NotAnArtifact)?;
    let behind = bytes.len().checked_sub(PREFIX);
    let behind = behind.and_then(|length| bytes.slice(PREFIX, length));
    let program = Program::read(&behind.ok_or(ArtifactError::NotAnArtifact)?, Check::All);
    // Damage of a file that became shorter meanwhile is no damage.
    ir::mapped::check([&bytes[..]]).map_err(|error| io(std::io::Error::other(error)))?;
    Ok((key, program?))
}

/// Hashes fields, each with its length, so that no two programs spell the same bytes.
#[derive(Default)]
struct Fields(blake3::Hasher);

impl Fields {
    fn add(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }
}

/// Hashes all that decides a program but its weights, of which the ends count.
fn sketch(graph: &Graph, weights: &[&[u8]], makers: &[&str]) -> blake3::Hash {
    let mut fields = Fields::default();
    fields.add(FORMAT.as_bytes());
    fields.add(&(makers.len() as u64).to_le_bytes());
    makers.iter().for_each(|maker| fields.add(maker.as_bytes()));
    let options = PrintOptions {
        elide_above: Some(0),
        hide_origins: false,
    };
    // Types and shapes are in the text, and so are the names.
    fields.add(print(graph, options).as_bytes());
    for bytes in weights {
        fields.add(&bytes[..bytes.len().min(ENDS)]);
        fields.add(&bytes[bytes.len().saturating_sub(ENDS)..]);
    }
    fields.0.finalize()
}

/// Hashes all that decides a program, its sketch and its weights.
fn whole(sketch: blake3::Hash, weights: &[&[u8]]) -> blake3::Hash {
    let digest = |bytes: &&[u8]| match bytes.len() < HASHED_BY_ONE {
        true => blake3::hash(bytes),
        false => blake3::Hasher::new().update_rayon(bytes).finalize(),
    };
    let bytes: usize = weights.iter().map(|bytes| bytes.len()).sum();
    let digests: Vec<blake3::Hash> = match bytes < HASHED_BY_ONE {
        true => weights.iter().map(digest).collect(),
        false => weights.par_iter().map(digest).collect(),
    };
    let mut fields = Fields::default();
    fields.add(sketch.as_bytes());
    digests.iter().for_each(|digest| fields.add(digest.as_bytes()));
    fields.0.finalize()
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
    fn a_program_under_the_name_of_another_is_not_run() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ProgramCache::open(dir.path().join("programs"), 1 << 20);
        let (one, other) = (graph(&[1.0], BinaryOp::Add), graph(&[1.0], BinaryOp::Sub));
        let [first, second] = [&one, &other].map(|graph| cache.key(graph, &[]).unwrap());
        cache.put(first, &program(400));
        cache.put(second, &program(800));
        fs::copy(cache.path(second), cache.path(first)).unwrap();
        assert_eq!(cache.find(&one, &[]).unwrap(), (first, None));
        assert!(!cache.path(first).exists(), "it is removed");
        assert_eq!(cache.find(&other, &[]).unwrap(), (second, Some(program(800))));
        // An artifact without a key is no entry.
        program(400).save(cache.path(first)).unwrap();
        assert_eq!(cache.get(first), None);
    }

    #[test]
    fn a_program_that_others_may_write_is_not_run() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let cache = ProgramCache::open(dir.path().join("programs"), 1 << 20);
        let key = cache.key(&graph(&[1.0], BinaryOp::Add), &[]).unwrap();
        cache.put(key, &program(400));
        fs::set_permissions(cache.path(key), fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(cache.get(key), None);
        cache.put(key, &program(400));
        assert_eq!(cache.get(key), Some(program(400)), "written anew");
    }

    /// Two graphs that differ in the middle of a weight have one sketch: what is read ahead may be the other's.
    #[test]
    fn what_is_read_ahead_is_used_if_it_is_the_one() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ProgramCache::open(dir.path(), 10 << 20);
        let weights = |middle: f32| {
            let mut all = vec![1.0; 50_000];
            all[25_000] = middle;
            graph(&all, BinaryOp::Add)
        };
        let find = |middle: f32| cache.find(&weights(middle), &["a"]).unwrap();
        for (middle, bytes) in [(2.0, 400), (3.0, 800)] {
            let (key, none) = find(middle);
            assert_eq!(none, None, "{middle}: nothing was kept of it");
            cache.put(key, &program(bytes));
        }
        let (first, second) = (find(2.0).0, find(3.0).0);
        assert!(first.sketch == second.sketch && first != second);
        assert_eq!(first, cache.key(&weights(2.0), &["a"]).unwrap());
        let then = std::time::SystemTime::now() - std::time::Duration::from_secs(1000);
        for (old, newest) in [(first, second), (second, first)] {
            let file = fs::File::options().append(true).open(cache.path(old)).unwrap();
            file.set_modified(then).unwrap();
            evict::mark_used(&cache.path(newest));
            assert_eq!(cache.guess(first.sketch).unwrap().0, cache.path(newest));
            assert_eq!((find(2.0).1, find(3.0).1), (Some(program(400)), Some(program(800))));
        }
        // A damaged one that is read ahead is removed once it is known to be the one.
        fs::write(cache.path(first), "damaged").unwrap();
        evict::mark_used(&cache.path(first));
        assert_eq!(find(3.0).1, Some(program(800)));
        assert!(cache.path(first).exists());
        assert_eq!(find(2.0).1, None);
        assert!(!cache.path(first).exists());
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
