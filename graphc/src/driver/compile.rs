//! From sources to code objects.

use std::ffi::OsString;
use std::sync::Arc;

use ir::plan::KernelId;
use ir::program::Source;
use ir::target::Platform;
use ir::{Plan, Program};
use runtime::cache::{Cache, CachedCompiler};
use runtime::compile::{CompileError, CompileRequest, Compiler, Compilers, Progress};

use crate::error::{Error, Result};
use crate::options::Settings;

/// What compiling a program took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compilation {
    /// Kernels of all targets.
    pub kernels: usize,
}

/// Makes the compilers of some platforms that the settings ask for, behind the cache.
///
/// `worker` is the program that compiles in processes of its own (`graphc __compile-worker`); without it hiprtc and
/// NVRTC are loaded into this process.
///
/// # Errors
/// [`CompileError::NotAvailable`](runtime::compile::CompileError::NotAvailable) with every place looked at; a `TMPDIR`
/// in which no file can be made.
pub fn compiler(
    settings: &Settings,
    worker: Option<&[OsString]>,
    platforms: impl IntoIterator<Item = Platform>,
) -> Result<CachedCompiler> {
    check_temporary(settings)?;
    let worker = worker.filter(|_| settings.workers > 0);
    let platforms: Vec<Platform> = platforms.into_iter().collect();
    let inner = Compilers::open(&settings.compiler_search(), &platforms, worker, settings.workers.max(1))?;
    let cache = match &settings.cache_dir {
        Some(dir) => Cache::open(dir.join("kernels"), settings.cache_bytes),
        None => Cache::disabled(),
    };
    Ok(CachedCompiler::new(Box::new(inner), Arc::new(cache)))
}

/// Checks `TMPDIR`: without it hiprtc refuses every kernel and does not say why.
fn check_temporary(settings: &Settings) -> Result<()> {
    let Some(folder) = &settings.temporary else {
        return Ok(());
    };
    let made = tempfile::tempfile_in(folder);
    made.map(drop).map_err(|error| {
        Error::Config(format!(
            "TMPDIR={}: {error}; the compilers of kernels need a folder for temporary files",
            folder.display()
        ))
    })
}

/// The platforms that a program has variants for.
pub fn platforms(program: &Program) -> impl Iterator<Item = Platform> {
    program.variants.iter().map(|variant| variant.plan.target.platform)
}

/// Lists what a program is compiled from: one request a kernel and target, in the program's order.
pub fn requests(program: &Program) -> Vec<CompileRequest> {
    slots(program).into_iter().map(|(_, request)| request).collect()
}

/// A kernel of a variant.
type Slot = (usize, KernelId);

/// The requests of [`requests`] with the places where the code they ask for goes.
fn slots(program: &Program) -> Vec<(Slot, CompileRequest)> {
    let mut slots = Vec::new();
    for (index, variant) in program.variants.iter().enumerate() {
        if !variant.plan.target.is_gpu() {
            continue;
        }
        for (id, source) in variant.sources.iter() {
            slots.push(((index, id), request(&variant.plan, id, source)));
        }
    }
    slots
}

/// The request for the code of one kernel of a plan.
pub(super) fn request(plan: &Plan, kernel: KernelId, source: &Source) -> CompileRequest {
    let needed = codegen_hip::device::headers()
        .iter()
        .filter(|(n, _)| needs(&source.text, n));
    CompileRequest {
        name: plan.kernels[kernel].name.clone(),
        source: source.text.clone(),
        headers: needed.map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect(),
        arch: plan.target.to_string(),
        options: source.options.clone(),
    }
}

/// Says whether a source includes a header, itself or through others; what it does not include is no part of its cache
/// key.
fn needs(text: &str, name: &str) -> bool {
    let mut seen = vec![];
    let mut stack = vec![text];
    while let Some(text) = stack.pop() {
        for (header, body) in codegen_hip::device::headers() {
            if !seen.contains(&header) && text.contains(&format!("#include \"{header}\"")) {
                seen.push(header);
                stack.push(body);
            }
        }
    }
    seen.iter().any(|h| **h == name)
}

