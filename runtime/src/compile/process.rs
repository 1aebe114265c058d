//! One worker process as the pool sees it: started, asked, timed, killed.

use std::ffi::OsString;
use std::io::{BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dylib::Search;
use ir::target::Platform;

use super::CompileError;
use super::protocol::{self, FromWorker, ToWorker, VERSION};

/// Loading hiprtc and comgr from a cold disk is the slow part.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How much of a worker's stderr is kept, from its end.
const LOG_TAIL: usize = 64 << 10;

/// A running worker that answered its set-up. Killed with the value.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    /// To the thread that writes stdin (a hung worker must not hang the caller on a full pipe). None once closed.
    requests: Sender<Vec<u8>>,
    answers: Receiver<std::io::Result<FromWorker>>,
    log: Arc<Mutex<Vec<u8>>>,
    log_reader: Option<JoinHandle<()>>,
    /// The compiler's identity, as the worker found it.
    pub(super) identity: String,
}

/// Why there was no answer. The worker is gone in every case.
#[derive(Debug)]
pub(super) enum Lost {
    Died { status: ExitStatus, log: String },
    TimedOut { log: String },
    Garbage { reason: String, log: String },
}

impl Lost {
    pub(super) fn signal_and_code(status: ExitStatus) -> (Option<i32>, Option<i32>) {
        // A shell between us and the worker reports a signal as 128 + its number.
        match (status.signal(), status.code()) {
            (None, Some(code @ 129..=159)) => (Some(code - 128), None),
            other => other,
        }
    }
}

impl Worker {
    /// Starts `command` and waits until it has loaded the compiler.
    pub(super) fn start(command: &[OsString], platform: Platform, search: &Search) -> Result<Worker, CompileError> {
        let text = command
            .iter()
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ");
        let failed = |reason: String| CompileError::WorkerStart {
            command: text.clone(),
            reason,
        };
        let [program, arguments @ ..] = command else {
            return Err(failed("the command is empty".into()));
        };
        let mut child = Command::new(program)
            .args(arguments)
            .env("AMD_COMGR_CACHE", "0") // graphc's own cache is the one; comgr's would hide what it costs
            // Options that are not in the request are not in the cache's key either.
            .env_remove("HIPRTC_COMPILE_OPTIONS_APPEND")
            .env_remove("HIPRTC_LINK_OPTIONS_APPEND")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0) // so that a wrapper's children go with it
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(mut stderr)) = (stdin, stdout, stderr) else {
            return Err(failed("no pipes".into()));
        };

        let (requests, to_write) = channel::<Vec<u8>>();
        std::thread::spawn(move || {
            while let Ok(frame) = to_write.recv() {
                if stdin.write_all(&frame).and_then(|()| stdin.flush()).is_err() {
                    return; // it died; the reader says so
                }
            }
        });
        let (to_read, answers) = channel();
        std::thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            loop {
                let (answer, last) = match protocol::read(&mut stdout) {
                    Ok(None) => return,
                    Ok(Some(message)) => (Ok(message), false),
                    Err(error) => (Err(error), true),
                };
                if to_read.send(answer).is_err() || last {
                    return;
                }
            }
        });
        let log = Arc::new(Mutex::new(Vec::new()));
        let tail = Arc::clone(&log);
        let log_reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = stderr.read(&mut chunk) {
                let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
                tail.extend_from_slice(&chunk[..n]);
                let excess = tail.len().saturating_sub(LOG_TAIL);
                tail.drain(..excess);
            }
        });

        let mut worker = Worker {
            child,
            requests,
            answers,
            log,
            log_reader: Some(log_reader),
            identity: String::new(),
        };
        let protocol_error = |reason: String| CompileError::Protocol {
            command: text.clone(),
            reason,
        };
        let setup = ToWorker::Setup {
            version: VERSION,
            platform,
            search: search.clone(),
        };
        match worker.ask(&setup, START_TIMEOUT) {
            Ok(FromWorker::Ready {
                version: VERSION,
                compiler,
            }) => {
                worker.identity = compiler?;
                Ok(worker)
            }
            Ok(FromWorker::Ready { version, .. }) => Err(protocol_error(format!(
                "it speaks version {version} of the protocol, this program {VERSION}"
            ))),
            Ok(_) => Err(protocol_error("its first answer is out of turn".into())),
            Err(Lost::Died { status, log }) => Err(failed(join(format!("it ended at once ({status})"), &log))),
            Err(Lost::TimedOut { log }) => Err(failed(join(
                format!("no answer in {} s", START_TIMEOUT.as_secs()),
                &log,
            ))),
            Err(Lost::Garbage { reason, log }) => Err(protocol_error(join(reason, &log))),
        }
    }

    /// Whether the process still runs: one may die between two requests (killed by hand, or for memory).
    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends one request and waits for its answer. After an error the worker is dead and of no further use.
    pub(super) fn ask(&mut self, request: &ToWorker, timeout: Duration) -> Result<FromWorker, Lost> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let frame = match protocol::encode(request) {
            Ok(frame) => frame,
            Err(error) => {
                let log = self.kill();
                return Err(Lost::Garbage {
                    reason: error.to_string(),
                    log,
                });
            }
        };
        // An error here means that the writer has seen the worker die: the reader will say the same.
        let _ = self.requests.send(frame);
        match self.answers.recv_timeout(timeout) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(self.died()),
            Ok(Err(error)) => Err(Lost::Garbage {
                reason: error.to_string(),
                log: self.kill(),
            }),
            Err(RecvTimeoutError::Timeout) => Err(Lost::TimedOut { log: self.kill() }),
            Err(RecvTimeoutError::Disconnected) => Err(self.died()),
        }
    }

    /// Its stdout is closed: waits a moment for the exit status, then sees to it.
    fn died(&mut self) -> Lost {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    return Lost::Died {
                        status,
                        log: self.finish_log(),
                    };
                }
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                _ => {
                    return Lost::Garbage {
                        reason: "it closed its stdout and ran on".into(),
                        log: self.kill(),
                    };
                }
            }
        }
    }

    /// Ends the process and its group; returns the end of its log.
    fn kill(&mut self) -> String {
        if let Ok(group) = i32::try_from(self.child.id())
            && self.is_alive()
        {
            // SAFETY: a plain system call; the group is the child's own, and the child is not reaped yet.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.finish_log()
    }

    fn finish_log(&mut self) -> String {
        if let Some(reader) = self.log_reader.take() {
            // A grandchild that left the group might hold stderr open: its words are not waited for.
            let until = Instant::now() + Duration::from_millis(500);
            while !reader.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        String::from_utf8_lossy(&self.log.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.is_alive() {
            self.kill(); // an idle worker has nothing to lose
        }
    }
}

fn join(reason: String, log: &str) -> String {
    match log.trim() {
        "" => reason,
        log => format!("{reason}: {log}"),
    }
}
