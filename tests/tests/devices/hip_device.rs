//! The runtime's GPU device end to end: plans through the HIP interface, on the emulated GPU that stands behind it.
//!
//! The library under test reads `libamdhip64.so.7` and cannot tell that there is no GPU: streams, events, pinned
//! memory, modules, faults and the order of what runs are the library's. Without a ROCm to compile with the tests print
//! `skipped: …` and pass.

use std::path::Path;
use std::sync::Arc;

use examples::models::minilm::{Config, MiniLm};
use graphc::driver::{BuildOptions, build};
use graphc::frontend::nn::Params;
use graphc::frontend::onnx::{ImportOptions, import};
use graphc::frontend::weights::Weights;
use graphc::ir::graph::parse;
use graphc::ir::plan::{self, Plan, StepId, Work};
use graphc::ir::schedule::LaneKind;
use graphc::ir::{DType, Dim, Graph, HostTensor, Program, Storage, Target};
use graphc::passes::OptLevel;
use graphc::runtime::device::{Device, variant_for};
use graphc::runtime::{Executable, LoadOptions, RunTimes, RuntimeError};
use graphc::session::OpenDevice;
use graphc_tests::emulated_hip::{EmulatedHip, compile};
use graphc_tests::random_graph::{Step, case};
use graphc_tests::reference::Tensors;
use graphc_tests::{data, repository};

const ARCHS: [&str; 4] = ["gfx90a", "gfx942", "gfx1100", "gfx1201"];

fn targets(names: &[&str]) -> Vec<Target> {
    names.iter().map(|name| name.parse().expect("a target")).collect()
}

/// A program with its code for some targets.
fn program(graph: &Graph, names: &[&str]) -> Program {
    let mut options = BuildOptions::new(targets(names), OptLevel::O2);
    options.optimize.libraries = false;
    let mut program = build(graph, &options).expect("builds").program;
    compile(&mut program);
    program
}

fn digits() -> Graph {
    import(&repository("examples/digits/digits.onnx"), &ImportOptions::default()).expect("imports")
}

/// The first `rows` rows of the arrays of a file.
fn rows(path: &Path, rows: usize) -> Tensors {
    let arrays = graphc::arrays::read(path).expect("readable");
    arrays
        .into_iter()
        .map(|(name, tensor)| (name, head(&tensor, 0, rows)))
        .collect()
}

/// The first `size` elements along an axis.
fn head(tensor: &HostTensor, axis: usize, size: usize) -> HostTensor {
    let outer: usize = tensor.shape[..axis].iter().product();
    let inner: usize = tensor.shape[axis + 1..].iter().product();
    let unit = tensor.dtype.bytes_for(inner);
    let kept = (0..outer).flat_map(|o| {
        let at = o * tensor.shape[axis] * unit;
        tensor.bytes[at..at + size * unit].to_vec()
    });
    let mut shape = tensor.shape.clone();
    shape[axis] = size;
    HostTensor::new(tensor.dtype, shape, Storage::new(kept.collect::<Vec<u8>>())).expect("fits")
}

fn digits_case(n: usize) -> (Tensors, Tensors) {
    (
        rows(&repository("examples/digits/test.npz"), n),
        rows(&repository("examples/digits/expected.npz"), n),
    )
}

fn assert_close(got: &Tensors, want: &Tensors, atol: f64, context: &str) {
    for (name, want) in want {
        let difference = graphc::compare::compare(&got[name], want, 1e-4, atol).expect("same shape");
        assert!(difference.is_within(), "{context}: {name}: {difference:?}");
    }
}

fn load(device: &dyn Device, program: &Arc<Program>, options: &LoadOptions) -> Result<Executable, RuntimeError> {
    Executable::load_on(device, program.clone(), variant_for(program, device)?, options)
}

fn said(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn the_shipped_model_from_the_command_line_on_four_gpus() {
    let folder = tempfile::tempdir().expect("a folder");
    let (inputs, expect) = digits_case(16);
    let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (input, output) = (file("in.npz"), file("out.npz"));
    graphc::arrays::write(Path::new(&input), &inputs).expect("written");
    graphc::arrays::write(Path::new(&output), &expect).expect("written");
    let model = repository("examples/digits/digits.onnx");
    for arch in ARCHS {
        let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", arch)]) else {
            return;
        };
        let words = [
            "run",
            "-q",
            "--device",
            "hip",
            "--no-libraries",
            &model.to_string_lossy(),
        ];
        let output = hip.graphc(&[&words[..], &["--inputs", &input, "--expect", &output]].concat());
        assert!(output.status.success(), "{arch}: {}", said(&output));
        assert!(said(&output).contains("logits: ok"), "{arch}: {}", said(&output));
    }
}

