//! Reads the ELF container: image, symbols, relocations, the metadata note; takes bundles apart.

use super::{Relocation, Symbol};
use crate::error::LoadError;
use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;

/// `NT_AMDGPU_METADATA`: the note that holds the msgpack document.
const NOTE_METADATA: u32 = 32;
const EM_AMDGPU: u16 = 224;
const OSABI_HSA: u8 = 64;
const COMPRESSED_MAGIC: &[u8] = b"CCOB";
const BUNDLE_MAGIC: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
/// An image larger than this is taken for damage, not loaded.
const IMAGE_LIMIT: u64 = 1 << 32;

pub(super) struct Parts {
    pub version: u8,
    /// The ELF header's flags: machine and target features.
    pub flags: u32,
    pub image: Vec<u8>,
    pub text: (u64, u64),
    /// The metadata documents: a linker that joins objects keeps those of each.
    pub notes: Vec<Vec<u8>>,
    pub symbols: BTreeMap<String, Symbol>,
    pub relocations: Vec<Relocation>,
}

fn bad(error: impl std::fmt::Display) -> LoadError {
    LoadError::Elf(error.to_string())
}

pub(super) fn read(bytes: &[u8]) -> Result<Parts, LoadError> {
    let header = FileHeader64::<Endianness>::parse(bytes).map_err(bad)?;
    let endian = header.endian().map_err(bad)?;
    if header.e_machine(endian) != EM_AMDGPU || header.e_ident.os_abi != OSABI_HSA {
        return Err(LoadError::NotAmdGpu(format!(
            "machine {}, OS ABI {}",
            header.e_machine(endian),
            header.e_ident.os_abi
        )));
    }
    let version = header.e_ident.abi_version + 2;
    let segments = header.program_headers(endian, bytes).map_err(bad)?;
    let mut image = Vec::new();
    let mut found = Vec::new();
    for segment in segments {
        if segment.p_type(endian) == elf::PT_LOAD {
            let data = segment
                .data(endian, bytes)
                .map_err(|()| bad("a segment ends after the file"))?;
            let (start, size) = (segment.p_vaddr(endian), segment.p_memsz(endian));
            let end = start
                .checked_add(size)
                .filter(|end| *end <= IMAGE_LIMIT)
                .ok_or_else(|| bad("segment size"))?;
            if image.len() < end as usize {
                image.resize(end as usize, 0);
            }
            let target = image.get_mut(start as usize..start as usize + data.len());
            target
                .ok_or_else(|| bad("a segment is larger in the file than in memory"))?
                .copy_from_slice(data);
        }
        if let Some(mut notes) = segment.notes(endian, bytes).map_err(bad)? {
            while let Some(entry) = notes.next().map_err(bad)? {
                if entry.n_type(endian) == NOTE_METADATA && entry.name() == b"AMDGPU" {
                    found.push(entry.desc().to_vec());
                }
            }
        }
    }
    if found.is_empty() {
        return Err(LoadError::Metadata("there is no AMDGPU metadata note".into()));
    }
    let sections = header.sections(endian, bytes).map_err(bad)?;
    let text = sections
        .section_by_name(endian, b".text")
        .map(|(_, section)| (section.sh_addr(endian), section.sh_size(endian)))
        .ok_or_else(|| bad("there is no .text section"))?;
    if text.0.checked_add(text.1).is_none_or(|end| end > image.len() as u64) {
        return Err(bad("the code is not in a loaded segment"));
    }

    let dynamic = sections.symbols(endian, bytes, elf::SHT_DYNSYM).map_err(bad)?;
    let full = sections.symbols(endian, bytes, elf::SHT_SYMTAB).map_err(bad)?;
    let mut symbols = BTreeMap::new();
    for table in [&dynamic, &full] {
        for symbol in table.iter() {
            let name = symbol.name(endian, table.strings()).map_err(bad)?;
            if name.is_empty() || symbol.st_shndx(endian) == elf::SHN_UNDEF {
                continue;
            }
            let entry = Symbol {
                address: symbol.st_value(endian),
                size: symbol.st_size(endian),
                function: symbol.st_type() == elf::STT_FUNC,
            };
            symbols.insert(String::from_utf8_lossy(name).into_owned(), entry);
        }
    }

    let mut relocations = Vec::new();
    for section in sections.iter() {
        let Some((entries, _)) = section.rela(endian, bytes).map_err(bad)? else {
            continue;
        };
        for entry in entries {
            let symbol = entry.r_sym(endian, false);
            let base = if symbol == 0 {
                0
            } else {
                dynamic
                    .symbol(object::SymbolIndex(symbol as usize))
                    .map_err(bad)?
                    .st_value(endian)
            };
            relocations.push(Relocation {
                offset: entry.r_offset.get(endian),
                kind: entry.r_type(endian, false),
                value: base.wrapping_add(entry.r_addend.get(endian) as u64),
            });
        }
    }
    Ok(Parts {
        version,
        flags: header.e_flags(endian),
        image,
        text,
        notes: found,
        symbols,
        relocations,
    })
}

