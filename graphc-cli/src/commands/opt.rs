//! `graphc opt`: the graph passes on a `.gir` text, text out.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ir::graph::print::PrintOptions;

use super::args::{self, BuildArgs};
use super::{Context, output};
use graphc::driver::{self, model::load_gir};
use graphc::error::{Error, Result};

/// Run graph passes on a .gir text and print the graph.
#[derive(clap::Args)]
pub struct Args {
    /// A .gir text.
    file: PathBuf,
    #[command(flatten)]
    build: BuildArgs,
    #[arg(long, default_value = "cpu")]
    target: String,
    /// Stop after this pass.
    #[arg(long, value_name = "PASS")]
    stop_after: Option<String>,
    /// Print the graph after each pass that has this name; `all` for every pass.
    #[arg(long, value_name = "PASS")]
    print_after: Vec<String>,
    /// Print the time of each pass to stderr.
    #[arg(long)]
    time: bool,
}

pub fn run(args: &Args, _context: &Context) -> Result<()> {
    let target = args::targets(&args.target)?[0];
    let graph = load_gir(&args.file)?;
    let mut options = args.build.options(vec![target])?.optimize;
    let names = passes::pipeline::names();
    for name in args.stop_after.iter().chain(&args.print_after) {
        if name != "all" && !names.contains(&name.as_str()) {
            return Err(Error::Config(format!(
                "unknown pass {name:?}; known: {}",
                names.join(", ")
            )));
        }
    }
    options.stop_after = args.stop_after.clone();
    options.verify = true;
    options.evaluator = Some(driver::evaluator());
    let printed: Arc<Mutex<String>> = Arc::default();
    if !args.print_after.is_empty() {
        let (wanted, out) = (args.print_after.clone(), printed.clone());
        options.observer = Some(Arc::new(move |pass, graph| {
            if wanted.iter().any(|w| w == pass || w == "all") {
                let mut out = out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                *out += &format!("// after {pass}\n{}", whole(graph));
            }
        }));
    }
    let (core, report) = passes::optimize(graph, &target, &options)?;
    output::print_whole(&printed.lock().unwrap_or_else(std::sync::PoisonError::into_inner))?;
    output::print_whole(&whole(&core))?;
    if args.time {
        for p in &report.passes {
            let mark = if p.changed { "*" } else { " " };
            let (milliseconds, nodes) = (p.seconds * 1e3, p.nodes);
            output::say(format_args!(
                "{milliseconds:>9.3} ms {nodes:>7} nodes {mark} {}",
                p.pass
            ));
        }
    }
    Ok(())
}

/// The text with all constants: what goes in comes out, and can go in again.
fn whole(graph: &ir::Graph) -> String {
    ir::graph::print::print(graph, PrintOptions::default())
}
