//! `graphc tune`: measures the candidates of a model's products and keeps what was found.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use ir::plan::{Port, StepId};
use ir::{Bindings, Entity, HostTensor, Plan, Program};
use runtime::compile::Compiler;
use runtime::{LoadOptions, ProfileOptions};
use serde_json::json;

use super::args::{self, BuildArgs, Format, ModelArgs};
use super::times::{self, Prediction};
use super::{Context, load, output, run};
use graphc::driver::{self, Model};
use graphc::emulate::CallTimer;
use graphc::error::{Error, Result};
use graphc::random;
use graphc::session::OpenDevice;
use graphc::tune::{Algorithms, Database, Measure, PREDICTED, Place, Times, TuneOptions, Tuned, tune};

/// Find by measuring the fastest mapping of a model's products, or the library's call that is faster, for `--tuning` of
/// the other verbs.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    Run(Box<RunArgs>),
    /// Take the measurements of other files; of the same measurement, the faster is kept.
    Merge {
        /// The file that takes them; made where it is not there.
        #[arg(long, value_name = "FILE")]
        into: PathBuf,
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Print the mapping that was found for each product.
    Show {
        file: PathBuf,
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
    },
}

/// Measure the candidates of a model's products and keep the times.
///
/// A product whose rows the model leaves open is measured for each range of them, a power of two to the next, at sizes
/// within the range.
///
/// What the file has already is not measured again, so a search that was stopped goes on where it was.
#[derive(clap::Args)]
struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    build: BuildArgs,
    /// The file of measurements; made where it is not there.
    #[arg(long, value_name = "FILE")]
    database: PathBuf,
    /// The GPU to measure on: hip, hip:N, cuda or cuda:N.
    #[arg(long, required_unless_present = "emulate")]
    device: Option<String>,
    /// Predict the times on an emulated GPU of the target instead.
    #[arg(long, requires = "target", conflicts_with = "device")]
    emulate: bool,
    /// The GPU whose times are predicted, for instance gfx942.
    #[arg(long, requires = "emulate")]
    target: Option<String>,
    /// How many candidates of each product are measured: those that are predicted to be fastest.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    candidates: u16,
    /// Begin no measurement after this many seconds.
    #[arg(long, value_name = "SECONDS")]
    budget: Option<u32>,
    /// How many runs on a device give a time.
    #[arg(long, default_value_t = 20, value_parser = args::runs)]
    runs: usize,
    /// Threads that work on the host, 1 to 1024; by default one a core.
    #[arg(long, value_parser = args::threads)]
    threads: Option<usize>,
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    match &args.verb {
        Verb::Run(args) => {
            let mut settings = context.settings.clone();
            settings.threads = args.threads.unwrap_or(settings.threads);
            let quiet = context.quiet;
            search(args, &Context { settings, quiet })
        }
        Verb::Merge { into, files } => merge(into, files),
        Verb::Show { file, format } => show(file, *format),
    }
}

fn merge(into: &std::path::Path, files: &[PathBuf]) -> Result<()> {
    // All of them are looked at before anything is made.
    let others: Vec<Database> = files
        .iter()
        .map(|f| Database::read(f))
        .collect::<std::result::Result<_, _>>()?;
    let database = Database::open(into)?;
    let mut taken = 0;
    for other in &others {
        taken += database.merge(other)?;
    }
    output::print(&format!(
        "{taken} measurements of {} files are new or faster\n",
        files.len()
    ))
}

fn show(file: &std::path::Path, format: Format) -> Result<()> {
    let database = Database::read(file)?;
    match format {
        Format::Json => output::print_json(&json!({ "measurements": database.rows()? })),
        Format::Text => {
            let tuning = database.tuning()?;
            let lines = tuning
                .rows()
                .map(|(product, mapping)| format!("{product} => {mapping}\n"));
            let engines = tuning
                .engines()
                .map(|(product, engine)| format!("{product} is faster as {engine}\n"));
            output::print(&lines.chain(engines).collect::<String>())
        }
    }
}

