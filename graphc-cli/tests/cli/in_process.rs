//! Verbs that compile or emulate, where ROCm is in the process as on a machine that has it installed: inside the
//! sysroot's own shell, with compile workers and without, and beside them from outside, through workers. Each with
//! nothing cached and with all of it.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::place::{Place, compiler, digits, text};

/// Each verb that compiles or emulates, and words that it prints; those that take several targets are given two.
const VERBS: &[(&str, &str)] = &[
    (
        "compile DIGITS --size batch=2 --target gfx90a,gfx942 -o OUT/two.graphc",
        "",
    ),
    (
        "compile DIGITS --size batch=2 --target gfx90a --emit asm -o OUT/asm",
        "",
    ),
    ("run DIGITS --random --size batch=2 --emulate --target gfx90a", "logits"),
    ("inspect OUT/two.graphc --target gfx942 --emulate --time", "held by"),
    ("explain DIGITS --target gfx90a,gfx942", "fused"),
    ("bench DIGITS --size batch=2 --emulate --target gfx942", "us"),
    (
        "report DIGITS --size batch=2 --target gfx90a,gfx942 --emulate -o OUT/page.html",
        "",
    ),
    (
        "verify DIGITS --size batch=2 --target gfx90a,gfx942 --emulate",
        "kernels checked",
    ),
    (
        "quantize DIGITS --size batch=2 --scheme weights-int8 --target gfx90a,gfx942 --emulate",
        "layers quantised",
    ),
    (
        "tune run DIGITS --size batch=2 --target gfx90a --emulate --candidates 1 --database OUT/rows.json",
        "",
    ),
];

/// Where the sysroot's shell is, for hosts whose own loader finds no hiprtc.
fn shell() -> Option<PathBuf> {
    let named = std::env::var_os("GRAPHC_ROCM").map(PathBuf::from);
    let roots = named.into_iter().chain(["/opt/graphc-rocm".into()]);
    roots.map(|root| root.join("rocm-run")).find(|file| file.is_file())
}

/// How the command line meets ROCm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rocm {
    /// hiprtc and comgr in workers, which are started through the sysroot's shell.
    Outside,
    /// hiprtc in workers, comgr in the process.
    Inside,
    /// Both in the process.
    InProcess,
}

fn command(place: &Place, rocm: Rocm, args: &[&str]) -> Command {
    let plain = place.command(args);
    let mut command = match shell().filter(|_| rocm != Rocm::Outside) {
        None => plain,
        Some(shell) => {
            let mut command = Command::new(shell);
            command.arg(plain.get_program()).args(plain.get_args());
            command.current_dir(plain.get_current_dir().expect("it has one"));
            command.env_remove("GRAPHC_ROCM");
            command
        }
    };
    command.env("GRAPHC_CACHE", place.path(&format!("cache-{rocm:?}")));
    command.env("GRAPHC_WORKERS", if rocm == Rocm::InProcess { "0" } else { "2" });
    command
}

/// Runs all verbs with an empty cache, then again with what they left there.
fn all_verbs(rocm: Rocm) {
    let place = Place::new();
    if !compiler(&place) {
        return;
    }
    for pass in ["cold", "warm"] {
        let out = place.path(&format!("out-{pass}"));
        std::fs::create_dir(&out).expect("a folder");
        for (line, says) in VERBS {
            let words: Vec<String> = line
                .split(' ')
                .map(|word| word.replace("DIGITS", &digits()).replace("OUT", text(&out)))
                .collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let output: Output = command(&place, rocm, &words).output().expect("it starts");
            let message = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "{rocm:?}, {pass}: {line}: {}: {message}",
                output.status
            );
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains(says), "{rocm:?}, {pass}: {line}: {said}");
        }
    }
}

#[test]
fn verbs_run_where_rocm_is_in_workers() {
    all_verbs(Rocm::Outside);
}

#[test]
fn verbs_run_where_rocm_is_in_the_process_and_in_workers() {
    all_verbs(Rocm::Inside);
}

#[test]
fn verbs_run_where_rocm_is_in_the_process() {
    all_verbs(Rocm::InProcess);
}
