//! A code object's instructions as text, by comgr (which hiprtc brings along).

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;

use comgr_sys::{ComgrLibrary, amd_comgr_disassembly_info_t, amd_comgr_status_s};
use dylib::{Loaded, Search};
use ir::target::Platform;
use serde::{Deserialize, Serialize};

use super::CompileError;
use crate::code_object;

/// One kernel's instructions, in address order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    pub kernel: String,
    pub instructions: Vec<Instruction>,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instruction {
    /// Bytes from the kernel's entry.
    pub offset: u64,
    /// Mnemonic and operands in LLVM's spelling, one space between; `.byte ...` for what does not decode.
    pub text: String,
}

impl Listing {
    /// The listing as text: a label and a line for each instruction.
    pub fn text(&self) -> String {
        let mut text = format!("{}:\n", self.kernel);
        for instruction in &self.instructions {
            text += &format!("  {:#06x}  {}\n", instruction.offset, instruction.text.trim());
        }
        text
    }

    /// How many instructions go to the matrix cores: MFMA and SMFMAC (CDNA), WMMA and SWMMAC (RDNA).
    pub fn matrix_instructions(&self) -> usize {
        const MATRIX: [&str; 4] = ["v_mfma_", "v_smfmac_", "v_wmma_", "v_swmmac_"];
        self.instructions
            .iter()
            .filter(|instruction| MATRIX.iter().any(|m| instruction.text.starts_with(m)))
            .count()
    }
}

#[derive(Debug)]
pub(super) struct Disassembler {
    api: &'static Loaded<ComgrLibrary>,
}

/// Where comgr is looked for: in hiprtc's own folder, else where `search` says.
pub(super) fn comgr_search(search: &Search, hiprtc: &Path) -> Search {
    let beside = hiprtc
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .map(Path::to_path_buf);
    Search {
        explicit: None,
        dirs: beside.into_iter().chain(search.dirs.iter().cloned()).collect(),
        loader_path: true,
    }
}

impl Disassembler {
    /// Loads comgr from hiprtc's own folder, else from where `search` says.
    pub(super) fn load(search: &Search, hiprtc: &Path) -> Result<Disassembler, CompileError> {
        let comgr = comgr_sys::shared(&comgr_search(search, hiprtc));
        Ok(Disassembler {
            api: comgr.map_err(|error| CompileError::not_found(Platform::Hip, error))?,
        })
    }

    pub(super) fn run(&self, code: &[u8]) -> Result<Vec<Listing>, CompileError> {
        let refuse = |error: code_object::CodeObjectError| CompileError::Disassembly {
            reason: error.to_string(),
        };
        let object = code_object::read(code).map_err(refuse)?;
        let kernels = code_object::kernel_code(code).map_err(refuse)?;
        let isa = CString::new(format!("amdgcn-amd-amdhsa--{}", object.target)).map_err(|error| {
            CompileError::Disassembly {
                reason: error.to_string(),
            }
        })?;
        let info = Info::new(self.api, &isa)?;
        kernels.into_iter().map(|kernel| info.listing(kernel)).collect()
    }
}

/// comgr's disassembler for one target; destroyed with the value.
struct Info<'a> {
    api: &'a ComgrLibrary,
    handle: amd_comgr_disassembly_info_t,
}

/// What the callbacks see: the kernel's bytes, and where the text goes.
struct Walk<'a> {
    code: &'a [u8],
    text: String,
}

impl<'a> Info<'a> {
    fn new(api: &'a ComgrLibrary, isa: &CStr) -> Result<Info<'a>, CompileError> {
        let mut handle = amd_comgr_disassembly_info_t { handle: 0 };
        // SAFETY: `isa` is nul-terminated, the callbacks have comgr's signatures, `handle` is a live place for the
        // result.
        let status = unsafe {
            (api.amd_comgr_create_disassembly_info)(
                isa.as_ptr(),
                Some(read_memory),
                Some(print_instruction),
                Some(print_annotation),
                &mut handle,
            )
        };
        if status != amd_comgr_status_s::AMD_COMGR_STATUS_SUCCESS {
            return Err(CompileError::Disassembly {
                reason: format!("comgr knows no target {} (status {})", isa.to_string_lossy(), status.0),
            });
        }
        Ok(Info { api, handle })
    }

    fn listing(&self, kernel: code_object::KernelCode<'_>) -> Result<Listing, CompileError> {
        let mut walk = Walk {
            code: kernel.bytes,
            text: String::new(),
        };
        let mut instructions = Vec::new();
        let mut offset = 0u64;
        while offset < kernel.bytes.len() as u64 {
            walk.text.clear();
            let mut size = 0u64;
            // SAFETY: the callbacks take `user_data` as the `Walk` that it is; it is not used elsewhere meanwhile.
            let status = unsafe {
                (self.api.amd_comgr_disassemble_instruction)(
                    self.handle,
                    offset,
                    (&raw mut walk).cast::<c_void>(),
                    &mut size,
                )
            };
            let text = if status == amd_comgr_status_s::AMD_COMGR_STATUS_SUCCESS && size > 0 {
                walk.text.split_whitespace().collect::<Vec<_>>().join(" ")
            } else {
                // Padding after the last instruction, or data: one word is shown and stepped over.
                let at = usize::try_from(offset).unwrap_or(usize::MAX);
                let bytes = kernel.bytes.get(at..).unwrap_or_default();
                size = (bytes.len() as u64).clamp(1, 4);
                let word: Vec<String> = bytes.iter().take(4).map(|byte| format!("0x{byte:02x}")).collect();
                format!(".byte {}", word.join(", "))
            };
            instructions.push(Instruction { offset, text });
            offset += size;
        }
        Ok(Listing {
            kernel: kernel.name,
            instructions,
        })
    }
}

impl Drop for Info<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle came from amd_comgr_create_disassembly_info and is destroyed once.
        unsafe { (self.api.amd_comgr_destroy_disassembly_info)(self.handle) };
    }
}

/// Copies up to `size` bytes from `from` (an offset into the kernel) to `to`; returns how many.
unsafe extern "C" fn read_memory(from: u64, to: *mut c_char, size: u64, user_data: *mut c_void) -> u64 {
    // SAFETY: `listing` passes a live `Walk`, and nothing else borrows it during the call.
    let walk = unsafe { &*user_data.cast::<Walk<'_>>() };
    let rest = usize::try_from(from)
        .ok()
        .and_then(|from| walk.code.get(from..))
        .unwrap_or_default();
    let bytes = rest.len().min(usize::try_from(size).unwrap_or(usize::MAX));
    // SAFETY: comgr gives room for `size` bytes; `bytes` is at most that, and at most what `rest` holds.
    unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr().cast::<c_char>(), to, bytes) };
    bytes as u64
}

unsafe extern "C" fn print_instruction(instruction: *const c_char, user_data: *mut c_void) {
    // SAFETY: as in `read_memory`; comgr's two callbacks do not nest.
    let walk = unsafe { &mut *user_data.cast::<Walk<'_>>() };
    // SAFETY: comgr passes a nul-terminated string that lives during the call.
    walk.text
        .push_str(&unsafe { CStr::from_ptr(instruction) }.to_string_lossy());
}

/// Branch targets are already in the instruction's own text.
unsafe extern "C" fn print_annotation(_address: u64, _user_data: *mut c_void) {}