/// All 360 images, scored.
#[test]
fn the_shipped_model_scores_what_it_scores() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx1100")]) else {
        return;
    };
    let file = |name: &str| {
        repository(&format!("examples/digits/{name}"))
            .to_string_lossy()
            .into_owned()
    };
    let (model, inputs, expect, labels) = (
        file("digits.onnx"),
        file("test.npz"),
        file("expected.npz"),
        file("labels.npz"),
    );
    let words = [
        "run",
        "-q",
        "--device",
        "hip:0",
        "--no-libraries",
        &model,
        "--inputs",
        &inputs,
    ];
    let output = hip.graphc(&[&words[..], &["--expect", &expect, "--labels", &labels]].concat());
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("355 of 360"), "{}", said(&output));
}

/// MiniLM with its real weights at 8 tokens against the CPU device; on the first GPU also at 16 against PyTorch, from
/// the same load. `GRAPHC_ALL_MODELS=1` takes all four GPUs.
#[test]
fn minilm_at_two_sizes_from_one_load() {
    let file = repository("target/minilm/model.safetensors");
    if !file.is_file() {
        println!("skipped: no MiniLM weights; scripts/fetch-minilm.sh fetches them");
        return;
    }
    let params = Params::new(Weights::open(file).expect("safetensors"));
    let graph = MiniLm::load(&params, Config::default())
        .expect("MiniLM's weights")
        .graph()
        .expect("records");
    let inputs = rows(&data("minilm/batch.in.npz"), 1);
    let want = rows(&data("minilm/batch.out.npz"), 1);
    let shorter: Tensors = inputs.iter().map(|(name, t)| (name.clone(), head(t, 1, 8))).collect();
    let archs = if std::env::var_os("GRAPHC_ALL_MODELS").is_some() {
        &ARCHS[..]
    } else {
        &["gfx90a", "gfx1100"]
    };
    for (index, arch) in archs.iter().enumerate() {
        let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", arch)]) else {
            return;
        };
        let device = hip.open(0).expect("a device");
        let program = Arc::new(program(&graph, &[arch, "cpu"]));
        let executable = load(&device, &program, &LoadOptions::default()).expect("loads");
        if index == 0 {
            let got = executable.run(&inputs).expect("runs");
            assert_close(&got, &want, 1e-4, "16 tokens");
        }
        let cpu = OpenDevice::cpu().device;
        let reference = load(cpu.as_ref(), &program, &LoadOptions::default()).expect("loads on the cpu");
        let (got, want) = (
            executable.run(&shorter).expect("runs"),
            reference.run(&shorter).expect("runs"),
        );
        assert_eq!(got["last_hidden_state"].shape, [1, 8, 384]);
        assert_close(&got, &want, 1e-4, &format!("{arch}, 8 tokens"));
    }
}

/// Whatever order the device chooses, the answers are the same.
#[test]
fn every_legal_order_gives_the_same_answers() {
    let Some(first) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx942")]) else {
        return;
    };
    let program = Arc::new(program(&digits(), &["gfx942"]));
    let (inputs, want) = digits_case(2);
    let run = |hip: &EmulatedHip| {
        let executable = load(&hip.open(0).expect("a device"), &program, &LoadOptions::default()).expect("loads");
        // The second run finds what the first left in the arena.
        let runs = [
            executable.run(&inputs).expect("runs"),
            executable.run(&inputs).expect("runs"),
        ];
        assert_close(&runs[0], &want, 1e-4, "first run");
        assert_eq!(runs[0], runs[1]);
        runs[0].clone()
    };
    let expected = run(&first);
    for seed in 1..=8 {
        let seed = seed.to_string();
        let variables = [
            ("GRAPHC_EMU_ARCH", "gfx942"),
            ("GRAPHC_EMU_SEED", &seed),
            ("GRAPHC_EMU_CHECKS", "races"),
        ];
        let Some(hip) = EmulatedHip::new(&variables) else {
            return;
        };
        assert_eq!(run(&hip), expected, "seed {seed}");
    }
}

