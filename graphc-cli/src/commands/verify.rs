//! `graphc verify`: each generated kernel of a model against the reference evaluator, on an emulated GPU.

use std::path::PathBuf;

use serde_json::json;

use super::args::{self, BuildArgs, Format, ModelArgs};
use super::given::Given;
use super::{Context, load, output};
use graphc::emulate::{self, Emulator, Options, Outcome};
use graphc::error::{Error, Result};

/// Check each kernel of a model against the reference evaluator.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    build: BuildArgs,
    /// The GPU, or several: gfx90a,gfx1100.
    #[arg(long)]
    target: String,
    /// Run the kernels' code on an emulated GPU; no GPU is needed.
    #[arg(long)]
    emulate: bool,
    /// Inputs by name: an .npz, .npy, .safetensors or .pb (ONNX's tensors) file. May be given several times; the rest
    /// is made up.
    #[arg(long, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// The seed of made-up inputs.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Leave out kernels that take more points than this: the evaluator is slow. `--size` makes a model smaller.
    #[arg(long, value_name = "POINTS", default_value_t = 50_000_000)]
    limit: u64,
    /// Check each kernel alone, on made-up operands, by about this many of its workgroups, those at the grid's corners
    /// among them: for models whose whole run would take too long.
    #[arg(long, value_name = "WORKGROUPS", conflicts_with_all = ["inputs", "limit"])]
    sample: Option<std::num::NonZeroU64>,
    /// Report races within workgroups too. Slow.
    #[arg(long)]
    races: bool,
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    if !args.emulate {
        return Err(Error::Config(
            "verify runs kernels on an emulated GPU: say --emulate (checking on a GPU is `graphc run --expect`)"
                .to_owned(),
        ));
    }
    let given = Given::read(&args.inputs)?;
    let (mut text, mut values, mut bad, mut idle) = (String::new(), Vec::new(), 0, Vec::new());
    for target in args::targets(&args.target)? {
        let mut program = load::load(&args.model, &args.build, vec![target], context)?.program;
        let variant = load::variant(&program, &target)?;
        load::compile_kernels(&mut program, context)?;
        let busy = output::spinner(context, "running on the emulated GPU");
        let disassembler = emulate::disassembler(&context.settings, load::emulator_worker().as_deref())?;
        let mut options = Options {
            check: Some(args.limit),
            ..Options::of(&context.settings)
        };
        options.launch.races = args.races;
        let outcome = match args.sample {
            Some(n) => emulate::check_samples(&program, variant, &disassembler, &options.launch, n.get(), args.seed)?,
            None => {
                let inputs = given.inputs(&program.variants[variant].plan, Some(args.seed))?;
                Emulator::load(&program, variant, &disassembler, options)?.run(&inputs)?
            }
        };
        busy.finish_and_clear();
        if outcome.verdicts.is_empty() {
            idle.push(target.to_string());
        }
        bad += outcome.verdicts.iter().filter(|v| !v.is_within()).count();
        text += &report(&target.to_string(), &outcome);
        values.push(json!({
            "target": target.to_string(),
            "kernels": outcome.verdicts,
            "unchecked": outcome.unchecked,
        }));
    }
    match args.format {
        Format::Text => output::print(&text)?,
        Format::Json => output::print_json(&json!(values))?,
    }
    if bad > 0 {
        return Err(Error::Mismatch(format!(
            "{bad} kernels differ from the reference evaluator"
        )));
    }
    if !idle.is_empty() {
        return Err(Error::Config(format!(
            "no kernel was checked for {}: raise --limit, make the model smaller with --size, or check a part of each kernel with \
             --sample",
            idle.join(", ")
        )));
    }
    Ok(())
}

fn report(target: &str, outcome: &Outcome) -> String {
    let width = outcome.verdicts.iter().map(|v| v.kernel.len()).max().unwrap_or(0);
    let mut text = format!("{target}: {} kernels checked\n", outcome.verdicts.len());
    for verdict in &outcome.verdicts {
        let (abs, rel) = verdict.worst();
        let word = if verdict.is_within() { "ok" } else { "DIFFERS" };
        text += &format!(
            "  {:width$}  {word}: worst error {abs:.3e} absolute, {rel:.3e} relative\n",
            verdict.kernel
        );
        for result in verdict.results.iter().filter(|r| !r.difference.is_within()) {
            let d = &result.difference;
            text += &format!(
                "    {} ({}): {} of {} elements; worst at {}: got {}, expected {}\n",
                result.param, result.dtype, d.mismatches, d.elements, d.worst, d.got, d.want
            );
        }
    }
    for unchecked in &outcome.unchecked {
        text += &format!("  {:width$}  not checked: {}\n", unchecked.kernel, unchecked.reason);
    }
    text
}
