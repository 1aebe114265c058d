//! `libamd_comgr`'s disassembler, loaded at run time.

use super::{Disassembler, Line};
use crate::error::DisassemblyError;
use comgr_sys::{ComgrLibrary, Loaded, Search, amd_comgr_disassembly_info_t, amd_comgr_status_s};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Mutex;

/// A created disassembler and its use stay together, in the whole process. (comgr serialises its calls anyway.)
static LOCK: Mutex<()> = Mutex::new(());

struct State<'a> {
    base: u64,
    bytes: &'a [u8],
    text: String,
}

extern "C" fn read_memory(from: u64, to: *mut c_char, size: u64, user: *mut c_void) -> u64 {
    // SAFETY: comgr hands back the pointer given to `amd_comgr_disassemble_instruction`, a live `State`.
    let state = unsafe { &*user.cast::<State<'_>>() };
    let offset = from.saturating_sub(state.base) as usize;
    let rest = state.bytes.get(offset..).unwrap_or_default();
    let count = rest.len().min(size as usize);
    // SAFETY: comgr's buffer holds `size` bytes and `count` is at most that.
    unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr().cast(), to, count) };
    count as u64
}

extern "C" fn print_text(text: *const c_char, user: *mut c_void) {
    // SAFETY: as in `read_memory`; the text is a C string that lives for the call.
    let (state, text) = unsafe { (&mut *user.cast::<State<'_>>(), CStr::from_ptr(text)) };
    state.text.push_str(text.to_string_lossy().trim());
}

extern "C" fn print_annotation(_address: u64, _user: *mut c_void) {}

/// The disassembler of `libamd_comgr.so`: the process's one library, which is never closed.
#[derive(Clone, Copy)]
pub struct Comgr {
    library: &'static Loaded<ComgrLibrary>,
}

impl Comgr {
    /// Loads the library from ROCm's own folders, or by the loader's path; one that the process has already is taken as
    /// it is.
    ///
    /// # Errors
    /// Every place looked at.
    pub fn open() -> Result<Comgr, DisassemblyError> {
        Comgr::open_at(&Search::default())
    }

    /// As [`Comgr::open`], looking where `search` says.
    ///
    /// # Errors
    /// Every place looked at.
    pub fn open_at(search: &Search) -> Result<Comgr, DisassemblyError> {
        let library = comgr_sys::shared(search).map_err(|error| DisassemblyError(error.to_string()))?;
        Ok(Comgr { library })
    }
}

impl Disassembler for Comgr {
    fn disassemble(&self, target: &str, address: u64, bytes: &[u8]) -> Result<Vec<Line>, DisassemblyError> {
        const SUCCESS: amd_comgr_status_s = amd_comgr_status_s::AMD_COMGR_STATUS_SUCCESS;
        let _guard = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let isa = CString::new(format!("amdgcn-amd-amdhsa--{target}"))
            .map_err(|_| DisassemblyError(format!("bad target {target:?}")))?;
        let mut info = amd_comgr_disassembly_info_t { handle: 0 };
        // SAFETY: valid C string, callbacks of the declared types, an out pointer.
        let status = unsafe {
            (self.library.amd_comgr_create_disassembly_info)(
                isa.as_ptr(),
                Some(read_memory),
                Some(print_text),
                Some(print_annotation),
                &mut info,
            )
        };
        if status != SUCCESS {
            return Err(DisassemblyError(format!(
                "comgr has no disassembler for {target} (status {})",
                status.0
            )));
        }
        let mut lines = Vec::new();
        let mut state = State {
            base: address,
            bytes,
            text: String::new(),
        };
        let end = address + bytes.len() as u64;
        let mut at = address;
        while at < end {
            state.text.clear();
            let mut size = 0u64;
            // SAFETY: `state` outlives the call and is not otherwise borrowed during it.
            let status = unsafe {
                (self.library.amd_comgr_disassemble_instruction)(info, at, (&raw mut state).cast(), &mut size)
            };
            if status != SUCCESS || size == 0 {
                size = 4;
                state.text.clear();
            }
            lines.push(Line {
                address: at,
                size: size as u32,
                text: state.text.clone(),
            });
            at += size;
        }
        // SAFETY: `info` was created above and is not used again.
        unsafe { (self.library.amd_comgr_destroy_disassembly_info)(info) };
        Ok(lines)
    }
}