/// The steps of a lane's kind that wait for others.
fn waiting(plan: &Plan, wanted: fn(&Plan, StepId) -> bool) -> Vec<StepId> {
    plan.steps
        .keys()
        .filter(|id| !plan.steps[*id].waits.is_empty() && wanted(plan, *id))
        .collect()
}

/// A wait that is missing from the plan shows under some order: as a wrong answer or as a report.
#[test]
fn a_dropped_wait_is_found() {
    let good = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx1201")]);
    if good.is_none() {
        return;
    }
    let program = program(&digits(), &["gfx1201"]);
    let (inputs, want) = digits_case(2);
    let (others, _) = digits_case(4);
    let others: Tensors = others.iter().map(|(n, t)| (n.clone(), tail(t, 2))).collect();
    let kernel: fn(&Plan, StepId) -> bool = |plan, id| matches!(plan.steps[id].work, Work::Launch { .. });
    let download: fn(&Plan, StepId) -> bool = |plan, id| plan.lanes[plan.steps[id].lane].kind == LaneKind::Download;
    for (what, wanted) in [("upload before kernel", kernel), ("kernel before download", download)] {
        let mut broken = program.clone();
        let plan = &mut broken.variants[0].plan;
        let steps = waiting(plan, wanted);
        assert!(!steps.is_empty(), "{what}");
        for step in steps {
            plan.steps[step].waits.clear();
        }
        let broken = Arc::new(broken);
        let found = (1..=16).any(|seed| {
            let seed = seed.to_string();
            let variables = [("GRAPHC_EMU_ARCH", "gfx1201"), ("GRAPHC_EMU_SEED", seed.as_str())];
            let hip = EmulatedHip::new(&variables).expect("as before");
            let executable = load(&hip.open(0).expect("a device"), &broken, &LoadOptions::default()).expect("loads");
            // Other inputs first, so that what lies in the arena is not by chance what belongs there.
            let wrong = |result: Result<Tensors, RuntimeError>| match result {
                Ok(got) => graphc::compare::compare(&got["logits"], &want["logits"], 1e-4, 1e-4)
                    .map_or(true, |difference| !difference.is_within()),
                Err(RuntimeError::Device { .. } | RuntimeError::DeviceLost { .. }) => true,
                Err(other) => panic!("{other}"),
            };
            executable.run(&others).is_err() || wrong(executable.run(&inputs))
        });
        assert!(found, "{what}: no seed of 16 shows it");
    }
}

/// The rows after the first `from`.
fn tail(tensor: &HostTensor, from: usize) -> HostTensor {
    let unit = tensor.bytes.len() / tensor.shape[0];
    let mut shape = tensor.shape.clone();
    shape[0] -= from;
    HostTensor::new(tensor.dtype, shape, Storage::new(tensor.bytes[from * unit..].to_vec())).expect("fits")
}

fn faulty(faults: &str) -> Option<EmulatedHip> {
    EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx1100"), ("GRAPHC_EMU_FAULTS", faults)])
}

#[test]
fn memory_that_runs_out_is_said_and_nothing_is_kept() {
    if faulty("malloc@1").is_none() {
        return;
    }
    let program = Arc::new(program(&digits(), &["gfx1100"]));
    let (inputs, want) = digits_case(2);
    // The weights, the arena, the two chunks of the upload, the staging memory; each the first time that it is asked
    // for.
    for faults in [
        "malloc@1",
        "malloc@2",
        "host-malloc@1",
        "host-malloc@2",
        "host-malloc@3",
        "module@1",
        "module@3",
    ] {
        let hip = faulty(faults).expect("as before");
        let device = hip.open(0).expect("a device");
        let (free, _) = device.memory().expect("a device");
        let error = load(&device, &program, &LoadOptions::default()).expect_err(faults);
        assert!(
            matches!(&error, RuntimeError::OutOfDeviceMemory(short) if short.asked > 0)
                || matches!(&error, RuntimeError::OutOfPinnedMemory { asked, .. } if *asked > 0),
            "{faults}: {error}"
        );
        assert_eq!(device.memory().expect("a device").0, free, "{faults}: memory was kept");
        let executable = load(&device, &program, &LoadOptions::default()).expect("memory is there now");
        assert_close(&executable.run(&inputs).expect("runs"), &want, 1e-4, faults);
        drop(executable);
        assert_eq!(device.memory().expect("a device").0, free, "memory was kept");
    }
}

