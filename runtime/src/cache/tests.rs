//! The cache in front of a compiler that counts; the real compiler is in `tests/hiprtc.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::*;
use crate::compile::{CompileError, Compiler, Listing, compile_all};

/// Compiles to the source's own bytes.
struct Fake(&'static str);

impl Compiler for Fake {
    fn identity(&self, _platform: ir::target::Platform) -> Result<String, CompileError> {
        Ok(self.0.to_string())
    }
    fn parallelism(&self) -> usize {
        2
    }
    fn compile(&self, request: &CompileRequest) -> Result<CompiledObject, CompileError> {
        match request.source.as_str() {
            "bad" => Err(CompileError::Disassembly { reason: "bad".into() }),
            source => Ok(CompiledObject {
                bytes: source.as_bytes().to_vec(),
                log: "a warning".into(),
            }),
        }
    }
    fn disassemble(&self, _: &[u8]) -> Result<Vec<Listing>, CompileError> {
        Ok(Vec::new())
    }
}

fn request(source: &str) -> CompileRequest {
    CompileRequest {
        name: "k".into(),
        source: source.into(),
        headers: vec![],
        arch: "gfx90a".into(),
        options: vec![],
    }
}

fn open(dir: &Path) -> CachedCompiler {
    CachedCompiler::new(Box::new(Fake("one")), Arc::new(Cache::open(dir, 1 << 20)))
}

fn entry_files(dir: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(dir).unwrap().flatten();
    folders
        .flat_map(|folder| fs::read_dir(folder.path()).unwrap().flatten())
        .map(|file| file.path())
        .collect()
}

#[test]
fn a_warm_start_compiles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let requests: Vec<_> = (0..10).map(|i| request(&format!("kernel {i}"))).collect();
    let cold = open(dir.path());
    let first = compile_all(&cold, &requests, &|_| ());
    assert_eq!(
        cold.cache().stats(),
        CacheStats {
            misses: 10,
            compiles: 10,
            ..Default::default()
        }
    );
    let warm = open(dir.path());
    assert_eq!(compile_all(&warm, &requests, &|_| ()), first);
    assert_eq!(
        warm.cache().stats(),
        CacheStats {
            hits: 10,
            ..Default::default()
        }
    );
    assert_eq!(warm.cache().note(), None);
}

#[test]
fn everything_that_decides_the_bytes_is_in_the_key() {
    let base = request("source");
    let with = |change: fn(&mut CompileRequest)| {
        let mut request = base.clone();
        change(&mut request);
        CacheKey::new(&request, "one")
    };
    let keys = [
        CacheKey::new(&base, "one"),
        CacheKey::new(&base, "two"),
        with(|r| r.name = "other".into()),
        with(|r| r.source.push(' ')),
        with(|r| r.arch = "gfx90a:xnack-".into()),
        with(|r| r.options = vec!["-O3".into()]),
        with(|r| r.options = vec!["-O".into(), "3".into()]),
        with(|r| r.headers = vec![("-O3".into(), String::new())]),
        with(|r| r.headers = vec![("a".into(), "b".into())]),
        with(|r| r.headers = vec![("ab".into(), String::new())]),
    ];
    for (i, a) in keys.iter().enumerate() {
        assert!(keys[..i].iter().all(|b| a != b), "key {i} is taken");
    }
}

#[test]
fn a_damaged_entry_is_compiled_again_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let good = open(dir.path()).compile(&request("text")).unwrap();
    let [file] = entry_files(dir.path()).try_into().unwrap();
    let bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    let mut flipped = bytes.clone();
    flipped[last] ^= 1;
    for damage in [&bytes[..last], &flipped, b"", b"something else altogether"] {
        fs::write(&file, damage).unwrap();
        let compiler = open(dir.path());
        assert_eq!(compiler.compile(&request("text")).unwrap(), good);
        assert_eq!(
            compiler.cache().stats(),
            CacheStats {
                damaged: 1,
                compiles: 1,
                ..Default::default()
            }
        );
        assert_eq!(fs::read(&file).unwrap(), bytes, "the entry is whole again");
        assert_eq!(compiler.compile(&request("text")).unwrap(), good);
        assert_eq!(compiler.cache().stats().hits, 1);
    }
}

#[test]
fn errors_are_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let compiler = open(dir.path());
    for _ in 0..2 {
        compiler.compile(&request("bad")).unwrap_err();
    }
    assert_eq!(
        compiler.cache().stats(),
        CacheStats {
            misses: 2,
            compiles: 2,
            ..Default::default()
        }
    );
    assert_eq!(entry_files(dir.path()).len(), 0);
}

/// What lies at an entry's place and is no regular file is not waited for, and is replaced.
#[test]
fn a_fifo_at_an_entrys_place_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let compiler = open(dir.path());
    let entry = compiler.cache().path(CacheKey::new(&request("text"), "one")).unwrap();
    fs::create_dir(entry.parent().unwrap()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&entry).status();
    assert!(made.unwrap().success());
    for _ in 0..2 {
        assert_eq!(compiler.compile(&request("text")).unwrap().bytes, b"text");
    }
    let stats = compiler.cache().stats();
    assert_eq!((stats.damaged, stats.compiles, stats.hits), (1, 1, 1));
}

