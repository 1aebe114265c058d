//! What can go wrong between a kernel's source and its code object, each with its kernel, its log and the way out.

use std::fmt;
use std::path::PathBuf;

use dylib::NotFound;
use ir::target::Platform;
use serde::{Deserialize, Serialize};

use super::CompileRequest;

/// A kernel was not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum CompileError {
    /// There is no usable compiler here.
    #[error(
        "{what} is not available; looked at\n  {}\n{way_out}",
        looked_in.join("\n  ")
    )]
    NotAvailable {
        what: String,
        looked_in: Vec<String>,
        /// What to install, and how to name where it is.
        way_out: String,
    },

    /// The compiler refused the source: the log says why, `at` points at the first offending line.
    #[error("{} does not compile for {}{}", .0.kernel, .0.arch, .0)]
    Rejected(Box<Failure>),

    /// The compiler (hiprtc, NVRTC) failed outside the source: an option, memory, its own set-up.
    #[error("{call} failed with {message} ({compiler} error {code}) for kernel {kernel}")]
    Call {
        compiler: String,
        kernel: String,
        call: String,
        code: u32,
        message: String,
    },

    /// The compiler ended its worker process. The pool has replaced the worker.
    #[error("the compiler died ({}) on {} for {}{failure}", ending(*signal, *exit_code), failure.kernel, failure.arch)]
    WorkerDied {
        kernel: String,
        signal: Option<i32>,
        exit_code: Option<i32>,
        failure: Box<Failure>,
    },

    /// The compiler did not answer in time; its worker was killed and replaced.
    #[error("the compiler took more than {seconds} s on {} for {}{failure}", failure.kernel, failure.arch)]
    TimedOut {
        kernel: String,
        seconds: u64,
        failure: Box<Failure>,
    },

    /// No worker process could be started by `command`.
    #[error(
        "cannot start the compile worker `{command}`: {reason}; an app names the worker's program by GRAPHC_WORKER, and GRAPHC_WORKERS=0 \
         compiles in process where ROCm or CUDA is installed"
    )]
    WorkerStart { command: String, reason: String },

    /// What answers to `command` does not speak the worker's protocol (another version of graphc, or no worker at all).
    #[error(
        "`{command}` does not answer as a compile worker: {reason}; GRAPHC_WORKER, where it is set, names `graphc` or \
         `graphc-compile-worker` of this version"
    )]
    Protocol { command: String, reason: String },

    /// The bytes are no code object that comgr can disassemble.
    #[error("cannot disassemble: {reason}")]
    Disassembly { reason: String },
}

/// What is kept of one kernel's failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub kernel: String,
    pub arch: String,
    /// The compiler's log; for a dead worker, the end of what it wrote to stderr.
    pub log: String,
    /// The first error's place in the source, where the log names one.
    pub at: Option<SourceLine>,
    /// Where the source was kept (with its headers and the log beside it), if the pool was told to keep failures.
    pub source_path: Option<PathBuf>,
}

/// A place in a kernel's source or in one of its headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceLine {
    /// The header's name, or the kernel's.
    pub file: String,
    /// 1-based.
    pub line: u32,
    /// 1-based, in bytes.
    pub column: u32,
    /// The text of that line.
    pub text: String,
    /// What the compiler says about it.
    pub message: String,
}

impl CompileError {
    /// The failure's details, where a kernel was being compiled.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            CompileError::Rejected(failure)
            | CompileError::WorkerDied { failure, .. }
            | CompileError::TimedOut { failure, .. } => Some(failure),
            _ => None,
        }
    }

    pub(super) fn failure_mut(&mut self) -> Option<&mut Failure> {
        match self {
            CompileError::Rejected(failure)
            | CompileError::WorkerDied { failure, .. }
            | CompileError::TimedOut { failure, .. } => Some(failure),
            _ => None,
        }
    }
}

impl CompileError {
    /// The compiler of a platform, or a library it comes with, is not there.
    pub(crate) fn not_available(platform: Platform, what: impl Into<String>, looked_in: Vec<String>) -> CompileError {
        let way_out = match platform {
            Platform::Cuda => {
                "install CUDA 12 or 13, name its folder or NVRTC's (GRAPHC_NVRTC), or fetch NVRTC alone with scripts/nvrtc.sh \
                 (or `pip install nvidia-cuda-nvrtc-cu12`; GRAPHC_NVRTC then names site-packages)"
            }
            Platform::Hip => {
                "install ROCm, name its folder or hiprtc's file (GRAPHC_ROCM), or set up graphc's own compile stack with \
                 scripts/rocm-sysroot.sh"
            }
            Platform::Cpu => "nothing is compiled for the CPU",
        };
        CompileError::NotAvailable {
            what: what.into(),
            looked_in,
            way_out: way_out.to_owned(),
        }
    }

    /// No place holds a platform's compiler.
    pub(super) fn not_found(platform: Platform, error: NotFound) -> CompileError {
        let looked_in = error.tried.iter().map(ToString::to_string).collect();
        CompileError::not_available(platform, error.what, looked_in)
    }
}

impl Failure {
    pub(super) fn new(request: &CompileRequest, log: String) -> Failure {
        let at = SourceLine::first_error(&log, request);
        Failure {
            kernel: request.name.clone(),
            arch: request.arch.clone(),
            log,
            at,
            source_path: None,
        }
    }
}

