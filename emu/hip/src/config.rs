//! What the stand-in emulates, from its environment variables.
//!
//! | variable | what it sets | default |
//! |---|---|---|
//! | `GRAPHC_EMU_ARCH` | the GPUs' processor, or a list with one for each GPU | `gfx90a` |
//! | `GRAPHC_EMU_DEVICES` | how many GPUs | 1 |
//! | `GRAPHC_EMU_MEMORY_MIB` | memory of each | 16384 |
//! | `GRAPHC_EMU_SEED` | run streams in a random legal order; workgroups one after the other | submission order |
//! | `GRAPHC_EMU_FAULTS` | a list of `malloc@3`, `host-malloc@1`, `module@1`, `launch@2`, `copy@5`, `lost@10`; `+` after the number fails every later one too | none |
//! | `GRAPHC_EMU_CHECKS` | a list of `races`, `group-races`, `alignment`, `no-uninitialized`, `no-waits`, `no-lds-bounds` | |
//! | `GRAPHC_EMU_TRACE` | `errors` prints each call that fails, `calls` each call, with its code | nothing |
//! | `GRAPHC_EMU_DISASSEMBLER` | the command of a disassembler's worker, its words apart by spaces | comgr in process |

use graphc_emu::{Arch, LaunchOptions};

/// Calls that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Allocating device memory: out of memory.
    Malloc,
    /// Allocating pinned memory: out of memory.
    HostMalloc,
    /// Loading a module: out of memory.
    Module,
    /// A kernel that runs: launch failure, seen when it is waited for.
    Launch,
    /// A copy or fill that runs: unknown error, seen when it is waited for.
    Copy,
    /// From this call on the device is gone.
    Lost,
}

/// Which calls are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    Nothing,
    /// Those that fail.
    Errors,
    Calls,
}

/// The n-th of a kind fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRequest {
    pub kind: FaultKind,
    /// Counted from 1.
    pub at: u64,
    /// And every one after it.
    pub onwards: bool,
}

/// What is emulated.
#[derive(Clone, Debug)]
pub struct Config {
    /// One for each device.
    pub archs: Vec<&'static Arch>,
    pub memory_bytes: u64,
    pub seed: Option<u64>,
    pub faults: Vec<FaultRequest>,
    pub launch: LaunchOptions,
    pub trace: Trace,
    pub disassembler: Option<Vec<String>>,
}

impl Config {
    /// Reads a configuration through `get`.
    ///
    /// # Errors
    /// The variable, its value, and what it may be.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Config, String> {
        let number = |name: &str| -> Result<Option<u64>, String> {
            get(name)
                .map(|text| {
                    text.trim()
                        .parse()
                        .map_err(|_| format!("{name}={text} is not a number"))
                })
                .transpose()
        };
        let names = get("GRAPHC_EMU_ARCH").unwrap_or_else(|| "gfx90a".to_string());
        let mut archs = Vec::new();
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            archs.push(Arch::by_name(name).ok_or_else(|| {
                let known: Vec<&str> = graphc_emu::arch::ARCHES.iter().map(|arch| arch.name).collect();
                format!("GRAPHC_EMU_ARCH={names}: no {name}; known are {}", known.join(", "))
            })?);
        }
        let first = *archs
            .first()
            .ok_or_else(|| format!("GRAPHC_EMU_ARCH={names} names no GPU"))?;
        let count = number("GRAPHC_EMU_DEVICES")?.unwrap_or(archs.len() as u64);
        if count > 64 {
            return Err(format!("GRAPHC_EMU_DEVICES={count}: at most 64"));
        }
        archs.resize(count as usize, first);
        let seed = number("GRAPHC_EMU_SEED")?;
        let mut launch = LaunchOptions {
            // With a seed everything is to be the same each time, so also the order of atomics.
            parallel: seed.is_none(),
            ..LaunchOptions::default()
        };
        for check in words(get("GRAPHC_EMU_CHECKS")) {
            match check.as_str() {
                "races" => launch.races = true,
                "group-races" => launch.group_races = true,
                "alignment" => launch.alignment = true,
                "no-uninitialized" => launch.uninitialized = false,
                "no-waits" => launch.waits = false,
                "no-lds-bounds" => launch.lds_bounds = false,
                other => {
                    return Err(format!(
                        "GRAPHC_EMU_CHECKS: {other:?} is none of races, group-races, alignment, no-uninitialized, no-waits, no-lds-bounds"
                    ));
                }
            }
        }
        let trace = match get("GRAPHC_EMU_TRACE").as_deref().map(str::trim) {
            None | Some("") => Trace::Nothing,
            Some("errors") => Trace::Errors,
            Some("calls") => Trace::Calls,
            Some(other) => return Err(format!("GRAPHC_EMU_TRACE={other} is neither errors nor calls")),
        };
        let faults = words(get("GRAPHC_EMU_FAULTS"))
            .iter()
            .map(|word| fault(word))
            .collect::<Result<_, _>>()?;
        Ok(Config {
            archs,
            memory_bytes: number("GRAPHC_EMU_MEMORY_MIB")?.unwrap_or(16384) << 20,
            seed,
            faults,
            launch,
            trace,
            disassembler: get("GRAPHC_EMU_DISASSEMBLER")
                .map(|text| text.split_whitespace().map(str::to_string).collect::<Vec<_>>())
                .filter(|words| !words.is_empty()),
        })
    }
}

