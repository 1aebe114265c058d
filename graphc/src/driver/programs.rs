//! Programs that were made before, read back: a graph goes through the passes and the cache of kernels once per
//! machine.

use std::os::unix::fs::MetadataExt;

use frontend::onnx::ImportOptions;
use ir::target::Platform;
use ir::{Graph, Program};
use runtime::cache::{CachedCompiler, ProgramCache};
use runtime::compile::{Compiler, Progress};

use super::build::{BuildOptions, build};
use super::compile::compile;
use super::model::{Model, Source};
use super::spills::mend;
use crate::error::{Error, Result};
use crate::options::Settings;

/// A program with the code of its kernels.
#[derive(Debug)]
pub struct Made {
    pub program: Program,
    /// Whether it was made before, and read from the cache.
    pub kept: bool,
}

/// Builds a graph and compiles its kernels, or reads the program that was made of the same graph, with the same
/// options, by the same compilers before. Programs are kept where the settings keep kernels.
///
/// # Errors
/// As [`build`] and [`compile`].
pub fn program(
    graph: &Graph,
    options: &BuildOptions,
    compiler: &CachedCompiler,
    settings: &Settings,
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<Made> {
    let mut place = None;
    if let Some((cache, makers)) = cache(options, compiler, settings) {
        let makers: Vec<&str> = makers.iter().map(String::as_str).collect();
        match cache.find(graph, &makers) {
            Some((_, Some(program))) => return Ok(Made { program, kept: true }),
            Some((key, None)) => place = Some((cache, key)),
            None => {}
        }
    }
    let mut program = build(graph, options)?.program;
    compile(&mut program, compiler, progress)?;
    mend(&mut program, compiler, &|_| ())?;
    if let Some((cache, key)) = place {
        cache.put(key, &program);
    }
    Ok(Made { program, kept: false })
}

/// Compiles a model for the targets of the options; what kernels are compiled with runs in this process, or in those
/// that the settings name. No GPU is needed.
///
/// # Errors
/// As [`Source::load`], [`build`] and [`compile`]; an artifact, which is compiled already.
pub fn artifact(
    source: &Source,
    import: &ImportOptions,
    options: &BuildOptions,
    settings: &Settings,
) -> Result<Program> {
    let Model::Graph(graph) = source.load(import)? else {
        return Err(Error::Config(format!(
            "{} is compiled already; take the model it was made from",
            source.name().display()
        )));
    };
    let platforms: Vec<Platform> = options
        .targets
        .iter()
        .filter(|target| target.is_gpu())
        .map(|target| target.platform)
        .collect();
    if platforms.is_empty() {
        return Ok(build(&graph, options)?.program);
    }
    let compiler = super::compile::compiler(settings, settings.worker_command().as_deref(), platforms)?;
    Ok(program(&graph, options, &compiler, settings, &|_| {})?.program)
}

/// Where programs are kept, and what makes them beside the graph; None where none is kept.
fn cache(
    options: &BuildOptions,
    compiler: &CachedCompiler,
    settings: &Settings,
) -> Option<(ProgramCache, Vec<String>)> {
    let folder = settings.cache_dir.as_ref()?.join("programs");
    // Who observes the passes wants them to run.
    if options.optimize.observer.is_some() {
        return None;
    }
    let mut makers = vec![this_compiler()?, format!("{options:?}")];
    for target in &options.targets {
        makers.push(compiler.identity(target.platform).ok()?);
    }
    Some((ProgramCache::open(folder, settings.cache_bytes), makers))
}

/// The file that this code is in, as it is now: what is compiled from changed sources makes other programs, whatever
/// its version says.
fn this_compiler() -> Option<String> {
    let path = std::env::current_exe().ok()?;
    let meta = std::fs::metadata(&path).ok()?;
    let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
    Some(format!(
        "graphc {} {} {} {} {times:?}",
        env!("CARGO_PKG_VERSION"),
        meta.dev(),
        meta.ino(),
        meta.len()
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ir::target::Target;
    use passes::OptLevel;
    use runtime::cache::Cache;
    use runtime::compile::{CompileError, CompileRequest, CompiledObject, Listing};

    use super::*;

    /// Gives a request's name as its code, and counts.
    struct Fake {
        version: &'static str,
        asked: Arc<AtomicUsize>,
    }

    impl Compiler for Fake {
        fn identity(&self, _: Platform) -> std::result::Result<String, CompileError> {
            Ok(self.version.into())
        }
        fn parallelism(&self) -> usize {
            1
        }
        fn compile(&self, request: &CompileRequest) -> std::result::Result<CompiledObject, CompileError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            Ok(CompiledObject {
                bytes: request.name.clone().into_bytes(),
                log: String::new(),
            })
        }
        fn disassemble(&self, _: &[u8]) -> std::result::Result<Vec<Listing>, CompileError> {
            Ok(Vec::new())
        }
    }

    fn graph(axis: u32) -> Graph {
        let text = format!(
            "graph @g stage=import {{\n  x = input \"x\" : f32[64, 64]\n  w = constant random(seed=1) : f32[64, 64]\n  \
             y = contract x, w\n  z = softmax y {{axis={axis}}}\n  return z as \"z\"\n}}\n"
        );
        ir::graph::parse::parse(&text).expect("parses")
    }

    #[test]
    fn what_was_made_is_read_and_anything_else_is_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let cached = Settings::read(|name| (name == "GRAPHC_CACHE").then(|| folder.path().into())).expect("settings");
        let off = Settings::read(|name| (name == "GRAPHC_CACHE").then(|| "off".into())).expect("settings");
        let asked = Arc::new(AtomicUsize::new(0));
        let options = |level| BuildOptions::new(vec!["gfx90a".parse::<Target>().expect("known")], level);
        let make = |graph: &Graph, options: &BuildOptions, version, settings: &Settings| {
            let fake = Fake {
                version,
                asked: asked.clone(),
            };
            let compiler = CachedCompiler::new(Box::new(fake), Arc::new(Cache::disabled()));
            program(graph, options, &compiler, settings, &|_| {}).expect("makes")
        };
        let usual = options(OptLevel::O2);
        let first = make(&graph(1), &usual, "1", &cached);
        let kernels = asked.load(Ordering::Relaxed);
        assert!(!first.kept && kernels > 0);
        let again = make(&graph(1), &usual, "1", &cached);
        assert!(again.kept && again.program == first.program);
        assert_eq!(asked.load(Ordering::Relaxed), kernels, "nothing is compiled");
        let observed = BuildOptions {
            optimize: passes::OptimizeOptions {
                observer: Some(Arc::new(|_: &str, _: &Graph| {})),
                ..usual.optimize.clone()
            },
            ..usual.clone()
        };
        for (what, made) in [
            ("another graph", make(&graph(0), &usual, "1", &cached)),
            ("another level", make(&graph(1), &options(OptLevel::O0), "1", &cached)),
            ("another compiler", make(&graph(1), &usual, "2", &cached)),
            ("no cache", make(&graph(1), &usual, "1", &off)),
            ("an observer", make(&graph(1), &observed, "1", &cached)),
        ] {
            assert!(!made.kept, "{what}");
        }
        assert!(make(&graph(1), &usual, "1", &cached).kept);
    }
}
