//! Each call of the driver failed once, in everything that programs do on a GPU: an error says which call it was,
//! nothing is left behind, and the next run is right; or the device is said lost, and everything afterwards says so.
//!
//! On the emulated GPU behind HIP's interface, which fails calls on request and counts what was not given back. Without
//! a ROCm to compile with the tests print `skipped: …` and pass. `GRAPHC_ALL_FAULTS=1` fails every call, launch and
//! copy, not a sample of those that come again and again.

mod attempts;
mod control;
mod hang;
mod memory;
mod ranks;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use attempts::{Attempts, Scenario, count, runtime_error, sweep, sweep_within};
use control::Control;
use examples::models::decoder::{Decoder, numbers};
use graphc::driver::{BuildOptions, build};
use graphc::ir::plan::eval::evaluate;
use graphc::ir::{Bindings, Graph, Program, Target};
use graphc::passes::OptLevel;
use graphc::passes::stream::{least, streamed_bytes};
use graphc::prelude::*;
use graphc::runtime::gpu::{GpuDevice, Priority, Vendor, discover};
use graphc::runtime::{Executable, LoadOptions, RunTimes, RuntimeError};
use graphc::tune::Database;
use graphc_tests::emulated_hip::{EmulatedHip, compile, options_on};
use graphc_tests::reference::Tensors;
use graphc_tests::repository;

const ARCH: &str = "gfx1100";

fn host(values: &[f32], shape: &[usize]) -> HostTensor {
    HostTensor::from_f32(shape, values).expect("fits")
}

fn program(graph: &Graph, max_vram: Option<usize>) -> Arc<Program> {
    let target: Target = ARCH.parse().expect("a target");
    let mut options = BuildOptions::new(vec![target], OptLevel::O2);
    options.optimize.libraries = false;
    options.max_vram = max_vram;
    let mut program = build(graph, &options).expect("builds").program;
    compile(&mut program);
    Arc::new(program)
}

/// Launches that no fusion takes together, `layers` twice.
fn deep(layers: usize) -> Graph {
    let w: Vec<f32> = numbers(64, 3).iter().map(|v| v * 2.0).collect();
    let w = Tensor::from_slice(&w, [8, 8]);
    let x = InputSpec::new("x", DType::F32, shape![4, 8]);
    trace("deep", [x], |[x]| {
        let h = (0..layers).fold(x, |h, _| h.matmul(&w).softmax(-1));
        [("y", h)]
    })
    .expect("records")
}

/// Layers with weights of their own, each `side` times `side`.
fn layers(side: i64) -> Graph {
    let weight = |seed: u32| {
        let values: Vec<f32> = numbers((side * side) as usize, seed).iter().map(|v| v * 0.1).collect();
        Tensor::from_slice(&values, [side as usize; 2])
    };
    let weights: Vec<Tensor> = (1..=4).map(weight).collect();
    let x = InputSpec::new("x", DType::F32, shape![2, side]);
    trace("layers", [x], |[x]| {
        [("y", weights.iter().fold(x, |x, weight| x.matmul(weight).relu()))]
    })
    .expect("records")
}

/// What the interpreter says of one input `x`.
fn want(program: &Program, x: &HostTensor) -> Vec<f32> {
    let inputs = Tensors::from([("x".to_owned(), x.clone())]);
    let plan = &program.variants[0].plan;
    let outputs = evaluate(plan, &program.constants, &inputs).expect("evaluates");
    outputs["y"].to_f32()
}

fn close(got: &[f32], want: &[f32]) {
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 + 1e-4 * b.abs();
    assert!(
        got.len() == want.len() && got.iter().zip(want).all(near),
        "{got:?} is not {want:?}"
    );
}

fn load(device: &GpuDevice, program: &Arc<Program>, options: &LoadOptions) -> Result<Executable, RuntimeError> {
    Executable::load_on(device, program.clone(), 0, options)
}