fn words(text: Option<String>) -> Vec<String> {
    let text = text.unwrap_or_default();
    text.split(',')
        .map(|word| word.trim().to_string())
        .filter(|word| !word.is_empty())
        .collect()
}

fn fault(word: &str) -> Result<FaultRequest, String> {
    let bad = || format!("GRAPHC_EMU_FAULTS: {word:?} is not KIND@N or KIND@N+");
    let (kind, at) = word.split_once('@').ok_or_else(bad)?;
    let kind = match kind {
        "malloc" => FaultKind::Malloc,
        "host-malloc" => FaultKind::HostMalloc,
        "module" => FaultKind::Module,
        "launch" => FaultKind::Launch,
        "copy" => FaultKind::Copy,
        "lost" => FaultKind::Lost,
        other => {
            return Err(format!(
                "GRAPHC_EMU_FAULTS: {other:?} is none of malloc, host-malloc, module, launch, copy, lost"
            ));
        }
    };
    let onwards = at.ends_with('+') || kind == FaultKind::Lost;
    let at = at
        .trim_end_matches('+')
        .parse()
        .ok()
        .filter(|at| *at > 0)
        .ok_or_else(bad)?;
    Ok(FaultRequest { kind, at, onwards })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Config, String> {
        Config::read(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn defaults_and_lists() {
        let config = read(&[]).expect("defaults");
        assert_eq!(
            (config.archs.len(), config.archs[0].name, config.seed),
            (1, "gfx90a", None)
        );
        let config = read(&[
            ("GRAPHC_EMU_ARCH", "gfx942"),
            ("GRAPHC_EMU_DEVICES", "3"),
            ("GRAPHC_EMU_FAULTS", "malloc@3, launch@2+,lost@9"),
            ("GRAPHC_EMU_CHECKS", "races"),
            ("GRAPHC_EMU_SEED", "7"),
        ])
        .expect("valid");
        assert_eq!(config.archs.iter().map(|a| a.name).collect::<Vec<_>>(), ["gfx942"; 3]);
        assert_eq!(
            config.faults[1],
            FaultRequest {
                kind: FaultKind::Launch,
                at: 2,
                onwards: true
            }
        );
        assert!(config.faults[2].onwards && config.launch.races && !config.launch.parallel);
    }

    #[test]
    fn mistakes_name_the_variable() {
        for (name, value) in [
            ("GRAPHC_EMU_ARCH", "gfx1"),
            ("GRAPHC_EMU_DEVICES", "many"),
            ("GRAPHC_EMU_FAULTS", "malloc"),
            ("GRAPHC_EMU_FAULTS", "teapot@1"),
            ("GRAPHC_EMU_FAULTS", "malloc@0"),
            ("GRAPHC_EMU_CHECKS", "everything"),
            ("GRAPHC_EMU_TRACE", "all"),
        ] {
            let error = read(&[(name, value)]).expect_err(value);
            assert!(error.contains(name), "{error}");
        }
    }
}
