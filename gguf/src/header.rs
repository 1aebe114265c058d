//! The head of one GGUF file: metadata and where tensors lie.
//!
//! Before: bytes of a file. After: keys and tensors that are each inside the file, of known types, aligned, without
//! overlap.

use indexmap::IndexMap;
use indexmap::map::Entry;

use crate::cursor::Cursor;
use crate::error::Problem;
use crate::kind::TensorType;
use crate::value::Value;

/// A tensor of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub ty: TensorType,
    pub dims: Vec<u64>,
    /// From the file's first byte.
    pub first: u64,
    pub bytes: u64,
}

pub(crate) struct Header {
    pub version: u32,
    pub metadata: IndexMap<String, Value>,
    pub tensors: IndexMap<String, Place>,
}

/// The least bytes that a tensor's entry takes: a name's length, dims' number, one dim, type and offset.
const LEAST_ENTRY: u64 = 8 + 4 + 8 + 4 + 8;
/// The least bytes that a key takes: its length, a letter, the type and a byte of value.
const LEAST_KEY: u64 = 8 + 1 + 4 + 1;

/// Reads a file's head, and holds all that it says against the file's length.
pub(crate) fn read(bytes: &[u8]) -> Result<Header, Problem> {
    let mut cursor = Cursor::new(bytes);
    if !bytes.starts_with(b"GGUF") {
        return Err(Problem::Magic {
            found: bytes[..bytes.len().min(4)].to_vec(),
        });
    }
    cursor.take(4, "the header")?;
    let version = cursor.u32("the header")?;
    match version {
        2 | 3 => {}
        version if version & 0xffff == 0 && version != 0 => return Err(Problem::BigEndian),
        found => return Err(Problem::Version { found }),
    }
    let tensor_count = cursor.u64("the header")?;
    let key_count = cursor.u64("the header")?;
    at_least(&cursor, "keys", key_count, LEAST_KEY)?;
    let mut metadata = IndexMap::new();
    for _ in 0..key_count {
        let key = cursor.key()?;
        let value = cursor.value(&key)?;
        match metadata.entry(key) {
            Entry::Vacant(entry) => entry.insert(value),
            Entry::Occupied(entry) => {
                return Err(Problem::DuplicateKey {
                    key: entry.key().clone(),
                });
            }
        };
    }
    let alignment = alignment(&metadata)?;
    at_least(&cursor, "tensors", tensor_count, LEAST_ENTRY)?;
    let mut tensors = IndexMap::new();
    for _ in 0..tensor_count {
        let (name, place) = entry(&mut cursor, alignment)?;
        if tensors.contains_key(&name) {
            return Err(Problem::DuplicateTensor { name });
        }
        tensors.insert(name, place);
    }
    let data = cursor.at().next_multiple_of(alignment);
    settle(&mut tensors, data, bytes.len() as u64)?;
    Ok(Header {
        version,
        metadata,
        tensors,
    })
}

/// That a count of entries can be in the bytes that are left.
fn at_least(cursor: &Cursor<'_>, what: &str, count: u64, each: u64) -> Result<(), Problem> {
    match count.checked_mul(each) {
        Some(wanted) if wanted <= cursor.left() => Ok(()),
        wanted => Err(Problem::Truncated {
            what: format!("the {count} {what}"),
            at: cursor.at(),
            wanted: wanted.unwrap_or(u64::MAX),
            left: cursor.left(),
        }),
    }
}

fn alignment(metadata: &IndexMap<String, Value>) -> Result<u64, Problem> {
    let Some(value) = metadata.get("general.alignment") else {
        return Ok(32);
    };
    let wrong = || Problem::WrongValue {
        key: "general.alignment".to_owned(),
        found: value.to_string(),
        wanted: "a power of two".to_owned(),
    };
    let found = value.as_unsigned().ok_or_else(wrong)?;
    // Below 2^32, so that no place rounded up to it overflows.
    if found.is_power_of_two() && (8..1 << 32).contains(&found) {
        Ok(found)
    } else {
        Err(Problem::Alignment { found })
    }
}

/// A tensor's entry, whose place is from the start of the data yet.
fn entry(cursor: &mut Cursor<'_>, alignment: u64) -> Result<(String, Place), Problem> {
    let name = cursor.string("a tensor's name")?;
    let what = format!("tensor {name:?}");
    let rank = cursor.u32(&what)?;
    if !(1..=4).contains(&rank) {
        return Err(Problem::Rank { name, found: rank });
    }
    let dims = (0..rank).map(|_| cursor.u64(&what)).collect::<Result<Vec<u64>, _>>()?;
    let id = cursor.i32(&what)?;
    let ty = match TensorType::from_id(id) {
        Ok(ty) => ty,
        Err(reason) => {
            return Err(Problem::TensorType {
                name,
                found: id,
                reason,
            });
        }
    };
    let first = cursor.u64(&what)?;
    let Some(elements) = elements(&dims) else {
        return Err(Problem::Elements { name, dims });
    };
    if !dims[0].is_multiple_of(ty.block()) {
        return Err(Problem::Block {
            name,
            ty,
            columns: dims[0],
            block: ty.block(),
        });
    }
    let Some(bytes) = ty.bytes_of(elements) else {
        return Err(Problem::Elements { name, dims });
    };
    if !first.is_multiple_of(alignment) {
        return Err(Problem::Unaligned {
            name,
            offset: first,
            alignment,
        });
    }
    Ok((name, Place { ty, dims, first, bytes }))
}

/// The product of dims, below 2^63.
pub(crate) fn elements(dims: &[u64]) -> Option<u64> {
    // Of a tensor with no element too: other dims are not to overflow where a later reader multiplies them.
    let nonzero = dims.iter().map(|&dim| dim.max(1)).try_fold(1u64, u64::checked_mul)?;
    if nonzero >> 63 != 0 {
        None
    } else {
        Some(if dims.contains(&0) { 0 } else { nonzero })
    }
}

/// Makes places count from the file's start, inside the file and apart from each other.
fn settle(tensors: &mut IndexMap<String, Place>, data: u64, length: u64) -> Result<(), Problem> {
    for (name, place) in tensors.iter_mut() {
        let first = data.checked_add(place.first);
        let last = first.and_then(|first| first.checked_add(place.bytes));
        match (first, last) {
            (Some(first), Some(last)) if last <= length => place.first = first,
            // A tensor without bytes may stand at the end of a file that is not padded.
            (Some(first), _) if place.bytes == 0 => place.first = first.min(length),
            (first, last) => {
                return Err(Problem::Outside {
                    name: name.clone(),
                    first: first.unwrap_or(u64::MAX),
                    last: last.unwrap_or(u64::MAX),
                    length,
                });
            }
        }
    }
    let mut order: Vec<(&String, &Place)> = tensors.iter().filter(|(_, place)| place.bytes > 0).collect();
    order.sort_by_key(|(_, place)| place.first);
    for pair in order.windows(2) {
        let [(one, before), (other, after)] = pair else {
            continue;
        };
        if before.first + before.bytes > after.first {
            return Err(Problem::Overlap {
                one: (*one).clone(),
                other: (*other).clone(),
            });
        }
    }
    Ok(())
}
