//! Where the emulator's decoder gets its text: comgr in this process, or in a worker behind the sysroot's wrapper.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use emu::{Comgr, Disassembler, Worker};
use runtime::compile::{HiprtcSearch, discover};

use crate::error::Result;
use crate::options::Settings;

/// Finds a disassembler. `worker` is a program with its arguments that calls [`serve`]; it is started through the
/// sysroot's wrapper where ROCm is in one.
///
/// # Errors
/// No ROCm, with every place looked at.
pub fn disassembler(settings: &Settings, worker: Option<&[OsString]>) -> Result<Arc<dyn Disassembler>> {
    let search = settings.rocm_search();
    let toolchain = match discover(&search) {
        Ok(toolchain) => toolchain,
        // Code objects that are there want no compiler.
        Err(error) => {
            let comgr = settings.rocm.is_none().then(|| Comgr::open_at(&search.hiprtc));
            return match comgr {
                Some(Ok(comgr)) => Ok(Arc::new(comgr)),
                _ => Err(error.into()),
            };
        }
    };
    match (&toolchain.wrapper, worker) {
        (Some(wrapper), Some(worker)) => {
            let command = std::iter::once(wrapper.clone().into_os_string()).chain(worker.iter().cloned());
            Ok(Arc::new(Worker::new(command.collect())))
        }
        // A sysroot's own is for another C library than this process's.
        (Some(_), None) => in_process(&search.hiprtc),
        (None, _) => in_process(&toolchain.comgr_search()),
    }
}

/// comgr in this process.
fn in_process(search: &HiprtcSearch) -> Result<Arc<dyn Disassembler>> {
    Comgr::open_at(search)
        .map(|comgr| Arc::new(comgr) as Arc<dyn Disassembler>)
        .map_err(|error| {
            let error = emu::LoadError::Disassembly(error);
            super::EmulateError::Load {
                kernel: "(any)".to_owned(),
                error,
            }
            .into()
        })
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
