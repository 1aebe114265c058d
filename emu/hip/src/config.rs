//! What the stand-in emulates, from its environment variables.
//!
//! | variable | what it sets | default |
//! |---|---|---|
//! | `GRAPHC_EMU_ARCH` | the GPUs' processor, or a list with one for each GPU | `gfx90a` |
//! | `GRAPHC_EMU_DEVICES` | how many GPUs | 1 |
//! | `HIP_VISIBLE_DEVICES` | the GPUs that are shown, by number, as HIP's own runtime has it: up to the first that there is not | all |
//! | `GRAPHC_EMU_MEMORY_MIB` | memory of each | 16384 |
//! | `GRAPHC_EMU_SEED` | run streams in a random legal order; workgroups one after the other | submission order |
//! | `GRAPHC_EMU_FAULTS` | a list of `malloc@3`, `host-malloc@1`, `module@1`, `launch@2`, `copy@5`, `hang@2`, `lost@10`, `call@7`, `hipMalloc@2=hipErrorInvalidValue`; `+` after the number fails every later one too, `%` every multiple; see [`FaultKind`] and [`FaultRequest`] | none |
//! | `GRAPHC_EMU_CHECKS` | a list of `races`, `group-races`, `alignment`, `no-uninitialized`, `no-host-reads`, `no-waits`, `no-lds-bounds` | |
//! | `GRAPHC_EMU_INSTRUCTION_LIMIT` | wave instructions after which a workgroup counts as an endless loop; 0 for none | 1073741824 (minutes) |
//! | `GRAPHC_EMU_ENDLESS` | what a kernel does that reaches the limit: `fails` with `hipErrorLaunchTimeOut`, or `hangs`: it is never done, and no call says so | `fails` |
//! | `GRAPHC_EMU_TRACE` | `errors` prints each call that fails, `calls` each call, with its code | nothing |
//! | `GRAPHC_EMU_TIME` | a file: kernels are timed, not run (their results are of no use), and each launch's report is added to it as a line of JSON | kernels run |
//! | `GRAPHC_EMU_CLOCK` | the shader clock in GHz that kernels are timed at | the model's own choice |
//! | `GRAPHC_EMU_DISASSEMBLER` | the command of a disassembler's worker, its words apart by spaces | comgr in process |

use crate::status::by_name;
use graphc_emu::{Arch, LaunchOptions};
use hip_sys::hipError_t;
use std::path::PathBuf;

/// Calls that can be made to fail.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// A kernel that runs: it is never done.
    Hang,
    /// From this call on the device is gone.
    Lost,
    /// A call, whatever it is but for those that free and destroy: unknown error, and nothing was done.
    Call,
    /// A call of the function of this name: unknown error, and nothing was done.
    Function(String),
}

/// Which calls are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    Nothing,
    /// Those that fail.
    Errors,
    Calls,
}

