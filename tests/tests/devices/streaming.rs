//! `--max-vram`: plans whose weights do not fit stream them from pinned memory, on the emulated GPU behind
//! `libamdhip64` and in the interpreter: right results, bytes counted, copies ahead of their use, and a refusal with
//! the figure that then works.

use std::process::Output;
use std::sync::Arc;

use graphc::driver::{BuildOptions, build};
use graphc::ir::plan::arena::{place, room};
use graphc::ir::plan::{BufferId, Place, Plan, Step, StepId, Work, eval};
use graphc::ir::schedule::LaneKind;
use graphc::ir::{Bindings, ConstId, Program, Target, TensorType};
use graphc::passes::OptLevel;
use graphc::passes::fuse::Chains;
use graphc::passes::stream::{StreamError, stream, streamed_bytes};
use graphc::prelude::*;
use graphc::random;
use graphc::runtime::{Executable, LoadOptions, RuntimeError};
use graphc_tests::emulated_hip::{EmulatedHip, compile, options_on};
use graphc_tests::reference::Tensors;
use serde_json::Value as Json;

const LAYERS: usize = 6;
/// Bytes of each layer's weights.
const WEIGHT: usize = 128 * 128 * 4;

fn numbers(name: &str, shape: Shape) -> HostTensor {
    let ty = TensorType::new(DType::F32, shape);
    random::tensor(name, &ty, &Bindings::new(), 7).expect("small")
}

/// An MLP whose weights are all of one size. The last product reads the first one's weights again, as tied embeddings
/// do.
fn mlp() -> Graph {
    let weights: Vec<Tensor> = (0..LAYERS)
        .map(|layer| Tensor::from_host(numbers(&format!("w{layer}"), shape![128, 128])) * 0.1)
        .collect();
    let spec = InputSpec::new("x", DType::F32, shape![4, 128]);
    let model = |[x]: [Tensor; 1]| {
        let hidden = weights.iter().fold(x, |x, weight| x.matmul(weight).relu());
        [("y", hidden.matmul(&weights[0]))]
    };
    trace("mlp", [spec], model).expect("records")
}

fn inputs() -> Tensors {
    Tensors::from([("x".to_owned(), numbers("x", shape![4, 128]))])
}

fn options(target: &str) -> BuildOptions {
    let target: Target = target.parse().expect("a target");
    let mut options = BuildOptions::new(vec![target], OptLevel::O2);
    options.optimize.libraries = false;
    // A step then has one weight.
    options.schedule.chains = Chains::Never;
    options
}

/// A program that fits a limit.
fn program(graph: &Graph, target: &str, max_vram: Option<usize>) -> Program {
    let options = BuildOptions {
        max_vram,
        ..options(target)
    };
    build(graph, &options).expect("builds").program
}

/// Bytes of the device that a plan takes: weights that stay, and the arena.
fn device_bytes(plan: &Plan) -> (usize, usize) {
    let mut seen: Vec<ConstId> = Vec::new();
    let mut weights = 0;
    for buffer in plan.buffers.values() {
        if let Place::Constant(id) = buffer.place
            && !seen.contains(&id)
        {
            seen.push(id);
            weights += room(buffer.ty.bytes().as_const().expect("fixed") as usize);
        }
    }
    (weights, place(plan, &Bindings::new()).expect("fixed").total)
}

