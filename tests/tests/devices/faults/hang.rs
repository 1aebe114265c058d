//! Work that does not end: with a timeout the device is given up in every wait, and nothing waits for it any more.

use std::sync::Arc;
use std::time::Duration;

use graphc::driver::{BuildOptions, build};
use graphc::ir::graph::parse::parse;
use graphc::ir::{Program, Target};
use graphc::passes::OptLevel;
use graphc::prelude::*;
use graphc::runtime::{Executable, LoadOptions, RuntimeError};
use graphc_tests::emulated_hip::{EmulatedHip, compile};
use graphc_tests::reference::Tensors;

use super::control::Control;
use super::{ARCH, close, deep, host, load, program, want, x};

const TIMEOUT: Duration = Duration::from_millis(100);

fn given(x: &HostTensor) -> Tensors {
    Tensors::from([("x".to_owned(), x.clone())])
}

/// The error of a wait that was over, and what everything says from then on.
fn assert_given_up(error: &RuntimeError, later: &RuntimeError) {
    let RuntimeError::TimedOut { device, at, after } = error else {
        panic!("{error}");
    };
    assert_eq!((device.as_str(), *after), ("hip:0", TIMEOUT), "{error}");
    assert!(
        error.to_string().contains("0.1 s") && error.to_string().contains("--timeout"),
        "{error}"
    );
    let RuntimeError::DeviceLost { reason, .. } = later else {
        panic!("{later}");
    };
    assert!(
        at.starts_with(reason.split(" was not done").next().unwrap_or("?")),
        "{reason}: {at}"
    );
}

/// What hangs is met first by a wait for a run, for a tensor, for a copy, by a future, or by what ends memory while
/// others run.
#[test]
fn every_wait_for_what_does_not_end_is_over_in_time() {
    let Some(control) = Control::new(&[("GRAPHC_EMU_ARCH", ARCH)]) else {
        return;
    };
    let (program, x) = (program(&deep(1), None), x());
    type Wait = fn(&Executable, &HostTensor) -> Result<(), RuntimeError>;
    let waits: [(&str, Wait); 7] = [
        ("a run", |executable, x| executable.run(&given(x)).map(drop)),
        ("a pending run", |executable, x| {
            executable
                .submit([("x", Given::from(x))], &Wanted::host())?
                .wait()
                .map(drop)
        }),
        ("a run of its output", |executable, x| {
            let mut first = executable.submit([("x", Given::from(x))], &Wanted::device())?;
            let tensor = first.take("y").expect("it is wanted there");
            executable
                .submit([("x", Given::Device(tensor))], &Wanted::host())?
                .wait()
                .map(drop)
        }),
        ("a tensor", |executable, x| {
            let mut run = executable.submit([("x", Given::from(x))], &Wanted::device())?;
            let tensor = run.take("y").expect("it is wanted there");
            tensor.wait()?;
            tensor.download().map(drop)
        }),
        ("a download", |executable, x| {
            let mut run = executable.submit([("x", Given::from(x))], &Wanted::device())?;
            run.take("y").expect("it is wanted there").download().map(drop)
        }),
        ("a future", |executable, x| {
            let run = executable.submit([("x", Given::from(x))], &Wanted::host())?;
            super::block_on(run).map(drop)
        }),
        ("too many runs", |executable, x| {
            let begin = |_| executable.submit([("x", Given::from(x))], &Wanted::host());
            (0..9).map(begin).collect::<Result<Vec<_>, _>>().map(drop)
        }),
    ];
    for (name, wait) in waits {
        for launch in [1, 2] {
            control.restart();
            let device = control.hip.open(0).expect("a device");
            device.set_timeout(Some(TIMEOUT));
            let options = LoadOptions {
                concurrent_runs: Some(2),
                ..LoadOptions::default()
            };
            let executable = load(&device, &program, &options).expect("loads");
            control.set_faults(&format!("hang@{launch}"));
            let error = wait(&executable, &x).expect_err(name);
            let asked = control.calls();
            let later = executable.run(&given(&x)).expect_err(name);
            match &error {
                // One of the runs before was given up for room.
                RuntimeError::DeviceLost { reason, .. } if name == "too many runs" => {
                    assert!(reason.contains("not done after 0.1 s"), "{reason}");
                }
                _ => assert_given_up(&error, &later),
            }
            let later = executable.upload(&x).expect_err(name);
            assert!(matches!(later, RuntimeError::DeviceLost { .. }), "{name}: {later}");
            assert!(device.synchronize().is_err() && device.memory().is_err());
            device.trim();
            drop((executable, device));
            assert_eq!(control.calls(), asked, "{name}: a device that was given up is asked");
            assert!(!control.live().contains_key("blocked"), "{name}: waited for ever");
        }
    }
}