#[test]
fn a_folder_that_cannot_be_used_is_noted_and_everything_still_compiles() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a file");
    fs::write(&file, "").unwrap();
    // A file in the folder's place: refused at once. One in an entry's place: refused at the first write. (A mode
    // without write permission would not stop root.)
    let compiler = CachedCompiler::new(
        Box::new(Fake("one")),
        Arc::new(Cache::open(file.join("cache"), 1 << 20)),
    );
    assert!(compiler.cache().note().unwrap().contains("a file/cache"));
    compiler.compile(&request("text")).unwrap();
    assert_eq!(
        compiler.cache().stats(),
        CacheStats {
            misses: 1,
            compiles: 1,
            ..Default::default()
        }
    );

    let compiler = open(dir.path());
    let folder = compiler.cache().path(CacheKey::new(&request("text"), "one")).unwrap();
    fs::write(folder.parent().unwrap(), "").unwrap();
    assert_eq!(compiler.cache().note(), None);
    for _ in 0..2 {
        assert_eq!(compiler.compile(&request("text")).unwrap().bytes, b"text");
    }
    assert!(compiler.cache().note().unwrap().contains("not kept"));
}

#[test]
fn the_least_recently_used_go_first() {
    let dir = tempfile::tempdir().unwrap();
    let max = 10_000;
    let compiler = CachedCompiler::new(Box::new(Fake("one")), Arc::new(Cache::open(dir.path(), max)));
    let source = |i: usize| request(&format!("{i:01000}"));
    let mut date = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for i in 0..40 {
        compiler.compile(&source(i)).unwrap();
        // Dates as if a second went by after each; the first stays in use.
        let path = |i: usize| compiler.cache().path(CacheKey::new(&source(i), "one")).unwrap();
        date += Duration::from_secs(1);
        fs::File::options()
            .append(true)
            .open(path(i))
            .unwrap()
            .set_modified(date)
            .unwrap();
        compiler.compile(&source(0)).unwrap();
    }
    let total: u64 = entry_files(dir.path())
        .iter()
        .map(|file| file.metadata().unwrap().len())
        .sum();
    assert!(total <= max, "{total}");
    let stats = compiler.cache().stats();
    assert!(
        stats.evicted >= 30 && stats.compiles == 40 && stats.damaged == 0,
        "{stats:?}"
    );
}

#[test]
fn many_threads_and_two_caches_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (open(dir.path()), open(dir.path()));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let compiler = if thread % 2 == 0 { &a } else { &b };
            scope.spawn(move || {
                for i in 0..50 {
                    let text = format!("kernel {i}");
                    assert_eq!(compiler.compile(&request(&text)).unwrap().bytes, text.as_bytes());
                }
            });
        }
    });
    for compiler in [a, b] {
        let stats = compiler.cache().stats();
        assert_eq!((stats.hits + stats.misses, stats.damaged), (100, 0), "{stats:?}");
    }
    assert_eq!(entry_files(dir.path()).len(), 50);
}

/// Compiles slowly, and counts.
struct Slow(Arc<AtomicU64>);

impl Compiler for Slow {
    fn identity(&self, _platform: ir::target::Platform) -> Result<String, CompileError> {
        Ok("slow".into())
    }
    fn parallelism(&self) -> usize {
        2
    }
    fn compile(&self, request: &CompileRequest) -> Result<CompiledObject, CompileError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(50));
        Fake("slow").compile(request)
    }
    fn disassemble(&self, _: &[u8]) -> Result<Vec<Listing>, CompileError> {
        Ok(Vec::new())
    }
}

/// Caches of their own, as processes have them.
#[test]
fn three_cold_starts_share_one_compile_a_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let compiles = Arc::new(AtomicU64::new(0));
    let requests: Vec<_> = (0..6).map(|i| request(&format!("kernel {i}"))).collect();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let cache = Arc::new(Cache::open(dir.path(), 1 << 20));
                let compiler = CachedCompiler::new(Box::new(Slow(compiles.clone())), cache);
                let objects = compile_all(&compiler, &requests, &|_| ());
                assert!(objects.iter().all(Result::is_ok));
            });
        }
    });
    assert_eq!(compiles.load(Ordering::SeqCst), 6);
    assert_eq!(entry_files(dir.path()).len(), 6, "entries, and no locks left");
}

#[test]
fn entries_have_the_mode_that_the_umask_gives() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).compile(&request("text")).unwrap();
    let [file] = entry_files(dir.path()).try_into().unwrap();
    let plain = dir.path().join("plain");
    fs::write(&plain, "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&file), mode(&plain) & !0o022, "and nobody else may write it");
}
