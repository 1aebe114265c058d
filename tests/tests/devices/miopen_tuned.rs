//! Convolutions tuned between their kernels and MIOpen's solutions: the real MIOpen on the emulated gfx90a, by
//! predicted cycles.
//!
//! Set up as [`crate::hip_libraries`] is; without the libraries the tests print `skipped: …` and pass.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use graphc::driver::{Build, BuildOptions, build};
use graphc::ir::graph::{eval, parse};
use graphc::ir::library::Algorithm;
use graphc::ir::plan::Work;
use graphc::ir::{Bindings, DType, Graph, Target};
use graphc::passes::tuning::Engine;
use graphc::passes::{Convolution, OptLevel, Tuning};
use graphc::runtime::{Executable, LoadOptions};
use graphc::tune::Database;
use graphc_tests::emulated_hip::{EmulatedHip, compile_here};
use graphc_tests::emulator::toolchain;
use graphc_tests::graphc_binary;
use graphc_tests::libraries::{self, Failing, calls, tensor};
use graphc_tests::reference::Tensors;

/// A convolution with a bias and an activation, and one with a filter for each channel: no call does either whole. With
/// channels first MIOpen has several solutions of both.
const MODEL: &str = "graph @convolutions stage=import {
  x = input \"x\" : f32[1, 16, 6, 6]
  w = input \"w\" : f32[16, 16, 3, 3]
  b = input \"b\" : f32[16]
  d = input \"d\" : f32[16, 1, 3, 3]
  a = conv x, w, b {pad_low=[1, 1], pad_high=[1, 1]}
  r = relu a
  e = conv r, d {groups=16, pad_low=[1, 1], pad_high=[1, 1]}
  y = relu e
  return y as \"y\"
}
";

/// The pass that would put channels last.
const LAYOUT: &str = "layout";

fn inside(test: &str) -> Option<EmulatedHip> {
    let variables = [("GRAPHC_EMU_ARCH", "gfx90a")];
    libraries::inside(module_path!(), test, env!("CARGO_TARGET_TMPDIR"), &variables)
}

fn model() -> (Graph, Tensors) {
    let shapes = [
        ("x", &[1, 16, 6, 6][..]),
        ("w", &[16, 16, 3, 3]),
        ("b", &[16]),
        ("d", &[16, 1, 3, 3]),
    ];
    let input = |(seed, (name, shape)): (usize, (&str, &[usize]))| (name.to_owned(), tensor(DType::F32, shape, seed));
    let inputs = shapes.into_iter().enumerate().map(input).collect();
    (parse::parse(MODEL).expect("parses"), inputs)
}

fn built(graph: &Graph, tuning: &Tuning) -> Build {
    let target: Target = "gfx90a".parse().expect("a target");
    let mut options = BuildOptions::new(vec![target], OptLevel::O2);
    options.plan.tuning.extend(tuning.clone());
    options.optimize.disable.insert(LAYOUT.to_owned());
    build(graph, &options).expect("builds")
}

/// The engines of a plan's convolutions as rows have them.
fn engines(build: &Build) -> Vec<String> {
    let plan = &build.program.variants[0].plan;
    let of_work = |work: &Work| match work {
        Work::Call { call, algorithm, .. } => Some(Engine::call(call.name(), algorithm.as_deref().cloned())),
        _ => None,
    };
    let of_convolution = |one: &Convolution| {
        let call = one.steps.iter().find_map(|step| of_work(&plan.steps[*step].work));
        call.unwrap_or(Engine::Kernel).to_string()
    };
    build.reports[0].convolutions.iter().map(of_convolution).collect()
}