/// The copies of weights, each with the first step that waits for it.
fn copies(plan: &Plan) -> Vec<(StepId, BufferId, StepId)> {
    let streamed = |b: BufferId| matches!(plan.buffers[b].place, Place::Streamed(_));
    let of = |(id, step): (StepId, &Step)| match step.work {
        Work::Copy { from, to } if streamed(from) => {
            let user = plan.steps.iter().find(|(_, later)| later.waits.contains(&id));
            Some((id, to, user.expect("a copy is waited for").0))
        }
        _ => None,
    };
    plan.steps.iter().filter_map(of).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// From everything resident down to the least: each plan verifies, computes the same, takes no more than it may, and
/// streams no fewer bytes the less it has. One byte below the least is refused, with the least.
#[test]
fn every_limit_down_to_the_least_has_a_plan() {
    // The two weights that two products in a row use cannot both be away; with copies and uses in turn one place is
    // enough.
    every_limit(Chains::Never, WEIGHT);
    // Two products that are one kernel need both of theirs at once.
    every_limit(Chains::Always, 2 * WEIGHT);
}

/// Tries limits from `at_once` bytes of weights on, without which no kernel runs.
fn every_limit(chains: Chains, at_once: usize) {
    let graph = mlp();
    let mut options = options("gfx90a");
    options.schedule.chains = chains;
    let whole = build(&graph, &options).expect("builds").program;
    let plan = &whole.variants[0].plan;
    let (weights, arena) = device_bytes(plan);
    assert_eq!(weights, LAYERS * WEIGHT);
    let want = eval::evaluate(plan, &whole.constants, &inputs()).expect("evaluates");
    let least = stream(plan, weights + arena)
        .expect("all of it")
        .streaming
        .expect("said")
        .least;
    assert!(
        (at_once..at_once + WEIGHT + arena).contains(&least),
        "{least} of {weights} and {arena}"
    );
    let mut before = 0;
    let mut distances = Vec::new();
    for step in 0..=16 {
        let limit = weights + arena - step * (weights + arena - least) / 16;
        let fitted = stream(plan, limit).unwrap_or_else(|error| panic!("{limit}: {error}"));
        let (resident, placed) = device_bytes(&fitted);
        assert!(resident + placed <= limit, "{resident} and {placed} of {limit}");
        let bytes = streamed_bytes(&fitted, &Bindings::new()).expect("fixed");
        assert_eq!(bytes == 0, step == 0, "{limit}");
        let streaming = fitted.streaming.expect("said");
        assert_eq!((streaming.limit, streaming.least), (limit, least));
        // At a distance of 0 copies take less room, and so fewer bytes may have to be streamed.
        assert!(
            bytes >= before || streaming.distance == 0,
            "{bytes} after {before} at {limit}"
        );
        before = bytes;
        distances.push(streaming.distance);
        let got = eval::evaluate(&fitted, &whole.constants, &inputs()).expect("evaluates");
        assert_eq!(got["y"].to_f32(), want["y"].to_f32(), "{limit}");
        // A copy is as far ahead as the plan says: at most so many other copies lie between it and its use.
        let copies = copies(&fitted);
        for (at, (copy, to, user)) in copies.iter().enumerate() {
            // Those of the same use come together.
            let later = copies[at + 1..].iter();
            let between = later.filter(|(other, _, of)| other < user && of != user).count();
            assert!(
                between <= streaming.distance && copy < user,
                "{copy}: {between} of {}",
                streaming.distance
            );
            let Place::Arena { first, last, .. } = fitted.buffers[*to].place else {
                panic!("it is copied into the arena");
            };
            assert!(first == *copy && last >= *user);
            let lane = fitted.steps[*copy].lane;
            assert_eq!(fitted.lanes[lane].kind, LaneKind::Upload);
        }
        let again = stream(plan, limit).expect("as before");
        assert_eq!(again.to_string(), fitted.to_string(), "the same limit, the same plan");
    }
    assert_eq!(distances.last(), Some(&0), "{distances:?}");
    assert!(distances[1..].iter().any(|distance| *distance > 0), "{distances:?}");
    let error = stream(plan, least - 1).expect_err("less than the least");
    assert!(
        matches!(&error, StreamError::TooSmall { least: said, .. } if *said == least),
        "{error}"
    );
    let fitted = stream(plan, least).expect("the least");
    assert!(matches!(stream(&fitted, least), Err(StreamError::Again { .. })));
}

/// At half the weights, in any order that the device may take: the results are those of the whole, bit by bit, and what
/// is moved and held is counted.
#[test]
fn half_the_weights_give_the_same_results_in_every_order() {
    let Some(first) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    let graph = mlp();
    let mut whole = program(&graph, "gfx90a", None);
    compile(&mut whole);
    let (weights, arena) = device_bytes(&whole.variants[0].plan);
    let limit = weights / 2 + arena;
    let mut half = program(&graph, "gfx90a", Some(limit));
    compile(&mut half);
    let (whole, half) = (Arc::new(whole), Arc::new(half));
    let plan = &half.variants[0].plan;
    let a_run = streamed_bytes(plan, &Bindings::new()).expect("fixed");
    assert!(a_run >= weights / 2 && a_run <= (LAYERS + 1) * WEIGHT, "{a_run}");
    assert!(plan.streaming.expect("said").distance > 0);
    let inputs = inputs();
    let device = first.open(0).expect("a device");
    let free = device.memory().expect("there").0;
    let executable = Executable::load_on(&device, whole, 0, &LoadOptions::default()).expect("loads");
    let want = executable.run(&inputs).expect("runs")["y"].to_f32();
    // What the driver gives away besides is the kernels' code, which is the same for both plans.
    let beside = |free: usize, now: usize, executable: &Executable| {
        free - now - executable.memory(&Bindings::new()).expect("fixed").device
    };
    let code = beside(free, device.memory().expect("there").0, &executable);
    drop(executable);
    for seed in ["", "1", "2", "3", "4"] {
        let variables = [("GRAPHC_EMU_ARCH", "gfx90a"), ("GRAPHC_EMU_SEED", seed)];
        let hip = EmulatedHip::new(&variables[..if seed.is_empty() { 1 } else { 2 }]).expect("as before");
        let device = hip.open(0).expect("a device");
        let free = device.memory().expect("there").0;
        let executable = Executable::load_on(&device, half.clone(), 0, &LoadOptions::default()).expect("loads");
        for _ in 0..5 {
            assert_eq!(
                executable.run(&inputs).expect("runs")["y"].to_f32(),
                want,
                "seed {seed}"
            );
        }
        // More runs at once than have room: they take turns.
        let begin = |_| {
            let given = inputs.iter().map(|(name, tensor)| (name.as_str(), Given::from(tensor)));
            executable.submit(given, &Wanted::host()).expect("begins")
        };
        let pending: Vec<Pending> = (0..6).map(begin).collect();
        let memory = executable.memory(&Bindings::new()).expect("fixed");
        assert!(
            memory.device <= limit && memory.packed_weights < weights,
            "{memory:?} of {limit}"
        );
        assert_eq!(memory.packed_weights + memory.streamed_weights, weights);
        for run in pending {
            let values = run.wait().expect("runs");
            let Some(Value::Host(y)) = values.get("y") else {
                panic!("it is wanted on the host")
            };
            assert_eq!(y.to_f32(), want, "seed {seed}");
        }
        let statistics = executable.statistics();
        assert_eq!((statistics.runs, statistics.streamed_bytes), (11, 11 * a_run as u64));
        assert_eq!(beside(free, device.memory().expect("there").0, &executable), code);
        assert!(executable.memory(&Bindings::new()).expect("fixed").device <= limit);
        drop(executable);
        assert_eq!(device.memory().expect("there").0, free, "all of it is given back");
    }
}

#[test]
fn a_copy_that_is_not_waited_for_is_seen() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    drop(hip);
    let graph = mlp();
    let whole = program(&graph, "gfx90a", None);
    let (weights, arena) = device_bytes(&whole.variants[0].plan);
    let mut broken = program(&graph, "gfx90a", Some(weights / 2 + arena));
    compile(&mut broken);
    let plan = &mut broken.variants[0].plan;
    let all = copies(plan);
    for (copy, _, user) in &all {
        plan.steps[*user].waits.retain(|wait| wait != copy);
    }
    let broken = Arc::new(broken);
    let want = eval::evaluate(&whole.variants[0].plan, &whole.constants, &inputs()).expect("evaluates");
    let wrong = (1..=8).filter(|seed| {
        let seed = seed.to_string();
        let hip = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a"), ("GRAPHC_EMU_SEED", &seed)]).expect("as before");
        let device = hip.open(0).expect("a device");
        let ran = Executable::load_on(&device, broken.clone(), 0, &LoadOptions::default())
            .and_then(|executable| executable.run(&inputs()));
        // Reading what nothing has written is a fault of its own.
        ran.map_or(true, |got| {
            let pairs = got["y"].to_f32().into_iter().zip(want["y"].to_f32());
            pairs.into_iter().any(|(a, b)| (a - b).abs() > 1e-2 || a.is_nan())
        })
    });
    assert!(wrong.count() > 0, "no order of eight shows {} missing waits", all.len());
}

