//! Reads what a compiled code object says about its kernels: registers, LDS, spills, arguments.
//!
//! Before: bytes that claim to be a GPU's ELF file (from a compiler, from an artifact, from anywhere). After: plain
//! data, or a [`CodeObjectError`] that says what is wrong with the bytes; no input panics.
//!
//! AMD's are read here, NVIDIA's in `cubin`. Source: LLVM's "User Guide for AMDGPU Backend", code object V4 to V6
//! metadata: a msgpack map in the ELF note of type 32 by "AMDGPU".

mod check;
mod cubin;
mod metadata;

use std::collections::BTreeMap;

use object::elf::{EM_AMDGPU, PT_NOTE};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol};
use serde::{Deserialize, Serialize};

pub use check::check;
use cubin::EM_CUDA;

/// The ELF note type of AMD GPU metadata.
const NT_AMDGPU_METADATA: u32 = 32;

/// The bytes are no code object that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeObjectError {
    /// Not ELF, or cut off, or inconsistent.
    #[error("not a readable ELF file: {reason}")]
    Elf { reason: String },
    /// ELF, but for another machine (a host library).
    #[error("an ELF file for machine {machine}, not for AMD's GPUs (224) or NVIDIA's (190)")]
    ForeignMachine { machine: u16 },
    /// No metadata note: made by something else than a HIP compiler, or cut off.
    #[error("the code object carries no metadata")]
    NoMetadata,
    /// The note is there and is not what it should be.
    #[error("the code object's metadata is damaged: {reason}")]
    Metadata { reason: String },
    /// The metadata names a kernel whose code is not in the file.
    #[error("the code of kernel {kernel} is not in the file")]
    NoCode { kernel: String },
    /// The file has other kernels.
    #[error("there is no kernel {kernel} in the file")]
    NoKernel { kernel: String },
    /// A kernel reads other arguments than it is launched with.
    #[error("kernel {kernel} takes arguments at {found:?} (offset, bytes), but is launched with {expected} of 8 bytes")]
    Arguments {
        kernel: String,
        found: Vec<(u32, u32)>,
        expected: usize,
    },
}

/// A code object's facts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeObject {
    /// The target with its features (`gfx90a:sramecc+:xnack-`, `sm_90`).
    pub target: String,
    /// In the metadata's order.
    pub kernels: Vec<KernelResources>,
}

/// What one kernel takes of a compute unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelResources {
    /// The name to ask `hipModuleGetFunction` for.
    pub name: String,
    /// Vector registers of a lane (on NVIDIA: registers of a thread); on CDNA2 and later the accumulation registers are
    /// counted in.
    pub vgpr: u32,
    /// Accumulation registers (CDNA), 0 elsewhere.
    pub agpr: u32,
    /// 0 on NVIDIA.
    pub sgpr: u32,
    /// Vector registers written to memory for want of registers. 0 on NVIDIA: a cubin does not tell spills from arrays,
    /// both are in `scratch_bytes`; the compiler's log warns of spills.
    pub vgpr_spills: u32,
    pub sgpr_spills: u32,
    /// Static LDS (shared memory) of a workgroup, in bytes; what a launch adds comes on top.
    pub lds_bytes: u32,
    /// Scratch (local) memory of a lane, in bytes.
    pub scratch_bytes: u32,
    /// Lanes of a wave: 32 or 64.
    pub wave_size: u32,
    /// The launch's argument block, in bytes, hidden arguments included.
    pub kernarg_bytes: u32,
    /// The most work items a workgroup may have.
    pub max_workgroup_size: u32,
    /// Machine code, in bytes.
    pub code_bytes: u64,
    pub args: Vec<KernelArg>,
}

/// One argument, as laid out in the argument block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelArg {
    /// The parameter's name, where the compiler kept it.
    pub name: Option<String>,
    pub offset: u32,
    pub size: u32,
    /// `global_buffer`, `by_value`, `hidden_block_count_x`, ...
    pub kind: String,
}

impl KernelArg {
    /// Whether the runtime fills it in (block counts, the printf buffer, ...) rather than the launch.
    pub fn is_hidden(&self) -> bool {
        self.kind.starts_with("hidden_")
    }
}

