//! Provider options: texts by key, each read into its type, or refused with what is wrong.

use std::time::Duration;

use graphc::frontend::onnx::ImportOptions;
use graphc::ir::DType;
use graphc::passes::{OptLevel, WeightType};
use graphc::prelude::{DeviceChoice, SessionOptions};
use graphc::runtime::MOST_THREADS;

use crate::error::{OptionProblem, ProviderError, Result};

/// The keys, in the order of the guide's table.
pub const KEYS: [&str; 12] = [
    "device",
    "threads",
    "opt_level",
    "dtype",
    "weights",
    "sizes",
    "check_indices",
    "direct_convolutions",
    "max_vram_mib",
    "timeout",
    "specialize",
    "min_nodes",
];

/// The provider's name, as sessions, their options and EPContext nodes have it.
pub const NAME: &str = "GraphcExecutionProvider";

/// Where to compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceOption {
    /// The first GPU, AMD's before NVIDIA's, and nothing else.
    Gpu,
    Choice(DeviceChoice),
}

/// The options of a session's provider.
#[derive(Clone, Debug)]
pub struct ProviderOptions {
    pub device: DeviceOption,
    /// How regions are compiled and run; the device is not yet opened.
    pub session: SessionOptions,
    /// Bounds of named sizes. Which of them a region has is the region's.
    pub import: ImportOptions,
    /// Whether a region is compiled once more for inputs that its open sizes do not allow.
    pub specialize: bool,
    /// Regions with fewer nodes are left to other providers.
    pub min_nodes: usize,
    pub context: ContextOptions,
}

/// How compiled regions are written into a model, by the session options that all providers share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextOptions {
    pub enable: bool,
    pub embed: bool,
    /// Where the model is to be written, if that was said.
    pub path: String,
}

impl Default for ProviderOptions {
    fn default() -> ProviderOptions {
        ProviderOptions {
            device: DeviceOption::Choice(DeviceChoice::Cpu),
            session: SessionOptions::default(),
            import: ImportOptions::default(),
            specialize: true,
            min_nodes: 1,
            context: ContextOptions {
                enable: false,
                embed: false,
                path: String::new(),
            },
        }
    }
}

impl ProviderOptions {
    /// Reads the entries of a session: the provider's own, which begin with `ep.graphcexecutionprovider.`, and those
    /// of EPContext models.
    ///
    /// # Errors
    /// A key that does not exist, a value that is not of its kind, or a session option that asks for what the
    /// provider does not do.
    pub fn of_session(entries: &[(String, String)]) -> Result<ProviderOptions> {
        let prefix = format!("ep.{}.", NAME.to_ascii_lowercase());
        let mut options = ProviderOptions::default();
        for (key, value) in entries {
            match key.get(..prefix.len()) {
                Some(start) if start.eq_ignore_ascii_case(&prefix) => {
                    let key = &key[prefix.len()..];
                    options.set(key, value).map_err(|problem| ProviderError::Option {
                        key: key.to_owned(),
                        problem,
                    })?;
                }
                _ => options.context.set(key, value)?,
            }
        }
        Ok(options)
    }

    fn set(&mut self, key: &str, text: &str) -> std::result::Result<(), OptionProblem> {
        let value = text.trim();
        let bad = |expected| OptionProblem::Value {
            value: text.to_owned(),
            expected,
        };
        match key {
            "device" => {
                let choice = |value: &str| value.parse().map_err(|error| OptionProblem::Device(Box::new(error)));
                self.device = match value {
                    "gpu" => DeviceOption::Gpu,
                    value => DeviceOption::Choice(choice(value)?),
                };
            }
            "threads" => {
                let threads = value.parse().ok().filter(|n| *n <= MOST_THREADS);
                self.session.load.threads =
                    threads.ok_or_else(|| bad("a number of threads: 0 (one a core) to 1024"))?;
            }
            "opt_level" => self.session.level = value.parse::<OptLevel>().map_err(|_| bad("a level: 0, 1, 2 or 3"))?,
            "dtype" => {
                let known = [DType::F32, DType::F16, DType::BF16];
                let dtype = value.parse::<DType>().ok().filter(|dtype| known.contains(dtype));
                self.session.dtype = Some(dtype.ok_or_else(|| bad("a type to compute in: f32, f16 or bf16"))?);
            }
            "weights" => {
                self.session.weights = match value {
                    "model" => None,
                    "int8" => Some(WeightType::Int8),
                    "int4" => Some(WeightType::Int4),
                    "fp8" => Some(WeightType::Fp8),
                    _ => return Err(bad("how weights are stored: model, int8, int4 or fp8")),
                }
            }
            "sizes" => {
                for size in value.split(';').filter(|size| !size.trim().is_empty()) {
                    self.import = std::mem::take(&mut self.import).size(size)?;
                }
            }
            "check_indices" => self.session.check_indices = Some(switch(value).ok_or_else(|| bad(SWITCH))?),
            "direct_convolutions" => {
                self.session.load.direct_convolutions = switch(value).ok_or_else(|| bad(SWITCH))?;
            }
            "max_vram_mib" => {
                let bytes = value.parse::<usize>().ok().and_then(|mib| mib.checked_mul(1 << 20));
                self.session.max_vram = Some(bytes.ok_or_else(|| bad("a number of MiB"))?);
            }
            "timeout" => {
                let seconds = value.parse::<f64>().ok();
                let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                let timeout = timeout.ok_or_else(|| bad("a number of seconds; 0 waits for ever"))?;
                self.session.timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
            }
            "specialize" => self.specialize = switch(value).ok_or_else(|| bad(SWITCH))?,
            "min_nodes" => {
                let nodes = value.parse().ok().filter(|n| *n > 0);
                self.min_nodes = nodes.ok_or_else(|| bad("a number of nodes, at least 1"))?;
            }
            _ => {
                return Err(OptionProblem::Unknown {
                    suggestion: suggestion(key),
                    known: KEYS.join(", "),
                });
            }
        }
        Ok(())
    }
}

