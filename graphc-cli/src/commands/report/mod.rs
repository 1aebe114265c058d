//! `graphc report`: one HTML page about a model, for people: graph, fusion, timeline, memory, roofline, figures by
//! target.
//!
//! ```text
//! facts    what the page shows, as one JSON value: inspect's and explain's own, the plan, the timeline
//! page     that value, the style and the script in one file that fetches nothing
//! ```

mod facts;
mod page;

use std::path::PathBuf;

use ir::Target;

use super::args::{self, BuildArgs, ModelArgs};
use super::given::Given;
use super::profile::{self, Measuring};
use super::times::{self, Prediction};
use super::{Context, load, output, run};
use graphc::error::{Error, Result};
use graphc::facts::Contents;

/// Write a page about a model: its graph before and after, what is fused and why not more, a timeline, memory, a
/// roofline, and figures of several targets side by side. One HTML file, which needs no network.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    build: BuildArgs,
    /// Where the page goes.
    #[arg(short, long, value_name = "FILE", value_parser = args::output())]
    output: PathBuf,
    /// The targets, for instance gfx90a,gfx942; without any, the device's, or the cpu, or all that an artifact holds.
    #[arg(long)]
    target: Option<String>,
    /// Predict the timeline of each target on an emulated GPU.
    #[arg(long, requires = "target")]
    emulate: bool,
    /// The shader clock that times are predicted at, in GHz; by default between the boost clock and what dense matrix
    /// work settles at.
    #[arg(long, value_name = "GHZ", value_parser = args::clock, requires = "emulate")]
    clock: Option<f64>,
    /// Measure the timeline of the device's target there: cpu, hip or hip:N, cuda or cuda:N, or auto.
    #[arg(long)]
    device: Option<String>,
    /// How many runs are timed on the device.
    #[arg(long, default_value_t = 20, value_parser = args::runs, requires = "device")]
    runs: usize,
    /// Inputs of what is run by name; made up where they are missing.
    #[arg(long, value_name = "FILE")]
    inputs: Vec<PathBuf>,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    output::check(&args.output, &args.model.model, &args.inputs)?;
    let given = Given::read(&args.inputs)?;
    let mut targets: Vec<Target> = args
        .target
        .as_deref()
        .map(args::targets)
        .transpose()?
        .unwrap_or_default();
    if let Some(cpu) = targets.iter().find(|target| args.emulate && !target.is_gpu()) {
        return Err(Error::Config(format!(
            "--emulate: {cpu} is no GPU; leave it out of --target, or measure it with --device cpu"
        )));
    }
    let device = args
        .device
        .as_deref()
        .map(|name| run::open(name, context))
        .transpose()?;
    if let Some(device) = &device
        && !targets.iter().any(|target| target.runs_on(&device.target))
    {
        targets.push(device.target);
    }
    let mut loaded = match targets.as_slice() {
        [] => load::load(&args.model, &args.build, vec![Target::cpu()], context)?,
        targets => load::load_for(&args.model, &args.build, targets, context)?,
    };
    load::compile_kernels(&mut loaded.program, context)?;
    let contents = Contents::of(&loaded.program, &args.model.model, loaded.graph.is_none())?;
    let mut variants = Vec::new();
    for variant in 0..loaded.program.variants.len() {
        let mut facts = graphc::facts::facts(&loaded.program, variant)?;
        let target = loaded.program.variants[variant].plan.target;
        let mut timeline = None;
        if args.emulate && target.is_gpu() {
            let inputs = given.inputs(&loaded.program.variants[variant].plan, Some(0))?;
            let prediction = Prediction {
                clock: args.clock,
                cold_code: false,
                trace: None,
            };
            let predicted = times::predict(&loaded.program, variant, &inputs, &prediction, context)?;
            timeline = Some(facts::Timeline::predicted(&predicted));
            (facts.timed, facts.untimed) = (predicted.kernels, predicted.untimed);
        }
        if let (Some(name), Some(device)) = (&args.device, &device)
            && device.variant(&loaded.program)? == variant
        {
            let measuring = Measuring {
                model: &args.model,
                build: &args.build,
                device: name,
                runs: args.runs,
                threads: None,
                ranges: false,
            };
            timeline = Some(facts::Timeline::measured(profile::measure(
                &measuring, &given, context,
            )?));
        }
        variants.push(facts::variant(&loaded, variant, &facts, timeline)?);
    }
    let value = facts::all(&loaded, &contents, variants);
    output::save(&args.output, &page::page(&value))?;
    output::note(context, &format!("{}: open it in a browser", args.output.display()));
    Ok(())
}