/// Tunes the model by predicted cycles, twice; checks what a plan has by that and what is said of it.
fn search(file: &str, database: &str) {
    let graphc = |words: &[&str]| {
        Command::new(graphc_binary())
            .args(words)
            .output()
            .expect("graphc starts")
    };
    let tuned = || {
        let words = ["tune", "run", "-q", "--emulate", "--target", "gfx90a"];
        let more = ["--disable", LAYOUT, "--format", "json", "--candidates", "3"];
        let output = graphc(&[&words[..], &more, &["--database", database, file]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        found
    };
    let found = tuned();
    let unsaid = (&found["left"], &found["untimed"]);
    assert_eq!(unsaid, (&0.into(), &serde_json::json!({})), "{found:#}");
    let products = found["products"].as_array().expect("a list");
    assert_eq!(products.len(), 2, "{found:#}");
    for product in products {
        let calls = product["calls"].as_array().expect("a list");
        let named = |call: &&serde_json::Value| call["call"].as_str().is_some_and(|c| c.contains(" of MIOpen "));
        assert!(
            calls.iter().any(|call| call["call"] == "call miopen_conv"),
            "{product:#}"
        );
        assert!(calls.iter().filter(named).count() >= 1, "{product:#}");
        assert!(product["predicted"]["us"].as_f64() > Some(0.0), "{product:#}");
    }
    assert_eq!(tuned()["measured"], 0, "the file has all of it");

    // The same file, the same plan, and it says so.
    let (graph, _) = model();
    let tuning = Database::read(Path::new(database)).expect("reads").tuning();
    let tuning = tuning.expect("reads");
    let best = built(&graph, &tuning);
    assert_eq!(best.program, built(&graph, &tuning).program);
    let fastest = |line: &str| {
        let all = products.iter().filter(|p| p["product"] == line);
        let row = all.filter_map(|p| p["best"]["mapping"].as_str()).next();
        match Engine::of_row(row.expect("a product")) {
            Engine::Kernel => "kernel".to_owned(),
            call @ Engine::Call { .. } => call.to_string(),
        }
    };
    let lines = lines(&best);
    let expected: Vec<String> = lines.iter().map(|line| fastest(line)).collect();
    assert_eq!((engines(&best), best.reports[0].decided.len()), (expected, 2));
    let explained = graphc(&[
        "explain",
        "--target",
        "gfx90a",
        "--disable",
        LAYOUT,
        "--tuning",
        database,
        file,
    ]);
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    for line in &lines {
        assert!(
            explained.contains(&format!("{line}\n    {}", fastest(line))),
            "{explained}"
        );
    }
}

/// The lines of a build's convolutions.
fn lines(build: &Build) -> Vec<String> {
    let all = build.reports[0].convolutions.iter();
    all.map(|one| one.product.clone()).collect()
}

#[test]
fn a_convolution_is_what_was_fastest_and_right_whichever_that_is() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("miopen_tuned");
    let at = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (file, database) = (at("model.gir"), at("times.db"));
    // Predictions have the libraries in a process of their own; what they chose runs in the second process of this
    // test.
    if libraries::is_outside() {
        if toolchain().is_none() {
            return;
        }
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(&file, MODEL).expect("writes");
        search(&file, &database);
    }
    let Some(hip) = inside("a_convolution_is_what_was_fastest_and_right_whichever_that_is") else {
        return;
    };
    // Each engine that was measured computes the same; so does a plan with what another version has measured.
    let (graph, inputs) = model();
    let want = eval::evaluate(&graph, &inputs).expect("evaluates");
    let rows = Database::read(Path::new(&database)).expect("reads");
    let lines = lines(&built(&graph, &rows.tuning().expect("reads")));
    assert_eq!(lines.len(), 2);
    let rows = rows.rows().expect("reads");
    let mut choices: BTreeSet<Engine> = rows.iter().map(|row| Engine::of_row(&row.mapping)).collect();
    let algorithms = choices.iter().filter_map(|engine| match engine {
        Engine::Call { algorithm, .. } => algorithm.clone(),
        Engine::Kernel => None,
    });
    let known = algorithms.collect::<Vec<_>>().pop().expect("some");
    choices.extend(of_others(&known).map(|other| Engine::call("miopen_conv", Some(other))));
    let no_choice = Engine::call("miopen_conv_of_tomorrow", None);
    choices.insert(no_choice.clone());
    assert!(choices.len() >= 7, "{choices:?}");
    let device = hip.open(0).expect("a device");
    for engine in &choices {
        let mut tuning = Tuning::default();
        for line in &lines {
            tuning.decide(line.clone(), engine.clone());
        }
        let mut build = built(&graph, &tuning);
        let expected = if *engine == no_choice { &Engine::Kernel } else { engine };
        assert_eq!(engines(&build), vec![expected.to_string(); 2]);
        compile_here(&mut build.program);
        let executable = Executable::load_on(&device, Arc::new(build.program), 0, &LoadOptions::default());
        let got = executable.expect("loads").run(&inputs).expect("runs");
        let d = graphc::compare::compare(&got["y"], &want["y"], 1e-4, 1e-4).expect("same shape");
        assert!(d.is_within(), "{engine}: {d:?}");
    }
}

/// What a solution is where the plan was made elsewhere, or the file is damaged.
fn of_others(algorithm: &Algorithm) -> [Algorithm; 3] {
    let other = |of: &str, words: &[u8]| Algorithm {
        of: of.to_owned(),
        words: words.to_vec(),
    };
    [
        other("MIOpen 1.0.0 on another driver", &algorithm.words),
        other(&algorithm.of, &[0xff; 8]),
        other(&algorithm.of, &algorithm.words[..3]),
    ]
}

/// A plan that names a solution has that one: MIOpen is given its number, and the first that it ranks where it has no
/// such solution.
#[test]
fn the_solution_that_a_plan_names_is_called() {
    let test = "the_solution_that_a_plan_names_is_called";
    let reports = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.reports"));
    // Kernels are timed here and not run: what counts is which.
    let variables = [
        ("GRAPHC_EMU_ARCH", "gfx90a"),
        ("GRAPHC_EMU_TIME", reports.to_str().expect("a path")),
    ];
    let Some(hip) = libraries::inside(module_path!(), test, env!("CARGO_TARGET_TMPDIR"), &variables) else {
        return;
    };
    let (graph, inputs) = crate::miopen_find::convolution();
    let failing = Failing::new();
    let mut search = hip.search();
    search.libraries.explicit = Some(failing.folder().into());
    let device = hip.open_with(&search, 0).expect("a device");
    let program = calls(&graph);
    let load = |asked: Option<Algorithm>| {
        let mut program = program.clone();
        for work in program.variants[0]
            .plan
            .steps
            .values_mut()
            .flat_map(|step| step.works_mut())
        {
            if let Work::Call { algorithm, .. } = work {
                *algorithm = asked.clone().map(Box::new);
            }
        }
        Executable::load_on(&device, Arc::new(program), 0, &LoadOptions::default()).expect("loads")
    };
    let launched = |asked: Option<Algorithm>| {
        let executable = load(asked);
        executable.run(&inputs).expect("runs");
        std::fs::remove_file(&reports).expect("is there");
        executable.run(&inputs).expect("runs");
        let text = std::fs::read_to_string(&reports).expect("reports");
        let name = |line: &str| {
            let report: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
            report["kernel"].as_str().expect("a name").to_owned()
        };
        text.lines().map(name).collect::<Vec<String>>()
    };
    let offered = load(None).algorithms(&Bindings::new()).expect("asked");
    let [(_, algorithms)] = &offered[..] else {
        panic!("one call")
    };
    assert!(algorithms.len() > 1, "{algorithms:?}");
    let chosen = launched(None);
    assert_eq!(
        launched(Some(algorithms[0].clone())),
        chosen,
        "the first is MIOpen's own choice"
    );
    let by_name: BTreeSet<Vec<String>> = algorithms.iter().map(|one| launched(Some(one.clone()))).collect();
    assert!(by_name.len() > 1, "{by_name:?}");
    for other in of_others(&algorithms[1]) {
        assert_eq!(launched(Some(other.clone())), chosen, "{other}: MIOpen chooses");
    }
}