impl ContextOptions {
    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let refuse = |reason| ProviderError::SessionOption {
            key: key.to_owned(),
            value: value.to_owned(),
            reason,
        };
        match key {
            "ep.context_enable" => self.enable = switch(value).ok_or_else(|| refuse("must be 0 or 1"))?,
            "ep.context_embed_mode" => self.embed = switch(value).ok_or_else(|| refuse("must be 0 or 1"))?,
            "ep.context_file_path" => self.path = value.to_owned(),
            "ep.context_node_name_prefix" if !value.is_empty() => {
                return Err(refuse(
                    "nodes have the names that ONNX Runtime gives them; leave it out",
                ));
            }
            "ep.share_ep_contexts" | "ep.stop_share_ep_contexts" if switch(value) != Some(false) => {
                return Err(refuse("graphc shares no contexts among sessions; leave it out"));
            }
            _ => {}
        }
        Ok(())
    }
}

const SWITCH: &str = "a switch: 0 or 1";

fn switch(value: &str) -> Option<bool> {
    match value {
        "1" | "true" | "on" => Some(true),
        "0" | "false" | "off" => Some(false),
        _ => None,
    }
}

fn suggestion(key: &str) -> String {
    let near = KEYS.iter().map(|known| (strsim::osa_distance(key, known), known)).min();
    match near {
        Some((distance, known)) if distance <= 3 => format!(" (did you mean {known:?}?)"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(entries: &[(&str, &str)]) -> Result<ProviderOptions> {
        let entries: Vec<(String, String)> = entries.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        ProviderOptions::of_session(&entries)
    }

    fn own(key: &str, value: &str) -> Result<ProviderOptions> {
        read(&[(&format!("ep.graphcexecutionprovider.{key}"), value)])
    }

    #[test]
    fn options_are_read() {
        let options = read(&[
            ("session.intra_op_thread_affinities", "1;2"),
            ("ep.GraphcExecutionProvider.threads", "3"),
            ("ep.graphcexecutionprovider.sizes", "batch=2; seq=1..512 hint 128"),
            ("ep.graphcexecutionprovider.opt_level", "1"),
            ("ep.graphcexecutionprovider.dtype", "f16"),
            ("ep.context_enable", "1"),
        ]);
        let options = options.expect("all are options");
        assert_eq!(options.session.load.threads, 3);
        assert_eq!(options.session.level, OptLevel::O1);
        assert_eq!(options.session.dtype, Some(DType::F16));
        assert_eq!(options.import.sizes.len(), 2);
        assert!(options.context.enable && !options.context.embed);
    }

    /// Each key refuses a value that is not of its kind, and names itself.
    #[test]
    fn bad_values_are_refused() {
        for key in KEYS {
            let error = own(key, "no such thing").expect_err(key).to_string();
            assert!(error.contains(key) && error.contains("no such thing"), "{error}");
        }
        let error = own("thread", "2").expect_err("unknown").to_string();
        assert!(error.contains("did you mean \"threads\""), "{error}");
        let error = read(&[("ep.share_ep_contexts", "1")]).expect_err("refused").to_string();
        assert!(error.contains("ep.share_ep_contexts"), "{error}");
        assert!(read(&[("ep.context_embed_mode", "2")]).is_err());
        assert!(read(&[("ep.context_node_name_prefix", "a_")]).is_err());
        assert!(read(&[("ep.share_ep_contexts", "0")]).is_ok());
    }
}
