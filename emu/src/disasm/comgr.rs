//! `libamd_comgr`'s disassembler, loaded at run time.

use super::{Disassembler, Line};
use crate::error::DisassemblyError;
use libloading::{Library, Symbol};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Mutex;

type ReadMemory = extern "C" fn(u64, *mut c_char, u64, *mut c_void) -> u64;
type PrintText = extern "C" fn(*const c_char, *mut c_void);
type PrintAnnotation = extern "C" fn(u64, *mut c_void);
type Create = unsafe extern "C" fn(*const c_char, ReadMemory, PrintText, PrintAnnotation, *mut Info) -> u32;
type Destroy = unsafe extern "C" fn(Info) -> u32;
type Step = unsafe extern "C" fn(Info, u64, *mut c_void, *mut u64) -> u32;

/// `amd_comgr_disassembly_info_t`: one handle passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    handle: u64,
}

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

/// The disassembler of `libamd_comgr.so`.
pub struct Comgr {
    library: Library,
    /// comgr serialises its calls anyway; the lock keeps a created handle and its use together.
    lock: Mutex<()>,
}

impl Comgr {
    /// Loads the library by its usual sonames.
    pub fn open() -> Result<Comgr, DisassemblyError> {
        let mut last = String::new();
        for name in ["libamd_comgr.so.3", "libamd_comgr.so.2", "libamd_comgr.so"] {
            // SAFETY: loading ROCm's own library runs only its initialisers.
            match unsafe { Library::new(name) } {
                Ok(library) => {
                    return Ok(Comgr {
                        library,
                        lock: Mutex::new(()),
                    });
                }
                Err(error) => last = error.to_string(),
            }
        }
        Err(DisassemblyError(format!("libamd_comgr could not be loaded: {last}")))
    }

    fn symbol<T>(&self, name: &str) -> Result<Symbol<'_, T>, DisassemblyError> {
        // SAFETY: the types above are those of amd_comgr.h.
        unsafe { self.library.get(name.as_bytes()) }.map_err(|error| DisassemblyError(error.to_string()))
    }
}

impl Disassembler for Comgr {
    fn disassemble(&self, target: &str, address: u64, bytes: &[u8]) -> Result<Vec<Line>, DisassemblyError> {
        let create: Symbol<'_, Create> = self.symbol("amd_comgr_create_disassembly_info")?;
        let destroy: Symbol<'_, Destroy> = self.symbol("amd_comgr_destroy_disassembly_info")?;
        let step: Symbol<'_, Step> = self.symbol("amd_comgr_disassemble_instruction")?;
        let _guard = self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let isa = CString::new(format!("amdgcn-amd-amdhsa--{target}"))
            .map_err(|_| DisassemblyError(format!("bad target {target:?}")))?;
        let mut info = Info { handle: 0 };
        // SAFETY: valid C string, callbacks of the declared types, an out pointer.
        let status = unsafe { create(isa.as_ptr(), read_memory, print_text, print_annotation, &mut info) };
        if status != 0 {
            return Err(DisassemblyError(format!(
                "comgr has no disassembler for {target} (status {status})"
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
            let status = unsafe { step(info, at, (&raw mut state).cast(), &mut size) };
            if status != 0 || size == 0 {
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
        unsafe { destroy(info) };
        Ok(lines)
    }
}
