//! The other side of a pool: a process that compiles what it is told and may die doing so.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::FromRawFd;
use std::process::ExitCode;

use dylib::Search;
use ir::target::Platform;

use super::protocol::{FromWorker, ToWorker, VERSION, read, write};
use super::{CompileError, Compiler, InProcess, Nvrtc};

/// Serves compile requests on stdin until it closes. The graphc binary calls this for its hidden verb.
///
/// Must be called first thing in `main`, before anything else touches stdin or stdout: the answers go to the original
/// stdout, and file descriptor 1 is made a copy of stderr, so that whatever the compiler prints is log, never noise
/// between the answers. Returns the process's exit code.
pub fn worker_main() -> ExitCode {
    let served = private_stdout().and_then(|mut answers| serve(&mut answers));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // stderr is this process's log: the pool shows its end to the user.
            eprintln!("compile worker: {error}");
            ExitCode::from(3)
        }
    }
}

fn serve(answers: &mut File) -> io::Result<()> {
    let mut requests = BufReader::new(io::stdin().lock());
    let (platform, compiler) = match read(&mut requests)? {
        None => return Ok(()),
        Some(ToWorker::Setup {
            version: VERSION,
            platform,
            search,
        }) => match load(platform, &search) {
            Ok(compiler) => (platform, compiler),
            Err(error) => {
                return write(
                    answers,
                    &FromWorker::Ready {
                        version: VERSION,
                        compiler: Err(error),
                    },
                );
            }
        },
        // The pool compares the versions and says what to do.
        Some(_) => {
            return write(
                answers,
                &FromWorker::Ready {
                    version: VERSION,
                    compiler: Ok(String::new()),
                },
            );
        }
    };
    write(
        answers,
        &FromWorker::Ready {
            version: VERSION,
            compiler: compiler.identity(platform),
        },
    )?;
    while let Some(request) = read(&mut requests)? {
        let answer = match request {
            ToWorker::Compile(request) => FromWorker::Compiled(compiler.compile(&request)),
            ToWorker::Disassemble(code) => FromWorker::Disassembled(compiler.disassemble(&code)),
            ToWorker::Assemble(request) => FromWorker::Assembled(compiler.assembly(&request)),
            ToWorker::Setup { .. } => return Err(io::Error::new(io::ErrorKind::InvalidData, "a second set-up")),
        };
        write(answers, &answer)?;
    }
    Ok(())
}

fn load(platform: Platform, search: &Search) -> Result<Box<dyn Compiler>, CompileError> {
    Ok(match platform {
        Platform::Cuda => Box::new(Nvrtc::load(search)?),
        Platform::Hip | Platform::Cpu => Box::new(InProcess::load(search)?),
    })
}

/// Takes stdout for the answers alone and points descriptor 1 at stderr; dumps no core when the compiler aborts.
fn private_stdout() -> io::Result<File> {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: plain system calls on descriptors and limits of this process; `none` is live. F_DUPFD_CLOEXEC makes a new
    // descriptor that nothing else owns.
    let private = unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        let private = libc::fcntl(1, libc::F_DUPFD_CLOEXEC, 3);
        if private < 0 || libc::dup2(2, 1) < 0 {
            return Err(io::Error::last_os_error());
        }
        private
    };
    // SAFETY: the descriptor was made above and has no other owner.
    Ok(unsafe { File::from_raw_fd(private) })
}