/// One kernel's machine code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCode<'a> {
    pub name: String,
    pub bytes: &'a [u8],
}

/// Reads a code object's target and the resources of each of its kernels.
///
/// # Errors
/// [`CodeObjectError`]: the bytes are cut off, foreign or damaged.
pub fn read(bytes: &[u8]) -> Result<CodeObject, CodeObjectError> {
    let (machine, elf) = parse(bytes)?;
    if machine == EM_CUDA {
        return cubin::read(bytes, &elf);
    }
    let mut object = metadata::decode(note(&elf, bytes)?)?;
    let code = code_by_name(&elf);
    for kernel in &mut object.kernels {
        let code = code.get(kernel.name.as_str()).copied().flatten();
        kernel.code_bytes = code
            .ok_or_else(|| CodeObjectError::NoCode {
                kernel: kernel.name.clone(),
            })?
            .len() as u64;
    }
    Ok(object)
}

/// Finds the machine code of each kernel, in the metadata's order.
///
/// # Errors
/// As [`read`].
pub fn kernel_code(bytes: &[u8]) -> Result<Vec<KernelCode<'_>>, CodeObjectError> {
    let (machine, elf) = parse(bytes)?;
    if machine == EM_CUDA {
        return Ok(cubin::kernel_code(&elf));
    }
    let object = metadata::decode(note(&elf, bytes)?)?;
    let code = code_by_name(&elf);
    object
        .kernels
        .into_iter()
        .map(|kernel| match code.get(kernel.name.as_str()).copied().flatten() {
            Some(bytes) => Ok(KernelCode {
                name: kernel.name,
                bytes,
            }),
            None => Err(CodeObjectError::NoCode { kernel: kernel.name }),
        })
        .collect()
}

fn elf_error(error: object::Error) -> CodeObjectError {
    CodeObjectError::Elf {
        reason: error.to_string(),
    }
}

/// Says whether bytes are an ELF file for NVIDIA's GPUs.
pub fn is_cubin(bytes: &[u8]) -> bool {
    machine(bytes).is_ok_and(|machine| machine == EM_CUDA)
}

fn machine(bytes: &[u8]) -> Result<u16, CodeObjectError> {
    let header = object::elf::FileHeader64::<Endianness>::parse(bytes).map_err(elf_error)?;
    Ok(header.e_machine(header.endian().map_err(elf_error)?))
}

fn parse(bytes: &[u8]) -> Result<(u16, ElfFile64<'_>), CodeObjectError> {
    // The machine is checked first: of a foreign file that is what a user should hear.
    let machine = machine(bytes)?;
    if machine != EM_AMDGPU && machine != EM_CUDA {
        return Err(CodeObjectError::ForeignMachine { machine });
    }
    Ok((machine, ElfFile64::parse(bytes).map_err(elf_error)?))
}

fn note<'a>(elf: &ElfFile64<'a>, bytes: &'a [u8]) -> Result<&'a [u8], CodeObjectError> {
    let endian = elf.endian();
    for segment in elf.elf_program_headers() {
        if segment.p_type(endian) != PT_NOTE {
            continue;
        }
        let Some(mut notes) = segment.notes(endian, bytes).map_err(elf_error)? else {
            continue;
        };
        while let Some(note) = notes.next().map_err(elf_error)? {
            if note.name() == b"AMDGPU" && note.n_type(endian) == NT_AMDGPU_METADATA {
                return Ok(note.desc());
            }
        }
    }
    Err(CodeObjectError::NoMetadata)
}

/// The bytes of every symbol of the dynamic table; None for one whose bytes are not in the file.
fn code_by_name<'a>(elf: &ElfFile64<'a>) -> BTreeMap<&'a str, Option<&'a [u8]>> {
    let mut code = BTreeMap::new();
    for symbol in elf.dynamic_symbols() {
        let Ok(name) = symbol.name() else { continue };
        let section = symbol
            .section_index()
            .and_then(|index| elf.section_by_index(index).ok());
        let bytes = section.and_then(|section| section.data_range(symbol.address(), symbol.size()).ok().flatten());
        code.insert(name, bytes);
    }
    code
}

#[cfg(test)]
mod tests;
