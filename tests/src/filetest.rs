//! Filetests: a `.gir` text, what is to be done with it, and what came out, in one file.
//!
//! ```text
//! // test: optimize target=cpu -O1
//! graph @g stage=import { … }
//! // ----
//! // graph @g stage=core { … }
//! ```
//!
//! The first line names the mode; what follows `// ----` is the blessed output, each line behind `// `.
//! `GRAPHC_BLESS=1` writes it anew. Whatever the mode, the graph is also run: the reference evaluator before
//! optimisation = after = the CPU device.
//!
//! | mode | output |
//! |---|---|
//! | `optimize` | the Core graph |
//! | `explain` | rules that fired, and the reason of every edge not fused |
//! | `schedule` | the regions |
//! | `plan` | kernels, buffers, steps |
//! | `error` | what the parser or verifier says |

use std::path::{Path, PathBuf};

use graphc::driver::{Build, BuildOptions, build};
use graphc::ir::{self, Graph, Target};
use graphc::passes::{OptLevel, names};

use crate::reference;

/// What a filetest asks for.
struct Test {
    mode: String,
    options: BuildOptions,
    sizes: Vec<(String, i64)>,
    /// Whether the graph is run as well.
    run: bool,
}

const LINE: &str = "// ----";

/// Runs the filetest in `path` and compares, or blesses.
///
/// # Errors
/// What differs, as text.
pub fn check(path: &Path, bless: bool) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let (source, blessed) = match text.split_once(&format!("{LINE}\n")) {
        Some((source, blessed)) => (source, blessed),
        None => (text.as_str(), ""),
    };
    let test = header(source)?;
    let got: String = run(&test, source)?
        .lines()
        .map(|l| format!("// {l}").trim_end().to_owned() + "\n")
        .collect();
    if got == blessed {
        return Ok(());
    }
    if bless {
        let whole = format!("{}\n{LINE}\n{got}", source.trim_end());
        return std::fs::write(path, whole).map_err(|e| e.to_string());
    }
    let first = got.lines().zip(blessed.lines()).position(|(a, b)| a != b);
    let at = first.unwrap_or_else(|| got.lines().count().min(blessed.lines().count()));
    Err(format!(
        "output differs from line {} on (GRAPHC_BLESS=1 accepts it)\n  blessed: {}\n  got:     {}\n\n{got}",
        at + 1,
        blessed.lines().nth(at).unwrap_or("(nothing)"),
        got.lines().nth(at).unwrap_or("(nothing)")
    ))
}

