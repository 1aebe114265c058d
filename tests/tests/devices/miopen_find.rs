//! MIOpen's find stage and its user databases, by the unmodified MIOpen on the emulated gfx90a.
//!
//! The library is looked for as `hip_libraries.rs` says; without it the tests print `skipped: …` and pass.

use std::path::Path;
use std::sync::Arc;

use graphc::ir::graph::{eval, parse};
use graphc::ir::{DType, Graph};
use graphc::runtime::{Executable, LoadOptions, MiopenFind, MiopenOptions, RuntimeError, Wanted};
use graphc_tests::emulated_hip::EmulatedHip;
use graphc_tests::libraries::{self, Failing, calls, tensor};
use graphc_tests::reference::Tensors;

fn inside(test: &str) -> Option<EmulatedHip> {
    // In its mode `normal` MIOpen gives up where a kernel does not compile: those of implicit products miss C++'s
    // headers in the sysroot.
    let variables = [("GRAPHC_EMU_ARCH", "gfx90a"), ("MIOPEN_DEBUG_CONV_IMPLICIT_GEMM", "0")];
    libraries::inside(module_path!(), test, env!("CARGO_TARGET_TMPDIR"), &variables)
}

/// A convolution as a call, with inputs.
pub fn convolution() -> (Graph, Tensors) {
    let text = "graph @convolution stage=core {
        x = input \"x\" : f32[1, 4, 6, 6]
        w = input \"w\" : f32[8, 4, 3, 3]
        y = miopen_conv x, w {pad_low=[1, 1], pad_high=[1, 1]}
        return y as \"y\"
    }";
    let inputs = Tensors::from([
        ("x".to_owned(), tensor(DType::F32, &[1, 4, 6, 6], 0)),
        ("w".to_owned(), tensor(DType::F32, &[8, 4, 3, 3], 1)),
    ]);
    (parse::parse(text).expect("parses"), inputs)
}

fn options(find: MiopenFind, folder: &Path) -> LoadOptions {
    LoadOptions {
        miopen: MiopenOptions {
            find,
            user_database: Some(folder.to_owned()),
        },
        ..LoadOptions::default()
    }
}

/// The lines of all find databases in a folder: a convolution each, with the solutions that were timed for it.
fn measured(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|file| file.expect("a file").path());
    let databases = files.filter(|path| path.to_string_lossy().ends_with(".ufdb.txt"));
    let texts = databases.map(|path| std::fs::read_to_string(path).expect("text"));
    texts
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// MIOpen takes each mode (its own getter says so, else loading fails), searches once for all contexts of a program,
/// keeps what it timed in the folder that was given, and the result is right.
#[test]
fn each_find_mode_is_taken_and_what_is_timed_is_kept() {
    let Some(hip) = inside("each_find_mode_is_taken_and_what_is_timed_is_kept") else {
        return;
    };
    let failing = Failing::new();
    let mut search = hip.search();
    search.libraries.explicit = Some(failing.folder().into());
    let device = hip.open_with(&search, 0).expect("a device");
    let (graph, inputs) = convolution();
    let want = eval::evaluate(&graph, &inputs).expect("evaluates");
    let program = Arc::new(calls(&graph));
    let folder = tempfile::tempdir().expect("a folder");
    // Not there yet.
    let databases = folder.path().join("databases");
    let mut timed = Vec::new();
    for find in [
        MiopenFind::Immediate,
        MiopenFind::Fast,
        MiopenFind::DynamicHybrid,
        MiopenFind::Hybrid,
        MiopenFind::Normal,
    ] {
        failing.fail("", 0, 0);
        let executable = Executable::load_on(&device, program.clone(), 0, &options(find, &databases)).expect("loads");
        let begin = |_| {
            let given = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor.into()));
            executable.submit(given, &Wanted::host()).expect("begins")
        };
        // At once, each in a context of its own.
        let runs: Vec<_> = (0..3).map(begin).collect();
        for run in runs {
            let (_, value) = run.wait().expect("runs").pop().expect("an output");
            let got = value.into_host().expect("is wanted there");
            let d = graphc::compare::compare(&got, &want["y"], 1e-3, 1e-3).expect("same shape");
            assert!(d.is_within(), "{find}: {d:?}");
        }
        let calls = failing.calls();
        let of = |name: &str| calls.get(name).copied().unwrap_or(0);
        let searches = u64::from(find != MiopenFind::Immediate);
        for name in [
            "miopenSetConvolutionFindMode",
            "miopenGetConvolutionFindMode",
            "miopenFindConvolutionForwardAlgorithm",
        ] {
            assert_eq!(of(name), searches, "{find}: {name}, {calls:?}");
        }
        assert!(of("miopenCreate") >= 2, "{find}: {calls:?}");
        timed.push(measured(&databases));
        println!("{find}: {:?}", timed.last());
    }
    let [immediate, fast, dynamic, hybrid, normal] = &timed[..] else {
        panic!("five modes");
    };
    // A heuristic is no measurement.
    assert!(immediate.is_empty() && fast.is_empty(), "{timed:#?}");
    assert_eq!((dynamic.len(), normal.len()), (1, 1), "{timed:#?}");
    assert_eq!(dynamic, hybrid, "what the database has is not timed again");
    // Everything is timed, whatever the database has, and also what is compiled for these sizes alone.
    let solvers = |lines: &[String]| lines[0].matches("miopenConvolutionFwdAlgo").count();
    assert!(solvers(normal) > solvers(hybrid), "{timed:#?}");
    assert!(databases.is_dir());
}