/// Compiles every kernel of a program that has no code yet; code that is there stays as it is.
///
/// # Errors
/// All failures, each with the compiler's log and the source's place; what did compile is in the program.
pub fn compile(
    program: &mut Program,
    compiler: &dyn Compiler,
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<Compilation> {
    let mut wanted = slots(program);
    wanted.retain(|((variant, kernel), _)| program.variants[*variant].code[*kernel].is_none());
    // Ranks have the same kernels.
    let mut places: Vec<Vec<Slot>> = Vec::new();
    let mut requests: Vec<CompileRequest> = Vec::new();
    for (place, request) in wanted {
        match requests.iter().position(|known| *known == request) {
            Some(at) => places[at].push(place),
            None => {
                places.push(vec![place]);
                requests.push(request);
            }
        }
    }
    let objects = runtime::compile::compile_all(compiler, &requests, progress);
    let mut failures: Vec<CompileError> = Vec::new();
    let mut total = 0;
    for (places, object) in places.into_iter().zip(objects) {
        match object {
            Ok(object) => {
                total += 1;
                for (variant, kernel) in places {
                    program.variants[variant].code[kernel] = Some(object.bytes.clone());
                }
            }
            // Kernels with one text, and a compiler that is not there, fail alike.
            Err(error) if failures.contains(&error) => {}
            Err(error) => failures.push(error),
        }
    }
    match failures.len() {
        0 => Ok(Compilation { kernels: total }),
        1 => Err(failures.remove(0).into()),
        _ => Err(Error::Kernels(failures)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ir::target::Target;
    use passes::OptLevel;
    use runtime::compile::{CompiledObject, Listing};

    use super::*;
    use crate::driver::{BuildOptions, build};

    /// Answers with the request's name, or refuses everything; keeps what it was asked.
    #[derive(Default)]
    struct Fake {
        refuses: bool,
        asked: Mutex<Vec<String>>,
    }

    impl Compiler for Fake {
        fn identity(&self, _platform: Platform) -> std::result::Result<String, CompileError> {
            Ok("fake".into())
        }
        fn parallelism(&self) -> usize {
            1
        }
        fn compile(&self, request: &CompileRequest) -> std::result::Result<CompiledObject, CompileError> {
            self.asked.lock().unwrap().push(request.name.clone());
            match self.refuses {
                true => Err(CompileError::Call {
                    compiler: "fake".into(),
                    kernel: request.name.clone(),
                    call: "call".into(),
                    code: 6,
                    message: "refused".into(),
                }),
                false => Ok(CompiledObject {
                    bytes: request.name.clone().into_bytes(),
                    log: String::new(),
                }),
            }
        }
        fn disassemble(&self, _: &[u8]) -> std::result::Result<Vec<Listing>, CompileError> {
            Ok(Vec::new())
        }
    }

    /// Two kernels: the result of a reduction along one axis is reduced along another.
    fn program() -> Program {
        let text = "graph @two stage=import {
  n0 = input \"x\" : f32[64, 512]
  n1 = softmax n0 {axis=1}
  n2 = softmax n1 {axis=0}
  return n2 as \"y\"
}
";
        let graph = ir::graph::parse::parse(text).unwrap();
        let options = BuildOptions::new(vec!["gfx90a".parse::<Target>().unwrap()], OptLevel::O2);
        let program = build(&graph, &options).unwrap().program;
        assert!(program.variants[0].code.len() >= 2, "{}", program.variants[0].plan);
        program
    }

    #[test]
    fn only_what_has_no_code_is_compiled() {
        let mut program = program();
        let names: Vec<String> = requests(&program).into_iter().map(|r| r.name).collect();
        let (first, _) = program.variants[0].code.iter().next().unwrap();
        program.variants[0].code[first] = Some(b"mine".to_vec());
        let fake = Fake::default();
        assert_eq!(compile(&mut program, &fake, &|_| {}).unwrap().kernels, names.len() - 1);
        assert_eq!(*fake.asked.lock().unwrap(), names[1..]);
        let code: Vec<&[u8]> = program.variants[0].code.values().flatten().map(Vec::as_slice).collect();
        assert_eq!(code[0], b"mine");
        for (code, name) in code.iter().zip(&names).skip(1) {
            assert_eq!(*code, name.as_bytes());
        }
        // What is whole asks for nothing.
        let fake = Fake::default();
        assert_eq!(compile(&mut program, &fake, &|_| {}).unwrap().kernels, 0);
        assert!(fake.asked.lock().unwrap().is_empty());
    }

    #[test]
    fn all_failures_are_reported() {
        let mut program = program();
        let fake = Fake {
            refuses: true,
            ..Fake::default()
        };
        let error = compile(&mut program, &fake, &|_| {}).unwrap_err();
        let text = error.to_string();
        for request in requests(&program) {
            assert!(text.contains(&request.name), "{}: {text}", request.name);
        }
        assert_eq!(error.exit_code(), 1);
    }
}
