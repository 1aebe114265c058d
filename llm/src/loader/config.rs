//! The sizes of a model, from the keys of its file.

use std::path::Path;

use graphc_gguf::GgufFile;

use crate::error::{Error, Result};

/// The keys of one architecture: `name` stands for `{architecture}.name`.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    pub file: &'a GgufFile,
    architecture: &'a str,
}

impl<'a> Keys<'a> {
    /// The keys of the file's own architecture.
    ///
    /// # Errors
    /// A file without `general.architecture`.
    pub fn of(file: &'a GgufFile) -> Result<Keys<'a>> {
        Ok(Keys {
            file,
            architecture: file.architecture()?,
        })
    }

    pub fn architecture(&self) -> &'a str {
        self.architecture
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    fn full(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// Says whether the file has the key.
    pub fn has(&self, name: &str) -> bool {
        self.file.metadata.contains_key(&self.full(name))
    }

    /// A size: an integer from 1 to 2^31.
    ///
    /// # Errors
    /// A key that is missing, of another type or outside.
    pub fn size(&self, name: &str) -> Result<usize> {
        let value = self.file.unsigned(&self.full(name))?;
        match usize::try_from(value).ok().filter(|size| (1..=1 << 31).contains(size)) {
            Some(size) => Ok(size),
            None => Err(self.refuse(name, value, "a size from 1 to 2^31 is wanted")),
        }
    }

    /// An integer of 0 or more.
    ///
    /// # Errors
    /// A key that is missing or of another type.
    pub fn count(&self, name: &str) -> Result<u64> {
        Ok(self.file.unsigned(&self.full(name))?)
    }

    /// As [`Keys::size`], with a value for files without the key.
    ///
    /// # Errors
    /// As [`Keys::size`], but for a missing key.
    pub fn size_or(&self, name: &str, otherwise: usize) -> Result<usize> {
        if self.has(name) { self.size(name) } else { Ok(otherwise) }
    }

    /// One size of all layers; files may have an array of one for each.
    ///
    /// # Errors
    /// As [`Keys::size`], and sizes that differ from layer to layer.
    fn size_of_layers(&self, name: &str, layers: usize) -> Result<usize> {
        let sizes = self.file.unsigned_by_layer(&self.full(name), layers)?;
        let first = sizes.first().copied().unwrap_or(0);
        if sizes.iter().any(|size| *size != first) {
            let wanted = "layers of different sizes are not supported; one number for all is";
            return Err(self.refuse(name, format!("{sizes:?}"), wanted));
        }
        match usize::try_from(first).ok().filter(|size| (1..=1 << 31).contains(size)) {
            Some(size) => Ok(size),
            None => Err(self.refuse(name, first, "a size from 1 to 2^31 is wanted")),
        }
    }

    /// A finite number.
    ///
    /// # Errors
    /// A key that is missing, of another type or not finite.
    pub fn number(&self, name: &str) -> Result<f64> {
        let value = self.file.float(&self.full(name))?;
        if value.is_finite() {
            Ok(value)
        } else {
            Err(self.refuse(name, value, "a finite number is wanted"))
        }
    }

    /// As [`Keys::number`], with a value for files without the key.
    ///
    /// # Errors
    /// As [`Keys::number`], but for a missing key.
    pub fn number_or(&self, name: &str, otherwise: f64) -> Result<f64> {
        if self.has(name) {
            self.number(name)
        } else {
            Ok(otherwise)
        }
    }

    /// A text, None for files without the key.
    ///
    /// # Errors
    /// A key of another type.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        Ok(self.has(name).then(|| self.file.text(&self.full(name))).transpose()?)
    }

    /// An error about a key's value.
    pub fn refuse(&self, name: &str, found: impl ToString, wanted: &str) -> Error {
        Error::Key {
            path: self.path().to_owned(),
            key: self.full(name),
            found: found.to_string(),
            wanted: wanted.to_owned(),
        }
    }
}

/// The sizes that all architectures have.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    pub feed_forward: usize,
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head of queries and keys.
    pub key_length: usize,
    /// Elements of a head of values.
    pub value_length: usize,
    /// Elements of a head that are rotated: an even number, the first ones.
    pub rotated: usize,
    /// Tokens that the model was trained to see.
    pub context: usize,
    pub vocabulary: usize,
    /// The ε of the norms.
    pub epsilon: f64,
}

impl Config {
    /// Reads the sizes.
    ///
    /// # Errors
    /// A key that is missing or of another type; sizes that contradict each other.
    pub fn read(keys: &Keys<'_>) -> Result<Config> {
        let layers = keys.size("block_count")?;
        // A layer has tensors: more layers than those are damage, and nothing is to be allocated for them.
        if layers > keys.file.tensors.len() {
            let wanted = format!("the file has {} tensors in all", keys.file.tensors.len());
            return Err(keys.refuse("block_count", layers, &wanted));
        }
        let width = keys.size("embedding_length")?;
        let heads = keys.size_of_layers("attention.head_count", layers)?;
        let kv_heads = match keys.has("attention.head_count_kv") {
            true => keys.size_of_layers("attention.head_count_kv", layers)?,
            false => heads,
        };
        if !heads.is_multiple_of(kv_heads) {
            let wanted = format!("it must divide the {heads} heads of queries");
            return Err(keys.refuse("attention.head_count_kv", kv_heads, &wanted));
        }
        let length = |name: &str| match keys.has(name) {
            true => keys.size(name),
            false if width.is_multiple_of(heads) => Ok(width / heads),
            false => Err(keys.refuse(
                "embedding_length",
                width,
                &format!("{heads} heads do not divide it; {name} is missing"),
            )),
        };
        let key_length = length("attention.key_length")?;
        let rotated = keys.size_or("rope.dimension_count", key_length)?;
        if !rotated.is_multiple_of(2) || rotated > key_length {
            let wanted = format!("an even number of at most {key_length} is wanted");
            return Err(keys.refuse("rope.dimension_count", rotated, &wanted));
        }
        let table = keys.file.tensor("token_embd.weight")?;
        let vocabulary = match table.shape()[..] {
            [rows, _] => rows as usize,
            _ => {
                return Err(Error::Shape {
                    path: keys.path().to_owned(),
                    name: "token_embd.weight".to_owned(),
                    found: table.shape(),
                    wanted: vec![0, width as u64],
                });
            }
        };
        Ok(Config {
            layers,
            width,
            feed_forward: keys.size_of_layers("feed_forward_length", layers)?,
            heads,
            kv_heads,
            key_length,
            value_length: length("attention.value_length")?,
            rotated,
            context: keys.size("context_length")?,
            vocabulary,
            epsilon: match keys.has("attention.layer_norm_epsilon") {
                true => keys.number("attention.layer_norm_epsilon")?,
                false => keys.number("attention.layer_norm_rms_epsilon")?,
            },
        })
    }
}
