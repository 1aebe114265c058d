//! `graphc inspect --emulate --time` and `graphc bench --emulate`: predicted times.

use crate::place::{Place, compiler, text};

/// A large copy with a sign change, whose time is memory's, and a small product.
const TWO: &str = "graph @two stage=import {
  x = input \"x\" : f32[65536, 512]
  w = constant random(seed=3) : f32[512, 32]
  y = input \"y\" : f32[256, 512]
  a = neg x
  b = contract y, w
  return a as \"a\", b as \"b\"
}
";

#[test]
fn times_are_predicted_kernel_by_kernel_and_for_the_plan() {
    let p = Place::new();
    if !compiler(&p) {
        return;
    }
    let m = p.write("two.gir", TWO);
    let args = [
        "inspect",
        text(&m),
        "--target",
        "gfx942",
        "--emulate",
        "--time",
        "--no-libraries",
    ];
    let picture = p.path("picture.json");
    let facts = p.json(&[&args[..], &["--format", "json", "--trace", text(&picture)]].concat());
    let timed = facts["timed"].as_array().expect("a list");
    assert_eq!(timed.len(), 2, "{facts:#}");
    let copy = &timed[0];
    assert!(
        copy["name"].as_str().is_some_and(|name| name.starts_with("neg")),
        "{facts:#}"
    );
    // 256 MiB pass through memory, which the memory-side cache holds in part: between its rate and DRAM's.
    let micros = copy["total_micros"].as_f64().expect("a number");
    let bytes = 2.0 * 65536.0 * 512.0 * 4.0;
    assert!(micros > bytes / 6.5e6 && micros < bytes / 2.5e6, "{micros}");
    // Where the cycles went adds up.
    let sum = |list: &str| -> f64 {
        let parts = copy["report"][list].as_array().expect("a list").iter();
        parts.filter_map(|part| part["share"].as_f64()).sum()
    };
    assert!((sum("issue") + sum("stalls") - 1.0).abs() < 0.02, "{copy:#}");
    let drawn = std::fs::read_to_string(&picture).expect("written");
    assert!(
        drawn.contains("traceEvents") && drawn.contains("global_store"),
        "{}",
        &drawn[..200.min(drawn.len())]
    );

    let args = [
        "bench",
        text(&m),
        "--target",
        "gfx942",
        "--emulate",
        "--no-libraries",
        "--format",
        "json",
    ];
    let whole = p.json(&args);
    let (plan, all) = (whole["predicted_ms"].as_f64(), whole["in_sequence_ms"].as_f64());
    assert!(plan <= all && plan.is_some_and(|ms| ms * 1e3 >= micros), "{whole:#}");
    // A faster clock does not make memory faster.
    let slow = p.json(&[&args[..], &["--clock", "1.5"]].concat());
    let ratio = slow["predicted_ms"]
        .as_f64()
        .zip(plan)
        .map_or(0.0, |(slow, plan)| slow / plan);
    assert!((0.95..1.3).contains(&ratio), "{ratio}");
}

#[test]
fn what_is_not_timed_says_so() {
    let p = Place::new();
    if !compiler(&p) {
        return;
    }
    let m = p.write("two.gir", TWO);
    let args = [
        "inspect",
        text(&m),
        "--target",
        "gfx906",
        "--emulate",
        "--time",
        "--no-libraries",
    ];
    p.fails(&args, 2, &["not timed for gfx906"]);
}

/// A generic processor is no GPU: its code is timed as a GPU runs it, which the output names.
#[test]
fn code_of_a_generic_processor_is_timed_on_a_gpu_that_runs_it() {
    let p = Place::new();
    if !compiler(&p) {
        return;
    }
    let m = p.write("two.gir", TWO);
    for (target, gpu) in [("gfx11-generic", "gfx1100"), ("gfx12-generic", "gfx1201")] {
        let args = ["bench", text(&m), "--target", target, "--emulate", "--no-libraries"];
        let said = p.ok(&args);
        assert!(said.contains(&format!("on {target}, as {gpu} runs its code")), "{said}");
        assert!(said.contains(&format!("predicted for {gpu} as RX ")), "{said}");
        let page = p.path("page.html");
        p.ok(&[
            "report",
            text(&m),
            "--target",
            target,
            "--emulate",
            "--no-libraries",
            "-o",
            text(&page),
        ]);
        let page = std::fs::read_to_string(&page).expect("written");
        assert!(page.contains(&format!("\"device\":\"{gpu}\"")), "{target}");
    }
    // No GPU of this one is timed.
    let args = [
        "bench",
        text(&m),
        "--target",
        "gfx9-generic",
        "--emulate",
        "--no-libraries",
    ];
    p.fails(&args, 2, &["not timed for gfx9-generic", "gfx1100"]);
}
