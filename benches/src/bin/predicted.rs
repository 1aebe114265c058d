//! graphc's own kernels with their predicted times, per model and GPU: the list of what to mend next.
//!
//! ```text
//! cargo build --release -p graphc-cli
//! cargo run --release -p graphc-benches --bin predicted > benches/predicted.md
//! ```
//!
//! The models are those of the examples with random weights, at the hints of their symbols; files that graphc loads may
//! be named instead. The numbers are predictions (`emu/TIMING.md`), on no GPU, and the same on each machine.

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use examples::models::minilm::{Config, MiniLm};
use examples::models::resnet::ResNet;
use graphc::driver::{self, BuildOptions, Model};
use graphc::emulate::{self, TimedKernel};
use graphc::frontend::nn::Params;
use graphc::ir::{DType, Graph, Target};
use graphc::passes::OptLevel;
use graphc::{Error, Result};
use graphc_benches::predict::Predictor;

#[derive(Parser)]
struct Args {
    /// `resnet50`, `minilm`, or files that graphc loads.
    #[arg(default_values_t = ["resnet50".to_owned(), "minilm".to_owned()])]
    models: Vec<String>,
    /// The graphc that is started to compile and disassemble kernels.
    #[arg(long, default_value = "target/release/graphc")]
    graphc: PathBuf,
    /// The GPUs.
    #[arg(long, value_delimiter = ',', default_value = "gfx90a,gfx942,gfx950,gfx1100,gfx1201")]
    targets: Vec<String>,
    /// The type that is computed in.
    #[arg(long, default_value = "f16")]
    dtype: String,
    /// Kernels of each model that are listed, those that take longest first.
    #[arg(long, default_value_t = 12)]
    kernels: usize,
}

/// A model on a GPU.
struct Row {
    model: String,
    part: String,
    target: String,
    /// Microseconds of the plan, its lanes side by side, and of its steps one after the other.
    micros: f64,
    in_sequence: f64,
    kernels: Vec<TimedKernel>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let predictor = Predictor::new(&args.graphc)?;
    let mut rows = Vec::new();
    for model in &args.models {
        let (name, graph) = graph(model)?;
        for target in &args.targets {
            let start = Instant::now();
            rows.push(predict(&args, &predictor, &name, &graph, target)?);
            eprintln!(
                "{name} on {target}: {:.1} s, at most {} MiB of memory so far",
                start.elapsed().as_secs_f64(),
                graphc_benches::peak_memory() >> 20
            );
        }
    }
    println!(
        "# Predicted times of graphc's own kernels, {}\n\n\
         Made by `cargo run --release -p graphc-benches --bin predicted`: predictions by `emu` (`emu/TIMING.md`), measured on\n\
         no GPU. A kernel's name and launches stand for one grid. `achievable` is the least time that the kernel's bytes at\n\
         DRAM's achieved rate and its matrix work need, over the predicted time.\n",
        args.dtype
    );
    summary(&rows);
    rows.iter().for_each(|row| details(row, args.kernels));
    Ok(())
}

/// A model of the examples, or what a file holds.
fn graph(model: &str) -> Result<(String, Graph)> {
    let recorded = |error: &dyn std::fmt::Display| Error::Config(format!("{model}: {error}"));
    let params = Params::random(1);
    let graph = match model {
        "resnet50" => ResNet::resnet50(&params)
            .map_err(|error| recorded(&error))?
            .graph()
            .map_err(|error| recorded(&error))?,
        "minilm" => MiniLm::load(&params, Config::default())
            .map_err(|error| recorded(&error))?
            .graph()
            .map_err(|error| recorded(&error))?,
        file => match driver::load(file.as_ref(), &Default::default())? {
            Model::Graph(graph) => *graph,
            Model::Program(_) => {
                return Err(Error::Config(format!(
                    "{file} is an artifact: name the model that it was made from"
                )));
            }
        },
    };
    let path = PathBuf::from(model);
    let name = path
        .file_stem()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned();
    Ok((name, graph))
}

fn predict(args: &Args, predictor: &Predictor, name: &str, graph: &Graph, target: &str) -> Result<Row> {
    let parsed: Target = target
        .parse()
        .map_err(|error| Error::Config(format!("--targets: {error}")))?;
    let dtype: DType = args
        .dtype
        .parse()
        .map_err(|error| Error::Config(format!("--dtype: {error}")))?;
    let mut options = BuildOptions::new(vec![parsed], OptLevel::O2).dtype(Some(dtype));
    options.optimize.libraries = false;
    let (built, steps) = predictor.steps(graph, &options)?;
    let plan = &built.program.variants[0].plan;
    let kernels = emulate::timed(plan, &steps);
    Ok(Row {
        model: name.to_owned(),
        part: kernels
            .first()
            .map_or(String::new(), |kernel| kernel.report.part.to_string()),
        target: target.to_owned(),
        micros: emulate::makespan(plan, &steps),
        in_sequence: steps.iter().map(|step| step.micros).sum(),
        kernels,
    })
}

/// What part of the time bytes and matrix work need at achieved rates.
fn achievable<'a>(kernels: impl Iterator<Item = &'a TimedKernel>) -> f64 {
    let (mut least, mut all) = (0.0, 0.0);
    for kernel in kernels {
        least += kernel.total_micros * kernel.report.roofline;
        all += kernel.total_micros;
    }
    100.0 * least / f64::max(all, f64::MIN_POSITIVE)
}

fn summary(rows: &[Row]) {
    println!(
        "| model | GPU | target | ms | ms one after the other | launches | us of launches themselves | achievable |\n\
         |---|---|---|---|---|---|---|---|"
    );
    for row in rows {
        let launches: usize = row.kernels.iter().map(|kernel| kernel.launches).sum();
        let launching: f64 = (row.kernels.iter())
            .map(|kernel| kernel.launches as f64 * kernel.report.launch_micros)
            .sum();
        println!(
            "| {} | {} | {} | {:.3} | {:.3} | {launches} | {launching:.0} | {:.0}% |",
            row.model,
            row.part,
            row.target,
            row.micros / 1e3,
            row.in_sequence / 1e3,
            achievable(row.kernels.iter())
        );
    }
}

fn details(row: &Row, count: usize) {
    println!(
        "\n## {}, {}\n\n| kernel | launches | us | of all | bound by | achievable | waits mostly for |\n|---|---|---|---|---|---|---|",
        row.model, row.target
    );
    let share = |micros: f64| 100.0 * micros / f64::max(row.in_sequence, f64::MIN_POSITIVE);
    let (shown, rest) = row.kernels.split_at(count.min(row.kernels.len()));
    for kernel in shown {
        let report = &kernel.report;
        println!(
            "| {} {:?} | {} | {:.1} | {:.0}% | {} | {:.0}% | {} |",
            kernel.name,
            kernel.grid,
            kernel.launches,
            kernel.total_micros,
            share(kernel.total_micros),
            report.bound,
            100.0 * report.roofline,
            report.stalls.first().map_or("", |stall| &stall.name)
        );
    }
    if !rest.is_empty() {
        let launches: usize = rest.iter().map(|kernel| kernel.launches).sum();
        let micros: f64 = rest.iter().map(|kernel| kernel.total_micros).sum();
        println!(
            "| {} others | {launches} | {micros:.1} | {:.0}% | | {:.0}% | |",
            rest.len(),
            share(micros),
            achievable(rest.iter())
        );
    }
}
