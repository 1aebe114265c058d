//! One entry's bytes: magic, key, checksum of the rest, then the log and the code object.

use crate::compile::CompiledObject;

/// Part of every key: a new format never meets an old entry.
pub(super) const FORMAT: &str = "graphc code object cache 1";
pub(super) const EXTENSION: &str = "gco";

const MAGIC: &[u8; 8] = b"GRAPHCO1";
const HEADER: usize = 8 + 32 + 32;

pub(super) fn encode(object: &CompiledObject, key: &[u8; 32]) -> Vec<u8> {
    // Two byte strings, each with its length; the log first, for it is short.
    let mut body = (object.log.len() as u64).to_le_bytes().to_vec();
    body.extend_from_slice(object.log.as_bytes());
    body.extend_from_slice(&object.bytes);
    let mut entry = Vec::with_capacity(HEADER + body.len());
    entry.extend_from_slice(MAGIC);
    entry.extend_from_slice(key);
    entry.extend_from_slice(blake3::hash(&body).as_bytes());
    entry.extend_from_slice(&body);
    entry
}

/// Reads an entry that was written under `key`; None for anything else.
pub(super) fn decode(entry: &[u8], key: &[u8; 32]) -> Option<CompiledObject> {
    let (magic, rest) = entry.split_first_chunk::<8>()?;
    let (named, rest) = rest.split_first_chunk::<32>()?;
    let (checksum, body) = rest.split_first_chunk::<32>()?;
    if magic != MAGIC || named != key || blake3::hash(body).as_bytes() != checksum {
        return None;
    }
    let (length, rest) = body.split_first_chunk::<8>()?;
    let (log, bytes) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some(CompiledObject {
        bytes: bytes.to_vec(),
        log: String::from_utf8(log.to_vec()).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let object = CompiledObject {
            bytes: (0..50).collect(),
            log: "warning: x".into(),
        };
        let key = [9; 32];
        let entry = encode(&object, &key);
        assert_eq!(decode(&entry, &key), Some(object));
        assert_eq!(decode(&entry, &[8; 32]), None, "an entry under another's name");
        for at in 0..entry.len() {
            let mut damaged = entry.clone();
            damaged[at] ^= 0x10;
            assert_eq!(decode(&damaged, &key), None, "byte {at}");
            assert_eq!(decode(&entry[..at], &key), None, "cut at {at}");
        }
    }
}