/// A context that does not get its memory leaves the executable usable.
#[test]
fn a_run_without_memory_fails_alone() {
    // 1: weights, 2: the arena at the expected sizes, 3: the larger one of a run.
    let Some(hip) = faulty("malloc@3") else { return };
    let device = hip.open(0).expect("a device");
    let program = Arc::new(program(&digits(), &["gfx1100"]));
    let executable = load(&device, &program, &LoadOptions::default()).expect("loads");
    let (inputs, want) = digits_case(24);
    let error = executable.run(&inputs).expect_err("no memory");
    let RuntimeError::OutOfDeviceMemory(short) = error else {
        panic!("{error}");
    };
    assert!(
        short.asked > 0
            && short.free.is_some_and(|free| free > short.asked)
            && short.planned.is_some_and(|planned| planned.peak == short.asked),
        "{short:?}"
    );
    assert_close(
        &executable.run(&inputs).expect("memory is there now"),
        &want,
        1e-4,
        "the next run",
    );
}

#[test]
fn a_fault_names_its_step_and_the_device_stays_lost() {
    if faulty("launch@2").is_none() {
        return;
    }
    let program = Arc::new(program(&digits(), &["gfx1100"]));
    let (inputs, _) = digits_case(2);
    // Of the copies the first are the weights.
    for (faults, code) in [("launch@2", "hipErrorLaunchFailure"), ("copy@2+", "hipErrorUnknown")] {
        for synchronous in [false, true] {
            let hip = faulty(faults).expect("as before");
            let device = hip.open(0).expect("a device");
            let options = LoadOptions {
                synchronous,
                ..LoadOptions::default()
            };
            let first = load(&device, &program, &options).and_then(|executable| {
                let error = executable.run(&inputs).expect_err(faults);
                let again = executable.run(&inputs).expect_err("the device is gone");
                assert!(
                    matches!(&again, RuntimeError::DeviceLost { reason, .. } if reason.contains(code)),
                    "{again}"
                );
                Err::<(), _>(error)
            });
            let error = first.expect_err(faults);
            let RuntimeError::Device {
                code: got, at, device, ..
            } = &error
            else {
                panic!("{faults}: {error}");
            };
            assert_eq!((got.as_str(), device.as_str()), (code, "hip:0"), "{error}");
            if synchronous && faults.starts_with("launch") {
                let kernels = &program.variants[0].plan.kernels;
                assert!(
                    at.starts_with("step s") && kernels.values().any(|k| at.ends_with(&k.name)),
                    "the second launch is named: {error}"
                );
            } else if faults.starts_with("launch") {
                assert!(
                    at.contains("an earlier step") && at.contains("GRAPHC_SYNCHRONOUS=1"),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn code_that_does_not_load_names_its_kernel() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx1100")]) else {
        return;
    };
    let device = hip.open(0).expect("a device");
    let good = program(&digits(), &["gfx1100", "gfx90a"]);
    let kernel = 1;
    let name = good.variants[0]
        .plan
        .kernels
        .values()
        .nth(kernel)
        .expect("a kernel")
        .name
        .clone();
    let set = |program: &mut Program, code: Option<Vec<u8>>| {
        *program.variants[0].code.values_mut().nth(kernel).expect("a kernel") = code;
    };
    let other = good.variants[1].code.values().nth(kernel).cloned().flatten();
    for (what, code) in [
        ("not there", None),
        ("another processor's", other),
        ("noise", Some(vec![7; 400])),
    ] {
        let mut broken = good.clone();
        set(&mut broken, code);
        let error = load(&device, &Arc::new(broken), &LoadOptions::default()).expect_err(what);
        assert!(error.to_string().contains(&name), "{what}: {error}");
    }
    // The device is none the worse for it.
    let (inputs, want) = digits_case(2);
    let executable = load(&device, &Arc::new(good), &LoadOptions::default()).expect("loads");
    assert_close(&executable.run(&inputs).expect("runs"), &want, 1e-4, "after that");
}

#[test]
fn sizes_of_zero_launch_nothing() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx942")]) else {
        return;
    };
    let text = "graph @rows stage=import {
        symbol n: 0..9 hint 2
        x = input \"x\" : f32[n, 5]
        a = exp x
        b = reduce x {op=sum, axes=[0]}
        return a as \"a\", b as \"b\", x as \"same\"
    }";
    let graph = parse::parse(text).expect("parses");
    let device = hip.open(0).expect("a device");
    let program = Arc::new(program(&graph, &["gfx942"]));
    let executable = load(&device, &program, &LoadOptions::default()).expect("loads");
    for n in [0usize, 3, 0] {
        let x = HostTensor::from_f32(vec![n, 5], &vec![1.5; 5 * n]).expect("fits");
        let got = executable
            .run(&Tensors::from([("x".to_owned(), x.clone())]))
            .expect("runs");
        assert_eq!((&got["same"], got["a"].shape.as_slice()), (&x, &[n, 5][..]));
        assert_eq!(got["b"].to_f32(), [1.5 * n as f32; 5]);
    }
}