/// MIOpen reads its folder once: what comes too late is said, and what it has already goes on.
#[test]
fn a_folder_that_comes_too_late_is_said() {
    let Some(hip) = inside("a_folder_that_comes_too_late_is_said") else {
        return;
    };
    let device = hip.open(0).expect("a device");
    let (graph, inputs) = convolution();
    let program = Arc::new(calls(&graph));
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second, file) = (
        folder.path().join("1"),
        folder.path().join("2"),
        folder.path().join("file"),
    );
    std::fs::write(&file, "no folder").expect("writes");
    let load = |options: &LoadOptions| Executable::load_on(&device, program.clone(), 0, options);
    let refused = |folder: &Path, says: &[&str]| {
        let error = load(&options(MiopenFind::Immediate, folder)).expect_err("is refused");
        let text = error.to_string();
        assert!(matches!(error, RuntimeError::MiopenDatabase { .. }), "{text}");
        assert!(says.iter().all(|part| text.contains(part)), "{text}");
    };
    refused(&file, &["file", "exists"]);
    load(&options(MiopenFind::Immediate, &first)).expect("MIOpen was not loaded before");
    refused(
        &second,
        &[
            &first.display().to_string(),
            &second.display().to_string(),
            "loaded already",
        ],
    );
    for options in [options(MiopenFind::Immediate, &first), LoadOptions::default()] {
        load(&options).expect("the same folder").run(&inputs).expect("runs");
    }
}

/// The options of the command line reach MIOpen in `graphc run`.
#[test]
fn the_command_line_has_modes_and_the_folder() {
    let Some(hip) = inside("the_command_line_has_modes_and_the_folder") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let text = "graph @convolution stage=import {
        x = input \"x\" : f32[1, 6, 6, 8]
        w = constant random(seed=3, scale=0.1) : f32[16, 3, 3, 8]
        y = conv x, w {pad_low=[1, 1], pad_high=[1, 1], channels_last}
        return y as \"y\"
    }";
    std::fs::write(at("model.gir"), text).expect("writes");
    let run = |find: &str, database: &str| {
        let words = [
            "run",
            "--random",
            "--device",
            "hip",
            "--libraries",
            "always",
            "-q",
            "--miopen-find",
            find,
        ];
        hip.graphc(&[&words[..], &["--miopen-user-db", &at(database), &at("model.gir")]].concat())
    };
    for (find, count) in [("immediate", 0), ("hybrid", 1)] {
        let output = run(find, find);
        assert!(output.status.success(), "{find}: {output:?}");
        assert_eq!(measured(Path::new(&at(find))).len(), count, "{find}");
    }
    let output = run("hybrid", "model.gir");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("MIOpen's user databases cannot be in") && said.contains("model.gir"),
        "{said}"
    );
}
