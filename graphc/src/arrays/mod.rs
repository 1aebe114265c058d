//! Named arrays in files: `.npz`, `.npy` and `.safetensors`, and ONNX's own tensors, `.pb`.

mod npy;
mod npz;

use std::borrow::Cow;
use std::io::{BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use frontend::onnx::read_tensor;
use frontend::weights::{TensorView, Weights};
use indexmap::IndexMap;
use ir::{DType, HostTensor};

use crate::error::{Error, Result};

/// Arrays by name, in the order of the file.
pub type Arrays = IndexMap<String, HostTensor>;

/// A file of arrays that is open: their types and shapes are known, and their elements are not read.
#[derive(Debug)]
pub struct ArrayFile {
    path: PathBuf,
    source: Source,
    arrays: IndexMap<String, Described>,
}

/// What a file says of an array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Described {
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// The array's number in its file.
    index: usize,
}

#[derive(Debug)]
enum Source {
    Npz(npz::Archive),
    Npy(npy::Header),
    Safetensors(Weights),
    Tensor(Box<TensorView>),
}

impl ArrayFile {
    /// Opens a file of arrays; the kind is told by the extension. A `.npy` file holds one array, named after the file.
    /// A `.pb` file holds one tensor of ONNX (`input_0.pb` beside a test model), which may say its name.
    ///
    /// # Errors
    /// A file that cannot be read, is not of its kind, or holds an element type that graphc does not have.
    pub fn open(path: &Path) -> Result<ArrayFile> {
        let bad = |message: String| error_at(path, message);
        ir::file::check_readable(path).map_err(Error::io("read", path))?;
        let (source, arrays) = match path.extension().and_then(|e| e.to_str()).unwrap_or_default() {
            "npz" => {
                let (archive, members) = npz::Archive::open(path).map_err(bad)?;
                let described = members.into_iter().map(|(name, header, index)| {
                    let (dtype, shape) = (header.dtype, header.shape);
                    (name, Described { dtype, shape, index })
                });
                (Source::Npz(archive), described.collect())
            }
            "npy" => {
                let file = ir::file::open(path).map_err(Error::io("read", path))?;
                let length = file.metadata().map_err(Error::io("read", path))?.len();
                let header = npy::Header::read(BufReader::new(file));
                let header = header.map_err(|e| bad(format!("not an npy file: {e}")))?;
                let follow = length.saturating_sub(header.length);
                if follow < header.data {
                    return Err(bad(format!(
                        "its header says {} bytes of elements, but {follow} bytes follow",
                        header.data
                    )));
                }
                let stem = path.file_stem().map_or(Cow::Borrowed("input"), |s| s.to_string_lossy());
                let described = Described {
                    dtype: header.dtype,
                    shape: header.shape.clone(),
                    index: 0,
                };
                (Source::Npy(header), IndexMap::from([(stem.into_owned(), described)]))
            }
            "safetensors" => {
                let weights = Weights::open(path).map_err(|e| bad(e.to_string()))?;
                let mut arrays = IndexMap::new();
                for (index, view) in weights.tensors().enumerate() {
                    let dtype = view.element.dtype();
                    let dtype = dtype.ok_or_else(|| bad(no_type(&view.name, &view.element.to_string())))?;
                    let shape = view.dims.clone();
                    arrays.insert(view.name.clone(), Described { dtype, shape, index });
                }
                (Source::Safetensors(weights), arrays)
            }
            "pb" => {
                let bytes = ir::file::read(path).map_err(Error::io("read", path))?;
                let view = read_tensor(bytes.into()).map_err(|e| bad(e.to_string()))?;
                let name = match view.name.as_str() {
                    "" => path
                        .file_stem()
                        .map_or("input".into(), |s| s.to_string_lossy().into_owned()),
                    name => name.to_owned(),
                };
                let dtype = view.element.dtype();
                let dtype = dtype.ok_or_else(|| bad(no_type(&name, &view.element.to_string())))?;
                let shape = view.dims.clone();
                let described = Described { dtype, shape, index: 0 };
                (Source::Tensor(Box::new(view)), IndexMap::from([(name, described)]))
            }
            other => {
                return Err(bad(format!(
                    "unknown kind of file {other:?}; arrays are read from .npz, .npy, .safetensors and .pb"
                )));
            }
        };
        Ok(ArrayFile {
            path: path.to_owned(),
            source,
            arrays,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The arrays by name, in the order of the file.
    pub fn arrays(&self) -> &IndexMap<String, Described> {
        &self.arrays
    }

    /// Reads the elements of an array of the file.
    ///
    /// # Errors
    /// No such array, a damaged one, or one that is more than memory holds.
    pub fn read(&self, name: &str) -> Result<HostTensor> {
        let bad = |message: String| error_at(&self.path, format!("array {name:?}: {message}"));
        let described = self.arrays.get(name).ok_or_else(|| bad("is not there".to_owned()))?;
        match &self.source {
            Source::Npz(archive) => archive.read(described.index).map_err(bad),
            Source::Npy(header) => {
                let mut file = ir::file::open(&self.path).map_err(Error::io("read", &self.path))?;
                let start = file.seek(SeekFrom::Start(header.length));
                start.map_err(Error::io("read", &self.path))?;
                header.clone().elements(file).map_err(bad)
            }
            Source::Safetensors(weights) => {
                let view = weights.get(name).map_err(|e| bad(e.to_string()))?;
                view.to_host().map_err(|e| bad(e.to_string()))
            }
            Source::Tensor(view) => view.to_host().map_err(|e| bad(e.to_string())),
        }
    }

    /// Reads all arrays.
    ///
    /// # Errors
    /// As [`ArrayFile::read`].
    pub fn read_all(&self) -> Result<Arrays> {
        let read = |name: &String| Ok((name.clone(), self.read(name)?));
        self.arrays.keys().map(read).collect()
    }
}

fn error_at(path: &Path, message: String) -> Error {
    Error::Arrays {
        path: path.to_owned(),
        message,
    }
}

fn no_type(name: &str, element: &str) -> String {
    format!("array {name:?} has element type {element}, which graphc has no type for")
}

/// Reads a file of arrays whole; see [`ArrayFile::open`].
///
/// # Errors
/// As [`ArrayFile::open`] and [`ArrayFile::read`].
pub fn read(path: &Path) -> Result<Arrays> {
    ArrayFile::open(path)?.read_all()
}

/// Opens several files of arrays.
///
/// # Errors
/// As [`ArrayFile::open`]; an array that two of the files hold.
pub fn open_all<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<ArrayFile>> {
    let mut files: Vec<ArrayFile> = Vec::with_capacity(paths.len());
    for path in paths.iter().map(AsRef::as_ref) {
        let file = ArrayFile::open(path)?;
        for name in file.arrays.keys() {
            if let Some(first) = files.iter().find(|other| other.arrays.contains_key(name)) {
                let message = format!(
                    "{} holds an array {name:?} too; leave one of them out",
                    first.path.display()
                );
                return Err(error_at(path, message));
            }
        }
        files.push(file);
    }
    Ok(files)
}

/// The only name that the array of a lone file can be meant for which knows no name but the file's: `.npy`, and `.pb`
/// without one.
pub fn lone_name<'a>(files: &[ArrayFile], wanted: &[&'a str]) -> Option<&'a str> {
    match (files, wanted) {
        ([file], [name]) => match &file.source {
            Source::Npy(_) => Some(name),
            Source::Tensor(view) if view.name.is_empty() => Some(name),
            _ => None,
        },
        _ => None,
    }
}