#[test]
fn the_command_line_says_what_is_streamed_and_refuses_what_cannot_be() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let artifact = folder.path().join("mlp.graphc");
    let mut whole = program(&mlp(), "gfx90a", None);
    compile(&mut whole);
    std::fs::write(&artifact, whole.to_bytes().expect("memory takes it")).expect("written");
    let artifact = artifact.to_string_lossy().into_owned();
    let (weights, arena) = device_bytes(&whole.variants[0].plan);
    let limit = format!("{}KiB", (weights / 2 + arena).div_ceil(1024));
    let inspect = |limit: &str| {
        hip.graphc(&[
            "inspect",
            "-q",
            &artifact,
            "--target",
            "gfx90a",
            "--format",
            "json",
            "--max-vram",
            limit,
        ])
    };
    let output = inspect(&limit);
    assert!(output.status.success(), "{}", said(&output));
    let inspected: Json = serde_json::from_slice(&output.stdout).expect("JSON");
    let streaming = &inspected["streaming"];
    let number = |value: &Json| value.as_u64().unwrap_or_else(|| panic!("{value} in {streaming}"));
    assert_eq!(number(&inspected["weight_bytes"]) as usize, weights);
    assert!(number(&streaming["device_bytes"]) <= number(&streaming["limit_bytes"]));
    assert!(number(&streaming["distance"]) > 0);
    let listed = streaming["copies"].as_array().expect("a list");
    let sum: u64 = listed.iter().map(|copy| number(&copy["bytes"])).sum();
    assert_eq!(number(&streaming["bytes_a_run"]), sum);
    assert_eq!(listed.len() as u64, sum / WEIGHT as u64);
    let text = said(&hip.graphc(&["inspect", "-q", &artifact, "--target", "gfx90a", "--max-vram", &limit]));
    for copy in listed {
        let step = copy["used_by"].as_str().expect("a step");
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(copy["step"].as_str().expect("a step")));
        assert!(
            line.is_some_and(|line| line.ends_with(&format!("used by {step}"))),
            "{copy}: {text}"
        );
    }
    // The copies are steps of the profile, on the lane of uploads.
    let words = [
        "profile",
        "-q",
        &artifact,
        "--device",
        "hip",
        "--runs",
        "1",
        "--format",
        "json",
        "--max-vram",
        &limit,
    ];
    let output = hip.graphc(&words);
    assert!(output.status.success(), "{}", said(&output));
    let profile: Json = serde_json::from_slice(&output.stdout).expect("JSON");
    let steps = profile["steps"].as_array().expect("steps").iter();
    let streamed: Vec<&Json> = steps.filter(|step| step["name"] == "weight to device").collect();
    assert_eq!(streamed.len(), listed.len());
    for step in streamed {
        assert_eq!(
            (&step["lane"], number(&step["read_bytes"])),
            (&Json::from("upload"), WEIGHT as u64)
        );
    }
    let least = number(&streaming["least_bytes"]);
    let refused = inspect(&(least - 1).to_string());
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(
        said(&refused).contains(&format!("Give {least} bytes or more")),
        "{}",
        said(&refused)
    );
    let least = least.to_string();
    let words = [
        "run",
        "-q",
        &artifact,
        "--device",
        "hip",
        "--random",
        "--max-vram",
        &least,
    ];
    let ran = hip.graphc(&words);
    assert!(ran.status.success(), "{}", said(&ran));
    for (limit, part) in [("half", "an amount of memory is"), ("0", "an amount of memory is")] {
        let refused = inspect(limit);
        assert_eq!(refused.status.code(), Some(2), "{limit}: {}", said(&refused));
        assert!(said(&refused).contains(part), "{limit}: {}", said(&refused));
    }
    let model = graphc_tests::repository("examples/digits/digits.onnx")
        .to_string_lossy()
        .into_owned();
    let refused = hip.graphc(&["run", "--random", &model, "--max-vram", "1GiB"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(
        said(&refused).contains("the cpu has no memory of its own"),
        "{}",
        said(&refused)
    );
}

/// A session holds to its limit, and a run whose sizes outgrow it is refused with what it asks for.
#[test]
fn a_session_keeps_its_limit() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    let weights: Vec<Tensor> = (0..4)
        .map(|layer| Tensor::from_host(numbers(&format!("w{layer}"), shape![128, 128])) * 0.1)
        .collect();
    let spec = InputSpec::new("x", DType::F32, shape!["rows", 128]);
    let model = |[x]: [Tensor; 1]| [("y", weights.iter().fold(x, |x, weight| x.matmul(weight).relu()))];
    let graph = trace("rows", [spec], model).expect("records");
    let limit = 3 * WEIGHT + (WEIGHT >> 1);
    let options = SessionOptions {
        max_vram: Some(limit),
        ..options_on(hip.open(0).expect("a device"))
    };
    let session = Session::compile(graph, &options).expect("compiles");
    let executable = session.executable().expect("compiled");
    assert!(
        executable
            .plan()
            .streaming
            .is_some_and(|streaming| streaming.limit == limit)
    );
    let x = numbers("x", shape![4, 128]);
    let y = session.run(&[("x", &x)]).expect("runs");
    assert_eq!(y["y"].shape, [4, 128]);
    assert!(executable.statistics().streamed_bytes > 0);
    let large = numbers("x", shape![4096, 128]);
    let error = session.run(&[("x", &large)]).expect_err("4 MiB of rows");
    let graphc::Error::Runtime(RuntimeError::OutOfMemory { asked, limit: said, .. }) = &error else {
        panic!("{error}");
    };
    assert!(*asked > limit && *said == limit, "{error}");
    assert_eq!(
        session.run(&[("x", &x)]).expect("runs as before")["y"].to_f32(),
        y["y"].to_f32()
    );
}
