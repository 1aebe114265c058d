//! Options as pairs of texts, for callers that have no types of Rust's: C, Python, files of settings.
//!
//! ```
//! use graphc::session::NamedOptions;
//!
//! let mut options = NamedOptions::default();
//! options.set("device", "cpu")?;
//! options.set("size", "batch=1..64")?;
//! let error = options.set("thread", "2").unwrap_err().to_string();
//! assert!(error.contains("did you mean \"threads\""), "{error}");
//! # Ok::<(), graphc::Error>(())
//! ```

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use frontend::onnx::{ImportOptions, Links};
use indexmap::IndexMap;
use ir::{HostTensor, Program, Storage, Target};

use super::{DeviceChoice, Engine, Session, SessionOptions};
use crate::driver::{self, Model, Source};
use crate::error::{Error, Result};
use crate::options::Settings;
use crate::texts;

/// How a model is opened and run, set by keys and values; see the [module](self).
#[derive(Clone, Debug, Default)]
pub struct NamedOptions {
    session: SessionOptions,
    device: DeviceChoice,
    import: ImportOptions,
    folder: Option<PathBuf>,
    /// Variables of the settings that have other values than the environment says.
    settings: IndexMap<&'static str, OsString>,
    /// Keys that were set and say how a graph is compiled: an artifact has that behind it.
    compiling: Vec<&'static str>,
}

/// Keys that an artifact cannot follow any more. Sizes and shapes are refused by whoever reads it.
const COMPILING: [&str; 4] = ["level", "dtype", "check-indices", "engine"];

/// A key, and what it sets.
struct Key {
    name: &'static str,
    about: &'static str,
    set: fn(&mut NamedOptions, &str) -> std::result::Result<(), String>,
}

const fn key(
    name: &'static str,
    about: &'static str,
    set: fn(&mut NamedOptions, &str) -> std::result::Result<(), String>,
) -> Key {
    Key { name, about, set }
}

/// A key whose value is that of a variable of the settings.
macro_rules! setting {
    ($name:literal, $variable:literal, $about:literal) => {
        key($name, $about, |o, v| {
            o.settings.insert($variable, v.into());
            Ok(())
        })
    };
}

/// All keys, in the order in which they are listed.
const KEYS: &[Key] = &[
    key(
        "device",
        "where to run: cpu, hip, hip:N, cuda, cuda:N, auto; hip:0,1 for several",
        |o, v| {
            o.device = parse(v)?;
            Ok(())
        },
    ),
    key("threads", "threads of one run on the CPU; 0 is one a core", |o, v| {
        o.session.load.threads = texts::whole(v, 0..=runtime::MOST_THREADS)?;
        Ok(())
    }),
    key("level", "the optimisation level: 0 to 3", |o, v| {
        o.session.level = parse(v)?;
        Ok(())
    }),
    key(
        "dtype",
        "compute in f32, f16 or bf16, store weights as int8, int4 or fp8, or both: f16+int4",
        |o, v| {
            (o.session.dtype, o.session.weights) = texts::types(v)?;
            Ok(())
        },
    ),
    key(
        "size",
        "fix or bound an open size: batch=1, seq=1..512, seq=1..512 hint 128; once a size",
        |o, v| {
            o.import = std::mem::take(&mut o.import).size(v).map_err(|e| e.to_string())?;
            Ok(())
        },
    ),
    key(
        "shape",
        "replace an input's shape: x=[batch, 3, 224, 224]; once an input",
        |o, v| {
            o.import = std::mem::take(&mut o.import).shape(v).map_err(|e| e.to_string())?;
            Ok(())
        },
    ),
    key(
        "state",
        "keep an input from run to run; its next value is an output: keys=keys_next; once a state",
        |o, v| {
            let (input, output) = texts::state(v)?;
            o.session = std::mem::take(&mut o.session).state(&input, &output);
            Ok(())
        },
    ),
    key("folder", "where a model in memory has its external data", |o, v| {
        o.folder = Some(v.into());
        Ok(())
    }),
    key(
        "follow-links",
        "read external data through links that lead out of the model's folder: true, false",
        |o, v| {
            o.import.links = if truth(v)? { Links::Anywhere } else { Links::Inside };
            Ok(())
        },
    ),
    key(
        "engine",
        "compiled, or reference: the evaluator in f64, slow, to compare with",
        |o, v| {
            o.session.engine = match v {
                "compiled" => Engine::Compiled,
                "reference" => Engine::Reference,
                _ => return Err("it is compiled or reference".to_owned()),
            };
            Ok(())
        },
    ),
    key(
        "check-indices",
        "fail on an index outside its axis, on GPUs too: true, false",
        |o, v| {
            o.session.check_indices = Some(truth(v)?);
            Ok(())
        },
    ),
    key(
        "max-vram",
        "most of a GPU's memory for weights and one run: 8GiB; other weights are streamed",
        |o, v| {
            o.session.max_vram = Some(texts::bytes(v)?);
            Ok(())
        },
    ),
    key("memory-limit", "most bytes that one run may take: 512MiB", |o, v| {
        o.session.load.memory_limit = Some(texts::bytes(v)?);
        Ok(())
    }),
    key(
        "timeout",
        "seconds after which a GPU that is waited for is given up; 0 waits for ever",
        |o, v| {
            o.session.timeout = crate::options::seconds(v)?;
            Ok(())
        },
    ),
    key(
        "split",
        "what each of several devices has: tensors, layers, auto",
        |o, v| {
            o.session.split = Some(texts::split(v)?);
            Ok(())
        },
    ),
    key("prepared-sizes", "how many sets of sizes stay prepared", |o, v| {
        o.session.load.prepared_sizes = Some(texts::whole(v, 1..=1 << 20)?);
        Ok(())
    }),
    key("concurrent-runs", "most runs at once on a GPU", |o, v| {
        o.session.load.concurrent_runs = Some(texts::whole(v, 1..=1 << 10)?);
        Ok(())
    }),
    key(
        "direct-convolutions",
        "sum every convolution's products directly on the CPU: true, false",
        |o, v| {
            o.session.load.direct_convolutions = truth(v)?;
            Ok(())
        },
    ),
    key(
        "synchronous",
        "a GPU finishes each step before the next, so that errors name their step: true, false",
        |o, v| {
            o.session.load.synchronous = truth(v)?;
            Ok(())
        },
    ),
    setting!(
        "cache",
        "GRAPHC_CACHE",
        "the folder of compiled kernels; off keeps none"
    ),
    setting!("cache-mib", "GRAPHC_CACHE_MIB", "most MiB kept there"),
    setting!(
        "rocm",
        "GRAPHC_ROCM",
        "ROCm's folder, a sysroot's, or the file of hiprtc"
    ),
    setting!("hip", "GRAPHC_HIP", "the HIP runtime's file or its folder"),
    setting!("nvrtc", "GRAPHC_NVRTC", "NVRTC's file or folder"),
    setting!("cuda", "GRAPHC_CUDA", "the CUDA driver's file or its folder"),
    setting!("rccl", "GRAPHC_RCCL", "RCCL's or NCCL's file or its folder"),
    setting!(
        "worker",
        "GRAPHC_WORKER",
        "the program that compiles kernels in a process of its own: graphc"
    ),
    setting!(
        "workers",
        "GRAPHC_WORKERS",
        "how many such processes; 0 compiles in this one"
    ),
    setting!("miopen-find", "GRAPHC_MIOPEN_FIND", "how MIOpen chooses algorithms"),
    setting!(
        "miopen-user-db",
        "GRAPHC_MIOPEN_USER_DB",
        "where MIOpen keeps what it measured"
    ),
];

