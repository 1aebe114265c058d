//! Many kernels for many targets, in parallel, answered in the order they were asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::{CompileError, CompileRequest, CompiledObject, Compiler};

/// One request is done. Calls come one at a time; `done` counts up to `total`.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    pub done: usize,
    /// Distinct requests: equal ones are compiled once.
    pub total: usize,
    pub kernel: &'a str,
    pub arch: &'a str,
    pub ok: bool,
}

/// Compiles every request, as many at once as the compiler runs in parallel; one result per request, in its order.
///
/// One failure does not stop the others: a user wants to see them all. Equal requests are compiled once.
pub fn compile_all(
    compiler: &dyn Compiler,
    requests: &[CompileRequest],
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Vec<Result<CompiledObject, CompileError>> {
    let mut slot_of: HashMap<&CompileRequest, usize> = HashMap::new();
    let mut distinct: Vec<&CompileRequest> = Vec::new();
    let slots: Vec<usize> = requests
        .iter()
        .map(|request| {
            *slot_of.entry(request).or_insert_with(|| {
                distinct.push(request);
                distinct.len() - 1
            })
        })
        .collect();

    let results: Vec<OnceLock<Result<CompiledObject, CompileError>>> =
        distinct.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let done = Mutex::new(0);
    let work = || {
        while let index = next.fetch_add(1, Ordering::Relaxed)
            && let Some(request) = distinct.get(index)
        {
            let result = compiler.compile(request);
            let ok = result.is_ok();
            let _ = results[index].set(result);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            *done += 1;
            let (kernel, arch) = (request.name.as_str(), request.arch.as_str());
            progress(Progress {
                done: *done,
                total: distinct.len(),
                kernel,
                arch,
                ok,
            });
        }
    };
    let threads = compiler.parallelism().clamp(1, distinct.len().max(1));
    if threads == 1 {
        work();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
    }
    slots
        .iter()
        .map(|&slot| {
            results[slot]
                .get()
                .cloned()
                .unwrap_or_else(|| compiler.compile(distinct[slot]))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::Listing;
    use ir::target::Platform;

    /// Answers with the request's own name; counts.
    struct Echo(AtomicUsize);

    impl Compiler for Echo {
        fn identity(&self, _platform: Platform) -> Result<String, CompileError> {
            Ok("echo".into())
        }
        fn parallelism(&self) -> usize {
            4
        }
        fn compile(&self, request: &CompileRequest) -> Result<CompiledObject, CompileError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            match request.name.as_str() {
                "bad" => Err(CompileError::Disassembly { reason: "bad".into() }),
                name => Ok(CompiledObject {
                    bytes: format!("{name} {}", request.arch).into_bytes(),
                    log: String::new(),
                }),
            }
        }
        fn disassemble(&self, _: &[u8]) -> Result<Vec<Listing>, CompileError> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn results_keep_the_order_and_equal_requests_are_compiled_once() {
        let request = |name: &str, arch: &str| CompileRequest {
            name: name.into(),
            source: String::new(),
            headers: vec![],
            arch: arch.into(),
            options: vec![],
        };
        let mut requests: Vec<CompileRequest> = (0..20).map(|i| request(&format!("k{i}"), "gfx90a")).collect();
        requests.push(request("bad", "gfx90a"));
        requests.push(request("k3", "gfx90a"));
        requests.push(request("k3", "gfx942"));
        let echo = Echo(AtomicUsize::new(0));
        let seen = Mutex::new(Vec::new());
        let results = compile_all(&echo, &requests, &|p| {
            seen.lock().unwrap().push((p.done, p.total, p.ok))
        });
        assert_eq!(echo.0.load(Ordering::Relaxed), 22);
        assert_eq!(results.len(), 23);
        for (result, request) in results.iter().zip(&requests) {
            match request.name.as_str() {
                "bad" => assert!(result.is_err()),
                name => assert_eq!(
                    result.as_ref().unwrap().bytes,
                    format!("{name} {}", request.arch).into_bytes()
                ),
            }
        }
        let seen = seen.into_inner().unwrap();
        assert_eq!(
            seen.iter().map(|s| s.0).collect::<Vec<_>>(),
            (1..=22).collect::<Vec<_>>()
        );
        assert_eq!(seen.iter().filter(|s| !s.2).count(), 1);
    }
}
