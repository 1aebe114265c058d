//! Worker processes that compile in parallel and may die of it.
//!
//! Invariant: at most `workers` processes run at once; one that died or hung is gone before its error is returned, and
//! the next request that needs one starts another. Workers start on demand: a pool that is never asked starts none.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use dylib::Search;
use ir::target::Platform;

use super::disassemble::Listing;
use super::process::{Lost, Worker};
use super::protocol::{FromWorker, ToWorker};
use super::{CompileError, CompileRequest, CompiledObject, Compiler, Failure};

/// A pool of compile workers, started as needed by one command.
#[derive(Debug)]
pub struct WorkerPool {
    command: Vec<OsString>,
    workers: usize,
    platform: Platform,
    search: Search,
    timeout: Duration,
    keep_failures_in: Option<PathBuf>,
    identity: OnceLock<String>,
    state: Mutex<State>,
    freed: Condvar,
    started: AtomicU64,
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Worker>,
    busy: usize,
}

impl WorkerPool {
    /// Makes a pool of up to `workers` processes (at least one) that `command` starts, for instance
    /// `[graphc, __compile-worker]` or `[rocm-run, graphc, __compile-worker]`. Starts none yet.
    pub fn new(command: Vec<OsString>, workers: usize) -> WorkerPool {
        WorkerPool {
            command,
            workers: workers.max(1),
            platform: Platform::Hip,
            search: Search::default(),
            timeout: Duration::from_secs(300),
            keep_failures_in: None,
            identity: OnceLock::new(),
            state: Mutex::default(),
            freed: Condvar::new(),
            started: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Whose compiler the workers load: hiprtc, if nothing is said.
    pub fn platform(mut self, platform: Platform) -> WorkerPool {
        self.platform = platform;
        self
    }

    /// Where the workers look for the compiler (inside the wrapper, if there is one).
    pub fn search(mut self, search: Search) -> WorkerPool {
        self.search = search;
        self
    }

    /// How long one compile may take before its worker is killed; 300 s by default.
    pub fn timeout(mut self, timeout: Duration) -> WorkerPool {
        self.timeout = timeout;
        self
    }

    /// Keeps the source, headers and log of every kernel that fails in a folder of its own under `dir`.
    pub fn keep_failures_in(mut self, dir: impl Into<PathBuf>) -> WorkerPool {
        self.keep_failures_in = Some(dir.into());
        self
    }

    /// Gives the compiler's identity where it is known already, so that it need not be asked (see
    /// [`super::Toolchain`]).
    pub fn known_identity(self, identity: String) -> WorkerPool {
        let _ = self.identity.set(identity);
        self
    }

    /// Worker processes started so far: more than `workers` only after some were lost.
    pub fn workers_started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    /// Worker processes that died or were killed during a request.
    pub fn workers_lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Takes an idle worker or starts one, waiting while all are busy.
    fn acquire(&self) -> Result<Lease<'_>, CompileError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.busy >= self.workers {
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.busy += 1;
        let idle = state.idle.pop();
        drop(state);
        let mut lease = Lease {
            pool: self,
            worker: None,
        };
        // One that died while idle (killed by hand, or for memory) is replaced.
        lease.worker = idle.and_then(|mut worker| worker.is_alive().then_some(worker));
        if lease.worker.is_none() {
            lease.worker = Some(Worker::start(&self.command, self.platform, &self.search)?);
            self.started.fetch_add(1, Ordering::Relaxed);
        }
        Ok(lease)
    }

    fn failed(&self, mut error: CompileError, request: &CompileRequest) -> CompileError {
        if let (Some(dir), Some(failure)) = (&self.keep_failures_in, error.failure_mut()) {
            // That it could not be kept must not hide what failed: the error then has no path.
            failure.source_path = keep(dir, request, &failure.log).ok();
        }
        error
    }

    fn no_listing(&self, lost: Lost) -> CompileError {
        match lost {
            Lost::Died { status, log } => CompileError::Disassembly {
                reason: format!("the disassembler died ({status}) {}", log.trim()),
            },
            Lost::TimedOut { .. } => CompileError::Disassembly {
                reason: format!("no answer in {} s", self.timeout.as_secs()),
            },
            Lost::Garbage { reason, log } => self.garbage(reason, log),
        }
    }

    fn garbage(&self, reason: String, log: String) -> CompileError {
        let command = self
            .command
            .iter()
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ");
        let reason = if log.trim().is_empty() {
            reason
        } else {
            format!("{reason}: {}", log.trim())
        };
        CompileError::Protocol { command, reason }
    }
}

impl Compiler for WorkerPool {
    fn identity(&self, _platform: Platform) -> Result<String, CompileError> {
        if let Some(identity) = self.identity.get() {
            return Ok(identity.clone());
        }
        let lease = self.acquire()?;
        let identity = lease
            .worker
            .as_ref()
            .map(|worker| worker.identity.clone())
            .unwrap_or_default();
        Ok(self.identity.get_or_init(|| identity).clone())
    }

