//! Convolutions by Winograd's filtering against the sum over the window: predicted times of both, and which the plan
//! takes.
//!
//! ```text
//! cargo build --release -p graphc-cli
//! cargo run --release -p graphc-benches --bin filtered > benches/filtered.md
//! ```
//!
//! The convolutions are those of 3 by 3 taps and stride 1 that ResNet-50 and VGG-16 have, in `f32`. The numbers are
//! predictions (`emu/TIMING.md`), on no GPU, and the same on each machine; beside them are the planner's own, by which
//! it decides.

use std::path::PathBuf;

use clap::Parser;
use graphc::driver::{self, Build, BuildOptions};
use graphc::ir::graph::parse::parse;
use graphc::ir::kernel::Winograd;
use graphc::ir::{Graph, Target};
use graphc::passes::OptLevel;
use graphc::passes::lower::winograd::Filtering;
use graphc::{Error, Result};
use graphc_benches::predict::Predictor;

#[derive(Parser)]
struct Args {
    /// The graphc that is started to compile and disassemble kernels.
    #[arg(long, default_value = "target/release/graphc")]
    graphc: PathBuf,
    /// The GPUs.
    #[arg(long, value_delimiter = ',', default_value = "gfx90a,gfx1100")]
    targets: Vec<String>,
    /// Images at a time.
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    batches: Vec<usize>,
    /// Sizes of the image, which is square, and channels of it and of the result, which are as many.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "56x64,28x128,14x256,7x512,14x512,28x512,56x256"
    )]
    shapes: Vec<String>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let predictor = Predictor::new(&args.graphc)?;
    println!(
        "# Predicted times of convolutions by Winograd's filtering\n\n\
         Made by `cargo run --release -p graphc-benches --bin filtered`: microseconds that `emu` predicts (`emu/TIMING.md`),\n\
         measured on no GPU, and in brackets those by which the planner decides. Launches that a convolution has more than one\n\
         are in its time.\n\n\
         | target | images | image x channels | direct | F(2x2, 3x3) | F(4x4, 3x3): patches, products, pixels | the plan takes | right |\n\
         |---|---|---|---|---|---|---|---|"
    );
    for target in &args.targets {
        for shape in &args.shapes {
            for batch in &args.batches {
                row(&predictor, target, *batch, shape)?;
            }
        }
    }
    Ok(())
}

/// A way to compute a convolution, with what is predicted of it.
struct Timed {
    built: Build,
    /// Of each launch.
    micros: Vec<f64>,
}

impl Timed {
    fn total(&self) -> f64 {
        self.micros.iter().sum()
    }
}

fn row(predictor: &Predictor, target: &str, batch: usize, shape: &str) -> Result<()> {
    let wrong = || Error::Config(format!("--shapes: {shape:?} is no SIZExCHANNELS"));
    let (size, channels) = shape.split_once('x').ok_or_else(wrong)?;
    let text = format!(
        "graph @conv stage=import {{\n x = input \"x\" : f32[{batch}, {size}, {size}, {channels}]\n \
         w = constant random(seed=1) : f32[{channels}, 3, 3, {channels}]\n b = constant random(seed=2) : f32[{channels}]\n \
         c = conv x, w, b {{channels_last, pad_low=[1, 1], pad_high=[1, 1]}}\n y = relu c\n return y as \"y\"\n}}\n"
    );
    let graph = parse(&text).map_err(|error| Error::Config(error.to_string()))?;
    let timed = |filtering| predict(predictor, target, &graph, filtering);
    let direct = timed(Filtering::Never)?;
    let [f2, f4] = Winograd::ALL.map(|winograd| timed(Filtering::Always(winograd)));
    let (f2, f4) = (f2?, f4?);
    let chosen = driver::build(&graph, &options(target, Filtering::Fastest)?)?;
    let taken = chosen.reports[0].filtered.iter().find(|f| f.taken).map(|f| f.winograd);
    let ours = |timed: &Timed| timed.built.reports[0].filtered.first().map(|f| f.predicted);
    let bracket = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1}"));
    let all = [(None, &direct), (Some(Winograd::F2), &f2), (Some(Winograd::F4), &f4)];
    let best = all.iter().map(|(_, t)| t.total()).fold(f64::INFINITY, f64::min);
    let got = all
        .iter()
        .find(|(w, _)| *w == taken)
        .map_or(f64::INFINITY, |(_, t)| t.total());
    let each: Vec<String> = f4.micros.iter().map(|us| format!("{us:.1}")).collect();
    let of_f4 = ours(&f4).map_or(String::new(), |p| {
        format!("{:.1}, {:.1}, {:.1}", p.patches, p.product, p.pixels)
    });
    println!(
        "| {target} | {batch} | {shape} | {:.1} ({}) | {:.1} ({}) | {:.1} ({}): {} ({of_f4}) | {} | {} |",
        direct.total(),
        bracket(ours(&f4).map(|p| p.direct)),
        f2.total(),
        bracket(ours(&f2).map(|p| p.filtered())),
        f4.total(),
        bracket(ours(&f4).map(|p| p.filtered())),
        each.join(", "),
        taken.map_or("direct", Winograd::name),
        match got <= best * 1.02 {
            true => "yes".to_owned(),
            false => format!("{:.0}% slower than the best", 100.0 * (got / best - 1.0)),
        }
    );
    Ok(())
}

fn options(target: &str, filtering: Filtering) -> Result<BuildOptions> {
    let parsed: Target = target
        .parse()
        .map_err(|error| Error::Config(format!("--targets: {error}")))?;
    let mut options = BuildOptions::new(vec![parsed], OptLevel::O2);
    options.optimize.libraries = false;
    options.plan.filtering = filtering;
    Ok(options)
}

fn predict(predictor: &Predictor, target: &str, graph: &Graph, filtering: Filtering) -> Result<Timed> {
    let (built, steps) = predictor.steps(graph, &options(target, filtering)?)?;
    let launches = steps.iter().filter(|step| step.launch().is_some());
    let micros = launches.map(|step| step.micros).collect();
    Ok(Timed { built, micros })
}
