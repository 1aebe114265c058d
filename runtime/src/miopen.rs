//! What MIOpen is told of how to choose a convolution's algorithm, and where it keeps what it measured.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// What MIOpen is told beside the calls of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MiopenOptions {
    /// How the algorithm of a convolution is chosen when a program first meets its sizes.
    pub find: MiopenFind,
    /// The folder of MIOpen's user databases, in which it keeps what it measured and looks first, in every mode; made
    /// where it is not there. `None` leaves it where MIOpen has it: where its own variable (`MIOPEN_USER_DB_PATH`)
    /// says, or under the user's home.
    ///
    /// MIOpen reads that once in a process, from the environment, so the folder is set there before MIOpen is loaded,
    /// and all programs of the process have the same; another one is a
    /// [`RuntimeError::MiopenDatabase`](crate::RuntimeError::MiopenDatabase). A process in which other threads read the
    /// environment by C's `getenv` meanwhile should load its first such program before it starts them.
    pub user_database: Option<PathBuf>,
}

/// How MIOpen chooses the algorithm of a convolution. All modes but [`Immediate`](MiopenFind::Immediate) are those of
/// its find stage, under MIOpen's names.
///
/// The find stage may compile and time many kernels, and what it times decides: two machines may choose differently,
/// and so may two processes. Within one loaded program a convolution is searched for once, and all runs have the same
/// algorithm. While it searches, memory for one more input, filter, result and the largest workspace of any algorithm
/// is taken from the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MiopenFind {
    /// No find stage and nothing timed: what the databases rank first or, of what is not in them, a heuristic.
    #[default]
    Immediate,
    /// Every applicable algorithm is compiled and timed, whatever the databases have.
    Normal,
    /// What the databases have; else the heuristic of the immediate mode.
    Fast,
    /// What the databases have; else as `Normal`.
    Hybrid,
    /// What the databases have; else as `Normal`, but for kernels that would be compiled for these sizes alone.
    DynamicHybrid,
}

impl MiopenFind {
    /// All modes, in the order in which messages list them.
    pub const ALL: [MiopenFind; 5] = [
        MiopenFind::Immediate,
        MiopenFind::Normal,
        MiopenFind::Fast,
        MiopenFind::Hybrid,
        MiopenFind::DynamicHybrid,
    ];

    /// Returns the name that options have for it.
    pub const fn name(self) -> &'static str {
        match self {
            MiopenFind::Immediate => "immediate",
            MiopenFind::Normal => "normal",
            MiopenFind::Fast => "fast",
            MiopenFind::Hybrid => "hybrid",
            MiopenFind::DynamicHybrid => "dynamic-hybrid",
        }
    }
}

impl fmt::Display for MiopenFind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A find mode that MIOpen does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no find mode of MIOpen; known: {}", MiopenFind::ALL.map(MiopenFind::name).join(", "))]
pub struct UnknownFind {
    pub given: String,
}

impl FromStr for MiopenFind {
    type Err = UnknownFind;
    fn from_str(text: &str) -> Result<MiopenFind, UnknownFind> {
        let found = MiopenFind::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| UnknownFind { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names_and_others_are_refused_with_all_of_them() {
        for mode in MiopenFind::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        for given in ["", "Normal", "dynamic_hybrid", "5"] {
            let error = given.parse::<MiopenFind>().expect_err("no mode").to_string();
            assert!(error.contains(&format!("{given:?}")), "{error}");
            assert!(
                MiopenFind::ALL.iter().all(|mode| error.contains(mode.name())),
                "{error}"
            );
        }
    }
}
