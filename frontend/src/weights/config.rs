//! What a checkpoint's configuration says of how its weights were quantised.

use std::path::Path;

use serde_json::Value;

use super::WeightsError;

/// What tensors alone do not say of a quantised checkpoint: from `quantization_config` of `config.json`, or from `quantize_config.json`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QuantizationConfig {
    /// Whether zero points of GPTQ are stored as they are (`checkpoint_format` is `gptq_v2`), not less 1.
    pub gptq_v2: bool,
    /// How many inputs share a scale.
    pub group: Option<usize>,
}

impl QuantizationConfig {
    /// Reads the files of a folder; without any, nothing is said.
    ///
    /// # Errors
    /// A file that exists and cannot be read, or is not JSON.
    pub(super) fn read(folder: &Path) -> Result<QuantizationConfig, WeightsError> {
        for (file, key) in [
            ("quantize_config.json", None),
            ("config.json", Some("quantization_config")),
        ] {
            let path = folder.join(file);
            if !path.is_file() {
                continue;
            }
            let text = std::fs::read(&path).map_err(|source| WeightsError::Open {
                path: path.clone(),
                source,
            })?;
            let all: Value = serde_json::from_slice(&text).map_err(|error| WeightsError::Config {
                path: path.clone(),
                reason: error.to_string(),
            })?;
            let Some(said) = key.map_or(Some(&all), |key| all.get(key)) else {
                continue;
            };
            let text = |key: &str| said.get(key).and_then(Value::as_str);
            let group = said.get("group_size").and_then(Value::as_u64);
            return Ok(QuantizationConfig {
                gptq_v2: text("checkpoint_format") == Some("gptq_v2"),
                group: group.and_then(|size| usize::try_from(size).ok()),
            });
        }
        Ok(QuantizationConfig::default())
    }
}
