//! Models on the CPU against onnxruntime, in turns in the same run.
//!
//! ```text
//! python -m venv VENV && VENV/bin/pip install -r scripts/py/requirements.txt
//! VENV/bin/python scripts/py/bench_models.py MODELS
//! cargo run --release -p graphc-benches --bin models -- --python VENV/bin/python MODELS/*.onnx
//! ```
//!
//! A machine's other work slows both: rounds alternate, and the ratio is of the best times of all rounds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use graphc::arrays;
use graphc::driver::{BuildOptions, Model, build, load};
use graphc::ir::Target;
use graphc::passes::OptLevel;
use graphc::runtime::{Executable, LoadOptions, RunTimes};
use graphc_benches::median;

#[derive(Parser)]
struct Args {
    /// Models; each with its inputs beside it as NAME.in.npz, and expected outputs as NAME.out.npz.
    #[arg(required = true)]
    models: Vec<PathBuf>,
    /// A Python that has onnxruntime; without it only graphc is timed.
    #[arg(long)]
    python: Option<PathBuf>,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    #[arg(long, default_value_t = 20)]
    runs: usize,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Fail when graphc takes more than this many times onnxruntime's time.
    #[arg(long)]
    limit: Option<f64>,
    /// Print each step's best time after the model's line.
    #[arg(long)]
    profile: bool,
}

struct Times {
    best: f64,
    medians: Vec<f64>,
}

impl Times {
    fn new() -> Times {
        Times {
            best: f64::INFINITY,
            medians: Vec::new(),
        }
    }
    fn median(&mut self) -> f64 {
        median(&mut self.medians)
    }
}

fn main() -> graphc::Result<()> {
    let args = Args::parse();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/py/bench_ort.py");
    println!(
        "{:<20} {:>12} {:>12} {:>12} {:>12} {:>7} {:>10}",
        "model", "graphc best", "median", "ort best", "median", "ratio", "max error"
    );
    let mut over = Vec::new();
    for path in &args.models {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let Model::Graph(graph) = load(path, &Default::default())? else {
            continue;
        };
        let built = build(&graph, &BuildOptions::new(vec![Target::cpu()], OptLevel::O2))?;
        let options = LoadOptions {
            threads: args.threads,
            ..LoadOptions::default()
        };
        let exe = Executable::load_on(&graphc::cpu_device(), Arc::new(built.program), 0, &options)?;
        let inputs = arrays::read(&path.with_extension("in.npz"))?;
        let outputs = exe.run(&inputs)?;
        let expected = path.with_extension("out.npz");
        let mut error = f64::NAN;
        if expected.exists() {
            error = 0.0;
            for (output, want) in &arrays::read(&expected)? {
                if let Some(Ok(d)) = outputs
                    .get(output)
                    .map(|got| graphc::compare::compare(got, want, 1e-3, 1e-4))
                {
                    error = f64::max(error, d.max_abs);
                }
            }
        }
        let steps = if args.profile {
            profile(&exe, &inputs, args.runs)?
        } else {
            Vec::new()
        };
        let (mut ours, mut ort) = (Times::new(), Times::new());
        for _ in 0..args.rounds {
            let mut times = Vec::new();
            for i in 0..args.runs + 3 {
                let start = Instant::now();
                exe.run(&inputs)?;
                if i >= 3 {
                    times.push(start.elapsed().as_secs_f64() * 1e3);
                }
            }
            ours.best = times.iter().copied().fold(ours.best, f64::min);
            ours.medians.push(median(&mut times));
            if let Some(python) = &args.python
                && let Some((best, middle)) = onnxruntime(python, &script, path, &args)
            {
                ort.best = ort.best.min(best);
                ort.medians.push(middle);
            }
        }
        let ratio = ours.best / ort.best;
        let (our_median, ort_median) = (ours.median(), ort.median());
        println!(
            "{name:<20} {:>9.2} ms {:>9.2} ms {:>9.2} ms {:>9.2} ms {ratio:>7.2} {error:>10.1e}",
            ours.best, our_median, ort.best, ort_median,
        );
        let total: f64 = steps.iter().map(|(_, us)| us).sum();
        for (name, us) in &steps {
            println!("{us:>10.1} us {:>5.1}%  {name}", us / total * 100.0);
        }
        if args.limit.is_some_and(|l| ratio > l) {
            over.push(name);
        }
    }
    if over.is_empty() {
        Ok(())
    } else {
        Err(graphc::Error::Mismatch(format!("over the limit: {}", over.join(", "))))
    }
}

/// The best time of each step in microseconds.
fn profile(
    exe: &Executable,
    inputs: &indexmap::IndexMap<String, graphc::ir::HostTensor>,
    runs: usize,
) -> graphc::Result<Vec<(String, f64)>> {
    let mut best: Vec<(String, f64)> = Vec::new();
    for _ in 0..runs + 3 {
        let mut run = RunTimes::default();
        exe.run_profiled(inputs, Some(&mut run))?;
        for (i, step) in run.steps.iter().enumerate() {
            let us = step.time.as_secs_f64() * 1e6;
            match best.get_mut(i) {
                Some((_, least)) => *least = least.min(us),
                None => best.push((format!("{} [{}]", step.name, step.engine), us)),
            }
        }
    }
    Ok(best)
}

/// Times onnxruntime in a process of its own: best and median in milliseconds.
fn onnxruntime(python: &Path, script: &Path, model: &Path, args: &Args) -> Option<(f64, f64)> {
    let out = Command::new(python)
        .arg(script)
        .arg(model)
        .arg("--inputs")
        .arg(model.with_extension("in.npz"))
        .args(["--threads", &args.threads.to_string(), "--runs", &args.runs.to_string()])
        .output()
        .ok()?;
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).ok()?;
    Some((json["min_ms"].as_f64()?, json["median_ms"].as_f64()?))
}