    fn parallelism(&self) -> usize {
        self.workers
    }

    fn compile(&self, request: &CompileRequest) -> Result<CompiledObject, CompileError> {
        let mut lease = self.acquire()?;
        let answer = lease.ask(&ToWorker::Compile(request.clone()), self.timeout);
        drop(lease);
        let error = match answer {
            Ok(FromWorker::Compiled(Ok(object))) => return Ok(object),
            Ok(FromWorker::Compiled(Err(error))) => error,
            Ok(_) => self.garbage("an answer to another question".into(), String::new()),
            Err(Lost::Died { status, log }) => {
                let (signal, exit_code) = Lost::signal_and_code(status);
                let failure = Box::new(Failure::new(request, log));
                CompileError::WorkerDied {
                    kernel: request.name.clone(),
                    signal,
                    exit_code,
                    failure,
                }
            }
            Err(Lost::TimedOut { log }) => CompileError::TimedOut {
                kernel: request.name.clone(),
                seconds: self.timeout.as_secs(),
                failure: Box::new(Failure::new(request, log)),
            },
            Err(Lost::Garbage { reason, log }) => self.garbage(reason, log),
        };
        Err(self.failed(error, request))
    }

    fn disassemble(&self, code: &[u8]) -> Result<Vec<Listing>, CompileError> {
        let answer = self.acquire()?.ask(&ToWorker::Disassemble(code.to_vec()), self.timeout);
        match answer {
            Ok(FromWorker::Disassembled(listings)) => listings,
            Ok(_) => Err(self.garbage("an answer to another question".into(), String::new())),
            Err(lost) => Err(self.no_listing(lost)),
        }
    }

    fn assembly(&self, request: &CompileRequest) -> Result<String, CompileError> {
        let answer = self.acquire()?.ask(&ToWorker::Assemble(request.clone()), self.timeout);
        match answer {
            Ok(FromWorker::Assembled(text)) => text,
            Ok(_) => Err(self.garbage("an answer to another question".into(), String::new())),
            Err(lost) => Err(self.no_listing(lost)),
        }
    }
}

/// One of the pool's slots, and the worker in it; both are given back with the value.
struct Lease<'a> {
    pool: &'a WorkerPool,
    worker: Option<Worker>,
}

impl Lease<'_> {
    /// Asks the worker; after an error it is gone and only the slot goes back.
    fn ask(&mut self, request: &ToWorker, timeout: Duration) -> Result<FromWorker, Lost> {
        let Some(worker) = &mut self.worker else {
            return Err(Lost::Garbage {
                reason: "no worker".into(),
                log: String::new(),
            });
        };
        let answer = worker.ask(request, timeout);
        if answer.is_err() {
            self.worker = None;
            self.pool.lost.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.busy -= 1;
        state.idle.extend(self.worker.take());
        drop(state);
        self.pool.freed.notify_one();
    }
}

/// Writes `DIR/KERNEL-ARCH-HASH/{KERNEL.hip, headers, options.txt, log.txt}`; returns the source's path.
fn keep(dir: &Path, request: &CompileRequest, log: &str) -> std::io::Result<PathBuf> {
    let plain = |text: &str| -> String {
        text.chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || "._-".contains(c) {
                    c
                } else {
                    '_'
                }
            })
            .take(80)
            .collect()
    };
    let hash = blake3::hash(request.source.as_bytes()).to_hex();
    let dir = dir.join(format!(
        "{}-{}-{}",
        plain(&request.name),
        plain(&request.arch),
        &hash[..8]
    ));
    std::fs::create_dir_all(&dir)?;
    let source = dir.join(format!("{}.hip", plain(&request.name)));
    std::fs::write(&source, &request.source)?;
    for (name, text) in &request.headers {
        std::fs::write(dir.join(plain(name)), text)?;
    }
    std::fs::write(
        dir.join("options.txt"),
        format!("--offload-arch={}\n{}\n", request.arch, request.options.join("\n")),
    )?;
    std::fs::write(dir.join("log.txt"), log)?;
    Ok(source)
}
