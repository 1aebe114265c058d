//! Named arrays in files: `.npz`, `.npy` and `.safetensors`.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use indexmap::IndexMap;
use ir::{DType, HostTensor, Storage};
use npyz::{DType as NpyType, NpyFile, Order, TypeChar, WriterBuilder};

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
    match path.extension().and_then(|e| e.to_str()).unwrap_or_default() {
        "npz" => {
            let file = File::open(path).map_err(Error::io("read", path))?;
            let mut archive = npyz::npz::NpzArchive::new(BufReader::new(file))
                .map_err(|e| bad(format!("not an npz archive: {e}")))?;
            let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
            let mut arrays = Arrays::new();
            for name in names {
                let array = archive
                    .by_name(&name)
                    .map_err(|e| bad(format!("array {name:?}: {e}")))?;
                let Some(array) = array else { continue };
                let tensor = decode(array).map_err(|e| bad(format!("array {name:?}: {e}")))?;
                arrays.insert(name, tensor);
            }
            arrays.sort_keys();
            Ok(arrays)
        }
        "npy" => {
            let file = File::open(path).map_err(Error::io("read", path))?;
            let array = NpyFile::new(BufReader::new(file)).map_err(|e| bad(format!("not an npy file: {e}")))?;
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

/// Writes arrays as `.npz`, or one array as `.npy`. Types that NumPy lacks (bf16, fp8, 4-bit) are widened to `f32` or `i8`.
///
/// The file appears whole or not at all.
///
/// # Errors
/// A file that cannot be written, or an extension that is neither.
pub fn write(path: &Path, arrays: &Arrays) -> Result<()> {
    let bad = |message: String| Error::Arrays {
        path: path.to_owned(),
        message,
    };
    let folder = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(Error::io("write", path))?;
    match path.extension().and_then(|e| e.to_str()).unwrap_or_default() {
        "npz" => {
            let mut out = npyz::npz::NpzWriter::new(file.as_file_mut());
            for (name, tensor) in arrays {
                encode_npz(&mut out, name, tensor).map_err(|e| bad(e.to_string()))?;
            }
            drop(out);
        }
        "npy" if arrays.len() == 1 => {
            let mut out = file.as_file_mut();
            encode_npy(&mut out, &arrays[0]).map_err(|e| bad(e.to_string()))?;
        }
        "npy" => {
            return Err(bad(format!(
                "an .npy file holds one array, not {}; write .npz",
                arrays.len()
            )));
        }
        other => {
            return Err(bad(format!(
                "unknown kind of file {other:?}; arrays are written as .npz or .npy"
            )));
        }
    }
    file.persist(path).map_err(|e| Error::Io {
        doing: "write",
        path: path.to_owned(),
        source: e.error,
    })?;
    Ok(())
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
            ("c.txt", b""),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).expect("writable");
            let error = read(&path).expect_err("damaged");
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