/// Lists the filetests under a folder, in order.
///
/// # Panics
/// When the folder cannot be read.
pub fn list(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("a folder's entry can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn header(source: &str) -> Result<Test, String> {
    let line = source.lines().next().and_then(|l| l.strip_prefix("// test: "));
    let mut words = line
        .ok_or("the first line must be `// test: MODE …`")?
        .split_whitespace();
    let mode = words.next().ok_or("no mode")?.to_owned();
    let (mut target, mut level) = (Target::cpu(), OptLevel::O2);
    let (mut disable, mut sizes, mut run, mut dtype) = (Vec::new(), Vec::new(), true, None);
    for word in words {
        if let Some(l) = word.strip_prefix("-O") {
            level = l.parse().map_err(|e| format!("{e}"))?;
        } else if let Some(t) = word.strip_prefix("target=") {
            target = t.parse().map_err(|e| format!("{e}"))?;
        } else if let Some(d) = word.strip_prefix("dtype=") {
            dtype = Some(d.parse().map_err(|e| format!("{e}"))?);
        } else if let Some(name) = word.strip_prefix("disable=") {
            disable.push(name.to_owned());
        } else if word == "no-run" {
            run = false;
        } else if let Some((name, size)) = word.split_once('=') {
            sizes.push((
                name.to_owned(),
                size.parse().map_err(|_| format!("{word}: not a size"))?,
            ));
        } else {
            return Err(format!("unknown word {word:?} in the header"));
        }
    }
    let mut options = BuildOptions::new(vec![target], level).dtype(dtype);
    options.check_indices = Some(false);
    options.optimize.disable = disable.into_iter().collect();
    names::check(&options.optimize.disable).map_err(|e| e.to_string())?;
    options.optimize.verify = true;
    Ok(Test {
        mode,
        options,
        sizes,
        run,
    })
}

fn run(test: &Test, source: &str) -> Result<String, String> {
    let parsed = ir::graph::parse::parse(source);
    if test.mode == "error" {
        return match parsed {
            Err(e) => Ok(e.to_string()),
            Ok(graph) => match ir::graph::verify::verify(&graph) {
                Err(e) => Ok(e.to_string()),
                Ok(()) => Err("the graph is valid, but the test expects an error".to_owned()),
            },
        };
    }
    let graph = parsed.map_err(|e| e.to_string())?;
    ir::graph::verify::verify(&graph).map_err(|e| e.to_string())?;
    let built = build(&graph, &test.options).map_err(|e| e.to_string())?;
    let text = output(&test.mode, &built)?;
    if test.run {
        means_the_same(test, &graph, &built)?;
    }
    Ok(text)
}

fn output(mode: &str, built: &Build) -> Result<String, String> {
    let report = &built.reports[0];
    let options = ir::graph::print::PrintOptions {
        elide_above: Some(16),
        hide_origins: true,
    };
    Ok(match mode {
        "optimize" => ir::graph::print::print(&report.core, options),
        "schedule" => report.schedule_text(),
        "plan" => built.program.variants[0].plan.to_string(),
        "explain" => {
            let mut text = String::new();
            for f in &report.optimize.fired {
                text += &format!("{}: {}\n", f.pass, f.rule);
                for step in &f.proof {
                    text += &format!("  {}: {} = {}\n", step.rule, step.from, step.to);
                }
            }
            text += &report.schedule_text();
            for e in &report.fusion.unfused {
                text += &format!("{} -> {}: {}\n", e.value, e.consumer, e.reason.text());
            }
            text
        }
        other => return Err(format!("unknown mode {other:?}")),
    })
}

/// Runs the graph as it was and as it became, and compares.
fn means_the_same(test: &Test, graph: &Graph, built: &Build) -> Result<(), String> {
    let bindings = graphc::random::bindings(graph.symbols(), &test.sizes).map_err(|e| e.to_string())?;
    let inputs = reference::random_inputs(graph, &bindings, 7);
    let want = ir::graph::eval::evaluate(graph, &inputs).map_err(|e| e.to_string())?;
    // Results of a narrow type are rounded to it; all others are as exact as ever.
    let results = graph.outputs().iter().map(|output| graph.ty(output.value).dtype);
    let narrow = results
        .filter(|t| matches!(t, ir::DType::F16 | ir::DType::BF16))
        .max_by_key(|t| *t == ir::DType::BF16);
    let asked = test.options.optimize.dtype.or(narrow);
    let computed_in = asked.unwrap_or(ir::DType::F32);
    let core = &built.reports[0].core;
    // Library calls mean to the evaluator what their op means.
    let optimised = ir::graph::eval::evaluate(core, &inputs).map_err(|e| format!("optimised: {e}"))?;
    reference::assert_matches(&optimised, &want, computed_in, "optimised graph");
    let plan = &built.program.variants[0].plan;
    let planned =
        ir::plan::eval::evaluate(plan, &built.program.constants, &inputs).map_err(|e| format!("plan: {e}"))?;
    reference::assert_matches(&planned, &want, computed_in, "plan");
    let cpu = reference::compile_cpu(graph, test.options.optimize.level, test.options.optimize.dtype);
    let ran = cpu.run(&inputs).map_err(|e| format!("cpu: {e}"))?;
    reference::assert_matches(&ran, &want, computed_in, "cpu");
    Ok(())
}