/// A call that frees memory waits for all work on a device: it is not made while a run hangs.
#[test]
fn memory_is_not_freed_under_a_run_that_hangs() {
    let Some(control) = Control::new(&[("GRAPHC_EMU_ARCH", ARCH)]) else {
        return;
    };
    let (program, x) = (program(&deep(1), None), x());
    let device = control.hip.open(0).expect("a device");
    device.set_timeout(Some(TIMEOUT));
    let executable = load(&device, &program, &LoadOptions::default()).expect("loads");
    let other = load(&device, &program, &LoadOptions::default()).expect("loads");
    drop(executable.upload(&x).expect("uploads"));
    control.set_faults("hang@1");
    let run = executable
        .submit([("x", Given::from(&x))], &Wanted::host())
        .expect("begins");
    // Memory of tensors is kept, and given back now; then that of a program that has nothing to do with the run.
    device.trim();
    drop(other);
    let later = run.wait().expect_err("it hangs");
    assert!(
        matches!(later, RuntimeError::DeviceLost { .. } | RuntimeError::TimedOut { .. }),
        "{later}"
    );
    drop((executable, device));
    assert!(!control.live().contains_key("blocked"), "waited for ever");
}

/// With a timeout that is not over, runs, tensors and errors are as without one.
#[test]
fn a_timeout_changes_nothing_else() {
    let Some(control) = Control::new(&[("GRAPHC_EMU_ARCH", ARCH)]) else {
        return;
    };
    let (program, x) = (program(&deep(4), None), x());
    let want = want(&program, &x);
    let device = control.hip.open(0).expect("a device");
    device.set_timeout(Some(Duration::from_secs(600)));
    let executable = load(&device, &program, &LoadOptions::default()).expect("loads");
    for _ in 0..6 {
        close(&executable.run(&given(&x)).expect("runs")["y"].to_f32(), &want);
    }
    assert!(executable.statistics().replayed > 0);
    let tensor = executable.upload(&x).expect("uploads");
    assert_eq!(tensor.download().expect("downloads").to_f32(), x.to_f32());
    drop((tensor, executable));
    device.synchronize().expect("is there");
    drop(device);
    assert!(control.live().is_empty(), "{:?}", control.live());
}

/// A program whose kernel is a loop without an end.
fn endless() -> Program {
    let text = "graph @rows stage=import {
        x = input \"x\" : f32[4, 8]
        y = exp x
        return y as \"y\"
    }";
    let graph = parse(text).expect("parses");
    let target: Target = ARCH.parse().expect("a target");
    let mut program = build(&graph, &BuildOptions::new(vec![target], OptLevel::O2))
        .expect("builds")
        .program;
    let source = program.variants[0].sources.values_mut().next().expect("a kernel");
    let name = source.text.find(&format!("{}(", source.entry)).expect("the kernel");
    let body = name + source.text[name..].find('{').expect("its body") + 1;
    source
        .text
        .insert_str(body, "\n    while (true) __builtin_amdgcn_s_sleep(1);\n");
    compile(&mut program);
    program
}

#[test]
fn an_endless_kernel_is_given_up() {
    let limit = ("GRAPHC_EMU_INSTRUCTION_LIMIT", "20000");
    let with = |endless: &str| EmulatedHip::new(&[("GRAPHC_EMU_ARCH", ARCH), limit, ("GRAPHC_EMU_ENDLESS", endless)]);
    let Some(hangs) = with("hangs") else { return };
    let program = Arc::new(endless());
    let x = host(&[0.5; 32], &[4, 8]);
    let device = hangs.open(0).expect("a device");
    device.set_timeout(Some(TIMEOUT));
    // Step by step, the step is named.
    let options = LoadOptions {
        synchronous: true,
        ..LoadOptions::default()
    };
    let executable = load(&device, &program, &options).expect("loads");
    let error = executable.run(&given(&x)).expect_err("it does not end");
    assert_given_up(&error, &executable.run(&given(&x)).expect_err("the device is lost"));
    let kernel = &program.variants[0].plan.kernels.values().next().expect("a kernel").name;
    assert!(
        matches!(&error, RuntimeError::TimedOut { at, .. } if at.contains(kernel)),
        "{error}"
    );
    // A driver that stops such kernels by itself says so.
    let device = with("fails").expect("as before").open(0).expect("a device");
    let executable = load(&device, &program, &LoadOptions::default()).expect("loads");
    let error = executable.run(&given(&x)).expect_err("it does not end");
    assert!(
        matches!(&error, RuntimeError::Device { code, .. } if code == "hipErrorLaunchTimeOut"),
        "{error}"
    );
    // From the command line.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("endless.graphc");
    program.save(&path).expect("written");
    let words = [
        "run",
        "-q",
        "--random",
        "--device",
        "hip",
        "--timeout",
        "0.2",
        &path.to_string_lossy(),
    ];
    let output = hangs.graphc(&words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["was not done after 0.2 s", "--timeout", "GRAPHC_SYNCHRONOUS=1"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("never done"), "waited for ever: {said}");
    let output = hangs.graphc(&["run", "--random", "--timeout", "soon", &path.to_string_lossy()]);
    assert!(output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains("soon"));
}
