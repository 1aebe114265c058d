//! `graphc profile` and `Executable::profile`, on the emulated GPU behind `libamdhip64` and on the CPU: steps are the
//! plan's, numbers agree with each other and with `inspect`'s, and runs that are not profiled ask the device for no
//! times.

use std::collections::BTreeMap;
use std::process::Output;
use std::sync::Arc;

use graphc::driver::{BuildOptions, build};
use graphc::frontend::onnx::{ImportOptions, import};
use graphc::ir::plan::Work;
use graphc::ir::{Bindings, Entity, Graph, HostTensor, Program, Storage, Target, graph::parse};
use graphc::passes::OptLevel;
use graphc::runtime::{Executable, LoadOptions, ProfileOptions, RuntimeError};
use graphc_tests::emulated_hip::{EmulatedHip, compile};
use graphc_tests::reference::Tensors;
use graphc_tests::{graphc_binary, repository};
use serde_json::Value;

fn digits() -> Graph {
    import(&repository("examples/digits/digits.onnx"), &ImportOptions::default()).expect("imports")
}

fn model() -> String {
    repository("examples/digits/digits.onnx").to_string_lossy().into_owned()
}

fn program(graph: &Graph, targets: &[&str]) -> Program {
    let targets: Vec<Target> = targets.iter().map(|name| name.parse().expect("a target")).collect();
    let mut options = BuildOptions::new(targets, OptLevel::O2);
    options.optimize.libraries = false;
    let mut program = build(graph, &options).expect("builds").program;
    compile(&mut program);
    program
}

fn images() -> Tensors {
    let all = graphc::arrays::read(&repository("examples/digits/test.npz")).expect("readable");
    all.into_iter()
        .map(|(name, tensor)| {
            let one = tensor.bytes.len() / tensor.shape[0];
            let mut shape = tensor.shape.clone();
            shape[0] = 2;
            let bytes = Storage::new(tensor.bytes[..2 * one].to_vec());
            (name, HostTensor::new(tensor.dtype, shape, bytes).expect("fits"))
        })
        .collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", said(output));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], |list| &list[..])
}

#[test]
fn each_step_is_the_plans_with_its_bytes_and_operations() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    let program = Arc::new(program(&digits(), &["gfx90a"]));
    let executable = Executable::load_on(&hip.open(0).expect("a device"), program, 0, &LoadOptions::default());
    let executable = executable.expect("loads");
    let inputs = images();
    let options = ProfileOptions { runs: 3, warm_up: 1 };
    let profile = executable.profile(&inputs, &options).expect("runs");
    let (plan, bindings) = (executable.plan(), executable.bind(&inputs).expect("binds"));
    assert_eq!((profile.runs, profile.steps.len()), (3, plan.steps.len()));
    let bytes = |b| plan.buffers[b].ty.bytes().eval(&bindings).expect("bound") as u64;
    for (step, (_, planned)) in profile.steps.iter().zip(plan.steps.iter()) {
        assert!(step.least_us <= step.median_us && step.lane == plan.lanes[planned.lane].kind);
        match planned.at(&bindings).expect("bound") {
            Work::Copy { from, .. } => {
                assert_eq!(
                    (step.work.read_bytes, step.work.written_bytes),
                    (bytes(*from), bytes(*from))
                );
                assert!(step.work.over_bus && step.roofline.is_none() && step.of_roofline.is_none());
            }
            Work::Launch { args, kernel, .. } => {
                assert_eq!(step.name, plan.kernels[*kernel].name);
                // No kernel of this model reads or writes a buffer in part, or two buffers that are one.
                let all: u64 = args.iter().map(|b| bytes(*b)).sum();
                assert_eq!(step.work.bytes(), all, "{}", step.name);
                let line = step.roofline.expect("it moves bytes");
                let memory = all as f64 / 1.6e6;
                // Products are rated by the operands' type: f32 has the vector rate.
                let compute = step.work.flops as f64 / 47.9e6;
                assert!(
                    (line.micros - memory.max(compute)).abs() < 1e-9 * line.micros,
                    "{line:?}"
                );
            }
            Work::Call { .. } => panic!("libraries were left out"),
        }
    }
    // Nothing is computed twice here.
    let flops: u64 = profile.steps.iter().map(|step| step.work.flops).sum();
    assert_eq!(flops as i64, plan.flops.eval(&bindings).expect("bound"));
    let run = &profile.run;
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(1.0);
    assert!(close(run.busy_us + run.idle_us, run.device_us), "{run:?}");
    assert!(
        close(run.copy_us + run.compute_us - run.overlap_us, run.busy_us),
        "{run:?}"
    );
    assert!(run.overlap_us <= run.copy_us.min(run.compute_us) + 1e-6, "{run:?}");
    assert_eq!(run.timeline.len(), plan.steps.len());
    for (interval, (id, step)) in run.timeline.iter().zip(plan.steps.iter()) {
        assert!(interval.start_us + interval.us <= run.device_us + 1e-6);
        for wait in &step.waits {
            let waited = &run.timeline[wait.index()];
            assert!(
                waited.start_us + waited.us <= interval.start_us + 1e-3,
                "step {id} waits for {wait}: {waited:?} {interval:?}"
            );
        }
    }
    // Runs are enqueued step by step while they are timed, and as ever after that.
    assert_eq!(executable.statistics().replayed, 0);
    let none = ProfileOptions { runs: 0, warm_up: 1 };
    assert!(matches!(
        executable.profile(&inputs, &none),
        Err(RuntimeError::Program(_))
    ));
}