fn parse<T: FromStr<Err: std::fmt::Display>>(text: &str) -> std::result::Result<T, String> {
    text.trim().parse().map_err(|error: T::Err| error.to_string())
}

fn truth(text: &str) -> std::result::Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err("it is true or false".to_owned()),
    }
}

impl NamedOptions {
    /// All keys, each with what it sets.
    pub fn keys() -> impl Iterator<Item = (&'static str, &'static str)> {
        KEYS.iter().map(|key| (key.name, key.about))
    }

    /// Sets an option. `_` in a key is the same as `-`. `size`, `shape` and `state` may be set several times.
    ///
    /// # Errors
    /// A key that is none, with the nearest; a value that the key does not take.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let name = key.replace('_', "-");
        let Some(known) = KEYS.iter().find(|known| known.name == name) else {
            return Err(Error::Config(unknown(key, &name)));
        };
        let mut changed = self.clone();
        (known.set)(&mut changed, value).map_err(|why| Error::Config(format!("option {key}={value}: {why}")))?;
        if COMPILING.contains(&known.name) && !changed.compiling.contains(&known.name) {
            changed.compiling.push(known.name);
        }
        *self = changed;
        Ok(())
    }

    fn settings(&self) -> Result<Arc<Settings>> {
        Ok(Arc::new(Settings::from_env_with(&self.settings)?))
    }

    /// The options of a session, with the device opened.
    ///
    /// # Errors
    /// A device that is not there.
    pub fn session_options(&self) -> Result<SessionOptions> {
        let options = SessionOptions {
            settings: Some(self.settings()?),
            ..self.session.clone()
        };
        options.device(self.device.clone())
    }

    /// A model in memory, whose external data are in the options' folder.
    pub fn in_memory(&self, bytes: Storage) -> Source {
        Source::Memory {
            bytes,
            folder: self.folder.clone(),
        }
    }

    /// Opens a model.
    ///
    /// # Errors
    /// As [`Session::of_source`]; an artifact, where options say how to compile it.
    pub fn open(&self, source: &Source) -> Result<Session> {
        self.open_with(source, &self.import, &self.session_options()?)
    }

    /// Opens a model for inputs like these; see [`Session::of_source_for`].
    ///
    /// # Errors
    /// As there, and as [`NamedOptions::open`].
    pub fn open_for(
        &self,
        source: &Source,
        inputs: &IndexMap<String, HostTensor>,
    ) -> Result<(Session, Option<String>)> {
        let options = self.session_options()?;
        Session::for_inputs(&self.import, inputs, |import| self.open_with(source, import, &options))
    }

    fn open_with(&self, source: &Source, import: &ImportOptions, options: &SessionOptions) -> Result<Session> {
        match source.load(import)? {
            Model::Graph(graph) => Session::compile(*graph, options),
            Model::Program(_) if !self.compiling.is_empty() => Err(Error::Config(format!(
                "option {}: {} is compiled already; compile the model that it was made from with it",
                self.compiling.join(", "),
                source.name().display()
            ))),
            Model::Program(program) => Session::of_program(Arc::new(*program), options),
        }
    }

    /// Compiles a model for some targets (`gfx90a,gfx942`, `cpu`); no GPU is needed. The device is not looked at.
    ///
    /// # Errors
    /// As [`driver::artifact`].
    pub fn compile(&self, source: &Source, targets: &str) -> Result<Program> {
        let build = self.session.build(list(targets)?);
        driver::artifact(source, &self.import, &build, self.settings()?.as_ref())
    }

    /// Builds a model for some targets without compiling its kernels: for what was decided on the way.
    ///
    /// # Errors
    /// As [`driver::build`]; an artifact, which no longer holds its graph.
    pub fn build(&self, source: &Source, targets: &str) -> Result<driver::Build> {
        let Model::Graph(graph) = source.load(&self.import)? else {
            return Err(Error::Config(
                "an artifact no longer holds its graph; take the model it was made from".to_owned(),
            ));
        };
        driver::build(&graph, &self.session.build(list(targets)?))
    }
}