/// The entry for `arch` of an offload bundle, compressed or not; other bytes are returned as they are.
pub(super) fn unbundle<'a>(bytes: &'a [u8], arch: &str) -> Result<Cow<'a, [u8]>, LoadError> {
    if bytes.starts_with(COMPRESSED_MAGIC) {
        let whole = decompress(bytes)?;
        return Ok(Cow::Owned(unbundle(&whole, arch)?.into_owned()));
    }
    let Some(mut rest) = bytes.strip_prefix(BUNDLE_MAGIC) else {
        return Ok(Cow::Borrowed(bytes));
    };
    let count = take_word(&mut rest)?;
    let mut present = Vec::new();
    let mut best: Option<(bool, &'a [u8])> = None;
    for _ in 0..count.min(1024) {
        let (offset, size, length) = (take_word(&mut rest)?, take_word(&mut rest)?, take_word(&mut rest)?);
        let (name, tail) = rest
            .split_at_checked(length as usize)
            .ok_or_else(|| bad("the bundle is cut short in a name"))?;
        rest = tail;
        let name = String::from_utf8_lossy(name).into_owned();
        let target = name.rsplit("--").next().unwrap_or(&name);
        let mut parts = target.split(':');
        if parts.next() == Some(arch) {
            let end = offset.checked_add(size).filter(|end| *end <= bytes.len() as u64);
            let end = end.ok_or_else(|| bad("a bundle entry ends after the file"))?;
            let entry = bytes.get(offset as usize..end as usize);
            let entry = entry.ok_or_else(|| bad("a bundle entry starts after the file"))?;
            // The emulated GPUs correct memory errors and do not retry; code for others serves where there is no
            // better.
            let fits = !parts.any(|feature| matches!(feature, "xnack+" | "sramecc-"));
            if best.is_none_or(|(fitted, _)| fits && !fitted) {
                best = Some((fits, entry));
            }
        }
        present.push(name);
    }
    let wanted = arch.to_string();
    best.map(|(_, entry)| Cow::Borrowed(entry))
        .ok_or(LoadError::NotInBundle { wanted, present })
}

/// Unpacks a compressed bundle: magic, version, method (1 is zstd), sizes, a hash, the data.
fn decompress(bytes: &[u8]) -> Result<Vec<u8>, LoadError> {
    let half = |at: usize| bytes.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let (version, method) = half(4)
        .zip(half(6))
        .ok_or_else(|| bad("the compressed bundle is cut short"))?;
    let header = match version {
        1 => 20,
        2 => 24,
        3 => 32,
        other => return Err(bad(format!("compressed bundle version {other}"))),
    };
    if method != 1 {
        return Err(bad(format!("compressed bundle method {method}; only zstd is read")));
    }
    let data = bytes
        .get(header..)
        .ok_or_else(|| bad("the compressed bundle is cut short"))?;
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(data).map_err(bad)?;
    let mut out = Vec::new();
    decoder.read_to_end(&mut out).map_err(bad)?;
    Ok(out)
}

fn take_word(rest: &mut &[u8]) -> Result<u64, LoadError> {
    let (head, tail) = rest
        .split_first_chunk::<8>()
        .ok_or_else(|| bad("the bundle is cut short"))?;
    *rest = tail;
    Ok(u64::from_le_bytes(*head))
}
