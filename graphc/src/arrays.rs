//! Named arrays in files: `.npz`, `.npy` and `.safetensors`.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use indexmap::IndexMap;
use ir::{DType, HostTensor, Storage};
use npyz::{DType as NpyType, NpyFile, NpyHeader, Order, TypeChar, WriterBuilder};

use crate::error::{Error, Result};

/// Arrays by name, in the order of the file.
pub type Arrays = IndexMap<String, HostTensor>;

/// Reads a file of arrays; the kind is told by the extension. A `.npy` file holds one array, named after the file.
///
/// # Errors
/// A file that cannot be read, is not of its kind, or holds an element type that graphc does not have.
pub fn read(path: &Path) -> Result<Arrays> {
    let bad = |message: String| Error::Arrays {
        path: path.to_owned(),
        message,
    };
    let stem = || {
        path.file_stem()
            .map_or_else(|| "input".to_owned(), |s| s.to_string_lossy().into_owned())
    };
    ir::file::check_readable(path).map_err(Error::io("read", path))?;
    match path.extension().and_then(|e| e.to_str()).unwrap_or_default() {
        "npz" => {
            let file = File::open(path).map_err(Error::io("read", path))?;
            let mut archive = npyz::npz::NpzArchive::new(BufReader::new(file))
                .map_err(|e| bad(format!("not an npz archive: {e}")))?;
            // The archive's own order is not the same from run to run, and neither would be the first error.
            let mut names: Vec<String> = archive.array_names().map(str::to_owned).collect();
            names.sort_unstable();
            let mut arrays = Arrays::new();
            for name in names {
                let bad = |e: String| bad(format!("array {name:?}: {e}"));
                let file = npyz::npz::file_name_from_array_name(&name);
                let entry = archive.zip_archive().by_name(&file);
                let entry = entry.map_err(|e| bad(e.to_string()))?;
                let tensor = open(entry).and_then(decode).map_err(bad)?;
                arrays.insert(name, tensor);
            }
            Ok(arrays)
        }
        "npy" => {
            let file = File::open(path).map_err(Error::io("read", path))?;
            let array = open(BufReader::new(file)).map_err(|e| bad(format!("not an npy file: {e}")))?;
            Ok(Arrays::from([(stem(), decode(array).map_err(bad)?)]))
        }
        "safetensors" => {
            let weights = frontend::weights::Weights::open(path).map_err(|e| bad(e.to_string()))?;
            let mut arrays = Arrays::new();
            for view in weights.tensors() {
                let tensor = view.to_host().map_err(|e| bad(e.to_string()))?;
                arrays.insert(view.name.clone(), tensor);
            }
            Ok(arrays)
        }
        other => Err(bad(format!(
            "unknown kind of file {other:?}; arrays are read from .npz, .npy and .safetensors"
        ))),
    }
}

/// Reads several files of arrays as one.
///
/// # Errors
/// As [`read`]; an array that two of the files hold.
pub fn read_all<P: AsRef<Path>>(paths: &[P]) -> Result<Arrays> {
    let mut all = Arrays::new();
    let mut from: IndexMap<String, &Path> = IndexMap::new();
    for path in paths.iter().map(AsRef::as_ref) {
        for (name, tensor) in read(path)? {
            if let Some(first) = from.insert(name.clone(), path) {
                return Err(Error::Arrays {
                    path: path.to_owned(),
                    message: format!("{} holds an array {name:?} too; leave one of them out", first.display()),
                });
            }
            all.insert(name, tensor);
        }
    }
    Ok(all)
}

/// Gives the array of a lone `.npy` file, which knows no name but the file's, the only name that it can be meant for.
pub fn name_lone<P: AsRef<Path>>(paths: &[P], arrays: Arrays, wanted: &[&str]) -> Arrays {
    let is_npy = |p: &P| p.as_ref().extension().is_some_and(|e| e == "npy");
    match (paths, wanted, arrays.len()) {
        ([path], [name], 1) if is_npy(path) => {
            let tensors = arrays.into_values();
            tensors.map(|tensor| ((*name).to_owned(), tensor)).collect()
        }
        _ => arrays,
    }
}

/// The NumPy type codes that have an element type here.
fn element_type(code: &str) -> Option<DType> {
    Some(match code {
        "<f4" => DType::F32,
        "<f2" => DType::F16,
        "<f8" => DType::F64,
        "<i8" => DType::I64,
        "<i4" => DType::I32,
        "<i2" => DType::I16,
        "|i1" => DType::I8,
        "|u1" => DType::U8,
        "|b1" => DType::Bool,
        _ => return None,
    })
}

/// The most bytes of a header's text; NumPy's own limit is 10,000.
const MOST_HEADER: u64 = 1 << 16;
/// The most brackets of a header's text: an array of one element type has two pairs, and the parser takes up to three times as long
/// for each level.
const MOST_BRACKETS: usize = 8;

