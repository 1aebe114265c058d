//! Every setting of graphc in one table: command-line flags fall back to `GRAPHC_*` variables, and those to defaults.
//!
//! Libraries read no environment; what is read here is passed down in structs.
//!
//! | variable | what it sets | default |
//! |---|---|---|
//! | `GRAPHC_CACHE` | folder of compiled code objects, and of programs for GPUs; `off` keeps none | the user's cache folder |
//! | `GRAPHC_CACHE_MIB` | most MiB kept there of each; of programs none larger than half | 1024 |
//! | `GRAPHC_ROCM` | ROCm's folder (or its `lib`), a sysroot's folder, or the file of hiprtc | `/opt/rocm`, the loader's path, `/opt/graphc-rocm` |
//! | `GRAPHC_HIP` | the HIP runtime's file or its folder, and no other is tried | `GRAPHC_ROCM`'s folder, `/opt/rocm`, the loader's path |
//! | `GRAPHC_NVRTC` | NVRTC's file or folder, a CUDA toolkit's folder, or Python's `site-packages` | `/usr/local/cuda`, `/opt/graphc-nvrtc`, the loader's path |
//! | `GRAPHC_CUDA` | the CUDA driver's file (`libcuda.so.1`) or its folder, and no other is tried | the loader's path |
//! | `GRAPHC_RCCL` | RCCL's or NCCL's file (`librccl.so.1`, `libnccl.so.2`) or its folder, and no other is tried | ROCm's folders, the loader's path |
//! | `GRAPHC_ROCM_LIBS` | a sysroot with rocBLAS and MIOpen, whose calls are timed on the emulated GPU | `/opt/graphc-rocm-libs`, the loader's path |
//! | `GRAPHC_EMU_HIP` | the file of the stand-in HIP runtime that those calls run on | `libamdhip64_emu.so` beside graphc |
//! | `GRAPHC_EMU_INSTRUCTION_LIMIT` | wave instructions after which an emulated workgroup counts as an endless loop; 0 for none | 1073741824 (minutes) |
//! | `GRAPHC_MIOPEN_FIND` | how MIOpen chooses a convolution's algorithm: `immediate`, `normal`, `fast`, `hybrid`, `dynamic-hybrid` | `immediate` |
//! | `GRAPHC_MIOPEN_USER_DB` | the folder of MIOpen's user databases | MIOpen's own (`MIOPEN_USER_DB_PATH`, or under the user's home) |
//! | `GRAPHC_SYNCHRONOUS` | 1: a GPU finishes each step before the next, so that errors name their step | 0 |
//! | `GRAPHC_CAPTURE_COLLECTIVES` | 1: runs on several GPUs become graphs as those on one do | 0 |
//! | `GRAPHC_TIMEOUT` | seconds (`0.5`) after which a GPU that is waited for is given up; 0 waits for ever | 0 |
//! | `GRAPHC_WORKERS` | compiler processes, at most 1024; 0 compiles in process | one a core |
//! | `GRAPHC_THREADS` | threads of the CPU device, 1 to 1024 | one a core |
//! | `ROCM_PATH` | ROCm's folder, looked into before `/opt/rocm` | none |
//! | `HIP_VISIBLE_DEVICES` | read by HIP: the GPUs that it shows, by number | all |
//! | `CUDA_VISIBLE_DEVICES` | read by CUDA: the GPUs that it shows | all |
//! | `TMPDIR` | read by the compilers of kernels: a folder for temporary files | `/tmp` |
//! | `GRAPHC_WORKER` | the program that embedding apps start as compile worker: `graphc` or `graphc-compile-worker` | none: in process |
//! | `MIOPEN_DEBUG_GCN_ASM_KERNELS` | read by MIOpen: 0 leaves its kernels in assembly out | 0 in a sysroot, whose build has none; else MIOpen's own |
//! | `GRAPHC_EMU_TIME` | read by the stand-in HIP runtime: the file of its reports | none |
//!
//! A variable that begins with `GRAPHC_` and is none of these, nor one of the stand-in's or of graphc's own tests, is
//! named in a warning.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indexmap::IndexMap;
use runtime::compile::{CompilerSearch, HiprtcSearch as Search, RocmSearch};
use runtime::gpu::{GpuSearch, Vendor};
use runtime::{LoadOptions, MOST_THREADS, MiopenFind, MiopenOptions};