/// Load, two runs, drop.
fn runs<'a>(program: &'a Arc<Program>, x: &'a HostTensor, options: LoadOptions) -> Box<Scenario<'a>> {
    let want = want(program, x);
    let inputs = Tensors::from([("x".to_owned(), x.clone())]);
    Box::new(move |device, attempts| {
        let Some(executable) = attempts.go("loading", || load(device, program, &options)) else {
            return;
        };
        for run in ["the first run", "the second run"] {
            if let Some(outputs) = attempts.go(run, || executable.run(&inputs)) {
                close(&outputs["y"].to_f32(), &want);
            }
        }
    })
}

/// A session of a program that is compiled already.
fn session(
    device: &Arc<GpuDevice>,
    program: &Arc<Program>,
    with: impl Fn(SessionOptions) -> SessionOptions,
) -> Result<Session, RuntimeError> {
    let options = with(options_on(device.clone()));
    Session::of_program(program.clone(), &options).map_err(runtime_error)
}

/// The only output, on the host.
fn only(values: runtime::Values) -> Result<Vec<f32>, RuntimeError> {
    let (_, value) = values.into_iter().next().expect("an output");
    Ok(value.into_host()?.to_f32())
}

/// A driver that refuses a capture is not asked again, and nobody is told but the statistics.
fn step_by_step(executable: &Executable, attempts: &mut Attempts<'_>) {
    if executable.statistics().refused > 0 {
        attempts.excuse("runs are not captured");
    }
}

/// Runs with the same addresses until they are captured, captured ones, and more sets of addresses than graphs are
/// kept.
fn captured<'a>(program: &'a Arc<Program>, x: &'a HostTensor) -> Box<Scenario<'a>> {
    let want = want(program, x);
    let inputs = Tensors::from([("x".to_owned(), x.clone())]);
    Box::new(move |device, attempts| {
        let load = || load(device, program, &LoadOptions::default());
        let Some(executable) = attempts.go("loading", load) else {
            return;
        };
        for _ in 0..4 {
            if let Some(outputs) = attempts.go("a run", || executable.run(&inputs)) {
                close(&outputs["y"].to_f32(), &want);
            }
        }
        let mut tensors = Vec::new();
        for _ in 0..9 {
            tensors.extend(attempts.go("an upload", || executable.upload(x)));
        }
        for tensor in &tensors {
            for _ in 0..3 {
                let run = || {
                    only(
                        executable
                            .submit([("x", Given::from(tensor))], &Wanted::host())?
                            .wait()?,
                    )
                };
                if let Some(y) = attempts.go("a run of a tensor", run) {
                    close(&y, &want);
                }
            }
        }
        let statistics = executable.statistics();
        let whole = statistics.captured > 4 && statistics.replayed > statistics.captured;
        assert!(whole || attempts.met(), "{statistics:?}");
        step_by_step(&executable, attempts);
    })
}

/// Tensors that stay: made by runs, passed on, donated, read, dropped.
fn tensors<'a>(program: &'a Arc<Program>, x: &'a HostTensor) -> Box<Scenario<'a>> {
    let once = want(program, x);
    let twice = want(program, &host(&once, &x.shape));
    Box::new(move |device, attempts| {
        let opened = attempts.go("loading", || session(device, program, |options| options));
        let Some(session) = opened else { return };
        let Some(first) = attempts.go("an upload", || session.upload(x).map_err(runtime_error)) else {
            return;
        };
        let run = |given: Given| {
            let mut values = session
                .values([("x", given)], &Wanted::device())
                .map_err(runtime_error)?;
            let (_, value) = values.pop().expect("an output");
            Ok(value.into_device().expect("it is wanted there"))
        };
        if let Some(y) = attempts.go("a run", || run(Given::from(&first))) {
            let read = |tensor: &DeviceTensor| tensor.download().map(|tensor| tensor.to_f32());
            if let Some(values) = attempts.go("a download", || read(&y)) {
                close(&values, &once);
            }
            // What is donated to a run that fails is gone: the next has a tensor of its own.
            let donate = || {
                let y = session.upload(&host(&once, &x.shape)).map_err(runtime_error)?;
                run(Given::Donated(y))
            };
            if let Some(z) = attempts.go("a run of a donated tensor", donate)
                && let Some(values) = attempts.go("a download", || read(&z))
            {
                close(&values, &twice);
            }
        }
        device.trim();
        let _ = attempts.go("waiting for the device", || device.synchronize());
        if let Some((free, all)) = attempts.go("asking for memory", || device.memory()) {
            assert!(free < all, "{free} of {all}");
        }
        if let Some(values) = attempts.go("a download", || first.download()) {
            assert_eq!(values.to_f32(), x.to_f32());
        }
    })
}

