//! Any bytes: the artifact reader returns a program or an error, and a program is the same after writing and reading.
//!
//! Random bytes never have a right checksum, so the header's is put right first: what is behind it is reached too.
#![no_main]

use graphc_ir::Program;
use graphc_ir::data::Storage;
use graphc_ir::program::artifact::{Check, MAGIC, VERSION};

/// Magic bytes, version, length and checksum of the header.
const PREFIX: usize = 8 + 4 + 8 + 32;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    if bytes.len() > PREFIX {
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let rest = (bytes.len() - PREFIX) as u64;
        let length = u64::from_le_bytes(bytes[12..20].try_into().expect("eight bytes")).min(rest);
        bytes[12..20].copy_from_slice(&length.to_le_bytes());
        let checksum = *blake3::hash(&bytes[PREFIX..PREFIX + length as usize]).as_bytes();
        bytes[20..PREFIX].copy_from_slice(&checksum);
    }
    if let Ok(program) = Program::read(&Storage::new(bytes), Check::Code) {
        let written = program.to_bytes().expect("writes to memory");
        let again = Program::read(&Storage::new(written), Check::All).expect("reads what it wrote");
        assert!(again == program);
    }
});
