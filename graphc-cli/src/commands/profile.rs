//! `graphc profile`: where the time of a model's runs goes on a device, step by step.

use std::path::PathBuf;
use std::sync::Arc;

use emu::Arch;
use emu::timing::Achieved;
use ir::plan::work::Bound;
use ir::target::Platform;
use ir::{Program, Target};
use runtime::LoadOptions;
use runtime::profile::{Profile, ProfileOptions, StepProfile};
use serde::Serialize;
use serde_json::{Value, json};

use super::args::{self, BuildArgs, Format, ModelArgs};
use super::given::Given;
use super::{Context, output, run};
use graphc::error::Result;

/// Run a model some times on a device and show where the time goes.
///
/// Each step is timed by the device, between two events on its own queue; runs are enqueued step by step, not as one
/// graph. A step's time is the median over the runs. `roofline` is the part of that time which its bytes and operations
/// need at the data sheet's peaks, `achievable` at the rates that micro-benchmarks reach (where they are known for the
/// GPU).
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    build: BuildArgs,
    /// Where to run: cpu, hip or hip:N (an AMD GPU; rocm means the same), cuda or cuda:N (an NVIDIA GPU), or auto (the
    /// first GPU, or else the CPU).
    #[arg(long, default_value = "cpu")]
    device: String,
    /// How many runs are timed, after a fifth as many (at least 2) that are not.
    #[arg(long, default_value_t = 20, value_parser = args::runs)]
    runs: usize,
    /// Threads of the CPU device, 1 to 1024; by default one a core.
    #[arg(long, value_parser = args::threads)]
    threads: Option<usize>,
    /// Inputs by name; made up where they are missing.
    #[arg(long, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// Write the timeline of the run in the middle to a file for ui.perfetto.dev.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Name runs and steps for a profiler that watches this process, by ranges of roctx (rocprofv3) or NVTX (nsys).
    #[arg(long)]
    ranges: bool,
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// What is measured, and how.
pub struct Measuring<'a> {
    pub model: &'a ModelArgs,
    pub build: &'a BuildArgs,
    pub device: &'a str,
    pub runs: usize,
    pub threads: Option<usize>,
    pub ranges: bool,
}

/// A profile with the names of what was measured.
pub struct Measured {
    pub program: Arc<Program>,
    pub variant: usize,
    pub device: String,
    pub profile: Profile,
    /// Of each step, the time at achieved rates.
    pub achievable: Vec<Option<f64>>,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    if let Some(path) = &args.trace {
        output::check(path, &args.model.model, &args.inputs)?;
    }
    let measuring = Measuring {
        model: &args.model,
        build: &args.build,
        device: &args.device,
        runs: args.runs,
        threads: args.threads,
        ranges: args.ranges,
    };
    let measured = measure(&measuring, &Given::read(&args.inputs)?, context)?;
    if let Some(path) = &args.trace {
        output::save(path, &trace(&measured))?;
    }
    match args.format {
        Format::Json => output::print_json(&as_json(&measured)),
        Format::Text => output::print(&text(&measured)),
    }
}

/// Builds a model for a device, loads it there and profiles it.
///
/// # Errors
/// As `graphc run`; no library for the ranges that were asked for.
pub fn measure(measuring: &Measuring<'_>, given: &Given, context: &Context) -> Result<Measured> {
    let device = run::open(measuring.device, context)?;
    let (program, variant) = run::program(measuring.model, measuring.build, &device, context)?;
    let inputs = given.inputs(&runtime::device::whole_plan(&program, variant)?, Some(0))?;
    let options = context.settings.loading(LoadOptions {
        threads: measuring.threads.unwrap_or_default(),
        ranges: measuring.ranges,
        ..LoadOptions::default()
    });
    let busy = output::spinner(context, "running");
    let executable = device.load(program.clone(), variant, &options)?;
    if !executable.plan().states.is_empty() {
        output::note(
            context,
            "states pass through the host in the runs of a profile; `graphc bench` times them where they are kept",
        );
    }
    let profile = executable.profile(
        &inputs,
        &ProfileOptions {
            runs: measuring.runs,
            warm_up: (measuring.runs / 5).max(2),
        },
    )?;
    busy.finish_and_clear();
    let target = program.variants[variant].plan.target;
    let achievable = profile.steps.iter().map(|step| achievable(step, &target)).collect();
    Ok(Measured {
        device: device.device.name().to_owned(),
        program,
        variant,
        profile,
        achievable,
    })
}

/// The microseconds of a step at the rates that its target's memory and matrix units reach; None where they are not
/// known.
fn achievable(step: &StepProfile, target: &Target) -> Option<f64> {
    step.roofline?;
    let achieved = Achieved::of(Arch::by_name(target.name).filter(|_| target.platform == Platform::Hip)?)?;
    let memory = achieved.memory_us(step.work.read_bytes as f64, step.work.written_bytes as f64);
    let peak = target.compute_us(step.work.flops as f64, step.work.product);
    Some(memory.max(peak / achieved.matrix_share))
}

impl Measured {
    fn target(&self) -> &Target {
        &self.program.variants[self.variant].plan.target
    }

    /// The part of a step's time that it would take at achieved rates.
    fn of_achievable(&self, step: usize) -> Option<f64> {
        let median = self.profile.steps[step].median_us;
        self.achievable[step].filter(|_| median > 0.0).map(|us| us / median)
    }