/// Reads the header of an array, whose text may be anything.
fn open<R: Read>(mut reader: R) -> std::result::Result<NpyFile<R>, String> {
    let error = |e: std::io::Error| e.to_string();
    // Magic, version, and the length of the text in two bytes or four.
    let mut header = vec![0; 10];
    let whole = reader.read_exact(&mut header).map_err(|e| e.kind());
    if !header.starts_with(b"\x93NUMPY") {
        return Err("it does not begin with NumPy's magic bytes".to_owned());
    }
    whole.map_err(|kind| kind.to_string())?;
    if header[6] > 1 {
        header.resize(12, 0);
        reader.read_exact(&mut header[10..]).map_err(error)?;
    }
    let length = header[8..].iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
    if length > MOST_HEADER {
        return Err(format!(
            "its header has {length} bytes, but {MOST_HEADER} at most are read"
        ));
    }
    let start = header.len();
    header.resize(start + length as usize, 0);
    reader.read_exact(&mut header[start..]).map_err(error)?;
    let brackets = header[start..].iter().filter(|byte| b"([{".contains(byte)).count();
    if brackets > MOST_BRACKETS {
        return Err(format!(
            "its header has {brackets} opening brackets, but {MOST_BRACKETS} at most are read; structured arrays are not supported"
        ));
    }
    let header = NpyHeader::from_reader(header.as_slice()).map_err(error)?;
    Ok(NpyFile::with_header(header, reader))
}

fn decode<R: Read>(array: NpyFile<R>) -> std::result::Result<HostTensor, String> {
    let NpyType::Plain(ty) = array.dtype() else {
        return Err("structured arrays are not supported".to_owned());
    };
    let code = ty.to_string();
    let dtype = element_type(&code).ok_or_else(|| {
        format!(
            "element type {code:?} is not supported; known: float16/32/64, int8/16/32/64, uint8 and bool, little-endian"
        )
    })?;
    let shape: Vec<usize> = array.shape().iter().map(|d| *d as usize).collect();
    let fortran = array.order() == Order::Fortran;
    macro_rules! bytes {
        ($t:ty) => {{
            let values: Vec<$t> = array.into_vec().map_err(|e| e.to_string())?;
            let values = if fortran { to_row_major(&values, &shape) } else { values };
            values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()
        }};
    }
    let bytes = match dtype {
        DType::F32 => bytes!(f32),
        DType::F16 => bytes!(half::f16),
        DType::F64 => bytes!(f64),
        DType::I64 => bytes!(i64),
        DType::I32 => bytes!(i32),
        DType::I16 => bytes!(i16),
        DType::I8 => bytes!(i8),
        DType::U8 => bytes!(u8),
        _ => {
            debug_assert_eq!(ty.type_char(), TypeChar::Bool);
            let values: Vec<bool> = array.into_vec().map_err(|e| e.to_string())?;
            let values = if fortran { to_row_major(&values, &shape) } else { values };
            values.into_iter().map(u8::from).collect()
        }
    };
    HostTensor::new(dtype, shape, Storage::new(bytes)).map_err(|e| e.to_string())
}

/// Reorders elements stored first axis fastest.
fn to_row_major<T: Copy>(values: &[T], shape: &[usize]) -> Vec<T> {
    let mut strides = vec![1; shape.len()];
    for i in 1..shape.len() {
        strides[i] = strides[i - 1] * shape[i - 1];
    }
    let mut index = vec![0usize; shape.len()];
    let mut out = Vec::with_capacity(values.len());
    for _ in 0..values.len() {
        out.push(values[index.iter().zip(&strides).map(|(i, s)| i * s).sum::<usize>()]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    out
}

/// The kinds of file that arrays are written as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Npz,
    Npy,
}

impl Kind {
    fn of(path: &Path) -> Result<Kind> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("npz") => Ok(Kind::Npz),
            Some("npy") => Ok(Kind::Npy),
            // The name of a device or a FIFO says nothing of what goes through it.
            None if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) || ir::file::is_stdout(path) => Ok(Kind::Npz),
            other => Err(Error::Arrays {
                path: path.to_owned(),
                message: format!(
                    "unknown kind of file {:?}; arrays are written as .npz or .npy",
                    other.unwrap_or_default()
                ),
            }),
        }
    }
}

/// Finds out whether [`write`] could write a file, before the arrays are there.
///
/// # Errors
/// A file that cannot be written, or an extension that is neither `.npz` nor `.npy`.
pub fn check_writable(path: &Path) -> Result<()> {
    ir::file::check(path).map_err(Error::io("write", path))?;
    Kind::of(path).map(drop)
}

