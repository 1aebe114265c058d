//! `graphc quantize`: a model to one with integers, and what that costs.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use frontend::onnx::ModelFile;
use indicatif::ProgressBar;
use ir::{Graph, Recipe};
use passes::quantize::recipe::{Decision, FoundLayer, Scheme, stored};
use serde_json::json;

use super::args::{self, Format, ModelArgs};
use super::compile::graph_text;
use super::given::Given;
use super::times::{self, Prediction};
use super::{Context, load, output};
use graphc::driver::{self, BuildOptions, Model};
use graphc::error::{Error, Result};
use graphc::quantize::{
    Inputs, Method, Options, Predicted, Progress, Quantized, Report, Rounding, follow, predict, quantize, samples,
};

/// How many layers the text shows, the worst first; JSON has all.
const SHOWN: usize = 12;
/// Samples of `--calibrate random`.
const RANDOM_SAMPLES: usize = 4;

/// Quantise a model to int8 or int4, and say what that costs.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Write the model to this file: .onnx (of an ONNX model), .gir, or .graphc with --target. Without it, only the
    /// report is printed.
    #[arg(short, long, value_name = "FILE", value_parser = args::output())]
    output: Option<PathBuf>,
    /// What becomes integers.
    #[arg(long, value_enum, required_unless_present = "recipe")]
    scheme: Option<SchemeName>,
    /// Neighbours along the depth of a product that share a scale; by default, of int4 weights, the largest divisor of
    /// the depth up to 128.
    #[arg(long, value_name = "SIZE", value_parser = group)]
    group: Option<i64>,
    /// Use no zero points. Weights of 8 bits have none anyway.
    #[arg(long)]
    symmetric: bool,
    /// One scale for a weight of 8 bits, not one a column.
    #[arg(long)]
    per_tensor: bool,
    /// Leave out the layers of this name; `*` stands for any text and `?` for any character. May be given several
    /// times.
    #[arg(long, value_name = "NAME")]
    exclude: Vec<String>,
    /// Calibration data: a file of arrays, the inputs of one run, or a folder of such files. `random` makes some up,
    /// which is good for timing alone.
    #[arg(long, value_name = "PATH")]
    calibrate: Option<PathBuf>,
    /// How the range of a layer's operand is chosen.
    #[arg(long, value_enum, default_value = "min-max")]
    method: MethodName,
    /// How many percent of the numbers --method percentile keeps inside.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    percentile: Option<f64>,
    /// How weights become integers.
    #[arg(long, value_enum, default_value = "nearest")]
    rounding: RoundingName,
    /// Leave out layers, the worst first, until the relative error of no output is above this.
    #[arg(long, value_name = "ERROR", value_parser = args::tolerance)]
    max_error: Option<f64>,
    /// Follow a recipe that --save-recipe wrote.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scheme", "group", "symmetric", "per_tensor", "exclude", "percentile", "max_error"])]
    recipe: Option<PathBuf>,
    /// Write what was decided as JSON.
    #[arg(long, value_name = "FILE", value_parser = args::output())]
    save_recipe: Option<PathBuf>,
    /// Targets, separated by commas, of a .graphc file, and for which times before and after are predicted: by the
    /// roofline of each step.
    #[arg(long)]
    target: Option<String>,
    /// Predict the times on emulated GPUs of the targets.
    #[arg(long, requires = "target")]
    emulate: bool,
    /// Threads of the calibration runs, 1 to 1024; by default one a core.
    #[arg(long, value_parser = args::threads)]
    threads: Option<usize>,
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SchemeName {
    /// Weights to i8.
    WeightsInt8,
    /// Weights of products to 4 bits in groups, those of convolutions to i8.
    WeightsInt4,
    /// Weights and activations to i8, by the ranges of calibration data.
    StaticInt8,
    /// Weights to i8, activations to u8 by each run's own range.
    DynamicInt8,
    /// Weights to f8e4m3fn.
    WeightsFp8,
    /// Weights and activations to f8e4m3fn, by the ranges of calibration data.
    StaticFp8,
    /// Weights to f8e4m3fn, activations too by each run's own largest magnitude.
    DynamicFp8,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MethodName {
    /// From the smallest to the largest number.
    MinMax,
    /// Without the outermost numbers.
    Percentile,
    /// What keeps most of the distribution's information.
    Entropy,
    /// What makes the least mean square error.
    Mse,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RoundingName {
    /// To the nearest integer.
    Nearest,
    /// Rows make up for the errors of those before (GPTQ), by calibration data.
    Gptq,
    /// To the nearest, after inputs that carry much in calibration data were scaled down and their weights up (AWQ).
    Awq,
}

fn group(text: &str) -> std::result::Result<i64, String> {
    args::whole(text, 1..=1 << 30).map(|size| size as i64)
}

fn percent(text: &str) -> std::result::Result<f64, String> {
    let value = text.trim().parse::<f64>().ok().filter(|v| *v > 50.0 && *v <= 100.0);
    value.ok_or_else(|| "a share of the numbers is above 50 and at most 100 percent: 99.9".to_owned())
}

impl Args {
    fn options(&self, context: &Context) -> Result<Options> {
        let scheme = match self.scheme {
            Some(SchemeName::WeightsInt8) | None => Scheme::WeightsInt8,
            Some(SchemeName::WeightsInt4) => Scheme::WeightsInt4,
            Some(SchemeName::StaticInt8) => Scheme::StaticInt8,
            Some(SchemeName::DynamicInt8) => Scheme::DynamicInt8,
            Some(SchemeName::WeightsFp8) => Scheme::WeightsFp8,
            Some(SchemeName::StaticFp8) => Scheme::StaticFp8,
            Some(SchemeName::DynamicFp8) => Scheme::DynamicFp8,
        };
        let wrong = |text: &str| Err(Error::Config(text.to_owned()));
        if self.group.is_some() && !scheme.is_weight_only() {
            return wrong(
                "--group: products of quantised operands have one scale a column; groups are for weights-int8, weights-int4 and \
                 weights-fp8",
            );
        }
        if self.per_tensor && (self.group.is_some() || scheme == Scheme::WeightsInt4) {
            return wrong(
                "--per-tensor is one scale for a whole weight; int4 weights and --group have one for each group",
            );
        }
        if self.percentile.is_some() && self.method != MethodName::Percentile {
            return wrong("--percentile is of --method percentile");
        }
        if self.method != MethodName::MinMax && !scheme.needs_ranges() {
            return wrong(
                "--method chooses ranges of activations, which --scheme static-int8 and static-fp8 alone have",
            );
        }
        let for_integers = matches!(self.method, MethodName::Entropy | MethodName::Mse);
        if for_integers && scheme.is_float() {
            return wrong(
                "--method entropy and mse weigh the steps of integers; 8-bit floats take --method min-max or percentile",
            );
        }
        if self.rounding == RoundingName::Gptq && scheme.is_float() {
            return wrong("--rounding gptq chooses integers; 8-bit floats are rounded to the nearest");
        }
        if self.rounding == RoundingName::Awq && !matches!(scheme, Scheme::WeightsInt4 | Scheme::WeightsInt8) {
            return wrong(
                "--rounding awq scales inputs for integer weights alone: it is for --scheme weights-int4 and weights-int8",
            );
        }
        Ok(Options {
            decision: Decision {
                group: self.group,
                symmetric: self.symmetric,
                per_tensor: self.per_tensor,
                exclude: self.exclude.clone(),
                ..Decision::new(scheme)
            },
            method: match self.method {
                MethodName::MinMax => Method::MinMax,
                MethodName::Percentile => Method::Percentile(self.percentile.unwrap_or(99.99)),
                MethodName::Entropy => Method::Entropy,
                MethodName::Mse => Method::Mse,
            },
            rounding: match self.rounding {
                RoundingName::Nearest => Rounding::Nearest,
                RoundingName::Gptq => Rounding::Gptq,
                RoundingName::Awq => Rounding::Awq,
            },
            max_error: self.max_error,
            threads: self.threads.unwrap_or(context.settings.threads),
            ..Options::new(scheme)
        })
    }

    /// What `-o` is to be.
    fn kind(&self) -> Result<Option<Kind>> {
        let Some(path) = &self.output else { return Ok(None) };
        let own = |path: &Path| path.extension().and_then(|e| e.to_str()).map(str::to_owned);
        let model = own(&self.model.model);
        // The name of a device or of standard output says nothing: it is given what the model is.
        let name = own(path).or(model.clone());
        match name.as_deref() {
            Some("gir") => Ok(Some(Kind::Gir)),
            Some("onnx") if model.as_deref() != Some("gir") => Ok(Some(Kind::Onnx)),
            Some("onnx") => Err(Error::Config(format!(
                "-o {}: a .gir graph has no ONNX nodes to write; name a .gir file",
                path.display()
            ))),
            Some("graphc") => match &self.target {
                Some(target) => Ok(Some(Kind::Artifact(args::targets(target)?))),
                None => Err(Error::Config(format!(
                    "-o {}: an artifact is for targets; give --target gfx90a or another of `graphc targets`",
                    path.display()
                ))),
            },
            _ => Err(Error::Config(format!(
                "-o {}: quantised models are written as .onnx, .gir or .graphc",
                path.display()
            ))),
        }
    }
}

enum Kind {
    Onnx,
    Gir,
    Artifact(Vec<ir::Target>),
}

/// Bars on a terminal, one a step.
struct Bars<'a> {
    context: &'a Context,
    bar: std::cell::RefCell<Option<(&'static str, ProgressBar)>>,
}

impl Progress for Bars<'_> {
    fn step(&self, what: &'static str, done: usize, total: usize) {
        let mut current = self.bar.borrow_mut();
        match &*current {
            Some((name, bar)) if *name == what && done > 0 => bar.set_position(done as u64),
            _ => {
                if let Some((_, bar)) = current.take() {
                    bar.finish_and_clear();
                }
                let bar = match total {
                    0..=1 => output::spinner(self.context, what),
                    total => output::bar(self.context, what, total),
                };
                *current = Some((what, bar));
            }
        }
    }
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    let options = args.options(context)?;
    let kind = args.kind()?;
    let targets = args
        .target
        .as_deref()
        .map(args::targets)
        .transpose()?
        .unwrap_or_default();
    if let Some(target) = targets.iter().find(|target| args.emulate && !target.is_gpu()) {
        return Err(Error::Config(format!(
            "--emulate: {target} is no GPU; leave it out of --target, or leave --emulate out"
        )));
    }
    let read = args.recipe.iter().chain(args.calibrate.iter().filter(|p| p.is_file()));
    for path in args.output.iter().chain(&args.save_recipe) {
        output::check(path, &args.model.model, read.clone())?;
    }
    let recipe = args.recipe.as_deref().map(read_recipe).transpose()?;
    let busy = output::spinner(context, "reading the model");
    let (graph, mut file) = model(args, matches!(kind, Some(Kind::Onnx)))?;
    busy.finish_and_clear();
    let samples = samples(args, &graph, context)?;
    let bars = Bars {
        context,
        bar: Default::default(),
    };
    let refuses = |layer: &FoundLayer| {
        let file = file.as_ref()?;
        file.refuses(&layer.name, &layer.weight.shape)
    };
    let mut made = match recipe {
        Some(recipe) => follow(&graph, recipe, &samples, options.threads, &bars)?,
        None => quantize(&graph, &samples, &options, &refuses, &bars)?,
    };
    if let Some((_, bar)) = bars.bar.take() {
        bar.finish_and_clear();
    }
    made.report.predicted = match args.emulate {
        true => emulated(&graph, &made.graph, &targets, samples.first(), context)?,
        false => predict(&graph, &made.graph, &targets, samples.first())?,
    };
    let written = match (&args.output, kind) {
        (Some(path), Some(kind)) => Some((path, write(path, kind, &graph, file.as_mut(), &made, args, context)?)),
        _ => None,
    };
    if let Some(path) = &args.save_recipe {
        let text = serde_json::to_string_pretty(&made.recipe).map_err(|e| Error::Config(e.to_string()))?;
        output::save(path, &(text + "\n"))?;
    }
    if let Some((path, bytes)) = written {
        output::note(context, &format!("{}: {}", path.display(), output::bytes(bytes)));
    }
    let outputs = args.output.iter().chain(&args.save_recipe);
    let stdout_is_taken = outputs.into_iter().any(|path| ir::file::is_stdout(path));
    match args.format {
        Format::Text if stdout_is_taken => output::note(context, text(&made.report).trim_end()),
        Format::Json if stdout_is_taken => {}
        Format::Text => output::print(&text(&made.report))?,
        Format::Json => output::print_json(&json!(made.report))?,
    }
    Ok(())
}

/// Reads the model as a graph and, where it is to be written as ONNX, as a file.
fn model(args: &Args, as_file: bool) -> Result<(Graph, Option<ModelFile>)> {
    let path = &args.model.model;
    match driver::load(path, &args.model.import()?)? {
        Model::Program(_) => Err(Error::Config(format!(
            "{} is compiled already; quantise the model that it was made from",
            path.display()
        ))),
        Model::Graph(graph) if as_file => {
            let file = ModelFile::read_with(path, args.model.links()).map_err(|error| Error::Import(error.into()))?;
            Ok((*graph, Some(file)))
        }
        Model::Graph(graph) => Ok((*graph, None)),
    }
}

/// Predicts times on emulated GPUs, with a sample's inputs or made-up ones.
fn emulated(
    before: &Graph,
    after: &Graph,
    targets: &[ir::Target],
    sample: Option<&Inputs>,
    context: &Context,
) -> Result<Vec<Predicted>> {
    let one = |graph: &Graph, target: ir::Target| -> Result<(f64, usize)> {
        let mut program = predict::program(graph, target)?;
        load::compile_kernels(&mut program, context)?;
        let plan = &program.variants[0].plan;
        let inputs = match sample {
            Some(sample) => sample.clone(),
            None => Given::read(&[])?.inputs(plan, Some(0))?,
        };
        let prediction = Prediction {
            clock: None,
            cold_code: false,
            trace: None,
        };
        let predicted = times::predict(&program, 0, &inputs, &prediction, context)?;
        if let Some(call) = predicted.untimed.first() {
            output::note(
                context,
                &format!("{target}: {} has no time: {}", call.step, call.reason),
            );
        }
        Ok((predicted.micros, predict::launches(plan)))
    };
    let times = targets.iter().map(|target| {
        let ((before_us, launches_before), (after_us, launches_after)) = (one(before, *target)?, one(after, *target)?);
        Ok(Predicted {
            target: target.to_string(),
            by: "emulated",
            before_us,
            after_us,
            launches_before,
            launches_after,
        })
    });
    times.collect()
}

fn samples(args: &Args, graph: &Graph, context: &Context) -> Result<Vec<Inputs>> {
    match &args.calibrate {
        None => Ok(Vec::new()),
        Some(path) if path.as_os_str() == "random" && !path.exists() => {
            output::note(
                context,
                "--calibrate random: ranges and errors are those of made-up inputs; the model is good for timing alone",
            );
            samples::random(graph, RANDOM_SAMPLES)
        }
        Some(path) => samples::read(path, graph),
    }
}

fn read_recipe(path: &Path) -> Result<Recipe> {
    let text = ir::file::read_to_string(path).map_err(Error::io("read", path))?;
    serde_json::from_str(&text).map_err(|error| {
        Error::Config(format!(
            "--recipe {}: {error}; it is not what --save-recipe writes",
            path.display()
        ))
    })
}

fn write(
    path: &Path,
    kind: Kind,
    graph: &Graph,
    file: Option<&mut ModelFile>,
    made: &Quantized,
    args: &Args,
    context: &Context,
) -> Result<u64> {
    match (kind, file) {
        (Kind::Onnx, Some(file)) => {
            let edit = |error| Error::Edit {
                path: args.model.model.clone(),
                error,
            };
            file.quantize(&stored(graph, &made.recipe)?).map_err(edit)?;
            file.write(path).map_err(Error::io("write", path))
        }
        (Kind::Artifact(targets), _) => {
            let options = BuildOptions::new(targets, passes::OptLevel::default());
            let mut program = driver::build(&made.graph, &options)?.program;
            load::compile_kernels(&mut program, context)?;
            load::save(&program, path)
        }
        _ => {
            let text = graph_text(&made.graph, true);
            output::save(path, &text)?;
            Ok(text.len() as u64)
        }
    }
}

fn text(report: &Report) -> String {
    let mut text = format!(
        "{} layers quantised, {} kept; constants {} -> {}\n",
        report.layers.len(),
        report.kept.len(),
        output::bytes(report.bytes_before as u64),
        output::bytes(report.bytes_after as u64)
    );
    let mut layers: Vec<_> = report.layers.iter().collect();
    let of = |db: Option<f64>| db.unwrap_or(f64::INFINITY);
    layers.sort_by(|a, b| of(a.decibels).total_cmp(&of(b.decibels)));
    text += match report.samples {
        0 => "\nlayers (errors are measured where --calibrate gives data)\n".to_owned(),
        n => {
            let nearest = match layers.iter().any(|l| l.nearest.is_some()) {
                true => " (more than with integers to the nearest)",
                false => "",
            };
            format!(
                "\nlayers, each one's signal over noise{nearest} when it alone is quantised, the worst first, by {n} runs\n"
            )
        }
    }
    .as_str();
    for layer in layers.iter().take(SHOWN) {
        let db = layer.decibels.map_or(String::new(), |db| format!("{db:.1} dB"));
        let gain = match (layer.decibels, layer.nearest) {
            (Some(db), Some(nearest)) => format!(" ({:+.1})", db - nearest),
            _ => String::new(),
        };
        let scaled = if layer.scaled_inputs { ", scaled" } else { "" };
        text += &format!(
            "  {db:>9}{gain}  {}: {}, operand {}{scaled}\n",
            layer.name, layer.weight, layer.activation
        );
    }
    if layers.len() > SHOWN {
        text += &format!("  and {} more; --format json has all\n", layers.len() - SHOWN);
    }
    if !report.kept.is_empty() {
        text += "\nkept\n";
        for kept in report.kept.iter().take(SHOWN) {
            text += &format!("  {}: {}\n", kept.name, kept.reason);
        }
        if report.kept.len() > SHOWN {
            text += &format!("  and {} more; --format json has all\n", report.kept.len() - SHOWN);
        }
    }
    if !report.predicted.is_empty() {
        text += "\npredicted times of a run\n";
    }
    for p in &report.predicted {
        text += &format!(
            "  {}: {:.1} us -> {:.1} us ({:.2}), {} -> {} launches, {}\n",
            p.target,
            p.before_us,
            p.after_us,
            p.after_us / p.before_us,
            p.launches_before,
            p.launches_after,
            p.by
        );
    }
    if !report.outputs.is_empty() {
        text += "\noutputs, with all these layers quantised\n";
    }
    for output in &report.outputs {
        text += &format!(
            "  {}: error {:.3e} relative, {:.3e} at most; {} of {} rows have the same largest element\n",
            output.name, output.relative, output.max_abs, output.same_first, output.rows
        );
    }
    text
}
