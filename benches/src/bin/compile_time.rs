//! How long graphs take to compile, up to the sources: real models, and generated graphs of growing size.
//!
//! ```text
//! cargo run --release -p graphc-benches --bin compile_time -- [MODEL.onnx …]
//! ```
//!
//! Prints time and memory, and for the generated graphs the growth between sizes: time ratio over node ratio, which is
//! 1 for linear work and log n₂ / log n₁ (at most 1.2 here) for n·log n.

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use graphc::driver::{BuildOptions, Model, build, load};
use graphc::ir::Target;
use graphc::passes::OptLevel;
use graphc_benches::{layers, median, peak_memory};

#[derive(Parser)]
struct Args {
    /// Models to import and compile.
    models: Vec<PathBuf>,
    #[arg(long, default_value = "gfx90a")]
    target: String,
    /// The largest generated graph.
    #[arg(long, default_value_t = 30_000)]
    largest: usize,
}

fn main() -> graphc::Result<()> {
    let args = Args::parse();
    let target: Target = args.target.parse()?;
    let options = || {
        let mut options = BuildOptions::new(vec![target], OptLevel::O2);
        options.optimize.verify = false;
        options
    };
    println!(
        "{:<28} {:>8} {:>10} {:>10} {:>9} {:>10}",
        "graph", "nodes", "import ms", "build ms", "launches", "peak MiB"
    );
    for path in &args.models {
        let (mut imports, mut builds, mut last) = (Vec::new(), Vec::new(), (0, 0));
        for _ in 0..5 {
            let start = Instant::now();
            let Model::Graph(graph) = load(path, &Default::default())? else {
                continue;
            };
            imports.push(start.elapsed().as_secs_f64() * 1e3);
            let start = Instant::now();
            let built = build(&graph, &options())?;
            builds.push(start.elapsed().as_secs_f64() * 1e3);
            let (launches, calls) = built.program.variants[0].plan.launches();
            last = (graph.nodes().len(), launches + calls);
        }
        println!(
            "{:<28} {:>8} {:>10.1} {:>10.1} {:>9} {:>10}",
            path.file_name().unwrap_or_default().to_string_lossy(),
            last.0,
            median(&mut imports),
            median(&mut builds),
            last.1,
            peak_memory() >> 20
        );
    }
    let mut before: Option<(usize, f64)> = None;
    for size in [1_000, 3_000, 10_000, 30_000]
        .into_iter()
        .filter(|n| *n <= args.largest)
    {
        let graph = layers(size);
        let nodes = graph.nodes().len();
        let mut times = Vec::new();
        let mut launches = 0;
        for _ in 0..if size > 10_000 { 1 } else { 3 } {
            let start = Instant::now();
            let built = build(&graph, &options())?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            launches = built.program.variants[0].plan.launches().0;
        }
        let time = median(&mut times);
        let growth = before.map(|(n, t)| (time / t) / (nodes as f64 / n as f64));
        println!(
            "{:<28} {:>8} {:>10} {:>10.1} {:>9} {:>10}{}",
            "generated",
            nodes,
            "-",
            time,
            launches,
            peak_memory() >> 20,
            growth.map_or(String::new(), |g| format!("   growth {g:.2}"))
        );
        before = Some((nodes, time));
    }
    Ok(())
}
