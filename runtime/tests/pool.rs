//! The pool against workers that are none, that die, hang or babble. Needs no ROCm: the workers are shell commands.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use graphc_runtime::compile::{CompileError, CompileRequest, Compiler, HiprtcSearch, WorkerPool};
use ir::target::Platform;

fn request() -> CompileRequest {
    let text = |text: &str| text.to_string();
    CompileRequest {
        name: text("k"),
        source: text("source"),
        headers: vec![],
        arch: text("gfx90a"),
        options: vec![],
    }
}

fn shell(script: &str) -> WorkerPool {
    WorkerPool::new(["/bin/sh", "-c", script].map(OsString::from).to_vec(), 1)
}

#[test]
fn what_is_no_worker_is_an_error_with_its_last_words() {
    let missing = WorkerPool::new(vec!["/graphc/no/such/program".into()], 1)
        .compile(&request())
        .unwrap_err();
    assert!(matches!(&missing, CompileError::WorkerStart { command, .. } if command == "/graphc/no/such/program"));
    let empty = WorkerPool::new(vec![], 1).compile(&request()).unwrap_err();
    assert!(matches!(empty, CompileError::WorkerStart { .. }), "{empty}");
    let fails = shell("echo mount: permission denied >&2; exit 125")
        .compile(&request())
        .unwrap_err();
    assert!(matches!(&fails, CompileError::WorkerStart { reason, .. } if reason.contains("mount: permission denied")));
    let babbles = shell("echo 'usage: not a worker at all'")
        .compile(&request())
        .unwrap_err();
    assert!(matches!(babbles, CompileError::Protocol { .. }), "{babbles}");
    let echoes = shell("cat").compile(&request()).unwrap_err();
    assert!(matches!(echoes, CompileError::Protocol { .. }), "{echoes}");
}

#[test]
fn a_worker_without_rocm_says_where_it_looked() {
    let search = HiprtcSearch::only("/graphc/no/rocm");
    let pool = WorkerPool::new(vec![env!("CARGO_BIN_EXE_graphc-compile-worker").into()], 1).search(search);
    let error = pool.compile(&request()).unwrap_err();
    let CompileError::NotAvailable { what, looked_in, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(what, "hiprtc");
    assert_eq!(looked_in, &["/graphc/no/rocm: no such folder"]);
    assert_eq!(pool.identity(Platform::Hip).unwrap_err(), error);
}

/// A first answer by hand: frame length 4, `Ready`, version 2, `Ok`, an empty identity.
const READY: &str = r"printf '\004\000\000\000\000\002\000\000';";

#[test]
fn death_by_signal_and_by_exit_are_told_apart_and_the_pool_goes_on() {
    let kept = tempfile::tempdir().unwrap();
    // It speaks when the request is under way: what it says of its start belongs to no kernel.
    let pool = shell(&format!(
        "{READY} head -c 30 >/dev/null; sleep 0.3; echo LLVM ERROR >&2; kill -ABRT $$"
    ))
    .keep_failures_in(kept.path());
    for round in 1..=3 {
        let error = pool.compile(&request()).unwrap_err();
        let CompileError::WorkerDied {
            signal,
            exit_code,
            failure,
            ..
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!((*signal, *exit_code), (Some(6), None));
        assert!(failure.log.contains("LLVM ERROR"), "{error}");
        assert!(
            failure.source_path.as_ref().is_some_and(|path| path.is_file()),
            "{error}"
        );
        assert_eq!((pool.workers_started(), pool.workers_lost()), (round, round));
    }
    let error = shell(&format!("{READY} head -c 30 >/dev/null; exit 7"))
        .compile(&request())
        .unwrap_err();
    assert!(
        matches!(
            error,
            CompileError::WorkerDied {
                signal: None,
                exit_code: Some(7),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_hung_worker_and_its_children_are_killed() {
    let marker = format!("7{:07}", std::process::id());
    let pool = shell(&format!("{READY} sleep {marker} & wait; sleep {marker}")).timeout(Duration::from_millis(200));
    let start = Instant::now();
    let error = pool.compile(&request()).unwrap_err();
    assert!(matches!(error, CompileError::TimedOut { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let alive = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes
            .filter(|process| {
                let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
                line == format!("sleep\0{marker}\0").as_bytes()
            })
            .count()
    };
    let until = Instant::now() + Duration::from_secs(5);
    while alive() > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(alive(), 0, "the worker's child outlived it");
}

#[test]
fn a_worker_that_died_while_idle_is_replaced() {
    // Answers the identity question by starting, then leaves at once.
    let pool = shell(&format!("{READY} exit 0"));
    assert_eq!(pool.identity(Platform::Hip).unwrap(), "");
    std::thread::sleep(Duration::from_millis(100));
    let error = pool.compile(&request()).unwrap_err();
    assert!(
        matches!(error, CompileError::WorkerDied { exit_code: Some(0), .. }),
        "{error}"
    );
    assert_eq!(pool.workers_started(), 2);
}

#[test]
fn a_source_larger_than_the_pipe_does_not_hang_on_a_worker_that_reads_nothing() {
    let pool = shell(&format!("{READY} sleep 1000")).timeout(Duration::from_millis(300));
    let large = CompileRequest {
        source: "x".repeat(4 << 20),
        ..request()
    };
    assert!(matches!(
        pool.compile(&large).unwrap_err(),
        CompileError::TimedOut { .. }
    ));
}