    /// All steps together.
    fn total(&self) -> Total {
        let steps = &self.profile.steps;
        let roofline = steps.iter().filter_map(|step| step.roofline).map(|line| line.micros);
        Total {
            bytes: steps.iter().map(|step| step.work.bytes()).sum(),
            flops: steps.iter().map(|step| step.work.flops).sum(),
            roofline_us: roofline.fold(0.0, |sum, us| sum + us),
        }
    }
}

/// What all steps move and compute.
#[derive(Serialize)]
struct Total {
    bytes: u64,
    flops: u64,
    /// The sum of the steps' least times at the data sheet's peaks.
    roofline_us: f64,
}

/// The profile as one value: what is printed, and what the report shows.
pub fn as_json(measured: &Measured) -> Value {
    let mut value = json!({
        "model": measured.program.name,
        "device": measured.device,
        "target": measured.target().to_string(),
        "total": measured.total(),
    });
    let mut profile = serde_json::to_value(&measured.profile).unwrap_or_default();
    if let Some(steps) = profile["steps"].as_array_mut() {
        for (at, step) in steps.iter_mut().enumerate() {
            step["achievable_us"] = json!(measured.achievable[at]);
            step["of_achievable"] = json!(measured.of_achievable(at));
        }
    }
    if let (Some(value), Value::Object(profile)) = (value.as_object_mut(), profile) {
        value.extend(profile);
    }
    value
}

fn text(measured: &Measured) -> String {
    let Measured { profile, device, .. } = measured;
    let run = &profile.run;
    let mut text = format!(
        "{} on {device} ({}), {} runs: {:.1} us on the device in the middle one, {:.1} us as the host sees it",
        measured.program.name,
        measured.target(),
        profile.runs,
        run.device_us,
        run.host_us,
    );
    if run.enqueue_us > 0.0 {
        text += &format!(", {:.1} us to enqueue", run.enqueue_us);
    }
    text += &format!(
        "\n{:.1} us busy: copies {:.1} us, the rest {:.1} us, both at once {:.1} us; {:.1} us idle in {} gaps\n\
         {:.1} us in {} steps by their medians\n",
        run.busy_us,
        run.copy_us,
        run.compute_us,
        run.overlap_us,
        run.idle_us,
        run.gaps.len(),
        profile.steps_us,
        profile.steps.len(),
    );
    text += &format!(
        "\n{:>10} {:>6} {:>10} {:>9} {:>8} {:>10}  {:<7} {:<8} step\n",
        "us", "of all", "bytes", "MFLOP", "roofline", "achievable", "bound", "lane"
    );
    for (at, step) in profile.steps.iter().enumerate() {
        let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1}%", 100.0 * share));
        text += &format!(
            "{:>10.1} {:>6} {:>10} {:>9.2} {:>8} {:>10}  {:<7} {:<8} {} [{}]\n",
            step.median_us,
            percent((profile.steps_us > 0.0).then(|| step.median_us / profile.steps_us)),
            output::bytes(step.work.bytes()),
            step.work.flops as f64 / 1e6,
            percent(step.of_roofline),
            percent(measured.of_achievable(at)),
            step.roofline.map_or("-", |line| Bound::name(line.bound)),
            step.lane.name(),
            step.name,
            step.engine,
        );
    }
    let total = measured.total();
    text += &format!(
        "{:>10.1} {:>6} {:>10} {:>9.2} {:>8}\n",
        profile.steps_us,
        "",
        output::bytes(total.bytes),
        total.flops as f64 / 1e6,
        if profile.steps_us > 0.0 {
            format!("{:.1}%", 100.0 * total.roofline_us / profile.steps_us)
        } else {
            "-".to_owned()
        },
    );
    text
}

/// The row of a timeline that shows when nothing ran.
const IDLE: usize = 1000;

/// The timeline of the run in the middle as trace events: a row a lane, and one for the gaps.
fn trace(measured: &Measured) -> String {
    let plan = &measured.program.variants[measured.variant].plan;
    let Profile { steps, run, .. } = &measured.profile;
    let row = |id: usize, name: &str| json!({ "ph": "M", "pid": 0, "tid": id, "name": "thread_name", "args": { "name": name } });
    let process = format!("{} on {}", measured.program.name, measured.device);
    let mut events = vec![json!({ "ph": "M", "pid": 0, "name": "process_name", "args": { "name": process } })];
    let lanes: Vec<&str> = plan.lanes.values().map(|lane| lane.kind.name()).collect();
    events.extend(lanes.iter().enumerate().map(|(id, name)| row(id, name)));
    events.push(row(IDLE, "nothing runs"));
    for interval in &run.timeline {
        let Some(step) = steps.get(interval.step) else { continue };
        events.push(json!({
            "ph": "X", "pid": 0, "tid": lanes.iter().position(|lane| *lane == step.lane.name()),
            "ts": interval.start_us, "dur": interval.us, "name": step.name, "cat": step.engine,
            "args": {
                "step": step.step, "read_bytes": step.work.read_bytes, "written_bytes": step.work.written_bytes,
                "flops": step.work.flops, "median_us": step.median_us, "of_roofline": step.of_roofline,
            },
        }));
    }
    for gap in &run.gaps {
        events.push(json!({
            "ph": "X", "pid": 0, "tid": IDLE, "ts": gap.start_us, "dur": gap.us, "name": "idle", "cat": "idle",
            "args": { "before": gap.before },
        }));
    }
    json!({ "displayTimeUnit": "ns", "traceEvents": events }).to_string() + "\n"
}
