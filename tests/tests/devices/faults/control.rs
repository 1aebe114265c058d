//! The stand-in for `libamdhip64`, steered: faults by name, calls counted, and what was not given back.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};

use graphc_tests::emulated_hip::EmulatedHip;
use libloading::Library;

/// Room for a line for each function of HIP.
const ROOM: usize = 1 << 16;

type Write = unsafe extern "C" fn(*mut c_char, c_int) -> c_int;

/// See the module.
pub struct Control {
    pub hip: EmulatedHip,
    library: Library,
}

impl Control {
    /// One library with these variables; None (and a printed line) where there is no ROCm to compile with.
    pub fn new(variables: &[(&str, &str)]) -> Option<Control> {
        let hip = EmulatedHip::new(variables)?;
        // The library reads the variables at the first call, which opening a device makes.
        drop(hip.open(0).expect("a device"));
        // SAFETY: it is loaded already.
        let library = unsafe { Library::new(hip.folder().join("libamdhip64.so.7")) };
        // The runtime may have opened it by its other name.
        let library = library.expect("it is loaded");
        Some(Control { hip, library })
    }

    /// Begins again as in a new process. Nothing of the device may be in use.
    pub fn restart(&self) {
        // SAFETY: the function's own signature.
        let restart = unsafe {
            self.library
                .get::<unsafe extern "C" fn() -> c_int>(b"graphcEmuRestart\0")
        };
        let restart = restart.expect("the library has it");
        // SAFETY: the caller's.
        let code = unsafe { restart() };
        assert_eq!(code, 0);
    }

    /// Asks for faults, in place of those before, and counts calls from 0 on.
    pub fn set_faults(&self, list: &str) {
        type Set = unsafe extern "C" fn(*const c_char) -> c_int;
        let text = CString::new(list).expect("no zero");
        // SAFETY: the function's own signature.
        let set = unsafe { self.library.get::<Set>(b"graphcEmuSetFaults\0") }.expect("the library has it");
        // SAFETY: a C string.
        let code = unsafe { set(text.as_ptr()) };
        assert_eq!(code, 0, "{list:?}");
    }

    /// How often each function was called since the faults were set.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        self.lines(b"graphcEmuCalls\0")
    }

    /// What there is that nobody gave back.
    pub fn live(&self) -> BTreeMap<String, u64> {
        let mut live = self.lines(b"graphcEmuLive\0");
        live.retain(|_, count| *count > 0);
        live
    }

    fn lines(&self, name: &[u8]) -> BTreeMap<String, u64> {
        // SAFETY: the functions' own signature.
        let write = unsafe { self.library.get::<Write>(name) }.expect("the library has it");
        let mut text = vec![0u8; ROOM];
        // SAFETY: room as is said.
        let code = unsafe { write(text.as_mut_ptr().cast(), ROOM as c_int) };
        assert_eq!(code, 0);
        let text: Vec<u8> = text.into_iter().take_while(|byte| *byte != 0).collect();
        let text = String::from_utf8(text).expect("names");
        let line = |line: &str| {
            let (name, count) = line.split_once(' ').expect("a name and a count");
            (name.to_owned(), count.parse().expect("a count"))
        };
        text.lines().map(line).collect()
    }
}
