//! A GGUF model: one file or all files of a split one, mapped.

use std::path::Path;

use bytes::Bytes;
use indexmap::IndexMap;

use crate::blocks::dequantize;
use crate::error::{GgufError, Problem};
use crate::header::{self, elements};
use crate::kind::TensorType;
use crate::split;
use crate::value::Value;

/// A model's metadata and tensors. Bytes of tensors are views of the mapped files: nothing is copied.
#[derive(Clone, Debug)]
pub struct GgufFile {
    path: std::path::PathBuf,
    /// The version of the format that the first file has: 2 or 3.
    pub version: u32,
    /// In the file's order.
    pub metadata: IndexMap<String, Value>,
    /// In the files' order.
    pub tensors: IndexMap<String, Tensor>,
    /// How many files the model has.
    pub files: usize,
}

/// A tensor of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    pub ty: TensorType,
    /// ggml's order: the first dim is the one whose elements are neighbours. A matrix of `[out, in]` has `[in, out]`
    /// here.
    pub dims: Vec<u64>,
    /// Blocks as the file has them.
    pub bytes: Bytes,
}

impl Tensor {
    /// The number of elements.
    pub fn elements(&self) -> u64 {
        // Below 2^63 in a file that was read.
        elements(&self.dims).unwrap_or(0)
    }

    /// The shape in the order of NumPy and of graphs: the last dim is the one whose elements are neighbours.
    pub fn shape(&self) -> Vec<u64> {
        self.dims.iter().rev().copied().collect()
    }

    /// The numbers that the blocks stand for, in row-major order of [`shape`](Tensor::shape).
    ///
    /// # Errors
    /// `NoNumbers` for types that stand for no `f32` (`Q8_1` and `Q8_K` are never in files, IQ1 to IQ3 are not read).
    pub fn to_f32(&self) -> Result<Vec<f32>, Problem> {
        let mut numbers = vec![0.0; self.elements() as usize];
        dequantize(self.ty, &self.bytes, &mut numbers)?;
        Ok(numbers)
    }
}

impl GgufFile {
    /// Maps a file; where it is the first of a split model, all of its files.
    ///
    /// A file that becomes shorter while it is mapped ends the process when the part that is gone is read; see
    /// [`open_with`](GgufFile::open_with).
    ///
    /// # Errors
    /// What is wrong with a file, with its place and values.
    pub fn open(path: impl AsRef<Path>) -> Result<GgufFile, GgufError> {
        // SAFETY: the map is read only, and its bytes are plain bytes: a file that is changed meanwhile gives other
        // numbers.
        GgufFile::open_with(path, |file, _| unsafe { memmap2::Mmap::map(file) })
    }

