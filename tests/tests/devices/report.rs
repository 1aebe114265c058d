//! `graphc report`: the page in a headless browser says what `inspect` says, and its script reports no error. The
//! browser's part is `scripts/check-report.sh`; without a browser it says `skipped: …`. Screenshots stay under
//! `target/tmp/report`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use graphc_tests::emulated_hip::EmulatedHip;
use graphc_tests::{graphc_binary, repository};
use serde_json::Value;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn graphc(words: &[&str]) -> Output {
    Command::new(graphc_binary())
        .arg("-q")
        .args(words)
        .output()
        .expect("graphc starts")
}

fn built() -> bool {
    let is = graphc_binary().is_file();
    if !is {
        println!("skipped: {} is not built", graphc_binary().display());
    }
    is
}

fn model() -> String {
    repository("examples/digits/digits.onnx").to_string_lossy().into_owned()
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report").join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// The data of a page.
fn data(page: &Path) -> Value {
    let text = std::fs::read_to_string(page).expect("written");
    assert!(
        !text.contains("http://") || text.contains("http://www.w3.org/2000/svg"),
        "nothing is fetched"
    );
    let (_, rest) = text.split_once("id=\"data\">\n").expect("the data");
    let (json, _) = rest.split_once("\n</script>").expect("its end");
    serde_json::from_str(json).expect("the data are JSON")
}

/// The page as its script left it; None (and a printed line) without a browser.
fn opened(page: &Path, folder: &Path) -> Option<Result<String, String>> {
    let checked = Command::new(repository("scripts/check-report.sh"))
        .args([page, folder])
        .output();
    let checked = checked.expect("bash starts");
    if checked.status.code() == Some(3) {
        print!("{}", String::from_utf8_lossy(&checked.stdout));
        return None;
    }
    if !checked.status.success() {
        return Some(Err(said(&checked)));
    }
    for name in ["light.png", "dark.png"] {
        let image = std::fs::read(folder.join(name)).expect("a screenshot");
        assert!(
            image.starts_with(b"\x89PNG") && image.len() > 20_000,
            "{name}: {} bytes",
            image.len()
        );
    }
    Some(Ok(std::fs::read_to_string(folder.join("dom.html")).expect("the page")))
}

/// What the page shows under a name: the numbers of all elements that have it.
fn shown(page: &str, figure: &str) -> Vec<f64> {
    let pattern = format!("data-figure=\"{figure}\" data-value=\"");
    let places = page.match_indices(&pattern);
    places
        .filter_map(|(at, _)| page[at + pattern.len()..].split('"').next()?.parse().ok())
        .collect()
}

const FIGURES: [&str; 6] = [
    "launches",
    "library_calls",
    "flops",
    "weight_bytes",
    "planned_peak_bytes",
    "live_peak_bytes",
];

#[test]
fn the_page_says_what_inspect_and_explain_say() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a")]) else {
        return;
    };
    let folder = folder("digits");
    let page = folder.join("page.html");
    let (model, path) = (model(), page.to_string_lossy().into_owned());
    let words = [
        "report",
        "-q",
        &model,
        "-o",
        &path,
        "--no-libraries",
        "--target",
        "gfx1100,gfx90a",
    ];
    let words = [&words[..], &["--emulate", "--device", "hip", "--runs", "1"]].concat();
    let made = hip.graphc(&words);
    assert!(made.status.success(), "{}", said(&made));
    let data = data(&page);
    let variants = data["variants"].as_array().expect("a list");
    assert_eq!(variants.len(), 2);
    // The device's own target is measured, the other predicted.
    assert_eq!(variants[0]["timeline"]["source"], "predicted");
    assert_eq!(variants[1]["timeline"]["source"], "measured");
    assert_eq!(variants[1]["timeline"]["device"], "hip:0");
    for (variant, target) in variants.iter().zip(["gfx1100", "gfx90a"]) {
        let printed = |words: &[&str]| -> Value {
            let output = graphc(
                &[
                    words,
                    &[&model, "--target", target, "--no-libraries", "--format", "json"],
                ]
                .concat(),
            );
            assert!(output.status.success(), "{}", said(&output));
            serde_json::from_slice(&output.stdout).expect("JSON")
        };
        let inspected = printed(&["inspect"]);
        for (name, value) in variant["facts"].as_object().expect("facts") {
            // Times stand with `inspect --emulate --time`.
            if !["timed", "untimed"].contains(&name.as_str()) {
                assert_eq!(value, &inspected[name], "{target}: {name}");
            }
        }
        // The weights of the whole program are those of both targets, each with its own layouts.
        for name in ["name", "inputs", "outputs", "sizes"] {
            assert_eq!(data["contents"][name], inspected[name], "{name}");
        }
        assert_eq!(variant["explain"], printed(&["explain"]), "{target}");
        let steps = variant["steps"].as_array().expect("steps").len();
        let intervals = variant["timeline"]["intervals"].as_array().expect("a timeline");
        assert_eq!(intervals.len(), steps);
        let end = |at: &Value| at["start_us"].as_f64().expect("a time") + at["us"].as_f64().expect("a time");
        let last = intervals.iter().map(end).fold(0.0, f64::max);
        let total = variant["timeline"]["total_us"].as_f64().expect("a time");
        assert!(last <= total + 1e-6 && total > 0.0, "{last} {total}");
        let top = variant["buffers"].as_array().expect("buffers").iter();
        let top = top.map(|b| b["offset"].as_u64().expect("bytes") + b["bytes"].as_u64().expect("bytes"));
        let peak = inspected["planned_peak_bytes"].as_u64().expect("bytes");
        assert!(top.max().is_some_and(|top| top <= peak && top + 256 > peak), "{target}");
    }
    let Some(opened) = opened(&page, &folder) else { return };
    let dom = opened.unwrap_or_else(|error| panic!("{error}"));
    for (at, (variant, target)) in variants.iter().zip(["gfx1100", "gfx90a"]).enumerate() {
        let facts = &variant["facts"];
        for name in FIGURES {
            let value = facts[name].as_f64().expect("a number");
            assert_eq!(shown(&dom, &format!("{target}/{name}")), [value], "{target}: {name}");
            // The first target is the one that is chosen.
            if at == 0 {
                assert_eq!(shown(&dom, name), [value], "{name}");
            }
        }
    }
    for kernel in variants[0]["facts"]["kernels"].as_array().expect("kernels") {
        let figure = format!("kernel/{}", kernel["name"].as_str().expect("a name"));
        assert_eq!(
            shown(&dom, &figure),
            [kernel["launches"].as_f64().expect("a count")],
            "{figure}"
        );
    }
    let steps = variants[0]["steps"].as_array().expect("steps");
    let marks = |kind: &str| dom.matches(&format!("<{kind} class=\"mark\"")).count();
    let buffers = variants[0]["buffers"].as_array().expect("buffers").len();
    assert_eq!(
        marks("rect"),
        steps.len() + buffers,
        "bars of the timeline and of memory"
    );
    let computing = steps.iter().filter(|step| step["flops"].as_u64() > Some(0)).count();
    assert_eq!(marks("circle"), computing, "steps on the roofline");
    let nodes = |graph: &Value| graph["nodes"].as_array().expect("nodes").len();
    let boxes = dom.matches("<g class=\"box\"").count();
    assert_eq!(boxes, nodes(&data["before"]) + nodes(&variants[0]["after"]));
    let fused = variants[0]["explain"]["fused"].as_array().expect("edges");
    let epilogues = fused.iter().filter(|edge| edge["how"] == "epilogue").count();
    assert_eq!(shown(&dom, "fused/epilogue"), [epilogues as f64]);
}

