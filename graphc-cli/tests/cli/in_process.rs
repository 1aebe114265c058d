//! Every verb, where ROCm is in the process as on a machine that has it installed: inside the
//! sysroot's own shell, with compile workers and without, and beside them from outside, through workers. Each with
//! nothing cached and with all of it.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::place::{Place, SMALL, compiler, digits, text};

/// Each verb of the program's help, and words that it prints; those that take several targets are given two. Of the
/// verbs that compile or emulate, each way.
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
    ("run DIGITS --random --size batch=2", "logits"),
    ("opt OUT/small.gir --target gfx90a", "stage=core"),
    ("inspect DIGITS --size batch=2 --target gfx90a", "vgpr"),
    ("profile DIGITS --size batch=2 --device cpu --runs 2", "roofline"),
    ("bench DIGITS --size batch=2 --device cpu --runs 2", "median"),
    (
        "quantize DIGITS --size batch=2 --scheme weights-int8 -o OUT/small.onnx",
        "",
    ),
    ("targets", "gfx942"),
    ("doctor", "hip"),
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
    ("tune merge --into OUT/all.json OUT/rows.json", ""),
    ("tune show OUT/all.json", "gfx90a"),
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
        std::fs::write(out.join("small.gir"), SMALL).expect("written");
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

/// The verbs that a page of help lists.
fn listed(help: &str) -> Vec<&str> {
    let list = help.split("Commands:").nth(1).unwrap_or_default();
    let lines = list
        .trim_start_matches('\n')
        .lines()
        .take_while(|line| !line.is_empty());
    // What does not fit a line goes on below, further in.
    let names = lines.filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')));
    let names = names.filter_map(|line| line.split(' ').next());
    names.filter(|name| *name != "help").collect()
}

#[test]
fn every_verb_of_the_help_is_run() {
    let place = Place::new();
    let help = place.ok(&["--help"]);
    let verbs = listed(&help);
    assert!(verbs.len() > 10 && verbs.contains(&"doctor"), "{verbs:?}");
    for verb in verbs {
        let help = place.ok(&[verb, "--help"]);
        let under = match listed(&help) {
            none if none.is_empty() => vec![verb.to_owned()],
            under => under.into_iter().map(|name| format!("{verb} {name}")).collect(),
        };
        for verb in under {
            let has = |line: &str| line == verb || line.starts_with(&format!("{verb} "));
            assert!(VERBS.iter().any(|(line, _)| has(line)), "no row runs `graphc {verb}`");
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
