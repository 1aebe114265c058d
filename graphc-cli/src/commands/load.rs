//! From a model file to a program for some targets, for the verbs that need one.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use ir::{Graph, Program, Target};
use runtime::cache::CacheStats;

use super::args::{BuildArgs, ModelArgs};
use super::output::{bar, note, spinner};
use super::{CALLS_VERB, Context, DISASSEMBLER_VERB};
use graphc::driver::{self, Build, Model};
use graphc::error::{Error, Result};
use graphc::options::WORKER_VERB;

/// A program and, when it was just built, what was decided on the way.
pub struct Loaded {
    pub program: Program,
    pub reports: Vec<driver::VariantReport>,
    /// What it was built from; None for an artifact.
    pub graph: Option<Graph>,
}

/// Loads a model and builds it for `targets`, or takes an artifact as it is, with all its variants.
///
/// # Errors
/// As the reader of the file's kind and the driver; an artifact and options of how to compile.
pub fn load(model: &ModelArgs, build: &BuildArgs, targets: Vec<Target>, context: &Context) -> Result<Loaded> {
    let busy = spinner(context, "reading the model");
    let loaded = driver::load(&model.model, &model.import()?)?;
    busy.set_message("compiling the graph");
    of_model(loaded, model, build, targets)
}

fn of_model(loaded: Model, model: &ModelArgs, build: &BuildArgs, targets: Vec<Target>) -> Result<Loaded> {
    match loaded {
        Model::Graph(graph) => {
            let Build { program, reports } = driver::build(&graph, &build.options(targets)?)?;
            Ok(Loaded {
                program,
                reports,
                graph: Some(*graph),
            })
        }
        Model::Program(mut program) => {
            build.refuse_for_artifact(&model.model)?;
            if let Some(limit) = build.max_vram {
                let had: Vec<Target> = program.variants.iter().map(|v| v.plan.target).collect();
                build.refuse_vram(&had)?;
                for variant in program.variants.iter_mut().filter(|v| v.plan.target.is_gpu()) {
                    variant.plan = passes::stream::stream(&variant.plan, limit)?;
                }
            }
            Ok(Loaded {
                program: *program,
                reports: Vec::new(),
                graph: None,
            })
        }
    }
}

/// As [`load`]; what is built for a GPU has the code of its kernels, and is the program that was made of the model
/// before, where that is kept.
///
/// # Errors
/// As [`load`] and [`compile_kernels`].
pub fn load_ready(model: &ModelArgs, build: &BuildArgs, target: Target, context: &Context) -> Result<Program> {
    let busy = spinner(context, "reading the model");
    let loaded = driver::load(&model.model, &model.import()?)?;
    busy.set_message("compiling the graph");
    match loaded {
        Model::Graph(graph) if target.is_gpu() => {
            let compiler = driver::compiler(&context.settings, worker().as_deref(), [target.platform])?;
            let options = build.options(vec![target])?;
            let kernels = |p: runtime::compile::Progress<'_>| {
                busy.set_message(format!("compiling kernels: {} of {}", p.done, p.total));
            };
            let program = driver::program(&graph, &options, &compiler, &context.settings, &kernels)?.program;
            busy.finish_and_clear();
            if let Some(text) = compiler.cache().note() {
                note(context, text);
            }
            Ok(program)
        }
        loaded => Ok(of_model(loaded, model, build, vec![target])?.program),
    }
}