/// A kernel whose description reads past a buffer is refused before its code runs: at load where its sizes are fixed,
/// where sizes are bound else.
#[test]
fn an_access_outside_of_its_buffer_is_refused() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    let device = hip.open(0).expect("a device");
    for (rows, symbol) in [("4", ""), ("n", "symbol n: 0..9 hint 4")] {
        let text = format!(
            "graph @rows stage=import {{ {symbol}
                x = input \"x\" : f32[{rows}, 5]
                a = exp x
                return a as \"a\"
            }}"
        );
        let good = program(&parse::parse(&text).expect("parses"), &["gfx90a"]);
        let x = HostTensor::from_f32(vec![4, 5], &[0.5; 20]).expect("fits");
        let inputs = Tensors::from([("x".to_owned(), x)]);
        let attempt = |program: Program| {
            let executable = load(&device, &Arc::new(program), &LoadOptions::default())?;
            executable.run(&inputs)
        };
        assert!(attempt(good.clone()).is_ok());
        let mut forged = good;
        let kernel = forged.variants[0].plan.kernels.values_mut().next().expect("a kernel");
        let name = kernel.name.clone();
        kernel.params.values_mut().next().expect("a parameter").elements = Dim::Const(19);
        let error = attempt(forged).expect_err("one element is outside").to_string();
        assert!(
            error.contains(&name) && error.contains("may be at 0..=19") && error.contains("has 19 elements"),
            "{error}"
        );
    }
}

/// Random graphs, for the shapes of plans that no model has: inputs that are outputs, outputs that are constants or one
/// another, operands that nothing reads. `GRAPHC_HIP_CASES` sets how many.
#[test]
fn random_graphs_compute_what_the_evaluator_says() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx1100"), ("GRAPHC_EMU_SEED", "11")]) else {
        return;
    };
    let device = hip.open(0).expect("a device");
    let cases = std::env::var("GRAPHC_HIP_CASES").map_or(10, |n| n.parse().expect("a number"));
    let mut state = 5u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u16
    };
    for number in 0..cases {
        let steps: Vec<Step> = (0..6).map(|_| std::array::from_fn(|_| random())).collect();
        let case = case(number as u16 * 5, &steps);
        let program = Arc::new(program(&case.graph, &["gfx1100"]));
        let context = || format!("case {number}:\n{}\n{}", case.graph, program.variants[0].plan);
        let want = plan::eval::evaluate(&program.variants[0].plan, &program.constants, &case.inputs);
        let want = want.unwrap_or_else(|e| panic!("{e}\n{}", context()));
        let run = load(&device, &program, &LoadOptions::default()).and_then(|e| {
            e.run(&case.inputs)?;
            e.run(&case.inputs)
        });
        let got = run.unwrap_or_else(|e| panic!("{e}\n{}", context()));
        for (name, want) in &want {
            let values = want.to_f64();
            let scale = values
                .iter()
                .filter(|v| v.is_finite())
                .fold(1.0f64, |m, v| m.max(v.abs()));
            let (rtol, atol) = match (want.dtype.is_float(), case.precision) {
                (false, _) => (0.0, 0.0),
                (_, DType::F16) => (2e-2, 2e-2 * scale),
                _ => (1e-4, 2e-5 * scale),
            };
            let d = graphc::compare::compare(&got[name], want, rtol, atol).expect("same shape");
            assert!(d.is_within(), "{name}: {d:?}\n{}", context());
        }
    }
}