/// Settings of the process, from its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `None`: nothing is kept.
    pub cache_dir: Option<PathBuf>,
    pub cache_bytes: u64,
    pub rocm: Option<PathBuf>,
    /// ROCm's folder as its own tools have it.
    pub rocm_path: Option<PathBuf>,
    pub hip: Option<PathBuf>,
    pub nvrtc: Option<PathBuf>,
    pub cuda: Option<PathBuf>,
    /// RCCL or NCCL.
    pub rccl: Option<PathBuf>,
    /// The sysroot of the vendor libraries, and the stand-in HIP runtime.
    pub libraries: Option<PathBuf>,
    pub stand_in: Option<PathBuf>,
    /// `None`: emulated workgroups may run for ever.
    pub emulator_limit: Option<u64>,
    /// How MIOpen chooses algorithms, and where it keeps what it measured.
    pub miopen: MiopenOptions,
    pub synchronous: bool,
    /// Whether runs with collectives are captured.
    pub capture_collectives: bool,
    /// How long a GPU is waited for; `None`: for ever.
    pub timeout: Option<Duration>,
    pub workers: usize,
    pub threads: usize,
    pub worker: Option<OsString>,
    /// Where the compilers of kernels keep temporary files, if that is set.
    pub temporary: Option<PathBuf>,
    /// Whether the environment says itself if MIOpen takes its kernels in assembly.
    pub miopen_assembly_is_set: bool,
    /// The file that the stand-in HIP runtime writes its reports to.
    pub emulator_reports: Option<PathBuf>,
    /// The variables of the table that are set, with their values.
    pub set: Vec<(String, String)>,
    /// Variables that are set and look like settings of graphc, and are none.
    pub unknown: Vec<String>,
}

/// The hidden verb under which the binary starts itself to compile kernels in a process of its own.
pub const WORKER_VERB: &str = "__compile-worker";

/// The names of the table above, in its order.
const VARIABLES: &[&str] = &[
    "GRAPHC_CACHE",
    "GRAPHC_CACHE_MIB",
    "GRAPHC_ROCM",
    "GRAPHC_HIP",
    "GRAPHC_NVRTC",
    "GRAPHC_CUDA",
    "GRAPHC_RCCL",
    "GRAPHC_ROCM_LIBS",
    "GRAPHC_EMU_HIP",
    "GRAPHC_EMU_INSTRUCTION_LIMIT",
    "GRAPHC_MIOPEN_FIND",
    "GRAPHC_MIOPEN_USER_DB",
    "GRAPHC_SYNCHRONOUS",
    "GRAPHC_CAPTURE_COLLECTIVES",
    "GRAPHC_TIMEOUT",
    "GRAPHC_WORKERS",
    "GRAPHC_THREADS",
    "ROCM_PATH",
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "TMPDIR",
    "GRAPHC_WORKER",
    MIOPEN_ASSEMBLY,
    EMULATOR_REPORTS,
];

/// Whether MIOpen considers its kernels in assembly.
pub(crate) const MIOPEN_ASSEMBLY: &str = "MIOPEN_DEBUG_GCN_ASM_KERNELS";

/// Names the file that the stand-in HIP runtime writes its reports to.
pub(crate) const EMULATOR_REPORTS: &str = "GRAPHC_EMU_TIME";

/// What every variable of graphc's begins with.
const OURS: &str = "GRAPHC_";

/// Wave instructions after which an emulated workgroup counts as an endless loop: the emulator's own number.
const EMULATOR_LIMIT: u64 = 1 << 30;

/// Variables of ours that others read: the stand-in HIP runtime and its collectives, `emu/hip/README.md`.
const OF_THE_STAND_IN: &[&str] = &[
    "GRAPHC_EMU_ARCH",
    "GRAPHC_EMU_CHECKS",
    "GRAPHC_EMU_CLOCK",
    "GRAPHC_EMU_DEVICES",
    "GRAPHC_EMU_DISASSEMBLER",
    "GRAPHC_EMU_ENDLESS",
    "GRAPHC_EMU_FAULTS",
    "GRAPHC_EMU_MEMORY_MIB",
    "GRAPHC_EMU_RCCL_DEADLINE",
    "GRAPHC_EMU_SEED",
    "GRAPHC_EMU_TRACE",
];

