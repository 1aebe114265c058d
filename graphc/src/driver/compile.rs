//! From sources to code objects.

use std::ffi::OsString;
use std::sync::Arc;

use ir::Program;
use ir::target::Platform;
use runtime::cache::{Cache, CachedCompiler};
use runtime::compile::{CompileRequest, Compiler, HiprtcSearch, Progress, RocmSearch};

use crate::error::Result;
use crate::options::Settings;

/// What compiling a program took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compilation {
    /// Kernels of all targets.
    pub kernels: usize,
}

/// Makes the compiler that the settings ask for, behind the cache.
///
/// `worker` is the program that compiles in processes of its own (`graphc __compile-worker`); without it hiprtc is loaded into
/// this process.
///
/// # Errors
/// [`CompileError::NotAvailable`] with every place looked at.
pub fn compiler(settings: &Settings, worker: Option<&[OsString]>) -> Result<CachedCompiler> {
    let search = RocmSearch {
        hiprtc: HiprtcSearch {
            explicit: settings.rocm.clone(),
            ..HiprtcSearch::default()
        },
        ..RocmSearch::default()
    };
    let worker = worker.filter(|_| settings.workers > 0);
    let inner = runtime::compile::open(&search, worker, settings.workers.max(1))?;
    let cache = match &settings.cache_dir {
        Some(dir) => Cache::open(dir.join("kernels"), settings.cache_bytes),
        None => Cache::disabled(),
    };
    Ok(CachedCompiler::new(inner, Arc::new(cache)))
}

/// Lists what has to be compiled: one request a kernel and target, in the program's order.
pub fn requests(program: &Program) -> Vec<CompileRequest> {
    let headers: Vec<(String, String)> = codegen_hip::device::headers()
        .iter()
        .map(|(n, t)| ((*n).to_owned(), (*t).to_owned()))
        .collect();
    let mut requests = Vec::new();
    for variant in &program.variants {
        if variant.plan.target.platform != Platform::Hip {
            continue;
        }
        for (id, source) in variant.sources.iter() {
            requests.push(CompileRequest {
                name: variant.plan.kernels[id].name.clone(),
                source: source.text.clone(),
                headers: headers
                    .iter()
                    .filter(|(n, _)| needs(&source.text, n, &headers))
                    .cloned()
                    .collect(),
                arch: variant.plan.target.to_string(),
                options: source.options.clone(),
            });
        }
    }
    requests
}

/// Says whether a source includes a header, itself or through others; what it does not include is no part of its cache key.
fn needs(text: &str, name: &str, headers: &[(String, String)]) -> bool {
    let mut seen = vec![];
    let mut stack = vec![text];
    while let Some(text) = stack.pop() {
        for (header, body) in headers {
            if !seen.contains(&header) && text.contains(&format!("#include \"{header}\"")) {
                seen.push(header);
                stack.push(body);
            }
        }
    }
    seen.iter().any(|h| *h == name)
}

/// Compiles every kernel of a program that has no code yet.
///
/// # Errors
/// The first failure, with the compiler's log and the source's place.
pub fn compile(
    program: &mut Program,
    compiler: &dyn Compiler,
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<Compilation> {
    let requests = requests(program);
    let objects = runtime::compile::compile_all(compiler, &requests, progress);
    let mut objects = objects.into_iter();
    let mut total = 0;
    for variant in &mut program.variants {
        if variant.plan.target.platform != Platform::Hip {
            continue;
        }
        for slot in variant.code.values_mut() {
            if let Some(object) = objects.next() {
                *slot = Some(object?.bytes);
                total += 1;
            }
        }
    }
    Ok(Compilation { kernels: total })
}