#[test]
fn a_device_that_goes_away_is_lost_from_then_on() {
    if faulty("lost@1000000").is_none() {
        return;
    }
    let program = Arc::new(program(&digits(), &["gfx1100"]));
    let (inputs, want) = digits_case(2);
    // At any call: while it is looked for, loaded, run.
    let mut lost_in_a_run = 0;
    for call in (1..400).step_by(31) {
        let hip = faulty(&format!("lost@{call}")).expect("as before");
        let device = match hip.open(0) {
            Ok(device) => device,
            Err(RuntimeError::NotAvailable { .. } | RuntimeError::DeviceLost { .. }) => continue,
            Err(other) => panic!("{call}: {other}"),
        };
        let executable = match load(&device, &program, &LoadOptions::default()) {
            Ok(executable) => executable,
            Err(RuntimeError::DeviceLost { .. }) => continue,
            Err(other) => panic!("{call}: {other}"),
        };
        for _ in 0..3 {
            match executable.run(&inputs) {
                Ok(got) => assert_close(&got, &want, 1e-4, "before it is lost"),
                Err(RuntimeError::DeviceLost { device, .. }) => {
                    assert_eq!(device, "hip:0");
                    lost_in_a_run += 1;
                    let again = executable.run(&inputs).expect_err("it does not come back");
                    assert!(matches!(again, RuntimeError::DeviceLost { .. }), "{again}");
                }
                Err(other) => panic!("{call}: {other}"),
            }
        }
    }
    assert!(lost_in_a_run > 0);
}

#[test]
fn threads_share_an_executable() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a"), ("GRAPHC_EMU_SEED", "5")]) else {
        return;
    };
    let device = hip.open(0).expect("a device");
    let (free, _) = device.memory().expect("a device");
    let program = Arc::new(program(&digits(), &["gfx90a"]));
    let executable = load(&device, &program, &LoadOptions::default()).expect("loads");
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let executable = &executable;
            scope.spawn(move || {
                for round in 0..3 {
                    // Sizes differ between threads and rounds.
                    let (inputs, want) = digits_case(1 + (thread + round) % 3);
                    let got = executable.run(&inputs).expect("runs");
                    assert_close(&got, &want, 1e-4, &format!("thread {thread}"));
                }
            });
        }
    });
    drop(executable);
    assert_eq!(device.memory().expect("a device").0, free, "everything was given back");
}

#[test]
fn the_variant_for_the_device_is_chosen() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx942,gfx1100")]) else {
        return;
    };
    let artifact = program(&digits(), &["gfx90a", "gfx1100", "gfx942"]);
    let (inputs, want) = digits_case(2);
    for (number, arch) in [(0, "gfx942"), (1, "gfx1100")] {
        let device = hip.open(number).expect("a device");
        assert_eq!((device.target().name, device.name()), (arch, &*format!("hip:{number}")));
        let program = Arc::new(artifact.clone());
        let executable = load(&device, &program, &LoadOptions::default()).expect("loads");
        assert_eq!(executable.plan().target.name, arch);
        assert_close(&executable.run(&inputs).expect("runs"), &want, 1e-4, arch);
    }
    let device = hip.open(0).expect("a device");
    let other = Arc::new(program(&digits(), &["gfx90a"]));
    let error = load(&device, &other, &LoadOptions::default()).expect_err("no code for it");
    assert!(error.to_string().contains("gfx90a"), "{error}");
    let error = Executable::load_on(&device, other, 0, &LoadOptions::default()).expect_err("no code for it");
    assert!(matches!(error, RuntimeError::NotAvailable { .. }), "{error}");
    let listed = said(&hip.graphc(&["targets", "--devices"]));
    for part in ["cpu\n", "hip:0  gfx942", "hip:1  gfx1100", "16.00 GiB"] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    let error = hip.open(2).expect_err("there are two");
    assert!(error.to_string().contains("hip:0, hip:1"), "{error}");
}

