//! An NVIDIA cubin's facts: registers, shared memory and local memory of its kernels.
//!
//! NVIDIA documents neither; this reads what cubins of NVRTC 12.9 and 13.5 for sm_90 hold, compared with what
//! `ptxas -v` says of the same kernels. `.nv.info` is a list of attributes: a byte of format, a byte of name, two bytes
//! of value, and for format 4 as many bytes more as the value says. `.nv.info` itself holds what is said of each
//! function by the number of its symbol, `.nv.info.KERNEL` what concerns one kernel.

use std::collections::BTreeMap;

use object::read::elf::{ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol};

use super::{CodeObject, CodeObjectError, KernelArg, KernelCode, KernelResources, elf_error};

/// ELF's number for NVIDIA's machines.
pub(super) const EM_CUDA: u16 = 190;

/// Registers of a thread: symbol, count.
const REGISTERS: u8 = 0x2f;
/// Local memory of a thread that a function takes, arrays and spills together: symbol, bytes.
const FRAME_SIZE: u8 = 0x11;
/// The workgroup that the kernel was compiled for at most: x, y, z.
const MAX_THREADS: u8 = 0x05;
/// Bytes of the kernel's arguments.
const PARAMS_SIZE: u8 = 0x19;
/// One argument: index (4 bytes), ordinal (2), offset (2), and in the last 4 its size above bit 18.
const PARAM: u8 = 0x17;

/// A value of a format that has more bytes.
const SIZED: u8 = 4;

/// Shared memory that the system keeps for itself in every workgroup; sections count it.
const RESERVED_SHARED: u64 = 1024;

struct Attribute<'a> {
    name: u8,
    /// The two bytes of a short value.
    value: u16,
    bytes: &'a [u8],
}

fn damaged(reason: impl Into<String>) -> CodeObjectError {
    CodeObjectError::Metadata { reason: reason.into() }
}

fn attributes(mut bytes: &[u8]) -> Result<Vec<Attribute<'_>>, CodeObjectError> {
    let mut found = Vec::new();
    while let Some((&[format, name, low, high], rest)) = bytes.split_first_chunk::<4>() {
        let value = u16::from_le_bytes([low, high]);
        let more = if format == SIZED { usize::from(value) } else { 0 };
        let (own, rest) = rest
            .split_at_checked(more)
            .ok_or_else(|| damaged(format!("attribute {name:#x} is cut off")))?;
        found.push(Attribute {
            name,
            value,
            bytes: own,
        });
        bytes = rest;
    }
    match bytes.is_empty() {
        true => Ok(found),
        false => Err(damaged("bytes after the last attribute")),
    }
}

impl Attribute<'_> {
    /// The word at a place of the value.
    fn word(&self, index: usize) -> Result<u32, CodeObjectError> {
        let word = self.bytes.get(index * 4..).and_then(<[u8]>::first_chunk);
        let word = word.ok_or_else(|| damaged(format!("attribute {:#x} has no word {index}", self.name)))?;
        Ok(u32::from_le_bytes(*word))
    }
}

/// What `.nv.info` says of each function, by its symbol's number.
#[derive(Default)]
struct OfFunctions {
    registers: BTreeMap<u32, u32>,
    frame: BTreeMap<u32, u32>,
}

/// The kernels of a cubin.
pub(super) fn read(bytes: &[u8], elf: &ElfFile64<'_>) -> Result<CodeObject, CodeObjectError> {
    let section = |name: &str| elf.section_by_name(name);
    let info = section(".nv.info").ok_or(CodeObjectError::NoMetadata)?;
    let mut functions = OfFunctions::default();
    for attribute in attributes(info.data().map_err(elf_error)?)? {
        let map = match attribute.name {
            REGISTERS => &mut functions.registers,
            FRAME_SIZE => &mut functions.frame,
            _ => continue,
        };
        map.insert(attribute.word(0)?, attribute.word(1)?);
    }
    let mut kernels = Vec::new();
    for (name, symbol, code) in kernels_of(elf) {
        let own = section(&format!(".nv.info.{name}")).ok_or(CodeObjectError::NoMetadata)?;
        let shared = section(&format!(".nv.shared.{name}")).map_or(0, |s| s.size().saturating_sub(RESERVED_SHARED));
        let number = |what: &str, of: &BTreeMap<u32, u32>| {
            let missing = || damaged(format!("it does not say how {what} kernel {name} takes"));
            of.get(&symbol).copied().ok_or_else(missing)
        };
        let mut kernel = KernelResources {
            name: name.to_owned(),
            vgpr: number("many registers", &functions.registers)?,
            agpr: 0,
            sgpr: 0,
            vgpr_spills: 0,
            sgpr_spills: 0,
            lds_bytes: u32::try_from(shared).map_err(|_| damaged(format!("{shared} bytes of shared memory")))?,
            scratch_bytes: number("much local memory", &functions.frame)?,
            wave_size: 32,
            kernarg_bytes: 0,
            max_workgroup_size: 0,
            code_bytes: code.len() as u64,
            args: Vec::new(),
        };
        for attribute in attributes(own.data().map_err(elf_error)?)? {
            match attribute.name {
                PARAMS_SIZE => kernel.kernarg_bytes = u32::from(attribute.value),
                MAX_THREADS => {
                    let (x, y, z) = (attribute.word(0)?, attribute.word(1)?, attribute.word(2)?);
                    kernel.max_workgroup_size = x.saturating_mul(y).saturating_mul(z);
                }
                PARAM => kernel.args.push(KernelArg {
                    name: None,
                    offset: attribute.word(1)? >> 16,
                    size: attribute.word(2)? >> 18,
                    kind: "by_value".into(),
                }),
                _ => {}
            }
        }
        kernel.args.sort_by_key(|arg| arg.offset);
        kernels.push(kernel);
    }
    Ok(CodeObject {
        target: target(bytes)?,
        kernels,
    })
}

/// The machine code of each kernel.
pub(super) fn kernel_code<'a>(elf: &ElfFile64<'a>) -> Vec<KernelCode<'a>> {
    let named = |(name, _, bytes): (&str, u32, &'a [u8])| KernelCode {
        name: name.to_owned(),
        bytes,
    };
    kernels_of(elf).map(named).collect()
}

/// Each kernel: its name, its symbol's number, its code, which fills a section of its own.
fn kernels_of<'a, 'e>(elf: &'e ElfFile64<'a>) -> impl Iterator<Item = (&'a str, u32, &'a [u8])> + use<'a, 'e> {
    elf.symbols().filter_map(|symbol| {
        let section = elf.section_by_index(symbol.section_index()?).ok()?;
        let name = symbol.name().ok()?;
        let is_code = symbol.size() > 0 && section.name().ok()?.strip_prefix(".text.") == Some(name);
        let number = u32::try_from(symbol.index().0).ok()?;
        is_code.then_some((name, number, section.data().ok()?))
    })
}

/// `sm_90`, which the file's flags hold: in the lowest byte up to CUDA 12 (version 7 of the format), in the second from
/// 13.
fn target(bytes: &[u8]) -> Result<String, CodeObjectError> {
    let header = object::elf::FileHeader64::<Endianness>::parse(bytes).map_err(elf_error)?;
    let flags = header.e_flags(header.endian().map_err(elf_error)?);
    let capability = match header.e_ident().abi_version {
        0..=7 => flags & 0xff,
        _ => flags >> 8 & 0xff,
    };
    Ok(format!("sm_{capability}"))
}