const DECODER: Decoder = Decoder {
    layers: 1,
    heads: 2,
    width: 8,
    capacity: 4,
};

/// State that runs append to, saved, forked and loaded.
fn state(program: &Arc<Program>) -> Box<Scenario<'_>> {
    let reference = SessionOptions::default();
    let with = |options: SessionOptions| {
        let links = DECODER.links().into_iter();
        links.fold(options, |options, (input, output)| options.state(&input, &output))
    };
    let steps = |session: &Session| -> Result<Vec<Vec<f32>>, graphc::Error> {
        // A state that a failed run may have written is begun again.
        session.reset_state();
        let step = |position| {
            let (x, position) = DECODER.step(position);
            Ok(session.run(&[("x", &x), ("position", &position)])?["y"].to_f32())
        };
        (0..3).map(step).collect()
    };
    let cpu = Session::compile(DECODER.graph().expect("records"), &with(reference)).expect("compiles");
    let want = steps(&cpu).expect("runs");
    let saved = cpu.save_state().expect("saves");
    Box::new(move |device, attempts| {
        let Some(session) = attempts.go("loading", || session(device, program, with)) else {
            return;
        };
        if let Some(got) = attempts.go("three steps", || steps(&session).map_err(runtime_error)) {
            got.iter().zip(&want).for_each(|(got, want)| close(got, want));
        }
        step_by_step(session.executable().expect("compiled"), attempts);
        // What is there without a run needs no device.
        if attempts.lost() {
            return;
        }
        let kept = attempts.go("saving", || session.save_state().map_err(runtime_error));
        for (name, tensor) in kept.iter().flatten() {
            close(&tensor.to_f32(), &saved[name].to_f32());
        }
        let fork = session.fork();
        if attempts
            .go("loading a state", || fork.load_state(&saved).map_err(runtime_error))
            .is_some()
        {
            let back = attempts.go("saving", || fork.save_state().map_err(runtime_error));
            assert!(back.is_none_or(|back| back == saved));
        }
    })
}

/// Runs that are not waited for: several at once, asked whether they are done, passed on before they are, as futures,
/// dropped.
fn pending<'a>(program: &'a Arc<Program>, x: &'a HostTensor) -> Box<Scenario<'a>> {
    let once = want(program, x);
    let twice = want(program, &host(&once, &x.shape));
    Box::new(move |device, attempts| {
        let load = || load(device, program, &LoadOptions::default());
        let Some(executable) = attempts.go("loading", load) else {
            return;
        };
        let begin = |given: Given, wanted: &Wanted| executable.submit([("x", given)], wanted);
        // Runs that depend on one another are one thing to do: what fails takes along those that wait for it.
        let chain = || {
            let mut first = begin(Given::from(x), &Wanted::device())?;
            let tensor = first.take("y").expect("it is wanted there");
            let second = begin(Given::Device(tensor), &Wanted::host())?;
            while !second.is_done() {}
            first.wait()?;
            only(second.wait()?)
        };
        if let Some(y) = attempts.go("a run of a run", chain) {
            close(&y, &twice);
        }
        // What goes wrong with a run that nobody waits for is nobody's error.
        if attempts
            .go("a run that is dropped", || {
                begin(Given::from(x), &Wanted::host()).map(drop)
            })
            .is_some()
        {
            attempts.excuse("nobody asked");
        }
        let many = || {
            let all: Vec<Pending> = (0..6)
                .map(|_| begin(Given::from(x), &Wanted::host()))
                .collect::<Result<_, _>>()?;
            all.into_iter()
                .map(|run| only(run.wait()?))
                .collect::<Result<Vec<_>, _>>()
        };
        for y in attempts.go("six runs at once", many).iter().flatten() {
            close(y, &once);
        }
        let future = || only(block_on(begin(Given::from(x), &Wanted::host())?)?);
        if let Some(y) = attempts.go("a future", future) {
            close(&y, &once);
        }
    })
}

