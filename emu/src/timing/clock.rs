//! The clock that a launch runs at where none is asked for: between the boost clock and what dense matrix work settles
//! at.
//!
//! At the limit of power, energy a cycle times the clock is constant. Energy a cycle is taken as linear in the part of
//! the cycles that the matrix units of the whole GPU work, at one voltage (assumed). Two published clocks then say all:
//! boost where they rest, and the sustained clock where they never do. A cycle with matrix work so takes longer than
//! one without, by the same time at every share: of two kernels with the same matrix work the one of fewer cycles is
//! the faster one.

use super::machine::Machine;

/// The part of the time, 0 to 1, that the matrix units of the whole GPU work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MatrixShare {
    /// With all types but f64.
    pub other: f64,
    pub double: f64,
}

/// Clocks that are nearer to each other than this are one clock.
const CLOSE: f64 = 0.003;

/// Steps towards the clock at most.
const STEPS: usize = 4;

/// The clock in GHz at which the limit holds the machine.
pub(super) fn ghz(machine: &Machine, share: MatrixShare) -> f64 {
    let boost = machine.boost_ghz;
    let (other, double) = (share.other.clamp(0.0, 1.0), share.double.clamp(0.0, 1.0));
    let all = (other + double).max(1.0);
    // Nanoseconds more of a cycle with matrix work.
    let longer = |ghz: f64| (1.0 / ghz - 1.0 / boost).max(0.0);
    1.0 / (1.0 / boost + other / all * longer(machine.matrix_ghz) + double / all * longer(machine.double_matrix_ghz))
}

/// The launch at the clock that it runs at, and that clock: `run` times it at a clock, `share` says what its matrix
/// units do then.
///
/// A lower clock leaves memory fewer cycles, so that the share grows and the clock falls further: from the boost clock
/// it goes down to where both agree.
pub(super) fn settle<T>(machine: &Machine, run: impl Fn(f64) -> T, share: impl Fn(&T) -> MatrixShare) -> (f64, T) {
    let mut clock = machine.boost_ghz;
    let mut timed = run(clock);
    for _ in 0..STEPS {
        let next = ghz(machine, share(&timed));
        if (next / clock - 1.0).abs() < CLOSE {
            break;
        }
        clock = next;
        timed = run(clock);
    }
    (clock, timed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(share: f64) -> MatrixShare {
        MatrixShare {
            other: share,
            double: 0.0,
        }
    }

    #[test]
    fn the_ends_are_the_published_clocks() {
        for machine in Machine::all() {
            let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-12;
            assert!(near(ghz(machine, other(0.0)), machine.boost_ghz), "{}", machine.part);
            assert!(near(ghz(machine, other(1.0)), machine.matrix_ghz), "{}", machine.part);
            let double = MatrixShare {
                other: 0.0,
                double: 1.0,
            };
            assert!(
                near(ghz(machine, double), machine.double_matrix_ghz),
                "{}",
                machine.part
            );
        }
    }

    #[test]
    fn more_matrix_work_never_raises_the_clock_and_never_lowers_its_rate() {
        for machine in Machine::all() {
            for step in 0..100 {
                let (less, more) = (f64::from(step) / 100.0, f64::from(step + 1) / 100.0);
                let (high, low) = (ghz(machine, other(less)), ghz(machine, other(more)));
                assert!(
                    low <= high && low >= machine.matrix_ghz * (1.0 - 1e-12),
                    "{}",
                    machine.part
                );
                assert!(low * more > high * less, "{}", machine.part);
                // f64 costs as much or more, and shares of both add up.
                let mixed = MatrixShare {
                    other: less / 2.0,
                    double: less / 2.0,
                };
                let slower = ghz(machine, mixed) <= high * (1.0 + 1e-12);
                assert!(slower, "{}", machine.part);
            }
        }
    }

    /// A launch of `cycles` for arithmetic and `micros` of memory beside it, whichever is longer or both in turn.
    #[test]
    fn the_clock_and_the_share_agree() {
        for machine in Machine::all() {
            for (matrix, cycles, micros) in [(1e6, 1e6, 0.0), (3e5, 1e6, 300.0), (1e5, 2e5, 900.0), (0.0, 1e6, 10.0)] {
                let share = |total: &f64| other(matrix / total);
                let (clock, total) = settle(machine, |ghz| cycles + micros * ghz * 1e3, share);
                let agreed = ghz(machine, share(&total));
                assert!(
                    (agreed / clock - 1.0).abs() < 0.01,
                    "{}: {clock} {agreed}",
                    machine.part
                );
                if matrix == 0.0 {
                    assert_eq!(clock, machine.boost_ghz);
                }
            }
        }
    }
}
