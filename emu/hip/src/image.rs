//! How many bytes an image in host memory has: callers give only where it begins.

use crate::pointer::{get, read_bytes};
use crate::state::report;
use hip_sys::hipError_t;

/// Copies a code object, or a bundle of them (compressed or not), whose size only its own header says.
pub fn image_bytes(image: *const u8) -> Result<Vec<u8>, hipError_t> {
    const ELF: &[u8] = b"\x7fELF";
    const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
    const COMPRESSED: &[u8] = b"CCOB";
    const WRONG: hipError_t = hipError_t::hipErrorInvalidImage;
    const LARGEST: u64 = 1 << 32;
    let begins = |magic: &[u8]| (0..magic.len()).all(|index| get(image, index) == Ok(magic[index]));
    let word = |offset: u64| -> Result<u64, hipError_t> {
        let bytes = read_bytes(image as u64 + offset, 8);
        Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| WRONG)?))
    };
    let mut end = 64u64;
    if begins(ELF) {
        // The header's tables, and what they say lies in the file.
        let half = |offset: u64| Ok::<u64, hipError_t>(word(offset)? & 0xffff);
        let (programs, sections) = (word(32)?, word(40)?);
        let (program_size, program_count) = (half(54)?, half(56)?);
        let (section_size, section_count) = (half(58)?, half(60)?);
        end = end.max(programs.saturating_add(program_size * program_count));
        end = end.max(sections.saturating_add(section_size * section_count));
        for index in 0..program_count {
            let at = programs + index * program_size;
            end = end.max(word(at + 8)?.saturating_add(word(at + 32)?));
        }
    } else if begins(BUNDLE) {
        let count = word(24)?;
        let mut at = 32;
        for _ in 0..count.min(1024) {
            let (offset, size, name) = (word(at)?, word(at + 8)?, word(at + 16)?);
            end = end.max(offset.saturating_add(size));
            at += 24 + name.min(4096);
        }
        end = end.max(at);
    } else if begins(COMPRESSED) {
        // Magic, then two bytes each of version and method, then the size of the whole; version 1 did not have it.
        end = match word(4)? & 0xffff {
            2 => word(8)? & 0xffff_ffff,
            3 => word(8)?,
            version => {
                report(&format!(
                    "the image is a compressed bundle of version {version}, which does not say its size"
                ));
                return Err(WRONG);
            }
        };
    } else {
        report("the image is neither an ELF file nor an offload bundle");
        return Err(WRONG);
    }
    if end > LARGEST {
        return Err(WRONG);
    }
    Ok(read_bytes(image as u64, end as usize))
}
