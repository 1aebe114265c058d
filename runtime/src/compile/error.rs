//! What can go wrong between a kernel's source and its code object, each with its kernel, its log and the way out.

use std::fmt;
use std::path::PathBuf;

use dylib::NotFound;
use serde::{Deserialize, Serialize};

use super::CompileRequest;

/// A kernel was not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum CompileError {
    /// There is no usable compiler here.
    #[error(
        "{what} is not available; looked at\n  {}\ninstall ROCm, name its folder, or set up graphc's own compile stack \
         with scripts/rocm-sysroot.sh",
        looked_in.join("\n  ")
    )]
    NotAvailable { what: String, looked_in: Vec<String> },

    /// The compiler refused the source: the log says why, `at` points at the first offending line.
    #[error("{} does not compile for {}{}", .0.kernel, .0.arch, .0)]
    Rejected(Box<Failure>),

    /// hiprtc failed outside the source (an option, memory, its own set-up).
    #[error("{call} failed with {message} (hiprtc error {code}) for kernel {kernel}")]
    Hiprtc {
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
    #[error("cannot start the compile worker `{command}`: {reason}")]
    WorkerStart { command: String, reason: String },

    /// What answers to `command` does not speak the worker's protocol (another version of graphc, or no worker at all).
    #[error("`{command}` does not answer as a compile worker: {reason}")]
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

impl From<NotFound> for CompileError {
    fn from(error: NotFound) -> CompileError {
        let looked_in = error.tried.iter().map(ToString::to_string).collect();
        CompileError::NotAvailable {
            what: error.what,
            looked_in,
        }
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
    /// Finds the first `FILE:LINE:COLUMN: error: MESSAGE` of a clang log and the line it names.
    pub(super) fn first_error(log: &str, request: &CompileRequest) -> Option<SourceLine> {
        log.lines().find_map(|line| {
            let (place, message) = line
                .split_once(": error: ")
                .or_else(|| line.split_once(": fatal error: "))?;
            let mut parts = place.rsplitn(3, ':');
            let column = parts.next()?.parse().ok()?;
            let line_number: u32 = parts.next()?.parse().ok()?;
            let path = parts.next()?;
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
    fn odd_logs_name_no_line() {
        for log in [
            "",
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
