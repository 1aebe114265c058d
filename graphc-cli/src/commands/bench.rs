//! `graphc bench`: how long a model takes.

use std::collections::VecDeque;
use std::time::Instant;

use runtime::{DeviceTensor, Given, Link, LoadOptions, ProfileOptions, State, Wanted};
use serde_json::json;

use super::args::{self, BuildArgs, Format, ModelArgs};
use super::given;
use super::times::{self, Prediction};
use super::{Context, load, output, run};
use graphc::error::{Error, Result};

/// Time a model on random inputs.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    build: BuildArgs,
    /// Where to run: cpu, hip or hip:N (an AMD GPU; rocm means the same), cuda or cuda:N (an NVIDIA GPU), or auto (the
    /// first GPU, or else the CPU). Several share the model: hip:0,1, cuda:0,1, or cpu,cpu to try that out.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Predict the time on an emulated GPU of the target instead of measuring one: kernel by kernel, and of the whole
    /// plan.
    #[arg(long, requires = "target", conflicts_with_all = ["device", "threads", "profile", "runs"])]
    emulate: bool,
    /// The GPU whose time is predicted, for instance gfx942.
    #[arg(long, requires = "emulate")]
    target: Option<String>,
    /// The shader clock that times are predicted at, in GHz; by default between the boost clock and what dense matrix
    /// work settles at.
    #[arg(long, value_name = "GHZ", value_parser = args::clock, requires = "emulate")]
    clock: Option<f64>,
    /// Predict launches whose code no cache holds, as after many other kernels; by default each follows another of its
    /// kernel.
    #[arg(long, requires = "emulate")]
    cold_code: bool,
    /// Write the first issues of the longest launch's waves to a file for ui.perfetto.dev.
    #[arg(long, value_name = "FILE", requires = "emulate")]
    trace: Option<std::path::PathBuf>,
    /// Threads of the CPU device, 1 to 1024; by default one a core.
    #[arg(long, value_parser = args::threads)]
    threads: Option<usize>,
    /// How many runs are timed, after a fifth as many (at least 2) that are not.
    #[arg(long, default_value_t = 20, value_parser = args::runs)]
    runs: usize,
    /// Inputs by name; made up where they are missing.
    #[arg(long, value_name = "FILE")]
    inputs: Vec<std::path::PathBuf>,
    /// Also print the time of each step in microseconds, of as many runs more (`graphc profile` says more).
    #[arg(long)]
    profile: bool,
    /// Keep inputs and outputs on the device, so that no copy is timed.
    #[arg(long, conflicts_with = "emulate")]
    resident: bool,
    /// Begin so many runs before the first is waited for, and time all of them together: the time of each is their
    /// share. Several devices with layers each are busy at once that way.
    #[arg(long, default_value_t = 1, value_parser = overlap, conflicts_with = "emulate")]
    overlap: usize,
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Reads a number of runs at once.
fn overlap(text: &str) -> std::result::Result<usize, String> {
    args::whole(text, 1..=64)
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    let given = given::Given::read(&args.inputs)?;
    given.with_model(&args.model, context, |model| match &args.target {
        Some(target) => predict(args, model, target, &given, context),
        None => measure(args, model, &given, context),
    })
}