#[test]
fn the_command_prints_the_same_numbers_as_text_json_and_trace() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a"), ("GRAPHC_EMU_TRACE", "calls")]) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace.json").to_string_lossy().into_owned();
    let model = model();
    let common = ["-q", "--no-libraries", "--size", "batch=1"];
    let words = [
        "profile", "--device", "hip", "--runs", "2", "--format", "json", "--trace", &trace, &model,
    ];
    let output = hip.graphc(&[&words[..], &common].concat());
    let profile = json(&output);
    let steps = list(&profile["steps"]);
    let target = ["inspect", "--target", "gfx90a", "--format", "json", &model];
    let inspected = json(&hip.graphc(&[&target[..], &common].concat()));
    // As many launches of each kernel as `inspect` has.
    let mut launches: BTreeMap<&str, u64> = BTreeMap::new();
    for step in steps.iter().filter(|step| step["engine"] == "kernel") {
        *launches.entry(step["name"].as_str().expect("a name")).or_default() += 1;
    }
    let wanted: BTreeMap<&str, u64> = list(&inspected["kernels"])
        .iter()
        .map(|kernel| {
            (
                kernel["name"].as_str().expect("a name"),
                kernel["launches"].as_u64().expect("a count"),
            )
        })
        .collect();
    assert_eq!(launches, wanted);
    assert_eq!(profile["total"]["flops"], inspected["flops"]);
    for step in steps {
        let median = number(&step["median_us"]);
        for (share, micros) in [
            ("of_roofline", &step["roofline"]["micros"]),
            ("of_achievable", &step["achievable_us"]),
        ] {
            if micros.is_null() || median == 0.0 {
                assert!(step[share].is_null(), "{step}");
            } else {
                assert!((number(&step[share]) * median - number(micros)).abs() < 1e-6, "{step}");
            }
        }
        if !step["roofline"].is_null() {
            let line = number(&step["roofline"]["micros"]);
            assert!(
                number(&step["achievable_us"]) >= line,
                "achieved rates are below peaks: {step}"
            );
        }
    }
    let picture: Value = serde_json::from_slice(&std::fs::read(&trace).expect("written")).expect("a trace is JSON");
    let events = list(&picture["traceEvents"]);
    let drawn: Vec<&Value> = events.iter().filter(|e| e["ph"] == "X" && e["cat"] != "idle").collect();
    assert_eq!(drawn.len(), steps.len());
    for (event, at) in drawn.iter().zip(list(&profile["run"]["timeline"])) {
        let step = &steps[at["step"].as_u64().expect("a number") as usize];
        assert_eq!(
            (&event["name"], &event["ts"], &event["dur"]),
            (&step["name"], &at["start_us"], &at["us"])
        );
        let row = events
            .iter()
            .find(|e| e["name"] == "thread_name" && e["tid"] == event["tid"]);
        assert_eq!(row.expect("a named row")["args"]["name"], step["lane"]);
    }
    // Two runs before the two that count; each step between two events, and each run.
    let calls = |output: &Output, name: &str| {
        let lines = String::from_utf8_lossy(&output.stderr).into_owned();
        lines.lines().filter(|line| line.contains(name)).count()
    };
    assert_eq!(calls(&output, "hipEventElapsedTime"), (2 + 2) * (1 + 2 * steps.len()));
    let plain = hip.graphc(&[&["run", "--random", "--device", "hip", &model][..], &common].concat());
    assert!(plain.status.success(), "{}", said(&plain));
    assert_eq!(calls(&plain, "hipEventElapsedTime"), 0);
    let timed = calls(&output, "hipEventCreate") - calls(&plain, "hipEventCreate");
    assert_eq!(
        timed,
        2 * steps.len() + 2,
        "events of a profile, which other runs do not make"
    );
}

