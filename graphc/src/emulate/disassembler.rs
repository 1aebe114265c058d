//! Where the emulator's decoder gets its text: comgr in this process, or in a worker behind the sysroot's wrapper.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use emu::{Comgr, Disassembler, Worker};
use runtime::compile::discover;

use crate::error::Result;
use crate::options::Settings;

/// Finds a disassembler. `worker` is a program with its arguments that calls [`serve`]; it is started through the
/// sysroot's wrapper where ROCm is in one.
///
/// # Errors
/// No ROCm, with every place looked at.
pub fn disassembler(settings: &Settings, worker: Option<&[OsString]>) -> Result<Arc<dyn Disassembler>> {
    if settings.rocm.is_none()
        && let Ok(comgr) = Comgr::open()
    {
        return Ok(Arc::new(comgr));
    }
    let toolchain = discover(&settings.rocm_search())?;
    match (toolchain.wrapper, worker) {
        (Some(wrapper), Some(worker)) => {
            let command = std::iter::once(wrapper.into_os_string()).chain(worker.iter().cloned());
            Ok(Arc::new(Worker::new(command.collect())))
        }
        _ => Comgr::open()
            .map(|comgr| Arc::new(comgr) as Arc<dyn Disassembler>)
            .map_err(|error| {
                let error = emu::LoadError::Disassembly(error);
                super::EmulateError::Load {
                    kernel: "(any)".to_owned(),
                    error,
                }
                .into()
            }),
    }
}

/// The worker's side: answers requests on the standard streams until they end.
pub fn serve() -> ExitCode {
    match emu::disasm::serve(&mut std::io::stdin().lock(), &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("graphc: {error}");
            ExitCode::FAILURE
        }
    }
}