fn search(args: &RunArgs, context: &Context) -> Result<()> {
    let Model::Graph(graph) = driver::load(&args.model.model, &args.model.import()?)? else {
        return Err(Error::Config(format!(
            "{}: what an artifact runs is decided; tune the model that it was made from",
            args.model.model.display()
        )));
    };
    let device = match &args.device {
        Some(name) => Some(run::open(name, context)?),
        None => None,
    };
    let target = match (&device, &args.target) {
        (Some(device), _) if device.target.is_gpu() => device.target,
        (Some(_), _) => {
            return Err(Error::Config(
                "--device: products are tuned for GPUs; give hip or cuda, or --emulate --target".to_owned(),
            ));
        }
        (None, target) => match args::targets(target.as_deref().unwrap_or_default())?.as_slice() {
            [target] if target.is_gpu() => *target,
            _ => return Err(Error::Config("--target: tune for one GPU at a time".to_owned())),
        },
    };
    let build = args.build.options(vec![target])?;
    let database = Database::open(&args.database)?;
    let compiler = driver::compiler(&context.settings, load::worker().as_deref(), [target.platform])?;
    let identity = compiler.identity(target.platform)?;
    let on = match &device {
        Some(device) => device.device.product().to_owned(),
        None => format!("{PREDICTED} {target}"),
    };
    let mut search = context.settings.gpu_search();
    if let (None, Some(folder)) = (&device, CallTimer::libraries(&context.settings)) {
        // Those that a process of their own loads.
        search.libraries.explicit = Some(folder);
    }
    let libraries = runtime::installed::libraries(&search);
    let place = Place {
        on: &on,
        // A prediction names its target, and depends on no driver.
        arch: device.as_ref().map_or("", |device| device.device.arch()),
        driver: device.as_ref().map_or("", |device| device.device.driver()),
        compiler: &identity,
        libraries: &libraries,
    };
    let options = TuneOptions {
        candidates: usize::from(args.candidates),
        budget: args.budget.map(|s| Duration::from_secs(s.into())),
    };
    let quiet = Context {
        settings: context.settings.clone(),
        quiet: true,
    };
    let mut measure = Clock {
        device: device.as_ref(),
        compiler: &compiler,
        runs: args.runs,
        context,
        quiet: &quiet,
    };
    let bar = output::bar(context, "measuring", usize::MAX);
    let progress = |done: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    };
    let found = tune(
        &graph,
        target,
        &build,
        (place, &database),
        &options,
        &mut measure,
        &progress,
    )?;
    bar.finish_and_clear();
    match args.format {
        Format::Json => output::print_json(&as_json(&found, &on)),
        Format::Text => output::print(&text(&found, &on)),
    }
}

/// What the programs of a search are measured on: a device, or the timing model.
struct Clock<'a> {
    device: Option<&'a OpenDevice>,
    compiler: &'a dyn Compiler,
    runs: usize,
    context: &'a Context,
    quiet: &'a Context,
}

impl Measure for Clock<'_> {
    fn times(&mut self, mut program: Program, sizes: &[Bindings]) -> Result<Vec<Times>> {
        driver::compile(&mut program, self.compiler, &|_| {})?;
        match self.device {
            Some(device) => profiled(program, device, (sizes, self.runs), self.context),
            None => sizes
                .iter()
                .map(|sizes| predicted(&program, sizes, self.quiet))
                .collect(),
        }
    }

    fn algorithms(&mut self, program: &Program, sizes: &[Bindings]) -> Result<Vec<Algorithms>> {
        let Some(device) = self.device else {
            let timer = times::call_timer(self.context).map_err(Error::Config)?;
            let plan = &program.variants[0].plan;
            return sizes.iter().map(|sizes| timer.algorithms(plan, sizes)).collect();
        };
        let mut program = program.clone();
        driver::compile(&mut program, self.compiler, &|_| {})?;
        let executable = device.load(
            Arc::new(program),
            0,
            &self.context.settings.loading(LoadOptions::default()),
        )?;
        let at = |sizes: &Bindings| Ok(executable.algorithms(sizes)?.into_iter().collect());
        sizes.iter().map(at).collect()
    }
}