/// The n-th of a kind fails: `hipMalloc@2`, `launch@3+`, `call@7%`, `hipFree@1=hipErrorInvalidValue`,
/// `hipEventRecord@4!hipErrorLaunchFailure`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRequest {
    pub kind: FaultKind,
    /// Counted from 1.
    pub at: u64,
    /// And every one after it.
    pub onwards: bool,
    /// And every multiple.
    pub multiples: bool,
    /// The code that it gives, of a call by its name; None for an unknown error.
    pub code: Option<hipError_t>,
    /// Whether the code stands for what happened to the device, written with `!`: every later call gives it too, and
    /// with `hipErrorNoDevice` there is no device any more.
    pub breaks: bool,
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
    /// Whether a copy to the host of memory that nothing wrote fails.
    pub host_reads: bool,
    /// Whether a kernel that reaches the limit of instructions is never done, and no error.
    pub hangs: bool,
    pub trace: Trace,
    pub disassembler: Option<Vec<String>>,
    /// Launches are timed, and their reports go here.
    pub time: Option<PathBuf>,
    /// The shader clock that they are timed at, in GHz.
    pub clock: Option<f64>,
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
        if let Some(list) = get("HIP_VISIBLE_DEVICES").filter(|list| !list.trim().is_empty()) {
            let shown = list
                .split(',')
                .map_while(|n| archs.get(n.trim().parse::<usize>().ok()?).copied());
            archs = shown.collect();
        }
        let seed = number("GRAPHC_EMU_SEED")?;
        let mut launch = LaunchOptions {
            // With a seed everything is to be the same each time, so also the order of atomics.
            parallel: seed.is_none(),
            ..LaunchOptions::default()
        };
        // What kernels that are timed leave in memory is of no use anyhow.
        let time = get("GRAPHC_EMU_TIME")
            .filter(|text| !text.is_empty())
            .map(PathBuf::from);
        let mut host_reads = time.is_none();
        for check in words(get("GRAPHC_EMU_CHECKS")) {
            match check.as_str() {
                "races" => launch.races = true,
                "group-races" => launch.group_races = true,
                "alignment" => launch.alignment = true,
                "no-uninitialized" => (launch.uninitialized, host_reads) = (false, false),
                "no-host-reads" => host_reads = false,
                "no-waits" => launch.waits = false,
                "no-lds-bounds" => launch.lds_bounds = false,
                other => {
                    return Err(format!(
                        "GRAPHC_EMU_CHECKS: {other:?} is none of races, group-races, alignment, no-uninitialized, no-host-reads, \
                         no-waits, no-lds-bounds"
                    ));
                }
            }
        }
        if let Some(limit) = number("GRAPHC_EMU_INSTRUCTION_LIMIT")? {
            launch.instruction_limit = Some(limit).filter(|limit| *limit > 0);
        }
        let hangs = match get("GRAPHC_EMU_ENDLESS").as_deref().map(str::trim) {
            None | Some("" | "fails") => false,
            Some("hangs") => true,
            Some(other) => return Err(format!("GRAPHC_EMU_ENDLESS={other} is neither fails nor hangs")),
        };
        let trace = match get("GRAPHC_EMU_TRACE").as_deref().map(str::trim) {
            None | Some("") => Trace::Nothing,
            Some("errors") => Trace::Errors,
            Some("calls") => Trace::Calls,
            Some(other) => return Err(format!("GRAPHC_EMU_TRACE={other} is neither errors nor calls")),
        };
        let faults = faults(get("GRAPHC_EMU_FAULTS"))?;
        let clock = get("GRAPHC_EMU_CLOCK")
            .map(|text| match text.trim().parse::<f64>() {
                Ok(ghz) if ghz.is_finite() && ghz > 0.0 => Ok(ghz),
                _ => Err(format!("GRAPHC_EMU_CLOCK={text} is no clock in GHz")),
            })
            .transpose()?;
        Ok(Config {
            clock,
            archs,
            memory_bytes: number("GRAPHC_EMU_MEMORY_MIB")?.unwrap_or(16384) << 20,
            seed,
            faults,
            launch,
            host_reads,
            hangs,
            trace,
            time,
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

/// Reads a list of faults, as `GRAPHC_EMU_FAULTS` has it.
///
/// # Errors
/// The word that is none, and what it may be.
pub fn faults(list: Option<String>) -> Result<Vec<FaultRequest>, String> {
    words(list).iter().map(|word| fault(word)).collect()
}

fn fault(word: &str) -> Result<FaultRequest, String> {
    let bad = || {
        format!(
            "GRAPHC_EMU_FAULTS: {word:?} is not KIND@N, KIND@N+ or KIND@N%, with =CODE or !CODE behind a function's name"
        )
    };
    let (kind, rest) = word.split_once('@').ok_or_else(bad)?;
    let kind = match kind {
        "malloc" => FaultKind::Malloc,
        "host-malloc" => FaultKind::HostMalloc,
        "module" => FaultKind::Module,
        "launch" => FaultKind::Launch,
        "copy" => FaultKind::Copy,
        "hang" => FaultKind::Hang,
        "lost" => FaultKind::Lost,
        "call" => FaultKind::Call,
        name if name.starts_with("hip") => FaultKind::Function(name.to_owned()),
        other => {
            return Err(format!(
                "GRAPHC_EMU_FAULTS: {other:?} is none of malloc, host-malloc, module, launch, copy, hang, lost, call, and no \
                 function of HIP"
            ));
        }
    };
    let (at, code, breaks) = match rest.split_once(['=', '!']) {
        None => (rest, None, false),
        Some((at, name)) => {
            let code = by_name(name).ok_or_else(|| format!("GRAPHC_EMU_FAULTS: {word:?}: HIP has no code {name:?}"))?;
            if !matches!(kind, FaultKind::Function(_) | FaultKind::Call) {
                return Err(bad());
            }
            (at, Some(code), rest.as_bytes().get(at.len()) == Some(&b'!'))
        }
    };
    let onwards = at.ends_with('+') || kind == FaultKind::Lost;
    let multiples = at.ends_with('%');
    let at = at
        .trim_end_matches(['+', '%'])
        .parse()
        .ok()
        .filter(|at| *at > 0)
        .ok_or_else(bad)?;
    Ok(FaultRequest {
        kind,
        at,
        onwards,
        multiples,
        code,
        breaks,
    })
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
            ("GRAPHC_EMU_INSTRUCTION_LIMIT", "70000"),
        ])
        .expect("valid");
        assert_eq!(config.archs.iter().map(|a| a.name).collect::<Vec<_>>(), ["gfx942"; 3]);
        assert_eq!(
            config.faults[1],
            FaultRequest {
                kind: FaultKind::Launch,
                at: 2,
                onwards: true,
                multiples: false,
                code: None,
                breaks: false,
            }
        );
        let by_name = read(&[("GRAPHC_EMU_FAULTS", "hipMalloc@3+!hipErrorNoDevice")]).expect("valid");
        assert_eq!(
            by_name.faults,
            [FaultRequest {
                kind: FaultKind::Function("hipMalloc".into()),
                at: 3,
                onwards: true,
                multiples: false,
                code: Some(hipError_t::hipErrorNoDevice),
                breaks: true,
            }]
        );
        assert_eq!(config.launch.instruction_limit, Some(70_000));
        assert!(config.faults[2].onwards && config.launch.races && !config.launch.parallel);
    }

    #[test]
    fn devices_are_shown_as_hip_shows_them() {
        let three = ("GRAPHC_EMU_ARCH", "gfx90a,gfx942,gfx1100");
        for (list, shown) in [
            ("2,0", &["gfx1100", "gfx90a"][..]),
            ("1", &["gfx942"]),
            ("0,7,1", &["gfx90a"]),
            ("-1", &[]),
            ("", &["gfx90a", "gfx942", "gfx1100"]),
        ] {
            let config = read(&[three, ("HIP_VISIBLE_DEVICES", list)]).expect("valid");
            assert_eq!(
                config.archs.iter().map(|a| a.name).collect::<Vec<_>>(),
                shown,
                "{list:?}"
            );
        }
    }

    #[test]
    fn mistakes_name_the_variable() {
        for (name, value) in [
            ("GRAPHC_EMU_ARCH", "gfx1"),
            ("GRAPHC_EMU_DEVICES", "many"),
            ("GRAPHC_EMU_INSTRUCTION_LIMIT", "much"),
            ("GRAPHC_EMU_FAULTS", "malloc"),
            ("GRAPHC_EMU_FAULTS", "teapot@1"),
            ("GRAPHC_EMU_FAULTS", "malloc@0"),
            ("GRAPHC_EMU_FAULTS", "malloc@1=hipErrorOutOfMemory"),
            ("GRAPHC_EMU_FAULTS", "hipFree@1=EINVAL"),
            ("GRAPHC_EMU_ENDLESS", "sleeps"),
            ("GRAPHC_EMU_CHECKS", "everything"),
            ("GRAPHC_EMU_TRACE", "all"),
            ("GRAPHC_EMU_CLOCK", "fast"),
            ("GRAPHC_EMU_CLOCK", "-1"),
        ] {
            let error = read(&[(name, value)]).expect_err(value);
            assert!(error.contains(name), "{error}");
        }
    }
}