/// The text of the CPU's profile has a line a step; what it prints is what the JSON of the same run would round to, so
/// the sums hold.
#[test]
fn the_cpu_is_profiled_by_the_clock() {
    if !graphc_binary().is_file() {
        println!("skipped: {} is not built", graphc_binary().display());
        return;
    }
    let graphc = |words: &[&str]| {
        let mut command = std::process::Command::new(graphc_binary());
        command
            .args(words)
            .args(["-q", "--runs", "3"])
            .output()
            .expect("graphc starts")
    };
    let profile = json(&graphc(&["profile", "--format", "json", &model()]));
    let steps = list(&profile["steps"]);
    assert_eq!((profile["device"].as_str(), steps.len()), (Some("cpu"), 7), "{profile}");
    let sum: f64 = steps.iter().map(|step| number(&step["median_us"])).sum();
    assert!(
        (sum - number(&profile["steps_us"])).abs() < 1e-6 * sum && sum > 0.0,
        "{profile}"
    );
    assert_eq!(number(&profile["run"]["copy_us"]), 0.0);
    assert_eq!(number(&profile["run"]["enqueue_us"]), 0.0);
    let text = graphc(&["profile", &model()]);
    assert!(text.status.success(), "{}", said(&text));
    let text = said(&text);
    for step in steps {
        let line = format!(
            "{} [{}]",
            step["name"].as_str().expect("text"),
            step["engine"].as_str().expect("text")
        );
        let found: Vec<&str> = text.lines().filter(|l| l.ends_with(&format!(" {line}"))).collect();
        assert_eq!(found.len(), 1, "{line}: {text}");
        let flops = format!(" {:.2} ", number(&step["flops"]) / 1e6);
        assert!(found[0].contains(&flops), "{flops}: {}", found[0]);
    }
}

/// A kernel that looks a few rows up in a table reads those rows, not the table; a slice is read alone.
#[test]
fn a_lookup_moves_the_rows_that_it_takes() {
    let text = "graph @take stage=import {
        t = input \"t\" : f32[1000, 64]
        i = input \"i\" : i64[3]
        y = take t, i {axis=0}
        return y as \"y\"
    }";
    let graph = parse::parse(text).expect("parses");
    let built = build(&graph, &BuildOptions::new(vec![Target::cpu()], OptLevel::O2)).expect("builds");
    let plan = &built.program.variants[0].plan;
    let works = plan.works(&Bindings::new()).expect("no sizes");
    let lookup = works
        .values()
        .find(|work| work.written_bytes == 3 * 64 * 4)
        .expect("a lookup");
    assert!(
        lookup.read_bytes >= 3 * 64 * 4 + 3 * 8 && lookup.read_bytes < 2 * (3 * 64 * 4 + 3 * 8),
        "{lookup:?}"
    );
}

/// A library with roctx's two functions that writes down what it is told.
const ROCTX: &str = r#"
#include <stdio.h>
#include <stdlib.h>
static void note(const char *word, const char *name) {
    FILE *file = fopen(getenv("RANGES_GO_HERE"), "a");
    if (file) { fprintf(file, "%s %s\n", word, name); fclose(file); }
}
int roctxRangePushA(const char *name) { note("push", name); return 0; }
int roctxRangePop(void) { note("pop", ""); return 0; }
"#;

#[test]
fn ranges_lie_around_runs_and_steps() {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, library) = (
        folder.path().join("roctx.c"),
        folder.path().join("librocprofiler-sdk-roctx.so.1"),
    );
    std::fs::write(&source, ROCTX).expect("written");
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    if !built.is_ok_and(|status| status.success()) {
        println!("skipped: no C compiler here");
        return;
    }
    if std::path::Path::new("/opt/rocm").exists() {
        println!("skipped: this ROCm's own library would be opened first");
        return;
    }
    let notes = folder.path().join("notes").to_string_lossy().into_owned();
    let libraries = folder.path().to_string_lossy().into_owned();
    let with = |libraries: &str| {
        EmulatedHip::new(&[
            ("GRAPHC_EMU_ARCH", "gfx1100"),
            ("RANGES_GO_HERE", &notes),
            ("LD_LIBRARY_PATH", libraries),
        ])
    };
    let Some(hip) = with(&libraries) else { return };
    let model = model();
    let words = [
        "profile",
        "-q",
        "--device",
        "hip",
        "--runs",
        "1",
        "--size",
        "batch=1",
        "--no-libraries",
    ];
    let words = [&words[..], &["--format", "json", &model]].concat();
    let profile = json(&hip.graphc(&words));
    assert!(!std::path::Path::new(&notes).exists(), "nobody asked for ranges");
    let ranged = json(&hip.graphc(&[&words[..], &["--ranges"]].concat()));
    let steps: Vec<&str> = list(&ranged["steps"])
        .iter()
        .map(|step| step["name"].as_str().expect("text"))
        .collect();
    assert_eq!(steps.len(), list(&profile["steps"]).len());
    let mut run = vec![format!("push {}", ranged["model"].as_str().expect("text"))];
    for step in steps {
        run.extend([format!("push {step}"), "pop ".to_owned()]);
    }
    run.push("pop ".to_owned());
    let noted = std::fs::read_to_string(&notes).expect("ranges were noted");
    let noted: Vec<&str> = noted.lines().collect();
    assert_eq!(noted.len(), 3 * run.len(), "two runs before the one that counts");
    for chunk in noted.chunks(run.len()) {
        assert_eq!(chunk, run);
    }
    let nowhere = tempfile::tempdir().expect("a folder");
    let hip = with(&nowhere.path().to_string_lossy()).expect("as before");
    let refused = hip.graphc(&[&words[..], &["--ranges"]].concat());
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("roctx was not found"), "{}", said(&refused));
}

