//! Where the ranks of the CPU device meet: each brings its part, and none goes on before all have their results.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use half::{bf16, f16};
use ir::DType;
use ir::library::{Collective, CollectiveKind};

use crate::error::RuntimeError;

/// The place of one rank.
#[derive(Clone)]
pub(crate) struct Seat {
    meeting: Arc<Meeting>,
    rank: usize,
}

/// See the module.
pub(crate) struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// What each rank brought to the collective that is under way.
    brought: Vec<Option<Part>>,
    /// How many have not taken their result yet, once all are there.
    left: usize,
    /// Why nobody comes any more.
    ended: Option<String>,
}

/// A rank's part: bytes that stay as they are until all have left.
#[derive(Clone, Copy)]
struct Part {
    of: Collective,
    dtype: DType,
    bytes: *const [u8],
}

// SAFETY: a part is read by the other ranks only while the one that brought it waits for them.
unsafe impl Send for Part {}

impl Meeting {
    /// Makes a place for each rank.
    pub fn seats(ranks: usize) -> (Arc<Meeting>, Vec<Seat>) {
        let meeting = Arc::new(Meeting {
            state: Mutex::new(State {
                brought: vec![None; ranks],
                left: 0,
                ended: None,
            }),
            changed: Condvar::new(),
        });
        let seats = (0..ranks).map(|rank| Seat {
            meeting: meeting.clone(),
            rank,
        });
        (meeting.clone(), seats.collect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends everybody away who waits, and who comes later.
    pub fn end(&self, reason: &str) {
        self.state().ended.get_or_insert_with(|| reason.to_owned());
        self.changed.notify_all();
    }

    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        until: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>, RuntimeError> {
        loop {
            if until(&state) {
                return Ok(state);
            }
            if let Some(reason) = &state.ended {
                return Err(RuntimeError::RanksEnded {
                    devices: "cpu".into(),
                    reason: reason.clone(),
                });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Seat {
    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.meeting.state().brought.len()
    }

    /// Takes part in a collective: `part` is this rank's, and `result` is filled.
    ///
    /// # Errors
    /// [`RuntimeError::RanksEnded`] where another rank failed; ranks whose parts differ in kind, type or size.
    pub fn collective(
        &self,
        of: Collective,
        dtype: DType,
        part: &[u8],
        result: &mut [u8],
        at: &str,
    ) -> Result<(), RuntimeError> {
        let meeting = &*self.meeting;
        // Those of the collective before have left.
        let mut state = meeting.wait(meeting.state(), |state| state.left == 0 && state.ended.is_none())?;
        state.brought[self.rank] = Some(Part { of, dtype, bytes: part });
        if state.brought.iter().all(Option::is_some) {
            state.left = state.brought.len();
            meeting.changed.notify_all();
        }
        let state = meeting.wait(state, |state| state.left > 0)?;
        let parts: Vec<Part> = state.brought.iter().flatten().copied().collect();
        drop(state);
        let same = |other: &Part| (other.of, other.dtype, other.bytes.len()) == (of, dtype, part.len());
        let fitting = parts.iter().all(same) && parts.len() == of.ranks as usize;
        if fitting {
            // SAFETY: every rank keeps its part as it is until all have left.
            let parts: Vec<&[u8]> = parts.iter().map(|part| unsafe { &*part.bytes }).collect();
            compute(of.kind, dtype, &parts, result);
        } else {
            meeting.end(&format!("{at}: the ranks came with different parts"));
        }
        let mut state = meeting.state();
        state.left = state.left.saturating_sub(1);
        if state.left == 0 {
            state.brought.fill(None);
            meeting.changed.notify_all();
        }
        // Its part must stay as it is until nobody reads it any more; all came, so all leave.
        while state.left > 0 {
            state = meeting.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        if fitting {
            return Ok(());
        }
        Err(RuntimeError::Program(format!(
            "{at}: the ranks came with different parts"
        )))
    }
}

/// Sums in the order of the ranks, so that all have the same bits; numbers of 16 bits in f32.
fn compute(kind: CollectiveKind, dtype: DType, parts: &[&[u8]], result: &mut [u8]) {
    if kind == CollectiveKind::AllGather {
        let each = result.len() / parts.len().max(1);
        for (to, from) in result.chunks_exact_mut(each.max(1)).zip(parts) {
            to.copy_from_slice(from);
        }
        return;
    }
    macro_rules! sum {
        ($bytes:literal, $zero:expr, $read:expr, $add:expr, $write:expr) => {
            for (i, to) in result.chunks_exact_mut($bytes).enumerate() {
                let mut sum = $zero;
                for part in parts {
                    let mut word = [0u8; $bytes];
                    word.copy_from_slice(&part[i * $bytes..(i + 1) * $bytes]);
                    sum = $add(sum, $read(word));
                }
                to.copy_from_slice(&$write(sum));
            }
        };
    }
    let plus = |a: f32, b: f32| a + b;
    match dtype {
        DType::F32 => sum!(4, 0f32, f32::from_le_bytes, plus, f32::to_le_bytes),
        DType::F64 => sum!(8, 0f64, f64::from_le_bytes, |a: f64, b| a + b, f64::to_le_bytes),
        DType::F16 => sum!(2, 0f32, |w| f16::from_le_bytes(w).to_f32(), plus, |s| f16::from_f32(s)
            .to_le_bytes()),
        DType::BF16 => sum!(2, 0f32, |w| bf16::from_le_bytes(w).to_f32(), plus, |s| bf16::from_f32(
            s
        )
        .to_le_bytes()),
        DType::I64 => sum!(8, 0i64, i64::from_le_bytes, i64::wrapping_add, i64::to_le_bytes),
        DType::I32 => sum!(4, 0i32, i32::from_le_bytes, i32::wrapping_add, i32::to_le_bytes),
        // Of 8 bits, signed or not, the same bits.
        _ => sum!(1, 0u8, u8::from_le_bytes, u8::wrapping_add, u8::to_le_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: Collective = Collective {
        kind: CollectiveKind::AllReduce,
        ranks: 3,
    };

    #[test]
    fn ranks_meet_again_and_again() {
        let (_, seats) = Meeting::seats(3);
        let results: Vec<Vec<f32>> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (seats.into_iter().enumerate())
                .map(|(rank, seat)| {
                    scope.spawn(move || {
                        let mut sums = Vec::new();
                        for round in 0..200 {
                            let part = ((rank * 1000 + round) as f32).to_le_bytes();
                            let mut sum = [0u8; 4];
                            seat.collective(SUM, DType::F32, &part, &mut sum, "a test").unwrap();
                            sums.push(f32::from_le_bytes(sum));
                        }
                        sums
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let want: Vec<f32> = (0..200).map(|round| (3000 + 3 * round) as f32).collect();
        assert_eq!(results, vec![want; 3]);
    }

    #[test]
    fn who_waits_is_sent_away_when_a_rank_fails() {
        let (meeting, seats) = Meeting::seats(3);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| seats[0].collective(SUM, DType::F32, &[0; 4], &mut [0; 4], "a test"));
            meeting.end("rank 2 failed");
            let error = waiting.join().unwrap().unwrap_err().to_string();
            assert!(error.contains("rank 2 failed"), "{error}");
        });
    }

    #[test]
    fn parts_that_differ_are_refused_by_all() {
        let two = Collective { ranks: 2, ..SUM };
        let (_, seats) = Meeting::seats(2);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| seats[1].collective(two, DType::F32, &[0; 8], &mut [0; 8], "step s4"));
            let own = seats[0].collective(two, DType::F32, &[0; 4], &mut [0; 4], "step s4");
            for result in [own, other.join().unwrap()] {
                assert!(result.unwrap_err().to_string().contains("different parts"));
            }
        });
    }

    #[test]
    fn halves_are_summed_in_f32() {
        let halves = |v: f32| f16::from_f32(v).to_le_bytes();
        let parts = [halves(2048.0), halves(1.0), halves(1.0)];
        let mut sum = [0; 2];
        compute(
            CollectiveKind::AllReduce,
            DType::F16,
            &[&parts[0], &parts[1], &parts[2]],
            &mut sum,
        );
        assert_eq!(f16::from_le_bytes(sum).to_f32(), 2050.0);
    }
}
