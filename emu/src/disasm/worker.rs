//! Disassembly in another process, for hosts whose C library cannot load comgr (a ROCm in a sysroot).
//!
//! The worker answers requests on its standard streams until its input ends. A request is one line, `TARGET ADDRESS
//! SIZE` (hexadecimal), then the bytes; an answer is one line, `ok SIZE` or `error
//! SIZE` (decimal), then that many bytes: a printed [`Listing`], or the message.

use super::{Comgr, Disassembler, Line, Listing};
use crate::error::DisassemblyError;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

/// The largest answer taken from a worker, in bytes.
const LARGEST: usize = 1 << 30;

/// A disassembler that asks a worker process, started when it is first needed.
pub struct Worker {
    command: Vec<OsString>,
    process: Mutex<Option<Process>>,
}

struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing is lost with a worker; one that already ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    /// A worker that runs `command` (a program and its arguments), which must call [`serve`].
    pub fn new(command: Vec<OsString>) -> Worker {
        Worker {
            command,
            process: Mutex::new(None),
        }
    }

    fn start(&self) -> io::Result<Process> {
        let (program, arguments) = self
            .command
            .split_first()
            .ok_or_else(|| io::Error::other("the worker's command is empty"))?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("a pipe is missing");
        let input = child.stdin.take().ok_or_else(missing)?;
        let output = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        Ok(Process { child, input, output })
    }

    fn command_text(&self) -> String {
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }
}

impl Process {
    fn ask(&mut self, target: &str, address: u64, bytes: &[u8]) -> io::Result<Result<String, String>> {
        writeln!(self.input, "{target} {address:x} {:x}", bytes.len())?;
        self.input.write_all(bytes)?;
        self.input.flush()?;
        let mut head = String::new();
        self.output.read_line(&mut head)?;
        let (verdict, size) = head.trim().split_once(' ').unwrap_or_default();
        let size = size.parse::<usize>().ok().filter(|size| *size <= LARGEST);
        let (Some(size), "ok" | "error") = (size, verdict) else {
            return Err(io::Error::other(format!("the worker answered {head:?}")));
        };
        let mut body = vec![0u8; size];
        self.output.read_exact(&mut body)?;
        let body = String::from_utf8(body).map_err(io::Error::other)?;
        Ok(if verdict == "ok" { Ok(body) } else { Err(body) })
    }
}

impl Disassembler for Worker {
    fn disassemble(&self, target: &str, address: u64, bytes: &[u8]) -> Result<Vec<Line>, DisassemblyError> {
        let mut slot = self.process.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let failed = |error: io::Error| DisassemblyError(format!("worker `{}`: {error}", self.command_text()));
        let mut process = match slot.take() {
            Some(process) => process,
            None => self.start().map_err(failed)?,
        };
        // A worker that failed is not asked again: the next call starts another.
        let answer = process.ask(target, address, bytes).map_err(failed)?;
        *slot = Some(process);
        let text = answer.map_err(DisassemblyError)?;
        Ok(Listing::parse(&text)?.lines().to_vec())
    }
}

/// Answers requests until `input` ends; the library is loaded by the first one.
///
/// # Errors
/// What reading or writing gives, or a damaged request.
pub fn serve(input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    let mut comgr = None;
    let mut head = String::new();
    while input.read_line(&mut head)? > 0 {
        let mut words = head.split_whitespace();
        let target = words.next().unwrap_or_default().to_string();
        let mut number = || words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        let (Some(address), Some(size)) = (number(), number().filter(|size| *size as usize <= LARGEST)) else {
            return Err(io::Error::other(format!("damaged request {head:?}")));
        };
        let mut bytes = vec![0u8; size as usize];
        input.read_exact(&mut bytes)?;
        head.clear();
        let answer = comgr
            .get_or_insert_with(Comgr::open)
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|comgr| comgr.disassemble(&target, address, &bytes));
        let (verdict, body) = match answer {
            Ok(lines) => ("ok", Listing::print(&lines)),
            Err(error) => ("error", error.0),
        };
        writeln!(output, "{verdict} {}", body.len())?;
        output.write_all(body.as_bytes())?;
        output.flush()?;
    }
    Ok(())
}
