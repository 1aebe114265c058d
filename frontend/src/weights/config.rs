//! What a checkpoint's configuration says of how its weights were quantised.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::{CompressedTensors, WeightsError};

/// What tensors alone do not say of a quantised checkpoint: from `quantization_config` of `config.json`, or from
/// `quantize_config.json`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QuantizationConfig {
    /// Whether zero points of GPTQ are stored as they are (`checkpoint_format` is `gptq_v2`), not less 1.
    pub gptq_v2: bool,
    /// How many inputs share a scale.
    pub group: Option<usize>,
    /// The schemes of compressed-tensors.
    pub compressed: Option<Arc<CompressedTensors>>,
}

impl QuantizationConfig {
    /// Reads the files of a folder; without any, nothing is said.
    ///
    /// # Errors
    /// A file that exists and cannot be read, or is not JSON.
    pub(super) fn read(folder: &Path) -> Result<QuantizationConfig, WeightsError> {
        for file in ["quantize_config.json", "config.json"] {
            let path = folder.join(file);
            if !path.is_file() {
                continue;
            }
            let text = ir::file::read(&path).map_err(|source| WeightsError::Open {
                path: path.clone(),
                source,
            })?;
            let said = QuantizationConfig::parse(&path, &text)?;
            if let Some(said) = said {
                return Ok(said);
            }
        }
        Ok(QuantizationConfig::default())
    }

    /// Reads the text of a `config.json` (its `quantization_config`) or of a `quantize_config.json`, by the name of the
    /// file, which errors give too; `None` where nothing is said.
    ///
    /// # Errors
    /// What is not JSON.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Option<QuantizationConfig>, WeightsError> {
        let all: Value = serde_json::from_slice(text).map_err(|error| WeightsError::Config {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        let said = match path.file_name().is_some_and(|name| name == "quantize_config.json") {
            true => Some(&all),
            // The second is what compressed-tensors once wrote.
            false => all.get("quantization_config").or_else(|| all.get("compression_config")),
        };
        let Some(said) = said.filter(|said| !said.is_null()) else {
            return Ok(None);
        };
        let text = |key: &str| said.get(key).and_then(Value::as_str);
        let group = said.get("group_size").and_then(Value::as_u64);
        Ok(Some(QuantizationConfig {
            gptq_v2: text("checkpoint_format") == Some("gptq_v2"),
            group: group.and_then(|size| usize::try_from(size).ok()),
            compressed: CompressedTensors::read(path, said).map(Arc::new),
        }))
    }
}
