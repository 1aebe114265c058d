//! Code objects: the ELF file, its kernels' descriptors and its metadata.
//!
//! After [`CodeObject::load`] the file was complete, is for a known arch, and every kernel of the metadata has a
//! descriptor and an entry inside the image.

mod descriptor;
mod elf;
mod metadata;

pub use descriptor::Descriptor;
pub use metadata::{Arg, KernelInfo};

use crate::arch::Arch;
use crate::error::LoadError;
use std::collections::BTreeMap;

/// A symbol of the code object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The address in the image.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Whether it is a function.
    pub function: bool,
}

/// A relocation that the loader applies once it knows where the image lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// The place in the image.
    pub offset: u64,
    /// The ELF type (R_AMDGPU_*).
    pub kind: u32,
    /// The value before the image's base is added.
    pub value: u64,
}

/// A code object, read and checked, not yet in device memory.
#[derive(Clone, Debug)]
pub struct CodeObject {
    arch: &'static Arch,
    target: String,
    version: u8,
    image: Vec<u8>,
    text: (u64, u64),
    symbols: BTreeMap<String, Symbol>,
    relocations: Vec<Relocation>,
    kernels: BTreeMap<String, KernelInfo>,
}

impl CodeObject {
    /// Reads a code object: an AMDGPU HSA ELF file of version 4, 5 or 6.
    pub fn load(bytes: &[u8]) -> Result<CodeObject, LoadError> {
        let parts = elf::read(bytes)?;
        let mut metadata = metadata::Metadata::default();
        for note in &parts.notes {
            let document = metadata::read(note)?;
            metadata.target = metadata.target.or(document.target);
            metadata.kernels.extend(document.kernels);
        }
        // Older documents do not name the target; the ELF header always does.
        let processor = match &metadata.target {
            Some(target) => target.rsplit("--").next().unwrap_or(target).to_string(),
            None => Arch::by_machine(parts.flags)
                .map(|arch| arch.name.to_string())
                .ok_or_else(|| {
                    LoadError::UnknownArch(format!("machine {:#x} of the ELF header's flags", parts.flags & 0xff))
                })?,
        };
        let arch = Arch::by_name(&processor).ok_or_else(|| LoadError::UnknownArch(processor.clone()))?;
        let mut kernels = BTreeMap::new();
        for mut info in metadata.kernels {
            let symbol = parts
                .symbols
                .get(&info.symbol)
                .ok_or_else(|| LoadError::Metadata(format!("kernel {} has no symbol {}", info.name, info.symbol)))?;
            info.descriptor = Descriptor::read(&parts.image, symbol.address)?;
            let function = info.symbol.strip_suffix(".kd").unwrap_or(&info.symbol);
            info.hand_written = parts.symbols.get(function).is_some_and(|symbol| symbol.size == 0);
            if !(parts.text.0..parts.text.0 + parts.text.1).contains(&info.descriptor.entry) {
                return Err(LoadError::Metadata(format!(
                    "kernel {} enters at {:#x}, outside .text",
                    info.name, info.descriptor.entry
                )));
            }
            kernels.insert(info.name.clone(), info);
        }
        Ok(CodeObject {
            arch,
            target: processor,
            version: parts.version,
            image: parts.image,
            text: parts.text,
            symbols: parts.symbols,
            relocations: parts.relocations,
            kernels,
        })
    }

    /// Takes the code object for `arch` out of an offload bundle (compressed or not), or reads a plain ELF file.
    pub fn load_for(bytes: &[u8], arch: &Arch) -> Result<CodeObject, LoadError> {
        let object = CodeObject::load(&elf::unbundle(bytes, arch.name)?)?;
        if !object.arch.runs_on(arch) {
            return Err(LoadError::WrongArch {
                object: object.arch.name.to_string(),
                gpu: arch.name.to_string(),
            });
        }
        Ok(object)
    }

    /// The arch it was compiled for.
    pub fn arch(&self) -> &'static Arch {
        self.arch
    }

    /// The processor with its target features, as in the metadata: `gfx90a:sramecc+:xnack-`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The code object version (4, 5 or 6).
    pub fn version(&self) -> u8 {
        self.version
    }

    /// The kernels in order of their names.
    pub fn kernels(&self) -> impl Iterator<Item = &KernelInfo> {
        self.kernels.values()
    }

    /// The kernel of this name.
    pub fn kernel(&self, name: &str) -> Result<&KernelInfo, LoadError> {
        self.kernels.get(name).ok_or_else(|| LoadError::NoSuchKernel {
            name: name.to_string(),
            present: self.kernels.keys().cloned().collect(),
        })
    }

    /// Every named symbol.
    pub fn symbols(&self) -> &BTreeMap<String, Symbol> {
        &self.symbols
    }

    /// The loaded image: what lies at each address from 0 on.
    pub fn image(&self) -> &[u8] {
        &self.image
    }

    /// The first address and the size of the code in the image.
    pub fn text(&self) -> (u64, u64) {
        self.text
    }

    pub(crate) fn relocations(&self) -> &[Relocation] {
        &self.relocations
    }
}