#[test]
fn profiles_and_memory_are_told() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    let device = hip.open(0).expect("a device");
    let program = Arc::new(program(&digits(), &["gfx90a"]));
    let executable = load(&device, &program, &LoadOptions::default()).expect("loads");
    let (inputs, _) = digits_case(4);
    let mut profile = RunTimes::default();
    executable.run_profiled(&inputs, Some(&mut profile)).expect("runs");
    let plan = executable.plan();
    assert_eq!(profile.steps.len(), plan.steps.len());
    for (time, (id, step)) in profile.steps.iter().zip(plan.steps.iter()) {
        assert_eq!(time.step, id);
        assert_eq!(
            time.engine == "copy",
            matches!(step.work, Work::Copy { .. }),
            "{time:?}"
        );
    }
    assert!(profile.steps.iter().any(|s| s.time.as_nanos() > 0), "{profile:?}");
    let memory = executable
        .memory(&executable.bind(&inputs).expect("binds"))
        .expect("sizes");
    assert!(
        memory.arena >= memory.live_peak && memory.live_peak > 0 && memory.packed_weights > 0,
        "{memory:?}"
    );
    let limited = LoadOptions {
        memory_limit: Some(memory.packed_weights),
        ..LoadOptions::default()
    };
    let error = load(&device, &program, &limited).expect_err("no room for an arena");
    assert!(matches!(error, RuntimeError::OutOfMemory { .. }), "{error}");
}

#[test]
fn sessions_and_functions_run_on_the_device() {
    use graphc::prelude::*;
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx1100")]) else {
        return;
    };
    let device = hip.open(0).expect("a device");
    let mut settings = graphc::options::Settings::from_env().expect("valid");
    settings.worker = Some(graphc_tests::graphc_binary().into());
    let options = SessionOptions {
        target: device.target().processor(),
        device: Some(OpenDevice {
            target: device.target().processor(),
            device: Arc::new(device),
            fallback: None,
        }),
        settings: Some(Arc::new(settings)),
        ..SessionOptions::default()
    };
    let softmax = jit(|[x]: [Tensor; 1]| x.softmax(-1))
        .dynamic(0, 0, "rows")
        .options(options);
    for rows in [1usize, 5] {
        let x = HostTensor::from_f32([rows, 4], &vec![0.5; 4 * rows]).expect("fits");
        assert_eq!(softmax.call([&x]).expect("runs").to_f32(), vec![0.25; 4 * rows]);
    }
    assert_eq!(softmax.stats().compiles, 1);
}

#[test]
fn without_a_gpu_it_is_said_and_only_auto_takes_the_cpu() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "0")]) else {
        return;
    };
    let model = repository("examples/digits/digits.onnx").to_string_lossy().into_owned();
    let output = hip.graphc(&["run", "--random", "--device", "hip", &model]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    for part in [
        "device hip:0 is not available",
        "sees no GPU",
        "libamdhip64.so",
        "--device cpu",
    ] {
        assert!(said(&output).contains(part), "{part}: {}", said(&output));
    }
    let output = hip.graphc(&["run", "--random", "--device", "auto", &model]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        said(&output).contains("running on the cpu: device hip:0 is not available"),
        "{}",
        said(&output)
    );
    let Some(small) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx1100"), ("GRAPHC_EMU_MEMORY_MIB", "1")]) else {
        return;
    };
    let output = small.graphc(&["run", "--random", "--size", "batch=4096", "--device", "hip", &model]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("bytes are free"), "{}", said(&output));
}

#[test]
fn bench_times_steps_on_the_device() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx1201")]) else {
        return;
    };
    let model = repository("examples/digits/digits.onnx").to_string_lossy().into_owned();
    let words = [
        "bench",
        "-q",
        "--device",
        "hip",
        "--no-libraries",
        "--runs",
        "2",
        "--profile",
        "--size",
        "batch=1",
    ];
    let output = hip.graphc(&[&words[..], &["--format", "json", &model]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    assert_eq!(report["device"], "hip:0");
    let steps = report["steps"].as_array().expect("a list");
    assert!(steps.iter().any(|s| s["step"] == "copy to device [copy]"), "{report}");
    assert!(steps.iter().any(|s| s["us"].as_f64() > Some(0.0)), "{report}");
}