fn measure(args: &Args, model: &ModelArgs, given: &given::Given, context: &Context) -> Result<()> {
    let device = run::open(&args.device, context)?;
    let start = Instant::now();
    let (program, variant) = run::program(model, &args.build, &device, context)?;
    let compile = start.elapsed();
    let plan = &runtime::device::whole_plan(&program, variant)?;
    let inputs = given.inputs(plan, Some(0))?;
    let shapes = inputs.iter().map(|(n, t)| (n.as_str(), t.shape.as_slice())).collect();
    let declared: Vec<_> = plan.inputs.iter().map(|p| (p.name.as_str(), &p.ty)).collect();
    let bindings = ir::graph::bind_shapes(&plan.symbols, &declared, &shapes)?;
    let options = context.settings.loading(LoadOptions {
        threads: args.threads.unwrap_or_default(),
        ..LoadOptions::default()
    });
    let threads = options.threads;
    let start = Instant::now();
    let executable = device.load(program.clone(), variant, &options)?;
    let loading = start.elapsed();
    let peak = executable.memory(&bindings)?.peak();
    // As a session runs it: what is kept from run to run stays on the device.
    let links = Link::of_plan(executable.plan());
    let state = match links.is_empty() {
        true => None,
        false => Some(State::new(&executable, links)?),
    };
    let all = inputs.clone();
    let mut inputs = inputs;
    for link in state.iter().flat_map(State::links) {
        if let (Some(state), Some(tensor)) = (&state, inputs.shift_remove(&link.input)) {
            state.set(&executable, &link.input, &tensor)?;
        }
    }
    let uploaded: Vec<(&str, DeviceTensor)> = match args.resident {
        true => inputs
            .iter()
            .map(|(name, tensor)| Ok((name.as_str(), executable.upload(tensor)?)))
            .collect::<Result<_>>()?,
        false => Vec::new(),
    };
    let wanted = if args.resident {
        Wanted::device()
    } else {
        Wanted::host()
    };
    let begin = || {
        let given: Vec<(&str, Given)> = match args.resident {
            true => uploaded
                .iter()
                .map(|(name, tensor)| (*name, Given::from(tensor)))
                .collect(),
            false => inputs
                .iter()
                .map(|(name, tensor)| (name.as_str(), Given::from(tensor)))
                .collect(),
        };
        match &state {
            Some(state) => state.submit(&executable, given, &wanted),
            None => executable.submit(given, &wanted),
        }
    };
    let once = || -> Result<()> {
        if args.resident || state.is_some() {
            begin()?.wait()?;
        } else {
            executable.run(&inputs)?;
        }
        Ok(())
    };
    let progress = output::bar(context, "running", args.runs);
    for _ in 0..(args.runs / 5).max(2) {
        once()?;
    }
    let mut times: Vec<f64> = Vec::with_capacity(args.runs);
    if args.overlap > 1 {
        let mut begun = VecDeque::with_capacity(args.overlap);
        for _ in 0..args.overlap {
            begun.push_back(begin()?);
        }
        let mut first = None;
        let mut ended = 0u32;
        while let Some(run) = begun.pop_front() {
            run.wait()?;
            // From the end of the first, when as many are under way as ever. Runs at once end at about the same time,
            // so that what lies between two of them says nothing.
            let first = *first.get_or_insert_with(Instant::now);
            if ended > 0 {
                times = vec![first.elapsed().as_secs_f64() * 1e3 / f64::from(ended)];
            }
            ended += 1;
            progress.inc(1);
            if ended as usize + begun.len() <= args.runs {
                begun.push_back(begin()?);
            }
        }
    }
    while times.len() < args.runs && args.overlap == 1 {
        let start = Instant::now();
        once()?;
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
    // In runs of their own: what times steps takes time too.
    let profiled = match args.profile {
        true => {
            executable
                .profile(
                    &all,
                    &ProfileOptions {
                        runs: args.runs,
                        warm_up: 0,
                    },
                )?
                .steps
        }
        false => Vec::new(),
    };
    let named: Vec<(String, f64)> = profiled
        .iter()
        .map(|step| (format!("{} [{}]", step.name, step.engine), step.median_us))
        .collect();
    let steps: Vec<_> = named
        .iter()
        .map(|(name, us)| json!({ "step": name, "us": us }))
        .collect();
    match args.format {
        Format::Json => output::print_json(&json!({
            "median_ms": median, "min_ms": times[0], "compile_ms": compile.as_secs_f64() * 1e3,
            "load_ms": loading.as_secs_f64() * 1e3, "planned_peak_bytes": peak, "threads": threads, "runs": args.runs,
            "device": device.device.name(), "resident": args.resident, "overlap": args.overlap,
            "gflops": flops / times[0] / 1e6, "steps": steps,
        })),
        Format::Text => {
            let place = match device.target.is_gpu() {
                true => device.device.name().to_owned(),
                false => format!("{threads} threads"),
            };
            let (best, gflops) = (times[0], flops / times[0] / 1e6);
            let timed = match args.overlap {
                1 => format!(
                    "median {median:.3} ms, best {best:.3} ms of {} runs on {place} ({gflops:.1} GFLOP/s at best)",
                    args.runs
                ),
                at_once => format!(
                    "{best:.3} ms a run, of {} with {at_once} at once on {place} ({gflops:.1} GFLOP/s)",
                    args.runs
                ),
            };
            let mut text = format!(
                "{timed}\ncompiled in {:.1} ms, loaded in {:.1} ms, planned peak {}\n",
                compile.as_secs_f64() * 1e3,
                loading.as_secs_f64() * 1e3,
                output::bytes(peak as u64)
            );
            for (name, us) in &named {
                text += &format!("{us:>10.1} us  {name}\n");
            }
            output::print(&text)
        }
    }
}

/// Predicts the time of the plan for a target.
fn predict(args: &Args, model: &ModelArgs, target: &str, given: &given::Given, context: &Context) -> Result<()> {
    let targets = args::targets(target)?;
    let [wanted] = targets.as_slice() else {
        return Err(Error::Config("--target: predict one target at a time".to_owned()));
    };
    let mut loaded = load::load_for(model, &args.build, &targets, context)?;
    let variant = load::variant(&loaded.program, wanted)?;
    load::compile_kernels(&mut loaded.program, context)?;
    let inputs = given.inputs(&loaded.program.variants[variant].plan, Some(0))?;
    let prediction = Prediction {
        clock: args.clock,
        cold_code: args.cold_code,
        trace: args.trace.as_deref(),
    };
    let predicted = times::predict(&loaded.program, variant, &inputs, &prediction, context)?;
    match args.format {
        Format::Json => output::print_json(&json!({
            "predicted_ms": predicted.micros / 1e3, "in_sequence_ms": predicted.in_sequence / 1e3, "target": target,
            "gpu": predicted.gpu, "kernels": predicted.kernels, "untimed": predicted.untimed,
        })),
        Format::Text => output::print(&format!(
            "predicted {:.3} ms on {target}{} ({:.3} ms one step after another){}\n{}",
            predicted.micros / 1e3,
            match wanted.name == predicted.gpu {
                true => String::new(),
                false => format!(", as {} runs its code", predicted.gpu),
            },
            predicted.in_sequence / 1e3,
            match predicted.untimed.len() {
                0 => String::new(),
                n => format!(", without {n} library calls that were not timed"),
            },
            times::table(&predicted.kernels, &predicted.untimed)
        )),
    }
}