/// As [`load`], and the program has the variants for `targets`, in this order, and no others.
///
/// # Errors
/// As [`load`]; `NoVariant` where an artifact has none for a target.
pub fn load_for(model: &ModelArgs, build: &BuildArgs, targets: &[Target], context: &Context) -> Result<Loaded> {
    let mut loaded = load(model, build, targets.to_vec(), context)?;
    // What was just built has these variants.
    if loaded.reports.is_empty() {
        let wanted = targets.iter().map(|target| variant(&loaded.program, target));
        let mut variants: Vec<usize> = wanted.collect::<Result<_>>()?;
        // Two spellings of a target may be one variant.
        // A part is of no use without the others.
        let parts = variants.clone();
        for (index, other) in loaded.program.variants.iter().enumerate() {
            let is_part = |first: &usize| {
                let plan = &loaded.program.variants[*first].plan;
                let ranks = |plan: &ir::Plan| plan.share.as_ref().map(|share| share.ranks);
                ranks(plan).is_some() && ranks(plan) == ranks(&other.plan) && plan.target == other.plan.target
            };
            variants.extend(parts.iter().any(is_part).then_some(index));
        }
        let mut seen = Vec::new();
        variants.retain(|v| !seen.contains(v) && (seen.push(*v), true).1);
        loaded.program = loaded.program.select(&variants);
    }
    Ok(loaded)
}

/// Finds the variant of a program whose code runs on a target, as a device of that target would.
///
/// # Errors
/// `NoVariant` with the targets that it was compiled for.
pub fn variant(program: &Program, target: &Target) -> Result<usize> {
    let compiled: Vec<Target> = program.variants.iter().map(|v| v.plan.target).collect();
    let found = Target::best_for(compiled.iter().copied(), target);
    found.ok_or_else(|| Error::NoVariant {
        wanted: target.to_string(),
        have: compiled.iter().map(ToString::to_string).collect(),
    })
}

/// The program and arguments that compile kernels in processes of their own: this binary.
pub fn worker() -> Option<Vec<OsString>> {
    Some(vec![std::env::current_exe().ok()?.into_os_string(), WORKER_VERB.into()])
}

/// The program and arguments that disassemble for the emulator in a process of their own: this binary.
pub fn emulator_worker() -> Option<Vec<OsString>> {
    Some(vec![
        std::env::current_exe().ok()?.into_os_string(),
        DISASSEMBLER_VERB.into(),
    ])
}

/// The program and arguments that call vendor libraries on the emulated GPU in a process of their own: this binary.
pub fn calls_worker() -> Option<Vec<OsString>> {
    Some(vec![std::env::current_exe().ok()?.into_os_string(), CALLS_VERB.into()])
}

/// Saves a program as an artifact and says how many bytes it has.
pub fn save(program: &Program, path: &Path) -> Result<u64> {
    let mut bytes = 0;
    let written = ir::file::write(path, |out| {
        let mut counted = Counted { out, bytes: 0 };
        program.write(&mut counted)?;
        bytes = counted.bytes;
        Ok(())
    });
    written.map_err(Error::io("write", path))?;
    Ok(bytes)
}

/// Counts what goes through it: of a device or a FIFO nothing else knows.
struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Makes the code objects of a program that lacks them.
pub fn compile_kernels(program: &mut Program, context: &Context) -> Result<CacheStats> {
    let missing = program
        .variants
        .iter()
        .any(|v| v.plan.target.is_gpu() && v.code.values().any(Option::is_none));
    if !missing {
        return Ok(CacheStats::default());
    }
    let lacking = program.variants.iter().filter(|v| v.code.values().any(Option::is_none));
    let platforms = lacking.map(|v| v.plan.target.platform);
    let compiler = driver::compiler(&context.settings, worker().as_deref(), platforms)?;
    let missing = program.variants.iter().flat_map(|v| v.code.values());
    let total = missing.filter(|code| code.is_none()).count();
    let progress = bar(context, "compiling kernels", total);
    driver::compile(program, &compiler, &|p| {
        progress.set_length(p.total as u64);
        progress.set_position(p.done as u64);
        progress.set_prefix(format!("{} for {}", p.kernel, p.arch));
    })?;
    progress.finish_and_clear();
    driver::mend_spills(program, &compiler, &|_| ())?;
    if let Some(text) = compiler.cache().note() {
        note(context, text);
    }
    Ok(compiler.cache().stats())
}
