//! Files that nobody wrote by accident: artifacts, plans and kernels that an attacker changed, checksums recomputed,
//! and every other kind of file that graphc reads.
//!
//! A target makes one case from a seeded generator: it takes something valid, changes a few of its fields or bytes, and
//! does with it what graphc would. Whatever is accepted is run. A case fails when something panics, or when memory that
//! is not a buffer's is touched: the caller's buffers and the constants end at a page that nobody may access
//! ([`guarded`]), and arithmetic that overflows panics in the builds that fuzz.
//!
//! ```text
//! graphc-fuzz kernel --runs 100000 --seed 1        a process that starts itself again for each case that ended it
//! ```
//!
//! The same target, seed and case number make the same case.

pub mod guarded;
pub mod mutate;
pub mod random;
pub mod seeds;
pub mod targets;

use random::Random;

/// How far a case came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The file or the program was refused with an error.
    Refused,
    /// It was read and verified, and not run: too large, or nothing to run.
    Accepted,
    /// It ran, to an end or to an error.
    Ran,
}

/// How many cases came how far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    pub refused: u64,
    pub accepted: u64,
    pub ran: u64,
}

impl Counts {
    /// Counts one case.
    pub fn count(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Refused => &mut self.refused,
            Outcome::Accepted => &mut self.accepted,
            Outcome::Ran => &mut self.ran,
        } += 1;
    }

    /// All cases.
    pub fn total(&self) -> u64 {
        self.refused + self.accepted + self.ran
    }
}

impl std::ops::Add for Counts {
    type Output = Counts;

    fn add(self, more: Counts) -> Counts {
        Counts {
            refused: self.refused + more.refused,
            accepted: self.accepted + more.accepted,
            ran: self.ran + more.ran,
        }
    }
}

/// Something that is fuzzed.
pub trait Target {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// Makes and runs one case; panics where something is wrong.
    fn case(&self, random: &mut Random) -> Outcome;
}

/// Runs one case of a target: the same for the same seed and number.
pub fn run(target: &dyn Target, seed: u64, number: u64) -> Outcome {
    target.case(&mut Random::new(seed, number))
}
