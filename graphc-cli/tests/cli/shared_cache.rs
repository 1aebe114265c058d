//! Processes that begin with one empty cache: each kernel is compiled by one of them, and one that dies keeps nothing
//! from the rest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::place::{Place, compiler, digits};

/// Begins a compile of one model.
fn begin(p: &Place, out: &str) -> Child {
    let mut command: Command = p.command(&["compile", &digits(), "--target", "gfx90a", "-o", out]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("graphc starts")
}

fn end(child: Child) -> Output {
    let output = child.wait_with_output().expect("it can be waited for");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// How many kernels a compile says it compiled, and how many came from the cache.
fn counts(output: &Output) -> (usize, usize) {
    let text = String::from_utf8_lossy(&output.stderr);
    let before = |what: &str| -> usize {
        let number = text.split(what).next().and_then(|s| s.split_whitespace().next_back());
        let number = number.and_then(|n| n.parse().ok());
        number.unwrap_or_else(|| panic!("no number before {what:?} in: {text}"))
    };
    (before(" kernels compiled"), before(" from the cache"))
}

/// The files of the cache with this ending.
fn entries(p: &Place, ending: &str) -> BTreeSet<PathBuf> {
    let list = |folder: &Path| -> Vec<PathBuf> {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        files.map(|file| file.path()).collect()
    };
    let files = list(&p.path("cache/kernels"))
        .into_iter()
        .flat_map(|folder| list(&folder));
    files
        .filter(|file| file.extension().is_some_and(|e| e == ending))
        .collect()
}

#[test]
fn three_cold_processes_share_one_compile_for_each_kernel() {
    if !compiler(&Place::new()) {
        return;
    }
    let p = Place::new();
    let children = ["a.graphc", "b.graphc", "c.graphc"].map(|out| begin(&p, out));
    let counted = children.map(|child| counts(&end(child)));
    let (none, all) = counts(&end(begin(&p, "warm.graphc")));
    assert!(
        none == 0 && all > 3,
        "{none} compiled and {all} from the cache, when warm"
    );
    for (compiled, found) in counted {
        assert_eq!(compiled + found, all, "{counted:?}");
    }
    let compiled: usize = counted.iter().map(|(compiled, _)| compiled).sum();
    assert_eq!(compiled, all, "{counted:?}: each kernel once");
    assert_eq!(entries(&p, "lock"), BTreeSet::new(), "locks that nobody holds");
    let bytes = |name: &str| std::fs::read(p.path(name)).expect("written");
    for name in ["b.graphc", "c.graphc", "warm.graphc"] {
        assert!(bytes("a.graphc") == bytes(name), "{name} differs");
    }
}

#[test]
fn a_killed_process_keeps_no_lock() {
    if !compiler(&Place::new()) {
        return;
    }
    let p = Place::new();
    let mut killed = begin(&p, "a.graphc");
    let start = Instant::now();
    while entries(&p, "lock").is_empty() {
        assert!(
            killed.try_wait().expect("asked").is_none(),
            "it ended before it had a lock"
        );
        assert!(start.elapsed() < Duration::from_secs(60), "it takes no lock");
        std::thread::sleep(Duration::from_millis(1));
    }
    // It waits for what the first one compiles.
    let waiting = begin(&p, "b.graphc");
    killed.kill().expect("it can be killed");
    killed.wait().expect("it can be waited for");
    let (sender, receiver) = std::sync::mpsc::channel();
    let pid = waiting.id();
    std::thread::spawn(move || sender.send(end(waiting)));
    let Ok(output) = receiver.recv_timeout(Duration::from_secs(120)) else {
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        panic!("the second process waits for a lock of one that is dead");
    };
    let (compiled, found) = counts(&output);
    assert!(compiled > 0, "{compiled} compiled and {found} from the cache");
    assert_eq!(entries(&p, "lock"), BTreeSet::new(), "locks that nobody holds");
}