/// Waits for a run as an executor does, which sleeps until it is woken.
fn block_on(mut run: Pending) -> Result<runtime::Values, RuntimeError> {
    let (sender, woken) = channel();
    let waker = Waker::from(Arc::new(Alarm(sender)));
    loop {
        match Pin::new(&mut run).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(values) => return values,
            Poll::Pending => woken.recv_timeout(Duration::from_secs(60)).expect("woken"),
        }
    }
}

struct Alarm(Sender<()>);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// Runs that are timed step by step.
fn profiled<'a>(program: &'a Arc<Program>, x: &'a HostTensor) -> Box<Scenario<'a>> {
    let want = want(program, x);
    let inputs = Tensors::from([("x".to_owned(), x.clone())]);
    Box::new(move |device, attempts| {
        let load = || load(device, program, &LoadOptions::default());
        let Some(executable) = attempts.go("loading", load) else {
            return;
        };
        for _ in 0..2 {
            let run = || {
                let mut times = RunTimes::default();
                let outputs = executable.run_profiled(&inputs, Some(&mut times))?;
                Ok((outputs, times))
            };
            if let Some((outputs, times)) = attempts.go("a timed run", run) {
                close(&outputs["y"].to_f32(), &want);
                assert_eq!(times.steps.len(), executable.plan().steps.len());
            }
        }
    })
}

fn x() -> HostTensor {
    host(&numbers(32, 5), &[4, 8])
}

fn control() -> Option<Control> {
    Control::new(&[("GRAPHC_EMU_ARCH", ARCH)])
}

#[test]
fn a_model_that_is_loaded_and_run() {
    let Some(control) = control() else { return };
    let (program, x) = (program(&deep(2), None), x());
    let faults = sweep(&control, "runs", &*runs(&program, &x, LoadOptions::default()));
    let options = LoadOptions {
        synchronous: true,
        priority: Priority::High,
        ..LoadOptions::default()
    };
    let more = sweep(&control, "urgent runs, step by step", &*runs(&program, &x, options));
    assert!(faults > 200 && more > faults, "{faults} and {more}");
}

#[test]
fn runs_that_are_captured() {
    let Some(control) = control() else { return };
    let (program, x) = (program(&deep(4), None), x());
    sweep(&control, "captured runs", &*captured(&program, &x));
}

#[test]
fn tensors_that_stay_and_are_donated() {
    let Some(control) = control() else { return };
    let (program, x) = (program(&deep(1), None), x());
    sweep(&control, "tensors", &*tensors(&program, &x));
}

#[test]
fn state_that_runs_append_to() {
    let Some(control) = control() else { return };
    let program = program(&DECODER.graph().expect("records"), None);
    sweep(&control, "state", &*state(&program));
}

#[test]
fn runs_that_are_not_waited_for() {
    let Some(control) = control() else { return };
    let (program, x) = (program(&deep(1), None), x());
    sweep(&control, "pending runs", &*pending(&program, &x));
    sweep_within(
        &control,
        "pending runs, asked for",
        &*pending(&program, &x),
        Some(Duration::from_secs(600)),
    );
}