    /// As [`open`](GgufFile::open), by the caller's way of mapping a file, which is not empty; its path is for
    /// messages. For programs that watch over files that become shorter while they are mapped.
    ///
    /// # Errors
    /// As [`open`](GgufFile::open); what `map` gives.
    pub fn open_with<M: AsRef<[u8]> + Send + 'static>(
        path: impl AsRef<Path>,
        map: impl Fn(&std::fs::File, &Path) -> std::io::Result<M>,
    ) -> Result<GgufFile, GgufError> {
        let path = path.as_ref();
        let mut model = GgufFile::read(path, mapped(path, &map)?)?;
        let count = model
            .number("split.count")
            .map_err(|problem| problem.in_file(path))?
            .unwrap_or(1);
        if count <= 1 {
            return Ok(model);
        }
        let paths = split::paths(path, count).map_err(|problem| problem.in_file(path))?;
        model.check_number(1, count, path)?;
        for (path, number) in paths.iter().zip(1..).skip(1) {
            let part = GgufFile::read(path, mapped(path, &map)?)?;
            part.check_number(number, count, path)?;
            for (name, tensor) in part.tensors {
                if model.tensors.contains_key(&name) {
                    return Err(Problem::DuplicateTensor { name }.in_file(path));
                }
                model.tensors.insert(name, tensor);
            }
        }
        model.files = paths.len();
        let found = model.tensors.len() as u64;
        match model
            .number("split.tensors.count")
            .map_err(|problem| problem.in_file(path))?
        {
            Some(wanted) if wanted != found => Err(Problem::SplitTensors { found, wanted }.in_file(path)),
            _ => Ok(model),
        }
    }

    /// Reads bytes in memory; `name` stands for the file in messages. A split model is read by [`open`](GgufFile::open)
    /// alone.
    pub fn from_bytes(name: impl AsRef<Path>, bytes: impl Into<Bytes>) -> Result<GgufFile, GgufError> {
        GgufFile::read(name.as_ref(), bytes.into())
    }

    fn read(path: &Path, bytes: Bytes) -> Result<GgufFile, GgufError> {
        let header = header::read(&bytes).map_err(|problem| problem.in_file(path))?;
        let tensors = header
            .tensors
            .into_iter()
            .map(|(name, place)| {
                // Places were held against the file's length, which is a `usize`.
                let bytes = bytes.slice(place.first as usize..(place.first + place.bytes) as usize);
                (
                    name,
                    Tensor {
                        ty: place.ty,
                        dims: place.dims,
                        bytes,
                    },
                )
            })
            .collect();
        Ok(GgufFile {
            path: path.to_owned(),
            version: header.version,
            metadata: header.metadata,
            tensors,
            files: 1,
        })
    }

    fn check_number(&self, number: u64, count: u64, path: &Path) -> Result<(), GgufError> {
        let of = |key: &str| self.number(key).map_err(|problem| problem.in_file(path));
        // `split.no` counts from 0.
        let (found, found_count) = (
            of("split.no")?.unwrap_or(0).saturating_add(1),
            of("split.count")?.unwrap_or(1),
        );
        if (found, found_count) == (number, count) {
            return Ok(());
        }
        Err(Problem::SplitOrder {
            number,
            found,
            found_count,
        }
        .in_file(path))
    }

    /// An integer of any type, None where the key is missing.
    fn number(&self, key: &str) -> Result<Option<u64>, Problem> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(value) => value
                .as_unsigned()
                .map(Some)
                .ok_or_else(|| wrong(key, value, "an integer of 0 or more")),
        }
    }

    /// The path that the model was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A key's value.
    ///
    /// # Errors
    /// `MissingKey`, with keys of the same prefix.
    pub fn value(&self, key: &str) -> Result<&Value, GgufError> {
        self.metadata.get(key).ok_or_else(|| {
            let prefix = key.split('.').next().unwrap_or(key);
            let similar = self
                .metadata
                .keys()
                .filter(|other| other.starts_with(prefix))
                .cloned()
                .collect();
            Problem::MissingKey {
                key: key.to_owned(),
                similar,
            }
            .in_file(&self.path)
        })
    }

    /// `general.architecture`, which every file has.
    pub fn architecture(&self) -> Result<&str, GgufError> {
        self.text("general.architecture")
    }

    /// A key that is text.
    pub fn text(&self, key: &str) -> Result<&str, GgufError> {
        let value = self.value(key)?;
        value
            .as_str()
            .ok_or_else(|| wrong(key, value, "text").in_file(&self.path))
    }

    /// A key that is an integer of any type, 0 or more.
    pub fn unsigned(&self, key: &str) -> Result<u64, GgufError> {
        let value = self.value(key)?;
        value
            .as_unsigned()
            .ok_or_else(|| wrong(key, value, "an integer of 0 or more").in_file(&self.path))
    }

    /// A key that is a float.
    pub fn float(&self, key: &str) -> Result<f64, GgufError> {
        let value = self.value(key)?;
        value
            .as_float()
            .ok_or_else(|| wrong(key, value, "a float").in_file(&self.path))
    }

    /// A key that is one integer for all of `count` layers, or an array of one for each.
    pub fn unsigned_by_layer(&self, key: &str, count: usize) -> Result<Vec<u64>, GgufError> {
        let value = self.value(key)?;
        let wanted = || wrong(key, value, &format!("an integer, or an array of {count}")).in_file(&self.path);
        match value.as_array() {
            None => Ok(vec![value.as_unsigned().ok_or_else(wanted)?; count]),
            Some(array) => array
                .to_unsigned()
                .filter(|values| values.len() == count)
                .ok_or_else(wanted),
        }
    }

    /// A tensor by its name.
    ///
    /// # Errors
    /// `MissingTensor`, with tensors of the same first words.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, GgufError> {
        self.tensors.get(name).ok_or_else(|| {
            let words = name.rsplit_once('.').map_or(name, |(words, _)| words);
            let similar = self
                .tensors
                .keys()
                .filter(|other| other.starts_with(words))
                .cloned()
                .collect();
            Problem::MissingTensor {
                name: name.to_owned(),
                similar,
            }
            .in_file(&self.path)
        })
    }
}

fn wrong(key: &str, value: &Value, wanted: &str) -> Problem {
    Problem::WrongValue {
        key: key.to_owned(),
        found: value.to_string(),
        wanted: wanted.to_owned(),
    }
}

fn mapped<M: AsRef<[u8]> + Send + 'static>(
    path: &Path,
    map: impl Fn(&std::fs::File, &Path) -> std::io::Result<M>,
) -> Result<Bytes, GgufError> {
    let kind = std::fs::metadata(path).map_err(|error| Problem::Io(error).in_file(path))?;
    if !kind.is_file() {
        let what = if kind.is_dir() {
            "it is a folder"
        } else {
            "it is no regular file, which alone can be mapped"
        };
        return Err(Problem::Io(std::io::Error::other(what)).in_file(path));
    }
    let opened = std::fs::File::open(path).map_err(|error| Problem::Io(error).in_file(path))?;
    let length = opened
        .metadata()
        .map_err(|error| Problem::Io(error).in_file(path))?
        .len();
    if length == 0 {
        // An empty file cannot be mapped.
        return Ok(Bytes::new());
    }
    let map = map(&opened, path).map_err(|error| Problem::Io(error).in_file(path))?;
    Ok(Bytes::from_owner(map))
}
