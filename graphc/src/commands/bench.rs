//! `graphc bench`: how long a model takes.

use std::time::Instant;

use ir::plan::arena;
use runtime::{Executable, LoadOptions};
use serde_json::json;

use super::args::{BuildArgs, Format, ModelArgs};
use super::{Context, output, run};
use crate::arrays::Arrays;
use crate::error::{Error, Result};

/// Time a model on random inputs.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    build: BuildArgs,
    /// Where to run: cpu, hip or hip:N (an AMD GPU), cuda or cuda:N (an NVIDIA GPU), or auto (the first GPU, or else the CPU).
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Threads of the CPU device; by default one a core.
    #[arg(long)]
    threads: Option<usize>,
    /// How many runs are timed, after a fifth as many (at least 2) that are not.
    #[arg(long, default_value_t = 20)]
    runs: usize,
    /// Inputs by name; made up where they are missing.
    #[arg(long, value_name = "FILE")]
    inputs: Vec<std::path::PathBuf>,
    /// Also print the time of each step, in microseconds.
    #[arg(long)]
    profile: bool,
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    if args.runs == 0 {
        return Err(Error::Config("--runs 0 times nothing".to_owned()));
    }
    let mut given = Arrays::new();
    for path in &args.inputs {
        given.extend(crate::arrays::read(path)?);
    }
    let device = run::open(&args.device, context)?;
    let start = Instant::now();
    let (program, variant) = run::program(&args.model, &args.build, &device, context)?;
    let compile = start.elapsed();
    let plan = &program.variants[variant].plan;
    let inputs = run::inputs(plan, given, Some(0))?;
    let shapes = inputs.iter().map(|(n, t)| (n.as_str(), t.shape.as_slice())).collect();
    let declared: Vec<_> = plan.inputs.iter().map(|p| (p.name.as_str(), &p.ty)).collect();
    let bindings =
        ir::graph::bind_shapes(&plan.symbols, &declared, &shapes).map_err(|e| Error::Config(e.to_string()))?;
    let peak = arena::place(plan, &bindings)?.total;
    let threads = args.threads.unwrap_or(context.settings.threads);
    let start = Instant::now();
    let executable = Executable::load_on(
        device.device.as_ref(),
        program.clone(),
        variant,
        &LoadOptions {
            threads,
            profile: args.profile,
            synchronous: context.settings.synchronous,
            ..LoadOptions::default()
        },
    )?;
    let loading = start.elapsed();
    let progress = output::bar(context, "running", args.runs);
    for _ in 0..(args.runs / 5).max(2) {
        executable.run(&inputs)?;
    }
    let mut times: Vec<f64> = Vec::with_capacity(args.runs);
    for _ in 0..args.runs {
        let start = Instant::now();
        executable.run(&inputs)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        progress.inc(1);
    }
    progress.finish_and_clear();
    times.sort_by(f64::total_cmp);
    let middle = times.len() / 2;
    let median = if times.len() % 2 == 1 {
        times[middle]
    } else {
        (times[middle - 1] + times[middle]) / 2.0
    };
    let flops = plan.flops.eval(&bindings)? as f64;
    let steps: Vec<_> = executable
        .profile()
        .into_iter()
        .map(|s| json!({ "step": s.name, "us": s.micros }))
        .collect();
    match args.format {
        Format::Json => output::print_json(&json!({
            "median_ms": median, "min_ms": times[0], "compile_ms": compile.as_secs_f64() * 1e3,
            "load_ms": loading.as_secs_f64() * 1e3, "planned_peak_bytes": peak, "threads": threads, "runs": times.len(), "device": device.device.name(),
            "gflops": flops / times[0] / 1e6, "steps": steps,
        })),
        Format::Text => {
            let place = match device.target.is_gpu() {
                true => device.device.name().to_owned(),
                false => format!("{threads} threads"),
            };
            let mut text = format!(
                "median {median:.3} ms, best {:.3} ms of {} runs on {place} ({:.1} GFLOP/s at best)\n\
                 compiled in {:.1} ms, loaded in {:.1} ms, planned peak {}\n",
                times[0],
                times.len(),
                flops / times[0] / 1e6,
                compile.as_secs_f64() * 1e3,
                loading.as_secs_f64() * 1e3,
                output::bytes(peak as u64)
            );
            for s in executable.profile() {
                text += &format!("{:>10.1} us  {}\n", s.micros, s.name);
            }
            output::print(&text)
        }
    }
}