#[test]
fn runs_that_are_timed() {
    let Some(control) = control() else { return };
    let (program, x) = (program(&deep(1), None), x());
    sweep(&control, "timed runs", &*profiled(&program, &x));
}

/// Looking for devices and opening one. There is no device yet that could be lost: whatever fails, the next try is a
/// new one.
#[test]
fn a_device_that_is_opened() {
    let Some(control) = control() else { return };
    let (program, x) = (program(&deep(1), None), x());
    let want = want(&program, &x);
    let search = control.hip.search();
    let open = || {
        if discover(&search, Vendor::Hip)?.is_empty() {
            let (what, reason) = ("a device".into(), "there is none".into());
            return Err(RuntimeError::NotAvailable { what, reason });
        }
        control.hip.open(0)
    };
    control.set_faults("");
    drop(open().expect("opens"));
    let calls = control.calls();
    assert!(calls.len() >= 4, "{calls:?}");
    for (call, count) in calls {
        for number in 1..=count {
            for code in ["hipErrorOutOfMemory", "hipErrorInvalidValue", "hipErrorNoDevice"] {
                let fault = format!("{call}@{number}={code}");
                control.set_faults(&fault);
                let error = open().map(drop).expect_err(&fault);
                match &error {
                    RuntimeError::Device {
                        call: said, code: gave, ..
                    } => {
                        assert_eq!((said, gave.as_str()), (&call, code), "{fault}: {error}");
                    }
                    RuntimeError::DeviceLost { .. } => {
                        assert!(
                            code == "hipErrorNoDevice" && error.to_string().contains(&call),
                            "{fault}: {error}"
                        );
                    }
                    // The driver says that there are none.
                    RuntimeError::NotAvailable { .. } => {
                        assert_eq!((call.as_str(), code), ("hipGetDeviceCount", "hipErrorNoDevice"));
                    }
                    other => panic!("{fault}: {other}"),
                }
                let device = open().expect(&fault);
                let executable = load(&device, &program, &LoadOptions::default()).expect(&fault);
                let outputs = executable
                    .run(&Tensors::from([("x".to_owned(), x.clone())]))
                    .expect(&fault);
                close(&outputs["y"].to_f32(), &want);
                drop((executable, device));
                assert!(control.live().is_empty(), "{fault}: {:?}", control.live());
            }
        }
    }
}

/// The functions of the driver's table for HIP: what the runtime calls by name.
fn table() -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository("runtime/src/gpu/hip.rs")).expect("the table");
    let words: &str = &text.split_whitespace().collect::<String>();
    let after = |mark: &'static str| {
        words.match_indices(mark).map(move |(at, _)| {
            let rest = &words[at + mark.len()..];
            rest.split(|c: char| !c.is_alphanumeric())
                .next()
                .unwrap_or("")
                .to_owned()
        })
    };
    let mut names: BTreeSet<String> = after("hip!(self.").chain(after("self.api.")).collect();
    // Asked for texts, and asked outside of the table.
    names.retain(|name| name.starts_with("hip") && !name.starts_with("hipGetError"));
    names.insert("hipGetDevicePropertiesR0600".into());
    // Those of several devices: `ranks/stages.rs` fails them.
    for name in [
        "hipDeviceCanAccessPeer",
        "hipDeviceEnablePeerAccess",
        "hipMemcpyPeerAsync",
    ] {
        assert!(names.remove(name), "{name} is not in the table");
    }
    names
}