/// The kinds of file that arrays are written as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Npz,
    Npy,
    Safetensors,
}

impl Kind {
    fn of(path: &Path) -> Result<Kind> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("npz") => Ok(Kind::Npz),
            Some("npy") => Ok(Kind::Npy),
            Some("safetensors") => Ok(Kind::Safetensors),
            // The name of a device or a FIFO says nothing of what goes through it.
            None if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) || ir::file::is_stdout(path) => Ok(Kind::Npz),
            other => Err(error_at(
                path,
                format!(
                    "unknown kind of file {:?}; arrays are written as .npz, .npy or .safetensors",
                    other.unwrap_or_default()
                ),
            )),
        }
    }
}

/// Finds out whether [`write`] could write a file, before the arrays are there.
///
/// # Errors
/// A file that cannot be written, an extension of no kind of array file, or `compress` where only an `.npz` can be.
pub fn check_writable(path: &Path, compress: bool) -> Result<()> {
    ir::file::check(path).map_err(Error::io("write", path))?;
    match Kind::of(path)? {
        Kind::Npz => Ok(()),
        Kind::Npy | Kind::Safetensors if !compress => Ok(()),
        _ => Err(error_at(path, "--compress: only an .npz file is compressed".to_owned())),
    }
}

/// Finds out whether arrays of these names could be written to a file, before they are there.
///
/// # Errors
/// A name that the kind of file cannot hold, or more arrays than it can.
pub fn check_names<'a>(path: &Path, names: impl ExactSizeIterator<Item = &'a str>) -> Result<()> {
    match Kind::of(path)? {
        Kind::Npz => npz::check_names(names).map_err(|message| error_at(path, message)),
        Kind::Npy if names.len() != 1 => Err(error_at(
            path,
            format!("an .npy file holds one array, not {}; write .npz", names.len()),
        )),
        Kind::Npy | Kind::Safetensors => Ok(()),
    }
}

