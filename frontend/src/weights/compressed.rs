//! What compressed-tensors says of how layers were quantised: schemes, and the layers that each is for.
//!
//! ```json
//! {"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head", "re:.*router$"],
//!  "config_groups": {"group_0": {"targets": ["Linear"],
//!    "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true, "dynamic": false},
//!    "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": true, "dynamic": true}}}}
//! ```
//!
//! A scheme is read when a layer asks for its own: what is not used is not refused. Source: `quant_scheme.py`,
//! `quant_args.py` and `match.py` of compressed-tensors.

use std::path::{Path, PathBuf};

use ir::DType;
use regex_lite::Regex;
use serde_json::Value;

/// The schemes of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompressedTensors {
    path: PathBuf,
    groups: Value,
    ignore: Value,
}

/// How a layer is quantised; `None` where something is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerScheme {
    pub weights: Option<Numbers>,
    pub inputs: Option<Numbers>,
}

/// What numbers are stored as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbers {
    /// `i4`, `i8` or `f8e4m3fn`.
    pub dtype: DType,
    pub strategy: Strategy,
    /// Zero points are 0.
    pub symmetric: bool,
    /// Scales are those of each run's own numbers.
    pub dynamic: bool,
}

/// What shares a scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strategy {
    Tensor,
    /// Each row of a weight.
    Channel,
    /// So many neighbours of a row of a weight.
    Group(usize),
    /// All numbers of an input but for its last axis.
    Token,
}

/// A scheme that says what layers here cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}: of {tensor:?}, {field} is {found}; {expected}", path.display())]
pub struct SchemeError {
    /// The file that says so.
    pub path: PathBuf,
    /// The weight of the layer that asked.
    pub tensor: String,
    /// What is said, by its place in the file, or what is stored.
    pub field: String,
    pub found: String,
    /// What would do, or how to come by it.
    pub expected: String,
}

impl CompressedTensors {
    /// Takes the schemes from a `quantization_config`; `None` where it has none. The path is named in errors.
    pub(super) fn read(path: &Path, said: &Value) -> Option<CompressedTensors> {
        let groups = said.get("config_groups").filter(|groups| !groups.is_null())?;
        Some(CompressedTensors {
            path: path.to_owned(),
            groups: groups.clone(),
            ignore: said.get("ignore").cloned().unwrap_or(Value::Null),
        })
    }

    /// Returns the file that the schemes are from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the scheme of a layer by its name and class (`Linear`); `None` where it is left as it was. A name goes
    /// before a class.
    ///
    /// # Errors
    /// A scheme that is no scheme, or says what is not known here; the error names `tensor`.
    pub fn layer(&self, layer: &str, class: &str, tensor: &str) -> Result<Option<LayerScheme>, SchemeError> {
        let at = At {
            path: &self.path,
            tensor,
            place: String::new(),
        };
        if !self.ignore.is_null() && at.within("ignore").any(&self.ignore, layer, class)?.is_some() {
            return Ok(None);
        }
        let at = at.within("config_groups");
        let Some(groups) = self.groups.as_object() else {
            return Err(at.wrong(&self.groups, "an object of groups is expected"));
        };
        let mut found: Option<(Match, At<'_>, &Value)> = None;
        for (name, group) in groups {
            let at = at.within(name);
            let targets = group.get("targets").unwrap_or(&Value::Null);
            let Some(how) = at.within("targets").any(targets, layer, class)? else {
                continue;
            };
            if found.as_ref().is_none_or(|(before, ..)| how < *before) {
                found = Some((how, at, group));
            }
        }
        let Some((_, at, group)) = found else { return Ok(None) };
        let part = |field: &str| group.get(field).filter(|part| !part.is_null());
        let weights = part("weights").map(|w| at.within("weights").weights(w)).transpose()?;
        let inputs = part("input_activations").map(|i| at.within("input_activations").inputs(i));
        Ok(Some(LayerScheme {
            weights,
            inputs: inputs.transpose()?,
        }))
    }
}

/// How a target meets a layer, the nearest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    Name,
    Pattern,
    Class,
}

/// A place in the file, for errors.
struct At<'a> {
    path: &'a Path,
    tensor: &'a str,
    place: String,
}