/// Every function of the table is called, and so failed, in one of these tests.
#[test]
fn every_function_of_the_table_is_met() {
    let Some(control) = control() else { return };
    let (small, deep, x) = (program(&deep(1), None), program(&deep(4), None), x());
    let urgent = LoadOptions {
        priority: Priority::High,
        ..LoadOptions::default()
    };
    control.set_faults("");
    drop(control.hip.open(0).expect("a device"));
    let mut met: BTreeSet<String> = control.calls().into_keys().collect();
    for scenario in [
        runs(&small, &x, urgent),
        captured(&deep, &x),
        tensors(&small, &x),
        pending(&small, &x),
        profiled(&small, &x),
    ] {
        met.extend(count(&control, &*scenario).into_keys());
    }
    let table = table();
    assert!(table.len() > 30, "{table:?}");
    let left: Vec<&String> = table.difference(&met).collect();
    assert!(left.is_empty(), "never called: {left:?}");
    let unknown: Vec<&String> = met.difference(&table).collect();
    assert!(unknown.is_empty(), "not read out of the table: {unknown:?}");
}

#[test]
fn weights_that_are_streamed() {
    let Some(control) = control() else { return };
    let graph = layers(64);
    let whole = program(&graph, None);
    let least = least(&whole.variants[0].plan).expect("fixed");
    let program = program(&graph, Some(least));
    assert!(
        program.variants[0]
            .plan
            .streaming
            .is_some_and(|streaming| streaming.limit == least)
    );
    let streamed = streamed_bytes(&program.variants[0].plan, &Bindings::new()).expect("fixed");
    assert!(streamed > 3 * 64 * 64 * 4, "{streamed}");
    let x = host(&numbers(128, 5), &[2, 64]);
    sweep(
        &control,
        "streamed weights",
        &*runs(&program, &x, LoadOptions::default()),
    );
}

/// `graphc tune` measures on the device: what fails there ends it and is no candidate's fault, and the next time it
/// goes on where it was.
#[test]
fn tuning_that_meets_a_fault() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let model = at("product.gir");
    let text = "graph @product stage=import {
  x = input \"x\" : f16[32, 64]
  w = input \"w\" : f16[64, 48]
  y = contract x, w
  return y as \"y\"
}
";
    std::fs::write(&model, text).expect("writes");
    let mut kept = BTreeSet::new();
    for (number, (fault, said)) in [
        (
            "hipModuleLoadData@1=hipErrorInvalidValue",
            "hipModuleLoadData gave hipErrorInvalidValue",
        ),
        ("hipModuleLoadData@2=hipErrorOutOfMemory", "bytes are free"),
        (
            "hipEventElapsedTime@9=hipErrorInvalidValue",
            "hipEventElapsedTime gave hipErrorInvalidValue",
        ),
        ("launch@8", "hipErrorLaunchFailure"),
    ]
    .into_iter()
    .enumerate()
    {
        let database = at(&format!("{number}.db"));
        let tune = |faults: &str| {
            let hip = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a"), ("GRAPHC_EMU_FAULTS", faults)])?;
            let words = [
                "tune",
                "run",
                "-q",
                "--device",
                "hip",
                "--no-libraries",
                "--runs",
                "1",
                "--format",
                "json",
            ];
            Some(hip.graphc(&[&words[..], &["--candidates", "3", "--database", &database, &model]].concat()))
        };
        let Some(output) = tune(fault) else { return };
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{fault}: {text}");
        assert!(text.contains(said) && !text.contains("panicked"), "{fault}: {text}");
        let output = tune("").expect("as before");
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
        let measured = found["measured"].as_u64().expect("a count");
        assert!((1..=3).contains(&measured) && found["left"] == 0, "{fault}: {found:#}");
        assert!(
            found["products"][0]["best"]["us"].as_f64() > Some(0.0),
            "{fault}: {found:#}"
        );
        for row in Database::read(database.as_ref()).expect("opens").rows().expect("reads") {
            let is_known = row.arch.starts_with("gfx90a") && row.driver.starts_with("HIP 7.");
            assert!(is_known, "{row:?}");
        }
        kept.insert(3 - measured);
    }
    // Some faults came after a measurement, which was kept.
    assert!(kept.len() > 1, "{kept:?}");
}