#[test]
fn an_artifact_has_a_page_without_its_graph() {
    if !built() {
        return;
    }
    let folder = folder("artifact");
    let (artifact, page) = (folder.join("digits.graphc"), folder.join("page.html"));
    let (artifact, path) = (
        artifact.to_string_lossy().into_owned(),
        page.to_string_lossy().into_owned(),
    );
    let made = graphc(&["compile", &model(), "--target", "cpu", "-o", &artifact]);
    assert!(made.status.success(), "{}", said(&made));
    let made = graphc(&["report", &artifact, "-o", &path]);
    assert!(made.status.success(), "{}", said(&made));
    let data = data(&page);
    assert!(data["before"].is_null() && data["variants"][0]["explain"].is_null());
    let Some(opened) = opened(&page, &folder) else { return };
    let dom = opened.unwrap_or_else(|error| panic!("{error}"));
    assert!(dom.contains("An artifact no longer holds its graph") && dom.contains("No times: write the page with"));
    assert_eq!(
        shown(&dom, "launches"),
        [data["variants"][0]["facts"]["launches"].as_f64().expect("a count")]
    );
    // A page with a fault is one: a part of the data that is not there stops the script.
    let text = std::fs::read_to_string(&page).expect("written");
    let broken = folder.join("broken.html");
    std::fs::write(&broken, text.replacen("\"variants\":", "\"variant\":", 1)).expect("written");
    let Some(opened) = self::opened(&broken, &folder) else {
        return;
    };
    let error = opened.expect_err("the script cannot go on");
    assert!(error.contains("CONSOLE") && error.contains("TypeError"), "{error}");
}

#[test]
fn what_cannot_be_is_refused_before_the_work() {
    if !built() {
        return;
    }
    let model = model();
    let page = folder("refused").join("page.html").to_string_lossy().into_owned();
    for (words, part) in [
        (vec!["report", &model, "-o", &model], "would replace"),
        (
            vec!["report", &model, "-o", &page, "--target", "cpu", "--emulate"],
            "cpu is no GPU",
        ),
        (
            vec!["report", &model, "-o", &page, "--target", "gfx1"],
            "unknown target",
        ),
        (vec!["report", &model], "--output"),
        (vec!["report", &model, "-o", &page, "--runs", "3"], "--device"),
    ] {
        let output = graphc(&words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(part), "{words:?}: {}", said(&output));
    }
    assert!(!Path::new(&page).exists());
}