/// Microseconds of each step by the timing model; none of calls that cannot be timed.
fn predicted(program: &Program, sizes: &Bindings, context: &Context) -> Result<Times> {
    let inputs = made_up(&program.variants[0].plan, sizes)?;
    let prediction = Prediction {
        clock: None,
        cold_code: false,
        trace: None,
    };
    let predicted = times::predict(program, 0, &inputs, &prediction, context)?;
    let is_timed = |step: &StepId| !predicted.untimed.iter().any(|call| call.step == step.to_string());
    let spans = predicted.timeline.iter().filter(|span| is_timed(&span.step));
    Ok(spans.map(|span| (span.step, span.micros)).collect())
}

fn made_up(plan: &Plan, sizes: &Bindings) -> Result<IndexMap<String, HostTensor>> {
    let tensor = |port: &Port| Ok((port.name.clone(), random::tensor(&port.name, &port.ty, sizes, 0)?));
    plan.inputs.iter().map(tensor).collect()
}

/// The median of each step over some runs on a device, at each of some sizes.
fn profiled(
    program: Program,
    device: &OpenDevice,
    (sizes, runs): (&[Bindings], usize),
    context: &Context,
) -> Result<Vec<Times>> {
    let program = Arc::new(program);
    let plan = &program.variants[0].plan;
    let executable = device.load(program.clone(), 0, &context.settings.loading(LoadOptions::default()))?;
    let at = |sizes: &Bindings| {
        let profile = executable.profile(&made_up(plan, sizes)?, &ProfileOptions { runs, warm_up: 3 })?;
        let steps = profile.steps.iter();
        Ok(steps.map(|step| (StepId::new(step.step), step.median_us)).collect())
    };
    sizes.iter().map(at).collect()
}

fn as_json(found: &Tuned, on: &str) -> serde_json::Value {
    let products: Vec<_> = found
        .products
        .iter()
        .map(|p| {
            let best = p.best.as_ref();
            json!({
                "product": p.product, "kernels": p.kernels, "sizes": p.sizes.iter().map(sizes_text).collect::<Vec<_>>(),
                "predicted": { "mapping": p.predicted.0, "us": p.predicted.1 },
                "calls": p.calls.iter().map(|(call, us)| json!({ "call": call, "us": us })).collect::<Vec<_>>(),
                "best": best.map(|(mapping, us)| json!({ "mapping": mapping, "us": us })),
            })
        })
        .collect();
    json!({ "on": on, "products": products, "measured": found.measured, "left": found.left, "untimed": found.untimed })
}

/// Sizes as `n=3 m=4`; nothing where a model has none.
fn sizes_text(sizes: &Bindings) -> String {
    let each: Vec<String> = sizes.iter().map(|(symbol, size)| format!("{symbol}={size}")).collect();
    each.join(" ")
}

fn text(found: &Tuned, on: &str) -> String {
    let mut text = format!(
        "{} products on {on}: {} measurements made, {} left\n",
        found.products.len(),
        found.measured,
        found.left
    );
    for p in &found.products {
        text += &format!("\n{} ({})\n", p.product, p.kernels.join(", "));
        let sizes: Vec<String> = p
            .sizes
            .iter()
            .map(sizes_text)
            .filter(|sizes| !sizes.is_empty())
            .collect();
        if !sizes.is_empty() {
            text += &format!("  measured at {}\n", sizes.join(", "));
        }
        let us = |time: Option<f64>| time.map_or("not measured".to_owned(), |us| format!("{us:.1} us"));
        text += &format!("  chosen by prediction: {}, {}\n", us(p.predicted.1), p.predicted.0);
        match &p.best {
            Some((mapping, _)) if *mapping == p.predicted.0 => text += "  nothing was faster\n",
            Some((mapping, time)) => text += &format!("  fastest:              {}, {mapping}\n", us(Some(*time))),
            None => {}
        }
        for (call, time) in &p.calls {
            text += &format!("  as a {call}: {}\n", us(Some(*time)));
        }
    }
    if found.products.is_empty() {
        text += "\nthe model's kernels hold no product with a choice of tilings\n";
    }
    for (call, reason) in &found.untimed {
        text += &format!("\n{call} was not measured: {reason}\n");
    }
    text
}
