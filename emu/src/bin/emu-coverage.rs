//! Lists the instructions in code objects that the emulator does not know, by mnemonic, with a place of each.
//!
//! Usage: `emu-coverage ARCH FILE…`. Needs ROCm's libamd_comgr. Exits with 1 where something is not known.

use graphc_emu::{Arch, CodeObject, Comgr, Gpu};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match cover(&args) {
        Ok(known) => ExitCode::from(u8::from(!known)),
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn cover(args: &[String]) -> Result<bool, String> {
    let (arch, files) = args.split_first().ok_or("usage: emu-coverage ARCH FILE...")?;
    let arch = Arch::by_name(arch).ok_or_else(|| format!("{arch} is not an arch the emulator knows"))?;
    let comgr = Arc::new(Comgr::open().map_err(|error| error.to_string())?);
    let mut unknown: BTreeMap<String, (u64, String)> = BTreeMap::new();
    let (mut kernels, mut instructions) = (0u64, 0u64);
    for file in files {
        let bytes = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
        let object = match CodeObject::load_for(&bytes, arch) {
            Ok(object) => object,
            Err(error) => {
                eprintln!("{file}: {error}");
                continue;
            }
        };
        let names: Vec<String> = object.kernels().map(|kernel| kernel.name.clone()).collect();
        let gpu = Gpu::new(arch, 1 << 34);
        let module = gpu
            .load(object, comgr.clone())
            .map_err(|error| format!("{file}: {error}"))?;
        for name in names {
            let kernel = module
                .kernel(&name)
                .map_err(|error| format!("{file}: {name}: {error}"))?;
            kernels += 1;
            instructions += kernel.instructions().count() as u64;
            for error in kernel.unknown() {
                let mnemonic = error.text.split(' ').next().unwrap_or("").to_string();
                let entry = unknown
                    .entry(mnemonic)
                    .or_insert_with(|| (0, format!("{name}: {error}")));
                entry.0 += 1;
            }
        }
    }
    println!(
        "{kernels} kernels, {instructions} instructions, {} mnemonics not known",
        unknown.len()
    );
    for (mnemonic, (count, place)) in &unknown {
        println!("{count:8} {mnemonic:32} {place}");
    }
    Ok(unknown.is_empty())
}