/// Writes arrays as `.npz`, or one array as `.npy`. Types that NumPy lacks (bf16, fp8, 4-bit) are widened to `f32` or `i8`.
///
/// The file appears whole or not at all; what is no regular file is written through, see [`ir::file`].
///
/// # Errors
/// A file that cannot be written, or an extension that is neither.
pub fn write(path: &Path, arrays: &Arrays) -> Result<()> {
    let bad = |message: String| Error::Arrays {
        path: path.to_owned(),
        message,
    };
    // Made in memory: the archive's writer would print an error of the file itself, and not report it.
    let mut bytes = Vec::new();
    match Kind::of(path)? {
        Kind::Npz => {
            let mut out = npyz::npz::NpzWriter::new(std::io::Cursor::new(&mut bytes));
            for (name, tensor) in arrays {
                encode_npz(&mut out, name, tensor).map_err(|e| bad(format!("array {name:?}: {e}")))?;
            }
        }
        Kind::Npy if arrays.len() == 1 => encode_npy(&mut bytes, &arrays[0]).map_err(|e| bad(e.to_string()))?,
        Kind::Npy => {
            return Err(bad(format!(
                "an .npy file holds one array, not {}; write .npz",
                arrays.len()
            )));
        }
    }
    ir::file::write(path, |out| out.write_all(&bytes)).map_err(Error::io("write", path))
}

macro_rules! by_type {
    ($tensor:expr, |$values:ident| $body:expr) => {{
        let t = $tensor;
        macro_rules! raw {
            ($ty:ty) => {{
                let size = std::mem::size_of::<$ty>();
                let $values: Vec<$ty> = t
                    .bytes
                    .chunks_exact(size)
                    .map(|c| <$ty>::from_le_bytes(c.try_into().unwrap_or_default()))
                    .collect();
                $body
            }};
        }
        match t.dtype {
            DType::F32 => raw!(f32),
            DType::F16 => raw!(half::f16),
            DType::F64 => raw!(f64),
            DType::I64 => raw!(i64),
            DType::I32 => raw!(i32),
            DType::I16 => raw!(i16),
            DType::I8 => raw!(i8),
            DType::U8 => raw!(u8),
            DType::Bool => {
                let $values: Vec<bool> = t.bytes.iter().map(|b| *b != 0).collect();
                $body
            }
            DType::I4 | DType::U4 => {
                let $values: Vec<i8> = t.to_i64().into_iter().map(|v| v as i8).collect();
                $body
            }
            DType::BF16 | DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => {
                let $values: Vec<f32> = t.to_f32();
                $body
            }
        }
    }};
}

fn encode_npz<W: std::io::Write + std::io::Seek>(
    out: &mut npyz::npz::NpzWriter<W>,
    name: &str,
    tensor: &HostTensor,
) -> std::io::Result<()> {
    let shape: Vec<u64> = tensor.shape.iter().map(|d| *d as u64).collect();
    by_type!(tensor, |values| {
        let mut w = out
            .array(name, Default::default())?
            .default_dtype()
            .shape(&shape)
            .begin_nd()?;
        w.extend(values)?;
        w.finish()
    })
}

fn encode_npy<W: std::io::Write>(out: &mut W, tensor: &HostTensor) -> std::io::Result<()> {
    let shape: Vec<u64> = tensor.shape.iter().map(|d| *d as u64).collect();
    by_type!(tensor, |values| {
        let mut w = npyz::WriteOptions::new()
            .default_dtype()
            .shape(&shape)
            .writer(out)
            .begin_nd()?;
        w.extend(values)?;
        w.finish()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_round_trip() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("a.npz");
        let mut arrays = Arrays::new();
        for dtype in [
            DType::F32,
            DType::F16,
            DType::F64,
            DType::I64,
            DType::I32,
            DType::I16,
            DType::I8,
            DType::U8,
        ] {
            let values: Vec<f64> = (0..6).map(|v| f64::from(v) * 1.5).collect();
            arrays.insert(
                dtype.name().to_owned(),
                HostTensor::from_f64(dtype, [2, 3], &values).expect("6 values"),
            );
        }
        arrays.insert(
            "flag".into(),
            HostTensor::from_i64(DType::Bool, [3], &[1, 0, 1]).expect("3 values"),
        );
        arrays.insert("none".into(), HostTensor::from_f32([0, 4], &[]).expect("no values"));
        arrays.sort_keys();
        write(&path, &arrays).expect("writable");
        assert_eq!(read(&path).expect("readable"), arrays);
    }

    #[test]
    fn fortran_order_is_turned() {
        // [[1, 2, 3], [4, 5, 6]] stored by columns.
        assert_eq!(to_row_major(&[1, 4, 2, 5, 3, 6], &[2, 3]), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn damaged_files_are_errors() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for (name, bytes) in [
            ("a.npz", &b"PK nonsense"[..]),
            ("b.npy", b"\x93NUMPY\x01\x00\xff"),
            ("magic.npy", b"not an npy"),
            ("length.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff"),
            ("c.txt", b""),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).expect("writable");
            let error = read(&path).expect_err("damaged");
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn nested_headers_are_refused_and_not_parsed_for_ever() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for open in ["[", "{", "("] {
            let text = open.repeat(60);
            let mut file = b"\x93NUMPY\x01\x00".to_vec();
            file.extend((text.len() as u16).to_le_bytes());
            file.extend(text.as_bytes());
            let path = dir.path().join("nested.npy");
            std::fs::write(&path, &file).expect("writable");
            let error = read(&path).expect_err("not a header").to_string();
            assert!(error.contains("60 opening brackets"), "{error}");
        }
    }
}
