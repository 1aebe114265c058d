//! Where the text of the instructions comes from.
//!
//! The decoder reads a disassembler's text, which names every field of an instruction (it assembles back to the
//! same bytes). [`Comgr`] asks the library that ROCm's runtimes ship; [`Listing`] is text made ahead of time, for
//! hosts on which that library cannot be loaded.

mod comgr;
mod worker;

pub use comgr::Comgr;
pub use worker::{Worker, serve};

use crate::error::DisassemblyError;

/// One disassembled instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The address in the image.
    pub address: u64,
    /// Bytes.
    pub size: u32,
    /// The text; empty where the bytes are no instruction.
    pub text: String,
}

/// A source of disassembly.
pub trait Disassembler: Send + Sync {
    /// Disassembles `bytes`, which lie at `address` of the image, for `target` (`gfx90a:xnack-`).
    ///
    /// The lines cover all the bytes in order; four bytes that are no instruction give an empty text.
    fn disassemble(&self, target: &str, address: u64, bytes: &[u8]) -> Result<Vec<Line>, DisassemblyError>;
}

/// Disassembly made ahead of time: one line an instruction, `address size text`, numbers in hexadecimal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    lines: Vec<Line>,
}

impl Listing {
    /// Reads the text that [`Listing::print`] makes.
    pub fn parse(text: &str) -> Result<Listing, DisassemblyError> {
        let mut lines = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let mut parts = line.splitn(3, ' ');
            let number = |part: Option<&str>| part.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            let (Some(address), Some(size)) = (number(parts.next()), number(parts.next())) else {
                return Err(DisassemblyError(format!(
                    "line {} of the listing is damaged: {line:?}",
                    index + 1
                )));
            };
            lines.push(Line {
                address,
                size: size as u32,
                text: parts.next().unwrap_or("").to_string(),
            });
        }
        lines.sort_by_key(|line| line.address);
        Ok(Listing { lines })
    }

    /// Prints lines in the form that [`Listing::parse`] reads.
    pub fn print(lines: &[Line]) -> String {
        lines
            .iter()
            .map(|line| format!("{:x} {:x} {}\n", line.address, line.size, line.text))
            .collect()
    }

    /// Replaces the text at `address`, for a code object whose bytes were patched there.
    pub fn patch(&mut self, address: u64, text: &str) -> bool {
        let found = self.lines.iter_mut().find(|line| line.address == address);
        found.map(|line| line.text = text.to_string()).is_some()
    }

    /// The lines in order of their addresses.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }
}

impl Disassembler for Listing {
    fn disassemble(&self, _target: &str, address: u64, bytes: &[u8]) -> Result<Vec<Line>, DisassemblyError> {
        let end = address + bytes.len() as u64;
        let start = self.lines.partition_point(|line| line.address < address);
        let lines: Vec<Line> = self.lines[start..]
            .iter()
            .take_while(|line| line.address < end)
            .cloned()
            .collect();
        if lines.first().is_none_or(|line| line.address != address) && !bytes.is_empty() {
            return Err(DisassemblyError(format!("the listing has nothing at {address:#x}")));
        }
        Ok(lines)
    }
}
