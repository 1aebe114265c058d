//! Disassembly that is kept: programs load the same code again and again, and a worker takes longer than all else about
//! a load.

use graphc_emu::{Disassembler, DisassemblyError, Line};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// At most this many bytes of code have their disassembly kept; what comes after is disassembled each time.
const MOST: usize = 64 << 20;

/// A target, an address and bytes, whose lines are known.
type Code = (String, u64, Vec<u8>);

/// See the module.
pub struct Kept {
    source: Arc<dyn Disassembler>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    lines: HashMap<Code, Vec<Line>>,
    bytes: usize,
}

impl Kept {
    pub fn new(source: Arc<dyn Disassembler>) -> Kept {
        Kept {
            source,
            known: Mutex::default(),
        }
    }
}

impl Disassembler for Kept {
    fn disassemble(&self, target: &str, address: u64, bytes: &[u8]) -> Result<Vec<Line>, DisassemblyError> {
        let code = (target.to_owned(), address, bytes.to_vec());
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lines) = known().lines.get(&code) {
            return Ok(lines.clone());
        }
        let lines = self.source.disassemble(target, address, bytes)?;
        let mut known = known();
        if known.bytes + bytes.len() <= MOST {
            known.bytes += bytes.len();
            known.lines.insert(code, lines.clone());
        }
        Ok(lines)
    }
}
