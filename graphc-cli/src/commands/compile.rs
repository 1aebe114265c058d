//! `graphc compile`: a model to an artifact, or to the text of a stage.

use std::path::PathBuf;

use clap::ValueEnum;
use ir::graph::print::{PrintOptions, print};
use ir::target::Platform;
use ir::{Graph, Target};

use super::args::{self, BuildArgs, ModelArgs};
use super::{Context, load, output, sources};
use graphc::driver::{self, Model};
use graphc::error::{Error, Result};

/// Compile a model for one or more targets; no GPU is needed.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    build: BuildArgs,
    /// Targets, separated by commas: gfx90a,gfx942. `graphc targets` lists them.
    #[arg(long)]
    target: String,
    /// Write the artifact (with --emit: the text) to this file; with --emit hip, everything to compile by hand to this
    /// folder.
    #[arg(short, long, value_name = "FILE", value_parser = args::output(), required_unless_present = "emit")]
    output: Option<PathBuf>,
    /// Print a stage instead of making an artifact.
    #[arg(long, value_enum, value_name = "STAGE")]
    emit: Option<Stage>,
    /// Print large constants too: a graph that is printed whole can be read back.
    #[arg(long, requires = "emit")]
    weights: bool,
}

/// What can be printed on the way.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stage {
    /// The imported graph.
    Graph,
    /// The imported graph for graphviz.
    Dot,
    /// The optimised graph.
    Core,
    /// Regions in order.
    Schedule,
    /// Kernels, buffers and steps.
    Plan,
    /// HIP C++.
    Hip,
    /// Machine code, disassembled; for NVIDIA's targets the PTX that it is made from.
    Asm,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    let targets = args::targets(&args.target)?;
    if let (Some(Stage::Hip), Some(folder)) = (args.emit, &args.output) {
        return sources::write(&args.model, &args.build, &targets, folder, context);
    }
    if let Some(path) = &args.output {
        output::check(path, &args.model.model, [])?;
    }
    if let Some(stage) = args.emit {
        let text = emit(args, stage, targets, context)?;
        return match &args.output {
            Some(path) => output::save(path, &text),
            None => output::print_whole(&text),
        };
    }
    let Some(path) = &args.output else {
        return Err(Error::Config("-o names no file for the artifact".to_owned()));
    };
    let mut program = load::load_for(&args.model, &args.build, &targets, context)?.program;
    let stats = load::compile_kernels(&mut program, context)?;
    let bytes = load::save(&program, path)?;
    let targets: Vec<String> = program.variants.iter().map(|v| v.plan.target.to_string()).collect();
    output::note(
        context,
        &format!(
            "{}: {} for {}; {} kernels compiled, {} from the cache",
            path.display(),
            output::bytes(bytes),
            targets.join(", "),
            stats.compiles,
            stats.hits
        ),
    );
    Ok(())
}

fn emit(args: &Args, stage: Stage, targets: Vec<Target>, context: &Context) -> Result<String> {
    if matches!(stage, Stage::Graph | Stage::Dot) {
        let Model::Graph(graph) = driver::load(&args.model.model, &args.model.import()?)? else {
            return Err(Error::Config(
                "an artifact no longer holds its graph; emit plan, hip or asm".to_owned(),
            ));
        };
        return Ok(if stage == Stage::Graph {
            graph_text(&graph, args.weights)
        } else {
            ir::graph::dot::dot(&graph)
        });
    }
    let mut loaded = load::load_for(&args.model, &args.build, &targets, context)?;
    let mut text = String::new();
    let several = loaded.program.variants.len() > 1;
    if stage == Stage::Asm {
        return asm(&mut loaded.program, context);
    }
    for (i, variant) in loaded.program.variants.iter().enumerate() {
        if several {
            text += &format!("// target {}\n", variant.plan.target);
        }
        match (stage, loaded.reports.get(i)) {
            (Stage::Core | Stage::Schedule, None) => {
                return Err(Error::Config(
                    "an artifact no longer holds its graph; emit plan, hip or asm".to_owned(),
                ));
            }
            (Stage::Core, Some(r)) => text += &graph_text(&r.core, args.weights),
            (Stage::Schedule, Some(r)) => text += &r.schedule_text(),
            (Stage::Plan, _) => text += &variant.plan.to_string(),
            (Stage::Hip, _) => {
                sources::check(variant)?;
                for source in variant.sources.values() {
                    text += &source.text;
                    text += "\n";
                }
            }
            (Stage::Graph | Stage::Dot | Stage::Asm, _) => {}
        }
    }
    Ok(text)
}

pub(super) fn graph_text(graph: &Graph, weights: bool) -> String {
    match weights {
        true => print(graph, PrintOptions::default()),
        false => graph.to_string(),
    }
}

fn asm(program: &mut ir::Program, context: &Context) -> Result<String> {
    use runtime::compile::Compiler;
    load::compile_kernels(program, context)?;
    let platforms = driver::platforms(program);
    let compiler = driver::compiler(&context.settings, load::worker().as_deref(), platforms)?;
    let mut text = String::new();
    // PTX is made again from the sources: it is not kept, and NVRTC has no disassembler for what is.
    for request in driver::requests(program)
        .iter()
        .filter(|r| r.platform() == Platform::Cuda)
    {
        text += &format!("// {} for {} (PTX)\n", request.name, request.arch);
        text += &compiler.assembly(request)?;
    }
    for variant in program
        .variants
        .iter()
        .filter(|v| v.plan.target.platform == Platform::Hip)
    {
        for code in variant.code.values().flatten() {
            for listing in compiler.disassemble(code)? {
                text += &format!("// {} for {}\n{}", listing.kernel, variant.plan.target, listing.text());
            }
        }
    }
    if text.is_empty() {
        return Err(Error::Config(
            "the cpu target has no machine code of ours; emit plan".to_owned(),
        ));
    }
    Ok(text)
}