/// Writes arrays as `.npz` or `.safetensors`, or one array as `.npy`. NumPy's files store types that NumPy lacks (bf16,
/// fp8, 4-bit) widened to `f32` or `i8`; safetensors keeps all but 4-bit types.
///
/// The file appears whole or not at all; what is no regular file is written through, see [`ir::file`].
///
/// # Errors
/// A file that cannot be written, an extension of no kind of array file, and names that it cannot hold.
pub fn write(path: &Path, arrays: &Arrays) -> Result<()> {
    write_with(path, arrays, false)
}

/// As [`write`], and deflates the arrays of an `.npz` if `compress`.
///
/// # Errors
/// As [`write`].
pub fn write_with(path: &Path, arrays: &Arrays, compress: bool) -> Result<()> {
    let kind = Kind::of(path)?;
    check_names(path, arrays.keys().map(String::as_str))?;
    let written = ir::file::write(path, |out| match kind {
        Kind::Npz => npz::write(out, arrays, compress),
        Kind::Npy => arrays.values().try_for_each(|tensor| npy::write(out, tensor)),
        Kind::Safetensors => {
            let named = arrays.iter().map(|(name, tensor)| (name.as_str(), tensor));
            frontend::weights::write(out, named)
        }
    });
    written.map_err(Error::io("write", path))
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
        for compress in [false, true] {
            check_writable(&path, compress).expect("writable");
            write_with(&path, &arrays, compress).expect("writable");
            assert_eq!(read(&path).expect("readable"), arrays);
        }
        let other = path.with_extension("safetensors");
        write(&other, &arrays).expect("writable");
        let mut back = read(&other).expect("readable");
        back.sort_keys();
        assert_eq!(back, arrays);
        let error = check_writable(&other, true).expect_err("not compressed").to_string();
        assert!(error.contains("--compress"), "{error}");
    }

    #[test]
    fn unsigned_integers_of_numpy_widen() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("a.npy");
        let file = |code: &str, bytes: &[u8]| {
            let text = format!("{{'descr': '{code}', 'fortran_order': True, 'shape': (2, 1), }}\n");
            let mut all = b"\x93NUMPY\x01\x00".to_vec();
            all.extend((text.len() as u16).to_le_bytes());
            all.extend(text.as_bytes());
            all.extend(bytes);
            std::fs::write(&path, all).expect("writable");
            read(&path)
        };
        let values = |code: &str, bytes: &[u8]| {
            let array = file(code, bytes).expect("readable")["a"].clone();
            (array.dtype, array.to_i64())
        };
        assert_eq!(values("<u2", &[255, 255, 1, 0]), (DType::I32, vec![65_535, 1]));
        assert_eq!(
            values("<u4", &[255, 255, 255, 255, 1, 0, 0, 0]),
            (DType::I64, vec![4_294_967_295, 1])
        );
        let mut long = [0u8; 16];
        (long[7], long[8]) = (0x7f, 3);
        assert_eq!(values("<u8", &long), (DType::I64, vec![0x7f << 56, 3]));
        long[7] = 0x80;
        let error = file("<u8", &long).expect_err("above i64").to_string();
        assert!(error.contains("9223372036854775808"), "{error}");
    }

    /// Beside ONNX's test models lie `input_0.pb` files, which may hold what NumPy has no type for.
    #[test]
    fn tensors_of_onnx_are_read() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("input_0.pb");
        // dims [2], data_type INT4, name "x", raw_data of one byte.
        let named = [0x08, 2, 0x10, 22, 0x42, 1, b'x', 0x4a, 1, 0xf1];
        std::fs::write(&path, named).expect("writable");
        let array = &read(&path).expect("readable")["x"];
        assert_eq!((array.dtype, array.to_i64()), (DType::I4, vec![1, -1]));
        let mut unnamed = named.to_vec();
        unnamed.drain(4..7);
        std::fs::write(&path, &unnamed).expect("writable");
        let file = ArrayFile::open(&path).expect("a tensor");
        assert_eq!(lone_name(&[file], &["x"]), Some("x"));
        for (bytes, want) in [
            (&unnamed[..3], "TensorProto"),
            (&unnamed[..4], "has 0"),
            (b"\x10\x08", "strings"),
        ] {
            std::fs::write(&path, bytes).expect("writable");
            let error = read(&path).expect_err("damaged");
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(want), "{error}");
        }
    }

    /// NumPy's own `savez` stores: bytes of the array are in the file as they are.
    #[test]
    fn archives_are_stored_unless_they_are_compressed() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("a.npz");
        let tensor = HostTensor::from_f32([1 << 16], &vec![1.0; 1 << 16]).expect("fits");
        let arrays = Arrays::from([("ones".to_owned(), tensor)]);
        let size = |compress| {
            write_with(&path, &arrays, compress).expect("writable");
            std::fs::metadata(&path).expect("written").len()
        };
        let (stored, compressed) = (size(false), size(true));
        assert!(stored > 4 << 16 && compressed < 1 << 14, "{stored} {compressed}");
    }

    #[test]
    fn names_that_no_archive_holds_are_refused_and_safetensors_holds_them() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let name = "n".repeat(70_000);
        let arrays = Arrays::from([(name, HostTensor::from_f32([1], &[1.0]).expect("fits"))]);
        let path = dir.path().join("a.npz");
        let error = write(&path, &arrays).expect_err("too long");
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("70000 bytes") && !path.exists(), "{error}");
        let path = dir.path().join("a.safetensors");
        write(&path, &arrays).expect("writable");
        assert_eq!(read(&path).expect("readable"), arrays);
    }

    /// A deflated member may unpack to a thousand times the archive: its header is read, and what it says is compared
    /// first.
    #[test]
    fn a_member_is_read_when_it_is_asked_for_and_no_further_than_its_header_says() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("bomb.npz");
        let tensor = HostTensor::from_f32([4], &[1.0; 4]).expect("fits");
        let mut small = Vec::new();
        npy::write(&mut small, &tensor).expect("a vector takes all");
        let make = |bytes: &[u8]| {
            let mut archive = zip::ZipWriter::new(std::fs::File::create(&path).expect("writable"));
            let options = zip::write::SimpleFileOptions::default();
            archive.start_file("x.npy", options).expect("a member");
            std::io::Write::write_all(&mut archive, bytes).expect("written");
            archive.finish().expect("finished");
        };
        // More data than the header says.
        let mut longer = small.clone();
        longer.resize(1 << 20, 0);
        make(&longer);
        let error = ArrayFile::open(&path).expect_err("longer").to_string();
        assert!(error.contains("16 bytes of elements, but the archive has"), "{error}");
        // A header that says more than there is.
        let mut bytes = small.clone();
        let at = small.windows(4).position(|four| four == b"(4,)").expect("a shape");
        bytes[at..at + 16].copy_from_slice(b"(5000000000,), }");
        make(&bytes);
        let error = ArrayFile::open(&path).expect_err("shorter").to_string();
        assert!(error.contains("20000000000 bytes"), "{error}");
        make(&small);
        let file = ArrayFile::open(&path).expect("an archive");
        assert_eq!(file.arrays()["x"].shape, [4]);
        assert_eq!(file.read("x").expect("whole"), tensor);
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
            assert!(error.contains("its header is damaged"), "{error}");
        }
    }
}
