//! The disassembler's worker: run inside a ROCm sysroot, it answers the emulator on its standard streams.

use std::process::ExitCode;

fn main() -> ExitCode {
    match graphc_emu::disasm::serve(&mut std::io::stdin().lock(), &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("graphc-emu-disassembler: {error}");
            ExitCode::FAILURE
        }
    }
}