/// What follows "kernel k for gfx90a" in a message: the place, the log's first lines, the kept source.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Some(at) => write!(
                f,
                "\n  at {}:{}:{}: {}\n    {}",
                at.file,
                at.line,
                at.column,
                at.message,
                at.text.trim_end()
            )?,
            None => {
                for line in self.log.lines().filter(|line| !line.trim().is_empty()).take(8) {
                    write!(f, "\n  {line}")?;
                }
            }
        }
        if let Some(path) = &self.source_path {
            write!(f, "\n  source and log kept in {}", path.display())?;
        }
        Ok(())
    }
}

impl SourceLine {
    /// Finds the first error of a log and the line it names: `FILE:LINE:COLUMN: error: MESSAGE` (clang) or
    /// `FILE(LINE): error: MESSAGE` (NVRTC, whose column is where the caret below it stands).
    pub(super) fn first_error(log: &str, request: &CompileRequest) -> Option<SourceLine> {
        let lines: Vec<&str> = log.lines().collect();
        lines.iter().enumerate().find_map(|(at, line)| {
            let (place, message) = line
                .split_once(": error: ")
                .or_else(|| line.split_once(": fatal error: "))
                .or_else(|| line.split_once(": catastrophic error: "))?;
            let (path, line_number, column) = match place.strip_suffix(')').and_then(|p| p.rsplit_once('(')) {
                Some((path, line)) => (path, line.parse().ok()?, caret(&lines[at + 1..])),
                None => {
                    let mut parts = place.rsplitn(3, ':');
                    let column = parts.next()?.parse().ok()?;
                    let line: u32 = parts.next()?.parse().ok()?;
                    (parts.next()?, line, column)
                }
            };
            let base = path.rsplit('/').next().unwrap_or(path);
            let header = request
                .headers
                .iter()
                .find(|(name, _)| name.rsplit('/').next() == Some(base));
            let (file, text) = match header {
                Some((name, text)) => (name.clone(), text),
                None => (request.name.clone(), &request.source),
            };
            let index = usize::try_from(line_number).ok()?.checked_sub(1)?;
            let text = text.lines().nth(index).unwrap_or_default().to_string();
            Some(SourceLine {
                file,
                line: line_number,
                column,
                text,
                message: message.to_string(),
            })
        })
    }
}

/// The column that NVRTC's caret points at; it shows the line behind two spaces. 1 where it shows none.
fn caret(below: &[&str]) -> u32 {
    let caret = below.iter().take(3).find(|line| line.trim() == "^");
    let at = caret.and_then(|line| line.find('^')).unwrap_or(2);
    u32::try_from(at.saturating_sub(1)).unwrap_or(1).max(1)
}

/// How a process ended, in words.
fn ending(signal: Option<i32>, exit_code: Option<i32>) -> String {
    match (signal, exit_code) {
        (Some(libc::SIGABRT), _) => "SIGABRT".to_string(),
        (Some(libc::SIGSEGV), _) => "SIGSEGV".to_string(),
        (Some(libc::SIGKILL), _) => "SIGKILL: out of memory?".to_string(),
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "no exit status".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> CompileRequest {
        CompileRequest {
            name: "k".into(),
            source: "line one\nline two\n".into(),
            headers: vec![("device/wave.hip.h".into(), "first\nsecond\nthird\n".into())],
            arch: "gfx90a".into(),
            options: vec![],
        }
    }

    #[test]
    fn the_first_error_of_a_log_names_its_line() {
        let log = "In file included from k:1:\n/tmp/x/input/k:2:6: error: use of undeclared identifier 'two'\n";
        let at = SourceLine::first_error(log, &request()).unwrap();
        assert_eq!(
            (at.file.as_str(), at.line, at.column, at.text.as_str()),
            ("k", 2, 6, "line two")
        );
        let log = "/tmp/x/include/wave.hip.h:3:1: fatal error: too bad";
        let at = SourceLine::first_error(log, &request()).unwrap();
        assert_eq!((at.file.as_str(), at.text.as_str()), ("device/wave.hip.h", "third"));
    }

    #[test]
    fn nvrtcs_errors_name_their_line_too() {
        let log = "wave.hip.h(3): error: identifier \"third\" is undefined\n  third\n    ^\n\n1 error detected in the \
                   compilation of \"k\".\n";
        let at = SourceLine::first_error(log, &request()).unwrap();
        assert_eq!(
            (at.file.as_str(), at.line, at.column, at.text.as_str()),
            ("device/wave.hip.h", 3, 3, "third")
        );
        assert_eq!(at.message, "identifier \"third\" is undefined");
        let at = SourceLine::first_error("k(1): catastrophic error: too bad", &request()).unwrap();
        assert_eq!((at.line, at.column, at.text.as_str()), (1, 1, "line one"));
    }

    #[test]
    fn odd_logs_name_no_line() {
        for log in [
            "",
            "k(x): error: x",
            "k): error: x",
            ": error: ",
            "a:b:c: error: x",
            "error: no place",
            "k:99999999999:1: error: x",
            "k:0:0: error: x",
        ] {
            assert_eq!(SourceLine::first_error(log, &request()), None, "{log}");
        }
    }
}