/// Variables of ours that graphc's tests, benchmarks and scripts read.
const OF_THE_TESTS: &[&str] = &[
    "GRAPHC_ALL_FAULTS",
    "GRAPHC_ALL_KILLS",
    "GRAPHC_ALL_MODELS",
    "GRAPHC_BLESS",
    "GRAPHC_BROWSER",
    "GRAPHC_CASES",
    "GRAPHC_COMPILED",
    "GRAPHC_EMU_TEST_INSIDE",
    "GRAPHC_EMU_TIMES",
    "GRAPHC_FUZZ_CASES",
    "GRAPHC_HIPKITTENS",
    "GRAPHC_HIP_CASES",
    "GRAPHC_MINILM",
    "GRAPHC_NODE_CASES",
    "GRAPHC_REPOSITORY",
    "GRAPHC_REQUIRE_ROCM",
    "GRAPHC_SEED",
    "GRAPHC_SYSROOT_DIR",
    "GRAPHC_TEST_INSIDE",
];

/// Says of each name that looks like a setting and is none which it may have been meant for.
fn unknown(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let known = || VARIABLES.iter().chain(OF_THE_STAND_IN).chain(OF_THE_TESTS).copied();
    let ours = names.filter_map(|name| name.into_string().ok().filter(|name| name.starts_with(OURS)));
    let mut unknown: Vec<String> = ours.filter(|name| !known().any(|other| other == name)).collect();
    unknown.sort();
    let describe = |name: String| {
        // What all begin with says nothing.
        let own = |name: &str| name.strip_prefix(OURS).unwrap_or(name).to_owned();
        let settings = VARIABLES.iter().chain(OF_THE_STAND_IN);
        // What goes on where a setting ends (`CACHE_DIR`) is near to it, however long.
        let distance = |other: &str| {
            let distance = strsim::osa_distance(&own(&name), &own(other));
            let goes_on = own(&name).starts_with(&own(other));
            let near = if goes_on { distance.min(2) } else { distance };
            (goes_on || distance <= own(&name).len().div_ceil(4)).then_some(near)
        };
        let ours = settings.filter(|other| other.starts_with(OURS));
        let mut near: Vec<(usize, &str)> = ours.filter_map(|other| Some((distance(other)?, *other))).collect();
        near.sort_unstable();
        let least = near.first().map_or(0, |(distance, _)| *distance);
        let near: Vec<&str> = near
            .into_iter()
            .filter(|(distance, _)| *distance == least)
            .take(2)
            .map(|(_, other)| other)
            .collect();
        match near.is_empty() {
            false => format!("{name} is no setting of graphc; did you mean {}?", near.join(" or ")),
            true => format!("{name} is no setting of graphc; `graphc doctor` lists those that are set"),
        }
    };
    unknown.into_iter().map(describe).collect()
}

/// Reads a time to wait in seconds; 0 is None: for ever.
///
/// # Errors
/// What is wrong with the text.
pub fn seconds(text: &str) -> Result<Option<Duration>, String> {
    let seconds = text.trim().parse::<f64>().ok();
    let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let timeout = timeout.ok_or_else(|| format!("{text:?} is no number of seconds, as 2 or 0.5; 0 waits for ever"))?;
    Ok(Some(timeout).filter(|timeout| !timeout.is_zero()))
}

impl Settings {
    /// Reads the process's environment.
    ///
    /// # Errors
    /// A variable whose value is not of its kind.
    pub fn from_env() -> Result<Settings, crate::Error> {
        let names = std::env::vars_os().map(|(name, _)| name);
        Ok(Settings {
            unknown: unknown(names),
            ..Settings::read(|name| std::env::var_os(name))?
        })
    }

    /// As [`Settings::from_env`], where variables of the table above have these values instead of the environment's.
    ///
    /// # Errors
    /// As [`Settings::from_env`].
    pub fn from_env_with(values: &IndexMap<&'static str, OsString>) -> Result<Settings, crate::Error> {
        Ok(Settings {
            unknown: unknown(std::env::vars_os().map(|(name, _)| name)),
            ..Settings::read(|name| values.get(name).cloned().or_else(|| std::env::var_os(name)))?
        })
    }