impl<'a> At<'a> {
    fn within(&self, field: &str) -> At<'a> {
        let place = match self.place.is_empty() {
            true => field.to_owned(),
            false => format!("{}.{field}", self.place),
        };
        At { place, ..*self }
    }

    fn wrong(&self, found: &Value, expected: impl Into<String>) -> SchemeError {
        SchemeError {
            path: self.path.to_owned(),
            tensor: self.tensor.to_owned(),
            field: self.place.clone(),
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    /// Finds the nearest of the targets that meets a layer: its name, a pattern `re:…` of the name's beginning, its
    /// class.
    fn any(&self, targets: &Value, layer: &str, class: &str) -> Result<Option<Match>, SchemeError> {
        let one = |target: &Value| -> Result<Option<Match>, SchemeError> {
            let Some(text) = target.as_str() else {
                return Err(self.wrong(target, "a name, a class or a pattern `re:…` is expected"));
            };
            if let Some(pattern) = text.strip_prefix("re:") {
                let pattern = Regex::new(&format!("^(?:{pattern})"));
                let known = |error| {
                    let reason =
                        String::from("a regular expression without look-around or back-references is expected: ");
                    self.wrong(target, reason + &last_line(&error))
                };
                return Ok(pattern.map_err(known)?.is_match(layer).then_some(Match::Pattern));
            }
            let how = if text == layer { Match::Name } else { Match::Class };
            Ok((text == layer || text == class).then_some(how))
        };
        let Some(list) = targets.as_array() else {
            return Err(self.wrong(targets, "a list of targets is expected"));
        };
        let mut nearest = None;
        for target in list {
            nearest = nearest.into_iter().chain(one(target)?).min();
        }
        Ok(nearest)
    }

    fn weights(&self, said: &Value) -> Result<Numbers, SchemeError> {
        if self.dynamic(said)? != Some(false) {
            return Err(self.within("dynamic").wrong(&said["dynamic"], "weights are not"));
        }
        let dtype = self.dtype(said, &[(4, "int"), (8, "int"), (8, "float")])?;
        let size = said.get("group_size").and_then(Value::as_i64);
        let named = said.get("strategy").and_then(Value::as_str);
        let strategy = match (named, size) {
            (Some("tensor"), _) | (None, None) => Strategy::Tensor,
            (Some("channel"), _) | (None, Some(-1)) => Strategy::Channel,
            (Some("group") | None, Some(size)) if size > 0 => Strategy::Group(size.unsigned_abs() as usize),
            (Some("group") | None, _) => {
                let found = said.get("group_size").unwrap_or(&Value::Null);
                return Err(self.within("group_size").wrong(found, "a number above 0 is expected"));
            }
            _ => {
                let expected =
                    "\"tensor\", \"channel\" or \"group\" is expected; quantise the model again with one of these";
                return Err(self.within("strategy").wrong(&said["strategy"], expected));
            }
        };
        Ok(Numbers {
            dtype,
            strategy,
            symmetric: self.symmetric(said)?,
            dynamic: false,
        })
    }

    fn inputs(&self, said: &Value) -> Result<Numbers, SchemeError> {
        let Some(dynamic) = self.dynamic(said)? else {
            let expected = "true or false is expected; quantise the model again with one of these";
            return Err(self.within("dynamic").wrong(&said["dynamic"], expected));
        };
        let dtype = self.dtype(said, &[(8, "int"), (8, "float")])?;
        let strategy = match said.get("strategy").and_then(Value::as_str) {
            Some("tensor") => Strategy::Tensor,
            Some("token") if dynamic => Strategy::Token,
            None if said.get("group_size").is_none_or(Value::is_null) => Strategy::Tensor,
            _ => {
                let expected = match dynamic {
                    true => "\"token\" or \"tensor\" is expected; quantise the model again with one of these",
                    false => "\"tensor\" is expected of inputs that are not dynamic; quantise the model again with it",
                };
                let found = said.get("strategy").unwrap_or(&Value::Null);
                return Err(self.within("strategy").wrong(found, expected));
            }
        };
        Ok(Numbers {
            dtype,
            strategy,
            symmetric: self.symmetric(said)?,
            dynamic,
        })
    }

    /// The element type of `num_bits` and `type`.
    fn dtype(&self, said: &Value, known: &[(u64, &str)]) -> Result<DType, SchemeError> {
        let kind = said.get("type").filter(|kind| !kind.is_null());
        let kind = kind.map_or(Some("int"), Value::as_str);
        let bits = said.get("num_bits").filter(|bits| !bits.is_null());
        let bits = bits.map_or(Some(8), Value::as_u64);
        if !known.iter().any(|(_, k)| Some(*k) == kind) {
            let expected = "\"int\" or \"float\" is expected";
            return Err(self.within("type").wrong(&said["type"], expected));
        }
        let known_bits: Vec<u64> = known
            .iter()
            .filter(|(_, k)| Some(*k) == kind)
            .map(|(b, _)| *b)
            .collect();
        let kind = kind.unwrap_or_default();
        match bits.filter(|bits| known_bits.contains(bits)) {
            Some(4) => Ok(DType::I4),
            Some(_) if kind == "float" => Ok(DType::F8E4M3FN),
            Some(_) => Ok(DType::I8),
            None => {
                let all: Vec<String> = known_bits.iter().map(u64::to_string).collect();
                let expected = format!(
                    "of type {kind:?} {} is expected; quantise the model again with that",
                    all.join(" or ")
                );
                Err(self.within("num_bits").wrong(&said["num_bits"], expected))
            }
        }
    }

    fn symmetric(&self, said: &Value) -> Result<bool, SchemeError> {
        match said.get("symmetric") {
            None | Some(Value::Null) => Ok(true),
            Some(Value::Bool(symmetric)) => Ok(*symmetric),
            Some(other) => Err(self.within("symmetric").wrong(other, "true or false is expected")),
        }
    }

    /// `None` for what is neither true nor false, as `"local"` is.
    fn dynamic(&self, said: &Value) -> Result<Option<bool>, SchemeError> {
        match said.get("dynamic") {
            None | Some(Value::Null) => Ok(Some(false)),
            Some(Value::Bool(dynamic)) => Ok(Some(*dynamic)),
            Some(Value::String(_)) => Ok(None),
            Some(other) => Err(self.within("dynamic").wrong(other, "true or false is expected")),
        }
    }
}

/// What is wrong with a pattern, without the picture of where.
fn last_line(error: &regex_lite::Error) -> String {
    let text = error.to_string();
    text.lines().last().unwrap_or_default().trim().to_owned()
}
