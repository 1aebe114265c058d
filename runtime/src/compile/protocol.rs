//! What a pool and its workers say to each other: length-prefixed postcard over the worker's stdin and stdout.
//!
//! A frame is a little-endian u32 length and that many bytes. The pool speaks first ([`ToWorker::Setup`]); then each
//! request has exactly one answer, in order. A closed stdin is the worker's word to leave.

use std::io::{self, ErrorKind, Read, Write};

use dylib::Search;
use ir::target::Platform;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::disassemble::Listing;
use super::{CompileError, CompileRequest, CompiledObject};

/// Changes with every change of the messages; graphc starts its own binary, so only a foreign worker can differ.
pub(super) const VERSION: u32 = 2;

/// No source and no code object comes near this: a longer frame is noise, not a message.
const LONGEST_FRAME: u32 = 256 << 20;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToWorker {
    /// Which platform's compiler to load, and where it is looked for.
    Setup {
        version: u32,
        platform: Platform,
        search: Search,
    },
    Compile(CompileRequest),
    Disassemble(Vec<u8>),
    Assemble(CompileRequest),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromWorker {
    /// The compiler's identity, or where it was looked for in vain.
    Ready {
        version: u32,
        compiler: Result<String, CompileError>,
    },
    Compiled(Result<CompiledObject, CompileError>),
    Disassembled(Result<Vec<Listing>, CompileError>),
    Assembled(Result<String, CompileError>),
}

pub(super) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    frame = postcard::to_extend(message, frame).map_err(io::Error::other)?;
    let length = u32::try_from(frame.len() - 4)
        .ok()
        .filter(|&length| length <= LONGEST_FRAME);
    let length = length.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "message too long"))?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

pub(super) fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&encode(message)?)?;
    to.flush()
}

/// Reads one message; None at a clean end of the stream.
pub(super) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read(&mut length)? {
        0 => return Ok(None),
        n => from.read_exact(&mut length[n..])?,
    }
    let length = u32::from_le_bytes(length);
    if length > LONGEST_FRAME {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("a frame of {length} bytes"),
        ));
    }
    // Grown as bytes arrive: a wrong length must not allocate what never comes.
    let mut bytes = Vec::new();
    from.take(u64::from(length)).read_to_end(&mut bytes)?;
    if bytes.len() < length as usize {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let (message, rest) =
        postcard::take_from_bytes(&bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    match rest.is_empty() {
        true => Ok(Some(message)),
        false => Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("{} bytes after a message", rest.len()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_went() {
        let object = CompiledObject {
            bytes: vec![1, 2, 3],
            log: "warning".into(),
        };
        let mut pipe = Vec::new();
        write(&mut pipe, &FromWorker::Compiled(Ok(object.clone()))).unwrap();
        write(
            &mut pipe,
            &FromWorker::Ready {
                version: VERSION,
                compiler: Ok("x".into()),
            },
        )
        .unwrap();
        let mut from = pipe.as_slice();
        assert!(matches!(read(&mut from).unwrap(), Some(FromWorker::Compiled(Ok(o))) if o == object));
        assert!(matches!(
            read(&mut from).unwrap(),
            Some(FromWorker::Ready { compiler: Ok(_), .. })
        ));
        assert!(read::<FromWorker>(&mut from).unwrap().is_none());
    }

    #[test]
    fn noise_and_cuts_are_errors() {
        assert!(read::<FromWorker>(&mut b"Usage: nothing like a worker".as_slice()).is_err());
        let frame = encode(&ToWorker::Disassemble(vec![7; 100])).unwrap();
        for cut in 1..frame.len() {
            assert!(read::<ToWorker>(&mut &frame[..cut]).is_err(), "cut at {cut}");
        }
    }
}