    /// How a program is loaded: as `load` says and, where it is silent, as the settings say. Every verb and every
    /// session asks here.
    pub fn loading(&self, mut load: LoadOptions) -> LoadOptions {
        if load.threads == 0 {
            load.threads = self.threads;
        }
        load.synchronous |= self.synchronous;
        load.capture_collectives |= self.capture_collectives;
        if load.miopen.find == MiopenFind::default() {
            load.miopen.find = self.miopen.find;
        }
        if load.miopen.user_database.is_none() {
            load.miopen.user_database = self.miopen.user_database.clone();
        }
        load
    }

    /// The program and arguments of an embedding app's compile workers; None compiles in the app's process.
    pub fn worker_command(&self) -> Option<Vec<OsString>> {
        let program = self.worker.clone()?;
        let is_graphc = Path::new(&program).file_stem().is_some_and(|name| name == "graphc");
        let verb = is_graphc.then(|| OsString::from(WORKER_VERB));
        Some(std::iter::once(program).chain(verb).collect())
    }

    /// Where the compilers of kernels are looked for.
    pub fn compiler_search(&self) -> CompilerSearch {
        let default = CompilerSearch::default();
        CompilerSearch {
            rocm: self.rocm_search(),
            nvrtc: self.nvrtc.as_ref().map_or(default.nvrtc, CompilerSearch::nvrtc_at),
        }
    }

    /// Where hiprtc, and what comes with it, is looked for.
    pub fn rocm_search(&self) -> RocmSearch {
        RocmSearch {
            hiprtc: Search {
                explicit: self.rocm.clone(),
                ..self.rocm_folders()
            },
            ..RocmSearch::default()
        }
    }

    /// ROCm's folders: `ROCM_PATH`'s before those of a usual installation.
    fn rocm_folders(&self) -> Search {
        let default = Search::default();
        let named = self.rocm_path.iter().flat_map(|p| [p.join("lib"), p.join("lib64")]);
        Search {
            dirs: named.chain(default.dirs).collect(),
            ..default
        }
    }

    /// What is said where a runtime sees no GPU, or not the one asked for: the variable that may have hidden it.
    pub fn hidden_devices(&self, vendor: Vendor) -> Option<String> {
        let name = match vendor {
            Vendor::Hip => "HIP_VISIBLE_DEVICES",
            Vendor::Cuda => "CUDA_VISIBLE_DEVICES",
        };
        let (name, value) = self.set.iter().find(|(set, _)| set == name)?;
        Some(format!("{name}={value} says which GPUs there are"))
    }

    /// Where the GPUs' runtimes and the vendor libraries are looked for.
    pub fn gpu_search(&self) -> GpuSearch {
        let folders = self.rocm.iter().filter(|p| p.is_dir());
        let mut dirs: Vec<PathBuf> = folders
            .flat_map(|p| [p.clone(), p.join("lib"), p.join("lib64")])
            .collect();
        let search = self.rocm_folders();
        dirs.extend(search.dirs.clone());
        let search = Search { dirs, ..search };
        GpuSearch {
            hip: Search {
                explicit: self.hip.clone(),
                ..search.clone()
            },
            collectives: Search {
                explicit: self.rccl.clone(),
                ..search.clone()
            },
            libraries: search,
            cuda: match &self.cuda {
                Some(path) => Search::only(path),
                None => GpuSearch::default().cuda,
            },
        }
    }