/// Reads `gfx90a,gfx942`.
fn list(targets: &str) -> Result<Vec<Target>> {
    let names = targets.split(',').map(str::trim).filter(|name| !name.is_empty());
    let targets = names
        .map(|name| Ok(name.parse::<Target>()?))
        .collect::<Result<Vec<_>>>()?;
    match targets.is_empty() {
        true => Err(Error::Config(
            "no target is named; `graphc targets` lists them".to_owned(),
        )),
        false => Ok(targets),
    }
}

/// Says of a key that is none which it may have been meant for.
fn unknown(key: &str, name: &str) -> String {
    let distance = |known: &str| {
        let distance = strsim::osa_distance(name, known);
        match known.starts_with(name) || name.starts_with(known) {
            true => distance.min(2),
            false => distance,
        }
    };
    let nearest = KEYS.iter().min_by_key(|known| distance(known.name));
    match nearest.filter(|known| distance(known.name) <= name.len().div_ceil(3).max(1)) {
        Some(near) => format!("there is no option {key:?}; did you mean {:?}?", near.name),
        None => {
            let known: Vec<&str> = KEYS.iter().map(|known| known.name).collect();
            format!("there is no option {key:?}; known: {}", known.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_takes_a_value_and_refuses_another() {
        let good = |name: &str| match name {
            "device" => "cpu",
            "threads" | "level" | "prepared-sizes" | "concurrent-runs" | "workers" | "cache-mib" => "2",
            "dtype" => "f16+int4",
            "size" => "batch=1..8",
            "shape" => "x=[batch, 3]",
            "state" => "keys=keys_next",
            "engine" => "reference",
            "max-vram" | "memory-limit" => "8MiB",
            "timeout" => "0.5",
            "split" => "layers",
            "miopen-find" => "fast",
            "cache" => "off",
            "follow-links" | "check-indices" | "direct-convolutions" | "synchronous" => "true",
            _ => "/a/path",
        };
        let mut all = NamedOptions::default();
        for (name, about) in NamedOptions::keys() {
            all.set(name, good(name)).unwrap();
            all.set(&name.replace('-', "_"), good(name)).unwrap();
            assert!(!about.is_empty());
            // Paths and settings are read where they are used.
            let of_settings = KEYS.iter().rev().take(11).any(|key| key.name == name);
            if name != "folder" && !of_settings {
                let error = all.set(name, "?!").unwrap_err().to_string();
                assert!(error.contains(&format!("option {name}=?!")), "{error}");
            }
        }
        assert!(all.settings().is_ok());
        all.set("workers", "many").unwrap();
        assert!(all.settings().unwrap_err().to_string().contains("GRAPHC_WORKERS=many"));
    }

    #[test]
    fn what_is_refused_changes_nothing() {
        let mut options = NamedOptions::default();
        options.set("size", "a=3").unwrap();
        options.set("size", "b").unwrap_err();
        options.set("dtype", "f17").unwrap_err();
        assert_eq!(options.import.sizes.len(), 1);
    }

    #[test]
    fn a_key_that_is_none_names_the_nearest() {
        for (key, near) in [
            ("thread", "threads"),
            ("devcie", "device"),
            ("max_ram", "max-vram"),
            ("sizes", "size"),
        ] {
            let error = NamedOptions::default().set(key, "1").unwrap_err().to_string();
            assert!(error.contains(&format!("{key:?}; did you mean {near:?}")), "{error}");
        }
        let error = NamedOptions::default().set("colour", "red").unwrap_err().to_string();
        assert!(error.contains("known: device, threads"), "{error}");
    }
}