/// `graphc tune` measures by profiles: each candidate of a product is compiled, loaded and timed on the device, once.
#[test]
fn tune_measures_every_candidate_on_the_device() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (model, database) = (at("product.gir"), at("tuned.db"));
    let text = "graph @product stage=import {
  x = input \"x\" : f16[32, 64]
  w = input \"w\" : f16[64, 48]
  y = contract x, w
  return y as \"y\"
}
";
    std::fs::write(&model, text).expect("writes");
    let tuned = |candidates: &str| {
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
        let more = ["--candidates", candidates, "--database", &database, &model];
        json(&hip.graphc(&[&words[..], &more].concat()))
    };
    let found = tuned("3");
    assert_eq!(
        (&found["measured"], &found["left"]),
        (&3.into(), &0.into()),
        "{found:#}"
    );
    let [product] = list(&found["products"]) else {
        panic!("{found:#}")
    };
    assert!(
        number(&product["best"]["us"]) <= number(&product["predicted"]["us"]),
        "{found:#}"
    );
    // Files of several machines are merged: what measured is a product, not the number that it has here.
    let on = found["on"].as_str().expect("a name");
    assert!(!on.starts_with("predicted") && !on.starts_with("hip"), "{on}");
    assert_eq!(tuned("4")["measured"], 1);
    // The candidate that was the fastest is what a run takes, and it computes the same.
    let run = |more: &[&str]| {
        let words = [
            "run",
            "-q",
            "--device",
            "hip",
            "--no-libraries",
            "--random",
            "--format",
            "json",
            &model,
        ];
        json(&hip.graphc(&[&words[..], more].concat()))
    };
    assert_eq!(run(&[]), run(&["--tuning", &database]));
}

/// A product whose rows are open is measured for each range of them at sizes within the range; a run at any size takes
/// what was found there, and `explain` names the ranges.
#[test]
fn tune_measures_ranges_of_open_sizes_on_the_device() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (model, database) = (at("open.gir"), at("tuned.db"));
    let text = "graph @open stage=import {
  symbol n: 8..40 hint 16
  x = input \"x\" : f16[n, 64]
  w = input \"w\" : f16[64, 48]
  y = contract x, w
  return y as \"y\"
}
";
    std::fs::write(&model, text).expect("writes");
    let tuned = || {
        let words = ["tune", "run", "-q", "--device", "hip", "--no-libraries", "--runs", "1"];
        let more = ["--format", "json", "--candidates", "2", "--database", &database, &model];
        json(&hip.graphc(&[&words[..], &more].concat()))
    };
    let found = tuned();
    assert_eq!(
        (&found["measured"], &found["left"]),
        (&6.into(), &0.into()),
        "{found:#}"
    );
    let sizes: Vec<String> = list(&found["products"])
        .iter()
        .map(|p| p["sizes"].to_string())
        .collect();
    let expected = [r#"["n=16","n=24"]"#, r#"["n=32"]"#, r#"["n=8","n=12"]"#];
    assert_eq!(sizes, expected, "{found:#}");
    assert_eq!(tuned()["measured"], 0);
    let explained = hip.graphc(&[
        "explain",
        "--target",
        "gfx90a",
        "--no-libraries",
        "--tuning",
        &database,
        &model,
    ]);
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    for range in ["[1, 8..16, 48, 64]", "[1, 16..32, 48, 64]", "[1, 32..64, 48, 64]"] {
        assert!(explained.contains(range), "{range}: {explained}");
    }
    // What measuring has chosen computes the same at every size.
    for size in ["n=8", "n=15", "n=16", "n=31", "n=40"] {
        let run = |more: &[&str]| {
            let words = [
                "run",
                "-q",
                "--device",
                "hip",
                "--no-libraries",
                "--random",
                "--size",
                size,
            ];
            json(&hip.graphc(&[&words[..], &["--format", "json", &model], more].concat()))
        };
        assert_eq!(run(&[]), run(&["--tuning", &database]), "{size}");
    }
}