    /// Reads settings from any lookup.
    ///
    /// # Errors
    /// A variable whose value is not of its kind.
    pub fn read(get: impl Fn(&str) -> Option<OsString>) -> Result<Settings, crate::Error> {
        let number = |name: &str, default: usize| match get(name) {
            None => Ok(default),
            Some(text) => text
                .to_str()
                .and_then(|t| t.trim().parse().ok())
                .ok_or_else(|| crate::Error::Config(format!("{name}={} is not a number", text.to_string_lossy()))),
        };
        let within = |name: &str, default: usize, range: std::ops::RangeInclusive<usize>| match number(name, default)? {
            n if range.contains(&n) => Ok(n),
            n => Err(crate::Error::Config(format!(
                "{name}={n} is not from {} to {}",
                range.start(),
                range.end()
            ))),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let home_cache = || {
            let base = get("XDG_CACHE_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
            let home = get("HOME").map(PathBuf::from).filter(|p| p.is_absolute());
            base.or_else(|| home.map(|home| home.join(".cache")))
                .map(|b| b.join("graphc"))
        };
        let cache_dir = match get("GRAPHC_CACHE") {
            Some(v) if v == "off" || v.is_empty() => None,
            Some(v) => Some(PathBuf::from(v)),
            None => home_cache(),
        };
        Ok(Settings {
            cache_dir,
            cache_bytes: (number("GRAPHC_CACHE_MIB", 1024)? as u64).saturating_mul(1 << 20),
            rocm: get("GRAPHC_ROCM").map(PathBuf::from),
            rocm_path: get("ROCM_PATH").filter(|p| !p.is_empty()).map(PathBuf::from),
            hip: get("GRAPHC_HIP").map(PathBuf::from),
            nvrtc: get("GRAPHC_NVRTC").map(PathBuf::from),
            cuda: get("GRAPHC_CUDA").map(PathBuf::from),
            rccl: get("GRAPHC_RCCL").map(PathBuf::from),
            libraries: get("GRAPHC_ROCM_LIBS").map(PathBuf::from),
            stand_in: get("GRAPHC_EMU_HIP").map(PathBuf::from),
            emulator_limit: Some(number("GRAPHC_EMU_INSTRUCTION_LIMIT", EMULATOR_LIMIT as usize)? as u64)
                .filter(|limit| *limit > 0),
            miopen: MiopenOptions {
                find: match get("GRAPHC_MIOPEN_FIND") {
                    None => Default::default(),
                    Some(text) => {
                        let text = text.to_string_lossy();
                        text.parse()
                            .map_err(|error| crate::Error::Config(format!("GRAPHC_MIOPEN_FIND={text}: {error}")))?
                    }
                },
                user_database: get("GRAPHC_MIOPEN_USER_DB")
                    .filter(|p| !p.is_empty())
                    .map(PathBuf::from),
            },
            synchronous: number("GRAPHC_SYNCHRONOUS", 0)? != 0,
            capture_collectives: number("GRAPHC_CAPTURE_COLLECTIVES", 0)? != 0,
            timeout: match get("GRAPHC_TIMEOUT") {
                None => None,
                Some(text) => seconds(&text.to_string_lossy()).map_err(|what| {
                    crate::Error::Config(format!("GRAPHC_TIMEOUT={}: {what}", text.to_string_lossy()))
                })?,
            },
            workers: within("GRAPHC_WORKERS", cores.min(MOST_THREADS), 0..=MOST_THREADS)?,
            threads: within("GRAPHC_THREADS", cores.min(MOST_THREADS), 1..=MOST_THREADS)?,
            worker: get("GRAPHC_WORKER"),
            temporary: get("TMPDIR").filter(|p| !p.is_empty()).map(PathBuf::from),
            miopen_assembly_is_set: get(MIOPEN_ASSEMBLY).is_some(),
            emulator_reports: get(EMULATOR_REPORTS).map(PathBuf::from),
            set: VARIABLES
                .iter()
                .filter_map(|name| Some(((*name).to_owned(), get(name)?.to_string_lossy().into_owned())))
                .collect(),
            unknown: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit is told without the emulator, which a small library leaves out.
    #[cfg(feature = "emulate")]
    #[test]
    fn the_limit_of_instructions_is_the_emulators() {
        assert_eq!(EMULATOR_LIMIT, emu::INSTRUCTION_LIMIT);
    }

    #[test]
    fn variables_are_read_and_checked() {
        let settings = Settings::read(|name| match name {
            "GRAPHC_CACHE" => Some("off".into()),
            "GRAPHC_THREADS" => Some("3".into()),
            "GRAPHC_EMU_INSTRUCTION_LIMIT" => Some("5000000".into()),
            _ => None,
        })
        .expect("valid");
        assert_eq!((&settings.cache_dir, settings.threads), (&None, 3));
        // A home that is none would put the cache into the current folder.
        let home = |text: &'static str| Settings::read(|name| (name == "HOME").then(|| text.into()));
        assert_eq!(
            home("/home/me").expect("valid").cache_dir,
            Some("/home/me/.cache/graphc".into())
        );
        for none in ["", "me", "./me"] {
            assert_eq!(home(none).expect("valid").cache_dir, None, "{none:?}");
        }
        assert_eq!(settings.emulator_limit, Some(5_000_000));
        let waits = |text: &'static str| Settings::read(|name| (name == "GRAPHC_TIMEOUT").then(|| text.into()));
        assert_eq!(waits("2.5").expect("valid").timeout, Some(Duration::from_millis(2500)));
        assert_eq!(waits("0").expect("valid").timeout, None);
        for wrong in ["-1", "soon", "inf", "1e300"] {
            let error = waits(wrong).expect_err("no time").to_string();
            assert!(error.contains("GRAPHC_TIMEOUT") && error.contains(wrong), "{error}");
        }
        let finds = |text: &'static str| Settings::read(|name| (name == "GRAPHC_MIOPEN_FIND").then(|| text.into()));
        assert_eq!(finds("hybrid").expect("valid").miopen.find, MiopenFind::Hybrid);
        let error = finds("slow").expect_err("no mode").to_string();
        for part in [
            "GRAPHC_MIOPEN_FIND",
            "\"slow\"",
            "immediate, normal, fast, hybrid, dynamic-hybrid",
        ] {
            assert!(error.contains(part), "{error}");
        }
        let error = Settings::read(|name| (name == "GRAPHC_WORKERS").then(|| "many".into())).expect_err("not a number");
        assert!(error.to_string().contains("GRAPHC_WORKERS=many"), "{error}");
    }

    /// The table of the module's documentation, the list of names, and what is read are one.
    #[test]
    fn the_table_has_every_variable_that_is_read() {
        let rows = include_str!("options.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("//! | `"));
        let documented: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        assert_eq!(documented, VARIABLES);
        let asked = std::cell::RefCell::new(std::collections::BTreeSet::new());
        let settings = Settings::read(|name| {
            asked.borrow_mut().insert(name.to_owned());
            None
        });
        assert!(settings.is_ok_and(|settings| settings.set.is_empty()));
        let others = ["XDG_CACHE_HOME", "HOME"];
        for name in asked.into_inner() {
            assert!(
                VARIABLES.contains(&name.as_str()) || others.contains(&name.as_str()),
                "{name}"
            );
        }
    }

    #[test]
    fn a_name_that_is_no_setting_is_told_with_the_nearest() {
        let said = |name: &str| unknown([OsString::from(name), "PATH".into()].into_iter());
        for (name, near) in [
            ("GRAPHC_WORKRES", "GRAPHC_WORKERS"),
            ("GRAPHC_THREAD", "GRAPHC_THREADS"),
            ("GRAPHC_CACHE_DIR", "GRAPHC_CACHE or GRAPHC_CACHE_MIB"),
            ("GRAPHC_EMU_INSTRUCTIONS_LIMIT", "GRAPHC_EMU_INSTRUCTION_LIMIT"),
            ("GRAPHC_EMU_ARHC", "GRAPHC_EMU_ARCH"),
        ] {
            let said = said(name);
            assert_eq!(said, [format!("{name} is no setting of graphc; did you mean {near}?")]);
        }
        let far = said("GRAPHC_FAVOURITE_COLOUR");
        assert!(
            far[0].contains("graphc doctor") && !far[0].contains("did you mean"),
            "{far:?}"
        );
        for known in ["GRAPHC_THREADS", "GRAPHC_EMU_SEED", "GRAPHC_BLESS", "GRAPHICS"] {
            assert!(said(known).is_empty(), "{known}");
        }
    }

    #[test]
    fn options_that_say_nothing_are_filled_from_the_settings() {
        let settings = Settings::read(|name| match name {
            "GRAPHC_THREADS" => Some("3".into()),
            "GRAPHC_SYNCHRONOUS" | "GRAPHC_CAPTURE_COLLECTIVES" => Some("1".into()),
            "GRAPHC_MIOPEN_FIND" => Some("fast".into()),
            "GRAPHC_MIOPEN_USER_DB" => Some("/db".into()),
            _ => None,
        })
        .expect("valid");
        let filled = settings.loading(LoadOptions::default());
        assert_eq!(
            (filled.threads, filled.synchronous, filled.capture_collectives),
            (3, true, true)
        );
        assert_eq!(filled.miopen, settings.miopen);
        let own = settings.loading(LoadOptions {
            threads: 7,
            miopen: MiopenOptions {
                find: MiopenFind::Hybrid,
                user_database: Some("/own".into()),
            },
            ..LoadOptions::default()
        });
        assert_eq!((own.threads, own.miopen.find), (7, MiopenFind::Hybrid));
        assert_eq!(own.miopen.user_database, Some("/own".into()));
    }
}
